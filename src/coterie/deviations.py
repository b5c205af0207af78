"""Who may leave what a run has learned, and the experiment that trains a responder in those seats.

Everybody else is frozen at a checkpoint (`policies/frozen.py`). Training and judging are in `exploiting.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from coterie import build, config, names
from coterie.group import Place
from coterie.policies.frozen import FrozenSettings
from coterie.run import Run

RESPONDER = "responder"
FROZEN = "coterie.policies.frozen:Frozen"
LEARNER = "ppo"  # where the run has none to lend
Deviates = Literal["agent", "each", "group"]


@dataclass(frozen=True)
class Question:
    """What is asked of a run."""

    checkpoint: str = "best"  # best, last or a step
    groups: tuple[str, ...] = ()  # who might deviate; none named: those that learn, or all if nobody does
    deviates: Deviates = "agent"  # a group's first agent, each of them in turn, or the whole group together
    learner: str | None = None  # of the responder, with its default settings; None: the group's own, as it was set
    steps: int | None = None  # environment steps of a responder's training; None: as many as the run had
    episodes: int = 256  # to judge by, and as many others to choose by
    seed: int = 0  # of the episodes, not of the training
    sample: bool = False  # the run's policies draw their actions

    def __post_init__(self) -> None:
        if self.deviates not in ("agent", "each", "group"):
            raise config.ConfigError(f"--deviates: expected 'agent', 'each' or 'group', got '{self.deviates}'")
        for name, value, low in (("steps", self.steps, 1), ("episodes", self.episodes, 2), ("seed", self.seed, 0)):
            if value is not None and value < low:
                raise config.ConfigError(f"--{name}: must be at least {low}, got {value}")


@dataclass(frozen=True)
class Deviation:
    """Who leaves what the run has learned."""

    group: str
    agents: tuple[str, ...]
    name: str  # its directory


@dataclass(frozen=True)
class Opened:
    """A run at one checkpoint, and who sits where."""

    run: Run
    config: config.Config
    places: Mapping[str, Place]
    step: int


def deviations(opened: Opened, asked: Question) -> list[Deviation]:
    """All that the question asks for, each once."""
    groups = opened.config.groups
    for name in asked.groups:
        if name not in groups:
            hint = config.suggest(name, groups) or f"; there are {', '.join(groups)}"
            raise config.ConfigError(f"--group: no group '{name}'{hint}")
    learning = [name for name, group in groups.items() if group.learner is not None]
    found = []
    for name in dict.fromkeys(asked.groups or learning or groups):
        agents = opened.places[name].agents
        if asked.deviates == "agent" or len(agents) == 1:
            found.append(Deviation(name, agents[:1], name))
        elif asked.deviates == "each":
            found += [Deviation(name, (agent,), f"{name}-{agent}") for agent in agents]
        else:
            found.append(Deviation(name, agents, f"{name}-all"))
    return found


def frozen(opened: Opened, group: str, asked: Question) -> dict[str, Any]:
    """A group of the run as a policy; the step is written down, for `best` may be another one later."""
    path = str(opened.run.path.absolute())
    return {"name": FROZEN} | asdict(FrozenSettings(path, str(opened.step), group, not asked.sample))


def responding(opened: Opened, deviation: Deviation, asked: Question, overrides: list[str]) -> config.Config:
    """The experiment that trains a responder: its seats are learned anew, all others are frozen."""
    layer, before = config.to_plain(opened.config), opened.config
    policy, learner = taught(opened, deviation.group, asked.learner)
    own = layer["groups"][deviation.group] | {"policy": policy, "learner": learner}
    groups = {RESPONDER: own | {"agents": list(deviation.agents)}}
    for name, place in opened.places.items():
        rest = [agent for agent in place.agents if agent not in deviation.agents]
        label = f"{name}-rest" if name == deviation.group else name
        while label in groups or (label != name and label in opened.places):
            label += "-frozen"
        if rest:
            liked = layer["groups"][name]["preference"]
            groups[label] = {"agents": rest, "policy": frozen(opened, name, asked), "preference": liked}
    length = before.train.total_steps if asked.steps is None else asked.steps
    train = layer["train"] | {"total_steps": length, "stop": None, "video": False}
    layer |= {"groups": groups, "train": train, "seed": before.seed + 1}
    layer["experiment"] = f"{before.experiment}-response"
    for word in overrides:
        key = word.partition("=")[0]
        if key != "seed" and (not key.startswith(("train.", f"groups.{RESPONDER}.")) or key.endswith(".agents")):
            allowed = f"train.…, groups.{RESPONDER}.… but its agents, and seed"
            raise config.ConfigError(f"{key}: what can be set here is the responder's training: {allowed}")
    return config.resolve(config.merge(layer, config.parse_overrides(overrides)), layer["experiment"])


def taught(opened: Opened, group: str, learner: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Policy and learner of a responder: the group's own as they were set, or a learner by name and what it needs."""
    chosen = opened.config.groups[group]
    policy = first_policy(opened, group)
    if learner is None and chosen.learner is not None:
        return policy, config.to_plain(opened.config)["groups"][group]["learner"]
    name = learner or LEARNER
    try:
        wanted = getattr(names.look_up(names.LEARNERS, name), "teaches", None)  # as in build.build_learner
    except LookupError as error:
        raise config.ConfigError(f"--learner: {error}{config.suggest(name, names.LEARNERS)}") from None
    if wanted is None:
        return policy, {"name": name}
    address = f"{wanted.__module__}:{wanted.__qualname__}"
    needed = next((known for known, where in names.POLICIES.items() if where == address), address)
    return policy if policy["name"] == needed else {"name": needed}, {"name": name}


def first_policy(opened: Opened, group: str) -> dict[str, Any]:
    """A group's policy by name and settings, also where it began with the weights of an earlier run."""
    at, place = opened.config, opened.places[group]
    while isinstance(seated := at.groups[group].policy, config.SeatedRun):
        at = Run.open(seated.run).config()
        group = build.earlier_group(seated, place, at)
    found: dict[str, Any] = config.to_plain(at)["groups"][group]["policy"]
    return found
