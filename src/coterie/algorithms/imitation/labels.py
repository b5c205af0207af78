"""Labelled decisions: what imitation learns from, packed for a policy's network, and how demonstrations become them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from coterie.algorithms.imitation import demonstrations
from coterie.algorithms.imitation.demonstrations import Demonstrations
from coterie.core import lookup, seeding
from coterie.core.augmentation import Augmentation, Decisions
from coterie.core.game import HasGame
from coterie.core.group import GroupSpec
from coterie.core.types import Array, CoterieError, Discrete, State, map_tree
from coterie.policies.network import NeuralPolicy


class Labels(NamedTuple):
    """Decisions of one parameter set's agents with the demonstrator's actions."""

    observation: Array  # [R, D]: packed
    agent: Array  # [R] int64: index within the group
    action: Array  # [R, …]
    mask: Array  # [R, K] bool: legal actions; K = 0 where there are no masks

    @property
    def size(self) -> int:
        return len(self.agent)

    def rows(self, index: Array) -> Labels:
        """Some of the rows."""
        return Labels(*(column[index] for column in self))

    def state(self) -> State:
        return {name: column.copy() for name, column in self._asdict().items()}


def concatenate(parts: Sequence[Labels]) -> Labels:
    """Labels of several parts, in order."""
    return Labels(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def by_parameter_set(labels: Labels, group_spec: GroupSpec) -> list[Labels]:
    """The labels of each parameter set: all of them, or those of its agent."""
    if group_spec.parameter_sets == 1:
        return [labels]
    return [labels.rows(np.flatnonzero(labels.agent == i)) for i in range(group_spec.parameter_sets)]


def pack_labels(policy: NeuralPolicy, part: Demonstrations, group_spec: GroupSpec) -> Labels:
    """The labelled decisions of demonstrations; an agent is found by its name, or else by its position."""
    rows = np.flatnonzero(part.labelled)
    known = group_spec.agents
    index = np.array([known.index(a) if a in known else i % len(known) for i, a in enumerate(part.agents)])
    seen = map_tree(lambda array: array[rows][:, None], part.observation)
    mask = np.zeros((len(rows), 0), bool) if part.mask is None else part.mask[rows]
    return Labels(policy.pack(seen)[:, 0], index[part.agent[rows]], part.action[rows], mask)


def load_demonstrations(
    paths: Sequence[str], group_spec: GroupSpec, group: str | None, only_successful: bool, min_return: float | None
) -> Demonstrations:
    """The demonstrations that a group learns from; a ValueError if there are none, or they do not fit the group."""
    if not paths:
        raise ValueError("demonstrations: name at least one directory that 'coterie demonstrate' has written")
    parts = []
    for path in paths:
        try:
            recorded = demonstrations.groups(path)
            name = group or (group_spec.group if group_spec.group in recorded else None)
            part = demonstrations.load(path, name)
        except CoterieError as error:
            raise ValueError(f"demonstrations: {error}") from None
        world = "" if group_spec.world is None else type(group_spec.world).__name__
        if world and world != part.table.world_class:
            name = part.table.world["name"]
            raise ValueError(f"demonstrations: '{path}' was recorded in another world, '{name}'")
        demonstrations.check_spaces(part, group_spec.spaces.observation, group_spec.spaces.action, f"in '{path}'")
        parts.append(part)
    joined = demonstrations.join(parts)
    chosen = np.ones(len(joined), bool)
    if only_successful:
        chosen &= np.array([episode.success is not False for episode in joined.episodes])
    if not chosen.any():
        raise ValueError(
            f"demonstrations: none of {len(joined)} episodes succeeded; record others, or set only_successful=false"
        )
    if min_return is not None:
        chosen &= joined.returns() >= min_return
        if not chosen.any():
            best = joined.returns().max()
            raise ValueError(f"min_return: no episode has a return of {min_return:g}; the best has {best:g}")
    found = joined.select(np.flatnonzero(chosen))
    if not found.labelled.any():
        raise ValueError("demonstrations: no decision is the demonstrator's own; chance decided them all")
    return found


def split(part: Demonstrations, fraction: float, group_spec: GroupSpec) -> tuple[Demonstrations, Demonstrations]:
    """Episodes to learn from and episodes to validate on, drawn by the run's seed."""
    order = seeding.generator(group_spec.seed, "validation split", group_spec.group).permutation(len(part))
    held_out = int(fraction * len(part))
    return part.select(np.sort(order[held_out:])), part.select(np.sort(order[:held_out]))


class Augmenter:
    """Changes labels at random before a gradient step: through symmetries of the board, then by named functions."""

    def __init__(self, symmetries: bool, names: Sequence[str], policy: NeuralPolicy, group_spec: GroupSpec) -> None:
        self.symmetries = find_symmetries(group_spec) if symmetries else None
        self.functions: list[Augmentation] = [lookup.look_up({}, name) for name in names]
        self.world = group_spec.world
        if self.functions and self.world is None:
            raise ValueError("augmentations need a world, whose observations they read")
        if self.functions and isinstance(group_spec.spaces.action, Discrete):  # one that does not fit fails here
            observation, zero = np.zeros((1, policy.layout.size), np.float32), np.zeros(1, np.int64)
            blank = Labels(observation, agent=zero, action=zero, mask=np.zeros((1, 0), bool))
            self(blank, np.random.default_rng(0))

    def __call__(self, labels: Labels, random: np.random.Generator) -> Labels:
        if self.symmetries is not None:
            labels = turn(labels, self.symmetries, random)
        for function in self.functions:
            assert self.world is not None
            changed = function(Decisions(labels.observation, labels.action, labels.mask), self.world, random)
            labels = labels._replace(**changed._asdict())
        return labels


def find_symmetries(group_spec: GroupSpec) -> tuple[Array, Array]:
    """The symmetries of the group's board as `cells [Y, D]` and `actions [Y, K]`; a ValueError without a board."""
    world = group_spec.world
    if not isinstance(world, HasGame):
        raise ValueError("symmetries=true needs a board game; set symmetries=false")
    found = world.game.symmetries
    return np.stack([each.cells for each in found]), np.stack([each.actions for each in found])


def turn(labels: Labels, symmetries: tuple[Array, Array], random: np.random.Generator) -> Labels:
    """Each position seen through a random symmetry of the board."""
    drawn = random.integers(len(symmetries[0]), size=labels.size)
    cells, moves = (part[drawn] for part in symmetries)
    turned = (moves == labels.action[:, None]).argmax(axis=1)  # the move of the turned board that is this one
    mask = np.take_along_axis(labels.mask, moves, axis=1) if labels.mask.shape[1] else labels.mask
    return Labels(np.take_along_axis(labels.observation, cells, axis=1), labels.agent, turned, mask)
