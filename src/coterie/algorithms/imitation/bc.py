"""Behavioural cloning: a network learns to act as demonstrations do (Pomerleau 1989).

It learns from files and needs no play: where no other group of the table learns from play, the training loop plays
nothing and a *step* of the run is one demonstrated decision that was read. Evaluations play as always, so that a run
shows the return of its clone next to loss and accuracy. Episodes are split into some to learn from and some to
validate on; the run ends early once the validation loss has not improved for a while.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from coterie.algorithms.divergence import demand_finite
from coterie.algorithms.imitation.cloning import Cloner, CloningSettings, as_metrics, draw_rows, members
from coterie.algorithms.imitation.early_stopping import EarlyStopping
from coterie.algorithms.imitation.labels import (
    Augmenter,
    by_parameter_set,
    load_demonstrations,
    pack_labels,
    split,
)
from coterie.core import seeding
from coterie.core.decisions import Decisions, Joint
from coterie.core.group import GroupSpec, Learner, Panel, Preference
from coterie.core.search_space import Choice, Real, Space
from coterie.core.types import Metrics, State
from coterie.core.validation import at_least, within
from coterie.policies.ensemble import EnsemblePolicy
from coterie.policies.network import NetworkPolicy
from coterie.policies.q_network import QNetworkPolicy

PANELS = (
    Panel("imitation loss", "nats per decision", ("loss", "validation_loss")),
    Panel("agreement with the demonstrator", "share of decisions", ("accuracy", "validation_accuracy")),
    Panel("distance to the demonstrator", "half ranges", ("action_error", "validation_action_error")),
)


@dataclass(frozen=True)
class BCSettings(CloningSettings):
    """Settings of behavioural cloning."""

    demonstrations: tuple[str, ...] = ()  # directories of `coterie demonstrate`, or names of shipped ones
    group: str | None = None  # the recorded group; None: the one of the same name, or the only one
    only_successful: bool = True  # leave out episodes that failed, where the world has a notion of success
    min_return: float | None = None  # leave out episodes with a lower return; None: keep all
    validation: float = 0.1  # share of the episodes to validate on, rounded down
    patience: int | None = 20  # iterations without a lower validation loss before the run ends; None: never
    learning_rate_schedule: Literal["constant", "linear"] = "linear"  # linear: to 0 at the run's end

    SEARCH: ClassVar[Space] = {  # what `coterie tune` varies
        "learning_rate": Real(1e-4, 1e-2, log=True),
        "batch_size": Choice((64, 128, 256, 512)),
        "weight_decay": Real(1e-5, 1e-1, log=True),
        "noise": Real(0.0, 0.3),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        within("validation", self.validation, 0, 0.9)
        if self.patience is not None:
            at_least("patience", self.patience, 1)


class BC(Learner):
    """Improves a policy by imitation of recorded decisions."""

    teaches = (NetworkPolicy, QNetworkPolicy, EnsemblePolicy)
    needs_play = False
    panels = PANELS

    def __init__(
        self,
        settings: BCSettings,
        policy: NetworkPolicy | QNetworkPolicy | EnsemblePolicy,
        group_spec: GroupSpec,
        preference: Preference,
    ) -> None:
        self.settings, self.policy, self.group_spec = settings, policy, group_spec
        self.cloners = [Cloner(settings, member) for member in members(policy)]
        s = settings
        found = load_demonstrations(s.demonstrations, group_spec, s.group, s.only_successful, s.min_return)
        parts = split(found, s.validation, group_spec)
        first = self.cloners[0].policy
        self.labels, self.held_out = (
            by_parameter_set(pack_labels(first, part, group_spec), group_spec) for part in parts
        )
        for agent, mine in zip(group_spec.agents, self.labels):
            if not mine.size:
                raise ValueError(f"demonstrations: there are none of the agent '{agent}'; set parameters=shared")
        self.augment = Augmenter(s.symmetries, s.augmentations, first, group_spec)
        for cloner in self.cloners:
            cloner.measure_observations(self.labels)
        self.episodes = len(parts[0])
        self.stopping = EarlyStopping(settings.patience)

    def learn(self, own: Decisions, joint: Joint, random: np.random.Generator) -> Metrics:
        s = self.settings
        rate = s.learning_rate * (max(1 - joint.progress, 0.0) if s.learning_rate_schedule == "linear" else 1.0)
        steps = max(joint.steps // s.batch_size, 1)
        sums = np.zeros(2)
        for number, cloner in enumerate(self.cloners):
            order = seeding.generator(int(random.integers(1 << 62)), "member", number)
            rows = [draw_rows(mine.size, steps * s.batch_size, order) for mine in self.labels]
            for i in range(steps):
                now = slice(i * s.batch_size, (i + 1) * s.batch_size)
                batch = [mine.rows(index[now]) for mine, index in zip(self.labels, rows, strict=True)]
                sums += cloner.step([self.augment(mine, order) for mine in batch], rate, order)
        metrics = as_metrics(self.cloners[0], sums / (steps * len(self.cloners)))
        metrics |= {"updates": float(steps), "learning_rate": rate, "demonstrations": float(self.episodes)}
        metrics |= self.validate()
        parameters = [cloner.policy.flat.array for cloner in self.cloners]
        demand_finite(self.group_spec.group, metrics, [], parameters)
        return metrics

    def validate(self) -> Metrics:
        """Loss and accuracy on the held-out episodes, as far as there are any; counts iterations without progress."""
        rows = sum(mine.size for mine in self.held_out)
        if not rows:
            return {}
        found = sum(
            (
                mine.size * cloner.evaluate(mine, i)
                for cloner in self.cloners
                for i, mine in enumerate(self.held_out)
                if mine.size
            ),
            np.zeros(2),
        ) / (rows * len(self.cloners))
        self.stopping.update(float(found[0]))
        return as_metrics(self.cloners[0], found, "validation_")

    @property
    def finished(self) -> bool:
        """Whether the validation loss has not improved for `patience` iterations."""
        return self.stopping.finished

    def state(self) -> State:
        return {"adam": [cloner.policy.flat.state() for cloner in self.cloners]} | self.stopping.state()

    def load(self, state: State) -> None:
        for cloner, saved in zip(self.cloners, state["adam"], strict=True):
            cloner.policy.flat.load(saved)
        self.stopping.load(state)
