"""EnvWorkers: apply answers to states, in this process or in child processes, each distinct answer once.

Answers are applied twice in training, in a fork that scores them and in the world that goes on with one of them, and
samples repeat: outcomes are memoised by content.
"""

from __future__ import annotations

import multiprocessing
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from coterie.core.signals import ctrl_c_blocked
from coterie.core.types import CoterieError
from coterie.worlds.tasks.task import Outcome, Task

REMEMBERED = 20_000  # outcomes
Answer = tuple[Any, str, str]  # state, role, text

_task: Task | None = None  # of a child process


class EnvWorkers:
    """Applies batches of answers."""

    def __init__(self, task: Task, count: int) -> None:
        self.task, self.count = task, count
        self.known: OrderedDict[Answer, Outcome] = OrderedDict()
        self._pool: ProcessPoolExecutor | None = None

    def apply(self, answers: Sequence[Answer]) -> list[Outcome]:
        """The outcome of every answer; equal answers are applied once."""
        places: dict[Answer, int] = {}  # to hash an answer takes longer than all else here
        which = [places.setdefault(answer, len(places)) for answer in answers]
        found = [self.known.pop(answer, None) for answer in places]
        new = [answer for answer, outcome in zip(places, found, strict=True) if outcome is None]
        applied = iter(self._apply(new) if new else ())
        outcomes = [next(applied) if outcome is None else outcome for outcome in found]
        self.known.update(zip(places, outcomes, strict=True))  # at the end: the first ones are forgotten first
        while len(self.known) > REMEMBERED:
            self.known.popitem(last=False)
        return [outcomes[place] for place in which]

    def _apply(self, answers: Sequence[Answer]) -> list[Outcome]:
        alone = multiprocessing.current_process().daemon  # a process that plays shards may have no children
        if not self.count or len(answers) < 2 or alone:
            return [self.task.apply(*answer) for answer in answers]
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self.count, context, _start, (self.task,))
            self._finalizer = weakref.finalize(self, self._pool.shutdown)  # forks of a world share its workers
        try:
            with ctrl_c_blocked():  # the first call starts the processes
                outcomes = self._pool.map(_apply, answers, chunksize=max(1, len(answers) // (4 * self.count)))
            return list(outcomes)
        except BrokenProcessPool:
            self.close()
            raise CoterieError(
                "a process of world.env_workers was killed, perhaps for want of memory; a run continues from its last "
                "checkpoint with 'coterie resume'; world.env_workers=0 needs no processes"
            ) from None

    def close(self) -> None:
        """End the child processes; the end of the world does so too."""
        if self._pool is not None:
            self._finalizer()
            self._pool = None


def _start(task: Task) -> None:
    global _task
    _task = task


def _apply(answer: Answer) -> Outcome:
    assert _task is not None
    return _task.apply(*answer)
