"""Records demonstrations: whole episodes of any policies, batch by batch, so that a recording can be continued.

A batch plays several copies of the world at once and keeps the first episode of each, so that short episodes are not
favoured. Its seed derives from the number of episodes before it, apart from the seeds of evaluations; a recording that
was stopped goes on where it was and ends with the same files. A person plays one episode after the other and may stop
at any time; whole episodes are kept.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie.algorithms.imitation import demonstrations
from coterie.algorithms.imitation.demonstrations import Demonstrations, EpisodeInfo, PlayedTable
from coterie.config import registry, schema
from coterie.core import seeding
from coterie.core.group import Actor, PlayStopped
from coterie.core.text import ActionWords, HasTextCodec
from coterie.core.types import UNLABELLED, Array, CoterieError, Decision, Text, Tree, View, as_metrics, map_tree
from coterie.core.world import CostlySteps, World
from coterie.nn.threads import fixed_threads
from coterie.runs.run import Run, write_text
from coterie.training import build
from coterie.training.evaluate import actor_metrics
from coterie.training.language_models import keep_answers
from coterie.training.players import seated_policy
from coterie.training.rollout import picker
from coterie.training.runner import Runner, play_episodes
from coterie.training.table import load

USAGE = "usage.json"  # in the directory of a recording
BATCH = 16  # episodes played together
SECONDS_UNWRITTEN = 5.0  # that a batch waits to be written, at most

Progress = Callable[[Demonstrations], None]  # called now and then with all episodes of the first group so far


@dataclass(frozen=True)
class DemonstrationSpec:
    """Settings of a recording."""

    source: str  # an experiment, or a run
    policy: str | None = None  # who demonstrates: see `seated_policy`; None: the policies of the run or experiment
    episodes: int = 20
    seed: int = 0
    greedy: bool = True
    checkpoint: str = "best"
    group: str | None = None  # whose decisions are recorded; None: of every group that learns


@dataclass(frozen=True)
class SeatedTable:
    """A table with its players seated."""

    config: schema.Config
    actors: list[Actor]
    players: dict[str, str]  # recorded group -> who plays, in words
    settings: dict[str, Any] = field(default_factory=dict)  # of all groups, as plain values


def seat(spec: DemonstrationSpec, overrides: list[str] | str | None, folder: Path) -> SeatedTable:
    """Seat the demonstrator in the recorded groups; answers of language models are kept in `folder`."""
    is_run, config = (Path(spec.source) / "config.yaml").is_file(), source_config(spec.source, overrides)
    recorded = recorded_groups(config, spec.group)
    if spec.policy is None and is_run:
        table = load(spec.source, spec.checkpoint, overrides)
        players = {group: f"{spec.source}, {table.players[group]}" for group in recorded}
        return SeatedTable(config, [group.actor for group in table.groups], players, schema.to_dict(config)["groups"])
    chosen = None if spec.policy is None else seated_policy(spec.policy, spec.checkpoint)
    groups = {name: replace(group, learner=None, advisor=None) for name, group in config.groups.items()}
    players = {}
    for name in recorded:
        policy = groups[name].policy if chosen is None else chosen
        groups[name] = replace(groups[name], policy=policy)
        own = policy.run if isinstance(policy, schema.SeatedRun) else policy.name
        players[name] = spec.policy or own
        if isinstance(policy, schema.SeatedRun) and policy.checkpoint != "best":
            players[name] += f", checkpoint {policy.checkpoint}"
    config = replace(config, groups=groups)
    settings = schema.to_dict(config)["groups"]
    config = keep_answers(config, folder)
    world = build.build_world(config.world, 1)
    built = build.build_groups(config, world, learning=False, training=False)
    return SeatedTable(config, [group.actor for group in built], players, settings)


def source_config(source: str, overrides: list[str] | str | None) -> schema.Config:
    """The settings of the table that is played at: an experiment's or a run's."""
    is_run = (Path(source) / "config.yaml").is_file()
    return Run.open(source).config(overrides) if is_run else schema.load(source, overrides)


def one_group(config: schema.Config, name: str | None) -> str:
    """The recorded group; raise where there are several: a Minari dataset holds one."""
    names = recorded_groups(config, name)
    if len(names) > 1:
        raise CoterieError(f"a Minari dataset holds one group, and {', '.join(names)} are recorded; add --group")
    return names[0]


def recorded_groups(config: schema.Config, name: str | None) -> list[str]:
    """The groups whose decisions are recorded."""
    if name is not None:
        if name not in config.groups:
            raise CoterieError(f"--group: no group '{name}'; there are {', '.join(config.groups)}")
        return [name]
    learning = [group for group, settings in config.groups.items() if settings.learner is not None]
    return learning or list(config.groups)


def record(
    spec: DemonstrationSpec,
    out: str | Path,
    overrides: list[str] | str | None = None,
    progress: Progress | None = None,
) -> list[Demonstrations]:
    """Record episodes into a directory; one that already holds some of them is continued.

    Where a person ends play by choice, there are fewer episodes than asked for.
    """
    folder = Path(out)
    demand_no_run(folder)
    folder.mkdir(parents=True, exist_ok=True)
    seated = seat(spec, overrides, folder)
    world_settings = schema.to_dict(seated.config)["world"]
    played = PlayedTable(  # the class is known once the world is built
        seated.config.experiment, world_settings, "", spec.greedy, spec.seed, seated.settings
    )
    recording = Recording(folder, recorded_so_far(folder, played, seated.players), progress)
    before = len(recording)
    with fixed_threads(seated.config.train.threads), recording:
        while (done := len(recording)) < spec.episodes:
            together = build.most_envs(seated.actors, BATCH)
            world = build.build_world(seated.config.world, min(together, spec.episodes - done))
            played = replace(played, world_class=type(world).__name__)
            seed = seeding.integer(spec.seed, "demonstrate", done)
            try:
                recording.add(play_batch(world, seated, played, seed))
            except PlayStopped as left:
                if done and left.by_choice:
                    break
                kept = f"{done} of {spec.episodes} episodes are in '{folder}'" if done else "nothing is recorded"
                raise CoterieError(f"{left}; {kept}, and the unfinished episode is dropped") from None
    note_usage(folder, seated.actors, len(recording) - before)
    return recording.parts


def demand_no_run(folder: Path) -> None:
    """Raise where a directory is a run: its files and a recording's would mix."""
    if (folder / "config.yaml").is_file():
        raise schema.ConfigError(f"--out: '{folder}' is a run; choose a directory of its own for the demonstrations")


