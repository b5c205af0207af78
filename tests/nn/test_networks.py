"""Encoders, stacks, and flat views of parameters. Memory has tests of its own in `test_networks_memory.py`."""

import numpy as np
import pytest
import torch

from coterie.core.types import Box, Dict, Discrete
from coterie.nn import networks
from coterie.nn.packing import layout, pack
from helpers.small_worlds import NAMED, generator


def shape(**fields):
    return networks.Shape(
        **{"hidden": (8,), "activation": "tanh", "encoder": "auto", "channels": (4,), "extra": 0} | fields
    )


def rows(parameter_sets, count, size, seed=0):
    return torch.from_numpy(generator(seed).standard_normal((parameter_sets, count, size), np.float32))


def said(net, x):
    """The outputs of a network without memory."""
    out, memory = net(x)
    assert memory is None
    return out


# Networks ----------------------------------------------------------------------------------------------


def bent(lay, **fields):
    """Weights and biases of a first layer with random features."""
    net = networks.Network(shape(hidden=(2000,), random_feature_init=3.0, **fields), lay, 1, 1.0, [0])
    return net.body.layers[0].weight[0].detach(), net.body.layers[0].bias[0, 0].detach()


def test_random_features_lie_within_the_input_range_and_are_as_steep_as_asked():
    low, high = np.array([0.0, -1.0], np.float32), np.array([10.0, 0.0], np.float32)
    weight, bias = bent(layout(Box((2,), low, high)), extra=1)
    half, centre = torch.tensor([5.0, 0.5, 1.0]), torch.tensor([5.0, -0.5, 0.0])
    sharp = weight * half.unsqueeze(-1)
    assert sharp.std(dim=1).tolist() == pytest.approx([3 / 3**0.5] * 3, rel=0.06)
    at = (bias + centre @ weight) / sharp.norm(dim=0)  # how far the bend is from the middle, in half ranges
    assert float(at.abs().max()) <= 3**0.5  # the box's corner
    assert float(at.mean()) == pytest.approx(0, abs=0.05)
    assert float(at.std()) == pytest.approx(3**-0.5, abs=0.03)  # as of something uniform on [−1, 1]


def test_random_features_of_normalised_observations_and_of_choices_lie_in_their_units():
    weight, bias = bent(layout(Box((1,), 0.0, 1000.0)), scaled=True)
    assert float(weight.std()) == pytest.approx(3, rel=0.06)
    assert float((bias / weight[0]).abs().max()) <= 1 + 1e-5
    weight, bias = bent(layout(Discrete(2)))
    assert float(weight.std()) == pytest.approx(3 / 0.5 / 2**0.5, rel=0.06)


def test_without_random_features_all_units_are_centred_at_zero():
    net = networks.Network(shape(), layout(Box((2,), 0.0, 1.0)), 1, 1.0, [0])
    assert not net.body.layers[0].bias.any()


def test_random_features_need_a_perceptron():
    with pytest.raises(ValueError, match="random_feature_init=0"):
        networks.Network(shape(random_feature_init=1.0), layout(Box((2, 4, 4), 0.0, 1.0)), 1, 1.0, [0])


@pytest.mark.parametrize(
    ("space", "fields"),
    [
        (Box((5,), 0.0, 1.0), {"hidden": (8, 6)}),
        (Box((2, 4, 4), 0.0, 1.0), {"channels": (3, 5)}),
        (Box((2, 38, 40), 0.0, 1.0), {"encoder": "nature"}),
        (Box((2, 9, 12), 0.0, 1.0), {"encoder": "impala"}),
        (NAMED, {"encoder": "set"}),
    ],
)
def test_stacked_networks_equal_separate_ones(space, fields):
    lay = layout(space)
    both = networks.Network(shape(**fields), lay, 3, 0.5, [1, 2])
    apart = [networks.Network(shape(**fields), lay, 3, 0.5, [seed]) for seed in (1, 2)]
    x = rows(2, 7, lay.size)
    out = said(both, x)
    out.square().sum().backward()
    for i, net in enumerate(apart):
        alone = said(net, x[i : i + 1])
        assert torch.allclose(alone[0], out[i], atol=1e-5)
        alone.square().sum().backward()
        for mine, theirs in zip(net.parameters(), both.parameters(), strict=True):
            assert torch.allclose(mine.grad[0], theirs.grad[i], rtol=1e-3, atol=1e-4)
    assert not torch.allclose(out[0], out[1])


