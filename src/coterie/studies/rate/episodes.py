"""Plays the episodes that judges compare: one group's decisions as arrays, as terminal frames and in words.

Episode n starts from the same seed for every run. A group's return is stored apart from what judges see. The file
format of the episodes is in `preferences/ratings.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coterie.config import schema
from coterie.core.group import Actor
from coterie.core.text import ActionWords, TextCodec, find_text_codec
from coterie.core.types import Array, CoterieError, Text, Tree, map_tree
from coterie.core.world import Renderable, Sign
from coterie.nn.packing import encode, layout, pack
from coterie.nn.threads import fixed_threads
from coterie.preferences.ratings import EpisodeLibrary
from coterie.training import build
from coterie.training.loop import evaluation_seed
from coterie.training.runner import Runner, play_episodes
from coterie.training.table import Table
from coterie.video.captions import signs

MAX_STEPS = 100_000  # steps after which an episode counts as endless
WITHOUT_EFFECT = {path.removeprefix("world.") for path in schema.WITHOUT_EFFECT}


@dataclass(frozen=True)
class Episode:
    """One group's decisions in an episode, from beginning to end."""

    observation: Array  # [S, D] float32: packed, one row for every decision of any of the group's agents
    action: Array  # [S, K] float32: encoded
    returns: float  # mean over the group's agents, in the world's own rewards
    description: tuple[str, ...] = ()  # moments in words: the first, some between, the last
    frames: tuple[str, ...] = ()  # every step drawn for a terminal
    legend: tuple[Sign, ...] = ()  # of the frames


@dataclass(frozen=True)
class ViewOptions:
    """Forms of an episode that a judge needs."""

    words: bool = False  # moments described by the world's text codec
    frames: bool = False  # terminal frames, where the world can be rendered
    moments: int = 6  # most moments described per episode


Row = tuple[Tree, Array, Array]  # a step of a group: observation [A, …], action [A, …], acting [A] bool


def rated_group(table: Table, name: str | None) -> str:
    """The group whose behaviour is compared: the named one, else the first that learned."""
    known = [group.name for group in table.groups]
    if name is not None and name not in known:
        raise CoterieError(f"--group: no group '{name}'; there are {', '.join(known)}")
    learned = [n for n in known if table.config.groups[n].learner is not None]
    return name or next(iter(learned), known[0])


def check_same_world(tables: Sequence[Table], names: Sequence[str]) -> None:
    """Refuse runs whose worlds differ: their episodes cannot be compared."""
    worlds = [schema.to_dict(table.config)["world"] for table in tables]
    for world, name in zip(worlds[1:], names[1:], strict=True):
        if world["name"] != worlds[0]["name"]:
            raise CoterieError(
                f"'{names[0]}' plays {worlds[0]['name']} and '{name}' plays {world['name']}; name runs of one world"
            )
        other = [key for key in worlds[0] if world.get(key) != worlds[0][key] and key not in WITHOUT_EFFECT]
        if other:
            key = other[0]
            raise CoterieError(
                f"'{names[0]}' and '{name}' play different worlds: {key} is {worlds[0][key]} and {world.get(key)}"
            )


def play(
    table: Table, group: str, episodes: int, seed: int, view_options: ViewOptions, greedy: bool = True
) -> list[Episode]:
    """Play whole episodes with a run's policies, each from its own seed."""
    settings = table.config.world
    own = next(g.actor.group_spec.spaces for g in table.groups if g.name == group)
    if isinstance(own.observation, Text):
        raise CoterieError(
            f"'{settings.name}' has observations in text; 'coterie rate' keeps episodes in numbers: use eval or match"
        )
    world = build.build_render_world(settings) if view_options.frames else build.build_evaluation_world(settings, 1)
    actors = [g.actor for g in table.groups]
    with fixed_threads(table.config.train.threads):
        return [
            _play_one(world, actors, group, evaluation_seed(seed) + n, view_options, greedy) for n in range(episodes)
        ]


