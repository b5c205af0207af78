"""Tuning: many short trainings of one experiment with other settings, and the best ones as a YAML file.

A trial is a training by the loop that `coterie train` runs; its score is the best validation score after step 0,
averaged over `seeds` trainings. Held-out evaluation seeds choose nothing. Who proposes and who prunes is in `study.py`,
what may be tried stands beside the settings (`search_space.py`).
"""

from __future__ import annotations

import dataclasses
import fnmatch
import os
import shlex
import shutil
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from coterie.config import schema as configs
from coterie.config.schema import Config, ConfigError, Part
from coterie.core.search_space import Range, declared, written
from coterie.core.types import CoterieError
from coterie.studies.report import write_report
from coterie.studies.tune.optuna import Pruner, Study, StudySpec, Trial, leaves, open_study
from coterie.training import loop, start
from coterie.training.run import Run, write_text


@dataclass(frozen=True)
class Plan:
    """What to tune and for how long."""

    experiment: str  # a name, or a file
    overrides: tuple[str, ...] = ()  # key=value; what they fix is not searched
    trials: int = 20  # in the whole study, counting those of earlier commands
    study: str | None = None  # its file; None: runs/tune/EXPERIMENT.db
    only: tuple[str, ...] = ()  # patterns of paths to search; none: all that is declared
    seeds: int = 1  # trainings per trial
    pruner: Pruner = "median"

    def command(self) -> str:
        """The command line that does this."""
        words = ["coterie", "tune", self.experiment, *self.overrides, "--trials", str(self.trials)]
        words += ["--study", self.study] if self.study else []
        words += [word for pattern in self.only for word in ("--only", pattern)]
        words += ["--seeds", str(self.seeds)] if self.seeds > 1 else []
        words += ["--pruner", self.pruner] if self.pruner != "median" else []
        return shlex.join(words)


@dataclass(frozen=True)
class Files:
    """Where everything of a study lies: beside its database."""

    study: Path

    @property
    def best(self) -> Path:
        return self._beside("-best.yaml")

    @property
    def trials(self) -> Path:
        return self._beside("-trials")

    def trial(self, number: int) -> Path:
        return self.trials / f"{number:04d}"

    def _beside(self, ending: str) -> Path:
        return self.study.with_name(self.study.name.removesuffix(".db") + ending)  # pole.v1 and pole.v2 are two


@dataclass(frozen=True)
class Tuned:
    """What a study has come to."""

    plan: Plan
    files: Files
    space: dict[str, Range]
    trials: list[Trial]  # those that have ended
    importance: dict[str, float] = field(default_factory=dict)  # path -> share; {} for few trials
    interrupted: bool = False  # Ctrl-C came before the last trial

    @property
    def best(self) -> Trial | None:
        """The complete trial with the highest score, the earliest among equals."""
        complete = [trial for trial in self.trials if trial.score is not None and trial.outcome == "complete"]
        return max(complete, key=lambda trial: (trial.score, -trial.number), default=None)

    @property
    def own(self) -> Trial | None:
        """The trial of the experiment's own settings."""
        return self.trials[0] if self.trials else None


def tune(plan: Plan, say: Callable[[str], None] = print) -> Tuned:
    """Go on with the plan's study until it has all its trials, or until Ctrl-C."""
    base = start.check(plan.experiment, list(plan.overrides))
    files = Files(Path(plan.study) if plan.study else Path("runs") / "tune" / f"{base.experiment}.db")
    if files.best.resolve() == configs.find(plan.experiment).resolve():
        raise ConfigError(f"the best settings would be written over '{plan.experiment}'; choose another --study")
    own, space = searched(base, plan)
    horizon = base.train.iterations * base.train.iteration_steps
    terms = StudySpec(shared_settings(base), space, own, plan.seeds, plan.pruner, horizon)
    with (
        open_study(files.study, terms, files.trials / ".lock", plan.command()) as study,
        loop.interruptible() as interrupted,
    ):
        done = len(ended(study))
        if done < plan.trials:
            say(f"{base.experiment}: {len(space)} settings to search, {done} of {plan.trials} trials done")
        else:
            say(f"{files.study} has its {done} trials; more: --trials N")
        while len(ended(study)) < plan.trials and not interrupted.is_set():
            trial, asked = attempt(study, study.begin(), plan, files)
            if trial is not None:
                say(line(trial, space))
                keep_best(Tuned(plan, files, space, ended(study)), trial)
            if asked:
                interrupted.set()
        stopped = interrupted.is_set() and len(ended(study)) < plan.trials
        tuned = Tuned(plan, files, space, ended(study), study.importance(), stopped)
        keep_best(tuned, tuned.best)
    if tuned.best is None and not stopped:
        raise CoterieError(f"all {len(tuned.trials)} trials failed; the first one: {tuned.trials[0].reason}")
    return tuned


