"""One search of many positions at once: every tree takes one simulation at a time, so that leaves share a network call.

With compiled rules and a perceptron (or no network) a whole search is one compiled call. A residual network is called
once per simulation with the leaves of all trees; on a GPU the copies form two halves, and while it evaluates the leaves
of one, the trees of the other grow. A game without compiled rules is played by its own methods. All of them use
`tree.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numba
import numpy as np

from coterie.core import heartbeat
from coterie.core.game import Game
from coterie.core.search_space import Real, Space
from coterie.core.settings import Settings
from coterie.core.types import Array, CoterieError
from coterie.core.validation import at_least, within
from coterie.policies.search import tree
from coterie.policies.search.networks import Blocking, Evaluation, PositionNetwork
from coterie.policies.search.nodes import Trees, empty_trees
from coterie.policies.search.tree import Evaluator, Exchange, Formula, Roots, Starts

_NO_SEEDS = np.zeros(0, np.uint64)


@dataclass(frozen=True)
class PuctSettings(Settings):
    """The formula of AlphaZero."""

    c_init: float = 1.25  # weight of the prior
    c_base: float = 19652.0  # visits after which that weight grows
    first_play: Literal["parent", "zero"] = "parent"  # value of an action before its first visit: its node's mean, or 0

    SEARCH: ClassVar[Space] = {"c_init": Real(0.5, 4.0, log=True)}  # what `coterie tune` varies

    def __post_init__(self) -> None:
        at_least("c_init", self.c_init, 0)
        at_least("c_base", self.c_base, 1)


@dataclass(frozen=True)
class GumbelSettings:
    """Gumbel AlphaZero."""

    considered: int = 16  # actions that the root compares at most
    c_visit: float = 50.0  # σ(q) = (c_visit + max N) · c_scale · q
    c_scale: float = 1.0  # weight of the values relative to the network's logits

    def __post_init__(self) -> None:
        at_least("considered", self.considered, 2)
        at_least("c_visit", self.c_visit, 0)
        at_least("c_scale", self.c_scale, 0)


@dataclass(frozen=True)
class RootNoiseSettings:
    """Dirichlet noise in the root's prior while training (PUCT only)."""

    fraction: float = 0.25  # of the prior that is noise; 0: none
    alpha: float | None = None  # of the Dirichlet distribution; None: 10 / number of actions

    def __post_init__(self) -> None:
        within("fraction", self.fraction, 0, 1)
        if self.alpha is not None and not self.alpha > 0:
            raise ValueError(f"alpha must be above 0, got {self.alpha:g}")


@dataclass(frozen=True)
class Found:
    """The result of a search, for each root."""

    policy: Array  # [N, K] float32: the improved policy
    value: Array  # [N] float32: for the player to move
    action: Array  # [N] int64: the best action
    visits: Array  # [N, K] int64


