"""Ratings on disk: nothing is lost or asked twice, contests are not mixed, and damaged files are refused."""

import json
import os
from pathlib import Path

import pytest

import coterie
from coterie.core.types import CoterieError
from coterie.studies.rate import rate as rating
from coterie.studies.rate.judges import ByReturn
from coterie.studies.rate.rate import RatingSession, StopRating, rate
from helpers.rating import contenders


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return contenders(tmp_path_factory.mktemp("rated"))


class Tired(ByReturn):
    """Compares so many pairs and leaves."""

    def __init__(self, patience):
        self.patience, self.seen = patience, []

    def compare(self, first, second):
        if len(self.seen) == self.patience:
            raise StopRating
        self.seen.append((first, second))
        return super().compare(first, second)


def test_leaving_loses_nothing_and_nothing_is_asked_twice(runs, tmp_path):
    contest = RatingSession(tuple(runs), "return", episodes=4)
    whole = rate(contest, ByReturn(), tmp_path / "whole.jsonl", 12)
    kept = tmp_path / "parts.jsonl"
    assert len(rate(contest, Tired(5), kept, 12)) == 5
    with kept.open("a") as file:
        file.write('{"first": [0, 1], "sec')  # killed while it wrote
    second = Tired(99)
    assert rate(contest, second, kept, 12) == whole
    assert len(second.seen) == 7
    assert kept.read_text() == (tmp_path / "whole.jsonl").read_text()
    done = Tired(99)
    rate(contest, done, kept, 12)
    assert not done.seen


def test_what_was_said_survives_an_interrupt_while_it_is_read_again(runs, tmp_path, monkeypatch):
    contest = RatingSession(tuple(runs), "return", episodes=4)
    kept = tmp_path / "r.jsonl"
    rate(contest, ByReturn(), kept, 5)
    whole, before = kept.read_bytes(), kept.stat().st_ino
    rate(contest, ByReturn(), kept, 5)
    assert (kept.read_bytes(), kept.stat().st_ino) == (whole, before)  # a whole file is not written anew
    cut = whole + b'{"first": [0, 1], "sec'
    kept.write_bytes(cut)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            rate(contest, ByReturn(), kept, 6)
    assert kept.read_bytes() == cut
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.jsonl", "r.jsonl.npz"]
    kept.write_bytes(whole[:-1])  # all but the end of the line
    assert len(rate(contest, ByReturn(), kept, 6)) == 6
    assert kept.read_bytes().startswith(whole)
    assert len(rating.read(kept)[1]) == 6


def test_every_line_is_on_disk_before_the_next_pair(runs, tmp_path, monkeypatch):
    rate(RatingSession(tuple(runs), "return", episodes=2), ByReturn(), tmp_path / "r.jsonl", 1)
    real, synced = os.fsync, []
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append((tmp_path / "r.jsonl").read_text()), real(file)))
    rate(RatingSession(tuple(runs), "return", episodes=2), ByReturn(), tmp_path / "r.jsonl", 4)
    assert [text.count("score") for text in synced] == [2, 3, 4]


def test_files_of_similar_names_do_not_share_episodes(runs, tmp_path):
    for name in ("my.v1", "my.v2"):
        rate(RatingSession(tuple(runs), "return", episodes=2), ByReturn(), tmp_path / name, 1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["my.v1", "my.v1.npz", "my.v2", "my.v2.npz"]


def test_another_contest_is_not_mixed_in(runs, tmp_path):
    kept = tmp_path / "r.jsonl"
    rate(RatingSession(tuple(runs), "return", episodes=2), ByReturn(), kept, 2)
    with pytest.raises(CoterieError, match="holds ratings with seed 0, not 1; choose another --ratings"):
        rate(RatingSession(tuple(runs), "return", episodes=2, seed=1), ByReturn(), kept, 2)
    (tmp_path / "odd.jsonl").write_text("{}\n")
    with pytest.raises(CoterieError, match="no ratings file of"):
        rating.read(tmp_path / "odd.jsonl")
    (tmp_path / "odd.jsonl").write_text(kept.read_text().replace("score", "sc\nore"))
    with pytest.raises(CoterieError, match="line 2: not readable"):
        rating.read(tmp_path / "odd.jsonl")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]\n", "no ratings file of"),
        ('{"schema": 1}\n', "line 1: does not say what was compared"),
        ('{"schema": 1, "runs": ["a"], "judge": "x", "odd": 1}\n', "line 1: does not say"),
        ("HEAD\n[]\n", "line 2: no rating"),
        ('HEAD\n{"first": [0, 0], "second": [9, 0], "score": 1.0}\n', "line 2: no rating"),
        ('HEAD\n{"first": [0, 0], "second": [1, 0], "score": 7}\n', "line 2: no rating"),
        ("\udcff\n", "line 1: not readable"),
    ],
)
def test_files_that_hold_no_ratings_are_refused_by_a_sentence(tmp_path, text, said):
    path = tmp_path / "r.jsonl"
    head = json.dumps({"runs": ["a", "b"], "judge": "x", "schema": 1})
    path.write_bytes(text.replace("HEAD", head).encode(errors="surrogateescape"))
    with pytest.raises(CoterieError, match=said):
        rating.read(path)


def test_places_that_cannot_hold_ratings_are_refused(runs, tmp_path):
    contest = RatingSession(tuple(runs), "return", episodes=2)
    with pytest.raises(CoterieError, match="is a folder"):
        rate(contest, ByReturn(), tmp_path, 2)
    with pytest.raises(CoterieError, match=r"name a \.jsonl file"):
        rate(contest, ByReturn(), tmp_path / "q.npz", 2)
    assert not list(tmp_path.iterdir())
    kept = tmp_path / "r.jsonl"
    rate(contest, ByReturn(), kept, 2)
    beside = rating.episodes_file(kept)
    whole = beside.read_bytes()
    for damaged in (whole[:-40], b"", b"no archive"):
        beside.write_bytes(damaged)
        with pytest.raises(CoterieError, match="is cut off, or holds no episodes; remove it"):
            rate(contest, ByReturn(), kept, 3)
    beside.unlink()
    assert len(rate(contest, ByReturn(), kept, 3)) == 3
    assert beside.read_bytes()[:2] == whole[:2]


def test_one_run_is_one_however_its_path_is_written(runs, tmp_path):
    twice = (runs[0], f"{Path(runs[0]).parent}/./{Path(runs[0]).name}/")
    with pytest.raises(CoterieError, match="with itself"):
        rate(RatingSession(twice, "return"), ByReturn(), tmp_path / "r.jsonl", 2)
    rate(RatingSession(tuple(runs), "return", episodes=2), ByReturn(), tmp_path / "r.jsonl", 2)
    same = tuple(f"{run}/" for run in runs)
    assert len(rate(RatingSession(same, "return", episodes=2), ByReturn(), tmp_path / "r.jsonl", 3)) == 3


def test_runs_that_went_on_are_not_mixed_in(runs, tmp_path, no_drawing):
    from helpers.rating import lights

    young = lights(
        tmp_path, "young", "train.total_steps=384", "groups.all.learner.learning_rate=1e-9", "train.best=last"
    )
    contest = RatingSession((runs[0], str(young.path)), "return", episodes=3, checkpoint="last")
    rate(contest, ByReturn(), tmp_path / "r.jsonl", 2)
    words = ["train.total_steps=6000", "groups.all.learner.learning_rate=1e-2"]
    coterie.resume(young.path, words, quiet=True)
    with pytest.raises(CoterieError, match="no longer play the episodes"):
        rate(contest, ByReturn(), tmp_path / "r.jsonl", 3)
