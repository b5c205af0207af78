"""Nothing can be isolated on some machines; there the sandbox refuses to run, which `coterie doctor` says."""

import pytest

from coterie import sandbox


@pytest.fixture(autouse=True, scope="session")
def _isolation():
    try:
        sandbox.live_mechanism()
    except sandbox.SandboxUnavailable as error:
        pytest.skip(f"no sandbox on this machine: {error}")


@pytest.fixture(scope="session", params=["bubblewrap", "landlock"])
def mechanism(request):
    """Each mechanism that works here: bubblewrap may be installed where the kernel lets nobody make namespaces."""
    available, _ = sandbox.MECHANISMS[request.param]
    if not available():
        pytest.skip(f"this machine has no {request.param}")
    verdict = sandbox.run("", mechanism=request.param)
    if verdict.status == "infrastructure":
        pytest.skip(f"{request.param} does not work on this machine: {verdict.reason}")
    return request.param
