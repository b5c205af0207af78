"""DAgger (Ross et al. 2011, algorithm 3.1): the student plays, the expert labels what it sees, the labels add up.

The expert is the group's advisor with `use.mode=label`: β, the share of actions that it takes itself, is the advice's
strength and follows its schedule. The student learns from all labels of all iterations, demonstrations included.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.algorithms.divergence import demand_finite
from coterie.algorithms.imitation.bc import PANELS
from coterie.algorithms.imitation.cloning import Cloner, CloningSettings, as_metrics, draw_rows
from coterie.algorithms.imitation.labels import (
    Augmenter,
    Labels,
    by_parameter_set,
    concatenate,
    load_demonstrations,
    pack_labels,
)
from coterie.core.decisions import Decisions, Joint
from coterie.core.group import GroupSpec, Learner, Panel, Preference
from coterie.core.trees import map_tree
from coterie.core.types import Metrics, State
from coterie.core.validation import at_least
from coterie.policies.network import NetworkPolicy


@dataclass(frozen=True)
class DAggerSettings(CloningSettings):
    """Settings of DAgger."""

    updates: int = 100  # gradient steps per iteration, on all labels so far
    max_labels: int | None = None  # labels after which the expert is not asked any more; None: always
    demonstrations: tuple[str, ...] = ()  # labels to begin with: directories of `coterie demonstrate`
    # the recorded group of the demonstrations; None: the one of the same name, or the only one
    group: str | None = None
    only_successful: bool = True  # of the demonstrations

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("updates", self.updates, 1)
        if self.max_labels is not None:
            at_least("max_labels", self.max_labels, 1)


class DAgger(Learner):
    """Improves a policy by imitation of an expert where the policy itself goes."""

    teaches = (NetworkPolicy,)
    policy: NetworkPolicy
    advice_modes = ("label",)
    panels = (*PANELS, Panel("labels", "decisions labelled by the expert", ("labels",)))

    def __init__(
        self, settings: DAggerSettings, policy: NetworkPolicy, group_spec: GroupSpec, preference: Preference
    ) -> None:
        if group_spec.advice is None:
            raise ValueError(
                f"dagger needs an expert: set groups.{group_spec.group}.advisor.name=policy and "
                f"groups.{group_spec.group}.advisor.use.mode=label"
            )
        self.settings, self.policy, self.group_spec = settings, policy, group_spec
        self.cloner = Cloner(settings, policy)
        self.augment = Augmenter(settings.symmetries, settings.augmentations, policy, group_spec)
        self.labels: list[Labels] | None = None  # of each parameter set; None: there are none yet
        if settings.demonstrations:
            s = settings
            found = load_demonstrations(s.demonstrations, group_spec, s.group, s.only_successful, None)
            self.labels = by_parameter_set(pack_labels(policy, found, group_spec), group_spec)
        self.refresh()

    def refresh(self) -> None:
        """Measure the observations of the labels so far, and end asking where there are enough."""
        if self.labels is not None:
            self.cloner.measure_observations(self.labels, again=True)
        most = self.settings.max_labels
        self.policy.labels_complete = most is not None and self.count >= most

    def learn(self, own: Decisions, joint: Joint, random: np.random.Generator) -> Metrics:
        s = self.settings
        fresh = self.new_labels(own)
        metrics = self.agreement(fresh)
        self.add(fresh)
        self.refresh()
        count = self.count
        if self.labels is None or not min(mine.size for mine in self.labels):
            return metrics | {"labels": float(count)}
        rows = [draw_rows(mine.size, s.updates * s.batch_size, random) for mine in self.labels]
        sums = np.zeros(2)
        for i in range(s.updates):
            now = slice(i * s.batch_size, (i + 1) * s.batch_size)
            batch = [mine.rows(index[now]) for mine, index in zip(self.labels, rows, strict=True)]
            sums += self.cloner.step([self.augment(mine, random) for mine in batch], s.learning_rate, random)
        metrics |= as_metrics(self.cloner, sums / s.updates)
        demand_finite(self.group_spec.group, metrics, [], [self.policy.flat.array])
        return metrics | {"labels": float(count), "updates": float(s.updates)}

    @property
    def count(self) -> int:
        """Labels so far, those of demonstrations included."""
        return 0 if self.labels is None else sum(mine.size for mine in self.labels)

    def new_labels(self, own: Decisions) -> Labels:
        """The decisions that the expert labelled, as many as there is room for."""
        assert own.advice is not None  # the build step has checked it
        index = np.nonzero(own.valid & own.advice.given)
        if self.settings.max_labels is not None:
            index = tuple(part[: max(self.settings.max_labels - self.count, 0)] for part in index)
        seen = map_tree(lambda array: array[:-1][index][:, None], own.observation)
        action = own.advice.probabilities[index].argmax(axis=-1)
        mask = np.zeros((len(action), 0), bool) if own.mask is None else own.mask[index]
        return Labels(self.policy.pack(seen)[:, 0], index[2].astype(np.int64), action, mask)

    def agreement(self, fresh: Labels) -> Metrics:
        """Loss and accuracy of the student on new labels, before it learns from them."""
        parts = by_parameter_set(fresh, self.group_spec)
        if self.labels is None or not fresh.size:
            return {}
        found = sum((mine.size * self.cloner.evaluate(mine, i) for i, mine in enumerate(parts)), np.zeros(2))
        return as_metrics(self.cloner, found / fresh.size, "validation_")

    def add(self, fresh: Labels) -> None:
        """Add labels to those of earlier iterations."""
        parts = by_parameter_set(fresh, self.group_spec)
        if self.labels is None:
            if fresh.size:
                self.labels = parts
        else:
            self.labels = [concatenate(pair) for pair in zip(self.labels, parts, strict=True)]

    def state(self) -> State:
        labels = None if self.labels is None else [mine.state() for mine in self.labels]
        return {"adam": self.policy.flat.state(), "labels": labels, "measured": self.cloner.measured}

    def load(self, state: State) -> None:
        self.policy.flat.load(state["adam"])
        self.labels = None if state["labels"] is None else [Labels(**mine) for mine in state["labels"]]
        self.cloner.measured = state["measured"]
