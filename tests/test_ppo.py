"""PPO: each step against its definition, each setting by its effect, and small games learned."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from coterie.algorithms import ppo
from coterie.algorithms.ppo import PPO, Diverged, PPOSettings, RunningMoments, explained_variance
from coterie.preferences import Team, TeamSettings, Unchanged, UnchangedSettings
from coterie.returns import advantages
from coterie.runner import Runner
from coterie.testing import _experience, _leaves, _same
from coterie.types import Box, Discrete, Finals, MultiDiscrete
from small_worlds import ACTIONS, Bandit, Rounds, experience, generator, joint, network, place, place_in, seats


def learner(where=None, preference=None, policy=None, **settings):
    where = where or place()
    return PPO(PPOSettings(**settings), policy or network(where), where, preference or Unchanged(UnchangedSettings()))


def lived(one, seed=0, masked=False):
    """Random experience that the learner's own policy decided in."""
    return _experience(one.place, one.policy, masked, seed)


def learn(one, own, seed=0, progress=0.0):
    return one.learn(own, joint(own, progress), generator(seed))


def watch(one):
    """Let `step` write down every minibatch it is given and what it says of it."""
    seen, step = [], one.step

    def watched(part, clip):
        with torch.no_grad():
            log_prob, _ = one.policy.head.judge(one.policy.net(part.features, part.agents), part.action, part.mask)
        found = step(part, clip)
        seen.append((part, clip, (log_prob - part.log_prob).exp(), found))
        return found

    one.step = watched
    return seen


def actor(one):
    return one.actor_flat.value.clone()


def critic(one):
    return one.critic_flat.value.clone()


# The update ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parameters", ["shared", "individual"])
@pytest.mark.parametrize("action", ACTIONS)
def test_the_ratio_is_1_at_first_and_differs_later(action, parameters):
    one = learner(place(ACTIONS[action], agents=3, parameters=parameters), learning_rate=0.01)
    for iteration in range(2):  # again with observations normalised
        seen = watch(one)
        learn(one, lived(one, iteration))
        first, later = (seen[i][2][seen[i][0].weight > 0] for i in (0, -1))
        assert torch.allclose(first, torch.ones(()), atol=1e-5)
        assert (later - 1).abs().max() > 1e-3


def test_the_ratio_is_1_under_masks_too():
    one = learner()
    seen = watch(one)
    learn(one, lived(one, masked=True))
    assert torch.allclose(seen[0][2], torch.ones(()), atol=1e-5)


def test_one_step_descends_the_clipped_objective():
    one, other = (learner(epochs=1, minibatches=1, learning_rate=0.01, max_grad_norm=1e9) for _ in range(2))
    own = lived(one)
    own = dataclasses.replace(
        own, log_prob=own.log_prob + generator().uniform(-0.6, 0.6, own.log_prob.shape).astype("f4")
    )
    seen = watch(one)
    metrics = learn(one, own)
    part = seen[0][0]
    net, head = other.policy.net, other.policy.head
    advantage = (part.advantage - part.advantage.mean()) / (part.advantage.std(correction=0) + 1e-8)
    log_prob, entropy = head.judge(net(part.features, part.agents), part.action, None)
    ratio = (log_prob - part.log_prob).exp()
    gain = torch.where(advantage > 0, ratio.clamp(max=1.2), ratio.clamp(min=0.8)) * advantage
    loss = -gain.mean() - 0.01 * entropy.mean()
    loss.backward()
    adam = torch.optim.Adam([other.actor_flat.value], lr=0.01, eps=1e-5)
    adam.step()
    assert torch.allclose(actor(one), actor(other), atol=1e-6)
    assert metrics["policy_loss"] == pytest.approx(float(-gain.detach().mean()), abs=1e-5)
    assert metrics["entropy"] == pytest.approx(float(entropy.detach().mean()), abs=1e-5)
    assert metrics["clip_fraction"] == pytest.approx(float(((ratio - 1).abs() > 0.2).float().mean()))
    assert metrics["kl"] == pytest.approx(float((ratio - 1 - ratio.log()).detach().mean()), abs=1e-5)
    assert 0 < metrics["clip_fraction"] < 1


