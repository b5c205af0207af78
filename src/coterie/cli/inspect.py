"""Look around: list names, run conformance tests, show settings, examine this machine."""

from __future__ import annotations

import textwrap
from typing import Annotated

import typer

from coterie.cli.app import Overrides, app, check_app, config_app


@app.command("list")
def list_() -> None:
    """Name the experiments and all that a config can choose from."""
    from coterie.config import registry
    from coterie.config.schema import EXPERIMENTS, experiments

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
    tables = {"worlds": registry.WORLDS, "policies": registry.POLICIES, "learners": registry.LEARNERS}
    for title, table in (tables | {"preferences": registry.PREFERENCES}).items():
        print(f"{title}\n{wrapped(', '.join(table))}")
    print("one's own: package.module:Name in place of any of these")


def wrapped(line: str) -> str:
    """Indented, in lines that fit a terminal."""
    return textwrap.fill(line, 78, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


@check_app.command("world")
def check_world_(
    name: Annotated[str, typer.Argument(help="a world from 'list', or package.module:Name")],
    overrides: Overrides = None,
    steps: Annotated[int, typer.Option(min=1)] = 200,
) -> None:
    """Hold a world against its contract: shapes, bounds, ends, seeds, saving."""
    from coterie.config import registry, schema
    from coterie.testing import check_world
    from coterie.training import build

    values = schema.parse_overrides([w.removeprefix("world.") for w in overrides or []])
    part = schema.part(registry.WORLDS, {"name": name} | values, "world")
    check_world(lambda num_envs: build.build_world(part, num_envs), steps=steps)
    print(f"{name}: keeps the contract over {steps} steps")


@config_app.command("show")
def config_show(experiment: str, overrides: Overrides = None) -> None:
    """Print an experiment with every default written out."""
    from coterie.config import schema

    print(schema.to_yaml(schema.load(experiment, overrides)), end="")


@config_app.command("validate")
def config_validate(experiment: str, overrides: Overrides = None) -> None:
    """Check an experiment down to the objects it builds, without training."""

    from coterie.training import start

    start.check(experiment, overrides)
    print(f"{experiment}: valid")


@app.command()
def doctor() -> None:
    """Say what this machine has, and what is missing for which feature."""
    from coterie.cli.doctor import examine

    for line in examine():
        print(line)
