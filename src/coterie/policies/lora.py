"""A language model that learns to play: low-rank adapters on a local model, trained on its scored choices.

Like `language`, it is told in words what its agents see and chooses among words; here what they score are the logits
of a distribution over legal actions, and a learner (PPO) moves the adapters along its gradient. One question for every
distinct description, in acting and in learning, however many rows see it. The critic is the learner's own and reads
observations, not words. Every policy has adapters of its own on weights that all of a process share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from coterie.core import seeding
from coterie.core.group import GroupSpec
from coterie.core.text import find_text_codec
from coterie.core.types import Array, Counters, Decision, Mean, State, Tree, View, map_tree
from coterie.core.validation import positive
from coterie.lm import lora, prompts
from coterie.lm.backends.local import Local, resolve_device
from coterie.lm.calibration import log_normalize
from coterie.lm.choice import MAX_REMEMBERED
from coterie.lm.interface import Normalize
from coterie.lm.loading import LMSettings, LoadedModel, backend_of, shared_backend, wrap
from coterie.nn import kernels, networks
from coterie.nn.distributions import Choices
from coterie.nn.normalization import Normalizer
from coterie.nn.packing import layout, pack
from coterie.policies.language import good_actions


@dataclass(frozen=True)
class LoraSettings:
    """Which model learns to play, how it is asked, and what of it learns."""

    lm: LMSettings = field(default_factory=LMSettings)  # a model in this process; a name alone will do
    codec: str = "auto"  # what puts moments into words; auto: the world's own; or package.module:Name
    template: str = "auto"  # a file, or one of ours by name; auto: the codec's
    examples: str = "none"  # worked ones, likewise; none: the bare question
    normalize: Normalize = "sum"  # log-probabilities of a word's tokens
    temperature: float = 1.0  # choices are drawn by scores divided by it
    rank: int = 16  # rank of the change of a layer's weights
    alpha: float = 32.0  # the change is scaled by alpha / rank
    target_modules: tuple[str, ...] = (lora.ALL_LINEAR,)  # all-linear, or names of modules such as q_proj
    last_layers: int = 0  # adapt this many last layers only; 0: all
    hidden: tuple[int, ...] = (64, 64)  # widths of the critic's hidden layers
    normalize_observations: bool = True  # for the critic, by running mean and deviation

    remembers: ClassVar[bool] = False  # a model that learns answers anew after every step

    def __post_init__(self) -> None:
        positive("temperature", self.temperature)
        for width in self.hidden:
            positive("a layer's width", width)
        lora.LoraAdapterSettings(self.rank, self.alpha, self.target_modules, self.last_layers)
        kind = backend_of(self.lm)
        if kind not in ("local", "custom"):
            raise ValueError(
                f"lm: '{self.lm.name}' is asked through {kind}, which cannot be trained; use a local model"
            )
        for name, given in (("cache", self.lm.cache), ("budget", self.lm.budget)):
            if given is not None:
                raise ValueError(f"lm.{name} has no part here: a model that learns answers anew after every step")


class Words:
    """A distribution over the actions that have a word, for logits of the words."""

    def __init__(self, of_choice: Array) -> None:
        self.of_choice = of_choice  # [C, …]
        self.outputs = len(of_choice)
        self.choices = Choices((self.outputs,), single=True)
        self.flat = torch.from_numpy(of_choice.reshape(self.outputs, -1).astype(np.float64))

    def act(self, out: Array, mask: Array | None, random: np.random.Generator, greedy: bool) -> tuple[Array, Array]:
        if mask is None:
            chosen, log_prob = self.choices.act(out, None, random, greedy)
            return self.of_choice[chosen], log_prob
        legal = mask[..., self.of_choice]
        chosen, log_prob = self.choices.act(out, legal, random, greedy)
        worded = legal.any(axis=-1)  # elsewhere the first legal action is played, for certain
        return np.where(worded, self.of_choice[chosen], mask.argmax(axis=-1)), np.where(worded, log_prob, np.float32(0))

    def evaluate_actions(
        self, out: torch.Tensor, action: torch.Tensor, mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        number = self.number(action, out.ndim - 1)
        if mask is None:
            return self.choices.evaluate_actions(out, number, None)
        legal = mask[..., torch.from_numpy(self.of_choice)]
        worded = legal.any(dim=-1)
        log_prob, entropy = self.choices.evaluate_actions(out, number, legal)
        return torch.where(worded, log_prob, 0.0), torch.where(worded, entropy, 0.0)

    def number(self, action: torch.Tensor, lead: int) -> torch.Tensor:
        """Which words stand for actions; the first `lead` axes count them."""
        rows = action.reshape(*action.shape[:lead], -1).double()
        return (rows.unsqueeze(-2) - self.flat).abs().sum(-1).argmin(-1)


class AdaptedModel(torch.nn.Module):
    """A local model whose adapters learn what to choose after prompts."""

    def __init__(
        self, settings: LoraSettings, template: prompts.PromptTemplate, words: Sequence[str], seed: int
    ) -> None:
        super().__init__()
        local = settings.lm.local
        if local.dtype == "auto" and resolve_device(local.device).type != "cpu":
            local = replace(local, dtype="float32")  # PPO compares log-probabilities more finely than bfloat16 can
        base = shared_backend(replace(settings.lm, local=local))
        if not isinstance(base, Local):
            raise ValueError(f"lm: '{settings.lm.name}' is no model in this process; it cannot be trained")
        self.model = lora.frozen_copy(base.model)
        shape = lora.LoraAdapterSettings(settings.rank, settings.alpha, settings.target_modules, settings.last_layers)
        lora.add_adapters(self.model, shape, seed)
        # What was read before would tie an answer's last bits to earlier questions: a resumed run must repeat them.
        self.local = Local(self.model, base.tokenizer, replace(base.settings, prefix_cache_size=0))
        self.lm: LoadedModel = wrap(self.local, settings.lm)
        self.template, self.words = template, [f" {word}" for word in words]
        sizes = [len(self.local.tokenize_choice(word)) for word in self.words]
        self.divisor = np.array(sizes if settings.normalize == "mean" else [1] * len(words)) * settings.temperature
        self.learned: dict[str, Array] = {}  # text -> logits when it was last learned from

    def logits(self, texts: Sequence[str]) -> Array:
        """[R, C] of distinct texts, without a gradient."""
        asked = [self.template.prompt(text) for text in texts]
        return self.lm.score(asked, [self.words] * len(texts)) / self.divisor

    def unroll(self, x: Array, sequences: networks.Sequences | None) -> torch.Tensor:
        """[1, M, C] with gradients, for texts `[1, M]`; each distinct one is read once."""
        texts, rows = np.unique(x[0], return_inverse=True)
        parts = list(self.parts(texts.tolist()))
        # Of several portions each is read again in the backward pass, so that memory holds one at a time.
        found = torch.cat([self.read(part, again=len(parts) > 1) for part in parts]).cpu()
        found = found / torch.from_numpy(self.divisor).float()
        self.learned |= dict(zip(texts.tolist(), found.detach().double().numpy()))
        return found[torch.from_numpy(rows)].unsqueeze(0)

    def parts(self, texts: list[str]) -> Iterator[list[str]]:
        """Texts in portions of about `max_batch_tokens` tokens."""
        part: list[str] = []
        size = 0
        for text in texts:
            length = len(self.local.tokenize(self.template.question.replace("{state}", text), 0))
            if part and size + length > self.local.settings.max_batch_tokens:
                yield part
                part, size = [], 0
            part.append(text)
            size += length
        yield part

    def read(self, texts: list[str], again: bool) -> torch.Tensor:
        """[R, C] with gradients."""
        asked, choices = [self.template.prompt(text) for text in texts], [self.words] * len(texts)
        if not again:
            return self.local.choice_logprobs(asked, choices)
        ways: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}  # nothing is drawn
        found: torch.Tensor = checkpoint(self.local.choice_logprobs, asked, choices, **ways)
        return found


class LoraPolicy:
    """A language model in its agents' seats that a learner improves."""

    memory_size = 0
    spec = None  # no compiled path
    hint_size = skip_size = 0  # neither hints nor features of texts
    device = torch.device("cpu")  # of the critic and of the logits; the model has its own

    def __init__(self, settings: LoraSettings, group_spec: GroupSpec) -> None:
        if group_spec.parameters == "individual" and len(group_spec.agents) > 1:
            raise ValueError("adapters are a group's own: for one set per agent, give every agent a group of its own")
        if group_spec.advice is not None:
            raise ValueError("a model that learns to play takes no advice; advise a network instead")
        self.settings, self.group_spec = settings, group_spec
        self.codec = find_text_codec(settings.codec, group_spec)
        words = self.codec.choices
        self.head = Words(self.codec.actions(np.arange(len(words))))
        self.choices = np.array([len(words)])
        self.layout = layout(group_spec.spaces.observation)
        encoder = networks.choose_encoder("auto", self.layout)
        self.identities = (
            len(group_spec.agents) if len(group_spec.agents) > 1 else 0
        )  # the critic is told whom it values
        self.shape = networks.Shape(settings.hidden, "tanh", encoder, (16, 32), self.identities)  # of the critic
        normal = settings.normalize_observations and self.layout.image is None
        self.normalizer = Normalizer(self.layout.slots, self.layout.width, 1, normal)
        template = prompts.read(settings.template, settings.examples, self.codec.prompt, words)
        self.net = AdaptedModel(settings, template, words, self.seeds("adapters")[0])
        self.flat = networks.FlatParams(self.net, 1)
        self.loads = 0
        self.known: dict[str, Array] = {}  # text -> logits [C] that the model gives now
        self.asked_by: tuple[Any, ...] = ()  # whose answers they are
        self.judged: dict[str, list[int]] = {}  # what is judged -> [good, all]
        self.start: tuple[tuple[str, ...], Array] = ((), np.zeros((0, len(words))))  # texts, logits without adapters

    def act(self, view: View) -> Decision:
        rows = view.acting
        asked = np.flatnonzero(rows)
        seen = map_tree(lambda a: a.reshape(rows.size, *a.shape[2:])[asked], view.observation)
        logits = np.zeros((rows.size, self.head.outputs), np.float32)
        logits[asked] = self.answers(self.codec.describe(seen), view)
        logits = logits.reshape(*rows.shape, -1)
        action, log_prob = self.head.act(logits, view.mask, view.random, view.greedy)
        for name, good in good_actions(self.codec, self.group_spec, action, view).items():
            tally = self.judged.setdefault(f"eval/{name}" if view.greedy else name, [0, 0])
            tally[0] += int(good.sum())
            tally[1] += good.size
        return Decision(action, log_prob)

    def answers(self, texts: Sequence[str], view: View) -> Array:
        """[R, C] logits. What is drawn by is asked anew for every shard of every iteration.

        Which texts are asked together moves their last bits, so that answers from elsewhere (another shard, an
        evaluation) would make what is drawn depend on the number of workers or on a resumption.
        """
        mine = (int(self.flat.steps[0]), self.loads, None if view.greedy else view.random)
        if self.asked_by != mine or len(self.known) > MAX_REMEMBERED:
            self.known, self.asked_by = {}, mine
        new = [text for text in dict.fromkeys(texts) if text not in self.known]
        if new:
            self.known.update(zip(new, self.net.logits(new), strict=True))
        return np.array([self.known[text] for text in texts]).reshape(-1, self.head.outputs)

    # What a learner needs -----------------------------------------------------------------------------

    def seeds(self, purpose: str) -> list[int]:
        """One seed: there is one set of parameters."""
        return [seeding.integer(self.group_spec.seed, purpose, self.group_spec.group, 0)]

    def arrange(self, packed: Array) -> Array:
        """Rows `[…, A, size]` one after the other, `[1, M, size]`."""
        return packed.reshape(1, -1, packed.shape[-1])

    def restore_order(self, rows: Array, lead: tuple[int, ...]) -> Array:
        """The inverse of `arrange`: `[1, M, …]` back to `[…, A, …]`."""
        return rows.reshape(*lead, *rows.shape[2:])

    def pack(self, observation: Tree) -> Array:
        """Observations `[…, A, shape]` as rows of floats `[…, A, size]`."""
        return pack(self.layout, observation)

    def learning_inputs(self, observation: Tree) -> tuple[Array, Array]:
        """Texts `[1, M]` for the model, and for the critic rows of numbers `[1, M, size + identities]`."""
        packed = np.ascontiguousarray(self.pack(observation))
        each = map_tree(lambda a: a.reshape(-1, *a.shape[packed.ndim - 1 :]), observation)
        rows, who, normal = (
            packed.reshape(-1, *packed.shape[-2:]),
            np.arange(len(self.group_spec.agents)),
            self.normalizer,
        )
        seen = kernels.prepare(rows, normal.shift, normal.scale, normal.limit, who, self.identities)
        return np.array(self.codec.describe(each)).reshape(1, -1), seen

    # What is told -------------------------------------------------------------------------------------

    def metrics(self) -> Counters:
        """Shares of good actions since the last call, how far the model has moved, and its usage."""
        present = self.net.learned or self.known
        told: dict[str, float | Mean] = {"distinct": float(len(present))}
        told |= {name: Mean(good, total) for name, (good, total) in self.judged.items()}
        if present:
            told["kl_to_start"] = Mean(self.kl_to_start(present), 1)
        self.net.learned, self.judged = {}, {}
        return told | self.net.lm.metrics()

    def kl_to_start(self, present: dict[str, Array]) -> float:
        """Mean divergence of the choices after texts from those of the same model without adapters."""
        texts = tuple(sorted(present))
        if texts != self.start[0]:
            with lora.adapters_disabled(self.net.model):
                self.start = texts, self.net.logits(texts)
        now, then = log_normalize(np.array([present[text] for text in texts])), log_normalize(self.start[1])
        return float((np.exp(now) * (now - then)).sum(axis=1).mean())

    # State --------------------------------------------------------------------------------------------

    def state(self) -> State:
        """The adapters, and what the critic's normalisation has seen; the model itself is not in it."""
        return {"adapters": networks.export(self.net), "normalizer": self.normalizer.state()}

    def load(self, state: State) -> None:
        what = f"group '{self.group_spec.group}'"
        if state["normalizer"]["mean"].shape != self.normalizer.mean.shape:
            raise ValueError(f"{what}: the saved observation statistics have another width than this world's")
        networks.restore(self.net, state["adapters"], what)
        self.normalizer.load(state["normalizer"])
        self.loads += 1
