"""Running means and deviations of observations and of returns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coterie.core.types import Array, State


class Normalizer:
    """Normalises observations by their running mean and variance, per parameter set.

    Numbers that share a slot share their statistics (elements of a set). The learner updates it after learning, so
    that acting and learning see the same numbers.
    """

    def __init__(
        self, slots: Array, width: int, parameter_sets: int, enabled: bool, weight: Array | None = None
    ) -> None:
        """`weight [size]` multiplies the normalised numbers; None: no factor."""
        self.slots, self.enabled, self.weight = slots, enabled, weight
        self.repeats = np.bincount(slots, minlength=width)
        self.count = np.zeros(parameter_sets)
        self.mean = np.zeros((parameter_sets, width))
        self.variance = np.ones((parameter_sets, width))
        self._refresh()

    def _refresh(self) -> None:
        on = self.enabled and self.count.any()
        self.limit = 10.0 if on else np.inf
        shift = self.mean[:, self.slots] if on else np.zeros((len(self.mean), len(self.slots)))
        scale = 1 / np.sqrt(self.variance[:, self.slots] + 1e-8) if on else np.ones_like(shift)
        scale = scale if self.weight is None else scale * self.weight
        # [S, size] in C order: picking columns leaves them in Fortran order, which is another type to Numba
        self.shift, self.scale = (array.astype(np.float32, order="C") for array in (shift, scale))

    def __call__(self, rows: Array) -> Array:
        """Normalise rows `[S, M, size]`."""
        return np.clip((rows - self.shift[:, None]) * self.scale[:, None], -self.limit, self.limit)

    def update(self, rows: Sequence[Array]) -> None:
        """Update with each parameter set's raw rows `[M, size]` (Chan et al. 1979 for joining two samples' moments)."""
        if not self.enabled:
            return
        before, self.count = self.count, self.count + [len(own) for own in rows]
        self.mean, self.variance = self.mean.copy(), self.variance.copy()  # a saved state may hold the old ones
        for i, own in enumerate(rows):
            if not len(own):
                continue
            mean = self._by_slot(own.mean(axis=0, dtype=np.float64))
            variance = self._by_slot(np.einsum("ij,ij->j", own, own, dtype=np.float64) / len(own)) - mean**2
            variance = np.maximum(variance, 0)  # rounding: large numbers that never change
            gap = np.where(self.repeats > 0, mean - self.mean[i], 0)
            old, new = before[i] / self.count[i], len(own) / self.count[i]
            joined = self.variance[i] * old + variance * new + gap**2 * old * new
            self.variance[i] = np.where(self.repeats > 0, joined, self.variance[i])  # a set may be empty here
            self.mean[i] += gap * new
        self._refresh()

    def measure_anew(self, rows: Sequence[Array], least_variance: float) -> None:
        """Take the statistics of these rows alone; numbers that vary less than this keep their scale."""
        self.count, self.mean = np.zeros_like(self.count), np.zeros_like(self.mean)
        self.variance = np.ones_like(self.variance)
        self.update(rows)
        self.variance = np.where(self.variance < least_variance, 1.0, self.variance)
        self._refresh()

    def _by_slot(self, values: Array) -> Array:
        return np.bincount(self.slots, values, minlength=len(self.repeats)) / np.maximum(self.repeats, 1)

    def state(self) -> State:
        return {"count": self.count, "mean": self.mean, "square": self.variance}  # the name in checkpoints

    def load(self, state: State) -> None:
        self.count, self.mean, self.variance = state["count"], state["mean"], state["square"]
        self._refresh()


class RunningMoments:
    """Running mean and deviation of returns per parameter set, so that the critic predicts numbers near 1."""

    def __init__(self, parameter_sets: int) -> None:
        self.count, self.mean, self.variance = (
            np.zeros((parameter_sets, 1)),
            np.zeros((parameter_sets, 1)),
            np.ones((parameter_sets, 1)),
        )

    @property
    def shift(self) -> Array:
        return self.mean.astype(np.float32)  # [S, 1]

    @property
    def scale(self) -> Array:
        # equal returns, as before the first reward is found, give no scale
        return np.where(self.count > 0, np.maximum(np.sqrt(self.variance), 1e-2), 1.0).astype(np.float32)  # [S, 1]

    def update(self, values: Array, weight: Array) -> None:
        """Update with values `[S, M]` of weight 1; those of weight 0 do not count."""
        count = weight.sum(axis=1, keepdims=True, dtype=np.float64)
        fraction = weight / np.maximum(count, 1)
        mean = (values * fraction).sum(axis=1, keepdims=True)
        variance = ((values - mean) ** 2 * fraction).sum(axis=1, keepdims=True)
        total, gap = self.count + count, mean - self.mean
        old, new = self.count / np.maximum(total, 1), count / np.maximum(total, 1)
        self.variance = np.where(total > 0, self.variance * old + variance * new + gap**2 * old * new, 1.0)
        self.mean = self.mean + gap * new
        self.count = total

    def state(self) -> State:
        return {"count": self.count, "mean": self.mean, "variance": self.variance}

    def load(self, state: State) -> None:
        self.count, self.mean, self.variance = state["count"], state["mean"], state["variance"]
