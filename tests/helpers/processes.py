"""Processes that start in a moment: forked from one that has imported everything, which takes seconds."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from coterie.cli import main
from coterie.core import heartbeat

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(
    [
        *("coterie.training.table", "coterie.training.jobs", "coterie.training.workers"),
        *(
            "coterie.studies.report.report",
            "coterie.algorithms.ppo.ppo",
            "coterie.policies.network",
            "coterie.studies.tune.tune",
        ),
        *("coterie.worlds.gridworld", "coterie.worlds.boards.tictactoe", "helpers.run", "scipy.linalg"),
        *("coterie.cli", "helpers.without_pictures"),
    ]
)


class Command:
    """`coterie WORDS…` in a forked process, with the members of `subprocess.Popen` that tests use.

    `given` comes to it through a pipe; None: it has no input. It calls `before` first. In a `session` of its own it can
    be signalled together with its children.
    """

    def __init__(self, *words, given=None, session=False, before=tuple):
        self._folder = tempfile.TemporaryDirectory(prefix="command-")
        arguments = (list(map(str, words)), Path(self._folder.name), given, session, before, dict(os.environ))
        self._process = FORKED.Process(target=_run, args=arguments)
        self._process.start()
        self.pid = self._process.pid

    def poll(self):
        return self._process.exitcode

    returncode = property(poll)

    @property
    def out(self):
        """What it has written to stdout so far."""
        return self._written("out")

    @property
    def err(self):
        """What it has written to stderr so far."""
        return self._written("err")

    def _written(self, name):
        file = Path(self._folder.name) / name
        return file.read_text() if file.exists() else ""  # it has not begun

    def send_signal(self, number):
        os.kill(self.pid, number)

    def communicate(self, timeout=60):
        """Wait for its end: what it has written to stdout and stderr."""
        self._process.join(timeout)
        if self.poll() is None:
            raise subprocess.TimeoutExpired("coterie", timeout)
        return self.out, self.err


def impatient():
    """Give a step that does not end one second after a signal."""
    heartbeat.GRACE = 1.0


def session_of(pid):
    """The processes of a session that have not been collected, but for its leader."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            number, fields = int(status.parent.name), status.read_text().rpartition(")")[2].split()
            if int(fields[3]) == pid and number != pid:
                found.append(number)
    return found


def run_command(*words, **options):
    """Run a command to its end, as `subprocess.run` does."""
    command = Command(*words, **options)
    out, err = command.communicate(timeout=180)
    return subprocess.CompletedProcess(words, command.returncode, out, err)


def _run(words, folder, given, session, before, environment):
    """The command, in the forked process."""
    if session:
        os.setsid()
    os.environ.clear()  # of the first test that forked
    os.environ.update(environment)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY) if given is None else _pipe(given), 0)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked where a training started the fork server
    torch.set_num_threads(1)
    sys.argv = ["coterie", *words]
    before()
    main()


def _pipe(text):
    reading, writing = os.pipe()
    os.write(writing, text.encode())
    os.close(writing)
    return reading
