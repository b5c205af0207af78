"""Multi-agent deterministic policy gradients (Lowe et al. 2017), with TD3's improvements as settings.

Read `MADDPG.learn` from top to bottom. Experience becomes joint transitions of all groups in a replay; each update
draws a batch from it. An update moves the critics towards `targets` (`critic_step`) and, every `policy_delay` critic
steps, the policy up the critic (`actor_step`); target networks follow slowly. A centralized critic sees the
observations and actions of all agents, otherwise those of its own agent (DDPG). Other groups may have any learner:
their next actions come from their target policies (`Joint.target_policies`) or, without one, from the record.

Losses are in `outcomes.py` and `losses.py`; networks and their gradients are in `nn/nets.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from coterie.algorithms.actor_critic import DecisionBatch, NetworkWithTarget
from coterie.algorithms.divergence import demand_finite
from coterie.algorithms.joint_transitions import (
    JointLayout,
    PendingSteps,
    load_pending,
    save_pending,
)
from coterie.algorithms.maddpg import losses, outcomes
from coterie.algorithms.maddpg.losses import GroupLayout
from coterie.algorithms.replay import MemorySettings, Replay
from coterie.core.decisions import Decisions, Joint
from coterie.core.group import GroupSpec, Learner, Panel, Preference, Risk, RiskParameters, preferred_rewards
from coterie.core.search_space import Choice, Real, Space, Whole
from coterie.core.settings import Settings
from coterie.core.types import Array, CoterieError, Metrics, State, TargetPolicy
from coterie.core.validation import at_least, positive, within
from coterie.nn import networks
from coterie.nn.nets import make_net
from coterie.nn.normalization import Normalizer
from coterie.nn.packing import layout
from coterie.policies.deterministic import DeterministicPolicy
from coterie.policies.network import check_widths

METRICS = ("critic_loss", "q_mean", "td_error", "actor_q")
TINY = np.float32(1e-30)  # an exponential draw may be 0, whose logarithm is infinite
QUANTILES = 8  # default number of quantiles under a risk measure
NOISE_CLIP = 2.5  # deviations at which smoothing noise is clipped, as in Fujimoto et al. 2018 (0.5 for 0.2)
ENOUGH = 64  # decisions that show how often an outcome is 0


# Settings ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NoiseSettings(Settings):
    start: float = 0.2  # deviation at first, as a fraction of a box's range; choices are sampled from logits instead
    end: float = 0.05  # deviation later
    fraction: float = 0.5  # of the run after which `end` is reached, linearly

    SEARCH: ClassVar[Space] = {  # what `coterie tune` tries
        "start": Real(0.05, 0.5),
        "end": Real(0.01, 0.2, log=True),
    }

    def __post_init__(self) -> None:
        at_least("start", self.start, 0)
        at_least("end", self.end, 0)
        within("fraction", self.fraction, 0, 1)

    def at(self, progress: float) -> float:
        """The deviation when this fraction of the run's steps has been taken."""
        part = min(progress / self.fraction, 1.0) if self.fraction > 0 else 1.0
        return self.start + part * (self.end - self.start)


@dataclass(frozen=True)
class ChoiceSettings(Settings):
    """Settings of the policy's gradient with discrete actions."""

    gradient: Literal["drawn", "expected"] = "drawn"  # through a drawn choice (Gumbel-softmax); expected: over all
    temperature: float = 1.0  # drawn: of the softmax through which gradients reach choices
    entropy_start: float = 0.0  # expected: weight of the policy's entropy at first, in units of the critic's values
    entropy_end: float = 0.0  # expected: weight later
    fraction: float = 0.5  # of the run after which `entropy_end` is reached, in equal factors

    SEARCH: ClassVar[Space] = {"temperature": Real(0.5, 2.0)}  # what `coterie tune` tries

    def __post_init__(self) -> None:
        positive("temperature", self.temperature)
        at_least("entropy_start", self.entropy_start, 0)
        at_least("entropy_end", self.entropy_end, 0)
        within("fraction", self.fraction, 0, 1)
        if self.gradient == "drawn" and (self.entropy_start or self.entropy_end):
            raise ValueError("entropy_start and entropy_end need gradient=expected; set gradient=expected or both to 0")
        if (self.entropy_start > 0) != (self.entropy_end > 0):
            raise ValueError(
                "entropy_start and entropy_end: the weight falls in equal factors, so both must be above 0 or both 0, "
                f"got {self.entropy_start:g} and {self.entropy_end:g}"
            )

    def entropy(self, progress: float) -> float:
        """The entropy's weight when this fraction of the run's steps has been taken."""
        part = min(progress / self.fraction, 1.0) if self.fraction > 0 else 1.0
        return self.entropy_start * (self.entropy_end / self.entropy_start) ** part if self.entropy_start else 0.0


