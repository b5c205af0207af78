"""Multi-agent deterministic policy gradients (Lowe et al. 2017), with TD3's improvements as settings.

Read `MADDPG.learn` from top to bottom: experience becomes transitions of the whole table in a replay, then a number
of updates is due, each on a batch drawn from it. An update moves the critics towards what a decision was worth
(`aims`), and every `delay` critic steps the policy towards what the critic likes better (`actor_step`); targets follow
slowly. The critic sees what everybody saw and did, or only what its own agent did (DDPG). Other groups may be anything:
those that show a target policy (`Joint.peers`) are asked what they would do next, all others are read through what they
did. Perceptrons are trained by `maddpg_kernels.py`, everything else by autograd.

The settings of MADDPG (`maddpg.py`).

What MADDPG works on: batches as networks take them, networks with slower copies, and what cannot be judged.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.algorithms.divergence import demand_finite
from coterie.algorithms.maddpg import kernels
from coterie.algorithms.maddpg import kernels as maddpg_kernels
from coterie.algorithms.maddpg.kernels import Draws, Learned
from coterie.algorithms.maddpg.outcomes import Outcomes, lowest, miss, relative, tell, unit, worth
from coterie.algorithms.maddpg.transitions import Held, JointTransitions, Table
from coterie.algorithms.replay import Replay, ReplaySettings
from coterie.core.group import GroupSpec, Preference, Risk, RiskParameters
from coterie.core.search_space import Choice, Real, Space, Whole
from coterie.core.types import Array, CoterieError, Experience, Joint, Metrics, Peer, State
from coterie.core.validation import at_least, positive, within
from coterie.nn import networks
from coterie.nn.normalization import Normalizer
from coterie.nn.packing import layout
from coterie.policies.deterministic import DeterministicPolicy
from coterie.policies.network import check_widths


@dataclass(frozen=True)
class NoiseSettings:
    start: float = 0.2  # deviation at first, as a share of a box's range; choices are drawn by their outputs instead
    end: float = 0.05  # and later
    share: float = 0.5  # of the run after which `end` is reached, in a straight line

    SEARCH: ClassVar[Space] = {  # what `coterie tune` tries
        "start": Real(0.05, 0.5),
        "end": Real(0.01, 0.2, log=True),
    }

    def __post_init__(self) -> None:
        at_least("start", self.start, 0)
        at_least("end", self.end, 0)
        within("share", self.share, 0, 1)

    def at(self, progress: float) -> float:
        """The deviation when this share of the run's steps has been taken."""
        part = min(progress / self.share, 1.0) if self.share > 0 else 1.0
        return self.start + part * (self.end - self.start)


@dataclass(frozen=True)
class CriticSettings:
    sees: Literal["central", "own"] = "central"  # what everybody sees and does, or only its own agent (DDPG)
    hidden: tuple[int, ...] | None = None  # widths of its hidden layers; None: the policy's
    activation: Literal["tanh", "relu"] | None = None  # after each of them; None: the policy's
    learning_rate: float | None = None  # of Adam; None: the policy's
    twin: bool = False  # two critics, of which the one that expects less is believed (Fujimoto et al. 2018)
    quantiles: int | None = None  # of a decision's outcome; 1: its mean alone; None: 1, or 8 under a taste for risk
    bends: float | None = None  # of its first layer; None: the policy's
    hurdle: bool = False  # told first: nothing, or with some chance something, by likelihood; quantiles are of that

    SEARCH: ClassVar[Space] = {  # what `coterie tune` tries
        "sees": Choice(("central", "own")),
        "twin": Choice((False, True)),
    }

    def __post_init__(self) -> None:
        if self.hidden is not None:
            check_widths(self.hidden, ())
        if self.learning_rate is not None:
            positive("learning_rate", self.learning_rate)
        if self.quantiles is not None:
            at_least("quantiles", self.quantiles, 1)
        if self.bends is not None:
            at_least("bends", self.bends, 0)


