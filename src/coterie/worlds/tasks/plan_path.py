"""Plan-Path: find a shortest path through a grid with walls.

The tool proposes a path, as moves or as a program that prints moves; the planner reads the proposal and moves. A turn's
moves are made one after the other, up to the first that is not possible, which later prompts name, or up to the goal:
what is written after it counts nothing. A proposal has at most as many moves as the grid has cells; more are cut off.

Rewards: the team's is 1 for reaching the goal, less for detours; the role's own is the progress by exact distance, less
for an impossible move or an answer that cannot be read. A proposal is rewarded for what following it would do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from coterie.core.validation import at_least, one_of, whole, within
from coterie.worlds.tasks.moves import MOVES, read_moves, spell
from coterie.worlds.tasks.task import Outcome, TaskSettings
from coterie.worlds.tasks.world import TaskWorld

if TYPE_CHECKING:
    from coterie.worlds.adapters.export_aec import PettingZooAECEnv

DETOUR = 0.5  # the team's reward at the goal falls to this, times …, for endless detours
UNREADABLE = -0.5  # local reward
PROGRESS = 0.5  # local reward for the whole distance
Tool = Literal["path", "program"]

TOOL = "You are the tool. Find a shortest path from S to G. # is a wall{trail}.\n{grid}\n{feedback}"
TRAIL = ", + a cell that was visited"
TEMPLATES = {
    "path": TOOL + "Write the path as letters U, D, L, R.\nPath:",
    "program": TOOL + "Write a Python program that reads the grid from standard input and prints the path as letters "
    "U, D, L, R.\n```python\n",
}
PLANNER = (
    "You are the planner. Walk from S to G. # is a wall{trail}.\n{grid}\n{feedback}The tool proposes: {proposal}\n"
    "Write your moves as letters U, D, L, R.\nMoves:"
)


@dataclass(frozen=True)
class PlanPathSettings(TaskSettings):
    """Size and density of the grid, and what the tool writes."""

    # Cells along the side of the grid.
    size: int = 10
    # Share of cells that are walls.
    walls: float = 0.22
    # Moves between start and goal at least.
    min_distance: int = 1
    # Moves that the planner makes in one turn at most; 0: as many as it writes.
    max_moves: int = 0
    # Local reward for a move that is not possible; the turn's further moves are lost in any case.
    invalid_reward: float = -0.25
    # What the tool writes: a path, or a program that prints one and runs in the sandbox.
    tool: Tool = "path"
    # Whether cells and moves are written with a space between two, one token each for pretrained models.
    spaced: bool = False
    # Whether prompts mark the cells that the walker has left with "+", so that it need not walk in circles.
    trail: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, low in (("size", 2), ("min_distance", 1), ("max_moves", 0)):
            whole(name, getattr(self, name))
            at_least(name, getattr(self, name), low)
        within("walls", self.walls, 0, 0.6)
        within("invalid_reward", self.invalid_reward, -1, 0)
        within("min_distance", self.min_distance, 1, 2 * (self.size - 1))
        one_of("tool", self.tool, get_args(Tool))


@dataclass(frozen=True)
class PathState:
    """A grid, where the walker is, and the tool's latest proposal."""

    size: int
    walls: str  # one character per cell, row by row: '#' or '.'
    at: int  # cell
    goal: int
    start: int
    moved: int = 0  # moves so far
    proposal: str = ""
    blocked: str = ""  # moves that the planner has found impossible from this cell
    left: tuple[int, ...] = ()  # cells that the walker has left, where prompts mark them


@lru_cache(maxsize=4096)
def distances(size: int, walls: str, goal: int) -> tuple[int, ...]:
    """Moves from every cell to the goal; −1 for cells from which it cannot be reached."""
    found = [-1] * (size * size)
    found[goal] = 0
    queue = deque([goal])
    while queue:
        cell = queue.popleft()
        for letter in MOVES:
            other = step(size, walls, cell, letter)
            if other is not None and found[other] < 0:
                found[other] = found[cell] + 1
                queue.append(other)
    return tuple(found)


def step(size: int, walls: str, cell: int, letter: str) -> int | None:
    """The cell that a move leads to; None where a wall or the edge is in the way."""
    down, right = MOVES[letter]
    row, column = divmod(cell, size)
    row, column = row + down, column + right
    if not (0 <= row < size and 0 <= column < size) or walls[row * size + column] == "#":
        return None
    return row * size + column


