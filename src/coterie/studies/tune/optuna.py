"""Studies on disk: past trials, and the values of the next one. The only module that uses Optuna.

A *trial* is one set of values and its score; a *study* is a SQLite file of trials. Values are proposed by the
tree-structured Parzen estimator (Bergstra et al. 2011, section 4), each from a random stream named by trial and
setting, so that a study that was killed continues with the values it would have drawn. An interrupted trial runs again
under its number, with its values.
"""

from __future__ import annotations

import json
import sqlite3
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from optuna.trial import FrozenTrial, TrialState

from coterie.config.schema import ConfigError, leaves
from coterie.core import seeding
from coterie.core.search_space import Choice, Range, Real, Whole, written
from coterie.runs.provenance import study_locked
from coterie.studies.tune.trial import Outcome, Result, StudySpec, Trial

NAME = "coterie"  # of the one study in a file
SPEC = "terms"  # of the attribute that holds the spec of a study
RANDOM_TRIALS = 10  # the experiment's own values, then uniform draws: Parzen estimators need data
UNPRUNED_TRIALS = 5  # complete trials before the median is used
WARM_UP = 4  # no pruning by median in the first 1/4 of a training
REDUCTION = 3  # successive halving keeps the best third at 1/9 and at 1/3 of a trial

OUTCOMES: dict[TrialState, Outcome] = {
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "running",
    TrialState.WAITING: "running",
}


@contextmanager
def open_study(path: Path, spec: StudySpec, trials: Path, command: str) -> Iterator[Study]:
    """Create a study or continue it; a lock keeps other processes out while it is open."""
    path.parent.mkdir(parents=True, exist_ok=True)
    check_file(path)
    with study_locked(trials, path):
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        # escapes special characters of the path
        address = sqlalchemy.URL.create("sqlite", database=str(path.absolute()))
        try:
            storage = optuna.storages.RDBStorage(address.render_as_string())
        except RuntimeError as error:
            raise ConfigError(f"'{path}' was written by another version of Optuna: {error}") from None
        try:
            study = Study(_load(storage, path), storage, spec)
            check_spec(study.inner, spec, path, command)
            yield study
        finally:
            storage.remove_session()
            storage.engine.dispose()


def check_file(path: Path) -> None:
    """Refuse a file that is not a study, before it is written to."""
    cure = "choose another file with --study"
    if path.is_dir():
        raise ConfigError(f"'{path}' is a directory, not a study; {cure}")
    if not path.exists() or path.stat().st_size == 0:
        return
    try:
        connection = sqlite3.connect(f"file:{urllib.parse.quote(str(path))}?mode=rw", uri=True)
        try:
            tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        raise ConfigError(f"'{path}' is not a study ({error}); {cure}") from None
    if tables and not tables & {"studies", "version_info"}:
        raise ConfigError(f"'{path}' is another database (it holds {', '.join(sorted(tables))}); {cure}")


def _load(storage: optuna.storages.RDBStorage, path: Path) -> optuna.Study:
    names = optuna.study.get_all_study_names(storage)
    if names and NAME not in names:
        raise ConfigError(
            f"'{path}' holds studies that Coterie did not create ({', '.join(names)}); choose another file with --study"
        )
    return optuna.create_study(storage=storage, study_name=NAME, direction="maximize", load_if_exists=True)


