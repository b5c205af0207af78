"""Deep Q-learning (Mnih et al. 2015) for groups of agents, with its classic improvements, each a setting.

Read `DQN.learn` from top to bottom: experience becomes n-step transitions in a replay buffer (`transitions.py`,
`replay.py`), then a number of gradient steps is due, each on a batch drawn from it (`batches.py`). `step` is the
algorithm: values of next states from a slowly moving target network, and one gradient step towards them (`losses.py`).
The agents of a group learn independently (IQL), sharing one network or with one each; with a mixer they learn one value
of the team (VDN, QMIX; `mixing.py`). Networks and their gradients are in `nn/nets.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
import torch

from coterie.algorithms.divergence import demand_finite
from coterie.algorithms.dqn import losses, mixing
from coterie.algorithms.dqn.batches import Batch
from coterie.algorithms.dqn.losses import NAMES
from coterie.algorithms.dqn.transitions import (
    PendingSteps,
    agent_trajectories,
    complete_transitions,
    empty_transitions,
    no_pending,
    team_trajectories,
)
from coterie.algorithms.replay import Replay, ReplaySettings
from coterie.core.decisions import Decisions, Joint, StateRows
from coterie.core.group import GroupSpec, Learner, Panel, Preference, preferred_rewards
from coterie.core.search_space import Choice, Real, Space, Whole
from coterie.core.settings import Settings
from coterie.core.types import Array, Metrics, State
from coterie.core.validation import at_least, positive, within
from coterie.nn import networks
from coterie.nn.nets import Net, make_net
from coterie.nn.normalization import Normalizer
from coterie.nn.packing import table_state
from coterie.policies.q_network import QNetworkPolicy, state_stream

MEASURED = 4096  # states whose values are measured before they are scaled


@dataclass(frozen=True)
class EpsilonSettings(Settings):
    """Exploration: the probability ε of a random action."""

    start: float = 1.0  # ε at first
    end: float = 0.05  # and later
    schedule: Literal["linear", "exponential", "constant"] = "linear"  # from start to end; constant: start throughout
    fraction: float = 0.1  # of the run after which `end` is reached

    SEARCH: ClassVar[Space] = {  # what `coterie tune` varies
        "end": Real(0.01, 0.2, log=True),
        "fraction": Real(0.05, 0.5),
    }

    def __post_init__(self) -> None:
        within("start", self.start, 0, 1)
        within("end", self.end, 0, 1)
        within("fraction", self.fraction, 0, 1)
        if self.schedule == "exponential" and not (self.start > 0 and self.end > 0):
            raise ValueError(
                "schedule=exponential never reaches 0: start and end must be above 0, "
                f"got {self.start:g} and {self.end:g}"
            )

    def at(self, progress: float) -> float:
        """ε after this fraction of the run's steps."""
        part = min(progress / self.fraction, 1.0) if self.fraction > 0 else 1.0
        if self.schedule == "constant":
            return self.start
        if self.schedule == "linear":
            return self.start + part * (self.end - self.start)
        return float(self.start * (self.end / self.start) ** part)


@dataclass(frozen=True)
class TargetSettings(Settings):
    """Settings of the target network."""

    update: Literal["hard", "soft"] = "hard"  # hard: a copy now and then; soft: a moving average
    interval: int = 100  # gradient steps between hard updates
    tau: float = 0.005  # fraction of the way that a soft target moves at every gradient step

    SEARCH: ClassVar[Space] = {  # what `coterie tune` varies
        "update": Choice(("hard", "soft")),
        "interval": Whole(20, 2000, log=True),
        "tau": Real(0.001, 0.05, log=True),
    }

    def __post_init__(self) -> None:
        at_least("interval", self.interval, 1)
        positive("tau", self.tau)
        within("tau", self.tau, 0, 1)


