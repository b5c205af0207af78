"""UpdateWorkers: improve one set of weights by the clipped loss of its tokens, with an optimiser and a reference of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.algorithms.at_grpo.groups import Answers
from coterie.core.types import Array, State
from coterie.lm.learn.sampling import PAD
from coterie.lm.learn.updates import FittingParts, Optimizer, Weights

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


class UpdateSpec(NamedTuple):
    """Hyperparameters of one iteration's updates."""

    learning_rate: float
    clip: float
    kl: float
    entropy: float
    normalize: Normalize
    minibatch: int  # prompts of one optimiser step
    microbatch: int  # prompts of one forward and backward pass
    epochs: int
    max_grad_norm: float
    temperature: float


def microbatches(answers: Answers, size: int) -> Iterator[Array]:
    """Rows of about one length together, `size` at a time, so that little is padded."""
    rows = np.arange(len(answers.agents))
    if len(rows) > size:
        rows = np.argsort(
            (answers.prompts != PAD).sum(axis=1) + (answers.tokens != PAD).sum(axis=(1, 2)), kind="stable"
        )
    for first in range(0, len(rows), size):
        yield rows[first : first + size]


def minibatches(rows: Array, size: int) -> list[Array]:
    """Rows in parts of nearly equal length, as close to `size` as they can be.

    Adam's step does not shrink with its gradient: a remainder of a few prompts would move the weights as far as a full
    minibatch, mostly by chance. Where all rows are fewer than `size`, the learning rate shrinks with them (`_step`).
    """
    return np.array_split(rows, max(1, round(len(rows) / size)))


class UpdateWorker:
    """Improves one set of weights."""

    def __init__(self, weights: Weights, weight_decay: float) -> None:
        self.weights = weights
        self.parameters = weights.parameters()
        self.optimizer = Optimizer(self.parameters, weight_decay)
        self.reference: list[Tensor] | None = None  # the parameters that the KL is measured from
        self.parts = FittingParts(weights, self.optimizer)

    def keep_reference(self) -> None:
        """Take the present parameters as the reference."""
        self.reference = [parameter.detach().clone() for parameter in self.parameters]

    def update(self, answers: Answers, spec: UpdateSpec, random: np.random.Generator) -> dict[str, list[float]]:
        """Go over the answers; returns the metrics of every optimiser step."""
        steps, tokens = [], []
        for _ in range(spec.epochs):
            for rows in minibatches(random.permutation(len(answers.agents)), spec.minibatch):
                part = answers.take(rows)
                steps.append(self._step(part, spec))
                tokens.append(max(1, int((part.tokens != PAD).sum())))
        # Read at the end: until then a GPU works ahead.
        loss, clipped, divergence, entropy, norm = torch.stack(steps).T.tolist()
        mean = {"clip_fraction": clipped, "kl_reference": divergence, "token_entropy": entropy}
        return {
            "loss": loss,
            **{name: [a / b for a, b in zip(sums, tokens, strict=True)] for name, sums in mean.items()},
            "grad_norm": norm,
        }

    def _step(self, answers: Answers, spec: UpdateSpec) -> Tensor:
        """One optimiser step; where memory runs out, with smaller micro-batches. Returns sums, and the norm."""
        sums = self.parts.run(lambda size: self._accumulate(answers, spec, size), spec.microbatch)
        full = min(1.0, len(answers.agents) / spec.minibatch)  # a prompt in a smaller minibatch weighs no more
        norm = self.optimizer.step(spec.learning_rate * full, spec.max_grad_norm)
        return torch.cat([sums, norm.reshape(1)])

    def _accumulate(self, answers: Answers, spec: UpdateSpec, size: int) -> Tensor:
        """Gradients of the loss, micro-batch by micro-batch; returns sums of loss, clipped tokens, KL and entropy."""
        device = self.parameters[0].device
        weights = token_weights(torch.from_numpy(answers.tokens != PAD).to(device), spec.normalize)
        sums = torch.zeros(4, device=device)
        for now in microbatches(answers, size):
            part = answers.take(now)
            weight = weights[torch.from_numpy(now).to(device)]
            prompts = [row[row != PAD] for row in part.prompts]
            # The reference takes the parameters' place for a moment, so it comes before the pass with gradients.
            reference = self._reference_log_probs(prompts, part.tokens, spec) if spec.kl else None
            graded = self.weights.grade(prompts, part.tokens, spec.temperature)
            old, advantage = (torch.from_numpy(array).to(device) for array in (part.log_probs, part.advantages))
            losses = token_loss(graded.log_probs, old, advantage, spec.clip, reference, spec.kl)
            loss = ((losses.loss - spec.entropy * graded.entropy) * weight).sum()
            loss.backward()
            share = graded.valid.float()
            parts = (loss.detach(), (losses.clipped * share).sum(), (losses.divergence * share).sum())
            sums += torch.stack([*parts, (graded.entropy.detach() * share).sum()])
        return sums

    @torch.no_grad()
    def _reference_log_probs(self, prompts: Sequence[Array], tokens: Array, spec: UpdateSpec) -> Tensor:
        """Log-probabilities by the reference parameters, which take the place of the present ones for a moment."""
        assert self.reference is not None
        present = [parameter.detach().clone() for parameter in self.parameters]
        self._set(self.reference)
        try:
            return self.weights.grade(prompts, tokens, spec.temperature).log_probs
        finally:
            self._set(present)

    @torch.no_grad()
    def _set(self, values: Sequence[Tensor]) -> None:
        for parameter, value in zip(self.parameters, values, strict=True):
            parameter.copy_(value)

    def state(self) -> State:
        """Moments of the optimiser, and the reference."""
        reference = None if self.reference is None else [value.cpu().numpy().copy() for value in self.reference]
        return {"moments": self.optimizer.state(), "reference": reference}

    def load(self, state: State) -> None:
        """Return to a saved state."""
        self.optimizer.load(state["moments"])
        self.reference = None
        if state["reference"] is not None:
            pairs = zip(self.parameters, state["reference"], strict=True)
            self.reference = [torch.from_numpy(array.copy()).to(parameter) for parameter, array in pairs]
