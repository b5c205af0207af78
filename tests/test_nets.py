"""Layouts, encoders, stacks, and flat views of parameters."""

import numpy as np
import pytest
import torch

from coterie import nets
from coterie.types import Box, Dict, Discrete
from small_worlds import generator

NAMED = Dict(
    {
        "own": Box((2,), -1.0, 1.0),
        "others": Box((3, 2), -1.0, 1.0),
        "seen": Box((3,), 0.0, 1.0),
        "level": Discrete(4),
    },
    (("others", "seen"),),
)


def shape(**fields):
    return nets.Shape(
        **{"hidden": (8,), "activation": "tanh", "encoder": "auto", "channels": (4,), "identities": 0} | fields
    )


def rows(stacks, count, size, seed=0):
    return torch.from_numpy(generator(seed).standard_normal((stacks, count, size), np.float32))


def who(stacks, count):
    return torch.zeros(stacks, count, dtype=torch.int64)


# Layout ------------------------------------------------------------------------------------------------


def test_entries_lie_side_by_side():
    lay = nets.layout(NAMED)
    assert lay.size == 2 + 6 + 3 + 4
    assert {name: (e.start, e.stop) for name, e in lay.entries.items()} == {
        "own": (0, 2),
        "others": (2, 8),
        "seen": (8, 11),
        "level": (11, 15),
    }
    assert not lay.bare
    assert lay.image is None


def test_rows_of_a_set_share_their_statistics():
    lay = nets.layout(NAMED)
    assert lay.slots.tolist() == [0, 1, 2, 3, 2, 3, 2, 3, 4, 4, 4, 5, 6, 7, 8]
    assert lay.width == 9


def test_an_empty_set_keeps_its_place_among_the_statistics():
    empty = nets.layout(Dict({"own": Box((2,), 0.0, 1.0), "others": Box((0, 2), 0.0, 1.0)}, (("others",),)))
    some = nets.layout(Dict({"own": Box((2,), 0.0, 1.0), "others": Box((5, 2), 0.0, 1.0)}, (("others",),)))
    assert (empty.size, some.size) == (2, 12)
    assert empty.width == some.width == 4


def test_packing():
    lay = nets.layout(NAMED)
    random = generator()
    seen = {
        "own": random.random((5, 2, 2)),  # float64 becomes float32
        "others": random.random((5, 2, 3, 2), np.float32),
        "seen": random.random((5, 2, 3), np.float32),
        "level": random.integers(4, size=(5, 2)),
    }
    packed = nets.pack(lay, seen)
    assert packed.shape == (5, 2, 15)
    assert packed.dtype == np.float32
    assert np.array_equal(packed[3, 1, 2:8], seen["others"][3, 1].ravel())
    assert packed[3, 1, 11:].tolist() == np.eye(4)[seen["level"][3, 1]].tolist()


def test_bytes_become_fractions_and_pictures_are_recognised():
    lay = nets.layout(Box((2, 3, 4), 0, 255, "uint8"))
    assert lay.image == (2, 3, 4)
    packed = nets.pack(lay, np.full((5, 1, 2, 3, 4), 51, np.uint8))
    assert packed.shape == (5, 1, 24)
    assert np.allclose(packed, 0.2)


def test_a_single_choice_is_one_hot():
    lay = nets.layout(Discrete(3))
    assert nets.pack(lay, np.array([[2], [0]])).tolist() == [[[0, 0, 1]], [[1, 0, 0]]]


# Networks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "fields"),
    [
        (Box((5,), 0.0, 1.0), {"hidden": (8, 6)}),
        (Box((2, 4, 4), 0.0, 1.0), {"channels": (3, 5)}),
        (NAMED, {"encoder": "set"}),
    ],
)
def test_stacked_networks_equal_separate_ones(space, fields):
    lay = nets.layout(space)
    both = nets.Net(shape(**fields), lay, 3, 0.5, [1, 2])
    apart = [nets.Net(shape(**fields), lay, 3, 0.5, [seed]) for seed in (1, 2)]
    x = rows(2, 7, lay.size)
    out = both(x, who(2, 7))
    out.square().sum().backward()
    for i, net in enumerate(apart):
        alone = net(x[i : i + 1], who(1, 7))
        assert torch.allclose(alone[0], out[i], atol=1e-6)
        alone.square().sum().backward()
        for mine, theirs in zip(net.parameters(), both.parameters(), strict=True):
            assert torch.allclose(mine.grad[0], theirs.grad[i], atol=1e-5)
    assert not torch.allclose(out[0], out[1])


