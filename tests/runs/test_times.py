"""Durations of runs: what came before the first step, training, and words."""

import json

import pytest

from coterie.cli import outcome
from coterie.config import schema
from coterie.runs.run import Run
from coterie.runs.times import duration, times


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        *((0.0, "0 s"), (0.043, "0.04 s"), (0.96, "1 s"), (2.0, "2 s"), (3.47, "3.5 s"), (9.96, "10 s")),
        *((35.2, "35 s"), (120, "2 min"), (125, "2 min 5 s"), (7300, "2 h 1 min")),
    ],
)
def test_durations_are_said_as_people_do(seconds, words):
    assert duration(seconds) == words


def finished(path, steps, walls):
    """A run with records at these steps and seconds."""
    run = Run.create(path, schema.load("gridworld-cooperative"))
    records = [{"env_steps": step, "wall_s": wall} for step, wall in zip(steps, walls, strict=True)]
    run.metrics_file.write_text("".join(json.dumps(record) + "\n" for record in records))
    score = {"groups": {"team": {"return_mean": 1.0, "return_ci95": [0.0, 2.0], "length_mean": 3.0}}}
    summary = {"env_steps": steps[-1], "wall_s": walls[-1], "steps_per_s": 1.0, "solved": False, "episodes": 9}
    summary |= {"best_step": steps[-1], "best_rule": "last", "best_reason": ""}
    summary |= {name: score | {"success_rate": None} for name in ("evaluation", "step_0", "last")} | {"baselines": {}}
    run.summary_file.write_text(json.dumps(summary))
    return run


def test_steps_seconds_and_speed_add_up(tmp_path, capsys):
    run = finished(tmp_path / "run", [0, 8192], [15.0, 15.5])
    assert times(run, run.summary()) == (15.0, 0.5, 16384.0)
    assert outcome.print_outcome(run)
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "8,192 steps in 0.5 s, 16,384 per second; step 0 took 15 s"


def test_a_run_whose_first_record_was_cut_has_training_alone(tmp_path):
    run = finished(tmp_path / "run", [4096, 8192], [2.0, 4.0])
    assert times(run, run.summary()) == (0.0, 4.0, 2048.0)
