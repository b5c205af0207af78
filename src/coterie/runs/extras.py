"""Optional outputs of a run: video, report, TensorBoard files, expert score.

A world that cannot be drawn or a page that cannot be written must not fail a finished training.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from coterie.core.types import CoterieError
from coterie.runs.interrupt import is_ctrl_c

log = logging.getLogger("coterie")


@contextmanager
def extra(name: str, cure: str = "") -> Iterator[None]:
    """Turn any failure inside into the warning `no NAME: REASON`, since the code may be a user's or a third party's."""
    try:
        yield
    except Exception as error:
        if is_ctrl_c(error):
            raise KeyboardInterrupt from None
        reason = str(error) if isinstance(error, CoterieError) else f"{type(error).__name__}: {error}"
        if isinstance(error, OSError) and error.strerror:  # such as a full disk
            reason = error.strerror if error.filename is None else f"'{error.filename}': {error.strerror}"
        log.warning("no %s: %s%s", name, reason, cure)
        log.debug("no %s", name, exc_info=True)
