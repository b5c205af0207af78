"""Recurrent networks: step by step, unrolled over sequences, for several parameter sets, against PyTorch's own."""

import numpy as np
import pytest
import torch

from coterie.core.types import Box
from coterie.nn import networks
from coterie.nn.packing import layout
from helpers.small_worlds import NAMED, generator

SIZE, WIDTH = 3, 5


def recurrent(seeds=(0,), space=None, encoder="auto", **fields):
    shape = networks.Shape((6,), "tanh", encoder, (4,), fields.pop("extra", 0), WIDTH)
    net = networks.Network(shape, layout(space or Box((SIZE,), -1.0, 1.0)), 2, 1.0, list(seeds))
    random = torch.Generator().manual_seed(5)
    for i in range(len(seeds)):
        for parameter in net.parameters():  # biases too, so that every term counts
            noise = torch.randn(parameter.shape[1:], generator=random.manual_seed(100 * seeds[i] + 7))
            parameter.data[i] += 0.3 * noise
    return net


def sequences(parameter_sets, count=4, steps=7, size=SIZE, seed=0):
    random = generator(seed)
    rest = networks.Sequences(
        random.standard_normal((parameter_sets, count, WIDTH), np.float32),
        random.random((parameter_sets, count, steps)) < 0.3,
        random.random((parameter_sets, count, steps)) < 0.6,
    )
    return random.standard_normal((parameter_sets, count, steps, size), np.float32), rest


def step_by_step(net, x, rest):
    """As the runner: reset memory at a new episode, run the network, keep the new memory of agents that acted."""
    parameter_sets, count, steps = x.shape[:3]
    out = torch.zeros(parameter_sets, count, steps, 2)
    memory = torch.from_numpy(rest.memory).clone()
    for t in range(steps):
        for s, i in np.ndindex(parameter_sets, count):
            if rest.starts[s, i, t]:
                memory[s, i] = 0
        out[:, :, t], after = net(torch.from_numpy(x[:, :, t]), memory)
        for s, i in np.ndindex(parameter_sets, count):
            if rest.active[s, i, t]:
                memory[s, i] = after[s, i]
    return out


@pytest.mark.parametrize("seeds", [(0,), (1, 2, 3)])
@pytest.mark.parametrize(("space", "encoder"), [(None, "auto"), (NAMED, "set"), (Box((2, 3, 3), 0.0, 1.0), "cnn")])
def test_unrolling_equals_steps_by_hand(seeds, space, encoder):
    net = recurrent(seeds, space, encoder, extra=2)
    x, rest = sequences(len(seeds), size=net.size + 2)
    expected = step_by_step(net, x, rest)
    assert torch.allclose(net.unroll(x, rest), expected.flatten(1, 2), atol=1e-5)


def test_rows_in_between_matter():
    net = recurrent()
    x, rest = sequences(1, count=1, steps=4)
    always = networks.Sequences(rest.memory, np.zeros((1, 1, 4), bool), np.ones((1, 1, 4), bool))
    plain = net.unroll(x, always)[0]
    starts, idle = always.starts.copy(), always.active.copy()
    starts[..., 2], idle[..., 1] = True, False
    forgetful = net.unroll(x, always._replace(starts=starts))[0]
    assert torch.equal(plain[:2], forgetful[:2])
    assert not torch.allclose(plain[2:], forgetful[2:])
    alone = net.unroll(
        x[:, :, 2:], networks.Sequences(rest.memory * 0, starts[..., 2:] & False, always.active[..., 2:])
    )[0]
    assert torch.allclose(forgetful[2:], alone, atol=1e-6)
    skipping = net.unroll(x, always._replace(active=idle))[0]
    without = net.unroll(
        np.delete(x, 1, axis=2), always._replace(starts=starts[..., 1:] & False, active=idle[..., 1:] | True)
    )
    assert torch.allclose(skipping[[0, 2, 3]], without[0], atol=1e-6)  # as if the idle row had not been


def test_gradients_reach_back_to_an_episodes_start_and_no_further():
    net = recurrent()
    x, rest = sequences(1, count=1, steps=5)
    rest = networks.Sequences(rest.memory, np.zeros((1, 1, 5), bool), np.ones((1, 1, 5), bool))
    rest.starts[..., 2] = True
    kept, read = [], net.features

    def watched(rows, encoded=None):
        kept.append(read(rows))
        kept[0].retain_grad()
        return kept[0]

    net.features = watched
    net.unroll(x, rest)[0, 4].sum().backward()
    assert kept[0].grad[0].abs().sum(dim=1).gt(0).tolist() == [False, False, True, True, True]


def test_parameter_sets_equal_separate_networks():
    both = recurrent((1, 2))
    x, rest = sequences(2)
    out = both.unroll(x, rest)
    out.square().sum().backward()
    for i, seed in enumerate((1, 2)):
        alone = recurrent((seed,))
        mine = alone.unroll(x[i : i + 1], networks.Sequences(*(array[i : i + 1] for array in rest)))
        assert torch.allclose(mine[0], out[i], atol=1e-5)
        mine.square().sum().backward()
        for one, two in zip(alone.parameters(), both.parameters(), strict=True):
            assert torch.allclose(one.grad[0], two.grad[i], atol=1e-4)
    assert not torch.allclose(out[0], out[1])


def test_the_cell_is_pytorchs():
    net = recurrent()
    cell = torch.nn.GRUCell(6, WIDTH)
    pairs = ((cell.weight_ih, net.cell.read.weight), (cell.weight_hh, net.cell.recall.weight))
    for theirs, mine in pairs:
        theirs.data.copy_(mine[0].T)
    cell.bias_ih.data.copy_(net.cell.read.bias[0, 0])
    cell.bias_hh.data.copy_(net.cell.recall.bias[0, 0])
    h, memory = torch.randn(1, 9, 6), torch.randn(1, 9, WIDTH)
    assert torch.allclose(net.cell(h, memory)[0], cell(h[0], memory[0]), atol=1e-6)


def test_sequences_and_rows_are_distinguished():
    plain = networks.Network(
        networks.Shape((6,), "tanh", "auto", (4,), 0), layout(Box((SIZE,), -1.0, 1.0)), 2, 1.0, [0]
    )
    x = sequences(1)[0][:, :, 0]
    assert torch.equal(plain.unroll(x, None), plain(torch.from_numpy(x))[0])
    assert plain.cell is None
