"""A changed continuation is a run of its own, which names its parent and leaves it as it is."""

import json
import shutil

import numpy as np
import pytest

import coterie
from coterie.config.schema import ConfigError
from coterie.core.types import CoterieError
from coterie.runs.history import Parent
from coterie.runs.interrupt import Interrupted
from coterie.runs.provenance import locked
from coterie.runs.run import Run
from coterie.training import loop
from helpers.resume import stopped
from helpers.run import assert_same_end, files, numbers, train

RATE = "groups.team.learner.learning_rate"


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    """A run that stopped after 160 of 256 steps, with checkpoints at 64 and 128."""
    return stopped(tmp_path_factory.mktemp("parent") / "run")


def contents(run):
    return {
        p.relative_to(run.path): p.read_bytes() for p in run.path.rglob("*") if p.is_file() and p.name != "run.lock"
    }


def test_a_fork_goes_on_where_its_parent_was_saved(tmp_path, parent):
    before = contents(parent)
    assert coterie.resume(parent.path, [f"{RATE}=1e-5"], quiet=True, fork=tmp_path / "deep" / "fork")
    assert contents(parent) == before
    fork = Run.open(tmp_path / "deep" / "fork")
    assert fork.history().parent == Parent(str(parent.path), 128)
    assert [one.from_step for one in fork.history().periods] == [0, 128]
    assert fork.summary()["env_steps"] == 256
    assert numbers(fork)[:5] == numbers(parent)[:5]
    assert [record["env_steps"] for record in fork.metrics()] == list(range(0, 257, 32))
    resumed = Run(shutil.copytree(parent.path, tmp_path / "resumed"))
    coterie.resume(resumed.path, [f"{RATE}=1e-5"], quiet=True)
    assert_same_end(fork, resumed)


def test_a_killed_fork_resumes_as_one(tmp_path, parent, monkeypatch):
    for name, words in (("whole", []), ("killed", [])):
        if name == "killed":
            monkeypatch.setattr(loop.Training, "advance", lambda self: (_ for _ in ()).throw(InterruptedError))
            with pytest.raises(InterruptedError):
                coterie.resume(parent.path, [f"{RATE}=1e-5", *words], quiet=True, fork=tmp_path / name)
            monkeypatch.undo()
            coterie.resume(tmp_path / name, quiet=True)
        else:
            coterie.resume(parent.path, [f"{RATE}=1e-5", *words], quiet=True, fork=tmp_path / name)
    whole, killed = Run.open(tmp_path / "whole"), Run.open(tmp_path / "killed")
    assert_same_end(killed, whole)
    assert killed.history() == whole.history()


@pytest.mark.parametrize("word", ["seed=7", "world.max_steps=9", "world.step_reward=-1"])
def test_another_seed_or_world_begins_its_episodes_and_scores_anew(tmp_path, parent, word):
    assert coterie.resume(parent.path, [word], quiet=True, fork=tmp_path / "fork")
    fork = Run.open(tmp_path / "fork")
    assert [record["env_steps"] for record in fork.metrics()] == list(range(128, 257, 32))
    assert "team/eval/return_mean" in fork.metrics()[0]
    summary = fork.summary()
    assert summary["step_0"]["groups"]["team"]["return_mean"] is not None
    assert summary["best_step"] >= 128
    assert "<td>step 128<td>team" in (fork.path / "report.html").read_text()
    (words,) = fork.history().described()
    assert words.startswith("from step 128: ")
    assert word.partition("=")[0] in words


def test_weights_and_learners_of_a_fork_are_its_parents(tmp_path, parent, monkeypatch):
    """Also where episodes begin anew: the first thing that a fork saves are its parent's weights."""
    monkeypatch.setattr(loop.Training, "advance", lambda self: (_ for _ in ()).throw(InterruptedError))
    with pytest.raises(InterruptedError):
        coterie.resume(parent.path, ["seed=7"], quiet=True, fork=tmp_path / "fork")
    one, other = parent.load_checkpoint("last"), Run.open(tmp_path / "fork").load_checkpoint("last")
    for key in ("policies", "learners"):
        assert json.dumps(one[key], default=np.ndarray.tolist) == json.dumps(other[key], default=np.ndarray.tolist)
    assert other["shards"]  # saved once its episodes have begun


