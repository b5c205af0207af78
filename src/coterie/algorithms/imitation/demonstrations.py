"""Demonstrations: recorded episodes of one group's agents, to learn from by imitation, and their files.

A directory of demonstrations holds `demonstrations.json` (what was played by whom, one entry per episode) and one
`GROUP.npz` per recorded group (arrays; texts as JSON). Nothing is pickled. Failed episodes are kept and marked, and so
are decisions that are not the demonstrator's own answer: `labelled` is False where a language model abstained and
chance decided. `docs/guides/imitation.md` describes every field.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core.files import replacing
from coterie.core.trees import map_tree
from coterie.core.types import (
    ActionSpace,
    Array,
    Box,
    CoterieError,
    Dict,
    Discrete,
    MultiDiscrete,
    ObservationSpace,
    Text,
    Tree,
)

SCHEMA = 1
INDEX = "demonstrations.json"
SHIPPED = Path(__file__).parent.parent.parent / "experiments" / "demonstrations"
TEXTS = ".json"  # ends the names of arrays of texts in the files
TREES = ("observation", "final_observation")
COLUMNS = ("action", "reward", "terminated", "truncated", "labelled", "agent", "step")  # one row per decision


@dataclass(frozen=True)
class EpisodeInfo:
    """Facts about one recorded episode."""

    seed: int  # of the world in which it was played
    copy: int  # which copy of that world
    length: int  # time steps
    success: bool | None  # None: the world has no notion of success
    returns: Mapping[str, tuple[float, ...]]  # group -> return of each of its agents

    def mean_return(self, group: str) -> float:
        """The mean return of a group's agents."""
        return float(np.mean(self.returns[group]))


@dataclass(frozen=True)
class PlayedTable:
    """The table of a recording: the same for all groups."""

    experiment: str
    world: Mapping[str, Any]  # name and settings
    world_class: str  # name of the world's class
    greedy: bool  # policies took their likeliest actions
    seed: int
    groups: Mapping[str, Any] = field(default_factory=dict)  # settings of all that play, by group; {}: not known


@dataclass(frozen=True)
class Demonstrations:
    """Recorded episodes of one group.

    Rows are decisions, ordered by episode, then agent, then time. Rewards that reach an agent before its next decision
    belong to the latest one.
    """

    table: PlayedTable
    group: str
    policy: str  # who played, in words
    agents: tuple[str, ...]
    observation_space: ObservationSpace
    action_space: ActionSpace
    episodes: tuple[EpisodeInfo, ...]
    starts: Array  # [E + 1] int64: rows of episode e are starts[e] to starts[e + 1]
    observation: Tree  # [R, …]
    action: Array  # [R, …]
    reward: Array  # [R] float32
    terminated: Array  # [R] bool
    truncated: Array  # [R] bool
    labelled: Array  # [R] bool: the action is the demonstrator's own answer
    agent: Array  # [R] int64: index into `agents`
    step: Array  # [R] int64: time step of the episode
    final_observation: Tree  # [E, A, …]: what each agent saw at the end
    mask: Array | None = None  # [R, K] bool: legal actions

    def __len__(self) -> int:
        return len(self.episodes)

    @property
    def episode(self) -> Array:
        """The episode of each row, `[R]`."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    @property
    def frames(self) -> int:
        """Environment steps that the episodes took."""
        return sum(episode.length for episode in self.episodes)

    def select(self, chosen: Sequence[int] | Array) -> Demonstrations:
        """Some of the episodes, in the given order."""
        chosen = np.asarray(chosen, np.int64)
        counts = np.diff(self.starts)[chosen]
        rows = np.concatenate([np.arange(self.starts[e], self.starts[e + 1]) for e in chosen] or [chosen])
        columns: dict[str, Any] = {name: getattr(self, name)[rows] for name in COLUMNS}
        return replace(
            self,
            episodes=tuple(self.episodes[e] for e in chosen),
            starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            observation=map_tree(lambda a: a[rows], self.observation),
            final_observation=map_tree(lambda a: a[chosen], self.final_observation),
            mask=None if self.mask is None else self.mask[rows],
            **columns,
        )

    def returns(self) -> Array:
        """The mean return of the group's agents in each episode, `[E]`."""
        return np.array([episode.mean_return(self.group) for episode in self.episodes])


