"""A run: the directory that holds one training from config to report."""

from __future__ import annotations

import itertools
import json
import logging
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.config import schema as configs
from coterie.core.files import replacing
from coterie.core.types import CoterieError, State
from coterie.runs import checkpoint
from coterie.runs.data_frames import data_frame

log = logging.getLogger("coterie")
STEP = re.compile(r"\d{12,}")  # in the names of checkpoints and videos; copies of people have others
MISSING = object()  # stands for a value that a summary lacks
PROVENANCE, LOCK = "provenance.json", "run.lock"  # of `provenance.py`
STUDY_LOCK = ".lock"  # in the directory of a study's trials, while it goes on


@dataclass(frozen=True)
class Run:
    """The files of a run."""

    path: Path

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """Open an existing run."""
        run = cls(Path(path))
        if not run.config_file.is_file():
            below = sorted(str(found.parent) for found in run.path.glob("*/config.yaml"))
            hint = f"; below it there are {', '.join(below[:5])}{', …' if len(below) > 5 else ''}" if below else ""
            raise CoterieError(f"'{path}' is not a run: it has no config.yaml{hint}")
        return run

    @classmethod
    def create(cls, path: Path, settings: configs.Config) -> Run:
        """Create a run; an existing one is never overwritten."""
        if (path / "config.yaml").exists():
            raise CoterieError(f"'{path}' already holds a run; choose another --out, or 'coterie resume {path}'")
        run = cls(path)
        run.checkpoints.mkdir(parents=True, exist_ok=True)
        run.write_config(settings)
        return run

    @property
    def config_file(self) -> Path:
        return self.path / "config.yaml"

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def summary_file(self) -> Path:
        return self.path / "summary.json"

    @property
    def exploit_file(self) -> Path:
        """The result of `coterie exploit`, in the directory of its responders."""
        return self.path / "exploit" / "exploit.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def config(self, overrides: list[str] | str | None = None) -> configs.Config:
        """The run's resolved config, with overrides applied."""
        layer = configs.read(self.config_file)
        return configs.resolve(configs.merge(layer, configs.parse_overrides(overrides or [])), "experiment")

    def discard_unstarted(self) -> None:
        """Remove what a run wrote that recorded nothing, so that its directory is free again; other files stay."""
        if self.metrics() or self.steps():
            return
        for directory in (self.checkpoints, *(self.path / name for name in ("tensorboard", "wandb", "mlflow"))):
            shutil.rmtree(directory, ignore_errors=True)
        for file in (
            self.metrics_file,
            self.config_file,
            *(self.path / n for n in (PROVENANCE, LOCK, "tracking.json")),
        ):
            file.unlink(missing_ok=True)
        if not any(self.path.iterdir()):
            self.path.rmdir()

    def write_config(self, settings: configs.Config) -> None:
        """Write the resolved config atomically."""
        write_text(self.config_file, configs.to_yaml(settings))

    def metrics(self, after: int = 0) -> list[dict[str, Any]]:
        """The records so far, without the first `after`, which are not parsed.

        A reader that polls a run passes the number of records that it already has. Records are only appended; `cut`
        (a resumed run) removes the last ones, so a reader must start anew when a run is resumed.
        """
        if not self.metrics_file.exists():
            return []
        with open(self.metrics_file, "rb") as file:
            complete = (line for line in map(bytes.rstrip, file) if line.endswith(b"}"))  # a kill may cut the last line
            found = [_parsed(line, self.metrics_file) for line in itertools.islice(complete, after, None)]
        if any("env_steps" not in record for record in found):
            raise CoterieError(f"'{self.metrics_file}' is damaged: a record has no 'env_steps'")
        return found

    def to_pandas(self) -> Any:
        """The records as a data frame, one row for each."""
        return data_frame(self.metrics())

    def summary(self) -> dict[str, Any] | None:
        """The summary of a finished run; None before it finishes."""
        if not self.summary_file.exists():
            return None
        return _parsed(self.summary_file.read_bytes(), self.summary_file)

    def videos(self) -> list[Path]:
        """Videos of evaluation episodes, `step-N.gif`, oldest policies first."""
        found = sorted((self.path / "videos" / "eval").glob("step-*.gif"))
        return [path for path in found if STEP.fullmatch(path.stem.removeprefix("step-"))]

    # Checkpoints: step-N holds everything, best-N the policies that evaluated best

    def steps(self, prefix: str = "step") -> list[int]:
        """Steps at which complete checkpoints exist, oldest first."""
        names = (path.name.removeprefix(f"{prefix}-") for path in self.checkpoints.glob(f"{prefix}-*"))
        return sorted(int(name) for name in names if STEP.fullmatch(name))

    def checkpoint_path(self, step: int, prefix: str = "step") -> Path:
        return self.checkpoints / f"{prefix}-{step:012d}"

    def load_checkpoint(self, which: str = "best") -> State:
        """The `best` policies, the `last` full state, or the checkpoint of one step."""
        if which in ("best", "last"):
            prefix = "best" if which == "best" else "step"
            found = self.newest(self.steps(prefix), prefix)
            if found is None:
                raise CoterieError(f"'{self.path}' has no intact '{which}' checkpoint")
            return found
        available = sorted({*self.steps("step"), *self.steps("best")})
        if not which.isdigit() or int(which) not in available:
            shown = ", ".join(map(str, available)) or "none"
            raise CoterieError(f"'{self.path}' has no checkpoint '{which}'; there are best, last and steps {shown}")
        prefix = "step" if int(which) in self.steps("step") else "best"
        return checkpoint.load(self.checkpoint_path(int(which), prefix))

    def newest(self, steps: Iterable[int], prefix: str = "step") -> State | None:
        """The newest intact checkpoint; damaged ones are skipped with a warning."""
        for step in sorted(steps, reverse=True):
            try:
                return checkpoint.load(self.checkpoint_path(step, prefix))
            except checkpoint.CheckpointError as error:
                log.warning("%s; passed over", error)
        return None

    def save_checkpoint(self, state: State, keep: int) -> None:
        """Save a full checkpoint, then delete old ones; each kept one keeps the best policies of its time."""
        checkpoint.save(self.checkpoint_path(state["env_steps"]), state)
        for step in self.steps()[:-keep]:
            shutil.rmtree(self.checkpoint_path(step))
        best = self.steps("best")  # each better than those before it
        needed = {max((b for b in best if b <= step), default=-1) for step in self.steps()}
        for step in best:
            if step not in needed:
                shutil.rmtree(self.checkpoint_path(step, "best"))

    def cut(self, step: int) -> None:
        """Remove everything after a step: records, best policies, damaged and half-written checkpoints."""
        kept = [json.dumps(r) for r in self.metrics() if r["env_steps"] <= step]
        write_text(self.metrics_file, "".join(f"{line}\n" for line in kept))
        for prefix in ("step", "best"):
            for later in self.steps(prefix):
                if later > step:
                    shutil.rmtree(self.checkpoint_path(later, prefix))
        for unfinished in self.checkpoints.glob(".*.tmp"):
            shutil.rmtree(unfinished)
        for video in self.videos():
            if int(video.stem.split("-")[1]) > step:
                video.unlink()
                video.with_suffix(".mp4").unlink(missing_ok=True)
        self.summary_file.unlink(missing_ok=True)


