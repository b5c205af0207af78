"""Episodes to be compared: what one group of a run saw and did, in numbers, in pictures and in words.

Episode n begins alike for every run. What a group was paid is kept apart from what judges are shown. Who compares
episodes, and what follows, is in `rating.py`.
"""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie.config import schema
from coterie.core.group import Actor, Policy
from coterie.core.text import TextCodec, find_text_codec
from coterie.core.types import Array, CoterieError, Decision, State, Tree, View, map_tree
from coterie.core.world import Renderable
from coterie.nn.packing import encode, layout, pack
from coterie.nn.threads import fixed_threads
from coterie.training import build
from coterie.training.loop import evaluation_seed
from coterie.training.runner import Runner
from coterie.training.table import Table

PATIENCE = 100_000  # ticks after which an episode counts as endless
UNIMPORTANT = {path.removeprefix("world.") for path in schema.WITHOUT_EFFECT}


@dataclass(frozen=True)
class Episode:
    """What one group lived through from beginning to end."""

    observation: Array  # [S, D] float32: packed, one row for every decision of any of the group's agents
    action: Array  # [S, K] float32: encoded
    returns: float  # mean of the group's agents, in the world's own rewards
    told: tuple[str, ...] = ()  # moments in words: the first, some between, the last
    frames: tuple[str, ...] = ()  # the same for a terminal, all of them


class Watched:
    """A policy whose decisions are written down."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.memory_size = policy, policy.memory_size
        self.rows: list[tuple[Tree, Array, Array]] = []  # observation [A, …], action [A, …], acting [A]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)  # advisors ask policies of their kind for more than their actions

    def act(self, view: View) -> Decision:
        decision = self.policy.act(view)
        seen = map_tree(lambda a: a[0].copy(), view.observation)
        self.rows.append((seen, decision.action[0].copy(), view.acting[0].copy()))
        return decision

    def state(self) -> State:
        return self.policy.state()

    def load(self, state: State) -> None:
        self.policy.load(state)


@dataclass(frozen=True)
class ViewOptions:
    """What judges want to see."""

    words: bool = False  # moments told by the world's codec
    frames: bool = False  # the terminal's pictures, where the world can be drawn
    moments: int = 6  # told of an episode at most


def judged_group(table: Table, name: str | None) -> str:
    """Whose behaviour is compared: the group that is named, else the first that learned."""
    known = [group.name for group in table.groups]
    if name is not None and name not in known:
        raise CoterieError(f"no group '{name}' here; there are {', '.join(known)}")
    learned = [n for n in known if table.config.groups[n].learner is not None]
    return name or next(iter(learned), known[0])


def same_world(tables: Sequence[Table], names: Sequence[str]) -> None:
    """Refuse runs whose episodes cannot be held against each other."""
    worlds = [schema.to_dict(table.config)["world"] for table in tables]
    for world, name in zip(worlds[1:], names[1:], strict=True):
        if world["name"] != worlds[0]["name"]:
            raise CoterieError(
                f"'{names[0]}' plays {worlds[0]['name']} and '{name}' {world['name']}: nothing to compare"
            )
        other = [key for key in worlds[0] if world.get(key) != worlds[0][key] and key not in UNIMPORTANT]
        if other:
            key = other[0]
            raise CoterieError(
                f"'{names[0]}' and '{name}' play different worlds: {key} is {worlds[0][key]} and {world.get(key)}"
            )


def play(table: Table, group: str, episodes: int, seed: int, looks: ViewOptions, greedy: bool = True) -> list[Episode]:
    """Whole episodes of a run's policies, each on a seed of its own."""
    stage = build.build_stage(table.config.world) if looks.frames else build.build_world(table.config.world, 1)
    actors = [g.actor for g in table.groups]
    with fixed_threads(table.config.train.threads):
        return [_one(stage, actors, group, evaluation_seed(seed) + n, looks, greedy) for n in range(episodes)]


