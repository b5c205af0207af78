"""Text: how a world and a language model understand each other, and how a group finds its world's codec."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from coterie.core import lookup
from coterie.core.group import GroupSpec
from coterie.core.types import Array, ObservationSpace, Tree


class TextCodec(Protocol):
    """How a world and a language model understand each other; made as `Name(world, agent_type)`, beside the world.

    It reads observations alone, so that nobody is told what its agent does not see.
    """

    @property
    def prompt(self) -> str:
        """The name of the shipped template and examples that suit it."""
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


@runtime_checkable
class HasTextCodec(Protocol):
    """A world that describes itself in words."""

    def text_codec(self, agent_type: str) -> TextCodec:
        """The codec of one agent type."""
        ...


def find_text_codec(name: str, group_spec: GroupSpec) -> TextCodec:
    """The codec of the group's world (`auto`), or the class `package.module:Name`, built as `Name(world, agent_type)`."""
    world = group_spec.world
    if world is None:
        raise ValueError("a language model needs a world that describes what its agents see")
    if name != "auto":
        try:
            codec: TextCodec = lookup.look_up({}, name)(world, group_spec.agent_type)
        except LookupError as error:
            raise ValueError(f"codec: {error}") from None
    elif isinstance(world, HasTextCodec):
        codec = world.text_codec(group_spec.agent_type)
    else:
        raise ValueError(f"codec: world '{type(world).__name__}' has no text_codec; set codec=package.module:Name")
    if not codec.choices:
        raise ValueError(f"codec '{name}' offers no choices; a language model chooses among words")
    return codec
