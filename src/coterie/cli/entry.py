"""The entry point of the command line: registers every command and prints failures without a traceback."""

from __future__ import annotations

import errno
import logging
import shutil
import sys
import textwrap
import traceback
from dataclasses import dataclass
from pathlib import Path

from coterie.cli import export, imitation, inspect, runs, studies, train  # noqa: F401  (registers the commands)
from coterie.cli.app import app
from coterie.cli.stop import Stopped
from coterie.policies.ansi import printable

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
CTRL_C = 130  # Typer's exit code for Ctrl-C, too
REFUSED = 2  # of settings; Typer's exit code for wrong arguments, too


class Warnings(logging.Handler):
    """Prints to what standard error is at that moment: a live bar puts itself there, and lines appear above it."""

    def emit(self, record: logging.LogRecord) -> None:
        say(self.format(record))


def main() -> None:
    """Run a command; errors of our own classes, of the file system and of one's own code are printed as one line."""
    from coterie.runs.interrupt import watching

    logging.basicConfig(level=logging.WARNING, format="coterie: %(message)s", handlers=[Warnings()])
    sys.path.append(str(Path.cwd()))  # a package.module:Name may lie here
    try:
        with watching():
            app()
    except SystemExit as left:
        if left.code == CTRL_C and not isinstance(left, Stopped):
            say_interrupted()
        raise
    except Exception as error:
        code = report(error)
        if code is None:
            raise
        sys.exit(code)


def report(error: Exception) -> int | None:
    """Print one line about an error and return the exit code; None for an error that nobody foresaw."""
    from coterie.core.own_code import debugging
    from coterie.runs.interrupt import is_ctrl_c

    if is_ctrl_c(error):
        say_interrupted()
        return CTRL_C
    found = describe_failure(error)
    if found is None:
        return None
    if debugging():
        print_traceback(error)
    say(f"coterie: {found.words}")
    return found.code


@dataclass(frozen=True)
class Failure:
    """The sentence that a command prints about an error, and its exit code."""

    words: str
    code: int = 1


def describe_failure(error: Exception) -> Failure | None:
    """Describe an error and its exit code; None where nobody foresaw it."""
    from coterie.core.own_code import explain
    from coterie.core.types import CoterieError

    if isinstance(error, CoterieError):
        return Failure(str(error), REFUSED if type(error).__name__ == "ConfigError" else 1)
    own = explain(error)
    if own is not None:
        return Failure(own)
    if isinstance(error, OSError) and (error.filename is not None or error.errno in FULL):
        return Failure(describe_file_error(error))
    if isinstance(error, MemoryError):
        return Failure(f"not enough memory: {error}; lower train.num_envs or the sizes of the world")
    return None


def print_traceback(error: Exception) -> None:
    """Print an error's traceback with those of all errors that led to it."""
    seen: BaseException | None = error
    while seen is not None:
        seen.__suppress_context__ = False
        seen = seen.__cause__ or seen.__context__
    traceback.print_exception(error)


def say(words: str) -> None:
    """Print to standard error; lines that a terminal would cut within words are broken between them."""
    lines = printable(words).split("\n")
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        wrapper = textwrap.TextWrapper(width, replace_whitespace=False, break_long_words=False, break_on_hyphens=False)
        lines = [wrapper.fill(line) for line in lines]
    print("\n".join(lines), file=sys.stderr, flush=True)


def describe_file_error(error: OSError) -> str:
    """An error of the file system in words, with a cure for a full disk."""
    if error.filename is None:  # a write does not say which file; those of runs are named by what writes them
        return f"a file could not be written: {error.strerror}; free some space, then give the command again"
    if error.errno not in FULL:
        return f"'{error.filename}': {error.strerror}"
    run = _training_run(Path(error.filename))
    cure = "give the command again" if run is None else f"'coterie resume {run}' continues from the last checkpoint"
    return f"'{error.filename}': {error.strerror}; free some space, then {cure}"


def _training_run(file: Path) -> Path | None:
    """The run whose training writes this file; None: no run's, or of one whose failed start left nothing."""
    for run in file.parents:
        if (run / "config.yaml").is_file():
            return run if file.relative_to(run).parts[0] in ("checkpoints", "metrics.jsonl") else None
    return None


def say_interrupted() -> None:
    """Say how to go on after Ctrl-C."""
    same = "tune, exploit and demonstrate go on with the same command"
    say(f"coterie: interrupted; 'coterie resume RUN' continues from the last checkpoint, {same}")
