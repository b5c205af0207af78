"""Workers as Ray actors, on the cores of this machine or of a cluster.

Requests and answers are pickled as for pipes, so that workers and trainer have arrays of their own: what Ray's object
store hands out cannot be written to. A request that is the same for all workers, such as the weights, is stored once.
"""

from __future__ import annotations

import logging
import math
import os
import pickle
import re
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from coterie.config.schema import Config, RaySettings
from coterie.core import heartbeat, signals
from coterie.core.child_process import Lost
from coterie.core.cores import usable_cores
from coterie.core.heartbeat import START, Activity, Heartbeat, Patience
from coterie.core.signals import Interrupted
from coterie.core.types import CoterieError
from coterie.nn.threads import fixed_threads
from coterie.training.workers import Answer, Request, ShardService, WorkerError, lost_worker

log = logging.getLogger("coterie")
PATIENCE = 30.0  # seconds that actors may take to start without a word
LISTENING = 10.0  # seconds within which a cluster accepts a connection and answers
LOOK = 1.0  # seconds between looks at the heartbeats of actors
CAUSE = 30.0  # seconds within which a cluster knows why an actor does not answer
VERSIONS = re.compile(r"Ray: *(\S+)\s+Python: *(\S+)")
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # how a client of gRPC begins
SETTINGS_FRAME = 4  # with which its server answers
UNREACHABLE = "its machine was removed from the cluster, or cannot be reached"
CAUSES = {  # part of Ray's message -> what it means
    "low on memory": "its machine ran out of memory; fewer workers fit on it (train.workers, train.ray.cpus)",
    "node has died": UNREACHABLE,
    "node was terminated": UNREACHABLE,
    "ray.kill": "somebody ended it with ray.kill",
    "process has died": "its process was killed, perhaps for want of memory, or crashed",
    "temporarily unavailable": UNREACHABLE,
}


class RayActors:
    """An actor for each list of shards."""

    def __init__(self, config: Config, settings: RaySettings, assigned: list[list[int]]) -> None:
        self.config, self.assigned = config, assigned
        self.ray, self.started = connect(settings, len(assigned))
        self.actors: list[Any] = []
        try:
            demand_room(self.ray.nodes(), settings, len(assigned))
            resources = {"num_cpus": settings.cpus, "num_gpus": settings.gpus, "scheduling_strategy": "SPREAD"}
            serve = self.ray.remote(concurrency_groups={"heartbeat": 1}, **resources)(PickledService)
            self.actors = [serve.remote(pickle.dumps((config, mine))) for mine in assigned]
            self.wait_for_start()
        except BaseException:
            self.close()
            raise

    def wait_for_start(self) -> None:
        """Wait until all actors run, and say so where that takes long: other work may hold the cluster's cores."""
        left = [actor.__ray_ready__.remote() for actor in self.actors]
        begun, warned, deadline = time.monotonic(), False, max(START, self.config.train.timeout) if left else 0.0
        while left:
            left = self.ray.wait(left, num_returns=len(left), timeout=min(LOOK, PATIENCE))[1]
            waited = time.monotonic() - begun
            if left and waited >= deadline:
                raise WorkerError(
                    f"train.ray: {len(left)} of {len(self.actors)} workers have not started within {deadline:g} s "
                    "(train.timeout); other work may hold the cluster's cores: 'ray status' shows it"
                )
            if left and signals.stop_asked.is_set():
                raise Interrupted("stopped by a signal while Ray starts the workers")
            if left and waited >= PATIENCE and not warned:
                warned = True
                log.warning(
                    "train.ray: still waiting for %d of %d workers; 'ray status' shows why", len(left), len(self.actors)
                )

    def exchange(self, requests: Sequence[Request]) -> list[Answer]:
        stored = {id(request): self.ray.put(pickle.dumps(request)) for request in requests}
        sent = [actor.answer.remote(stored[id(one)]) for actor, one in zip(self.actors, requests, strict=True)]
        waiting = {worker: Remote(self.ray, self.actors[worker], self.config) for worker in range(len(sent))}
        answers: dict[int, Answer] = {}
        while waiting:
            ready = self.ray.wait([sent[worker] for worker in waiting], timeout=LOOK, fetch_local=False)[0]
            for worker in [worker for worker in waiting if sent[worker] in ready]:
                del waiting[worker]
                answers[worker] = self.read(worker, sent[worker])
            for worker, remote in waiting.items():
                if remote.hangs():
                    self.ray.kill(self.actors[worker])
                    raise lost_worker(self.config, self.assigned[worker], "Ray actor", remote.lost())
        return [answers[worker] for worker in range(len(sent))]

    def read(self, worker: int, answer: Any) -> Answer:
        """The answer of a worker, or the error for one that was lost with it."""
        try:
            found: Answer = pickle.loads(self.ray.get(answer))
            return found
        except self.ray.exceptions.RayError as error:
            lost = Lost(self.cause(worker, error), Activity(), hung=False)
            raise lost_worker(self.config, self.assigned[worker], "Ray actor", lost) from None

    def cause(self, worker: int, error: Exception) -> str:
        """The reason why an actor does not answer; the cluster may need a moment until it knows."""
        end = time.monotonic() + CAUSE
        while isinstance(error, self.ray.exceptions.ActorUnavailableError) and time.monotonic() < end:
            time.sleep(LOOK)
            try:
                self.ray.get(self.actors[worker].heartbeat.remote(), timeout=LOOK)
            except self.ray.exceptions.RayError as later:
                error = later if isinstance(later, self.ray.exceptions.ActorDiedError) else error
        if isinstance(error, self.ray.exceptions.ObjectLostError):
            return "its answer was lost with its machine"
        return reason(error)

    def close(self) -> None:
        for actor in self.actors:
            self.ray.kill(actor)
        if self.started:
            self.ray.shutdown()