def test_a_perceptron_by_hand():
    net = networks.Network(shape(hidden=(4, 3)), layout(Box((2,), 0.0, 1.0)), 1, 1.0, [0])
    x = rows(1, 5, 2)
    weights = [(layer.weight[0], layer.bias[0, 0]) for layer in [*net.body.layers, net.out]]
    hidden = torch.tanh(torch.tanh(x[0] @ weights[0][0] + weights[0][1]) @ weights[1][0] + weights[1][1])
    assert torch.allclose(said(net, x)[0], hidden @ weights[2][0] + weights[2][1], atol=1e-6)


def test_activations_differ():
    lay = layout(Box((2,), 0.0, 1.0))
    tanh, relu = (networks.Network(shape(activation=a), lay, 8, 1.0, [0]) for a in ("tanh", "relu"))
    x = rows(1, 50, 2) * 5
    hidden = relu.body(x)
    assert (hidden >= 0).all()
    assert (hidden > 1).any()
    assert (tanh.body(x).abs() <= 1).all()


def test_initial_layers_are_orthogonal_and_the_last_has_its_gain():
    net = networks.Network(shape(hidden=(6,)), layout(Box((6,), 0.0, 1.0)), 6, 0.01, [3])
    for layer, gain in ((net.body.layers[0], np.sqrt(2)), (net.out, 0.01)):
        matrix = layer.weight[0]
        assert torch.allclose(matrix @ matrix.T, torch.eye(6) * gain**2, atol=1e-5)
        assert not layer.bias.any()


def test_convolutions_are_pytorchs_own():
    lay = layout(Box((2, 5, 4), 0.0, 1.0))
    net = networks.Network(shape(channels=(3, 6)), lay, 2, 1.0, [0])
    x = rows(1, 4, lay.size)
    picture = x[0].view(4, 2, 5, 4)
    for kernel, bias in zip(net.encode.kernels, net.encode.biases, strict=True):
        bias.data.uniform_(-1, 1)
        picture = torch.relu(torch.nn.functional.conv2d(picture, kernel[0], bias[0], padding=1))
    assert torch.allclose(net.encode(x)[0], picture.flatten(1), atol=1e-5)
    assert said(net, x).shape == (1, 4, 2)


def test_channels_decide_the_convolutions():
    lay = layout(Box((2, 5, 4), 0.0, 1.0))
    kernels = networks.Network(shape(channels=(3, 6, 7)), lay, 2, 1.0, [0]).encode.kernels
    assert [tuple(k.shape) for k in kernels] == [(1, 3, 2, 3, 3), (1, 6, 3, 3, 3), (1, 7, 6, 3, 3)]


@pytest.mark.parametrize(
    ("space", "encoder"), [(Box((2,), 0.0, 1.0), "mlp"), (Box((2, 4, 4), 0.0, 1.0), "cnn"), (NAMED, "set")]
)
def test_what_lies_behind_the_observation_skips_the_encoder(space, encoder):
    lay = layout(space)
    net = networks.Network(shape(encoder=encoder, extra=3), lay, 2, 1.0, [0])
    x = rows(1, 1, lay.size).expand(1, 3, lay.size)
    who = torch.eye(3)[None]
    out = said(net, torch.cat([x, who], dim=-1))
    assert not torch.allclose(out[0, 0], out[0, 1])
    assert torch.allclose(said(net, torch.cat([x, who[:, [1, 1, 1]]], dim=-1))[0], out[0, 1], atol=1e-6)
    read = x if net.encode is None else net.encode(x)
    assert torch.equal(net.features(torch.cat([x, who], dim=-1)), net.body(torch.cat([read, who], dim=-1)))


# Sets --------------------------------------------------------------------------------------------------


def things(count):
    entries = {"own": Box((2,), -1.0, 1.0), "at": Box((count, 2), -1.0, 1.0), "on": Box((count,), 0.0, 1.0)}
    return layout(Dict(entries, (("at", "on"),)))


def test_the_order_of_a_sets_rows_does_not_matter():
    lay = things(4)
    net = networks.Network(shape(encoder="set"), lay, 3, 1.0, [0])
    random = generator()
    seen = {name: random.random((6, *e.shape), np.float32) for name, e in lay.entries.items()}
    order = [2, 0, 3, 1]
    moved = seen | {"at": seen["at"][:, order], "on": seen["on"][:, order]}
    broken = seen | {"at": seen["at"][:, order]}  # rows no longer belong together
    out, same, other = (said(net, torch.from_numpy(pack(lay, o))[None]) for o in (seen, moved, broken))
    assert torch.allclose(out, same, atol=1e-6)
    assert not torch.allclose(out, other, atol=1e-3)


