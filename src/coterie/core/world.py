"""The World protocol and what a world may offer beyond it.

A world is N copies of one environment, stepped together as arrays. Capabilities are protocols of their
own; `build.py` checks them once, where objects are put together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from coterie.core.types import AgentType, Array, CoterieError, State, TimeStep


class World(Protocol):
    """N copies of one environment. Copies that end are reset by the world itself, within `step`."""

    agent_types: Mapping[str, AgentType]
    num_envs: int
    simultaneous: bool  # every agent still in its episode acts at every time step
    state_size: int  # length Z of one copy's `TimeStep.state`; 0 for a world without a global state

    def reset(self, seed: int) -> TimeStep:
        """Start every copy anew; the same seed gives the same future."""
        ...

    def step(self, actions: Mapping[str, Array]) -> TimeStep:
        """Take one action per agent, `[N, A, …]` for each kind; rows of idle agents are ignored."""
        ...

    def save(self) -> State:
        """All that decides the future, random state included."""
        ...

    def load(self, state: State) -> TimeStep:
        """Return to a saved moment and say again what the agents see there (rewards and ends are empty)."""
        ...


def state_size_of(world: World) -> int:
    """The world's `state_size`; a world class written before this attribute existed gets a clear error."""
    try:
        return world.state_size
    except AttributeError:
        raise CoterieError(
            f"world '{type(world).__name__}': the attribute state_size is missing; "
            "set it to 0, or to the length of TimeStep.state if the world provides one"
        ) from None


def rebuild(make: Callable[..., World], arguments: tuple[Any, ...], state: State) -> World:
    """A world made anew and brought to a saved moment: how native worlds are copied and pickled.

    Their ticks are views of their own buffers, which a plain copy would tear apart.
    """
    world = make(*arguments)
    world.load(state)
    return world


@runtime_checkable
class HasExpert(Protocol):
    """A world that brings its own reference player."""

    def expert(self, agent_type: str, random: np.random.Generator) -> Array:
        """The reference player's action for every agent of a kind, `[N, A, …]`."""
        ...


@runtime_checkable
class HasInfo(Protocol):
    """A world that has more to tell of its latest step than a tick holds, for the infos of its faces."""

    def info(self, agent: str, copy: int) -> dict[str, Any]:
        """What one agent is told beside its tick, as plain values of its own; nothing after a reset."""
        ...


@runtime_checkable
class Renderable(Protocol):
    """A world that draws its copies.

    A copy that ends is reset within `step`. A world with `draws_final` keeps the last scene of each copy's latest
    finished episode and draws it with `final=True`; a world without ignores `final` and draws the present scene.
    """

    draws_final: bool

    def frame(self, copy: int, final: bool = False) -> Array:
        """An image of one copy, `[height, width, 3]` uint8."""
        ...

    def ansi(self, copy: int, final: bool = False) -> str:
        """The same scene as text for a terminal."""
        ...


@dataclass(frozen=True)
class ReportSection:
    """A world's own part of a report."""

    parts: list[str]  # HTML, a heading first, pictures embedded
    pictures: dict[str, bytes]  # the same pictures as PNG files, by a word for the file's name
    numbers: dict[str, Any]  # what the tables show, as JSON


@runtime_checkable
class HasReportSection(Protocol):
    """A world class (not its instances) that adds a section to reports."""

    def report_section(self, runs: Sequence[Any]) -> ReportSection:
        """The section for `training.run.Run`s of one experiment; a static method."""
        ...
