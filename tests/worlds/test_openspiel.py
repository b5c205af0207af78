"""OpenSpiel games as worlds. Most tests need the extra `openspiel` and are skipped without it."""

import numpy as np
import pytest

import coterie
from coterie.config import registry, schema
from coterie.core.game import game_of
from coterie.core.types import Box, CoterieError, Discrete
from coterie.runs.run import Run
from coterie.studies.match import match
from coterie.studies.match.match import open_players
from coterie.testing import check_world
from coterie.training import loop
from coterie.training.build import build_group_specs, build_policy, build_world
from coterie.worlds.adapters import openspiel_game
from helpers.run import assert_same_end, train, written


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
        ("dots_and_boxes", {"options": {"utility_margin": True}}),
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


@pytest.mark.parametrize("processes", [0, 1])
def test_a_player_reads_what_it_has_seen_and_no_more(processes):
    pytest.importorskip("pyspiel")
    ours = world("leduc_poker", 2, processes=processes)
    acting = ours.reset(3).agent_types["player"].acting
    player = f"player_{int(acting[1].argmax())}"
    words = ours.own_words(player, 1)
    assert words.seen.startswith(f"[Observer: {player[-1]}][Private: ")
    assert words.seen.count("Private") == 1
    assert words.actions == {1: "Call", 2: "Raise"}
    ours.inner.close()


@pytest.mark.parametrize(
    ("name", "first", "lines"),
    [
        ("tic_tac_toe", "...", 3),  # a board, not the list of moves
        ("hanabi", "Life tokens: 3", 18),  # has no information state
        ("liars_dice", "", 1),  # has no observation
        ("battleship", "State of player's ships:", 28),  # the boards, then the moves
        ("phantom_ttt", "...", 3),
    ],
)
def test_words_of_games_are_boards_where_there_are_some(name, first, lines):
    pytest.importorskip("pyspiel")
    ours = world(name)
    ours.reset(0)
    seen = ours.own_words("player_0", 0).seen
    assert seen.splitlines()[0].startswith(first)
    assert len(seen.splitlines()) == lines


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
def test_a_game_can_be_trained_and_recorded(tmp_path):
    pytest.importorskip("pyspiel")
    short = ["train.total_steps=256", "train.num_envs=4", "train.rollout_steps=16", "train.evaluate_episodes=4"]
    settings = ["world.name=openspiel/kuhn_poker", *short, "train.tensorboard=false"]
    run = coterie.train("cartpole-ppo", settings, out=tmp_path / "run", quiet=True)
    assert run.videos()


# Search ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("theirs", "ours"), [("tic_tac_toe", "tictactoe"), ("connect_four", "connect_four")])
def test_a_game_to_search_equals_our_own(theirs, ours, monkeypatch):
    """Movers, legal moves and outcomes of random games; a small cache replays most positions."""
    pytest.importorskip("pyspiel")
    monkeypatch.setattr(openspiel_game, "STATES", 3)
    random = np.random.default_rng(0)
    named = [schema.part(registry.WORLDS, {"name": name}, "world") for name in (f"openspiel/{theirs}", ours)]
    games = [game_of(build_world(part, 1)) for part in named]
    sizes = [(game.actions, game.max_moves, game.payoff_unit) for game in games]
    assert sizes[0] == sizes[1]
    positions = [np.tile(game.start, (8, 1)) for game in games]
    ends = np.zeros(3)  # won, drawn and lost by the first player
    for _ in range(100):
        legal = games[1].legal(positions[1])
        np.testing.assert_array_equal(games[0].legal(positions[0]), legal)
        np.testing.assert_array_equal(positions[0][:, 0], positions[1][:, 0])
        actions = (random.random(legal.shape) * legal).argmax(axis=1)
        for game, rows in zip(games, positions, strict=True):
            game.apply(rows, actions)
        (over, payoffs), (ours_over, ours_payoffs) = (g.outcome(p) for g, p in zip(games, positions, strict=True))
        np.testing.assert_array_equal(over, ours_over)
        np.testing.assert_array_equal(payoffs, ours_payoffs)
        ends += [(payoffs[over, 0] == value).sum() for value in (1, 0, -1)]
        for game, rows in zip(games, positions, strict=True):
            rows[over] = game.start
    assert ends[0] > 2
    assert ends[2] > 2


