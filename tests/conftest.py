"""Fixtures that several test files share."""

import functools
import gc
import logging
import multiprocessing
import os
import shutil
import sys
from pathlib import Path

import pytest
import scipy.linalg.cython_blas  # noqa: F401  # the BLAS of compiled code: loaded, so that its threads can be limited
import torch
from threadpoolctl import threadpool_limits

import coterie
from coterie.cli import main
from coterie.lm.ask import wheels
from coterie.studies import figures, interactive
from coterie.worlds.adapters import batch
from helpers import numba_cache, processes
from helpers.compare import fabricate_sweep
from helpers.dqn import make_learner as make_q_learner
from helpers.maddpg import make_learner as make_table_learner
from helpers.ppo import make_learner
from helpers.run import environment

# of child processes: fork servers of Python before 3.12.8 import what is installed instead of what `sys.path` names
os.environ["PYTHONPATH"] = environment()["PYTHONPATH"]


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """One thread for PyTorch and BLAS: tiny networks are slower with more, five times where tests run on all cores."""
    torch.set_num_threads(1)
    with threadpool_limits(1, user_api="blas"):
        yield


SOURCES = pytest.StashKey[numba_cache.Package]()
IN_WORKER = "PYTEST_XDIST_WORKER" in os.environ


def pytest_configure(config):
    """Delete compiled code whose sources have changed: once, before pytest-xdist starts its workers."""
    numba_cache.lock_saving()
    if not IN_WORKER:
        config.stash[SOURCES] = numba_cache.Package(Path(coterie.__file__).parent)
        numba_cache.purge(config.stash[SOURCES])


def pytest_unconfigure(config):
    if SOURCES in config.stash:
        numba_cache.purge_edited(config.stash[SOURCES])


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """Collect without looking for garbage: half a million objects come to stay, and would be searched eight times.

    Later it is looked for less often than usual, which was 6% of the time: imported libraries stay, too.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)
        gc.enable()


def pytest_collection_modifyitems(items):
    """Begin with the tests of the whole product, outside of packages: the longest ones must not be left to the end."""
    items.sort(key=lambda item: len(item.path.parts))


@pytest.fixture(scope="session")
def empty_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("no-weights")


@pytest.fixture(autouse=True)
def _weights_need_a_marker(request, monkeypatch, empty_folder):
    """Hide the weights of language models from tests that are not marked `lm`."""

    def refuse(requirement, *_):
        pytest.fail(f"this test fetches {requirement}: mark it with pytest.mark.lm")

    if request.node.get_closest_marker("lm") is None:
        monkeypatch.setenv("COTERIE_CACHE", str(empty_folder))
        monkeypatch.setattr(wheels, "download", refuse)


DRAWING = {name: getattr(figures, name) for name in ("as_png", "chart_as_png", "charts_as_png")}


@pytest.fixture(autouse=True, scope="session")
def _no_pictures():
    """Leave pictures out of reports, those of module fixtures too: drawing takes longer than a tiny training."""
    with pytest.MonkeyPatch.context() as patch:
        for name in DRAWING:
            patch.setattr(figures, name, lambda *drawn: b"")
        patch.setattr(interactive, "scripts", lambda: "")  # two megabytes for every page
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_the_disk():
    """Leave files in the disk's cache: a tiny training syncs fifty times, which takes longer than the training.

    A killed process does not need it, only a machine that loses power. Commands in processes of their own do sync.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # an error for a file that is closed, as before
        yield


@pytest.fixture(autouse=True)
def _warnings_come_again():
    """Forget which warnings about environments were logged: every test sees its own."""
    batch._warned.clear()


@pytest.fixture
def drawing(monkeypatch):
    """Draw the pictures of reports in this test."""
    for name, draw in DRAWING.items():
        monkeypatch.setattr(figures, name, draw)


@pytest.fixture
def no_garbage_collection():
    """Leave garbage alone while a test takes times: one look through a test process may take a second."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def forked(monkeypatch):
    """Fork what jobs and workers would start anew. The environment of children is that of the first one's test."""
    real = multiprocessing.get_context
    monkeypatch.setattr(
        multiprocessing, "get_context", lambda method=None: processes.FORKED if method == "spawn" else real(method)
    )


@pytest.fixture(params=["compiled", "autograd"])
def learner(request):
    """`make_learner` on either path; what the compiled one does not serve takes the other twice."""
    return functools.partial(make_learner, compiled=request.param == "compiled")


@pytest.fixture(params=["compiled", "autograd"])
def q_learner(request):
    """The same for learners of action values."""
    return functools.partial(make_q_learner, compiled=request.param == "compiled")


@pytest.fixture(params=["compiled", "autograd"])
def table_learner(request):
    """The same for learners with central critics."""
    return functools.partial(make_table_learner, compiled=request.param == "compiled")


@pytest.fixture(scope="session")
def _sweep(tmp_path_factory):
    return fabricate_sweep(tmp_path_factory.mktemp("made") / "sweep")


@pytest.fixture
def sweep(_sweep, tmp_path):
    """Finished runs of two learning rates, four seeds each; a copy that the test may change."""
    return shutil.copytree(_sweep, tmp_path / "sweep")


@pytest.fixture
def coterie_(monkeypatch, capsys):
    """Run a command in this process as the console script does: (exit code, stdout, stderr)."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["coterie", *map(str, words)])
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setattr(logging.getLogger(), "handlers", [])
        try:
            main()
            code = 0
        except SystemExit as left:
            code = left.code or 0
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return code, captured.out, captured.err

    return run
