"""A person as a policy: what is shown and asked, how answers are read, and who may be seated next to a person."""

import os
import pty
import re
import select
import sys
import time

import numpy as np
import pytest

from coterie.algorithms.imitation import demonstrations
from coterie.config import schema
from coterie.config.schema import ConfigError
from coterie.core.group import PlayStopped
from coterie.core.types import Box, CoterieError, Dict, Discrete, MultiDiscrete, Text, View
from coterie.policies import person
from coterie.policies.person import PersonPolicy, PersonSettings
from coterie.studies.demonstrate import record
from coterie.studies.demonstrate.record import DemonstrationSpec
from coterie.studies.match import match
from coterie.training import build, table
from coterie.worlds.boards.tictactoe import Tictactoe, TictactoeSettings
from coterie.worlds.doorkey.world import DoorKey, DoorKeySettings
from coterie.worlds.gridworld.world import Gridworld, GridworldSettings
from helpers import run as run_cases
from helpers.processes import run_command
from helpers.run import train
from helpers.small_worlds import group_spec, spec_in

COMMAND = [sys.executable, "-c", "from coterie.cli import main; main()"]
PLAN_PATH = ["plan-path-shared", "world.prompts={}", "world.max_moves=4"]


class Scripted(person.Terminal):
    """Answers from a list; keeps what was said."""

    def __init__(self, answers):
        self.answers, self.said = list(answers), []

    is_live = False

    def demand_input(self):
        """A list is an input."""

    def say(self, text):
        self.said.append(text)

    def read_line(self):
        return self.answers.pop(0) if self.answers else None


def make(where, answers, **settings):
    policy = PersonPolicy(PersonSettings(**settings), where)
    policy.terminal = Scripted(answers)
    return policy


def view_of(world, agent_type, memory=None):
    step = world.reset(3).agent_types[agent_type]
    agents = np.arange(step.acting.shape[1])
    memory = np.zeros((*step.acting.shape, 1), np.float32) if memory is None else memory
    return View(
        step.observation, step.acting, agents, np.random.default_rng(0), mask=step.mask, memory=memory, world=world
    )


def plain_view(observation, acting=((True,),)):
    return View(observation, np.array(acting), np.arange(len(acting[0])), np.random.default_rng(0))


# Choices ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "keys"),
    [
        (("left", "right", "pick up"), "012"),
        (("column 1", "column 2", "column 7"), "127"),
        (tuple(f"action {i}" for i in range(12)), "0123456789ab"),
        (tuple(f"{sign}{row}" for sign in "abcdef" for row in range(7)), None),  # 42 short names are their own keys
        (tuple(f"column {i} of many" for i in range(40)), [str(i) for i in range(40)]),
        (("p", "q"), "01"),  # q ends
    ],
)
def test_every_action_has_a_key(names, keys):
    found = person.keys_of(names)
    assert found == (names if keys is None else tuple(keys))
    assert person.END not in found


def test_keys_names_and_arrows_choose_and_a_wrong_answer_is_asked_again():
    world = DoorKey(DoorKeySettings(task="doorkey", size=5), 1)
    policy = make(spec_in(world), ["2", "Pick Up", "\x1b[D", "7", "", "drop", "5"])
    chosen = [int(policy.act(view_of(world, "agent")).action[0, 0]) for _ in range(4)]
    assert chosen == [2, 3, 0, 6]  # forward, pick up, left, wait
    wrong = [line for line in policy.terminal.said if "is no key here" in line]
    assert len(wrong) == 3
    assert all("0, 1, 2, 3, 4, 5, or q" in line for line in wrong)


def test_moves_that_differ_in_case_alone_are_told_apart():
    names, keys = ("bxc3", "Bxc3", "1", "2"), ("0", "1", "2", "a")
    rows = range(4)
    for word, row in (("bxc3", 0), ("Bxc3", 1), ("BXC3", 0), ("1", 1), ("2", 2), ("A", 3)):  # a key goes before a name
        assert person.find(word, rows, names, keys) == row


