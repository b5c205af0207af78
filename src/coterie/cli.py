"""The command line. Everything heavy is imported inside the command that needs it."""

from __future__ import annotations

import json
import logging
import sys
import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli_rate import rate

app = typer.Typer(
    help="Multi-agent reinforcement learning in which any kind of agent sits at the same table.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
check_app = typer.Typer(help="Hold a part against its contract.", no_args_is_help=True)
config_app = typer.Typer(help="Show or validate settings.", no_args_is_help=True)
app.add_typer(check_app, name="check")
app.add_typer(config_app, name="config")

Overrides = Annotated[list[str] | None, typer.Argument(help="key=value, for example train.total_steps=100000")]
RunPath = Annotated[str, typer.Argument(metavar="RUN", help="a run's directory")]
Which = Annotated[str, typer.Option("--checkpoint", help="best, last or a step")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="of the episodes, not of the training")]


@app.command("list")
def list_() -> None:
    """Name the experiments and all that a config can choose from."""
    from coterie import names
    from coterie.config import EXPERIMENTS, experiments

    print("experiments")
    folders: dict[str, list[str]] = {}
    for name in experiments():
        folder, _, rest = name.rpartition("/")
        if folder:
            folders.setdefault(folder, []).append(rest)
            continue
        first = (EXPERIMENTS / f"{name}.yaml").read_text().splitlines()[0]
        print(f"  {name:26}  {first.removeprefix('# ')}")
    for folder, names_there in folders.items():
        print(wrapped(f"{folder}/: {', '.join(names_there)}"))
    tables = {"worlds": names.WORLDS, "policies": names.POLICIES, "learners": names.LEARNERS}
    for title, table in (tables | {"preferences": names.PREFERENCES}).items():
        print(f"{title}\n{wrapped(', '.join(table))}")
    print("one's own: package.module:Name in place of any of these")


