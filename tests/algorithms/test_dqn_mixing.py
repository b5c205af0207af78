"""Mixers: against NumPy, rising with every member's value, and teams that are paid together."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.algorithms.divergence import Diverged
from coterie.algorithms.dqn.batches import Batch
from coterie.algorithms.dqn.mixing import LEAK, QMIX
from coterie.algorithms.dqn.transitions import Transitions
from coterie.core.decisions import Joint, StateRows
from coterie.core.types import AgentStep, AgentType, Box, Discrete, TimeStep
from coterie.preferences.standard import Team, TeamSettings
from coterie.testing.comparison import expect_equal, leaves, through_checkpoint
from coterie.training.runner import Runner
from helpers.dqn import compiled, joint_of, learn, make_learner, q_network, random_rollout, values, weights
from helpers.small_worlds import Bandit, Unsaved, actors, experience, generator, group_spec, spec_in

both_kinds = pytest.mark.parametrize("parameters", ["shared", "individual"])
both_mixers = pytest.mark.parametrize("name", ["vdn", "qmix"])


def team(name, parameters="shared", **settings):
    """Two agents whose observations side by side, six numbers, are the table's state."""
    return make_learner(group_spec(parameters=parameters, state_size=6), mixer=name, **settings)


def stirred(one, seed=0):
    random = generator(seed)
    for net in (one.mixer, one.target_mixer):
        if net is not None:
            net.flat.array[:] = random.standard_normal(net.flat.array.shape)
    return one


def in_numpy(mix, own_values, state):
    """QMIX by its definition, row by row: own_values `[B, M]`, state `[B, Z]`."""
    part = {name: p.detach().numpy()[0] for name, p in mix.named_parameters()}

    def layer(name, x):
        return x @ part[f"{name}.weight"] + part[f"{name}.bias"]

    total = []
    for q, s in zip(own_values, state, strict=True):
        first = np.abs(layer("weight_in", s)).reshape(len(q), -1)  # a row for each member
        h = q @ first + layer("bias_in", s)[0]
        upper = np.arange(len(h)) < len(h) // 2  # slopes 1 above 0 and LEAK below; the other half the other way round
        h = np.where((h > 0) == upper, h, LEAK * h)
        last = layer("bias_out", np.maximum(layer("bias_hidden", s), 0))[0, 0]
        total.append(float(h @ np.abs(layer("weight_out", s))[0] / len(h) + last))
    return np.array(total)


# Mixers ------------------------------------------------------------------------------------------------


def test_vdn_is_the_sum():
    one = team("vdn")
    learn(one, random_rollout(one))
    batch = Batch(one.policy, one.replays, 2, 2)
    batch.values[:] = [[1.0, 2.0], [0.5, -0.25]]
    assert one.mix(one.mixer, batch, "state").tolist() == [3.0, 0.25]
    assert one.unmix(np.array([2.0, -1.0], np.float32)).tolist() == [[2, 2], [-1, -1]]


def test_qmix_is_what_its_definition_says():
    mix = QMIX(3, 5, 7, seed=1)
    own_values, state = generator().standard_normal((9, 3)) * 3, generator(1).standard_normal((9, 5))
    with torch.no_grad():
        for parameter in mix.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
        found = mix(*(torch.from_numpy(a.astype(np.float32)) for a in (own_values, state))).numpy()
    assert np.allclose(found, in_numpy(mix, own_values, state), atol=1e-4)


@pytest.mark.parametrize("sign", [1, -1])
def test_qmix_begins_as_the_sum_for_values_of_either_sign(sign):
    mix, random = QMIX(3, 54, 32, seed=1), generator()
    own_values = torch.from_numpy(sign * random.random((500, 3), np.float32) * 30)
    state = torch.from_numpy(random.standard_normal((500, 54), np.float32))
    with torch.no_grad():
        ratio = mix(own_values, state) / own_values.sum(dim=1)
    assert ratio.mean() == pytest.approx(1, abs=0.02)
    assert ratio.std() < 0.05


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), size=st.floats(0.1, 100), members=st.integers(1, 4))
def test_qmix_rises_with_every_members_value_in_any_state(seed, size, members):
    mix, random = QMIX(members, 5, 6, seed), generator(seed)
    with torch.no_grad():
        for parameter in mix.parameters():
            parameter.copy_(torch.from_numpy(random.standard_normal(parameter.shape)))
    own_values = torch.tensor(random.standard_normal((8, members)) * size, dtype=torch.float32, requires_grad=True)
    state = torch.tensor(random.standard_normal((8, 5)) * size, dtype=torch.float32)
    total = mix(own_values, state)
    total.sum().backward()
    assert (own_values.grad >= 0).all()
    assert (own_values.grad > 0).any()
    more = own_values.detach() + torch.from_numpy(random.random((8, members)).astype(np.float32))
    assert (mix(more, state) >= total - 1e-3 * total.abs()).all()


