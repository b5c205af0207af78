"""One page, everything inside it."""

import base64
import io
import json
import re

import numpy as np
import pytest
from PIL import Image

from coterie.algorithms.ppo.ppo import PPO, PPOSettings
from coterie.config import schema
from coterie.core.group import Panel
from coterie.core.types import CoterieError
from coterie.runs.run import Run
from coterie.studies import statistics
from coterie.studies.exploit.deviations import Deviation, ExploitSpec
from coterie.studies.exploit.results import ExploitResult, Responder, Response, Score
from coterie.studies.report import report
from helpers.compare import fabricate
from helpers.run import ODD, train, written


def pictures(page):
    found = re.findall(r'src="data:(image/\w+);base64,([^"]+)"', page.read_text())
    return [(media_type, Image.open(io.BytesIO(base64.b64decode(data)))) for media_type, data in found]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds of one experiment; the first with a video."""
    base = tmp_path_factory.mktemp("runs")
    train(base / "warm", "train.total_steps=32")  # else compiling would count as seconds of the first
    stop = "train.stop={return_mean: 1000}"
    return [train(base / "a", "train.video=true", stop), train(base / "b", "seed=1", stop)]


@pytest.mark.slow
def test_a_report_of_one_run(tmp_path, runs, drawing):
    page = report.write_report(runs[:1], tmp_path / "deep" / "page.html", tmp_path / "figures" / "curves.png")
    text = page.read_text()
    found = [(media_type, image.format) for media_type, image in pictures(page)]
    video = 'src="data:video/mp4;base64,' in text  # where the extra `video` is installed, else a GIF
    assert found == [("image/png", "PNG")] * (len(found) - (not video)) + [("image/gif", "GIF")] * (not video)
    assert len(found) > 5  # a picture of every chart
    summary = runs[0].summary()
    for policy in ("trained (best)", "trained (last)", "step 0", "random", "expert"):
        assert text.count(f"<td>{policy}<td>team") == 1
    assert f"<td>{summary['evaluation']['groups']['team']['return_mean']:.2f}" in text
    assert "grid_size: 4" in text
    assert "://" not in text  # nothing is fetched; a picture in base64 may well spell http
    assert Image.open(tmp_path / "figures" / "curves.png").size[0] > 500


@pytest.mark.slow
def test_what_is_drawn(runs, monkeypatch, drawing):
    """Returns with their moving average and the solved line, losses, entropy."""
    from matplotlib.figure import Figure

    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: drawn.append(self))
    report.draw_curves(runs)
    panels = {axes.get_title("left"): axes for axes in drawn[0].axes}
    assert panels.keys() >= {"return", "success", "policy loss", "value loss", "entropy", "return against time"}
    labels = panels["return"].get_legend_handles_labels()[1]
    assert labels == [
        *("team, greedy", "team, training (100 episodes)", "random", "expert", "solved"),
    ]
    curve = panels["entropy"].lines[0]
    expected = [[r["team/entropy"] for r in run.metrics() if "team/entropy" in r] for run in runs]
    assert curve.get_ydata() == pytest.approx([sum(pair) / 2 for pair in zip(*expected, strict=True)])
    assert len(panels["entropy"].collections) == 1  # the interval of the mean
    timed = panels["return against time"]
    assert (panels["return"].get_xlabel(), timed.get_xlabel()) == ("environment steps", "seconds of training")
    assert (
        {"team, greedy", "random"} <= set(timed.get_legend_handles_labels()[1]) <= set(labels)
    )  # times may not overlap
    assert timed.lines[0].get_xdata()[-1] <= min(run.metrics()[-1]["wall_s"] for run in runs)
    assert all(axes.get_ylabel() for axes in drawn[0].axes)
    assert "95% interval by bootstrap" in drawn[0].get_supxlabel()


@pytest.mark.slow
def test_bands_are_bootstrap_intervals_of_the_mean(tmp_path, runs, monkeypatch, drawing):
    """Of five runs one is another: a resample with more than three of it is rarer than one in forty."""
    from matplotlib.figure import Figure

    drawn, members = [], []
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: drawn.append(self))
    for number, entropy in enumerate((0.0, 0.0, 0.0, 0.0, 1.0)):
        members.append(Run.create(tmp_path / str(number), runs[0].config()))
        records = [{"env_steps": s, "wall_s": s / 8, "team/entropy": entropy} for s in (0, 8, 16)]
        members[-1].metrics_file.write_text("".join(json.dumps(record) + "\n" for record in records))
    report.draw_curves(members)
    (panel,) = drawn[0].axes
    band = panel.collections[0].get_paths()[0].vertices
    expected = statistics.stratified_bootstrap(
        [np.array([0.0, 0, 0, 0, 1])], statistics.mean, statistics.bootstrap_stream()
    )
    assert (band[:, 1].min(), band[:, 1].max()) == (expected.low, expected.high)
    assert expected.high == pytest.approx(0.6)  # not 1, as far as the runs reach
    assert "95% interval" in report.write_report(members, tmp_path / "page.html").read_text()


class Mine(PPO):
    """A user's own learner, with panels of its own."""

    panels = (Panel("entropy", "bits", ("entropy", "mean_surprise")),)


