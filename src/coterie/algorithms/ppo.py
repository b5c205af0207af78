"""Proximal policy optimisation (Schulman et al. 2017) for groups of agents.

Read `PPO.learn` from top to bottom: values, advantages, then epochs of minibatches over the decisions
whose outcome is known. Agents share one actor and critic or have one each, stacked and trained as if
alone. The critic sees what its agent sees; central critics are not here yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie import nets
from coterie.checks import at_least, positive, within
from coterie.group import Place, Preference
from coterie.policies.network import NetworkPolicy
from coterie.returns import advantages
from coterie.types import Array, CoterieError, Experience, Joint, Metrics, State

CHUNK = 8192  # rows evaluated at once outside minibatches: enough to be fast, few enough for the cache


@dataclass(frozen=True)
class PPOSettings:
    learning_rate: float = 2.5e-4  # of the actor
    critic_learning_rate: float | None = None  # None: the actor's
    learning_rate_schedule: Literal["constant", "linear"] = "linear"  # linear: to 0 at the run's end
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

    def __post_init__(self) -> None:
        positive("learning_rate", self.learning_rate)
        if self.critic_learning_rate is not None:
            positive("critic_learning_rate", self.critic_learning_rate)
        within("gamma", self.gamma, 0, 1)
        within("gae_lambda", self.gae_lambda, 0, 1)
        within("clip", self.clip, 0.001, 10)
        at_least("epochs", self.epochs, 1)
        at_least("minibatches", self.minibatches, 1)
        at_least("entropy_coefficient", self.entropy_coefficient, 0)
        positive("max_grad_norm", self.max_grad_norm)
        for name in ("value_clip", "target_kl"):
            value: float | None = getattr(self, name)
            if value is not None:
                positive(name, value)


class Diverged(CoterieError):
    """Learning produced NaN or infinity; the last good checkpoint stays as it is."""


class Batch(NamedTuple):
    """Decisions to learn from, `[S, M, …]`; rows of weight 0 are padding."""

    features: Tensor
    agents: Tensor
    action: Tensor
    mask: Tensor | None
    log_prob: Tensor
    advantage: Tensor
    target: Tensor
    value: Tensor
    weight: Tensor


class PPO:
    """Improves a network policy by clipped policy gradients."""

    teaches = NetworkPolicy

    def __init__(self, settings: PPOSettings, policy: NetworkPolicy, place: Place, preference: Preference) -> None:
        self.settings, self.policy, self.place, self.preference = settings, policy, place, preference
        self.critic = policy.build_net("critic", outputs=1, gain=1.0)
        self.actor_flat, self.critic_flat = nets.Flat(policy.net), nets.Flat(self.critic)
        self.actor_adam = torch.optim.Adam([self.actor_flat.value], eps=1e-5, fused=True)
        self.critic_adam = torch.optim.Adam([self.critic_flat.value], eps=1e-5, fused=True)
        self.returns = RunningMoments(place.stacks)

    def learn(self, own: Experience, joint: Joint, random: np.random.Generator) -> Metrics:
        clip = self.set_schedules(joint.progress)
        rows, agents = self.policy.rows(own.observation)
        features = self.policy.normalizer(torch.from_numpy(rows))
        who = torch.from_numpy(agents)
        values = self.to_time(self.evaluate(features, who), own)
        advantage, returns, valid = advantages(
            own,
            self.preference.rewards(own),
            values,
            self.bootstrap(own, values),
            self.settings.gamma,
            self.settings.gae_lambda,
        )
        if not valid.any():
            return {"decisions": 0.0}
        batch = self.gather(own, features, who, advantage, returns, values, valid)
        if self.settings.normalize_returns:
            self.returns.update(batch.target.numpy(), batch.weight.numpy())
        batch = batch._replace(target=(batch.target - self.returns.shift) / self.returns.scale)
        totals = self.improve(batch, clip, random)
        self.policy.normalizer.update([own[lane] for own, lane in zip(rows, self.lanes(valid), strict=True)])
        return totals | {
            "decisions": float(valid.sum()),
            "explained_variance": explained_variance(values[:-1][valid], returns[valid]),
            "learning_rate": float(self.actor_adam.param_groups[0]["lr"]),
        }

    def improve(self, batch: Batch, clip: float, random: np.random.Generator) -> Metrics:
        """Several passes of minibatch gradient steps; returns means over the minibatches taken."""
        taken: list[Metrics] = []
        for _ in range(self.settings.epochs):
            latest = [self.step(part, clip) for part in minibatches(batch, self.settings.minibatches, random)]
            taken += latest
            limit = self.settings.target_kl
            if limit is not None and np.mean([one["kl"] for one in latest]) > limit:
                break
        metrics = {name: float(np.mean([one[name] for one in taken])) for name in taken[0]}
        metrics["minibatches"] = float(len(taken))
        if not all(np.isfinite(v) for v in metrics.values()) or not self.finite():
            shown = ", ".join(f"{name}={value:.3g}" for name, value in metrics.items())
            raise Diverged(
                f"group '{self.place.group}': learning diverged ({shown}); nothing was saved since the last "
                "good checkpoint. Try a smaller learning_rate or max_grad_norm"
            )
        return metrics

    def step(self, part: Batch, clip: float) -> Metrics:
        """One gradient step of actor and critic on a minibatch (Schulman et al. 2017, eq. 7)."""
        weight = part.weight / part.weight.sum(dim=1, keepdim=True).clamp(min=1)  # each stack's own mean
        advantage = part.advantage
        if self.settings.normalize_advantages:
            mean = (weight * advantage).sum(1, keepdim=True)
            variance = (weight * (advantage - mean) ** 2).sum(1, keepdim=True)
            advantage = (advantage - mean) / (variance.sqrt() + 1e-8)
        out = self.policy.net(part.features, part.agents)
        log_prob, entropy = self.policy.head.judge(out, part.action, part.mask)
        log_ratio = torch.where(part.weight > 0, log_prob - part.log_prob, 0)  # padding may hold anything
        ratio = log_ratio.exp()
        gain = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
        policy_loss = -(weight * gain).sum()
        entropy_mean = (weight * entropy).sum()
        self.descend(policy_loss - self.settings.entropy_coefficient * entropy_mean, self.actor_flat, self.actor_adam)

        value = self.critic(part.features, part.agents).squeeze(-1)
        error = (value - part.target) ** 2
        if self.settings.value_clip is not None:
            limit = self.settings.value_clip / self.returns.scale
            near = part.value + (value - part.value).clamp(-limit, limit)
            error = torch.maximum(error, (near - part.target) ** 2)
        value_loss = 0.5 * (weight * error).sum()
        self.descend(value_loss, self.critic_flat, self.critic_adam)

        stacks = len(part.weight)
        with torch.no_grad():
            outside = (weight * ((ratio - 1).abs() > clip)).sum()
            kl = (weight * (ratio - 1 - log_ratio)).sum()  # Schulman's k3 estimator, never negative
        parts = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy_mean}
        parts |= {"kl": kl, "clip_fraction": outside}
        return {name: float(value.detach()) / stacks for name, value in parts.items()}

    def descend(self, loss: Tensor, flat: nets.Flat, adam: torch.optim.Adam) -> None:
        """One Adam step along the clipped gradient."""
        flat.grad.zero_()
        loss.backward()
        flat.clip_gradient(self.settings.max_grad_norm)
        adam.step()

    def set_schedules(self, progress: float) -> float:
        """Set both learning rates for this iteration and return the clip range."""
        s, left = self.settings, max(1.0 - progress, 0.0)
        factor = left if s.learning_rate_schedule == "linear" else 1.0
        self.actor_adam.param_groups[0]["lr"] = s.learning_rate * factor
        self.critic_adam.param_groups[0]["lr"] = (s.critic_learning_rate or s.learning_rate) * factor
        return s.clip * left if s.clip_schedule == "linear" else s.clip

    def evaluate(self, features: Tensor, agents: Tensor) -> Tensor:
        """The critic's values `[S, M]` in the world's rewards."""
        with torch.no_grad():
            parts = [
                self.critic(features[:, i : i + CHUNK], agents[:, i : i + CHUNK])
                for i in range(0, features.shape[1], CHUNK)
            ]
            return torch.cat(parts, dim=1).squeeze(-1) * self.returns.scale + self.returns.shift

    def bootstrap(self, own: Experience, values: Array) -> Array:
        """V of the last observation where an episode was cut short, `[T, N, A]`."""
        result = np.where(own.truncated, values[1:], np.float32(0))
        if len(own.finals.index):  # the copy was reset: row t+1 already shows the next episode
            rows, agents = self.policy.rows(own.finals.observation)
            features = self.policy.normalizer(torch.from_numpy(rows))
            final = self.evaluate(features, torch.from_numpy(agents))
            t, n = own.finals.index.T
            result[t, n] = final.T.numpy() if self.place.stacks > 1 else final.numpy().reshape(len(t), -1)
        return result

    def to_time(self, flat: Tensor, own: Experience) -> Array:
        """Bring `[S, M]` back to `[T+1, N, A]`."""
        rows, copies, agents = own.active.shape
        array = flat.T.numpy() if self.place.stacks > 1 else flat.numpy()
        return np.ascontiguousarray(array).reshape(rows + 1, copies, agents)

    def lanes(self, valid: Array) -> list[Array]:
        """Which of its rows each stack learns from: indices `[M]`, of another length for each."""
        stacks = self.place.stacks
        return [np.flatnonzero(lane) for lane in (valid.reshape(1, -1) if stacks == 1 else valid.reshape(-1, stacks).T)]

    def order(self, valid: Array) -> tuple[Array, Array]:
        """The same as one array `[S, M]`, and weights (0 = padding)."""
        lanes = self.lanes(valid)
        index = np.zeros((len(lanes), max(len(lane) for lane in lanes)), np.int64)
        weight = np.zeros(index.shape, np.float32)
        for i, lane in enumerate(lanes):
            index[i, : len(lane)], weight[i, : len(lane)] = lane, 1
        return index, weight

    def select(self, rows: Array, index: Array) -> Array:
        """Pick rows `[S, M, …]` by index `[S, K]`."""
        if rows.shape[0] == 1:
            return rows[:, index[0]]
        return rows[np.arange(len(index))[:, None], index]

    def gather(
        self,
        own: Experience,
        features: Tensor,
        who: Tensor,
        advantage: Array,
        returns: Array,
        values: Array,
        valid: Array,
    ) -> Batch:
        """Arrange the valid decisions of every stack side by side; targets are still the world's returns."""
        index, weight = self.order(valid)

        def pick(array: Array, trailing: int = 0) -> Tensor:
            packed = array.reshape(*array.shape[:3], -1) if trailing else array[..., None]
            rows = self.policy.arrange(packed, np.arange(packed.shape[2]))[0]
            chosen = self.select(rows, index)
            shape = (*chosen.shape[:2], *array.shape[3:])
            return torch.from_numpy(np.ascontiguousarray(chosen)).reshape(shape)

        return Batch(
            features=torch.from_numpy(self.select(features.numpy(), index)),
            agents=torch.from_numpy(self.select(who.numpy(), index)),
            action=pick(own.action, own.action.ndim - 3),
            mask=None if own.mask is None else pick(own.mask, 1),
            log_prob=pick(own.log_prob),
            advantage=pick(advantage),
            target=pick(returns),
            value=(pick(values[:-1]) - self.returns.shift) / self.returns.scale,  # the critic's own output
            weight=torch.from_numpy(weight),
        )

    def finite(self) -> bool:
        """Whether every parameter is still a number."""
        return bool(torch.isfinite(self.actor_flat.value).all() and torch.isfinite(self.critic_flat.value).all())

    def state(self) -> State:
        return {
            "critic": nets.export(self.critic),
            "actor_adam": _adam_state(self.actor_adam),
            "critic_adam": _adam_state(self.critic_adam),
            "returns": self.returns.state(),
        }

    def load(self, state: State) -> None:
        nets.restore(self.critic, state["critic"], f"group '{self.place.group}', critic")
        _adam_load(self.actor_adam, state["actor_adam"])
        _adam_load(self.critic_adam, state["critic_adam"])
        self.returns.load(state["returns"])


