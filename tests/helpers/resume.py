"""Runs that are stopped, killed, resumed or spread over workers: the same steps for every algorithm."""

import signal
import time

import numpy as np
import pytest

import coterie
from coterie.config.schema import ConfigError
from coterie.runs.run import Run
from coterie.training import loop
from helpers.processes import Command
from helpers.run import assert_same_end, files, numbers, train, written

TRAIN = """\
train: {num_envs: 4, rollout_steps: 7, total_steps: 252, evaluate_episodes: 4, evaluate_every: 3, checkpoint_every: 2,
        shards: 2, video: false, tensorboard: false}
"""


def train_all(base, games):
    """Every game, uninterrupted: its experiment and its run."""
    made = {}
    for number, (game, text) in enumerate(games.items()):
        experiment = written(base / f"game-{number}.yaml", text)
        made[game] = (experiment, train(base / f"run-{number}", experiment=experiment))
    return made


def stopped(path, *words, experiment="gridworld-cooperative", at=5):
    """A run that broke off in an iteration."""
    real = loop.Training.advance

    def advance(self):
        if self.iteration == at:
            raise InterruptedError
        return real(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Training, "advance", advance)
        with pytest.raises(InterruptedError):
            train(path, *words, experiment=experiment)
    return Run.open(path)


def assert_resumed_alike(path, experiment, reference, at):
    """A run that is stopped in iteration `at` and resumed ends like the uninterrupted one."""
    run = stopped(path, experiment=experiment, at=at)
    assert coterie.resume(run.path, quiet=True)
    assert_same_end(run, reference)


def assert_learning_is_under_way(run, group):
    """The group has learned; returns its learner's state at the last checkpoint."""
    assert sum(record.get(f"{group}/updates", 0) for record in run.metrics()) > 10
    return run.load_checkpoint("last")["learners"][group]


def assert_loaded_goes_on(one, other, learn, experience, same=lambda one, other: None):
    """A learner that loads the state of another learns as that one does, and the state is a copy.

    `learn(learner, experience, seed)` and `experience(learner, seed)` are the algorithm's own; `same` compares what
    else they hold.
    """
    for seed in range(2):
        learn(one, experience(one, seed), seed)
    policy, state = one.policy.state(), one.state()
    kept = [experience(one, seed) for seed in (2, 3)]
    found = [learn(one, own, seed) for seed, own in enumerate(kept)]
    other.policy.load(policy)
    other.load(state)
    assert found == [learn(other, own, seed) for seed, own in enumerate(kept)]
    assert np.array_equal(one.policy.flat.array, other.policy.flat.array)
    assert one.due == other.due
    same(one, other)


def assert_alike_with_workers(path, experiment, reference):
    run = train(path, "train.workers=2", experiment=experiment)
    assert numbers(run) == numbers(reference)
    for step in reference.steps():
        assert files(run.checkpoint_path(step)) == files(reference.checkpoint_path(step))


def assert_survives_kill_9(tmp_path, text, *words):
    """The command, killed after 16 records and resumed in this process, ends like an uninterrupted run."""
    experiment = written(tmp_path / "game.yaml", text)
    process = Command("train", experiment, *words, "--out", tmp_path / "run", "--quiet")
    file = tmp_path / "run" / "metrics.jsonl"
    for _ in range(24_000):
        if file.exists() and file.read_text().count("\n") >= 16:
            break
        assert process.poll() is None, process.err
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    run = Run.open(tmp_path / "run")
    assert run.summary() is None
    coterie.resume(run.path, quiet=True)
    assert_same_end(run, train(tmp_path / "whole", *words, experiment=experiment))


def assert_refused(run, refused):
    """Each override on resume is refused with its message."""
    for word, said in refused.items():
        with pytest.raises(ConfigError, match=said):
            coterie.resume(run.path, [word], quiet=True)
