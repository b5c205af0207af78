"""A run's directory: what lies in it, which checkpoints stay, what is cut."""

import errno
import json
import logging
import subprocess
import sys

import pytest

from coterie.config import schema
from coterie.core.types import CoterieError
from coterie.runs import checkpoint
from coterie.runs.run import Run, write_text
from helpers.run import environment, files, train


def state(step, best):
    return {"env_steps": step, "best_step": best, "policies": {}}


@pytest.fixture
def run(tmp_path):
    """A run without any training in it."""
    return Run.create(tmp_path / "run", schema.load("gridworld-cooperative"))


def keep_best(run, step):
    checkpoint.save(run.checkpoint_path(step, "best"), {"env_steps": step, "policies": {}})


def damage(run, step, prefix="step"):
    file = run.checkpoint_path(step, prefix) / checkpoint.ARRAYS
    file.write_bytes(file.read_bytes()[:-1])


# The directory ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_everything_a_run_holds(tmp_path):
    run = train(tmp_path / "run", "train.video=true", "train.tensorboard=true", "world.max_steps=6")
    assert sorted(p.name for p in run.path.iterdir()) == [
        *("checkpoints", "config.yaml", "metrics.jsonl", "provenance.json", "report.html", "run.lock", "summary.json"),
        *("tensorboard", "videos"),
    ]
    assert list((run.path / "videos" / "eval").glob("*.gif"))
    assert list((run.path / "tensorboard").glob("events*"))
    text = run.config_file.read_text()
    assert f"schema: {schema.SCHEMA}" in text
    assert "gae_lambda: 0.95" in text  # a default that no layer names
    words = ["world.max_steps=6", "train.video=true", "train.tensorboard=true"]
    assert run.config().world == schema.load("gridworld-cooperative", ["world.grid_size=4", *words]).world
    for record in run.metrics():
        assert {"iteration", "env_steps", "wall_s", "team/eval/return_mean"} & record.keys()
        assert all(isinstance(value, int | float) for value in record.values())
    assert [r["iteration"] for r in run.metrics()] == list(range(9))
    assert [r["env_steps"] for r in run.metrics()] == list(range(0, 257, 32))


def test_the_summary_says_what_the_run_came_to(tmp_path):
    run = train(tmp_path / "run", "seed=3")
    summary = run.summary()
    assert (summary["env_steps"], summary["episodes"], summary["seed"]) == (256, 4, 3)
    assert summary["experiment"] == "gridworld-cooperative"
    assert summary["wall_s"] > 0
    assert summary["steps_per_s"] > 0
    assert summary["solved"] is False
    assert summary["best_step"] in run.steps("best")
    assert summary["baselines"].keys() == {"random", "expert"}
    for result in (summary["evaluation"], summary["last"], summary["step_0"], *summary["baselines"].values()):
        assert result.keys() >= {"groups", "success_rate"}
        assert result["groups"]["team"].keys() == {"return_mean", "return_ci95", "length_mean"}


def test_copies_that_people_make_are_no_checkpoints_and_no_videos(run):
    keep_best(run, 32)
    run.save_checkpoint(state(64, 32), 2)
    for name in ("step-000000000064 (copy)", "best-old", "step-", "step-64.bak"):
        (run.checkpoints / name).mkdir()
    videos = run.path / "videos" / "eval"
    videos.mkdir(parents=True)
    for name in ("step-000000000064.gif", "step-000000000064 (copy).gif"):
        (videos / name).write_text("")
    assert (run.steps(), run.steps("best")) == ([64], [32])
    assert run.load_checkpoint("last")["env_steps"] == 64
    run.cut(0)
    assert (run.steps(), run.videos()) == ([], [])
    assert (run.checkpoints / "best-old").is_dir()


@pytest.mark.parametrize("record", [b"\xff\xfe}", b"{]}", b'{"reward": 1}'])
def test_damaged_records_are_a_sentence_and_stay(run, record):
    lines = b'{"env_steps": 0}\n' + record + b'\n{"env_steps": 64}\n'
    run.metrics_file.write_bytes(lines)
    for read in (run.metrics, lambda: run.cut(0)):
        with pytest.raises(CoterieError, match=r"metrics\.jsonl' is damaged"):
            read()
    assert run.metrics_file.read_bytes() == lines


