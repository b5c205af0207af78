"""One HTML page for one run or several: scores, curves, the world's chapter, exploitability, videos, the config.

The page is a single file: pictures are inside it. Several runs of one experiment are drawn as a mean with
its 95% interval, from `statistics.py`. A world class may add a chapter (`world.HasReportSection`); none is known here.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coterie.config import registry
from coterie.config.schema import to_yaml
from coterie.core import lookup
from coterie.core.types import CoterieError
from coterie.core.world import HasReportSection, ReportSection
from coterie.studies import statistics
from coterie.studies.exploit import exploit
from coterie.studies.exploit.exploit import Exploited, Score
from coterie.studies.html import (
    COLOURS,
    DASHES,
    SECONDS,
    STEPS,
    as_png,
    draw_estimate,
    dress,
    picture,
    remark,
    table,
    write_page,
    write_png,
)
from coterie.studies.statistics import bootstrap_stream
from coterie.training.run import Run, entry, number, write_text

POINTS = 200  # at most, of a line with a band
AXES = {"env_steps": STEPS, "wall_s": SECONDS}  # a record's clocks, and how they are called


def write_report(runs: Sequence[Run], path: Path, figure: Path | None = None, numbers: Path | None = None) -> Path:
    """Write the page; when asked to, its drawings as PNGs (F.png, F-word.png), too, and what else was found as JSON."""
    by_experiment: dict[str, list[Run]] = {}
    for run in runs:
        if not run.metrics():
            raise CoterieError(f"'{run.path}' has no records yet")
        by_experiment.setdefault(run.config().experiment, []).append(run)
    title = ", ".join(by_experiment)
    if figure is not None and len(by_experiment) > 1:
        raise CoterieError(f"one figure shows one experiment, these runs are of several ({title}); draw each alone")
    chapters = {name: _report_section(members) for name, members in by_experiment.items()}
    exploited = {name: _exploited(members) for name, members in by_experiment.items()}
    if numbers is not None:
        _write_numbers(numbers, chapters, exploited)
    parts = [f"<h1>{html.escape(title)}</h1>"]
    for name, members in by_experiment.items():
        if len(by_experiment) > 1:
            parts.append(f"<h1>{html.escape(name)}</h1>")
        parts += [*_scores(members), *_curves(members, figure)]
        if (chapter := chapters[name]) is not None:
            parts += chapter.parts
            _write_pictures(figure, chapter)
        parts += [*_exploitability(exploited[name]), *_films(members), *_configs(members)]
    return write_page(path, title, parts)


def _report_section(runs: Sequence[Run]) -> ReportSection | None:
    """What the world of these runs has to say of them; nothing where they play in several."""
    worlds = {run.config().world.name for run in runs}
    made = lookup.look_up(registry.WORLDS, worlds.pop())
    return made.report_section(runs) if not worlds and isinstance(made, HasReportSection) else None


def _write_pictures(figure: Path | None, chapter: ReportSection) -> None:
    """Beside the figure of the curves, with a word in the name."""
    if figure is not None:
        for word, png in chapter.pictures.items():
            write_png(figure.with_name(f"{figure.stem}-{word}{figure.suffix}"), png)


def _write_numbers(
    path: Path, chapters: dict[str, ReportSection | None], exploited: dict[str, list[tuple[int, Exploited]]]
) -> None:
    """By experiment: the world's own numbers, and what was found by exploiting its runs."""
    found: dict[str, dict[str, Any]] = {}
    for name, chapter in chapters.items():
        own = {} if chapter is None else chapter.numbers
        own = own | ({"exploit": [one.plain() for _, one in exploited[name]]} if exploited[name] else {})
        found |= {name: own} if own else {}
    if not found:
        raise CoterieError(
            "these worlds have no numbers of their own, and no run has an exploit.json; "
            "scores are in every run's summary.json"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(found, indent=1) + "\n")


# Scores -----------------------------------------------------------------------------------------------


def _scores(runs: Sequence[Run]) -> Iterable[str]:
    """A table of returns: the trained policies between what they are to be compared with."""
    finished = [(run, summary) for run in runs if (summary := run.summary()) is not None]
    yield "<h2>Scores</h2>"
    if not finished:
        yield "<p class=quiet>The run has not finished; scores come with its end.</p>"
        return
    count = entry(*finished[0], "episodes")
    yield f"<p class=quiet>Greedy play, {count} episodes on seeds used neither for training nor for choosing.</p>"
    yield "<table><tr><th>policy<th>seed<th>group<th>return<th>95% interval<th>length<th>success</tr>"
    for run, summary in finished:
        rows = {"best": ["evaluation"], "last": ["last"], "step 0": ["step_0"]}
        rows |= {name: ["baselines", name] for name in entry(run, summary, "baselines")}
        for policy, place in rows.items():
            yield from _score_rows(policy, run, summary, place)
    yield "</table>"
    for run, summary in finished:
        steps, seconds, speed = (number(run, summary, key) for key in ("env_steps", "wall_s", "steps_per_s"))
        yield (
            f"<p class=quiet>{html.escape(run.path.name)}: {steps:,} environment steps in {seconds:.0f} s, "
            f"{speed:,.0f} per second{', solved' if entry(run, summary, 'solved') else ''}.</p>"
        )


