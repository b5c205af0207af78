"""A policy that searches: AlphaZero's player, or plain Monte-Carlo tree search without a network.

It reads positions from its world, which must have the capability `HasGame`, and searches those of all copies together.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from coterie.core import seeding
from coterie.core.game import Game, HasGame
from coterie.core.group import GroupSpec, Policy
from coterie.core.search_space import Choice, Space
from coterie.core.settings import Settings
from coterie.core.types import Array, CoterieError, Decision, State, View
from coterie.core.validation import at_least, positive, within
from coterie.core.world import World
from coterie.nn.advice import log_softmax
from coterie.policies.search import nodes
from coterie.policies.search.networks import PositionNetwork, PositionNetworkSettings
from coterie.policies.search.nodes import Trees
from coterie.policies.search.search import GumbelSettings, PuctSettings, RootNoiseSettings, Search
from coterie.policies.search.tree import make_formula


@dataclass(frozen=True)
class TemperatureSettings:
    """Settings for drawing moves from visit counts outside of greedy play (PUCT only)."""

    value: float = 1.0  # moves are drawn in proportion to visits^(1 / value)
    moves: int = 15  # a player's moves in a game that are drawn; later ones are the most visited

    def __post_init__(self) -> None:
        positive("value", self.value)
        at_least("moves", self.moves, 0)


@dataclass(frozen=True)
class PlayoutCapSettings:
    """Fast searches between full ones while training (Wu 2019, section 3.1): more games from the same time."""

    full: float = 0.25  # share of moves with a full search; only these are learned from
    simulations: int = 16  # of a fast search: no Dirichlet noise, but the Gumbel numbers that draw its move

    def __post_init__(self) -> None:
        within("full", self.full, 0, 1)
        positive("full", self.full)
        at_least("simulations", self.simulations, 1)


@dataclass(frozen=True)
class SearchSettings(Settings):
    """Settings of the policy 'search'."""

    simulations: int = 64  # of one search; visits carried over by `reuse` come on top
    method: Literal["puct", "gumbel"] = "puct"  # gumbel: better with few simulations
    play: Literal["search", "network"] = "search"  # network: the network's policy alone
    network: PositionNetworkSettings = field(default_factory=PositionNetworkSettings)  # evaluates positions
    playouts: int = 1  # random games per leaf without a network; 0: every open position counts 0
    puct: PuctSettings = field(default_factory=PuctSettings)
    gumbel: GumbelSettings = field(default_factory=GumbelSettings)
    noise: RootNoiseSettings = field(default_factory=RootNoiseSettings)  # at the root, while training (PUCT only)
    temperature: TemperatureSettings = field(default_factory=TemperatureSettings)  # PUCT only
    playout_cap: PlayoutCapSettings | None = None  # None: every search is a full one
    reuse: bool = False  # carry the subtree of the moves that were played into the next search (PUCT only)
    transpositions: bool = False  # positions reached by different orders of moves share a node

    SEARCH: ClassVar[Space] = {  # what `coterie tune` varies
        "simulations": Choice((16, 32, 64, 128)),
    }

    def __post_init__(self) -> None:
        if self.simulations < 1:
            raise ValueError(
                f"simulations must be at least 1, got {self.simulations}; play=network plays the network without search"
            )
        at_least("playouts", self.playouts, 0)
        if self.play == "network" and self.network.kind == "none":
            raise ValueError("play=network needs a network: set network.kind=mlp or network.kind=residual")
        if self.reuse and self.method == "gumbel":
            raise ValueError("reuse=true needs method=puct: sequential halving starts from a root without visits")
        if self.method == "gumbel" and self.noise != RootNoiseSettings():
            raise ValueError(
                "noise needs method=puct: with gumbel, the Gumbel numbers explore; remove it, or set "
                "noise.fraction=0.25 noise.alpha=null"
            )
        if self.method == "gumbel" and self.temperature != TemperatureSettings():
            raise ValueError(
                "temperature needs method=puct: with gumbel, the Gumbel numbers draw the move; remove it, or set "
                "temperature.value=1 temperature.moves=15"
            )

    @property
    def most_simulations(self) -> int:
        """Simulations of the larger of full and fast searches."""
        return max(self.simulations, 0 if self.playout_cap is None else self.playout_cap.simulations)

    @property
    def most_visits(self) -> int:
        """Visits that a tree has room for: with `reuse`, as many from before as of the search itself."""
        return self.most_simulations * (2 if self.reuse else 1)


class SearchPolicy(Policy):
    """Chooses moves by tree search."""

    needs = HasGame
    memory_size = 1  # moves that the player has made in this game

    def __init__(self, settings: SearchSettings, group_spec: GroupSpec) -> None:
        world: object = group_spec.world
        if group_spec.parameter_sets > 1:
            raise ValueError("parameters=individual: a search player has one network; make a group of each agent")
        if not isinstance(world, HasGame):
            raise ValueError("a search player needs a world with the capability HasGame, not only observations")
        self.settings, self.group_spec, self.game = settings, group_spec, world.game
        self.network: PositionNetwork | None = None
        if settings.network.kind != "none":
            seed = seeding.integer(group_spec.seed, "network", group_spec.group)
            self.network = PositionNetwork(settings.network, self.game, seed)
        self.search = make_search(settings, self.game, self.network)
        self._trees: weakref.WeakKeyDictionary[World, Trees] = weakref.WeakKeyDictionary()
        self._weights: weakref.WeakKeyDictionary[World, int] = weakref.WeakKeyDictionary()  # that kept trees are of

    # Acting -------------------------------------------------------------------------------------------

    def act(self, view: View) -> Decision:
        copies, agents = view.acting.shape
        actions = self.game.actions
        rows = np.flatnonzero(view.acting.any(axis=1))
        seats = view.acting[rows].argmax(axis=1)
        positions, legal = self._positions(view, rows, seats)
        memory = np.zeros((copies, agents, 1), np.float32) if view.memory is None else view.memory
        action = np.zeros((copies, agents), np.int64)
        if self.settings.play == "network":
            uniform = view.random.random((copies,))  # one per copy, so that games do not influence each other
            action[rows, seats] = self._play_network(positions[rows], legal[rows], uniform[rows], view.greedy)
            return Decision(action, memory=memory + 1)
        moves = memory[rows, seats, 0]
        exploring = view.progress is not None and not view.greedy
        drawing = exploring or (self.settings.method == "gumbel" and not view.greedy)  # Gumbel numbers draw the move
        full = self._full_searches(copies, view) if exploring else np.ones(copies, bool)
        fast = self.settings.playout_cap
        allowed = (
            self.settings.simulations if fast is None else np.where(full, self.settings.simulations, fast.simulations)
        )
        budget = np.zeros(copies, np.int64)
        budget[rows] = np.where(legal[rows].sum(axis=1) > 1, np.broadcast_to(allowed, copies)[rows], 0)
        trees = self._trees_of(view.world, copies)
        carried = self._carry(view.world, positions, legal, rows[moves > 0], budget) if self.settings.reuse else []
        roots = self.search.roots(legal, budget, view.random if drawing else None, self.settings.noise)
        roots.noise_share[~full] = 0
        found = self.search.run(trees, roots, positions, np.setdiff1d(rows, carried), view.random, carried)
        chosen = found.action[rows]
        uniform = view.random.random((copies,))
        if not view.greedy and self.settings.method == "puct":
            drawn = draw(found.policy[rows], uniform[rows], self.settings.temperature.value)
            chosen = np.where(moves < self.settings.temperature.moves, drawn, chosen)
        action[rows, seats] = chosen
        trace = {
            "policy": np.zeros((copies, agents, actions), np.float32),
            "visits": np.zeros((copies, agents, actions), np.int32),
            "value": np.zeros((copies, agents), np.float32),
            "full": np.zeros((copies, agents), bool),
            "solved": np.zeros((copies, agents), bool),
        }
        trace["policy"][rows, seats] = found.policy[rows]
        trace["visits"][rows, seats] = found.visits[rows]
        trace["value"][rows, seats] = found.value[rows]
        trace["full"][rows, seats] = full[rows]
        trace["solved"][rows, seats] = trees.solved[rows, 0]
        return Decision(action, memory=memory + 1, trace=trace)

    def advice(self, view: View) -> Array:
        """Probabilities `[N, A, K]` by a search of new trees, or with `play: network` those of the network."""
        if self.settings.play == "network":
            return np.exp(self.log_probs(view))
        trace = self.act(view).trace
        assert trace is not None  # every search leaves one
        return trace["policy"]

    def log_probs(self, view: View) -> Array:
        """Log-probabilities `[N, A, K]` of the network's policy, without search."""
        if self.network is None:
            raise CoterieError(f"group '{self.group_spec.group}': a search player without a network has no log_probs")
        rows = np.flatnonzero(view.acting.any(axis=1))
        seats = view.acting[rows].argmax(axis=1)
        positions, legal = self._positions(view, rows, seats)
        found = np.zeros((*view.acting.shape, self.game.actions), np.float32)
        found[rows, seats] = log_softmax(self.network.evaluate(self.game.observe(positions[rows]))[0], legal[rows])
        return found

    def _positions(self, view: View, rows: Array, seats: Array) -> tuple[Array, Array]:
        """Positions `[N, S]` and legal actions `[N, K]`, which a shield may have narrowed."""
        if not isinstance(view.world, HasGame):
            raise CoterieError(
                f"group '{self.group_spec.group}': a search player needs the world itself, not only observations; "
                "seat it with `coterie eval`, `match` or `coterie.load(RUN).step`"
            )
        positions = view.world.positions()
        legal = np.zeros((len(positions), self.game.actions), bool)
        legal[rows] = self.game.legal(positions[rows]) if view.mask is None else view.mask[rows, seats]
        return positions, legal

    def _play_network(self, positions: Array, legal: Array, uniform: Array, greedy: bool) -> Array:
        """The network's move, without search; `uniform [N]` draws it unless `greedy`."""
        assert self.network is not None
        logits = log_softmax(self.network.evaluate(self.game.observe(positions))[0], legal)
        return logits.argmax(axis=1) if greedy else draw(np.exp(logits), uniform, 1.0)

    def _full_searches(self, copies: int, view: View) -> Array:
        """Flags of the copies that search in full."""
        cap = self.settings.playout_cap
        return np.ones(copies, bool) if cap is None else view.random.random(copies) < cap.full

    def _trees_of(self, world: World | None, copies: int) -> Trees:
        """The trees of a world's copies; they are kept between moves."""
        assert world is not None
        if world not in self._trees:
            self._trees[world] = self.search.trees(copies, self.settings.most_visits)
        return self._trees[world]

    def _carry(self, world: World | None, positions: Array, legal: Array, rows: Array, budget: Array) -> list[int]:
        """Keep the subtrees of the present positions where the last search, by the same weights, saw them.

        A subtree that leaves no room for this search is not kept. With transpositions its nodes may have more visits
        than its root, so the most visited one counts.
        """
        assert world is not None
        trees, weights = self._trees[world], 0 if self.network is None else self.network.fingerprint()
        if self._weights.get(world) != weights:
            self._weights[world] = weights
            trees.size[:] = 0
        carried, room = [], trees.position.shape[1]
        for n in rows:
            node = nodes.find_position(trees, n, positions[n])
            if node > 0 and np.array_equal(trees.legal[n, node], legal[n]):
                nodes.keep_subtree(trees, n, node)
                held = max(trees.size[n], trees.visits[n, : trees.size[n]].max())
                if held + budget[n] <= room:
                    carried.append(int(n))
        return carried

    # State --------------------------------------------------------------------------------------------

    def state(self) -> State:
        return {} if self.network is None else {"net": self.network.state()}

    def load(self, state: State) -> None:
        what = f"group '{self.group_spec.group}'"
        if self.network is not None:
            if "net" not in state:
                raise ValueError(f"{what}: the saved policy has no network")
            self.network.load(state["net"], what)

    def episode_state(self, world: World) -> State:
        """The trees that the next moves in a world start from; nothing unless they are reused."""
        if not self.settings.reuse or world not in self._trees:
            return {}
        return {"weights": self._weights.get(world)} | nodes.as_state(self._trees[world])

    def load_episode_state(self, world: World, state: State) -> None:
        self._trees.pop(world, None)
        if state:
            trees = self._trees_of(world, len(state["size"]))
            if state["visits"].shape[1] > trees.visits.shape[1]:
                raise ValueError(
                    f"group '{self.group_spec.group}': reuse=true: simulations={self.settings.simulations} is less "
                    "than the saved trees hold; resume with as many simulations as before, or more"
                )
            nodes.load_state(trees, state)
            self._weights[world] = state["weights"]


