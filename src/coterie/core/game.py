"""Games that can be searched: rules as functions of a position.

A position is a row of S integers whose first one is the player to move, 0 or 1; what the others mean is the game's own
affair (stones, bitboards, a list of moves). A `Game` works on many positions at once, as arrays `[N, S]`.

Most games are written as four small functions of a single position and compiled by `compile_rules`; tree search then
runs without Python. A game without compiled rules (one of another library) offers the same methods and is searched by
the same tree, more slowly.

    legal(position, mask)         writes which actions the player to move may take
    apply(position, action)       plays a legal action: changes the position, the player to move included
    outcome(position, payoffs)    whether the game is over; if it is, writes what each player gets
    observe(position, values)     writes what the player to move sees, flattened
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numba import types

from coterie.core.jit import callback, jit
from coterie.core.types import Array, Box, CoterieError

_POSITION = types.Array(types.int64, 1, "C")
_MASK = types.Array(types.boolean, 1, "C")
_VALUES = types.Array(types.float32, 1, "C")
LEGAL = types.void(_POSITION, _MASK)
APPLY = types.void(_POSITION, types.int64)
OUTCOME = types.boolean(_POSITION, _VALUES)
OBSERVE = types.void(_POSITION, _VALUES)
ESTIMATE = types.float64(_POSITION)


class Rules(NamedTuple):
    """The compiled functions of a game, as other compiled functions call them: pointers, one type for all games.

    `inline_rules` makes functions of them that can be compiled into a game's own kernels.
    """

    legal: Any
    apply: Any
    outcome: Any
    observe: Any


def compile_rules(
    legal: Callable[[Array, Array], None],
    apply: Callable[[Array, int], None],
    outcome: Callable[[Array, Array], bool],
    observe: Callable[[Array, Array], None],
) -> Rules:
    """Compile the rules of a game; they may call other functions compiled by Numba."""
    return Rules(
        callback(LEGAL, legal),
        callback(APPLY, apply),
        callback(OUTCOME, outcome),
        callback(OBSERVE, observe),
    )


def inline_rules(rules: Rules) -> Rules:
    """The same rules as functions that kernels of this one game call; on a GPU they may not make arrays."""
    # `_nrt`: rules that make arrays are legitimate on a CPU, also where the kernels that call them may not
    return Rules(*(jit(_nrt=True)(pointer.__wrapped__) for pointer in rules))


def compile_estimate(estimate: Callable[[Array], float]) -> Any:
    """Compile an estimate of a position: what the player to move expects to get, between −1 and 1."""
    return callback(ESTIMATE, estimate)


class Symmetry(NamedTuple):
    """One symmetry of a board, the identity included in a game's list.

    The mirrored position is seen as `values[cells]`, and action `a` of the mirrored position is `actions[a]` of the
    original one.
    """

    cells: Array  # [D] int64
    actions: Array  # [K] int64


class NoGame(CoterieError):
    """A world's settings make no game of it that can be searched; the message says why."""


@runtime_checkable
class Game(Protocol):
    """Two players move in turn (one of them may move twice); the outcome is known at the end and sums to zero.

    There is no declaration for other games: search values a position for one player as minus the other's. A world whose
    outcomes do not sum to zero has no `game`, or raises NoGame with the reason.
    """

    @property
    def name(self) -> str:
        """The game's name."""
        ...

    @property
    def actions(self) -> int:
        """The number of actions, K."""
        ...

    @property
    def start(self) -> Array:
        """The first position, `[S]` int64."""
        ...

    @property
    def observation(self) -> Box:
        """The observation space of the player to move."""
        ...

    @property
    def max_moves(self) -> int:
        """No game is longer."""
        ...

    @property
    def symmetries(self) -> tuple[Symmetry, ...]:
        """At least the identity; each leaves the first position as it is."""
        ...

    @property
    def rules(self) -> Rules | None:
        """The compiled rules; None: there are only the methods below."""
        ...

    @property
    def payoff_unit(self) -> float:
        """The world's reward for a payoff of 1; payoffs lie between −1 and 1."""
        ...

    @property
    def estimate(self) -> Any:
        """The result of `compile_estimate`; None: unknown positions count 0."""
        ...

    def legal(self, positions: Array) -> Array:
        """Legal actions `[N, K]` of the players to move."""
        ...

    def apply(self, positions: Array, actions: Array) -> None:
        """Play one action in every position, in place."""
        ...

    def outcome(self, positions: Array) -> tuple[Array, Array]:
        """Flags of the games that are over `[N]`, and both players' payoffs `[N, 2]`, 0 where a game goes on."""
        ...

    def observe(self, positions: Array) -> Array:
        """Observations of the players to move, `[N, D]` float32, flattened."""
        ...

    def describe(self, position: Array) -> str:
        """One position as text."""
        ...


@runtime_checkable
class HasGame(Protocol):
    """A world that can be searched. Player i of the game is the i-th agent of the world's only agent type."""

    @property
    def game(self) -> Game:
        """The rules; a world whose settings make no game of it that can be searched raises NoGame."""
        ...

    def positions(self) -> Array:
        """The present positions of all copies, `[N, S]`; a copy of its own."""
        ...


def game_of(world: object) -> Game | None:
    """The world's game; None if it has none, or none with these settings."""
    try:
        return world.game if isinstance(world, HasGame) else None
    except NoGame:
        return None


@dataclass(frozen=True, eq=False)
class CompiledGame:
    """A `Game` made of compiled rules."""

    name: str
    actions: int
    start: Array
    observation: Box
    max_moves: int
    rules: Rules
    text: Callable[[Array], str]  # one position as text
    symmetries: tuple[Symmetry, ...] = ()  # empty: the identity alone
    estimate: Any = None
    payoff_unit: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.payoff_unit < np.inf:
            raise ValueError(
                f"game '{self.name}': payoff_unit must be positive and finite, got {self.payoff_unit}; "
                "it is the reward for a payoff of 1"
            )
        if not self.symmetries:
            size = int(np.prod(self.observation.shape))
            object.__setattr__(self, "symmetries", (Symmetry(np.arange(size), np.arange(self.actions)),))

    def legal(self, positions: Array) -> Array:
        found = np.zeros((len(positions), self.actions), np.bool_)
        _legal_all(self.rules.legal, positions, found)
        return found

    def apply(self, positions: Array, actions: Array) -> None:
        _apply_all(self.rules.apply, positions, np.asarray(actions, np.int64))

    def outcome(self, positions: Array) -> tuple[Array, Array]:
        over, payoffs = np.zeros(len(positions), np.bool_), np.zeros((len(positions), 2), np.float32)
        _outcome_all(self.rules.outcome, positions, over, payoffs)
        return over, payoffs

    def observe(self, positions: Array) -> Array:
        values = np.zeros((len(positions), int(np.prod(self.observation.shape))), np.float32)
        _observe_all(self.rules.observe, positions, values)
        return values

    def describe(self, position: Array) -> str:
        return self.text(position)


@jit
def _legal_all(legal: Any, positions: Array, found: Array) -> None:
    for n in range(len(positions)):
        legal(positions[n], found[n])


@jit
def _apply_all(apply: Any, positions: Array, actions: Array) -> None:
    for n in range(len(positions)):
        apply(positions[n], actions[n])


@jit
def _outcome_all(outcome: Any, positions: Array, over: Array, payoffs: Array) -> None:
    for n in range(len(positions)):
        over[n] = outcome(positions[n], payoffs[n])


@jit
def _observe_all(observe: Any, positions: Array, values: Array) -> None:
    for n in range(len(positions)):
        observe(positions[n], values[n])
