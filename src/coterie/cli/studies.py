"""Commands that study runs: match, play, compare, exploit, tune, rate, report. Each imports what is heavy itself."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli.app import (
    AsJson,
    Checkpoint,
    Experiment,
    PlayOverrides,
    Quiet,
    RunPath,
    Seed,
    Stochastic,
    Trust,
    app,
    png_name,
)
from coterie.cli.outcome import print_unanswered
from coterie.cli.stop import Stopped, stoppable

if TYPE_CHECKING:
    from coterie.preferences.ratings import Rating, RatingSession
    from coterie.studies.tune.trial import Trial
    from coterie.studies.tune.tune import Plan, Tuned


@app.command()
def match(
    players: Annotated[
        list[str],
        typer.Argument(metavar="RUN|NAME…", help="runs, RUN:checkpoint=STEP, or policies: random, alphabeta:depth=6"),
    ],
    world: Annotated[
        str | None, typer.Option(help="experiment or run that sets the table (default: the first run)")
    ] = None,
    episodes: Annotated[int, typer.Option(min=2, help="episodes for every pair and rotation of seats")] = 100,
    seed: Seed = 0,
    stochastic: Stochastic = False,
    as_json: AsJson = False,
    figure: Annotated[str | None, typer.Option(help="PNG file for a heat map of the matrix", callback=png_name)] = None,
    checkpoint: Checkpoint = "best",
    quiet: Quiet = False,
    trust: Trust = False,
) -> None:
    """Play runs against each other in all seats."""
    from coterie.cli.progress import Tasks
    from coterie.core.lookup import whose
    from coterie.studies import figures
    from coterie.studies.match import match, show

    opened = match.open_players(players, checkpoint, whose(trust))
    table = match.choose_table(opened, world, whose(trust))
    with Tasks(len(opened) ** 2, "pairings", quiet or as_json) as tasks:
        matrix = match.cross_play(
            opened, table, episodes, seed, not stochastic, lambda one, other: tasks.doing(f"{one} with {other}")
        )
    if figure is not None:
        figures.write_png(Path(figure), show.draw_heatmap(opened, matrix))
    if as_json:
        print(json.dumps(show.to_dict(opened, matrix, episodes, seed)))
    else:
        print(show.as_table(opened, matrix))


@app.command()
def play(
    table: Annotated[
        str,
        typer.Argument(
            metavar="RUN|EXPERIMENT|FILE|WORLD",
            help="who plays what: a run, a table nobody has learned, or a world such as openspiel/leduc_poker",
        ),
    ],
    overrides: PlayOverrides = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="RUN|NAME",
            help="who has the other seats, such as alphabeta:depth=6 (default: the run; else the expert, or random)",
        ),
    ] = None,
    seat: Annotated[str | None, typer.Option(help="the agent that you are (default: the first one)")] = None,
    episodes: Annotated[int, typer.Option(min=1, help="number of episodes")] = 1,
    show: Annotated[str, typer.Option(help="what you see: words, picture, numbers, or auto")] = "auto",
    seed: Seed = 0,
    stochastic: Stochastic = False,
    as_json: AsJson = False,
    checkpoint: Checkpoint = "best",
    trust: Trust = False,
) -> None:
    """Take a seat at a table and play yourself."""
    from coterie.core.group import PlayStopped
    from coterie.core.lookup import whose
    from coterie.studies import play
    from coterie.training.language_models import actors_unanswered
    from coterie.training.loop import evaluation_seed

    config, player = play.open_table(table, overrides or (), against, checkpoint, whose(trust))
    seating = play.take_seat(config, player, seat, show)
    print(play.describe_seats(seating), file=sys.stderr)
    ended: list[play.Episode] = []
    try:
        for one in play.play(seating, episodes, evaluation_seed(seed), config.train.threads, not stochastic):
            ended.append(one)
            if not as_json:
                print(play.describe(seating, one), flush=True)
    except PlayStopped as left:
        if not left.by_choice:
            raise
    print_unanswered(actors_unanswered(seating.actors))
    if as_json:
        print(json.dumps(play.to_dict(seating, ended)))
    elif len(ended) > 1:
        print(play.total(seating, ended))


@app.command()
def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN|SWEEP…", help="runs, or directories with runs below them")],
    threshold: Annotated[float | None, typer.Option(help="report the steps until evaluations reach this score")] = None,
    score: Annotated[str, typer.Option(help="held-out return of the best or the last checkpoint")] = "best",
    group: Annotated[
        str | None, typer.Option(help="group whose return counts (default: mean of the learning groups)")
    ] = None,
    by: Annotated[
        list[str] | None, typer.Option(help="setting that distinguishes variants, or 'argument'; can be repeated")
    ] = None,
    skip_unfinished: Annotated[bool, typer.Option("--skip-unfinished", help="leave unfinished runs out")] = False,
    as_json: AsJson = False,
    csv: Annotated[str | None, typer.Option(help="CSV file for one row per run")] = None,
    figure: Annotated[
        str | None, typer.Option(help="PNG file for curves, profiles and intervals", callback=png_name)
    ] = None,
    out: Annotated[str | None, typer.Option(help="HTML file for tables and figure")] = None,
) -> None:
    """Compare runs: IQM, probability of improvement, steps to a score."""
    from coterie.studies import figures
    from coterie.studies.compare import compare, show
    from coterie.studies.compare.runs import gather, read

    results, skipped = read(runs, score, group, skip_unfinished)
    comparison = compare.compare(gather(results, by or ()), threshold)
    if csv is not None:
        show.write_csv(comparison, Path(csv))
    if figure is not None:
        figures.write_png(Path(figure), show.draw(comparison))
    if out is not None:
        show.write_page(comparison, score, Path(out), skipped)
    if as_json:
        head = {"score": score, "group": group, "skipped": [str(path) for path in skipped]}
        print(json.dumps(head | show.to_dict(comparison)))
    else:
        print(show.as_table(comparison, score, skipped))


@app.command()
def exploit(
    run: RunPath,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="of its training: groups.responder.…, train.…, seed")
    ] = None,
    group: Annotated[
        list[str] | None, typer.Option(help="group that may deviate (default: all that learn); can be repeated")
    ] = None,
    deviator: Annotated[
        str, typer.Option(help="agent (the group's first), each (one after the other) or group (together)")
    ] = "agent",
    learner: Annotated[
        str | None, typer.Option(help="learner of the responder (default: the group's own, else ppo)")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="steps of its training (default: as many as the run)")] = None,
    by: Annotated[
        str | None, typer.Option(help="train nobody; this player deviates: RUN:simulations=400, alphabeta:depth=6")
    ] = None,
    episodes: Annotated[int, typer.Option(help="number of episodes of the evaluation")] = 256,
    seed: Seed = 0,
    stochastic: Stochastic = False,
    checkpoint: Checkpoint = "best",
    out: Annotated[str | None, typer.Option(help="directory of the responders (default: RUN/exploit)")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    trust: Trust = False,
) -> None:
    """Train best responses to a run and measure their gains."""
    from coterie.core.lookup import whose
    from coterie.studies.exploit import show
    from coterie.studies.exploit.deviations import ExploitSpec
    from coterie.studies.exploit.exploit import exploit

    spec = ExploitSpec(checkpoint, tuple(group or ()), deviator, learner, steps, episodes, seed, stochastic, by)  # type: ignore[arg-type]  # it checks itself
    with stoppable():
        result = exploit(run, spec, overrides, out, quiet, whose(trust))
    print(json.dumps(result.to_dict()) if as_json else show.as_table(result))


@app.command()
def tune(
    experiment: Experiment,
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value; these settings are not searched")] = None,
    trials: Annotated[int, typer.Option(min=1, help="trials of the whole study, earlier ones included")] = 20,
    study: Annotated[str | None, typer.Option(help="SQLite file (default: runs/tune/EXPERIMENT.db)")] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="search only these settings, such as '*.gamma'; can be repeated")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="trainings per trial; its score is their mean")] = 1,
    pruner: Annotated[str, typer.Option(help="rule that ends bad trials: median, halving or none")] = "median",
    score: Annotated[
        str,
        typer.Option(
            help="best: a trial counts by its best validation; mean: by the mean of all, which favours early learning"
        ),
    ] = "best",
    jobs: Annotated[int, typer.Option(help="trials to train at a time, each in its own process")] = 1,
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="trials proposed together, before any is trained (default: --jobs)"),
    ] = None,
    sampler: Annotated[
        str, typer.Option(help="tpe: trials one after the other; pbt: a population that shares its steps")
    ] = "tpe",
    rounds: Annotated[int, typer.Option(help="rounds of a population; after each, bad members copy good ones")] = 10,
    as_json: AsJson = False,
    quiet: Quiet = False,
    trust: Trust = False,
) -> None:
    """Search for better settings; continues a stopped study."""
    from coterie.config.schema import ConfigError

    if pruner not in ("median", "halving", "none"):
        raise ConfigError(f"--pruner: expected 'median', 'halving' or 'none', got '{pruner}'")
    if sampler not in ("tpe", "pbt"):
        raise ConfigError(f"--sampler: expected 'tpe' or 'pbt', got '{sampler}'")
    if score not in ("best", "mean") or (score == "mean" and sampler == "pbt"):
        known = "'best' with --sampler pbt" if sampler == "pbt" else "'best' or 'mean'"
        raise ConfigError(f"--score: expected {known}, got '{score}'")
    from coterie.core.lookup import whose
    from coterie.studies.tune.tune import Plan

    plan = Plan(
        *(experiment, tuple(overrides or ()), trials, study, tuple(only or ()), seeds),
        pruner=pruner,  # type: ignore[arg-type]  # checked above
        jobs=jobs,
        batch=batch,
        sampler=sampler,  # type: ignore[arg-type]  # checked above
        rounds=rounds,
        score=score,  # type: ignore[arg-type]  # checked above
        trust=whose(trust),
    )
    with stoppable() as interrupted:
        if (tune_population if sampler == "pbt" else tune_trials)(plan, as_json, quiet):
            raise Stopped(interrupted.exit_code)


def tune_population(plan: Plan, as_json: bool, quiet: bool) -> bool:
    """Train a population and print what it found; returns whether a signal stopped it."""
    from coterie.cli.progress import Tasks
    from coterie.studies.tune import population, show

    silent = as_json or quiet
    with Tasks(plan.trials * plan.rounds, "members trained for a round", silent, lines=False) as tasks:

        def report(now: population.Population) -> None:
            tasks.done = now.round * plan.trials + sum(member.ended for member in now.members)
            if not silent:
                print(show.round_line(now, plan.rounds), flush=True)

        found = population.tune_population(plan, report, lambda member: tasks.advance())
    print(json.dumps(found.to_dict()) if as_json else "\n".join(show.population_conclusion(found)))
    return found.interrupted


def tune_trials(plan: Plan, as_json: bool, quiet: bool) -> bool:
    """Train the trials of a study and print what it found; returns whether a signal stopped it."""
    from coterie.cli.progress import Tasks
    from coterie.studies.tune import show, tune

    if as_json:
        tuned = tune.tune(plan)
        print(json.dumps(show.to_dict(tuned)))
        return tuned.interrupted
    with Tasks(plan.trials, "trials", quiet, lines=False) as tasks:

        def on_trial(tuned: Tuned, trial: Trial | None) -> None:
            tasks.done = len(tuned.trials) - (trial is not None)
            if trial is not None:
                tasks.advance()
            if not quiet:
                print(show.progress(tuned, trial), flush=True)

        tuned = tune.tune(plan, on_trial)
    print("\n".join(show.conclusion(tuned)))
    return tuned.interrupted


@app.command()
def rate(
    runs: Annotated[list[str], typer.Argument(metavar="RUN RUN…", help="two or more runs of one world")],
    judge: Annotated[
        str, typer.Option(help="person, return (of the world), or a language model: embedded, NAME or URL")
    ] = "person",
    pairs: Annotated[int, typer.Option(min=1, help="pairs of episodes to compare, rated ones included")] = 50,
    episodes: Annotated[int, typer.Option(min=1, help="episodes of each run")] = 10,
    seed: Annotated[int, typer.Option("--seed", min=0, help="seed of the episodes and the pairs")] = 0,
    instruction: Annotated[str | None, typer.Option(help="question to the judge")] = None,
    group: Annotated[str | None, typer.Option(help="group to compare (default: the first that learned)")] = None,
    ratings: Annotated[
        str | None, typer.Option(help="file of the ratings (default: FIRST RUN/ratings-JUDGE.jsonl)")
    ] = None,
    out: Annotated[str | None, typer.Option(help="JSON file for the scores")] = None,
    as_json: AsJson = False,
    stochastic: Stochastic = False,
    checkpoint: Checkpoint = "best",
    moments: Annotated[
        int | None, typer.Option(min=2, help="moments of an episode described in words, at most (default: 6)")
    ] = None,
    template: Annotated[
        str | None, typer.Option(help="prompt template for a model: a file, or a built-in name")
    ] = None,
    cache: Annotated[str | None, typer.Option(help="SQLite file that caches a model's answers")] = None,
    calls: Annotated[int | None, typer.Option(min=0, help="calls to a model, at most; each pair takes two")] = None,
    trust: Trust = False,
) -> None:
    """Rate runs by comparing their episodes in pairs."""
    from coterie.core.lookup import whose
    from coterie.core.types import CoterieError
    from coterie.preferences.ratings import INSTRUCTION, RatingSession
    from coterie.studies.rate import judges, rate

    model_options = {"cache": cache, "calls": calls, "template": template, "moments": moments}
    judges.check_options(judge, model_options | {"instruction": instruction})
    if instruction is not None and not instruction.strip():
        raise CoterieError("--instruction: empty; write a question, or leave it out")
    question = instruction or INSTRUCTION
    try:
        chosen = {name: value for name, value in model_options.items() if value is not None}
        made = judges.make(judge, question, judges.ModelOptions(**chosen))  # type: ignore[arg-type]  # typed above
    except ValueError as error:
        raise CoterieError(str(error)) from None
    path = Path(ratings) if ratings else Path(runs[0]) / f"ratings-{re.sub(r'[^A-Za-z0-9.]+', '-', judge)}.jsonl"
    session = RatingSession(
        tuple(str(Path(run)) for run in runs),
        judge,
        question,
        group,
        episodes,
        seed,
        checkpoint,
        stochastic,
        made.view_options.moments if made.view_options.words else None,
        made.template if isinstance(made, judges.ModelJudge) else None,
    )
    given = rate.rate(session, made, path, pairs, whose(trust))
    write_ratings(session, given, path, pairs, out, as_json)


def write_ratings(
    session: RatingSession, given: list[Rating], path: Path, pairs: int, out: str | None, as_json: bool
) -> None:
    """Print what ratings say about the runs, and write it as JSON where a file is named."""
    from coterie.studies.rate import rate, show

    scored = any(one.score is not None for one in given)
    standings = rate.standings(session.runs, given) if scored else []
    scores = show.to_dict(session, given, standings, path)
    if out is not None:
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        Path(out).write_text(json.dumps(scores, indent=2) + "\n")
    if as_json:
        print(json.dumps(scores))
    else:
        print(show.as_table(session, given, standings))
        print("\n".join(filter(None, [f"ratings  {path}", show.progress(session, given, pairs)])))


@app.command()
def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN|SWEEP…", help="runs, or directories with runs below them")],
    out: Annotated[
        str | None,
        typer.Option(help="HTML file to write (default: report.html in the run or in the runs' folder)"),
    ] = None,
    figure: Annotated[
        str | None,
        typer.Option(help="PNG file NAME.png for the curves; auctions add NAME-bids.png", callback=png_name),
    ] = None,
    numbers: Annotated[
        str | None, typer.Option(help="JSON file for the world's own numbers and exploit results")
    ] = None,
) -> None:
    """Write an HTML report of one run or several."""
    from coterie.studies.compare.runs import find_runs
    from coterie.studies.report.report import default_path, write_report

    found = [run for _, run in find_runs(runs)]
    path = Path(out) if out else default_path(found)
    files = [Path(file) if file else None for file in (figure, numbers)]
    print(write_report(found, path, *files))
