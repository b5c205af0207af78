"""Stops learning that produced NaN or infinity before it reaches a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from coterie.core.types import Array, CoterieError, Metrics


class Diverged(CoterieError):
    """Learning produced NaN or infinity; the last good checkpoint stays as it is."""


def demand_finite(group: str, metrics: Metrics, observed: Iterable[Array], learned: Iterable[Array]) -> None:
    """Raise `Diverged` unless metrics, parameters and the statistics of observations are finite."""
    told = {
        name: value for name, value in metrics.items() if "/" not in name or not np.isfinite(value)
    }  # not per agent
    shown = ", ".join(f"{name}={value:.3g}" for name, value in told.items())
    if not all(np.isfinite(array).all() for array in observed):
        raise Diverged(f"group '{group}': an observation is not a finite number ({shown})")
    if not all(np.isfinite(array).all() for array in (np.array([*metrics.values()]), *learned)):
        raise Diverged(
            f"group '{group}': learning diverged ({shown}); nothing was saved since the last "
            "good checkpoint. Try a smaller learning_rate or max_grad_norm"
        )
