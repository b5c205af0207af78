"""Tuning: real small studies, from the first trial to a YAML file that trains."""

import json
import statistics
from pathlib import Path

import numpy as np
import pytest
import yaml

import coterie
from coterie.config import schema
from coterie.config.schema import ConfigError
from coterie.core.search_space import Real
from coterie.core.types import CoterieError
from coterie.runs.run import Run
from coterie.studies.tune import show
from coterie.studies.tune import tune as tuning
from coterie.studies.tune.trial import Trial
from coterie.studies.tune.tune import Plan, tune
from coterie.training import loop
from helpers.run import GRID, numbers, train, written
from helpers.tune import SKILLS, plans, tiny

SKILL, MOOD = "groups.all.policy.talent.skill", "groups.all.policy.mood"
RATE = "groups.team.learner.learning_rate"


@pytest.fixture
def skills(tmp_path):
    return plans(tmp_path)


# A study ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_trials_are_trainings_with_other_settings(skills):
    tuned = tune(skills(6, pruner="none"))
    assert [t.number for t in tuned.trials] == list(range(6))
    assert tuned.trials[0].values == {MOOD: None, SKILL: 0.5}  # the experiment's own settings come first
    assert len({t.values[SKILL] for t in tuned.trials}) == 6
    assert {t.outcome for t in tuned.trials} == {"complete"}
    for trial in tuned.trials:
        assert trial.score == trial.held_out == pytest.approx(4 * trial.values[SKILL])
        assert list(trial.curve) == [8, 16, 24, 32]
        run = Run.open(tuned.files.trial(trial.number) / "seed0")
        settings = run.config().groups["all"].policy.settings
        assert (settings.talent.skill, settings.mood) == (trial.values[SKILL], trial.values[MOOD])
        assert run.summary()["env_steps"] == 32
        assert bool(run.steps("best")) == (trial == tuned.best)  # the others' checkpoints are dropped
        assert not (run.path / "videos").exists()
    assert tuned.best.score == max(t.score for t in tuned.trials) > tuned.own.score


@pytest.mark.slow
def test_later_trials_are_drawn_near_the_good_ones(skills):
    words = ("train.total_steps=8", "train.evaluate_every=9")
    tuned = tune(skills(22, *words, pruner="none", only=("*.skill",)))
    late = [t.values[SKILL] for t in tuned.trials[12:]]
    assert statistics.mean(late) > 0.75  # even draws have a mean of 0.5
    assert tuned.importance == {SKILL: 1.0}


@pytest.mark.slow
def test_pruning_ends_what_lies_below_the_median(skills):
    tuned = tune(skills(16, only=("*.skill",)))
    before, pruned = [], 0
    for trial in tuned.trials:
        (score,) = set(trial.curve.values())
        behind = len(before) >= 5 and score < statistics.median(before)
        assert trial.outcome == ("pruned" if behind else "complete")
        steps = Run.open(tuned.files.trial(trial.number) / "seed0").metrics()[-1]["env_steps"]
        assert steps == list(trial.curve)[-1] == (8 if behind else 32)  # a quarter is warming up
        pruned += behind
        if not behind:
            before.append(score)
    assert 3 < pruned < 11
    assert tuned.best.outcome == "complete"
    assert tuned.trials.index(tuned.best) == [t.score for t in tuned.trials].index(max(t.score for t in tuned.trials))


@pytest.mark.slow
def test_pruning_by_halving(skills):
    halved = tune(skills(9, pruner="halving"))
    assert {t.outcome for t in halved.trials} == {"complete", "pruned"}
    assert halved.trials[0].outcome == "complete"
    for trial in halved.trials:
        if trial.outcome == "pruned":  # somebody before it was better at the same step
            step = list(trial.curve)[-1]
            assert trial.score < max(t.curve.get(step, 0.0) for t in halved.trials[: trial.number])


@pytest.mark.slow
def test_learning_too_slowly_is_pruned(tmp_path):
    """PPO itself: learning rates without effect fall behind those that learn."""
    words = ["train.total_steps=4096", "train.evaluate_every=2", "train.evaluate_episodes=20"]
    words += ["groups.agent.learner.epochs=10"]
    plan = Plan("cartpole-ppo", tuple(words), 9, str(tmp_path / "s.db"), only=("*.learning_rate",))
    tuned = tune(plan)
    rates: dict[str, list[float]] = {"pruned": [], "complete": []}
    for trial in tuned.trials:
        rates[trial.outcome].append(trial.values["groups.agent.learner.learning_rate"])
    assert statistics.median(rates["pruned"]) < statistics.median(rates["complete"])
    assert tuned.best.values["groups.agent.learner.learning_rate"] > 3e-4
    assert tuned.best.score >= tuned.own.score


