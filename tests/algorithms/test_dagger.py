"""DAgger: who acts, what is labelled, how labels add up, and runs that are killed and resumed."""

from dataclasses import replace

import numpy as np
import pytest

import coterie
from coterie.algorithms.imitation import demonstrations
from coterie.config import schema
from coterie.config.schema import ConfigError
from coterie.core.types import Joint, as_metrics
from coterie.training import start
from coterie.training.build import build_groups, build_world
from coterie.training.runner import Runner
from helpers.demonstrations import GRID, expert
from helpers.run import numbers

WORDS = [
    *GRID,
    "groups.team.learner={name: dagger, updates: 3, batch_size: 16}",
    "groups.team.advisor={name: policy, policy: expert, use: {mode: label, strength: 0.5, until: 0.5}}",
    *("train.num_envs=4", "train.rollout_steps=8", "train.total_steps=128", "train.evaluate_episodes=2"),
    *("train.evaluate_every=2", "train.checkpoint_every=1", "train.video=false", "train.tensorboard=false"),
]
USE = "groups.team.advisor.use"


def rollout(*words, progress=0.0):
    config = schema.load("gridworld-cooperative", [*WORDS, *words])
    world = build_world(config.world, 4)
    group = build_groups(config, world)[0]
    runner = Runner(world, [group.actor], 0)
    return group, runner.play(8, 1, progress).experiences["team"]


def test_the_expert_labels_every_decision_whoever_acts():
    group, own = rollout(f"{USE}.strength=1")
    labels = own.advice.probabilities.argmax(axis=-1)
    assert own.advice.given[own.active].all()
    np.testing.assert_array_equal(own.action[own.active], labels[own.active])  # β = 1: the expert acts
    group, own = rollout(progress=0.9)
    assert own.advice.given[own.active].all()  # β = 0, and labelled all the same
    labels = own.advice.probabilities.argmax(axis=-1)
    assert (own.action != labels)[own.active].any()
    found = group.learner.new_labels(own)
    np.testing.assert_array_equal(found.action, labels[own.active & own.advice.given])
    np.testing.assert_array_equal(found.agent, np.nonzero(own.active)[2])


def test_a_pending_decision_is_labelled_once():
    group, own = rollout()
    waits = replace(own, acting=np.zeros_like(own.acting))  # turn-based: the last decisions open the next rollout
    pending = own.active & ~waits.closed()
    assert 0 < pending.sum() < own.active.sum()
    found = group.learner.new_labels(waits)
    np.testing.assert_array_equal(found.agent, np.nonzero(own.active & ~pending)[2])


def test_labels_add_up_to_a_limit(tmp_path):
    group, own = rollout("groups.team.learner.max_labels=70")
    first = group.learner.new_labels(own)
    group.learner.add(first)
    assert group.learner.count == first.size == own.active.sum() == 64
    group.learner.add(group.learner.new_labels(own))
    assert group.learner.count == 70
    paths = expert(tmp_path / "grid", 3)
    group, own = rollout(f"groups.team.learner.demonstrations=[{paths}]")
    assert group.learner.count > 0


def test_failed_demonstrations_are_labels_only_if_wanted(tmp_path):
    part = demonstrations.load(expert(tmp_path / "grid", 3))
    episodes = tuple(replace(each, success=i > 0) for i, each in enumerate(part.episodes))
    demonstrations.save(tmp_path / "some", [demonstrations.replace(part, episodes=episodes)])
    word = f"groups.team.learner.demonstrations=[{tmp_path / 'some'}]"
    assert rollout(word)[0].learner.count == len(part.action) - part.starts[1]
    assert rollout(word, "groups.team.learner.only_successful=false")[0].learner.count == len(part.action)


def test_each_iteration_takes_as_many_gradient_steps_as_set(monkeypatch):
    group, own = rollout("groups.team.learner.updates=5")
    step, taken = group.learner.cloner.step, []
    monkeypatch.setattr(group.learner.cloner, "step", lambda *given: taken.append(1) or step(*given))
    joint = Joint({"team": own}, 1, 0.0, {"team": group.actor.group_spec.spaces})
    group.learner.learn(own, joint, np.random.default_rng(0))
    assert len(taken) == 5


