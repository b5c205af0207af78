"""Tree search, compiled: selection, expansion, backup, and what the root says. The trees are those of `nodes.py`.

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

from typing import NamedTuple

import numpy as np
from numba import prange

from coterie.core.game import Rules
from coterie.core.jit import jit
from coterie.core.splitmix import uniform
from coterie.core.types import Array
from coterie.nn import kernels
from coterie.nn.kernels import FAST
from coterie.policies.search.nodes import KNOWN, LOST, OPEN, Trees, add_node, inlined, seen_from, slot_of, uncounted

NO_OUTCOME = 1  # fault: no legal action, and the game is not over
TOO_LONG = 2  # fault: a random game did not end within `max_moves`
NOT_FINITE = 3  # fault: the network's evaluation of a position is not finite
BEYOND_ONE = 4  # fault: a payoff does not lie between −1 and 1, so that a 1 is not the best result


class Formula(NamedTuple):
    """Constants of the formula that selects edges."""

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
    """Inputs of one search at its roots."""

    budget: Array  # [N] int64: simulations to run
    allowed: Array  # [N, K] bool: legal actions that may be searched
    noise: Array  # [N, K] float32: mixed into the prior
    noise_share: Array  # [N] float32: how much of it
    gumbel: Array  # [N, K] float32: g(a); zero for a search without chance
    halving: Array  # [N, simulations] int64: visits that the next root edge must have (sequential halving)


class Work(NamedTuple):
    """Scratch arrays of one thread, allocated once: a simulation is shorter than an allocation."""

    position: Array  # [S] int64: of the leaf
    mask: Array  # [K] bool
    payoffs: Array  # [2] float32
    seen: Array  # [D] float32: what the player to move at the leaf sees; D = 0: nobody asks
    scores: Array  # [K] float64


@jit
def make_work(trees: Trees, size: int) -> Work:
    """Room for one thread, with views of `size` numbers."""
    actions = trees.edge.shape[2]
    return Work(
        np.zeros(trees.position.shape[2], np.int64),
        np.zeros(actions, np.bool_),
        np.zeros(2, np.float32),
        np.zeros(size, np.float32),
        np.zeros(actions),
    )


# Selection -------------------------------------------------------------------------------------------


@uncounted(error_model="numpy", fastmath=FAST, inline="always")
def _select_puct(trees: Trees, n: int, node: int, f: Formula) -> int:
    here = trees.node[n, node]
    visits = np.float32(here.visits)
    scale = f.scale[min(here.visits, len(f.scale) - 1)]  # carried transpositions may have more visits
    unvisited = here.total / visits if f.from_parent else np.float32(0)
    best, at, lost_at = np.float32(-np.inf), -1, -1
    for a in range(trees.edge.shape[2]):
        edge = trees.edge[n, node, a]
        if edge.legal:
            if edge.fate == LOST:
                lost_at = a
                continue
            times = np.float32(edge.count)
            q = edge.gain / times if edge.count > 0 else unvisited
            score = q + scale * edge.prior / (np.float32(1) + times)
            if score > best:
                best, at = score, a
    return at if at >= 0 else lost_at


@inlined(error_model="numpy")
def _mixed_value(trees: Trees, n: int, node: int) -> float:
    """v_mix (eq. 33): the evaluation, and the values of visited edges weighted by their priors."""
    visits, weight, total = 0, 0.0, 0.0
    for a in range(trees.edge.shape[2]):
        edge = trees.edge[n, node, a]
        if edge.count > 0:
            visits += edge.count
            weight += edge.prior
            total += edge.prior * float(edge.gain) / edge.count
    return (float(trees.node[n, node].value) + visits * total / max(weight, 1e-30)) / (1 + visits)


@inlined(error_model="numpy")
def _gumbel_logits(trees: Trees, n: int, node: int, f: Formula, out: Array) -> float:
    """Write logit + σ(completed Q) of the legal actions, −inf elsewhere; returns σ(v_mix)."""
    most = 0
    for a in range(len(out)):
        most = max(most, trees.edge[n, node, a].count)
    scale = (f.c_visit + most) * f.c_scale / 2
    mixed = scale * (_mixed_value(trees, n, node) + 1)
    for a in range(len(out)):
        edge = trees.edge[n, node, a]
        if not edge.legal:
            out[a] = -np.inf
        elif edge.count > 0:
            out[a] = edge.logit + scale * (float(edge.gain) / edge.count + 1)
        else:
            out[a] = edge.logit + mixed
    return mixed


@jit
def _softmax(row: Array) -> None:
    top, total = row.max(), 0.0
    for a in range(len(row)):
        row[a] = np.exp(row[a] - top)
        total += row[a]
    for a in range(len(row)):
        row[a] /= total


@inlined(error_model="numpy")
def _select_gumbel(trees: Trees, n: int, node: int, f: Formula, work: Array) -> int:
    """argmax π'(a) − N(a) / (1 + Σ N) (eq. 14)."""
    mixed, top, total = _gumbel_logits(trees, n, node, f, work), -np.inf, 0.0
    for a in range(len(work)):
        top = max(top, work[a])
    unvisited = np.exp(mixed - top)  # edges without visits share their σ: one exponential serves all of them
    for a in range(len(work)):
        edge = trees.edge[n, node, a]
        work[a] = np.exp(work[a] - top) if edge.count > 0 else edge.prior * unvisited
        total += work[a]
    total = max(total, 1e-300)
    best, at, lost_at = -np.inf, -1, -1
    visits = trees.node[n, node].visits
    for a in range(len(work)):
        edge = trees.edge[n, node, a]
        if edge.legal:
            if edge.fate == LOST:
                lost_at = a
                continue
            score = work[a] / total - edge.count / visits
            if score > best:
                best, at = score, a
    return at if at >= 0 else lost_at


