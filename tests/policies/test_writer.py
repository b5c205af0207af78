"""The policy 'writer': prompts, greedy and drawn answers, abstentions, settings."""

import numpy as np
import pytest

from coterie.core.types import UNLABELLED, View
from coterie.lm.ask.interface import RetriesExhausted
from coterie.lm.ask.loading import LMSettings
from coterie.lm.ask.scripted import Scripted
from coterie.policies.writer import WriterPolicy, WriterSettings
from helpers.small_worlds import generator, group_spec
from helpers.tasks import make, seat

ASKED = []


def echo(prompt, random):
    ASKED.append(prompt)
    return f" R{'' if isinstance(prompt, str) else 'chat'}"


def fail(prompt, random):
    raise RetriesExhausted("the server is away")


ECHO = Scripted(echo, identity="echo")
DICE = Scripted(lambda prompt, random: str(random.integers(10**6)), identity="dice")
SILENT = Scripted(fail, identity="silent")


@pytest.fixture
def world():
    return make("plan_path", 3)


def writer(world, name, **settings):
    return seat(world, "writer", lm=LMSettings(f"test_writer:{name}"), **settings).policy


def view(world, greedy=True, seed=0):
    step = world.observe().agent_types["team"]
    return View(step.observation, step.acting, np.arange(2), generator(seed), greedy)


def test_the_completion_is_the_action_of_those_who_act(world):
    ASKED.clear()
    decision = writer(world, "ECHO").act(view(world))
    assert decision.action.tolist() == [[" R", ""]] * 3
    assert sorted(ASKED) == sorted(set(world.observe().agent_types["team"].observation[:, 0]))


def test_a_template_and_a_conversation(world):
    ASKED.clear()
    policy = writer(world, "ECHO", template="Q: {prompt}!", chat=True, system="Be brief.")
    assert policy.act(view(world)).action[0, 0] == " Rchat"
    assert [message["role"] for message in ASKED[0]] == ["system", "user"]
    assert ASKED[0][1]["content"].startswith("Q: You are the tool.")


def test_greedy_answers_are_memoised_and_drawn_ones_are_not(world):
    greedy, drawn = writer(world, "DICE"), writer(world, "DICE", temperature=1.0)
    first = greedy.act(view(world)).action
    assert greedy.act(view(world, seed=1)).action.tolist() == first.tolist()
    one, same, other = (drawn.act(view(world, False, seed)).action[:, 0].tolist() for seed in (0, 0, 1))
    assert one == same
    assert not set(one) & set(other)
    world = make("plan_path", 3, group_size=3)  # equal prompts get answers of their own
    assert len(set(writer(world, "DICE", temperature=1.0).act(view(world, False)).action[:, 0])) == 3


def test_an_answer_that_does_not_come_is_empty_and_counted(world):
    policy = writer(world, "SILENT")
    decision = policy.act(view(world))
    assert decision.action.tolist() == [["", ""]] * 3
    assert decision.trace[UNLABELLED].tolist() == [[True, False]] * 3
    assert policy.metrics()["abstentions"] == policy.metrics()["lm/unanswered"] == 3


def test_long_answers_are_cut_to_the_space():
    world = make("plan_path", 1, max_answer=1)
    assert writer(world, "ECHO").act(view(world)).action[0, 0] == " "


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"template": "no place"}, "template"),
        ({"template": "{prompt} {other}"}, "template"),
        ({"template": "{prompt"}, "template"),
        ({"system": "Be brief."}, "chat=true"),
        ({"stop": ("",)}, "stop"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        WriterSettings(**settings)


def test_a_world_of_numbers_is_refused():
    with pytest.raises(ValueError, match="'language'"):
        WriterPolicy(WriterSettings(), group_spec())
