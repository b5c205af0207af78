"""A language model as a trainable policy: low-rank adapters on a local model, trained on scored choices.

Like `language.py`, it describes observations in words and chooses among words. The scores of the words are the logits
of a distribution over legal actions, and a learner (PPO) trains the adapters by its gradient. Each distinct description
is read once per batch, in acting and in learning. The critic belongs to the learner and reads observations, not words.
Each policy has separate adapters on base weights that the process shares.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from coterie.core import seeding
from coterie.core.group import GroupSpec, Policy
from coterie.core.settings import Settings
from coterie.core.text import find_text_codec
from coterie.core.trees import map_tree
from coterie.core.types import Array, Counters, Decision, Mean, State, Tree, View
from coterie.core.validation import positive
from coterie.lm import prompts
from coterie.lm.ask.calibration import log_normalize
from coterie.lm.ask.choice import MAX_REMEMBERED
from coterie.lm.ask.interface import Normalize
from coterie.lm.ask.loading import LMSettings, LoadedModel, backend_of, shared_backend, wrap
from coterie.lm.ask.local import Local, resolve_device
from coterie.lm.learn import lora
from coterie.nn import kernels, networks
from coterie.nn.distributions import Choices, Taken
from coterie.nn.nets import make_net
from coterie.nn.normalization import Normalizer
from coterie.nn.packing import layout, pack
from coterie.policies.language import good_actions


@dataclass(frozen=True)
class LoraSettings(Settings):
    """Settings of the policy 'lora'."""

    lm: LMSettings = field(default_factory=LMSettings)  # a local language model; a bare name is enough
    codec: str = "auto"  # text codec for observations; auto: the codec of the world; or package.module:Name
    template: str = "auto"  # prompt template: a file or the name of a built-in one; auto: the codec's default
    examples: str = "none"  # few-shot examples: a file or a built-in name; auto: the codec's default; none: zero-shot
    normalize: Normalize = "sum"  # combines the log-probabilities of a word's tokens
    temperature: float = 1.0  # divides the scores of the choices
    rank: int = 16  # rank of the update of a layer's weights
    alpha: float = 32.0  # the update is scaled by alpha / rank
    target_modules: tuple[str, ...] = (lora.ALL_LINEAR,)  # all-linear, or module names such as q_proj
    last_layers: int = 0  # adapt this many last layers only; 0: all
    hidden: tuple[int, ...] = (64, 64)  # widths of the critic's hidden layers
    normalize_observations: bool = True  # normalise the critic's inputs by running mean and deviation

    remembers: ClassVar[bool] = False  # answers change with every update

    def __post_init__(self) -> None:
        positive("temperature", self.temperature)
        for width in self.hidden:
            positive("a layer's width", width)
        lora.LoraAdapterSettings(self.rank, self.alpha, self.target_modules, self.last_layers)
        kind = backend_of(self.lm)
        if kind not in ("local", "custom"):
            raise ValueError(
                f"lm: '{self.lm.name}' uses the backend {kind}, which cannot be trained; use a local model"
            )
        for name, given in (("cache", self.lm.cache), ("budget", self.lm.budget)):
            if given is not None:
                raise ValueError(
                    f"lm.{name} is not supported: the answers of a trained model change with every update; remove it"
                )


class WordDistribution:
    """A distribution over the actions that have a word, given logits of the words."""

    def __init__(self, of_choice: Array) -> None:
        self.of_choice = of_choice  # [C, …]
        self.outputs = len(of_choice)
        self.choices = Choices((self.outputs,), single=True)
        self.flat = of_choice.reshape(self.outputs, -1).astype(np.float64)

    def act(self, out: Array, mask: Array | None, random: np.random.Generator, greedy: bool) -> tuple[Array, Array]:
        if mask is None:
            chosen, log_prob = self.choices.act(out, None, random, greedy)
            return self.of_choice[chosen], log_prob
        legal = mask[..., self.of_choice]
        chosen, log_prob = self.choices.act(out, legal, random, greedy)
        worded = legal.any(axis=-1)  # elsewhere the first legal action has probability 1
        return np.where(worded, self.of_choice[chosen], mask.argmax(axis=-1)), np.where(worded, log_prob, np.float32(0))

    def taken(self, action: Array, mask: Array | None) -> Taken:
        """The actions' words. Where no legal action has a word there is no choice."""
        rows = action.reshape(action.size // max(self.flat.shape[1], 1), -1).astype(np.float64)
        number = np.abs(rows[:, None] - self.flat).sum(axis=-1).argmin(axis=-1)
        return self.choices.taken(number, None if mask is None else mask[..., self.of_choice])

    def forward(self, out: Array, taken: Taken, rows: Array) -> tuple[Array, Array]:
        return self.choices.forward(out, taken, rows)

    def backward(self, by_log_prob: Array, by_entropy: Array) -> Array:
        return self.choices.backward(by_log_prob, by_entropy)


class AdaptedModel(torch.nn.Module):
    """A local model with trainable adapters that scores choices after prompts."""

    def __init__(
        self, settings: LoraSettings, template: prompts.PromptTemplate, words: Sequence[str], seed: int
    ) -> None:
        super().__init__()
        local = settings.lm.local
        if local.dtype == "auto" and resolve_device(local.device).type != "cpu":
            local = replace(local, dtype="float32")  # bfloat16 is too coarse for PPO's ratios
        base = shared_backend(replace(settings.lm, local=local))
        if not isinstance(base, Local):
            raise ValueError(f"lm: '{settings.lm.name}' is not a local model and cannot be trained")
        self.model = lora.frozen_copy(base.model)
        shape = lora.LoraAdapterSettings(settings.rank, settings.alpha, settings.target_modules, settings.last_layers)
        lora.add_adapters(self.model, shape, seed)
        # A prefix cache would make the last bits of answers depend on earlier prompts; a resumed run must repeat them.
        self.local = Local(self.model, base.tokenizer, replace(base.settings, prefix_cache_size=0))
        self.lm: LoadedModel = wrap(self.local, settings.lm)
        self.template, self.words = template, [f" {word}" for word in words]
        sizes = [len(self.local.tokenize_choice(word)) for word in self.words]
        self.divisor = np.array(sizes if settings.normalize == "mean" else [1] * len(words)) * settings.temperature
        self.learned: dict[str, Array] = {}  # text -> logits in the latest update

    def logits(self, texts: Sequence[str]) -> Array:
        """Return logits `[R, C]` of distinct texts, without gradients."""
        asked = [self.template.prompt(text) for text in texts]
        return self.lm.score(asked, [self.words] * len(texts)) / self.divisor

    def unroll(self, x: Array, sequences: networks.Sequences | None) -> torch.Tensor:
        """Return logits `[1, M, C]` with gradients for texts `[1, M]`; each distinct text is read once."""
        texts, rows = np.unique(x[0], return_inverse=True)
        parts = list(self.parts(texts.tolist()))
        # With several parts, each is recomputed in the backward pass, so memory holds one part at a time.
        found = torch.cat([self.read(part, recompute=len(parts) > 1) for part in parts]).cpu()
        found = found / torch.from_numpy(self.divisor).float()
        self.learned |= dict(zip(texts.tolist(), found.detach().double().numpy()))
        return found[torch.from_numpy(rows)].unsqueeze(0)

    def parts(self, texts: list[str]) -> Iterator[list[str]]:
        """Yield the texts in parts of about `max_batch_tokens` tokens."""
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

    def read(self, texts: list[str], recompute: bool) -> torch.Tensor:
        """Return logits `[R, C]` with gradients; `recompute` saves memory by gradient checkpointing."""
        asked, choices = [self.template.prompt(text) for text in texts], [self.words] * len(texts)
        if not recompute:
            return self.local.choice_logprobs(asked, choices)
        options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}  # no random numbers are used
        found: torch.Tensor = checkpoint(self.local.choice_logprobs, asked, choices, **options)
        return found


