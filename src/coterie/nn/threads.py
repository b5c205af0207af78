"""A fixed number of threads: sums depend on it, and tiny networks want one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from coterie.nn import kernels


@contextmanager
def fixed_threads(count: int) -> Iterator[None]:
    """PyTorch and BLAS with a fixed number of threads, and as they were afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        if not kernels.available():
            yield
            return
        # what compiled code multiplies with must be loaded before it can be limited
        import scipy.linalg.cython_blas  # noqa: F401
        from threadpoolctl import threadpool_limits

        with threadpool_limits(count, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)
