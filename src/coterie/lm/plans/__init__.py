"""Plan tables: which skills a planner chose in which text states, in JSON files that people can read and edit.

The tables that Coterie ships lie in this folder. A table replays a planner without its model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core.types import Array

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class PlanTable:
    """Probabilities of skills for each text state."""

    skills: tuple[str, ...]
    plans: Mapping[str, Array]  # text -> [S], sums to 1
    about: Mapping[str, Any] = field(default_factory=dict)  # who made it, for readers

    def of(self, texts: Sequence[str]) -> Array:
        """The probabilities of the skills `[R, S]`; NaN for a text that is not in the table."""
        unknown = np.full(len(self.skills), np.nan)
        return np.array([self.plans.get(text, unknown) for text in texts]).reshape(-1, len(self.skills))

    def write(self, path: str | Path) -> None:
        """Write the table: one text per line, its skills by probability, those of no weight left out."""
        lines = []
        for text, row in sorted(self.plans.items()):
            ranked = sorted(zip(self.skills, row.tolist(), strict=True), key=lambda pair: -pair[1])
            shown = {name: round(value, 4) for name, value in ranked if round(value, 4) > 0}
            lines.append(f"    {json.dumps(text)}: {json.dumps(shown)}")
        head = {"about": dict(self.about), "skills": list(self.skills)}
        parts = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
        body = ",\n".join(lines)
        whole = "{\n" + ",\n".join([*parts, f'  "plans": {{\n{body}\n  }}']) + "\n}\n"
        Path(path).write_text(whole, encoding="utf-8")


def read(name: str, skills: Sequence[str]) -> PlanTable:
    """Read a table by path or by the name of a shipped one, for a world with these skills."""
    path = Path(name)
    if not path.is_file():
        path = FOLDER / f"{name}.json"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in FOLDER.glob("*.json"))) or "none"
        raise ValueError(f"plans: there is no file '{name}', and no table of that name is shipped (there are: {known})")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        rows = {str(text): dict(row) for text, row in content["plans"].items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"plans: {path} is not a plan table with an entry 'plans': {error!r}") from None
    if not rows:
        raise ValueError(f"plans: {path} has no plans; 'coterie plans' writes a table")
    return PlanTable(tuple(skills), {text: _row(path, text, row, skills) for text, row in rows.items()})


def _row(path: Path, text: str, row: dict[str, Any], skills: Sequence[str]) -> Array:
    """The probabilities of one text `[S]`, normalised."""
    for skill, value in row.items():
        if skill not in skills:
            raise ValueError(f"plans: {path}, '{text}': '{skill}' is not one of {', '.join(skills)}")
        if not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise ValueError(f"plans: {path}, '{text}', '{skill}': expected a weight of at least 0, got {value!r}")
    weights = np.array([float(row.get(skill, 0.0)) for skill in skills])
    if not weights.sum() > 0:
        raise ValueError(f"plans: {path}, '{text}': some skill needs a weight above 0")
    return weights / weights.sum()
