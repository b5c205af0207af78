"""One search of many positions at once: every tree takes one simulation at a time, so that leaves share a network call.

With compiled rules and a perceptron (or no network) a whole search is one compiled call. A residual network is called
once per simulation with the leaves of all trees; a game without compiled rules is played by its own methods. All of
them use the trees of `tree.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from coterie.core.game import Game
from coterie.core.search_space import Real, Space
from coterie.core.types import Array, CoterieError
from coterie.core.validation import at_least, within
from coterie.policies.search import tree
from coterie.policies.search.networks import PositionNetwork
from coterie.policies.search.tree import Formula, Roots, Trees


@dataclass(frozen=True)
class PuctSettings:
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
    c_scale: float = 1.0  # weight of the values beside the network's logits

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
    """What a search says about its roots."""

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
        return tree.empty_trees(copies, simulations + 1, len(self.game.start), self.game.actions, self.transpositions)

    def roots(self, legal: Array, budget: Array, random: np.random.Generator | None, noise: RootNoiseSettings) -> Roots:
        """What to do at roots with these legal actions; without `random` there is neither noise nor Gumbel numbers."""
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
        trees.fault[:] = 0
        for n in carried:
            tree.mix_noise(trees, n, roots)
        net = None if self.network is None else self.network.perceptron
        rules, f = self.game.rules, self.formula
        starts = np.zeros(len(positions), np.bool_)
        starts[fresh] = True
        if rules is not None and net is not None:
            tree.search_with_perceptron(trees, rules, f, roots, starts, positions, net)
        elif rules is not None and self.network is None:
            seeds = random.integers(0, 2**63, len(positions)).astype(np.uint64)
            ends = (self.playouts, self.game.max_moves, self.size)
            tree.search_with_playouts(trees, rules, f, roots, starts, positions, seeds, *ends)
        elif rules is not None and self.network is not None and self.network.device.type == "cuda":
            self._run_on_gpu(trees, roots, starts, positions)
        else:
            self._run_in_python(trees, roots, starts, positions, random)
        self._refuse_faults(trees, positions)
        copies, actions = roots.gumbel.shape
        policy, value = np.zeros((copies, actions), np.float32), np.zeros(copies, np.float32)
        action = np.zeros(copies, np.int64)
        tree.read_roots(trees, f, roots.gumbel, policy, value, action)
        return Found(policy, value, action, trees.count[:, 0].copy())

    def _run_on_gpu(self, trees: Trees, roots: Roots, starts: Array, positions: Array) -> None:
        """Trees on all threads of the process, and one replayed CUDA graph per simulation for all copies."""
        game, network, copies = self.game, self.network, len(trees.size)
        assert game.rules is not None
        assert network is not None
        graph = network.graph(copies)
        waiting, views, rows = starts.copy(), np.zeros((copies, self.size), np.float32), np.zeros(copies, np.int64)
        found = tree.plant_all(trees, game.rules, starts, positions, 0, copies, rows, views)
        graph.x[rows[:found]] = views[:found]
        tree.attach_each(trees, waiting, graph.run(), roots)
        for simulation in range(int(roots.budget.max(initial=0))):
            tree.simulate_each(trees, game.rules, self.formula, roots, simulation, waiting, graph.x)
            if waiting.any():
                tree.attach_each(trees, waiting, graph.run(), roots)

    def _run_in_python(
        self, trees: Trees, roots: Roots, starts: Array, positions: Array, random: np.random.Generator
    ) -> None:
        """The loop over simulations, for networks in PyTorch and for games without compiled rules."""
        game, copies = self.game, len(trees.size)
        rows, work = np.zeros(copies, np.int64), np.zeros(game.actions)
        x = np.zeros((copies, self.size), np.float32)
        fresh = np.flatnonzero(starts)
        if len(fresh):
            if game.rules is not None:
                tree.plant_all(trees, game.rules, starts, positions, 0, copies, rows, x)
            else:
                for n in fresh:
                    tree.plant(trees, int(n), positions[n])
                x[: len(fresh)] = self._enter(trees, fresh)
            tree.attach_all(trees, fresh, *self._evaluate(trees, fresh, x[: len(fresh)], random), roots)
        for simulation in range(int(roots.budget.max(initial=0))):
            if game.rules is not None:
                found = tree.simulate_all(trees, game.rules, self.formula, roots, simulation, 0, copies, rows, x, work)
                waiting = rows[:found]
            else:
                found = tree.descend_all(trees, self.formula, roots, simulation, rows, work)
                waiting = self._play_leaves(trees, rows[:found])
                x[: len(waiting)] = self._enter(trees, waiting)
            if len(waiting):
                evaluated = self._evaluate(trees, waiting, x[: len(waiting)], random)
                tree.attach_all(trees, waiting, *evaluated, roots)

    def _play_leaves(self, trees: Trees, rows: Array) -> Array:
        """Play the last action of each path by the game's own methods; returns the copies that wait for a value."""
        if not len(rows):
            return rows
        leaves = trees.leaf[rows]
        last = trees.path_action[rows, trees.path_length[rows] - 1]
        positions = trees.position[rows, leaves]
        self.game.apply(positions, last)
        trees.position[rows, leaves] = positions
        over, payoffs = self.game.outcome(positions)
        for n, gets in zip(rows[over], payoffs[over], strict=True):
            tree.finish_game(trees, n, gets.astype(np.float32))
        return rows[~over]

    def _enter(self, trees: Trees, rows: Array) -> Array:
        """Write the leaves' legal actions; returns what the players to move see."""
        if not len(rows):
            return np.zeros((0, self.size), np.float32)
        leaves = trees.leaf[rows]
        positions = trees.position[rows, leaves]
        legal = self.game.legal(positions)
        trees.legal[rows, leaves] = legal
        trees.fault[rows[~legal.any(axis=1)]] = tree.NO_OUTCOME
        return self.game.observe(positions)

    def _evaluate(self, trees: Trees, rows: Array, x: Array, random: np.random.Generator) -> tuple[Array, Array]:
        """Logits and values of the leaves."""
        if self.network is not None:
            return self.network.evaluate(x)
        positions = trees.position[rows, trees.leaf[rows]]
        players, value = positions[:, 0], np.zeros(len(rows), np.float32)
        for _ in range(self.playouts):
            payoffs = play_out(self.game, positions.copy(), random)
            value += payoffs[np.arange(len(rows)), players] / self.playouts
        return np.zeros((len(rows), self.game.actions), np.float32), value

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
            raise CoterieError(
                f"game '{self.game.name}': a random game from the position below did not end within "
                f"max_moves={self.game.max_moves}\n{shown}"
            )


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
