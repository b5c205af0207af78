"""Runs of AlphaZero that are killed and resumed, or spread over workers, come to the same end, bit for bit."""

import os
import signal
import subprocess
import sys
import time

import pytest

import coterie
from coterie.config.schema import ConfigError
from coterie.training import loop
from coterie.training.run import Run
from helpers.run import assert_same_end, environment, files, numbers, train, written

TRAIN = """\
train: {num_envs: 4, rollout_steps: 7, total_steps: 252, evaluate_episodes: 4, evaluate_every: 3, checkpoint_every: 2,
        shards: 2, video: false, tensorboard: false}
"""
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


def stopped(path, experiment, at):
    """A run that broke off in an iteration."""
    real = loop.Training.advance

    def advance(self):
        if self.iteration == at:
            raise InterruptedError
        return real(self)

    loop.Training.advance = advance
    try:
        with pytest.raises(InterruptedError):
            train(path, experiment=experiment)
    finally:
        loop.Training.advance = real
    return Run.open(path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Every game, uninterrupted: its experiment and its run."""
    base, made = tmp_path_factory.mktemp("whole"), {}
    for number, (game, text) in enumerate(GAMES.items()):
        experiment = written(base / f"game-{number}.yaml", text)
        made[game] = (experiment, train(base / f"run-{number}", experiment=experiment))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("game", GAMES)
def test_learning_is_under_way_at_every_checkpoint(whole, game):
    _, run = whole[game]
    for name in run.config().groups:
        assert sum(record.get(f"{name}/updates", 0) for record in run.metrics()) > 10
        saved = run.load_checkpoint("last")["learners"][name]
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
    experiment, reference = whole[game]
    run = stopped(tmp_path / "run", experiment, at)
    assert coterie.resume(run.path, quiet=True)
    assert_same_end(run, reference)


@pytest.mark.slow
@pytest.mark.parametrize("game", GAMES)
def test_workers_do_not_change_the_numbers(tmp_path, whole, game):
    experiment, reference = whole[game]
    run = train(tmp_path / game, "train.workers=2", experiment=experiment)
    assert numbers(run) == numbers(reference)
    for step in reference.steps():
        assert files(run.checkpoint_path(step)) == files(reference.checkpoint_path(step))


@pytest.mark.slow
def test_kill_9_of_the_command_and_resume(tmp_path):
    experiment = written(tmp_path / "self-play.yaml", SELF_PLAY)
    words = ["train.total_steps=1400", "train.checkpoint_every=6", "train.evaluate_every=20"]
    arguments = ["train", str(experiment), *words, "--out", str(tmp_path / "run"), "--quiet"]
    process = subprocess.Popen(
        [sys.executable, "-c", "from coterie.cli import main; main()", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    file = tmp_path / "run" / "metrics.jsonl"
    for _ in range(24_000):
        if file.exists() and file.read_text().count("\n") >= 16:
            break
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    run = Run.open(tmp_path / "run")
    assert run.summary() is None
    coterie.resume(run.path, quiet=True)  # another process than the one that began
    assert_same_end(run, train(tmp_path / "whole", *words, experiment=experiment))


def test_what_cannot_change_on_the_way_is_refused(tmp_path, whole):
    run = stopped(tmp_path / "run", whole["self-play"][0], 6)
    refused = {
        "groups.players.learner.replay.size=30": "group 'players': the saved replay holds .* rows, replay.size is 30",
        "groups.players.learner.gate={every: 2}": "learner.gate cannot be added or removed",
        "groups.players.policy.network.hidden=[9]": "group 'players'",
    }
    for word, said in refused.items():
        with pytest.raises(ConfigError, match=said):
            coterie.resume(run.path, [word], quiet=True)
