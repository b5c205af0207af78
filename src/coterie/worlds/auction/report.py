"""The auction's chapter in a report: bid curves beside ideal ones, and what comes of them by group and for the seller.

Where the numbers come from is in `auction_measures.py`.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from coterie.core.types import Array
from coterie.core.world import ReportSection
from coterie.studies import statistics
from coterie.studies.html import COLOURS, as_png, draw_estimate, image, label_panel, table
from coterie.training.run import Run
from coterie.worlds.auction.metrics import MEASURES, OUTCOMES, Judged, Theory, judge_runs, sets, summarise
from coterie.worlds.auction.world import AuctionSettings

SHARES = ("loss", "regret", "efficiency", "highest_wins")  # shown as percentages
UNKNOWN = "–"  # a number that is not known
LEAST = 0.1  # the share of the highest valuation from which on bid / valuation is drawn
BIDDERS = {"learned": "learned", "oracle": "in equilibrium", "neutral": "in equilibrium, all risk-neutral"}
TICKS = {"learned": "learned", "oracle": "equilibrium", "neutral": "all\nrisk-neutral"}  # the same under a panel
PANELS = {  # of the auction's outcome; payoffs follow
    "revenue": "revenue per auction",
    "efficiency": "efficiency",
    "highest_wins": "highest valuation wins",
}
NARROWEST = 0.02  # of a panel's axis, as a share of its numbers: what differs less is as good as equal


def report_section(runs: Sequence[Run]) -> ReportSection:
    """Everything for runs of one experiment; those whose tables differ are shown one set after the other."""
    ready = [run for run in runs if run.steps()]
    parts = ["<h2>Bids</h2>"]
    for run in runs:
        if run not in ready:
            parts.append(f"<p class=quiet>{html.escape(run.path.name)} has no policies yet; it is left out here.</p>")
    if not ready:
        return ReportSection(parts, {}, {"tables": []})
    found = [judge_runs(members) for members in sets(ready)]
    png = draw(found)
    parts.append(
        image(png, "image/png", "bids, bids as shares of valuations, and what comes of them, beside the oracle's")
    )
    numbers = [summarise(*one) for one in found]
    for (theory, judged), plain in zip(found, numbers, strict=True):
        parts += _words(theory, len(judged), several=len(found) > 1)
        parts += [_group_table(plain), _seller_table(plain)]
    return ReportSection(parts, {"bids": png}, {"tables": numbers})


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
            rows.append([f"— {BIDDERS['oracle']}", *(_cell(name, (one["oracle"] or {}).get(name)) for one in groups)])
        if name == "payoff" and plain["auction"]["neutral"] is not None:
            rows.append([f"— {BIDDERS['neutral']}", *(_cell(name, plain["auction"]["neutral"][name]) for _ in groups)])
    return table(["group", *plain["groups"]], [row for row in rows if set(row[1:]) != {UNKNOWN}])


def _seller_table(plain: dict[str, Any]) -> str:
    """What the auction yields, beside what it would in equilibrium."""
    columns = {name: words for name, words in BIDDERS.items() if plain["auction"][name] is not None}
    rows = [
        [words, *(_cell(name, plain["auction"][column][name]) for column in columns)]
        for name, words in OUTCOMES.items()
    ]
    return table(["auction", *columns.values()], rows)


# The picture --------------------------------------------------------------------------------------------


def draw(found: Sequence[tuple[Theory, Sequence[Judged]]]) -> bytes:
    """For each set of runs a row of bids and a row of what comes of them, as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6.6 * len(found)), layout="constrained")
    rows = figure.add_gridspec(2 * len(found), 1, height_ratios=[1.75, 1] * len(found))
    for row, (theory, judged) in enumerate(found):
        above = rows[2 * row].subgridspec(1, 2)
        bids, shares = (figure.add_subplot(above[0, side]) for side in range(2))
        values = theory.values
        _lines(bids, theory, judged, values, np.ones_like(values))
        kept = values >= max(LEAST * values[-1], 1e-6)
        _lines(shares, theory, judged, np.where(kept, values, np.nan), values)
        what = f"{name_table(theory.settings)}, {len(judged)} run{'s' if len(judged) > 1 else ''}"
        label_panel(bids, what, "valuation", "bid")
        label_panel(shares, "share of the valuation that is bid", "valuation", "bid / valuation")
        if (legend := shares.get_legend()) is not None:
            legend.remove()  # the same as its neighbour's
        shares.set_ylim(0, 1.05)
        below = rows[2 * row + 1].subgridspec(1, len(PANELS) + 1, width_ratios=[1] * len(PANELS) + [1.5])
        _outcomes([figure.add_subplot(below[0, place]) for place in range(len(PANELS) + 1)], theory, judged)
    longest = max(len(judged) for _, judged in found)
    if longest > 1:
        figure.supxlabel(
            "Lines and dots: means over runs, but best responses of each run. "
            "Bands and bars: 95% intervals by bootstrap over the runs.",
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


def _outcomes(panels: Sequence[Any], theory: Theory, judged: Sequence[Judged]) -> None:
    """What the seller and each group get, as learned and as theory has it, one panel for each measure."""
    plain = summarise(theory, judged)
    auction, groups = plain["auction"], plain["groups"]
    for axes, (name, title) in zip(panels, PANELS.items(), strict=False):
        told = {who: (auction[who] or {}).get(name) for who in TICKS}
        _dots(axes, told, "#222222", share=name in SHARES)
        _frame(axes, title, told, share=name in SHARES)
        if told["learned"] is None:
            axes.set_xlabel("not told where a curve falls", fontsize=8)
    payoffs = panels[-1]
    for place, (colour, (name, one)) in enumerate(zip(COLOURS * 4, groups.items(), strict=False)):
        told = {"learned": one["learned"]["payoff"], "oracle": (one["oracle"] or {}).get("payoff")}
        _dots(payoffs, told, colour, label=name, aside=0.7 * ((place + 0.5) / len(groups) - 0.5))
    equal = {"neutral": (auction["neutral"] or {}).get("payoff")}  # the same for everybody
    _dots(payoffs, equal, "#222222")
    _frame(payoffs, "payoff per auction and bidder", told | equal)
    if len(groups) > 1:
        payoffs.legend(fontsize=7, framealpha=0.8, edgecolor="none")


def _dots(
    axes: Any, told: dict[str, Any], colour: str, share: bool = False, label: str | None = None, aside: float = 0.0
) -> None:
    """One measure: what was learned with its interval, what theory says hollow; what is not known is left out."""
    for who, found in told.items():
        at, learned = [*TICKS].index(who), who == "learned"
        if found is None:
            continue
        value, bounds = (found["value"], found["interval"]) if learned else (found, None)
        low, high = bounds or (value, value)
        spread = None if bounds is None else [[max(value - low, 0)], [max(high - value, 0)]]
        inside, name = (colour, label) if learned else ("white", None)
        axes.errorbar([at + aside], [value], spread, fmt="o", color=colour, mfc=inside, ms=5, capsize=4, label=name)
        words, beside = f"{value:.1%}" if share else f"{value:.3f}", {"textcoords": "offset points", "ha": "center"}
        axes.annotate(words, (at + aside, high), xytext=(0, 6), **beside, fontsize=7, color=colour)


def _frame(axes: Any, title: str, told: dict[str, Any], share: bool = False) -> None:
    """Room around the dots of a panel, and words below them."""
    from matplotlib.ticker import MaxNLocator

    label_panel(axes, title, "", "")
    if axes.get_legend() is not None:
        axes.get_legend().remove()
    axes.title.set_fontsize(10)
    below = [words if told[who] is not None else f"{words}\n(unknown)" for who, words in TICKS.items()]
    axes.set_xticks(range(len(TICKS)), below, fontsize=8)
    axes.set_xlim(-0.5, len(TICKS) - 0.5)
    low, high = axes.dataLim.intervaly
    if low <= high:  # else it is empty
        low = min(low, high - max(NARROWEST * abs(high), 1e-3))
        axes.set_ylim(low - 0.15 * (high - low), high + 0.25 * (high - low))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    if share:
        axes.yaxis.set_major_formatter(lambda y, _: f"{y:.1%}" if y < 1.0001 else "")  # no share is above 1
    else:
        axes.ticklabel_format(axis="y", useOffset=False)
    axes.tick_params(axis="y", labelsize=8)
