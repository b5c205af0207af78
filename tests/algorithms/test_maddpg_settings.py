"""MADDPG: each setting by its effect, on both paths."""

import dataclasses
import math

import numpy as np
import pytest

from coterie.algorithms.maddpg.maddpg import (
    ChoiceSettings,
    CriticSettings,
    MADDPGSettings,
    MemorySettings,
    NoiseSettings,
    TargetSettings,
)
from helpers.maddpg import SPACES, critic_weights, joint_of, learn, random_decisions, weights
from helpers.small_worlds import generator, group_spec

STEPS = 36  # of the world, played: 12 rows of 3 copies
ONCE = {"updates_per_step": 1 / STEPS}


def after(table_learner, iterations=2, where=None, **settings):
    one = table_learner(where, **settings)
    for seed in range(iterations):
        learn(one, random_decisions(one, seed), seed, progress=0.5, ahead=0.6)
    return one


def moved(table_learner, progress=0.0, **settings):
    """How far one update moves policy and critic, in the largest single parameter."""
    one = table_learner(**ONCE | settings)
    before = weights(one), critic_weights(one)
    assert learn(one, random_decisions(one), progress=progress)["updates"] == 1
    return [
        float(np.abs(new - old).max()) for new, old in zip((weights(one), critic_weights(one)), before, strict=True)
    ]


# Steps -------------------------------------------------------------------------------------------------


def test_learning_rates_and_their_schedule(table_learner):
    # Adam's first step moves every parameter by nearly the learning rate.
    assert moved(table_learner, learning_rate=0.01) == pytest.approx([0.01, 0.01], rel=0.05)
    different = {"learning_rate": 0.01, "critic": {"learning_rate": 0.03}}
    assert moved(table_learner, **different) == pytest.approx([0.01, 0.03], rel=0.05)
    assert moved(table_learner, 0.75, **different) == pytest.approx([0.01, 0.03], rel=0.05)
    linear = moved(table_learner, 0.75, learning_rate_schedule="linear", **different)
    assert linear == pytest.approx([0.0025, 0.0075], rel=0.05)
    assert moved(table_learner, 1.0, learning_rate_schedule="linear", **different) == [0, 0]
    one = table_learner(learning_rate=0.01, learning_rate_schedule="linear")
    assert learn(one, random_decisions(one), progress=0.5)["learning_rate"] == pytest.approx(0.005)


def test_gamma(table_learner):
    one = after(table_learner, gamma=0.25)
    rows = one.replay.rows.discount[: one.replay.size]
    assert set(np.unique(rows).tolist()) == {0.0, 0.25}


CHOICES = [
    {"gamma": 0.5},
    {"policy_delay": 2},
    {"critic": {"centralized": False}},
    {"critic": {"own_first": True}},
    {"critic": {"twin": True}},
    {"critic": {"hidden": (5,)}},
    {"critic": {"activation": "tanh"}},
    {"critic": {"quantiles": 3}},
    {"critic": {"hurdle": True}},
    {"critic": {"random_feature_init": 2.0}},
    {"target": {"tau": 0.5}},
    {"target": {"noise": 0.1}},
    {"batch_size": 17},
    {"max_grad_norm": 1e-3},
]


@pytest.mark.parametrize("field", CHOICES, ids=str)
def test_settings_that_decide_what_is_learned(table_learner, field):
    assert not np.array_equal(weights(after(table_learner)), weights(after(table_learner, **field)))


def test_scale_by_std_decides_what_is_learned_from_distributions(table_learner):
    plain, weighed = (weights(after(table_learner, critic={"hurdle": True}, scale_by_std=one)) for one in (False, True))
    assert not np.array_equal(plain, weighed)
    with pytest.raises(ValueError, match=r"scale_by_std.*critic\.hurdle=true"):
        table_learner(scale_by_std=True)


