"""Alpha-beta search against a plain minimax, and the order of wins, draws and losses."""

import subprocess
import sys

import numpy as np
import pytest

from coterie.core.alphabeta import action_values, best_actions
from coterie.core.game import CompiledGame, compile_estimate, compile_rules
from coterie.core.types import Box
from coterie.worlds.boards import connect_four, tictactoe


def plain_values(game, position, depth, ply=0):
    """The values of all legal actions by a plain recursion, to compare with; values for the player to move."""
    values = {}
    for action in np.flatnonzero(game.legal(position[None])[0]).tolist():
        child = position[None].copy()
        game.apply(child, np.array([action]))
        (over,), (payoffs,) = game.outcome(child)
        if over:
            payoff = float(payoffs[position[0]])
            values[action] = payoff + np.sign(payoff) * (1 - 1e-6 * (ply + 1))
        else:
            at_horizon = ply + 1 == depth
            value = (
                ESTIMATES[game.name](child[0])
                if at_horizon
                else max(plain_values(game, child[0], depth, ply + 1).values())
            )
            values[action] = value if child[0, 0] == position[0] else -value
    return values


def takes(position, action):
    """Nim with scores: take 1, 2 or 3 of the heap; who takes 3 moves again. Who takes the last one wins."""
    taken = min(action + 1, position[1])
    position[1] -= taken
    position[2 + position[0]] += taken
    position[0] = position[0] if action == 2 else 1 - position[0]


def takes_legal(position, mask):
    for action in range(3):
        mask[action] = action < position[1]


def takes_outcome(position, payoffs):
    margin = position[2] - position[3]
    payoffs[0] = margin / 8
    payoffs[1] = -margin / 8
    return position[1] == 0


def takes_observe(position, values):
    values[0] = position[1]


def takes_estimate(position):
    return (position[2 + position[0]] - position[3 - position[0]]) / 100 + position[1] % 3 / 10


HEAP = CompiledGame(
    "heap", 3, np.array([0, 9, 0, 0]), Box((1,), 0.0, 9.0), 9,
    compile_rules(takes_legal, takes, takes_outcome, takes_observe), str, estimate=compile_estimate(takes_estimate),
)  # fmt: skip
ESTIMATES = {
    "tictactoe": lambda position: 0.0,
    "connect_four": connect_four.estimate,
    "heap": takes_estimate,
}


def random_positions(game, count, moves, seed):
    """Positions that are not over, after so many random moves."""
    random, found = np.random.default_rng(seed), []
    while len(found) < count:
        position = game.start[None].copy()
        for _ in range(moves):
            legal = np.flatnonzero(game.legal(position)[0])
            game.apply(position, random.choice(legal, 1))
            if game.outcome(position)[0][0]:
                break
        else:
            found.append(position[0])
    return np.stack(found)


CASES = [
    (tictactoe.GAME, 2, 9), (tictactoe.GAME, 4, 3), (connect_four.GAME, 12, 3), (connect_four.GAME, 20, 2),
    (HEAP, 0, 9), (HEAP, 1, 3), (HEAP, 2, 2),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("game", "moves", "depth"), CASES, ids=lambda value: getattr(value, "name", value))
def test_values_are_those_of_a_plain_minimax(game, moves, depth):
    positions = random_positions(game, 6, moves, seed=moves)
    found = action_values(game, positions, depth, game.legal(positions))
    for position, values in zip(positions, found, strict=True):
        expected = plain_values(game, position, depth)
        best = max(expected.values())
        assert values.max() == pytest.approx(best, abs=1e-12)
        equal = {action for action, value in expected.items() if abs(value - best) < 1e-12}
        assert set(np.flatnonzero(values > -np.inf).tolist()) == equal


def after(game, actions):
    position = game.start[None].copy()
    for action in actions:
        game.apply(position, np.array([action]))
    return position


def choose(game, position, depth, chance=0.0):
    return int(best_actions(game, position, depth, game.legal(position), np.array([chance]))[0])


def test_a_sooner_win_is_preferred():
    both = after(connect_four.GAME, [3, 0, 3, 0, 3, 1])  # 3 wins now; other moves win later
    assert choose(connect_four.GAME, both, 5) == 3
    values = action_values(connect_four.GAME, both, 5, np.ones((1, 7), bool))
    assert values[0, 3] == pytest.approx(2 - 1e-6)


def test_ties_are_drawn_and_the_mask_holds():
    game, start = tictactoe.GAME, tictactoe.GAME.start[None]
    assert {choose(game, start, 9, chance) for chance in np.arange(0.05, 1, 0.1)} == set(range(9))
    assert best_actions(game, start, 9, game.legal(start), None).tolist() == [0]
    only = np.zeros((1, 9), bool)
    assert best_actions(game, start, 9, only, np.array([0.9])).tolist() == [0]
    only[0, [5, 7]] = True
    assert {int(best_actions(game, start, 2, only, np.array([c]))[0]) for c in (0.1, 0.9)} == {5, 7}


def test_all_openings_of_tic_tac_toe_draw():
    values = action_values(tictactoe.GAME, tictactoe.GAME.start[None], 9, np.ones((1, 9), bool))
    assert values.tolist() == [[0.0] * 9]


def test_depth_and_rules_are_checked():
    legal = np.ones((1, 9), bool)
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        action_values(tictactoe.GAME, tictactoe.GAME.start[None], 0, legal)
    with pytest.raises(ValueError, match="'slow' has none"):
        action_values(_Slow(), tictactoe.GAME.start[None], 1, legal)


class _Slow:
    name, rules = "slow", None


@pytest.mark.slow
def test_the_search_runs_from_numbas_cache():
    """A recursive form crashed in every process but the one that compiled it."""
    code = (
        "import numpy as np; from coterie.worlds.boards.connect_four import ConnectFour, ConnectFourSettings; "
        "print(ConnectFour(ConnectFourSettings(), 2).expert('player', np.random.default_rng(0)).shape)"
    )
    for _ in range(2):
        assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout == b"(2, 2)\n"
