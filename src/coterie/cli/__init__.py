"""The command line."""

from coterie.cli.main import main

__all__ = ["main"]