@uncounted(error_model="numpy")
def _select_halving(trees: Trees, n: int, f: Formula, roots: Roots, simulation: int, work: Array) -> int:
    """The root's edge in sequential halving: the highest g + logit + σ(q) among those with so many visits.

    Lost edges drop out. Where that leaves none with the visits that the schedule wants, the most visited ones compete.
    """
    _gumbel_logits(trees, n, 0, f, work)
    wanted, most, some = roots.halving[n, simulation], 0, False
    for a in range(len(work)):
        edge = trees.edge[n, 0, a]
        if edge.legal and edge.fate != LOST:
            most = max(most, edge.count)
            some |= edge.count == wanted
    if not some:
        wanted = most
    best, at = -np.inf, -1
    for a in range(len(work)):
        edge = trees.edge[n, 0, a]
        score = roots.gumbel[n, a] + work[a]
        if edge.legal and edge.fate != LOST and edge.count == wanted and score > best:
            best, at = score, a
    return at


def halving_schedule(considered: int, simulations: int) -> Array:
    """Visits that the edge of each simulation has before it, when `considered` actions are halved step by step.

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


@inlined()
def _descend(trees: Trees, n: int, f: Formula, roots: Roots, simulation: int, node: int, work: Array) -> bool:
    """Select edges from `node` down; True if the last one has no node yet, False if a solved node was reached.

    `path` holds the way; the node reached is `leaf`.
    """
    walk = trees.walk[n]
    while True:
        walk.leaf = node
        if trees.node[n, node].solved:
            return False
        if not f.gumbel:
            action = _select_puct(trees, n, node, f)
        elif node == 0:
            action = _select_halving(trees, n, f, roots, simulation, work)
        else:
            action = _select_gumbel(trees, n, node, f, work)
        step = trees.path[n, walk.length]
        step.node, step.action = node, action
        walk.length += 1
        end = trees.edge[n, node, action].child
        if end < 0:
            return True
        node = end


@inlined(error_model="numpy")
def _back_up(trees: Trees, n: int, value: float) -> None:
    """Carry the leaf's value to the root, and mark as solved what its result decides.

    What comes back through a solved node is its exact result.
    """
    end = trees.walk[n].leaf
    settled, source = trees.node[n, end].solved, end
    for i in range(trees.walk[n].length - 1, -1, -1):
        step = trees.path[n, i]
        node, edge = trees.node[n, step.node], trees.edge[n, step.node, step.action]
        if settled:
            source, value = end, float(trees.node[n, end].exact)
        seen = np.float32(seen_from(trees, n, step.node, source, value))
        node.visits += 1
        node.total += seen
        edge.count += 1
        edge.gain += seen
        if settled:
            settled = _settle(trees, n, step.node, step.action, end)
        end = step.node


@uncounted(error_model="numpy")
def _settle(trees: Trees, n: int, at: int, action: int, end: int) -> bool:
    """Note the exact result of an edge; the node is solved if it is a win, or if all its edges are solved."""
    node, edge = trees.node[n, at], trees.edge[n, at, action]
    best = seen_from(trees, n, at, end, trees.node[n, end].exact)
    node.total += np.float32(best * edge.count - edge.gain)
    edge.gain = np.float32(best * edge.count)
    edge.fate = LOST if best <= -1 else KNOWN
    if best < 1:
        for a in range(trees.edge.shape[2]):
            other = trees.edge[n, at, a]
            if other.legal:
                if other.fate == OPEN:
                    return False
                best = max(best, seen_from(trees, n, at, other.child, trees.node[n, other.child].exact))
    node.solved = True
    node.exact = best
    return True


@inlined()
def attach(trees: Trees, n: int, out: Array, row: int, roots: Roots) -> None:
    """Give the leaf its evaluation, row `row` of `out [R, K + 1]`: logits of all actions, a value; then back it up."""
    leaf, actions = trees.walk[n].leaf, trees.edge.shape[2]
    node, value = trees.node[n, leaf], out[row, actions]
    node.value = value
    node.visits = 1
    node.total = value
    top, total = np.float32(-np.inf), np.float32(0)
    for a in range(actions):
        edge = trees.edge[n, leaf, a]
        if leaf == 0:
            edge.legal &= roots.allowed[n, a]
        if edge.legal:
            top = max(top, out[row, a])
    for a in range(actions):
        edge = trees.edge[n, leaf, a]
        edge.prior = np.exp(out[row, a] - top) if edge.legal else np.float32(0)
        total += edge.prior
    walk = trees.walk[n]
    if walk.fault == 0 and not np.isfinite(total + value):
        walk.fault = NOT_FINITE
    if walk.fault != 0:
        return
    log_total = np.log(total)
    for a in range(actions):
        edge = trees.edge[n, leaf, a]
        edge.prior /= total
        edge.logit = out[row, a] - top - log_total if edge.legal else np.float32(-np.inf)
    if leaf == 0:
        mix_noise(trees, n, roots)
    _back_up(trees, n, float(value))


@uncounted()
def mix_noise(trees: Trees, n: int, roots: Roots) -> None:
    """Mix noise into the root's prior."""
    share = roots.noise_share[n]
    for a in range(trees.edge.shape[2]):
        edge = trees.edge[n, 0, a]
        if edge.legal:
            edge.prior = (1 - share) * np.exp(edge.logit) + share * roots.noise[n, a]


