"""Text features for networks: instructions and descriptions of observations, each distinct text embedded once.

`TextEncoder` turns observations into texts by the world's codec, and texts into vectors of a frozen model.
`TrainableEncoder` is the same model with adapters trained by the policy's loss. `network.py` adds the features to its
inputs.
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
from coterie.lm.ask.loading import LMSettings, LoadedModel, shared_backend, wrap
from coterie.lm.learn import lora
from coterie.lm.learn.lora import LoraAdapterSettings
from coterie.nn.normalization import Normalizer
from coterie.nn.packing import Layout, layout

PROBE = "What is seen, in words."  # embedded once to find the length of the model's vectors
COUNTED = ("calls", "prompt_tokens", "seconds", "cache_hits")  # usage metrics of the model
Join = Literal["concat", "add", "alone"]


@dataclass(frozen=True)
class EncoderModel(LMSettings):
    """A language model that embeds texts."""

    name: str = "minilm"  # minilm, embedded, or another name that `coterie.lm.load` accepts


@dataclass(frozen=True)
class TextSettings:
    """Settings of a network's text features."""

    lm: EncoderModel = field(default_factory=EncoderModel)  # the embedding model; a bare name is enough
    reads: Literal["instruction", "state", "both"] = "state"  # the instruction, the described observation, or both
    join: Join = "concat"  # append to the observation; add: add a learned projection; alone: text features only
    scale: float = 1.0  # multiplies the normalised text features; at 1, many features outweigh a short observation
    codec: str = "auto"  # text codec for observations; auto: the codec of the world; or package.module:Name
    trainable: bool = False  # train adapters on the model by the policy's loss; the critic reads the frozen model
    lora: LoraAdapterSettings = field(default_factory=LoraAdapterSettings)  # the adapters of `trainable`

    def __post_init__(self) -> None:
        positive("scale", self.scale)


@runtime_checkable
class Differentiable(Protocol):
    """A local backend whose vectors have gradients; it has the attributes `model` and `tokenizer`."""

    def vectors(self, prompts: Sequence[str]) -> Tensor:
        """Return the vectors `[P, D]` of `embed`, with gradients."""
        ...


class TextEncoder:
    """Maps observations to embeddings of their texts."""

    def __init__(self, settings: TextSettings, group_spec: GroupSpec) -> None:
        self.settings, self.group_spec, self.codec = settings, group_spec, find_text_codec(settings.codec, group_spec)
        self.text_functions: list[Callable[[Tree], list[str]]] = []
        if settings.reads != "state":
            if not isinstance(self.codec, Instructing):
                raise ValueError(f"text.reads={settings.reads} needs a world with instructions; set text.reads=state")
            self.text_functions.append(self.codec.instruct)
        if settings.reads != "instruction":
            self.text_functions.append(self.codec.describe)
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
        # `layout` is the observation to describe, `numeric_layout` the numeric input next to the text features.
        self.layout = self.numeric_layout = layout(group_spec.spaces.observation)
        if settings.reads != "state" and isinstance(self.codec, Instructing):
            self.numeric_layout = layout(self.codec.space_without_instruction)
        self.known = Memoized(lambda seen, tags: self.describe(seen))  # observation -> indices of its texts
        self.texts: list[str] = []
        self.numbers: dict[str, int] = {}  # text -> index in `texts` and `table`
        self.size = self.lm.embed([PROBE]).shape[1]
        self.table = np.zeros((16, self.size), np.float32)  # one vector per text; grows by doubling
        self.width = self.size * len(self.text_functions)

    def features(self, observation: Tree) -> Array:
        """Return features `[…, A, width]` of mean square 1 for observations `[…, A, shape]`."""
        numbers = self.find(observation)
        return self.table[numbers].reshape(*numbers.shape[:-1], self.width)

    def weigh(self, size: int) -> Array | None:
        """Return the weights of normalised rows of `size` numbers that end with the features; None: all 1."""
        scale = self.settings.scale
        return None if scale == 1.0 else np.repeat([1.0, scale], [size - self.width, self.width])

    def without_instruction(self, observation: Tree) -> Tree:
        """Return the observation without the numbers that encode an instruction read as text."""
        if self.settings.reads == "state" or not isinstance(self.codec, Instructing):
            return observation
        return self.codec.without_instruction(observation)

    def find(self, observation: Tree) -> Array:
        """Return the indices `[…, A, K]` of the texts of observations `[…, A, shape]`; embed new texts."""
        rows, lead = flatten(self.layout, observation)
        found = np.array(self.known.of(rows), np.int64)
        return found.reshape(*lead, len(self.text_functions))

    def describe(self, seen: Tree) -> list[tuple[int, ...]]:
        """Describe rows, embed new texts, and return the indices of each row's texts."""
        described = list(zip(*(write(seen) for write in self.text_functions), strict=True))
        for text in (text for texts in described for text in texts):
            if text not in self.numbers:
                self.add(text)
        return [tuple(map(self.numbers.__getitem__, texts)) for texts in described]

    def add(self, text: str) -> None:
        """Embed one text alone: the last bits of a vector depend on its batch, which would make runs irreproducible."""
        number = len(self.texts)
        if number == len(self.table):
            self.table = np.concatenate([self.table, np.zeros_like(self.table)])
        self.table[number] = self.lm.embed([text])[0] * math.sqrt(self.size)
        self.numbers[text] = number
        self.texts.append(text)

    def metrics(self) -> Counters:
        """The number of distinct texts, and the usage of the model."""
        asked = self.lm.metrics()
        return {"text/distinct": float(len(self.texts))} | {f"text/{name}": asked[f"lm/{name}"] for name in COUNTED}


