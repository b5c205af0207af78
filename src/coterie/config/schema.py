"""Reads YAML files and overrides into strict, typed settings.

Layers are merged (`extends` < file < overrides) and checked against the settings dataclasses, which are declared in the
modules that they configure. Errors name the path of the setting and, where possible, the fix.
Only this file and `interpolation.py` use OmegaConf, only this one pydantic. It also declares the settings of the
training loop, so that reading a config does not import the loop.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import io
import itertools
import json
import re
import types as python_types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import TypeAdapter, ValidationError
from yaml import MarkedYAMLError, ScalarNode, YAMLError, compose
from yaml.reader import ReaderError

from coterie.config import classes, interpolation, registry, trust
from coterie.config.interpolation import Interpolated, interpolate
from coterie.core import lookup
from coterie.core.group import Parameters
from coterie.core.lookup import Trust, suggest
from coterie.core.types import CoterieError
from coterie.core.validation import at_least, positive


@dataclass(frozen=True)
class StopSettings:
    """Settings of early stopping."""

    return_mean: float  # stop once the group's average training return reaches this
    episodes: int = 100  # number of latest episodes to average over
    group: str | None = None  # group whose return counts; None: the first group that learns

    def __post_init__(self) -> None:
        at_least("episodes", self.episodes, 1)


@dataclass(frozen=True)
class TrackingSettings:
    """Settings of experiment trackers, which get every record and the run's settings."""

    sinks: tuple[Literal["wandb", "mlflow"], ...] = ()  # Weights & Biases, MLflow
    project: str = "coterie"  # project of Weights & Biases, experiment of MLflow
    offline: bool = False  # write files below the run and contact no server

    def __post_init__(self) -> None:
        if not self.project:
            raise ValueError("project must not be empty")
        if len(set(self.sinks)) < len(self.sinks):
            raise ValueError(f"sinks must name every sink once, got {', '.join(self.sinks)}")


@dataclass(frozen=True)
class RaySettings:
    """Settings of workers that are Ray actors."""

    address: str = "local"  # local: a cluster of this machine for this run; auto: the running one; or HOST:PORT
    cpus: float = 1.0  # cores that Ray sets aside for each worker
    gpus: float = 0.0  # GPUs likewise; without any, workers play on the CPU

    def __post_init__(self) -> None:
        if not self.address:
            raise ValueError("address must be local, auto or HOST:PORT, got ''")
        at_least("cpus", self.cpus, 0)
        at_least("gpus", self.gpus, 0)


