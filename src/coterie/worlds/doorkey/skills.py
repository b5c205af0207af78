"""Skills of the door-key tasks, the facts a planner decides by, and the scripted expert that chooses skills by them.

A skill is a policy over MiniGrid's seven actions that uses only what the agent has seen (`RoomState.seen`). One
breadth-first search from the agent over (cell, direction), so that turns count as steps, serves all skills; it walks
known free floor and open doors, never lava, and enters the goal only to end the episode. A row of zeros says that a
skill has ended or cannot begin:

| skill | does | ends, or cannot begin |
|---|---|---|
| explore | goes where the nearest unknown cell is in front or beside; see below | nothing unknown can be reached |
| go to key, matching key, any key, door | goes to the nearest known one and faces it | facing it; unknown, no way |
| go to goal | goes onto the nearest known goal, which ends the episode | unknown, no way |
| pick up | picks up the key in front | no key in front, or a key in hand |
| drop | goes to face free floor that is not next to a door, and drops the key | nothing in hand, or no such floor |
| open | toggles the closed door in front | no such door in front, or locked and its key not in hand |
| wait | does nothing (action `done`) | never |

In a room with two doors the agent knows where to look: it explores the middle for the key, then the outer walls for a
door, and plans its way there through unknown cells as if they were free.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from coterie.core.jit import device_function
from coterie.core.types import Array
from coterie.nn.launch import kernel
from coterie.worlds.doorkey.kernels import DONE, DROP, FORWARD, LEFT, PICK_UP, RIGHT, TOGGLE, can_toggle
from coterie.worlds.doorkey.layouts import (
    CLOSED,
    COLORED,
    COLUMNS,
    DOOR,
    DOOR_KEY,
    EMPTY,
    EMPTY_ROOM,
    GOAL_OBJECT,
    KEY,
    LOCKED,
    OPEN,
    ROWS,
    WALL,
    RoomState,
    door_state,
    object_of,
)
from coterie.worlds.doorkey.observations import (
    ANYWHERE,
    INSIDE,
    L_DOOR,
    L_KEY,
    L_WRONG_KEY,
    MATCH,
    MIDDLE,
    is_sought,
    known_door,
    landmark_of,
    match,
    may_pass,
    sought_area,
)

(
    EXPLORE,
    GO_TO_KEY,
    GO_TO_ANY_KEY,
    PICK_UP_KEY,
    DROP_KEY,
    GO_TO_DOOR,
    OPEN_DOOR,
    GO_TO_GOAL,
    WAIT,
) = range(9)
NUM_SKILLS = 9
NAMES = (
    *("explore", "go to key", "go to any key", "pick up", "drop"),
    *("go to door", "open", "go to goal", "wait"),
)
FAMILY_SKILLS = (EXPLORE, GO_TO_KEY, PICK_UP_KEY, DROP_KEY, GO_TO_DOOR, OPEN_DOOR, WAIT)
SKILLS = {
    EMPTY_ROOM: (EXPLORE, GO_TO_GOAL, WAIT),
    DOOR_KEY: (EXPLORE, GO_TO_KEY, PICK_UP_KEY, DROP_KEY, GO_TO_DOOR, OPEN_DOOR, GO_TO_GOAL, WAIT),
    COLORED: (EXPLORE, GO_TO_KEY, GO_TO_ANY_KEY, PICK_UP_KEY, DROP_KEY, GO_TO_DOOR, OPEN_DOOR, WAIT),
}


def skills_of(task: int) -> tuple[int, ...]:
    """The skills of a task."""
    return SKILLS.get(task, FAMILY_SKILLS)


def skill_names(task: int) -> tuple[str, ...]:
    """The words of a task's skills; where colours matter, `go to key` is `go to matching key`."""
    names = (NAMES[skill] for skill in skills_of(task))
    return tuple("go to matching key" if task == COLORED and name == "go to key" else name for name in names)


# Facts and the plan -----------------------------------------------------------------------------------------

NOTHING, UNKNOWN_KEY, RIGHT_KEY, WRONG_KEY = range(4)  # in hand; a key is right where only one colour exists
UNKNOWN, KNOWN, FACED = range(3)  # of a landmark


