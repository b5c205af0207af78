"""Comparisons shown: tables, JSON, CSV, drawings, pages."""

import base64
import csv
import io
import json

import pytest
from PIL import Image

from coterie.studies.compare import show
from helpers.compare import FAST, GRID, SLOW, compared, fabricate, fabricate_sweep


@pytest.mark.slow
def test_the_command_prints_tables_of_80_columns(coterie_, sweep):
    code, out, _ = coterie_("compare", sweep, "--threshold", "5")
    lines = out.splitlines()
    assert code == 0
    assert max(map(len, lines)) <= 80
    (row,) = [line.split() for line in lines if "7.50 [" in line]
    assert row[:4] == ["1", "learner.learning_rate=0.01", "4", "7.50"]  # the shared experiment stands above
    assert row[-2] == "7.50"
    assert sum(GRID in line for line in lines) == 1
    assert any(line.split() == ["random", "1.00"] for line in lines)
    assert any(line.split() == ["expert", "10.00"] for line in lines)
    assert any(line.split()[2:] == ["4/4", "100", "100"] for line in lines)
    assert any(line.split()[2:] == ["3/4", "200", "200"] for line in lines)
    assert any(line.startswith("1 over 2") and "0.88 [" in line for line in lines)
    assert "held-out" in out
    assert coterie_("compare", sweep, "--threshold", "5")[1] == out
    assert "0.88" in coterie_("compare", sweep / "slow", sweep / "fast")[1].splitlines()[-1]  # the likelier one first
    assert "reaches" not in coterie_("compare", sweep)[1]
    assert "with 4 runs a 95% interval holds the true IQM in about 88% of cases" in out.replace("\n   ", " ")
    for name, rate in (("fast", FAST), ("slow", SLOW)):
        fabricate(sweep / name / "4", "seed=4", rate)
    assert "with 5 runs a 95% interval holds the true IQM in about 89%" in coterie_("compare", sweep)[1].replace(
        "\n   ", " "
    )


@pytest.mark.slow
def test_the_likelier_one_comes_first_with_its_interval(sweep):
    found = compared(sweep / "slow", sweep / "fast")
    (pair,) = found.improvement.values()
    assert pair.value - pair.low < pair.high - pair.value
    bounds = [f"{1 - bound:.2f}" for bound in (pair.high, pair.low)]
    assert show.improvement_rows(found) == [["2 over 1", f"0.88 [{', '.join(bounds)}]"]]


@pytest.mark.slow
def test_the_command_prints_json(coterie_, sweep):
    code, out, _ = coterie_("compare", sweep, "--threshold", "5", "--json", "--score", "last")
    plain = json.loads(out)
    assert code == 0
    assert (plain["score"], plain["threshold"], plain["skipped"]) == ("last", 5.0, [])
    fast, slow = plain["variants"]
    assert fast["iqm"]["value"] == 7.5
    assert len(fast["iqm"]["interval"]) == 2
    assert slow["frames_to_threshold"]["gridworld"]["reached"] == 3
    assert json.loads(coterie_("compare", sweep, "--json")[1])["variants"][0]["frames_to_threshold"] is None
    assert len(fast["performance_profile"]["value"]) == len(plain["profile_thresholds"])
    assert (fast["performance_profile"]["value"][0], fast["performance_profile"]["value"][-1]) == (1.0, 0.0)
    assert fast["curves"]["wall"]["at"] == [0, 1, 2]
    assert [run["last"] for run in slow["runs"]] == [1.0] * 4
    assert plain["probability_of_improvement"][0]["of"] == fast["label"]


def table(path):
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.mark.slow
def test_the_command_writes_a_row_per_run(coterie_, sweep, tmp_path):
    assert coterie_("compare", sweep, "--threshold", "5", "--csv", tmp_path / "new" / "rows.csv")[0] == 0
    rows = table(tmp_path / "new" / "rows.csv")
    assert len(rows) == 8
    failed = next(row for row in rows if row["score"] == "2.0")
    assert (failed["frames_to_threshold"], failed["censored"], failed["last"]) == ("", "true", "1.0")
    assert (failed["seed"], failed["env_steps"], failed["wall_s"]) == ("0", "200", "2.0")
    assert failed["run"] == str(sweep / "slow" / "0")
    assert rows[0]["frames_to_threshold"] == "100.0"
    assert {row["censored"] for row in rows if row["score"] != "2.0"} == {"false"}
    coterie_("compare", sweep, "--csv", tmp_path / "rows.csv")
    assert {row["censored"] for row in table(tmp_path / "rows.csv")} == {""}


@pytest.mark.slow
def test_the_command_writes_a_figure_and_a_page(coterie_, sweep, tmp_path, drawing):
    figure, out = tmp_path / "deep" / "figure.png", tmp_path / "page.html"
    assert coterie_("compare", sweep, "--threshold", "5", "--figure", figure, "--out", out)[0] == 0
    assert Image.open(figure).size[0] > 1000
    beside = {file.name for file in (tmp_path / "page-figures").iterdir()}
    assert beside == {"overview.png", "overview-validation-return.png", "overview-validation-return-against-time.png"}
    text = out.read_text()
    assert Image.open(io.BytesIO(base64.b64decode(text.split("base64,")[1].split('"')[0]))).format == "PNG"
    assert text.count("<table>") == 3
    assert "http" not in text
    assert "learner.learning_rate=0.01" in text
    assert "<td>3/4<td>200" in text


