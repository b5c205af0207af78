"""The Python interface: dicts as experiments, sweeps, matches, comparisons and reports, results as pandas."""

import multiprocessing
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import coterie
from coterie import api
from coterie.config import schema
from coterie.config.schema import ConfigError
from coterie.core.types import CoterieError

GRID = {
    "extends": "gridworld-cooperative",
    "world": {"grid_size": 4, "max_steps": 6},
    "groups": {"team": {"policy": {"hidden": (4,)}}},
    "train": {
        **{"num_envs": 4, "rollout_steps": 8, "total_steps": 64, "evaluate_episodes": 2, "evaluate_every": 9},
        **{"video": False, "tensorboard": False},
    },
}


def test_a_dict_is_an_experiment():
    config = schema.load(GRID, ["seed=3"])
    assert config.world.settings.grid_size == 4
    assert config.groups["team"].policy.settings.hidden == (4,)
    assert config.groups["team"].learner.name == "ppo"  # of what it extends
    assert config.seed == 3
    assert GRID["extends"] == "gridworld-cooperative"  # unchanged
    alone = {"world": {"name": "tictactoe"}, "groups": {"all": {"policy": "random"}}}
    assert schema.load(alone).experiment == "experiment"
    for wrong, said in (
        ({"extends": "gridwrld-race"}, "no experiment or file 'gridwrld-race'"),
        ({"extends": "gridworld-race", "train": {"total_stesp": 5}}, "train.total_stesp: no such setting"),
        ({"world": {"name": "tictactoe"}}, "groups: at least one group is needed"),
    ):
        with pytest.raises(ConfigError, match=said):
            schema.load(wrong)


@pytest.mark.slow
def test_overrides_may_be_a_dict(tmp_path):
    run = coterie.train(GRID, {"seed": 2, "groups.team.policy.hidden": [3]}, tmp_path / "one", quiet=True)
    assert (run.config().seed, run.config().groups["team"].policy.settings.hidden) == (2, (3,))
    assert coterie.load(run.path, overrides={"world.max_steps": 9}).config.world.settings.max_steps == 9
    swept = {"seed": [0, 1], "groups.team.learner.learning_rate": 1e-5}
    runs = coterie.sweep(GRID, swept, tmp_path / "several")
    assert [run.path.name for run in runs] == ["seed=0", "seed=1"]
    assert {run.config().groups["team"].learner.settings.learning_rate for run in runs} == {1e-5}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"a.b": "tanh", "c": True, "d": None}, ["a.b=tanh", "c=true", "d=null"]),
        (
            {"a": "true", "b": "1e3", "c": "x, y", "d": "\U0001f600"},
            ['a="true"', 'b="1e3"', 'c="x, y"', 'd="\U0001f600"'],
        ),
        (
            {"a": np.int64(3), "b": Path("runs/x"), "c": (1, 2), "d": np.arange(2)},
            ["a=3", 'b="runs/x"', "c=[1, 2]", "d=[0, 1]"],
        ),
    ],
)
def test_a_dict_of_overrides_is_what_the_command_line_has(given, words):
    assert api._words(given) == words
    assert schema.parse_overrides(words) == schema.parse_overrides(api._words(dict(given)))


def test_a_dict_of_lists_is_a_sweep():
    given = {"x.activation": ["tanh", "relu"], "seed": range(2), "name": ["a,b", "c(d"]}
    words = api._words(given, swept=True)
    assert words == ["x.activation=tanh,relu", "seed=0,1", 'name="a,b","c(d"']
    combinations = schema.sweep(words)
    assert len(combinations) == 8
    assert schema.parse_overrides(combinations[0]) == {"x": {"activation": "tanh"}, "seed": 0, "name": "a,b"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seed": []}, "seed: .*empty"),
        ({"a=b": 1}, "'a=b'"),
        ({"x.y": float("inf")}, "x.y: expected finite numbers, got inf"),
        ({"x.y": {1, 2}}, "x.y: .*{1, 2}"),
        ({"x.y": [object()]}, "x.y: .*object"),
    ],
)
def test_values_that_no_config_can_hold_are_named(given, message):
    with pytest.raises(ConfigError, match=message):
        api._words(given, swept=True)


