"""Commands about the runs on disk: list, tag, archive, delete. Each imports heavy modules when it runs."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli.app import AsJson, Commands, app

if TYPE_CHECKING:
    from coterie.runs.index import Listed
    from coterie.runs.run import Run


class RunCommands(Commands):
    """Answers `coterie runs DIRECTORY` with the option that takes it."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and self.get_command(ctx, args[0]) is None and Path(args[0]).is_dir():
            ctx.fail(f"to list the runs below '{args[0]}': coterie runs --in {args[0]}")
        return super().resolve_command(ctx, args)


runs_app = typer.Typer(cls=RunCommands, help="List, tag, archive and delete runs.", invoke_without_command=True)
app.add_typer(runs_app, name="runs")
Folder = Annotated[str, typer.Option("--in", metavar="DIRECTORY", help="directory with the runs below it")]
Paths = Annotated[list[str], typer.Argument(metavar="RUN…", help="directories of runs")]
Experiment = Annotated[str | None, typer.Option(help="only runs of this experiment")]
State = Annotated[str | None, typer.Option(help="only those that are finished, running or stopped")]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="only runs with this tag; can be repeated")]
Archived = Annotated[bool, typer.Option("--archived", help="those that are archived, instead of the others")]


@runs_app.callback()
def runs(
    context: typer.Context,
    folder: Folder = "runs",
    experiment: Experiment = None,
    state: State = None,
    tag: Tags = None,
    archived: Archived = False,
    as_json: AsJson = False,
) -> None:
    """List the runs below a directory: state, steps, score, size and tags."""
    if context.invoked_subcommand is None:
        list_(folder, experiment, state, tag, archived, as_json)
    elif (folder, experiment, state, tag, archived, as_json) != ("runs", None, None, None, False, False):
        name = context.invoked_subcommand
        raise typer.BadParameter(f"options go after the command: coterie runs {name} …")


@runs_app.command("list")
def list_(
    folder: Folder = "runs",
    experiment: Experiment = None,
    state: State = None,
    tag: Tags = None,
    archived: Archived = False,
    as_json: AsJson = False,
) -> None:
    """List the runs below a directory; 'coterie runs' alone does the same."""
    from coterie.runs import index as run_index

    chosen = run_index.Filter(experiment, state, tuple(tag or ()), archived)
    found = [one for one in map(run_index.describe, run_index.find(Path(folder))) if chosen.keeps(one)]
    if as_json:
        print(json.dumps([dataclasses.asdict(one) for one in found]))
    else:
        print("\n".join(as_table(found, folder)))


@runs_app.command("tag")
def tag_(
    paths: Paths,
    add: Annotated[list[str] | None, typer.Option(help="tag to add; can be repeated")] = None,
    remove: Annotated[list[str] | None, typer.Option(help="tag to remove; can be repeated")] = None,
) -> None:
    """Add tags to runs, or remove them."""
    from coterie.runs import index as run_index

    run_index.check_tags(add or [], remove or [])  # first: a tag without its option would be taken for a run
    runs = _open(paths)
    run_index.tag(runs, add or [], remove or [])
    for run in runs:
        print(f"{run.path}: {', '.join(run_index.read_labels(run).tags) or 'no tags'}")


@runs_app.command("archive")
def archive_(
    paths: Paths,
    back: Annotated[bool, typer.Option("--back", help="show them in lists again")] = False,
) -> None:
    """Leave runs out of lists; their files stay as they are."""
    from coterie.runs import index as run_index

    runs = _open(paths)
    run_index.archive(runs, back)
    for run in runs:
        print(f"{run.path}: {'listed again' if back else 'archived'}")


@runs_app.command("delete")
def delete_(
    paths: Paths,
    folder: Folder = "runs",
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
) -> None:
    """Delete runs for good; those in use are refused."""
    from coterie.core.types import CoterieError
    from coterie.runs import index as run_index

    runs = _open(paths)
    run_index.refuse_in_use(runs, Path(folder))
    sizes = [run_index.size(run.path) for run in runs]
    if not yes:
        for run, size in zip(runs, sizes, strict=True):
            print(f"{run.path}  {readable(size)}")
        if not sys.stdin.isatty():
            raise CoterieError("deleting needs a yes: add --yes. Nothing was deleted")
        if not typer.confirm(f"delete {len(runs)} run{'s' if len(runs) > 1 else ''} for good?"):
            raise CoterieError("nothing was deleted")
    for run in runs:
        run_index.delete(run)
        print(f"{run.path}: deleted")
    print(f"{readable(sum(sizes))} freed")


def _open(paths: list[str]) -> list[Run]:
    """The named runs, each once; an error before anything happens to the first."""
    from coterie.runs.run import Run

    found = {Path(path).resolve(): Run.open(path) for path in paths}
    return list(found.values())


def as_table(found: list[Listed], folder: str) -> list[str]:
    """The runs in 80 columns, by the part of their path below the folder."""
    from coterie.studies.columns import columns, fold

    if not found:
        return fold(f"no such run below '{folder}'; 'coterie train EXPERIMENT' makes one")
    rows = []
    for one in found:
        score = "" if one.score is None else f"{one.score:.2f}"
        path = Path(one.path)
        name = str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
        rows.append([name, one.state, thousands(one.steps), score, readable(one.size), " ".join(one.tags)])
    head = ["run", "state", "steps", "return", "size", "tags"]
    lines = columns(head, rows, left=2)
    total = readable(sum(one.size for one in found))
    return [*lines, f"{len(found)} run{'s' if len(found) > 1 else ''} below {folder}, {total}"]


def thousands(steps: int) -> str:
    """Steps in few characters."""
    return f"{steps / 1e6:.1f}M" if steps >= 1e6 else f"{steps / 1e3:.0f}k" if steps >= 1e4 else f"{steps:,}"


def readable(size: int) -> str:
    """Bytes as people say them."""
    for unit, bytes_ in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= bytes_:
            return f"{size / bytes_:.1f} {unit}"
    return f"{size} B"


@app.command()
def live(
    folder: Annotated[str, typer.Argument(metavar="DIRECTORY", help="directory with runs below it")] = "runs",
    port: Annotated[int, typer.Option(min=0, max=65535, help="port of the page; 0: any that is free")] = 8000,
    host: Annotated[
        str, typer.Option(help="address to listen at; 0.0.0.0 lets others look, without a password")
    ] = "127.0.0.1",
) -> None:
    """Show runs in a browser while they train."""
    from coterie.app.serve import serve

    serve(Path(folder), host, port)
