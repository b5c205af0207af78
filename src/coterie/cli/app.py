"""The Typer application, the order of its commands, and the arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup, TyperOption

from coterie import __version__

ORDER = (  # of the commands in `coterie --help`
    *("train", "resume", "eval", "plans", "watch", "play"),
    *("demonstrate", "clone"),
    *("match", "compare", "exploit", "tune", "rate", "report", "export"),
    *("runs", "live", "check", "config", "list", "doctor"),
)


class Commands(TyperGroup):
    """Lists commands in the order above, and flags in `-h` without a type, since they take no value."""

    def list_commands(self, ctx: Any) -> list[str]:
        names = super().list_commands(ctx)
        return sorted(names, key=ORDER.index) if set(names) <= set(ORDER) else names

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types_of_flags(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            _without_types_of_flags(command.get_params(ctx))
        return command


def _without_types_of_flags(parameters: list[Any]) -> list[Any]:
    for one in parameters:
        if isinstance(one, TyperOption) and one.is_flag:
            one.metavar = ""
    return parameters


app = typer.Typer(
    cls=Commands,
    help="Multi-agent reinforcement learning in which any kind of agent sits at the same table.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
check_app = typer.Typer(
    cls=Commands, help="Run the conformance tests on a world, a policy or a learner.", no_args_is_help=True
)
config_app = typer.Typer(cls=Commands, help="Show or validate the settings of an experiment.", no_args_is_help=True)
app.add_typer(check_app, name="check")
app.add_typer(config_app, name="config")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"coterie {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and exit")
    ] = False,
    unsafe_local_exec: Annotated[
        bool,
        typer.Option(
            "--unsafe-local-exec", help="without a sandbox on this machine, run programs that a model wrote unprotected"
        ),
    ] = False,
) -> None:
    """Options of the program itself."""
    if unsafe_local_exec:
        from coterie.sandbox import unsafe

        unsafe.allow()


def _complete_experiment(begun: str) -> list[str]:
    """Names of experiments and YAML files that begin like this, for shell completion; imports nothing heavy."""
    folder = Path(__file__).parent.parent / "experiments"
    names = [str(file.relative_to(folder).with_suffix("")) for file in sorted(folder.rglob("*.yaml"))]
    files = [str(file) for file in sorted(Path(begun).parent.glob("*.yaml"))]
    return [name for name in [*names, *files] if name.startswith(begun)]


def _complete_run(begun: str) -> list[str]:
    """Directories that begin like this."""
    folder, last = (Path(begun), "") if begun.endswith("/") else (Path(begun).parent, Path(begun).name)
    found = [one for one in sorted(folder.glob(f"{last}*")) if one.is_dir()] if folder.is_dir() else []
    return [f"{one}/" if not (one / "config.yaml").is_file() else str(one) for one in found]


def png_name(value: str | None) -> str | None:
    """Refuse the name of a picture that does not end in .png, before a study is calculated for it."""
    if value is not None and Path(value).suffix.lower() != ".png":
        raise typer.BadParameter(f"pictures are PNG files; end the name in .png, got '{value}'")
    return value


Experiment = Annotated[
    str,
    typer.Argument(
        metavar="EXPERIMENT|FILE",
        help="a name from 'coterie list', or a YAML file",
        autocompletion=_complete_experiment,
    ),
]
Overrides = Annotated[list[str] | None, typer.Argument(help="settings as key=value, such as seed=1")]
PlayOverrides = Annotated[
    list[str] | None, typer.Argument(help="settings of world and groups as key=value, such as world.max_steps=50")
]
RunPath = Annotated[str, typer.Argument(metavar="RUN", help="the directory of a run", autocompletion=_complete_run)]
Checkpoint = Annotated[str, typer.Option("--checkpoint", help="best, last or a step")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="seed of the episodes")]
Stochastic = Annotated[bool, typer.Option("--stochastic", help="sample actions instead of acting greedily")]
Trust = Annotated[bool, typer.Option("--trust", help="also run code that runs of other people name")]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object")]
Quiet = Annotated[bool, typer.Option("--quiet", help="print no progress")]
