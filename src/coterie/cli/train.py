"""Commands that train and play: train, resume, eval, watch. Each imports heavy modules when it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli.app import AsJson, Checkpoint, Experiment, Overrides, Quiet, RunPath, Seed, Stochastic, app
from coterie.cli.stop import Stopped, stoppable

if TYPE_CHECKING:
    from coterie.training.run import Run


@app.command()
def train(
    experiment: Experiment,
    overrides: Overrides = None,
    out: Annotated[str | None, typer.Option(help="directory of the run (default: runs/EXPERIMENT/TIME-seedN)")] = None,
    multirun: Annotated[bool, typer.Option("-m", help="sweep: a=1,2 b=3,4 trains four runs")] = False,
    jobs: Annotated[int, typer.Option(help="runs of a sweep to train at a time, each in its own process")] = 1,
    quiet: Quiet = False,
) -> None:
    """Train an experiment and write a run."""
    from coterie import api
    from coterie.config.schema import ConfigError
    from coterie.studies import sweep
    from coterie.training.jobs import demand_jobs

    demand_jobs(jobs)
    if not multirun:
        if jobs > 1:
            raise ConfigError("--jobs: a single run has one process; -m a=1,2 trains several runs")
        with stoppable() as interrupted:
            if not print_outcome(api.train(experiment, overrides or [], out, quiet)):
                raise Stopped(interrupted.exit_code)
        return
    planned = sweep.plan_sweep(experiment, overrides or [], out)

    same = "; the same command goes on"

    def announce(number: int, one: sweep.Combination) -> None:
        print(f"[{number + 1}/{len(planned)}] {' '.join(one.overrides)}")

    with stoppable() as interrupted:
        left, finished = set(range(len(planned))), True
        for number, run in sweep.run_sweep(experiment, planned, jobs, quiet, interrupted, announce):
            if jobs > 1:
                announce(number, planned[number])
            left.discard(number)
            finished = print_outcome(run) and finished
            if not finished and jobs == 1:
                break
        if left:
            begun = f"{len(left)} of {len(planned)} runs have not begun"
            print(f"{begun}, the first is {' '.join(planned[min(left)].overrides)}{same if out else ''}")
        if left or not finished:
            raise Stopped(interrupted.exit_code)


def print_outcome(run: Run) -> bool:
    """Print a run's scores and files; False when a signal stopped it early."""
    summary = run.summary()
    if summary is None:
        print(f"stopped and saved at {max(run.steps(), default=0):,} steps; continue with: coterie resume {run.path}")
        return False
    solved = ", solved" if summary["solved"] else ""
    print(
        f"{summary['env_steps']:,} steps in {summary['wall_s']:.0f} s, {summary['steps_per_s']:,.0f} per second{solved}"
    )
    print(f"greedy play, {summary['episodes']} held-out episodes:")
    last = summary.get("best_rule") == "last"  # runs of earlier versions do not say
    rows = {f"trained ({'last' if last else 'best'})": summary["evaluation"]}
    rows |= {"trained, drawn": summary["drawn"]} if "drawn" in summary else {}
    rows |= {"step 0": summary["step_0"]}
    rows |= {"step 0, drawn": summary["step_0"]["drawn"]} if "drawn" in summary["step_0"] else {}
    for name, result in (rows | summary["baselines"]).items():
        print_result(name, result)
    if last:
        print(f"best     {summary['best_reason']}")
    print(f"run      {run.path}")
    for video in run.videos()[-1:]:
        print(f"video    {video}")
    if (run.path / "report.html").exists():
        print(f"report   {run.path / 'report.html'}")
    print_unanswered(summary.get("unanswered", {}))
    return True


def print_unanswered(found: dict[str, dict[str, int]]) -> None:
    """Print which language models left questions without an answer; raise an error for one that answered none."""
    from coterie.training.language_models import describe_unanswered, refuse_silent_models

    refuse_silent_models(found)
    for line in describe_unanswered(found):
        print(line)


def print_result(name: str, result: dict[str, Any]) -> None:
    """Print one line for each group of an evaluation."""
    for group, score in result["groups"].items():
        low, high = score["return_ci95"]
        success = "" if result["success_rate"] is None else f"  success {result['success_rate']:.1%}"
        numbers = f"{score['return_mean']:7.2f} [{low:.2f}, {high:.2f}]  length {score['length_mean']:.1f}{success}"
        print(f"  {name:14} {group:8} {numbers}")