def test_payoffs_are_scaled_by_the_games_utility():
    """Dots and boxes by margin: the rewards are up to 4, the payoffs up to 1."""
    pytest.importorskip("pyspiel")
    made = world("dots_and_boxes", 16, options={"utility_margin": True})
    timestep, random = made.reset(0), np.random.default_rng(0)
    rewards = []
    for _ in range(60):
        agent_step = timestep.agent_types["player"]
        before, movers = made.positions(), agent_step.acting.argmax(axis=1)
        legal = agent_step.mask[np.arange(16), movers]
        actions = np.repeat((random.random(legal.shape) * legal).argmax(axis=1)[:, None], 2, axis=1)
        timestep = made.step({"player": actions})
        made.game.apply(before, actions[:, 0])
        payoffs = made.game.outcome(before)[1]
        np.testing.assert_allclose(payoffs * 4, timestep.agent_types["player"].reward)
        rewards += timestep.agent_types["player"].reward[timestep.ended, 0].tolist()
    assert made.game.payoff_unit == 4
    assert max(np.abs(rewards)) > 1


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("kuhn_poker", {}, "do not see everything"),
        ("backgammon", {}, "chance"),
        ("matrix_rps", {}, "do not see everything, or move at the same time"),
        ("mnk", {"max_episode_steps": 20}, "max_episode_steps=20"),
        ("chinese_checkers", {"options": {"players": 3}}, "3 players"),
        ("cliff_walking", {}, "1 players"),
    ],
)
def test_what_cannot_be_searched_is_refused_with_the_reason(name, settings, reason):
    pytest.importorskip("pyspiel")
    made = world(name, **settings)
    assert game_of(made) is None
    for policy in ("search", "alphabeta"):
        with pytest.raises(schema.ConfigError, match=rf"groups\.players\.policy: openspiel/{name} .*{reason}"):
            seat(made, f"openspiel/{name}", settings, {"name": policy})


def seat(made, name, settings, policy):
    """A policy of a world's only group."""
    layer = {"world": {"name": name} | settings, "groups": {"players": {"agents": "player_*", "policy": policy}}}
    config = schema.resolve(layer, "test")
    (group_spec,) = build_group_specs(config, made).values()
    return build_policy(config.groups["players"].policy, group_spec, made)


def test_alphabeta_needs_compiled_rules():
    pytest.importorskip("pyspiel")
    with pytest.raises(schema.ConfigError, match="compiled rules; 'openspiel/tic_tac_toe' has none"):
        seat(world("tic_tac_toe"), "openspiel/tic_tac_toe", {}, {"name": "alphabeta"})


@pytest.mark.slow
def test_search_beats_random_play():
    """From both seats, by random games."""
    pytest.importorskip("pyspiel")
    made = world("tic_tac_toe", 32)
    search, random = open_players(["search:simulations=200", "random"], "best")
    for own, other in (("player_0", "player_1"), ("player_1", "player_0")):
        found = match.evaluate(made, [search.actor(own, made, 0), random.actor(other, made, 0)], 32, 0)
        assert found.returns[own].mean() > 0.6  # random play: 0.3 in the first seat, −0.3 in the second
        assert (found.returns[own] >= 0).mean() > 0.9


ALPHAZERO = """\
world: {name: openspiel/tic_tac_toe}
groups:
  players:
    agents: "player_*"
    policy: {name: search, simulations: 6, network: {kind: mlp, hidden: [8]}}
    learner: {name: alphazero, batch_size: 8, updates_per_step: 0.3, replay: {size: 60, learning_starts: 10}}
train: {num_envs: 4, rollout_steps: 7, total_steps: 168, evaluate_episodes: 4, checkpoint_every: 2, video: false,
        tensorboard: false}
"""


@pytest.mark.slow
@pytest.mark.parametrize("processes", [0, 2])
def test_alphazero_resumes_exactly(tmp_path, monkeypatch, processes, forked):
    """A run that broke off in the middle of games ends like one that did not, also with games in child processes."""
    pytest.importorskip("pyspiel")
    experiment, real = written(tmp_path / "spiel.yaml", ALPHAZERO), loop.Training.advance
    words = [f"world.processes={processes}"]
    whole = train(tmp_path / "whole", *words, experiment=experiment)
    assert sum(record.get("players/updates", 0) for record in whole.metrics()) > 10

    def advance(self):
        if self.iteration == 3:
            raise InterruptedError
        return real(self)

    monkeypatch.setattr(loop.Training, "advance", advance)
    with pytest.raises(InterruptedError):
        train(tmp_path / "run", *words, experiment=experiment)
    monkeypatch.setattr(loop.Training, "advance", real)
    run = Run.open(tmp_path / "run")
    assert coterie.resume(run.path, quiet=True)
    assert_same_end(run, whole)


@pytest.mark.slow
def test_alphazero_learns_scaled_payoffs(tmp_path):
    """Margins in dots and boxes are up to 4, the values of a network up to 1."""
    pytest.importorskip("pyspiel")
    world = "{name: openspiel/dots_and_boxes, options: {utility_margin: true}}"
    experiment = written(tmp_path / "dots.yaml", ALPHAZERO.replace("{name: openspiel/tic_tac_toe}", world))
    run = train(tmp_path / "run", experiment=experiment)
    targets = run.load_checkpoint("last")["learners"]["players"]["replay"]["rows"]["target"]
    assert set(np.abs(targets).tolist()) <= {0, 0.5, 1}
    assert targets.any()