def test_a_run_is_never_written_over(tmp_path, run):
    with pytest.raises(CoterieError, match=r"already holds a run; choose another --out, or 'coterie resume"):
        Run.create(run.path, schema.load("gridworld-cooperative"))


def test_something_else_is_no_run(tmp_path):
    with pytest.raises(CoterieError, match=r"is not a run: it has no config\.yaml"):
        Run.open(tmp_path)


def test_the_runs_below_a_directory_that_is_none_are_named(run):
    with pytest.raises(CoterieError) as refused:
        Run.open(run.path.parent)
    assert str(run.path) in str(refused.value)


def test_a_run_is_no_experiment(run):
    with pytest.raises(CoterieError, match=r"is a run: 'coterie resume .*'coterie train .*config\.yaml'"):
        schema.load(str(run.path))


def test_a_text_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    write_text(tmp_path / "a", "old")

    def fail(handle):
        raise OSError("the machine went down")

    monkeypatch.setattr("coterie.core.files.os.fsync", fail)
    with pytest.raises(OSError, match="went down"):
        write_text(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "old"

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("coterie.core.files.os.fsync", full)
    with pytest.raises(OSError, match=f"^.Errno {errno.ENOSPC}. No space left on device: '{tmp_path / 'a'}'$"):
        write_text(tmp_path / "a", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.slow
def test_files_are_utf_8_whatever_the_locale(tmp_path):
    """Names and rules in a config, prompt templates and reports have letters that the locale's encoding may lack."""
    template, written = tmp_path / "own.txt", tmp_path / "a"
    code = (
        "import sys; from pathlib import Path\n"
        "from coterie.lm import prompts; from coterie.runs.run import write_text\n"
        "write_text(Path(sys.argv[2]), prompts.read(sys.argv[1], 'none', '', None).question)"
    )
    template.write_text("Über die Wand\n\n{state}", encoding="utf-8")
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}  # an encoding of ASCII alone
    subprocess.run([sys.executable, "-c", code, str(template), str(written)], env=environment() | plain, check=True)
    assert "Über die Wand" in written.read_text(encoding="utf-8")


# Checkpoints --------------------------------------------------------------------------------------------


def test_only_so_many_are_kept(run):
    keep_best(run, 0)
    for step in range(0, 50, 10):
        run.save_checkpoint(state(step, 0), keep=3)
    assert run.steps() == [20, 30, 40]
    assert run.steps("best") == [0]


def test_every_kept_checkpoint_keeps_the_best_of_its_time(run):
    """Else a run that falls back on an older checkpoint would have no best policy."""
    keep_best(run, 0)
    run.save_checkpoint(state(0, 0), keep=2)
    keep_best(run, 10)
    run.save_checkpoint(state(10, 10), keep=2)
    assert run.steps("best") == [0, 10]
    keep_best(run, 15)
    run.save_checkpoint(state(20, 15), keep=2)
    assert (run.steps(), run.steps("best")) == ([10, 20], [10, 15])
    run.save_checkpoint(state(30, 15), keep=2)
    assert (run.steps(), run.steps("best")) == ([20, 30], [15])


@pytest.mark.slow
def test_training_keeps_as_many_as_asked_and_the_best(tmp_path):
    for keep in (1, 3):
        run = train(tmp_path / str(keep), f"train.keep_checkpoints={keep}")
        assert run.steps() == [64, 128, 192, 256][-keep:]
        assert run.load_checkpoint("best")["env_steps"] == run.summary()["best_step"]


def test_best_last_and_a_step(run):
    keep_best(run, 0)
    run.save_checkpoint(state(0, 0), keep=2)
    run.save_checkpoint(state(64, 0), keep=2)
    assert run.load_checkpoint("best")["env_steps"] == 0
    assert run.load_checkpoint("last")["env_steps"] == 64
    assert run.load_checkpoint("64")["env_steps"] == 64
    for which in ("63", "newest", "-1", ""):
        with pytest.raises(CoterieError, match=f"has no checkpoint '{which}'; there are best, last and steps 0, 64"):
            run.load_checkpoint(which)


def test_a_run_without_checkpoints_says_so(run):
    for which in ("best", "last"):
        with pytest.raises(CoterieError, match=f"has no intact '{which}' checkpoint"):
            run.load_checkpoint(which)
    with pytest.raises(CoterieError, match="there are best, last and steps none"):
        run.load_checkpoint("3")


def test_a_damaged_one_is_named_and_the_one_before_it_used(run, caplog):
    keep_best(run, 0)
    for step in (0, 10, 20):
        run.save_checkpoint(state(step, 0), keep=3)
    damage(run, 20)
    with caplog.at_level(logging.WARNING):
        assert run.load_checkpoint("last")["env_steps"] == 10
    assert "checkpoint 'step-000000000020': arrays.safetensors is truncated or altered" in caplog.text
    with pytest.raises(CoterieError, match="step-000000000020"):
        run.load_checkpoint("20")  # asked for by name, nothing else will do
    damage(run, 10)
    damage(run, 0)
    with pytest.raises(CoterieError, match="no intact 'last'"):
        run.load_checkpoint("last")


def test_what_a_kill_left_half_written_is_ignored_and_cleaned(run):
    keep_best(run, 0)
    run.save_checkpoint(state(0, 0), keep=2)
    for name in (".step-000000000010.tmp", ".best-000000000010.tmp"):
        (run.checkpoints / name).mkdir()
        (run.checkpoints / name / checkpoint.ARRAYS).write_bytes(b"half")
    assert run.steps() == [0]
    assert run.load_checkpoint("last")["env_steps"] == 0
    run.cut(0)
    assert sorted(p.name for p in run.checkpoints.iterdir()) == ["best-000000000000", "step-000000000000"]


def test_metrics_continue_after_the_records_that_a_reader_has(tmp_path, monkeypatch):
    run = Run.create(tmp_path / "run", schema.load("gridworld-cooperative"))
    assert run.metrics(after=3) == []
    run.metrics_file.write_text('{"env_steps": 1}\n{"env_steps": 2}\n{"env_st')
    seen = run.metrics()
    assert [record["env_steps"] for record in seen] == [1, 2]
    assert run.metrics(after=len(seen)) == []
    with open(run.metrics_file, "a") as file:
        file.write('eps": 3}\n{"env_steps": 4}\n')
    parsed, loads = [], json.loads
    monkeypatch.setattr(json, "loads", lambda text: parsed.append(text) or loads(text))
    assert [record["env_steps"] for record in run.metrics(after=len(seen))] == [3, 4]
    assert len(parsed) == 2  # the first ones are not parsed again


def test_damaged_records_and_summaries_are_named(run):
    run.metrics_file.write_text('{"iteration": }\n')
    with pytest.raises(CoterieError, match=r"metrics\.jsonl' is damaged: Expecting value"):
        run.metrics()
    run.summary_file.write_text("{")
    with pytest.raises(CoterieError, match=r"summary\.json' is damaged"):
        run.summary()


# Cutting ------------------------------------------------------------------------------------------------


def test_what_came_after_a_checkpoint_is_cut(run):
    lines = [json.dumps({"iteration": i, "env_steps": 10 * i, "x": 0.1 * i}) for i in range(5)]
    run.metrics_file.write_text("\n".join(lines) + '\n{"iteration": 5, "env_st')
    assert [r["iteration"] for r in run.metrics()] == [0, 1, 2, 3, 4]  # a partial last line is no record
    for step in (0, 20, 30):
        keep_best(run, step)
        checkpoint.save(run.checkpoint_path(step), state(step, step))
    run.summary_file.write_text("{}")
    video_names = run.path / "videos" / "eval"
    video_names.mkdir(parents=True)
    for step in (20, 30):
        (video_names / f"step-{step:012d}.gif").write_bytes(b"GIF")
    before = files(run.checkpoint_path(20))
    run.cut(20)
    assert run.metrics_file.read_text() == "\n".join(lines[:3]) + "\n"
    assert (run.steps(), run.steps("best")) == ([0, 20], [0, 20])
    assert files(run.checkpoint_path(20)) == before
    assert run.summary() is None
    assert run.videos() == [video_names / "step-000000000020.gif"]
    run.cut(-1)
    assert (run.metrics(), run.steps(), run.steps("best")) == ([], [], [])
