"""Cross-play: every player with every other, over all seats.

A player is a run, or the name of a policy that needs no training; settings of a policy may follow its name. Two sides
meet: the first group's agents and the others; in a table of one group, the first agent and the others. Where all agents
are of one type the seats are symmetric, and every pairing is played in every rotation. Tables, JSON and heat maps are
in `show.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coterie.config import registry, schema
from coterie.core.group import Actor, Group, GroupSpec
from coterie.core.types import Array, CoterieError
from coterie.core.world import World
from coterie.nn.threads import fixed_threads
from coterie.runs.run import Run
from coterie.training import build
from coterie.training.evaluate import Result, evaluate, interval
from coterie.training.language_models import actors_unanswered, refuse_silent_models
from coterie.training.loop import evaluation_seed
from coterie.training.players import named_policy, named_run, not_a_player
from coterie.training.table import Table, load


@dataclass(frozen=True)
class Player:
    """Can take any agent's seat: a run's groups, or one policy that needs no training."""

    name: str
    table: Table | None  # None: the policy of that name, which may contain settings: `alphabeta:depth=6`

    def actor(self, agent: str, world: World, seed: int) -> Actor:
        """This player in one agent's seat."""
        group_spec = single_agent_spec(agent, world, seed)
        if self.table is None:
            return Actor(group_spec, build.build_policy(named_policy(self.name), group_spec, world))
        group, index = self.group_for(agent, group_spec)
        return Actor(group_spec, group.policy, np.array([index]), group.actor.advisor, group.actor.shield)

    def group_for(self, agent: str, group_spec: GroupSpec) -> tuple[Group, int]:
        """The group that plays an agent, and the agent's index in it.

        A group that learned this seat comes first, then one that learned a seat with the same spaces.
        """
        assert self.table is not None
        learned = [g for g in self.table.groups if self.table.config.groups[g.name].learner is not None]
        own = [g for g in (*learned, *self.table.groups) if agent in g.actor.group_spec.agents]
        fitting = [g for g in learned if _same_spaces(g.actor.group_spec, group_spec)]
        if own and (own[0] in learned or not fitting):
            chosen = own[0]
        elif fitting:
            chosen = fitting[0]
        else:
            raise CoterieError(f"'{self.name}' has no policy for '{agent}': none of its groups learned such a seat")
        if not _same_spaces(chosen.actor.group_spec, group_spec):
            raise CoterieError(
                f"'{self.name}' was trained in another world: its '{agent}' has other observations or actions"
            )
        members = chosen.actor.group_spec.agents
        return chosen, members.index(agent) if agent in members else 0


def _same_spaces(one: GroupSpec, other: GroupSpec) -> bool:
    return one.spaces.observation == other.spaces.observation and one.spaces.action == other.spaces.action


def single_agent_spec(agent: str, world: World, seed: int) -> GroupSpec:
    """The spec of a group of one agent."""
    for agent_type, spaces in world.agent_types.items():
        if agent in spaces.agents:
            return GroupSpec(
                agent, agent_type, spaces, (agent,), np.array([spaces.agents.index(agent)]), seed=seed, world=world
            )
    raise CoterieError(f"the world has no agent '{agent}'")


@dataclass(frozen=True)
class Pairing:
    """Returns of one player on the first side with another on the second."""

    first: Array  # [E] mean return of the first side's agents
    second: Array  # [E]
    length: Array  # [E]
    success: Array | None  # [E]
    start: Array  # [E] int: rotations play the same episodes, which begin alike
    game: Array  # [E] uint64: equal where the same game was played again
    rotation: Array  # [E] int

    @property
    def distinct_games(self) -> int:
        """The number of different games among the episodes: one may be played again and again."""
        return len(np.unique(self.game))

    def interval(self, returns: Array) -> tuple[float, tuple[float, float] | None]:
        """The mean of `first` or `second` and its 95% interval.

        The rotations of one start count as one observation. Without chance in world and players, every rotation
        repeats one game, and there is no interval; nor from a single start.
        """
        mean = float(returns.mean())
        if all(len(np.unique(self.game[self.rotation == r])) == 1 for r in np.unique(self.rotation)):
            return mean, None
        _, cluster = np.unique(self.start, return_inverse=True)
        _, low, high = interval(np.bincount(cluster, returns) / np.bincount(cluster))
        return mean, None if math.isnan(low) else (low, high)


def sides(table: schema.Config, world: World) -> list[tuple[list[str], list[str]]]:
    """All ways to seat two sides: one for fixed seats, every rotation for symmetric ones."""
    group_specs = list(build.build_group_specs(table, world).values())
    agents = [agent for agent_type in world.agent_types.values() for agent in agent_type.agents]
    if len(agents) < 2:
        raise CoterieError(
            f"a match needs at least two agents at the table, and '{table.experiment}' has one; 'coterie eval RUN' "
            "scores a run there, 'coterie compare RUN RUN' several"
        )
    first = list(group_specs[0].agents) if len(group_specs) > 1 else agents[:1]
    rest = [agent for agent in agents if agent not in first]
    if len(world.agent_types) > 1:
        return [(first, rest)]
    order = first + rest
    rotations = [order[i:] + order[:i] for i in range(len(order))]
    return [(seats[: len(first)], seats[len(first) :]) for seats in rotations]


