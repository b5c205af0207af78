"""Kernels: functions that do the work of one item, launched over many items on a CPU or a GPU.

An item is copy n of a world, row m of a batch, sequence i of a scan. Items are independent, so results do not depend on
the number of threads:

    @kernel
    def step(n: int, particles: Particles, rules: Rules, out: Output) -> None: ...

    step.over(num_envs, particles, rules, out)

Arguments are arrays, numbers and (named) tuples of them. NumPy arrays are worked on by compiled loops on the CPU, in as
many threads as `use_threads` says; arrays on a GPU by a grid of CUDA threads, on PyTorch's current stream, which can be
recorded in a CUDA graph. Kernels call each other, and functions compiled by `core.jit.jit`, as functions.

One source serves both as long as a kernel allocates nothing (scratch is an argument with an item axis), assigns no
whole rows, and takes its functions from `math` instead of NumPy.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from types import FunctionType
from typing import Any, Concatenate, Generic, ParamSpec

import numpy as np
from numpy import ndarray

from coterie.core.jit import Compiled, jit

P = ParamSpec("P")
LEAST = 64  # items of a thread: it takes some ten microseconds to hand them over
BLOCK = 128  # threads of a CUDA block

# Names of the templates begin with an underscore, because parameters of kernels share their scope.
LOOP = """def {name}(_first, _last, {parameters}):
    for _item in range(_first, _last):
        _kernel(_item, {parameters})
"""
GRID = """def {name}(_count, {parameters}):
    _item = _cuda.grid(1)
    if _item < _count:
        _kernel(_item, {parameters})
"""

KERNELS: list[Kernel[Any]] = []  # of all modules imported so far


class Kernel(Compiled, Generic[P]):
    """A function of one item, as `kernel` makes it. Calling it does the work of one item on the CPU."""

    def __init__(self, function: Callable[Concatenate[int, P], None]) -> None:
        # `forceinline`: a call would write the descriptions of all arrays onto the stack, a hundred words and more.
        # Numba's own `inline` compiles in half the time, but to code that is half as fast.
        super().__init__(function, forceinline=True, _nrt=False)
        self.loop: Any = jit(nogil=True, _nrt=False)(_generate(LOOP, function, _kernel=self))

    def over(self, count: int, *arguments: P.args, **named: P.kwargs) -> None:
        """Do the work of the items 0 … count − 1, where their arrays are."""
        if _threads == 1 and not named and type(arguments[0]) is np.ndarray:  # the usual case, without a detour
            self.loop(0, count, *arguments)
            return
        if named:
            arguments = inspect.signature(self.py_func).bind(0, *arguments, **named).args[1:]  # type: ignore[assignment]
        part: Any = arguments[0]
        if isinstance(part, tuple):
            part = part[0]
        if type(part) is not ndarray and not _in_memory(arguments):  # the first test is short, and mostly enough
            self._launch_grid(count, arguments)
        elif _threads == 1 or count < 2 * LEAST:
            self.loop(0, count, *arguments)
        else:
            self._share_out(count, arguments)

    @functools.cached_property
    def grid(self) -> Any:
        """The function that CUDA threads run, not yet compiled."""
        from numba import cuda  # from the package numba-cuda

        return cuda.jit(_generate(GRID, self.py_func, _kernel=self, _cuda=cuda))

    def _share_out(self, count: int, arguments: tuple[Any, ...]) -> None:
        """Let every thread work on as many items, this thread on the first ones."""
        parts = min(_threads, count // LEAST)
        bounds = [count * part // parts for part in range(parts + 1)]
        pool = _pool(_threads)
        others = [pool.submit(self.loop, a, b, *arguments) for a, b in pairwise(bounds[1:])]
        self.loop(0, bounds[1], *arguments)
        for other in others:
            other.result()

    def _launch_grid(self, count: int, arguments: tuple[Any, ...]) -> None:
        if count == 0:
            return  # CUDA refuses empty grids
        import torch  # takes seconds

        stream = _cuda_stream(torch.cuda.current_stream().cuda_stream)
        self.grid[-(-count // BLOCK), BLOCK, stream](count, *_as_cuda(arguments))


def kernel(function: Callable[Concatenate[int, P], None]) -> Kernel[P]:
    """Make a kernel of a function that does the work of one item, whose index is its first parameter."""
    made = Kernel(function)
    KERNELS.append(made)
    return made


def _generate(template: str, function: Callable[..., Any], **names: Any) -> Callable[..., Any]:
    """Fill a template with a kernel's parameters; Numba keeps what it compiles beside the kernel's file."""
    assert isinstance(function, FunctionType)
    parameters = ", ".join(list(inspect.signature(function).parameters)[1:])
    text = template.format(name=function.__name__, parameters=parameters)
    code = function.__code__
    lines_before = "\n" * (code.co_firstlineno - 1)  # Numba names the file by the function's name and line
    scope = {"__name__": function.__module__, **names}
    exec(compile(lines_before + text, code.co_filename, "exec"), scope)
    made = scope[function.__name__]
    made.__qualname__ = f"{function.__qualname__}.over"
    return made


# Threads on the CPU ---------------------------------------------------------------------------------------------

_threads = 1


def use_threads(count: int) -> int:
    """Let kernels run in so many threads from now on, and return how many it were. No result depends on it."""
    global _threads
    before, _threads = _threads, count
    return before


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads - 1, "kernel")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork


# Devices ----------------------------------------------------------------------------------------------------------


def _in_memory(values: tuple[Any, ...]) -> bool:
    """Whether the first array among the values is one of NumPy; the others must be at the same place."""
    for value in values:
        if isinstance(value, np.ndarray):
            return True
        if isinstance(value, tuple):
            if value and not isinstance(value[0], (int, float)):
                return _in_memory(value)
        elif not isinstance(value, (int, float, np.generic)):
            return False
    return True


@functools.cache
def _cuda_stream(handle: int) -> Any:
    from numba import cuda

    return cuda.external_stream(handle)


def _as_cuda(value: Any) -> Any:
    """The same arguments with tensors as arrays of Numba, which share their memory."""
    import torch
    from numba import cuda

    if isinstance(value, tuple):
        parts = [_as_cuda(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return cuda.as_cuda_array(value, sync=False) if isinstance(value, torch.Tensor) else value
