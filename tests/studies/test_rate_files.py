"""Ratings on disk: nothing is lost or asked twice, sessions are not mixed, and damaged files are refused."""

import json
import os
from pathlib import Path

import pytest

import coterie
from coterie.core.types import CoterieError
from coterie.preferences.ratings import RatingSession, episodes_file, read_ratings
from coterie.studies.rate.judges import ReturnJudge
from coterie.studies.rate.rate import StopRating, rate
from helpers.rating import rated_runs


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return rated_runs(tmp_path_factory.mktemp("rated"))


class Tired(ReturnJudge):
    """Compares so many pairs and leaves."""

    def __init__(self, patience):
        self.patience, self.seen = patience, []

    def compare(self, first, second):
        if len(self.seen) == self.patience:
            raise StopRating
        self.seen.append((first, second))
        return super().compare(first, second)


@pytest.mark.slow
def test_leaving_loses_nothing_and_nothing_is_asked_twice(runs, tmp_path):
    session = RatingSession(tuple(runs), "return", episodes=4)
    whole = rate(session, ReturnJudge(), tmp_path / "whole.jsonl", 12)
    kept = tmp_path / "parts.jsonl"
    assert len(rate(session, Tired(5), kept, 12)) == 5
    with kept.open("a") as file:
        file.write('{"first": [0, 1], "sec')  # killed while it wrote
    second = Tired(99)
    assert rate(session, second, kept, 12) == whole
    assert len(second.seen) == 7
    assert kept.read_text() == (tmp_path / "whole.jsonl").read_text()
    done = Tired(99)
    rate(session, done, kept, 12)
    assert not done.seen


@pytest.mark.slow
def test_what_was_said_survives_an_interrupt_while_it_is_read_again(runs, tmp_path, monkeypatch):
    session = RatingSession(tuple(runs), "return", episodes=4)
    kept = tmp_path / "r.jsonl"
    rate(session, ReturnJudge(), kept, 5)
    whole, before = kept.read_bytes(), kept.stat().st_ino
    rate(session, ReturnJudge(), kept, 5)
    assert (kept.read_bytes(), kept.stat().st_ino) == (whole, before)  # a whole file is not written anew
    cut = whole + b'{"first": [0, 1], "sec'
    kept.write_bytes(cut)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", interrupted)
        with pytest.raises(KeyboardInterrupt):
            rate(session, ReturnJudge(), kept, 6)
    assert kept.read_bytes() == cut
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.jsonl", "r.jsonl.npz"]
    kept.write_bytes(whole[:-1])  # all but the end of the line
    assert len(rate(session, ReturnJudge(), kept, 6)) == 6
    assert kept.read_bytes().startswith(whole)
    assert len(read_ratings(kept)[1]) == 6


def test_every_line_is_on_disk_before_the_next_pair(runs, tmp_path, monkeypatch):
    rate(RatingSession(tuple(runs), "return", episodes=2), ReturnJudge(), tmp_path / "r.jsonl", 1)
    real, synced = os.fsync, []
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append((tmp_path / "r.jsonl").read_text()), real(file)))
    rate(RatingSession(tuple(runs), "return", episodes=2), ReturnJudge(), tmp_path / "r.jsonl", 4)
    assert [text.count("score") for text in synced] == [2, 3, 4]


