"""Evaluation: whole episodes on fixed seeds, greedy by default, in the world's own reward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.core.group import Actor
from coterie.core.types import Array, Counters
from coterie.core.world import Pausable, World
from coterie.training.runner import Runner, play_episodes

COPIES = 256  # environments at most


@dataclass(frozen=True)
class Result:
    """The result of an evaluation."""

    returns: dict[str, Array]  # group -> [E, A]
    length: Array  # [E]
    success: Array | None  # [E]

    def score(self, groups: Sequence[str]) -> float:
        """The mean return of the given groups, which chooses the best checkpoint."""
        return float(np.mean([self.returns[g].mean() for g in groups]))

    def to_dict(self) -> dict[str, Any]:
        """As JSON: mean return with its 95% interval per group, and the success rate."""
        groups = {}
        for name, returns in self.returns.items():
            mean, low, high = interval(returns.mean(axis=1))
            groups[name] = {
                "return_mean": mean,
                "return_ci95": [low, high],
                "length_mean": float(self.length.mean()),
            }
        return {
            "groups": groups,
            "success_rate": None if self.success is None else float(self.success.mean()),
        }


def interval(samples: Array) -> tuple[float, float, float]:
    """Mean and the bounds of its 95% interval, by the normal approximation."""
    mean = float(samples.mean())
    half = 1.96 * float(samples.std(ddof=1)) / math.sqrt(len(samples)) if len(samples) > 1 else 0.0
    return mean, mean - half, mean + half


def evaluation_envs(episodes: int) -> int:
    """The number of environments for a number of episodes."""
    return min(episodes, COPIES)


def evaluate(world: World, actors: Sequence[Actor], episodes: int, seed: int, greedy: bool = True) -> Result:
    """Play a number of episodes, the same number in every environment so that short ones are not favoured."""
    runner = Runner(world, actors, seed, greedy=greedy)
    quota = np.full(world.num_envs, episodes // world.num_envs)
    quota[: episodes % world.num_envs] += 1
    parts, played = [], np.zeros(world.num_envs, np.int64)
    for _ in play_episodes(runner):
        if runner.timestep.ended.any():
            ended = runner.tally.drain()
            take = [i for i, copy in enumerate(ended.copy) if _count(played, quota, copy)]
            parts.append((ended, np.array(take, np.int64)))
            finished = played >= quota
            if finished.all():
                break
            if isinstance(world, Pausable):
                world.pause(finished)
    names = parts[0][0].returns
    success = [e.success[i] for e, i in parts if e.success is not None]
    return Result(
        {name: np.concatenate([e.returns[name][i] for e, i in parts]) for name in names},
        np.concatenate([e.length[i] for e, i in parts]),
        np.concatenate(success) if success else None,
    )


def actor_metrics(actors: Sequence[Actor]) -> dict[str, Counters]:
    """Metrics of policies, advisors and shields since they were built, by group; groups without any are left out."""
    found = {actor.group_spec.group: actor.metrics() for actor in actors}
    return {group: counters for group, counters in found.items() if counters}


def _count(played: Array, quota: Array, copy: int) -> bool:
    played[copy] += 1
    return bool(played[copy] <= quota[copy])
