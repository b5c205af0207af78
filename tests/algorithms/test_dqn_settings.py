"""DQN: each setting by its effect, on both paths. Mixers: `test_dqn_mixing.py`."""

import dataclasses
import math

import numpy as np
import pytest

from coterie.algorithms.dqn.dqn import DQNSettings, EpsilonSettings, TargetSettings
from coterie.algorithms.replay import ReplaySettings
from helpers.dqn import joint_of, learn, make_learner, random_rollout, target, weights
from helpers.small_worlds import experience, group_spec

STEPS = 36  # of the world, in `random_rollout`: 12 rows of 3 copies
ONCE = {"updates_per_step": 1 / STEPS}


def steps_of(one):
    """The learner's own way to take gradient steps."""
    return one.improve


def watch(one):
    """Let a learner write down what it draws with: (uniforms, learning rate, importance)."""
    seen, run = [], one.improve

    def watched(*arguments):
        seen.append(arguments)
        return run(*arguments)

    one.improve = watched
    return seen


def moved(q_learner, progress=0.0, **settings):
    """How far one gradient step moves the network, in the largest single parameter."""
    one = q_learner(**ONCE | settings)
    before = weights(one)
    assert learn(one, random_rollout(one), progress=progress)["updates"] == 1
    return float(np.abs(weights(one) - before).max())


def after(q_learner, own=None, iterations=2, **settings):
    one = q_learner(**settings)
    for seed in range(iterations):
        learn(one, own or random_rollout(one, seed), seed)
    return one


# Steps -------------------------------------------------------------------------------------------------


def test_learning_rate_and_its_schedule(q_learner):
    # Adam's first step moves every parameter by nearly the learning rate.
    for rate in (0.01, 0.03):
        assert moved(q_learner, learning_rate=rate) == pytest.approx(rate, rel=0.02)
        assert moved(q_learner, 0.75, learning_rate=rate) == pytest.approx(rate, rel=0.02)
        linear = moved(q_learner, 0.75, learning_rate=rate, learning_rate_schedule="linear")
        assert linear == pytest.approx(rate / 4, rel=0.02)
    assert moved(q_learner, 1.0, learning_rate=0.01, learning_rate_schedule="linear") == 0
    one = q_learner(learning_rate=0.01, learning_rate_schedule="linear")
    assert learn(one, random_rollout(one), progress=0.5)["learning_rate"] == pytest.approx(0.005)


def test_gamma_discounts_rewards_and_what_follows():
    own = experience([[1.0]] * 5)
    rows = after(lambda **s: make_learner(group_spec(agents=1), **s), own, 1, gamma=0.5, n_steps=2).replays[0].rows
    assert rows.reward[:3].tolist() == [1.5] * 3
    assert rows.discount[:3].tolist() == [0.25] * 3


def test_n_steps():
    own = experience([[1.0]] * 9)
    for steps in (1, 4):
        one = after(lambda **s: make_learner(group_spec(agents=1), **s), own, 1, gamma=1.0, n_steps=steps)
        assert one.replays[0].size == 9 - steps
        assert one.replays[0].rows.reward[: 9 - steps].tolist() == [steps] * (9 - steps)


@pytest.mark.parametrize("field", [{"gamma": 0.5}, {"n_steps": 1}, {"double": False}, {"huber": 0.1}, {"huber": None}])
def test_settings_that_decide_what_is_learned(q_learner, field):
    plain = {"gamma": 0.99, "n_steps": 3, "double": True, "huber": 1.0, "target": {"interval": 5}}
    assert not np.array_equal(weights(after(q_learner, **plain)), weights(after(q_learner, **plain | field)))


@pytest.mark.parametrize("size", [1, 7, 200])
def test_batch_size(q_learner, size):
    one = q_learner(batch_size=size)
    seen = watch(one)
    metrics = learn(one, random_rollout(one))
    ((uniform, _, _),) = seen
    assert uniform.shape == (1, metrics["updates"], size)
    assert np.isfinite([*metrics.values()]).all()
    assert metrics["updates"] == 9