@uncounted()
def plant(trees: Trees, n: int, position: Array) -> None:
    """Start a new tree at a position; its root waits for `legal` and an evaluation."""
    walk = trees.walk[n]
    walk.size = 0
    walk.leaf = 0
    walk.length = 0
    for i in range(len(position)):
        trees.position[n, 0, i] = position[i]
    add_node(trees, n, 0)
    if trees.table.shape[1] > 0:
        trees.table[n] = -1
        trees.table[n, slot_of(trees, n, position, 0)] = 0


@uncounted()
def finish_game(trees: Trees, n: int, payoffs: Array) -> None:
    """The leaf ends the game: its value is exact."""
    leaf = trees.walk[n].leaf
    node, result = trees.node[n, leaf], payoffs[trees.position[n, leaf, 0]]
    if trees.walk[n].fault == 0 and not abs(result) <= 1:
        trees.walk[n].fault = BEYOND_ONE
    node.solved = True
    node.exact = result
    node.value = result
    node.visits = 1
    node.total = result
    _back_up(trees, n, float(result))


@inlined()
def _enter(trees: Trees, n: int, rules: Rules, work: Work) -> bool:
    """Write the legal actions of the leaf, whose position is in `work`; False if there are none."""
    leaf, some = trees.walk[n].leaf, False
    for a in range(len(work.mask)):
        work.mask[a] = False
    rules.legal(work.position, work.mask)
    for a in range(len(work.mask)):
        trees.edge[n, leaf, a].legal = work.mask[a]
        some |= work.mask[a]
    if len(work.seen) > 0:
        rules.observe(work.position, work.seen)
    return some