def test_temperature_reaches_choices_alone(table_learner):
    where = {name: group_spec(SPACES[name]) for name in ("box", "discrete")}
    for name, matters in (("discrete", True), ("box", False)):
        found = [weights(after(table_learner, where=where[name], choices={"temperature": t})) for t in (1.0, 0.3)]
        assert np.array_equal(*found) is not matters


def test_the_expected_gradient_and_its_entropy_reach_choices_alone(table_learner):
    expected = {"gradient": "expected"}
    wide = expected | {"entropy_start": 0.5, "entropy_end": 0.5}
    for name, matters in (("discrete", True), ("box", False)):
        where = group_spec(SPACES[name])
        found = [weights(after(table_learner, where=where, choices=choices)) for choices in ({}, expected, wide)]
        assert [np.array_equal(found[i], found[j]) for i, j in ((0, 1), (1, 2))] == [not matters] * 2
    with pytest.raises(ValueError, match=r"scale_by_std.*choices\.gradient=drawn"):
        MADDPGSettings(choices=ChoiceSettings(gradient="expected"), scale_by_std=True)


def test_the_entropys_weight_falls_in_equal_factors():
    choices = ChoiceSettings(gradient="expected", entropy_start=0.8, entropy_end=0.05, fraction=0.4)
    assert [choices.entropy(at) for at in (0, 0.1, 0.2, 0.4, 1)] == pytest.approx([0.8, 0.4, 0.2, 0.05, 0.05])
    assert ChoiceSettings(gradient="expected").entropy(0.3) == 0
    assert dataclasses.replace(choices, fraction=0.0).entropy(0) == 0.05


class Nothing:
    """Draws nothing but zeros, which exponential draws of 32 bits are now and then."""

    def random(self, shape):
        return np.zeros(shape)

    def standard_exponential(self, shape, dtype):
        return np.zeros(shape, dtype)


def test_gumbel_noise_is_always_a_number(table_learner):
    one = table_learner(group_spec(SPACES["discrete"]))
    own = random_decisions(one)
    one.remember(own, joint_of(one, own))
    assert np.isfinite(one.draw(2, joint_of(one, own), Nothing()).gumbel).all()


def test_smoothing_reaches_boxes_alone(table_learner):
    where = group_spec(SPACES["discrete"])
    found = [weights(after(table_learner, where=where, target={"noise": noise})) for noise in (0.0, 0.2)]
    assert np.array_equal(*found)


@pytest.mark.parametrize("size", [1, 7, 200])
def test_batch_size(table_learner, size):
    one = table_learner(batch_size=size)
    own = random_decisions(one)
    one.remember(own, joint_of(one, own))
    draws = one.draw(3, joint_of(one, own), generator())
    assert draws.indices.shape == (3, size)
    assert draws.indices.max() < one.replay.size
    assert np.isfinite([*learn(one, own).values()]).all()


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.25, 0.03])
def test_updates_per_step_counts_environment_steps_and_carries_fractions(table_learner, rate):
    one, done, own = table_learner(updates_per_step=rate), 0, random_decisions(table_learner())
    for iteration in range(1, 14):
        done += learn(one, own)["updates"]
        assert done == math.floor(iteration * rate * STEPS + 1e-9)
        assert one.critics[0].steps == done


@pytest.mark.parametrize("delay", [1, 2, 5])
def test_policy_delay_counts_critic_steps_across_iterations(table_learner, delay):
    one = table_learner(policy_delay=delay, updates_per_step=3 / STEPS)
    target = one.critics[0].target_flat.array.copy()
    for iteration in range(1, 8):
        learn(one, random_decisions(one, iteration))
        assert one.critics[0].steps == 3 * iteration
        assert one.actor.steps == 3 * iteration // delay
        assert np.array_equal(one.critics[0].target_flat.array, target) is (3 * iteration < delay)  # targets wait, too


