"""The command line, `coterie`."""

from coterie.cli.entry import main

__all__ = ["main"]
