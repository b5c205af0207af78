"""Fixtures of the tests of studies."""

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine


def _do_not_sync(connection, _):
    connection.execute("PRAGMA synchronous=OFF")


@pytest.fixture(autouse=True, scope="session")
def _databases_do_not_wait_for_the_disk():
    """Leave the databases of tuning in the disk's cache, as `_no_waiting_for_the_disk` leaves files."""
    event.listen(Engine, "connect", _do_not_sync)
    yield
    event.remove(Engine, "connect", _do_not_sync)