def test_a_perceptron_by_hand():
    net = nets.Net(shape(hidden=(4, 3)), nets.layout(Box((2,), 0.0, 1.0)), 1, 1.0, [0])
    x = rows(1, 5, 2)
    weights = [(layer.weight[0], layer.bias[0, 0]) for layer in [*net.body.layers, net.out]]
    hidden = torch.tanh(torch.tanh(x[0] @ weights[0][0] + weights[0][1]) @ weights[1][0] + weights[1][1])
    assert torch.allclose(net(x, who(1, 5))[0], hidden @ weights[2][0] + weights[2][1], atol=1e-6)


def test_activations_differ():
    lay = nets.layout(Box((2,), 0.0, 1.0))
    tanh, relu = (nets.Net(shape(activation=a), lay, 8, 1.0, [0]) for a in ("tanh", "relu"))
    x = rows(1, 50, 2) * 5
    hidden = relu.body(x)
    assert (hidden >= 0).all()
    assert (hidden > 1).any()
    assert (tanh.body(x).abs() <= 1).all()


def test_initial_layers_are_orthogonal_and_the_last_has_its_gain():
    net = nets.Net(shape(hidden=(6,)), nets.layout(Box((6,), 0.0, 1.0)), 6, 0.01, [3])
    for layer, gain in ((net.body.layers[0], np.sqrt(2)), (net.out, 0.01)):
        matrix = layer.weight[0]
        assert torch.allclose(matrix @ matrix.T, torch.eye(6) * gain**2, atol=1e-5)
        assert not layer.bias.any()


def test_convolutions_are_pytorchs_own():
    lay = nets.layout(Box((2, 5, 4), 0.0, 1.0))
    net = nets.Net(shape(channels=(3, 6)), lay, 2, 1.0, [0])
    x = rows(1, 4, lay.size)
    picture = x[0].view(4, 2, 5, 4)
    for kernel, bias in zip(net.encode.kernels, net.encode.biases, strict=True):
        bias.data.uniform_(-1, 1)
        picture = torch.relu(torch.nn.functional.conv2d(picture, kernel[0], bias[0], padding=1))
    assert torch.allclose(net.encode(x)[0], picture.flatten(1), atol=1e-5)
    assert net(x, who(1, 4)).shape == (1, 4, 2)


def test_channels_decide_the_convolutions():
    lay = nets.layout(Box((2, 5, 4), 0.0, 1.0))
    kernels = nets.Net(shape(channels=(3, 6, 7)), lay, 2, 1.0, [0]).encode.kernels
    assert [tuple(k.shape) for k in kernels] == [(1, 3, 2, 3, 3), (1, 6, 3, 3, 3), (1, 7, 6, 3, 3)]


def test_identity_is_a_one_hot_input():
    net = nets.Net(shape(identities=3), nets.layout(Box((2,), 0.0, 1.0)), 2, 1.0, [0])
    x = rows(1, 1, 2).expand(1, 3, 2)
    out = net(x, torch.arange(3)[None])
    assert not torch.allclose(out[0, 0], out[0, 1])
    assert torch.allclose(net(x, who(1, 3))[0, 0], net(x, who(1, 3))[0, 1])


# Sets --------------------------------------------------------------------------------------------------


def things(count):
    entries = {"own": Box((2,), -1.0, 1.0), "at": Box((count, 2), -1.0, 1.0), "on": Box((count,), 0.0, 1.0)}
    return nets.layout(Dict(entries, (("at", "on"),)))


def test_the_order_of_a_sets_rows_does_not_matter():
    lay = things(4)
    net = nets.Net(shape(encoder="set"), lay, 3, 1.0, [0])
    random = generator()
    seen = {name: random.random((6, *e.shape), np.float32) for name, e in lay.entries.items()}
    order = [2, 0, 3, 1]
    moved = seen | {"at": seen["at"][:, order], "on": seen["on"][:, order]}
    broken = seen | {"at": seen["at"][:, order]}  # rows no longer belong together
    out, same, other = (net(torch.from_numpy(nets.pack(lay, o))[None], who(1, 6)) for o in (seen, moved, broken))
    assert torch.allclose(out, same, atol=1e-6)
    assert not torch.allclose(out, other, atol=1e-3)


def test_weights_fit_any_number_of_things():
    net = nets.Net(shape(encoder="set"), things(4), 3, 1.0, [0])
    for count in (0, 1, 9):
        other = nets.Net(shape(encoder="set"), things(count), 3, 1.0, [1])
        nets.restore(other, nets.export(net), "set")
        x = rows(1, 5, things(count).size)
        assert torch.isfinite(other(x, who(1, 5))).all()
    x = rows(1, 5, 5)  # two equal things read as one
    one, two = (nets.Net(shape(encoder="set"), things(n), 3, 1.0, [0]) for n in (1, 2))
    nets.restore(two, nets.export(one), "set")
    twice = torch.cat([x[..., :4], x[..., 2:4], x[..., 4:], x[..., 4:]], dim=-1)  # own, at, at, on, on
    assert torch.allclose(one(x, who(1, 5)), two(twice, who(1, 5)), atol=1e-6)


