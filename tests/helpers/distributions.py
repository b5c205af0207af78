"""Log-probabilities and entropies in plain PyTorch, by which the compiled ones are judged."""

import math

import numpy as np
import torch

from coterie.nn.distributions import EDGE, Beta, SquashedGaussian
from coterie.nn.log_probs import IMPOSSIBLE, LOG_STD_HIGH, LOG_STD_LOW
from coterie.policies.lora import WordDistribution


def evaluate_actions(head, out, action, mask=None):
    """Log-probability and entropy `[…]` of actions `[…, action]` for outputs `[…, outputs]`, all tensors."""
    if isinstance(head, WordDistribution):
        return _words(head, out, action, mask)
    if isinstance(head, Beta):
        return _beta(head, out, action)
    if isinstance(head, SquashedGaussian):
        return _gaussian(head, out, action)
    out = out if mask is None else torch.where(mask, out, IMPOSSIBLE)
    action = action.unsqueeze(-1) if head.single else action
    parts = [_categorical(logits, action[..., i]) for i, logits in enumerate(out.split(head.sizes, dim=-1))]
    return sum(p[0] for p in parts), sum(p[1] for p in parts)


def _categorical(logits, action):
    log_probs = torch.log_softmax(logits, dim=-1)
    picked = log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)
    return picked, -(log_probs.exp() * log_probs).sum(dim=-1)


def _words(head, out, action, mask):
    flat = torch.from_numpy(head.of_choice.reshape(head.outputs, -1)).double()
    rows = action.reshape(*action.shape[: out.ndim - 1], -1).double()
    number = (rows.unsqueeze(-2) - flat).abs().sum(-1).argmin(-1)
    if mask is None:
        return _categorical(out, number)
    legal = mask[..., torch.from_numpy(head.of_choice)]
    worded = legal.any(dim=-1)
    log_prob, entropy = _categorical(torch.where(legal, out, IMPOSSIBLE), number)
    return torch.where(worded, log_prob, 0.0), torch.where(worded, entropy, 0.0)


def _point(head, action):
    flat = action.reshape(*action.shape[: action.ndim - len(head.shape)], head.size)
    return ((flat - torch.from_numpy(head.low)) / torch.from_numpy(head.range)).clamp(EDGE, 1 - EDGE)


def _beta(head, out, action):
    a, b = (1 + torch.nn.functional.softplus(part) for part in out.chunk(2, dim=-1))
    distribution = torch.distributions.Beta(a, b, validate_args=False)
    log_prob = distribution.log_prob(_point(head, action)).sum(-1) - head.log_range
    return log_prob, distribution.entropy().sum(-1) + head.log_range


def _gaussian(head, out, action):
    mean, log_std = out.chunk(2, dim=-1)
    log_std = log_std.clamp(LOG_STD_LOW, LOG_STD_HIGH)
    nodes = torch.linspace(-5, 5, 65, dtype=out.dtype)
    weights = torch.softmax(-0.5 * nodes**2, dim=0)
    z = mean.unsqueeze(-1) + log_std.exp().unsqueeze(-1) * nodes
    slope = math.log(2) - 2 * (z + torch.nn.functional.softplus(-2 * z))  # log dx/dz
    entropy = log_std + 0.5 * math.log(2 * math.pi * math.e) + slope @ weights
    x = _point(head, action)
    z = torch.atanh(2 * x - 1)
    normal = -0.5 * ((z - mean) / log_std.exp()) ** 2 - log_std - 0.5 * math.log(2 * math.pi)
    # dx/dz = (1 − tanh² z)/2 = 2x(1 − x)
    log_prob = (normal - torch.log(2 * x * (1 - x))).sum(-1) - head.log_range
    return log_prob, entropy.sum(-1) + head.log_range


def compiled_slopes(head, out, action, mask, by_log_prob, by_entropy):
    """What the distribution itself says: (log-probability, entropy, slopes by outputs), arrays."""
    rows = np.arange(len(out))
    log_prob, entropy = (part.copy() for part in head.forward(out, head.taken(action, mask), rows))
    return log_prob, entropy, head.backward(by_log_prob, by_entropy).copy()