class Facts(NamedTuple):
    """Facts of one state that a planner decides by; numbers, or arrays of them."""

    hand: Array  # NOTHING, UNKNOWN_KEY, RIGHT_KEY or WRONG_KEY
    key: Array  # a key not known to be wrong: UNKNOWN, KNOWN or FACED
    wrong_key: Array  # a key known not to fit
    door: Array
    door_state: Array  # OPEN, CLOSED or LOCKED; LOCKED while no door is known
    goal: Array


FACT_SIZES = Facts(4, 3, 3, 3, 3, 3)  # type: ignore[arg-type]  # how many values each fact has


def plan(task: int, facts: Facts) -> int:
    """The right skill, from facts alone."""
    if task == EMPTY_ROOM or (facts.door != UNKNOWN and facts.door_state == OPEN):
        return GO_TO_GOAL if facts.goal != UNKNOWN else EXPLORE
    if facts.hand == WRONG_KEY:
        return DROP_KEY
    if facts.hand == RIGHT_KEY or (facts.door != UNKNOWN and facts.door_state == CLOSED):
        return (EXPLORE, GO_TO_DOOR, OPEN_DOOR)[int(facts.door)]
    if facts.hand == UNKNOWN_KEY or facts.key == UNKNOWN:
        return EXPLORE
    if facts.key == FACED:
        return PICK_UP_KEY
    return GO_TO_ANY_KEY if task == COLORED and facts.door == UNKNOWN else GO_TO_KEY


def plan_table(task: int) -> Array:
    """The right skill for all facts, `[hand, key, wrong key, door, door state, goal]`."""
    table = np.zeros(tuple(FACT_SIZES), np.int64)
    for index in np.ndindex(table.shape):
        table[index] = plan(task, Facts(*index))
    return table


@device_function
def read_facts(state: RoomState, n: int, two_colours: bool, facts: Array) -> None:
    """Write the facts [6] of copy n."""
    cells, seen, agent = state.cells[n], state.seen[n], state.agent[n]
    door = known_door(state, n)
    for i in range(len(facts)):
        facts[i] = 0
    facts[4] = door_state(door) if door else LOCKED
    if state.hand[n]:
        fits = match(state.hand[n], door)
        facts[0] = RIGHT_KEY if fits == MATCH or not two_colours else UNKNOWN_KEY if door == 0 else WRONG_KEY
    front_row, front_column = agent[0] + ROWS[agent[2]], agent[1] + COLUMNS[agent[2]]
    for row in range(len(cells)):
        for column in range(len(cells)):
            mark = landmark_of(cells[row, column], door) if seen[row, column] else -1
            if mark >= 0:
                place = 1 if mark == L_KEY else 2 if mark == L_WRONG_KEY else 3 if mark == L_DOOR else 5
                faced = row == front_row and column == front_column
                facts[place] = max(facts[place], FACED if faced else KNOWN)


# Skills -----------------------------------------------------------------------------------------------------

THERE = 7  # in place of an action: the search begins at a state in which the skill has arrived


@device_function
def _drop_spot(cells: Array, seen: Array, row: int, column: int) -> bool:
    """Whether a key may lie there: known free floor that is not next to a known door."""
    if cells[row, column] != EMPTY or not seen[row, column]:
        return False
    for direction in range(4):
        r, c = row + ROWS[direction], column + COLUMNS[direction]
        if 0 <= r < len(cells) and 0 <= c < len(cells) and seen[r, c] and object_of(cells[r, c]) == DOOR:
            return False
    return True


@device_function
def _discovers(cells: Array, seen: Array, at: int, area: int) -> bool:
    """Whether the agent at a (cell, direction) would see an unknown cell of the area in front or beside it."""
    size = len(cells)
    row, column, direction = at // 4 // size, at // 4 % size, at % 4
    for turn in (0, 1, 3):
        facing = (direction + turn) % 4
        r, c = row + ROWS[facing], column + COLUMNS[facing]
        if 0 <= r < size and 0 <= c < size and not seen[r, c] and is_sought(area, size, r, c):
            return True
    return False


