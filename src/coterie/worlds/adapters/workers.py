"""Workers that step third-party environments: in this process, or in child processes with shared memory.

Both kinds have the same interface: `send` a method call, then `receive` its result. A child process that dies or
exceeds the timeout is reported as an `EnvFailure` of the copy it was stepping. `ExternalWorld` decides about restarts.
"""

from __future__ import annotations

import itertools
import mmap
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any, Protocol

from coterie.core.child_process import ChildProcess, Lost, close_all, receive_all
from coterie.core.heartbeat import START
from coterie.core.types import Array, CoterieError
from coterie.worlds.adapters.batch import (
    BatchArrays,
    EnvBatch,
    EnvFactory,
    EnvFailure,
    EnvSpec,
    ExternalEnvError,
    collect_warnings,
    describe_error,
    take_warnings,
    warn_once,
)


@dataclass(frozen=True)
class WorkerSpec:
    """Settings for building the environments of a world and distributing them."""

    world_name: str  # for messages
    make_env: EnvFactory
    processes: int = 0
    timeout: float = 300.0
    fresh: bool = False

    @property
    def startup_timeout(self) -> float:
        """Seconds that the construction of an environment may take, imports included."""
        return max(START, self.timeout)


class Worker(Protocol):
    """Steps the environments of a range of copies."""

    copies: range

    def send(self, method: str, *arguments: Any) -> None:
        """Start a call of an `EnvBatch` method."""
        ...

    def receive(self) -> Any:
        """The result of the call, or an `EnvFailure`."""
        ...

    def call(self, method: str, *arguments: Any) -> Any:
        """Send and receive."""
        ...

    def set_seed(self, seed: int) -> None:
        """Derive the seeds of later episodes from this one."""
        ...

    def replay(self, copy: int, actions: Mapping[str, Array], length: int) -> EnvFailure | None:
        """Start a copy's episode again and repeat its first `length` actions."""
        ...

    def restart(self, seed: int) -> None:
        """Replace a dead process by a new one."""
        ...

    def close(self) -> None:
        """Close the environments and end the process."""
        ...


class LocalWorker:
    """Steps all copies in this process. An environment that kills the process takes the run with it.

    One that hangs is named after a while (`runs/interrupt.py`), and ends with Ctrl-C.
    """

    def __init__(self, batch: EnvBatch, copies: range) -> None:
        self.batch, self.copies = batch, copies
        self._result: Any = None

    def send(self, method: str, *arguments: Any) -> None:
        self._result = getattr(self.batch, method)(*arguments)

    def receive(self) -> Any:
        return self._result

    def call(self, method: str, *arguments: Any) -> Any:
        self.send(method, *arguments)
        return self._result

    def set_seed(self, seed: int) -> None:
        self.batch.set_seed(seed)

    def replay(self, copy: int, actions: Mapping[str, Array], length: int) -> EnvFailure | None:
        return self.batch.replay(copy, actions, length)

    def restart(self, seed: int) -> None:
        raise AssertionError("the main process cannot be restarted")

    def close(self) -> None:
        self.batch.close()


class ProcessWorker:
    """Steps its copies in a child process that writes into shared memory and replies through a pipe."""

    def __init__(self, spec: WorkerSpec, copies: range) -> None:
        self.spec, self.copies = spec, copies
        self._shared: tuple[SharedMemory, BatchArrays] | None = None
        self.start()

    def start(self) -> None:
        """Start the process, which builds its environments at once."""
        self.child = ChildProcess(serve, (self.spec, self.copies), self.spec.world_name, self.spec.timeout)
        self.child.busy = True

    def wait_until_built(self) -> EnvSpec:
        """Wait until the child has built its environments."""
        result = self.receive()
        if isinstance(result, EnvFailure):
            raise _build_error(self.spec, result.message)
        if isinstance(result, CoterieError):
            raise result
        env_spec: EnvSpec = result
        return env_spec

    def share(self, memory: SharedMemory, arrays: BatchArrays) -> None:
        """Send the shared memory to the child."""
        self._shared = (memory, arrays)
        self._attach()

    def _attach(self) -> None:
        assert self._shared is not None
        memory, arrays = self._shared
        self.send("attach", arrays.env_spec, arrays.num_envs, memory.size)
        memory.send(self.child.pipe, self.child.pid)
        self.receive()

    def send(self, method: str, *arguments: Any) -> None:
        self.child.send((method, arguments))

    def receive(self) -> Any:
        return self.read(self.child.receive())

    def read(self, reply: Any) -> Any:
        """The result that a reply of the child holds; a child that was lost is an `EnvFailure`."""
        if not isinstance(reply, Lost):
            result, warnings = reply
            for warning in warnings:
                warn_once(*warning)  # several processes may report the same
            return result
        seen = reply.activity
        copy = seen.copy if seen.copy in self.copies else self.copies.start
        message = reply.reason
        if reply.hung:
            message += f" (world.timeout); the seed of its episode is {seen.seed}"
        resetting = self._shared is not None and bool(self._shared[1].resetting[copy])
        return EnvFailure(copy, "reset" if resetting else "step", message, process_died=True)

    def call(self, method: str, *arguments: Any) -> Any:
        self.send(method, *arguments)
        return self.receive()

    def set_seed(self, seed: int) -> None:
        self.call("set_seed", seed)

    def replay(self, copy: int, actions: Mapping[str, Array], length: int) -> EnvFailure | None:
        failure: EnvFailure | None = self.call("replay", copy, dict(actions), length)
        return failure

    def restart(self, seed: int) -> None:
        self.start()
        self.wait_until_built()
        self._attach()
        self.set_seed(seed)
        assert self._shared is not None
        self._shared[1].resetting[self.copies.start : self.copies.stop] = False

    def close(self) -> None:
        close_all([self.child])