def check_spec(inner: optuna.Study, spec: StudySpec, path: Path, command: str) -> None:
    """Store the spec of a new study; refuse another spec for an existing one."""
    now = spec.to_dict()
    stored = inner.user_attrs
    if SPEC not in stored:
        inner.set_user_attr("command", command)
        inner.set_user_attr(SPEC, now)
        return
    before = stored[SPEC]
    names = (before["config"]["experiment"], now["config"]["experiment"])
    if names[0] != names[1]:
        raise ConfigError(f"'{path}' is a study of '{names[0]}', not of '{names[1]}'; choose another with --study")
    found = differences(before, now)
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise ConfigError(
            f"'{path}' {found[0]}{more}; continue with: {stored['command']}, or choose another file with --study"
        )


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Differences between a command and the study that it names, one phrase for each setting."""
    old, new = (leaves({k: v for k, v in spec.items() if k != "space"}) for spec in (before, now))
    found = []
    for key in {**old, **new}:
        if old.get(key) != new.get(key):
            values = [written(side[key]) if key in side else "nothing" for side in (old, new)]
            found.append(f"has {key.removeprefix('config.')} = {values[0]}, this command {values[1]}")
    for path in {**before["space"], **now["space"]}:
        one, other = before["space"].get(path), now["space"].get(path)
        if other is None:
            found.append(f"searches {path}, this command does not")
        elif one is None:
            found.append(f"does not search {path}, this command does")
        elif one != other:
            found.append(f"searches {path} in {written(one)}, this command in {written(other)}")
    return found


class Judge:
    """Prunes one trial in memory, given the trials of earlier batches alone."""

    def __init__(self, spec: StudySpec, earlier: list[FrozenTrial]) -> None:
        self.spec, self.curve = spec, dict[int, float]()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.study = optuna.create_study(direction="maximize", pruner=make_pruner(spec))
        self.study.add_trials(earlier)
        self.trial = self.study.ask()

    def report(self, step: int, score: float) -> bool:
        """Report an intermediate score; True when the trial should be pruned."""
        self.curve[step] = score
        self.trial.report(score, step)
        finished = step >= self.spec.horizon * self.spec.seeds  # pruning would save nothing
        return not finished and self.trial.should_prune()

    def attributes(self) -> dict[str, Any]:
        """The pruner's notes about the trial."""
        return dict(self.study.get_trials(deepcopy=False)[-1].system_attrs)


class Study:
    """An open study; with batches of one trial, at most one is running."""

    def __init__(self, inner: optuna.Study, storage: optuna.storages.RDBStorage, spec: StudySpec) -> None:
        self.inner, self.storage, self.spec = inner, storage, spec
        inner.pruner = make_pruner(spec)
        self.current: optuna.Trial | None = None

    def trials(self) -> list[Trial]:
        """All trials so far, oldest first; at most the last one is running."""
        return [self.described(trial) for trial in self.inner.get_trials(deepcopy=False)]

    def begin(self) -> Trial:
        """The next trial: an interrupted one, the experiment's own values, or a new proposal."""
        known = self.inner.get_trials(deepcopy=False)
        interrupted = [trial.number for trial in known if trial.state == TrialState.RUNNING]
        self.current = self.running(interrupted[0]) if interrupted else self.ask()
        self.propose_all()
        return next(trial for trial in self.trials() if trial.number == self.current.number)

    def begin_batch(self) -> list[Trial]:
        """The trials of the present batch that have not ended; a new batch is proposed where there are none.

        All trials of a batch are proposed before one of them is trained, so they do not depend on who ends first.
        """
        known = self.inner.get_trials(deepcopy=False)
        if all(trial.state.is_finished() for trial in known) or len(known) % self.spec.batch:
            while True:
                self.current = self.ask()
                self.propose_all()
                if (self.current.number + 1) % self.spec.batch == 0:
                    break
            self.current = None
        return [trial for trial in self.trials() if trial.outcome == "running"]

    def earlier(self, number: int) -> list[FrozenTrial]:
        """The trials of the batches before a trial's own: what its pruning depends on."""
        first = number - number % self.spec.batch
        return [trial for trial in self.inner.get_trials(deepcopy=False) if trial.number < first]

    def ask(self) -> optuna.Trial:
        """A new trial; the first one has the experiment's own values."""
        if not self.inner.get_trials(deepcopy=False):
            self.inner.enqueue_trial({p: stored(self.spec.space[p], v) for p, v in self.spec.own.items()})
        return self.inner.ask()

    def running(self, number: int) -> optuna.Trial:
        """A trial that has begun."""
        study_id = self.storage.get_study_id_from_name(NAME)
        return optuna.trial.Trial(self.inner, self.storage.get_trial_id_from_study_id_trial_number(study_id, number))

    def propose_all(self) -> None:
        """Draw the present trial's values, each with its own sampler."""
        assert self.current is not None
        for path, range_ in self.spec.space.items():
            self.inner.sampler = self.sampler(self.current.number, path)
            propose(self.current, path, range_)

    def end(self, number: int, result: Result) -> Trial:
        """End a trial of a batch with what a process found."""
        self.current = self.running(number)
        for step, score in result.curve.items():
            if step not in self.described(self._frozen()).curve:
                self.current.report(score, step)
        for name, value in result.attributes.items():
            self.storage.set_trial_system_attr(self.current._trial_id, name, value)
        match result.outcome:
            case "complete":
                assert result.score is not None
                assert result.held_out is not None
                return self.complete(result.score, result.held_out)
            case "pruned":
                return self.prune()
            case _:
                return self.fail(result.reason)

    def sampler(self, number: int, path: str) -> optuna.samplers.BaseSampler:
        """The sampler of one value; it depends only on the earlier trials."""
        seed = seeding.integer(self.spec.config["seed"], "tune", number, path) % 2**32
        return optuna.samplers.TPESampler(
            n_startup_trials=RANDOM_TRIALS, seed=seed, multivariate=False, constant_liar=False
        )

    def report(self, step: int, score: float) -> bool:
        """Report an intermediate score; True when the trial should be pruned."""
        assert self.current is not None
        decided = self.current.user_attrs.get("pruned_at")
        if decided is not None:  # before an interruption; halving would not decide the same again
            return bool(step >= decided)
        if step not in self.described(self._frozen()).curve:  # a repeated trial has reported its first scores before
            self.current.report(score, step)
        finished = step >= self.spec.horizon * self.spec.seeds  # pruning would save nothing
        if finished or not self.current.should_prune():
            return False
        self.current.set_user_attr("pruned_at", step)
        return True

    def complete(self, score: float, held_out: float) -> Trial:
        """End the running trial with its score."""
        assert self.current is not None
        self.current.set_user_attr("held_out", held_out)
        return self._tell(TrialState.COMPLETE, score)

    def prune(self) -> Trial:
        """End the running trial early; its score is the last reported one."""
        return self._tell(TrialState.PRUNED)

    def fail(self, reason: str) -> Trial:
        """End the running trial without a score."""
        assert self.current is not None
        self.current.set_user_attr("reason", reason)
        return self._tell(TrialState.FAIL)

    def importance(self) -> dict[str, float]:
        """Importance of each setting by PED-ANOVA (Watanabe et al. 2023); {} for few trials.

        Shares that sum to 1, largest first.
        """
        complete = [trial for trial in self.trials() if trial.outcome == "complete"]
        if len(complete) < RANDOM_TRIALS or len({trial.score for trial in complete}) < 2:
            return {}
        return optuna.importance.get_param_importances(
            self.inner, evaluator=optuna.importance.PedAnovaImportanceEvaluator()
        )

    def described(self, trial: FrozenTrial) -> Trial:
        """A trial as our own type."""
        kept = {path: trial.params[path] for path in self.spec.space if path in trial.params}
        return Trial(
            trial.number,
            OUTCOMES[trial.state],
            {path: restored(self.spec.space[path], value) for path, value in kept.items()},
            trial.value if trial.state.is_finished() else None,
            trial.user_attrs.get("held_out"),
            dict(sorted(trial.intermediate_values.items())),
            trial.user_attrs.get("reason", ""),
        )

    def _tell(self, state: TrialState, score: float | None = None) -> Trial:
        assert self.current is not None
        ended = self.inner.tell(self.current.number, score, state)
        self.current = None
        return self.described(ended)

    def _frozen(self) -> FrozenTrial:
        assert self.current is not None
        return self.inner.get_trials(deepcopy=False)[self.current.number]


