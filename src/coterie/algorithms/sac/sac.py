"""Soft actor-critic (Haarnoja et al. 2018, arXiv 1812.05905) for continuous actions, with a learned temperature.

Read `SAC.learn` from top to bottom. Experience becomes transitions in a replay; each update draws a batch from it. An
update moves two critics towards `targets` (`critic_step`), the policy up the lower critic and its own entropy
(`actor_step`), and the temperature towards the wanted entropy (`temperature_step`); the critics' target networks follow
slowly. Every agent learns from its own observations and actions, with parameters shared by the group or one set each.

Entropies are those of actions scaled to [−1, 1], so they do not depend on the units of the action space. Losses are in
`losses.py`; networks and their gradients are in `nn/nets.py`.
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
from coterie.algorithms.replay import MemorySettings, Replay
from coterie.algorithms.sac import losses
from coterie.algorithms.sac.losses import Hyperparams
from coterie.core.decisions import Decisions, Joint
from coterie.core.group import GroupSpec, Learner, Panel, Preference, preferred_rewards
from coterie.core.search_space import Choice, Real, Space
from coterie.core.settings import Settings
from coterie.core.types import Array, Metrics, State
from coterie.core.validation import at_least, positive, within
from coterie.nn.kernels import OptimizedParams, sample_squashed, squashed_slopes, step_sets
from coterie.nn.nets import Net
from coterie.policies.gaussian import GaussianPolicy
from coterie.policies.network import check_widths

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


class Draws(NamedTuple):
    """The random numbers of an iteration's updates."""

    indices: Array  # [updates, B] int64: rows of the replay
    noise: Array  # [updates, 2, S, M, K] float32: of next actions, then of actions


