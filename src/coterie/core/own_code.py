"""Code of one's own, such as a world or a policy that a config names: says where it failed in one sentence.

A traceback through the library helps nobody who looks for a mistake in their own file. Tracebacks are printed where
the environment variable COTERIE_DEBUG is set, which the option `--debug` does; child processes inherit it.
"""

from __future__ import annotations

import os
import sysconfig
import traceback
from pathlib import Path

DEBUG = "COTERIE_DEBUG"
LIBRARY = str(Path(__file__).parent.parent)
INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def debugging() -> bool:
    """Whether errors are printed with their traceback."""
    return os.environ.get(DEBUG, "") not in ("", "0")


def explain(error: BaseException) -> str | None:
    """The sentence that stands for the traceback of one's own code; None where no such code took part."""
    own = describe_own_error(error)
    return None if own is None else f"your code raised {own}; {DEBUG}=1 or 'coterie --debug …' prints the traceback"


def describe_own_error(error: BaseException) -> str | None:
    """The error and the line of one's own code that raised it; None where no such code took part.

    A mistake of syntax counts as raised by its line.
    """
    place = None
    if isinstance(error, SyntaxError) and error.filename is not None and _is_own(error.filename):
        place = f"{_short(error.filename)}:{error.lineno}"
    else:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_own(frame.filename)]
        if frames:
            where = "" if frames[-1].name == "<module>" else f", {frames[-1].name}"
            place = f"{_short(frames[-1].filename)}:{frames[-1].lineno}{where}"
    return None if place is None else f"{describe(error)} ({place})"


def describe(error: BaseException) -> str:
    """The error's type and the first line of its message."""
    words = error.msg if isinstance(error, SyntaxError) else str(error)
    first = (words.strip().splitlines() or [""])[0]
    return f"{type(error).__name__}{f': {first}' if first else ''}"


def _is_own(file: str) -> bool:
    """Whether a file belongs neither to Coterie nor to Python and its packages."""
    within = any(file.startswith(f"{folder}{os.sep}") for folder in (LIBRARY, *INSTALLED))
    return not (file.startswith("<") or within or any(part in file for part in PACKAGES))


def _short(file: str) -> str:
    """The path from the working directory, where the file lies below it."""
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
