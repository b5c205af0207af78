"""Soft actor-critic (Haarnoja et al. 2018, arXiv 1812.05905) for continuous actions, with a learned temperature.

Read `SAC.learn` from top to bottom. Experience becomes transitions in a replay; each update draws a batch from it. An
update moves two critics towards `targets` (`critic_step`), the policy up the lower critic and its own entropy
(`actor_step`), and the temperature towards the wanted entropy; the critics' target networks follow slowly. Every agent
learns from its own observations and actions, with parameters shared by the group or one set for each agent.

Entropies are those of actions scaled to [−1, 1], so they do not depend on the units of the action space. Losses are in
`losses.py`. Perceptrons are trained by `kernels.py`, other networks by autograd with the same losses.
"""

from __future__ import annotations

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
from coterie.algorithms.replay import MemorySettings, Replay
from coterie.algorithms.sac import kernels, losses
from coterie.algorithms.sac.kernels import Draws
from coterie.algorithms.sac.losses import Hyperparams
from coterie.core.decisions import Decisions, Joint
from coterie.core.group import GroupSpec, Learner, Panel, Preference, preferred_rewards
from coterie.core.search_space import Choice, Real, Space
from coterie.core.settings import Settings
from coterie.core.types import Array, Metrics, State
from coterie.core.validation import at_least, positive, within
from coterie.nn import networks
from coterie.nn.kernels import OptimizedParams, sample_squashed
from coterie.policies.gaussian import GaussianPolicy
from coterie.policies.network import check_widths

METRICS = ("critic_loss", "q_mean", "td_error", "actor_q", "entropy")
CRITICS = ("critic", "twin")  # their first weights are drawn under these names


# Settings ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SACCriticSettings:
    """Settings of the two critics."""

    hidden: tuple[int, ...] | None = None  # widths of their hidden layers; None: the policy's
    activation: Literal["tanh", "relu"] | None = None  # after each of them; None: the policy's
    learning_rate: float | None = None  # of Adam; None: the policy's

    def __post_init__(self) -> None:
        if self.hidden is not None:
            check_widths(self.hidden, ())
        if self.learning_rate is not None:
            positive("learning_rate", self.learning_rate)


@dataclass(frozen=True)
class TemperatureSettings(Settings):
    """Settings of the temperature: the weight of entropy against reward."""

    start: float = 1.0  # at first
    learned: bool = True  # it moves towards the target entropy; False: it stays as it starts
    target_entropy: float | None = None  # of actions scaled to [−1, 1]; None: minus the number of their dimensions
    learning_rate: float | None = None  # of Adam; None: the policy's

    SEARCH: ClassVar[Space] = {"start": Real(0.01, 1.0, log=True)}  # what `coterie tune` tries

    @property
    def read_once(self) -> tuple[str, ...]:
        """Settings that a training reads at its start alone: population-based training leaves them as they are."""
        return ("start",) if self.learned else ()

    def __post_init__(self) -> None:
        positive("start", self.start)
        if self.learning_rate is not None:
            positive("learning_rate", self.learning_rate)
        if self.target_entropy is not None and not np.isfinite(self.target_entropy):
            raise ValueError(f"target_entropy must be a finite number, got {self.target_entropy}")


@dataclass(frozen=True)
class SACSettings(Settings):
    """Settings of SAC."""

    learning_rate: float = 3e-4  # of the policy's Adam
    learning_rate_schedule: Literal["constant", "linear"] = "constant"  # of all; linear: to 0 at the run's end
    gamma: float = 0.99  # discount per decision
    batch_size: int = 256  # time steps per update
    updates_per_step: float = 1.0  # updates per environment step, summed over copies
    tau: float = 0.005  # fraction by which target networks move towards the critics with each update
    max_grad_norm: float | None = None  # gradients of policy and critics are scaled to at most this norm; None: not
    critic: SACCriticSettings = field(default_factory=SACCriticSettings)  # the two critics
    temperature: TemperatureSettings = field(default_factory=TemperatureSettings)  # weight of the entropy
    replay: MemorySettings = field(default_factory=MemorySettings)  # steps of the group

    SEARCH: ClassVar[Space] = {  # what `coterie tune` tries
        "learning_rate": Real(1e-4, 3e-3, log=True),
        "gamma": Choice((0.95, 0.98, 0.99, 0.995)),
        "batch_size": Choice((64, 128, 256, 512)),
        "tau": Real(0.002, 0.05, log=True),
    }

    def __post_init__(self) -> None:
        positive("learning_rate", self.learning_rate)
        within("gamma", self.gamma, 0, 1)
        at_least("batch_size", self.batch_size, 1)
        positive("updates_per_step", self.updates_per_step)
        positive("tau", self.tau)
        within("tau", self.tau, 0, 1)
        if self.max_grad_norm is not None:
            positive("max_grad_norm", self.max_grad_norm)


