"""`python -m coterie`: the command line, for environments whose scripts are not on the path."""

from coterie.cli import main

main()
