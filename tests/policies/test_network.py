"""The network policy: identity, stacks, memory, both ways of computing, and each of its settings."""

import dataclasses

import numpy as np
import pytest
import torch

from coterie.core.trees import leading
from coterie.core.types import Box, Dict, View
from coterie.nn import image_encoders, networks
from coterie.policies.network import NetworkSettings
from helpers.distributions import evaluate_actions
from helpers.small_worlds import ACTIONS, generator, group_spec, network

PICTURE = Box((2, 4, 4), 0.0, 1.0)


def view(observation, greedy=True, agents=None, seed=0, mask=None, memory=None):
    rows = leading(observation).shape[:2]
    agents = np.arange(rows[1]) if agents is None else np.array(agents)
    return View(observation, np.ones(rows, bool), agents, generator(seed), greedy, mask, memory)


def seen(num_envs=6, agents=2, size=3, seed=0):
    return generator(seed).standard_normal((num_envs, agents, size), np.float32)


def outputs(policy, observation):
    """Outputs of the network, `[N, A, outputs]`."""
    with torch.no_grad():
        out, _ = policy.net(torch.from_numpy(policy.inputs(observation)))
    return policy.restore_order(out.numpy(), observation.shape[:2])


def stir(policy, seed=0):
    """Weights large enough for outputs to differ."""
    generator_ = torch.Generator().manual_seed(seed)
    for parameter in policy.net.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator_))
    return policy


# Acting --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("parameters", ["shared", "individual"])
@pytest.mark.parametrize("action", ACTIONS)
def test_log_probabilities_are_what_the_head_says_of_the_net(action, parameters, compiled):
    policy = network(group_spec(ACTIONS[action], agents=3, parameters=parameters), compiled=compiled)
    policy.normalizer.update([seen(seed=s).reshape(-1, 3) * 2 + 1 for s in range(policy.group_spec.parameter_sets)])
    observation = seen(agents=3)
    said = policy.act(view(observation, greedy=False))
    out = torch.from_numpy(np.ascontiguousarray(outputs(policy, observation)))
    log_prob, _ = evaluate_actions(policy.head, out, torch.from_numpy(said.action), None)
    assert np.allclose(said.log_prob, log_prob.numpy(), atol=1e-5)


def test_observations_are_normalised_before_the_net_sees_them():
    observation = seen() * 100 + 500
    for wanted in (True, False):
        policy = stir(network(group_spec(), normalize_observations=wanted))
        before = policy.act(view(observation)).log_prob
        policy.normalizer.update([observation.reshape(-1, 3)])
        after = policy.act(view(observation)).log_prob
        assert np.array_equal(before, after) is not wanted
    rows = policy.inputs(observation)
    assert np.array_equal(rows[0, :, :3], observation.reshape(-1, 3))  # the last policy wants none
    picture = network(group_spec(observation=PICTURE))
    picture.normalizer.update([np.ones((4, 32))])
    shown = np.full((1, 2, 2, 4, 4), 0.5, np.float32)
    assert np.array_equal(picture.inputs(shown)[..., :32], shown.reshape(1, 2, 32))


def test_individual_agents_have_their_own_weights():
    policy = stir(network(group_spec(agents=3, parameters="individual")))
    alike = np.repeat(seen(agents=1), 3, axis=1)
    out = outputs(policy, alike)
    assert not np.allclose(out[:, 0], out[:, 1])
    assert not np.allclose(out[:, 1], out[:, 2])
    for name, array in policy.state()["net"].items():
        assert len(array) == 3, name
    solo = network(group_spec(agents=1))
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
@pytest.mark.parametrize("fields", [{}, {"compiled": False}, {"memory": 4}], ids=["compiled", "autograd", "memory"])
@pytest.mark.parametrize("action", ["box", "discrete"])
def test_any_agents_may_be_asked_in_any_order(parameters, asked, fields, action):
    policy = stir(network(group_spec(ACTIONS[action], agents=3, parameters=parameters), **fields))
    observation, held = seen(agents=3), seen(agents=3, size=4, seed=7) if "memory" in fields else None
    policy.normalizer.update([seen(seed=s).reshape(-1, 3) * 2 + 1 for s in range(policy.group_spec.parameter_sets)])
    everyone = policy.act(view(observation, memory=held))
    some = policy.act(view(observation[:, asked], agents=asked, memory=None if held is None else held[:, asked]))
    assert np.allclose(some.action, everyone.action[:, asked], atol=1e-5)
    assert np.allclose(some.log_prob, everyone.log_prob[:, asked], atol=1e-4)
    if held is not None:
        assert np.allclose(some.memory, everyone.memory[:, asked], atol=1e-5)


