"""The Typer application and the arguments that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from coterie import __version__

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


def _print_version(asked: bool) -> None:
    if asked:
        print(f"coterie {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and leave")
    ] = False,
) -> None:
    """Options of the program itself."""


Overrides = Annotated[list[str] | None, typer.Argument(help="key=value, for example train.total_steps=100000")]
RunPath = Annotated[str, typer.Argument(metavar="RUN", help="a run's directory")]
Which = Annotated[str, typer.Option("--checkpoint", help="best, last or a step")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="of the episodes, not of the training")]
