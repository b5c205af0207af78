"""Othello against plain rules: flips, passes, ends, all sizes, pictures and words."""

import numpy as np
import pytest

from coterie.core.game import HasGame
from coterie.core.sampling import random_actions
from coterie.testing import check_world
from coterie.worlds.boards.othello import Othello, OthelloSettings, othello_game

DIRECTIONS = [(dr, dc) for dr in (-1, 0, 1) for dc in (-1, 0, 1) if (dr, dc) != (0, 0)]


def flips(board, player, row, column):
    """Cells that a disc flips, by walking in all directions; `board` holds 0, 1 or −1."""
    size, found = len(board), []
    if board[row, column] >= 0:
        return []
    for dr, dc in DIRECTIONS:
        line, r, c = [], row + dr, column + dc
        while 0 <= r < size and 0 <= c < size and board[r, c] == 1 - player:
            line.append((r, c))
            r, c = r + dr, c + dc
        if line and 0 <= r < size and 0 <= c < size and board[r, c] == player:
            found += line
    return found


def plain_moves(board, player):
    cells = [(r, c) for r in range(len(board)) for c in range(len(board))]
    return {cell: flips(board, player, *cell) for cell in cells if flips(board, player, *cell)}


@pytest.mark.slow
@pytest.mark.parametrize("size", [4, 6, 8])
@pytest.mark.parametrize("observation", ["vector", "planes"])
def test_keeps_the_contract(size, observation):
    check_world(lambda num_envs: Othello(OthelloSettings(size, observation), num_envs), steps=80)


@pytest.mark.slow
def test_games_may_begin_with_random_moves():
    check_world(lambda num_envs: Othello(OthelloSettings(opening_moves=6), num_envs), steps=80)
    world = Othello(OthelloSettings(opening_moves=6), 1)
    assert (world.marks(world.positions()[0]) >= 0).sum() == 10
    with pytest.raises(ValueError, match=r"opening_moves must lie in \[0, 8\], got 9"):
        OthelloSettings(size=4, opening_moves=9)


@pytest.mark.slow
@pytest.mark.parametrize("size", [4, 6, 8])
def test_games_follow_the_plain_rules(size):
    world, random = Othello(OthelloSettings(size), 8), np.random.default_rng(size)
    timestep = world.reset(0)
    assert isinstance(world, HasGame)
    board = [world.marks(position) for position in world.positions()]
    passes = ends = corners = 0
    for _ in range(2 * size * size):
        positions = world.positions()
        actions = random_actions(timestep, world.agent_types, random)["player"]
        for n, position in enumerate(positions):
            player, moves = int(position[0]), plain_moves(board[n], int(position[0]))
            mask = timestep.agent_types["player"].mask[n, player]
            expected = {r * size + c for r, c in moves} or {size * size}
            assert set(np.flatnonzero(mask).tolist()) == expected
            action = actions[n, player]
            passes += action == size * size
            corners += action == size * size - 1
            if action < size * size:
                cell = divmod(int(action), size)
                for flipped in (cell, *moves[cell]):
                    board[n][flipped] = player
        timestep = world.step({"player": actions})
        for n, position in enumerate(world.positions()):
            stuck = not plain_moves(board[n], 0) and not plain_moves(board[n], 1)
            assert timestep.ended[n] == stuck
            if stuck:
                margin = np.sign((board[n] == 0).sum() - (board[n] == 1).sum())
                assert timestep.agent_types["player"].reward[n].tolist() == [margin, -margin]
                assert (world.marks(world._arrays.final_position[n]) == board[n]).all()
                board[n], ends = world.marks(position), ends + 1
            assert (world.marks(position) == board[n]).all()
    assert ends >= 8
    assert passes > 0
    assert corners > 0  # the sign bit on 8 × 8


def test_the_number_of_games_is_known():
    """How many games of so many moves there are on 8 × 8 is published."""
    game = othello_game(8)
    positions, counts = game.start[None].copy(), []
    for _ in range(5):
        rows, actions = np.nonzero(game.legal(positions))
        positions = positions[rows]
        game.apply(positions, actions)
        counts.append(len(positions))
    assert counts == [4, 12, 56, 244, 1396]


def test_no_game_is_longer_than_declared():
    for size in (4, 6):
        world, random, longest = Othello(OthelloSettings(size), 64), np.random.default_rng(0), 0
        timestep, moves = world.reset(0), np.zeros(64, int)
        for _ in range(3 * size * size):
            timestep = world.step({"player": random_actions(timestep, world.agent_types, random)["player"]})
            moves += 1
            longest = max(longest, moves.max())
            moves[timestep.ended] = 0
        assert longest <= world.game.max_moves


def test_an_illegal_move_is_named_and_changes_nothing():
    world = Othello(OthelloSettings(), 2)
    before = world.save()
    with pytest.raises(ValueError, match=r"copy 1 by player_0: action 0 \(a1\) is not legal"):
        world.step({"player": np.array([[8, 0], [0, 0]])})
    with pytest.raises(ValueError, match=r"copy 0 by player_0: action 36 \(pass\) is not legal"):
        world.step({"player": np.array([[36, 0], [8, 0]])})
    with pytest.raises(ValueError, match=r"action 37 is not one of 0 … 36"):
        world.step({"player": np.array([[8, 0], [37, 0]])})
    assert all(np.array_equal(before[key], array) for key, array in world.save().items())


@pytest.mark.parametrize(
    ("bad", "message"), [({"size": 5}, "size must be 4, 6 or 8, got 5"), ({"observation": "x"}, "observation must be")]
)
def test_bad_settings_are_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        OthelloSettings(**bad)


def test_the_expert_beats_random_play():
    world, random = Othello(OthelloSettings(), 32), np.random.default_rng(0)
    timestep, results = world.reset(0), []
    for _ in range(80):
        actions = random_actions(timestep, world.agent_types, random)["player"]
        actions[:, 1] = world.expert("player", random)[:, 1]
        timestep = world.step({"player": actions})
        results += timestep.agent_types["player"].reward[timestep.ended, 1].tolist()
    assert len(results) > 50
    assert np.mean(results) > 0.8


def test_text_picture_and_words():
    world = Othello(OthelloSettings(), 1)
    observation = world.step({"player": np.array([[8, 0]])}).agent_types["player"].observation
    lines = world.ansi(0).splitlines()
    assert lines[0].split() == list("abcdef")
    assert lines[2] == " 2  .  . [X] .  .  ."
    assert lines[-1] == "player_1 (O) to move; 4 : 1 discs"
    assert world.frame(0).shape == (6 * 64 + 64, 6 * 64 + 64, 3)
    codec = world.text_codec("player")
    assert codec.describe(observation[:, 1]) == [
        "You are X: ...... / ..O... / ..OO.. / ..OX.. / ...... / ....... b2 flips 1, d2 flips 1, b4 flips 1."
    ]
    assert codec.choices[-2:] == ("f6", "pass")
    nothing = np.zeros((1, 72), np.float32)
    assert codec.describe(nothing)[0].endswith("You must pass.")
