"""Compiled kernels of the grid world: starting episodes and stepping.

A copy draws only from its own random state, so its episodes do not depend on the number of copies.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from coterie.core.jit import device_function
from coterie.core.splitmix import uniform
from coterie.core.types import Array
from coterie.nn.launch import kernel
from coterie.worlds.gridworld.instructions import (
    InstructionRules,
    InstructionState,
    draw_instruction,
    observe_instructions,
    reward_in_order,
)
from coterie.worlds.gridworld.observations import Layout, observe

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


class Scratch(NamedTuple):
    """Arrays that the kernels overwrite."""

    queue: Array  # [N, size²] int32: cells
    order: Array  # [N, size²] int32: cells; without obstacles [N, 0]
    distance: Array  # [N, size, size] int32; without obstacles [N, 0, 0]


# Starting episodes -------------------------------------------------------------------------------------------


@device_function
def flood_fill(walls: Array, row: int, column: int, distance: Array, queue: Array) -> int:
    """Write walking distances from one cell, −1 where unreachable; return the number of cells reached."""
    size = len(walls)
    for r in range(size):
        for c in range(size):
            distance[r, c] = -1
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


@device_function
def _connected(walls: Array, free: int, distance: Array, queue: Array) -> bool:
    """Whether all `free` open cells can be reached from each other."""
    size = len(walls)
    for cell in range(size * size):
        if not walls[cell // size, cell % size]:
            return flood_fill(walls, cell // size, cell % size, distance, queue) == free
    return False


@device_function
def _build_walls(grid: GridState, n: int, obstacles: int, scratch: Scratch) -> None:
    """Place obstacles in random order; skip those that would disconnect the open cells."""
    walls, order = grid.walls[n], scratch.order[n]
    size = len(walls)
    area = size * size
    for cell in range(area):
        order[cell] = cell
        walls[cell // size, cell % size] = False
    for i in range(area - 1, 0, -1):
        j = int(uniform(grid.random, n) * (i + 1))
        order[i], order[j] = order[j], order[i]
    built = 0
    while built < obstacles:  # terminates: a connected graph always has a vertex whose removal leaves it connected
        for i in range(area):
            row, column = order[i] // size, order[i] % size
            if built == obstacles or walls[row, column]:
                continue
            walls[row, column] = True
            if _connected(walls, area - built - 1, scratch.distance[n], scratch.queue[n]):
                built += 1
            else:
                walls[row, column] = False


@kernel
def start_episode(n: int, grid: GridState, rules: Rules, scratch: Scratch) -> None:
    """Start a new episode: place obstacles, then agents and targets on distinct open cells."""
    size, agents, targets = rules.size, grid.agents.shape[1], grid.targets.shape[1]
    if rules.obstacles > 0:
        _build_walls(grid, n, rules.obstacles, scratch)
    queue, free = scratch.queue, 0
    for row in range(size):
        for column in range(size):
            if not grid.walls[n, row, column]:
                queue[n, free] = row * size + column
                free += 1
    for i in range(agents + targets):  # the first draws of a Fisher–Yates shuffle
        j = i + int(uniform(grid.random, n) * (free - i))
        queue[n, i], queue[n, j] = queue[n, j], queue[n, i]
        row, column = queue[n, i] // size, queue[n, i] % size
        if i < agents:
            grid.agents[n, i, 0], grid.agents[n, i, 1] = row, column
        else:
            grid.targets[n, i - agents, 0], grid.targets[n, i - agents, 1] = row, column
    grid.time[n] = 0
    for k in range(targets):
        grid.present[n, k] = True
    for a in range(agents):
        grid.arrived[n, a] = False
        grid.symbols[n, a] = -1


# Stepping -------------------------------------------------------------------------------------------


@device_function
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


@device_function
def _is_on(agents: Array, targets: Array, n: int, a: int, k: int) -> bool:
    return agents[n, a, 0] == targets[n, k, 0] and agents[n, a, 1] == targets[n, k, 1]


@device_function
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


@device_function
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


@device_function
def _race(grid: GridState, rules: Rules, reward: Array, n: int) -> bool:
    """Pay the agents on their own target and charge the others; true when there is a winner."""
    agents, winners = grid.agents.shape[1], 0
    for a in range(agents):
        winners += _is_on(grid.agents, grid.targets, n, a, a)
    if winners > 0:
        for a in range(agents):
            reward[n, a] += rules.target_reward if _is_on(grid.agents, grid.targets, n, a, a) else rules.others_reward
    return winners > 0


@device_function
def _occupied(grid: GridState, n: int, row: int, column: int) -> bool:
    """Whether an agent or a remaining target is on a cell."""
    for a in range(grid.agents.shape[1]):
        if grid.agents[n, a, 0] == row and grid.agents[n, a, 1] == column:
            return True
    for k in range(grid.targets.shape[1]):
        if grid.present[n, k] and grid.targets[n, k, 0] == row and grid.targets[n, k, 1] == column:
            return True
    return False


@device_function
def _can_move(grid: GridState, rules: Rules, n: int, k: int, move: int) -> bool:
    """Whether the cell next to target k is free."""
    row, column = grid.targets[n, k, 0] + MOVES[move, 0], grid.targets[n, k, 1] + MOVES[move, 1]
    inside = 0 <= row < rules.size and 0 <= column < rules.size
    return inside and not grid.walls[n, row, column] and not _occupied(grid, n, row, column)


@device_function
def _move_targets(grid: GridState, rules: Rules, n: int) -> None:
    """Move each remaining target, with the given probability, to a free neighbouring cell."""
    for k in range(grid.targets.shape[1]):
        if not grid.present[n, k] or uniform(grid.random, n) >= rules.move_probability:
            continue
        free = 0
        for move in range(4):
            free += _can_move(grid, rules, n, k, move)
        if free == 0:
            continue
        left = int(uniform(grid.random, n) * free)
        for move in range(4):
            if _can_move(grid, rules, n, k, move):
                if left == 0:
                    grid.targets[n, k, 0] += MOVES[move, 0]
                    grid.targets[n, k, 1] += MOVES[move, 1]
                    break
                left -= 1


@device_function
def _store_final(grid: GridState, final: GridState, n: int) -> None:
    """Store the last scene of an episode for rendering."""
    final.time[n] = grid.time[n]
    for a in range(grid.agents.shape[1]):
        final.agents[n, a, 0], final.agents[n, a, 1] = grid.agents[n, a, 0], grid.agents[n, a, 1]
    for k in range(grid.targets.shape[1]):
        final.targets[n, k, 0], final.targets[n, k, 1] = grid.targets[n, k, 0], grid.targets[n, k, 1]
        final.present[n, k] = grid.present[n, k]
    for row in range(grid.walls.shape[1]):
        for column in range(grid.walls.shape[2]):
            final.walls[n, row, column] = grid.walls[n, row, column]


@device_function
def _step_copy(grid: GridState, rules: Rules, actions: Array, out: StepOutput, n: int) -> None:
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


@kernel
def step(
    n: int,
    grid: GridState,
    final: GridState,
    rules: Rules,
    layout: Layout,
    actions: Array,
    scratch: Scratch,
    out: StepOutput,
) -> None:
    """Take one step, and start the next episode where one ends."""
    _step_copy(grid, rules, actions, out, n)
    if out.ended[n]:
        observe(n, grid, rules, layout, out.final_observation)
        _store_final(grid, final, n)
        start_episode(n, grid, rules, scratch)
    observe(n, grid, rules, layout, out.observation)


@kernel
def step_with_instructions(
    n: int,
    now: tuple[GridState, InstructionState],
    final: tuple[GridState, InstructionState],
    instruction_rules: InstructionRules,
    rules: tuple[Rules, Layout],
    actions: Array,
    scratch: tuple[Scratch, Array],
    out: StepOutput,
) -> None:
    """Do the same as `step`, and reward only what the instruction of each copy asks for.

    The second array of scratch, `[N, K]` bool, has the targets that were present before.
    """
    grid, instruction = now
    before = scratch[1]
    for k in range(grid.present.shape[1]):
        before[n, k] = grid.present[n, k]
    _step_copy(grid, rules[0], actions, out, n)
    reward_in_order(grid, instruction, instruction_rules, rules[0], before[n], out, n)
    if out.ended[n]:
        observe(n, grid, rules[0], rules[1], out.final_observation)
        observe_instructions(n, instruction, instruction_rules, out.final_observation)
        _store_final(grid, final[0], n)
        final[1].sentence[n], final[1].broken[n] = instruction.sentence[n], instruction.broken[n]
        start_episode(n, grid, rules[0], scratch[0])
        draw_instruction(n, grid, instruction, instruction_rules)
    observe(n, grid, rules[0], rules[1], out.observation)
    observe_instructions(n, instruction, instruction_rules, out.observation)
