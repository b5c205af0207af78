"""The deterministic policy: actions, exploration, compiled and PyTorch paths, each setting."""

import dataclasses

import numpy as np
import pytest
import torch

from coterie.core.types import Box, Dict, Discrete, MultiDiscrete
from coterie.nn import image_encoders, networks
from coterie.nn.packing import bounds, encode, encoded_size
from coterie.policies.deterministic import DeterministicSettings
from helpers.dqn import seen, view
from helpers.maddpg import BOX, deterministic, greedy_points, randomise, set_output
from helpers.small_worlds import ACTIONS, generator, group_spec

PICTURE = Box((2, 4, 4), 0.0, 1.0)
NAMED = Dict({"own": Box((2,), 0.0, 1.0), "at": Box((3, 2), 0.0, 1.0)}, (("at",),))
both_ways = pytest.mark.parametrize("compiled", [True, False])
both_kinds = pytest.mark.parametrize("parameters", ["shared", "individual"])
every_space = pytest.mark.parametrize("action", ACTIONS)


def random_mask(rows, seed=0):
    mask = generator(seed).random((*rows, 4)) < 0.5
    np.put_along_axis(mask, generator(seed + 1).integers(4, size=(*rows, 1)), True, axis=-1)
    return mask


# Encoded actions -------------------------------------------------------------------------------------------


def test_actions_are_encoded_as_numbers_between_minus_1_and_1():
    assert encode(Discrete(3), np.array([[2, 0]])).tolist() == [[[0, 0, 1], [1, 0, 0]]]
    assert encode(MultiDiscrete((2, 3)), np.array([1, 0])).tolist() == [0, 1, 1, 0, 0]
    low, middle, high = ([-1.0, 0.0], [0.0, 2.5], [1.0, 5.0])
    assert encode(BOX, np.array([low, middle, high], np.float32)).tolist() == [[-1, -1], [0, 0], [1, 1]]
    assert encode(Box((1,), -np.inf, np.inf), np.array([[7.0]])).tolist() == [[7.0]]
    square = Box((2, 2), 0.0, 4.0)
    assert encode(square, np.full((3, 2, 2), 3, np.float32)).tolist() == [[0.5] * 4] * 3
    assert [encoded_size(s) for s in (Discrete(3), MultiDiscrete((2, 3)), BOX, square)] == [3, 5, 2, 4]
    for space in (Discrete(3), MultiDiscrete((2, 3)), square):
        shape = () if isinstance(space, Discrete) else (2,) if isinstance(space, MultiDiscrete) else (2, 2)
        assert encode(space, np.zeros((5, *shape), int)).dtype == np.float32


# Acting ----------------------------------------------------------------------------------------------------


@both_ways
@both_kinds
@every_space
def test_greedy_play_is_the_networks_answer(action, parameters, compiled):
    policy = randomise(deterministic(group_spec(ACTIONS[action], agents=3, parameters=parameters), compiled=compiled))
    policy.normalizer.update([seen(seed=s).reshape(-1, 3) * 2 + 1 for s in range(policy.group_spec.parameter_sets)])
    observation = seen(num_envs=200, agents=3)
    said = policy.act(view(observation))
    wanted = greedy_points(policy, policy.net, observation)
    assert np.allclose(encode(ACTIONS[action], said.action), wanted, atol=1e-5)
    assert len(np.unique(wanted.round(4), axis=0)) > 3
    assert said.action.dtype == (np.float32 if action == "box" else np.int64)


@both_ways
def test_greedy_choices_are_legal(compiled):
    policy = randomise(deterministic(group_spec(agents=3), compiled=compiled))
    observation, mask = seen(num_envs=200, agents=3), random_mask((200, 3))
    said = policy.act(view(observation, mask=mask))
    assert np.array_equal(encode(Discrete(4), said.action), greedy_points(policy, policy.net, observation, mask))
    assert np.take_along_axis(mask, said.action[..., None], axis=-1).all()


@both_ways
@pytest.mark.parametrize("noise", [0.0, 0.1, 0.5])
def test_boxes_are_explored_by_noise_of_a_share_of_their_range(noise, compiled):
    policy = deterministic(group_spec(BOX, agents=1), compiled=compiled)
    set_output(policy.net, [0.0, np.arctanh(0.5)])
    policy.noise = noise
    said = policy.act(view(np.zeros((20_000, 1, 3), np.float32), greedy=False))
    assert said.log_prob is None
    for k, (centre, low, high) in enumerate(((0.0, -1.0, 1.0), (3.75, 0.0, 5.0))):
        drawn = said.action[:, 0, k]
        assert (drawn >= low).all()
        assert (drawn <= high).all()
        expected = np.clip(centre + noise * (high - low) * generator().standard_normal(100_000), low, high)
        assert drawn.mean() == pytest.approx(expected.mean(), abs=0.05)
        assert drawn.std() == pytest.approx(expected.std(), abs=0.03)
    if noise:
        assert abs(np.corrcoef(said.action[:, 0].T)[0, 1]) < 0.05  # each number has its own noise


