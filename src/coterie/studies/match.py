"""Cross-play: every player against (or beside) every other, over all seats.

A player is a run, or the name of a policy that needs no training. Two sides meet: the first group's agents
and the others; in a table of one group, the first agent and the others. Where all agents are of one kind
the seats are symmetric, and every pairing is played in every rotation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coterie.config import registry, schema
from coterie.core.group import Actor, Group, GroupSpec
from coterie.core.types import Array, CoterieError
from coterie.core.world import World
from coterie.nn.threads import fixed_threads
from coterie.training import build
from coterie.training.evaluate import Result, evaluate, evaluation_envs, interval
from coterie.training.loop import evaluation_seed
from coterie.training.table import Table, load


@dataclass(frozen=True)
class Player:
    """Someone who can take any agent's seat: a run's groups, or one policy that needs no training."""

    name: str
    table: Table | None  # None: the policy of that name

    def actor(self, agent: str, world: World, seed: int) -> Actor:
        """This player in one agent's seat."""
        group_spec = place_of(agent, world, seed)
        if self.table is None:
            part = schema.part(registry.POLICIES, {"name": self.name}, f"player '{self.name}'")
            return Actor(group_spec, build.build_policy(part, group_spec, world))
        group, index = self.fitting(agent, group_spec)
        return Actor(group_spec, group.policy, np.array([index]), group.actor.advisor, group.actor.shield)

    def fitting(self, agent: str, group_spec: GroupSpec) -> tuple[Group, int]:
        """The group that plays an agent: one that learned this seat, else one that learned such a seat."""
        assert self.table is not None
        learned = [g for g in self.table.groups if self.table.config.groups[g.name].learner is not None]
        own = [g for g in (*learned, *self.table.groups) if agent in g.actor.group_spec.agents]
        like = [g for g in learned if _fits(g.actor.group_spec, group_spec)]
        if own and (own[0] in learned or not like):
            chosen = own[0]
        elif like:
            chosen = like[0]
        else:
            raise CoterieError(f"'{self.name}' has no policy for '{agent}': nobody there learned such a seat")
        if not _fits(chosen.actor.group_spec, group_spec):
            raise CoterieError(f"'{self.name}' was trained in another world: its '{agent}' sees or does other things")
        members = chosen.actor.group_spec.agents
        return chosen, members.index(agent) if agent in members else 0


def _fits(one: GroupSpec, other: GroupSpec) -> bool:
    return one.spaces.observation == other.spaces.observation and one.spaces.action == other.spaces.action


def place_of(agent: str, world: World, seed: int) -> GroupSpec:
    """A place for a single agent."""
    for agent_type, spaces in world.agent_types.items():
        if agent in spaces.agents:
            return GroupSpec(
                agent, agent_type, spaces, (agent,), np.array([spaces.agents.index(agent)]), seed=seed, world=world
            )
    raise CoterieError(f"the world has no agent '{agent}'")


@dataclass(frozen=True)
class Pairing:
    """What one player got on the first side, and the other on the second."""

    first: Array  # [E] mean return of the first side's agents
    second: Array  # [E]
    length: Array  # [E]
    success: Array | None  # [E]

    def plain(self) -> dict[str, Any]:
        mean, low, high = interval(self.first)
        other, other_low, other_high = interval(self.second) if self.second.size else (None, None, None)
        return {
            "return_mean": mean,
            "return_ci95": [low, high],
            "other_return_mean": other,
            "other_return_ci95": [other_low, other_high],
            "length_mean": float(self.length.mean()),
            "success_rate": None if self.success is None else float(self.success.mean()),
        }


def sides(table: schema.Config, world: World) -> list[tuple[list[str], list[str]]]:
    """All ways to seat two sides: one for fixed seats, every rotation for symmetric ones."""
    group_specs = list(build.build_group_specs(table, world).values())
    agents = [agent for agent_type in world.agent_types.values() for agent in agent_type.agents]
    if len(agents) < 2:
        raise CoterieError("a match needs at least two agents at the table")
    first = list(group_specs[0].agents) if len(group_specs) > 1 else agents[:1]
    rest = [agent for agent in agents if agent not in first]
    if len(world.agent_types) > 1:
        return [(first, rest)]
    order = first + rest
    turned = [order[i:] + order[:i] for i in range(len(order))]
    return [(seats[: len(first)], seats[len(first) :]) for seats in turned]