class Workspace:
    """Arrays for the updates of an iteration."""

    def __init__(self, batch: DecisionBatch) -> None:
        lead, width = batch.weight.shape, batch.action.shape[2]
        self.joined = np.empty((*lead, batch.x.shape[2] + width), np.float32)  # a critic's inputs
        self.action, self.log_prob = np.empty_like(batch.action), np.empty(lead, np.float32)  # of the policy
        self.targets, self.by_log_prob = np.empty(lead, np.float32), np.empty(lead, np.float32)
        self.slopes = [np.empty((*lead, 1), np.float32) for _ in CRITICS]  # by the critics' values
        self.out_slopes = np.empty((*lead, 2 * width), np.float32)  # by the policy's outputs


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
        self.actor: Net = policy.trainable
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
        return NetworkWithTarget.critic(shape, policy.layout, 1, policy.seeds(name), policy)

    def learn(self, own: Decisions, joint: Joint, random: np.random.Generator) -> Metrics:
        s = self.settings
        self.remember(own, joint)
        metrics: Metrics = {"replay": float(self.replay.size)}
        if self.replay.ready:
            self.due += s.updates_per_step * own.valid.shape[0] * own.valid.shape[1]
            updates, self.due = int(self.due), self.due % 1
            hyperparams = self.hyperparams(joint.progress)
            if updates:
                sums = self.improve(self.draw(updates, random), hyperparams)
                metrics |= dict(zip(losses.NAMES, (sums / updates).tolist(), strict=True))
            metrics |= {"updates": float(updates), "learning_rate": hyperparams.actor_rate}
        self.update_normalizer(own)
        learned = [self.temperature.flat, self.actor.flat.array, *(critic.flat.array for critic in self.critics)]
        demand_finite(self.group_spec.group, metrics, [self.policy.normalizer.mean], learned)
        return metrics | {"temperature": float(np.exp(self.temperature.flat).mean())}

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

    # Updates ------------------------------------------------------------------------------------------

    def improve(self, draws: Draws, hyperparams: Hyperparams) -> Array:
        """All updates of an iteration; returns sums over updates of `losses.NAMES`, averaged over parameter sets."""
        updates, rows = draws.indices.shape
        batch = DecisionBatch(self.policy, self.layout.own, rows, self.policy.size)
        work, terms = Workspace(batch), np.zeros((updates, batch.weight.size, len(losses.NAMES)))
        for index, (next_noise, noise), mine in zip(draws.indices, draws.noise, terms, strict=True):
            batch.fill(self.replay.rows, index)
            self.find_targets(batch, next_noise, work)
            self.critic_step(batch, work, hyperparams, mine)
            self.actor_step(batch, noise, work, hyperparams, mine)
            self.temperature_step(batch, work, hyperparams)
            for critic in self.critics:
                critic.move_target(hyperparams.tau)
        sums = np.zeros(len(losses.NAMES))
        losses.add_up.over(len(sums), terms.reshape(-1, len(sums)), sums)
        return sums / self.group_spec.parameter_sets

    def find_targets(self, batch: DecisionBatch, noise: Array, work: Workspace) -> None:
        """Write the critics' targets."""
        self.sample(self.actor.forward(batch.next_x), noise, work)
        self.join(batch.next_x, work.action, work)
        first, second = (flat(critic.target.forward(work.joined)) for critic in self.critics)
        losses.soft_targets.over(
            batch.weight.size,
            *(first, second, flat1(batch.reward), flat1(batch.discount), flat1(work.log_prob)),
            *(self.temperature.flat, flat1(work.targets)),
        )

    def critic_step(self, batch: DecisionBatch, work: Workspace, hyperparams: Hyperparams, terms: Array) -> None:
        """One step of both critics towards the targets; metrics of values are those of the first."""
        self.join(batch.x, batch.action, work)
        for critic, slopes in zip(self.critics[::-1], work.slopes, strict=True):
            out = critic.net.forward(work.joined)
            losses.critic_loss.over(
                batch.weight.size,
                *(flat(out), flat1(work.targets), flat1(batch.weight), len(CRITICS), flat(slopes), terms),
            )
            critic.net.backward(slopes)
            critic.net.step(hyperparams.critic_rate, hyperparams.max_grad_norm)

    def actor_step(
        self, batch: DecisionBatch, noise: Array, work: Workspace, hyperparams: Hyperparams, terms: Array
    ) -> None:
        """One step of the policy up the lower critic and the entropy."""
        count, width, out = batch.weight.size, self.policy.size, self.actor.forward(batch.x)
        self.sample(out, noise, work)
        self.join(batch.x, work.action, work)
        nets = [critic.net for critic in self.critics]
        first, second = (flat(net.forward(work.joined, through=width)) for net in nets)
        losses.lower_value_slopes.over(
            count, first, second, flat1(batch.weight), flat(work.slopes[0]), flat(work.slopes[1]), terms
        )
        by_first, by_second = (net.input_slopes(slopes) for net, slopes in zip(nets, work.slopes, strict=True))
        losses.entropy_slopes.over(
            count,
            *(flat1(batch.weight), flat1(work.log_prob), self.temperature.flat, flat1(work.by_log_prob), terms),
        )
        squashed_slopes.over(
            count,
            *(flat(out), flat(noise), flat(work.action), flat(by_second + by_first), flat1(work.by_log_prob)),
            flat(work.out_slopes),
        )
        self.actor.backward(work.out_slopes)
        self.actor.step(hyperparams.actor_rate, hyperparams.max_grad_norm)

    def temperature_step(self, batch: DecisionBatch, work: Workspace, hyperparams: Hyperparams) -> None:
        """One Adam step of the logarithm of the temperature."""
        if hyperparams.temperature_rate > 0:
            log_alpha, mean, square = self.temperature
            slopes, steps = np.empty_like(log_alpha), self.actor.flat.steps - 1  # `step_sets` counts this one
            losses.temperature_slopes.over(
                len(slopes), work.log_prob, batch.weight, float(hyperparams.target_entropy), slopes
            )
            step_sets(
                *(log_alpha, slopes, mean, square, steps, np.arange(len(slopes)), np.ones(0, bool)),
                *(hyperparams.temperature_rate, np.inf),
            )

    def sample(self, out: Array, noise: Array, work: Workspace) -> None:
        """Write actions in [−1, 1] and their log-densities, for outputs `[S, M, 2K]`."""
        sample_squashed.over(work.log_prob.size, *(flat(out), flat(noise), flat(work.action), flat1(work.log_prob)))

    def join(self, x: Array, action: Array, work: Workspace) -> None:
        """Write critics' inputs."""
        losses.join.over(work.log_prob.size, flat(x), flat(action), flat(work.joined))

    # State --------------------------------------------------------------------------------------------

    def state(self) -> State:
        return {
            "adam": self.actor.flat.state(),
            "critics": [critic.state() for critic in self.critics],
            "temperature": {name: array.copy() for name, array in self.temperature._asdict().items()},
            "replay": self.replay.state(),
            "pending": save_pending(self.pending),
            "due": self.due,
        }

    def load(self, state: State) -> None:
        where = f"group '{self.group_spec.group}'"
        self.actor.flat.load(state["adam"])
        for critic, saved in zip(self.critics, state["critics"], strict=True):
            critic.load(saved, f"{where}, critic")
        if self.settings.temperature.learned:  # a fixed one is a setting, which population-based training changes
            for name, array in self.temperature._asdict().items():
                array[:] = state["temperature"][name]
        self.replay.load(state["replay"], where)
        self.pending = load_pending(state["pending"])
        self.due = state["due"]


def flat(array: Array) -> Array:
    """`[S, M, F]` as `[S·M, F]`."""
    return array.reshape(-1, array.shape[-1])


def flat1(array: Array) -> Array:
    """`[S, M]` as `[S·M]`."""
    return array.reshape(-1)
