"""Evaluation: whole episodes on fixed seeds, greedy by default, in the world's own reward."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.core.group import Actor
from coterie.core.settings import Settings
from coterie.core.splitmix import GOLDEN, scramble_each
from coterie.core.trees import arrays_of
from coterie.core.types import Array, Counters, Decision, View, as_metrics
from coterie.core.world import CostlySteps, World
from coterie.training.runner import Runner, play_episodes

if TYPE_CHECKING:
    from coterie.config.schema import Part

Report = Callable[[int, int], None]  # episodes that have ended, steps of every environment so far


@dataclass(frozen=True)
class Result:
    """The result of an evaluation."""

    returns: dict[str, Array]  # group -> [E, A]
    length: Array  # [E]
    success: Array | None  # [E]
    start: Array  # [E] int: which episode it is; those of two evaluations with one seed begin alike
    game: Array | None = None  # [E] uint64: equal in episodes in which everything was seen and done alike
    counters: Counters = field(default_factory=dict)  # what the world counted
    instance: Array | None = None  # [E] int: equal in episodes of one instance, where the world tells them apart

    def score(self, groups: Sequence[str]) -> float:
        """The mean return of the given groups, which chooses the best checkpoint."""
        return float(np.mean([self.returns[g].mean() for g in groups]))

    def __str__(self) -> str:
        """Episodes, mean length and success rate, then each group's mean return with its 95% interval."""
        found = self.to_dict()
        success = "" if self.success is None else f", success {found['success_rate']:.0%}"
        lines = [f"{len(self.length)} episodes, mean length {self.length.mean():.1f}{success}"]
        for name, score in found["groups"].items():
            bounds = "" if score["return_ci95"] is None else " [{:.2f}, {:.2f}]".format(*score["return_ci95"])
            lines.append(f"{name}: return {score['return_mean']:.2f}{bounds}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """As JSON: mean return per group and success rate with their 95% intervals, and what the world counted.

        One episode has no interval of its return (null). Episodes of one instance say little more than one of them
        does: intervals count instances, not episodes.
        """
        groups, episodes = {}, len(self.length)
        independent = episodes if self.instance is None else effective_size(self.instance)
        for name, returns in self.returns.items():
            mean, low, high = interval(returns.mean(axis=1), independent)
            groups[name] = {
                "return_mean": mean,
                "return_ci95": None if math.isnan(low) else [low, high],
                "length_mean": float(self.length.mean()),
            }
        plain: dict[str, Any] = {"groups": groups, "success_rate": None}
        if self.success is not None:
            weight = independent / episodes
            bounds = wilson(int(self.success.sum()) * weight, episodes * weight)
            plain |= {"success_rate": float(self.success.mean()), "success_ci95": list(bounds)}
        if self.instance is not None:
            plain["instances"] = len(np.unique(self.instance))
        return plain | ({"counters": as_metrics(self.counters)} if self.counters else {})


def effective_size(cluster: Array) -> float:
    """The number of equally large clusters that a mean over these samples is worth (Kish 1965): (Σ n)² / Σ n²."""
    sizes = np.unique(cluster, return_counts=True)[1].astype(float)
    return float(sizes.sum() ** 2 / (sizes**2).sum())


def interval(samples: Array, independent: float | None = None) -> tuple[float, float, float]:
    """Mean and the bounds of its 95% interval by Student's t, which holds the mean of a few normal samples as well.

    `independent` is the number of samples that count: those of one cluster are taken to be equal, so that they
    deviate from the mean of all as few samples do. With fewer than two, nothing says how far the mean may be off, and
    the bounds are NaN.
    """
    mean, count = float(samples.mean()), independent or len(samples)
    if count < 2:
        return mean, math.nan, math.nan
    half = student_t(0.975, count - 1) * float(samples.std()) / math.sqrt(count - 1)
    return mean, mean - half, mean + half


def student_t(level: float, freedom: float) -> float:
    """The quantile of Student's t distribution."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, level))


def wilson(successes: float, episodes: float) -> tuple[float, float]:
    """The 95% interval of a success rate (Wilson 1927), which is sound near 0 and 1 too."""
    z, rate = 1.96, successes / episodes
    scale = 1 + z * z / episodes
    centre = (rate + z * z / (2 * episodes)) / scale
    half = z * math.sqrt(rate * (1 - rate) / episodes + z * z / (4 * episodes * episodes)) / scale
    return centre - half if successes else 0.0, centre + half if successes < episodes else 1.0


def evaluation_envs(world: Part, episodes: int) -> int:
    """The number of environments for a number of episodes."""
    settings: Settings = world.settings
    return min(episodes, settings.evaluation_copies)


def evaluate(
    world: World,
    actors: Sequence[Actor],
    episodes: int,
    seed: int,
    greedy: bool = True,
    fingerprint: bool = False,
    report: Report = lambda ended, steps: None,
) -> Result:
    """Play a number of episodes, the same number in every environment so that short ones are not favoured.

    With `fingerprint`, the result tells equal games apart from games with equal returns. `report` is called after
    every step.
    """
    if isinstance(world, CostlySteps):
        world.number_episodes()
    runner = Runner(world, actors, seed, greedy=greedy)
    quota = np.full(world.num_envs, episodes // world.num_envs)
    quota[: episodes % world.num_envs] += 1
    parts, played, counted = [], np.zeros(world.num_envs, np.int64), 0
    starts, games, prints = [], [], np.zeros(world.num_envs, np.uint64)
    instances, known = [], dict[str, int]()
    for acted in play_episodes(runner):
        report(counted, runner.step_count)
        if fingerprint:
            _fingerprint(prints, acted)
        if runner.timestep.ended.any():
            ended = runner.tally.drain()
            starts.append(ended.copy + world.num_envs * played[ended.copy])
            games.append(prints[ended.copy])
            begun = [text for copy in ended.copy if (text := world.last_instance(int(copy))) is not None]
            if begun:
                instances.append(np.array([known.setdefault(text, len(known)) for text in begun], np.int64))
            prints[ended.copy] = 0
            take = [i for i, copy in enumerate(ended.copy) if _count(played, quota, copy)]
            parts.append((ended, np.array(take, np.int64)))
            counted += len(take)
            finished = played >= quota
            if finished.all():
                break
            if isinstance(world, CostlySteps):
                world.pause(finished)
    names = parts[0][0].returns
    success = [e.success[i] for e, i in parts if e.success is not None]
    return Result(
        {name: np.concatenate([e.returns[name][i] for e, i in parts]) for name in names},
        np.concatenate([e.length[i] for e, i in parts]),
        np.concatenate(success) if success else None,
        np.concatenate([start[i] for start, (_, i) in zip(starts, parts, strict=True)]),
        np.concatenate([game[i] for game, (_, i) in zip(games, parts, strict=True)]) if fingerprint else None,
        runner.counters(),
        np.concatenate([own[i] for own, (_, i) in zip(instances, parts, strict=True)]) if instances else None,
    )


def _fingerprint(prints: Array, acted: Mapping[str, tuple[View, Decision]]) -> None:
    """Add what each environment's groups saw and did in one step to its running hash, `[N]`, in whatever order."""
    for _, (view, decision) in sorted(acted.items()):
        seen = arrays_of(view.observation).values()
        shape = view.acting.shape + (1,) * (decision.action.ndim - 2)
        nothing = "" if decision.action.dtype == object else 0
        for array in (*seen, np.where(view.acting.reshape(shape), decision.action, nothing)):
            rows = _words(array.reshape(len(prints), -1))
            prints *= GOLDEN
            counted = rows + np.arange(1, rows.shape[1] + 1, dtype=np.uint64) * GOLDEN
            prints += scramble_each(counted).sum(axis=1)


def _words(rows: Array) -> Array:
    """Rows of numbers or texts `[N, K]` as rows of 64-bit words; a text becomes a hash."""
    if rows.dtype == object:
        digests = [hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in rows.flat]
        return np.frombuffer(b"".join(digests), np.uint64).reshape(rows.shape)
    raw = np.ascontiguousarray(rows).view(np.uint8)
    return np.pad(raw, ((0, 0), (0, -raw.shape[1] % 8))).view(np.uint64)


def actor_metrics(actors: Sequence[Actor]) -> dict[str, Counters]:
    """Metrics of policies, advisors and shields since they were built, by group; groups without any are left out."""
    found = {actor.group_spec.group: actor.metrics() for actor in actors}
    return {group: counters for group, counters in found.items() if counters}


def _count(played: Array, quota: Array, copy: int) -> bool:
    played[copy] += 1
    return bool(played[copy] <= quota[copy])


def answer_tokens(actors: Sequence[Actor], found: Mapping[str, Counters]) -> dict[str, float]:
    """Tokens of a mean answer by agent, for actors that write; `found` are their metrics, by group.

    A policy that counts by agent says so itself; of others it is the mean of the group's calls of its language model.
    """
    tokens: dict[str, float] = {}
    for actor in actors:
        plain = as_metrics(found.get(actor.group_spec.group, {}))
        for agent in actor.group_spec.agents:
            if (own := plain.get(f"eval/{agent}/answer_tokens")) is not None:
                tokens[agent] = own
            elif plain.get("lm/calls") and "lm/completion_tokens" in plain:
                tokens[agent] = plain["lm/completion_tokens"] / plain["lm/calls"]
    return tokens