@pytest.mark.slow
def test_what_is_drawn(sweep, monkeypatch, drawing):
    from matplotlib.figure import Figure

    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: drawn.append(self))
    show.draw(compared(sweep, threshold=5.0))
    steps, wall, profile, intervals = drawn[0].axes
    assert (steps.get_xlabel(), wall.get_xlabel()) == ("environment steps", "seconds of training")
    assert all(axes.get_ylabel() for axes in drawn[0].axes)
    assert steps.lines[0].get_ydata().tolist() == [0, 5, 7.5]
    assert wall.lines[0].get_xdata().tolist() == [0, 1, 2]
    assert [len(axes.collections) for axes in (steps, wall, profile)] == [2, 2, 2]  # a band for each variant
    assert steps.get_legend_handles_labels()[1] == ["random", "expert", "step 0", "threshold"]
    assert intervals.lines[0].get_xdata().tolist() == [6, 7, 8, 9]


@pytest.mark.slow
def test_the_figure_can_be_drawn_again_from_the_json(tmp_path):
    found = compared(fabricate_sweep(tmp_path), threshold=5.0)
    made = show.picture_of(found)
    again = show.picture_from_dict(json.loads(json.dumps(show.to_dict(found))))
    assert (again.references, again.unit, again.notes) == (made.references, made.unit, made.notes)
    assert again.thresholds.tolist() == made.thresholds.tolist()
    for one, other in zip(again.variants, made.variants, strict=True):
        assert (one.label, one.scores.tolist()) == (other.label, other.scores.tolist())
        assert one.iqm.to_dict() == other.iqm.to_dict()
        assert one.profile.to_dict() == other.profile.to_dict()
        for axis in ("steps", "wall"):
            assert one.curves[axis][0].tolist() == other.curves[axis][0].tolist()
            assert one.curves[axis][1].to_dict() == other.curves[axis][1].to_dict()


@pytest.mark.slow
def test_a_panel_says_that_runs_share_nothing(tmp_path, monkeypatch, drawing):
    from matplotlib.figure import Figure

    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: drawn.append(self))
    for seed, start in enumerate((0.0, 9.0)):
        fabricate(tmp_path / "apart" / str(seed), FAST, f"seed={seed}", first=100, start=start)
        fabricate(tmp_path / "together" / str(seed), SLOW, f"seed={seed}")
    show.draw(compared(tmp_path / "apart"))
    show.draw(compared(tmp_path))
    show.draw(compared(tmp_path / "together"))
    words = [[[text.get_text() for text in axes.texts] for axes in figure.axes[:2]] for figure in drawn]
    assert words[0] == [[], ["no seconds that all runs share"]]
    assert words[1] == [[], ["no seconds that all runs of 1 share"]]
    assert words[2] == [[], []]


@pytest.mark.slow
def test_lone_runs_are_compared_without_intervals(coterie_, tmp_path, drawing):
    fabricate(tmp_path / "a", FAST, curve=(3.0,), score=3.0)
    fabricate(tmp_path / "b", SLOW, curve=(3.0,), score=3.0)
    code, out, _ = coterie_("compare", tmp_path, "--threshold", "3", "--figure", tmp_path / "figure.png")
    assert code == 0
    assert out.count("3.00 [–]") == 2
    assert "probability" not in out  # of one run against one other: 0, 0.5 or 1
    assert "nan" not in out.lower()
    assert "single runs: " in out
    assert "few runs" not in out
    assert "bootstrap" not in out
    fabricate(tmp_path / "more", FAST, "seed=1")
    both = coterie_("compare", tmp_path)[1]
    assert all(word in both for word in ("intervals: 95%", "few runs: ", "single runs: ", "1 over 2"))


@pytest.mark.slow
def test_equal_runs_have_an_interval_without_width(coterie_, tmp_path, drawing):
    for seed in range(3):
        fabricate(tmp_path / str(seed), f"seed={seed}")
    code, out, _ = coterie_("compare", tmp_path, "--figure", tmp_path / "figure.png")
    assert code == 0
    assert "8.00 [8.00, 8.00]" in out


@pytest.mark.slow
def test_options_are_checked(coterie_, sweep):
    assert coterie_("compare", sweep, "--threshold", "high")[0] == 2
    for word in ("nan", "inf"):
        code, _, err = coterie_("compare", sweep, "--threshold", word)
        assert (code, err) == (2, f"coterie: --threshold: expected a finite number, got {word}\n")
    assert coterie_("compare", sweep, "--score", "worst")[2] == (
        "coterie: --score: expected best or last, got 'worst'\n"
    )
    assert coterie_("compare", sweep, "--by", "groups.team.learner.learnig_rate")[0] == 2


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--csv", "--figure", "--out"])
def test_files_that_cannot_be_written_are_named(coterie_, sweep, tmp_path, option):
    folder = tmp_path / "folder.png"
    folder.mkdir()
    code, out, err = coterie_("compare", sweep, option, folder)
    assert (code, out) == (1, "")
    assert err == f"coterie: '{folder}': Is a directory\n"