class PlanPathTask:
    """The rules of Plan-Path."""

    roles: tuple[str, ...] = ("tool", "planner")
    state_type = PathState

    def __init__(self, settings: PlanPathSettings) -> None:
        self.settings = settings
        self.templates: Mapping[str, str] = {"tool": TEMPLATES[settings.tool], "planner": PLANNER}

    def generate(self, random: np.random.Generator) -> PathState:
        """A grid in which the goal can be reached, and is far enough."""
        size = self.settings.size
        while True:
            walls = "".join(np.where(random.random(size * size) < self.settings.walls, "#", ".").tolist())
            free = [cell for cell in range(size * size) if walls[cell] == "."]
            if len(free) < 2:
                continue
            goal = free[int(random.integers(len(free)))]
            away = distances(size, walls, goal)
            starts = [cell for cell in free if away[cell] >= self.settings.min_distance]
            if starts:
                start = starts[int(random.integers(len(starts)))]
                return PathState(size, walls, start, goal, start)

    def identity(self, state: PathState) -> str:
        return (
            f"{state.walls}/{state.goal}"  # not the start: a walker in training comes to the starts of other instances
        )

    def fields(self, state: PathState, role: str) -> Mapping[str, str]:
        blocked = f"Not possible from here: {', '.join(state.blocked)}.\n" if state.blocked else ""
        return {
            "grid": self._spell(grid_text(state)),
            "proposal": self._spell(state.proposal) or "nothing",
            "path": self._spell(state.proposal),
            "trail": TRAIL if self.settings.trail else "",
            "feedback": blocked,
            "blocked": state.blocked,
        }

    def _spell(self, lines: str) -> str:
        return spell(lines, self.settings.spaced)

    def apply(self, state: PathState, role: str, answer: str) -> Outcome:
        moves = self._read(state, role, answer)
        if moves is None:
            proposal = "" if role == "tool" else state.proposal
            return Outcome(
                replace(state, proposal=proposal), local=UNREADABLE, readable=False, note="no moves could be read"
            )
        if role == "tool":  # more moves than cells are no shortest path, but would fill the planner's prompt
            moves = moves[: state.size**2]
        walked = moves if role == "tool" else self._limited(moves)
        at, made, possible, left = self._walk(state, walked)
        away = distances(state.size, state.walls, state.goal)
        shortest, total = away[state.start], state.moved + made
        reached = at == state.goal
        team = (1 - DETOUR * (1 - shortest / total)) if reached and total else 0.0
        local = PROGRESS * (away[state.at] - away[at]) / shortest + (0.0 if possible else self.settings.invalid_reward)
        note = f"{made} moves" + ("" if possible else ", then one that is not possible") + (", goal" if reached else "")
        if role == "tool":
            return Outcome(replace(state, proposal=moves), team, local, note=f"proposes {note}")
        known = state.blocked if at == state.at else ""
        blocked = known if possible or walked[made] in known else known + walked[made]
        after = replace(state, at=at, moved=total, proposal="", blocked=blocked)
        if self.settings.trail:
            after = replace(after, left=tuple(sorted({*state.left, *left} - {at})))
        return Outcome(after, team, local, solved=reached, note=note)

    def _read(self, state: PathState, role: str, answer: str) -> str | None:
        """The moves of an answer; a program is run to get them."""
        program = self.settings.tool == "program"
        return read_moves(answer, lambda: self._spell(grid_text(state)), role == "tool", program)

    def _limited(self, moves: str) -> str:
        return moves[: self.settings.max_moves] if self.settings.max_moves else moves

    def _walk(self, state: PathState, moves: str) -> tuple[int, int, bool, list[int]]:
        """The cell that the moves lead to, their number, whether all were possible, and the cells that were left.

        The goal ends the walk.
        """
        at, left = state.at, list[int]()
        for letter in moves:
            if at == state.goal:
                break
            following = step(state.size, state.walls, at, letter)
            if following is None:
                return at, len(left), False, left
            left.append(at)
            at = following
        return at, len(left), True, left

    def solve(self, state: PathState, role: str) -> str:
        away, at, moves = distances(state.size, state.walls, state.goal), state.at, ""
        while at != state.goal:
            for letter in MOVES:
                other = step(state.size, state.walls, at, letter)
                if other is not None and away[other] == away[at] - 1:
                    at, moves = other, moves + letter
                    break
        return self._spell(moves if role == "tool" else self._limited(moves))

    def guess(self, state: PathState, role: str, random: np.random.Generator) -> str:
        longest = self.settings.max_moves or 2 * self.settings.size
        return self._spell("".join(random.choice(list(MOVES), int(random.integers(1, longest + 1))).tolist()))

    def draw(self, state: PathState) -> str:
        return grid_text(state)


def grid_text(state: PathState) -> str:
    """The grid with S where the walker is, G at the goal, and + where the walker has been, as far as that is marked."""
    cells = list(state.walls)
    for cell in state.left:
        cells[cell] = "+"
    cells[state.goal], cells[state.at] = "G", "S"
    return "\n".join("".join(cells[row : row + state.size]) for row in range(0, len(cells), state.size))


def env(render_mode: str | None = None, **settings: Any) -> PettingZooAECEnv:
    """Plan-Path as a PettingZoo AEC environment; `settings` are those of `PlanPathSettings`."""
    from coterie.worlds.adapters.export_aec import make_env

    return make_env(PlanPath, PlanPathSettings, "plan_path", render_mode, settings)


class PlanPath(TaskWorld):
    """N copies of Plan-Path."""

    def __init__(self, settings: PlanPathSettings, num_envs: int) -> None:
        super().__init__(settings, num_envs, PlanPathTask(settings), proposing=("tool",))
