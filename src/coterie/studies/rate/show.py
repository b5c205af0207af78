"""Shows ratings: as text of 80 columns, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.preferences.ratings import Rating, RatingSession
from coterie.studies.match.show import short_names
from coterie.studies.rate.rate import Standing, max_pairs

NAME_WIDTH = 34


def as_table(session: RatingSession, ratings: Sequence[Rating], standings: Sequence[Standing]) -> str:
    """Scores with their intervals and counts; a single line while no pair has been compared."""
    names = short_names([standing.run for standing in standings])
    skipped = sum(rating.score is None for rating in ratings)
    compared = len(ratings) - skipped
    head = f"{compared or 'no'} {'pair' if compared == 1 else 'pairs'} compared by {session.judge}"
    lines = [head + (f", {skipped} skipped" if skipped else "")]
    if not compared:
        return lines[0]
    lines.append(f"{'run':{NAME_WIDTH}}  {'score [95%]':>22}  {'won':>4} {'tied':>4} {'lost':>4}")
    for name, one in zip(names, standings, strict=True):
        cut = name if len(name) <= NAME_WIDTH else f"…{name[1 - NAME_WIDTH :]}"
        score = f"{one.strength:.2f} [{one.low:.2f}, {one.high:.2f}]"
        lines.append(f"{cut:{NAME_WIDTH}}  {score:>22}  {one.wins:4} {one.ties:4} {one.losses:4}")
    lines.append("score: Bradley–Terry, in log odds; a run 1 above another wins 73% of pairs")
    return "\n".join(lines)


def progress(session: RatingSession, ratings: Sequence[Rating], wanted: int) -> str:
    """A line on the wanted pairs that are left; "" if none are."""
    most = max_pairs(session)
    if len(ratings) < min(wanted, most):
        return f"open     {min(wanted, most) - len(ratings)} of {min(wanted, most)} pairs; the same command continues"
    if wanted <= most:
        return ""
    return f"open     none, all {most} pairs are rated; raise --episodes for more"


def to_dict(
    session: RatingSession, ratings: Sequence[Rating], standings: Sequence[Standing], path: Path
) -> dict[str, Any]:
    """Scores and counts as JSON."""
    return {
        "judge": session.judge,
        "instruction": session.instruction,
        "ratings": str(path),
        "pairs": sum(rating.score is not None for rating in ratings),
        "skipped": sum(rating.score is None for rating in ratings),
        "runs": [
            {
                "run": one.run,
                "strength": one.strength,
                "strength_ci95": [one.low, one.high],
                **{"wins": one.wins, "ties": one.ties, "losses": one.losses, "pairs": one.pairs},
            }
            for one in standings
        ],
    }
