"""The PettingZoo face of a simultaneous world: per-agent dicts around one copy.

The world resets itself when an episode ends; here that stays hidden: the last observations are returned, no
agent is left, and the next `reset` begins a new episode. Nothing about any particular world is known here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

import gymnasium
import numpy as np
from pettingzoo import ParallelEnv

from coterie.core.lookup import suggest
from coterie.core.seeding import generator
from coterie.core.types import (
    AgentStep,
    Array,
    Box,
    CoterieError,
    Dict,
    Discrete,
    MultiDiscrete,
    TimeStep,
    Tree,
    action_dtype,
    action_shape,
    map_tree,
)
from coterie.core.world import EndRenderable, HasInfo, Renderable, World

RENDER_MODES = ("human", "rgb_array", "ansi")
Settings = TypeVar("Settings")


def choose(kind: type[Settings], given: Mapping[str, Any]) -> Settings:
    """Settings of a world from keyword arguments."""
    known = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]  # settings are dataclasses
    for name in given:
        if name not in known:
            raise TypeError(f"{name}: no such setting{suggest(name, known) or '; known: ' + ', '.join(known)}")
    return kind(**given)


def gymnasium_space(space: Box | Discrete | MultiDiscrete | Dict) -> gymnasium.Space:
    """The same space in Gymnasium's words."""
    match space:
        case Box(shape, low, high, dtype):
            kind = np.dtype(dtype)
            return gymnasium.spaces.Box(np.full(shape, low, kind), np.full(shape, high, kind), shape, dtype=kind.type)
        case Discrete(n):
            return gymnasium.spaces.Discrete(n)
        case MultiDiscrete(sizes):
            return gymnasium.spaces.MultiDiscrete(list(sizes))
        case Dict(entries):
            return gymnasium.spaces.Dict({key: gymnasium_space(entry) for key, entry in entries.items()})


