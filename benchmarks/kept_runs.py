"""Runs that a study keeps: trained once, and refused where they were trained with other settings than wanted now."""

from __future__ import annotations

from pathlib import Path

from coterie.config import schema
from coterie.runs.run import Run


def is_kept(path: Path, wanted: schema.Config) -> bool:
    """Whether a finished run with these settings is there; ends the study where its settings differ."""
    if not (path / "summary.json").exists():
        return False
    kept, now = (schema.leaves(schema.to_dict(config)) for config in (Run.open(path).config(), wanted))
    known = [name for name in {**kept, **now} if name not in schema.WITHOUT_EFFECT]
    differ = [
        f"{name}: {kept.get(name)} there, {now.get(name)} now" for name in known if kept.get(name) != now.get(name)
    ]
    if differ:
        listed = "\n  ".join(differ)
        raise SystemExit(f"{path}: trained with other settings; remove it, or choose another --runs\n  {listed}")
    return True
