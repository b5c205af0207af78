"""Tic-tac-toe: whole games by hand, the turn order, and the expert."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.sampling import random_actions
from coterie.core.types import CoterieError, TimeStep
from coterie.core.world import HasExpert, Renderable
from coterie.testing import check_world
from coterie.worlds.boards.tictactoe import EMPTY, LINES, Tictactoe, TictactoeSettings


def play(world: Tictactoe, cells: list[int]) -> TimeStep:
    """Play the same cells in every copy; idle rows hold nonsense, which must not matter."""
    for cell in cells:
        mover = world.positions()[:, 0]
        actions = np.full((world.num_envs, 2), 99)
        actions[np.arange(world.num_envs), mover] = cell
        timestep = world.step({"player": actions})
    return timestep


def stones(row: np.ndarray) -> tuple[list[int], list[int]]:
    return np.flatnonzero(row[:9]).tolist(), np.flatnonzero(row[9:]).tolist()


def position(text: str, mover: int, num_envs: int = 1) -> Tictactoe:
    """A world in which every copy shows the given board."""
    world = Tictactoe(TictactoeSettings(), num_envs)
    stones = [sum(1 << cell for cell, sign in enumerate(text.replace(" ", "")) if sign == own) for own in "XO"]
    world.load(world.save() | {"position": np.tile([mover, *stones], (num_envs, 1))})
    return world


@pytest.mark.slow
@pytest.mark.parametrize("first", ["player_0", "random"])
def test_keeps_the_contract(first):
    check_world(lambda num_envs: Tictactoe(TictactoeSettings(first=first), num_envs))


def test_has_an_expert_and_a_picture():
    world = Tictactoe(TictactoeSettings(), 1)
    assert isinstance(world, HasExpert)
    assert isinstance(world, Renderable)


def test_each_player_sees_its_own_stones_first():
    agent_step = play(Tictactoe(TictactoeSettings(), 2), [4, 0, 8]).agent_types["player"]
    for copy in range(2):
        assert stones(agent_step.observation[copy, 0]) == ([4, 8], [0])
        assert stones(agent_step.observation[copy, 1]) == ([0], [4, 8])


def test_the_mask_shows_free_cells_to_the_mover_and_everything_to_the_idle():
    agent_step = play(Tictactoe(TictactoeSettings(), 1), [4, 0, 8]).agent_types["player"]
    assert agent_step.acting.tolist() == [[False, True]]
    assert np.flatnonzero(agent_step.mask[0, 1]).tolist() == [1, 2, 3, 5, 6, 7]
    assert agent_step.mask[0, 0].all()


@pytest.mark.parametrize("line", LINES.tolist())
def test_every_line_wins_and_the_loser_is_rewarded_on_the_winning_move(line):
    world = Tictactoe(TictactoeSettings(win_reward=2, loss_reward=-3), 3)
    # Not itself a line: the loser's two stones lie where the winner's do not.
    away = [cell for cell in range(9) if cell not in line][:2]
    timestep = play(world, [line[0], away[0], line[1], away[1]])
    assert not timestep.ended.any()
    assert not timestep.agent_types["player"].reward.any()
    timestep = play(world, [line[2]])
    agent_step = timestep.agent_types["player"]
    assert timestep.ended.all()
    assert timestep.success is None
    assert agent_step.reward.tolist() == [[2, -3]] * 3
    assert agent_step.terminated.all()
    assert not agent_step.truncated.any()
    assert stones(agent_step.final_observation[2, 0]) == (sorted(line), sorted(away))
    assert stones(agent_step.final_observation[2, 1]) == (sorted(away), sorted(line))
    assert not agent_step.observation.any()
    assert agent_step.acting.tolist() == [[True, False]] * 3
    assert agent_step.mask.all()


def test_the_second_player_can_win():
    agent_step = play(Tictactoe(TictactoeSettings(), 1), [0, 2, 1, 4, 8, 6]).agent_types["player"]
    assert agent_step.reward.tolist() == [[-1, 1]]


def test_a_full_board_without_a_line_is_a_draw():
    timestep = play(Tictactoe(TictactoeSettings(draw_reward=0.25), 1), [0, 1, 2, 4, 3, 5, 7, 6, 8])
    assert timestep.ended.tolist() == [True]
    assert timestep.agent_types["player"].reward.tolist() == [[0.25, 0.25]]
    assert timestep.agent_types["player"].terminated.all()


def test_a_line_on_the_last_free_cell_is_a_win():
    timestep = play(Tictactoe(TictactoeSettings(draw_reward=0.5), 1), [0, 1, 2, 3, 4, 5, 7, 6, 8])
    assert timestep.agent_types["player"].reward.tolist() == [[1, -1]]


def test_rewards_and_ends_are_gone_one_tick_later():
    world = Tictactoe(TictactoeSettings(), 1)
    timestep = play(world, [0, 3, 1, 4, 2, 8])
    assert not timestep.ended.any()
    assert not timestep.agent_types["player"].reward.any()
    assert not timestep.agent_types["player"].terminated.any()
    assert stones(timestep.agent_types["player"].observation[0, 0]) == ([8], [])


@pytest.mark.parametrize(("cell", "reason"), [(4, "occupied"), (9, "not on the board"), (-1, "not on the board")])
def test_an_illegal_move_is_named_and_changes_nothing(cell, reason):
    world = Tictactoe(TictactoeSettings(), 3)
    play(world, [4])
    before = world.save()
    with pytest.raises(ValueError, match=rf"copy 1 by player_1: cell {cell} is {reason}"):
        world.step({"player": np.array([[0, 3], [0, cell], [0, 5]])})
    assert all(np.array_equal(before[key], array) for key, array in world.save().items())


def test_actions_of_the_wrong_shape_or_type_are_refused():
    world = Tictactoe(TictactoeSettings(), 2)
    with pytest.raises(ValueError, match=r"shape \(2, 2\), got \(2,\)"):
        world.step({"player": np.zeros(2, int)})
    with pytest.raises(TypeError):
        world.step({"player": np.zeros((2, 2))})


@pytest.mark.parametrize(
    ("bad", "message"),
    [({"first": "player_1"}, "first must be"), ({"win_reward": float("nan")}, "win_reward must be finite")],
)
def test_bad_settings_are_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        TictactoeSettings(**bad)


def test_a_state_of_other_size_is_refused():
    with pytest.raises(ValueError, match="holds 2 copies, this world has 3"):
        Tictactoe(TictactoeSettings(), 3).load(Tictactoe(TictactoeSettings(), 2).save())


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), first=st.sampled_from(["player_0", "random"]))
def test_turns_alternate_and_stones_stay_balanced(seed, first):
    world = Tictactoe(TictactoeSettings(first=first), 4)
    random = np.random.default_rng(seed)
    timestep = world.reset(seed)
    opener = timestep.agent_types["player"].acting.argmax(1)
    moves = np.zeros(4, int)
    for _ in range(30):
        timestep = world.step({"player": random_actions(timestep, world.agent_types, random)["player"]})
        agent_step = timestep.agent_types["player"]
        moves = np.where(timestep.ended, 0, moves + 1)
        opener = np.where(timestep.ended, agent_step.acting.argmax(1), opener)
        assert (agent_step.acting.sum(1) == 1).all()
        assert (agent_step.acting.argmax(1) == (opener + moves) % 2).all()
        own = agent_step.observation[np.arange(4), opener]
        assert (own[:, :9].sum(1) == (moves + 1) // 2).all()
        assert (own[:, 9:].sum(1) == moves // 2).all()
        assert (agent_step.observation[:, 0] == np.roll(agent_step.observation[:, 1], 9, axis=1)).all()
        assert (agent_step.reward.sum(1) == 0).all()


def test_random_openers_come_half_and_half():
    world = Tictactoe(TictactoeSettings(first="random"), 4000)
    at_reset = world.reset(3).agent_types["player"].acting[:, 0].mean()
    seen: list[bool] = []
    random = np.random.default_rng(0)
    for _ in range(9):
        timestep = world.step({"player": world.expert("player", random)})
        seen += timestep.agent_types["player"].acting[timestep.ended, 0].tolist()
    assert abs(at_reset - 0.5) < 0.03
    assert len(seen) >= 4000
    assert abs(np.mean(seen) - 0.5) < 0.03


def test_openers_of_neighbouring_copies_and_later_games_are_unrelated():
    world = Tictactoe(TictactoeSettings(first="random"), 2000)
    now = world.reset(0).agent_types["player"].acting[:, 0].copy()
    later = play(world, [0, 3, 1, 4, 2]).agent_types["player"].acting[:, 0]
    assert abs(np.mean(now[1:] == later[:-1]) - 0.5) < 0.05
    assert abs(np.mean(now == later) - 0.5) < 0.05


def test_another_seed_gives_other_openers():
    world = Tictactoe(TictactoeSettings(first="random"), 64)
    one = world.reset(1).agent_types["player"].acting.copy()
    assert (world.reset(2).agent_types["player"].acting != one).any()


@pytest.mark.parametrize(
    ("board", "mover", "cells"),
    [
        ("XX. OO. ...", 0, {2}),  # win rather than block
        ("XX. OO. ..X", 1, {5}),
        ("XX. O.. ...", 1, {2}),  # block
        ("X.. ... ...", 1, {4}),  # centre
        ("... .X. ...", 1, {0, 2, 6, 8}),  # corners
        ("X.. .O. ..X", 1, {2, 6}),  # a corner even here, where it walks into a double threat
        ("X.O OXX X.O", 0, {1, 7}),  # any cell
    ],
)
def test_the_expert_follows_its_rules(board, mover, cells):
    world = position(board, mover, num_envs=200)
    actions = world.expert("player", np.random.default_rng(0))
    assert set(actions[:, mover].tolist()) == cells
    assert not actions[:, 1 - mover].any()


@pytest.mark.slow
def test_the_expert_never_misses_a_win_or_a_block():
    world = Tictactoe(TictactoeSettings(first="random"), 256)
    random = np.random.default_rng(1)
    timestep = world.reset(1)
    wins = blocks = 0
    for _ in range(40):
        chosen = world.expert("player", random)
        for position, action in zip(world.positions(), chosen, strict=True):
            board, mover = world.marks(position).ravel(), position[0]
            own, other = (winning_cells(board, player) for player in (mover, 1 - mover))
            assert board[action[mover]] == EMPTY
            assert action[mover] in (own or other or range(9))
            wins, blocks = wins + bool(own), blocks + bool(other and not own)
        # Random moves lead to positions that the expert alone would never reach.
        timestep = world.step({"player": random_actions(timestep, world.agent_types, random)["player"]})
    assert wins > 100
    assert blocks > 100


def winning_cells(board: np.ndarray, player: int) -> set[int]:
    """Free cells that complete a line, found by trying each."""
    found = set()
    for cell in np.flatnonzero(board == EMPTY):
        after = board.copy()
        after[cell] = player
        if (after[LINES] == player).all(1).any():
            found.add(int(cell))
    return found


def test_the_expert_knows_only_its_own_agent_type():
    with pytest.raises(ValueError, match="agent_type must be one of"):
        Tictactoe(TictactoeSettings(), 1).expert("referee", np.random.default_rng(0))


def test_the_picture_shows_stones_and_whose_turn_it_is():
    world = position("XO. ... ...", 0)
    frame = world.frame(0)
    assert frame.shape == (192, 192, 3)
    assert frame.dtype == np.uint8
    cross, ground, ring = frame[32, 32], frame[96, 160 - 24], frame[32, 96 + 14]
    assert cross[2] > 200 > cross[0]  # blue and orange, as groups in charts
    assert ring[0] > 200 > ring[2]
    assert ground.max() < 100
    assert (frame[96, 96] != position("XO. ... ...", 1).frame(0)[96, 96]).any()


def test_the_text_shows_free_cells_by_number():
    world = position("XO. .X. ..O", 0)
    rows = [" X | O | 2", "---+---+---", " 3 | X | 5", "---+---+---", " 6 | 7 | O", "player_0 (X) to move"]
    assert world.ansi(0).splitlines() == rows


def test_the_end_can_be_drawn_after_the_reset():
    world = Tictactoe(TictactoeSettings(), 1)
    play(world, [0, 3, 1, 4, 2])
    rows = [" X | X | X", "---+---+---", " O | O | 5", "---+---+---", " 6 | 7 | 8", "player_0 (X) has won"]
    assert world.ansi(0, final=True).splitlines() == rows
    assert (world.frame(0, final=True) != world.frame(0)).any()
    play(world, [0, 1, 2, 4, 3, 5, 7, 6, 8])
    assert world.ansi(0, final=True).splitlines()[-1] == "a draw"


@pytest.mark.parametrize(("changed", "named"), [({"win_reward": 2}, "win_reward=2"), ({"draw_reward": 0.5}, "draw_r")])
def test_other_rewards_cannot_be_searched(changed, named):
    world = Tictactoe(TictactoeSettings(**changed), 1)
    with pytest.raises(CoterieError, match=rf"world\.{named}.* rewards of 1, 0 and −1"):
        _ = world.game
    check_world(lambda num_envs: Tictactoe(TictactoeSettings(**changed), num_envs), steps=30)