@app.command()
def resume(run: RunPath, overrides: Overrides = None, quiet: Quiet = False) -> None:
    """Continue a stopped run, or train a finished one for longer."""
    from coterie import api
    from coterie.training.run import Run

    with stoppable() as interrupted:
        continued = api.resume(run, overrides, quiet)
        directory = Run.open(run)
        summary = directory.summary()
        if not continued and summary is not None:
            print(
                f"{run} has finished at {summary['env_steps']:,} steps; more: coterie resume {run} train.total_steps=N"
            )
        elif not print_outcome(directory):
            raise Stopped(interrupted.exit_code)


@app.command("eval")
def evaluate(
    run: RunPath,
    overrides: Overrides = None,
    episodes: Annotated[int, typer.Option(min=1, help="number of episodes")] = 100,
    seed: Seed = 0,
    stochastic: Stochastic = False,
    as_json: AsJson = False,
    checkpoint: Checkpoint = "best",
    policy: Annotated[
        str | None, typer.Option(help="who plays instead of the groups that learned: teacher, random, expert, …")
    ] = None,
) -> None:
    """Evaluate a run's policies, or its teacher, on held-out episodes."""
    from coterie.core.types import as_metrics
    from coterie.training import table
    from coterie.training.evaluate import actor_metrics
    from coterie.training.language_models import actors_unanswered, refuse_silent_models

    loaded = table.load(run, checkpoint, overrides, policy)
    actors = [group.actor for group in loaded.groups]
    result = loaded.evaluate(episodes, seed, greedy=not stochastic).to_dict()
    unanswered = actors_unanswered(actors)
    if as_json:
        mode = "sample" if stochastic else "greedy"
        head = {"run": run, "checkpoint": checkpoint, "mode": mode, "episodes": episodes, "seed": seed}
        head["players"] = loaded.players
        found = actor_metrics(actors)
        metrics = {name: as_metrics(counters) for name, counters in found.items()}
        more = ({"reports": metrics} if metrics else {}) | ({"unanswered": unanswered} if unanswered else {})
        print(json.dumps(head | {"env_steps": loaded.env_steps} | result | more))
        refuse_silent_models(unanswered)
        return
    mode = "stochastic" if stochastic else "greedy"
    who = set(loaded.players.values())
    told = f"{who.pop()}, " if len(who) == 1 else ""
    print(f"{run}, {told}{mode}, {episodes} episodes, seed {seed}")
    for group, player in loaded.players.items() if not told else ():
        print(f"  {group}: {player}")
    print_result(mode, result)
    print_unanswered(unanswered)


@app.command()
def plans(
    experiment: Experiment,
    overrides: Overrides = None,
    out: Annotated[str, typer.Option(help="JSON file to write")] = "plans.json",
    episodes: Annotated[int, typer.Option(min=1, help="episodes of each kind of play")] = 100,
    group: Annotated[str | None, typer.Option(help="the group that is taught (default: the only one)")] = None,
) -> None:
    """Ask an experiment's teacher about what it meets in play, and write its plans as a table."""
    from coterie.training.plans import find_plans

    table = find_plans(experiment, overrides, episodes, group)
    table.write(out)
    print(f"{len(table.plans)} text states, {len(table.skills)} skills: {out}")


@app.command()
def watch(
    run: RunPath,
    overrides: Overrides = None,
    window: Annotated[bool, typer.Option("--window", help="play in a window")] = False,
    terminal: Annotated[bool, typer.Option("--terminal", help="play in this terminal")] = False,
    out: Annotated[str | None, typer.Option(help="GIF file to write (default: in RUN/videos)")] = None,
    episodes: Annotated[int, typer.Option(min=1, help="number of episodes")] = 1,
    seed: Seed = 0,
    stochastic: Stochastic = False,
    fps: Annotated[int | None, typer.Option(min=1, max=60, help="frames per second")] = None,
    checkpoint: Checkpoint = "best",
) -> None:
    """Show a run's policies in a video, a terminal or a window."""
    from coterie.training import build, table, video
    from coterie.training.language_models import actors_unanswered
    from coterie.training.loop import evaluation_seed

    loaded = table.load(run, checkpoint, overrides)
    world = build.build_render_world(loaded.config.world)
    actors = [group.actor for group in loaded.groups]
    start, greedy = evaluation_seed(seed), not stochastic
    if window:
        video.show_in_window(world, actors, start, episodes, greedy, fps)
    elif terminal:
        video.show_in_terminal(world, actors, start, episodes, greedy, fps)
    else:
        path = Path(out) if out else Path(run) / "videos" / f"{checkpoint}-seed{seed}.gif"
        print(video.write_video(world, actors, start, path, episodes, greedy, fps))
    print_unanswered(actors_unanswered(actors))