def note_usage(folder: Path, actors: Sequence[Actor], episodes: int) -> None:
    """Add what the players counted in this recording (questions, tokens, distinct texts) to `usage.json`."""
    counted = {group: as_metrics(found) for group, found in actor_metrics(actors).items()}
    if episodes and counted:
        sessions = [*usage(folder), {"episodes": episodes, "groups": counted}]
        write_text(folder / USAGE, json.dumps(sessions, indent=1) + "\n")


def usage(folder: str | Path) -> list[dict[str, Any]]:
    """Counts of players for each command that recorded into a directory, the first one first."""
    path = Path(folder) / USAGE
    return list(json.loads(path.read_text())) if path.exists() else []


class Recording:
    """Demonstrations on their way to a directory.

    To write all of them after every batch would take a time that grows with the square of their number, so batches wait
    until they are a tenth of what is written, or a few seconds old. What waits is written at the end, come what may.
    """

    def __init__(self, folder: Path, parts: list[Demonstrations], progress: Progress | None) -> None:
        self.folder, self.parts, self.progress = folder, parts, progress
        self.waiting: list[list[Demonstrations]] = []  # batches, each with one entry per group
        self.written = time.monotonic()

    def __len__(self) -> int:
        return sum(len(batch[0]) for batch in (self.parts, *self.waiting) if batch)

    def add(self, batch: list[Demonstrations]) -> None:
        """Keep a batch."""
        self.waiting.append(batch)
        new = sum(len(one[0]) for one in self.waiting)
        if 10 * new >= len(self) or time.monotonic() - self.written > SECONDS_UNWRITTEN:
            self.write()

    def write(self) -> None:
        """Write what waits."""
        if not self.waiting:
            return
        every = [self.parts, *self.waiting] if self.parts else self.waiting
        self.parts = [demonstrations.join(group) for group in zip(*every, strict=True)]
        self.waiting = []
        demonstrations.save(self.folder, self.parts)
        self.written = time.monotonic()
        if self.progress is not None:
            self.progress(self.parts[0])

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *error: object) -> None:
        self.write()


