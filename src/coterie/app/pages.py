"""A web application that shows the runs below a directory while they train.

Pages ask for what has changed every few seconds; nothing is kept here but the directory, and nothing is written. Charts
are those of reports (`studies/report/curves.py`), drawn by plotly.js from the installed package.
"""

from __future__ import annotations

import dataclasses
import logging
from html import escape
from importlib.resources import files
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from coterie.core.types import CoterieError
from coterie.runs import index as run_index
from coterie.runs.run import Run
from coterie.studies import html, interactive
from coterie.studies.report import curves, scores_section, settings_section

log = logging.getLogger("coterie")
SHOWN = (".html", ".png", ".gif", ".mp4")  # files of a run that a page may link to
LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")
STYLE = """
body { max-width: 84rem } .error { color: #a00 } nav a { margin-right: 1rem }
.bar { height: 6px; background: #eee; margin: .6rem 0 } .bar div { height: 100%; background: #0072b2 }
.state { padding: 0 .5rem; border: 1px solid #bbb; border-radius: 1rem; font-size: .85rem }
.running { border-color: #0072b2; color: #0072b2 }
.charts > div { min-width: 0 } input { font: inherit; padding: .2rem .5rem; width: min(100%, 24rem) }
"""


def make_app(folder: Path, host: str = "127.0.0.1") -> Starlette:
    """The application for the runs below a folder. At a loopback address it answers requests to this machine alone."""
    pages = Pages(folder.resolve())
    guard = [Middleware(TrustedHostMiddleware, allowed_hosts=list(LOOPBACK))] if host in LOOPBACK else []
    return Starlette(
        routes=[
            Route("/", pages.list_page),
            Route("/run/{name:path}", pages.run_page),
            Route("/api/runs", pages.list_runs),
            Route("/api/run/{name:path}", pages.run_data),
            Route("/file/{name:path}", pages.run_file),
            Route("/plotly.js", plotly),
            Route("/live.js", script),
        ],
        middleware=guard,
        exception_handlers={CoterieError: refuse, OSError: refuse, HTTPException: refuse},
    )


class Pages:
    """Answers about the runs below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, name: str) -> Run:
        """A run by its path below the folder."""
        path = self.path(name)
        if path is None or not (path / "config.yaml").is_file():
            raise HTTPException(404, f"there is no run '{name}' below '{self.folder}'")
        return Run(path)

    def path(self, name: str) -> Path | None:
        """A path below the folder; None where it leads out of it."""
        found = None if "\0" in name else (self.folder / name).resolve()
        return found if found is not None and found.is_relative_to(self.folder) else None

    def list_page(self, request: Request) -> Response:
        search = (
            '<p><input id=search type=search placeholder="filter: experiment, path, tag, state" aria-label=filter></p>'
        )
        return page(f"Runs below {self.folder.name}", [search, "<div id=runs class=wide></div>"])

    def run_page(self, request: Request) -> Response:
        name = request.path_params["name"]
        run = self.run(name)
        parts = [
            '<nav><a href="/">all runs</a><span id=links></span></nav>',
            f'<div id=run data-name="{escape(name, quote=True)}"><p id=head></p>',
            '<div class=bar><div style="width: 0"></div></div>',
            "<div id=scores></div><h2>Curves</h2><div id=charts class=charts></div></div>",
            *settings_section.report_section(run.config()),
        ]
        return page(name or self.folder.name, parts)

    def list_runs(self, request: Request) -> Response:
        """Every run in a line, as `coterie runs --json` has it."""
        found = [one for run in run_index.find(self.folder) if (one := described(run)) is not None]
        rows = [dataclasses.asdict(one) | {"name": str(Path(one.path).relative_to(self.folder))} for one in found]
        return JSONResponse(sorted(rows, key=lambda row: row["date"], reverse=True))

    def run_data(self, request: Request) -> Response:
        """Numbers and charts of a run; its version alone where the page has that one already."""
        run = self.run(request.path_params["name"])
        state = run_index.state_of(run, run.summary())
        version = f"{state}-{run.metrics_file.stat().st_size if run.metrics_file.exists() else 0}"
        if request.query_params.get("version") == version:
            return JSONResponse({"version": version})
        records = run.metrics()
        last = records[-1] if records else {"env_steps": 0, "wall_s": 0.0}
        return JSONResponse(
            {
                "version": version,
                "state": state,
                "steps": last["env_steps"],
                "total_steps": run.config().train.total_steps,
                "seconds": last["wall_s"],
                "files": shown_files(run),
                "scores": "".join(scores_section.report_section([run])),
                "charts": [interactive.to_dict(chart) for chart in curves.charts([run])] if records else [],
            }
        )

    def run_file(self, request: Request) -> Response:
        """A report or a video."""
        path = self.path(request.path_params["name"])
        if path is None or path.suffix not in SHOWN or not path.is_file() or not self.in_run(path):
            raise HTTPException(404, "there is no such report or video")
        return FileResponse(path)

    def in_run(self, file: Path) -> bool:
        """Whether a file below the folder belongs to a run there."""
        return any((one / "config.yaml").is_file() for one in file.parents if one.is_relative_to(self.folder))


def described(run: Run) -> run_index.Listed | None:
    """The run's entry in the list; None, with a warning, where its files vanish meanwhile or may not be read."""
    path = str(run.path)
    try:
        path.encode()  # JSON is UTF-8; a file system may have other names
        return run_index.describe(run)
    except (OSError, UnicodeEncodeError) as error:
        log.warning("'%s' is left out: %s", path.encode(errors="backslashreplace").decode(), error)
        return None


def shown_files(run: Run) -> dict[str, str]:
    """The report and the newest video of a run, by what they are."""
    found = {"report": run.path / "report.html"} if (run.path / "report.html").is_file() else {}
    for gif in run.videos()[-1:]:
        mp4 = gif.with_suffix(".mp4")
        found["video"] = mp4 if mp4.is_file() else gif
    return {name: str(path.relative_to(run.path)) for name, path in found.items()}


def page(title: str, parts: list[str]) -> HTMLResponse:
    """A page with the scripts that keep it up to date."""
    scripts = '<p id=error class=error></p><script src="/plotly.js"></script><script src="/live.js"></script>'
    return HTMLResponse(html.document(title, [f"<h1>{escape(title)}</h1>", *parts, scripts], STYLE))


def plotly(request: Request) -> Response:
    """plotly.js of the installed package."""
    file = interactive.library_file()
    if file is None:
        raise HTTPException(404, "plotly is not installed: pip install 'coterie[web]'")
    return FileResponse(file, media_type="text/javascript", headers={"Cache-Control": "max-age=86400"})


def script(request: Request) -> Response:
    """The script of the pages."""
    return Response(files("coterie.app").joinpath("live.js").read_text(encoding="utf-8"), media_type="text/javascript")


def refuse(request: Request, error: Exception) -> Response:
    """An error in its own words: as JSON for the script, as a page for a person."""
    status, said = (error.status_code, error.detail) if isinstance(error, HTTPException) else (422, str(error))
    if request.url.path.startswith("/api/"):
        return JSONResponse({"error": said}, status)
    parts = ['<nav><a href="/">all runs</a></nav>', f"<p class=error>{escape(said)}</p>"]
    return HTMLResponse(html.document("Not shown", parts, STYLE), status)
