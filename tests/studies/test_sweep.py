"""Sweeps with several processes: the same results as one after the other, resumed where they were stopped."""

import importlib
import os
import signal
import threading
import time
from contextlib import nullcontext

import pytest

from coterie.cli import progress
from coterie.config.schema import ConfigError
from coterie.core.types import CoterieError
from coterie.runs.interrupt import Interrupted, Interruption
from coterie.runs.provenance import in_training
from coterie.runs.run import Run
from coterie.studies import sweep
from coterie.training.jobs import run_parallel
from helpers.processes import Command
from helpers.run import GRID, assert_same_end, files, numbers, results, train, written

BASE = [word for word in GRID if "total_steps" not in word]
WORDS = [*BASE, "train.total_steps=96", "seed=0,1"]


@pytest.mark.slow
def test_jobs_do_not_change_the_numbers_and_finished_runs_stay(coterie_, tmp_path, forked, monkeypatch):
    one, two, counted = tmp_path / "one", tmp_path / "two", []
    monkeypatch.setattr(progress.Tasks, "advance", lambda self: counted.append((self.total, self.things, self.quiet)))
    assert coterie_("train", "gridworld-cooperative", "-m", *WORDS, "--out", one, "--quiet")[0] == 0
    assert counted == 2 * [(2, "runs", True)]  # one after the other, each run has a bar of its own
    code, out, _ = coterie_("train", "gridworld-cooperative", "-m", *WORDS, "--out", two, "--jobs", 2)
    assert code == 0
    assert out.count("/2]") == 2
    assert counted[2:] == 2 * [(2, "runs", False)]
    for seed in range(2):
        assert_same_end(Run.open(one / f"seed={seed}"), Run.open(two / f"seed={seed}"))
    before = (two / "seed=1" / "metrics.jsonl").stat().st_mtime_ns
    (two / "seed=0" / "summary.json").unlink()  # as if it had been stopped before its end
    code, out, _ = coterie_("train", "gridworld-cooperative", "-m", *WORDS, "--out", two, "--jobs", 2)
    assert (code, out.count("seed=1, finished before"), out.count("finished before")) == (0, 1, 1)
    assert (two / "seed=1" / "metrics.jsonl").stat().st_mtime_ns == before
    assert_same_end(Run.open(one / "seed=0"), Run.open(two / "seed=0"))
    other = [word.replace("total_steps=96", "total_steps=128") for word in WORDS]
    with pytest.raises(ConfigError, match=r"seed=0' holds a run with other settings; choose another --out"):
        sweep.plan_sweep("gridworld-cooperative", other, two)


@pytest.mark.slow
def test_a_killed_sweep_goes_on(coterie_, tmp_path):
    seldom = ["train.total_steps=9600", "train.evaluate_every=300", "train.checkpoint_every=300"]
    words = [*BASE, *seldom, "seed=0,1", "--out", str(tmp_path / "runs")]
    process = Command("train", "gridworld-cooperative", "-m", *words, "--jobs", 2)
    records = [tmp_path / "runs" / f"seed={seed}" / "metrics.jsonl" for seed in (0, 1)]
    for _ in range(12_000):
        if all(file.exists() and file.read_text().count("\n") > 4 for file in records):
            break
        assert process.poll() is None, process.err
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate()
    assert process.returncode == 143
    runs = [Run.open(tmp_path / "runs" / f"seed={seed}") for seed in (0, 1)]
    stopped = [run for run in runs if run.summary() is None]  # one may have ended before the other had begun
    assert out.count("stopped and saved at") == len(stopped) >= 1
    assert all(0 < run.steps()[-1] <= 9600 for run in stopped)  # the last one may be stopped in its evaluation
    code, out, err = coterie_("train", "gridworld-cooperative", "-m", *words, "--quiet")  # the same command
    assert code == 0, err
    assert "2 runs, best policies" in out
    for run in stopped:
        whole = [word.replace("seed=0,1", f"seed={run.config().seed}") for word in words[:-2]]
        other = train(tmp_path / f"whole-{run.path.name}", *whole)
        assert numbers(run) == numbers(other)
        assert results(run) == results(other)
        assert files(run.checkpoint_path(9600)) == files(other.checkpoint_path(9600))