@pytest.mark.slow
@pytest.mark.parametrize(
    ("score", "so_far"),
    [("best", [1.0, 4.0, 4.0, 4.0, 5.0, 5.0, 5.0, 5.0]), ("mean", [1.0, 2.5, 7 / 3, 2.5, 4.25, 2.75, 2.25, 2.0])],
)
def test_several_seeds_are_averaged(skills, monkeypatch, score, so_far):
    scores = {0: [1.0, 4.0, 2.0, 3.0], 1: [6.0, 0.0, 0.0, 0.0]}

    def validate(self):
        self.score = 0.0 if self.iteration == 0 else scores[self.config.seed][self.iteration - 1]
        if self.iteration == 0:
            self.best_step = 0
            self.save_best()
        return {}

    monkeypatch.setattr(loop.Training, "validate", validate)
    tuned = tune(skills(1, seeds=2, score=score))
    assert tuned.own.score == so_far[-1]  # the mean of the best validation scores, 4 and 6, or of their means
    np.testing.assert_allclose(list(tuned.own.curve.values()), so_far)
    with pytest.raises(ConfigError, match="score"):
        tune(skills(1, seeds=2, score="mean" if score == "best" else "best"))
    assert {path.name for path in tuned.files.trial(0).iterdir()} == {"seed0", "seed1"}


@pytest.mark.slow
def test_the_untrained_policies_do_not_count(skills, tmp_path):
    """A trial that never beats its step 0 is scored by its best later validation."""
    word = "groups.all.learner.forgets=0.1"
    tuned = tune(skills(1, word))
    assert tuned.own.score == tuned.own.held_out == pytest.approx(4 * 0.4)
    assert Run.open(tuned.files.trial(0) / "seed0").summary()["best_step"] == 8
    alone = coterie.train(tuned.plan.experiment, [word], out=tmp_path / "run", quiet=True)
    assert alone.summary()["best_step"] == 8


@pytest.mark.slow
def test_held_out_seeds_choose_nothing(skills, monkeypatch):
    monkeypatch.setattr(
        tuning, "held_out_score", lambda summary, settings: -summary["evaluation"]["groups"]["all"]["return_mean"]
    )
    tuned = tune(skills(6))
    assert tuned.best.score == max(t.score for t in tuned.trials)
    assert tuned.best.held_out == min(t.held_out for t in tuned.trials if t.held_out is not None)


@pytest.mark.slow
def test_a_failing_trial_is_recorded_and_the_study_goes_on(skills):
    lines = []
    tuned = tune(skills(10, "groups.all.learner.fails_below=0.4"), lambda *state: lines.append(show.progress(*state)))
    failed = [t for t in tuned.trials if t.values[SKILL] < 0.4]
    assert 0 < len(failed) < 10
    assert {(t.outcome, t.score, t.reason) for t in failed} == {("failed", None, "no talent at all")}
    assert [t for t in tuned.trials if t.outcome == "failed"] == failed
    assert sum("failed" in line and "no talent at all" in line for line in lines) == len(failed)
    with pytest.raises(CoterieError, match="all 3 trials failed; the first one: no talent at all"):
        tune(skills(3, "groups.all.learner.fails_below=9.0", study="bad.db"))


# What is searched ---------------------------------------------------------------------------------------


def test_an_overridden_setting_leaves_the_space(tmp_path):
    plan = tiny(tmp_path, "s.db", 1)
    own, space = tuning.searched(schema.load(plan.experiment), Plan(plan.experiment))
    assert own[RATE] == 1e-3
    assert space[RATE] == Real(1e-5, 1e-2, log=True)
    fixed = Plan(plan.experiment, (f"{RATE}=1e-3", "groups.team.learner={gamma: 0.9}"))
    left = tuning.searched(schema.load(plan.experiment, list(fixed.overrides)), fixed)[1]
    assert set(space) - set(left) == {RATE, "groups.team.learner.gamma"}


