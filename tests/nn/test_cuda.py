"""Kernels compile for a GPU, on machines without one."""

import math
from typing import NamedTuple

import numpy as np
import pytest

from coterie.core.jit import callback, jit
from coterie.nn.launch import kernel
from helpers.cuda import signatures, to_ptx
from helpers.needs import needs

pytestmark = needs("numba_cuda", "dev")


class Rows(NamedTuple):
    x: np.ndarray
    out: np.ndarray


@jit
def logistic(x):
    return 1.0 / (1.0 + math.exp(-x))


@kernel
def squash(n: int, rows: Rows) -> None:
    for i in range(rows.x.shape[1]):
        rows.out[n, i] = logistic(rows.x[n, i])


@kernel
def squash_twice(n: int, rows: Rows, times: int) -> None:
    for _ in range(times):
        squash(n, rows)


on_the_cpu = callback("float64(float64)", logistic.py_func)


@kernel
def squash_by_pointer(n: int, rows: Rows) -> None:
    rows.out[n, 0] = on_the_cpu(rows.x[n, 0])


@pytest.mark.slow
def test_a_kernel_compiles_for_a_gpu_with_the_kernels_and_functions_that_it_calls():
    squash_twice.over(2, Rows(np.ones((2, 3)), np.ones((2, 3))), 2)
    (signature,) = signatures(squash_twice)
    text = to_ptx(squash_twice, signature)
    assert ".entry" in text
    assert "ex2.approx" in text or "__nv_exp" in text or "fma.rn.f64" in text


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Cannot cache")  # code that holds a pointer
def test_what_a_gpu_cannot_run_is_found_here():
    squash_by_pointer.over(2, Rows(np.ones((2, 3)), np.ones((2, 3))))
    (signature,) = signatures(squash_by_pointer)
    with pytest.raises(Exception, match="on_the_cpu"):
        to_ptx(squash_by_pointer, signature)
