"""Completions from a local model: each prompt is read once and its samples are decoded in one batch.

Every sample has its own random stream (one uniform number per token, mapped to a token through the cumulative
distribution), so a sample does not depend on the rest of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from coterie.lm.ask.interface import Sampling
from coterie.lm.ask.prefix_cache import PrefixCache, make_kv_cache

Tokens = Sequence[int]


@dataclass
class DecodedSample:
    """One sample during decoding."""

    number: int  # its index among all samples
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: str = ""  # "" while it is decoded, then "stop" or "length"


@dataclass(frozen=True)
class StopCondition:
    """Conditions that end a sample before `max_tokens`."""

    tokens: frozenset[int]  # end-of-text ids
    stopped: Callable[[Sequence[int]], bool]  # whether the text of these tokens contains a stop string


def decode(
    model: Any,
    prefix_cache: PrefixCache,
    prompts: Sequence[Tokens],
    uniforms: np.ndarray,
    sampling: Sampling,
    stop: StopCondition,
) -> list[DecodedSample]:
    """Decode n samples of each of P prompts, prompt by prompt; `uniforms` `[P * n, max_tokens]` lie in [0, 1)."""
    per_prompt = len(uniforms) // len(prompts)
    samples = [DecodedSample(number) for number in range(len(uniforms))]
    active = samples
    with torch.inference_mode():
        logits, state = _prefill(model, prefix_cache, prompts)
        state.repeat(per_prompt)
        logits = logits.repeat_interleave(per_prompt, 0)
        for step in range(sampling.max_tokens):
            uniform = uniforms[[sample.number for sample in active], step]
            chosen, logprobs = sample_tokens(logits, torch.from_numpy(uniform).to(logits.device), sampling)
            _append(active, chosen.tolist(), logprobs.tolist(), sampling, stop)
            unfinished = [place for place, sample in enumerate(active) if not sample.finish]
            if not unfinished:
                break
            if len(unfinished) <= 0.75 * len(active):  # finished rows cost as much as unfinished ones
                state.select(torch.tensor(unfinished, device=logits.device))
                chosen = chosen[unfinished]
                active = [active[place] for place in unfinished]
            logits = state.step(model, chosen)
    return samples


def _append(
    active: list[DecodedSample], chosen: list[int], logprobs: list[float], sampling: Sampling, stop: StopCondition
) -> None:
    for sample, token, logprob in zip(active, chosen, logprobs):
        if sample.finish:
            continue
        sample.tokens.append(token)
        sample.logprobs.append(logprob)
        if token in stop.tokens or (sampling.stop and stop.stopped(sample.tokens)):
            sample.finish = "stop"
        elif len(sample.tokens) == sampling.max_tokens:
            sample.finish = "length"


@dataclass
class DecodingState:
    """The keys and values of the tokens read so far, for R rows."""

    cache: Any
    mask: torch.Tensor  # [R, T], 0 for padding
    position: torch.Tensor  # [R] of the next token

    def repeat(self, count: int) -> None:
        if count > 1:
            self.cache.batch_repeat_interleave(count)
            self.mask = self.mask.repeat_interleave(count, 0)
            self.position = self.position.repeat_interleave(count, 0)

    def select(self, rows: torch.Tensor) -> None:
        self.cache.batch_select_indices(rows)
        self.mask, self.position = self.mask[rows], self.position[rows]

    def step(self, model: Any, tokens: torch.Tensor) -> torch.Tensor:
        """Read one token per row and return the logits of the next one, `[R, V]`."""
        self.mask = torch.nn.functional.pad(self.mask, (0, 1), value=1)
        output = model(
            input_ids=tokens[:, None],
            attention_mask=self.mask,
            position_ids=self.position[:, None],
            past_key_values=self.cache,
            use_cache=True,
        )
        self.position = self.position + 1
        logits: torch.Tensor = output.logits[:, -1].float()
        return logits


def _prefill(model: Any, prefix_cache: PrefixCache, prompts: Sequence[Tokens]) -> tuple[torch.Tensor, DecodingState]:
    """Read the prompts, padded on the left after their shared prefix; return the logits of the next tokens `[P, V]`."""
    start, layers = prefix_cache.prefix_of(model, prompts)
    width = max(map(len, prompts)) - start
    gaps = [width + start - len(prompt) for prompt in prompts]
    ids = torch.tensor([[0] * gap + list(prompt[start:]) for gap, prompt in zip(gaps, prompts)])
    mask = torch.tensor([[1] * start + [0] * gap + [1] * (width - gap) for gap in gaps])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, start:]
    cache = make_kv_cache(model, layers, len(prompts))
    output = model(
        input_ids=ids.to(model.device),
        attention_mask=mask.to(model.device),
        position_ids=positions.to(model.device),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=model.device)
    return output.logits[:, -1].float(), DecodingState(cache, mask.to(model.device), lengths)


def sample_tokens(logits: torch.Tensor, uniform: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one token per row `[R]` and its log-probability at temperature 1."""
    if sampling.temperature == 0:
        chosen = logits.argmax(-1)
    else:
        weights = torch.softmax(logits.double() / sampling.temperature, -1)
        if sampling.top_k and sampling.top_k < weights.shape[-1]:
            least = weights.topk(sampling.top_k, -1).values[:, -1:]
            weights = torch.where(weights >= least, weights, 0)
        if sampling.top_p < 1:
            weights = torch.where(_nucleus(weights, sampling.top_p), weights, 0)
        cumulative = weights.cumsum(-1)
        at = uniform.to(cumulative.dtype)[:, None] * cumulative[:, -1:]
        chosen = torch.searchsorted(cumulative, at, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
    logprob = logits.gather(-1, chosen[:, None])[:, 0] - logits.logsumexp(-1)
    return chosen, logprob


def _nucleus(weights: torch.Tensor, top_p: float) -> torch.Tensor:
    """Mark the most likely tokens that together reach `top_p`, at least one per row."""
    ordered, order = weights.sort(-1, descending=True)
    inside = ordered.cumsum(-1) - ordered < top_p * weights.sum(-1, keepdim=True)
    return torch.zeros_like(inside).scatter(-1, order, inside)