def test_only_legal_actions_are_offered_and_an_illegal_one_is_named():
    world = Tictactoe(TictactoeSettings(), 1)
    world.reset(0)
    step = world.step({"player": np.array([[4, 0]])}).agent_types["player"]
    policy = make(spec_in(world), ["4", "centre", "0"])
    view = View(step.observation, step.acting, np.arange(2), np.random.default_rng(0), mask=step.mask, world=world)
    assert policy.act(view).action.tolist() == [[0, 0]]
    said = "\n".join(policy.terminal.said)
    assert "4 centre" not in said
    assert said.count("'centre' is not legal now") == 2
    assert world.ansi(0) in said  # a board is shown as a picture


def test_pictures_have_no_colours_where_the_terminal_has_none(monkeypatch):
    world = Tictactoe(TictactoeSettings(), 1)
    step = world.reset(0).agent_types["player"]
    monkeypatch.setattr(Tictactoe, "ansi", lambda self, copy: "\x1b[38;2;255;255;255m\x1b[48;2;255;255;255m▀\x1b[0m")
    view = View(step.observation, step.acting, np.arange(2), np.random.default_rng(0), mask=step.mask, world=world)
    for colour, shown in (("", "@"), ("1", world.ansi(0))):
        monkeypatch.setenv("FORCE_COLOR", colour)
        policy = make(spec_in(world), ["0"])
        policy.act(view)
        assert shown in policy.terminal.said


def test_each_acting_agent_is_asked_and_episodes_are_numbered():
    world = Gridworld(GridworldSettings(grid_size=4), 1)
    policy = make(spec_in(world), ["up", "down"] * 3)
    first = policy.act(view_of(world, "agent"))
    assert first.action.tolist() == [[0, 1]]
    assert first.memory.tolist() == [[[1], [1]]]
    policy.act(view_of(world, "agent", first.memory))
    policy.act(view_of(world, "agent"))  # a new episode: nothing is remembered
    heads = [line.strip() for line in policy.terminal.said if line.startswith("\nepisode")]
    assert heads == [f"episode {e}, step {s}, agent_{a}" for e, s in ((1, 1), (1, 2), (2, 1)) for a in (0, 1)]


def test_everything_shown_fits_into_80_columns():
    for world, agent_type in (
        (Gridworld(GridworldSettings(), 1), "agent"),
        (Tictactoe(TictactoeSettings(), 1), "player"),
        (DoorKey(DoorKeySettings(task="colored", size=8), 1), "agent"),
    ):
        policy = make(spec_in(world), ["nonsense", "0", "0", "0"])
        policy.act(view_of(world, agent_type))
        assert max(len(line) for text in policy.terminal.said for line in text.splitlines()) <= 80


# Numbers and texts --------------------------------------------------------------------------------------


def test_numbers_are_read_within_their_bounds():
    box, many = Box((2,), np.array([-1.0, 0.0]), 2.0), MultiDiscrete((3, 4))
    for line, space, expected in (
        ("0.5 1", box, [0.5, 1]),
        ("-1,2", box, [-1, 2]),
        ("-1 -1", box, "bounds"),
        ("1", box, "1 numbers"),
        ("a b", box, "list of numbers"),
        ("nan 1", box, "bounds"),
        ("2 3", many, [2, 3]),
        ("3 3", many, "bounds"),
        ("1.5 1", many, "fractions"),
    ):
        action, wrong = person.read_numbers(line, space)
        if isinstance(expected, str):
            assert action is None
            assert expected in wrong
        else:
            assert action.tolist() == expected
            assert action.dtype == ("float32" if space is box else "int64")


def test_continuous_actions_and_plain_observations():
    spaces = Dict({"own": Box((2,), -1.0, 1.0), "far": Box((3, 2), -1.0, 1.0)})
    where = group_spec(Box((1,), -2.0, 2.0), spaces, agents=1)
    policy = make(where, ["3", "1.5"])
    seen = {"own": np.full((1, 1, 2), 0.25, np.float32), "far": np.zeros((1, 1, 3, 2), np.float32)}
    assert policy.act(plain_view(seen)).action.tolist() == [[[1.5]]]
    said = "\n".join(policy.terminal.said)
    assert "own: 0.25 0.25\nfar: 0 0 0 0 0 0" in said
    assert "'3' is out of bounds" in said
    picture = Box((84, 84), 0, 255, "uint8")
    policy = make(group_spec(Discrete(2), picture, agents=1), ["0"])
    with pytest.raises(CoterieError, match="7056 numbers is too long"):
        policy.act(plain_view(np.zeros((1, 1, 84, 84), np.uint8)))


