"""metrics.jsonl line by line, and progress for people."""

import json
import re

import pytest

from coterie.config import schema
from coterie.core.types import CoterieError
from coterie.runs.metrics import Progress, Recorder, counted
from coterie.runs.run import Run

PLAIN = schema.TrainSettings(tensorboard=False)


@pytest.fixture
def run(tmp_path):
    return Run.create(tmp_path / "run", schema.load("gridworld-cooperative"))


def test_every_record_is_on_file_before_the_loop_goes_on(run):
    recorder = Recorder(run, PLAIN, 0, {})
    for step in range(3):
        recorder.write({"iteration": step, "env_steps": step, "x": 0.1 * step})
        assert len(run.metrics()) == step + 1
    recorder.close()
    again = Recorder(run, PLAIN, 3, {})
    again.write({"iteration": 3, "env_steps": 3})
    again.close()
    assert [r["iteration"] for r in run.metrics()] == [0, 1, 2, 3]
    assert run.metrics()[1]["x"] == 0.1
    assert all(json.loads(line) for line in run.metrics_file.read_text().splitlines())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_is_never_written(run, value):
    recorder = Recorder(run, PLAIN, 0, {})
    with pytest.raises(CoterieError, match="metric 'team/loss' is"):
        recorder.write({"iteration": 0, "env_steps": 0, "team/loss": value})
    recorder.close()
    assert run.metrics() == []


def test_progress_says_something_now_and_then(capsys):
    progress = Progress(total=100_000, done=0, quiet=False)
    for step, wall in ((1000, 0.5), (2000, 1.0), (3000, 11.0), (100_000, 12.0)):
        progress.show(step, wall, "team 3.50")
    progress.close()
    said = capsys.readouterr().err.splitlines()
    assert said == [
        *("  1k of 100k steps  team 3.50  0 s", "  3k of 100k steps  team 3.50  11 s"),
        "100k of 100k steps  team 3.50  12 s",
    ]


def test_few_steps_are_counted_one_by_one():
    assert (counted(5, 9_999), counted(5, 10_000)) == ("    5 of 9,999", " 0k of 10k")


def test_quiet_progress_says_nothing(capsys):
    progress = Progress(total=10, done=0, quiet=True)
    progress.show(10, 1.0, "team")
    progress.close()
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""


def test_a_terminal_gets_a_bar(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    progress = Progress(total=10, done=0, quiet=False)
    assert progress.bar is not None
    progress.show(10, 1.0, "team 3.50")
    progress.close()
    assert "team 3.50" in capsys.readouterr().err


def test_a_bar_of_80_columns_leaves_room_for_time_and_two_groups(monkeypatch, capsys):
    for name, value in (("FORCE_COLOR", "1"), ("COLUMNS", "80"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    bar = Progress(120_000, 0, quiet=False)
    bar.show(102_000, 1.0, "training: hunters 15.50  prey -25.89  success 51%")
    bar.close()
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().err).replace("\r", "\n").splitlines()
    shown = [line for line in lines if "hunters" in line]
    assert shown
    assert all(len(line) <= 80 for line in lines)
    assert all(line.endswith("102k of 120k steps  hunters 15.50  prey -25.89  success 51%") for line in shown)
    assert re.search(r"━ (--:--|\d\d:\d\d) ", shown[-1])


def test_a_bar_ends_with_its_last_step_and_not_with_an_evaluation(monkeypatch, capsys):
    for name, value in (("FORCE_COLOR", "1"), ("COLUMNS", "80"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    bar = Progress(10, 0, quiet=False)
    bar.show(10, 1.0, "team 3.50")
    bar.show_evaluation(3, 100, 1234, 11.0)
    bar.bar.refresh()
    assert "evaluating: 3 of 100" in capsys.readouterr().err
    bar.close()
    left = capsys.readouterr().err
    assert left.rindex("team 3.50") > left.rfind("evaluating")
