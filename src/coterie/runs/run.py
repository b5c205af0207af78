"""A run: the directory that holds one training from config to report."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from coterie.config import schema as configs
from coterie.config import trust as trusts
from coterie.core.files import replacing
from coterie.core.lookup import Trust
from coterie.core.types import CoterieError, State
from coterie.runs import checkpoint
from coterie.runs.data_frames import data_frame
from coterie.runs.history import HISTORY, History, Period, read_history, to_json
from coterie.runs.records import Records, lines_until, read_records

log = logging.getLogger("coterie")
STEP = re.compile(r"\d{12,}")  # in the names of checkpoints and videos; copies of people have others
MISSING = object()  # stands for a value that a summary lacks
PROVENANCE, LOCK = "provenance.json", "run.lock"  # of `provenance.py`
STUDY_LOCK = ".lock"  # in the directory of a study's trials, while it goes on


@dataclass(frozen=True)
class Run:
    """The files of a run."""

    path: Path
    trust: Trust = field(default="shown", compare=False)  # whether it is only shown, or whose code it may run

    @classmethod
    def open(cls, path: str | Path, trust: Trust = "signed") -> Run:
        """Open an existing run, to be played unless `trust` is `shown`."""
        run = cls(Path(path), trust)
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
        run = cls(path, settings.trust)
        run.checkpoints.mkdir(parents=True, exist_ok=True)
        run.write_config(settings, 0, History())  # whatever lies there from an earlier run
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

    def config(self, overrides: list[str] | str | None = None, own: bool = True) -> configs.Config:
        """The run's resolved config, with overrides applied.

        Raises `Untrusted` if it names code, or reaches out of its directory in another way, and is not this user's own;
        a run that is only shown has such parts as they are written. A config that is not known to be this user's own
        has an `origin`, and keys of language models do not follow it; neither do they where the overrides are not this
        user's `own` words.
        """
        layer, changes = configs.read(self.config_file), configs.parse_overrides(overrides or [])
        if self.trust == "signed":
            trusts.demand(layer, self.config_file)
        signed = trusts.is_signed(self.config_file)
        merged = configs.merge(layer, changes)
        config = configs.resolve(merged, "experiment", self.trust, signed and self.trust == "shown")
        if self.trust == "all" or (signed and own):
            return config
        return replace(config, origin=configs.Origin(self.path, configs.changed_paths(changes if own else {})))

    def playable(self, overrides: list[str] | str | None = None, own: bool = True) -> configs.Config:
        """The config, of which everything is looked up: raises `Untrusted` where it can only be shown."""
        config = self.config(overrides, own)
        config.refuse_unread(self.path)
        return config

    def discard_unstarted(self) -> None:
        """Remove what a run wrote that recorded nothing, so that its directory is free again; other files stay."""
        if self.metrics() or self.steps():
            return
        for directory in (self.checkpoints, *(self.path / name for name in ("tensorboard", "wandb", "mlflow"))):
            shutil.rmtree(directory, ignore_errors=True)
        for file in (
            self.metrics_file,
            self.config_file,
            *(self.path / n for n in (HISTORY, PROVENANCE, LOCK, trusts.SIGNATURE, "tracking.json")),
        ):
            file.unlink(missing_ok=True)
        if not any(self.path.iterdir()):
            self.path.rmdir()

    def write_config(self, settings: configs.Config, step: int = 0, history: History | None = None) -> None:
        """Write and sign the resolved config, which holds from this step on, and before it the run's history.

        The history is that of this run, or the given one.
        """
        before = self.known_history() if history is None else history
        after = before.continued(step, configs.to_dict(settings))
        if after != before or history is not None:
            write_text(self.path / HISTORY, to_json(after))
        write_text(self.config_file, configs.to_yaml(settings))
        trusts.sign(self.config_file)

    def history(self) -> History:
        """All settings that the run was trained with, and the run that it continues."""
        return read_history(self.path)

    def known_history(self) -> History:
        """The history; of a run that has none, its present config is all that is known."""
        found = self.history()
        if found.periods or not self.config_file.exists():
            return found
        return History((Period(0, configs.to_dict(self.config())),), found.parent)

    def metrics(self, after: int = 0) -> list[dict[str, Any]]:
        """The records so far, without the first `after`.

        A reader that polls a run passes the number of records that it already has. Records are only appended; `cut`
        (a resumed run) removes the last ones, so a reader must start anew when a run is resumed.
        """
        return self.records().rows[after:]

    def records(self) -> Records:
        """The records so far, and where lines between them are damaged."""
        return read_records(self.metrics_file)

    def to_pandas(self) -> Any:
        """The records as a data frame, one row for each."""
        return data_frame(self.metrics())

    def summary(self) -> dict[str, Any] | None:
        """The summary of a finished run; None before it finishes."""
        if not self.summary_file.is_file():
            return None
        return _parsed(self.summary_file.read_bytes(), self.summary_file)

    def videos(self) -> list[Path]:
        """Videos of evaluation episodes, `step-N.gif`, oldest policies first."""
        found = sorted((self.path / "videos" / "eval").glob("step-*.gif"))
        return [path for path in found if STEP.fullmatch(path.stem.removeprefix("step-")) and self.holds(path)]

    def holds(self, file: Path) -> bool:
        """Whether a file is one of the run's directory; a link may lead to any other, which nobody shows."""
        return file.is_file() and file.resolve().is_relative_to(self.path.resolve())

    # Checkpoints: step-N holds everything, best-N the policies that evaluated best

    def steps(self, prefix: str = "step") -> list[int]:
        """Steps at which complete checkpoints exist, oldest first."""
        names = (name.removeprefix(f"{prefix}-") for name in checkpoint.found(self.checkpoints, f"{prefix}-"))
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
            checkpoint.remove(self.checkpoint_path(step))
        best = self.steps("best")  # each better than those before it
        needed = {max((b for b in best if b <= step), default=-1) for step in self.steps()}
        for step in best:
            if step not in needed:
                checkpoint.remove(self.checkpoint_path(step, "best"))

    def cut(self, step: int) -> None:
        """Remove everything after a step: records, best policies, damaged and half-written checkpoints."""
        with replacing(self.metrics_file) as file:
            file.write(lines_until(self.metrics_file, step))
        checkpoint.settle(self.checkpoints)
        for prefix in ("step", "best"):
            for later in self.steps(prefix):
                if later > step:
                    checkpoint.remove(self.checkpoint_path(later, prefix))
        for video in self.videos():
            if int(video.stem.split("-")[1]) > step:
                video.unlink()
                video.with_suffix(".mp4").unlink(missing_ok=True)
        self.summary_file.unlink(missing_ok=True)


def refuse_own_policies(run: Run, settings: configs.Config) -> None:
    """Refuse a group that would play with its own policy of the same run: there would be none any more."""
    for name, group in settings.groups.items():
        chosen = group.policy
        if not isinstance(chosen, configs.SeatedRun) or (chosen.group or name) != name:
            continue
        if Path(chosen.run).resolve() == run.path.resolve():
            cure = "name another run or group"
            raise configs.ConfigError(f"groups.{name}.policy: '{name}' would play with its own policy; {cure}")


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
