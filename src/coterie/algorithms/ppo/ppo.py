"""Proximal policy optimisation (Schulman et al. 2017) for groups of agents.

Read `PPO.learn` from top to bottom: what was lived through in the group's own valuation (`episodic.py` where it
judges whole episodes), values, advantages, then epochs of minibatches over the decisions whose outcome is known.
Agents share one actor and critic or have one each, stacked and trained as if alone. The critic sees what its agent
sees, or with `central_critic` the whole table as well (MAPPO, Yu et al. 2022). Perceptrons with discrete choices are
trained by `ppo_kernels.py`, everything else by autograd, and so is what advice adds to (`roles/advice.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch

from coterie.algorithms.divergence import demand_finite
from coterie.algorithms.ppo import kernels as ppo_kernels
from coterie.algorithms.ppo.batches import Batch, Targets, gather, lanes, minibatches, rows_of
from coterie.algorithms.ppo.returns import advantages
from coterie.core.group import GroupSpec, Panel, Preference, Risk
from coterie.core.search_space import Choice, Real, Space, Whole
from coterie.core.types import Array, Experience, Joint, Metrics, State, StateRows
from coterie.core.validation import at_least, positive, within
from coterie.nn import kernels, networks
from coterie.nn.normalization import Normalizer, RunningMoments
from coterie.nn.packing import table_state
from coterie.policies.lora import LoraPolicy
from coterie.policies.network import NetworkPolicy
from coterie.preferences.episodic import EpisodeReturns

CHUNK = 8192  # rows evaluated at once outside minibatches: enough to be fast, few enough for the cache
NOTHING = np.zeros((0, 0), bool)  # no mask
NAMES = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction")


@dataclass(frozen=True)
class PPOSettings:
    learning_rate: float = 2.5e-4  # of the actor
    critic_learning_rate: float | None = None  # None: the actor's
    learning_rate_schedule: Literal["constant", "linear"] = (
        "linear"  # of both learning rates; linear: to 0 at the run's end
    )
    gamma: float = 0.99  # discount per decision
    gae_lambda: float = 0.95  # 0: one-step advantages, 1: whole returns
    clip: float = 0.2  # how far the probability ratio may move from 1
    clip_schedule: Literal["constant", "linear"] = "constant"  # linear: to 0 at the run's end
    value_clip: float | None = None  # how far a value may move in one iteration; None: any distance
    epochs: int = 4  # passes over the experience
    minibatches: int = 4  # per pass
    entropy_coefficient: float = 0.01  # weight of the entropy bonus
    max_grad_norm: float = 0.5  # gradients of actor and critic are scaled to at most this norm
    normalize_advantages: bool = True  # per minibatch, to mean 0 and deviation 1
    normalize_returns: bool = True  # the critic predicts returns scaled by their running deviation
    target_kl: float | None = None  # end the iteration's passes once the policy moved this far
    central_critic: bool = False  # the critic also sees the world's state, or everybody's observations

    SEARCH: ClassVar[Space] = {  # what `coterie tune` tries
        "learning_rate": Real(1e-5, 1e-2, log=True),
        "gamma": Choice((0.9, 0.95, 0.98, 0.99, 0.995, 0.999)),
        "gae_lambda": Real(0.8, 1.0),
        "clip": Real(0.1, 0.4),
        "epochs": Whole(1, 16, log=True),
        "minibatches": Whole(1, 32, log=True),
        "entropy_coefficient": Real(0.0, 0.05),
        "max_grad_norm": Real(0.2, 5.0, log=True),
    }

    def __post_init__(self) -> None:
        positive("learning_rate", self.learning_rate)
        within("gamma", self.gamma, 0, 1)
        within("gae_lambda", self.gae_lambda, 0, 1)
        within("clip", self.clip, 0.001, 10)
        at_least("epochs", self.epochs, 1)
        at_least("minibatches", self.minibatches, 1)
        at_least("entropy_coefficient", self.entropy_coefficient, 0)
        positive("max_grad_norm", self.max_grad_norm)
        for name in ("critic_learning_rate", "value_clip", "target_kl"):
            value: float | None = getattr(self, name)
            if value is not None:
                positive(name, value)


class Hyperparams(NamedTuple):
    """What the schedules say for this iteration."""

    rate: float
    critic_rate: float
    clip: float


class PPO:
    """Improves a network policy by clipped policy gradients."""

    teaches = NetworkPolicy
    also_teaches = (LoraPolicy,)
    scopes = ("step", "episodic")
    follows = ("mixture", "kl", "prior", "hint")
    panels = (
        Panel("policy loss", "loss", ("policy_loss",)),
        Panel("value loss", "loss", ("value_loss",)),
        Panel("entropy", "nats", ("entropy",)),
        Panel("KL to the policy that acted", "nats", ("kl",)),
    )

    def __init__(
        self, settings: PPOSettings, policy: NetworkPolicy | LoraPolicy, group_spec: GroupSpec, preference: Preference
    ) -> None:
        self.settings, self.policy, self.group_spec, self.preference = settings, policy, group_spec, preference
        if settings.target_kl is not None and group_spec.advice is not None and group_spec.advice.use.way == "mixture":
            raise ValueError(
                "target_kl measures how far the policy moved; a mixture's actions are not the policy's own"
            )
        if settings.central_critic and not group_spec.simultaneous:
            raise ValueError("central_critic needs a world in which everybody acts at once")
        if group_spec.advice is not None and not isinstance(policy, NetworkPolicy):
            raise ValueError("an advisor needs policy.name=network; a language model that learns follows no advice")
        self.outcomes: EpisodeReturns | None = None
        if isinstance(preference, Risk) and preference.scope == "episodic":
            if settings.gamma != 1:
                cure = f"set groups.{group_spec.group}.learner.gamma=1"
                raise ValueError(f"gamma must be 1 where whole episodes are judged, got {settings.gamma:g}; {cure}")
            self.outcomes = EpisodeReturns(preference, group_spec.parameter_sets)
        extra = policy.shape.extra - policy.shown + policy.memory_size
        extra += group_spec.state_size if settings.central_critic else 0
        shape = replace(policy.shape, memory=0, extra=extra)
        self.critic = networks.Net(shape, policy.layout, 1, 1.0, policy.seeds("critic"))
        self.critic_flat = networks.FlatParams(self.critic)
        slots = np.arange(group_spec.state_size)
        self.state_normalizer = Normalizer(slots, len(slots), 1, settings.central_critic)
        self.returns = RunningMoments(group_spec.parameter_sets)

    @property
    def compiled(self) -> bool:
        """Whether the compiled path serves this policy."""
        return self.policy.spec is not None

    def learn(self, own: Experience, joint: Joint, random: np.random.Generator) -> Metrics:
        own, judged = self.value(own)
        hyperparams = self.schedule(joint.progress)
        x, sight = self.policy.sights(own.observation)
        state = table_state(joint) if self.settings.central_critic else None
        seen = self.add_context(sight, own.memory, None if state is None else state.rows)
        values = self.policy.restore_order(self.evaluate(seen), (len(own.active) + 1, *own.active.shape[1:]))
        advantage, returns, valid = advantages(
            own,
            own.reward,
            values,
            self.bootstrap(own, state, values),
            self.settings.gamma,
            self.settings.gae_lambda,
        )
        if not valid.any():
            return {"decisions": 0.0} | judged
        batch = gather(self.policy, own, Targets(advantage, returns, values[:-1], valid), self.hinted(x, own), seen)
        batch = self.scale(batch)
        metrics = self.improve(batch, hyperparams, random)
        self.watch(own, state, valid)
        seen_means = (self.policy.normalizer.mean, self.state_normalizer.mean)
        demand_finite(self.group_spec.group, metrics, seen_means, (self.policy.flat.array, self.critic_flat.array))
        return metrics | {
            "decisions": float(valid.sum()),
            "explained_variance": explained_variance(values[:-1][valid], returns[valid]),
            "learning_rate": hyperparams.rate,
            **judged,
        }

    def value(self, own: Experience) -> tuple[Experience, Metrics]:
        """The experience in the rewards that the group wants, and what there is to say about them."""
        if self.outcomes is None:
            return replace(own, reward=self.preference.rewards(own)), {}
        return self.outcomes.judged(own)

    def hinted(self, x: Array, own: Experience) -> Array:
        """The actor's rows with the hints that it saw behind them; none came with the last observation."""
        if not self.policy.shown or own.notes is None:
            return x
        hints = self.policy.arrange(np.nan_to_num(own.notes))
        return np.concatenate([x, np.pad(hints, ((0, 0), (0, x.shape[1] - hints.shape[1]), (0, 0)))], axis=-1)

    def scale(self, batch: Batch) -> Batch:
        """Targets and values in the critic's own units, which follow the returns."""
        if self.settings.normalize_returns:
            shift, scale = self.returns.shift, self.returns.scale
            flat = (len(batch.weight), -1)
            self.returns.update(batch.target.reshape(flat), batch.weight.reshape(flat))
            self.keep_values(shift, scale)
        across = (-1, *[1] * (batch.value.ndim - 1))
        shift, scale = self.returns.shift.reshape(across), self.returns.scale.reshape(across)
        return batch._replace(value=(batch.value - shift) / scale, target=(batch.target - shift) / scale)

    def keep_values(self, shift: Array, scale: Array) -> None:
        """Change the critic's last layer so that new units leave its values as they were (PopArt).

        Van Hasselt et al. 2016, proposition 1. Without it every change of units is an error of the critic,
        and returns that drift (as they do while values grow from nothing) mislead the policy.
        """
        new_shift, new_scale = (torch.from_numpy(a)[..., None] for a in (self.returns.shift, self.returns.scale))
        old_shift, old_scale = torch.from_numpy(shift)[..., None], torch.from_numpy(scale)[..., None]
        out = self.critic.out
        out.weight.data.mul_(old_scale / new_scale)
        out.bias.data.mul_(old_scale / new_scale).add_((old_shift - new_shift) / new_scale)

    def watch(self, own: Experience, state: StateRows | None, valid: Array) -> None:
        """Let the running statistics see this experience, once it has been learned from."""
        rows = self.policy.arrange(self.policy.pack(own.observation)[:-1])
        self.policy.normalizer.update(
            [stack[lane] for stack, lane in zip(rows, lanes(valid, self.group_spec.parameter_sets), strict=True)]
        )
        if state is not None:
            self.state_normalizer.update([state.rows[:-1].reshape(-1, self.group_spec.state_size)])

    # Improving ----------------------------------------------------------------------------------------

    def improve(self, batch: Batch, hyperparams: Hyperparams, random: np.random.Generator) -> Metrics:
        """Several passes of minibatch gradient steps; returns means over the minibatches taken."""
        rows = batch.weight.shape[1]
        parts = min(self.settings.minibatches, rows)
        bounds = np.array([0, *np.cumsum([len(p) for p in np.array_split(np.empty(rows), parts)])])
        sums, taken = np.zeros(len(NAMES)), 0
        taught = self.group_spec.advice is not None and self.group_spec.advice.taught(batch.notes)
        for _ in range(self.settings.epochs):
            order = np.stack([random.permutation(rows) for _ in range(self.group_spec.parameter_sets)])
            run = self.compiled_pass if self.compiled and not taught else self.autograd_pass
            latest = run(batch, order, bounds, hyperparams)
            sums, taken = sums + latest, taken + parts
            if self.settings.target_kl is not None and latest[3] / parts > self.settings.target_kl:
                break
        return dict(zip(NAMES, (sums / taken).tolist(), strict=True)) | {"minibatches": float(taken)}

    def compiled_pass(self, batch: Batch, order: Array, bounds: Array, hyperparams: Hyperparams) -> Array:
        """One pass through `ppo_kernels.py`; returns sums of the losses over minibatches, averaged over stacks."""
        s, actor, critic = self.settings, self.policy.flat, self.critic_flat
        assert self.policy.spec is not None
        specs = (self.policy.spec, self.critic.spec())
        sums = np.zeros(len(NAMES))
        for i in range(self.group_spec.parameter_sets):
            limit = 0.0 if s.value_clip is None else s.value_clip / float(self.returns.scale[i, 0])
            rows = ppo_kernels.Rows(
                batch.x[i],
                batch.seen[i],
                batch.action[i].reshape(len(batch.action[i]), -1),
                NOTHING if batch.mask is None else batch.mask[i],
                *(array[i] for array in (batch.log_prob, batch.advantage, batch.target, batch.value, batch.weight)),
            )
            numbers = ppo_kernels.Hyperparams(
                hyperparams.clip,
                limit,
                s.entropy_coefficient,
                s.max_grad_norm,
                hyperparams.rate,
                hyperparams.critic_rate,
                s.normalize_advantages,
            )
            pairs = (actor.pair(i), critic.pair(i))
            sums += ppo_kernels.ppo_pass(
                rows, order[i], bounds, specs, pairs, self.policy.choices, numbers, int(actor.steps[i])
            )
        actor.steps += len(bounds) - 1
        critic.steps += len(bounds) - 1
        return sums / self.group_spec.parameter_sets

    def autograd_pass(self, batch: Batch, order: Array, bounds: Array, hyperparams: Hyperparams) -> Array:
        """The same through PyTorch."""
        sums = np.zeros(len(NAMES))
        for part in minibatches(batch, order, bounds):
            sums += self.step(part, hyperparams)
        return sums

    def step(self, part: Batch, hyperparams: Hyperparams) -> Array:
        """One gradient step of actor and critic on a minibatch (Schulman et al. 2017, eq. 7)."""
        out = self.policy.net.unroll(part.x, part.past)
        flat = rows_of(part)
        given = flat.weight > 0
        weight = flat.weight / flat.weight.sum(dim=1, keepdim=True).clamp(min=1)  # each stack's own mean
        advantage = flat.advantage
        if self.settings.normalize_advantages:
            mean = (weight * advantage).sum(1, keepdim=True)
            variance = (weight * (advantage - mean) ** 2).sum(1, keepdim=True)
            advantage = (advantage - mean) / (variance.sqrt() + 1e-8)
        advice, notes = self.group_spec.advice, flat.notes
        if advice is not None and notes is not None:
            out = advice.bent(out, notes)
        log_prob, entropy = self.policy.head.judge(out, flat.action, flat.mask)
        log_ratio = torch.where(given, log_prob - flat.log_prob, 0)  # padding may hold anything
        ratio = log_ratio.exp()
        gain = torch.minimum(ratio * advantage, ratio.clamp(1 - hyperparams.clip, 1 + hyperparams.clip) * advantage)
        policy_loss = -(weight * gain).sum()
        entropy_mean = (weight * entropy).sum()
        loss = policy_loss - self.settings.entropy_coefficient * entropy_mean
        if advice is not None and notes is not None:
            loss = loss + (weight * advice.loss(out, flat.mask, notes)).sum()
        networks.adam_step([self.policy.flat], loss, hyperparams.rate, self.settings.max_grad_norm)

        value = self.critic(flat.seen)[0].squeeze(-1)
        error = (value - flat.target) ** 2
        if self.settings.value_clip is not None:
            limit = torch.from_numpy(self.settings.value_clip / self.returns.scale)
            near = flat.value + (value - flat.value).clamp(-limit, limit)
            error = torch.maximum(error, (near - flat.target) ** 2)
        value_loss = 0.5 * (weight * error).sum()
        networks.adam_step([self.critic_flat], value_loss, hyperparams.critic_rate, self.settings.max_grad_norm)

        with torch.no_grad():
            kl = (weight * (ratio - 1 - log_ratio)).sum()  # Schulman's k3 estimator, never negative
            outside = (weight * ((ratio - 1).abs() > hyperparams.clip)).sum()
            numbers = torch.stack([policy_loss, value_loss, entropy_mean, kl, outside])
        return numbers.numpy().astype(np.float64) / self.group_spec.parameter_sets

    def schedule(self, progress: float) -> Hyperparams:
        """Learning rates and clip range for this iteration."""
        s, left = self.settings, max(1.0 - progress, 0.0)
        factor = left if s.learning_rate_schedule == "linear" else 1.0
        critic_rate = s.learning_rate if s.critic_learning_rate is None else s.critic_learning_rate
        clip = s.clip * left if s.clip_schedule == "linear" else s.clip
        return Hyperparams(s.learning_rate * factor, critic_rate * factor, clip)

    # Values -------------------------------------------------------------------------------------------

    def add_context(self, x: Array, memory: Array | None, state: Array | None) -> Array:
        """What the critic sees: its agent's input, what the policy remembers, and the state if central."""
        parts = [x]
        if memory is not None:
            parts.append(self.policy.arrange(memory))
        if state is not None:
            rows = self.state_normalizer(state.reshape(1, -1, self.group_spec.state_size))[0]
            parts.append(self.policy.arrange(np.repeat(rows[:, None], len(self.group_spec.agents), axis=1)))
        return x if len(parts) == 1 else np.concatenate(parts, axis=-1)

    def evaluate(self, seen: Array) -> Array:
        """The critic's values `[S, M]` in the world's rewards."""
        if self.compiled:
            result = np.empty(seen.shape[:2], np.float32)
            for i in range(len(seen)):
                kernels.values(self.critic_flat.array[i], *self.critic.spec(), seen[i], result[i])
        else:
            x = torch.from_numpy(seen)
            with torch.no_grad():
                parts = [self.critic(x[:, i : i + CHUNK])[0] for i in range(0, x.shape[1], CHUNK)]
                result = torch.cat(parts, dim=1).squeeze(-1).numpy()
        return result * self.returns.scale + self.returns.shift

    def bootstrap(self, own: Experience, state: StateRows | None, values: Array) -> Array:
        """V of the last observation where an episode was cut short, `[T, N, A]`."""
        result = np.where(own.truncated, values[1:], np.float32(0))
        if len(own.finals.index):  # the copy was reset: row t+1 already shows the next episode
            sight = self.policy.sights(own.finals.observation)[1]
            last = None if state is None else state.finals
            final = self.evaluate(self.add_context(sight, own.finals.memory, last))
            t, n = own.finals.index.T
            result[t, n] = self.policy.restore_order(final, (len(t), len(self.group_spec.agents)))
        return result

    def metrics(self) -> Metrics:
        return {}  # `learn` returns them

    def state(self) -> State:
        return {
            "critic": networks.export(self.critic),
            "actor_adam": self.policy.flat.state(),
            "critic_adam": self.critic_flat.state(),
            "returns": self.returns.state(),
            "state_normalizer": self.state_normalizer.state(),
            "outcomes": {} if self.outcomes is None else self.outcomes.state(),
        }

    def load(self, state: State) -> None:
        networks.restore(self.critic, state["critic"], f"group '{self.group_spec.group}', critic")
        self.policy.flat.load(state["actor_adam"])
        self.critic_flat.load(state["critic_adam"])
        self.returns.load(state["returns"])
        self.state_normalizer.load(state["state_normalizer"])
        if self.outcomes is not None:
            self.outcomes.load(state["outcomes"])


def explained_variance(values: Array, returns: Array) -> float:
    """1 when values predict the returns, 0 when a constant would do as well; 0 for constant returns."""
    variance = float(returns.var(dtype=np.float64))
    return 1.0 - float((returns - values).var(dtype=np.float64)) / variance if variance > 0 else 0.0
