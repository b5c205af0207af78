"""`TaskWorld`: N copies of a text task as a turn-based world with text observations and text actions.

In a turn the roles answer one after the other; a role reads its prompt when it is its turn and reads "" otherwise. All
copies are at the same role of the same turn, so that one batch serves them all: a copy whose episode is over waits for
the others. Instances are drawn from (seed, number of the instance). Whether an instance is for training or for tests
depends on what it is, not on when it was drawn, so the two never overlap.
"""

from __future__ import annotations

import copy as copying
import dataclasses
import json
import zlib
from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from coterie.core import seeding
from coterie.core.types import AgentStep, AgentType, Array, Counters, Mean, State, Text, TimeStep
from coterie.core.world import rebuild
from coterie.worlds.tasks.env_workers import EnvWorkers
from coterie.worlds.tasks.task import Outcome, Task, TaskSettings, chosen_roles, chosen_templates

AGENT_TYPE = "team"
MAX_PROMPT = 100_000  # characters of an observation
TEST_SHARE = 5  # one instance in five is for tests
ATTEMPTS = 10_000  # to draw an instance of a split


@dataclasses.dataclass(frozen=True)
class Said:
    """One answer of a role, for transcripts."""

    turn: int
    role: str
    prompt: str
    answer: str
    reward: float
    readable: bool
    note: str


