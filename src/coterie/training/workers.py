"""Plays shards in this process or in others.

A shard has random streams of its own and every process uses the same number of threads, so results do not depend on
where a shard runs. `ShardHost` is the unit that a transport reaches: through pipes in child processes
(`child_processes.py`), or as Ray actors on the machines of a cluster (`ray_actors.py`).
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from coterie.config.schema import Config
from coterie.core.group import Group
from coterie.core.types import CoterieError, Counters, State, StateRows, merge, merge_counters
from coterie.lm.plans import PlanTable
from coterie.runs.checkpoint import fitting
from coterie.training.evaluate import actor_metrics
from coterie.training.runner import Rollout, join_episodes

log = logging.getLogger("coterie")


class WorkerError(CoterieError):
    """A worker failed or died."""


class Workers(Protocol):
    """Plays all shards of a run."""

    def play(self, iteration: int) -> Rollout:
        """One iteration of every shard, joined along the environments."""
        ...

    def save(self) -> list[State]:
        """The state of every shard."""
        ...

    def load(self, states: list[State]) -> None:
        """Return every shard to its state."""
        ...

    def metrics(self) -> dict[str, Counters]:
        """Metrics of actors that live in other processes, by group."""
        ...

    def plans(self) -> dict[str, list[PlanTable]]:
        """Plans of teachers that live in other processes, by group."""
        ...

    def close(self) -> None:
        """End the processes."""
        ...


class Request(NamedTuple):
    """A call of a method of `ShardHost`."""

    method: str
    arguments: tuple[Any, ...] = ()


class Answer(NamedTuple):
    """The result of a request, or the message of what failed."""

    failed: bool
    value: Any


class Transport(Protocol):
    """Carries requests to workers in other processes, each of which has a `ShardService`."""

    def exchange(self, requests: Sequence[Request]) -> list[Answer]:
        """Send every worker its request, then wait for all answers. Raises `WorkerError` if one has died."""
        ...

    def close(self) -> None:
        """End the workers."""
        ...


def join(rollouts: list[Rollout]) -> Rollout:
    """Join rollouts in the order of their shards."""
    names = rollouts[0].experiences
    return Rollout(
        {name: merge([r.experiences[name] for r in rollouts]) for name in names},
        join_episodes([r.episodes for r in rollouts]),
        join_states([r.state for r in rollouts if r.state is not None]),
        merge_counters(r.counters for r in rollouts),
    )


def join_states(states: list[StateRows]) -> StateRows | None:
    """Join the global states of several shards."""
    if len(states) <= 1:
        return states[0] if states else None
    rows = np.concatenate([s.rows for s in states], axis=1)
    return StateRows(rows, np.concatenate([s.finals for s in states]))


class ShardHost:
    """Plays, saves and loads some shards of a run and reports metrics of their actors.

    The same object serves in this process and in others.
    """

    def __init__(self, config: Config, shards: Sequence[int], groups: Sequence[Group] | None = None) -> None:
        """`groups`: those that learn in this process; None: build groups that only play."""
        from coterie.training.build import build_groups, build_runner, build_world, needs_play

        self.settings = config.train
        self.steps = config.train.rollout_steps if needs_play(config) else 0
        if groups is None:
            groups = build_groups(config, build_world(config.world, 1), learning=False)
        self.actors = [group.actor for group in groups]
        self.runners = [build_runner(config, shard, groups) for shard in shards]

    def play(self, iteration: int, weights: Mapping[str, State] | None = None) -> list[Rollout]:
        """One iteration of every shard, with new weights for some groups."""
        for actor in self.actors:
            if weights and actor.group_spec.group in weights:
                actor.policy.load(weights[actor.group_spec.group])
        progress = self.settings.progress(iteration)
        return [runner.play(self.steps, iteration, progress) for runner in self.runners]

    def save(self) -> list[State]:
        """The state of every shard."""
        return [runner.save() for runner in self.runners]

    def load(self, states: list[State]) -> None:
        """Return every shard to its state."""
        with fitting("world"):
            for runner, state in zip(self.runners, states, strict=True):
                runner.load(state)

    def metrics(self) -> dict[str, Counters]:
        """Metrics of the actors since they were built, by group."""
        return actor_metrics(self.actors)

    def plans(self) -> dict[str, PlanTable]:
        """Plans of the actors' teachers, by group."""
        from coterie.training.plan_tables import plans_of

        return plans_of(self.actors)