def join(parts: Sequence[Demonstrations]) -> Demonstrations:
    """The episodes of several recordings of the same agents; the first says what was played.

    Groups may have other names and their agents another order; a ValueError if the agents are others.
    """
    first = parts[0]
    parts = [first, *(_like(part, first) for part in parts[1:])]
    for other in parts[1:]:
        check_spaces(other, first.observation_space, first.action_space, f"of '{other.group}'")
        if (first.mask is None) != (other.mask is None):
            raise ValueError("some demonstrations have masks of legal actions and others have none")
    offsets = np.cumsum([0] + [part.starts[-1] for part in parts])
    columns: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS}
    masks = [part.mask for part in parts if part.mask is not None]
    return replace(
        first,
        policy=", ".join(dict.fromkeys(part.policy for part in parts)),
        episodes=tuple(episode for part in parts for episode in part.episodes),
        starts=np.concatenate([[0]] + [part.starts[1:] + offset for part, offset in zip(parts, offsets)]),
        observation=map_tree(lambda *a: np.concatenate(a), *(part.observation for part in parts)),
        final_observation=map_tree(lambda *a: np.concatenate(a), *(part.final_observation for part in parts)),
        mask=np.concatenate(masks) if masks else None,
        **columns,
    )


def _like(part: Demonstrations, first: Demonstrations) -> Demonstrations:
    """A recording with the group's name and the order of agents of another one."""
    if sorted(part.agents) != sorted(first.agents):
        raise ValueError(
            f"demonstrations of '{part.group}' are of other agents ({', '.join(part.agents)}) than those before them "
            f"({', '.join(first.agents)}); clone them apart, or record both with the same agents"
        )
    order = [part.agents.index(agent) for agent in first.agents]

    def renamed(episode: EpisodeInfo) -> EpisodeInfo:
        own = tuple(episode.returns[part.group][a] for a in order)
        others = {group: values for group, values in episode.returns.items() if group not in (part.group, first.group)}
        return replace(episode, returns={first.group: own, **others})

    return replace(
        part,
        group=first.group,
        agents=first.agents,
        agent=np.argsort(order)[part.agent],
        episodes=tuple(map(renamed, part.episodes)),
        final_observation=map_tree(lambda array: array[:, order], part.final_observation),
    )


def check_spaces(
    demonstrations: Demonstrations, observation: ObservationSpace, action: ActionSpace, where: str
) -> None:
    """Raise a ValueError unless the demonstrations have these spaces; `where` names them."""
    pairs = (
        ("observe", demonstrations.observation_space, observation),
        ("act in", demonstrations.action_space, action),
    )
    for verb, found, wanted in pairs:
        if found != wanted:
            world = demonstrations.table.world["name"]
            raise ValueError(
                f"demonstrations {where} are of another world ({world}): they {verb} {found}, not {wanted}"
            )


# Files ------------------------------------------------------------------------------------------------


def find(name: str | Path) -> Path:
    """The directory of demonstrations given as a path, or by the name of shipped ones."""
    for path in (Path(name), SHIPPED / str(name)):
        if (path / INDEX).is_file():
            return path
    shipped = ", ".join(sorted(path.parent.name for path in SHIPPED.glob(f"*/{INDEX}")))
    raise CoterieError(
        f"no demonstrations in '{name}': it has no {INDEX}; record some with 'coterie demonstrate'"
        + (f", or name shipped ones: {shipped}" if shipped else "")
    )


