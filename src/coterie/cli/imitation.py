"""Commands of imitation learning: demonstrate, clone. Each imports heavy modules when it runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli.app import AsJson, Checkpoint, Experiment, Overrides, Quiet, Seed, Stochastic, app
from coterie.cli.outcome import print_outcome
from coterie.cli.stop import Stopped, stoppable

if TYPE_CHECKING:
    from coterie.algorithms.imitation.demonstrations import Demonstrations
    from coterie.studies.demonstrate.record import DemonstrationSpec


@app.command()
def demonstrate(
    source: Annotated[str, typer.Argument(metavar="EXPERIMENT|RUN", help="experiment or run whose table is played")],
    overrides: Overrides = None,
    out: Annotated[str, typer.Option(help="directory of the demonstrations; one that exists is continued")] = "",
    policy: Annotated[
        str | None,
        typer.Option(
            help="policy that demonstrates: expert, random, alphabeta:depth=4, person, a run, package.module:Name"
        ),
    ] = None,
    lm: Annotated[
        str | None, typer.Option(help="a language model demonstrates: embedded, a directory, http://…")
    ] = None,
    plan: Annotated[str, typer.Option(help="with --lm: step by step, or a whole plan at once (step, whole)")] = "step",
    episodes: Annotated[int, typer.Option(min=1, help="number of episodes in all")] = 20,
    group: Annotated[str | None, typer.Option(help="group that is recorded (default: all groups that learn)")] = None,
    readable: Annotated[int, typer.Option(min=0, help="episodes to write as readable JSON too")] = 3,
    seed: Seed = 0,
    stochastic: Stochastic = False,
    checkpoint: Checkpoint = "best",
    minari: Annotated[str | None, typer.Option(help="also write a Minari dataset of this id")] = None,
    from_minari: Annotated[str | None, typer.Option(help="read a Minari dataset instead of playing")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Record demonstrations by any policy."""
    from coterie.config.schema import ConfigError
    from coterie.studies.demonstrate import record

    if not out:
        raise ConfigError("--out: name the directory of the demonstrations, such as --out demonstrations/first")
    if from_minari is not None and (given := "--policy" if policy is not None else "--lm" if lm is not None else ""):
        raise ConfigError(f"--from-minari reads episodes that were played; leave out {given}")
    if lm is not None:
        if policy is not None:
            raise ConfigError("--lm and --policy both say who demonstrates; name one")
        policy = f"planner:lm={lm},plan={plan}"
    spec = record.DemonstrationSpec(source, policy, episodes, seed, not stochastic, checkpoint, group)

    def show(part: Demonstrations) -> None:
        if not quiet and not as_json:
            print(f"  {len(part)}/{episodes} episodes, {part.frames:,} steps{outcome(part)}", flush=True)

    if minari is not None:  # before anything is played
        from coterie.studies.demonstrate.minari import demand_dataset_id

        demand_dataset_id(minari)
        record.one_group(record.source_config(source, overrides), group)
    if from_minari is not None:
        parts = [import_minari(from_minari, spec, overrides, out)]
    else:
        parts = record.record(spec, out, overrides, show)
    write_readable(Path(out), parts, readable)
    if minari is not None:
        from coterie.studies.demonstrate.minari import to_minari

        to_minari(parts[0], minari)
    if from_minari is None and not quiet:
        say_if_stopped(len(parts[0]), episodes)
    if as_json:
        found = {"out": out, "groups": {part.group: summary(part) for part in parts}, "usage": record.usage(out)}
        print(json.dumps(found))
    else:
        print_recording(out, parts)


def import_minari(dataset: str, spec: DemonstrationSpec, overrides: list[str] | None, out: str) -> Demonstrations:
    """Write a Minari dataset as demonstrations into a new directory."""
    from coterie.algorithms.imitation import demonstrations
    from coterie.config.schema import ConfigError
    from coterie.studies.demonstrate.minari import from_minari
    from coterie.studies.demonstrate.record import demand_no_run

    demand_no_run(Path(out))
    if (Path(out) / demonstrations.INDEX).exists():
        raise ConfigError(f"--out: '{out}' already holds demonstrations; choose another directory")
    part = from_minari(dataset, spec.source, overrides, spec.group)
    demonstrations.save(out, [part])
    return part


