"""Caches the keys and values of prompt prefixes that a local model has read.

Many states scored with one long prompt differ only at its end; the shared prefix is read once. Entries are dropped when
the weights change (`fingerprint`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch

from coterie.lm.ask.packing import common_prefix_length, shared_prefix_length

MIN_PREFIX = 16  # tokens; reading fewer is faster than caching them
Layers = list[tuple[torch.Tensor, torch.Tensor]]  # per layer: keys, values [1, H, L, D]


class PrefixCache:
    """Keys and values of the most recently used prefixes."""

    def __init__(self, size: int) -> None:
        self.size = size  # largest number of prefixes
        self.entries: OrderedDict[tuple[int, ...], Layers] = OrderedDict()  # most recently used last
        self.version: object = None  # fingerprint of the weights that made the entries
        self.hits = self.misses = 0

    def prefix_of(self, model: Any, prompts: Sequence[Sequence[int]]) -> tuple[int, Layers]:
        """Return how many tokens of the shared prefix of all prompts are read, and their keys and values.

        Reads the prefix if it is not cached. At least one token of each prompt stays unread, because the model
        predicts the next token from it.
        """
        shared = min(shared_prefix_length(prompts), min(map(len, prompts)) - 1)
        if not self.size or shared < MIN_PREFIX:
            return 0, []
        self._drop_stale(model)
        prefix = tuple(prompts[0][:shared])
        best = max(self.entries, key=lambda tokens: common_prefix_length(tokens, prefix), default=())
        known = common_prefix_length(best, prefix)
        # reading the rest takes an extra pass, which pays for several prompts or where little is cached
        if known >= MIN_PREFIX and known * 2 >= shared and (shared - known) * (len(prompts) - 1) < 2 * MIN_PREFIX:
            self.hits += 1
            self.entries.move_to_end(best)
            return known, crop(self.entries[best], known)
        known = known if known >= MIN_PREFIX else 0
        self.misses += 1
        layers = read_tokens(model, prefix[known:], crop(self.entries[best], known) if known else [])
        if known == len(best):
            self.entries.pop(best, None)  # the new entry contains it
        self.entries[prefix] = layers
        while len(self.entries) > self.size:
            self.entries.popitem(last=False)
        return shared, layers

    def _drop_stale(self, model: Any) -> None:
        version = fingerprint(model)
        if version != self.version:
            self.entries.clear()
            self.version = version


def crop(layers: Layers, length: int) -> Layers:
    """Return views of the first `length` tokens."""
    return [(keys[:, :, :length], values[:, :, :length]) for keys, values in layers]


def make_kv_cache(model: Any, layers: Layers, rows: int = 1) -> Any:
    """Return a transformers cache for `rows` rows that starts with these keys and values, which stay unchanged."""
    from transformers import DynamicCache

    made = DynamicCache(config=model.config)
    for number, (keys, values) in enumerate(layers):
        made.update(keys.expand(rows, -1, -1, -1), values.expand(rows, -1, -1, -1), number)
    return made


def read_tokens(model: Any, tokens: Sequence[int], before: Layers) -> Layers:
    """Return the keys and values of `before` and of the tokens after it."""
    device = model.device
    made = make_kv_cache(model, before)
    begin = before[0][0].shape[2] if before else 0
    positions = torch.arange(begin, begin + len(tokens), device=device)[None]
    ids = torch.tensor([list(tokens)], device=device)
    with torch.inference_mode():
        model(input_ids=ids, position_ids=positions, past_key_values=made, use_cache=True, logits_to_keep=1)
    return [(layer.keys, layer.values) for layer in made.layers]


Fingerprint = tuple[tuple[tuple[int, int], ...], tuple[str, ...], bytes]


def fingerprint(model: Any) -> Fingerprint:
    """Return a value that changes when weights are trained, overwritten or replaced, or adapters are switched.

    PyTorch counts writes to a tensor, except those of fused optimisers; so the fingerprint also contains the first few
    numbers of every weight.
    """
    weights = list(model.parameters())
    versions = tuple((weight.data_ptr(), weight._version) for weight in weights)
    switches = tuple(  # adapters of the peft library, which store their state and their scale on the layers
        str(
            (
                *(vars(module).get(name) for name in ("_active_adapter", "_disable_adapters", "scaling")),
                module.merged_adapters,
            )
        )
        for module in model.modules()
        if "_active_adapter" in vars(module)
    )
    samples: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for weight in weights:
        samples.setdefault((weight.dtype, weight.device), []).append(weight.detach().reshape(-1)[:32])
    first_numbers = b"".join(torch.cat(some).cpu().view(torch.uint8).numpy().tobytes() for some in samples.values())
    return versions, switches, first_numbers