def test_a_fork_that_is_stopped_in_its_first_evaluation_goes_on(tmp_path, parent, monkeypatch):
    def stop(self):
        raise Interrupted("stopped")

    monkeypatch.setattr(loop.Training, "score_step_0", stop)
    coterie.resume(parent.path, ["seed=7"], quiet=True, fork=tmp_path / "fork")
    fork = Run.open(tmp_path / "fork")
    assert (fork.steps(), fork.metrics(), fork.summary()) == ([128], [], None)
    monkeypatch.undo()
    coterie.resume(fork.path, quiet=True)
    coterie.resume(parent.path, ["seed=7"], quiet=True, fork=tmp_path / "whole")
    assert_same_end(fork, Run.open(tmp_path / "whole"))


def test_a_finished_run_is_forked_with_more_steps(tmp_path):
    run = train(tmp_path / "run", "train.total_steps=64")
    with pytest.raises(ConfigError, match=r"train\.total_steps: .* is at 64 steps, so nothing would be left"):
        coterie.resume(run.path, ["seed=1"], quiet=True, fork=tmp_path / "fork")
    coterie.resume(run.path, ["train.total_steps=128"], quiet=True, fork=tmp_path / "fork")
    assert Run.open(tmp_path / "fork").summary()["env_steps"] == 128
    assert run.summary()["env_steps"] == 64


def test_refused_forks_leave_nothing(tmp_path, parent):
    refused = {
        "groups.team.policy.hidden=[9]": "does not fit this config",
        "world.num_agents=3": "does not fit this config",
        "train.num_envs=8": r"train\.num_envs: a run is counted in iterations",
        "train.rollout_steps=4": r"train\.rollout_steps: a run is counted in iterations",
        "learnig_rate=1": "no such setting",
    }
    for word, said in refused.items():
        with pytest.raises(ConfigError, match=said):
            coterie.resume(parent.path, [word], quiet=True, fork=tmp_path / "fork")
    with pytest.raises(ConfigError, match="--fork: expected a directory"):
        coterie.resume(parent.path, quiet=True, fork="")
    with locked(parent), pytest.raises(CoterieError, match="is being trained"):
        coterie.resume(parent.path, quiet=True, fork=tmp_path / "fork")
    assert not list(tmp_path.iterdir())


def test_a_fork_needs_a_new_directory(tmp_path, parent):
    (tmp_path / "other").write_text("")
    for place in (parent.path, tmp_path, tmp_path / "other"):
        with pytest.raises(CoterieError, match="is there already"):
            coterie.resume(parent.path, quiet=True, fork=place)
    (tmp_path / "empty").mkdir()
    assert coterie.resume(parent.path, quiet=True, fork=tmp_path / "empty")


def test_a_fork_without_a_checkpoint_to_go_on_from_is_refused(tmp_path, parent):
    bare = Run(shutil.copytree(parent.path, tmp_path / "bare"))
    shutil.rmtree(bare.checkpoints)
    with pytest.raises(CoterieError, match="has no intact checkpoint to go on from"):
        coterie.resume(bare.path, quiet=True, fork=tmp_path / "fork")
    assert [path.name for path in tmp_path.iterdir()] == ["bare"]


def test_a_fork_keeps_the_best_policies_of_its_parent(tmp_path, parent, monkeypatch):
    monkeypatch.setattr(loop.Training, "advance", lambda self: (_ for _ in ()).throw(InterruptedError))
    with pytest.raises(InterruptedError):
        coterie.resume(parent.path, [f"{RATE}=1e-5"], quiet=True, fork=tmp_path / "fork")
    fork = Run.open(tmp_path / "fork")
    (best,) = fork.steps("best")
    assert files(fork.checkpoint_path(best, "best")) == files(parent.checkpoint_path(best, "best"))
