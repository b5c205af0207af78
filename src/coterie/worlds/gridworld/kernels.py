"""Compiled kernels of the grid world: starting episodes and stepping.

Every kernel runs over all N copies. A copy draws only from its own random state, so its episodes do not depend on N.
Numba's cache of the step functions does not notice edits of the functions that they call from `observations.py`,
`instructions.py` and `random.py`: remove `__pycache__` after such an edit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from coterie.core.splitmix import uniform
from coterie.core.types import Array
from coterie.worlds.gridworld.instructions import (
    InstructionRules,
    InstructionState,
    draw_instruction,
    observe_instruction,
    reward_in_order,
)
from coterie.worlds.gridworld.observations import Layout, observe_copy

COOPERATIVE, COMPETITIVE, MEET, RACE = range(4)
STAY = 4
MOVES = np.array([[-1, 0], [1, 0], [0, -1], [0, 1], [0, 0]], dtype=np.int32)  # up, down, left, right, stay


class GridState(NamedTuple):
    """The full state of N copies, random state included; what `save` stores."""

    random: Array  # [N] uint64: state of each copy's generator
    time: Array  # [N] int32: steps taken in this episode
    agents: Array  # [N, A, 2] int32: row, column
    targets: Array  # [N, K, 2] int32
    present: Array  # [N, K] bool: the target has not been collected
    arrived: Array  # [N, A] bool: the agent has been on the target in this episode (meet)
    symbols: Array  # [N, A] int32: the last symbol sent, −1 at the start
    walls: Array  # [N, size, size] bool


class Rules(NamedTuple):
    """The settings as the kernels read them."""

    mode: int
    size: int
    max_steps: int
    obstacles: int
    move_probability: float
    sight: int  # Chebyshev radius, −1 without limit
    messages: int
    target_reward: float
    others_reward: float
    done_reward: float
    step_reward: float


class StepOutput(NamedTuple):
    """The arrays that a step writes."""

    observation: Array  # [N, A, D] float32
    final_observation: Array  # [N, A, D] float32, written where the copy ended
    reward: Array  # [N, A] float32
    terminated: Array  # [N, A] bool
    truncated: Array  # [N, A] bool
    ended: Array  # [N] bool
    success: Array  # [N] bool


# Starting episodes -------------------------------------------------------------------------------------------


@njit(cache=True)
def flood_fill(walls: Array, row: int, column: int, distance: Array, queue: Array) -> int:
    """Write walking distances from one cell, −1 where unreachable; return the number of cells reached."""
    size = len(walls)
    distance[:] = -1
    distance[row, column] = 0
    queue[0] = row * size + column
    head, tail = 0, 1
    while head < tail:
        row, column = queue[head] // size, queue[head] % size
        head += 1
        for move in range(4):
            r, c = row + MOVES[move, 0], column + MOVES[move, 1]
            if 0 <= r < size and 0 <= c < size and not walls[r, c] and distance[r, c] < 0:
                distance[r, c] = distance[row, column] + 1
                queue[tail] = r * size + c
                tail += 1
    return tail


@njit(cache=True)
def _connected(walls: Array, free: int, distance: Array, queue: Array) -> bool:
    """Whether all `free` open cells can be reached from each other."""
    size = len(walls)
    for cell in range(size * size):
        if not walls[cell // size, cell % size]:
            return flood_fill(walls, cell // size, cell % size, distance, queue) == free
    return False


@njit(cache=True)
def _build_walls(grid: GridState, n: int, obstacles: int, distance: Array, queue: Array) -> None:
    """Place obstacles in random order; skip those that would disconnect the open cells."""
    walls = grid.walls[n]
    size = len(walls)
    area = size * size
    order = np.arange(area)
    for i in range(area - 1, 0, -1):
        j = int(uniform(grid.random, n) * (i + 1))
        order[i], order[j] = order[j], order[i]
    walls[:] = False
    built = 0
    while built < obstacles:  # terminates: a connected graph always has a vertex whose removal leaves it connected
        for cell in order:
            row, column = cell // size, cell % size
            if built == obstacles or walls[row, column]:
                continue
            walls[row, column] = True
            if _connected(walls, area - built - 1, distance, queue):
                built += 1
            else:
                walls[row, column] = False


@njit(cache=True)
def start_episode(grid: GridState, rules: Rules, n: int, distance: Array, queue: Array) -> None:
    """Start a new episode in copy n: place obstacles, then agents and targets on distinct open cells."""
    size, agents = rules.size, grid.agents.shape[1]
    if rules.obstacles > 0:
        _build_walls(grid, n, rules.obstacles, distance, queue)
    free = 0
    for row in range(size):
        for column in range(size):
            if not grid.walls[n, row, column]:
                queue[free] = row * size + column
                free += 1
    for i in range(agents + grid.targets.shape[1]):  # the first draws of a Fisher–Yates shuffle
        j = i + int(uniform(grid.random, n) * (free - i))
        queue[i], queue[j] = queue[j], queue[i]
        cell = grid.agents[n, i] if i < agents else grid.targets[n, i - agents]
        cell[0], cell[1] = queue[i] // size, queue[i] % size
    grid.time[n] = 0
    grid.present[n] = True
    grid.arrived[n] = False
    grid.symbols[n] = -1


@njit(cache=True)
def start_all(grid: GridState, rules: Rules) -> None:
    """Start a new episode in every copy."""
    distance = np.empty((rules.size, rules.size), np.int32)
    queue = np.empty(rules.size * rules.size, np.int32)
    for n in range(len(grid.time)):
        start_episode(grid, rules, n, distance, queue)


# Stepping -------------------------------------------------------------------------------------------


@njit(cache=True)
def first_illegal(actions: Array, messages: int) -> int:
    """The flat index (copy · A + agent) of the first action out of range, −1 if there is none."""
    num_envs, agents, _ = actions.shape
    for n in range(num_envs):
        for a in range(agents):
            wrong = actions[n, a, 0] < 0 or actions[n, a, 0] > STAY
            if messages > 0:
                wrong = wrong or actions[n, a, 1] < 0 or actions[n, a, 1] >= messages
            if wrong:
                return n * agents + a
    return -1


@njit(cache=True)
def _move_agents(grid: GridState, rules: Rules, actions: Array, n: int) -> None:
    """Move every agent by one cell; walls and the border block a move."""
    for a in range(grid.agents.shape[1]):
        move = actions[n, a, 0]
        row = grid.agents[n, a, 0] + MOVES[move, 0]
        column = grid.agents[n, a, 1] + MOVES[move, 1]
        if 0 <= row < rules.size and 0 <= column < rules.size and not grid.walls[n, row, column]:
            grid.agents[n, a, 0], grid.agents[n, a, 1] = row, column
        if rules.messages > 0:
            grid.symbols[n, a] = actions[n, a, 1]


@njit(cache=True)
def _is_on(agents: Array, targets: Array, n: int, a: int, k: int) -> bool:
    return agents[n, a, 0] == targets[n, k, 0] and agents[n, a, 1] == targets[n, k, 1]


@njit(cache=True)
def _collect(grid: GridState, rules: Rules, reward: Array, n: int) -> bool:
    """Pay for the targets that agents stand on, each once; true when none is left."""
    agents, left = grid.agents.shape[1], 0
    for k in range(grid.targets.shape[1]):
        if not grid.present[n, k]:
            continue
        collectors = 0
        for a in range(agents):
            collectors += _is_on(grid.agents, grid.targets, n, a, k)
        if collectors == 0:
            left += 1
            continue
        grid.present[n, k] = False
        for a in range(agents):
            if rules.mode == COOPERATIVE:
                reward[n, a] += rules.target_reward
            elif _is_on(grid.agents, grid.targets, n, a, k):  # ties split the reward, independent of agent order
                reward[n, a] += rules.target_reward / collectors
            else:
                reward[n, a] += rules.others_reward
    return left == 0


@njit(cache=True)
def _meet(grid: GridState, rules: Rules, reward: Array, n: int) -> bool:
    """Pay each agent's first arrival; true when all agents are on the target at the same time."""
    agents, here = grid.agents.shape[1], 0
    for a in range(agents):
        if _is_on(grid.agents, grid.targets, n, a, 0):
            here += 1
            if not grid.arrived[n, a]:
                grid.arrived[n, a] = True
                reward[n, a] += rules.target_reward
    return here == agents


