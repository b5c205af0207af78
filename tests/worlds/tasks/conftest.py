"""Fixtures of text tasks."""

import pytest

from coterie import sandbox


@pytest.fixture
def live_sandbox():
    """Skip a test on machines that cannot isolate programs."""
    try:
        sandbox.live_mechanism()
    except sandbox.SandboxUnavailable as error:
        pytest.skip(f"no sandbox on this machine: {error}")
