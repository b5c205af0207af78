"""CartPole-v1 as a native batch: Gymnasium's physics, step by step, for all copies in one Numba call.

Gymnasium's own vector version draws every copy's start from one random stream, so a copy would depend on
how many others there are and could not be resumed on its own; here every copy has its own stream. Only
the default options of CartPole-v1 are played; others go through `gymnasium.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numba import njit

from coterie.core.types import AgentStep, AgentType, Array, Box, CoterieError, Discrete, State, TimeStep
from coterie.core.world import rebuild
from coterie.worlds.random import seed_copies, uniform

GRAVITY, CART, POLE, HALF_LENGTH, FORCE, SECONDS = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
TOTAL, POLE_MOMENT = POLE + CART, POLE * HALF_LENGTH
EDGE, TILT = 2.4, 12 * 2 * math.pi / 360  # where the cart leaves the track, where the pole has fallen
LIMIT = 500  # steps
HIGH = np.array([2 * EDGE, np.inf, 2 * TILT, np.inf], np.float32)


class CartPole:
    """N poles to balance. The observation is position, speed, angle and angular speed."""

    agent_types: Mapping[str, AgentType]
    num_envs: int
    simultaneous: bool = True
    state_size = 0
    draws_final = False

    def __init__(self, num_envs: int, limit: int = LIMIT, render: bool = False) -> None:
        if num_envs < 1:
            raise ValueError(f"copies must be at least 1, got {num_envs}")
        self.num_envs, self._limit, self._render = num_envs, limit, render
        self.agent_types = {"agent": AgentType(("agent_0",), Box((4,), -HIGH, HIGH), Discrete(2))}
        self._place = np.zeros((num_envs, 4))
        self._clock = np.zeros((2, num_envs), np.uint64)  # steps of the episode; random states
        # Few arrays, because Numba spends a fifth of a microsecond on passing each.
        self._numbers = np.zeros((3, num_envs, 4), np.float32)  # observation, last one, reward
        self._flags = np.zeros((3, num_envs, 1), np.bool_)  # terminated, truncated, ended
        numbers, flags = self._numbers, self._flags
        agent_step = AgentStep(
            observation=numbers[0][:, None],
            acting=np.ones((num_envs, 1), np.bool_),
            reward=numbers[2, :, :1],
            terminated=flags[0],
            truncated=flags[1],
            final_observation=numbers[1][:, None],
        )
        self._timestep = TimeStep({"agent": agent_step}, flags[2, :, 0])
        self._twin: Any = None  # Gymnasium's environment, for pictures only
        self.reset(0)

    def reset(self, seed: int) -> TimeStep:
        """Start every copy anew."""
        seed_copies(self._clock[1], seed, "cartpole")
        _start(self._place, self._clock)
        return self._tell()

    def step(self, actions: Mapping[str, Array]) -> TimeStep:
        """Push every cart left (0) or right (1)."""
        pushes = actions["agent"]
        if pushes.shape != (self.num_envs, 1):
            raise ValueError(f"actions of 'agent' must have shape {(self.num_envs, 1)}, got {pushes.shape}")
        wrong = _step(pushes, self._place, self._clock, self._numbers, self._flags, self._limit)
        if wrong >= 0:
            raise ValueError(f"copy {wrong}: an action must be 0 or 1, got {pushes[wrong, 0]}")
        return self._timestep

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, (type(self), (self.num_envs, self._limit, self._render), self.save())

    def save(self) -> State:
        """Places, steps taken and random states."""
        return {"place": self._place.copy(), "clock": self._clock.copy()}

    def load(self, state: State) -> TimeStep:
        """Return to a saved moment."""
        if state["place"].shape != self._place.shape:
            raise ValueError(f"state holds {len(state['place'])} copies, this world has {self.num_envs}")
        self._place[:], self._clock[:] = state["place"], state["clock"]
        return self._tell()

    def frame(self, copy: int, final: bool = False) -> Array:
        """Gymnasium's picture of one copy."""
        if not self._render:
            raise CoterieError("nothing to draw: set world.render to true")
        if self._twin is None:
            import gymnasium

            self._twin = gymnasium.make("CartPole-v1", render_mode="rgb_array").unwrapped
        self._twin.state = self._place[copy].copy()
        picture: Array = self._twin.render()
        return picture

    def ansi(self, copy: int, final: bool = False) -> str:
        """The track in a line, and how far the pole leans."""
        x, _, tilt, _ = self._place[copy]
        cells = ["─"] * 49
        cells[int(np.clip(round(x / EDGE * 24) + 24, 0, 48))] = "\\|/"[int(np.sign(round(tilt, 2))) + 1]
        return f"{''.join(cells)}\nleaning {math.degrees(tilt):+.1f}°"

    def _tell(self) -> TimeStep:
        self._numbers[0] = self._place
        self._numbers[2] = 0
        self._flags[:] = False
        return self._timestep


# The physics --------------------------------------------------------------------------------------------


@njit(cache=True)
def _place_anew(place: Array, clock: Array, n: int) -> None:
    """Every number uniform in [−0.05, 0.05)."""
    clock[0, n] = 0
    for i in range(4):
        place[n, i] = -0.05 + 0.1 * uniform(clock[1], n)


@njit(cache=True)
def _start(place: Array, clock: Array) -> None:
    for n in range(len(place)):
        _place_anew(place, clock, n)


@njit(cache=True)
def _step(pushes: Array, place: Array, clock: Array, numbers: Array, flags: Array, limit: int) -> int:
    """One Euler step of every copy; returns the first copy whose action is none, before moving any, or -1."""
    for n in range(len(place)):
        if pushes[n, 0] != 0 and pushes[n, 0] != 1:
            return n
    for n in range(len(place)):
        x, speed, tilt, turn = place[n, 0], place[n, 1], place[n, 2], place[n, 3]
        force = FORCE if pushes[n, 0] == 1 else -FORCE
        cosine, sine = math.cos(tilt), math.sin(tilt)
        pull = (force + POLE_MOMENT * (turn * turn) * sine) / TOTAL
        spin = (GRAVITY * sine - cosine * pull) / (HALF_LENGTH * (4.0 / 3.0 - POLE * (cosine * cosine) / TOTAL))
        thrust = pull - POLE_MOMENT * spin * cosine / TOTAL
        place[n, 0] = x + SECONDS * speed
        place[n, 1] = speed + SECONDS * thrust
        place[n, 2] = tilt + SECONDS * turn
        place[n, 3] = turn + SECONDS * spin
        clock[0, n] += np.uint64(1)
        fallen = abs(place[n, 0]) > EDGE or abs(place[n, 2]) > TILT
        late = not fallen and clock[0, n] >= np.uint64(limit)
        flags[0, n, 0] = fallen
        flags[1, n, 0] = late
        flags[2, n, 0] = fallen or late
        numbers[2, n, 0] = 1.0
        if fallen or late:
            for i in range(4):
                numbers[1, n, i] = place[n, i]
            _place_anew(place, clock, n)
        for i in range(4):
            numbers[0, n, i] = place[n, i]
    return -1
