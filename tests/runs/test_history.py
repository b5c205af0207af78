"""What held when: a run keeps every setting that its steps were trained with, and tells where it changed."""

import json

import pytest

import coterie
from coterie.config import schema
from coterie.core.types import CoterieError
from coterie.runs.history import HISTORY, History, Parent, Period, changed
from coterie.runs.run import Run
from helpers.crashes import crash_points, crashed, operations
from helpers.resume import stopped

RATE = "groups.team.learner.learning_rate"


def settings(*words):
    return schema.to_dict(schema.load("gridworld-cooperative", list(words)))


def said(*steps_and_words):
    """What a history of these settings says."""
    history = History()
    for step, *words in steps_and_words:
        history = history.continued(step, settings(*words))
    return history.described()


def test_settings_that_change_are_told_with_their_step():
    assert said((0,)) == []
    assert said((0, f"{RATE}=1e-3"), (42_000, f"{RATE}=1e-4")) == [
        "from step 42,000: learner.learning_rate 0.001 → 0.0001"
    ]
    assert said((0,), (64, f"{RATE}=1", "train.threads=2"), (128, f"{RATE}=2", "train.threads=2")) == [
        f"from step 64: learner.learning_rate {settings()['groups']['team']['learner']['learning_rate']} → 1.0, "
        "train.threads 1 → 2",
        "from step 128: learner.learning_rate 1.0 → 2.0",
    ]
    assert said((0,), (64, "train.stop={return_mean: 3}")) == [
        "from step 64: train.stop.return_mean none → 3.0, train.stop.episodes none → 100"
    ]


def test_what_changes_no_result_is_kept_and_not_told():
    history = History().continued(0, settings()).continued(64, settings("train.workers=2", "train.video=false"))
    assert [period.from_step for period in history.periods] == [0, 64]
    assert history.described() == []


def test_settings_that_no_step_was_trained_with_are_no_history():
    first, second, third = settings(), settings(f"{RATE}=1"), settings(f"{RATE}=2")
    history = History().continued(0, first).continued(64, second)
    assert history.continued(64, third).periods == (Period(0, first), Period(64, third))
    assert history.continued(64, first).periods == (Period(0, first),)
    assert history.continued(32, second).periods == (Period(0, first), Period(32, second))  # fell back on an older one
    assert history.continued(0, third).periods == (Period(0, third),)


def test_a_fork_that_starts_anew_continues_nobody():
    history = History((Period(0, settings()),), Parent("runs/a", 64))
    assert history.continued(64, settings()).parent == Parent("runs/a", 64)
    assert history.continued(0, settings()).parent is None


def test_another_part_is_told_by_its_name_and_another_versions_settings_are_not():
    ppo, dqn = settings(), settings("groups.team.learner.name=dqn", "groups.team.policy.name=q_network")
    assert [path for path, _, _ in changed(ppo, dqn)] == ["groups.team.policy.name", "groups.team.learner.name"]
    without = json.loads(json.dumps(ppo))
    del without["groups"]["team"]["learner"]["clip"], without["train"]["threads"]
    assert list(changed(without, ppo)) == []
    assert [path for path, _, _ in changed(without, ppo, same_version=True)] == [
        "groups.team.learner.clip",
        "train.threads",
    ]
    nobody = settings("groups.team.learner=none")
    assert list(changed(ppo, nobody)) == [("groups.team.learner.name", "ppo", "none")]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"periods": [{}], "parent": null}', '{"periods": 3}', "[" * 10**5]
)
def test_a_damaged_history_is_a_sentence(tmp_path, text):
    run = Run.create(tmp_path / "run", schema.load("gridworld-cooperative"))
    (run.path / HISTORY).write_text(text)
    with pytest.raises(CoterieError, match=r"history\.json' is damaged.*delete it"):
        run.history()


# In runs ------------------------------------------------------------------------------------------------


def periods(run, path=RATE):
    return [(one.from_step, schema.leaves(one.settings)[path]) for one in run.history().periods]


def test_a_resumed_run_keeps_what_it_was_trained_with(tmp_path):
    run = stopped(tmp_path / "run", f"{RATE}=1e-3")
    assert periods(run) == [(0, 1e-3)]
    coterie.resume(run.path, [f"{RATE}=1e-4"], quiet=True)
    assert periods(run) == [(0, 1e-3), (128, 1e-4)]
    assert run.config().groups["team"].learner.settings.learning_rate == 1e-4
    coterie.resume(run.path, ["train.total_steps=320"], quiet=True)
    assert periods(run) == [(0, 1e-3), (128, 1e-4), (256, 1e-4)]
    assert run.history().described() == [
        "from step 128: learner.learning_rate 0.001 → 0.0001",
        "from step 256: train.total_steps 256 → 320",
    ]


def test_what_a_run_fell_back_from_is_no_history(tmp_path):
    """Settings of steps that were cut, since their checkpoint is damaged, hold from the older checkpoint on."""
    run = stopped(tmp_path / "run", f"{RATE}=1e-3")
    coterie.resume(run.path, [f"{RATE}=1e-4"], quiet=True)
    for step in run.steps()[-1:]:
        (run.checkpoint_path(step) / "state.json").write_text("")
    coterie.resume(run.path, [f"{RATE}=1e-5", "train.total_steps=320"], quiet=True)
    assert periods(run) == [(0, 1e-3), (128, 1e-4), (192, 1e-5)]


def test_of_a_run_without_a_history_the_present_config_is_known(tmp_path):
    run = stopped(tmp_path / "run", f"{RATE}=1e-3")
    (run.path / HISTORY).unlink()
    assert run.history().described() == []
    coterie.resume(run.path, [f"{RATE}=1e-4"], quiet=True)
    assert periods(run) == [(0, 1e-3), (128, 1e-4)]


def test_a_kill_while_the_config_is_written_loses_no_settings(tmp_path):
    """The history comes first: settings in it that no step was trained with go when the run is resumed."""
    before, after = schema.load("gridworld-cooperative"), schema.load("gridworld-cooperative", [f"{RATE}=1"])
    whole = Run.create(tmp_path / "whole", before)
    for number, (at, moment) in enumerate(crash_points(operations(lambda: whole.write_config(after, 64)))):
        run = Run.create(tmp_path / str(number), before)
        crashed(lambda run=run: run.write_config(after, 64), at, moment)
        assert run.config() in (before, after)
        assert periods(run)[0] == periods(whole)[0]
        run.write_config(run.config(), 64)
        assert len(periods(run)) == 1 + (run.config() == after)
