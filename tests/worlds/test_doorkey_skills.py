"""Skills, the scripted expert and the texts of the door-key tasks."""

import numpy as np
import pytest

from coterie.core.skills import HasSkills
from coterie.core.world import HasExpert
from coterie.lm import prompts
from coterie.worlds.doorkey import DoorKey, DoorKeySettings
from coterie.worlds.doorkey.layouts import BLUE, CLOSED, EMPTY, GOAL, KEY, LAVA, LOCKED, RED, WALL, make_cell
from coterie.worlds.doorkey.text import DoorKeyText, SkillText
from coterie.worlds.doorkey.world import TASKS

LEFT, RIGHT, FORWARD, PICK_UP, DROP, TOGGLE, DONE = range(7)
DOOR_KIND = 4


def make(num_envs=1, **settings):
    world = DoorKey(DoorKeySettings(**settings), num_envs)
    world.reset(0)
    return world


def room(rows, agent, seen=True, hand=0, **settings):
    """A world of one copy with the given cells inside its walls; `agent` is row, column, direction."""
    world = make(**settings)
    signs = {
        ".": EMPTY,
        "#": WALL,
        "k": make_cell(KEY, RED, 0),
        "b": make_cell(KEY, BLUE, 0),
        "D": make_cell(DOOR_KIND, RED, LOCKED),
        "d": make_cell(DOOR_KIND, RED, CLOSED),
        "/": make_cell(DOOR_KIND, RED, 0),
        "~": LAVA,
        "G": GOAL,
    }
    world.state.cells[0] = WALL
    for row, line in enumerate(rows):
        world.state.cells[0, row, : len(line)] = [signs[sign] for sign in line]
    world.state.agent[0], world.state.hand[0], world.state.seen[0] = agent, hand, seen
    world.load(world.save())
    return world


def action_of(world, skill):
    """The action of a skill in copy 0, or None for a row of zeros."""
    row = world.skill_actions("agent")[0, 0, world.skills("agent").index(skill)]
    return int(row.argmax()) if row.any() else None


def follow(world, skill, limit=50):
    """Play a skill until it ends; return the number of steps."""
    for steps in range(limit):
        action = action_of(world, skill)
        if action is None or world.step({"agent": np.array([[action]])}).ended[0]:
            return steps + (action is not None)
    raise AssertionError(f"{skill} did not end")


# Skills ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS)
def test_skills_are_policies_over_the_actions(task):
    world = make(64, task=task)
    assert isinstance(world, HasSkills)
    assert isinstance(world, HasExpert)
    skills = world.skills("agent")
    for _ in range(20):
        rows = world.skill_actions("agent")
        assert rows.shape == (64, 1, len(skills), 7)
        assert rows.dtype == np.float32
        assert set(np.unique(rows.sum(axis=-1))) <= {0.0, 1.0}
        assert (rows[:, 0, skills.index("wait"), DONE] == 1).all()
        world.step({"agent": world.expert("agent", np.random.default_rng(0))})


def test_turns_count_as_steps():
    """The key beside the agent is two cells away on foot, one turn away in truth."""
    world = room(["#######", "#.....#", "#.k...#", "#######"], (1, 2, 0), task="simple", size=7)
    assert follow(world, "go to key") == 1
    assert action_of(world, "pick up") == PICK_UP


def test_lava_is_never_walked():
    world = room(["######", "#.~k.#", "#....#", "######"], (1, 1, 0), task="lava", size=6)
    assert action_of(world, "go to key") == RIGHT
    assert follow(world, "go to key") == 6  # around it: right, forward, left, forward, forward, left
    assert world.state.agent[0].tolist() == [2, 3, 3]


def test_a_way_through_lava_alone_is_none():
    world = room(["######", "#.~k.#", "######"], (1, 1, 0), task="lava", size=6)
    assert action_of(world, "go to key") is None
    assert action_of(world, "explore") is None


def test_what_has_not_been_seen_is_not_gone_to():
    rows = ["##########", *["#........#"] * 6, "#.......k#", "#........#", "####D#####"]
    world = room(rows, (1, 1, 0), seen=False, task="simple")
    assert action_of(world, "go to key") is None
    assert action_of(world, "go to door") is None
    assert action_of(world, "explore") is not None
    while action_of(world, "go to key") is None:
        world.step({"agent": np.array([[action_of(world, "explore")]])})
    assert world.state.time[0] < 40


def test_pick_up_drop_and_open_begin_where_they_can():
    world = room(["######", "#.k..#", "#....#", "##D###"], (1, 1, 0), task="simple", size=6)
    assert [action_of(world, skill) for skill in ("pick up", "drop", "open")] == [PICK_UP, None, None]
    assert follow(world, "pick up") == 1
    assert action_of(world, "pick up") is None
    assert action_of(world, "drop") == DROP
    follow(world, "go to door")
    assert action_of(world, "open") == TOGGLE
    # Not in front of the door: it would bar the way.
    world.state.agent[0] = 1, 2, 1
    assert action_of(world, "drop") in (LEFT, RIGHT)
    timestep = world.step({"agent": np.array([[DONE]])})
    assert not timestep.ended[0]


