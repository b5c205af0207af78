"""Ablations: runs of one seed are subtracted from each other, and figures of runs that are gone stay."""

import importlib
import json
from pathlib import Path

import pytest

from coterie.studies.compare import show
from helpers.compare import compared

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def ablations(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("ablations")


def variant(label, *returns, seeds=(0, 1, 2)):
    """A variant as the file of results has it: the returns of the best and the last policies of every run."""
    runs = [{"seed": seed, "score": best, "last": last} for seed, (best, last) in zip(seeds, returns, strict=True)]
    return {"label": label, "runs": runs}


def test_runs_of_one_seed_are_subtracted(ablations):
    whole = variant("whole", (-10, -11), (-12, -12), (-8, -10))
    best, last = ablations.paired(whole, [variant("ablations/part", (-11, 0), (-15, 0), (-10, 0))])
    assert (best["minus"], best["policies"], best["differences"]) == ("ablations/part", "best", [1, 3, 2])
    assert (best["mean"], last["mean"], last["policies"]) == (2, -11, "last")
    half = 4.3027 / 3**0.5  # Student's t with two degrees of freedom; the deviation is 1
    assert best["interval"] == pytest.approx([2 - half, 2 + half], abs=1e-3)
    with pytest.raises(SystemExit, match=r"ablations/part.*different seeds"):
        ablations.paired(whole, [variant("ablations/part", (0, 0), (0, 0), (0, 0), seeds=(0, 1, 3))])


@pytest.mark.slow
def test_figures_that_are_kept_compare_as_if_their_runs_were_there(ablations, sweep):
    def named(*folders):
        found = compared(*(sweep / name for name in folders), threshold=5)
        plain = json.loads(json.dumps({"score": "best"} | show.to_dict(found)))
        for one, name in zip(plain["variants"], folders, strict=True):
            one["label"] = name
            one["runs"] = [run | {"variant": name} for run in one["runs"]]
        for pair in plain["probability_of_improvement"]:
            pair["of"], pair["over"] = folders
        return plain

    both = named("slow", "fast")
    other = json.loads(json.dumps(both))
    other["variants"][0] = named("fast")["variants"][0] | {"label": "slow"}  # what "slow" was before
    assert ablations.merge(named("slow"), both, ["slow", "fast"]) == both
    assert ablations.merge(named("slow"), other, ["slow", "fast"]) == both
    with pytest.raises(SystemExit, match="another threshold"):
        ablations.merge(named("slow"), both | {"threshold": 7.0}, ["slow", "fast"])


@pytest.mark.slow
def test_the_text_of_a_comparison_from_its_json(ablations, sweep):
    found = compared(sweep / "slow", sweep / "fast", threshold=5)
    plain = json.loads(json.dumps(show.to_dict(found)))
    assert show.as_table(ablations.comparison(plain), "best") == show.as_table(found, "best")
