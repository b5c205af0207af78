"""The rollout engine's buffers in memory, and its kernels in plain PyTorch: slow, readable, on any device.

A *row* is an answer that is being written. What the kernels need to know of a row stands in one column of the table
`state`, so that a few numbers move when rows come and go while keys and values stay where they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
import torch.nn.functional as F
from torch import Tensor

from coterie.lm.learn.transformer import TransformerShape
from coterie.lm.learn.transformer import add_norm as add_norm
from coterie.lm.learn.transformer import gate as gate

VOCABULARY_BLOCK = 4096  # logits that a kernel reads at once


class Field(IntEnum):
    """The rows of the table `state` `[Field, B]`."""

    TOKEN = 0  # the latest token
    STEP = 1  # tokens so far
    ACTIVE = 2  # 1 while the answer is being written
    REQUEST = 3  # the answer: where tokens and log-probabilities are noted
    LIMIT = 4  # tokens that the answer may have
    SLOT = 5  # where its keys and values are
    PROMPT = 6  # where its prompt's keys and values are
    PROMPT_LENGTH = 7  # tokens of the prompt
    ADAPTER = 8  # which adapter writes; −1: none


@dataclass
class Buffers:
    """Tensors that are kept between steps: keys and values, answers, random numbers."""

    shape: TransformerShape
    prompt_key: Tensor  # [layers, prompts, kv_heads, positions, head_size]
    prompt_value: Tensor
    prompt_logits: Tensor  # [prompts, V]: of the first token
    key: Tensor  # [layers, rows, kv_heads, positions, head_size]: of the rows' own tokens
    value: Tensor
    cosine: Tensor  # [context, head_size] float32
    sine: Tensor
    noise: Tensor  # [requests, L] uniform numbers: each decides one token
    tokens: Tensor  # [requests, L] int32
    log_probs: Tensor  # [requests, L] float32
    entropy: Tensor  # [requests] float32: sums over tokens
    temperature: Tensor  # [] float32; 0: the most likely token
    ends: Tensor  # [E] int32: tokens that end an answer
    parts: Tensor  # [rows, 2, blocks of the vocabulary] float32: for kernels that draw
    state: Tensor  # [Field, rows] int32
    tempered: bool = True  # log-probabilities at the sampling temperature; otherwise at temperature 1


def adapt(wide: Tensor, up: Tensor, adapter: Tensor, scale: float) -> Tensor:
    """W x + scale · B A x of each row's adapter.

    `wide` `[R, outputs + adapters · rank]` holds W x and every adapter's A x; `up` `[adapters, outputs, rank]` the B.
    """
    count, outputs, rank = up.shape
    out, low = wide[:, :outputs], wide[:, outputs:].view(len(wide), count, rank)
    own = (adapter[:, None] == torch.arange(count, device=wide.device)[None])[..., None] * low
    return out + scale * torch.einsum("bar,aor->bo", own, up)


def attend(heads: Tensor, layer: int, buffers: Buffers, state: Tensor) -> Tensor:
    """Rotate queries and keys `[R, (heads + 2 kv) · size]`, keep keys and values, and mix what each row may see."""
    rows, shape = heads.shape[0], buffers.shape
    step, slot, prompt, length = (
        state[f, :rows].long() for f in (Field.STEP, Field.SLOT, Field.PROMPT, Field.PROMPT_LENGTH)
    )
    position = length + step - 1
    cosine, sine = (table[position][:, None].to(heads.dtype) for table in (buffers.cosine, buffers.sine))
    split = heads.view(rows, -1, shape.head_size).split((shape.heads, shape.kv_heads, shape.kv_heads), dim=1)
    query, key = (x * cosine + torch.cat([-x.chunk(2, -1)[1], x.chunk(2, -1)[0]], -1) * sine for x in split[:2])
    buffers.key[layer, slot, :, step - 1], buffers.value[layer, slot, :, step - 1] = key, split[2]
    keys = torch.cat([buffers.prompt_key[layer, prompt], buffers.key[layer, slot]], dim=2)
    values = torch.cat([buffers.prompt_value[layer, prompt], buffers.value[layer, slot]], dim=2)
    seen = torch.cat(
        [
            torch.arange(buffers.prompt_key.shape[3], device=heads.device)[None] < length[:, None],
            torch.arange(buffers.key.shape[3], device=heads.device)[None] < step[:, None],
        ],
        dim=1,
    )
    repeat = shape.heads // shape.kv_heads
    keys, values = keys.repeat_interleave(repeat, dim=1), values.repeat_interleave(repeat, dim=1)
    mixed = F.scaled_dot_product_attention(query[:, :, None], keys, values, attn_mask=seen[:, None, None])
    return mixed.reshape(rows, -1)


def draw(logits: Tensor, source: Tensor, state: Tensor, buffers: Buffers) -> None:
    """Draw the next token of every active row from `logits[source]`, note it, and move the row on."""
    rows = (state[Field.ACTIVE, : len(source)] != 0).nonzero()[:, 0]
    if not len(rows):
        return
    request, step = state[Field.REQUEST, rows].long(), state[Field.STEP, rows].long()
    temperature = float(buffers.temperature)
    log_probs = F.log_softmax(logits[source[rows].long()].float() / (temperature or 1.0), dim=-1)
    weights = log_probs.exp()
    if temperature == 0:
        chosen = log_probs.argmax(dim=-1)
    else:
        sums = weights.double().cumsum(dim=-1)
        aim = buffers.noise[request, step].double()[:, None] * sums[:, -1:]
        chosen = (sums <= aim).sum(dim=-1).clamp(max=logits.shape[1] - 1)
    buffers.tokens[request, step] = chosen.int()
    noted = log_probs if buffers.tempered else F.log_softmax(logits[source[rows].long()].float(), dim=-1)
    buffers.log_probs[request, step] = noted.gather(1, chosen[:, None])[:, 0]
    buffers.entropy[request] += -(weights * log_probs).nan_to_num(0.0).sum(dim=-1)
    ended = (step + 1 >= state[Field.LIMIT, rows]) | (chosen[:, None] == buffers.ends[None]).any(dim=1)
    state[Field.TOKEN, rows], state[Field.STEP, rows] = chosen.int(), (step + 1).int()
    state[Field.ACTIVE, rows] = (~ended).int()