class RunningMoments:
    """Running mean and deviation of each stack's returns, so that the critic predicts numbers near 1."""

    def __init__(self, stacks: int) -> None:
        self.count, self.mean, self.variance = np.zeros((stacks, 1)), np.zeros((stacks, 1)), np.ones((stacks, 1))

    @property
    def shift(self) -> Tensor:
        return torch.from_numpy(self.mean.astype(np.float32))  # [S, 1]

    @property
    def scale(self) -> Tensor:
        scale = np.where(self.count > 0, np.sqrt(self.variance) + 1e-6, 1.0)
        return torch.from_numpy(scale.astype(np.float32))  # [S, 1]

    def update(self, values: Array, weight: Array) -> None:
        """Take in values `[S, M]` where the weight is 1 and not 0."""
        count = weight.sum(axis=1, keepdims=True, dtype=np.float64)
        share = weight / np.maximum(count, 1)
        mean = (values * share).sum(axis=1, keepdims=True)
        variance = ((values - mean) ** 2 * share).sum(axis=1, keepdims=True)
        total, gap = self.count + count, mean - self.mean
        old, new = self.count / np.maximum(total, 1), count / np.maximum(total, 1)
        self.variance = np.where(total > 0, self.variance * old + variance * new + gap**2 * old * new, 1.0)
        self.mean = self.mean + gap * new
        self.count = total

    def state(self) -> State:
        return {"count": self.count, "mean": self.mean, "variance": self.variance}

    def load(self, state: State) -> None:
        self.count, self.mean, self.variance = state["count"], state["mean"], state["variance"]


