"""Completions from a local model: prompts read once, their samples drawn side by side.

Every sample draws from a stream of its own (one uniform number per token, turned into a token through the
cumulative distribution), so a sample does not depend on what else is in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from coterie.lm.backends.prefix import Prefixes, cache
from coterie.lm.interface import Sampling

Tokens = Sequence[int]


@dataclass
class Row:
    """One sample while it grows."""

    number: int  # where it stands among all rows
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: str = ""  # "" while it grows, then "stop" or "length"


@dataclass(frozen=True)
class Ends:
    """What ends a sample."""

    tokens: frozenset[int]  # ids that end every text
    stopped: Callable[[Sequence[int]], bool]  # whether the text of these tokens holds a stop word


def decode(
    model: Any, prefixes: Prefixes, prompts: Sequence[Tokens], draws: np.ndarray, sampling: Sampling, ends: Ends
) -> list[Row]:
    """P prompts x n samples as rows, prompt by prompt. `draws` [P * n, max_tokens] are uniform in [0, 1)."""
    num_envs = len(draws) // len(prompts)
    rows = [Row(number) for number in range(len(draws))]
    going = rows
    with torch.inference_mode():
        logits, state = _prefill(model, prefixes, prompts)
        state.repeat(num_envs)
        logits = logits.repeat_interleave(num_envs, 0)
        for step in range(sampling.max_tokens):
            uniform = draws[[row.number for row in going], step]
            chosen, logprobs = pick(logits, torch.from_numpy(uniform).to(logits.device), sampling)
            _grow(going, chosen.tolist(), logprobs.tolist(), sampling, ends)
            alive = [place for place, row in enumerate(going) if not row.finish]
            if not alive:
                break
            if len(alive) <= 0.75 * len(going):  # finished rows cost as much as growing ones
                state.select(torch.tensor(alive, device=logits.device))
                chosen = chosen[alive]
                going = [going[place] for place in alive]
            logits = state.step(model, chosen)
    return rows


def _grow(going: list[Row], chosen: list[int], logprobs: list[float], sampling: Sampling, ends: Ends) -> None:
    for row, token, logprob in zip(going, chosen, logprobs):
        if row.finish:
            continue
        row.tokens.append(token)
        row.logprobs.append(logprob)
        if token in ends.tokens or (sampling.stop and ends.stopped(row.tokens)):
            row.finish = "stop"
        elif len(row.tokens) == sampling.max_tokens:
            row.finish = "length"


@dataclass
class State:
    """What the model has read so far, in rows."""

    cache: Any
    mask: torch.Tensor  # [R, T], 1 where a token is one
    position: torch.Tensor  # [R] of the next token

    def repeat(self, num_envs: int) -> None:
        if num_envs > 1:
            self.cache.batch_repeat_interleave(num_envs)
            self.mask = self.mask.repeat_interleave(num_envs, 0)
            self.position = self.position.repeat_interleave(num_envs, 0)

    def select(self, rows: torch.Tensor) -> None:
        self.cache.batch_select_indices(rows)
        self.mask, self.position = self.mask[rows], self.position[rows]

    def step(self, model: Any, tokens: torch.Tensor) -> torch.Tensor:
        """Read one token per row; logits [R, V] of the next."""
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


def _prefill(model: Any, prefixes: Prefixes, prompts: Sequence[Tokens]) -> tuple[torch.Tensor, State]:
    """Read the prompts, padded on the left behind what they share; logits [P, V] of the first new tokens."""
    start, layers = prefixes.start(model, prompts)
    width = max(map(len, prompts)) - start
    gaps = [width + start - len(prompt) for prompt in prompts]
    ids = torch.tensor([[0] * gap + list(prompt[start:]) for gap, prompt in zip(gaps, prompts)])
    mask = torch.tensor([[1] * start + [0] * gap + [1] * (width - gap) for gap in gaps])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, start:]
    made = cache(model, layers, len(prompts))
    output = model(
        input_ids=ids.to(model.device),
        attention_mask=mask.to(model.device),
        position_ids=positions.to(model.device),
        past_key_values=made,
        use_cache=True,
        logits_to_keep=1,
    )
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=model.device)
    return output.logits[:, -1].float(), State(made, mask.to(model.device), lengths)


def pick(logits: torch.Tensor, uniform: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """One token per row [R] and its log-probability under the model itself."""
    if sampling.temperature == 0:
        chosen = logits.argmax(-1)
    else:
        weights = torch.softmax(logits.double() / sampling.temperature, -1)
        if sampling.top_k and sampling.top_k < weights.shape[-1]:
            least = weights.topk(sampling.top_k, -1).values[:, -1:]
            weights = torch.where(weights >= least, weights, 0)
        if sampling.top_p < 1:
            weights = torch.where(_nucleus(weights, sampling.top_p), weights, 0)
        heaps = weights.cumsum(-1)
        at = uniform.to(heaps.dtype)[:, None] * heaps[:, -1:]
        chosen = torch.searchsorted(heaps, at, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)
    logprob = logits.gather(-1, chosen[:, None])[:, 0] - logits.logsumexp(-1)
    return chosen, logprob


def _nucleus(weights: torch.Tensor, share: float) -> torch.Tensor:
    """The likeliest tokens that together reach the share, at least one."""
    ordered, order = weights.sort(-1, descending=True)
    inside = ordered.cumsum(-1) - ordered < share * weights.sum(-1, keepdim=True)
    return torch.zeros_like(inside).scatter(-1, order, inside)