@dataclass(frozen=True)
class TrainSettings:
    """Settings of the training loop."""

    total_steps: int = 200_000  # environment steps, summed over environments
    num_envs: int = 64  # environments stepped together
    rollout_steps: int = 128  # steps of every environment per iteration
    shards: int = 1  # parts that the environments are divided into; changes results
    workers: int = 0  # processes that collect rollouts; 0: none; does not change results
    ray: RaySettings | None = None  # workers are Ray actors, also on other machines; None: child processes
    timeout: float = 600.0  # seconds without a sign of life after which a worker counts as hanging
    threads: int = 1  # threads of PyTorch; changes results, since the order of sums does
    evaluate_every: int = 10  # iterations between evaluations; the first and last iteration are always evaluated
    evaluate_episodes: int = 100  # episodes per evaluation
    checkpoint_every: int = 10  # iterations between checkpoints
    keep_checkpoints: int = 2  # newest checkpoints to keep, in addition to the best
    # the best checkpoint: highest return (between opponents the last), or the last
    best: Literal["return", "last"] = "return"
    stop: StopSettings | None = None  # stop early at this return; None: never
    video: bool = True  # record one episode of the best policy at the end
    tensorboard: bool = True  # also write TensorBoard event files
    tracking: TrackingSettings | None = None  # also send records to trackers; None: to none

    def __post_init__(self) -> None:
        for name in ("total_steps", "num_envs", "rollout_steps", "shards", "threads", "evaluate_every"):
            at_least(name, getattr(self, name), 1)
        for name in ("evaluate_episodes", "checkpoint_every", "keep_checkpoints"):
            at_least(name, getattr(self, name), 1)
        at_least("workers", self.workers, 0)
        positive("timeout", self.timeout)
        if self.ray is not None and not self.workers:
            raise ValueError("ray needs workers: set train.workers to the number of Ray actors")
        if self.num_envs % self.shards:
            raise ValueError(
                f"num_envs must divide evenly into shards, got num_envs={self.num_envs} and shards={self.shards}"
            )

    @property
    def iteration_steps(self) -> int:
        """Environment steps of one iteration."""
        return self.num_envs * self.rollout_steps

    @property
    def iterations(self) -> int:
        """Number of iterations of the run."""
        return -(-self.total_steps // self.iteration_steps)

    def progress(self, iteration: int) -> float:
        """Fraction of `total_steps` taken when an iteration begins; iterations count from 1."""
        return (iteration - 1) * self.iteration_steps / self.total_steps


SCHEMA = 1
DEFAULT_NAMES = {"policy": "network", "preference": "individual", "advisor": "language", "constraints": "language"}
PARTS = ("world", "learner", *DEFAULT_NAMES)  # settings that choose a component by name
ENV_ID = re.compile(r"-v\d+$")  # how Gymnasium's ids end
SHORT_FORM = ""  # in merged layers: the key of a section's short form, `lm: embedded`, next to other settings of it
SECTIONS = ("world", "groups", "train", "seed", "experiment", "schema")
EXPERIMENTS = Path(__file__).parent.parent / "experiments"
UNREADABLE = (
    *(YAMLError, OmegaConfBaseException, UnicodeError),
    *(ValueError, LookupError, AttributeError, RecursionError),  # of tags such as `!!int x`, the key `[`, deep nesting
)
WITHOUT_EFFECT = {  # settings that change no result, as dotted paths
    "world.processes",
    "world.env_workers",
    "world.timeout",
    "train.workers",
    "train.timeout",
    "train.ray",
    "train.ray.address",
    "train.ray.cpus",
    "train.ray.gpus",
    "train.video",
    "train.tensorboard",
    "train.tracking",
    "train.tracking.sinks",
    "train.tracking.project",
    "train.tracking.offline",
    "train.keep_checkpoints",
    "train.checkpoint_every",
}


class ConfigError(CoterieError):
    """A setting is unknown, missing, mistyped or out of range."""


@dataclass(frozen=True)
class Part:
    """A component chosen by name, with its settings."""

    name: str
    settings: Any


@dataclass(frozen=True)
class AsWritten:
    """Settings of a part that is not looked up, since it is foreign and only shown."""

    values: dict[str, Any]


@dataclass(frozen=True)
class SeatedRun:
    """A policy taken from an earlier run."""

    run: str  # directory of the run; relative paths resolve against the working directory and are stored as absolute
    checkpoint: str | int = "best"  # best, last or a step number
    group: str | None = None  # group of that run; None: the group of the same name, or the only one


@dataclass(frozen=True)
class GroupConfig:
    """One group of the table."""

    agents: tuple[str, ...]  # agent names; * matches any characters
    policy: Part | SeatedRun  # what acts: a name with its settings, or the policy of an earlier run
    learner: Part | None  # what improves the policy; None: the group is frozen
    preference: Part  # how the group values its rewards; default: individual
    parameters: Parameters = "shared"  # shared, or individual: one set for each agent
    advisor: Part | None = None  # suggests actions while the group learns
    constraints: Part | None = None  # rules in words that restrict the group's actions
    start: SeatedRun | None = None  # an earlier run whose weights the policy begins training with; None: its own


@dataclass(frozen=True)
class Interpolation:
    """A setting that a config gets from outside, such as the environment: files have its text."""

    text: Any  # as it is written
    value: Any  # as it is used, in plain values


@dataclass(frozen=True)
class Origin:
    """The run that a config was read from, whose author may be a stranger."""

    run: Path
    changed: frozenset[str] = frozenset()  # paths of settings that this user has set since; PATH.* is a whole part

    def is_own(self, path: str) -> bool:
        """Whether this user has set the setting at a path, or replaced the part that it belongs to."""
        steps = path.split(".")
        return path in self.changed or any(f"{'.'.join(steps[:n])}.*" in self.changed for n in range(1, len(steps)))


@dataclass(frozen=True)
class Config:
    """A resolved experiment."""

    world: Part
    groups: dict[str, GroupConfig]
    train: TrainSettings
    seed: int = 0
    experiment: str = "experiment"
    trust: Trust = field(default="signed", compare=False)  # which of the runs that it names may name code
    interpolated: dict[interpolation.Path, Interpolation] = field(default_factory=dict, compare=False, repr=False)
    origin: Origin | None = field(default=None, compare=False, repr=False)  # None: this user's own config

    def refuse_unread(self, what: str | Path) -> None:
        """Raise `Untrusted` for a config that can only be shown."""
        parts = {"world": self.world}
        for name, group in self.groups.items():
            found = {key: getattr(group, key) for key in ("policy", "learner", *DEFAULT_NAMES)}
            parts |= {f"groups.{name}.{key}": part for key, part in found.items() if isinstance(part, Part)}
        settings = {path: {"name": part.name} | part.settings.values for path, part in parts.items() if _unread(part)}
        if settings:
            raise trust.refusal([one for path, values in settings.items() for one in trust.foreign(values, path)], what)


# Layers ---------------------------------------------------------------------------------------------


def experiments() -> list[str]:
    """Return the names of the built-in experiments."""
    return sorted(name_of(path) for path in EXPERIMENTS.rglob("*.yaml"))


def name_of(path: Path) -> str:
    """Return an experiment's name: `ablations/cartpole-single` for a built-in one, else the stem of the file."""
    ours = path.is_relative_to(EXPERIMENTS)
    return path.relative_to(EXPERIMENTS).with_suffix("").as_posix() if ours else path.stem


def find(name: str, folder: Path | None = None) -> Path:
    """Return the file of an experiment given by name or path; relative paths also resolve against `folder`."""
    for path in (Path(name), *([folder / name, folder / f"{name}.yaml"] if folder else [])):
        if path.is_file():
            return path
    path = EXPERIMENTS / f"{name}.yaml"
    if path.is_file():
        return path
    if (Path(name) / "config.yaml").is_file():
        raise ConfigError(
            f"{name} is a run: 'coterie resume {name}' goes on with it, 'coterie train {name}/config.yaml' begins anew"
        )
    hint = suggest(name, experiments()) or ";"
    raise ConfigError(f"no experiment or file '{name}'{hint} 'coterie list' shows them all")


def read(path: Path, seen: tuple[Path, ...] = (), whose: Trust = "all") -> dict[str, Any]:
    """Read a file and merge it over the file that it extends; of runs among them, `whose` may have foreign settings."""
    path = path.resolve()
    if path in seen:
        raise ConfigError(f"{path.name}: 'extends' runs in a circle: {' -> '.join(p.name for p in (*seen, path))}")
    try:
        layer: Any = copy.deepcopy(_parse(path.read_text(encoding="utf-8"), str(path)))
    except (*UNREADABLE, OSError) as error:
        raise ConfigError(f"{path.name}: not readable as YAML: {_reason(error)}") from None
    if not isinstance(layer, dict):
        shown = repr(layer) if len(repr(layer)) <= 60 else f"{layer!r:.60}…"
        raise ConfigError(f"{path.name}: holds no settings; expected one 'key: value' per line, got {shown}")
    if misread := _boolean_name(layer):
        raise ConfigError(
            f"{path.name}: {misread}: YAML reads the names on, off, yes, no, true and false as booleans; "
            "write it in quotes"
        )
    parent = layer.pop("extends", None)
    if whose != "all" and trust.is_of_run(path):
        with _unreadable():
            trust.demand(layer, path)
    if parent is None:
        return layer
    return merge(read(find(str(parent), path.parent), (*seen, path), whose), layer)


def _boolean_name(settings: Any, at: str = "") -> str | None:
    """The path of the first name that YAML reads as true or false, such as that of a group called off."""
    entries = (
        settings if isinstance(settings, dict) else dict(enumerate(settings if isinstance(settings, list) else ()))
    )
    for key, entry in entries.items():
        path = f"{at}.{key}" if at else str(key)
        found = path if isinstance(key, bool) else _boolean_name(entry, path)
        if found:
            return found
    return None


@functools.lru_cache(2048)
def _parse(text: str, name: str) -> Any:
    """Parse a file's text, once while it is the same: a report and a sweep read each config many times."""
    file = io.StringIO(text)
    file.name = name  # for the parser's messages
    layer = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    if isinstance(layer, dict) and list(layer.values()) == [None]:
        root = compose(text)
        if isinstance(root, ScalarNode):  # OmegaConf takes plain text as a setting without a value
            return root.value
    return layer


def read_settings(settings: Mapping[str, Any], whose: Trust = "all") -> dict[str, Any]:
    """Settings given as a dict, merged over the experiment that they extend."""
    layer: Any = _plain(settings)
    parent = layer.pop("extends", None)
    return layer if parent is None else merge(read(find(str(parent)), (), whose), layer)


def _plain(value: Any) -> Any:
    """Nested settings with dicts and lists of their own, as YAML has them."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return str(value) if isinstance(value, Path) else value


def merge(base: Any, over: Any, key: str = "") -> Any:
    """Merge `over` onto `base`. A part with a new name drops the settings of the old one."""
    base, over = _sections(base, over, key)
    if not isinstance(base, dict) or not isinstance(over, dict):
        return over
    if key in PARTS:
        renamed = "name" in over and over["name"] != base.get("name", DEFAULT_NAMES.get(key, over["name"]))
        switched = ("run" in over and "run" not in base) or ("name" in over and "run" in base)
        if renamed or switched:
            return over
    return _united(base, over, merge)


def _sections(base: Any, over: Any, key: str) -> tuple[Any, Any]:
    """Write a short form out where it meets the settings of its section: `policy: random`, `lm: embedded`."""
    short = "name" if key in PARTS else SHORT_FORM
    if isinstance(base, dict) and isinstance(over, str):
        over = {short: over}
    elif isinstance(base, str) and isinstance(over, dict):
        base = {short: base}
    return base, over


def _united(base: dict[str, Any], over: dict[str, Any], join: typing.Callable[[Any, Any, str], Any]) -> dict[str, Any]:
    """Return the settings of both; `join` decides about those that are in both."""
    united = dict(base)
    for name, value in over.items():
        joined = join(united[name], value, name) if name in united else value
        if SHORT_FORM in united:
            united.pop(name, None)  # goes last: of a short form and the setting it stands for, the later one counts
        united[name] = joined
    return united


def parse_overrides(overrides: list[str] | str) -> dict[str, Any]:
    """Parse `key=value` words, or a single one, into nested settings. Words about one section unite in any order."""
    overrides = [overrides] if isinstance(overrides, str) else list(overrides)
    layer: dict[str, Any] = {}
    for word in overrides:
        _demand_assignment(word)
        try:
            nested: Any = copy.deepcopy(_parse_override(word))
        except UNREADABLE as error:
            key, _, value = word.partition("=")
            shown = repr(value if len(value) <= 60 else f"{value[:60]}…")
            cure = _sweep_hint(value) if "],[" in value.replace(" ", "") else ""
            raise ConfigError(f"{ascii(key)[1:-1]}: cannot read {shown} as YAML: {_reason(error)}{cure}") from None
        layer = _unite(layer, nested, "", word)
    return layer


def split_settings(text: str) -> list[str]:
    """The words of settings that follow a name: `depth=6,ties=first`, `grid_size=[4,5],seed=1`."""
    return re.split(r",(?=[\w.]+=)", text) if text else []


def _reason(error: Exception) -> str:
    """A sentence about text that is no YAML; the parser's own message takes several lines."""
    match error:
        case MarkedYAMLError(problem=str(problem), problem_mark=mark) if mark is not None:
            return f"{problem}, line {mark.line + 1}, column {mark.column + 1}"
        case ReaderError(reason=reason, position=position):
            return f"{reason}, at character {position + 1}"
        case RecursionError():
            return "too many brackets inside brackets"
        case KeyError() | AttributeError():
            return "the value does not fit its tag"
        case IndexError():
            return "the name of the setting ends too early"
    return str(error).partition("\n")[0]


@functools.lru_cache(1024)
def _parse_override(word: str) -> Any:
    """Parse one word, once: the runs of a sweep share most of theirs."""
    return OmegaConf.to_container(OmegaConf.from_dotlist([word]), resolve=False)


def _demand_assignment(word: str) -> None:
    """Refuse a word that gives no setting a value."""
    if "=" not in word or word.startswith("="):
        raise ConfigError(f"'{word}': expected key=value, for example train.total_steps=100000")
    if not all(word.partition("=")[0].split(".")):
        raise ConfigError(f"'{word}': the name of a setting has a dot too many")


def _unite(base: Any, over: Any, key: str, word: str) -> Any:
    """Add the settings of one more word; unlike in `merge`, another name drops nothing."""
    base, over = _sections(base, over, key)
    if isinstance(base, dict) and isinstance(over, dict):
        return _united(base, over, lambda old, new, name: _unite(old, new, name, word))
    if isinstance(base, dict) != isinstance(over, dict) and base is not None and over is not None:
        raise ConfigError(f"'{word}': another override gives '{key}' as {base!r}; remove one of the two")
    return over


def sweep(overrides: list[str]) -> list[list[str]]:
    """Return every combination of comma-separated values; commas inside brackets or double quotes do not separate."""
    choices = []
    for word in overrides:
        _demand_assignment(word)
        key, _, value = word.partition("=")
        parts, depth, quoted = [""], 0, False
        for sign in value:
            quoted ^= sign == '"' and not parts[-1].endswith("\\")
            depth += 0 if quoted else (sign in "[{(") - (sign in ")}]")
            if sign == "," and depth == 0 and not quoted:
                parts.append("")
            else:
                parts[-1] += sign
        choices.append([f"{key}={part}" for part in parts])
    return [list(combination) for combination in itertools.product(*choices)]


# Checking ---------------------------------------------------------------------------------------------


def resolve(layer: dict[str, Any], experiment: str, whose: Trust = "signed", signed: bool = False) -> Config:
    """Check merged layers, fill in defaults, and return the config.

    `whose`: runs that the config names may have foreign settings if they are `signed` by this user, or `all` may.
    With `shown` the config can be shown but not played: nothing foreign is looked up, except code of a config that is
    `signed` itself and whose modules are imported already.
    """
    with _unreadable():
        known = interpolate(layer, call=whose != "shown")
        if whose == "shown" and signed:
            known = _with_own_numbers(layer, known)
    layer = known.settings
    read_part = functools.partial(_shown_part, signed=signed) if whose == "shown" else part
    _demand_sections(layer, experiment)
    if layer.get("schema", SCHEMA) != SCHEMA:
        raise ConfigError(f"schema: this version reads schema {SCHEMA}, got {layer['schema']!r}")
    world = read_part(registry.WORLDS, layer.get("world"), "world")
    groups = layer.get("groups")
    if not isinstance(groups, dict) or not groups:
        raise ConfigError("groups: at least one group is needed, for example groups: {team: {agents: 'agent_*'}}")
    if SHORT_FORM in groups:
        raise ConfigError(f"groups: expected groups by name, got {groups[SHORT_FORM]!r}")
    for name in map(str, groups):
        if "/" in name or name.startswith("."):  # files and metrics are named by groups
            raise ConfigError(f"groups: a group's name has no '/' and does not begin with '.', got '{name}'")
    train = settings_from(TrainSettings, layer.get("train") or {}, "train")
    if train.stop is not None and train.stop.group not in (None, *groups):
        raise ConfigError(f"train.stop.group: no group '{train.stop.group}'; there are {', '.join(map(str, groups))}")
    seed = _value(int, layer.get("seed", 0), "seed")
    _ranged(lambda: at_least("seed", seed, 0), "seed")
    name = _value(str, layer.get("experiment", experiment), "experiment")
    if not name or Path(name).is_absolute() or ".." in Path(name).parts:  # runs/NAME is where its runs go
        raise ConfigError(f"experiment: expected a name such as 'mine' or 'ablations/mine', got '{name}'")
    groups = {str(group): _group(settings, f"groups.{group}", read_part) for group, settings in groups.items()}
    config = Config(world, groups, train, seed, name, whose)
    written = known.literal | known.calls
    return dataclasses.replace(config, interpolated=_interpolations(written, config)) if written else config


def _with_own_numbers(layer: dict[str, Any], known: Interpolated) -> Interpolated:
    """The seed and the settings of training from outside as they are used: those of a user's own run can be shown."""
    if not any(path[0] in ("seed", "train") for path in known.calls):
        return known
    used = interpolate({name: value for name, value in layer.items() if name in ("seed", "train")}, call=True).settings
    return known._replace(settings=known.settings | used)


def _interpolations(written: dict[interpolation.Path, Any], config: Config) -> dict[interpolation.Path, Interpolation]:
    """The texts for settings that come from outside, by path; a world's id is the end of its name."""
    plain, found = to_dict(config), dict[interpolation.Path, Interpolation]()
    if "/" in str(name := written.get(("world", "name"), "")):
        written = written | {("world", "id"): str(name).partition("/")[2]}
    for path, text in written.items():
        at = _section(plain, path)
        last = next(iter(at), "") if path[-1] == SHORT_FORM else path[-1]  # of a short form: the first setting
        if last in at and at[last] != text:
            found[*path[:-1], last] = Interpolation(text, at[last])
    return found


def _section(settings: Any, path: interpolation.Path) -> dict[str, Any]:
    """The section of plain settings in which a path ends; empty where there is none."""
    for step in path[:-1]:
        settings = settings.get(step) if isinstance(settings, dict) else None
    return settings if isinstance(settings, dict) else {}


def _shown_part(table: dict[str, str], value: Any, path: str, signed: bool) -> Part:
    """A part that is only shown: one with foreign settings keeps them as they are written."""
    given = {"name": value} if isinstance(value, str) else value
    if not isinstance(given, dict):
        return part(table, value, path)
    found = trust.foreign(given, path)
    if signed:  # servers and files are this user's own
        found = [one for one in found if one.kind == "environment" or (one.kind == "code" and not one.imported)]
    if not found:
        return part(table, value, path)
    name = given.get("name", DEFAULT_NAMES.get(path.rpartition(".")[2], ""))
    return Part(str(name), AsWritten({key: entry for key, entry in given.items() if key != "name"}))


def shown_class(table: dict[str, str], one: Part) -> Any:
    """The class of a part of a run that is shown; None where it is foreign."""
    return None if _unread(one) else lookup.look_up(table, one.name)


def _unread(one: Part) -> bool:
    return isinstance(one.settings, AsWritten)


def _plain_settings(one: Part) -> dict[str, Any]:
    return one.settings.values if isinstance(one.settings, AsWritten) else dataclasses.asdict(one.settings)


@contextlib.contextmanager
def _unreadable() -> typing.Iterator[None]:
    """Name the setting whose interpolation fails."""
    try:
        yield
    except OmegaConfBaseException as error:
        at = error.full_key or "settings"
        raise ConfigError(f"{at}: cannot be resolved: {_reason(error)}") from None


def _demand_sections(layer: dict[str, Any], experiment: str) -> None:
    """Raise if the config has a section that does not exist; a setting without its section is told where it belongs."""
    present = {name: value for name, value in layer.items() if name in SECTIONS}
    for name in map(str, layer):
        if name not in SECTIONS and not suggest(name, SECTIONS):
            paths = _paths_to(name, resolve(present, experiment))
            if paths:
                raise ConfigError(f"{name}: no such setting; did you mean {' or '.join(map(repr, paths))}?")
    _only(layer, SECTIONS, "")


def _paths_to(name: str, config: Config) -> list[str]:
    """Paths of the settings and sections with this name."""
    split = [path.split(".") for path in leaves(to_dict(config))]
    return list(dict.fromkeys(".".join(steps[: steps.index(name) + 1]) for steps in split if name in steps))


def load(
    experiment: str | Path | Mapping[str, Any], overrides: list[str] | str | None = None, whose: Trust = "signed"
) -> Config:
    """Load an experiment by name, file or settings, with overrides.

    Its author is this user, so it may name code; of the runs that it names or extends, those of `whose` may.
    """
    if isinstance(experiment, Mapping):
        layer, name = read_settings(experiment, whose), "experiment"
    else:
        path = find(str(experiment))
        layer, name = read(path, (), whose), name_of(path)
    return resolve(merge(layer, parse_overrides(overrides or [])), name, whose)


def to_dict(config: Config) -> dict[str, Any]:
    """Return the config with every default as plain values; `resolve` accepts them.

    What comes from outside, such as the environment, stands there as it is written: `${oc.env:NAME}`.
    """

    def written(value: Part | SeatedRun | None) -> dict[str, Any] | None:
        match value:
            case None:
                return None
            case SeatedRun():
                return dataclasses.asdict(value)
            case Part(name):
                return {"name": name} | _plain_settings(value)

    groups = {
        name: {
            "agents": list(group.agents),
            "parameters": group.parameters,
            "policy": written(group.policy),
            "learner": written(group.learner),
            "preference": written(group.preference),
            "advisor": written(group.advisor),
            "constraints": written(group.constraints),
            "start": written(group.start),
        }
        for name, group in config.groups.items()
    }
    plain = {
        "schema": SCHEMA,
        "experiment": config.experiment,
        "seed": config.seed,
        "world": written(config.world),
        "groups": groups,
        "train": dataclasses.asdict(config.train),
    }
    result: dict[str, Any] = json.loads(json.dumps(plain))  # tuples become lists
    for path, one in config.interpolated.items():
        at, last = _section(result, path), path[-1]
        if last in at and at[last] == one.value:  # a study may have replaced it
            at[last] = one.text
    return result


def leaves(tree: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Nested settings as path -> value."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        at = f"{path}.{name}" if path else str(name)
        found |= leaves(value, at) if isinstance(value, dict) and value else {at: value}
    return found


def changed_paths(changes: dict[str, Any]) -> frozenset[str]:
    """The paths of the settings that overrides set; that of a section is its first setting's: `lm=embedded`."""
    return frozenset(path.removesuffix(f".{SHORT_FORM}") for path in leaves(changes))


def to_yaml(config: Config) -> str:
    """Return the resolved config as YAML."""
    return _dump(json.dumps(to_dict(config)))


@functools.lru_cache(64)
def _dump(settings: str) -> str:
    """Settings in JSON as YAML, written out once: a run keeps its config twice and shows it in its report."""
    return OmegaConf.to_yaml(OmegaConf.create(json.loads(settings)))


ReadPart = typing.Callable[[dict[str, str], Any, str], Part]


def _group(value: Any, path: str, read_part: ReadPart) -> GroupConfig:
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: expected the settings of a group, got {value!r}")
    _only(value, ("agents", "parameters", "policy", "learner", "preference", "advisor", "constraints", "start"), path)
    agents = value.get("agents", "*")
    agents = (agents,) if isinstance(agents, str) else agents
    if not agents:
        raise ConfigError(f"{path}.agents: no agents are named; '*' matches all agents")
    policy = value.get("policy") or {}
    if isinstance(policy, dict) and "run" in policy:
        chosen: Part | SeatedRun = _seated_run(policy, f"{path}.policy")
    else:
        chosen = read_part(registry.POLICIES, policy, f"{path}.policy")

    def optional(table: dict[str, str], key: str) -> Part | None:
        given = value.get(key)
        if isinstance(given, dict) and given.get("name") == "none":
            rest = [str(name) for name in given if name != "name"]
            if rest:
                raise ConfigError(f"{path}.{key}: none has no settings, got {', '.join(rest)}")
            return None
        return None if given in (None, "none") else read_part(table, given, f"{path}.{key}")

    return GroupConfig(
        _value(tuple[str, ...], agents, f"{path}.agents"),
        chosen,
        optional(registry.LEARNERS, "learner"),
        read_part(registry.PREFERENCES, value.get("preference") or {}, f"{path}.preference"),
        _value(Parameters, value.get("parameters", "shared"), f"{path}.parameters"),
        optional(registry.ADVISORS, "advisor"),
        optional(registry.SHIELDS, "constraints"),
        _start(value.get("start"), chosen, f"{path}.start"),
    )


def _seated_run(value: dict[str, Any], path: str) -> SeatedRun:
    """An earlier run; its path is made absolute, so that the saved config does not depend on the working directory."""
    earlier: SeatedRun = settings_from(SeatedRun, value, path)
    return dataclasses.replace(earlier, run=str(Path(earlier.run).absolute()))


def _start(value: Any, policy: Part | SeatedRun, path: str) -> SeatedRun | None:
    if value in (None, "none"):
        return None
    if isinstance(policy, SeatedRun):
        raise ConfigError(f"{path}: the policy is that of a run already (policy.run={policy.run}); remove one of them")
    return _seated_run(_written_out(SeatedRun, value), path)


def part(table: dict[str, str], value: Any, path: str) -> Part:
    """Look up a component by name and check the other values against its settings."""
    if isinstance(value, str):
        value = {"name": value}
    kind = path.rpartition(".")[2]
    if isinstance(value, dict) and "name" not in value and kind in DEFAULT_NAMES:
        value = {"name": DEFAULT_NAMES[kind]} | value
    if not isinstance(value, dict) or "name" not in value:
        raise ConfigError(f"{path}.name: required setting is missing; one of {', '.join(table)}")
    name = value["name"]
    try:
        classes.of(table, str(name))
        settings_type = lookup.settings_type(table, str(name))
    except lookup.WrongClass as error:
        raise ConfigError(f"{path}: {error}") from None
    except LookupError as error:
        cure = _sweep_hint(name) or suggest(str(name), table)
        if kind == "world" and ":" in str(name) and "/" not in str(name) and ENV_ID.search(str(name)):
            cure += f"; an environment that a module registers is named gymnasium/{name}"
        raise ConfigError(f"{path}.name: {error}{cure}") from None
    rest = {key: item for key, item in value.items() if key != "name"}
    family, identity = lookup.family(table, str(name))
    if family.endswith("/"):  # gymnasium/CartPole-v1: the part after the slash is the setting `id`
        if not identity:
            raise ConfigError(f"{path}.name: '{name}' needs an id after the slash")
        rest["id"] = identity
    return Part(str(name), settings_from(settings_type, rest, path))


def settings_from(cls: type[Any], values: Any, path: str) -> Any:
    """Build a settings dataclass from plain values; raise on unknown, missing or mistyped ones."""
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected settings, got {values!r}")
    hints = lookup.type_hints(cls)
    _only(values, [spec.name for spec in dataclasses.fields(cls)], path)  # hints also name class variables
    made = {}
    for spec in dataclasses.fields(cls):
        at = f"{path}.{spec.name}"
        if spec.name not in values:
            if spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
                raise ConfigError(f"{at}: required setting is missing")
            continue
        nested = _nested(hints[spec.name])
        value = _written_out(nested, values[spec.name])
        made[spec.name] = (
            settings_from(nested, value, at) if nested and value is not None else _value(hints[spec.name], value, at)
        )
    return _ranged(lambda: cls(**made), path)


def _nested(hint: Any) -> type[Any] | None:
    """Return the dataclass in a hint such as `Stop` or `Stop | None`."""
    options = typing.get_args(hint) if isinstance(hint, python_types.UnionType) else (hint,)
    return next((option for option in options if dataclasses.is_dataclass(option)), None)  # type: ignore[return-value]  # a class, not an instance


def _written_out(nested: type[Any] | None, value: Any) -> Any:
    """Expand a string to the first setting of a section: `lm: embedded` is short for `lm: {name: embedded}`."""
    if nested is None or not (isinstance(value, str) or (isinstance(value, dict) and SHORT_FORM in value)):
        return value
    first = dataclasses.fields(nested)[0].name
    if lookup.type_hints(nested)[first] is not str:
        return value  # has no short form, which `settings_from` says
    if isinstance(value, str):
        return {first: value}
    last = [value[name] for name in value if name in (SHORT_FORM, first)][-1]
    return {name: item for name, item in value.items() if name != SHORT_FORM} | {first: last}


def _value(hint: Any, value: Any, path: str) -> Any:
    """Check one value strictly; integers are accepted as floats, 1e5 as an integer, and lists as tuples."""
    value = _switch(hint, _integral(hint, value))
    if _oversized(value):
        raise ConfigError(f"{path}: expected whole numbers of less than 64 bits, got {value!r}")
    try:
        text = json.dumps(value, allow_nan=False)
    except ValueError:
        raise ConfigError(f"{path}: expected finite numbers, got {value!r}") from None
    except TypeError:
        raise ConfigError(f"{path}: cannot be written in a config: {value!r}") from None
    try:
        return _adapter(hint).validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        reason = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
        if first["type"] == "literal_error":
            reason = f"one of {reason}"
        if isinstance(value, list) and first["type"] in ("missing", "too_long", "too_short"):
            reason = f"{len(typing.get_args(_tuple_in(hint)))} entries"
        elif isinstance(value, list) and len(first["loc"]) == 1 and isinstance(first["loc"][0], int):
            entry = first["loc"][0]
            raise ConfigError(f"{path}[{entry}]: expected {reason}, got {value[entry]!r}") from None
        raise ConfigError(f"{path}: expected {reason}, got {value!r}{_sweep_hint(value)}") from None


def _tuple_in(hint: Any) -> Any:
    """The tuple among the types that a setting may have."""
    options = (hint, *typing.get_args(hint))
    return next((option for option in options if typing.get_origin(option) is tuple), hint)


def _sweep_hint(value: Any) -> str:
    """Cures for several values of one setting: `1,2`, or a list where the setting takes a single value."""
    listed = isinstance(value, list) or (isinstance(value, str) and "," in value)
    return "; 'coterie train -m' trains one run for each of several values" if listed else ""


def _integral(hint: Any, value: Any) -> Any:
    """Return a float without a fraction as an integer where the hint has integers and no floats."""
    options = typing.get_args(hint) if isinstance(hint, python_types.UnionType) else (hint,)
    if isinstance(value, list) and tuple[int, ...] in options:
        return [_integral(int, item) for item in value]
    exact = isinstance(value, float) and value.is_integer() and int in options and float not in options
    return int(value) if exact else value


def _switch(hint: Any, value: Any) -> Any:
    """Return the word `on` or `off`, which YAML reads as a boolean, where the setting takes it."""
    word = "on" if value else "off"
    return word if isinstance(value, bool) and word in typing.get_args(hint) else value


def _oversized(value: Any) -> bool:
    """Whether a value has an integer that the arrays of NumPy and PyTorch cannot hold."""
    if isinstance(value, list | dict):
        return any(map(_oversized, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int) and abs(value) >= 2**63


@functools.cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint)


def _ranged(make: typing.Callable[[], Any], path: str) -> Any:
    try:
        return make()
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None


def _only(values: dict[str, Any], known: typing.Iterable[str], path: str) -> None:
    known = list(known)
    for key in values:
        if key == SHORT_FORM:
            raise ConfigError(f"{path}: expected settings, got {values[key]!r}")
        if key not in known:
            at = f"{path}.{key}" if path else str(key)
            raise ConfigError(
                f"{at}: no such setting{suggest(str(key), known) or '; known: ' + (', '.join(known) or 'none')}"
            )
