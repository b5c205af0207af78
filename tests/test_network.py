"""The network policy: normalisation, identity, stacks, and each of its settings."""

import dataclasses

import numpy as np
import pytest
import torch

from coterie import nets
from coterie.policies.network import NetworkSettings, Normalizer
from coterie.types import Box, Dict, View, leading
from small_worlds import ACTIONS, generator, network, place

PICTURE = Box((2, 4, 4), 0.0, 1.0)


def view(observation, greedy=True, agents=None, seed=0, mask=None):
    rows = leading(observation).shape[:2]
    agents = np.arange(rows[1]) if agents is None else np.array(agents)
    return View(observation, np.ones(rows, bool), agents, generator(seed), greedy, mask)


def seen(copies=6, agents=2, size=3, seed=0):
    return generator(seed).standard_normal((copies, agents, size), np.float32)


def outputs(policy, observation):
    """What the net says, [N, A, outputs]."""
    rows, who = policy.rows(observation)
    with torch.no_grad():
        out = policy.net(policy.normalizer(torch.from_numpy(rows)), torch.from_numpy(who)).numpy()
    lead = observation.shape[:2]
    return out.reshape(*lead, -1) if policy.place.stacks == 1 else out.transpose(1, 0, 2)


def stir(policy, seed=0):
    """Weights large enough for outputs to differ."""
    generator_ = torch.Generator().manual_seed(seed)
    for parameter in policy.net.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator_)
    return policy


# Normalizer ---------------------------------------------------------------------------------------------


def test_moments_equal_numpys_over_all_batches_together():
    lay = nets.layout(Box((3,), -1.0, 1.0))
    one = Normalizer(lay, 2, True)
    batches = [generator(i).standard_normal((2, 5 + 7 * i, 3), np.float32) * 3 + 2 for i in range(4)]
    for batch in batches:
        one.update(list(batch))
    both = np.concatenate(batches, axis=1).astype(np.float64)
    assert np.allclose(one.mean, both.mean(axis=1))
    assert np.allclose(one.square, both.var(axis=1))
    x = batches[0]
    expected = (x - both.mean(1, keepdims=True)) / np.sqrt(both.var(1, keepdims=True) + 1e-8)
    assert np.allclose(one(torch.from_numpy(x)).numpy(), expected.clip(-10, 10), atol=1e-5)


def test_stacks_of_unequal_size_keep_their_own_moments():
    one = Normalizer(nets.layout(Box((3,), -1.0, 1.0)), 3, True)
    parts = [
        [generator(10 * i + j).standard_normal((count, 3)) + j for j, count in enumerate((4, 9, 0))] for i in range(2)
    ]
    for part in parts:
        one.update(part)
    for stack in (0, 1):
        together = np.concatenate([part[stack] for part in parts])
        assert np.allclose(one.mean[stack], together.mean(0))
        assert np.allclose(one.square[stack], together.var(0))
    x = torch.from_numpy(generator().standard_normal((3, 2, 3), np.float32))
    assert torch.allclose(one(x)[2], x[2])  # nothing is known of the third yet
    assert one.count.tolist() == [8, 18, 0]


def test_rows_of_a_set_share_their_moments():
    lay = nets.layout(Dict({"own": Box((1,), 0.0, 1.0), "at": Box((4, 2), 0.0, 1.0)}, (("at",),)))
    one = Normalizer(lay, 1, True)
    rows = generator().standard_normal((1, 20, 9), np.float32)
    rows[..., 3:5] += 5  # one of the four things is elsewhere
    one.update(list(rows))
    at = rows[0, :, 1:].reshape(-1, 2).astype(np.float64)
    assert np.allclose(one.mean[0], [rows[0, :, 0].mean(), *at.mean(0)], atol=1e-6)
    assert np.allclose(one.square[0, 1:], at.var(0))


