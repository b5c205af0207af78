"""The auction's section of a report: bid functions next to the equilibrium, metrics by group, and auction outcomes.

The numbers are computed in `metrics.py`.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from coterie.core.types import Array
from coterie.core.world import ReportSection
from coterie.runs.run import Run
from coterie.studies import figures, statistics
from coterie.studies.auction.metrics import (
    METRICS,
    OUTCOMES,
    Benchmark,
    TableMetrics,
    evaluate_runs,
    group_by_table,
    summarise,
)
from coterie.studies.html import table, wide_image
from coterie.worlds.auction.valuations import ValuationSettings
from coterie.worlds.auction.world import AuctionSettings

SHARES = ("utility_loss", "regret", "efficiency", "highest_wins")  # shown as percentages
UNKNOWN = "–"  # shown for a number that is not known
LEAST = 0.1  # fraction of the highest valuation from which on bid / valuation is drawn
BIDDERS = {"learned": "learned", "equilibrium": "in equilibrium", "neutral": "in equilibrium, all risk-neutral"}
TICKS = {"learned": "learned", "equilibrium": "equilibrium", "neutral": "all\nrisk-neutral"}  # the same as tick labels
PANELS = {  # of the auction's outcome; a panel of payoffs follows
    "revenue": "revenue per auction",
    "efficiency": "efficiency",
    "highest_wins": "highest valuation wins",
}
NARROWEST = 0.02  # smallest range of a panel's axis, relative to its numbers


def report_section(runs: Sequence[Run]) -> ReportSection:
    """The section for runs of one experiment; runs of different tables are shown one after the other."""
    ready = [run for run in runs if run.steps()]
    parts = ["<h2>Bids</h2>"]
    for run in runs:
        if run not in ready:
            parts.append(f"<p class=quiet>{html.escape(run.path.name)} has no policies yet and is left out here.</p>")
    if not ready:
        return ReportSection(parts, {}, {"tables": []})
    found = [evaluate_runs(members) for members in group_by_table(ready)]
    png = draw_bids(found)
    parts.append(
        wide_image(
            png, "image/png", "bids, bids relative to valuations, and auction outcomes, learned and in equilibrium"
        )
    )
    numbers = [summarise(*one) for one in found]
    for (benchmark, tables), summary in zip(found, numbers, strict=True):
        parts += _introduction(benchmark, len(tables), several=len(found) > 1)
        parts += [_group_table(summary), _seller_table(summary)]
    return ReportSection(parts, {"bids": png}, {"tables": numbers})


# Text -------------------------------------------------------------------------------------------------


def name_table(settings: AuctionSettings) -> str:
    """A short title for an auction."""
    words = [f"{settings.num_bidders} bidders", settings.rule.replace("_", " "), settings.valuations.name]
    words += [f"reserve {settings.reserve:g}"] if settings.reserve else []
    words += [f"{settings.bid_levels} bids"] if settings.bid_levels else []
    words += [f"{settings.rounds} rounds"] if settings.rounds > 1 else []
    words += [] if settings.budget is None else [f"budget {settings.budget:g}"]
    return ", ".join(words)


def _introduction(benchmark: Benchmark, runs: int, several: bool) -> Iterable[str]:
    """The paragraph before the tables."""
    if several:
        yield f"<h3>{html.escape(name_table(benchmark.settings))}</h3>"
    words = ["Greedy bids of the last checkpoint; the best by payoff is the one where all bid too little."]
    if runs > 1:
        words.append(f"Means of {runs} runs, with 95% intervals by bootstrap over the runs.")
    if benchmark.equilibrium is not None:
        solved = "symmetric" if benchmark.is_symmetric else "asymmetric and solved numerically"
        words.append(f"The equilibrium is {solved}.")
    yield f"<p class=quiet>{html.escape(' '.join([*words, *benchmark.remarks]))}</p>"


def _format(name: str, summary: Any) -> str:
    """A number as text, with its interval if it has one."""
    if summary is None:
        return UNKNOWN
    if not isinstance(summary, dict):
        return f"{summary:.2%}" if name in SHARES else f"{summary:.4f}"
    bounds = summary["interval"]
    shown = "" if bounds is None else f" [{_format(name, bounds[0])}, {_format(name, bounds[1])}]"
    return _format(name, summary["value"]) + shown


def _group_table(summary: dict[str, Any]) -> str:
    """One column for each group."""
    groups = summary["groups"].values()
    rows = [
        ["risk preference", *(one["risk_preference"] for one in groups)],
        ["bidders", *(str(one["bidders"]) for one in groups)],
    ]
    for name, words in METRICS.items():
        rows.append([words, *(_format(name, one["learned"][name]) for one in groups)])
        if name in ("payoff", "utility"):
            rows.append(
                [
                    f"— {BIDDERS['equilibrium']}",
                    *(_format(name, (one["equilibrium"] or {}).get(name)) for one in groups),
                ]
            )
        if name == "payoff" and summary["auction"]["neutral"] is not None:
            rows.append(
                [f"— {BIDDERS['neutral']}", *(_format(name, summary["auction"]["neutral"][name]) for _ in groups)]
            )
    return table(["group", *summary["groups"]], [row for row in rows if set(row[1:]) != {UNKNOWN}])


def _seller_table(summary: dict[str, Any]) -> str:
    """The auction's outcome, learned and in equilibrium."""
    columns = {name: words for name, words in BIDDERS.items() if summary["auction"][name] is not None}
    rows = [
        [words, *(_format(name, summary["auction"][column][name]) for column in columns)]
        for name, words in OUTCOMES.items()
    ]
    return table(["auction", *columns.values()], rows)


