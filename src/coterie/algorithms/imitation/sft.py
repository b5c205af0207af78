"""Supervised fine-tuning: a language model learns to write as demonstrations do, token by token.

Like `bc`, it learns from files and needs no play; a *step* of the run is one demonstrated answer that was read. It is
the warm start of teams that would otherwise never meet a reward.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from coterie.algorithms.divergence import demand_finite
from coterie.algorithms.imitation.demonstrations import Demonstrations
from coterie.algorithms.imitation.early_stopping import EarlyStopping
from coterie.algorithms.imitation.labels import load_demonstrations, split
from coterie.core.group import GroupSpec, Panel, Preference
from coterie.core.search_space import Choice, Real, Space
from coterie.core.types import Array, Experience, Joint, Metrics, State
from coterie.core.validation import at_least, positive, within
from coterie.lm.learn.sampling import PAD
from coterie.lm.learn.updates import FittingParts, Optimizer, Weights
from coterie.policies.causal_lm.policy import CausalLMPolicy

CHUNK = 256  # answers validated at once
VALIDATED = 4096  # answers that are validated at most: more of them would cost more than they tell


@dataclass(frozen=True)
class SFTSettings:
    """Settings of supervised fine-tuning."""

    demonstrations: tuple[str, ...] = ()  # directories of `coterie demonstrate`
    group: str | None = None  # the recorded group; None: the one of the same name, or the only one
    only_successful: bool = True  # leave out episodes that failed
    learning_rate: float = 1e-3  # of Adam, falling to 0 at the run's end
    batch_size: int = 64  # answers per gradient step
    weight_decay: float = 0.0  # of AdamW
    max_grad_norm: float = 1.0  # gradients are scaled to at most this norm
    validation: float = 0.1  # share of the episodes to validate on, rounded down (at most 4,096 answers of them)
    patience: int | None = None  # iterations without a lower validation loss before the run ends; None: never

    SEARCH: ClassVar[Space] = {  # what `coterie tune` varies
        "learning_rate": Real(1e-5, 1e-2, log=True),
        "batch_size": Choice((16, 32, 64, 128)),
    }

    def __post_init__(self) -> None:
        positive("learning_rate", self.learning_rate)
        at_least("batch_size", self.batch_size, 1)
        at_least("weight_decay", self.weight_decay, 0)
        positive("max_grad_norm", self.max_grad_norm)
        within("validation", self.validation, 0, 0.9)
        if self.patience is not None:
            at_least("patience", self.patience, 1)


@dataclass(frozen=True)
class Texts:
    """Demonstrated answers as tokens."""

    prompts: list[list[int]]
    answers: Array  # [R, L] int32, PAD after the end
    sets: Array  # [R] int: the set of weights that learns from each

    def rows_of(self, number: int) -> Array:
        """The rows of one set of weights."""
        return np.flatnonzero(self.sets == number)

    def thinned(self, most: int) -> Texts:
        """At most so many answers, at even distances."""
        total = len(self.sets)
        rows = np.arange(min(most, total)) * total // max(1, min(most, total))
        return Texts([self.prompts[row] for row in rows], self.answers[rows], self.sets[rows])


class SFT:
    """Improves language models by imitation of written answers."""

    teaches = CausalLMPolicy
    scopes = ("step",)
    needs_play = False
    panels = (Panel("imitation loss", "nats per token", ("loss", "validation_loss")),)

    def __init__(
        self, settings: SFTSettings, policy: CausalLMPolicy, group_spec: GroupSpec, preference: Preference
    ) -> None:
        self.settings, self.policy, self.group_spec = settings, policy, group_spec
        s = settings
        found = load_demonstrations(s.demonstrations, group_spec, s.group, s.only_successful, None)
        self.texts, held_out = (tokenize(policy, part, group_spec) for part in split(found, s.validation, group_spec))
        self.held_out = held_out.thinned(VALIDATED)
        self.sets: list[Weights] = [policy.weights(number) for number in range(policy.router.sets)]
        self.optimizers = [Optimizer(weights.parameters(), s.weight_decay) for weights in self.sets]
        self.parts = [FittingParts(*pair) for pair in zip(self.sets, self.optimizers, strict=True)]
        for number in range(policy.router.sets):
            if not len(self.texts.rows_of(number)):
                raise ValueError(f"demonstrations: there are none of the agent '{group_spec.agents[number]}'")
        self.stopping = EarlyStopping(settings.patience)

    def learn(self, own: Experience, joint: Joint, random: np.random.Generator) -> Metrics:
        s = self.settings
        rate = s.learning_rate * max(1 - joint.progress, 0.0)
        losses = []
        for number, (weights, optimizer) in enumerate(zip(self.sets, self.optimizers, strict=True)):
            mine = self.texts.rows_of(number)
            steps = max(1, round(joint.steps * len(mine) / len(self.texts.sets)) // s.batch_size)
            passes = -(-steps * s.batch_size // len(mine))
            order = np.concatenate([random.permutation(mine) for _ in range(passes)])
            for i in range(steps):
                rows = order[i * s.batch_size : (i + 1) * s.batch_size]
                gradients = functools.partial(self._accumulate, weights, rows)
                losses.append(self.parts[number].run(gradients, s.batch_size))  # read at the end: a GPU works ahead
                optimizer.step(rate, s.max_grad_norm)
        metrics = {
            "loss": float(np.mean(torch.stack(losses).tolist())),
            "updates": float(len(losses)),
            "learning_rate": rate,
        }
        metrics |= self._validate()
        demand_finite(self.group_spec.group, metrics, [], [one.weight_norms() for one in self.optimizers])
        return metrics

    def _accumulate(self, weights: Weights, rows: Array, size: int) -> torch.Tensor:
        """Gradients of the mean loss, `size` answers at once; returns the loss."""
        tokens = (self.texts.answers[rows] != PAD).sum(axis=1)
        losses = []
        for first in range(0, len(rows), size):
            part = slice(first, first + size)
            loss = mean_loss(weights, self.texts, rows[part]) * float(tokens[part].sum() / tokens.sum())
            loss.backward()
            losses.append(loss.detach())
        return torch.stack(losses).sum()

    @torch.no_grad()
    def _validate(self) -> Metrics:
        """The loss on held-out episodes, as far as there are any; counts iterations without progress."""
        total = 0.0
        for number, weights in enumerate(self.sets):
            mine = self.held_out.rows_of(number)
            for first in range(0, len(mine), CHUNK):
                rows = mine[first : first + CHUNK]
                total += len(rows) * float(mean_loss(weights, self.held_out, rows))
        if not len(self.held_out.sets):
            return {}
        loss = total / len(self.held_out.sets)
        self.stopping.update(loss)
        return {"validation_loss": loss}

    @property
    def finished(self) -> bool:
        """Whether the validation loss has not improved for `patience` iterations."""
        return self.stopping.finished

    def metrics(self) -> Metrics:
        return {}  # `learn` returns them

    def state(self) -> State:
        return {"optimizers": [optimizer.state() for optimizer in self.optimizers]} | self.stopping.state()

    def load(self, state: State) -> None:
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load(saved)
        self.stopping.load(state)


def tokenize(policy: CausalLMPolicy, part: Demonstrations, group_spec: GroupSpec) -> Texts:
    """The labelled answers of demonstrations as tokens; an agent is found by its name."""
    known = group_spec.agents
    if missing := [agent for agent in part.agents if agent not in known]:
        raise ValueError(f"demonstrations: the agent '{missing[0]}' is not one of {', '.join(known)}")
    rows = np.flatnonzero(part.labelled)
    agents = np.array([known.index(agent) for agent in part.agents])[part.agent[rows]]
    assert isinstance(part.observation, np.ndarray)
    prompts = policy.tokenizer.encode_batch([str(text) for text in part.observation[rows]])
    if not all(prompts):
        raise ValueError("demonstrations: a prompt is empty; a language model needs a token to go on from")
    longest = policy.settings.max_prompt_tokens
    if over := [len(prompt) for prompt in prompts if len(prompt) > longest]:
        raise ValueError(f"policy.max_prompt_tokens: a demonstration's prompt has {max(over)} tokens, got {longest}")
    written = policy.encode([str(text) for text in part.action[rows]])
    longest = policy.settings.max_tokens
    if over := [len(tokens) for tokens in written if len(tokens) > longest]:
        raise ValueError(f"policy.max_tokens: a demonstration's answer has {max(over)} tokens, got {longest}")
    answers = np.full((len(rows), policy.settings.max_tokens), PAD, np.int32)
    for row, tokens in enumerate(written):
        answers[row, : len(tokens)] = tokens
    return Texts(prompts, answers, policy.router.of_agent[agents])


def mean_loss(weights: Weights, texts: Texts, rows: Array) -> torch.Tensor:
    """The mean negative log-likelihood of the answers' tokens."""
    graded = weights.grade([texts.prompts[row] for row in rows], texts.answers[rows][:, None])
    return -graded.log_probs.sum() / graded.valid.sum()
