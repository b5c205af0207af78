"""One gradient step of imitation: the likelihood of a demonstrator's actions, for every kind of head.

Discrete actions: cross-entropy over the legal ones. Continuous ones: negative log-likelihood of the policy's
distribution. Action values (`q_network`) are taken as logits, so that the demonstrated action gets the highest value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.algorithms.imitation.labels import Labels
from coterie.core import lookup
from coterie.core.settings import Settings
from coterie.core.types import Array, Box, Metrics
from coterie.core.validation import at_least, positive
from coterie.nn.distributions import Choices, Head, evaluate_actions
from coterie.nn.packing import PixelRows, Rows, bounds, map_rows
from coterie.policies.ensemble import EnsemblePolicy
from coterie.policies.network import NetworkPolicy
from coterie.policies.q_network import QNetworkPolicy

CHUNK = 4096  # rows evaluated at once
LEAST_VARIANCE = 1e-6  # numbers that vary less in the demonstrations are not scaled by their deviation

Clonable = NetworkPolicy | QNetworkPolicy


@dataclass(frozen=True)
class CloningSettings(Settings):
    """Settings of learning from labels."""

    learning_rate: float = 1e-3  # of Adam
    batch_size: int = 64  # decisions per gradient step
    weight_decay: float = 1e-4  # share of a weight that is lost per unit of learning rate
    max_grad_norm: float = 1.0  # gradients are scaled to at most this norm
    noise: float = 0.0  # deviation of noise on observations, in units of the network's inputs
    symmetries: bool = False  # board games: see each position through a random symmetry
    augmentations: tuple[str, ...] = ()  # package.module:function(Decisions, world, random) -> Decisions, in order
    extra_loss: str | None = None  # package.module:function(ExtraLossInput) -> [S, M]: added to the loss
    extra_weight: float = 1.0  # of the extra loss

    def __post_init__(self) -> None:
        positive("learning_rate", self.learning_rate)
        at_least("batch_size", self.batch_size, 1)
        at_least("weight_decay", self.weight_decay, 0)
        positive("max_grad_norm", self.max_grad_norm)
        at_least("noise", self.noise, 0)
        named = [("extra_loss", self.extra_loss), *(("augmentations", name) for name in self.augmentations)]
        for setting, function in named:
            if function is not None:
                try:
                    lookup.look_up({}, function)
                except LookupError as error:
                    raise ValueError(f"{setting}: {error}") from None


class ExtraLossInput(NamedTuple):
    """Arguments of an extra loss; tensors `[S, M, …]` over parameter sets and decisions."""

    inputs: Any  # the network's inputs
    outputs: Tensor  # the network's outputs: logits, parameters of a distribution, or action values
    action: Tensor  # the demonstrated actions
    log_prob: Tensor  # of the demonstrated actions
    entropy: Tensor


def members(policy: NetworkPolicy | QNetworkPolicy | EnsemblePolicy) -> list[Clonable]:
    """The networks that imitate: one, or those of an ensemble."""
    return list(policy.members) if isinstance(policy, EnsemblePolicy) else [policy]


class Cloner:
    """Trains one network on labels."""

    def __init__(self, settings: CloningSettings, policy: Clonable) -> None:
        if policy.memory_size:
            raise ValueError(
                f"imitation learns single decisions: set policy.memory=0, got policy.memory={policy.memory_size}"
            )
        if policy.reader is not None and policy.net.reader is not None:
            raise ValueError("imitation keeps vectors, not texts: set policy.text.trainable=false")
        self.settings, self.policy = settings, policy
        self.measured = False  # the policy's statistics of observations are those of labels
        if isinstance(policy, QNetworkPolicy):
            policy.epsilon = 0.0  # a clone plays what it was shown; DQN sets its own
        space = policy.group_spec.spaces.action
        self.head: Head = policy.head if isinstance(policy, NetworkPolicy) else Choices((policy.actions,), single=True)
        self.half_range = bounds(space)[1] if isinstance(space, Box) else None
        self.extra: Callable[[ExtraLossInput], Tensor] | None = None
        if settings.extra_loss is not None:
            self.extra = lookup.look_up({}, settings.extra_loss)

    def measure_observations(self, labels: list[Labels], again: bool = False) -> None:
        """Take the statistics of observations from the labels, unless the policy already has some of another source.

        With `again`, statistics of earlier labels are replaced: what is rare in a few labels would be scaled up.
        """
        normalizer = self.policy.normalizer
        if not normalizer.enabled or (normalizer.count.any() and not (again and self.measured)):
            return
        self.measured = True
        normalizer.measure_anew([mine.observation for mine in labels], LEAST_VARIANCE)

    def step(self, batch: list[Labels], rate: float, random: np.random.Generator) -> Array:
        """One gradient step of every parameter set on its own rows `[M]`; returns (loss, accuracy or error)."""
        s, net = self.settings, self.policy.trainable
        joined = Labels(*(np.stack(columns) for columns in zip(*batch, strict=True)))
        x = self.inputs(joined)
        if s.noise:
            x = map_rows(lambda part: _noisy(part, s.noise, random), x)
        out = net.forward(x)
        loss, slopes = self.loss(x, out, joined)
        net.backward(slopes)
        net.step(rate, s.max_grad_norm)
        if s.weight_decay:
            self.policy.flat.value.mul_(1 - rate * s.weight_decay)
        return np.array([float(loss.mean()), self.score(out, joined)])

    def evaluate(self, labels: Labels, parameter_set: int) -> Array:
        """Mean (loss, accuracy or error) of one parameter set on labels."""
        sums, sets = np.zeros(2), self.policy.group_spec.parameter_sets
        for first in range(0, labels.size, CHUNK):
            part = labels.rows(np.arange(first, min(first + CHUNK, labels.size)))
            repeated = Labels(*(np.stack([column] * sets) for column in part))
            x = self.inputs(repeated)
            out = self.policy.trainable.predict(x)[0]
            loss = self.loss(x, out, repeated)[0][parameter_set].mean()
            sums += part.size * np.array([float(loss), self.score(out, repeated, parameter_set)])
        return sums / max(labels.size, 1)

    def loss(self, x: Rows, out: Array, labels: Labels) -> tuple[Array, Array]:
        """The loss of each label `[S, M]`, and the slopes of each parameter set's mean by outputs `[S, M, …]`."""
        policy, head = self.policy, self.head
        logits = policy.action_values(out) if isinstance(policy, QNetworkPolicy) else out
        flat, rows = np.ascontiguousarray(logits.reshape(-1, logits.shape[-1])), np.arange(labels.agent.size)
        mask = labels.mask if labels.mask.shape[-1] else None
        log_prob, _ = head.forward(flat, head.taken(labels.action, mask), rows)
        loss, share = -log_prob.reshape(labels.agent.shape), np.float32(1 / labels.agent.shape[1])
        slopes = head.backward(np.full(len(rows), -share), np.zeros(len(rows), np.float32)).reshape(logits.shape)
        if self.extra is not None:
            slopes = slopes.copy()  # the distribution is asked again
            more, more_slopes = self.extra_loss(x, logits, labels, mask)
            loss, slopes = loss + more, slopes + share * more_slopes
        return loss, policy.output_slopes(slopes) if isinstance(policy, QNetworkPolicy) else slopes

    def extra_loss(self, x: Rows, out: Array, labels: Labels, mask: Array | None) -> tuple[Array, Array]:
        """The user's own loss of each label `[S, M]`, and its slopes by outputs."""
        assert self.extra is not None
        device = self.policy.device
        leaf = torch.tensor(out, device=device, requires_grad=True)
        log_prob, entropy = evaluate_actions(self.head, leaf, labels.action, mask)
        inputs = map_rows(lambda part: torch.as_tensor(part, device=device), x)
        given = ExtraLossInput(inputs, leaf, torch.as_tensor(labels.action, device=device), log_prob, entropy)
        extra = self.settings.extra_weight * self.extra(given)
        if extra.requires_grad:
            extra.sum().backward()
        slopes = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        return extra.detach().cpu().numpy(), slopes.cpu().numpy()

    def score(self, out: Array, labels: Labels, parameter_set: int | None = None) -> float:
        """The share of demonstrated actions among greedy ones; of continuous ones their mean error in half ranges."""
        mask = labels.mask if labels.mask.shape[-1] else None
        out = self.policy.action_values(out) if isinstance(self.policy, QNetworkPolicy) else out
        greedy = self.head.act(np.ascontiguousarray(out), mask, np.random.default_rng(0), greedy=True)[0]
        chosen = slice(None) if parameter_set is None else parameter_set
        if self.half_range is not None:
            error = np.abs(greedy - labels.action).reshape(*out.shape[:2], -1) / self.half_range
            return float(error[chosen].mean())
        same = (greedy == labels.action).reshape(*out.shape[:2], -1).all(axis=-1)
        return float(same[chosen].mean())

    def inputs(self, labels: Labels) -> Rows:
        """Network inputs for stacked labels `[S, M, …]`."""
        policy = self.policy
        identity = np.eye(len(policy.group_spec.agents), policy.identities, dtype=np.float32)[labels.agent]
        if policy.bytes or policy.numbers:
            rows: Rows = PixelRows(labels.observation, identity)
        else:
            normalized = policy.normalizer(labels.observation).astype(np.float32, copy=False)
            rows = np.concatenate([normalized, identity], axis=-1) if policy.identities else normalized
        return map_rows(np.ascontiguousarray, rows)

    @property
    def score_name(self) -> str:
        return "accuracy" if self.half_range is None else "action_error"


def _noisy(part: Array, deviation: float, random: np.random.Generator) -> Array:
    if part.dtype != np.float32 or not part.shape[-1]:
        return part  # pictures in bytes stay as they are
    return part + random.standard_normal(part.shape, np.float32) * np.float32(deviation)


def draw_rows(count: int, wanted: int, random: np.random.Generator) -> Array:
    """`wanted` of `count` rows: whole passes over all of them in random order, the last one cut short."""
    passes = -(-wanted // count)
    return np.concatenate([random.permutation(count) for _ in range(passes)])[:wanted]


def as_metrics(cloner: Cloner, numbers: Array, prefix: str = "") -> Metrics:
    """Loss and accuracy, or error, by name."""
    return {f"{prefix}loss": float(numbers[0]), f"{prefix}{cloner.score_name}": float(numbers[1])}