@inlined()
def simulate(trees: Trees, n: int, rules: Rules, f: Formula, roots: Roots, simulation: int, work: Work) -> bool:
    """One simulation up to its leaf; True if the leaf needs an evaluation, False if its value was exact."""
    walk = trees.walk[n]
    walk.length = 0
    node = 0
    while True:
        if not _descend(trees, n, f, roots, simulation, node, work.scores):
            _back_up(trees, n, float(trees.node[n, walk.leaf].exact))
            return False
        step = trees.path[n, walk.length - 1]
        depth = trees.node[n, step.node].depth + 1
        for i in range(len(work.position)):
            work.position[i] = trees.position[n, step.node, i]
        rules.apply(work.position, step.action)
        if trees.table.shape[1] > 0:
            slot = slot_of(trees, n, work.position, depth)
            known = trees.table[n, slot]
            if known >= 0:  # another order of moves led here
                trees.edge[n, step.node, step.action].child = node = known
                continue
            trees.table[n, slot] = walk.size
        for i in range(len(work.position)):
            trees.position[n, walk.size, i] = work.position[i]
        walk.leaf = add_node(trees, n, depth)
        trees.edge[n, step.node, step.action].child = walk.leaf
        if rules.outcome(work.position, work.payoffs):
            finish_game(trees, n, work.payoffs)
            return False
        if not _enter(trees, n, rules, work):
            walk.fault = NO_OUTCOME
            work.payoffs[:] = 0
            finish_game(trees, n, work.payoffs)
            return False
        return True


@inlined()
def _needs_search(trees: Trees, n: int, roots: Roots, simulation: int) -> bool:
    """Whether this copy takes part in a simulation."""
    return simulation < roots.budget[n] and not trees.node[n, 0].solved and trees.walk[n].fault == 0


class Starts(NamedTuple):
    """Positions at which new trees begin."""

    fresh: Array  # [N] bool: copies that begin one
    positions: Array  # [N, S] int64


@inlined()
def _reach_leaf(
    trees: Trees, n: int, rules: Rules, f: Formula, roots: Roots, starts: Starts, simulation: int, work: Work
) -> bool:
    """Bring one copy to its next leaf; True if that needs an evaluation. Simulation −1 plants the trees."""
    if simulation >= 0:
        return _needs_search(trees, n, roots, simulation) and simulate(trees, n, rules, f, roots, simulation, work)
    if not starts.fresh[n]:
        return False
    for i in range(len(work.position)):
        work.position[i] = starts.positions[n, i]
    plant(trees, n, work.position)
    if not _enter(trees, n, rules, work):
        trees.walk[n].fault = NO_OUTCOME
    return True


# Whole searches in one call --------------------------------------------------------------------------


class Perceptron(NamedTuple):
    """A network whose outputs are the logits of all actions and, through tanh, the value."""

    flat: Array  # [P]
    sizes: Array  # [layers + 1] int64; empty: there is none
    relu: bool


NO_NETWORK = Perceptron(np.zeros(0, np.float32), np.zeros(0, np.int64), True)


class Evaluator(NamedTuple):
    """The evaluator of leaves: a perceptron, or where it is empty random games (with no games: value 0)."""

    net: Perceptron
    random: Array  # [N] uint64: one state per copy
    playouts: int  # random games per leaf
    limit: int  # moves after which a random game is too long


BLOCK = 64  # copies that search together, so that their trees stay in the cache


