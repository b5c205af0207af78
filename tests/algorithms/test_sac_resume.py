"""Runs of SAC that are stopped and resumed, or spread over workers, come to the same end, bit for bit."""

import numpy as np
import pytest

from helpers.resume import (
    TRAIN,
    assert_alike_with_workers,
    assert_learning_is_under_way,
    assert_loaded_goes_on,
    assert_refused,
    assert_resumed_alike,
    stopped,
)
from helpers.sac import BOX, learn, make_learner, random_decisions
from helpers.small_worlds import group_spec

CHASE = (
    """\
world: {name: tag, max_steps: 6, continuous_actions: true}
groups:
  hunters:
    agents: "adversary_*"
    policy: {name: gaussian, hidden: [8]}
    learner: {name: sac, batch_size: 8, updates_per_step: 0.11, replay: {size: 60, learning_starts: 20}}
  prey:
    agents: agent_0
    policy: {name: gaussian, hidden: [6], compiled: false}
    learner: {name: sac, batch_size: 4, updates_per_step: 0.2, replay: {size: 90, learning_starts: 5}}
"""
    + TRAIN
)
GAMES = {"chase": CHASE, "own weights": CHASE.replace("hunters:\n", "hunters:\n    parameters: individual\n")}


@pytest.mark.slow
@pytest.mark.parametrize("game", GAMES)
def test_learning_is_under_way_at_every_checkpoint(whole, game):
    saved = assert_learning_is_under_way(whole[game][1], "hunters")
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
        "groups.hunters.learner.critic.hidden=[5]": "critic",
        "groups.hunters.learner.replay.size=30": "group 'hunters': the saved replay holds 60 rows, replay.size is 30",
    }
    assert_refused(run, refused)


@pytest.mark.parametrize("parameters", ["shared", "individual"])
@pytest.mark.parametrize("compiled", [True, False])
def test_a_loaded_learner_goes_on_as_the_saved_one(parameters, compiled):
    where = group_spec(BOX, parameters=parameters)
    one, other = (make_learner(where, compiled=compiled, updates_per_step=0.11) for _ in range(2))

    def same(one, other):
        assert np.array_equal(one.temperature.flat, other.temperature.flat)

    assert_loaded_goes_on(one, other, learn, random_decisions, same)


def test_a_fixed_temperature_is_the_settings_and_a_learned_one_the_checkpoints():
    for learned, expected in ((False, 0.25), (True, 0.5)):
        saved, other = (make_learner(temperature={"start": start, "learned": learned}) for start in (0.5, 0.25))
        other.load(saved.state())
        assert np.exp(other.temperature.flat) == pytest.approx(expected)
