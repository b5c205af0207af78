"""The rollout engine's kernels for one GPU, in Triton: what lies between the matrix products of a decoding step.

Each has the arguments and the meaning of its namesake in `engine_plain.py`, which tests hold it to. Attention walks
over a row's own tokens and its prompt's, as many as there are, so that what is not used costs no time. Sums are
float32.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# ruff: noqa: ANN202  # Triton's kernels take pointers

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from coterie.lm.learn.engine_plain import VOCABULARY_BLOCK, Buffers, Field
from coterie.lm.learn.layer_kernels import add_norm as add_norm
from coterie.lm.learn.layer_kernels import gate as gate

POSITIONS_BLOCK = 32  # keys that a program reads at once


@triton.jit
def _adapt(
    wide_ptr, up_ptr, adapter_ptr, out_ptr, outputs, width, scale,
    RANK: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < outputs
    out = tl.load(wide_ptr + row * width + at, mask=inside, other=0.0).to(tl.float32)
    adapter = tl.load(adapter_ptr + row)
    if adapter >= 0:
        rank = tl.arange(0, PADDED)
        low = tl.load(wide_ptr + row * width + outputs + adapter * RANK + rank, mask=rank < RANK, other=0.0)
        cells = inside[:, None] & (rank < RANK)[None, :]
        up = tl.load(up_ptr + (adapter * outputs + at)[:, None] * RANK + rank[None, :], mask=cells, other=0.0)
        out += scale * tl.sum(up.to(tl.float32) * low.to(tl.float32)[None, :], axis=1)
    tl.store(out_ptr + row * outputs + at, out.to(out_ptr.dtype.element_ty), mask=inside)


def adapt(wide: Tensor, up: Tensor, adapter: Tensor, scale: float) -> Tensor:
    """W x + scale · B A x of each row's adapter."""
    _, outputs, rank = up.shape
    out = wide.new_empty((len(wide), outputs))
    _adapt[(len(wide), triton.cdiv(outputs, 128))](
        wide, up, adapter, out, outputs, wide.shape[1], scale,
        RANK=rank, PADDED=triton.next_power_of_2(rank), BLOCK=128, num_warps=2,
    )  # fmt: skip
    return out


