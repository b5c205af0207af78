"""Fixtures that several test files share."""

import pytest
import torch

from coterie import report


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)  # tiny networks are slower with more, and a test machine is shared


@pytest.fixture
def no_drawing(monkeypatch):
    """Leave curves out of reports: drawing takes longer than the tiny training before it."""
    monkeypatch.setattr(report, "draw_curves", lambda runs: b"")
