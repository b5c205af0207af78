"""Gymnasium environments of several agents: spaces, observations and rewards have one entry for each agent.

Level-Based Foraging and RWARE use tuples and lists, MultiGrid uses dicts; each keeps Gymnasium's five returned values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie.core.types import CoterieError
from coterie.worlds.adapters.batch import InvalidEnvOutput


class TupleAgents:
    """Such an environment with the interface of a PettingZoo parallel environment."""

    def __init__(self, env: Any) -> None:
        self.env = env
        observations, actions = (_parts(space) for space in (env.observation_space, env.action_space))
        if not observations or [*observations] != [*actions]:
            raise CoterieError(
                f"world.agents: tuple: expected observation and action spaces with one entry for each agent, got "
                f"{env.observation_space} and {env.action_space}; world.agents: single plays them as one agent"
            )
        self._keys = {key if isinstance(key, str) else f"agent_{key}": key for key in actions}  # by our names
        self._observation_spaces, self._action_spaces = observations, actions
        self._named = isinstance(_spaces(env.action_space), Mapping)
        self._last: dict[str, Any] = {}  # actions, repeated for agents that have ended
        self.possible_agents = [*self._keys]
        self.agents = [*self._keys]

    def observation_space(self, agent: str) -> Any:
        """One agent's observation space."""
        return self._observation_spaces[self._keys[agent]]

    def action_space(self, agent: str) -> Any:
        """One agent's action space."""
        return self._action_spaces[self._keys[agent]]

    def reset(self, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode."""
        returned = self.env.reset(seed=seed)
        if not (isinstance(returned, tuple) and len(returned) == 2):
            raise InvalidEnvOutput("reset to return (observations, info)", type(returned).__name__)
        self.agents, self._last = [*self._keys], {}
        return self._entries("observations", returned[0], self.agents), self._infos(returned[1])

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """Take one action of each agent."""
        self._last |= actions
        if self._named:
            returned = self.env.step({self._keys[agent]: action for agent, action in actions.items()})
        else:
            returned = self.env.step(tuple(self._last[agent] for agent in self._keys))
        if not (isinstance(returned, tuple) and len(returned) == 5):
            raise InvalidEnvOutput("step to return (observations, rewards, terminated, truncated, info)", returned)
        observations, rewards, terminated, truncated, info = returned
        acted = list(self.agents)
        parts = [self._entries("observations", observations, acted, partial=True)]
        parts.append(self._entries("rewards", rewards, acted, shared=True, partial=True))
        for name, values in (("terminated", terminated), ("truncated", truncated)):
            parts.append(self._entries(name, values, acted, shared=True))
        self.agents = [agent for agent in acted if not (parts[2][agent] or parts[3][agent])]
        return *parts, self._infos(info)

    def _entries(
        self, name: str, values: Any, agents: Sequence[str], shared: bool = False, partial: bool = False
    ) -> dict[str, Any]:
        """The agents' entries of a returned value.

        A `shared` value that is one number counts for every agent. Where `partial`, a dict may lack agents.
        """
        if isinstance(values, Mapping):
            found = {agent: values[self._keys[agent]] for agent in agents if self._keys[agent] in values}
            if len(found) < len(agents) and not partial:
                missing = next(agent for agent in agents if agent not in found)
                raise InvalidEnvOutput(f"{name} with an entry for {missing!r}", [*values])
            return found
        if isinstance(values, list | tuple) or np.ndim(values) > 0:
            if len(values) != len(self._keys):
                raise InvalidEnvOutput(f"{name} of {len(self._keys)} agents", len(values))
            of_all = dict(zip(self._keys, values, strict=True))
            return {agent: of_all[agent] for agent in agents}
        if shared:
            return dict.fromkeys(agents, values)
        raise InvalidEnvOutput(f"{name} with one entry for each agent", type(values).__name__)

    def _infos(self, info: Any) -> dict[str, Any]:
        """One info for each agent: its own entry, or its entry of a list of masks."""
        if not isinstance(info, Mapping):
            return {}
        if "action_mask" in info:
            masks = self._entries("action_mask", info["action_mask"], self.agents)
            return {agent: {"action_mask": mask} for agent, mask in masks.items()}
        return {agent: info.get(self._keys[agent], {}) for agent in self.agents}

    def render(self) -> Any:
        """The environment's picture."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


def _spaces(space: Any) -> Any:
    """The entries of a Tuple or Dict space, or of a list or dict of spaces."""
    return space if isinstance(space, list | tuple | dict) else getattr(space, "spaces", ())


def _parts(space: Any) -> dict[Any, Any]:
    found = _spaces(space)
    return dict(found) if isinstance(found, Mapping) else dict(enumerate(found))