def wrapped(line: str) -> str:
    """Indented, in lines that fit a terminal."""
    return textwrap.fill(line, 78, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


@app.command()
def train(
    experiment: Annotated[str, typer.Argument(metavar="EXPERIMENT|FILE", help="a name from 'list', or a YAML file")],
    overrides: Overrides = None,
    out: Annotated[str | None, typer.Option(help="the run's directory")] = None,
    multirun: Annotated[bool, typer.Option("-m", help="sweep: a=1,2 b=3,4 makes four runs")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress")] = False,
) -> None:
    """Train an experiment and write a run."""
    from coterie import config, table

    words = overrides or []
    combinations = config.sweep(words) if multirun else [words]
    for combination in combinations:
        table.check(experiment, combination)  # refuse the last before the first has run for an hour
    for number, combination in enumerate(combinations):
        if multirun:
            print(f"[{number + 1}/{len(combinations)}] {' '.join(combination)}")
        into = out
        if out is not None and multirun:
            swept = [word for word in combination if word not in words]  # what tells this run from the others
            into = str(Path(out) / ("_".join(swept) or "run").replace("/", "-"))
        if not conclude(table.train(experiment, combination, into, quiet)):
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
    from coterie import table
    from coterie.run import Run

    went_on = table.resume(run, overrides, quiet)
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
    from coterie import table
    from coterie.evaluate import reports

    loaded = table.load(run, checkpoint, overrides)
    result = loaded.evaluate(episodes, seed, greedy=not sample).plain()
    mode = "sample" if sample else "greedy"
    head = {"run": run, "checkpoint": checkpoint, "mode": mode, "episodes": episodes, "seed": seed}
    if as_json:
        told = reports([group.seat for group in loaded.groups])
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
    from coterie import build, table, video
    from coterie.training import evaluation_seed

    loaded = table.load(run, checkpoint, overrides)
    world = build.build_stage(loaded.config.world)
    seats = [group.seat for group in loaded.groups]
    start = evaluation_seed(seed)
    if window:
        video.show_in_window(world, seats, start, episodes, not sample, fps)
    elif terminal:
        video.show_in_terminal(world, seats, start, episodes, not sample, fps)
    else:
        path = Path(out) if out else Path(run) / "videos" / f"{checkpoint}-seed{seed}.gif"
        print(video.write_video(world, seats, start, path, episodes, not sample, fps))


@app.command()
def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN…", help="one run, or several seeds of an experiment")],
    out: Annotated[str | None, typer.Option(help="the page to write (default: RUN/report.html)")] = None,
    figure: Annotated[
        str | None, typer.Option(help="also write the drawings as PNGs: NAME.png, and NAME-bids.png of auctions")
    ] = None,
    numbers: Annotated[
        str | None, typer.Option(help="also write the world's own numbers, and what was exploited, as JSON")
    ] = None,
) -> None:
    """Draw one HTML page of one run or several."""
    from coterie.report import write_report
    from coterie.run import Run

    path = Path(out) if out else Path(runs[0]) / "report.html"
    told = [Path(file) if file else None for file in (figure, numbers)]
    print(write_report([Run.open(run) for run in runs], path, *told))


@app.command()
def match(
    players: Annotated[list[str], typer.Argument(metavar="RUN|NAME…", help="runs, or scripted players such as random")],
    world: Annotated[
        str | None, typer.Option(help="the experiment or run whose table is used (default: first run's)")
    ] = None,
    episodes: Annotated[int, typer.Option(min=2, help="for every pair and rotation of seats")] = 100,
    seed: Seed = 0,
    sample: Annotated[bool, typer.Option("--sample")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
    figure: Annotated[str | None, typer.Option(help="also draw the matrix as a PNG")] = None,
    checkpoint: Which = "best",
) -> None:
    """Let players meet: a cross-play matrix over seats, with confidence intervals."""
    from coterie import config
    from coterie import match as matches
    from coterie.run import Run

    met = matches.open_players(players, checkpoint)
    table = next((p.table.config for p in met if p.table is not None), None)
    if world is not None:
        table = Run.open(world).config() if (Path(world) / "config.yaml").is_file() else config.load(world)
    if table is None:
        raise config.ConfigError("scripted players alone need a table: --world EXPERIMENT")
    matrix = matches.cross_play(met, table, episodes, seed, greedy=not sample)
    if figure is not None:
        matches.draw_heatmap(met, matrix, Path(figure))
    if as_json:
        print(json.dumps(matches.as_plain(met, matrix, episodes, seed)))
    else:
        print(matches.as_table(met, matrix))


@app.command()
def exploit(
    run: RunPath,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="of the responder's training: groups.responder.…, train.…, seed")
    ] = None,
    group: Annotated[
        list[str] | None, typer.Option(help="who might deviate (default: all that learn); repeat it")
    ] = None,
    deviates: Annotated[str, typer.Option(help="agent (a group's first one), each in turn, or the group")] = "agent",
    learner: Annotated[str | None, typer.Option(help="of the responder (default: the group's own, else ppo)")] = None,
    steps: Annotated[int | None, typer.Option(help="of its training (default: the run's own)")] = None,
    episodes: Annotated[int, typer.Option(help="to play")] = 256,
    seed: Seed = 0,
    sample: Annotated[bool, typer.Option("--sample", help="the run's policies draw their actions")] = False,
    checkpoint: Which = "best",
    out: Annotated[str | None, typer.Option(help="where responders go (default: RUN/exploit)")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress")] = False,
) -> None:
    """Train best responses to a run: how much would somebody gain by deviating?"""
    from coterie import exploiting

    asked = exploiting.Question(checkpoint, tuple(group or ()), deviates, learner, steps, episodes, seed, sample)  # type: ignore[arg-type]  # it checks itself
    found = exploiting.exploit(run, asked, overrides, out, quiet)
    print(json.dumps(found.plain()) if as_json else exploiting.as_table(found))


@app.command()
def tune(
    experiment: Annotated[str, typer.Argument(metavar="EXPERIMENT|FILE", help="a name from 'list', or a YAML file")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value; what is fixed here is not searched")] = None,
    trials: Annotated[int, typer.Option(min=1, help="in the whole study, counting those it already has")] = 20,
    study: Annotated[str | None, typer.Option(help="SQLite file (default: runs/tune/EXPERIMENT.db)")] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="search these alone, e.g. '*.learning_rate'; repeat it")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="trainings per trial; the score is their mean")] = 1,
    pruner: Annotated[str, typer.Option(help="ends trials that fall behind: median, halving or none")] = "median",
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Search for better settings; the same command goes on with a study that was stopped."""
    from importlib.util import find_spec

    from coterie.config import ConfigError
    from coterie.types import CoterieError

    if find_spec("optuna") is None:
        raise CoterieError("'coterie tune' needs Optuna: pip install 'coterie[tune]'")
    if pruner not in ("median", "halving", "none"):
        raise ConfigError(f"--pruner: expected 'median', 'halving' or 'none', got '{pruner}'")
    from coterie import tune as tuning

    plan = tuning.Plan(experiment, tuple(overrides or ()), trials, study, tuple(only or ()), seeds, pruner)  # type: ignore[arg-type]  # checked above
    tuned = tuning.tune(plan, (lambda text: None) if as_json else print)
    print(json.dumps(tuning.as_plain(tuned)) if as_json else "\n".join(tuning.conclusion(tuned)))


@app.command()
def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN|SWEEP…", help="runs, or directories with runs below them")],
    threshold: Annotated[float | None, typer.Option(help="report how soon evaluations reach this score")] = None,
    score: Annotated[str, typer.Option(help="whose held-out return: the best checkpoint's or the last one's")] = "best",
    group: Annotated[str | None, typer.Option(help="whose return (default: mean of the groups that learn)")] = None,
    by: Annotated[list[str] | None, typer.Option(help="what tells contenders apart: a setting, or 'argument'")] = None,
    skip_unfinished: Annotated[bool, typer.Option("--skip-unfinished", help="leave such runs out")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
    csv: Annotated[str | None, typer.Option(help="also write one row per run to this file")] = None,
    figure: Annotated[str | None, typer.Option(help="also draw curves, profiles and intervals as a PNG")] = None,
    out: Annotated[str | None, typer.Option(help="also write an HTML page")] = None,
) -> None:
    """Hold runs against each other: robust means with intervals, who beats whom, how soon."""
    from coterie import compare as comparing
    from coterie import compare_show, contenders, page

    entrants, skipped = contenders.read(runs, score, group, skip_unfinished)
    found = comparing.compare(contenders.gather(entrants, by or ()), threshold)
    if csv is not None:
        compare_show.write_csv(found, Path(csv))
    if figure is not None:
        page.write_png(Path(figure), compare_show.draw(found))
    if out is not None:
        compare_show.write_page(found, score, Path(out), skipped)
    if as_json:
        head = {"score": score, "group": group, "skipped": [str(path) for path in skipped]}
        print(json.dumps(head | comparing.as_plain(found)))
    else:
        print(compare_show.as_table(found, score, skipped))


app.command()(rate)


@check_app.command("world")
def check_world_(
    name: Annotated[str, typer.Argument(help="a world from 'list', or package.module:Name")],
    overrides: Overrides = None,
    steps: Annotated[int, typer.Option(min=1)] = 200,
) -> None:
    """Hold a world against its contract: shapes, bounds, ends, seeds, saving."""
    from coterie import build, config, names
    from coterie.testing import check_world

    values = config.parse_overrides([w.removeprefix("world.") for w in overrides or []])
    part = config.part(names.WORLDS, {"name": name} | values, "world")
    check_world(lambda copies: build.build_world(part, copies), steps=steps)
    print(f"{name}: keeps the contract over {steps} steps")


@config_app.command("show")
def config_show(experiment: str, overrides: Overrides = None) -> None:
    """Print an experiment with every default written out."""
    from coterie import config

    print(config.to_yaml(config.load(experiment, overrides)), end="")


@config_app.command("validate")
def config_validate(experiment: str, overrides: Overrides = None) -> None:
    """Check an experiment down to the objects it builds, without training."""
    from coterie import table

    table.check(experiment, overrides)
    print(f"{experiment}: valid")


@app.command()
def doctor() -> None:
    """Say what this machine has, and what is missing for which feature."""
    from coterie.doctor import examine

    for line in examine():
        print(line)


def main() -> None:
    """Run a command; failures that we can name are printed without a traceback."""
    from coterie.types import CoterieError

    logging.basicConfig(level=logging.WARNING, format="coterie: %(message)s", stream=sys.stderr)
    sys.path.append(str(Path.cwd()))  # one's own package.module:Name may lie here
    try:
        app()
    except CoterieError as error:
        print(f"coterie: {error}", file=sys.stderr)
        sys.exit(2 if type(error).__name__ == "ConfigError" else 1)
    except OSError as error:
        if error.filename is None:
            raise
        print(f"coterie: '{error.filename}': {error.strerror}", file=sys.stderr)
        sys.exit(1)
    except SystemExit as left:
        if left.code == 130:  # what Typer makes of Ctrl-C
            cure = "'coterie resume RUN' goes on from the last checkpoint, the same 'coterie tune' with its study"
            print(f"coterie: left at once; {cure}", file=sys.stderr)
        raise
