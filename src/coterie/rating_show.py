"""Ratings shown: as text of 80 columns, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.match import Player, short_names
from coterie.rating import Contest, Rating, Standing

NAME_WIDTH = 34


def as_table(contest: Contest, given: Sequence[Rating], found: Sequence[Standing]) -> str:
    """Scores with their intervals, and what they come from."""
    names = short_names([Player(standing.run, None) for standing in found])
    skipped = sum(rating.score is None for rating in given)
    head = f"{len(given) - skipped} pairs compared by {contest.judge}"
    lines = [head + (f", {skipped} skipped" if skipped else "")]
    lines.append(f"{'run':{NAME_WIDTH}}  {'score [95%]':>22}  {'won':>4} {'tied':>4} {'lost':>4}")
    for name, one in zip(names, found, strict=True):
        cut = name if len(name) <= NAME_WIDTH else f"…{name[1 - NAME_WIDTH :]}"
        score = f"{one.strength:.2f} [{one.low:.2f}, {one.high:.2f}]"
        lines.append(f"{cut:{NAME_WIDTH}}  {score:>22}  {one.wins:4} {one.ties:4} {one.losses:4}")
    lines.append("score: Bradley–Terry, in log odds; 1 above another is preferred 73 times of 100")
    return "\n".join(lines)


def as_plain(contest: Contest, given: Sequence[Rating], found: Sequence[Standing], ratings: Path) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "judge": contest.judge,
        "instruction": contest.instruction,
        "ratings": str(ratings),
        "pairs": sum(rating.score is not None for rating in given),
        "skipped": sum(rating.score is None for rating in given),
        "runs": [
            {
                "run": one.run,
                "strength": one.strength,
                "strength_ci95": [one.low, one.high],
                **{"wins": one.wins, "ties": one.ties, "losses": one.losses, "pairs": one.pairs},
            }
            for one in found
        ],
    }