@dataclass(frozen=True)
class CriticSettings(Settings):
    centralized: bool = True  # sees observations and actions of all agents; false: of its own agent alone (DDPG)
    own_first: bool = False  # centralized: sees its own agent first, then teammates in cyclic order; false: fixed order
    hidden: tuple[int, ...] | None = None  # widths of its hidden layers; None: the policy's
    activation: Literal["tanh", "relu"] | None = None  # after each of them; None: the policy's
    learning_rate: float | None = None  # of Adam; None: the policy's
    twin: bool = False  # two critics; targets use the one with the lower mean (Fujimoto et al. 2018)
    quantiles: int | None = None  # of a decision's outcome; 1: its mean; None: 1, or 8 under a risk measure
    random_feature_init: float | None = None  # steepness of its first layer's random features; None: the policy's
    hurdle: bool = False  # hurdle model: predict P(outcome ≠ 0), then quantiles of non-zero outcomes

    SEARCH: ClassVar[Space] = {  # what `coterie tune` tries
        "centralized": Choice((True, False)),
        "twin": Choice((False, True)),
    }

    def __post_init__(self) -> None:
        if self.own_first and not self.centralized:
            raise ValueError("own_first orders what a centralized critic sees; set centralized=true or own_first=false")
        if self.hidden is not None:
            check_widths(self.hidden, ())
        if self.learning_rate is not None:
            positive("learning_rate", self.learning_rate)
        if self.quantiles is not None:
            at_least("quantiles", self.quantiles, 1)
        if self.random_feature_init is not None:
            at_least("random_feature_init", self.random_feature_init, 0)


@dataclass(frozen=True)
class TargetSettings(Settings):
    tau: float = 0.01  # fraction by which target networks move towards the networks with each policy step
    noise: float = 0.0  # deviation of smoothing noise on target actions, as a fraction of a box's range; 0: none

    SEARCH: ClassVar[Space] = {"tau": Real(0.001, 0.05, log=True)}  # what `coterie tune` tries

    def __post_init__(self) -> None:
        positive("tau", self.tau)
        within("tau", self.tau, 0, 1)
        at_least("noise", self.noise, 0)


@dataclass(frozen=True)
class MADDPGSettings(Settings):
    learning_rate: float = 1e-3  # of the policy's Adam
    learning_rate_schedule: Literal["constant", "linear"] = "constant"  # of both; linear: to 0 at the run's end
    gamma: float = 0.95  # discount per decision
    batch_size: int = 256  # time steps per update
    updates_per_step: float = 0.04  # critic steps per environment step, summed over copies
    policy_delay: int = 1  # critic steps per step of the policy and the target networks
    scale_by_std: bool = False  # divide a decision's gradient by its outcome's deviation, so that small stakes count
    max_grad_norm: float = 0.5  # gradients of policy and critics are scaled to at most this norm
    update_every: int = 1  # iterations from one in which the group learns to the next; others only fill the replay
    update_offset: int = 0  # the group learns where (iteration − update_offset) is a multiple of `update_every`
    noise: NoiseSettings = field(default_factory=NoiseSettings)  # exploration
    choices: ChoiceSettings = field(default_factory=ChoiceSettings)  # the gradient of discrete actions
    critic: CriticSettings = field(default_factory=CriticSettings)  # values decisions
    target: TargetSettings = field(default_factory=TargetSettings)  # slowly moving copies of policy and critic
    replay: MemorySettings = field(default_factory=MemorySettings)  # steps of the whole table

    SEARCH: ClassVar[Space] = {  # what `coterie tune` tries
        "learning_rate": Real(1e-4, 1e-2, log=True),
        "gamma": Choice((0.9, 0.95, 0.98, 0.99)),
        "batch_size": Choice((128, 256, 512, 1024)),
        "updates_per_step": Real(0.01, 0.2, log=True),
        "policy_delay": Whole(1, 4),
    }

    def __post_init__(self) -> None:
        positive("learning_rate", self.learning_rate)
        within("gamma", self.gamma, 0, 1)
        at_least("batch_size", self.batch_size, 1)
        positive("updates_per_step", self.updates_per_step)
        at_least("policy_delay", self.policy_delay, 1)
        positive("max_grad_norm", self.max_grad_norm)
        at_least("update_every", self.update_every, 1)
        at_least("update_offset", self.update_offset, 0)
        if self.scale_by_std and self.choices.gradient == "expected":
            raise ValueError("scale_by_std scales gradients through one action; set choices.gradient=drawn")


