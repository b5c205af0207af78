"""One HTML page for one run or several: scores beside baselines, curves, videos, the config.

The page is a single file: pictures are inside it. Several runs of one experiment are drawn as a mean with
the range of the seeds.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.config import to_yaml
from coterie.run import Run
from coterie.types import Array, CoterieError

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse; margin: .5rem 0 } td, th { padding: .25rem .8rem; border-bottom: 1px solid #ddd;
text-align: right } td:first-child, th:first-child { text-align: left } img { max-width: 100% }
pre { background: #f6f6f6; padding: .8rem; overflow: auto } .quiet { color: #666 }
"""
COLOURS = ("#2a6f97", "#c1440e", "#3a7d44", "#7b4b94", "#8a6d3b", "#444444")


def write_report(runs: Sequence[Run], path: Path, figure: Path | None = None) -> Path:
    """Write the page, and the curves as a PNG of their own when asked to."""
    by_experiment: dict[str, list[Run]] = {}
    for run in runs:
        if not run.metrics():
            raise CoterieError(f"'{run.path}' has no records yet")
        by_experiment.setdefault(run.config().experiment, []).append(run)
    title = ", ".join(by_experiment)
    if figure is not None and len(by_experiment) > 1:
        raise CoterieError(f"one figure shows one experiment, these runs are of several ({title}); draw each alone")
    parts = [f"<h1>{html.escape(title)}</h1>"]
    for name, members in by_experiment.items():
        if len(by_experiment) > 1:
            parts.append(f"<h1>{html.escape(name)}</h1>")
        parts += [*_scores(members), *_curves(members, figure), *_films(members), *_configs(members)]
    page = f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(title)}</title><style>{STYLE}</style>"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page + "".join(parts) + "</html>\n")
    return path


# Scores -----------------------------------------------------------------------------------------------


def _scores(runs: Sequence[Run]) -> Iterable[str]:
    """A table of returns: the trained policies between what they are to be compared with."""
    finished = [(run, summary) for run in runs if (summary := run.summary()) is not None]
    yield "<h2>Scores</h2>"
    if not finished:
        yield "<p class=quiet>The run has not finished; scores come with its end.</p>"
        return
    count = finished[0][1]["episodes"]
    yield f"<p class=quiet>Greedy play, {count} episodes on seeds used neither for training nor for choosing.</p>"
    yield "<table><tr><th>policy<th>seed<th>group<th>return<th>95% interval<th>length<th>success</tr>"
    for _, summary in finished:
        rows = {"best": summary["evaluation"], "last": summary["last"], "step 0": summary["step_0"]}
        for policy, result in (rows | summary["baselines"]).items():
            yield from _score_rows(policy, summary["seed"], result)
    yield "</table>"
    for run, summary in finished:
        yield (
            f"<p class=quiet>{html.escape(run.path.name)}: {summary['env_steps']:,} environment steps in "
            f"{summary['wall_s']:.0f} s, {summary['steps_per_s']:,.0f} per second"
            f"{', solved' if summary['solved'] else ''}.</p>"
        )


def _score_rows(policy: str, seed: int, result: dict[str, Any]) -> Iterable[str]:
    success = "–" if result["success_rate"] is None else f"{result['success_rate']:.1%}"
    for group, score in result["groups"].items():
        low, high = score["return_ci95"]
        yield (
            f"<tr><td>{policy}<td>{seed}<td>{html.escape(group)}<td>{score['return_mean']:.2f}"
            f"<td>[{low:.2f}, {high:.2f}]<td>{score['length_mean']:.1f}<td>{success}</tr>"
        )


# Curves -----------------------------------------------------------------------------------------------


def _curves(runs: Sequence[Run], figure: Path | None) -> Iterable[str]:
    yield "<h2>Curves</h2>"
    png = draw_curves(runs)
    if figure is not None:
        figure.parent.mkdir(parents=True, exist_ok=True)
        figure.write_bytes(png)
    yield _picture(png, "image/png", "returns, success, losses and entropy against environment steps")