def test_an_empty_set_teaches_nothing_about_its_rows():
    lay = nets.layout(Dict({"at": Box((0, 2), 0.0, 1.0), "own": Box((1,), 0.0, 1.0)}, (("at",),)))
    one = Normalizer(lay, 1, True)
    one.update([np.full((5, 1), 3.0)])
    assert one.mean.tolist() == [[0, 0, 3]]
    assert one.square.tolist() == [[1, 1, 0]]


def test_before_any_update_and_when_off_rows_pass_unchanged():
    lay, x = nets.layout(Box((3,), -1.0, 1.0)), torch.full((1, 2, 3), 50.0)
    fresh, off = Normalizer(lay, 1, True), Normalizer(lay, 1, False)
    off.update([np.ones((4, 3))])
    assert torch.equal(fresh(x), x)
    assert torch.equal(off(x), x)
    picture = Normalizer(nets.layout(PICTURE), 1, True)
    picture.update([np.ones((4, 32))])
    assert torch.equal(picture(torch.full((1, 1, 32), 0.5)), torch.full((1, 1, 32), 0.5))


def test_outliers_are_held_at_10_and_constants_do_no_harm():
    one = Normalizer(nets.layout(Box((2,), -1.0, 1.0)), 1, True)
    one.update([np.stack([np.full(50, 0.25), generator().standard_normal(50)], axis=1)])
    out = one(torch.tensor([[[0.25, 1e6]]]))
    assert out.tolist() == [[[0, 10]]]


def test_a_saved_state_is_not_touched_by_later_updates():
    one = Normalizer(nets.layout(Box((3,), -1.0, 1.0)), 1, True)
    one.update([seen()[:, 0]])
    state = one.state()
    kept = {name: np.array(value) for name, value in state.items()}
    one.update([seen(seed=1)[:, 0] + 9])
    assert all(np.array_equal(kept[name], state[name]) for name in kept)
    one.load(state)
    assert np.array_equal(one.mean, kept["mean"])


# Acting --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parameters", ["shared", "individual"])
@pytest.mark.parametrize("action", ACTIONS)
def test_log_probabilities_are_what_the_head_says_of_the_net(action, parameters):
    policy = network(place(ACTIONS[action], agents=3, parameters=parameters))
    policy.normalizer.update([seen(seed=s).reshape(-1, 3) * 2 + 1 for s in range(policy.place.stacks)])
    observation = seen(agents=3)
    said = policy.act(view(observation, greedy=False))
    out = torch.from_numpy(np.ascontiguousarray(outputs(policy, observation)))
    log_prob, _ = policy.head.judge(out, torch.from_numpy(said.action), None)
    assert np.allclose(said.log_prob, log_prob.numpy(), atol=1e-5)


def test_observations_are_normalised_before_the_net_sees_them():
    observation = seen() * 100 + 500
    for wanted in (True, False):
        policy = stir(network(place(), normalize_observations=wanted))
        before = policy.act(view(observation)).log_prob
        policy.normalizer.update([observation.reshape(-1, 3)])
        after = policy.act(view(observation)).log_prob
        assert np.array_equal(before, after) is not wanted
    rows = policy.rows(observation)[0]
    assert np.array_equal(rows[0], observation.reshape(-1, 3))


def test_individual_agents_have_their_own_weights():
    policy = stir(network(place(agents=3, parameters="individual")))
    alike = np.repeat(seen(agents=1), 3, axis=1)
    out = outputs(policy, alike)
    assert not np.allclose(out[:, 0], out[:, 1])
    assert not np.allclose(out[:, 1], out[:, 2])
    for name, array in policy.state()["net"].items():
        assert len(array) == 3, name
    solo = network(place(agents=1))
    state = policy.state()
    solo.load(
        {
            "net": {name: array[2:] for name, array in state["net"].items()},
            "normalizer": {name: array[2:] for name, array in state["normalizer"].items()},
        }
    )
    assert np.allclose(outputs(solo, alike[:, 2:])[:, 0], out[:, 2], atol=1e-5)


