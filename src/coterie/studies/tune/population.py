"""Population-based training (Jaderberg et al. 2017, arXiv 1711.09846): settings that change while policies train.

A population trains in rounds, all members equally long. After a round the worst quarter copies the weights and settings
of members of the best quarter (exploit) and changes these settings a little (explore); so steps are shared: what one
member has learned, others go on with. Only settings that may change on the way are searched: real numbers of learners.

Everything is drawn from streams named by round and member, and written before it is acted on: a study that was killed
goes on with the numbers that it would have had, with any number of jobs.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.config.schema import Config, ConfigError
from coterie.core import seeding
from coterie.core.search_space import Range, Real, range_to_dict, read_once
from coterie.core.types import CoterieError
from coterie.runs.interrupt import Interrupted, Interruption, interruptible
from coterie.runs.provenance import study_locked
from coterie.runs.run import Run, write_text
from coterie.studies.tune.tune import (
    Files,
    Plan,
    for_trial,
    held_out_score,
    refuse_constant_sum,
    searched,
    shared_settings,
    with_values,
)
from coterie.training import loop, start
from coterie.training.jobs import demand_jobs, run_parallel

SHARE = 4  # one member in four is replaced, by one of the best in four
FACTORS = (0.8, 1.25)  # by which a copied setting changes (Jaderberg et al. 2017, section 4.1.1: 0.8 and 1.2)

log = logging.getLogger("coterie")


@dataclass(frozen=True)
class Member:
    """One training of a population."""

    number: int
    values: dict[str, Any]  # path -> value in the present round
    score: float | None = None  # of validation at the end of the latest round; None: the round is under way
    parent: int | None = None  # whose weights and settings it took over before this round
    held_out: float | None = None  # on held-out seeds; None before the last round has ended
    failed: str = ""  # why it could not end the latest round, such as divergence; it has no score then

    @property
    def ended(self) -> bool:
        """Whether the present round is over for it."""
        return self.score is not None or bool(self.failed)

    @property
    def rank(self) -> float:
        """The score, which ranks the members; one that failed comes last."""
        return -math.inf if self.score is None else self.score


@dataclass(frozen=True)
class Population:
    """All members in one round."""

    round: int
    members: list[Member]
    history: list[list[Member]] = field(default_factory=list)  # earlier rounds, at their ends
    copying: bool = False  # weights of parents are being copied

    @property
    def best(self) -> Member:
        """The member with the highest score, the first of equals."""
        return max(self.members, key=lambda member: member.rank)


@dataclass(frozen=True)
class PopulationResult:
    """A population after its last round, or where it was stopped."""

    plan: Plan
    files: Files
    space: dict[str, Range]
    population: Population
    interrupted: bool

    def to_dict(self) -> dict[str, Any]:
        return {
            "experiment": self.plan.experiment,
            "study": str(self.files.study),
            "rounds": self.plan.rounds,
            "population": dataclasses.asdict(self.population),
            "best": dataclasses.asdict(self.population.best),
            "finished": not self.interrupted,
        }


Progress = Callable[[Population], Any]  # called when the population is opened, and after every round
Trained = Callable[[Member], Any]  # called when a member has ended its round


def tune_population(
    plan: Plan, progress: Progress = lambda population: None, trained: Trained = lambda member: None
) -> PopulationResult:
    """Train a population of `plan.trials` members for `plan.rounds` rounds, or until Ctrl-C."""
    demand_jobs(plan.jobs)
    base = start.check(plan.experiment, list(plan.overrides))
    demand_plan(plan, base)
    stem = Path(plan.study) if plan.study else Path("runs") / "tune" / f"{base.experiment}-pbt.json"
    files, space = Files(stem.with_suffix(".json")), changeable(base, plan)
    refuse_constant_sum(base)
    with study_locked(files.trials, files.study), interruptible() as interrupted:
        population = open_population(plan, base, files, space)
        progress(population)
        while not interrupted.is_set():
            population = finish_copying(population, files, plan, base)
            population = train_round(population, plan, files, interrupted, trained)
            if not all(member.ended for member in population.members):
                break
            if all(member.failed for member in population.members):
                first = population.members[0].failed
                raise CoterieError(f"all {len(population.members)} members failed; the first one: {first}")
            progress(population)
            if population.round + 1 == plan.rounds:
                write_best(population, files)
                break
            population = exploit_and_explore(population, space, base.seed)
            save(population, plan, base, files, space)
        done = population.round + 1 == plan.rounds and all(
            member.held_out is not None or member.failed for member in population.members
        )
    return PopulationResult(plan, files, space, population, interrupted=not done)


def demand_plan(plan: Plan, base: Config) -> None:
    """Refuse populations that cannot share, and rounds shorter than an iteration."""
    if plan.trials < 2:
        raise ConfigError(f"--trials: a population needs at least 2 members, got {plan.trials}")
    if plan.seeds > 1:
        raise ConfigError("--seeds: members of a population have a seed each; leave it out with --sampler pbt")
    if plan.rounds < 2 or plan.rounds > base.train.iterations:
        raise ConfigError(
            f"--rounds: expected 2 to {base.train.iterations}, the iterations of this experiment, got {plan.rounds}"
        )


def changeable(base: Config, plan: Plan) -> dict[str, Range]:
    """The searched settings that may change while a policy trains: real numbers of learners."""
    _, space = searched(base, plan)
    fixed = set[str]()
    for name, group in base.groups.items():
        if group.learner is not None:
            fixed.update(read_once(group.learner.settings, f"groups.{name}.learner"))
    found: dict[str, Range] = {
        path: known
        for path, known in space.items()
        if isinstance(known, Real) and ".learner." in path and path not in fixed
    }
    if not found:
        raise ConfigError("--sampler pbt: no real number of a learner is searched; others cannot change on the way")
    return found


# Rounds -------------------------------------------------------------------------------------------------


def end_of(round_: int, plan: Plan, iterations: int) -> int:
    """The iteration at which a round ends; the last one takes what is left over."""
    return iterations if round_ + 1 == plan.rounds else (round_ + 1) * (iterations // plan.rounds)


def train_round(
    population: Population, plan: Plan, files: Files, interrupted: Interruption, trained: Trained = lambda member: None
) -> Population:
    """Train every member to the end of the round; members that were interrupted have not ended it."""
    waiting = [member for member in population.members if not member.ended]
    tasks = [(plan, files, member, population.round) for member in waiting]
    ended = {member.number: member for member in population.members}
    for index, result in advance_all(tasks, plan.jobs, interrupted):
        if result is not None:
            ended[waiting[index].number] = result
            if result.failed:
                log.warning("member %d failed in round %d: %s", result.number, population.round + 1, result.failed)
            trained(result)
    return dataclasses.replace(population, members=[ended[number] for number in sorted(ended)])


def advance_all(tasks: list[tuple[Any, ...]], jobs: int, interrupted: Interruption) -> Iterator[tuple[int, Any]]:
    """Advance members here, or in several processes."""
    if jobs > 1:
        yield from run_parallel(advance, tasks, jobs, interrupted)
        return
    for index, task in enumerate(tasks):
        if interrupted.is_set():
            return
        yield index, advance(*task)


def advance(plan: Plan, files: Files, member: Member, round_: int) -> Member | None:
    """Train one member to the end of a round; None when a signal came first.

    A training that cannot go on, such as one whose learning rate has grown too large, fails this member alone.
    """
    settings = member_config(plan, member)
    end = end_of(round_, plan, settings.train.iterations) * settings.train.iteration_steps
    path = files.trial(member.number)
    run = Run.open(path) if (path / "config.yaml").is_file() else Run.create(path, settings)
    mark = path / f"score-{end}.json"
    state = run.newest(run.steps())
    last = round_ + 1 == plan.rounds

    def watch(env_steps: int, score: float) -> loop.AfterValidation:
        if env_steps < end:
            return loop.AfterValidation.CONTINUE
        write_text(mark, json.dumps(score))  # before the checkpoint: one without a score would train on
        return loop.AfterValidation.CONTINUE if last else loop.AfterValidation.PAUSE

    if state is None or state["env_steps"] < end or not mark.is_file() or (last and run.summary() is None):
        try:
            result = loop.train(settings, run, state, quiet=True, watch=watch)
        except Interrupted:  # before its first checkpoint
            return None
        except CoterieError as error:
            return dataclasses.replace(member, failed=str(error))
        if not mark.is_file() or (last and not result["finished"]):
            return None
    held_out = held_out_score(run.summary() or {}, settings) if last else None
    return dataclasses.replace(member, score=json.loads(mark.read_text()), held_out=held_out)


def member_config(plan: Plan, member: Member) -> Config:
    """The experiment with a member's values; it is evaluated and saved at the ends of rounds."""
    settings = with_values(plan, member.values)
    once = for_trial(settings, settings.seed + member.number)
    every = end_of(0, plan, once.train.iterations)
    return dataclasses.replace(once, train=dataclasses.replace(once.train, evaluate_every=every))


