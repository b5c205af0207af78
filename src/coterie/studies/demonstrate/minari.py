"""Demonstrations as Minari datasets, and Minari datasets as demonstrations, where the package `minari` is installed.

A Minari episode is one agent's trajectory. What Minari has no field for goes into the infos of its steps: the mask of
legal actions, whether the action is the demonstrator's own, success, and the agent's index.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np

from coterie.algorithms.imitation.demonstrations import Demonstrations, EpisodeInfo, PlayedTable
from coterie.config import schema
from coterie.core.group import GroupSpec
from coterie.core.types import (
    Array,
    Box,
    CoterieError,
    Dict,
    Discrete,
    MultiDiscrete,
    ObservationSpace,
    Text,
    Tree,
    action_dtype,
    entries_of,
    map_tree,
)
from coterie.studies.demonstrate.record import one_group, source_config
from coterie.training import build


def to_minari(part: Demonstrations, dataset_id: str) -> Any:
    """Write a Minari dataset, such as `coterie/doorkey/expert-v0`; returns it."""
    minari = minari_package()
    _refuse_texts(part.observation_space)
    buffer_type = importlib.import_module("minari.data_collector").EpisodeBuffer
    buffers: list[Any] = []
    episode = part.episode
    for e, about in enumerate(part.episodes):
        for a in range(len(part.agents)):
            rows = np.flatnonzero((episode == e) & (part.agent == a))
            if len(rows):
                last = map_tree(lambda array, e=e, a=a: array[e, a][None], part.final_observation)
                seen = map_tree(
                    lambda array, end, rows=rows: np.concatenate([array[rows], end]), part.observation, last
                )
                buffers.append(_buffer(buffer_type, part, rows, seen, about, a, len(buffers)))
    try:
        return minari.create_dataset_from_buffers(
            dataset_id,
            buffers,
            algorithm_name=part.policy,
            observation_space=_gymnasium_space(part.observation_space),
            action_space=_gymnasium_space(part.action_space),
            description=f"{part.table.experiment}: {len(part)} episodes of {part.table.world['name']} by {part.policy}",
        )
    except ValueError as error:
        raise CoterieError(f"Minari refuses the dataset '{dataset_id}': {error}") from None


def _buffer(buffer_type: Any, part: Demonstrations, rows: Array, seen: Tree, about: EpisodeInfo, a: int, n: int) -> Any:
    """One agent's trajectory; its last row ends it, also where the agent left before the episode's end."""
    count = len(rows)
    terminated, truncated = part.terminated[rows], part.truncated[rows].copy()
    truncated[-1] |= not terminated[-1]
    infos = {
        "labelled": np.append(part.labelled[rows], False),
        "success": np.full(count + 1, -1 if about.success is None else int(about.success)),
        "agent": np.full(count + 1, a),
        "length": np.full(count + 1, about.length),
    }
    if part.mask is not None:
        infos["mask"] = np.concatenate([part.mask[rows], np.zeros_like(part.mask[:1])])
    action = part.action[rows]
    return buffer_type(n, about.seed % 2**31, None, seen, action, part.reward[rows], terminated, truncated, infos)


def from_minari(
    dataset_id: str, source: str, overrides: list[str] | None = None, group: str | None = None
) -> Demonstrations:
    """Read a Minari dataset of a single agent as demonstrations of a group at the table of an experiment or a run."""
    minari = minari_package()
    try:
        dataset = minari.load_dataset(dataset_id)
    except (FileNotFoundError, ValueError) as error:
        raise CoterieError(f"no Minari dataset '{dataset_id}': {error}") from None
    config = source_config(source, overrides)
    world = build.build_world(config.world, 1)
    spec = build.build_group_specs(config, world)[one_group(config, group)]
    _refuse_texts(spec.spaces.observation)
    _refuse_squashed(config.world.settings, dataset.action_space, dataset_id)
    table = PlayedTable(config.experiment, schema.to_dict(config)["world"], type(world).__name__, True, 0)
    rows: dict[str, list[Any]] = {}
    episodes, counts, finals = [], [], []
    for number, episode in enumerate(dataset.iterate_episodes()):
        seen = _observation(spec, episode.observations, dataset.observation_space, dataset_id)
        count, infos = len(episode.rewards), episode.infos or {}
        columns = {
            "observation": map_tree(lambda array: array[:-1], seen),
            "action": _action(spec, _numbers(episode.actions, dataset.action_space, dataset_id), count, dataset_id),
            "reward": np.asarray(episode.rewards, np.float32),
            "terminated": np.asarray(episode.terminations, bool),
            "truncated": np.asarray(episode.truncations, bool),
            "labelled": np.asarray(infos.get("labelled", np.ones(count + 1)), bool)[:count],
            "agent": np.asarray(infos.get("agent", np.zeros(count + 1)), np.int64)[:count],
            "step": np.arange(count),
        }
        if "mask" in infos:
            columns["mask"] = np.asarray(infos["mask"], bool)[:count]
        for name, column in columns.items():
            rows.setdefault(name, []).append(column)
        if columns["agent"].any():
            raise CoterieError(f"'{dataset_id}' has several agents; only datasets of one agent can be read")
        success = int(np.ravel(infos.get("success", [-1]))[0])
        returns = {spec.group: (float(columns["reward"].sum()),)}
        episodes.append(EpisodeInfo(0, number, count, None if success < 0 else bool(success), returns))
        finals.append(map_tree(lambda array: array[-1:], seen))
        counts.append(count)
    joined: dict[str, Any] = {name: map_tree(lambda *a: np.concatenate(a), *parts) for name, parts in rows.items()}
    found = Demonstrations(
        table,
        spec.group,
        f"Minari dataset {dataset_id}",
        spec.agents[:1],
        spec.spaces.observation,
        spec.spaces.action,
        tuple(episodes),
        np.cumsum([0, *counts]),
        final_observation=map_tree(lambda *a: np.stack(a), *finals),
        **joined,
    )
    return replace(found, mask=joined.get("mask"))


def _refuse_texts(space: ObservationSpace) -> None:
    if isinstance(space, Text):
        raise CoterieError("Minari datasets of Coterie hold numbers, and this world has texts; use --out alone")


def _refuse_squashed(settings: Any, space: Any, dataset_id: str) -> None:
    """Raise an error where a dataset's actions have one bound and the world squashes such actions."""
    box = importlib.import_module("gymnasium.spaces").Box
    if not isinstance(space, box) or not (np.isfinite(space.low) != np.isfinite(space.high)).any():
        return
    if getattr(getattr(settings, "actions", None), "one_sided", "limit") == "squash":
        raise CoterieError(
            f"'{dataset_id}' has actions {space}, which this world squashes; set world.actions.one_sided=limit"
        )


