"""Tuning: trains an experiment with many different settings and writes the best ones as a YAML file.

A trial is a training by the loop of `coterie train`; its score is the best validation score after step 0, or the mean
of all, averaged over `seeds` trainings. Held-out evaluation seeds are not used for any choice. Proposals and pruning
are in `optuna.py`, text and JSON in `show.py`; settings classes declare their search spaces (`core/search_space.py`).
"""

from __future__ import annotations

import dataclasses
import fnmatch
import importlib.util
import os
import shlex
import shutil
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import yaml

from coterie.config import schema as configs
from coterie.config.schema import Config, ConfigError, Part, leaves
from coterie.core.search_space import Range, declared
from coterie.core.types import CoterieError
from coterie.nn.threads import fixed_threads
from coterie.runs.interrupt import Interrupted, Interruption, interruptible
from coterie.runs.run import Run, write_text
from coterie.studies.report.report import write_report
from coterie.studies.tune.trial import Outcome, Pruner, Result, Score, StudySpec, Trial
from coterie.training import build, loop, start
from coterie.training.best import constants
from coterie.training.evaluate import evaluate
from coterie.training.jobs import demand_jobs, run_parallel

if TYPE_CHECKING:
    from coterie.studies.tune.optuna import Study

TRIED_EPISODES = 32  # of untrained policies, which show whether a game has a constant sum


@dataclass(frozen=True)
class Plan:
    """Settings of a study: the experiment, the ranges, the number of trials."""

    experiment: str  # a name, or a file
    overrides: tuple[str, ...] = ()  # key=value; these settings are not searched
    trials: int = 20  # in the whole study, counting those of earlier commands
    study: str | None = None  # its file; None: runs/tune/EXPERIMENT.db
    only: tuple[str, ...] = ()  # patterns of paths to search; none: all that is declared
    seeds: int = 1  # trainings per trial
    pruner: Pruner = "median"
    jobs: int = 1  # trials to train at a time
    batch: int | None = None  # trials proposed together; None: as many as jobs
    sampler: Literal["tpe", "pbt"] = "tpe"  # trials one after the other, or a population (`population.py`)
    rounds: int = 10  # of a population
    # of a training: its best validation, or the mean of all, which is higher the sooner it learns
    score: Score = "best"

    @property
    def together(self) -> int:
        """Trials proposed together."""
        return self.jobs if self.batch is None else self.batch

    def command(self) -> str:
        """The equivalent command line."""
        words = ["coterie", "tune", self.experiment, *self.overrides, "--trials", str(self.trials)]
        words += ["--study", self.study] if self.study else []
        words += [word for pattern in self.only for word in ("--only", pattern)]
        words += ["--seeds", str(self.seeds)] if self.seeds > 1 else []
        words += ["--pruner", self.pruner] if self.pruner != "median" else []
        words += ["--score", self.score] if self.score != "best" else []
        words += ["--sampler", "pbt", "--rounds", str(self.rounds)] if self.sampler == "pbt" else []
        words += ["--batch", str(self.together)] if self.together > 1 and self.sampler == "tpe" else []
        words += ["--jobs", str(self.jobs)] if self.jobs > 1 else []
        return shlex.join(words)


@dataclass(frozen=True)
class Files:
    """The files of a study, next to its database."""

    study: Path

    @property
    def best(self) -> Path:
        return self._next_to("-best.yaml")

    @property
    def trials(self) -> Path:
        return self._next_to("-trials")

    def trial(self, number: int) -> Path:
        return self.trials / f"{number:04d}"

    def _next_to(self, ending: str) -> Path:
        stem = self.study.name.removesuffix(".db").removesuffix(
            ".json"
        )  # not Path.stem: pole.v1 and pole.v2 are different studies
        return self.study.with_name(stem + ending)


@dataclass(frozen=True)
class Tuned:
    """The result of a study so far."""

    plan: Plan
    experiment: str  # its name
    files: Files
    space: dict[str, Range]
    trials: list[Trial]  # that have ended
    importance: dict[str, float] = field(default_factory=dict)  # path -> share; {} for few trials
    interrupted: bool = False  # by Ctrl-C, before the last trial

    @property
    def best(self) -> Trial | None:
        """The complete trial with the highest score, the earliest among equals."""
        complete = [trial for trial in self.trials if trial.score is not None and trial.outcome == "complete"]
        return max(complete, key=lambda trial: (trial.score, -trial.number), default=None)

    @property
    def own(self) -> Trial | None:
        """The trial of the experiment's own settings."""
        return self.trials[0] if self.trials else None