def test_another_seed_or_group_begins_with_other_weights():
    first = network(group_spec()).state()["net"]["out.weight"]
    assert np.array_equal(first, network(group_spec()).state()["net"]["out.weight"])
    for other in (group_spec(seed=1), group_spec(group="others")):
        assert not np.array_equal(first, network(other).state()["net"]["out.weight"])
    parameter_sets = network(group_spec(parameters="individual")).state()["net"]["out.weight"]
    assert not np.array_equal(parameter_sets[0], parameter_sets[1])


@pytest.mark.parametrize("parameters", ["shared", "individual"])
@pytest.mark.parametrize("compiled", [True, False])
def test_masks_reach_the_head(compiled, parameters):
    policy = network(group_spec(parameters=parameters), compiled=compiled)
    only = generator().integers(4, size=(6, 2))
    said = policy.act(view(seen(), greedy=False, mask=np.arange(4) == only[..., None]))
    assert np.array_equal(said.action, only)
    assert np.allclose(said.log_prob, 0)


# Settings ------------------------------------------------------------------------------------------------


def test_hidden_decides_the_layers():
    policy = network(group_spec(), hidden=(5, 7))
    assert [tuple(layer.weight.shape[1:]) for layer in policy.net.body.layers] == [(5, 5), (5, 7)]  # 3 + 2 agents


def test_activation_is_the_one_asked_for():
    hidden = {a: network(group_spec(), activation=a).net.body(torch.ones(1, 9, 5) * 9) for a in ("tanh", "relu")}
    assert hidden["tanh"].abs().max() <= 1
    assert hidden["relu"].min() >= 0
    assert hidden["relu"].max() > 1


def test_encoder_is_the_one_asked_for():
    named = Dict({"own": Box((2,), 0.0, 1.0), "at": Box((3, 2), 0.0, 1.0)}, (("at",),))
    agent_types = {
        ("auto", "picture"): image_encoders.Convolutions,
        ("cnn", "picture"): image_encoders.Convolutions,
        ("mlp", "picture"): type(None),
        ("auto", "named"): type(None),
        ("set", "named"): networks.SetEncoder,
    }
    for (encoder, space), agent_type in agent_types.items():
        policy = network(group_spec(observation=PICTURE if space == "picture" else named), encoder=encoder)
        assert type(policy.net.encode) is agent_type
        observation = (
            generator().random((4, 2, 2, 4, 4), np.float32)
            if space == "picture"
            else {"own": generator().random((4, 2, 2), np.float32), "at": generator().random((4, 2, 3, 2), np.float32)}
        )
        assert policy.act(view(observation)).action.shape == (4, 2)
    with pytest.raises(ValueError, match="encoder 'cnn'"):
        network(group_spec(), encoder="cnn")


def test_channels_decide_the_convolutions():
    kernels = network(group_spec(observation=PICTURE), channels=(3, 5)).net.encode.kernels
    assert [tuple(k.shape[1:3]) for k in kernels] == [(3, 2), (5, 3)]


