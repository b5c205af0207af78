"""Commands that train and play: train, resume, eval, watch. Each imports heavy modules when it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.app import (
    AsJson,
    Checkpoint,
    Experiment,
    Overrides,
    PlayOverrides,
    Quiet,
    RunPath,
    Seed,
    Stochastic,
    app,
)
from coterie.cli.outcome import print_counters, print_outcome, print_results, print_sweep, print_unanswered
from coterie.cli.stop import Stopped, stoppable


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
    from coterie.cli.progress import Tasks
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

    before = {number for number, one in enumerate(planned) if (one.directory / "summary.json").is_file()}
    same = "; run the same command to continue"

    def announce(number: int, one: sweep.Combination) -> None:
        swept = [word for word in one.overrides if any(word not in other.overrides for other in planned)]
        print(f"[{number + 1}/{len(planned)}] {' '.join(swept)}{', finished before' if number in before else ''}")

    bar = Tasks(len(planned), "runs", quiet or jobs == 1, lines=False)
    with stoppable() as interrupted, bar:
        left, finished, runs = set(range(len(planned))), True, []
        for number, run in sweep.run_sweep(experiment, planned, jobs, quiet, interrupted, announce):
            if jobs > 1:
                announce(number, planned[number])
            bar.advance()
            left.discard(number)
            runs.append((number, run))
            finished = print_outcome(run, one_of_many=True) and finished
            if not finished and jobs == 1:
                break
        if left:
            begun = f"{len(left)} of {len(planned)} runs have not begun"
            print(f"{begun}, the first is {' '.join(planned[min(left)].overrides)}{same if out else ''}")
        if left or not finished:
            raise Stopped(interrupted.exit_code)
    print_sweep([run for _, run in sorted(runs, key=lambda pair: pair[0])], out)


@app.command()
def resume(run: RunPath, overrides: Overrides = None, quiet: Quiet = False) -> None:
    """Continue a stopped run, or train a finished one for longer."""
    from coterie import api
    from coterie.runs.run import Run

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
    overrides: PlayOverrides = None,
    episodes: Annotated[int, typer.Option(min=1, help="number of episodes")] = 100,
    seed: Seed = 0,
    stochastic: Stochastic = False,
    as_json: AsJson = False,
    checkpoint: Checkpoint = "best",
    policy: Annotated[
        str | None,
        typer.Option(help="policy in place of the groups that learned: teacher, random, alphabeta:depth=6, …"),
    ] = None,
    transcripts: Annotated[int, typer.Option(min=0, help="text tasks: episodes to print as text")] = 0,
) -> None:
    """Evaluate a run's policies, or its teacher, on held-out episodes."""
    from coterie.core.types import as_metrics
    from coterie.training import table
    from coterie.training.evaluate import actor_metrics, answer_tokens
    from coterie.training.language_models import metrics_unanswered, refuse_silent_models

    loaded = table.load(run, checkpoint, overrides, policy)
    actors = [group.actor for group in loaded.groups]
    result = loaded.evaluate(episodes, seed, greedy=not stochastic).to_dict()
    found = actor_metrics(actors)  # read once: some policies count since the last call
    unanswered = metrics_unanswered(found)
    if as_json:
        mode = "sample" if stochastic else "greedy"
        head = {"run": run, "checkpoint": checkpoint, "mode": mode, "episodes": episodes, "seed": seed}
        head["players"] = loaded.players
        metrics = {name: as_metrics(counters) for name, counters in found.items()}
        more = ({"reports": metrics} if metrics else {}) | ({"unanswered": unanswered} if unanswered else {})
        print(json.dumps(head | {"env_steps": loaded.env_steps} | result | more))
        refuse_silent_models(unanswered)
        return
    mode = "stochastic" if stochastic else "greedy"
    who = set(loaded.players.values())
    players = f"{who.pop()}, " if len(who) == 1 else ""
    print(f"{run}, {players}{mode}, {episodes} episodes, seed {seed}")
    for group, player in loaded.players.items() if not players else ():
        print(f"  {group}: {player}")
    print_results({mode: result})
    print_counters(result.get("counters", {}), answer_tokens(actors, found))
    print_unanswered(unanswered)
    if transcripts:
        from coterie.studies.transcripts import record_transcripts

        for number, one in enumerate(record_transcripts(loaded, transcripts, seed, not stochastic)):
            print(f"\nepisode {number + 1}\n{one.text()}")


@app.command()
def plans(
    experiment: Experiment,
    overrides: Overrides = None,
    out: Annotated[str, typer.Option(help="JSON file to write")] = "plans.json",
    episodes: Annotated[int, typer.Option(min=1, help="episodes of each kind of play")] = 100,
    group: Annotated[str | None, typer.Option(help="the group that is taught (default: the only one)")] = None,
) -> None:
    """Ask an experiment's teacher about the states met in play, and write its plans as a table."""
    from coterie.training.plan_tables import find_plans

    table = find_plans(experiment, overrides, episodes, group)
    table.write(out)
    print(f"{len(table.plans)} text states, {len(table.skills)} skills: {out}")


@app.command()
def watch(
    run: RunPath,
    overrides: PlayOverrides = None,
    window: Annotated[bool, typer.Option("--window", help="play in a window")] = False,
    terminal: Annotated[bool, typer.Option("--terminal", help="play in this terminal")] = False,
    out: Annotated[str | None, typer.Option(help=".gif or .mp4 file to write (default: in RUN/videos)")] = None,
    episodes: Annotated[int, typer.Option(min=1, help="number of episodes")] = 1,
    seed: Seed = 0,
    stochastic: Stochastic = False,
    fps: Annotated[int | None, typer.Option(min=1, max=60, help="frames per second")] = None,
    checkpoint: Checkpoint = "best",
) -> None:
    """Show a run's policies in a video, a terminal or a window."""
    from coterie.training import build, table
    from coterie.training.language_models import actors_unanswered
    from coterie.training.loop import evaluation_seed
    from coterie.training.players import policy_kind
    from coterie.video import films as video
    from coterie.video import mp4

    loaded = table.load(run, checkpoint, overrides)
    world = build.build_render_world(loaded.config.world)
    actors = [group.actor for group in loaded.groups]
    kinds = {name: policy_kind(group) for name, group in loaded.config.groups.items()}
    start, showing = evaluation_seed(seed), video.Showing(episodes, not stochastic, fps, kinds)
    if window:
        video.show_in_window(world, actors, start, showing)
    elif terminal:
        video.show_in_terminal(world, actors, start, showing)
    else:
        paths = [Path(out)] if out else video.video_paths(Path(run) / "videos" / f"{checkpoint}-seed{seed}.gif")
        video.write_video(world, actors, start, paths, showing)
        print("\n".join(map(str, paths)))
        if not mp4.available():
            print(f"to write an MP4 as well: {mp4.CURE}")
    print_unanswered(actors_unanswered(actors))