def test_names_and_width_decide_the_mixer():
    for width in (4, 9):
        one = team("qmix", mixing_width=width)
        assert type(one.mixer.module) is QMIX
        assert one.mixer.module.weight_in.weight.shape == (1, 6, 2 * width)
        assert one.mixer.module.weight_out.weight.shape == (1, 6, width)
        assert np.array_equal(one.mixer.flat.array, one.target_mixer.flat.array)
    assert team("vdn").mixer is None
    own = random_rollout(team("vdn"))
    found = []
    for name in ("none", "vdn", "qmix"):
        one = team(name)
        learn(one, own)
        assert compiled(one)  # the values' network; a mixer goes through PyTorch
        found.append(weights(one))
    assert not np.array_equal(found[0], found[1])
    assert not np.array_equal(found[1], found[2])


# Learning ----------------------------------------------------------------------------------------------


@both_kinds
@both_mixers
@pytest.mark.parametrize("double", [True, False])
def test_a_step_descends_the_error_of_the_teams_value(name, parameters, double):
    settings = {"huber": None, "double": double, "gamma": 0.9, "max_grad_norm": 1e9, "learning_rate": 0.01}
    one, other = (stirred(team(name, parameters, n_steps=2, **settings)) for _ in range(2))
    own = random_rollout(one, masked=True)
    for each in (one, other):
        each.store(own, joint_of(each, own))
        each.target_network.out.weight.data *= 3
        each.state_normalizer.update([generator(5).standard_normal((20, 6)) * 2 + 1])
        each.policy.normalizer.update(
            [generator(s).standard_normal((20, 3)) + s for s in range(each.group_spec.parameter_sets)]
        )
        each.replays[0].prioritise(np.arange(each.replays[0].size), generator().random(each.replays[0].size))
    uniform = generator().random((1, 1, 20))
    loss, mean, size, _ = one.improve(uniform, 0.01, 0.7)

    drawn = other.replays[0].sample(uniform[0, 0], 0.7)
    rows = Transitions(*(column[drawn.rows] for column in other.replays[0].rows))
    now, chooser = values(other.policy, rows.observation), values(other.policy, rows.next_obs)
    other.policy.net, kept = other.target_network, other.policy.net
    later = values(other.policy, rows.next_obs)
    other.policy.net = kept
    best = np.where(rows.next_mask, chooser if double else later, -np.inf).argmax(-1)[..., None]
    own_values = np.take_along_axis(now, rows.action[..., None], -1)[..., 0] * rows.active
    after = np.take_along_axis(later, best, -1)[..., 0] * rows.next_active
    total, follows = own_values.sum(1), after.sum(1)
    if name == "qmix":
        state, next_obs = (other.state_normalizer(s[None])[0] for s in (rows.state, rows.next_state))
        total, follows = (
            in_numpy(other.mixer.module, own_values, state),
            in_numpy(other.target_mixer.module, after, next_obs),
        )
    error = total - (rows.reward + np.where(rows.discount > 0, rows.discount * follows, 0))
    assert 0 < rows.active.mean() < 1
    assert 0 < (rows.discount == 0).mean() < 1
    assert mean == pytest.approx(float(total.mean()), abs=1e-3)
    assert size == pytest.approx(float(np.abs(error).mean()), abs=1e-3)
    assert loss == pytest.approx(float((drawn.weight * error**2 / 2).mean()), rel=1e-3)
    assert np.allclose(one.replays[0].nodes[512:][drawn.rows], (np.abs(error) + 1e-6) ** 0.6, atol=1e-3)
    assert not np.array_equal(weights(one), weights(other))
    if name == "qmix":
        assert not np.array_equal(one.mixer.flat.array, other.mixer.flat.array)


@both_kinds
def test_learning_rates_of_network_and_mixer(parameters):
    # Adam's first step moves every parameter by nearly the learning rate.
    def moved(progress=0.0, **rates):
        one = team("qmix", parameters, updates_per_step=1 / 36, **rates)
        before = weights(one), one.mixer.flat.array.copy()
        assert learn(one, random_rollout(one), progress=progress)["updates"] == 1
        return [float(np.abs(a - b).max()) for a, b in zip((weights(one), one.mixer.flat.array), before, strict=True)]

    assert moved(learning_rate=0.01) == pytest.approx([0.01, 0.01], rel=0.02)
    assert moved(learning_rate=0.01, mixer_learning_rate=3e-4) == pytest.approx([0.01, 3e-4], rel=0.02)
    assert moved(learning_rate=0.01, mixer_learning_rate=0.02) == pytest.approx([0.01, 0.02], rel=0.02)
    falling = {"learning_rate": 0.01, "mixer_learning_rate": 0.004, "learning_rate_schedule": "linear"}
    assert moved(0.75, **falling) == pytest.approx([0.0025, 0.001], rel=0.02)


