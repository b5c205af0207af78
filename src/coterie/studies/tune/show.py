"""Shows trials and the result of a study: as text of 80 columns, and as JSON."""

from __future__ import annotations

import dataclasses
import textwrap
from typing import Any

from coterie.core.search_space import Range, written
from coterie.studies.columns import WIDTH
from coterie.studies.tune.population import Population, PopulationResult
from coterie.studies.tune.trial import Trial
from coterie.studies.tune.tune import Tuned

HEAD = f"{'trial':>5}  {'outcome':8}  {'score':>8}  settings"


def progress(tuned: Tuned, trial: Trial | None) -> str:
    """A line for an ended trial, or, without one, for a study that is opened."""
    if trial is not None:
        return trial_line(trial, tuned.space)
    done, planned = len(tuned.trials), tuned.plan.trials
    if done < planned:
        opened = f"{tuned.experiment}: {len(tuned.space)} settings to search, {done} of {planned} trials done"
        return f"{opened}\n{HEAD}"
    return f"{tuned.files.study} has its {done} trials; more: --trials N"


def trial_line(trial: Trial, space: dict[str, Range]) -> str:
    """One trial in 80 columns."""
    if trial.outcome == "failed":
        detail = trial.reason
    else:
        names = short_names(list(space))
        detail = " ".join(f"{names[path]}={short_value(value)}" for path, value in trial.values.items())
    score = f"{'':>8}" if trial.score is None else f"{trial.score:8.2f}"
    text = f"{trial.number:5d}  {trial.outcome:8}  {score}  {detail}"
    return text if len(text) <= 80 else f"{text[:79]}…"


def short_names(paths: list[str]) -> dict[str, str]:
    """The last component of every path; with its group, or in full, where several are equal."""

    def forms(path: str) -> tuple[str, str, str]:
        parts = path.split(".")
        return parts[-1], f"{parts[1]}.{parts[-1]}", path

    every = [forms(path) for path in paths]
    level = [next(i for i in range(3) if [f[i] for f in every].count(own[i]) == 1) for own in every]
    return {path: own[i] for path, own, i in zip(paths, every, level, strict=True)}


def short_value(value: Any) -> str:
    """A value in few characters."""
    return f"{value:.3g}" if isinstance(value, float) else written(value).replace(" ", "").strip('"')


def conclusion(tuned: Tuned) -> list[str]:
    """The result of a study as lines of text."""
    counts = {state: sum(t.outcome == state for t in tuned.trials) for state in ("complete", "pruned", "failed")}
    outcomes = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    text = [f"{len(tuned.trials)} trials: {outcomes or 'none has ended'}"]
    rows = {"best": tuned.best, "own settings": tuned.own}
    for name, trial in rows.items():
        if trial is not None and trial.score is not None:
            held_out = "" if trial.held_out is None else f"  held-out seeds {trial.held_out:9.2f}"
            text.append(f"  {name:13} trial {trial.number:4d}  score {trial.score:9.2f}{held_out}")
        elif trial is not None:
            text.append(f"  {name:13} trial {trial.number:4d}  failed: {trial.reason}")
    if tuned.importance:
        names = short_names(list(tuned.space))
        largest = list(tuned.importance.items())[:4]
        text.append("  importance    " + ", ".join(f"{names[path]} {share:.0%}" for path, share in largest))
    if tuned.best is not None:
        text += [f"best settings  {tuned.files.best}", f"train them     coterie train {tuned.files.best}"]
    if tuned.interrupted:
        text.append(f"stopped; continue with: {tuned.plan.command()}")
    return text


def round_line(population: Population, rounds: int) -> str:
    """One round of a population in 80 columns."""
    scores = sorted(member.score for member in population.members if member.score is not None)
    head = f"round {population.round + 1:3d} of {rounds}"
    if not scores:
        return f"{head}: {len(population.members)} members"
    replaced = sum(member.parent is not None for member in population.members)  # by copies, before this round
    failed = sum(bool(member.failed) for member in population.members)
    tail = f"  failed {failed}" if failed else ""
    return f"{head}  best {scores[-1]:9.2f}  median {scores[len(scores) // 2]:9.2f}  replaced {replaced}{tail}"


def population_conclusion(found: PopulationResult) -> list[str]:
    """The result of a population as lines of text."""
    best = found.population.best
    if found.interrupted or best.score is None:
        return [f"stopped; continue with: {found.plan.command()}"]
    names = short_names(list(found.space))
    values = " ".join(f"{names[path]}={short_value(value)}" for path, value in best.values.items())
    held_out = "" if best.held_out is None else f"  held-out seeds {best.held_out:9.2f}"
    return [
        f"  best          member {best.number:3d}  score {best.score:9.2f}{held_out}",
        *textwrap.wrap(values, WIDTH, initial_indent="  last settings ", subsequent_indent=" " * 16),
        f"run            {found.files.trial(best.number)}",
        f"schedule       {found.files.best.with_suffix('.json')}",
    ]


def to_dict(tuned: Tuned) -> dict[str, Any]:
    """The result of a study as JSON."""
    best, own = tuned.best, tuned.own
    return {
        "experiment": tuned.plan.experiment,
        "study": str(tuned.files.study),
        "trials": [dataclasses.asdict(trial) for trial in tuned.trials],
        "best": None if best is None else dataclasses.asdict(best),
        "own": None if own is None else dataclasses.asdict(own),
        "importance": tuned.importance,
        "best_file": None if best is None else str(tuned.files.best),
        "finished": not tuned.interrupted,
    }