def recorded_so_far(folder: Path, played: PlayedTable, players: dict[str, str]) -> list[Demonstrations]:
    """The demonstrations that a directory already holds; an error if they are of something else."""
    if not (folder / demonstrations.INDEX).exists():
        return []
    parts = [demonstrations.load(folder, group) for group in demonstrations.groups(folder)]
    before = replace(parts[0].table, world_class="")
    players_before = {part.group: part.policy for part in parts}
    for what, old, new in (
        *((name, getattr(before, name), getattr(played, name)) for name in ("experiment", "world", "greedy", "seed")),
        ("policy", players_before, players),
        *changed_settings(before.groups, played.groups),
    ):
        if old != new:
            raise CoterieError(
                f"'{folder}' holds demonstrations of another recording: {what} was {old}, and is {new} now; "
                "choose another --out"
            )
    return parts


def changed_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """The settings of groups that differ, with both values; none where those before are not known."""
    if not before:
        return []
    old, new = schema.leaves({"groups": before}), schema.leaves({"groups": json.loads(json.dumps(now))})
    return [(name, old.get(name), new.get(name)) for name in {**old, **new} if old.get(name) != new.get(name)]


# Playing ----------------------------------------------------------------------------------------------


def play_batch(world: World, seated: SeatedTable, played: PlayedTable, seed: int) -> list[Demonstrations]:
    """The first episode of every copy of the world, for each recorded group."""
    runner = Runner(world, seated.actors, seed, greedy=played.greedy)
    runner.keep_views = True
    own = [actor for actor in seated.actors if actor.group_spec.group in seated.players]
    recorders = [GroupRecorder(actor, world.num_envs) for actor in own]
    episodes: list[EpisodeInfo | None] = [None] * world.num_envs
    for acted in play_episodes(runner):
        live = np.array([episode is None for episode in episodes])
        for recorder in recorders:
            recorder.decided(*acted[recorder.name], live)
            recorder.arrived(runner, live)
        if not runner.timestep.ended.any():
            continue
        ended = runner.tally.drain()
        for i, copy in enumerate(ended.copy.tolist()):
            if episodes[copy] is None:
                success = None if ended.success is None else bool(ended.success[i])
                returns = {r.name: tuple(ended.returns[r.name][i].tolist()) for r in recorders}
                episodes[copy] = EpisodeInfo(seed, copy, int(ended.length[i]), success, returns)
        finished = np.array([episode is not None for episode in episodes])
        if finished.all():
            break
        if isinstance(world, CostlySteps):
            world.pause(finished)
    known = tuple(episode for episode in episodes if episode is not None)
    return [recorder.finish(played, seated.players[recorder.name], known) for recorder in recorders]


@dataclass
class RecordedDecision:
    """A decision of one agent, and what has come of it so far."""

    observation: Tree  # [1, …]
    action: Array  # [1, …]
    mask: Array | None  # [K]
    labelled: bool
    agent: int
    step: int
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False


