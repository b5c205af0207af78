"""check_world passes on games whose rules and steps agree, and locates the defect of each broken one."""

from dataclasses import replace

import numpy as np
import pytest

from coterie.core.game import Symmetry
from coterie.testing import ContractError, check_world
from coterie.worlds.boards.board import BoardWorld
from coterie.worlds.boards.connect_four import ConnectFour, ConnectFourSettings
from coterie.worlds.boards.othello import Othello, OthelloSettings
from coterie.worlds.boards.tictactoe import GAME, Tictactoe, TictactoeSettings


class Broken:
    """Tic-tac-toe's game with one defect; everything else is passed on."""

    def __init__(self, defect):
        self.defect = defect

    def __getattr__(self, name):
        return getattr(GAME, name)

    @property
    def max_moves(self):
        return 5 if self.defect == "too long" else GAME.max_moves

    @property
    def actions(self):
        return 10 if self.defect == "actions" else GAME.actions

    @property
    def start(self):
        return GAME.start.astype(np.int32) if self.defect == "start" else GAME.start

    @property
    def symmetries(self):
        identity, turned, *_ = GAME.symmetries
        match self.defect:
            case "no identity":
                return (turned,)
            case "no permutation":
                return (identity, Symmetry(np.zeros(18, int), turned.actions))
            case "wrong cells":
                return (identity, Symmetry(identity.cells, turned.actions))
            case "wrong actions":
                return (identity, Symmetry(turned.cells, identity.actions))
            case "turned the other way":
                return (identity, Symmetry(turned.cells, np.argsort(turned.actions)))
        return GAME.symmetries

    def legal(self, positions):
        found = GAME.legal(positions)
        if self.defect == "legal":
            found[:, 4] = True
        if self.defect == "changes positions":
            positions[:, 0] ^= 1
        return found

    def apply(self, positions, actions):
        GAME.apply(positions, actions)
        if self.defect == "apply":
            positions[:, 0] = 0
        if self.defect == "apply elsewhere" and (positions[:, 1] & 16).any():
            positions[:, 1] |= 256

    def outcome(self, positions):
        over, payoffs = GAME.outcome(positions)
        match self.defect:
            case "never over":
                over[:], payoffs[:] = False, 0
            case "sum":
                payoffs[over] = np.abs(payoffs[over])
            case "swapped":
                payoffs = payoffs[:, ::-1].copy()
            case "beyond 1":
                payoffs *= 2
            case "paid early":
                payoffs[~over] = [1, -1]
            case "nan":
                payoffs[over] = np.nan
            case "float64":
                payoffs = payoffs.astype(np.float64)
        return over, payoffs

    def observe(self, positions):
        seen = GAME.observe(positions)
        return np.roll(seen, 9, axis=1) if self.defect == "observe" else seen


class World(Tictactoe):
    def __init__(self, num_envs, defect):
        super().__init__(TictactoeSettings(), num_envs)
        self.defect, self.broken = defect, Broken(defect)
        if defect == "beyond 1":
            self._setup.rewards[:] *= 2  # payoffs and rewards agree

    @property
    def game(self):
        return self.broken

    def positions(self):
        found = self._arrays.position if self.defect == "positions shared" else super().positions()
        return found.astype(np.int32) if self.defect == "positions type" else found

    def __reduce__(self):
        return World, (self.num_envs, self.defect)


DEFECTS = {
    "actions": "actions=10 as in the world",
    "start": "start of type int64",
    "no identity": "the identity among the symmetries",
    "no permutation": "symmetry 1: expected cells to be a permutation",
    "wrong cells": r"symmetry 1, move \d+, copy \d+: expected observe",
    "wrong actions": r"symmetry 1, move \d+, copy \d+: expected observe",
    "turned the other way": r"symmetry 1, move \d+, copy \d+: expected observe",
    "legal": r"step \d+, copy \d: expected legal\(\) equal to the mask",
    "changes positions": "positions unchanged by legal",
    "apply": r"apply\(\) to lead where step does",
    "apply elsewhere": r"outcome\(\) to end a game when the world does|apply\(\) to lead where step does",
    "never over": r"outcome\(\) to end a game when the world does",
    "sum": "payoffs that sum to zero.* a world of another kind raises NoGame",
    "beyond 1": r"payoffs between −1 and 1 .*payoff_unit",
    "swapped": "payoffs equal to the rewards",
    "paid early": "payoffs of 0 before the end",
    "nan": "finite payoffs",
    "float64": r"outcome\(\)\[1\] of type float32",
    "observe": r"observe\(\) equal to the observation",
    "too long": "no game longer than max_moves=5",
    "positions shared": r"positions\(\) to return a copy",
    "positions type": r"positions\(\) of type int64",
}


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_of_a_game_is_located(defect):
    with pytest.raises(ContractError, match=DEFECTS[defect]):
        check_world(lambda num_envs: World(num_envs, defect), steps=40)


class Tripled(BoardWorld):
    """Tic-tac-toe for three points."""

    def __init__(self, settings, num_envs):
        super().__init__(settings, num_envs, replace(GAME, payoff_unit=3.0))


def test_rewards_are_payoffs_times_the_unit():
    check_world(lambda num_envs: Tripled(None, num_envs), steps=40)
    world = Tripled(None, 1)
    for cell in (0, 3, 1, 4, 2):
        timestep = world.step({"player": np.full((1, 2), cell)})
    assert timestep.agent_types["player"].reward.tolist() == [[3.0, -3.0]]


@pytest.mark.parametrize("unit", [0.0, -1.0, np.nan, np.inf])
def test_a_unit_of_payoffs_is_a_positive_number(unit):
    with pytest.raises(ValueError, match=f"game 'tictactoe': payoff_unit must be positive and finite, got {unit}"):
        replace(GAME, payoff_unit=unit)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda num_envs: World(num_envs, "none"),
        lambda num_envs: Tictactoe(TictactoeSettings(first="random"), num_envs),
        lambda num_envs: ConnectFour(ConnectFourSettings("planes"), num_envs),
        lambda num_envs: Othello(OthelloSettings(4), num_envs),
        lambda num_envs: Othello(OthelloSettings(6), num_envs),
        lambda num_envs: Othello(OthelloSettings(8), num_envs),
    ],
)
def test_shipped_games_pass(make):
    check_world(make, steps=150)


def test_all_symmetries_of_the_boards_are_there():
    boards = (Tictactoe(TictactoeSettings(), 1), ConnectFour(ConnectFourSettings(), 1), Othello(OthelloSettings(), 1))
    assert [len({one.cells.tobytes() for one in world.game.symmetries}) for world in boards] == [8, 2, 4]
