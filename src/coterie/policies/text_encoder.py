"""Text as features for networks: instructions and described moments, each distinct text embedded once.

`Reader` turns observations into texts by the world's codec and texts into vectors of a frozen model; `Trained` is the
same model with adapters that learn by the policy's own loss. What a network makes of the features is `nets.py`'s
affair, which rows carry them `policies/body.py`'s.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from coterie.core import seeding
from coterie.core.group import GroupSpec
from coterie.core.memoize import Memoized
from coterie.core.text import Instructing, find_text_codec
from coterie.core.types import Array, Counters, Discrete, Tree
from coterie.core.validation import positive
from coterie.lm import lora
from coterie.lm.loading import LMSettings, LoadedModel, shared_backend, wrap
from coterie.lm.lora import LoraAdapterSettings
from coterie.nn.normalization import Normalizer
from coterie.nn.packing import Layout, layout

PROBE = "What is seen, in words."  # tells how long the model's vectors are
COUNTED = ("calls", "prompt_tokens", "seconds", "cache_hits")  # of the model's usage
Join = Literal["concat", "add", "alone"]


@dataclass(frozen=True)
class EncoderModel(LMSettings):
    """A language model that embeds texts."""

    name: str = "minilm"  # minilm, embedded, or what else `coterie.lm.load` knows


@dataclass(frozen=True)
class TextSettings:
    """What a network reads in words, and how it takes it."""

    lm: EncoderModel = field(default_factory=EncoderModel)  # the model; a name alone will do
    reads: Literal["instruction", "state", "both"] = "state"  # what agents are asked to do, what they see in words
    join: Join = "concat"  # behind the observation; add: a learned projection is added to it; alone: no numbers
    scale: float = 1.0  # of the features beside observations, all normalised; many numbers outweigh few at 1
    codec: str = "auto"  # what puts moments into words; auto: the world's own; or package.module:Name
    trainable: bool = False  # adapters on the model learn by the policy's loss; the critic reads the frozen model
    lora: LoraAdapterSettings = field(default_factory=LoraAdapterSettings)  # the adapters of `trainable`

    def __post_init__(self) -> None:
        positive("scale", self.scale)


@runtime_checkable
class Differentiable(Protocol):
    """A back end whose vectors have gradients: its weights are in this process, as `model`, beside a `tokenizer`."""

    def vectors(self, prompts: Sequence[str]) -> Tensor:
        """[P, D]: what `embed` gives, with gradients."""
        ...


class Reader:
    """Observations as vectors of what they say."""

    def __init__(self, settings: TextSettings, group_spec: GroupSpec) -> None:
        self.settings, self.group_spec, self.codec = settings, group_spec, find_text_codec(settings.codec, group_spec)
        self.tellers: list[Callable[[Tree], list[str]]] = []
        if settings.reads != "state":
            if not isinstance(self.codec, Instructing):
                raise ValueError(
                    f"text.reads={settings.reads} needs a world that tells its agents in words what to do; "
                    "set text.reads=state"
                )
            self.tellers.append(self.codec.instruct)
        if settings.reads != "instruction":
            self.tellers.append(self.codec.describe)
        if settings.trainable and group_spec.parameters == "individual":
            raise ValueError("text.trainable trains one encoder for the whole group; set parameters=shared")
        plain = LMSettings(**{spec.name: getattr(settings.lm, spec.name) for spec in fields(LMSettings)})
        self.backend = shared_backend(replace(plain, cache=None, budget=None))
        if settings.trainable and not isinstance(self.backend, Differentiable):
            raise ValueError(
                f"text.trainable needs a model whose weights are in this process (minilm, embedded, a directory), "
                f"not '{plain.name}'; set text.trainable=false"
            )
        self.lm: LoadedModel = wrap(self.backend, plain)
        self.layout = self.silent = layout(
            group_spec.spaces.observation
        )  # what is put into words; what is seen beside them
        if settings.reads != "state" and isinstance(self.codec, Instructing):
            self.silent = layout(self.codec.silent)
        self.known = Memoized(lambda seen, tags: self.describe(seen))  # numbers of an observation's texts
        self.texts: list[str] = []
        self.numbers: dict[str, int] = {}  # text -> its place in `texts` and in `table`
        self.size = self.lm.embed([PROBE]).shape[1]
        self.table = np.zeros((16, self.size), np.float32)  # one vector for each text, then room to grow
        self.width = self.size * len(self.tellers)

    def features(self, observation: Tree) -> Array:
        """Observations `[…, A, shape]` as features `[…, A, width]` of mean square 1."""
        numbers = self.find(observation)
        return self.table[numbers].reshape(*numbers.shape[:-1], self.width)

    def weigh(self, size: int) -> Array | None:
        """What rows of `size` numbers that end with features are multiplied with, once they are normalised."""
        scale = self.settings.scale
        return None if scale == 1.0 else np.repeat([1.0, scale], [size - self.width, self.width])

    def wordless(self, observation: Tree) -> Tree:
        """The observation without the numbers that stand for the words which are read instead."""
        if self.settings.reads == "state" or not isinstance(self.codec, Instructing):
            return observation
        return self.codec.wordless(observation)

    def find(self, observation: Tree) -> Array:
        """Which texts observations `[…, A, shape]` are, by number: `[…, A, K]`; new ones are embedded."""
        rows, lead = flatten(self.layout, observation)
        found = np.array(self.known.of(rows), np.int64)
        return found.reshape(*lead, len(self.tellers))

    def describe(self, seen: Tree) -> list[tuple[int, ...]]:
        """Put rows into words, and embed the words that are new: numbers of each row's texts."""
        told = list(zip(*(tell(seen) for tell in self.tellers), strict=True))
        for text in (text for texts in told for text in texts):
            if text not in self.numbers:
                self.add(text)
        return [tuple(map(self.numbers.__getitem__, texts)) for texts in told]

    def add(self, text: str) -> None:
        """Embed a text by itself: the last bit of a vector depends on what else is in a batch, and so would a run."""
        number = len(self.texts)
        if number == len(self.table):
            self.table = np.concatenate([self.table, np.zeros_like(self.table)])
        self.table[number] = self.lm.embed([text])[0] * math.sqrt(self.size)
        self.numbers[text] = number
        self.texts.append(text)

    def metrics(self) -> Counters:
        """How many texts were read, and what the model was asked for them."""
        asked = self.lm.metrics()
        return {"text/distinct": float(len(self.texts))} | {f"text/{name}": asked[f"lm/{name}"] for name in COUNTED}


