"""The scripted expert and the exact optimum of the grid world, from shortest paths around obstacles."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from coterie.core.jit import jit
from coterie.core.types import Array
from coterie.worlds.gridworld.instructions import InstructionRules, InstructionState, violates_order
from coterie.worlds.gridworld.kernels import (
    COMPETITIVE,
    COOPERATIVE,
    MEET,
    MOVES,
    RACE,
    STAY,
    GridState,
    Rules,
    flood_fill,
)

FAR = 1 << 30  # the distance of unreachable cells


@jit
def _step_towards(distance: Array, row: int, column: int) -> int:
    """The first move that reduces `distance` [size, size]."""
    size = len(distance)
    for move in range(4):
        r, c = row + MOVES[move, 0], column + MOVES[move, 1]
        # Walls are −1 and must not count as nearer.
        if 0 <= r < size and 0 <= c < size and 0 <= distance[r, c] < distance[row, column]:
            return move
    return STAY


@jit
def _assign(to_target: Array, present: Array, goals: Array) -> None:
    """Greedily pair the closest agent and target, each target once; other agents keep goal −1."""
    agents, targets = to_target.shape
    free = present.copy()
    for _ in range(min(agents, targets)):
        agent, goal = -1, -1
        for a in range(agents):
            for k in range(targets):
                if goals[a] < 0 and free[k] and (agent < 0 or to_target[a, k] < to_target[agent, goal]):
                    agent, goal = a, k
        if agent < 0:
            break
        goals[agent] = goal
        free[goal] = False


@jit
def _claim(to_target: Array, present: Array, goals: Array) -> None:
    """Send each agent to its nearest target to which no rival is strictly closer; without one it keeps goal −1."""
    agents, targets = to_target.shape
    for k in range(targets):
        if not present[k]:
            continue
        for a in range(agents):
            if to_target[a, k] == to_target[:, k].min() and (goals[a] < 0 or to_target[a, k] < to_target[a, goals[a]]):
                goals[a] = k


@jit
def _choose_goals(mode: int, to_target: Array, present: Array, goals: Array) -> None:
    """Write the target that each agent walks to; −1 when none is left."""
    goals[:] = -1
    if mode == COOPERATIVE:
        _assign(to_target, present, goals)
    elif mode == COMPETITIVE:
        _claim(to_target, present, goals)
    elif mode == RACE:
        goals[:] = np.arange(len(goals))
    for a in range(len(goals)):  # agents without a goal go to the nearest target
        if goals[a] < 0:
            for k in range(len(present)):
                if present[k] and (goals[a] < 0 or to_target[a, k] < to_target[a, goals[a]]):
                    goals[a] = k


@jit
def collectable_targets(
    grid: GridState,
    instruction: InstructionState,
    instruction_rules: InstructionRules,
    n: int,
    allowed: Array,
    blocked: Array,
) -> None:
    """Write which targets may be collected now [K] and which cells to avoid [size, size]: walls and other targets."""
    blocked[:] = grid.walls[n]
    allowed[:] = grid.present[n]
    if instruction_rules.phrasings == 0:
        return
    for k in range(len(allowed)):
        if allowed[k] and violates_order(instruction, instruction_rules, grid.present[n], n, k):
            allowed[k] = False
            blocked[grid.targets[n, k, 0], grid.targets[n, k, 1]] = True


@jit
def target_distances(grid: GridState, n: int, k: int, blocked: Array, distance: Array, queue: Array) -> None:
    """Write walking distances to target k around `blocked` cells, or around walls only if no agent could reach it."""
    row, column = grid.targets[n, k, 0], grid.targets[n, k, 1]
    flood_fill(blocked, row, column, distance, queue)
    for a in range(grid.agents.shape[1]):
        if distance[grid.agents[n, a, 0], grid.agents[n, a, 1]] >= 0:
            return
    flood_fill(grid.walls[n], row, column, distance, queue)


@jit
def _plan(
    grid: GridState,
    instruction: InstructionState,
    instruction_rules: InstructionRules,
    rules: Rules,
    n: int,
    distance: Array,
    goals: Array,
) -> None:
    """Write the target that each agent of copy n walks to, `goals` [A], and the distances to the targets [K, …]."""
    agents, targets = grid.agents.shape[1], grid.targets.shape[1]
    queue = np.empty(rules.size * rules.size, np.int32)
    to_target = np.empty((agents, targets), np.int32)
    allowed, blocked = np.empty(targets, np.bool_), np.empty((rules.size, rules.size), np.bool_)
    collectable_targets(grid, instruction, instruction_rules, n, allowed, blocked)
    for k in range(targets):
        target_distances(grid, n, k, blocked, distance[k], queue)
        for a in range(agents):
            steps = distance[k, grid.agents[n, a, 0], grid.agents[n, a, 1]]
            to_target[a, k] = steps if steps >= 0 else FAR
    _choose_goals(rules.mode, to_target, allowed, goals)


@jit
def expert_moves(
    grid: GridState, instruction: InstructionState, instruction_rules: InstructionRules, rules: Rules, moves: Array
) -> None:
    """Write the expert's move for every agent into `moves` [N, A].

    The team follows its instruction if any agent can; an agent enclosed by targets it must not collect yet waits.
    """
    distance = np.empty((grid.targets.shape[1], rules.size, rules.size), np.int32)
    goals = np.empty(grid.agents.shape[1], np.int64)
    for n in range(len(grid.time)):
        _plan(grid, instruction, instruction_rules, rules, n, distance, goals)
        for a in range(len(goals)):
            me = grid.agents[n, a]
            moves[n, a] = STAY if goals[a] < 0 else _step_towards(distance[goals[a]], me[0], me[1])


@jit
def expert_goals(
    grid: GridState, instruction: InstructionState, instruction_rules: InstructionRules, rules: Rules, goals: Array
) -> None:
    """Write the target that the expert sends each agent to into `goals` [N, A]; −1 where none is left."""
    distance = np.empty((grid.targets.shape[1], rules.size, rules.size), np.int32)
    for n in range(len(grid.time)):
        _plan(grid, instruction, instruction_rules, rules, n, distance, goals[n])


@jit
def walks(grid: GridState, rules: Rules, moves: Array) -> None:
    """Write the probabilities of the moves on shortest ways to each target, `moves` [N, A, K, 5].

    All moves that shorten the way are equally likely; on its target an agent stays. A target that is gone, out of sight
    or out of reach has a row of zeros.
    """
    agents, targets, size = grid.agents.shape[1], grid.targets.shape[1], rules.size
    distance, queue = np.empty((size, size), np.int32), np.empty(size * size, np.int32)
    for n in range(len(grid.time)):
        for k in range(targets):
            moves[n, :, k] = 0
            if not grid.present[n, k]:
                continue
            goal = grid.targets[n, k]
            flood_fill(grid.walls[n], goal[0], goal[1], distance, queue)
            for a in range(agents):
                row, column = grid.agents[n, a, 0], grid.agents[n, a, 1]
                hidden = max(abs(goal[0] - row), abs(goal[1] - column)) > rules.sight
                if (hidden and rules.sight >= 0) or distance[row, column] < 0:
                    continue
                ways = 0
                for move in range(4):
                    r, c = row + MOVES[move, 0], column + MOVES[move, 1]
                    if 0 <= r < size and 0 <= c < size and 0 <= distance[r, c] < distance[row, column]:
                        moves[n, a, k, move] = 1
                        ways += 1
                if ways:
                    moves[n, a, k] /= ways
                else:
                    moves[n, a, k, STAY] = 1


@jit
def _pairwise_distances(grid: GridState, rules: Rules, to_target: Array, between: Array) -> None:
    """Write walking distances: agent to target in `to_target` [N, A, K], among targets in `between` [N, K, K]."""
    distance = np.empty((rules.size, rules.size), np.int32)
    queue = np.empty(rules.size * rules.size, np.int32)
    for n in range(len(grid.time)):
        for k in range(grid.targets.shape[1]):
            target = grid.targets[n, k]
            flood_fill(grid.walls[n], target[0], target[1], distance, queue)
            for a in range(grid.agents.shape[1]):
                to_target[n, a, k] = distance[grid.agents[n, a, 0], grid.agents[n, a, 1]]
            for j in range(grid.targets.shape[1]):
                between[n, j, k] = distance[grid.targets[n, j, 0], grid.targets[n, j, 1]]


@jit
def _tours(to_target: Array, between: Array, tour: Array) -> None:
    """Write the shortest walk of one agent through every set of targets, `tour` [2^K] (Held and Karp 1962)."""
    targets = len(to_target)
    path = np.full((len(tour), targets), FAR, np.int64)  # through a set, ending at its given member
    for k in range(targets):
        path[1 << k, k] = to_target[k]
    tour[0] = 0
    for chosen in range(1, len(tour)):
        for last in range(targets):
            if not chosen >> last & 1:
                continue
            before = chosen ^ (1 << last)
            for k in range(targets):
                if before >> k & 1:
                    path[chosen, last] = min(path[chosen, last], path[before, k] + between[k, last])
        tour[chosen] = path[chosen].min()


@jit
def _shortest_plan(to_target: Array, between: Array, limit: int, length: Array, collected: Array) -> None:
    """Write the fewest steps in which a team can collect all targets, for every copy.

    The targets are divided among the agents so that the longest walk is as short as possible. Where it exceeds
    `limit`, `length` is the limit and `collected` the largest number of targets that can be collected within it.
    """
    num_envs, agents, targets = to_target.shape
    sets = 1 << targets
    tour = np.empty(sets, np.int64)
    for n in range(num_envs):
        best = np.full(sets, FAR, np.int64)  # minimal longest walk of the agents considered so far
        best[0] = 0
        for a in range(agents):
            _tours(to_target[n, a], between[n], tour)
            for chosen in range(sets - 1, 0, -1):  # downwards: subsets still hold the values without agent a
                part = chosen
                while part > 0:
                    best[chosen] = min(best[chosen], max(best[chosen ^ part], tour[part]))
                    part = (part - 1) & chosen
        collected[n] = 0
        for chosen in range(sets):
            if best[chosen] <= limit:
                count = 0
                for k in range(targets):
                    count += chosen >> k & 1
                collected[n] = max(collected[n], count)
        length[n] = min(best[sets - 1], limit)


class BestPlay(NamedTuple):
    """Returns and lengths of the fastest play, for every copy."""

    mean_return: Array  # [N] per agent
    bound: Array  # [N] no joint play has a higher mean return
    length: Array  # [N] steps
    success: Array  # [N] bool: possible within the time limit


def _best_collecting(rules: Rules, to_target: Array, between: Array) -> BestPlay:
    agents, targets = to_target.shape[1:]
    length, collected = np.zeros(len(to_target), np.int64), np.zeros(len(to_target), np.int64)
    _shortest_plan(to_target, between, rules.max_steps, length, collected)
    success = collected == targets
    rest = success * rules.done_reward + rules.step_reward * length
    if rules.mode == COOPERATIVE:
        mean_return = collected * rules.target_reward + rest
        return BestPlay(mean_return, mean_return, length, success)
    untied = (rules.target_reward + (agents - 1) * rules.others_reward) / agents
    return BestPlay(collected * untied + rest, collected * rules.target_reward / agents + rest, length, success)


def _best_meeting(rules: Rules, to_target: Array) -> BestPlay:
    far = to_target.max(axis=1)
    success, length = far <= rules.max_steps, np.minimum(far, rules.max_steps)
    arrivals = (to_target <= rules.max_steps).mean(axis=1)
    mean_return = arrivals * rules.target_reward + success * rules.done_reward + rules.step_reward * length
    return BestPlay(mean_return, mean_return, length, success)


def _best_racing(rules: Rules, to_target: Array) -> BestPlay:
    agents = to_target.shape[1]
    near = to_target.min(axis=1)
    success, length = near <= rules.max_steps, np.minimum(near, rules.max_steps)
    paid = np.where(to_target == near[:, None], rules.target_reward, rules.others_reward).mean(axis=1)
    mean_return = success * (paid + rules.done_reward) + rules.step_reward * length
    # Agents could wait and arrive together: m winners are possible once the m-th nearest can arrive.
    winners, time = np.arange(1, agents + 1), np.sort(to_target, axis=1)
    shares = (winners * rules.target_reward + (agents - winners) * rules.others_reward) / agents
    together = shares + rules.done_reward + rules.step_reward * time
    never = rules.step_reward * rules.max_steps
    bound = np.where(time <= rules.max_steps, together, never).max(axis=1, initial=never)
    return BestPlay(mean_return, bound, length, success)


def best_play(grid: GridState, rules: Rules) -> BestPlay:
    """The fastest play from the present positions; all targets must be static and uncollected."""
    num_envs, agents, targets = len(grid.time), grid.agents.shape[1], grid.targets.shape[1]
    to_target, between = (
        np.zeros((num_envs, agents, targets), np.int64),
        np.zeros((num_envs, targets, targets), np.int64),
    )
    _pairwise_distances(grid, rules, to_target, between)
    if rules.mode == MEET:
        return _best_meeting(rules, to_target[:, :, 0])
    if rules.mode == RACE:
        return _best_racing(rules, np.diagonal(to_target, axis1=1, axis2=2))
    return _best_collecting(rules, to_target, between)
