"""Advice to decisions: when it is asked for, how it is followed and how it is learned from.

A note to one decision is `[strength, p_1 … p_K]`: how much the advice counts at this moment of the run, and the
advised probability of each of K actions (0 for illegal ones). NaN throughout: nothing was advised. The learner reads
the very numbers that the policy acted by, so that probability ratios begin at 1. Who advises is in `advisor.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from coterie.core.types import Array, View
from coterie.core.validation import at_least, positive, within
from coterie.nn.distributions import IMPOSSIBLE

if TYPE_CHECKING:
    from coterie.policies.network import NetworkPolicy

LEAST = 1e-6  # the least probability whose logarithm is taken
Way = Literal["mixture", "kl", "prior", "hint"]


@dataclass(frozen=True)
class AskSettings:
    """When advice is asked for: where all of these hold."""

    every: int = 1  # at every so many ticks
    entropy: float | None = None  # the policy's entropy is above this, in nats; None: whatever it is
    disagreement: bool = False  # the policy's likeliest action is not the one known to be advised, or none is known
    share: float = 1.0  # of the decisions that are left, drawn at random
    frames: int | None = None  # the run is in its first so many environment steps; None: always

    def __post_init__(self) -> None:
        at_least("every", self.every, 1)
        positive("share", self.share)
        within("share", self.share, 0, 1)
        if self.entropy is not None:
            at_least("entropy", self.entropy, 0)
        if self.frames is not None:
            at_least("frames", self.frames, 1)

    def due(self, view: View) -> bool:
        """Whether anybody is to be advised at this tick; the run's first steps are over in no evaluation."""
        past = self.frames is not None and view.progress is not None and view.frames >= self.frames
        return view.step_count % self.every == 0 and not past


@dataclass(frozen=True)
class UseSettings:
    """How advice is followed."""

    way: Way = "kl"  # mixture of actions, kl: a loss, prior: added to logits, hint: shown to the actor
    strength: float = 1.0  # mixture: share of advised actions; kl: weight of the loss; prior: factor; hint: none
    final: float = 0.0  # the strength in the end
    until: float = 1.0  # share of the run in which the strength goes there, evenly
    evaluate: bool | None = None  # advise in evaluations, too, with the first strength; None: hints alone

    def __post_init__(self) -> None:
        positive("until", self.until)
        within("until", self.until, 0, 1)
        if self.way != "hint" and not self.strength and not self.final:
            raise ValueError("strength and final are both 0: the advice would be asked for and never followed")
        for name in ("strength", "final"):
            value = getattr(self, name)
            at_least(name, value, 0)
            if self.way == "mixture":
                within(name, value, 0, 1)

    @property
    def always(self) -> bool:
        """Whether evaluations are advised."""
        return self.way == "hint" if self.evaluate is None else self.evaluate

    def at(self, progress: float | None) -> float:
        """The strength at this share of the run; a hint always counts."""
        if self.way == "hint":
            return 1.0
        along = min((progress or 0.0) / self.until, 1.0)
        return self.strength + (self.final - self.strength) * along


@dataclass(frozen=True)
class Advice:
    """What a group's policy and learner know of the advice that they get."""

    use: UseSettings
    actions: int  # K

    @property
    def shown(self) -> int:
        """Numbers of a note that the actor sees."""
        return 1 + self.actions if self.use.way == "hint" else 0

    @property
    def bends(self) -> bool:
        """Whether the drawn actions are others than the policy's own."""
        return self.use.way in ("mixture", "prior")

    def taught(self, notes: Array | None) -> bool:
        """Whether these notes change what is learned: a prior bends the logits, a loss is added."""
        return notes is not None and self.use.way in ("kl", "prior") and bool((notes[..., 0] > 0).any())

    def followed(self, out: Array, mask: Array | None, notes: Array) -> Array:
        """Outputs `[…, K]` as logits of what is drawn from: the policy's own, mixed with advice or bent by it."""
        if self.use.way == "prior":
            return out + prior(notes)
        if self.use.way != "mixture":
            return out
        share, advised = np.nan_to_num(notes[..., :1], copy=True), np.nan_to_num(notes[..., 1:], copy=True)
        mixed = (1 - share) * np.exp(normalised(out, mask)) + share * advised
        with np.errstate(divide="ignore"):
            return np.maximum(np.log(mixed), IMPOSSIBLE).astype(np.float32)

    def bent(self, out: torch.Tensor, notes: torch.Tensor) -> torch.Tensor:
        """The same outputs for the learner, whose ratios are of the policy that acted: with the prior, if there is one.

        A mixture is not among them: what it drew is weighed as what it is, another policy's actions.
        """
        if self.use.way != "prior":
            return out
        return out + torch.as_tensor(prior(notes.cpu().numpy()), device=out.device)

    def loss(self, out: torch.Tensor, mask: torch.Tensor | None, notes: torch.Tensor) -> torch.Tensor:
        """strength · KL(advice ‖ policy) of each row `[…]`; 0 where nothing was advised, or is learned from."""
        if self.use.way != "kl":
            return torch.zeros(())
        if mask is not None:
            out = torch.where(mask, out, IMPOSSIBLE)
        known = torch.nan_to_num(notes)
        return known[..., 0] * (torch.xlogy(known[..., 1:], known[..., 1:]) - known[..., 1:] * out.log_softmax(-1)).sum(
            -1
        )


def prior(notes: Array) -> Array:
    """What is added to logits: strength · log advice, 0 where nothing was advised; masks bar what is illegal."""
    advised = notes[..., 1:]
    bent = notes[..., :1] * np.log(np.maximum(advised, LEAST))  # what is advised not at all is not preferred either
    return np.where(np.isnan(advised), 0, bent).astype(np.float32)


def normalised(out: Array, mask: Array | None) -> Array:
    """Log-probabilities `[…, K]` of outputs as logits, in double precision."""
    out = out.astype(np.float64) if mask is None else np.where(mask, out, IMPOSSIBLE).astype(np.float64)
    out = out - out.max(axis=-1, keepdims=True)
    return out - np.log(np.exp(out).sum(axis=-1, keepdims=True))


def own_log_probs(policy: NetworkPolicy, view: View) -> Array:
    """What a policy would do without advice: log-probabilities `[N, A, K]` of its actions."""
    return normalised(policy.forward(policy.packed_view(view), view)[0], view.mask)