# Figure -----------------------------------------------------------------------------------------------


def draw_bids(found: Sequence[tuple[Benchmark, Sequence[TableMetrics]]]) -> bytes:
    """Draw a row of bid functions and a row of outcomes for each table, as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 7.4 * len(found)), layout="constrained")
    parts = figure.subfigures(len(found), 1, squeeze=False)[:, 0]
    for part, (benchmark, tables) in zip(parts, found, strict=True):
        _draw_table(part, benchmark, tables)
    longest = max(len(tables) for _, tables in found)
    if longest > 1:
        figure.supxlabel(
            "Lines and dots: means over runs; best responses of each run. "
            "Bands and bars: 95% intervals by bootstrap over the runs.",
            fontsize=8,
            color=figures.TEXT,
        )
    return figures.as_png(figure)


def _draw_table(figure: Any, benchmark: Benchmark, tables: Sequence[TableMetrics]) -> None:
    """Draw the two rows of one table."""
    rows = figure.add_gridspec(2, 1, height_ratios=[1.75, 1])
    above = rows[0].subgridspec(1, 2)
    bids, shares = (figure.add_subplot(above[0, side]) for side in range(2))
    values = benchmark.values
    _lines(bids, benchmark, tables, values, np.ones_like(values))
    kept = values >= max(LEAST * values[-1], 1e-6)
    _lines(shares, benchmark, tables, np.where(kept, values, np.nan), values)
    what = f"{name_table(benchmark.settings)}, {len(tables)} run{'s' if len(tables) > 1 else ''}"
    figures.label_panel(bids, what, "valuation", "bid")
    figures.label_panel(shares, "bid as a fraction of the valuation", "valuation", "bid / valuation")
    shares.set_ylim(0, 1.05)
    below = rows[1].subgridspec(1, len(PANELS) + 1, width_ratios=[1] * len(PANELS) + [1.5])
    _outcomes([figure.add_subplot(below[0, column]) for column in range(len(PANELS) + 1)], benchmark, tables)
    handles, labels = bids.get_legend_handles_labels()  # the same lines as in the other panel
    style = {"fontsize": 9, "frameon": False, "ncols": max(1, min(len(labels), 4))}
    figure.legend(handles, labels, loc="outside upper left", **style)


def draw_summary(summary: dict[str, Any]) -> bytes:
    """Draw the bids and outcomes of one table from its numbers (`metrics.summarise`), as a PNG.

    Numbers hold mean bids at a few valuations; `bids`, where there is one, those of every seed at fewer.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 7.4), layout="constrained")
    rows = figure.add_gridspec(2, 1, height_ratios=[1.75, 1])
    above = rows[0].subgridspec(1, 2)
    bids, shares = (figure.add_subplot(above[0, side]) for side in range(2))
    world = summary["world"]
    settings = AuctionSettings(**world | {"valuations": ValuationSettings(**world["valuations"])})
    values = np.array(summary["valuations"])
    for axes, unit, kept in ((bids, np.ones_like(values), values >= 0), (shares, values, values >= LEAST * values[-1])):
        _draw_means(axes, summary, values, unit, kept)
    runs = summary["runs"]
    what = f"{name_table(settings)}, {runs} run{'s' if runs > 1 else ''}"
    figures.label_panel(bids, what, "valuation", "bid")
    figures.label_panel(shares, "bid as a fraction of the valuation", "valuation", "bid / valuation")
    shares.set_ylim(0, 1.05)
    below = rows[1].subgridspec(1, len(PANELS) + 1, width_ratios=[1] * len(PANELS) + [1.5])
    _draw_outcomes([figure.add_subplot(below[0, column]) for column in range(len(PANELS) + 1)], summary)
    handles, labels = bids.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", fontsize=9, frameon=False, ncols=min(len(labels), 4))
    dots = " Small dots: every run." if "bids" in summary else ""
    words = f"Lines: means over runs.{dots} Bars: 95% intervals by bootstrap over the runs."
    figure.supxlabel(words, fontsize=8, color=figures.TEXT)
    return figures.as_png(figure)