def test_keys_are_distinguished_by_the_door():
    rows = ["######", "#b..k#", "#....#", "##D###"]
    world = room(rows, (2, 1, 0), task="colored", size=6)
    assert follow(world, "go to matching key") > 0
    assert world.state.agent[0, 1] > 2
    world = room(rows, (2, 1, 0), task="colored", size=6)
    assert action_of(world, "go to any key") == LEFT
    world.state.seen[0, 3, 2] = False
    assert action_of(world, "go to matching key") is None  # no door is known
    assert action_of(world, "go to any key") == LEFT


def test_the_goal_is_entered_and_ends_the_episode():
    world = room(["#####", "#..G#", "#####"], (1, 1, 0), task="doorkey", size=5)
    assert follow(world, "go to goal") == 2


@pytest.mark.parametrize("task", TASKS)
def test_the_expert_succeeds(task):
    world = make(200, task=task)
    success, ended = np.zeros(200, bool), np.zeros(200, bool)
    for _ in range(world.rules.max_steps):
        timestep = world.step({"agent": world.expert("agent", np.random.default_rng(0))})
        success |= timestep.success & ~ended
        ended |= timestep.ended
        if ended.all():
            break
    assert success.all()


def test_the_expert_takes_a_key_out_of_the_way():
    rows = ["#####", "#/kG#", "#####"]
    world = room(rows, (1, 1, 0), task="doorkey", size=5)
    for action in (PICK_UP, FORWARD, FORWARD):
        chosen = world.expert("agent", np.random.default_rng(0))
        assert chosen[0, 0] == action
        world.step({"agent": chosen})


# Texts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "number"), [("simple", 6), ("lava", 6), ("two_door", 6), ("colored", 10), ("doorkey", 10)]
)
def test_texts_of_skills_are_few_and_their_answers_solve_the_task(task, number):
    world = make(100, task=task)
    codec = SkillText(world, "agent")
    answers = codec.answers()
    assert codec.choices == world.skills("agent")
    assert len(answers) == number
    timestep, random, success = world.reset(1), np.random.default_rng(0), np.zeros(100, bool)
    for _ in range(150):
        rows = timestep.agent_types["agent"].observation[:, 0]
        chosen = [codec.choices.index(answers[text]) for text in codec.describe(rows)]
        skill = world.skill_actions("agent")[np.arange(100), 0, chosen]
        stray = random.random(100) < 0.1
        actions = np.where(stray, random.integers(0, 7, 100), skill.argmax(axis=1))
        timestep = world.step({"agent": actions[:, None]})
        success |= timestep.success
    assert success.mean() > 0.9


@pytest.mark.parametrize("task", TASKS)
def test_examples_of_skills_are_texts_with_their_answers(task):
    codec = SkillText(make(task=task), "agent")
    pairs = prompts.read_examples("auto", codec.prompt, codec.choices)
    assert pairs
    assert dict(pairs).items() <= codec.answers().items()
    assert set(codec.answers().values()) == {answer for _, answer in pairs}


@pytest.mark.parametrize("observe", ["view", "map", "both"])
def test_positions_in_words(observe):
    rows = ["########", "#......#", "#..k...#", "#......#", "#......#", "####D###"]
    world = room(rows, (4, 3, 3), task="simple", size=8, observe=observe, seen=observe != "view")
    text = DoorKeyText(world, "agent").describe(world.load(world.save()).agent_types["agent"].observation[:, 0])
    assert text[0].startswith("You carry nothing. The key is 2 steps forward.")
    assert ("The door is locked, 1 step back and 1 step right." in text[0]) == (observe != "view")
    assert text[0].endswith("The way forward is free.")


def test_a_wrong_key_in_words():
    rows = ["########", "#......#", "#..b...#", "#......#", "####D###"]
    world = room(rows, (3, 3, 3), task="colored", size=8)
    observation = world.load(world.save()).agent_types["agent"].observation[:, 0]
    assert "In front of you is the wrong key." in DoorKeyText(world, "agent").describe(observation)[0]
    assert SkillText(world, "agent").describe(observation) == [
        "You hold nothing. The key in sight is wrong, so you can only explore."
    ]


@pytest.mark.lm
@pytest.mark.parametrize("task", ["doorkey", "colored"])  # the texts of `doorkey` include those of `simple`
def test_the_embedded_model_knows_every_skill(task):
    from coterie.lm.ask.choice import ChoiceScorer
    from coterie.lm.ask.loading import LMSettings

    codec = SkillText(make(task=task), "agent")
    template = prompts.read("auto", "auto", codec.prompt, codec.choices)
    scorer = ChoiceScorer(LMSettings("embedded"), template, codec.choices, codec.samples(), "batch")
    answers = codec.answers()
    chosen = scorer.log_probs(list(answers)).argmax(axis=1)
    assert [codec.choices[i] for i in chosen] == list(answers.values())
