"""Players that look ahead: perfect in tic-tac-toe, by depth elsewhere, refused where they cannot play."""

import numpy as np
import pytest

from coterie.core.sampling import random_actions
from coterie.core.types import CoterieError, View
from coterie.policies.alphabeta import AlphabetaPolicy, AlphabetaSettings, MinimaxPolicy, MinimaxSettings
from coterie.worlds.boards.connect_four import ConnectFour, ConnectFourSettings
from coterie.worlds.boards.tictactoe import Tictactoe, TictactoeSettings
from coterie.worlds.gridworld.world import Gridworld, GridworldSettings
from helpers.small_worlds import generator, spec_in


def act(policy, world, timestep, column, random, mask=None):
    """The actions `[N]` of one agent; 0 where it is not to move."""
    step = timestep.agent_types["player"]
    return policy.act(
        View(
            step.observation[:, [column]], step.acting[:, [column]], np.arange(1), random, greedy=True,
            mask=step.mask[:, [column]] if mask is None else mask, world=world, agent_type="player",
            columns=np.array([column]),
        )
    ).action[:, 0]  # fmt: skip


def results(world, players, steps, random):
    """Rewards of player_0 in all games that ended; None plays at random."""
    timestep, found = world.reset(0), []
    for _ in range(steps):
        actions = random_actions(timestep, world.agent_types, random)["player"]
        for column, player in enumerate(players):
            if player is not None:
                actions[:, column] = act(player, world, timestep, column, random)
        timestep = world.step({"player": actions})
        found += timestep.agent_types["player"].reward[timestep.ended, 0].tolist()
    return np.array(found)


@pytest.mark.slow
@pytest.mark.parametrize("column", [0, 1])
def test_minimax_never_loses_at_tic_tac_toe(column):
    world = Tictactoe(TictactoeSettings(first="random"), 64)
    player = MinimaxPolicy(MinimaxSettings(), spec_in(world, [column]))
    own = results(world, [player, None] if column == 0 else [None, player], 40, generator())
    own = own if column == 0 else -own
    assert len(own) > 200
    assert own.min() >= 0
    assert own.mean() > 0.6


@pytest.mark.slow
def test_two_perfect_players_draw_by_many_ways():
    world = Tictactoe(TictactoeSettings(), 32)
    player = MinimaxPolicy(MinimaxSettings(), spec_in(world))
    assert set(results(world, [player, player], 18, generator())) == {0.0}
    opening = act(player, world, world.reset(0), 0, generator())
    assert len(set(opening.tolist())) > 4


@pytest.mark.slow
def test_more_depth_plays_better():
    world, random = ConnectFour(ConnectFourSettings(), 24), generator()
    deep, flat = (AlphabetaPolicy(AlphabetaSettings(depth), spec_in(world)) for depth in (5, 1))
    assert results(world, [deep, flat], 60, random).mean() > 0.8
    assert results(world, [flat, deep], 60, random).mean() < -0.5


def test_ties_are_drawn_or_not_and_shields_are_obeyed():
    world = Tictactoe(TictactoeSettings(), 60)
    timestep, where = world.reset(0), spec_in(world, [0])
    first = AlphabetaPolicy(AlphabetaSettings(1, ties="first"), where)
    drawn = AlphabetaPolicy(AlphabetaSettings(1), where)
    assert set(act(first, world, timestep, 0, generator()).tolist()) == {0}
    assert set(act(drawn, world, timestep, 0, generator()).tolist()) == set(range(9))
    mask = np.zeros((60, 1, 9), bool)
    mask[..., [3, 8]] = True
    assert set(act(drawn, world, timestep, 0, generator(), mask).tolist()) == {3, 8}
    assert not act(drawn, world, timestep, 1, generator()).any()


def test_settings_and_worlds_are_checked():
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        AlphabetaSettings(depth=0)
    grid = Gridworld(GridworldSettings(), 1)
    with pytest.raises(ValueError, match="'alphabeta' needs a world with a game"):
        AlphabetaPolicy(AlphabetaSettings(), spec_in(grid))
    with pytest.raises(ValueError, match=r"at most 12 moves; 'connect_four' may last 42; use 'alphabeta'"):
        MinimaxPolicy(MinimaxSettings(), spec_in(ConnectFour(ConnectFourSettings(), 1)))
    with pytest.raises(CoterieError, match=r"world\.win_reward=2"):
        MinimaxPolicy(MinimaxSettings(), spec_in(Tictactoe(TictactoeSettings(win_reward=2), 1)))
    world = Tictactoe(TictactoeSettings(), 1)
    view = View(np.zeros((1, 1, 18), np.float32), np.ones((1, 1), bool), np.arange(1), generator())
    with pytest.raises(ValueError, match="needs the state of the world"):
        MinimaxPolicy(MinimaxSettings(), spec_in(world)).act(view)
