"""The entry point of the command line: registers every command and prints failures without a traceback."""

from __future__ import annotations

import errno
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from coterie.cli import export, imitation, inspect, runs, studies, train  # noqa: F401  (registers the commands)
from coterie.cli.app import app
from coterie.cli.stop import Stopped

RENAMED_OPTIONS = {"--sample": "--stochastic", "--deviates": "--deviator"}


class Warnings(logging.Handler):
    """Prints to what standard error is at that moment: a live bar puts itself there, and lines appear above it."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)


def main() -> None:
    """Run a command; errors of our own classes and of the file system are printed as one line."""
    from coterie.core.types import CoterieError

    logging.basicConfig(level=logging.WARNING, format="coterie: %(message)s", handlers=[Warnings()])
    sys.path.append(str(Path.cwd()))  # a package.module:Name may lie here
    try:
        refuse_renamed_options(sys.argv[1:])
        app()
    except CoterieError as error:
        print(f"coterie: {error}", file=sys.stderr)
        sys.exit(2 if type(error).__name__ == "ConfigError" else 1)
    except OSError as error:
        if error.filename is None:
            raise
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        cure = "; 'coterie resume RUN' continues from the last checkpoint" if full else ""
        print(f"coterie: '{error.filename}': {error.strerror}{cure}", file=sys.stderr)
        sys.exit(1)
    except MemoryError as error:
        print(f"coterie: not enough memory: {error}; lower train.num_envs or the sizes of the world", file=sys.stderr)
        sys.exit(1)
    except SystemExit as left:
        if left.code == 130 and not isinstance(left, Stopped):  # Typer's exit code for Ctrl-C
            cure = (
                "'coterie resume RUN' continues from the last checkpoint, the same 'coterie tune' continues its study"
            )
            print(f"coterie: interrupted; {cure}", file=sys.stderr)
        raise


def refuse_renamed_options(arguments: Sequence[str]) -> None:
    """Refuse an option that earlier versions had, with its present name."""
    for argument in arguments:
        old = argument.partition("=")[0]
        if old in RENAMED_OPTIONS:
            from coterie.config.schema import ConfigError

            raise ConfigError(f"{old} is now {RENAMED_OPTIONS[old]}")
