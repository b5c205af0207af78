"""Our simultaneous worlds as PettingZoo parallel environments, and worlds of one agent as Gymnasium environments.

A world resets itself when an episode ends. The environments hide that: the last step returns the final observations,
`agents` is empty afterwards, and the next `reset` starts a new episode. Turn-based worlds are in `export_aec.py`.
"""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from coterie.core.lookup import suggest
from coterie.core.seeding import generator
from coterie.core.trees import map_tree
from coterie.core.types import (
    AgentStep,
    Array,
    Box,
    CoterieError,
    Dict,
    Discrete,
    MultiDiscrete,
    Text,
    TimeStep,
    Tree,
    action_dtype,
    action_shape,
)
from coterie.core.validation import one_of
from coterie.core.world import Renderable, World

try:
    import gymnasium
    from pettingzoo import ParallelEnv
except ModuleNotFoundError as error:
    cure = "pip install 'coterie[worlds]'"
    raise ModuleNotFoundError(f"'{error.name}' is not installed: {cure}", name=error.name) from None

RENDER_MODES = ("human", "rgb_array", "ansi")
Settings = TypeVar("Settings")


def settings_from_kwargs(settings_type: type[Settings], kwargs: Mapping[str, Any]) -> Settings:
    """A world's settings from keyword arguments; an unknown name raises an error that lists the known ones."""
    known = [field.name for field in dataclasses.fields(settings_type)]  # type: ignore[arg-type]  # a dataclass
    for name in kwargs:
        if name not in known:
            raise TypeError(f"{name}: no such setting{suggest(name, known) or '; known: ' + ', '.join(known)}")
    return settings_type(**kwargs)


class AnyText(gymnasium.spaces.Text):
    """Texts of any characters; Gymnasium's own space allows those of a charset alone, from which this one samples."""

    def __init__(self, max_length: int) -> None:
        super().__init__(max_length, min_length=0, charset=string.printable)

    def contains(self, x: Any) -> bool:
        """Whether this is a text that is not too long."""
        return isinstance(x, str) and len(x) <= self.max_length


def gymnasium_space(space: Box | Discrete | MultiDiscrete | Dict | Text) -> gymnasium.Space:
    """Gymnasium's space for one of ours."""
    match space:
        case Box(shape, low, high, dtype):
            array_type = np.dtype(dtype)
            bounds = np.full(shape, low, array_type), np.full(shape, high, array_type)
            return gymnasium.spaces.Box(*bounds, shape, dtype=array_type.type)
        case Discrete(n):
            return gymnasium.spaces.Discrete(n)
        case MultiDiscrete(sizes):
            return gymnasium.spaces.MultiDiscrete(list(sizes))
        case Dict(entries):
            return gymnasium.spaces.Dict({key: gymnasium_space(entry) for key, entry in entries.items()})
        case Text(max_length):
            return AnyText(max_length)


class Display:
    """Renders a world of one copy by a render mode: a picture, text, or a window that the first picture opens."""

    def __init__(self, world: World, title: str, render_mode: str | None, fps: int) -> None:
        if render_mode is not None:
            one_of("render_mode", render_mode, RENDER_MODES)
        if render_mode is not None and not isinstance(world, Renderable):
            raise ValueError(
                f"render_mode {render_mode!r} needs a world with frame() and ansi(), {type(world).__name__} has none"
            )
        self.world, self.title, self.render_mode, self.fps = world, title, render_mode, fps
        self._window: Any = None
        self._clock: Any = None

    def render(self, running: bool, final: bool) -> Array | str | None:
        """Return a picture or text, or draw into a window; with `final`, the end of the latest episode."""
        if self.render_mode is None:
            raise CoterieError(
                f"render_mode is None: pass one of {', '.join(RENDER_MODES)} when making the environment"
            )
        if not running:
            raise CoterieError("no episode is running: call reset() before render()")
        text = self.render_mode == "ansi"
        assert isinstance(self.world, Renderable)  # checked in __init__
        picture = self.world.ansi(0, final=final) if text else self.world.frame(0, final=final)
        if isinstance(picture, str) or self.render_mode == "rgb_array":
            return picture
        self._show(picture)
        return None

    def _show(self, picture: Array) -> None:
        import pygame  # optional dependency, used only for the window

        height, width, _ = picture.shape
        if self._window is None:
            pygame.display.init()
            pygame.display.set_caption(self.title)
            self._window = pygame.display.set_mode((width, height))
            self._clock = pygame.time.Clock()
        self._window.blit(pygame.surfarray.make_surface(picture.swapaxes(0, 1)), (0, 0))
        pygame.event.pump()
        pygame.display.flip()
        self._clock.tick(self.fps)

    def close(self) -> None:
        """Close the window if it is open."""
        if self._window is not None:
            import pygame

            pygame.display.quit()
            self._window = None


