"""The entry point of the command line: registers every command and prints failures without a traceback."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from coterie.cli import inspect, studies, train  # noqa: F401  (registers the commands)
from coterie.cli.app import app


def main() -> None:
    """Run a command; failures that we can name are printed without a traceback."""
    from coterie.core.types import CoterieError

    logging.basicConfig(level=logging.WARNING, format="coterie: %(message)s", stream=sys.stderr)
    sys.path.append(str(Path.cwd()))  # one's own package.module:Name may lie here
    try:
        app()
    except CoterieError as error:
        print(f"coterie: {error}", file=sys.stderr)
        sys.exit(2 if type(error).__name__ == "ConfigError" else 1)
    except OSError as error:
        if error.filename is None:
            raise
        print(f"coterie: '{error.filename}': {error.strerror}", file=sys.stderr)
        sys.exit(1)
    except SystemExit as left:
        if left.code == 130:  # what Typer makes of Ctrl-C
            cure = "'coterie resume RUN' goes on from the last checkpoint, the same 'coterie tune' with its study"
            print(f"coterie: left at once; {cure}", file=sys.stderr)
        raise