def test_files_of_similar_names_do_not_share_episodes(runs, tmp_path):
    for name in ("my.v1", "my.v2"):
        rate(RatingSession(tuple(runs), "return", episodes=2), ReturnJudge(), tmp_path / name, 1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["my.v1", "my.v1.npz", "my.v2", "my.v2.npz"]


def test_another_session_is_not_mixed_in(runs, tmp_path):
    kept = tmp_path / "r.jsonl"
    rate(RatingSession(tuple(runs), "return", episodes=2), ReturnJudge(), kept, 2)
    with pytest.raises(CoterieError, match="holds ratings with seed 0, not 1; choose another --ratings"):
        rate(RatingSession(tuple(runs), "return", episodes=2, seed=1), ReturnJudge(), kept, 2)
    (tmp_path / "odd.jsonl").write_text("{}\n")
    with pytest.raises(CoterieError, match="not a ratings file"):
        read_ratings(tmp_path / "odd.jsonl")
    (tmp_path / "odd.jsonl").write_text(kept.read_text().replace("score", "sc\nore"))
    with pytest.raises(CoterieError, match="line 2: not valid JSON"):
        read_ratings(tmp_path / "odd.jsonl")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]\n", "not a ratings file"),
        ('{"schema": 1}\n', "line 1: "),
        ('{"schema": 1, "runs": ["a"], "judge": "x", "odd": 1}\n', "line 1: "),
        ("HEAD\n[]\n", "line 2: not a rating"),
        ('HEAD\n{"first": [0, 0], "second": [9, 0], "score": 1.0}\n', "line 2: not a rating"),
        ('HEAD\n{"first": [0, 0], "second": [1, 0], "score": 7}\n', "line 2: not a rating"),
        ("\udcff\n", "line 1: not valid JSON"),
    ],
)
def test_files_that_hold_no_ratings_are_refused_by_a_sentence(tmp_path, text, said):
    path = tmp_path / "r.jsonl"
    head = json.dumps({"runs": ["a", "b"], "judge": "x", "schema": 1})
    path.write_bytes(text.replace("HEAD", head).encode(errors="surrogateescape"))
    with pytest.raises(CoterieError, match=said):
        read_ratings(path)


@pytest.mark.slow
def test_places_that_cannot_hold_ratings_are_refused(runs, tmp_path):
    session = RatingSession(tuple(runs), "return", episodes=2)
    with pytest.raises(CoterieError, match="is a directory"):
        rate(session, ReturnJudge(), tmp_path, 2)
    with pytest.raises(CoterieError, match=r"name a \.jsonl file"):
        rate(session, ReturnJudge(), tmp_path / "q.npz", 2)
    assert not list(tmp_path.iterdir())
    kept = tmp_path / "r.jsonl"
    rate(session, ReturnJudge(), kept, 2)
    beside = episodes_file(kept)
    whole = beside.read_bytes()
    for damaged in (whole[:-40], b"", b"no archive"):
        beside.write_bytes(damaged)
        with pytest.raises(CoterieError, match=r"is cut off .*remove it"):
            rate(session, ReturnJudge(), kept, 3)
    beside.unlink()
    assert len(rate(session, ReturnJudge(), kept, 3)) == 3
    assert beside.read_bytes()[:2] == whole[:2]


def test_one_run_is_one_however_its_path_is_written(runs, tmp_path):
    twice = (runs[0], f"{Path(runs[0]).parent}/./{Path(runs[0]).name}/")
    with pytest.raises(CoterieError, match="with itself"):
        rate(RatingSession(twice, "return"), ReturnJudge(), tmp_path / "r.jsonl", 2)
    rate(RatingSession(tuple(runs), "return", episodes=2), ReturnJudge(), tmp_path / "r.jsonl", 2)
    same = tuple(f"{run}/" for run in runs)
    assert len(rate(RatingSession(same, "return", episodes=2), ReturnJudge(), tmp_path / "r.jsonl", 3)) == 3


@pytest.mark.slow
def test_runs_that_went_on_are_not_mixed_in(runs, tmp_path):
    from helpers.rating import lights

    young = lights(
        tmp_path, "young", "train.total_steps=384", "groups.all.learner.learning_rate=1e-9", "train.best=last"
    )
    session = RatingSession((runs[0], str(young.path)), "return", episodes=3, checkpoint="last")
    rate(session, ReturnJudge(), tmp_path / "r.jsonl", 2)
    words = ["train.total_steps=6000", "groups.all.learner.learning_rate=1e-2"]
    coterie.resume(young.path, words, quiet=True)
    with pytest.raises(CoterieError, match="no longer play the episodes"):
        rate(session, ReturnJudge(), tmp_path / "r.jsonl", 3)