@njit(cache=True)
def _race(grid: GridState, rules: Rules, reward: Array, n: int) -> bool:
    """Pay the agents on their own target and charge the others; true when there is a winner."""
    agents, winners = grid.agents.shape[1], 0
    for a in range(agents):
        winners += _is_on(grid.agents, grid.targets, n, a, a)
    if winners > 0:
        for a in range(agents):
            reward[n, a] += rules.target_reward if _is_on(grid.agents, grid.targets, n, a, a) else rules.others_reward
    return winners > 0


@njit(cache=True)
def _occupied(grid: GridState, n: int, row: int, column: int) -> bool:
    """Whether an agent or a remaining target is on a cell."""
    for a in range(grid.agents.shape[1]):
        if grid.agents[n, a, 0] == row and grid.agents[n, a, 1] == column:
            return True
    for k in range(grid.targets.shape[1]):
        if grid.present[n, k] and grid.targets[n, k, 0] == row and grid.targets[n, k, 1] == column:
            return True
    return False


@njit(cache=True)
def _move_targets(grid: GridState, rules: Rules, n: int) -> None:
    """Move each remaining target, with the given probability, to a free neighbouring cell."""
    options = np.empty(4, np.int64)
    for k in range(grid.targets.shape[1]):
        if not grid.present[n, k] or uniform(grid.random, n) >= rules.move_probability:
            continue
        target, free = grid.targets[n, k], 0
        for move in range(4):
            row, column = target[0] + MOVES[move, 0], target[1] + MOVES[move, 1]
            inside = 0 <= row < rules.size and 0 <= column < rules.size
            if inside and not grid.walls[n, row, column] and not _occupied(grid, n, row, column):
                options[free] = move
                free += 1
        if free > 0:
            move = options[int(uniform(grid.random, n) * free)]
            target[0] += MOVES[move, 0]
            target[1] += MOVES[move, 1]


