"""Compiled loops of the grid world: spawning and stepping.

Every kernel runs over all N copies; a copy draws only from its own random state, so it never depends on
how many others there are. Observations are in `gridworld_views.py`, the reference player and the optimum
in `gridworld_guide.py`, settings and spaces in `gridworld.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from coterie.core.types import Array
from coterie.worlds.gridworld.observations import Layout, observe_copy
from coterie.worlds.random import uniform

COOPERATIVE, COMPETITIVE, MEET, RACE = range(4)
STAY = 4
MOVES = np.array([[-1, 0], [1, 0], [0, -1], [0, 1], [0, 0]], dtype=np.int32)  # up, down, left, right, stay


class Places(NamedTuple):
    """Where everything is: all that decides the future of N copies."""

    random: Array  # [N] uint64: state of each copy's generator
    time: Array  # [N] int32: steps taken in this episode
    agents: Array  # [N, A, 2] int32: row, column
    targets: Array  # [N, K, 2] int32
    present: Array  # [N, K] bool: the target has not been collected
    arrived: Array  # [N, A] bool: the agent has been on the target in this episode (meet)
    symbols: Array  # [N, A] int32: the last symbol sent, −1 at the start
    walls: Array  # [N, size, size] bool


class Rules(NamedTuple):
    """The settings that the kernels read."""

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


class Outcome(NamedTuple):
    """What a step leaves behind."""

    observation: Array  # [N, A, D] float32
    final_observation: Array  # [N, A, D] float32, written where the copy ended
    reward: Array  # [N, A] float32
    terminated: Array  # [N, A] bool
    truncated: Array  # [N, A] bool
    ended: Array  # [N] bool
    success: Array  # [N] bool


# Spawning -------------------------------------------------------------------------------------------


@njit(cache=True)
def flood(walls: Array, row: int, column: int, distance: Array, queue: Array) -> int:
    """Write walking distances from one cell (−1 where unreachable); return how many cells are reached."""
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
            return flood(walls, cell // size, cell % size, distance, queue) == free
    return False


@njit(cache=True)
def _build_walls(places: Places, n: int, obstacles: int, distance: Array, queue: Array) -> None:
    """Place obstacles in random order, each kept only if the open cells stay connected."""
    walls = places.walls[n]
    size = len(walls)
    area = size * size
    order = np.arange(area)
    for i in range(area - 1, 0, -1):
        j = int(uniform(places.random, n) * (i + 1))
        order[i], order[j] = order[j], order[i]
    walls[:] = False
    built = 0
    while built < obstacles:  # ends: a connected graph always has a vertex that may be taken away
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
def begin(places: Places, rules: Rules, n: int, distance: Array, queue: Array) -> None:
    """Begin a new episode in copy n: obstacles, then agents and targets on distinct open cells."""
    size, agents = rules.size, places.agents.shape[1]
    if rules.obstacles > 0:
        _build_walls(places, n, rules.obstacles, distance, queue)
    free = 0
    for row in range(size):
        for column in range(size):
            if not places.walls[n, row, column]:
                queue[free] = row * size + column
                free += 1
    for i in range(agents + places.targets.shape[1]):  # the first draws of a Fisher–Yates shuffle
        j = i + int(uniform(places.random, n) * (free - i))
        queue[i], queue[j] = queue[j], queue[i]
        place = places.agents[n, i] if i < agents else places.targets[n, i - agents]
        place[0], place[1] = queue[i] // size, queue[i] % size
    places.time[n] = 0
    places.present[n] = True
    places.arrived[n] = False
    places.symbols[n] = -1


@njit(cache=True)
def spawn(places: Places, rules: Rules) -> None:
    """Begin a new episode in every copy."""
    distance = np.empty((rules.size, rules.size), np.int32)
    queue = np.empty(rules.size * rules.size, np.int32)
    for n in range(len(places.time)):
        begin(places, rules, n, distance, queue)


# Stepping -------------------------------------------------------------------------------------------


@njit(cache=True)
def first_illegal(actions: Array, messages: int) -> int:
    """The place (copy · A + agent) of the first action out of range, −1 if there is none."""
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
def _walk(places: Places, rules: Rules, actions: Array, n: int) -> None:
    """Move everybody by one cell; a wall or the border means to stay."""
    for a in range(places.agents.shape[1]):
        move = actions[n, a, 0]
        row = places.agents[n, a, 0] + MOVES[move, 0]
        column = places.agents[n, a, 1] + MOVES[move, 1]
        if 0 <= row < rules.size and 0 <= column < rules.size and not places.walls[n, row, column]:
            places.agents[n, a, 0], places.agents[n, a, 1] = row, column
        if rules.messages > 0:
            places.symbols[n, a] = actions[n, a, 1]


@njit(cache=True)
def _on(agents: Array, targets: Array, n: int, a: int, k: int) -> bool:
    return agents[n, a, 0] == targets[n, k, 0] and agents[n, a, 1] == targets[n, k, 1]


@njit(cache=True)
def _collect(places: Places, rules: Rules, reward: Array, n: int) -> bool:
    """Pay for the targets somebody stands on, each once; true when none is left."""
    agents, left = places.agents.shape[1], 0
    for k in range(places.targets.shape[1]):
        if not places.present[n, k]:
            continue
        collectors = 0
        for a in range(agents):
            collectors += _on(places.agents, places.targets, n, a, k)
        if collectors == 0:
            left += 1
            continue
        places.present[n, k] = False
        for a in range(agents):
            if rules.mode == COOPERATIVE:
                reward[n, a] += rules.target_reward
            elif _on(places.agents, places.targets, n, a, k):  # a tie splits the prize, whatever the order of agents
                reward[n, a] += rules.target_reward / collectors
            else:
                reward[n, a] += rules.others_reward
    return left == 0


@njit(cache=True)
def _meet(places: Places, rules: Rules, reward: Array, n: int) -> bool:
    """Pay each agent's first arrival; true when all are on the target at once."""
    agents, here = places.agents.shape[1], 0
    for a in range(agents):
        if _on(places.agents, places.targets, n, a, 0):
            here += 1
            if not places.arrived[n, a]:
                places.arrived[n, a] = True
                reward[n, a] += rules.target_reward
    return here == agents