@pytest.mark.slow
def test_sweep_compare_report_and_pandas(tmp_path):
    runs = coterie.sweep(GRID, ["seed=0,1", "groups.team.learner.learning_rate=1e-3,1e-4"], tmp_path / "sweep")
    assert [run.config().seed for run in runs] == [0, 0, 1, 1]
    again = coterie.sweep(GRID, ["seed=0,1", "groups.team.learner.learning_rate=1e-3,1e-4"], tmp_path / "sweep")
    assert [run.path for run in again] == [run.path for run in runs]
    found = coterie.compare([tmp_path / "sweep"])
    assert "IQM" in str(found).upper()
    frame = found.to_pandas()
    assert len(frame) == 4
    assert set(frame["seed"]) == {0, 1}
    records = runs[0].to_pandas()
    assert list(records["env_steps"]) == [record["env_steps"] for record in runs[0].metrics()]
    page = coterie.report(runs[:2], tmp_path / "page.html")
    assert "<html" in page.read_text()
    assert coterie.report(runs[0]) == runs[0].path / "report.html"


@pytest.mark.slow
def test_match_and_pandas():
    board = {"world": {"name": "tictactoe"}, "groups": {"all": {"policy": "random"}}}
    found = coterie.match(["random", "minimax"], board, episodes=4)
    frame = found.to_pandas().set_index(["first", "second"])
    assert frame.loc[("minimax", "random"), "return_mean"] >= 0
    assert found.to_dict()["players"] == ["random", "minimax"]
    assert "minimax" in str(found)
    with pytest.raises(ConfigError, match="policies without a run need a table"):
        coterie.match(["random", "minimax"])
    with pytest.raises(ConfigError, match="episodes must be at least 2, got 1"):
        coterie.match(["random"], board, episodes=1)
    with pytest.raises(CoterieError, match="neither a run nor a policy"):
        coterie.match(["rnadom"], board)


def test_a_single_path_is_not_read_letter_by_letter(tmp_path):
    for call in (coterie.match, coterie.compare):
        for one in ("runs/a", tmp_path):
            with pytest.raises(CoterieError, match=re.escape(f"'{one}' ")):
                call(one)


@pytest.mark.parametrize("given", [["seed=1", 3], 5, [None]])
def test_overrides_that_are_no_texts_are_refused(given, tmp_path):
    for call in (coterie.train, coterie.sweep):
        with pytest.raises(ConfigError, match=r"overrides: expected texts such as 'seed=1', or a dict, got "):
            call("gridworld-race", given, tmp_path / "a")


def test_without_pandas_the_cure_is_named(monkeypatch):
    from coterie.runs.data_frames import data_frame

    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(CoterieError, match=r"to_pandas needs pandas: pip install 'coterie\[pandas\]'"):
        data_frame([])


@pytest.mark.parametrize(
    "call",
    [
        lambda path: coterie.train(GRID, out=path),
        lambda path: coterie.sweep(GRID, "seed=0,1", path, jobs=2),
        lambda path: coterie.clone("cartpole-ppo", [], out=path),
        lambda path: coterie.resume(path),
    ],
)
def test_a_script_that_a_new_process_imports_again_does_not_start_anything(call, tmp_path, monkeypatch):
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(CoterieError, match='below if __name__ == "__main__"'):
        call(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_wrong_jobs_are_refused(tmp_path):
    with pytest.raises(CoterieError, match="--jobs: expected at least 1 process, got 0"):
        coterie.sweep(GRID, "seed=0,1", tmp_path / "a", jobs=0)
    assert not (tmp_path / "a").exists()
