"""Files that belong to the repository rather than to a package: changelog, guide, versions."""

import ast
import importlib
import json
import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import coterie

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_changelog_begins_with_this_version():
    heading = re.search(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert heading is not None
    assert heading[1] == coterie.__version__


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


def read_lock(name):
    """The pins of a file of requirements/ -> how many hashes each has."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    entries = re.findall(r"^(\S+)==([^\s;]+)[^\n]*((?:\n    --hash=sha256:[0-9a-f]{64}(?: \\)?)*)", text, re.M)
    return {(_plain(package), version): hashes.count("--hash") for package, version, hashes in entries}


LOCKS = ("build", "torch", "packages")


@pytest.mark.parametrize("name", LOCKS)
def test_every_pin_of_requirements_has_a_hash(name):
    lock = read_lock(name)
    assert len(lock) > 5
    assert [pin for pin, hashes in lock.items() if not hashes] == []


def test_requirements_hold_the_pinned_versions():
    lines = (ROOT / "constraints.txt").read_text().splitlines()[1:]
    pinned = {(_plain(name), version) for name, _, version in (line.partition("==") for line in lines)}
    locked = {pin for name in LOCKS for pin in read_lock(name)}
    assert pinned - locked == set(), "write them with: make lock"
    systems = {name for name, _ in locked - pinned}
    assert [name for name in systems if not name.startswith(("nvidia-", "cuda-", "triton"))] == []


def test_the_list_of_dependencies_has_the_locked_versions():
    bom = json.loads((ROOT / "docs" / "reference" / "sbom.cdx.json").read_text())
    listed = {(_plain(one["name"]), one["version"]) for one in bom["components"]}
    assert listed == {pin for name in LOCKS for pin in read_lock(name)}, "write it with: make sbom"
    assert bom["metadata"]["component"]["version"] == coterie.__version__
    known = {one["bom-ref"] for one in [bom["metadata"]["component"], *bom["components"]]}
    assert {ref for one in bom["dependencies"] for ref in [one["ref"], *one["dependsOn"]]} <= known


def test_packages_with_conditions_are_named_on_the_page():
    bom = json.loads((ROOT / "docs" / "reference" / "sbom.cdx.json").read_text())
    words = (ROOT / "docs" / "reference" / "dependencies.md").read_text().partition("<!-- table")[0]
    unnamed = [
        one["name"]
        for one in bom["components"]
        if re.search("GPL|MPL|EPL|CDDL", str(one.get("licenses"))) and f"`{one['name']}`" not in words
    ]
    assert unnamed == []


def test_pytest_is_the_pinned_one():
    assert f"pytest=={version('pytest')}" in (ROOT / "constraints.txt").read_text().splitlines()


def test_types_are_published():
    assert (Path(coterie.__file__).parent / "py.typed").exists()


def _plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("script", sorted(path.name for path in (ROOT / "benchmarks").glob("*.py")))
def test_benchmarks_import_what_there_is(script):
    for node in ast.walk(ast.parse((ROOT / "benchmarks" / script).read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("coterie"):
            module = importlib.import_module(node.module)
            for alias in node.names:
                if not hasattr(module, alias.name):  # then it is a module
                    importlib.import_module(f"{node.module}.{alias.name}")
