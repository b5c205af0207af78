"""A grid world for teams and rivals: collect targets together or in competition, meet, or race.

Actions are 0 up, 1 down, 2 left, 3 right, 4 stay; row 0 is the top. Agents may share a cell. This file holds the
settings and the `World`; the kernels of a step are in `kernels.py`, observation spaces in `observations.py`,
instructions to teams in `instructions.py`, the scripted expert in `expert.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from coterie.core.seeding import entropy
from coterie.core.settings import Settings
from coterie.core.skills import PlanCodec
from coterie.core.text import TextCodec
from coterie.core.types import AgentStep, AgentType, Array, Box, Discrete, MultiDiscrete, State, TimeStep, Tree
from coterie.core.validation import at_least, fits_in_memory, one_of, whole
from coterie.core.world import Sign, World, rebuild
from coterie.worlds.actions import first_outside
from coterie.worlds.gridworld import expert, instructions, kernels, observations, phrasings, render
from coterie.worlds.gridworld.phrasings import Instructions

if TYPE_CHECKING:
    from coterie.worlds.adapters.export import PettingZooEnv

Mode = Literal["cooperative", "competitive", "meet", "race"]
ObservationFormat = Literal["flat", "dict", "image"]

MODES: dict[str, int] = {
    "cooperative": kernels.COOPERATIVE,
    "competitive": kernels.COMPETITIVE,
    "meet": kernels.MEET,
    "race": kernels.RACE,
}
MAX_TARGETS = 10  # for the exact optimum, whose cost triples with every target


class Rewards(NamedTuple):
    """The rewards of a mode, without None."""

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
class GridworldSettings(Settings):
    """Layout, observations and rewards of a grid world."""

    # Cells along each side.
    grid_size: int = 8
    # Agents, named agent_0, agent_1, …
    num_agents: int = 2
    # Targets; None: 3 to collect, 1 to meet at, one per agent in a race.
    num_targets: int | None = None
    # The task: collect targets together, collect in competition, meet on one cell, race to the own target.
    mode: Mode = "cooperative"
    # Steps after which an episode is truncated.
    max_steps: int = 200
    # Observation format: a vector relative to the agent, a dict of absolute positions, or image planes.
    observation: ObservationFormat = "flat"
    # Cells that cannot be entered; the other cells stay connected.
    num_obstacles: int = 0
    # Probability that a remaining target moves to a free neighbouring cell after a step.
    target_move_probability: float = 0.0
    # How far agents see, in cells along either axis; None: the whole grid.
    view: int | None = None
    # Number of symbols; each agent sends one with its move, and the others observe it after the step; 0: no messages.
    messages: int = 0
    # Reward for a target: to all agents (cooperative), split among its collectors, or to the arriving agent.
    target_reward: float | None = None
    # Reward for a target to the agents that did not collect it (competitive) or have not arrived (race).
    others_reward: float | None = None
    # Reward to all agents when the episode succeeds.
    done_reward: float | None = None
    # Reward to each agent at every step.
    step_reward: float | None = None
    # Phrasings of the instruction which coloured target to collect first or last; none: no colours, no instruction.
    instructions: Instructions = "none"

    def __post_init__(self) -> None:
        for name, hint in (("mode", Mode), ("observation", ObservationFormat), ("instructions", Instructions)):
            one_of(name, getattr(self, name), get_args(hint))
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
            raise ValueError(f"others_reward is not used in mode '{self.mode}', got {self.others_reward}; leave it out")
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
            raise ValueError(f"instructions need mode 'cooperative', got '{self.mode}'")
        if self.observation == "image":
            raise ValueError("instructions are not part of images; set observation to 'flat' or 'dict', got 'image'")
        if not 2 <= self.targets <= len(phrasings.COLOURS):
            raise ValueError(
                f"instructions need 2 to {len(phrasings.COLOURS)} targets, one for each colour; "
                f"got num_targets {self.targets}"
            )

    @property
    def targets(self) -> int:
        """The number of targets; by default that of the mode."""
        if self.num_targets is not None:
            return self.num_targets
        return {"meet": 1, "race": self.num_agents}.get(self.mode, 3)

    @property
    def rewards(self) -> Rewards:
        """The rewards; by default those of the mode."""
        given = (self.target_reward, self.others_reward, self.done_reward, self.step_reward)
        return Rewards(*(d if g is None else g for g, d in zip(given, REWARDS[self.mode], strict=True)))


def _empty_grid(settings: GridworldSettings, num_envs: int) -> kernels.GridState:
    agents, targets, size = settings.num_agents, settings.targets, settings.grid_size
    return kernels.GridState(
        random=np.zeros(num_envs, np.uint64),
        time=np.zeros(num_envs, np.int32),
        agents=np.zeros((num_envs, agents, 2), np.int32),
        targets=np.zeros((num_envs, targets, 2), np.int32),
        present=np.zeros((num_envs, targets), np.bool_),
        arrived=np.zeros((num_envs, agents), np.bool_),
        symbols=np.full((num_envs, agents), -1, np.int32),
        walls=np.zeros((num_envs, size, size), np.bool_),
    )


def _no_instructions(num_envs: int) -> instructions.InstructionState:
    return instructions.InstructionState(sentence=np.full(num_envs, -1, np.int32), broken=np.zeros(num_envs, np.bool_))


def _make_scratch(settings: GridworldSettings, num_envs: int) -> tuple[kernels.Scratch, Array]:
    """Scratch arrays of a step, and those of the targets present before it."""
    size = settings.grid_size
    side = size if settings.num_obstacles else 0
    scratch = kernels.Scratch(
        queue=np.zeros((num_envs, size * size), np.int32),
        order=np.zeros((num_envs, side * side), np.int32),
        distance=np.zeros((num_envs, side, side), np.int32),
    )
    return scratch, np.zeros((num_envs, settings.targets), np.bool_)


class Gridworld(World):
    """N copies of one grid world."""

    simultaneous = True
    draws_final = True

    def __init__(self, settings: GridworldSettings, num_envs: int) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        self.settings, self.num_envs = settings, num_envs
        cells = settings.grid_size**2
        fits_in_memory(
            f"a grid of grid_size={settings.grid_size} in {num_envs} environments",
            # the walls of the present and of the latest episode, one byte each; scratch of four bytes
            (14 if settings.num_obstacles else 6) * num_envs * cells,
            "lower world.grid_size or train.num_envs",
        )
        spec = observations.observation_spec(settings)
        action = MultiDiscrete((5, settings.messages)) if settings.messages else Discrete(5)
        names = tuple(f"agent_{i}" for i in range(settings.num_agents))
        self.agent_types: Mapping[str, AgentType] = {"agent": AgentType(names, spec.space, action)}
        self.grid = _empty_grid(settings, num_envs)  # the state, without instructions
        self.instruction = _no_instructions(num_envs)  # the rest of the state
        self._final = (
            _empty_grid(settings, num_envs),
            _no_instructions(num_envs),
        )  # the end of each copy's latest episode
        self.sentences = phrasings.sentences(settings.targets) if settings.instructions != "none" else ()
        self._style = render.Style(settings.mode == "race", self.sentences)
        rewards = settings.rewards
        self._rules = kernels.Rules(
            mode=MODES[settings.mode],
            size=settings.grid_size,
            max_steps=settings.max_steps,
            obstacles=settings.num_obstacles,
            move_probability=float(settings.target_move_probability),
            sight=-1 if settings.view is None else settings.view,
            messages=settings.messages,
            target_reward=float(rewards.target),  # one Numba type, also for an integer in YAML
            others_reward=float(rewards.others),
            done_reward=float(rewards.done),
            step_reward=float(rewards.step),
        )
        self._layout, self._instruction_rules = spec.layout, spec.instruction_rules
        self._out = self._empty_output(spec.width)
        self._timestep = self._view_as_time_step(spec)
        self._scratch = _make_scratch(settings, num_envs)
        self._walks: Array | None = None  # what `skill_actions` writes to

    def _empty_output(self, width: int) -> kernels.StepOutput:
        n, a = self.num_envs, self.settings.num_agents
        return kernels.StepOutput(
            observation=np.zeros((n, a, width), np.float32),
            final_observation=np.zeros((n, a, width), np.float32),
            reward=np.zeros((n, a), np.float32),
            terminated=np.zeros((n, a), np.bool_),
            truncated=np.zeros((n, a), np.bool_),
            ended=np.zeros(n, np.bool_),
            success=np.zeros(n, np.bool_),
        )

    def _view_as_time_step(self, spec: observations.ObservationSpec) -> TimeStep:
        """Views of the output arrays in the shapes of the spaces; a step overwrites the arrays in place."""
        out = self._out

        def shaped(rows: Array) -> Tree:
            lead = rows.shape[:2]
            if isinstance(spec.space, Box):
                return rows.reshape(*lead, *spec.space.shape)
            return {
                key: rows[..., start : start + math.prod(shape)].reshape(*lead, *shape)
                for key, (start, shape) in spec.parts.items()
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
        """Reset every copy; copy i depends on (seed, i) only."""
        for n in range(self.num_envs):
            sequence = np.random.SeedSequence(entropy(seed, "gridworld", n))
            self.grid.random[n] = sequence.generate_state(1, np.uint64)[0]
        kernels.start_episode.over(self.num_envs, self.grid, self._rules, self._scratch[0])
        if self.sentences:
            drawn = self.grid, self.instruction, self._instruction_rules
            instructions.draw_instruction.over(self.num_envs, *drawn)
        return self._observe_only()

    def step(self, actions: Mapping[str, Array]) -> TimeStep:
        """Move all agents at the same time; an action out of range raises ValueError and changes nothing."""
        given = np.asarray(actions["agent"])
        wide = (2,) if self.settings.messages else ()
        expected = (self.num_envs, self.settings.num_agents, *wide)
        if given.shape != expected or given.dtype.kind not in "iu":
            raise ValueError(f"actions must be integers of shape {expected}, got {given.dtype} {given.shape}")
        chosen = np.ascontiguousarray(given, dtype=np.int64).reshape(*expected[:2], -1)
        if not self.settings.messages:
            illegal = first_outside(chosen, 0, kernels.STAY)
        else:
            moves, symbols = np.moveaxis(chosen, 2, 0)
            wrong = first_outside(moves, 0, kernels.STAY), first_outside(symbols, 0, self.settings.messages - 1)
            illegal = min((at for at in wrong if at >= 0), default=-1)
        if illegal >= 0:
            n, a = divmod(illegal, self.settings.num_agents)
            raise ValueError(
                f"agent_{a} of copy {n} chose {given[n, a].tolist()}, outside {self.agent_types['agent'].action}"
            )
        if self.sentences:
            now = self.grid, self.instruction
            arrays = self._instruction_rules, (self._rules, self._layout), chosen, self._scratch, self._out
            kernels.step_with_instructions.over(self.num_envs, now, self._final, *arrays)
        else:
            rules, layout, scratch = self._rules, self._layout, self._scratch[0]
            kernels.step.over(self.num_envs, self.grid, self._final[0], rules, layout, chosen, scratch, self._out)
        return self._timestep

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, (type(self), (self.settings, self.num_envs), self.save())

    def save(self) -> State:
        """Copies of all positions, random states and instructions."""
        return {name: array.copy() for name, array in self._saved().items()}

    def _saved(self) -> dict[str, Array]:
        return self.grid._asdict() | (self.instruction._asdict() if self.sentences else {})

    def load(self, state: State) -> TimeStep:
        """Restore a saved state."""
        for name, array in self._saved().items():
            if np.shape(state[name]) != array.shape:
                raise ValueError(f"saved '{name}' has shape {np.shape(state[name])}, expected {array.shape}")
        for name, array in self._saved().items():
            array[...] = state[name]
        return self._observe_only()

    def _observe_only(self) -> TimeStep:
        """The time step of the present state, without rewards and ends."""
        out = self._out
        for array in (out.reward, out.terminated, out.truncated, out.ended, out.success):
            array[...] = 0
        observations.observe.over(self.num_envs, self.grid, self._rules, self._layout, out.observation)
        if self.sentences:
            rules = self._instruction_rules
            instructions.observe_instructions.over(self.num_envs, self.instruction, rules, out.observation)
        return self._timestep

    def text_codec(self, agent_type: str) -> TextCodec:
        """The text codec of the grid world."""
        from coterie.worlds.gridworld.text import make_text_codec

        return make_text_codec(self, agent_type)

    def expert(self, agent_type: str, random: np.random.Generator) -> Array:
        """The scripted expert's moves, `[N, A]`, or `[N, A, 2]` with symbol 0; deterministic."""
        moves = np.zeros((self.num_envs, self.settings.num_agents), np.int64)
        expert.expert_moves(self.grid, self.instruction, self._instruction_rules, self._rules, moves)
        return np.stack([moves, np.zeros_like(moves)], axis=-1) if self.settings.messages else moves

    def skills(self, agent_type: str) -> tuple[str, ...]:
        """One skill for each target, named by its colour: walk there."""
        from coterie.worlds.gridworld.plans import skill_names

        return skill_names(self)

    def skill_actions(self, agent_type: str) -> Array:
        """The shortest ways to every target, `[N, A, K, 5]`; a collected target has zeros."""
        if self._walks is None:
            self._walks = np.zeros((self.num_envs, self.settings.num_agents, self.settings.targets, 5), np.float32)
        expert.walks(self.grid, self._rules, self._walks)
        return self._walks

    def best_skills(self, agent_type: str) -> Array:
        """The target that the scripted expert sends each agent to, `[N, A]`."""
        goals = np.zeros((self.num_envs, self.settings.num_agents), np.int64)
        expert.expert_goals(self.grid, self.instruction, self._instruction_rules, self._rules, goals)
        return goals

    def plan_codec(self, agent_type: str) -> PlanCodec:
        """The plan codec of the grid world."""
        from coterie.worlds.gridworld.plans import GridworldPlans

        return GridworldPlans(self, agent_type)

    def info(self, agent: str, copy: int) -> dict[str, Any]:
        """The instruction and whether it is broken; after the last step of an episode, those of that episode."""
        if not self.sentences:
            return {}
        instruction = self._final[1] if self._out.ended[copy] else self.instruction
        return {"instruction": self.sentences[instruction.sentence[copy]], "broken": bool(instruction.broken[copy])}

    def frame(self, copy: int, final: bool = False) -> Array:
        """An image of one copy now, or of the end of its latest finished episode."""
        return render.frame(*self._scene(final), copy, self._style)

    def ansi(self, copy: int, final: bool = False) -> str:
        """The same as text."""
        return render.ansi(*self._scene(final), copy, self._style)

    def legend(self) -> tuple[Sign, ...]:
        """The signs of agents, targets and walls."""
        return render.legend(tuple(a for spaces in self.agent_types.values() for a in spaces.agents), self._style)

    def _scene(self, final: bool) -> tuple[kernels.GridState, instructions.InstructionState]:
        return self._final if final else (self.grid, self.instruction)


