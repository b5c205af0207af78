"""The store's transactions: whole or not at all, and failures in words."""

import sqlite3

import pytest

from coterie.lm.ask.interface import LMError
from coterie.lm.ask.sqlite import SqliteStore


@pytest.fixture
def store(tmp_path):
    return SqliteStore(tmp_path / "answers.db")


def insert(store, *rows):
    with store.transaction() as connection:
        connection.executemany("insert into answers values (?, ?)", rows)


def keys(store):
    with store.reading() as connection:
        return [key for (key,) in connection.execute("select key from answers order by key")]


def test_a_block_that_fails_changes_nothing(store):
    insert(store, (b"1", b""))
    with pytest.raises(sqlite3.IntegrityError):
        insert(store, (b"2", b""), (b"1", b""))
    insert(store, (b"3", b""))
    assert keys(store) == [b"1", b"3"]


def test_a_full_disk_is_named_and_the_store_goes_on(store):
    """SQLite rolls back by itself there; to roll back once more is an error, which hid the disk's."""
    store.connection.execute("pragma max_page_count=12")
    with pytest.raises(LMError, match=r"^cannot write to '.*answers.db': database or disk is full$"):
        insert(store, (b"1", bytes(100_000)))
    insert(store, (b"2", b""))
    assert keys(store) == [b"2"]
