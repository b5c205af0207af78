"""Runs of MADDPG that are stopped and resumed, or spread over workers, come to the same end, bit for bit."""

import numpy as np
import pytest

from helpers.maddpg import SPACES, learn, random_decisions
from helpers.resume import (
    TRAIN,
    assert_alike_with_workers,
    assert_learning_is_under_way,
    assert_loaded_goes_on,
    assert_refused,
    assert_resumed_alike,
    stopped,
)
from helpers.small_worlds import group_spec

CHASE = (
    """\
world: {name: tag, max_steps: 6, continuous_actions: true}
groups:
  hunters:
    agents: "adversary_*"
    policy: {name: deterministic, hidden: [8]}
    learner: {name: maddpg, batch_size: 8, updates_per_step: 0.11, policy_delay: 2, critic: {twin: true},
              target: {noise: 0.1}, replay: {size: 60, learning_starts: 20}}
  prey:
    agents: agent_0
    policy: {name: deterministic, hidden: [6], compiled: false}
    learner: {name: maddpg, batch_size: 4, updates_per_step: 0.2,
              replay: {size: 90, learning_starts: 5}, update_every: 2}
"""
    + TRAIN
)
SPREAD = (
    """\
world: {name: spread, max_steps: 6}
groups:
  pair:
    agents: [agent_0, agent_1]
    parameters: individual
    policy: {name: deterministic, hidden: [8]}
    learner: {name: maddpg, batch_size: 8, updates_per_step: 0.11, replay: {size: 60, learning_starts: 20}}
  third: {agents: agent_2, policy: {name: network, hidden: [8]}, learner: {name: ppo}}
"""
    + TRAIN
)
GAMES = {"chase": CHASE, "spread": SPREAD}


@pytest.mark.slow
@pytest.mark.parametrize("game", GAMES)
def test_learning_is_under_way_at_every_checkpoint(whole, game):
    _, run = whole[game]
    saved = assert_learning_is_under_way(run, next(iter(run.config().groups)))
    assert saved["pending"]["active"].any()  # rows wait for the next rollout
    assert len(saved["replay"]["rows"]["reward"]) == 60  # rows have been written over


@pytest.mark.slow
@pytest.mark.parametrize("at", [1, 3, 6])
@pytest.mark.parametrize("game", GAMES)
def test_stopped_and_resumed(tmp_path, whole, game, at):
    assert_resumed_alike(tmp_path / "run", *whole[game], at)


@pytest.mark.slow
def test_workers_do_not_change_the_numbers(tmp_path, whole, forked):
    assert_alike_with_workers(tmp_path / "run", *whole["chase"])


@pytest.mark.slow
def test_what_cannot_change_on_the_way_is_refused(tmp_path, whole):
    run = stopped(tmp_path / "run", experiment=whole["chase"][0])
    refused = {
        "groups.hunters.learner.critic.twin=false": "critic.twin cannot change",
        "groups.hunters.learner.critic.centralized=false": "critic",
        "groups.hunters.learner.critic.hidden=[5]": "critic",
        "groups.hunters.learner.replay.size=30": "replay.size",
    }
    assert_refused(run, refused)


@pytest.mark.parametrize("parameters", ["shared", "individual"])
@pytest.mark.parametrize("action", SPACES)
@pytest.mark.parametrize("hurdle", [False, True])
def test_a_loaded_learner_goes_on_as_the_saved_one(table_learner, action, parameters, hurdle):
    where = group_spec(SPACES[action], parameters=parameters)
    fields = {"critic": {"twin": True, "hurdle": hurdle}, "policy_delay": 2, "updates_per_step": 0.11}
    one, other = table_learner(where, **fields), table_learner(where, **fields)

    def same(one, other):
        assert np.array_equal(one.amounts, other.amounts)
        assert one.amounts.any() == hurdle

    assert_loaded_goes_on(one, other, learn, random_decisions, same)