def test_only_narrows_the_space(skills):
    base = schema.load("tag-ppo")
    paths = set(tuning.searched(base, Plan("tag-ppo", only=("*.learning_rate", "*.hidden")))[1])
    learning = [name for name, group in base.groups.items() if group.learner is not None]
    assert paths == {f"groups.{n}.{p}" for n in learning for p in ("learner.learning_rate", "policy.hidden")}
    with pytest.raises(ConfigError, match=r"--only \*.nothing: no searched setting matches; there are\n  \*\.mood, "):
        tune(skills(1, only=("*.skill", "*.nothing")))


def test_all_that_is_searched_is_named_in_80_columns():
    space = tuning.searched(schema.load("spread-qmix"), Plan("spread-qmix"))[1]
    first, *lines = tuning.only_hint("zzz", space).splitlines()
    assert first == "; there are"
    assert len(lines) > 1
    assert all(len(line) <= 80 for line in lines)
    assert {word.strip() for word in " ".join(lines).split(",")} == {f"*.{path.split('.')[-1]}" for path in space}


def test_what_a_fixed_setting_refuses_is_not_tried():
    plan = Plan("cartpole-dqn", ("groups.agent.learner.replay.learning_starts=20000",))
    own, space = tuning.searched(schema.load(plan.experiment, list(plan.overrides)), plan)
    known = space["groups.agent.learner.replay.size"]
    assert 10_000 not in known.values
    assert {50_000, 100_000, own["groups.agent.learner.replay.size"]} == set(known.values)


def test_settings_without_effect_may_change_within_a_study():
    base = schema.load("cartpole-ppo")
    shared = tuning.shared_settings(base)
    assert {"experiment", "seed", "world.name", "train.total_steps"} <= set(shared)
    other = schema.load("cartpole-ppo", ["world.processes=2", "train.video=false", "train.keep_checkpoints=7"])
    assert tuning.shared_settings(other) == shared
    assert tuning.shared_settings(schema.load("cartpole-ppo", ["train.threads=2"])) != shared


@pytest.mark.parametrize(
    "groups", ["all: {agents: 'player_*', LEARNS}", "a: {agents: player_0, LEARNS}\n  b: {agents: player_1, LEARNS}"]
)
def test_self_play_for_a_constant_sum_is_refused_and_leaves_nothing(tmp_path, groups):
    """Its mean return is 0 with the worst settings and with the best."""
    groups = groups.replace("LEARNS", "policy: {name: network, hidden: [4]}, learner: {name: ppo}")
    game = written(tmp_path / "game.yaml", f"world: {{name: tictactoe}}\ngroups:\n  {groups}\n")
    with pytest.raises(ConfigError, match=r"^groups: (all|a, b) win .*groups\.NAME\.policy\.run=RUN.*coterie match"):
        tune(Plan(str(game), trials=1, study=str(tmp_path / "game.db")))
    assert [*tmp_path.iterdir()] == [game]


def test_learning_against_a_fixed_player_can_be_tuned(tmp_path):
    fixed = "b: {agents: player_1, policy: random, learner: null}"
    text = f"world: {{name: tictactoe}}\ngroups:\n  a: {{agents: player_0, learner: {{name: ppo}}}}\n  {fixed}\n"
    tuning.refuse_constant_sum(schema.load(str(written(tmp_path / "game.yaml", text))))


def test_who_does_not_learn_is_not_searched(tmp_path):
    text = "extends: gridworld-cooperative\ngroups: {team: {learner: null}}"
    with pytest.raises(ConfigError, match="nothing to search"):
        tune(Plan(str(written(tmp_path / "frozen.yaml", text)), study=str(tmp_path / "s.db")))
    assert not (tmp_path / "s.db").exists()


@pytest.mark.slow
def test_a_declaration_that_does_not_fit_is_named(skills):
    word = "groups.all.learner.name=helpers.tune:Mistaken"
    with pytest.raises(ConfigError, match=r"groups\.all\.learner\.skill: a range of numbers cannot hold None"):
        tune(skills(1, word))
    assert SKILL in tune(skills(1, word, "groups.all.learner.skill=0.5")).space