# The learner ------------------------------------------------------------------------------------------


class Batch(NamedTuple):
    """Transitions as the networks take them: M rows of each of S parameter sets."""

    x: Tensor  # [S, M, …]: inputs of the policy
    next_x: Tensor  # [S, M, …]
    action: Tensor  # [S, M, K]
    reward: Array  # [S, M]
    discount: Array  # [S, M]
    weight: Array  # [S, M]: of each decision in its parameter set's mean


class SAC(Learner):
    """Improves a stochastic policy by the gradient of twin critics and of its own entropy."""

    teaches = (GaussianPolicy,)
    policy: GaussianPolicy
    panels = (
        Panel("mean action value", "value", ("q_mean",)),
        Panel("entropy of actions", "nats", ("entropy",)),
        Panel("temperature", "reward per nat", ("temperature",)),
    )

    def __init__(
        self, settings: SACSettings, policy: GaussianPolicy, group_spec: GroupSpec, preference: Preference
    ) -> None:
        self.settings, self.policy, self.group_spec, self.preference = settings, policy, group_spec, preference
        if not group_spec.simultaneous:
            raise ValueError("learner 'sac' needs a world in which all agents act at once; set name=ppo")
        self.layout = JointLayout((group_spec.info,), group_spec.group)
        self.critics = [self.make_critic(name) for name in CRITICS]
        log_alpha = np.full((group_spec.parameter_sets, 1), np.log(settings.temperature.start), np.float32)
        self.temperature = OptimizedParams(log_alpha, np.zeros_like(log_alpha), np.zeros_like(log_alpha))
        self.replay = Replay(settings.replay.uniform(), self.layout.empty_rows(0))
        self.pending: PendingSteps | None = None  # None before the first experience
        self.due = 0.0  # updates not yet made

    def make_critic(self, name: str) -> NetworkWithTarget:
        """A critic with its first weights; its inputs are the policy's, then an action."""
        policy, s = self.policy, self.settings.critic
        shape = replace(
            policy.shape,
            hidden=s.hidden or policy.shape.hidden,
            activation=s.activation or policy.shape.activation,
            extra=policy.shape.extra + policy.size,
        )
        return NetworkWithTarget.critic(shape, policy.layout, 1, policy.seeds(name), policy.device)

    @property
    def compiled(self) -> bool:
        """Whether `kernels.py` trains this policy."""
        return self.policy.spec is not None

    def learn(self, own: Decisions, joint: Joint, random: np.random.Generator) -> Metrics:
        s = self.settings
        self.remember(own, joint)
        metrics: Metrics = {"replay": float(self.replay.size)}
        if self.replay.ready:
            self.due += s.updates_per_step * own.valid.shape[0] * own.valid.shape[1]
            updates, self.due = int(self.due), self.due % 1
            hyperparams = self.hyperparams(joint.progress)
            if updates:
                run = self.compiled_updates if self.compiled else self.autograd_updates
                sums = run(self.draw(updates, random), hyperparams)
                metrics |= dict(zip(METRICS, (sums / updates).tolist(), strict=True))
            metrics |= {"updates": float(updates), "learning_rate": hyperparams.actor_rate}
        self.update_normalizer(own)
        learned = [self.temperature.flat, *(flat.array for flat in self.flats)]
        demand_finite(self.group_spec.group, metrics, [self.policy.normalizer.mean], learned)
        return metrics | {"temperature": float(np.exp(self.temperature.flat).mean())}

    @property
    def flats(self) -> list[networks.FlatParams]:
        """The parameters of the policy and of the critics."""
        return [self.policy.flat, *(critic.flat for critic in self.critics)]

    def hyperparams(self, progress: float) -> Hyperparams:
        """The numbers of this iteration."""
        s, t = self.settings, self.settings.temperature
        factor = max(1 - progress, 0.0) if s.learning_rate_schedule == "linear" else 1.0
        critic, temperature = (
            s.learning_rate if own is None else own for own in (s.critic.learning_rate, t.learning_rate)
        )
        return Hyperparams(
            actor_rate=s.learning_rate * factor,
            critic_rate=critic * factor,
            temperature_rate=temperature * factor if t.learned else 0.0,
            max_grad_norm=np.inf if s.max_grad_norm is None else s.max_grad_norm,
            tau=s.tau,
            target_entropy=-float(self.policy.size) if t.target_entropy is None else t.target_entropy,
        )

    def remember(self, own: Decisions, joint: Joint) -> None:
        """Add the transitions that this experience completes to the replay."""
        rewards = preferred_rewards(self.preference, own, self.group_spec)
        rows, self.pending, _ = self.layout.complete(joint, rewards, self.pending, self.settings.gamma)
        self.replay.add(rows)

    def update_normalizer(self, own: Decisions) -> None:
        """Update the running statistics of observations, after learning: acting and learning see the same numbers."""
        rows = self.policy.arrange(self.policy.pack(own.observation)[:-1])
        active = self.policy.arrange(own.valid[..., None])[..., 0]
        self.policy.normalizer.update([x[valid] for x, valid in zip(rows, active, strict=True)])

    def draw(self, updates: int, random: np.random.Generator) -> Draws:
        """Draw the rows and the noise of all updates."""
        batch, sets = self.settings.batch_size, self.group_spec.parameter_sets
        index = (random.random((updates, batch)) * self.replay.size).astype(np.int64)
        rows = batch * len(self.group_spec.agents) // sets
        return Draws(index, random.standard_normal((updates, 2, sets, rows, self.policy.size), np.float32))

    def compiled_updates(self, draws: Draws, hyperparams: Hyperparams) -> Array:
        """All updates through `kernels.py`; returns the sums over updates of `METRICS`."""
        policy, normalizer = self.policy, self.policy.normalizer
        assert policy.spec is not None
        flat, nothing = policy.flat, np.zeros((0, 0), np.float32)  # the policy has no target network
        sums: Array = kernels.sac_updates(
            kernels.Iteration(
                self.replay.rows,
                draws,
                RowScaling(normalizer.shift, normalizer.scale, normalizer.limit, policy.identities),
                policy.spec,
                self.critics[0].net.spec(),
                hyperparams,
            ),
            kernels.NetworkArrays(flat.array, flat.mean, flat.square, nothing),
            tuple(critic.arrays() for critic in self.critics),
            self.temperature,
            self.critics[0].steps,
        )
        for one in self.flats:
            one.steps += len(draws.indices)
        return sums

    # Updates by autograd ------------------------------------------------------------------------------

    def autograd_updates(self, draws: Draws, hyperparams: Hyperparams) -> Array:
        """All updates through PyTorch; returns the sums over updates of `METRICS`."""
        sums = np.zeros(len(METRICS))
        for index, (next_noise, noise) in zip(draws.indices, draws.noise, strict=True):
            batch = self.batch(JointTransitions(*(column[index] for column in self.replay.rows)))
            alpha = np.exp(self.temperature.flat[:, 0])
            sums[:3] += self.critic_step(batch, self.targets(batch, next_noise, alpha), hyperparams)
            found, log_prob = self.actor_step(batch, noise, alpha, hyperparams)
            sums[3] += found
            for s, weight in enumerate(batch.weight):
                entropy = losses.temperature_step(
                    self.temperature, s, log_prob[s], weight, hyperparams, self.critics[0].steps
                )
                sums[4] += entropy / len(batch.weight)
            for critic in self.critics:
                critic.move_target(hyperparams.tau)
        return sums

    @torch.no_grad()
    def targets(self, batch: Batch, noise: Array, alpha: Array) -> Array:
        """The critics' targets `[S, M]`."""
        action, log_prob = self.sample(to_array(self.policy.net(batch.next_x)[0]), noise)
        y = torch.cat([batch.next_x, self.tensor(action)], dim=-1)
        lower = np.empty_like(log_prob)
        for c, critic in enumerate(self.critics):
            for s, out in enumerate(to_array(critic.target(y)[0])):
                losses.keep_lower(out, c == 0, lower[s])
        for s, reward in enumerate(batch.reward):
            losses.soft_targets(reward, batch.discount[s], log_prob[s], alpha[s], lower[s])
        return lower

    def critic_step(self, batch: Batch, targets: Array, hyperparams: Hyperparams) -> Array:
        """One step of both critics; returns (loss, mean value, mean error), the latter two of the first."""
        y, sums = torch.cat([batch.x, batch.action], dim=-1), np.zeros(3)
        predicted = [critic.net(y)[0] for critic in self.critics]
        slopes = [to_array(out) for out in predicted]
        for c, out in enumerate(slopes):
            for s, weight in enumerate(batch.weight):
                loss, mean, error = losses.critic_loss(out[s], targets[s], weight)
                sums += [loss / len(slopes), mean, error] if c == 0 else [loss / len(slopes), 0, 0]
        flats = [critic.flat for critic in self.critics]
        networks.adam_step(flats, predicted, hyperparams.critic_rate, hyperparams.max_grad_norm, slopes=slopes)
        return sums / len(targets)

    def actor_step(self, batch: Batch, noise: Array, alpha: Array, hyperparams: Hyperparams) -> tuple[float, Array]:
        """One step of the policy; returns the mean lower value of its actions and their log-densities `[S, M]`."""
        out = self.policy.net(batch.x)[0]
        slopes = to_array(out)
        action, log_prob = self.sample(slopes, noise)
        point = self.tensor(action).requires_grad_()
        values = [critic.net(torch.cat([batch.x, point], dim=-1))[0] for critic in self.critics]
        first, second = (to_array(value) for value in values)
        mean = 0.0
        for s, weight in enumerate(batch.weight):
            mean += losses.lower_value_slopes(first[s], second[s], weight)
        (found,) = torch.autograd.grad(values, [point], [self.tensor(first), self.tensor(second)])
        action_slope = to_array(found)
        for s, weight in enumerate(batch.weight):
            losses.policy_slopes(slopes[s], noise[s], action[s], action_slope[s], weight, alpha[s])
        flats = [self.policy.flat]
        networks.adam_step(flats, [out], hyperparams.actor_rate, hyperparams.max_grad_norm, slopes=[slopes])
        return mean / len(alpha), log_prob

    def sample(self, out: Array, noise: Array) -> tuple[Array, Array]:
        """Actions `[S, M, K]` in [−1, 1] and their log-densities `[S, M]`, for outputs `[S, M, 2K]`."""
        action, log_prob = np.empty_like(noise), np.empty(noise.shape[:2], np.float32)
        for s in range(len(out)):
            sample_squashed(out[s], noise[s], action[s], log_prob[s])
        return action, log_prob

    def tensor(self, array: Array) -> Tensor:
        """An array as a tensor on the networks' device."""
        return torch.as_tensor(array, device=self.policy.device)

    def batch(self, rows: JointTransitions) -> Batch:
        """Transitions as the networks take them."""
        own, valid, policy = self.layout.own, rows.valid, self.policy
        weight = weights_of(valid, self.group_spec.parameter_sets)
        agents = np.arange(len(self.group_spec.agents))
        x, next_x = (
            self.tensor(policy.prepare(own.observations(packed), agents))
            for packed in (rows.observation, rows.next_obs)
        )
        action = self.tensor(policy.arrange(own.actions(rows.action)))
        numbers = (policy.arrange(a[..., None])[..., 0] for a in (rows.reward, rows.discount, weight))
        return Batch(x, next_x, action, *numbers)

    # State --------------------------------------------------------------------------------------------

    def state(self) -> State:
        return {
            "adam": self.policy.flat.state(),
            "critics": [critic.state() for critic in self.critics],
            "temperature": {name: array.copy() for name, array in self.temperature._asdict().items()},
            "replay": self.replay.state(),
            "pending": save_pending(self.pending),
            "due": self.due,
        }

    def load(self, state: State) -> None:
        where = f"group '{self.group_spec.group}'"
        self.policy.flat.load(state["adam"])
        for critic, saved in zip(self.critics, state["critics"], strict=True):
            critic.load(saved, f"{where}, critic")
        if self.settings.temperature.learned:  # a fixed one is a setting, which population-based training changes
            for name, array in self.temperature._asdict().items():
                array[:] = state["temperature"][name]
        self.replay.load(state["replay"], where)
        self.pending = load_pending(state["pending"])
        self.due = state["due"]
