"""Sokoban: push every box onto a goal.

The tool proposes moves, as letters or as a program that prints them; the planner reads the proposal and moves. A turn's
moves are made one after the other, up to the first that is not possible: into a wall, or a box that cannot be pushed.
A solution or a deadlock ends them; what is written after it counts nothing. Endless proposals are cut off.

Instances are made by reverse play: all positions from which the goals can be reached are found by pulling boxes away
from the goals (`solver`), and one that is at least `min_pushes` away is drawn. A position that is not among them is a
deadlock, exactly; it ends the episode.

Rewards: the team's is 1 for all boxes on goals. The role's own is BOX · (boxes on goals gained − lost) / boxes, less
for an impossible move, a deadlock, or an answer that cannot be read. A proposal is rewarded for what following it would
do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from coterie.core.jit import jit
from coterie.core.types import Array
from coterie.core.validation import at_least, one_of, whole, within
from coterie.worlds.tasks.moves import MOVES, read_moves, spell
from coterie.worlds.tasks.task import Outcome, TaskSettings
from coterie.worlds.tasks.world import TaskWorld

if TYPE_CHECKING:
    from coterie.worlds.adapters.export_aec import PettingZooAECEnv

BOX = 0.5  # local reward for all boxes on goals
INVALID, DEADLOCK, UNREADABLE = -0.25, -0.5, -0.5  # local rewards
LONGEST = 8  # moves of a proposal at most, times the cells of the room; more would only fill the planner's prompt
MAX_POSITIONS = 4_000_000  # of one instance, solvable or not: cells to the power of boxes + 1
Tool = Literal["moves", "program"]
LETTERS = "".join(MOVES)

TOOL = (
    "You are the tool. Push every box onto a goal. @ is the player (+ on a goal), $ a box (* on a goal), o a goal, "
    "# a wall. Boxes are pushed, never pulled.\n{grid}\n"
)
TEMPLATES = {
    "moves": TOOL + "Write the player's moves as letters U, D, L, R.\nMoves:",
    "program": TOOL + "Write a Python program that reads the grid from standard input and prints the player's moves as "
    "letters U, D, L, R.\n```python\n",
}
PLANNER = (
    "You are the planner. Push every box onto a goal. @ is the player (+ on a goal), $ a box (* on a goal), o a goal, "
    "# a wall. Boxes are pushed, never pulled.\n{grid}\nThe tool proposes: {proposal}\n"
    "Write the player's moves as letters U, D, L, R.\nMoves:"
)


@dataclass(frozen=True)
class SokobanSettings(TaskSettings):
    """Size of the room, number of boxes, difficulty, and what the tool writes."""

    # Cells along the side of the room, its outer walls included.
    size: int = 6
    # Boxes, and goals.
    boxes: int = 1
    # Share of inner cells that are walls.
    walls: float = 0.1
    # Pushes of a shortest solution, at least.
    min_pushes: int = 2
    # Pushes of a shortest solution, at most; 0: no limit.
    max_pushes: int = 0
    # Moves that the planner makes in one turn at most; 0: as many as it writes.
    max_moves: int = 0
    # What the tool writes: moves, or a program that prints them and runs in the sandbox.
    tool: Tool = "moves"
    # Whether cells and moves are written with a space between two, one token each for pretrained models.
    spaced: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, low in (("size", 5), ("boxes", 1), ("min_pushes", 1), ("max_pushes", 0), ("max_moves", 0)):
            whole(name, getattr(self, name))
            at_least(name, getattr(self, name), low)
        within("walls", self.walls, 0, 0.4)
        if self.max_pushes and self.max_pushes < self.min_pushes:
            raise ValueError(f"max_pushes must be 0 or at least min_pushes ({self.min_pushes}), got {self.max_pushes}")
        positions = (self.size - 2) ** (2 * (self.boxes + 1))
        if positions > MAX_POSITIONS:
            raise ValueError(
                f"size and boxes: {self.boxes} boxes in {self.size} × {self.size} cells have {positions:,} positions; "
                f"at most {MAX_POSITIONS:,} can be searched"
            )
        one_of("tool", self.tool, get_args(Tool))


@dataclass(frozen=True)
class SokobanState:
    """A room, where the player and the boxes are, and the tool's latest proposal."""

    size: int
    walls: str  # one character per cell, row by row: '#' or '.'
    goals: tuple[int, ...]  # cells, in order
    player: int
    boxes: tuple[int, ...]  # cells, in order
    moved: int = 0  # moves so far
    proposal: str = ""


# Rules ------------------------------------------------------------------------------------------------


def move(state: SokobanState, letter: str) -> SokobanState | None:
    """The state after one move; None where it is not possible."""
    step = _step(state.size, letter)
    to = state.player + step
    if state.walls[to] == "#":
        return None
    boxes = state.boxes
    if to in boxes:
        if state.walls[to + step] == "#" or to + step in boxes:
            return None
        boxes = tuple(sorted(to + step if box == to else box for box in boxes))
    return replace(state, player=to, boxes=boxes, moved=state.moved + 1)