@device_function
def _arrivals(state: RoomState, n: int, at: int, door: int, area: int, hits: Array) -> None:
    """Write which skills [NUM_SKILLS] bool have arrived at a (cell, direction) `at`."""
    cells, seen = state.cells[n], state.seen[n]
    size = len(cells)
    row, column, direction = at // 4 // size, at // 4 % size, at % 4
    for skill in range(NUM_SKILLS):
        hits[skill] = False
    hits[EXPLORE] = _discovers(cells, seen, at, area)
    r, c = row + ROWS[direction], column + COLUMNS[direction]
    if not (0 <= r < size and 0 <= c < size) or not seen[r, c]:
        return
    kind = object_of(cells[r, c])
    if kind == KEY:
        hits[GO_TO_ANY_KEY] = True
        hits[GO_TO_KEY] = match(cells[r, c], door) == MATCH
    hits[GO_TO_DOOR] = kind == DOOR
    hits[GO_TO_GOAL] = kind == GOAL_OBJECT
    hits[DROP_KEY] = _drop_spot(cells, seen, r, c)


@device_function
def _expand(cells: Array, seen: Array, at: int, area: int, queue: Array, tail: int, first: Array) -> int:
    """Append the new neighbours of a (cell, direction) to the queue; return its new end."""
    size = len(cells)
    row, column, direction = at // 4 // size, at // 4 % size, at % 4
    for action in (FORWARD, RIGHT, LEFT):
        reached = at - direction + (direction + (1 if action == RIGHT else 3)) % 4
        if action == FORWARD:
            r, c = row + ROWS[direction], column + COLUMNS[direction]
            if not (0 <= r < size and 0 <= c < size) or not may_pass(cells, seen, r, c, area):
                continue
            reached = (r * size + c) * 4 + direction
        if first[reached] < 0:
            first[reached] = action if first[at] == THERE else first[at]
            queue[tail] = reached
            tail += 1
    return tail


@device_function
def _search(state: RoomState, n: int, area: int, scratch: SkillScratch) -> None:
    """Write each wanted skill's first action on a shortest way into `chosen`; −1 where there is none."""
    wanted, hits, found = scratch.wanted[n], scratch.hits[n], scratch.chosen[n]
    queue, first = scratch.queue[n], scratch.first[n]
    cells, seen = state.cells[n], state.seen[n]
    size = len(cells)
    door = known_door(state, n)
    open_ends = 0
    for skill in range(NUM_SKILLS):
        found[skill] = -1
        open_ends += wanted[skill]
    for at in range(len(first)):
        first[at] = -1
    start = (state.agent[n, 0] * size + state.agent[n, 1]) * 4 + state.agent[n, 2]
    queue[0], first[start] = start, THERE
    head, tail = 0, 1
    while head < tail and open_ends > 0:
        at = queue[head]
        head += 1
        _arrivals(state, n, at, door, area, hits)
        for skill in range(NUM_SKILLS):
            if wanted[skill] and hits[skill] and found[skill] < 0:
                found[skill] = first[at]
                open_ends -= 1
        tail = _expand(cells, seen, at, area, queue, tail, first)


@device_function
def _explore_area(state: RoomState, n: int, area: int, queue: Array, first: Array) -> int:
    """The first action towards a view of an unknown cell of an area; −1 where there is no way."""
    cells, seen = state.cells[n], state.seen[n]
    for at in range(len(first)):
        first[at] = -1
    start = (state.agent[n, 0] * len(cells) + state.agent[n, 1]) * 4 + state.agent[n, 2]
    queue[0], first[start] = start, THERE
    head, tail = 0, 1
    while head < tail:
        at = queue[head]
        head += 1
        if _discovers(cells, seen, at, area):
            return first[at]
        tail = _expand(cells, seen, at, area, queue, tail, first)
    return -1


@device_function
def _want(facts: Array, hand: int, two_colours: bool, wanted: Array) -> None:
    """Write which skills [NUM_SKILLS] need the search: those whose object is known."""
    for skill in range(NUM_SKILLS):
        wanted[skill] = False
    wanted[EXPLORE] = True
    key_known = facts[1] > 0 or facts[2] > 0
    wanted[GO_TO_ANY_KEY] = key_known
    wanted[GO_TO_KEY] = facts[1] > 0 and facts[3] > 0 if two_colours else key_known
    wanted[GO_TO_DOOR] = facts[3] > 0
    wanted[GO_TO_GOAL] = facts[5] > 0
    wanted[DROP_KEY] = hand != 0


