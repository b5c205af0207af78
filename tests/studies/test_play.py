"""A person takes one seat: who sits where, what an episode ends with, and what is refused."""

import json

import pytest

from coterie.config import schema
from coterie.core.types import CoterieError
from coterie.policies import person
from coterie.policies.person import PersonPolicy
from coterie.studies import play
from helpers.run import train

RACE = ["gridworld-race", "world.grid_size=4", "world.max_steps=4"]


@pytest.fixture
def answers(monkeypatch):
    """Answers that the person gives, in order; what is said is kept."""
    given, said = [], []

    class Scripted(person.Terminal):
        is_live = False

        def demand_input(self):
            """A list is an input."""

        def say(self, text):
            said.append(text)

        def read_line(self):
            return given.pop(0) if given else None

    monkeypatch.setattr(person, "Terminal", Scripted)
    return given, said


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("play") / "run", "train.total_steps=64")


def seated(name, *words, against=None, seat=None):
    return play.take_seat(*play.open_table(name, words, against, "best"), seat, "auto")


def policies(seating):
    return {actor.group_spec.group: type(actor.policy).__name__ for actor in seating.actors}


def test_the_person_has_one_seat_and_the_player_the_others(run):
    assert policies(seated(*RACE)) == {"agent_0": "PersonPolicy", "agent_1": "ExpertPolicy"}
    assert policies(seated(*RACE, seat="agent_1", against="random")) == {
        "agent_0": "RandomPolicy",
        "agent_1": "PersonPolicy",
    }
    assert policies(seated(str(run.path))) == {"agent_0": "PersonPolicy", "agent_1": "NetworkPolicy"}
    assert policies(seated(str(run.path), against="expert"))["agent_1"] == "ExpertPolicy"
    assert policies(seated("cartpole-ppo")) == {"agent_0": "PersonPolicy"}
    assert seated(str(run.path), "world.max_steps=3").world.settings.max_steps == 3


def test_a_world_is_a_table_by_its_name(answers, coterie_):
    assert policies(seated("gridworld", "world.mode=race")) == {"agent_0": "PersonPolicy", "agent_1": "ExpertPolicy"}
    assert list(policies(seated("tag"))) == ["adversary_0", "adversary_1", "adversary_2", "agent_0"]
    answers[0].extend(["0", "0"])
    code, out, _ = coterie_("play", "gymnasium/CartPole-v1", "world.max_episode_steps=2")
    assert (code, out) == (0, "2 steps: you 2.0\n")


def test_a_person_reads_a_card_game_in_its_own_words(answers, coterie_):
    pytest.importorskip("pyspiel")
    answers[0].extend(["bet", "Bet"])
    code, _, err = coterie_("play", "openspiel/kuhn_poker", "--seed", "1")
    assert (code, err) == (0, "you are player_0; random is player_1\n")
    explained, head, seen, menu, *_ = answers[1]
    assert "its key or its name, then Enter" in explained
    assert (head, menu) == ("\nepisode 1, step 1, player_0", "  0 Pass   1 Bet   q end")
    assert seen in ("0", "1", "2")  # the own card alone


def test_a_game_ends_with_its_last_scene_and_who_has_won(answers, coterie_):
    answers[0].extend(["4", "0", "8"] * 4)
    words = ["tictactoe-alphazero", "--against", "alphabeta:depth=9", "--seat", "player_1"]
    code, out, err = coterie_("play", *words)
    assert code == 0
    assert "you are player_1; alphabeta:depth=9 is player_0" in err
    assert "(X) has won" in out
    assert out.splitlines()[-1].startswith("you lost after ")
    assert out.splitlines()[-1].endswith("you -1.0, player_0 1.0")


def test_episodes_are_counted_and_their_mean_is_printed(answers, coterie_):
    answers[0].extend(["up"] * 8)
    code, out, _ = coterie_("play", *RACE, "--episodes", "2", "--against", "random", "--seed", "3")
    assert code == 0
    assert out.count("steps: you ") == 2
    assert out.splitlines()[-1].startswith("mean of 2 episodes: you ")
    answers[0].extend(["up"] * 8)
    code, out, _ = coterie_("play", *RACE, "--episodes", "2", "--against", "random", "--seed", "3", "--json")
    found = json.loads(out)
    assert (found["seat"], found["others"], len(found["episodes"])) == ("agent_0", "random", 2)
    assert set(found["episodes"][0]["returns"]) == {"agent_0", "agent_1"}


def test_one_step_is_singular(answers, coterie_):
    answers[0].append("forward")
    assert coterie_("play", "doorkey5", "world.max_episode_steps=1")[1].endswith("no success after 1 step: you 0.0\n")


def test_an_agent_alone_needs_nobody_else(answers, coterie_):
    answers[0].extend(["forward"] * 3)
    code, out, err = coterie_("play", "doorkey5", "world.max_episode_steps=3")
    assert (code, err.splitlines()[0]) == (0, "you are agent_0")
    assert out.splitlines()[-1] == "no success after 3 steps: you 0.0"


def test_who_leaves_keeps_what_has_been_played(answers, coterie_):
    answers[0].extend(["up"] * 4 + ["q"])
    code, out, _ = coterie_("play", *RACE, "--episodes", "3", "--against", "random", "--json")
    assert code == 0
    assert len(json.loads(out)["episodes"]) == 1
    answers[0].append("up")
    code, _, err = coterie_("play", *RACE)
    assert code == 1
    assert "the input ended before the episode did" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--seat", "agent_7"], "--seat: there is no 'agent_7' at this table, only agent_0, agent_1"),
        (["--against", "rundom"], "did you mean 'random'"),
        (["--show", "colours"], "player 'person'.show"),
        (["world.max_stps=4"], "world.max_stps"),
    ],
)
def test_what_does_not_fit_is_refused(words, said, coterie_):
    code, _, err = coterie_("play", "gridworld-race", *words)
    assert code in (1, 2)
    assert said in err


def test_a_player_of_another_world_is_refused(run):
    with pytest.raises(CoterieError, match="was trained in another world"):
        seated("gridworld-race", against=str(run.path))
    with pytest.raises(schema.ConfigError, match="no experiment or file 'gridwrld'"):
        seated("gridwrld")


def test_the_person_is_the_policy_person():
    (one, _) = seated(*RACE).actors
    assert isinstance(one.policy, PersonPolicy)
    assert one.policy.show == "words"
