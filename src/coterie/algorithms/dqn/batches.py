"""Batches drawn from the replays, as the networks and the losses read them.

There is one replay for every parameter set, or one for a whole team. Transitions of a batch are counted t = 0 to T − 1,
those of one replay after those of another. Member m of transition t (a team's agent, or the only one) is row
`places[t, m]` of what the network reads and says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from coterie.algorithms.dqn.transitions import Transitions
from coterie.algorithms.replay import Replay
from coterie.core.types import Array
from coterie.nn.launch import kernel
from coterie.nn.packing import PixelRows, Rows
from coterie.policies.q_network import QNetworkPolicy

COLUMNS = ("action", "reward", "discount", "active", "next_active", "mask", "next_mask", "advised")


@kernel
def gather_inputs(
    t: int,
    index: Array,
    observation: Array,
    next_obs: Array,
    agent: Array,
    places: Array,
    sets: Array,
    shift: Array,
    scale: Array,
    limit: float,
    identities: int,
    x: Array,
    next_x: Array,
) -> None:
    """Write the observations `[rows, M, D]` of transition t as network inputs `[places, D + identities]`.

    They are normalised by `shift` and `scale [S, D]` of the parameter sets `sets [M]`.
    """
    r = index[t]
    for m in range(places.shape[1]):
        place, s = places[t, m], sets[m]
        for j in range(observation.shape[2]):
            x[place, j] = min(max((observation[r, m, j] - shift[s, j]) * scale[s, j], -limit), limit)
            next_x[place, j] = min(max((next_obs[r, m, j] - shift[s, j]) * scale[s, j], -limit), limit)
        for j in range(observation.shape[2], observation.shape[2] + identities):
            x[place, j] = next_x[place, j] = 0
        if identities > 0:
            own = observation.shape[2] + agent[r] + m
            x[place, own] = next_x[place, own] = 1


@kernel
def gather_columns(
    t: int,
    index: Array,
    action: Array,
    reward: Array,
    discount: Array,
    active: Array,
    next_active: Array,
    mask: Array,
    next_mask: Array,
    advised: Array,
    to_action: Array,
    to_reward: Array,
    to_discount: Array,
    to_active: Array,
    to_next_active: Array,
    to_mask: Array,
    to_next_mask: Array,
    to_advised: Array,
) -> None:
    """Copy the other columns of transition t."""
    r = index[t]
    to_reward[t], to_discount[t] = reward[r], discount[r]
    for m in range(action.shape[1]):
        to_action[t, m], to_advised[t, m] = action[r, m], advised[r, m]
        to_active[t, m], to_next_active[t, m] = active[r, m], next_active[r, m]
        for k in range(mask.shape[2]):
            to_mask[t, m, k], to_next_mask[t, m, k] = mask[r, m, k], next_mask[r, m, k]


class Batch:
    """Arrays of a batch, filled anew for every gradient step."""

    def __init__(self, policy: QNetworkPolicy, replays: Sequence[Replay[Transitions]], size: int, members: int) -> None:
        """`size` transitions of every replay, with `members` each."""
        self.policy, self.replays, self.size = policy, replays, size
        sets, count, like = policy.group_spec.parameter_sets, size * len(replays), replays[0].rows
        own = members > 1 and sets > 1  # each member has a parameter set of its own
        order = np.arange(count * members)
        self.places = order.reshape(members, count).T.copy() if own else order.reshape(count, members)
        numbers = np.zeros(members, np.int64) + (np.arange(members) if own else 0)
        self.sets = [numbers if len(replays) == 1 else numbers + i for i in range(len(replays))]
        self.index, self.weight = np.zeros(count, np.int64), np.zeros(count, np.float32)
        self.columns = [np.empty((count, *column.shape[1:]), column.dtype) for column in self._columns(like)]
        (self.action, self.reward, self.discount, self.active, self.next_active) = self.columns[:5]
        (self.mask, self.next_mask, self.advised) = self.columns[5:]
        self.values = np.empty((count, members), np.float32)  # room for each member's value
        self.error = np.zeros(count, np.float32)
        self.slopes = np.empty(count, np.float32)
        self.learning = np.arange(sets)
        lead = (sets, count * members // sets)
        width, dtype = policy.row_type
        self.pixels, self.flat = policy.bytes or policy.numbers, list[Array]()
        if self.pixels:
            self.images = [np.empty((*lead, width), dtype) for _ in range(2)]
            self.rest = np.empty((*lead, policy.identities), np.float32)
        else:
            self.rows = [np.empty((*lead, width + policy.identities), np.float32) for _ in range(2)]
            self.flat = [rows.reshape(-1, rows.shape[-1]) for rows in self.rows]
        self.parts = [slice(i * size, (i + 1) * size) for i in range(len(replays))]
        self.drawn = [(self.index[part], self.weight[part]) for part in self.parts]
        self.bound = [self._bind(i) for i in range(len(replays))]

    @staticmethod
    def _columns(rows: Transitions) -> list[Array]:
        return [getattr(rows, name) for name in COLUMNS]

    def draw(self, uniform: Array, importance: float) -> None:
        """Draw from every replay that has enough, with `uniform [replays, B]`; of the others nothing is learned."""
        for replay, numbers, (index, weight) in zip(self.replays, uniform, self.drawn, strict=True):
            if replay.ready:
                replay.draw(numbers, importance, index, weight)
        if len(self.replays) > 1:
            self.learning = np.flatnonzero([replay.ready for replay in self.replays])
        self.fill()

    def fill(self) -> None:
        """Read the rows `index` of the replays."""
        for columns, inputs in self.bound:
            gather_columns.over(self.size, *columns)
            if not self.pixels:
                gather_inputs.over(self.size, *inputs)
        if self.pixels:
            for replay, part in zip(self.replays, self.parts, strict=True):
                self._fill_pixels(replay.rows, self.index[part], self.places[part])

    def _bind(self, number: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Arguments of the two kernels for one replay."""
        rows, part, normalizer = self.replays[number].rows, self.parts[number], self.policy.normalizer
        index = self.index[part]
        inputs = (index, rows.observation, rows.next_obs, rows.agent, self.places[part], self.sets[number])
        scaling = (normalizer.shift, normalizer.scale, normalizer.limit, self.policy.identities)
        columns = (index, *self._columns(rows), *(column[part] for column in self.columns))
        return columns, (*inputs, *scaling, *self.flat)

    def _fill_pixels(self, rows: Transitions, index: Array, places: Array) -> None:
        """Pictures as bytes, and choices among many as numbers."""
        for image, column in zip(self.images, (rows.observation, rows.next_obs), strict=True):
            image.reshape(-1, image.shape[-1])[places] = column[index]
        if self.rest.size:
            identity = self.rest.reshape(-1, self.rest.shape[-1])
            identity[places.reshape(-1)] = 0
            identity[places.reshape(-1), (rows.agent[index][:, None] + np.arange(places.shape[1])).reshape(-1)] = 1

    @property
    def x(self) -> Rows:
        """The network's inputs `[S, R, …]` for the observations."""
        return PixelRows(self.images[0], self.rest) if self.pixels else self.rows[0]

    @property
    def next_x(self) -> Rows:
        """The same for what followed."""
        return PixelRows(self.images[1], self.rest) if self.pixels else self.rows[1]

    def state(self, column: str) -> Array:
        """The world's state `[T, Z]` of a team's transitions: the column `state` or `next_state`."""
        found: Array = getattr(self.replays[0].rows, column)[self.index]
        return found
