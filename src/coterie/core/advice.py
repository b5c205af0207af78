"""Advice: when an advisor is asked, and how a group uses what it says.

`Advice` (core/types.py) is the record that goes from the advisor to the loss; nn/advice.py has the mathematics;
advice/advisor.py has the advisors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from coterie.core.types import View
from coterie.core.validation import at_least, positive, within

Mode = Literal["mixture", "kl", "prior", "hint", "label", "margin"]


@dataclass(frozen=True)
class AskSettings:
    """Conditions for asking the advisor; all of them must hold."""

    every: int = 1  # at every so many steps
    entropy: float | None = None  # the policy's entropy is above this, in nats; None: any entropy
    disagreement: bool = False  # the policy's likeliest action differs from the cached advice, or none is cached
    fraction: float = 1.0  # of the remaining decisions, drawn at random
    frames: int | None = None  # only in the run's first so many environment steps; None: always

    def __post_init__(self) -> None:
        at_least("every", self.every, 1)
        positive("fraction", self.fraction)
        within("fraction", self.fraction, 0, 1)
        if self.entropy is not None:
            at_least("entropy", self.entropy, 0)
        if self.frames is not None:
            at_least("frames", self.frames, 1)

    @property
    def reads_policy(self) -> bool:
        """Whether the selection depends on the policy's probabilities."""
        return self.entropy is not None or self.disagreement

    def due(self, view: View) -> bool:
        """Whether advice is asked for at this step; `frames` does not limit evaluations."""
        past = self.frames is not None and view.progress is not None and view.frames >= self.frames
        return view.step_count % self.every == 0 and not past


@dataclass(frozen=True)
class UseSettings:
    """Settings for the use of advice."""

    # mixture: some actions are the advisor's; kl: a loss; prior: added to logits; hint: an input;
    # label: as mixture, and asked for at any strength, for a learner that imitates the advisor;
    # margin: a loss that puts the value of the advised action above the others (DQN)
    mode: Mode = "kl"
    # mixture, label: fraction of advised actions; kl, margin: weight of the loss; prior: factor; hint: unused
    strength: float = 1.0
    final: float = 0.0  # the strength at the end
    until: float = 1.0  # fraction of the run in which the strength changes linearly to `final`
    frames: int | None = None  # the same in environment steps, whatever the length of the run; None: `until` counts
    evaluate: bool | None = None  # advise in evaluations too, with the initial strength; None: only hints
    margin: float = 0.8  # margin: by how much the value of the advised action must exceed the others

    def __post_init__(self) -> None:
        positive("until", self.until)
        within("until", self.until, 0, 1)
        if self.frames is not None:
            at_least("frames", self.frames, 1)
            if self.until != 1:
                raise ValueError(
                    f"until and frames both end the schedule; leave one out, got {self.until:g}, {self.frames}"
                )
        positive("margin", self.margin)
        if self.mode not in ("hint", "label") and not self.strength and not self.final:
            raise ValueError("strength and final are both 0: advice would be asked for and never used")
        for name in ("strength", "final"):
            value = getattr(self, name)
            at_least(name, value, 0)
            if self.mode in ("mixture", "label"):
                within(name, value, 0, 1)

    @property
    def in_evaluation(self) -> bool:
        """Whether evaluations are advised."""
        return self.mode == "hint" if self.evaluate is None else self.evaluate

    def at(self, progress: float | None, frames: int = 0) -> float:
        """The strength at this fraction of the run and after so many environment steps; a hint's is always 1.

        Outside of training (`progress` is None) it is the initial strength.
        """
        if self.mode == "hint":
            return 1.0
        if progress is None:
            return self.strength
        along = min(progress / self.until if self.frames is None else frames / self.frames, 1.0)
        return self.strength + (self.final - self.strength) * along


@dataclass(frozen=True)
class AdviceUse:
    """Facts about a group's advice that its policy and learner need."""

    use: UseSettings
    actions: int  # K: actions that the advice is about

    @property
    def hint_size(self) -> int:
        """Numbers that advice adds to the actor's input."""
        return 1 + self.actions if self.use.mode == "hint" else 0

    @property
    def changes_actions(self) -> bool:
        """Whether actions are drawn from another distribution than the policy's own."""
        return self.use.mode in ("mixture", "prior", "label")
