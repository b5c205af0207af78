"""Data that crosses package boundaries: spaces, time steps, views, decisions.

Shapes use N environments, A agents, T steps of a rollout. What learners read is in `decisions.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from coterie.core.world import World

Array = np.ndarray
Tree = Array | dict[str, Array]
State = dict[str, Any]  # nested; leaves are arrays and plain JSON values
Metrics = dict[str, float]


class Mean(NamedTuple):
    """A mean as a sum and a weight, so that means of several processes can be merged."""

    total: float
    weight: float  # how many values were summed


class Distinct(NamedTuple):
    """A number of different things, which several processes may have met alike."""

    met: frozenset[str]


Counter = float | Mean | Distinct
Counters = Mapping[str, Counter]  # counts, which add up across processes, means, and numbers of different things


def merge_counters(parts: Iterable[Counters]) -> dict[str, Counter]:
    """The counters of several processes as those of one."""
    merged: dict[str, Counter] = {}
    for part in parts:
        for name, value in part.items():
            match merged.get(name), value:
                case None, _:
                    merged[name] = value
                case Mean() as one, Mean() as other:
                    merged[name] = Mean(one.total + other.total, one.weight + other.weight)
                case Distinct() as one, Distinct() as other:
                    merged[name] = Distinct(one.met | other.met)
                case (float() | int()) as one, (float() | int()) as other:
                    merged[name] = one + other
                case _:
                    raise TypeError(f"'{name}' is a mean in one process and a count in another")
    return merged


def counted_since(before: Counters, now: Counters) -> dict[str, Counter]:
    """The difference between two readings of the same counters."""
    found: dict[str, Counter] = {}
    for name, value in now.items():
        match before.get(name), value:
            case None, _:
                found[name] = value
            case Mean() as earlier, Mean() as later:
                found[name] = Mean(later.total - earlier.total, later.weight - earlier.weight)
            case Distinct() as earlier, Distinct() as later:
                found[name] = Distinct(later.met - earlier.met)
            case (float() | int()) as earlier, (float() | int()) as later:
                found[name] = later - earlier
            case _:
                raise TypeError(f"'{name}' was a mean in one reading and is a count in another")
    return found


def as_metrics(counters: Counters) -> Metrics:
    """Counters as numbers; means of nothing are left out."""
    found: Metrics = {}
    for name, value in counters.items():
        if isinstance(value, Distinct):
            found[name] = float(len(value.met))
        elif not isinstance(value, Mean):
            found[name] = value
        elif value.weight:
            found[name] = value.total / value.weight
    return found


TargetPolicy = Callable[[Array, Array], Array]  # packed observations [R, A, D], legal [R, A, K] -> actions [R, A, K]


class CoterieError(Exception):
    """A failure with a known cause; the command line prints it without a traceback."""


class UnknownName(CoterieError):
    """A config names something that does not exist."""


# Spaces ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Box:
    """An array of real numbers (or bytes) with bounds."""

    shape: tuple[int, ...]
    low: Array | float
    high: Array | float
    dtype: str = "float32"

    def __eq__(self, other: object) -> bool:
        return (
            type(other) is Box
            and (self.shape, self.dtype) == (other.shape, other.dtype)
            and bool(np.all(np.asarray(self.low) == np.asarray(other.low)))
            and bool(np.all(np.asarray(self.high) == np.asarray(other.high)))
        )

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))


@dataclass(frozen=True)
class Discrete:
    """One of `n` choices: an int64 from 0 to n − 1."""

    n: int


@dataclass(frozen=True)
class MultiDiscrete:
    """Several discrete choices at once; an action is an integer vector."""

    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Dict:
    """Named observations. `sets` lists keys whose rows together describe one unordered set of objects.

    `sets=(("target_pos", "target_status"),)`: row i of both arrays describes target i, and the order and number of rows
    carry no meaning. The set encoder uses this.
    """

    entries: dict[str, Box | Discrete]
    sets: tuple[tuple[str, ...], ...] = ()

    def __hash__(self) -> int:
        return hash((frozenset(self.entries), self.sets))  # the order of entries does not tell spaces apart


@dataclass(frozen=True)
class Text:
    """A string of at most `max_length` characters; arrays of texts have the dtype object."""

    max_length: int


ObservationSpace = Box | Discrete | Dict | Text
ActionSpace = Discrete | MultiDiscrete | Box | Text


def entries_of(space: ObservationSpace) -> Mapping[str, Box | Discrete | Text]:
    """The spaces of an observation's arrays by name; that of a single array has the name ""."""
    return space.entries if isinstance(space, Dict) else {"": space}


def action_shape(space: ActionSpace) -> tuple[int, ...]:
    """The shape of one agent's action."""
    match space:
        case Discrete() | Text():
            return ()
        case MultiDiscrete(sizes):
            return (len(sizes),)
        case Box(shape):
            return shape


def action_dtype(space: ActionSpace) -> str:
    """Integers for choices, floats for boxes, objects for texts."""
    return "float32" if isinstance(space, Box) else "object" if isinstance(space, Text) else "int64"