@jit
def _search_block(
    trees: Trees, rules: Rules, f: Formula, roots: Roots, starts: Starts, evaluator: Evaluator, first: int, last: int
) -> None:
    """All simulations of the copies from `first` to `last`."""
    net, size, copies = evaluator.net, 0, last - first
    if len(net.sizes) > 0:
        size = net.sizes[0]
    x, rows, work = np.empty((copies, size), np.float32), np.empty(copies, np.int64), make_work(trees, size)
    store = np.empty(copies * net.sizes[1:].sum(), np.float32)
    out = np.zeros((copies, trees.edge.shape[2] + 1), np.float32)
    for simulation in range(-1, roots.budget[first:last].max()):
        found = 0
        for n in range(first, last):
            if _reach_leaf(trees, n, rules, f, roots, starts, simulation, work):
                for i in range(size):
                    x[found, i] = work.seen[i]
                rows[found] = n
                found += 1
        if found > 0:
            if size > 0:
                out = kernels.forward(net.flat, net.sizes, net.relu, x[:found], store)
            for i in range(found):
                value = np.tanh(float(out[i, -1])) if size > 0 else _play_outs(trees, rows[i], rules, evaluator, work)
                out[i, -1] = value
                attach(trees, rows[i], out, i, roots)


@jit
def search_all(trees: Trees, rules: Rules, f: Formula, roots: Roots, starts: Starts, evaluator: Evaluator) -> None:
    """Run all simulations of all copies."""
    copies = len(trees.walk)
    for first in range(0, copies, BLOCK):
        _search_block(trees, rules, f, roots, starts, evaluator, first, min(first + BLOCK, copies))


@inlined()
def _play_outs(trees: Trees, n: int, rules: Rules, evaluator: Evaluator, work: Work) -> float:
    """The mean of random games from the leaf."""
    value = 0.0
    for _ in range(evaluator.playouts):
        value += _play_out(trees, n, rules, evaluator, work) / evaluator.playouts
    return value


@inlined()
def _play_out(trees: Trees, n: int, rules: Rules, evaluator: Evaluator, work: Work) -> float:
    """Play random legal moves from the leaf to the end; returns what the player to move at the leaf gets."""
    leaf = trees.walk[n].leaf
    position, mask = work.position, work.mask
    for i in range(len(position)):
        position[i] = trees.position[n, leaf, i]
    for a in range(len(mask)):
        mask[a] = trees.edge[n, leaf, a].legal
    player = position[0]
    for _ in range(evaluator.limit + 1):
        choices = 0
        for a in range(len(mask)):
            choices += mask[a]
        if choices == 0:
            trees.walk[n].fault = NO_OUTCOME
            return 0.0
        left = int(uniform(evaluator.random, n) * choices)
        for a in range(len(mask)):
            if mask[a]:
                if left == 0:
                    rules.apply(position, a)
                    break
                left -= 1
        if rules.outcome(position, work.payoffs):
            return float(work.payoffs[player])
        for a in range(len(mask)):
            mask[a] = False
        rules.legal(position, mask)
    trees.walk[n].fault = TOO_LONG
    return 0.0


# Searches step by step -------------------------------------------------------------------------------


class Exchange(NamedTuple):
    """Arrays exchanged with an evaluation that runs elsewhere; row i belongs to copy `first` + i."""

    first: int
    waiting: Array  # [R] bool: whether the copy has a leaf to evaluate
    x: Array  # [R, D] float32: what the player to move there sees
    out: Array  # [R, K + 1] float32: the answer: logits, and the value


@jit
def advance(
    trees: Trees,
    rules: Rules,
    f: Formula,
    roots: Roots,
    starts: Starts,
    simulation: int,
    exchange: Exchange,
    begin: int,
    end: int,
) -> None:
    """Take in the answers for rows from `begin` to `end`, then bring these copies to their next leaves."""
    work = make_work(trees, exchange.x.shape[1])
    for row in range(begin, end):
        n = exchange.first + row
        if exchange.waiting[row]:
            attach(trees, n, exchange.out, row, roots)
        exchange.waiting[row] = _reach_leaf(trees, n, rules, f, roots, starts, simulation, work)
        if exchange.waiting[row]:
            for i in range(len(work.seen)):
                exchange.x[row, i] = work.seen[i]


