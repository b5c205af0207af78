"""Plays shards in this process or in child processes.

A shard has random streams of its own and every process uses the same number of threads, so results do not depend on
where a shard runs. `ShardHost` is the unit that a transport carries; pipes to child processes are the only one so far.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np

from coterie.config.schema import Config
from coterie.core.child_processes import ctrl_c_blocked
from coterie.core.group import Group
from coterie.core.types import CoterieError, Counters, State, StateRows, merge, merge_counters
from coterie.lm.plans import PlanTable
from coterie.training.checkpoint import fitting
from coterie.training.evaluate import actor_metrics
from coterie.training.interrupt import SIGNALS
from coterie.training.runner import Rollout, join_episodes

log = logging.getLogger("coterie")


class WorkerError(CoterieError):
    """A child process failed or died."""


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

    The same object serves in this process and in a child process.
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
        from coterie.training.plans import plans_of

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


class ProcessWorkers:
    """Shards in child processes, each with a `ShardHost`; weights are sent before every iteration."""

    def __init__(self, config: Config, groups: list[Group]) -> None:
        context = multiprocessing.get_context("spawn")
        shards, count = config.train.shards, min(config.train.workers, config.train.shards)
        self.learning = [group for group in groups if group.learner is not None]
        self.changed = groups  # groups whose weights the children may not have: at first all
        self.assigned = [list(range(shards))[i::count] for i in range(count)]
        self.pipes: list[Connection] = []
        self.processes = []
        for mine in self.assigned:
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, config, mine), daemon=True)
            with ctrl_c_blocked():
                process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    def play(self, iteration: int) -> Rollout:
        weights = {group.name: group.policy.state() for group in self.changed}
        self.changed = self.learning
        return join(self.by_shard(self.ask("play", iteration, weights)))

    def save(self) -> list[State]:
        return self.by_shard(self.ask("save"))

    def load(self, states: list[State]) -> None:
        self.exchange([("load", [states[shard] for shard in mine]) for mine in self.assigned])

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

    def ask(self, *request: Any) -> list[Any]:
        """Send every worker the same request."""
        return self.exchange([request] * len(self.pipes))

    def exchange(self, requests: list[Any]) -> list[Any]:
        """Send every worker its request (a method of `ShardHost` and its arguments), then wait for all answers."""
        for worker, request in enumerate(requests):
            try:
                self.pipes[worker].send(request)
            except (BrokenPipeError, ConnectionResetError):
                raise self.died(worker) from None
        answers: list[Any] = []
        for worker, mine in enumerate(self.assigned):
            try:
                failed, answer = self.pipes[worker].recv()
            except (EOFError, ConnectionResetError):
                raise self.died(worker) from None
            if failed:
                raise WorkerError(f"the worker playing shards {mine} failed:\n{answer}")
            answers.append(answer)
        return answers

    def died(self, worker: int) -> WorkerError:
        """The error for a worker that no longer answers."""
        self.processes[worker].join(5)
        return WorkerError(
            f"the worker playing shards {self.assigned[worker]} died "
            f"(exit code {self.processes[worker].exitcode}); 'coterie resume' continues from the last checkpoint"
        )

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.close()  # a worker exits when its pipe closes
        for process in self.processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()


def _serve(pipe: Connection, config: Config, shards: list[int]) -> None:
    """The main function of a child process."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # the parent handles them
    from coterie.nn.threads import fixed_threads

    with fixed_threads(config.train.threads):
        _answer_requests(pipe, config, shards)


def _answer_requests(pipe: Connection, config: Config, shards: list[int]) -> None:
    host = None
    while True:
        try:
            request, *arguments = pipe.recv()
        except (EOFError, ConnectionResetError):
            return
        try:
            host = host or ShardHost(config, shards)
            methods: dict[str, Callable[..., Any]] = {
                "play": host.play,
                "save": host.save,
                "load": host.load,
                "metrics": host.metrics,
                "plans": host.plans,
            }
            pipe.send((False, methods[request](*arguments)))
        except BrokenPipeError:
            return
        except CoterieError as error:
            pipe.send((True, str(error)))
        except Exception:  # the parent reports any other failure, with the child's traceback
            pipe.send((True, traceback.format_exc()))


def start(config: Config, groups: list[Group]) -> Workers:
    """The workers that a config asks for."""
    settings = config.train
    if settings.workers > settings.shards:
        log.warning(
            "train.workers=%d: %d will do, since a worker plays whole shards; a larger train.shards changes results",
            settings.workers,
            settings.shards,
        )
    return ProcessWorkers(config, groups) if config.train.workers else LocalWorkers(config, groups)
