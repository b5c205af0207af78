"""Settings that a run keeps from start to end: its seed, those that define its problem, those that count its steps.

Rates, lengths, evaluations, records and places may change when a run is resumed (`history.py` keeps what held when).
The rest needs a new directory: `fork.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coterie.config.schema import WITHOUT_EFFECT, Config, ConfigError, to_dict
from coterie.runs.history import changed
from coterie.runs.run import Run

COUNTING = ("train.num_envs", "train.shards", "train.rollout_steps")  # steps are counted in iterations of these
OF_GROUPS = ("agents", "parameters", "policy", "preference", "constraints", "start", "learner.name", "learner.gamma")
PLACES = (  # where and how something is computed or asked, at the end of a path or in the middle of it
    *("lm", "device", "compiled", "precision", "deterministic", "engine_rows"),
    *("timeout", "restarts", "render"),
)


def refuse_other_problem(run: Run, before: Config, now: Config) -> None:
    """Refuse settings that a run keeps, also where somebody has changed its config.yaml."""
    refuse_other_counting(before, now)
    trained = [period.settings for period in run.history().periods[-1:]]
    edited = [change for settings in trained for change in changed(settings, to_dict(now))]
    for path, old, new in [*changes(before, now), *edited]:
        if defines_problem(path) and not _has_moved(path, old):
            raise ConfigError(
                f"{path}: a run keeps it from start to end; it is {_shown(old)} here, got {_shown(new)}. "
                f"'coterie resume {run.path} --fork OUT {path}=…' goes on with another in a new directory"
            )


def refuse_other_counting(before: Config, now: Config) -> None:
    """Refuse iterations of another length, in which steps and progress would be counted wrong."""
    for path, old, new in changes(before, now):
        if path in COUNTING:
            raise ConfigError(
                f"{path}: a run is counted in iterations, so it keeps their length; it is {old} here, got {new}"
            )


def refuse_without_effect(run: Run, before: Config, now: Config, steps: int) -> None:
    """Refuse settings that a finished run would ignore."""
    for path, _, _ in changes(before, now):
        if path != "train.total_steps" and not path.startswith("train.stop"):
            raise ConfigError(
                f"{path}: has no effect, as '{run.path}' has finished at {steps:,} steps; add train.total_steps=N "
                "to train on"
            )


def changes(before: Config, now: Config) -> list[tuple[str, Any, Any]]:
    """Path, old and new value of all settings that differ."""
    return list(changed(to_dict(before), to_dict(now), same_version=True))


def defines_problem(path: str) -> bool:
    """Whether a setting belongs to the seed, the world or what a group is and strives for."""
    parts = path.split(".")
    if path in WITHOUT_EFFECT:
        return False
    if parts[0] == "world":
        return parts[1] not in PLACES
    if parts[0] != "groups":
        return parts[0] == "seed"
    inside = ".".join(parts[2:])
    if any(part in PLACES for part in parts[2:]):
        return False
    return any(inside == fixed or inside.startswith(f"{fixed}.") for fixed in OF_GROUPS)


def _has_moved(path: str, old: Any) -> bool:
    """Whether a setting says where the run lies now from which a group took its policy."""
    place = Path(str(old))  # a run's path is stored as an absolute one; without a run there is none
    return path.endswith(("policy.run", "start.run")) and place.is_absolute() and not place.exists()


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)
