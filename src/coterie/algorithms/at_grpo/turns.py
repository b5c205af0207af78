"""Metrics by role and turn: how good answers are, how much those that are compared differ, and how varied they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coterie.algorithms.at_grpo.groups import Found
from coterie.core.types import Array, Experience, Metrics, State
from coterie.policies.teams.weights import PAD


class TurnCounter:
    """Numbers the decisions of every agent within its episode, from one rollout to the next."""

    def __init__(self) -> None:
        self.made: Array | None = None  # [N, A] decisions of the present episode that have been learned from

    def count(self, own: Experience) -> Array:
        """The turn `[T, N, A]` of every decision that is not pending, from 0; −1 elsewhere."""
        closed, ends = own.closed(), own.ends
        made = np.zeros(closed.shape[1:], np.int64) if self.made is None else self.made
        turns = np.full(closed.shape, -1)
        for t in range(len(closed)):
            turns[t][closed[t]] = made[closed[t]]
            made = np.where(ends[t], 0, made + closed[t])
        self.made = made
        return turns

    def state(self) -> State:
        return {"made": None if self.made is None else self.made.copy()}

    def load(self, state: State) -> None:
        self.made = None if state["made"] is None else state["made"].copy()


def metrics_by_turn(own: Experience, found: Found, turns: Array, agents: Sequence[str]) -> Metrics:
    """By agent and turn, of all answers sampled there.

    score: their mean reward. advantage: the root mean square of R − mean, which is 0 in groups that teach nothing.
    entropy: minus the mean log-probability of the sampled tokens, in nats, which estimates the entropy.
    """
    assert own.trace is not None
    branches = own.trace["scores"].shape[-1] > 1
    learned = turns[tuple(found.rows.T)]
    metrics: Metrics = {}
    for column, agent in enumerate(agents):
        mine = turns[..., column]
        for turn in range(mine.max() + 1):
            t, n = np.nonzero(mine == turn)
            if not len(t):
                continue
            scores = own.trace["scores"][t, n, column] if branches else own.reward[t, n, column, None]
            chosen = (learned == turn) & (found.rows[:, 2] == column)
            sampled = own.trace["tokens"][t, n, column] != PAD
            name = f"{agent}/turn_{turn + 1}"
            metrics[f"{name}/score"] = float(scores.mean())
            metrics[f"{name}/advantage"] = float(np.sqrt((found.centred[chosen] ** 2).sum() / scores.size))
            if sampled.any():
                metrics[f"{name}/entropy"] = float(-own.trace["log_probs"][t, n, column][sampled].mean())
    return metrics
