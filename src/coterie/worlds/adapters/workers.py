"""Where a world's guests live: in this process, or divided among child processes with shared memory.

Both look alike from outside: ask, then answer. A child that dies or does not answer in time is reported as
the failure of the copy that it was busy with. Restarting is decided by the world.
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

from coterie.core.types import Array, CoterieError
from coterie.worlds.adapters.batch import Arrays, EnvBatch, EnvSpec, ExternalEnvError, Failure, Maker, describe

PATIENCE = 120.0  # seconds for a child to start and build its environments


@dataclass(frozen=True)
class WorkerSpec:
    """How guests are to be put up."""

    name: str  # the world's, for messages
    make: Maker
    processes: int = 0
    timeout: float = 60.0
    fresh: bool = False


class Host(Protocol):
    """Some of a world's copies and whoever steps them."""

    num_envs: range

    def ask(self, verb: str, *arguments: Any) -> None:
        """Have a method of the stage called."""
        ...

    def answer(self) -> Any:
        """What the method returned, or a `Failure`."""
        ...

    def call(self, verb: str, *arguments: Any) -> Any:
        """Ask and wait for the answer."""
        ...

    def use_seed(self, seed: int) -> None:
        """Derive the seeds of later episodes from this one."""
        ...

    def replay(self, copy: int, played: Mapping[str, Array], length: int) -> Failure | None:
        """Begin a copy's episode and take these actions again."""
        ...

    def revive(self, seed: int) -> None:
        """Put a new process in the place of one that is dead."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


class LocalHost:
    """All copies in this process. It cannot survive a guest that hangs or kills its process."""

    def __init__(self, stage: EnvBatch, num_envs: range) -> None:
        self.stage, self.num_envs = stage, num_envs
        self._answer: Any = None

    def ask(self, verb: str, *arguments: Any) -> None:
        self._answer = getattr(self.stage, verb)(*arguments)

    def answer(self) -> Any:
        return self._answer

    def call(self, verb: str, *arguments: Any) -> Any:
        self.ask(verb, *arguments)
        return self._answer

    def use_seed(self, seed: int) -> None:
        self.stage.use_seed(seed)

    def replay(self, copy: int, played: Mapping[str, Array], length: int) -> Failure | None:
        return self.stage.replay(copy, played, length)

    def revive(self, seed: int) -> None:
        raise AssertionError("this process is alive")

    def close(self) -> None:
        self.stage.close()


class ChildHost:
    """Some copies in a child process, which writes into shared memory and answers through a pipe."""

    def __init__(self, lodging: WorkerSpec, num_envs: range) -> None:
        self.lodging, self.name, self.timeout, self.num_envs = lodging, lodging.name, lodging.timeout, num_envs
        self._pipe: Connection | None = None
        self._process: Any = None
        self._allowed = self.timeout
        self._shared: tuple[Memory, Arrays, int] | None = None
        self.at = np.zeros(1, np.int64)
        self.spawn()

    def spawn(self) -> None:
        """Start the process; it builds its environments at once."""
        context = multiprocessing.get_context("spawn")
        self._pipe, there = context.Pipe()
        arguments = (there, self.lodging, self.num_envs)
        self._process = context.Process(target=serve, args=arguments, daemon=True, name=f"guests of {self.name}")
        try:
            self._process.start()
        except AssertionError:  # multiprocessing's way of refusing a daemon's children
            raise CoterieError(
                f"{self.name}: world.processes and train.workers cannot be used together: "
                "a worker may not start processes of its own; set one of them to 0"
            ) from None
        there.close()

    def opened(self) -> EnvSpec:
        """Wait until the environments are built."""
        self._allowed = PATIENCE
        found = self.answer()
        if isinstance(found, Failure):
            raise ExternalEnvError(f"{self.name}: cannot be built: {found.text}")
        if isinstance(found, CoterieError):
            raise found
        env_spec: EnvSpec = found
        return env_spec

    def share(self, memory: Memory, arrays: Arrays, offset: int) -> None:
        """Hand over the shared memory; at `offset` the child notes which copy it is busy with."""
        self._shared = (memory, arrays, offset)
        self.at = np.frombuffer(memory.map, np.int64, 1, offset)
        self._attach()

    def _attach(self) -> None:
        assert self._shared is not None
        assert self._pipe is not None
        memory, arrays, offset = self._shared
        self.ask("attach", arrays.env_spec, arrays.num_envs, memory.size, offset)
        memory.send(self._pipe, self._process.pid)
        self.answer()

    def ask(self, verb: str, *arguments: Any) -> None:
        assert self._pipe is not None
        self._allowed = self.timeout
        try:
            self._pipe.send((verb, arguments))
        except (BrokenPipeError, ConnectionResetError):
            return  # the answer will say so

    def answer(self) -> Any:
        assert self._pipe is not None
        try:
            if self._pipe.poll(self._allowed):
                return self._pipe.recv()
            text = f"hangs: no answer within {self._allowed:g} seconds"
        except (EOFError, ConnectionResetError, BrokenPipeError):
            self._process.join(5)
            code = self._process.exitcode
            text = f"its process exited with code {code}"
            if code is not None and code < 0:
                text = f"its process was killed by {signal.Signals(-code).name}"
        self._kill()
        copy = int(self.at[0])
        resetting = self._shared is not None and bool(self._shared[1].resetting[copy])
        return Failure(copy, "reset" if resetting else "step", text, dead=True)

    def call(self, verb: str, *arguments: Any) -> Any:
        self.ask(verb, *arguments)
        return self.answer()

    def use_seed(self, seed: int) -> None:
        self.call("use_seed", seed)

    def replay(self, copy: int, played: Mapping[str, Array], length: int) -> Failure | None:
        self.ask("replay", copy, dict(played), length)
        self._allowed = self.timeout * (1 + length)
        failure: Failure | None = self.answer()
        return failure

    def revive(self, seed: int) -> None:
        self.spawn()
        self.opened()
        self._attach()
        self.use_seed(seed)
        assert self._shared is not None
        self._shared[1].resetting[self.num_envs.start : self.num_envs.stop] = False

    def close(self) -> None:
        if self._pipe is not None:
            self._pipe.close()  # the child leaves when its pipe does
            self._pipe = None
            self._process.join(5)
        self._kill()

    def _kill(self) -> None:
        """Make sure that the process is gone and collected."""
        if self._process.is_alive():
            self._process.kill()
        self._process.join()


def open_hosts(lodging: WorkerSpec, num_envs: int) -> tuple[list[Host], EnvSpec, Arrays]:
    """Build all guests and the arrays that they write into."""
    name, processes = lodging.name, lodging.processes
    if not processes:
        try:
            stage = EnvBatch(lodging.make, range(num_envs), lodging.fresh)
        except CoterieError:
            raise
        except (Exception, SystemExit) as error:  # whatever a third-party constructor may raise
            raise ExternalEnvError(f"{name}: cannot be built: {describe(error)}") from error
        arrays = Arrays(stage.env_spec, num_envs)
        stage.attach(arrays)
        return [LocalHost(stage, range(num_envs))], stage.env_spec, arrays
    edges = [num_envs * i // processes for i in range(processes + 1)]
    children: list[ChildHost] = []
    try:
        for start, stop in itertools.pairwise(edges):
            children.append(ChildHost(lodging, range(start, stop)))
        rosters = [child.opened() for child in children]
        env_spec = rosters[0]
        size = Arrays(env_spec, num_envs).size
        memory = Memory(size + 64 * processes)
        arrays = Arrays(env_spec, num_envs, memory.map)
        for place, child in enumerate(children):
            child.share(memory, arrays, size + 64 * place)
    except BaseException:
        close_all(children)
        raise
    return [*children], env_spec, arrays


def close_all(hosts: Sequence[Host]) -> None:
    """Let go of all hosts."""
    for host in hosts:
        host.close()


class Memory:
    """A piece of memory without a name, so that nothing is left behind however a process ends."""

    def __init__(self, size: int) -> None:
        directory = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self.file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115  # open as long as children may come
        self.file.truncate(size)
        self.size = size
        self.map = mmap.mmap(self.file.fileno(), size)

    def send(self, pipe: Connection, process: int | None) -> None:
        """Let a child see it too."""
        reduction.send_handle(pipe, self.file.fileno(), process)


# The child ----------------------------------------------------------------------------------------------


def serve(pipe: Connection, lodging: WorkerSpec, num_envs: range) -> None:
    """A child's life: build the environments, then do as asked until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    try:
        stage = EnvBatch(lodging.make, num_envs, lodging.fresh)
        pipe.send(stage.env_spec)
    except CoterieError as error:
        pipe.send(CoterieError(str(error)))
        return
    except (Exception, SystemExit) as error:  # whatever a third-party constructor may raise
        pipe.send(Failure(num_envs.start, "reset", describe(error)))
        return
    while True:
        try:
            verb, arguments = pipe.recv()
        except (EOFError, ConnectionResetError):
            stage.close()
            return
        if verb == "attach":
            env_spec, total, size, offset = arguments
            handle = reduction.recv_handle(pipe)
            memory = mmap.mmap(handle, size)
            os.close(handle)
            stage.attach(Arrays(env_spec, total, memory), np.frombuffer(memory, np.int64, 1, offset))
            answer = None
        else:
            answer = getattr(stage, verb)(*arguments)
        try:
            pipe.send(answer)
        except BrokenPipeError:
            return