Progress = Callable[[Tuned, Trial | None], None]  # called when the study is opened (None), and after every trial


def tune(plan: Plan, progress: Progress = lambda tuned, trial: None) -> Tuned:
    """Run trials until the study has as many as planned, or until Ctrl-C."""
    if importlib.util.find_spec("optuna") is None:
        raise CoterieError(
            "'coterie tune' needs Optuna: pip install 'coterie[tune]'; a population (--sampler pbt) does without"
        )
    from coterie.studies.tune.optuna import open_study

    demand_jobs(plan.jobs)
    if plan.together < plan.jobs:
        raise ConfigError(
            f"--jobs: {plan.jobs} processes for {plan.together} trials that are proposed together; "
            f"lower --jobs, or propose more with --batch {plan.jobs}"
        )
    base = start.check(plan.experiment, list(plan.overrides))
    files = Files(Path(plan.study) if plan.study else Path("runs") / "tune" / f"{base.experiment}.db")
    if files.best.resolve() == configs.find(plan.experiment).resolve():
        raise ConfigError(f"--study: the best settings would overwrite '{plan.experiment}'; choose another file")
    own, space = searched(base, plan)
    refuse_constant_sum(base)
    horizon = base.train.iterations * base.train.iteration_steps
    spec = StudySpec(shared_settings(base), space, own, plan.seeds, plan.pruner, horizon, plan.together, plan.score)
    with (
        open_study(files.study, spec, files.trials, plan.command()) as study,
        interruptible() as interrupted,
    ):
        tuned = Tuned(plan, base.experiment, files, space, ended(study))
        progress(tuned, None)
        while len(tuned.trials) < plan.trials and not interrupted.is_set():
            for trial in run_next(study, plan, files, interrupted):
                tuned = dataclasses.replace(tuned, trials=ended(study))
                progress(tuned, trial)
                keep_best(tuned, trial)
        stopped = interrupted.is_set() and len(tuned.trials) < plan.trials
        tuned = dataclasses.replace(tuned, importance=study.importance(), interrupted=stopped)
        keep_best(tuned, tuned.best)
    if tuned.best is None and not stopped:
        raise CoterieError(f"all {len(tuned.trials)} trials failed; the first one: {tuned.trials[0].reason}")
    return tuned


def run_next(study: Study, plan: Plan, files: Files, interrupted: Interruption) -> Iterator[Trial]:
    """Train the next trial, or the next batch of them; yields those that have ended."""
    if study.spec.batch == 1:
        trial, interrupt = run_trial(study, study.begin(), plan, files)
        if interrupt:
            interrupted.set()
        if trial is not None:
            yield trial
        return
    waiting = [trial for trial in study.begin_batch() if trial.number < plan.trials]
    tasks = [(study.spec, study.earlier(trial.number), trial, plan, files) for trial in waiting]
    if plan.jobs == 1:
        for trial, task in zip(waiting, tasks, strict=True):
            result = run_alone(*task)
            if result.outcome == "running":
                interrupted.set()
                return
            yield study.end(trial.number, result)
            if interrupted.is_set():
                return
        return
    for index, result in run_parallel(run_alone, tasks, plan.jobs, interrupted):
        if result.outcome != "running":
            yield study.end(waiting[index].number, result)


def run_alone(spec: StudySpec, earlier: list[Any], trial: Trial, plan: Plan, files: Files) -> Result:
    """Train one trial of a batch, without the study's file: in this process or in another one."""
    from coterie.studies.tune.optuna import Judge

    judge = Judge(spec, earlier)
    shutil.rmtree(files.trial(trial.number), ignore_errors=True)  # of an interrupted trial, which starts anew
    try:
        training = train_seeds(trial, plan, files, judge.report, spec.horizon)
    except CoterieError as error:
        return Result("failed", reason=str(error), curve=judge.curve, attributes=judge.attributes())
    if not training.finished:
        return Result("running")
    outcome: Outcome = "pruned" if training.pruned else "complete"
    return Result(outcome, training.score, training.held_out, "", judge.curve, judge.attributes())


