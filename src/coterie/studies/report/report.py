"""Report: one HTML page for one run or several: origin, scores, curves, further sections, videos and settings.

The page is a single file with its pictures inside, which also lie next to it as PNGs (`report-figures/`); charts can be
zoomed where plotly.js is installed (`studies/interactive.py`). Runs that differ only in seed are pooled; runs of other
settings have a part of their own, below an overview of all. A world class may add a section (`report_section`); this
module does not know which.
"""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from coterie.config import registry
from coterie.config.schema import ConfigError
from coterie.core import lookup
from coterie.core.types import CoterieError
from coterie.core.world import ReportSection
from coterie.runs.run import Run, write_text
from coterie.studies import figures, html, interactive, statistics, transcripts
from coterie.studies.compare import compare
from coterie.studies.compare import show as compare_show
from coterie.studies.compare.runs import compared_settings, gather, make_labels, read_run
from coterie.studies.exploit import show as exploit_show
from coterie.studies.exploit.results import ExploitResult, read_result
from coterie.studies.report import (
    curves,
    lm_section,
    origin_section,
    scores_section,
    search_section,
    settings_section,
    turns_section,
)

UNFOLDED = 3  # settings at most whose parts are open from the beginning
MOST_VIDEOS = 3  # of the runs of one setting


def write_report(runs: Sequence[Run], path: Path, figure: Path | None = None, numbers: Path | None = None) -> Path:
    """Write the page; on request also its figures as PNGs (F.png, F-NAME.png) and further results as JSON."""
    for run in runs:
        if not run.metrics():
            raise CoterieError(f"'{run.path}' has no records yet")
    variants = group_by_settings(runs)
    title = ", ".join(dict.fromkeys(run.config().experiment for run in runs))
    if figure is not None and len(variants) > 1:
        raise CoterieError(f"--figure shows runs of one setting, these are of several ({'; '.join(variants)})")
    sections = {label: _world_section(members) for label, members in variants.items()}
    exploited = {label: _exploit_results(members) for label, members in variants.items()}
    if numbers is not None:
        _write_numbers(numbers, sections, exploited)
    parts = [f"<h1>{escape(title)}</h1>", *origin_section.report_section(runs)]
    if len(variants) > 1:
        parts.append(f"<p class=quiet>{len(runs)} runs of {len(variants)} settings, one below the other.</p>")
        parts += _overview(runs, path)
    for number, (label, members) in enumerate(variants.items(), 1):
        which = f"{number} " if len(variants) > 1 else ""
        own = [*scores_section.report_section(members), *_curves(members, figure, path, which)]
        if (section := sections[label]) is not None:
            own += section.parts
            _write_section_figures(figure, section)
            for name, png in section.pictures.items():
                figures.write_beside(path, f"{which}{name}", png)
        own += [*lm_section.report_section(members), *search_section.report_section(members)]
        own += [*turns_section.report_section(members), *transcripts.report_section(members)]
        own += [*exploit_show.report_section(exploited[label]), *_videos(members)]
        own += settings_section.report_section(members[0].config())
        several = len(variants) > 1
        parts += [html.folded(label, own, len(variants) <= UNFOLDED, large=True)] if several else own
    return html.write_page(path, title, [*parts, interactive.scripts()])


def _overview(runs: Sequence[Run], page: Path) -> Iterable[str]:
    """The settings side by side; where they cannot be compared, the reason."""
    yield "<h2>Overview</h2>"
    try:
        comparison = compare.compare(gather([read_run(str(run.path), run, "best", None) for run in runs]))
    except CoterieError as error:
        yield f"<p class=quiet>No comparison of these settings: {escape(str(error))}</p>"
        return
    yield from compare_show.page_parts(comparison, "best", page=page)


