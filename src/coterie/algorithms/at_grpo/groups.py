"""Groups of answers that are compared with each other, and their advantages.

A group holds answers to one and the same prompt. `turn`: the candidates of one agent in one turn of one instance
(AT-GRPO, Zhao et al. 2025), each with the reward of its own outcome. `episode`: whole episodes of one instance
(GRPO, Shao et al. 2024, eq. 3), each with its return; all answers of an episode share its advantage.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from coterie.core.types import Array, CoterieError, Experience
from coterie.lm.learn.sampling import PAD

Baseline = Literal["std", "mean"]
Flat = Literal["skip", "regularize"]  # what becomes of groups in which every answer is equally good
EPSILON = 1e-6  # rewards that differ by less are equal


class Answers(NamedTuple):
    """Answers to learn from: G prompts, K answers each, of up to L tokens."""

    prompts: Array  # [G, P] int32, PAD after the end
    tokens: Array  # [G, K, L] int32
    log_probs: Array  # [G, K, L] float32: when they were sampled
    advantages: Array  # [G, K] float32
    agents: Array  # [G] int: index within the group of agents

    def take(self, rows: Array) -> Answers:
        """Some of the prompts."""
        return Answers(*(array[rows] for array in self))


class Found(NamedTuple):
    """The answers of a rollout to learn from, and how many groups say nothing about which are better."""

    answers: Answers
    groups: int  # compared
    flat: int  # groups in which every answer is equally good
    tokens: int  # sampled, those of skipped groups included
    rows: Array  # [G, 3] int: where each prompt was answered (t, n, a)
    centred: Array  # [G, K] float64: R − mean of each answer


def advantages(rewards: Array, baseline: Baseline) -> Array:
    """(R − mean) / std within each group `[G, K]`, or R − mean."""
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    if baseline == "mean":
        return centred.astype(np.float32)
    deviation = rewards.std(axis=1, keepdims=True)
    return np.where(deviation > EPSILON, centred / np.maximum(deviation, EPSILON), 0.0).astype(np.float32)


def by_turn(own: Experience, baseline: Baseline, flat: Flat = "skip") -> Found:
    """Groups of candidates: every decision is one group."""
    trace = _trace(own)
    # Decisions that are pending when a rollout ends become its next one's first row: they are learned from there.
    t, n, a = np.nonzero(own.closed() & (trace["prompt"][..., 0] != PAD))
    scores = trace["scores"][t, n, a].astype(np.float64)
    if scores.shape[1] < 2:
        raise ValueError("groups=turn compares candidates: set policy.candidates to 2 or more")
    uneven = np.ptp(scores, axis=1) > EPSILON
    found = Answers(
        trace["prompt"][t, n, a],
        trace["tokens"][t, n, a],
        trace["log_probs"][t, n, a],
        advantages(scores, baseline),
        a,
    )
    kept = np.flatnonzero(uneven | (flat == "regularize"))
    rows, centred = np.stack([t, n, a], axis=1)[kept], (scores - scores.mean(axis=1, keepdims=True))[kept]
    sampled = int((found.tokens != PAD).sum())
    return Found(found.take(kept), len(t), int((~uneven).sum()), sampled, rows, centred)


def by_episode(own: Experience, table: Sequence[Experience], baseline: Baseline, flat: Flat = "skip") -> Found:
    """Groups of episodes that began with the same prompt; their decisions share the episode's advantage.

    `table` is the experience of all groups of agents, this one included. The prompt that began an episode may have been
    another group's: what this one reads depends on the answers before it.
    """
    trace = _trace(own)
    episodes = _episodes(own)
    together: dict[bytes, list[tuple[Array, float]]] = defaultdict(list)
    for rows, value, first in episodes:
        together[_opening(table, first, int(rows[0, 1]))].append((rows, value))
    if episodes and max(map(len, together.values())) < 2:
        raise CoterieError(
            "learner.groups=episode compares episodes of one instance: set world.group_size to 2 or more"
        )
    kept: list[tuple[Array, float, float]] = []  # decisions of an episode, its advantage, its return − the mean
    even = 0
    for members in together.values():
        returns = np.array([value for _, value in members])
        if np.ptp(returns) <= EPSILON:
            even += 1
            if flat == "skip":
                continue
        each = advantages(returns[None], baseline)[0]
        kept += zip([rows for rows, _ in members], each, returns - returns.mean(), strict=True)
    rows = np.concatenate([r for r, _, _ in kept]) if kept else np.zeros((0, 3), np.int64)
    t, n, a = rows.T
    lengths = [len(r) for r, _, _ in kept]
    advantage = np.repeat(np.array([v for _, v, _ in kept], np.float32), lengths)
    centred = np.repeat(np.array([c for _, _, c in kept], np.float64), lengths)
    answers = Answers(
        trace["prompt"][t, n, a],
        trace["tokens"][t, n, a][:, :1],
        trace["log_probs"][t, n, a][:, :1],
        advantage[:, None],
        a,
    )
    tokens = sum(int((trace["tokens"][tuple(r.T)] != PAD).sum()) for r, _, _ in episodes)
    return Found(answers, len(together), even, tokens, rows, centred[:, None])


def _opening(table: Sequence[Experience], first: int, copy: int) -> bytes:
    """A hash of the prompt that began an episode, whichever group read it; `first` is the episode's first row."""
    for row in range(first, len(table[0].active)):
        for experience in table:
            deciding = experience.active[row, copy]
            if deciding.any() and isinstance(experience.observation, np.ndarray):
                return hashlib.sha256(repr(experience.observation[row, copy][deciding].tolist()).encode()).digest()
    raise AssertionError(f"nobody decided in the episode of copy {copy} from row {first} on")


def _episodes(own: Experience) -> list[tuple[Array, float, int]]:
    """Of every finished episode: decisions `[R, 3]` (t, n, a), return over all of the group's agents, its first row."""
    found = []
    reward: Array = own.reward.sum(axis=2, dtype=np.float64)
    ends: Array = own.ends.max(axis=2)
    readable: Array = np.not_equal(_trace(own)["prompt"][..., 0], PAD)
    for n in range(own.active.shape[1]):
        first = 0
        for last in np.flatnonzero(ends[:, n]).tolist():
            part = own.active[first : last + 1, n] & readable[first : last + 1, n]
            t, a = np.nonzero(part)
            if len(t):
                rows = np.stack([t + first, np.full(len(t), n), a], axis=1)
                found.append((rows, float(reward[first : last + 1, n].sum()), first))
            first = last + 1
        if own.active[first:, n].any():
            raise CoterieError(
                "learner.groups=episode learns from whole episodes, and this rollout cuts one: set train.rollout_steps "
                "to a multiple of world.turns · roles, and world.wait=true"
            )
    return found


def _trace(own: Experience) -> Mapping[str, Array]:
    if own.trace is None or "scores" not in own.trace:
        raise ValueError("the experience holds no candidates; learner 'at_grpo' needs policy 'causal_lm'")
    return own.trace