def _score_rows(policy: str, run: Run, summary: dict[str, Any], place: list[str]) -> Iterable[str]:
    rate, seed = entry(run, summary, *place, "success_rate"), entry(run, summary, "seed")
    success = "–" if rate is None else f"{rate:.1%}"
    for group in entry(run, summary, *place, "groups"):
        mean, length = (number(run, summary, *place, "groups", group, key) for key in ("return_mean", "length_mean"))
        low, high = entry(run, summary, *place, "groups", group, "return_ci95")
        yield (
            f"<tr><td>{policy}<td>{seed}<td>{html.escape(group)}<td>{mean:.2f}"
            f"<td>[{low:.2f}, {high:.2f}]<td>{length:.1f}<td>{success}</tr>"
        )


# Curves -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Panel:
    """Metrics that are drawn together."""

    title: str
    unit: str  # what the y axis shows
    lines: list[tuple[str, str]]  # metric, label
    along: str = "env_steps"


def _curves(runs: Sequence[Run], figure: Path | None) -> Iterable[str]:
    yield "<h2>Curves</h2>"
    png = draw_curves(runs)
    if figure is not None:
        write_png(figure, png)
    if len(runs) > 1:
        yield f"<p class=quiet>{_caption(len(runs))}</p>"
    yield picture(png, "image/png", "returns, success, losses and entropy against environment steps and seconds")


def _caption(count: int) -> str:
    repetitions = f"{statistics.REPETITIONS:,} resamples"
    return f"Lines: mean of {count} runs. Bands: its 95% interval by bootstrap, {repetitions} of the runs."


