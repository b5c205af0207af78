"""MiniGrid in words: what is carried, what lies in front of one, and where things in sight are.

Directions are named by the words of the moves, since a small model copies better than it concludes. Walls are told
only where one bumps into them; the way one faces on the map, which no view needs, and missions are left out. Door-key
worlds are graded besides: how far one is with key, door and goal.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, replace

import numpy as np

from coterie.core.types import Array, Discrete, Tree
from coterie.core.world import World
from coterie.worlds.adapters.external import ExternalWorld, Hosted
from coterie.worlds.adapters.gymnasium import SYMBOLS

ACTIONS = ("left", "right", "forward", "pick up", "drop", "open")  # MiniGrid's, in its order; `done` does nothing
DONE = 6
NAMES = ("", "", "wall", "", "door", "key", "ball", "box", "goal", "lava", "")  # by MiniGrid's numbers; '' is not told
COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
DOORS = ("open", "closed", "locked")
UNSEEN, WALL, DOOR, GOAL, LAVA = 0, 2, 4, 8, 9
PLAIN = (WALL, GOAL, LAVA)  # things whose colour says nothing
WALKS = ("*Empty*", "*Crossing*", "*LavaGap*", "*FourRooms*", "*DistShift*", "*Dynamic-Obstacles*")  # nothing to handle
PUTS = ("*Put*", "*UnlockPickup*", "*Obstructed*", "*KeyCorridor*")  # things must be laid down
GRADES = ("none", "key", "door", "goal")  # how far one is, from worst to best


@dataclass(frozen=True)
class Thing:
    """Something in sight, or carried."""

    name: str  # as in NAMES
    colour: str = ""  # '' where it says nothing
    state: str = ""  # of a door
    forward: int = 0  # steps
    right: int = 0  # steps; below 0: left

    @property
    def called(self) -> str:
        return " ".join(word for word in (self.colour, self.name) if word)


@dataclass(frozen=True)
class Sight:
    """What one view shows."""

    carried: Thing | None
    front: Thing | None  # what stands in the next cell, a wall included
    things: tuple[Thing, ...] = ()  # the nearest of each sort elsewhere, walls left out


class MinigridText:
    """What the agent of a MiniGrid world is told, and what it may answer."""

    idle = DONE
    grade_prompt = "doorkey-grades"

    def __init__(self, world: World, agent_type: str) -> None:
        spaces = world.agent_types[agent_type]
        shown = getattr(spaces.observation, "entries", {})
        if "image" not in shown or not isinstance(spaces.action, Discrete):
            raise ValueError("MiniGrid's words need its own view ('image') and actions; name a codec of your own")
        inner = world.inner if isinstance(world, Hosted) else world
        name = inner.name if isinstance(inner, ExternalWorld) else ""
        self.door_key = "DoorKey" in name
        self.grades = GRADES if self.door_key else ()
        self.prompt = "doorkey" if self.door_key else "minigrid"
        self.handles = not _like(name, WALKS)  # whether there is anything to take or open
        left_out = () if _like(name, PUTS) else ("drop",) if self.handles else ("pick up", "drop", "open")
        words = [word for word in ACTIONS[: spaces.action.n] if word not in left_out]
        self.choices = tuple(words)
        self._numbers = np.array([ACTIONS.index(word) for word in words])
        if spaces.action.n <= DONE:
            self.idle = None  # type: ignore[assignment]  # every action of such a world does something

    def describe(self, observation: Tree) -> list[str]:
        return [tell(sight, self.handles) for sight in self._sights(observation)]

    def _sights(self, observation: Tree) -> list[Sight]:
        assert isinstance(observation, dict)
        views = np.rint(observation["image"] * np.array(SYMBOLS).reshape(1, 3, 1, 1)).astype(int)
        return [look(view, colours=not self.door_key) for view in views]

    def deeds(self, observation: Tree) -> list[list[str]]:
        return [[foretell(sight, word) for word in self.choices] for sight in self._sights(observation)]

    def actions(self, chosen: Array) -> Array:
        return self._numbers[chosen]

    def samples(self) -> list[str]:
        """Moments for each choice in which it is right, as many for one as for another."""
        moments = HANDLING if self.handles else WALKING
        sights = [sight for word in self.choices for sight in moments[word]]
        return [tell(sight if self.door_key else _painted(sight), self.handles) for sight in sights]

    # How far one is -----------------------------------------------------------------------------------

    def appraise(self, observation: Tree) -> list[str]:
        """What is in sight and in hand, wherever it lies: all that the grades speak of."""
        return [sum_up(sight) for sight in self._sights(observation)]

    def appraisals(self) -> list[str]:
        """As many moments of each grade."""
        return [sum_up(sight) for sights in GRADED for sight in sights]

    def grade(self, observation: Tree) -> Array:
        """What a view truly shows: the goal, else an open door, else the key in hand, else none of them."""
        return np.array([_grade(sight) for sight in self._sights(observation)], np.int64)


def _grade(sight: Sight) -> int:
    seen = _seen(sight)
    if any(thing.name == "goal" for thing in seen):
        return GRADES.index("goal")
    if any(thing.state == "open" for thing in seen):
        return GRADES.index("door")
    return GRADES.index("key" if sight.carried is not None and sight.carried.name == "key" else "none")


def _seen(sight: Sight) -> list[Thing]:
    return [*sight.things, *([sight.front] if sight.front else [])]


def _like(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


# Seeing -------------------------------------------------------------------------------------------------


def look(view: Array, colours: bool = True) -> Sight:
    """What a view `[3, W, H]` of symbols shows; its agent stands in the middle of the last row and looks along it."""
    objects = view[0]
    middle, here = objects.shape[0] // 2, objects.shape[1] - 1
    front = _thing(view, middle, here - 1, (middle, here), colours)
    nearest: dict[str, Thing] = {}
    for across, along in np.argwhere((objects > WALL) & (objects != LAVA + 1)).tolist():
        if NAMES[objects[across, along]] and (across, along) not in ((middle, here), (middle, here - 1)):
            thing = _thing(view, across, along, (middle, here), colours)
            assert thing is not None
            sort = f"{thing.called} {thing.state}"
            if sort not in nearest or _distance(thing) < _distance(nearest[sort]):
                nearest[sort] = thing
    things = tuple(sorted(nearest.values(), key=lambda t: (NAMES.index(t.name), _distance(t))))
    return Sight(_thing(view, middle, here, (middle, here), colours), front, things)


def _thing(view: Array, across: int, along: int, agent: tuple[int, int], colours: bool) -> Thing | None:
    number, colour, state = (int(value) for value in view[:, across, along])
    if not NAMES[number]:
        return None
    shown = COLOURS[colour] if colours and number not in PLAIN else ""
    return Thing(NAMES[number], shown, DOORS[state] if number == DOOR else "", agent[1] - along, across - agent[0])


def _distance(thing: Thing) -> tuple[int, int, int]:
    return (thing.forward + abs(thing.right), thing.forward, thing.right)


# Telling ------------------------------------------------------------------------------------------------


def tell(sight: Sight, handles: bool = True) -> str:
    """What is carried, where things are, and what is in front."""
    told = [f"You carry {_carried(sight)}."] if handles else []
    told += [_placed(thing) for thing in sight.things]
    if sight.front is None:
        return " ".join([*told, "The way forward is free."])
    name = {"wall": "a wall", "lava": "lava"}.get(sight.front.name, f"the {sight.front.called}")
    state = f", {sight.front.state}" if sight.front.state else ""
    return " ".join([*told, f"In front of you is {name}{state}."])


def _carried(sight: Sight) -> str:
    return f"the {sight.carried.called}" if sight.carried else "nothing"


def _placed(thing: Thing) -> str:
    ways = [(thing.forward, "forward"), (abs(thing.right), "right" if thing.right > 0 else "left")]
    where = " and ".join(f"{steps} step{'s' * (steps > 1)} {word}" for steps, word in ways if steps)
    subject = "Lava" if thing.name == "lava" else f"The {thing.called}"
    return f"{subject} is {thing.state + ', ' if thing.state else ''}{where}."


def sum_up(sight: Sight) -> str:
    """Which things are in sight, goal last, and what is carried, until a door stands open: then that is no matter."""
    named = {}
    for thing in _seen(sight):
        if thing.name not in ("wall", "lava"):
            article = "an" if thing.state == "open" else "a"
            named[f"{article} {thing.state} {thing.called}" if thing.state else f"the {thing.called}"] = thing.name
    order = sorted(named, key=lambda words: (named[words] == "goal", named[words] == "door", words))
    told = f"You see {' and '.join(order) or 'a wall'}."
    return told if _grade(sight) >= GRADES.index("door") else f"{told} You carry {_carried(sight)}."


def foretell(sight: Sight, move: str) -> str:
    """What a move would do, as far as it can be seen beforehand."""
    front, held = sight.front, sight.carried
    match move:
        case "left" | "right":
            return f"turn {move}"
        case "forward":
            return _walk(front)
        case "pick up" if front is not None and front.name in ("key", "ball", "box") and held is None:
            return f"pick up the {front.called}"
        case "drop" if front is None and held is not None:
            return f"drop the {held.called}"
        case "open" if front is not None and front.name in ("door", "box"):
            locked = front.state == "locked" and not (held and held.name == "key" and held.colour == front.colour)
            return "do nothing" if locked else f"{'close' if front.state == 'open' else 'open'} the {front.called}"
    return "do nothing"


def _walk(front: Thing | None) -> str:
    """What a step forward would do."""
    if front is None:
        return "go forward on free floor"
    if front.name == "lava":
        return "go forward into lava"
    if front.name == "goal":
        return "go forward to the goal"
    if front.state == "open":
        return f"go forward through the {front.called}"
    return "bump into a wall" if front.name == "wall" else f"bump into the {front.called}"


# Moments to calibrate by ----------------------------------------------------------------------------------

KEY, WALL_AHEAD, LAVA_AHEAD = Thing("key"), Thing("wall"), Thing("lava")


def _door(state: str, forward: int = 1, right: int = 0) -> Thing:
    return Thing("door", "", state, forward, right)


def _at(name: str, forward: int, right: int = 0) -> Thing:
    return Thing(name, "", "", forward, right)


def _painted(sight: Sight) -> Sight:
    """The same with red keys and doors, for worlds in which colours are told."""

    def paint(thing: Thing) -> Thing:
        return replace(thing, colour="red") if thing.name in ("key", "door") else thing

    carried, front = (paint(thing) if thing else None for thing in (sight.carried, sight.front))
    return Sight(carried, front, tuple(map(paint, sight.things)))


HANDLING: dict[str, tuple[Sight, ...]] = {
    "left": (
        Sight(None, WALL_AHEAD, (_at("key", 0, -2),)),
        Sight(KEY, WALL_AHEAD, (_door("locked", 0, -1),)),
        Sight(KEY, WALL_AHEAD, (_at("goal", 0, -2),)),
    ),
    "right": (
        Sight(None, WALL_AHEAD, (_at("key", 0, 2),)),
        Sight(KEY, WALL_AHEAD, (_door("locked", 0, 1),)),
        Sight(KEY, WALL_AHEAD, (_at("goal", 0, 2),)),
    ),
    "forward": (
        Sight(None, None, (_at("key", 2),)),
        Sight(KEY, None, (_at("goal", 2),)),
        Sight(KEY, _door("open")),
    ),
    "pick up": (
        Sight(None, KEY),
        Sight(None, KEY, (_door("locked", 1, 1),)),
        Sight(None, KEY, (_door("locked", 2, -1),)),
    ),
    "drop": (
        Sight(Thing("ball", "blue"), None, (Thing("box", "blue", "", 1, 1),)),
        Sight(Thing("ball", "red"), None, (Thing("box", "red", "", 1, -1),)),
        Sight(Thing("box", "grey"), None, (Thing("ball", "grey", "", 1, 1),)),
    ),
    "open": (Sight(KEY, _door("locked")), Sight(KEY, _door("closed")), Sight(KEY, _door("locked"), (_at("goal", 2),))),
}
WALKING: dict[str, tuple[Sight, ...]] = {
    "left": (
        Sight(None, WALL_AHEAD, (_at("goal", 0, -2),)),
        Sight(None, LAVA_AHEAD, (_at("goal", 2, -1),)),
        Sight(None, WALL_AHEAD, (_at("goal", 1, -2),)),
    ),
    "right": (
        Sight(None, WALL_AHEAD, (_at("goal", 0, 2),)),
        Sight(None, LAVA_AHEAD, (_at("goal", 2, 1),)),
        Sight(None, WALL_AHEAD, (_at("goal", 1, 2),)),
    ),
    "forward": (
        Sight(None, None, (_at("goal", 2),)),
        Sight(None, None, (_at("lava", 1, 1),)),
        Sight(None, _at("goal", 1)),
    ),
}
GRADED: tuple[tuple[Sight, ...], ...] = (  # by grade
    (Sight(None, KEY), Sight(None, KEY, (_door("locked", 1, 1),)), Sight(None, _door("locked")), Sight(None, None)),
    (Sight(KEY, _door("locked")), Sight(KEY, _door("closed")), Sight(KEY, WALL_AHEAD), Sight(KEY, WALL_AHEAD)),
    (Sight(KEY, _door("open")),) * 4,
    (
        Sight(KEY, _at("goal", 1)),
        Sight(KEY, _door("open"), (_at("goal", 2, 1),)),
        Sight(KEY, _door("closed"), (_at("goal", 0, 2),)),
        Sight(KEY, _at("goal", 1)),
    ),
)
