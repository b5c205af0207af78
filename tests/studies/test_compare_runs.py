"""Grouping runs into variants: which runs belong together, their names, and refusals."""

import dataclasses
import json

import pytest

from coterie.config import schema
from coterie.core.types import CoterieError
from coterie.studies.compare import runs, show
from helpers.compare import FAST, SLOW, compared, fabricate, labels
from helpers.run import ODD, train, written


def test_runs_that_differ_in_their_seed_are_one_variant(sweep):
    found = compared(sweep)
    assert labels(found) == [f"gridworld-cooperative learner.learning_rate={rate}" for rate in ("0.01", "0.001")]
    assert [one.seeds for one in found.standings] == [4, 4]
    assert [[run.seed for run in one.variant.runs["gridworld"]] for one in found.standings] == [[0, 1, 2, 3]] * 2


def test_a_run_whose_settings_changed_on_the_way_is_a_variant_of_its_own(tmp_path, coterie_):
    """Neither those of its last settings nor those of its first are like it."""
    made = [fabricate(tmp_path / str(seed), f"seed={seed}", SLOW) for seed in range(3)]
    fabricate(tmp_path / "fast", "seed=3", FAST)
    made[1].write_config(made[1].config([FAST]), 100)
    made[2].write_config(made[2].config(["train.workers=2"]), 100)
    words = "from step 100: learner.learning_rate 0.001 → 0.01"
    found = compared(tmp_path)
    assert labels(found) == [
        "gridworld-cooperative learner.learning_rate=0.001",
        f"gridworld-cooperative learner.learning_rate=0.01 ({words})",
        "gridworld-cooperative learner.learning_rate=0.01",
    ]
    assert [one.seeds for one in found.standings] == [2, 1, 1]
    told = [note for note in show.notes(found, "best", []) if "changed on the way" in note]
    assert told == [f"changed on the way: {made[1].path} {words}"]
    assert {row["run"]: row["changed"] for row in show.as_rows(found)}[str(made[1].path)] == words
    together = compared(tmp_path, by=["groups.team.policy.name"])  # what distinguishes variants can be named
    assert [one.seeds for one in together.standings] == [4]


def test_settings_without_effect_tell_nobody_apart(tmp_path):
    fabricate(tmp_path / "a", "seed=0", "train.workers=2", "train.video=false", "experiment=mine")
    fabricate(tmp_path / "b", "seed=1", "train.keep_checkpoints=7")
    assert labels(compared(tmp_path)) == ["mine+gridworld-cooperative"]


def test_processes_make_no_other_world(tmp_path):
    for seed in (0, 1):
        words = (f"seed={seed}", f"world.processes={seed}", f"train.tensorboard={str(bool(seed)).lower()}")
        fabricate(tmp_path / str(seed), *words, experiment="cartpole-ppo")
    found = compared(tmp_path)
    assert labels(found) == ["cartpole-ppo"]
    assert list(found.scales) == ["gymnasium/CartPole-v1"]


def test_labels_name_what_differs(tmp_path):
    fabricate(tmp_path / "a", "groups.team.policy.hidden=[8,8]", "train.num_envs=8")
    fabricate(
        tmp_path / "b", "groups.team.policy.hidden=[8,8]", "groups.team.parameters=individual", "train.num_envs=8"
    )
    assert labels(compared(tmp_path)) == [
        *("gridworld-cooperative parameters=shared", "gridworld-cooperative parameters=individual"),
    ]
    fabricate(tmp_path / "c", "experiment=other", "groups.team.policy.hidden=[8]", "train.num_envs=4")
    assert labels(compared(tmp_path))[2] == "other"  # its name says enough