def test_every_stack_draws_for_itself(q_learner):
    one = q_learner(group_spec(parameters="individual"))
    seen = watch(one)
    learn(one, random_rollout(one))
    uniform = seen[0][0]
    assert uniform.shape[0] == 2
    assert not np.array_equal(uniform[0], uniform[1])


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.25, 0.03])
def test_updates_per_step_counts_environment_steps_and_carries_fractions(q_learner, rate):
    one, done, own = q_learner(updates_per_step=rate), 0, random_rollout(q_learner())
    for iteration in range(1, 14):
        done += learn(one, own)["updates"]
        assert done == math.floor(iteration * rate * STEPS + 1e-9)
        assert (one.policy.flat.steps == done).all()
    rare = q_learner(updates_per_step=0.01)
    assert [learn(rare, own)["updates"] for _ in range(6)] == [0, 0, 1, 0, 0, 1]  # 0.36 each
    often = q_learner(updates_per_step=2.0)
    assert learn(often, own)["updates"] == 72


def test_a_row_left_open_by_the_last_rollout_is_no_step_of_its_own():
    one = make_learner(dataclasses.replace(group_spec(), simultaneous=False), updates_per_step=1.0)
    assert learn(one, random_rollout(one))["updates"] == 33


def test_steps_before_learning_starts_are_not_made_up_for(q_learner):
    one = q_learner(replay={"learning_starts": 100})
    own, counts = random_rollout(one), []
    for _ in range(4):
        metrics = learn(one, own)
        counts.append((metrics["replay"] >= 100, metrics.get("updates", 0)))
    assert counts[0] == (False, 0)
    assert counts[-1] == (True, 9)
    assert {updates for ready, updates in counts} == {0, 9}
    assert all((updates == 9) is ready for ready, updates in counts)


@pytest.mark.parametrize(("huber", "size"), [(None, 1.0), (1.0, 1.0), (0.25, 1.0), (1.0, 4.0)])
def test_huber_by_hand(q_learner, huber, size):
    one = q_learner(group_spec(agents=1), huber=huber, batch_size=1, updates_per_step=1.0)
    one.policy.flat.array[:] = 0  # values nothing
    metrics = learn(one, experience([[size]], terminated=[(0, 0)]))
    expected = size**2 / 2 if huber is None or size < huber else huber * (size - huber / 2)
    assert metrics["loss"] == pytest.approx(expected)
    slope = one.policy.flat.mean[0] * 10  # a tenth of the first gradient is what Adam remembers
    assert np.abs(slope).max() == pytest.approx(size if huber is None else min(size, huber), rel=1e-4)


def test_max_grad_norm(q_learner):
    norms = {}
    for limit in (1e-4, 1e9):
        one = q_learner(max_grad_norm=limit, **ONCE)
        learn(one, random_rollout(one))
        norms[limit] = float(np.linalg.norm(one.policy.flat.mean * 10))
    assert norms[1e-4] <= 1.001e-4
    assert norms[1e9] > 1e-2


# ε -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {0.0: 1.0, 0.05: 0.525, 0.1: 0.05, 0.7: 0.05, 1.3: 0.05}),
        ({"start": 0.8, "end": 0.2, "fraction": 0.5}, {0.0: 0.8, 0.25: 0.5, 0.5: 0.2, 1.0: 0.2}),
        ({"start": 0.8, "end": 0.2, "fraction": 0.5, "schedule": "exponential"}, {0.0: 0.8, 0.25: 0.4, 0.6: 0.2}),
        ({"start": 0.3, "schedule": "constant"}, {0.0: 0.3, 0.5: 0.3, 1.0: 0.3}),
        ({"start": 0.9, "end": 0.1, "fraction": 0.0}, {0.0: 0.1, 1.0: 0.1}),
        ({"start": 0.1, "end": 0.9, "fraction": 1.0}, {0.0: 0.1, 0.5: 0.5, 1.0: 0.9}),
    ],
)
def test_epsilon_follows_its_schedule_and_reaches_the_policy(fields, expected):
    one = make_learner(epsilon=fields)
    assert one.policy.epsilon == pytest.approx(expected[0.0])  # before anything is learned
    own = random_rollout(one)
    for ahead, epsilon in expected.items():
        metrics = learn(one, own, ahead=ahead)
        assert one.policy.epsilon == metrics["epsilon"] == pytest.approx(epsilon)


