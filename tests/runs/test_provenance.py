"""Locks: who trains a run or tunes a study keeps others out; who only looks stops nobody."""

import fcntl
import threading
from contextlib import contextmanager

import pytest

from coterie.core.types import CoterieError
from coterie.runs.provenance import in_study, in_training, locked, study_locked
from coterie.runs.run import LOCK, STUDY_LOCK, Run


@contextmanager
def look(lock):
    """Holds a lock for a moment, as `is_locked` does."""
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        ends = threading.Timer(0.05, fcntl.flock, (file, fcntl.LOCK_UN))
        ends.start()
        yield
        ends.join()


def test_a_look_at_a_run_does_not_keep_it_from_training(tmp_path):
    run = Run(tmp_path)
    with look(run.path / LOCK), locked(run):
        assert in_training(run)
    assert not in_training(run)


def test_a_look_at_a_trial_does_not_keep_its_study_from_going_on(tmp_path):
    trial = Run(tmp_path / "0000")
    with look(tmp_path / STUDY_LOCK), study_locked(tmp_path, tmp_path / "s.db"):
        assert in_study(trial)
    assert not in_study(trial)


def test_what_another_process_trains_or_tunes_is_refused(tmp_path):
    with open(tmp_path / LOCK, "w") as one, open(tmp_path / STUDY_LOCK, "w") as other:
        for file in (one, other):
            fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(CoterieError, match="is being trained by another process"), locked(Run(tmp_path)):
            pass
        with pytest.raises(CoterieError, match=r"s.db' is being tuned"), study_locked(tmp_path, tmp_path / "s.db"):
            pass
