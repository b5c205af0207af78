"""Parts of a transformer's layers as single GPU kernels with gradients, in Triton; the CPU has plain PyTorch.

Rotations, gates and norms are many small operations in PyTorch, and on a GPU each costs a launch and a trip through
memory.
"""
# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# ruff: noqa: ANN202  # Triton's kernels take pointers

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 16  # heads' vectors that a program turns
PROGRAMS = 4224  # that share the rows whose slopes are summed: 32 for each processor of an H200


@triton.jit
def _rotate(
    x_ptr, cosine_ptr, sine_ptr, out_ptr, count, heads, length,
    x_row, x_head, x_position, turn_row, sign,
    SIZE: tl.constexpr, HALF: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    vector = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    position, head, row = vector % length, (vector // length) % heads, vector // (length * heads)
    at = tl.arange(0, HALF)
    inside = (vector < count)[:, None] & (at < SIZE // 2)[None, :]
    x = x_ptr + (row * x_row + head * x_head + position * x_position)[:, None] + at[None, :]
    turn = (row * turn_row + position * SIZE)[:, None] + at[None, :]
    element = out_ptr.dtype.element_ty
    first = tl.load(x, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(x + SIZE // 2, mask=inside, other=0.0).to(tl.float32)
    cosine = tl.load(cosine_ptr + turn, mask=inside, other=0.0).to(tl.float32)
    sine = tl.load(sine_ptr + turn, mask=inside, other=0.0).to(tl.float32) * sign
    out = out_ptr + vector[:, None] * SIZE + at[None, :]
    # Products are rounded as plain PyTorch rounds them.
    turned = (first * cosine).to(element).to(tl.float32) - (second * sine).to(element).to(tl.float32)
    tl.store(out, turned.to(element), mask=inside)
    turned = (second * cosine).to(element).to(tl.float32) + (first * sine).to(element).to(tl.float32)
    tl.store(out + SIZE // 2, turned.to(element), mask=inside)


def _launch_rotate(x: Tensor, cosine: Tensor, sine: Tensor, sign: float) -> Tensor:
    rows, heads, length, size = x.shape
    x = x if x.stride(3) == 1 else x.contiguous()
    out = torch.empty((rows, heads, length, size), dtype=x.dtype, device=x.device)
    count = rows * heads * length
    _rotate[(triton.cdiv(count, ROWS),)](
        x, cosine, sine, out, count, heads, length, *x.stride()[:3], cosine.stride(0) if len(cosine) > 1 else 0, sign,
        SIZE=size, HALF=triton.next_power_of_2(size // 2), ROWS=ROWS,
    )  # fmt: skip
    return out


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        ctx.save_for_backward(cosine, sine)
        return _launch_rotate(x, cosine, sine, 1.0)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None]:
        cosine, sine = ctx.saved_tensors
        return _launch_rotate(slope, cosine, sine, -1.0), None, None


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate pairs (i, i + size/2) of heads `[R, H, L, size]` by angles `[R or 1, 1, L, size]`."""
    out: Tensor = _Rotate.apply(x, cosine.contiguous(), sine.contiguous())
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


@triton.jit
def _gate_slopes(both_ptr, slope_ptr, out_ptr, hidden, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < hidden
    gate = tl.load(both_ptr + row * 2 * hidden + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both_ptr + row * 2 * hidden + hidden + at, mask=inside, other=0.0).to(tl.float32)
    slope = tl.load(slope_ptr + row * hidden + at, mask=inside, other=0.0).to(tl.float32)
    sigmoid = 1.0 / (1.0 + tl.exp(-gate))
    element = out_ptr.dtype.element_ty
    of_gate = slope * up * sigmoid * (1.0 + gate * (1.0 - sigmoid))
    tl.store(out_ptr + row * 2 * hidden + at, of_gate.to(element), mask=inside)
    tl.store(out_ptr + row * 2 * hidden + hidden + at, (slope * gate * sigmoid).to(element), mask=inside)


def _grid(rows: int, hidden: int) -> tuple[tuple[int, int], int]:
    block = min(1024, triton.next_power_of_2(hidden))
    return (rows, triton.cdiv(hidden, block)), block


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, both: Tensor) -> Tensor:
        both = both.contiguous()
        ctx.save_for_backward(both)
        hidden = both.shape[-1] // 2
        out = both.new_empty((*both.shape[:-1], hidden))
        grid, block = _grid(out.numel() // hidden, hidden)
        _gate[grid](both, out, hidden, BLOCK=block)
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (both,) = ctx.saved_tensors
        out, hidden = torch.empty_like(both), both.shape[-1] // 2
        grid, block = _grid(both.numel() // (2 * hidden), hidden)
        _gate_slopes[grid](both, slope.contiguous(), out, hidden, BLOCK=block)
        return out


def gate(both: Tensor) -> Tensor:
    """silu(first half) · second half of the last dimension."""
    out: Tensor = _Gate.apply(both)
    return out


@triton.jit
def _add_norm(
    x_ptr, more_ptr, weight_ptr, sum_ptr, out_ptr, width, epsilon, ADD: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    x = tl.load(x_ptr + row * width + at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(more_ptr + row * width + at, mask=inside, other=0.0).to(tl.float32)
        x = x.to(sum_ptr.dtype.element_ty)  # rounded as plain PyTorch rounds it
        tl.store(sum_ptr + row * width + at, x, mask=inside)
        x = x.to(tl.float32)
    scale = 1.0 / tl.sqrt_rn(tl.sum(x * x, axis=0) / width + epsilon)
    weight = tl.load(weight_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * width + at, (x * scale * weight).to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _norm_slopes(
    x_ptr, weight_ptr, slope_ptr, more_ptr, out_ptr, parts_ptr, rows, width, epsilon,
    ADD: tl.constexpr, WEIGHT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Slopes of the inputs, row by row, and each program's sum of the weight's."""
    program = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < width
    long_width = tl.full((), 0, tl.int64) + width
    weight = tl.load(weight_ptr + at, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for row in range(program, rows, tl.num_programs(0)):
        cells = row * long_width + at
        x = tl.load(x_ptr + cells, mask=inside, other=0.0).to(tl.float32)
        slope = tl.load(slope_ptr + cells, mask=inside, other=0.0).to(tl.float32)
        scale = 1.0 / tl.sqrt_rn(tl.sum(x * x, axis=0) / width + epsilon)
        bent = slope * weight
        out = scale * (bent - x * (scale * scale * tl.sum(x * bent, axis=0) / width))
        if ADD:
            out += tl.load(more_ptr + cells, mask=inside, other=0.0).to(tl.float32)
        tl.store(out_ptr + cells, out.to(out_ptr.dtype.element_ty), mask=inside)
        if WEIGHT:
            total += slope * x * scale
    if WEIGHT:
        tl.store(parts_ptr + program * width + at, total, mask=inside)


def _launch_add_norm(x: Tensor, more: Tensor | None, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    width = x.shape[-1]
    x, more = x.contiguous(), None if more is None else more.contiguous()
    total, out = x if more is None else torch.empty_like(x), torch.empty_like(x)
    _add_norm[(x.numel() // width,)](
        x, x if more is None else more, weight, total, out, width, epsilon,
        ADD=more is not None, BLOCK=triton.next_power_of_2(width), num_warps=2,
    )  # fmt: skip
    return total, out


def _launch_norm_slopes(
    x: Tensor, weight: Tensor, slope: Tensor, more: Tensor | None, epsilon: float, wanted: bool
) -> tuple[Tensor, Tensor | None]:
    width, slope = x.shape[-1], slope.contiguous()
    rows = x.numel() // width
    programs = min(rows, PROGRAMS)
    out = torch.empty_like(x)
    parts = torch.empty((programs if wanted else 1, width), dtype=torch.float32, device=x.device)
    _norm_slopes[(programs,)](
        x, weight, slope, slope if more is None else more.contiguous(), out, parts, rows, width, epsilon,
        ADD=more is not None, WEIGHT=wanted, BLOCK=triton.next_power_of_2(width), num_warps=1,
    )  # fmt: skip
    return out, parts.sum(dim=0).to(weight.dtype) if wanted else None


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        x, out = _launch_add_norm(x, None, weight, epsilon)
        ctx.save_for_backward(x, weight)
        ctx.epsilon = epsilon
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        return *_launch_norm_slopes(x, weight, slope, None, ctx.epsilon, ctx.needs_input_grad[1]), None


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, more: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        total, out = _launch_add_norm(x, more, weight, epsilon)
        ctx.save_for_backward(total, weight)
        ctx.epsilon = epsilon
        return total, out

    @staticmethod
    def backward(ctx: Any, more: Tensor, slope: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        total, weight = ctx.saved_tensors
        out, own = _launch_norm_slopes(total, weight, slope, more, ctx.epsilon, ctx.needs_input_grad[2])
        return out, out, own, None


def add_norm(x: Tensor, more: Tensor | None, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return s = x + more, and s / sqrt(mean(s²) + epsilon) · weight, over the last dimension."""
    if more is None:
        return x, _Norm.apply(x, weight, epsilon)
    total, out = _AddNorm.apply(x, more, weight, epsilon)
    return total, out
