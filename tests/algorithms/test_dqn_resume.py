"""Runs of DQN that are stopped and resumed, or spread over workers, come to the same end, bit for bit."""

import pytest

from helpers.dqn import learn, random_rollout
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

DUEL = (
    """\
world: {name: tictactoe, first: random}
groups:
  cross:
    agents: player_0
    policy: {name: q_network, hidden: [8]}
    learner: {name: dqn, n_steps: 3, batch_size: 8, target: {interval: 5},
              replay: {size: 40, learning_starts: 10, priority: 0.6}}
  ring:
    agents: player_1
    policy: {name: q_network, hidden: [6], compiled: false}
    learner: {name: dqn, n_steps: 2, batch_size: 4, replay: {size: 70, learning_starts: 5}, target: {update: soft}}
"""
    + TRAIN
)
SPREAD = (
    """\
world: {name: spread, max_steps: 6}
groups:
  team:
    policy: {name: q_network, hidden: [8]}
    learner: {name: dqn, mixer: qmix, mixing_width: 4, n_steps: 3, batch_size: 8, updates_per_step: 0.11,
              replay: {size: 60, learning_starts: 20}, target: {interval: 4}}
"""
    + TRAIN
)
GAMES = {
    "duel": DUEL,
    "spread": SPREAD,
    "own weights": SPREAD.replace("team:\n", "team:\n    parameters: individual\n"),
}


@pytest.mark.slow
@pytest.mark.parametrize("game", GAMES)
def test_learning_is_under_way_at_every_checkpoint(whole, game):
    _, run = whole[game]
    saved = assert_learning_is_under_way(run, next(iter(run.config().groups)))
    assert saved["pending"][0]["filled"].any()  # windows are cut by the end of a rollout
    assert len(saved["replays"][0]["rows"]["reward"]) in (40, 60)  # rows have been written over


@pytest.mark.slow
@pytest.mark.parametrize("at", [1, 3, 5, 8])
@pytest.mark.parametrize("game", GAMES)
def test_stopped_and_resumed(tmp_path, whole, game, at):
    assert_resumed_alike(tmp_path / "run", *whole[game], at)


@pytest.mark.slow
def test_workers_do_not_change_the_numbers(tmp_path, whole, forked):
    for game in ("duel", "spread"):
        assert_alike_with_workers(tmp_path / game, *whole[game])


@pytest.mark.slow
def test_what_cannot_change_on_the_way_is_refused(tmp_path, whole):
    run = stopped(tmp_path / "run", experiment=whole["spread"][0])
    refused = {
        "groups.team.learner.n_steps=2": "n_steps cannot change",
        "groups.team.learner.replay.size=30": "group 'team': the saved replay holds 60 rows, replay.size is 30",
        "groups.team.learner.mixing_width=5": "group 'team', mixer: ",
        "groups.team.policy.dueling=false": "a run keeps it",
        "groups.team.learner.mixer=none": "group 'team': learner.mixer cannot change from qmix to none",
        "groups.team.learner.mixer=vdn": "group 'team': learner.mixer cannot change from qmix to vdn",
        "groups.team.learner.replay.priority=0.3": "replay.priority cannot change",
    }
    assert_refused(run, refused)


@pytest.mark.parametrize("parameters", ["shared", "individual"])
def test_a_used_learner_that_is_loaded_goes_on_as_the_saved_one(q_learner, parameters):
    where = group_spec(parameters=parameters)
    one, other = (q_learner(where, n_steps=3, replay={"size": 100}) for _ in range(2))
    for seed in range(4):
        learn(other, random_rollout(other, seed + 5))
    assert_loaded_goes_on(one, other, learn, random_rollout)
