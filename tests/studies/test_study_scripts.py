"""Trainings of `benchmarks/` end where the study says, not with the experiment's schedule."""

import dataclasses
import importlib
from pathlib import Path

import pytest

from coterie.runs.run import Run
from helpers.run import QUIET

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SMALL = [
    *("train.num_envs=4", "train.rollout_steps=8", "train.total_steps=1024", "train.evaluate_every=1"),
    *("train.evaluate_episodes=2", "world.max_episode_steps=8", *QUIET),
]


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


@pytest.mark.slow
def test_runs_of_the_teacher_study_end_at_the_limit_or_the_threshold(study, tmp_path):
    script = study("teacher")
    arm = script.Arm("doorkey5", tuple(SMALL))
    limited = script.train("limited", arm, 0, 96, 0.0, tmp_path / "limited")
    assert Run.open(limited).summary()["env_steps"] == 96
    arm = dataclasses.replace(arm, alone=True)
    reached = script.train("reached", arm, 0, None, 0.0, tmp_path / "reached")  # success is never below 0
    assert Run.open(reached).summary()["env_steps"] == 2 * 32  # steps 0 and 32 were recorded by then
    never = script.train("never", arm, 0, None, 1.1, tmp_path / "never")
    assert Run.open(never).summary()["env_steps"] == 1024


@pytest.mark.slow
def test_runs_of_the_shaping_study_end_once_they_hold_the_threshold(study, tmp_path, monkeypatch):
    script = study("shaped")
    monkeypatch.setattr(script, "PAID", 0.0)
    run = script.train("doorkey5", 0, tmp_path, SMALL)
    assert run.summary()["env_steps"] == 3 * 32


@pytest.mark.slow
def test_runs_of_the_advice_study_end_at_the_limit(study, tmp_path, monkeypatch):
    script = study("advised")
    monkeypatch.setattr(script, "LIMIT", 64)
    assert script.train("doorkey5", SMALL, tmp_path / "run").summary()["env_steps"] == 64
