"""Fixtures of the tests of algorithms."""

import pytest

from helpers.resume import train_all


@pytest.fixture(scope="module")
def whole(request, tmp_path_factory):
    """Every game of the test file's `GAMES`, uninterrupted: its experiment and its run."""
    return train_all(tmp_path_factory.mktemp("whole"), request.module.GAMES)
