"""Reports show what search players see in a few positions."""

import base64
import io
import re
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from coterie.policies.search.policy import make_search
from coterie.policies.search.search import RootNoiseSettings
from coterie.studies.report import report, search_section
from coterie.studies.report.search_section import Move, Searched, report_section, root_moves, searched_game, spread
from coterie.training import build, table
from helpers.run import ODD, train, written

GAME = """\
world: {name: WORLD}
groups:
  players:
    agents: "player_*"
    policy: {name: search, simulations: 12, network: {kind: mlp, hidden: [8]}}
    learner: {name: alphazero, batch_size: 8, replay: {size: 200, learning_starts: 10}}
train: {num_envs: 4, rollout_steps: 10, total_steps: 80, evaluate_episodes: 2, video: false, tensorboard: false}
"""


def run_of(path, world, *words):
    path.mkdir()
    return train(path / "run", *words, experiment=written(path / "game.yaml", GAME.replace("WORLD", world)))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A moment of AlphaZero on tic-tac-toe."""
    return run_of(tmp_path_factory.mktemp("section") / "one", "tictactoe")


@pytest.fixture(scope="module")
def played(run):
    """The run's search player, and the positions of its game."""
    loaded = table.load(run.path)
    policy = loaded.groups[0].policy
    return policy, searched_game(policy, build.build_world(loaded.config.world, 1))


def test_moves_are_those_of_the_search(played):
    """Visits, values and priors of the first position, from a search by hand."""
    policy, found = played
    game, names = policy.game, policy.group_spec.world.text_codec("player").choices
    search, start = make_search(policy.settings, game, policy.network), game.start[None]
    roots = search.roots(game.legal(start), np.array([12]), None, RootNoiseSettings())
    trees = search.trees(1, 12)
    result = search.run(trees, roots, start, np.arange(1), np.random.default_rng(0))
    first = found[0]
    assert (first.number, first.player, len(first.moves)) == (0, "player_0", 9)
    assert first.value == pytest.approx(float(result.value[0]))
    assert [move.visits for move in first.moves] == sorted(result.visits[0], reverse=True)
    assert sum(move.visits for move in first.moves) == 12
    assert sum(move.prior for move in first.moves) == pytest.approx(1, abs=1e-5)
    best = int(result.action[0])
    assert first.moves[0].name == names[best]
    assert first.moves[0].value == pytest.approx(float(trees.gain[0, 0, best] / trees.count[0, 0, best]))


def test_the_game_is_played_to_its_end_by_both_players(played):
    _, found = played
    assert [one.number for one in found] == sorted({one.number for one in found})
    assert {one.player for one in found} == {"player_0", "player_1"}
    assert len(found) >= 4
    for one, following in pairwise(found):
        assert len(following.moves) == len(one.moves) - (following.number - one.number)  # one cell less each


def test_unvisited_and_solved_moves(played):
    """One visit of two cells: other moves have no value, a winning one is certain."""
    policy, _ = played
    game = policy.game
    position = game.start[None].copy()
    for action in (0, 3, 1, 4):  # the first player wins at the top right
        game.apply(position, np.array([action]))
    search = make_search(policy.settings, game, policy.network)
    roots, trees = search.roots(game.legal(position), np.array([12]), None, RootNoiseSettings()), search.trees(1, 12)
    search.run(trees, roots, position, np.arange(1), np.random.default_rng(0))
    moves = {move.name: move for move in root_moves(trees, [str(action) for action in range(9)])}
    assert set(moves) == {"2", "5", "6", "7", "8"}
    assert (moves["2"].value, moves["2"].solved) == (1.0, True)
    for move in moves.values():
        assert (move.value is None) == (move.visits == 0)


def test_some_positions_are_shown(monkeypatch):
    positions = [Searched(n, "", "", 0.0, False, ()) for n in range(10)]
    assert [one.number for one in spread(positions)] == [0, 3, 6, 9]
    assert [one.number for one in spread(positions[:2])] == [0, 1]
    assert spread([]) == []
    monkeypatch.setattr(search_section, "POSITIONS", 2)
    assert [one.number for one in spread(positions)] == [0, 9]


def test_a_report_shows_boards_and_moves(run, tmp_path):
    page = report.write_report([run], tmp_path / "page.html").read_text()
    section = page[page.index("<h2>Search: players</h2>") :]
    section = section[: section.index("<h2>", 10)]
    pictures = re.findall(r"data:image/png;base64,([^\"]+)\"", section)
    assert len(pictures) == 4
    assert Image.open(io.BytesIO(base64.b64decode(pictures[0]))).size[0] == 220
    assert section.count("<th>visits<th>value<th>network") == 4
    assert "<div class=positions>" in section  # as many in a row as the screen has room for
    assert ".positions { display: grid; grid-template-columns: repeat(auto-fit," in page
    assert "12 simulations" in section
    assert "9 legal moves, 5 shown" in section


def test_a_position_as_html():
    moves = (Move("a1", 3, 1.0, 0.25, True), Move("<b>", 0, None, 0.75, False))
    shown = search_section._html(Searched(4, "player_1", "", 1.0, True, moves))
    assert "Move 5, player_1: value = +1.00" in shown
    assert "<td>a1<td>3<td>= +1.00<td>25%" in shown
    assert "<td>&lt;b&gt;<td>0<td>–<td>75%" in shown
    assert "2 legal moves<" in shown


@pytest.mark.slow
def test_nothing_is_shown_where_nobody_searches(run, tmp_path):
    other = train(tmp_path / "odd", experiment=written(tmp_path / "odd.yaml", ODD))
    assert list(report_section([other])) == []
    alone = run_of(tmp_path / "none", "tictactoe", "groups.players.policy.name=random", "groups.players.learner=null")
    assert list(report_section([alone])) == []


@pytest.mark.slow
def test_a_game_without_pictures_is_shown_as_text(tmp_path):
    pytest.importorskip("pyspiel")
    text = "".join(report_section([run_of(tmp_path / "spiel", "openspiel/tic_tac_toe")]))
    assert text.count("<pre>...\n") >= 1  # OpenSpiel's empty board
    assert text.count("<th>visits") == 4
