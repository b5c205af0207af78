"""Connect Four: lines in all directions, gravity, pictures, words, and the expert."""

import copy
import pickle

import numpy as np
import pytest

from coterie.core.game import HasGame
from coterie.core.sampling import random_actions
from coterie.core.world import HasExpert, Renderable
from coterie.testing import check_world
from coterie.worlds.boards.connect_four import CELL_BITS, GAME, WINDOWS, ConnectFour, ConnectFourSettings, has_four


def play(world, columns):
    """Play the same columns in every copy; idle rows hold nonsense."""
    for column in columns:
        actions = np.full((world.num_envs, 2), 99)
        actions[np.arange(world.num_envs), world.positions()[:, 0]] = column
        timestep = world.step({"player": actions})
    return timestep


@pytest.mark.slow
@pytest.mark.parametrize("observation", ["vector", "planes"])
def test_keeps_the_contract(observation):
    check_world(lambda num_envs: ConnectFour(ConnectFourSettings(observation), num_envs), steps=120)


def test_has_a_game_an_expert_and_a_picture():
    world = ConnectFour(ConnectFourSettings(), 1)
    assert all(isinstance(world, protocol) for protocol in (HasGame, HasExpert, Renderable))


def test_stones_fall_and_each_player_sees_its_own_first():
    agent_step = play(ConnectFour(ConnectFourSettings("planes"), 2), [3, 3, 0]).agent_types["player"]
    seen = agent_step.observation[1]
    assert np.argwhere(seen[0, 0]).tolist() == [[5, 0], [5, 3]]
    assert np.argwhere(seen[0, 1]).tolist() == [[4, 3]]
    assert (seen[0] == seen[1, ::-1]).all()
    flat = play(ConnectFour(ConnectFourSettings(), 1), [3, 3, 0]).agent_types["player"].observation[0]
    assert (flat == seen.reshape(2, 84)).all()


def test_there_are_69_lines_and_each_wins():
    assert len(set(WINDOWS.tolist())) == 69
    assert all(has_four(int(line)) for line in WINDOWS)
    random = np.random.default_rng(0)
    for _ in range(500):
        stones = int(CELL_BITS[random.random((6, 7)) < 0.4].sum())
        assert has_four(stones) == bool(((stones & WINDOWS) == WINDOWS).any())


@pytest.mark.parametrize(
    "columns",
    [
        [0, 1, 0, 1, 0, 1, 0],
        [0, 0, 1, 1, 2, 2, 3],
        [0, 1, 1, 2, 2, 3, 2, 3, 3, 6, 3],
        [6, 5, 5, 4, 4, 3, 4, 3, 3, 0, 3],
    ],
)
def test_four_in_a_line_win(columns):
    world = ConnectFour(ConnectFourSettings(), 2)
    assert not play(world, columns[:-1]).ended.any()
    timestep = play(world, columns[-1:])
    agent_step = timestep.agent_types["player"]
    assert timestep.ended.all()
    assert agent_step.reward.tolist() == [[1, -1]] * 2
    assert agent_step.final_observation[0, 0].sum() == len(columns)
    assert not agent_step.observation.any()
    assert "player_0 (X) has won" in world.ansi(0, final=True)


DRAW = [
    0,
    1,
    0,
    1,
    1,
    0,
    1,
    0,
    0,
    1,
    0,
    1,
    2,
    3,
    2,
    3,
    3,
    2,
    3,
    2,
    2,
    3,
    2,
    3,
    4,
    5,
    4,
    5,
    5,
    4,
    5,
    4,
    4,
    5,
    4,
    5,
    *[6] * 6,
]


def test_a_full_board_is_a_draw():
    timestep = play(ConnectFour(ConnectFourSettings(), 1), DRAW)
    assert timestep.ended.tolist() == [True]
    assert timestep.agent_types["player"].reward.tolist() == [[0, 0]]


@pytest.mark.parametrize(
    ("column", "reason"), [(2, "is full"), (7, "is not on the board"), (-1, "is not on the board")]
)
def test_an_illegal_move_is_named_and_changes_nothing(column, reason):
    world = ConnectFour(ConnectFourSettings(), 2)
    play(world, [2] * 6)
    before = world.save()
    with pytest.raises(ValueError, match=rf"copy 1 by player_0: column {column} {reason}"):
        world.step({"player": np.array([[0, 0], [column, 0]])})
    assert all(np.array_equal(before[key], array) for key, array in world.save().items())


