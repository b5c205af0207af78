"""The base class of worlds, and protocols for the optional capabilities of a world.

A world is N copies of one environment, stepped together as arrays. `training/build.py` checks capabilities once, when
it builds the objects of a run.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from coterie.core.types import AgentType, Array, Counters, State, TimeStep


class World(abc.ABC):
    """The base class of worlds: N copies of one environment. `step` resets a copy whose episode ends.

    A world is built as `Name(settings, num_envs)` and sets the attributes below. Capabilities of several methods, and
    those that a policy can ask for, are protocols.
    """

    agent_types: Mapping[str, AgentType]
    num_envs: int
    simultaneous: bool  # every agent acts at every time step of its episode
    state_size: int = 0  # length Z of one copy's `TimeStep.state`; 0 for a world without a global state
    limits_episodes: bool = True  # its episodes are known to end after some number of steps at the latest

    @abc.abstractmethod
    def reset(self, seed: int) -> TimeStep:
        """Start a new episode in every copy; the same seed and actions give the same time steps."""

    @abc.abstractmethod
    def step(self, actions: Mapping[str, Array]) -> TimeStep:
        """Take one action per agent, `[N, A, …]` for each agent type; rows of agents that do not act are ignored."""

    @abc.abstractmethod
    def save(self) -> State:
        """Return the full state, including that of the random generators."""

    @abc.abstractmethod
    def load(self, state: State) -> TimeStep:
        """Restore a saved state and return its time step, without rewards and episode ends."""

    def counters(self) -> Counters:
        """Counts and means of what happened since the last reset by name, for logs and evaluations."""
        return {}

    def info(self, agent: str, copy: int) -> dict[str, Any]:
        """Additional information about one agent's latest step, as a new dict of plain values; empty after a reset.

        Exported environments return it in their `info` dicts.
        """
        return {}

    def legend(self) -> tuple[Sign, ...]:
        """The `Sign`s of its texts and pictures, those of agents with the agent's name."""
        return ()

    def last_instance(self, copy: int) -> str | None:
        """The beginning of the latest episode that ended in a copy, as a text that is equal for equal instances.

        It is for worlds whose instances may come again and so are fewer than the episodes; None: they do not.
        """
        return None


def check_state(world: World) -> None:
    """Raise `ValueError` for a world of a user's own whose `save` returns no state."""
    state = world.save()
    if not isinstance(state, dict):
        raise ValueError(
            f"'{type(world).__name__}.save' must return the full state as a dictionary, which 'load' restores; it "
            f"returned {type(state).__name__}"
        )


def rebuild(make: Callable[..., World], arguments: tuple[Any, ...], state: State) -> World:
    """Make a world and load a saved state; native worlds are copied and pickled this way.

    Their time steps are views of their buffers, which a plain copy would separate.
    """
    world = make(*arguments)
    world.load(state)
    return world


@runtime_checkable
class HasExpert(Protocol):
    """A world with a scripted expert."""

    def expert(self, agent_type: str, random: np.random.Generator) -> Array:
        """Return the expert's action for every agent of a type, `[N, A, …]`."""
        ...


@runtime_checkable
class HasGuess(Protocol):
    """A world of text actions that can make up a well-formed answer, as a baseline that knows the format alone."""

    def guess(self, agent_type: str, random: np.random.Generator) -> Array:
        """Return a random well-formed text for every agent of a type, `[N, A]` of str."""
        ...


@runtime_checkable
class Forkable(Protocol):
    """A world whose copies can be split, to try several actions from one state."""

    def fork(self, index: Array) -> World:
        """Return a world of `len(index)` copies for one step; copy j starts as copy `index[j]`, random state included.

        Stepping it changes nothing here. An action has the same outcome in a fork and in the world itself.
        """
        ...

    def observe(self) -> TimeStep:
        """Return the present time step, without rewards and episode ends."""
        ...


@runtime_checkable
class CostlySteps(Protocol):
    """A world whose steps are expensive: evaluations play few copies, and stop those that are done."""

    def number_episodes(self) -> None:
        """From the next reset on, episode e of copy c begins like the first one of copy c + e·N in a larger world."""
        ...

    def pause(self, copies: Array) -> None:
        """Stop stepping these copies `[N]` bool until the next reset: their agents neither act nor get rewards."""
        ...


@runtime_checkable
class Renderable(Protocol):
    """A world that can be rendered.

    A copy that ends is reset within `step`. A world with `draws_final` keeps the last frame of each copy's latest
    finished episode and renders it with `final=True`; other worlds ignore `final` and render the present state.
    `World.legend` explains their signs.
    """

    draws_final: bool

    def frame(self, copy: int, final: bool = False) -> Array:
        """Return an image of one copy, `[height, width, 3]` uint8."""
        ...

    def ansi(self, copy: int, final: bool = False) -> str:
        """Return the same scene as text for a terminal."""
        ...


class Sign(NamedTuple):
    """An entry of a legend: a sign in a world's pictures or texts, and its meaning."""

    text: str  # in `Renderable.ansi`; empty: a remark on pictures
    meaning: str  # an agent's name, or words
    colour: tuple[int, int, int] = (110, 110, 110)  # red, green, blue