@both_ways
def test_choices_are_explored_in_proportion_to_the_exponential_of_the_outputs(compiled):
    policy = deterministic(group_spec(agents=1), compiled=compiled)
    set_output(policy.net, [0.0, 1.0, 2.0, 0.5])
    rows, legal = 20_000, np.array([True, True, True, False])
    for mask in (None, np.broadcast_to(legal, (rows, 1, 4)).copy()):
        said = policy.act(view(np.zeros((rows, 1, 3), np.float32), greedy=False, mask=mask))
        chance = np.exp([0.0, 1.0, 2.0, 0.5]) * (1 if mask is None else legal)
        chance /= chance.sum()
        often = np.bincount(said.action[:, 0], minlength=4) / rows
        assert np.abs(often - chance).max() < 4.5 * np.sqrt(0.25 / rows)
        assert np.allclose(np.exp(said.log_prob), chance[said.action], atol=1e-5)


@both_kinds
@every_space
@pytest.mark.parametrize("greedy", [True, False])
def test_compiled_and_pytorch_actions_agree(action, parameters, greedy):
    where = group_spec(ACTIONS[action], agents=3, parameters=parameters)
    fast, slow = (randomise(deterministic(where, compiled=c), scale=0.5) for c in (True, False))
    assert (fast.spec is not None, slow.spec is not None) == (True, False)
    observation = seen(num_envs=700, agents=3)  # more rows than one block
    for policy in (fast, slow):
        policy.noise = 0.2
        policy.normalizer.update([seen(seed=s).reshape(-1, 3) * 2 + 1 for s in range(where.parameter_sets)])
    one, two = (policy.act(view(observation, greedy=greedy)) for policy in (fast, slow))
    if action == "box":
        assert np.allclose(one.action, two.action, atol=1e-5)
    elif greedy:
        assert (one.action == two.action).mean() > 0.999


@both_ways
@both_kinds
@every_space
@pytest.mark.parametrize("asked", [[2], [0, 2], [2, 1, 0], [1, 1], [0, 1, 2, 0]])
def test_any_agents_may_be_asked_in_any_order(asked, action, parameters, compiled):
    policy = randomise(deterministic(group_spec(ACTIONS[action], agents=3, parameters=parameters), compiled=compiled))
    observation = seen(num_envs=50, agents=3)
    everyone = policy.act(view(observation)).action
    some = policy.act(view(observation[:, asked], agents=asked)).action
    assert np.allclose(some, everyone[:, asked], atol=1e-5)


def test_boxes_without_bounds_are_refused():
    with pytest.raises(ValueError, match="bounded on both sides"):
        deterministic(group_spec(Box((1,), -np.inf, 1.0)))


# What gradients pass ---------------------------------------------------------------------------------------


@both_kinds
@every_space
def test_a_target_policy_stays_as_it_was(action, parameters):
    policy = randomise(deterministic(group_spec(ACTIONS[action], agents=3, parameters=parameters)))
    observation = seen(num_envs=40, agents=3)
    wanted = greedy_points(policy, policy.net, observation)
    target_policy = policy.target_policy(policy.net)
    policy.flat.array += 1
    policy.normalizer.update([seen(seed=s).reshape(-1, 3) * 9 + 5 for s in range(policy.group_spec.parameter_sets)])
    assert not np.allclose(greedy_points(policy, policy.net, observation), wanted)
    assert np.allclose(target_policy(observation, np.ones(wanted.shape, bool)), wanted, atol=1e-6)


def test_a_target_policy_respects_what_is_legal():
    policy = randomise(deterministic(group_spec(agents=2)))
    observation, mask = seen(num_envs=40), random_mask((40, 2))
    said = policy.target_policy(policy.net)(observation, mask)
    assert (said.sum(-1) == 1).all()
    assert mask[said.astype(bool)].all()


# Settings --------------------------------------------------------------------------------------------------


def test_hidden_and_activation_are_those_asked_for():
    policy = deterministic(group_spec(BOX), hidden=(5, 7))
    assert [tuple(layer.weight.shape[1:]) for layer in policy.net.body.layers] == [(5, 5), (5, 7)]  # 3 + 2 agents
    hidden = {
        a: deterministic(group_spec(BOX), activation=a).net.body(torch.ones(1, 9, 5) * 9) for a in ("tanh", "relu")
    }
    assert hidden["tanh"].abs().max() <= 1
    assert hidden["relu"].max() > 1


@both_ways
def test_activation_reaches_both_ways(compiled):
    said = {}
    for activation in ("tanh", "relu"):
        policy = randomise(deterministic(group_spec(BOX), activation=activation, compiled=compiled))
        said[activation] = policy.act(view(seen())).action
        assert np.allclose(encode(BOX, said[activation]), greedy_points(policy, policy.net, seen()), atol=1e-5)
    assert not np.allclose(said["tanh"], said["relu"])


