"""The auction's chapter in a report: bid curves beside ideal ones, and tables by group and for the seller.

Where the numbers come from is in `auction_measures.py`.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from coterie import statistics
from coterie.page import COLOURS, Chapter, as_png, draw_estimate, dress, picture, table
from coterie.run import Run
from coterie.types import Array
from coterie.worlds.auction import AuctionSettings
from coterie.worlds.auction_measures import MEASURES, OUTCOMES, Judged, Theory, judge_runs, sets, summarise

SHARES = ("loss", "regret", "efficiency", "highest_wins")  # shown as percentages
UNKNOWN = "–"  # a number that is not known
LEAST = 0.1  # the share of the highest valuation from which on bid / valuation is drawn


def chapter(runs: Sequence[Run]) -> Chapter:
    """Everything for runs of one experiment; those whose tables differ are shown one set after the other."""
    ready = [run for run in runs if run.steps()]
    parts = ["<h2>Bids</h2>"]
    for run in runs:
        if run not in ready:
            parts.append(f"<p class=quiet>{html.escape(run.path.name)} has no policies yet; it is left out here.</p>")
    if not ready:
        return Chapter(parts, {}, {"tables": []})
    found = [judge_runs(members) for members in sets(ready)]
    png = draw(found)
    parts.append(picture(png, "image/png", "bids, and bids as shares of valuations, beside the oracle's"))
    numbers = [summarise(*one) for one in found]
    for (theory, judged), plain in zip(found, numbers, strict=True):
        parts += _words(theory, len(judged), several=len(found) > 1)
        parts += [_group_table(plain), _seller_table(plain)]
    return Chapter(parts, {"bids": png}, {"tables": numbers})


# Words --------------------------------------------------------------------------------------------------


def name_table(settings: AuctionSettings) -> str:
    """A table in a few words."""
    words = [f"{settings.num_bidders} bidders", settings.rule.replace("_", " "), settings.valuations.name]
    words += [f"reserve {settings.reserve:g}"] if settings.reserve else []
    words += [f"{settings.bid_levels} bids"] if settings.bid_levels else []
    words += [f"{settings.rounds} rounds"] if settings.rounds > 1 else []
    words += [] if settings.budget is None else [f"budget {settings.budget:g}"]
    return ", ".join(words)


def _words(theory: Theory, runs: int, several: bool) -> Iterable[str]:
    """What is to be known before the tables are read."""
    if several:
        yield f"<h3>{html.escape(name_table(theory.settings))}</h3>"
    words = ["Greedy bids of the last policies, not of the best paid: rivals are paid best while all bid too little."]
    if runs > 1:
        words.append(f"Means of {runs} runs, with 95% intervals by bootstrap over the runs.")
    if theory.ideal is not None:
        solved = "symmetric equilibrium" if theory.one_ideal else "equilibrium of this mixed table, solved numerically"
        words.append(f"The oracle is the {solved}.")
    yield f"<p class=quiet>{html.escape(' '.join([*words, *theory.remarks]))}</p>"


def _cell(name: str, plain: Any) -> str:
    """A number, with its interval where it has one."""
    if plain is None:
        return UNKNOWN
    if not isinstance(plain, dict):
        return f"{plain:.2%}" if name in SHARES else f"{plain:.4f}"
    bounds = plain["interval"]
    shown = "" if bounds is None else f" [{_cell(name, bounds[0])}, {_cell(name, bounds[1])}]"
    return _cell(name, plain["value"]) + shown


def _group_table(plain: dict[str, Any]) -> str:
    """One column for each group."""
    groups = plain["groups"].values()
    rows = [["taste", *(one["taste"] for one in groups)], ["bidders", *(str(one["bidders"]) for one in groups)]]
    for name, words in MEASURES.items():
        rows.append([words, *(_cell(name, one["learned"][name]) for one in groups)])
        if name in ("payoff", "worth"):
            rows.append(["— in equilibrium", *(_cell(name, (one["oracle"] or {}).get(name)) for one in groups)])
    return table(["group", *plain["groups"]], [row for row in rows if set(row[1:]) != {UNKNOWN}])


def _seller_table(plain: dict[str, Any]) -> str:
    """What the auction yields, beside what it would in equilibrium."""
    columns = {"learned": "learned", "oracle": "in equilibrium", "neutral": "in equilibrium, all risk-neutral"}
    columns = {name: words for name, words in columns.items() if plain["auction"][name] is not None}
    rows = [
        [words, *(_cell(name, plain["auction"][column][name]) for column in columns)]
        for name, words in OUTCOMES.items()
    ]
    return table(["auction", *columns.values()], rows)


# The picture --------------------------------------------------------------------------------------------


def draw(found: Sequence[tuple[Theory, Sequence[Judged]]]) -> bytes:
    """Bids and bids as shares of valuations, one row for each set of runs, as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2 * len(found)), layout="constrained")
    for row, (theory, judged) in enumerate(found):
        bids, shares = (figure.add_subplot(len(found), 2, 2 * row + side) for side in (1, 2))
        values = theory.values
        _lines(bids, theory, judged, values, np.ones_like(values))
        kept = values >= max(LEAST * values[-1], 1e-6)
        _lines(shares, theory, judged, np.where(kept, values, np.nan), values)
        what = f"{name_table(theory.settings)}, {len(judged)} run{'s' if len(judged) > 1 else ''}"
        dress(bids, what, "valuation", "bid")
        dress(shares, "share of the valuation that is bid", "valuation", "bid / valuation")
        if (legend := shares.get_legend()) is not None:
            legend.remove()  # the same as its neighbour's
        shares.set_ylim(0, 1.05)
    longest = max(len(judged) for _, judged in found)
    if longest > 1:
        figure.supxlabel(
            "Lines: means over runs, but best responses of each run. Bands: 95% intervals by bootstrap.",
            fontsize=8,
            color="#666666",
        )
    return as_png(figure)


def _lines(axes: Any, theory: Theory, judged: Sequence[Judged], values: Array, unit: Array) -> None:
    """Learned curves with bands, ideal ones dashed, best responses dotted; all in a unit, [256]."""
    kept = np.isfinite(values)
    x, unit = values[kept], unit[kept]
    for colour, (name, members) in zip(COLOURS * 4, theory.members.items(), strict=False):
        rows = list(members)
        learned = np.stack([one.bids[rows][:, kept] / unit for one in judged], axis=-1)  # [A, V, R]
        if np.ptp(learned, axis=0).max() > 1e-6:  # bidders that differ: each of them, thin
            for own in learned.mean(axis=-1):
                axes.plot(x, own, color=colour, linewidth=0.6, alpha=0.5)
        mean = statistics.stratified_bootstrap([learned.mean(axis=0)], statistics.mean, statistics.bootstrap_stream())
        draw_estimate(axes, x, mean, f"{name}, learned", colour)
        for place, one in enumerate(judged):  # each: a mean of best responses is none
            best, label = one.best[rows].mean(axis=0)[kept] / unit, "" if place else f"{name}, best response"
            if np.isfinite(best).all():
                axes.plot(x, best, color=colour, linestyle=":", linewidth=1, alpha=0.8, label=label or None)
        if theory.ideal is not None and not theory.one_ideal:
            ideal = theory.ideal_bids[rows[0]][kept] / unit
            axes.plot(x, ideal, color=colour, linestyle="--", linewidth=1.2, label=f"{name}, equilibrium")
    if theory.one_ideal:
        axes.plot(
            x, theory.ideal_bids[0][kept] / unit, color="#222222", linestyle="--", linewidth=1.2, label="equilibrium"
        )
