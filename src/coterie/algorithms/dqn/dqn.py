"""Deep Q-learning (Mnih et al. 2015) for groups of agents, with its classic improvements, each a setting.

Read `DQN.learn` from top to bottom: experience becomes transitions of n decisions in a replay, then a number
of gradient steps is due, each on a batch drawn from it. `step` is the algorithm: what a decision was worth
according to a slowly moving target network, and one step towards it. Members of a group learn as if alone
(independent Q-learning), sharing one network or with one each; with a mixer they learn one value of the team
(VDN, QMIX). Perceptrons without a mixer are trained by `dqn_kernels.py`, everything else by autograd.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from coterie.algorithms.divergence import demand_finite
from coterie.algorithms.dqn import kernels, mixing
from coterie.algorithms.dqn.transitions import (
    Queue,
    Trajectories,
    Transitions,
    complete,
    empty_queue,
    lanes_of,
    no_rows,
    team_of,
)
from coterie.algorithms.replay import Drawn, Replay, ReplaySettings
from coterie.core.group import GroupSpec, Panel, Preference
from coterie.core.search_space import Choice, Real, Space, Whole
from coterie.core.types import Array, Experience, Joint, Metrics, State, StateRows
from coterie.core.validation import at_least, positive, within
from coterie.nn import networks
from coterie.nn.normalization import Normalizer
from coterie.nn.packing import table_state
from coterie.policies.q_network import QNetworkPolicy

NAMES = ("loss", "q_mean", "td_error")


@dataclass(frozen=True)
class EpsilonSettings:
    start: float = 1.0  # chance of a random action at first
    end: float = 0.05  # and later
    schedule: Literal["linear", "exponential", "constant"] = "linear"  # from start to end; constant: start throughout
    share: float = 0.1  # of the run after which `end` is reached

    SEARCH: ClassVar[Space] = {  # what `coterie tune` tries
        "end": Real(0.01, 0.2, log=True),
        "share": Real(0.05, 0.5),
    }

    def __post_init__(self) -> None:
        within("start", self.start, 0, 1)
        within("end", self.end, 0, 1)
        within("share", self.share, 0, 1)
        if self.schedule == "exponential" and not (self.start > 0 and self.end > 0):
            raise ValueError("an exponential schedule never reaches 0: start and end must be above 0")

    def at(self, progress: float) -> float:
        """ε when this share of the run's steps has been taken."""
        part = min(progress / self.share, 1.0) if self.share > 0 else 1.0
        if self.schedule == "constant":
            return self.start
        if self.schedule == "linear":
            return self.start + part * (self.end - self.start)
        return float(self.start * (self.end / self.start) ** part)


@dataclass(frozen=True)
class TargetSettings:
    update: Literal["hard", "soft"] = "hard"  # jump to the network now and then, or follow it all the time
    period: int = 100  # gradient steps between jumps
    rate: float = 0.005  # share of the way that a soft target moves at every gradient step

    SEARCH: ClassVar[Space] = {  # what `coterie tune` tries
        "update": Choice(("hard", "soft")),
        "period": Whole(20, 2000, log=True),
        "rate": Real(0.001, 0.05, log=True),
    }

    def __post_init__(self) -> None:
        at_least("period", self.period, 1)
        positive("rate", self.rate)
        within("rate", self.rate, 0, 1)


