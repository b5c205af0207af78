"""Random actions, views and decisions, drawn from spaces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from coterie.core import seeding
from coterie.core.decisions import Decisions, Finals
from coterie.core.group import GroupSpec, Policy
from coterie.core.trees import map_tree
from coterie.core.types import (
    Array,
    Box,
    Decision,
    Dict,
    Discrete,
    ObservationSpace,
    Text,
    View,
    random_texts,
    sampling_bounds,
)
from coterie.core.world import World
from coterie.training.rollout import Arrived, Played, Row, Seen

NUM_ENVS = 3
ROWS = 12  # time steps of random experience


def random_observation(space: ObservationSpace, rows: tuple[int, ...], random: np.random.Generator) -> Any:
    """Uniform observations `[*rows, …]`; see `sampling_bounds`."""
    match space:
        case Dict(entries):
            return {key: random_observation(part, rows, random) for key, part in entries.items()}
        case Discrete(n):
            return random.integers(n, size=rows)
        case Box(shape, dtype=dtype):
            return random.uniform(*sampling_bounds(space), size=(*rows, *shape)).astype(dtype)
        case Text():
            return random_texts(space, rows, random)


def random_view(
    group_spec: GroupSpec, random: np.random.Generator, masked: bool, memory_size: int, world: World | None = None
) -> View:
    """A view with random observations, masks and memory, or with those of a world after `reset`."""
    rows, space = (NUM_ENVS, len(group_spec.agents)), group_spec.spaces.action
    memory = random.random((*rows, memory_size), np.float32) if memory_size else None
    observation = random_observation(group_spec.spaces.observation, rows, random)
    acting, mask, columns = np.ones(rows, bool), None, group_spec.columns
    if world is not None:
        agent_step = world.reset(0).agent_types[group_spec.agent_type]
        observation = map_tree(lambda array: array[:, columns], agent_step.observation)
        acting = agent_step.acting[:, columns]
        mask = None if agent_step.mask is None else agent_step.mask[:, columns]
    elif masked and isinstance(space, Discrete):
        mask = random.random((*rows, space.n)) < 0.5
        np.put_along_axis(mask, random.integers(space.n, size=(*rows, 1)), True, axis=-1)
    agents = np.arange(rows[1])
    return View(observation, acting, agents, random, False, mask, memory, world, group_spec.agent_type, columns)


def decide(policy: Policy, view: View, seed: int, greedy: bool = False) -> Decision:
    """The policy's decision, with a random generator of its own."""
    return policy.act(replace(view, greedy=greedy, random=seeding.generator(seed, "check act")))


def random_decisions(group_spec: GroupSpec, policy: Policy, masked: bool, seed: int) -> Decisions:
    """Random observations, rewards, ends and idle rows, with the policy's own decisions."""
    random, shape = seeding.generator(seed, "check_learner"), (ROWS, NUM_ENVS, len(group_spec.agents))
    views = [random_view(group_spec, random, masked, policy.memory_size) for _ in range(ROWS + 1)]
    decisions = [decide(policy, view, t) for t, view in enumerate(views[:-1])]
    ended = random.random((ROWS, NUM_ENVS, 1)) < 0.2
    truncated = ended & (random.random(shape) < 0.5)
    index = np.argwhere(truncated.any(axis=2))
    finals = random_observation(group_spec.spaces.observation, (len(index), shape[2]), random)
    zeros, size = np.zeros(shape[1:], np.float32), policy.memory_size
    reward = random.standard_normal(shape, np.float32)
    mean = np.broadcast_to(reward.mean(axis=2, keepdims=True), shape)
    row = Row(
        active=random.random(shape) < 0.7,
        action=np.stack([decision.action for decision in decisions]),
        log_prob=np.stack([zeros if decision.log_prob is None else decision.log_prob for decision in decisions]),
        mask=_stack([view.mask for view in views[:-1]]),
        advice=None,
        trace=None,
    )
    acting = random.random(shape[1:]) < 0.7
    remembered = random.random((len(index), shape[2], size), np.float32) if size else None
    episode: Array = np.cumsum(ended[:, :, 0], axis=0) - ended[:, :, 0]
    observation = map_tree(lambda *a: np.stack(a), *(view.observation for view in views))
    seen = Seen(observation, _stack([view.memory for view in views]))
    arrived = Arrived(reward, mean, ended & ~truncated, truncated)
    return Played(row, seen, arrived, Finals(index, finals, remembered), acting, episode).close()


def _stack(arrays: list[Array | None]) -> Array | None:
    given = [array for array in arrays if array is not None]
    return np.stack(given) if given else None
