"""Gymnasium environments in words: CartPole's pole, else numbers with names.

An environment with other choices than these words deserves a codec of its own (`policy.codec`).
"""

from __future__ import annotations

import numpy as np

from coterie.core.types import Array, Box, Discrete, Tree
from coterie.core.world import World
from coterie.worlds.adapters.external import ExternalWorld, Hosted
from coterie.worlds.cartpole.world import CartPole

MOST = 16  # numbers that a prompt may list


class GymnasiumText:
    """What the agent of an environment is told, and what it may answer."""

    idle = None

    def __init__(self, world: World, agent_type: str) -> None:
        spaces = world.agent_types[agent_type]
        if not isinstance(spaces.action, Discrete):
            raise ValueError(f"no choices to put into words in {spaces.action}; name a codec of your own")
        if not isinstance(spaces.observation, Box) or int(np.prod(spaces.observation.shape)) > MOST:
            raise ValueError(f"observations of more than {MOST} numbers have no words; name a codec of your own")
        inner = world.inner if isinstance(world, Hosted) else world
        name = inner.name if isinstance(inner, ExternalWorld) else ""
        self.cartpole = isinstance(inner, CartPole) or "CartPole" in name
        self.prompt = "cartpole" if self.cartpole else "numbers"
        self.choices = ("left", "right") if self.cartpole else tuple(map(str, range(spaces.action.n)))

    def describe(self, observation: Tree) -> list[str]:
        assert isinstance(observation, np.ndarray)
        rows = observation.reshape(len(observation), -1)
        return [tell_pole(row) if self.cartpole else tell_numbers(row) for row in rows]

    def actions(self, chosen: Array) -> Array:
        return chosen

    def samples(self) -> list[str]:
        """The pole's angles and speeds; numbers of environments that are not known have none."""
        turns = [(angle, speed) for angle in (-0.1, -0.02, 0.02, 0.1) for speed in (-0.5, 0.5)]
        return [tell_pole(np.array([0.0, 0.0, angle, speed])) for angle, speed in turns] if self.cartpole else []


def tell_pole(row: Array) -> str:
    """Where the pole will be in a moment, in whole degrees: all that keeping it up takes."""
    lean, soon = np.degrees(row[2]), np.degrees(row[2] + 0.3 * row[3])
    sides = ["right" if angle > 0 else "left" for angle in (lean, soon)]
    return f"The pole leans {abs(lean):.0f} degrees {sides[0]} and falls {sides[1]}."


def tell_numbers(row: Array) -> str:
    """Numbers in their order, to two digits."""
    return " ".join(f"x{i} = {value:.2f}," for i, value in enumerate(row)).rstrip(",") + "."