@jit(parallel=True)
def advance_in_parallel(
    trees: Trees,
    rules: Rules,
    f: Formula,
    roots: Roots,
    starts: Starts,
    simulation: int,
    exchange: Exchange,
    parts: int,
) -> None:
    """`advance` for all rows, in parts that run on different threads."""
    rows = len(exchange.waiting)
    for part in prange(parts):
        first, last = rows * part // parts, rows * (part + 1) // parts
        advance(trees, rules, f, roots, starts, simulation, exchange, first, last)


@jit
def descend_all(trees: Trees, f: Formula, roots: Roots, simulation: int, rows: Array) -> int:
    """One simulation for games without compiled rules: `rows` lists the copies whose leaves wait; returns how many.

    The leaves are new nodes with their parents' positions: the caller plays the last action of the path.
    """
    found, work = 0, np.empty(trees.edge.shape[2])
    for n in range(len(rows)):
        if not _needs_search(trees, n, roots, simulation):
            continue
        walk = trees.walk[n]
        walk.length = 0
        if not _descend(trees, n, f, roots, simulation, 0, work):
            _back_up(trees, n, float(trees.node[n, walk.leaf].exact))
            continue
        step = trees.path[n, walk.length - 1]
        trees.position[n, walk.size] = trees.position[n, step.node]
        walk.leaf = add_node(trees, n, trees.node[n, step.node].depth + 1)
        trees.edge[n, step.node, step.action].child = walk.leaf
        rows[found] = n
        found += 1
    return found


@jit
def attach_all(trees: Trees, rows: Array, out: Array, roots: Roots) -> None:
    """Evaluations `[R, K + 1]` of the leaves of some copies."""
    for i in range(len(rows)):
        attach(trees, rows[i], out, i, roots)


# What the root says ----------------------------------------------------------------------------------


@jit
def read_roots(trees: Trees, f: Formula, gumbel: Array, policy: Array, value: Array, action: Array) -> None:
    """The improved policy `[N, K]`, the root's value `[N]` and the best action `[N]` of every tree.

    PUCT: the policy is the share of visits, the best action the most visited one (of equal ones that of the higher
    prior). Gumbel: the policy is π', the best action the one of highest g + logit + σ(q) among the most visited. In a
    solved root only the moves that keep its result count; lost moves never do while there are others.
    """
    work, wanted = np.empty(policy.shape[1]), np.empty(policy.shape[1], np.bool_)
    for n in range(len(policy)):
        _choose_root_edges(trees, n, wanted)
        _gumbel_logits(trees, n, 0, f, work)
        best, total, most = -np.inf, 0, 0
        for a in range(len(work)):
            if wanted[a]:
                most = max(most, trees.edge[n, 0, a].count)
        for a in range(len(work)):
            policy[n, a] = 0
            if not wanted[a]:
                work[a] = -np.inf
                continue
            edge = trees.edge[n, 0, a]
            policy[n, a] = edge.count
            total += edge.count
            score = gumbel[n, a] + work[a] if f.gumbel else float(edge.prior)
            if edge.count == most and score > best:
                best, action[n] = score, a
        if f.gumbel or total == 0:  # no visits: the evaluation alone
            _softmax(work)
            policy[n] = work
        else:
            policy[n] /= total
        root = trees.node[n, 0]
        value[n] = root.exact if root.solved else root.total / max(root.visits, 1)


@uncounted()
def _choose_root_edges(trees: Trees, n: int, wanted: Array) -> None:
    """Mark the actions that may be played: those that are not lost, in a solved root those that keep its result."""
    some = False
    for a in range(len(wanted)):
        edge = trees.edge[n, 0, a]
        wanted[a] = edge.legal and edge.fate != LOST
        some |= wanted[a]
    for a in range(len(wanted)):
        edge = trees.edge[n, 0, a]
        if not some:
            wanted[a] = edge.legal
        if trees.node[n, 0].solved:
            end = edge.child
            kept = edge.fate != OPEN and seen_from(trees, n, 0, end, trees.node[n, end].exact) >= trees.node[n, 0].exact
            wanted[a] &= kept