def _draw_means(axes: Any, summary: dict[str, Any], values: Array, unit: Array, kept: Array) -> None:
    """Mean bids of every group and their equilibrium, divided by `unit`; the bids of every seed as dots."""
    seeds = summary.get("bids", {})
    same = len({tuple(one["equilibrium_bids"] or ()) for one in summary["groups"].values()}) == 1
    for number, (name, one) in enumerate(summary["groups"].items()):
        colour, learned = figures.colour(number), np.array(one["bids"])
        line = statistics.Estimate((learned / unit)[kept], None, None)
        figures.draw_series(axes, figures.Series(f"{name}, learned", colour, values[kept], line))
        if name in seeds:
            at = np.array(seeds["valuations"])
            scale = np.interp(at, values, unit)
            for own in seeds[name]:
                axes.plot(at, np.array(own) / scale, ".", color=colour, markersize=4, alpha=0.7)
        if one["equilibrium_bids"] is not None and (not same or not number):
            shade, label = ("#222222", "equilibrium") if same else (colour, f"{name}, equilibrium")
            equal = np.array(one["equilibrium_bids"]) / unit
            axes.plot(values[kept], equal[kept], color=shade, linestyle="--", linewidth=1.2, label=label)


def _lines(axes: Any, benchmark: Benchmark, tables: Sequence[TableMetrics], values: Array, unit: Array) -> None:
    """Plot learned bids with bands, equilibrium dashed, best responses dotted; all divided by `unit` [256]."""
    kept = np.isfinite(values)
    x, unit = values[kept], unit[kept]
    for number, (name, members) in enumerate(benchmark.members.items()):
        colour = figures.colour(number)
        rows = list(members)
        learned = np.stack([one.bids[rows][:, kept] / unit for one in tables], axis=-1)  # [A, V, R]
        if np.ptp(learned, axis=0).max() > 1e-6:  # bidders of a group differ: draw each as a thin line
            for own in learned.mean(axis=-1):
                axes.plot(x, own, color=colour, linewidth=0.6, alpha=0.5)
        mean = statistics.stratified_bootstrap([learned.mean(axis=0)], statistics.mean, statistics.bootstrap_stream())
        figures.draw_series(axes, figures.Series(f"{name}, learned", colour, x, mean))
        for run, one in enumerate(tables):  # each run: a mean of best responses is not a best response
            best, label = one.best[rows].mean(axis=0)[kept] / unit, "" if run else f"{name}, best response"
            if np.isfinite(best).all():
                axes.plot(x, best, color=colour, linestyle=":", linewidth=1, alpha=0.8, label=label or None)
        if benchmark.equilibrium is not None and not benchmark.is_symmetric:
            equilibrium = benchmark.equilibrium_bids[rows[0]][kept] / unit
            axes.plot(x, equilibrium, color=colour, linestyle="--", linewidth=1.2, label=f"{name}, equilibrium")
    if benchmark.is_symmetric:
        axes.plot(
            x,
            benchmark.equilibrium_bids[0][kept] / unit,
            color="#222222",
            linestyle="--",
            linewidth=1.2,
            label="equilibrium",
        )


