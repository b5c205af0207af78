"""The history of a run: which settings held from which step on, and the run that it continues.

`config.yaml` holds the present settings, `history.json` all that steps of the run were trained with. It is plain data:
reading it builds nothing and imports nothing that a config names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from coterie.config.schema import WITHOUT_EFFECT, leaves
from coterie.core.types import CoterieError

HISTORY = "history.json"
ABSENT = "none"  # in place of the value of a setting that a section did not have


@dataclass(frozen=True)
class Period:
    """Settings, and the step from which on they held."""

    from_step: int
    settings: dict[str, Any]  # as `schema.to_dict` writes them


@dataclass(frozen=True)
class Parent:
    """The run that a fork continues."""

    run: str  # its directory
    step: int  # of the checkpoint that was taken over


class Change(NamedTuple):
    """One setting that was changed on the way."""

    step: int
    path: str
    old: Any
    new: Any


@dataclass(frozen=True)
class History:
    """All settings that a run was trained with."""

    periods: tuple[Period, ...] = ()
    parent: Parent | None = None

    def continued(self, step: int, settings: dict[str, Any]) -> History:
        """The history once these settings hold from a step on; what was to hold later never did."""
        kept = [period for period in self.periods if period.from_step < step]
        if not kept or kept[-1].settings != settings:
            kept.append(Period(step if kept else 0, settings))
        parent = self.parent if self.parent is not None and self.parent.step <= step else None
        return History(tuple(kept), parent)

    def changes(self) -> list[Change]:
        """Every change of a setting that can change results, in order."""
        return [
            Change(new.from_step, path, before, after)
            for old, new in zip(self.periods, self.periods[1:])
            for path, before, after in changed(old.settings, new.settings)
            if path not in WITHOUT_EFFECT
        ]

    def described(self) -> list[str]:
        """A phrase for every step at which settings changed: `from step 42,000: learner.gamma 0.99 → 0.9`."""
        words: dict[int, list[str]] = {}
        single = len({name for period in self.periods for name in period.settings.get("groups", {})}) == 1
        for step, path, old, new in self.changes():
            parts = path.split(".")
            short = ".".join(parts[2:]) if single and parts[0] == "groups" else path
            words.setdefault(step, []).append(f"{short} {_written(old)} → {_written(new)}")
        return [f"from step {step:,}: {', '.join(each)}" for step, each in words.items()]

    def origin(self) -> str:
        """The run that this one continues, in words; "" for a run that began by itself."""
        return "" if self.parent is None else f"{self.parent.run} from step {self.parent.step:,}"


def read_history(folder: Path) -> History:
    """The history of the run in a folder; an empty one where there is no file."""
    file = folder / HISTORY
    if not file.exists():
        return History()
    try:
        found = json.loads(file.read_bytes())
        periods = [Period(int(one["from_step"]), dict(one["settings"])) for one in found["periods"]]
        parent = found["parent"] and Parent(str(found["parent"]["run"]), int(found["parent"]["step"]))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CoterieError(f"'{file}' is damaged: {error!r}; delete it to do without the run's history") from None
    return History(tuple(periods), parent)


def to_json(history: History) -> str:
    """The contents of the file."""
    return json.dumps(asdict(history), indent=1) + "\n"


def changed(
    old: Mapping[str, Any], new: Mapping[str, Any], same_version: bool = False
) -> Iterator[tuple[str, Any, Any]]:
    """Path, old and new value of the settings that differ; of a part whose name differs, the name alone.

    Another version of Coterie may know more settings. Unless both sides are of the same version, a setting that only
    one side has counts only where its whole section is missing on the other.
    """
    one, other = leaves(dict(old)), leaves(dict(new))
    renamed = [path.removesuffix("name") for path in one if path.endswith(".name") and one[path] != other.get(path)]
    renamed += [path.removesuffix("name") for path in other if path.endswith(".name") and path not in one]
    for path in dict.fromkeys([*one, *other]):
        before, after = one.get(path, ABSENT), other.get(path, ABSENT)
        same = before == after or {str(before), str(after)} == {"None", ABSENT}
        if same or isinstance(before, dict) or isinstance(after, dict):
            continue
        if any(path.startswith(part) and path != f"{part}name" for part in renamed):
            continue
        if (path in one and path in other) or same_version or _section_is_missing(path, other if path in one else one):
            yield path, before, after


def _section_is_missing(path: str, settings: Mapping[str, Any]) -> bool:
    """Whether a section around a setting is not there or empty, as `train.stop` may be, or a group."""
    parts = path.split(".")
    above = [".".join(parts[:end]) for end in range(1, len(parts))]
    empty = any(section in settings for section in above)
    return empty or (parts[0] == "groups" and not any(known.startswith(f"{above[1]}.") for known in settings))


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