class Plain:
    """A user's own learner that declares no panels."""

    def __init__(self, settings: PPOSettings, policy, group_spec, preference) -> None:
        pass


def drawn_panels(path, monkeypatch, learner, policy="network", **metrics):
    """Titles and lines of the figure for a run of a learner with constant metrics."""
    from matplotlib.figure import Figure

    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: drawn.append(self))
    names = [f"groups.team.learner.name={learner}", f"groups.team.policy.name={policy}"]
    run = Run.create(path, schema.load("gridworld-cooperative", names))
    records = [
        {"env_steps": s, "wall_s": s} | {f"team/{name}": value for name, value in metrics.items()} for s in (8, 16)
    ]
    run.metrics_file.write_text("".join(json.dumps(record) + "\n" for record in records))
    report.draw_curves([run])
    return {
        axes.get_title("left"): {line.get_label(): line.get_ydata().tolist() for line in axes.lines}
        for axes in drawn[0].axes
    }


@pytest.mark.slow
def test_a_learner_says_which_of_its_metrics_are_drawn(tmp_path, monkeypatch, drawing):
    metrics = {"loss": 0.5, "policy_loss": 1.0, "q_mean": 2.0, "epsilon": 0.1, "entropy": 3.0, "mean_surprise": 4.0}
    expected = {
        ("dqn", "q_network"): {"value loss": 0.5, "mean action value": 2.0, "exploration": 0.1},
        ("maddpg", "deterministic"): {"mean action value": 2.0},
        ("ppo", "network"): {"policy loss": 1.0, "entropy": 3.0},
    }
    for (learner, policy), panels in expected.items():
        found = drawn_panels(tmp_path / learner, monkeypatch, learner, policy, **metrics)
        assert found == {title: {"team": [value] * 2} for title, value in panels.items()}
    mine = drawn_panels(tmp_path / "mine", monkeypatch, "test_report:Mine", **metrics)
    assert mine == {"entropy": {"team, entropy": [3.0] * 2, "team, mean surprise": [4.0] * 2}}
    plain = drawn_panels(tmp_path / "plain", monkeypatch, "test_report:Plain", **metrics)
    assert list(plain) == ["policy loss", "value loss", "mean action value", "exploration", "entropy"]


@pytest.mark.slow
def test_a_report_of_several_runs_and_experiments(tmp_path, runs):
    odd = train(tmp_path / "odd", "experiment=odd <one>", experiment=written(tmp_path / "odd.yaml", ODD))
    page = report.write_report([*runs, odd], tmp_path / "page.html")
    text = page.read_text()
    assert text.count("<h2>Scores</h2>") == text.count("<summary class=large>") == 2
    for seed in (0, 1):  # folded below the mean
        assert f"<td>{seed}<td>trained (best)<td>team" in text
    assert text.count("<td>random<td>team") == 1
    assert "odd &lt;one&gt;" in text
    assert "odd <one>" not in text
    with pytest.raises(CoterieError, match="--figure shows runs of one setting"):
        report.write_report([*runs, odd], tmp_path / "two.html", tmp_path / "figure.png")
    assert not (tmp_path / "two.html").exists()


