"""The same game wherever it is played, and children whose failures have a name."""

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from coterie.config import schema
from coterie.training import build, workers
from coterie.training.workers import WorkerError
from helpers import run as run_cases
from helpers.run import DUEL, ODD, assert_same_end, train, written


def started(tmp_path, *words, text=ODD):
    loaded = schema.load(str(written(tmp_path / "odd.yaml", text)), list(words))
    groups = build.build_groups(loaded, build.build_world(loaded.world, 1))
    return workers.start(loaded, groups), loaded, groups


@pytest.fixture(autouse=True)
def _no_zombie_is_left():
    yield
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_workers_without_a_shard_are_named(tmp_path, caplog, forked):
    for words, said in ((("train.workers=4",), True), (("train.workers=2", "train.shards=2"), False)):
        caplog.clear()
        made = started(tmp_path, *words)[0]
        made.close()
        assert ("train.workers=4: 1 will do" in caplog.text) == said
        assert ("train.shards" in caplog.text) == said


# The same numbers -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_results_do_not_depend_on_the_number_of_workers_in_the_grid_world(tmp_path, forked):
    runs = [
        train(tmp_path / str(w), "train.shards=2", f"train.workers={w}", "train.total_steps=128") for w in (0, 1, 2)
    ]
    assert_same_end(runs[0], runs[1])
    assert_same_end(runs[0], runs[2])
    assert len(runs[0].metrics()) == 5


@pytest.mark.slow
def test_results_do_not_depend_on_the_number_of_workers_when_agents_take_turns(tmp_path, forked):
    duel = written(tmp_path / "duel.yaml", DUEL)
    assert_same_end(*(train(tmp_path / str(w), f"train.workers={w}", experiment=duel) for w in (0, 2)))


@pytest.mark.slow
def test_shards_are_part_of_the_experiment(tmp_path):
    one, two = (train(tmp_path / str(s), f"train.shards={s}", "train.total_steps=64") for s in (1, 2))
    assert run_cases.numbers(one) != run_cases.numbers(two)


@pytest.mark.slow
def test_frozen_weights_reach_the_children_too(tmp_path, forked):
    """A seated run may have found a better policy since; a resumed run goes on with what it saved."""
    play, loaded, groups = started(tmp_path, "train.workers=1", "groups.all.learner=null")
    local = workers.LocalWorkers(loaded, groups)
    try:
        groups[0].policy.load({k: _shifted(v) for k, v in groups[0].policy.state().items()})
        there, here = play.play(1), local.play(1)
        assert (there.decisions["all"].log_prob == here.decisions["all"].log_prob).all()
    finally:
        play.close()


def _shifted(value):
    return {k: v + 1 if getattr(v, "ndim", 0) else v for k, v in value.items()}


# Failures -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_child_that_raises_is_reported_with_its_shards_and_ones_own_line(tmp_path, forked):
    play, *_ = started(tmp_path, "world.trouble=raise", "train.shards=2", "train.workers=1")
    try:
        with pytest.raises(WorkerError) as caught:
            play.play(1)
    finally:
        play.close()
    said = str(caught.value)
    assert said.startswith("the worker playing shards [0, 1] failed: your code raised RuntimeError: the odd world fell")
    assert "run.py" in said


@pytest.mark.parametrize("value", ["0", "1"])
def test_a_child_reports_its_traceback_on_request(monkeypatch, value):
    monkeypatch.setenv("COTERIE_DEBUG", value)
    with pytest.raises(RuntimeError) as caught:
        raise RuntimeError("it fell over")
    assert workers.describe_failure(caught.value).startswith(
        "Traceback" if value == "1" else "your code raised Runtime"
    )


@pytest.mark.slow
def test_a_failure_with_a_name_comes_without_a_traceback(tmp_path, forked):
    play, *_ = started(tmp_path, "world.trouble=name", "train.shards=2", "train.workers=1")
    try:
        with pytest.raises(WorkerError) as caught:
            play.play(1)
    finally:
        play.close()
    assert str(caught.value) == "the worker playing shards [0, 1] failed: the odd world fell over"


@pytest.mark.slow
def test_a_child_that_dies_while_playing_is_named(tmp_path, forked):
    play, *_ = started(tmp_path, "world.trouble=exit", "train.workers=1")
    try:
        with pytest.raises(
            WorkerError, match=r"the worker playing shards \[0\]: .*: its process exited with code 7; 'coterie resume'"
        ):
            play.play(1)
    finally:
        play.close()


@pytest.mark.slow
def test_a_child_that_was_killed_between_two_iterations_is_named(tmp_path, forked):
    play, *_ = started(tmp_path, "train.shards=2", "train.workers=5")
    try:
        assert len(multiprocessing.active_children()) == 2  # no more than there are shards
        play.play(1)
        os.kill(play.transport.children[1].pid, signal.SIGKILL)
        with pytest.raises(WorkerError, match=r"the worker playing shards \[1\]: its process was killed by SIGKILL"):
            play.play(2)
    finally:
        play.close()


@pytest.mark.slow
def test_a_failure_ends_the_training_and_its_children(tmp_path, forked):
    odd = written(tmp_path / "odd.yaml", ODD)
    words = ["world.trouble=raise", "world.after=50", "world.lengths=[4]", "train.workers=1"]
    with pytest.raises(WorkerError, match="the odd world fell over"):
        train(tmp_path / "run", *words, "train.total_steps=1000", experiment=odd)
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_a_child_leaves_when_its_parent_is_gone(tmp_path):
    """A child process ends by itself once its pipe closes; a real one, which is not forked."""
    play, *_ = started(tmp_path, "train.workers=1")
    play.play(1)
    child = play.transport.children[0].process
    play.transport.children[0].pipe.close()
    child.join(10)
    assert child.exitcode == 0
    assert not Path(f"/proc/{child.pid}").exists()
    play.close()
