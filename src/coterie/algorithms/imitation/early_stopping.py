"""Early stopping: learning ends when the validation loss no longer falls."""

from __future__ import annotations

from coterie.core.types import State


class EarlyStopping:
    """Counts validations since the lowest loss."""

    def __init__(self, patience: int | None) -> None:
        """`patience`: validations without a lower loss before learning ends; None: it never ends."""
        self.patience = patience
        self.best_loss, self.stale = float("inf"), 0

    def update(self, loss: float) -> None:
        """Count a validation."""
        self.stale = 0 if loss < self.best_loss else self.stale + 1
        self.best_loss = min(loss, self.best_loss)

    @property
    def finished(self) -> bool:
        """Whether the loss has not fallen for `patience` validations."""
        return self.patience is not None and self.stale >= self.patience

    def state(self) -> State:
        return {"best_loss": self.best_loss, "stale": self.stale}

    def load(self, state: State) -> None:
        self.best_loss, self.stale = state["best_loss"], state["stale"]
