"""The clipped loss of single tokens, and the penalty for leaving a reference."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Normalize = Literal["token", "sequence", "constant"]


class TokenLoss(NamedTuple):
    """The loss of tokens, and what it is made of."""

    loss: Tensor  # [G, K, L]; 0 where there is no token
    clipped: Tensor  # [G, K, L] bool: the ratio had no gradient
    divergence: Tensor  # [G, K, L]: estimated KL to the reference, detached; 0 without one


def token_loss(
    log_probs: Tensor,  # [G, K, L]
    old: Tensor,  # [G, K, L]: when the tokens were sampled
    advantages: Tensor,  # [G, K]
    clip: float,
    reference: Tensor | None = None,  # [G, K, L]: by the reference model
    kl: float = 0.0,
) -> TokenLoss:
    """−min(ρ A, clip(ρ, 1 − ε, 1 + ε) A) + kl · (r − 1 − log r), r = p_ref / p (Shao et al. 2024, eq. 3 and 4)."""
    ratio = (log_probs - old).exp()
    advantage = advantages[..., None]
    plain, bounded = ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage
    loss = -torch.minimum(plain, bounded)
    divergence = torch.zeros_like(loss)
    if reference is not None:
        difference = reference - log_probs
        divergence = difference.exp() - 1 - difference
        loss = loss + kl * divergence
    return TokenLoss(loss, bounded < plain, divergence.detach())


def token_weights(valid: Tensor, normalize: Normalize) -> Tensor:
    """Weights `[G, K, L]` that make a sum over tokens a mean over tokens, over answers, or by a constant length."""
    weights = valid.float()
    match normalize:
        case "token":
            return weights / weights.sum().clamp(min=1)
        case "sequence":
            lengths = weights.sum(dim=-1, keepdim=True).clamp(min=1)
            return weights / lengths / (lengths.numel())
        case "constant":
            return weights / weights.numel()
