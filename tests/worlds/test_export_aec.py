"""Turn-based worlds as PettingZoo AEC environments: PettingZoo's own tests, turns, ends, masks and pictures."""

import numpy as np
import pytest
from pettingzoo.test import api_test, seed_test

import coterie
from coterie.core.types import CoterieError
from coterie.testing import check_world
from coterie.worlds.adapters.export_aec import PettingZooAECEnv
from coterie.worlds.adapters.pettingzoo import PettingZooSettings, PettingZooWorld
from coterie.worlds.boards.tictactoe import Tictactoe, TictactoeSettings
from coterie.worlds.gridworld.world import Gridworld, GridworldSettings

ENVS = {
    "tictactoe": coterie.worlds.tictactoe.env,
    "tictactoe, random opener": lambda: coterie.worlds.tictactoe.env(first="random"),
    "connect_four": coterie.worlds.connect_four.env,
    "connect_four, planes": lambda: coterie.worlds.connect_four.env(observation="planes"),
    "othello": coterie.worlds.othello.env,
    "othello, 4 rows": lambda: coterie.worlds.othello.env(size=4, observation="planes"),
}


@pytest.mark.filterwarnings("ignore:Observation")  # it is a dict with an action mask, as in `pettingzoo.classic`
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ENVS)
def test_passes_pettingzoos_api_test(name):
    api_test(ENVS[name](), num_cycles=200)


@pytest.mark.parametrize("name", ENVS)
def test_passes_pettingzoos_seed_test(name):
    seed_test(ENVS[name], num_cycles=30)


def test_a_game_turn_by_turn():
    env = coterie.worlds.tictactoe.env()
    env.reset(seed=0)
    for cell in (0, 3, 1, 4):
        env.step(cell)
    assert env.agent_selection == "player_0"
    seen, reward, terminated, truncated, _ = env.last()
    assert seen["observation"].tolist() == [1, 1] + [0] * 7 + [0] * 3 + [1, 1] + [0] * 4
    assert np.flatnonzero(seen["action_mask"]).tolist() == [2, 5, 6, 7, 8]
    assert not env.observe("player_1")["action_mask"].any()
    assert (reward, terminated, truncated) == (0, False, False)
    env.step(2)
    assert env.terminations == {"player_0": True, "player_1": True}
    assert env.rewards == {"player_0": 1.0, "player_1": -1.0}
    seen, reward, terminated, _, _ = env.last()
    assert (env.agent_selection, reward, terminated) == ("player_1", -1, True)
    assert seen["observation"].sum() == 5
    assert not seen["action_mask"].any()
    env.step(None)
    assert env.agents == ["player_0"]
    assert env.last()[1] == 1
    env.step(None)
    assert env.agents == []
    with pytest.raises(CoterieError, match=r"call reset\(\) before step\(\)"):
        env.step(0)


def test_an_illegal_action_changes_nothing():
    env = coterie.worlds.connect_four.env()
    env.reset(seed=0)
    for _ in range(6):
        env.step(0)
    before = env.world.save()
    with pytest.raises(ValueError, match="column 0 is full"):
        env.step(0)
    with pytest.raises(ValueError, match="player_0: action 7 is outside"):
        env.step(7)
    assert (env.world.save()["position"] == before["position"]).all()
    assert env.agent_selection == "player_0"


def test_renders_the_end_after_the_end():
    env = coterie.worlds.connect_four.env(render_mode="ansi")
    with pytest.raises(CoterieError, match=r"call reset\(\) before render"):
        env.render()
    env.reset(seed=0)
    for column in (0, 1, 0, 1, 0, 1, 0):
        env.step(column)
    assert "player_0 (X) has won" in env.render()
    env.reset()
    assert "to move" in env.render()
    picture = coterie.worlds.othello.env(render_mode="rgb_array")
    picture.reset()
    assert picture.render().shape == (448, 448, 3)


def test_what_is_not_turn_based_is_refused():
    with pytest.raises(ValueError, match="simultaneous=True"):
        PettingZooAECEnv(Gridworld(GridworldSettings(), 1), "grid")
    with pytest.raises(ValueError, match="2 copies"):
        PettingZooAECEnv(Tictactoe(TictactoeSettings(), 2), "two")
    with pytest.raises(ValueError, match="render_mode must be one of"):
        coterie.worlds.tictactoe.env(render_mode="svg")
    with pytest.raises(TypeError, match="sise: no such setting; did you mean 'size'"):
        coterie.worlds.othello.env(sise=4)


@pytest.mark.slow
def test_our_adapter_reads_it_back():
    settings = PettingZooSettings("coterie.worlds.boards.tictactoe:env")
    check_world(lambda num_envs: PettingZooWorld(settings, num_envs), steps=30)
