"""A stochastic policy for continuous actions: a network's outputs are a squashed Gaussian, tanh of a normal variable.

Greedy play takes tanh of the mean. The mathematics is in `nn/kernels.py` (`sample_squashed`), for both paths.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from coterie.core.group import GroupSpec
from coterie.core.search_space import Choice, Space
from coterie.core.settings import Settings
from coterie.core.types import Array, Box, Decision, View, action_shape
from coterie.nn import kernels, networks
from coterie.nn.devices import Device
from coterie.nn.packing import BoundedBox, encoded_size
from coterie.policies.network import NeuralPolicy, check_widths


@dataclass(frozen=True)
class GaussianSettings(Settings):
    """Settings of the policy 'gaussian'."""

    hidden: tuple[int, ...] = (256, 256)  # widths of the hidden layers
    activation: Literal["tanh", "relu"] = "relu"  # after every hidden layer
    encoder: networks.Encoder = "auto"  # auto: nature for images above 32 pixels, cnn for smaller, else mlp
    channels: tuple[int, ...] = (16, 32)  # of the cnn's 3×3 convolutions
    network: str | None = None  # package.module:Name of your own module that reads observations, in place of encoder
    identity: bool = True  # input to a shared mlp or cnn which agent it plays; a set network has no such input
    compiled: bool = True  # use kernels.py where it serves (mlp); False: PyTorch throughout
    device: Device = "auto"  # of all networks; auto: cpu where the compiled path serves, else cuda if there is one
    normalize_observations: bool = True  # by running mean and deviation; images are left as they are

    SEARCH: ClassVar[Space] = {  # what `coterie tune` varies
        "hidden": Choice(((64, 64), (128, 128), (256, 256))),
        "activation": Choice(("tanh", "relu")),
    }

    def __post_init__(self) -> None:
        check_widths(self.hidden, self.channels, self.network)


class GaussianPolicy(NeuralPolicy):
    """A network whose 2K outputs are means and logarithms of deviations; tanh of the draw is scaled to the box."""

    def __init__(self, settings: GaussianSettings, group_spec: GroupSpec) -> None:
        s, space = settings, group_spec.spaces.action
        if not isinstance(space, Box):
            raise ValueError(
                f"policy 'gaussian' needs continuous actions, but '{group_spec.agents[0]}' acts in {space}; "
                "use policy 'network' with learner 'ppo', or policy 'q_network' with learner 'dqn'"
            )
        self.box, self.size = BoundedBox(space), encoded_size(space)
        if not (self.box.half > 0).all():
            raise ValueError("policy 'gaussian': the lower bound of every action must lie below its upper bound")
        self.log_half = np.float32(np.log(self.box.half).sum())  # the densities' change of scale
        shape = networks.Shape(s.hidden, s.activation, s.encoder, s.channels, 0, network=s.network)
        super().__init__(s, group_spec, shape, 2 * self.size, 0.01)

    def act(self, view: View) -> Decision:
        lead, packed = view.acting.shape, self.pack(view.observation)
        noise = np.zeros((*lead, self.size), np.float32)
        if not view.greedy:
            view.random.standard_normal(out=noise, dtype=np.float32)
        point, log_prob = self.sample(packed, view, noise)
        shape = (*lead, *action_shape(self.group_spec.spaces.action))
        return Decision(self.box.stretch(point).reshape(shape), log_prob - self.log_half)

    def sample(self, packed: Array, view: View, noise: Array) -> tuple[Array, Array]:
        """Actions `[N, A, K]` in [−1, 1] and their log-densities there `[N, A]`, with normal noise `[N, A, K]`."""
        lead = view.acting.shape
        if self.spec is not None and self.in_group_order(view):
            asked = self.policy_inputs(self.spec, packed, view.agents)
            found = kernels.decide_squashed(asked, self.arrange(noise))
            return self.restore_order(found[0], lead), self.restore_order(found[1], lead)
        out = np.ascontiguousarray(self.forward(packed, view)[0]).reshape(-1, 2 * self.size)
        action, log_prob = np.empty((len(out), self.size), np.float32), np.empty(len(out), np.float32)
        kernels.sample_squashed.over(len(out), out, noise.reshape(action.shape), action, log_prob)
        return action.reshape(noise.shape), log_prob.reshape(lead)
