"""Our turn-based worlds as PettingZoo AEC environments, as `pettingzoo.classic` has them.

An observation is a dict of `observation` and `action_mask`; the mask is all zero for an agent that is not to move. In
worlds of text it is a dict of `prompt`, "" for an agent that is not to move (PettingZoo's own tests have no place for a
bare text), and an action is any text. The agents end together. An illegal action raises ValueError and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from coterie.core.seeding import generator
from coterie.core.types import Array, CoterieError, Discrete, ObservationSpace, Text, TimeStep, action_dtype, blank
from coterie.core.world import World
from coterie.worlds.adapters.export import RENDER_MODES, Display, gymnasium_space, settings_from_kwargs

# ruff: isort: split
# after `export`, which names a package that is missing
import gymnasium
from pettingzoo import AECEnv

PROMPT = "prompt"  # the key of observations in worlds of text


class PettingZooAECEnv(AECEnv):
    """A PettingZoo AEC environment around a turn-based world of one copy whose agents choose or write."""

    def __init__(self, world: World, name: str, render_mode: str | None = None) -> None:
        super().__init__()
        if world.num_envs != 1 or world.simultaneous or len(world.agent_types) != 1:
            raise ValueError(
                f"expected a turn-based world of one copy and one agent type, got {world.num_envs} copies, "
                f"simultaneous={world.simultaneous} and {len(world.agent_types)} agent types"
            )
        ((self._agent_type, spaces),) = world.agent_types.items()
        if not isinstance(spaces.action, Discrete | Text):
            raise ValueError(f"expected discrete actions or texts, got {spaces.action}")
        self.metadata: dict[str, Any] = {
            "name": f"{name}_v0",
            "render_modes": list(RENDER_MODES),
            "render_fps": 2,
            "is_parallelizable": False,
        }
        self.world, self.render_mode = world, render_mode
        self._display = Display(world, self.metadata["name"], render_mode, self.metadata["render_fps"])
        self.possible_agents = list(spaces.agents)
        self.agents: list[str] = []
        self._empty = blank((1, len(spaces.agents)), action_dtype(spaces.action))  # actions of nobody

        self._choices = spaces.action.n if isinstance(spaces.action, Discrete) else 0  # 0: agents write
        self.observation_spaces = {agent: self._observed(spaces.observation) for agent in spaces.agents}
        self.action_spaces = {agent: gymnasium_space(spaces.action) for agent in spaces.agents}
        self._seeds: np.random.Generator | None = None  # draws the seeds of episodes that are reset without one
        self._timestep: TimeStep | None = None  # views of the world's arrays

    def _observed(self, space: ObservationSpace) -> gymnasium.Space:
        seen = gymnasium_space(space)
        if not self._choices:
            return gymnasium.spaces.Dict({PROMPT: seen})
        mask: gymnasium.Space = gymnasium.spaces.Box(0, 1, (self._choices,), np.int8)
        return gymnasium.spaces.Dict({"observation": seen, "action_mask": mask})

    def observation_space(self, agent: str) -> gymnasium.Space:
        """The agent's observation space, always the same object."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> gymnasium.Space:
        """The agent's action space, always the same object."""
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Start an episode. A seed determines it and the following ones; without a seed episodes are random."""
        if seed is not None:
            self._seeds = generator(seed, "aec")
        else:
            self._seeds = self._seeds or np.random.default_rng()
            seed = int(self._seeds.integers(2**63))
        self._timestep = self.world.reset(seed)
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        self._ended = False
        self.agent_selection = self._mover()
        if self.render_mode == "human":
            self.render()

    def observe(self, agent: str) -> dict[str, Any]:
        """The agent's observation and legal actions; after the end, the final observation and no legal actions."""
        assert self._timestep is not None  # PettingZoo's wrappers require a reset
        step, column = self._timestep.agent_types[self._agent_type], self.possible_agents.index(agent)
        seen = step.final_observation if self._ended else step.observation
        if not self._choices:
            return {PROMPT: str(seen[0, column])}  # type: ignore[index]  # an array
        mask = np.zeros(self._choices, np.int8)
        if not self._ended and step.acting[0, column]:
            mask[:] = 1 if step.mask is None else step.mask[0, column]
        return {"observation": seen[0, column].copy(), "action_mask": mask}  # type: ignore[index]  # an array

    def step(self, action: Any) -> None:
        """Take the action of the agent that is selected; None for one whose episode is over."""
        if not self.agents:
            raise CoterieError("no episode is running: call reset() before step()")
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        if not self.action_spaces[agent].contains(action):
            raise ValueError(f"{agent}: action {action!r} is outside {self.action_spaces[agent]}")
        actions = self._empty.copy()
        actions[0, self.possible_agents.index(agent)] = action
        self._timestep = self.world.step({self._agent_type: actions})
        self._ended = bool(self._timestep.ended[0])
        step = self._timestep.agent_types[self._agent_type]
        self._cumulative_rewards[agent] = 0.0
        for column, other in enumerate(self.possible_agents):
            self.rewards[other] = float(step.reward[0, column])
            self.terminations[other] = bool(step.terminated[0, column])
            self.truncations[other] = bool(step.truncated[0, column])
            self.infos[other] = self.world.info(other, 0)
        self._accumulate_rewards()
        following = (self.possible_agents.index(agent) + 1) % len(self.possible_agents)
        self.agent_selection = self.possible_agents[following] if self._ended else self._mover()
        if self.render_mode == "human":
            self.render()

    def _mover(self) -> str:
        assert self._timestep is not None
        acting = self._timestep.agent_types[self._agent_type].acting[0]
        if acting.sum() != 1:
            raise CoterieError(f"an AEC environment has one agent to move at a time, this world has {acting.sum()}")
        return self.possible_agents[int(acting.argmax())]

    def render(self) -> Array | str | None:
        """Return a picture or text, or draw into a window, by `render_mode`; after the end, the final state."""
        return self._display.render(
            running=self._timestep is not None, final=self._timestep is not None and self._ended
        )

    def close(self) -> None:
        """Close the window if it is open."""
        self._display.close()


def make_env(
    world: type[Any], settings: type[Any], name: str, render_mode: str | None, kwargs: Mapping[str, Any]
) -> PettingZooAECEnv:
    """A world class with settings from keyword arguments as an AEC environment."""
    return PettingZooAECEnv(world(settings_from_kwargs(settings, kwargs), 1), name, render_mode)
