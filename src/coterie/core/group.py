"""Groups: agents that share a policy, a learner and a preference.

A `GroupSpec` says which agents a group has and what they see and do; an `Actor` is the acting half of a group, an
advisor and an action shield included; a `Group` adds the learning half. Every policy, learner, preference, advisor and
shield has `state`, `load` and `metrics`.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from coterie.core.lookup import Trust
from coterie.core.types import (
    Advice,
    AgentType,
    Array,
    CoterieError,
    Counter,
    Counters,
    Decision,
    Experience,
    Joint,
    Metrics,
    State,
    View,
)

if TYPE_CHECKING:
    from coterie.core.advice import AdviceUse
    from coterie.core.world import World

Parameters = Literal["shared", "individual"]


class GroupInfo(NamedTuple):
    """One group of a table, as other groups know it."""

    group: str
    agents: int
    spaces: AgentType


@dataclass(frozen=True)
class GroupSpec:
    """Facts about a group from which its policy and learner are built."""

    group: str  # its name
    agent_type: str
    spaces: AgentType
    agents: tuple[str, ...]
    columns: Array  # [A] int: index of each agent within its agent type
    parameters: Parameters = "shared"
    seed: int = 0
    state_size: int = 0  # size of the joint state, for centralized critics
    simultaneous: bool = True  # all agents act at every step
    table: tuple[GroupInfo, ...] = ()  # all groups in the config's order, this one included; empty: no others
    world: World | None = None  # as it was built; None: observations come from outside a world
    advice: AdviceUse | None = None  # how the group uses advice; None: it gets none
    learns: bool = False  # a learner improves the group, in this process or in another
    trust: Trust = "signed"  # which of the runs that its settings name may name code

    @property
    def parameter_sets(self) -> int:
        """The number of parameter sets: one, or one per agent."""
        return len(self.agents) if self.parameters == "individual" else 1

    @property
    def info(self) -> GroupInfo:
        """This group as other groups know it."""
        return GroupInfo(self.group, len(self.agents), self.spaces)

    @functools.cached_property
    def whole(self) -> bool:
        """Whether the group is its whole agent type in order, so that arrays need no slicing."""
        return np.array_equal(self.columns, np.arange(len(self.spaces.agents)))


class Stateful(Protocol):
    """Anything with a state that checkpoints hold and numbers to log."""

    def state(self) -> State:
        """The state on which its future behaviour depends."""
        ...

    def load(self, state: State) -> None:
        """Return to a saved state."""
        ...

    def metrics(self) -> Counters:
        """Numbers to log, counted since it was built or since the last call; {} where there are none."""
        ...


class Stateless:
    """`state`, `load` and `metrics` of a part that has nothing to save or to log; a base class."""

    def state(self) -> State:
        return {}

    def load(self, state: State) -> None:
        """There is nothing to load."""

    def metrics(self) -> Counters:
        return {}


def check_members(part: object, protocol: type) -> None:
    """Raise `ValueError` if `part` lacks a member of `protocol`; methods inherited from a protocol do not count."""
    wanted: dict[str, object] = {}  # name -> the protocol's own method, which does nothing; None: no method
    for base in protocol.__mro__[::-1]:
        if getattr(base, "_is_protocol", False):
            wanted |= dict.fromkeys(inspect.get_annotations(base))
            wanted |= {name: member for name, member in vars(base).items() if callable(member) and name[0] != "_"}
    missing: list[str] = []
    for name, method in wanted.items():
        found = inspect.getattr_static(part, name, missing)  # does not run properties
        if (found is missing and not hasattr(part, name)) or (method is not None and found in (method, None)):
            missing.append(name)
    if missing:
        named = f"the protocol {protocol.__name__} has {', '.join(wanted)}"
        raise ValueError(f"'{type(part).__name__}' lacks {', '.join(missing)}; {named}")


class Policy(Stateful, Protocol):
    """Acts: a network, search, script, language model or person. Synchronous and batched.

    A class may have more members, which the build step reads:

    - `needs`: a protocol, a capability that the world must have;
    - `max_envs`: the most environments in which it can act at once; any number if it is not there, and a training
      that plays more is refused;
    - `labels_complete`: whether its learner has all the labels that it takes, so that an advisor need not give more; a
      part of its state, so that advisors in other processes know it too; False if it is not there;
    - `start_from(state)`: takes over what fits of the state of a policy that is built otherwise; `load` if it is not
      there, and the state must fit.
    """

    memory_size: int  # numbers remembered for each agent between decisions; 0: none

    def act(self, view: View) -> Decision:
        """Decide for every environment and agent in the view."""
        ...


@runtime_checkable
class Advisor(Stateful, Protocol):
    """Suggests actions before a group decides; it could also act by itself.

    A class with `takes_actor = True` is built with a third argument: the actor of the policy that its settings `policy`
    and `checkpoint` name.
    """

    advice_use: AdviceUse  # how the group's policy and learner use what it says
    in_evaluation: bool  # it is asked in evaluations and matches too, not only in training
    scored_alone: bool  # the summary of a run shows how well it does by itself

    def advise(self, view: View, policy: Policy) -> View:
        """The view with `advice` filled in."""
        ...

    def suggest(self, view: View) -> Advice:
        """Advice for every agent that acts; rows without an answer are marked as not given."""
        ...


@runtime_checkable
class WeighsAdvice(Protocol):
    """An advisor that judges its advice by what came of it."""

    def weigh(self, own: Experience) -> Experience:
        """The experience with other strengths of advice, before its group learns from it."""
        ...


class ActionShield(Stateful, Protocol):
    """Keeps a group from some of its actions, in training and in evaluation."""

    choices: int  # actions of the group's agents

    def allowed(self, view: View) -> Array:
        """Actions that may be taken, `[N, A, choices]` bool: a subset of the legal ones, never empty."""
        ...

    def observe(self, view: View, action: Array) -> None:
        """See what was decided, `[N, A]`; `view` has the mask that `allowed` returned."""
        ...

    def charge(self, preference: Preference) -> Preference:
        """The preference with this shield's penalties; a ValueError if the two cannot be combined."""
        ...


