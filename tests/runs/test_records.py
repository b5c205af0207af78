"""metrics.jsonl as others may have left it: what can be read is read, and what cannot is said once."""

import json
import logging
import math

import pytest

from coterie.config import schema
from coterie.runs.run import Run


@pytest.fixture
def run(tmp_path):
    """A run without any training in it."""
    return Run.create(tmp_path / "run", schema.load("gridworld-cooperative"))


def line(step, **more):
    return json.dumps({"env_steps": step, "wall_s": step / 10, "team/return_mean": 1.0} | more).encode()


def write(run, *lines):
    run.metrics_file.write_bytes(b"".join(one + b"\n" for one in lines))


DAMAGED = [
    line(2)[:9],  # cut
    line(2)[:9] + line(3),  # cut, with the next record on the same line
    *(b"\xff\xfe}", b"{]}", b"[1]", b"3", b"", b"\0" * 40, b'{"reward": 1}', b'{"env_steps": "two"}', b"[" * 100_000),
]


@pytest.mark.parametrize("damaged", DAMAGED, ids=range(len(DAMAGED)))
def test_lines_that_cannot_be_read_are_a_gap_that_is_said_once(run, caplog, damaged):
    write(run, line(0), line(1), damaged, damaged, line(4))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            records = run.records()
            assert [row["env_steps"] for row in records.rows] == [0, 1, 4]
            assert records.gaps == {2}
            assert run.metrics() == records.rows
    assert [one.getMessage() for one in caplog.records] == [
        f"'{run.metrics_file}': 2 of 5 lines cannot be read (lines 3, 4); curves have a gap there"
    ]


def test_many_damaged_lines_are_counted_and_some_named(run, caplog):
    write(run, *[b"{"] * 9, line(4))
    run.metrics()
    assert "9 of 10 lines cannot be read (lines 1, 2, 3, 4, 5 and 4 more)" in caplog.text


def test_a_last_line_that_is_being_written_is_no_damage(run, caplog):
    run.metrics_file.write_bytes(line(0) + b"\n" + line(1)[:-4])
    assert [row["env_steps"] for row in run.metrics()] == [0]
    run.metrics_file.write_bytes(line(0) + b"\n" + line(1))  # all but its end of line
    assert [row["env_steps"] for row in run.metrics()] == [0, 1]
    assert not caplog.text


def test_records_without_seconds_and_numbers_that_are_none_are_said(run, caplog):
    words = {"team/return_mean": math.nan, "note": "text"}
    write(run, b'{"env_steps": 0, "team/return_mean": 1}', line(1, **words), line(2, wall_s=None))
    rows = run.metrics()
    assert [math.isnan(row["wall_s"]) for row in rows] == [True, False, True]
    assert [math.isnan(row["team/return_mean"]) for row in rows] == [False, True, False]
    said = [one.getMessage() for one in caplog.records]
    assert said == [
        f"'{run.metrics_file}': 2 of 3 records have no wall_s; charts against time leave them out",
        f"'{run.metrics_file}': 2 values of team/return_mean, note not finite; curves have a gap there",
    ]


def test_a_cut_keeps_what_is_damaged_before_the_step(run):
    lines = [line(0), b"\xff{", line(1), b"{", line(2), line(3)]
    write(run, *lines)
    run.cut(2)
    assert run.metrics_file.read_bytes() == b"".join(one + b"\n" for one in lines[:5])
    run.cut(1)
    assert run.metrics_file.read_bytes() == b"".join(one + b"\n" for one in lines[:3])
    run.cut(-1)
    assert run.metrics_file.read_bytes() == b""
