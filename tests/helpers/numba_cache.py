"""Deletes compiled functions whose sources have changed, and only those.

Numba keeps compiled functions in `__pycache__` and reads them back while the file of the function itself is unchanged.
It does not look at other files, although a compiled function contains the functions that it calls and the constants
that it reads. So `purge` follows every top-level name through all sources of the package and hashes the definitions
that it reaches (syntax without docstrings, comments and line numbers). It deletes the caches of functions whose hash
differs from the one in a manifest: editing a docstring deletes nothing, editing a kernel deletes its callers, too.

Limits: what is compiled outside the tests between an edit and its reversal is not noticed, and a dependency that
is not written as a name (`getattr`, a data file) is not seen.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numba
from filelock import FileLock  # comes with torch
from numba.core.caching import IndexDataCacheFile

MANIFEST = f"numba-sources.{sys.implementation.cache_tag}.json"
CACHED = re.compile(r"(?P<module>\w+)\.(?P<function>\w+)[\w.]*-(?P<line>\d+)\.py(?P<python>\d+)\w*(\.\d+)?\.nb[ic]")
PYTHON = f"{sys.version_info[0]}{sys.version_info[1]}"
COMPILES = re.compile(
    rb"numba|core\.jit|nn\.launch|compile_rules|compile_estimate"
)  # a module that may compile functions
EVERYTHING, LOOSE = "*", ""  # all of a module; its statements that define no name
Symbol = tuple[str, str]  # module, top-level name


@dataclass(frozen=True)
class Source:
    """One module, cut into the definitions of its top-level names."""

    definitions: dict[str, list[ast.AST]]  # LOOSE: top-level statements other than definitions and imports
    imports: dict[str, set[Symbol]]  # a name bound by an import, anywhere in the file -> what it names
    first_lines: frozenset[int]  # of all functions, decorators included, as in the names of cache files


class Package:
    """The sources of a package as they are now, parsed when they are first needed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.paths = {_module_name(root, path): path for path in sorted(root.rglob("*.py"))}
        self.texts = {module: path.read_bytes() for module, path in self.paths.items()}
        self.sources: dict[str, Source] = {}
        self.successors = functools.cache(self._successors)
        self.digest = functools.cache(self._digest)

    def __getitem__(self, module: str) -> Source:
        if module not in self.sources:
            is_package = self.paths[module].name == "__init__.py"
            self.sources[module] = _read(module, self.texts[module], is_package, self.paths.keys())
        return self.sources[module]

    @functools.cached_property
    def text_digest(self) -> str:
        """A hash of all sources to the letter: while it is the same, nothing needs to be parsed."""
        hashes = (f"{module} {hashlib.sha256(text).hexdigest()}" for module, text in self.texts.items())
        return hashlib.sha256("\n".join(hashes).encode()).hexdigest()

    @functools.cached_property
    def fingerprints(self) -> dict[str, str]:
        """Return a hash for every top-level function that may be compiled, by `module:name`."""
        found = {}
        for module in (module for module, text in self.texts.items() if COMPILES.search(text)):
            for name, nodes in self[module].definitions.items():
                if any(isinstance(node, ast.FunctionDef) for node in nodes):
                    reached = sorted(self.reach((module, name)))
                    lines = "\n".join(f"{symbol} {self.digest(symbol)}" for symbol in reached)
                    found[f"{module}:{name}"] = hashlib.sha256(lines.encode()).hexdigest()
        return found

    def reach(self, start: Symbol) -> set[Symbol]:
        """Return everything that a definition mentions, directly or through others."""
        reached, waiting = {start}, [start]
        while waiting:
            new = self.successors(waiting.pop()) - reached
            reached |= new
            waiting += new
        return reached

    def _digest(self, symbol: Symbol) -> str:
        nodes = self[symbol[0]].definitions.get(symbol[1], [])
        return hashlib.sha256("\n".join(ast.dump(node) for node in nodes).encode()).hexdigest()

    def _successors(self, symbol: Symbol) -> set[Symbol]:
        """Return the symbols that the definition of this one mentions."""
        module, name = symbol
        source = self[module]
        if name == EVERYTHING:
            return {(module, one) for one in source.definitions} | self._known(*source.imports.values())
        found = {(module, LOOSE)}
        if name in source.definitions:
            return found.union(*(self._mentioned(module, statement) for statement in source.definitions[name]))
        if name in source.imports:  # passed on
            return found | self._known(source.imports[name])
        return found | {(module, EVERYTHING)}  # bound in a way that is not understood

    def _mentioned(self, module: str, statement: ast.AST) -> set[Symbol]:
        source, found, qualified = self[module], set(), set()
        for node in ast.walk(statement):  # parents come before their children
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                for target, name in source.imports.get(node.value.id, ()):
                    if name == EVERYTHING and target in self.paths and f"{target}.{node.attr}" not in self.paths:
                        found.add((target, node.attr))
                        qualified.add(node.value)
            if isinstance(node, ast.Name) and node not in qualified:
                if node.id in source.definitions:
                    found.add((module, node.id))
                found |= self._known(source.imports.get(node.id, set()))
        return found

    def _known(self, *names: set[Symbol]) -> set[Symbol]:
        return {symbol for targets in names for symbol in targets if symbol[0] in self.paths}


