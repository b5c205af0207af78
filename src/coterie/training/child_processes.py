"""Workers in child processes of this machine, reached through pipes."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection

from coterie.config.schema import Config
from coterie.core.signals import ctrl_c_blocked
from coterie.nn.threads import fixed_threads
from coterie.runs.interrupt import SIGNALS
from coterie.training.workers import Answer, Request, ShardService, WorkerError


class ChildProcesses:
    """A child process for each list of shards."""

    def __init__(self, config: Config, assigned: list[list[int]]) -> None:
        context = multiprocessing.get_context("spawn")
        self.assigned = assigned
        self.pipes: list[Connection] = []
        self.processes = []
        for mine in assigned:
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, config, mine), daemon=True)
            with ctrl_c_blocked():
                process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    def exchange(self, requests: Sequence[Request]) -> list[Answer]:
        for worker, request in enumerate(requests):
            try:
                self.pipes[worker].send(request)
            except (BrokenPipeError, ConnectionResetError):
                raise self.died(worker) from None
        answers = []
        for worker, pipe in enumerate(self.pipes):
            try:
                answers.append(pipe.recv())
            except (EOFError, ConnectionResetError):
                raise self.died(worker) from None
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
    with fixed_threads(config.train.threads):
        _answer_requests(pipe, ShardService(config, shards))


def _answer_requests(pipe: Connection, service: ShardService) -> None:
    while True:
        try:
            request = pipe.recv()
        except (EOFError, ConnectionResetError):
            return
        try:
            pipe.send(service.answer(request))
        except BrokenPipeError:
            return