def cross_play(
    players: Sequence[Player], table: schema.Config, episodes: int, seed: int, greedy: bool = True
) -> list[list[Pairing]]:
    """Play every ordered pair of players, `episodes` in each rotation; entry [i][j] has i on the first side."""
    world = build.build_world(table.world, evaluation_envs(episodes))
    seatings = sides(table, world)
    agents = [agent for side in seatings[0] for agent in side]
    # everybody in every seat at once: who does not fit is refused before the first game
    seated = [{agent: player.actor(agent, world, table.seed) for agent in agents} for player in players]

    def meet(one: Mapping[str, Actor], other: Mapping[str, Actor]) -> Pairing:
        parts = []
        for first, second in seatings:
            seats = [one[agent] for agent in first] + [other[agent] for agent in second]
            result = evaluate(world, seats, episodes, evaluation_seed(seed), greedy)
            parts.append(pairing(result, first, second))
        return join(parts)

    with fixed_threads(table.train.threads):
        return [[meet(one, other) for other in seated] for one in seated]


def pairing(result: Result, first: list[str], second: list[str]) -> Pairing:
    """Sum up one rotation by sides."""
    returns = [np.mean([result.returns[a][:, 0] for a in side], axis=0) for side in (first, second)]
    return Pairing(returns[0], returns[1], result.length, result.success)


def join(parts: Sequence[Pairing]) -> Pairing:
    """Rotations of one pairing together."""
    success = [part.success for part in parts if part.success is not None]
    return Pairing(
        np.concatenate([part.first for part in parts]),
        np.concatenate([part.second for part in parts]),
        np.concatenate([part.length for part in parts]),
        np.concatenate(success) if success else None,
    )


def open_players(words: Sequence[str], checkpoint: str) -> list[Player]:
    """Runs and scripted policies by name."""
    players = []
    for word in words:
        if (Path(word) / "config.yaml").is_file():
            players.append(Player(word, load(word, checkpoint)))
        elif word in registry.UNTRAINED:
            players.append(Player(word, None))
        else:
            scripted = ", ".join(registry.UNTRAINED)
            raise CoterieError(f"'{word}' is neither a run nor a scripted player ({scripted})")
    return players


# Showing ----------------------------------------------------------------------------------------------


def short_names(players: Sequence[Player]) -> list[str]:
    """Names that fit a table: the run's last directories as far as they are needed to tell players apart."""
    for depth in range(1, 10):
        shown = ["/".join(Path(p.name).parts[-depth:]) for p in players]
        if len(set(shown)) == len({p.name for p in players}):
            return shown
    return [p.name for p in players]


def as_table(players: Sequence[Player], matrix: list[list[Pairing]]) -> str:
    """The matrix as text: mean return of the row player with its 95% interval."""
    shown = short_names(players)
    lines = ["mean return on the first side against the players below, ± half the 95% interval"]
    for name, row in zip(shown, matrix, strict=True):
        lines.append(name)
        for other, entry in zip(shown, row, strict=True):
            plain = entry.plain()
            half = (plain["return_ci95"][1] - plain["return_ci95"][0]) / 2
            success = "" if plain["success_rate"] is None else f"   success {plain['success_rate']:.0%}"
            lines.append(f"    {other[:40]:40} {plain['return_mean']:9.2f} ± {half:.2f}{success}")
    return "\n".join(lines)


def to_dict(players: Sequence[Player], matrix: list[list[Pairing]], episodes: int, seed: int) -> dict[str, Any]:
    """The matrix as JSON."""
    return {
        "players": [player.name for player in players],
        "episodes": episodes,
        "seed": seed,
        "matrix": [[entry.plain() for entry in row] for row in matrix],
    }


def draw_heatmap(players: Sequence[Player], matrix: list[list[Pairing]], path: Path) -> Path:
    """The matrix as a picture: mean returns of the row player."""
    from matplotlib.figure import Figure

    shown = [name if len(name) <= 24 else f"…{name[-23:]}" for name in short_names(players)]
    means = np.array([[entry.first.mean() for entry in row] for row in matrix])
    size = 2.5 + 0.9 * len(players)
    figure = Figure(figsize=(size + 1.5, size), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(means, cmap="RdYlGn")
    axes.set_xticks(range(len(shown)), shown, rotation=35, ha="right")
    axes.set_yticks(range(len(shown)), shown)
    axes.set(xlabel="second side", ylabel="first side", title="mean return of the first side")
    for i, row in enumerate(matrix):
        for j, entry in enumerate(row):
            plain = entry.plain()
            half = (plain["return_ci95"][1] - plain["return_ci95"][0]) / 2
            group_spec = (means[i, j] - means.min()) / (np.ptp(means) or 1.0)
            colour = "black" if 0.2 < group_spec < 0.8 else "white"
            words = f"{plain['return_mean']:.2f}\n± {half:.2f}"
            axes.text(j, i, words, ha="center", va="center", fontsize=9, color=colour)
    figure.colorbar(image, shrink=0.8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=110)
    return path
