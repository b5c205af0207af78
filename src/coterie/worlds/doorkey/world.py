"""Door-key tasks with MiniGrid's rules: find the key, open the door, and where there is one, reach the goal.

Actions are MiniGrid's: 0 turn left, 1 turn right, 2 forward, 3 pick up, 4 drop, 5 toggle, 6 done. The reward is 0 but
for success, which pays 1 − 0.9 · step / max_episode_steps; lava ends the episode without a reward. This file holds the
settings and the `World`. Layouts and the start of episodes are in `layouts.py`, the step in `kernels.py`, what the
agent sees and remembers in `observations.py`, skills and the scripted expert in `skills.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from coterie.core.settings import Settings
from coterie.core.skills import PlanCodec
from coterie.core.splitmix import seed_copies
from coterie.core.text import TextCodec
from coterie.core.types import AgentStep, AgentType, Array, Box, Discrete, State, TimeStep
from coterie.core.validation import at_least, fits_in_memory, one_of, whole
from coterie.core.world import Sign, World, rebuild
from coterie.worlds.actions import first_outside
from coterie.worlds.doorkey import kernels, layouts, observations, render, skills

if TYPE_CHECKING:
    from coterie.worlds.adapters.export import GymnasiumEnv, PettingZooEnv

Task = Literal["empty", "doorkey", "simple", "colored", "lava", "two_door"]
Observe = Literal["view", "map", "both"]

TASKS: dict[str, int] = {
    "empty": layouts.EMPTY_ROOM,
    "doorkey": layouts.DOOR_KEY,
    "simple": layouts.SIMPLE,
    "colored": layouts.COLORED,
    "lava": layouts.LAVA_ROOM,
    "two_door": layouts.TWO_DOOR,
}
MINIGRID = ("empty", "doorkey")  # layouts of MiniGrid itself
SIZES = {"empty": 8, "doorkey": 8, "two_door": 20}  # by default; 10 for the others
SMALLEST = 5


@dataclass(frozen=True)
class DoorKeySettings(Settings):
    """Layout and observations of a door-key task."""

    # The task: MiniGrid's Empty or DoorKey; or a room with a locked door, also with two keys, lava, or two doors.
    task: Task = "simple"
    # Cells along the side of the grid, walls included; None: 8 for empty and doorkey, 20 for two_door, 10 otherwise.
    size: int | None = None
    # The smallest side of a room, for rooms of random size; None: 5, and the whole grid for two_door.
    min_size: int | None = None
    # Cells along the side of the view, odd; None: 7 for empty and doorkey, as in MiniGrid, and 3 otherwise.
    view_size: int | None = None
    # Steps after which an episode is truncated; None: 4 · size² for empty, 10 · size² for doorkey, 150 otherwise.
    max_episode_steps: int | None = None
    # What the agent observes: its present view, the map of what it has seen in this episode, or both.
    observe: Observe = "map"
    # Cells along the side of the part of the map around the agent, odd.
    map_size: int = 7

    def __post_init__(self) -> None:
        for name, hint in (("task", Task), ("observe", Observe)):
            one_of(name, getattr(self, name), get_args(hint))
        least = {"size": SMALLEST, "min_size": SMALLEST, "view_size": 3, "max_episode_steps": 1, "map_size": 3}
        for name, low in least.items():
            if (value := getattr(self, name)) is not None:
                whole(name, value)
                at_least(name, value, low)
        for name in ("view_size", "map_size"):
            if (value := getattr(self, name)) is not None and value % 2 == 0:
                raise ValueError(f"{name} must be odd, so that the agent is in the middle; got {value}")
        if self.min_size is not None and self.task in MINIGRID:
            raise ValueError(f"min_size is not used in task '{self.task}', got {self.min_size}; leave it out")
        if self.smallest > self.side:
            raise ValueError(f"min_size must be at most size ({self.side}), got {self.smallest}")

    @property
    def side(self) -> int:
        """The number of cells along the side of the grid; by default that of the task."""
        return SIZES.get(self.task, 10) if self.size is None else self.size

    @property
    def smallest(self) -> int:
        """The smallest side of a room; by default that of the task."""
        if self.min_size is not None:
            return self.min_size
        return SMALLEST if self.task in ("simple", "colored", "lava") else self.side

    @property
    def rules(self) -> layouts.Rules:
        """The settings as the kernels read them."""
        own = self.task in MINIGRID
        steps = {"empty": 4 * self.side**2, "doorkey": 10 * self.side**2}.get(self.task, 150)
        return layouts.Rules(
            task=TASKS[self.task],
            size=self.side,
            min_size=self.smallest,
            view_size=self.view_size or (7 if own else 3),
            see_through=self.task == "empty",  # as in MiniGrid
            max_steps=self.max_episode_steps or steps,
        )


def _empty_state(size: int, num_envs: int) -> layouts.RoomState:
    return layouts.RoomState(
        random=np.zeros(num_envs, np.uint64),
        time=np.zeros(num_envs, np.int32),
        cells=np.full((num_envs, size, size), layouts.WALL, np.int16),
        seen=np.zeros((num_envs, size, size), np.bool_),
        agent=np.ones((num_envs, 3), np.int32),
        hand=np.zeros(num_envs, np.int16),
    )


class DoorKey(World):
    """N copies of one door-key task, each with one agent."""

    simultaneous = True
    draws_final = True

    def __init__(self, settings: DoorKeySettings, num_envs: int) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        self.settings, self.num_envs = settings, num_envs
        self.rules = settings.rules
        self.layout = observations.make_layout(self.rules, settings.observe, settings.map_size)
        fits_in_memory(
            f"size={settings.side} with observations of {self.layout.width} numbers in {num_envs} environments",
            num_envs * (11.0 * settings.side**2 + 8.0 * self.layout.width),
            "lower world.size, world.view_size, world.map_size or train.num_envs",
        )
        space = Box((self.layout.width,), -1.0, 1.0)
        self.agent_types: Mapping[str, AgentType] = {
            "agent": AgentType(("agent_0",), space, Discrete(kernels.NUM_ACTIONS))
        }
        self.state = _empty_state(settings.side, num_envs)
        self._final = _empty_state(settings.side, num_envs)  # the end of each copy's latest episode
        self._scratch = observations.make_scratch(self.rules, num_envs)
        self._skills = np.array(skills.skills_of(self.rules.task))
        self._plan = skills.plan_table(self.rules.task)
        rows, flags = np.zeros((2, num_envs, self.layout.width), np.float32), np.zeros((4, num_envs), np.bool_)
        self._out = kernels.StepOutput(rows[0], rows[1], np.zeros(num_envs, np.float32), *flags)
        out = self._out
        agent_step = AgentStep(
            observation=out.observation[:, None],
            acting=np.ones((num_envs, 1), np.bool_),
            reward=out.reward[:, None],
            terminated=out.terminated[:, None],
            truncated=out.truncated[:, None],
            final_observation=out.final_observation[:, None],
        )
        self._timestep = TimeStep({"agent": agent_step}, out.ended, out.success)

    def reset(self, seed: int) -> TimeStep:
        """Reset every copy; copy i depends on (seed, i) only."""
        seed_copies(self.state.random, seed, "doorkey")
        layouts.start_episode.over(self.num_envs, self.state, self.rules)
        return self._observe_only()

    def step(self, actions: Mapping[str, Array]) -> TimeStep:
        """Play one action in every copy; an action out of range raises ValueError and changes nothing."""
        given = np.asarray(actions["agent"])
        if given.shape != (self.num_envs, 1) or given.dtype.kind not in "iu":
            raise ValueError(f"actions must be integers of shape {(self.num_envs, 1)}, got {given.dtype} {given.shape}")
        chosen = np.ascontiguousarray(given[:, 0], dtype=np.int64)
        illegal = first_outside(chosen, 0, kernels.NUM_ACTIONS - 1)
        if illegal >= 0:
            raise ValueError(
                f"copy {illegal}: an action must be 0 to {kernels.NUM_ACTIONS - 1}, got {given[illegal, 0]}"
            )
        rules = self.rules, self.layout
        kernels.step.over(self.num_envs, self.state, self._final, *rules, chosen, self._scratch, self._out)
        return self._timestep

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, (type(self), (self.settings, self.num_envs), self.save())

    def save(self) -> State:
        """Copies of all cells, agents, maps and random states."""
        return {name: array.copy() for name, array in self.state._asdict().items()}

    def load(self, state: State) -> TimeStep:
        """Restore a saved state."""
        for name, array in self.state._asdict().items():
            if np.shape(state[name]) != array.shape:
                raise ValueError(f"saved '{name}' has shape {np.shape(state[name])}, expected {array.shape}")
        for name, array in self.state._asdict().items():
            array[...] = state[name]
        return self._observe_only()

    def set_layout(self, copy: int, encoded: Array, position: tuple[int, int], direction: int) -> TimeStep:
        """Start an episode of one copy from a layout as MiniGrid's `Grid.encode` gives it, `[size, size, 3]`.

        The first axis is the column, as in MiniGrid, and `position` is (column, row).
        """
        size, state = self.settings.side, self.state
        encoded = np.asarray(encoded)
        if encoded.shape != (size, size, 3):
            raise ValueError(f"a layout has shape {(size, size, 3)}, got {encoded.shape}")
        kind, colour, door = np.moveaxis(encoded.astype(np.int16), 2, 0)
        kind = np.where(kind == layouts.UNSEEN, layouts.EMPTY, kind)
        state.cells[copy], state.seen[copy] = (kind + 16 * colour + 128 * door).T, False
        state.agent[copy] = position[1], position[0], direction
        state.time[copy], state.hand[copy] = 0, 0
        return self._observe_only()

    def image(self, copy: int) -> Array:
        """MiniGrid's observation `image` of one copy, `[view_size, view_size, 3]` uint8: object, colour, state."""
        side = self.rules.view_size
        image = np.zeros((side, side, 3), np.uint8)
        observations.write_image(self.state, self.rules, copy, self._scratch, image)
        return image

    def _observe_only(self) -> TimeStep:
        """The time step of the present state, without rewards and ends."""
        out = self._out
        for array in (out.reward, out.terminated, out.truncated, out.ended, out.success):
            array[...] = 0
        rules = self.rules, self.layout
        observations.observe.over(self.num_envs, self.state, *rules, self._scratch, out.observation)
        return self._timestep

    @functools.cached_property
    def _skill_scratch(self) -> skills.SkillScratch:
        return skills.make_skill_scratch(self.settings.side, self.num_envs)

    def skills(self, agent_type: str) -> tuple[str, ...]:
        """The names of the task's skills."""
        return skills.skill_names(self.rules.task)

    def skill_actions(self, agent_type: str) -> Array:
        """Each skill's probabilities over the actions, `[N, 1, skills, 7]` float32; see `skills.py`."""
        out = np.empty((self.num_envs, len(self._skills), kernels.NUM_ACTIONS), np.float32)
        scratch = self._skill_scratch
        skills.skill_probabilities.over(self.num_envs, self.state, self.rules.task, self._skills, scratch, out)
        return out[:, None]

    def expert(self, agent_type: str, random: np.random.Generator) -> Array:
        """The action of the skill that the facts ask for, `[N, 1]`; deterministic."""
        out = np.empty(self.num_envs, np.int64)
        scratch = self._skill_scratch
        skills.expert_actions.over(self.num_envs, self.state, self.rules.task, self._plan, scratch, out)
        return out[:, None]

    def best_skills(self, agent_type: str) -> Array:
        """The skill that the facts ask for, `[N, 1]`."""
        from coterie.worlds.doorkey.plans import write_best_skills

        out = np.empty(self.num_envs, np.int64)
        tables, facts = (self._plan, self._skills), self._skill_scratch.facts
        write_best_skills.over(self.num_envs, self.state, self.rules.task, *tables, facts, out)
        return out[:, None]

    def plan_codec(self, agent_type: str) -> PlanCodec:
        """The codec of the text states by which a planner chooses skills."""
        from coterie.worlds.doorkey.plans import DoorKeyPlans

        return DoorKeyPlans(self, agent_type)

    def text_codec(self, agent_type: str) -> TextCodec:
        """The codec of observations as words, with the actions as choices."""
        from coterie.worlds.doorkey.text import DoorKeyText

        return DoorKeyText(self, agent_type)

    def frame(self, copy: int, final: bool = False) -> Array:
        """An image of one copy now, or of the end of its latest finished episode; what was not seen is in fog."""
        return render.frame(self._final if final else self.state, copy)

    def ansi(self, copy: int, final: bool = False) -> str:
        """The same as text."""
        return render.ansi(self._final if final else self.state, copy)

    def legend(self) -> tuple[Sign, ...]:
        """The signs of the agent and of what lies in the rooms."""
        ((agent,),) = (spaces.agents for spaces in self.agent_types.values())
        return render.legend(agent)


def parallel_env(render_mode: str | None = None, **settings: Any) -> PettingZooEnv:
    """The task as a PettingZoo parallel environment of one agent; `settings` are those of `DoorKeySettings`."""
    from coterie.worlds.adapters.export import PettingZooEnv, settings_from_kwargs

    return PettingZooEnv(DoorKey(settings_from_kwargs(DoorKeySettings, settings), 1), "doorkey", render_mode)


def single_env(render_mode: str | None = None, **settings: Any) -> GymnasiumEnv:
    """The task as a Gymnasium environment."""
    from coterie.worlds.adapters.export import GymnasiumEnv, settings_from_kwargs

    return GymnasiumEnv(DoorKey(settings_from_kwargs(DoorKeySettings, settings), 1), "doorkey", render_mode)
