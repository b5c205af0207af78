"""Ctrl-C does not reach child processes while they start."""

import multiprocessing
import signal
import threading

import pytest

from coterie.config import schema
from coterie.core.signals import ctrl_c_blocked
from coterie.runs.interrupt import Interruption
from coterie.training import jobs, workers
from coterie.worlds.adapters.workers import ProcessWorker, WorkerSpec
from coterie.worlds.tasks.env_workers import EnvWorkers
from helpers.run import GRID


def blocked():
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.mark.slow
def test_a_new_process_keeps_ctrl_c_blocked_and_its_parent_does_not():
    """Also the first one, with which multiprocessing starts a process that unblocks it."""
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=signal.raise_signal, args=(signal.SIGINT,))  # would end it with code 1
    with ctrl_c_blocked():
        process.start()
        assert blocked()
    assert not blocked()
    process.join()
    assert process.exitcode == 0


def test_ctrl_c_arrives_after_the_block():
    order = []
    with pytest.raises(KeyboardInterrupt), ctrl_c_blocked():  # noqa: PT012  # the interrupt comes at the end
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # other threads do not block it
        order.append("blocked")
    assert order == ["blocked"]


def start_jobs():
    list(jobs.run_parallel(print, [()], 1, Interruption()))


def start_workers():
    workers.start(schema.load("gridworld-cooperative", [*GRID, "train.shards=2", "train.workers=1"]), [])


def start_environments():
    ProcessWorker(WorkerSpec(print, "a world", processes=1, fresh=False, timeout=1.0), range(1))


def start_tasks():
    EnvWorkers(None, 1)._apply([(0, "a", "b"), (0, "a", "c")])


@pytest.mark.parametrize("start", [start_jobs, start_workers, start_environments, start_tasks])
def test_all_child_processes_start_so(start, monkeypatch):
    found = []

    def note(process):
        found.append(blocked())
        raise RuntimeError("not started")

    monkeypatch.setattr(multiprocessing.context.SpawnProcess, "start", note)
    with pytest.raises(RuntimeError, match="not started"):
        start()
    assert found == [True]
    assert not blocked()