def test_every_decision_is_used_once_a_pass():
    one = learner(epochs=3, minibatches=4)
    own = lived(one)
    seen = watch(one)
    metrics = learn(one, own)
    assert len(seen) == metrics["minibatches"] == 12
    closed = own.closed()
    assert metrics["decisions"] == closed.sum()
    orders = []
    for first in (0, 4, 8):
        parts = [seen[i][0] for i in range(first, first + 4)]
        rows = torch.cat([part.log_prob for part in parts], dim=1)[0].numpy()
        assert sorted(rows) == sorted(own.log_prob[closed])
        sizes = [part.weight.shape[1] for part in parts]
        assert max(sizes) - min(sizes) <= 1
        orders.append(rows.tolist())
    assert orders[0] != orders[1] != orders[2]  # shuffled anew


def test_what_belongs_together_stays_together():
    where = place(ACTIONS["box"], agents=3, parameters="individual")
    one = learner(where)
    own = lived(one)
    seen = watch(one)
    learn(one, own)
    for part, *_ in seen:
        for stack in range(3):
            for m in torch.nonzero(part.weight[stack])[:, 0]:
                t, n = np.argwhere(own.log_prob[:, :, stack] == part.log_prob[stack, m].item())[0]
                assert np.array_equal(part.features[stack, m], own.observation[t, n, stack])
                assert np.array_equal(part.action[stack, m], own.action[t, n, stack])
                assert part.agents[stack, m] == stack


def test_truncation_bootstraps_from_the_final_observation():
    for parameters in ("shared", "individual"):
        one = learner(place(agents=2, parameters=parameters), normalize_returns=False)
        own = lived(one)
        one.policy.normalizer.update([generator(s).random((9, 3)) * 5 for s in range(one.place.stacks)])

        def value_of(observation, one=one):
            rows, who = (torch.from_numpy(x) for x in one.policy.rows(observation))
            return one.evaluate(one.policy.normalizer(rows), who)

        values = one.to_time(value_of(own.observation), own)
        found = one.bootstrap(own, values)
        assert own.truncated.any()
        for (t, n), final in zip(own.finals.index, own.finals.observation, strict=True):
            for a in np.flatnonzero(own.truncated[t, n]):
                alone = np.zeros((1, 1, 2, 3), np.float32)
                alone[0, 0, a] = final[a]
                value = value_of(alone).reshape(-1)[a]
                assert found[t, n, a] == pytest.approx(float(value), abs=1e-5)
                assert found[t, n, a] != pytest.approx(float(values[t + 1, n, a]), abs=1e-3)


def test_truncation_without_a_reset_bootstraps_from_the_next_row():
    one = learner()
    own = experience([[0, 0]] * 3, truncated=[(1, 0)], observation=generator().random((4, 1, 2, 3), np.float32))
    values = generator().random((4, 1, 2), np.float32)
    found = one.bootstrap(own, values)
    assert found[1, 0, 0] == values[2, 0, 0]
    assert np.count_nonzero(found) == 1


def test_large_experience_is_evaluated_in_chunks(monkeypatch):
    one = learner()
    features, who = torch.randn(1, 50, 3), torch.zeros(1, 50, dtype=torch.int64)
    whole = one.evaluate(features, who)
    monkeypatch.setattr(ppo, "CHUNK", 7)
    assert torch.allclose(one.evaluate(features, who), whole, atol=1e-6)


def test_observation_statistics_take_in_the_decisions_after_learning():
    one = learner(place(agents=2, parameters="individual"))
    own = lived(one)
    learn(one, own)
    closed = own.closed()
    for a in (0, 1):
        rows = own.observation[:-1][:, :, a][closed[:, :, a]]
        assert np.allclose(one.policy.normalizer.mean[a], rows.mean(0), atol=1e-6)
        assert one.policy.normalizer.count[a] == len(rows)