class PettingZooEnv(ParallelEnv):
    """A PettingZoo parallel environment around a world of one copy."""

    def __init__(self, world: World, name: str, render_mode: str | None = None) -> None:
        if world.num_envs != 1 or not world.simultaneous:
            raise ValueError(
                f"expected a simultaneous world of one copy, got {world.num_envs} copies "
                f"and simultaneous={world.simultaneous}"
            )
        self.metadata: dict[str, Any] = {
            "name": f"{name}_v0",
            "render_modes": list(RENDER_MODES),
            "render_fps": 10,
            "is_parallelizable": True,
        }
        self.world = world
        self.render_mode = render_mode
        self._columns = {  # agent type and column of each agent
            agent: (name, column)
            for name, agent_type in world.agent_types.items()
            for column, agent in enumerate(agent_type.agents)
        }
        self.possible_agents = list(self._columns)
        self.agents: list[str] = []
        spaces = {agent: world.agent_types[name] for agent, (name, _) in self._columns.items()}
        self.observation_spaces = {agent: gymnasium_space(own.observation) for agent, own in spaces.items()}
        self.action_spaces = {agent: gymnasium_space(own.action) for agent, own in spaces.items()}
        self._seeds: np.random.Generator | None = None  # draws the seeds of episodes that are reset without one
        self._ended = False
        self._display = Display(world, self.metadata["name"], render_mode, self.metadata["render_fps"])

    def observation_space(self, agent: str) -> gymnasium.Space:
        """The agent's observation space, always the same object."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> gymnasium.Space:
        """The agent's action space, always the same object."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Start an episode. A seed determines it and the following ones; without a seed episodes are random."""
        if seed is not None:
            self._seeds = generator(seed, "face")  # the word is part of the seeds: another one would change them
        else:
            self._seeds = self._seeds or np.random.default_rng()
            seed = int(self._seeds.integers(2**63))
        timestep = self.world.reset(seed)
        self.agents = list(self.possible_agents)
        self._ended = False
        if self.render_mode == "human":
            self.render()
        return self._observations(timestep), self._infos(timestep)

    def step(
        self, actions: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]:
        """Take one action per agent; agents whose episode ends are not in `agents` afterwards."""
        if not self.agents:
            raise CoterieError("no episode is running: call reset() before step()")
        timestep = self.world.step(self._action_arrays(actions))
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

    def _action_arrays(self, actions: Mapping[str, Any]) -> dict[str, Array]:
        """The actions as arrays by agent type; rows of agents that have ended are zeros, which the world ignores."""
        if set(actions) != set(self.agents):
            raise ValueError(f"actions must be given for {self.agents}, got {list(actions)}")
        arrays = {
            name: np.zeros((1, len(own.agents), *action_shape(own.action)), action_dtype(own.action))
            for name, own in self.world.agent_types.items()
        }
        for agent, action in actions.items():
            agent_type, column = self._columns[agent]
            space = self.action_spaces[agent]
            # Also accept lists and Python floats, which Gymnasium's Box.contains rejects.
            value = action if space.shape == () else np.asarray(action)
            if isinstance(space, gymnasium.spaces.Box) and value.dtype.kind in "iuf":
                value = value.astype(space.dtype)
            if not space.contains(value):
                raise ValueError(f"{agent}: action {action!r} is outside {space}")
            arrays[agent_type][0, column] = value
        return arrays

    def _agent_step(self, timestep: TimeStep, agent: str) -> tuple[AgentStep, int]:
        agent_type, column = self._columns[agent]
        return timestep.agent_types[agent_type], column

    def _observations(self, timestep: TimeStep) -> dict[str, Any]:
        observations = {}
        for agent in self.agents:
            agent_step, column = self._agent_step(timestep, agent)
            tree: Tree = agent_step.final_observation if timestep.ended[0] else agent_step.observation
            observations[agent] = map_tree(lambda array, column=column: array[0, column].copy(), tree)
        return observations

    def _infos(self, timestep: TimeStep) -> dict[str, dict[str, Any]]:
        infos: dict[str, dict[str, Any]] = {agent: {} for agent in self.agents}
        for agent, info in infos.items():
            agent_step, column = self._agent_step(timestep, agent)
            if agent_step.mask is not None and not timestep.ended[0]:
                info["action_mask"] = agent_step.mask[0, column].copy()
            if timestep.success is not None and timestep.ended[0]:
                info["success"] = bool(timestep.success[0])
            info |= self.world.info(agent, 0)
        return infos

    def render(self) -> Array | str | None:
        """Return a picture or text, or draw into a window, by `render_mode`; after the end, the final state."""
        return self._display.render(running=self._seeds is not None, final=self._ended)

    def close(self) -> None:
        """Close the window if it is open."""
        self._display.close()


class GymnasiumEnv(gymnasium.Env[Any, Any]):
    """A world with one agent as a Gymnasium environment."""

    def __init__(self, world: World, name: str, render_mode: str | None = None) -> None:
        self.parallel_env = PettingZooEnv(world, name, render_mode)
        if len(self.parallel_env.possible_agents) != 1:
            raise CoterieError(
                f"a Gymnasium environment has one agent, this world has {len(self.parallel_env.possible_agents)}"
            )
        self.agent = self.parallel_env.possible_agents[0]
        self.metadata, self.render_mode = self.parallel_env.metadata, render_mode
        self.observation_space = self.parallel_env.observation_space(self.agent)
        self.action_space = self.parallel_env.action_space(self.agent)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        observations, infos = self.parallel_env.reset(seed, options)
        return observations[self.agent], infos[self.agent]

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take the agent's action."""
        returned = self.parallel_env.step({self.agent: action})
        return tuple(part[self.agent] for part in returned)  # type: ignore[return-value]  # five parts, in this order

    def render(self) -> Any:
        """Render as the parallel environment does."""
        return self.parallel_env.render()

    def close(self) -> None:
        """Close the window if it is open."""
        self.parallel_env.close()
