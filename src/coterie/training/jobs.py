"""Several trainings at a time, each in a process of its own, so that none can change another's numbers."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

from coterie.core.signals import ctrl_c_blocked
from coterie.core.types import CoterieError
from coterie.runs.interrupt import Interrupted, Interruption, interruptible

PATIENCE = 0.5  # seconds between looks for a signal


class NothingKept:
    """The result of a task that a signal stopped before its first checkpoint."""


def demand_jobs(jobs: int) -> None:
    """Refuse a number of processes below 1."""
    if jobs < 1:
        raise CoterieError(f"--jobs: expected at least 1 process, got {jobs}; --jobs 1 runs one after the other")


def refuse_second_import() -> None:
    """Refuse to train while a new process imports the user's script once more, which would start everything again."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # as multiprocessing itself asks
        raise CoterieError(
            "a process of jobs or workers imports this script again; put what the script does below "
            'if __name__ == "__main__":'
        )


def run_parallel(
    function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], jobs: int, interrupted: Interruption
) -> Iterator[tuple[int, Any]]:
    """Call `function(*task)` for every task in up to `jobs` processes; yields (index, result) as they end.

    Function and tasks must be picklable. An error of ours in a process is raised here, after the others have ended. A
    signal to this process is passed on once, so that trainings save; tasks of which nothing is kept are left out.
    """
    context = multiprocessing.get_context("spawn")
    running: dict[Connection, tuple[int, SpawnProcess]] = {}
    left, passed_on, failure = list(enumerate(tasks)), False, None
    try:
        while left or running:
            while left and len(running) < jobs and not interrupted.is_set() and failure is None:
                index, task = left.pop(0)
                receiver, sender = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(sender, sys.path, function, task))
                with ctrl_c_blocked():
                    process.start()
                sender.close()
                running[receiver] = (index, process)
            if not running:
                break
            if interrupted.is_set() and not passed_on:
                passed_on = True
                _pass_on([process for _, process in running.values()])
            for ready in wait(list(running), PATIENCE):
                assert isinstance(ready, Connection)
                index, process = running.pop(ready)
                found, error = _receive(ready, process)
                if error is not None:
                    killed = interrupted.is_set() and process.exitcode == -signal.SIGTERM  # while it was starting
                    failure = failure if killed else failure or error
                elif not isinstance(found, NothingKept):
                    yield index, found
    finally:
        _pass_on([process for _, process in running.values()])
        for _, process in running.values():
            process.join()
    if failure is not None:
        raise failure


def _receive(receiver: Connection, process: SpawnProcess) -> tuple[Any, CoterieError | None]:
    """The result that a process has sent before it ended, or an error."""
    try:
        found = receiver.recv()
    except EOFError:
        process.join()
        found = CoterieError(f"a process of --jobs ended with exit code {process.exitcode}; its error stands above")
    receiver.close()
    process.join()
    return (None, found) if isinstance(found, CoterieError) else (found, None)


def _pass_on(processes: Sequence[SpawnProcess]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, signal.SIGTERM)


def _work(sender: Connection, path: list[str], function: Callable[..., Any], task: tuple[Any, ...]) -> None:
    """Run one task in a child process; its own process group, since Ctrl-C is passed on by the parent alone."""
    os.setpgrp()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # forgets one that came while this process was starting
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    sys.path[:] = path
    logging.basicConfig(level=logging.WARNING, format="coterie: %(message)s", stream=sys.stderr)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        with interruptible(deliver=False, announce=False):  # a signal stops the training, not this process
            found: Any = function(*task)
    except Interrupted:  # before the first checkpoint
        found = NothingKept()
    except CoterieError as error:
        found = CoterieError(str(error))  # other classes of errors may need arguments to be unpickled
    with contextlib.suppress(BrokenPipeError):  # the command was killed; what the training has saved stays
        sender.send(found)
    sender.close()


def _end_with_parent() -> None:
    """Signal this process as soon as the command that started it is gone: its training saves and ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # this is a child process
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