def test_preferences_act_at_the_learners_door():
    own_wish, team = learner(), learner(preference=Team(TeamSettings()))
    own = lived(own_wish)
    seen = [watch(one) for one in (own_wish, team)]
    for one in (own_wish, team):
        learn(one, own)
    assert not torch.equal(seen[0][0][0].advantage, seen[1][0][0].advantage)
    shared = np.broadcast_to(own.reward.mean(2, keepdims=True), own.reward.shape).astype(np.float32)
    again = learner()
    learn(again, dataclasses.replace(own, reward=shared))
    assert torch.equal(actor(again), actor(team))


# Stacks ------------------------------------------------------------------------------------------------


class SameShuffle:
    """Gives every stack the same order, so that an agent alone meets the same minibatches."""

    def permutation(self, rows):
        return np.random.default_rng(rows).permutation(rows)


@pytest.mark.parametrize("action", ACTIONS)
def test_individual_agents_learn_as_if_alone(action):
    settings = {"learning_rate": 0.01, "epochs": 3, "value_clip": 0.5}
    where = place(ACTIONS[action], agents=2, parameters="individual")
    both = learner(where, **settings)
    own = _experience(where, both.policy, False, 0)
    own = dataclasses.replace(own, active=np.ones_like(own.active), acting=np.ones_like(own.acting))
    own = dataclasses.replace(own, reward=own.reward * np.float32([1, 30]) + np.float32([0, 7]))
    alone = []
    for a in (0, 1):
        solo = place(ACTIONS[action], agents=1)
        one = learner(solo, **settings)
        for mine, theirs in ((one.policy.net, both.policy.net), (one.critic, both.critic)):
            for left, right in zip(mine.parameters(), theirs.parameters(), strict=True):
                left.data.copy_(right.data[a : a + 1])
        alone.append(one)

    def part(tree, a):
        return tree[:, :, a : a + 1]

    for _ in range(3):
        both.learn(own, joint(own), SameShuffle())
        for a, one in enumerate(alone):
            names = ("observation", "action", "log_prob", "reward", "active", "terminated", "truncated")
            mine = dataclasses.replace(
                own,
                **{name: part(getattr(own, name), a) for name in names},
                acting=own.acting[:, a : a + 1],
                finals=Finals(own.finals.index, own.finals.observation[:, a : a + 1]),
            )
            one.learn(mine, joint(mine), SameShuffle())
    for a, one in enumerate(alone):
        assert torch.allclose(actor(one)[0], actor(both)[a], atol=1e-6)
        assert torch.allclose(critic(one)[0], critic(both)[a], atol=1e-6)
        assert np.allclose(one.policy.normalizer.mean[0], both.policy.normalizer.mean[a])
        assert one.returns.scale[0].item() == pytest.approx(both.returns.scale[a].item())
    assert not torch.allclose(actor(both)[0], actor(both)[1], atol=1e-2)


def test_an_agent_without_decisions_does_not_disturb_the_others():
    where = place(agents=2, parameters="individual")
    one = learner(where)
    own = lived(one)
    active = own.active.copy()
    active[:, :, 1] = False
    own = dataclasses.replace(own, active=active)
    before = actor(one)
    metrics = learn(one, own)
    assert all(np.isfinite(v) for v in metrics.values())
    assert torch.equal(actor(one)[1], before[1])
    assert not torch.equal(actor(one)[0], before[0])
    assert one.policy.normalizer.count.tolist() == [metrics["decisions"], 0]


# Settings ------------------------------------------------------------------------------------------------


def moved(own=None, progress=0.0, epochs=1, minibatches=1, **settings):
    """How far one learning moves actor and critic, in the largest single parameter."""
    one = learner(epochs=epochs, minibatches=minibatches, **settings)
    before = actor(one), critic(one)
    learn(one, own or lived(one), progress=progress)
    return float((actor(one) - before[0]).abs().max()), float((critic(one) - before[1]).abs().max())


