"""Writes docs/reference/sbom.cdx.json: every package that `make install` brings, with its licence, in CycloneDX 1.6.

    make sbom    # in the environment of `make install-hashed`, after `make lock` or a change of the version

Names and versions are those of requirements/, licences and dependencies those of the packages that are installed; of
the others, which this machine has no use for, the licence is not known here.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageMetadata, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from lock import plain, read_pins
from packaging.requirements import Requirement

import coterie

ROOT = Path(__file__).parent.parent.parent
OUT = ROOT / "docs" / "reference" / "sbom.cdx.json"
LOCKS = ("build", "torch", "packages")
NEEDED_BY = "coterie:needed-by"  # property of a component: `core`, extras of Coterie, `build`
SPDX = (  # what packages write in words -> the licence's identifier
    (r"nvidia|proprietary", "LicenseRef-NVIDIA-Proprietary"),
    (r"apache", "Apache-2.0"),
    (r"mozilla", "MPL-2.0"),
    (r"2-clause bsd", "BSD-2-Clause"),
    (r"bsd", "BSD-3-Clause"),  # "BSD" alone is the usual one with three clauses
    (r"lgpl", "LGPL-2.1-only"),
    (r"isc", "ISC"),
    (r"ncsa", "NCSA"),
    (r"python software foundation", "PSF-2.0"),
    (r"mit\b", "MIT"),
    (r"zlib", "Zlib"),
)
IDENTIFIER = re.compile(r"[\w.-]+(?: (?:AND|OR|WITH) [\w.-]+)*")


def main() -> None:
    locks = {name: read_pins(ROOT / "requirements" / f"{name}.txt") for name in LOCKS}
    versions = {name: version for pins in locks.values() for name, version in pins.items()}
    needed = needed_by(locks)
    found = {name: installed(name) for name in versions}
    components = [component(name, versions[name], found[name], needed[name]) for name in sorted(versions)]
    own = component("coterie", coterie.__version__, installed("coterie"), ()) | {"type": "application"}
    relations = [relation(own["bom-ref"], direct(), versions)]
    relations += [relation(ref(name, versions[name]), requires(found[name]), versions) for name in sorted(versions)]
    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own},
        "components": components,
        "dependencies": relations,
    }
    OUT.write_text(json.dumps(bom, indent=1) + "\n")
    print(OUT.relative_to(ROOT))


def component(name: str, version: str, found: Distribution | None, needed: Iterable[str]) -> dict[str, Any]:
    """A package as CycloneDX describes it."""
    made = {
        "type": "library",
        "bom-ref": ref(name, version),
        "name": name,
        "version": version,
        "purl": ref(name, version),
    }
    known = None if found is None else licence(found.metadata)
    made |= {} if known is None else {"licenses": [{"expression": known}]}
    wanted = ", ".join(needed)
    return made | ({"properties": [{"name": NEEDED_BY, "value": wanted}]} if wanted else {})


def ref(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{version}"


def licence(metadata: PackageMetadata) -> str | None:
    """The SPDX expression of a package's licence; of what it writes in words, the identifier. None: it names none."""
    expression: str | None = metadata.get("License-Expression")
    if expression:
        return expression
    words = (metadata.get("License") or "").strip()
    if IDENTIFIER.fullmatch(words) and "-" in words:
        return words
    classifiers = [
        line.split(" :: ")[-1] for line in metadata.get_all("Classifier") or [] if line.startswith("License")
    ]
    known = [identifier(one) for one in (*classifiers, words.split("\n")[0])]
    names = list(dict.fromkeys(name for name in known if name))
    if not words and not classifiers:
        return None
    if not names:
        raise SystemExit(f"{metadata['Name']}: no licence is known in '{words[:60]}', {classifiers}; add it to SPDX")
    return " OR ".join(names[: max(len(classifiers), 1)])


def identifier(words: str) -> str | None:
    return next((name for pattern, name in SPDX if re.search(pattern, words, re.I)), None)


def installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def requires(found: Distribution | None, extras: Iterable[str] = ()) -> dict[str, list[str]]:
    """What an installed package needs on this machine, with the extras that it asks for."""
    needed = {}
    for line in (found.requires if found is not None else None) or ():
        one = Requirement(line)
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            needed[plain(one.name)] = sorted(one.extras)
    return needed


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def direct() -> dict[str, list[str]]:
    """All that Coterie and its extras ask for."""
    told = project()
    lines = [*told["dependencies"], *(line for extra in told["optional-dependencies"].values() for line in extra)]
    return {plain(one.name): sorted(one.extras) for one in map(Requirement, lines)}


def needed_by(locks: dict[str, dict[str, str]]) -> dict[str, list[str]]:
    """The parts of Coterie that need each package: `core` alone where that does, otherwise extras or what locks it."""
    told = project()
    groups = {"core": told["dependencies"], **told["optional-dependencies"]}
    found: dict[str, list[str]] = {}
    for group, lines in groups.items():
        for name in closure({plain(one.name): sorted(one.extras) for one in map(Requirement, lines)}):
            found.setdefault(name, []).append(group)
    rest = {name: "build" if name in locks["build"] else "core" for pins in locks.values() for name in pins}
    rest |= dict.fromkeys(locks["packages"].keys() - found.keys(), "another system")
    return {
        name: ["core"] if "core" in found.get(name, ()) else found.get(name, [where]) for name, where in rest.items()
    }


def closure(first: dict[str, list[str]]) -> set[str]:
    """These packages and all that they need."""
    seen: set[tuple[str, tuple[str, ...]]] = set()
    waiting = [(name, tuple(extras)) for name, extras in first.items()]
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.add(one)
            waiting += [(name, tuple(extras)) for name, extras in requires(installed(one[0]), one[1]).items()]
    return {name for name, _ in seen}


def relation(of: str, needed: Iterable[str], versions: dict[str, str]) -> dict[str, Any]:
    return {"ref": of, "dependsOn": sorted(ref(name, versions[name]) for name in needed if name in versions)}


if __name__ == "__main__":
    main()
