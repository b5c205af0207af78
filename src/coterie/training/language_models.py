"""The language models of a config: find them, check that they exist, and give them a cache in the run directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from coterie.config.schema import Config, ConfigError, GroupConfig, Part, suggest
from coterie.lm.interface import Missing
from coterie.lm.loading import BUILT_IN, LMSettings, check_model
from coterie.lm.wrappers.budget import BudgetSettings
from coterie.lm.wrappers.cache import CacheSettings

ROLES = ("policy", "advisor", "constraints", "preference")
ANSWERS = "answers.sqlite"  # in a run's folder


def refuse_split_budgets(groups: dict[str, GroupConfig]) -> None:
    """Raise an error for a budget that several processes would share: who spends it would depend on their timing."""
    for name, group in groups.items():
        for path, model in _models(name, group, ROLES[:-1]).items():  # preferences live in the learning process
            if model.budget is not None:
                raise ConfigError(f"{path}.budget: a budget cannot be shared by train.workers; set train.workers=0")


def refuse_unknown_models(groups: dict[str, GroupConfig]) -> None:
    """Raise an error for a model that does not exist, before the run starts."""
    for name, group in groups.items():
        for path, model in _models(name, group, ROLES).items():
            try:
                check_model(model)
            except (Missing, ValueError) as error:
                raise ConfigError(f"{path}: {error}{suggest(model.name, BUILT_IN)}") from None


def _models(name: str, group: GroupConfig, roles: Sequence[str]) -> dict[str, LMSettings]:
    """A group's language models in these roles, by setting path."""
    found: dict[str, LMSettings] = {}
    for role in roles:
        chosen = getattr(group, role)
        found |= find_models(chosen.settings, f"groups.{name}.{role}") if isinstance(chosen, Part) else {}
    return found


def find_models(settings: Any, path: str) -> dict[str, LMSettings]:
    """Every language model in a settings object, by setting path."""
    if isinstance(settings, LMSettings):
        return {path: settings}
    found: dict[str, LMSettings] = {}
    for spec in fields(settings) if is_dataclass(settings) else ():
        found |= find_models(getattr(settings, spec.name), f"{path}.{spec.name}")
    return found


def keep_answers(config: Config, folder: Path) -> Config:
    """The config with a cache in the run directory for every model that has none.

    A resumed run then asks nothing twice, and its budgets know what was spent.
    """
    cache = CacheSettings(str(folder / ANSWERS))
    groups = {}
    for name, group in config.groups.items():
        kept: dict[str, Any] = {}
        for role in ROLES:
            part = getattr(group, role)
            if isinstance(part, Part):
                kept[role] = replace(part, settings=_with_cache(part.settings, cache, f"{name}.{role}"))
        groups[name] = replace(group, **kept)
    return replace(config, groups=groups)


def _with_cache(settings: Any, cache: CacheSettings, path: str) -> Any:
    if isinstance(settings, LMSettings):
        if settings.cache is not None:
            return settings
        budget = settings.budget
        if budget is not None and budget.account == BudgetSettings.account:  # models share the file, not their limits
            budget = replace(budget, account=path)
        return replace(settings, cache=cache, budget=budget)
    if not is_dataclass(settings) or isinstance(settings, type) or not getattr(settings, "remembers", True):
        return settings
    old = {spec.name: getattr(settings, spec.name) for spec in fields(settings)}
    new = {name: _with_cache(value, cache, f"{path}.{name}") for name, value in old.items()}
    changed = {name: value for name, value in new.items() if value is not old[name]}
    return replace(settings, **changed) if changed else settings
