"""Multi-agent deterministic policy gradients (Lowe et al. 2017), with TD3's improvements as settings.

Read `MADDPG.learn` from top to bottom. Experience becomes joint transitions of all groups in a replay; each update
draws a batch from it. An update moves the critics towards `targets` (`critic_step`) and, every `policy_delay` critic
steps, the policy up the critic (`actor_step`); target networks follow slowly. A centralized critic sees the
observations and actions of all agents, otherwise those of its own agent (DDPG). Other groups may have any learner:
their next actions come from their target policies (`Joint.target_policies`) or, without one, from the record.

Losses are in `outcomes.py`. Perceptrons are trained by `kernels.py`, other networks by autograd with the same losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.algorithms.actor_critic import NetworkWithTarget, RowScaling, to_array, weights_of
from coterie.algorithms.divergence import demand_finite
from coterie.algorithms.joint_transitions import (
    JointLayout,
    JointTransitions,
    PendingSteps,
    load_pending,
    save_pending,
)
from coterie.algorithms.maddpg import kernels, outcomes
from coterie.algorithms.maddpg.kernels import Draws
from coterie.algorithms.maddpg.outcomes import Targets
from coterie.algorithms.replay import MemorySettings, Replay
from coterie.core.group import GroupSpec, Panel, Preference, Risk, RiskParameters, preferred_rewards
from coterie.core.search_space import Choice, Real, Space, Whole
from coterie.core.types import Array, CoterieError, Experience, Joint, Metrics, State, TargetPolicy
from coterie.core.validation import at_least, positive, within
from coterie.nn import networks
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
class NoiseSettings:
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
class ChoiceSettings:
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
class CriticSettings:
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
class TargetSettings:
    tau: float = 0.01  # fraction by which target networks move towards the networks with each policy step
    noise: float = 0.0  # deviation of smoothing noise on target actions, as a fraction of a box's range; 0: none

    SEARCH: ClassVar[Space] = {"tau": Real(0.001, 0.05, log=True)}  # what `coterie tune` tries

    def __post_init__(self) -> None:
        positive("tau", self.tau)
        within("tau", self.tau, 0, 1)
        at_least("noise", self.noise, 0)


@dataclass(frozen=True)
class MADDPGSettings:
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


class Batch(NamedTuple):
    """Transitions as the networks take them: B rows, A agents, or M rows of each of S parameter sets."""

    x: Tensor  # [S, M, …]: inputs of the policy
    next_x: Tensor  # [S, M, …]
    critic_obs: Tensor  # [B, A, …]: inputs of each agent's critic without actions
    next_critic_obs: Tensor  # [B, A, …]
    action: Tensor  # [B, U]: of all agents
    legal: Tensor  # [B, A, K]
    next_legal: Tensor  # [B, A, K]
    next_active: Tensor  # [B, A]: the agent has a next action
    reward: Array  # [S, M]
    discount: Array  # [S, M]
    weight: Array  # [S, M]: of each decision in its parameter set's mean


class InterimScopeError(ValueError, CoterieError):
    """Decisions do not allow a preference with the scope interim."""


def check_interim(group: str, own: Experience, gamma: float, one_amount: bool) -> None:
    """Refuse decisions that follow each other, and varied amounts where the critic predicts a single one."""
    paid = own.reward[own.active]
    if one_amount and len(paid) >= ENOUGH and (paid != 0).mean() > 0.9:
        raise InterimScopeError(
            f"{group}.learner.critic: with hurdle=true and quantiles=1 an outcome is 0 or one amount, but here it is "
            "hardly ever 0, and all that may come of a decision would look like its mean; set "
            f"{group}.learner.critic.hurdle=false {group}.learner.critic.quantiles=8"
        )
    if gamma and (own.active & ~own.terminated).any():  # there is nothing to bootstrap with
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


class MADDPG:
    """Improves a deterministic policy by the gradient of critics."""

    teaches = DeterministicPolicy
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
        target = networks.Network(policy.shape, policy.layout, policy.size, 0.01, policy.seeds("target")).to(
            policy.device
        )
        self.actor = NetworkWithTarget(policy.net, policy.flat, target)
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
        return NetworkWithTarget.critic(shape, lay, self.outputs, policy.seeds(name), policy.device)

    @property
    def critic_identities(self) -> int:
        """Inputs that say which agent a centralized critic values; none with individual parameters."""
        agents = len(self.group_spec.agents)
        return agents if self.group_spec.parameter_sets == 1 and agents > 1 else 0

    @property
    def compiled(self) -> bool:
        """Whether `kernels.py` trains this policy."""
        return self.policy.spec is not None

    def policy_started(self) -> None:
        """Let the target policy begin with the weights that the policy has taken over."""
        self.actor.target_flat.copy_from(self.actor.flat)

    def target_policy(self) -> TargetPolicy:
        """The target policy as it is now."""
        return self.policy.target_policy(self.actor.target)

    def learn(self, own: Experience, joint: Joint, random: np.random.Generator) -> Metrics:
        s = self.settings
        steps = self.remember(own, joint)
        metrics: Metrics = {"replay": float(self.replay.size)}
        if self.replay.ready and (joint.iteration - s.update_offset) % s.update_every == 0:
            self.due += s.updates_per_step * own.active.shape[0] * own.active.shape[1]
            updates, self.due = int(self.due), self.due % 1
            factor = max(1 - joint.progress, 0.0) if s.learning_rate_schedule == "linear" else 1.0
            critic_rate = s.learning_rate if s.critic.learning_rate is None else s.critic.learning_rate
            rates = Rates(s.learning_rate * factor, critic_rate * factor, s.choices.entropy(joint.progress))
            if updates:
                first = self.actor.steps
                run = self.compiled_updates if self.compiled else self.autograd_updates
                sums = run(self.draw(updates, joint, random), rates)
                counts = np.array([updates, updates, updates, max(self.actor.steps - first, 1)])
                metrics |= dict(zip(METRICS, (sums / counts).tolist(), strict=True))
            metrics |= {"updates": float(updates), "learning_rate": rates.actor}
        self.update_normalizers(own, steps)
        learned = [one.flat.array for one in (self.actor, *self.critics)]
        demand_finite(self.group_spec.group, metrics, [self.policy.normalizer.mean, self.normalizer.mean], learned)
        self.policy.noise = s.noise.at(joint.ahead)
        return metrics | {"noise": self.policy.noise}

    def probe(self, own: Experience) -> None:
        """Refuse experience that a preference with the scope interim cannot value."""
        if isinstance(self.preference, Risk):
            one_amount = self.outputs == 2 and self.pending is None  # checked with the first experience alone
            check_interim(f"groups.{self.group_spec.group}", own, self.settings.gamma, one_amount)

    def remember(self, own: Experience, joint: Joint) -> PendingSteps:
        """Add the transitions that this experience completes to the replay; returns all its steps."""
        self.probe(own)
        rewards = preferred_rewards(self.preference, own, self.group_spec)
        rows, self.pending, steps = self.layout.complete(joint, rewards, self.pending, self.settings.gamma)
        self.replay.add(rows)
        return steps

    def update_normalizers(self, own: Experience, steps: PendingSteps) -> None:
        """Update the running statistics of observations, after learning."""
        rows = self.policy.arrange(self.layout.own.observations(steps.observation))
        active = self.policy.arrange(own.active[..., None])[..., 0]
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

    # Compiled updates ---------------------------------------------------------------------------------

    def compiled_updates(self, draws: Draws, rates: Rates) -> Array:
        """All updates through `kernels.py`; returns the sums over updates of `METRICS`."""
        spec, delay = self.policy.spec, self.settings.policy_delay
        assert spec is not None
        sums: Array = kernels.maddpg_updates(
            kernels.Iteration(
                self.replay.rows,
                draws,
                self.group_layout(),
                self.input_scaling(),
                spec,
                self.critics[0].net.spec(),
                self.risk,
                self.hyperparams(rates),
            ),
            self.actor.arrays(),
            tuple(critic.arrays() for critic in self.critics),
            self.amounts,
            (self.actor.steps, self.critics[0].steps),
        )
        before = self.critics[0].steps
        for critic in self.critics:
            critic.flat.steps += len(draws.indices)
        self.actor.flat.steps += self.critics[0].steps // delay - before // delay
        return sums

    def group_layout(self) -> kernels.GroupLayout:
        own, policy = self.layout.own, self.policy
        return kernels.GroupLayout(
            agents=len(self.group_spec.agents),
            first_agent=own.agents.start,
            first_obs=own.obs.start,
            obs_size=own.layout.size,
            first_action=own.action.start,
            action_size=own.action_size,
            centralized=self.centralized,
            own_first=self.settings.critic.own_first,
            obs_order=self.obs_order,
            action_order=self.action_order,
            choices=policy.choices,
            clipped=policy.clipped,
        )

    def input_scaling(self) -> kernels.InputScaling:
        own, joint = self.policy.normalizer, self.normalizer
        return kernels.InputScaling(
            own=RowScaling(own.shift, own.scale, own.limit, self.policy.shape.extra),
            joint_shift=joint.shift[0],
            joint_scale=joint.scale[0],
            joint_limit=joint.limit,
            critic_identities=self.critic_identities,
        )

    def hyperparams(self, rates: Rates) -> kernels.Hyperparams:
        s = self.settings
        return kernels.Hyperparams(
            actor_rate=rates.actor,
            critic_rate=rates.critic,
            max_grad_norm=s.max_grad_norm,
            temperature=s.choices.temperature,
            expected=s.choices.gradient == "expected",
            entropy=rates.entropy,
            tau=s.target.tau,
            policy_delay=s.policy_delay,
            scale_by_std=s.scale_by_std,
        )

    # Updates by autograd ------------------------------------------------------------------------------

    def autograd_updates(self, draws: Draws, rates: Rates) -> Array:
        """All updates through PyTorch; returns the sums over updates of `METRICS`."""
        sums = np.zeros(len(METRICS))
        for k, index in enumerate(draws.indices):
            batch = self.batch(JointTransitions(*(column[index] for column in self.replay.rows)))
            next_action, smoothing, gumbel = (
                self.tensor(a[k]) for a in (draws.next_action, draws.smoothing, draws.gumbel)
            )
            sums[:3] += self.critic_step(batch, self.targets(batch, next_action, smoothing), rates.critic)
            if self.critics[0].steps % self.settings.policy_delay == 0:
                sums[3] += self.actor_step(batch, gumbel, rates)
                for one in (self.actor, *self.critics):
                    one.move_target(self.settings.target.tau)
        return sums

    @torch.no_grad()
    def targets(self, batch: Batch, next_action: Tensor, smoothing: Tensor) -> list[Targets]:
        """The critics' targets of each parameter set (Lowe et al. 2017, eq. 6; twins: Fujimoto et al. 2018, eq. 10)."""
        own_next = self.policy.settle(self.by_agent(self.actor.target(batch.next_x)[0]), batch.next_legal)
        if smoothing.numel():
            own_next = (own_next + smoothing).clamp(-1, 1)
        next_action = next_action.clone()
        next_action[:, self.layout.own.action] = (own_next * batch.next_active.unsqueeze(-1)).flatten(1)
        actions = self.critic_actions(next_action)
        predicted = [
            self.critic_outputs(critic.target, batch.next_critic_obs, actions).cpu().numpy() for critic in self.critics
        ]
        made, scratch = [], self.scratch(batch)
        for s, weight in enumerate(batch.weight):
            targets = outcomes.make_targets(len(weight), self.outputs)
            for c, out in enumerate(predicted):
                outcomes.keep_lower(out[s], c == 0, targets, scratch)
            outcomes.bootstrap(batch.reward[s], batch.discount[s], targets)
            targets.weight[:] = weight
            made.append(targets)
        return made

    def critic_step(self, batch: Batch, targets: Sequence[Targets], rate: float) -> Array:
        """One step of every critic; returns (loss, mean value, mean error), the latter two of the first."""
        actions, scratch, sums = self.critic_actions(batch.action), self.scratch(batch), np.zeros(3)
        predicted = [self.critic_outputs(critic.net, batch.critic_obs, actions) for critic in self.critics]
        slopes = [to_array(out) for out in predicted]
        hurdle = outcomes.is_hurdle(self.outputs)
        scales = [outcomes.mean_square(target, self.amounts[s]) if hurdle else 1.0 for s, target in enumerate(targets)]
        for c, out in enumerate(slopes):
            for s, target in enumerate(targets):
                loss, mean, error = outcomes.critic_loss(out[s], target, scales[s], scratch)
                sums += [loss / len(slopes), mean, error] if c == 0 else [loss / len(slopes), 0, 0]
        flats = [critic.flat for critic in self.critics]
        networks.adam_step(flats, predicted, rate, self.settings.max_grad_norm, slopes=slopes)
        return sums / self.group_spec.parameter_sets

    def actor_step(self, batch: Batch, gumbel: Tensor, rates: Rates) -> float:
        """One step of the policy up the critic (Lowe et al. 2017, eq. 5); returns the mean risk value of its actions.

        Each agent's critic sees its agent's action replaced by the policy's, and recorded actions of all others.
        """
        policy, scratch, value, choices = self.policy, self.scratch(batch), 0.0, self.settings.choices
        logits = policy.net(batch.x)[0]
        action = policy.relax(self.by_agent(logits), batch.legal, gumbel, choices.temperature)
        if policy.head is not None and choices.gradient == "expected":
            slopes = [to_array(logits)]
            values, legal = self.choice_values(batch, action.detach()), self.by_parameter_set(batch.legal).cpu().numpy()
            for out, allowed, found, weight in zip(slopes[0], legal, values, batch.weight, strict=True):
                value += kernels.expected_slopes(out, allowed, found, weight, policy.choices, rates.entropy)
            networks.adam_step([policy.flat], [logits], rates.actor, self.settings.max_grad_norm, slopes=slopes)
            return value / self.group_spec.parameter_sets
        actions = self.critic_actions(batch.action, action)
        outputs = [self.critic_outputs(self.critics[0].net, batch.critic_obs, actions)]
        slopes = [to_array(outputs[0])]
        for out, weight in zip(slopes[0], batch.weight, strict=True):
            value += outcomes.actor_objective(self.risk, out, weight, self.settings.scale_by_std, scratch)
        if policy.head is not None:
            outputs.append(logits)
            slopes.append(np.zeros(logits.shape, np.float32))
            for x, weight, out in zip(to_array(logits), batch.weight, slopes[1], strict=True):
                kernels.penalise_logits(x, weight, out)
        networks.adam_step([policy.flat], outputs, rates.actor, self.settings.max_grad_norm, slopes=slopes)
        return value / self.group_spec.parameter_sets

    @torch.no_grad()
    def choice_values(self, batch: Batch, action: Tensor) -> Array:
        """Risk values `[S, M, K]` of every choice; a composite action's other parts are those of `action [B, A, K]`."""
        values = np.empty((*batch.weight.shape, self.policy.size), np.float32)
        scratch, start = self.scratch(batch), 0
        for size in self.policy.choices:
            for k in range(start, start + size):
                tried = action.clone()
                tried[..., start : start + size] = 0
                tried[..., k] = 1
                actions = self.critic_actions(batch.action, tried)
                out = self.critic_outputs(self.critics[0].net, batch.critic_obs, actions).cpu().numpy()
                for s, rows in enumerate(out):
                    outcomes.risk_values(self.risk, rows, values[s, :, k], scratch)
            start += size
        return values

    def scratch(self, batch: Batch) -> outcomes.Scratch:
        return outcomes.make_scratch(batch.weight.shape[1], self.outputs)

    # Rows for the networks: [B, A, …] of a batch, [S, M, …] of parameter sets -----------------------------

    def tensor(self, array: Array) -> Tensor:
        """An array as a tensor on the networks' device."""
        return torch.as_tensor(array, device=self.policy.device)

    def batch(self, rows: JointTransitions) -> Batch:
        """Transitions as the networks take them."""
        own, valid = self.layout.own, rows.valid
        weight = weights_of(valid, self.group_spec.parameter_sets)
        x, next_x = (self.policy_inputs(observation) for observation in (rows.observation, rows.next_obs))
        return Batch(
            x,
            next_x,
            self.critic_obs(rows.observation, x),
            self.critic_obs(rows.next_obs, next_x),
            self.tensor(rows.action),
            self.tensor(own.actions(rows.legal)),
            self.tensor(own.actions(rows.next_legal)),
            self.tensor(rows.next_active[:, own.agents]),
            *(self.policy.arrange(a[..., None])[..., 0] for a in (rows.reward, rows.discount, weight)),
        )

    def by_parameter_set(self, rows: Tensor) -> Tensor:
        """`[B, A, F]` in the order of the parameters, `[S, M, F]`."""
        return rows.transpose(0, 1) if self.group_spec.parameter_sets > 1 else rows.reshape(1, -1, rows.shape[-1])

    def by_agent(self, rows: Tensor) -> Tensor:
        """The inverse: `[S, M, F]` as `[B, A, F]`."""
        if self.group_spec.parameter_sets > 1:
            return rows.transpose(0, 1)
        return rows.view(-1, len(self.group_spec.agents), rows.shape[-1])

    def policy_inputs(self, observation: Array) -> Tensor:
        """The policy's inputs `[S, M, …]` for all observations `[B, O]`."""
        own = self.layout.own.observations(observation)
        return self.tensor(self.policy.prepare(own, np.arange(len(self.group_spec.agents))))

    def critic_obs(self, observation: Array, x: Tensor) -> Tensor:
        """Inputs of each agent's critic without actions `[B, A, …]`, for all observations `[B, O]`."""
        if not self.centralized:
            return self.by_agent(x)
        agents = len(self.group_spec.agents)
        normalized = self.tensor(self.normalizer(observation[None])[0].astype(np.float32, copy=False))
        each = normalized[:, self.tensor(self.obs_order)]
        if not self.critic_identities:
            return each
        identities = torch.eye(agents, device=self.policy.device)
        return torch.cat([each, identities.expand(len(each), -1, -1)], dim=-1)

    def critic_actions(self, action: Tensor, own: Tensor | None = None) -> Tensor:
        """The actions `[B, A, …]` that each agent's critic sees, of all actions `[B, U]`.

        With `own [B, A, K]` each agent's critic sees that action of its agent, and recorded actions of all others.
        """
        part, agents = self.layout.own, len(self.group_spec.agents)
        if not self.centralized:
            return action.view(len(action), agents, part.action_size) if own is None else own
        each = action[:, self.tensor(self.action_order)]
        if own is None:
            return each
        for i in range(agents):
            place = 0 if self.settings.critic.own_first else i
            start = part.action.start + place * part.action_size
            each[:, i, start : start + part.action_size] = own[:, i]
        return each

    def critic_outputs(self, net: networks.Network, obs: Tensor, actions: Tensor) -> Tensor:
        """A critic's outputs `[S, M, …]` for `obs` and `actions` `[B, A, …]`."""
        return net(self.by_parameter_set(torch.cat([obs, actions], dim=-1)))[0]

    # State --------------------------------------------------------------------------------------------

    def metrics(self) -> Metrics:
        return {}  # `learn` returns them

    def state(self) -> State:
        return {
            "actor": {"target": networks.export(self.actor.target), "adam": self.actor.flat.state()},
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
        networks.restore(self.actor.target, state["actor"]["target"], f"{where}, target policy")
        self.actor.flat.load(state["actor"]["adam"])
        for critic, saved in zip(self.critics, state["critics"], strict=True):
            critic.load(saved, f"{where}, critic")
        self.amounts[:] = state.get("amounts", 0)  # checkpoints of 0.1 have none: the scale starts anew
        self.normalizer.load(state["normalizer"])
        self.replay.load(state["replay"], where)
        self.pending = load_pending(state["pending"])
        self.due = state["due"]