# The best settings --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_best_settings_train(tmp_path, coterie_):
    plan = tiny(tmp_path, "s.db", 3)
    tuned = tune(plan)
    text = tuned.files.best.read_text()
    assert text.startswith(f"# Score {tuned.best.score:.6g} in trial {tuned.best.number} of 3: coterie tune gridworld-")
    layer = yaml.safe_load(text)
    assert layer["extends"] == "gridworld-cooperative"
    assert layer["train"] == {"total_steps": 512, "num_envs": 4, "rollout_steps": 8} | layer["train"]
    assert "world" in layer  # overridden too
    assert "threads" not in layer["train"]  # as it was
    assert coterie_("config", "validate", tuned.files.best)[0] == 0
    run = coterie.train(str(tuned.files.best), out=tmp_path / "run", quiet=True)
    again = Run.open(tuned.files.trial(tuned.best.number) / "seed0")
    assert numbers(run) == numbers(again)  # the very training that was best
    assert run.config().groups == again.config().groups
    assert run.config().world == again.config().world


@pytest.mark.slow
def test_the_best_settings_of_a_file_find_it_from_anywhere(skills, tmp_path, monkeypatch):
    tuned = tune(skills(2, "groups.all.policy.mood=grim", study="deep/er/s.db"))
    layer = yaml.safe_load(tuned.files.best.read_text())
    assert layer["extends"] == "../../skills.yaml"
    assert layer["groups"]["all"]["policy"]["mood"] == "grim"
    monkeypatch.chdir(tmp_path / "deep")
    loaded = schema.load("er/s-best.yaml")
    assert loaded.groups["all"].policy.settings.talent.skill == tuned.best.values.get(SKILL)
    assert loaded.groups["all"].policy.settings.mood == "grim"


def test_the_best_settings_of_one_of_several_ablations(tmp_path):
    name, values = "ablations/cartpole-single", {"groups.agent.learner.gamma": 0.5}
    plan, files = Plan(name), tuning.Files(tmp_path / "s.db")
    assert tuning.with_values(plan, values).experiment == name
    best = Trial(0, "complete", values, 1.0, 1.0, {}, "")
    tuning.write_best(best, tuning.Tuned(plan, name, files, {}, [best]))
    layer = yaml.safe_load(files.best.read_text())
    assert layer == {"extends": name, "groups": {"agent": {"learner": {"gamma": 0.5}}}}
    assert schema.load(str(files.best)).groups["agent"].learner.settings.gamma == 0.5


def test_studies_with_dots_in_their_names_stay_apart():
    one, other, usual = (tuning.Files(Path("deep") / name) for name in ("pole.v1", "pole.v2.db", "pole.db"))
    assert (one.best, one.trial(3)) == (Path("deep/pole.v1-best.yaml"), Path("deep/pole.v1-trials/0003"))
    assert (other.best, other.trials) == (Path("deep/pole.v2-best.yaml"), Path("deep/pole.v2-trials"))
    assert (usual.best, usual.trials) == (Path("deep/pole-best.yaml"), Path("deep/pole-trials"))


def test_another_part_is_written_out_whole():
    old = {"learner": {"name": "a", "x": 1}, "train": {"steps": 1, "stop": None}, "seed": 0}
    new = {"learner": {"name": "b", "x": 1}, "train": {"steps": 1, "stop": {"return_mean": 2}}, "seed": 0}
    found = tuning.differences(old, new)
    assert found == {"learner": {"name": "b", "x": 1}, "train": {"stop": {"return_mean": 2}}}
    assert tuning.differences(old, old) == {}


# What is said -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_says_one_line_per_trial_and_what_is_best(skills, coterie_, tmp_path):
    plan = skills(7)
    words = plan.command().split()[1:]
    code, out, err = coterie_(*words)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "skills: 2 settings to search, 0 of 7 trials done"
    assert lines[1] == "trial  outcome      score  settings"
    assert lines[2] == "    0  complete      2.00  mood=null skill=0.5"
    assert [int(line.split()[0]) for line in lines[2:9]] == list(range(7))
    assert all(len(line) <= 80 for line in lines[1:9])
    assert "7 trials: " in out
    assert "own settings  trial    0  score      2.00  held-out seeds      2.00" in out
    assert lines[-1] == f"train them     coterie train {tmp_path / 's-best.yaml'}"
    code, out, _ = coterie_(*words, "--json")
    plain = json.loads(out)
    assert code == 0
    assert len(plain["trials"]) == 7
    assert plain["best"]["score"] == max(t["score"] for t in plain["trials"] if t["outcome"] == "complete")
    assert plain["own"]["values"] == {SKILL: 0.5, MOOD: None}
    assert plain["best_file"] == str(tmp_path / "s-best.yaml")
    assert plain["finished"]


