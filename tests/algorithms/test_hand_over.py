"""A policy that was trained before goes on under PPO or DQN: nothing is lost when it is handed over."""

import numpy as np
import pytest

import coterie
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


@pytest.mark.slow
def test_the_first_evaluation_after_the_hand_over_is_the_clones(clone, tmp_path):
    for learner, experiment in (("ppo", "gridworld-cooperative"), ("dqn", "gridworld-iql")):
        run = go_on(clone[learner], tmp_path / learner, experiment)
        assert results(run)["step_0"]["groups"] == results(clone[learner])["evaluation"]["groups"]


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
