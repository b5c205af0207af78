"""A report's section on settings: what differs from the defaults and from the shipped experiment; all of it, folded."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from html import escape
from typing import Any

from coterie.config import schema
from coterie.config.schema import Config, Part, TrainSettings
from coterie.studies import html
from coterie.studies.compare.runs import flatten

NOT_SHOWN = {"schema", "experiment", "seed"}
ABSENT = "–"


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
        yield html.table(["setting", "shipped", "here"], [[path, was, here] for path, _, was, here, _ in changed])
    else:
        yield f"<p>As shipped: the experiment {escape(config.experiment)}.</p>"
    if rows and shipped is None:
        yield html.table(["setting", "default", "here"], [[path, default, here] for path, default, _, here, _ in rows])
    elif rows:
        table = html.table(
            ["setting", "default", "here"], [[path, default, here] for path, default, _, here, _ in rows]
        )
        yield html.folded(f"{len(rows)} settings that differ from the defaults", [table])
    yield html.folded("All settings", [f"<pre>{escape(schema.to_yaml(config))}</pre>"])


def shipped_config(config: Config) -> Config | None:
    """The experiment as it ships; None for an experiment that does not."""
    return schema.load(config.experiment) if config.experiment in schema.experiments() else None


def difference_rows(config: Config, shipped: Config | None) -> Iterable[tuple[str, str, str, str, bool]]:
    """Path, default, shipped value, value, and whether it was changed: of settings that are not as by default."""
    here, default = flatten(schema.to_dict(config)), flatten(schema.to_dict(with_defaults(config)))
    there = here if shipped is None else flatten(schema.to_dict(shipped))
    for path in dict.fromkeys([*here, *there]):
        if path in NOT_SHOWN:
            continue
        changed = here.get(path, ABSENT) != there.get(path, ABSENT)
        if changed or here.get(path, ABSENT) != default.get(path, ABSENT):
            yield path, _written(default, path), _written(there, path), _written(here, path), changed


def with_defaults(config: Config) -> Config:
    """The same parts, all with their default settings; what has none keeps its own."""
    groups = {}
    for name, group in config.groups.items():
        parts = {key.name: getattr(group, key.name) for key in dataclasses.fields(group)}
        changed: dict[str, Any] = {key: _default(part) for key, part in parts.items() if isinstance(part, Part)}
        groups[name] = dataclasses.replace(group, **changed)
    return dataclasses.replace(config, world=_default(config.world), groups=groups, train=TrainSettings())


def _default(part: Part) -> Part:
    try:
        return Part(part.name, type(part.settings)())
    except (TypeError, ValueError):  # a setting without a default, or defaults that do not fit together
        return part


def _written(settings: dict[str, Any], path: str) -> str:
    if path not in settings:
        return ABSENT
    value = settings[path]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