def test_texts_are_typed_and_may_have_several_lines():
    where = group_spec(Text(12), Text(100), agents=1)
    policy = make(where, ["", "much too long an answer", "two \\", "lines"])
    seen = np.array([["What now?"]], object)
    assert policy.act(plain_view(seen)).action.tolist() == [["two \nlines"]]
    said = "\n".join(policy.terminal.said)
    assert "What now?" in said
    assert "An empty line is no answer" in said
    assert "at most 12 are read" in said


@pytest.mark.parametrize(("answers", "by_choice"), [([" Q "], True), (["q"], True), ([], False)])
def test_q_and_the_end_of_input_stop_play(answers, by_choice):
    policy = make(group_spec(Discrete(3), Box((2,), -1.0, 1.0), agents=1), [word.strip() for word in answers])
    with pytest.raises(PlayStopped) as stopped:
        policy.act(plain_view(np.zeros((1, 1, 2), np.float32)))
    assert stopped.value.by_choice is by_choice


# Where a person cannot play -----------------------------------------------------------------------------


def test_settings_and_tables_that_do_not_fit_are_refused():
    where = group_spec(Discrete(3), Box((2,), -1.0, 1.0), agents=1)
    with pytest.raises(ValueError, match="show must be one of auto"):
        PersonSettings(show="smell")
    for show in ("words", "picture"):
        with pytest.raises(ValueError, match="show: this world has no"):
            PersonPolicy(PersonSettings(show=show), where)
    with pytest.raises(CoterieError, match="one environment at a time, not 2"):
        make(where, []).act(plain_view(np.zeros((2, 1, 2)), ((True,), (True,))))
    config = schema.load("gridworld-cooperative", ["groups.team.policy=person", "groups.team.learner=none"])
    with pytest.raises(ConfigError, match=r"groups\.team\.policy: training plays 100 .* a PersonPolicy at most 1;"):
        build.build_groups(config, Gridworld(GridworldSettings(), 1))


# The commands -------------------------------------------------------------------------------------------


def demonstrate(out, lines, *words):
    """`coterie demonstrate --policy person` in a process of its own, with these lines as its input."""
    given = None if lines is None else "".join(f"{line}\n" for line in lines)
    return run_command("demonstrate", *words, "--policy", "person", "--out", out, given=given)


def played_by_expert(out, experiment, overrides, episodes, monkeypatch):
    """The expert's episodes from the starts that a person gets, one episode at a time."""
    monkeypatch.setattr(record, "BATCH", 1)
    return record.record(DemonstrationSpec(experiment, "expert", episodes), out, overrides)[0]


@pytest.mark.slow
def test_a_person_demonstrates_doorkey_through_a_pipe(tmp_path, monkeypatch):
    shown = played_by_expert(tmp_path / "expert", "doorkey-expert-ppo", [], 2, monkeypatch)
    codec = DoorKey(DoorKeySettings(task="doorkey", size=5), 1).text_codec("agent")
    keys = [str(codec.actions(np.arange(len(codec.choices))).tolist().index(a)) for a in shown.action.tolist()]
    done = demonstrate(tmp_path / "person", [*keys, "0", "q"], "doorkey-expert-ppo", "--episodes", "3")
    assert done.returncode == 0, done.stderr
    assert "stopped: 2 of 3 episodes are recorded, the unfinished one is dropped" in done.stderr
    assert "2 episodes by person" in done.stdout
    found = demonstrations.load(tmp_path / "person")
    assert found.policy == "person"
    assert [episode.success for episode in found.episodes] == [True, True]
    np.testing.assert_array_equal(found.action, shown.action)
    np.testing.assert_array_equal(found.observation, shown.observation)
    assert found.labelled.all()
    assert (tmp_path / "person" / "agent.json").is_file()
    # the same command goes on with the third episode, from the start where it was left
    again = played_by_expert(tmp_path / "expert", "doorkey-expert-ppo", [], 3, monkeypatch)
    rest = again.select([2]).action.tolist()
    keys = [str(codec.actions(np.arange(len(codec.choices))).tolist().index(a)) for a in rest]
    done = demonstrate(tmp_path / "person", keys, "doorkey-expert-ppo", "--episodes", "3")
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(demonstrations.load(tmp_path / "person").action, again.action)


