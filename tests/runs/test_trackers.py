"""Records and settings reach TensorBoard, Weights & Biases and MLflow; offline they are files below the run."""

import json
import os
import re
import threading
import time

import pytest

import coterie
from coterie.config.schema import ConfigError
from coterie.core.types import CoterieError
from coterie.runs import trackers as sinks
from coterie.runs.run import Run
from helpers.resume import stopped
from helpers.run import numbers, train

SHORT = ["train.total_steps=96", "world.max_steps=6"]


@pytest.mark.slow
def test_mlflow_offline_has_settings_and_every_record_and_goes_on(tmp_path):
    words = [*SHORT, "train.tracking.sinks=[mlflow]", "train.tracking.offline=true", "train.tracking.project=grid"]
    run = stopped(tmp_path / "run", *words, at=2)
    assert coterie.resume(run.path, quiet=True)
    assert numbers(run) == numbers(train(tmp_path / "plain", *SHORT))  # sinks change nothing
    from mlflow.tracking import MlflowClient

    client = MlflowClient((run.path / "mlflow").as_uri())
    (found,) = client.search_runs([client.get_experiment_by_name("grid").experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.params["groups.team.learner.name"] == "ppo"
    assert found.data.params["train.total_steps"] == "96"
    records = [record for record in run.metrics() if "team/eval/return_mean" in record]
    assert len(records) > 1
    kept = client.get_metric_history(found.info.run_id, "team/eval/return_mean")
    assert {one.step: one.value for one in kept} == {r["env_steps"]: r["team/eval/return_mean"] for r in records}


@pytest.mark.slow
def test_wandb_offline_has_settings_and_records(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    run = train(tmp_path / "run", *SHORT, "train.tracking.sinks=[wandb]", "train.tracking.offline=true")
    (folder,) = (run.path / "wandb").glob("offline-run-*")
    (file,) = folder.glob("run-*.wandb")
    assert json.loads((run.path / "tracking.json").read_text())["wandb"] in file.name
    for _ in range(600):  # a process of its own writes the file
        content = file.read_bytes()
        if b"team/eval/return_mean" in content:
            break
        time.sleep(0.1)
    assert b"team/eval/return_mean" in content
    assert b"learning_rate" in content  # among the settings
    assert run.summary() is not None


@pytest.mark.slow
def test_wandb_offline_goes_on_under_the_same_name(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    words = [*SHORT, "train.tracking.sinks=[wandb]", "train.tracking.offline=true"]
    run = stopped(tmp_path / "run", *words, at=2)
    name = json.loads((run.path / "tracking.json").read_text())["wandb"]
    assert coterie.resume(run.path, quiet=True)
    assert json.loads((run.path / "tracking.json").read_text())["wandb"] == name
    assert numbers(run) == numbers(train(tmp_path / "plain", *SHORT))  # sinks change nothing
    sent = [file for folder in (run.path / "wandb").glob("offline-run-*") for file in folder.glob("run-*.wandb")]
    assert {file.name for file in sent} == {f"run-{name}.wandb"}  # two parts of one run, which a sync joins
    steps = {record["env_steps"] for record in run.metrics()}
    for _ in range(600):  # a process of its own writes the files
        kept = b"".join(file.read_bytes() for file in sent)
        found = {int(step) for step in re.findall(rb"env_steps\x82\x01.(\d+)", kept, re.DOTALL)}  # as Protobuf has it
        if found == steps:
            break
        time.sleep(0.1)
    assert found == steps


@pytest.mark.slow
def test_tensorboard_has_the_settings(tmp_path):
    run = train(tmp_path / "run", *SHORT, "train.tensorboard=true")
    content = b"".join(file.read_bytes() for file in (run.path / "tensorboard").iterdir())
    assert b"_hparams_/session_start_info" in content
    assert b"groups.team.learner.learning_rate" in content


def test_tensorboard_files_are_written_by_the_thread_that_writes_records(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    threads = threading.active_count()
    events = sinks.Events(tmp_path, 0, {})
    assert threading.active_count() == threads
    events.write({"iteration": 1, "env_steps": 7, "loss": 0.5})
    events.close()
    (file,) = tmp_path.iterdir()
    loaded = EventAccumulator(str(file)).Reload()
    assert [(one.step, one.value) for one in loaded.Scalars("loss")] == [(7, 0.5)]
    full = sinks.Events(tmp_path, 7, {})
    with open("/dev/full", "wb") as disk:
        os.dup2(disk.fileno(), full.file.fileno())
    with pytest.raises(OSError, match="No space left on device"):
        full.write({"iteration": 2, "env_steps": 8, "loss": 0.5})
    full.close()  # as at the end of the program: nothing is left to be written


@pytest.mark.slow
def test_a_service_that_fails_does_not_take_the_run_with_it(tmp_path, monkeypatch, caplog):
    def refuse(*_, **__):
        raise RuntimeError("no network")

    words = [*SHORT, "train.tracking.sinks=[mlflow]", "train.tracking.offline=true"]
    monkeypatch.setattr(sinks.MlflowSink, "write", refuse)
    run = train(tmp_path / "run", *words)
    assert run.summary() is not None
    assert sum("no further MLflow records: RuntimeError: no network" in r.message for r in caplog.records) == 1


@pytest.mark.slow
def test_wrong_sinks_are_refused_before_anything_runs(coterie_, tmp_path, monkeypatch):
    for word, said in (
        ("train.tracking.sinks=[wandbb]", r"train.tracking.sinks\[0\].*expected.*'wandb' or 'mlflow', got 'wandbb'"),
        ("train.tracking.sinks=[mlflow,mlflow]", "train.tracking: sinks must name every sink once"),
        ("train.tracking.project=''", "project must not be empty"),
        ("train.tracking.sink=[wandb]", "train.tracking.sink: no such setting; did you mean 'sinks'"),
    ):
        code, _, err = coterie_("train", "gridworld-cooperative", word, "--out", tmp_path / "a")
        assert code == 2
        assert re.search(said, err)
    with pytest.raises(ConfigError, match=r"train\.tracking\.sinks"):
        coterie.train("gridworld-cooperative", "train.tracking.sinks=[tensorboard]", tmp_path / "a")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        CoterieError, match=r"train.tracking.sinks: 'wandb' needs a package: pip install 'coterie\[wandb\]'"
    ):
        train(tmp_path / "a", *SHORT, "train.tracking.sinks=[wandb]")
    assert not (tmp_path / "a").exists()
    assert coterie_("train", "gridworld-cooperative", "--help")[0] == 0


def test_without_tracking_nothing_is_imported_or_written(tmp_path):
    run = train(tmp_path / "run", *SHORT)
    assert not {"wandb", "mlflow", "tracking.json"} & {path.name for path in run.path.iterdir()}
    assert Run.open(run.path).config().train.tracking is None
