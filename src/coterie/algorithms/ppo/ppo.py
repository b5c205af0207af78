"""Proximal policy optimisation (Schulman et al. 2017) for groups of agents.

Read `PPO.learn` from top to bottom: rewards by the group's preference, values, advantages (`advantages.py`), then
epochs of minibatches over the decisions whose outcome is known (`minibatches.py`). The agents of a group share one
actor and critic, or have one each, stacked and trained independently. The critic sees what its agent sees, or with
`central_critic` the whole world as well (MAPPO, Yu et al. 2022); it shares the encoder of large pictures with the
actor. The losses are in `losses.py`. Perceptrons with discrete choices are trained by `kernels.py`; all else, and
logits that advice biases, go through autograd.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch

from coterie.algorithms.divergence import demand_finite
from coterie.algorithms.ppo import kernels as ppo_kernels
from coterie.algorithms.ppo import losses
from coterie.algorithms.ppo.advantages import advantages
from coterie.algorithms.ppo.minibatches import (
    Batch,
    Targets,
    flatten_sequences,
    make_batch,
    minibatches,
    pieces,
    rows_to_learn,
    shuffle,
    to_device,
    valid_rows,
)
from coterie.core.decisions import Decisions, Joint, StateRows
from coterie.core.group import GroupSpec, Learner, Panel, Preference, Risk, preferred_rewards
from coterie.core.search_space import Choice, Real, Space, Whole
from coterie.core.settings import Settings
from coterie.core.types import Array, Metrics, State
from coterie.core.validation import at_least, positive, within
from coterie.nn import kernels, networks
from coterie.nn.advice import advice_slopes, biased_logits, changes_learning
from coterie.nn.normalization import Normalizer, RunningMoments
from coterie.nn.packing import PixelRows, Rows, append_columns, map_rows, table_state
from coterie.policies.lora import LoraPolicy
from coterie.policies.network import NetworkPolicy
from coterie.preferences.episodic import EpisodeReturns

CHUNK = 8192  # rows evaluated at once outside minibatches: enough to be fast, few enough for the cache
CHUNK_NUMBERS = 2**22  # and at most this many numbers of observations: pictures fill the memory
PIECE_NUMBERS = {"cpu": 2**21, "cuda": 2**28}  # the same for gradients through a shared encoder
NO_MASK = np.zeros((0, 0), bool)
NO_ADVICE = np.zeros((0, 0), np.float32)
NO_STRENGTH = np.zeros(0, np.float32)


@dataclass(frozen=True)
class HandOverSettings:
    """Settings for a policy that was trained before, such as a clone: they protect it while the new critic is poor."""

    warm_up: int = 10  # iterations in which only the critic learns: advantages of a new critic are noise
    keep_statistics: bool = True  # observations stay normalised as the policy learned to see them

    def __post_init__(self) -> None:
        at_least("warm_up", self.warm_up, 0)


@dataclass(frozen=True)
class PPOSettings(Settings):
    """Settings of PPO."""

    learning_rate: float = 2.5e-4  # of the actor
    critic_learning_rate: float | None = None  # None: the actor's
    learning_rate_schedule: Literal["constant", "linear"] = "linear"  # of both rates; linear: to 0 at the run's end
    gamma: float = 0.99  # discount per decision
    gae_lambda: float = 0.95  # 0: one-step advantages, 1: whole returns
    clip: float = 0.2  # how far the ratio of an action's new to its old probability may move from 1
    clip_schedule: Literal["constant", "linear"] = "constant"  # linear: to 0 at the run's end
    value_clip: float | None = None  # how far a value may move in one iteration; None: any distance
    epochs: int = 4  # passes over the experience
    minibatches: int = 4  # per pass
    entropy_coefficient: float = 0.01  # weight of the entropy bonus
    max_grad_norm: float = 0.5  # gradients of actor and critic are scaled to at most this norm
    normalize_advantages: bool = True  # per minibatch, to mean 0 and deviation 1
    normalize_returns: bool = True  # the critic predicts returns scaled by their running deviation
    target_kl: float | None = None  # after a pass, end the iteration if its last minibatch's KL is above this
    central_critic: bool = False  # the critic also sees the world's state, or all agents' observations
    share_encoder: bool | None = None  # one encoder for actor and critic; None: with encoders nature and impala
    # for a policy of an earlier run; None: all learn from the first iteration
    hand_over: HandOverSettings | None = None

    SEARCH: ClassVar[Space] = {  # what `coterie tune` varies
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
    """Hyperparameters of this iteration, as the schedules give them."""

    learning_rate: float
    critic_learning_rate: float
    clip: float


class PassTotals(NamedTuple):
    """Metrics of one pass over the batch, for each parameter set."""

    sums: Array  # [S, …]: of `losses.NAMES` over minibatches
    kl: Array  # [S]: of the latest minibatch, before its step


class Loss(NamedTuple):
    """A loss as its slopes with respect to functions of a network's outputs."""

    outputs: list[torch.Tensor]  # of each: [S, M], or logits [S, M, K]
    slopes: list[Array]  # in the same shapes
    totals: Array  # [S, …]: of `losses.NAMES`


