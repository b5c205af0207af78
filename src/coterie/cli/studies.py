"""Studies of finished runs: report, match, exploit, tune, compare, rate."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli.app import RunPath, Seed, Which, app


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
    from coterie.studies.report import write_report
    from coterie.training.run import Run

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
    from coterie.config import schema
    from coterie.studies import match as matches
    from coterie.training.run import Run

    met = matches.open_players(players, checkpoint)
    table = next((p.table.config for p in met if p.table is not None), None)
    if world is not None:
        table = Run.open(world).config() if (Path(world) / "config.yaml").is_file() else schema.load(world)
    if table is None:
        raise schema.ConfigError("scripted players alone need a table: --world EXPERIMENT")
    matrix = matches.cross_play(met, table, episodes, seed, greedy=not sample)
    if figure is not None:
        matches.draw_heatmap(met, matrix, Path(figure))
    if as_json:
        print(json.dumps(matches.to_dict(met, matrix, episodes, seed)))
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
    from coterie.studies.exploit import exploit

    asked = exploit.Question(checkpoint, tuple(group or ()), deviates, learner, steps, episodes, seed, sample)  # type: ignore[arg-type]  # it checks itself
    found = exploit.exploit(run, asked, overrides, out, quiet)
    print(json.dumps(found.plain()) if as_json else exploit.as_table(found))


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

    from coterie.config.schema import ConfigError
    from coterie.core.types import CoterieError

    if find_spec("optuna") is None:
        raise CoterieError("'coterie tune' needs Optuna: pip install 'coterie[tune]'")
    if pruner not in ("median", "halving", "none"):
        raise ConfigError(f"--pruner: expected 'median', 'halving' or 'none', got '{pruner}'")
    from coterie.studies.tune import tune as tuning

    plan = tuning.Plan(experiment, tuple(overrides or ()), trials, study, tuple(only or ()), seeds, pruner)  # type: ignore[arg-type]  # checked above
    tuned = tuning.tune(plan, (lambda text: None) if as_json else print)
    print(json.dumps(tuning.to_dict(tuned)) if as_json else "\n".join(tuning.conclusion(tuned)))


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
    from coterie.studies import html
    from coterie.studies.compare import compare as comparing
    from coterie.studies.compare import runs as contenders
    from coterie.studies.compare import show

    entrants, skipped = contenders.read(runs, score, group, skip_unfinished)
    found = comparing.compare(contenders.gather(entrants, by or ()), threshold)
    if csv is not None:
        show.write_csv(found, Path(csv))
    if figure is not None:
        html.write_png(Path(figure), show.draw(found))
    if out is not None:
        show.write_page(found, score, Path(out), skipped)
    if as_json:
        head = {"score": score, "group": group, "skipped": [str(path) for path in skipped]}
        print(json.dumps(head | comparing.to_dict(found)))
    else:
        print(show.as_table(found, score, skipped))


@app.command()
def rate(
    runs: Annotated[list[str], typer.Argument(metavar="RUN RUN…", help="runs of one world")],
    judge: Annotated[
        str, typer.Option(help="person, return (the world's own), or a language model: embedded, NAME, URL")
    ] = "person",
    pairs: Annotated[int, typer.Option(min=1, help="of episodes to compare, counting those already rated")] = 50,
    episodes: Annotated[int, typer.Option(min=1, help="of each run")] = 10,
    seed: Annotated[int, typer.Option("--seed", min=0, help="of the episodes and the pairs")] = 0,
    instruction: Annotated[str | None, typer.Option(help="what is to be judged")] = None,
    group: Annotated[str | None, typer.Option(help="whose behaviour (default: the first that learned)")] = None,
    ratings: Annotated[
        str | None, typer.Option(help="file that keeps what was said (default: FIRST RUN/ratings-JUDGE.jsonl)")
    ] = None,
    out: Annotated[str | None, typer.Option(help="also write the scores as JSON")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
    sample: Annotated[bool, typer.Option("--sample", help="draw actions instead of taking the likeliest")] = False,
    checkpoint: Annotated[str, typer.Option("--checkpoint", help="best, last or a step")] = "best",
    moments: Annotated[
        int | None, typer.Option(min=2, help="of an episode told in words, at most (default: 6)")
    ] = None,
    template: Annotated[str | None, typer.Option(help="of the question to a model: a file, or one of ours")] = None,
    cache: Annotated[str | None, typer.Option(help="SQLite file that keeps a model's answers")] = None,
    calls: Annotated[int | None, typer.Option(min=0, help="to a model, at most; two for every pair")] = None,
) -> None:
    """Compare runs by pairs of episodes: Bradley–Terry scores from a person, a model or the return."""
    from coterie.core.types import CoterieError
    from coterie.studies.rate import judges, rate, show

    asked: dict[str, Any] = {
        "cache": cache,
        "calls": calls,
        "template": template,
        "moments": moments,
        "instruction": instruction,
    }
    judges.check_heeded(judge, asked)
    if instruction is not None and not instruction.strip():
        raise CoterieError("--instruction is empty; say what is to be judged, or leave it out")
    told = instruction or rate.INSTRUCTION
    try:
        chosen = {name: value for name, value in asked.items() if value is not None and name != "instruction"}
        options = judges.ModelOptions(**chosen)
        who = judges.make(judge, told, options)
    except ValueError as error:
        raise CoterieError(str(error)) from None
    kept = Path(ratings) if ratings else Path(runs[0]) / f"ratings-{re.sub(r'[^A-Za-z0-9.]+', '-', judge)}.jsonl"
    seen = who.looks.moments if who.looks.words else None
    asking = who.template if isinstance(who, judges.Model) else None
    named = tuple(str(Path(run)) for run in runs)
    contest = rate.RatingSession(named, judge, told, group, episodes, seed, checkpoint, sample, seen, asking)
    given = rate.rate(contest, who, kept, pairs)
    found = rate.standings(named, given) if any(one.score is not None for one in given) else []
    plain = show.to_dict(contest, given, found, kept)
    if out is not None:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        Path(out).write_text(json.dumps(plain, indent=2) + "\n")
    print(json.dumps(plain) if as_json else show.as_table(contest, given, found))
    if not as_json:
        print(f"ratings  {kept}{show.progress(contest, given, pairs)}")
