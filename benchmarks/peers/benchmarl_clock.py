"""When BenchMARL's iterations end and what they return; runs in its environment."""

from __future__ import annotations

import time

from benchmarl.experiment import Callback


class Clock(Callback):  # type: ignore[misc]  # the peer is not installed where types are checked
    """Notes when the first iteration ended, and the latest mean return of an episode."""

    def __init__(self) -> None:
        super().__init__()
        self.first: float | None = None
        self.iterations, self.returns = 0, 0.0

    def on_batch_collected(self, batch: object) -> None:
        over = batch["next", "agent", "done"]  # type: ignore[index]
        if over.any():
            self.returns = float(batch["next", "agent", "episode_reward"][over].mean())  # type: ignore[index]

    def on_train_end(self, training_td: object, group: str) -> None:
        self.iterations += 1
        if self.first is None:
            self.first = time.perf_counter()
