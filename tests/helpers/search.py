"""Search players' tests: small games, scripted networks, and a plain tree search to compare with.

`PlainSearch` is written from the papers on dictionaries and recursion, in float64, and shares no code with
`policies/search/tree.py`.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numba import njit

from coterie.core.game import CompiledGame, Symmetry, compile_rules
from coterie.core.types import Box
from coterie.policies.search.networks import PositionNetwork, PositionNetworkSettings
from coterie.policies.search.search import RootNoiseSettings, Search
from coterie.policies.search.tree import make_formula
from coterie.worlds.boards.tictactoe import GAME as TICTACTOE
from helpers.small_worlds import generator

NO_NOISE = RootNoiseSettings(fraction=0.0)
NEAR = 2e-5  # choices closer than this may fall either way in float32


# Games ------------------------------------------------------------------------------------------------


class Table:
    """A game written down: node -> (player to move, {action: node}), or what player 0 gets at its end.

    Positions are [player, node]; it has no compiled rules.
    """

    name, rules, estimate, max_moves = "table", None, None, 8

    def __init__(self, nodes, actions=3):
        self.nodes, self.actions = nodes, actions
        self.start = np.array([nodes[0][0], 0])
        self.observation = Box((1,), 0.0, float(len(nodes)))
        self.symmetries = (Symmetry(np.arange(1), np.arange(actions)),)

    def legal(self, positions):
        found = np.zeros((len(positions), self.actions), bool)
        for row, (_, node) in zip(found, positions, strict=True):
            if isinstance(self.nodes[node], tuple):
                row[list(self.nodes[node][1])] = True
        return found

    def apply(self, positions, actions):
        for position, action in zip(positions, actions, strict=True):
            node = self.nodes[position[1]][1][int(action)]
            after = self.nodes[node]
            position[:] = after[0] if isinstance(after, tuple) else 1 - position[0], node

    def outcome(self, positions):
        ends = [self.nodes[node] for _, node in positions]
        gets = np.array([[0, 0] if isinstance(end, tuple) else [end, -end] for end in ends], np.float32)
        return np.array([not isinstance(end, tuple) for end in ends]), gets.reshape(-1, 2)

    def observe(self, positions):
        return positions[:, 1:].astype(np.float32)

    def describe(self, position):
        return f"node {position[1]}"


class Uncompiled:
    """A game without its compiled rules."""

    def __init__(self, game):
        self.game, self.rules = game, None

    def __getattr__(self, name):
        return getattr(self.game, name)


@njit(cache=True)
def _mixed(depth, state, salt):
    z = np.uint64(depth * 7919 + state * 104729 + salt * 1299709 + 12345)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.int64((z ^ (z >> np.uint64(31))) >> np.uint64(2))


def _thicket_legal(position, mask):
    allowed = _mixed(position[1], position[2], 100) % 16
    for action in range(4):
        mask[action] = allowed == 0 or (allowed >> action) & 1 == 1


def _thicket_apply(position, action):
    depth, state = position[1], position[2]
    if _mixed(depth, state, 200 + action) % 3 > 0:  # else the same player moves again
        position[0] = 1 - position[0]
    position[1] = depth + 1
    position[2] = _mixed(depth, state, 300 + action) % 16


def _thicket_outcome(position, payoffs):
    depth, state = position[1], position[2]
    payoffs[:] = 0.0
    if depth < 3 or (depth < 7 and _mixed(depth, state, 400) % 6 > 0):
        return False
    drawn = _mixed(depth, state, 500) % 6
    value = np.float32(0.3)
    if drawn < 2:
        value = np.float32(1.0)
    elif drawn == 2:
        value = np.float32(0.0)
    if _mixed(depth, state, 600) % 2 == 0:
        value = -value
    payoffs[0] = value
    payoffs[1] = -value
    return True


def _thicket_observe(position, values):
    values[:] = 0.0
    values[position[2]] = 1.0
    values[16 + position[1]] = 1.0
    values[31] = position[0]


THICKET = CompiledGame(
    name="thicket",  # 16 states at each of 7 depths: irregular, a player may move twice, wins of 1 and of 0.3
    actions=4,
    start=np.zeros(3, np.int64),
    observation=Box((2, 4, 4), 0.0, 1.0),
    max_moves=7,
    rules=compile_rules(_thicket_legal, _thicket_apply, _thicket_outcome, _thicket_observe),
    text=str,
)


def random_positions(game, count, moves, seed=0):
    """Positions of random games after up to `moves` moves, none of them over."""
    random, found = generator(seed), []
    while len(found) < count:
        position = game.start.copy()
        for _ in range(random.integers(moves + 1)):
            after = position[None].copy()
            game.apply(after, np.array([random.choice(np.flatnonzero(game.legal(position[None])[0]))]))
            if game.outcome(after)[0][0]:
                break
            position = after[0]
        found.append(position)
    return np.array(found)


def after(game, moves):
    """The position after some moves from the start."""
    position = game.start[None].copy()
    for move in moves:
        game.apply(position, np.array([move]))
    return position[0]


def minimax(game, position):
    """What the player to move gets under best play."""
    mover = position[0]

    def best(at, known):
        key = tuple(at)
        if key not in known:
            over, gets = game.outcome(at[None])
            values = []
            for action in np.flatnonzero(game.legal(at[None])[0]) if not over[0] else ():
                there = at[None].copy()
                game.apply(there, np.array([action]))
                value = best(there[0], known)
                values.append(value if there[0, 0] == at[0] else -value)
            known[key] = float(gets[0, at[0]]) if over[0] else max(values)
        return known[key]

    assert mover in (0, 1)
    return best(np.array(position), {})


# Networks ---------------------------------------------------------------------------------------------


def stirred(game, seed=0, hidden=(16,), scale=1.0):
    """A perceptron with random weights, so that priors and values differ."""
    network = PositionNetwork(PositionNetworkSettings(kind="mlp", hidden=hidden), game, seed)
    network.flat.array[:] = scale * generator(seed).standard_normal(network.flat.array.shape) / 2
    return network


class ScriptedNetwork:
    """A network whose outputs are a given function of views `[B, D]`."""

    perceptron, device = None, torch.device("cpu")

    def __init__(self, evaluate):
        self.evaluate = evaluate


class Later:
    """A network as on a GPU: inputs are evaluated when the result is asked for, and each part of the copies waits."""

    perceptron, device = None, torch.device("cuda")

    def __init__(self, evaluate, size, outputs):
        self.evaluate, self.size, self.outputs, self.log = evaluate, size, outputs, []

    def evaluation(self, rows, part):
        return LaterEvaluation(self, rows, part)


class LaterEvaluation:
    def __init__(self, network, rows, part):
        self.network, self.part, self.asked = network, part, None
        self.x = np.full((rows, network.size), np.nan, np.float32)
        self.out = np.full((rows, network.outputs), np.nan, np.float32)

    def start(self, waiting):
        assert self.asked is None
        self.asked = waiting.copy(), self.x.copy()
        self.out[:] = np.nan  # not there before `finish`
        self.network.log.append(("start", self.part))

    def finish(self):
        waiting, x = self.asked
        self.x[:] = np.nan  # read already
        self.asked = None
        logits, value = self.network.evaluate(x[waiting])
        self.out[waiting] = np.concatenate([logits, value[:, None]], axis=1)
        self.network.log.append(("finish", self.part))


class Said:
    """A network for `Table`: logits and values by node."""

    perceptron, device = None, torch.device("cpu")

    def __init__(self, logits=None, values=None, actions=3):
        self.logits, self.values, self.actions, self.calls = logits or {}, values or {}, actions, []

    def evaluate(self, x):
        nodes = [int(node) for node in x[:, 0]]
        self.calls += nodes
        logits = np.array([self.logits.get(node, [0.0] * self.actions) for node in nodes], np.float32)
        return logits, np.array([self.values.get(node, 0.0) for node in nodes], np.float32)


# Ours -------------------------------------------------------------------------------------------------


class Selection(NamedTuple):
    """The constants of a formula."""

    gumbel: bool = False
    c_init: float = 1.25
    c_base: float = 19652.0
    from_parent: bool = True
    c_visit: float = 50.0
    c_scale: float = 1.0

    @property
    def ours(self):
        return make_formula(self.gumbel, 1000, *self[1:])


PUCT = Selection()
PUCT_FROM_ZERO = PUCT._replace(from_parent=False)
GUMBEL = PUCT._replace(gumbel=True)


def searched(search, positions, simulations, random=None, noise=NO_NOISE):
    """Search positions: the result, the trees, and the inputs at the roots."""
    budget = np.full(len(positions), simulations)
    trees = search.trees(len(positions), simulations)
    roots = search.roots(search.game.legal(positions), budget, random, noise)
    found = search.run(trees, roots, positions, np.arange(len(positions)), generator(1))
    return found, trees, roots


def search_of(game=TICTACTOE, network=None, formula=PUCT, **options):
    return Search(game, network, formula.ours, **options)


# Theirs -----------------------------------------------------------------------------------------------


@dataclass
class Node:
    player: int
    legal: list
    value: float  # of the evaluation, or of the end
    exact: float | None  # the result under best play, once it is known
    logit: dict = field(default_factory=dict)
    prior: dict = field(default_factory=dict)
    count: dict = field(default_factory=dict)
    total: dict = field(default_factory=dict)
    known: dict = field(default_factory=dict)  # action -> exact result
    child: dict = field(default_factory=dict)

    @property
    def visits(self):
        return 1 + sum(self.count.values())

    @property
    def mean(self):
        return (self.value + sum(self.total.values())) / self.visits

    def q(self, action):
        return self.total[action] / self.count[action]

    def not_lost(self):
        return [a for a in self.legal if self.known.get(a, 0) > -1] or self.legal


class PlainSearch:
    """PUCT (Silver et al. 2018, supplementary pseudo-code) and Gumbel search (Danihelka et al. 2022), one position.

    Proven results as in Winands et al. 2008: a finished game; a node with a winning move; one with all moves proven.
    `close` notes that a choice was too close to be compared with a search in float32.
    """

    def __init__(self, game, evaluate, formula=PUCT, considered=16):
        self.game, self.evaluate, self.f, self.considered = game, evaluate, formula, considered
        self.close = False

    def node(self, position):
        over, gets = self.game.outcome(position[None])
        if over[0]:
            result = float(gets[0, position[0]])
            return Node(int(position[0]), [], result, result)
        legal = [int(a) for a in np.flatnonzero(self.game.legal(position[None])[0])]
        logits, value = self.evaluate(self.game.observe(position[None]))
        row = np.array([logits[0, a] for a in legal], np.float64)
        row = row - row.max() - np.log(np.exp(row - row.max()).sum())
        made = Node(int(position[0]), legal, float(value[0]), None)
        made.logit = dict(zip(legal, row, strict=True))
        made.prior = {a: np.exp(x) for a, x in made.logit.items()}
        made.count, made.total = dict.fromkeys(legal, 0), dict.fromkeys(legal, 0.0)
        return made

    def run(self, position, simulations, gumbel=None, noise=None, share=0.0):
        self.root = root = self.node(position)
        if noise is not None:
            root.prior = {a: (1 - share) * p + share * float(noise[a]) for a, p in root.prior.items()}
        self.g = {a: 0.0 if gumbel is None else float(gumbel[a]) for a in root.legal}
        order = sequential_halving(min(self.considered, len(root.legal)), simulations)
        for simulation in range(simulations):
            if root.exact is not None:
                break
            self.visit(root, position, order[simulation])
        return root

    def visit(self, node, position, wanted=None):
        if node.exact is not None:
            return node.exact
        if not self.f.gumbel:
            a = self.puct(node)
        elif wanted is not None:
            a = self.halving(node, wanted)
        else:
            a = self.gumbel(node)
        there = position[None].copy()
        self.game.apply(there, np.array([a]))
        if a not in node.child:
            node.child[a] = self.node(there[0])
            value = node.child[a].value
        else:
            value = self.visit(node.child[a], there[0])
        child = node.child[a]
        sign = 1 if child.player == node.player else -1
        node.count[a] += 1
        node.total[a] += sign * value
        if child.exact is not None:
            node.known[a] = sign * child.exact
            node.total[a] = node.known[a] * node.count[a]
            if node.known[a] >= 1 or set(node.known) == set(node.legal):
                node.exact = max(node.known.values())
                return node.exact
        return sign * value

    def pick(self, scores):
        """The action of the highest score, the first of equal ones."""
        ranked = sorted(scores.values())[::-1]
        if len(ranked) > 1 and 0 < ranked[0] - ranked[1] < NEAR * max(1, abs(ranked[0])):
            self.close = True
        return max(scores, key=lambda a: (scores[a], -a))

    def puct(self, node):
        n = node.visits
        c = np.log((1 + n + self.f.c_base) / self.f.c_base) + self.f.c_init
        first = node.mean if self.f.from_parent else 0.0
        scores = {}
        for a in node.not_lost():
            q = node.q(a) if node.count[a] else first
            scores[a] = q + c * node.prior[a] * np.sqrt(n) / (1 + node.count[a])
        return self.pick(scores)

    def completed(self, node):
        """logit + σ(completed Q): equations 8, 10 and 33; q on the scale [0, 1]."""
        tried = [a for a in node.legal if node.count[a]]
        n, mixed = sum(node.count.values()), node.value
        if tried:
            weight = sum(node.prior[a] for a in tried)
            mixed = (node.value + n / weight * sum(node.prior[a] * node.q(a) for a in tried)) / (1 + n)
        most = max(node.count.values())

        def scaled(q):
            return (self.f.c_visit + most) * self.f.c_scale * (q + 1) / 2

        return {a: node.logit[a] + scaled(node.q(a) if node.count[a] else mixed) for a in node.legal}

    def improved(self, node, among=None):
        """π' of equation 11, over some actions."""
        logits = self.completed(node)
        among = node.legal if among is None else among
        top = max(logits[a] for a in among)
        weight = {a: np.exp(logits[a] - top) for a in among}
        return {a: w / sum(weight.values()) for a, w in weight.items()}

    def gumbel(self, node):
        """Equation 14."""
        policy, n = self.improved(node), sum(node.count.values())
        return self.pick({a: policy[a] - node.count[a] / (1 + n) for a in node.not_lost()})

    def halving(self, node, wanted):
        """Algorithm 2: the next action of the phase; none has that many visits: the best of the most visited."""
        scores = {a: self.g[a] + x for a, x in self.completed(node).items()}
        among = [a for a in node.not_lost() if node.count[a] == wanted]
        if not among:
            most = max(node.count[a] for a in node.not_lost())
            among = [a for a in node.not_lost() if node.count[a] == most]
        return self.pick({a: scores[a] for a in among})

    def answer(self):
        """Policy [K], value and best action of the root."""
        root, actions = self.root, self.game.actions
        among = root.not_lost()
        if root.exact is not None:
            among = [a for a in root.legal if root.known.get(a, -2) >= root.exact]
        policy, tried = np.zeros(actions), sum(root.count[a] for a in among)
        if self.f.gumbel or not tried:
            for a, p in self.improved(root, among).items():
                policy[a] = p
        else:
            for a in among:
                policy[a] = root.count[a] / tried
        most = max(root.count[a] for a in among)
        top = [a for a in among if root.count[a] == most]
        logits = self.completed(root)
        score = {a: self.g[a] + logits[a] if self.f.gumbel else root.prior[a] for a in top}
        return policy, root.mean if root.exact is None else root.exact, self.pick(score)


def sequential_halving(considered, simulations):
    """Visits that the next action has before its simulation (Karnin et al. 2013; Danihelka et al. 2022, figure 1)."""
    order, visits, left, phases = [], 0, considered, max(1, int(np.ceil(np.log2(max(considered, 2)))))
    while len(order) < simulations:
        each = max(1, simulations // (phases * left)) if considered > 1 else 1
        for _ in range(each):
            order.extend([visits] * left)
            visits += 1
        left = max(2, left // 2) if considered > 1 else 1
    return order[:simulations]