def test_a_part_of_another_name_stands_for_its_settings():
    ppo = {"groups.team.learner.name": "ppo", "groups.team.learner.clip": 0.2, "train.num_envs": 4}
    other = {"groups.team.learner.name": "other", "groups.team.learner.size": 9, "train.num_envs": 4}
    assert runs.make_labels(["x", "x"], [ppo, other]) == ["x learner.name=ppo", "x learner.name=other"]
    two = {"groups.prey.policy.name": "random"}
    assert runs.make_labels(["x", "x"], [ppo | two, other | two])[0] == "x team.learner.name=ppo"


def test_settings_of_a_part_are_named_where_parts_of_one_name_differ_in_them():
    slow, fast, other = (
        {"groups.team.learner.name": name, "groups.team.learner.rate": rate, "groups.team.learner.size": size}
        for name, rate, size in (("dqn", 1, 8), ("dqn", 2, 8), ("ppo", 3, 9))
    )
    assert runs.make_labels(["e"] * 3, [slow, fast, other]) == [
        *("e learner.name=dqn learner.rate=1", "e learner.name=dqn learner.rate=2"),
        "e learner.name=ppo learner.rate=3",
    ]


def test_names_of_parts_within_parts_stand_for_their_settings_together():
    cases = (("a", "x", 1), ("a", "y", 2), ("b", "x", 3))
    settings = [{"part.name": a, "part.inner.name": b, "part.inner.size": size} for a, b, size in cases]
    assert runs.make_labels(["e"] * 3, settings) == [
        *("e part.name=a part.inner.name=x", "e part.name=a part.inner.name=y", "e part.name=b part.inner.name=x"),
    ]
    another = settings[0] | {"part.inner.size": 4}
    assert runs.make_labels(["e"] * 4, [*settings, another])[3] == "e part.name=a part.inner.name=x part.inner.size=4"


def test_different_ones_never_have_the_same_label(tmp_path):
    word, number = {"size": "1"}, {"size": 1}
    assert runs.make_labels(["e"] * 3, [word, number, word]) == ["e size=1", "e size=1 #2", "e size=1"]
    assert len(set(runs.make_labels(["e", "e", "e size=2"], [number, {"size": 2}, {}]))) == 3
    (result,), _ = runs.read([str(fabricate(tmp_path / "a").path)])
    both = [dataclasses.replace(result, settings=result.settings | one) for one in (word, number)]
    assert [one.label for one in runs.gather(both, by=["size"])] == ["size=1", "size=1 #2"]


def test_the_order_of_groups_tells_nobody_apart(tmp_path):
    groups = ["cross: {agents: player_0, learner: {name: ppo}}", "ring: {agents: player_1, policy: {name: random}}"]
    for seed, order in enumerate((groups, groups[::-1])):
        text = f"world: {{name: tictactoe}}\ngroups: {{{', '.join(order)}}}\n"
        fabricate(tmp_path / str(seed), f"seed={seed}", experiment=written(tmp_path / "duel.yaml", text))
    assert labels(compared(tmp_path)) == ["duel"]
    fabricate(tmp_path / "twin", "seed=0", experiment=tmp_path / "duel.yaml")
    with pytest.raises(CoterieError, match="have the same settings and seed"):
        compared(tmp_path)


def test_variants_by_settings_and_by_argument(tmp_path):
    fabricate(tmp_path / "a" / "0", FAST, "train.num_envs=8", score=1.0)
    fabricate(tmp_path / "b" / "0", FAST, "train.num_envs=16", score=2.0)
    fabricate(tmp_path / "b" / "1", SLOW, "train.num_envs=16", score=4.0)
    rate = compared(tmp_path, by=["groups.team.learner.learning_rate"])
    assert labels(rate) == ["learner.learning_rate=0.01", "learner.learning_rate=0.001"]
    assert [one.aggregates["mean"].value for one in rate.standings] == [1.5, 4.0]
    argument = compared(tmp_path / "a", tmp_path / "b", by=["argument"])
    assert labels(argument) == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert [one.aggregates["mean"].value for one in argument.standings] == [1.0, 3.0]
    with pytest.raises(schema.ConfigError, match=r"--by train\.num_env: none of these.*did you mean 'train\.num_envs'"):
        compared(tmp_path, by=["train.num_env"])