@dataclass(frozen=True)
class DQNHandOverSettings:
    """Settings that protect a policy which was trained before, such as a clone.

    A clone's values say which action is best, not how good it is: they are logits. `gap` brings them to the scale of
    returns. In the warm-up the value of states is learned while the advantages of actions, and with them the greedy
    policy, stay as they are. An advisor with `use.mode=margin` keeps the policy near the clone afterwards.
    """

    keep_statistics: bool = True  # observations stay normalised as the policy learned to see them
    epsilon: float | None = None  # ε at first, in place of epsilon.start; None: epsilon.end
    warm_up: int = 0  # learning iterations in which only the state stream of a dueling network learns (and a mixer)
    gap: float | None = None  # values are first scaled so that the best one is this far above the next, in the median

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            within("epsilon", self.epsilon, 0, 1)
        at_least("warm_up", self.warm_up, 0)
        if self.gap is not None:
            positive("gap", self.gap)

    def exploration(self, settings: EpsilonSettings) -> EpsilonSettings:
        """The schedule of ε after the hand-over; a constant one stays as it is unless `epsilon` is set."""
        start = settings.start if settings.schedule == "constant" else settings.end
        return replace(settings, start=start if self.epsilon is None else self.epsilon)


@dataclass(frozen=True)
class DQNSettings(Settings):
    """Settings of DQN."""

    learning_rate: float = 5e-4  # of Adam
    learning_rate_schedule: Literal["constant", "linear"] = "constant"  # linear: to 0 at the run's end
    gamma: float = 0.99  # discount per decision
    batch_size: int = 64  # transitions per gradient step
    updates_per_step: float = 0.25  # gradient steps per environment step, over all copies
    double: bool = True  # the network chooses the next action, the target network evaluates it
    n_steps: int = 3  # decisions before the value of the next state is added
    huber: float | None = 1.0  # errors beyond this count linearly; None: all are squared
    max_grad_norm: float = 10.0  # gradients are scaled to at most this norm
    epsilon: EpsilonSettings = field(default_factory=EpsilonSettings)  # exploration
    target: TargetSettings = field(default_factory=TargetSettings)  # the target network
    replay: ReplaySettings = field(default_factory=ReplaySettings)  # the replay buffer
    mixer: mixing.Name = "none"  # vdn, qmix: one value of the team, learned from its mean reward
    mixing_width: int = 32  # of qmix
    mixer_learning_rate: float | None = None  # of qmix's Adam, on the same schedule; None: learning_rate
    hand_over: DQNHandOverSettings | None = None  # for a policy of an earlier run; None: it explores as a new one

    SEARCH: ClassVar[Space] = {  # what `coterie tune` varies
        "learning_rate": Real(5e-5, 5e-3, log=True),
        "gamma": Choice((0.95, 0.98, 0.99, 0.995)),
        "batch_size": Choice((32, 64, 128, 256)),
        "updates_per_step": Real(0.05, 1.0, log=True),
        "double": Choice((True, False)),
        "n_steps": Whole(1, 8, log=True),
    }

    def __post_init__(self) -> None:
        positive("learning_rate", self.learning_rate)
        within("gamma", self.gamma, 0, 1)
        at_least("batch_size", self.batch_size, 1)
        positive("updates_per_step", self.updates_per_step)
        at_least("n_steps", self.n_steps, 1)
        positive("max_grad_norm", self.max_grad_norm)
        at_least("mixing_width", self.mixing_width, 1)
        if self.mixer_learning_rate is not None:
            positive("mixer_learning_rate", self.mixer_learning_rate)
            if self.mixer != "qmix":
                raise ValueError(
                    f"mixer_learning_rate is for mixer=qmix, and mixer={self.mixer} has no weights; "
                    "set mixer_learning_rate=null or mixer=qmix"
                )
        if self.huber is not None:
            positive("huber", self.huber)