def purge(package: Package) -> list[Path]:
    """Delete what is out of date, write the manifest, and return the deleted files. Safe with several processes."""
    manifest = package.root / "__pycache__" / MANIFEST
    manifest.parent.mkdir(exist_ok=True)
    with FileLock(manifest.with_suffix(".lock")):
        before = json.loads(manifest.read_text()) if manifest.exists() else {"numba": None, "functions": {}}
        if before["numba"] == numba.__version__ and before.get("text") == package.text_digest:
            return []
        known = before["functions"].items() if before["numba"] == numba.__version__ else ()
        fresh = {name for name, digest in known if package.fingerprints.get(name) == digest}
        deleted = []
        for path, symbol, line in cache_files(package.root):
            if ":".join(symbol) not in fresh or line not in package[symbol[0]].first_lines:
                path.unlink(missing_ok=True)
                deleted.append(path)
        partial = manifest.with_suffix(".partial")
        now = {"numba": numba.__version__, "text": package.text_digest, "functions": package.fingerprints}
        partial.write_text(json.dumps(now, indent=1))
        partial.replace(manifest)
    return deleted


def purge_edited(before: Package) -> list[Path]:
    """Delete what a session may have compiled from sources that were edited after it read them into `before`."""
    after = Package(before.root)
    if after.text_digest == before.text_digest:
        return []
    old, new = before.fingerprints, after.fingerprints
    edited = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
    deleted = [path for path, symbol, _ in cache_files(before.root) if ":".join(symbol) in edited]
    for path in deleted:
        path.unlink(missing_ok=True)
    return deleted


def lock_saving() -> None:
    """Let one process at a time write a function's cache.

    Numba reads the index, picks a free file name and writes both without a lock: two processes that compile different
    signatures of one function at the same time may end with an index that points to the other one's code.
    """
    save = IndexDataCacheFile.save

    @functools.wraps(save)
    def locked_save(self: IndexDataCacheFile, key: object, data: object) -> None:
        with FileLock(Path(self._cache_path) / "numba-save.lock"):
            save(self, key, data)

    IndexDataCacheFile.save = locked_save


def cache_files(root: Path) -> Iterator[tuple[Path, Symbol, int]]:
    """Yield each cache file of this Python, the top-level name that it was compiled from, and its line."""
    for path in sorted(root.rglob("__pycache__/*.nb[ic]")):
        match = CACHED.fullmatch(path.name)
        if match and match["python"] == PYTHON:
            module = _module_name(root, path.parent.parent / f"{match['module']}.py")
            yield path, (module, match["function"]), int(match["line"])


def _module_name(root: Path, path: Path) -> str:
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _read(module: str, text: bytes, is_package: bool, modules: set[str]) -> Source:
    tree = _Undocumented().visit(ast.parse(text))
    package = module if is_package else module.rpartition(".")[0]
    definitions: dict[str, list[ast.AST]] = {LOOSE: []}
    for statement in tree.body:
        for name in _defines(statement):
            definitions.setdefault(name, []).append(statement)
    imports: dict[str, set[Symbol]] = {}
    for node in ast.walk(tree):
        for name, target in _imported(node, package, modules):
            imports.setdefault(name, set()).add(target)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    first = frozenset(min(part.lineno for part in (node, *node.decorator_list)) for node in functions)
    return Source(definitions, imports, first)


class _Undocumented(ast.NodeTransformer):
    """Removes strings that stand alone: docstrings."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        documentation = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if documentation else self.generic_visit(node)


def _defines(statement: ast.stmt) -> list[str]:
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets) if all(isinstance(part, ast.Name | ast.Tuple) for part in targets):
            return [part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.Import() | ast.ImportFrom():
            return []
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return []  # its imports are followed like all others
    bound = [node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    return [LOOSE, *bound]


def _imported(node: ast.AST, package: str, modules: set[str]) -> Iterator[tuple[str, Symbol]]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.asname or alias.name.partition(".")[0], (alias.name, EVERYTHING)
    if isinstance(node, ast.ImportFrom):
        above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        origin = ".".join([*above, *filter(None, [node.module])])
        for alias in node.names:
            submodule = f"{origin}.{alias.name}"
            yield alias.asname or alias.name, (submodule, EVERYTHING) if submodule in modules else (origin, alias.name)