# Parts ------------------------------------------------------------------------------------------------


class Rates(NamedTuple):
    """Learning rates of one iteration, and the weight of the entropy of choices."""

    actor: float
    critic: float
    entropy: float = 0.0


class Draws(NamedTuple):
    """The random numbers of an iteration's updates, and the next actions of all agents."""

    indices: Array  # [updates, B] int64: rows of the replay
    next_action: Array  # [updates, B, U] float32: the group's own are written by the updates
    smoothing: Array  # [updates, B, A, K] float32: noise on target actions, or empty
    gumbel: Array  # [updates, B, A, K] float32: noise on logits of choices, or empty


class Workspace:
    """Arrays for the updates of an iteration: R = S·M decisions of the group, M of each parameter set."""

    def __init__(self, batch: DecisionBatch, rows: int, actions: int, inputs: int, outputs: int) -> None:
        """`rows` time steps with so many numbers of `actions`; critics have so many `inputs` and `outputs`."""
        sets, count = batch.weight.shape
        decisions = (sets * count, batch.action.shape[2])
        self.joint_action = np.empty((rows, actions), np.float32)  # recorded ones
        self.y = np.empty((sets, count, inputs), np.float32)  # a critic's inputs
        self.action, self.soft, self.slopes, self.tried = (np.empty(decisions, np.float32) for _ in range(4))
        self.legal = np.empty(decisions, bool)
        self.values = np.empty((sets, count, decisions[1]), np.float32)  # of every choice
        self.targets = [outcomes.make_targets(count, outputs) for _ in range(sets)]
        self.lower = [outcomes.make_scratch(count, outputs) for _ in range(sets)]  # of twins' distributions
        self.scratch = outcomes.make_scratch(count, outputs)


class InterimScopeError(ValueError, CoterieError):
    """Decisions do not allow a preference with the scope interim."""


def check_interim(group: str, own: Decisions, gamma: float, one_amount: bool) -> None:
    """Refuse decisions that follow each other, and varied amounts where the critic predicts a single one."""
    paid = own.reward[own.valid]
    if one_amount and len(paid) >= ENOUGH and (paid != 0).mean() > 0.9:
        raise InterimScopeError(
            f"{group}.learner.critic: with hurdle=true and quantiles=1 an outcome is 0 or one amount, but here it is "
            "hardly ever 0, and all that may come of a decision would look like its mean; set "
            f"{group}.learner.critic.hurdle=false {group}.learner.critic.quantiles=8"
        )
    if gamma and (own.valid & ~own.terminated).any():  # there is nothing to bootstrap with
        raise InterimScopeError(
            f"{group}.preference.scope: interim values a decision by its own outcome, but here other decisions follow; "
            f"set {group}.learner.gamma=0 to value each by its own reward, or {group}.preference.scope=episodic with "
            f"{group}.learner.name=ppo and {group}.policy.name=network"
        )


def seen_order(columns: int, own: slice, agents: int, own_first: bool) -> Array:
    """The order `[A, columns]` in which each agent's critic sees the columns of all agents; `own` are the group's.

    With `own_first` the group's agents are turned round until the critic's own comes first. Without, all are in one
    fixed order.
    """
    order = np.tile(np.arange(columns), (agents, 1))
    if own_first:
        group = np.arange(own.start, own.stop).reshape(agents, -1)
        for a in range(agents):
            order[a, own] = np.roll(group, -a, axis=0).ravel()
    return order


# The learner ------------------------------------------------------------------------------------------


