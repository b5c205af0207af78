"""Reads finished runs and groups them into variants.

A *variant* is a set of runs that differ only in seed and world. A *world* is a world's name with its settings; scores
of different worlds are on different scales, which `compare.py` normalises. Settings that cannot change a result (number
of processes, what is saved) do not distinguish variants.
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
from coterie.runs import index as run_index
from coterie.runs.run import Run, number

ARGUMENT = "argument"  # in place of a setting: every argument of the command is a variant
NOT_COMPARED = configs.WITHOUT_EFFECT | {"schema", "experiment", "seed"}


@dataclass(frozen=True)
class Curve:
    """Evaluations during training, on validation episodes."""

    steps: Array  # [T] environment steps
    wall: Array  # [T] seconds since step 0 was evaluated
    value: Array  # [T] mean return


@dataclass(frozen=True)
class RunResult:
    """The data of one finished run that a comparison needs."""

    path: Path
    argument: str  # of the command, under which it was found
    experiment: str
    seed: int
    settings: dict[str, Any]  # path -> value, those that can change a result
    score: float  # of the chosen checkpoint on held-out episodes
    last: float  # of the last policies on the same episodes
    baselines: dict[str, float]  # random play, step 0 and, where there is one, the expert, on the same episodes
    curve: Curve
    env_steps: int
    wall_s: float


@dataclass(frozen=True)
class Variant:
    """Runs of one setting."""

    label: str
    runs: dict[str, list[RunResult]]  # world -> its runs


# Reading ----------------------------------------------------------------------------------------------


def find_runs(words: Sequence[str]) -> list[tuple[str, Run]]:
    """The runs that arguments name, each once: a run's directory, or a directory with runs below it."""
    found: dict[Path, tuple[str, Run]] = {}
    for word in words:
        path = Path(word)
        if _is_of_a_report(path) and len(words) > 1:
            continue
        if not path.is_dir():
            raise CoterieError(f"'{word}' is not a directory; name runs, or directories with runs below them")
        inside = run_index.find(path)
        if not inside:
            raise CoterieError(f"'{word}' holds no run: it has no config.yaml in it or below")
        for run in inside:
            found.setdefault(run.path.resolve(), (word, run))
    if not found:
        raise CoterieError(f"{' and '.join(map(repr, words))} hold no run")
    return list(found.values())


def _is_of_a_report(path: Path) -> bool:
    """Whether an earlier report wrote this: `runs/*` names its page and pictures, too."""
    stem = path.name.removesuffix("-figures") if path.is_dir() else path.stem
    page, pictures = path.parent / f"{stem}.html", path.parent / f"{stem}-figures"
    return path in (page, pictures) and page.is_file() and pictures.is_dir()


def read(
    words: Sequence[str], scored: str = "best", group: str | None = None, skip_unfinished: bool = False
) -> tuple[list[RunResult], list[Path]]:
    """Read all runs that arguments name; also returns those skipped because they have not finished."""
    if scored not in ("best", "last"):
        raise configs.ConfigError(f"--score: expected best or last, got '{scored}'")
    found = find_runs(words)
    skipped = [run.path for _, run in found if skip_unfinished and run.summary() is None]
    if len(skipped) == len(found):
        raise CoterieError("none of these runs has finished")
    return [read_run(word, run, scored, group) for word, run in found if run.path not in skipped], skipped