def best_return(settings: GridworldSettings, episodes: int = 1000, seed: int = 0) -> dict[str, float]:
    """The mean return of perfect play over `episodes` starts drawn from `seed`.

    `mean_return` (per agent) and `length` are those of the fastest play: the exact optimum in the modes cooperative
    and meet; shortest paths for all agents in a race; every target collected without ties in competition. No joint
    play returns more than `bound`, which exceeds `mean_return` only where rivals gain by arriving together.
    `success` is the share of episodes that can succeed within the time limit.
    """
    rewards = settings.rewards
    if settings.instructions != "none":
        raise ValueError("best_return does not account for instructions; set instructions to none")
    if settings.target_move_probability > 0.0:
        raise ValueError("best_return is exact for static targets only; set target_move_probability to 0")
    if settings.targets > MAX_TARGETS and settings.mode in ("cooperative", "competitive"):
        raise ValueError(f"best_return needs num_targets of at most {MAX_TARGETS}, got {settings.targets}")
    if max(rewards.step, rewards.others) > 0.0 or min(rewards.target, rewards.done) < 0.0:
        raise ValueError("best_return needs step_reward and others_reward ≤ 0, target_reward and done_reward ≥ 0")
    world = Gridworld(replace(settings, observation="flat"), episodes)
    world.reset(seed)
    best = expert.best_play(world.grid, world._rules)
    return {name: float(values.mean()) for name, values in best._asdict().items()}


def parallel_env(render_mode: str | None = None, **settings: Any) -> PettingZooEnv:
    """The grid world as a PettingZoo parallel environment; `settings` are those of `GridworldSettings`."""
    from coterie.worlds.adapters.export import PettingZooEnv, settings_from_kwargs

    return PettingZooEnv(
        Gridworld(settings_from_kwargs(GridworldSettings, settings), num_envs=1), "gridworld", render_mode
    )


def single_env(render_mode: str | None = None, **settings: Any) -> Any:
    """The grid world with one agent as a Gymnasium environment."""
    from coterie.worlds.adapters.export import GymnasiumEnv, settings_from_kwargs

    return GymnasiumEnv(
        Gridworld(settings_from_kwargs(GridworldSettings, {"num_agents": 1} | settings), 1), "gridworld", render_mode
    )
