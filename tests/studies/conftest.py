"""Fixtures of the tests of studies."""

import pytest
from optuna.storages._rdb import storage
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


@pytest.fixture(autouse=True, scope="session")
def _migrations_are_read_once():
    """Keep the history of Optuna's tables: it imports ten files for it whenever a study is opened."""
    read, kept = storage._VersionManager._create_alembic_script, []

    def read_once(manager):
        if not kept:
            kept.append(read(manager))
        return kept[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage._VersionManager, "_create_alembic_script", read_once)
        yield