def test_a_setting_of_the_world_can_tell_variants_apart(tmp_path):
    fabricate(tmp_path / "a", score=1.0)
    fabricate(tmp_path / "b", "world.observation=dict", score=2.0)
    found = compared(tmp_path, by=["world.observation"])
    assert labels(found) == ["observation=flat", "observation=dict"]
    assert not found.normalised


def test_runs_are_found_at_any_depth_and_counted_once(sweep):
    found = compared(sweep, sweep / "fast", sweep / "fast" / "0")
    assert [one.seeds for one in found.standings] == [4, 4]


def test_a_report_that_is_called_after_a_run_leaves_the_run_in(sweep, monkeypatch):
    first = sorted(sweep.iterdir())[0]
    (sweep / f"{first.name}-figures").mkdir()
    (sweep / f"{first.name}.html").write_text("")
    words = [str(path) for path in sorted(sweep.iterdir())]
    assert len(runs.find_runs(words)) == len(runs.find_runs([str(sweep)])) == 8
    monkeypatch.chdir(sweep)
    assert len(runs.find_runs(["."])) == 8


def test_what_an_earlier_report_wrote_beside_the_runs_is_left_out(sweep):
    (sweep / "report-figures").mkdir()
    (sweep / "report.html").write_text("")
    words = [str(path) for path in sorted(sweep.iterdir())]
    assert [run.path for _, run in runs.find_runs(words)] == [run.path for _, run in runs.find_runs([str(sweep)])]
    with pytest.raises(CoterieError, match="hold no run"):
        runs.find_runs([str(sweep / "report-figures"), str(sweep / "report.html")])
    (sweep / "other.html").write_text("")  # no report's: it has no pictures
    with pytest.raises(CoterieError, match=r"other\.html' is not a directory"):
        runs.find_runs([*words, str(sweep / "other.html")])


# Refusals -----------------------------------------------------------------------------------------------


def test_what_is_no_run_is_refused(coterie_, tmp_path):
    (tmp_path / "empty").mkdir()
    assert coterie_("compare", tmp_path / "empty")[::2] == (
        *(1, f"coterie: '{tmp_path / 'empty'}' holds no run: it has no config.yaml in it or below\n"),
    )
    code, _, err = coterie_("compare", tmp_path / "absent")
    assert (code, "is not a directory" in err) == (1, True)
    (tmp_path / "file").write_text("")
    assert "is not a directory" in coterie_("compare", tmp_path / "file")[2]
    assert coterie_("compare")[0] == 2


@pytest.mark.slow
def test_an_unfinished_run_is_refused_or_left_out_by_name(coterie_, sweep):
    left = fabricate(sweep / "fast" / "4", "seed=4", FAST, finished=False)
    code, out, err = coterie_("compare", sweep)
    assert (code, out) == (1, "")
    assert err == f"coterie: '{left.path}' has not finished; 'coterie resume {left.path}', or --skip-unfinished\n"
    code, out, _ = coterie_("compare", sweep, "--skip-unfinished")
    assert code == 0
    assert f"skipped,unfinished:{left.path}" in "".join(out.split())  # long lines are wrapped
    assert json.loads(coterie_("compare", sweep, "--skip-unfinished", "--json")[1])["skipped"] == [str(left.path)]
    assert coterie_("compare", left.path, "--skip-unfinished")[2] == "coterie: none of these runs has finished\n"


@pytest.mark.slow
def test_runs_of_different_worlds_are_refused(coterie_, tmp_path, sweep):
    odd = train(tmp_path / "odd", experiment=written(tmp_path / "odd.yaml", ODD))
    code, _, err = coterie_("compare", sweep, odd.path)
    assert code == 1
    assert "plays world 'helpers.run:Odd'" in err
    assert "only variants in the same worlds can be compared" in err


