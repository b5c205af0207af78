"""Observations of the door-key tasks: the present view, and the map of what the agent has seen in this episode.

Both are written as the agent faces them: forward is up. The view is MiniGrid's, walls hiding what is behind them, as
one plane for each kind of cell. The map is absolute inside the world (`RoomState.seen`). Only the agent changes cells,
always the one in front of it, so what it remembers is true, and what it did not see stays unknown to it. The map is
observed as a window around the agent, and as landmarks: the nearest key, door and goal that it knows, and the nearest
unexplored cell, wherever they are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from coterie.core.jit import device_function, jit
from coterie.core.types import Array
from coterie.nn.launch import kernel
from coterie.worlds.doorkey.layouts import (
    BLUE,
    COLORED,
    COLUMNS,
    DOOR,
    DOOR_KEY,
    EMPTY,
    EMPTY_ROOM,
    GOAL_OBJECT,
    KEY,
    LAVA_OBJECT,
    LAVA_ROOM,
    OPEN,
    ROWS,
    TWO_DOOR,
    WALL,
    WALL_OBJECT,
    RoomState,
    Rules,
    can_walk,
    colour_of,
    door_state,
    hides,
    object_of,
)

# Planes of the view. In a task with two colours, keys and doors of the second one (blue) have planes of their own.
(P_UNSEEN, P_WALL, P_KEY, P_LOCKED, P_CLOSED, P_OPEN, P_GOAL, P_LAVA, P_KEY_BLUE, P_LOCKED_BLUE) = range(10)
PLANES = {
    EMPTY_ROOM: (P_WALL, P_GOAL),
    DOOR_KEY: (P_UNSEEN, P_WALL, P_KEY, P_LOCKED, P_CLOSED, P_OPEN, P_GOAL),
    COLORED: (P_UNSEEN, P_WALL, P_KEY, P_LOCKED, P_KEY_BLUE, P_LOCKED_BLUE),
    LAVA_ROOM: (P_UNSEEN, P_WALL, P_KEY, P_LOCKED, P_LAVA),
}
FAMILY_PLANES = (P_UNSEEN, P_WALL, P_KEY, P_LOCKED)
# Landmarks: a key that fits the door as far as the agent knows, a key known not to fit, a door, the goal, and an
# unexplored cell next to the nearest reachable one.
L_KEY, L_WRONG_KEY, L_DOOR, L_GOAL, L_UNEXPLORED = range(5)
LANDMARKS = {
    EMPTY_ROOM: (L_GOAL, L_UNEXPLORED),
    DOOR_KEY: (L_KEY, L_DOOR, L_GOAL, L_UNEXPLORED),
    COLORED: (L_KEY, L_WRONG_KEY, L_DOOR, L_UNEXPLORED),
}
FAMILY_LANDMARKS = (L_KEY, L_DOOR, L_UNEXPLORED)
LANDMARK_SIZE = 6  # known, forward and right in parts of the grid's size, their signs, in front
MATCH_UNKNOWN, MATCH, NO_MATCH = range(3)  # does a key fit the door?
ANYWHERE, INSIDE, MIDDLE, OUTER_WALLS = range(4)  # where to explore


class Layout(NamedTuple):
    """First index of each part of an observation in a row; −1 for a part that is left out."""

    width: int
    sight: int  # the view [planes, V, V], then the direction [4] and the carried key by colour [colours]
    compass: int
    carried: int
    colours: int  # that matter: 0, 1 or 2
    planes: Array  # [10] which plane of the view a kind of cell has, or −1
    num_planes: int
    hand: int  # of the map: holds a key; with two colours also known to fit, known not to fit
    door: int  # of the map: the state of the known door, one-hot: open, closed, locked
    edges: int  # of the map: cells up to the edge of the grid forward, right, back and left, in parts of its size
    landmarks: int  # [num_landmarks, LANDMARK_SIZE]
    slots: Array  # [5] the number of each landmark, or −1
    num_landmarks: int
    window: int  # [window_planes, window_size, window_size]: unknown, obstacle, lava
    window_size: int
    window_planes: int


def make_layout(rules: Rules, observe: str, map_size: int) -> Layout:
    """The layout of the observations of a task."""
    kinds = PLANES.get(rules.task, FAMILY_PLANES)
    marks = LANDMARKS.get(rules.task, FAMILY_LANDMARKS)
    colours = {EMPTY_ROOM: 0, COLORED: 2}.get(rules.task, 1)
    starts: dict[str, int] = {}
    width = 0

    def part(name: str, size: int, present: bool) -> None:
        nonlocal width
        starts[name] = width if present and size else -1
        width += size if present else 0

    seen, mapped = observe in ("view", "both"), observe in ("map", "both")
    window_planes = 3 if rules.task == LAVA_ROOM else 2
    part("sight", len(kinds) * rules.view_size**2, seen)
    part("compass", 4, seen)
    part("carried", colours, seen)
    part("hand", (0, 1, 3)[colours], mapped)
    part("door", 3 if rules.task == DOOR_KEY else 0, mapped)
    part("edges", 4, mapped)
    part("landmarks", LANDMARK_SIZE * len(marks), mapped)
    part("window", window_planes * map_size**2, mapped)
    return Layout(
        **starts,
        width=width,
        colours=colours,
        planes=np.array([kinds.index(kind) if kind in kinds else -1 for kind in range(10)]),
        num_planes=len(kinds),
        slots=np.array([marks.index(mark) if mark in marks else -1 for mark in range(5)]),
        num_landmarks=len(marks),
        window_size=map_size,
        window_planes=window_planes,
    )


# The view ---------------------------------------------------------------------------------------------------


@device_function
def look(state: RoomState, rules: Rules, n: int, cells: Array, visible: Array) -> None:
    """Write the view: `cells` and `visible` [V, V], the agent in the middle of the last row, facing up.

    Which cells are visible follows MiniGrid's `process_vis`: sight spreads from the agent's row upwards, in each row
    from left to right and back, from every visible cell that hides nothing to its neighbours beside and above.
    """
    side, size = rules.view_size, rules.size
    row, column, direction = state.agent[n, 0], state.agent[n, 1], state.agent[n, 2]
    half = side // 2
    ahead_row, ahead_column = ROWS[direction], COLUMNS[direction]
    right_row, right_column = COLUMNS[direction], -ROWS[direction]
    for j in range(side):
        for i in range(side):
            r = row + (side - 1 - j) * ahead_row + (i - half) * right_row
            c = column + (side - 1 - j) * ahead_column + (i - half) * right_column
            cells[j, i] = state.cells[n, r, c] if 0 <= r < size and 0 <= c < size else WALL
    for j in range(side):
        for i in range(side):
            visible[j, i] = rules.see_through
    visible[side - 1, half] = True
    if rules.see_through:
        return
    for j in range(side - 1, -1, -1):
        for i in range(side - 1):
            if visible[j, i] and not hides(cells[j, i]):
                visible[j, i + 1] = True
                if j > 0:
                    visible[j - 1, i + 1] = True
                    visible[j - 1, i] = True
        for i in range(side - 1, 0, -1):
            if visible[j, i] and not hides(cells[j, i]):
                visible[j, i - 1] = True
                if j > 0:
                    visible[j - 1, i - 1] = True
                    visible[j - 1, i] = True


@device_function
def remember(state: RoomState, rules: Rules, n: int, visible: Array) -> None:
    """Mark the visible cells as seen."""
    side, size = rules.view_size, rules.size
    row, column, direction = state.agent[n, 0], state.agent[n, 1], state.agent[n, 2]
    for j in range(side):
        for i in range(side):
            if visible[j, i]:
                ahead, right = side - 1 - j, i - side // 2
                r = row + ahead * ROWS[direction] + right * COLUMNS[direction]
                c = column + ahead * COLUMNS[direction] - right * ROWS[direction]
                if 0 <= r < size and 0 <= c < size:
                    state.seen[n, r, c] = True


@device_function
def _plane(cell: int, colours: int) -> int:
    """The kind of a visible cell, or −1 for free floor."""
    kind = object_of(cell)
    if kind == WALL_OBJECT:
        return P_WALL
    blue = colours == 2 and colour_of(cell) == BLUE
    if kind == KEY:
        return P_KEY_BLUE if blue else P_KEY
    if kind == DOOR:
        if door_state(cell) == OPEN:
            return P_OPEN
        return P_CLOSED if door_state(cell) == 1 else P_LOCKED_BLUE if blue else P_LOCKED
    if kind == GOAL_OBJECT:
        return P_GOAL
    return P_LAVA if kind == LAVA_OBJECT else -1


@device_function
def _write_view(
    state: RoomState, rules: Rules, layout: Layout, n: int, cells: Array, visible: Array, out: Array
) -> None:
    side = rules.view_size
    area = side * side
    for j in range(side):
        for i in range(side):
            if j == side - 1 and i == side // 2:
                continue  # the agent's own cell
            kind = _plane(cells[j, i], layout.colours) if visible[j, i] else P_UNSEEN
            if kind >= 0 and layout.planes[kind] >= 0:
                out[layout.sight + layout.planes[kind] * area + j * side + i] = 1.0
    out[layout.compass + state.agent[n, 2]] = 1.0
    hand = state.hand[n]
    if hand and layout.carried >= 0:
        out[layout.carried + (layout.colours == 2 and colour_of(hand) == BLUE)] = 1.0


# The map ----------------------------------------------------------------------------------------------------


@device_function
def known_door(state: RoomState, n: int) -> int:
    """A door that the agent has seen (the openest, where there are two), or 0."""
    found = 0
    cells, seen = state.cells[n], state.seen[n]
    for row in range(len(cells)):
        for column in range(len(cells)):
            cell = cells[row, column]
            if object_of(cell) == DOOR and seen[row, column] and (found == 0 or door_state(cell) < door_state(found)):
                found = cell
    return found


@device_function
def match(key: int, door: int) -> int:
    """Whether a key fits the door that the agent knows."""
    if door == 0:
        return MATCH_UNKNOWN
    return MATCH if colour_of(key) == colour_of(door) else NO_MATCH


@device_function
def landmark_of(cell: int, door: int) -> int:
    """The landmark that a cell may be, or −1."""
    kind = object_of(cell)
    if kind == KEY:
        return L_WRONG_KEY if match(cell, door) == NO_MATCH else L_KEY
    if kind == DOOR:
        return L_DOOR
    return L_GOAL if kind == GOAL_OBJECT else -1


@device_function
def sought_area(state: RoomState, task: int, n: int) -> int:
    """The area to explore: MiniGrid's layouts have nothing in their outer walls.

    In a room with two doors the key lies in the middle, and the doors in the outer walls.
    """
    if task != TWO_DOOR:
        return INSIDE if task in (EMPTY_ROOM, DOOR_KEY) else ANYWHERE
    wanted = DOOR if state.hand[n] else KEY
    cells, seen = state.cells[n], state.seen[n]
    for row in range(len(cells)):
        for column in range(len(cells)):
            if seen[row, column] and object_of(cells[row, column]) == wanted:
                return ANYWHERE  # found
    return OUTER_WALLS if state.hand[n] else MIDDLE


@device_function
def is_sought(area: int, size: int, row: int, column: int) -> bool:
    """Whether an unknown cell lies where the agent wants to explore; corners hold no doors."""
    if area == ANYWHERE:
        return True
    low, high = size // 2 - 1, size // 2
    if area == MIDDLE:
        return low <= row <= high and low <= column <= high
    edge = row == 0 or row == size - 1, column == 0 or column == size - 1
    return not (edge[0] or edge[1]) if area == INSIDE else edge[0] != edge[1]


@device_function
def may_pass(cells: Array, seen: Array, row: int, column: int, area: int) -> bool:
    """Whether a way may lead through a cell: known free floor, or towards a distant area also unknown cells."""
    if not seen[row, column]:
        return area >= MIDDLE
    kind = object_of(cells[row, column])
    return kind != GOAL_OBJECT and kind != LAVA_OBJECT and can_walk(cells[row, column])


@device_function
def _unexplored(state: RoomState, n: int, area: int, queue: Array, reached: Array) -> int:
    """The nearest unknown cell of an area to walk to, or −1 when there is none.

    The search never enters lava or the goal. Its order depends on the agent's direction only, so that the same scene
    looks the same in all four rotations.
    """
    cells, seen = state.cells[n], state.seen[n]
    size = len(cells)
    for cell in range(size * size):
        reached[cell] = False
    start = state.agent[n, 0] * size + state.agent[n, 1]
    queue[0], reached[start] = start, True
    head, tail = 0, 1
    while head < tail:
        row, column = queue[head] // size, queue[head] % size
        head += 1
        for turn in (0, 1, 3, 2):  # forward, right, left, back
            direction = (state.agent[n, 2] + turn) % 4
            r, c = row + ROWS[direction], column + COLUMNS[direction]
            if not (0 <= r < size and 0 <= c < size) or reached[r * size + c]:
                continue
            if not seen[r, c] and is_sought(area, size, r, c):
                return r * size + c
            reached[r * size + c] = True
            if may_pass(cells, seen, r, c, area):
                queue[tail] = r * size + c
                tail += 1
    return -1


@device_function
def _write_landmark(agent: Array, layout: Layout, mark: int, row: int, column: int, size: int, out: Array) -> None:
    if layout.slots[mark] < 0:
        return
    down, across = row - agent[0], column - agent[1]
    direction = agent[2]
    forward = down * ROWS[direction] + across * COLUMNS[direction]
    right = down * COLUMNS[direction] - across * ROWS[direction]
    at = layout.landmarks + layout.slots[mark] * LANDMARK_SIZE
    out[at] = 1.0
    out[at + 1], out[at + 2] = forward / size, right / size
    out[at + 3], out[at + 4] = (forward > 0) - (forward < 0), (right > 0) - (right < 0)
    out[at + 5] = forward == 1 and right == 0


@device_function
def _write_landmarks(
    state: RoomState, task: int, layout: Layout, n: int, door: int, scratch: Scratch, out: Array
) -> None:
    cells, seen, agent = state.cells[n], state.seen[n], state.agent[n]
    size = len(cells)
    front_row, front_column = agent[0] + ROWS[agent[2]], agent[1] + COLUMNS[agent[2]]
    nearest, row_of, column_of = scratch.nearest[n, 0], scratch.nearest[n, 1], scratch.nearest[n, 2]
    for mark in range(4):
        nearest[mark] = 4 * size
    for row in range(size):
        for column in range(size):
            cell = cells[row, column]
            if not seen[row, column] or cell in (EMPTY, WALL):
                continue
            mark = landmark_of(cell, door)
            distance = 2 * (abs(row - agent[0]) + abs(column - agent[1]))
            if row == front_row and column == front_column:
                distance -= 1  # of two that are next to the agent, the one in front
            if mark >= 0 and distance < nearest[mark]:
                nearest[mark], row_of[mark], column_of[mark] = distance, row, column
    for mark in range(4):
        if nearest[mark] < 4 * size:
            _write_landmark(agent, layout, mark, row_of[mark], column_of[mark], size, out)
    area = sought_area(state, task, n)
    unknown = _unexplored(state, n, area, scratch.queue[n], scratch.reached[n])
    if unknown < 0 and area >= MIDDLE:
        unknown = _unexplored(state, n, ANYWHERE, scratch.queue[n], scratch.reached[n])
    if unknown >= 0:
        _write_landmark(agent, layout, L_UNEXPLORED, unknown // size, unknown % size, size, out)


@device_function
def _write_map(state: RoomState, task: int, layout: Layout, n: int, scratch: Scratch, out: Array) -> None:
    cells, seen = state.cells[n], state.seen[n]
    size = len(cells)
    row, column, direction = state.agent[n, 0], state.agent[n, 1], state.agent[n, 2]
    door = known_door(state, n)
    hand = state.hand[n]
    if hand and layout.hand >= 0:
        out[layout.hand] = 1.0
        if layout.colours == 2:
            fits = match(hand, door)
            out[layout.hand + 1], out[layout.hand + 2] = fits == MATCH, fits == NO_MATCH
    if door and layout.door >= 0:
        out[layout.door + door_state(door)] = 1.0
    for turn in range(4):
        facing = (direction + turn) % 4
        coordinate = row if facing % 2 else column
        out[layout.edges + turn] = (coordinate if facing >= 2 else size - 1 - coordinate) / size
    _write_landmarks(state, task, layout, n, door, scratch, out)
    half, side = layout.window_size // 2, layout.window_size
    area = side * side
    for j in range(side):
        for i in range(side):
            r = row + (half - j) * ROWS[direction] + (i - half) * COLUMNS[direction]
            c = column + (half - j) * COLUMNS[direction] - (i - half) * ROWS[direction]
            at = layout.window + j * side + i
            if not (0 <= r < size and 0 <= c < size):
                out[at + area] = 1.0
            elif not seen[r, c]:
                out[at] = 1.0
            elif not can_walk(cells[r, c]):
                out[at + area] = 1.0
            elif layout.window_planes == 3 and object_of(cells[r, c]) == LAVA_OBJECT:
                out[at + 2 * area] = 1.0


class Scratch(NamedTuple):
    """Arrays that the kernels overwrite."""

    cells: Array  # [N, V, V] int16
    visible: Array  # [N, V, V] bool
    queue: Array  # [N, S · S] int32
    reached: Array  # [N, S · S] bool
    nearest: Array  # [N, 3, 4] int64: of each landmark's nearest place the distance, row and column


def make_scratch(rules: Rules, num_envs: int) -> Scratch:
    """Scratch arrays for one task."""
    side, area = rules.view_size, rules.size**2
    return Scratch(
        cells=np.zeros((num_envs, side, side), np.int16),
        visible=np.zeros((num_envs, side, side), np.bool_),
        queue=np.zeros((num_envs, area), np.int32),
        reached=np.zeros((num_envs, area), np.bool_),
        nearest=np.zeros((num_envs, 3, 4), np.int64),
    )


@kernel
def observe(n: int, state: RoomState, rules: Rules, layout: Layout, scratch: Scratch, out: Array) -> None:
    """Look around, remember what is visible, and write the observation into `out` [N, D]."""
    cells, visible = scratch.cells[n], scratch.visible[n]
    look(state, rules, n, cells, visible)
    remember(state, rules, n, visible)
    for i in range(out.shape[1]):
        out[n, i] = 0.0
    if layout.sight >= 0:
        _write_view(state, rules, layout, n, cells, visible, out[n])
    if layout.edges >= 0:
        _write_map(state, rules.task, layout, n, scratch, out[n])


@jit
def write_image(state: RoomState, rules: Rules, n: int, scratch: Scratch, image: Array) -> None:
    """Write MiniGrid's observation of copy n: `image` [V, V, 3] uint8, column first."""
    cells, visible = scratch.cells[n], scratch.visible[n]
    look(state, rules, n, cells, visible)
    side = rules.view_size
    for i in range(side):
        for j in range(side):
            cell = cells[j, i] if visible[j, i] else 0
            if i == side // 2 and j == side - 1:
                cell = state.hand[n] if state.hand[n] else EMPTY
            image[i, j, 0], image[i, j, 1], image[i, j, 2] = object_of(cell), colour_of(cell), door_state(cell)