def _numbers(value: Any, space: Any, dataset_id: str) -> Array:
    """A trajectory's values in a Gymnasium space as one array, with choices from 0 on as in ours."""
    if isinstance(value, dict | tuple):
        raise CoterieError(f"'{dataset_id}' has values in several parts, {space}; this world has others")
    return np.asarray(value) - getattr(space, "start", 0)  # only spaces of choices have a smallest one


def _observation(spec: GroupSpec, value: Any, theirs: Any, dataset_id: str) -> Tree:
    """A trajectory's observations in the group's space."""
    space = spec.spaces.observation
    parts = entries_of(space)
    if isinstance(space, Dict) and not (isinstance(value, dict) and parts.keys() <= value.keys()):
        raise CoterieError(f"'{dataset_id}' has other observations than this world, whose parts are {', '.join(parts)}")
    found = {}
    for name, part in parts.items():
        array = _numbers(value[name] if name else value, theirs[name] if name else theirs, dataset_id)
        shape = part.shape if isinstance(part, Box) else ()
        if array.shape[1:] != shape:
            raise CoterieError(f"'{dataset_id}' has observations {array.shape[1:]}, this world has {shape}")
        found[name] = array.astype(part.dtype if isinstance(part, Box) else np.int64)
    return found if isinstance(space, Dict) else found[""]


def _action(spec: GroupSpec, value: Any, count: int, dataset_id: str) -> Array:
    """A trajectory's actions in the group's space; an error where some are not in it."""
    space, array = spec.spaces.action, np.asarray(value)
    if isinstance(space, Text):
        raise CoterieError("Minari datasets of Coterie hold numbers, and the actions of this world are texts")
    shape = (
        () if isinstance(space, Discrete) else (len(space.sizes),) if isinstance(space, MultiDiscrete) else space.shape
    )
    if array.shape != (count, *shape):
        raise CoterieError(f"'{dataset_id}' has actions {array.shape[1:]} for {count} rewards, this world has {shape}")
    if isinstance(space, Box):
        low, high = (np.broadcast_to(np.asarray(bound, np.float64), shape) for bound in (space.low, space.high))
    else:
        sizes = np.asarray(space.n if isinstance(space, Discrete) else space.sizes)
        low, high = np.zeros(shape), np.broadcast_to(sizes - 1, shape)
        if (array != np.floor(array)).any():
            raise CoterieError(f"'{dataset_id}' has actions that are no whole numbers; this world has {space}")
    outside = ~((array >= low) & (array <= high))  # NaN is outside, too
    if outside.any():
        raise CoterieError(f"'{dataset_id}' has the action {array[outside][0]}, this world has {space}")
    return array.astype(action_dtype(space))


def _gymnasium_space(space: ObservationSpace | Any) -> Any:
    """One of our spaces as Gymnasium's."""
    spaces = importlib.import_module("gymnasium.spaces")
    match space:
        case Discrete(n):
            return spaces.Discrete(n)
        case MultiDiscrete(sizes):
            return spaces.MultiDiscrete(sizes)
        case Box(shape, low, high, dtype):
            bounds = (np.broadcast_to(np.asarray(bound, dtype), shape) for bound in (low, high))
            return spaces.Box(*bounds, shape, np.dtype(dtype))
        case Dict(entries):
            return spaces.Dict({name: _gymnasium_space(part) for name, part in entries.items()})


def demand_dataset_id(dataset_id: str) -> None:
    """Refuse an id that Minari would refuse once everything has been played."""
    minari_package()
    try:
        importlib.import_module("minari.dataset.minari_dataset").parse_dataset_id(dataset_id)
    except ValueError as error:
        raise CoterieError(f"--minari: {error}") from None


def minari_package() -> ModuleType:
    """Minari, or an error that says how to install it."""
    try:
        return importlib.import_module("minari")
    except ModuleNotFoundError:
        raise CoterieError("Minari datasets need the package minari: pip install 'coterie[minari]'") from None