def test_max_grad_norm(table_learner):
    for limit in (1e-4, 1e9):
        one = table_learner(max_grad_norm=limit, **ONCE)
        learn(one, random_decisions(one))
        norms = [float(np.linalg.norm(each.flat.mean * 10)) for each in (one.actor, *one.critics)]
        assert (max(norms) <= 1.001e-4) if limit == 1e-4 else (min(norms) > 1e-3)


# Noise -----------------------------------------------------------------------------------------------------


def test_noise_goes_from_start_to_end_in_a_straight_line():
    noise = NoiseSettings(start=0.4, end=0.1, fraction=0.5)
    assert [noise.at(p) for p in (0.0, 0.25, 0.5, 1.0)] == pytest.approx([0.4, 0.25, 0.1, 0.1])
    assert NoiseSettings(start=0.4, end=0.1, fraction=0.0).at(0.0) == pytest.approx(0.1)


def test_the_learner_sets_the_policys_noise(table_learner):
    one = table_learner(noise={"start": 0.4, "end": 0.1, "fraction": 0.5})
    assert one.policy.noise == 0.4
    assert learn(one, random_decisions(one), ahead=0.25)["noise"] == pytest.approx(0.25)
    assert one.policy.noise == pytest.approx(0.25)


# Critics, targets, replay, when it learns -----------------------------------------------------------------


def test_critics_are_as_wide_as_asked_and_see_what_they_should(table_learner):
    def sizes(where=None, **critic):
        return table_learner(where, critic=critic).critics[0].net.module.sizes

    box = SPACES["box"]
    assert sizes() == [2 * 3 + 2 * 2 + 2, 16, 1]  # two agents see 3 numbers each, do 2 each, and have identities
    assert sizes(hidden=(5, 6)) == [12, 5, 6, 1]
    assert sizes(quantiles=3) == [12, 16, 6]  # three outcomes and how likely they are
    assert sizes(quantiles=1) == sizes()
    assert sizes(hurdle=True) == [12, 16, 2]  # whether there is something, and how much
    assert sizes(hurdle=True, quantiles=3) == [12, 16, 7]  # and which of three amounts
    assert sizes(centralized=False) == [3 + 2 + 2, 16, 1]
    assert sizes(group_spec(box, parameters="individual")) == [10, 16, 1]
    assert sizes(group_spec(box, parameters="individual"), centralized=False) == [5, 16, 1]
    assert sizes(group_spec(box, agents=1)) == [5, 16, 1]
    assert [len(table_learner(critic={"twin": twin}).critics) for twin in (False, True)] == [1, 2]
    one = table_learner(critic={"twin": True})
    assert not np.array_equal(critic_weights(one, 0), critic_weights(one, 1))


@pytest.mark.parametrize("rate", [0.25, 1.0])
def test_targets_follow_at_their_rate(table_learner, rate):
    one = table_learner(target={"tau": rate}, critic={"twin": True}, **ONCE)
    all_of = (one.actor, *one.critics)
    before = [each.flat.array.copy() for each in all_of]
    assert all(np.array_equal(each.target_flat.array, old) for each, old in zip(all_of, before, strict=True))
    learn(one, random_decisions(one))
    for each, old in zip(all_of, before, strict=True):
        assert np.allclose(each.target_flat.array, old + rate * (each.flat.array - old), atol=1e-6)
        assert not np.array_equal(each.flat.array, old)


def test_the_replay_forgets_and_waits(table_learner):
    one = table_learner(replay={"size": 50, "learning_starts": 40})
    counts = []
    for seed in range(3):
        metrics = learn(one, random_decisions(one, seed))
        counts.append((metrics["replay"], metrics.get("updates", 0.0)))
    assert counts[0][0] < 40
    assert counts[0][1] == 0
    assert counts[1:] == [(50, 9), (50, 9)]


