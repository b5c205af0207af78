"""Distributions of what may come of a decision, as a critic tells them: Q outcomes and how likely each is.

That is a quantile function of Q steps whose heights and widths are both learned. `outcome_kernels.py` is its compiled
twin; what a distribution is worth to somebody is in `judging.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.judging import Judge, judge_rows


class Outcomes(NamedTuple):
    """Distributions, one for each decision."""

    outcome: Tensor  # [B, A, Q]
    chance: Tensor  # [B, A, Q]

    def mean(self) -> Tensor:
        return (self.outcome * self.chance).sum(dim=-1)

    def after(self, reward: Tensor, discount: Tensor) -> Outcomes:
        """What comes of a reward `[B, A, 1]` with this to follow; without a discount the reward is certain."""
        sure = torch.zeros_like(self.chance)
        sure[..., 0] = 1
        follows = discount > 0
        later = torch.where(follows, discount * self.outcome, 0)
        return Outcomes(reward + later, torch.where(follows, self.chance, sure))


def tell(out: Tensor) -> Outcomes:
    """A critic's outputs `[B, A, 1 or 2Q]` as distributions: one certain outcome, or Q logits and Q outcomes."""
    if out.shape[-1] == 1:
        return Outcomes(out, torch.ones_like(out))
    logits, outcome = out.chunk(2, dim=-1)
    return Outcomes(outcome, logits.softmax(dim=-1))


def lowest(told: Sequence[Outcomes]) -> Outcomes:
    """Of several opinions the one that expects least (Fujimoto et al. 2018, eq. 10)."""
    least = torch.stack([one.mean() for one in told]).argmin(dim=0, keepdim=True).unsqueeze(-1)
    return Outcomes(*(torch.stack(parts).take_along_dim(least, 0)[0] for parts in zip(*told)))


def miss(told: Outcomes, aim: Outcomes) -> Tensor:
    """How far told distributions are from those aimed at, `[B, A]`: half the square of a mean, or by quantiles.

    The latter is twice the loss of quantile regression (Dabney et al. 2018, eq. 8), integrated over all levels instead
    of summed over fixed ones: E|X − Y| − ½ E|X − X'| for X as told and Y as aimed at, up to what X has no part in.
    So the levels between which a quantile function is flat are learned, too, as in Yang et al. 2019.
    """
    if told.outcome.shape[-1] == 1:
        return (told.outcome - aim.outcome)[..., 0] ** 2 / 2
    return apart(told, aim) - apart(told, told) / 2


def apart(one: Outcomes, other: Outcomes) -> Tensor:
    """E|X − Y| of independent outcomes `[B, A, Q]` each, to `[B, A]`."""
    gaps = (one.outcome.unsqueeze(-1) - other.outcome.unsqueeze(-2)).abs()
    return (one.chance.unsqueeze(-1) * other.chance.unsqueeze(-2) * gaps).sum(dim=(-1, -2))


def worth(judge: Judge, told: Outcomes) -> Tensor:
    """What distributions are worth, `[B, A]`, with the gradient of `judging.py`."""
    flat = [part.detach().flatten(0, 1).numpy() for part in (told.chance, told.outcome)]
    value, by_chance, by_outcome = (
        torch.from_numpy(found.astype(np.float32)).view(told.outcome.shape[:2] + found.shape[1:])
        for found in judge_rows(judge, *flat)
    )
    line = (by_chance * told.chance + by_outcome * told.outcome).sum(dim=-1)
    return value + line - line.detach()
