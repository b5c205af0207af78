"""A grid world for teams and rivals: collect targets together or against each other, meet, or race.

Actions are 0 up, 1 down, 2 left, 3 right, 4 stay; row 0 is the top. Agents may share a cell. This file holds
the settings and the `World` itself; spaces are in `gridworld_spaces.py`, what happens in a step in
`gridworld_kernels.py`, what a team may be told to do in `gridworld_instructions.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from coterie.core.seeding import entropy
from coterie.core.text import TextCodec
from coterie.core.types import AgentStep, AgentType, Array, Box, Discrete, MultiDiscrete, State, TimeStep, Tree
from coterie.core.validation import at_least, whole
from coterie.core.world import rebuild
from coterie.worlds.gridworld import expert as guide
from coterie.worlds.gridworld import instructions as telling
from coterie.worlds.gridworld import kernels, spaces
from coterie.worlds.gridworld import observations as views
from coterie.worlds.gridworld import phrasings as words
from coterie.worlds.gridworld import render as draw
from coterie.worlds.gridworld.phrasings import Instructions

if TYPE_CHECKING:
    from coterie.worlds.adapters.export import PettingZooEnv

Mode = Literal["cooperative", "competitive", "meet", "race"]
View = Literal["flat", "dict", "image"]

MODES: dict[str, int] = {
    "cooperative": kernels.COOPERATIVE,
    "competitive": kernels.COMPETITIVE,
    "meet": kernels.MEET,
    "race": kernels.RACE,
}
MOST_TARGETS = 10  # for the exact optimum, whose work grows threefold with every target


class Rewards(NamedTuple):
    """What is paid for what, all of it known."""

    target: float
    others: float
    done: float
    step: float


REWARDS: dict[str, Rewards] = {
    "cooperative": Rewards(target=10.0, others=0.0, done=20.0, step=-0.1),
    "competitive": Rewards(target=20.0, others=-5.0, done=0.0, step=0.0),
    "meet": Rewards(target=1.0, others=0.0, done=10.0, step=0.0),
    "race": Rewards(target=10.0, others=-5.0, done=0.0, step=0.0),
}


@dataclass(frozen=True)
class GridworldSettings:
    """How a grid world is laid out, observed and paid."""

    # Cells along each side.
    grid_size: int = 8
    # Agents, named agent_0, agent_1, …
    num_agents: int = 2
    # Targets; None: 3 to collect, 1 to meet at, one per agent in a race.
    num_targets: int | None = None
    # What it is about: collect together, collect against each other, meet on one cell, race to one's own.
    mode: Mode = "cooperative"
    # Steps after which an episode is truncated.
    max_steps: int = 200
    # What agents see: a vector relative to themselves, a dict of absolute positions, or planes.
    observation: View = "flat"
    # Cells nobody can enter; the others always stay connected.
    num_obstacles: int = 0
    # Probability that a remaining target moves to a free neighbouring cell after a step.
    target_move_probability: float = 0.0
    # How far agents see, in cells along either axis; None: everything.
    view: int | None = None
    # Symbols that agents may send with each move, heard by the others after it; 0: no messages.
    messages: int = 0
    # Paid for a target: to all when cooperative, to its collectors in equal parts, or to the arriving agent.
    target_reward: float | None = None
    # Paid for a target to the agents not on it (competitive), or that have not arrived (race).
    others_reward: float | None = None
    # Paid to all agents when the episode succeeds.
    done_reward: float | None = None
    # Paid to each agent at every step.
    step_reward: float | None = None
    # Which colour the team is told to collect first or last, in which wordings; none: targets have no colours.
    instructions: Instructions = "none"

    def __post_init__(self) -> None:
        for name, hint in (("mode", Mode), ("observation", View), ("instructions", Instructions)):
            options = get_args(hint)
            if getattr(self, name) not in options:
                raise ValueError(f"{name} must be one of {', '.join(options)}, got {getattr(self, name)!r}")
        least = {"grid_size": 2, "num_agents": 1, "num_targets": 1, "max_steps": 1, "view": 1}
        for name, low in (least | {"num_obstacles": 0, "messages": 0}).items():
            if (value := getattr(self, name)) is not None:
                whole(name, value)
                at_least(name, value, low)
        if not 0.0 <= self.target_move_probability <= 1.0:
            raise ValueError(f"target_move_probability must lie in [0, 1], got {self.target_move_probability}")
        for name, value in zip(Rewards._fields, self.rewards, strict=True):
            if not math.isfinite(value):
                raise ValueError(f"{name}_reward must be finite, got {value}")
        if self.others_reward and self.mode in ("cooperative", "meet"):
            raise ValueError(f"others_reward has no part in mode '{self.mode}', got {self.others_reward}")
        self._check_room()
        if self.instructions != "none":
            self._check_instructions()

    def _check_room(self) -> None:
        fixed = {"meet": 1, "race": self.num_agents}.get(self.mode)
        if fixed is not None and self.targets != fixed:
            raise ValueError(f"num_targets must be {fixed} in mode '{self.mode}', got {self.num_targets}")
        things = self.num_agents + self.targets + self.num_obstacles
        if things > self.grid_size**2:
            raise ValueError(
                f"{self.num_agents} agents, {self.targets} targets and {self.num_obstacles} obstacles need "
                f"{things} cells, but a grid of size {self.grid_size} has {self.grid_size**2}"
            )

    def _check_instructions(self) -> None:
        if self.mode != "cooperative":
            raise ValueError(f"instructions are given to teams; set mode to 'cooperative', got '{self.mode}'")
        if self.observation == "image":
            raise ValueError("instructions have no place in an image; set observation to 'flat' or 'dict'")
        if not 2 <= self.targets <= len(words.COLOURS):
            raise ValueError(
                f"instructions need 2 to {len(words.COLOURS)} targets, one for each colour; "
                f"got num_targets {self.targets}"
            )

    @property
    def targets(self) -> int:
        """The number of targets, the mode's default filled in."""
        if self.num_targets is not None:
            return self.num_targets
        return {"meet": 1, "race": self.num_agents}.get(self.mode, 3)

    @property
    def rewards(self) -> Rewards:
        """The rewards, the mode's defaults filled in."""
        given = (self.target_reward, self.others_reward, self.done_reward, self.step_reward)
        return Rewards(*(d if g is None else g for g, d in zip(given, REWARDS[self.mode], strict=True)))


