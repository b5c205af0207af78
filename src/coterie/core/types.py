"""Data that crosses package boundaries: spaces, time steps, views, decisions, experience.

Shapes use N environments, A agents, T steps of a rollout. `training/runner.py` fills these records, `algorithms/` reads
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
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


UNLABELLED = "unlabelled"  # in a decision's trace, [N, A] bool: chance decided in place of the policy


@dataclass(frozen=True)
class Decision:
    """A policy's actions, and their log-probabilities."""

    action: Array  # [N, A, …]
    log_prob: Array | None = None  # [N, A] float32; None for policies that have none
    memory: Array | None = None  # [N, A, M]
    trace: dict[str, Array] | None = None  # [N, A, …] each: what only this policy and its learner read; stacked unread


# What a group experienced ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Finals:
    """Last observations of truncated episodes, to bootstrap from."""

    index: Array  # [K, 2] int: (t, n)
    observation: Tree  # [K, A, …]
    memory: Array | None = None  # [K, A, M]


@dataclass(frozen=True)
class Experience:
    """One group's rollout, in the world's own rewards.

    Row t holds the decision taken at t and the reward and end that arrived at t+1. An agent that does not act at t is
    inactive there; rewards and ends that reach it while idle belong to its latest decision. A decision is pending when
    neither a next decision nor an end has closed it by row T: it is not learned from here but becomes row 0 of the next
    rollout.
    """

    observation: Tree  # [T+1, N, A, …]
    action: Array  # [T, N, A, …]
    log_prob: Array  # [T, N, A]
    reward: Array  # [T, N, A]
    active: Array  # [T, N, A] bool: the agent decided here
    terminated: Array  # [T, N, A] bool
    truncated: Array  # [T, N, A] bool
    acting: Array  # [N, A] bool: the agents that must act at row T
    finals: Finals
    mask: Array | None = None  # [T, N, A, actions]
    memory: Array | None = None  # [T+1, N, A, M]: the policy's memory when it decided
    advice: Advice | None = None  # [T, N, A, …]: what the advisor suggested; None: the group has no advisor
    trace: dict[str, Array] | None = None  # [T, N, A, …] each: the decisions' traces
    opening_group_reward: Array | None = None  # [N, A]: the group's mean reward for the decisions that opened row 0

    def group_reward(self) -> Array:
        """[T, N, A]: the mean of the group's rewards, for every agent.

        In row 0 of a turn-based world each pending decision has its own start: its mean was added up since then.
        """
        mean = np.broadcast_to(self.reward.mean(axis=2, keepdims=True), self.reward.shape).astype(np.float32)
        if self.opening_group_reward is not None:
            mean[0] = self.opening_group_reward
        return mean

    @property
    def ends(self) -> Array:
        """[T, N, A]: the agent's episode ended on the way to t+1."""
        return self.terminated | self.truncated

    def closed(self) -> Array:
        """[T, N, A] bool: decisions that are not pending: the ones to learn from."""
        later = self.acting.copy()  # has a later decision or end been seen, going backwards?
        closed = np.empty_like(self.active)
        for t in range(len(self.active) - 1, -1, -1):
            later |= self.terminated[t] | self.truncated[t]
            closed[t] = self.active[t] & later
            later |= self.active[t]
        return closed


@dataclass(frozen=True)
class StateRows:
    """The global state during a rollout."""

    rows: Array  # [T+1, N, Z]
    finals: Array  # [K, Z]: at `Finals.index`


@dataclass(frozen=True)
class Joint:
    """A learner's input besides its own group: all groups' experience, and the run's progress."""

    experiences: Mapping[str, Experience]
    iteration: int
    progress: float  # fraction of the run's total steps taken before this iteration, in [0, 1]
    spaces: Mapping[str, AgentType] = field(default_factory=dict)  # group -> what its agents see and do
    state: StateRows | None = None  # where the world has one
    ahead: float = 0.0  # fraction of the run's total steps taken when this iteration is over
    target_policies: Mapping[str, TargetPolicy] = field(default_factory=dict)  # by group, as the iteration began
    steps: int = 0  # environment steps of this iteration; where nothing is played, decisions to read


