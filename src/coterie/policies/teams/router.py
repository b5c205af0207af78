"""The Router: which weights answer for which agent, and which weights an answer trains."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from coterie.core.group import GroupSpec
from coterie.core.types import Array


class Router:
    """Maps the agents of a group to its sets of weights: one for all, or one for each."""

    def __init__(self, group_spec: GroupSpec) -> None:
        self.sets = group_spec.parameter_sets
        self.of_agent = np.arange(len(group_spec.agents)) if self.sets > 1 else np.zeros(len(group_spec.agents), int)

    def route(self, agents: Array) -> Iterator[tuple[int, Array]]:
        """Yield each set of weights with the rows `[R]` whose agents it serves; sets without rows are left out."""
        owner = self.of_agent[agents]
        for number in range(self.sets):
            rows = np.flatnonzero(owner == number)
            if len(rows):
                yield number, rows
