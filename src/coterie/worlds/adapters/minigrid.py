"""MiniGrid environments by name, and their text codec.

The world shows MiniGrid's symbols scaled to [0, 1] and the agent's direction; missions are left out. The text
describes what the agent carries, what is in front of it, and where visible objects are. Directions use the words of
the actions, because a small model copies better than it infers. Walls are described only in front of the agent; the
agent's compass direction is left out, because no view needs it. Door-key worlds also have grades: the progress with
key, door and goal.
"""

from __future__ import annotations

import fnmatch
import functools
from dataclasses import dataclass, replace

import numpy as np

from coterie.core.text import TextCodec
from coterie.core.types import Array, Dict, Discrete, Tree
from coterie.core.world import World
from coterie.worlds.adapters.external import (
    ExternalSettings,
    ExternalWorld,
    WorldWrapper,
    import_external,
    latest_version,
)
from coterie.worlds.adapters.gymnasium import INSTALL, ExternalGymnasiumEnv, make_registered, unknown_env

SYMBOLS = (10, 5, 3)  # the highest number of an object, a colour and a state
ACTIONS = ("left", "right", "forward", "pick up", "drop", "open")  # in MiniGrid's order; `done` does nothing
DONE = 6
NAMES = ("", "", "wall", "", "door", "key", "ball", "box", "goal", "lava", "")  # by object number; '' is not described
COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
DOOR_STATES = ("open", "closed", "locked")
WALL, DOOR, GOAL, LAVA = 2, 4, 8, 9
WITHOUT_COLOUR = (WALL, GOAL, LAVA)  # objects whose colour carries no information
NAVIGATION_ONLY = ("*Empty*", "*Crossing*", "*LavaGap*", "*FourRooms*", "*DistShift*", "*Dynamic-Obstacles*")
DROP_NEEDED = ("*Put*", "*UnlockPickup*", "*Obstructed*", "*KeyCorridor*")
GRADES = ("none", "key", "door", "goal")  # progress, from worst to best


@dataclass(frozen=True)
class MinigridSettings(ExternalSettings):
    """A MiniGrid environment: `MiniGrid-DoorKey-5x5-v0`, or `DoorKey-5x5` for short."""


class MinigridWorld(WorldWrapper):
    """N copies of a MiniGrid environment: the view as symbols in [0, 1], and the direction."""

    def __init__(self, settings: MinigridSettings, num_envs: int) -> None:
        make_env = functools.partial(make_minigrid, settings)
        super().__init__(ExternalWorld(f"minigrid/{settings.id}", settings, make_env, num_envs))

    def text_codec(self, agent_type: str) -> TextCodec:
        """Describes what the agent sees and carries."""
        return MinigridText(self, agent_type)


def make_minigrid(settings: MinigridSettings) -> ExternalGymnasiumEnv:
    """Build one MiniGrid environment."""
    gymnasium = import_external("gymnasium", INSTALL)
    import_external("minigrid", "minigrid")
    known = [name for name in gymnasium.registry if name.startswith(("MiniGrid-", "BabyAI-"))]
    matches = (latest_version(prefix + settings.id, known) for prefix in ("", "MiniGrid-", "BabyAI-"))
    name = next((match for match in matches if match), None)
    if name is None:
        raise unknown_env("minigrid", settings.id, known)
    env, limit = make_registered(gymnasium, name, settings)
    world_name, scales = f"minigrid/{settings.id}", {"image": SYMBOLS}
    return ExternalGymnasiumEnv(env, limit, settings, world_name, scales=scales, success=True, ignored_text="mission")


# Text ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GridObject:
    """A visible or carried object."""

    name: str  # as in NAMES
    colour: str = ""  # '' where it carries no information
    state: str = ""  # of a door
    forward: int = 0  # steps
    right: int = 0  # steps; negative: left

    @property
    def label(self) -> str:
        """Colour and name."""
        return " ".join(word for word in (self.colour, self.name) if word)


@dataclass(frozen=True)
class AgentView:
    """The objects of one observation."""

    carried: GridObject | None
    front: GridObject | None  # in the next cell, walls included
    objects: tuple[GridObject, ...] = ()  # elsewhere: the nearest of each label and state, without walls


