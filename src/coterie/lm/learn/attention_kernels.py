"""Attention over prompts and their answers in one row, as GPU kernels with gradients, in Triton.

FlashAttention (Dao 2023, algorithms 1 and 2) over the spans of `transformer.Spans`: blocks of keys that no query of a
block sees are never read, so that a batch costs what its tokens see and nothing is padded. Queries and keys are rotated
first; heads may share keys. Sums are float32, and no result depends on the order in which programs run.

A *slope* is a gradient of the loss. `most`, `total` and `mixed` are an online softmax: the highest score so far, the
sum of the weights relative to it, and the sum of weighted values. `log` is the logarithm of a softmax's sum, `delta`
the sum over slope times output.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# ruff: noqa: ANN202  # Triton's kernels take pointers

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from coterie.lm.learn.transformer import Spans

QUERIES, KEYS = 64, 32  # of a block; of numbers of 4 bytes, half as many queries
STAGES = {"num_warps": 4, "num_stages": 3}  # the fastest of a dozen on an H200
FEWER_STAGES = {"num_warps": 4, "num_stages": 2}
VECTORS = 32  # vectors of heads that a program rotates


@triton.jit
def _rotate(
    x_ptr, cosine_ptr, sine_ptr, out_ptr, count, sign,
    WIDE: tl.constexpr, TURNED: tl.constexpr, SIZE: tl.constexpr, HALF: tl.constexpr, VECTORS: tl.constexpr,
):  # fmt: skip
    """Rotate the first TURNED of WIDE vectors of every token; the others are copied."""
    vector = tl.program_id(0).to(tl.int64) * VECTORS + tl.arange(0, VECTORS)
    token, at = vector // WIDE, tl.arange(0, HALF)
    inside = (vector < count)[:, None] & (at < SIZE // 2)[None, :]
    turned = inside & (vector % WIDE < TURNED)[:, None]
    cells, angles = vector[:, None] * SIZE + at[None, :], token[:, None] * SIZE + at[None, :]
    element = out_ptr.dtype.element_ty
    first = tl.load(x_ptr + cells, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(x_ptr + cells + SIZE // 2, mask=inside, other=0.0).to(tl.float32)
    cosine = tl.load(cosine_ptr + angles, mask=turned, other=1.0).to(tl.float32)
    sine = tl.load(sine_ptr + angles, mask=turned, other=0.0).to(tl.float32) * sign
    # Products are rounded as plain PyTorch rounds them.
    one = (first * cosine).to(element).to(tl.float32) - (second * sine).to(element).to(tl.float32)
    other = (second * cosine).to(element).to(tl.float32) + (first * sine).to(element).to(tl.float32)
    tl.store(out_ptr + cells, one.to(element), mask=inside)
    tl.store(out_ptr + cells + SIZE // 2, other.to(element), mask=inside)


@triton.jit
def _seen(key, query, begin, prompt_end, own):
    """[Q, K] whether these queries see these keys."""
    prompt = (key[None, :] >= begin[:, None]) & (key[None, :] < prompt_end[:, None])
    return prompt | ((key[None, :] >= own[:, None]) & (key[None, :] <= query[:, None]))


@triton.jit
def _spans(begin_ptr, prompt_end_ptr, own_ptr, query, count):
    """The spans of some queries; beyond the row, of queries that see nothing."""
    inside = query < count
    begin = tl.load(begin_ptr + query, mask=inside, other=count)
    prompt_end = tl.load(prompt_end_ptr + query, mask=inside, other=0)
    own = tl.load(own_ptr + query, mask=inside, other=2147483647)
    return begin, prompt_end, own


@triton.jit
def _mix_block(most, total, mixed, query, key, seen, key_ptr, value_ptr, wide, count, scale,
               WIDE: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip
    """Go on with an online softmax over a block of keys."""
    cells = (key < count)[:, None] & (wide < SIZE)[None, :]
    at = key.to(tl.int64)[:, None] * (WIDE * SIZE) + wide[None, :]
    keys, values = tl.load(key_ptr + at, mask=cells, other=0.0), tl.load(value_ptr + at, mask=cells, other=0.0)
    score = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
    score = tl.where(seen, score, float("-inf"))
    higher = tl.maximum(most, tl.max(score, axis=1))
    weight = tl.exp(score - higher[:, None])
    shrink = tl.exp(most - higher)
    total = total * shrink + tl.sum(weight, axis=1)
    mixed = mixed * shrink[:, None] + tl.dot(weight.to(values.dtype), values, input_precision="ieee")
    return higher, total, mixed


@triton.jit
def _mix(
    heads_ptr, out_ptr, log_ptr, begin_ptr, prompt_end_ptr, own_ptr, count, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Mix values for a block of queries of one head, and keep the logarithms of the softmax's sums."""
    WIDE: tl.constexpr = HEADS + 2 * KV_HEADS
    head = tl.program_id(1)
    kv = HEADS + head // (HEADS // KV_HEADS)
    at, wide = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES), tl.arange(0, PADDED)
    begin, prompt_end, own = _spans(begin_ptr, prompt_end_ptr, own_ptr, at, count)
    cells = (at < count)[:, None] & (wide < SIZE)[None, :]
    rows = at.to(tl.int64)[:, None]
    query = tl.load(heads_ptr + rows * (WIDE * SIZE) + head * SIZE + wide[None, :], mask=cells, other=0.0)
    most = tl.full((QUERIES,), -1.0e30, tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    mixed = tl.zeros((QUERIES, PADDED), tl.float32)
    first, middle = tl.min(begin) // KEYS * KEYS, tl.cdiv(tl.max(prompt_end), KEYS) * KEYS
    end = tl.minimum((tl.program_id(0) + 1) * QUERIES, count)
    for place in range(first, middle, KEYS):  # prompts
        key = place + tl.arange(0, KEYS)
        most, total, mixed = _mix_block(
            most, total, mixed, query, key, _seen(key, at, begin, prompt_end, own),
            heads_ptr + kv * SIZE, heads_ptr + (kv + KV_HEADS) * SIZE, wide, count, scale, WIDE, SIZE,
        )  # fmt: skip
    for place in range(tl.maximum(middle, tl.min(own) // KEYS * KEYS), end, KEYS):  # their own answers
        key = place + tl.arange(0, KEYS)
        most, total, mixed = _mix_block(
            most, total, mixed, query, key, _seen(key, at, begin, prompt_end, own),
            heads_ptr + kv * SIZE, heads_ptr + (kv + KV_HEADS) * SIZE, wide, count, scale, WIDE, SIZE,
        )  # fmt: skip
    total = tl.where(total > 0, total, 1.0)
    mixed = (mixed / total[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + rows * (HEADS * SIZE) + head * SIZE + wide[None, :], mixed, mask=cells)
    tl.store(log_ptr + head * count + at, most + tl.log(total), mask=at < count)


@triton.jit
def _query_block(slope_sum, query, slope, log, delta, key, seen, key_ptr, value_ptr, wide, count, scale,
                 WIDE: tl.constexpr, SIZE: tl.constexpr):  # fmt: skip
    """Add a block of keys to the slopes of queries."""
    cells = (key < count)[:, None] & (wide < SIZE)[None, :]
    at = key.to(tl.int64)[:, None] * (WIDE * SIZE) + wide[None, :]
    keys, values = tl.load(key_ptr + at, mask=cells, other=0.0), tl.load(value_ptr + at, mask=cells, other=0.0)
    score = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
    weight = tl.where(seen, tl.exp(score - log[:, None]), 0.0)
    weight_slope = tl.dot(slope, tl.trans(values), input_precision="ieee")
    score_slope = (weight * (weight_slope - delta[:, None]) * scale).to(keys.dtype)
    return slope_sum + tl.dot(score_slope, keys, input_precision="ieee")


@triton.jit
def _query_slopes(
    heads_ptr, out_ptr, slope_ptr, log_ptr, delta_ptr, slopes_ptr, begin_ptr, prompt_end_ptr, own_ptr, count, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Slopes of a block of queries of one head, and the sums over slope times output that keys need, too."""
    WIDE: tl.constexpr = HEADS + 2 * KV_HEADS
    head = tl.program_id(1)
    kv = HEADS + head // (HEADS // KV_HEADS)
    at, wide = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES), tl.arange(0, PADDED)
    begin, prompt_end, own = _spans(begin_ptr, prompt_end_ptr, own_ptr, at, count)
    cells = (at < count)[:, None] & (wide < SIZE)[None, :]
    rows = at.to(tl.int64)[:, None]
    query = tl.load(heads_ptr + rows * (WIDE * SIZE) + head * SIZE + wide[None, :], mask=cells, other=0.0)
    mixed = tl.load(out_ptr + rows * (HEADS * SIZE) + head * SIZE + wide[None, :], mask=cells, other=0.0)
    slope = tl.load(slope_ptr + rows * (HEADS * SIZE) + head * SIZE + wide[None, :], mask=cells, other=0.0)
    delta = tl.sum(mixed.to(tl.float32) * slope.to(tl.float32), axis=1)
    tl.store(delta_ptr + head * count + at, delta, mask=at < count)
    log = tl.load(log_ptr + head * count + at, mask=at < count, other=0.0)
    found = tl.zeros((QUERIES, PADDED), tl.float32)
    first, middle = tl.min(begin) // KEYS * KEYS, tl.cdiv(tl.max(prompt_end), KEYS) * KEYS
    end = tl.minimum((tl.program_id(0) + 1) * QUERIES, count)
    for place in range(first, middle, KEYS):
        key = place + tl.arange(0, KEYS)
        found = _query_block(
            found, query, slope, log, delta, key, _seen(key, at, begin, prompt_end, own),
            heads_ptr + kv * SIZE, heads_ptr + (kv + KV_HEADS) * SIZE, wide, count, scale, WIDE, SIZE,
        )  # fmt: skip
    for place in range(tl.maximum(middle, tl.min(own) // KEYS * KEYS), end, KEYS):
        key = place + tl.arange(0, KEYS)
        found = _query_block(
            found, query, slope, log, delta, key, _seen(key, at, begin, prompt_end, own),
            heads_ptr + kv * SIZE, heads_ptr + (kv + KV_HEADS) * SIZE, wide, count, scale, WIDE, SIZE,
        )  # fmt: skip
    into = slopes_ptr + rows * (WIDE * SIZE) + head * SIZE + wide[None, :]
    tl.store(into, found.to(slopes_ptr.dtype.element_ty), mask=cells)


@triton.jit
def _key_slopes(
    heads_ptr, slope_ptr, log_ptr, delta_ptr, slopes_ptr, begin_ptr, prompt_end_ptr, own_ptr, last_ptr, count, scale,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Slopes of a block of keys and values, from all heads that share them."""
    WIDE: tl.constexpr = HEADS + 2 * KV_HEADS
    GROUP: tl.constexpr = HEADS // KV_HEADS
    kv = tl.program_id(1)
    key, wide = tl.program_id(0) * KEYS + tl.arange(0, KEYS), tl.arange(0, PADDED)
    cells = (key < count)[:, None] & (wide < SIZE)[None, :]
    at_keys = key.to(tl.int64)[:, None] * (WIDE * SIZE) + (HEADS + kv) * SIZE + wide[None, :]
    keys = tl.load(heads_ptr + at_keys, mask=cells, other=0.0)
    values = tl.load(heads_ptr + at_keys + KV_HEADS * SIZE, mask=cells, other=0.0)
    key_slope = tl.zeros((KEYS, PADDED), tl.float32)
    value_slope = tl.zeros((KEYS, PADDED), tl.float32)
    end = tl.max(tl.load(last_ptr + key, mask=key < count, other=0))
    for place in range(tl.program_id(0) * KEYS // QUERIES * QUERIES, end, QUERIES):
        at = place + tl.arange(0, QUERIES)
        begin, prompt_end, own = _spans(begin_ptr, prompt_end_ptr, own_ptr, at, count)
        seen = _seen(key, at, begin, prompt_end, own)
        inside = (at < count)[:, None] & (wide < SIZE)[None, :]
        rows = at.to(tl.int64)[:, None]
        for member in tl.static_range(GROUP):
            head = kv * GROUP + member
            query = tl.load(heads_ptr + rows * (WIDE * SIZE) + head * SIZE + wide[None, :], mask=inside, other=0.0)
            slope = tl.load(slope_ptr + rows * (HEADS * SIZE) + head * SIZE + wide[None, :], mask=inside, other=0.0)
            log = tl.load(log_ptr + head * count + at, mask=at < count, other=0.0)
            delta = tl.load(delta_ptr + head * count + at, mask=at < count, other=0.0)
            score = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
            weight = tl.where(seen, tl.exp(score - log[:, None]), 0.0)
            value_slope += tl.dot(tl.trans(weight.to(slope.dtype)), slope, input_precision="ieee")
            weight_slope = tl.dot(slope, tl.trans(values), input_precision="ieee")
            score_slope = (weight * (weight_slope - delta[:, None]) * scale).to(query.dtype)
            key_slope += tl.dot(tl.trans(score_slope), query, input_precision="ieee")
    element = slopes_ptr.dtype.element_ty
    tl.store(slopes_ptr + at_keys, key_slope.to(element), mask=cells)
    tl.store(slopes_ptr + at_keys + KV_HEADS * SIZE, value_slope.to(element), mask=cells)


def _launch_rotate(x: Tensor, cosine: Tensor, sine: Tensor, turned: int, sign: float, out: Tensor) -> Tensor:
    count, wide, size = x.shape
    _rotate[(triton.cdiv(count * wide, VECTORS),)](
        x, cosine, sine, out, count * wide, sign,
        WIDE=wide, TURNED=turned, SIZE=size, HALF=triton.next_power_of_2(size // 2), VECTORS=VECTORS,
    )  # fmt: skip
    return out


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cosine: Tensor, sine: Tensor, spans: Spans, heads: int) -> Tensor:
        count, wide, size = x.shape
        ctx.kv_heads = (wide - heads) // 2
        turned = _launch_rotate(x, cosine, sine, wide - ctx.kv_heads, 1.0, torch.empty_like(x))
        out = x.new_empty((count, heads, size))
        logs = torch.empty((heads, count), dtype=torch.float32, device=x.device)
        ctx.sizes = sizes = _sizes(x, heads)
        _mix[(triton.cdiv(count, sizes["QUERIES"]), heads)](
            turned, out, logs, *spans[:3], count, size**-0.5, **sizes, **STAGES
        )
        ctx.save_for_backward(turned, out, logs, cosine, sine, *spans)
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None, None, None]:
        turned, out, logs, cosine, sine, *spans = ctx.saved_tensors
        count, heads, size = out.shape
        slope, slopes, deltas = slope.contiguous(), torch.empty_like(turned), torch.empty_like(logs)
        begin, prompt_end, own, last = spans
        sizes = ctx.sizes
        _query_slopes[(triton.cdiv(count, sizes["QUERIES"]), heads)](
            turned, out, slope, logs, deltas, slopes, begin, prompt_end, own, count, size**-0.5, **sizes, **STAGES
        )
        _key_slopes[(triton.cdiv(count, sizes["KEYS"]), ctx.kv_heads)](
            turned, slope, logs, deltas, slopes, begin, prompt_end, own, last, count, size**-0.5,
            **sizes, **FEWER_STAGES,
        )  # fmt: skip
        back = _launch_rotate(slopes, cosine, sine, heads + ctx.kv_heads, -1.0, slopes)
        return back, None, None, None, None


def _sizes(x: Tensor, heads: int) -> dict[str, int]:
    _, wide, size = x.shape
    return {
        **{"HEADS": heads, "KV_HEADS": (wide - heads) // 2, "SIZE": size, "KEYS": KEYS},
        "QUERIES": QUERIES if x.dtype.itemsize == 2 else QUERIES // 2,
        "PADDED": max(16, triton.next_power_of_2(size)),
    }


def attend(x: Tensor, cosine: Tensor, sine: Tensor, spans: Spans, heads: int) -> Tensor:
    """Rotate and mix `[M, heads + 2 kv_heads, size]`, queries before keys before values, to `[M, heads, size]`.

    `cosine` and `sine` `[M, size]` are the angles of each token's position.
    """
    out: Tensor = _Attend.apply(x.contiguous(), cosine.contiguous(), sine.contiguous(), spans, heads)
    return out