@njit(cache=True)
def store_final(grid: GridState, final: GridState, n: int) -> None:
    """Store the last scene of an episode for rendering."""
    final.time[n] = grid.time[n]
    final.agents[n] = grid.agents[n]
    final.targets[n] = grid.targets[n]
    final.present[n] = grid.present[n]
    final.walls[n] = grid.walls[n]


@njit(cache=True)
def step_copy(grid: GridState, rules: Rules, actions: Array, out: StepOutput, n: int) -> None:
    """Take one step in copy n, without resetting it."""
    agents = grid.agents.shape[1]
    for a in range(agents):
        out.reward[n, a] = rules.step_reward
    _move_agents(grid, rules, actions, n)
    if rules.mode == MEET:
        done = _meet(grid, rules, out.reward, n)
    elif rules.mode == RACE:
        done = _race(grid, rules, out.reward, n)
    else:
        done = _collect(grid, rules, out.reward, n)
    if not done and rules.move_probability > 0.0:
        _move_targets(grid, rules, n)
    grid.time[n] += 1
    late = not done and grid.time[n] >= rules.max_steps
    for a in range(agents):
        out.terminated[n, a] = done
        out.truncated[n, a] = late
        if done:
            out.reward[n, a] += rules.done_reward
    out.success[n] = done
    out.ended[n] = done or late


@njit(cache=True)
def step(grid: GridState, final: GridState, rules: Rules, layout: Layout, actions: Array, out: StepOutput) -> int:
    """Take one step in every copy and reset those that end.

    Returns −1, or the flat index (copy · A + agent) of an action out of range; then nothing has changed.
    """
    illegal = first_illegal(actions, rules.messages)
    if illegal >= 0:
        return illegal
    distance = np.empty((rules.size, rules.size), np.int32)
    queue = np.empty(rules.size * rules.size, np.int32)
    for n in range(len(grid.time)):
        step_copy(grid, rules, actions, out, n)
        if out.ended[n]:
            observe_copy(grid, rules, layout, n, out.final_observation)
            store_final(grid, final, n)
            start_episode(grid, rules, n, distance, queue)
        observe_copy(grid, rules, layout, n, out.observation)
    return -1


@njit(cache=True)
def step_with_instructions(
    now: tuple[GridState, InstructionState],
    final: tuple[GridState, InstructionState],
    instruction_rules: InstructionRules,
    rules: tuple[Rules, Layout],
    actions: Array,
    out: StepOutput,
) -> int:
    """Do the same as `step`, and reward only what the instruction of each copy asks for."""
    grid, instruction = now
    illegal = first_illegal(actions, rules[0].messages)
    if illegal >= 0:
        return illegal
    distance = np.empty((rules[0].size, rules[0].size), np.int32)
    queue = np.empty(rules[0].size * rules[0].size, np.int32)
    for n in range(len(grid.time)):
        before = grid.present[n].copy()
        step_copy(grid, rules[0], actions, out, n)
        reward_in_order(grid, instruction, instruction_rules, rules[0], before, out, n)
        if out.ended[n]:
            observe_copy(grid, rules[0], rules[1], n, out.final_observation)
            observe_instruction(instruction, instruction_rules, n, out.final_observation)
            store_final(grid, final[0], n)
            final[1].sentence[n], final[1].broken[n] = instruction.sentence[n], instruction.broken[n]
            start_episode(grid, rules[0], n, distance, queue)
            draw_instruction(grid, instruction, instruction_rules, n)
        observe_copy(grid, rules[0], rules[1], n, out.observation)
        observe_instruction(instruction, instruction_rules, n, out.observation)
    return -1