class Remote:
    """Looks at the heartbeat of an actor that is busy."""

    def __init__(self, ray: Any, actor: Any, config: Config) -> None:
        self.ray, self.actor, self.name = ray, actor, config.world.name
        self.patience, self.looked = Patience(config.train.timeout), time.monotonic()
        self.asked, self.answers = self.ask(), True  # whether the latest question was answered within a look

    def ask(self) -> Any:
        """Ask for its heartbeat, in a thread besides the one that plays."""
        return self.actor.heartbeat.options(concurrency_group="heartbeat").remote()

    def hangs(self) -> bool:
        """Whether it has shown no sign of life for too long; raises `Interrupted` after a signal."""
        if time.monotonic() - self.looked < LOOK:
            return False
        activity, self.looked = self.patience.activity, time.monotonic()
        self.answers = bool(self.ray.wait([self.asked], timeout=0)[0])
        if self.answers:
            try:
                activity = Activity(*self.ray.get(self.asked))
            except self.ray.exceptions.RayError:  # the answer that is waited for fails, too, and says why
                return False
            self.asked = self.ask()
        hangs = self.patience.look(activity)
        if self.answers:
            self.patience.leave_if_asked(self.name)
        elif signals.stop_asked.is_set() and self.patience.silent >= heartbeat.GRACE:
            raise Interrupted(f"stopped by a signal; a Ray actor has not answered for {self.patience.silent:.0f} s")
        return hangs

    def lost(self) -> Lost:
        """The findings about an actor that hangs."""
        patience = self.patience
        if self.answers:
            return Lost(f"no sign of life for {patience.allowed:g} s", patience.activity, hung=True)
        why = "compiled code may keep its interpreter to itself; world.restarts=N plays environments in other processes"
        return Lost(f"it has not answered for {patience.allowed:g} s (train.timeout): {why}", Activity(), hung=False)


class PickledService:
    """A `ShardService` whose arguments, requests and answers are pickled; the first request reads its arguments."""

    def __init__(self, arguments: bytes) -> None:
        self.arguments = arguments
        self.service: ShardService | None = None
        self.threads = ExitStack()  # their number is fixed as long as this is held
        heartbeat.adopt(Heartbeat())

    def heartbeat(self) -> tuple[Any, ...]:
        """The present activity of this process."""
        return tuple(heartbeat.own.read())

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
        except CoterieError:
            raise
        except Exception as error:  # Ray raises its base class, too
            ray.shutdown()
            raise CoterieError(describe_start(settings.address, error)) from None
        leave_out_reports()
    return ray, True


def describe_start(address: str, error: Exception) -> str:
    """The reason why Ray cannot be used, in a sentence."""
    said = " ".join(str(error).split())
    if isinstance(error, ConnectionError):
        cure = "start one with 'ray start --head', or set train.ray.address=local"
        return f"train.ray.address: no Ray cluster answers at '{address}'; {cure}"
    versions = VERSIONS.findall(said)
    if len(versions) == 2:
        there, here = (f"Ray {ray} with Python {python}" for ray, python in versions)
        return f"train.ray.address: '{address}' runs {there}, this process {here}; both need the same versions"
    if isinstance(error, ValueError):  # an address of another form
        return f"train.ray.address: '{address}' cannot be used: {said}"
    if "timed out" in said.lower():
        cure = "the machine may be overloaded or out of memory; try again, or play without Ray: train.ray=null"
        return f"train.ray.address: Ray did not start at '{address}' in time; {cure}"
    logs = "its logs are in /tmp/ray/session_latest/logs"
    return f"train.ray.address: Ray cannot be used at '{address}': {said.partition('. ')[0]}; {logs}"


def demand_listener(address: str) -> None:
    """Raise if nobody listens at HOST:PORT, or a service that does not speak gRPC: Ray would try for many minutes."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdigit():
        return  # local, auto, or another form that Ray itself judges
    try:
        with socket.create_connection((host.strip("[]"), int(port)), LISTENING) as there:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return  # its server waits for a handshake
            answer = first_frame(there)
    except (OSError, OverflowError) as error:
        raise ConnectionError(str(error)) from None
    if len(answer) < 4 or answer[3] != SETTINGS_FRAME:
        cure = "'ray status' on the cluster's machine shows its port"
        raise CoterieError(f"train.ray.address: another service than Ray uses '{address}'; {cure}")


def first_frame(there: socket.socket) -> bytes:
    """The head of a server's first frame, or what another service says, if anything."""
    answer, end = b"", time.monotonic() + LISTENING
    try:
        there.sendall(HTTP2)
        while len(answer) < 9 and time.monotonic() < end:
            part = there.recv(9 - len(answer))
            if not part:
                break
            answer += part
    except OSError:  # it hangs up, or is silent
        pass
    return answer


def leave_out_reports() -> None:
    """Leave out what Ray prints of dead actors and machines, many lines each; a sentence says what has happened.

    Ray has no setting for it. Output of the actors still appears.
    """
    from ray._private import worker

    worker.print_to_stdstream = lambda *report, **options: None


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
    """The event that Ray's message is about."""
    words = " ".join(str(error).split())
    known = [meaning for part, meaning in CAUSES.items() if part in words]
    return known[0] if known else words.partition(". ")[0].rstrip(".")