def test_after_the_last_label_the_expert_is_not_asked():
    group, own = rollout("groups.team.learner.max_labels=64")
    joint = Joint({"team": own}, 1, 0.0, {"team": group.actor.group_spec.spaces})
    world = build_world(schema.load("gridworld-cooperative", WORDS).world, 4)
    assert group.learner.learn(own, joint, np.random.default_rng(0))["labels"] == 64
    before = as_metrics(group.actor.metrics())
    elsewhere, _ = rollout("groups.team.learner.max_labels=64")  # an actor in another process gets the policy's state
    elsewhere.policy.load(group.policy.state())
    for each in (group, elsewhere):
        again = Runner(world, [each.actor], 0).play(8, 2, 0.1).experiences["team"]
        assert not again.advice.given.any()
        assert not again.advice.strength.any()  # it does not act either
    now = as_metrics(group.actor.metrics())
    assert now["advice/asked"] == before["advice/asked"]
    assert now["advice/decisions"] > before["advice/decisions"]


def test_observations_are_measured_on_all_labels():
    """A number that hardly varies in the first labels is not scaled up for good."""
    group, own = rollout("groups.team.policy.normalize_observations=true")
    learner, normalizer = group.learner, group.policy.normalizer
    fresh = learner.new_labels(own)
    first = fresh._replace(observation=np.zeros_like(fresh.observation))
    first.observation[0] = 0.01
    for labels in (first, fresh):
        learner.add(labels)
        learner.refresh()
    every = np.concatenate([first.observation, fresh.observation])
    np.testing.assert_allclose(normalizer.mean[0], every.mean(axis=0), atol=1e-6)
    varies = every.var(axis=0) > 1e-6
    np.testing.assert_allclose(normalizer.variance[0][varies], every.var(axis=0)[varies], rtol=1e-4)
    again = rollout("groups.team.policy.normalize_observations=true")[0]
    again.policy.load(group.policy.state())
    again.learner.load(learner.state())
    again.learner.add(fresh)
    again.learner.refresh()
    assert again.policy.normalizer.count.sum() == 3 * fresh.size


def doubled(decisions, world, random):
    return decisions._replace(observation=2 * decisions.observation)


def test_labels_are_augmented_before_each_step():
    weights = []
    for words in ([], [f"groups.team.learner.augmentations=['{__name__}:doubled']"]):
        group, own = rollout(*words)
        joint = Joint({"team": own}, 1, 0.0, {"team": group.actor.group_spec.spaces})
        group.learner.learn(own, joint, np.random.default_rng(0))
        weights.append(group.policy.flat.array.copy())
    assert not np.array_equal(*weights)


def test_it_needs_an_expert_that_labels():
    for words, named in (
        ([f"{USE}.mode=kl"], "use.mode=kl needs a learner"),
        (["groups.team.advisor.policy=nobody"], r"advisor\.policy: 'nobody'"),
    ):
        with pytest.raises(ConfigError, match=named):
            start.check("gridworld-cooperative", [*WORDS, *words])
    alone = [word for word in WORDS if not word.startswith("groups.team.advisor")]
    with pytest.raises(ConfigError, match=r"advisor\.use\.mode=label"):
        start.check("gridworld-cooperative", alone)


@pytest.mark.slow
def test_a_run_is_killed_and_resumed_exactly(tmp_path):
    whole = coterie.train("gridworld-cooperative", WORDS, out=tmp_path / "whole", quiet=True)
    half = coterie.train("gridworld-cooperative", WORDS, out=tmp_path / "half", quiet=True)
    half.cut(96)
    coterie.resume(half.path, quiet=True)
    assert numbers(half) == numbers(whole)
    assert whole.metrics()[-1]["team/labels"] == whole.metrics()[-1]["team/advice/advised"] > 0
    one, other = (run.load_checkpoint("last") for run in (whole, half))
    np.testing.assert_array_equal(
        one["learners"]["team"]["labels"][0]["observation"], other["learners"]["team"]["labels"][0]["observation"]
    )


@pytest.mark.slow
def test_a_run_advises_the_policy_that_began_as_its_copy(tmp_path):
    """KL to the clone: the advisor is the run whose weights the policy starts with, so both agree at first."""
    run = coterie.clone("gridworld-cooperative", [expert(tmp_path / "grid", 3)], [*GRID, *WORDS[-4:]], tmp_path / "run")
    words = [
        *(word for word in WORDS if not word.startswith("groups") and "hidden" not in word),
        f"groups.team.policy.run={run.path}",
        f"groups.team.advisor={{name: policy, policy: {run.path}, use: {{mode: kl, strength: 1}}}}",
        "groups.team.learner.hand_over.warm_up=1",
    ]
    went_on = coterie.train("gridworld-cooperative", words, out=tmp_path / "on", quiet=True)
    record = went_on.metrics()[1]
    assert record["team/advice/kl"] == pytest.approx(0, abs=1e-6)
    assert record["team/advice/agreement"] == 1.0
    assert went_on.metrics()[-1]["team/advice/kl"] > 0