def draw_curves(runs: Sequence[Run]) -> bytes:
    """Panels of returns, success, losses and entropy against environment steps, as a PNG."""
    from matplotlib.figure import Figure

    records = [run.metrics() for run in runs]
    groups = list(runs[0].config().groups)
    panels = [p for p in _panels(groups, records) if any(any(n in r for r in one) for one in records for n, _ in p[1])]
    rows = -(-len(panels) // 2)
    figure = Figure(figsize=(11, 3.2 * rows), layout="constrained")
    for place, (title, lines) in enumerate(panels):
        axes = figure.add_subplot(rows, 2, place + 1)
        for colour, (name, label) in zip(COLOURS * 4, lines, strict=False):
            _draw(axes, records, name, label, colour)
        if title == "return":
            _references(axes, runs)
        axes.set(title=title, xlabel="environment steps")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8, frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def _panels(groups: list[str], records: list[list[dict[str, Any]]]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Which metrics are drawn together: panel title, then (metric, label)."""
    average = sorted({n for one in records for n in one[-1] if "/return_" in n and n.split("_")[-1].isdigit()})
    returns = [(name, f"{name.split('/')[0]}, training, {name.split('_')[-1]}-episode average") for name in average]
    returns += [(f"{g}/eval/return_mean", f"{g}, greedy") for g in groups]
    return [
        ("return", returns),
        ("success", [("success_rate", "training"), ("eval/success_rate", "greedy")]),
        ("policy loss", [(f"{g}/policy_loss", g) for g in groups]),
        ("value loss", [(f"{g}/value_loss", g) for g in groups]),
        ("entropy", [(f"{g}/entropy", g) for g in groups]),
        ("KL to the policy that acted", [(f"{g}/kl", g) for g in groups]),
    ]


def _draw(axes: Any, records: list[list[dict[str, Any]]], name: str, label: str, colour: str) -> None:
    """One metric: its mean over the runs, and their range."""
    series: list[tuple[Array, Array]] = []
    for one in records:
        points = [(r["env_steps"], r[name]) for r in one if name in r]
        if points:
            series.append(tuple(np.array(points, float).T))
    if not series:
        return
    steps = np.unique(np.concatenate([x for x, _ in series]))
    steps = steps[(steps >= max(x[0] for x, _ in series)) & (steps <= min(x[-1] for x, _ in series))]
    if not len(steps):
        return
    values = np.stack([np.interp(steps, x, y) for x, y in series])
    axes.plot(steps, values.mean(axis=0), color=colour, label=label, linewidth=1.5)
    if len(series) > 1:
        axes.fill_between(steps, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.18, linewidth=0)


def _references(axes: Any, runs: Sequence[Run]) -> None:
    """Lines for the solved threshold and for players to compare with."""
    stop = runs[0].config().train.stop
    if stop is not None:
        axes.axhline(stop.return_mean, color="#3a7d44", linestyle="--", linewidth=1, label="solved")
    summary = runs[0].summary()
    learning = [name for name, group in runs[0].config().groups.items() if group.learner is not None]
    if summary is not None and learning:
        for style, (name, result) in zip((":", "-."), summary["baselines"].items(), strict=False):
            value = result["groups"][learning[0]]["return_mean"]
            axes.axhline(value, color="#888888", linestyle=style, linewidth=1, label=name)


# The rest ---------------------------------------------------------------------------------------------


def _films(runs: Sequence[Run]) -> Iterable[str]:
    films = [film for run in runs for film in run.films()[-1:]]
    if films:
        yield "<h2>An episode of the best policy</h2>"
    for film in films[:3]:
        yield _picture(film.read_bytes(), "image/gif", "an episode played greedily")


def _configs(runs: Sequence[Run]) -> Iterable[str]:
    yield f"<h2>Config</h2><pre>{html.escape(to_yaml(runs[0].config()))}</pre>"
    listed = "".join(f"<li>{html.escape(str(run.path.name))}" for run in runs)
    yield f"<p class=quiet>Drawn from</p><ul class=quiet>{listed}</ul>"


def _picture(data: bytes, kind: str, words: str) -> str:
    return f'<img alt="{words}" src="data:{kind};base64,{base64.b64encode(data).decode()}">'
