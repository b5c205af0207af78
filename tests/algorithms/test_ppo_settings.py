"""PPO: each setting by its effect, on both paths."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from coterie.algorithms.ppo.advantages import advantages
from coterie.algorithms.ppo.ppo import PPOSettings
from helpers.ppo import actor, critic, learn, random_rollout, values_of, watch
from helpers.small_worlds import experience, group_spec


def moved(learner, own=None, progress=0.0, epochs=1, minibatches=1, **settings):
    """How far one learning moves actor and critic, in the largest single parameter."""
    one = learner(epochs=epochs, minibatches=minibatches, normalize_returns=False, **settings)
    before = actor(one), critic(one)
    learn(one, own or random_rollout(one), progress=progress)
    return float(np.abs(actor(one) - before[0]).max()), float(np.abs(critic(one) - before[1]).max())


def test_learning_rates_of_actor_and_critic(learner):
    # Adam's first step moves every parameter by nearly the learning rate.
    assert moved(learner, learning_rate=0.01) == pytest.approx((0.01, 0.01), rel=0.02)
    assert moved(learner, learning_rate=0.01, critic_learning_rate=0.03) == pytest.approx((0.01, 0.03), rel=0.02)


def test_learning_rate_schedule(learner):
    for progress in (0.0, 0.75):
        left = moved(learner, learning_rate=0.01, critic_learning_rate=0.02, progress=progress)
        assert left == pytest.approx((0.01 * (1 - progress), 0.02 * (1 - progress)), rel=0.02)
        flat = moved(learner, learning_rate=0.01, learning_rate_schedule="constant", progress=progress)
        assert flat == pytest.approx((0.01, 0.01), rel=0.02)
    assert moved(learner, learning_rate=0.01, progress=1.0) == (0, 0)
    one = learner(learning_rate=0.01)
    assert learn(one, random_rollout(one), progress=0.5)["learning_rate"] == pytest.approx(0.005)


def test_clip_and_its_schedule(learner):
    for schedule, expected in (("constant", [0.3, 0.3]), ("linear", [0.3, 0.3 * 0.25])):
        one = learner(clip=0.3, clip_schedule=schedule)
        seen = watch(one)
        for progress in (0.0, 0.75):
            learn(one, random_rollout(one), progress=progress)
        assert [seen[0].hyperparams.clip, seen[-1].hyperparams.clip] == pytest.approx(expected)


@pytest.mark.slow
def test_clipping_acts_when_steps_are_large(learner):
    one, free = learner(learning_rate=0.05), learner(learning_rate=0.05, clip=10)
    own = random_rollout(one)
    assert learn(one, own)["clip_fraction"] > 0.1
    assert learn(free, own)["clip_fraction"] < 0.02
    assert not np.allclose(actor(one), actor(free), atol=1e-3)
    assert learn(learner(learning_rate=1e-6), own)["clip_fraction"] == 0


def whole_batch(learner, own, **settings):
    """The one minibatch that a learner makes of an experience."""
    one = learner(epochs=1, minibatches=1, **settings)
    seen = watch(one)
    learn(one, own)
    return seen[0].part


def test_gamma_and_lambda_reach_the_advantages(learner):
    one = learner()
    own = random_rollout(one)
    values = values_of(one, own.observation)
    found = {}
    for gamma, trace in ((0.99, 0.95), (0.5, 0.95), (0.99, 0.2)):
        expected = advantages(own, own.reward, values[:-1], one.next_values(own, None, values), gamma, trace)
        part = whole_batch(learner, own, gamma=gamma, gae_lambda=trace, normalize_returns=False)
        assert sorted(part.advantage[0].tolist()) == pytest.approx(sorted(expected[0][own.valid].tolist()), abs=1e-5)
        assert sorted(part.target[0].tolist()) == pytest.approx(sorted(expected[1][own.valid].tolist()), abs=1e-5)
        found[gamma, trace] = part.advantage.std().item()
    assert len({round(value, 5) for value in found.values()}) == 3


def test_epochs_and_minibatches(learner):
    for epochs, minibatches in ((1, 1), (3, 2), (2, 5)):
        one = learner(epochs=epochs, minibatches=minibatches)
        assert learn(one, random_rollout(one))["minibatches"] == epochs * minibatches


def test_more_minibatches_than_decisions(learner):
    own = experience([[1]], terminated=[(0, 0)])
    one = learner(group_spec(agents=1), minibatches=8, epochs=1)
    assert learn(one, own)["minibatches"] == 1


@pytest.mark.slow
def test_value_clip(learner):
    fixed = {"critic_learning_rate": 0.05, "epochs": 10, "entropy_coefficient": 0, "normalize_returns": False}
    near, free = (learner(value_clip=v, **fixed) for v in (0.05, None))
    own = random_rollout(near)
    drift = []
    for one in (near, free):
        x = one.policy.inputs(own.observation)
        before = one.evaluate(x)
        learn(one, own)
        drift.append(float(np.abs(one.evaluate(x) - before).mean()))
    assert drift[0] < 0.6 * drift[1]


@pytest.mark.parametrize("parameters", ["shared", "individual"])
def test_a_new_scale_of_returns_moves_no_value(learner, parameters):
    one = learner(group_spec(parameters=parameters), value_clip=0.2)
    for iteration in range(3):
        own = random_rollout(one, iteration)
        own = dataclasses.replace(own, reward=own.reward * np.float32([3, 20]) + 50 * (1 + iteration))
        before, units = values_of(one, own.observation), (one.returns.shift, one.returns.scale)
        found, improve = [], one.improve

        def watched(batch, *rest, one=one, own=own, found=found, improve=improve):
            found.append(values_of(one, own.observation))
            with torch.no_grad():
                now = one.critic_network(torch.from_numpy(batch.critic_input))[0].squeeze(-1).numpy()
            assert np.allclose(batch.value, now, atol=1e-4)  # so that `value_clip` counts no movement
            return improve(batch, *rest)

        one.improve = watched
        learn(one, own)
        one.improve = improve
        assert np.allclose(found[0], before, atol=1e-3)
        assert not np.allclose(units[0], one.returns.shift, atol=1)
        assert not np.allclose(units[1], one.returns.scale, atol=0.1)


def test_returns_that_are_all_alike_are_no_scale(learner):
    one = learner(group_spec(agents=1))
    own = experience([[0.0]] * 8, terminated=[(t, 0) for t in range(8)])
    for _ in range(3):
        assert learn(one, own)["value_loss"] < 1e5
    assert np.abs(critic(one)).max() < 1e3


@pytest.mark.parametrize("scaled", [False, True])
def test_value_clip_by_hand(learner, scaled):
    one = learner(value_clip=0.1, normalize_returns=scaled, epochs=1, minibatches=1)
    own = random_rollout(one)
    own = dataclasses.replace(own, reward=own.reward / 4)
    seen = watch(one)
    learn(one, own)
    part = seen[0].part
    far = part._replace(value=part.value + 1.0)  # the critic has moved by −1 since
    with torch.no_grad():
        value = one.critic_network(torch.from_numpy(part.critic_input))[0].squeeze(-1).numpy()
    limit = 0.1 / float(one.returns.scale[0, 0])  # the setting is in the world's rewards
    assert (limit > 0.15) is scaled
    near = far.value + (value - far.value).clip(-limit, limit)
    exact = np.maximum((value - part.target) ** 2, (near - part.target) ** 2)
    found = one.improve(far, one.schedule(0.0), np.random.default_rng(0))
    assert found["value_loss"] == pytest.approx(float(exact.mean() / 2), rel=1e-4)


def test_the_entropy_coefficient_raises_entropy(learner):
    final = {}
    for coefficient in (0.0, 0.5):
        one = learner(entropy_coefficient=coefficient, learning_rate=0.02, learning_rate_schedule="constant")
        one.policy.net.out.bias.data[..., 0] = 2.0  # far from uniform
        own = random_rollout(one)
        for i in range(5):
            final[coefficient] = learn(one, own, seed=i)["entropy"]
    assert final[0.5] > final[0.0] + 0.1


def test_max_grad_norm(learner):
    norms = {}
    for limit in (1e-4, 1e9):
        one = learner(max_grad_norm=limit, epochs=1, minibatches=1)
        learn(one, random_rollout(one))
        norms[limit] = [float(np.linalg.norm(gradient(flat))) for flat in (one.policy.flat, one.critic.flat)]
    assert max(norms[1e-4]) <= 1.001e-4
    assert min(norms[1e9]) > 1e-3


def gradient(flat):
    """The gradient of a first step, after scaling: a tenth of it is what Adam remembers."""
    assert (flat.steps == 1).all()
    return flat.mean * 10


def test_normalize_advantages(learner):
    own = random_rollout(learner())
    small, large = own, dataclasses.replace(own, reward=own.reward * 1000)
    plain = {"normalize_returns": False, "gae_lambda": 1.0, "entropy_coefficient": 0.0, "max_grad_norm": 1e9}

    def slope(given_experience, normalize):
        one = learner(normalize_advantages=normalize, epochs=1, minibatches=1, **plain)
        for parameter in one.critic_network.parameters():
            parameter.data.zero_()
        learn(one, given_experience)
        return gradient(one.policy.flat)

    assert np.allclose(slope(small, True), slope(large, True), atol=1e-4)
    assert np.allclose(slope(small, False) * 1000, slope(large, False), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("normalize", [True, False])
def test_a_single_decision_is_safe(learner, normalize):
    one = learner(group_spec(agents=1), normalize_advantages=normalize)
    metrics = learn(one, experience([[5]], terminated=[(0, 0)]))
    assert metrics["decisions"] == 1
    assert np.isfinite([*metrics.values()]).all()
    assert np.isfinite(actor(one)).all()


def test_normalize_returns(learner):
    own = random_rollout(learner())
    own = dataclasses.replace(own, reward=own.reward * 100 + 40)
    on = whole_batch(learner, own, normalize_returns=True)
    off = whole_batch(learner, own, normalize_returns=False)
    assert on.target.mean().item() == pytest.approx(0, abs=1e-4)
    assert on.target.std().item() == pytest.approx(1, abs=1e-4)
    assert np.abs(off.target).mean() > 20


@pytest.mark.slow
def test_values_are_reported_in_the_worlds_rewards(learner):
    one = learner(critic_learning_rate=0.01, learning_rate_schedule="constant", epochs=40)
    own = experience([[100.0, 100.0]] * 8, terminated=[(t, a) for t in range(8) for a in (0, 1)])
    own = dataclasses.replace(own, reward=own.reward + np.float32([[[50, -50]]]))
    for _ in range(5):
        learn(one, own)
    values = values_of(one, own.observation)
    assert values[0, 0].tolist() == pytest.approx([150, 50], abs=10)


def test_target_kl_ends_the_passes(learner):
    own = random_rollout(learner())
    counts = {}
    for limit in (None, 1e-6, 1e9):
        one = learner(target_kl=limit, epochs=6, minibatches=2, learning_rate=0.01)
        counts[limit] = learn(one, own)["minibatches"]
    assert counts == {None: 12, 1e-6: 2, 1e9: 12}


def test_target_kl_looks_at_the_latest_minibatch(learner):
    own = random_rollout(learner())
    settings = {"epochs": 20, "minibatches": 4, "learning_rate": 0.01}
    free = learner(**settings)
    seen = watch(free)
    learn(free, own)
    kl = np.array([float((s.ratio - 1 - s.ratio.log()).mean()) for s in seen]).reshape(20, 4)  # k3 of each minibatch
    apart = kl[:, -1] > kl.mean(axis=1) + 1e-5
    assert apart[:5].any()
    at = int(apart.argmax())  # a pass whose last minibatch is above its mean
    assert kl[:at, -1].max(initial=0) < kl[at, -1]
    limit = (kl[: at + 1].mean(axis=1).max() + kl[at, -1]) / 2
    assert learn(learner(target_kl=float(limit), **settings), own)["minibatches"] == 4 * (at + 1)


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
    tested |= {"central_critic"}  # in test_ppo_central.py
    tested |= {"share_encoder"}  # in test_pixels.py
    tested |= {"hand_over"}  # in test_hand_over.py
    assert {field.name for field in dataclasses.fields(PPOSettings)} == tested