class LoraPolicy(Policy):
    """Acts for a group of agents with a language model that a learner trains."""

    spec = None  # no compiled path
    hint_size = skip_size = 0  # no hints, no text features
    device = torch.device("cpu")  # of the critic and of the logits; the model may be on another

    def __init__(self, settings: LoraSettings, group_spec: GroupSpec) -> None:
        if group_spec.parameters == "individual" and len(group_spec.agents) > 1:
            raise ValueError(
                "parameters=individual: adapters are shared by a group; put each agent into a separate group"
            )
        if group_spec.advice is not None:
            raise ValueError("policy 'lora' does not support an advisor; remove the advisor or set policy.name=network")
        self.settings, self.group_spec = settings, group_spec
        self.codec = find_text_codec(settings.codec, group_spec)
        words = self.codec.choices
        self.head = WordDistribution(self.codec.actions(np.arange(len(words))))
        self.choices = np.array([len(words)])
        self.layout = layout(group_spec.spaces.observation)
        encoder = networks.choose_encoder("auto", self.layout)
        # The critic gets the agent's one-hot identity.
        self.identities = len(group_spec.agents) if len(group_spec.agents) > 1 else 0
        self.shape = networks.Shape(settings.hidden, "tanh", encoder, (16, 32), self.identities)  # of the critic
        normal = settings.normalize_observations and self.layout.image is None
        self.normalizer = Normalizer(self.layout.slots, self.layout.width, 1, normal)
        template = prompts.read(settings.template, settings.examples, self.codec.prompt, words)
        self.net = AdaptedModel(settings, template, words, self.seeds("adapters")[0])
        self.flat = networks.FlatParams(self.net, 1)
        self.trainable = make_net(self.net, flat=self.flat)
        self.loads = 0
        self.known: dict[str, Array] = {}  # text -> logits [C] of the current adapters
        self.asked_by: tuple[Any, ...] = ()  # updates, loads and generator that `known` belongs to
        self.judged: dict[str, list[int]] = {}  # metric -> [good, all]
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
        """Return logits `[R, C]`, computed anew for every shard of every iteration.

        The last bits of an answer depend on the batch of texts. Answers from another shard or an evaluation would make
        samples depend on the number of workers or on resuming.
        """
        mine = (int(self.flat.steps[0]), self.loads, None if view.greedy else view.random)
        if self.asked_by != mine or len(self.known) > MAX_REMEMBERED:
            self.known, self.asked_by = {}, mine
        new = [text for text in dict.fromkeys(texts) if text not in self.known]
        if new:
            self.known.update(zip(new, self.net.logits(new), strict=True))
        return np.array([self.known[text] for text in texts]).reshape(-1, self.head.outputs)

    # Learning ----------------------------------------------------------------------------------------

    def seeds(self, purpose: str) -> list[int]:
        """Return one seed, since there is one set of parameters."""
        return [seeding.integer(self.group_spec.seed, purpose, self.group_spec.group, 0)]

    def arrange(self, packed: Array) -> Array:
        """Flatten rows `[…, A, size]` to `[1, M, size]`."""
        return packed.reshape(1, -1, packed.shape[-1])

    def restore_order(self, rows: Array, lead: tuple[int, ...]) -> Array:
        """Invert `arrange`: `[1, M, …]` back to `[…, A, …]`."""
        return rows.reshape(*lead, *rows.shape[2:])

    def pack(self, observation: Tree) -> Array:
        """Return observations `[…, A, shape]` as rows of floats `[…, A, size]`."""
        return pack(self.layout, observation)

    def learning_inputs(self, observation: Tree) -> tuple[Array, Array]:
        """Return texts `[1, M]` for the model and rows `[1, M, size + identities]` for the critic."""
        packed = np.ascontiguousarray(self.pack(observation))
        each = map_tree(lambda a: a.reshape(-1, *a.shape[packed.ndim - 1 :]), observation)
        rows, agents, normal = (
            packed.reshape(-1, *packed.shape[-2:]),
            np.arange(len(self.group_spec.agents)),
            self.normalizer,
        )
        seen = kernels.prepare(rows, normal.shift, normal.scale, normal.limit, agents, self.identities)
        return np.array(self.codec.describe(each)).reshape(1, -1), seen

    # Metrics ------------------------------------------------------------------------------------------

    def metrics(self) -> Counters:
        """Fractions of good actions since the last call, the KL from the base model, and the model's usage."""
        present = self.net.learned or self.known
        found: dict[str, float | Mean] = {"distinct": float(len(present))}
        found |= {name: Mean(good, total) for name, (good, total) in self.judged.items()}
        if present:
            found["kl_to_start"] = Mean(self.kl_to_start(present), 1)
        self.net.learned, self.judged = {}, {}
        return found | self.net.lm.metrics()

    def kl_to_start(self, present: dict[str, Array]) -> float:
        """Return the mean KL(model ‖ model without adapters) of the choices over texts."""
        texts = tuple(sorted(present))
        if texts != self.start[0]:
            with lora.adapters_disabled(self.net.model):
                self.start = texts, self.net.logits(texts)
        now, then = log_normalize(np.array([present[text] for text in texts])), log_normalize(self.start[1])
        return float((np.exp(now) * (now - then)).sum(axis=1).mean())

    # State --------------------------------------------------------------------------------------------

    def state(self) -> State:
        """Return the adapters and the observation statistics of the critic, without the base model."""
        return {"adapters": networks.export(self.net), "normalizer": self.normalizer.state()}

    def load(self, state: State) -> None:
        what = f"group '{self.group_spec.group}'"
        if state["normalizer"]["mean"].shape != self.normalizer.mean.shape:
            raise ValueError(f"{what}: the saved observation statistics have another width than this world's")
        networks.restore(self.net, state["adapters"], what)
        self.normalizer.load(state["normalizer"])
        self.loads += 1