def test_weights_fit_any_number_of_things():
    net = networks.Network(shape(encoder="set"), things(4), 3, 1.0, [0])
    for count in (0, 1, 9):
        other = networks.Network(shape(encoder="set"), things(count), 3, 1.0, [1])
        networks.restore(other, networks.export(net), "set")
        x = rows(1, 5, things(count).size)
        assert torch.isfinite(said(other, x)).all()
    x = rows(1, 5, 5)  # two equal things read as one
    one, two = (networks.Network(shape(encoder="set"), things(n), 3, 1.0, [0]) for n in (1, 2))
    networks.restore(two, networks.export(one), "set")
    twice = torch.cat([x[..., :4], x[..., 2:4], x[..., 4:], x[..., 4:]], dim=-1)  # own, at, at, on, on
    assert torch.allclose(said(one, x), said(two, twice), atol=1e-6)


def test_a_set_without_features_of_ones_own():
    lay = layout(Dict({"at": Box((3, 2), 0.0, 1.0)}, (("at",),)))
    net = networks.Network(shape(encoder="set"), lay, 2, 1.0, [0])
    assert said(net, rows(1, 4, 6)).shape == (1, 4, 2)


def test_things_are_read_in_the_light_of_ones_own_place():
    lay = things(2)
    net = networks.Network(shape(encoder="set"), lay, 3, 1.0, [0])
    x = rows(1, 5, lay.size)
    moved = x.clone()
    moved[..., :2] += 1
    width = net.encode.width
    assert not torch.allclose(net.encode(x)[..., -2 * width :], net.encode(moved)[..., -2 * width :], atol=1e-3)


def test_encoders_are_chosen_and_refused():
    picture, vector = layout(Box((2, 3, 3), 0.0, 1.0)), layout(Box((3,), 0.0, 1.0))
    assert [networks.choose_encoder("auto", lay) for lay in (picture, vector, things(2))] == ["cnn", "mlp", "mlp"]
    assert networks.choose_encoder("mlp", picture) == "mlp"
    sides = ((32, 32), (33, 84), (36, 36), (84, 84), (210, 160))
    found = [networks.choose_encoder("auto", layout(Box((4, *side), 0.0, 255.0, "uint8"))) for side in sides]
    assert found == ["cnn", "impala", "nature", "nature", "nature"]
    assert networks.choose_encoder("set", things(2)) == "set"
    for name in ("cnn", "nature", "impala"):
        with pytest.raises(ValueError, match=f"encoder '{name}'"):
            networks.choose_encoder(name, vector)
    with pytest.raises(ValueError, match="encoder 'set'"):
        networks.choose_encoder("set", vector)


# Flat views ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parameter_sets", [1, 3])
@pytest.mark.parametrize("fields", [{}, {"memory": 5}, {"encoder": "set"}], ids=["plain", "memory", "set"])
def test_descending_is_pytorchs_adam_on_the_network(parameter_sets, fields):
    lay = layout(NAMED)
    net, plain = (networks.Network(shape(**fields), lay, 2, 1.0, list(range(parameter_sets))) for _ in range(2))
    flat, adam = networks.FlatParams(net), torch.optim.Adam(plain.parameters(), lr=0.01, eps=1e-5)
    assert flat.array.shape == (parameter_sets, sum(p.numel() for p in net.parameters()) // parameter_sets)
    held = torch.zeros(parameter_sets, 6, 5) if "memory" in fields else None
    for step in range(5):
        for mine, theirs in zip(net.parameters(), plain.parameters(), strict=True):
            assert torch.allclose(mine, theirs, atol=1e-6)
        x = rows(parameter_sets, 6, lay.size, seed=step)
        networks.adam_step([flat], net(x, held)[0].square().sum(), 0.01, 1e9)
        plain.zero_grad()
        plain(x, held)[0].square().sum().backward()
        adam.step()
    assert (flat.steps == 5).all()


@pytest.mark.parametrize("away", [False, True], ids=["here", "copied"])
def test_one_stack_of_any_shapes_learns_and_what_is_frozen_stays(away):
    net, plain = (torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2)) for _ in range(2))
    plain.load_state_dict(net.state_dict())
    for one in (net, plain):
        one[0].bias.requires_grad_(False)
        one[1].weight.data = one[1].weight.data.to(torch.float64 if away else torch.float32)  # not what Flat holds
        one[1].bias.data = one[1].bias.data.to(one[1].weight.dtype)
    first = networks.export(net)
    flat = networks.FlatParams(net, parameter_sets=1)
    adam = torch.optim.Adam([p for p in plain.parameters() if p.requires_grad], lr=0.01, eps=1e-5)
    assert flat.array.shape == (1, 12 + 6 + 2)
    assert list(first) == ["0.weight", "1.weight", "1.bias"]
    for step in range(3):
        x = rows(1, 6, 4, seed=step)[0]

        def loss(one, x=x):
            return one[1](one[0](x).to(one[1].weight.dtype)).square().sum()

        networks.adam_step([flat], loss(net), 0.01, 1e9)
        plain.zero_grad()
        loss(plain).backward()
        adam.step()
        for mine, theirs in zip(net.parameters(), plain.parameters(), strict=True):
            assert torch.allclose(mine, theirs, atol=1e-5)
    networks.restore(net, first, "net")
    assert all(np.array_equal(array, first[name]) for name, array in networks.export(net).items())
    networks.adam_step([flat], loss(net), 0.0, 1e9)
    for name, array in networks.export(
        net
    ).items():  # a restored parameter is where the next step begins, wherever it lies
        assert np.allclose(array, first[name]), name
    assert np.allclose(flat.array[0], np.concatenate([array.ravel() for array in first.values()]))