class DQN(Learner):
    """Improves a policy of action values by bootstrapping from a replay buffer."""

    teaches = (QNetworkPolicy,)
    policy: QNetworkPolicy
    advice_modes = ("margin",)
    panels = (
        Panel("value loss", "loss", ("loss",)),
        Panel("margin loss to advised actions", "value", ("margin_loss",)),
        Panel("mean action value", "value", ("q_mean",)),
        Panel("exploration", "share of random actions", ("epsilon",)),
    )

    def __init__(
        self, settings: DQNSettings, policy: QNetworkPolicy, group_spec: GroupSpec, preference: Preference
    ) -> None:
        self.settings, self.policy, self.group_spec, self.preference = settings, policy, group_spec, preference
        self.team = settings.mixer != "none"
        if self.team and not group_spec.simultaneous:
            raise ValueError(f"mixer={settings.mixer} needs a world in which all agents act at once")
        hand_over = settings.hand_over
        if hand_over is not None and hand_over.warm_up and not policy.shape.hidden:
            raise ValueError(f"hand_over.warm_up={hand_over.warm_up} needs a hidden layer; set policy.hidden=[64]")
        if hand_over is not None and hand_over.warm_up and not policy.first:
            raise ValueError(
                f"hand_over.warm_up={hand_over.warm_up} needs policy.dueling=true: other networks have no value of the "
                "state that could be learned alone"
            )
        self.exploration = settings.epsilon if hand_over is None else hand_over.exploration(settings.epsilon)
        policy.epsilon = self.exploration.at(0.0)
        outputs = policy.first + policy.actions
        self.net: Net = policy.trainable
        self.target_network = networks.Network(policy.shape, policy.layout, outputs, 0.5, policy.seeds("target"))
        self.target = make_net(self.target_network.to(policy.device), policy.spec is not None)
        self.target.copy_from(self.net)
        self.mixer, self.target_mixer = (self.make_mixer() for _ in range(2))  # None: members' values are added
        self.state_size = group_spec.state_size if settings.mixer == "qmix" else 0
        self.state_normalizer = Normalizer(np.arange(self.state_size), self.state_size, 1, True)
        self.members = members = len(group_spec.agents) if self.team else 1
        size, dtype = policy.row_type
        like = empty_transitions(0, members, size, policy.actions, self.state_size, dtype)
        self.replays = [Replay(settings.replay, like) for _ in range(1 if self.team else group_spec.parameter_sets)]
        self.pending: list[PendingSteps] = []  # made with the first experience, which shows the number of copies
        self.extremes = np.zeros(2)  # the lowest and the highest reward of a member so far, or 0
        self.due = 0.0  # gradient steps not yet taken
        self.learned = np.zeros(len(self.replays), np.int64)  # iterations with gradient steps from each replay
        self.learns = np.zeros((group_spec.parameter_sets, 0), bool)  # [S, P] in this iteration; [S, 0]: all learn
        self.advice = 0.0  # weight of the margin loss in this iteration
        self.margin = 0.0 if group_spec.advice is None else group_spec.advice.use.margin

    def make_mixer(self) -> Net | None:
        """QMIX with its first weights."""
        s, group_spec = self.settings, self.group_spec
        if s.mixer != "qmix":
            return None
        seed = self.policy.seeds("mixer")[0]
        mixer = mixing.QMIX(len(group_spec.agents), group_spec.state_size, s.mixing_width, seed)
        return make_net(mixer.to(self.policy.device))

    @property
    def trained(self) -> list[Net]:
        """The networks that learn: that of values, and the mixer if it has weights."""
        return [self.net] if self.mixer is None else [self.net, self.mixer]

    def mixer_rate(self, rate: float) -> float:
        """The learning rate of the mixer, where the network's is `rate`: both follow one schedule."""
        s = self.settings
        return rate if s.mixer_learning_rate is None else rate * (s.mixer_learning_rate / s.learning_rate)

    def policy_started(self) -> None:
        """Let the target network begin with the weights that the policy has taken over."""
        self.target.copy_from(self.net)

    def learn(self, own: Decisions, joint: Joint, random: np.random.Generator) -> Metrics:
        s, warming = self.settings, self.warming
        self.store(own, joint)
        metrics: Metrics = {"replay": float(sum(replay.size for replay in self.replays))}
        if any(replay.ready for replay in self.replays):
            rows = len(own.valid) - (0 if self.group_spec.simultaneous else 1)  # row 0 is a decision left open
            self.due += s.updates_per_step * rows * own.valid.shape[1]
            steps, self.due = int(self.due), self.due % 1
            importance = s.replay.importance + (1 - s.replay.importance) * min(joint.progress, 1.0)
            rate = s.learning_rate * (max(1 - joint.progress, 0.0) if s.learning_rate_schedule == "linear" else 1.0)
            if steps:
                uniform = random.random((len(self.replays), steps, s.batch_size))
                self.prepare(joint)
                sums = self.improve(uniform, rate, importance)
                found = dict(zip(NAMES, (sums / steps).tolist(), strict=True))
                metrics |= {name: value for name, value in found.items() if self.advice or name != "margin_loss"}
            metrics |= {"updates": float(steps), "learning_rate": rate}
        self.update_statistics(own, joint, warming)
        means = [self.policy.normalizer.mean, self.state_normalizer.mean]
        demand_finite(self.group_spec.group, metrics, means, [net.flat.array for net in self.trained])
        self.policy.epsilon = self.exploration.at(joint.ahead)
        return metrics | {"epsilon": self.policy.epsilon}

    @property
    def warming(self) -> bool:
        """Whether a parameter set has iterations of its warm-up left."""
        hand_over = self.settings.hand_over
        return hand_over is not None and bool((self.learned < hand_over.warm_up).any())

    def prepare(self, joint: Joint) -> None:
        """Scale values once, choose the parameters that learn, and set the weight of the margin loss."""
        hand_over, sets = self.settings.hand_over, self.group_spec.parameter_sets
        ready = np.array([replay.ready for replay in self.replays])
        if hand_over is not None and hand_over.gap is not None and (begin := ready & (self.learned == 0)).any():
            self.scale_values(hand_over.gap, begin)
        self.learns = np.zeros((sets, 0), bool)
        if hand_over is not None and self.warming:
            done = self.learned >= hand_over.warm_up  # [R]: one replay for all sets, or one each
            self.learns = state_stream(self.policy.net) | np.repeat(done, sets // len(done))[:, None]
        use = None if self.group_spec.advice is None else self.group_spec.advice.use
        before = (joint.iteration - 1) * joint.steps
        self.advice = use.at(joint.progress, before) if use is not None and use.mode == "margin" else 0.0
        self.learned += ready

    def scale_values(self, gap: float, begin: Array) -> None:
        """Scale values so that the best legal one is `gap` above the next, in the median of next states in the replay.

        `begin` says for which replays `[R]`. Advantages alone are scaled where the network has them. The order of
        actions stays as it is. Values stay where the replay has no next state with two legal actions.
        """
        policy, sets = self.policy, self.group_spec.parameter_sets
        factor = torch.ones(sets, device=policy.device)
        for number in np.flatnonzero(begin) if policy.actions > 1 else ():
            batch = Batch(policy, self.replays, min(self.replays[number].size, MEASURED), self.members)
            batch.index[:] = np.tile(np.arange(batch.size), len(self.replays))
            batch.fill()
            out, part = self.net.predict(batch.next_x)[0], batch.parts[number]
            values = policy.action_values(out.reshape(-1, out.shape[-1])[batch.places[part]])  # [B, M, K]
            best = np.sort(np.where(batch.next_mask[part], values, -np.inf), axis=-1)
            gaps = best[..., -1] - best[..., -2]
            known = batch.next_active[part] & (batch.discount[part] > 0)[:, None] & np.isfinite(gaps)
            if self.team and sets > 1:
                chosen = [(i, gaps[:, i][known[:, i]]) for i in range(sets)]
            else:
                chosen = [(int(number) if sets > 1 else 0, gaps[known])]
            for i, found in chosen:
                if len(found) and np.median(found) > 0:
                    factor[i] = gap / float(np.median(found))
        with torch.no_grad():
            last = policy.net.out
            last.weight[..., policy.first :] *= factor[:, None, None]
            last.bias[..., policy.first :] *= factor.view(-1, *(1,) * (last.bias.dim() - 1))
        self.target.copy_from(self.net, np.repeat(begin, sets // len(begin)))

    # Experience ---------------------------------------------------------------------------------------

    def store(self, own: Decisions, joint: Joint) -> None:
        """Add the transitions that this experience completes to the replay buffers."""
        packed, final = self.policy.pack(own.observation), self.policy.pack(own.finals.observation)
        rewards = preferred_rewards(self.preference, own, self.group_spec)
        self.extremes[:] = min(self.extremes[0], rewards.min()), max(self.extremes[1], rewards.max())
        if own.mask is None:
            own = replace(own, mask=np.ones((*own.valid.shape, self.policy.actions), bool))
        if self.team:
            trajectories = [team_trajectories(own, packed, final, rewards, self.state_rows(own, joint))]
        else:
            trajectories = agent_trajectories(own, packed, final, rewards, self.group_spec.parameter_sets)
        if not self.pending:
            steps, like = self.settings.n_steps, self.replays[0].rows
            self.pending = [no_pending(mine.active.shape[1], steps, like) for mine in trajectories]
        for mine, pending, replay in zip(trajectories, self.pending, self.replays, strict=True):
            replay.add(complete_transitions(mine, pending, self.settings.gamma))

    def update_statistics(self, own: Decisions, joint: Joint, warming: bool) -> None:
        """Update the running statistics of observations, after learning: acting and learning see the same numbers."""
        hand_over = self.settings.hand_over
        keep = hand_over is not None and (warming or hand_over.keep_statistics)
        if self.policy.normalizer.enabled and not keep:
            rows = self.policy.arrange(self.policy.pack(own.observation)[:-1])
            closed = self.policy.arrange(own.valid[..., None])[..., 0]
            self.policy.normalizer.update([mine[chosen] for mine, chosen in zip(rows, closed, strict=True)])
        if self.state_size:
            self.state_normalizer.update([self.state_rows(own, joint).rows[:-1].reshape(-1, self.state_size)])

    def state_rows(self, own: Decisions, joint: Joint) -> StateRows:
        """The world's state for the mixer; rows of length 0 unless the mixer reads it."""
        if self.state_size:
            return table_state(joint)
        rows, num_envs = len(own.valid) + 1, own.valid.shape[1]
        return StateRows(np.zeros((rows, num_envs, 0), np.float32), np.zeros((len(own.finals.at), 0), np.float32))

    # Gradient steps -----------------------------------------------------------------------------------

    def improve(self, uniform: Array, rate: float, importance: float) -> Array:
        """A gradient step for every `uniform [replays, steps, B]`; returns sums of `NAMES` over the steps."""
        replays, steps, size = uniform.shape
        batch = Batch(self.policy, self.replays, size, self.members)
        terms = np.zeros((steps, replays * size, len(NAMES)))
        for step in range(steps):
            batch.draw(uniform[:, step], importance)
            self.step(batch, rate, terms[step])
            for replay, part in zip(self.replays, batch.parts, strict=True):
                if replay.ready:
                    replay.learned(batch.index[part], batch.error[part])
            self.move_target()
        ready, sums = np.repeat([replay.ready for replay in self.replays], size), np.zeros(len(NAMES))
        losses.add_up.over(len(NAMES), terms[:, ready].reshape(-1, len(NAMES)), sums)
        return sums * size / ready.sum()

    def step(self, batch: Batch, rate: float, terms: Array) -> None:
        """One gradient step; writes errors into the batch and `terms [T, …]` of the losses."""
        s, start, count = self.settings, self.policy.first, len(batch.index)
        total = self.next_totals(batch)
        out = self.net.forward(batch.x)
        flat, slopes = out.reshape(-1, out.shape[-1]), np.empty_like(out)
        of_outputs = slopes.reshape(flat.shape)
        losses.chosen_values.over(count, flat, batch.places, batch.action, batch.active, start, batch.values)
        value = self.mix(self.mixer, batch, "state")
        huber = np.inf if s.huber is None else float(s.huber)
        losses.td_losses.over(
            count,
            *(value, total, batch.reward, batch.discount, batch.weight, batch.size, huber),
            *(batch.error, batch.slopes, terms),
        )
        by_member = self.unmix(batch.slopes)
        losses.value_slopes.over(count, batch.places, batch.action, batch.active, by_member, start, of_outputs)
        if self.advice:
            losses.margin_losses.over(
                count,
                *(flat, batch.places, batch.active, batch.advised, batch.mask, batch.weight, batch.size),
                *(float(self.margin), float(self.advice), start, of_outputs, terms),
            )
        before = self.net.flat.value.clone() if self.learns.shape[1] else None
        self.net.backward(slopes)
        self.net.step(rate, s.max_grad_norm, batch.learning)
        if self.mixer is not None:
            self.mixer.step(self.mixer_rate(rate), s.max_grad_norm)
        if before is not None:
            self.hold(before)

    def hold(self, before: torch.Tensor) -> None:
        """Return the parameters that do not learn in this iteration to what they were, without momentum."""
        flat, learns = self.net.flat, torch.as_tensor(self.learns, device=self.policy.device)
        flat.value.copy_(torch.where(learns, flat.value, before))
        flat.moments[0].mul_(learns)

    def next_totals(self, batch: Batch) -> Array:
        """The value of what follows each transition `[T]`: that of its members' best actions."""
        judge = self.target.predict(batch.next_x)[0]
        chooser = self.net.predict(batch.next_x)[0] if self.settings.double else judge
        chooser, judge = (out.reshape(-1, out.shape[-1]) for out in (chooser, judge))
        losses.next_values.over(
            len(batch.index),
            *(chooser, judge, batch.places, batch.next_mask, batch.next_active, self.policy.first, batch.values),
        )
        if self.mixer is None:
            return self.mix(None, batch, "next_state").copy()
        return self.mix(self.target_mixer, batch, "next_state").clip(*self.possible_values())

    def possible_values(self) -> tuple[float, float]:
        """The lowest and the highest value that the rewards seen so far allow: Σ γᵗ of the extreme ones, or 0.

        A mixer with free weights multiplies the errors of its members' values, and the maximum prefers high errors: in
        simple_spread, where every value is negative, QMIX's passed zero and grew without end (Pan et al. 2021).
        """
        longest = np.inf if self.settings.gamma == 1 else 1 / (1 - self.settings.gamma)
        low, high = (float(reward * longest) if reward else 0.0 for reward in self.extremes)
        return low, high

    def mix(self, mixer: Net | None, batch: Batch, state: str) -> Array:
        """One value `[T]` of the members' `batch.values`, in the world's state of that column."""
        if mixer is None:  # the sum (VDN, Sunehag et al. 2017, eq. 3), of one value without a team
            return batch.values[:, 0] if self.members == 1 else batch.values.sum(axis=1)
        known = self.state_normalizer(batch.state(state)[None])[0].astype(np.float32, copy=False)
        rows = np.concatenate([known, batch.values], axis=1)[None]
        return np.ascontiguousarray(mixer.forward(rows, through=self.members)[0, :, 0])

    def unmix(self, by_value: Array) -> Array:
        """The slopes `[T, M]` by members' values, from those by the team's `[T]`; the mixer's gradient is added."""
        if self.mixer is None:
            return by_value[:, None] if self.members == 1 else np.repeat(by_value[:, None], self.members, axis=1)
        found = self.mixer.backward(by_value[None, :, None])
        assert found is not None
        return np.ascontiguousarray(found[0])

    def move_target(self) -> None:
        """Update the target networks, softly or by a copy."""
        target, pairs = self.settings.target, [(self.target, self.net)]
        if self.mixer is not None and self.target_mixer is not None:
            pairs.append((self.target_mixer, self.mixer))
        for behind, ahead in pairs:
            if target.update == "soft":
                behind.move_towards(ahead, target.tau)
            elif due := [i for i, steps in enumerate(ahead.flat.steps.tolist()) if steps % target.interval == 0]:
                behind.copy_from(ahead, np.array(due))

    # State --------------------------------------------------------------------------------------------

    def state(self) -> State:
        found: State = {"target": self.target.weights(), "adam": self.net.flat.state()}
        if self.mixer is not None and self.target_mixer is not None:
            found |= {"mixer": self.mixer.weights(), "target_mixer": self.target_mixer.weights()}
            found |= {"mixer_adam": self.mixer.flat.state()}
        return found | {
            "state_normalizer": self.state_normalizer.state(),
            "replays": [replay.state() for replay in self.replays],
            "pending": [{name: a.copy() for name, a in pending._asdict().items()} for pending in self.pending],
            "due": self.due,
            "extremes": self.extremes.copy(),
            "learned": self.learned.copy(),
            "mixing": self.settings.mixer,
        }

    def load(self, state: State) -> None:
        where = f"group '{self.group_spec.group}'"
        if state["mixing"] != self.settings.mixer:
            raise ValueError(f"{where}: learner.mixer cannot change from {state['mixing']} to {self.settings.mixer}")
        self.target.load_weights(state["target"], f"{where}, target network")
        self.net.flat.load(state["adam"])
        if self.mixer is not None and self.target_mixer is not None:
            self.mixer.load_weights(state["mixer"], f"{where}, mixer")
            self.target_mixer.load_weights(state["target_mixer"], f"{where}, target mixer")
            self.mixer.flat.load(state["mixer_adam"])
        self.state_normalizer.load(state["state_normalizer"])
        for replay, saved in zip(self.replays, state["replays"], strict=True):
            replay.load(saved, where)
        self.pending = [PendingSteps(**{name: a.copy() for name, a in saved.items()}) for saved in state["pending"]]
        for pending in self.pending:
            if (steps := pending.reward.shape[1]) != self.settings.n_steps:
                raise ValueError(f"{where}: learner.n_steps cannot change from {steps} to {self.settings.n_steps}")
        self.due = state["due"]
        self.extremes[:] = state["extremes"]
        self.learned[:] = state["learned"]
