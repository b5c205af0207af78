"""The language models of a config: find them, check that they exist, and give them a cache in the run directory."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from coterie.config import registry
from coterie.config.schema import Config, ConfigError, GroupConfig, Origin, Part, suggest
from coterie.core.group import Actor
from coterie.core.settings import Settings
from coterie.core.types import Counters, as_metrics
from coterie.lm.ask.budget import BudgetSettings
from coterie.lm.ask.cache import CacheSettings
from coterie.lm.ask.http import HttpSettings
from coterie.lm.ask.interface import LMError, Missing
from coterie.lm.ask.key_hosts import LIST, Key, KeyHosts
from coterie.lm.ask.loading import BUILT_IN, LMSettings, backend_of, check_model, find_models
from coterie.training.evaluate import actor_metrics
from coterie.training.players import named_policy

ROLES = ("policy", "advisor", "constraints", "preference")
QUESTIONS, UNANSWERED = "lm/questions", "lm/unanswered"  # metrics of every role that asks a language model
OVER_BUDGET = "lm/refusals"  # calls that a budget denied
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


def refuse_foreign_keys(config: Config, groups: Collection[str] | None = None) -> None:
    """Raise an error if a run's config would send a key of this user to a server that the user has not listed.

    `groups`: those that are built; None: all. A model is the user's own if the user has named its server since the
    config was read, and its variable, unless that is the one of every server.
    """
    if config.origin is None:
        return
    allowed = KeyHosts.listed()
    for name in config.groups if groups is None else groups:
        group = config.groups[name]
        for path, model in (_models(name, group, ROLES) | _models_of_advising_policy(name, group)).items():
            if backend_of(model) != "http" or _is_own(config.origin, path, model):
                continue
            key = Key.of(model.name, model.http)
            if key.exists and not allowed.allow(key):
                raise ConfigError(
                    f"{path}: the run '{config.origin.run}' would send the key in {key.variable} to {key.server}; to "
                    f"allow it, set the environment variable {LIST}={key.entry}, or unset {key.variable} to send none"
                )


def _models_of_advising_policy(name: str, group: GroupConfig) -> dict[str, LMSettings]:
    """The language models of a policy that advises, which is named in one text: `language:lm=http://…`."""
    if group.advisor is None or group.advisor.name != "policy":
        return {}
    text, path = group.advisor.settings.policy, f"groups.{name}.advisor.policy"
    if text.partition(":")[0] not in registry.UNTRAINED:
        return {}
    return find_models(named_policy(text).settings, path)


def _is_own(origin: Origin, path: str, model: LMSettings) -> bool:
    """Whether this user has named a model's server and the variable of its key."""
    before, of_advising_policy, _ = path.partition(".advisor.policy.")
    if of_advising_policy:  # named in one text
        return origin.is_own(f"{before}.advisor.policy")
    named = origin.is_own(path) or origin.is_own(f"{path}.name")  # `lm=http://…` is short for `lm.name=http://…`
    usual = model.http.api_key_env == HttpSettings.api_key_env
    return named and (usual or origin.is_own(f"{path}.http.api_key_env"))


def _models(name: str, group: GroupConfig, roles: Sequence[str]) -> dict[str, LMSettings]:
    """A group's language models in these roles, by setting path."""
    found: dict[str, LMSettings] = {}
    for role in roles:
        chosen = getattr(group, role)
        found |= find_models(chosen.settings, f"groups.{name}.{role}") if isinstance(chosen, Part) else {}
    return found


def count_unanswered(metrics: Mapping[str, float]) -> dict[str, dict[str, int]]:
    """The questions of each language model that left some unanswered, by group and role, such as `team/advice`.

    `over_budget` counts the calls that a budget denied, each of one or more questions.
    """
    found = {}
    for key, missing in metrics.items():
        if key.endswith(UNANSWERED) and missing:
            where = key.removesuffix(UNANSWERED).rstrip("/")
            found[where] = {"questions": int(metrics[f"{where}/{QUESTIONS}"]), "unanswered": int(missing)}
            if denied := metrics.get(f"{where}/{OVER_BUDGET}"):
                found[where]["over_budget"] = int(denied)
    return found


def describe_unanswered(found: Mapping[str, Mapping[str, int]]) -> list[str]:
    """A sentence for each language model that left questions without an answer."""
    said = []
    for where, count in found.items():
        asked, missing = count["questions"], count["unanswered"]
        if asked == missing:
            said.append(
                f"{where}: no answer came from the language model ({asked:,} questions); the scores are not its"
            )
        else:
            share = missing / asked
            line = f"{where}: the language model left {missing:,} of {asked:,} questions unanswered ({share:.1%})"
            said.append(line + (", as its budget is spent" if "over_budget" in count else ""))
    return said


def refuse_silent_models(found: Mapping[str, Mapping[str, int]]) -> None:
    """Raise an error for a language model that answered nothing: the scores are not its own."""
    silent = [where for where, count in found.items() if count["questions"] == count["unanswered"]]
    if silent:
        raise LMError("; ".join(describe_unanswered({where: found[where] for where in silent})))


def actors_unanswered(actors: Sequence[Actor]) -> dict[str, dict[str, int]]:
    """As `count_unanswered`, for the policies, advisors and shields of actors."""
    return metrics_unanswered(actor_metrics(actors))


def metrics_unanswered(found: Mapping[str, Counters]) -> dict[str, dict[str, int]]:
    """As `count_unanswered`, for metrics by group."""
    return count_unanswered({f"{g}/{name}": v for g, mine in found.items() for name, v in as_metrics(mine).items()})


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
    if not is_dataclass(settings) or isinstance(settings, type):
        return settings
    if isinstance(settings, Settings) and not settings.remembers:
        return settings
    old = {spec.name: getattr(settings, spec.name) for spec in fields(settings)}
    new = {name: _with_cache(value, cache, f"{path}.{name}") for name, value in old.items()}
    changed = {name: value for name, value in new.items() if value is not old[name]}
    return replace(settings, **changed) if changed else settings
