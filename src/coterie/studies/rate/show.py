"""Ratings shown: as text of 80 columns, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coterie.studies.match import Player, short_names
from coterie.studies.rate.rate import Rating, RatingSession, Standing, most_pairs

NAME_WIDTH = 34


def as_table(contest: RatingSession, given: Sequence[Rating], found: Sequence[Standing]) -> str:
    """Scores with their intervals, and what they come from; without any comparison there are none."""
    names = short_names([Player(standing.run, None) for standing in found])
    skipped = sum(rating.score is None for rating in given)
    compared = len(given) - skipped
    head = f"{compared or 'no'} {'pair' if compared == 1 else 'pairs'} compared by {contest.judge}"
    lines = [head + (f", {skipped} skipped" if skipped else "")]
    if not compared:
        return lines[0]
    lines.append(f"{'run':{NAME_WIDTH}}  {'score [95%]':>22}  {'won':>4} {'tied':>4} {'lost':>4}")
    for name, one in zip(names, found, strict=True):
        cut = name if len(name) <= NAME_WIDTH else f"…{name[1 - NAME_WIDTH :]}"
        score = f"{one.strength:.2f} [{one.low:.2f}, {one.high:.2f}]"
        lines.append(f"{cut:{NAME_WIDTH}}  {score:>22}  {one.wins:4} {one.ties:4} {one.losses:4}")
    lines.append("score: Bradley–Terry, in log odds; 1 above another is preferred 73 times of 100")
    return "\n".join(lines)


def progress(contest: RatingSession, given: Sequence[Rating], wanted: int) -> str:
    """What is left of the pairs that were asked for; there are only so many."""
    most = most_pairs(contest)
    if len(given) < min(wanted, most):
        return f"; {min(wanted, most) - len(given)} of {min(wanted, most)} are open, the same command goes on"
    if wanted <= most:
        return ""
    return f"; there are {most} pairs, all of them seen: raise --episodes for more"


def to_dict(
    contest: RatingSession, given: Sequence[Rating], found: Sequence[Standing], ratings: Path
) -> dict[str, Any]:
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
