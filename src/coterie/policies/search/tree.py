"""Search trees as arrays: selection, expansion, backup, and what the root says, compiled.

Every copy has one tree of at most M nodes; node 0 is its root. A node belongs to a position, an edge to a node and one
of K actions. All values are those of the player to move at the node that they stand at, between −1 and 1.

Two formulas choose edges. PUCT (Silver et al. 2018, supplement, "Search"): the edge of highest Q + U with

    U(s, a) = c(s) P(s, a) √N(s) / (1 + N(s, a)),    c(s) = log((1 + N(s) + c_base) / c_base) + c_init.

Gumbel AlphaZero (Danihelka et al. 2022): at the root, sequential halving over the actions of highest g(a) + logit(a)
(algorithm 2); below it, the edge of highest π'(a) − N(a) / (1 + Σ N) (eq. 14), where π' is the softmax of
logit + σ(completed Q) (eqs. 10 and 11), σ(q) = (c_visit + max N) c_scale q (eq. 8) with q scaled to [0, 1], and
edges without visits count v_mix (eq. 33).

Positions whose result under best play is known are *solved* (Winands et al. 2008): a finished game; a position with a
winning move; one whose moves are all solved. Selection does not enter lost edges while there are others, and a solved
root is not searched further.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, prange

from coterie.core.game import Rules
from coterie.core.splitmix import uniform
from coterie.core.types import Array
from coterie.nn import kernels
from coterie.nn.kernels import FAST

NO_OUTCOME = 1  # fault: no legal action, and the game is not over
TOO_LONG = 2  # fault: a random game did not end within `max_moves`
NOT_FINITE = 3  # fault: the network's evaluation of a position is not finite


OPEN, KNOWN, LOST = 0, 1, 2  # an edge whose end is not solved; solved; solved, and lost for the one who takes it


class Trees(NamedTuple):
    """The trees of N copies."""

    position: Array  # [N, M, S] int64
    size: Array  # [N] int64: nodes in use
    depth: Array  # [N, M] int32: moves from the root
    value: Array  # [N, M] float32: the evaluation of the node's position
    visits: Array  # [N, M] int32: 1 for the evaluation, and all visits of the node's edges
    total: Array  # [N, M] float32: the sum of the evaluation and of what came back through the edges
    solved: Array  # [N, M] bool: `exact` is known
    exact: Array  # [N, M] float32: the result under best play
    legal: Array  # [N, M, K] bool
    logit: Array  # [N, M, K] float32: log of the prior, without noise
    prior: Array  # [N, M, K] float32: with noise at the root
    child: Array  # [N, M, K] int32; −1: not expanded
    count: Array  # type: ignore[assignment]  # hides tuple.count: [N, M, K] int32, visits of the edge
    gain: Array  # [N, M, K] float32: sum of the values that came back; where the end is solved, count times its result
    fate: Array  # [N, M, K] int8: OPEN, KNOWN or LOST
    table: Array  # [N, H] int32: node of a position by its hash, −1 where empty; H = 0: no transpositions
    path_node: Array  # [N, M + 1] int32: the edges of the running simulation
    path_action: Array  # [N, M + 1] int32
    path_length: Array  # [N] int64
    leaf: Array  # [N] int64: the node that waits for its evaluation
    fault: Array  # [N] int64: 0, or why the position cannot be searched


def empty_trees(copies: int, nodes: int, size: int, actions: int, transpositions: bool) -> Trees:
    """Room for the trees of `copies` games of position size `size`."""
    at, edge = (copies, nodes), (copies, nodes, actions)
    slots = 1 << (2 * nodes - 1).bit_length() if transpositions else 0
    return Trees(
        position=np.zeros((*at, size), np.int64),
        size=np.zeros(copies, np.int64),
        depth=np.zeros(at, np.int32),
        value=np.zeros(at, np.float32),
        visits=np.zeros(at, np.int32),
        total=np.zeros(at, np.float32),
        solved=np.zeros(at, np.bool_),
        exact=np.zeros(at, np.float32),
        legal=np.zeros(edge, np.bool_),
        logit=np.zeros(edge, np.float32),
        prior=np.zeros(edge, np.float32),
        child=np.full(edge, -1, np.int32),
        count=np.zeros(edge, np.int32),
        gain=np.zeros(edge, np.float32),
        fate=np.zeros(edge, np.int8),
        table=np.full((copies, slots), -1, np.int32),
        path_node=np.zeros((copies, nodes + 1), np.int32),
        path_action=np.zeros((copies, nodes + 1), np.int32),
        path_length=np.zeros(copies, np.int64),
        leaf=np.zeros(copies, np.int64),
        fault=np.zeros(copies, np.int64),
    )


class Formula(NamedTuple):
    """How edges are selected."""

    gumbel: bool
    scale: Array  # [simulations + 2] float32: c(s) √N(s) for each N(s) (PUCT)
    from_parent: bool  # an edge without visits counts as its node's mean value; False: as 0
    c_visit: float
    c_scale: float


def make_formula(
    gumbel: bool, simulations: int, c_init: float, c_base: float, from_parent: bool, c_visit: float, c_scale: float
) -> Formula:
    """The formula for nodes of at most `simulations` + 1 visits."""
    visits = np.arange(simulations + 2)
    scale = (np.log((1 + visits + c_base) / c_base) + c_init) * np.sqrt(visits)
    return Formula(gumbel, scale.astype(np.float32), from_parent, c_visit, c_scale)


class Roots(NamedTuple):
    """What one search is to do at the roots."""

    budget: Array  # [N] int64: simulations to run
    allowed: Array  # [N, K] bool: legal actions that may be searched
    noise: Array  # [N, K] float32: mixed into the prior
    noise_share: Array  # [N] float32: how much of it
    gumbel: Array  # [N, K] float32: g(a); zero for a search without chance
    halving: Array  # [N, simulations] int64: visits that the next root edge must have (sequential halving)


# Selection -------------------------------------------------------------------------------------------


@njit(cache=True, inline="always")
def _seen_from(trees: Trees, n: int, node: int, other: int, value: float) -> float:
    """A value of `other`, for the player to move at `node`."""
    return value if trees.position[n, node, 0] == trees.position[n, other, 0] else -value


@njit(cache=True, error_model="numpy", fastmath=FAST, inline="always")
def _select_puct(trees: Trees, n: int, node: int, f: Formula) -> int:
    legal, prior, count = trees.legal[n, node], trees.prior[n, node], trees.count[n, node]
    gain, fate = trees.gain[n, node], trees.fate[n, node]
    visits = np.float32(trees.visits[n, node])
    scale = f.scale[min(trees.visits[n, node], len(f.scale) - 1)]  # carried transpositions may have more visits
    unvisited = trees.total[n, node] / visits if f.from_parent else np.float32(0)
    best, at, lost_at = np.float32(-np.inf), -1, -1
    for a in range(len(legal)):
        if legal[a]:
            if fate[a] == LOST:
                lost_at = a
                continue
            times = np.float32(count[a])
            q = gain[a] / times if count[a] > 0 else unvisited
            score = q + scale * prior[a] / (np.float32(1) + times)
            if score > best:
                best, at = score, a
    return at if at >= 0 else lost_at


@njit(cache=True, error_model="numpy")
def _mixed_value(trees: Trees, n: int, node: int) -> float:
    """v_mix (eq. 33): the evaluation, and the values of visited edges weighted by their priors."""
    logit, count, gain = trees.logit[n, node], trees.count[n, node], trees.gain[n, node]
    visits, weight, total = 0, 0.0, 0.0
    for a in range(len(count)):
        if count[a] > 0:
            prior = np.exp(logit[a])
            visits += count[a]
            weight += prior
            total += prior * gain[a] / count[a]
    return (float(trees.value[n, node]) + visits * total / max(weight, 1e-30)) / (1 + visits)


@njit(cache=True, error_model="numpy")
def _gumbel_logits(trees: Trees, n: int, node: int, f: Formula, out: Array) -> None:
    """logit + σ(completed Q) of the legal actions, −inf elsewhere."""
    legal, logit, count, gain = trees.legal[n, node], trees.logit[n, node], trees.count[n, node], trees.gain[n, node]
    mixed, most = _mixed_value(trees, n, node), count.max()
    for a in range(len(out)):
        if legal[a]:
            q = gain[a] / count[a] if count[a] > 0 else mixed
            out[a] = logit[a] + (f.c_visit + most) * f.c_scale * (q + 1) / 2
        else:
            out[a] = -np.inf


@njit(cache=True, error_model="numpy")
def _softmax(row: Array) -> None:
    top, total = row.max(), 0.0
    for a in range(len(row)):
        row[a] = np.exp(row[a] - top)
        total += row[a]
    for a in range(len(row)):
        row[a] /= total


@njit(cache=True, error_model="numpy")
def _select_gumbel(trees: Trees, n: int, node: int, f: Formula, work: Array) -> int:
    """argmax π'(a) − N(a) / (1 + Σ N) (eq. 14)."""
    _gumbel_logits(trees, n, node, f, work)
    _softmax(work)
    legal, count, fate = trees.legal[n, node], trees.count[n, node], trees.fate[n, node]
    best, at, lost_at = -np.inf, -1, -1
    for a in range(len(work)):
        if legal[a]:
            if fate[a] == LOST:
                lost_at = a
                continue
            score = work[a] - count[a] / trees.visits[n, node]
            if score > best:
                best, at = score, a
    return at if at >= 0 else lost_at