@both_mixers
def test_a_teams_reward_is_its_mean(name):
    one = team(name, gamma=0.5, n_steps=1)
    own = experience([[1, 3], [2, 8], [0, 0]], terminated=[(1, 0), (1, 1)])
    learn(one, own)
    assert one.replays[0].rows.reward[:2].tolist() == [2, 5]
    assert one.replays[0].rows.discount[:2].tolist() == [0.5, 0]
    assert len(one.replays) == 1


@pytest.mark.parametrize("update", [{"interval": 2}, {"update": "soft", "tau": 0.5}])
def test_the_targets_mixer_follows_as_the_target_does(update):
    one = team("qmix", updates_per_step=1 / 36, target=update)
    own, first = random_rollout(one), one.target_mixer.flat.array.copy()
    learn(one, own)
    now, behind = one.mixer.flat.array, one.target_mixer.flat.array
    if "interval" in update:
        assert np.array_equal(behind, first)
        learn(one, own)
        assert np.array_equal(behind, now)
    else:
        assert np.allclose(behind, (first + now) / 2, atol=1e-6)
    assert (one.mixer.flat.steps == one.policy.flat.steps).all()


def test_the_state_is_normalised_by_what_was_seen():
    one = stirred(team("qmix"))
    own = random_rollout(one)
    own = dataclasses.replace(own, observation=own.observation * 50 + 100)
    learn(one, own)
    rows = own.observation[:-1].reshape(-1, 6)
    assert np.allclose(one.state_normalizer.mean[0], rows.mean(0), rtol=1e-4)
    batch = Batch(one.policy, one.replays, len(rows), 2)
    batch.values[:], batch.state = 1, lambda column: rows
    normal = torch.from_numpy(((rows - rows.mean(0)) / rows.std(0)).astype(np.float32))
    expected = one.mixer.module(torch.ones(len(rows), 2), normal).detach().numpy()
    assert np.allclose(one.mix(one.mixer, batch, "state"), expected, atol=1e-2)


def test_the_worlds_own_state_is_used_where_it_tells_one():
    one = make_learner(group_spec(state_size=4), mixer="qmix")
    own = random_rollout(one)
    rows = generator(1).standard_normal((len(own.valid) + 1, own.valid.shape[1], 4), np.float32)
    finals = generator(2).standard_normal((len(own.finals.at), 4), np.float32)
    one.learn(own, Joint({"team": own}, 1, 0.0, {}, StateRows(rows, finals)), generator())
    known = one.replays[0].rows.state[: one.replays[0].size]
    assert {tuple(s) for s in known.tolist()} <= {tuple(s) for s in rows.reshape(-1, 4).tolist()}


@both_kinds
@both_mixers
def test_a_loaded_team_goes_on_as_the_saved_one(name, parameters):
    one, other = (team(name, parameters, target={"update": "soft", "tau": 0.1}) for _ in range(2))
    learn(one, random_rollout(one, 0))
    learn(other, random_rollout(one, 3))  # a used one
    other.policy.load(through_checkpoint(one.policy.state()))
    other.load(through_checkpoint(one.state()))
    own = random_rollout(one, 1)
    assert learn(one, own) == learn(other, own)
    expect_equal("learner", leaves(one.state()), other.state())
    expect_equal("policy", leaves(one.policy.state()), other.policy.state())
    assert np.array_equal(one.replays[0].nodes, other.replays[0].nodes)


def test_a_mixer_that_is_no_number_is_named():
    one = team("qmix", updates_per_step=1e-6)  # nothing is learned, so that no loss tells of it
    one.mixer.flat.array[0, 3] = np.nan
    with pytest.raises(Diverged, match="group 'team': learning diverged"):
        learn(one, random_rollout(one))


@both_mixers
def test_a_world_of_turns_is_refused(name):
    with pytest.raises(ValueError, match=f"mixer={name}"):
        make_learner(dataclasses.replace(group_spec(state_size=6), simultaneous=False), mixer=name)


# Games -------------------------------------------------------------------------------------------------


def train(world, name, parameters="shared", iterations=30, steps=4, state_size=2, **fields):
    where = dataclasses.replace(spec_in(world, parameters=parameters), state_size=state_size)
    policy = q_network(where, dueling=False)
    one = make_learner(where, policy=policy, mixer=name, **fields)
    runner = Runner(world, actors((where, policy)), seed=0)
    for i in range(iterations):
        own = runner.play(steps, i).decisions["team"]
        learn(one, own, i, progress=i / iterations, ahead=(i + 1) / iterations)
    return Runner(world, actors((where, policy)), seed=1, greedy=True).play(2, 0).decisions["team"], one