class MinigridText:
    """Text codec of MiniGrid worlds."""

    idle = DONE
    grade_prompt = "doorkey-grades"

    def __init__(self, world: World, agent_type: str) -> None:
        spaces = world.agent_types[agent_type]
        entries = spaces.observation.entries if isinstance(spaces.observation, Dict) else {}
        if "image" not in entries or not isinstance(spaces.action, Discrete):
            raise ValueError(
                "codec: MiniGrid's text needs an observation 'image' and discrete actions; "
                "set codec=package.module:Name"
            )
        inner = world.inner if isinstance(world, WorldWrapper) else world
        name = inner.name if isinstance(inner, ExternalWorld) else ""
        self.door_key = "DoorKey" in name
        self.grades = GRADES if self.door_key else ()
        self.prompt = "doorkey" if self.door_key else "minigrid"
        self.has_objects = not _matches(name, NAVIGATION_ONLY)  # objects to pick up or open
        left_out = () if _matches(name, DROP_NEEDED) else ("drop",) if self.has_objects else ("pick up", "drop", "open")
        words = [word for word in ACTIONS[: spaces.action.n] if word not in left_out]
        self.choices = tuple(words)
        self._numbers = np.array([ACTIONS.index(word) for word in words])
        if spaces.action.n <= DONE:
            self.idle = None  # type: ignore[assignment]  # every action of this world has an effect

    def describe(self, observation: Tree) -> list[str]:
        return [describe_view(view, self.has_objects) for view in self._views(observation)]

    def _views(self, observation: Tree) -> list[AgentView]:
        assert isinstance(observation, dict)
        images = np.rint(observation["image"] * np.array(SYMBOLS).reshape(1, 3, 1, 1)).astype(int)
        return [parse_view(image, colours=not self.door_key) for image in images]

    def action_effects(self, observation: Tree) -> list[list[str]]:
        return [[action_effect(view, word) for word in self.choices] for view in self._views(observation)]

    def actions(self, chosen: Array) -> Array:
        return self._numbers[chosen]

    def samples(self) -> list[str]:
        """Descriptions of views in which each choice is right, equally many for every choice."""
        examples = OBJECT_EXAMPLES if self.has_objects else NAVIGATION_EXAMPLES
        views = [view for word in self.choices for view in examples[word]]
        return [describe_view(view if self.door_key else _coloured(view), self.has_objects) for view in views]

    def appraise(self, observation: Tree) -> list[str]:
        """The visible and carried objects without positions, which is all that the grades depend on."""
        return [summarize(view) for view in self._views(observation)]

    def appraisals(self) -> list[str]:
        """Summaries of example views, equally many for every grade."""
        return [summarize(view) for views in GRADE_EXAMPLES for view in views]

    def grade(self, observation: Tree) -> Array:
        """The true grade: the goal if visible, else an open door, else a carried key, else none."""
        return np.array([_grade(view) for view in self._views(observation)], np.int64)


def _grade(view: AgentView) -> int:
    visible = _visible(view)
    if any(found.name == "goal" for found in visible):
        return GRADES.index("goal")
    if any(found.state == "open" for found in visible):
        return GRADES.index("door")
    return GRADES.index("key" if view.carried is not None and view.carried.name == "key" else "none")


def _visible(view: AgentView) -> list[GridObject]:
    return [*view.objects, *([view.front] if view.front else [])]


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


# Parsing ------------------------------------------------------------------------------------------------


def parse_view(image: Array, colours: bool = True) -> AgentView:
    """The objects of an image `[3, W, H]` of symbols; the agent is in the middle of the last row and faces up."""
    numbers = image[0]
    middle, last = numbers.shape[0] // 2, numbers.shape[1] - 1
    agent, front = (middle, last), (middle, last - 1)
    nearest: dict[str, GridObject] = {}
    for x, y in np.argwhere((numbers > WALL) & (numbers != LAVA + 1)).tolist():
        if NAMES[numbers[x, y]] and (x, y) not in (agent, front):
            found = _object_at(image, (x, y), agent, colours)
            assert found is not None
            key = f"{found.label} {found.state}"
            if key not in nearest or _distance(found) < _distance(nearest[key]):
                nearest[key] = found
    objects = tuple(sorted(nearest.values(), key=lambda found: (NAMES.index(found.name), _distance(found))))
    carried = _object_at(image, agent, agent, colours)
    return AgentView(carried, _object_at(image, front, agent, colours), objects)


