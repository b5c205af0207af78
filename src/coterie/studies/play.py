"""A person at the table: the person has one seat, a player has all others.

The policy `person` shows what the seat sees and asks for its actions; here is who sits where, and what an episode ends
with. `coterie match` lets players meet in all seats, this module lets one person play some episodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.config import registry, schema
from coterie.core import lookup
from coterie.core.game import game_of
from coterie.core.group import Actor
from coterie.core.types import CoterieError
from coterie.core.world import HasExpert, Renderable, World
from coterie.nn.threads import fixed_threads
from coterie.studies.match.match import Player, open_players
from coterie.training import build
from coterie.training.runner import Runner
from coterie.training.table import load
from coterie.video.films import scenes


@dataclass(frozen=True)
class Episode:
    """The end of an episode."""

    returns: dict[str, float]  # of every seat
    length: int
    success: bool | None  # None: the world does not know it
    scene: str  # the last one as text; empty where the world draws none


@dataclass(frozen=True)
class Seating:
    """The seats of a table and their policies."""

    world: World
    seat: str  # the person's
    others: str  # the name of the player in all other seats; empty where there are none
    actors: list[Actor]


def open_table(
    name: str, overrides: Sequence[str], against: str | None, checkpoint: str
) -> tuple[schema.Config, Player | None]:
    """The table of a run, an experiment or a world by its name, and who has the other seats; None: not said."""
    if (Path(name) / "config.yaml").is_file():
        table = load(name, checkpoint, list(overrides))
        config, player = table.config, Player(name, table)
    else:
        config, player = schema.load(_world_alone(name) or name, list(overrides)), None
    return config, player if against is None else open_players([against], checkpoint)[0]


def _world_alone(name: str) -> dict[str, Any] | None:
    """The settings of a table at which only its world is known, such as `openspiel/leduc_poker`."""
    known = lookup.family(registry.WORLDS, name)[0] in registry.WORLDS
    return {"world": {"name": name}, "groups": {"players": {"agents": "*", "policy": "random"}}} if known else None


def take_seat(config: schema.Config, player: Player | None, seat: str | None, show: str) -> Seating:
    """Seat a person at `seat` (None: the first one) and `player` elsewhere (None: the expert, else random play)."""
    world = build.build_render_world(config.world)
    seats = [agent for agent_type in world.agent_types.values() for agent in agent_type.agents]
    chosen = seats[0] if seat is None else seat
    if chosen not in seats:
        raise CoterieError(f"--seat: there is no '{chosen}' at this table, only {', '.join(seats)}")
    player = player or Player("expert" if isinstance(world, HasExpert) else "random", None)
    person = Player(f"person:show={show}", None)
    actors = [(person if one == chosen else player).actor(one, world, config.seed) for one in seats]
    return Seating(world, chosen, player.name if len(seats) > 1 else "", actors)


def play(seating: Seating, episodes: int, seed: int, threads: int, greedy: bool = True) -> Iterator[Episode]:
    """Play episodes, yielding the end of each."""
    world = seating.world
    for number in range(episodes):
        with fixed_threads(threads):
            runner = Runner(world, seating.actors, seed + number, greedy=greedy)
            scene = ""
            for final in scenes(runner):
                if final:
                    scene = draw(world)
            ended = runner.tally.drain()
        returns = {
            actor.group_spec.group: float(ended.returns[actor.group_spec.group][0, 0]) for actor in seating.actors
        }
        success = None if ended.success is None else bool(ended.success[0])
        yield Episode(returns, int(ended.length[0]), success, scene)


def draw(world: World) -> str:
    """The last scene of an episode that has ended; empty if this world cannot be drawn."""
    if not isinstance(world, Renderable):
        return ""
    try:
        return world.ansi(0, True)
    except CoterieError:  # drawn only with other settings
        return ""


def describe_seats(seating: Seating) -> str:
    """The seats in words."""
    others = [actor.group_spec.group for actor in seating.actors if actor.group_spec.group != seating.seat]
    if not others:
        return f"you are {seating.seat}"
    return f"you are {seating.seat}; {seating.others} is {', '.join(others)}"


def describe(seating: Seating, ended: Episode) -> str:
    """The end of an episode: its last scene, and `you won after 9 steps: you 1.0, player_1 -1.0`."""
    own = ended.returns[seating.seat]
    if len(seating.actors) == 2 and game_of(seating.world) is not None:
        outcome = "you won after " if own > 0 else "you lost after " if own < 0 else "a draw after "
    else:
        outcome = {None: "", True: "success after ", False: "no success after "}[ended.success]
    words = f"{outcome}{ended.length} step{'' if ended.length == 1 else 's'}: {in_words(seating, ended.returns)}"
    return f"\n{ended.scene}\n\n{words}" if ended.scene else words


def in_words(seating: Seating, returns: Mapping[str, float]) -> str:
    """Returns of all seats, the person's first."""
    rest = [f"{seat} {value:.1f}" for seat, value in returns.items() if seat != seating.seat]
    return ", ".join([f"you {returns[seating.seat]:.1f}", *rest])


def total(seating: Seating, episodes: Sequence[Episode]) -> str:
    """The mean returns of all episodes, in words."""
    means = {seat: sum(one.returns[seat] for one in episodes) / len(episodes) for seat in episodes[0].returns}
    return f"mean of {len(episodes)} episodes: {in_words(seating, means)}"


def to_dict(seating: Seating, episodes: Sequence[Episode]) -> dict[str, Any]:
    """The episodes as JSON."""
    rows = [{"returns": one.returns, "length": one.length, "success": one.success} for one in episodes]
    return {"seat": seating.seat, "others": seating.others or None, "episodes": rows}
