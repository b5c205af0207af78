"""Workers as Ray actors, on the cores of this machine or of a cluster.

Requests and answers are pickled as for pipes, so that workers and trainer have arrays of their own: what Ray's object
store hands out cannot be written to. A request that is the same for all workers, such as the weights, is stored once.
"""

from __future__ import annotations

import logging
import math
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from coterie.config.schema import Config, RaySettings
from coterie.core.cores import usable_cores
from coterie.core.types import CoterieError
from coterie.nn.threads import fixed_threads
from coterie.training.workers import Answer, Request, ShardService, WorkerError

log = logging.getLogger("coterie")
PATIENCE = 30.0  # seconds that actors may take to start without a word
LISTENING = 10.0  # seconds within which a cluster accepts a connection


class RayActors:
    """An actor for each list of shards."""

    def __init__(self, config: Config, settings: RaySettings, assigned: list[list[int]]) -> None:
        self.assigned = assigned
        self.ray, self.started = connect(settings, len(assigned))
        self.actors: list[Any] = []
        try:
            demand_room(self.ray.nodes(), settings, len(assigned))
        except CoterieError:
            self.close()
            raise
        resources = {"num_cpus": settings.cpus, "num_gpus": settings.gpus, "scheduling_strategy": "SPREAD"}
        serve = self.ray.remote(**resources)(PickledService)
        self.actors = [serve.remote(pickle.dumps((config, mine))) for mine in assigned]
        self.warn_of_waiting()

    def warn_of_waiting(self) -> None:
        """Say so where actors have not started for a while: other work may have taken the cluster's cores."""
        ready = [actor.__ray_ready__.remote() for actor in self.actors]
        late = self.ray.wait(ready, num_returns=len(ready), timeout=PATIENCE)[1]
        if late:
            log.warning("train.ray: still waiting for %d of %d workers; 'ray status' shows why", len(late), len(ready))

    def exchange(self, requests: Sequence[Request]) -> list[Answer]:
        stored = {id(request): self.ray.put(pickle.dumps(request)) for request in requests}
        waiting = [actor.answer.remote(stored[id(one)]) for actor, one in zip(self.actors, requests, strict=True)]
        answers = []
        for worker, answer in enumerate(waiting):
            try:
                answers.append(pickle.loads(self.ray.get(answer)))
            except self.ray.exceptions.RayError as error:  # it died, or its machine did with the answer
                raise WorkerError(
                    f"the Ray actor playing shards {self.assigned[worker]} died ({reason(error)}); "
                    "'coterie resume' continues from the last checkpoint"
                ) from None
        return answers

    def close(self) -> None:
        for actor in self.actors:
            self.ray.kill(actor)
        if self.started:
            self.ray.shutdown()


class PickledService:
    """A `ShardService` whose arguments, requests and answers are pickled; the first request reads its arguments."""

    def __init__(self, arguments: bytes) -> None:
        self.arguments = arguments
        self.service: ShardService | None = None
        self.threads = ExitStack()  # their number is fixed as long as this is held

    def answer(self, request: bytes) -> bytes:
        """The pickled answer."""
        try:
            self.service = self.service or self.make_service()
            return pickle.dumps(self.service.answer(pickle.loads(request)))
        except Exception:  # the trainer reports it: a class that this machine lacks, or what cannot be pickled
            return pickle.dumps(Answer(True, traceback.format_exc()))

    def make_service(self) -> ShardService:
        """The service; this process keeps the number of threads that it begins with."""
        config, shards = pickle.loads(self.arguments)
        self.threads.enter_context(fixed_threads(config.train.threads))
        return ShardService(config, shards)


def connect(settings: RaySettings, workers: int) -> tuple[Any, bool]:
    """Ray itself, connected to a cluster, and whether this call has done that: a script may be connected already."""
    with kept_signal_handler():
        try:
            import ray
            import ray.exceptions
        except ModuleNotFoundError:
            raise CoterieError("train.ray needs the package ray: pip install 'coterie[ray]'") from None
        if ray.is_initialized():
            return ray, False
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        logging.getLogger("ray").setLevel(logging.ERROR)  # it also warns about its own defaults
        options: dict[str, Any] = {"logging_level": logging.ERROR, "configure_logging": False}
        if settings.address == "local":
            cores = max(usable_cores(), math.ceil(workers * settings.cpus))  # more workers than cores take turns
            options |= {"num_cpus": cores, "include_dashboard": False}
        try:
            demand_listener(settings.address)
            with search_path_in_environment():
                ray.init(address=settings.address, **options)
        except ConnectionError:
            cure = "start one with 'ray start --head', or set train.ray.address=local"
            raise CoterieError(f"train.ray.address: no Ray cluster answers at '{settings.address}'; {cure}") from None
        except (ValueError, RuntimeError) as error:  # an address of another form, another version of Ray
            raise CoterieError(f"train.ray.address: '{settings.address}' cannot be used: {error}") from None
    return ray, True


def demand_listener(address: str) -> None:
    """Raise `ConnectionError` if nobody listens at HOST:PORT: Ray would try for many minutes."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        return  # local, auto, or another form that Ray itself judges
    try:
        socket.create_connection((host.strip("[]"), int(port)), LISTENING).close()
    except (OSError, OverflowError) as error:
        raise ConnectionError(str(error)) from None


@contextmanager
def kept_signal_handler() -> Iterator[None]:
    """Undo what Ray does to SIGTERM: a training saves before it ends, Ray would end it at once."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():  # Ray changes nothing in others
            signal.signal(signal.SIGTERM, before)


@contextmanager
def search_path_in_environment() -> Iterator[None]:
    """Let processes that start meanwhile find modules where this one does."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def demand_room(nodes: list[dict[str, Any]], settings: RaySettings, workers: int) -> None:
    """Raise if the machines of the cluster can never hold all workers: Ray would wait for ever."""
    each = {kind: number for kind, number in (("CPU", settings.cpus), ("GPU", settings.gpus)) if number}
    if not each:
        return
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    room = sum(min(int(node.get(kind, 0) / number + 1e-6) for kind, number in each.items()) for node in alive)
    if room < workers:
        wanted = " and ".join(f"{number:g} {kind}" for kind, number in each.items())
        raise CoterieError(
            f"train.ray: the cluster has room for {room} of {workers} workers with {wanted} each; lower train.workers, "
            "train.ray.cpus or train.ray.gpus"
        )


def reason(error: Exception) -> str:
    """The sentence of Ray's message that says what has happened."""
    words = " ".join(str(error).split())
    return words.rpartition("Worker exit detail: ")[2].partition(". ")[0].rstrip(".")