@pytest.mark.slow
def test_the_study_goes_beside_the_runs(coterie_, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "skills.yaml", SKILLS)
    assert coterie_("tune", "skills.yaml", "--trials", "1")[0] == 0
    there = {p.name for p in (tmp_path / "runs" / "tune").iterdir()}
    assert there == {"skills.db", "skills-trials", "skills-best.yaml"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "no experiment or file 'nowhere'"),
        (["cartpole-ppo", "groups.agent.learner.gama=1"], "no such setting; did you mean 'gamma'?"),
        (["cartpole-ppo", "--pruner", "secateurs"], "--pruner: expected 'median', 'halving' or 'none'"),
        (["cartpole-ppo", "--score", "worst"], "--score: expected 'best' or 'mean', got 'worst'"),
        (
            ["cartpole-ppo", "--score", "mean", "--sampler", "pbt"],
            "--score: expected 'best' with --sampler pbt, got 'mean'",
        ),
        (["cartpole-ppo", "--only", "learning_rate"], "matches; did you mean '*.learning_rate'?"),
    ],
)
def test_a_refusal_is_one_line_and_leaves_nothing(coterie_, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    code, out, err = coterie_("tune", *words)
    assert (code, out) == (2, "")
    assert err.startswith("coterie: ")
    assert said in err
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_without_optuna_the_cure_is_named(coterie_, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, _, err = coterie_("tune", "cartpole-ppo")
    assert code == 1
    assert err.startswith("coterie: 'coterie tune' needs Optuna: pip install 'coterie[tune]'")


def test_short_names_stay_apart():
    paths = ["groups.a.learner.gamma", "groups.b.learner.gamma", "groups.a.policy.hidden", "groups.a.policy.gamma"]
    assert list(show.short_names(paths).values()) == [
        *("groups.a.learner.gamma", "b.gamma", "hidden", "groups.a.policy.gamma"),
    ]


def test_a_long_line_is_cut_at_80_columns():
    space = {f"groups.a.learner.setting_{i}": Real(0.0, 1.0) for i in range(9)}
    text = show.trial_line(Trial(3, "complete", dict.fromkeys(space, 1 / 3), 12.0, None, {}, ""), space)
    assert len(text) == 80
    assert text.split()[:4] == ["3", "complete", "12.00", "setting_0=0.333"]
    assert text.endswith("…")


# The loop under watch -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_watched_training_may_end_early_and_can_be_resumed(tmp_path):
    settings = schema.load("gridworld-cooperative", GRID)
    seen = []

    def watch(env_steps, score):
        seen.append((env_steps, score))
        return loop.AfterValidation.FINISH if len(seen) == 2 else loop.AfterValidation.CONTINUE

    run = Run.create(tmp_path / "run", settings)
    end = loop.train(settings, run, quiet=True, watch=watch)
    assert (end["finished"], end["interrupted"], end["env_steps"]) == (True, False, 128)
    assert seen == [(r["env_steps"], r["team/eval/return_mean"]) for r in run.metrics()[2::2]]
    assert run.summary()["env_steps"] == 128
    coterie.resume(run.path, quiet=True)
    assert numbers(run) == numbers(train(tmp_path / "whole"))


def test_the_last_validation_is_seen_too(tmp_path):
    settings = schema.load("gridworld-cooperative", GRID)
    seen = []

    def watch(env_steps, score):
        seen.append((env_steps, score))
        return loop.AfterValidation.CONTINUE

    loop.train(settings, Run.create(tmp_path / "run", settings), quiet=True, watch=watch)
    assert [steps for steps, _ in seen] == [64, 128, 192, 256]


def test_an_answer_that_is_none_of_the_three_words_is_refused(tmp_path):
    settings = schema.load("gridworld-cooperative", GRID)
    with pytest.raises(ValueError, match="True is not a valid AfterValidation"):
        loop.train(settings, Run.create(tmp_path / "run", settings), quiet=True, watch=lambda steps, score: True)
