"""The World protocol and what a world may offer beyond it.

A world is N copies of one environment, stepped together as arrays. Capabilities are protocols of their
own; `build.py` checks them once, where objects are put together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from coterie.core.types import AgentType, Array, ObservationSpace, State, TimeStep, Tree

if TYPE_CHECKING:
    from coterie.studies.html import ReportSection
    from coterie.training.run import Run


class World(Protocol):
    """N copies of one environment. Copies that end are reset by the world itself, within `step`."""

    agent_types: Mapping[str, AgentType]
    num_envs: int
    simultaneous: bool  # every agent still in its episode acts at every tick

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
class Stateful(Protocol):
    """A world that tells its whole state with every tick (`TimeStep.state`)."""

    state_size: int  # numbers of one copy's state


@runtime_checkable
class HasInfo(Protocol):
    """A world that has more to tell of its latest step than a tick holds, for the infos of its faces."""

    def info(self, agent: str, copy: int) -> dict[str, Any]:
        """What one agent is told beside its tick, as plain values of its own; nothing after a reset."""
        ...


@runtime_checkable
class EndRenderable(Protocol):
    """A world that can still be looked at as an episode ended, after the copy was reset."""

    def final_frame(self, copy: int) -> Array:
        """A picture of the latest finished episode's end, `[height, width, 3]` uint8."""
        ...

    def final_ansi(self, copy: int) -> str:
        """The same for a terminal."""
        ...


@runtime_checkable
class Renderable(Protocol):
    """A world that can be looked at."""

    def frame(self, copy: int) -> Array:
        """A picture of one copy, `[height, width, 3]` uint8."""
        ...

    def ansi(self, copy: int) -> str:
        """The same for a terminal."""
        ...


@runtime_checkable
class HasReportSection(Protocol):
    """A world class (not its instances) with more to say in a report than scores and curves."""

    def chapter(self, runs: Sequence[Run]) -> ReportSection:
        """Pages, pictures and numbers for runs of one experiment in this world; a static method."""
        ...


class TextCodec(Protocol):
    """How a world and a language model understand each other; made as `Name(world, agent_type)`, beside the world.

    It reads observations alone, so that nobody is told what its agent does not see.
    """

    prompt: str  # the shipped template and examples that suit it
    choices: tuple[str, ...]  # the words to choose from
    idle: Array | int | None  # the action that does nothing, for who forfeits a turn; None: there is none

    def describe(self, observation: Tree) -> list[str]:
        """What each row of `[R, …]` says to who sees it; equal texts are asked about once."""
        ...

    def actions(self, chosen: Array) -> Array:
        """The actions `[R, …]` behind numbers of choices `[R]`."""
        ...

    def samples(self) -> list[str]:
        """Descriptions of various moments, to calibrate a model by; [] where there are none."""
        ...


@runtime_checkable
class Instructing(Protocol):
    """A codec of a world that tells its agents in words what to do."""

    silent: ObservationSpace  # what is seen but for the numbers that stand for words

    def instruct(self, observation: Tree) -> list[str]:
        """What each row of `[R, …]` is asked to do."""
        ...

    def wordless(self, observation: Tree) -> Tree:
        """Observations `[…, shape]` as `silent` has them, for who reads the words instead."""
        ...


@runtime_checkable
class Graded(Protocol):
    """A codec that can be asked how well things stand."""

    grades: tuple[str, ...]  # words from worst to best; () where this world has none
    grade_prompt: str  # the shipped template and examples that ask for one

    def appraise(self, observation: Tree) -> list[str]:
        """What each row of `[R, …]` says of how things stand; equal texts are asked about once."""
        ...

    def appraisals(self) -> list[str]:
        """Such texts of various moments, as many of one grade as of another, to calibrate a model by."""
        ...

    def grade(self, observation: Tree) -> Array:
        """The number of the grade that each row truly deserves, `[R]`; −1 where nobody knows."""
        ...


@runtime_checkable
class Foretelling(Protocol):
    """A codec that can say what each choice would do, as far as its agent sees."""

    def deeds(self, observation: Tree) -> list[list[str]]:
        """For each row of `[R, …]` one deed in words for each choice, such as "go forward into lava"."""
        ...


@runtime_checkable
class Oracle(Protocol):
    """A codec that knows the best actions."""

    def optimal(self, world: Any, actions: Array) -> Array:
        """Which of the actions `[N, A]` of the whole kind are as good as any at this moment, `[N, A]` bool."""
        ...
