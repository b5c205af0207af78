"""OpenSpiel games as games that can be searched: two players, zero-sum, perfect information, no chance.

A position is the player to move, the number of moves and the moves themselves, so that it is complete for every game.
OpenSpiel's states are kept in a bounded cache; one that was dropped is replayed from its moves.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np

from coterie.core.game import Symmetry
from coterie.core.types import Array, Box

STATES = 4096  # kept in the cache


def why_not_searchable(pyspiel: Any, game: Any, limit: int | None) -> str | None:
    """The reason for which a game cannot be searched; None if it can. `limit` is the world's time limit."""
    kind, types = game.get_type(), pyspiel.GameType
    perfect = kind.information == types.Information.PERFECT_INFORMATION
    reasons = {
        f"it has {game.num_players()} players, search needs 2": game.num_players() != 2,
        "its players do not see everything, or move at the same time": not perfect,
        "it has chance": kind.chance_mode != types.ChanceMode.DETERMINISTIC,
        "it is not zero-sum": kind.utility != types.Utility.ZERO_SUM,
        f"world.max_episode_steps={limit} cuts games off before their outcome; remove it": (
            limit is not None and limit < game.max_game_length()
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


class OpenSpielGame:
    """The rules of an OpenSpiel game, played by OpenSpiel; payoffs are scaled to [−1, 1]."""

    rules = None
    estimate = None

    def __init__(self, name: str, game: Any, tensor: str, observation: Box) -> None:
        self.name, self.observation = name, observation
        self._tensor = f"{tensor}_tensor"
        self._first = game.new_initial_state()
        self._states: OrderedDict[bytes, Any] = OrderedDict()
        self.actions: int = game.num_distinct_actions()
        self.max_moves: int = game.max_game_length()
        self.payoff_unit = float(max(abs(game.min_utility()), abs(game.max_utility())))
        self.start = np.zeros(self.max_moves + 2, np.int64)
        self.start[0] = self._first.current_player()
        size = int(np.prod(observation.shape))
        self.symmetries = (Symmetry(np.arange(size), np.arange(self.actions)),)

    def legal(self, positions: Array) -> Array:
        """Legal actions `[N, K]` of the players to move."""
        found = np.zeros((len(positions), self.actions), np.bool_)
        for row, state in zip(found, self._all(positions), strict=True):
            row[state.legal_actions()] = True
        return found

    def apply(self, positions: Array, actions: Array) -> None:
        """Play one legal action in every position, in place."""
        for position, action in zip(positions, actions, strict=True):
            state = self._state(position).clone()
            state.apply_action(int(action))
            position[1] += 1
            position[1 + position[1]] = action
            if not state.is_terminal():
                position[0] = state.current_player()
            self._keep(_key(position), state)

    def outcome(self, positions: Array) -> tuple[Array, Array]:
        """Flags of the games that are over `[N]`, and both players' payoffs `[N, 2]`, 0 where a game goes on."""
        over, payoffs = np.zeros(len(positions), np.bool_), np.zeros((len(positions), 2), np.float32)
        for n, state in enumerate(self._all(positions)):
            if state.is_terminal():
                over[n], payoffs[n] = True, np.array(state.returns()) / self.payoff_unit
        return over, payoffs

    def observe(self, positions: Array) -> Array:
        """Observations of the players to move, `[N, D]` float32, flattened."""
        rows = [
            getattr(state, self._tensor)(int(player))
            for player, state in zip(positions[:, 0], self._all(positions), strict=True)
        ]
        return np.array(rows, np.float32).reshape(len(positions), -1)

    def describe(self, position: Array) -> str:
        """One position as OpenSpiel writes it."""
        return str(self._state(position))

    def _all(self, positions: Array) -> Iterator[Any]:
        return (self._state(position) for position in positions)

    def _state(self, position: Array) -> Any:
        """OpenSpiel's state of a position; callers must not change it."""
        key = _key(position)
        state = self._states.get(key)
        if state is not None:
            self._states.move_to_end(key)
            return state
        state = self._first.clone()
        for move in position[2 : 2 + position[1]]:
            state.apply_action(int(move))
        self._keep(key, state)
        return state

    def _keep(self, key: bytes, state: Any) -> None:
        self._states[key] = state
        if len(self._states) > STATES:
            self._states.popitem(last=False)


def _key(position: Array) -> bytes:
    return position[2 : 2 + position[1]].tobytes()
