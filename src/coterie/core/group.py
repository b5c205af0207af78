"""Groups: agents that share a policy, a learner and a preference.

A `GroupSpec` is where a group sits (which agents, of which kind); a `Actor` is the acting half that runners
need; a `Group` adds the learning half. Nothing here knows the loop.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from coterie.core.types import AgentType, Array, Decision, Experience, Joint, Metrics, Peer, State, View

if TYPE_CHECKING:
    from coterie.core.advice import Advice
    from coterie.core.world import World

Parameters = Literal["shared", "individual"]


class GroupInfo(NamedTuple):
    """One group at a table, as the others know it."""

    group: str
    agents: int
    spaces: AgentType


@dataclass(frozen=True)
class GroupSpec:
    """Where a group sits at the table: all a policy or learner may know of it when it is built."""

    group: str
    agent_type: str
    spaces: AgentType
    agents: tuple[str, ...]
    columns: Array  # [A] int: place of each agent within its kind
    parameters: Parameters = "shared"
    seed: int = 0
    state_size: int = 0  # numbers of the table's joint state, for central critics
    simultaneous: bool = True  # everybody acts at every tick
    table: tuple[GroupInfo, ...] = ()  # all groups in the config's order, this one among them; empty: it sits alone
    world: World | None = None  # as it was built, for who must know more of it than spaces; None: nobody says
    advice: Advice | None = None  # what its decisions are advised by; None: by nobody

    @property
    def parameter_sets(self) -> int:
        """How many sets of parameters the group has: one, or one for each agent."""
        return len(self.agents) if self.parameters == "individual" else 1

    @property
    def party(self) -> GroupInfo:
        """This group as the others know it."""
        return GroupInfo(self.group, len(self.agents), self.spaces)

    @functools.cached_property
    def whole(self) -> bool:
        """Whether the group is the whole kind in order, so that arrays need no slicing."""
        return np.array_equal(self.columns, np.arange(len(self.spaces.agents)))


class Policy(Protocol):
    """What acts: network, search, script, language model, person. Synchronous and batched."""

    memory_size: int  # numbers remembered for each agent between decisions; 0 = none

    def act(self, view: View) -> Decision:
        """Decide for every copy and agent in the view."""
        ...

    def state(self) -> State:
        """Weights and whatever else decides how it acts."""
        ...

    def load(self, state: State) -> None:
        """Become the policy whose state this is."""
        ...


@runtime_checkable
class Reporting(Protocol):
    """A policy, or who sits beside one, with something to tell beside what it does."""

    def metrics(self) -> Metrics:
        """What it counted since it was built, for metrics.jsonl and evaluations."""
        ...


class Annotator(Protocol):
    """What writes notes beside a group's decisions before they are taken: an advisor, a teacher."""

    width: int  # numbers of one note
    always: bool  # it is asked in evaluations and matches, too, not only in training

    def note(self, view: View, policy: Policy) -> Array:
        """What it says to each decision, `[N, A, width]` float32; NaN where it says nothing."""
        ...

    def state(self) -> State:
        """What its next notes depend on."""
        ...

    def load(self, state: State) -> None:
        """Return to a saved state."""
        ...


@runtime_checkable
class Advised(Protocol):
    """An annotator whose notes are advice, for policies and learners that follow it."""

    advice: Advice


class ActionShield(Protocol):
    """What keeps a group from some of its actions, in training and ever after."""

    choices: int  # actions of the group's agents

    def allowed(self, view: View) -> Array:
        """Which actions may be taken, `[N, A, choices]` bool: some of the legal ones, never none."""
        ...

    def witness(self, view: View, action: Array) -> None:
        """See what was decided, `[N, A]`, where `view` has the mask that it gave."""
        ...

    def state(self) -> State:
        """What its next judgements depend on."""
        ...

    def load(self, state: State) -> None:
        """Return to a saved state."""
        ...