def test_learning_rates_of_actor_and_critic():
    # Adam's first step moves every parameter by nearly the learning rate.
    assert moved(learning_rate=0.01) == pytest.approx((0.01, 0.01), rel=0.02)
    assert moved(learning_rate=0.01, critic_learning_rate=0.03) == pytest.approx((0.01, 0.03), rel=0.02)


def test_learning_rate_schedule():
    for progress in (0.0, 0.75):
        left = moved(learning_rate=0.01, critic_learning_rate=0.02, progress=progress)
        assert left == pytest.approx((0.01 * (1 - progress), 0.02 * (1 - progress)), rel=0.02)
        flat = moved(learning_rate=0.01, learning_rate_schedule="constant", progress=progress)
        assert flat == pytest.approx((0.01, 0.01), rel=0.02)
    assert moved(learning_rate=0.01, progress=1.0) == (0, 0)
    one = learner(learning_rate=0.01)
    assert learn(one, lived(one), progress=0.5)["learning_rate"] == pytest.approx(0.005)


def test_clip_and_its_schedule():
    for schedule, expected in (("constant", [0.3, 0.3]), ("linear", [0.3, 0.3 * 0.25])):
        one = learner(clip=0.3, clip_schedule=schedule)
        seen = watch(one)
        for progress in (0.0, 0.75):
            learn(one, lived(one), progress=progress)
        assert [seen[0][1], seen[-1][1]] == pytest.approx(expected)


def test_clipping_acts_when_steps_are_large():
    one, free = learner(learning_rate=0.05), learner(learning_rate=0.05, clip=10)
    own = lived(one)
    assert learn(one, own)["clip_fraction"] > 0.1
    assert learn(free, own)["clip_fraction"] < 0.02
    assert not torch.allclose(actor(one), actor(free), atol=1e-3)
    assert learn(learner(learning_rate=1e-6), own)["clip_fraction"] == 0


def whole_batch(own, **settings):
    """The one minibatch that a learner makes of an experience."""
    one = learner(epochs=1, minibatches=1, **settings)
    seen = watch(one)
    learn(one, own)
    return seen[0][0]


def test_gamma_and_lambda_reach_the_advantages():
    one = learner()
    own = lived(one)
    rows, who = one.policy.rows(own.observation)
    values = one.to_time(one.evaluate(torch.from_numpy(rows), torch.from_numpy(who)), own)
    found = {}
    for gamma, trace in ((0.99, 0.95), (0.5, 0.95), (0.99, 0.2)):
        expected = advantages(own, own.reward, values, one.bootstrap(own, values), gamma, trace)
        part = whole_batch(own, gamma=gamma, gae_lambda=trace, normalize_returns=False)
        assert sorted(part.advantage[0].tolist()) == pytest.approx(sorted(expected[0][expected[2]].tolist()), abs=1e-5)
        assert sorted(part.target[0].tolist()) == pytest.approx(sorted(expected[1][expected[2]].tolist()), abs=1e-5)
        found[gamma, trace] = part.advantage.std().item()
    assert len({round(value, 5) for value in found.values()}) == 3


def test_epochs_and_minibatches():
    for epochs, minibatches in ((1, 1), (3, 2), (2, 5)):
        one = learner(epochs=epochs, minibatches=minibatches)
        assert learn(one, lived(one))["minibatches"] == epochs * minibatches


def test_more_minibatches_than_decisions():
    own = experience([[1]], terminated=[(0, 0)])
    one = learner(place(agents=1), minibatches=8, epochs=1)
    assert learn(one, own)["minibatches"] == 1


def test_value_clip():
    near, free = (
        learner(value_clip=v, critic_learning_rate=0.05, epochs=10, entropy_coefficient=0) for v in (0.05, None)
    )
    own = lived(near)
    drift = []
    for one in (near, free):
        rows, who = (torch.from_numpy(x) for x in one.policy.rows(own.observation))
        before = one.critic(rows, who).detach()
        learn(one, own)
        drift.append(float((one.critic(rows, who).detach() - before).abs().mean()))
    assert drift[0] < 0.6 * drift[1]


