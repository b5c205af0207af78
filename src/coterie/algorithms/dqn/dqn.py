"""Deep Q-learning (Mnih et al. 2015) for groups of agents, with its classic improvements, each a setting.

Read `DQN.learn` from top to bottom: experience becomes n-step transitions in a replay buffer (`transitions.py`,
`replay.py`), then a number of gradient steps is due, each on a batch drawn from it. `step` is the algorithm: targets
from a slowly moving target network, and one gradient step towards them (`losses.py`). The agents of a group learn
independently (IQL), sharing one network or with one each; with a mixer they learn one value of the team (VDN, QMIX;
`mixing.py`). Perceptrons without a mixer are trained by `kernels.py`, everything else by autograd.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from coterie.algorithms.divergence import demand_finite
from coterie.algorithms.dqn import kernels, mixing
from coterie.algorithms.dqn.losses import margin_losses, td_losses
from coterie.algorithms.dqn.transitions import (
    PendingSteps,
    Transitions,
    agent_trajectories,
    complete_transitions,
    empty_transitions,
    no_pending,
    team_trajectories,
)
from coterie.algorithms.replay import Drawn, Replay, ReplaySettings
from coterie.core.group import GroupSpec, Panel, Preference, preferred_rewards
from coterie.core.search_space import Choice, Real, Space, Whole
from coterie.core.types import Array, Experience, Joint, Metrics, State, StateRows
from coterie.core.validation import at_least, positive, within
from coterie.nn import networks
from coterie.nn.normalization import Normalizer
from coterie.nn.packing import PixelRows, Rows, map_rows, table_state
from coterie.policies.q_network import QNetworkPolicy

MEASURED = 4096  # states whose values are measured before they are scaled
NAMES = ("loss", "q_mean", "td_error", "margin_loss")


@dataclass(frozen=True)
class EpsilonSettings:
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
class TargetSettings:
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
class DQNSettings:
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


class DQN:
    """Improves a policy of action values by bootstrapping from a replay buffer."""

    teaches = QNetworkPolicy
    scopes = ("step",)
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
        if hand_over is not None and hand_over.warm_up and not policy.first:
            raise ValueError(
                f"hand_over.warm_up={hand_over.warm_up} needs policy.dueling=true: other networks have no value of the "
                "state that could be learned alone"
            )
        self.exploration = settings.epsilon if hand_over is None else hand_over.exploration(settings.epsilon)
        policy.epsilon = self.exploration.at(0.0)
        outputs = policy.first + policy.actions
        self.target = networks.Network(policy.shape, policy.layout, outputs, 0.5, policy.seeds("target")).to(policy.device)
        self.target_flat = networks.FlatParams(self.target)
        self.target_flat.copy_from(policy.flat)
        self.mixer, self.target_mixer = (self.make_mixer() for _ in range(2))
        self.mixer_flat, self.target_mixer_flat = (
            networks.FlatParams(mixer) if settings.mixer == "qmix" else None
            for mixer in (self.mixer, self.target_mixer)
        )
        self.state_size = group_spec.state_size if settings.mixer == "qmix" else 0
        self.state_normalizer = Normalizer(np.arange(self.state_size), self.state_size, 1, True)
        members = len(group_spec.agents) if self.team else 1
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

    def make_mixer(self) -> torch.nn.Module:
        """The mixer with its first weights."""
        s, group_spec = self.settings, self.group_spec
        seed = self.policy.seeds("mixer")[0]
        mixer = mixing.mixer(s.mixer, len(group_spec.agents), group_spec.state_size, s.mixing_width, seed)
        return mixer.to(self.policy.device)

    @property
    def compiled(self) -> bool:
        """Whether the compiled path serves this policy."""
        return self.policy.spec is not None and not self.team

    @property
    def trained(self) -> list[networks.FlatParams]:
        """The parameters that learn: the network's, and the mixer's if it has any."""
        return [self.policy.flat] if self.mixer_flat is None else [self.policy.flat, self.mixer_flat]

    def rates(self, rate: float) -> list[float]:
        """The learning rates of `trained`, where the network's is `rate`: both follow one schedule."""
        s = self.settings
        mixer = rate if s.mixer_learning_rate is None else rate * (s.mixer_learning_rate / s.learning_rate)
        return [rate, mixer][: len(self.trained)]

    def policy_started(self) -> None:
        """Let the target network begin with the weights that the policy has taken over."""
        self.target_flat.copy_from(self.policy.flat)

    def learn(self, own: Experience, joint: Joint, random: np.random.Generator) -> Metrics:
        s, warming = self.settings, self.warming
        self.store(own, joint)
        metrics: Metrics = {"replay": float(sum(replay.size for replay in self.replays))}
        if any(replay.ready for replay in self.replays):
            rows = len(own.active) - (0 if self.group_spec.simultaneous else 1)  # row 0 is a decision left open
            self.due += s.updates_per_step * rows * own.active.shape[1]
            steps, self.due = int(self.due), self.due % 1
            importance = s.replay.importance + (1 - s.replay.importance) * min(joint.progress, 1.0)
            rate = s.learning_rate * (max(1 - joint.progress, 0.0) if s.learning_rate_schedule == "linear" else 1.0)
            if steps:
                uniform = random.random((len(self.replays), steps, s.batch_size))
                run = self.compiled_steps if self.compiled else self.autograd_steps
                self.prepare(joint)
                sums = run(uniform, rate, importance)
                found = dict(zip(NAMES, (sums / steps).tolist(), strict=True))
                metrics |= {name: value for name, value in found.items() if self.advice or name != "margin_loss"}
            metrics |= {"updates": float(steps), "learning_rate": rate}
        self.update_statistics(own, joint, warming)
        means = [self.policy.normalizer.mean, self.state_normalizer.mean]
        demand_finite(self.group_spec.group, metrics, means, [flat.array for flat in self.trained])
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
            replay = self.replays[number]
            rows = Transitions(*(column[: min(replay.size, MEASURED)] for column in replay.rows))
            batch = Transitions(*(np.repeat(column[None], len(self.replays), axis=0) for column in rows))
            follows = batch.next_active & (batch.discount > 0)[..., None]
            with torch.no_grad():
                values = policy.values(policy.net(self.inputs(batch.next_obs, batch.agent))[0])
            best = values.masked_fill(~self.ordered(batch.next_mask), -torch.inf).topk(2, dim=-1).values
            gaps, chosen = best[..., 0] - best[..., 1], self.ordered(follows[..., None])[..., 0]
            for i in range(sets) if self.team or sets == 1 else (number,):
                known = gaps[i][chosen[i] & gaps[i].isfinite()]
                if len(known) and known.quantile(0.5) > 0:
                    factor[i] = gap / known.quantile(0.5)
        with torch.no_grad():
            out = policy.net.out
            out.weight[..., policy.first :] *= factor[:, None, None]
            out.bias[..., policy.first :] *= factor.view(-1, *(1,) * (out.bias.dim() - 1))
        self.target_flat.copy_from(policy.flat, np.repeat(begin, sets // len(begin)))

    # Experience ---------------------------------------------------------------------------------------

    def store(self, own: Experience, joint: Joint) -> None:
        """Add the transitions that this experience completes to the replay buffers."""
        packed, final = self.policy.pack(own.observation), self.policy.pack(own.finals.observation)
        rewards = preferred_rewards(self.preference, own, self.group_spec)
        self.extremes[:] = min(self.extremes[0], rewards.min()), max(self.extremes[1], rewards.max())
        if own.mask is None:
            own = replace(own, mask=np.ones((*own.active.shape, self.policy.actions), bool))
        if self.team:
            trajectories = [team_trajectories(own, packed, final, rewards, self.state_rows(own, joint))]
        else:
            trajectories = agent_trajectories(own, packed, final, rewards, self.group_spec.parameter_sets)
        if not self.pending:
            steps, like = self.settings.n_steps, self.replays[0].rows
            self.pending = [no_pending(mine.active.shape[1], steps, like) for mine in trajectories]
        for mine, pending, replay in zip(trajectories, self.pending, self.replays, strict=True):
            replay.add(complete_transitions(mine, pending, self.settings.gamma))

    def update_statistics(self, own: Experience, joint: Joint, warming: bool) -> None:
        """Update the running statistics of observations, after learning: acting and learning see the same numbers."""
        hand_over = self.settings.hand_over
        keep = hand_over is not None and (warming or hand_over.keep_statistics)
        if self.policy.normalizer.enabled and not keep:
            rows = self.policy.arrange(self.policy.pack(own.observation)[:-1])
            closed = self.policy.arrange(own.closed()[..., None])[..., 0]
            self.policy.normalizer.update([mine[chosen] for mine, chosen in zip(rows, closed, strict=True)])
        if self.state_size:
            self.state_normalizer.update([self.state_rows(own, joint).rows[:-1].reshape(-1, self.state_size)])

    def state_rows(self, own: Experience, joint: Joint) -> StateRows:
        """The world's state for the mixer; rows of length 0 unless the mixer reads it."""
        if self.state_size:
            return table_state(joint)
        rows, num_envs = len(own.active) + 1, own.active.shape[1]
        return StateRows(np.zeros((rows, num_envs, 0), np.float32), np.zeros((len(own.finals.index), 0), np.float32))

    # Gradient steps -----------------------------------------------------------------------------------

    def compiled_steps(self, uniform: Array, rate: float, importance: float) -> Array:
        """All steps by `kernels.py`; returns sums of `NAMES`, averaged over parameter sets."""
        s, policy, flat = self.settings, self.policy, self.policy.flat
        assert policy.spec is not None
        hyperparams = kernels.Hyperparams(
            rate,
            s.max_grad_norm,
            np.inf if s.huber is None else s.huber,
            s.double,
            bool(policy.first),
            s.target.tau if s.target.update == "soft" else 0.0,
            s.target.interval,
            s.replay.priority,
            importance,
            self.margin,
            self.advice,
        )
        sums, normalizer = np.zeros(len(NAMES)), policy.normalizer
        ready = [(i, replay) for i, replay in enumerate(self.replays) if replay.ready]
        for i, replay in ready:
            found, top = kernels.dqn_steps(
                replay.rows,
                replay.nodes,
                replay.size,
                uniform[i],
                kernels.Normalization(normalizer.shift[i], normalizer.scale[i], normalizer.limit, policy.identities),
                policy.spec,
                flat.optimized(i),
                self.target_flat.array[i],
                hyperparams,
                int(flat.steps[i]),
                self.learns[i],
            )
            flat.steps[i] += uniform.shape[1]
            replay.top = max(replay.top, top)
            sums += found
        return sums / len(ready)

    def autograd_steps(self, uniform: Array, rate: float, importance: float) -> Array:
        """The same through PyTorch."""
        sums, nothing = np.zeros(len(NAMES)), Drawn(*(np.zeros(uniform.shape[2], t) for t in (np.int64, np.float32)))
        ready = np.flatnonzero([replay.ready for replay in self.replays])
        for step in range(uniform.shape[1]):
            drawn = [r.sample(u[step], importance) if r.ready else nothing for u, r in zip(uniform, self.replays)]
            rows = [Transitions(*(a[d.rows] for a in r.rows)) for r, d in zip(self.replays, drawn, strict=True)]
            batch = Transitions(*(np.stack(columns) for columns in zip(*rows, strict=True)))
            found, error = self.step(batch, np.stack([d.weight for d in drawn]), rate)
            sums += found[ready].mean(axis=0)
            if not np.isfinite(error[ready]).all():
                break  # `learn` raises `Diverged`; NaN cannot be a priority
            for replay, d, each in zip(self.replays, drawn, error, strict=True):
                if replay.ready:
                    replay.prioritise(d.rows, np.abs(each).astype(np.float64))
            self.move_target()
        return sums

    def step(self, batch: Transitions, weight: Array, rate: float) -> tuple[Array, Array]:
        """One gradient step on rows `[S, B, …]`; returns `NAMES` `[S, 4]` and errors `[S, B]`."""
        s, policy = self.settings, self.policy
        with torch.no_grad():
            target = self.targets(batch).cpu()
        values = policy.values(policy.net(self.inputs(batch.observation, batch.agent))[0])
        chosen = values.gather(-1, self.ordered(batch.action[..., None]))[..., 0]
        value = self.mix(self.mixer, self.by_member(chosen) * self.tensor(batch.active), batch.state)
        detached = value.detach().cpu()
        delta = np.inf if s.huber is None else s.huber
        *found, slope = td_losses(detached.numpy(), target.numpy(), weight, delta)
        error, each = map(torch.from_numpy, found)
        ready = None if self.team else np.flatnonzero([replay.ready for replay in self.replays])
        outputs, slopes, margin = [value], [slope], np.zeros(len(weight))
        if self.advice:
            margin, more = self.margin_slopes(values.detach().cpu().numpy(), batch, weight)
            outputs, slopes = [value, values], [slope, more]
        before = policy.flat.value.clone() if self.learns.shape[1] else None
        networks.clear_gradients(self.trained)
        networks.backward(outputs, slopes)
        for flat, own_rate in zip(self.trained, self.rates(rate), strict=True):
            flat.step(own_rate, s.max_grad_norm, ready)
        if before is not None:
            learns = self.tensor(self.learns)
            policy.flat.value.copy_(torch.where(learns, policy.flat.value, before))
            policy.flat.moments[0].mul_(learns)
        loss = (torch.from_numpy(weight) * each).mean(dim=1)
        numbers = torch.stack([loss, detached.mean(dim=1), error.abs().mean(dim=1)], dim=1)
        return np.column_stack([numbers.numpy().astype(np.float64), margin]), error.numpy()

    def margin_slopes(self, values: Array, batch: Transitions, weight: Array) -> tuple[Array, Array]:
        """The mean margin loss `[S]`, and its slopes for `values` of the network's rows."""
        advised = np.where(batch.active, batch.advised, -1)[..., None]
        share = np.repeat(weight[..., None, None] / np.float32(weight.shape[1]), advised.shape[2], axis=2)
        rows, shares = (self.ordered(part).cpu().numpy().reshape(-1) for part in (advised, share))
        legal = self.ordered(batch.mask).cpu().numpy().reshape(len(rows), -1)
        loss, slope = margin_losses(values.reshape(len(rows), -1), legal, rows, shares, np.float32(self.margin))
        total = (loss * shares).reshape(len(weight), -1).sum(axis=1)
        return total, np.float32(self.advice) * slope.reshape(values.shape)

    def targets(self, batch: Transitions) -> Tensor:
        """Targets of the values `[S, B]` (Mnih et al. 2015, algorithm 1; double: van Hasselt et al. 2016, eq. 4)."""
        policy, x = self.policy, self.inputs(batch.next_obs, batch.agent)
        values = policy.values(self.target(x)[0])
        chooser = policy.values(policy.net(x)[0]) if self.settings.double else values
        best = chooser.masked_fill(~self.ordered(batch.next_mask), -torch.inf).argmax(dim=-1, keepdim=True)
        next_values = self.by_member(values.gather(-1, best)[..., 0]) * self.tensor(batch.next_active)
        total = self.mix(self.target_mixer, next_values, batch.next_state)
        if self.mixer_flat is not None:
            total = total.clamp(*self.possible_values())
        discount = self.tensor(batch.discount)
        return self.tensor(batch.reward) + torch.where(discount > 0, discount * total, 0)

    def possible_values(self) -> tuple[float, float]:
        """The lowest and the highest value that the rewards seen so far allow: Σ γᵗ of the extreme ones, or 0.

        A mixer with free weights multiplies the errors of its members' values, and the maximum prefers high errors: in
        simple_spread, where every value is negative, QMIX's passed zero and grew without end (Pan et al. 2021).
        """
        longest = np.inf if self.settings.gamma == 1 else 1 / (1 - self.settings.gamma)
        low, high = (float(reward * longest) if reward else 0.0 for reward in self.extremes)
        return low, high

    def move_target(self) -> None:
        """Update the target networks, softly or by a copy."""
        target = self.settings.target
        pairs = [(self.target_flat, self.policy.flat)]
        if self.mixer_flat is not None and self.target_mixer_flat is not None:
            pairs.append((self.target_mixer_flat, self.mixer_flat))
        for behind, ahead in pairs:
            if target.update == "soft":
                behind.move_towards(ahead, target.tau)
            else:
                behind.copy_from(ahead, ahead.steps % target.interval == 0)

    # Rows of the replays [S, B, M, …] as rows of the networks [parameter sets, rows, …] -----------------

    def tensor(self, array: Array) -> Tensor:
        """An array as a tensor on the networks' device."""
        return torch.as_tensor(array, device=self.policy.device)

    def inputs(self, observation: Array, agent: Array) -> Rows:
        """Network inputs for observations `[S, B, M, D]`."""
        policy = self.policy
        if self.team:
            return map_rows(self.tensor, policy.prepare(observation[0], np.arange(len(self.group_spec.agents))))
        identity = np.eye(len(self.group_spec.agents), policy.identities, dtype=np.float32)[agent]
        if policy.bytes or policy.numbers:
            return map_rows(self.tensor, PixelRows(observation[:, :, 0], identity))
        x = policy.normalizer(observation[:, :, 0]).astype(np.float32, copy=False)
        return self.tensor(np.concatenate([x, identity], axis=-1) if policy.identities else x)

    def ordered(self, array: Array) -> Tensor:
        """`[S, B, M, …]` in the order of the network's rows."""
        return self.tensor(self.policy.arrange(array[0]) if self.team else array[:, :, 0])

    def by_member(self, values: Tensor) -> Tensor:
        """The inverse: values of the network's rows as `[S, B, M]`."""
        if not self.team:
            return values.unsqueeze(-1)
        members = len(self.group_spec.agents)
        return (values.view(-1, members) if self.group_spec.parameter_sets == 1 else values.T).unsqueeze(0)

    def mix(self, mixer: torch.nn.Module, values: Tensor, state: Array) -> Tensor:
        """One value `[S, B]` of the members' values `[S, B, M]`."""
        if not self.team:
            return values[..., 0]
        known = self.tensor(self.state_normalizer(state).astype(np.float32, copy=False))
        mixed: Tensor = mixer(values[0], known[0])
        return mixed.unsqueeze(0)

    # State --------------------------------------------------------------------------------------------

    def metrics(self) -> Metrics:
        return {}  # `learn` returns them

    def state(self) -> State:
        flats = {"adam": self.policy.flat}
        found: State = {"target": networks.export(self.target)}
        if self.mixer_flat is not None:
            flats["mixer_adam"] = self.mixer_flat
            found |= {"mixer": networks.export(self.mixer), "target_mixer": networks.export(self.target_mixer)}
        return found | {
            **{name: flat.state() for name, flat in flats.items()},
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
        networks.restore(self.target, state["target"], f"{where}, target network")
        self.policy.flat.load(state["adam"])
        if self.mixer_flat is not None:
            networks.restore(self.mixer, state["mixer"], f"{where}, mixer")
            networks.restore(self.target_mixer, state["target_mixer"], f"{where}, target mixer")
            self.mixer_flat.load(state["mixer_adam"])
        self.state_normalizer.load(state["state_normalizer"])
        for replay, saved in zip(self.replays, state["replays"], strict=True):
            rows = saved["rows"]
            replay.load(saved | {"rows": self.newer_columns(rows["active"].shape) | rows}, where)
        self.pending = []
        for saved in state["pending"]:
            columns = self.newer_columns(saved["active"].shape)
            columns["cut"] = np.zeros((len(saved["active"]), saved["active"].shape[2]), bool)
            self.pending.append(PendingSteps(**{name: a.copy() for name, a in (columns | saved).items()}))
        for pending in self.pending:
            if (steps := pending.reward.shape[1]) != self.settings.n_steps:
                raise ValueError(f"{where}: learner.n_steps cannot change from {steps} to {self.settings.n_steps}")
        self.due = state["due"]
        self.extremes[:] = state.get("extremes", 0)  # checkpoints of 0.2 have none
        warm_up = 0 if self.settings.hand_over is None else self.settings.hand_over.warm_up
        self.learned[:] = state.get("learned", max(warm_up, 1))  # likewise: their values are not warmed up or scaled

    def newer_columns(self, shape: tuple[int, ...]) -> dict[str, Array]:
        """Columns of decisions that older checkpoints lack: advised actions, and legal ones since 0.3."""
        return {"advised": np.full(shape, -1), "mask": np.ones((*shape, self.policy.actions), bool)}


def state_stream(net: networks.Network) -> Array:
    """Mask `[P]` of the parameters of a dueling network that affect the state's value alone."""
    parts, last = [], net.body.layers[-1]
    for parameter in net.parameters():
        if parameter.requires_grad:
            part = np.zeros(parameter.shape[1:], bool)
            if parameter is net.out.weight or parameter is net.out.bias:
                part[..., 0] = True
            elif parameter is last.weight or parameter is last.bias:
                part[..., : part.shape[-1] // 2] = True
            parts.append(part.reshape(-1))
    return np.concatenate(parts)