def _empty_places(settings: GridworldSettings, num_envs: int) -> kernels.Places:
    agents, targets, size = settings.num_agents, settings.targets, settings.grid_size
    return kernels.Places(
        random=np.zeros(num_envs, np.uint64),
        time=np.zeros(num_envs, np.int32),
        agents=np.zeros((num_envs, agents, 2), np.int32),
        targets=np.zeros((num_envs, targets, 2), np.int32),
        present=np.zeros((num_envs, targets), np.bool_),
        arrived=np.zeros((num_envs, agents), np.bool_),
        symbols=np.full((num_envs, agents), -1, np.int32),
        walls=np.zeros((num_envs, size, size), np.bool_),
    )


def _nothing_told(num_envs: int) -> telling.Told:
    return telling.Told(sentence=np.full(num_envs, -1, np.int32), broken=np.zeros(num_envs, np.bool_))


class Gridworld:
    """N copies of one grid world; see `GridworldSettings` for what can be played."""

    simultaneous = True
    state_size = 0
    draws_final = True

    def __init__(self, settings: GridworldSettings, num_envs: int) -> None:
        if num_envs < 1:
            raise ValueError(f"copies must be at least 1, got {num_envs}")
        self.settings, self.num_envs = settings, num_envs
        plan = spaces.plan(settings)
        action = MultiDiscrete((5, settings.messages)) if settings.messages else Discrete(5)
        names = tuple(f"agent_{i}" for i in range(settings.num_agents))
        self.agent_types: Mapping[str, AgentType] = {"agent": AgentType(names, plan.space, action)}
        self.places = _empty_places(settings, num_envs)  # all that decides the future
        self.told = _nothing_told(num_envs)  # likewise, where there are instructions
        self._last = _empty_places(settings, num_envs), _nothing_told(num_envs)  # how each copy's latest episode ended
        self.sentences = words.sentences(settings.targets) if settings.instructions != "none" else ()
        self._look = draw.Look(settings.mode == "race", self.sentences)
        rewards = settings.rewards
        self._rules = kernels.Rules(
            mode=MODES[settings.mode],
            size=settings.grid_size,
            max_steps=settings.max_steps,
            obstacles=settings.num_obstacles,
            move_probability=float(settings.target_move_probability),
            sight=-1 if settings.view is None else settings.view,
            messages=settings.messages,
            target_reward=float(rewards.target),  # one Numba type, also when YAML says 10
            others_reward=float(rewards.others),
            done_reward=float(rewards.done),
            step_reward=float(rewards.step),
        )
        self._layout, self._telling = plan.layout, plan.telling
        self._out = self._empty_outcome(plan.width)
        self._timestep = self._as_ticks(plan)

    def _empty_outcome(self, width: int) -> kernels.Outcome:
        n, a = self.num_envs, self.settings.num_agents
        return kernels.Outcome(
            observation=np.zeros((n, a, width), np.float32),
            final_observation=np.zeros((n, a, width), np.float32),
            reward=np.zeros((n, a), np.float32),
            terminated=np.zeros((n, a), np.bool_),
            truncated=np.zeros((n, a), np.bool_),
            ended=np.zeros(n, np.bool_),
            success=np.zeros(n, np.bool_),
        )

    def _as_ticks(self, plan: spaces.Plan) -> TimeStep:
        """The buffers in the shape of the spaces; they are rewritten at every step, never replaced."""
        out = self._out

        def shaped(rows: Array) -> Tree:
            lead = rows.shape[:2]
            if isinstance(plan.space, Box):
                return rows.reshape(*lead, *plan.space.shape)
            return {
                key: rows[..., start : start + math.prod(shape)].reshape(*lead, *shape)
                for key, (start, shape) in plan.parts.items()
            }

        agent_step = AgentStep(
            observation=shaped(out.observation),
            acting=np.ones_like(out.terminated),
            reward=out.reward,
            terminated=out.terminated,
            truncated=out.truncated,
            final_observation=shaped(out.final_observation),
        )
        return TimeStep({"agent": agent_step}, out.ended, out.success)

    def reset(self, seed: int) -> TimeStep:
        """Start every copy anew; copy i depends on (seed, i) only."""
        for n in range(self.num_envs):
            sequence = np.random.SeedSequence(entropy(seed, "gridworld", n))
            self.places.random[n] = sequence.generate_state(1, np.uint64)[0]
        kernels.spawn(self.places, self._rules)
        if self.sentences:
            telling.tell(self.places, self.told, self._telling)
        return self._calm()

    def step(self, actions: Mapping[str, Array]) -> TimeStep:
        """Move everybody at once; an action out of range is a ValueError and changes nothing."""
        given = np.asarray(actions["agent"])
        wide = (2,) if self.settings.messages else ()
        expected = (self.num_envs, self.settings.num_agents, *wide)
        if given.shape != expected or given.dtype.kind not in "iu":
            raise ValueError(f"actions must be integers of shape {expected}, got {given.dtype} {given.shape}")
        chosen = np.ascontiguousarray(given, dtype=np.int64).reshape(*expected[:2], -1)
        if self.sentences:
            now, rules = (self.places, self.told), (self._rules, self._layout)
            wrong = telling.step(now, self._last, self._telling, rules, chosen, self._out)
        else:
            wrong = kernels.step(self.places, self._last[0], self._rules, self._layout, chosen, self._out)
        if wrong >= 0:
            n, a = divmod(wrong, self.settings.num_agents)
            raise ValueError(
                f"agent_{a} of copy {n} chose {given[n, a].tolist()}, outside {self.agent_types['agent'].action}"
            )
        return self._timestep

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, (type(self), (self.settings, self.num_envs), self.save())

    def save(self) -> State:
        """Copies of all places and random states."""
        return {name: array.copy() for name, array in self._saved().items()}

    def _saved(self) -> dict[str, Array]:
        return self.places._asdict() | (self.told._asdict() if self.sentences else {})

    def load(self, state: State) -> TimeStep:
        """Return to a saved moment."""
        for name, array in self._saved().items():
            if np.shape(state[name]) != array.shape:
                raise ValueError(f"saved '{name}' has shape {np.shape(state[name])}, expected {array.shape}")
        for name, array in self._saved().items():
            array[...] = state[name]
        return self._calm()

    def _calm(self) -> TimeStep:
        """Say what agents see, with no reward and no end."""
        out = self._out
        for array in (out.reward, out.terminated, out.truncated, out.ended, out.success):
            array[...] = 0
        views.observe(self.places, self._rules, self._layout, out.observation)
        if self.sentences:
            telling.observe(self.told, self._telling, out.observation)
        return self._timestep

    def text_codec(self, agent_type: str) -> TextCodec:
        """The grid world in words."""
        from coterie.worlds.gridworld.text import gridworld_text

        return gridworld_text(self, agent_type)

    def expert(self, agent_type: str, random: np.random.Generator) -> Array:
        """The reference player's moves, `[N, A]`, or `[N, A, 2]` with symbol 0; nothing is left to chance."""
        moves = np.zeros((self.num_envs, self.settings.num_agents), np.int64)
        guide.guide(self.places, self.told, self._telling, self._rules, moves)
        return np.stack([moves, np.zeros_like(moves)], axis=-1) if self.settings.messages else moves

    def info(self, agent: str, copy: int) -> dict[str, Any]:
        """The instruction in words and whether it has been broken; of the old episode when a step ended it."""
        if not self.sentences:
            return {}
        told = self._last[1] if self._out.ended[copy] else self.told
        return {"instruction": self.sentences[told.sentence[copy]], "broken": bool(told.broken[copy])}

    def frame(self, copy: int, final: bool = False) -> Array:
        """An image of one copy now, or of the end of its latest finished episode."""
        return draw.frame(*self._scene(final), copy, self._look)

    def ansi(self, copy: int, final: bool = False) -> str:
        """The same as text."""
        return draw.ansi(*self._scene(final), copy, self._look)

    def _scene(self, final: bool) -> tuple[kernels.Places, telling.Told]:
        return self._last if final else (self.places, self.told)


