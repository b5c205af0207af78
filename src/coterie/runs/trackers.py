"""Sinks of records besides metrics.jsonl: TensorBoard files, Weights & Biases, MLflow.

A sink gets the run's settings once and every record; a failure of one ends it with a warning, not the run. Which run of
a tracking service belongs to this one is kept in `tracking.json`, so that a resumed run goes on there.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from pathlib import Path
from typing import Any, Protocol

from coterie.config import schema
from coterie.core.types import CoterieError
from coterie.runs.run import Run, write_text

HEAD = ("iteration", "env_steps")  # what says when a record was made
BATCH = 100  # parameters that MLflow takes at a time
LONGEST = 500  # characters of one of MLflow's parameters


class Sink(Protocol):
    """Receives a run's settings and records."""

    title: str  # for warnings

    def write(self, record: dict[str, Any]) -> None:
        """Send one record."""
        ...

    def flush(self) -> None:
        """Send what is waiting."""
        ...

    def close(self) -> None:
        """Send the rest and end."""
        ...


class Events:
    """TensorBoard files: one event per record, and the settings for its HParams tab.

    They are written by this thread: a full disk is then an error of the call that met it.
    """

    title = "TensorBoard files"

    def __init__(self, path: Path, first_step: int, settings: dict[str, Any]) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog
            from tensorboard.plugins.hparams.summary_v2 import hparams_pb
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ModuleNotFoundError:
            raise CoterieError("pip install 'coterie[tensorboard]'") from None
        self.event = Event
        path.mkdir(parents=True, exist_ok=True)
        now = f"{time.time():017.6f}"  # first in the name: TensorBoard reads files in the order of their names
        name = f"events.out.tfevents.{now}.{socket.gethostname()}.{os.getpid()}"
        self.file = open(path / name, "xb", buffering=0)  # noqa: SIM115  # until close; nothing waits that may fail then
        self.records = RecordWriter(self.file)
        self.add(0, file_version="brain.Event:2")
        self.add(
            first_step, session_log=SessionLog(status=SessionLog.START)
        )  # events of a killed run after this step are void
        plain = (int, float, str)
        shown = {name: value if isinstance(value, plain) else str(value) for name, value in settings.items()}
        self.add(0, summary=hparams_pb(shown))

    def add(self, step: int, **contents: Any) -> None:
        """Write one event."""
        self.records.write(self.event(wall_time=time.time(), step=step, **contents).SerializeToString())

    def write(self, record: dict[str, Any]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        numbers = {name: value for name, value in record.items() if name not in HEAD}
        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        self.add(record["env_steps"], summary=Summary(value=values))

    def flush(self) -> None:
        """Do nothing: every record is written at once."""

    def close(self) -> None:
        self.file.close()


class WandbSink:
    """Weights & Biases; offline, its files lie in `RUN/wandb` and are sent by `wandb sync`."""

    title = "Weights & Biases records"

    def __init__(self, run: Run, tracking: schema.TrackingSettings, settings: dict[str, Any]) -> None:
        import wandb

        kept = known_as(run, "wandb") or uuid.uuid4().hex[:8]
        self.inner = wandb.init(
            project=tracking.project,
            name=run.path.name,
            id=kept,
            dir=str(run.path),
            mode="offline" if tracking.offline else None,
            resume=None if tracking.offline else "allow",
            config=settings,
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True, x_disable_meta=True),
        )
        remember(run, "wandb", kept)

    def write(self, record: dict[str, Any]) -> None:
        self.inner.log(record, step=record["env_steps"])

    def flush(self) -> None:
        pass  # it sends from a process of its own

    def close(self) -> None:
        self.inner.finish()


class MlflowSink:
    """MLflow; offline, its files lie in `RUN/mlflow`."""

    title = "MLflow records"

    def __init__(self, run: Run, tracking: schema.TrackingSettings, settings: dict[str, Any]) -> None:
        if tracking.offline:  # MLflow refuses its file store unless this is set
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self.metric = Metric
        self.client = MlflowClient((run.path.absolute() / "mlflow").as_uri() if tracking.offline else None)
        kept = known_as(run, "mlflow")
        if kept is None:
            found = self.client.get_experiment_by_name(tracking.project)
            experiment = self.client.create_experiment(tracking.project) if found is None else found.experiment_id
            kept = self.client.create_run(experiment, run_name=run.path.name).info.run_id
            params = [Param(name, str(value)[:LONGEST]) for name, value in settings.items()]
            for start in range(0, len(params), BATCH):
                self.client.log_batch(kept, params=params[start : start + BATCH])
            remember(run, "mlflow", kept)
        else:
            self.client.update_run(kept, status="RUNNING")
        self.identity, self.waiting = kept, list[Any]()

    def write(self, record: dict[str, Any]) -> None:
        now, step = int(time.time() * 1000), record["env_steps"]
        numbers = {name: value for name, value in record.items() if name not in HEAD}
        self.waiting += [self.metric(name, float(value), now, step) for name, value in numbers.items()]
        if len(self.waiting) > BATCH:
            self.flush()

    def flush(self) -> None:
        waiting, self.waiting = self.waiting, []
        if waiting:
            self.client.log_batch(self.identity, metrics=waiting)

    def close(self) -> None:
        self.flush()
        self.client.set_terminated(self.identity)


SERVICES: dict[str, type[WandbSink] | type[MlflowSink]] = {"wandb": WandbSink, "mlflow": MlflowSink}


def demand_packages(tracking: schema.TrackingSettings | None) -> None:
    """Refuse sinks whose package is not installed, before a run begins."""
    from importlib.util import find_spec

    for name in () if tracking is None else tracking.sinks:
        if find_spec(name) is None:
            raise CoterieError(f"train.tracking.sinks: '{name}' needs a package: pip install 'coterie[{name}]'")


def known_as(run: Run, service: str) -> str | None:
    """The name of this run at a service, if it was there before."""
    path = run.path / "tracking.json"
    return json.loads(path.read_text()).get(service) if path.is_file() else None


def remember(run: Run, service: str, identity: str) -> None:
    """Keep the name of this run at a service."""
    path = run.path / "tracking.json"
    known = json.loads(path.read_text()) if path.is_file() else {}
    write_text(path, json.dumps(known | {service: identity}) + "\n")