def _step(size: int, letter: str) -> int:
    down, right = MOVES[letter]
    return down * size + right


def on_goals(state: SokobanState) -> int:
    """The number of boxes on goals."""
    return len(set(state.boxes) & set(state.goals))


def grid_text(state: SokobanState) -> str:
    """The room in letters."""
    cells = list(state.walls)
    for cell in state.goals:
        cells[cell] = "o"
    for cell in state.boxes:
        cells[cell] = "*" if cell in state.goals else "$"
    cells[state.player] = "+" if state.player in state.goals else "@"
    return "\n".join("".join(cells[row : row + state.size]) for row in range(0, len(cells), state.size))


# Solver -----------------------------------------------------------------------------------------------


class Solver:
    """Pushes to the end from every position of a room, found backwards from the goals."""

    def __init__(self, size: int, walls: str, goals: tuple[int, ...]) -> None:
        self.size, self.free = size, [cell for cell, sign in enumerate(walls) if sign == "."]
        self.number = {cell: i for i, cell in enumerate(self.free)}
        steps = [_step(size, letter) for letter in LETTERS]
        near = [[self.number.get(cell + step, -1) for step in steps] for cell in self.free]
        ends = np.array([self.number[goal] for goal in goals], np.int64)
        self.pushes = _pull_from(np.array(near, np.int64), ends)

    def distance(self, state: SokobanState) -> int:
        """Pushes of a shortest solution; −1: there is none."""
        place = 0
        for cell in (*state.boxes, state.player):
            place = place * len(self.free) + self.number[cell]
        return int(self.pushes[place])

    def positions(self, least: int, most: int) -> Array:
        """The numbers of all positions so many pushes away."""
        return np.flatnonzero((self.pushes >= least) & ((self.pushes <= most) | (most == 0)))

    def cells(self, place: int, boxes: int) -> list[int]:
        """The cells of the boxes and of the player in a numbered position."""
        found = []
        for _ in range(boxes + 1):
            place, number = divmod(place, len(self.free))
            found.append(self.free[number])
        return found[::-1]

    def solution(self, state: SokobanState) -> str:
        """Moves with the fewest pushes, and between them the shortest walks."""
        moves = ""
        while self.distance(state):
            moves_to_push, state = self._next_push(state)
            moves += moves_to_push
        return moves

    def _next_push(self, state: SokobanState) -> tuple[str, SokobanState]:
        wanted, seen, queue = self.distance(state) - 1, {state.player}, deque([("", state)])
        while queue:
            moves, at = queue.popleft()
            for letter in LETTERS:
                after = move(at, letter)
                if after is None:
                    continue
                if after.boxes != at.boxes:
                    if self.distance(after) == wanted:
                        return moves + letter, after
                elif after.player not in seen:
                    seen.add(after.player)
                    queue.append((moves + letter, after))
        raise ValueError("this position cannot be solved")


@lru_cache(maxsize=512)
def solver(size: int, walls: str, goals: tuple[int, ...]) -> Solver:
    """The solver of a room."""
    return Solver(size, walls, goals)


def _solver(state: SokobanState) -> Solver:
    return solver(state.size, state.walls, state.goals)


@jit
def _pull_from(near: Array, goals: Array) -> Array:
    """Pushes to the end `[cells ** (boxes + 1)]` of every position, −1 without one.

    A position's number has the boxes as its digits, in order, then the player. Positions of equal distance are found
    together: the player walks for nothing, and a pull adds one.
    """
    cells, count = len(near), len(goals)
    total = cells ** (count + 1)
    pushes = np.full(total, -1, np.int16)
    queue, later = np.empty(total, np.int32), np.empty(total, np.int32)
    boxes, moved = np.empty(count, np.int64), np.empty(count, np.int64)
    size = 0
    for player in range(cells):
        if not np.any(goals == player):
            queue[size] = _place(goals, player, cells)
            pushes[queue[size]] = 0
            size += 1
    level = 0
    while size:
        at, waiting = 0, 0
        while at < size:
            place = queue[at]
            at += 1
            player = place % cells
            rest = place // cells
            for i in range(count - 1, -1, -1):
                boxes[i] = rest % cells
                rest //= cells
            for letter in range(4):
                behind = near[player, letter ^ 1]
                if behind < 0 or np.any(boxes == behind):
                    continue
                walked = place - player + behind
                if pushes[walked] < 0:
                    pushes[walked] = level
                    queue[size] = walked
                    size += 1
                ahead = near[player, letter]
                if ahead >= 0 and np.any(boxes == ahead):
                    for i in range(count):
                        moved[i] = player if boxes[i] == ahead else boxes[i]
                    pulled = _place(np.sort(moved), behind, cells)
                    if pushes[pulled] == -1:
                        pushes[pulled] = -2  # found, but walking may still lead there without this pull
                        later[waiting] = pulled
                        waiting += 1
        level += 1
        size = 0
        for i in range(waiting):
            if pushes[later[i]] < 0:
                pushes[later[i]] = level
                queue[size] = later[i]
                size += 1
    return pushes