def draw_curves(runs: Sequence[Run]) -> bytes:
    """Panels of returns, success, losses and exploration against environment steps and seconds, as a PNG."""
    from matplotlib.figure import Figure

    records = [run.metrics() for run in runs]
    panels = [p for p in _panels(list(runs[0].config().groups), records) if _recorded(p, records)]
    rows = -(-len(panels) // 2)
    figure = Figure(figsize=(11, 3.2 * rows), layout="constrained")
    for place, panel in enumerate(panels):
        axes = figure.add_subplot(rows, 2, place + 1)
        for colour, (name, label) in zip(COLOURS * 4, panel.lines, strict=False):
            _draw(axes, records, panel.along, name, label, colour)
        if not axes.lines:
            remark(axes, f"no {'steps' if panel.along == 'env_steps' else 'seconds'} that all runs share")
        if panel.title.startswith("return"):
            _references(axes, runs)
        dress(axes, panel.title, AXES[panel.along], panel.unit)
    if len(runs) > 1:
        figure.supxlabel(_caption(len(runs)), fontsize=8, color="#666666")
    return as_png(figure)


def _recorded(panel: Panel, records: list[list[dict[str, Any]]]) -> bool:
    return any(name in record for one in records for record in one for name, _ in panel.lines)


def _panels(groups: list[str], records: list[list[dict[str, Any]]]) -> list[Panel]:
    """Which metrics are drawn together; those that no run has recorded are left out later."""
    average = sorted({n for one in records for n in one[-1] if "/return_" in n and n.split("_")[-1].isdigit()})
    returns = [(name, f"{name.split('/')[0]}, training, {name.split('_')[-1]}-episode average") for name in average]
    returns += [(f"{g}/eval/return_mean", f"{g}, greedy") for g in groups]
    losses = [(f"{g}/value_loss", g) for g in groups] + [(f"{g}/loss", g) for g in groups]
    return [
        Panel("return", "mean return", returns),
        Panel("return against time", "mean return", returns, "wall_s"),
        Panel("success", "share of episodes", [("success_rate", "training"), ("eval/success_rate", "greedy")]),
        Panel("policy loss", "loss", [(f"{g}/policy_loss", g) for g in groups]),
        Panel("value loss", "loss", losses),
        Panel("mean action value", "value", [(f"{g}/q_mean", g) for g in groups]),
        Panel("exploration", "share of random actions", [(f"{g}/epsilon", g) for g in groups]),
        Panel("entropy", "nats", [(f"{g}/entropy", g) for g in groups]),
        Panel("KL to the policy that acted", "nats", [(f"{g}/kl", g) for g in groups]),
    ]


def _draw(axes: Any, records: list[list[dict[str, Any]]], along: str, name: str, label: str, colour: str) -> None:
    """One metric: its mean over the runs, as far as all of them go, and the interval of that mean."""
    series = [[(r[along], r[name]) for r in one if name in r] for one in records]
    curves = [(x, y) for x, y in (np.array(points, float).T for points in series if points)]
    if not curves:
        return
    points, values = statistics.align(curves, POINTS if len(curves) > 1 else None)
    if len(points):
        estimate = statistics.stratified_bootstrap([values], statistics.mean, bootstrap_stream())
        draw_estimate(axes, points, estimate, label, colour)


def _references(axes: Any, runs: Sequence[Run]) -> None:
    """Lines for the solved threshold and for players to compare with."""
    stop = runs[0].config().train.stop
    if stop is not None:
        axes.axhline(stop.return_mean, color="#3a7d44", linestyle="--", linewidth=1, label="solved")
    summary = runs[0].summary()
    learning = [name for name, group in runs[0].config().groups.items() if group.learner is not None]
    if summary is not None and learning:
        for style, name in zip(DASHES, entry(runs[0], summary, "baselines"), strict=False):
            value = number(runs[0], summary, "baselines", name, "groups", learning[0], "return_mean")
            axes.axhline(value, color="#888888", linestyle=style, linewidth=1, label=name)


# Exploitability ---------------------------------------------------------------------------------------


def _exploited(runs: Sequence[Run]) -> list[tuple[int, Exploited]]:
    """What was found of the runs that `coterie exploit` was asked about, with their seeds."""
    return [(run.config().seed, one) for run in runs if (one := exploit.found_earlier(run)) is not None]


def _exploitability(exploited: Sequence[tuple[int, Exploited]]) -> Iterable[str]:
    """A table of who gains what by deviating; nothing where nobody has asked."""
    if not exploited:
        return
    yield (
        "<h2>Exploitability</h2><p class=quiet>What somebody gains by leaving what was learned while all others stay "
        "as they are: mean returns of who deviates, in the world's own reward, with 95% intervals over episodes. "
        "A response found by learning is a lower bound: a better one may exist.</p>"
    )
    head = ["seed", "deviates", "own return", "best response", "gain", "by", "responder"]
    rows, words = [], []
    for seed, found in exploited:
        for one in found.responses:
            who = f"{one.deviation.group}: {', '.join(one.deviation.agents)}"
            scores = [_between(one.original), _between(one.response), _between(one.gain, "+")]
            how = f"{one.responder.learner}, {one.responder.steps:,} steps"
            rows.append([str(seed), who, *scores, one.who, how])
        words.append(f"<p class=quiet>{html.escape(' '.join(_totals(seed, found)))}</p>")
    yield table(head, rows)
    yield from words


def _totals(seed: int, found: Exploited) -> Iterable[str]:
    """Sentences about one run: how it was judged, what all gains come to, what to mind."""
    asked = found.question
    mode = "drawn actions" if asked.sample else "greedy"
    yield f"Seed {seed}: checkpoint {asked.checkpoint} ({found.env_steps:,} steps), {mode}, {asked.episodes} episodes."
    yield f"NashConv {_between(found.nash_conv)}, the sum of the gains above 0;"
    yield f"exploitability {_between(found.exploitability)}, their mean."
    for one in found.responses:
        name, liked = one.deviation.name, one.responder.preference
        if liked != "individual":
            yield f"The responder of {name} learned with the preference '{liked}'."
        if one.gain.high < 0:
            yield f"Nobody did as well as {name} itself; a longer training may."


def _between(score: Score, sign: str = "") -> str:
    """A mean with its bounds."""
    mean, low, high = (f"{x:{sign}.{exploit.digits(score)}f}" for x in score)
    return f"{mean} [{low}, {high}]"


# The rest ---------------------------------------------------------------------------------------------


def _films(runs: Sequence[Run]) -> Iterable[str]:
    films = [film for run in runs for film in run.films()[-1:]]
    if films:
        yield "<h2>An episode of the best policy</h2>"
    for film in films[:3]:
        yield picture(film.read_bytes(), "image/gif", "an episode played greedily")


def _configs(runs: Sequence[Run]) -> Iterable[str]:
    yield f"<h2>Config</h2><pre>{html.escape(to_yaml(runs[0].config()))}</pre>"
    listed = "".join(f"<li>{html.escape(str(run.path.name))}" for run in runs)
    yield f"<p class=quiet>Drawn from</p><ul class=quiet>{listed}</ul>"
