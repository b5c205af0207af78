"""Search trees in memory: nodes and edges, the table of transpositions, carrying a subtree over, saving.

Every copy has one tree of at most M nodes; node 0 is its root. A node belongs to a position, an edge to a node and one
of K actions. All values are those of the player to move at the node that they stand at, between −1 and 1.

Nodes and edges are records, so that what one step of a simulation reads lies together.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from coterie.core.jit import jit
from coterie.core.types import Array

# Compiles a function that neither makes nor returns arrays, without the reference counts that Numba keeps for every
# array or slice that it touches: atomic additions that took 40% of a search, and that made threads wait for each other.
uncounted = partial(jit, _nrt=False)
# The same for functions of the inner loop, put in where they are called: a call writes the descriptions of all arrays
# onto the stack, a hundred words and more.
inlined = partial(uncounted, forceinline=True)

OPEN, KNOWN, LOST = 0, 1, 2  # an edge whose end is not solved; solved; solved, and lost for the one who takes it

NODE = np.dtype(
    [
        ("visits", np.int32),  # 1 for the evaluation, and all visits of the node's edges
        ("total", np.float32),  # the sum of the evaluation and of what came back through the edges
        ("value", np.float32),  # the evaluation of the node's position
        ("exact", np.float32),  # the result under best play, if `solved`
        ("depth", np.int32),  # moves from the root
        ("solved", np.bool_),
    ],
    align=True,
)
EDGE = np.dtype(
    [
        ("prior", np.float32),  # with noise at the root
        ("count", np.int32),  # visits
        ("gain", np.float32),  # sum of the values that came back; where the end is solved, count times its result
        ("child", np.int32),  # −1: not expanded
        ("logit", np.float32),  # log of the prior, without noise
        ("legal", np.bool_),
        ("fate", np.int8),  # OPEN, KNOWN or LOST
    ],
    align=True,
)
STEP = np.dtype([("node", np.int32), ("action", np.int32)])
WALK = np.dtype(
    [
        ("size", np.int64),  # nodes in use
        ("length", np.int64),  # edges of the running simulation
        ("leaf", np.int64),  # the node that waits for its evaluation
        ("fault", np.int64),  # 0, or why the position cannot be searched
    ]
)


class Trees(NamedTuple):
    """The trees of N copies. Compiled code uses the arrays of records, everybody else their columns."""

    position: Array  # [N, M, S] int64
    node: Array  # [N, M] NODE
    edge: Array  # [N, M, K] EDGE
    table: Array  # [N, H] int32: node of a position by its hash, −1 where empty; H = 0: no transpositions
    path: Array  # [N, M + 1] STEP: the edges of the running simulation
    walk: Array  # [N] WALK

    @property
    def size(self) -> Array:
        """Nodes in use, `[N]`."""
        return self.walk["size"]

    @property
    def fault(self) -> Array:
        """Codes of the reasons why positions cannot be searched, `[N]`; 0: they can."""
        return self.walk["fault"]

    @property
    def depth(self) -> Array:
        """Moves from the root, `[N, M]`."""
        return self.node["depth"]

    @property
    def value(self) -> Array:
        """Evaluations, `[N, M]`."""
        return self.node["value"]

    @property
    def visits(self) -> Array:
        """Visits of nodes, `[N, M]`."""
        return self.node["visits"]

    @property
    def total(self) -> Array:
        """Sums of values, `[N, M]`."""
        return self.node["total"]

    @property
    def solved(self) -> Array:
        """Whether `exact` is known, `[N, M]`."""
        return self.node["solved"]

    @property
    def exact(self) -> Array:
        """Results under best play, `[N, M]`."""
        return self.node["exact"]

    @property
    def legal(self) -> Array:
        """Legal actions, `[N, M, K]`."""
        return self.edge["legal"]

    @property
    def logit(self) -> Array:
        """Logs of priors without noise, `[N, M, K]`."""
        return self.edge["logit"]

    @property
    def prior(self) -> Array:
        """Priors, `[N, M, K]`."""
        return self.edge["prior"]

    @property
    def child(self) -> Array:
        """Nodes at the ends of edges, `[N, M, K]`; −1: none yet."""
        return self.edge["child"]

    @property
    def count(self) -> Array:  # type: ignore[override]  # hides tuple.count
        """Visits of edges, `[N, M, K]`."""
        return self.edge["count"]

    @property
    def gain(self) -> Array:
        """Sums of the values that came back, `[N, M, K]`."""
        return self.edge["gain"]

    @property
    def fate(self) -> Array:
        """OPEN, KNOWN or LOST, `[N, M, K]`."""
        return self.edge["fate"]


def empty_trees(copies: int, nodes: int, size: int, actions: int, transpositions: bool) -> Trees:
    """Room for the trees of `copies` games of position size `size`."""
    slots = 1 << (2 * nodes - 1).bit_length() if transpositions else 0
    trees = Trees(
        position=np.zeros((copies, nodes, size), np.int64),
        node=np.zeros((copies, nodes), NODE),
        edge=np.zeros((copies, nodes, actions), EDGE),
        table=np.full((copies, slots), -1, np.int32),
        path=np.zeros((copies, nodes + 1), STEP),
        walk=np.zeros(copies, WALK),
    )
    trees.child[:] = -1
    return trees


@inlined()
def seen_from(trees: Trees, n: int, node: int, other: int, value: float) -> float:
    """A value of `other`, for the player to move at `node`."""
    return value if trees.position[n, node, 0] == trees.position[n, other, 0] else -value


@inlined()
def add_node(trees: Trees, n: int, depth: int) -> int:
    """Take the next node; its position was written there already."""
    at = trees.walk[n].size
    trees.walk[n].size = at + 1
    node = trees.node[n, at]
    node.depth = depth
    node.visits = 0
    node.total = 0
    node.solved = False
    for a in range(trees.edge.shape[2]):
        edge = trees.edge[n, at, a]
        edge.legal = False
        edge.child = -1
        edge.count = 0
        edge.gain = 0
        edge.fate = OPEN
    return at


@uncounted()
def has_position(trees: Trees, n: int, node: int, position: Array) -> bool:
    """Whether a node has this position."""
    same = True
    for i in range(len(position)):
        same &= trees.position[n, node, i] == position[i]
    return same


@uncounted()
def slot_of(trees: Trees, n: int, position: Array, depth: int) -> int:
    """The slot of a position in the transposition table, or the slot for a new entry."""
    mixed = np.uint64(depth) * np.uint64(0x9E3779B97F4A7C15)
    for value in position:
        mixed = (mixed ^ np.uint64(value)) * np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(29)
    slots = trees.table.shape[1]
    at = int(np.int64(mixed & np.uint64(slots - 1)))
    while trees.table[n, at] >= 0:
        node = trees.table[n, at]
        if trees.node[n, node].depth == depth and has_position(trees, n, node, position):
            break
        at = (at + 1) & (slots - 1)
    return at


@uncounted()
def find_position(trees: Trees, n: int, position: Array) -> int:
    """A node with this position, or −1."""
    for node in range(trees.walk[n].size):
        if has_position(trees, n, node, position):
            return node
    return -1


@jit
def keep_subtree(trees: Trees, n: int, root: int) -> None:
    """Make `root` the root of the tree: its subtree moves to the front, everything else goes."""
    size, actions = trees.walk[n].size, trees.edge.shape[2]
    new = np.full(size, -1, np.int64)  # old node -> new node
    order = np.empty(size, np.int64)  # new node -> old node
    order[0], new[root], found, at = root, 0, 1, 0
    while at < found:
        for a in range(actions):
            end = trees.edge[n, order[at], a].child
            if end >= 0 and new[end] < 0:
                new[end], order[found] = found, end
                found += 1
        at += 1
    top = trees.node[n, root].depth
    position, node, edge = trees.position[n].copy(), trees.node[n].copy(), trees.edge[n].copy()
    for i in range(found):
        trees.position[n, i] = position[order[i]]
        trees.node[n, i] = node[order[i]]
        trees.node[n, i].depth -= top
        for a in range(actions):
            trees.edge[n, i, a] = edge[order[i], a]
            end = edge[order[i], a].child
            trees.edge[n, i, a].child = new[end] if end >= 0 else -1
    trees.walk[n].size = found
    _fill_table(trees, n)


@jit
def _fill_table(trees: Trees, n: int) -> None:
    """Write the transposition table of a tree anew."""
    if trees.table.shape[1] > 0:
        trees.table[n] = -1
        for node in range(trees.walk[n].size):
            trees.table[n, slot_of(trees, n, trees.position[n, node], trees.node[n, node].depth)] = node


_SAVED = ("position", *NODE.names, *EDGE.names)  # type: ignore[misc]  # dtypes with fields have names


def as_state(trees: Trees) -> dict[str, Any]:
    """The trees as they are saved: the nodes in use alone, and zeros in place of what earlier trees have left."""
    used = int(trees.size.max(initial=0))
    saved = {name: getattr(trees, name)[:, :used].copy() for name in _SAVED}
    unused = np.arange(used) >= trees.size[:, None]
    for column in saved.values():
        column[unused] = 0
    saved["exact"][~saved["solved"]] = 0
    return {"size": trees.size.copy()} | saved


def load_state(trees: Trees, state: dict[str, Any]) -> None:
    """Restore saved trees."""
    trees.size[:] = state["size"]
    for name in _SAVED:
        getattr(trees, name)[:, : state[name].shape[1]] = state[name]
    for n in range(len(trees.size)):
        _fill_table(trees, n)