def ended(study: Study) -> list[Trial]:
    """The trials that have come to something; one that was cut off has not."""
    return [trial for trial in study.trials() if trial.outcome != "running"]


# What is searched ---------------------------------------------------------------------------------------


def searched(base: Config, plan: Plan) -> tuple[dict[str, Any], dict[str, Range]]:
    """Own values and ranges, by path: all that learning groups declare, less what is fixed or left out."""
    own: dict[str, Any] = {}
    space: dict[str, Range] = {}
    fixed = leaves(configs.parse_overrides(list(plan.overrides)))
    for name, group in base.groups.items():
        parts = {"learner": group.learner, "policy": group.policy, "preference": group.preference}
        for kind, part in parts.items():
            if group.learner is None or not isinstance(part, Part):  # frozen, or seated from an earlier run
                continue
            try:
                for path, known, value in declared(part.settings, f"groups.{name}.{kind}"):
                    if path not in fixed:
                        own[path], space[path] = value, known
            except ValueError as error:
                raise ConfigError(str(error)) from None
    if not space:
        raise ConfigError("nothing to search: no learning group declares a search space that is not overridden")
    for pattern in plan.only:
        if not fnmatch.filter(space, pattern):
            raise ConfigError(f"--only {pattern}: no searched setting matches{only_hint(pattern, space)}")
    chosen = [path for path in space if not plan.only or any(fnmatch.fnmatchcase(path, p) for p in plan.only)]
    return {path: own[path] for path in chosen}, {path: space[path] for path in chosen}


def only_hint(pattern: str, space: dict[str, Range]) -> str:
    """What might have been meant, or all that there is, in 80 columns."""
    endings = list(dict.fromkeys(f"*.{path.rpartition('.')[2]}" for path in space))
    every = textwrap.fill(", ".join(endings), 80, initial_indent="  ", subsequent_indent="  ")
    return configs.suggest(pattern, [*endings, *space]) or f"; there are\n{every}"


def shared_settings(base: Config) -> dict[str, Any]:
    """What may not change within a study: path -> value, as JSON."""
    every = leaves(configs.to_dict(base))
    return {path: value for path, value in every.items() if path not in configs.WITHOUT_EFFECT}


def with_values(plan: Plan, values: dict[str, Any]) -> Config:
    """The experiment with the plan's overrides and a trial's values."""
    path = configs.find(plan.experiment)
    layer = configs.merge(configs.read(path), configs.parse_overrides(list(plan.overrides)))
    for at, value in values.items():
        for name in reversed(at.split(".")):
            value = {name: value}
        layer = configs.merge(layer, value)
    return configs.resolve(layer, configs.name_of(path))


# One trial ----------------------------------------------------------------------------------------------


class PruningCallback:
    """Tells the study how one training of a trial does, and remembers its best score."""

    def __init__(self, study: Study, earlier: list[float], offset: int) -> None:
        self.study, self.earlier, self.offset = study, earlier, offset
        self.best, self.pruned = -np.inf, False

    def watch(self, env_steps: int, score: float) -> bool:
        """True when the trial is to end here."""
        self.best = max(self.best, score)
        so_far = float(np.mean([*self.earlier, self.best]))
        self.pruned = self.study.report(self.offset + env_steps, so_far)
        return self.pruned


def attempt(study: Study, trial: Trial, plan: Plan, files: Files) -> tuple[Trial | None, bool]:
    """Train with a trial's values; the ended trial, or None if Ctrl-C came first, and whether it was pressed."""
    shutil.rmtree(files.trial(trial.number), ignore_errors=True)  # of a trial that was cut off: it starts anew
    scores: list[float] = []
    held_out: list[float] = []
    try:
        settings = with_values(plan, trial.values)
        for turn in range(plan.seeds):
            once = for_trial(settings, settings.seed + turn)
            gauge = PruningCallback(study, scores, turn * study.terms.horizon)
            run = Run.create(files.trial(trial.number) / f"seed{once.seed}", once)
            end = loop.train(once, run, quiet=True, watch=gauge.watch, report=write_report)
            last = turn + 1 == plan.seeds or gauge.pruned
            if not end["finished"] or (end["interrupted"] and not last):
                return None, True
            if gauge.pruned:
                return study.prune(), end["interrupted"]
            scores.append(gauge.best)
            held_out.append(judged(end, settings))
    except CoterieError as error:
        return study.fail(str(error)), False
    return study.complete(float(np.mean(scores)), float(np.mean(held_out))), end["interrupted"]


