"""A decoder-only transformer of the Llama family, written out: small ones from scratch, larger ones from weights.

Rotary positions (Su et al. 2021, eq. 34), RMS normalisation (Zhang and Sennrich 2019, eq. 4), SwiGLU layers (Shazeer
2020, eq. 6), grouped-query attention. Projections that read the same input are one matrix. Low-rank adapters
(Hu et al. 2021, eq. 3) hang on every projection: W x + (alpha / r) B A x, one pair (A, B) per adapter, so that several
roles share the base weights in memory.

This is for teams (`policies/causal_lm/`, `algorithms/at_grpo/`): on a GPU the engine answers for all roles in one batch,
each row with its own adapter. Adapters of a single policy, on any transformers model, are in `lm/learn/lora.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.core.validation import fits_in_memory, positive, whole
from coterie.lm.learn.network import CausalNetwork


@dataclass(frozen=True)
class TransformerShape:
    """Sizes of a transformer."""

    vocabulary: int
    layers: int = 2
    width: int = 64
    heads: int = 4
    kv_heads: int = 4  # heads of keys and values; fewer than `heads`: grouped-query attention
    hidden: int = 128  # of the feed-forward layers
    context: int = 256  # positions
    rope_theta: float = 10_000.0
    epsilon: float = 1e-5  # of the normalisation
    tied: bool = True  # input and output embeddings are the same matrix

    def __post_init__(self) -> None:
        for name in ("vocabulary", "layers", "width", "heads", "kv_heads", "hidden", "context"):
            whole(name, getattr(self, name))
            positive(name, getattr(self, name))
        if self.width % self.heads or self.heads % self.kv_heads or self.width // self.heads % 2:
            raise ValueError(
                f"width ({self.width}) must be an even multiple of heads ({self.heads}), and heads a multiple of "
                f"kv_heads ({self.kv_heads})"
            )

    def demand_memory(self) -> None:
        """Raise unless training from scratch fits into this machine's memory."""
        # weights, gradients, and the two moments of Adam, 4 bytes each; two tables of angles
        weights = self.vocabulary + self.layers * (
            2 * self.width + 2 * self.kv_heads * self.head_size + 3 * self.hidden
        )
        size = 16.0 * self.width * weights + 8.0 * self.context * self.head_size
        fits_in_memory("a transformer of these sizes", size, "choose fewer layers, a smaller width or context")

    @property
    def head_size(self) -> int:
        """Numbers per head."""
        return self.width // self.heads