def _build_error(spec: WorkerSpec, message: str) -> ExternalEnvError:
    """The error of an environment that cannot be built; it names `world.options` where the constructor rejects one."""
    path = "world.options: " if "unexpected keyword argument" in message else ""
    return ExternalEnvError(f"{path}{spec.world_name}: cannot be built: {message}")


def start_workers(spec: WorkerSpec, num_envs: int) -> tuple[list[Worker], EnvSpec, BatchArrays]:
    """Build all environments and the arrays they write into."""
    if not spec.processes:
        copies = range(num_envs)
        try:
            batch = _build(spec, copies)
        except CoterieError:
            raise
        except (Exception, SystemExit) as error:  # third-party constructors may raise anything
            raise _build_error(spec, describe_error(error)) from error
        arrays = BatchArrays(batch.env_spec, num_envs)
        batch.attach(arrays)
        return [LocalWorker(batch, copies)], batch.env_spec, arrays
    edges = [num_envs * i // spec.processes for i in range(spec.processes + 1)]
    workers: list[ProcessWorker] = []
    try:
        for start, stop in itertools.pairwise(edges):
            workers.append(ProcessWorker(spec, range(start, stop)))
        env_specs = [worker.wait_until_built() for worker in workers]
        env_spec = env_specs[0]
        size = BatchArrays(env_spec, num_envs).size
        memory = SharedMemory(size)
        arrays = BatchArrays(env_spec, num_envs, memory.map)
        for worker in workers:
            worker.share(memory, arrays)
    except BaseException:
        close_all([worker.child for worker in workers])
        raise
    return [*workers], env_spec, arrays


def _build(spec: WorkerSpec, copies: range) -> EnvBatch:
    return EnvBatch(spec.make_env, copies, spec.fresh, spec.world_name, spec.timeout, spec.startup_timeout)


def receive_results(workers: Sequence[Worker]) -> list[Any]:
    """The results of all workers' calls, or `EnvFailure` objects; processes are waited for together."""
    processes = [worker for worker in workers if isinstance(worker, ProcessWorker)]
    if len(processes) < 2:
        return [worker.receive() for worker in workers]
    replies = receive_all([worker.child for worker in processes])
    return [worker.read(reply) for worker, reply in zip(processes, replies, strict=True)]


def close_workers(workers: Sequence[Worker]) -> None:
    """Close all workers."""
    for worker in workers:
        worker.close()


class SharedMemory:
    """Memory shared through an unnamed file, so that nothing is left behind however a process ends."""

    def __init__(self, size: int) -> None:
        directory = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self.file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115  # open while children may be restarted
        self.file.truncate(size)
        self.size = size
        self.map = mmap.mmap(self.file.fileno(), size)

    def send(self, pipe: Connection, process: int | None) -> None:
        """Send the file handle to a child process."""
        reduction.send_handle(pipe, self.file.fileno(), process)


# The child process --------------------------------------------------------------------------------------


def serve(pipe: Connection, spec: WorkerSpec, copies: range) -> None:
    """Main function of a child process: build the environments, then serve calls until the pipe closes."""
    collect_warnings()  # they travel with the replies
    try:
        batch = _build(spec, copies)
        pipe.send((batch.env_spec, take_warnings()))
    except CoterieError as error:
        pipe.send((CoterieError(str(error)), take_warnings()))
        return
    except (Exception, SystemExit) as error:  # third-party constructors may raise anything
        pipe.send((EnvFailure(copies.start, "reset", describe_error(error)), take_warnings()))
        return
    while True:
        try:
            method, arguments = pipe.recv()
        except (EOFError, ConnectionResetError):
            batch.close()
            return
        if method == "attach":
            env_spec, num_envs, size = arguments
            handle = reduction.recv_handle(pipe)
            memory = mmap.mmap(handle, size)
            os.close(handle)
            batch.attach(BatchArrays(env_spec, num_envs, memory))
            result = None
        else:
            result = getattr(batch, method)(*arguments)
        try:
            pipe.send((result, take_warnings()))
        except BrokenPipeError:
            return
