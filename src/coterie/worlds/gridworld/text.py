"""Text codecs of the grid world: the nearest target, or all targets where they have colours and an instruction.

Directions use the words of the moves, because a small model copies better than it infers: with targets described as
"above", the embedded model moves "up" only half of the time. Other agents and messages are left out; agents of a grid
world do not block each other.
"""

from __future__ import annotations

import numpy as np

from coterie.core.jit import jit
from coterie.core.types import Array, Box, Dict, ObservationSpace, Tree
from coterie.worlds.gridworld.expert import FAR, collectable_targets, target_distances
from coterie.worlds.gridworld.instructions import InstructionRules, InstructionState
from coterie.worlds.gridworld.kernels import MOVES, RACE, STAY, GridState, Rules
from coterie.worlds.gridworld.phrasings import COLOURS, PHRASINGS
from coterie.worlds.gridworld.world import Gridworld

MOVE_NAMES = ("up", "down", "left", "right", "stay")


class GridworldText:
    """Describes observations of a grid world and turns the words of moves into actions."""

    prompt = "gridworld"

    def __init__(self, world: Gridworld, agent_type: str) -> None:
        self.settings, self.layout, self.messages = world.settings, world._layout, world.settings.messages
        self.idle = self.actions(np.array([STAY]))[0]
        # Staying helps only when meeting; a choice that is never right would bias the calibration.
        self.choices = MOVE_NAMES if self.settings.mode == "meet" else MOVE_NAMES[:STAY]

    def describe(self, observation: Tree) -> list[str]:
        read = self._from_planes if self.layout.image else self._from_row
        return [describe_nearest_target(list(seen.values()), walls) for seen, walls in map(read, _as_rows(observation))]

    def _from_row(self, row: Array) -> tuple[dict[int, tuple[int, int]], list[str]]:
        """Offsets (down, right) of the visible targets by index, and the directions of adjacent walls."""
        layout, last = self.layout, self.settings.grid_size - 1
        me = row[:2] if layout.absolute else np.zeros(2)
        known = 1 if layout.own_target else self.settings.targets
        seen = {}
        for i in range(known):
            at = layout.targets[0] + i * layout.targets[1]
            if row[layout.status[0] + i * layout.status[1]] == 1.0:
                down, across = np.rint((row[at : at + 2] - me) * last).astype(int)
                seen[i] = (int(down), int(across))
        if layout.walls < 0 or not self.settings.num_obstacles:
            return seen, []
        side = 2 * layout.radius + 1
        patch = row[layout.walls : layout.walls + side * side].reshape(side, side) > 0
        return seen, _blocked(patch, layout.radius, layout.radius)

    def _from_planes(self, row: Array) -> tuple[dict[int, tuple[int, int]], list[str]]:
        size = self.settings.grid_size
        planes = row.reshape(-1, size, size)
        top, left = np.argwhere(planes[0])[0]
        seen = {i: (int(r - top), int(c - left)) for i, (r, c) in enumerate(np.argwhere(planes[2]))}
        walls = np.pad(planes[3] > 0, 1, constant_values=True)  # cells beyond the border count as walls
        return seen, _blocked(walls, top + 1, left + 1) if self.settings.num_obstacles else []

    def actions(self, chosen: Array) -> Array:
        return np.stack([chosen, np.zeros_like(chosen)], axis=-1) if self.messages else chosen

    def samples(self) -> list[str]:
        """Descriptions with targets near and far, equally often in every direction."""
        size = self.settings.grid_size
        reach = min(size - 1, 3)
        offsets = [(-reach, 0), (reach, 0), (0, -reach), (0, reach), (-1, 0), (1, 0), (0, -1), (0, 1)]
        offsets += [(r * a, c * b) for a, b in ((1, 2), (2, 1)) for r in (-1, 1) for c in (-1, 1)]
        here = [(0, 0)] * 4 if "stay" in self.choices else []
        return [self.sample(i, offset) for i, offset in enumerate(offsets + here)]

    def sample(self, number: int, offset: tuple[int, int]) -> str:
        """A description in which the target to go for has the given offset; `number` selects the phrasing."""
        return describe_nearest_target([offset], [])

    def optimal(self, world: Gridworld, actions: Array) -> Array:
        """Flags of actions that shorten the path to the agent's target: its own in a race, otherwise the nearest.

        On the target the optimal move is to stay. With an instruction only targets that may be collected now count,
        and only walks around the others.
        """
        moves = actions[..., 0] if self.messages else actions
        good = np.zeros(moves.shape, np.bool_)
        _mark_optimal(
            world.grid, world.instruction, world._instruction_rules, world._rules, np.ascontiguousarray(moves), good
        )
        return good