@triton.jit
def _turned(base, turn, inside, HALVES: tl.constexpr, cosine_ptr, sine_ptr):
    """The halves of a head, turned; rounded as PyTorch rounds."""
    element = base.dtype.element_ty
    a = tl.load(base, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(base + HALVES, mask=inside, other=0.0).to(tl.float32)
    cosine = tl.load(cosine_ptr + turn, mask=inside, other=0.0).to(element).to(tl.float32)
    sine = tl.load(sine_ptr + turn, mask=inside, other=0.0).to(element).to(tl.float32)
    first = ((a * cosine).to(element).to(tl.float32) - (b * sine).to(element).to(tl.float32)).to(element)
    second = ((b * cosine).to(element).to(tl.float32) + (a * sine).to(element).to(tl.float32)).to(element)
    return first, second


@triton.jit
def _attend_to(
    first, second, most, total, mixed, key_base, value_base, length, scale,
    SIZE: tl.constexpr, HALF: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Go on with an online softmax over the keys `[length, SIZE]`."""
    half = tl.arange(0, HALF)
    wide = tl.arange(0, PADDED)
    for begin in range(0, length, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        halves = (at < length)[:, None] & (half < SIZE // 2)[None, :]
        cells = (at < length)[:, None] & (wide < SIZE)[None, :]
        keys = key_base + at[:, None] * SIZE + half[None, :]
        one = tl.load(keys, mask=halves, other=0.0)
        other = tl.load(keys + SIZE // 2, mask=halves, other=0.0)
        value = tl.load(value_base + at[:, None] * SIZE + wide[None, :], mask=cells, other=0.0)
        score = tl.dot(first, tl.trans(one), input_precision="ieee")
        score += tl.dot(second, tl.trans(other), input_precision="ieee")
        score = tl.where((at < length)[None, :], score * scale, float("-inf"))
        higher = tl.maximum(most, tl.max(score, axis=1))
        weight = tl.exp(score - higher[:, None])
        shrink = tl.exp(most - higher)
        total = total * shrink + tl.sum(weight, axis=1)
        mixed = mixed * shrink[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
        most = higher
    return most, total, mixed


@triton.jit
def _attend(
    heads_ptr, out_ptr, prompt_key_ptr, prompt_value_ptr, key_ptr, value_ptr, cosine_ptr, sine_ptr, state_ptr, stride,
    scale, prompt_capacity, capacity,
    STEP: tl.constexpr, SLOT: tl.constexpr, PROMPT: tl.constexpr, PROMPT_LENGTH: tl.constexpr, HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr, SIZE: tl.constexpr, HALF: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    kv = tl.program_id(1)
    group: tl.constexpr = HEADS // KV_HEADS
    rows: tl.constexpr = 16 if group <= 16 else group  # a product needs 16 rows
    halves: tl.constexpr = SIZE // 2
    step = tl.load(state_ptr + STEP * stride + row)
    slot = tl.load(state_ptr + SLOT * stride + row).to(tl.int64)
    prompt = tl.load(state_ptr + PROMPT * stride + row).to(tl.int64)
    length = tl.load(state_ptr + PROMPT_LENGTH * stride + row)
    turn = (length + step - 1) * SIZE
    base = heads_ptr + row.to(tl.int64) * (HEADS + 2 * KV_HEADS) * SIZE
    head = tl.arange(0, rows)
    half = tl.arange(0, HALF)
    wide = tl.arange(0, PADDED)
    inside = (head < group)[:, None] & (half < halves)[None, :]
    query = base + (kv * group + head)[:, None] * SIZE + half[None, :]
    first, second = _turned(query, turn + half[None, :], inside, halves, cosine_ptr, sine_ptr)
    own = half < halves
    key_first, key_second = _turned(base + (HEADS + kv) * SIZE + half, turn + half, own, halves, cosine_ptr, sine_ptr)
    value = tl.load(base + (HEADS + KV_HEADS + kv) * SIZE + wide, mask=wide < SIZE, other=0.0)
    cell = ((slot * KV_HEADS + kv) * capacity + step - 1) * SIZE
    tl.store(key_ptr + cell + half, key_first, mask=own)
    tl.store(key_ptr + cell + halves + half, key_second, mask=own)
    tl.store(value_ptr + cell + wide, value, mask=wide < SIZE)
    # The softmax begins with the row's own new token.
    most = tl.sum(first.to(tl.float32) * key_first.to(tl.float32)[None, :], axis=1)
    most = (most + tl.sum(second.to(tl.float32) * key_second.to(tl.float32)[None, :], axis=1)) * scale
    total = tl.full((rows,), 1.0, tl.float32)
    mixed = tl.zeros((rows, PADDED), tl.float32) + value.to(tl.float32)[None, :]
    offset = (prompt * KV_HEADS + kv) * prompt_capacity * SIZE
    most, total, mixed = _attend_to(
        first, second, most, total, mixed, prompt_key_ptr + offset, prompt_value_ptr + offset, length, scale,
        SIZE, HALF, PADDED, BLOCK,
    )  # fmt: skip
    offset = (slot * KV_HEADS + kv) * capacity * SIZE
    most, total, mixed = _attend_to(
        first, second, most, total, mixed, key_ptr + offset, value_ptr + offset, step - 1, scale,
        SIZE, HALF, PADDED, BLOCK,
    )  # fmt: skip
    out = out_ptr + (row.to(tl.int64) * HEADS + kv * group) * SIZE
    cells = (head < group)[:, None] & (wide < SIZE)[None, :]
    mixed = (mixed / total[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out + head[:, None] * SIZE + wide[None, :], mixed, mask=cells)


def attend(heads: Tensor, layer: int, buffers: Buffers, state: Tensor) -> Tensor:
    """Rotate queries and keys `[R, (heads + 2 kv) · size]`, keep keys and values, and mix what each row may see."""
    rows, shape = heads.shape[0], buffers.shape
    out = heads.new_empty((rows, shape.heads * shape.head_size))
    fields = {name: Field[name].value for name in ("STEP", "SLOT", "PROMPT", "PROMPT_LENGTH")}
    _attend[(rows, shape.kv_heads)](
        heads, out, buffers.prompt_key[layer], buffers.prompt_value[layer], buffers.key[layer], buffers.value[layer],
        buffers.cosine, buffers.sine, state, state.stride(0), shape.head_size**-0.5,
        buffers.prompt_key.shape[3], buffers.key.shape[3],
        **fields, HEADS=shape.heads, KV_HEADS=shape.kv_heads, SIZE=shape.head_size,
        HALF=max(16, triton.next_power_of_2(shape.head_size // 2)),
        PADDED=max(16, triton.next_power_of_2(shape.head_size)), BLOCK=POSITIONS_BLOCK, num_warps=1,
    )  # fmt: skip
    return out


@triton.jit
def _draw(
    logits_ptr, source_ptr, state_ptr, stride, noise_ptr, temperature_ptr, ends_ptr, parts_ptr,
    tokens_ptr, log_probs_ptr, entropy_ptr, capacity, vocabulary,
    TOKEN: tl.constexpr, STEP: tl.constexpr, ACTIVE: tl.constexpr, REQUEST: tl.constexpr, LIMIT: tl.constexpr,
    ENDS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, PADDED: tl.constexpr, TEMPERED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    if tl.load(state_ptr + ACTIVE * stride + row) != 0:
        source = tl.load(source_ptr + row).to(tl.int64)
        request = tl.load(state_ptr + REQUEST * stride + row).to(tl.int64)
        step = tl.load(state_ptr + STEP * stride + row)
        given = tl.load(temperature_ptr)
        temperature = tl.where(given > 0, given, 1.0)
        base = logits_ptr + source * vocabulary
        parts = parts_ptr + row * 2 * BLOCKS
        most = tl.full((), -1.0e30, tl.float32)
        best = tl.full((), 0, tl.int32)
        total = tl.full((), 0.0, tl.float32)
        spread = tl.full((), 0.0, tl.float32)
        plain = tl.full((), 0.0, tl.float32)  # the sum of the softmax at temperature 1
        for block in range(BLOCKS):  # the softmax, block by block; each block's maximum and sum are kept
            at = block * BLOCK + tl.arange(0, BLOCK)
            logit = tl.load(base + at, mask=at < vocabulary, other=float("-inf")).to(tl.float32) / temperature
            value, index = tl.max(logit, axis=0, return_indices=True)
            weight = tl.exp(logit - value)
            size = tl.sum(weight, axis=0)
            lean = tl.sum(tl.where(weight > 0, weight * logit, 0.0), axis=0)
            best = tl.where(value > most, block * BLOCK + index.to(tl.int32), best)
            higher = tl.maximum(most, value)
            tl.store(parts + BLOCKS + block, size)
            total = total * tl.exp(most - higher) + size * tl.exp(value - higher)
            spread = spread * tl.exp(most - higher) + lean * tl.exp(value - higher)
            if not TEMPERED:
                size = tl.sum(tl.exp((logit - value) * temperature), axis=0)
                plain = plain * tl.exp((most - higher) * temperature) + size * tl.exp((value - higher) * temperature)
            most = higher
            tl.store(parts + block, value)
        tl.debug_barrier()  # what one thread stored, all may read
        blocks = tl.arange(0, PADDED)
        tops = tl.load(parts + blocks, mask=blocks < BLOCKS, other=float("-inf"))
        sizes = tl.load(parts + BLOCKS + blocks, mask=blocks < BLOCKS, other=0.0) * tl.exp(tops - most)
        aim = tl.load(noise_ptr + request * capacity + step) * tl.sum(sizes, axis=0)
        behind = tl.sum((tl.cumsum(sizes, axis=0) <= aim).to(tl.int32), axis=0)
        block = tl.minimum(behind, BLOCKS - 1)
        before = tl.sum(tl.where(blocks < block, sizes, 0.0), axis=0)
        offset = tl.arange(0, BLOCK)
        at = block * BLOCK + offset
        logit = tl.load(base + at, mask=at < vocabulary, other=float("-inf")).to(tl.float32) / temperature
        weight = tl.exp(logit - most)
        inside = tl.sum((before + tl.cumsum(weight, axis=0) <= aim).to(tl.int32), axis=0)
        last = tl.max(
            tl.where(weight > 0, offset, 0), axis=0
        )  # sums are rounded: no token beyond the last possible one
        chosen = tl.where(given > 0, block * BLOCK + tl.minimum(inside, last), best)
        log_total = most + tl.log(total)
        cell = request * capacity + step
        tl.store(tokens_ptr + cell, chosen)
        log_prob = tl.load(base + chosen).to(tl.float32) / temperature - log_total
        if not TEMPERED:
            log_prob = tl.load(base + chosen).to(tl.float32) - most * temperature - tl.log(plain)
        tl.store(log_probs_ptr + cell, log_prob)
        tl.store(entropy_ptr + request, tl.load(entropy_ptr + request) + log_total - spread / total)
        ended = step + 1 >= tl.load(state_ptr + LIMIT * stride + row)
        for i in tl.static_range(ENDS):
            ended = ended | (chosen == tl.load(ends_ptr + i))
        tl.store(state_ptr + TOKEN * stride + row, chosen)
        tl.store(state_ptr + STEP * stride + row, step + 1)
        tl.store(state_ptr + ACTIVE * stride + row, tl.where(ended, 0, 1))


def draw(logits: Tensor, source: Tensor, state: Tensor, buffers: Buffers) -> None:
    """Draw the next token of every active row from `logits[source]`, note it, and move the row on."""
    fields = {name: Field[name].value for name in ("TOKEN", "STEP", "ACTIVE", "REQUEST", "LIMIT")}
    blocks = buffers.parts.shape[2]
    _draw[(len(source),)](
        logits, source, state, state.stride(0), buffers.noise, buffers.temperature, buffers.ends, buffers.parts,
        buffers.tokens, buffers.log_probs, buffers.entropy, buffers.tokens.shape[1], logits.shape[1],
        **fields, ENDS=len(buffers.ends), BLOCK=VOCABULARY_BLOCK, BLOCKS=blocks, PADDED=triton.next_power_of_2(blocks),
        TEMPERED=buffers.tempered, num_warps=8,
    )  # fmt: skip