@dataclass(frozen=True)
class TargetSettings:
    rate: float = 0.01  # share of the way that targets move whenever the policy does
    noise: float = 0.0  # deviation, as a share of a box's range, by which target actions are smoothed; 0: not at all

    SEARCH: ClassVar[Space] = {"rate": Real(0.001, 0.05, log=True)}  # what `coterie tune` tries

    def __post_init__(self) -> None:
        positive("rate", self.rate)
        within("rate", self.rate, 0, 1)
        at_least("noise", self.noise, 0)


@dataclass(frozen=True)
class MemorySettings:
    size: int = 100_000  # ticks kept; older ones are written over
    learning_starts: int = 1_000  # time steps that must be stored before learning starts

    SEARCH: ClassVar[Space] = {"size": Choice((10_000, 100_000, 500_000))}  # what `coterie tune` tries

    def __post_init__(self) -> None:
        self.even()

    def even(self) -> ReplaySettings:
        """A replay in which every row is as likely as any other."""
        return ReplaySettings(self.size, self.learning_starts, priority=0.0)


@dataclass(frozen=True)
class TurnSettings:
    every: int = 1  # iterations from one in which the group learns to the next; in between it only remembers
    offset: int = 0  # the group learns where (iteration − offset) is a multiple of `every`

    def __post_init__(self) -> None:
        at_least("every", self.every, 1)
        at_least("offset", self.offset, 0)


@dataclass(frozen=True)
class MADDPGSettings:
    learning_rate: float = 1e-3  # of the policy's Adam
    learning_rate_schedule: Literal["constant", "linear"] = "constant"  # of both; linear: to 0 at the run's end
    gamma: float = 0.95  # discount per decision
    batch_size: int = 256  # ticks per update
    updates_per_step: float = 0.04  # critic steps per environment step, summed over copies
    delay: int = 1  # critic steps from one step of policy and targets to the next
    relative: bool = False  # decisions pull by their change in deviations of their outcome, so small stakes count
    temperature: float = 1.0  # of the softmax through which gradients reach choices
    max_grad_norm: float = 0.5  # gradients of policy and critics are scaled to at most this norm
    noise: NoiseSettings = field(default_factory=NoiseSettings)  # exploration
    critic: CriticSettings = field(default_factory=CriticSettings)  # what values decisions
    target: TargetSettings = field(default_factory=TargetSettings)  # the slower copies that value what follows
    replay: MemorySettings = field(default_factory=MemorySettings)  # what is remembered
    turns: TurnSettings = field(default_factory=TurnSettings)  # when it learns

    SEARCH: ClassVar[Space] = {  # what `coterie tune` tries
        "learning_rate": Real(1e-4, 1e-2, log=True),
        "gamma": Choice((0.9, 0.95, 0.98, 0.99)),
        "batch_size": Choice((128, 256, 512, 1024)),
        "updates_per_step": Real(0.01, 0.2, log=True),
        "delay": Whole(1, 4),
        "temperature": Real(0.5, 2.0),
    }

    def __post_init__(self) -> None:
        positive("learning_rate", self.learning_rate)
        within("gamma", self.gamma, 0, 1)
        at_least("batch_size", self.batch_size, 1)
        positive("updates_per_step", self.updates_per_step)
        at_least("delay", self.delay, 1)
        positive("temperature", self.temperature)
        positive("max_grad_norm", self.max_grad_norm)


ENOUGH = 64  # decisions that show how often nothing comes of one


class Batch(NamedTuple):
    """Transitions as the networks take them; x are inputs of the policy in the order of its parameters."""

    x: Tensor  # [S, M, …]
    next_x: Tensor  # [S, M, …]
    seen: Tensor  # [B, A, …]: what each agent's critic sees, and who it is
    next_seen: Tensor  # [B, A, …]
    action: Tensor  # [B, U]: everybody's
    legal: Tensor  # [B, A, K]: one's own
    next_legal: Tensor  # [B, A, K]
    going: Tensor  # [B, A]: who does something next
    reward: Tensor  # [B, A]
    discount: Tensor  # [B, A]
    share: Tensor  # [B, A]: weight of each decision in its stack's mean


