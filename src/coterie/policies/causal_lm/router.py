"""The Router: which weights answer for which agent, and which weights an answer trains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from coterie.core.group import GroupSpec
from coterie.core.types import Array


class Route(NamedTuple):
    """Rows that one network answers."""

    network: int
    rows: Array  # [R]
    adapters: Array | None  # [R] the adapter of each row; None: the network has none


class Router:
    """Maps the agents of a group to its sets of weights: one for all, or one for each.

    A set is a network of its own, or an adapter of the one network that all share.
    """

    def __init__(self, group_spec: GroupSpec, adapters: bool) -> None:
        self.sets, self.adapters = group_spec.parameter_sets, adapters
        self.of_agent = np.arange(len(group_spec.agents)) if self.sets > 1 else np.zeros(len(group_spec.agents), int)

    def route(self, agents: Array, wanted: Array) -> Iterator[Route]:
        """Yield each network with the wanted rows `[R]` whose agents it serves; networks without rows are left out."""
        owner = self.of_agent[agents]
        for network in range(1 if self.adapters else self.sets):
            rows = np.flatnonzero(wanted & (self.adapters | (owner == network)))
            if len(rows):
                yield Route(network, rows, owner[rows] if self.adapters else None)
