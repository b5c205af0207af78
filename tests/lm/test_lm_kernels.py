"""The GPU's kernels of a transformer against plain PyTorch, values and gradients.

Without a GPU they run where Triton is installed and its interpreter is asked for: `TRITON_INTERPRET=1`.
"""

import importlib.util
import os

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from coterie.lm.learn.sampling import PAD, Layout, PackedLayout, _read_packed, _read_rows, grade
from coterie.lm.learn.transformer import (
    Rotation,
    Spans,
    Transformer,
    TransformerShape,
    add_norm,
    attention,
    gate,
    rotate,
)
from helpers.packed import attention_by_loops, packed_by_loops
from helpers.packed import some_answers as some_prompts_and_answers

ON_GPU = torch.cuda.is_available()
INTERPRETED = not ON_GPU and os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton")
DEVICE = "cuda" if ON_GPU else "cpu"
needs_gpu = pytest.mark.skipif(not ON_GPU, reason="PyTorch finds no CUDA device")
needs_triton = pytest.mark.skipif(not (ON_GPU or INTERPRETED), reason="PyTorch finds no CUDA device")


@needs_triton
@pytest.mark.parametrize("size", [16, 24, 64])
@pytest.mark.parametrize("rows", [1, 3])
def test_rotations(size, rows):
    from coterie.lm.learn import layer_kernels as layers

    x = torch.randn(3, 7, 5, size, dtype=torch.float64).transpose(1, 2).float().requires_grad_()
    angles = torch.randn(rows, 1, 7, size // 2).repeat(1, 1, 1, 2)
    turn = Rotation(angles.cos(), angles.sin(), None)
    there = x.detach().to(DEVICE).requires_grad_()
    slope = torch.randn(x.shape)
    expected, found = rotate(x, turn), layers.rotate(there, turn.cosine.to(DEVICE), turn.sine.to(DEVICE))
    torch.testing.assert_close(found.cpu(), expected)
    expected.backward(slope)
    found.backward(slope.to(DEVICE))
    torch.testing.assert_close(there.grad.cpu(), x.grad)


@needs_triton
@pytest.mark.parametrize("hidden", [16, 1000, 1536])
def test_gates(hidden):
    from coterie.lm.learn import layer_kernels as layers

    x = torch.randn(3, 5, 2 * hidden, requires_grad=True)
    there = x.detach().to(DEVICE).requires_grad_()
    slope = torch.randn(3, 5, hidden)
    gate(x).backward(slope)
    layers.gate(there).backward(slope.to(DEVICE))
    torch.testing.assert_close(layers.gate(there).cpu(), gate(x))
    torch.testing.assert_close(there.grad.cpu(), x.grad)


@needs_triton
@pytest.mark.parametrize("added", [True, False])
@pytest.mark.parametrize("width", [16, 100, 576])
def test_norms(width, added):
    from coterie.lm.learn import layer_kernels as layers

    given = [torch.randn(3, 7, width), torch.randn(3, 7, width), torch.rand(width) + 0.5]
    slopes = torch.randn(2, 3, 7, width)
    found = []
    for work, device in ((add_norm, "cpu"), (layers.add_norm, DEVICE)):
        x, more, weight = (value.clone().to(device).requires_grad_() for value in given)
        outs = work(x, more if added else None, weight, 1e-5)
        sum((out * slope.to(device)).sum() for out, slope in zip(outs, slopes, strict=True)).backward()
        found.append([*outs, x.grad, *([more.grad] if added else []), weight.grad])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other.cpu(), one, atol=1e-5, rtol=1e-5)


def some_spans(lengths, answers, seed=0):
    """Spans of prompts and answers of random lengths, and the positions of their tokens."""
    random = np.random.default_rng(seed)
    prompts = [[1] * int(random.integers(1, lengths + 1)) for _ in range(4)]
    tokens = np.full((4, 3, answers), PAD)
    for row in tokens.reshape(-1, answers):
        row[: random.integers(0, answers + 1)] = 1
    table = torch.from_numpy(PackedLayout.of(prompts, tokens).table)
    return Spans(*table[2:]), table[1]


def by_hand(heads, cosine, sine, spans, count):
    """Attention with a table of who sees whom."""
    kv = (heads.shape[1] - count) // 2
    split = heads.transpose(0, 1)[None]
    turned, value = split.split((count + kv, kv), dim=1)
    query, key = rotate(turned, Rotation(cosine[None, None], sine[None, None], None)).split((count, kv), dim=1)
    return attention(query, key, value, spans.mask())[0].transpose(0, 1)