def test_the_same_run_under_two_names_is_refused(coterie_, tmp_path):
    fabricate(tmp_path / "a", "seed=3")
    fabricate(tmp_path / "b", "seed=3")
    code, _, err = coterie_("compare", tmp_path)
    assert code == 1
    assert f"'{tmp_path / 'a'}' and '{tmp_path / 'b'}' have the same settings and seed" in err
    assert coterie_("compare", tmp_path / "a", tmp_path / "b", "--by", "argument")[0] == 0


def test_evaluations_that_cannot_be_read_are_left_out_of_curves(tmp_path, caplog):
    made = [fabricate(tmp_path / str(seed), f"seed={seed}", curve=(0.0, 4.0, 5.0, 8.0)) for seed in range(3)]
    cut, unknown, untimed = (run.metrics_file.read_text().splitlines() for run in made)
    cut[1] = cut[1][:20]
    unknown[2] = unknown[2].replace("5.0", "NaN")
    untimed[3] = untimed[3].replace("wall_s", "clock")
    for run, lines in zip(made, (cut, unknown, untimed), strict=True):
        run.metrics_file.write_text("\n".join(lines) + "\n")
    read = [runs.read_run("", run, "best", None).curve for run in made]
    assert [one.steps.tolist() for one in read] == [[0, 200, 300], [0, 100, 300], [0, 100, 200, 300]]
    assert compared(*(run.path for run in made)).standings[0].seeds == 3
    assert len(caplog.records) == 3
    numbers = show.to_dict(compared(*(run.path for run in made)))["variants"][0]["curves"]
    assert numbers["steps"]["at"][-1] == 300
    assert numbers["wall"]["at"][-1] == 2


def test_damaged_runs_are_named(coterie_, tmp_path):
    run = fabricate(tmp_path / "a")
    run.metrics_file.write_text("")
    assert coterie_("compare", run.path)[2] == f"coterie: '{run.path}' has no evaluations in its metrics.jsonl\n"
    run.config_file.write_text("world: 3\n")
    assert coterie_("compare", run.path)[2].startswith(f"coterie: '{run.path}': ")
    run.summary_file.write_text("{")
    assert "is damaged" in coterie_("compare", run.path)[2]


@pytest.mark.parametrize(
    ("damage", "missing"),
    [
        (lambda whole: {}, "baselines.random.groups.team.return_mean"),
        (lambda whole: whole | {"baselines": {}}, "baselines.random.groups.team.return_mean"),
        (lambda whole: whole | {"step_0": {"groups": {"other": {}}}}, "step_0.groups.team.return_mean"),
        (lambda whole: whole | {"evaluation": None}, "evaluation.groups.team.return_mean"),
        (lambda whole: whole | {"last": {"groups": {"team": {"return_mean": "1"}}}}, "last.groups.team.return_mean"),
        (lambda whole: whole | {"env_steps": None}, "env_steps"),
        (lambda whole: whole | {"wall_s": None}, "wall_s"),
    ],
)
def test_a_summary_without_what_it_should_hold_is_named(coterie_, tmp_path, damage, missing):
    run = fabricate(tmp_path / "a")
    run.summary_file.write_text(json.dumps(damage(run.summary())))
    code, out, err = coterie_("compare", run.path)
    assert (code, out) == (1, "")
    assert err == f"coterie: '{run.summary_file}' is damaged: it has no number '{missing}'\n"


def test_seconds_of_a_curve_begin_when_step_0_was_evaluated(tmp_path):
    assert runs.read_curve(fabricate(tmp_path / "slow", start=5.0), ["team"]).wall.tolist() == [0, 1, 2]
    later = fabricate(tmp_path / "later", start=5.0, first=100)  # step 0 was not evaluated
    assert runs.read_curve(later, ["team"]).wall.tolist() == [5, 6, 7]
