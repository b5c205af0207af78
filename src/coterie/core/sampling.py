"""Random draws: actions from action spaces, and indices by weight."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from coterie.core.types import (
    AgentStep,
    AgentType,
    Array,
    Box,
    Discrete,
    MultiDiscrete,
    Text,
    TimeStep,
    random_texts,
    sampling_bounds,
)


def random_actions(
    timestep: TimeStep, agent_types: Mapping[str, AgentType], random: np.random.Generator
) -> dict[str, Array]:
    """Uniform legal actions of every agent, `[N, A, …]` for each agent type; see `sampling_bounds`."""
    return {name: _actions(agent_type, timestep.agent_types[name], random) for name, agent_type in agent_types.items()}


def draw_index(weights: Array, random: np.random.Generator) -> Array:
    """Indices `[R]`, each drawn in proportion to its row of `weights` `[R, K]`; one of weight 0 is never drawn."""
    sums = weights.cumsum(axis=1)
    drawn: Array = (sums <= random.random((len(sums), 1)) * sums[:, -1:]).sum(axis=1)
    return drawn


def _actions(agent_type: AgentType, agent_step: AgentStep, random: np.random.Generator) -> Array:
    rows = agent_step.acting.shape
    match agent_type.action:
        case Discrete(n):
            mask = np.ones((*rows, n), bool) if agent_step.mask is None else agent_step.mask
            return np.where(mask, random.random(mask.shape), -1.0).argmax(-1)
        case MultiDiscrete(sizes):
            return random.integers(sizes, size=(*rows, len(sizes)))
        case Box(shape):
            return random.uniform(*sampling_bounds(agent_type.action), size=(*rows, *shape)).astype(np.float32)
        case Text():
            return random_texts(agent_type.action, rows, random)
