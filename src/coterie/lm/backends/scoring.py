"""Log-probabilities of choices after prompts, from a local model: packed, and the plain way.

The packed way reads every prompt once (see packing.py); the plain way is one row for each choice, for
models whose layers do not all attend to everything (sliding windows, recurrent layers).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from coterie.lm.backends.packing import Pack, Tokens, chunks, groups, pack, shared_length
from coterie.lm.backends.prefix import Layers, Prefixes, cache

Choices = Sequence[Sequence[Tokens]]


def score_packed(
    model: Any, prefixes: Prefixes, prompts: Sequence[Tokens], choices: Choices, limit: int
) -> list[list[float]]:
    """One log-probability for each choice of each prompt."""
    found: list[list[float]] = [[] for _ in prompts]
    with torch.inference_mode():
        for group in groups(prompts):
            scored = _score_group(model, prefixes, [prompts[i] for i in group], [choices[i] for i in group], limit)
            for number, mine in zip(group, scored):
                found[number] = mine
    return found


def _score_group(
    model: Any, prefixes: Prefixes, prompts: Sequence[Tokens], choices: Choices, limit: int
) -> list[list[float]]:
    found: list[list[float]] = []
    start, layers = prefixes.start(model, prompts)
    start = start or _in_common(prompts)  # what is not kept is still read once for each pass
    for begin, end in chunks(prompts, choices, start, limit):
        packed = pack(prompts[begin:end], choices[begin:end], start, read=bool(layers))
        cells = iter(_summed(model, packed, layers, choices[begin:end]).tolist())
        found += [[next(cells) for _ in mine] for mine in choices[begin:end]]
    return found


def score_differentiably(model: Any, prompts: Sequence[Tokens], choices: Choices) -> torch.Tensor:
    """[P, C] with gradients; -inf where a prompt has fewer choices. What prompts share is read once."""
    sums = _summed(model, pack(prompts, choices, _in_common(prompts), read=False), [], choices)
    return _padded(sums, choices)


def _in_common(prompts: Sequence[Tokens]) -> int:
    """First tokens that all prompts share; at least one of each is left over."""
    return min(shared_length(prompts), min(map(len, prompts)) - 1)


def _summed(model: Any, packed: Pack, layers: Layers, choices: Choices) -> torch.Tensor:
    """[number of choices] in order, each summed over its tokens."""
    device = model.device
    ids, positions, keep = (torch.from_numpy(a).to(device) for a in (packed.tokens, packed.positions, packed.keep))
    mask = torch.zeros(packed.mask.shape, dtype=model.dtype, device=device)
    mask.masked_fill_(~torch.from_numpy(packed.mask).to(device), torch.finfo(model.dtype).min)
    logits = model(
        input_ids=ids[None],
        position_ids=positions[None],
        attention_mask=mask[None, None],
        past_key_values=cache(model, layers) if layers else None,
        use_cache=bool(layers),
        logits_to_keep=keep,
    ).logits[0]
    place, target = torch.from_numpy(packed.place).to(device), torch.from_numpy(packed.target).to(device)
    logits = logits.float()
    each = logits[place, target] - logits.logsumexp(-1)[place]
    sizes = torch.tensor([len(mine) for mine in choices])
    owner = torch.from_numpy(packed.owner)
    cell = ((sizes.cumsum(0) - sizes)[owner[:, 0]] + owner[:, 1]).to(device)
    return torch.zeros(sum(map(len, choices)), device=device).index_add(0, cell, each)


def _padded(sums: torch.Tensor, choices: Choices) -> torch.Tensor:
    widest = max(map(len, choices))
    rows = torch.split(sums, [len(mine) for mine in choices])
    return torch.stack([torch.nn.functional.pad(row, (0, widest - len(row)), value=-torch.inf) for row in rows])


def score_plainly(model: Any, prompts: Sequence[Tokens], choices: Choices, rows: int = 1) -> list[list[float]]:
    """The same, every choice with its whole prompt in a row of its own, `rows` of them at once."""
    whole = [
        (number, [*prompt, *choice], len(choice))
        for number, (prompt, mine) in enumerate(zip(prompts, choices))
        for choice in mine
    ]
    found: list[list[float]] = [[] for _ in prompts]
    with torch.inference_mode():
        for begin in range(0, len(whole), rows):
            part = whole[begin : begin + rows]
            sums = plain_rows(model, [tokens for _, tokens, _ in part], [size for *_, size in part])
            for (number, _, _), one in zip(part, sums.tolist()):
                found[number].append(one)
    return found


def plain_rows(model: Any, rows: Sequence[Tokens], sizes: Sequence[int]) -> torch.Tensor:
    """[R]: log-probability of the last `size` tokens of each row."""
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
    each = logprobs.gather(-1, ids[:, -most:, None].to(model.device))[..., 0]
    counted = torch.arange(most) >= most - torch.tensor(sizes)[:, None]
    return (each * counted.to(model.device)).sum(-1)