def _play_one(
    world: build.World, actors: Sequence[Actor], group: str, seed: int, view_options: ViewOptions, greedy: bool
) -> Episode:
    own = next(actor for actor in actors if actor.group_spec.group == group)
    runner = Runner(world, actors, seed, greedy=greedy)
    runner.keep_views = True
    drawn = world if view_options.frames and isinstance(world, Renderable) else None
    frames = [] if drawn is None else [drawn.ansi(0)]
    rows: list[Row] = []
    rewarded = []
    for acted in play_episodes(runner, MAX_STEPS):
        view, decision = acted[group]
        seen = map_tree(lambda a: a[0].copy(), view.observation)
        rows.append((seen, decision.action[0].copy(), view.acting[0].copy()))
        agent_step = runner.timestep.agent_types[own.group_spec.agent_type]
        rewarded.append(bool(np.any(agent_step.reward[0, own.group_spec.columns] != 0)))
        ended = bool(runner.timestep.ended[0])
        if drawn is not None:
            frames.append(drawn.ansi(0, final=ended))
        if ended:
            break
    description: tuple[str, ...] = ()
    if view_options.words:
        last = map_tree(lambda a: a[0, own.group_spec.columns].copy(), agent_step.final_observation)
        codec = _codec(own, drawn is not None)
        if codec is not None:
            description = describe(
                codec, own.group_spec.agents, rows, key_moments(rewarded, view_options.moments), last
            )
    spaces = own.group_spec.spaces
    packing = layout(spaces.observation)
    observations = [pack(packing, o)[acting] for o, _, acting in rows]
    actions = [encode(spaces.action, a)[acting] for _, a, acting in rows]
    returns = float(runner.tally.drain().returns[group][0].mean())
    return Episode(
        np.concatenate(observations).astype(np.float32),
        np.concatenate(actions).astype(np.float32),
        returns,
        description,
        tuple(frames),
        () if drawn is None else signs(world),
    )


def _codec(own: Actor, rendered: bool) -> TextCodec | None:
    """The codec that describes the episode; None where frames have to do."""
    try:
        return find_text_codec("auto", own.group_spec)
    except ValueError as error:
        if rendered:
            return None
        raise CoterieError(f"{error}, or compare by --judge return") from None


def describe(
    codec: TextCodec,
    agents: Sequence[str],
    rows: Sequence[Row],
    moments: Sequence[int],
    last: Tree,
) -> tuple[str, ...]:
    """Sentences about the chosen moments and the final observation, without rewards."""
    words, lines = ActionWords(codec), []
    for number in moments:
        observation, action, acting = rows[number]
        described = codec.describe(observation)
        for a in np.flatnonzero(acting).tolist():
            who = f"{agents[a]}: " if len(agents) > 1 else ""
            move = words.of(action[a]) or "something else"
            lines.append(f"Step {number + 1}. {who}{described[a]} Move: {move}.")
    for a, text in enumerate(codec.describe(last)):
        steps = f"{len(rows)} step{'s' if len(rows) != 1 else ''}"
        lines.append(f"After {steps}. {f'{agents[a]}: ' if len(agents) > 1 else ''}{text}")
    return tuple(lines)


def key_moments(rewarded: Sequence[bool], limit: int) -> list[int]:
    """At most `limit` steps in order: the first, those with a reward, then evenly spread ones."""
    even = np.linspace(0, len(rewarded) - 1, min(limit, len(rewarded))).round().astype(int).tolist()
    wanted = [0, *(t for t, nonzero in enumerate(rewarded) if nonzero), *even]
    return sorted(list(dict.fromkeys(wanted))[:limit])


def gather(episodes: Sequence[Sequence[Episode]]) -> EpisodeLibrary:
    """All episodes of all runs as one library, run by run."""
    every = [episode for of_run in episodes for episode in of_run]
    return EpisodeLibrary(
        np.concatenate([e.observation for e in every]),
        np.concatenate([e.action for e in every]),
        np.cumsum([0, *(len(e.observation) for e in every)]),
        np.array([e.returns for e in every]),
    )