def test_pytorch_finds_nothing_to_warn_of(recwarn):
    net = networks.Network(shape(), layout(Box((4,), 0.0, 1.0)), 2, 1.0, [0, 1, 2])
    torch.set_warn_always(True)  # otherwise only the first of its kind in a process
    try:
        for _ in range(2):
            networks.adam_step([networks.FlatParams(net)], net(rows(3, 6, 4))[0].sum(), 0.01, 0.5)
    finally:
        torch.set_warn_always(False)
    assert not recwarn.list


def test_what_a_loss_does_not_touch_stays():
    lay = things(0)  # an empty set: its reader is never asked
    net = networks.Network(shape(encoder="set"), lay, 2, 1.0, [0])
    flat, before = networks.FlatParams(net), networks.export(net)
    networks.adam_step([flat], net(rows(1, 5, lay.size))[0].square().sum(), 0.01, 0.5)
    for name, array in networks.export(net).items():
        assert np.array_equal(before[name], array) is name.startswith("encode."), name


def test_restoring_writes_through_the_flat_matrix():
    lay = layout(Box((4,), 0.0, 1.0))
    net, other = (networks.Network(shape(), lay, 2, 1.0, [seed]) for seed in (0, 1))
    flat, theirs = networks.FlatParams(net), networks.FlatParams(other)
    kept = networks.export(other)
    networks.restore(net, kept, "net")
    assert np.array_equal(flat.array, theirs.array)
    theirs.array += 1
    assert not np.allclose(kept["out.bias"], networks.export(other)["out.bias"])  # an export is a copy


def test_moments_are_saved_as_copies_and_loaded():
    lay = layout(Box((4,), 0.0, 1.0))

    def adam_step(flat, net, seed):
        networks.adam_step([flat], net(rows(2, 6, 4, seed))[0].square().sum(), 0.01, 0.5)

    net, other = (networks.Network(shape(), lay, 2, 1.0, [0, 1]) for _ in range(2))
    flat, later = networks.FlatParams(net), networks.FlatParams(other)
    adam_step(flat, net, 0)
    state, weights = flat.state(), networks.export(net)
    adam_step(flat, net, 1)
    networks.restore(other, weights, "net")
    later.load(state)
    assert (later.steps == 1).all()
    adam_step(later, other, 1)
    assert np.array_equal(later.array, flat.array)
    assert np.array_equal(later.square, flat.square)


def test_gradients_are_scaled_stack_by_stack():
    net = networks.Network(shape(), layout(Box((4,), 0.0, 1.0)), 2, 1.0, [0, 1])
    flat, factors = networks.FlatParams(net), torch.tensor([1e-4, 3.0])
    loss = sum((p.flatten(1).sum(1) * factors).sum() for p in net.parameters())  # every number's slope is its factor
    networks.adam_step([flat], loss, 0.01, 0.5)
    size = flat.array.shape[1]
    assert torch.equal(flat.grad, factors[:, None].expand(2, size))
    assert (flat.mean * 10).tolist() == [pytest.approx([1e-4] * size), pytest.approx([0.5 / size**0.5] * size)]


def test_weights_of_another_build_are_refused_by_name():
    lay = layout(Box((4,), 0.0, 1.0))
    small, wide, deep = (networks.Network(shape(hidden=h), lay, 2, 1.0, [0]) for h in ((8,), (9,), (8, 8)))
    with pytest.raises(
        ValueError, match=r"x: 'body.layers.0.weight' is \(1, 4, 9\) in the saved weights, \(1, 4, 8\) here"
    ):
        networks.restore(small, networks.export(wide), "x")
    with pytest.raises(ValueError, match=r"x: the saved weights have no 'body.layers.1.weight'"):
        networks.restore(deep, networks.export(small), "x")
    with pytest.raises(ValueError, match=r"x: the saved weights have 'body.layers.1.weight', which is not here"):
        networks.restore(small, networks.export(deep), "x")