def for_trial(settings: Config, seed: int) -> Config:
    """The same experiment, leaving little behind."""
    once = settings.train.iterations
    train = dataclasses.replace(
        settings.train, video=False, tensorboard=False, keep_checkpoints=1, checkpoint_every=once
    )
    return dataclasses.replace(settings, seed=seed, train=train)


def judged(summary: dict[str, Any], settings: Config) -> float:
    """The score on held-out seeds, as validation counts it."""
    learning = [name for name, group in settings.groups.items() if group.learner is not None]
    return float(np.mean([summary["evaluation"]["groups"][name]["return_mean"] for name in learning]))


# What is kept -------------------------------------------------------------------------------------------


def keep_best(tuned: Tuned, latest: Trial | None) -> None:
    """Drop the checkpoints of all trials but the best, and write its settings if it is the latest."""
    for trial in tuned.trials:
        if trial != tuned.best:
            for run in tuned.files.trial(trial.number).glob("seed*"):
                shutil.rmtree(run / "checkpoints", ignore_errors=True)
    if tuned.best is not None and tuned.best == latest:
        write_best(tuned.best, tuned)


def write_best(best: Trial, tuned: Tuned) -> None:
    """The best settings as an experiment that extends the tuned one and states differences only."""
    plan, files = tuned.plan, tuned.files
    found, home = configs.find(plan.experiment).resolve(), configs.EXPERIMENTS.resolve()
    named = home in found.parents  # one that comes with Coterie
    parent = (
        str(found.relative_to(home).with_suffix("")) if named else os.path.relpath(found, files.best.parent.resolve())
    )
    changed = differences(
        configs.to_dict(configs.load(plan.experiment)), configs.to_dict(with_values(plan, best.values))
    )
    title = f"# Score {best.score:.6g} in trial {best.number} of {len(tuned.trials)}: {plan.command()}\n"
    text = yaml.safe_dump({"extends": parent} | changed, sort_keys=False, allow_unicode=True)
    write_text(files.best, title + text)


def differences(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The settings of `new` that `old` does not have; another part by name is written out whole."""
    found: dict[str, Any] = {}
    for name, value in new.items():
        before = old.get(name)
        if isinstance(before, dict) and isinstance(value, dict) and _alike(before, value):
            changed = differences(before, value)
            found |= {name: changed} if changed else {}
        elif value != before:
            found[name] = value
    return found


def _alike(old: dict[str, Any], new: dict[str, Any]) -> bool:
    return old.keys() == new.keys() and old.get("name") == new.get("name")


# What is said -------------------------------------------------------------------------------------------


def line(trial: Trial, space: dict[str, Range]) -> str:
    """One trial in 80 columns."""
    if trial.outcome == "failed":
        words = trial.reason
    else:
        names = short_names(list(space))
        words = " ".join(f"{names[path]}={shown(value)}" for path, value in trial.values.items())
    score = f"{'':>9}" if trial.score is None else f"{trial.score:9.2f}"
    text = f"{trial.number:4d}  {trial.outcome:8}  {score}  {words}"
    return text if len(text) <= 80 else f"{text[:79]}…"


def short_names(paths: list[str]) -> dict[str, str]:
    """The last word of every path; with its group, or in full, where several have the same."""

    def forms(path: str) -> tuple[str, str, str]:
        words = path.split(".")
        return words[-1], f"{words[1]}.{words[-1]}", path

    every = [forms(path) for path in paths]
    level = [next(i for i in range(3) if [f[i] for f in every].count(own[i]) == 1) for own in every]
    return {path: own[i] for path, own, i in zip(paths, every, level, strict=True)}


def shown(value: Any) -> str:
    """A value, short."""
    return f"{value:.3g}" if isinstance(value, float) else written(value).replace(" ", "").strip('"')


def conclusion(tuned: Tuned) -> list[str]:
    """What a study has come to, for people."""
    counts = {state: sum(t.outcome == state for t in tuned.trials) for state in ("complete", "pruned", "failed")}
    said = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    text = [f"{len(tuned.trials)} trials: {said or 'none has ended'}"]
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
        text.append(f"stopped; go on with: {tuned.plan.command()}")
    return text


def to_dict(tuned: Tuned) -> dict[str, Any]:
    """What a study has come to, as JSON."""
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