class Followed:
    """A network and the slower copy that targets are made of."""

    def __init__(self, net: networks.Net, flat: networks.FlatParams, target: networks.Net) -> None:
        self.net, self.flat, self.target, self.target_flat = net, flat, target, networks.FlatParams(target)
        self.target_flat.array[:] = flat.array

    @property
    def steps(self) -> int:
        """Adam steps taken: all stacks learn together."""
        return int(self.flat.steps[0])

    def follow(self, rate: float) -> None:
        self.target_flat.array += np.float32(rate) * (self.flat.array - self.target_flat.array)

    def learned(self) -> Learned:
        """All arrays, for the compiled path."""
        return Learned(self.flat.array, self.flat.mean, self.flat.square, self.target_flat.array)

    def state(self) -> State:
        return {"net": networks.export(self.net), "target": networks.export(self.target), "adam": self.flat.state()}

    def load(self, state: State, what: str) -> None:
        networks.restore(self.net, state["net"], what)
        networks.restore(self.target, state["target"], f"{what}, target")
        self.flat.load(state["adam"])


class Unjudgeable(ValueError, CoterieError):
    """Decisions are not such as could be judged interim."""


def demand_judgeable(group: str, own: Experience, gamma: float, one_amount: bool) -> None:
    """Refuse to judge decisions that follow each other, and various amounts where the critic tells one."""
    paid = own.reward[own.active]
    if one_amount and len(paid) >= ENOUGH and (paid != 0).mean() > 0.9:
        raise Unjudgeable(
            "with critic.hurdle and critic.quantiles=1 a decision brings nothing or one amount; here it hardly ever "
            "brings nothing, and all that may come of it would look like its mean; set "
            f"{group}.learner.critic.hurdle=false {group}.learner.critic.quantiles=8"
        )
    if gamma and (own.active & ~own.terminated).any():  # there is nothing to bootstrap with
        raise Unjudgeable(
            "judged interim, a decision is worth what it brings by itself, but here others follow it; set "
            f"{group}.learner.gamma=0 to judge each by its own reward, or {group}.preference.way=episodic with "
            f"{group}.learner.name=ppo and {group}.policy.name=network"
        )


NAMES = ("critic_loss", "q_mean", "td_error", "actor_q")
HOLD_BACK = 1e-3  # weight of the mean square of choices' outputs, as in the authors' code: lest they stop exploring
TINY = np.float32(1e-30)  # an exponential draw may be 0, whose logarithm is no number
QUANTILES = 8  # of a decision's outcomes, where a group judges them and does not say how many
CLIP = 2.5  # deviations beyond which smoothing noise is cut off, as in Fujimoto et al. 2018 (0.5 for 0.2)


class Rates(NamedTuple):
    """Learning rates of one iteration."""

    actor: float
    critic: float


