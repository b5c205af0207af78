"""Files that belong to the repository rather than to a package: changelog, guide, versions."""

import ast
import importlib
import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import coterie
from coterie.config import renamed

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_changelog_begins_with_this_version():
    heading = re.search(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert heading is not None
    assert heading[1] == coterie.__version__


def test_the_changelog_lists_every_renamed_setting():
    rows = dict(re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|$", (ROOT / "CHANGELOG.md").read_text(), re.M))
    expected = renamed.SETTINGS | {f"{at}: {old}": f"{at}: {new}" for (at, old), new in renamed.NAMES.items()}
    assert {old: rows.get(old) for old in expected} == expected


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "CHANGELOG.md"])
def test_pages_name_files_that_exist(page):
    text = (ROOT / page).read_text()
    homes = (ROOT, ROOT / "src" / "coterie")
    for name in re.findall(r"`([\w./-]+\.(?:py|md|yaml))`", text) + re.findall(r"\]\(([^)#:]+)\)", text):
        if "NAME" not in name:
            assert any((home / name).exists() for home in homes), f"{page} names {name}"


@pytest.mark.parametrize("page", ["CONTRIBUTING.md"])
def test_pages_name_make_targets_that_exist(page):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", (ROOT / page).read_text(), re.M)) - {"bench-"}
    assert named - set(targets) == set()


NOT_PINNED = {"cuda-toolkit"}  # PyTorch with CUDA asks for one exact version of its own


@pytest.mark.parametrize("extra", PROJECT["project"]["optional-dependencies"])
def test_every_dependency_is_pinned(extra):
    pinned = {_plain(line.partition("==")[0]) for line in (ROOT / "constraints.txt").read_text().splitlines()}
    wanted = PROJECT["project"]["dependencies"] + PROJECT["project"]["optional-dependencies"][extra]
    assert {_plain(re.split(r"[<>=\[]", one)[0]) for one in wanted} - pinned - NOT_PINNED == set()


def test_pytest_is_the_pinned_one():
    assert f"pytest=={version('pytest')}" in (ROOT / "constraints.txt").read_text().splitlines()


def test_types_are_published():
    assert (Path(coterie.__file__).parent / "py.typed").exists()


def _plain(name):
    return name.lower().replace("_", "-")


@pytest.mark.parametrize("script", sorted(path.name for path in (ROOT / "benchmarks").glob("*.py")))
def test_benchmarks_import_what_there_is(script):
    for node in ast.walk(ast.parse((ROOT / "benchmarks" / script).read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("coterie"):
            module = importlib.import_module(node.module)
            for alias in node.names:
                if not hasattr(module, alias.name):  # then it is a module
                    importlib.import_module(f"{node.module}.{alias.name}")
