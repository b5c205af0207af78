"""Chooses the best policies of a run: by highest return, or the latest where returns have a constant sum.

In a game whose learning groups play for a constant sum, what one wins another loses, and the mean return is the same
for every policy. There the last evaluated policies are the best. Policies of step 0 are replaced by the first that
have learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from coterie.core.types import CoterieError, State
from coterie.training.evaluate import Result

Rule = Literal["return", "last"]
TOLERANCE = 1e-6  # of an episode's sum of returns, relative to the largest return


class Best:
    """The best policies so far: their step and score, and what decides."""

    def __init__(self, setting: Rule, groups: Sequence[str]) -> None:
        self.setting, self.groups = setting, groups  # the groups whose returns count
        self.step, self.score = -1, -np.inf
        self.constants: list[float | None] | None = None  # of `sums` in every episode so far; None: it has varied

    def consider(self, result: Result, step: int) -> bool:
        """Whether the policies of an evaluation are the best so far."""
        score = result.score(self.groups)
        if not np.isfinite(score):
            raise CoterieError(f"the mean return of an evaluation is {score}; the world's rewards must be finite")
        found = constants(result, self.groups)
        before = found if self.constants is None else self.constants
        self.constants = [a if _equal(a, b, result) else None for a, b in zip(before, found, strict=True)]
        if self.step <= 0 or score > self.score or self.rule == "last":
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
        return "last" if self.constant_sum else self.setting

    @property
    def reason(self) -> str:
        """The rule in words."""
        if self.setting == "last":
            return "the last policies (train.best=last)"
        if self.constant_sum:
            return "the last policies, since their returns had the same sum in every episode"
        return "the highest mean return on validation episodes"

    def state(self) -> State:
        """Entries of a checkpoint."""
        return {"best_step": self.step, "best_score": self.score, "best_constants": self.constants}

    def load(self, state: State) -> None:
        """Read them; checkpoints of earlier versions have no constants."""
        self.step, self.score = state["best_step"], state["best_score"]
        self.constants = state.get("best_constants", [None, None])


def constants(result: Result, groups: Sequence[str]) -> list[float | None]:
    """The sum of all agents' returns, and the sum of the groups' means, where it is the same in every episode."""
    sums = (
        np.sum([result.returns[group].sum(axis=1) for group in groups], axis=0),
        np.sum([result.returns[group].mean(axis=1) for group in groups], axis=0),
    )
    return [float(each[0]) if np.ptp(each) <= _tolerance(result) else None for each in sums]


def _equal(one: float | None, other: float | None, result: Result) -> bool:
    return one is not None and other is not None and abs(one - other) <= _tolerance(result)


def _tolerance(result: Result) -> float:
    return TOLERANCE * max(1.0, *(float(np.abs(returns).max()) for returns in result.returns.values()))