class MADDPG:
    """Improves a deterministic policy by the gradient of critics that see the whole table."""

    teaches = DeterministicPolicy
    ways = ("step", "interim")

    def __init__(
        self, settings: MADDPGSettings, policy: DeterministicPolicy, group_spec: GroupSpec, preference: Preference
    ) -> None:
        self.settings, self.policy, self.group_spec, self.preference = settings, policy, group_spec, preference
        if not group_spec.simultaneous:
            raise ValueError("learner 'maddpg' needs a world in which everybody acts at once; 'ppo' and 'dqn' do not")
        policy.noise = settings.noise.at(0.0)
        self.central = settings.critic.sees == "central"
        self.judge = self.make_judge()
        self.outputs = self.count_outputs()
        self.over = (
            (0,) if group_spec.parameter_sets > 1 else (0, 1)
        )  # axes of [B, A] that a stack's rows are summed over
        self.table = Table(
            group_spec.table if self.central and group_spec.table else (group_spec.party,), group_spec.group
        )
        slots = np.arange(self.table.seen)
        self.normalizer = Normalizer(slots, len(slots), 1, self.central and policy.normalizer.enabled)
        target = networks.Net(policy.shape, policy.layout, policy.size, 0.01, policy.seeds("target"))
        self.actor = Followed(policy.net, policy.flat, target)
        self.critics = [self.make_critic(name) for name in ("critic", "twin")[: 1 + settings.critic.twin]]
        self.replay = Replay(settings.replay.even(), self.table.no_rows(0))
        self.held: Held | None = None  # how many copies there are is seen with the first experience
        self.due = 0.0  # updates not yet made

    def make_judge(self) -> RiskParameters:
        """How a distribution of outcomes becomes a value: by its mean, or by the group's taste."""
        if not isinstance(self.preference, Risk):
            return RiskParameters()
        if self.central:
            raise ValueError(
                "critic.sees: who sees what everybody does has little risk left to judge; a taste for risk needs 'own'"
            )
        if self.settings.critic.quantiles == 1 and not self.settings.critic.hurdle:
            raise ValueError(f"critic.quantiles: a taste for risk needs several; null is {QUANTILES}")
        return self.preference.judge()

    def count_outputs(self) -> int:
        """How many numbers a critic tells; `outcomes.tell` reads them."""
        s, taste = self.settings.critic, isinstance(self.preference, Risk)
        quantiles = s.quantiles or (QUANTILES if taste else 1)
        outputs = (1 if quantiles == 1 else 2 * quantiles) + s.hurdle
        if self.settings.relative and outputs == 1:
            raise ValueError(
                "relative measures by deviations of outcomes, which a critic of means does not tell; set "
                "critic.hurdle=true or critic.quantiles=8, or relative=false"
            )
        return outputs

    def make_critic(self, name: str) -> Followed:
        """A critic with its first weights; rows are what is seen, who one is, what is done."""
        policy = self.policy
        s = self.settings.critic
        hidden, activation = s.hidden or policy.shape.hidden, s.activation or policy.shape.activation
        bends = policy.shape.bends if s.bends is None else s.bends
        shape = replace(policy.shape, hidden=hidden, activation=activation, bends=bends)
        if self.central:
            lay = layout(self.table.sees())
            shape = replace(shape, encoder="mlp", extra=self.told + self.table.done, scaled=self.normalizer.enabled)
        else:
            lay = policy.layout
            shape = replace(shape, extra=policy.shape.extra + policy.size)
        net, target = (networks.Net(shape, lay, self.outputs, 1.0, policy.seeds(name)) for _ in range(2))
        return Followed(net, networks.FlatParams(net), target)

    @property
    def told(self) -> int:
        """How many numbers tell a central critic whom it values: shared ones are told, individual ones know."""
        agents = len(self.group_spec.agents)
        return agents if self.group_spec.parameter_sets == 1 and agents > 1 else 0

    @property
    def compiled(self) -> bool:
        """Whether the compiled path serves this policy."""
        return self.policy.spec is not None

    def peer(self) -> Peer:
        """The target policy as it is now."""
        return self.policy.peer(self.actor.target)

    def learn(self, own: Experience, joint: Joint, random: np.random.Generator) -> Metrics:
        s = self.settings
        timestep = self.remember(own, joint)
        metrics: Metrics = {"replay": float(self.replay.size)}
        if self.replay.ready and (joint.iteration - s.turns.offset) % s.turns.every == 0:
            self.due += s.updates_per_step * own.active.shape[0] * own.active.shape[1]
            updates, self.due = int(self.due), self.due % 1
            factor = max(1 - joint.progress, 0.0) if s.learning_rate_schedule == "linear" else 1.0
            critic_rate = s.learning_rate if s.critic.learning_rate is None else s.critic.learning_rate
            rates = Rates(s.learning_rate * factor, critic_rate * factor)
            if updates:
                first = self.actor.steps
                run = self.compiled_updates if self.compiled else self.autograd_updates
                sums = run(self.draw(updates, joint, random), rates)
                counts = np.array([updates, updates, updates, max(self.actor.steps - first, 1)])
                metrics |= dict(zip(NAMES, (sums / counts).tolist(), strict=True))
            metrics |= {"updates": float(updates), "learning_rate": rates.actor}
        self.watch(own, timestep)
        learned = [one.flat.array for one in (self.actor, *self.critics)]
        demand_finite(self.group_spec.group, metrics, [self.policy.normalizer.mean, self.normalizer.mean], learned)
        self.policy.noise = s.noise.at(joint.ahead)
        return metrics | {"noise": self.policy.noise}

    def probe(self, own: Experience) -> None:
        """Refuse to judge interim what cannot be."""
        if isinstance(self.preference, Risk):
            one_amount = self.outputs == 2 and self.held is None  # told by a hurdle; the first experience shows
            demand_judgeable(f"groups.{self.group_spec.group}", own, self.settings.gamma, one_amount)

    def remember(self, own: Experience, joint: Joint) -> Held:
        """Move the transitions that this experience completes into the replay; returns all its ticks."""
        self.probe(own)
        if self.held is None:
            self.held = self.table.nobody(own.active.shape[1])
        timestep = self.table.ticks(joint, self.preference.rewards(own))
        rows, self.held = self.table.complete(timestep, self.table.finals(joint), self.held, self.settings.gamma)
        self.replay.add(rows)
        return timestep

    def watch(self, own: Experience, timestep: Held) -> None:
        """Let the running statistics see this experience, once it has been learned from."""
        rows = self.policy.arrange(self.table.own.observations(timestep.observation))
        lanes = self.policy.arrange(own.active[..., None])[..., 0]
        self.policy.normalizer.update([stack[lane] for stack, lane in zip(rows, lanes, strict=True)])
        shown = np.where(timestep.active[..., self.table.who_sees], timestep.observation, 0)
        self.normalizer.update([shown.reshape(-1, self.table.seen)])

    def draw(self, updates: int, joint: Joint, random: np.random.Generator) -> Draws:
        """Choose the rows of all updates, and ask the other groups what they would do next."""
        s, span, rows = self.settings, self.table.own, self.replay.rows
        shape = (updates, s.batch_size)
        chosen = (random.random(shape) * self.replay.size).astype(np.int64)
        ahead = rows.next_action[chosen]
        for group, other in self.table.spans.items():
            if other is not span and group in joint.peers:
                seen = other.observations(rows.following[chosen.ravel()])
                said = joint.peers[group](seen, other.actions(rows.next_legal[chosen.ravel()]))
                going = rows.going[chosen.ravel()][:, other.agents, None]
                ahead[..., other.done] = np.where(going, said, 0).reshape(*shape, -1)
        each = (*shape, len(self.group_spec.agents), span.width)
        smooth = gumbel = np.zeros((updates, 0, 0, 0), np.float32)
        if self.policy.head is not None:
            gumbel = -np.log(np.maximum(random.standard_exponential(each, np.float32), TINY))
        elif s.target.noise:
            noise = np.clip(random.standard_normal(each, np.float32), -CLIP, CLIP)
            smooth = noise * np.float32(2 * s.target.noise)  # [−1, 1] is 2 long
        return Draws(chosen, ahead, smooth, gumbel)

    # Updates ------------------------------------------------------------------------------------------

    def compiled_updates(self, draws: Draws, rates: Rates) -> Array:
        """All updates through `maddpg_kernels.py`; returns sums of (loss, mean value, mean error, policy's value)."""
        s, policy, span = self.settings, self.policy, self.table.own
        assert policy.spec is not None
        normal, table = policy.normalizer, self.normalizer
        actors = kernels.Seats(
            len(self.group_spec.agents),
            span.agents.start,
            span.seen.start,
            span.layout.size,
            span.done.start,
            span.width,
            self.central,
            policy.choices,
            policy.clipped,
        )
        sums: Array = maddpg_kernels.maddpg_updates(
            self.replay.rows,
            draws,
            actors,
            kernels.Normal(
                normal.shift,
                normal.scale,
                normal.limit,
                policy.shape.extra,
                table.shift[0],
                table.scale[0],
                table.limit,
                self.told,
            ),
            (policy.spec, self.critics[0].net.spec()),
            self.actor.learned(),
            tuple(critic.learned() for critic in self.critics),
            self.judge,
            kernels.Hyperparams(
                rates.actor,
                rates.critic,
                s.max_grad_norm,
                s.temperature,
                HOLD_BACK,
                s.target.rate,
                s.delay,
                s.relative,
            ),
            (self.actor.steps, self.critics[0].steps),
        )
        before = self.critics[0].steps
        for critic in self.critics:
            critic.flat.steps += len(draws.chosen)
        self.actor.flat.steps += self.critics[0].steps // s.delay - before // s.delay
        return sums

    def autograd_updates(self, draws: Draws, rates: Rates) -> Array:
        """The same through PyTorch."""
        sums = np.zeros(len(NAMES))
        for k, chosen in enumerate(draws.chosen):
            batch = self.batch(JointTransitions(*(column[chosen] for column in self.replay.rows)))
            ahead, smooth, gumbel = (torch.from_numpy(a[k]) for a in (draws.ahead, draws.smooth, draws.gumbel))
            sums[:3] += self.critic_step(batch, self.aims(batch, ahead, smooth), rates.critic)
            if self.critics[0].steps % self.settings.delay == 0:
                sums[3] += self.actor_step(batch, gumbel, rates.actor)
                for one in (self.actor, *self.critics):
                    one.follow(self.settings.target.rate)
        return sums

    @torch.no_grad()
    def aims(self, batch: Batch, ahead: Tensor, smooth: Tensor) -> Outcomes:
        """What decisions were worth, `[B, A]` (Lowe et al. 2017, eq. 6; twins: Fujimoto et al. 2018, eq. 10)."""
        out = self.by_agent(self.actor.target(batch.next_x)[0])
        following = self.policy.settle(out, batch.next_legal)
        if smooth.numel():
            following = (following + smooth).clamp(-1, 1)
        ahead = ahead.clone()
        ahead[:, self.table.own.done] = (following * batch.going.unsqueeze(-1)).flatten(1)
        done = self.done_by_each(ahead)
        later = lowest([tell(self.told_by(critic.target, batch.next_seen, done)) for critic in self.critics])
        return later.after(batch.reward.unsqueeze(-1), batch.discount.unsqueeze(-1))

    def critic_step(self, batch: Batch, aim: Outcomes, rate: float) -> Array:
        """One step of every critic; returns (loss, mean value, mean error), the latter two of the first."""
        done = self.done_by_each(batch.action)
        told = [self.told_by(critic.net, batch.seen, done) for critic in self.critics]
        amount = unit(aim, batch.share, self.over)
        loss = (batch.share * torch.stack([miss(out, aim, amount) for out in told])).sum()
        networks.adam_step([critic.flat for critic in self.critics], loss, rate, self.settings.max_grad_norm)
        first = tell(told[0].detach()).mean()
        means = (batch.share * torch.stack([first, (first - aim.mean()).abs()])).sum(dim=(1, 2))
        return np.array([loss.item() / len(told), *means.tolist()]) / self.group_spec.parameter_sets

    def actor_step(self, batch: Batch, gumbel: Tensor, rate: float) -> float:
        """One step of the policy up the critic (Lowe et al. 2017, eq. 5): only one's own action is the policy's.

        Returns the critic's mean value of these actions.
        """
        policy = self.policy
        out = self.by_agent(policy.net(batch.x)[0])
        action = policy.relax(out, batch.legal, gumbel, self.settings.temperature)
        told = tell(self.told_by(self.critics[0].net, batch.seen, self.done_by_each(batch.action, action)))
        value = worth(self.judge, told)
        pull = relative(told, batch.share, self.over) if self.settings.relative else 1.0
        loss = -(batch.share * pull * value).sum()
        if policy.head is not None:
            loss = loss + HOLD_BACK * (batch.share * (out**2).mean(dim=-1)).sum()
        networks.adam_step([policy.flat], loss, rate, self.settings.max_grad_norm)
        return float((batch.share * value.detach()).sum()) / self.group_spec.parameter_sets

    # Rows for the stacked networks: [B, A, …] of a batch, [S, M, …] of the parameters ---------------------

    def batch(self, rows: JointTransitions) -> Batch:
        """Transitions as the networks take them."""
        live, span = rows.live, self.table.own
        count = live.sum(axis=0, keepdims=True) if self.group_spec.parameter_sets > 1 else live.sum()
        x, next_x = (self.policy_rows(observation) for observation in (rows.observation, rows.following))
        return Batch(
            x,
            next_x,
            self.seen(rows.observation, x),
            self.seen(rows.following, next_x),
            torch.from_numpy(rows.action),
            torch.from_numpy(span.actions(rows.legal)),
            torch.from_numpy(span.actions(rows.next_legal)),
            torch.from_numpy(rows.going[:, span.agents]),
            torch.from_numpy(rows.reward),
            torch.from_numpy(rows.discount),
            torch.from_numpy((live / np.maximum(count, 1)).astype(np.float32)),
        )

    def by_stack(self, rows: Tensor) -> Tensor:
        """`[B, A, F]` in the order of the parameters, `[S, M, F]`."""
        return rows.transpose(0, 1) if self.group_spec.parameter_sets > 1 else rows.reshape(1, -1, rows.shape[-1])

    def by_agent(self, rows: Tensor) -> Tensor:
        """The inverse: `[S, M, F]` as `[B, A, F]`."""
        return (
            rows.transpose(0, 1)
            if self.group_spec.parameter_sets > 1
            else rows.view(-1, len(self.group_spec.agents), rows.shape[-1])
        )

    def policy_rows(self, observation: Array) -> Tensor:
        """What the policy's network takes, `[S, M, …]`, for everybody's observations `[B, O]`."""
        own = self.table.own.observations(observation)
        return torch.from_numpy(self.policy.prepare(own, np.arange(len(self.group_spec.agents))))

    def seen(self, observation: Array, x: Tensor) -> Tensor:
        """What each agent's critic sees and who it is, `[B, A, …]`, for everybody's observations `[B, O]`."""
        if not self.central:
            return self.by_agent(x)
        agents = len(self.group_spec.agents)
        table = torch.from_numpy(self.normalizer(observation[None])[0].astype(np.float32, copy=False))
        each = table.unsqueeze(1).expand(-1, agents, -1)
        if not self.told:
            return each
        return torch.cat([each, torch.eye(agents).expand(len(each), -1, -1)], dim=-1)

    def done_by_each(self, action: Tensor, own: Tensor | None = None) -> Tensor:
        """The actions `[B, A, …]` that each agent's critic sees, of everybody's `[B, U]`.

        With `own [B, A, K]` each agent's critic sees its agent do that, and all others what they did.
        """
        span, agents = self.table.own, len(self.group_spec.agents)
        if not self.central:
            return action.view(len(action), agents, span.width) if own is None else own
        done = action.unsqueeze(1).expand(-1, agents, -1)
        if own is None:
            return done
        done = done.clone()
        for i in range(agents):
            start = span.done.start + i * span.width
            done[:, i, start : start + span.width] = own[:, i]
        return done

    def told_by(self, net: networks.Net, seen: Tensor, done: Tensor) -> Tensor:
        """What a critic thinks, `[B, A, …]`, for `tell` to read."""
        return self.by_agent(net(self.by_stack(torch.cat([seen, done], dim=-1)))[0])

    # State --------------------------------------------------------------------------------------------

    def metrics(self) -> Metrics:
        return {}  # `learn` returns them

    def state(self) -> State:
        return {
            "actor": {"target": networks.export(self.actor.target), "adam": self.actor.flat.state()},
            "critics": [critic.state() for critic in self.critics],
            "normalizer": self.normalizer.state(),
            "replay": self.replay.state(),
            "held": {} if self.held is None else {name: a.copy() for name, a in self.held._asdict().items()},
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
        self.normalizer.load(state["normalizer"])
        self.replay.load(state["replay"], where)
        self.held = Held(**{name: a.copy() for name, a in state["held"].items()}) if state["held"] else None
        self.due = state["due"]