@pytest.mark.parametrize("space", [Box((3,), -1.0, 1.0), Box((2, 4, 4), 0.0, 1.0)])
def test_a_shared_network_tells_agents_apart_only_by_identity(space):
    alike = np.repeat(generator().random((6, 1, *space.shape), np.float32), 2, axis=1)
    with_identity, without = (stir(network(group_spec(observation=space), identity=i)) for i in (True, False))
    out = outputs(with_identity, alike)
    assert not np.allclose(out[:, 0], out[:, 1])
    out = outputs(without, alike)
    assert np.allclose(out[:, 0], out[:, 1], atol=1e-4)


def test_identity_is_left_out_where_it_has_no_meaning():
    named = Dict({"own": Box((2,), 0.0, 1.0), "at": Box((3, 2), 0.0, 1.0)}, (("at",),))
    assert network(group_spec()).shape.extra == 2
    assert network(group_spec(agents=1)).shape.extra == 0
    assert network(group_spec(parameters="individual")).shape.extra == 0
    assert network(group_spec(observation=named), encoder="set").shape.extra == 0


def test_compiled_is_used_where_it_serves_and_can_be_refused():
    assert network(group_spec()).spec is not None
    assert network(group_spec(ACTIONS["multi-discrete"], parameters="individual")).spec is not None
    assert network(group_spec(ACTIONS["box"])).spec is not None
    named = Dict({"own": Box((2,), 0.0, 1.0), "at": Box((3, 2), 0.0, 1.0)}, (("at",),))
    elsewhere = [
        network(group_spec(), compiled=False),
        network(group_spec(), memory=4),
        network(group_spec(observation=PICTURE)),
        network(group_spec(observation=named), encoder="set"),
    ]
    assert [policy.spec for policy in elsewhere] == [None] * 4


@pytest.mark.parametrize("parameters", ["shared", "individual"])
@pytest.mark.parametrize("action", ["discrete", "multi-discrete"])
def test_both_ways_of_computing_say_the_same(action, parameters):
    fast, slow = (
        stir(network(group_spec(ACTIONS[action], agents=3, parameters=parameters), compiled=c)) for c in (True, False)
    )
    for policy in (fast, slow):
        policy.normalizer.update([seen(seed=s).reshape(-1, 3) * 2 + 1 for s in range(policy.group_spec.parameter_sets)])
    observation = seen(num_envs=700, agents=3)  # more rows than one block
    one, two = (policy.act(view(observation)) for policy in (fast, slow))
    assert np.array_equal(one.action, two.action)
    assert np.allclose(one.log_prob, two.log_prob, atol=1e-4)


@pytest.mark.parametrize("parameters", ["shared", "individual"])
def test_memory_decides_what_is_remembered_and_said(parameters):
    assert network(group_spec()).act(view(seen())).memory is None
    policy = stir(network(group_spec(parameters=parameters), memory=5))
    assert policy.memory_size == 5
    empty, held = np.zeros((6, 2, 5), np.float32), seen(size=5, seed=1)
    first, other = (policy.act(view(seen(), memory=m)) for m in (empty, held))
    assert first.memory.shape == (6, 2, 5)
    assert not np.allclose(first.log_prob, other.log_prob)
    alike = np.repeat(seen(agents=1), 2, axis=1)
    both = policy.act(view(alike, memory=empty)).memory
    assert not np.allclose(both[:, 0], both[:, 1])  # by identity, or by their own weights


def test_continuous_decides_the_family():
    observation = np.zeros((20_000, 1, 3), np.float32)
    where = group_spec(Box((1,), 0.0, 1.0), agents=1)
    spread = {}
    for family in ("beta", "gaussian"):
        policy = network(where, continuous=family)
        spread[family] = policy.act(view(observation, greedy=False)).action.std()
    # Untrained, Beta has both parameters 1 + ln 2; tanh of a standard normal reaches further out.
    a = 1 + np.log(2)
    assert spread["beta"] == pytest.approx(np.sqrt(1 / (4 * (2 * a + 1))), abs=0.01)
    assert spread["gaussian"] == pytest.approx(np.tanh(generator().standard_normal(100_000)).std() / 2, abs=0.01)