class PettingZooEnv(ParallelEnv):
    """A PettingZoo parallel environment around a world of one copy."""

    def __init__(self, world: World, name: str, render_mode: str | None = None) -> None:
        if world.num_envs != 1 or not world.simultaneous:
            raise ValueError(f"the face needs a simultaneous world of one copy, got {world.num_envs} copies")
        if render_mode is not None and render_mode not in RENDER_MODES:
            raise ValueError(f"render_mode must be one of {', '.join(RENDER_MODES)}, got {render_mode!r}")
        if render_mode is not None and not isinstance(world, Renderable):
            raise ValueError(f"render_mode {render_mode!r} needs a world that can be looked at")
        self.metadata: dict[str, Any] = {
            "name": f"{name}_v0",
            "render_modes": list(RENDER_MODES),
            "render_fps": 10,
            "is_parallelizable": True,
        }
        self.world = world
        self.render_mode = render_mode
        # Where each agent sits: its kind and its column there.
        self._seats = {n: (k, i) for k, kind in world.agent_types.items() for i, n in enumerate(kind.agents)}
        self.possible_agents = list(self._seats)
        self.agents: list[str] = []
        agent_types = {agent: world.agent_types[kind] for agent, (kind, _) in self._seats.items()}
        self.observation_spaces = {agent: gymnasium_space(kind.observation) for agent, kind in agent_types.items()}
        self.action_spaces = {agent: gymnasium_space(kind.action) for agent, kind in agent_types.items()}
        self._later: np.random.Generator | None = None  # seeds of the episodes that are reset without one
        self._ended = False
        self._window: Any = None
        self._clock: Any = None

    def observation_space(self, agent: str) -> gymnasium.Space:
        """What the agent may see; always the same object."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> gymnasium.Space:
        """What the agent may do; always the same object."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Begin an episode. A seed fixes it and those after it; without one every episode is another."""
        if seed is not None:
            self._later = generator(seed, "face")
        else:
            self._later = self._later or np.random.default_rng()
            seed = int(self._later.integers(2**63))
        timestep = self.world.reset(seed)
        self.agents = list(self.possible_agents)
        self._ended = False
        if self.render_mode == "human":
            self.render()
        return self._observations(timestep), self._infos(timestep)

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Take everybody's action, matched by name; agents whose episode ends are gone afterwards."""
        if not self.agents:
            raise CoterieError("no episode is running: call reset() before step()")
        timestep = self.world.step(self._as_arrays(actions))
        self._ended = bool(timestep.ended[0])
        observations, infos = self._observations(timestep), self._infos(timestep)
        rewards, terminations, truncations = {}, {}, {}
        for agent in self.agents:
            agent_step, column = self._agent_step(timestep, agent)
            rewards[agent] = float(agent_step.reward[0, column])
            terminations[agent] = bool(agent_step.terminated[0, column])
            truncations[agent] = bool(agent_step.truncated[0, column])
        self.agents = [a for a in self.agents if not (self._ended or terminations[a] or truncations[a])]
        if self.render_mode == "human":
            self.render()
        return observations, rewards, terminations, truncations, infos

    def _as_arrays(self, actions: Mapping[str, Any]) -> dict[str, Array]:
        """Put the actions of the agents still playing at their places; others' rows are ignored zeros."""
        if set(actions) != set(self.agents):
            raise ValueError(f"actions must be given for {self.agents}, got {list(actions)}")
        arrays = {
            name: np.zeros((1, len(kind.agents), *action_shape(kind.action)), action_dtype(kind.action))
            for name, kind in self.world.agent_types.items()
        }
        for agent, action in actions.items():
            kind, column = self._seats[agent]
            space = self.action_spaces[agent]
            # Lists are welcome, and Python's floats, which Gymnasium's boxes would not take.
            value = action if space.shape == () else np.asarray(action)
            if isinstance(space, gymnasium.spaces.Box) and value.dtype.kind in "iuf":
                value = value.astype(space.dtype)
            if not space.contains(value):
                raise ValueError(f"{agent}: action {action!r} is outside {space}")
            arrays[kind][0, column] = value
        return arrays

    def _agent_step(self, timestep: TimeStep, agent: str) -> tuple[AgentStep, int]:
        kind, column = self._seats[agent]
        return timestep.agent_types[kind], column

    def _observations(self, timestep: TimeStep) -> dict[str, Any]:
        seen = {}
        for agent in self.agents:
            agent_step, column = self._agent_step(timestep, agent)
            tree: Tree = agent_step.final_observation if timestep.ended[0] else agent_step.observation
            seen[agent] = map_tree(lambda array, column=column: array[0, column].copy(), tree)
        return seen

    def _infos(self, timestep: TimeStep) -> dict[str, dict[str, Any]]:
        infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        for agent, info in infos.items():
            agent_step, column = self._agent_step(timestep, agent)
            if agent_step.mask is not None and not timestep.ended[0]:
                info["action_mask"] = agent_step.mask[0, column].copy()
            if timestep.success is not None and timestep.ended[0]:
                info["success"] = bool(timestep.success[0])
            if isinstance(self.world, HasInfo):
                info |= self.world.info(agent, 0)
        return infos

    def render(self) -> Array | str | None:
        """The picture, the letters, or a window, as `render_mode` says; after the end, how it ended."""
        if self.render_mode is None:
            raise CoterieError("nothing to render: choose a render_mode when making the environment")
        if self._later is None:
            raise CoterieError("no episode is running: call reset() before render()")
        text = self.render_mode == "ansi"
        if self._ended and isinstance(self.world, EndRenderable):
            shown = self.world.final_ansi(0) if text else self.world.final_frame(0)
        else:
            assert isinstance(self.world, Renderable)  # checked when the face was made
            shown = self.world.ansi(0) if text else self.world.frame(0)
        if isinstance(shown, str) or self.render_mode == "rgb_array":
            return shown
        self._show(shown)
        return None

    def _show(self, picture: Array) -> None:
        """Draw into the one window, opened at the first picture."""
        import pygame  # an optional dependency, needed for the window alone

        height, width, _ = picture.shape
        if self._window is None:
            pygame.display.init()
            pygame.display.set_caption(self.metadata["name"])
            self._window = pygame.display.set_mode((width, height))
            self._clock = pygame.time.Clock()
        self._window.blit(pygame.surfarray.make_surface(picture.swapaxes(0, 1)), (0, 0))
        pygame.event.pump()
        pygame.display.flip()
        self._clock.tick(self.metadata["render_fps"])

    def close(self) -> None:
        """Close the window, if there is one."""
        if self._window is not None:
            import pygame

            pygame.display.quit()
            self._window = None


class GymnasiumEnv(gymnasium.Env[Any, Any]):
    """A world with one agent as a Gymnasium environment."""

    def __init__(self, world: World, name: str, render_mode: str | None = None) -> None:
        self.face = PettingZooEnv(world, name, render_mode)
        if len(self.face.possible_agents) != 1:
            raise CoterieError(f"a Gymnasium environment has one agent, this world {len(self.face.possible_agents)}")
        self.agent = self.face.possible_agents[0]
        self.metadata, self.render_mode = self.face.metadata, render_mode
        self.observation_space = self.face.observation_space(self.agent)
        self.action_space = self.face.action_space(self.agent)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed)
        observations, infos = self.face.reset(seed, options)
        return observations[self.agent], infos[self.agent]

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take the agent's action."""
        told = self.face.step({self.agent: action})
        return tuple(part[self.agent] for part in told)  # type: ignore[return-value]  # five parts, in this order

    def render(self) -> Any:
        """As the parallel face does."""
        return self.face.render()

    def close(self) -> None:
        """Close the window, if there is one."""
        self.face.close()