def test_value_clip_does_not_count_a_new_scale_of_returns_as_movement():
    one = learner(value_clip=0.2)
    own = lived(one)
    own = dataclasses.replace(own, reward=own.reward + 50)
    seen = watch(one)
    rows, who = (torch.from_numpy(x) for x in one.policy.rows(own.observation))
    with torch.no_grad():
        raw = one.critic(rows, who).numpy().reshape(-1, *own.active.shape[1:])
    learn(one, own)
    said = sorted(np.concatenate([part.value[0].numpy() for part, *_ in seen[:4]]).tolist())
    assert said == pytest.approx(sorted(raw[:-1][own.closed()].tolist()), abs=1e-5)


@pytest.mark.parametrize("scaled", [False, True])
def test_value_clip_by_hand(scaled):
    one = learner(value_clip=0.1, normalize_returns=scaled, epochs=1, minibatches=1)
    own = lived(one)
    own = dataclasses.replace(own, reward=own.reward / 4)
    seen = watch(one)
    one.learn(own, joint(own), generator())
    part = seen[0][0]
    far = part._replace(value=part.value + 1.0)  # the critic has moved by −1 since
    with torch.no_grad():
        value = one.critic(part.features, part.agents).squeeze(-1)
    limit = 0.1 / float(one.returns.scale)  # the setting is in the world's rewards
    assert (limit > 0.15) is scaled
    near = far.value + (value - far.value).clamp(-limit, limit)
    exact = torch.maximum((value - part.target) ** 2, (near - part.target) ** 2)
    assert one.step(far, 0.2)["value_loss"] == pytest.approx(float(exact.mean() / 2), rel=1e-4)


def test_the_entropy_coefficient_raises_entropy():
    final = {}
    for coefficient in (0.0, 0.5):
        one = learner(entropy_coefficient=coefficient, learning_rate=0.02, learning_rate_schedule="constant")
        one.policy.net.out.bias.data[..., 0] = 2.0  # far from uniform
        own = lived(one)
        for i in range(5):
            final[coefficient] = learn(one, own, seed=i)["entropy"]
    assert final[0.5] > final[0.0] + 0.1


def test_max_grad_norm():
    norms = {}
    for limit in (1e-4, 1e9):
        one = learner(max_grad_norm=limit, epochs=1, minibatches=1)
        learn(one, lived(one))
        norms[limit] = float(one.actor_flat.grad.norm()), float(one.critic_flat.grad.norm())
    assert max(norms[1e-4]) <= 1e-4
    assert min(norms[1e9]) > 1e-3


