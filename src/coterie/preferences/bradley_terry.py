"""Strengths and standard errors from pairwise comparisons (Bradley and Terry 1952, Biometrika 39), in NumPy.

Item i beats item j with probability σ(sᵢ − sⱼ), σ(x) = 1 / (1 + e⁻ˣ); a tie is half a win for both. Strengths are
log odds and sum to 0. An item that beats all others would be infinitely strong: a small prior of fictitious games keeps
strengths finite and connects items that no chain of games connects. `studies/rate` makes the comparisons.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from coterie.core.types import Array

PRIOR = 0.5  # fictitious wins, and as many losses, of every item, spread over its opponents
LEVEL = 0.95  # of an interval
STEPS = 200  # of Newton's method; a handful suffices unless strengths are far apart


class Fit(NamedTuple):
    """Strengths and their standard errors, `[K]` each."""

    strengths: Array  # log odds; they sum to 0
    errors: Array  # standard errors of the strengths, relative to the mean of all


class Games(NamedTuple):
    """G games, each between what was drawn for two items; a draw, such as an episode, may take part in several."""

    items: Array  # [G, 2] int
    draws: Array  # [G, 2] int: number of what was drawn for each item, among the draws of all items
    score: Array  # [G]: 1 where the first was preferred, 0 where the second was, 0.5 for a tie


def fit(wins: Array, prior: float = PRIOR) -> Fit:
    """Fit strengths to `wins` `[K, K]`: how often the row's item was preferred to the column's, ties as halves.

    Of two items with w and l wins, the first is log((w + prior) / (l + prior)) above the second. Without a prior the
    likelihood has a maximum only if no set of items is unbeaten by the rest (Ford 1957); otherwise this raises a
    ValueError. Standard errors come from the observed information of the same counts, including the prior's.
    """
    counts = _counted(wins)
    if not prior >= 0:
        raise ValueError(f"prior must be at least 0, got {prior:g}")
    if prior:
        counts = counts + prior / (len(counts) - 1)
        np.fill_diagonal(counts, 0.0)
    elif not _connected(counts):
        raise ValueError(
            "some items never lost to the others, or never met them, so their strength is infinite; set prior above 0"
        )
    strengths = _maximise(counts)
    # Strengths are determined up to an added constant; the pseudoinverse is the covariance of those that sum to 0.
    spread = np.linalg.pinv(_information(counts, strengths), hermitian=True)
    return Fit(strengths, np.sqrt(np.maximum(np.diag(spread), 0.0)))


def fit_games(games: Games, count: int, prior: float = PRIOR) -> Fit:
    """Fit the strengths of `count` items to single games.

    Games with a common draw are not independent: `fit` would take many games between few episodes for as much evidence.
    Errors are the larger ones of `fit`'s and of those that allow for what such games have in common (Aronow et al.
    2015, "Cluster-robust variance estimation for dyadic data", eq. 3).
    """
    wins = np.zeros((count, count))
    first, second = games.items.T
    np.add.at(wins, (first, second), games.score)
    np.add.at(wins, (second, first), 1 - games.score)
    found, rows = fit(wins, prior), np.arange(len(games.score))
    slopes = np.zeros((len(rows), count))  # of each game's log-likelihood
    slopes[rows, first] = games.score - chances(found.strengths)[first, second]
    slopes[rows, second] = -slopes[rows, first]
    of_draw = _summed(np.concatenate([slopes, slopes]), games.draws.T.ravel(), int(games.draws.max(initial=-1)) + 1)
    met, meeting = np.unique(np.sort(games.draws, axis=1), axis=0, return_inverse=True)
    of_meeting = _summed(slopes, meeting.reshape(-1), len(met))
    shared = of_draw.T @ of_draw - of_meeting.T @ of_meeting  # games of one meeting share two draws, and count once
    counts = wins + prior / (count - 1) * (1 - np.eye(count))
    spread = np.linalg.pinv(_information(counts, found.strengths), hermitian=True)
    robust = np.diag(spread @ shared @ spread)
    return Fit(found.strengths, np.sqrt(np.maximum(found.errors**2, robust)))


def _summed(slopes: Array, group: Array, groups: int) -> Array:
    """Sums `[groups, K]` of the rows that belong to each group."""
    found = np.zeros((groups, slopes.shape[1]))
    np.add.at(found, group, slopes)
    return found


def intervals(found: Fit, level: float = LEVEL) -> tuple[Array, Array]:
    """The lower and upper ends, `[K]` each, of normal confidence intervals of the strengths."""
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level:g}")
    reach = NormalDist().inv_cdf((1 + level) / 2) * found.errors
    return found.strengths - reach, found.strengths + reach


def chances(strengths: Array) -> Array:
    """The probability that the row's item is preferred to the column's, `[K, K]`."""
    apart = strengths[:, None] - strengths[None, :]
    chance: Array = np.exp(-np.logaddexp(0.0, -apart))
    return chance


def _counted(wins: Array) -> Array:
    counts = np.array(wins, float)  # a copy
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or len(counts) < 2:
        raise ValueError(f"wins must be a square matrix of at least two items, got the shape {counts.shape}")
    if not np.isfinite(counts).all() or (counts < 0).any():
        raise ValueError("wins must be finite and not below 0")
    if np.diag(counts).any():
        raise ValueError("wins must be 0 on the diagonal: an item is not compared with itself")
    return counts


def _connected(counts: Array) -> bool:
    """Whether a chain of wins leads from every item to every other: Ford's condition for a maximum."""
    reach = (counts > 0) | np.eye(len(counts), dtype=bool)
    for _ in range(len(counts).bit_length()):
        reach = reach @ reach
    return bool(reach.all())


def _maximise(counts: Array) -> Array:
    """The maximum-likelihood strengths, by Newton's method; a step is halved until the likelihood rises."""
    strengths = np.zeros(len(counts))
    likelihood = _likelihood(counts, strengths)
    for _ in range(STEPS):
        chance = chances(strengths)
        slope = (counts * chance.T - counts.T * chance).sum(axis=1)  # wins less expected wins
        # Adding 1 makes the singular matrix regular; slopes sum to 0, so the step does, too.
        step = np.linalg.solve(_information(counts, strengths) + 1.0, slope)
        while np.abs(step).max() > 1e-12:
            candidate = _likelihood(counts, strengths + step)
            if candidate >= likelihood:
                break
            step /= 2
        else:
            break
        strengths, likelihood = strengths + step, candidate
    return strengths - strengths.mean()


def _likelihood(counts: Array, strengths: Array) -> float:
    """log L = Σᵢⱼ wᵢⱼ log σ(sᵢ − sⱼ)."""
    return -float((counts * np.logaddexp(0.0, strengths[None, :] - strengths[:, None])).sum())


def _information(counts: Array, strengths: Array) -> Array:
    """Minus the second derivatives of the log-likelihood, `[K, K]`: games · p · (1 − p), as a graph's Laplacian."""
    chance = chances(strengths)
    weight = (counts + counts.T) * chance * chance.T
    return np.diag(weight.sum(axis=1)) - weight
