"""CartPole-v1 as a native batch: Gymnasium's physics, step by step, for all copies in one call.

Gymnasium's own vector version draws all starts from one random stream, so a copy would depend on the number of copies
and could not be resumed on its own; here every copy has its own stream. Only the default options of CartPole-v1 are
supported; others go through `adapters/gymnasium.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from coterie.core.splitmix import seed_copies, uniform
from coterie.core.types import AgentStep, AgentType, Array, Box, CoterieError, Discrete, State, TimeStep
from coterie.core.world import World, rebuild
from coterie.nn.launch import kernel
from coterie.worlds.actions import first_outside

GRAVITY, CART, POLE, HALF_LENGTH, FORCE, SECONDS = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
TOTAL, POLE_MOMENT = POLE + CART, POLE * HALF_LENGTH
POSITION_LIMIT, ANGLE_LIMIT = 2.4, 12 * 2 * math.pi / 360  # an episode terminates beyond these
LIMIT = 500  # steps
INSTALL = "'coterie[worlds,window]'"  # what pictures need
HIGH = np.array([2 * POSITION_LIMIT, np.inf, 2 * ANGLE_LIMIT, np.inf], np.float32)


class CartPole(World):
    """N copies of CartPole-v1. The observation is position, velocity, angle and angular velocity."""

    agent_types: Mapping[str, AgentType]
    num_envs: int
    simultaneous: bool = True
    draws_final = False

    def __init__(self, num_envs: int, limit: int = LIMIT, render: bool = False) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        self.num_envs, self._limit, self._render = num_envs, limit, render
        self.agent_types = {"agent": AgentType(("agent_0",), Box((4,), -HIGH, HIGH), Discrete(2))}
        self._state = np.zeros((num_envs, 4))  # position, velocity, angle, angular velocity
        self._clock = np.zeros((2, num_envs), np.uint64)  # steps taken in the episode; random states
        # Few arrays, because passing each to Numba takes a fifth of a microsecond.
        self._numbers = np.zeros((3, num_envs, 4), np.float32)  # observation, final observation, reward
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
        self._renderer: Any = None  # Gymnasium's environment, for images only
        self.reset(0)

    def reset(self, seed: int) -> TimeStep:
        """Reset every copy."""
        seed_copies(self._clock[1], seed, "cartpole")
        _start_episode.over(self.num_envs, self._state, self._clock)
        return self._observe_only()

    def step(self, actions: Mapping[str, Array]) -> TimeStep:
        """Push every cart left (0) or right (1)."""
        chosen = actions["agent"]
        if chosen.shape != (self.num_envs, 1):
            raise ValueError(f"actions of 'agent' must have shape {(self.num_envs, 1)}, got {chosen.shape}")
        illegal = first_outside(chosen, 0, 1)
        if illegal >= 0:
            raise ValueError(f"copy {illegal}: an action must be 0 or 1, got {chosen[illegal, 0]}")
        _step.over(self.num_envs, chosen, self._state, self._clock, self._numbers, self._flags, self._limit)
        return self._timestep

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, (type(self), (self.num_envs, self._limit, self._render), self.save())

    def save(self) -> State:
        """Physical states, steps taken and random states."""
        return {"place": self._state.copy(), "clock": self._clock.copy()}

    def load(self, state: State) -> TimeStep:
        """Restore a saved state."""
        if state["place"].shape != self._state.shape:
            raise ValueError(f"state holds {len(state['place'])} copies, this world has {self.num_envs}")
        self._state[:], self._clock[:] = state["place"], state["clock"]
        return self._observe_only()

    def frame(self, copy: int, final: bool = False) -> Array:
        """Gymnasium's image of one copy as it is now; `final` is ignored."""
        if not self._render:
            raise CoterieError("CartPole: rendering is off; set world.render to true")
        from coterie.worlds.adapters.external import import_external  # only pictures need Gymnasium

        gymnasium = import_external("gymnasium", INSTALL)
        if self._renderer is None:
            self._renderer = gymnasium.make("CartPole-v1", render_mode="rgb_array").unwrapped
        self._renderer.state = self._state[copy].copy()
        try:
            picture: Array = self._renderer.render()
        except gymnasium.error.DependencyNotInstalled as error:
            raise CoterieError(f"CartPole cannot be drawn: {error}; pip install {INSTALL}") from None
        return picture

    def ansi(self, copy: int, final: bool = False) -> str:
        """The track as a line of text, and the angle of the pole."""
        x, _, angle, _ = self._state[copy]
        cells = ["─"] * 49
        cells[int(np.clip(round(x / POSITION_LIMIT * 24) + 24, 0, 48))] = "\\|/"[int(np.sign(round(angle, 2))) + 1]
        return f"{''.join(cells)}\nleaning {math.degrees(angle):+.1f}°"

    def _observe_only(self) -> TimeStep:
        """The time step of the present state, without rewards and ends."""
        self._numbers[0] = self._state
        self._numbers[2] = 0
        self._flags[:] = False
        return self._timestep


# The physics --------------------------------------------------------------------------------------------


@kernel
def _start_episode(n: int, state: Array, clock: Array) -> None:
    """Start a new episode: all numbers uniform in [−0.05, 0.05)."""
    clock[0, n] = 0
    for i in range(4):
        state[n, i] = -0.05 + 0.1 * uniform(clock[1], n)


@kernel
def _step(n: int, actions: Array, state: Array, clock: Array, numbers: Array, flags: Array, limit: int) -> None:
    """Take one Euler step, and start the next episode where one ends."""
    x, velocity, angle, angular_velocity = state[n, 0], state[n, 1], state[n, 2], state[n, 3]
    force = FORCE if actions[n, 0] == 1 else -FORCE
    cosine, sine = math.cos(angle), math.sin(angle)
    push = (force + POLE_MOMENT * (angular_velocity * angular_velocity) * sine) / TOTAL
    angular_acceleration = (GRAVITY * sine - cosine * push) / (
        HALF_LENGTH * (4.0 / 3.0 - POLE * (cosine * cosine) / TOTAL)
    )
    acceleration = push - POLE_MOMENT * angular_acceleration * cosine / TOTAL
    state[n, 0] = x + SECONDS * velocity
    state[n, 1] = velocity + SECONDS * acceleration
    state[n, 2] = angle + SECONDS * angular_velocity
    state[n, 3] = angular_velocity + SECONDS * angular_acceleration
    clock[0, n] += np.uint64(1)
    failed = abs(state[n, 0]) > POSITION_LIMIT or abs(state[n, 2]) > ANGLE_LIMIT
    late = not failed and clock[0, n] >= np.uint64(limit)
    flags[0, n, 0] = failed
    flags[1, n, 0] = late
    flags[2, n, 0] = failed or late
    numbers[2, n, 0] = 1.0
    if failed or late:
        for i in range(4):
            numbers[1, n, i] = state[n, i]
        _start_episode(n, state, clock)
    for i in range(4):
        numbers[0, n, i] = state[n, i]
