"""How a group values its rewards, applied at the learner's door; stored rewards stay the world's own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.types import Array, Experience


@dataclass(frozen=True)
class UnchangedSettings:
    """Nothing to set."""


class Unchanged:
    """Each agent wants its own reward."""

    def __init__(self, settings: UnchangedSettings) -> None:
        pass

    def rewards(self, experience: Experience) -> Array:
        return experience.reward


@dataclass(frozen=True)
class TeamSettings:
    """Nothing to set."""


class Team:
    """Each agent wants the mean of its group's rewards, tick by tick."""

    def __init__(self, settings: TeamSettings) -> None:
        pass

    def rewards(self, experience: Experience) -> Array:
        mean = experience.reward.mean(axis=2, keepdims=True)
        return np.broadcast_to(mean, experience.reward.shape).astype(np.float32)