def groups(path: str | Path) -> tuple[str, ...]:
    """The recorded groups of a directory."""
    return tuple(_read_index(find(path))["groups"])


def load(path: str | Path, group: str | None = None) -> Demonstrations:
    """Load one group's demonstrations: the named one, or the only one."""
    folder = find(path)
    index = _read_index(folder)
    known = list(index["groups"])
    if group is None and len(known) > 1:
        raise CoterieError(f"'{path}' has demonstrations of the groups {', '.join(known)}; name one")
    name = known[0] if group is None else group
    if name not in known:
        raise CoterieError(f"'{path}' has no demonstrations of the group '{name}'; there are {', '.join(known)}")
    try:
        return _parse(index, name, _read_arrays(folder / f"{name}.npz"))
    except (KeyError, TypeError, IndexError) as error:
        raise CoterieError(f"'{folder}' is damaged: {error!r} is missing or wrong") from None


def save(path: str | Path, parts: Sequence[Demonstrations]) -> None:
    """Write the demonstrations of one or several groups of one table; the index is written last.

    A directory that is being written over stays whole: until the index names new episodes, they are not read.
    """
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    for part in parts:
        arrays = {name: getattr(part, name) for name in (*COLUMNS, "starts")}
        for name in TREES:
            tree = getattr(part, name)
            entries = {f"{name}/{key}": a for key, a in tree.items()} if isinstance(tree, dict) else {name: tree}
            arrays |= entries
        if part.mask is not None:
            arrays["mask"] = part.mask
        arrays = dict(map(_encoded, arrays.items()))
        with replacing(folder / f"{part.group}.npz") as file:
            np.savez_compressed(file, **arrays)
    with replacing(folder / INDEX) as file:
        file.write((json.dumps(_index(parts), indent=1) + "\n").encode())


def _index(parts: Sequence[Demonstrations]) -> dict[str, Any]:
    first = parts[0]
    return {
        "schema": SCHEMA,
        **{name: value for name, value in vars(first.table).items() if name != "groups"},
        "table": first.table.groups,
        "groups": {
            part.group: {
                "policy": part.policy,
                "agents": list(part.agents),
                "observation_space": space_to_dict(part.observation_space),
                "action_space": space_to_dict(part.action_space),
            }
            for part in parts
        },
        "episodes": [
            {
                **vars(episode),
                "returns": {group: list(values) for group, values in episode.returns.items()},
            }
            for episode in first.episodes
        ],
    }


def _read_index(folder: Path) -> dict[str, Any]:
    try:
        index = json.loads((folder / INDEX).read_text())
    except (ValueError, OSError) as error:
        raise CoterieError(f"'{folder / INDEX}' cannot be read: {error}") from None
    if not isinstance(index, dict) or index.get("schema") != SCHEMA:
        raise CoterieError(f"'{folder / INDEX}' is not an index of demonstrations of schema {SCHEMA}")
    if not isinstance(index.get("groups"), dict):
        raise CoterieError(f"'{folder / INDEX}' is damaged: it names no groups; record the demonstrations again")
    return index


def _read_arrays(path: Path) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as stored:
            return dict(_decoded(name, stored[name]) for name in stored.files)
    except (OSError, ValueError, EOFError, zlib.error, zipfile.BadZipFile) as error:  # EOFError: the file is empty
        raise CoterieError(f"'{path}' cannot be read: {error}") from None


def _encoded(entry: tuple[str, Array]) -> tuple[str, Array]:
    """An array of texts as the bytes of a JSON list, under a name that says so; other arrays as they are."""
    name, array = entry
    if array.dtype != object:
        return name, array
    written = json.dumps({"shape": list(array.shape), "texts": array.ravel().tolist()})
    return f"{name}{TEXTS}", np.frombuffer(written.encode(), np.uint8)