class Learner(Stateful, Protocol):
    """Improves a group's policy from experience; its state is everything besides the policy's own.

    A class may have more members:

    - `teaches`: the class of policies that it improves, and `also_teaches`, a tuple of others; any if it is not there;
    - `scopes`: the scopes of preferences that it serves; ("step",) if it is not there;
    - `preferences`: a tuple of the classes of preferences that it serves; all if it is not there;
    - `advice_modes`: how it can learn from advice; () if it is not there;
    - `needs_play`: False for one that learns from files alone; where no group needs play, its experience has no rows,
      and `joint.steps` says how much to learn;
    - `panels`: a tuple of `Panel`, the metrics that a report draws;
    - `target_policy()`: its target policy as it is now, a `TargetPolicy` that later updates do not change, which the
      critics of other groups read;
    - `policy_started()`: is called once its policy has taken over the weights of an earlier run (`start`);
    - `probe(own)`: raises a ValueError if it cannot learn in this world; `own` is one step of random play;
    - `finished`: whether there is nothing more to learn: its group plays on as it is, and once all groups do, the run
      ends before its last iteration.
    """

    policy: Policy

    def learn(self, own: Experience, joint: Joint, random: np.random.Generator) -> Metrics:
        """Improve the policy in place; returns metrics of the update."""
        ...


@dataclass(frozen=True)
class Panel:
    """Metrics of a learner that a report draws in one panel; panels of one title are drawn together."""

    title: str
    unit: str  # label of the y axis
    metrics: tuple[str, ...]  # names that `learn` returns


@runtime_checkable
class HasLogProbs(Protocol):
    """A policy with a distribution over discrete actions."""

    def log_probs(self, view: View) -> Array:
        """Log-probabilities `[N, A, K]` of the policy's own actions, without the influence of advice."""
        ...


@runtime_checkable
class HasAdvice(Protocol):
    """A policy that advises by the present position alone, such as a tree search by its visits."""

    def advice(self, view: View) -> Array:
        """Probabilities `[N, A, K]` of the actions that it advises, without its memory."""
        ...


@runtime_checkable
class HasEpisodeState(Protocol):
    """A policy that keeps something from one decision to the next in each world, besides its memory."""

    def episode_state(self, world: World) -> State:
        """The state on which its next decisions in this world depend."""
        ...

    def load_episode_state(self, world: World, state: State) -> None:
        """Return to a saved state."""
        ...