@pytest.mark.slow
def test_only_runs_that_differ_in_seed_are_pooled(tmp_path, sweep, monkeypatch):
    for summary in sweep.rglob("summary.json"):  # curves suffice
        summary.unlink()
    drawn = []
    monkeypatch.setattr(report.curves, "charts", lambda runs: drawn.append([run.path for run in runs]) or [])
    runs = [Run.open(file.parent) for file in sorted(sweep.rglob("config.yaml"))]
    rates = {run.config().groups["team"].learner.settings.learning_rate for run in runs}
    page = report.write_report(runs, tmp_path / "page.html").read_text()
    assert len(rates) == len(drawn) == 2
    assert sorted(path for paths in drawn for path in paths) == sorted(run.path for run in runs)
    for rate in rates:
        assert re.search(rf"<summary class=large>\S+ learner.learning_rate={rate:g}</summary>", page)
    assert page.count("mean of 4 runs") == 2
    assert "8 runs of 2 settings" in page


# Exploitability -----------------------------------------------------------------------------------------


def exploited(run, *gains, **asked):
    """Write into a run what `coterie exploit` would have found: a group's own return is 2 plus its place."""
    responses = []
    for group_spec, (group, preference, gain) in enumerate(gains):
        own, who = Score(2.0 + group_spec, 1.0 + group_spec, 3.0 + group_spec), Deviation(group, (f"{group}_0",), group)
        response = Score(*(x + gain[0] for x in own))
        how = Responder("ppo", preference, 1024, 1, str(run.path / "exploit" / group))
        responses.append(Response(who, "learned", own, response, Score(*gain), {"learned": response.mean}, how))
    found = ExploitResult(run.path, 4096, ExploitSpec(**asked), tuple(responses))
    run.exploit_file.parent.mkdir()
    run.exploit_file.write_text(json.dumps(found.to_dict()))
    return found


@pytest.mark.slow
def test_a_page_tells_what_deviating_gains(tmp_path):
    runs = [fabricate(tmp_path / str(seed), f"seed={seed}", finished=False) for seed in (0, 1, 2)]
    exploited(runs[0], ("a<b", "individual", (0.5, 0.25, 0.75)), ("c", "team", (-0.25, -0.5, -0.125)))
    found = exploited(
        runs[2], ("a<b", "individual", (12.0, 11.0, 13.0)), checkpoint="last", stochastic=True, episodes=9
    )
    numbers = tmp_path / "deep" / "numbers.json"
    text = report.write_report(runs, tmp_path / "page.html", numbers=numbers).read_text()
    (head, *rows) = re.findall(r"<tr>(.*?)</tr>", text.split("<h2>Exploitability</h2>")[1].split("<h2>")[0])
    assert re.split("<th>", head)[1:] == ["seed", "deviator", "own return", "best response", "gain", "by", "responder"]
    assert [re.split("<td>", row)[1:] for row in rows] == [
        [
            *("0", "a&lt;b: a&lt;b_0", "2.000 [1.000, 3.000]", "2.500 [1.500, 3.500]"),
            *("+0.5000 [+0.2500, +0.7500]", "learned", "ppo, 1,024 steps"),
        ],
        [
            *("0", "c: c_0", "3.000 [2.000, 4.000]", "2.750 [1.750, 3.750]"),
            *("-0.2500 [-0.5000, -0.1250]", "learned", "ppo, 1,024 steps"),
        ],
        [
            *("2", "a&lt;b: a&lt;b_0", "2.000 [1.000, 3.000]", "14.0 [13.0, 15.0]"),
            *("+12.0 [+11.0, +13.0]", "learned", "ppo, 1,024 steps"),
        ],
    ]
    assert "Seed 0: checkpoint best (4,096 steps), greedy, 256 episodes. NashConv 0.5000 [0.2138, 0.7862]" in text
    assert "exploitability 0.2500 [0.1069, 0.3931], their mean." in text
    assert (
        "The responder of c was trained with the preference &#x27;team&#x27;. No response was as good as c itself"
        in text
    )
    assert "The responder of a&lt;b" not in text
    assert "Seed 2: checkpoint last (4,096 steps), stochastic, 9 episodes. NashConv 12.0 [11.0, 13.0]" in text
    assert "Seed 1:" not in text
    (stored,) = json.loads(numbers.read_text()).values()
    assert [*stored] == ["exploit"]
    assert stored["exploit"][1] == found.to_dict()