@pytest.mark.parametrize("parameters", ["shared", "individual"])
@pytest.mark.parametrize("asked", [[2], [0, 2], [1], [2, 1, 0], [1, 1], [0, 1, 2, 0]])
def test_any_agents_may_be_asked_in_any_order(parameters, asked):
    policy = stir(network(place(ACTIONS["box"], agents=3, parameters=parameters)))
    observation = seen(agents=3)
    policy.normalizer.update([seen(seed=s).reshape(-1, 3) * 2 + 1 for s in range(policy.place.stacks)])
    everyone = policy.act(view(observation))
    some = policy.act(view(observation[:, asked], agents=asked))
    assert np.allclose(some.action, everyone.action[:, asked], atol=1e-5)
    assert np.allclose(some.log_prob, everyone.log_prob[:, asked], atol=1e-4)


def test_another_seed_or_group_begins_with_other_weights():
    first = network(place()).state()["net"]["out.weight"]
    assert np.array_equal(first, network(place()).state()["net"]["out.weight"])
    for other in (place(seed=1), place(group="others")):
        assert not np.array_equal(first, network(other).state()["net"]["out.weight"])
    stacks = network(place(parameters="individual")).state()["net"]["out.weight"]
    assert not np.array_equal(stacks[0], stacks[1])


def test_masks_reach_the_head():
    policy = network(place())
    mask = np.zeros((6, 2, 4), bool)
    mask[..., 2] = True
    assert (policy.act(view(seen(), greedy=False, mask=mask)).action == 2).all()


# Settings ------------------------------------------------------------------------------------------------


def test_hidden_decides_the_layers():
    policy = network(place(), hidden=(5, 7))
    assert [tuple(layer.weight.shape[1:]) for layer in policy.net.body.layers] == [(5, 5), (5, 7)]  # 3 + 2 agents


def test_activation_is_the_one_asked_for():
    hidden = {a: network(place(), activation=a).net.body(torch.ones(1, 9, 5) * 9) for a in ("tanh", "relu")}
    assert hidden["tanh"].abs().max() <= 1
    assert hidden["relu"].min() >= 0
    assert hidden["relu"].max() > 1


def test_encoder_is_the_one_asked_for():
    named = Dict({"own": Box((2,), 0.0, 1.0), "at": Box((3, 2), 0.0, 1.0)}, (("at",),))
    kinds = {
        ("auto", "picture"): nets.Convolutions,
        ("cnn", "picture"): nets.Convolutions,
        ("mlp", "picture"): type(None),
        ("auto", "named"): type(None),
        ("set", "named"): nets.SetEncoder,
    }
    for (encoder, space), kind in kinds.items():
        policy = network(place(observation=PICTURE if space == "picture" else named), encoder=encoder)
        assert type(policy.net.encode) is kind
        observation = (
            generator().random((4, 2, 2, 4, 4), np.float32)
            if space == "picture"
            else {"own": generator().random((4, 2, 2), np.float32), "at": generator().random((4, 2, 3, 2), np.float32)}
        )
        assert policy.act(view(observation)).action.shape == (4, 2)
    with pytest.raises(ValueError, match="encoder 'cnn' needs a picture"):
        network(place(), encoder="cnn")


def test_channels_decide_the_convolutions():
    kernels = network(place(observation=PICTURE), channels=(3, 5)).net.encode.kernels
    assert [tuple(k.shape[1:3]) for k in kernels] == [(3, 2), (5, 3)]


@pytest.mark.parametrize("space", [Box((3,), -1.0, 1.0), Box((2, 4, 4), 0.0, 1.0)])
def test_a_shared_network_tells_agents_apart_only_by_identity(space):
    alike = np.repeat(generator().random((6, 1, *space.shape), np.float32), 2, axis=1)
    told, untold = (stir(network(place(observation=space), identity=i)) for i in (True, False))
    out = outputs(told, alike)
    assert not np.allclose(out[:, 0], out[:, 1])
    out = outputs(untold, alike)
    assert np.allclose(out[:, 0], out[:, 1], atol=1e-4)


