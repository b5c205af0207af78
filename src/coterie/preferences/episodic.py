"""Risk measures of whole episodes, as rewards that a policy gradient can follow.

A value V of the distribution of an episode's return X has the gradient E[φ(X) Σ ∇ log π(aₜ|oₜ)], where φ is the
influence of X on V (`prospect.influence_of_samples`). So a learner that maximises E[φ(X)], with φ paid when the episode
ends, maximises V. φ is estimated anew from the episodes that end in each rollout.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coterie.core.decisions import Decisions
from coterie.core.group import Risk
from coterie.core.types import Array, Metrics, State


class EpisodeReturns:
    """Accumulates returns of episodes and replaces rewards by the influence of each finished episode.

    With shared parameters (`parameter_sets` is 1) the episodes of all agents are ranked together. Else `parameter_sets`
    is the number of agents, and each agent's episodes are ranked separately.
    """

    def __init__(self, risk: Risk, parameter_sets: int) -> None:
        self.risk, self.parameter_sets = risk, parameter_sets
        self.running: Array | None = None  # [N, A] float64: returns of unfinished episodes; None before a rollout

    def replace_rewards(self, decisions: Decisions) -> tuple[Decisions, Metrics]:
        """Return the experience to learn from: an episode's last reward is the influence of its return, others are 0.

        A truncated episode counts as terminated with its return so far: no value is bootstrapped.
        """
        returns = self.returns(decisions)
        reward = np.zeros(decisions.reward.shape, np.float32)
        value, count = 0.0, 0
        for agents in (
            [slice(None)] if self.parameter_sets == 1 else [slice(a, a + 1) for a in range(self.parameter_sets)]
        ):
            over = decisions.ends[:, :, agents]
            samples = returns[:, :, agents][over]
            if len(samples):
                reward[:, :, agents][over] = self.risk.influence(samples)
                value += float(self.risk.value(samples)) * len(samples)
                count += len(samples)
        metrics = {"episodes_judged": float(count)} | ({"risk_value": value / count} if count else {})
        return replace(
            decisions, reward=reward, terminated=decisions.ends, truncated=np.zeros_like(decisions.truncated)
        ), metrics

    def returns(self, decisions: Decisions) -> Array:
        """Returns of episodes since the agent's first decision, at its last decision `[T, N, A]`; 0 elsewhere."""
        running = np.zeros(decisions.valid.shape[1:]) if self.running is None else self.running.copy()
        found = np.zeros(decisions.reward.shape)
        for t, over in enumerate(decisions.ends):
            running += decisions.reward[t]
            found[t] = np.where(over, running, 0.0)
            running[over] = 0.0
        self.running = running
        return found

    def state(self) -> State:
        return {} if self.running is None else {"running": self.running.copy()}

    def load(self, state: State) -> None:
        self.running = state["running"].copy() if state else None
