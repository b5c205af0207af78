"""A neural policy: a network's outputs as a distribution over actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from coterie import nets
from coterie.checks import at_least, positive
from coterie.group import Place
from coterie.heads import Choices, head
from coterie.policies.body import Body
from coterie.roles.encoder import Reader, TextSettings
from coterie.search_space import Choice, Space
from coterie.types import Array, Decision, View, action_shape


@dataclass(frozen=True)
class NetworkSettings:
    hidden: tuple[int, ...] = (64, 64)  # widths of the hidden layers
    activation: Literal["tanh", "relu"] = "tanh"  # after every hidden layer
    encoder: nets.Encoder = "auto"  # auto: cnn for pictures, else mlp; set: any number of things
    channels: tuple[int, ...] = (16, 32)  # of the cnn's 3×3 convolutions
    memory: int = 0  # width of a GRU after the hidden layers; 0: no memory
    identity: bool = True  # tell a shared mlp or cnn which agent it plays; a set network is never told
    continuous: Literal["beta", "gaussian"] = "beta"  # distribution of bounded continuous actions
    compiled: bool = True  # use kernels.py where it serves (mlp, discrete choices); False: PyTorch throughout
    normalize_observations: bool = True  # by running mean and deviation; pictures are left as they are
    text: TextSettings | None = None  # what is read in words beside the observation; None: nothing

    SEARCH: ClassVar[Space] = {  # what `coterie tune` tries
        "hidden": Choice(((32, 32), (64, 64), (128, 128), (256, 256))),
        "activation": Choice(("tanh", "relu")),
    }

    def __post_init__(self) -> None:
        check_widths(self.hidden, self.channels)
        at_least("memory", self.memory, 0)


def check_widths(hidden: tuple[int, ...], channels: tuple[int, ...]) -> None:
    """Refuse a network without hidden layers, or with empty ones."""
    if not hidden:
        raise ValueError("hidden must name at least one layer, got none")
    for width in (*hidden, *channels):
        positive("a layer's width", width)


class NetworkPolicy(Body):
    """A network that acts for a group by drawing from a distribution."""

    def __init__(self, settings: NetworkSettings, place: Place) -> None:
        s = settings
        self.head = head(place.spaces.action, s.continuous)
        self.reader = None if s.text is None else Reader(s.text, place)
        self.shown = 0 if place.advice is None else place.advice.shown  # numbers of a hint that it sees
        shape = nets.Shape(s.hidden, s.activation, s.encoder, s.channels, self.shown, s.memory)
        super().__init__(place, shape, self.head.outputs, 0.01, s.identity, s.normalize_observations)
        self.spec = self.compile(s.compiled and isinstance(self.head, Choices))
        self.choices = np.array(self.head.sizes) if isinstance(self.head, Choices) else np.zeros(0, np.int64)

    def act(self, view: View) -> Decision:
        lead, advice = view.acting.shape, self.place.advice
        packed = self.sight(view)
        bent = advice is not None and view.notes is not None and advice.bends
        if self.spec is not None and self.straight(view) and not self.shown and not bent:
            action, log_prob = self.choose(self.spec, self.choices, packed, view)
            return Decision(action.reshape(*lead, *action_shape(self.place.spaces.action)), log_prob)
        out, memory = self.answer(packed, view)
        if advice is not None and view.notes is not None:
            out = advice.followed(out, view.mask, view.notes)
        action, log_prob = self.head.act(np.ascontiguousarray(out), view.mask, view.random, view.greedy)
        return Decision(action.reshape(*lead, *action_shape(self.place.spaces.action)), log_prob, memory)

    def sight(self, view: View) -> Array:
        """What is seen, packed: observations `[N, A, size]` and behind them a hint, where one is shown."""
        packed = self.pack(view.observation)
        if not self.shown:
            return packed
        hint = np.zeros((*view.acting.shape, self.shown), np.float32) if view.notes is None else view.notes
        return np.concatenate([packed, np.nan_to_num(hint)], axis=-1)

    def prepare(self, packed: Array, agents: Array) -> Array:
        seen, hint = np.split(packed, [self.layout.size + self.apart], axis=-1)
        x = super().prepare(seen, agents)
        return np.concatenate([x, self.arrange(hint)], axis=-1) if hint.shape[-1] else x
