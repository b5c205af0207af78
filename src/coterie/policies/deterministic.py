"""A deterministic policy: a network maps an observation to a continuous or discrete action; noise explores.

Continuous actions are squashed to their bounds; exploration adds Gaussian noise. Of discrete actions the one with
the highest output is taken; exploration draws in proportion to exp(output), which equals adding Gumbel noise.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from coterie.core.group import GroupSpec
from coterie.core.search_space import Choice, Space
from coterie.core.settings import Settings
from coterie.core.types import (
    Array,
    Box,
    Decision,
    Discrete,
    MultiDiscrete,
    State,
    TargetPolicy,
    Text,
    View,
    action_shape,
)
from coterie.core.validation import at_least
from coterie.nn import kernels, networks
from coterie.nn.devices import Device
from coterie.nn.distributions import Choices
from coterie.nn.log_probs import IMPOSSIBLE
from coterie.nn.packing import BoundedBox, TextError, encoded_size, pack
from coterie.policies.network import NeuralPolicy, check_widths


@dataclass(frozen=True)
class DeterministicSettings(Settings):
    """Settings of the policy 'deterministic'."""

    hidden: tuple[int, ...] = (64, 64)  # widths of the hidden layers
    activation: Literal["tanh", "relu"] = "relu"  # after every hidden layer
    encoder: networks.Encoder = "auto"  # auto: nature for images above 32 pixels, cnn for smaller, else mlp
    channels: tuple[int, ...] = (16, 32)  # channels of the cnn's 3×3 convolutions
    network: str | None = None  # package.module:Name of your own module that reads observations, in place of encoder
    squash: Literal["tanh", "clip"] = "tanh"  # how outputs are kept in a box; clip: linear up to its bounds
    identity: bool = True  # give a shared mlp or cnn the agent's one-hot identity; a set network never gets it
    compiled: bool = True  # use compiled kernels where possible (mlp); False: PyTorch throughout
    device: Device = "auto"  # of all networks; auto: cpu where the compiled path serves, else cuda if there is one
    normalize_observations: bool = True  # normalise by running mean and deviation; images are not normalised
    random_feature_init: float = 0.0  # steepness of an mlp's first layer, centred at random inputs; 0: orthogonal

    SEARCH: ClassVar[Space] = {  # the search space of `coterie tune`
        "hidden": Choice(((64, 64), (128, 128), (256, 256))),
        "activation": Choice(("tanh", "relu")),
    }

    def __post_init__(self) -> None:
        check_widths(self.hidden, self.channels, self.network)
        at_least("random_feature_init", self.random_feature_init, 0)


class DeterministicPolicy(NeuralPolicy):
    """A network whose K outputs are the action, encoded as in `nn.packing.encode`."""

    def __init__(self, settings: DeterministicSettings, group_spec: GroupSpec) -> None:
        s, space = settings, group_spec.spaces.action
        self.size = encoded_size(space)
        shape = networks.Shape(
            s.hidden,
            s.activation,
            s.encoder,
            s.channels,
            0,
            network=s.network,
            random_feature_init=s.random_feature_init,
        )
        super().__init__(s, group_spec, shape, self.size, 0.01)
        self.clipped = s.squash == "clip"
        self.noise = 0.1  # deviation as a fraction of a box's range; the learner's schedule sets it
        self.head: Choices | None = None
        match space:
            case Discrete(n):
                self.head = Choices((n,), single=True)
            case MultiDiscrete(sizes):
                self.head = Choices(sizes, single=False)
            case Box():
                self.box = BoundedBox(space)
            case Text():
                raise TextError("actions")
        self.choices = np.array(self.head.sizes if self.head else (), np.int64)

    # Acting -------------------------------------------------------------------------------------------

    def act(self, view: View) -> Decision:
        packed, lead = pack(self.layout, view.observation), view.acting.shape
        shape = (*lead, *action_shape(self.group_spec.spaces.action))
        if self.head is None:
            return Decision(self.box.stretch(self.explore(packed, view)).reshape(shape))
        if self.spec is not None and self.in_group_order(view):
            action, log_prob = self.sample_choices(self.spec, self.choices, packed, view)
        else:
            out = np.ascontiguousarray(self.forward(packed, view)[0])
            action, log_prob = self.head.act(out, view.mask, view.random, view.greedy)
        return Decision(action.reshape(shape), log_prob)

    def explore(self, packed: Array, view: View) -> Array:
        """Actions `[N, A, K]` in [−1, 1], with noise unless greedy."""
        lead, size = view.acting.shape, self.size
        noise = np.zeros((*lead, size), np.float32)
        if not view.greedy:
            view.random.standard_normal(out=noise, dtype=np.float32)
            noise *= np.float32(2 * self.noise)  # the range [−1, 1] has length 2
        if self.spec is None or not self.in_group_order(view):
            out = self.forward(packed, view)[0]
            return np.clip((np.clip(out, -1, 1) if self.clipped else np.tanh(out)) + noise, -1, 1)
        asked = self.policy_inputs(self.spec, packed, view.agents)
        found = kernels.decide_bounded(asked, self.clipped, self.arrange(noise))
        return self.restore_order(found, lead)

    # Learning -----------------------------------------------------------------------------------------

    def settle(self, out: Tensor, legal: Tensor) -> Tensor:
        """The encoded greedy action `[…, K]` for outputs and masks `[…, K]`."""
        if self.head is None:
            return self.squash(out)
        parts = out.masked_fill(~legal, IMPOSSIBLE).split(self.head.sizes, dim=-1)
        return torch.cat([one_hot_argmax(part) for part in parts], dim=-1)

    def squash(self, out: Tensor) -> Tensor:
        """Squash outputs to [−1, 1]."""
        return out.clamp(-1, 1) if self.clipped else torch.tanh(out)

    def target_policy(self, net: networks.Network) -> TargetPolicy:
        """The greedy policy with a copy of a network's weights, for critics of other groups."""
        net, normal, agents = copy.deepcopy(net), copy.copy(self.normalizer), np.arange(len(self.group_spec.agents))

        def act(packed: Array, legal: Array) -> Array:
            rows = np.ascontiguousarray(packed)
            x = kernels.prepare(rows, normal.shift, normal.scale, normal.limit, agents, self.shape.extra)
            with torch.no_grad():
                out = net(torch.as_tensor(x, device=self.device))[0]
                found = self.settle(out, torch.as_tensor(self.arrange(legal), device=self.device))
            return self.restore_order(found.cpu().numpy(), legal.shape[:2])

        return act

    def state(self) -> State:
        return super().state() | {"noise": self.noise}

    def load(self, state: State) -> None:
        super().load(state)
        self.noise = state["noise"]


def one_hot_argmax(part: Tensor) -> Tensor:
    """Return the one-hot argmax of each row; the first of several maxima."""
    return torch.nn.functional.one_hot(part.argmax(dim=-1), part.shape[-1]).to(part.dtype)
