"""Groups: agents that share a policy, a learner and a preference; and the base classes of these parts.

A `GroupSpec` says which agents a group has and what they see and do; an `Actor` is the acting half of a group, an
advisor and an action shield included; a `Group` adds the learning half. The base classes have what every part must do
as abstract methods, and defaults for the rest.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from coterie.core.decisions import Decisions, Joint
from coterie.core.lookup import Trust
from coterie.core.types import (
    Advice,
    AgentType,
    Array,
    CoterieError,
    Counter,
    Counters,
    Decision,
    Metrics,
    Shown,
    State,
    TargetPolicy,
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


class Stateful:
    """The base class of everything with a state that checkpoints hold and numbers to log; as it is, it has neither."""

    restored: ClassVar[tuple[str, ...]] = ()  # how names of metrics begin that `load` restores: they count on

    def state(self) -> State:
        """The state on which its future behaviour depends."""
        return {}

    def load(self, state: State) -> None:
        """Return to a saved state."""
        return

    def metrics(self) -> Counters:
        """Numbers to log, counted since it was built or since the last call; {} where there are none."""
        return {}

    def findings(self) -> Any:
        """The findings of a policy, advisor or shield: what a run keeps in a file of its own; None: nothing."""
        return None

    def write_findings(self, folder: Path, group: str, elsewhere: Sequence[Any]) -> None:
        """Write its findings into the folder of a finished run, with those of the same part in other processes."""
        return


class Policy(Stateful, abc.ABC):
    """The base class of what acts: a network, search, script, language model or person. Synchronous and batched.

    A policy is built as `Name(settings, group_spec)`.
    """

    needs: ClassVar[type[Any] | None] = None  # a protocol: a capability that the world must have
    max_envs: ClassVar[int | None] = None  # environments in which it can act at once; a training with more is refused
    memory_size: int = 0  # numbers remembered for each agent between decisions; 0: none
    # Its learner has all labels that it takes, so that an advisor need not give more; a part of the state, so that
    # advisors in other processes know it too.
    labels_complete: bool = False

    @abc.abstractmethod
    def act(self, view: View) -> Decision:
        """Decide for every environment and agent in the view."""

    def start_from(self, state: State) -> None:
        """Take over the weights of an earlier run's policy: what fits, or as here the whole state, which must fit."""
        self.load(state)


class Advisor(Stateful, abc.ABC):
    """The base class of advisors, which suggest actions before a group decides; one could also act by itself.

    An advisor is built as `Name(settings, group_spec)`. A class with `takes_actor = True` is built with a third
    argument: the actor of the policy that its settings `policy` and `checkpoint` name.
    """

    takes_actor: ClassVar[bool] = False
    restored = ("advice/",)
    advice_use: AdviceUse  # how the group's policy and learner use what it says
    in_evaluation: bool = False  # it is asked in evaluations and matches too, not only in training
    scored_alone: bool = False  # the summary of a run shows how well it does by itself

    @abc.abstractmethod
    def advise(self, view: View, policy: Policy) -> View:
        """The view with `advice` filled in."""

    @abc.abstractmethod
    def suggest(self, view: View) -> Advice:
        """Advice for every agent that acts; rows without an answer are marked as not given."""

    def weigh(self, own: Decisions) -> Decisions:
        """The decisions before their group learns from them: strengths of advice may depend on what came of it."""
        return own


class ActionShield(Stateful, abc.ABC):
    """The base class of what keeps a group from some of its actions, in training and in evaluation.

    A shield is built as `Name(settings, group_spec)`.
    """

    choices: int  # actions of the group's agents

    @abc.abstractmethod
    def allowed(self, view: View) -> Array:
        """Actions that may be taken, `[N, A, choices]` bool: a subset of the legal ones, never empty."""

    def observe(self, view: View, action: Array) -> None:
        """See what was decided, `[N, A]`; `view` has the mask that `allowed` returned."""
        return

    def charge(self, preference: Preference) -> Preference:
        """The preference with this shield's penalties; a ValueError if the two cannot be combined."""
        return preference


@dataclass(frozen=True)
class Panel:
    """Metrics of a learner that a report draws in one panel; panels of one title are drawn together."""

    title: str
    unit: str  # label of the y axis
    metrics: tuple[str, ...]  # names that `learn` returns


PANELS = (  # of a learner that declares none; those whose metrics no run recorded are left out
    Panel("policy loss", "loss", ("policy_loss",)),
    Panel("value loss", "loss", ("value_loss", "loss")),
    Panel("mean action value", "value", ("q_mean",)),
    Panel("exploration", "share of random actions", ("epsilon",)),
    Panel("entropy", "nats", ("entropy",)),
    Panel("KL to the policy that acted", "nats", ("kl",)),
)


