"""A report's section on settings: what differs from the defaults and from the shipped experiment; all of it, folded."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from html import escape
from typing import Any

from coterie.config import schema
from coterie.config.schema import AsWritten, Config, Part, TrainSettings
from coterie.studies import html
from coterie.studies.compare.runs import flatten

NOT_SHOWN = {"schema", "experiment", "seed"}
ABSENT = "–"
ROLES = ("policy", "learner", "preference", "advisor", "constraints", "start")  # parts of a group


def report_section(config: Config) -> Iterable[str]:
    """The differences as a table, and the full config folded below it."""
    shipped = shipped_config(config)
    rows = list(difference_rows(config, shipped))
    changed = [row for row in rows if row[-1]]
    yield "<h2>Settings</h2>"
    if shipped is None:
        yield f"<p class=quiet>All settings of {escape(config.experiment)} that differ from the defaults.</p>"
    elif changed:
        yield f"<p>Changed from the shipped experiment {escape(config.experiment)}:</p>"
        yield _table("shipped", [[path, was, here] for path, _, was, here, _ in changed])
    else:
        yield f"<p>As shipped: the experiment {escape(config.experiment)}.</p>"
    if rows:
        table = _table("default", [[path, default, here] for path, default, _, here, _ in rows])
        title = f"{len(rows)} settings that differ from the defaults"
        yield table if shipped is None else html.folded(title, [table])
    yield html.folded("All settings", [f"<pre>{escape(schema.to_yaml(config))}</pre>"])


def _table(usual: str, rows: list[list[str]]) -> str:
    return html.table(["setting", usual, "here"], rows, "left")  # values are words as often as numbers


def shipped_config(config: Config) -> Config | None:
    """The experiment as it ships; None for an experiment that does not."""
    return schema.load(config.experiment) if config.experiment in schema.experiments() else None


def difference_rows(config: Config, shipped: Config | None) -> Iterable[tuple[str, str, str, str, bool]]:
    """Path, default, shipped value, value, and whether it was changed: of settings that are not as by default."""
    here, default = flatten(schema.to_dict(config)), defaults(config)
    there = here if shipped is None else flatten(schema.to_dict(shipped))
    for path in dict.fromkeys([*here, *there]):
        if path in NOT_SHOWN or (path == "world.id" and here.get("world.name", "").endswith(f"/{here.get(path)}")):
            continue
        changed = here.get(path) != there.get(path)
        if changed or here.get(path) != default.get(path):
            yield path, _written(default, path), _written(there, path), _written(here, path), changed


def defaults(config: Config) -> dict[str, Any]:
    """The settings of a table of these parts in which nothing is chosen, as path -> value.

    A world, a learner, an advisor and constraints are no default, whatever their name; neither is an earlier run.
    """
    groups: dict[str, Any] = {}
    for name, group in config.groups.items():
        found = groups[name] = {"agents": ["*"], "parameters": "shared"}
        for role in ROLES:
            one = getattr(group, role)
            usual = {"name": schema.DEFAULT_NAMES[role]} if role in ("policy", "preference") else {}
            found[role] = usual | _default_settings(one.settings) if isinstance(one, Part) else one and {}
    nested = {"world": _default_settings(config.world.settings), "groups": groups}
    train = dataclasses.asdict(TrainSettings())
    return flatten(json.loads(json.dumps(nested | {"train": train})))  # tuples become lists


def _default_settings(settings: Any) -> dict[str, Any]:
    """The default of every setting that has one."""
    if isinstance(settings, AsWritten):  # its class, which has them, is not imported
        return {}
    try:
        return dataclasses.asdict(type(settings)())
    except (TypeError, ValueError):  # a setting without a default, or defaults that do not fit together
        none, every = dataclasses.MISSING, dict[str, Any]()
        for one in dataclasses.fields(settings):
            if one.default is not none:
                every[one.name] = one.default
            elif one.default_factory is not none:
                every[one.name] = one.default_factory()
        nested = [name for name, v in every.items() if dataclasses.is_dataclass(v) and not isinstance(v, type)]
        return every | {name: dataclasses.asdict(every[name]) for name in nested}


def _written(settings: dict[str, Any], path: str) -> str:
    value = settings.get(path)
    if value is None:
        return ABSENT
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