Playing = Callable[[str, str], AbstractContextManager[None]]  # by the names of two players; entered while they play


def cross_play(
    players: Sequence[Player],
    table: schema.Config,
    episodes: int,
    seed: int,
    greedy: bool = True,
    playing: Playing = lambda one, other: nullcontext(),
) -> list[list[Pairing]]:
    """Play every ordered pair of players, `episodes` in each rotation; entry [i][j] has i on the first side."""
    world = build.build_evaluation_world(table.world, episodes)
    seatings = sides(table, world)
    agents = [agent for side in seatings[0] for agent in side]
    # build every player in every seat first, so that one that does not fit is refused before the first game
    seated = [{agent: player.actor(agent, world, table.seed) for agent in agents} for player in players]
    most = build.most_envs([actor for seats in seated for actor in seats.values()], episodes)
    if most < episodes:
        world = build.build_evaluation_world(table.world, most)

    def meet(i: int, j: int) -> Pairing:
        one, other, parts = seated[i], seated[j], []
        with playing(players[i].name, players[j].name):
            for first, second in seatings:
                seats = [one[agent] for agent in first] + [other[agent] for agent in second]
                result = evaluate(world, seats, episodes, evaluation_seed(seed), greedy, fingerprint=True)
                parts.append(pairing(result, first, second))
        return join(parts)

    with fixed_threads(table.train.threads):
        every = range(len(players))
        matrix = [[meet(i, j) for j in every] for i in every]
    for player, mine in zip(players, seated):
        silent = actors_unanswered(list(mine.values()))
        refuse_silent_models({f"{player.name}, {where}": count for where, count in silent.items()})
    return matrix


def pairing(result: Result, first: list[str], second: list[str]) -> Pairing:
    """The returns of one rotation, averaged over each side's agents."""
    returns = [np.mean([result.returns[a][:, 0] for a in side], axis=0) for side in (first, second)]
    assert result.game is not None
    rotation = np.zeros(len(result.length), np.int64)
    return Pairing(returns[0], returns[1], result.length, result.success, result.start, result.game, rotation)


def join(parts: Sequence[Pairing]) -> Pairing:
    """Concatenate the rotations of one pairing."""
    success = [part.success for part in parts if part.success is not None]
    return Pairing(
        np.concatenate([part.first for part in parts]),
        np.concatenate([part.second for part in parts]),
        np.concatenate([part.length for part in parts]),
        np.concatenate(success) if success else None,
        np.concatenate([part.start for part in parts]),
        np.concatenate([part.game for part in parts]),
        np.concatenate([np.full(len(part.length), rotation) for rotation, part in enumerate(parts)]),
    )


def choose_table(players: Sequence[Player], world: str | Path | Mapping[str, Any] | None) -> schema.Config:
    """The table that players meet at: the named experiment's or run's, else that of the first run."""
    if world is not None:
        run = not isinstance(world, Mapping) and (Path(world) / "config.yaml").is_file()
        return Run.open(str(world)).config() if run else schema.load(world)
    table = next((player.table.config for player in players if player.table is not None), None)
    if table is None:
        raise schema.ConfigError("--world: policies without a run need a table; name an experiment")
    return table


def open_players(names: Sequence[str], checkpoint: str) -> list[Player]:
    """Open runs and policies that need no training, by name."""
    players = []
    for name in names:
        if (found := named_run(name)) is not None:
            players.append(Player(name, load(found.path, found.checkpoint or checkpoint, found.overrides)))
        elif name.partition(":")[0] in registry.UNTRAINED:
            named_policy(name)  # a wrong setting is refused before the first game
            players.append(Player(name, None))
        else:
            raise CoterieError(not_a_player(name))
    return players


# Zero-sum games ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tally:
    """Wins, draws and losses of the first side."""

    wins: int
    draws: int
    losses: int

    @property
    def score(self) -> float:
        """Points per game: a win counts 1, a draw ½."""
        return (self.wins + self.draws / 2) / (self.wins + self.draws + self.losses)

    @property
    def elo(self) -> float:
        """The Elo difference 400 · log₁₀(s / (1 − s)) of the score s; a bound where every game was won or lost.

        There, half a game is given to the side that has none.
        """
        least = 0.5 / (self.wins + self.draws + self.losses)
        score = min(max(self.score, least), 1 - least)
        return 400 * math.log10(score / (1 - score))

    def cells(self) -> list[str]:
        """Wins, draws, losses and the Elo difference as words; `>` or `<` marks a bound."""
        bound = ">" if self.score == 1 else "<" if self.score == 0 else ""
        return [str(self.wins), str(self.draws), str(self.losses), f"{bound}{self.elo:+.0f}"]


def tally(entry: Pairing) -> Tally | None:
    """The tally of a pairing; None unless the returns of both sides sum to zero in every episode."""
    if entry.second.size == 0 or not np.allclose(entry.first + entry.second, 0):
        return None
    return Tally(int((entry.first > 0).sum()), int((entry.first == 0).sum()), int((entry.first < 0).sum()))
