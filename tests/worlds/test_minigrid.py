"""MiniGrid's text codec: descriptions of views, grades, and the actions of the choices."""

import numpy as np
import pytest

from coterie.advice.shaping import PotentialShaping, PotentialShapingSettings
from coterie.core.text import Graded
from coterie.lm import prompts
from coterie.testing import check_policy
from coterie.worlds.adapters.minigrid import (
    GRADES,
    AgentView,
    GridObject,
    MinigridSettings,
    MinigridText,
    MinigridWorld,
    describe_view,
    parse_view,
    summarize,
)
from helpers.language import player
from helpers.lm import embedded_file
from helpers.small_worlds import spec_in

EMPTY, WALL, DOOR, KEY, BALL, GOAL, LAVA = 1, 2, 4, 5, 6, 8, 9
YELLOW = 4


def view(**things):
    """An image of empty cells with objects given as (forward, right, object, colour, state)."""
    cells = np.zeros((3, 7, 7), int)
    cells[0] = EMPTY
    for forward, right, *symbols in things.values():
        cells[:, 3 + right, 6 - forward] = [*symbols, *[0] * (3 - len(symbols))]
    return cells


def codec(name):
    return MinigridText(MinigridWorld(MinigridSettings(name), 1), "agent")


def rows(*views):
    """Observations as the world gives them."""
    image = np.array(views) / np.array([10, 5, 3]).reshape(1, 3, 1, 1)
    return {"direction": np.zeros(len(views), np.int64), "image": image.astype(np.float32)}


@pytest.mark.parametrize(
    ("things", "text"),
    [
        ({}, "You carry nothing. The way forward is free."),
        ({"a": (2, 0, KEY, YELLOW)}, "You carry nothing. The yellow key is 2 steps forward. The way forward is free."),
        (
            {"a": (0, 0, KEY, YELLOW), "b": (1, 0, DOOR, YELLOW, 2)},
            "You carry the yellow key. In front of you is the yellow door, locked.",
        ),
        (
            {"a": (1, -1, DOOR, 0, 0), "b": (0, 2, GOAL, 1), "c": (1, 0, WALL, 5)},
            "You carry nothing. The red door is open, 1 step forward and 1 step left. The goal is 2 steps right. "
            "In front of you is a wall.",
        ),
        (
            {"a": (1, 0, LAVA), "b": (1, 1, LAVA), "c": (3, 0, LAVA)},
            "You carry nothing. Lava is 1 step forward and 1 step right. In front of you is lava.",
        ),
        ({"a": (2, 0, BALL, 2), "b": (1, 1, BALL, 2), "c": (3, 3, BALL, 0)}, None),
    ],
)
def test_descriptions(things, text):
    described = describe_view(parse_view(view(**things)))
    if text is None:  # the nearest of each sort
        text = (
            "You carry nothing. The blue ball is 1 step forward and 1 step right. "
            "The red ball is 3 steps forward and 3 steps right. The way forward is free."
        )
    assert described == text


def test_hidden_objects_are_not_described():
    cells = view(a=(2, 0, KEY, 0))
    cells[:, 3, 4] = 0
    assert describe_view(parse_view(cells)) == "You carry nothing. The way forward is free."


def test_descriptions_follow_the_environment():
    world = MinigridWorld(MinigridSettings("MiniGrid-DoorKey-5x5-v0"), 1)
    words, agent_step = MinigridText(world, "agent"), world.reset(4).agent_types["agent"]
    inner = world.inner._workers[0].batch.envs[0].env.unwrapped
    texts = []
    random = np.random.default_rng(0)
    for _ in range(400):
        texts.append(words.describe({k: a[:, 0] for k, a in agent_step.observation.items()})[0])
        assert ("You carry the key" in texts[-1]) == (inner.carrying is not None)
        agent_step = world.step({"agent": random.choice([0, 1, 2, 2, 3, 5], (1, 1))}).agent_types["agent"]
    assert any("You carry the key." in text for text in texts)
    assert all("yellow" not in text for text in texts)  # one key and one door: colours carry no information


