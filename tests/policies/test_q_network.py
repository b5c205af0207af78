"""The policy of action values: its choices and their probabilities, both ways of computing, each of its settings."""

import dataclasses

import numpy as np
import pytest
import torch

from coterie.core.types import Box, Dict
from coterie.nn import image_encoders, networks
from coterie.policies.q_network import QNetworkSettings
from helpers.dqn import learn, make_learner, q_network, random_rollout, say, seen, stir, target, values, view
from helpers.small_worlds import ACTIONS, generator, group_spec

PICTURE = Box((2, 4, 4), 0.0, 1.0)
NAMED = Dict({"own": Box((2,), 0.0, 1.0), "at": Box((3, 2), 0.0, 1.0)}, (("at",),))
both_ways = pytest.mark.parametrize("compiled", [True, False])
both_kinds = pytest.mark.parametrize("parameters", ["shared", "individual"])


def random_mask(rows, seed=0):
    mask = generator(seed).random((*rows, 4)) < 0.5
    np.put_along_axis(mask, generator(seed + 1).integers(4, size=(*rows, 1)), True, axis=-1)
    return mask


# Acting --------------------------------------------------------------------------------------------------


@both_ways
@both_kinds
@pytest.mark.parametrize("dueling", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_greedy_play_takes_the_best_legal_action(masked, dueling, parameters, compiled):
    policy = stir(q_network(group_spec(agents=3, parameters=parameters), compiled=compiled, dueling=dueling))
    policy.normalizer.update([seen(seed=s).reshape(-1, 3) * 2 + 1 for s in range(policy.group_spec.parameter_sets)])
    observation = seen(num_envs=200, agents=3)
    mask = random_mask((200, 3)) if masked else None
    said = policy.act(view(observation, mask=mask))
    expected = values(policy, observation)
    assert np.array_equal(said.action, np.where(True if mask is None else mask, expected, -np.inf).argmax(-1))
    assert (said.log_prob == 0).all()
    assert said.action.dtype == np.int64
    assert said.log_prob.dtype == np.float32


@both_ways
@both_kinds
@pytest.mark.parametrize("masked", [True, False])
def test_the_probabilities_of_all_actions_are_those_of_the_decisions(masked, parameters, compiled):
    policy = stir(q_network(group_spec(agents=3, parameters=parameters), compiled=compiled))
    policy.epsilon = 0.2
    mask = random_mask((200, 3)) if masked else None
    drawn = view(seen(num_envs=200, agents=3), greedy=False, mask=mask)
    decision, found = policy.act(drawn), policy.log_probs(drawn)
    assert np.exp(found).sum(axis=-1) == pytest.approx(1.0)
    mine = np.take_along_axis(found, decision.action[..., None], axis=-1)[..., 0]
    assert mine == pytest.approx(decision.log_prob, abs=1e-6)
    greedy = view(seen(num_envs=200, agents=3), mask=mask)
    assert np.array_equal(policy.log_probs(greedy).argmax(axis=-1), policy.act(greedy).action)
    if mask is not None:
        assert (np.exp(found)[~mask] == 0).all()


@both_ways
def test_greedy_play_takes_the_first_of_the_best(compiled):
    policy = say(q_network(group_spec(), compiled=compiled, dueling=False), [0.0, 2.0, 2.0, 1.0])
    assert (policy.act(view(seen())).action == 1).all()
    mask = np.broadcast_to([True, False, True, True], (6, 2, 4)).copy()
    assert (policy.act(view(seen(), mask=mask)).action == 2).all()


@both_ways
def test_values_far_below_zero_are_better_than_an_illegal_action(compiled):
    policy = say(q_network(group_spec(), compiled=compiled, dueling=False), [9.0, -1e12, -2e12, 9.0])
    mask = np.broadcast_to([False, True, True, False], (6, 2, 4)).copy()
    assert (policy.act(view(seen(), mask=mask)).action == 1).all()


@both_ways
@pytest.mark.parametrize("epsilon", [1.0, 0.3, 0.0])
@pytest.mark.parametrize("masked", [True, False])
def test_actions_come_as_often_as_they_should_and_log_probabilities_say_so(epsilon, masked, compiled):
    policy = say(q_network(group_spec(agents=1), compiled=compiled, dueling=False), [0.0, 5.0, 1.0, 9.0])
    policy.epsilon = epsilon
    rows, legal = 20_000, np.array([True, True, True, not masked])
    mask = np.broadcast_to(legal, (rows, 1, 4)).copy() if masked else None
    said = policy.act(view(np.zeros((rows, 1, 3), np.float32), greedy=False, mask=mask))
    chance = epsilon * legal / legal.sum()
    chance[1 if masked else 3] += 1 - epsilon
    often = np.bincount(said.action[:, 0], minlength=4) / rows
    assert np.abs(often - chance).max() < 4.5 * np.sqrt(0.25 / rows)
    assert (often[chance == 0] == 0).all()
    assert np.allclose(np.exp(said.log_prob), chance[said.action], atol=1e-6)


@both_ways
def test_every_row_has_its_own_mask_and_chance(compiled):
    policy = q_network(group_spec(agents=3), compiled=compiled)
    mask = random_mask((700, 3))  # more rows than one block
    said = policy.act(view(seen(num_envs=700, agents=3), greedy=False, mask=mask))  # ε is 1 at first
    assert np.take_along_axis(mask, said.action[..., None], axis=-1).all()
    assert np.allclose(np.exp(said.log_prob), 1 / mask.sum(-1), atol=1e-6)


@both_ways
def test_an_idle_row_without_any_legal_action_does_no_harm(compiled):
    policy = q_network(group_spec(), compiled=compiled)
    mask = np.zeros((6, 2, 4), bool)
    mask[:, 0] = True
    said = policy.act(view(seen(), greedy=False, mask=mask))
    assert ((said.action >= 0) & (said.action < 4)).all()
    assert np.isfinite(said.log_prob).all()


@both_kinds
@pytest.mark.parametrize("dueling", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_both_ways_of_computing_say_the_same(masked, dueling, parameters):
    where = group_spec(agents=3, parameters=parameters)
    fast, slow = (stir(q_network(where, compiled=c, dueling=dueling)) for c in (True, False))
    assert (fast.spec is not None, slow.spec is not None) == (True, False)
    observation, mask = seen(num_envs=700, agents=3), random_mask((700, 3)) if masked else None
    for policy in (fast, slow):
        policy.epsilon = 0.4
        policy.normalizer.update([seen(seed=s).reshape(-1, 3) * 2 + 1 for s in range(where.parameter_sets)])
    for greedy in (True, False):
        one, two = (policy.act(view(observation, greedy=greedy, mask=mask)) for policy in (fast, slow))
        assert np.array_equal(one.action, two.action)
        assert np.allclose(one.log_prob, two.log_prob, atol=1e-6)


@both_ways
@both_kinds
@pytest.mark.parametrize("asked", [[2], [0, 2], [2, 1, 0], [1, 1], [0, 1, 2, 0]])
def test_any_agents_may_be_asked_in_any_order(asked, parameters, compiled):
    policy = stir(q_network(group_spec(agents=3, parameters=parameters), compiled=compiled))
    policy.normalizer.update([seen(seed=s).reshape(-1, 3) * 2 + 1 for s in range(policy.group_spec.parameter_sets)])
    observation, mask = seen(num_envs=50, agents=3), random_mask((50, 3))
    for legal in (None, mask):
        everyone = policy.act(view(observation, mask=legal)).action
        some = view(observation[:, asked], agents=asked, mask=None if legal is None else legal[:, asked])
        assert np.array_equal(policy.act(some).action, everyone[:, asked])


@pytest.mark.parametrize("action", ["multi-discrete", "box"])
def test_other_spaces_of_actions_are_refused_with_a_cure(action):
    with pytest.raises(ValueError, match=r"agent_0.*ppo"):
        q_network(group_spec(ACTIONS[action]))


# Dueling -------------------------------------------------------------------------------------------------


def test_advantages_have_a_mean_of_0():
    policy = stir(q_network(group_spec()))
    out = torch.from_numpy(generator().standard_normal((1, 9, 5)).astype(np.float32))
    expected = policy.values(out)
    assert torch.allclose(expected.mean(-1), out[..., 0], atol=1e-6)
    assert torch.allclose(expected - expected[..., :1], out[..., 1:] - out[..., 1:2], atol=1e-6)
    plain = q_network(group_spec(), dueling=False)
    assert plain.net.out.weight.shape[-1] == 4
    assert plain.values(out) is out


@both_ways
@both_kinds
def test_the_two_streams_stay_apart_while_learning(parameters, compiled):
    one = make_learner(group_spec(parameters=parameters), compiled=compiled, target={"update": "soft", "tau": 0.5})
    first = one.policy.net.out.weight.detach().clone()
    for seed in range(2):
        learn(one, random_rollout(one, seed), seed)
    for net in (one.policy.net, one.target_network):
        weight = net.out.weight.detach()
        assert (weight[:, :8, 1:] == 0).all()
        assert (weight[:, 8:, 0] == 0).all()
        assert (weight[:, :8, 0] != first[:, :8, 0]).any()
        assert (weight[:, 8:, 1:] != first[:, 8:, 1:]).any()
    assert not np.array_equal(target(one), one.policy.flat.array)


# Settings ------------------------------------------------------------------------------------------------


def test_hidden_and_activation_are_those_asked_for():
    policy = q_network(group_spec(), hidden=(5, 7))
    assert [tuple(layer.weight.shape[1:]) for layer in policy.net.body.layers] == [(5, 5), (5, 7)]  # 3 + 2 agents
    hidden = {a: q_network(group_spec(), activation=a).net.body(torch.ones(1, 9, 5) * 9) for a in ("tanh", "relu")}
    assert hidden["tanh"].abs().max() <= 1
    assert hidden["relu"].max() > 1


@both_ways
def test_activation_reaches_both_ways(compiled):
    said = {}
    for activation in ("tanh", "relu"):
        policy = stir(q_network(group_spec(), activation=activation, compiled=compiled))
        said[activation] = policy.act(view(seen(num_envs=99))).action
        assert np.array_equal(said[activation], values(policy, seen(num_envs=99)).argmax(-1))
    assert not np.array_equal(said["tanh"], said["relu"])


@both_kinds
def test_encoders_and_channels(parameters):
    picture = generator().random((4, 2, 2, 4, 4), np.float32)
    named = {"own": generator().random((4, 2, 2), np.float32), "at": generator().random((4, 2, 3, 2), np.float32)}
    agent_types = {
        ("auto", "picture"): image_encoders.Convolutions,
        ("mlp", "picture"): type(None),
        ("set", "named"): networks.SetEncoder,
    }
    for (encoder, space), kind in agent_types.items():
        where = group_spec(observation=PICTURE if space == "picture" else NAMED, parameters=parameters)
        policy = q_network(where, encoder=encoder, channels=(3, 5))
        assert type(policy.net.encode) is kind
        assert (policy.spec is None) is (encoder != "mlp")
        assert policy.act(view(picture if space == "picture" else named, greedy=False)).action.shape == (4, 2)
    kernels = q_network(group_spec(observation=PICTURE), channels=(3, 5)).net.encode.kernels
    assert [tuple(k.shape[1:3]) for k in kernels] == [(3, 2), (5, 3)]


@both_ways
def test_a_shared_network_tells_agents_apart_only_by_identity(compiled):
    alike = np.repeat(generator().random((99, 1, 3), np.float32), 2, axis=1)
    for identity in (True, False):
        policy = stir(q_network(group_spec(), identity=identity, compiled=compiled))
        said = policy.act(view(alike)).action
        assert np.array_equal(said[:, 0], said[:, 1]) is not identity
    assert q_network(group_spec(parameters="individual")).shape.extra == 0


def test_individual_agents_have_their_own_weights():
    policy = stir(q_network(group_spec(agents=3, parameters="individual")))
    out = values(policy, np.repeat(seen(agents=1), 3, axis=1))
    assert not np.allclose(out[:, 0], out[:, 1])
    assert not np.allclose(out[:, 1], out[:, 2])


@both_ways
def test_normalize_observations(compiled):
    observation = seen(num_envs=99) * 100 + 500
    for wanted in (True, False):
        policy = stir(q_network(group_spec(), normalize_observations=wanted, compiled=compiled))
        before = policy.act(view(observation)).action
        policy.normalizer.update([observation.reshape(-1, 3)])
        assert np.array_equal(before, policy.act(view(observation)).action) is not wanted


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="hidden must name at least one layer"):
        QNetworkSettings(hidden=())
    with pytest.raises(ValueError, match="a layer's width must be above 0, got -1"):
        QNetworkSettings(channels=(-1,))
    with pytest.raises(ValueError, match=r"dueling=true.*got 1"):
        QNetworkSettings(hidden=(8, 1))
    QNetworkSettings(hidden=(8, 1), dueling=False)


def test_every_setting_has_a_test_here():
    tested = {"hidden", "activation", "encoder", "channels", "identity", "dueling", "compiled"}
    tested |= {"normalize_observations"}
    tested |= {"device", "network"}  # in tests/nn/test_devices.py and tests/nn/test_own_networks.py
    tested |= {"text"}  # in test_text_encoder.py
    assert {field.name for field in dataclasses.fields(QNetworkSettings)} == tested


# State ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@both_kinds
def test_a_loaded_policy_acts_as_the_saved_one(parameters):
    where = group_spec(parameters=parameters)
    one, other = stir(q_network(where)), q_network(where)
    one.normalizer.update([seen(seed=s).reshape(-1, 3) + 1 for s in range(where.parameter_sets)])
    one.epsilon = 0.125
    other.load(one.state())
    assert other.epsilon == 0.125
    for greedy in (True, False):
        mine, theirs = (p.act(view(seen(num_envs=50), greedy=greedy)) for p in (one, other))
        assert np.array_equal(mine.action, theirs.action)
        assert np.array_equal(mine.log_prob, theirs.log_prob)


def test_weights_of_another_network_are_refused():
    with pytest.raises(ValueError, match=r"group 'team': 'out.weight' is"):
        q_network(group_spec(), dueling=False).load(q_network(group_spec()).state())
    with pytest.raises(ValueError, match=r"group 'team': 'body.layers.0.weight' .* A set network"):
        q_network(group_spec()).load(q_network(group_spec(observation=Box((4,), -1.0, 1.0))).state())
