"""Encoders of pictures: their layers against PyTorch's own, gradients, and bytes."""

import pytest
import torch
from torch.nn import functional

from coterie.nn.image_encoders import Convolutions, Impala, Nature, make_image_encoder


def generators(*seeds):
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def pictures(sets, rows, image):
    shape, generator = (sets, rows, image[0] * image[1] * image[2]), torch.Generator().manual_seed(0)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def test_names_make_their_encoders():
    image = (1, 40, 40)
    found = {name: make_image_encoder(name, image, (3,), generators(0)) for name in ("cnn", "nature", "impala")}
    assert {name: type(net) for name, net in found.items()} == {"cnn": Convolutions, "nature": Nature, "impala": Impala}


def test_nature_is_the_published_network():
    net, x = Nature((4, 84, 84), generators(0)), pictures(1, 3, (4, 84, 84))
    h = x[0].view(3, 4, 84, 84) / 255
    for layer, stride in zip(net.convolutions, (4, 2, 1), strict=True):
        layer.bias.data.uniform_(-0.1, 0.1)
        h = torch.relu(functional.conv2d(h, layer.kernel[0], layer.bias[0], stride))
    assert [tuple(layer.kernel.shape[1:]) for layer in net.convolutions] == [
        (32, 4, 8, 8),
        (64, 32, 4, 4),
        (64, 64, 3, 3),
    ]
    assert h.shape == (3, 64, 7, 7)
    expected = torch.relu(h.flatten(1) @ net.dense.weight[0] + net.dense.bias[0])
    assert net(x).shape == (1, 3, 512)
    assert torch.allclose(net(x)[0], expected, atol=1e-5)


def test_impala_is_the_published_network():
    net, x = Impala((3, 21, 30), generators(0)), pictures(1, 2, (3, 21, 30))
    h = x[0].view(2, 3, 21, 30) / 255

    def convolve(layer, h):
        return functional.conv2d(h, layer.kernel[0], layer.bias[0], padding=1)

    for section in net.sections:
        first, _, *blocks = section
        h = functional.max_pool2d(convolve(first, h), 3, 2, 1)
        for block in blocks:
            h = h + convolve(block.second, torch.relu(convolve(block.first, torch.relu(h))))
    assert sum(p.dim() == 5 for p in net.parameters()) == 15
    assert h.shape == (2, 32, 3, 4)
    expected = torch.relu(torch.relu(h).flatten(1) @ net.dense.weight[0] + net.dense.bias[0])
    assert torch.allclose(net(x)[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["cnn", "nature", "impala"])
@pytest.mark.parametrize("sets", [1, 2])
def test_bytes_are_read_as_fractions_of_255(name, sets):
    image = (2, 36, 38)
    net, x = make_image_encoder(name, image, (3,), generators(*range(sets))), pictures(sets, 3, image)
    assert torch.equal(net(x), net(x / 255))
    assert net(x).shape == (sets, 3, net.outputs)


@pytest.mark.parametrize("name", ["cnn", "nature", "impala"])
def test_every_parameter_learns(name):
    net = make_image_encoder(name, (2, 36, 36), (3,), generators(0, 1))
    net(pictures(2, 4, (2, 36, 36))).square().sum().backward()
    assert all(p.grad is not None and (p.grad.flatten(1) != 0).any(dim=1).all() for p in net.parameters())


def test_pictures_too_small_for_nature_are_refused():
    Nature((1, 36, 36), generators(0))
    with pytest.raises(ValueError, match="36×36 pixels, got 35×84; set encoder=impala"):
        Nature((1, 35, 84), generators(0))
