"""A study on disk: continued wherever it was cut off, refused where it is somebody else's."""

import fcntl
import signal
import sqlite3
import time

import optuna
import pytest
import yaml

from coterie.config.schema import ConfigError
from coterie.core.search_space import Real
from coterie.core.types import CoterieError
from coterie.runs.run import Run
from coterie.studies.tune import show
from coterie.studies.tune import tune as tuning
from coterie.studies.tune.optuna import open_study
from coterie.studies.tune.trial import StudySpec
from coterie.studies.tune.tune import Plan, tune
from coterie.training import loop
from helpers.processes import Command
from helpers.run import numbers, written
from helpers.tune import SKILLS, TalentSettings, essence, plans, tiny


@pytest.fixture
def skills(tmp_path):
    return plans(tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The result of an uninterrupted study of twelve trials; shorter ones are its beginning."""
    path = tmp_path_factory.mktemp("whole")
    return essence(tune(plans(path)(12)))


def cut(*a, **k):
    """In place of something: the process ends here."""
    raise KeyboardInterrupt


# Continuing ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_study_continued_in_parts_is_the_whole_study(skills, whole):
    for trials in (1, 4, 12):
        assert essence(tune(skills(trials))) == whole[:trials]


@pytest.mark.slow
def test_a_finished_study_says_so(skills):
    first = tune(skills(3))
    lines = []
    again = tune(skills(3), lambda *state: lines.append(show.progress(*state)))
    assert essence(again) == essence(first)
    assert lines == [f"{first.files.study} has its 3 trials; more: --trials N"]


@pytest.mark.slow
def test_kill_9_and_the_same_command(tmp_path):
    plan = tiny(tmp_path, "killed.db", 11)  # beyond the random ones
    process = Command(*plan.command().split()[1:])
    records = tmp_path / "killed-trials" / "0002" / "seed0" / "metrics.jsonl"
    deadline = time.monotonic() + 180  # compiled code may have to be made first
    while not (records.exists() and records.read_text().count("\n") >= 8):
        assert process.poll() is None, process.err
        assert time.monotonic() < deadline, "the third trial did not come"
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    states = [t.state.name for t in optuna.load_study(study_name=None, storage=f"sqlite:///{plan.study}").trials]
    assert states == ["COMPLETE", "COMPLETE", "RUNNING"]
    continued = tune(plan)
    whole = tune(tiny(tmp_path, "whole.db", 11))
    assert essence(continued) == essence(whole)
    assert len(continued.trials) == 11
    for number in range(11):
        left, right = (Run.open(t.files.trial(number) / "seed0") for t in (continued, whole))
        assert numbers(left) == numbers(right)
    bests = [yaml.safe_load(t.files.best.read_text()) for t in (continued, whole)]
    assert bests[0] == bests[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent_type", "moment"),
    [
        *((optuna.Study, moment) for moment in ("enqueue_trial", "ask", "tell")),
        *((optuna.Trial, moment) for moment in ("suggest_float", "report", "should_prune")),
    ],
)
def test_wherever_a_study_is_cut_off_it_goes_on_alike(skills, whole, monkeypatch, agent_type, moment):
    """Between any two commits to its database, in the first trial and in a later one."""
    for trials in (1, 2):
        with monkeypatch.context() as patch:
            patch.setattr(agent_type, moment, cut)
            if trials == 1 or moment != "enqueue_trial":  # only the first one is given
                with pytest.raises(KeyboardInterrupt):
                    tune(skills(trials))
        assert essence(tune(skills(trials))) == whole[:trials]


@pytest.mark.slow
@pytest.mark.parametrize("pruner", ["median", "halving"])
def test_a_trial_cut_off_after_it_was_pruned_ends_at_the_same_step(skills, monkeypatch, pruner):
    """Between the decision and its end lie the last checkpoint and evaluations: there is time for a kill."""

    def study(trials, name):
        return tune(skills(trials, "train.total_steps=64", study=name, pruner=pruner))

    whole = study(6, "whole.db")
    pruned = next(t.number for t in whole.trials if t.outcome == "pruned")
    study(pruned, "cut.db")
    with monkeypatch.context() as patch:
        patch.setattr(optuna.Study, "tell", cut)
        with pytest.raises(KeyboardInterrupt):
            study(pruned + 1, "cut.db")
    continued = study(pruned + 1, "cut.db")
    assert essence(continued) == essence(whole)[: pruned + 1]
    left, right = (Run.open(t.files.trial(pruned) / "seed0") for t in (continued, whole))
    assert numbers(left) == numbers(right)


@pytest.mark.slow
def test_nine_trials_after_the_own_settings_are_drawn_evenly(tmp_path):
    spec = StudySpec({"experiment": "x", "seed": 0}, {"x": Real(0.0, 1.0)}, {"x": 0.5}, 1, "none", 8)
    drawn = {}
    for sign in (-1, 1):  # what is good in one study is bad in the other
        with open_study(tmp_path / f"{sign}.db", spec, tmp_path / f"{sign}-trials", "") as study:
            for _ in range(11):
                trial = study.begin()
                drawn[sign, trial.number] = trial.values["x"]
                study.complete(sign * trial.values["x"], 0.0)
    assert [drawn[-1, i] == drawn[1, i] for i in range(11)] == [True] * 10 + [False]


@pytest.mark.slow
def test_ctrl_c_stops_and_names_the_command(skills, whole, monkeypatch):
    real = loop.loop

    def interrupted(*a):
        if interrupted.runs == 2:
            signal.raise_signal(signal.SIGINT)
        interrupted.runs += 1
        return real(*a)

    interrupted.runs = 0
    with monkeypatch.context() as patch:
        patch.setattr(loop, "loop", interrupted)
        stopped = tune(skills(5))
    assert stopped.interrupted
    assert len(stopped.trials) == 2
    assert show.conclusion(stopped)[-1] == f"stopped; continue with: {skills(5).command()}"
    assert essence(tune(skills(5))) == whole[:5]


@pytest.mark.slow
def test_one_process_at_a_time(skills, tmp_path):
    tune(skills(1))
    with open(tmp_path / "s-trials" / ".lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(CoterieError, match="being tuned by another process"):
            tune(skills(2))
    assert len(tune(skills(2)).trials) == 2


# Refusals -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_study_of_something_else_is_refused(skills, tmp_path, monkeypatch):
    tune(skills(1))
    other = Plan("cartpole-ppo", (), 1, str(tmp_path / "s.db"))
    with pytest.raises(ConfigError, match="is a study of 'skills', not of 'cartpole-ppo'; choose another with --study"):
        tune(other)
    for plan, said in (
        (skills(1, "train.total_steps=64"), r"has train\.total_steps = 32, this command 64; continue with: "),
        (skills(1, "seed=5"), "has seed = 0, this command 5"),
        (
            skills(1, only=("*.skill",)),
            r"s\.db' searches groups\.all\.policy\.mood, this command does not; continue with",
        ),
        (skills(1, seeds=2), "has seeds = 1, this command 2"),
        (skills(1, pruner="none"), 'has pruner = "median", this command "none"'),
    ):
        with pytest.raises(ConfigError, match=said):
            tune(plan)
    assert len(tune(skills(2, "train.workers=0", "train.keep_checkpoints=5")).trials) == 2  # changes no score
    tune(skills(1, only=("*.skill",), study="narrow.db"))
    with pytest.raises(ConfigError, match=r"does not search groups\.all\.policy\.mood, this command does; continue"):
        tune(skills(1, study="narrow.db"))
    with monkeypatch.context() as patch:
        patch.setattr(TalentSettings, "SEARCH", {"skill": Real(0.0, 2.0)})
        with pytest.raises(ConfigError, match=r"searches groups\..*\.skill in .*1\.0.*, this command in .*2\.0"):
            tune(skills(1))


@pytest.mark.slow
def test_a_studys_file_may_have_any_name(skills, tmp_path):
    for name in ("a?b%20 {c}.db", "study#1"):
        assert len(tune(skills(1, study=name)).trials) == 1
        assert len(tune(skills(2, study=name)).trials) == 2
    stems = ("a?b%20 {c}", "study#1")
    files = {"a?b%20 {c}.db", "study#1", *(f"{s}-{e}" for s in stems for e in ("best.yaml", "trials"))}
    assert {path.name for path in tmp_path.iterdir()} == files | {"skills.yaml"}


@pytest.mark.slow
def test_a_file_that_is_no_study_is_refused_and_left_alone(skills, tmp_path):
    written(tmp_path / "text.db", "by no means a database, but longer than a header would be" * 20)
    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")
    connection.close()
    optuna.create_study(storage=f"sqlite:///{tmp_path / 'foreign.db'}", study_name="theirs")
    (tmp_path / "folder.db").mkdir()
    for name, said in (
        ("text.db", r"is not a study \(file is not a database\); choose another file with --study"),
        ("other.db", r"is another database \(it holds songs\)"),
        ("foreign.db", r"holds studies that Coterie did not create \(theirs\)"),
        ("folder.db", "is a directory"),
    ):
        before = (tmp_path / name).read_bytes() if name != "folder.db" else None
        with pytest.raises(ConfigError, match=said):
            tune(skills(1, study=name))
        assert before is None or (tmp_path / name).read_bytes() == before
    written(tmp_path / "empty.db", "")
    assert len(tune(skills(1, study="empty.db")).trials) == 1


def test_the_experiment_is_not_written_over(tmp_path):
    experiment = written(tmp_path / "s-best.yaml", SKILLS)
    with pytest.raises(ConfigError, match="would overwrite"):
        tune(Plan(str(experiment), (), 1, str(tmp_path / "s.db")))
    assert experiment.read_text() == SKILLS


# Several trials at a time ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("pruner", ["median", "halving"])
def test_jobs_do_not_change_a_study(skills, pruner, forked):
    one = tune(skills(12, study="one.db", pruner=pruner, batch=3))
    part = tune(skills(5, study="parts.db", pruner=pruner, batch=3))  # within a batch
    assert essence(part) == essence(one)[:5]
    two = tune(skills(12, study="parts.db", pruner=pruner, batch=3, jobs=3 if pruner == "median" else 1))
    assert essence(two) == essence(one)
    assert any(trial.outcome == "pruned" for trial in one.trials)
    assert {trial.number for trial in one.trials} == set(range(12))


@pytest.mark.slow
def test_trials_of_a_batch_know_only_earlier_batches(skills):
    single, double = (tune(skills(13, study=f"{size}.db", batch=size)) for size in (1, 13))
    assert [t.values for t in single.trials[:10]] == [t.values for t in double.trials[:10]]  # drawn evenly
    assert single.trials[12].values != double.trials[12].values  # drawn near good ones, and evenly


@pytest.mark.slow
def test_a_batch_cut_off_goes_on_alike(skills, monkeypatch):
    whole = tune(skills(8, study="whole.db", batch=4))
    real, begun = tuning.run_alone, []

    def broken(spec, earlier, trial, plan, files):
        begun.append(trial.number)
        if len(begun) == 3:
            raise InterruptedError
        return real(spec, earlier, trial, plan, files)

    monkeypatch.setattr(tuning, "run_alone", broken)
    with pytest.raises(InterruptedError):
        tune(skills(8, study="cut.db", batch=4))
    assert essence(tune(skills(8, study="cut.db", batch=4))) == essence(whole)
    assert begun == [0, 1, 2, 2, 3, 4, 5, 6, 7]


@pytest.mark.slow
def test_wrong_jobs_of_a_study_are_one_sentence(skills):
    with pytest.raises(CoterieError, match="--jobs: expected at least 1 process, got 0"):
        tune(skills(3, jobs=0))
    with pytest.raises(ConfigError, match=r"--jobs: 4 processes for 2 trials.*--batch 4"):
        tune(skills(3, jobs=4, batch=2))
    tune(skills(2))
    with pytest.raises(ConfigError, match=r"has batch = 1, this command 2; continue with: coterie tune"):
        tune(skills(3, batch=2))