def say_if_stopped(recorded: int, episodes: int) -> None:
    """Say how many episodes a stopped recording has, on the standard error: the other output may be JSON."""
    if recorded < episodes:
        kept = f"{recorded} of {episodes} episodes are recorded, the unfinished one is dropped"
        print(f"stopped: {kept}; the same command goes on", file=sys.stderr)


def print_recording(out: str, parts: list[Demonstrations]) -> None:
    """Print a line for every group, and below it what language models were asked for it."""
    from coterie.studies.demonstrate import record

    for part in parts:
        count = f"{len(part)} episode{'s' if len(part) > 1 else ''}"
        print(f"{out}, {part.group}: {count} by {part.policy}, {len(part.action):,} decisions{outcome(part)}")
        for session in record.usage(out):
            if words := asked(session["groups"].get(part.group, {})):
                print(f"  {session['episodes']} episodes: {words}")


def asked(counted: dict[str, float]) -> str:
    """Questions to a language model, in words; empty for players without one."""
    shown = {
        "distinct": "distinct texts",
        "lm/calls": "calls",
        "lm/prompt_tokens": "tokens read",
        "lm/scored_tokens": "tokens scored",
        "lm/completion_tokens": "tokens written",
        "lm/cache_hits": "answers from the cache",
        "abstentions": "abstentions",
    }
    if "lm/calls" not in counted:
        return ""
    return ", ".join(f"{counted[name]:,.0f} {words}" for name, words in shown.items() if counted.get(name))


@app.command()
def clone(
    experiment: Experiment,
    overrides: Overrides = None,
    demonstrations: Annotated[
        list[str] | None, typer.Option(help="directory of demonstrations; may be given several times")
    ] = None,
    out: Annotated[str | None, typer.Option(help="directory of the run (default: runs/EXPERIMENT/TIME-seedN)")] = None,
    ensemble: Annotated[int | None, typer.Option(min=2, help="networks that learn and decide together")] = None,
    quiet: Quiet = False,
) -> None:
    """Train an experiment's policies to imitate demonstrations, and write a run."""
    from coterie import api
    from coterie.training.clone import ensemble_overrides

    words = overrides or []
    if ensemble is not None:
        words = [*ensemble_overrides(experiment, ensemble), *words]
    with stoppable() as interrupted:
        if not print_outcome(api.clone(experiment, demonstrations or [], words, out, quiet)):
            raise Stopped(interrupted.exit_code)


def outcome(part: Demonstrations) -> str:
    """Mean return, successes and missing labels, in words."""
    about = summary(part)
    success = "" if about["successes"] is None else f", {about['successes']} succeeded"
    missing = "" if not about["unlabelled"] else f", {about['unlabelled']:,} decisions by chance"
    return f", return {about['return_mean']:.2f}{success}{missing}"


def summary(part: Demonstrations) -> dict[str, int | float | str | None]:
    """The numbers of a recording."""
    known = [episode.success for episode in part.episodes if episode.success is not None]
    return {
        "policy": part.policy,
        "episodes": len(part),
        "frames": part.frames,
        "decisions": len(part.action),
        "unlabelled": int((~part.labelled).sum()),
        "return_mean": float(part.returns().mean()),
        "successes": sum(known) if known else None,
    }


def write_readable(folder: Path, parts: list[Demonstrations], count: int) -> None:
    """Write a few episodes of each group as `GROUP.json`: successes first, then failures."""
    from coterie.runs.run import write_text
    from coterie.studies.demonstrate import record

    for part in parts if count else ():
        failed = [episode.success is False for episode in part.episodes]
        order = sorted(range(len(part)), key=failed.__getitem__)
        episodes = record.describe(part, sorted(order[:count]))
        write_text(folder / f"{part.group}.json", json.dumps(episodes, indent=1, ensure_ascii=False) + "\n")
