"""The parts of a report: origin, scores over seeds, settings, language models, charts for a browser."""

import html as standard_html
import json
import re
import sys

import numpy as np
import pytest

from coterie.config import schema
from coterie.lm.ask.cache import Cache, CacheSettings
from coterie.lm.ask.scripted import Scripted
from coterie.runs import provenance
from coterie.runs.run import PROVENANCE, Run
from coterie.studies import figures, html, interactive
from coterie.studies.columns import columns
from coterie.studies.figures import Chart, Reference, Series
from coterie.studies.report import curves, lm_section, origin_section, report, scores_section, settings_section
from coterie.studies.statistics import Estimate
from helpers.compare import GRID, fabricate

SCRIPTS = interactive.scripts  # which tests of other files replace


def cells(text):
    return [re.split("<td[^>]*>", row)[1:] for row in re.findall(r"<tr>(.*?)</tr>", text)]


# Origin -------------------------------------------------------------------------------------------------


def start(**changed):
    known = {
        "command": "coterie train a<b",
        "date": "2026-01-02 03:04 UTC",
        "version": "9",
        "python": "3",
        "machine": "m",
    }
    return provenance.Start(**known | changed)


def test_the_head_tells_the_command_the_date_the_version_the_machine_and_the_duration(tmp_path, monkeypatch):
    runs = [fabricate(tmp_path / str(seed), f"seed={seed}") for seed in (0, 1)]
    for run, date in zip(runs, ("2026-01-02 03:04 UTC", "2026-01-02 05:06 UTC"), strict=True):
        monkeypatch.setattr(provenance, "this_start", lambda date=date: start(date=date))
        provenance.note_start(run, resumed=False)
    provenance.note_start(runs[1], resumed=True)
    found = dict(cells("".join(origin_section.report_section(runs))))
    assert found["command"] == "coterie train a&lt;b"
    assert found["date"] == "2026-01-02 03:04 UTC to 2026-01-02 05:06 UTC"
    assert (found["version"], found["machine"]) == ("coterie 9, Python 3", "m")
    assert found["duration"] == "4 s in all, 2 s each"
    assert found["resumed"] == "1 time"


@pytest.mark.parametrize("damage", ["", "{", "[{}]", '["x"]'])
def test_a_run_whose_origin_is_not_known_has_a_head_without_it(tmp_path, damage):
    run = fabricate(tmp_path / "run")
    if damage:
        (run.path / PROVENANCE).write_text(damage)
    assert list(dict(cells("".join(origin_section.report_section([run]))))) == ["duration", "run"]


