"""BoardWorld: what every game gets from it, shown on the game of the documentation and on games with a defect."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from coterie.core.game import Symmetry, compile_rules
from coterie.core.types import Box, CoterieError
from coterie.studies.match.match import cross_play, open_players
from coterie.testing import check_policy, check_world
from coterie.worlds.boards import connect_four, tictactoe
from coterie.worlds.boards.board import BoardWorld, grid_symmetries
from coterie.worlds.boards.render import board_text, cell_names
from helpers import pages
from helpers.run import train, written
from helpers.small_worlds import spec_in

PAGE = pages.ROOT / "docs/how-to/board-game.md"


@pytest.fixture(scope="module")
def domineering(tmp_path_factory):
    """The module that `how-to/board-game.md` shows."""
    folder = tmp_path_factory.mktemp("game")
    (text,) = [block.text for block in pages.blocks(PAGE) if block.text.startswith("# file: domineering.py")]
    (folder / "domineering_page.py").write_text(text)
    sys.path.insert(0, str(folder))
    try:
        import domineering_page

        yield domineering_page
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("domineering_page")


def make(module, num_envs=2):
    return module.Domineering(module.DomineeringSettings(), num_envs)


def test_the_game_of_the_documentation_is_short_and_conforms(domineering):
    lines = PAGE.read_text().partition("# file: domineering.py\n")[2].partition("```")[0]
    assert len([line for line in lines.splitlines() if line.strip()]) <= 40
    check_world(lambda num_envs: make(domineering, num_envs), steps=60)


@pytest.mark.slow
def test_alphazero_learns_the_game_of_the_documentation(domineering, tmp_path):
    """With fewer steps and a higher learning rate than the page, the network alone beats random moves, both seats."""
    (text,) = [block.text for block in pages.blocks(PAGE) if block.text.startswith("# file: domineering.yaml")]
    experiment = written(tmp_path / "game.yaml", text.replace("domineering:", f"{domineering.__name__}:"))
    fewer = ["train.total_steps=16000", "train.video=false", "groups.players.learner.learning_rate=0.003"]
    run = train(tmp_path / "run", *fewer, experiment=experiment)

    def score(checkpoint):
        """Its mean return over both seats."""
        players = open_players([f"{run.path}:play=network", "random"], checkpoint)
        return cross_play(players, players[0].table.config, 100, 0)[0][1].first.mean()

    assert abs(score("0")) < 0.5
    assert score("last") > 0.6


def test_who_cannot_move_loses(domineering):
    world = make(domineering)
    for action in (0, 2, 8, 6, 1, 10):  # upright by player_0, flat by player_1
        actions = np.zeros((2, 2), int)
        actions[np.arange(2), world.positions()[:, 0]] = action
        timestep = world.step({"player": actions})
    assert not timestep.ended.any()
    assert world.ansi(0).splitlines()[:3] == ["    a  b  c  d", " 1  X  X  O  O", " 2  X  X  O  O"]
    assert world.agent_types["player"].observation == Box((48,), 0.0, 1.0)


def test_an_illegal_move_names_copy_player_action(domineering):
    world = make(domineering)
    with pytest.raises(ValueError, match=r"copy 1 by player_0: action 12 \(a4\) is not legal in this position"):
        world.step({"player": np.array([[0, 0], [12, 0]])})
    with pytest.raises(ValueError, match=r"action 16 is not one of 0 … 15"):
        world.step({"player": np.array([[16, 0], [0, 0]])})
    assert (world.positions() == domineering.GAME.start).all()


def test_words_for_a_game_without_a_codec_of_its_own(domineering):
    from coterie.lm.ask.loading import LMSettings
    from coterie.policies.language import LanguagePolicy, LanguageSettings

    world = make(domineering)
    settings = LanguageSettings(lm=LMSettings("helpers.language:COPIER"))
    check_policy(lambda where: LanguagePolicy(settings, where), spec_in(world), world=world)
    codec = world.text_codec("player")
    assert codec.describe(np.zeros((1, 48), np.float32)) == ["You are X: .... / .... / .... / ....."]
    assert codec.choices == cell_names(4, 4)
    with pytest.raises(ValueError, match="agent_type must be one of"):
        world.text_codec("referee")


def _never_over(position, payoffs):
    return False


class Plain(BoardWorld):
    def __init__(self, settings, num_envs):
        super().__init__(settings, num_envs, settings)


def test_a_game_whose_outcome_is_missing_is_named():
    rules = compile_rules(tictactoe.legal, tictactoe.apply, _never_over, tictactoe.observe)
    world = Plain(replace(tictactoe.GAME, name="endless", rules=rules), 1)
    for cell in range(8):
        world.step({"player": np.full((1, 2), cell)})
    with pytest.raises(
        CoterieError, match=r"game 'endless', copy 0: the game is not over and there is no legal action"
    ):
        world.step({"player": np.full((1, 2), 8)})


def test_the_command_line_names_a_missing_outcome(tmp_path, monkeypatch, coterie_):
    """The rules are the user's: an error in them is printed as one line, without a traceback."""
    (text,) = [block.text for block in pages.blocks(PAGE) if block.text.startswith("# file: domineering.py")]
    head, end, tail = text.partition(
        "    payoffs[position[0]], payoffs[1 - position[0]] = -1.0, 1.0\n    return True\n"
    )
    assert end
    (tmp_path / "never_over.py").write_text(f"{head}    return False\n{tail}")
    monkeypatch.chdir(tmp_path)
    code, _, error = coterie_("check", "world", "never_over:Domineering", "--steps", "20")
    assert code == 1
    assert error.startswith("coterie: game 'domineering', copy ")
    assert "outcome must end it" in error