def make_pruner(spec: StudySpec) -> optuna.pruners.BasePruner:
    """The pruner, which ends trials that are worse than others at the same step."""
    match spec.pruner:
        case "median":  # Golovin et al. 2017
            return optuna.pruners.MedianPruner(UNPRUNED_TRIALS, spec.horizon // WARM_UP)
        case "halving":  # Li et al. 2020
            least = max(spec.horizon * spec.seeds // REDUCTION**2, 1)
            return optuna.pruners.SuccessiveHalvingPruner(least, REDUCTION)
        case "none":
            return optuna.pruners.NopPruner()


def propose(trial: optuna.Trial, path: str, known: Range) -> None:
    """Draw one value, unless the trial already has it."""
    match known:
        case Real(low, high, log):
            trial.suggest_float(path, low, high, log=log)
        case Whole(low, high, log):
            trial.suggest_int(path, low, high, log=log)
        case Choice(values):
            trial.suggest_categorical(path, [written(value) for value in values])


def stored(known: Range, value: Any) -> Any:
    """A value as Optuna keeps it: numbers as they are, choices as JSON text."""
    return written(value) if isinstance(known, Choice) else value


def restored(known: Range, value: Any) -> Any:
    """The inverse of `stored`; lists stay lists."""
    return json.loads(value) if isinstance(known, Choice) else value