class LocalWorkers:
    """All shards in this process, acting with the very policies that learn."""

    def __init__(self, config: Config, groups: list[Group]) -> None:
        self.host = ShardHost(config, range(config.train.shards), groups)

    def play(self, iteration: int) -> Rollout:
        return join(self.host.play(iteration))

    def save(self) -> list[State]:
        return self.host.save()

    def load(self, states: list[State]) -> None:
        self.host.load(states)

    def metrics(self) -> dict[str, Counters]:
        return {}  # these actors are the loop's own

    def plans(self) -> dict[str, list[PlanTable]]:
        return {}  # likewise

    def close(self) -> None:
        """There are no processes to end."""


class ShardService:
    """Answers requests to a `ShardHost`, which the first request builds; failures are answers, too."""

    def __init__(self, config: Config, shards: Sequence[int]) -> None:
        self.config, self.shards = config, shards
        self.host: ShardHost | None = None

    def answer(self, request: Request) -> Answer:
        """The result of a method of the host."""
        try:
            self.host = self.host or ShardHost(self.config, self.shards)
            methods: dict[str, Callable[..., Any]] = {
                "play": self.host.play,
                "save": self.host.save,
                "load": self.host.load,
                "metrics": self.host.metrics,
                "plans": self.host.plans,
            }
            return Answer(False, methods[request.method](*request.arguments))
        except CoterieError as error:
            return Answer(True, str(error))
        except Exception:  # the trainer reports any other failure, with this process's traceback
            return Answer(True, traceback.format_exc())


class RemoteWorkers:
    """Shards in other processes; weights are sent before every iteration."""

    def __init__(self, groups: list[Group], assigned: list[list[int]], transport: Transport) -> None:
        """`assigned`: the shards of every worker that the transport reaches."""
        self.learning = [group for group in groups if group.learner is not None]
        self.changed = groups  # groups whose weights the workers may not have: at first all
        self.assigned, self.transport = assigned, transport

    def play(self, iteration: int) -> Rollout:
        weights = {group.name: group.policy.state() for group in self.changed}
        self.changed = self.learning
        return join(self.by_shard(self.ask("play", iteration, weights)))

    def save(self) -> list[State]:
        return self.by_shard(self.ask("save"))

    def load(self, states: list[State]) -> None:
        self.exchange([Request("load", ([states[shard] for shard in mine],)) for mine in self.assigned])

    def metrics(self) -> dict[str, Counters]:
        parts: list[dict[str, Counters]] = self.ask("metrics")
        names = {name: None for part in parts for name in part}
        return {name: merge_counters([part[name] for part in parts if name in part]) for name in names}

    def plans(self) -> dict[str, list[PlanTable]]:
        parts: list[dict[str, PlanTable]] = self.ask("plans")
        names = {name: None for part in parts for name in part}
        return {name: [part[name] for part in parts if name in part] for name in names}

    def by_shard(self, answers: list[list[Any]]) -> list[Any]:
        """The workers' answers in the order of the shards."""
        found = {s: one for mine, answer in zip(self.assigned, answers) for s, one in zip(mine, answer, strict=True)}
        return [found[shard] for shard in sorted(found)]

    def ask(self, method: str, *arguments: Any) -> list[Any]:
        """Send every worker the same request."""
        return self.exchange([Request(method, arguments)] * len(self.assigned))

    def exchange(self, requests: Sequence[Request]) -> list[Any]:
        """The results of all requests; raises `WorkerError` if one failed."""
        answers = self.transport.exchange(requests)
        for mine, answer in zip(self.assigned, answers, strict=True):
            if answer.failed:
                raise WorkerError(f"the worker playing shards {mine} failed:\n{answer.value}")
        return [answer.value for answer in answers]

    def close(self) -> None:
        self.transport.close()


def assign(shards: int, workers: int) -> list[list[int]]:
    """The shards of every worker; none has nothing to play."""
    count = min(workers, shards)
    return [list(range(shards))[i::count] for i in range(count)]


def start(config: Config, groups: list[Group]) -> Workers:
    """The workers that a config asks for."""
    settings = config.train
    if settings.workers > settings.shards:
        log.warning(
            "train.workers=%d: %d will do, since a worker plays whole shards; a larger train.shards changes results",
            settings.workers,
            settings.shards,
        )
    if not settings.workers:
        return LocalWorkers(config, groups)
    assigned = assign(settings.shards, settings.workers)
    return RemoteWorkers(groups, assigned, open_transport(config, assigned))


def open_transport(config: Config, assigned: list[list[int]]) -> Transport:
    """Start a worker for each list of shards."""
    if config.train.ray is not None:
        from coterie.training.ray_actors import RayActors

        return RayActors(config, config.train.ray, assigned)
    from coterie.training.child_processes import ChildProcesses

    return ChildProcesses(config, assigned)