def blank(shape: tuple[int, ...], dtype: Any) -> Array:
    """An array of zeros, or of empty texts."""
    return np.full(shape, "", object) if np.dtype(dtype) == object else np.zeros(shape, dtype)


def sampling_bounds(space: Box) -> tuple[Array, Array]:
    """Bounds to draw uniform numbers from; a missing bound lies 10 beyond 0, or beyond the other bound."""
    low, high = (np.broadcast_to(np.asarray(bound, np.float64), space.shape) for bound in (space.low, space.high))
    lowest = np.where(np.isfinite(low), low, np.minimum(np.where(np.isfinite(high), high, 0), 0) - 10)
    highest = np.where(np.isfinite(high), high, np.maximum(np.where(np.isfinite(low), low, 0), 0) + 10)
    return lowest, highest


RANDOM_TEXT = 32  # characters that a random text has at most


def random_texts(space: Text, shape: tuple[int, ...], random: np.random.Generator) -> Array:
    """Texts of printable characters, of random lengths up to `RANDOM_TEXT`."""
    texts = blank(shape, object)
    for index in np.ndindex(shape):
        length = int(random.integers(min(space.max_length, RANDOM_TEXT) + 1))
        texts[index] = "".join(map(chr, random.integers(32, 127, length).tolist()))
    return texts


@dataclass(frozen=True)
class AgentType:
    """Agents with the same observation and action spaces; every group lies inside one agent type."""

    agents: tuple[str, ...]
    observation: ObservationSpace
    action: ActionSpace


# What a world returns ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AgentStep:
    """The result of a reset or step for one agent type.

    Arrays belong to the world and are valid until its next step. `terminated` and `truncated` are true once; afterwards
    the agent neither acts nor gets rewards until its environment is reset. After a reset, `observation` is the new
    episode's first and `final_observation` the old episode's last.
    """

    observation: Tree  # [N, A, …]
    acting: Array  # [N, A] bool: the agents that must act now
    reward: Array  # [N, A] float32
    terminated: Array  # [N, A] bool
    truncated: Array  # [N, A] bool
    final_observation: Tree  # [N, A, …] valid where the episode ended
    mask: Array | None = None  # [N, A, actions] bool: legal actions; discrete spaces only


@dataclass(frozen=True)
class TimeStep:
    """The step of every agent type, and what concerns the environment as a whole."""

    agent_types: Mapping[str, AgentStep]
    ended: Array  # [N] bool: the episode ended in this step and the environment was reset
    success: Array | None = None  # [N] bool: valid where ended; None in worlds without a notion of success
    state: Array | None = None  # [N, Z] float32: the global state, for centralized critics; None: all observations
    final_state: Array | None = None  # [N, Z] valid where ended


# What a policy sees and decides --------------------------------------------------------------------------


class Advice(NamedTuple):
    """Suggested action distributions, one per decision, from the advisor to the loss."""

    given: Array  # […, A] bool: the advisor answered
    probabilities: Array  # […, A, K] float32: of each action; 0 for illegal ones and where no advice was given
    strength: Array  # […, A] float32: weight of the advice at this time of the run; 0 where none was given

    @property
    def hint(self) -> Array:
        """Strength and probabilities as actor inputs, `[…, A, 1 + K]`."""
        return np.concatenate([self.strength[..., None], self.probabilities], axis=-1)


@dataclass(frozen=True)
class View:
    """The input of a group's policy, for all environments at once. Rows where `acting` is False are ignored."""

    observation: Tree  # [N, A, …]
    acting: Array  # [N, A] bool
    agents: Array  # [A] int: index of each agent within its group
    random: np.random.Generator
    greedy: bool = False
    mask: Array | None = None  # [N, A, actions] bool
    memory: Array | None = None  # [N, A, M]: the policy's last `Decision.memory`; zero at an episode's start
    world: World | None = None  # None when observations come from outside a world
    agent_type: str = ""
    columns: Array | None = None  # [A] int: index of each agent within its agent type
    advice: Advice | None = None  # [N, A, …]: what the advisor suggests; None: it was not asked
    progress: float | None = None  # fraction of the run's steps taken before this iteration; None outside of training
    step_count: int = 0  # steps played before this one, since the run or the evaluation began
    frames: int = 0  # the same in environment steps, summed over all environments and shards


class Shown(NamedTuple):
    """Rows of what a rollout's decisions were shown besides observations; None: nothing of that kind."""

    mask: Array | None  # [T, N, A, actions] bool
    advice: Advice | None  # [T, N, A, …]


UNLABELLED = "unlabelled"  # in a decision's trace, [N, A] bool: chance decided in place of the policy


@dataclass(frozen=True)
class Decision:
    """A policy's actions, and their log-probabilities."""

    action: Array  # [N, A, …]
    log_prob: Array | None = None  # [N, A] float32; None for policies that have none
    memory: Array | None = None  # [N, A, M]
    trace: dict[str, Array] | None = None  # [N, A, …] each: what only this policy and its learner read; stacked unread
