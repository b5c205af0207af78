"""Files that are either as they were or complete."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file under a temporary name, which is synced and renamed at the end; a failure leaves the old file.

    One process at a time may write a file.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.unlink(missing_ok=True)  # of a process that was killed, or a link that leads elsewhere
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except BaseException as error:
        if temporary.exists():  # on a disk that is read-only, removing a file that is not there is an error, too
            temporary.unlink()
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(path)) from None  # instead of the temporary name, or none
        raise