def test_the_processes_of_a_sweep_that_was_killed_at_once_save_and_end(tmp_path):
    words = [*BASE, "train.total_steps=1000000", "train.evaluate_every=100000", "train.checkpoint_every=100000"]
    process = Command("train", "gridworld-cooperative", "-m", *words, "seed=0,1", "--out", tmp_path, "--jobs", 2)
    runs = [tmp_path / f"seed={seed}" for seed in (0, 1)]
    for _ in range(12_000):
        records = [run / "metrics.jsonl" for run in runs]
        if all(file.exists() and file.read_text().count("\n") > 4 for file in records):
            break
        assert process.poll() is None, process.err
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    for _ in range(2_000):
        if not any(map(in_training, map(Run.open, runs))):
            break
        time.sleep(0.005)
    process.communicate()
    assert "Traceback" not in process.err
    for run in map(Run.open, runs):
        assert run.load_checkpoint("last")["env_steps"] == run.steps()[-1] > 0


def end_as_if_it_had_not_begun():
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("asked", [True, False])
def test_a_process_that_a_passed_on_signal_ends_is_no_error_of_its_own(asked, forked):
    class Interrupted(Interruption):
        looks = 0

        def is_set(self):
            self.looks += 1
            return asked and self.looks > 1  # once the process has been started

    with nullcontext() if asked else pytest.raises(CoterieError, match="exit code -15"):
        assert list(run_parallel(end_as_if_it_had_not_begun, [()], 1, Interrupted())) == []


def test_wrong_jobs_are_one_sentence(coterie_, tmp_path):
    code, _, err = coterie_("train", "gridworld-cooperative", "-m", *WORDS, "--jobs", 0, "--out", tmp_path / "a")
    assert (code, err) == (
        1,
        "coterie: --jobs: expected at least 1 process, got 0; --jobs 1 runs one after the other\n",
    )
    code, _, err = coterie_("train", "gridworld-cooperative", *GRID, "--jobs", 2, "--out", tmp_path / "a")
    assert code == 2
    assert "--jobs: a single run has one process; -m a=1,2 trains several runs" in err
    assert not (tmp_path / "a").exists()


def fail_or_double(number):
    if number == 1:
        raise CoterieError("the second one fails")
    if number == 2:
        os._exit(9)
    return 2 * number


@pytest.mark.slow
def test_errors_in_processes_are_raised_here(forked):
    with pytest.raises(CoterieError, match="the second one fails"):
        list(run_parallel(fail_or_double, [(0,), (1,), (3,)], 2, Interruption()))
    with pytest.raises(CoterieError, match="exit code 9"):
        list(run_parallel(fail_or_double, [(2,)], 1, Interruption()))
    assert sorted(run_parallel(fail_or_double, [(0,), (3,), (5,)], 2, Interruption())) == [(0, 0), (1, 6), (2, 10)]
    interrupted = Interruption()
    interrupted.set()
    assert list(run_parallel(fail_or_double, [(0,)], 2, interrupted)) == []


SLOW_TO_IMPORT = """
import os, pathlib, time

def work():
    return "done"

if os.environ.get("IMPORTED_BY_A_NEW_PROCESS"):
    pathlib.Path(os.environ["IMPORTED_BY_A_NEW_PROCESS"]).write_text(str(os.getpid()))
    time.sleep(30)
"""


@pytest.mark.slow
def test_a_signal_to_processes_that_start_is_no_error(tmp_path, monkeypatch, capfd):
    written(tmp_path / "slow_to_import.py", SLOW_TO_IMPORT)
    monkeypatch.syspath_prepend(tmp_path)
    work = importlib.import_module("slow_to_import").work
    monkeypatch.setenv("IMPORTED_BY_A_NEW_PROCESS", str(tmp_path / "started"))
    interrupted = Interruption()

    def press_ctrl_c():  # a terminal sends it to the process and to those that it has started
        while not (tmp_path / "started").exists() or not (tmp_path / "started").read_text():
            time.sleep(0.01)
        os.kill(int((tmp_path / "started").read_text()), signal.SIGINT)
        time.sleep(0.2)
        interrupted.set()

    thread = threading.Thread(target=press_ctrl_c)
    thread.start()
    assert list(run_parallel(work, [(), ()], 1, interrupted)) == []
    thread.join()
    assert "Traceback" not in capfd.readouterr().err


def stop_before_the_first_checkpoint():
    raise Interrupted("nothing is kept")


@pytest.mark.slow
def test_tasks_of_which_nothing_is_kept_are_left_out(forked):
    assert list(run_parallel(stop_before_the_first_checkpoint, [()], 1, Interruption())) == []


def test_experiments_in_files_are_swept(tmp_path):
    file = written(tmp_path / "mine.yaml", "extends: gridworld-race\n")
    planned = sweep.plan_sweep(str(file), ["seed=4,5"], None)
    assert [one.overrides for one in planned] == [["seed=4"], ["seed=5"]]
    assert len({one.directory for one in planned}) == 2