@runtime_checkable
class Charging(Protocol):
    """A guard that has a say in what a learner is paid, or wants to see it."""

    def charge(self, preference: Preference) -> Preference:
        """The preference as the guard has it; a ValueError if it cannot stand beside that one."""
        ...


class Learner(Protocol):
    """What improves a group's policy from experience."""

    policy: Policy

    def learn(self, own: Experience, joint: Joint, random: np.random.Generator) -> Metrics:
        """Improve the policy in place and say how it went."""
        ...

    def state(self) -> State:
        """Everything beside the policy's own state: critics, optimisers, replay."""
        ...

    def load(self, state: State) -> None:
        """Return to a saved state."""
        ...


@runtime_checkable
class HasTargetPolicy(Protocol):
    """A learner that shows others where its policy is going, so that their critics need not look back."""

    def peer(self) -> Peer:
        """The target policy as it is now; whatever is learned later does not move it."""
        ...


@runtime_checkable
class Probing(Protocol):
    """A learner that has to see how a world goes on before it can say whether it serves there."""

    def probe(self, own: Experience) -> None:
        """Raise a ValueError if it does not; `own` is a first glimpse, with nothing learned yet."""
        ...


class Preference(Protocol):
    """How a group values its rewards. A learner says in a class attribute `ways` which ways it serves."""

    way: str  # "step": rewards as they come; "interim" or "episodic": a distribution of returns, and it is a `Risk`

    def rewards(self, experience: Experience) -> Array:
        """The rewards to learn from, `[T, N, A]`; stored rewards stay as they are."""
        ...


@runtime_checkable
class Settled(Protocol):
    """A preference that has to know whose it is."""

    def settle(self, group_spec: GroupSpec, gamma: float) -> None:
        """Told once, before anything is valued: where the group sits, and its learner's discount."""
        ...


@runtime_checkable
class Kept(Protocol):
    """A preference whose next values depend on what it has seen."""

    def state(self) -> State:
        """What a checkpoint must hold."""
        ...

    def load(self, state: State) -> None:
        """Return to a saved state."""
        ...


class RiskParameters(NamedTuple):
    """Parameters of a risk measure (`preferences/risk_kernels.py`); the defaults value the mean alone."""

    alpha: float = 1.0  # u(x) = x^alpha for gains x, counted from the reference
    beta: float = 1.0  # u(−x) = −loss_aversion · x^beta for losses
    loss_aversion: float = 1.0
    reference: float = 0.0
    gamma_gains: float = 1.0  # w(p) = p^γ / (p^γ + (1 − p)^γ)^{1/γ}; 1: probabilities as they are
    gamma_losses: float = 1.0
    level: float = 1.0  # CVaR: the fraction of worst outcomes that counts
    aversion: float = 0.0  # weight of the variance


@runtime_checkable
class Risk(Preference, Protocol):
    """A preference over distributions of returns; its rewards are the world's own."""

    def judge(self) -> RiskParameters:
        """Its numbers, for critics that know distributions."""
        ...

    def value(self, samples: Array) -> Array:
        """What `[…, M]` equally likely outcomes are worth, `[…]`."""
        ...

    def influence(self, samples: Array) -> Array:
        """How much each of `[…, M]` samples moves that value, up to a constant: what a policy gradient weighs by."""
        ...


@dataclass(frozen=True)
class Actor:
    """The acting half of a group. `members` says which of the policy's own agents sit here; None: all."""

    group_spec: GroupSpec
    policy: Policy
    members: Array | None = None  # [A] int
    annotator: Annotator | None = None  # who comments on its decisions
    guard: ActionShield | None = None  # who keeps it from some


@dataclass(frozen=True)
class Group:
    """A seat and, unless the group is frozen, what improves its policy."""

    actor: Actor
    learner: Learner | None = None
    preference: Preference | None = None  # the learner's

    @property
    def name(self) -> str:
        return self.actor.group_spec.group

    @property
    def policy(self) -> Policy:
        return self.actor.policy
