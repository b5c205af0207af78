"""Distributions of what may come of a decision, as a critic tells them: Q outcomes and how likely each is.

That is a quantile function of Q steps whose heights and widths are both learned, or a hurdle: nothing, or with some
chance something, which is one amount or a quantile function again. `outcome_kernels.py` is its compiled twin; what a
distribution is worth to somebody is in `judging.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from coterie.algorithms.maddpg.outcome_kernels import FLOOR, TINY, hurdled
from coterie.core.group import RiskParameters
from coterie.preferences.risk_kernels import make_slopes, risk_value


class Outcomes(NamedTuple):
    """Distributions, one for each decision."""

    outcome: Tensor  # [B, A, Q]
    chance: Tensor  # [B, A, Q]

    def mean(self) -> Tensor:
        return (self.outcome * self.chance).sum(dim=-1)

    def deviation(self) -> Tensor:
        apart = self.outcome - self.mean().unsqueeze(-1)
        return (self.chance * apart**2).sum(dim=-1).sqrt()

    def after(self, reward: Tensor, discount: Tensor) -> Outcomes:
        """What comes of a reward `[B, A, 1]` with this to follow; without a discount the reward is certain."""
        sure = torch.zeros_like(self.chance)
        sure[..., 0] = 1
        follows = discount > 0
        later = torch.where(follows, discount * self.outcome, 0)
        return Outcomes(reward + later, torch.where(follows, self.chance, sure))


def tell(out: Tensor) -> Outcomes:
    """A critic's outputs `[B, A, …]` as distributions.

    One number is a certain outcome; two are the logit of something rather than nothing, and how much; 2Q are logits
    and outcomes; 1 + 2Q are the logit of something, and logits and outcomes of what it is.
    """
    if out.shape[-1] == 1:
        return Outcomes(out, torch.ones_like(out))
    if hurdled(out.shape[-1]):
        logit, amounts = out[..., :1], tell(out[..., 1:])
        outcome = torch.cat([torch.zeros_like(logit), amounts.outcome], dim=-1)
        return Outcomes(outcome, torch.cat([torch.sigmoid(-logit), torch.sigmoid(logit) * amounts.chance], dim=-1))
    logits, outcome = out.chunk(2, dim=-1)
    return Outcomes(outcome, logits.softmax(dim=-1))


def lowest(told: Sequence[Outcomes]) -> Outcomes:
    """Of several opinions the one that expects least (Fujimoto et al. 2018, eq. 10)."""
    least = torch.stack([one.mean() for one in told]).argmin(dim=0, keepdim=True).unsqueeze(-1)
    return Outcomes(*(torch.stack(parts).take_along_dim(least, 0)[0] for parts in zip(*told)))


def miss(out: Tensor, aim: Outcomes, amount: Tensor) -> Tensor:
    """How far a critic's outputs `[B, A, …]` are from distributions aimed at, `[B, A]`.

    A mean misses by half the square. A hurdle misses by the cross-entropy of something, and of the amount, where there
    is one, by half the square in units of the mean square `amount`: likelihoods, so that a chance of one in a thousand
    is told as well, in proportion, as one in two (a hurdle model: Cragg 1971); several amounts miss as quantiles do, in
    units of the root of `amount`. Quantiles miss by twice the loss of
    quantile regression (Dabney et al. 2018, eq. 8), integrated over all levels instead of summed over fixed ones:
    E|X − Y| − ½ E|X − X'| for X as told and Y as aimed at, up to what X has no part in. So the levels between which a
    quantile function is flat are learned, too, as in Yang et al. 2019.
    """
    if out.shape[-1] == 1:
        return (out - aim.outcome)[..., 0] ** 2 / 2
    if hurdled(out.shape[-1]):
        there = aim.chance * (aim.outcome != 0)
        something = there.sum(dim=-1)
        chance = binary_cross_entropy_with_logits(out[..., 0], something, reduction="none")
        if out.shape[-1] == 2:
            return chance + (there * (out[..., 1:] - aim.outcome) ** 2).sum(dim=-1) / (2 * amount)
        given = Outcomes(aim.outcome, there / something.clamp(min=float(TINY)).unsqueeze(-1))
        return chance + something / amount.sqrt() * miss(out[..., 1:], given, amount)
    told = tell(out)
    return apart(told, aim) - apart(told, told) / 2


def unit(aim: Outcomes, share: Tensor, over: tuple[int, ...]) -> Tensor:
    """The mean square of what is aimed at where that is something, by weights `share [B, A]` over these axes."""
    there = aim.chance * (aim.outcome != 0)
    square, something = (
        (share * part).sum(dim=over, keepdim=True) for part in ((there * aim.outcome**2).sum(-1), there.sum(-1))
    )
    return torch.where(something > 0, (square / something).clamp(min=float(TINY)), 1.0)


def apart(one: Outcomes, other: Outcomes) -> Tensor:
    """E|X − Y| of independent outcomes `[B, A, Q]` each, to `[B, A]`."""
    gaps = (one.outcome.unsqueeze(-1) - other.outcome.unsqueeze(-2)).abs()
    return (one.chance.unsqueeze(-1) * other.chance.unsqueeze(-2) * gaps).sum(dim=(-1, -2))


def relative(told: Outcomes, share: Tensor, over: tuple[int, ...]) -> Tensor:
    """How hard decisions `[B, A]` pull if what counts is their change in deviations of their own outcome.

    Decisions with little at stake then shape the policy as well as those with much. Weights are positive and do not
    depend on what is done by gradient, so what is best to do in each situation stays best.
    """
    spread = told.deviation().detach()
    usual = (share * spread).sum(dim=over, keepdim=True)
    return (usual + float(TINY)) / (spread + float(FLOOR) * usual + float(TINY))


def worth(judge: RiskParameters, told: Outcomes) -> Tensor:
    """What distributions are worth, `[B, A]`, with the gradient of `judging.py`."""
    flat = [part.detach().flatten(0, 1).numpy() for part in (told.chance, told.outcome)]
    slopes, found_rows = make_slopes(flat[0].shape[1]), []
    for row in zip(*flat, strict=True):
        found_rows.append((risk_value(judge, *row, slopes), slopes.probability.copy(), slopes.outcome.copy()))
    value, by_chance, by_outcome = (
        torch.from_numpy(found.astype(np.float32)).view(told.outcome.shape[:2] + found.shape[1:])
        for found in (np.array(part) for part in zip(*found_rows, strict=True))
    )
    line = (by_chance * told.chance + by_outcome * told.outcome).sum(dim=-1)
    return value + line - line.detach()
