"""Passes that are replayed on a GPU against passes that are not, and what they read."""

from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from coterie.lm.learn import graphed_passes
from coterie.lm.learn.graphed_passes import GraphedPasses, Inputs, Reader, _Replay, _rounded, _twins
from coterie.lm.learn.sampling import PAD, Layout, PackedLayout, _read_rows, grade, read_table
from coterie.lm.learn.transformer import Transformer, TransformerShape
from coterie.lm.learn.updates import Optimizer, Weights

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device")
SHAPE = TransformerShape(40, 2, 48, 6, 2, 64, 64)


def batch(groups, seed):
    random = np.random.default_rng(seed)
    prompts = [random.integers(1, 40, random.integers(1, 20)).tolist() for _ in range(groups)]
    answers = random.integers(1, 40, (groups, 3, 8)).astype(np.int32)
    answers[np.arange(8) >= random.integers(0, 9, (groups, 3))[..., None]] = PAD
    return prompts, answers


def test_what_pads_a_batch_changes_nothing():
    network = Transformer(SHAPE, seed=3)
    inputs = Inputs((256, 128, 1.0), torch.device("cpu"))
    for seed, groups in enumerate((5, 2)):  # the second leaves less
        prompts, answers = batch(groups, seed)
        targets = answers[answers != PAD]
        inputs.fill(PackedLayout.of(prompts, answers), targets)
        source, asked = inputs.rows
        hidden = read_table(network, inputs.table, None)
        torch.testing.assert_close(
            hidden[source][: len(targets)], _read_rows(network, Layout.of(prompts, answers), None)
        )
        assert torch.isfinite(hidden).all()
        assert asked[: len(targets)].tolist() == targets.tolist()


def test_batches_are_padded_by_an_eighth_at_most():
    sizes = {_rounded(number) for number in range(1, 5000)}
    assert all(number <= _rounded(number) <= max(number * 1.125 + 1, number + 64) for number in range(1, 5000))
    assert len(sizes) < 50


@needs_gpu
@pytest.mark.parametrize("adapters", [0, 2])
def test_replayed_passes_have_the_gradients_of_plain_ones(adapters):
    network = Transformer(SHAPE, seed=3)
    if adapters:
        network.add_adapters(adapters, 4, 8.0, [1, 2])
    network.cuda()
    weights = Weights(network, 1 if adapters else None)
    optimizer = Optimizer(weights.parameters())
    for step in range(5):
        prompts, answers = batch(6, step % 3)
        found = []
        for passes in (None, weights.passes):
            optimizer.zero_gradients()
            graded = grade(network, prompts, answers, 0.8, weights.adapter, passes)
            (graded.log_probs.square().sum() + 0.1 * graded.entropy.sum()).backward()
            gradients = [parameter.grad.clone() for parameter in weights.parameters()]
            found.append([graded.log_probs.detach(), graded.entropy.detach(), *gradients])
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(other, one, atol=2e-4, rtol=1e-3)
        optimizer.step(1e-3, 1.0)  # graphs read the weights where they are
    assert weights.passes.captured


@needs_gpu
def test_graphs_of_weights_that_moved_are_captured_anew():
    network = Transformer(SHAPE, seed=3).cuda()
    weights = Weights(network, None)
    Optimizer(weights.parameters())
    for _ in range(3):
        before = weights.grade(*batch(6, 0)).log_probs.detach()
    assert len(weights.passes.captured) == 1
    network.norm.data = network.norm.data * 2
    after = weights.grade(*batch(6, 0)).log_probs.detach()
    assert not torch.equal(before, after)


@needs_gpu
def test_gradients_of_a_batch_that_was_overwritten_are_refused():
    weights = Weights(Transformer(SHAPE, seed=3).cuda(), None)
    Optimizer(weights.parameters())
    for _ in range(2):
        weights.grade(*batch(6, 0)).log_probs.sum().backward()
    first = weights.grade(*batch(6, 0)).log_probs
    weights.grade(*batch(6, 0))
    with pytest.raises(RuntimeError, match="another batch"):
        first.sum().backward()


def test_the_cpu_replays_nothing():
    assert Weights(Transformer(SHAPE, seed=3), None).passes is None


class Recorded:
    """A pass without a GPU: graphs that note when they are replayed."""

    def __init__(self, count):
        self.forward, self.backward = Mock(), Mock()
        self.found, self.slopes = (torch.zeros(count), torch.zeros(count)), torch.ones(2, count)


@pytest.mark.parametrize("sizes", ["same", "other"])
def test_batches_that_share_memory_take_their_gradients_in_turns(sizes):
    passes = GraphedPasses(Transformer(SHAPE, seed=3), None, [])
    one = Recorded(8)
    first, _ = _Replay.apply(passes.anchor, passes, one, 3)
    first.sum().backward()
    one.backward.replay.assert_called_once()
    assert one.slopes.tolist() == [[1, 1, 1, 0, 0, 0, 0, 0], [0] * 8]
    first, _ = _Replay.apply(passes.anchor, passes, one, 3)
    _Replay.apply(passes.anchor, passes, one if sizes == "same" else Recorded(16), 3)
    with pytest.raises(RuntimeError, match="another batch"):
        first.sum().backward()


def test_a_capture_that_runs_out_of_memory_is_left_and_not_tried_again(monkeypatch):
    tries = []

    def scarce(reader, size, pool):
        tries.append(size)
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(graphed_passes, "Pass", scarce)
    monkeypatch.setattr(GraphedPasses, "_fits", lambda self, size: True)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: 0)
    network = Transformer(SHAPE, seed=3)
    passes = GraphedPasses(network, None, list(network.parameters()))
    for parameter in passes.parameters:
        parameter.grad = torch.zeros_like(parameter)
    prompts, answers = batch(6, 0)
    packed = PackedLayout.of(prompts, answers)
    for _ in range(4):
        assert passes.read(packed, answers[answers != PAD], 1.0) is None
    assert len(tries) == 1
    assert passes.pool is None


@pytest.mark.parametrize(("adapters", "tied"), [(0, True), (0, False), (2, True)])
def test_what_is_captured_adds_gradients_where_they_are(adapters, tied):
    network = Transformer(replace(SHAPE, tied=tied), seed=3)
    if adapters:
        network.add_adapters(adapters, 4, 8.0, [1, 2])
    weights = Weights(network, 1 if adapters else None)
    parameters = weights.parameters()
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    kept = [parameter.grad for parameter in parameters]
    reader, inputs = Reader(network, weights.adapter, 0.8), Inputs((256, 128, 0.8), torch.device("cpu"))
    for seed in range(2):
        prompts, answers = batch(5, seed)
        targets = answers[answers != PAD]
        inputs.fill(PackedLayout.of(prompts, answers), targets)
        found = torch.func.functional_call(reader, _twins(reader), (inputs,))
        asked = torch.arange(128) < len(targets)
        torch.autograd.backward(found, (asked.float(), 0.1 * asked))
    for parameter, gradient in zip(parameters, kept, strict=True):
        assert parameter.grad is gradient  # graphs keep its address
        parameter.grad = None
    for seed in range(2):
        graded = weights.grade(*batch(5, seed), 0.8)
        (graded.log_probs.sum() + 0.1 * graded.entropy.sum()).backward()
    for parameter, gradient in zip(parameters, kept, strict=True):
        torch.testing.assert_close(gradient, 1 + parameter.grad, atol=2e-4, rtol=1e-3)
    assert all((p.grad is None) == (not any(p is own for own in parameters)) for p in network.parameters())