class Projection(nn.Module):
    """A linear map without bias, and its adapters."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.lora_a, self.lora_b = nn.ParameterList(), nn.ParameterList()  # of each adapter: A [r, in], B [out, r]
        self.scale = 0.0

    def forward(self, x: Tensor, adapter: int | None) -> Tensor:
        out = F.linear(x, self.weight.to(x.dtype))
        if adapter is None:
            return out
        down, up = self.lora_a[adapter].to(x.dtype), self.lora_b[adapter].to(x.dtype)
        return out + self.scale * F.linear(F.linear(x, down), up)


class Layer(nn.Module):
    """Attention and a feed-forward network, each on normalised inputs and added to them."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.shape = shape
        own, shared = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
        self.attention_norm, self.feed_norm = (nn.Parameter(torch.ones(shape.width)) for _ in range(2))
        self.query_key_value = Projection(shape.width, own + 2 * shared)
        self.output = Projection(own, shape.width)
        self.gate_up = Projection(shape.width, 2 * shape.hidden)
        self.down = Projection(shape.hidden, shape.width)

    def forward(
        self, x: Tensor, more: Tensor | None, turn: Rotation, adapter: int | None, cache: Cache | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the residual stream and what the feed-forward network adds to it; `more` is added to `x` first."""
        x, normed = add_norm(x, more, self.attention_norm, self.shape.epsilon)
        mixed = self._mix(self.query_key_value(normed, adapter), turn, cache)
        x, normed = add_norm(x, self.output(mixed, adapter), self.feed_norm, self.shape.epsilon)
        return x, self.down(gate(self.gate_up(normed, adapter)), adapter)

    def _mix(self, heads: Tensor, turn: Rotation, cache: Cache | None) -> Tensor:
        """Attention over queries, keys and values that stand side by side `[R, L, (heads + 2 kv_heads) · size]`."""
        rows, length, _ = heads.shape
        shape = self.shape
        heads = heads.view(rows, length, shape.heads + 2 * shape.kv_heads, shape.head_size)
        mask = turn.mask
        if isinstance(mask, Spans):
            if heads.is_cuda:
                from coterie.lm.learn.attention_kernels import attend  # Triton exists only where a GPU may

                mixed = attend(heads[0], turn.cosine[0, 0], turn.sine[0, 0], mask, shape.heads)
                return mixed.view(rows, length, -1)
            mask = mask.mask()
        heads = heads.transpose(1, 2)
        turned, value = heads.split((shape.heads + shape.kv_heads, shape.kv_heads), dim=1)
        query, key = rotate(turned, turn).split((shape.heads, shape.kv_heads), dim=1)
        if cache is not None:
            key, value = cache.extend(key, value)
        return attention(query, key, value, mask).transpose(1, 2).reshape(rows, length, -1)


class Spans(NamedTuple):
    """The keys that each token sees in one row of prompts, each followed by answers to it, without gaps.

    Token i sees the keys `begin[i] <= j < prompt_end[i]` of its prompt and the keys `own[i] <= j <= i`.
    """

    begin: Tensor  # [M] int32: where its prompt begins
    prompt_end: Tensor  # [M] int32: where its prompt ends; for a token of a prompt, where that begins
    own: Tensor  # [M] int32: where its answer begins; for a token of a prompt, where that begins
    last: Tensor  # [M] int32: the end of the tokens that see it

    def mask(self) -> Tensor:
        """The same as a table `[1, 1, M, M]` bool."""
        at = torch.arange(len(self.begin), device=self.begin.device)
        prompt = (at >= self.begin[:, None]) & (at < self.prompt_end[:, None])
        return (prompt | ((at >= self.own[:, None]) & (at <= at[:, None])))[None, None]


@dataclass(frozen=True)
class Rotation:
    """Rotations of the positions `[R or 1, 1, L, head_size]`, and who may look at whom."""

    cosine: Tensor
    sine: Tensor
    mask: Tensor | Spans | None  # [R, 1, L, S] bool; None: every position looks back at all earlier ones


class Cache(Protocol):
    """Keys and values of one layer."""

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add positions; returns all so far."""
        ...


class LayerCache:
    """Keys and values of one layer, `[R, kv_heads, S, head_size]`, filled from the left."""

    def __init__(self, rows: int, shape: TransformerShape, size: int, like: Tensor) -> None:
        self.key = like.new_zeros((rows, shape.kv_heads, size, shape.head_size))
        self.value = torch.zeros_like(self.key)
        self.filled = 0

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add positions; returns all so far."""
        end = self.filled + key.shape[2]
        self.key[:, :, self.filled : end], self.value[:, :, self.filled : end] = key, value
        self.filled = end
        return self.key[:, :, :end], self.value[:, :, :end]

    def repeated(self, times: int, rows: Tensor | None = None) -> LayerCache:
        """A cache in which every row stands `times` times; or these rows alone."""
        twin = LayerCache.__new__(LayerCache)
        pick = (lambda a: a.repeat_interleave(times, dim=0)) if rows is None else (lambda a: a[rows])
        twin.key, twin.value, twin.filled = pick(self.key), pick(self.value), self.filled
        return twin


class Transformer(CausalNetwork):
    """Token ids to the logits of the next token.

    `compute` is the precision of products and activations. Weights are cast to it where they are used and keep their
    own, so that gradients and an optimiser's small steps are those of float32 weights.
    """

    def __init__(self, shape: TransformerShape, seed: int = 0) -> None:
        super().__init__()
        self.shape, self.compute = shape, torch.float32
        self.embedding = nn.Parameter(torch.empty(shape.vocabulary, shape.width))
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.Parameter(torch.ones(shape.width))
        if not shape.tied:
            self.unembedding = nn.Parameter(torch.empty(shape.vocabulary, shape.width))
        self.adapters = 0
        self._initialise(seed)
        # In float32 as in other implementations: pretrained models were trained with these roundings.
        pairs = torch.arange(0, shape.head_size, 2, dtype=torch.int64).float() / shape.head_size
        angles = torch.arange(shape.context).float()[:, None] * (1.0 / shape.rope_theta**pairs)
        angles = torch.cat([angles, angles], dim=1)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def _initialise(self, seed: int) -> None:
        """Normal weights; those that add to the residual stream are smaller, as in GPT-2."""
        random = torch.Generator().manual_seed(seed)
        nn.init.normal_(self.embedding, std=0.02, generator=random)
        if not self.shape.tied:
            nn.init.normal_(self.unembedding, std=0.02, generator=random)
        for name, module in self.named_modules():
            if isinstance(module, Projection):
                small = math.sqrt(2 * self.shape.layers) if name.endswith(("output", "down")) else 1.0
                nn.init.normal_(module.weight, std=module.weight.shape[1] ** -0.5 / small, generator=random)

    def projections(self) -> Iterator[Projection]:
        """All linear maps of the layers."""
        for module in self.modules():
            if isinstance(module, Projection):
                yield module

    def add_adapters(self, count: int, rank: int, alpha: float, seeds: list[int]) -> None:
        """Freeze the base and hang adapters on every projection; a new adapter changes nothing (B = 0)."""
        for parameter in self.parameters():
            parameter.requires_grad_(False)
        self.adapters = count
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        for projection in self.projections():
            outputs, inputs = projection.weight.shape
            projection.scale = alpha / rank
            for random in generators:
                down = torch.empty(rank, inputs).uniform_(-(inputs**-0.5), inputs**-0.5, generator=random)
                projection.lora_a.append(nn.Parameter(down.to(projection.weight.device)))
                projection.lora_b.append(nn.Parameter(torch.zeros((outputs, rank), device=projection.weight.device)))

    def adapter_parameters(self, adapter: int) -> list[nn.Parameter]:
        """The parameters of one adapter."""
        return [pair[adapter] for p in self.projections() for pair in (p.lora_a, p.lora_b)]

    def forward(
        self,
        tokens: Tensor,  # [R, L]
        adapter: int | None = None,
        positions: Tensor | None = None,  # [R, L]; None: 0, 1, …
        mask: Tensor | Spans | None = None,  # [R, 1, L, S] bool; spans: of a single row
        caches: Sequence[Cache] | None = None,
    ) -> Tensor:
        """Return the hidden states `[R, L, width]`; `logits` makes logits of them."""
        if positions is None:
            cosine, sine = (table[None, None, : tokens.shape[1]] for table in (self.cosine, self.sine))  # type: ignore[index]  # buffers
        else:
            cosine, sine = (table[positions].unsqueeze(1) for table in (self.cosine, self.sine))  # type: ignore[index]  # buffers
        x = F.embedding(tokens, self.embedding).to(self.compute)
        turn = Rotation(cosine.to(x.dtype), sine.to(x.dtype), mask)
        more: Tensor | None = None
        for i, layer in enumerate(self.layers):
            x, more = layer(x, more, turn, adapter, None if caches is None else caches[i])
        return add_norm(x, more, self.norm, self.shape.epsilon)[1]

    @property
    def context(self) -> int:
        """Most positions."""
        return self.shape.context

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.embedding.device

    @property
    def output_embedding(self) -> nn.Parameter:
        """The matrix `[V, W]` that makes logits."""
        return self.embedding if self.shape.tied else self.unembedding

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of the next token, in float32."""
        return F.linear(hidden, self.output_embedding.to(hidden.dtype)).float()

    def new_caches(self, rows: int, size: int) -> list[LayerCache]:
        """Empty caches for all layers."""
        like = self.embedding.new_empty(0, dtype=self.compute)
        return [LayerCache(rows, self.shape, size, like) for _ in self.layers]


def add_norm(x: Tensor, more: Tensor | None, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return s = x + more, and s / sqrt(mean(s²) + epsilon) · weight."""
    if x.is_cuda:
        both: tuple[Tensor, Tensor] = _kernels().add_norm(x, more, weight.to(x.dtype), epsilon)
        return both
    x = x if more is None else x + more
    return x, F.rms_norm(x, weight.shape, weight.to(x.dtype), epsilon)


def gate(both: Tensor) -> Tensor:
    """silu(first half) · second half."""
    if both.is_cuda:
        gated: Tensor = _kernels().gate(both)
        return gated
    first, second = both.chunk(2, dim=-1)
    return F.silu(first) * second


def attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax attention `[R, heads, L, size]`; several heads may share a key. Without a mask, none looks ahead."""
    rows, heads, length, size = query.shape
    shared = heads // key.shape[1]
    if shared == 1 or mask is None or not query.is_cuda:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=shared > 1
        )
    # PyTorch's fast kernels with a mask want as many keys as queries: heads that share a key stand below each other.
    stacked = query.reshape(rows, key.shape[1], shared * length, size)
    mixed = F.scaled_dot_product_attention(stacked, key, value, attn_mask=mask.repeat(1, 1, shared, 1))
    return mixed.reshape(rows, heads, length, size)


def rotate(x: Tensor, turn: Rotation) -> Tensor:
    """Rotate pairs (i, i + size/2) of every head by its position's angles."""
    if x.is_cuda:
        turned: Tensor = _kernels().rotate(x, turn.cosine, turn.sine)
        return turned
    first, second = x.chunk(2, dim=-1)
    return x * turn.cosine + torch.cat([-second, first], dim=-1) * turn.sine


def _kernels() -> ModuleType:
    """The GPU's kernels; Triton exists only where a GPU may."""
    from coterie.lm.learn import layer_kernels as layers

    return layers


def from_hugging_face(model: Any) -> Transformer:
    """A transformer with the weights of a Hugging Face Llama model; others are refused."""
    config = model.config
    if config.model_type != "llama":
        raise ValueError(f"expected a model of the Llama family, got '{config.model_type}'")
    rope = getattr(config, "rope_parameters", None) or {}
    size = config.hidden_size // config.num_attention_heads
    unusual = {
        "rope_type": rope.get("rope_type", "default") != "default",
        "attention_bias": bool(getattr(config, "attention_bias", False)),
        "mlp_bias": bool(getattr(config, "mlp_bias", False)),
        "hidden_act": config.hidden_act != "silu",
        "head_dim": getattr(config, "head_dim", None) not in (None, size),
    }
    if any(unusual.values()):
        found = ", ".join(name for name, other in unusual.items() if other)
        raise ValueError(f"expected a usual Llama model, this one has another {found}")
    shape = TransformerShape(
        vocabulary=config.vocab_size,
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        hidden=config.intermediate_size,
        context=config.max_position_embeddings,
        rope_theta=float(rope.get("rope_theta", getattr(config, "rope_theta", 10_000.0))),
        epsilon=config.rms_norm_eps,
        tied=bool(config.tie_word_embeddings),
    )
    made = Transformer(shape)
    own, theirs = made.state_dict(), model.state_dict()

    def copy(name: str, *sources: str) -> None:
        own[name].copy_(torch.cat([theirs[source] for source in sources]))

    copy("embedding", "model.embed_tokens.weight")
    copy("norm", "model.norm.weight")
    if not shape.tied:
        copy("unembedding", "lm_head.weight")
    for i in range(shape.layers):
        here, there = f"layers.{i}", f"model.layers.{i}"
        copy(f"{here}.attention_norm", f"{there}.input_layernorm.weight")
        copy(f"{here}.feed_norm", f"{there}.post_attention_layernorm.weight")
        copy(f"{here}.query_key_value.weight", *(f"{there}.self_attn.{name}_proj.weight" for name in "qkv"))
        copy(f"{here}.output.weight", f"{there}.self_attn.o_proj.weight")
        copy(f"{here}.gate_up.weight", *(f"{there}.mlp.{name}_proj.weight" for name in ("gate", "up")))
        copy(f"{here}.down.weight", f"{there}.mlp.down_proj.weight")
    return made