# Trees ------------------------------------------------------------------------------------------------


def map_tree(function: Callable[..., Any], *trees: Any) -> Any:
    """Apply `function` to the arrays of trees with the same structure."""
    first = trees[0]
    if isinstance(first, dict):
        return {key: function(*(tree[key] for tree in trees)) for key in first}
    if isinstance(first, Advice):
        return Advice(*(function(*parts) for parts in zip(*trees, strict=True)))
    return function(*trees)


def arrays_of(tree: Tree) -> dict[str, Array]:
    """The arrays of an observation by name, as in `entries_of`; a single one has the name ""."""
    return tree if isinstance(tree, dict) else {"": tree}


def leading(tree: Tree) -> Array:
    """One array of the tree, to read leading axes from."""
    return next(iter(arrays_of(tree).values()))


def merge(experiences: list[Experience]) -> Experience:
    """Join the experiences of several shards along the environments."""
    if len(experiences) == 1:
        return experiences[0]
    joined: dict[str, Any] = {}
    offsets = np.cumsum([0] + [e.active.shape[1] for e in experiences[:-1]])
    for spec in fields(Experience):
        parts = [getattr(e, spec.name) for e in experiences]
        axis = 0 if spec.name in ("acting", "opening_group_reward") else 1
        if spec.name == "finals":
            joined["finals"] = Finals(
                np.concatenate([f.index + [0, offset] for f, offset in zip(parts, offsets, strict=True)]),
                map_tree(lambda *a: np.concatenate(a), *(f.observation for f in parts)),
                None if parts[0].memory is None else np.concatenate([f.memory for f in parts]),
            )
        elif parts[0] is None:
            joined[spec.name] = None
        else:
            joined[spec.name] = map_tree(lambda *a, axis=axis: np.concatenate(a, axis=axis), *parts)
    return Experience(**joined)


@dataclass(frozen=True)
class PendingTransitions:
    """Decisions that were pending when the last rollout ended: row 0 of the next."""

    active: Array  # [N, A] bool
    observation: Tree  # [N, A, …]
    action: Array  # [N, A, …]
    log_prob: Array  # [N, A]
    reward: Array  # [N, A]: rewards so far
    mask: Array | None
    memory: Array | None  # [N, A, M]: when it was decided; of who left nothing open, what they remember now
    advice: Advice | None = None  # [N, A, …]
    trace: dict[str, Array] | None = None  # [N, A, …]
    group_reward: Array | None = None  # [N, A]: the group's mean rewards so far, since each decision; 0: none is open


def open_decisions(experience: Experience) -> PendingTransitions:
    """The decisions that a finished rollout leaves open, with what has arrived for them."""
    open_rows = experience.active & ~experience.closed()
    rows, num_envs, agents = open_rows.shape
    active = open_rows.any(axis=0)
    at = open_rows.argmax(axis=0)  # an agent has at most one open decision
    n, a = np.meshgrid(np.arange(num_envs), np.arange(agents), indexing="ij")
    since = np.arange(rows)[:, None, None] >= at
    gained, group_gained = (
        np.where(active, (reward * since).sum(axis=0, dtype=np.float32), np.float32(0))
        for reward in (experience.reward, experience.group_reward())
    )
    memory = None
    if experience.memory is not None:  # who left nothing open goes on from what is remembered now, who ended from none
        now = np.where(experience.ends[-1][..., None], np.float32(0), experience.memory[-1])
        memory = np.where(active[..., None], experience.memory[at, n, a], now)
    return PendingTransitions(
        active,
        map_tree(lambda o: o[at, n, a], experience.observation),
        experience.action[at, n, a],
        experience.log_prob[at, n, a],
        gained,
        None if experience.mask is None else experience.mask[at, n, a],
        memory,
        None if experience.advice is None else Advice(*(array[at, n, a] for array in experience.advice)),
        None if experience.trace is None else {name: array[at, n, a] for name, array in experience.trace.items()},
        group_gained,
    )
