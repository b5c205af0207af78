"""Text codecs of the door-key tasks: one to choose actions with, and one to choose skills with.

Both read observations alone: the map where the agent observes it, otherwise the present view. `DoorKeyText` says where
things are, in the words of `adapters/minigrid.py`, and offers actions. `SkillText` says only what the choice of a skill
depends on, so few texts exist, and each names what the agent can do about the next thing, because a small model copies
better than it infers: `You hold nothing. You can go to a key.` In a task with two colours a key is `matching` or
`wrong` once the agent knows the door, and just a key before.
"""

from __future__ import annotations

import numpy as np

from coterie.core.types import Array, Tree
from coterie.worlds.adapters.minigrid import (
    ACTIONS,
    NAVIGATION_EXAMPLES,
    OBJECT_EXAMPLES,
    AgentView,
    GridObject,
    action_effect,
    describe_view,
)
from coterie.worlds.doorkey.kernels import DONE
from coterie.worlds.doorkey.layouts import CLOSED, COLORED, DOOR_KEY, EMPTY_ROOM, LOCKED, OPEN
from coterie.worlds.doorkey.observations import (
    L_DOOR,
    L_GOAL,
    L_KEY,
    L_WRONG_KEY,
    LANDMARK_SIZE,
    P_CLOSED,
    P_GOAL,
    P_KEY,
    P_KEY_BLUE,
    P_LAVA,
    P_LOCKED,
    P_LOCKED_BLUE,
    P_OPEN,
    P_WALL,
)
from coterie.worlds.doorkey.skills import (
    FACED,
    KNOWN,
    NOTHING,
    RIGHT_KEY,
    UNKNOWN,
    UNKNOWN_KEY,
    WRONG_KEY,
    Facts,
    plan,
    skill_names,
    skills_of,
)
from coterie.worlds.doorkey.world import DoorKey

STATES = {OPEN: "open", CLOSED: "closed", LOCKED: "locked"}


# Reading observations ---------------------------------------------------------------------------------------


