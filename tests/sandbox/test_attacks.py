"""Programs that try to break out, to take everything, or to survive: each is contained, and has the right verdict."""

import os
import socket
import threading
from pathlib import Path

import pytest

from coterie import sandbox
from helpers.attacks import ATTACKS, prepared

SECRET = "COTERIE_TEST_SECRET"
FORKS = ("fork bomb", "memory bomb, many processes", "daemon", "children that outlive it")


@pytest.fixture(scope="module", params=["bubblewrap", "landlock"])
def mechanism(request):
    available, _ = sandbox.MECHANISMS[request.param]
    if not available():
        pytest.skip(f"this machine has no {request.param}")
    return request.param


@pytest.fixture(scope="module")
def port():
    """A server that nobody should reach."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=lambda: [server.accept() for _ in range(1)], daemon=True).start()
        yield server.getsockname()[1]


def running(mark):
    """Processes of this machine whose command line has a mark."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
        except OSError:
            continue
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_attack_is_contained(name, mechanism, port, tmp_path, monkeypatch):
    allowed = ATTACKS[name][1]
    monkeypatch.setenv(SECRET, "EXPECTED-ANSWER")
    memory = 96 + list(ATTACKS).index(name)  # also the mark of this run's processes
    verdict = sandbox.run(
        prepared(name, port, str(tmp_path), os.getpid()),
        cpu_seconds=0.4,
        wall_seconds=1.5,
        memory_mb=memory,
        output_bytes=100_000,
        mechanism=mechanism,
    )
    assert verdict.status in allowed, verdict
    assert "BROKEN" not in verdict.stdout, verdict
    assert len(verdict.stdout) <= 100_000
    assert not list(tmp_path.iterdir())
    assert not running(f'"RLIMIT_AS": {(memory + 64) * 2**20}'.encode())
    if name == "an exit code of one's own":
        assert verdict.exit_code == 3
    if name == "a forged end":
        assert verdict.exit_code == 7
    if mechanism == "landlock" and name in FORKS:
        assert verdict.status == ("timeout" if name == "fork bomb" else "fail")  # there is one process
        assert verdict.memory_mb < 20


def test_some_mechanism_runs_here():
    assert sandbox.live_mechanism() in ("bubblewrap", "landlock")