def test_identity_is_left_out_where_it_has_no_meaning():
    named = Dict({"own": Box((2,), 0.0, 1.0), "at": Box((3, 2), 0.0, 1.0)}, (("at",),))
    assert network(place()).shape.identities == 2
    assert network(place(agents=1)).shape.identities == 0
    assert network(place(parameters="individual")).shape.identities == 0
    assert network(place(observation=named), encoder="set").shape.identities == 0


def test_continuous_decides_the_family():
    observation = np.zeros((20_000, 1, 3), np.float32)
    where = place(Box((1,), 0.0, 1.0), agents=1)
    spread = {}
    for family in ("beta", "gaussian"):
        policy = network(where, continuous=family)
        spread[family] = policy.act(view(observation, greedy=False)).action.std()
    # Untrained, Beta has both parameters 1 + ln 2; tanh of a standard normal reaches further out.
    a = 1 + np.log(2)
    assert spread["beta"] == pytest.approx(np.sqrt(1 / (4 * (2 * a + 1))), abs=0.01)
    assert spread["gaussian"] == pytest.approx(np.tanh(generator().standard_normal(100_000)).std() / 2, abs=0.01)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden": ()}, "hidden must name at least one layer, got none"),
        ({"hidden": (8, 0)}, "a layer's width must be above 0, got 0"),
        ({"channels": (-1,)}, "a layer's width must be above 0, got -1"),
    ],
)
def test_impossible_settings_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        NetworkSettings(**fields)


def test_every_setting_has_a_test_here():
    tested = {"hidden", "activation", "encoder", "channels", "identity", "continuous", "normalize_observations"}
    assert {field.name for field in dataclasses.fields(NetworkSettings)} == tested


# Loading -------------------------------------------------------------------------------------------------


def test_weights_of_another_world_are_refused_with_a_cure():
    state = network(place(observation=Box((4,), -1.0, 1.0))).state()
    with pytest.raises(ValueError, match=r"group 'team': 'body.layers.0.weight' .* A set network"):
        network(place()).load(state)


def things(count):
    return Dict({"own": Box((2,), 0.0, 1.0), "at": Box((count, 2), 0.0, 1.0)}, (("at",),))


def test_a_set_network_moves_to_another_number_of_agents_and_things():
    trained = stir(network(place(observation=things(3)), encoder="set"))
    trained.normalizer.update([generator().random((20, 8))])
    own, at = generator(1).random((5, 2), np.float32), generator(2).random((5, 2), np.float32)
    first = trained.act(
        view({"own": own[:, None].repeat(2, 1), "at": np.broadcast_to(at[:, None, None], (5, 2, 3, 2))})
    )
    moved = network(place(observation=things(1), agents=4), encoder="set")
    moved.load(trained.state())
    second = moved.act(view({"own": own[:, None].repeat(4, 1), "at": np.broadcast_to(at[:, None, None], (5, 4, 1, 2))}))
    assert np.allclose(first.log_prob[:, :1], second.log_prob, atol=1e-5)  # equal things count once or thrice
    assert (first.action[:, :1] == second.action).all()
    alone = network(place(observation=things(0), agents=1), encoder="set")
    alone.load(trained.state())
    assert alone.act(view({"own": own[:, None], "at": np.zeros((5, 1, 0, 2), np.float32)})).action.shape == (5, 1)


def test_statistics_of_another_width_are_refused():
    named = Dict({"a": Box((2,), 0.0, 1.0), "at": Box((3, 2), 0.0, 1.0)}, (("at",),))
    policy = network(place(observation=named))
    state = policy.state()
    state["normalizer"]["mean"] = np.zeros((1, 9))
    with pytest.raises(ValueError, match="saved observation statistics have another width"):
        policy.load(state)
