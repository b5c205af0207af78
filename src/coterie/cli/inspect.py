"""Commands that inspect: check, config, list, doctor. Each imports heavy modules when it runs."""

from __future__ import annotations

import dataclasses
import functools
import sys
import textwrap
from typing import Annotated

import typer

from coterie.cli.app import Experiment, Overrides, Trust, app, check_app, config_app

InWorld = Annotated[str, typer.Option(help="the world it plays in; settings after a colon: spread:max_steps=9")]


@check_app.command("world")
def check_world_(
    name: Annotated[str, typer.Argument(help="a world from 'coterie list', or package.module:Name")],
    overrides: Overrides = None,
    steps: Annotated[int, typer.Option(min=1, help="steps to play")] = 200,
) -> None:
    """Test shapes, bounds, ends of episodes, seeds and saving of a world."""
    from coterie.cli.conformance import named_world
    from coterie.config import schema
    from coterie.core.types import CoterieError
    from coterie.testing import ContractError, check_world
    from coterie.training import build

    part = named_world(name, overrides or [])

    def report(line: str) -> None:
        print(f"{name}: {line}", file=sys.stderr, flush=True)

    try:
        found = check_world(lambda num_envs: build.build_world(part, num_envs), steps, report=report)
        held_out = build.evaluation_part(part)
        if held_out != part:
            check_world(lambda num_envs: build.build_world(held_out, num_envs), steps, report=report)
    except ContractError as error:
        for setting in ("fresh", "seed_globals"):
            if getattr(part.settings, setting, True):  # only third-party environments have them
                continue
            report(f"fails; trying world.{setting}: true")
            cured = schema.Part(part.name, dataclasses.replace(part.settings, **{setting: True}))
            try:
                check_world(functools.partial(build.build_world, cured), steps, report=report)
            except CoterieError:
                continue
            raise ContractError(f"{error}; with world.{setting}: true it passes") from None
        raise
    print(f"{name}: passes the conformance tests over {steps} steps, {1000 * found.seconds_per_step:.3g} ms a step")
    if not found.episodes:
        limited = any(spec.name == "max_episode_steps" for spec in dataclasses.fields(part.settings))
        cure = "set world.max_episode_steps" if limited else "truncate it, or set limits_episodes = False in the class"
        print(f"no episode ended within {steps} steps; if one may last for ever, {cure}")


@check_app.command("policy")
def check_policy_(
    name: Annotated[str, typer.Argument(help="a policy from 'coterie list', or package.module:Name")],
    overrides: Overrides = None,
    world: InWorld = "gridworld",
    random_greedy: Annotated[bool, typer.Option("--random-greedy", help="greedy play is random, too")] = False,
) -> None:
    """Test actions, log-probabilities, memory, seeds and saving of a policy."""
    from coterie.cli.conformance import check_policy_in

    print(check_policy_in(name, overrides or [], world, random_greedy))


@check_app.command("learner")
def check_learner_(
    name: Annotated[str, typer.Argument(help="a learner from 'coterie list', or package.module:Name")],
    overrides: Overrides = None,
    policy: Annotated[
        str | None, typer.Option(help="policy that it improves (default: the one that the learner names)")
    ] = None,
    world: InWorld = "gridworld",
) -> None:
    """Test that a learner learns, leaves experience alone, and can be saved."""
    from coterie.cli.conformance import check_learner_in

    print(check_learner_in(name, overrides or [], policy, world))


@config_app.command("show")
def config_show(experiment: Experiment, overrides: Overrides = None, trust: Trust = False) -> None:
    """Print an experiment with all default values."""
    from coterie.config import schema
    from coterie.core.lookup import whose

    print(schema.to_yaml(schema.load(experiment, overrides, whose(trust))), end="")


@config_app.command("validate")
def config_validate(experiment: Experiment, overrides: Overrides = None, trust: Trust = False) -> None:
    """Check an experiment and build its parts, without training."""

    from coterie.core.lookup import whose
    from coterie.training import start

    start.check(experiment, overrides, whose(trust))
    print(f"{experiment}: valid")


@app.command("list")
def list_() -> None:
    """List experiments, worlds, policies, learners and preferences."""
    from coterie.config import registry
    from coterie.config.schema import EXPERIMENTS, experiments

    print("experiments")
    folders: dict[str, list[str]] = {}
    for name in experiments():
        folder, _, rest = name.rpartition("/")
        if folder:
            folders.setdefault(folder, []).append(rest)
            continue
        first = (EXPERIMENTS / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0]
        print(f"  {name:26}  {first.removeprefix('# ')}")
    for folder, names_there in folders.items():
        print(wrapped(f"{folder}/: {', '.join(names_there)}"))
    tables = {"worlds": registry.WORLDS, "policies": registry.POLICIES, "learners": registry.LEARNERS}
    for title, table in (tables | {"preferences": registry.PREFERENCES}).items():
        print(f"{title}\n{wrapped(', '.join(table))}")
    print("your own class: package.module:Name in place of a name")


def wrapped(line: str) -> str:
    """Indent a line and wrap it at 78 columns."""
    return textwrap.fill(line, 78, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


@app.command()
def doctor() -> None:
    """Print versions and hardware, and which features lack a package."""
    from coterie.cli.doctor import examine

    for line in examine():
        print(line)
