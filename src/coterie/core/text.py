"""Text codecs: how a world and a language model exchange observations and actions as words.

A world owns its codec (`HasTextCodec`); a group finds it with `find_text_codec`. Optional capabilities of a codec are
protocols of their own: instructions, grades, described effects, and known optimal actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from coterie.core import lookup
from coterie.core.group import GroupSpec
from coterie.core.types import Array, ObservationSpace, Text, Tree


@dataclass(frozen=True)
class Utterance:
    """One answer in an episode that is played by writing."""

    turn: int
    role: str
    prompt: str
    answer: str
    reward: float
    readable: bool
    note: str  # what the answer did, in words


@runtime_checkable
class HasTranscript(Protocol):
    """A world that is played by writing and keeps what was written."""

    def transcript(self, copy: int, final: bool = False) -> Sequence[Utterance]:
        """The texts of a copy's present episode; with `final`, of the latest one that ended."""
        ...


class TextCodec(Protocol):
    """Describes observations in words and maps words to actions; built as `Name(world, agent_type)`.

    It reads observations alone, so a model is shown nothing that its agent does not see.
    """

    @property
    def prompt(self) -> str:
        """The name of the shipped prompt template and examples that suit it."""
        ...

    @property
    def choices(self) -> tuple[str, ...]:
        """The words to choose from."""
        ...

    @property
    def idle(self) -> Array | int | None:
        """The no-op action, for a forfeited turn; None where the world has none."""
        ...

    def describe(self, observation: Tree) -> list[str]:
        """One text for each row of `[R, …]`; equal texts are asked about once."""
        ...

    def actions(self, chosen: Array) -> Array:
        """The actions `[R, …]` of choice indices `[R]`."""
        ...

    def samples(self) -> list[str]:
        """Descriptions of various states, to calibrate a model with; [] where there are none."""
        ...


@runtime_checkable
class Instructing(Protocol):
    """A codec of a world that gives its agents instructions in words."""

    space_without_instruction: ObservationSpace  # the observation space without the numbers that encode instructions

    def instruct(self, observation: Tree) -> list[str]:
        """The instruction of each row of `[R, …]`."""
        ...

    def without_instruction(self, observation: Tree) -> Tree:
        """Observations `[…, shape]` in `space_without_instruction`, for policies that read the words instead."""
        ...


@runtime_checkable
class Graded(Protocol):
    """A codec that can ask how good a state is."""

    grades: tuple[str, ...]  # words from worst to best; () where this world has none
    grade_prompt: str  # the name of the shipped template and examples that ask for a grade

    def appraise(self, observation: Tree) -> list[str]:
        """A text to be graded for each row of `[R, …]`; equal texts are asked about once."""
        ...

    def appraisals(self) -> list[str]:
        """Such texts of various states, equally many of each grade, to calibrate a model with."""
        ...

    def grade(self, observation: Tree) -> Array:
        """The index of each row's true grade, `[R]`; −1 where it is unknown."""
        ...


@runtime_checkable
class HasActionEffects(Protocol):
    """A codec that describes what each choice would do, as far as its agent can see."""

    def action_effects(self, observation: Tree) -> list[list[str]]:
        """For each row of `[R, …]` one description per choice, such as "go forward into lava"."""
        ...


@runtime_checkable
class Oracle(Protocol):
    """A codec that knows the optimal actions."""

    def optimal(self, world: Any, actions: Array) -> Array:
        """Flags `[N, A]` bool of the optimal actions among those given, `[N, A]` of the whole agent type."""
        ...


@dataclass(frozen=True)
class OwnWords:
    """An agent's view and its legal actions as a game's own texts name them."""

    seen: str
    actions: dict[int, str]


@runtime_checkable
class HasOwnWords(Protocol):
    """A world whose games have words for a player's position and moves, beside observations that are numbers.

    A person reads them. They tell no more than the agent may know, but cannot be told from the numbers.
    """

    def own_words(self, agent: str, copy: int) -> OwnWords:
        """The words for an agent whose turn it is."""
        ...


@runtime_checkable
class HasTextCodec(Protocol):
    """A world that describes itself in words."""

    def text_codec(self, agent_type: str) -> TextCodec:
        """The codec of one agent type."""
        ...


class ActionWords:
    """A codec's words for actions: its choices, and "none" for the no-op where that is no choice."""

    def __init__(self, codec: TextCodec) -> None:
        self.known = {} if codec.idle is None else {_numbers(codec.idle): "none"}
        actions = codec.actions(np.arange(len(codec.choices)))
        self.known |= dict(zip(map(_numbers, actions), codec.choices, strict=True))

    def of(self, action: Array) -> str | None:
        """The word for an action; None where the codec has none."""
        return self.known.get(_numbers(action))


def _numbers(action: Array | int) -> tuple[float, ...]:
    return tuple(np.ravel(action).tolist())


def find_text_codec(name: str, group_spec: GroupSpec) -> TextCodec:
    """The codec of the group's world (`auto`), or an instance of the class `package.module:Name`."""
    world = group_spec.world
    if world is None:
        raise ValueError("a language model needs a world that describes what its agents see")
    if isinstance(group_spec.spaces.action, Text):
        raise ValueError("this world's actions are text, not choices; use policy 'writer', which completes the prompt")
    if name != "auto":
        try:
            codec: TextCodec = lookup.look_up_class({}, name)(world, group_spec.agent_type)
        except LookupError as error:
            raise ValueError(f"codec: {error}") from None
    elif isinstance(world, HasTextCodec):
        codec = world.text_codec(group_spec.agent_type)
    else:
        raise ValueError(f"codec: world '{type(world).__name__}' has no text_codec; set codec=package.module:Name")
    if not codec.choices:
        raise ValueError(f"codec '{name}' offers no choices; a language model chooses among words")
    return codec
