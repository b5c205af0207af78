"""The grid world in words: where the nearest target is from where one stands, or all that have colours.

Directions are named by the words of the moves, since a small model copies better than it concludes: told of targets
"above", the embedded one moves "up" only half of the time. Other agents and messages are left out; agents of a
grid world do not block each other.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from coterie.core.types import Array, Box, Dict, ObservationSpace, Tree
from coterie.worlds.gridworld.expert import FAR, measure, open_ways
from coterie.worlds.gridworld.instructions import Telling, Told
from coterie.worlds.gridworld.kernels import MOVES, RACE, STAY, Places, Rules
from coterie.worlds.gridworld.phrasings import COLOURS, PHRASINGS
from coterie.worlds.gridworld.world import Gridworld

WORDS = ("up", "down", "left", "right", "stay")


class GridworldText:
    """What agents of a grid world are told, and what they may answer."""

    prompt = "gridworld"

    def __init__(self, world: Gridworld, agent_type: str) -> None:
        self.settings, self.layout, self.messages = world.settings, world._layout, world.settings.messages
        self.idle = self.actions(np.array([STAY]))[0]
        # To stay helps only where others are waited for; a choice that is never right would upset the calibration.
        self.choices = WORDS if self.settings.mode == "meet" else WORDS[:STAY]

    def describe(self, observation: Tree) -> list[str]:
        read = self._from_planes if self.layout.image else self._from_row
        return [tell(list(seen.values()), walls) for seen, walls in map(read, _as_rows(observation))]

    def _from_row(self, row: Array) -> tuple[dict[int, tuple[int, int]], list[str]]:
        """Offsets (down, right) of the targets that are seen, by number, and in which directions there are walls."""
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
        walls = np.pad(planes[3] > 0, 1, constant_values=True)  # beyond the border all is wall
        return seen, _blocked(walls, top + 1, left + 1) if self.settings.num_obstacles else []

    def actions(self, chosen: Array) -> Array:
        return np.stack([chosen, np.zeros_like(chosen)], axis=-1) if self.messages else chosen

    def samples(self) -> list[str]:
        """Targets in all directions, near and far, as often in one as in another."""
        size = self.settings.grid_size
        reach = min(size - 1, 3)
        offsets = [(-reach, 0), (reach, 0), (0, -reach), (0, reach), (-1, 0), (1, 0), (0, -1), (0, 1)]
        offsets += [(r * a, c * b) for a, b in ((1, 2), (2, 1)) for r in (-1, 1) for c in (-1, 1)]
        here = [(0, 0)] * 4 if "stay" in self.choices else []
        return [self.sample(i, offset) for i, offset in enumerate(offsets + here)]

    def sample(self, number: int, offset: tuple[int, int]) -> str:
        """One of many descriptions in which the target to go for has a given offset."""
        return tell([offset], [])

    def optimal(self, world: Gridworld, actions: Array) -> Array:
        """Moves that shorten the walk to one's own target in a race, else to the nearest; on it, to stay.

        With an instruction only targets whose turn it is count, and only ways around the others.
        """
        moves = actions[..., 0] if self.messages else actions
        good = np.zeros(moves.shape, np.bool_)
        _shortens(world.places, world.told, world._telling, world._rules, np.ascontiguousarray(moves), good)
        return good


class InstructedText(GridworldText):
    """The same where the team is told what to do: all targets by their colours, and the instruction."""

    def __init__(self, world: Gridworld, agent_type: str) -> None:
        super().__init__(world, agent_type)
        self.sentences, (self.start, self.count) = world.sentences, world._telling.number
        space = world.agent_types[agent_type].observation
        if isinstance(space, Dict):
            entries = {name: part for name, part in space.entries.items() if name != "instruction"}
            self.silent: ObservationSpace = Dict(entries, space.sets)
        else:
            assert isinstance(space, Box)
            self.silent = Box((space.shape[0] - self.count,), space.low, space.high)

    def describe(self, observation: Tree) -> list[str]:
        told = zip(self.instruct(observation), _as_rows(observation), strict=True)
        return [tell_colours(sentence, *self._from_row(row)) for sentence, row in told]

    def instruct(self, observation: Tree) -> list[str]:
        numbers = _as_rows(observation)[:, self.start : self.start + self.count].argmax(axis=1)
        return [self.sentences[number] for number in numbers]

    def wordless(self, observation: Tree) -> Tree:
        if isinstance(observation, dict):
            return {name: part for name, part in observation.items() if name != "instruction"}
        return np.delete(observation, np.s_[self.start : self.start + self.count], axis=-1)

    def sample(self, number: int, offset: tuple[int, int]) -> str:
        wanted = number % 2
        elsewhere = (-offset[1], offset[0])
        return tell_colours(self.sentences[wanted * PHRASINGS + number], {wanted: offset, 1 - wanted: elsewhere}, [])


def gridworld_text(world: Gridworld, agent_type: str) -> GridworldText:
    """The words that suit a grid world."""
    return InstructedText(world, agent_type) if world.sentences else GridworldText(world, agent_type)


def tell(targets: list[tuple[int, int]], walls: list[str]) -> str:
    """The nearest target, the longer way first, and where walls are."""
    if not targets:
        return f"No target is in sight.{_wall(walls)}"
    nearest = min(targets, key=lambda offset: (abs(offset[0]) + abs(offset[1]), offset))
    return f"The target is {_where(*nearest)}.{_wall(walls)}"


def tell_colours(instruction: str, targets: dict[int, tuple[int, int]], walls: list[str]) -> str:
    """What is asked for, where the targets of each colour are, and where walls are."""
    places = " ".join(f"The {COLOURS[k]} target is {_where(*offset)}." for k, offset in targets.items())
    return f"{instruction} {places or 'No target is in sight.'}{_wall(walls)}"


def _where(down: int, across: int) -> str:
    ways = [(abs(down), WORDS[down > 0]), (abs(across), WORDS[2 + (across > 0)])]
    ways = sorted((way for way in ways if way[0]), key=lambda way: -way[0])
    return " and ".join(f"{steps} step{'s' * (steps > 1)} {word}" for steps, word in ways) or "here"


def _wall(walls: list[str]) -> str:
    return f" There is a wall {' and '.join(walls)}." if walls else ""


def _as_rows(observation: Tree) -> Array:
    if isinstance(observation, dict):
        return np.concatenate([part.reshape(len(part), -1) for part in observation.values()], axis=1)
    return observation.reshape(len(observation), -1)


def _blocked(walls: Array, row: int, column: int) -> list[str]:
    return [word for word, (r, c) in zip(WORDS, MOVES[:STAY].tolist(), strict=False) if walls[row + r, column + c]]


@njit(cache=True)
def _shortens(places: Places, told: Told, telling: Telling, rules: Rules, moves: Array, good: Array) -> None:
    """Write which moves `[N, A]` come nearer to where their agents should go."""
    size, targets = rules.size, places.targets.shape[1]
    distance = np.empty((targets, size, size), np.int32)
    queue = np.empty(size * size, np.int32)
    turn, blocked = np.empty(targets, np.bool_), np.empty((size, size), np.bool_)
    for n in range(moves.shape[0]):
        open_ways(places, told, telling, n, turn, blocked)
        for k in range(targets):
            measure(places, n, k, blocked, distance[k], queue)
        for a in range(moves.shape[1]):
            row, column = places.agents[n, a, 0], places.agents[n, a, 1]
            r, c = row + MOVES[moves[n, a], 0], column + MOVES[moves[n, a], 1]
            if not (0 <= r < size and 0 <= c < size) or places.walls[n, r, c]:
                r, c = row, column
            now, then = FAR, FAR
            for k in range(targets):
                if (k == a or rules.mode != RACE) and turn[k]:
                    if distance[k, row, column] >= 0:
                        now = min(now, distance[k, row, column])
                    if distance[k, r, c] >= 0:
                        then = min(then, distance[k, r, c])
            shut_in = now == FAR and not blocked[r, c]  # no way but over what must wait: all else is as good
            good[n, a] = then < now or (now == 0 and then == 0) or shut_in
