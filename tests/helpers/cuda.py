"""Compiles kernels for a GPU where there is none."""

from types import SimpleNamespace
from unittest import mock

from coterie.nn.launch import Kernel

HOPPER = (9, 0)  # compute capability


def to_ptx(kernel: Kernel, signature: tuple) -> str:
    """The assembly of a kernel's grid; `signature` has the types of the kernel's arguments after the item."""
    from numba import cuda, types

    device = SimpleNamespace(compute_capability=HOPPER)  # functions that a kernel calls are compiled for "this" device
    with mock.patch("numba.cuda.dispatcher.get_current_device", return_value=device):
        text, _ = cuda.compile(
            kernel.grid.py_func, types.void(types.int64, *signature), cc=HOPPER, abi="numba", device=False
        )
    return text


def signatures(kernel: Kernel) -> list[tuple]:
    """The types of arguments that a kernel has been launched with on the CPU in this process."""
    return [signature[2:] for signature in kernel.loop.signatures]