def test_normalize_advantages():
    own = lived(learner())
    small, large = own, dataclasses.replace(own, reward=own.reward * 1000)
    plain = {"normalize_returns": False, "gae_lambda": 1.0, "entropy_coefficient": 0.0, "max_grad_norm": 1e9}

    def gradient(lived_through, normalize):
        one = learner(normalize_advantages=normalize, epochs=1, minibatches=1, **plain)
        for parameter in one.critic.parameters():
            parameter.data.zero_()
        learn(one, lived_through)
        return one.actor_flat.grad

    assert torch.allclose(gradient(small, True), gradient(large, True), atol=1e-4)
    assert torch.allclose(gradient(small, False) * 1000, gradient(large, False), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("normalize", [True, False])
def test_a_single_decision_is_safe(normalize):
    one = learner(place(agents=1), normalize_advantages=normalize)
    metrics = learn(one, experience([[5]], terminated=[(0, 0)]))
    assert metrics["decisions"] == 1
    assert one.finite()


def test_normalize_returns():
    own = lived(learner())
    own = dataclasses.replace(own, reward=own.reward * 100 + 40)
    on = whole_batch(own, normalize_returns=True)
    off = whole_batch(own, normalize_returns=False)
    assert on.target.mean().item() == pytest.approx(0, abs=1e-4)
    assert on.target.std(correction=0).item() == pytest.approx(1, abs=1e-4)
    assert off.target.abs().mean() > 20


def test_values_are_told_in_the_worlds_rewards():
    one = learner(critic_learning_rate=0.01, learning_rate_schedule="constant", epochs=40)
    own = experience([[100.0, 100.0]] * 8, terminated=[(t, a) for t in range(8) for a in (0, 1)])
    own = dataclasses.replace(own, reward=own.reward + np.float32([[[50, -50]]]))
    for _ in range(5):
        learn(one, own)
    rows, who = (torch.from_numpy(x) for x in one.policy.rows(own.observation))
    values = one.to_time(one.evaluate(one.policy.normalizer(rows), who), own)
    assert values[0, 0].tolist() == pytest.approx([150, 50], abs=10)


def test_target_kl_ends_the_passes():
    own = lived(learner())
    counts = {}
    for limit in (None, 1e-6, 1e9):
        one = learner(target_kl=limit, epochs=6, minibatches=2, learning_rate=0.01)
        counts[limit] = learn(one, own)["minibatches"]
    assert counts == {None: 12, 1e-6: 2, 1e9: 12}


def test_target_kl_looks_at_the_latest_pass():
    one = learner(target_kl=0.05, epochs=50, minibatches=1)
    said = iter([0.0] * 10 + [0.06] + [0.0] * 50)  # the mean over all passes is far below the limit
    one.step = lambda part, clip: {"kl": next(said)}
    assert learn(one, lived(one))["minibatches"] == 11


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"learning_rate": 0}, "learning_rate must be above 0, got 0"),
        ({"critic_learning_rate": -1}, "critic_learning_rate must be above 0, got -1"),
        ({"gamma": 1.2}, r"gamma must lie in \[0, 1\], got 1.2"),
        ({"gae_lambda": -0.1}, r"gae_lambda must lie in \[0, 1\], got -0.1"),
        ({"clip": 0}, "clip must lie in"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"minibatches": 0}, "minibatches must be at least 1, got 0"),
        ({"entropy_coefficient": -1}, "entropy_coefficient must be at least 0, got -1"),
        ({"max_grad_norm": 0}, "max_grad_norm must be above 0, got 0"),
        ({"value_clip": 0}, "value_clip must be above 0, got 0"),
        ({"target_kl": math.nan}, "target_kl must be above 0, got nan"),
    ],
)
def test_impossible_settings_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        PPOSettings(**fields)


def test_every_setting_has_a_test_here():
    tested = {"learning_rate", "critic_learning_rate", "learning_rate_schedule", "gamma", "gae_lambda", "clip"}
    tested |= {"clip_schedule", "value_clip", "epochs", "minibatches", "entropy_coefficient", "max_grad_norm"}
    tested |= {"normalize_advantages", "normalize_returns", "target_kl"}
    assert {field.name for field in dataclasses.fields(PPOSettings)} == tested


# Failure and rest ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_divergence_is_named(bad):
    one = learner()
    own = lived(one)
    own.reward[3] = bad
    with pytest.raises(Diverged, match="group 'team': learning diverged"):
        learn(one, own)


def test_nothing_to_learn_from_leaves_everything_as_it_was():
    one = learner()
    own = lived(one)
    before = _leaves(one.state()), _leaves(one.policy.state())
    idle = dataclasses.replace(own, active=np.zeros_like(own.active))
    assert learn(one, idle) == {"decisions": 0.0}
    _same("learner", before[0], one.state())
    _same("policy", before[1], one.policy.state())


def test_an_open_decision_alone_is_not_learned_from():
    one = learner(place(agents=1))
    assert learn(one, experience([[1], [1]], active=[[1], [0]], acting=[False])) == {"decisions": 0.0}