def _object_at(image: Array, cell: tuple[int, int], agent: tuple[int, int], colours: bool) -> GridObject | None:
    number, colour, state = (int(value) for value in image[:, *cell])
    if not NAMES[number]:
        return None
    colour_name = COLOURS[colour] if colours and number not in WITHOUT_COLOUR else ""
    door_state = DOOR_STATES[state] if number == DOOR else ""
    return GridObject(NAMES[number], colour_name, door_state, agent[1] - cell[1], cell[0] - agent[0])


def _distance(found: GridObject) -> tuple[int, int, int]:
    return (found.forward + abs(found.right), found.forward, found.right)


# Describing ---------------------------------------------------------------------------------------------


def describe_view(view: AgentView, has_objects: bool = True) -> str:
    """Sentences on the carried object, the visible objects, and the cell in front of the agent."""
    sentences = [f"You carry {_carried(view)}."] if has_objects else []
    sentences += [_position(found) for found in view.objects]
    if view.front is None:
        return " ".join([*sentences, "The way forward is free."])
    name = {"wall": "a wall", "lava": "lava"}.get(view.front.name, f"the {view.front.label}")
    state = f", {view.front.state}" if view.front.state else ""
    return " ".join([*sentences, f"In front of you is {name}{state}."])


def _carried(view: AgentView) -> str:
    return f"the {view.carried.label}" if view.carried else "nothing"


def _position(found: GridObject) -> str:
    ahead = (abs(found.forward), "forward" if found.forward > 0 else "back")
    parts = [ahead, (abs(found.right), "right" if found.right > 0 else "left")]
    steps = " and ".join(f"{count} step{'s' * (count > 1)} {word}" for count, word in parts if count)
    subject = "Lava" if found.name == "lava" else f"The {found.label}"
    return f"{subject} is {found.state + ', ' if found.state else ''}{steps or 'where you are'}."


def summarize(view: AgentView) -> str:
    """The visible objects, the goal last, and what is carried; from an open door on, carrying no longer matters."""
    names = {}
    for found in _visible(view):
        if found.name not in ("wall", "lava"):
            article = "an" if found.state == "open" else "a"
            names[f"{article} {found.state} {found.label}" if found.state else f"the {found.label}"] = found.name
    order = sorted(names, key=lambda words: (names[words] == "goal", names[words] == "door", words))
    text = f"You see {' and '.join(order) or 'a wall'}."
    return text if _grade(view) >= GRADES.index("door") else f"{text} You carry {_carried(view)}."


def action_effect(view: AgentView, action: str) -> str:
    """The effect of an action, as far as the view shows it."""
    front, carried = view.front, view.carried
    match action:
        case "left" | "right":
            return f"turn {action}"
        case "forward":
            return _effect_of_forward(front)
        case "pick up" if front is not None and front.name in ("key", "ball", "box") and carried is None:
            return f"pick up the {front.label}"
        case "drop" if front is None and carried is not None:
            return f"drop the {carried.label}"
        case "open" if front is not None and front.name in ("door", "box"):
            has_key = carried is not None and carried.name == "key" and carried.colour == front.colour
            if front.state == "locked" and not has_key:
                return "do nothing"
            return f"{'close' if front.state == 'open' else 'open'} the {front.label}"
    return "do nothing"


def _effect_of_forward(front: GridObject | None) -> str:
    if front is None:
        return "go forward on free floor"
    if front.name == "lava":
        return "go forward into lava"
    if front.name == "goal":
        return "go forward to the goal"
    if front.state == "open":
        return f"go forward through the {front.label}"
    return "bump into a wall" if front.name == "wall" else f"bump into the {front.label}"


# Examples for calibration -------------------------------------------------------------------------------

