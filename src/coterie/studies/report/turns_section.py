"""A report's section on teams that write in turn: rewards, advantages and entropy by role and turn.

A learner records them under `GROUP/ROLE/turn_K/NAME` (`algorithms/at_grpo/at_grpo.py`). Lines go over the turns of an
episode: the last records of training, and the first ones, faint, for comparison.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from coterie.core.types import Array
from coterie.runs.run import Run
from coterie.studies import figures, html, interactive, statistics
from coterie.studies.figures import Chart, Series

RECORDED = re.compile(r"(.+)/turn_(\d+)/(score|advantage|entropy)")
SHARE = 0.1  # of the records that are averaged, at both ends of training
TITLES = {  # metric -> title, unit
    "score": ("reward of an answer, by turn", "mean reward"),
    "advantage": ("spread of advantages, by turn", "RMS of R − mean"),
    "entropy": ("entropy, by turn", "nats per token"),
}
Records = list[dict[str, Any]]  # of one run


def report_section(runs: Sequence[Run]) -> Iterable[str]:
    """Charts and a table; nothing where nobody recorded anything by turn."""
    records = [[r for r in run.metrics() if any(RECORDED.fullmatch(name) for name in r)] for run in runs]
    if not all(records):
        return
    places = _places(records)
    roles = list(dict.fromkeys(role for role, _ in places))
    yield "<h2>Roles and turns</h2>"
    yield (
        "<p class=quiet>All answers sampled in training, by role and turn of the episode: the mean over the last tenth "
        "of training, faint over the first. Later turns are reached in fewer episodes.</p>"
    )
    yield "<div class=charts>"
    for metric, (title, unit) in TITLES.items():
        lines = [line for i, role in enumerate(roles) for line in _lines(records, role, figures.colour(i), metric)]
        chart = Chart(title, figures.TURN, unit, tuple(lines))
        picture = html.image(figures.chart_as_png(chart), "image/png", title)
        yield interactive.figure(chart, picture)
    yield "</div>"
    rows = []
    for role, turn in places:
        found = [np.mean(_values(records, role, turn, metric, last=True)) for metric in TITLES]
        rows.append([role, str(turn), *("–" if np.isnan(value) else f"{value:.2f}" for value in found)])
    head = ["role", "turn", "mean reward", "spread of advantages", "entropy"]
    yield html.folded("The same in numbers, the last tenth of training", [html.table(head, rows)])


def _places(records: Sequence[Records]) -> list[tuple[str, int]]:
    """Every role, with its group in front, and turn of which something was recorded."""
    names = dict.fromkeys(name for one in records for record in one for name in record)  # in the order of the records
    found = [(match[1], int(match[2])) for name in names if (match := RECORDED.fullmatch(name))]
    roles = list(dict.fromkeys(role for role, _ in found))
    return sorted(set(found), key=lambda place: (roles.index(place[0]), place[1]))


def _lines(records: Sequence[Records], role: str, colour: str, metric: str) -> Iterable[Series]:
    """The end of training and its beginning, over the turns that every run recorded then."""
    turns = [turn for name, turn in _places(records) if name == role]
    for last, label in ((True, f"{role}, end"), (False, f"{role}, beginning")):
        values = np.array([_values(records, role, turn, metric, last) for turn in turns])  # [turns, runs]
        known = ~np.isnan(values).any(axis=1)
        if known.any():
            estimate = statistics.stratified_bootstrap([values[known]], statistics.mean, statistics.bootstrap_stream())
            yield Series(label, colour, np.array(turns)[known], estimate, faint=not last)


def _values(records: Sequence[Records], role: str, turn: int, metric: str, last: bool) -> Array:
    """The mean of every run `[R]` over the records at one end of training; NaN where there are none."""
    name, means = f"{role}/turn_{turn}/{metric}", []
    for one in records:
        count = max(1, round(SHARE * len(one)))
        part = one[-count:] if last else one[:count]
        known = [record[name] for record in part if name in record]
        means.append(np.mean(known) if known else np.nan)
    return np.array(means)
