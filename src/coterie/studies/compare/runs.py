"""Who is compared: finished runs read from their directories and put together as contenders.

A *contender* is what is held against others: runs that differ in nothing but seed and world. A *world* is a
world's name with its settings; scores of different worlds are on different scales, which `compare.py` sees
to. Settings that cannot change a result (how many processes, what is saved) tell nobody apart.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coterie.config import schema as configs
from coterie.core.types import Array, CoterieError
from coterie.training.run import Run, number

ARGUMENT = "argument"  # in place of a setting: every argument of the command is a contender
NOT_COMPARED = configs.WITHOUT_EFFECT | {"schema", "experiment", "seed"}


@dataclass(frozen=True)
class Curve:
    """Evaluations during training, on validation episodes."""

    steps: Array  # [T] environment steps
    wall: Array  # [T] seconds
    value: Array  # [T] mean return


@dataclass(frozen=True)
class RunResult:
    """One finished run, as far as it is compared."""

    path: Path
    argument: str  # of the command, in which it was found
    experiment: str
    seed: int
    settings: dict[str, Any]  # dotted -> value, those that can change a result
    score: float  # of the chosen checkpoint on held-out episodes
    last: float  # of the last policies on the same
    others: dict[str, float]  # random play, perhaps heuristic, the policies of step 0, on the same
    curve: Curve
    env_steps: int
    wall_s: float


@dataclass(frozen=True)
class Variant:
    """Runs that count as one."""

    label: str
    runs: dict[str, list[RunResult]]  # world -> its runs


# Reading ----------------------------------------------------------------------------------------------


def find_runs(words: Sequence[str]) -> list[tuple[str, Run]]:
    """The runs that arguments name, each once: a run's directory, or one with runs somewhere below."""
    found: dict[Path, tuple[str, Run]] = {}
    for word in words:
        path = Path(word)
        if not path.is_dir():
            raise CoterieError(f"'{word}' is no directory; name runs, or directories with runs below them")
        inside = [path] if (path / "config.yaml").is_file() else [p.parent for p in path.rglob("config.yaml")]
        inside = [one for one in inside if not any(other in one.parents for other in inside)]  # none within another
        if not inside:
            raise CoterieError(f"'{word}' holds no run: there is no config.yaml in it or below")
        for directory in sorted(inside):
            found.setdefault(directory.resolve(), (word, Run.open(directory)))
    return list(found.values())


def read(
    words: Sequence[str], scored: str = "best", group: str | None = None, skip_unfinished: bool = False
) -> tuple[list[RunResult], list[Path]]:
    """All runs that arguments name, and those that were left out because they have not finished."""
    if scored not in ("best", "last"):
        raise configs.ConfigError(f"--score: expected best or last, got '{scored}'")
    found = find_runs(words)
    skipped = [run.path for _, run in found if skip_unfinished and run.summary() is None]
    if len(skipped) == len(found):
        raise CoterieError("none of these runs has finished")
    return [enter(word, run, scored, group) for word, run in found if run.path not in skipped], skipped


def enter(argument: str, run: Run, scored: str, group: str | None) -> RunResult:
    """Read a finished run; its score is the mean return of the groups that learn, or of one group."""
    summary = run.summary()
    if summary is None:
        raise CoterieError(f"'{run.path}' has not finished; 'coterie resume {run.path}', or --skip-unfinished")
    try:
        settings = run.config()
    except configs.ConfigError as error:
        raise CoterieError(f"'{run.path}': {error}") from None
    learning = [name for name, member in settings.groups.items() if member.learner is not None]
    if group is not None and group not in settings.groups:
        raise CoterieError(f"'{run.path}' has no group '{group}'; there are {', '.join(settings.groups)}")
    counted = [group] if group is not None else learning or list(settings.groups)

    def score(*path: str) -> float:
        return float(np.mean([number(run, summary, *path, "groups", name, "return_mean") for name in counted]))

    others = {"random": score("baselines", "random"), "step 0": score("step_0")}  # which every run has
    return RunResult(
        run.path,
        argument,
        settings.experiment,
        settings.seed,
        {k: v for k, v in flatten(configs.to_dict(settings)).items() if k not in NOT_COMPARED},
        score("evaluation" if scored == "best" else "last"),
        score("last"),
        others | {name: score("baselines", name) for name in summary["baselines"]},
        read_curve(run, counted),
        int(number(run, summary, "env_steps")),
        number(run, summary, "wall_s"),
    )


def read_curve(run: Run, groups: Sequence[str]) -> Curve:
    """The run's evaluations, averaged over groups."""
    names = [f"{group}/eval/return_mean" for group in groups]
    points = [(r["env_steps"], r["wall_s"], np.mean([r[n] for n in names])) for r in run.metrics() if names[0] in r]
    if not points:
        raise CoterieError(f"'{run.path}' has no evaluations in its metrics.jsonl")
    return Curve(*np.array(points, float).T)