def test_a_page_says_nothing_of_what_nobody_asked(tmp_path):
    run = fabricate(tmp_path / "run", finished=False)
    assert "Exploit" not in report.write_report([run], tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda found: found["responses"][0].pop("gain"), "it has no 'gain'"),
        (lambda found: found.pop("sample"), "it has no 'sample'"),
        (lambda found: found["responses"].clear(), "it has no responses"),
        (lambda found: found["responses"][0]["gain"].update(mean="much"), "could not convert"),
        (lambda found: found["responses"][0]["responder"].pop("steps"), "missing 1 required .* 'steps'"),
    ],
)
def test_damaged_findings_are_named(tmp_path, damage, said):
    run = fabricate(tmp_path / "run", finished=False)
    plain = exploited(run, ("team", "individual", (1.0, 0.0, 2.0))).to_dict()
    damage(plain)
    run.exploit_file.write_text(json.dumps(plain))
    with pytest.raises(CoterieError, match=rf"exploit.json' is damaged: .*{said}"):
        report.write_report([run], tmp_path / "page.html")
    run.exploit_file.write_text('{"run"')
    with pytest.raises(CoterieError, match=r"exploit.json' is damaged: "):
        report.write_report([run], tmp_path / "page.html")


def test_an_unfinished_run_has_curves_but_no_scores(tmp_path, runs):
    run = Run.create(tmp_path / "run", runs[0].config())
    run.metrics_file.write_text("".join(runs[0].metrics_file.read_text().splitlines(keepends=True)[:4]) + '{"iter')
    text = report.write_report([run], tmp_path / "page.html").read_text()
    assert "The run has not finished" in text
    assert "<img" in text


@pytest.mark.slow
def test_curves_of_runs_of_different_lengths(tmp_path, runs, drawing):
    run = Run.create(tmp_path / "run", runs[0].config())
    run.metrics_file.write_text("".join(runs[0].metrics_file.read_text().splitlines(keepends=True)[:3]))
    assert report.draw_curves([runs[1], run])[:4] == b"\x89PNG"


@pytest.mark.slow
def test_pictures_lie_next_to_the_page(tmp_path, drawing):
    run = fabricate(tmp_path / "run", finished=False)
    report.write_report([run], tmp_path / "page.html")
    files = sorted((tmp_path / "page-figures").iterdir())
    assert [file.name for file in files] == ["entropy.png", "return-against-time.png", "return.png"]
    assert all(file.read_bytes()[:4] == b"\x89PNG" for file in files)


@pytest.mark.slow
def test_a_panel_says_that_runs_share_nothing(tmp_path, monkeypatch, drawing):
    from matplotlib.figure import Figure

    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: drawn.append(self))
    runs = [fabricate(tmp_path / str(seed), f"seed={seed}", start=9.0 * seed) for seed in (0, 1)]
    runs[1].metrics_file.write_text("".join(runs[1].metrics_file.read_text().splitlines(keepends=True)[1:]))
    report.draw_curves(runs)  # the second one lacks its step 0, so nothing says when its training began
    words = {axes.get_title("left"): [text.get_text() for text in axes.texts] for axes in drawn[0].axes}
    assert words == {"return": [], "return against time": ["no seconds that all runs share"], "entropy": []}


def test_a_run_without_records_is_refused(tmp_path):
    run = Run.create(tmp_path / "run", schema.load("gridworld-cooperative"))
    with pytest.raises(CoterieError, match=f"'{run.path}' has no records yet"):
        report.write_report([run], tmp_path / "page.html")