def test_a_distribution_of_continuous_actions_is_refused_for_discrete_ones():
    with pytest.raises(ValueError, match=r"is for continuous actions, but .* leave policy"):
        network(group_spec(), continuous="gaussian")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hidden": ()}, "hidden must name at least one layer, got none"),
        ({"hidden": (8, 0)}, "a layer's width must be above 0, got 0"),
        ({"channels": (-1,)}, "a layer's width must be above 0, got -1"),
        ({"memory": -1}, "memory must be at least 0, got -1"),
    ],
)
def test_impossible_settings_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        NetworkSettings(**fields)


def test_every_setting_has_a_test_here():
    tested = {"hidden", "activation", "encoder", "channels", "identity", "continuous", "normalize_observations"}
    tested |= {"memory", "compiled"}
    tested |= {"device", "network"}  # in tests/nn/test_devices.py and tests/nn/test_own_networks.py
    tested |= {"text"}  # in test_text_encoder.py
    assert {field.name for field in dataclasses.fields(NetworkSettings)} == tested


# Loading -------------------------------------------------------------------------------------------------


def test_weights_of_another_world_are_refused_with_a_cure():
    state = network(group_spec(observation=Box((4,), -1.0, 1.0))).state()
    with pytest.raises(ValueError, match=r"group 'team': 'body.layers.0.weight' .* A set network"):
        network(group_spec()).load(state)


def things(count):
    return Dict({"own": Box((2,), 0.0, 1.0), "at": Box((count, 2), 0.0, 1.0)}, (("at",),))


def test_a_set_network_moves_to_another_number_of_agents_and_things():
    trained = stir(network(group_spec(observation=things(3)), encoder="set"))
    trained.normalizer.update([generator().random((20, 8))])
    own, at = generator(1).random((5, 2), np.float32), generator(2).random((5, 2), np.float32)
    first = trained.act(
        view({"own": own[:, None].repeat(2, 1), "at": np.broadcast_to(at[:, None, None], (5, 2, 3, 2))})
    )
    moved = network(group_spec(observation=things(1), agents=4), encoder="set")
    moved.load(trained.state())
    second = moved.act(view({"own": own[:, None].repeat(4, 1), "at": np.broadcast_to(at[:, None, None], (5, 4, 1, 2))}))
    assert np.allclose(first.log_prob[:, :1], second.log_prob, atol=1e-5)  # equal things count once or thrice
    assert (first.action[:, :1] == second.action).all()
    alone = network(group_spec(observation=things(0), agents=1), encoder="set")
    alone.load(trained.state())
    assert alone.act(view({"own": own[:, None], "at": np.zeros((5, 1, 0, 2), np.float32)})).action.shape == (5, 1)


def test_statistics_of_another_width_are_refused():
    named = Dict({"a": Box((2,), 0.0, 1.0), "at": Box((3, 2), 0.0, 1.0)}, (("at",),))
    policy = network(group_spec(observation=named))
    state = policy.state()
    state["normalizer"]["mean"] = np.zeros((1, 9))
    with pytest.raises(ValueError, match="saved observation statistics have another width"):
        policy.load(state)


@pytest.mark.parametrize(
    ("encoder", "expected"),
    [
        ("auto", image_encoders.Nature),
        ("nature", image_encoders.Nature),
        ("impala", image_encoders.Impala),
        ("cnn", image_encoders.Convolutions),
    ],
)
@pytest.mark.parametrize("parameters", ["shared", "individual"])
def test_encoders_of_large_pictures(encoder, expected, parameters):
    spec = group_spec(observation=Box((1, 36, 36), 0.0, 255.0, "uint8"), parameters=parameters)
    policy = network(spec, encoder=encoder)
    assert type(policy.net.encode) is expected
    observation = generator().integers(0, 256, (3, 2, 1, 36, 36), np.uint8)
    assert policy.act(view(observation)).action.shape == (3, 2)