def test_running_moments_equal_numpys():
    one = RunningMoments(2)
    parts = [generator(i).standard_normal((2, 4 + 5 * i)) * 5 + 3 for i in range(3)]
    for part in parts:
        one.update(part, np.ones(part.shape))
    both = np.concatenate(parts, axis=1)
    assert np.allclose(one.mean[:, 0], both.mean(1))
    assert np.allclose(one.variance[:, 0], both.var(1))
    padded = RunningMoments(2)
    padded.update(np.array([[1.0, 3.0, 99.0], [9.0, 9.0, 9.0]]), np.array([[1, 1, 0], [0, 0, 0]]))
    assert padded.mean.tolist() == [[2], [0]]
    assert padded.variance.tolist() == [[1], [1]]
    assert padded.scale[:, 0].tolist() == pytest.approx([1, 1], abs=1e-5)
    assert RunningMoments(1).scale.item() == 1


def test_explained_variance():
    returns = np.array([1.0, 2.0, 3.0])
    assert explained_variance(returns, returns) == 1
    assert explained_variance(np.zeros(3), returns) == 0
    assert explained_variance(-returns, returns) == -3
    assert explained_variance(returns, np.ones(3)) == 0


# Games -----------------------------------------------------------------------------------------------------


def train(world, iterations=30, steps=4, parameters="shared", network_settings=None, **settings):
    where = place_in(world, parameters=parameters)
    policy = network(where, **network_settings or {})
    one = learner(where, policy=policy, **{"learning_rate": 0.02, "entropy_coefficient": 0.0} | settings)
    runner = Runner(world, seats((where, policy)), seed=0)
    for i in range(iterations):
        own = runner.play(steps, i).experiences["team"]
        one.learn(own, joint(own, i / iterations), generator(i))
    greedy = Runner(world, seats((where, policy)), seed=1, greedy=True).play(2, 0).experiences["team"]
    return greedy


def test_learns_a_discrete_bandit():
    payoff = np.array([0.0, 0.2, 1.0, 0.5])
    own = train(Bandit(Discrete(4), lambda a: payoff[a]))
    assert (own.action == 2).all()


def test_learns_a_multi_discrete_bandit():
    own = train(Bandit(MultiDiscrete((3, 3)), lambda a: (a[..., 0] == 2) * 1.0 + (a[..., 1] == 0)))
    assert (own.action == [2, 0]).all()


@pytest.mark.parametrize("family", ["beta", "gaussian"])
def test_learns_a_continuous_bandit(family):
    space = Box((2,), np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
    best = np.array([1.0, 3.0])
    world = Bandit(space, lambda a: -(((a - best) / [4, 10]) ** 2).sum(-1))
    own = train(world, iterations=60, learning_rate=0.01, network_settings={"continuous": family})
    assert np.abs((own.action - best) / [4, 10]).max() < 0.03


@pytest.mark.parametrize("parameters", ["shared", "individual"])
def test_agents_with_equal_views_learn_to_act_differently(parameters):
    wanted = np.array([0, 2])
    own = train(Bandit(Discrete(3), lambda a: (a == wanted) * 1.0, agents=2), parameters=parameters)
    assert (own.action == wanted).all()


def test_without_identity_they_cannot():
    wanted = np.array([0, 2])
    own = train(Bandit(Discrete(3), lambda a: (a == wanted) * 1.0, agents=2), network_settings={"identity": False})
    assert (own.action[..., 0] == own.action[..., 1]).all()


def test_learns_where_agents_take_turns():
    class Turns(Rounds):
        """Whoever moves is paid for playing 3, but only on the others' ticks."""

        def step(self, actions):
            moving = np.arange(self.agents) == (self.clock % self.agents)[:, None]
            owed = np.where(moving, actions["player"] == 3, self.owed)
            ticks = super().step(actions)
            tick = ticks.kinds["player"]
            paid = np.where(moving, 0, self.owed).astype(np.float32)
            self.owed = np.where(ticks.ended[:, None], 0, np.where(moving, owed, 0))
            return dataclasses.replace(ticks, kinds={"player": dataclasses.replace(tick, reward=paid)})

        owed = 0

    own = train(Turns(copies=16, agents=2, length=8), steps=16, gamma=0.9)
    assert (own.action[own.active] == 3).mean() > 0.9