class Search:
    """Searches positions of one game with one network (None: random games)."""

    def __init__(
        self,
        game: Game,
        network: PositionNetwork | None,
        formula: Formula,
        considered: int = 16,
        playouts: int = 1,
        transpositions: bool = False,
    ) -> None:
        if transpositions and game.rules is None:
            raise ValueError(f"transpositions=true needs compiled rules, which '{game.name}' does not have")
        self.game, self.network, self.formula = game, network, formula
        self.considered, self.playouts, self.transpositions = considered, playouts, transpositions
        self.size = int(np.prod(game.observation.shape))

    def trees(self, copies: int, simulations: int) -> Trees:
        """Room for the trees of a number of copies."""
        return empty_trees(copies, simulations + 1, len(self.game.start), self.game.actions, self.transpositions)

    def roots(self, legal: Array, budget: Array, random: np.random.Generator | None, noise: RootNoiseSettings) -> Roots:
        """Inputs of a search from roots with these legal actions; without `random` no noise and no Gumbel numbers."""
        copies, actions = legal.shape
        drawn, share = np.zeros((copies, actions), np.float32), np.zeros(copies, np.float32)
        gumbel = np.zeros((copies, actions), np.float32)
        if random is not None and self.formula.gumbel:
            gumbel = random.gumbel(size=(copies, actions)).astype(np.float32)
        elif random is not None and noise.fraction:
            alpha = 10 / actions if noise.alpha is None else noise.alpha
            drawn = np.where(legal, random.standard_gamma(alpha, (copies, actions)) + 1e-12, 0).astype(np.float32)
            drawn /= np.maximum(drawn.sum(axis=1, keepdims=True), np.float32(1e-12))  # 0: a copy that is not searched
            share[:] = noise.fraction
        halving = np.zeros((copies, max(int(budget.max(initial=0)), 1)), np.int64)
        if self.formula.gumbel:
            for n, (count, simulations) in enumerate(zip(legal.sum(axis=1), budget, strict=True)):
                halving[n, :simulations] = _schedule(min(int(count), self.considered), int(simulations))
        return Roots(budget.astype(np.int64), legal, drawn, share, gumbel, halving)

    def run(
        self,
        trees: Trees,
        roots: Roots,
        positions: Array,
        fresh: Array,
        random: np.random.Generator,
        carried: Sequence[int] = (),
    ) -> Found:
        """Search positions `[N, S]`: `fresh` lists the copies that begin a new tree, `carried` those that go on.

        Other copies must have a budget of 0; what is found for them means nothing.
        """
        if trees.position.shape[1] >= len(self.formula.scale):
            raise ValueError(f"this search was made for {len(self.formula.scale) - 2} simulations at most")
        room, most = trees.position.shape[1], roots.halving.shape[1]  # compiled code does not check bounds
        if most >= room or any(trees.size[n] + roots.budget[n] > room for n in carried):
            raise ValueError(f"trees of {room} nodes have no room for what is carried over and {most} simulations")
        trees.fault[:] = 0
        for n in carried:
            tree.mix_noise(trees, n, roots)
        starts = Starts(np.zeros(len(positions), np.bool_), positions)
        starts.fresh[fresh] = True
        rules, f, network = self.game.rules, self.formula, self.network
        if rules is None:
            self._run_by_methods(trees, roots, starts, random)
        elif network is None:
            seeds = random.integers(0, 2**63, len(positions)).astype(np.uint64)
            evaluator = Evaluator(tree.NO_NETWORK, seeds, self.playouts, self.game.max_moves)
            tree.search_all(trees, rules, f, roots, starts, evaluator)
        elif network.perceptron is not None:
            tree.search_all(trees, rules, f, roots, starts, Evaluator(network.perceptron, _NO_SEEDS, 0, 0))
        else:
            self._run_in_turns(trees, roots, starts, network)
        self._refuse_faults(trees, positions)
        copies, actions = roots.gumbel.shape
        policy, value = np.zeros((copies, actions), np.float32), np.zeros(copies, np.float32)
        action = np.zeros(copies, np.int64)
        tree.read_roots(trees, f, roots.gumbel, policy, value, action)
        return Found(policy, value, action, trees.count[:, 0].copy())

    def _run_in_turns(self, trees: Trees, roots: Roots, starts: Starts, network: PositionNetwork) -> None:
        """Search with evaluations that run elsewhere: while one part of the copies waits for its own, another moves on.

        Trees do not see each other, so the parts change nothing but the time.
        """
        rules, f = self.game.rules, self.formula
        assert rules is not None
        parts = self._parts(network, len(trees.size))
        threads = numba.get_num_threads() if len(parts) > 1 else 1
        for simulation in range(-1, int(roots.budget.max(initial=0)) + 1):  # the last one only takes in answers
            heartbeat.own.beat()
            for evaluation, exchange in parts:
                if exchange.waiting.any():
                    evaluation.finish()
                if threads > 1:
                    tree.advance_in_parallel(trees, rules, f, roots, starts, simulation, exchange, 2 * threads)
                else:
                    tree.advance(trees, rules, f, roots, starts, simulation, exchange, 0, len(exchange.waiting))
                if exchange.waiting.any():
                    evaluation.start(exchange.waiting)

    def _parts(self, network: PositionNetwork, copies: int) -> list[tuple[Evaluation, Exchange]]:
        """Evaluations and the copies that each serves: halves where answers come later, otherwise all copies."""
        spans, evaluations = [(0, copies)], list[Evaluation]()
        if network.device.type == "cuda":
            spans = halves(copies)
            evaluations += [network.evaluation(last - first, part) for part, (first, last) in enumerate(spans)]
        else:
            evaluations.append(Blocking(network.evaluate, copies, self.size, self.game.actions + 1))
        return [
            (one, Exchange(first, np.zeros(last - first, np.bool_), one.x[: last - first], one.out[: last - first]))
            for one, (first, last) in zip(evaluations, spans, strict=True)
        ]

    def _run_by_methods(self, trees: Trees, roots: Roots, starts: Starts, random: np.random.Generator) -> None:
        """The loop over simulations for games without compiled rules."""
        rows, fresh = np.zeros(len(trees.size), np.int64), np.flatnonzero(starts.fresh)
        for n in fresh:
            tree.plant(trees, int(n), starts.positions[n])
        self._evaluate(trees, fresh, roots, random)
        for simulation in range(int(roots.budget.max(initial=0))):
            heartbeat.own.beat()
            found = tree.descend_all(trees, self.formula, roots, simulation, rows)
            self._evaluate(trees, self._play_leaves(trees, rows[:found]), roots, random)

    def _play_leaves(self, trees: Trees, rows: Array) -> Array:
        """Play the last action of each path by the game's own methods; returns the copies that wait for a value."""
        if not len(rows):
            return rows
        leaves = trees.walk["leaf"][rows]
        last = trees.path["action"][rows, trees.walk["length"][rows] - 1]
        positions = trees.position[rows, leaves]
        self.game.apply(positions, last)
        trees.position[rows, leaves] = positions
        over, payoffs = self.game.outcome(positions)
        for n, gets in zip(rows[over], payoffs[over], strict=True):
            tree.finish_game(trees, n, gets.astype(np.float32))
        return rows[~over]

    def _evaluate(self, trees: Trees, rows: Array, roots: Roots, random: np.random.Generator) -> None:
        """Write the leaves' legal actions, and attach their logits and values."""
        if not len(rows):
            return
        leaves = trees.walk["leaf"][rows]
        positions = trees.position[rows, leaves]
        legal = self.game.legal(positions)
        trees.legal[rows, leaves] = legal
        trees.fault[rows[~legal.any(axis=1)]] = tree.NO_OUTCOME
        out = np.zeros((len(rows), self.game.actions + 1), np.float32)
        if self.network is not None:
            out[:, :-1], out[:, -1] = self.network.evaluate(self.game.observe(positions))
        else:
            for _ in range(self.playouts):
                payoffs = play_out(self.game, positions.copy(), random)
                out[:, -1] += payoffs[np.arange(len(rows)), positions[:, 0]] / self.playouts
        tree.attach_all(trees, rows, out, roots)

    def _refuse_faults(self, trees: Trees, positions: Array) -> None:
        """Raise for rules that cannot be searched."""
        for n in np.flatnonzero(trees.fault):
            shown = self.game.describe(positions[n])
            if trees.fault[n] == tree.NO_OUTCOME:
                raise CoterieError(
                    f"game '{self.game.name}': after some moves from the position below no action is legal and "
                    f"`outcome` does not say that the game is over\n{shown}"
                )
            if trees.fault[n] == tree.NOT_FINITE:
                raise CoterieError(
                    f"game '{self.game.name}': the network's evaluation of the position below, or of one after it, is "
                    f"not finite; its weights have diverged: lower the learning rate\n{shown}"
                )
            if trees.fault[n] == tree.BEYOND_ONE:
                raise CoterieError(
                    f"game '{self.game.name}': a game from the position below ends with a payoff beyond −1 … 1; divide "
                    f"payoffs by the largest one and declare that as payoff_unit\n{shown}"
                )
            raise CoterieError(
                f"game '{self.game.name}': a random game from the position below did not end within "
                f"max_moves={self.game.max_moves}\n{shown}"
            )