def nobody_learns(run: Run) -> bool:
    """Whether no group of the run learns: its scores are those of its players."""
    return all(group.learner is None for group in run.config().groups.values())


def entry(run: Run, summary: Any, *path: str) -> Any:
    """The value at a path of a run's summary; an error if it is missing."""
    found = _reach(summary, path)
    if found is MISSING:
        raise CoterieError(f"'{run.summary_file}' is damaged: it has no '{'.'.join(path)}'")
    return found


def number(run: Run, summary: Any, *path: str) -> float:
    """The number at a path of a run's summary."""
    found = _reach(summary, path)
    if not isinstance(found, int | float):
        raise CoterieError(f"'{run.summary_file}' is damaged: it has no number '{'.'.join(path)}'")
    return found


def _reach(summary: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        if not isinstance(summary, dict) or key not in summary:
            return MISSING
        summary = summary[key]
    return summary


def _parsed(text: bytes, file: Path) -> dict[str, Any]:
    try:
        parsed: Any = json.loads(text)
    except ValueError as error:  # not JSON, or not a text
        raise CoterieError(f"'{file}' is damaged: {error}") from None
    if not isinstance(parsed, dict):
        raise CoterieError(f"'{file}' is damaged: expected an object, got {type(parsed).__name__}")
    return parsed


def write_text(path: Path, text: str) -> None:
    """Write a file under a temporary name, sync it, rename it; a failure leaves the file as it was."""
    with replacing(path) as file:
        file.write(text.encode())