@pytest.mark.parametrize(
    ("name", "choices", "idle"),
    [
        ("DoorKey-5x5", ("left", "right", "forward", "pick up", "open"), 6),
        ("LavaGapS5", ("left", "right", "forward"), 6),
        ("Dynamic-Obstacles-5x5", ("left", "right", "forward"), None),
        ("PutNear-6x6-N2", ("left", "right", "forward", "pick up", "drop", "open"), 6),
    ],
)
def test_choices_are_the_useful_actions(name, choices, idle):
    words = codec(name)
    assert (words.choices, words.idle) == (choices, idle)
    named = dict(zip(choices, words.actions(np.arange(len(choices))).tolist(), strict=True))
    numbers = {"left": 0, "right": 1, "forward": 2, "pick up": 3, "drop": 4, "open": 5}
    assert named == {word: numbers[word] for word in choices}
    assert len(words.samples()) == 3 * len(choices)
    assert ("carry" in words.samples()[0]) == ("pick up" in choices)
    prompts.read("auto", "auto", words.prompt, choices)  # its examples answer with its choices


@pytest.mark.parametrize(
    ("things", "text", "grade"),
    [
        ({"a": (2, 0, KEY), "b": (1, 1, DOOR, 0, 2)}, "You see the key and a locked door. You carry nothing.", "none"),
        ({"a": (0, 0, KEY)}, "You see a wall. You carry the key.", "key"),
        ({"a": (0, 0, KEY), "b": (1, 0, DOOR, 0, 1)}, "You see a closed door. You carry the key.", "key"),
        ({"a": (0, 0, KEY), "b": (1, 0, DOOR, 0, 0)}, "You see an open door.", "door"),
        (
            {"a": (0, 0, KEY), "b": (1, 0, DOOR, 0, 0), "c": (2, 1, GOAL)},
            "You see an open door and the goal.",
            "goal",
        ),
    ],
)
def test_grades(things, text, grade):
    words = codec("DoorKey-5x5")
    assert isinstance(words, Graded)
    seen = rows(view(**things))
    assert words.appraise(seen) == [text]
    assert GRADES[words.grade(seen)[0]] == grade


def test_only_door_key_has_grades():
    assert codec("LavaGapS5").grades == ()
    words = codec("DoorKey-5x5")
    assert len(words.appraisals()) == 4 * len(words.grades)
    prompts.read("auto", "auto", words.grade_prompt, words.grades)


def test_a_language_model_plays():
    world = MinigridWorld(MinigridSettings("DoorKey-5x5"), 2)
    check_policy(lambda where: player(world, calibration="none"), spec_in(world), world=world)


def test_observations_without_an_image_are_refused():
    from coterie.worlds.adapters.gymnasium import GymnasiumSettings, GymnasiumWorld

    world = GymnasiumWorld(GymnasiumSettings("CartPole-v1"), 1)
    with pytest.raises(ValueError, match=r"codec: .*'image'"):
        MinigridText(world, "agent")


def test_samples_name_colours_where_views_do():
    assert "red key" in " ".join(codec("KeyCorridorS3R1").samples())
    assert "red" not in " ".join(codec("DoorKey-5x5").samples())
    assert summarize(AgentView(None, GridObject("ball", "blue"))) == "You see the blue ball. You carry nothing."


@pytest.mark.lm
def test_the_embedded_model_grades_progress():
    """The potential rises from no key to key, open door and goal."""
    embedded_file("folder")
    world = MinigridWorld(MinigridSettings("DoorKey-5x5"), 1)
    shaping = PotentialShaping(PotentialShapingSettings(), spec_in(world), 0.99)
    held, open_door = (0, 0, KEY), (DOOR, 0, 0)
    stages = [
        view(a=(2, 0, KEY)),
        view(a=held),
        view(a=held, b=(1, 0, *open_door)),
        view(a=held, b=(1, 1, *open_door), c=(2, 0, GOAL)),
    ]
    potentials = shaping.potential.of(rows(*stages))
    assert (np.diff(potentials) > 0.05).all()
    assert potentials[0] < -0.8
    assert potentials[-1] > -0.3