@pytest.mark.parametrize(("every", "offset"), [(1, 0), (2, 0), (2, 1), (3, 2)])
def test_update_every_and_offset(table_learner, every, offset):
    one = table_learner(update_every=every, update_offset=offset)
    for iteration in range(1, 8):
        before, known = weights(one), one.replay.size
        metrics = learn(one, random_decisions(one, iteration), iteration=iteration)
        assert one.replay.size > known  # experience in between is remembered
        learns = (iteration - offset) % every == 0
        assert ("updates" in metrics) is learns
        assert np.array_equal(weights(one), before) is not learns


# All -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: MADDPGSettings(learning_rate=0), "learning_rate must be above 0, got 0"),
        (lambda: MADDPGSettings(gamma=1.2), r"gamma must lie in \[0, 1\], got 1.2"),
        (lambda: MADDPGSettings(batch_size=0), "batch_size must be at least 1, got 0"),
        (lambda: MADDPGSettings(updates_per_step=0), "updates_per_step must be above 0"),
        (lambda: MADDPGSettings(policy_delay=0), "policy_delay must be at least 1"),
        (lambda: ChoiceSettings(temperature=0), "temperature must be above 0"),
        (lambda: ChoiceSettings(entropy_start=-1), "entropy_start must be at least 0"),
        (lambda: ChoiceSettings(entropy_end=-1), "entropy_end must be at least 0"),
        (lambda: ChoiceSettings(fraction=2), r"fraction must lie in \[0, 1\]"),
        (lambda: ChoiceSettings(entropy_start=0.1, entropy_end=0.1), "gradient=expected"),
        (lambda: ChoiceSettings(gradient="expected", entropy_start=0.1), "entropy_end.*got 0.1 and 0"),
        (lambda: MADDPGSettings(max_grad_norm=-1), "max_grad_norm must be above 0"),
        (lambda: NoiseSettings(start=-1), "start must be at least 0"),
        (lambda: NoiseSettings(end=-1), "end must be at least 0"),
        (lambda: NoiseSettings(fraction=2), r"fraction must lie in \[0, 1\]"),
        (lambda: CriticSettings(centralized=False, own_first=True), "own_first.*set centralized=true"),
        (lambda: CriticSettings(hidden=()), "hidden must name at least one layer"),
        (lambda: CriticSettings(learning_rate=0), "learning_rate must be above 0"),
        (lambda: CriticSettings(quantiles=0), "quantiles must be at least 1"),
        (lambda: CriticSettings(random_feature_init=-1), "random_feature_init must be at least 0"),
        (lambda: TargetSettings(tau=0), "tau must be above 0"),
        (lambda: TargetSettings(tau=2), r"tau must lie in \[0, 1\]"),
        (lambda: TargetSettings(noise=-1), "noise must be at least 0"),
        (lambda: MemorySettings(size=0), "size must be at least 1"),
        (lambda: MemorySettings(size=5, learning_starts=6), "learning_starts must be at most size"),
        (lambda: MADDPGSettings(update_every=0), "update_every must be at least 1"),
        (lambda: MADDPGSettings(update_offset=-1), "update_offset must be at least 0"),
    ],
)
def test_impossible_settings_are_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_every_setting_has_a_test_here():
    tested = {
        "learning_rate",
        "learning_rate_schedule",
        "gamma",
        "batch_size",
        "updates_per_step",
        "policy_delay",
        "scale_by_std",
    }
    tested |= {"choices", "max_grad_norm", "noise", "critic", "target", "replay", "update_every", "update_offset"}
    assert {field.name for field in dataclasses.fields(MADDPGSettings)} == tested
    parts = {
        NoiseSettings: {"start", "end", "fraction"},
        ChoiceSettings: {"gradient", "temperature", "entropy_start", "entropy_end", "fraction"},
        CriticSettings: {
            "centralized",
            "own_first",
            "hidden",
            "activation",
            "learning_rate",
            "twin",
            "quantiles",
            "hurdle",
            "random_feature_init",
        },
        TargetSettings: {"tau", "noise"},
        MemorySettings: {"size", "learning_starts"},
    }
    for part, names in parts.items():
        assert {field.name for field in dataclasses.fields(part)} == names