@pytest.mark.slow
@both_kinds
@both_mixers
def test_a_team_learns_the_only_joint_action_that_is_paid(name, parameters):
    def pay(action):
        return np.repeat((action == [2, 0]).all(axis=1, keepdims=True), 2, axis=1) * 1.0

    fields = {"learning_rate": 0.01, "updates_per_step": 0.05, "batch_size": 64, "n_steps": 1}
    own, _ = train(Bandit(Discrete(3), pay, num_envs=32, agents=2), name, parameters, **fields)
    assert (own.action == [2, 0]).all()


class TwoSteps(Unsaved):
    """Rashid et al. 2018, section 5: the first agent's first action chooses between two games of one step.

    The first pays 7 whatever is done; the second pays 8 if both play 1, 1 if one of them does, else nothing.
    """

    simultaneous = True
    state_size = 0
    PAY = np.array([[[7, 7], [7, 7]], [[0, 1], [1, 8]]], np.float32)

    def __init__(self, num_envs):
        self.num_envs = num_envs
        self.agent_types = {"player": AgentType(("agent_0", "agent_1"), Box((3,), 0.0, 1.0), Discrete(2))}

    def tell(self, reward, over):
        rows = (self.num_envs, 2)
        seen = np.repeat(np.eye(3, dtype=np.float32)[self.where][:, None], 2, axis=1)
        ends = np.repeat(over[:, None], 2, axis=1)
        paid = np.repeat(reward[:, None], 2, axis=1).astype(np.float32)
        return TimeStep({"player": AgentStep(seen, np.ones(rows, bool), paid, ends, np.zeros(rows, bool), seen)}, over)

    def reset(self, seed):
        self.where = np.zeros(self.num_envs, np.int64)  # 0: the choice; 1, 2: the games
        return self.tell(np.zeros(self.num_envs), np.zeros(self.num_envs, bool))

    def step(self, actions):
        one, two = actions["player"].T
        over = self.where > 0
        reward = np.where(over, self.PAY[self.where - 1, one, two], 0)
        self.where = np.where(over, 0, 1 + one)
        return self.tell(reward, over)


@pytest.mark.slow
def test_qmix_finds_the_better_of_two_games_where_a_sum_cannot():
    fields = {"learning_rate": 5e-3, "updates_per_step": 0.1, "batch_size": 64, "n_steps": 1, "gamma": 1.0}
    fields |= {"epsilon": {"schedule": "constant"}, "huber": None, "target": {"interval": 50}, "mixing_width": 8}
    paid = {}
    for name in ("vdn", "qmix"):
        own, _ = train(TwoSteps(32), name, iterations=40, steps=8, state_size=6, **fields)
        paid[name] = own.reward[1].mean()
    assert paid == {"vdn": 7, "qmix": 8}


# Targets ------------------------------------------------------------------------------------------------


def test_targets_of_qmix_stay_within_what_the_rewards_allow():
    one = stirred(team("qmix", gamma=0.5, n_steps=1, target={"tau": 1.0}))
    one.target_mixer.flat.array[:] = 50.0  # a mixer that has run away
    own = random_rollout(one)
    one.store(own, joint_of(one, own))
    batch = Batch(one.policy, one.replays, one.replays[0].size, 2)
    batch.index[:] = np.arange(batch.size)
    batch.fill()
    low, high = one.possible_values()
    assert (low, high) == (2 * min(own.reward.min(), 0), 2 * max(own.reward.max(), 0))
    later = one.next_totals(batch)
    assert np.abs(later).max() > 0
    assert (later >= low - 1e-5).all()
    assert (later <= high + 1e-5).all()
    again = team("qmix", gamma=0.5, n_steps=1)
    again.load(one.state())
    assert again.possible_values() == (low, high)


def test_possible_values_follow_the_rewards_that_are_learned_from():
    one = make_learner(group_spec(state_size=6), Team(TeamSettings()), mixer="qmix", gamma=0.5, updates_per_step=1e-6)
    own = random_rollout(one)
    learn(one, own)
    mean = own.group_reward
    assert own.reward.max() > mean.max()
    assert one.possible_values() == pytest.approx((2 * mean.min(), 2 * mean.max()))


def test_without_a_discount_any_value_is_possible():
    one = team("qmix", gamma=1.0)
    assert one.possible_values() == (0, 0)
    one.extremes[:] = -2, 3
    assert one.possible_values() == (-np.inf, np.inf)
