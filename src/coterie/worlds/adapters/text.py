"""Text codec for the observations of third-party environments: their own text, or their numbers in a list."""

from __future__ import annotations

import numpy as np

from coterie.core.trees import arrays_of
from coterie.core.types import Array, Box, Discrete, Text, Tree, entries_of
from coterie.core.world import World
from coterie.worlds.adapters.external import ExternalWorld, WorldWrapper
from coterie.worlds.cartpole.world import CartPole

MAX_NUMBERS = 16  # that a prompt may list


class ObservationText:
    """Text codec: the text that an environment gives, CartPole's pole in words, other observations as numbers.

    An environment whose actions have names needs its own codec (`policy.codec`).
    """

    idle = None

    def __init__(self, world: World, agent_type: str) -> None:
        spaces = world.agent_types[agent_type]
        if not isinstance(spaces.action, Discrete):
            raise ValueError(f"codec: {spaces.action} has no finite choices; set codec=package.module:Name")
        inner = world.inner if isinstance(world, WorldWrapper) else world
        self.texts = inner.texts.get(agent_type, ()) if isinstance(inner, ExternalWorld) else ()
        self.numbers = tuple(
            name
            for name, space in entries_of(spaces.observation).items()
            if name not in self.texts
            and not isinstance(space, Text)
            and (isinstance(space, Discrete) or (space.dtype != "uint8" and int(np.prod(space.shape)) <= MAX_NUMBERS))
        )
        if not self.texts and (not isinstance(spaces.observation, Box) or not self.numbers):
            raise ValueError(
                f"codec: a text lists at most {MAX_NUMBERS} numbers, observations are {spaces.observation}; "
                "set codec=package.module:Name"
            )
        name = inner.name if isinstance(inner, ExternalWorld) else ""
        self.cartpole = isinstance(inner, CartPole) or "CartPole" in name
        self.prompt = "cartpole" if self.cartpole else "numbers"
        self.choices = ("left", "right") if self.cartpole else tuple(map(str, range(spaces.action.n)))

    def describe(self, observation: Tree) -> list[str]:
        entries = arrays_of(observation)
        count = len(next(iter(entries.values())))
        lines = [[bytes_to_text(row) for row in entries[name]] for name in self.texts]
        for name in self.numbers:
            rows = entries[name].reshape(count, -1)
            lines.append([describe_pole(row) if self.cartpole else describe_numbers(row, name) for row in rows])
        return ["\n".join(parts) for parts in zip(*lines, strict=True)]

    def actions(self, chosen: Array) -> Array:
        return chosen

    def samples(self) -> list[str]:
        """Descriptions of various angles and speeds of the pole; none for other environments."""
        states = [(angle, speed) for angle in (-0.1, -0.02, 0.02, 0.1) for speed in (-0.5, 0.5)]
        return [describe_pole(np.array([0.0, 0.0, angle, speed])) for angle, speed in states] if self.cartpole else []


def describe_pole(row: Array) -> str:
    """The pole's angle in whole degrees, and the side to which it falls; enough to balance it."""
    angle, predicted = np.degrees(row[2]), np.degrees(row[2] + 0.3 * row[3])
    sides = ["right" if degrees > 0 else "left" for degrees in (angle, predicted)]
    return f"The pole leans {abs(angle):.0f} degrees {sides[0]} and falls {sides[1]}."


def describe_numbers(row: Array, name: str = "") -> str:
    """The numbers in order, with two decimals."""
    return " ".join(f"{name or 'x'}{i} = {value:.2f}," for i, value in enumerate(row)).rstrip(",") + "."


def bytes_to_text(row: Array) -> str:
    """The text that was written as UTF-8, padded with zeros."""
    return bytes(row).rstrip(b"\0").decode("utf-8", "ignore")