@njit(cache=True, error_model="numpy")
def _select_halving(trees: Trees, n: int, f: Formula, gumbel: Array, wanted: int, work: Array) -> int:
    """The root's edge in sequential halving: the highest g + logit + σ(q) among those with `wanted` visits.

    Lost edges drop out. Where that leaves none with `wanted` visits, the most visited ones compete.
    """
    _gumbel_logits(trees, n, 0, f, work)
    competes, count = trees.legal[n, 0] & (trees.fate[n, 0] != LOST), trees.count[n, 0]
    if not (competes & (count == wanted)).any():
        wanted = (count * competes).max()
    best, at = -np.inf, -1
    for a in range(len(work)):
        if competes[a] and count[a] == wanted and gumbel[a] + work[a] > best:
            best, at = gumbel[a] + work[a], a
    return at


def halving_schedule(considered: int, simulations: int) -> Array:
    """How many visits the edge of each simulation has before it, when `considered` actions are halved step by step.

    A phase gives each of its m actions the same number of visits, ⌊simulations / (⌈log₂ considered⌉ m)⌋ but at least
    one; then half of them stay. The last two share what is left.
    """
    if considered <= 1:
        return np.arange(simulations)
    phases = int(np.ceil(np.log2(considered)))
    order: list[int] = []
    visits, m = 0, considered
    while len(order) < simulations:
        for _ in range(max(1, simulations // (phases * m))):
            order += [visits] * m
            visits += 1
        m = max(2, m // 2)
    return np.array(order[:simulations], np.int64)


# Expansion -------------------------------------------------------------------------------------------


@njit(cache=True)
def _slot(trees: Trees, n: int, position: Array, depth: int) -> int:
    """Where a position is in the transposition table, or where it would be put."""
    mixed = np.uint64(depth) * np.uint64(0x9E3779B97F4A7C15)
    for value in position:
        mixed = (mixed ^ np.uint64(value)) * np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(29)
    slots = trees.table.shape[1]
    at = int(np.int64(mixed & np.uint64(slots - 1)))
    while trees.table[n, at] >= 0:
        node = trees.table[n, at]
        if trees.depth[n, node] == depth and np.array_equal(trees.position[n, node], position):
            break
        at = (at + 1) & (slots - 1)
    return at


@njit(cache=True)
def _add_node(trees: Trees, n: int, depth: int) -> int:
    """Take the next node; its position was written there already."""
    node = trees.size[n]
    trees.size[n] += 1
    trees.depth[n, node] = depth
    trees.visits[n, node] = 0
    trees.total[n, node] = 0
    trees.solved[n, node] = False
    legal, child, count = trees.legal[n, node], trees.child[n, node], trees.count[n, node]
    gain, fate = trees.gain[n, node], trees.fate[n, node]
    for a in range(len(legal)):
        legal[a], child[a], count[a], gain[a], fate[a] = False, -1, 0, 0, OPEN
    return node


@njit(cache=True)
def _descend(trees: Trees, n: int, f: Formula, roots: Roots, simulation: int, node: int, work: Array) -> bool:
    """Select edges from `node` down; True if the last one has no node yet, False if a solved node was reached.

    `path_node` and `path_action` hold the way; the node reached is `leaf`.
    """
    while True:
        trees.leaf[n] = node
        if trees.solved[n, node]:
            return False
        if not f.gumbel:
            action = _select_puct(trees, n, node, f)
        elif node == 0:
            action = _select_halving(trees, n, f, roots.gumbel[n], roots.halving[n, simulation], work)
        else:
            action = _select_gumbel(trees, n, node, f, work)
        step = trees.path_length[n]
        trees.path_node[n, step], trees.path_action[n, step] = node, action
        trees.path_length[n] += 1
        end = trees.child[n, node, action]
        if end < 0:
            return True
        node = end


@njit(cache=True, error_model="numpy")
def _back_up(trees: Trees, n: int, value: float) -> None:
    """Carry the leaf's value to the root, and mark as solved what its result decides.

    What comes back through a solved node is its exact result.
    """
    end = trees.leaf[n]
    settled, source = trees.solved[n, end], end
    for step in range(trees.path_length[n] - 1, -1, -1):
        node, action = trees.path_node[n, step], trees.path_action[n, step]
        if settled:
            source, value = end, float(trees.exact[n, end])
        seen = np.float32(_seen_from(trees, n, node, source, value))
        trees.visits[n, node] += 1
        trees.total[n, node] += seen
        trees.count[n, node, action] += 1
        trees.gain[n, node, action] += seen
        if settled:
            settled = _settle(trees, n, node, action, end)
        end = node


@njit(cache=True, error_model="numpy")
def _settle(trees: Trees, n: int, node: int, action: int, end: int) -> bool:
    """Note the exact result of an edge; the node is solved if it is a win, or if all its edges are solved."""
    legal, count, gain, fate = trees.legal[n, node], trees.count[n, node], trees.gain[n, node], trees.fate[n, node]
    best = _seen_from(trees, n, node, end, trees.exact[n, end])
    trees.total[n, node] += best * count[action] - gain[action]
    gain[action] = best * count[action]
    fate[action] = LOST if best <= -1 else KNOWN
    if best < 1:
        for a in range(len(legal)):
            if legal[a]:
                if fate[a] == OPEN:
                    return False
                other = trees.child[n, node, a]
                best = max(best, _seen_from(trees, n, node, other, trees.exact[n, other]))
    trees.solved[n, node] = True
    trees.exact[n, node] = best
    return True


@njit(cache=True)
def attach(trees: Trees, n: int, logits: Array, value: float, roots: Roots) -> None:
    """Give the leaf its evaluation: logits of all actions `[K]` and a value; then back it up."""
    leaf = trees.leaf[n]
    trees.value[n, leaf] = value
    trees.visits[n, leaf], trees.total[n, leaf] = 1, value
    if leaf == 0:
        trees.legal[n, 0] &= roots.allowed[n]
    legal, logit, prior = trees.legal[n, leaf], trees.logit[n, leaf], trees.prior[n, leaf]
    top, total = np.float32(-np.inf), np.float32(0)
    for a in range(len(logits)):
        if legal[a]:
            top = max(top, logits[a])
    for a in range(len(logits)):
        prior[a] = np.exp(logits[a] - top) if legal[a] else np.float32(0)
        total += prior[a]
    if trees.fault[n] == 0 and not np.isfinite(total + value):
        trees.fault[n] = NOT_FINITE
    if trees.fault[n] != 0:
        return
    for a in range(len(logits)):
        prior[a] /= total
        logit[a] = logits[a] - top - np.log(total) if legal[a] else np.float32(-np.inf)
    if leaf == 0:
        mix_noise(trees, n, roots)
    _back_up(trees, n, value)


@njit(cache=True)
def mix_noise(trees: Trees, n: int, roots: Roots) -> None:
    """Mix noise into the root's prior."""
    share = roots.noise_share[n]
    for a in range(trees.prior.shape[2]):
        if trees.legal[n, 0, a]:
            clean = np.exp(trees.logit[n, 0, a])
            trees.prior[n, 0, a] = (1 - share) * clean + share * roots.noise[n, a]


@njit(cache=True)
def plant(trees: Trees, n: int, position: Array) -> None:
    """Start a new tree at a position; its root waits for `legal` and an evaluation."""
    trees.size[n] = 0
    trees.table[n] = -1
    trees.position[n, 0] = position
    _add_node(trees, n, 0)
    if trees.table.shape[1] > 0:
        trees.table[n, _slot(trees, n, trees.position[n, 0], 0)] = 0
    trees.leaf[n] = 0
    trees.path_length[n] = 0


@njit(cache=True)
def grow(trees: Trees, n: int) -> int:
    """Add the node at the end of the path, with the parent's position; its rules are applied by the caller."""
    step = trees.path_length[n] - 1
    parent, action = trees.path_node[n, step], trees.path_action[n, step]
    node = trees.size[n]
    trees.position[n, node] = trees.position[n, parent]
    _add_node(trees, n, trees.depth[n, parent] + 1)
    trees.child[n, parent, action] = node
    trees.leaf[n] = node
    return node


@njit(cache=True)
def finish_game(trees: Trees, n: int, payoffs: Array) -> None:
    """The leaf ends the game: its value is exact."""
    leaf = trees.leaf[n]
    result = payoffs[trees.position[n, leaf, 0]]
    trees.solved[n, leaf] = True
    trees.exact[n, leaf] = result
    trees.value[n, leaf] = result
    trees.visits[n, leaf], trees.total[n, leaf] = 1, result
    _back_up(trees, n, result)


@njit(cache=True)
def simulate(trees: Trees, n: int, rules: Rules, f: Formula, roots: Roots, simulation: int, work: Array) -> bool:
    """One simulation up to its leaf; True if the leaf needs an evaluation, False if its value was exact."""
    payoffs = np.zeros(2, np.float32)
    trees.path_length[n] = 0
    node = 0
    while True:
        if not _descend(trees, n, f, roots, simulation, node, work):
            _back_up(trees, n, float(trees.exact[n, trees.leaf[n]]))
            return False
        step = trees.path_length[n] - 1
        parent, action = trees.path_node[n, step], trees.path_action[n, step]
        fresh = trees.position[n, trees.size[n]]
        fresh[:] = trees.position[n, parent]
        rules.apply(fresh, action)
        if trees.table.shape[1] > 0:
            slot = _slot(trees, n, fresh, trees.depth[n, parent] + 1)
            known = trees.table[n, slot]
            if known >= 0:  # another order of moves led here
                trees.child[n, parent, action] = node = known
                continue
            trees.table[n, slot] = trees.size[n]
        leaf = _add_node(trees, n, trees.depth[n, parent] + 1)
        trees.child[n, parent, action] = leaf
        trees.leaf[n] = leaf
        if rules.outcome(fresh, payoffs):
            finish_game(trees, n, payoffs)
            return False
        rules.legal(fresh, trees.legal[n, leaf])
        if not trees.legal[n, leaf].any():
            trees.fault[n] = NO_OUTCOME
            finish_game(trees, n, payoffs)
            return False
        return True


# Whole searches --------------------------------------------------------------------------------------


@njit(cache=True)
def needs_search(trees: Trees, n: int, roots: Roots, simulation: int) -> bool:
    """Whether this copy takes part in a simulation."""
    return simulation < roots.budget[n] and not trees.solved[n, 0] and trees.fault[n] == 0


@njit(cache=True)
def simulate_all(
    trees: Trees,
    rules: Rules,
    f: Formula,
    roots: Roots,
    simulation: int,
    first: int,
    last: int,
    rows: Array,
    x: Array,
    work: Array,
) -> int:
    """One simulation of the copies from `first` to `last`; returns how many leaves wait.

    `rows` lists their copies, `x` what the players to move there see.
    """
    found = 0
    for n in range(first, last):
        if needs_search(trees, n, roots, simulation) and simulate(trees, n, rules, f, roots, simulation, work):
            rules.observe(trees.position[n, trees.leaf[n]], x[found])
            rows[found] = n
            found += 1
    return found


@njit(cache=True)
def descend_all(trees: Trees, f: Formula, roots: Roots, simulation: int, rows: Array, work: Array) -> int:
    """Like `simulate_all` for games without compiled rules: the leaves hold their parents' positions."""
    found = 0
    for n in range(len(rows)):
        if not needs_search(trees, n, roots, simulation):
            continue
        trees.path_length[n] = 0
        if _descend(trees, n, f, roots, simulation, 0, work):
            grow(trees, n)
            rows[found] = n
            found += 1
        else:
            _back_up(trees, n, float(trees.exact[n, trees.leaf[n]]))
    return found


@njit(cache=True)
def attach_all(trees: Trees, rows: Array, logits: Array, values: Array, roots: Roots) -> None:
    """Evaluations of the leaves of some copies."""
    for i in range(len(rows)):
        attach(trees, rows[i], logits[i], float(values[i]), roots)


@njit(cache=True, parallel=True)
def simulate_each(
    trees: Trees, rules: Rules, f: Formula, roots: Roots, simulation: int, waiting: Array, x: Array
) -> None:
    """`simulate_all` on several threads: copy n writes its own row of `x`, and `waiting[n]` says whether it did."""
    for n in prange(len(waiting)):
        waiting[n] = False
        if needs_search(trees, n, roots, simulation):
            work = np.empty(trees.count.shape[2])
            if simulate(trees, n, rules, f, roots, simulation, work):
                rules.observe(trees.position[n, trees.leaf[n]], x[n])
                waiting[n] = True


@njit(cache=True, parallel=True)
def attach_each(trees: Trees, waiting: Array, out: Array, roots: Roots) -> None:
    """`attach_all` on several threads: row n of a network's outputs `[N, K + 1]` belongs to copy n."""
    for n in prange(len(waiting)):
        if waiting[n]:
            attach(trees, n, out[n, :-1], np.tanh(float(out[n, -1])), roots)


@njit(cache=True)
def plant_all(
    trees: Trees, rules: Rules, fresh: Array, positions: Array, first: int, last: int, rows: Array, x: Array
) -> int:
    """New trees for the copies in `fresh`; their roots wait for an evaluation like the leaves of `simulate_all`."""
    found = 0
    for n in range(first, last):
        if fresh[n]:
            plant(trees, n, positions[n])
            rules.legal(trees.position[n, 0], trees.legal[n, 0])
            if not trees.legal[n, 0].any():
                trees.fault[n] = NO_OUTCOME
            rules.observe(trees.position[n, 0], x[found])
            rows[found] = n
            found += 1
    return found


class Perceptron(NamedTuple):
    """A network whose outputs are the logits of all actions and, through tanh, the value."""

    flat: Array  # [P]
    sizes: Array
    relu: bool


BLOCK = 64  # copies that search together, so that their trees stay in the cache


@njit(cache=True, error_model="numpy")
def _attach_evaluated(trees: Trees, rows: Array, x: Array, net: Perceptron, store: Array, roots: Roots) -> None:
    out = kernels.forward(net.flat, net.sizes, net.relu, x, store)
    for i in range(len(rows)):
        attach(trees, rows[i], out[i, :-1], np.tanh(float(out[i, -1])), roots)


@njit(cache=True, error_model="numpy")
def _search_block(
    trees: Trees,
    rules: Rules,
    f: Formula,
    roots: Roots,
    fresh: Array,
    positions: Array,
    net: Perceptron,
    first: int,
    last: int,
) -> None:
    """All simulations of the copies from `first` to `last`."""
    x = np.empty((last - first, net.sizes[0]), np.float32)
    store = np.empty((last - first) * net.sizes[1:].sum(), np.float32)
    rows, work = np.empty(last - first, np.int64), np.empty(trees.count.shape[2])
    found = plant_all(trees, rules, fresh, positions, first, last, rows, x)
    if found > 0:
        _attach_evaluated(trees, rows[:found], x[:found], net, store, roots)
    for simulation in range(roots.budget[first:last].max()):
        found = simulate_all(trees, rules, f, roots, simulation, first, last, rows, x, work)
        if found > 0:
            _attach_evaluated(trees, rows[:found], x[:found], net, store, roots)


@njit(cache=True, error_model="numpy")
def search_with_perceptron(
    trees: Trees, rules: Rules, f: Formula, roots: Roots, fresh: Array, positions: Array, net: Perceptron
) -> None:
    """Run all simulations of all copies; copies in `fresh [N]` begin a new tree at their position."""
    copies = len(trees.size)
    for first in range(0, copies, BLOCK):
        _search_block(trees, rules, f, roots, fresh, positions, net, first, min(first + BLOCK, copies))


@njit(cache=True)
def _play_out(
    trees: Trees, n: int, rules: Rules, random: Array, limit: int, position: Array, mask: Array, payoffs: Array
) -> float:
    """Play random legal moves from the leaf to the end; returns what the player to move at the leaf gets."""
    position[:] = trees.position[n, trees.leaf[n]]
    player = position[0]
    mask[:] = trees.legal[n, trees.leaf[n]]
    for _ in range(limit + 1):
        choices = mask.sum()
        if choices == 0:
            trees.fault[n] = NO_OUTCOME
            return 0.0
        left = int(uniform(random, n) * choices)
        for a in range(len(mask)):
            if mask[a]:
                if left == 0:
                    rules.apply(position, a)
                    break
                left -= 1
        if rules.outcome(position, payoffs):
            return float(payoffs[player])
        mask[:] = False
        rules.legal(position, mask)
    trees.fault[n] = TOO_LONG
    return 0.0


@njit(cache=True)
def _attach_played_out(
    trees: Trees, rows: Array, rules: Rules, random: Array, playouts: int, limit: int, roots: Roots, zeros: Array
) -> None:
    position = np.empty(trees.position.shape[2], np.int64)
    mask, payoffs = np.zeros(len(zeros), np.bool_), np.zeros(2, np.float32)
    for n in rows:
        value = 0.0
        for _ in range(playouts):
            value += _play_out(trees, n, rules, random, limit, position, mask, payoffs) / playouts
        attach(trees, n, zeros, value, roots)


@njit(cache=True)
def _search_block_with_playouts(
    trees: Trees,
    rules: Rules,
    f: Formula,
    roots: Roots,
    fresh: Array,
    positions: Array,
    random: Array,
    playouts: int,
    limit: int,
    size: int,
    first: int,
    last: int,
) -> None:
    x, zeros = np.empty((last - first, size), np.float32), np.zeros(trees.count.shape[2], np.float32)
    rows, work = np.empty(last - first, np.int64), np.empty(trees.count.shape[2])
    found = plant_all(trees, rules, fresh, positions, first, last, rows, x)
    _attach_played_out(trees, rows[:found], rules, random, playouts, limit, roots, zeros)
    for simulation in range(roots.budget[first:last].max()):
        found = simulate_all(trees, rules, f, roots, simulation, first, last, rows, x, work)
        _attach_played_out(trees, rows[:found], rules, random, playouts, limit, roots, zeros)


@njit(cache=True)
def search_with_playouts(
    trees: Trees,
    rules: Rules,
    f: Formula,
    roots: Roots,
    fresh: Array,
    positions: Array,
    random: Array,
    playouts: int,
    limit: int,
    size: int,
) -> None:
    """Like `search_with_perceptron` without a network: uniform priors, and random games (none: value 0) as values."""
    copies = len(trees.size)
    for first in range(0, copies, BLOCK):
        last = min(first + BLOCK, copies)
        _search_block_with_playouts(
            trees, rules, f, roots, fresh, positions, random, playouts, limit, size, first, last
        )


# What the root says ----------------------------------------------------------------------------------


@njit(cache=True)
def read_roots(trees: Trees, f: Formula, gumbel: Array, policy: Array, value: Array, action: Array) -> None:
    """The improved policy `[N, K]`, the root's value `[N]` and the best action `[N]` of every tree.

    PUCT: the policy is the share of visits, the best action the most visited one (of equal ones that of the higher
    prior). Gumbel: the policy is π', the best
    action the one of highest g + logit + σ(q) among the most visited. In a solved root only the moves that keep its
    result count; lost moves never do while there are others.
    """
    work = np.empty(policy.shape[1])
    for n in range(len(policy)):
        legal, count = trees.legal[n, 0], trees.count[n, 0]
        fate, solved, exact = trees.fate[n, 0], trees.solved[n, 0], trees.exact[n, 0]
        wanted = legal & (fate != LOST)
        if not wanted.any():
            wanted[:] = legal
        if solved:  # the edges that keep the result
            for a in range(len(work)):
                end = trees.child[n, 0, a]
                wanted[a] &= fate[a] != OPEN and _seen_from(trees, n, 0, end, trees.exact[n, end]) >= exact
        _gumbel_logits(trees, n, 0, f, work)
        best, total, most = -np.inf, 0, (count * wanted).max()
        for a in range(len(work)):
            policy[n, a] = 0
            if not wanted[a]:
                work[a] = -np.inf
                continue
            policy[n, a] = count[a]
            total += count[a]
            score = gumbel[n, a] + work[a] if f.gumbel else trees.prior[n, 0, a]
            if count[a] == most and score > best:
                best, action[n] = score, a
        if f.gumbel or total == 0:  # no visits: the evaluation alone
            _softmax(work)
            policy[n] = work
        else:
            policy[n] /= total
        value[n] = exact if solved else trees.total[n, 0] / max(trees.visits[n, 0], 1)


# Carrying a subtree over -----------------------------------------------------------------------------


@njit(cache=True)
def find_position(trees: Trees, n: int, position: Array) -> int:
    """A node with this position, or −1."""
    for node in range(trees.size[n]):
        if np.array_equal(trees.position[n, node], position):
            return node
    return -1


@njit(cache=True)
def keep_subtree(trees: Trees, n: int, root: int) -> None:
    """Make `root` the root of the tree: its subtree moves to the front, everything else goes."""
    size = trees.size[n]
    new = np.full(size, -1, np.int64)  # old node -> new node
    order = np.empty(size, np.int64)  # new node -> old node
    order[0], new[root], found, at = root, 0, 1, 0
    while at < found:
        for end in trees.child[n, order[at]]:
            if end >= 0 and new[end] < 0:
                new[end], order[found] = found, end
                found += 1
        at += 1
    order = order[:found]
    for per_node in (trees.value, trees.total, trees.exact):
        per_node[n, :found] = per_node[n][order]
    for per_edge in (trees.logit, trees.prior, trees.gain):
        per_edge[n, :found] = per_edge[n][order]
    trees.position[n, :found] = trees.position[n][order]
    trees.depth[n, :found] = trees.depth[n][order] - trees.depth[n, root]
    trees.visits[n, :found] = trees.visits[n][order]
    trees.solved[n, :found] = trees.solved[n][order]
    trees.legal[n, :found] = trees.legal[n][order]
    trees.count[n, :found] = trees.count[n][order]
    trees.fate[n, :found] = trees.fate[n][order]
    ends = trees.child[n][order]
    for i in range(found):
        for a in range(ends.shape[1]):
            trees.child[n, i, a] = new[ends[i, a]] if ends[i, a] >= 0 else -1
    trees.size[n] = found
    _fill_table(trees, n)


@njit(cache=True)
def _fill_table(trees: Trees, n: int) -> None:
    """Write the transposition table of a tree anew."""
    if trees.table.shape[1] > 0:
        trees.table[n] = -1
        for node in range(trees.size[n]):
            trees.table[n, _slot(trees, n, trees.position[n, node], trees.depth[n, node])] = node


_SAVED = (
    *("position", "depth", "value", "visits", "total", "solved", "exact"),
    *("legal", "logit", "prior", "child", "count", "gain", "fate"),
)


def as_state(trees: Trees) -> dict[str, Any]:
    """The trees as they are saved: the nodes in use alone."""
    used = int(trees.size.max(initial=0))
    return {"size": trees.size.copy()} | {name: getattr(trees, name)[:, :used].copy() for name in _SAVED}


def load_state(trees: Trees, state: dict[str, Any]) -> None:
    """Restore saved trees."""
    trees.size[:] = state["size"]
    for name in _SAVED:
        getattr(trees, name)[:, : state[name].shape[1]] = state[name]
    for n in range(len(trees.size)):
        _fill_table(trees, n)
