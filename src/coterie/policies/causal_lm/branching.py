"""Branching: score several candidate answers from one state, and choose the one to go on with.

Every candidate is executed on a fork of the world and scored by the reward that it brings its own agent. The chosen one
is then played in the world itself, with the same outcome. Only training branches.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from coterie.core.types import Array, View
from coterie.core.world import Forkable

Choose = Literal["best", "random", "first"]


def score_candidates(view: View, copies: Array, agents: Array, candidates: Array) -> Array:
    """Rewards `[R, K]` of candidate texts `[R, K]`; row r is written by agent `agents[r]` in copy `copies[r]`."""
    if not isinstance(view.world, Forkable) or view.columns is None:
        raise ValueError("candidates can only be scored in a world that can be forked")
    rows, count = candidates.shape
    columns = np.repeat(view.columns[agents], count)
    fork = view.world.fork(np.repeat(copies, count))
    actions = {name: np.full((rows * count, len(t.agents)), "", object) for name, t in fork.agent_types.items()}
    every = np.arange(rows * count)
    assert isinstance(view.observation, np.ndarray)
    found = fork.observe().agent_types[view.agent_type].observation[every, columns]
    demand_same_prompts(view.observation[copies, agents], found.reshape(rows, count))
    actions[view.agent_type][every, columns] = candidates.reshape(-1)
    reward = fork.step(actions).agent_types[view.agent_type].reward
    return reward[every, columns].reshape(rows, count)


def demand_same_prompts(read: Array, found: Array) -> None:
    """Raise unless all candidates of a group answer the prompt that was read: they are compared with each other.

    `read` `[R]` are the texts that the policy tokenised, once for each group; `found` `[R, K]` is what its candidates
    would read where they are scored. Equal texts have equal tokens, so this asserts equal token ids too.
    """
    different = np.flatnonzero((found != read[:, None]).any(axis=1))
    if len(different):
        raise AssertionError(f"the candidates of group {different[0]} answer different prompts; fork() is wrong")


def choose(scores: Array, how: Choose, random: np.random.Generator) -> Array:
    """The index `[R]` of the candidate to go on with; of equally good ones the first."""
    match how:
        case "best":
            return scores.argmax(axis=1)
        case "random":
            return random.integers(scores.shape[1], size=len(scores))
        case "first":
            return np.zeros(len(scores), np.int64)