def test_epsilon_moves_on_before_learning_starts():
    one = make_learner(replay={"learning_starts": 300})
    metrics = learn(one, random_rollout(one), ahead=1.0)
    assert "updates" not in metrics
    assert one.policy.epsilon == pytest.approx(0.05)


# The target --------------------------------------------------------------------------------------------


def test_a_hard_target_is_copied_at_every_interval(q_learner):
    one = q_learner(updates_per_step=1 / STEPS, target={"interval": 3})
    first, own, kept = target(one), random_rollout(q_learner()), []
    assert np.array_equal(first, weights(one))
    for step in range(1, 8):
        learn(one, own, step)
        if step % 3 == 0:
            kept.append(weights(one))
            assert np.array_equal(target(one), kept[-1])
        else:
            assert np.array_equal(target(one), kept[-1] if kept else first)
            assert not np.array_equal(target(one), weights(one))


@pytest.mark.parametrize("iterations", [(4,), (1, 1, 2), (3, 1)])
def test_the_interval_counts_gradient_steps_across_iterations(q_learner, iterations):
    one, own = q_learner(target={"interval": 4}), random_rollout(q_learner())
    one.store(own, joint_of(one, own))
    random = np.random.default_rng(0)
    before = target(one)
    for taken, steps in enumerate(iterations):
        assert np.array_equal(target(one), before), taken
        steps_of(one)(random.random((1, steps, 16)), 0.01, 1.0)
    assert np.array_equal(target(one), weights(one))


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_a_soft_target_goes_part_of_the_way_at_every_step(q_learner, rate):
    one = q_learner(updates_per_step=1 / STEPS, target={"update": "soft", "tau": rate, "interval": 1})
    own, expected = random_rollout(q_learner()), target(one).astype(np.float64)
    for step in range(4):
        learn(one, own, step)
        expected += rate * (weights(one) - expected)
        assert np.allclose(target(one), expected, atol=1e-6)
    assert np.array_equal(target(one), weights(one)) is (rate == 1.0)


def test_tau_has_no_meaning_for_a_hard_target_nor_the_interval_for_a_soft_one(q_learner):
    for fields, others in (
        ({"update": "hard", "interval": 4}, [{"tau": 0.9}]),
        ({"update": "soft", "tau": 0.1}, [{"interval": 2}]),
    ):
        first = target(after(q_learner, target=fields))
        for other in others:
            assert np.array_equal(target(after(q_learner, target=fields | other)), first)


# The replay --------------------------------------------------------------------------------------------


def test_replay_size_and_starts(q_learner):
    one, own = q_learner(replay={"size": 20, "learning_starts": 15}), random_rollout(q_learner())
    metrics = learn(one, own)
    assert one.replays[0].size == metrics["replay"] == 20
    assert len(one.replays[0].rows.reward) == 20
    two = q_learner(group_spec(parameters="individual"), replay={"size": 20, "learning_starts": 20})
    assert learn(two, random_rollout(two))["replay"] > 20  # one for each agent
    assert [replay.settings.size for replay in two.replays] == [20, 20]


def test_priority_draws_large_errors_more_often(q_learner):
    drawn = {}
    for priority in (0.0, 1.0):
        one = q_learner(group_spec(agents=1), replay={"priority": priority}, batch_size=200, updates_per_step=1.0)
        own = experience([[100.0], [0], [0], [0]], terminated=[(t, 0) for t in range(4)])
        one.policy.flat.array[:] = 0
        learn(one, own)  # after this the errors are known
        rows = one.replays[0].sample(np.random.default_rng(0).random(1000)).rows
        drawn[priority] = float((one.replays[0].rows.reward[rows] == 100).mean())
    assert drawn[0.0] == pytest.approx(0.25, abs=0.05)
    assert drawn[1.0] > 0.9


