"""Nothing can be isolated on some machines; there the sandbox refuses to run, which `coterie doctor` says."""

import pytest

from coterie import sandbox


@pytest.fixture(autouse=True, scope="session")
def _isolation():
    try:
        sandbox.live_mechanism()
    except sandbox.SandboxUnavailable as error:
        pytest.skip(f"no sandbox on this machine: {error}")