def make_search(
    settings: SearchSettings, game: Game, network: PositionNetwork | None, simulations: int | None = None
) -> Search:
    """The search that the settings describe, with up to `simulations` (None: the settings') per move."""
    p, g = settings.puct, settings.gumbel
    gumbel = settings.method == "gumbel"
    parent = p.first_play == "parent"
    count = settings.most_visits if simulations is None else simulations
    formula = make_formula(gumbel, count, p.c_init, p.c_base, parent, g.c_visit, g.c_scale)
    return Search(game, network, formula, g.considered, settings.playouts, settings.transpositions)


def draw(policy: Array, uniform: Array, temperature: float) -> Array:
    """Actions `[N]` drawn in proportion to `policy^(1 / temperature)`, with one uniform number each."""
    with np.errstate(divide="ignore"):
        weight = np.log(policy.astype(np.float64) / policy.max(axis=1, keepdims=True)) / temperature
    weight = np.exp(weight)
    edges = np.cumsum(weight / weight.sum(axis=1, keepdims=True), axis=1)
    chosen = (uniform[:, None] >= edges).sum(axis=1)
    last = policy.shape[1] - 1 - (policy[:, ::-1] > 0).argmax(axis=1)
    return np.minimum(chosen, last)  # rounding may leave the sum just below 1
