"""Writes requirements/: the pinned versions with the SHA-256 of every file that the package index has for them.

    make lock    # after a change of constraints.txt or of the dependencies in pyproject.toml

`build.txt` has the tools that build packages, `torch.txt` PyTorch and NVIDIA's libraries, which its files for Linux
need, and `packages.txt` everything else: whoever brings another build of PyTorch leaves `torch.txt` out. They hold on
Linux, macOS and Windows; `python_version` in pyproject.toml leaves out what has no files for newer Pythons.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PYTHON = "3.11.5"  # the oldest one with all pinned versions
HEADER = "# Written by `make lock`; installed by `make install-hashed`.\n"
MORE_TOOLS = [
    "editables",
    "setuptools",
]  # what hatchling needs for `pip install -e`, what builds packages without wheels


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("uv", help="the program uv")
    uv = parser.parse_args().uv
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"] + MORE_TOOLS
    everything = entries(compile_lock(uv, ["pyproject.toml", "--all-extras", "-"], build))
    with_torch = entries(compile_lock(uv, ["-"], ["torch"]))
    to_build = entries(compile_lock(uv, ["-"], build))
    pinned = read_pins(ROOT / "constraints.txt")
    unpinned = everything.keys() - pinned.keys() - with_torch.keys()
    superfluous = pinned.keys() - everything.keys()
    for name in sorted(unpinned):
        print(f"constraints.txt: add {everything[name].split(' ')[0]}", file=sys.stderr)
    for name in sorted(superfluous):
        print(f"constraints.txt: nothing needs {name}; remove it", file=sys.stderr)
    if unpinned or superfluous:
        return 1
    of_torch = {"torch"} | (everything.keys() - pinned.keys())
    write("build.txt", to_build.values())
    write("torch.txt", (entry for name, entry in everything.items() if name in of_torch))
    write("packages.txt", (entry for name, entry in everything.items() if name not in of_torch | to_build.keys()))
    return 0


def compile_lock(uv: str, sources: list[str], requirements: list[str]) -> str:
    """What uv resolves from these sources, of which `-` stands for the requirements, with hashes."""
    command = [uv, "pip", "compile", *sources, "--constraints", "constraints.txt"]
    options = [
        "--universal",
        "--python-version",
        PYTHON,
        "--generate-hashes",
        "--no-annotate",
        "--no-header",
        "--quiet",
    ]
    done = subprocess.run(
        [*command, *options], cwd=ROOT, input="\n".join(requirements), stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        sys.exit(done.returncode)  # uv has said why
    return done.stdout


def entries(lock: str) -> dict[str, str]:
    """The entries of a lock by the names of their packages: the pinned version and its hashes, in several lines.

    What Python needs in a browser alone is left out.
    """
    found = re.findall(r"^\S+==.*(?:\n    --hash.*)*", lock, re.M)
    return {plain(entry.partition("==")[0]): entry for entry in found if "sys_platform == 'emscripten'" not in entry}


def read_pins(file: Path) -> dict[str, str]:
    """Versions that a file pins, by the plain names of their packages."""
    return {plain(name): version for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", file.read_text(), re.M)}


def plain(name: str) -> str:
    """A package's name as the index writes it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def write(name: str, found: Iterable[str]) -> None:
    file = ROOT / "requirements" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(HEADER + "".join(f"{entry}\n" for entry in found))
    print(file.relative_to(ROOT))


if __name__ == "__main__":
    sys.exit(main())