def read_run(argument: str, run: Run, scored: str, group: str | None) -> RunResult:
    """Read a finished run; its score is the mean return of the learning groups, or of one group."""
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

    baselines = {"random": score("baselines", "random"), "step 0": score("step_0")}  # which every run has
    return RunResult(
        run.path,
        argument,
        settings.experiment,
        settings.seed,
        compared_settings(settings),
        score("evaluation" if scored == "best" else "last"),
        score("last"),
        baselines | {name: score("baselines", name) for name in summary["baselines"]},
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
    steps, wall, returns = np.array(points, float).T
    return Curve(steps, wall - wall[0] if steps[0] == 0 else wall, returns)


def compared_settings(config: configs.Config) -> dict[str, Any]:
    """The settings that distinguish runs, as path -> value: all that can change a result, without the seed."""
    return {k: v for k, v in flatten(configs.to_dict(config)).items() if k not in NOT_COMPARED}


def flatten(nested: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Nested settings as path -> value."""
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        flat |= flatten(value, f"{path}{name}.") if isinstance(value, dict) else {f"{path}{name}": value}
    return flat


# Grouping ---------------------------------------------------------------------------------------------


def gather(results: Sequence[RunResult], by: Sequence[str] = ()) -> list[Variant]:
    """Group runs into variants, in order of appearance: by all settings outside the world, or by the given ones."""
    known = {ARGUMENT, *(name for one in results for name in one.settings)}
    for name in by:
        if name not in known:
            hint = configs.suggest(name, known) or "; 'coterie config show' lists settings"
            raise configs.ConfigError(f"--by {name}: none of these runs has this setting{hint}")
    worlds = _worlds(results, by)
    found: dict[str, list[tuple[str, RunResult]]] = {}
    for result, world in zip(results, worlds, strict=True):
        found.setdefault(json.dumps(_identity(result, by), sort_keys=True), []).append((world, result))
    _refuse_duplicates(found.values())
    members = [[one for _, one in group] for group in found.values()]
    names = ["+".join(dict.fromkeys(one.experiment for one in group)) for group in members]
    identities = [_identity(group[0], by) for group in members]
    one_group = _one_group([one.settings for one in results])
    labels = (
        _numbered([_as_overrides(one, by, one_group) for one in identities], identities)
        if by
        else make_labels(names, identities)
    )
    variants = []
    for label, group in zip(labels, found.values(), strict=True):
        runs: dict[str, list[RunResult]] = {world: [] for world in dict.fromkeys(worlds) if world in dict(group)}
        for world, result in group:
            runs[world].append(result)
        variants.append(Variant(label, runs))
    _refuse_gaps(variants)
    return variants


def _identity(result: RunResult, by: Sequence[str]) -> dict[str, Any]:
    """The settings that decide to which variant a run belongs."""
    if by:
        return {n: result.argument if n == ARGUMENT else result.settings.get(n) for n in by}
    return {name: value for name, value in result.settings.items() if not name.startswith("world.")}


def _worlds(results: Sequence[RunResult], by: Sequence[str]) -> list[str]:
    """Every run's world by name, with the settings in which worlds of one name differ."""
    settings = [
        {k: v for k, v in one.settings.items() if k.startswith("world.") and k not in ("world.name", *by)}
        for one in results
    ]
    return make_labels([str(one.settings["world.name"]) for one in results], settings)


def _refuse_duplicates(groups: Any) -> None:
    """Refuse two runs of the same config and seed: counting both would narrow the intervals."""
    for group in groups:
        seen: dict[str, Path] = {}
        for _, one in group:
            key = json.dumps([one.seed, one.settings], sort_keys=True)
            if key in seen:
                raise CoterieError(f"'{seen[key]}' and '{one.path}' have the same settings and seed; name one of them")
            seen[key] = one.path


def _refuse_gaps(variants: Sequence[Variant]) -> None:
    """Refuse variants without runs in some of the worlds: their means over worlds would not be comparable."""
    played = {world: runs[0] for one in variants for world, runs in one.runs.items()}
    for one in variants:
        for world, run in played.items():
            if world not in one.runs:
                other = next(iter(one.runs.values()))[0]
                raise CoterieError(
                    f"'{run.path}' plays world '{world}', where the variant of '{other.path}' has no run; only "
                    "variants in the same worlds can be compared (--by SETTING sets what distinguishes variants)"
                )


def make_labels(names: Sequence[str], settings: Sequence[dict[str, Any]]) -> list[str]:
    """Labels: names, with the settings in which those of one name differ; different settings get different labels."""
    alike: dict[str, list[dict[str, Any]]] = {}
    for name, one in zip(names, settings, strict=True):
        alike.setdefault(name, []).append(one)
    keys = {name: _differing(ones) for name, ones in alike.items()}
    single = {name: _one_group(ones) for name, ones in alike.items()}
    labels = [
        f"{name} {_as_overrides(one, keys[name], single[name])}".rstrip()
        for name, one in zip(names, settings, strict=True)
    ]
    return _numbered(labels, list(zip(names, settings, strict=True)))


def _differing(settings: Sequence[dict[str, Any]]) -> list[str]:
    """Settings that differ; where a part's name differs, only those of its settings that vary among equal names."""
    keys = list(dict.fromkeys(key for one in settings for key in one))
    differing = [key for key in keys if _vary(settings, key)]
    renamed = [key for key in differing if key.endswith(".name")]
    kept = []
    for key in differing:
        part_names = [name for name in renamed if key.startswith(name.removesuffix("name"))]
        alike: dict[str, list[dict[str, Any]]] = {}  # by the names of the parts that the setting belongs to
        for one in settings:
            alike.setdefault(json.dumps([one.get(name) for name in part_names]), []).append(one)
        if key in renamed or any(_vary(ones, key) for ones in alike.values()):
            kept.append(key)
    return kept


def _vary(settings: Sequence[dict[str, Any]], key: str) -> bool:
    return len({json.dumps(one[key], sort_keys=True) if key in one else None for one in settings}) > 1


def _numbered(labels: Sequence[str], identities: Sequence[Any]) -> list[str]:
    """Labels, with a number where different settings read the same, as the word 1 and the number 1 do."""
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


def _as_overrides(settings: dict[str, Any], keys: Sequence[str], one_group: bool) -> str:
    """Settings written as overrides, without `groups.NAME.` where there is one group."""
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