def ended(study: Study) -> list[Trial]:
    """The trials that are complete, pruned or failed."""
    return [trial for trial in study.trials() if trial.outcome != "running"]


def refuse_constant_sum(base: Config) -> None:
    """Refuse a game in which the learning groups win what each other loses: their mean return is always the same."""
    learning = [name for name, group in base.groups.items() if group.learner is not None]
    world = build.build_evaluation_world(base.world, TRIED_EPISODES)
    if sum(len(agent_type.agents) for agent_type in world.agent_types.values()) == 1:
        return
    with fixed_threads(base.train.threads):
        actors = [group.actor for group in build.build_groups(base, world)]
        result = evaluate(world, actors, TRIED_EPISODES, base.seed, greedy=False)
    returns = np.concatenate([result.returns[name] for name in learning], axis=1)
    if np.ptp(returns, axis=0).any() and any(constant is not None for constant in constants(result, learning)):
        raise ConfigError(
            f"groups: {', '.join(learning)} win what each other loses, so their mean return is the same with any "
            "settings and cannot be tuned. Let one group learn against fixed players (groups.NAME.policy.run=RUN, or a "
            "policy such as 'expert', and groups.NAME.learner=null), or train several settings and compare them with "
            "'coterie match'"
        )


# Search space -------------------------------------------------------------------------------------------


def searched(base: Config, plan: Plan) -> tuple[dict[str, Any], dict[str, Range]]:
    """The experiment's values and the ranges, by path: all that learning groups declare, less overrides and `only`."""
    own: dict[str, Any] = {}
    space: dict[str, Range] = {}
    fixed = leaves(configs.parse_overrides(list(plan.overrides)))
    for name, group in base.groups.items():
        parts = {"learner": group.learner, "policy": group.policy, "preference": group.preference}
        for kind, part in parts.items():
            if group.learner is None or not isinstance(part, Part):  # frozen, or from an earlier run
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
    """A suggestion for a pattern, or a list of all, in 80 columns."""
    endings = list(dict.fromkeys(f"*.{path.rpartition('.')[2]}" for path in space))
    all_endings = textwrap.fill(", ".join(endings), 80, initial_indent="  ", subsequent_indent="  ")
    return configs.suggest(pattern, [*endings, *space]) or f"; there are\n{all_endings}"


def shared_settings(base: Config) -> dict[str, Any]:
    """The settings that may not change within a study: path -> value, as JSON."""
    settings = leaves(configs.to_dict(base))
    return {path: value for path, value in settings.items() if path not in configs.WITHOUT_EFFECT}


def with_values(plan: Plan, values: dict[str, Any]) -> Config:
    """The experiment with the plan's overrides and a trial's values."""
    path = configs.find(plan.experiment)
    layer = configs.merge(configs.read(path), configs.parse_overrides(list(plan.overrides)))
    for at, value in values.items():
        for name in reversed(at.split(".")):
            value = {name: value}
        layer = configs.merge(layer, value)
    return configs.resolve(layer, configs.name_of(path))


# Trials -------------------------------------------------------------------------------------------------


class PruningCallback:
    """Reports the score of one training to the study after every validation."""

    def __init__(
        self, report: Callable[[int, float], bool], earlier: list[float], offset: int, score: Score = "best"
    ) -> None:
        self.report, self.earlier, self.offset, self.kind = report, earlier, offset, score
        self.validations: list[float] = []
        self.pruned = False

    @property
    def score(self) -> float:
        """The best validation so far, or the mean of them: the area under the curve in parts of its length."""
        return float(max(self.validations) if self.kind == "best" else np.mean(self.validations))

    def watch(self, env_steps: int, score: float) -> loop.AfterValidation:
        """Report a score; the training finishes when the trial is pruned."""
        self.validations.append(score)
        so_far = float(np.mean([*self.earlier, self.score]))
        self.pruned = self.report(self.offset + env_steps, so_far)
        return loop.AfterValidation.FINISH if self.pruned else loop.AfterValidation.CONTINUE


@dataclass(frozen=True)
class Training:
    """The result of the trainings of one trial."""

    finished: bool  # False: interrupted before its end
    interrupted: bool = False
    pruned: bool = False
    score: float | None = None  # of validation
    held_out: float | None = None


