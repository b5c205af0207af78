"""Settings of the training loop, apart from the loop so that reading a config imports no more than it must."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coterie.checks import at_least


@dataclass(frozen=True)
class StopSettings:
    return_mean: float  # stop once the group's average training return reaches this
    episodes: int = 100  # averaged over this many latest episodes
    group: str | None = None  # whose return; None: the first group that learns

    def __post_init__(self) -> None:
        at_least("episodes", self.episodes, 1)


@dataclass(frozen=True)
class TrainSettings:
    total_steps: int = 200_000  # environment steps, summed over copies
    copies: int = 64  # of the world
    steps: int = 128  # ticks of every copy per iteration
    shards: int = 1  # the copies are divided into this many; part of the experiment
    workers: int = 0  # child processes that play; 0: this one; results do not depend on it
    threads: int = 1  # of PyTorch; part of the experiment, since sums depend on it
    evaluate_every: int = 10  # iterations between evaluations; the first and the last always happen
    evaluate_episodes: int = 100  # per evaluation
    checkpoint_every: int = 10  # iterations between checkpoints
    keep: int = 2  # checkpoints to keep, beside the best
    best: Literal["return", "last"] = "return"  # which policies are the best: those paid most, or the last evaluated
    stop: StopSettings | None = None  # end early when solved
    video: bool = True  # film one episode of the best policy at the end
    tensorboard: bool = True  # write event files beside metrics.jsonl

    def __post_init__(self) -> None:
        for name in ("total_steps", "copies", "steps", "shards", "threads", "evaluate_every"):
            at_least(name, getattr(self, name), 1)
        for name in ("evaluate_episodes", "checkpoint_every", "keep"):
            at_least(name, getattr(self, name), 1)
        at_least("workers", self.workers, 0)
        if self.copies % self.shards:
            raise ValueError(
                f"copies must divide evenly into shards, got {self.copies} copies and {self.shards} shards"
            )

    @property
    def iteration_steps(self) -> int:
        """Environment steps of one iteration."""
        return self.copies * self.steps

    @property
    def iterations(self) -> int:
        """Iterations of the whole run."""
        return -(-self.total_steps // self.iteration_steps)

    def progress(self, iteration: int) -> float:
        """Share of the run's iterations that are over when one begins; they count from 1."""
        return (iteration - 1) / self.iterations
