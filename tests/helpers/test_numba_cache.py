"""Which compiled functions are deleted after which edit."""

import importlib
import sys

import pytest

from helpers.numba_cache import Package, cache_files, lock_saving, purge, purge_edited

SOURCES = {
    "__init__": "",
    "numbers": '''
        """Constants."""
        BASE = 10
        SCALE = {"one": 1}
        SCALE["one"] = 2
        OTHER = 3
        ''',
    "low": '''
        import numpy as np
        from numba import njit
        from PACKAGE import numbers
        from PACKAGE.numbers import BASE as START

        @njit(cache=True)
        def add(x):
            """Adds."""
            return x + START

        @njit(cache=True)
        def double(x):
            return x * 2

        def unused(x):
            return numbers.OTHER
        ''',
    "high": """
        from __future__ import annotations
        from typing import TYPE_CHECKING
        from numba import njit
        from .low import add

        if TYPE_CHECKING:
            from PACKAGE.pair import Pair

        @njit(cache=True)
        def add_twice(x):
            return add(add(x))

        @njit(cache=True)
        def first(pair: Pair):
            return pair.first
        """,
    "pair": "from typing import NamedTuple\nclass Pair(NamedTuple):\n    first: int\n    second: int\n",
}
COMPILED = {"low:add", "low:double", "high:add_twice", "high:first"}


class Playground:
    """A package on disk that can be edited and imported again."""

    def __init__(self, root):
        self.root, self.name = root, root.name
        for module, text in SOURCES.items():
            lines = text.replace("PACKAGE", self.name).split("\n")
            margin = 8 if len(lines) > 5 else 0
            self.path(module).parent.mkdir(exist_ok=True)
            self.path(module).write_text("\n".join(line[margin:] for line in lines))

    def path(self, module):
        return self.root / f"{module}.py"

    def edit(self, module, old, new):
        text = self.path(module).read_text()
        assert old in text
        self.path(module).write_text(text.replace(old, new))

    def fingerprints(self):
        return {name.removeprefix(f"{self.name}."): hash_ for name, hash_ in Package(self.root).fingerprints.items()}

    def changed_by(self, module, old, new):
        before = self.fingerprints()
        self.edit(module, old, new)
        after = self.fingerprints()
        return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)} & COMPILED

    def call(self, module, function, *arguments):
        for loaded in [name for name in sys.modules if name.partition(".")[0] == self.name]:
            del sys.modules[loaded]
        importlib.invalidate_caches()
        return getattr(importlib.import_module(f"{self.name}.{module}"), function)(*arguments)

    def cached(self):
        return {symbol[1] for _, symbol, _ in cache_files(self.root)}


@pytest.fixture
def playground(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # two edits within a second leave the same time stamp
    return Playground(tmp_path / f"package_{abs(hash(tmp_path))}")


@pytest.mark.parametrize(
    ("module", "old", "new", "changed"),
    [
        ("numbers", "Constants.", "Numbers.", set()),
        ("numbers", "OTHER = 3", "OTHER = 4  # three", set()),
        ("numbers", "BASE = 10", "BASE = 11", {"low:add", "high:add_twice"}),
        ("numbers", '["one"] = 2', '["one"] = 3', {"low:add", "high:add_twice"}),  # defines no name: counts for all
        ("low", '"""Adds."""', '"""Adds the base."""\n', set()),
        ("low", "x + START", "START + x", {"low:add", "high:add_twice"}),
        ("low", "def double(x):", "def double(x, y=0):", {"low:double"}),
        ("low", "@njit(cache=True)\ndef double", "@njit(cache=True, fastmath=True)\ndef double", {"low:double"}),
        ("low", "numbers.OTHER", "1", set()),
        ("high", "add(add(x))", "add(x)", {"high:add_twice"}),
        ("pair", "    first: int\n    second: int", "    second: int\n    first: int", {"high:first"}),
    ],
)
def test_an_edit_changes_the_functions_that_it_reaches(playground, module, old, new, changed):
    assert playground.changed_by(module, old, new) == changed


@pytest.mark.slow
def test_a_changed_constant_reaches_compiled_callers_in_other_files(playground):
    purge(Package(playground.root))
    assert playground.call("high", "add_twice", 1) == 21
    assert playground.call("low", "double", 4) == 8
    playground.edit("numbers", "BASE = 10", "BASE = 100")
    assert playground.call("high", "add_twice", 1) == 21, "Numba looks at other files now: no purge is needed any more"
    purge(Package(playground.root))
    assert playground.cached() == {"double"}
    assert playground.call("high", "add_twice", 1) == 201


def test_without_edits_nothing_is_deleted(playground):
    purge(Package(playground.root))
    playground.call("high", "add_twice", 1)
    assert purge(Package(playground.root)) == []
    playground.edit("numbers", "Constants.", "Numbers.")
    assert purge(Package(playground.root)) == []
    assert playground.cached() == {"add_twice", "add"}


def test_caches_of_unknown_origin_are_deleted(playground):
    """Compiled before there was a manifest, by a function that is gone, or at a line where no function starts."""
    playground.call("low", "double", 4)
    assert len(purge(Package(playground.root))) == 2
    playground.call("low", "double", 4)
    playground.edit("low", "import numpy as np\n", "")
    assert len(purge(Package(playground.root))) == 2
    playground.call("low", "double", 4)
    playground.edit("low", "def double", "def twice")
    assert len(purge(Package(playground.root))) == 2


def test_what_a_session_compiled_from_sources_edited_meanwhile_is_deleted(playground):
    start = Package(playground.root)
    purge(start)
    playground.call("high", "add_twice", 1)
    assert purge_edited(start) == []
    playground.edit("numbers", "BASE = 10", "BASE = 11")
    playground.call("low", "double", 4)
    purge_edited(start)
    assert playground.cached() == {"double"}


def test_saving_waits_for_the_lock(playground, monkeypatch):
    from numba.core import caching

    taken = []
    monkeypatch.setattr(caching.IndexDataCacheFile, "save", lambda self, key, data: taken.append(lock_path.exists()))
    lock_saving()
    lock_path = playground.root / "__pycache__" / "numba-save.lock"
    playground.call("low", "double", 4)
    assert taken == [True]


def test_rules_of_games_are_followed_like_other_compiled_functions(playground):
    playground.path("game").write_text(
        "from coterie.core.game import compile_estimate\n"
        f"from {playground.name}.low import add\n"
        "def guess(position):\n    return add(position[0]) * 0.01\n"
        "GUESS = compile_estimate(guess)\n"
    )
    purge(Package(playground.root))
    importlib.import_module(f"{playground.name}.game")
    assert purge(Package(playground.root)) == []
    assert "guess" in playground.cached()
    playground.edit("numbers", "BASE = 10", "BASE = 11")
    purge(Package(playground.root))
    assert playground.cached() == set()
