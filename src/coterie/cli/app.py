"""The Typer application, the order of its commands, and the arguments that several commands share."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup, TyperOption

from coterie import __version__
from coterie.core import own_code

UsageError: Any = typer.BadParameter.__base__  # of the click that Typer uses, which may be its own copy
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

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UsageError as error:
            if type(error).__name__ == "NoSuchOption" and _takes_settings(error.ctx):
                name = as_setting(error.option_name)
                if name is not None:
                    error.message = f"No such option; a setting is a word without dashes: {name}=VALUE"
                    error.possibilities = None
            raise

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            _without_types_of_flags(command.get_params(ctx))
        return command


def _takes_settings(context: Any) -> bool:
    return context is not None and any(one.name == "overrides" for one in context.command.params)


def as_setting(option: str) -> str | None:
    """The setting that was written like an option, such as `--seed` or `--num-envs`; None where there is none."""
    from coterie.config.schema import SECTIONS, TrainSettings

    name = option.lstrip("-").replace("-", "_")
    if name in {field.name for field in fields(TrainSettings)}:
        return f"train.{name}"
    return name if name.partition(".")[0] in SECTIONS else None


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
    debug: Annotated[bool, typer.Option("--debug", help="print errors with their traceback")] = False,
) -> None:
    """Options of the program itself."""
    if debug:
        os.environ[own_code.DEBUG] = "1"  # child processes inherit it
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