def _one(
    world: build.World, actors: Sequence[Actor], group: str, seed: int, looks: ViewOptions, greedy: bool
) -> Episode:
    own = next(actor for actor in actors if actor.group_spec.group == group)
    watched = Watched(own.policy)
    runner = Runner(world, [replace(s, policy=watched) if s is own else s for s in actors], seed, greedy=greedy)
    runner.begin(0)
    drawn = world if looks.frames and isinstance(world, Renderable) else None
    frames, paid = [], []
    for _ in range(PATIENCE):
        if drawn is not None:
            frames.append(drawn.ansi(0))
        runner.step()
        agent_step = runner.timestep.agent_types[own.group_spec.agent_type]
        paid.append(bool(np.any(agent_step.reward[0, own.group_spec.columns] != 0)))
        if runner.timestep.ended[0]:
            break
    else:
        raise CoterieError(f"no episode ended within {PATIENCE:,} ticks; give the world a time limit")
    if drawn is not None:
        frames.append(drawn.ansi(0, final=True))
    told: tuple[str, ...] = ()
    if looks.words:
        last = map_tree(lambda a: a[0, own.group_spec.columns].copy(), agent_step.final_observation)
        codec = _codec(own, drawn is not None)
        told = () if codec is None else tell(codec, own.group_spec.agents, watched.rows, paid, looks.moments, last)
    spaces = own.group_spec.spaces
    lay = layout(spaces.observation)
    acting = [rows for _, _, rows in watched.rows]
    seen = [pack(lay, o)[a] for (o, _, _), a in zip(watched.rows, acting, strict=True)]
    done = [encode(spaces.action, b)[a] for (_, b, _), a in zip(watched.rows, acting, strict=True)]
    returns = float(runner.tally.drain().returns[group][0].mean())
    return Episode(
        np.concatenate(seen).astype(np.float32), np.concatenate(done).astype(np.float32), returns, told, tuple(frames)
    )


def _codec(own: Actor, drawn: bool) -> TextCodec | None:
    """What tells the episode in words; None where pictures must do."""
    try:
        return find_text_codec("auto", own.group_spec)
    except ValueError as error:
        if drawn:
            return None
        raise CoterieError(f"{error}, or compare by --judge return") from None


def tell(
    codec: TextCodec,
    agents: Sequence[str],
    rows: Sequence[tuple[Tree, Array, Array]],
    paid: Sequence[bool],
    limit: int,
    last: Tree,
) -> tuple[str, ...]:
    """The first moment, those at which something was received, some between, and how it ended; never what was paid."""
    chosen = key_moments(paid, limit)
    words = {} if codec.idle is None else {_key(np.asarray(codec.idle)): "none"}
    words |= dict(zip(map(_key, codec.actions(np.arange(len(codec.choices)))), codec.choices, strict=True))
    lines = []
    for number in chosen:
        observation, action, acting = rows[number]
        described = codec.describe(observation)
        for a in np.flatnonzero(acting).tolist():
            who = f"{agents[a]}: " if len(agents) > 1 else ""
            move = words.get(_key(action[a]), "something else")
            lines.append(f"Step {number + 1}. {who}{described[a]} Move: {move}.")
    ends = codec.describe(last)
    for a, text in enumerate(ends):
        lines.append(f"After {len(rows)} steps. {f'{agents[a]}: ' if len(agents) > 1 else ''}{text}")
    return tuple(lines)


def key_moments(paid: Sequence[bool], limit: int) -> list[int]:
    """The first moment, then those that brought something, then evenly spread ones; in order, at most `limit`."""
    even = np.linspace(0, len(paid) - 1, min(limit, len(paid))).round().astype(int).tolist()
    wanted = [0, *(t for t, received in enumerate(paid) if received), *even]
    return sorted(list(dict.fromkeys(wanted))[:limit])


def _key(action: Array) -> tuple[float, ...]:
    return tuple(np.ravel(action).tolist())


# On disk ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Library:
    """Episodes of several runs as a reward model reads them."""

    observation: Array  # [S, D]
    action: Array  # [S, K]
    starts: Array  # [E + 1] int: rows of episode e are starts[e] to starts[e + 1]
    returns: Array  # [E]


def gather(episodes: Sequence[Sequence[Episode]]) -> Library:
    """All episodes, run by run."""
    every = [episode for mine in episodes for episode in mine]
    return Library(
        np.concatenate([e.observation for e in every]),
        np.concatenate([e.action for e in every]),
        np.cumsum([0, *(len(e.observation) for e in every)]),
        np.array([e.returns for e in every]),
    )


def same_library(one: Library, episodes: Sequence[Sequence[Episode]]) -> bool:
    """Whether these are the episodes that were kept."""
    return all(np.array_equal(array, vars(gather(episodes))[name]) for name, array in vars(one).items())


def write_library(path: Path, episodes: Sequence[Sequence[Episode]]) -> None:
    """All episodes in one compressed file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    packed = io.BytesIO()
    np.savez_compressed(packed, **vars(gather(episodes)))
    write_whole(path, packed.getvalue())


def write_whole(path: Path, content: bytes) -> None:
    """A file that is there as a whole or as it was before, whenever one is interrupted."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def read_library(path: Path) -> Library:
    """What `write_library` wrote."""
    try:
        with np.load(path, allow_pickle=False) as held:
            return Library(held["observation"], held["action"], held["starts"], held["returns"])
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, TypeError, ValueError):
        cure = "remove it, and 'coterie rate' plays its episodes again"
        raise CoterieError(f"'{path}' is cut off, or holds no episodes; {cure}") from None
