"""A neural policy: a network's outputs as a distribution over actions.

What every neural policy of a group is built on: observations as inputs, one network, its parameters.

A body knows whether the group's agents share parameters or have one set each, packs and normalises what
they see, and puts rows in the order that the stacked parameters want. What is made of the network's outputs
is the policy's affair.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch

from coterie.core import seeding
from coterie.core.group import GroupSpec
from coterie.core.search_space import Choice, Space
from coterie.core.types import Array, Counters, Decision, State, Tree, View, action_shape
from coterie.core.validation import at_least, positive
from coterie.nn import kernels, networks
from coterie.nn.distributions import Choices, head
from coterie.nn.normalization import Normalizer
from coterie.nn.packing import layout, pack, widen
from coterie.policies.text_encoder import Reader, TextSettings, Trained


class Body:
    """A network that reads a group's observations, with parameters shared by its agents or one set for each."""

    reader: Reader | None = None  # who puts observations into words; a policy that wants one sets it first

    def __init__(
        self, group_spec: GroupSpec, shape: networks.Shape, outputs: int, gain: float, told: bool, normal: bool
    ) -> None:
        """`told`: say to a shared network which agent it plays; `normal`: normalise observations."""
        self.group_spec = group_spec
        self.memory_size = shape.memory
        rows = layout(group_spec.spaces.observation) if self.reader is None else self.reader.silent
        self.layout = rows  # what the encoder reads; `rows` become whole packed rows
        picture, join = rows.image is not None, None if self.reader is None else self.reader.settings.join
        self.apart = 0  # numbers of packed rows behind the layout's: features that skip the encoder
        if self.reader is not None:
            rows = widen(None if join == "alone" else rows, self.reader.width)
            self.apart = self.reader.width if join == "add" or (join == "concat" and picture) else 0
            self.layout = self.layout if self.apart else rows
        encoder = networks.choose_encoder(shape.encoder, self.layout)
        told = told and encoder != "set" and group_spec.parameters == "shared" and len(group_spec.agents) > 1
        self.identities = len(group_spec.agents) if told else 0  # numbers that say which agent it plays
        extra, words = self.apart + self.identities + shape.extra, self.apart if join == "add" else 0
        self.shape = replace(shape, encoder=encoder, extra=extra, words=words, scaled=normal)
        self.net = networks.Net(self.shape, self.layout, outputs, gain, self.seeds("actor"))
        weight = None if self.reader is None else self.reader.weigh(rows.size)
        self.normalizer = Normalizer(rows.slots, rows.width, group_spec.parameter_sets, normal and not picture, weight)
        if self.reader is not None and self.reader.settings.trainable:
            self.net.reader = Trained(self.reader, rows.size, self.identities, self.normalizer)
        self.flat = networks.FlatParams(self.net, group_spec.parameter_sets)

    def seeds(self, purpose: str) -> list[int]:
        """One seed for each stack's first weights."""
        group_spec = self.group_spec
        return [
            seeding.integer(group_spec.seed, purpose, group_spec.group, i) for i in range(group_spec.parameter_sets)
        ]

    def compile(self, wanted: bool) -> kernels.Spec | None:
        """The network as `kernels.py` knows it, where that serves: perceptrons without memory."""
        plain = wanted and self.shape.encoder == "mlp" and not (self.memory_size or self.shape.words or self.net.reader)
        return self.net.spec() if plain and kernels.available() else None

    # Rows ---------------------------------------------------------------------------------------------

    def arrange(self, packed: Array) -> Array:
        """Put rows `[…, A, size]` in the order of the parameters: one stack `[1, M, size]`, or one per agent."""
        flat = packed.reshape(-1, *packed.shape[-2:])
        if self.group_spec.parameter_sets == 1:
            return flat.reshape(1, -1, flat.shape[-1])
        return np.ascontiguousarray(flat.transpose(1, 0, 2))

    def restore_order(self, rows: Array, lead: tuple[int, ...]) -> Array:
        """The inverse of `arrange`: `[S, M, …]` back to `[…, A, …]`."""
        if self.group_spec.parameter_sets > 1:
            rows = np.ascontiguousarray(rows.swapaxes(0, 1))
        return rows.reshape(*lead, *rows.shape[2:])

    def pack(self, observation: Tree) -> Array:
        """Observations `[…, A, shape]` as rows of floats `[…, A, size]`."""
        if self.reader is None:
            return pack(self.layout, observation)
        features = self.reader.features(observation)
        if self.reader.settings.join == "alone":
            return features
        return np.concatenate([pack(self.reader.silent, self.reader.wordless(observation)), features], axis=-1)

    def sights(self, observation: Tree) -> tuple[Array, Array]:
        """Observations as the network takes them, and as a critic of the same agents does: rows of equal number."""
        x = self.inputs(observation)
        return self.number(x, observation), x

    def number(self, x: Array, observation: Tree) -> Array:
        """Inputs `[S, M, …]` with the numbers of their texts behind them, where a model that learns reads these."""
        if self.reader is None or self.net.reader is None:
            return x
        numbers = self.arrange(self.reader.find(observation).astype(np.float32))
        seen, hint = np.split(x, [self.layout.size + self.apart + self.identities], axis=-1)
        return np.concatenate([seen, numbers, hint], axis=-1)

    def inputs(self, observation: Tree, agents: Array | None = None) -> Array:
        """Observations `[…, A, shape]` as the network takes them, `[S, M, size + identities]`."""
        packed = self.pack(observation)
        who = np.arange(len(self.group_spec.agents)) if agents is None else agents
        return self.prepare(packed.reshape(-1, *packed.shape[-2:]), who)

    def prepare(self, packed: Array, agents: Array) -> Array:
        """Packed rows `[R, A, size]` normalised, told who they are, and in the order of the parameters."""
        normal = self.normalizer
        rows = np.ascontiguousarray(packed)
        return kernels.prepare(rows, normal.shift, normal.scale, normal.limit, agents, self.identities)

    # Answers ------------------------------------------------------------------------------------------

    def straight(self, view: View) -> bool:
        """Whether the view shows the group's own agents in their order, so that each stack reads its own rows."""
        parameter_sets = self.group_spec.parameter_sets
        return parameter_sets == 1 or np.array_equal(view.agents, np.arange(parameter_sets))

    def answer(self, packed: Array, view: View) -> tuple[Array, Array | None]:
        """Outputs `[N, A, outputs]` for packed observations `[N, A, size]`, and what is remembered after them."""
        if not self.straight(view):
            return self.answer_others(packed, view)
        lead = view.acting.shape
        held = None if view.memory is None else self.arrange(view.memory)
        rows, new = self.respond(self.number(self.prepare(packed, view.agents), view.observation), held)
        return self.restore_order(rows, lead), None if new is None else self.restore_order(new, lead)

    def answer_others(self, packed: Array, view: View) -> tuple[Array, Array | None]:
        """The same for some agents, or in another order: every stack reads every row, each agent keeps its own's."""
        parameter_sets, (num_envs, agents) = self.group_spec.parameter_sets, view.acting.shape
        everyone = np.repeat(packed.reshape(-1, 1, packed.shape[-1]), parameter_sets, axis=1)
        held = (
            None if view.memory is None else view.memory.reshape(1, -1, self.memory_size).repeat(parameter_sets, axis=0)
        )
        found = self.respond(self.prepare(everyone, np.zeros(parameter_sets, np.int64)), held)

        def own(rows: Array) -> Array:
            return rows.reshape(parameter_sets, num_envs, agents, -1)[view.agents, :, np.arange(agents)].transpose(
                1, 0, 2
            )

        return own(found[0]), None if found[1] is None else own(found[1])

    def respond(self, x: Array, memory: Array | None) -> tuple[Array, Array | None]:
        """Outputs `[S, M, …]` of the network for inputs `[S, M, …]`, and what it remembers now."""
        with torch.no_grad():
            out, new = self.net(torch.from_numpy(x), None if memory is None else torch.from_numpy(memory))
        return out.numpy(), None if new is None else new.numpy()

    def asked(self, spec: kernels.Spec, packed: Array, agents: Array) -> kernels.Asked:
        """What the compiled path needs for a decision, for packed observations `[N, A, size]`."""
        normal, rows = self.normalizer, np.ascontiguousarray(packed)
        how = (normal.shift, normal.scale, normal.limit)
        return kernels.Asked(self.flat.array, spec.sizes, spec.relu, rows, *how, agents, self.identities)

    def choose(self, spec: kernels.Spec, choices: Array, packed: Array, view: View) -> tuple[Array, Array]:
        """Choices `[N, A, K]` among `choices [K]` each, drawn by outputs as logits, by the compiled path."""
        lead = view.acting.shape
        shape = (self.group_spec.parameter_sets, lead[0] * lead[1] // self.group_spec.parameter_sets, len(choices))
        action, log_prob = kernels.decide(
            self.asked(spec, packed, view.agents),
            kernels.NO_MASK if view.mask is None else self.arrange(view.mask),
            choices,
            np.zeros(shape) if view.greedy else view.random.random(shape),
            view.greedy,
        )
        return self.restore_order(action, lead), self.restore_order(log_prob, lead)

    # State --------------------------------------------------------------------------------------------

    def metrics(self) -> Counters:
        """What the text encoder counted; {} without one."""
        return {} if self.reader is None else self.reader.metrics()

    def state(self) -> State:
        return {"net": networks.export(self.net), "normalizer": self.normalizer.state()}

    def load(self, state: State) -> None:
        what = f"group '{self.group_spec.group}'"
        try:
            networks.restore(self.net, state["net"], what)
        except ValueError as error:
            raise ValueError(
                f"{error}; the world or the network differs from the one that was trained. "
                "A set network (policy.encoder=set with world.observation=dict) plays with any number of agents"
            ) from None
        if state["normalizer"]["mean"].shape != self.normalizer.mean.shape:
            raise ValueError(f"{what}: the saved observation statistics have another width than this world's")
        self.normalizer.load(state["normalizer"])


@dataclass(frozen=True)
class NetworkSettings:
    hidden: tuple[int, ...] = (64, 64)  # widths of the hidden layers
    activation: Literal["tanh", "relu"] = "tanh"  # after every hidden layer
    encoder: networks.Encoder = "auto"  # auto: cnn for pictures, else mlp; set: any number of things
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

    def __init__(self, settings: NetworkSettings, group_spec: GroupSpec) -> None:
        s = settings
        self.head = head(group_spec.spaces.action, s.continuous)
        self.reader = None if s.text is None else Reader(s.text, group_spec)
        self.shown = 0 if group_spec.advice is None else group_spec.advice.shown  # numbers of a hint that it sees
        shape = networks.Shape(s.hidden, s.activation, s.encoder, s.channels, self.shown, s.memory)
        super().__init__(group_spec, shape, self.head.outputs, 0.01, s.identity, s.normalize_observations)
        self.spec = self.compile(s.compiled and isinstance(self.head, Choices))
        self.choices = np.array(self.head.sizes) if isinstance(self.head, Choices) else np.zeros(0, np.int64)

    def act(self, view: View) -> Decision:
        lead, advice = view.acting.shape, self.group_spec.advice
        packed = self.sight(view)
        bent = advice is not None and view.notes is not None and advice.bends
        if self.spec is not None and self.straight(view) and not self.shown and not bent:
            action, log_prob = self.choose(self.spec, self.choices, packed, view)
            return Decision(action.reshape(*lead, *action_shape(self.group_spec.spaces.action)), log_prob)
        out, memory = self.answer(packed, view)
        if advice is not None and view.notes is not None:
            out = advice.followed(out, view.mask, view.notes)
        action, log_prob = self.head.act(np.ascontiguousarray(out), view.mask, view.random, view.greedy)
        return Decision(action.reshape(*lead, *action_shape(self.group_spec.spaces.action)), log_prob, memory)

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