@njit(cache=True)
def _race(places: Places, rules: Rules, reward: Array, n: int) -> bool:
    """Pay those on their own target, and charge the others if there is a winner."""
    agents, winners = places.agents.shape[1], 0
    for a in range(agents):
        winners += _on(places.agents, places.targets, n, a, a)
    if winners > 0:
        for a in range(agents):
            reward[n, a] += rules.target_reward if _on(places.agents, places.targets, n, a, a) else rules.others_reward
    return winners > 0


@njit(cache=True)
def _taken(places: Places, n: int, row: int, column: int) -> bool:
    """Whether an agent or a remaining target is on a cell."""
    for a in range(places.agents.shape[1]):
        if places.agents[n, a, 0] == row and places.agents[n, a, 1] == column:
            return True
    for k in range(places.targets.shape[1]):
        if places.present[n, k] and places.targets[n, k, 0] == row and places.targets[n, k, 1] == column:
            return True
    return False


@njit(cache=True)
def _wander(places: Places, rules: Rules, n: int) -> None:
    """Move each remaining target, with the given probability, to a free neighbouring cell."""
    options = np.empty(4, np.int64)
    for k in range(places.targets.shape[1]):
        if not places.present[n, k] or uniform(places.random, n) >= rules.move_probability:
            continue
        target, free = places.targets[n, k], 0
        for move in range(4):
            row, column = target[0] + MOVES[move, 0], target[1] + MOVES[move, 1]
            inside = 0 <= row < rules.size and 0 <= column < rules.size
            if inside and not places.walls[n, row, column] and not _taken(places, n, row, column):
                options[free] = move
                free += 1
        if free > 0:
            move = options[int(uniform(places.random, n) * free)]
            target[0] += MOVES[move, 0]
            target[1] += MOVES[move, 1]


@njit(cache=True)
def keep(places: Places, last: Places, n: int) -> None:
    """Remember how an episode ended, for pictures of it."""
    last.time[n] = places.time[n]
    last.agents[n] = places.agents[n]
    last.targets[n] = places.targets[n]
    last.present[n] = places.present[n]
    last.walls[n] = places.walls[n]


@njit(cache=True)
def play(places: Places, rules: Rules, actions: Array, out: Outcome, n: int) -> None:
    """One step of copy n up to its end, if it ends."""
    agents = places.agents.shape[1]
    for a in range(agents):
        out.reward[n, a] = rules.step_reward
    _walk(places, rules, actions, n)
    if rules.mode == MEET:
        done = _meet(places, rules, out.reward, n)
    elif rules.mode == RACE:
        done = _race(places, rules, out.reward, n)
    else:
        done = _collect(places, rules, out.reward, n)
    if not done and rules.move_probability > 0.0:
        _wander(places, rules, n)
    places.time[n] += 1
    late = not done and places.time[n] >= rules.max_steps
    for a in range(agents):
        out.terminated[n, a] = done
        out.truncated[n, a] = late
        if done:
            out.reward[n, a] += rules.done_reward
    out.success[n] = done
    out.ended[n] = done or late


@njit(cache=True)
def step(places: Places, last: Places, rules: Rules, layout: Layout, actions: Array, out: Outcome) -> int:
    """Take one step in every copy and begin anew those that end.

    Returns the place (copy · A + agent) of an action out of range, having changed nothing, or −1.
    """
    illegal = first_illegal(actions, rules.messages)
    if illegal >= 0:
        return illegal
    distance = np.empty((rules.size, rules.size), np.int32)
    queue = np.empty(rules.size * rules.size, np.int32)
    for n in range(len(places.time)):
        play(places, rules, actions, out, n)
        if out.ended[n]:
            observe_copy(places, rules, layout, n, out.final_observation)
            keep(places, last, n)
            begin(places, rules, n, distance, queue)
        observe_copy(places, rules, layout, n, out.observation)
    return -1
