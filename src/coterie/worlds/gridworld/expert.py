"""The grid world's reference player and its exact optimum, from shortest paths around obstacles."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from coterie.core.types import Array
from coterie.worlds.gridworld.instructions import Telling, Told, out_of_turn
from coterie.worlds.gridworld.kernels import COMPETITIVE, COOPERATIVE, MEET, MOVES, RACE, STAY, Places, Rules, flood

FAR = 1 << 30  # where there is no way


@njit(cache=True)
def _downhill(distance: Array, row: int, column: int) -> int:
    """The first move that comes nearer to where `distance` is 0."""
    size = len(distance)
    for move in range(4):
        r, c = row + MOVES[move, 0], column + MOVES[move, 1]
        # A wall reads −1, which only a goal's own cell could take for nearer.
        if 0 <= r < size and 0 <= c < size and 0 <= distance[r, c] < distance[row, column]:
            return move
    return STAY


@njit(cache=True)
def _assign(away: Array, present: Array, goals: Array) -> None:
    """Greedily pair the closest agent and target, each target once; agents left over keep goal −1."""
    agents, targets = away.shape
    free = present.copy()
    for _ in range(min(agents, targets)):
        agent, goal = -1, -1
        for a in range(agents):
            for k in range(targets):
                if goals[a] < 0 and free[k] and (agent < 0 or away[a, k] < away[agent, goal]):
                    agent, goal = a, k
        if agent < 0:
            break
        goals[agent] = goal
        free[goal] = False


@njit(cache=True)
def _claim(away: Array, present: Array, goals: Array) -> None:
    """Send each agent to its nearest target to which nobody is strictly closer; else keep goal −1."""
    agents, targets = away.shape
    for k in range(targets):
        if not present[k]:
            continue
        for a in range(agents):
            if away[a, k] == away[:, k].min() and (goals[a] < 0 or away[a, k] < away[a, goals[a]]):
                goals[a] = k


@njit(cache=True)
def _choose_goals(mode: int, away: Array, present: Array, goals: Array) -> None:
    """Which target each agent walks to; −1 when there is none left."""
    goals[:] = -1
    if mode == COOPERATIVE:
        _assign(away, present, goals)
    elif mode == COMPETITIVE:
        _claim(away, present, goals)
    elif mode == RACE:
        goals[:] = np.arange(len(goals))
    for a in range(len(goals)):  # whoever has no claim of its own goes to the nearest
        if goals[a] < 0:
            for k in range(len(present)):
                if present[k] and (goals[a] < 0 or away[a, k] < away[a, goals[a]]):
                    goals[a] = k


@njit(cache=True)
def open_ways(places: Places, told: Told, telling: Telling, n: int, turn: Array, blocked: Array) -> None:
    """Write which targets may be collected now [K], and the cells to keep off [size, size]: walls and the others."""
    blocked[:] = places.walls[n]
    turn[:] = places.present[n]
    if telling.phrasings == 0:
        return
    for k in range(len(turn)):
        if turn[k] and out_of_turn(told, telling, places.present[n], n, k):
            turn[k] = False
            blocked[places.targets[n, k, 0], places.targets[n, k, 1]] = True


@njit(cache=True)
def measure(places: Places, n: int, k: int, blocked: Array, distance: Array, queue: Array) -> None:
    """Write walking distances to target k that keep off `blocked`, or off walls only if nobody could come otherwise."""
    row, column = places.targets[n, k, 0], places.targets[n, k, 1]
    flood(blocked, row, column, distance, queue)
    for a in range(places.agents.shape[1]):
        if distance[places.agents[n, a, 0], places.agents[n, a, 1]] >= 0:
            return
    flood(places.walls[n], row, column, distance, queue)


@njit(cache=True)
def guide(places: Places, told: Told, telling: Telling, rules: Rules, moves: Array) -> None:
    """Write the reference player's move for every agent into `moves` [N, A].

    It keeps to its instruction wherever somebody can; an agent that targets out of turn shut in waits.
    """
    agents, targets = places.agents.shape[1], places.targets.shape[1]
    distance = np.empty((targets, rules.size, rules.size), np.int32)
    queue = np.empty(rules.size * rules.size, np.int32)
    away = np.empty((agents, targets), np.int32)
    goals = np.empty(agents, np.int64)
    turn, blocked = np.empty(targets, np.bool_), np.empty((rules.size, rules.size), np.bool_)
    for n in range(len(places.time)):
        open_ways(places, told, telling, n, turn, blocked)
        for k in range(targets):
            measure(places, n, k, blocked, distance[k], queue)
            for a in range(agents):
                steps = distance[k, places.agents[n, a, 0], places.agents[n, a, 1]]
                away[a, k] = steps if steps >= 0 else FAR
        _choose_goals(rules.mode, away, turn, goals)
        for a in range(agents):
            me = places.agents[n, a]
            moves[n, a] = STAY if goals[a] < 0 else _downhill(distance[goals[a]], me[0], me[1])


@njit(cache=True)
def _travel(places: Places, rules: Rules, away: Array, between: Array) -> None:
    """Write walking distances: agent to target in `away` [N, A, K], among targets in `between` [N, K, K]."""
    distance = np.empty((rules.size, rules.size), np.int32)
    queue = np.empty(rules.size * rules.size, np.int32)
    for n in range(len(places.time)):
        for k in range(places.targets.shape[1]):
            target = places.targets[n, k]
            flood(places.walls[n], target[0], target[1], distance, queue)
            for a in range(places.agents.shape[1]):
                away[n, a, k] = distance[places.agents[n, a, 0], places.agents[n, a, 1]]
            for j in range(places.targets.shape[1]):
                between[n, j, k] = distance[places.targets[n, j, 0], places.targets[n, j, 1]]


@njit(cache=True)
def _tours(away: Array, between: Array, tour: Array) -> None:
    """Shortest walk of one agent through every set of targets (Held and Karp 1962), `tour` [2^K]."""
    targets = len(away)
    path = np.full((len(tour), targets), FAR, np.int64)  # through a set, ending at its given member
    for k in range(targets):
        path[1 << k, k] = away[k]
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


@njit(cache=True)
def _fastest(away: Array, between: Array, limit: int, length: Array, collected: Array) -> None:
    """The fewest steps in which a team can collect everything, for every copy.

    Sets of targets are divided among agents so that the longest walk is shortest. Where that exceeds
    `limit`, `length` is the limit and `collected` the most targets that fit into it.
    """
    num_envs, agents, targets = away.shape
    sets = 1 << targets
    tour = np.empty(sets, np.int64)
    for n in range(num_envs):
        best = np.full(sets, FAR, np.int64)  # shortest longest walk of the agents so far
        best[0] = 0
        for a in range(agents):
            _tours(away[n, a], between[n], tour)
            for chosen in range(sets - 1, 0, -1):  # downwards: subsets still speak of the agents before
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
    """What the fastest play earns, for every copy."""

    mean_return: Array  # [N] per agent
    bound: Array  # [N] no joint play has a higher mean return
    length: Array  # [N] steps
    success: Array  # [N] bool: possible within the time limit


def _best_collecting(rules: Rules, away: Array, between: Array) -> BestPlay:
    agents, targets = away.shape[1:]
    length, collected = np.zeros(len(away), np.int64), np.zeros(len(away), np.int64)
    _fastest(away, between, rules.max_steps, length, collected)
    success = collected == targets
    rest = success * rules.done_reward + rules.step_reward * length
    if rules.mode == COOPERATIVE:
        mean_return = collected * rules.target_reward + rest
        return BestPlay(mean_return, mean_return, length, success)
    untied = (rules.target_reward + (agents - 1) * rules.others_reward) / agents
    return BestPlay(collected * untied + rest, collected * rules.target_reward / agents + rest, length, success)


def _best_meeting(rules: Rules, away: Array) -> BestPlay:
    far = away.max(axis=1)
    success, length = far <= rules.max_steps, np.minimum(far, rules.max_steps)
    arrivals = (away <= rules.max_steps).mean(axis=1)
    mean_return = arrivals * rules.target_reward + success * rules.done_reward + rules.step_reward * length
    return BestPlay(mean_return, mean_return, length, success)


def _best_racing(rules: Rules, away: Array) -> BestPlay:
    agents = away.shape[1]
    near = away.min(axis=1)
    success, length = near <= rules.max_steps, np.minimum(near, rules.max_steps)
    paid = np.where(away == near[:, None], rules.target_reward, rules.others_reward).mean(axis=1)
    mean_return = success * (paid + rules.done_reward) + rules.step_reward * length
    # Together they might wait and arrive at once: with m winners, when the m-th nearest can be there.
    winners, time = np.arange(1, agents + 1), np.sort(away, axis=1)
    shares = (winners * rules.target_reward + (agents - winners) * rules.others_reward) / agents
    together = shares + rules.done_reward + rules.step_reward * time
    never = rules.step_reward * rules.max_steps
    bound = np.where(time <= rules.max_steps, together, never).max(axis=1, initial=never)
    return BestPlay(mean_return, bound, length, success)


def best_play(places: Places, rules: Rules) -> BestPlay:
    """The fastest play from where the copies stand, all targets being static and still there."""
    num_envs, agents, targets = len(places.time), places.agents.shape[1], places.targets.shape[1]
    away, between = (
        np.zeros((num_envs, agents, targets), np.int64),
        np.zeros((num_envs, targets, targets), np.int64),
    )
    _travel(places, rules, away, between)
    if rules.mode == MEET:
        return _best_meeting(rules, away[:, :, 0])
    if rules.mode == RACE:
        return _best_racing(rules, np.diagonal(away, axis1=1, axis2=2))
    return _best_collecting(rules, away, between)