class Scene:
    """Reads the facts of a state from rows of observations."""

    def __init__(self, world: DoorKey) -> None:
        self.task, self.layout, self.rules = world.rules.task, world.layout, world.rules
        self.mapped = world.layout.edges >= 0

    def facts(self, rows: Array) -> Facts:
        """The facts of rows `[R, D]`, each an array `[R]`."""
        return self._map_facts(rows) if self.mapped else self._view_facts(rows)

    def view(self, row: Array) -> AgentView:
        """The objects of one row, with their offsets."""
        objects = self._map_objects(row) if self.mapped else self._view_objects(row)
        facts = self.facts(row[None])
        hand = {RIGHT_KEY: "matching", WRONG_KEY: "wrong"}.get(int(facts.hand[0]), "") if self.task == COLORED else ""
        carried = None if facts.hand[0] == NOTHING else GridObject("key", hand)
        front = next((found for found in objects if (found.forward, found.right) == (1, 0)), None)
        return AgentView(
            carried, front, tuple(found for found in objects if found is not front and found.name != "wall")
        )

    # From the map.

    def _landmark(self, rows: Array, mark: int) -> Array:
        """UNKNOWN, KNOWN or FACED for each row `[R]`."""
        slot = self.layout.slots[mark]
        if slot < 0:
            return np.zeros(len(rows), np.int64)
        at = self.layout.landmarks + slot * LANDMARK_SIZE
        known, faced = rows[:, at] > 0, rows[:, at + 5] > 0
        return np.where(faced, FACED, np.where(known, KNOWN, UNKNOWN))

    def _map_facts(self, rows: Array) -> Facts:
        layout, hand = self.layout, np.zeros(len(rows), np.int64)
        if layout.hand >= 0:
            hand = np.where(rows[:, layout.hand] > 0, RIGHT_KEY, NOTHING)
        if layout.colours == 2:
            fits, wrong = rows[:, layout.hand + 1] > 0, rows[:, layout.hand + 2] > 0
            hand = np.where(
                hand == NOTHING, NOTHING, np.where(fits, RIGHT_KEY, np.where(wrong, WRONG_KEY, UNKNOWN_KEY))
            )
        state = np.full(len(rows), LOCKED)
        if layout.door >= 0:
            states = rows[:, layout.door : layout.door + 3]
            state = np.where(states.any(axis=1), states.argmax(axis=1), LOCKED)
        key, wrong_key, door, goal = (self._landmark(rows, mark) for mark in (L_KEY, L_WRONG_KEY, L_DOOR, L_GOAL))
        return Facts(hand, key, wrong_key, door, state, goal)

    def _map_objects(self, row: Array) -> list[GridObject]:
        facts = self._map_facts(row[None])
        coloured = self.task == COLORED and facts.door[0] != UNKNOWN
        kinds = {
            L_KEY: ("key", "matching" if coloured else "", ""),
            L_WRONG_KEY: ("key", "wrong", ""),
            L_DOOR: ("door", "", STATES[int(facts.door_state[0])]),
            L_GOAL: ("goal", "", ""),
        }
        found = []
        for mark, (name, colour, state) in kinds.items():
            if self._landmark(row[None], mark)[0] != UNKNOWN:
                found.append(GridObject(name, colour, state, *self._offset(row, mark)))
        side, area = self.layout.window_size, self.layout.window_size**2
        ahead = self.layout.window + (side // 2 - 1) * side + side // 2
        if row[ahead + area] > 0 and all((thing.forward, thing.right) != (1, 0) for thing in found):
            found.append(GridObject("wall", forward=1))
        if self.layout.window_planes == 3:
            lava = row[self.layout.window + 2 * area :][:area].reshape(side, side)
            found += [GridObject("lava", "", "", side // 2 - j, i - side // 2) for j, i in np.argwhere(lava).tolist()]
        return found

    def _offset(self, row: Array, mark: int) -> tuple[int, int]:
        at = self.layout.landmarks + self.layout.slots[mark] * LANDMARK_SIZE
        forward, right = np.rint(row[at + 1 : at + 3] * self.rules.size).astype(int).tolist()
        return forward, right

    # From the view.

    def _planes(self, rows: Array, kind: int) -> Array:
        """The plane of a kind of cell, `[R, V, V]`; empty where the task has none."""
        side, plane = self.rules.view_size, self.layout.planes[kind]
        if plane < 0:
            return np.zeros((len(rows), side, side), bool)
        start = self.layout.sight + plane * side**2
        return rows[:, start : start + side**2].reshape(-1, side, side) > 0

    def _seen(self, *planes: Array) -> Array:
        """UNKNOWN, KNOWN or FACED for each row `[R]`, of things in any of the planes."""
        side = self.rules.view_size
        joined: Array = np.stack(planes).max(axis=0)
        return np.where(joined[:, side - 2, side // 2], FACED, np.where(joined.any(axis=(1, 2)), KNOWN, UNKNOWN))

    def _view_facts(self, rows: Array) -> Facts:
        carried = np.zeros((len(rows), 2), bool)
        if self.layout.carried >= 0:
            carried[:, : self.layout.colours] = rows[:, self.layout.carried :][:, : self.layout.colours] > 0
        doors = [self._planes(rows, kind) for kind in (P_OPEN, P_CLOSED, P_LOCKED, P_LOCKED_BLUE)]
        here = [door.any(axis=(1, 2)) for door in doors]
        state = np.where(here[0], OPEN, np.where(here[1], CLOSED, LOCKED))
        door, goal = self._seen(*doors), self._seen(self._planes(rows, P_GOAL))
        red, blue = self._planes(rows, P_KEY), self._planes(rows, P_KEY_BLUE)
        hand = np.where(carried.any(axis=1), RIGHT_KEY, NOTHING)
        if self.task != COLORED:
            return Facts(hand, self._seen(red), np.zeros_like(hand), door, state, goal)
        red_wrong, blue_wrong = here[3], here[2]  # the door has the other colour
        wrong_keys = red & np.reshape(red_wrong, (-1, 1, 1)) | blue & np.reshape(blue_wrong, (-1, 1, 1))
        keys = (red | blue) & ~wrong_keys
        wrong_hand = carried[:, 0] & red_wrong | carried[:, 1] & blue_wrong
        hand = np.where(
            hand == NOTHING, NOTHING, np.where(door == UNKNOWN, UNKNOWN_KEY, np.where(wrong_hand, WRONG_KEY, RIGHT_KEY))
        )
        return Facts(hand, self._seen(keys), self._seen(wrong_keys), door, state, goal)

    def _view_objects(self, row: Array) -> list[GridObject]:
        door = {True: "", False: ""}  # the colour in words of a red (False) or blue (True) key
        if self.task == COLORED:
            red, blue = (bool(self._planes(row[None], kind).any()) for kind in (P_LOCKED, P_LOCKED_BLUE))
            if red or blue:
                door = {red: "wrong", blue: "matching"} if red != blue else door
        kinds = {
            P_KEY: ("key", door[False], ""),
            P_KEY_BLUE: ("key", door[True], ""),
            P_LOCKED: ("door", "", "locked"),
            P_LOCKED_BLUE: ("door", "", "locked"),
            P_CLOSED: ("door", "", "closed"),
            P_OPEN: ("door", "", "open"),
            P_GOAL: ("goal", "", ""),
            P_LAVA: ("lava", "", ""),
        }
        side = self.rules.view_size
        found = []
        for kind, words in kinds.items():
            places = [(side - 1 - j, i - side // 2) for j, i in np.argwhere(self._planes(row[None], kind)[0]).tolist()]
            if places:
                found.append(GridObject(*words, *min(places, key=lambda place: (place[0] + abs(place[1]), place))))
        if self._planes(row[None], P_WALL)[0, side - 2, side // 2]:
            found.append(GridObject("wall", forward=1))
        return found


# Actions ----------------------------------------------------------------------------------------------------


class DoorKeyText:
    """Says where things are and what is in front of the agent; the choices are actions."""

    idle = DONE

    def __init__(self, world: DoorKey, agent_type: str) -> None:
        self.scene = Scene(world)
        self.has_objects = world.rules.task != EMPTY_ROOM
        self.prompt = "doorkey" if self.has_objects else "minigrid"
        unused = (
            ("pick up", "drop", "open") if not self.has_objects else () if world.rules.task == COLORED else ("drop",)
        )
        self.choices = tuple(word for word in ACTIONS if word not in unused)
        self._numbers = np.array([ACTIONS.index(word) for word in self.choices])

    def describe(self, observation: Tree) -> list[str]:
        return [describe_view(self.scene.view(row), self.has_objects) for row in _as_rows(observation)]

    def action_effects(self, observation: Tree) -> list[list[str]]:
        views = [self.scene.view(row) for row in _as_rows(observation)]
        return [[action_effect(view, word) for word in self.choices] for view in views]

    def actions(self, chosen: Array) -> Array:
        return self._numbers[chosen]

    def samples(self) -> list[str]:
        """Descriptions in which each choice is right, equally many for every choice."""
        examples = OBJECT_EXAMPLES if self.has_objects else NAVIGATION_EXAMPLES
        views = [view for word in self.choices for view in examples[word]]
        return [describe_view(view, self.has_objects) for view in views]


# Skills -----------------------------------------------------------------------------------------------------


class SkillText:
    """Says what the choice of a skill depends on; the choices are the world's skills, in their order."""

    idle = None

    def __init__(self, world: DoorKey, agent_type: str) -> None:
        self.scene, self.task = Scene(world), world.rules.task
        self.choices = skill_names(self.task)
        self.prompt = {
            EMPTY_ROOM: "goal-skills",
            DOOR_KEY: "doorkey-goal-skills",
            COLORED: "doorkey-colored-skills",
        }.get(self.task, "doorkey-skills")

    def describe(self, observation: Tree) -> list[str]:
        facts = self.scene.facts(_as_rows(observation))
        known: dict[tuple[int, ...], str] = {}
        texts = []
        for row in zip(*(fact.tolist() for fact in facts), strict=True):
            if row not in known:
                known[row] = describe_facts(self.task, Facts(*row))
            texts.append(known[row])
        return texts

    def actions(self, chosen: Array) -> Array:
        """The numbers of skills: what a planner chooses, not what the world plays."""
        return chosen

    def answers(self) -> dict[str, str]:
        """All texts of the task, each with its right skill."""
        names = dict(zip(skills_of(self.task), self.choices, strict=True))
        return {describe_facts(self.task, facts): names[plan(self.task, facts)] for facts in _possible_facts(self.task)}

    def samples(self) -> list[str]:
        """All texts of the task."""
        return list(self.answers())


def describe_facts(task: int, facts: Facts) -> str:
    """Sentences on the facts that decide the right skill: the hand or the door, and what can be done next."""
    if task == EMPTY_ROOM or (facts.door != UNKNOWN and facts.door_state == OPEN):
        start = "" if task == EMPTY_ROOM else "The door is open. "
        return start + (
            "No goal is in sight, so you can only explore." if facts.goal == UNKNOWN else "You can go to the goal."
        )
    if facts.hand == WRONG_KEY:
        return "You hold a wrong key. You can drop the key."
    doors = (
        "No door is in sight, so you can only explore.",
        "You can go to a door.",
        "You can open the door in front of you.",
    )
    if facts.door != UNKNOWN and facts.door_state == CLOSED:
        return f"The door is closed. {doors[int(facts.door)]}"
    if facts.hand != NOTHING:
        key = "matching key" if task == COLORED and facts.hand == RIGHT_KEY else "key"
        return f"You hold a {key}. {doors[int(facts.door)]}"
    if facts.key == UNKNOWN:
        sight = "No key is in sight" if facts.wrong_key == UNKNOWN else "The key in sight is wrong"
        return f"You hold nothing. {sight}, so you can only explore."
    matching = task == COLORED and facts.door != UNKNOWN
    if facts.key == FACED:
        return f"You hold nothing. You can pick up the {'matching ' * matching}key in front of you."
    plain = "a key of any colour" if task == COLORED else "a key"
    return f"You hold nothing. You can go to {'the matching key' if matching else plain}."


def _possible_facts(task: int) -> list[Facts]:
    """The facts that a task can have, as far as texts differ by them."""
    if task == EMPTY_ROOM:
        return [Facts(NOTHING, 0, 0, 0, LOCKED, goal) for goal in (UNKNOWN, KNOWN)]  # type: ignore[arg-type]  # numbers, not arrays
    steps = (UNKNOWN, KNOWN, FACED)
    doors = (KNOWN,) if task == COLORED else ()
    found = [(NOTHING, key, UNKNOWN, door, LOCKED, UNKNOWN) for door in (UNKNOWN, *doors) for key in steps]
    if task == COLORED:
        found.append((NOTHING, UNKNOWN, KNOWN, KNOWN, LOCKED, UNKNOWN))
        found.append((UNKNOWN_KEY, UNKNOWN, UNKNOWN, UNKNOWN, LOCKED, UNKNOWN))
        found.append((WRONG_KEY, UNKNOWN, UNKNOWN, KNOWN, LOCKED, UNKNOWN))
    held = (KNOWN, FACED) if task == COLORED else steps  # to know that a key fits is to know the door
    found += [(RIGHT_KEY, UNKNOWN, UNKNOWN, door, LOCKED, UNKNOWN) for door in held]
    if task == DOOR_KEY:
        found += [(RIGHT_KEY, UNKNOWN, UNKNOWN, door, CLOSED, UNKNOWN) for door in (KNOWN, FACED)]
        found += [(RIGHT_KEY, UNKNOWN, UNKNOWN, KNOWN, OPEN, goal) for goal in (UNKNOWN, KNOWN)]
    return [Facts(*row) for row in found]  # type: ignore[arg-type]  # plain numbers


def _as_rows(observation: Tree) -> Array:
    assert not isinstance(observation, dict)
    return observation.reshape(len(observation), -1)