@both_kinds
@every_space
def test_encoders_and_channels(action, parameters):
    picture = generator().random((4, 2, 2, 4, 4), np.float32)
    named = {"own": generator().random((4, 2, 2), np.float32), "at": generator().random((4, 2, 3, 2), np.float32)}
    agent_types = {
        ("auto", "picture"): image_encoders.Convolutions,
        ("mlp", "picture"): type(None),
        ("set", "named"): networks.SetEncoder,
    }
    for (encoder, space), kind in agent_types.items():
        where = group_spec(ACTIONS[action], PICTURE if space == "picture" else NAMED, parameters=parameters)
        policy = deterministic(where, encoder=encoder, channels=(3, 5))
        assert type(policy.net.encode) is kind
        assert (policy.spec is None) is (encoder != "mlp")
        assert policy.act(view(picture if space == "picture" else named, greedy=False)).action.shape[:2] == (4, 2)
    kernels = deterministic(group_spec(observation=PICTURE), channels=(3, 5)).net.encode.kernels
    assert [tuple(k.shape[1:3]) for k in kernels] == [(3, 2), (5, 3)]


@both_ways
def test_a_shared_network_tells_agents_apart_only_by_identity(compiled):
    alike = np.repeat(generator().random((99, 1, 3), np.float32), 2, axis=1)
    for identity in (True, False):
        policy = randomise(deterministic(group_spec(BOX), identity=identity, compiled=compiled))
        said = policy.act(view(alike)).action
        assert np.array_equal(said[:, 0], said[:, 1]) is not identity


@both_ways
def test_normalize_observations(compiled):
    observation = seen(num_envs=99) * 100 + 500
    for wanted in (True, False):
        policy = randomise(deterministic(group_spec(BOX), normalize_observations=wanted, compiled=compiled), scale=1e-3)
        before = policy.act(view(observation)).action
        policy.normalizer.update([observation.reshape(-1, 3)])
        assert np.array_equal(before, policy.act(view(observation)).action) is not wanted


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="hidden must name at least one layer"):
        DeterministicSettings(hidden=())
    with pytest.raises(ValueError, match="a layer's width must be above 0, got -1"):
        DeterministicSettings(channels=(-1,))


@both_ways
def test_outputs_bend_towards_the_bounds_or_are_cut_off_there(compiled):
    observation = np.zeros((1, 1, 3), np.float32)
    for squash, wanted in (("tanh", [np.tanh(0.5), np.tanh(3.0)]), ("clip", [0.5, 1.0])):
        policy = deterministic(group_spec(BOX, agents=1), compiled=compiled, squash=squash)
        set_output(policy.net, [0.5, 3.0])
        assert np.allclose(encode(BOX, policy.act(view(observation)).action)[0, 0], wanted, atol=1e-5)


@pytest.mark.parametrize("normalize", [True, False])
def test_random_feature_init_reaches_the_network(normalize):
    where = group_spec(BOX, observation=Box((1,), 0.0, 8.0))
    plain, bent = (
        deterministic(where, random_feature_init=b, normalize_observations=normalize).net.body for b in (0.0, 2.0)
    )
    assert not plain.layers[0].bias.any()
    group_specs = -(bent.layers[0].bias[0, 0] / bent.layers[0].weight[0, 0]).detach().numpy()
    assert (group_specs.max() > 2) is not normalize  # within ±1 of what is normalised, in [0, 8] of what is not
    with pytest.raises(ValueError, match="random_feature_init must be at least 0"):
        DeterministicSettings(random_feature_init=-1)


def test_every_setting_has_a_test_here():
    tested = {"hidden", "activation", "encoder", "channels", "identity", "squash", "compiled", "random_feature_init"}
    tested |= {"normalize_observations"}
    tested |= {"device", "network"}  # in tests/nn/test_devices.py and tests/nn/test_own_networks.py
    assert {field.name for field in dataclasses.fields(DeterministicSettings)} == tested


@both_kinds
@every_space
def test_a_loaded_policy_acts_as_the_saved_one(action, parameters):
    where = group_spec(ACTIONS[action], parameters=parameters)
    one, other = randomise(deterministic(where)), deterministic(where)
    one.normalizer.update([seen(seed=s).reshape(-1, 3) + 1 for s in range(where.parameter_sets)])
    one.noise = 0.25
    other.load(one.state())
    assert other.noise == 0.25
    for greedy in (True, False):
        mine, theirs = (p.act(view(seen(num_envs=50), greedy=greedy)) for p in (one, other))
        assert np.array_equal(mine.action, theirs.action)


def test_the_middle_of_a_box_and_half_its_range():
    centre, half = bounds(BOX)
    assert (centre.tolist(), half.tolist()) == ([0.0, 2.5], [1.0, 2.5])
