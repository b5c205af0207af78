"""Draw how strong the Connect Four players of `docs/results/connect-four-alphazero.json` became, and how soon.

python benchmarks/connect_four_curve.py [--results FILE.json] [--out FILE.png]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from coterie.studies import figures
from coterie.studies.statistics import Estimate

RESULTS = Path(__file__).parent.parent / "docs/results/connect-four-alphazero.json"
RUNS = {"cpu": "2 cores", "one H200": "one H200"}
MINUTES = "minutes of training"
GAMES = "against alpha-beta of depth 4, {}, after {} random moves"
SEATS = ("first", "second")


def line(label: str, number: int, dash: int, x: Any, y: Any) -> figures.Series:
    """One curve of one run."""
    return figures.Series(label, figures.colour(number), np.array(x), Estimate(np.array(y), None, None), dash=dash)


def charts(results: dict[str, Any]) -> list[figures.Chart]:
    """Kept values by positions and by minutes, and games won by minutes."""
    by_positions, by_minutes, won = [], [], {seat: [] for seat in SEATS}
    for dash, (run, name) in enumerate(RUNS.items()):
        curve = results[run]["curve"]
        positions = [point["env_steps"] for point in curve]
        minutes = [point["wall_s"] / 60 for point in curve]
        for number, player in enumerate(("search", "network alone")):
            kept = [point["keeps the value"][player] for point in curve]
            for found, x in ((by_positions, positions), (by_minutes, minutes)):
                found.append(line(f"{player}, {name}", number, dash, x, kept))
        for seat in SEATS:
            for number, moves in ((2, 0), (3, 2)):
                shares = [point[GAMES.format(seat, moves)]["won"] / 200 for point in curve]
                won[seat].append(line(f"after {moves} random moves, {name}", number, dash, minutes, shares))
    players = results["cpu"]["curve"][0]["keeps the value"]
    names = {"search by random games": "search by random games", "random": "random moves"}
    others = tuple(figures.Reference(label, players[name]) for name, label in names.items())
    kept = "moves that keep the value"
    return [
        figures.Chart("1,000 positions", figures.STEPS, kept, tuple(by_positions), others, share=True),
        figures.Chart("The same by time", MINUTES, kept, tuple(by_minutes), others, share=True),
        *(
            figures.Chart(f"Games won as {seat} player", MINUTES, "share of 200", tuple(won[seat]), share=True)
            for seat in SEATS
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, default=RESULTS.with_suffix(".png"))
    args = parser.parse_args()
    caption = "64 simulations per move; one run each; games against alpha-beta of depth 4"
    figures.write_png(args.out, figures.charts_as_png(charts(json.loads(args.results.read_text())), caption))


if __name__ == "__main__":
    main()
