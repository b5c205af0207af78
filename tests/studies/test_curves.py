"""Curves of records that are damaged: a gap where values are missing, and every other value where it was."""

import json
import math

import numpy as np
import pytest

from coterie.studies import interactive
from coterie.studies.report import curves, report
from helpers.compare import fabricate


@pytest.fixture
def run(tmp_path):
    """A run with a record of training at every step, and an evaluation at every second."""
    made = fabricate(tmp_path / "run", finished=False)
    rows = [
        {"env_steps": 10 * i, "wall_s": float(i), "team/entropy": 0.1 * i, "team/return_100": 1.0 * i}
        | ({"team/eval/return_mean": 2.0 * i} if i % 2 == 0 else {})
        for i in range(9)
    ]
    made.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return made


def edited(run, number, edit):
    """The run with one line of its records changed."""
    lines = run.metrics_file.read_text().splitlines()
    lines[number] = edit(lines[number])
    run.metrics_file.write_text("\n".join(lines) + "\n")
    return run


def changed(**values):
    def edit(line):
        record = json.loads(line) | values
        return json.dumps({name: value for name, value in record.items() if value is not None})

    return edit


def lines_of(runs, title="return"):
    """The points of every line of a chart, by label; None is a gap."""
    (chart,) = (one for one in curves.charts(runs) if one.title == title)
    return {
        one.label: [(x, None if math.isnan(y) else y) for x, y in zip(one.x, one.estimate.value, strict=True)]
        for one in chart.series
    }


GREEDY, TRAINING = "team, greedy", "team, training (100 episodes)"


def test_a_damaged_line_is_a_gap_in_the_lines_that_it_had_values_of(run):
    found = lines_of([edited(run, 3, lambda line: line[:20])])
    assert [y for _, y in found[TRAINING]] == [0, 1, 2, None, 4, 5, 6, 7, 8]
    assert found[TRAINING][3][0] == 30
    assert [y for _, y in found[GREEDY]] == [0, 4, 8, 12, 16]  # evaluations were in other lines
    found = lines_of([edited(run, 6, lambda line: line[:20])])
    assert [y for _, y in found[TRAINING]] == [0, 1, 2, None, 4, 5, None, 7, 8]
    assert [y for _, y in found[GREEDY]] == [0, 4, 8, None, 16]


def test_values_that_are_no_numbers_are_gaps(run):
    found = lines_of([edited(run, 4, changed(**{"team/eval/return_mean": math.nan, "team/return_100": math.inf}))])
    assert [y for _, y in found[TRAINING]] == [0, 1, 2, 3, None, 5, 6, 7, 8]
    assert [y for _, y in found[GREEDY]] == [0, 4, None, 12, 16]


def test_records_without_seconds_are_gaps_against_time_alone(run):
    edited(run, 4, changed(wall_s=None))
    assert [y for _, y in lines_of([run])[GREEDY]] == [0, 4, 8, 12, 16]
    found = lines_of([run], "return against time")[GREEDY]
    assert found == [(0, 0), (2, 4), (4, None), (6, 12), (8, 16)]


def test_a_gap_of_one_run_is_one_of_the_mean(run, tmp_path):
    other = fabricate(tmp_path / "other", "seed=1", finished=False)
    other.metrics_file.write_text(run.metrics_file.read_text())
    edited(run, 4, lambda line: line[:20])
    found = lines_of([run, other])[GREEDY]
    assert dict(found) == {0: 0, 20: 4, 40: None, 60: 12, 80: 16}


@pytest.mark.parametrize(
    "edit",
    [lambda line: "{", changed(wall_s=None), changed(**{"team/eval/return_mean": math.nan, "team/entropy": "x"})],
    ids=["cut", "no seconds", "NaN"],
)
@pytest.mark.parametrize("every", [False, True], ids=["one record", "all records"])
def test_a_report_of_damaged_records_is_written(run, tmp_path, drawing, edit, every):
    for number in range(9) if every else [4]:
        edited(run, number, edit)
    if every and not run.metrics():
        return  # there is nothing to report
    page = report.write_report([run], tmp_path / "page.html")
    assert "<h2>Curves</h2>" in page.read_text()
    for chart in curves.charts([run]):
        json.dumps(interactive.to_dict(chart), allow_nan=False)


def test_a_line_of_many_points_keeps_its_gaps_in_a_browser(run):
    rows = [{"env_steps": i, "wall_s": i, "team/entropy": 1.0} for i in range(5000)]
    rows[2501]["team/entropy"] = math.nan
    run.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (chart,) = (one for one in curves.charts([run]) if any(series.label == "team" for series in one.series))
    assert np.isnan(chart.series[0].estimate.value).sum() == 1
    trace = interactive.to_dict(chart)["data"][0]
    assert trace["y"].count(None) == 1