def run_trial(study: Study, trial: Trial, plan: Plan, files: Files) -> tuple[Trial | None, bool]:
    """Train with a trial's values; returns the ended trial, or None if Ctrl-C came first, and whether it came."""
    shutil.rmtree(files.trial(trial.number), ignore_errors=True)  # of an interrupted trial, which starts anew
    try:
        training = train_seeds(trial, plan, files, study.report, study.spec.horizon)
    except CoterieError as error:
        return study.fail(str(error)), False
    if not training.finished:
        return None, True
    if training.pruned:
        return study.prune(), training.interrupted
    assert training.score is not None
    assert training.held_out is not None
    return study.complete(training.score, training.held_out), training.interrupted


def train_seeds(trial: Trial, plan: Plan, files: Files, report: Callable[[int, float], bool], horizon: int) -> Training:
    """Train every seed of a trial, until the study prunes it."""
    scores: list[float] = []
    held_out: list[float] = []
    settings = with_values(plan, trial.values)
    for number in range(plan.seeds):
        once = for_trial(settings, settings.seed + number)
        callback = PruningCallback(report, scores, number * horizon, plan.score)
        run = Run.create(files.trial(trial.number) / f"seed{once.seed}", once)
        try:
            end = loop.train(once, run, quiet=True, watch=callback.watch, report=write_report)
        except Interrupted:  # before its first checkpoint
            return Training(finished=False)
        last = number + 1 == plan.seeds or callback.pruned
        if not end["finished"] or (end["interrupted"] and not last):
            return Training(finished=False)
        if callback.pruned:
            return Training(True, end["interrupted"], pruned=True)
        scores.append(callback.score)
        held_out.append(held_out_score(end, settings))
    return Training(True, end["interrupted"], False, float(np.mean(scores)), float(np.mean(held_out)))


def for_trial(settings: Config, seed: int) -> Config:
    """The same experiment without videos, TensorBoard files and intermediate checkpoints."""
    once = settings.train.iterations
    train = dataclasses.replace(
        settings.train, video=False, tensorboard=False, tracking=None, keep_checkpoints=1, checkpoint_every=once
    )
    return dataclasses.replace(settings, seed=seed, train=train)


def held_out_score(summary: dict[str, Any], settings: Config) -> float:
    """The score on held-out seeds: the mean return of the learning groups, as in validation."""
    learning = [name for name, group in settings.groups.items() if group.learner is not None]
    return float(np.mean([summary["evaluation"]["groups"][name]["return_mean"] for name in learning]))


# Best settings ------------------------------------------------------------------------------------------


def keep_best(tuned: Tuned, latest: Trial | None) -> None:
    """Delete the checkpoints of all trials but the best; write the best settings if `latest` is the best."""
    for trial in tuned.trials:
        if trial != tuned.best:
            for run in tuned.files.trial(trial.number).glob("seed*"):
                shutil.rmtree(run / "checkpoints", ignore_errors=True)
    if tuned.best is not None and tuned.best == latest:
        write_best(tuned.best, tuned)


def write_best(best: Trial, tuned: Tuned) -> None:
    """Write the best settings as an experiment that extends the tuned one and states only differences."""
    plan, files = tuned.plan, tuned.files
    source, shipped = configs.find(plan.experiment).resolve(), configs.EXPERIMENTS.resolve()
    if shipped in source.parents:
        parent = str(source.relative_to(shipped).with_suffix(""))
    else:
        parent = os.path.relpath(source, files.best.parent.resolve())
    changed = differences(
        configs.to_dict(configs.load(plan.experiment)), configs.to_dict(with_values(plan, best.values))
    )
    title = f"# Score {best.score:.6g} in trial {best.number} of {len(tuned.trials)}: {plan.command()}\n"
    text = yaml.safe_dump({"extends": parent} | changed, sort_keys=False, allow_unicode=True)
    write_text(files.best, title + text)


def differences(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The settings of `new` that differ from `old`; a part with another name is written out in full."""
    found: dict[str, Any] = {}
    for name, value in new.items():
        before = old.get(name)
        if isinstance(before, dict) and isinstance(value, dict) and _same_part(before, value):
            changed = differences(before, value)
            found |= {name: changed} if changed else {}
        elif value != before:
            found[name] = value
    return found


def _same_part(old: dict[str, Any], new: dict[str, Any]) -> bool:
    return old.keys() == new.keys() and old.get("name") == new.get("name")