class Trained(nn.Module):
    """The reader's model with adapters that learn: writes fresh features over the frozen ones in a network's rows.

    Rows carry the numbers of their texts. What acts is embedded once until the adapters move; what learns is
    embedded with its minibatch. At first the adapters change nothing (`lm/lora.py`), so both agree.
    """

    def __init__(self, reader: Reader, size: int, identities: int, normalizer: Normalizer) -> None:
        """Rows are `size` numbers that end with features, `identities`, numbers of texts, and what else there is."""
        super().__init__()
        frozen: Any = reader.backend  # a `Differentiable`, as the reader has made sure
        self.model = lora.frozen_copy(frozen.model)
        group_spec = reader.group_spec
        lora.add_adapters(
            self.model, reader.settings.lora, seeding.integer(group_spec.seed, "text adapters", group_spec.group)
        )
        self.reader, self.normalizer = reader, normalizer
        self.start, self.stop, self.at = size - reader.width, size, size + identities
        self.backend: Any = type(frozen)(self.model, frozen.tokenizer)
        self.kept: dict[int, Tensor] = {}  # text's number -> vector, by the adapters as they were
        self.weights: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        start, stop, after = self.start, self.stop, self.at + len(self.reader.tellers)
        numbers, where = torch.unique(x[..., self.at : after].long(), return_inverse=True)
        vectors = self.learning(numbers.tolist()) if torch.is_grad_enabled() else self.acting(numbers.tolist())
        features = (vectors.to(x.device) * math.sqrt(self.reader.size))[where].flatten(-2)
        normal = self.normalizer
        shift, scale = (
            torch.as_tensor(array[:, None, start:stop], device=x.device) for array in (normal.shift, normal.scale)
        )
        features = ((features - shift) * scale).clamp(-normal.limit, normal.limit)
        return torch.cat([x[..., :start], features, x[..., stop : self.at], x[..., after:]], dim=-1)

    def learning(self, numbers: list[int]) -> Tensor:
        """Vectors `[P, D]` with gradients, in an order of passing that knows nothing of when a text was first seen."""
        order = sorted(range(len(numbers)), key=lambda i: self.reader.texts[numbers[i]])
        found = self.backend.vectors([self.reader.texts[numbers[i]] for i in order]).cpu()
        return found[torch.from_numpy(np.argsort(order))]

    def acting(self, numbers: list[int]) -> Tensor:
        """The same without gradients, remembered and each embedded by itself, as the reader does."""
        weights = [p.detach() for p in self.model.parameters() if p.requires_grad]
        if not self.weights or not all(map(torch.equal, weights, self.weights)):
            self.kept.clear()
            self.weights = [weight.clone() for weight in weights]
        for number in numbers:
            if number not in self.kept:
                self.kept[number] = self.backend.vectors([self.reader.texts[number]])[0].cpu()
        return torch.stack([self.kept[number] for number in numbers]) if numbers else torch.zeros(0, self.reader.size)


def flatten(lay: Layout, observation: Tree) -> tuple[Tree, tuple[int, ...]]:
    """Observations `[…, shape]` as rows `[R, shape]`, and what the leading axes were."""
    lead: tuple[int, ...] = ()
    rows = {}
    for name, entry in lay.entries.items():
        array = np.asarray(observation if lay.bare else observation[name])
        shape = () if isinstance(entry.space, Discrete) else entry.shape
        lead = array.shape[: array.ndim - len(shape)]
        rows[name] = array.reshape(math.prod(lead), *shape)
    return (rows[""] if lay.bare else rows), lead
