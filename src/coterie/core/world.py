"""The World protocol, and protocols for the optional capabilities of a world.

A world is N copies of one environment, stepped together as arrays. `training/build.py` checks capabilities once, when
it builds the objects of a run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from coterie.core.types import AgentType, Array, CoterieError, State, TimeStep


class World(Protocol):
    """N copies of one environment. `step` resets a copy whose episode ends.

    A class may have more members, each of which one place reads (capabilities of several members, and those that a
    policy can ask for, are protocols below):

    - `limits_episodes`: whether its episodes are known to end after some number of steps at the latest; True if it is
      not there;
    - `counters()`: counts and means of what happened since the last reset by name, for logs and evaluations;
    - `info(agent, copy)`: additional information about one agent's latest step as a new dict of plain values, empty
      after a reset, for the `info` dicts of exported environments;
    - `last_instance(copy)`: the beginning of the latest episode that ended in a copy, a text that is equal for equal
      instances, where instances may come again and so are fewer than the episodes.
    Its settings may have

    - `evaluation_copies`: the most copies that play an evaluation;
    - `for_evaluation()`: the settings for evaluations, matches and videos, with held-out instances for example;
    - `for_validation()`: the settings for evaluations in training, which choose the best checkpoint, where those play
      other instances again.
    """

    agent_types: Mapping[str, AgentType]
    num_envs: int
    simultaneous: bool  # every agent acts at every time step of its episode
    state_size: int  # length Z of one copy's `TimeStep.state`; 0 for a world without a global state

    def reset(self, seed: int) -> TimeStep:
        """Reset every copy; the same seed and actions give the same time steps."""
        ...

    def step(self, actions: Mapping[str, Array]) -> TimeStep:
        """Take one action per agent, `[N, A, …]` for each agent type; rows of agents that do not act are ignored."""
        ...

    def save(self) -> State:
        """Return the full state, including that of the random generators."""
        ...

    def load(self, state: State) -> TimeStep:
        """Restore a saved state and return its time step, without rewards and episode ends."""
        ...


def state_size_of(world: World) -> int:
    """Return the world's `state_size`; raise a clear error if the class does not define it."""
    try:
        return world.state_size
    except AttributeError:
        raise CoterieError(
            f"world '{type(world).__name__}': the attribute state_size is missing; "
            "set it to 0, or to the length of TimeStep.state if the world provides one"
        ) from None


def info_of(world: World, agent: str, copy: int) -> dict[str, Any]:
    """Return the world's `info` about an agent's latest step; empty for a world without it."""
    info: Callable[[str, int], dict[str, Any]] = getattr(world, "info", lambda *_: {})
    return info(agent, copy)


def check_methods(world: World) -> None:
    """Raise `ValueError` for a world of a user's own that lacks a method of the protocol."""
    for name, purpose in METHODS.items():
        if not callable(getattr(world, name, None)):
            raise ValueError(
                f"'{type(world).__name__}' has no method '{name}', which {purpose}; add it, then run the conformance "
                "tests with 'coterie check world'"
            )


def check_state(world: World) -> None:
    """Raise `ValueError` for a world of a user's own whose `save` returns no state."""
    state = world.save()
    if not isinstance(state, dict):
        raise ValueError(
            f"'{type(world).__name__}.save' must return the full state as a dictionary, which 'load' restores; it "
            f"returned {type(state).__name__}"
        )


METHODS = {  # of `World`
    "reset": "starts a new episode in every copy",
    "step": "takes the agents' actions",
    "save": "returns the state for checkpoints",
    "load": "restores a saved state",
}


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
    A world may also have `legend()`: the `Sign`s of its texts and pictures, those of agents with the agent's name.
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
