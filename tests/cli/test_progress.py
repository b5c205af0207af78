"""Progress of match, tune and exploit: a bar on a terminal, a line now and then elsewhere; the table after a sweep."""

import json
import logging
import re

import pytest

from coterie.cli import outcome, progress
from coterie.cli.entry import Warnings, say
from coterie.core.search_space import Real
from coterie.studies.exploit import exploit
from coterie.studies.tune import population, tune
from coterie.studies.tune.population import Member, Population, PopulationResult
from coterie.studies.tune.trial import Trial
from coterie.studies.tune.tune import Files, Tuned
from helpers.compare import fabricate
from helpers.run import DUEL, train, written

LEARNER = "groups.agent.learner."


@pytest.fixture
def bars(monkeypatch):
    """Every number of things done that a bar has shown, as (done, of how many)."""
    shown = []

    class Noted(progress.Tasks):
        def advance(self):
            super().advance()
            shown.append((self.done, self.total))

    monkeypatch.setattr(progress, "Tasks", Noted)
    return shown


def test_a_terminal_gets_a_bar_and_a_file_lines(monkeypatch, capsys):
    monkeypatch.setattr(progress, "EVERY", 0)
    for name, value in (("COLUMNS", "80"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    with progress.Tasks(2, "pairings") as tasks:
        tasks.advance()
    assert capsys.readouterr().err == "1 of 2 pairings, 0 s\n"
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress.Tasks(2, "pairings") as tasks:
        assert tasks.bar is not None
        with tasks.doing("a with b"):
            tasks.bar.refresh()
            shown = capsys.readouterr().err
            assert "a with b" in shown  # the pairing that is played, not one that has ended
            assert "0/2" in shown
        tasks.bar.refresh()
        assert "1/2" in capsys.readouterr().err
    capsys.readouterr()
    with progress.Tasks(2, "pairings", quiet=True) as tasks:
        assert tasks.bar is None
        tasks.advance()
    assert capsys.readouterr().err == ""


def test_warnings_appear_above_a_bar_and_break_between_words(monkeypatch, capsys):
    for name, value in (("COLUMNS", "80"), ("TERM", "xterm"), ("FORCE_COLOR", "1")):
        monkeypatch.setenv(name, value)
    words = "one " * 30
    record = logging.LogRecord("coterie", logging.WARNING, "", 0, words, (), None)
    with progress.Tasks(2, "pairings") as tasks:
        tasks.bar.refresh()
        capsys.readouterr()
        Warnings().emit(record)
        shown = capsys.readouterr().err
    assert shown.index("\x1b[2K") < shown.index("one ") < shown.index("pairings")  # the bar is erased and drawn again
    assert all(len(line) <= 80 for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).splitlines())
    assert shown.count("one ") + shown.count("one\n") == 30
    capsys.readouterr()
    Warnings().emit(record)
    assert capsys.readouterr().err == words + "\n"


def test_sentences_on_a_terminal_break_between_words(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    words = (
        "coterie: 'runs/race' and 'runs/mixed' play different worlds: max_steps is 100 and 50; " + "x" * 90 + "\n  b"
    )
    say(words)
    assert capsys.readouterr().err == words + "\n"  # files get one line
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    say(words)
    first, second, path, last = capsys.readouterr().err.splitlines()
    assert len(first) <= 80
    assert f"{first} {second} {path}\n{last}" == words


@pytest.mark.slow
@pytest.mark.slow
def test_training_counts_the_steps_of_whole_iterations(coterie_, tmp_path):
    words = ["train.num_envs=4", "train.rollout_steps=8", "train.total_steps=40", "train.evaluate_episodes=2"]
    _, _, err = coterie_("train", "gridworld-cooperative", *words, "--out", tmp_path / "run")
    assert "64 of 64 steps" in err
    assert "of 40 steps" not in err


def test_match_counts_pairings(coterie_, tmp_path, monkeypatch, bars):
    monkeypatch.setattr(progress, "EVERY", 0)
    path = written(tmp_path / "duel.yaml", DUEL)
    code, _, err = coterie_("match", "random", "expert", "--world", path, "--episodes", 2)
    assert code == 0, err
    assert bars == [(n, 4) for n in range(1, 5)]
    assert "4 of 4 pairings" in err


def test_tune_counts_trials_earlier_ones_included(coterie_, tmp_path, monkeypatch, bars):
    def fake(plan, told):
        trials = [Trial(n, "complete", {}, float(n), None, {}, "") for n in range(3)]
        tuned = [Tuned(plan, "e", Files(tmp_path / "s.db"), {}, trials[:n]) for n in range(4)]
        told(tuned[1], None)  # one trial of an earlier command
        for n in (1, 2):
            told(tuned[n + 1], trials[n])
        return tuned[-1]

    monkeypatch.setattr(tune, "tune", fake)
    code, out, err = coterie_("tune", "cartpole-ppo", "--trials", 3)
    assert code == 0, err
    assert bars == [(2, 3), (3, 3)]
    assert "best settings" in out


def test_a_population_counts_members_and_its_last_lines_fit_80_columns(coterie_, tmp_path, monkeypatch, bars):
    paths = [f"{LEARNER}{name}" for name in ("learning_rate", "entropy_coefficient", "gae_lambda", "clip_range")]

    def fake(plan, told, trained):
        first = [Member(n, dict.fromkeys(paths, 0.123456789)) for n in range(2)]
        ended = [Member(n, one.values, float(n), held_out=1.0) for n, one in enumerate(first)]
        told(Population(0, first))
        for number in (0, 1):
            for one in ended:
                trained(one)
            told(Population(number, ended))
        ranges = dict.fromkeys(paths, Real(0.0, 1.0))
        return PopulationResult(plan, Files(tmp_path / "s.json"), ranges, Population(1, ended), False)

    monkeypatch.setattr(population, "tune_population", fake)
    code, out, err = coterie_("tune", "cartpole-ppo", "--sampler", "pbt", "--trials", 2, "--rounds", 2)
    assert code == 0, err
    assert bars == [(n, 4) for n in range(1, 5)]
    settings = out.split("  last settings ")[1].split("run  ")[0]
    assert settings.split() == [f"{path.removeprefix(LEARNER)}=0.123" for path in paths]
    assert all(len(line) <= 80 for line in out.splitlines() if not line.startswith(("run", "schedule")))


def test_a_population_does_without_optuna(coterie_, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, _, err = coterie_("tune", "cartpole-ppo", "--sampler", "pbt", "--trials", 1)
    assert (code, err) == (2, "coterie: --trials: a population needs at least 2 members, got 1\n")


@pytest.mark.slow
def test_exploit_says_which_responder_of_how_many(coterie_, tmp_path, monkeypatch):
    run = train(tmp_path / "run", experiment=written(tmp_path / "duel.yaml", DUEL))

    class Ended(Exception):
        """The first evaluation would begin."""

    def end(case, spec):
        raise Ended

    monkeypatch.setattr(exploit, "train_responder", lambda case, quiet: None)
    monkeypatch.setattr(exploit, "evaluate_case", end)
    said = []
    monkeypatch.setattr("builtins.print", lambda *words, **_: said.append(" ".join(map(str, words))))
    with pytest.raises(Ended):
        exploit.exploit(run.path, exploit.ExploitSpec(episodes=8), out=tmp_path / "out")
    assert said == [
        "responder 1 of 2: cross",
        "responder 2 of 2: ring",
        "evaluating, 8 episodes for each policy",
    ]


def test_the_table_after_a_sweep_has_a_line_for_every_run(tmp_path, capsys):
    runs = [
        fabricate(tmp_path / f"{seed}{rate}", f"seed={seed}", f"groups.team.learner.learning_rate={rate}")
        for seed in (0, 1)
        for rate in (1e-3, 3e-4)
    ]
    for run in runs:
        summary = run.summary()
        summary["evaluation"]["success_rate"] = 0.5
        run.summary_file.write_text(json.dumps(summary))
    outcome.print_sweep(runs, str(tmp_path))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "4 runs, best policies, mean return of the groups that learn:"
    assert lines[2].split() == ["run", "return", "success", "time"]
    assert [line.split()[0] for line in lines[3:7]] == ["seed=0", "seed=0", "seed=1", "seed=1"]
    assert "learning_rate=0.0003" in lines[4]
    assert all(len(line) <= 80 for line in lines[:7])
    assert lines[-1].startswith("side by side: coterie compare ")


def test_the_files_of_one_of_many_runs_fit_80_columns(tmp_path, capsys):
    run = fabricate(tmp_path / "seed=0_groups.team.learner.learning_rate=0.001", "seed=0")
    score = {"groups": {"team": {"return_mean": 1.0, "return_ci95": [0.0, 2.0], "length_mean": 3.0}}}
    scores = {name: score | {"success_rate": None} for name in ("evaluation", "step_0", "last")}
    run.summary_file.write_text(json.dumps(run.summary() | scores | {"baselines": {}, "solved": False, "episodes": 9}))
    video = run.path / "videos" / "eval" / "step-000000032768.gif"
    video.parent.mkdir(parents=True)
    for file in (video, video.with_suffix(".mp4"), run.path / "report.html"):
        file.write_text("")
    assert outcome.print_outcome(run, one_of_many=True)
    *_, where, files = capsys.readouterr().out.splitlines()
    assert where == f"run      {run.path}"
    assert files == "in it    videos/eval/step-000000032768.gif (and .mp4), report.html"
    assert len(files) <= 80
    assert outcome.print_outcome(run)
    assert capsys.readouterr().out.splitlines()[-2:] == [
        f"video    {video} (and .mp4)",
        f"report   {run.path / 'report.html'}",
    ]


@pytest.mark.parametrize("words", [["train"], ["watch"], ["check", "policy"], ["runs", "delete"], []])
def test_help_gives_flags_no_type(words, coterie_):
    code, out, _ = coterie_(*words, "-h")
    assert code == 0
    assert "--help" in out
    assert "bool" not in out