def test_observations_must_be_planes_and_openings_shorter_than_games():
    flat = replace(tictactoe.GAME, observation=Box((18,), 0.0, 1.0), symmetries=())
    with pytest.raises(ValueError, match=r"planes \[2 or more, rows, columns\], got shape \(18,\)"):
        Plain(flat, 1)
    with pytest.raises(ValueError, match=r"opening_moves must lie in \[0, 8\], got 9"):
        BoardWorld(None, 1, tictactoe.GAME, opening_moves=9)
    with pytest.raises(ValueError, match="num_envs must be at least 1, got 0"):
        Plain(tictactoe.GAME, 0)


def _over_soon(position, payoffs):
    payoffs[0], payoffs[1] = 1.0, -1.0
    return position[1] + position[2] > 15  # after at most five moves: a cell beyond the fourth is taken


def test_an_opening_longer_than_every_random_game_is_refused():
    """It was drawn again for ever."""
    rules = compile_rules(tictactoe.legal, tictactoe.apply, _over_soon, tictactoe.observe)
    short = replace(tictactoe.GAME, name="short", rules=rules)
    with pytest.raises(ValueError, match=r"opening_moves=8: 10,000 random games of 'short' in a row were over by then"):
        BoardWorld(None, 1, short, opening_moves=8)
    world = BoardWorld(None, 4, short, opening_moves=1)
    assert (world.positions()[:, 0] == 1).all()


def test_openings_that_are_rare_are_found():
    world = BoardWorld(None, 2, connect_four.GAME, opening_moves=38)  # most random games are over by then
    stones = [bin(int(black) | int(white)).count("1") for _, black, white in world.positions()[:, :3]]
    assert stones == [38, 38]


def test_symmetries_of_a_grid():
    identity, half_turn, flipped = grid_symmetries(2, 3, planes=2, kept=(0, 2, 4), passes=1)
    assert identity.actions.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert half_turn.actions.tolist() == [5, 4, 3, 2, 1, 0, 6]
    assert flipped.actions.tolist() == [2, 1, 0, 5, 4, 3, 6]
    assert flipped.cells.tolist() == [2, 1, 0, 5, 4, 3, 8, 7, 6, 11, 10, 9]
    assert isinstance(flipped, Symmetry)


def test_text_of_a_board():
    marks = np.array([[0, -1], [1, -1]])
    assert board_text(marks, last=2) == "    a  b\n 1  X  .\n 2 [O] ."
    assert board_text(marks, columns=("1", "2")) == " 1  2\n X  .\n O  ."
