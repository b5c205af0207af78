"""The entry point of the command line: registers every command and prints failures without a traceback."""

from __future__ import annotations

import errno
import logging
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from coterie.cli import export, imitation, inspect, runs, studies, train  # noqa: F401  (registers the commands)
from coterie.cli.app import app
from coterie.cli.stop import Stopped

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
CTRL_C = 130  # Typer's exit code for Ctrl-C, too
RENAMED_OPTIONS = {"--sample": "--stochastic", "--deviates": "--deviator"}


class Warnings(logging.Handler):
    """Prints to what standard error is at that moment: a live bar puts itself there, and lines appear above it."""

    def emit(self, record: logging.LogRecord) -> None:
        say(self.format(record))


def main() -> None:
    """Run a command; errors of our own classes and of the file system are printed as one line."""
    from coterie.core.types import CoterieError
    from coterie.runs.interrupt import is_ctrl_c

    logging.basicConfig(level=logging.WARNING, format="coterie: %(message)s", handlers=[Warnings()])
    sys.path.append(str(Path.cwd()))  # a package.module:Name may lie here
    try:
        refuse_renamed_options(sys.argv[1:])
        app()
    except CoterieError as error:
        say(f"coterie: {error}")
        sys.exit(2 if type(error).__name__ == "ConfigError" else 1)
    except OSError as error:
        if error.filename is None and error.errno not in FULL:
            raise
        say(f"coterie: {describe_file_error(error)}")
        sys.exit(1)
    except MemoryError as error:
        say(f"coterie: not enough memory: {error}; lower train.num_envs or the sizes of the world")
        sys.exit(1)
    except SystemExit as left:
        if left.code == CTRL_C and not isinstance(left, Stopped):
            say_interrupted()
        raise
    except SystemError as error:
        if not is_ctrl_c(error):
            raise
        say_interrupted()
        sys.exit(CTRL_C)


def say(words: str) -> None:
    """Print to standard error; lines that a terminal would cut within words are broken between them."""
    lines = words.split("\n")
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


def refuse_renamed_options(arguments: Sequence[str]) -> None:
    """Refuse an option that earlier versions had, with its present name."""
    for argument in arguments:
        old = argument.partition("=")[0]
        if old in RENAMED_OPTIONS:
            from coterie.config.schema import ConfigError

            raise ConfigError(f"{old} is now {RENAMED_OPTIONS[old]}")