class PPO(Learner):
    """Improves a network policy by clipped policy gradients."""

    teaches = (NetworkPolicy, LoraPolicy)
    policy: NetworkPolicy | LoraPolicy
    scopes = ("step", "episodic")
    advice_modes = ("mixture", "kl", "prior", "hint")
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
        if settings.central_critic and not group_spec.simultaneous:
            raise ValueError("central_critic=true needs a world in which all agents act at once")
        if group_spec.advice is not None and not isinstance(policy, NetworkPolicy):
            raise ValueError("an advisor needs policy.name=network; policy 'lora' takes no advice")
        self.outcomes: EpisodeReturns | None = None
        if isinstance(preference, Risk) and preference.scope == "episodic":
            if settings.gamma != 1:
                cure = f"set groups.{group_spec.group}.learner.gamma=1"
                raise ValueError(f"gamma must be 1 where whole episodes are judged, got {settings.gamma:g}; {cure}")
            self.outcomes = EpisodeReturns(preference, group_spec.parameter_sets)
        extra = policy.shape.extra - policy.hint_size + policy.memory_size
        extra += group_spec.state_size if settings.central_critic else 0
        shape = replace(policy.shape, memory=0, extra=extra)
        self.shared = self.shared_encoder()
        encoded = None if self.shared is None else self.shared.encoded_size
        self.critic = networks.Net(shape, policy.layout, 1, 1.0, policy.seeds("critic"), encoded).to(policy.device)
        self.critic_flat = networks.FlatParams(self.critic)
        slots = np.arange(group_spec.state_size)
        self.state_normalizer = Normalizer(slots, len(slots), 1, settings.central_critic)
        self.returns = RunningMoments(group_spec.parameter_sets)

    @property
    def compiled(self) -> bool:
        """Whether the compiled path serves this policy."""
        return self.policy.spec is not None

    def shared_encoder(self) -> networks.Net | None:
        """The actor, where the critic reads what the actor's encoder makes of observations; None: it has its own."""
        policy, wanted = self.policy, self.settings.share_encoder
        if isinstance(policy, NetworkPolicy) and policy.net.encode is not None and policy.reader is None:
            by_default = policy.shape.encoder in ("nature", "impala")
            return policy.net if wanted or (wanted is None and by_default) else None
        if wanted:
            raise ValueError(
                "share_encoder=true needs policy 'network' with an encoder (cnn, nature, impala, set) and without text "
                "features; leave share_encoder unset"
            )
        return None

    def learn(self, own: Decisions, joint: Joint, random: np.random.Generator) -> Metrics:
        s = self.settings
        own, metrics = self.apply_preference(own)
        hyperparams, hand_over = self.schedule(joint.progress), s.hand_over
        warming = hand_over is not None and joint.iteration <= hand_over.warm_up
        if warming:
            hyperparams = hyperparams._replace(learning_rate=0.0)

        actor_input, x = self.policy.learning_inputs(own.observation)
        state = table_state(joint) if s.central_critic else None
        critic_input = self.add_context(x, own.memory, None if state is None else state.rows)
        values = self.policy.restore_order(self.evaluate(critic_input), (len(own.valid) + 1, *own.valid.shape[1:]))
        next_values, valid = self.next_values(own, state, values), own.valid
        advantage, returns = advantages(own, own.reward, values[:-1], next_values, s.gamma, s.gae_lambda)
        if not valid.any():
            return {"decisions": 0.0} | metrics

        targets = Targets(advantage, returns, values[:-1], valid)
        if self.shared is not None:
            critic_input = self.shared.split(critic_input)[1]
        batch = make_batch(self.policy, own, targets, self.add_hints(actor_input, own), critic_input)
        found = self.improve(self.scale_returns(batch), hyperparams, random)
        if warming:  # gradients by a new critic are noise: the actor begins without their momentum
            self.policy.flat.clear_momentum()
        keep = hand_over is not None and (warming or hand_over.keep_statistics)
        self.update_statistics(own, state, valid, keep)
        means = (self.policy.normalizer.mean, self.state_normalizer.mean)
        demand_finite(self.group_spec.group, found, means, (self.policy.flat.array, self.critic_flat.array))
        return found | {
            "decisions": float(valid.sum()),
            "explained_variance": explained_variance(values[:-1][valid], returns[valid]),
            "learning_rate": hyperparams.learning_rate,
            **metrics,
        }

    def apply_preference(self, own: Decisions) -> tuple[Decisions, Metrics]:
        """The experience with the rewards that the group's preference makes of it, and metrics of whole episodes."""
        if self.outcomes is None:
            return replace(own, reward=preferred_rewards(self.preference, own, self.group_spec)), {}
        return self.outcomes.replace_rewards(own)

    def schedule(self, progress: float) -> Hyperparams:
        """Learning rates and clip range for this iteration."""
        s, left = self.settings, max(1.0 - progress, 0.0)
        factor = left if s.learning_rate_schedule == "linear" else 1.0
        critic_rate = s.learning_rate if s.critic_learning_rate is None else s.critic_learning_rate
        clip = s.clip * left if s.clip_schedule == "linear" else s.clip
        return Hyperparams(s.learning_rate * factor, critic_rate * factor, clip)

    # Values -------------------------------------------------------------------------------------------

    def add_context(self, x: Rows, memory: Array | None, state: Array | None) -> Rows:
        """The critic's input: its agent's observation, the policy's memory, and the state if the critic is central."""
        parts = []
        if memory is not None:
            parts.append(self.policy.arrange(memory))
        if state is not None:
            rows = self.state_normalizer(state.reshape(1, -1, self.group_spec.state_size))[0]
            parts.append(self.policy.arrange(np.repeat(rows[:, None], len(self.group_spec.agents), axis=1)))
        return append_columns(x, *parts)

    def evaluate(self, critic_input: Rows) -> Array:
        """The critic's values `[S, M]` in the world's rewards."""
        if self.compiled:
            result = np.empty(critic_input.shape[:2], np.float32)
            for i in range(len(critic_input)):
                kernels.values(self.critic_flat.array[i], *self.critic.spec(), critic_input[i], result[i])
        else:
            count = critic_input[0].shape[1] if isinstance(critic_input, PixelRows) else critic_input.shape[1]
            chunk = max(min(CHUNK, CHUNK_NUMBERS // max(self.policy.layout.size, 1)), 1)
            parts = []
            with torch.no_grad():
                for first in range(0, max(count, 1), chunk):
                    rows = map_rows(operator.itemgetter((slice(None), slice(first, first + chunk))), critic_input)
                    x = map_rows(functools.partial(torch.as_tensor, device=self.policy.device), rows)
                    parts.append(self.critic_outputs(x))
            result = torch.cat(parts, dim=1).squeeze(-1).cpu().numpy()
        return result * self.returns.scale + self.returns.shift

    def critic_outputs(self, x: Rows) -> torch.Tensor:
        """The critic's outputs for rows."""
        if self.shared is None:
            return self.critic(x)[0]
        observed, rest = self.shared.split(x)
        return self.critic(rest, None, self.shared.encode_observed(observed))[0]

    def next_values(self, own: Decisions, state: StateRows | None, values: Array) -> Array:
        """V of what each decision's agent saw next, `[T, N, A]`; `values [T+1, N, A]` are V of the rows."""
        finals = np.zeros((0, *values.shape[2:]), np.float32)
        if len(own.finals.at):
            x = self.policy.learning_inputs(own.finals.observation)[1]
            final = self.evaluate(self.add_context(x, own.finals.memory, None if state is None else state.finals))
            finals = self.policy.restore_order(final, (len(own.finals.at), len(self.group_spec.agents)))
        return own.at_next(values, finals)

    # The batch ----------------------------------------------------------------------------------------

    def add_hints(self, actor_input: Rows, own: Decisions) -> Rows:
        """The actor's input with the hints that it saw appended; none came with the last observation."""
        if not self.policy.hint_size or own.advice is None:
            return actor_input
        hints = self.policy.arrange(own.advice.hint)
        missing = actor_input.shape[1] - hints.shape[1]
        return np.concatenate([actor_input, np.pad(hints, ((0, 0), (0, missing), (0, 0)))], axis=-1)

    def scale_returns(self, batch: Batch) -> Batch:
        """Targets and values in the critic's units, which follow the running moments of returns."""
        if self.settings.normalize_returns:
            shift, scale = self.returns.shift, self.returns.scale
            flat = (len(batch.weight), -1)
            self.returns.update(batch.target.reshape(flat), batch.weight.reshape(flat))
            self.rescale_critic(shift, scale)
        across = (-1, *[1] * (batch.value.ndim - 1))
        shift, scale = self.returns.shift.reshape(across), self.returns.scale.reshape(across)
        return batch._replace(value=(batch.value - shift) / scale, target=(batch.target - shift) / scale)

    def rescale_critic(self, shift: Array, scale: Array) -> None:
        """Change the critic's last layer so that its values stay the same in the new units (PopArt).

        Van Hasselt et al. 2016, proposition 1. Without it every change of units is an error of the critic, and returns
        that drift (as they do while values grow from 0) mislead the policy. `shift` and `scale` are the old units.
        """
        units = (shift, scale, self.returns.shift, self.returns.scale)
        old_shift, old_scale, new_shift, new_scale = (
            torch.as_tensor(array, device=self.policy.device)[..., None] for array in units
        )
        out = self.critic.out
        out.weight.data.mul_(old_scale / new_scale)
        out.bias.data.mul_(old_scale / new_scale).add_((old_shift - new_shift) / new_scale)

    def update_statistics(self, own: Decisions, state: StateRows | None, valid: Array, keep: bool = False) -> None:
        """Update the running statistics of observations, after learning: acting and learning see the same numbers.

        With `keep`, those of the policy stay as they are.
        """
        if self.policy.normalizer.enabled and not keep:
            rows = self.policy.arrange(self.policy.pack(own.observation)[:-1])
            chosen = valid_rows(valid, self.group_spec.parameter_sets)
            self.policy.normalizer.update([mine[index] for mine, index in zip(rows, chosen, strict=True)])
        if state is not None:
            self.state_normalizer.update([state.rows[:-1].reshape(-1, self.group_spec.state_size)])

    # Gradient steps -----------------------------------------------------------------------------------

    def improve(self, batch: Batch, hyperparams: Hyperparams, random: np.random.Generator) -> Metrics:
        """Take several passes of minibatch gradient steps; returns means over the minibatches.

        Every parameter set has its own minibatches and stops at its own `target_kl`, as if it were trained alone.
        """
        rows, target_kl = rows_to_learn(batch), self.settings.target_kl
        advice_use = self.group_spec.advice
        if advice_use is None or not changes_learning(advice_use, batch.advice):
            batch = batch._replace(advice=None)
        biased = batch.advice is not None and advice_use is not None and advice_use.use.mode == "prior"
        run = self.compiled_pass if self.compiled and not biased else self.autograd_pass
        sums, taken = np.zeros((len(rows), len(losses.NAMES))), np.zeros((len(rows), 1))
        for _ in range(self.settings.epochs):
            cuts = shuffle(rows, self.settings.minibatches, random)
            found = run(batch, cuts, hyperparams)
            sums += found.sums
            taken[:, 0] += [len(mine) for mine in cuts]
            if target_kl is not None:
                rows = np.where(found.kl > target_kl, 0, rows)
            if not rows.any():
                break
        learned = taken[:, 0] > 0
        means = (sums[learned] / taken[learned]).mean(axis=0)
        return dict(zip(losses.NAMES, means.tolist(), strict=True)) | {"minibatches": float(taken[learned].mean())}

    def compiled_pass(self, batch: Batch, cuts: list[list[Array]], hyperparams: Hyperparams) -> PassTotals:
        """One pass of every parameter set over its minibatches, by `kernels.py`."""
        actor, critic = self.policy.flat, self.critic_flat
        assert self.policy.spec is not None
        specs = (self.policy.spec, self.critic.spec())
        found = self.no_totals()
        for i, mine in enumerate(cuts):
            if not mine:
                continue
            decisions = ppo_kernels.Decisions(
                batch.actor_input[i],
                batch.critic_input[i],
                np.ascontiguousarray(batch.action[i].reshape(len(batch.action[i]), -1)),
                NO_MASK if batch.mask is None else batch.mask[i],
                batch.log_prob[i],
                batch.importance[i],
                batch.advantage[i],
                batch.target[i],
                batch.value[i],
                batch.weight[i],
                NO_ADVICE if batch.advice is None else batch.advice.probabilities[i],
                NO_STRENGTH if batch.advice is None else batch.advice.strength[i],
            )
            numbers = ppo_kernels.Hyperparams(
                self.loss_settings(hyperparams)[i],
                self.settings.max_grad_norm,
                hyperparams.learning_rate,
                hyperparams.critic_learning_rate,
            )
            both = (actor.optimized(i), critic.optimized(i))
            bounds = np.array([0, *np.cumsum([len(rows) for rows in mine])])
            found.sums[i], found.kl[i] = ppo_kernels.ppo_pass(
                decisions, np.concatenate(mine), bounds, specs, both, self.policy.choices, numbers, int(actor.steps[i])
            )
            actor.steps[i] += len(mine)
            critic.steps[i] += len(mine)
        return found

    def autograd_pass(self, batch: Batch, cuts: list[list[Array]], hyperparams: Hyperparams) -> PassTotals:
        """The same through PyTorch."""
        found = self.no_totals()
        for part, learning in minibatches(to_device(batch, self.policy.device), cuts):
            totals = self.step(part, learning, hyperparams)
            found.sums[learning] += totals[learning]
            found.kl[learning] = totals[learning, losses.NAMES.index("kl")]
        return found

    def no_totals(self) -> PassTotals:
        """Zeros to add up."""
        parameter_sets = self.group_spec.parameter_sets
        return PassTotals(np.zeros((parameter_sets, len(losses.NAMES))), np.zeros(parameter_sets))

    def step(self, part: Batch, learning: Array, hyperparams: Hyperparams) -> Array:
        """One gradient step of the parameter sets that learn from a minibatch; returns totals of the losses `[S, …]`.

        Actor and critic take their steps one after the other, or together where they share the encoder, which is one of
        the actor's layers and follows both gradients.
        """
        if self.shared is not None:
            return self.shared_step(self.shared, part, learning, hyperparams)
        settings = self.loss_settings(hyperparams)
        actor = self.actor_loss(part, settings, self.policy.net.unroll(part.actor_input, part.sequences))
        self.adam_step(self.policy.flat, actor, hyperparams.learning_rate, learning)
        out = self.critic(flatten_sequences(part).critic_input)[0]
        critic = self.critic_loss(part, settings, out)
        self.adam_step(self.critic_flat, critic, hyperparams.critic_learning_rate, learning)
        return actor.totals + critic.totals

    def shared_step(self, net: networks.Net, part: Batch, learning: Array, hyperparams: Hyperparams) -> Array:
        """The same with one encoder. Pictures are encoded piece by piece: on a CPU, few of them need less memory."""
        settings, cut = self.loss_settings(hyperparams), [part]
        if part.sequences is None:
            wanted = settings[0].normalize_advantages
            scaled = [losses.normalize(*mine, wanted) for mine in zip(part.weight, part.advantage, strict=True)]
            weight, advantage = (np.stack(arrays) for arrays in zip(*scaled, strict=True))
            numbers = PIECE_NUMBERS.get(self.policy.device.type, 2**28)
            rows = max(numbers // (len(weight) * max(self.policy.layout.size, 1)), 1)
            cut = list(pieces(part._replace(weight=weight, advantage=advantage), rows))
            settings = [each._replace(normalize_advantages=False) for each in settings]
        flats, totals = (self.policy.flat, self.critic_flat), np.zeros((len(part.weight), len(losses.NAMES)))
        networks.clear_gradients(flats)
        for piece in cut:
            observed, rest = net.split(piece.actor_input)
            encoded = net.encode_observed(observed if piece.sequences is None else observed.flatten(1, 2))
            actor = self.actor_loss(piece, settings, net.unroll(rest, piece.sequences, encoded))
            out = self.critic(flatten_sequences(piece).critic_input, None, encoded)[0]
            critic = self.critic_loss(piece, settings, out)
            networks.backward(actor.outputs + critic.outputs, actor.slopes + critic.slopes)
            totals += actor.totals + critic.totals
        for flat, rate in zip(flats, (hyperparams.learning_rate, hyperparams.critic_learning_rate), strict=True):
            flat.step(rate, self.settings.max_grad_norm, learning)
        return totals

    def actor_loss(self, part: Batch, settings: list[losses.LossSettings], out: torch.Tensor) -> Loss:
        """The policy's loss for the actor's outputs."""
        part = flatten_sequences(part)
        advice_use, advice = self.group_spec.advice, part.advice
        if advice_use is not None and advice is not None:
            out = biased_logits(advice_use, out, advice)
        log_prob, entropy = self.policy.head.evaluate_actions(out, part.action, part.mask)
        detached = torch.stack([log_prob, entropy]).detach().cpu().numpy()
        slopes, totals = np.empty_like(detached), np.zeros((len(part.weight), len(losses.NAMES)))
        for i in range(len(part.weight)):
            rows = (part.log_prob[i], part.importance[i], part.advantage[i], part.weight[i])
            slopes[0, i], slopes[1, i], totals[i] = losses.policy_losses(
                detached[0, i], detached[1, i], *rows, settings[i]
            )
        loss = Loss([log_prob, entropy], list(slopes), totals)
        if advice_use is None or advice is None or advice_use.use.mode != "kl":
            return loss
        weight = np.stack([losses.normalize(mine, mine, False)[0] for mine in part.weight])
        return Loss([*loss.outputs, out], [*loss.slopes, advice_slopes(out, part.mask, advice, weight)], totals)

    def critic_loss(self, part: Batch, settings: list[losses.LossSettings], out: torch.Tensor) -> Loss:
        """The values' loss for the critic's outputs."""
        part, value = flatten_sequences(part), out.squeeze(-1)
        detached = value.detach().cpu().numpy()
        slopes, totals = np.empty_like(detached), np.zeros((len(part.weight), len(losses.NAMES)))
        for i in range(len(part.weight)):
            rows = (part.value[i], part.target[i], part.weight[i])
            slopes[i], totals[i] = losses.value_losses(detached[i], *rows, settings[i])
        return Loss([value], [slopes], totals)

    def adam_step(self, flat: networks.FlatParams, loss: Loss, rate: float, learning: Array) -> None:
        """One Adam step of some parameter sets."""
        networks.adam_step([flat], loss.outputs, rate, self.settings.max_grad_norm, learning, loss.slopes)

    def loss_settings(self, hyperparams: Hyperparams) -> list[losses.LossSettings]:
        """Settings of the losses for each parameter set; each critic has its own units."""
        s = self.settings
        limits = [0.0 if s.value_clip is None else s.value_clip / float(scale) for scale in self.returns.scale[:, 0]]
        clip, entropy = float(hyperparams.clip), float(s.entropy_coefficient)  # an integer would be compiled for anew
        return [losses.LossSettings(clip, limit, entropy, s.normalize_advantages) for limit in limits]

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
    """1 where values predict the returns, 0 where they are no better than a constant, and 0 for constant returns."""
    variance = float(returns.var(dtype=np.float64))
    return 1.0 - float((returns - values).var(dtype=np.float64)) / variance if variance > 0 else 0.0
