"""Runs of AlphaZero that are killed and resumed, or spread over workers, come to the same end, bit for bit."""

import pytest

from helpers.resume import (
    TRAIN,
    assert_alike_with_workers,
    assert_learning_is_under_way,
    assert_refused,
    assert_resumed_alike,
    assert_survives_kill_9,
    stopped,
)
from helpers.run import numbers, train

SELF_PLAY = (
    """\
world: {name: tictactoe, first: random}
groups:
  players:
    policy: {name: search, simulations: 8, reuse: true, network: {kind: mlp, hidden: [8]},
             playout_cap: {full: 0.6, simulations: 4}}
    learner: {name: alphazero, batch_size: 8, updates_per_step: 0.3, root_value: 0.2,
              replay: {size: 60, learning_starts: 10},
              elo: {every: 3, games: 4, opponents: 2, simulations: 2}}
"""
    + TRAIN
)
DUEL = (
    """\
world: {name: tictactoe}
groups:
  cross:
    agents: player_0
    policy: {name: search, method: gumbel, simulations: 6, network: {kind: mlp, hidden: [8]}}
    learner: {name: alphazero, batch_size: 8, updates_per_step: 0.3, replay: {size: 200, learning_starts: 5},
              gate: {every: 2, games: 4, score: 0.5}}
  ring:
    agents: player_1
    policy: {name: search, simulations: 4, transpositions: true,
             network: {kind: residual, channels: 3, blocks: 1, value_width: 4, device: cpu}}
    learner: {name: alphazero, batch_size: 4, updates_per_step: 0.2, replay: {size: 200, learning_starts: 5}}
"""
    + TRAIN
)
GAMES = {"self-play": SELF_PLAY, "duel": DUEL}


@pytest.mark.slow
@pytest.mark.parametrize("game", GAMES)
def test_learning_is_under_way_at_every_checkpoint(whole, game):
    _, run = whole[game]
    for name in run.config().groups:
        saved = assert_learning_is_under_way(run, name)
        assert len(saved["unfinished"]["copy"])  # games are cut by the end of a rollout
        assert len(saved["replay"]["rows"]["target"])


@pytest.mark.slow
@pytest.mark.parametrize("game", GAMES)
def test_the_same_seed_gives_the_same_numbers(tmp_path, whole, game):
    experiment, reference = whole[game]
    assert numbers(train(tmp_path / "run", experiment=experiment)) == numbers(reference)
    other = train(tmp_path / "other", "seed=1", experiment=experiment)
    assert numbers(other) != numbers(reference)


@pytest.mark.slow
@pytest.mark.parametrize("at", [1, 3, 6])
@pytest.mark.parametrize("game", GAMES)
def test_stopped_and_resumed(tmp_path, whole, game, at):
    assert_resumed_alike(tmp_path / "run", *whole[game], at)


@pytest.mark.slow
@pytest.mark.parametrize("game", GAMES)
def test_workers_do_not_change_the_numbers(tmp_path, whole, game, forked):
    assert_alike_with_workers(tmp_path / game, *whole[game])


@pytest.mark.slow
def test_kill_9_of_the_command_and_resume(tmp_path):
    words = ("train.total_steps=1400", "train.checkpoint_every=6", "train.evaluate_every=20")
    assert_survives_kill_9(tmp_path, SELF_PLAY, *words)


@pytest.mark.slow
def test_what_cannot_change_on_the_way_is_refused(tmp_path, whole):
    run = stopped(tmp_path / "run", experiment=whole["self-play"][0], at=6)
    refused = {
        "groups.players.learner.replay.size=30": "group 'players': the saved replay holds .* rows, replay.size is 30",
        "groups.players.learner.gate={every: 2}": "learner.gate cannot be added or removed",
        "groups.players.policy.network.hidden=[9]": "a run keeps it",
    }
    assert_refused(run, refused)
