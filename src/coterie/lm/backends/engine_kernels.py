"""The rollout engine's kernels for one GPU, in Triton: what lies between the matrix products of a decoding step.

Each has the arguments and the meaning of its namesake in `engine_plain.py`, which tests hold it to. Attention walks over
a row's own tokens and its prompt's, as long as they are, so that room which is not used costs no time. Sums are float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from coterie.lm.backends.engine_plain import Field, Room

VOCABULARY_BLOCK = 4096  # logits that a program reads at once
POSITIONS_BLOCK = 64  # keys that a program reads at once


@triton.jit
def _rms_norm(x_ptr, weight_ptr, out_ptr, width, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    x = tl.load(x_ptr + row * width + at, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt_rn(tl.sum(x * x, axis=0) / width + epsilon)
    weight = tl.load(weight_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * width + at, (x * scale * weight).to(out_ptr.dtype.element_ty), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x / sqrt(mean(x²) + epsilon) · weight, `[R, W]`."""
    out = torch.empty_like(x)
    _rms_norm[(x.shape[0],)](x, weight, out, x.shape[1], epsilon, BLOCK=triton.next_power_of_2(x.shape[1]))
    return out


@triton.jit
def _gate(both_ptr, out_ptr, hidden, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < hidden
    gate = tl.load(both_ptr + row * 2 * hidden + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both_ptr + row * 2 * hidden + hidden + at, mask=inside, other=0.0).to(tl.float32)
    element = out_ptr.dtype.element_ty
    silu = (gate / (1.0 + tl.exp(-gate))).to(element).to(tl.float32)  # rounded where the plain product rounds
    tl.store(out_ptr + row * hidden + at, (silu * up).to(element), mask=inside)


def gate(both: Tensor) -> Tensor:
    """silu(first half) · second half of `[R, 2 H]`."""
    rows, hidden = both.shape[0], both.shape[1] // 2
    out = both.new_empty((rows, hidden))
    block = min(1024, triton.next_power_of_2(hidden))
    _gate[(rows, triton.cdiv(hidden, block))](both, out, hidden, BLOCK=block)
    return out


@triton.jit
def _rotate_and_store(
    heads_ptr, key_ptr, value_ptr, cosine_ptr, sine_ptr, state_ptr, stride,
    STEP: tl.constexpr, PLACE: tl.constexpr, PROMPT_LENGTH: tl.constexpr,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, HALF: tl.constexpr, room,
):  # fmt: skip
    row = tl.program_id(0)
    head = tl.program_id(1)
    at = tl.arange(0, HALF)
    inside = at < SIZE // 2
    step = tl.load(state_ptr + STEP * stride + row)
    place = tl.load(state_ptr + PLACE * stride + row).to(tl.int64)
    position = tl.load(state_ptr + PROMPT_LENGTH * stride + row) + step - 1
    base = heads_ptr + (row.to(tl.int64) * (HEADS + 2 * KV_HEADS) + head) * SIZE
    first = tl.load(base + at, mask=inside, other=0.0)
    second = tl.load(base + SIZE // 2 + at, mask=inside, other=0.0)
    element = heads_ptr.dtype.element_ty
    if head < HEADS + KV_HEADS:
        # Products are rounded as PyTorch rounds them: the same bits as in the pass that trains.
        cosine = tl.load(cosine_ptr + position * SIZE + at, mask=inside, other=0.0).to(element).to(tl.float32)
        sine = tl.load(sine_ptr + position * SIZE + at, mask=inside, other=0.0).to(element).to(tl.float32)
        a, b = first.to(tl.float32), second.to(tl.float32)
        first = ((a * cosine).to(element).to(tl.float32) - (b * sine).to(element).to(tl.float32)).to(element)
        second = ((b * cosine).to(element).to(tl.float32) + (a * sine).to(element).to(tl.float32)).to(element)
    if head < HEADS:
        tl.store(base + at, first, mask=inside)
        tl.store(base + SIZE // 2 + at, second, mask=inside)
    else:
        kv = (head - HEADS) % KV_HEADS
        into = key_ptr if head < HEADS + KV_HEADS else value_ptr
        cell = into + ((place * KV_HEADS + kv) * room + step - 1) * SIZE
        tl.store(cell + at, first, mask=inside)
        tl.store(cell + SIZE // 2 + at, second, mask=inside)


@triton.jit
def _attend_to(
    query, most, total, mixed, key_base, value_base, length, scale,
    SIZE: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Go on with an online softmax over the keys `[length, SIZE]`."""
    wide = tl.arange(0, PADDED)
    for begin in range(0, length, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        cells = (at < length)[:, None] & (wide < SIZE)[None, :]
        key = tl.load(key_base + at[:, None] * SIZE + wide[None, :], mask=cells, other=0.0)
        value = tl.load(value_base + at[:, None] * SIZE + wide[None, :], mask=cells, other=0.0)
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        score = tl.where((at < length)[None, :], score, float("-inf"))
        higher = tl.maximum(most, tl.max(score, axis=1))
        weight = tl.exp(score - higher[:, None])
        shrink = tl.exp(most - higher)
        total = total * shrink + tl.sum(weight, axis=1)
        mixed = mixed * shrink[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
        most = higher
    return most, total, mixed


@triton.jit
def _attend(
    heads_ptr, out_ptr, prompt_key_ptr, prompt_value_ptr, key_ptr, value_ptr, state_ptr, stride, scale,
    prompt_room, room,
    STEP: tl.constexpr, PLACE: tl.constexpr, PROMPT: tl.constexpr, PROMPT_LENGTH: tl.constexpr,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    kv = tl.program_id(1)
    group: tl.constexpr = HEADS // KV_HEADS
    rows: tl.constexpr = 16 if group <= 16 else group  # a product needs 16 rows
    head = tl.arange(0, rows)
    wide = tl.arange(0, PADDED)
    cells = (head < group)[:, None] & (wide < SIZE)[None, :]
    base = heads_ptr + (row.to(tl.int64) * (HEADS + 2 * KV_HEADS) + kv * group) * SIZE
    query = tl.load(base + head[:, None] * SIZE + wide[None, :], mask=cells, other=0.0)
    step = tl.load(state_ptr + STEP * stride + row)
    place = tl.load(state_ptr + PLACE * stride + row).to(tl.int64)
    prompt = tl.load(state_ptr + PROMPT * stride + row).to(tl.int64)
    length = tl.load(state_ptr + PROMPT_LENGTH * stride + row)
    most = tl.full((rows,), -1.0e30, tl.float32)
    total = tl.zeros((rows,), tl.float32)
    mixed = tl.zeros((rows, PADDED), tl.float32)
    offset = (prompt * KV_HEADS + kv) * prompt_room * SIZE
    most, total, mixed = _attend_to(
        query, most, total, mixed, prompt_key_ptr + offset, prompt_value_ptr + offset, length, scale,
        SIZE, PADDED, BLOCK,
    )  # fmt: skip
    offset = (place * KV_HEADS + kv) * room * SIZE
    most, total, mixed = _attend_to(
        query, most, total, mixed, key_ptr + offset, value_ptr + offset, step, scale, SIZE, PADDED, BLOCK
    )
    mixed = mixed / total[:, None]
    out = out_ptr + (row.to(tl.int64) * HEADS + kv * group) * SIZE
    tl.store(out + head[:, None] * SIZE + wide[None, :], mixed.to(out_ptr.dtype.element_ty), mask=cells)


def attend(heads: Tensor, layer: int, room: Room, state: Tensor) -> Tensor:
    """Rotate queries and keys `[R, (heads + 2 kv) · size]`, keep keys and values, and mix what each row may see."""
    rows, shape = heads.shape[0], room.shape
    fields = {"STEP": Field.STEP.value, "PLACE": Field.PLACE.value, "PROMPT_LENGTH": Field.PROMPT_LENGTH.value}
    sizes = {"HEADS": shape.heads, "KV_HEADS": shape.kv_heads, "SIZE": shape.head_size}
    _rotate_and_store[(rows, shape.heads + 2 * shape.kv_heads)](
        heads, room.key[layer], room.value[layer], room.cosine, room.sine, state, state.stride(0),
        **fields, **sizes, HALF=triton.next_power_of_2(shape.head_size // 2), room=room.key.shape[3], num_warps=1,
    )  # fmt: skip
    out = heads.new_empty((rows, shape.heads * shape.head_size))
    _attend[(rows, shape.kv_heads)](
        heads, out, room.prompt_key[layer], room.prompt_value[layer], room.key[layer], room.value[layer], state,
        state.stride(0), shape.head_size**-0.5, room.prompt_key.shape[3], room.key.shape[3],
        **fields, **sizes, PROMPT=Field.PROMPT.value, PADDED=max(16, triton.next_power_of_2(shape.head_size)),
        BLOCK=POSITIONS_BLOCK, num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _draw(
    logits_ptr, source_ptr, state_ptr, stride, noise_ptr, temperature_ptr, ends_ptr,
    tokens_ptr, log_probs_ptr, entropy_ptr, room, vocabulary,
    TOKEN: tl.constexpr, STEP: tl.constexpr, ACTIVE: tl.constexpr, REQUEST: tl.constexpr, LIMIT: tl.constexpr,
    ENDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    if tl.load(state_ptr + ACTIVE * stride + row) != 0:
        source = tl.load(source_ptr + row).to(tl.int64)
        request = tl.load(state_ptr + REQUEST * stride + row).to(tl.int64)
        step = tl.load(state_ptr + STEP * stride + row)
        given = tl.load(temperature_ptr)
        temperature = tl.where(given > 0, given, 1.0)
        base = logits_ptr + source * vocabulary
        most = tl.full((), float("-inf"), tl.float32)
        best = tl.full((), 0, tl.int32)
        for begin in range(0, vocabulary, BLOCK):
            at = begin + tl.arange(0, BLOCK)
            logit = tl.load(base + at, mask=at < vocabulary, other=float("-inf")).to(tl.float32) / temperature
            value, index = tl.max(logit, axis=0, return_indices=True)
            best = tl.where(value > most, begin + index.to(tl.int32), best)
            most = tl.maximum(most, value)
        total = tl.full((), 0.0, tl.float32)
        spread = tl.full((), 0.0, tl.float32)
        for begin in range(0, vocabulary, BLOCK):
            at = begin + tl.arange(0, BLOCK)
            logit = tl.load(base + at, mask=at < vocabulary, other=float("-inf")).to(tl.float32) / temperature - most
            weight = tl.exp(logit)
            total += tl.sum(weight, axis=0)
            spread += tl.sum(tl.where(weight > 0, weight * logit, 0.0), axis=0)
        aim = tl.load(noise_ptr + request * room + step) * total
        before = tl.full((), 0.0, tl.float32)
        drawn = tl.full((), 0, tl.int32)
        last = tl.full((), 0, tl.int32)  # the last token that is possible at all
        for begin in range(0, vocabulary, BLOCK):
            at = begin + tl.arange(0, BLOCK)
            logit = tl.load(base + at, mask=at < vocabulary, other=float("-inf")).to(tl.float32) / temperature - most
            weight = tl.exp(logit)
            sums = before + tl.cumsum(weight, axis=0)
            drawn += tl.sum((sums <= aim).to(tl.int32), axis=0)
            last = tl.maximum(last, tl.max(tl.where(weight > 0, at, 0), axis=0))
            before += tl.sum(weight, axis=0)
        chosen = tl.where(given > 0, tl.minimum(drawn, last), best)
        log_prob = tl.load(base + chosen).to(tl.float32) / temperature - most - tl.log(total)
        cell = request * room + step
        tl.store(tokens_ptr + cell, chosen)
        tl.store(log_probs_ptr + cell, log_prob)
        tl.store(entropy_ptr + request, tl.load(entropy_ptr + request) + tl.log(total) - spread / total)
        ended = step + 1 >= tl.load(state_ptr + LIMIT * stride + row)
        for i in tl.static_range(ENDS):
            ended = ended | (chosen == tl.load(ends_ptr + i))
        tl.store(state_ptr + TOKEN * stride + row, chosen)
        tl.store(state_ptr + STEP * stride + row, step + 1)
        tl.store(state_ptr + ACTIVE * stride + row, tl.where(ended, 0, 1))


def draw(logits: Tensor, source: Tensor, state: Tensor, room: Room) -> None:
    """Draw the next token of every active row from `logits[source]`, note it, and move the row on."""
    fields = {name: Field[name].value for name in ("TOKEN", "STEP", "ACTIVE", "REQUEST", "LIMIT")}
    _draw[(len(source),)](
        logits, source, state, state.stride(0), room.noise, room.temperature, room.ends,
        room.tokens, room.log_probs, room.entropy, room.tokens.shape[1], logits.shape[1],
        **fields, ENDS=len(room.ends), BLOCK=min(VOCABULARY_BLOCK, triton.next_power_of_2(logits.shape[1])),
        num_warps=8,
    )  # fmt: skip