@jit
def _place(boxes: Array, player: int, cells: int) -> int:
    place = 0
    for box in boxes:
        place = place * cells + box
    return place * cells + player


# The task ---------------------------------------------------------------------------------------------


class SokobanTask:
    """The rules of Sokoban."""

    roles: tuple[str, ...] = ("tool", "planner")
    state_type = SokobanState

    def __init__(self, settings: SokobanSettings) -> None:
        self.settings = settings
        self.templates: Mapping[str, str] = {"tool": TEMPLATES[settings.tool], "planner": PLANNER}

    def generate(self, random: np.random.Generator) -> SokobanState:
        """A position that pulls from the goals lead to, far enough away."""
        s = self.settings
        inner = [row * s.size + column for row in range(1, s.size - 1) for column in range(1, s.size - 1)]
        for _ in range(1000):
            open_cells = [cell for cell in inner if random.random() >= s.walls]
            if len(open_cells) <= s.boxes + 1:
                continue
            walls = "".join("." if cell in open_cells else "#" for cell in range(s.size * s.size))
            goals = tuple(sorted(random.choice(open_cells, s.boxes, replace=False).tolist()))
            known = Solver(s.size, walls, goals)
            places = known.positions(s.min_pushes, s.max_pushes)
            if len(places):
                *boxes, player = known.cells(int(random.choice(places)), s.boxes)
                return SokobanState(s.size, walls, goals, player, tuple(boxes))
        raise ValueError(f"min_pushes={s.min_pushes}: no room has a solution that long; lower it, or raise size")

    def identity(self, state: SokobanState) -> str:
        return f"{state.walls}/{state.goals}"  # not boxes and player: pushes lead to the starts of other instances

    def fields(self, state: SokobanState, role: str) -> Mapping[str, str]:
        path = self._spell(state.proposal)
        return {"grid": self._spell(grid_text(state)), "proposal": path or "nothing", "path": path}

    def _spell(self, lines: str) -> str:
        return spell(lines, self.settings.spaced)

    def apply(self, state: SokobanState, role: str, answer: str) -> Outcome:
        program = self.settings.tool == "program"
        moves = read_moves(answer, lambda: self._spell(grid_text(state)), role == "tool", program)
        if moves is None:
            proposal = "" if role == "tool" else state.proposal
            after = replace(state, proposal=proposal)
            return Outcome(after, local=UNREADABLE, readable=False, note="no moves could be read")
        if role == "tool":
            moves = moves[: LONGEST * state.size**2]
        elif self.settings.max_moves:
            moves = moves[: self.settings.max_moves]
        after, possible = self._walk(state, moves)
        solved, dead = on_goals(after) == len(after.goals), _solver(after).distance(after) < 0
        local = BOX * (on_goals(after) - on_goals(state)) / len(state.goals)
        local += (0.0 if possible else INVALID) + (DEADLOCK if dead else 0.0)
        note = f"{after.moved - state.moved} moves" + ("" if possible else ", then one that is not possible")
        note += (", solved" if solved else "") + (", deadlock" if dead else "")
        if role == "tool":
            return Outcome(replace(state, proposal=moves), float(solved), local, note=f"proposes {note}")
        return Outcome(replace(after, proposal=""), float(solved), local, solved=solved, failed=dead, note=note)

    def _walk(self, state: SokobanState, moves: str) -> tuple[SokobanState, bool]:
        """The state after the moves, and whether all were possible; a solution or a deadlock ends them."""
        for letter in moves:
            after = move(state, letter)
            if after is None:
                return state, False
            pushed, state = after.boxes != state.boxes, after
            if pushed and _solver(state).distance(state) <= 0:
                break
        return state, True

    def solve(self, state: SokobanState, role: str) -> str:
        moves = _solver(state).solution(state)
        return self._spell(moves if role == "tool" or not self.settings.max_moves else moves[: self.settings.max_moves])

    def guess(self, state: SokobanState, role: str, random: np.random.Generator) -> str:
        longest = self.settings.max_moves or 2 * self.settings.size
        return self._spell("".join(random.choice(list(LETTERS), int(random.integers(1, longest + 1))).tolist()))

    def draw(self, state: SokobanState) -> str:
        return grid_text(state)


def env(render_mode: str | None = None, **settings: Any) -> PettingZooAECEnv:
    """Sokoban as a PettingZoo AEC environment; `settings` are those of `SokobanSettings`."""
    from coterie.worlds.adapters.export_aec import make_env

    return make_env(Sokoban, SokobanSettings, "sokoban", render_mode, settings)


class Sokoban(TaskWorld):
    """N copies of Sokoban."""

    def __init__(self, settings: SokobanSettings, num_envs: int) -> None:
        super().__init__(settings, num_envs, SokobanTask(settings), proposing=("tool",))
