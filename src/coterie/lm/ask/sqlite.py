"""The SQLite file of the cache and of the budget's journal; safe for threads and for several processes."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.lm.ask.interface import LMError

TABLES = """
create table if not exists answers (key blob primary key, value blob not null) without rowid;
create table if not exists accounts (name text primary key, calls integer, tokens integer, money real);
create table if not exists reservations (id integer primary key, account text, calls integer, tokens integer,
                                         money real);
create table if not exists samples (number integer primary key, value text not null);
"""
BUSY_TIMEOUT = 60.0  # seconds to wait for another process that is writing


class SqliteStore:
    """One connection that one thread uses at a time; a forked child process opens its own."""

    def __init__(self, path: str | Path | None) -> None:
        """`path` None keeps everything in memory."""
        self.path = str(path) if path is not None else ":memory:"
        self.lock = threading.RLock()
        self.owner = -1  # process that opened the connection
        self._connect()

    def _connect(self) -> sqlite3.Connection:
        if self.owner != os.getpid():  # SQLite connections do not survive a fork
            if self.path != ":memory:":
                Path(self.path).parent.mkdir(parents=True, exist_ok=True)
            try:
                made = sqlite3.connect(self.path, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False)
                _prepare(made)
            except sqlite3.Error as error:
                raise LMError(f"cannot open '{self.path}' as an SQLite store of answers: {error}") from None
            self.connection, self.owner = made, os.getpid()
        return self.connection

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Give access to the connection outside a transaction."""
        with self.lock:
            yield self._connect()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the block as one transaction that is rolled back on an error; other processes wait."""
        with self.lock:
            connection = self._connect()
            try:
                connection.execute("begin immediate")
                yield connection
                connection.execute("commit")
            except sqlite3.OperationalError as error:
                raise LMError(f"cannot write to '{self.path}': {error}") from None
            finally:
                if connection.in_transaction:  # the block failed, and SQLite has not rolled back by itself
                    connection.execute("rollback")

    def close(self) -> None:
        with self.lock:
            if self.owner == os.getpid():
                self.connection.close()
            self.owner = -1


def _prepare(connection: sqlite3.Connection) -> None:
    """Create the tables and switch to write-ahead logging.

    While another process switches too, SQLite reports 'locked' without waiting; hence the retries.
    """
    for attempts_left in range(200, -1, -1):
        try:
            connection.execute("pragma journal_mode=wal")
            connection.execute("pragma synchronous=normal")
            connection.executescript(TABLES)
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or not attempts_left:
                raise
            time.sleep(0.05)