class TrainableEncoder(nn.Module):
    """The encoder's model with trainable adapters; it replaces the frozen features in a network's input rows.

    Rows carry the indices of their texts. Acting embeds each text once per version of the adapters; learning embeds
    the texts of each minibatch. New adapters change nothing (`lm/learn/lora.py`), so both agree at first.
    """

    def __init__(self, reader: TextEncoder, size: int, identities: int, normalizer: Normalizer) -> None:
        """Rows hold `size` numbers that end with features, then `identities`, indices of texts, and other inputs."""
        super().__init__()
        frozen: Any = reader.backend  # a `Differentiable`; the reader has checked it
        self.model = lora.frozen_copy(frozen.model)
        group_spec = reader.group_spec
        lora.add_adapters(
            self.model, reader.settings.lora, seeding.integer(group_spec.seed, "text adapters", group_spec.group)
        )
        self.reader, self.normalizer = reader, normalizer
        self.start, self.stop, self.at = size - reader.width, size, size + identities
        self.backend: Any = type(frozen)(self.model, frozen.tokenizer)
        self.kept: dict[int, Tensor] = {}  # index of a text -> vector by the adapters in `weights`
        self.weights: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        start, stop, after = self.start, self.stop, self.at + len(self.reader.text_functions)
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
        """Return vectors `[P, D]` with gradients; texts are batched in sorted order, not in order of arrival."""
        order = sorted(range(len(numbers)), key=lambda i: self.reader.texts[numbers[i]])
        found = self.backend.vectors([self.reader.texts[numbers[i]] for i in order]).cpu()
        return found[torch.from_numpy(np.argsort(order))]

    def acting(self, numbers: list[int]) -> Tensor:
        """Return vectors `[P, D]` without gradients, memoised; each text is embedded alone, as in the reader."""
        weights = [p.detach() for p in self.model.parameters() if p.requires_grad]
        if not self.weights or not all(map(torch.equal, weights, self.weights)):
            self.kept.clear()
            self.weights = [weight.clone() for weight in weights]
        for number in numbers:
            if number not in self.kept:
                self.kept[number] = self.backend.vectors([self.reader.texts[number]])[0].cpu()
        return torch.stack([self.kept[number] for number in numbers]) if numbers else torch.zeros(0, self.reader.size)


def flatten(lay: Layout, observation: Tree) -> tuple[Tree, tuple[int, ...]]:
    """Return observations `[…, shape]` as rows `[R, shape]`, and the leading shape."""
    lead: tuple[int, ...] = ()
    rows = {}
    for name, entry in lay.entries.items():
        array = np.asarray(observation if lay.bare else observation[name])
        shape = () if isinstance(entry.space, Discrete) else entry.shape
        lead = array.shape[: array.ndim - len(shape)]
        rows[name] = array.reshape(math.prod(lead), *shape)
    return (rows[""] if lay.bare else rows), lead
