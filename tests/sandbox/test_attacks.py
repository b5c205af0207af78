"""Programs that try to break out, to take everything, or to survive: each is contained, and has the right verdict."""

import functools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from coterie import sandbox
from coterie.sandbox.interpreter import find_interpreter
from helpers.attacks import ATTACKS, prepared
from helpers.run import environment

SECRET = "COTERIE_TEST_SECRET"
FORKS = (
    "fork bomb",
    "memory bomb, many processes",
    "daemon",
    "children that outlive it",
    "children that nobody waits for",
)


@pytest.fixture(scope="module")
def port():
    """A server that nobody should reach."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=lambda: [server.accept() for _ in range(1)], daemon=True).start()
        yield server.getsockname()[1]


@pytest.fixture
def host():
    """A folder of this machine that belongs to the user of the programs."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        if (user := find_interpreter().run_as) is not None:
            os.chown(folder, user, user)
        yield Path(folder)


@functools.cache
def has_namespaces():
    """Whether users may have namespaces here, with mounts of their own."""
    return subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "true"]).returncode == 0


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
def test_attack_is_contained(name, mechanism, port, host, monkeypatch):
    allowed = ATTACKS[name][1]
    if name == "sizes of files outside" and mechanism == "landlock" and not has_namespaces():
        pytest.skip("without namespaces of users Landlock cannot close it")
    monkeypatch.setenv(SECRET, "EXPECTED-ANSWER")
    memory = 96 + list(ATTACKS).index(name)  # also the mark of this run's processes
    verdict = sandbox.run(
        prepared(name, port, str(host), os.getpid()),
        cpu_seconds=0.4,
        wall_seconds=1.5,
        memory_mb=memory,
        output_bytes=100_000,
        mechanism=mechanism,
    )
    assert verdict.status in allowed, verdict
    assert "BROKEN" not in verdict.stdout, verdict
    assert len(verdict.stdout) <= 100_000
    assert not list(host.iterdir())
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


@pytest.mark.slow
def test_a_program_ends_with_a_caller_that_is_killed(mechanism, host):
    program = "import ctypes, time; ctypes.CDLL(None).prctl(1, 0); print(1, flush=True); time.sleep(1e6)"
    code = f"from coterie import sandbox; sandbox.run({program!r}, memory_mb=777, mechanism={mechanism!r})"
    mark = f'"RLIMIT_AS": {(777 + 64) * 2**20}'.encode()
    with subprocess.Popen([sys.executable, "-c", code], env=environment() | {"TMPDIR": str(host)}) as caller:
        wait_until(lambda: running(mark))
        time.sleep(0.3)  # for the program to begin
        caller.send_signal(signal.SIGKILL)
    wait_until(lambda: not running(mark))


def wait_until(condition):
    """Raises after some seconds."""
    give_up = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.05)
