"""Workers that step third-party environments: in this process, or in child processes with shared memory.

Both kinds have the same interface: `send` a method call, then `receive` its result. A child process that dies or
exceeds the timeout is reported as an `EnvFailure` of the copy it was stepping. `ExternalWorld` decides about restarts.
"""

from __future__ import annotations

import itertools
import mmap
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np

from coterie.core.signals import ctrl_c_blocked
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

STARTUP_TIMEOUT = 120.0  # seconds for a child process to start and build its environments


@dataclass(frozen=True)
class WorkerSpec:
    """Settings for building the environments of a world and distributing them."""

    world_name: str  # for messages
    make_env: EnvFactory
    processes: int = 0
    timeout: float = 60.0
    fresh: bool = False


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
    """Steps all copies in this process. An environment that hangs or kills the process takes the run with it."""

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
        self._pipe: Connection | None = None
        self._process: Any = None
        self._reply_timeout = spec.timeout
        self._shared: tuple[SharedMemory, BatchArrays, int] | None = None
        self.current_copy = np.zeros(1, np.int64)
        self.start()

    def start(self) -> None:
        """Start the process, which builds its environments at once."""
        context = multiprocessing.get_context("spawn")
        self._pipe, child_pipe = context.Pipe()
        arguments = (child_pipe, self.spec, self.copies)
        name = f"environments of {self.spec.world_name}"
        self._process = context.Process(target=serve, args=arguments, daemon=True, name=name)
        try:
            with ctrl_c_blocked():
                self._process.start()
        except AssertionError:  # multiprocessing asserts that a daemonic process has no children
            raise CoterieError(
                f"{self.spec.world_name}: world.processes and train.workers cannot be used together: "
                "a worker process cannot start child processes; set one of them to 0"
            ) from None
        child_pipe.close()

    def wait_until_built(self) -> EnvSpec:
        """Wait until the child has built its environments."""
        self._reply_timeout = STARTUP_TIMEOUT
        result = self.receive()
        if isinstance(result, EnvFailure):
            raise _build_error(self.spec, result.message)
        if isinstance(result, CoterieError):
            raise result
        env_spec: EnvSpec = result
        return env_spec

    def share(self, memory: SharedMemory, arrays: BatchArrays, offset: int) -> None:
        """Send the shared memory to the child, which writes the copy it is stepping at `offset`."""
        self._shared = (memory, arrays, offset)
        self.current_copy = np.frombuffer(memory.map, np.int64, 1, offset)
        self._attach()

    def _attach(self) -> None:
        assert self._shared is not None
        assert self._pipe is not None
        memory, arrays, offset = self._shared
        self.send("attach", arrays.env_spec, arrays.num_envs, memory.size, offset)
        memory.send(self._pipe, self._process.pid)
        self.receive()

    def send(self, method: str, *arguments: Any) -> None:
        assert self._pipe is not None
        self._reply_timeout = self.spec.timeout
        try:
            self._pipe.send((method, arguments))
        except (BrokenPipeError, ConnectionResetError):
            return  # `receive` reports it

    def receive(self) -> Any:
        assert self._pipe is not None
        try:
            if self._pipe.poll(self._reply_timeout):
                result, warnings = self._pipe.recv()
                for warning in warnings:
                    warn_once(*warning)  # several processes may report the same
                return result
            message = f"no reply within {self._reply_timeout:g} seconds"
        except (EOFError, ConnectionResetError, BrokenPipeError):
            self._process.join(5)
            code = self._process.exitcode
            message = f"its process exited with code {code}"
            if code is not None and code < 0:
                message = f"its process was killed by {signal.Signals(-code).name}"
        self._kill()
        copy = int(self.current_copy[0])
        resetting = self._shared is not None and bool(self._shared[1].resetting[copy])
        return EnvFailure(copy, "reset" if resetting else "step", message, process_died=True)

    def call(self, method: str, *arguments: Any) -> Any:
        self.send(method, *arguments)
        return self.receive()

    def set_seed(self, seed: int) -> None:
        self.call("set_seed", seed)

    def replay(self, copy: int, actions: Mapping[str, Array], length: int) -> EnvFailure | None:
        self.send("replay", copy, dict(actions), length)
        self._reply_timeout = self.spec.timeout * (1 + length)
        failure: EnvFailure | None = self.receive()
        return failure

    def restart(self, seed: int) -> None:
        self.start()
        self.wait_until_built()
        self._attach()
        self.set_seed(seed)
        assert self._shared is not None
        self._shared[1].resetting[self.copies.start : self.copies.stop] = False

    def close(self) -> None:
        if self._pipe is not None:
            self._pipe.close()  # the child exits when its pipe closes
            self._pipe = None
            self._process.join(5)
        self._kill()

    def _kill(self) -> None:
        """Kill the process if it still runs, and collect its exit status."""
        if self._process.is_alive():
            self._process.kill()
        self._process.join()


def _build_error(spec: WorkerSpec, message: str) -> ExternalEnvError:
    """The error of an environment that cannot be built; it names `world.options` where the constructor rejects one."""
    path = "world.options: " if "unexpected keyword argument" in message else ""
    return ExternalEnvError(f"{path}{spec.world_name}: cannot be built: {message}")


def start_workers(spec: WorkerSpec, num_envs: int) -> tuple[list[Worker], EnvSpec, BatchArrays]:
    """Build all environments and the arrays they write into."""
    if not spec.processes:
        copies = range(num_envs)
        try:
            batch = EnvBatch(spec.make_env, copies, spec.fresh, spec.world_name)
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
        memory = SharedMemory(size + 64 * spec.processes)
        arrays = BatchArrays(env_spec, num_envs, memory.map)
        for index, worker in enumerate(workers):
            worker.share(memory, arrays, size + 64 * index)
    except BaseException:
        close_workers(workers)
        raise
    return [*workers], env_spec, arrays


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
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the parent handles them
    collect_warnings()  # they travel with the replies
    try:
        batch = EnvBatch(spec.make_env, copies, spec.fresh, spec.world_name)
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
            env_spec, num_envs, size, offset = arguments
            handle = reduction.recv_handle(pipe)
            memory = mmap.mmap(handle, size)
            os.close(handle)
            batch.attach(BatchArrays(env_spec, num_envs, memory), np.frombuffer(memory, np.int64, 1, offset))
            result = None
        else:
            result = getattr(batch, method)(*arguments)
        try:
            pipe.send((result, take_warnings()))
        except BrokenPipeError:
            return
