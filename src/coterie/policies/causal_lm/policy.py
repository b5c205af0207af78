"""The policy `causal_lm`: a language model that writes its answers, token by token, and that a learner can train.

A group's agents share one set of weights or have one each (`parameters`), and a set is a whole model or low-rank
adapters over a base that all sets share (`weights`). In training it may branch: draw several candidates, score all,
go on with one. Token ids and log-probabilities of all candidates are kept in the decision's trace; the learner never
tokenises a text again. A prompt that is too long for the model is refused and counted: the answer is "".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch

from coterie.core import seeding
from coterie.core.group import GroupSpec
from coterie.core.types import Array, Counters, Decision, Mean, State, Text, View
from coterie.core.validation import at_least, one_of, positive, whole
from coterie.lm.ask.loading import load_pretrained
from coterie.lm.learn.engine import EngineSpec
from coterie.lm.learn.network import CausalNetwork
from coterie.lm.learn.sampling import PAD, Samples, SampleSpec
from coterie.lm.learn.tokenizers import CharacterTokenizer, Tokenizer
from coterie.lm.learn.transformer import Transformer, TransformerShape
from coterie.lm.learn.updates import Weights
from coterie.nn.devices import Device, demand_deterministic, resolve_device, resolve_precision
from coterie.policies.causal_lm.branching import Choose, choose, score_candidates
from coterie.policies.causal_lm.rollout_worker import RolloutWorker, Router

log = logging.getLogger(__name__)
TINY = "tiny"
ADAPTER = ".lora_"  # in the names of weights
Kind = Literal["full", "lora"]
Precision = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True)
class TinySettings:
    """Sizes of a small transformer that reads characters and starts from random weights."""

    layers: int = 2  # of attention and feed-forward
    width: int = 64  # numbers per token
    heads: int = 4  # of the attention
    hidden: int = 128  # width of the feed-forward layers
    context: int = 256  # characters of prompt and answer


@dataclass(frozen=True)
class CausalLMSettings:
    """Settings of the policy 'causal_lm'."""

    model: str = TINY  # tiny: from scratch; embedded: the shipped one; or a directory or GGUF file
    tiny: TinySettings = field(default_factory=TinySettings)  # sizes, where the model is tiny
    weights: Kind = "full"  # train all weights, or lora: low-rank adapters over a base that the group's agents share
    rank: int = 16  # of the adapters
    alpha: float = 32.0  # adapters are scaled by alpha / rank
    temperature: float = 1.0  # of sampling; greedy decisions take the most likely token
    max_tokens: int = 32  # of an answer
    max_prompt_tokens: int = 192  # longer prompts are refused
    precision: Precision = "auto"  # of products: float32, bfloat16; auto: bfloat16 on a GPU. Trained weights: float32
    engine_rows: int = 1024  # answers that a GPU writes at once
    deterministic: bool = False  # on a GPU: the same numbers in every run, and after a restart, for some speed
    candidates: int = 1  # answers drawn from one state in training; 1: no branching
    choose: Choose = "best"  # the candidate to go on with: best, random or first
    device: Device = "auto"  # auto, cpu or cuda

    def __post_init__(self) -> None:
        for name in ("rank", "max_tokens", "max_prompt_tokens", "candidates", "engine_rows"):
            whole(name, getattr(self, name))
            at_least(name, getattr(self, name), 1)
        positive("alpha", self.alpha)
        positive("temperature", self.temperature)
        for name, hint in (("weights", Kind), ("choose", Choose), ("precision", Precision)):
            one_of(name, getattr(self, name), get_args(hint))
        if self.model == TINY and self.max_prompt_tokens + self.max_tokens > self.tiny.context:
            raise ValueError(
                f"max_prompt_tokens + max_tokens must be at most tiny.context ({self.tiny.context}), "
                f"got {self.max_prompt_tokens} + {self.max_tokens}"
            )


class Rows(NamedTuple):
    """The decisions of one step: R agents that act."""

    copies: Array  # [R]
    columns: Array  # [R]: which of the view's agents
    agents: Array  # [R]: which of the policy's agents
    prompts: list[list[int]]  # token ids; [] where the prompt is refused


class CausalLMPolicy:
    """Acts for a group of agents by writing."""

    memory_size = 0

    def __init__(self, settings: CausalLMSettings, group_spec: GroupSpec) -> None:
        spaces = group_spec.spaces
        if not isinstance(spaces.observation, Text) or not isinstance(spaces.action, Text):
            raise ValueError("policy 'causal_lm' reads and writes texts; this world has other observations or actions")
        if group_spec.advice is not None:
            raise ValueError("policy 'causal_lm' does not support an advisor; remove the advisor")
        self.settings, self.group_spec = settings, group_spec
        self.router = Router(group_spec, settings.weights == "lora")
        self.device = resolve_device(settings.device, compiled=False)
        if settings.deterministic and self.device.type == "cuda":
            demand_deterministic()
        self.base_changed = False  # a frozen base is no longer the pretrained model's
        self.networks, self.tokenizer = self._build()
        room = EngineSpec(settings.max_prompt_tokens, settings.max_tokens, settings.engine_rows)
        self.workers = [RolloutWorker(network, room) for network in self.networks]
        # by agent, (training, evaluation): answers, tokens, refused prompts
        self.counts = np.zeros((len(group_spec.agents), 2, 3))
        self.entropy = np.zeros(2)  # of training answers: sum, number
        self.warned = False  # that prompts are refused
        self.branches = True  # whether it draws `candidates` in training; a learner that has finished turns it off

    def _build(self) -> tuple[Sequence[CausalNetwork], Tokenizer]:
        """The networks: one per set of weights, or one base with an adapter per set."""
        s, sets = self.settings, self.router.sets
        copies = 1 if s.weights == "lora" else sets
        tokenizer: Tokenizer
        networks: Sequence[CausalNetwork]
        if s.model == TINY:
            tokenizer = CharacterTokenizer()
            tiny = asdict(s.tiny)
            shape = TransformerShape(tokenizer.size, kv_heads=s.tiny.heads, **tiny)
            shape.demand_memory()
            networks = [Transformer(shape, self._seed("weights", number)) for number in range(copies)]
        else:
            networks, tokenizer = load_pretrained(s.model, copies)
            context = networks[0].context
            if s.max_prompt_tokens + s.max_tokens > context:
                raise ValueError(f"max_prompt_tokens + max_tokens must be at most {context}, the context of {s.model}")
        if s.weights == "lora":
            networks[0].add_adapters(sets, s.rank, s.alpha, [self._seed("adapters", n) for n in range(sets)])
        compute = resolve_precision(s.precision, self.device)
        for network in networks:
            network.set_precision(compute)  # first: a frozen base goes to the GPU in the precision that it keeps
            network.to(self.device)
        return networks, tokenizer

    def _seed(self, purpose: str, number: int) -> int:
        return seeding.integer(self.group_spec.seed, purpose, self.group_spec.group, number)

    def weights(self, number: int) -> Weights:
        """A set of weights by its number."""
        lora = self.settings.weights == "lora"
        return Weights(self.networks[0 if lora else number], number if lora else None)

    # Acting -------------------------------------------------------------------------------------------

    def act(self, view: View) -> Decision:
        training = view.progress is not None
        s = self.settings
        rows = self._rows(view)
        width = s.candidates if training and self.group_spec.learns and view.world is not None else 1
        count = width if self.branches else 1
        samples = self._sample(rows, count, view)
        texts = self.decode(samples.tokens)
        scores = score_candidates(view, rows.copies, rows.columns, texts) if count > 1 else np.zeros(texts.shape, "f4")
        chosen = choose(scores, s.choose, view.random)
        self._count(rows, samples, training)
        shape = view.acting.shape
        action = np.full(shape, "", object)
        action[rows.copies, rows.columns] = texts[np.arange(len(texts)), chosen]
        log_prob = np.zeros(shape, np.float32)
        taken = samples.log_probs[np.arange(len(texts)), chosen]
        log_prob[rows.copies, rows.columns] = taken.sum(axis=1)
        trace = self._trace(shape, rows, _widened(samples, width), _padded(scores, width), chosen) if training else None
        return Decision(action, log_prob, trace=trace)

    def _rows(self, view: View) -> Rows:
        """The agents that act, with the tokens of their prompts."""
        copies, columns = np.nonzero(view.acting)
        observation = view.observation
        assert isinstance(observation, np.ndarray)
        prompts = self.tokenizer.encode_batch(observation[copies, columns].tolist())
        longest = self.settings.max_prompt_tokens
        refused = [len(prompt) for prompt in prompts if not 0 < len(prompt) <= longest]
        if refused and not self.warned:
            self.warned = True
            log.warning(
                "groups.%s.policy.max_prompt_tokens=%d: a prompt of %d tokens is refused; raise it, or watch "
                "%s/AGENT/refused in the metrics",
                *(self.group_spec.group, longest, max(refused), self.group_spec.group),
            )
        prompts = [prompt if 0 < len(prompt) <= longest else [] for prompt in prompts]
        return Rows(copies, columns, view.agents[columns], prompts)

    def _sample(self, rows: Rows, count: int, view: View) -> Samples:
        """Candidates `[R, K, L]` of every row, each by the weights of its agent; none where the prompt is refused."""
        s, total = self.settings, len(rows.copies)
        spec = SampleSpec(count, s.max_tokens, 0.0 if view.greedy else s.temperature, self.tokenizer.end)
        noise = view.random.random((total, count, s.max_tokens), np.float32)
        shape = (total, count, s.max_tokens)
        whole = Samples(np.full(shape, PAD, np.int32), np.zeros(shape, "f4"), np.zeros(shape[:2], "f4"))
        readable = np.array([bool(prompt) for prompt in rows.prompts], bool)
        for network, read, adapters in self.router.route(rows.agents, readable):
            found = self.workers[network].sample([rows.prompts[row] for row in read], spec, noise[read], adapters)
            for into, array in zip(whole, found, strict=True):
                into[read] = array
        return whole

    def _trace(
        self, shape: tuple[int, ...], rows: Rows, samples: Samples, scores: Array, chosen: Array
    ) -> dict[str, Array]:
        """Arrays of all candidates for the learner, `[N, A, …]`."""
        prompt = np.full((len(rows.copies), self.settings.max_prompt_tokens), PAD, np.int32)
        for row, tokens in enumerate(rows.prompts):
            prompt[row, : len(tokens)] = tokens

        def placed(values: Array) -> Array:
            whole = np.full((*shape, *values.shape[1:]), PAD if values.dtype == np.int32 else 0, values.dtype)
            whole[rows.copies, rows.columns] = values
            return whole

        return {
            "prompt": placed(prompt),
            "tokens": placed(samples.tokens),
            "log_probs": placed(samples.log_probs),
            "scores": placed(scores.astype(np.float32)),
            "chosen": placed(chosen.astype(np.int64)),
        }

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of answers, ended; for learners that imitate texts."""
        return [[*tokens, self.tokenizer.end] for tokens in self.tokenizer.encode_batch(texts)]

    def decode(self, tokens: Array) -> Array:
        """The texts `[…]` of answers' tokens `[…, L]`, up to the end; equal answers, which are many, are read once."""
        answers, which = np.unique(tokens.reshape(-1, tokens.shape[-1]), axis=0, return_inverse=True)
        kept = (answers != PAD) & (answers != self.tokenizer.end)
        texts = [self.tokenizer.decode(answer[own].tolist()) for answer, own in zip(answers, kept, strict=True)]
        return np.array(texts, object)[which.reshape(tokens.shape[:-1])]

    # Metrics and state --------------------------------------------------------------------------------

    def _count(self, rows: Rows, samples: Samples, training: bool) -> None:
        tokens = (samples.tokens != PAD).sum(axis=(1, 2))
        drawn = samples.tokens.shape[1]  # candidates are answers too
        refused = drawn * np.array([not prompt for prompt in rows.prompts], float)
        column = 0 if training else 1
        numbers = np.stack([np.full(len(tokens), drawn), tokens, refused], axis=1)
        np.add.at(self.counts[:, column], rows.agents, numbers)
        if training:
            self.entropy += samples.entropy.sum(), samples.entropy.size

    def metrics(self) -> Counters:
        """Since the last call, by agent: tokens per answer and refused prompts; the entropy of sampled tokens."""
        found: dict[str, float | Mean] = {"entropy": Mean(*self.entropy)}
        for agent, both in zip(self.group_spec.agents, self.counts, strict=True):
            for prefix, (answers, tokens, refused) in zip(("", "eval/"), both, strict=True):
                found[f"{prefix}{agent}/answer_tokens"] = Mean(float(tokens), float(answers))
                found[f"{prefix}{agent}/refused"] = Mean(float(refused), float(answers))
        self.counts[:], self.entropy[:] = 0, 0
        return found

    def state(self) -> State:
        """All weights; of a pretrained base under adapters the adapters alone, unless the base began elsewhere."""
        return {
            "networks": [
                {
                    name: w.detach().float().cpu().numpy().copy()
                    for name, w in network.state_dict().items()
                    if self._is_saved(name)
                }
                for network in self.networks
            ]
        } | ({} if self.branches else {"branches": False})

    def _is_saved(self, name: str) -> bool:
        whole = self.settings.weights == "full" or self.settings.model == TINY or self.base_changed
        return whole or ADAPTER in name

    def load(self, state: State) -> None:
        self._check_count(state, (len(self.networks),))
        self.branches = state.get("branches", True)
        self.base_changed = any(ADAPTER not in name for saved in state["networks"] for name in saved)
        for network, saved in zip(self.networks, state["networks"], strict=True):
            _copy_weights(network, saved, self._is_saved)

    def start_from(self, state: State) -> None:
        """Begin with the weights of another policy: one network serves all sets, adapters start anew on a base.

        A policy with adapters begins with those of another one as they are.
        """
        self._check_count(state, (1, len(self.networks)))
        if any(ADAPTER in name for saved in state["networks"] for name in saved):
            self.load(state)
            return
        self.base_changed = True
        for number, network in enumerate(self.networks):
            saved = state["networks"][number % len(state["networks"])]
            _copy_weights(network, saved, lambda name: ADAPTER not in name)

    def _check_count(self, state: State, allowed: tuple[int, ...]) -> None:
        if len(state["networks"]) not in allowed:
            raise ValueError(
                f"the saved policy has {len(state['networks'])} networks, this one {len(self.networks)}; "
                "set parameters and policy.weights as they were"
            )


def _padded(values: Array, width: int) -> Array:
    """Values of candidates `[R, k, …]` as those of `width` candidates, the missing ones empty."""
    fill = PAD if values.dtype == np.int32 else 0
    missing = np.full((len(values), width - values.shape[1], *values.shape[2:]), fill, values.dtype)
    return np.concatenate([values, missing], axis=1) if missing.size else values


def _widened(samples: Samples, width: int) -> Samples:
    return Samples(*(_padded(values, width) for values in samples))


def _copy_weights(network: CausalNetwork, saved: State, wanted: Callable[[str], bool]) -> None:
    """Copy saved arrays into a network; they must be the wanted ones and have their shapes."""
    own = {name: tensor for name, tensor in network.state_dict().items() if wanted(name)}
    cure = "set policy.model, tiny, weights and rank as they were"
    if different := own.keys() ^ saved.keys():
        raise ValueError(f"the saved policy and this one differ in the weights '{min(different)}'; {cure}")
    for name, array in saved.items():
        if (shape := tuple(own[name].shape)) != array.shape:
            raise ValueError(f"saved weights '{name}' have shape {array.shape}, this policy's {shape}; {cure}")
        own[name].copy_(torch.from_numpy(np.ascontiguousarray(array)))