def flatten(plain: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Nested settings as dotted ones."""
    flat: dict[str, Any] = {}
    for name, value in plain.items():
        flat |= flatten(value, f"{path}{name}.") if isinstance(value, dict) else {f"{path}{name}": value}
    return flat


# Putting together -------------------------------------------------------------------------------------


def gather(entrants: Sequence[RunResult], by: Sequence[str] = ()) -> list[Variant]:
    """Contenders in order of appearance, told apart by all settings outside the world, or by the given ones."""
    known = {ARGUMENT, *(name for one in entrants for name in one.settings)}
    for name in by:
        if name not in known:
            hint = configs.suggest(name, known) or "; 'coterie config show' lists settings"
            raise configs.ConfigError(f"--by {name}: none of these runs has such a setting{hint}")
    worlds = _worlds(entrants, by)
    found: dict[str, list[tuple[str, RunResult]]] = {}
    for entrant, world in zip(entrants, worlds, strict=True):
        found.setdefault(json.dumps(_identity(entrant, by), sort_keys=True), []).append((world, entrant))
    _refuse_twins(found.values())
    members = [[one for _, one in group] for group in found.values()]
    names = ["+".join(dict.fromkeys(one.experiment for one in group)) for group in members]
    identities = [_identity(group[0], by) for group in members]
    one_group = _one_group([one.settings for one in entrants])
    labels = (
        _numbered([_worded(one, by, one_group) for one in identities], identities)
        if by
        else tell_apart(names, identities)
    )
    contenders = []
    for label, group in zip(labels, found.values(), strict=True):
        runs: dict[str, list[RunResult]] = {world: [] for world in dict.fromkeys(worlds) if world in dict(group)}
        for world, entrant in group:
            runs[world].append(entrant)
        contenders.append(Variant(label, runs))
    _refuse_gaps(contenders)
    return contenders


def _identity(entrant: RunResult, by: Sequence[str]) -> dict[str, Any]:
    """What makes a run part of one contender and not of another."""
    if by:
        return {n: entrant.argument if n == ARGUMENT else entrant.settings.get(n) for n in by}
    return {name: value for name, value in entrant.settings.items() if not name.startswith("world.")}


def _worlds(entrants: Sequence[RunResult], by: Sequence[str]) -> list[str]:
    """Every run's world by name, with settings where worlds of one name differ in them."""
    settings = [
        {k: v for k, v in one.settings.items() if k.startswith("world.") and k not in ("world.name", *by)}
        for one in entrants
    ]
    return tell_apart([str(one.settings["world.name"]) for one in entrants], settings)


def _refuse_twins(groups: Any) -> None:
    """The same config and seed is the same run: counted twice, it would feign certainty."""
    for group in groups:
        seen: dict[str, Path] = {}
        for _, one in group:
            key = json.dumps([one.seed, one.settings], sort_keys=True)
            if key in seen:
                raise CoterieError(f"'{seen[key]}' and '{one.path}' have the same settings and seed; give one of them")
            seen[key] = one.path


def _refuse_gaps(contenders: Sequence[Variant]) -> None:
    """Everybody must have played in every world, or means over worlds would be of different things."""
    played = {world: runs[0] for one in contenders for world, runs in one.runs.items()}
    for one in contenders:
        for world, run in played.items():
            if world not in one.runs:
                other = next(iter(one.runs.values()))[0]
                raise CoterieError(
                    f"'{run.path}' plays in world '{world}', where the contender of '{other.path}' has no run; only "
                    "contenders in the same worlds can be compared (--by SETTING says what tells contenders apart)"
                )


def tell_apart(names: Sequence[str], settings: Sequence[dict[str, Any]]) -> list[str]:
    """Names, with the settings in which those of one name differ; equal labels are of equals."""
    alike: dict[str, list[dict[str, Any]]] = {}
    for name, one in zip(names, settings, strict=True):
        alike.setdefault(name, []).append(one)
    keys = {name: _differing(ones) for name, ones in alike.items()}
    lone = {name: _one_group(ones) for name, ones in alike.items()}
    labels = [
        f"{name} {_worded(one, keys[name], lone[name])}".rstrip() for name, one in zip(names, settings, strict=True)
    ]
    return _numbered(labels, list(zip(names, settings, strict=True)))


def _differing(settings: Sequence[dict[str, Any]]) -> list[str]:
    """Settings in which some differ; parts' names stand for what goes with them in all parts of that name."""
    keys = list(dict.fromkeys(key for one in settings for key in one))
    differing = [key for key in keys if _vary(settings, key)]
    renamed = [key for key in differing if key.endswith(".name")]
    kept = []
    for key in differing:
        owners = [name for name in renamed if key.startswith(name.removesuffix("name"))]
        alike: dict[str, list[dict[str, Any]]] = {}  # by the names of the parts that the setting belongs to
        for one in settings:
            alike.setdefault(json.dumps([one.get(name) for name in owners]), []).append(one)
        if key in renamed or any(_vary(ones, key) for ones in alike.values()):
            kept.append(key)
    return kept


def _vary(settings: Sequence[dict[str, Any]], key: str) -> bool:
    return len({json.dumps(one[key], sort_keys=True) if key in one else None for one in settings}) > 1


def _numbered(labels: Sequence[str], identities: Sequence[Any]) -> list[str]:
    """Labels, with a number where different ones would read the same, as the word 1 and the number 1 do."""
    seen: dict[str, list[str]] = {}
    numbered = []
    for label, identity in zip(labels, identities, strict=True):
        alike, key = seen.setdefault(label, []), json.dumps(identity, sort_keys=True)
        if key not in alike:
            alike.append(key)
        numbered.append(f"{label} #{alike.index(key) + 1}" if alike.index(key) else label)
    return numbered


def _one_group(settings: Sequence[dict[str, Any]]) -> bool:
    return len({key.split(".")[1] for one in settings for key in one if key.startswith("groups.")}) == 1


def _worded(settings: dict[str, Any], keys: Sequence[str], one_group: bool) -> str:
    """Settings as overrides are written, without what goes without saying: whose, where there is one group."""
    words = []
    for key in keys:
        if key == ARGUMENT:
            words.append(settings[key])
        elif key in settings:
            parts = key.split(".")
            hidden = {"groups": 2 if one_group else 1, "world": 1}.get(parts[0], 0)
            value, compact = settings[key], json.dumps(settings[key], separators=(",", ":"))
            words.append(f"{'.'.join(parts[hidden:])}={value if isinstance(value, str) else compact}")
    return " ".join(words)
