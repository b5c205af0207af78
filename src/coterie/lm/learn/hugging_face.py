"""Any causal language model of Hugging Face as a network that writes answers and is trained.

`lm/learn/transformer.py` is our own network for models of the Llama family, which the engine of a GPU reads. Other families
are read by the code of transformers itself, with the same sampling, losses and adapters. What they have in common is
`position_ids` and an attention mask that says which token sees which; whether a model uses both is tried when it is
loaded.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.lm.learn.lora import LoraAdapterSettings, target_names
from coterie.lm.learn.network import CausalNetwork

TOLERANCE = 1e-3  # of logits, as a share of the largest
LARGE = 1000.0  # hidden states are enlarged so much to see what bounds logits
BY_PLACE = ("window_size", "keep_window_size", "index_topk", "index_topk_blocks")  # keys are chosen by their place


class HuggingFaceNetwork(CausalNetwork):
    """A causal language model of transformers."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.compute = model.eval(), torch.float32
        self.adapter: int | None = None  # of the pass that is under way

    @property
    def context(self) -> int:
        """Most positions: neither windows that slide are passed, nor a switch to other frequencies (longrope)."""
        config = self.model.config.get_text_config()
        most = int(config.max_position_embeddings)
        rope = getattr(config, "rope_parameters", None) or {}
        kinds = [rope, *(kind for kind in rope.values() if isinstance(kind, dict))]  # some have one per kind of layer
        switches = [kind["original_max_position_embeddings"] for kind in kinds if kind.get("rope_type") == "longrope"]
        return min(most, getattr(config, "sliding_window", None) or most, *switches)

    @property
    def device(self) -> torch.device:
        return self.output_embedding.device

    @property
    def output_embedding(self) -> Tensor:
        head: Tensor = self.model.get_output_embeddings().weight
        return head

    def forward(
        self,
        tokens: Tensor,
        adapter: int | None = None,
        positions: Tensor | None = None,
        mask: Any = None,
        caches: Sequence[ModelKeys] | None = None,
    ) -> Tensor:
        given: dict[str, Any] = {"position_ids": positions, "use_cache": caches is not None}
        if mask is not None:  # what is added to the attention's logits
            given["attention_mask"] = torch.zeros(mask.shape, dtype=self.compute, device=mask.device).masked_fill(
                ~mask, torch.finfo(self.compute).min
            )
        if caches is not None:
            given["past_key_values"] = caches[0].keys
        self.adapter = adapter
        try:
            with self._precision():
                hidden: Tensor = self.model.base_model(input_ids=tokens, **given).last_hidden_state
        finally:
            self.adapter = None
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        with self._precision():
            logits: Tensor = self.model.get_output_embeddings()(hidden)
        return logits.float()

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(self.device.type, self.compute, enabled=self.compute != torch.float32)

    def new_caches(self, rows: int, size: int) -> list[ModelKeys]:
        return [ModelKeys()]

    def add_adapters(self, count: int, rank: int, alpha: float, seeds: list[int]) -> None:
        self.requires_grad_(False)
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        names = target_names(self.model, LoraAdapterSettings())
        for linear in (self.model.get_submodule(name) for name in names):
            first, second = linear.weight.shape
            outputs, inputs = (first, second) if isinstance(linear, nn.Linear) else (second, first)  # Conv1D of GPT-2
            linear.lora_a, linear.lora_b = nn.ParameterList(), nn.ParameterList()
            for random in generators:
                down = torch.empty(rank, inputs).uniform_(-(inputs**-0.5), inputs**-0.5, generator=random)
                linear.lora_a.append(nn.Parameter(down.to(linear.weight.device)))
                linear.lora_b.append(nn.Parameter(torch.zeros((outputs, rank), device=linear.weight.device)))
            linear.register_forward_hook(self._adapted(alpha / rank))

    def _adapted(self, scale: float) -> Any:
        """W x + (alpha / r) B A x, after W x; in the precision of the pass."""

        def add(linear: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            if self.adapter is None:
                return output
            down, up = linear.lora_a[self.adapter], linear.lora_b[self.adapter]
            x = inputs[0]
            return output + scale * F.linear(F.linear(x, down.to(x.dtype)), up.to(x.dtype))

        return add

    def adapter_parameters(self, adapter: int) -> list[nn.Parameter]:
        adapted: list[Any] = [module for module in self.modules() if hasattr(module, "lora_a")]
        return [pair[adapter] for module in adapted for pair in (module.lora_a, module.lora_b)]

    def state_dict(self, *args: Any, **settings: Any) -> Any:
        """Weights by name; a head that is tied to the embedding is the same weights, under that name alone."""
        known = {name for name, _ in itertools.chain(self.named_parameters(), self.named_buffers())}
        return {name: weights for name, weights in super().state_dict(*args, **settings).items() if name in known}


class ModelKeys:
    """Keys and values of all layers of a model."""

    def __init__(self) -> None:
        from transformers import DynamicCache

        self.keys = DynamicCache()  # without the model's configuration: all of it is kept

    @property
    def filled(self) -> int:
        """Positions so far."""
        return int(self.keys.get_seq_length())

    def repeated(self, times: int, rows: Tensor | None = None) -> Self:
        """Every row `times` times, or these rows alone; in place."""
        if rows is None:
            self.keys.batch_repeat_interleave(times)
        else:
            self.keys.batch_select_indices(rows)
        return self


@torch.no_grad()
def demand_positions_and_masks(network: HuggingFaceNetwork) -> None:
    """Raise unless the model uses `position_ids` and masks, and its head alone makes logits of hidden states.

    Two answers to one prompt, read in one row and token by token, must have the logits that the model itself gives
    them when it reads each alone. Attention that chooses keys by their place in the row shows in long rows only.
    """
    from coterie.lm.learn.sampling import SampleSpec, grade, sample

    config = network.model.config.get_text_config()
    if by_place := [name for name in BY_PLACE if getattr(config, name, None)]:
        raise ValueError(f"its attention chooses keys by their place in the row ({', '.join(by_place)})")
    random = np.random.default_rng(0)
    try:
        vocabulary = len(network.output_embedding)
        head_alone = _makes_logits_alone(network)
        if network.context < 8:
            raise ValueError(f"it reads {network.context} tokens at most")
        prompts = [random.integers(0, vocabulary, length).tolist() for length in (3, 5)]
        answers = random.integers(0, vocabulary, (2, 2, 3)).astype(np.int32)
        graded = grade(network, prompts, answers).log_probs.cpu().numpy()
        spec = SampleSpec(2, 3, 1.0, -1)
        written = sample(network, prompts, spec, random.random((4, 3), np.float32))
    except (TypeError, ValueError, AttributeError, RuntimeError, LookupError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"its code does not take position_ids, a 4D attention mask and a cache: {reason}") from error
    if not head_alone:
        raise ValueError("its code changes hidden states before its head, or logits after it")
    for tokens, found in ((answers, graded), (written.tokens, written.log_probs)):
        for group, prompt in enumerate(prompts):
            for answer, log_probs in zip(tokens[group], found[group], strict=True):
                whole = torch.tensor([[*prompt, *answer.tolist()]], device=network.device)
                logits = network.model(input_ids=whole).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
                wanted = logits.gather(1, whole[0, len(prompt) :, None])[:, 0].cpu().numpy()
                if np.abs(wanted - log_probs).max() > TOLERANCE * max(1.0, np.abs(wanted).max()):
                    raise ValueError("its code does not follow position_ids and the attention mask")


def _makes_logits_alone(network: HuggingFaceNetwork) -> bool:
    """Whether the head alone makes logits, of large hidden states too: a bound hardly changes small logits."""
    tokens = torch.arange(4, device=network.device)[None]  # several: that of padding is often nothing
    head = network.model.get_output_embeddings()
    hook = head.register_forward_pre_hook(lambda _, inputs: (LARGE * inputs[0], *inputs[1:]))
    try:
        wanted, found = network.model(input_ids=tokens).logits.float(), network.logits(network(tokens))
    finally:
        hook.remove()
    return bool((wanted - found).abs().max() <= TOLERANCE * wanted.abs().max())
