"""Classes of one's own that fail, as those of a user do while they are being written."""

from dataclasses import dataclass

import numpy as np

from coterie.core.group import Policy
from coterie.core.settings import Settings
from coterie.core.types import Decision


@dataclass(frozen=True)
class FailingSettings(Settings):
    """Settings of the policy below."""

    decisions: int = 2  # before it fails


class FailingPolicy(Policy):
    """Acts twice, then asks a dictionary for what it does not have."""

    memory_size = 0

    def __init__(self, settings: FailingSettings, group_spec):
        self.left = settings.decisions

    def act(self, view):
        self.left -= 1
        shape = view.acting.shape
        return Decision(np.zeros(shape, np.int64), np.zeros(shape, np.float32)) if self.left >= 0 else look_up({})

    def metrics(self):
        return {}

    def state(self):
        return {}

    def load(self, state):
        pass


def look_up(table):
    return table["missing"]  # the line that is to be named
