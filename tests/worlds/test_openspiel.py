"""OpenSpiel games as worlds. Most tests need the extra `openspiel` and are skipped without it."""

import numpy as np
import pytest

import coterie
from coterie.config import registry, schema
from coterie.core.types import Box, CoterieError, Discrete
from coterie.testing import check_world
from coterie.training.build import build_world


def world(name, num_envs=1, **settings):
    return build_world(schema.part(registry.WORLDS, {"name": f"openspiel/{name}"} | settings, "world"), num_envs)


def test_a_missing_package_is_named_with_its_install_command(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyspiel", None)
    with pytest.raises(CoterieError, match=r"'pyspiel' is not installed: pip install 'coterie\[openspiel\]'"):
        world("leduc_poker")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("kuhn_poker", {}),
        ("leduc_poker", {"options": {"players": 3}}),
        ("liars_dice", {"max_episode_steps": 3}),
        ("tic_tac_toe", {}),
        ("backgammon", {"max_episode_steps": 30}),
        ("goofspiel", {"options": {"imp_info": True, "num_cards": 4, "points_order": "descending"}}),
        ("matrix_rps", {}),
        ("negotiation", {}),
    ],
)
def test_check_world_passes(name, settings):
    """Perfect and imperfect information, chance, simultaneous moves, and draws inside the game."""
    pytest.importorskip("pyspiel")
    check_world(lambda num_envs: world(name, num_envs, **settings), steps=40)


def test_a_game_equals_openspiels_own():
    """Movers, legal moves, information states and returns of random episodes."""
    pytest.importorskip("pyspiel")
    ours, random = world("leduc_poker"), np.random.default_rng(0)
    player = ours.agent_types["player"]
    assert (player.agents, player.action) == (("player_0", "player_1"), Discrete(3))
    assert player.observation == Box((30,), -np.inf, np.inf)
    agent_step, episodes = ours.reset(0).agent_types["player"], 0
    env = ours.inner._workers[0].batch.envs[0]
    twin, total = env.state.clone(), np.zeros(2)
    for _ in range(200):
        mover = int(agent_step.acting[0].argmax())
        assert mover == twin.current_player()
        assert np.flatnonzero(agent_step.mask[0, mover]).tolist() == twin.legal_actions()
        np.testing.assert_array_equal(agent_step.observation[0, mover], twin.information_state_tensor(mover))
        action = int(random.choice(twin.legal_actions()))
        played = len(twin.history())
        timestep = ours.step({"player": np.full((1, 2), action)})
        total += agent_step.reward[0]
        twin.apply_action(action)
        if timestep.ended[0]:
            assert twin.is_terminal()
            assert total.tolist() == twin.returns()
            assert agent_step.terminated[0].all()
            twin, total, episodes = env.state.clone(), np.zeros(2), episodes + 1
        elif twin.is_chance_node():
            twin.apply_action(env.state.history()[played + 1])
    assert episodes > 20


def test_wrong_names_options_and_tensors_are_refused():
    pytest.importorskip("pyspiel")
    for name, settings, message in (
        ("leduc_pokr", {}, "did you mean 'openspiel/leduc_poker'"),
        ("leduc_poker", {"options": {"playes": 3}}, r"world\.options: Unknown parameter 'playes'"),
        ("chess", {"tensor": "information_state"}, r"world\.tensor: information_state: the game provides observation"),
        ("mfg_crowd_modelling", {}, "mean-field"),
    ):
        with pytest.raises(CoterieError, match=message):
            world(name, **settings)


@pytest.mark.slow
def test_a_game_can_be_trained_and_filmed(tmp_path):
    pytest.importorskip("pyspiel")
    short = ["train.total_steps=256", "train.num_envs=4", "train.rollout_steps=16", "train.evaluate_episodes=4"]
    settings = ["world.name=openspiel/kuhn_poker", *short, "train.tensorboard=false"]
    run = coterie.train("cartpole-ppo", settings, out=tmp_path / "run", quiet=True)
    assert run.films()