class TaskWorld:
    """N copies of one task."""

    simultaneous = False
    state_size = 0

    def __init__(self, settings: TaskSettings, num_envs: int, task: Task) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        if num_envs % settings.group_size:
            raise ValueError(
                f"group_size ({settings.group_size}) must divide the copies of a shard (num_envs / shards), "
                f"which are {num_envs}"
            )
        self.settings, self.num_envs, self.task = settings, num_envs, task
        self.roles = chosen_roles(settings, task)
        self.agent_types: Mapping[str, AgentType] = {
            AGENT_TYPE: AgentType(self.roles, Text(MAX_PROMPT), Text(settings.max_answer))
        }
        self.workers = EnvWorkers(task, settings.env_workers)
        self.templates = chosen_templates(settings, task, task.generate(seeding.generator(0, "template")))
        self._is_fork = False
        self.reset(0)  # a new world is valid before its first reset

    # Episodes -----------------------------------------------------------------------------------------

    def reset(self, seed: int) -> TimeStep:
        """Start a new instance in every copy."""
        self._seed, self._position = seed, 0
        self._drawn = np.zeros(self.num_envs, np.int64)  # [N] instances begun
        self._waiting = np.zeros(self.num_envs, bool)  # [N] the episode is over, the next one has not begun
        self._states: list[Any] = [None] * self.num_envs
        self._said: list[tuple[Said, ...]] = [()] * self.num_envs
        self._final: list[tuple[Any, tuple[Said, ...]]] = [(None, ())] * self.num_envs
        self._answers = np.zeros((len(self.roles), 2))  # by role: answers, unreadable ones
        self._episodes, self._turns = 0, 0.0
        self._begin(range(self.num_envs))
        return self.observe()

    def _begin(self, copies: Any) -> None:
        """Draw the next instance of these copies; copies of one group draw the same one."""
        group_size = self.settings.group_size
        for copy in copies:
            number = copy // group_size + int(self._drawn[copy]) * (self.num_envs // group_size)
            self._states[copy] = draw_instance(self.task, self.settings.split, self._seed, number)
            self._said[copy] = ()
            self._drawn[copy] += 1

    def number_episodes(self) -> None:
        """Nothing to do: instances are numbered through all copies."""

    def step(self, actions: Mapping[str, Array]) -> TimeStep:
        """Apply the answers of the role whose turn it is."""
        given = np.asarray(actions[AGENT_TYPE], object)
        if given.shape != (self.num_envs, len(self.roles)):
            raise ValueError(
                f"actions of '{AGENT_TYPE}' must have shape {(self.num_envs, len(self.roles))}, got {given.shape}"
            )
        turn, column = divmod(self._position, len(self.roles))
        role, active = self.roles[column], np.flatnonzero(~self._waiting)
        answers = [str(text)[: self.settings.max_answer] for text in given[active, column]]
        outcomes = self.workers.apply([(self._states[n], role, a) for n, a in zip(active, answers, strict=True)])
        last = self._position == len(self.roles) * self.settings.turns - 1
        timestep = self._empty()
        step = timestep.agent_types[AGENT_TYPE]
        for n, answer, outcome in zip(active, answers, outcomes, strict=True):
            reward = self.reward(outcome)
            step.reward[n, column] = reward
            said = Said(turn, role, self._prompt(n, role), answer, reward, outcome.readable, outcome.note)
            self._states[n], self._said[n] = outcome.state, (*self._said[n], said)
            step.terminated[n] = outcome.solved or outcome.failed
            step.truncated[n] = last and not step.terminated[n, 0]
            timestep.ended[n] = step.terminated[n, 0] | step.truncated[n, 0]
            assert timestep.success is not None
            timestep.success[n] = outcome.solved
        self._answers[column] += len(outcomes), sum(not outcome.readable for outcome in outcomes)
        self._end(timestep, turn)
        return timestep if self._is_fork else self._observed(timestep)  # nobody plays on from a fork

    def reward(self, outcome: Outcome) -> float:
        """The acting role's reward: alpha · team + local, or alpha · team where rewards are sparse."""
        local = outcome.local if self.settings.reward == "dense" else 0.0
        return self.settings.alpha * outcome.team + local

    def _end(self, timestep: TimeStep, turn: int) -> None:
        """Keep the ends of finished episodes and move on to the next role; begin new episodes when it is time."""
        over = np.flatnonzero(timestep.ended)
        self._position += 1
        for n in over:
            self._final[n] = self._states[n], self._said[n]
            next_role = self.roles[self._position % len(self.roles)]
            timestep.agent_types[AGENT_TYPE].final_observation[n, :] = self._prompt(n, next_role)  # type: ignore[call-overload]  # an array
        self._waiting[over] = True
        self._episodes += len(over)
        self._turns += float(len(over) * (turn + 1))
        if self._is_fork:
            return
        self._begin(over)
        everyone = bool(self._waiting.all()) and not self.settings.wait
        if everyone or self._position == len(self.roles) * self.settings.turns:
            self._position, self._waiting = 0, np.zeros(self.num_envs, bool)

    # Time steps ---------------------------------------------------------------------------------------

    def _empty(self) -> TimeStep:
        """A time step without rewards and ends; every step has arrays of its own."""
        shape = (self.num_envs, len(self.roles))
        flags = np.zeros((3, *shape), bool)
        texts = np.full((2, *shape), "", object)
        step = AgentStep(texts[0], flags[0], np.zeros(shape, np.float32), flags[1], flags[2], texts[1])
        return TimeStep({AGENT_TYPE: step}, np.zeros(self.num_envs, bool), success=np.zeros(self.num_envs, bool))

    def _observed(self, timestep: TimeStep) -> TimeStep:
        """Fill in who acts and what they read."""
        step, column = timestep.agent_types[AGENT_TYPE], self._position % len(self.roles)
        step.acting[:, column] = ~self._waiting
        for n in np.flatnonzero(~self._waiting):
            step.observation[n, column] = self._prompt(n, self.roles[column])  # type: ignore[index]  # an array
        return timestep

    def observe(self) -> TimeStep:
        """The present time step, without rewards and episode ends."""
        return self._observed(self._empty())

    def _prompt(self, copy: int, role: str) -> str:
        return self.templates[role].format_map(self.task.fields(self._states[copy], role))

    # Capabilities -------------------------------------------------------------------------------------

    def fork(self, index: Array) -> Self:
        """Copies for one step; they share instances and known outcomes with this world."""
        twin = copying.copy(self)
        twin.num_envs, twin._is_fork = len(index), True
        twin._states, twin._said = [self._states[i] for i in index], [self._said[i] for i in index]
        twin._final = [(None, ())] * len(index)
        twin._waiting, twin._drawn = self._waiting[index].copy(), self._drawn[index].copy()
        twin._answers = self._answers.copy()
        return twin

    def expert(self, agent_type: str, random: np.random.Generator) -> Array:
        """The scripted solver's answers, `[N, A]`; "" for roles that do not act."""
        return self._written(lambda state, role: self.task.solve(state, role))

    def guess(self, agent_type: str, random: np.random.Generator) -> Array:
        """Random answers in the required form, `[N, A]`; "" for roles that do not act."""
        return self._written(lambda state, role: self.task.guess(state, role, random))

    def _written(self, write: Any) -> Array:
        texts = np.full((self.num_envs, len(self.roles)), "", object)
        column = self._position % len(self.roles)
        for n in np.flatnonzero(~self._waiting):
            texts[n, column] = write(self._states[n], self.roles[column])
        return texts

    def counters(self) -> Counters:
        """Unreadable answers by role and turns of an episode, since the last reset."""
        found: dict[str, float | Mean] = {"turns": Mean(self._turns, self._episodes)}
        for role, (answers, unreadable) in zip(self.roles, self._answers, strict=True):
            found[f"{role}/unreadable"] = Mean(float(unreadable), float(answers))
        return found

    def info(self, agent: str, copy: int) -> dict[str, Any]:
        """The agent's latest answer in this episode, or in the one that has just ended."""
        said = self._said[copy] or self._final[copy][1]
        own = [one for one in said if one.role == agent]
        return dataclasses.asdict(own[-1]) if own else {}

    def transcript(self, copy: int, final: bool = False) -> tuple[Said, ...]:
        """Everything said in the present episode; with `final`, in the latest one that ended."""
        return self._final[copy][1] if final else self._said[copy]

    def ansi(self, copy: int, final: bool = False) -> str:
        """The state in text, and the latest answer."""
        state, said = (
            self._final[copy]
            if final and self._final[copy][0] is not None
            else (
                self._states[copy],
                self._said[copy],
            )
        )
        lines = [self.task.draw(state)]
        if said:
            lines.append(f"{said[-1].role}: {said[-1].answer.strip()}  [{said[-1].note or 'ok'}]")
        return "\n".join(lines)

    # State --------------------------------------------------------------------------------------------

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, (type(self), (self.settings, self.num_envs), self.save())

    def save(self) -> State:
        """Instances, turns and counts."""
        return {
            "seed": self._seed,
            "position": self._position,
            "drawn": self._drawn.copy(),
            "waiting": self._waiting.copy(),
            "answers": self._answers.copy(),
            "episodes": self._episodes,
            "turns": self._turns,
            "states": json.dumps([dataclasses.asdict(state) for state in self._states]),
            "said": json.dumps([[dataclasses.asdict(one) for one in said] for said in self._said]),
        }

    def load(self, state: State) -> TimeStep:
        """Restore a saved state."""
        if len(state["drawn"]) != self.num_envs:
            raise ValueError(f"state holds {len(state['drawn'])} copies, this world has {self.num_envs}")
        self._seed, self._position = state["seed"], state["position"]
        self._drawn, self._waiting = state["drawn"].copy(), state["waiting"].copy()
        self._answers = state["answers"].copy()
        self._episodes, self._turns = state["episodes"], state["turns"]
        self._states = [self.task.state_type(**_tuples(one)) for one in json.loads(state["states"])]
        self._said = [tuple(Said(**one) for one in said) for said in json.loads(state["said"])]
        self._final = [(None, ())] * self.num_envs
        return self.observe()


def draw_instance(task: Task, split: str, seed: int, number: int) -> Any:
    """Draw instance `number` of a split; "auto" is the one for training."""
    random = seeding.generator(seed, "instance", number)
    for _ in range(ATTEMPTS):
        state = task.generate(random)
        if split_of(task, state) == ("train" if split == "auto" else split):
            return state
    raise ValueError(f"split={split}: none of {ATTEMPTS:,} instances belongs to it; make the task larger")


def split_of(task: Task, state: Any) -> str:
    """The split an instance belongs to, whoever draws it: by a hash of what it is."""
    return "test" if zlib.crc32(task.identity(state).encode()) % TEST_SHARE == 0 else "train"


def _tuples(value: Any) -> Any:
    """Lists of JSON as the tuples of a state."""
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