class GroupRecorder:
    """Collects the decisions of one group in the first episode of each copy."""

    def __init__(self, actor: Actor, num_envs: int) -> None:
        self.group_spec = actor.group_spec
        self.name = actor.group_spec.group
        # [N, A] lists of decisions in the order of time
        self.rows: list[list[list[RecordedDecision]]] = [[[] for _ in self.group_spec.agents] for _ in range(num_envs)]
        self.steps = np.zeros(num_envs, np.int64)
        self.finals: list[Tree | None] = [None] * num_envs

    def decided(self, view: View, decision: Decision, live: Array) -> None:
        """Store what acting agents saw and did in the copies that are still recorded."""
        chance = None if decision.trace is None else decision.trace.get(UNLABELLED)
        for n, a in np.argwhere(view.acting & live[:, None]).tolist():
            row = RecordedDecision(
                map_tree(lambda array, n=n, a=a: array[n : n + 1, a].copy(), view.observation),
                decision.action[n : n + 1, a].copy(),
                None if view.mask is None else view.mask[n, a].copy(),
                chance is None or not chance[n, a],
                a,
                int(self.steps[n]),
            )
            self.rows[n][a].append(row)

    def arrived(self, runner: Runner, live: Array) -> None:
        """Add rewards and ends to the latest decision of each agent, and keep the last observations."""
        pick = picker(self.group_spec)
        agent_step = runner.timestep.agent_types[self.group_spec.agent_type]
        reward, terminated, truncated = (
            pick(array) for array in (agent_step.reward, agent_step.terminated, agent_step.truncated)
        )
        for n in np.flatnonzero(live).tolist():
            for a, rows in enumerate(self.rows[n]):
                if rows:
                    rows[-1].reward += reward[n, a]
                    rows[-1].terminated |= bool(terminated[n, a])
                    rows[-1].truncated |= bool(truncated[n, a])
            if runner.timestep.ended[n]:
                self.finals[n] = map_tree(lambda array, n=n: pick(array)[n].copy(), agent_step.final_observation)
        self.steps += 1

    def finish(self, played: PlayedTable, player: str, episodes: tuple[EpisodeInfo, ...]) -> Demonstrations:
        """All episodes as arrays."""
        by_episode = [[row for rows in agents for row in rows] for agents in self.rows]
        every = [row for rows in by_episode for row in rows]

        def column(name: str, dtype: Any = None) -> Array:
            return np.array([getattr(row, name) for row in every], dtype)

        spaces = self.group_spec.spaces
        return Demonstrations(
            played,
            self.name,
            player,
            self.group_spec.agents,
            spaces.observation,
            spaces.action,
            episodes,
            np.cumsum([0, *map(len, by_episode)]),
            map_tree(lambda *a: np.concatenate(a), *(row.observation for row in every)),
            np.concatenate([row.action for row in every]),
            column("reward", np.float32),
            column("terminated", bool),
            column("truncated", bool),
            column("labelled", bool),
            column("agent", np.int64),
            column("step", np.int64),
            map_tree(lambda *a: np.stack(a), *self.finals),
            None if every[0].mask is None else column("mask", bool),
        )


def describe(part: Demonstrations, wanted: Sequence[int]) -> list[dict[str, Any]]:
    """Some episodes as plain values that a person can read; observations in words where the world has a codec."""
    settings = schema.part(registry.WORLDS, dict(part.table.world), "world")
    world = build.build_world(settings, 1)
    agent_type = next(name for name, spaces in world.agent_types.items() if part.agents[0] in spaces.agents)
    try:
        codec = world.text_codec(agent_type) if isinstance(world, HasTextCodec) else None
    except ValueError:  # this world describes itself only where actions are choices
        codec = None
    words = None if codec is None else ActionWords(codec)
    found = []
    for e in wanted:
        episode, steps = part.episodes[e], []
        for row in range(int(part.starts[e]), int(part.starts[e + 1])):
            action = part.action[row]
            step: dict[str, Any] = {"step": int(part.step[row])}
            if len(part.agents) > 1:
                step["agent"] = part.agents[part.agent[row]]
            if codec is not None:
                seen = map_tree(lambda array, row=row: array[row : row + 1], part.observation)
                step["sees"] = codec.describe(seen)[0]
            if isinstance(part.observation_space, Text):
                step["sees"] = str(part.observation[row])  # type: ignore[index]  # an array
            word = action if isinstance(action, str) else None if words is None else words.of(action)
            step["action"] = action.tolist() if word is None else word
            if part.reward[row]:
                step["reward"] = round(float(part.reward[row]), 4)
            if not part.labelled[row]:
                step["labelled"] = False
            steps.append(step)
        about = {"episode": e, "success": episode.success, "length": episode.length}
        found.append(about | {"returns": list(episode.returns[part.group]), "steps": steps})
    return found