def group_by_settings(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs that differ only in seed, under their experiment's name and the settings in which experiments differ."""
    configs = [run.config() for run in runs]
    labels = make_labels([c.experiment for c in configs], [compared_settings(c) for c in configs])
    variants: dict[str, list[Run]] = {}
    for label, run in zip(labels, runs, strict=True):
        variants.setdefault(label, []).append(run)
    return variants


def default_path(runs: Sequence[Run]) -> Path:
    """The default path of a report: in its run, or in the directory that holds all runs."""
    if len(runs) == 1:
        return runs[0].path / "report.html"
    common = Path(os.path.commonpath([run.path.absolute().parent for run in runs]))
    if common == Path(common.anchor):
        raise ConfigError("--out: these runs have no directory in common; name the file to write")
    return (common.relative_to(Path.cwd()) if common.is_relative_to(Path.cwd()) else common) / "report.html"


def _world_section(runs: Sequence[Run]) -> ReportSection | None:
    """The section that the world of these runs adds; None where they play several worlds."""
    worlds = {run.config().world.name for run in runs}
    world = lookup.look_up(registry.WORLDS, worlds.pop())
    section: ReportSection | None = getattr(world, "report_section", lambda _: None)(runs) if not worlds else None
    return section


def _write_section_figures(figure: Path | None, section: ReportSection) -> None:
    """Write a section's figures next to the figure of the curves."""
    if figure is not None:
        for name, png in section.pictures.items():
            figures.write_png(figure.with_name(f"{figure.stem}-{name}{figure.suffix}"), png)


def _exploit_results(runs: Sequence[Run]) -> list[tuple[int, ExploitResult]]:
    """The seed and `exploit.json` of every run that has one."""
    return [(run.config().seed, result) for run in runs if (result := read_result(run)) is not None]


def _write_numbers(
    path: Path, sections: dict[str, ReportSection | None], exploited: dict[str, list[tuple[int, ExploitResult]]]
) -> None:
    """Write the numbers of the worlds' sections and the exploit results as JSON, by experiment."""
    found: dict[str, dict[str, Any]] = {}
    for name, section in sections.items():
        own = {} if section is None else section.numbers
        own = own | ({"exploit": [result.to_dict() for _, result in exploited[name]]} if exploited[name] else {})
        found |= {name: own} if own else {}
    if not found:
        raise CoterieError(
            "--numbers: these worlds have no numbers of their own, and no run has an exploit.json; "
            "scores are in every run's summary.json"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(found, indent=1) + "\n")


# Curves -----------------------------------------------------------------------------------------------


def _curves(runs: Sequence[Run], figure: Path | None, page: Path, which: str = "") -> Iterable[str]:
    """The charts; as files their names begin with `which`."""
    yield "<h2>Curves</h2>"
    if figure is not None:
        figures.write_png(figure, draw_curves(runs))
    if len(runs) > 1:
        yield f"<p class=quiet>{_caption(len(runs))}</p>"
    yield "<div class=charts>"
    for chart in curves.charts(runs):
        png = draw_chart(chart)
        figures.write_beside(page, f"{which}{chart.title}", png)
        yield interactive.figure(chart, html.image(png, "image/png", f"{chart.title} against {chart.x}"))
    yield "</div>"


def _caption(count: int) -> str:
    repetitions = f"{statistics.REPETITIONS:,} resamples"
    known = statistics.coverage_note("mean", count)
    lines = f"Lines: mean of {count} runs. Bands: its 95% interval by bootstrap, {repetitions} of the runs;"
    return f"{lines} {known} (measured, docs/guides/statistics.md)."


def draw_chart(chart: figures.Chart) -> bytes:
    """One chart of the page as a PNG."""
    return figures.chart_as_png(chart)


def draw_curves(runs: Sequence[Run]) -> bytes:
    """All charts of these runs in one PNG."""
    caption = textwrap.fill(_caption(len(runs)), 150) if len(runs) > 1 else ""
    return figures.charts_as_png(curves.charts(runs), caption)


# Videos -----------------------------------------------------------------------------------------------


def _videos(runs: Sequence[Run]) -> Iterable[str]:
    """The last video of every run, of three at most; where there are several runs, each with its seed."""
    videos = [(run.config().seed, video) for run in runs for video in run.videos()[-1:]]
    if not videos:
        return
    shown = f", {MOST_VIDEOS} of {len(videos)} runs" if len(videos) > MOST_VIDEOS else ""
    yield f"<h2>An episode of the best policy{shown}</h2><div class=charts>"
    for seed, video in videos[:MOST_VIDEOS]:
        mp4 = video.with_suffix(".mp4")
        which = f"seed {seed}" if len(runs) > 1 else ""
        words = ", ".join(filter(None, ["an episode, played greedily", which]))
        caption = f"<figcaption>{which}</figcaption>" if which else ""
        if mp4.is_file():
            tag = html.video_tag(mp4.read_bytes(), words)
        else:
            tag = html.image(video.read_bytes(), "image/gif", words)
        yield f"<figure>{caption}{tag}</figure>"
    yield "</div>"
