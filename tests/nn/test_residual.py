"""The residual tower: shapes, its start as the identity, seeds, and gradients in every weight."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from coterie.nn.residual import Block, ResidualTower, convolution, linear


def tower(seed=0, blocks=2, channels=6, planes=(2, 3, 4), actions=5):
    return ResidualTower(planes, actions, channels, blocks, 7, seed)


def views(rows=8, size=24, seed=1):
    return torch.rand(rows, size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("planes", [(2, 3, 3), (3, 6, 7), (1, 1, 1)])
@pytest.mark.parametrize("blocks", [0, 3])
def test_logits_of_all_actions_and_a_value(planes, blocks):
    out = tower(planes=planes, blocks=blocks)(views(5, int(np.prod(planes))))
    assert out.shape == (5, 6)
    assert torch.isfinite(out).all()


def test_blocks_start_as_the_identity():
    block = Block(4, torch.Generator().manual_seed(0))
    x = torch.rand(3, 4, 5, 5)
    assert torch.equal(block(x), x)  # x is not negative: the last relu changes nothing
    deep, shallow = tower(blocks=6), tower(blocks=0)
    for name in ("stem", "policy_planes", "policy", "value_planes", "value_hidden", "value"):
        getattr(shallow, name).load_state_dict(getattr(deep, name).state_dict())
    assert torch.equal(deep(views()), shallow(views()))


def test_the_layers_by_hand():
    net = tower(blocks=1)
    with torch.no_grad():
        net.blocks[0].second.weight.normal_(generator=torch.Generator().manual_seed(2))
    x = views(3)
    planes = x.reshape(3, 2, 3, 4)
    h = functional.relu(functional.conv2d(planes, net.stem.weight, net.stem.bias, padding=1))
    first, second = net.blocks[0].first, net.blocks[0].second
    inner = functional.relu(functional.conv2d(h, first.weight, first.bias, padding=1))
    h = functional.relu(h + functional.conv2d(inner, second.weight, second.bias, padding=1))
    policy = functional.conv2d(h, net.policy_planes.weight, net.policy_planes.bias).reshape(3, -1)
    value = functional.conv2d(h, net.value_planes.weight, net.value_planes.bias).reshape(3, -1)
    logits = policy @ net.policy.weight.T + net.policy.bias
    hidden = functional.relu(value @ net.value_hidden.weight.T + net.value_hidden.bias)
    expected = torch.cat([logits, hidden @ net.value.weight.T + net.value.bias], dim=1)
    torch.testing.assert_close(net(x), expected)


def test_a_position_is_evaluated_alike_in_every_batch():
    net, x = tower(), views(9)
    whole = net(x)
    for row in range(9):
        torch.testing.assert_close(net(x[row : row + 1])[0], whole[row], atol=1e-6, rtol=1e-5)
    net.train()
    trained = net(x)
    net.eval()
    assert torch.equal(trained, net(x))  # nothing differs between training and playing


def test_seeds():
    one, same, other = tower(0), tower(0), tower(1)
    for a, b, c in zip(one.parameters(), same.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not a.any() or not torch.equal(a, c)


def test_nothing_is_drawn_from_global_randomness():
    torch.manual_seed(0)
    one = tower(3)
    torch.manual_seed(1)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), tower(3).parameters(), strict=True))


def test_weights_have_their_deviation_and_biases_start_at_zero():
    generator = torch.Generator().manual_seed(0)
    for layer, deviation in (
        (convolution(32, 64, 3, 2.0**0.5, generator), (2 / (32 * 9)) ** 0.5),
        (linear(256, 128, 0.1, generator), 0.1 / 16),
    ):
        assert float(layer.weight.detach().std()) == pytest.approx(deviation, rel=0.05)
        assert not layer.bias.any()


def test_every_weight_learns():
    net = tower(blocks=2)
    rate = torch.optim.SGD(net.parameters(), 0.05)
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    for _ in range(3):  # the first convolution of a block moves once the second has left zero
        rate.zero_grad()
        (net(views()) - 1).square().mean().backward()
        rate.step()
    assert all(not torch.equal(before[name], p) for name, p in net.named_parameters())


@pytest.mark.slow
def test_no_seed_goes_blind():
    """Values still tell positions apart after the first, large steps; a ReLU on the heads' planes ended that."""
    x = (torch.rand(64, 2 * 6 * 6, generator=torch.Generator().manual_seed(0)) < 0.3).float()
    target = torch.sign(x[:, :36].sum(1) - x[:, 36:].sum(1))
    for seed in range(6):
        net = ResidualTower((2, 6, 6), 37, 16, 1, 16, seed)
        optimizer = torch.optim.Adam(net.parameters(), 0.003)
        for _ in range(25):
            optimizer.zero_grad()
            out = net(x)
            ((out[:, -1].tanh() - target) ** 2).mean().backward()
            optimizer.step()
        assert out[:, -1].std() > 0.5, seed
        assert net(x)[:, :-1].std(dim=0).min() > 1e-3, seed
