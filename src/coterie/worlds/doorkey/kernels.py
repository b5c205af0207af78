"""The compiled step of the door-key tasks: MiniGrid's actions, rewards and ends, per copy."""

from __future__ import annotations

from typing import NamedTuple

from coterie.core.jit import device_function
from coterie.core.types import Array
from coterie.nn.launch import kernel
from coterie.worlds.doorkey.layouts import (
    CLOSED,
    COLUMNS,
    DOOR,
    DOOR_KEY,
    EMPTY,
    EMPTY_ROOM,
    GOAL_OBJECT,
    KEY,
    LAVA_OBJECT,
    LOCKED,
    OPEN,
    ROWS,
    RoomState,
    Rules,
    can_walk,
    colour_of,
    door_state,
    make_cell,
    object_of,
    start_episode,
)
from coterie.worlds.doorkey.observations import Layout, Scratch, observe

LEFT, RIGHT, FORWARD, PICK_UP, DROP, TOGGLE, DONE = range(7)
NUM_ACTIONS = 7


class StepOutput(NamedTuple):
    """The arrays that a step writes."""

    observation: Array  # [N, D] float32
    final_observation: Array  # [N, D] float32, written where the copy ended
    reward: Array  # [N] float32
    terminated: Array  # [N] bool
    truncated: Array  # [N] bool
    ended: Array  # [N] bool
    success: Array  # [N] bool


@device_function
def can_toggle(cell: int, hand: int) -> bool:
    """Whether toggling changes the door: a locked one needs a key of its colour."""
    if object_of(cell) != DOOR:
        return False
    return door_state(cell) != LOCKED or (object_of(hand) == KEY and colour_of(hand) == colour_of(cell))


@device_function
def _act(state: RoomState, rules: Rules, n: int, action: int) -> int:
    """Play one action; return 1 for success, −1 for death in lava, 0 otherwise."""
    agent, cells = state.agent[n], state.cells[n]
    if action in (LEFT, RIGHT):
        agent[2] = (agent[2] + (1 if action == RIGHT else 3)) % 4
        return 0
    row, column = agent[0] + ROWS[agent[2]], agent[1] + COLUMNS[agent[2]]
    if not (0 <= row < rules.size and 0 <= column < rules.size):
        return 0  # in an open door at the edge of the grid
    front = cells[row, column]
    if action == FORWARD:
        if can_walk(front):
            agent[0], agent[1] = row, column
        kind = object_of(front)
        return 1 if kind == GOAL_OBJECT else -1 if kind == LAVA_OBJECT else 0
    if action == PICK_UP:
        if object_of(front) == KEY and state.hand[n] == 0:
            state.hand[n] = front
            cells[row, column] = EMPTY
    elif action == DROP:
        if front == EMPTY and state.hand[n] != 0:
            cells[row, column] = state.hand[n]
            state.hand[n] = 0
    elif action == TOGGLE and can_toggle(front, state.hand[n]):
        now = CLOSED if door_state(front) == OPEN else OPEN
        cells[row, column] = make_cell(DOOR, colour_of(front), now)
        if rules.task != EMPTY_ROOM and rules.task != DOOR_KEY:
            return 1  # opening a door is the goal, and no door of these tasks is open before
    return 0


@device_function
def _keep(state: RoomState, final: RoomState, n: int) -> None:
    """Keep the end of an episode, for rendering."""
    final.time[n], final.hand[n] = state.time[n], state.hand[n]
    for i in range(3):
        final.agent[n, i] = state.agent[n, i]
    for row in range(state.cells.shape[1]):
        for column in range(state.cells.shape[2]):
            final.cells[n, row, column], final.seen[n, row, column] = (
                state.cells[n, row, column],
                state.seen[n, row, column],
            )


@kernel
def step(
    n: int,
    state: RoomState,
    final: RoomState,
    rules: Rules,
    layout: Layout,
    actions: Array,
    scratch: Scratch,
    out: StepOutput,
) -> None:
    """Take one step by `actions` [N], and start the next episode where one ends."""
    outcome = _act(state, rules, n, actions[n])
    state.time[n] += 1
    late = outcome == 0 and state.time[n] >= rules.max_steps
    out.reward[n] = 1.0 - 0.9 * (state.time[n] / rules.max_steps) if outcome == 1 else 0.0
    out.terminated[n], out.truncated[n] = outcome != 0, late
    out.ended[n], out.success[n] = outcome != 0 or late, outcome == 1
    if out.ended[n]:
        observe(n, state, rules, layout, scratch, out.final_observation)
        _keep(state, final, n)
        start_episode(n, state, rules)
    observe(n, state, rules, layout, scratch, out.observation)