def test_importance_grows_to_1_over_the_run(q_learner):
    for importance, expected in ((0.4, {0.0: 0.4, 0.5: 0.7, 1.0: 1.0, 1.2: 1.0}), (1.0, {0.0: 1.0, 0.5: 1.0})):
        one = q_learner(replay={"importance": importance})
        seen, own = watch(one), random_rollout(one)
        for progress in expected:
            learn(one, own, progress=progress)
        assert [beta for _, _, beta in seen] == pytest.approx([*expected.values()])


def test_importance_weighs_the_loss(q_learner):
    losses = {}
    for importance in (0.0, 1.0):
        one = q_learner(group_spec(agents=1), replay={"importance": importance, "priority": 1.0}, batch_size=4)
        one.policy.flat.array[:] = one.target.flat.array[:] = 0
        own = experience([[2.0], [1.0]], terminated=[(0, 0), (1, 0)])
        one.store(own, joint_of(one, own))
        one.replays[0].prioritise(np.arange(2), np.array([3.0, 1.0]))  # drawn thrice and once
        losses[importance] = float(steps_of(one)(np.full((1, 1, 4), 0.5), 0.0, importance)[0])
    assert losses[0.0] == pytest.approx((3 * 1.5 + 0.5) / 4, abs=1e-5)  # Huber losses of errors 2 and 1
    assert losses[1.0] == pytest.approx((3 * 1.5 / 3 + 0.5) / 4, abs=1e-5)


# Ranges ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "fields", "message"),
    [
        (DQNSettings, {"learning_rate": 0}, "learning_rate must be above 0, got 0"),
        (DQNSettings, {"gamma": 1.2}, r"gamma must lie in \[0, 1\], got 1.2"),
        (DQNSettings, {"gamma": math.nan}, r"gamma must lie in \[0, 1\], got nan"),
        (DQNSettings, {"batch_size": 0}, "batch_size must be at least 1, got 0"),
        (DQNSettings, {"updates_per_step": 0}, "updates_per_step must be above 0, got 0"),
        (DQNSettings, {"n_steps": 0}, "n_steps must be at least 1, got 0"),
        (DQNSettings, {"huber": 0}, "huber must be above 0, got 0"),
        (DQNSettings, {"max_grad_norm": -1}, "max_grad_norm must be above 0, got -1"),
        (DQNSettings, {"mixing_width": 0}, "mixing_width must be at least 1, got 0"),
        (DQNSettings, {"mixer": "qmix", "mixer_learning_rate": 0}, "mixer_learning_rate must be above 0, got 0"),
        (DQNSettings, {"mixer": "vdn", "mixer_learning_rate": 1e-4}, "mixer_learning_rate.*mixer=vdn"),
        (DQNSettings, {"mixer_learning_rate": 1e-4}, "mixer_learning_rate.*mixer=none"),
        (EpsilonSettings, {"start": 1.1}, r"start must lie in \[0, 1\], got 1.1"),
        (EpsilonSettings, {"end": -0.1}, r"end must lie in \[0, 1\], got -0.1"),
        (EpsilonSettings, {"fraction": 2}, "fraction.*2"),
        (EpsilonSettings, {"end": 0, "schedule": "exponential"}, "schedule=exponential"),
        (EpsilonSettings, {"start": 0, "schedule": "exponential"}, "schedule=exponential"),
        (TargetSettings, {"interval": 0}, "interval.*0"),
        (TargetSettings, {"tau": 0}, "tau.*0"),
        (TargetSettings, {"tau": 1.5}, "tau.*1.5"),
    ],
)
def test_impossible_settings_are_refused(made, fields, message):
    with pytest.raises(ValueError, match=message):
        made(**fields)


def test_every_setting_has_a_test_here():
    tested = {
        DQNSettings: "learning_rate learning_rate_schedule gamma batch_size updates_per_step double n_steps huber "
        "max_grad_norm epsilon target replay mixer mixing_width mixer_learning_rate "  # mixers in test_dqn_mixing.py
        "hand_over",  # in test_hand_over.py
        EpsilonSettings: "start end schedule fraction",
        TargetSettings: "update interval tau",
        ReplaySettings: "size learning_starts priority importance",
    }
    for made, names in tested.items():
        assert {field.name for field in dataclasses.fields(made)} == set(names.split())
