"""Log-probabilities of choices after prompts from a local model, packed or row by row.

Packed scoring reads every prompt once (see packing.py). Row-by-row scoring reads prompt and choice together, for models
whose layers do not all have full attention (sliding windows, recurrent layers).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from coterie.lm.ask.packing import (
    PackedRow,
    Tokens,
    group_by_prefix,
    pack,
    shared_prefix_length,
    split_by_size,
)
from coterie.lm.ask.prefix_cache import Layers, PrefixCache, make_kv_cache

Choices = Sequence[Sequence[Tokens]]


def score_packed(
    model: Any, prefix_cache: PrefixCache, prompts: Sequence[Tokens], choices: Choices, limit: int
) -> list[list[float]]:
    """Return one log-probability for each choice of each prompt; a pass reads at most about `limit` tokens."""
    found: list[list[float]] = [[] for _ in prompts]
    with torch.inference_mode():
        for group in group_by_prefix(prompts):
            scored = _score_group(model, prefix_cache, [prompts[i] for i in group], [choices[i] for i in group], limit)
            for number, row in zip(group, scored):
                found[number] = row
    return found


def _score_group(
    model: Any, prefix_cache: PrefixCache, prompts: Sequence[Tokens], choices: Choices, limit: int
) -> list[list[float]]:
    found: list[list[float]] = []
    start, layers = prefix_cache.prefix_of(model, prompts)
    start = start or _shared_tokens(prompts)  # a prefix that is not cached is still read once per pass
    for begin, end in split_by_size(prompts, choices, start, limit):
        packed = pack(prompts[begin:end], choices[begin:end], start, cached=bool(layers))
        values = iter(_choice_sums(model, packed, layers, choices[begin:end]).tolist())
        found += [[next(values) for _ in row] for row in choices[begin:end]]
    return found


def score_with_gradients(model: Any, prompts: Sequence[Tokens], choices: Choices) -> torch.Tensor:
    """Return `[P, C]` with gradients, in one packed pass; -inf beyond a prompt's choices."""
    sums = _choice_sums(model, pack(prompts, choices, _shared_tokens(prompts), cached=False), [], choices)
    return _pad(sums, choices)


def _shared_tokens(prompts: Sequence[Tokens]) -> int:
    """Return the number of first tokens that all prompts share; at least one of each is left over."""
    return min(shared_prefix_length(prompts), min(map(len, prompts)) - 1)


def _choice_sums(model: Any, packed: PackedRow, layers: Layers, choices: Choices) -> torch.Tensor:
    """Return the log-probability of every choice in order, summed over its tokens: `[number of choices]`."""
    device = model.device
    ids, positions, keep = (torch.from_numpy(a).to(device) for a in (packed.tokens, packed.positions, packed.keep))
    mask = torch.zeros(packed.mask.shape, dtype=model.dtype, device=device)
    mask.masked_fill_(~torch.from_numpy(packed.mask).to(device), torch.finfo(model.dtype).min)
    logits = model(
        input_ids=ids[None],
        position_ids=positions[None],
        attention_mask=mask[None, None],
        past_key_values=make_kv_cache(model, layers) if layers else None,
        use_cache=bool(layers),
        logits_to_keep=keep,
    ).logits[0]
    place, target = torch.from_numpy(packed.place).to(device), torch.from_numpy(packed.target).to(device)
    logits = logits.float()
    logprobs = logits[place, target] - logits.logsumexp(-1)[place]
    sizes = torch.tensor([len(row) for row in choices])
    owner = torch.from_numpy(packed.owner)
    cell = ((sizes.cumsum(0) - sizes)[owner[:, 0]] + owner[:, 1]).to(device)
    return torch.zeros(sum(map(len, choices)), device=device).index_add(0, cell, logprobs)


def _pad(sums: torch.Tensor, choices: Choices) -> torch.Tensor:
    width = max(map(len, choices))
    rows = torch.split(sums, [len(row) for row in choices])
    return torch.stack([torch.nn.functional.pad(row, (0, width - len(row)), value=-torch.inf) for row in rows])


def score_rows(model: Any, prompts: Sequence[Tokens], choices: Choices, batch_size: int = 1) -> list[list[float]]:
    """Return what `score_packed` does, from rows that hold a whole prompt and one choice, `batch_size` per pass."""
    rows = [
        (number, [*prompt, *choice], len(choice))
        for number, (prompt, options) in enumerate(zip(prompts, choices))
        for choice in options
    ]
    found: list[list[float]] = [[] for _ in prompts]
    with torch.inference_mode():
        for begin in range(0, len(rows), batch_size):
            part = rows[begin : begin + batch_size]
            sums = row_logprobs(model, [tokens for _, tokens, _ in part], [size for *_, size in part])
            for (number, _, _), value in zip(part, sums.tolist()):
                found[number].append(value)
    return found


def row_logprobs(model: Any, rows: Sequence[Tokens], sizes: Sequence[int]) -> torch.Tensor:
    """Return the log-probability of the last `size` tokens of each row, `[R]`."""
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + list(row) for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    most = max(sizes)
    output = model(
        input_ids=ids.to(model.device),
        attention_mask=mask.to(model.device),
        position_ids=(mask.cumsum(-1) - 1).clamp(min=0).to(model.device),
        logits_to_keep=most + 1,
        use_cache=False,
    )
    logprobs = output.logits[:, :-1].float().log_softmax(-1)  # [R, most, V]
    of_tokens = logprobs.gather(-1, ids[:, -most:, None].to(model.device))[..., 0]
    counted = torch.arange(most) >= most - torch.tensor(sizes)[:, None]
    return (of_tokens * counted.to(model.device)).sum(-1)