KEY, WALL_OBJECT, LAVA_OBJECT = GridObject("key"), GridObject("wall"), GridObject("lava")


def _door(state: str, forward: int = 1, right: int = 0) -> GridObject:
    return GridObject("door", "", state, forward, right)


def _at(name: str, forward: int, right: int = 0) -> GridObject:
    return GridObject(name, "", "", forward, right)


def _coloured(view: AgentView) -> AgentView:
    """The same view with red keys and doors, for worlds whose texts name colours."""

    def colour(found: GridObject) -> GridObject:
        return replace(found, colour="red") if found.name in ("key", "door") else found

    carried, front = (colour(found) if found else None for found in (view.carried, view.front))
    return AgentView(carried, front, tuple(map(colour, view.objects)))


OBJECT_EXAMPLES: dict[str, tuple[AgentView, ...]] = {
    "left": (
        AgentView(None, WALL_OBJECT, (_at("key", 0, -2),)),
        AgentView(KEY, WALL_OBJECT, (_door("locked", 0, -1),)),
        AgentView(KEY, WALL_OBJECT, (_at("goal", 0, -2),)),
    ),
    "right": (
        AgentView(None, WALL_OBJECT, (_at("key", 0, 2),)),
        AgentView(KEY, WALL_OBJECT, (_door("locked", 0, 1),)),
        AgentView(KEY, WALL_OBJECT, (_at("goal", 0, 2),)),
    ),
    "forward": (
        AgentView(None, None, (_at("key", 2),)),
        AgentView(KEY, None, (_at("goal", 2),)),
        AgentView(KEY, _door("open")),
    ),
    "pick up": (
        AgentView(None, KEY),
        AgentView(None, KEY, (_door("locked", 1, 1),)),
        AgentView(None, KEY, (_door("locked", 2, -1),)),
    ),
    "drop": (
        AgentView(GridObject("ball", "blue"), None, (GridObject("box", "blue", "", 1, 1),)),
        AgentView(GridObject("ball", "red"), None, (GridObject("box", "red", "", 1, -1),)),
        AgentView(GridObject("box", "grey"), None, (GridObject("ball", "grey", "", 1, 1),)),
    ),
    "open": (
        AgentView(KEY, _door("locked")),
        AgentView(KEY, _door("closed")),
        AgentView(KEY, _door("locked"), (_at("goal", 2),)),
    ),
}
NAVIGATION_EXAMPLES: dict[str, tuple[AgentView, ...]] = {
    "left": (
        AgentView(None, WALL_OBJECT, (_at("goal", 0, -2),)),
        AgentView(None, LAVA_OBJECT, (_at("goal", 2, -1),)),
        AgentView(None, WALL_OBJECT, (_at("goal", 1, -2),)),
    ),
    "right": (
        AgentView(None, WALL_OBJECT, (_at("goal", 0, 2),)),
        AgentView(None, LAVA_OBJECT, (_at("goal", 2, 1),)),
        AgentView(None, WALL_OBJECT, (_at("goal", 1, 2),)),
    ),
    "forward": (
        AgentView(None, None, (_at("goal", 2),)),
        AgentView(None, None, (_at("lava", 1, 1),)),
        AgentView(None, _at("goal", 1)),
    ),
}
GRADE_EXAMPLES: tuple[tuple[AgentView, ...], ...] = (  # by grade
    (
        AgentView(None, KEY),
        AgentView(None, KEY, (_door("locked", 1, 1),)),
        AgentView(None, _door("locked")),
        AgentView(None, None),
    ),
    (
        AgentView(KEY, _door("locked")),
        AgentView(KEY, _door("closed")),
        AgentView(KEY, WALL_OBJECT),
        AgentView(KEY, WALL_OBJECT),
    ),
    (AgentView(KEY, _door("open")),) * 4,
    (
        AgentView(KEY, _at("goal", 1)),
        AgentView(KEY, _door("open"), (_at("goal", 2, 1),)),
        AgentView(KEY, _door("closed"), (_at("goal", 0, 2),)),
        AgentView(KEY, _at("goal", 1)),
    ),
)