@pytest.mark.slow
def test_a_person_demonstrates_a_board_game_through_a_pipe(tmp_path):
    moves = ["0", "0", "3", "top middle", "4", "2"]  # the second one is taken
    done = demonstrate(tmp_path / "person", moves, "tictactoe-alphazero", "--episodes", "1", "--json")
    assert done.returncode == 0, done.stderr
    assert "'top left' is not legal now; choose one of 1, 2, 3, 4, 5, 6, 7, 8" in done.stderr
    assert done.stdout.count("\n") == 1  # what is shown is no part of the JSON
    found = demonstrations.load(tmp_path / "person")
    assert found.action.tolist() == [0, 1, 2, 3, 4]
    assert found.episodes[0].returns["players"] == (1.0, -1.0)


@pytest.mark.slow
def test_a_person_writes_in_a_text_task_through_a_pipe(tmp_path, monkeypatch):
    shown = played_by_expert(tmp_path / "expert", PLAN_PATH[0], PLAN_PATH[1:], 1, monkeypatch)
    order = np.lexsort((shown.agent, shown.step))
    lines = [shown.action[row] for row in order]
    done = demonstrate(tmp_path / "person", lines, *PLAN_PATH, "--episodes", "1")
    assert done.returncode == 0, done.stderr
    found = demonstrations.load(tmp_path / "person")
    assert found.episodes[0].success
    assert found.action.tolist() == shown.action.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (None, "policy 'person' needs somebody who answers"),
        (["0"], "the input ended before the episode did; nothing is recorded"),
        (["q"], "the person ended play; nothing is recorded"),
    ],
)
def test_without_answers_the_command_says_why_it_ends(tmp_path, lines, said):
    done = demonstrate(tmp_path / "person", lines, "tictactoe-alphazero")
    assert done.returncode == 1
    assert said in done.stderr.splitlines()[-1]
    assert not list((tmp_path / "person").glob("*.npz"))


@pytest.mark.slow
def test_at_a_terminal_one_key_is_an_answer(tmp_path):
    pid, device = pty.fork()
    if pid == 0:
        os.environ.update(run_cases.environment())
        words = ["demonstrate", "doorkey-expert-ppo", "--policy", "person", "--out", str(tmp_path / "person")]
        os.execv(COMMAND[0], [*COMMAND, *words])
    seen = b""
    for key in (b"1", b"\x1b[D", b"\x1b[A", b"x", b"q"):
        deadline = time.monotonic() + 60
        while not seen.endswith(b"> ") and time.monotonic() < deadline:
            if select.select([device], [], [], 1)[0]:
                seen += os.read(device, 4096)
        assert seen.endswith(b"> "), seen
        seen += b"."
        os.write(device, key)
    _, status = os.waitpid(pid, 0)
    os.close(device)
    text = seen.decode().replace("\r", "")
    assert os.waitstatus_to_exitcode(status) == 1  # no episode was finished
    assert re.findall(r"^  (\w+)$", text, re.MULTILINE) == ["right", "left", "forward"]
    assert "press its key or an arrow key" in text
    assert "'x' is no key here" in text


@pytest.mark.slow
def test_a_person_is_evaluated_and_meets_others(tmp_path, monkeypatch):
    duel = tmp_path / "duel.yaml"
    duel.write_text(run_cases.DUEL)
    trained = train(tmp_path / "run", experiment=duel)
    asked = []

    class Lowest(Scripted):
        def __init__(self):
            super().__init__([])

        def read_line(self):
            menu = self.said[-1] if "not legal" not in self.said[-1] else self.said[-2]
            asked.append(menu)
            return menu.split()[0]

    monkeypatch.setattr(person, "Terminal", Lowest)
    result = table.load(trained.path, policy="person").evaluate(episodes=3)
    assert len(result.length) == 3  # one after the other
    games = len(asked)
    assert games >= 3 * 5
    players = match.open_players([str(trained.path), "person"], "best")
    matrix = match.cross_play(players, match.choose_table(players, None), 2, 0)
    assert [[len(pairing.length) for pairing in row] for row in matrix] == [[4, 4], [4, 4]]
    assert len(asked) > games
