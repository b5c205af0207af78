"""A neural policy: packed and normalised observations, a network, a distribution over actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from coterie import kernels, nets, streams
from coterie.checks import at_least, positive
from coterie.group import Place
from coterie.heads import Choices, head
from coterie.layout import layout, pack
from coterie.normalize import Normalizer
from coterie.types import Array, Decision, State, Tree, View, action_shape

NO_MASK = np.zeros((0, 0, 0), bool)


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

    def __post_init__(self) -> None:
        if not self.hidden:
            raise ValueError("hidden must name at least one layer, got none")
        for width in (*self.hidden, *self.channels):
            positive("a layer's width", width)
        at_least("memory", self.memory, 0)


class NetworkPolicy:
    """A network that acts for a group, with parameters shared by its agents or one set for each."""

    def __init__(self, settings: NetworkSettings, place: Place) -> None:
        self.place = place
        self.memory_size = settings.memory
        self.layout = layout(place.spaces.observation)
        self.head = head(place.spaces.action, settings.continuous)
        encoder = nets.choose_encoder(settings.encoder, self.layout)
        told = settings.identity and encoder != "set" and place.parameters == "shared" and len(place.agents) > 1
        self.shape = nets.Shape(
            settings.hidden,
            settings.activation,
            encoder,
            settings.channels,
            len(place.agents) if told else 0,
            settings.memory,
        )
        self.net = nets.Net(self.shape, self.layout, self.head.outputs, 0.01, self.seeds("actor"))
        self.flat = nets.Flat(self.net)
        normal = settings.normalize_observations and self.layout.image is None
        self.normalizer = Normalizer(self.layout.slots, self.layout.width, place.stacks, normal)
        # the compiled path serves perceptrons that make discrete choices
        plain = settings.compiled and encoder == "mlp" and not settings.memory and isinstance(self.head, Choices)
        self.spec = self.net.spec() if plain and kernels.available() else None
        self.choices = np.array(self.head.sizes) if isinstance(self.head, Choices) else np.zeros(0, np.int64)

    def seeds(self, purpose: str) -> list[int]:
        """One seed for each stack's first weights."""
        place = self.place
        return [streams.integer(place.seed, purpose, place.group, i) for i in range(place.stacks)]

    def arrange(self, packed: Array) -> Array:
        """Put rows `[…, A, size]` in the order of the parameters: one stack `[1, M, size]`, or one per agent."""
        flat = packed.reshape(-1, *packed.shape[-2:])
        if self.place.stacks == 1:
            return flat.reshape(1, -1, flat.shape[-1])
        return np.ascontiguousarray(flat.transpose(1, 0, 2))

    def inputs(self, observation: Tree, agents: Array | None = None) -> Array:
        """Observations `[…, A, shape]` as the network takes them, `[S, M, size + identities]`."""
        packed = pack(self.layout, observation)
        who = np.arange(len(self.place.agents)) if agents is None else agents
        return self.prepare(packed.reshape(-1, *packed.shape[-2:]), who)

    def prepare(self, packed: Array, agents: Array) -> Array:
        """Packed rows `[R, A, size]` normalised, told who they are, and in the order of the parameters."""
        normal = self.normalizer
        rows = np.ascontiguousarray(packed)
        return kernels.prepare(rows, normal.shift, normal.scale, normal.limit, agents, self.shape.extra)

    def act(self, view: View) -> Decision:
        lead, stacks = view.acting.shape, self.place.stacks
        packed = pack(self.layout, view.observation)
        memory = None
        if stacks > 1 and not np.array_equal(view.agents, np.arange(stacks)):
            out, memory = self.respond_for(packed, view)
        elif self.spec is not None:
            action, log_prob = self.choose(packed, view)
            return Decision(action.reshape(*lead, *action_shape(self.place.spaces.action)), log_prob)
        else:
            held = None if view.memory is None else self.arrange(view.memory)
            rows, new = self.respond(self.prepare(packed, view.agents), held)
            out = self.restore_order(rows, lead)
            memory = None if new is None else self.restore_order(new, lead)
        action, log_prob = self.head.act(np.ascontiguousarray(out), view.mask, view.random, view.greedy)
        return Decision(action.reshape(*lead, *action_shape(self.place.spaces.action)), log_prob, memory)

    def respond(self, x: Array, memory: Array | None) -> tuple[Array, Array | None]:
        """Outputs `[S, M, …]` of the network for inputs `[S, M, …]`, and what it remembers now."""
        with torch.no_grad():
            out, new = self.net(torch.from_numpy(x), None if memory is None else torch.from_numpy(memory))
        return out.numpy(), None if new is None else new.numpy()

    def respond_for(self, packed: Array, view: View) -> tuple[Array, Array | None]:
        """The same for some agents, or in another order: every stack reads every row, each agent keeps its own's."""
        stacks, (copies, agents) = self.place.stacks, view.acting.shape
        everyone = np.repeat(packed.reshape(-1, 1, packed.shape[-1]), stacks, axis=1)
        held = None if view.memory is None else view.memory.reshape(1, -1, self.memory_size).repeat(stacks, axis=0)
        found = self.respond(self.prepare(everyone, np.zeros(stacks, np.int64)), held)

        def own(rows: Array) -> Array:
            return rows.reshape(stacks, copies, agents, -1)[view.agents, :, np.arange(agents)].transpose(1, 0, 2)

        return own(found[0]), None if found[1] is None else own(found[1])

    def choose(self, packed: Array, view: View) -> tuple[Array, Array]:
        """Discrete choices `[N, A, K]` by the compiled path."""
        assert self.spec is not None
        lead, normal = view.acting.shape, self.normalizer
        shape = (self.place.stacks, lead[0] * lead[1] // self.place.stacks, len(self.choices))
        action, log_prob = kernels.decide(
            self.flat.array,
            self.spec.sizes,
            self.spec.relu,
            np.ascontiguousarray(packed),
            normal.shift,
            normal.scale,
            normal.limit,
            view.agents,
            self.shape.extra,
            NO_MASK if view.mask is None else self.arrange(view.mask),
            self.choices,
            np.zeros(shape) if view.greedy else view.random.random(shape),
            view.greedy,
        )
        return self.restore_order(action, lead), self.restore_order(log_prob, lead)

    def restore_order(self, rows: Array, lead: tuple[int, ...]) -> Array:
        """The inverse of `arrange`: `[S, M, …]` back to `[…, A, …]`."""
        if self.place.stacks > 1:
            rows = np.ascontiguousarray(rows.swapaxes(0, 1))
        return rows.reshape(*lead, *rows.shape[2:])

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