class InstructedText(GridworldText):
    """The codec of a world with instructions: the instruction, then all targets with their colours."""

    def __init__(self, world: Gridworld, agent_type: str) -> None:
        super().__init__(world, agent_type)
        self.sentences, (self.start, self.count) = world.sentences, world._instruction_rules.sentence_slot
        space = world.agent_types[agent_type].observation
        if isinstance(space, Dict):
            entries = {name: part for name, part in space.entries.items() if name != "instruction"}
            self.space_without_instruction: ObservationSpace = Dict(entries, space.sets)
        else:
            assert isinstance(space, Box)
            self.space_without_instruction = Box((space.shape[0] - self.count,), space.low, space.high)

    def describe(self, observation: Tree) -> list[str]:
        rows = zip(self.instruct(observation), _as_rows(observation), strict=True)
        return [describe_coloured_targets(sentence, *self._from_row(row)) for sentence, row in rows]

    def instruct(self, observation: Tree) -> list[str]:
        numbers = _as_rows(observation)[:, self.start : self.start + self.count].argmax(axis=1)
        return [self.sentences[number] for number in numbers]

    def without_instruction(self, observation: Tree) -> Tree:
        if isinstance(observation, dict):
            return {name: part for name, part in observation.items() if name != "instruction"}
        return np.delete(observation, np.s_[self.start : self.start + self.count], axis=-1)

    def sample(self, number: int, offset: tuple[int, int]) -> str:
        wanted = number % 2
        elsewhere = (-offset[1], offset[0])
        return describe_coloured_targets(
            self.sentences[wanted * PHRASINGS + number], {wanted: offset, 1 - wanted: elsewhere}, []
        )


def make_text_codec(world: Gridworld, agent_type: str) -> GridworldText:
    """The text codec for a grid world, with or without instructions."""
    return InstructedText(world, agent_type) if world.sentences else GridworldText(world, agent_type)


def describe_nearest_target(targets: list[tuple[int, int]], walls: list[str]) -> str:
    """The offset of the nearest target, the longer axis first, and the adjacent walls."""
    if not targets:
        return f"No target is in sight.{_walls_in_words(walls)}"
    nearest = min(targets, key=lambda offset: (abs(offset[0]) + abs(offset[1]), offset))
    return f"The target is {_offset_in_words(*nearest)}.{_walls_in_words(walls)}"


def describe_coloured_targets(instruction: str, targets: dict[int, tuple[int, int]], walls: list[str]) -> str:
    """The instruction, the offsets of the coloured targets, and the adjacent walls."""
    positions = " ".join(f"The {COLOURS[k]} target is {_offset_in_words(*offset)}." for k, offset in targets.items())
    return f"{instruction} {positions or 'No target is in sight.'}{_walls_in_words(walls)}"


def _offset_in_words(down: int, across: int) -> str:
    axes = [(abs(down), MOVE_NAMES[down > 0]), (abs(across), MOVE_NAMES[2 + (across > 0)])]
    axes = sorted((axis for axis in axes if axis[0]), key=lambda axis: -axis[0])
    return " and ".join(f"{steps} step{'s' * (steps > 1)} {word}" for steps, word in axes) or "here"


def _walls_in_words(walls: list[str]) -> str:
    return f" There is a wall {' and '.join(walls)}." if walls else ""


def _as_rows(observation: Tree) -> Array:
    if isinstance(observation, dict):
        return np.concatenate([part.reshape(len(part), -1) for part in observation.values()], axis=1)
    return observation.reshape(len(observation), -1)


def _blocked(walls: Array, row: int, column: int) -> list[str]:
    return [word for word, (r, c) in zip(MOVE_NAMES, MOVES[:STAY].tolist(), strict=False) if walls[row + r, column + c]]


@jit
def _mark_optimal(
    grid: GridState,
    instruction: InstructionState,
    instruction_rules: InstructionRules,
    rules: Rules,
    moves: Array,
    good: Array,
) -> None:
    """Write into `good` [N, A] which moves `[N, A]` shorten the walk to a target that may be collected."""
    size, targets = rules.size, grid.targets.shape[1]
    distance = np.empty((targets, size, size), np.int32)
    queue = np.empty(size * size, np.int32)
    allowed, blocked = np.empty(targets, np.bool_), np.empty((size, size), np.bool_)
    for n in range(moves.shape[0]):
        collectable_targets(grid, instruction, instruction_rules, n, allowed, blocked)
        for k in range(targets):
            target_distances(grid, n, k, blocked, distance[k], queue)
        for a in range(moves.shape[1]):
            row, column = grid.agents[n, a, 0], grid.agents[n, a, 1]
            r, c = row + MOVES[moves[n, a], 0], column + MOVES[moves[n, a], 1]
            if not (0 <= r < size and 0 <= c < size) or grid.walls[n, r, c]:
                r, c = row, column
            now, then = FAR, FAR
            for k in range(targets):
                if (k == a or rules.mode != RACE) and allowed[k]:
                    if distance[k, row, column] >= 0:
                        now = min(now, distance[k, row, column])
                    if distance[k, r, c] >= 0:
                        then = min(then, distance[k, r, c])
            shut_in = now == FAR and not blocked[r, c]  # only forbidden targets lead on: every other move is as good
            good[n, a] = then < now or (now == 0 and then == 0) or shut_in