class PlayStopped(CoterieError):
    """A policy ends play before the episode is over: a person leaves (`by_choice`), or gives no more answers."""

    def __init__(self, message: str, by_choice: bool) -> None:
        super().__init__(message)
        self.by_choice = by_choice


class Preference(Stateful, Protocol):
    """A group's valuation of its rewards; built as `Name(settings, group_spec, gamma)`.

    A learner lists what it serves in its class attributes `scopes` and `preferences` (`Learner`).
    """

    scope: str  # "step": rewards as they come; "interim" or "episodic": a distribution of returns, and it is a `Risk`

    def rewards(self, experience: Experience) -> Array:
        """The rewards to learn from, `[T, N, A]`; stored rewards stay as they are."""
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

    def risk_parameters(self) -> RiskParameters:
        """Its parameters, for critics that estimate distributions."""
        ...

    def value(self, samples: Array) -> Array:
        """The risk measure of `[…, M]` equally likely outcomes, `[…]`."""
        ...

    def influence(self, samples: Array) -> Array:
        """The influence of each of `[…, M]` samples on that value, up to a constant: the policy gradient's weights."""
        ...


def check_decision(decision: Decision, view: View, group: str, policy: Policy) -> None:
    """Raise unless a policy has returned one action for every environment and agent of the view."""
    act, wanted = f"groups.{group}.policy: {type(policy).__name__}.act", view.acting.shape
    if not isinstance(decision, Decision):
        raise CoterieError(f"{act} must return a Decision, got {type(decision).__name__}")
    if np.shape(decision.action)[:2] != wanted:
        raise CoterieError(
            f"{act} must return actions [{wanted[0]} environments, {wanted[1]} agents, …], got the shape "
            f"{np.shape(decision.action)}; 'coterie check policy' tests a policy"
        )


@dataclass(frozen=True)
class Actor:
    """The acting half of a group: everything between a view of the world and a decision."""

    group_spec: GroupSpec
    policy: Policy
    members: Array | None = None  # [A] int: which of the policy's own agents act here; None: all
    advisor: Advisor | None = None
    shield: ActionShield | None = None

    def act(self, view: View) -> tuple[View, Decision]:
        """Apply shield, advisor and policy; returns what the policy saw and what it decided."""
        view = self.shown(view)
        decision = self.policy.act(view)
        check_decision(decision, view, self.group_spec.group, self.policy)
        if self.shield is not None:
            self.shield.observe(view, decision.action)
        return view, decision

    def shown(self, view: View) -> View:
        """The view as the policy sees it: without the actions that the shield forbids, with advice.

        Outside of training (`view.progress` is None) an advisor is asked only if it advises evaluations.
        """
        if self.shield is not None:
            view = replace(view, mask=self.shield.allowed(view))
        if self.advisor is not None and (view.progress is not None or self.advisor.in_evaluation):
            view = self.advisor.advise(view, self.policy)
        return view

    def parts(self) -> list[Stateful]:
        """Advisor and shield, as far as there are any: what has a state besides the policy's."""
        return [part for part in (self.advisor, self.shield) if part is not None]

    def metrics(self) -> Counters:
        """Metrics of the policy, the advisor and the shield."""
        found: dict[str, Counter] = {}
        for part in (self.policy, *self.parts()):
            found |= part.metrics()
        return found


@dataclass(frozen=True)
class Group:
    """An actor and, unless the group is frozen, what improves its policy."""

    actor: Actor
    learner: Learner | None = None
    preference: Preference | None = None  # the learner's

    @property
    def name(self) -> str:
        return self.actor.group_spec.group

    @property
    def policy(self) -> Policy:
        return self.actor.policy


def preferred_rewards(preference: Preference, own: Experience, group_spec: GroupSpec) -> Array:
    """The rewards `[T, N, A]` that a group learns from; a preference of your own may return another shape: an error."""
    rewards = preference.rewards(own)
    if (found := np.shape(rewards)) != own.reward.shape:
        raise CoterieError(
            f"groups.{group_spec.group}.preference: {type(preference).__name__}.rewards must return an array of shape "
            f"{own.reward.shape} (steps, environments, agents), got {found}"
        )
    return rewards
