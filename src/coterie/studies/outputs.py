"""Outputs of a training for people to look at: a video of its best policies and a report."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.config.schema import Config
from coterie.core.group import Actor
from coterie.core.signals import Interrupted
from coterie.core.types import CoterieError
from coterie.core.world import Renderable
from coterie.runs.extras import extra
from coterie.runs.run import Run
from coterie.studies.report import report
from coterie.training import build, loop
from coterie.training.players import policy_kind
from coterie.video import films


class VideoAndReport(loop.Outputs):
    """A video of one episode of the best policies, unless `train.video` is false, and a report."""

    def begin(self, config: Config) -> None:
        if config.train.video:
            films.warn_undrawable(config.world)

    def finish(self, run: Run, config: Config, actors: Sequence[Actor]) -> None:
        if config.train.video:
            with extra("video", "; train.video=false makes none"):
                try:
                    write_best_video(run, config, actors)
                except Interrupted:  # everything else is there
                    raise CoterieError("stopped by a signal; 'coterie watch RUN' makes one") from None
        with extra("report"):
            report.write_report([run], run.path / "report.html")

    def missing(self, run: Run) -> None:
        if not (run.path / "report.html").exists():
            with extra("report"):
                report.write_report([run], run.path / "report.html")


def write_best_video(run: Run, config: Config, actors: Sequence[Actor]) -> None:
    """Write a video of one episode of the best policies, if the world can be drawn."""
    world = build.build_render_world(config.world)
    if isinstance(world, Renderable):
        path = run.path / "videos" / "eval" / f"step-{run.steps('best')[-1]:012d}.gif"
        kinds = {name: policy_kind(group) for name, group in config.groups.items()}
        showing = films.Showing(episodes=None, kinds=kinds)
        films.write_video(world, actors, loop.evaluation_seed(0), films.video_paths(path), showing)