def halves(copies: int) -> list[tuple[int, int]]:
    """The first and the last copy of each half; one copy is a whole."""
    middle = (copies + 1) // 2
    return [(0, middle), (middle, copies)][: min(copies, 2)]


def play_out(game: Game, positions: Array, random: np.random.Generator) -> Array:
    """Play random legal moves to the end, by the game's own methods; returns the payoffs `[N, 2]`."""
    result = np.zeros((len(positions), 2), np.float32)
    going = np.arange(len(positions))
    for _ in range(game.max_moves + 1):
        over, payoffs = game.outcome(positions[going])
        result[going[over]] = payoffs[over]
        going = going[~over]
        if not len(going):
            return result
        legal = game.legal(positions[going])
        stuck = ~legal.any(axis=1)
        if stuck.any():
            shown = game.describe(positions[going][stuck][0])
            raise CoterieError(f"game '{game.name}': no action is legal and `outcome` does not say it is over\n{shown}")
        actions = np.where(legal, random.random(legal.shape), -1.0).argmax(axis=1)
        moved = positions[going]
        game.apply(moved, actions)
        positions[going] = moved
    raise CoterieError(f"game '{game.name}': a random game did not end within max_moves={game.max_moves}")


@functools.lru_cache(maxsize=4096)
def _schedule(considered: int, simulations: int) -> Array:
    return tree.halving_schedule(considered, simulations)
