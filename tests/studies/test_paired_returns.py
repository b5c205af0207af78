"""Ablations: runs of one seed are subtracted from each other."""

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(best, last):
    """A run with the held-out returns of its best and its last policies."""
    scores = {"evaluation": best, "last": last}
    summary = {key: {"groups": {"team": {"return_mean": value}}} for key, value in scores.items()}
    return SimpleNamespace(summary=lambda: summary)


def test_runs_of_one_seed_are_subtracted(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    paired = importlib.import_module("ablations").paired
    runs = {
        "whole": [run(-10, -11), run(-12, -12), run(-8, -10)],
        "ablations/part": [run(-11, 0), run(-15, 0), run(-10, 0)],
    }
    best, last = paired("whole", runs)
    assert (best["minus"], best["policies"], best["differences"]) == ("ablations/part", "best", [1, 3, 2])
    assert (best["mean"], last["mean"], last["policies"]) == (2, -11, "last")
    half = 4.3027 / 3**0.5  # Student's t with two degrees of freedom; the deviation is 1
    assert best["interval"] == pytest.approx([2 - half, 2 + half], abs=1e-3)
