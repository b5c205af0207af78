"""Parts of a transformer's layers as single GPU kernels with gradients, in Triton; the CPU has plain PyTorch.

Rotations and gates are many small operations in PyTorch, and on a GPU each costs a launch and a trip through memory.
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
