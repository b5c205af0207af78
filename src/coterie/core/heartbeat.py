"""Heartbeats: what a process is doing right now, for whoever waits for it.

Every process has one, `own`. Environments and worlds write into it before each step, so that a slow step is told apart
from one that never ends. `child_process.py` shares it with the process that waits.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from coterie.core import signals

POLL = 0.25  # seconds between looks at a heartbeat
GRACE = 10.0  # seconds that a step of a world may still take after a signal has asked the command to stop
START = 120.0  # seconds that a process may take at least to start, imports included
LIMIT = 600.0  # seconds that anything may take without a sign of life where no setting says otherwise
_FIELDS = ctypes.c_longlong * 7


class Activity(NamedTuple):
    """The activity of a process at its last sign of life."""

    beats: int = 0  # signs of life so far
    in_world: bool = False  # inside a step, a reset or the construction of a world
    limit: float = 0.0  # seconds that it may take; 0: as long as the waiting side allows
    copy: int = -1  # copy of the environment; -1: all copies at once
    episode: int = -1
    step: int = -1  # of the episode, or of all copies; 0: the reset; -1: the constructor
    seed: int = -1  # of the episode

    def where(self, world: str) -> str:
        """The place in words, for messages; `world`: the world's name."""
        if not self.in_world:
            return "outside of environments (a policy, a language model or compilation)"
        during = "when it is built" if self.step < 0 else "reset" if self.step == 0 else f"step {self.step}"
        if self.copy < 0:
            return f"{world}, all copies, {during}"
        if self.step < 0:
            return f"{world}, copy {self.copy}, {during}"
        return f"{world}, copy {self.copy}, episode {self.episode} (seed {self.seed}), {during}"


class Heartbeat:
    """The present activity of a process, in memory that another process may read."""

    def __init__(self, fields: Any = None, watched: bool = True) -> None:
        """`fields`: memory that the parent process reads, too; `watched`: another process looks at this heartbeat."""
        self.fields = _FIELDS() if fields is None else fields
        self.watched = watched
        self.world = "the world"  # name of the world that was entered last, for messages of this process

    def beat(self) -> None:
        """Show a sign of life."""
        self.fields[0] += 1

    def enter(self, limit: float = 0.0, copy: int = -1, episode: int = -1, step: int = -1, seed: int = -1) -> None:
        """Show a sign of life; a step of a world begins."""
        self.fields[:] = (self.fields[0] + 1, 1, int(limit * 1000), copy, episode, step, seed)

    def leave(self) -> None:
        """Show a sign of life; the step has ended. Its place is kept."""
        self.fields[0] += 1
        self.fields[1] = 0

    @contextmanager
    def stepping(self, limit: float = 0.0, step: int = -1) -> Iterator[None]:
        """A step of all copies of a world, or with step 0 their reset."""
        self.enter(limit, step=step)
        try:
            yield
        finally:
            self.leave()

    def mirror(self, seen: Activity, limit: float, beats: bool) -> None:
        """Show the activity of a process that this one waits for."""
        place = (seen.copy, seen.episode, seen.step, seen.seed)
        self.fields[:] = (self.fields[0] + beats, int(seen.in_world), int(limit * 1000), *place)

    def read(self) -> Activity:
        """The activity."""
        beats, in_world, limit, *place = self.fields
        return Activity(beats, bool(in_world), limit / 1000, *place)


class Patience:
    """Measures for how long a process has shown no sign of life.

    Time counts by looks, which follow each other every moment: while the whole command is stopped (Ctrl-Z) or the
    machine sleeps, no time passes.
    """

    def __init__(self, deadline: float) -> None:
        """`deadline`: seconds of silence outside of worlds, and in worlds that have no limit of their own."""
        self.deadline = deadline
        self.activity = Activity()
        self.restart()

    def restart(self) -> None:
        """Begin to wait."""
        self.silent, self.looked, self.changed = 0.0, time.monotonic(), True

    @property
    def allowed(self) -> float:
        """Seconds of silence after which the process counts as hanging."""
        starting = START if self.activity.beats == 0 else 0.0
        return max(self.activity.limit or self.deadline, starting)

    def look(self, activity: Activity) -> bool:
        """Take note of the latest activity; whether the process hangs."""
        now = time.monotonic()
        self.changed = activity.beats != self.activity.beats
        self.silent = 0.0 if self.changed else self.silent + min(now - self.looked, 4 * POLL)
        self.activity, self.looked = activity, now
        return self.silent >= self.allowed

    def leave_if_asked(self, world: str) -> None:
        """Raise `Interrupted` where a signal has asked to stop and a step of a world does not end."""
        if signals.stop_asked.is_set() and self.activity.in_world and self.silent >= GRACE:
            where = self.activity.where(world)
            raise signals.Interrupted(f"stopped by a signal; {where}: no sign of life for {self.silent:.0f} s")


own = Heartbeat(watched=False)  # of this process


def adopt(heartbeat: Heartbeat) -> None:
    """Use this heartbeat, which another process looks at, from now on."""
    global own
    own = heartbeat
