"""What MADDPG works on: batches as networks take them, networks with slower copies, and what cannot be judged."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import Tensor

from coterie import nets
from coterie.algorithms.maddpg_desk import Learned
from coterie.types import CoterieError, Experience, State

ENOUGH = 64  # decisions that show how often nothing comes of one


class Batch(NamedTuple):
    """Transitions as the networks take them; x are inputs of the policy in the order of its parameters."""

    x: Tensor  # [S, M, …]
    next_x: Tensor  # [S, M, …]
    seen: Tensor  # [B, A, …]: what each agent's critic sees, and who it is
    next_seen: Tensor  # [B, A, …]
    action: Tensor  # [B, U]: everybody's
    legal: Tensor  # [B, A, K]: one's own
    next_legal: Tensor  # [B, A, K]
    going: Tensor  # [B, A]: who does something next
    reward: Tensor  # [B, A]
    discount: Tensor  # [B, A]
    share: Tensor  # [B, A]: weight of each decision in its stack's mean


class Followed:
    """A network and the slower copy that targets are made of."""

    def __init__(self, net: nets.Net, flat: nets.Flat, target: nets.Net) -> None:
        self.net, self.flat, self.target, self.target_flat = net, flat, target, nets.Flat(target)
        self.target_flat.array[:] = flat.array

    @property
    def steps(self) -> int:
        """Adam steps taken: all stacks learn together."""
        return int(self.flat.steps[0])

    def follow(self, rate: float) -> None:
        self.target_flat.array += np.float32(rate) * (self.flat.array - self.target_flat.array)

    def learned(self) -> Learned:
        """All arrays, for the compiled path."""
        return Learned(self.flat.array, self.flat.mean, self.flat.square, self.target_flat.array)

    def state(self) -> State:
        return {"net": nets.export(self.net), "target": nets.export(self.target), "adam": self.flat.state()}

    def load(self, state: State, what: str) -> None:
        nets.restore(self.net, state["net"], what)
        nets.restore(self.target, state["target"], f"{what}, target")
        self.flat.load(state["adam"])


class Unjudgeable(ValueError, CoterieError):
    """Decisions are not such as could be judged interim."""


def demand_judgeable(group: str, own: Experience, gamma: float, one_amount: bool) -> None:
    """Refuse to judge decisions that follow each other, and various amounts where the critic tells one."""
    paid = own.reward[own.active]
    if one_amount and len(paid) >= ENOUGH and (paid != 0).mean() > 0.9:
        raise Unjudgeable(
            "with critic.hurdle and critic.quantiles=1 a decision brings nothing or one amount; here it hardly ever "
            "brings nothing, and all that may come of it would look like its mean; set "
            f"{group}.learner.critic.hurdle=false {group}.learner.critic.quantiles=8"
        )
    if gamma and (own.active & ~own.terminated).any():  # there is nothing to bootstrap with
        raise Unjudgeable(
            "judged interim, a decision is worth what it brings by itself, but here others follow it; set "
            f"{group}.learner.gamma=0 to judge each by its own reward, or {group}.preference.way=episodic with "
            f"{group}.learner.name=ppo and {group}.policy.name=network"
        )
