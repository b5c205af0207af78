"""Train and resume runs, evaluate and watch them. Heavy modules are imported inside the command that needs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli.app import Overrides, RunPath, Seed, Which, app


@app.command()
def train(
    experiment: Annotated[str, typer.Argument(metavar="EXPERIMENT|FILE", help="a name from 'list', or a YAML file")],
    overrides: Overrides = None,
    out: Annotated[str | None, typer.Option(help="the run's directory")] = None,
    multirun: Annotated[bool, typer.Option("-m", help="sweep: a=1,2 b=3,4 makes four runs")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress")] = False,
) -> None:
    """Train an experiment and write a run."""
    from coterie import api
    from coterie.config import schema
    from coterie.training import start

    words = overrides or []
    combinations = schema.sweep(words) if multirun else [words]
    for combination in combinations if multirun else ():
        start.check(experiment, combination)  # refuse the last before the first has run for an hour
    for number, combination in enumerate(combinations):
        if multirun:
            print(f"[{number + 1}/{len(combinations)}] {' '.join(combination)}")
        into = out
        if out is not None and multirun:
            swept = [word for word in combination if word not in words]  # what tells this run from the others
            into = str(Path(out) / ("_".join(swept) or "run").replace("/", "-"))
        if not conclude(api.train(experiment, combination, into, quiet)):
            return  # Ctrl-C ends the sweep, not only the run under way


def conclude(run: Any) -> bool:
    """Say what came of a training and where it lies; False when Ctrl-C ended it early."""
    summary = run.summary()
    if summary is None:
        print(f"stopped and saved at {max(run.steps(), default=0):,} steps; go on with: coterie resume {run.path}")
        return False
    solved = ", solved" if summary["solved"] else ""
    print(
        f"{summary['env_steps']:,} steps in {summary['wall_s']:.0f} s, {summary['steps_per_s']:,.0f} per second{solved}"
    )
    print(f"greedy play, {summary['episodes']} held-out episodes:")
    rows = {"trained (best)": summary["evaluation"], "step 0": summary["step_0"]} | summary["baselines"]
    for name, result in rows.items():
        print_result(name, result)
    print(f"run      {run.path}")
    for film in run.films()[-1:]:
        print(f"video    {film}")
    print(f"report   {run.path / 'report.html'}")
    return True


def print_result(name: str, result: dict[str, Any]) -> None:
    for group, score in result["groups"].items():
        low, high = score["return_ci95"]
        success = "" if result["success_rate"] is None else f"  success {result['success_rate']:.1%}"
        numbers = f"{score['return_mean']:7.2f} [{low:.2f}, {high:.2f}]  length {score['length_mean']:.1f}{success}"
        print(f"  {name:14} {group:8} {numbers}")


@app.command()
def resume(run: RunPath, overrides: Overrides = None, quiet: Annotated[bool, typer.Option("--quiet")] = False) -> None:
    """Go on with a run that was stopped, or with a longer one (train.total_steps=…)."""
    from coterie import api
    from coterie.training.run import Run

    went_on = api.resume(run, overrides, quiet)
    directory = Run.open(run)
    summary = directory.summary()
    if not went_on and summary is not None:
        print(f"{run} has finished at {summary['env_steps']:,} steps; more: coterie resume {run} train.total_steps=N")
        return
    conclude(directory)


@app.command("eval")
def evaluate(
    run: RunPath,
    overrides: Overrides = None,
    episodes: Annotated[int, typer.Option(min=1, help="to play")] = 100,
    seed: Seed = 0,
    sample: Annotated[bool, typer.Option("--sample", help="draw actions instead of taking the likeliest")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
    checkpoint: Which = "best",
) -> None:
    """Play held-out episodes with a run's policies, greedily unless told otherwise."""
    from coterie.core.types import as_metrics
    from coterie.training import table
    from coterie.training.evaluate import actor_metrics

    loaded = table.load(run, checkpoint, overrides)
    result = loaded.evaluate(episodes, seed, greedy=not sample).plain()
    mode = "sample" if sample else "greedy"
    head = {"run": run, "checkpoint": checkpoint, "mode": mode, "episodes": episodes, "seed": seed}
    if as_json:
        found = actor_metrics([group.actor for group in loaded.groups])
        told = {name: as_metrics(counters) for name, counters in found.items()}
        print(json.dumps(head | {"env_steps": loaded.env_steps} | result | ({"reports": told} if told else {})))
        return
    print(f"{run}, checkpoint {checkpoint} ({loaded.env_steps:,} steps), {mode}, {episodes} episodes, seed {seed}")
    print_result(mode, result)


@app.command()
def watch(
    run: RunPath,
    overrides: Overrides = None,
    window: Annotated[bool, typer.Option("--window", help="open a window")] = False,
    terminal: Annotated[bool, typer.Option("--terminal", help="play in this terminal")] = False,
    out: Annotated[str | None, typer.Option(help="the GIF to write (default: in RUN/videos)")] = None,
    episodes: Annotated[int, typer.Option(min=1)] = 1,
    seed: Seed = 0,
    sample: Annotated[bool, typer.Option("--sample")] = False,
    fps: Annotated[int | None, typer.Option(min=1, max=60, help="frames a second")] = None,
    checkpoint: Which = "best",
) -> None:
    """Look at a run's policies: a video file, this terminal, or a window."""
    from coterie.training import build, table, video
    from coterie.training.loop import evaluation_seed

    loaded = table.load(run, checkpoint, overrides)
    world = build.build_stage(loaded.config.world)
    actors = [group.actor for group in loaded.groups]
    start = evaluation_seed(seed)
    if window:
        video.show_in_window(world, actors, start, episodes, not sample, fps)
    elif terminal:
        video.show_in_terminal(world, actors, start, episodes, not sample, fps)
    else:
        path = Path(out) if out else Path(run) / "videos" / f"{checkpoint}-seed{seed}.gif"
        print(video.write_video(world, actors, start, path, episodes, not sample, fps))