@pytest.mark.slow
def test_games_may_begin_with_random_moves():
    world = ConnectFour(ConnectFourSettings(opening_moves=5), 200)
    first = world.positions()
    assert {bin(int(p[1]) | int(p[2])).count("1") for p in first} == {5}
    assert (first[:, 0] == 1).all()
    assert len({tuple(p) for p in first.tolist()}) > 150
    assert not GAME.outcome(first)[0].any()
    assert (world.reset(0) and world.positions() == first).all()
    world.reset(1)
    assert (world.positions() != first).any()
    check_world(lambda num_envs: ConnectFour(ConnectFourSettings(opening_moves=12), num_envs), steps=80)


@pytest.mark.parametrize("moves", [-1, 21])
def test_openings_have_a_range(moves):
    with pytest.raises(ValueError, match=rf"opening_moves must lie in \[0, 20\], got {moves}"):
        ConnectFourSettings(opening_moves=moves)


def test_settings_are_checked():
    with pytest.raises(ValueError, match="observation must be 'vector' or 'planes', got 'image'"):
        ConnectFourSettings("image")


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda world: pickle.loads(pickle.dumps(world))])
def test_copies_continue_the_same_games(duplicate):
    world = ConnectFour(ConnectFourSettings(), 3)
    play(world, [3, 4])
    other = duplicate(world)
    one, two = play(world, [3]).agent_types["player"].observation, play(other, [3]).agent_types["player"].observation
    assert (one == two).all()


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ([], {3}),
        ([3, 0, 3, 0, 3, 0], {3}),  # win rather than block
        ([3, 0, 3, 0, 3], {3}),  # block
        ([3, 0, 2, 0], {1, 4}),  # two open ends: a double threat
    ],
)
def test_the_expert_wins_blocks_and_likes_the_middle(columns, expected):
    world = ConnectFour(ConnectFourSettings(), 50)
    if columns:
        play(world, columns)
    mover = len(columns) % 2
    actions = world.expert("player", np.random.default_rng(0))
    assert set(actions[:, mover].tolist()) <= expected
    assert not actions[:, 1 - mover].any()


@pytest.mark.slow
def test_the_expert_beats_random_play():
    world, random = ConnectFour(ConnectFourSettings(), 64), np.random.default_rng(0)
    timestep, results = world.reset(0), []
    for _ in range(60):
        actions = random_actions(timestep, world.agent_types, random)["player"]
        actions[:, 0] = world.expert("player", random)[:, 0]
        timestep = world.step({"player": actions})
        results += timestep.agent_types["player"].reward[timestep.ended, 0].tolist()
    assert len(results) > 100
    assert np.mean(results) > 0.95


def test_the_text_shows_the_latest_move_in_brackets():
    world = ConnectFour(ConnectFourSettings(), 1)
    play(world, [3, 3, 2])
    lines = world.ansi(0).splitlines()
    assert lines[0].split() == list("1234567")
    assert lines[5:] == [" .  .  .  O  .  .  .", " .  . [X] X  .  .  .", "player_1 (O) to move"]
    assert GAME.describe(world.positions()[0]).splitlines()[6] == " .  .  X  X  .  .  ."


def test_the_picture_marks_stones_and_the_latest_move():
    world = ConnectFour(ConnectFourSettings(), 1)
    empty = world.frame(0)
    play(world, [3, 2])
    frame = world.frame(0)
    assert frame.shape == (6 * 64 + 64, 7 * 64 + 64, 3)
    assert frame.dtype == np.uint8
    first, second = (frame[32 + 5 * 64 + 32 - 20, 32 + 64 * column + 32] for column in (3, 2))
    assert first[2] > 200 > first[0]  # blue and orange, as groups in charts
    assert second[0] > 200 > second[2]
    centres = [frame[32 + 5 * 64 + 32 - 8, 32 + 64 * column + 32].astype(int) for column in (3, 2)]
    assert centres[1].sum() < centres[0].sum()  # the ring on the latest stone
    assert (frame[:32] == empty[:32]).all()


def test_words_name_wins_and_threats():
    world = ConnectFour(ConnectFourSettings(), 1)
    codec = world.text_codec("player")
    observation = play(world, [3, 2, 3, 2, 3, 2]).agent_types["player"].observation[:, 0]
    (text,) = codec.describe(observation)
    assert text == (
        "You are X: ....... / ....... / ....... / ..OX... / ..OX... / ..OX.... "
        "X wins at column 4. O threatens column 3."
    )
    planes = observation.reshape(1, 2, 6, 7)
    assert codec.describe(planes) == [text]
    assert codec.choices[3] == "column 4"
    assert len(codec.samples()) > 20
