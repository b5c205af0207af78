"""Kernels: launches over threads, calls among kernels, and what a second process compiles."""

import os
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest
from numba.core.errors import NumbaError

from coterie.core.jit import jit
from coterie.nn import launch
from coterie.nn.launch import KERNELS, kernel


class Rows(NamedTuple):
    x: np.ndarray
    out: np.ndarray


@jit
def scaled(x, factor):
    return x * factor


@kernel
def multiply(n: int, factor: float, rows: Rows) -> None:
    """Multiply row n."""
    rows.out[n] = scaled(rows.x[n], factor)


@kernel
def multiply_and_count(n: int, rows: Rows, calls: np.ndarray) -> None:
    multiply(n, 3.0, rows)
    calls[n] += 1


@kernel
def clash(n: int, item: float, kernel: int, first: int, last: int, count: int, out: np.ndarray) -> None:
    out[n] = item + kernel + first + last + count


@kernel
def allocate(n: int, rows: Rows) -> None:
    rows.out[n] = np.empty(1)[0]


@pytest.fixture
def rows():
    x = np.random.default_rng(0).normal(size=1000)
    return Rows(x, np.zeros_like(x))


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    before = launch.use_threads(request.param)
    yield request.param
    launch.use_threads(before)


def test_every_item_is_worked_on_once_whatever_the_number_of_threads(rows, threads):
    calls = np.zeros(len(rows.x), np.int64)
    multiply_and_count.over(len(rows.x), rows, calls)
    np.testing.assert_array_equal(rows.out, rows.x * 3)
    assert (calls == 1).all()


def test_items_beyond_the_count_are_left_alone(rows, threads):
    multiply.over(700, 2.0, rows)
    assert (rows.out[700:] == 0).all()
    np.testing.assert_array_equal(rows.out[:700], rows.x[:700] * 2)


def test_no_item_is_no_work(rows, threads):
    multiply.over(0, 2.0, rows)
    assert (rows.out == 0).all()


def test_arguments_may_be_named(rows, threads):
    multiply.over(len(rows.x), factor=2.0, rows=rows)
    np.testing.assert_array_equal(rows.out, rows.x * 2)


def test_parameters_may_have_any_name(rows):
    clash.over(len(rows.out), 1.0, 2, 3, 4, 5, rows.out)
    assert (rows.out == 15).all()


def test_a_kernel_can_be_called_for_one_item(rows):
    multiply(3, 2.0, rows)
    assert rows.out[3] == rows.x[3] * 2
    assert np.count_nonzero(rows.out) == 1


def test_a_kernel_cannot_make_arrays(rows):
    with pytest.raises(NumbaError, match="empty"):
        allocate.over(1, rows)


def test_kernels_keep_their_name_and_documentation():
    assert multiply.__name__ == "multiply"
    assert multiply.__doc__ == "Multiply row n."


def test_kernels_are_listed():
    assert any(one is multiply for one in KERNELS)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_threads_are_started_anew_after_a_fork(rows):
    before = launch.use_threads(2)
    try:
        multiply.over(len(rows.x), 2.0, rows)  # starts threads here
        child = os.fork()
        if child == 0:
            rows.out[:] = 0
            multiply.over(len(rows.x), 2.0, rows)
            os._exit(0 if np.array_equal(rows.out, rows.x * 2) else 1)
        assert os.waitpid(child, 0)[1] == 0
    finally:
        launch.use_threads(before)


MODULE = """
import numpy as np
from typing import NamedTuple
from coterie.nn.launch import kernel
from helper_module import move

class State(NamedTuple):
    x: np.ndarray

@kernel
def step(n, state, by):
    state.x[n] += move(by)
"""
MAIN = """
import numpy as np
import kernel_module
state = kernel_module.State(np.zeros(3))
kernel_module.step.over(3, state, 2.0)
print(state.x[2], sum(kernel_module.step.loop.stats.cache_misses.values()))
"""


@pytest.mark.slow
def test_a_second_process_compiles_nothing_and_an_edited_helper_is_noticed(tmp_path):
    def run():
        path = ":".join([str(tmp_path), *sys.path])
        output = subprocess.run(
            [sys.executable, "-c", MAIN], env={"PYTHONPATH": path}, capture_output=True, text=True, check=True
        )
        return output.stdout.split()

    helper = "from coterie.core.jit import jit\n\n@jit\ndef move(by):\n    return by * 2\n"
    (tmp_path / "helper_module.py").write_text(helper)
    (tmp_path / "kernel_module.py").write_text(MODULE)
    assert run() == ["4.0", "1"]
    assert run() == ["4.0", "0"]
    (tmp_path / "helper_module.py").write_text(helper.replace("* 2", "* 5"))
    assert run() == ["10.0", "1"]
