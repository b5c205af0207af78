"""Serves the live page until the person stops it."""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from coterie.core.types import CoterieError

FAMILIES = {True: socket.AF_INET6, False: socket.AF_INET}  # by whether the address has a colon


def serve(folder: Path, host: str, port: int) -> None:
    """Listen, print the address, and answer until Ctrl-C."""
    if not folder.is_dir():
        raise CoterieError(f"'{folder}' is not a directory; name one with runs below it: coterie live DIRECTORY")
    try:
        import uvicorn

        from coterie.app.pages import LOOPBACK, make_app
    except ModuleNotFoundError as error:
        raise CoterieError(f"'coterie live' needs {error.name}: pip install 'coterie[web]'") from None
    listening = listen(host, port)
    at = listening.getsockname()
    print(
        f"runs below {folder} at http://{f'[{at[0]}]' if ':' in at[0] else at[0]}:{at[1]}/  (Ctrl-C ends)", flush=True
    )
    if host not in LOOPBACK:
        print("anyone who reaches this address can read these runs: there is no password", flush=True)
    settings = uvicorn.Config(
        make_app(folder, host), log_level="warning", access_log=False, timeout_graceful_shutdown=1
    )
    with said_once(), suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
        uvicorn.Server(settings).run(sockets=[listening])


@contextmanager
def said_once() -> Iterator[None]:
    """Let every warning through once: pages ask for the same files again and again."""
    log, said = logging.getLogger("coterie"), set[str]()

    def is_new(record: logging.LogRecord) -> bool:
        known = record.getMessage() in said
        said.add(record.getMessage())
        return not known

    log.addFilter(is_new)
    try:
        yield
    finally:
        log.removeFilter(is_new)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at this address, or an error that names the option."""
    made = socket.socket(FAMILIES[":" in host])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
        made.listen()  # whoever reads the address may ask at once
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            raise CoterieError(f"--port: {port} is in use; choose another, or 0 for any that is free") from None
        if error.errno == errno.EACCES:
            raise CoterieError(f"--port: {port} needs the rights of an administrator; choose one above 1023") from None
        raise CoterieError(f"--host: '{host}' is no address of this machine: {error}") from None
    return made
