"""The import rules: each package imports only packages below it, imports inside functions and type checks included."""

import ast
import functools
from pathlib import Path

import pytest

import coterie

SOURCE = Path(coterie.__file__).parent
BELOW = {  # package -> packages it may import
    "core": set(),
    "nn": {"core"},
    "preferences": {"core", "nn"},
    "worlds": {"core", "nn", "preferences", "sandbox"},
    "lm": {"core"},
    "policies": {"core", "nn", "lm"},
    "roles": {"core", "nn", "lm", "preferences"},
    "algorithms": {"core", "nn", "preferences", "policies"},
    "config": {"core"},
    "training": {"core", "nn", "lm", "policies", "config"},
    "studies": {"core", "nn", "lm", "preferences", "policies", "config", "training"},
    "web": {"core", "config", "training", "studies"},
    "sandbox": {"core"},
    "testing": {"core", "training"},
}
TOP = {"cli", "api", "__init__", "__main__"}  # may import everything
EXCEPTIONS: dict[str, set[str]] = {  # importing module -> imported modules, and why
    # The auction's metrics need trained bidders: they load runs, ask the policies for bids and average over seeds.
    "studies.auction.metrics": {
        "config.schema",
        "studies.statistics",
        "training.build",
        "runs.run",
        "training.runner",
        "training.table",
    },
    # The auction's section of a report draws these metrics in the style of the other sections.
    "studies.auction.report": {"studies.figures", "studies.html", "studies.statistics", "runs.run"},
}
REGISTRY = {"worlds", "preferences", "policies", "roles", "algorithms"}  # packages whose classes the name tables list


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


MODULES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


@functools.cache
def imported(path: Path) -> set[str]:
    """Every module of Coterie that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert not node.level, f"{path}: relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full.removeprefix("coterie.") in MODULES else node.module)
    return {name.removeprefix("coterie.") for name in found if name.startswith("coterie.")}


def package(module: str) -> str:
    return module.partition(".")[0]


def crossings() -> set[tuple[str, str]]:
    """(importer, imported) pairs that break the rules."""
    found = set()
    for module, path in MODULES.items():
        home = package(module)
        if home in TOP:
            continue
        for other in imported(path):
            if package(other) != home and package(other) not in BELOW[home]:
                found.add((module, other))
    return found


def declared() -> set[tuple[str, str]]:
    return {(module, other) for module, others in EXCEPTIONS.items() for other in others}


def test_packages_import_only_what_lies_below():
    assert crossings() - declared() == set()


@pytest.mark.slow
def test_exceptions_are_still_needed():
    assert declared() - crossings() == set()


def test_every_package_has_a_rule():
    assert {package(module) for module in MODULES} == set(BELOW) | TOP & {package(module) for module in MODULES}


def test_rules_have_no_cycle():
    done: set[str] = set()
    while len(done) < len(BELOW):
        ready = {name for name, below in BELOW.items() if name not in done and below <= done}
        assert ready, f"cycle among {set(BELOW) - done}"
        done |= ready


def registry_addresses() -> list[str]:
    """Every `module:Name` that the name tables list."""
    tree = ast.parse((SOURCE / "config" / "registry.py").read_text())
    strings = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [text for text in strings if text.startswith("coterie.") and ":" in text]


@pytest.mark.parametrize("address", registry_addresses())
def test_the_registry_names_existing_classes_of_the_packages_it_may_name(address):
    module, _, name = address.removeprefix("coterie.").partition(":")
    assert package(module) in REGISTRY
    path = MODULES[module]
    tree = ast.parse(path.read_text())
    names = {node.name for node in ast.walk(tree) if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    names |= {
        alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert name in names


def test_no_registered_package_imports_the_registry():
    """The registry's strings count as imports: what it names must not import it, or there would be a cycle."""
    users = {module for module, path in MODULES.items() if "config.registry" in imported(path)}
    assert {package(user) for user in users} & REGISTRY == set()