def test_this_process_is_described(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/coterie/__main__.py", "train", "my table.yaml"])
    now = provenance.this_start()
    assert now.command == "python -m coterie train 'my table.yaml'"
    assert "cores" in now.machine
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", now.date)


# Scores -------------------------------------------------------------------------------------------------


def finished(path, seed, mean, random=1.0):
    """A run with the summary that training writes."""

    def result(value):
        group = {"return_mean": value, "return_ci95": [value - 1, value + 1], "length_mean": 10.0 + seed}
        return {"groups": {"team": group}, "success_rate": 0.5 * seed}

    run = fabricate(path, f"seed={seed}")
    more = {"episodes": 7, "seed": seed, "steps_per_s": 5.0, "solved": False, "evaluation": result(mean)}
    more |= {"last": result(mean), "step_0": result(0.0), "baselines": {"random": result(random)}}
    run.summary_file.write_text(json.dumps(run.summary() | more))
    return run


def test_scores_are_means_over_seeds_and_baselines_are_shown_once(tmp_path):
    runs = [finished(tmp_path / str(seed), seed, 4.0 + 2 * seed) for seed in (0, 1)]
    text = "".join(scores_section.report_section(runs))
    rows = {row[0]: row for row in cells(text.split("<details>")[0]) if row}
    assert rows["trained (best)"] == ["trained (best)", "team", "5.00", "[4.00, 6.00]", "10.5", "25.0%"]
    assert rows["random"][2:4] == ["1.00", "[0.00, 2.00]"]  # the same in both: its interval is over episodes
    assert "Means of 2 runs" in text
    assert text.count("<td>random<td>") == 1
    assert "<td>1<td>trained (best)<td>team<td>6.00<td>[5.00, 7.00]<td>11.0<td>50.0%" in text


def test_one_run_has_intervals_over_episodes_and_unfinished_ones_are_left_out(tmp_path):
    runs = [finished(tmp_path / "0", 0, 4.0), fabricate(tmp_path / "1", "seed=1", finished=False)]
    text = "".join(scores_section.report_section(runs))
    assert "1 of 2 runs have not finished" in text
    assert "<td>trained (best)<td>team<td>4.00<td>[3.00, 5.00]" in text


def test_a_world_without_success_has_no_column_for_it(tmp_path):
    run = finished(tmp_path / "0", 0, 4.0)
    known = run.summary()
    for result in (*(known[name] for name in ("evaluation", "last", "step_0")), known["baselines"]["random"]):
        result["success_rate"] = None
    assert "<th>success" in "".join(scores_section.report_section([run]))
    run.summary_file.write_text(json.dumps(known))
    assert "success" not in "".join(scores_section.report_section([run]))


def test_a_text_table_leaves_out_columns_without_words():
    assert columns(["run", "return", "success"], [["a", "1.0", ""], ["b", "2.0", ""]]) == [
        "run  return",
        "a       1.0",
        "b       2.0",
    ]


def test_long_names_of_groups_lose_their_middle_in_80_columns():
    name = "the_group_that_learns_with_proximal_policy_optimisation"
    rows = [["trained (best)", f"{name}_{i}", "2.50", "[-1.10, 6.10]", "2.7", "100.0% [84, 100]"] for i in (1, 2)]
    head = ["policy", "group", "return", "95% interval", "length", "success"]
    lines = columns(head, [*rows, ["random", "b", *rows[0][2:]]], left=2)
    assert len({len(line) for line in lines}) == 1
    assert len(lines[1]) == 78
    assert [line.split()[2][-2:] for line in lines[1:3]] == ["_1", "_2"]
    assert lines[1].split()[2].startswith("the_gr")
    assert columns(head, rows) != lines  # one column of names: nothing is cut
    assert name in columns(head, rows)[1]


def test_a_long_name_wraps_in_its_cell():
    page = html.table(["policy", "group"], [["best", "a_group_whose_name_is_longer_than_all_other_names"]])
    assert "<td class=long>a_group" in page
    assert ".long { white-space: normal; min-width: 14rem; overflow-wrap: anywhere }" in html.STYLE


def test_a_column_of_numbers_may_hold_a_word():
    rows = [["risk preference", "neutral"], ["bidders", "2"], ["payoff", "−0.2 [−0.3, −0.1]"], ["loss", "–"]]
    assert '<table class="text-1">' in html.table(["group", "bidders"], rows)


def test_controls_do_not_cover_a_video_and_come_with_a_click():
    tag = html.video_tag(b"", "an episode")
    assert "<video autoplay loop muted playsinline " in tag
    assert 'onclick="this.controls = true"' in tag


def test_videos_of_several_runs_say_whose_they_are(tmp_path):
    runs = [fabricate(tmp_path / str(seed), f"seed={seed}") for seed in range(5)]
    for run in runs[1:]:
        (run.path / "videos" / "eval").mkdir(parents=True)
        (run.path / "videos" / "eval" / "step-000000000100.gif").write_bytes(b"GIF")
    text = "".join(report._videos(runs))
    assert "3 of 4 runs" in text
    assert re.findall("<figcaption>(.*?)</figcaption>", text) == ["seed 1", "seed 2", "seed 3"]
    alone = "".join(report._videos(runs[1:2]))
    assert alone.count("<img") == 1
    assert "seed" not in alone
    assert "".join(report._videos(runs[:1])) == ""


def test_columns_of_words_are_aligned_to_the_left_and_numbers_to_the_right():
    text = html.table(["policy", "group", "return"], [["best", "team", "1.0"], ["last", "–", "–"]])
    assert '<table class="text-1 text-2">' in text
    assert ".text-2 :is(td, th):nth-child(2) { text-align: left }" in html.STYLE


# Settings -----------------------------------------------------------------------------------------------


def test_settings_are_differences_and_the_full_ones_are_folded():
    config = schema.load(GRID, ["world.grid_size=5", "groups.team.learner.gamma=0.5"])
    text = "".join(settings_section.report_section(config))
    shown, folded = text.split("<details>")[0], "".join(text.split("<details>")[1:])
    assert cells(shown)[1:] == [["world.grid_size", "8", "5"], ["groups.team.learner.gamma", "0.99", "0.5"]]
    assert "<td>train.rollout_steps<td>128<td>64" in folded  # of the experiment, not the default
    assert "rollout_steps: 64" in folded
    assert "As shipped" in "".join(settings_section.report_section(schema.load(GRID, ["seed=3"])))


def test_settings_of_an_experiment_of_ones_own_are_held_against_the_defaults(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("world: {name: tictactoe}\ngroups: {all: {policy: random}}\ntrain: {num_envs: 3}\n")
    text = "".join(settings_section.report_section(schema.load(str(file))))
    assert "differ from the defaults" in text
    assert ["train.num_envs", "64", "3"] in cells(text)
    assert ["groups.all.policy.name", "network", "random"] in cells(text)
    assert ["world.name", "–", "tictactoe"] in cells(text)


def test_the_settings_of_a_mixed_table_name_every_kind_of_player(tmp_path):
    file = tmp_path / "mixed.yaml"
    file.write_text(
        "world: {name: gridworld, num_agents: 4}\n"
        "groups:\n"
        "  learner: {agents: agent_0, learner: ppo}\n"
        "  script: {agents: agent_1, policy: expert}\n"
        "  model: {agents: agent_2, policy: {name: language, lm: embedded}}\n"
        "  earlier: {agents: agent_3, policy: {run: runs/old}}\n"
    )
    rows = {
        path: (default, here)
        for path, default, _, here, _ in settings_section.difference_rows(schema.load(str(file)), None)
    }
    assert rows["groups.learner.learner.name"] == ("–", "ppo")
    assert rows["groups.script.policy.name"] == ("network", "expert")
    assert rows["groups.model.policy.name"] == ("network", "language")
    assert rows["groups.earlier.policy.run"][1].endswith("runs/old")
    assert rows["groups.model.agents"] == ('["*"]', '["agent_2"]')
    assert not [path for path in rows if path.startswith(("groups.learner.policy", "groups.model.policy.lm"))]


# Language models ----------------------------------------------------------------------------------------


def test_what_a_model_was_asked_is_counted_and_shown(tmp_path):
    run = Run.create(tmp_path / "run", schema.load(GRID))
    counts = {"questions": 12000.0, "unanswered": 3.0, "calls": 1234.0, "cache_hits": 5.0, "seconds": 2.0}
    record = {"env_steps": 1, "wall_s": 1.0} | {f"team/advice/lm/{name}": value for name, value in counts.items()}
    record |= {"team/advice/share": 0.25, "team/constraints/vetoes": 7.0}
    run.metrics_file.write_text(json.dumps(record) + "\n")
    model = Scripted(answer=lambda prompt, sample: "north", logprob=lambda prompt, choice: -float(len(choice)))
    cache = Cache(model, CacheSettings(str(run.path / "answers.sqlite")))
    cache.complete(["Which <way>?"])
    cache.scores(["Left or right?"], [["left", "right"]])
    cache.close()
    text = "".join(lm_section.report_section([run]))
    counted = [["questions", "12,000"], ["abstained", "3"], ["answered without a call", "10,763"], ["calls", "1,234"]]
    counted += [["cache hits, in the file of answers", "5"], ["seconds", "2"]]
    assert cells(text)[1:7] == counted
    assert "<th>team/advice" in text
    assert ["team", "share of decisions with advice", "25.0%"] in cells(text)
    assert ["team", "actions vetoed", "7"] in cells(text)
    assert "Which &lt;way&gt;?\n→ north" in text
    assert "Left or right?\n→ left 73%, right 27%" in text


def test_counts_of_a_model_are_totals_over_all_iterations_and_runs(tmp_path):
    runs = [Run.create(tmp_path / name, schema.load(GRID)) for name in ("one", "two")]
    told = "team/advice/lm/"
    for run, questions in zip(runs, ([10, 20, 5], [100, 200])):  # the first was resumed: it counts anew after 20
        records = [
            {"env_steps": i, "wall_s": 1.0, f"{told}questions": count, f"{told}calls": 1.0, "team/advice/share": 0.5}
            | {"team/constraints/vetoes": 3.0, "team/advice/advised": count}
            for i, count in enumerate(questions)
        ]
        run.metrics_file.write_text("".join(json.dumps(record) + "\n" for record in records))
    rows = cells("".join(lm_section.report_section(runs)))
    assert ["questions", "225"] in rows
    assert ["team", "actions vetoed", "15"] in rows  # of five iterations
    assert ["team", "decisions with advice", "225"] in rows
    assert ["team", "share of decisions with advice", "50.0%"] in rows


def test_what_all_samples_begin_with_is_shown_once():
    rules = "Go.\na\nb\nc\n"
    assert lm_section.shortened([f"{rules}x", f"{rules}y\nz"]) == [f"{rules}x", "… (4 lines as above)\ny\nz"]
    assert lm_section.shortened(["Go.\nx", "Go.\ny"]) == ["Go.\nx", "Go.\ny"]
    assert lm_section.shortened(["Go."]) == ["Go."]


def test_words_are_kept_of_few_requests_only(tmp_path):
    path = tmp_path / "answers.sqlite"
    cache = Cache(Scripted(answer=lambda prompt, sample: "yes"), CacheSettings(str(path)))
    for number in range(40):
        cache.complete([f"question {number}"])
    cache.complete(["question 0"])  # stored: not asked again
    cache.close()
    asked = [sample["prompt"] for sample in lm_section.read_samples(path)]
    assert asked == [f"question {number - 1}" for number in (1, 2, 4, 8, 16, 32)]


def test_a_run_without_a_model_or_with_an_old_store_says_nothing(tmp_path):
    run = fabricate(tmp_path / "run")
    assert list(lm_section.report_section([run])) == []
    (run.path / "answers.sqlite").write_text("not a database")
    assert lm_section.read_samples(run.path / "answers.sqlite") == []


# Charts -------------------------------------------------------------------------------------------------

LINE = np.array([1.0, 2.0, 3.0])


def chart(lines, **more):
    bands = Estimate(LINE, LINE - 1, LINE + 1)
    made = [Series(f"<{n}>", figures.colour(n), LINE, bands, faint=faint) for n, faint in enumerate(lines)]
    return Chart("return", figures.STEPS, "mean return", tuple(made), **more)


def test_a_browser_gets_the_same_lines_bands_and_references():
    made = interactive.to_dict(chart([False, True], references=(Reference("random", 4.0),), share=True))
    names = [trace["name"] for trace in made["data"] if trace.get("showlegend", True)]
    assert names == ["<0>", "<1>", "random"]
    assert [trace["y"] for trace in made["data"][:3]] == [[0, 1, 2], [2, 3, 4], [1, 2, 3]]
    assert made["data"][-1]["y"] == [4, 4]
    assert made["layout"]["yaxis"]["range"] == [-0.03, 1.03]
    solid, faint = made["data"][2], made["data"][5]
    assert faint["opacity"] < solid["opacity"]


@pytest.mark.parametrize(("points", "marked"), [(1, True), (3, True), (4, False)])
def test_few_evaluations_are_dots_on_their_line(points, marked):
    from matplotlib.figure import Figure

    line = np.arange(float(points))
    one = Series("a", "#000000", line, Estimate(line, None, None))
    (trace,) = interactive.to_dict(Chart("t", "x", "y", (one,)))["data"]
    assert trace["mode"] == ("lines+markers" if marked else "lines")
    axes = Figure().add_subplot()
    figures.draw_series(axes, one)
    assert (axes.lines[0].get_marker() == "o") is marked


def test_a_chart_is_drawn_again_from_its_numbers():
    made = chart([False, True], references=(Reference("random", 4.0), Reference("solved", 5.0, True)), share=True)
    again = figures.chart_from_dict(json.loads(json.dumps(figures.chart_to_dict(made))))
    assert interactive.to_dict(again) == interactive.to_dict(made)
    x = np.arange(500.0)
    (line,) = figures.chart_to_dict(Chart("t", "x", "y", (Series("a", "#000000", x, Estimate(x, None, None)),)))[
        "series"
    ]
    assert (len(line["x"]), line["x"][-1], line["estimate"]["low"]) == (100, 499, None)


def test_steps_are_thousands_and_seconds_begin_at_zero_in_both_forms():
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    for label, key, value in ((figures.STEPS, "tickformat", "~s"), (figures.TRAINING, "rangemode", "tozero")):
        one = Series("a", "#000000", LINE + 2000, Estimate(LINE, None, None))
        assert interactive.to_dict(Chart("t", label, "y", (one,)))["layout"]["xaxis"][key] == value
        axes.plot(one.x, LINE)
        figures.label_panel(axes, "t", label, "y")
    assert axes.get_xlim()[0] == 0
    figures.label_panel(axes, "t", figures.STEPS, "y")
    assert axes.xaxis.get_major_formatter()(2000) == "2k"


def test_time_is_counted_from_the_end_of_step_0(tmp_path):
    made = {one.title: one for one in curves.charts([fabricate(tmp_path / "run", start=15.0)])}
    assert made["return against time"].x == figures.TRAINING
    assert made["return against time"].series[0].x.tolist() == [0, 1, 2]


def test_a_group_has_one_colour_in_every_chart_and_success_lies_between_0_and_1(tmp_path):
    words = ["world.num_agents=3", "groups.team.agents=[agent_0]"]
    words += ["groups.rest={agents: [agent_1, agent_2], learner: ppo}"]
    run = Run.create(tmp_path / "run", schema.load(GRID, words))
    names = [f"{group}/{name}" for group in ("team", "rest") for name in ("eval/return_mean", "return_100", "entropy")]
    records = [{"env_steps": i, "wall_s": i} | dict.fromkeys([*names, "eval/success_rate"], 0.5) for i in range(3)]
    run.metrics_file.write_text("".join(json.dumps(record) + "\n" for record in records))
    made = {one.title: one for one in curves.charts([run])}
    colours = {}
    for one in (made["return"], made["entropy"]):
        for series in one.series:
            colours.setdefault(series.label.split(",")[0], set()).add(series.colour)
    assert colours == {"team": {figures.colour(0)}, "rest": {figures.colour(1)}}
    assert {series.label: series.faint for series in made["return"].series} == {
        "team, greedy": False,
        "rest, greedy": False,
        "team, training (100 episodes)": True,
        "rest, training (100 episodes)": True,
    }
    assert [one.title for one in made.values() if one.share] == ["success"]
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    figures.draw_chart(axes, made["success"])
    assert axes.get_ylim() == (-0.03, 1.03)


def test_many_lines_have_no_bands():
    few, many = (interactive.to_dict(chart([False] * n)) for n in (figures.MANY, figures.MANY + 1))
    assert sum("fill" in trace for trace in few["data"]) == figures.MANY
    assert sum("fill" in trace for trace in many["data"]) == 0


def test_long_lines_are_thinned_and_keep_their_ends():
    x = np.arange(5000.0)
    one = Series("a", "#0072b2", x, Estimate(x, None, None))
    (trace,) = interactive.to_dict(Chart("t", "x", "y", (one,)))["data"]
    assert len(trace["x"]) == interactive.MAX_POINTS
    assert (trace["x"][0], trace["x"][-1]) == (0, 4999)


def test_without_plotly_a_page_has_the_pictures_alone(monkeypatch):
    monkeypatch.setattr(interactive, "library_file", lambda: None)
    assert SCRIPTS() == ""
    assert interactive.figure(chart([False]), "<img>") == "<figure class=chart><img></figure>"


@pytest.mark.slow
def test_the_library_is_packed_into_the_page_the_same_each_time():
    pytest.importorskip("plotly")
    assert SCRIPTS() == SCRIPTS()
    assert "://" not in SCRIPTS()
    found = re.search(r'data-chart="([^"]*)"', interactive.figure(chart([False]), ""))
    assert json.loads(standard_html.unescape(found[1]))["data"][-1]["name"] == "<0>"


def test_a_table_of_long_words_may_wrap_and_escapes_them():
    assert html.table(["a"], [["<" * 41, "<"]]).count("class=long") == 1
    assert "<<" not in html.table(["a"], [["<" * 41]])


def test_colours_are_not_repeated_without_dashes():
    styles = [(figures.colour(n), str(figures.dash(n))) for n in range(4 * len(figures.COLOURS))]
    assert len(set(styles)) == len(styles)


def test_training_lines_of_several_groups_share_one_legend_entry():
    from matplotlib.figure import Figure

    estimate = Estimate(LINE, None, None)
    lines = [Series(f"{name}, greedy", figures.colour(n), LINE, estimate) for n, name in enumerate("ab")]
    for n, name in enumerate("ab"):
        lines.append(Series(f"{name}, training (100 episodes)", figures.colour(n), LINE, estimate, faint=True))
    several = Chart("return", figures.STEPS, "mean return", tuple(lines))
    expected = ["a, greedy", "b, greedy", "faint: training (100 episodes)"]
    made = interactive.to_dict(several)["data"]
    assert [trace["name"] for trace in made if trace.get("showlegend", True)] == expected
    assert made[0]["legendgroup"] == made[2]["legendgroup"] != made[1]["legendgroup"]  # hidden together
    axes = Figure().add_subplot()
    figures.draw_chart(axes, several)
    assert axes.get_legend_handles_labels()[1] == expected
    assert figures.shared_label(Chart("return", figures.STEPS, "mean return", tuple(lines[::2]))) == ""


def test_hovering_names_lines_in_full_and_small_numbers_have_no_letters():
    layout = interactive.to_dict(chart([False]))["layout"]
    assert layout["hoverlabel"]["namelength"] == -1
    assert "exponentformat" not in layout["yaxis"]
    tiny = Series("kl", figures.colour(0), LINE, Estimate(LINE * 1e-4, None, None))
    small = interactive.to_dict(Chart("kl", figures.STEPS, "nats", (tiny,)))["layout"]
    assert small["yaxis"]["exponentformat"] == "power"


def test_a_policy_is_named_once_in_a_table_of_several_groups(tmp_path):
    run = finished(tmp_path / "0", 0, 4.0)
    known = run.summary()
    for result in (*(known[name] for name in ("evaluation", "last", "step_0")), known["baselines"]["random"]):
        result["groups"]["other"] = result["groups"]["team"]
    run.summary_file.write_text(json.dumps(known))
    rows = cells("".join(scores_section.report_section([run])))
    assert [row[:2] for row in rows[1:5]] == [
        *(["trained (best)", "team"], ["", "other"]),
        *(["trained (last)", "team"], ["", "other"]),
    ]
