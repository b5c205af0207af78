"""Chooses the best policies of a run: by highest return, or the latest where returns have a constant sum.

In a game whose learning groups play for a constant sum, what one wins another loses, and the mean return is the same
for every policy. Where one group's return falls as the others' rises, the mean return mostly says how weak one side is.
In both the last evaluated policies are the best. Untrained policies of step 0 are replaced by the first that have
learned; those that an earlier run has trained compete with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from coterie.core.types import Array, CoterieError, State
from coterie.training.evaluate import Result

Rule = Literal["return", "last"]
TOLERANCE = 1e-6  # of an episode's sum of returns, relative to the largest return
OPPOSED = -0.5  # correlation of a group's return with the other groups' sum, at or below which they are opponents


class Best:
    """The best policies so far: their step and score, and what decides."""

    def __init__(self, setting: Rule, groups: Sequence[str], begins_trained: bool = False) -> None:
        self.setting, self.groups = setting, groups  # the groups whose returns count
        self.begins_trained = begins_trained  # whether step 0 plays with what an earlier run has learned
        self.step, self.score = -1, -np.inf
        self.constants: list[float | None] | None = None  # of `sums` in every episode so far; None: it has varied
        self.opposed = False  # whether an evaluation has shown opponents
        self.alone = False  # whether a single agent's returns count

    def consider(self, result: Result, step: int) -> bool:
        """Whether the policies of an evaluation are the best so far."""
        score = result.score(self.groups)
        if not np.isfinite(score):
            raise CoterieError(f"the mean return of an evaluation is {score}; the world's rewards must be finite")
        found = constants(result, self.groups)
        before = found if self.constants is None else self.constants
        self.constants = [a if _equal(a, b, result) else None for a, b in zip(before, found, strict=True)]
        self.opposed = self.opposed or opposed(result, self.groups)
        self.alone = sum(result.returns[group].shape[1] for group in self.groups) == 1
        untrained = self.step < 0 or (self.step == 0 and not self.begins_trained)
        if untrained or score > self.score or self.rule == "last":
            self.step, self.score = step, score
            return True
        return False

    @property
    def constant_sum(self) -> bool:
        """Whether the returns of the counted groups had the same sum in every episode so far."""
        return any(constant is not None for constant in self.constants or ())

    @property
    def rule(self) -> Rule:
        """The rule that decides: highest return, or the last evaluation."""
        return "last" if self.constant_sum or self.opposed else self.setting

    @property
    def reason(self) -> str:
        """The rule in words."""
        if self.setting == "last":
            return "the last policies (train.best=last)"
        if self.constant_sum:
            what = "every episode had the same return" if self.alone else "returns always have the same sum"
            return f"the last policies: {what}"
        if self.opposed:
            return "the last policies: one's return falls as the others' rises"
        return "the highest mean return on validation episodes"

    def state(self) -> State:
        """Entries of a checkpoint."""
        return {
            "best_step": self.step,
            "best_score": self.score,
            "best_constants": self.constants,
            "best_opposed": self.opposed,
        }

    def load(self, state: State) -> None:
        """Read them."""
        self.step, self.score = state["best_step"], state["best_score"]
        self.constants = state["best_constants"]
        self.opposed = state["best_opposed"]


def constants(result: Result, groups: Sequence[str]) -> list[float | None]:
    """The sum of all agents' returns, and the sum of the groups' means, where it is the same in every episode."""
    sums = (
        np.sum([result.returns[group].sum(axis=1) for group in groups], axis=0),
        np.sum([result.returns[group].mean(axis=1) for group in groups], axis=0),
    )
    return [float(each[0]) if np.ptp(each) <= _tolerance(result) else None for each in sums]


def opposed(result: Result, groups: Sequence[str]) -> bool:
    """Whether, over the episodes of one evaluation, some group's return falls as the sum of the others' rises.

    The upper end of the 95% interval of their correlation (Fisher 1921) must lie at or below `OPPOSED`, so that few
    episodes show it only if they are nearly opposite.
    """
    means = np.array([result.returns[group].mean(axis=1) for group in groups])  # [G, E]
    return any(_upper_correlation(own, means.sum(axis=0) - own) <= OPPOSED for own in means)


def _upper_correlation(one: Array, other: Array) -> float:
    """The upper end of the 95% interval of a correlation; 1 where it is unknown."""
    if len(one) <= 3 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return 1.0
    found = float(np.clip(np.corrcoef(one, other)[0, 1], -1 + 1e-12, 1 - 1e-12))
    return float(np.tanh(np.arctanh(found) + 1.96 / np.sqrt(len(one) - 3)))


def _equal(one: float | None, other: float | None, result: Result) -> bool:
    return one is not None and other is not None and abs(one - other) <= _tolerance(result)


def _tolerance(result: Result) -> float:
    return TOLERANCE * max(1.0, *(float(np.abs(returns).max()) for returns in result.returns.values()))
