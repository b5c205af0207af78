"""A neural policy: packed and normalised observations, a network, a distribution over actions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from coterie import nets, streams
from coterie.checks import positive
from coterie.group import Place
from coterie.heads import head
from coterie.types import Array, Decision, State, Tree, View, action_shape


@dataclass(frozen=True)
class NetworkSettings:
    hidden: tuple[int, ...] = (64, 64)  # widths of the hidden layers
    activation: Literal["tanh", "relu"] = "tanh"  # after every hidden layer
    encoder: nets.Encoder = "auto"  # auto: cnn for pictures, else mlp; set: any number of things
    channels: tuple[int, ...] = (16, 32)  # of the cnn's 3×3 convolutions
    identity: bool = True  # tell a shared mlp or cnn which agent it plays; a set network is never told
    continuous: Literal["beta", "gaussian"] = "beta"  # distribution of bounded continuous actions
    normalize_observations: bool = True  # by running mean and deviation; pictures are left as they are

    def __post_init__(self) -> None:
        if not self.hidden:
            raise ValueError("hidden must name at least one layer, got none")
        for width in (*self.hidden, *self.channels):
            positive("a layer's width", width)


class Normalizer:
    """Running mean and variance of every number observed, kept per stack of parameters.

    The learner updates it after learning, so that acting and learning see the same numbers.
    """

    def __init__(self, lay: nets.Layout, stacks: int, enabled: bool) -> None:
        self.slots = lay.slots
        self.enabled = enabled and lay.image is None
        self.repeats = np.bincount(lay.slots, minlength=lay.width)
        self.count = np.zeros(stacks)
        self.mean = np.zeros((stacks, lay.width))
        self.square = np.ones((stacks, lay.width))  # variance
        self._refresh()

    def _refresh(self) -> None:
        shift, scale = self.mean, 1 / np.sqrt(self.square + 1e-8)
        self.shift = torch.from_numpy(shift[:, self.slots].astype(np.float32)).unsqueeze(1)
        self.scale = torch.from_numpy(scale[:, self.slots].astype(np.float32)).unsqueeze(1)

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise rows `[S, M, size]`."""
        if not self.enabled or not self.count.any():
            return x
        return ((x - self.shift) * self.scale).clamp_(-10, 10)

    def update(self, rows: Sequence[Array]) -> None:
        """Take in each stack's raw rows `[M, size]` (Chan et al. 1979 for joining two samples' moments)."""
        if not self.enabled:
            return
        before, self.count = self.count, self.count + [len(own) for own in rows]
        self.mean, self.square = self.mean.copy(), self.square.copy()  # a saved state may hold the old ones
        for stack, own in enumerate(rows):
            if not len(own):
                continue
            mean = self._by_slot(own.mean(axis=0, dtype=np.float64))
            square = self._by_slot((own.astype(np.float64) ** 2).mean(axis=0)) - mean**2
            gap = np.where(self.repeats > 0, mean - self.mean[stack], 0)
            old, new = before[stack] / self.count[stack], len(own) / self.count[stack]
            joined = self.square[stack] * old + square * new + gap**2 * old * new
            self.square[stack] = np.where(self.repeats > 0, joined, self.square[stack])  # a set may be empty here
            self.mean[stack] += gap * new
        self._refresh()

    def _by_slot(self, values: Array) -> Array:
        return np.bincount(self.slots, values, minlength=len(self.repeats)) / np.maximum(self.repeats, 1)

    def state(self) -> State:
        return {"count": self.count, "mean": self.mean, "square": self.square}

    def load(self, state: State) -> None:
        self.count, self.mean, self.square = state["count"], state["mean"], state["square"]
        self._refresh()


class NetworkPolicy:
    """A network that acts for a group, with parameters shared by its agents or one set for each."""

    memory_size = 0

    def __init__(self, settings: NetworkSettings, place: Place) -> None:
        self.place = place
        self.layout = nets.layout(place.spaces.observation)
        self.head = head(place.spaces.action, settings.continuous)
        encoder = nets.choose_encoder(settings.encoder, self.layout)
        told = settings.identity and encoder != "set" and place.parameters == "shared" and len(place.agents) > 1
        self.shape = nets.Shape(
            settings.hidden, settings.activation, encoder, settings.channels, len(place.agents) if told else 0
        )
        self.net = self.build_net("actor", self.head.outputs, gain=0.01)
        self.normalizer = Normalizer(self.layout, place.stacks, settings.normalize_observations)

    def build_net(self, purpose: str, outputs: int, gain: float) -> nets.Net:
        """A network of this policy's build with another last layer: the actor itself, or a critic."""
        place = self.place
        seeds = [streams.integer(place.seed, purpose, place.group, i) for i in range(place.stacks)]
        return nets.Net(self.shape, self.layout, outputs, gain, seeds)

    def rows(self, observation: Tree) -> tuple[Array, Array]:
        """Observations `[…, A, shape]` as raw rows `[S, M, size]`, and whose they are `[S, M]`."""
        return self.arrange(nets.pack(self.layout, observation), np.arange(len(self.place.agents)))

    def arrange(self, packed: Array, agents: Array) -> tuple[Array, Array]:
        """Put rows `[…, A, size]` in the order of the parameters: all in one stack, or one stack per agent."""
        flat = packed.reshape(-1, len(agents), packed.shape[-1])
        who = np.broadcast_to(agents, flat.shape[:2])
        if self.place.stacks == 1:
            return np.ascontiguousarray(flat.reshape(1, -1, flat.shape[-1])), who.reshape(1, -1).copy()
        return np.ascontiguousarray(flat.transpose(1, 0, 2)), who.T.copy()

    def act(self, view: View) -> Decision:
        packed = nets.pack(self.layout, view.observation)
        lead = packed.shape[:2]
        some = self.place.stacks > len(view.agents)
        if some:  # asked for some agents only: let every stack answer, keep the asked ones
            asked, packed = packed, np.zeros((lead[0], self.place.stacks, packed.shape[-1]), np.float32)
            packed[:, view.agents] = asked
        agents = np.arange(self.place.stacks) if some else view.agents
        rows, who = self.arrange(packed, agents)
        with torch.no_grad():
            features = self.normalizer(torch.from_numpy(rows))
            out = self.net(features, torch.from_numpy(who)).numpy()
        out = out.reshape(*lead, -1) if self.place.stacks == 1 else out.transpose(1, 0, 2)
        if some:
            out = out[:, view.agents]
        action, log_prob = self.head.act(np.ascontiguousarray(out), view.mask, view.random, view.greedy)
        return Decision(action.reshape(*lead, *action_shape(self.place.spaces.action)), log_prob)

    def state(self) -> State:
        return {"net": nets.export(self.net), "normalizer": self.normalizer.state()}

    def load(self, state: State) -> None:
        what = f"group '{self.place.group}'"
        try:
            nets.restore(self.net, state["net"], what)
        except ValueError as error:
            raise ValueError(
                f"{error}; the world or the network differs from the one that was trained. "
                "A set network (policy.encoder=set with world.observation=dict) plays with any number of agents"
            ) from None
        if state["normalizer"]["mean"].shape != self.normalizer.mean.shape:
            raise ValueError(f"{what}: the saved observation statistics have another width than this world's")
        self.normalizer.load(state["normalizer"])