class Learner(Stateful, abc.ABC):
    """The base class of what improves a group's policy from experience; its state is all besides the policy's own.

    A learner is built as `Name(settings, policy, group_spec, preference)`.
    """

    teaches: ClassVar[tuple[type[Policy], ...]] = ()  # classes of policies that it improves; (): any
    scopes: ClassVar[tuple[str, ...]] = ("step",)  # of preferences that it serves
    preferences: ClassVar[tuple[type[Preference], ...]] = ()  # classes of preferences that it serves; (): all
    advice_modes: ClassVar[tuple[str, ...]] = ()  # how it can learn from advice
    # False: it learns from files alone. Where no group needs play, experience has no rows, and `joint.steps` says how
    # much to learn.
    needs_play: ClassVar[bool] = True
    panels: ClassVar[tuple[Panel, ...]] = PANELS  # metrics that a report draws
    policy: Policy

    @abc.abstractmethod
    def learn(self, own: Decisions, joint: Joint, random: np.random.Generator) -> Metrics:
        """Improve the policy in place; returns metrics of the update."""

    @property
    def finished(self) -> bool:
        """Whether there is nothing more to learn: its group plays on as it is.

        Once all groups are finished, the run ends before its last iteration.
        """
        return False

    def target_policy(self) -> TargetPolicy | None:
        """Its target policy as it is now, which later updates do not change; critics of other groups read it."""
        return None

    def policy_started(self) -> None:
        """Called once its policy has taken over the weights of an earlier run (`start`)."""
        return

    def probe(self, own: Decisions) -> None:
        """Raise a ValueError if it cannot learn in this world; `own` is one step of random play."""
        return


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


class Preference(Stateful, abc.ABC):
    """The base class of a group's valuation of its rewards; built as `Name(settings, group_spec, gamma)`.

    A learner lists what it serves in its class attributes `scopes` and `preferences` (`Learner`).
    """

    scope: str = "step"  # rewards as they come; "interim" or "episodic": a distribution of returns, and it is a `Risk`

    @abc.abstractmethod
    def rewards(self, decisions: Decisions) -> Array:
        """The rewards to learn from, `[T, N, A]`; stored rewards stay as they are."""


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


class Risk(Preference):
    """The base class of preferences over distributions of returns; its rewards are the world's own."""

    def rewards(self, decisions: Decisions) -> Array:
        return decisions.reward

    @abc.abstractmethod
    def risk_parameters(self) -> RiskParameters:
        """Its parameters, for critics that estimate distributions."""

    @abc.abstractmethod
    def value(self, samples: Array) -> Array:
        """The risk measure of `[…, M]` equally likely outcomes, `[…]`."""

    @abc.abstractmethod
    def influence(self, samples: Array) -> Array:
        """The influence of each of `[…, M]` samples on that value, up to a constant: the policy gradient's weights."""


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

    def room(self, shape: tuple[int, int, int], choices: int | None) -> Shown:
        """Room for what `shown` shows in the views `[T, N, A]` of a rollout.

        `choices`: the actions of the world's masks; None: it has none.
        """
        choices = choices if self.shield is None else self.shield.choices
        mask = None if choices is None else np.ones((*shape, choices), bool)
        if self.advisor is None:
            return Shown(mask, None)
        probabilities = np.zeros((*shape, self.advisor.advice_use.actions), np.float32)
        return Shown(mask, Advice(np.zeros(shape, bool), probabilities, np.zeros(shape, np.float32)))

    def for_learning(self, own: Decisions) -> Decisions:
        """The group's experience as its learner reads it: the advisor has weighed what came of its advice."""
        return own if self.advisor is None else self.advisor.weigh(own)

    def parts(self) -> list[Stateful]:
        """Advisor and shield, as far as there are any: what has a state besides the policy's."""
        return [part for part in (self.advisor, self.shield) if part is not None]

    def findings(self) -> list[Any]:
        """The findings of policy, advisor and shield; None for those that found nothing."""
        return [part.findings() for part in (self.policy, *self.parts())]

    def write_findings(self, folder: Path, elsewhere: Sequence[Sequence[Any]]) -> None:
        """Write what was found into the folder of a finished run; `elsewhere`: `findings` of other processes."""
        for i, part in enumerate((self.policy, *self.parts())):
            part.write_findings(folder, self.group_spec.group, [found[i] for found in elsewhere])

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


def preferred_rewards(preference: Preference, own: Decisions, group_spec: GroupSpec) -> Array:
    """The rewards `[T, N, A]` that a group learns from; a preference of your own may return another shape: an error."""
    rewards = preference.rewards(own)
    if (found := np.shape(rewards)) != own.reward.shape:
        raise CoterieError(
            f"groups.{group_spec.group}.preference: {type(preference).__name__}.rewards must return an array of shape "
            f"{own.reward.shape} (steps, environments, agents), got {found}"
        )
    return rewards