def best_return(settings: GridworldSettings, episodes: int = 1000, seed: int = 0) -> dict[str, float]:
    """What perfect play earns on average over `episodes` starts drawn from `seed`.

    `mean_return` (per agent) and `length` belong to the fastest play: exact optimum when cooperative or
    meeting; in a race everybody takes a shortest path; in competition every target is collected without
    ties. No joint play of the team earns more than `bound`, which exceeds `mean_return` only where rivals
    could gain by arriving together. `success` is the share of episodes that can succeed in time.
    """
    rewards = settings.rewards
    if settings.instructions != "none":
        raise ValueError("best_return does not know what following costs; set instructions to none")
    if settings.target_move_probability > 0.0:
        raise ValueError("best_return is exact for static targets only; set target_move_probability to 0")
    if settings.targets > MOST_TARGETS and settings.mode in ("cooperative", "competitive"):
        raise ValueError(f"best_return needs num_targets of at most {MOST_TARGETS}, got {settings.targets}")
    if max(rewards.step, rewards.others) > 0.0 or min(rewards.target, rewards.done) < 0.0:
        raise ValueError("best_return needs step_reward and others_reward ≤ 0, target_reward and done_reward ≥ 0")
    world = Gridworld(replace(settings, observation="flat"), episodes)
    world.reset(seed)
    best = guide.best_play(world.places, world._rules)
    return {name: float(values.mean()) for name, values in best._asdict().items()}


def parallel_env(render_mode: str | None = None, **settings: Any) -> PettingZooEnv:
    """The same world as a PettingZoo parallel environment; `settings` are those of `GridworldSettings`."""
    from coterie.worlds.adapters.export import PettingZooEnv, settings_from_kwargs

    return PettingZooEnv(
        Gridworld(settings_from_kwargs(GridworldSettings, settings), num_envs=1), "gridworld", render_mode
    )


def single_env(render_mode: str | None = None, **settings: Any) -> Any:
    """The world with one agent as a Gymnasium environment."""
    from coterie.worlds.adapters.export import GymnasiumEnv, settings_from_kwargs

    return GymnasiumEnv(
        Gridworld(settings_from_kwargs(GridworldSettings, {"num_agents": 1} | settings), 1), "gridworld", render_mode
    )
