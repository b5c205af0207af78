"""PPO: each step of an update against its definition. Settings, memory, central critics and games: `test_ppo_*.py`."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from coterie.algorithms.divergence import Diverged
from coterie.algorithms.ppo.ppo import explained_variance
from coterie.core.decisions import Finals
from coterie.nn import nets
from coterie.preferences.standard import Team, TeamSettings
from coterie.testing.comparison import expect_equal, leaves
from coterie.testing.sampling import random_decisions
from helpers.ppo import SameShuffle, actor, critic, evaluate_actions, learn, random_rollout, tensors, values_of, watch
from helpers.small_worlds import ACTIONS, experience, generator, group_spec, joint, network

# The update ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parameters", ["shared", "individual"])
@pytest.mark.parametrize("action", ACTIONS)
def test_the_ratio_is_1_at_first_and_differs_later(learner, action, parameters):
    one = learner(group_spec(ACTIONS[action], agents=3, parameters=parameters), learning_rate=0.01)
    for iteration in range(2):  # again with observations normalised
        seen = watch(one)
        learn(one, random_rollout(one, iteration))
        first, later = (seen[i].ratio[torch.from_numpy(seen[i].part.weight) > 0] for i in (0, -1))
        assert torch.allclose(first, torch.ones(()), atol=1e-5)
        assert (later - 1).abs().max() > 1e-3


def test_the_ratio_is_1_under_masks_too(learner):
    one = learner()
    seen = watch(one)
    learn(one, random_rollout(one, masked=True))
    assert torch.allclose(seen[0].ratio, torch.ones(()), atol=1e-5)


def test_one_step_descends_the_clipped_objective(learner):
    one, other = (learner(epochs=1, minibatches=1, learning_rate=0.01, max_grad_norm=1e9) for _ in range(2))
    own = random_rollout(one)
    own = dataclasses.replace(
        own, log_prob=own.log_prob + generator().uniform(-0.6, 0.6, own.log_prob.shape).astype("f4")
    )
    seen = watch(one)
    metrics = learn(one, own)
    part, rows = seen[0].part, tensors(seen[0].part)
    advantage = (rows.advantage - rows.advantage.mean()) / (rows.advantage.std(correction=0) + 1e-8)
    log_prob, entropy = evaluate_actions(other, part)
    ratio = (log_prob - rows.log_prob).exp()
    gain = torch.where(advantage > 0, ratio.clamp(max=1.2), ratio.clamp(min=0.8)) * advantage
    loss = -gain.mean() - 0.01 * entropy.mean()
    loss.backward()
    torch.optim.Adam(other.policy.net.parameters(), lr=0.01, eps=1e-5).step()
    assert np.allclose(actor(one), actor(other), atol=1e-6)
    assert metrics["policy_loss"] == pytest.approx(float(-gain.detach().mean()), abs=1e-5)
    assert metrics["entropy"] == pytest.approx(float(entropy.detach().mean()), abs=1e-5)
    assert metrics["clip_fraction"] == pytest.approx(float(((ratio - 1).abs() > 0.2).float().mean()))
    assert metrics["kl"] == pytest.approx(float((ratio - 1 - ratio.log()).detach().mean()), abs=1e-5)
    assert 0 < metrics["clip_fraction"] < 1


def test_every_decision_is_used_once_a_pass(learner):
    one = learner(epochs=3, minibatches=4)
    own = random_rollout(one)
    seen = watch(one)
    metrics = learn(one, own)
    assert len(seen) == metrics["minibatches"] == 12
    closed = own.valid
    assert metrics["decisions"] == closed.sum()
    orders = []
    for first in (0, 4, 8):
        parts = [seen[i].part for i in range(first, first + 4)]
        rows = np.concatenate([part.log_prob for part in parts], axis=1)[0]
        assert sorted(rows) == sorted(own.log_prob[closed])
        sizes = [part.weight.shape[1] for part in parts]
        assert max(sizes) - min(sizes) <= 1
        orders.append(rows.tolist())
    assert orders[0] != orders[1] != orders[2]  # shuffled anew


@pytest.mark.parametrize(("action", "parameters"), [("box", "individual"), ("multi-discrete", "shared")])
def test_what_belongs_together_stays_together(learner, action, parameters):
    one = learner(group_spec(ACTIONS[action], agents=3, parameters=parameters))
    own = random_rollout(one)
    own.log_prob[:] = -1 - np.arange(own.log_prob.size).reshape(own.log_prob.shape) * 1e-4  # tells rows apart
    seen = watch(one)
    learn(one, own)
    used = 0
    for part, *_ in seen:
        for stack, m in np.argwhere(part.weight):
            t, n, a = np.argwhere(own.log_prob == part.log_prob[stack, m])[0]
            assert np.array_equal(part.actor_input[stack, m, :3], own.observation[t, n, a])
            assert np.array_equal(part.action[stack, m], own.action[t, n, a])
            who = part.actor_input[stack, m, 3:].tolist()
            assert (stack, who) == ((a, []) if parameters == "individual" else (0, np.eye(3)[a].tolist()))
            used += 1
    assert used == 4 * own.valid.sum()


def test_truncation_bootstraps_from_the_final_observation(learner):
    for parameters in ("shared", "individual"):
        one = learner(group_spec(agents=2, parameters=parameters), normalize_returns=False)
        own = random_rollout(one)
        one.policy.normalizer.update([generator(s).random((9, 3)) * 5 for s in range(one.group_spec.parameter_sets)])

        values = values_of(one, own.observation)
        found = one.next_values(own, None, values)
        assert own.truncated.any()
        for (t, n), final in zip(own.finals.at, own.finals.observation, strict=True):
            for a in np.flatnonzero(own.next[t, n] > len(own.valid)):
                alone = np.zeros((1, 1, 2, 3), np.float32)
                alone[0, 0, a] = final[a]
                value = values_of(one, alone)[0, 0, a]
                assert found[t, n, a] == pytest.approx(float(value), abs=1e-5)
                assert found[t, n, a] != pytest.approx(float(values[t + 1, n, a]), abs=1e-3)


def test_truncation_without_a_reset_bootstraps_from_the_next_row(learner):
    one = learner()
    own = experience([[0, 0]] * 3, truncated=[(1, 0)], observation=generator().random((4, 1, 2, 3), np.float32))
    values = generator().random((4, 1, 2), np.float32)
    assert one.next_values(own, None, values)[1, 0, 0] == values[2, 0, 0]


def test_large_experience_is_evaluated_in_chunks(learner, monkeypatch):
    one = learner()
    seen = generator().standard_normal((1, 50, 5), np.float32)
    whole = one.evaluate(seen)
    monkeypatch.setattr(nets, "CHUNK", 7)
    assert np.allclose(one.evaluate(seen), whole, atol=1e-6)
    rows = np.concatenate([one.evaluate(seen[:, i : i + 1]) for i in range(50)], axis=1)
    assert np.allclose(rows, whole, atol=1e-6)


def test_observation_statistics_take_in_the_decisions_after_learning(learner):
    one = learner(group_spec(agents=2, parameters="individual"))
    own = random_rollout(one)
    learn(one, own)
    closed = own.valid
    for a in (0, 1):
        rows = own.observation[:-1][:, :, a][closed[:, :, a]]
        assert np.allclose(one.policy.normalizer.mean[a], rows.mean(0), atol=1e-6)
        assert one.policy.normalizer.count[a] == len(rows)


def test_preferences_act_at_the_learners_door(learner):
    own_wish, team = learner(), learner(preference=Team(TeamSettings()))
    own = random_rollout(own_wish)
    seen = [watch(one) for one in (own_wish, team)]
    for one in (own_wish, team):
        learn(one, own)
    assert not np.array_equal(seen[0][0].part.advantage, seen[1][0].part.advantage)
    again = learner()
    learn(again, dataclasses.replace(own, reward=own.group_reward))
    assert np.array_equal(actor(again), actor(team))


# Stacks ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("lives", ["equal", "unequal"])
@pytest.mark.parametrize("action", ACTIONS)
def test_individual_agents_learn_as_if_alone(learner, action, lives):
    settings = {"learning_rate": 0.01, "epochs": 3, "value_clip": 0.5}
    if lives == "unequal":
        settings |= {"minibatches": 8, "target_kl": 0.002}
    where = group_spec(ACTIONS[action], agents=2, parameters="individual")
    both = learner(where, **settings)
    own = random_decisions(where, both.policy, False, 0)
    own = dataclasses.replace(own, valid=np.ones_like(own.valid))
    own = dataclasses.replace(own, reward=own.reward * np.float32([1, 30]) + np.float32([0, 7]))
    if lives == "unequal":
        own.valid[1:, :, 1] = False  # agent 1 decides once
        own.terminated[0, :, 1] = True
    alone = []
    for a in (0, 1):
        solo = group_spec(ACTIONS[action], agents=1)
        one = learner(solo, **settings)
        for mine, theirs in ((one.policy.net, both.policy.net), (one.critic_network, both.critic_network)):
            for left, right in zip(mine.parameters(), theirs.parameters(), strict=True):
                left.data.copy_(right.data[a : a + 1])
        alone.append(one)

    def part(tree, a):
        return tree[:, :, a : a + 1]

    steps = []
    for _ in range(3):
        both.learn(own, joint(own), SameShuffle())
        steps.append(both.policy.flat.steps.tolist())
        for a, one in enumerate(alone):
            names = ("observation", "action", "log_prob", "reward", "next", "valid", "terminated", "truncated")
            mine = dataclasses.replace(
                own,
                **{name: part(getattr(own, name), a) for name in names},
                finals=Finals(own.finals.at, own.finals.observation[:, a : a + 1]),
            )
            one.learn(mine, joint(mine), SameShuffle())
    for a, one in enumerate(alone):
        assert both.policy.flat.steps[a] == both.critic.flat.steps[a] == one.policy.flat.steps[0]
        # batched products round differently, and Adam divides by small gradients
        assert np.allclose(actor(one)[0], actor(both)[a], atol=5e-6)
        assert np.allclose(critic(one)[0], critic(both)[a], atol=5e-6)
        assert np.allclose(one.policy.normalizer.mean[0], both.policy.normalizer.mean[a])
        assert one.returns.scale[0].item() == pytest.approx(both.returns.scale[a].item())
    assert not np.allclose(actor(both)[0], actor(both)[1], atol=1e-2)
    if lives == "unequal":
        most, rows = 3 * 3 * 8, own.valid[0, :, 1].sum()
        assert rows < 8
        assert steps[-1][1] <= 3 * 3 * rows
        assert steps[-1][0] < most  # stopped by its own target_kl


def test_an_agent_without_decisions_does_not_disturb_the_others(learner):
    where = group_spec(agents=2, parameters="individual")
    one = learner(where)
    own = random_rollout(one)
    valid = own.valid.copy()
    valid[:, :, 1] = False
    own = dataclasses.replace(own, valid=valid)
    before = actor(one)
    metrics = learn(one, own)
    assert all(np.isfinite(v) for v in metrics.values())
    assert np.array_equal(actor(one)[1], before[1])
    assert not np.array_equal(actor(one)[0], before[0])
    assert one.policy.normalizer.count.tolist() == [metrics["decisions"], 0]


# Failure and rest ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("action", ["discrete", "box"])
def test_divergence_is_named(learner, bad, action):
    one = learner(group_spec(ACTIONS[action]))
    own = random_rollout(one)
    own.reward[3] = bad
    with pytest.raises(Diverged, match="group 'team': learning diverged"):
        learn(one, own)


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("normal", [True, False])
def test_one_observation_that_is_no_number_is_enough(learner, bad, activation, normal):
    where, compiled = group_spec(), learner.keywords["compiled"]
    for iteration in (1, 2):  # the second with observations normalised, where infinity is held at 10
        fields = {"activation": activation, "compiled": compiled, "normalize_observations": normal}
        one = learner(where, policy=network(where, **fields))
        for seed in range(iteration):
            own = random_rollout(one, seed)
            if seed == iteration - 1:
                t, n, a = np.argwhere(own.valid)[0]
                own.observation[t, n, a, 1] = bad
                with pytest.raises(Diverged, match=r"observation is not a finite number|learning diverged"):
                    learn(one, own)
            else:
                learn(one, own)


def test_padding_may_hold_anything(learner):
    found = []
    for rubbish in (False, True):
        one = learner(group_spec(agents=3, parameters="individual"))
        own = random_rollout(one)
        own.valid[:, :, 1] &= own.valid[:, :, 0]  # sequences of unequal length
        own.valid[0] = False
        if rubbish:
            own.log_prob[0], own.action[0], own.observation[0] = -1000, 3, math.nan
        learn(one, own)
        found.append((actor(one), critic(one)))
    assert np.array_equal(found[0][0], found[1][0])
    assert np.array_equal(found[0][1], found[1][1])


def test_nothing_to_learn_from_leaves_everything_as_it_was(learner):
    one = learner()
    own = random_rollout(one)
    before = leaves(one.state()), leaves(one.policy.state())
    idle = dataclasses.replace(own, valid=np.zeros_like(own.valid))
    assert learn(one, idle) == {"decisions": 0.0}
    expect_equal("learner", before[0], one.state())
    expect_equal("policy", before[1], one.policy.state())


def test_an_open_decision_alone_is_not_learned_from(learner):
    one = learner(group_spec(agents=1))
    assert learn(one, experience([[1], [1]], active=[[1], [0]], acting=[False])) == {"decisions": 0.0}


def test_explained_variance():
    returns = np.array([1.0, 2.0, 3.0])
    assert explained_variance(returns, returns) == 1
    assert explained_variance(np.zeros(3), returns) == 0
    assert explained_variance(-returns, returns) == -3
    assert explained_variance(returns, np.ones(3)) == 0
