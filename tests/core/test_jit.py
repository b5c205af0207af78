"""The cache of compiled functions: what its key covers, and that a second process compiles nothing."""

import subprocess
import sys
import textwrap
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from coterie.core.jit import callback, jit, source_digest

HELPER = """
import numpy as np
from typing import NamedTuple
from coterie.core.jit import jit

SCALE = 2.0
TABLE = np.array([1.0, 2.0])

class Pair(NamedTuple):
    a: float
    b: float

@jit
def inner(x):
    "What it says."
    return x * SCALE + TABLE[1]  # why

@jit
def double(x):
    return inner(x)
"""
CALLER = """
import numpy as np
from coterie.core.jit import jit
import helper_module
from helper_module import double, Pair

@jit
def direct(x):
    return double(x) + Pair(x, x).a

@jit
def by_module(x):
    return helper_module.double(x)

@jit
def unrelated(x):
    return x in {"a", "b", "c"} or np.sqrt(2.0) > x
"""


def digests(monkeypatch, helper=HELPER, caller=CALLER):
    """The digests of the caller's functions for some sources."""
    found = {}
    for name, text in (("helper_module", helper), ("caller_module", caller)):
        module = ModuleType(name)
        module.__file__ = __file__  # Numba keeps its cache beside this file
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(text, __file__, "exec"), vars(module))
    for name in ("direct", "by_module", "unrelated"):
        found[name] = source_digest(vars(module)[name].py_func)
    return found


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("x * SCALE", "x / SCALE", True),  # code two calls away
        ("SCALE = 2.0", "SCALE = 3.0", True),
        ("[1.0, 2.0]", "[1.0, 2.5]", True),
        ("@jit\ndef inner", "@jit(fastmath=True)\ndef inner", True),
        ("# why", "# because", False),
        ("What it says.", "What it does.", False),
        ("SCALE = 2.0", "\n\nSCALE = 2.0", False),
    ],
)
def test_the_key_covers_what_is_called_and_read_in_other_files(monkeypatch, old, new, changed):
    before, after = digests(monkeypatch), digests(monkeypatch, helper=HELPER.replace(old, new))
    assert HELPER.replace(old, new) != HELPER
    assert (before["direct"] != after["direct"]) is changed
    assert (before["by_module"] != after["by_module"]) is changed
    assert before["unrelated"] == after["unrelated"]


def test_the_key_covers_fields_of_named_tuples(monkeypatch):
    before = digests(monkeypatch)
    after = digests(monkeypatch, helper=HELPER.replace("    b: float", "    c: float\n    b: float"))
    assert before["direct"] != after["direct"]
    assert before["by_module"] == after["by_module"]


def test_the_key_covers_free_variables():
    def make(scale):
        @jit
        def scaled(x):
            return x * scale

        return scaled

    assert source_digest(make(1.0).py_func) != source_digest(make(2.0).py_func)


def test_the_key_covers_the_options_of_the_function_itself():
    def double(x):
        return 2 * x

    def key(**options):
        return jit(**options)(double)._cache._index_key((), SimpleNamespace(magic_tuple=lambda: ()))

    assert key(forceinline=True) != key(forceinline=False)
    assert key(fastmath={"nnan", "ninf"}) == key(fastmath={"ninf", "nnan"})


def test_division_by_zero_follows_numpy():
    @jit
    def inverse(x):
        return 1.0 / x

    assert inverse(0.0) == np.inf


@pytest.mark.filterwarnings("ignore:Cannot cache")  # code that holds a pointer
def test_a_callback_runs_from_python_and_from_compiled_code():
    def twice(x):
        return 2 * x

    pointer = callback("float64(float64)", twice)

    @jit
    def through(x):
        return pointer(x)

    assert pointer.ctypes(1.5) == 3.0
    assert through(1.5) == 3.0


MAIN = """
import sys
import caller_module
result = caller_module.direct(1.5)
misses = sum(caller_module.direct.stats.cache_misses.values())
print(result, misses)
"""


@pytest.mark.slow
def test_a_second_process_compiles_nothing_and_an_edited_helper_is_noticed(tmp_path):
    def run():
        command = [sys.executable, "-c", textwrap.dedent(MAIN)]
        path = [str(tmp_path), *sys.path]
        output = subprocess.run(
            command, env={"PYTHONPATH": ":".join(path), "PYTHONHASHSEED": "random"}, capture_output=True, text=True
        )
        assert output.returncode == 0, output.stderr
        return output.stdout.split()

    (tmp_path / "helper_module.py").write_text(HELPER)
    (tmp_path / "caller_module.py").write_text(CALLER)
    assert run() == ["6.5", "1"]
    assert run() == ["6.5", "0"]
    (tmp_path / "helper_module.py").write_text(HELPER.replace("SCALE = 2.0", "SCALE = 4.0"))
    assert run() == ["9.5", "1"]
    assert run() == ["9.5", "0"]
