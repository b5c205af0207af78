"""Who plays the shards: this process, or child processes that receive whole shards.

A shard plays the same game wherever it runs: its random streams are its own, and every process uses the
same fixed number of threads. Ray actors will be a third way, in a file of their own.
"""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np

from coterie.config.schema import Config
from coterie.core.group import Group
from coterie.core.types import CoterieError, State, StateRows, merge
from coterie.training.runner import Rollout, join_episodes


class WorkerError(CoterieError):
    """A child process failed or died."""


class Workers(Protocol):
    """Plays all shards of a run."""

    def play(self, iteration: int) -> Rollout:
        """One iteration of every shard, joined along the copies."""
        ...

    def save(self) -> list[State]:
        """The state of every shard."""
        ...

    def load(self, states: list[State]) -> None:
        """Return every shard to its state."""
        ...

    def close(self) -> None:
        """Let go of processes."""
        ...


def join(rollouts: list[Rollout]) -> Rollout:
    """Shards side by side, in their own order."""
    names = rollouts[0].experiences
    return Rollout(
        {name: merge([r.experiences[name] for r in rollouts]) for name in names},
        join_episodes([r.episodes for r in rollouts]),
        join_states([r.state for r in rollouts if r.state is not None]),
    )


def join_states(states: list[StateRows]) -> StateRows | None:
    """The states of several shards side by side."""
    if len(states) <= 1:
        return states[0] if states else None
    rows = np.concatenate([s.rows for s in states], axis=1)
    return StateRows(rows, np.concatenate([s.finals for s in states]))


class LocalWorkers:
    """All shards in this process, acting with the very policies that learn."""

    def __init__(self, config: Config, groups: list[Group]) -> None:
        from coterie.training.build import build_runner

        self.settings = config.train
        self.runners = [build_runner(config, shard, groups) for shard in range(config.train.shards)]

    def play(self, iteration: int) -> Rollout:
        progress = self.settings.progress(iteration)
        return join([runner.play(self.settings.rollout_steps, iteration, progress) for runner in self.runners])

    def save(self) -> list[State]:
        return [runner.save() for runner in self.runners]

    def load(self, states: list[State]) -> None:
        for runner, state in zip(self.runners, states, strict=True):
            runner.load(state)

    def close(self) -> None:
        """Nothing to let go of."""


class ProcessWorkers:
    """Shards in child processes, which are sent the weights before every iteration."""

    def __init__(self, config: Config, groups: list[Group]) -> None:
        context = multiprocessing.get_context("spawn")
        shards, count = config.train.shards, min(config.train.workers, config.train.shards)
        self.learning = [group for group in groups if group.learner is not None]
        self.changed = groups  # whose weights the children may not have: at first everybody's
        self.assigned = [list(range(shards))[i::count] for i in range(count)]
        self.pipes: list[Connection] = []
        self.processes = []
        for mine in self.assigned:
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, config, mine), daemon=True)
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    def play(self, iteration: int) -> Rollout:
        weights = {group.name: group.policy.state() for group in self.changed}
        self.changed = self.learning
        return join(self.ask("play", iteration, weights))

    def save(self) -> list[State]:
        return self.ask("save")

    def load(self, states: list[State]) -> None:
        self.exchange([("load", [states[shard] for shard in mine]) for mine in self.assigned])

    def ask(self, *request: Any) -> list[Any]:
        """Send every worker the same request; answers come back in the order of the shards."""
        return self.exchange([request] * len(self.pipes))

    def exchange(self, requests: list[Any]) -> list[Any]:
        """Send every worker its request, then wait for all answers."""
        for place, request in enumerate(requests):
            try:
                self.pipes[place].send(request)
            except (BrokenPipeError, ConnectionResetError):
                raise self.died(place) from None
        answers: dict[int, Any] = {}
        for place, mine in enumerate(self.assigned):
            try:
                failed, answer = self.pipes[place].recv()
            except (EOFError, ConnectionResetError):
                raise self.died(place) from None
            if failed:
                raise WorkerError(f"the worker playing shards {mine} failed:\n{answer}")
            answers |= dict(zip(mine, answer, strict=True))
        return [answers[shard] for shard in sorted(answers)]

    def died(self, place: int) -> WorkerError:
        """What to say of a worker that no longer answers."""
        self.processes[place].join(5)
        return WorkerError(
            f"the worker playing shards {self.assigned[place]} died "
            f"(exit code {self.processes[place].exitcode}); 'coterie resume' goes on from the last checkpoint"
        )

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.close()  # a worker leaves when its pipe does
        for process in self.processes:
            process.join(5)
            if process.is_alive():
                process.terminate()
                process.join()


def _serve(pipe: Connection, config: Config, shards: list[int]) -> None:
    """A child's life: build the shards, then play, save and load on request."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    from coterie.nn.threads import fixed_threads

    with fixed_threads(config.train.threads):
        _answer_requests(pipe, config, shards)


def _answer_requests(pipe: Connection, config: Config, shards: list[int]) -> None:
    from coterie.training.build import build_groups, build_runner, build_world

    runners = None
    while True:
        try:
            request, *arguments = pipe.recv()
        except (EOFError, ConnectionResetError):
            return
        try:
            if runners is None:
                groups = build_groups(config, build_world(config.world, 1), learning=False)
                runners = [build_runner(config, shard, groups) for shard in shards]
            pipe.send((False, [_answer(runner, i, request, arguments, config) for i, runner in enumerate(runners)]))
        except BrokenPipeError:
            return
        except CoterieError as error:
            pipe.send((True, str(error)))
        except Exception:  # whatever else went wrong is the parent's to report, with the child's own traceback
            pipe.send((True, traceback.format_exc()))


def _answer(runner: Any, place: int, request: str, arguments: list[Any], config: Config) -> Any:
    if request == "play":
        iteration, weights = arguments
        _set_weights(runner, weights)
        return runner.play(config.train.rollout_steps, iteration, config.train.progress(iteration))
    if request == "load":
        return runner.load(arguments[0][place])
    return runner.save()


def _set_weights(runner: Any, weights: Mapping[str, State]) -> None:
    for actor in runner.actors:
        if actor.group_spec.group in weights:
            actor.policy.load(weights[actor.group_spec.group])


def start(config: Config, groups: list[Group]) -> Workers:
    """The workers that a config asks for."""
    return ProcessWorkers(config, groups) if config.train.workers else LocalWorkers(config, groups)
