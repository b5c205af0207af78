"""`TaskWorld`: N copies of a text task as a turn-based world with text observations and text actions.

In a turn the roles answer one after the other; a role reads its prompt when it is its turn and reads "" otherwise. With
`wait`, all copies are at the same role of the same turn, so that one batch serves them all: a copy whose episode is
over waits until the longest possible one would be. Instances are drawn from (seed, copy, number of the episode).
Whether an instance is for training, validation or tests depends on what it is, not on when it was drawn, so these
never overlap.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any, Self

import numpy as np

from coterie.core import seeding
from coterie.core.text import Utterance
from coterie.core.types import AgentStep, AgentType, Array, CoterieError, Counters, Mean, State, Text, TimeStep
from coterie.core.world import World, rebuild
from coterie.worlds.tasks.env_workers import EnvWorkers
from coterie.worlds.tasks.render import draw_text
from coterie.worlds.tasks.task import Outcome, Task, TaskSettings, chosen_roles, chosen_templates

AGENT_TYPE = "team"
MAX_PROMPT = 100_000  # characters of an observation
SPLITS = ("test", *("train",) * 4, "test", *("train",) * 3, "validation")  # by the last digit of a hash
ATTEMPTS = 10_000  # to draw an instance of a split
REMEMBERED = 8192  # prompts


class TaskWorld(World):
    """N copies of one task."""

    simultaneous = False
    draws_final = True

    def __init__(self, settings: TaskSettings, num_envs: int, task: Task, proposing: tuple[str, ...] = ()) -> None:
        """Roles in `proposing` are paid for what following their answer would bring: see `_paid`."""
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        if num_envs > settings.group_size and num_envs % settings.group_size:  # fewer copies are one smaller group
            raise ValueError(
                f"group_size ({settings.group_size}) must divide the copies of a shard (num_envs / shards), "
                f"which are {num_envs}"
            )
        self.settings, self.num_envs, self.task = settings, num_envs, task
        self.roles = chosen_roles(settings, task)
        self.agent_types: Mapping[str, AgentType] = {
            AGENT_TYPE: AgentType(self.roles, Text(MAX_PROMPT), Text(settings.max_answer))
        }
        self.workers = EnvWorkers(task, settings.env_workers, settings.timeout)
        self.templates = chosen_templates(settings, task, task.generate(seeding.generator(0, "template")))
        # Copies of one instance, forks and transcripts read the same prompts.
        self._written_prompt = lru_cache(REMEMBERED)(partial(write_prompt, task, self.templates, settings.turns))
        self._is_fork, self._numbered = False, False
        self._proposing = np.array([role in proposing for role in self.roles])
        self.reset(0)  # a new world is valid before its first reset

    # Episodes -----------------------------------------------------------------------------------------

    def reset(self, seed: int) -> TimeStep:
        """Start a new instance in every copy."""
        self._seed = seed
        self._position = np.zeros(self.num_envs, np.int64)  # [N] answers and waits since the episode began
        self._drawn = np.zeros(self.num_envs, np.int64)  # [N] instances begun
        self._waiting = np.zeros(self.num_envs, bool)  # [N] the episode is over, the next one has not begun
        self._paused = np.zeros(self.num_envs, bool)  # [N] nothing happens until the next reset
        self._states: list[Any] = [None] * self.num_envs
        self._said: list[tuple[Utterance, ...]] = [()] * self.num_envs
        self._final: list[tuple[Any, tuple[Utterance, ...]]] = [(None, ())] * self.num_envs
        self._answers = np.zeros((len(self.roles), 2))  # by role: answers, unreadable ones
        self._paid_so_far = np.zeros((self.num_envs, len(self.roles)))  # [N, A] for proposals of this episode
        self._episodes, self._turns = 0, 0.0
        self._begin(range(self.num_envs))
        return self.observe()

    def _begin(self, copies: Any) -> None:
        """Draw the next instance of these copies; copies of one group draw the same one."""
        size, drawn = self.settings.group_size, {}
        for copy in copies:
            group, episode = copy // size, int(self._drawn[copy])
            if self._numbered:
                group, episode = group + episode * max(1, self.num_envs // size), 0
            if (group, episode) not in drawn:
                drawn[group, episode] = draw_instance(self.task, self.settings.split, (self._seed, group, episode))
            self._states[copy] = drawn[group, episode]
            self._said[copy] = ()
            self._paid_so_far[copy] = 0
            self._drawn[copy] += 1

    def number_episodes(self) -> None:
        """Number the episodes through all copies, from the next reset on."""
        self._numbered = True

    def pause(self, copies: Array) -> None:
        """Leave these copies as they are until the next reset."""
        self._paused |= copies

    @property
    def _acting(self) -> Array:
        """[N] copies in which a role is to answer."""
        return ~(self._waiting | self._paused)

    def step(self, actions: Mapping[str, Array]) -> TimeStep:
        """Apply the answers of the role whose turn it is."""
        given = np.asarray(actions[AGENT_TYPE], object)
        if given.shape != (self.num_envs, len(self.roles)):
            raise ValueError(
                f"actions of '{AGENT_TYPE}' must have shape {(self.num_envs, len(self.roles))}, got {given.shape}"
            )
        active = np.flatnonzero(self._acting)
        columns = self._position[active] % len(self.roles)
        answers = [str(answer)[: self.settings.max_answer] for answer in given[active, columns]]
        outcomes = self.workers.apply(
            [
                (self._states[n], self.roles[column], answer)
                for n, column, answer in zip(active.tolist(), columns.tolist(), answers, strict=True)
            ]
        )
        for outcome in outcomes:
            if not isinstance(outcome, Outcome):
                task = type(self.task).__name__
                raise CoterieError(
                    f"{task}.apply must return an Outcome, got {type(outcome).__name__} ({outcome!r:.60})"
                )
        timestep = self._answered(active, columns, answers, outcomes)
        self._end(timestep)
        return timestep if self._is_fork else self._observed(timestep)  # nobody plays on from a fork

    def _answered(self, active: Array, columns: Array, answers: list[str], outcomes: list[Outcome]) -> TimeStep:
        """The time step that the answers of these copies make, without observations; counts and transcripts too."""
        timestep = self._empty()
        step, last = timestep.agent_types[AGENT_TYPE], self._position[active] == self._longest - 1
        reward = self._paid(active, columns, outcomes)
        if not self._is_fork:  # nobody reads what was said in a fork
            rows = zip(active.tolist(), columns.tolist(), answers, reward.tolist(), outcomes, strict=True)
            for n, column, answer, paid, outcome in rows:
                turn, role = int(self._position[n]) // len(self.roles), self.roles[column]
                said = Utterance(turn, role, self._prompt(n, role), answer, paid, outcome.readable, outcome.note)
                self._said[n] = (*self._said[n], said)
        for n, outcome in zip(active.tolist(), outcomes, strict=True):
            self._states[n] = outcome.state
        found = [(one.solved, one.solved or one.failed, not one.readable) for one in outcomes]
        solved, over, unreadable = np.array(found, bool).reshape(-1, 3).T
        np.add.at(self._answers, columns, np.stack([np.ones(len(active)), unreadable], axis=1))
        step.reward[active, columns] = reward
        step.terminated[active], step.truncated[active] = over[:, None], (last & ~over)[:, None]
        timestep.ended[active] = over | last
        assert timestep.success is not None
        timestep.success[active] = solved
        return timestep

    @property
    def _longest(self) -> int:
        """Answers of the longest possible episode."""
        return len(self.roles) * self.settings.turns

    def _paid(self, active: Array, columns: Array, outcomes: list[Outcome]) -> Array:
        """The acting roles' rewards. A proposal earns what it improves on the role's last one in this episode.

        So the rewards of an episode's proposals add up to the reward of the last one: a team cannot earn by delaying
        the solution. Candidates for one answer differ as if each got its full reward.
        """
        reward = np.array([self.reward(outcome) for outcome in outcomes], float)
        proposes = self._proposing[columns]
        place = active[proposes], columns[proposes]
        earlier = self._paid_so_far[place]
        self._paid_so_far[place] = reward[proposes]
        reward[proposes] -= earlier
        return reward

    def reward(self, outcome: Outcome) -> float:
        """The reward of an answer: alpha · team + local, or alpha · team where rewards are sparse."""
        local = outcome.local if self.settings.reward == "dense" else 0.0
        return self.settings.alpha * outcome.team + local

    def _end(self, timestep: TimeStep) -> None:
        """Keep the ends of finished episodes and move on to the next role; begin new episodes when it is time."""
        if self._is_fork:  # nobody plays on from it
            self._waiting |= timestep.ended
            self._position += 1
            return
        over = np.flatnonzero(timestep.ended).tolist()
        final: Any = timestep.agent_types[AGENT_TYPE].final_observation
        for n in over:
            self._final[n] = self._states[n], self._said[n]
            final[n] = [self._prompt(n, role) for role in self.roles]
            self._turns += self._position[n] // len(self.roles) + 1
        self._episodes += len(over)
        self._waiting |= timestep.ended
        self._position += 1
        self._begin(over)
        begins = self._waiting & ((self._position == self._longest) | (not self.settings.wait))
        self._position[begins], self._waiting[begins] = 0, False

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
        step, columns = timestep.agent_types[AGENT_TYPE], self._position % len(self.roles)
        active = np.flatnonzero(self._acting)
        step.acting[active, columns[active]] = True
        observation: Any = step.observation
        known: dict[tuple[int, int, int], str] = {}  # forks of a copy share its state, and to hash one takes a while
        for n, column, position in zip(
            active.tolist(), columns[active].tolist(), self._position[active].tolist(), strict=True
        ):
            key = id(self._states[n]), column, position
            if key not in known:
                known[key] = self._prompt(n, self.roles[column])
            observation[n, column] = known[key]
        return timestep

    def observe(self) -> TimeStep:
        """The present time step, without rewards and episode ends."""
        return self._observed(self._empty())

    def _prompt(self, copy: int, role: str) -> str:
        return self._written_prompt(self._states[copy], role, int(self._position[copy]) // len(self.roles) + 1)

    # Capabilities -------------------------------------------------------------------------------------

    def fork(self, index: Array) -> Self:
        """Copies for one step; they share instances and known outcomes with this world."""
        twin = object.__new__(type(self))  # copy.copy would rebuild the world, with workers and outcomes of its own
        vars(twin).update(vars(self))
        twin.num_envs, twin._is_fork = len(index), True
        twin._states, twin._said = [self._states[i] for i in index], [self._said[i] for i in index]
        twin._final = [(None, ())] * len(index)
        for name in ("_waiting", "_paused", "_drawn", "_position"):
            setattr(twin, name, getattr(self, name)[index].copy())
        twin._answers, twin._paid_so_far = self._answers.copy(), self._paid_so_far[index].copy()
        return twin

    def expert(self, agent_type: str, random: np.random.Generator) -> Array:
        """The scripted solver's answers, `[N, A]`; "" for roles that do not act."""
        return self._written(lambda state, role: self.task.solve(state, role))

    def guess(self, agent_type: str, random: np.random.Generator) -> Array:
        """Random answers in the required form, `[N, A]`; "" for roles that do not act."""
        return self._written(lambda state, role: self.task.guess(state, role, random))

    def _written(self, write: Any) -> Array:
        texts = np.full((self.num_envs, len(self.roles)), "", object)
        columns = self._position % len(self.roles)
        for n in np.flatnonzero(self._acting).tolist():
            texts[n, columns[n]] = write(self._states[n], self.roles[columns[n]])
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

    def transcript(self, copy: int, final: bool = False) -> tuple[Utterance, ...]:
        """The texts of the present episode; with `final`, of the latest one that ended."""
        return self._final[copy][1] if final else self._said[copy]

    def last_instance(self, copy: int) -> str:
        """The first prompt of the latest episode that ended in a copy."""
        return self._final[copy][1][0].prompt

    def ansi(self, copy: int, final: bool = False) -> str:
        """The state in text, and the latest answer."""
        ended = final and self._final[copy][0] is not None
        state, said = self._final[copy] if ended else (self._states[copy], self._said[copy])
        lines = [self.task.draw(state)]
        if said:
            lines.append(f"{said[-1].role}: {said[-1].answer.strip()}  [{said[-1].note or 'ok'}]")
        return "\n".join(lines)

    def frame(self, copy: int, final: bool = False) -> Array:
        """The same as a picture of text."""
        return draw_text(self.ansi(copy, final))

    def close(self) -> None:
        """End the child processes that apply answers."""
        self.workers.close()

    # State --------------------------------------------------------------------------------------------

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, (type(self), (self.settings, self.num_envs), self.save())

    def save(self) -> State:
        """Instances, turns and counts."""
        return {
            "seed": self._seed,
            "numbered": self._numbered,
            "position": self._position.copy(),
            "drawn": self._drawn.copy(),
            "paused": self._paused.copy(),
            "waiting": self._waiting.copy(),
            "answers": self._answers.copy(),
            "paid_so_far": self._paid_so_far.copy(),
            "episodes": self._episodes,
            "turns": self._turns,
            "states": json.dumps([dataclasses.asdict(state) for state in self._states]),
            "said": json.dumps([[dataclasses.asdict(one) for one in said] for said in self._said]),
        }

    def load(self, state: State) -> TimeStep:
        """Restore a saved state."""
        if len(state["drawn"]) != self.num_envs:
            raise ValueError(f"state holds {len(state['drawn'])} copies, this world has {self.num_envs}")
        self._seed, self._numbered = state["seed"], state["numbered"]
        for name in ("position", "drawn", "waiting", "paused", "answers", "paid_so_far"):
            setattr(self, f"_{name}", state[name].copy())
        self._episodes, self._turns = state["episodes"], state["turns"]
        self._states = [self.task.state_type(**_tuples(one)) for one in json.loads(state["states"])]
        self._said = [tuple(Utterance(**one) for one in said) for said in json.loads(state["said"])]
        self._final = [(None, ())] * self.num_envs
        return self.observe()


def write_prompt(task: Task, templates: Mapping[str, str], turns: int, state: Any, role: str, turn: int) -> str:
    """The prompt of a role in a state and turn."""
    return templates[role].format_map({**task.fields(state, role), "turn": str(turn), "turns": str(turns)})


def draw_instance(task: Task, split: str, key: tuple[int, ...]) -> Any:
    """Draw the instance of a split that a key (a seed and further numbers) stands for; "auto" is training's."""
    random = seeding.generator(key[0], "instance", *key[1:])
    for _ in range(ATTEMPTS):
        state = task.generate(random)
        if split_of(task, state) == ("train" if split == "auto" else split):
            return state
    raise ValueError(
        f"split={split}: none of {ATTEMPTS:,} instances belongs to it; make the task larger, or set split=train, which "
        "plays the same instances everywhere"
    )


def split_of(task: Task, state: Any) -> str:
    """The split an instance belongs to, whoever draws it: by a hash of what it is."""
    return SPLITS[zlib.crc32(task.identity(state).encode()) % len(SPLITS)]


def _tuples(value: Any) -> Any:
    """Lists of JSON as the tuples of a state."""
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
