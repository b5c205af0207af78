"""A policy of action values: takes the action of highest value, or with probability ε any legal one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from coterie.core.group import GroupSpec
from coterie.core.search_space import Choice, Space
from coterie.core.settings import Settings
from coterie.core.types import Array, Decision, Discrete, State, Text, View
from coterie.nn import kernels, networks
from coterie.nn.advice import LEAST
from coterie.nn.devices import Device
from coterie.nn.log_probs import IMPOSSIBLE
from coterie.nn.packing import TextError
from coterie.policies.network import NeuralPolicy, check_widths
from coterie.policies.text_encoder import TextEncoder, TextSettings


@dataclass(frozen=True)
class QNetworkSettings(Settings):
    """Settings of a network of action values."""

    hidden: tuple[int, ...] = (64, 64)  # widths of the hidden layers
    activation: Literal["tanh", "relu"] = "relu"  # after every hidden layer
    encoder: networks.Encoder = "auto"  # auto: nature for images above 32 pixels, cnn for smaller, else mlp
    channels: tuple[int, ...] = (16, 32)  # of the cnn's 3×3 convolutions
    network: str | None = None  # package.module:Name of your own module that reads observations, in place of encoder
    identity: bool = True  # input to a shared mlp or cnn which agent it plays; a set network has no such input
    dueling: bool = True  # the last hidden layer is divided into a stream for the state and one for the actions
    compiled: bool = True  # use kernels.py where it serves (mlp); False: PyTorch throughout
    device: Device = "auto"  # of all networks; auto: cpu where the compiled path serves, else cuda if there is one
    normalize_observations: bool = True  # by running mean and deviation; images are left as they are
    text: TextSettings | None = None  # text features in addition to the observation; None: none

    SEARCH: ClassVar[Space] = {  # what `coterie tune` varies
        "hidden": Choice(((64, 64), (128, 128), (256, 256))),
        "activation": Choice(("tanh", "relu")),
        "dueling": Choice((True, False)),
    }

    def __post_init__(self) -> None:
        check_widths(self.hidden, self.channels, self.network)
        if self.text is not None and self.text.trainable:
            raise ValueError(
                "text.trainable needs learner 'ppo' with policy 'network': a replay keeps vectors, not texts"
            )
        if self.dueling and self.hidden and self.hidden[-1] < 2:
            raise ValueError(
                f"dueling=true halves the last hidden layer: hidden must end with at least 2, got {self.hidden[-1]}"
            )


class QNetworkPolicy(NeuralPolicy):
    """A network of action values; its outputs are `[state value,] one number for each action`."""

    keeps_bytes = True

    def __init__(self, settings: QNetworkSettings, group_spec: GroupSpec) -> None:
        s, space = settings, group_spec.spaces.action
        if isinstance(space, Text):
            raise TextError("actions")
        if not isinstance(space, Discrete):
            raise ValueError(
                f"policy 'q_network' needs a discrete action space, but '{group_spec.agents[0]}' acts in {space}; "
                "use policy 'network' with learner 'ppo'"
            )
        self.actions, self.first = space.n, int(s.dueling)  # action j's output stands at first + j
        self.reader = None if s.text is None else TextEncoder(s.text, group_spec)
        shape = networks.Shape(s.hidden, s.activation, s.encoder, s.channels, 0, network=s.network)
        super().__init__(s, group_spec, shape, self.first + self.actions, 0.5)
        self.epsilon = 1.0  # probability of any legal action; the learner's schedule sets it
        if s.dueling:
            keep_streams_apart(self.net)
            self.flat.learn_only(stream_weights(self.net))

    def act(self, view: View) -> Decision:
        epsilon = 0.0 if view.greedy else self.epsilon
        lead, packed = view.acting.shape, self.pack(view.observation)
        rows = lead[0] * lead[1]
        uniform = np.zeros((rows, 2)) if view.greedy else view.random.random((rows, 2))
        if self.spec is not None and self.in_group_order(view):
            return Decision(*self.choose_by_value(packed, view, uniform, epsilon))
        out = np.ascontiguousarray(self.forward(packed, view)[0]).reshape(rows, -1)
        mask = np.zeros((0, 0), bool) if view.mask is None else view.mask.reshape(rows, -1)
        action, log_prob = np.empty(rows, np.int64), np.empty(rows, np.float32)
        kernels.epsilon_greedy(out, self.first, mask, uniform, epsilon, action, log_prob)
        return Decision(action.reshape(lead), log_prob.reshape(lead))

    def choose_by_value(self, packed: Array, view: View, uniform: Array, epsilon: float) -> tuple[Array, Array]:
        """Actions and log-probabilities `[N, A]` by the compiled path."""
        assert self.spec is not None
        lead = view.acting.shape
        action, log_prob = kernels.decide_by_value(
            self.policy_inputs(self.spec, packed, view.agents),
            self.first,
            kernels.NO_MASK if view.mask is None else self.arrange(view.mask),
            self.arrange(uniform.reshape(*lead, 2)),
            epsilon,
        )
        return self.restore_order(action, lead), self.restore_order(log_prob, lead)

    def log_probs(self, view: View) -> Array:
        """Log-probabilities `[N, A, K]` of actions: the legal ones share ε, the best has the rest."""
        values = self.forward(self.pack(view.observation), view)[0][..., self.first :]
        legal = np.ones(values.shape, bool) if view.mask is None else view.mask
        best = np.where(legal, values, -np.inf).argmax(axis=-1)[..., None] == np.arange(self.actions)
        epsilon = 0.0 if view.greedy else self.epsilon
        share = epsilon / np.maximum(legal.sum(axis=-1, keepdims=True), 1)
        return np.where(legal, np.log(np.maximum((1 - epsilon) * best + share, LEAST)), IMPOSSIBLE)

    def values(self, out: Tensor) -> Tensor:
        """Action values `[…, actions]` from the network's outputs (Wang et al. 2016, eq. 9, when dueling)."""
        if not self.first:
            return out
        advantage = out[..., 1:]
        return out[..., :1] + advantage - advantage.mean(dim=-1, keepdim=True)

    def action_values(self, out: Array) -> Array:
        """`values` of arrays."""
        return self.values(torch.from_numpy(out)).numpy()

    def output_slopes(self, slopes: Array) -> Array:
        """A loss's slopes by outputs, from those by action values `[…, actions]`."""
        if not self.first:
            return slopes
        advantage = slopes - slopes.mean(axis=-1, keepdims=True)
        return np.concatenate([slopes.sum(axis=-1, keepdims=True), advantage], axis=-1)

    def state(self) -> State:
        return super().state() | {"epsilon": self.epsilon}

    def load(self, state: State) -> None:
        super().load(state)
        self.epsilon = state["epsilon"]