@dataclass(frozen=True)
class DQNSettings:
    learning_rate: float = 5e-4  # of Adam
    learning_rate_schedule: Literal["constant", "linear"] = "constant"  # linear: to 0 at the run's end
    gamma: float = 0.99  # discount per decision
    batch_size: int = 64  # transitions per gradient step
    updates_per_step: float = 0.25  # gradient steps per environment step, summed over copies
    double: bool = True  # the network chooses the next action, the target only values it
    n_steps: int = 3  # decisions of a transition before its value is estimated
    huber: float | None = 1.0  # errors beyond this count linearly; none: all are squared
    max_grad_norm: float = 10.0  # gradients are scaled to at most this norm
    epsilon: EpsilonSettings = field(default_factory=EpsilonSettings)  # exploration
    target: TargetSettings = field(default_factory=TargetSettings)  # the network that values what follows
    replay: ReplaySettings = field(default_factory=ReplaySettings)  # what is remembered, and how it is drawn
    mixer: mixing.Name = "none"  # vdn, qmix: one value for the team, from its mean reward
    mixing_width: int = 32  # of qmix

    SEARCH: ClassVar[Space] = {  # what `coterie tune` tries
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
        if self.huber is not None:
            positive("huber", self.huber)


class DQN:
    """Improves a policy of action values by bootstrapping from a replay."""

    teaches = QNetworkPolicy
    scopes = ("step",)
    panels = (
        Panel("value loss", "loss", ("loss",)),
        Panel("mean action value", "value", ("q_mean",)),
        Panel("exploration", "share of random actions", ("epsilon",)),
    )

    def __init__(
        self, settings: DQNSettings, policy: QNetworkPolicy, group_spec: GroupSpec, preference: Preference
    ) -> None:
        self.settings, self.policy, self.group_spec, self.preference = settings, policy, group_spec, preference
        self.team = settings.mixer != "none"
        if self.team and not group_spec.simultaneous:
            raise ValueError(f"mixer '{settings.mixer}' needs a world in which everybody acts at once")
        policy.epsilon = settings.epsilon.at(0.0)
        self.target = networks.Net(
            policy.shape, policy.layout, policy.first + policy.actions, 0.5, policy.seeds("target")
        )
        self.target_flat = networks.FlatParams(self.target)
        self.target_flat.array[:] = policy.flat.array
        self.mixer, self.target_mixer = (self.make_mixer() for _ in range(2))
        self.mixer_flat, self.target_mixer_flat = (
            networks.FlatParams(mixer) if settings.mixer == "qmix" else None
            for mixer in (self.mixer, self.target_mixer)
        )
        self.state_size = group_spec.state_size if settings.mixer == "qmix" else 0
        self.state_normalizer = Normalizer(np.arange(self.state_size), self.state_size, 1, True)
        members = len(group_spec.agents) if self.team else 1
        like = no_rows(0, members, policy.layout.size + policy.apart, policy.actions, self.state_size)
        self.replays = [Replay(settings.replay, like) for _ in range(1 if self.team else group_spec.parameter_sets)]
        self.queues: list[Queue] = []  # how many copies there are is seen with the first experience
        self.due = 0.0  # gradient steps not yet taken

    def make_mixer(self) -> torch.nn.Module:
        """The mixer with its first weights."""
        s, group_spec = self.settings, self.group_spec
        seed = self.policy.seeds("mixer")[0]
        return mixing.mixer(s.mixer, len(group_spec.agents), group_spec.state_size, s.mixing_width, seed)

    @property
    def compiled(self) -> bool:
        """Whether the compiled path serves this policy."""
        return self.policy.spec is not None and not self.team

    def learn(self, own: Experience, joint: Joint, random: np.random.Generator) -> Metrics:
        s = self.settings
        self.remember(own, joint)
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
                sums = run(uniform, rate, importance)
                metrics |= dict(zip(NAMES, (sums / steps).tolist(), strict=True))
            metrics |= {"updates": float(steps), "learning_rate": rate}
        self.watch(own, joint)
        seen = [self.policy.normalizer.mean, self.state_normalizer.mean]
        flats = [self.policy.flat] if self.mixer_flat is None else [self.policy.flat, self.mixer_flat]
        demand_finite(self.group_spec.group, metrics, seen, [flat.array for flat in flats])
        self.policy.epsilon = s.epsilon.at(joint.ahead)
        return metrics | {"epsilon": self.policy.epsilon}

    def remember(self, own: Experience, joint: Joint) -> None:
        """Move the transitions that this experience completes into the replays."""
        packed, final = self.policy.pack(own.observation), self.policy.pack(own.finals.observation)
        rewards = self.preference.rewards(own)
        if own.mask is None:
            own = replace(own, mask=np.ones((*own.active.shape, self.policy.actions), bool))
        lived: list[Trajectories]
        if self.team:
            lived = [team_of(own, packed, final, rewards, self.table_state(own, joint))]
        else:
            lived = lanes_of(own, packed, final, rewards, self.group_spec.parameter_sets)
        if not self.queues:
            steps, like = self.settings.n_steps, self.replays[0].rows
            self.queues = [empty_queue(one.active.shape[1], steps, like) for one in lived]
        for one, queue, replay in zip(lived, self.queues, self.replays, strict=True):
            replay.add(complete(one, queue, self.settings.gamma))

    def watch(self, own: Experience, joint: Joint) -> None:
        """Let the running statistics see this experience, once it has been learned from."""
        rows = self.policy.arrange(self.policy.pack(own.observation)[:-1])
        lanes = self.policy.arrange(own.closed()[..., None])[..., 0]
        self.policy.normalizer.update([stack[lane] for stack, lane in zip(rows, lanes, strict=True)])
        if self.state_size:
            self.state_normalizer.update([self.table_state(own, joint).rows[:-1].reshape(-1, self.state_size)])

    def table_state(self, own: Experience, joint: Joint) -> StateRows:
        """What the mixer is told; nothing, unless it reads the state."""
        if self.state_size:
            return table_state(joint)
        rows, num_envs = len(own.active) + 1, own.active.shape[1]
        return StateRows(np.zeros((rows, num_envs, 0), np.float32), np.zeros((len(own.finals.index), 0), np.float32))

    # Gradient steps -----------------------------------------------------------------------------------

    def compiled_steps(self, uniform: Array, rate: float, importance: float) -> Array:
        """All steps through `dqn_kernels.py`; returns sums of (loss, mean value, mean error), averaged over stacks."""
        s, policy, flat = self.settings, self.policy, self.policy.flat
        assert policy.spec is not None
        hyperparams = kernels.Hyperparams(
            rate,
            s.max_grad_norm,
            np.inf if s.huber is None else s.huber,
            s.double,
            bool(policy.first),
            s.target.rate if s.target.update == "soft" else 0.0,
            s.target.period,
            s.replay.priority,
            importance,
        )
        sums = np.zeros(len(NAMES))
        ready = [(i, replay) for i, replay in enumerate(self.replays) if replay.ready]
        for i, replay in ready:
            normal = kernels.Normal(
                policy.normalizer.shift[i], policy.normalizer.scale[i], policy.normalizer.limit, policy.identities
            )
            found, top = kernels.dqn_steps(
                replay.rows,
                replay.nodes,
                replay.size,
                uniform[i],
                normal,
                policy.spec,
                flat.pair(i),
                self.target_flat.array[i],
                hyperparams,
                int(flat.steps[i]),
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
                break  # `learn` says so; what is no number cannot be a priority
            for replay, d, each in zip(self.replays, drawn, error, strict=True):
                if replay.ready:
                    replay.prioritise(d.rows, np.abs(each).astype(np.float64))
            self.move_target()
        return sums

    def step(self, batch: Transitions, weight: Array, rate: float) -> tuple[Array, Array]:
        """One gradient step on rows `[S, B, …]`; returns (loss, value, size of errors) `[S, 3]` and errors `[S, B]`."""
        s, policy = self.settings, self.policy
        now, following = self.inputs(batch.observation, batch.agent), self.inputs(batch.following, batch.agent)
        with torch.no_grad():
            later = policy.values(self.target(following)[0])
            chooser = policy.values(policy.net(following)[0]) if s.double else later
            best = chooser.masked_fill(~self.ordered(batch.mask), -torch.inf).argmax(dim=-1, keepdim=True)
            follows = self.by_member(later.gather(-1, best)[..., 0]) * torch.from_numpy(batch.next_active)
            total = self.mix(self.target_mixer, follows, batch.next_state)
            discount = torch.from_numpy(batch.discount)
            aim = torch.from_numpy(batch.reward) + torch.where(discount > 0, discount * total, 0)
        chosen = policy.values(policy.net(now)[0]).gather(-1, self.ordered(batch.action[..., None]))[..., 0]
        value = self.mix(self.mixer, self.by_member(chosen) * torch.from_numpy(batch.active), batch.state)
        delta = np.inf if s.huber is None else s.huber
        each = torch.nn.functional.huber_loss(value, aim, reduction="none", delta=delta)
        loss = (torch.from_numpy(weight) * each).mean(dim=1)
        flats = [policy.flat] if self.mixer_flat is None else [policy.flat, self.mixer_flat]
        ready = None if self.team else np.flatnonzero([replay.ready for replay in self.replays])
        networks.adam_step(flats, loss.sum(), rate, s.max_grad_norm, ready)
        error = (value - aim).detach()
        numbers = torch.stack([loss.detach(), value.detach().mean(dim=1), error.abs().mean(dim=1)], dim=1)
        return numbers.numpy().astype(np.float64), error.numpy()

    def move_target(self) -> None:
        """Let the target network follow, softly or by a jump."""
        target = self.settings.target
        pairs = [(self.target_flat, self.policy.flat)]
        if self.mixer_flat is not None and self.target_mixer_flat is not None:
            pairs.append((self.target_mixer_flat, self.mixer_flat))
        for behind, ahead in pairs:
            if target.update == "soft":
                behind.array += np.float32(target.rate) * (ahead.array - behind.array)
            else:
                due = ahead.steps % target.period == 0
                behind.array[due] = ahead.array[due]

    # Rows for the stacked networks: [S, B, M, …] of the replays, [stacks, rows, …] of the parameters -----

    def inputs(self, observation: Array, agent: Array) -> Tensor:
        """What the network takes for observations `[S, B, M, D]`."""
        policy = self.policy
        if self.team:
            return torch.from_numpy(policy.prepare(observation[0], np.arange(len(self.group_spec.agents))))
        x = policy.normalizer(observation[:, :, 0])
        if policy.identities:
            x = np.concatenate([x, np.eye(policy.identities, dtype=np.float32)[agent]], axis=-1)
        return torch.from_numpy(x.astype(np.float32, copy=False))

    def ordered(self, array: Array) -> Tensor:
        """`[S, B, M, …]` in the order of the network's rows."""
        return torch.from_numpy(self.policy.arrange(array[0]) if self.team else array[:, :, 0])

    def by_member(self, values: Tensor) -> Tensor:
        """The inverse: values of the network's rows as `[S, B, M]`."""
        if not self.team:
            return values.unsqueeze(-1)
        members = len(self.group_spec.agents)
        return (values.view(-1, members) if self.group_spec.parameter_sets == 1 else values.T).unsqueeze(0)

    def mix(self, mixer: torch.nn.Module, values: Tensor, state: Array) -> Tensor:
        """One value `[S, B]` for the members' `[S, B, M]`."""
        if not self.team:
            return values[..., 0]
        known = torch.from_numpy(self.state_normalizer(state).astype(np.float32, copy=False))
        mixed: Tensor = mixer(values[0], known[0])
        return mixed.unsqueeze(0)

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
            "queues": [{name: a.copy() for name, a in queue._asdict().items()} for queue in self.queues],
            "due": self.due,
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
            replay.load(saved, where)
        self.queues = [Queue(**{name: a.copy() for name, a in saved.items()}) for saved in state["queues"]]
        if any(queue.reward.shape[1] != self.settings.n_steps for queue in self.queues):
            raise ValueError(f"{where}: decisions wait for others in the saved queues; n_steps cannot change")
        self.due = state["due"]
