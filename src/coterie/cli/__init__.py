"""The command line, `coterie`."""

import sys


def main() -> None:
    """Run a command; Ctrl-C while its modules are still being imported ends it with one line."""
    try:
        from coterie.cli import entry

        entry.main()
    except KeyboardInterrupt:
        print("coterie: interrupted", file=sys.stderr)
        sys.exit(130)


__all__ = ["main"]
