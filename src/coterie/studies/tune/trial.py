"""Trials of a study as data: what all of them share, their values, and what their training found. Needs no Optuna."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from coterie.core.search_space import Range, range_to_dict

Pruner = Literal["median", "halving", "none"]
Score = Literal["best", "mean"]
Outcome = Literal["complete", "pruned", "failed", "running"]


@dataclass(frozen=True)
class StudySpec:
    """Settings that all trials of a study share; a study continues only with the same ones."""

    config: dict[str, Any]  # path -> value of the experiment with its overrides, as JSON
    space: dict[str, Range]  # path -> the values to try
    own: dict[str, Any]  # path -> the experiment's own value, tried first
    seeds: int  # trainings per trial
    pruner: Pruner
    horizon: int  # environment steps of one training
    batch: int = 1  # trials proposed together, before any of them is trained
    score: Score = "best"  # of a training: its best validation, or the mean of all

    def to_dict(self) -> dict[str, Any]:
        """As JSON, as the study stores it."""
        space = {path: range_to_dict(known) for path, known in self.space.items()}
        trained = {"config": self.config, "space": space, "seeds": self.seeds}
        return trained | {"pruner": self.pruner, "batch": self.batch, "score": self.score}


@dataclass(frozen=True)
class Trial:
    """One set of values and its outcome."""

    number: int
    outcome: Outcome
    values: dict[str, Any]  # path -> value
    score: float | None  # None: it failed; of a pruned trial the last reported score
    held_out: float | None  # score on held-out seeds; None unless complete
    curve: dict[int, float]  # environment steps, summed over seeds -> score so far
    reason: str  # why it failed


@dataclass(frozen=True)
class Result:
    """The result of one trial's training, to be written by the process that holds the study."""

    outcome: Outcome  # "running": it was interrupted
    score: float | None = None
    held_out: float | None = None
    reason: str = ""
    curve: dict[int, float] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)  # of the pruner
