"""A policy that lets an advisor act: how well a teacher does by itself."""

from __future__ import annotations

import numpy as np

from coterie.core.group import Advisor, Stateless
from coterie.core.types import UNLABELLED, Counters, Decision, Mean, View
from coterie.nn.advice import LEAST
from coterie.nn.distributions import Choices


class AdvisorPolicy(Stateless):
    """Draws actions from what an advisor suggests, or takes the likeliest; where it abstains, any legal action.

    It is built for an advisor that exists, not by name.
    """

    memory_size = 0

    def __init__(self, advisor: Advisor, exploration: float = 0.0) -> None:
        """`exploration`: probability of any legal action instead of the advisor's."""
        self.advisor, self.exploration = advisor, exploration
        self.decisions = self.abstentions = 0

    def act(self, view: View) -> Decision:
        advice = self.advisor.suggest(view)
        self.decisions += int(view.acting.sum())
        self.abstentions += int((view.acting & ~advice.given).sum())
        logits = np.log(np.maximum(advice.probabilities, LEAST**2)).astype(np.float32)
        head = Choices((logits.shape[-1],), single=True)
        action, log_prob = head.act(logits, view.mask, view.random, view.greedy)
        random = ~advice.given  # where greedy play would take the first legal action
        if self.exploration:
            random |= view.random.random(random.shape) < self.exploration
        trace = {UNLABELLED: ~advice.given}
        if random.any():
            other, _ = head.act(0 * logits, view.mask, view.random, greedy=False)
            return Decision(np.where(random, other, action), trace=trace)
        return Decision(action, log_prob, trace=trace)

    def metrics(self) -> Counters:
        """The decisions taken, and the share in which the advisor abstained."""
        return {"decisions": float(self.decisions), "abstentions": Mean(self.abstentions, self.decisions)}