def test_a_set_without_features_of_ones_own():
    lay = nets.layout(Dict({"at": Box((3, 2), 0.0, 1.0)}, (("at",),)))
    assert nets.Net(shape(encoder="set"), lay, 2, 1.0, [0])(rows(1, 4, 6), who(1, 4)).shape == (1, 4, 2)


def test_things_are_read_in_the_light_of_ones_own_place():
    lay = things(2)
    net = nets.Net(shape(encoder="set"), lay, 3, 1.0, [0])
    x = rows(1, 5, lay.size)
    moved = x.clone()
    moved[..., :2] += 1
    width = net.encode.width
    assert not torch.allclose(net.encode(x)[..., -2 * width :], net.encode(moved)[..., -2 * width :], atol=1e-3)


def test_encoders_are_chosen_and_refused():
    picture, vector = nets.layout(Box((2, 3, 3), 0.0, 1.0)), nets.layout(Box((3,), 0.0, 1.0))
    assert [nets.choose_encoder("auto", lay) for lay in (picture, vector, things(2))] == ["cnn", "mlp", "mlp"]
    assert nets.choose_encoder("mlp", picture) == "mlp"
    assert nets.choose_encoder("set", things(2)) == "set"
    with pytest.raises(ValueError, match="encoder 'cnn' needs a picture"):
        nets.choose_encoder("cnn", vector)
    with pytest.raises(ValueError, match="encoder 'set' needs a dict observation that declares sets"):
        nets.choose_encoder("set", vector)


# Flat views ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stacks", [1, 3])
def test_adam_on_the_flat_matrix_moves_the_network(stacks):
    lay = nets.layout(Box((4,), 0.0, 1.0))
    net, plain = (nets.Net(shape(), lay, 2, 1.0, list(range(stacks))) for _ in range(2))
    flat = nets.Flat(net)
    for mine, theirs in zip(net.parameters(), plain.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    adams = torch.optim.Adam([flat.value], lr=0.01), torch.optim.Adam(plain.parameters(), lr=0.01)
    for step in range(5):
        x = rows(stacks, 6, 4, seed=step)
        for one, adam in zip((net, plain), adams, strict=True):
            flat.grad.zero_()
            plain.zero_grad()
            one(x, who(stacks, 6)).square().sum().backward()
            adam.step()
    for mine, theirs in zip(net.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-6)
    assert flat.value.shape == (stacks, sum(p.numel() for p in net.parameters()) // stacks)


def test_restoring_writes_through_the_flat_matrix():
    lay = nets.layout(Box((4,), 0.0, 1.0))
    net, other = (nets.Net(shape(), lay, 2, 1.0, [seed]) for seed in (0, 1))
    flat, theirs = nets.Flat(net), nets.Flat(other)
    kept = nets.export(other)
    nets.restore(net, kept, "net")
    assert torch.equal(flat.value, theirs.value)
    theirs.value += 1
    assert not np.allclose(kept["out.bias"], nets.export(other)["out.bias"])  # an export is a copy


def test_gradients_are_clipped_stack_by_stack():
    net = nets.Net(shape(), nets.layout(Box((4,), 0.0, 1.0)), 2, 1.0, [0, 1])
    flat = nets.Flat(net)
    flat.grad[0], flat.grad[1] = 1e-4, 3.0
    size = flat.grad.shape[1]
    norms = flat.clip_gradient(0.5)
    assert norms.tolist() == pytest.approx([1e-4 * size**0.5, 3 * size**0.5])
    assert flat.grad.norm(dim=1).tolist() == pytest.approx([1e-4 * size**0.5, 0.5], rel=1e-4)
    assert net.out.weight.grad[1].unique().tolist() == pytest.approx([0.5 / size**0.5], rel=1e-4)


def test_weights_of_another_build_are_refused_by_name():
    lay = nets.layout(Box((4,), 0.0, 1.0))
    small, wide, deep = (nets.Net(shape(hidden=h), lay, 2, 1.0, [0]) for h in ((8,), (9,), (8, 8)))
    with pytest.raises(
        ValueError, match=r"x: 'body.layers.0.weight' is \(1, 4, 9\) in the saved weights, \(1, 4, 8\) here"
    ):
        nets.restore(small, nets.export(wide), "x")
    with pytest.raises(ValueError, match=r"x: the saved weights have no 'body.layers.1.weight'"):
        nets.restore(deep, nets.export(small), "x")
    with pytest.raises(ValueError, match=r"x: the saved weights have 'body.layers.1.weight', which is not here"):
        nets.restore(small, nets.export(deep), "x")
