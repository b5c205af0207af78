"""Parts shared by off-policy actor-critics: networks with target networks, and batches of a group's decisions."""

from __future__ import annotations

import numpy as np

from coterie.algorithms.joint_transitions import GroupSlices, JointTransitions
from coterie.core.types import Array, State
from coterie.nn import networks
from coterie.nn.launch import kernel
from coterie.nn.nets import Net, make_net
from coterie.nn.packing import Layout
from coterie.policies.network import NeuralPolicy


class NetworkWithTarget:
    """A network and its target network, which follows it slowly."""

    def __init__(self, net: Net, target: Net) -> None:
        self.net, self.target = net, target
        self.target.copy_from(net)

    @classmethod
    def critic(
        cls, shape: networks.Shape, layout: Layout, outputs: int, seeds: list[int], policy: NeuralPolicy
    ) -> NetworkWithTarget:
        """A critic with its first weights, and an equal target network; compiled where the policy is."""
        made = (networks.Network(shape, layout, outputs, 1.0, seeds).to(policy.device) for _ in range(2))
        return cls(*(make_net(module, policy.spec is not None and module.encode is None) for module in made))

    @property
    def flat(self) -> networks.FlatParams:
        """The network's parameters and their moments."""
        return self.net.flat

    @property
    def target_flat(self) -> networks.FlatParams:
        """The target network's parameters."""
        return self.target.flat

    @property
    def steps(self) -> int:
        """Adam steps taken: all parameter sets learn together."""
        return int(self.net.flat.steps[0])

    def move_target(self, tau: float) -> None:
        """Move the target network by the fraction `tau` of the way."""
        self.target.move_towards(self.net, tau)

    def state(self) -> State:
        return {"net": self.net.weights(), "target": self.target.weights(), "adam": self.net.flat.state()}

    def load(self, state: State, what: str) -> None:
        self.net.load_weights(state["net"], what)
        self.target.load_weights(state["target"], f"{what}, target")
        self.net.flat.load(state["adam"])


@kernel
def gather_decisions(
    t: int,
    index: Array,
    sets: int,
    first: int,
    first_action: int,
    observation: Array,
    next_obs: Array,
    action: Array,
    reward: Array,
    discount: Array,
    valid: Array,
    shift: Array,
    scale: Array,
    limit: float,
    x: Array,
    next_x: Array,
    to_action: Array,
    to_reward: Array,
    to_discount: Array,
    to_weight: Array,
) -> None:
    """Write decision t of a batch: network inputs `x [S·M, size + identities]` before and after, and what came of it.

    Rows of parameter set s are `m = i · per + p` for row i of the batch and agent `s + p`; the group's observations
    begin at `first`, its actions at `first_action`. The weight is 1 for decisions that count.
    """
    count, size, width = len(x) // sets, shift.shape[1], to_action.shape[1]
    s, m, per = t // count, t % count, count // len(index)
    r, a = index[m // per], s + m % per
    for j in range(size):
        k = first + a * size + j
        x[t, j] = min(max((observation[r, k] - shift[s, j]) * scale[s, j], -limit), limit)
        next_x[t, j] = min(max((next_obs[r, k] - shift[s, j]) * scale[s, j], -limit), limit)
    for j in range(size, x.shape[1]):
        x[t, j] = next_x[t, j] = 1 if j - size == a else 0
    for k in range(width):
        to_action[t, k] = action[r, first_action + a * width + k]
    to_reward[t], to_discount[t], to_weight[t] = reward[r, a], discount[r, a], valid[r, a]


@kernel
def share_weights(s: int, weight: Array) -> None:
    """Make weights `[S, M]` of a parameter set, 0 or 1, sum to 1."""
    total = 0.0
    for m in range(weight.shape[1]):
        total += weight[s, m]
    for m in range(weight.shape[1]):
        weight[s, m] = weight[s, m] / max(total, 1.0)


class DecisionBatch:
    """Arrays of a batch of a group's own decisions, filled anew for every update: M rows of S parameter sets each."""

    def __init__(self, policy: NeuralPolicy, own: GroupSlices, rows: int, width: int) -> None:
        """`rows` time steps are drawn; an action has `width` numbers."""
        sets, agents = policy.group_spec.parameter_sets, len(policy.group_spec.agents)
        lead = (sets, rows * agents // sets)
        self.policy, self.first, self.first_action = policy, own.obs.start, own.action.start
        self.x, self.next_x = (np.empty((*lead, own.layout.size + policy.identities), np.float32) for _ in range(2))
        self.action = np.empty((*lead, width), np.float32)
        self.reward, self.discount, self.weight = (np.empty(lead, np.float32) for _ in range(3))
        self.count = lead[0] * lead[1]

    def fill(self, rows: JointTransitions, index: Array) -> None:
        """Read these rows `[B]` of the replay."""
        normalizer, sets = self.policy.normalizer, len(self.x)
        inputs, next_inputs, action = (a.reshape(self.count, -1) for a in (self.x, self.next_x, self.action))
        reward, discount, weight = (a.reshape(-1) for a in (self.reward, self.discount, self.weight))
        gather_decisions.over(
            self.count,
            *(index, sets, self.first, self.first_action, rows.observation, rows.next_obs, rows.action),
            *(rows.reward, rows.discount, rows.valid, normalizer.shift, normalizer.scale, normalizer.limit),
            *(inputs, next_inputs, action, reward, discount, weight),
        )
        share_weights.over(sets, self.weight)
