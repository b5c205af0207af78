"""A fixed number of threads: the last bits of sums depend on it, and tiny networks are fastest with one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numba
import torch

from coterie.nn import kernels, launch


@contextmanager
def fixed_threads(count: int) -> Iterator[None]:
    """Run PyTorch, BLAS and compiled loops with a fixed number of threads, and restore the old numbers afterwards."""
    before, loops, launched = torch.get_num_threads(), numba.get_num_threads(), launch.use_threads(count)
    torch.set_num_threads(count)
    numba.set_num_threads(min(count, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]  # read from the environment
    try:
        if not kernels.available():
            yield
            return
        # the BLAS of compiled code must be loaded before its threads can be limited
        import scipy.linalg.cython_blas  # noqa: F401
        from threadpoolctl import threadpool_limits

        with threadpool_limits(count, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)
        numba.set_num_threads(loops)
        launch.use_threads(launched)
