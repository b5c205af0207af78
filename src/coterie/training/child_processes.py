"""Workers in child processes of this machine, reached through pipes."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.connection import Connection

from coterie.config.schema import Config
from coterie.core.child_process import ChildProcess, Lost, close_all, receive_all
from coterie.nn.threads import fixed_threads
from coterie.training.workers import Answer, Request, ShardService, lost_worker


class ChildProcesses:
    """A child process for each list of shards."""

    def __init__(self, config: Config, assigned: list[list[int]]) -> None:
        self.config, self.assigned = config, assigned
        self.children: list[ChildProcess] = []
        try:
            for mine in assigned:
                self.children.append(ChildProcess(_serve, (config, mine), config.world.name, config.train.timeout))
        except BaseException:
            self.close()
            raise

    def exchange(self, requests: Sequence[Request]) -> list[Answer]:
        for child, request in zip(self.children, requests, strict=True):
            child.send(request)
        answers: list[Answer] = []
        for mine, reply in zip(self.assigned, receive_all(self.children), strict=True):
            if isinstance(reply, Lost):
                raise lost_worker(self.config, mine, "worker", reply)
            answers.append(reply)
        return answers

    def close(self) -> None:
        close_all(self.children)


def _serve(pipe: Connection, config: Config, shards: list[int]) -> None:
    """The main function of a child process."""
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
