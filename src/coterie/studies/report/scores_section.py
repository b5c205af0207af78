"""A report's section on scores: each policy over all seeds, the baselines once, and every seed folded below."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from coterie.runs.run import Run, entry, nobody_learns, number
from coterie.runs.times import duration, times
from coterie.studies import html, statistics

HEAD = ["policy", "group", "return", "95% interval", "length", "success"]
Finished = tuple[Run, dict[str, Any]]  # a run and its summary


class Row(NamedTuple):
    """The scores of one policy in one group."""

    policy: str
    group: str
    mean: float
    low: float | None
    high: float | None
    length: float
    success: float | None

    def cells(self) -> list[str]:
        bounds = "–" if self.low is None or self.high is None else f"[{self.low:.2f}, {self.high:.2f}]"
        success = "–" if self.success is None else f"{self.success:.1%}"
        return [self.policy, self.group, f"{self.mean:.2f}", bounds, f"{self.length:.1f}", success]


def report_section(runs: Sequence[Run]) -> Iterable[str]:
    """The table of these runs, which differ only in seed."""
    finished = [(run, summary) for run in runs if (summary := run.summary()) is not None]
    yield "<h2>Scores</h2>"
    if not finished:
        yield "<p class=quiet>The run has not finished; scores are computed at its end.</p>"
        return
    yield f"<p class=quiet>{escape(' '.join(_caption(finished, len(runs))))}</p>"
    rows = pooled_rows(finished)
    names = ["", *(row.policy for row in rows)]
    yield _table(
        HEAD, [["" if row.policy == above else row.policy, *row.cells()[1:]] for above, row in zip(names, rows)]
    )
    yield from _every_seed(finished)


def _table(head: list[str], rows: list[list[str]]) -> str:
    """A table of scores, without its last column, success, in worlds that know no success."""
    known = any(row[-1] != "–" for row in rows)
    return html.table(head, rows) if known else html.table(head[:-1], [row[:-1] for row in rows])


def pooled_rows(finished: Sequence[Finished]) -> list[Row]:
    """Every policy and group once: the mean over seeds and its interval; of a single run, over its episodes."""
    places = _policies(*finished[0])
    return [_pooled([_rows(name, *one, places[name])[i] for one in finished]) for name, i in _order(finished, places)]


def _order(finished: Sequence[Finished], places: dict[str, list[str]]) -> Iterable[tuple[str, int]]:
    for name, place in places.items():
        for i in range(len(entry(*finished[0], *place, "groups"))):
            yield name, i


def _policies(run: Run, summary: dict[str, Any]) -> dict[str, list[str]]:
    """The policies that a summary scores -> where in it."""
    if nobody_learns(run):  # all evaluations have the same players
        return {"players": ["evaluation"]} | {name: ["baselines", name] for name in entry(run, summary, "baselines")}
    places = {"trained (best)": ["evaluation"], "trained (last)": ["last"], "step 0": ["step_0"]}
    if "drawn" in summary:  # of taught groups
        places |= {"trained (best), actions drawn": ["drawn"], "step 0, actions drawn": ["step_0", "drawn"]}
    return places | {name: ["baselines", name] for name in entry(run, summary, "baselines")}


def _rows(policy: str, run: Run, summary: dict[str, Any], place: list[str]) -> list[Row]:
    rate = entry(run, summary, *place, "success_rate")
    rows = []
    for group in entry(run, summary, *place, "groups"):
        mean, length = (number(run, summary, *place, "groups", group, key) for key in ("return_mean", "length_mean"))
        low, high = entry(run, summary, *place, "groups", group, "return_ci95") or (None, None)
        rows.append(Row(policy, group, mean, low, high, length, rate))
    return rows


def _pooled(rows: Sequence[Row]) -> Row:
    """One row for the same policy of all runs; a baseline that scores the same in all keeps its own interval."""
    means = np.array([row.mean for row in rows])
    if np.ptp(means) < 1e-9:
        return rows[0]
    found = statistics.stratified_bootstrap([means], statistics.mean, statistics.bootstrap_stream())
    low, high = (None if bound is None else float(bound) for bound in (found.low, found.high))
    rates = [row.success for row in rows if row.success is not None]
    success = float(np.mean(rates)) if rates else None
    length = float(np.mean([row.length for row in rows]))
    return Row(rows[0].policy, rows[0].group, float(found.value), low, high, length, success)


def _caption(finished: Sequence[Finished], runs: int) -> Iterable[str]:
    count = entry(*finished[0], "episodes")
    yield f"Greedy play, {count} held-out episodes (not used to train or to choose a checkpoint)."
    if len(finished) > 1:
        yield f"Means of {len(finished)} runs, with the 95% interval of that mean by bootstrap over the runs;"
        yield "what scores the same in every run has its interval over episodes."
    else:
        yield "Intervals are over episodes."
    if len(finished) < runs:
        yield f"{runs - len(finished)} of {runs} runs have not finished and are left out."
    reasons = dict.fromkeys(summary["best_reason"] for _, summary in finished if "best_reason" in summary)
    if reasons:  # not in runs of 0.1
        yield f"Best: {'; '.join(reasons)}."


def _every_seed(finished: Sequence[Finished]) -> Iterable[str]:
    """Every run's own scores and speed."""
    if len(finished) > 1:
        rows = []
        for run, summary in finished:
            seed = str(entry(run, summary, "seed"))
            for policy, place in [*_policies(run, summary).items()][:2]:  # best and last
                rows += [[seed, *row.cells()] for row in _rows(policy, run, summary, place)]
        yield html.folded("Every seed", [_table(["seed", *HEAD], rows)])
    lines = []
    for run, summary in finished:
        steps, took = number(run, summary, "env_steps"), times(run, summary)
        solved = ", solved" if entry(run, summary, "solved") else ""
        spans = [duration(took.before), duration(took.training)]
        lines.append([run.path.name, f"{steps:,}{solved}", *spans, f"{took.steps_per_second:,.0f}"])
    head = ["run", "environment steps", "before step 1", "training", "steps per second of training"]
    table = html.table(head, lines)
    yield table if len(finished) == 1 else html.folded("Steps and speed of every run", [table])