def exploit_and_explore(population: Population, space: dict[str, Range], seed: int) -> Population:
    """The next round: the worst quarter takes over from the best quarter and changes what it took.

    So does every member that failed; nobody takes over from one that did.
    """
    ranked = sorted(population.members, key=lambda member: (member.rank, -member.number))
    count = max(len(ranked) // SHARE, 1)
    best, members = [member for member in ranked[-count:] if not member.failed], list[Member]()
    losers = {member.number for place, member in enumerate(ranked) if place < count or member.failed}
    for member in population.members:
        values, parent = member.values, None
        if member.number in losers:
            random = seeding.generator(seed, "pbt", population.round, member.number)
            chosen = best[int(random.integers(len(best)))]
            parent, values = chosen.number, {}
            for path, value in chosen.values.items():
                known = space[path]
                assert isinstance(known, Real)
                moved = value * FACTORS[int(random.integers(2))]
                values[path] = float(min(max(moved, known.low), known.high))
        members.append(Member(member.number, values, None, parent))
    return Population(population.round + 1, members, [*population.history, population.members], copying=True)


def finish_copying(population: Population, files: Files, plan: Plan, base: Config) -> Population:
    """Copy the parents' checkpoints; nobody has begun the round yet, so this can be done again after a kill."""
    if not population.copying:
        return population
    for member in population.members:
        if member.parent is not None:
            own, theirs = (files.trial(number) / "checkpoints" for number in (member.number, member.parent))
            fresh = own.with_name("checkpoints-new")
            shutil.rmtree(fresh, ignore_errors=True)
            shutil.copytree(theirs, fresh)
            shutil.rmtree(own, ignore_errors=True)
            fresh.rename(own)
    population = dataclasses.replace(population, copying=False)
    save(population, plan, base, files, None)
    return population


# Files --------------------------------------------------------------------------------------------------


def spec(plan: Plan, base: Config, space: dict[str, Range]) -> dict[str, Any]:
    """Settings that a population must keep when it continues."""
    ranges = {path: range_to_dict(known) for path, known in space.items()}
    found = {"config": shared_settings(base), "space": ranges, "members": plan.trials, "rounds": plan.rounds}
    kept: dict[str, Any] = json.loads(json.dumps(found))
    return kept


def open_population(plan: Plan, base: Config, files: Files, space: dict[str, Range]) -> Population:
    """Create a population or go on with it; the first member has the experiment's own values."""
    if files.study.is_file():
        try:
            kept = json.loads(files.study.read_text())
            before = kept["spec"]
        except (json.JSONDecodeError, KeyError, TypeError):
            raise ConfigError(f"'{files.study}' is not a population; choose another file with --study") from None
        now = spec(plan, base, space)
        for name in ("members", "rounds", "space", "config"):
            if before[name] != now[name]:
                shown = f": {before[name]} there, {now[name]} here" if name in ("members", "rounds") else ""
                raise ConfigError(
                    f"'{files.study}' has other {name}{shown}; continue with: {kept['command']}, or choose another "
                    "file with --study"
                )
        saved = kept["population"]
        history = [[Member(**member) for member in round_] for round_ in saved["history"]]
        return Population(saved["round"], [Member(**m) for m in saved["members"]], history, saved["copying"])
    own, _ = searched(base, plan)
    members = [Member(0, {path: own[path] for path in space})]
    for number in range(1, plan.trials):
        random = seeding.generator(base.seed, "pbt", "first", number)
        members.append(Member(number, {path: draw(known, random.random()) for path, known in space.items()}))
    population = Population(0, members)
    save(population, plan, base, files, space)
    return population


def draw(known: Range, uniform: float) -> float:
    """A real number of a range for a number in [0, 1)."""
    assert isinstance(known, Real)
    if known.log:
        return float(math.exp(math.log(known.low) + uniform * (math.log(known.high) - math.log(known.low))))
    return float(known.low + uniform * (known.high - known.low))


def save(population: Population, plan: Plan, base: Config, files: Files, space: dict[str, Range] | None) -> None:
    """Write a population whole or not at all; without `space` the spec on file is kept."""
    kept = json.loads(files.study.read_text())["spec"] if space is None else spec(plan, base, space)
    content = {"spec": kept, "command": plan.command(), "population": dataclasses.asdict(population)}
    files.study.parent.mkdir(parents=True, exist_ok=True)
    write_text(files.study, json.dumps(content, indent=1) + "\n")


def write_best(population: Population, files: Files) -> None:
    """Write the best member's last settings and how it came to them, as JSON next to the study."""
    best = population.best
    if best.score is None:
        raise CoterieError("a population without scores has no best member")
    lineage, number = [], best.number
    for members in reversed([*population.history, population.members]):
        lineage.append({"member": number, "values": members[number].values, "score": members[number].score})
        parent = members[number].parent
        number = number if parent is None else parent
    found = {"run": str(files.trial(best.number)), "score": best.score, "held_out": best.held_out}
    write_text(files.best.with_suffix(".json"), json.dumps(found | {"schedule": lineage[::-1]}, indent=1) + "\n")
