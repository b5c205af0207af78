"""Exact values of Connect Four positions: negamax with alpha-beta, a transposition table and bitboards, compiled.

Positions are those of `connect_four.GAME`. The score of a position is 0 for a draw, s > 0 if the player to move wins
with the s-th last of its 21 stones (the sooner, the more), and −s if it loses so. The search follows Pascal Pons,
"Solving Connect Four" (blog.gamesolver.org): moves that lose at once are left out, moves that make most threats come
first, and null windows close in on the score. Positions with 16 stones or more take milliseconds, the first moves of a
game minutes.
"""

from __future__ import annotations

import numpy as np

from coterie.core import seeding
from coterie.core.jit import jit
from coterie.core.types import Array
from coterie.worlds.boards.bits import popcount
from coterie.worlds.boards.connect_four import BOTTOM, COLUMNS, FULL, GAME, ROWS, has_four

CELLS = ROWS * COLUMNS
ILLEGAL = -100  # in place of the score of a full column
COLUMN_BITS = np.array([((1 << ROWS) - 1) << 7 * column for column in range(COLUMNS)])
CENTRE_FIRST = np.array([3, 2, 4, 1, 5, 0, 6])
OWN, TAKEN, LOW, HIGH, LEFT = range(5)  # columns of a node: stones, the window, how many moves are to be tried
_OFFSET = 64  # scores in the table are stored plus this as upper bounds, and negated as lower bounds; 0: empty


class Solver:
    """Solves positions; what it finds out stays in its table and speeds up later ones, without changing any value."""

    def __init__(self, table_size: int = 4_000_037) -> None:  # a prime; 9 bytes each
        self._keys = np.zeros(table_size, np.int64)
        self._bounds = np.zeros(table_size, np.int8)

    def scores(self, positions: Array) -> Array:
        """Scores `[N]` for the players to move."""
        return self._solve(positions, weak=False)

    def move_scores(self, positions: Array) -> Array:
        """Scores `[N, 7]` of each column for the players to move; `ILLEGAL` for a full one."""
        return self._solve_moves(positions, weak=False)

    def values(self, positions: Array) -> Array:
        """1, 0 or −1 `[N]`: the player to move wins, draws or loses; faster than `scores`."""
        return self._solve(positions, weak=True)

    def move_values(self, positions: Array) -> Array:
        """1, 0 or −1 `[N, 7]` for each column; `ILLEGAL` for a full one."""
        return self._solve_moves(positions, weak=True)

    def keeping_moves(self, positions: Array) -> Array:
        """Flags of the columns `[N, 7]` that keep the value of the position: a win stays a win, a draw a draw."""
        values = self.move_values(positions)
        return np.asarray(values == values.max(axis=1, keepdims=True))

    def _solve(self, positions: Array, weak: bool) -> Array:
        found = np.zeros(len(positions), np.int64)
        _solve_all(_checked(positions), weak, self._keys, self._bounds, found)
        return found

    def _solve_moves(self, positions: Array, weak: bool) -> Array:
        found = np.full((len(positions), COLUMNS), ILLEGAL)
        _solve_all_moves(_checked(positions), weak, self._keys, self._bounds, found)
        return found


def _checked(positions: Array) -> Array:
    over, _ = GAME.outcome(positions)
    if over.any():
        raise ValueError(f"position {over.argmax()}: the game is over; only positions with moves have a score")
    return positions


def generate_positions(count: int, stones: int | tuple[int, int], seed: int) -> Array:
    """Different positions `[count, 3]` that random play reaches and that are not over.

    They have so many stones, or between a least and a greatest number, each equally often.
    """
    least, most = (stones, stones) if isinstance(stones, int) else stones
    if not 0 <= least <= most < CELLS:
        raise ValueError(f"stones must lie between 0 and {CELLS - 1}, the least first, got {stones}")
    random = seeding.generator(seed, "connect four positions")
    found: dict[tuple[int, ...], None] = {}  # in the order in which they were found
    for _ in range(1000):
        positions, wanted = np.tile(GAME.start, (1024, 1)), random.integers(least, most + 1, 1024)
        for moves in range(most):
            rows = np.flatnonzero(moves < wanted)
            legal = GAME.legal(positions[rows])
            after = positions[rows]
            GAME.apply(after, (random.random(legal.shape) * legal).argmax(axis=1))
            positions[rows] = after
            wanted[rows[GAME.outcome(after)[0]]] = -1  # over too soon
        for position in positions[wanted >= 0].tolist():
            found.setdefault(tuple(position))
        if len(found) >= count:
            return np.array(list(found)[:count])
    raise ValueError(f"found only {len(found)} different positions with {stones} stones, of {count}")


# Compiled: `own` are the stones of the player to move, `taken` all stones ------------------------------------


@jit
def _solve_all(positions: Array, weak: bool, keys: Array, bounds: Array, found: Array) -> None:
    for n in range(len(positions)):
        own, taken = positions[n, 1 + positions[n, 0]], positions[n, 1] | positions[n, 2]
        found[n] = _solve(own, taken, weak, keys, bounds)


@jit
def _solve_all_moves(positions: Array, weak: bool, keys: Array, bounds: Array, found: Array) -> None:
    for n in range(len(positions)):
        own, taken = positions[n, 1 + positions[n, 0]], positions[n, 1] | positions[n, 2]
        for column in range(COLUMNS):
            move = (taken + BOTTOM) & COLUMN_BITS[column]
            if move and has_four(own | move):
                found[n, column] = 1 if weak else (CELLS + 1 - popcount(taken)) // 2
            elif move:
                found[n, column] = -_solve(own ^ taken, taken | move, weak, keys, bounds)


