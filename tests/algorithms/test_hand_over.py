"""A policy that was trained before goes on under PPO or DQN: nothing is lost when it is handed over."""

from dataclasses import replace

import numpy as np
import pytest

import coterie
from coterie.config import schema
from coterie.core.types import Joint
from coterie.training.build import build_groups, build_world, start_groups
from coterie.training.runner import Runner
from helpers.demonstrations import FAST, GRID, expert
from helpers.run import results

ITERATION = ["train.num_envs=4", "train.rollout_steps=16", "train.total_steps=192", "train.checkpoint_every=1"]
QUICK = [*GRID[:2], *FAST[2:4], *FAST[5:], *ITERATION, "train.keep_checkpoints=9"]


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hand over")
    paths = [expert(folder / "grid", 6)]
    return {
        "ppo": coterie.clone("gridworld-cooperative", paths, [*GRID, *FAST], folder / "network", quiet=True),
        "dqn": coterie.clone(
            "gridworld-iql", paths, [*GRID[:2], "groups.team.policy.hidden=[16]", *FAST], folder / "values", quiet=True
        ),
    }


def go_on(run, out, experiment, *words):
    seated = f"groups.team.policy.run={run.path}"
    return coterie.train(experiment, [*QUICK, seated, *words], out=out, quiet=True)


def weights(run, which):
    return run.load_checkpoint(which)["policies"]["team"]


def greedy(group, runner):
    return group.policy.act(replace(runner.view(group.actor), greedy=True)).action


@pytest.mark.slow
def test_the_first_evaluation_after_the_hand_over_is_the_clones(clone, tmp_path):
    for learner, experiment in (("ppo", "gridworld-cooperative"), ("dqn", "gridworld-iql")):
        run = go_on(clone[learner], tmp_path / learner, experiment)
        found, before = results(run), results(clone[learner])
        assert found["step_0"]["groups"] == before["evaluation"]["groups"]
        assert found["drawn"]["groups"]
        assert before["drawn"]["groups"]
        if learner == "ppo":  # values are drawn from with ε, which a clone does not have
            assert found["step_0"]["drawn"]["groups"] == before["drawn"]["groups"]


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [True, False])
def test_the_actor_begins_without_the_momentum_of_the_warm_up(compiled):
    """Gradients by a critic that knows nothing are noise: the first step after the warm-up does not follow them."""
    learner = {"warm_up": 1, "keep_statistics": True}
    words = [*QUICK[:2], f"groups.team.learner.hand_over={learner}", f"groups.team.policy.compiled={compiled}"]
    config = schema.load("gridworld-cooperative", [*words, "groups.team.policy.hidden=[8]"])
    world = build_world(config.world, 4)
    group = build_groups(config, world)[0]
    actor, own = group.policy.flat, Runner(world, [group.actor], 0).play(8, 1, 0.0).experiences["team"]
    before = actor.array.copy()

    def learn(iteration):
        joint = Joint({"team": own}, iteration, 0.0, {"team": group.actor.group_spec.spaces})
        return group.learner.learn(own, joint, np.random.default_rng(0))

    assert learn(1)["learning_rate"] == 0
    np.testing.assert_array_equal(actor.array, before)
    assert not actor.mean.any()
    assert actor.square.any()
    assert actor.steps.all()
    assert group.learner.critic_flat.mean.any()
    assert learn(2)["learning_rate"] > 0
    assert actor.mean.any()


def test_a_clone_of_values_acts_alike_after_the_first_iteration_of_dqn():
    """Without a gradient step, new statistics of observations alone would change what it does."""
    words = [*QUICK[:2], "groups.team.policy={name: q_network, hidden: [16], normalize_observations: true}"]
    words += ["groups.team.learner.replay.learning_starts=5000"]

    def first_iteration(*more):
        config = schema.load("gridworld-iql", [*words, *more])
        world = build_world(config.world, 64)
        group = build_groups(config, world)[0]
        runner = Runner(world, [group.actor], 0)
        own = runner.play(8, 1, 0.0).experiences["team"]
        rows = group.policy.arrange(group.policy.pack(own.observation))
        group.policy.normalizer.update([mine[:2] for mine in rows])  # a clone that was measured on few decisions
        epsilon = group.policy.epsilon
        joint = Joint({"team": own}, 1, 0.0, {"team": group.actor.group_spec.spaces}, ahead=0.01)
        before = greedy(group, runner)
        assert group.learner.learn(own, joint, np.random.default_rng(0)).get("updates", 0) == 0
        return (before == greedy(group, runner)).all(), epsilon

    same, epsilon = first_iteration("groups.team.learner.hand_over={}")
    assert same
    assert epsilon == 0.05  # epsilon.end: a clone needs no random play
    assert first_iteration("groups.team.learner.hand_over.epsilon=0.3")[1] == 0.3
    same, epsilon = first_iteration()
    assert not same
    assert epsilon == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("experiment", ["gridworld-iql", "spread-maddpg"])
def test_target_networks_begin_with_the_weights_that_a_run_starts_from(tmp_path, experiment):
    short = ["train.total_steps=64", "train.num_envs=4", "train.rollout_steps=8", "train.video=false"]
    coterie.train(experiment, short, out=tmp_path / "run", quiet=True)
    config = schema.load(experiment, [f"groups.team.start={tmp_path / 'run'}", "seed=7"])
    group = build_groups(config, build_world(config.world, 4))[0]
    before = group.policy.flat.array.copy()
    start_groups(config, [group])
    assert not np.array_equal(group.policy.flat.array, before)
    target = group.learner.actor.target_flat if experiment == "spread-maddpg" else group.learner.target_flat
    np.testing.assert_array_equal(target.array, group.policy.flat.array)


@pytest.mark.slow
def test_the_policy_is_unchanged_while_the_critic_warms_up(clone, tmp_path):
    warm = "groups.team.learner.hand_over"
    run = go_on(clone["ppo"], tmp_path / "run", "gridworld-cooperative", f"{warm}.warm_up=2")
    steps = [0, 64, 128, 192]
    nets = [weights(run, str(step))["net"] for step in steps]
    critics = [run.load_checkpoint(str(step))["learners"]["team"]["critic"] for step in steps]
    for name in nets[0]:
        np.testing.assert_array_equal(nets[0][name], nets[2][name])
    assert any(not np.array_equal(nets[2][name], nets[3][name]) for name in nets[0])
    assert any(not np.array_equal(critics[0][name], critics[1][name]) for name in critics[0])
    means = [weights(run, str(step))["normalizer"]["mean"] for step in steps]
    np.testing.assert_array_equal(means[0], means[3])  # observations are seen as the clone saw them
    run = go_on(
        clone["ppo"], tmp_path / "other", "gridworld-cooperative", f"{warm}={{warm_up: 1, keep_statistics: false}}"
    )
    means = [weights(run, str(step))["normalizer"]["mean"] for step in steps]
    np.testing.assert_array_equal(means[0], means[1])
    assert not np.array_equal(means[1], means[2])