@needs_triton
@pytest.mark.parametrize(
    ("lengths", "answers", "heads", "kv_heads", "size"),
    [(5, 3, 2, 2, 16), (90, 40, 6, 2, 8), (130, 20, 4, 4, 24), (70, 70, 3, 1, 64)],
)
def test_attention_over_spans(lengths, answers, heads, kv_heads, size):
    from coterie.lm.learn.attention_kernels import attend

    spans, position = some_spans(lengths, answers)
    count = len(position)
    angles = (position[:, None] * 0.7 ** torch.arange(size // 2)).repeat(1, 2)
    given = torch.randn(count, heads + 2 * kv_heads, size)
    slope = torch.randn(count, heads, size)
    found = []
    for work, device in ((by_hand, "cpu"), (attend, DEVICE)):
        x = given.clone().to(device).requires_grad_()
        out = work(x, angles.cos().to(device), angles.sin().to(device), Spans(*(s.to(device) for s in spans)), heads)
        out.backward(slope.to(device))
        found.append((out, x.grad))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other.cpu(), one, atol=2e-5, rtol=1e-4)


@needs_triton
@pytest.mark.parametrize("width", [31, 32, 33, 63, 64, 65, 127, 129])
def test_attention_at_the_borders_of_blocks(width):
    from coterie.lm.learn.attention_kernels import attend

    random = np.random.default_rng(width)
    size, kv = int(random.choice([8, 16, 24])), int(random.integers(1, 3))
    heads = kv * int(random.integers(1, 4))
    prompts, answers = some_prompts_and_answers(random, 2, 2, int(random.choice([1, 16, 33])), 12)
    sees = packed_by_loops(prompts, answers)[2]
    table = torch.from_numpy(PackedLayout.of(prompts, answers).padded(max(width, len(sees))))
    sees += [[i] for i in range(len(sees), table.shape[1])]
    given, slope = torch.randn(len(sees), heads + 2 * kv, size), torch.randn(len(sees), heads, size)
    angles = (table[1][:, None] * 0.7 ** torch.arange(size // 2)).repeat(1, 2)
    found = []
    for device in ("cpu", DEVICE):
        x = given.clone().to(device).requires_grad_()
        if not found:
            turn = Rotation(angles.cos()[:, None], angles.sin()[:, None], None)
            turned, value = x.split((heads + kv, kv), dim=1)
            out = attention_by_loops(torch.cat([rotate(turned, turn), value], dim=1), heads, sees).float()
        else:
            spans = Spans(*(column.to(device) for column in table[2:]))
            out = attend(x, angles.cos().to(device), angles.sin().to(device), spans, heads)
        out.backward(slope.to(device))
        found.append((out, x.grad))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other.cpu(), one, atol=2e-5, rtol=1e-4)


@needs_triton
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("vocabulary", [50, 5000])
def test_log_probs(vocabulary, temperature):
    from coterie.lm.learn import log_prob_kernels as log_probs

    given = [torch.randn(13, 20), torch.randn(vocabulary, 20)]
    tokens, slopes = torch.randint(0, vocabulary, (13,)), torch.randn(2, 13)

    def plain(hidden, embedding, tokens, temperature, _):
        log_probs = F.log_softmax(hidden @ embedding.T / temperature, dim=-1)
        return log_probs.gather(1, tokens[:, None])[:, 0], -(log_probs.exp() * log_probs).sum(dim=-1)

    found = []
    for work, device in ((plain, "cpu"), (log_probs.token_log_probs, DEVICE)):
        hidden, embedding = (value.clone().to(device).requires_grad_() for value in given)
        outs = work(hidden, embedding, tokens.to(device), temperature, 5)
        sum((out * slope.to(device)).sum() for out, slope in zip(outs, slopes, strict=True)).backward()
        found.append([*outs, hidden.grad, embedding.grad])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other.cpu(), one, atol=1e-4, rtol=1e-4)


def some_answers():
    answers = torch.randint(0, 40, (5, 3, 6), generator=torch.Generator().manual_seed(0)).int().numpy()
    answers[1, 2, 2:], answers[4, :, 5], answers[2, 1] = PAD, PAD, PAD
    return [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10], [3] * 9, [2, 2]], answers


def test_one_packed_row_reads_as_padded_rows_do():
    network = Transformer(TransformerShape(40, 2, 48, 6, 2, 64, 64), seed=3)
    packed = PackedLayout.of(*some_answers())
    expected = _read_rows(network, Layout.of(*some_answers()), None)
    torch.testing.assert_close(_read_packed(network, packed, None), expected)
    spans = Spans(*torch.from_numpy(packed.table[2:]))
    mask = spans.mask()[0, 0]
    seen_by = torch.tensor([int(mask[:, key].nonzero().max()) + 1 for key in range(len(mask))], dtype=torch.int32)
    assert torch.equal(seen_by, spans.last)  # kernels stop there


@needs_gpu
def test_gradients_of_answers():
    network = Transformer(TransformerShape(40, 2, 48, 6, 2, 64, 64), seed=3)
    there = Transformer(network.shape, seed=3).cuda()
    prompts, answers = some_answers()
    for one in (network, there):
        graded = grade(one, prompts, answers, 0.8)
        (graded.log_probs.sum() + 0.1 * graded.entropy.sum()).backward()
    for (name, one), other in zip(network.named_parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(other.grad.cpu(), one.grad, atol=2e-4, rtol=1e-3, msg=name)