@jit
def _solve(own: int, taken: int, weak: bool, keys: Array, bounds: Array) -> int:
    """The score by null windows; the value 1, 0 or −1 if `weak`."""
    moves = popcount(taken)
    if _completing(own, taken) & (taken + BOTTOM):
        return 1 if weak else (CELLS + 1 - moves) // 2
    low, high = -((CELLS - moves) // 2), (CELLS + 1 - moves) // 2
    if weak:
        low, high = max(low, -1), min(high, 1)
    nodes = np.empty((CELLS + 1, 5), np.int64)
    order = np.empty((CELLS + 1, 2, COLUMNS), np.int64)
    while low < high:
        middle = low + (high - low) // 2
        if middle <= 0 and -(-low // 2) < middle:  # scores near 0 are quicker to prove
            middle = -(-low // 2)
        elif middle >= 0 and high // 2 > middle:
            middle = high // 2
        score = _search(own, taken, middle, middle + 1, keys, bounds, nodes, order)
        if score <= middle:
            high = score
        else:
            low = score
    return max(-1, min(1, low)) if weak else low


@jit
def _search(own: int, taken: int, low: int, high: int, keys: Array, bounds: Array, nodes: Array, order: Array) -> int:
    """The score if it lies between the bounds, else a bound; the player to move cannot win at once.

    Negamax with a stack of its own, indexed by the number of stones (Numba may crash on cached recursive functions).
    """
    moves = start = popcount(taken)
    nodes[moves, OWN], nodes[moves, TAKEN], nodes[moves, LOW], nodes[moves, HIGH] = own, taken, low, high
    known, score = _enter(moves, keys, bounds, nodes[moves], order[moves])
    while True:
        node = nodes[moves]
        if not known and node[LEFT] > 0:
            node[LEFT] -= 1
            child = nodes[moves + 1]
            child[OWN], child[TAKEN] = node[OWN] ^ node[TAKEN], node[TAKEN] | order[moves, 0, node[LEFT]]
            child[LOW], child[HIGH] = -node[HIGH], -node[LOW]
            moves += 1
            known, score = _enter(moves, keys, bounds, child, order[moves])
            continue
        if not known:
            score = node[LOW]
            _store(node, score + _OFFSET, keys, bounds)
        if moves == start:
            return score
        moves -= 1
        score = -score
        node = nodes[moves]
        known = score >= node[HIGH]
        if known:
            _store(node, -(score + _OFFSET), keys, bounds)
        node[LOW] = max(node[LOW], score)


@jit
def _enter(moves: int, keys: Array, bounds: Array, node: Array, order: Array) -> tuple[bool, int]:
    """Whether a node needs no search, and its score then; otherwise narrow its window and order its moves."""
    own, taken = node[OWN], node[TAKEN]
    left = _not_losing(own, taken)
    if left == 0:
        return True, -((CELLS - moves) // 2)
    if moves >= CELLS - 2:
        return True, 0
    node[LOW] = max(node[LOW], -((CELLS - 2 - moves) // 2))  # the opponent cannot win at once either
    if node[LOW] >= node[HIGH]:
        return True, node[LOW]
    node[HIGH] = min(node[HIGH], (CELLS - 1 - moves) // 2)
    if node[LOW] >= node[HIGH]:
        return True, node[HIGH]
    key = own + taken  # unique: a column's stones and, above them, the carry of the sum
    slot = key % len(keys)
    if keys[slot] == key and bounds[slot] > 0:
        node[HIGH] = min(node[HIGH], bounds[slot] - _OFFSET)
        if node[LOW] >= node[HIGH]:
            return True, node[HIGH]
    elif keys[slot] == key and bounds[slot] < 0:
        node[LOW] = max(node[LOW], -bounds[slot] - _OFFSET)
        if node[LOW] >= node[HIGH]:
            return True, node[LOW]
    node[LEFT] = _order(own, taken, left, order)
    return False, 0


@jit
def _store(node: Array, bound: int, keys: Array, bounds: Array) -> None:
    key = node[OWN] + node[TAKEN]
    slot = key % len(keys)
    keys[slot] = key
    bounds[slot] = bound


@jit
def _order(own: int, taken: int, left: int, order: Array) -> int:
    """Write moves and their threats `[2, 7]`, those with most threats last, else those near the centre; how many."""
    count = 0
    for i in range(COLUMNS - 1, -1, -1):
        move = left & COLUMN_BITS[CENTRE_FIRST[i]]
        if move:
            threats = popcount(_completing(own | move, taken))
            at = count
            while at > 0 and order[1, at - 1] > threats:
                order[0, at], order[1, at] = order[0, at - 1], order[1, at - 1]
                at -= 1
            order[0, at], order[1, at] = move, threats
            count += 1
    return count


@jit
def _not_losing(own: int, taken: int) -> int:
    """Moves after which the opponent cannot win at once; 0 if there are none."""
    moves = (taken + BOTTOM) & FULL
    threats = _completing(own ^ taken, taken)
    forced = moves & threats
    if forced:
        if forced & (forced - 1):
            return 0
        moves = forced
    return moves & ~(threats >> 1)  # not below a cell where the opponent wins


@jit
def _completing(stones: int, taken: int) -> int:
    """Free cells, reachable or not, that complete four in a line."""
    cells = (stones << 1) & (stones << 2) & (stones << 3)  # vertical
    for shift in (6, 7, 8):
        pairs = (stones << shift) & (stones << 2 * shift)
        cells |= pairs & (stones << 3 * shift)
        cells |= pairs & (stones >> shift)
        pairs = (stones >> shift) & (stones >> 2 * shift)
        cells |= pairs & (stones << shift)
        cells |= pairs & (stones >> 3 * shift)
    return cells & (FULL ^ taken)
