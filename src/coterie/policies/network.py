"""Neural policies: what all of them share, and the one whose outputs are a distribution over actions.

A neural policy packs and normalises observations, holds one network with parameters shared by the group's agents or one
parameter set for each, and puts rows in the order of the parameter sets. What the network's outputs mean is up to the
policy: a distribution (`NetworkPolicy`), action values (`q_network.py`), or the action itself (`deterministic.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from coterie.core import seeding
from coterie.core.group import GroupSpec, Policy
from coterie.core.search_space import Choice, Space
from coterie.core.settings import Settings
from coterie.core.types import Array, Box, Counters, Decision, State, Tree, View, action_shape
from coterie.core.validation import at_least, positive
from coterie.nn import kernels, networks
from coterie.nn.advice import behaviour_logits, log_softmax
from coterie.nn.devices import Device, resolve_device
from coterie.nn.distributions import Choices, head
from coterie.nn.nets import make_net
from coterie.nn.normalization import Normalizer
from coterie.nn.packing import PixelRows, Rows, append_columns, append_features, layout, pack
from coterie.policies.text_encoder import TextEncoder, TextSettings, TrainableEncoder

OWN_LOG_PROB = "own_log_prob"  # in a decision's trace: of the action, before advice was mixed in


class NeuralSettings(Protocol):
    """Settings that all neural policies have."""

    @property
    def identity(self) -> bool:
        """Whether a shared network reads which agent it plays."""
        ...

    @property
    def compiled(self) -> bool:
        """Whether compiled kernels serve where they can."""
        ...

    @property
    def device(self) -> Device:
        """The device of all networks."""
        ...

    @property
    def normalize_observations(self) -> bool:
        """Whether observations are normalised by running mean and deviation."""
        ...


class NeuralPolicy(Policy):
    """A network that reads a group's observations, with parameters shared by its agents or one set for each."""

    reader: TextEncoder | None = None  # encodes observations as text; a policy that wants one sets it before __init__
    keeps_bytes = False  # pictures stay bytes, and a choice among many a number, until the network reads them

    def __init__(
        self, settings: NeuralSettings, group_spec: GroupSpec, shape: networks.Shape, outputs: int, gain: float
    ) -> None:
        """`gain` scales the first output weights."""
        identity, normalize, device = settings.identity, settings.normalize_observations, settings.device
        self.group_spec = group_spec
        self.memory_size = shape.memory
        rows = layout(group_spec.spaces.observation) if self.reader is None else self.reader.numeric_layout
        self.layout = rows  # what the encoder reads; `rows` becomes the layout of whole packed rows
        image, join = rows.image is not None, None if self.reader is None else self.reader.settings.join
        self.skip_size = 0  # numbers of packed rows after the layout's: text features that skip the encoder
        if self.reader is not None:
            rows = append_features(None if join == "alone" else rows, self.reader.width)
            self.skip_size = self.reader.width if join == "add" or (join == "concat" and image) else 0
            self.layout = self.layout if self.skip_size else rows
        encoder: networks.Chosen = "own" if shape.network else networks.choose_encoder(shape.encoder, self.layout)
        if shape.network and shape.encoder != "auto":
            raise ValueError(f"encoder={shape.encoder} and network={shape.network} both read observations; set one")
        plain = self.keeps_bytes and self.reader is None and not shape.extra
        self.numbers = (
            plain and shape.encoder == "auto" and not shape.network and self.layout.choices > 0
        )  # packed rows are numbers
        encoder = "embedding" if self.numbers else encoder
        identity = identity and encoder != "set" and group_spec.parameters == "shared" and len(group_spec.agents) > 1
        self.identities = len(group_spec.agents) if identity else 0  # one-hot inputs: which agent it plays
        extra, words = self.skip_size + self.identities + shape.extra, self.skip_size if join == "add" else 0
        self.shape = replace(shape, encoder=encoder, extra=extra, words=words, scaled=normalize)
        self.net = networks.Network(self.shape, self.layout, outputs, gain, self.seeds("actor"))
        self.bytes = plain and self.layout.bytes and encoder != "mlp"  # packed rows are bytes
        weight = None if self.reader is None else self.reader.weigh(rows.size)
        normalize = normalize and not image and not self.numbers
        self.normalizer = Normalizer(rows.slots, rows.width, group_spec.parameter_sets, normalize, weight)
        trained = self.reader is not None and self.reader.settings.trainable
        self.spec = self.compile(settings.compiled and device != "cuda" and not trained)
        self.device = resolve_device(device, self.spec is not None)
        self.net.to(self.device)
        if self.reader is not None and trained:
            self.net.reader = TrainableEncoder(self.reader, rows.size, self.identities, self.normalizer)
        self.flat = networks.FlatParams(self.net, group_spec.parameter_sets)
        self.trainable = make_net(self.net, self.spec is not None, self.flat)  # the network as learners see it

    def seeds(self, purpose: str) -> list[int]:
        """One seed for the first weights of each parameter set."""
        spec = self.group_spec
        return [seeding.integer(spec.seed, purpose, spec.group, i) for i in range(spec.parameter_sets)]

    def compile(self, wanted: bool) -> kernels.Spec | None:
        """The network as `kernels.py` reads it, where the compiled path serves: perceptrons without memory."""
        plain = wanted and self.shape.encoder == "mlp" and not (self.memory_size or self.shape.words or self.net.reader)
        return self.net.spec() if plain and kernels.available() else None

    # Rows ---------------------------------------------------------------------------------------------

    @property
    def row_type(self) -> tuple[int, Any]:
        """Length and type of packed rows."""
        if self.numbers:
            return 1, np.int32
        return self.layout.size + self.skip_size, np.uint8 if self.bytes else np.float32

    def arrange(self, packed: Array) -> Array:
        """Put rows `[…, A, size]` in the order of the parameter sets: one `[1, M, size]`, or one per agent."""
        *lead, agents, size = packed.shape
        if self.group_spec.parameter_sets == 1:
            return packed.reshape(1, math.prod(lead) * agents, size)
        flat = packed.reshape(math.prod(lead), agents, size)  # the size may be 0
        return np.ascontiguousarray(flat.transpose(1, 0, 2))

    def restore_order(self, rows: Array, lead: tuple[int, ...]) -> Array:
        """The inverse of `arrange`: `[S, M, …]` back to `[…, A, …]`."""
        if self.group_spec.parameter_sets > 1:
            rows = np.ascontiguousarray(rows.swapaxes(0, 1))
        return rows.reshape(*lead, *rows.shape[2:])

    def pack(self, observation: Tree) -> Array:
        """Observations `[…, A, shape]` as rows of floats `[…, A, size]`; of bytes or numbers, where it keeps them."""
        if self.numbers:
            return np.asarray(observation)[..., None].astype(np.int32)
        if self.bytes and np.asarray(observation).dtype == np.uint8:
            image = np.asarray(observation)
            return image.reshape(*image.shape[:-3], self.layout.size)
        if self.reader is None:
            return pack(self.layout, observation)
        features = self.reader.features(observation)
        if self.reader.settings.join == "alone":
            return features
        return np.concatenate(
            [pack(self.reader.numeric_layout, self.reader.without_instruction(observation)), features], axis=-1
        )

    def inputs(self, observation: Tree, agents: Array | None = None) -> Rows:
        """Observations `[…, A, shape]` as network inputs `[S, M, size + identities]`."""
        packed = self.pack(observation)
        agents = np.arange(len(self.group_spec.agents)) if agents is None else agents
        return self.prepare(packed.reshape(-1, *packed.shape[-2:]), agents)

    def prepare(self, packed: Array, agents: Array) -> Rows:
        """Packed rows `[R, A, size]` normalised, with identities, in the order of the parameter sets."""
        normalizer = self.normalizer
        if packed.dtype != np.float32 and (self.numbers or self.bytes):
            identity = np.zeros((*packed.shape[:2], self.identities), np.float32)
            if self.identities:
                identity[:, np.arange(len(agents)), agents] = 1
            return PixelRows(self.arrange(packed), self.arrange(identity))
        rows = np.ascontiguousarray(packed)
        return kernels.prepare(rows, normalizer.shift, normalizer.scale, normalizer.limit, agents, self.identities)

    def learning_inputs(self, observation: Tree) -> tuple[Rows, Rows]:
        """Network inputs for the actor, and for a critic of the same agents: rows of equal number."""
        x = self.inputs(observation)
        return self.append_text_ids(x, observation), x

    def append_text_ids(self, x: Rows, observation: Tree) -> Rows:
        """Inputs `[S, M, …]` with the ids of their texts, where a text encoder that learns reads them."""
        if self.reader is None or self.net.reader is None:
            return x
        ids = self.arrange(self.reader.find(observation).astype(np.float32))
        before, hint = np.split(x, [self.layout.size + self.skip_size + self.identities], axis=-1)
        return np.concatenate([before, ids, hint], axis=-1)

    # Outputs ------------------------------------------------------------------------------------------

    def in_group_order(self, view: View) -> bool:
        """Whether the view shows the group's own agents in order, so that each parameter set reads its own rows."""
        parameter_sets = self.group_spec.parameter_sets
        return parameter_sets == 1 or np.array_equal(view.agents, np.arange(parameter_sets))

    def forward(self, packed: Array, view: View) -> tuple[Array, Array | None]:
        """Outputs `[N, A, outputs]` for packed observations `[N, A, size]`, and the memory after them."""
        if not self.in_group_order(view):
            return self.forward_any_order(packed, view)
        lead = view.acting.shape
        memory = None if view.memory is None else self.arrange(view.memory)
        out, memory = self.run_net(self.append_text_ids(self.prepare(packed, view.agents), view.observation), memory)
        return self.restore_order(out, lead), None if memory is None else self.restore_order(memory, lead)

    def forward_any_order(self, packed: Array, view: View) -> tuple[Array, Array | None]:
        """The same for some agents or in another order: each parameter set reads all rows, each agent keeps its own."""
        parameter_sets, (num_envs, agents) = self.group_spec.parameter_sets, view.acting.shape
        rows = np.repeat(packed.reshape(-1, 1, packed.shape[-1]), parameter_sets, axis=1)
        memory = view.memory
        if memory is not None:
            memory = memory.reshape(1, -1, self.memory_size).repeat(parameter_sets, axis=0)
        out, memory = self.run_net(self.prepare(rows, np.zeros(parameter_sets, np.int64)), memory)

        def own(found: Array) -> Array:
            by_agent = found.reshape(parameter_sets, num_envs, agents, -1)[view.agents, :, np.arange(agents)]
            return by_agent.transpose(1, 0, 2)

        return own(out), None if memory is None else own(memory)

    def run_net(self, x: Rows, memory: Array | None) -> tuple[Array, Array | None]:
        """Outputs `[S, M, …]` of the network for inputs `[S, M, …]`, and its memory afterwards."""
        return self.trainable.predict(x, memory)

    def policy_inputs(self, spec: kernels.Spec, packed: Array, agents: Array) -> kernels.PolicyInputs:
        """Inputs of the compiled path for a decision, from packed observations `[N, A, size]`."""
        normalizer, rows = self.normalizer, np.ascontiguousarray(packed)
        how = (normalizer.shift, normalizer.scale, normalizer.limit)
        return kernels.PolicyInputs(self.flat.array, spec.sizes, spec.relu, rows, *how, agents, self.identities)

    def sample_choices(self, spec: kernels.Spec, choices: Array, packed: Array, view: View) -> tuple[Array, Array]:
        """Choices `[N, A, K]` among `choices [K]` each, drawn with outputs as logits, by the compiled path."""
        lead = view.acting.shape
        shape = (self.group_spec.parameter_sets, lead[0] * lead[1] // self.group_spec.parameter_sets, len(choices))
        action, log_prob = kernels.decide(
            self.policy_inputs(spec, packed, view.agents),
            kernels.NO_MASK if view.mask is None else self.arrange(view.mask),
            choices,
            np.zeros(shape) if view.greedy else view.random.random(shape),
            view.greedy,
        )
        return self.restore_order(action, lead), self.restore_order(log_prob, lead)

    # State --------------------------------------------------------------------------------------------

    def metrics(self) -> Counters:
        """Counters of the text encoder; {} without one."""
        return {} if self.reader is None else self.reader.metrics()

    def state(self) -> State:
        return {"net": networks.export(self.net), "normalizer": self.normalizer.state()}

    def load(self, state: State) -> None:
        what = f"group '{self.group_spec.group}'"
        try:
            networks.restore(self.net, state["net"], what)
        except ValueError as error:
            raise ValueError(f"{error}; {self._describe_difference(state)}") from None
        if state["normalizer"]["mean"].shape != self.normalizer.mean.shape:
            raise ValueError(f"{what}: the saved observation statistics have another width than this world's")
        self.normalizer.load(state["normalizer"])

    def _describe_difference(self, state: State) -> str:
        """Describe why saved weights do not fit: `policy.identity` where that alone is the difference."""
        own = {name: array.shape for name, array in networks.export(self.net).items()}
        saved = {name: array.shape for name, array in state["net"].items()}
        differing = [name for name in own if saved.get(name) != own[name]]
        same = state["normalizer"]["mean"].shape == self.normalizer.mean.shape  # observations are
        if same and own.keys() == saved.keys() and len(differing) == 1:
            sizes = zip(own[differing[0]], saved[differing[0]])  # of the first layer
            agents, more = len(self.group_spec.agents), [here - there for here, there in sizes if here != there]
            path = f"groups.{self.group_spec.group}.policy.identity"
            if self.identities and more == [agents]:
                return f"the saved network has no inputs for which of {agents} agents it plays; set {path}=false"
            if not self.identities and more == [-agents]:
                return f"the saved network has inputs for which of {agents} agents it plays; set {path}=true"
        return (
            "the world or the network differs from the one that was trained. "
            "A set network (policy.encoder=set with world.observation=dict) plays with any number of agents"
        )


@dataclass(frozen=True)
class NetworkSettings(Settings):
    """Settings of a policy network."""

    hidden: tuple[int, ...] = (64, 64)  # widths of the hidden layers
    activation: Literal["tanh", "relu"] = "tanh"  # after every hidden layer
    encoder: networks.Encoder = "auto"  # auto: nature for images above 32 pixels, cnn for smaller, else mlp
    channels: tuple[int, ...] = (16, 32)  # of the cnn's 3×3 convolutions
    memory: int = 0  # width of a GRU after the hidden layers; 0: no memory
    network: str | None = None  # package.module:Name of your own module that reads observations, in place of encoder
    identity: bool = True  # input to a shared mlp or cnn which agent it plays; a set network has no such input
    # distribution of continuous actions; discrete ones refuse gaussian
    continuous: Literal["beta", "gaussian"] = "beta"
    compiled: bool = True  # use kernels.py where it serves (mlp); False: PyTorch throughout
    device: Device = "auto"  # of actor and critic; auto: cpu where the compiled path serves, else cuda if there is one
    normalize_observations: bool = True  # by running mean and deviation; images are left as they are
    text: TextSettings | None = None  # text features in addition to the observation; None: none

    SEARCH: ClassVar[Space] = {  # what `coterie tune` varies
        "hidden": Choice(((32, 32), (64, 64), (128, 128), (256, 256))),
        "activation": Choice(("tanh", "relu")),
    }

    def __post_init__(self) -> None:
        check_widths(self.hidden, self.channels, self.network)
        at_least("memory", self.memory, 0)


def check_widths(hidden: tuple[int, ...], channels: tuple[int, ...], network: str | None = None) -> None:
    """Refuse a network without hidden layers, unless it is the user's own, or with empty ones."""
    if not hidden and network is None:
        raise ValueError("hidden must name at least one layer, got none")
    for width in (*hidden, *channels):
        positive("a layer's width", width)


class NetworkPolicy(NeuralPolicy):
    """A network whose outputs are the parameters of a distribution over actions."""

    keeps_bytes = True

    def __init__(self, settings: NetworkSettings, group_spec: GroupSpec) -> None:
        s = settings
        space = group_spec.spaces.action
        if s.continuous != "beta" and not isinstance(space, Box):  # beta is the default: it may not be meant
            raise ValueError(
                f"continuous={s.continuous} is for continuous actions, but '{group_spec.agents[0]}' acts in {space}; "
                "leave policy.continuous out"
            )
        self.head = head(space, s.continuous)
        self.reader = None if s.text is None else TextEncoder(s.text, group_spec)
        self.hint_size = 0 if group_spec.advice is None else group_spec.advice.hint_size  # inputs that hold a hint
        shape = networks.Shape(
            s.hidden, s.activation, s.encoder, s.channels, self.hint_size, s.memory, network=s.network
        )
        super().__init__(s, group_spec, shape, self.head.outputs, 0.01)
        self.choices = np.array(self.head.sizes) if isinstance(self.head, Choices) else np.zeros(0, np.int64)

    def state(self) -> State:
        return super().state() | ({"labels_complete": True} if self.labels_complete else {})

    def load(self, state: State) -> None:
        super().load(state)
        self.labels_complete = state.get("labels_complete", False)

    def act(self, view: View) -> Decision:
        lead, advice_use = view.acting.shape, self.group_spec.advice
        packed = self.packed_view(view)
        biased = advice_use is not None and view.advice is not None and advice_use.changes_actions
        drawn = self.spec is not None and isinstance(self.head, Choices)  # by one compiled call
        if drawn and self.in_group_order(view) and not self.hint_size and not biased:
            assert self.spec is not None
            action, log_prob = self.sample_choices(self.spec, self.choices, packed, view)
            return Decision(action.reshape(*lead, *action_shape(self.group_spec.spaces.action)), log_prob)
        out, memory = self.forward(packed, view)
        logits = out
        if advice_use is not None and view.advice is not None:
            logits = behaviour_logits(advice_use, out, view.mask, view.advice)
        action, log_prob = self.head.act(np.ascontiguousarray(logits), view.mask, view.random, view.greedy)
        trace = None
        if advice_use is not None and view.advice is not None and advice_use.use.mode == "mixture":
            own = np.take_along_axis(log_softmax(out, view.mask), action[..., None], axis=-1)[..., 0]
            trace = {OWN_LOG_PROB: own.astype(np.float32)}
        return Decision(action.reshape(*lead, *action_shape(self.group_spec.spaces.action)), log_prob, memory, trace)

    def packed_view(self, view: View) -> Array:
        """Packed observations `[N, A, size]`, with the hint appended where the policy reads one."""
        packed = self.pack(view.observation)
        if not self.hint_size:
            return packed
        none = np.zeros((*view.acting.shape, self.hint_size), np.float32)
        return np.concatenate([packed, none if view.advice is None else view.advice.hint], axis=-1)

    def log_probs(self, view: View) -> Array:
        """Log-probabilities `[N, A, K]` of the policy's own actions, without the influence of advice."""
        return log_softmax(self.forward(self.packed_view(view), view)[0], view.mask)

    def prepare(self, packed: Array, agents: Array) -> Rows:
        observed, hint = np.split(packed, [self.layout.size + self.skip_size], axis=-1)
        x = super().prepare(observed, agents)
        return append_columns(x, self.arrange(hint)) if hint.shape[-1] else x