def minibatches(batch: Batch, parts: int, random: np.random.Generator) -> Iterator[Batch]:
    """Shuffle each stack's rows and cut them into equal parts."""
    stacks, rows = batch.weight.shape
    order = torch.from_numpy(np.stack([random.permutation(rows) for _ in range(stacks)]))
    for chosen in order.tensor_split(min(parts, rows), dim=1):
        yield Batch(*(None if t is None else _take(t, chosen) for t in batch))  # type: ignore[arg-type]  # only mask may be None


def _take(tensor: Tensor, chosen: Tensor) -> Tensor:
    if len(chosen) == 1:
        return tensor[0].index_select(0, chosen[0]).unsqueeze(0)
    return tensor[torch.arange(len(chosen))[:, None], chosen]


def explained_variance(values: Array, returns: Array) -> float:
    """1 when values predict the returns, 0 when a constant would do as well; 0 for constant returns."""
    variance = float(returns.var(dtype=np.float64))
    return 1.0 - float((returns - values).var(dtype=np.float64)) / variance if variance > 0 else 0.0


def _adam_state(adam: torch.optim.Adam) -> State:
    held = adam.state.get(adam.param_groups[0]["params"][0], {})
    return {name: tensor.numpy().copy() for name, tensor in held.items()}


def _adam_load(adam: torch.optim.Adam, state: State) -> None:
    adam.state.clear()  # a state from before the first step is empty
    if state:
        held = {name: torch.from_numpy(np.array(array)) for name, array in state.items()}
        adam.state[adam.param_groups[0]["params"][0]] = held
