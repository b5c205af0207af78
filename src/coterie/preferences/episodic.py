"""Whole episodes judged by what they returned: the policy gradient of a distribution's value.

Any value V of the distribution of an episode's return X has the gradient E[φ(X) Σ ∇ log π(aₜ|oₜ)] with φ the influence
of X on V (`prospect.py`). So a learner that maximises E[φ(X)], φ paid when the episode ends, follows it; φ is estimated
anew from the episodes that end in each rollout. Who follows the gradient, and how, is the learner's business.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coterie.core.group import Risk
from coterie.core.types import Array, Experience, Metrics, State, open_decisions


class EpisodeReturns:
    """What episodes have returned so far, and what the ones that end are worth to who learns.

    Agents that share parameters are ranked together, as one agent that plays all their parts: `parameter_sets` is 1. Else it is
    the number of agents, and each is ranked among its own episodes.
    """

    def __init__(self, risk: Risk, parameter_sets: int) -> None:
        self.risk, self.parameter_sets = risk, parameter_sets
        self.running: Array | None = None  # [N, A] float64: of episodes under way; N is seen with the first experience

    def judged(self, own: Experience) -> tuple[Experience, Metrics]:
        """The experience as a learner should take it: an end pays what the episode's return moves, else nothing does.

        A cut-off episode is over with what it has collected, so that nothing is bootstrapped from its last observation.
        """
        returns = self.returns(own)
        reward = np.zeros(own.reward.shape, np.float32)
        worth, count = 0.0, 0
        for agents in (
            [slice(None)] if self.parameter_sets == 1 else [slice(a, a + 1) for a in range(self.parameter_sets)]
        ):
            over = own.ends[:, :, agents]
            samples = returns[:, :, agents][over]
            if len(samples):
                reward[:, :, agents][over] = self.risk.influence(samples)
                worth += float(self.risk.value(samples)) * len(samples)
                count += len(samples)
        metrics = {"episodes_judged": float(count)} | ({"worth": worth / count} if count else {})
        return replace(own, reward=reward, terminated=own.ends, truncated=np.zeros_like(own.truncated)), metrics

    def returns(self, own: Experience) -> Array:
        """What each episode that ends has returned in all, `[T, N, A]`, 0 where none ends; the others go on."""
        running = np.zeros(own.acting.shape) if self.running is None else self.running.copy()
        found = np.zeros(own.reward.shape)
        for t, over in enumerate(own.ends):
            running += own.reward[t]
            found[t] = np.where(over, running, 0.0)
            running[over] = 0.0
        self.running = running - open_decisions(own).reward  # what open decisions have brought comes again with them
        return found

    def state(self) -> State:
        return {} if self.running is None else {"running": self.running.copy()}

    def load(self, state: State) -> None:
        self.running = state["running"].copy() if state else None
