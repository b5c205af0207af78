"""Removes a model's prior preference for certain answers from its scores. Plain NumPy.

Small models favour some answers whatever the prompt says. Contextual calibration subtracts each choice's score under a
prompt without content (Zhao et al. 2021, "Calibrate Before Use"); batch calibration subtracts its mean over unlabelled
prompts (after Zhou et al. 2023, "Batch Calibration", who subtract the logarithm of the mean probability instead). Both
need the same choices in every row.
"""

from __future__ import annotations

import numpy as np


def log_normalize(scores: np.ndarray) -> np.ndarray:
    """Return `[..., C]` log-probabilities that are normalised over the choices of each row; -inf stays."""
    top = np.max(scores, axis=-1, keepdims=True)
    if not np.isfinite(top).all():
        raise ValueError("scores: every row needs a choice with a finite score")
    shifted = scores - top
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def batch_prior(scores: np.ndarray) -> np.ndarray:
    """Return the mean log-probability of each choice `[C]` over unlabelled prompts, from scores `[P, C]`."""
    _check(scores)
    return log_normalize(scores).mean(0)


def content_free_prior(scores: np.ndarray) -> np.ndarray:
    """Return the log of the mean probability `[C]` over prompts without content ("N/A", ""), from scores `[P, C]`."""
    _check(scores)
    with np.errstate(divide="ignore"):
        return np.log(np.exp(log_normalize(scores)).mean(0))


def calibrated(scores: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """Return `[..., C]` log-probabilities after the prior is subtracted; impossible choices stay impossible."""
    if scores.shape[-1] != prior.shape[-1]:
        raise ValueError(f"prior: expected {scores.shape[-1]} choices as in the scores, got {prior.shape[-1]}")
    return log_normalize(np.where(np.isfinite(scores), scores - np.where(np.isfinite(prior), prior, 0), -np.inf))


def probabilities(scores: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """Return the softmax of scores `[..., C]` at a temperature."""
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature:g}")
    return np.exp(log_normalize(scores / temperature))


def _check(scores: np.ndarray) -> None:
    if scores.ndim != 2 or not len(scores):
        raise ValueError(f"scores must be [P, C] with at least one row, got shape {scores.shape}")