class MADDPG(Learner):
    """Improves a deterministic policy by the gradient of critics."""

    teaches = (DeterministicPolicy,)
    policy: DeterministicPolicy
    scopes = ("step", "interim")
    panels = (Panel("mean action value", "value", ("q_mean",)),)

    def __init__(
        self, settings: MADDPGSettings, policy: DeterministicPolicy, group_spec: GroupSpec, preference: Preference
    ) -> None:
        self.settings, self.policy, self.group_spec, self.preference = settings, policy, group_spec, preference
        if not group_spec.simultaneous:
            raise ValueError("learner 'maddpg' needs a world in which all agents act at once; set name=ppo or name=dqn")
        policy.noise = settings.noise.at(0.0)
        self.centralized = settings.critic.centralized
        self.risk = self.risk_parameters()
        self.outputs = self.count_outputs()
        groups = group_spec.table if self.centralized and group_spec.table else (group_spec.info,)
        self.layout = JointLayout(groups, group_spec.group)
        own, own_first = self.layout.own, settings.critic.own_first
        self.obs_order = seen_order(self.layout.obs_size, own.obs, own.info.agents, own_first)
        self.action_order = seen_order(self.layout.action_size, own.action, own.info.agents, own_first)
        slots = np.arange(self.layout.obs_size)
        self.normalizer = Normalizer(slots, len(slots), 1, self.centralized and policy.normalizer.enabled)
        target = networks.Network(policy.shape, policy.layout, policy.size, 0.01, policy.seeds("target"))
        self.target_network = target.to(policy.device)
        self.actor = NetworkWithTarget(policy.trainable, make_net(self.target_network, policy.spec is not None))
        self.critics = [self.make_critic(name) for name in ("critic", "twin")[: 1 + settings.critic.twin]]
        self.amounts = np.zeros((group_spec.parameter_sets, 2))  # running sums of `outcomes.mean_square`
        self.replay = Replay(settings.replay.uniform(), self.layout.empty_rows(0))
        self.pending: PendingSteps | None = None  # None before the first experience
        self.due = 0.0  # updates not yet made

    def risk_parameters(self) -> RiskParameters:
        """The risk measure of outcomes: the preference's, or the mean."""
        if not isinstance(self.preference, Risk):
            return RiskParameters()
        if self.centralized:
            raise ValueError(
                "critic.centralized: a critic that sees all actions leaves little risk to measure; "
                "set critic.centralized=false"
            )
        if self.settings.critic.quantiles == 1 and not self.settings.critic.hurdle:
            raise ValueError(
                f"critic.quantiles: a risk measure needs more than 1; set critic.quantiles=null for {QUANTILES}"
            )
        return RiskParameters(*map(float, self.preference.risk_parameters()))

    def count_outputs(self) -> int:
        """The number of a critic's outputs; `outcomes.py` lists them."""
        s = self.settings.critic
        quantiles = s.quantiles or (QUANTILES if isinstance(self.preference, Risk) else 1)
        outputs = (1 if quantiles == 1 else 2 * quantiles) + s.hurdle
        if self.settings.scale_by_std and outputs == 1:
            raise ValueError(
                "scale_by_std needs a critic that predicts distributions; set critic.hurdle=true or "
                "critic.quantiles=8, or scale_by_std=false"
            )
        return outputs

    def make_critic(self, name: str) -> NetworkWithTarget:
        """A critic with its first weights; its inputs are observations, identities and actions."""
        policy, s = self.policy, self.settings.critic
        shape = replace(
            policy.shape,
            hidden=s.hidden or policy.shape.hidden,
            activation=s.activation or policy.shape.activation,
            random_feature_init=policy.shape.random_feature_init
            if s.random_feature_init is None
            else s.random_feature_init,
        )
        if self.centralized:
            lay = layout(self.layout.observation_space())
            extra = self.critic_identities + self.layout.action_size
            hidden = shape.hidden or (64, 64)  # a network of the user's own may have none
            shape = replace(
                shape, encoder="mlp", network=None, hidden=hidden, extra=extra, scaled=self.normalizer.enabled
            )
        else:
            lay = policy.layout
            shape = replace(shape, extra=policy.shape.extra + policy.size)
        return NetworkWithTarget.critic(shape, lay, self.outputs, policy.seeds(name), policy)

    @property
    def critic_identities(self) -> int:
        """Inputs that say which agent a centralized critic values; none with individual parameters."""
        agents = len(self.group_spec.agents)
        return agents if self.group_spec.parameter_sets == 1 and agents > 1 else 0

    def policy_started(self) -> None:
        """Let the target policy begin with the weights that the policy has taken over."""
        self.actor.target.copy_from(self.actor.net)

    def target_policy(self) -> TargetPolicy:
        """The target policy as it is now."""
        return self.policy.target_policy(self.target_network)

    def learn(self, own: Decisions, joint: Joint, random: np.random.Generator) -> Metrics:
        s = self.settings
        steps = self.remember(own, joint)
        metrics: Metrics = {"replay": float(self.replay.size)}
        if self.replay.ready and (joint.iteration - s.update_offset) % s.update_every == 0:
            self.due += s.updates_per_step * own.valid.shape[0] * own.valid.shape[1]
            updates, self.due = int(self.due), self.due % 1
            factor = max(1 - joint.progress, 0.0) if s.learning_rate_schedule == "linear" else 1.0
            critic_rate = s.learning_rate if s.critic.learning_rate is None else s.critic.learning_rate
            rates = Rates(s.learning_rate * factor, critic_rate * factor, s.choices.entropy(joint.progress))
            if updates:
                first = self.actor.steps
                sums = self.improve(self.draw(updates, joint, random), rates)
                counts = np.array([updates, updates, updates, max(self.actor.steps - first, 1)])
                metrics |= dict(zip(METRICS, (sums / counts).tolist(), strict=True))
            metrics |= {"updates": float(updates), "learning_rate": rates.actor}
        self.update_normalizers(own, steps)
        learned = [one.flat.array for one in (self.actor, *self.critics)]
        demand_finite(self.group_spec.group, metrics, [self.policy.normalizer.mean, self.normalizer.mean], learned)
        self.policy.noise = s.noise.at(joint.ahead)
        return metrics | {"noise": self.policy.noise}

    def probe(self, own: Decisions) -> None:
        """Refuse experience that a preference with the scope interim cannot value."""
        if isinstance(self.preference, Risk):
            one_amount = self.outputs == 2 and self.pending is None  # checked with the first experience alone
            check_interim(f"groups.{self.group_spec.group}", own, self.settings.gamma, one_amount)

    def remember(self, own: Decisions, joint: Joint) -> PendingSteps:
        """Add the transitions that this experience completes to the replay; returns all its steps."""
        self.probe(own)
        rewards = preferred_rewards(self.preference, own, self.group_spec)
        rows, self.pending, steps = self.layout.complete(joint, rewards, self.pending, self.settings.gamma)
        self.replay.add(rows)
        return steps

    def update_normalizers(self, own: Decisions, steps: PendingSteps) -> None:
        """Update the running statistics of observations, after learning."""
        rows = self.policy.arrange(self.layout.own.observations(steps.observation))
        active = self.policy.arrange(own.valid[..., None])[..., 0]
        self.policy.normalizer.update([x[valid] for x, valid in zip(rows, active, strict=True)])
        joint_obs = np.where(steps.active[..., self.layout.obs_agent], steps.observation, 0)
        self.normalizer.update([joint_obs.reshape(-1, self.layout.obs_size)])

    def draw(self, updates: int, joint: Joint, random: np.random.Generator) -> Draws:
        """Draw the rows and noise of all updates, and ask other groups' target policies for their next actions."""
        s, own, rows = self.settings, self.layout.own, self.replay.rows
        shape = (updates, s.batch_size)
        index = (random.random(shape) * self.replay.size).astype(np.int64)
        next_action = rows.next_action[index]
        for group, other in self.layout.groups.items():
            if other is not own and group in joint.target_policies:
                obs = other.observations(rows.next_obs[index.ravel()])
                found = joint.target_policies[group](obs, other.actions(rows.next_legal[index.ravel()]))
                active = rows.next_active[index.ravel()][:, other.agents, None]
                next_action[..., other.action] = np.where(active, found, 0).reshape(*shape, -1)
        each = (*shape, len(self.group_spec.agents), own.action_size)
        smoothing = gumbel = np.zeros((updates, 0, 0, 0), np.float32)
        if self.policy.head is not None:
            gumbel = -np.log(np.maximum(random.standard_exponential(each, np.float32), TINY))
        elif s.target.noise:
            noise = np.clip(random.standard_normal(each, np.float32), -NOISE_CLIP, NOISE_CLIP)
            smoothing = noise * np.float32(2 * s.target.noise)  # the range [−1, 1] has length 2
        return Draws(index, next_action, smoothing, gumbel)

    # Updates ------------------------------------------------------------------------------------------

    def improve(self, draws: Draws, rates: Rates) -> Array:
        """All updates of an iteration; returns the sums over updates of `METRICS`, averaged over parameter sets."""
        rows = draws.indices.shape[1]
        batch = DecisionBatch(self.policy, self.layout.own, rows, self.policy.size)
        actions = self.action_numbers
        inputs = self.layout.obs_size + self.critic_identities if self.centralized else batch.x.shape[2]
        work = Workspace(batch, rows, self.layout.action_size, inputs + actions, self.outputs)
        where, sums = self.group_layout(), np.zeros(len(METRICS))
        for k, index in enumerate(draws.indices):
            batch.fill(self.replay.rows, index)
            self.find_targets(batch, index, draws.next_action[k], draws.smoothing[k], where, work)
            sums[:3] += self.critic_step(batch, index, where, work, rates.critic)
            if self.critics[0].steps % self.settings.policy_delay == 0:
                sums[3] += self.actor_step(batch, index, draws.gumbel[k], where, work, rates)
                for one in (self.actor, *self.critics):
                    one.move_target(self.settings.target.tau)
        return sums / self.group_spec.parameter_sets

    def group_layout(self) -> GroupLayout:
        """Offsets of the group's numbers, for the kernels."""
        own = self.layout.own
        return GroupLayout(
            sets=self.group_spec.parameter_sets,
            agents=len(self.group_spec.agents),
            first_agent=own.agents.start,
            first_action=own.action.start,
            action_size=own.action_size,
            centralized=self.centralized,
            own_first=self.settings.critic.own_first,
            identities=self.critic_identities,
            obs_order=self.obs_order,
            action_order=self.action_order,
        )

    def find_targets(
        self,
        batch: DecisionBatch,
        index: Array,
        next_action: Array,
        smoothing: Array,
        where: GroupLayout,
        work: Workspace,
    ) -> None:
        """Write the critics' targets (Lowe et al. 2017, eq. 6; twins: Fujimoto et al. 2018, eq. 10)."""
        rows, policy = self.replay.rows, self.policy
        if batch.discount.any():  # where every episode terminates, targets need no networks
            out = self.actor.target.forward(batch.next_x)
            losses.target_actions.over(
                len(work.action),
                *(where, out.reshape(work.action.shape), index, rows.next_legal, rows.next_active, smoothing),
                *(policy.choices, policy.clipped, work.tried, next_action),
            )
            self.write_inputs(rows.next_obs, next_action, index, batch.next_x, where, work)
            for c, critic in enumerate(self.critics):
                found = critic.target.forward(work.y)
                for s, targets in enumerate(work.targets):
                    outcomes.keep_lower(found[s], c == 0, targets, work.lower[s])
        for s, targets in enumerate(work.targets):
            outcomes.bootstrap(batch.reward[s], batch.discount[s], targets)
            targets.weight[:] = batch.weight[s]

    def critic_step(
        self, batch: DecisionBatch, index: Array, where: GroupLayout, work: Workspace, rate: float
    ) -> Array:
        """One step of every critic; returns (loss, mean value, mean error), the latter two of the first."""
        rows, sums, hurdle = self.replay.rows, np.zeros(3), outcomes.is_hurdle(self.outputs)
        np.take(rows.action, index, axis=0, out=work.joint_action)
        self.write_inputs(rows.observation, work.joint_action, index, batch.x, where, work)
        scales = [
            outcomes.mean_square(targets, self.amounts[s]) if hurdle else 1.0 for s, targets in enumerate(work.targets)
        ]
        for c, critic in enumerate(self.critics):
            slopes = critic.net.forward(work.y).copy()
            for s, targets in enumerate(work.targets):
                loss, mean, error = outcomes.critic_loss(slopes[s], targets, scales[s], work.scratch)
                sums += [loss / len(self.critics), mean, error] if c == 0 else [loss / len(self.critics), 0, 0]
            critic.net.backward(slopes)
            critic.net.step(rate, self.settings.max_grad_norm)
        return sums

    def actor_step(
        self, batch: DecisionBatch, index: Array, gumbel: Array, where: GroupLayout, work: Workspace, rates: Rates
    ) -> float:
        """One step of the policy up the critic (Lowe et al. 2017, eq. 5); returns the sum of mean risk values.

        Each agent's critic sees its agent's action replaced by the policy's, and recorded actions of all others.
        """
        policy, s, count, value = self.policy, self.settings, len(work.action), 0.0
        net, rows, choices = self.actor.net, self.replay.rows, policy.choices
        logits = net.forward(batch.x)
        out, temperature = logits.reshape(work.action.shape), float(s.choices.temperature)
        losses.policy_actions.over(
            count,
            *(where, out, index, rows.legal, gumbel, choices, policy.clipped, temperature, work.action, work.soft),
        )
        if policy.head is not None and s.choices.gradient == "expected":
            self.value_choices(where, work)
            losses.legal_rows.over(count, where, index, rows.legal, work.legal)
            slopes, legal = logits.copy(), work.legal.reshape(logits.shape)
            for i, weight in enumerate(batch.weight):
                value += losses.expected_slopes(slopes[i], legal[i], work.values[i], weight, choices, rates.entropy)
        else:
            critic, actions = self.critics[0].net, self.action_numbers
            losses.place_actions.over(count, where, work.action, work.y.reshape(count, -1), actions)
            by_outcomes = critic.forward(work.y, through=actions).copy()
            for found, weight in zip(by_outcomes, batch.weight, strict=True):
                value += outcomes.actor_objective(self.risk, found, weight, s.scale_by_std, work.scratch)
            by_actions = np.ascontiguousarray(critic.input_slopes(by_outcomes)).reshape(count, actions)
            losses.output_slopes.over(
                count,
                *(where, out, by_actions, work.action, work.soft, batch.weight.reshape(-1)),
                *(choices, policy.clipped, temperature, work.slopes),
            )
            slopes = work.slopes.reshape(logits.shape)
        net.backward(slopes)
        net.step(rates.actor, s.max_grad_norm)
        return value

    def value_choices(self, where: GroupLayout, work: Workspace) -> None:
        """Write risk values of every choice; a composite action's other parts are those that were drawn."""
        start, count = 0, len(work.action)
        for size in self.policy.choices.tolist():
            for k in range(start, start + size):
                losses.try_choice.over(count, work.action, start, start + size, k, work.tried)
                losses.place_actions.over(count, where, work.tried, work.y.reshape(count, -1), self.action_numbers)
                for s, found in enumerate(self.critics[0].net.forward(work.y)):
                    outcomes.risk_values(self.risk, found, work.values[s, :, k], work.scratch)
            start += size

    @property
    def action_numbers(self) -> int:
        """Numbers of actions at the end of a critic's inputs: of all agents, or of its own."""
        return self.layout.action_size if self.centralized else self.policy.size

    def write_inputs(
        self, observation: Array, action: Array, index: Array, x: Array, where: GroupLayout, work: Workspace
    ) -> None:
        """Write critics' inputs."""
        normalizer, count = self.normalizer, len(work.action)
        losses.critic_inputs.over(
            count,
            *(where, observation, action, index, normalizer.shift[0], normalizer.scale[0], normalizer.limit),
            *(x.reshape(count, -1), work.y.reshape(count, -1)),
        )

    # State --------------------------------------------------------------------------------------------

    def state(self) -> State:
        return {
            "actor": {"target": self.actor.target.weights(), "adam": self.actor.flat.state()},
            "critics": [critic.state() for critic in self.critics],
            "amounts": self.amounts.copy(),
            "normalizer": self.normalizer.state(),
            "replay": self.replay.state(),
            "pending": save_pending(self.pending),
            "due": self.due,
        }

    def load(self, state: State) -> None:
        where = f"group '{self.group_spec.group}'"
        if len(state["critics"]) != len(self.critics):
            raise ValueError(f"{where}: {len(state['critics'])} critics were saved; critic.twin cannot change")
        self.actor.target.load_weights(state["actor"]["target"], f"{where}, target policy")
        self.actor.flat.load(state["actor"]["adam"])
        for critic, saved in zip(self.critics, state["critics"], strict=True):
            critic.load(saved, f"{where}, critic")
        self.amounts[:] = state["amounts"]
        self.normalizer.load(state["normalizer"])
        self.replay.load(state["replay"], where)
        self.pending = load_pending(state["pending"])
        self.due = state["due"]