class SkillScratch(NamedTuple):
    """Arrays that the kernels overwrite."""

    facts: Array  # [N, 6] int64
    wanted: Array  # [N, NUM_SKILLS] bool
    hits: Array  # [N, NUM_SKILLS] bool
    chosen: Array  # [N, NUM_SKILLS] int64
    queue: Array  # [N, S · S · 4] int32
    first: Array  # [N, S · S · 4] int8


def make_skill_scratch(size: int, num_envs: int) -> SkillScratch:
    """Scratch arrays for a grid of one size."""
    states = 4 * size**2
    return SkillScratch(
        facts=np.zeros((num_envs, 6), np.int64),
        wanted=np.zeros((num_envs, NUM_SKILLS), np.bool_),
        hits=np.zeros((num_envs, NUM_SKILLS), np.bool_),
        chosen=np.zeros((num_envs, NUM_SKILLS), np.int64),
        queue=np.zeros((num_envs, states), np.int32),
        first=np.zeros((num_envs, states), np.int8),
    )


@device_function
def _choose(state: RoomState, n: int, task: int, scratch: SkillScratch) -> None:
    """Write each skill's action in copy n into `chosen`; −1 where it has ended or cannot begin."""
    two_colours = task == COLORED
    chosen, wanted = scratch.chosen[n], scratch.wanted[n]
    read_facts(state, n, two_colours, scratch.facts[n])
    hand = state.hand[n]
    _want(scratch.facts[n], hand, two_colours, wanted)
    if not two_colours:
        wanted[GO_TO_KEY] = False  # there `go to key` is `go to any key`
    area = sought_area(state, task, n)
    _search(state, n, INSIDE if area == INSIDE else ANYWHERE, scratch)
    if area >= MIDDLE:
        there = _explore_area(state, n, area, scratch.queue[n], scratch.first[n])
        chosen[EXPLORE] = there if there >= 0 else chosen[EXPLORE]
    if not two_colours:
        chosen[GO_TO_KEY] = chosen[GO_TO_ANY_KEY]
    for skill in (EXPLORE, GO_TO_KEY, GO_TO_ANY_KEY, GO_TO_DOOR):
        if chosen[skill] == THERE:
            chosen[skill] = -1
    if chosen[GO_TO_GOAL] == THERE:
        chosen[GO_TO_GOAL] = FORWARD
    if chosen[DROP_KEY] == THERE:
        chosen[DROP_KEY] = DROP
    agent = state.agent[n]
    row, column, size = agent[0] + ROWS[agent[2]], agent[1] + COLUMNS[agent[2]], state.cells.shape[1]
    front = state.cells[n, row, column] if 0 <= row < size and 0 <= column < size else WALL
    chosen[PICK_UP_KEY] = PICK_UP if object_of(front) == KEY and hand == 0 else -1
    shut = object_of(front) == DOOR and door_state(front) != OPEN
    chosen[OPEN_DOOR] = TOGGLE if shut and can_toggle(front, hand) else -1
    chosen[WAIT] = DONE


@kernel
def skill_probabilities(n: int, state: RoomState, task: int, skills: Array, scratch: SkillScratch, out: Array) -> None:
    """Write the skills' probabilities over actions into `out` [N, skills, actions]."""
    _choose(state, n, task, scratch)
    for i in range(len(skills)):
        for action in range(out.shape[2]):
            out[n, i, action] = 1.0 if action == scratch.chosen[n, skills[i]] else 0.0


@device_function
def planned_skill(table: Array, facts: Array) -> int:
    """The skill that the plan's `table` has for some facts [6]."""
    return table[facts[0], facts[1], facts[2], facts[3], facts[4], facts[5]]


@kernel
def expert_actions(n: int, state: RoomState, task: int, table: Array, scratch: SkillScratch, out: Array) -> None:
    """Write the action of the planned skill into `out` [N].

    Where that has no way, another is tried: explore, or take away a key that lies in the way.
    """
    _choose(state, n, task, scratch)
    out[n] = DONE
    for skill in (planned_skill(table, scratch.facts[n]), EXPLORE, GO_TO_ANY_KEY, PICK_UP_KEY):
        if scratch.chosen[n, skill] >= 0:
            out[n] = scratch.chosen[n, skill]
            break
