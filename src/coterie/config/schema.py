"""Reads YAML files and overrides into strict, typed settings.

Layers are merged (`extends` < file < overrides) and checked against the settings dataclasses, which are declared in the
modules that they configure. Errors name the path of the setting and, where possible, the fix. Only this file uses
OmegaConf and pydantic. It also declares the settings of the training loop, so that reading a config does not import the
loop.
"""

from __future__ import annotations

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import TypeAdapter, ValidationError
from yaml import MarkedYAMLError, ScalarNode, YAMLError, compose
from yaml.reader import ReaderError

from coterie.config import registry
from coterie.core import lookup
from coterie.core.group import Parameters
from coterie.core.lookup import suggest
from coterie.core.types import CoterieError
from coterie.core.validation import at_least


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
    "train.workers",
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
class Config:
    """A resolved experiment."""

    world: Part
    groups: dict[str, GroupConfig]
    train: TrainSettings
    seed: int = 0
    experiment: str = "experiment"


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


def read(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read a file and merge it over the file that it extends."""
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
    if parent is None:
        return layer
    return merge(read(find(str(parent), path.parent), (*seen, path)), layer)


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


def read_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings given as a dict, merged over the experiment that they extend."""
    layer: Any = _plain(settings)
    parent = layer.pop("extends", None)
    return layer if parent is None else merge(read(find(str(parent))), layer)


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


def resolve(layer: dict[str, Any], experiment: str) -> Config:
    """Check merged layers, fill in defaults, and return the config."""
    layer = _interpolated(layer)
    _demand_sections(layer, experiment)
    if layer.get("schema", SCHEMA) != SCHEMA:
        raise ConfigError(f"schema: this version reads schema {SCHEMA}, got {layer['schema']!r}")
    world = part(registry.WORLDS, layer.get("world"), "world")
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
    if train.workers and dataclasses.asdict(world.settings).get("processes"):
        raise ConfigError(
            "world.processes and train.workers cannot be used together: "
            "a worker cannot start processes; set one of them to 0"
        )
    seed = _value(int, layer.get("seed", 0), "seed")
    _ranged(lambda: at_least("seed", seed, 0), "seed")
    name = _value(str, layer.get("experiment", experiment), "experiment")
    if not name or Path(name).is_absolute() or ".." in Path(name).parts:  # runs/NAME is where its runs go
        raise ConfigError(f"experiment: expected a name such as 'mine' or 'ablations/mine', got '{name}'")
    groups = {str(group): _group(settings, f"groups.{group}") for group, settings in groups.items()}
    return Config(world, groups, train, seed, name)


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


def load(experiment: str | Path | Mapping[str, Any], overrides: list[str] | str | None = None) -> Config:
    """Load an experiment by name, file or settings, with overrides."""
    if isinstance(experiment, Mapping):
        return resolve(merge(read_settings(experiment), parse_overrides(overrides or [])), "experiment")
    path = find(str(experiment))
    return resolve(merge(read(path), parse_overrides(overrides or [])), name_of(path))


def to_dict(config: Config) -> dict[str, Any]:
    """Return the config with every default as plain values; `resolve` accepts them."""

    def written(value: Part | SeatedRun | None) -> dict[str, Any] | None:
        match value:
            case None:
                return None
            case SeatedRun():
                return dataclasses.asdict(value)
            case Part(name, settings):
                return {"name": name} | dataclasses.asdict(settings)

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
    return result


def leaves(tree: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Nested settings as path -> value."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        at = f"{path}.{name}" if path else str(name)
        found |= leaves(value, at) if isinstance(value, dict) and value else {at: value}
    return found


def to_yaml(config: Config) -> str:
    """Return the resolved config as YAML."""
    return _dump(json.dumps(to_dict(config)))


@functools.lru_cache(64)
def _dump(settings: str) -> str:
    """Settings in JSON as YAML, written out once: a run keeps its config twice and shows it in its report."""
    return OmegaConf.to_yaml(OmegaConf.create(json.loads(settings)))


def _interpolated(layer: dict[str, Any]) -> dict[str, Any]:
    if "${" not in repr(layer):  # the usual case, and a hundred times as fast
        return copy.deepcopy(layer)
    try:
        result = OmegaConf.to_container(OmegaConf.create(layer), resolve=True)
    except OmegaConfBaseException as error:
        at = error.full_key or "settings"
        raise ConfigError(f"{at}: cannot be resolved: {_reason(error)}") from None
    return typing.cast(dict[str, Any], result)


def _group(value: Any, path: str) -> GroupConfig:
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
        chosen = part(registry.POLICIES, policy, f"{path}.policy")

    def optional(table: dict[str, str], key: str) -> Part | None:
        given = value.get(key)
        if isinstance(given, dict) and given.get("name") == "none":
            rest = [str(name) for name in given if name != "name"]
            if rest:
                raise ConfigError(f"{path}.{key}: none has no settings, got {', '.join(rest)}")
            return None
        return None if given in (None, "none") else part(table, given, f"{path}.{key}")

    return GroupConfig(
        _value(tuple[str, ...], agents, f"{path}.agents"),
        chosen,
        optional(registry.LEARNERS, "learner"),
        part(registry.PREFERENCES, value.get("preference") or {}, f"{path}.preference"),
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
        settings_type = lookup.settings_type(table, str(name))
    except LookupError as error:
        cure = _sweep_hint(name) or suggest(str(name), table)
        if kind == "world" and isinstance(error, lookup.MissingAttribute) and ENV_ID.search(str(name)):
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
