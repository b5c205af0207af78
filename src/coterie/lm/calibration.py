"""Taking out of scores what a model prefers whatever it is asked. Plain NumPy.

Small models have favourite answers. Contextual calibration subtracts each choice's score under a prompt
without content (Zhao et al. 2021, "Calibrate Before Use"); batch calibration subtracts its mean over
unlabelled prompts (Zhou et al. 2023, "Batch Calibration"). Both need the same choices in every row.
"""

from __future__ import annotations

import numpy as np


def log_normalise(scores: np.ndarray) -> np.ndarray:
    """[..., C] log-probabilities among the choices of each row; -inf stays."""
    top = np.max(scores, axis=-1, keepdims=True)
    if not np.isfinite(top).all():
        raise ValueError("a row has no choice with a finite score")
    shifted = scores - top
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def batch_prior(scores: np.ndarray) -> np.ndarray:
    """[C] from [P, C]: how much each choice is liked on average over unlabelled prompts."""
    if scores.ndim != 2 or not len(scores):
        raise ValueError(f"scores must be [P, C] with at least one row, got shape {scores.shape}")
    return log_normalise(scores).mean(0)


def content_free_prior(scores: np.ndarray) -> np.ndarray:
    """[C] from the scores [P, C] of prompts without content ("N/A", ""): probabilities averaged, then logs."""
    if scores.ndim != 2 or not len(scores):
        raise ValueError(f"scores must be [P, C] with at least one row, got shape {scores.shape}")
    with np.errstate(divide="ignore"):
        return np.log(np.exp(log_normalise(scores)).mean(0))


def calibrated(scores: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """[..., C] log-probabilities among the choices once the prior is taken out; impossible choices stay so."""
    if scores.shape[-1] != prior.shape[-1]:
        raise ValueError(f"{scores.shape[-1]} choices, but the prior is of {prior.shape[-1]}")
    return log_normalise(np.where(np.isfinite(scores), scores - np.where(np.isfinite(prior), prior, 0), -np.inf))


def probabilities(scores: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """[..., C] that sum to 1."""
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature:g}")
    return np.exp(log_normalise(scores / temperature))