def _decoded(name: str, array: Array) -> tuple[str, Array]:
    """The inverse of `_encoded`."""
    if not name.endswith(TEXTS):
        return name, array
    held = json.loads(array.tobytes())
    texts = np.empty(len(held["texts"]), object)
    texts[:] = held["texts"]
    return name.removesuffix(TEXTS), texts.reshape(held["shape"])


def _table(index: dict[str, Any]) -> PlayedTable:
    known = {name: index[name] for name in ("experiment", "world", "world_class", "greedy", "seed")}
    return PlayedTable(**known, groups=index["table"])


def _parse(index: dict[str, Any], group: str, arrays: dict[str, Array]) -> Demonstrations:
    about = index["groups"][group]
    episodes = tuple(
        EpisodeInfo(**{**row, "returns": {name: tuple(values) for name, values in row["returns"].items()}})
        for row in index["episodes"]
    )
    count = len(episodes)
    starts = arrays["starts"][: count + 1]  # arrays of a recording that was killed may hold more episodes

    def tree(name: str, rows: int) -> Tree:
        if name in arrays:
            return arrays[name][:rows]
        return {key.partition("/")[2]: a[:rows] for key, a in arrays.items() if key.startswith(f"{name}/")}

    rows = int(starts[count])
    return Demonstrations(
        _table(index),
        group,
        about["policy"],
        tuple(about["agents"]),
        space_from_dict(about["observation_space"]),  # type: ignore[arg-type]  # written by `save`
        space_from_dict(about["action_space"]),  # type: ignore[arg-type]  # likewise
        episodes,
        starts,
        observation=tree("observation", rows),
        final_observation=tree("final_observation", count),
        mask=arrays["mask"][:rows] if "mask" in arrays else None,
        **{name: arrays[name][:rows] for name in COLUMNS},
    )


# Spaces as JSON -----------------------------------------------------------------------------------------


def space_to_dict(space: ObservationSpace | ActionSpace) -> dict[str, Any]:
    """A space as plain values."""
    match space:
        case Discrete(n):
            return {"type": "Discrete", "n": int(n)}
        case MultiDiscrete(sizes):
            return {"type": "MultiDiscrete", "sizes": list(sizes)}
        case Box(shape, low, high, dtype):
            bounds = {"low": _bound_to_json(low), "high": _bound_to_json(high)}
            return {"type": "Box", "shape": list(shape), **bounds, "dtype": dtype}
        case Dict(entries, sets):
            parts = {name: space_to_dict(part) for name, part in entries.items()}
            return {"type": "Dict", "entries": parts, "sets": [list(names) for names in sets]}
        case Text(max_length):
            return {"type": "Text", "max_length": max_length}


def space_from_dict(value: Mapping[str, Any]) -> ObservationSpace | ActionSpace:
    """The inverse of `space_to_dict`."""
    match value["type"]:
        case "Discrete":
            return Discrete(value["n"])
        case "MultiDiscrete":
            return MultiDiscrete(tuple(value["sizes"]))
        case "Text":
            return Text(value["max_length"])
        case "Box":
            low, high = (_bound_from_json(value[name]) for name in ("low", "high"))
            return Box(tuple(value["shape"]), low, high, value["dtype"])
    entries: Any = {name: space_from_dict(part) for name, part in value["entries"].items()}
    return Dict(entries, tuple(tuple(names) for names in value["sets"]))


def _bound_to_json(bound: Array | float) -> Any:
    """A bound as a number or nested lists; infinity is written as a word, which JSON has no number for."""
    values = np.asarray(bound)
    if values.size and (values == values.flat[0]).all():
        values = np.asarray(values.flat[0])
    words = [value if np.isfinite(value) else str(value) for value in values.ravel().tolist()]
    return words[0] if values.ndim == 0 else {"shape": list(values.shape), "values": words}


def _bound_from_json(value: Any) -> Array | float:
    if not isinstance(value, dict):
        return float(value)
    return np.array([float(each) for each in value["values"]]).reshape(value["shape"])
