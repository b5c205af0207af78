"""Shows a cross-play matrix: as text of 80 columns, as JSON, as a heat map."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.studies import figures
from coterie.studies.columns import columns
from coterie.studies.match.match import Pairing, Player, tally

NAME_WIDTH = 22


def short_names(paths: Sequence[str]) -> list[str]:
    """The last directories of each path, as many as it takes to tell them apart."""
    for depth in range(1, 10):
        names = ["/".join(Path(path).parts[-depth:]) for path in paths]
        if len(set(names)) == len(set(paths)):
            return names
    return list(paths)


def as_table(players: Sequence[Player], matrix: list[list[Pairing]]) -> str:
    """The matrix as text: mean return of the row player with its 95% interval, one block for each row player."""
    names = short_names([player.name for player in players])
    rows = [[_cells(shortened(other), entry) for other, entry in zip(names, row, strict=True)] for row in matrix]
    head = ["with", "return", "± 95%", "success", "won", "drew", "lost", "Elo", "distinct"]
    table = columns(head, [cells for row in rows for cells in row])
    lines = ["mean return on the first side, with each player on the second", f"  {table[0]}"]
    for number, name in enumerate(names):
        lines.append(name)
        lines += [f"  {line}" for line in table[1 + number * len(names) : 1 + (number + 1) * len(names)]]
    if "distinct" in table[0]:
        lines.append("distinct: different games among the episodes, where some were the same")
    return "\n".join(lines)


def shortened(name: str) -> str:
    """A name cut at its beginning, for a column."""
    return name if len(name) <= NAME_WIDTH else f"…{name[1 - NAME_WIDTH :]}"


def wrapped(name: str) -> list[str]:
    """A name in lines of at most NAME_WIDTH characters, broken after signs and spaces where it has any."""
    lines = [""]
    for part in re.findall(rf"[^-_/, ]{{1,{NAME_WIDTH - 2}}}[-_/, ]*", name) or [name]:
        if lines[-1] and len(lines[-1]) + len(part.rstrip()) > NAME_WIDTH:
            lines.append("")
        lines[-1] += part
    return [line.strip() for line in lines]


def _cells(other: str, entry: Pairing) -> list[str]:
    """The cells of one pairing; empty where one does not apply."""
    mean, bounds = entry.interval(entry.first)
    half = "" if bounds is None else f"± {(bounds[1] - bounds[0]) / 2:.2f}"
    success = "" if entry.success is None else f"{entry.success.mean():.0%}"
    counted = tally(entry)
    scores = ["", "", "", ""] if counted is None else counted.cells()
    few = entry.distinct_games < len(np.unique(entry.start))
    return [other, f"{mean:.2f}", half, success, *scores, str(entry.distinct_games) if few else ""]


def to_dict(players: Sequence[Player], matrix: list[list[Pairing]], episodes: int, seed: int) -> dict[str, Any]:
    """The matrix as JSON."""
    return {
        "players": [player.name for player in players],
        "episodes": episodes,
        "seed": seed,
        "matrix": [[pairing_to_dict(entry) for entry in row] for row in matrix],
    }


def pairing_to_dict(entry: Pairing) -> dict[str, Any]:
    """One entry of the matrix as JSON; without chance there are no intervals."""
    counted = tally(entry)
    mean, bounds = entry.interval(entry.first)
    other, other_bounds = entry.interval(entry.second)
    return {
        "return_mean": mean,
        "return_ci95": None if bounds is None else list(bounds),
        "other_return_mean": other,
        "other_return_ci95": None if other_bounds is None else list(other_bounds),
        "distinct_games": entry.distinct_games,
        "length_mean": float(entry.length.mean()),
        "success_rate": None if entry.success is None else float(entry.success.mean()),
        "wins": None if counted is None else counted.wins,
        "draws": None if counted is None else counted.draws,
        "losses": None if counted is None else counted.losses,
        "elo_difference": None if counted is None else counted.elo,
    }


def draw_heatmap(players: Sequence[Player], matrix: list[list[Pairing]]) -> bytes:
    """The mean returns of the row players as a PNG."""
    return draw_matrix([player.name for player in players], [[pairing_to_dict(one) for one in row] for row in matrix])


def draw_matrix(players: Sequence[str], matrix: Sequence[Sequence[Mapping[str, Any]]]) -> bytes:
    """As `draw_heatmap`, from names and the matrix of `to_dict`."""
    from matplotlib.figure import Figure

    names = short_names(players)
    labels = ["\n".join(wrapped(name)) for name in names]
    means = np.array([[entry["return_mean"] for entry in row] for row in matrix])
    size = 2.5 + 0.9 * len(players)
    figure = Figure(figsize=(size + 1.8, size), layout="compressed")  # equal sides of the cells
    axes = figure.add_subplot()
    image = axes.imshow(means, cmap=figures.HEAT)
    axes.set_xticks(range(len(labels)), labels, rotation=35, ha="right")
    axes.set_yticks(range(len(labels)), labels)
    figures.label_panel(axes, "mean return of the first side", "second side", "first side")
    axes.grid(visible=False)
    for i, row in enumerate(matrix):
        for j, entry in enumerate(row):
            shade = (means[i, j] - means.min()) / (np.ptp(means) or 1.0)
            bounds = entry["return_ci95"]
            words = f"{means[i, j]:.2f}".replace("-", "−") + (
                "" if bounds is None else f"\n± {(bounds[1] - bounds[0]) / 2:.2f}"
            )
            axes.text(j, i, words, ha="center", va="center", fontsize=9, color=figures.ink_on(shade))
    figure.colorbar(image, shrink=0.8, label="mean return")
    return figures.as_png(figure)
