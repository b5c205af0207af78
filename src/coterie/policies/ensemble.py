"""An ensemble of networks: it acts by the mean of its members, and their disagreement measures its uncertainty.

Members differ in their first weights and in the order of what they learn from. Discrete actions are drawn from the
mean of the members' probabilities; continuous ones are the mean of the members' actions when greedy, and else the
action of a random member. Disagreement is the mutual information of action and member in nats (discrete), or the
deviation of the members' greedy actions in half ranges (continuous); 0 where all members say the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from coterie.core import seeding
from coterie.core.group import GroupSpec, Policy
from coterie.core.settings import Settings
from coterie.core.types import Array, Box, Counters, Decision, Mean, State, View, action_shape
from coterie.core.validation import at_least
from coterie.nn.advice import log_softmax
from coterie.nn.distributions import Choices
from coterie.nn.packing import bounds
from coterie.policies.network import NetworkPolicy, NetworkSettings

DISAGREEMENT = "disagreement"  # in a decision's trace, [N, A] float32


@dataclass(frozen=True)
class EnsembleSettings(Settings):
    """Settings of the policy 'ensemble'."""

    members: int = 5  # networks
    network: NetworkSettings = field(default_factory=NetworkSettings)  # of each member

    def __post_init__(self) -> None:
        at_least("members", self.members, 2)
        if self.network.memory:
            raise ValueError("network.memory: members of an ensemble have no memory; set it to 0")


class EnsemblePolicy(Policy):
    """Several networks that decide together."""

    def __init__(self, settings: EnsembleSettings, group_spec: GroupSpec) -> None:
        self.group_spec = group_spec
        seeds = [seeding.integer(group_spec.seed, "ensemble", i) for i in range(settings.members)]
        self.members = [NetworkPolicy(settings.network, replace(group_spec, seed=seed)) for seed in seeds]
        self.head = self.members[0].head
        self.total, self.decisions = 0.0, 0.0

    def act(self, view: View) -> Decision:
        outputs = self.outputs(view)
        apart = self._disagreement(outputs, view)
        self.total += float(apart[view.acting].sum())
        self.decisions += float(view.acting.sum())
        trace = {DISAGREEMENT: apart}
        shape = (*view.acting.shape, *action_shape(self.group_spec.spaces.action))
        if isinstance(self.head, Choices):
            logits = self.mean_logits(outputs, view)
            action, log_prob = self.head.act(logits, view.mask, view.random, view.greedy)
            return Decision(action.reshape(shape), log_prob, trace=trace)
        actions = np.stack([self.head.act(out, None, view.random, view.greedy)[0] for out in outputs])
        if view.greedy:
            return Decision(actions.mean(axis=0).astype(np.float32).reshape(shape), trace=trace)
        drawn = view.random.integers(len(actions), size=view.acting.shape)
        n, a = np.indices(view.acting.shape)
        return Decision(actions[drawn, n, a].reshape(shape), trace=trace)

    def outputs(self, view: View) -> list[Array]:
        """Each member's outputs `[N, A, outputs]`."""
        packed = self.members[0].packed_view(view)
        return [np.ascontiguousarray(member.forward(packed, view)[0]) for member in self.members]

    def mean_logits(self, outputs: list[Array], view: View) -> Array:
        """Logarithms of the members' mean probabilities, `[N, A, K]`."""
        mean = np.mean([np.exp(part) for part in self._log_probs(outputs, view)], axis=0)
        return np.log(np.maximum(mean, 1e-30)).astype(np.float32)

    def _log_probs(self, outputs: list[Array], view: View) -> list[Array]:
        """Each member's log-probabilities of every choice `[N, A, K]`."""
        assert isinstance(self.head, Choices)
        if self.head.single:
            return [log_softmax(out, view.mask) for out in outputs]
        cuts = np.cumsum(self.head.sizes)[:-1]
        return [
            np.concatenate([log_softmax(part, None) for part in np.split(out, cuts, axis=-1)], axis=-1)
            for out in outputs
        ]

    def log_probs(self, view: View) -> Array:
        """Log-probabilities `[N, A, K]` of the ensemble's own actions."""
        return self.mean_logits(self.outputs(view), view)

    def disagreement(self, view: View) -> Array:
        """The members' disagreement, `[N, A]` float32: 0 where they agree."""
        return self._disagreement(self.outputs(view), view)

    def _disagreement(self, outputs: list[Array], view: View) -> Array:
        if isinstance(self.head, Choices):
            each = np.stack(self._log_probs(outputs, view))
            mean = np.exp(each).mean(axis=0)
            entropy = -(mean * np.log(np.maximum(mean, 1e-30))).sum(axis=-1)
            own = -(np.exp(each) * each).sum(axis=-1).mean(axis=0)
            return np.maximum(entropy - own, 0).astype(np.float32)
        space = self.group_spec.spaces.action
        assert isinstance(space, Box)
        greedy = np.stack([self.head.act(out, None, view.random, True)[0] for out in outputs])
        spread = greedy.reshape(len(outputs), *view.acting.shape, -1).std(axis=0) / bounds(space)[1]
        return spread.mean(axis=-1).astype(np.float32)

    def metrics(self) -> Counters:
        """The mean disagreement since the last call: that of earlier members says nothing about the present ones."""
        found = {DISAGREEMENT: Mean(self.total, self.decisions)} if self.decisions else {}
        self.total, self.decisions = 0.0, 0.0
        return found

    def state(self) -> State:
        return {"members": [member.state() for member in self.members]}

    def load(self, state: State) -> None:
        if len(state["members"]) != len(self.members):
            raise ValueError(
                f"group '{self.group_spec.group}': the saved ensemble has {len(state['members'])} members, "
                f"this one has {len(self.members)}"
            )
        for member, saved in zip(self.members, state["members"], strict=True):
            member.load(saved)
