"""What a local model has read before: keys and values of token prefixes, the latest few.

Many states scored against one long prompt differ at the end only; the beginning is read once and kept.
What is kept is dropped as soon as the weights change (`fingerprint`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch

from coterie.lm.backends.packing import agreeing, shared_length

SHORTEST = 16  # tokens; reading less is quicker than looking after it
Layers = list[tuple[torch.Tensor, torch.Tensor]]  # per layer: keys, values [1, H, L, D]


class Prefixes:
    """Prefixes that were read, most recently used last."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.kept: OrderedDict[tuple[int, ...], Layers] = OrderedDict()
        self.version: object = None
        self.hits = self.misses = 0

    def start(self, model: Any, prompts: Sequence[Sequence[int]]) -> tuple[int, Layers]:
        """How many first tokens of all prompts are already read after this call, and their keys and values.

        At least one token of each prompt is left over: its answer is still to be asked for.
        """
        shared = min(shared_length(prompts), min(map(len, prompts)) - 1)
        if not self.size or shared < SHORTEST:
            return 0, []
        self._check(model)
        begin = tuple(prompts[0][:shared])
        best = max(self.kept, key=lambda tokens: agreeing(tokens, begin), default=())
        known = agreeing(best, begin)
        # reading the rest now costs a pass: worth it for several prompts, or where little is known
        if known >= SHORTEST and known * 2 >= shared and (shared - known) * (len(prompts) - 1) < 2 * SHORTEST:
            self.hits += 1
            self.kept.move_to_end(best)
            return known, cropped(self.kept[best], known)
        known = known if known >= SHORTEST else 0
        self.misses += 1
        layers = read(model, begin[known:], cropped(self.kept[best], known) if known else [])
        if known == len(best):
            self.kept.pop(best, None)  # the new one holds it
        self.kept[begin] = layers
        while len(self.kept) > self.size:
            self.kept.popitem(last=False)
        return shared, layers

    def _check(self, model: Any) -> None:
        version = fingerprint(model)
        if version != self.version:
            self.kept.clear()
            self.version = version


def cropped(layers: Layers, length: int) -> Layers:
    """The first `length` tokens, as views."""
    return [(keys[:, :, :length], values[:, :, :length]) for keys, values in layers]


def cache(model: Any, layers: Layers, rows: int = 1) -> Any:
    """A cache that begins with what was read, for so many rows; what is kept stays untouched."""
    from transformers import DynamicCache

    made = DynamicCache(config=model.config)
    for number, (keys, values) in enumerate(layers):
        made.update(keys.expand(rows, -1, -1, -1), values.expand(rows, -1, -1, -1), number)
    return made


def read(model: Any, tokens: Sequence[int], before: Layers) -> Layers:
    """Keys and values of `before` and of the tokens after it."""
    device = model.device
    made = cache(model, before)
    begin = before[0][0].shape[2] if before else 0
    positions = torch.arange(begin, begin + len(tokens), device=device)[None]
    ids = torch.tensor([list(tokens)], device=device)
    with torch.inference_mode():
        model(input_ids=ids, position_ids=positions, past_key_values=made, use_cache=True, logits_to_keep=1)
    return [(layer.keys, layer.values) for layer in made.layers]


Fingerprint = tuple[tuple[tuple[int, int], ...], tuple[str, ...], bytes]


def fingerprint(model: Any) -> Fingerprint:
    """Changes when weights are trained, written to or replaced, or when an adapter is switched.

    PyTorch counts writes, except those of fused optimisers: hence a look at a few numbers of every weight.
    """
    weights = list(model.parameters())
    versions = tuple((weight.data_ptr(), weight._version) for weight in weights)
    switches = tuple(  # adapters of the peft library, which say so on their layers
        str((vars(module).get("_active_adapter"), vars(module).get("_disable_adapters"), module.merged_adapters))
        for module in model.modules()
        if "_active_adapter" in vars(module)
    )
    samples: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for weight in weights:
        samples.setdefault((weight.dtype, weight.device), []).append(weight.detach().reshape(-1)[:32])
    looked = b"".join(torch.cat(some).cpu().view(torch.uint8).numpy().tobytes() for some in samples.values())
    return versions, switches, looked
