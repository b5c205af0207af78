"""Crashes at any file-system operation: a process that is killed, or a machine that loses what was not synced."""

import contextlib
import os
from dataclasses import dataclass, field

import pytest

from coterie.core import files
from coterie.runs import checkpoint

WRITERS = (checkpoint, files)  # modules that open the files of a save
OPERATIONS = ("mkdir", "rename", "replace", "unlink", "rmdir", "fsync")


class Crash(BaseException):
    """The process is gone; nothing that catches errors may go on."""


@dataclass
class Disk:
    """Counts operations, and crashes at one of them: `before` it, `torn` in the middle of a write, or `after` it."""

    at: int = 0  # the operation to crash at, counted from 1; 0: none
    moment: str = "before"
    loses: bool = False  # whether what was not synced is lost: a power cut
    done: list[tuple[str, str]] = field(default_factory=list)  # operations and the last part of their paths
    unsynced: dict[str, int] = field(default_factory=dict)  # path -> file descriptor
    dead: bool = False

    def crash(self):
        self.dead = True
        if self.loses:
            for path in self.unsynced:
                with contextlib.suppress(FileNotFoundError):
                    os.truncate(path, os.path.getsize(path) // 2)
        raise Crash

    def perform(self, name, path, act, torn=lambda: None):
        """One operation, or the crash at it."""
        if self.dead:
            raise Crash
        self.done.append((name, os.path.basename(str(path))))
        here = len(self.done) == self.at
        if here and self.moment == "torn":
            torn()
        if here and self.moment != "after":
            self.crash()
        try:
            return act()
        finally:
            if here:
                self.crash()

    @contextlib.contextmanager
    def watched(self):
        """Carry out every operation through `perform`."""
        with pytest.MonkeyPatch.context() as patch:
            for name in OPERATIONS:
                patch.setattr(os, name, self.wrapped(name, getattr(os, name)))
            for module in WRITERS:
                patch.setattr(module, "open", self.open, raising=False)
            yield self

    def wrapped(self, name, real):
        def call(*arguments, **options):
            target = arguments[1] if name in ("rename", "replace") else arguments[0]
            if name == "fsync":
                self.unsynced = {path: handle for path, handle in self.unsynced.items() if handle != target}
            return self.perform(name, target, lambda: real(*arguments, **options))

        return call

    def open(self, path, mode="r", **options):
        if "w" not in mode:
            return open(path, mode, **options)
        return self.perform("create", path, lambda: WrittenFile(self, path))


class WrittenFile:
    """A file that is written without a buffer, through the disk."""

    def __init__(self, disk, path):
        self.disk, self.path = disk, str(path)
        self.file = open(path, "wb", buffering=0)  # noqa: SIM115  # closed by __exit__
        disk.unsynced[self.path] = self.file.fileno()

    def write(self, data):
        half = bytes(data[: len(data) // 2])
        return self.disk.perform("write", self.path, lambda: self.file.write(data), lambda: self.file.write(half))

    def flush(self):
        pass

    def fileno(self):
        return self.file.fileno()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()


def operations(act):
    """The operations of an action that is not interrupted."""
    with Disk().watched() as disk:
        act()
    return disk.done


def crashed(act, at, moment, loses=False):
    """Carry out an action until it crashes at an operation."""
    with Disk(at, moment, loses).watched(), pytest.raises(Crash):
        act()


def crash_points(done):
    """Every operation with every moment in it."""
    moments = {"write": ("before", "torn", "after")}
    return [(at, moment) for at, (name, _) in enumerate(done, 1) for moment in moments.get(name, ("before", "after"))]