def _outcomes(panels: Sequence[Any], benchmark: Benchmark, tables: Sequence[TableMetrics]) -> None:
    """Plot outcome and payoffs, learned and in equilibrium, one panel for each number."""
    _draw_outcomes(panels, summarise(benchmark, tables))


def _draw_outcomes(panels: Sequence[Any], summary: dict[str, Any]) -> None:
    auction, groups = summary["auction"], summary["groups"]
    for axes, (name, title) in zip(panels, PANELS.items(), strict=False):
        shown = {who: (auction[who] or {}).get(name) for who in TICKS}
        _dots(axes, shown, "#222222", share=name in SHARES)
        _format_axes(axes, title, shown, share=name in SHARES)
        if shown["learned"] is None:
            axes.set_xlabel("undefined if a bid function decreases", fontsize=8)
    payoffs = panels[-1]
    for number, (name, one) in enumerate(groups.items()):
        colour = figures.colour(number)
        shown = {"learned": one["learned"]["payoff"], "equilibrium": (one["equilibrium"] or {}).get("payoff")}
        _dots(payoffs, shown, colour, label=name, offset=0.7 * ((number + 0.5) / len(groups) - 0.5))
    equal = {"neutral": (auction["neutral"] or {}).get("payoff")}  # equal for all bidders
    _dots(payoffs, equal, "#222222")
    _format_axes(payoffs, "payoff per auction and bidder", shown | equal)


def _dots(
    axes: Any, shown: dict[str, Any], colour: str, share: bool = False, label: str | None = None, offset: float = 0.0
) -> None:
    """Plot one number: learned as a dot with its interval, equilibria as circles; unknown numbers are left out."""
    for who, found in shown.items():
        at, learned = [*TICKS].index(who), who == "learned"
        if found is None:
            continue
        value, bounds = (found["value"], found["interval"]) if learned else (found, None)
        low, high = bounds or (value, value)
        spread = None if bounds is None else [[max(value - low, 0)], [max(high - value, 0)]]
        inside, name = (colour, label) if learned else ("white", None)
        axes.errorbar([at + offset], [value], spread, fmt="o", color=colour, mfc=inside, ms=5, capsize=4, label=name)
        words, style = f"{value:.1%}" if share else f"{value:.3f}", {"textcoords": "offset points", "ha": "center"}
        axes.annotate(words, (at + offset, high), xytext=(0, 6), **style, fontsize=7, color=colour)


def _format_axes(axes: Any, title: str, shown: dict[str, Any], share: bool = False) -> None:
    """Set limits, ticks and labels of a panel."""
    from matplotlib.ticker import MaxNLocator

    figures.label_panel(axes, title, "", "")
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold", pad=10)
    below = [words if shown[who] is not None else f"{words}\n(unknown)" for who, words in TICKS.items()]
    axes.set_xticks(range(len(TICKS)), below, fontsize=8)
    axes.set_xlim(-0.5, len(TICKS) - 0.5)
    low, high = axes.dataLim.intervaly
    if low <= high:  # otherwise the panel is empty
        low = min(low, high - max(NARROWEST * abs(high), 1e-3))
        axes.set_ylim(low - 0.15 * (high - low), high + 0.25 * (high - low))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    if share:
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:.1%}" if y < 1.0001 else "")  # fractions do not exceed 1
    else:
        axes.ticklabel_format(axis="y", useOffset=False)
    axes.tick_params(axis="y", labelsize=8)