def keep_streams_apart(net: networks.Network) -> None:
    """Connect the state value to one half of the last hidden layer, the advantages to the other.

    The output layer's weights across the halves are zero, so that the halves are the hidden layers of the two streams
    of Wang et al. 2016, figure 1. Their gradient is kept at zero, too: `stream_weights`.
    """
    weight = net.out.weight
    mask, half = torch.zeros_like(weight), weight.shape[1] // 2
    mask[:, :half, :1] = 1
    mask[:, half:, 1:] = 1
    weight.data.mul_(mask)


def stream_weights(net: networks.Network) -> Array:
    """Mask `[P]` of the parameters of a dueling network that learn: all but the output weights across its streams."""
    weight = np.ones(net.out.weight.shape[1:], bool)
    weight[: len(weight) // 2, 1:] = weight[len(weight) // 2 :, 0] = False
    return _mask(net, {net.out.weight: weight}, True)


def state_stream(net: networks.Network) -> Array:
    """Mask `[P]` of the parameters of a dueling network that affect the state's value alone."""
    chosen, last = dict[torch.nn.Parameter, Array](), net.body.layers[-1]
    assert isinstance(last, networks.Dense)
    for parameter in (net.out.weight, net.out.bias):
        chosen[parameter] = np.zeros(parameter.shape[1:], bool)
        chosen[parameter][..., 0] = True
    for parameter in (last.weight, last.bias):
        chosen[parameter] = np.zeros(parameter.shape[1:], bool)
        chosen[parameter][..., : parameter.shape[-1] // 2] = True
    return _mask(net, chosen, False)


def _mask(net: networks.Network, chosen: Mapping[torch.nn.Parameter, Array], others: bool) -> Array:
    """Masks of parameters laid end to end as in `FlatParams`; `others` is that of all that are not named."""
    parts = [
        chosen[p].reshape(-1) if p in chosen else np.full(p.numel() // net.parameter_sets, others)
        for p in net.parameters()
        if p.requires_grad
    ]
    return np.concatenate(parts)
