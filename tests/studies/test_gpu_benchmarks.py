"""Benchmarks of teams on a GPU: what they say without one, and how the time of an iteration is divided."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

from coterie.runs.run import Run
from coterie.training import loop

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TINY = [
    *("plan-path-shared", "train.num_envs=4", "train.rollout_steps=4", "train.total_steps=64"),
    *("train.evaluate_every=1000", "train.evaluate_episodes=4", "train.video=false", "train.tensorboard=false"),
    *("groups.team.policy.candidates=2", "groups.team.learner.minibatch_size=2"),
]


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


@pytest.mark.parametrize("words", ["gpu_teams", "gpu_memory", "gpu_teams_study plan-path-5"])
def test_without_cuda_a_benchmark_ends_with_one_sentence(script, words, monkeypatch, tmp_path):
    name, *more = words.split()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", [name, *more, "--out", str(tmp_path / "out.json")])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="PyTorch finds no CUDA device") as end:
        script(name).main()
    assert "\n" not in str(end.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_time_of_an_iteration_is_divided_without_a_rest_unnamed(script, tmp_path):
    advance = loop.Training.advance
    found = script("gpu_teams").iteration(TINY, tmp_path / "run")
    assert found == json.loads(json.dumps(found))
    assert found["iterations"] == 4
    seconds, shares = found["seconds"], found["shares"]
    assert seconds.keys() == {"whole", "rollout", "environment", "update", "rest"}
    assert all(seconds[name] > 0 for name in ("rollout", "environment", "update"))
    parts = seconds["rollout"] + seconds["environment"] + seconds["update"] + seconds["rest"]
    assert parts == pytest.approx(seconds["whole"], abs=0.03)  # rounded
    assert sum(shares.values()) == pytest.approx(1, abs=0.01)
    assert seconds["whole"] < Run.open(tmp_path / "run").summary()["wall_s"]  # evaluations are left out
    assert found["gpu_memory_gb"] is None or torch.cuda.is_available()
    assert loop.Training.advance is advance  # nothing stays watched
