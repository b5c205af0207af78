"""EnvWorkers: apply answers to states, in this process or in child processes, each distinct answer once.

Answers are applied twice in training, in a fork that scores them and in the world that goes on with one of them, and
samples repeat: outcomes are memoised by content.
"""

from __future__ import annotations

import traceback
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from coterie.core import heartbeat
from coterie.core.child_process import ChildProcess, Lost, close_all, receive_some
from coterie.core.types import CoterieError
from coterie.worlds.tasks.task import Outcome, Task

REMEMBERED = 20_000  # outcomes
ROUNDS = 4  # shares of a batch for each process: one that is done early takes another
Answer = tuple[Any, str, str]  # state, role, text


class EnvWorkers:
    """Applies batches of answers."""

    def __init__(self, task: Task, count: int, timeout: float = 300.0) -> None:
        """`timeout`: seconds that a child process may take for one answer."""
        self.task, self.count, self.timeout = task, count, timeout
        self.known: OrderedDict[Answer, Outcome] = OrderedDict()
        self.children: list[ChildProcess] = []

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
        if not self.count or len(answers) < 2:
            return [_applied(self.task, *answer) for answer in answers]
        if not self.children:
            self._start()
        size = max(1, len(answers) // (ROUNDS * self.count))
        starts = list(range(0, len(answers), size))
        shares = {start: answers[start : start + size] for start in starts}
        outcomes: dict[int, list[Outcome]] = {}
        doing: dict[ChildProcess, int] = {}  # the start of the share that a process applies
        idle = [*self.children]
        try:
            while starts or doing:
                while starts and idle:
                    child = idle.pop(0)
                    doing[child] = starts.pop(0)
                    child.send(shares[doing[child]])
                busy = [*doing]
                for index, reply in receive_some(busy).items():
                    start = doing.pop(busy[index])
                    outcomes[start] = self._read(reply, shares[start])
                    idle.append(busy[index])
        except BaseException:
            self.close()  # others may still be busy with this batch
            raise
        return [outcome for start in shares for outcome in outcomes[start]]

    def _start(self) -> None:
        for _ in range(self.count):
            child = ChildProcess(_serve, (self.task, self.timeout), "world.env_workers", self.timeout)
            self.children.append(child)
        self._finalizer = weakref.finalize(self, close_all, self.children)  # forks of a world share its workers

    def _read(self, reply: Any, share: Sequence[Answer]) -> list[Outcome]:
        """The outcomes of a share, or the error of what failed."""
        cure = "a run continues from its last checkpoint with 'coterie resume'"
        if isinstance(reply, Lost) and reply.hung:
            place = max(reply.activity.step, 0)
            _, role, text = share[place] if place < len(share) else share[-1]
            raise CoterieError(
                f"world.env_workers: {reply.reason} (world.timeout) while the answer {text!r:.80} of '{role}' "
                f"was applied; {cure}"
            )
        if isinstance(reply, Lost):
            raise CoterieError(
                f"a process of world.env_workers was lost: {reply.reason}; {cure}; "
                "world.env_workers=0 needs no processes"
            )
        if isinstance(reply, Exception):
            raise reply
        found: list[Outcome] = reply
        return found

    def close(self) -> None:
        """End the child processes; the end of the world does so too."""
        if self.children:
            self._finalizer()
            self.children = []


def _applied(task: Task, *answer: Any) -> Outcome:
    heartbeat.own.beat()
    return task.apply(*answer)


def _serve(pipe: Connection, task: Task, timeout: float) -> None:
    """The main function of a child process."""
    while True:
        try:
            answers = pipe.recv()
        except (EOFError, ConnectionResetError):
            return
        reply: list[Outcome] | Exception = []
        try:
            outcomes = []
            for place, answer in enumerate(answers):
                heartbeat.own.enter(timeout, step=place)
                outcomes.append(task.apply(*answer))
            reply = outcomes
        except CoterieError as error:
            reply = CoterieError(str(error))  # other classes of errors may need arguments to be unpickled
        except (OSError, MemoryError) as error:
            reply = error
        except Exception:  # a task may raise anything; the trainer reports it with this process's traceback
            reply = RuntimeError(f"a process of world.env_workers failed:\n{traceback.format_exc()}")
        heartbeat.own.leave()
        try:
            pipe.send(reply)
        except BrokenPipeError:
            return
