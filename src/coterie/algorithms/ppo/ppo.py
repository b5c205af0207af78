"""Proximal policy optimisation (Schulman et al. 2017) for groups of agents.

Read `PPO.learn` from top to bottom: rewards by the group's preference, values, advantages (`advantages.py`), then
epochs of minibatches over the decisions whose outcome is known (`minibatches.py`). The agents of a group share one
actor and critic, or have one each, stacked and trained independently. The critic sees what its agent sees, or with
`central_critic` the whole world as well (MAPPO, Yu et al. 2022); it shares the encoder of large pictures with the
actor. The losses are in `losses.py`; networks and their gradients in `nn/nets.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch

from coterie.algorithms.divergence import demand_finite
from coterie.algorithms.ppo import losses
from coterie.algorithms.ppo.advantages import advantages
from coterie.algorithms.ppo.minibatches import (
    Batch,
    FlatBatch,
    Minibatch,
    Targets,
    lay_out,
    make_batch,
    make_pass,
    pieces,
    rows_to_learn,
    shuffle,
    valid_rows,
)
from coterie.core.decisions import Decisions, Joint, StateRows
from coterie.core.group import GroupSpec, Learner, Panel, Preference, Risk, preferred_rewards
from coterie.core.search_space import Choice, Real, Space, Whole
from coterie.core.settings import Settings
from coterie.core.types import Array, Metrics, State
from coterie.core.validation import at_least, positive, within
from coterie.nn import networks
from coterie.nn.advice import add_advice_slopes, changes_learning
from coterie.nn.distributions import Choices
from coterie.nn.nets import Net, TorchNet, make_net
from coterie.nn.normalization import Normalizer, RunningMoments
from coterie.nn.packing import Rows, SharedRows, append_columns, map_rows, table_state
from coterie.policies.lora import LoraPolicy
from coterie.policies.network import NetworkPolicy
from coterie.preferences.episodic import EpisodeReturns

PIECE_NUMBERS = {"cpu": 2**21, "cuda": 2**28}  # numbers of pictures from which a shared encoder learns at once


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
    entropy_coefficient: float


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
        self.critic_network = networks.Network(shape, policy.layout, 1, 1.0, policy.seeds("critic"), encoded)
        self.critic_network.to(policy.device)
        self.actor: Net = policy.trainable
        self.critic = make_net(self.critic_network, policy.spec is not None)
        self.both: TorchNet | None = None  # actor and critic where they share the encoder, which both gradients pass
        if self.shared is not None:
            flats = [self.actor.flat, self.critic.flat]
            self.both = TorchNet(networks.ActorCritic(self.shared, self.critic_network), flats)
            self.critic = TorchNet(networks.EncodedCritic(self.shared, self.critic_network), flats[1:])
        numbers = PIECE_NUMBERS.get(policy.device.type, 2**28) // (
            group_spec.parameter_sets * max(policy.layout.size, 1)
        )
        # how many rows of a minibatch are learned from together: pictures need much memory in the backward pass
        self.rows_at_once = self.actor.rows_at_once if self.both is None else max(numbers, 1)
        slots = np.arange(group_spec.state_size)
        self.state_normalizer = Normalizer(slots, len(slots), 1, settings.central_critic)
        self.returns = RunningMoments(group_spec.parameter_sets)

    def shared_encoder(self) -> networks.Network | None:
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
            critic_input = self.shared.split(critic_input)[1]  # the rest is encoded by the actor
        batch = make_batch(self.policy, own, targets, self.add_hints(actor_input, own), critic_input)
        found = self.improve(self.scale_returns(batch), hyperparams, random)
        if warming:  # gradients by a new critic are noise: the actor begins without their momentum
            self.actor.flat.clear_momentum()
        keep = hand_over is not None and (warming or hand_over.keep_statistics)
        self.update_statistics(own, state, valid, keep)
        means = (self.policy.normalizer.mean, self.state_normalizer.mean)
        demand_finite(self.group_spec.group, found, means, (self.actor.flat.array, self.critic.flat.array))
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
        # floats, because the losses are compiled anew for integers
        return Hyperparams(s.learning_rate * factor, critic_rate * factor, float(clip), float(s.entropy_coefficient))

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
        return self.critic.predict(critic_input)[0][..., 0] * self.returns.scale + self.returns.shift

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
        out = self.critic_network.out
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
        s, rows = self.settings, rows_to_learn(batch)
        batch = self.prepare(batch)
        decisions = lay_out(batch, self.policy.head, self.group_spec.advice, self.value_limits())
        sums, taken = np.zeros((len(rows), len(losses.NAMES))), np.zeros((len(rows), 1))
        totals, kl = np.zeros_like(sums), np.zeros(len(rows))
        for _ in range(s.epochs):
            cuts = shuffle(rows, s.minibatches, random)
            once = make_pass(batch, decisions, cuts, s.normalize_advantages)
            for part in once.minibatches:
                self.step(batch, decisions, part, hyperparams)
            losses.add_up.over(len(rows), once.terms, once.ends, once.counts, totals, kl)
            sums += totals
            taken[:, 0] += [len(mine.ends) for mine in cuts]
            if s.target_kl is not None:
                rows = np.where(kl > s.target_kl, 0, rows)
            if not rows.any():
                break
        learned = taken[:, 0] > 0
        means = (sums[learned] / taken[learned]).mean(axis=0)
        return dict(zip(losses.NAMES, means.tolist(), strict=True)) | {"minibatches": float(taken[learned].mean())}

    def prepare(self, batch: Batch) -> Batch:
        """The batch with inputs where the networks read them, and without advice that does not change learning."""
        advice_use = self.group_spec.advice
        if advice_use is None or not changes_learning(advice_use, batch.advice):
            batch = batch._replace(advice=None)
        actor_input, critic_input = self.actor.place(batch.actor_input), batch.critic_input
        if self.shared is None and batch.sequences is not None:  # the critic reads decisions, not sequences
            critic_input = map_rows(lambda part: part.reshape(len(part), -1, part.shape[-1]), critic_input)
        return batch._replace(actor_input=actor_input, critic_input=self.critic.place(critic_input))

    def step(self, batch: Batch, decisions: FlatBatch, part: Minibatch, hyperparams: Hyperparams) -> None:
        """One gradient step of actor and critic on a minibatch."""
        for piece in pieces(part, self.rows_at_once):
            if self.both is None:
                out = self.actor.forward(batch.actor_input, piece.items, batch.sequences)
                self.actor.backward(self.policy_slopes(out, decisions, piece, hyperparams))
                values = self.critic.forward(batch.critic_input, piece.rows)
                self.critic.backward(self.value_slopes(values, decisions, piece))
            else:
                rows = SharedRows(batch.actor_input, batch.critic_input)
                both = self.both.forward(rows, piece.items, batch.sequences)
                out, values = (np.ascontiguousarray(part) for part in (both[..., :-1], both[..., -1:]))
                slopes = self.policy_slopes(out, decisions, piece, hyperparams)
                self.both.backward(np.concatenate([slopes, self.value_slopes(values, decisions, piece)], axis=-1))
        limit = self.settings.max_grad_norm
        self.actor.step(hyperparams.learning_rate, limit, part.learning)
        self.critic.step(hyperparams.critic_learning_rate, limit, part.learning)

    def value_limits(self) -> Array:
        """Limits of how far a value may move `[S]`, in units of each critic; 0: any distance."""
        clip = self.settings.value_clip
        return np.zeros(len(self.returns.scale)) if clip is None else clip / self.returns.scale[:, 0].astype(np.float64)

    def policy_slopes(self, out: Array, decisions: FlatBatch, piece: Minibatch, hyperparams: Hyperparams) -> Array:
        """The slopes of the policy's loss by the actor's outputs `[S, M, outputs]`."""
        head, logits, count = self.policy.head, out.reshape(-1, out.shape[-1]), len(piece.places)
        if decisions.prior is not None:
            logits = logits + decisions.prior[piece.places]
        log_prob, entropy = head.forward(logits, decisions.taken, piece.places)
        by_log_prob, by_entropy = np.empty(count, np.float32), np.empty(count, np.float32)
        losses.policy_losses.over(
            count,
            *(log_prob, entropy, piece.places, piece.weight, piece.advantage, decisions.log_prob, decisions.importance),
            *(hyperparams.clip, hyperparams.entropy_coefficient, by_log_prob, by_entropy, piece.terms),
        )
        slopes = head.backward(by_log_prob, by_entropy)
        if decisions.advice is not None:
            assert isinstance(head, Choices)
            probabilities, strength = decisions.advice
            add_advice_slopes.over(count, slopes, head.probability, piece.places, piece.weight, probabilities, strength)
        return slopes.reshape(out.shape)

    def value_slopes(self, values: Array, decisions: FlatBatch, piece: Minibatch) -> Array:
        """The slopes of the values' loss by the critic's outputs `[S, M, 1]`."""
        slopes = np.empty(len(piece.places), np.float32)
        losses.value_losses.over(
            len(slopes),
            *(values.reshape(-1), piece.places, piece.weight, decisions.value, decisions.target),
            *(decisions.value_limit, slopes, piece.terms),
        )
        return slopes.reshape(values.shape)

    # State --------------------------------------------------------------------------------------------

    def state(self) -> State:
        return {
            "critic": networks.export(self.critic_network),
            "actor_adam": self.actor.flat.state(),
            "critic_adam": self.critic.flat.state(),
            "returns": self.returns.state(),
            "state_normalizer": self.state_normalizer.state(),
            "outcomes": {} if self.outcomes is None else self.outcomes.state(),
        }

    def load(self, state: State) -> None:
        networks.restore(self.critic_network, state["critic"], f"group '{self.group_spec.group}', critic")
        self.actor.flat.load(state["actor_adam"])
        self.critic.flat.load(state["critic_adam"])
        self.returns.load(state["returns"])
        self.state_normalizer.load(state["state_normalizer"])
        if self.outcomes is not None:
            self.outcomes.load(state["outcomes"])


def explained_variance(values: Array, returns: Array) -> float:
    """1 where values predict the returns, 0 where they are no better than a constant, and 0 for constant returns."""
    variance = float(returns.var(dtype=np.float64))
    return 1.0 - float((returns - values).var(dtype=np.float64)) / variance if variance > 0 else 0.0
