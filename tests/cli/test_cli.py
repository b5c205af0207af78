"""The command line: what it prints, what it returns, and that failures have no traceback."""

import functools
import json
import re
import resource
import runpy
import signal
import subprocess
import sys
import time

import pytest
from PIL import Image

import coterie
from coterie.cli import app
from coterie.cli.outcome import print_outcome
from coterie.config import schema
from coterie.runs.run import Run
from coterie.studies import sweep
from coterie.training import loop, table
from coterie.video import mp4
from helpers import run as run_cases
from helpers.processes import run_command
from helpers.run import DUEL, GRID, ODD, Odd, train, written


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train(tmp_path_factory.mktemp("trained") / "run", "train.evaluate_episodes=10")


def test_the_version_is_the_packages(coterie_):
    assert coterie_("--version") == (0, f"coterie {coterie.__version__}\n", "")


def test_the_package_is_a_command(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["coterie", "--version"])
    with pytest.raises(SystemExit) as left:
        runpy.run_module("coterie", run_name="__main__")
    assert (left.value.code or 0, capsys.readouterr().out) == (0, f"coterie {coterie.__version__}\n")


@pytest.mark.parametrize("command", [("match", "random", "expert"), ("compare", "."), ("report", ".")])
def test_a_picture_that_is_no_png_is_refused_before_anything_is_read(coterie_, tmp_path, command):
    code, out, err = coterie_(*command, "--figure", tmp_path / "curves.jpg")
    assert (code, out) == (2, "")
    assert "--figure" in err
    assert "end the name in .png" in " ".join(err.replace("│", " ").split())


# Training -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_train_says_what_came_of_it(coterie_, tmp_path):
    code, out, _ = coterie_("train", "gridworld-cooperative", *GRID, "train.video=true", "--out", tmp_path / "a")
    assert code == 0
    run = Run.open(tmp_path / "a")
    assert "256 steps in" in out
    for words in ("trained (best)", "step 0", "random", "expert", "the highest mean return", f"run      {run.path}"):
        assert words in out
    video, report = out.splitlines()[-2:]
    assert Image.open(video.split()[1]).n_frames > 1
    assert report == f"report   {run.path / 'report.html'}"
    code, _, err = coterie_("train", "gridworld-cooperative", "--out", tmp_path / "a")
    assert code == 1
    assert "already holds a run" in err


DEAD = [  # a language policy whose server does not exist
    *("groups.team.learner=none", "groups.team.policy=language", "groups.team.policy.lm=http://127.0.0.1:9/v1"),
    *("groups.team.policy.lm.http.model=x", "groups.team.policy.lm.retry.attempts=1"),
    *(word for word in GRID if not word.startswith("groups.team.policy")),
]


@pytest.mark.slow
def test_a_dead_model_server_stops_every_command(coterie_, tmp_path, trained):
    code, out, err = coterie_("train", "gridworld-cooperative", *DEAD, "--out", tmp_path / "a")
    assert code == 1
    assert "no answer came from the language model" in err
    assert "max_abstentions" in err
    assert "trained" not in out
    players = [word for word in DEAD if word.startswith("groups.")]
    for command in (["eval"], ["eval", "--json"], ["watch", "--out", tmp_path / "a.gif"]):
        code, _, err = coterie_(command[0], trained.path, *players, *command[1:])
        assert code == 1
        assert "no answer came from the language model" in err


@pytest.mark.slow
def test_where_the_limit_allows_it_the_summary_and_the_exit_status_say_that_no_answer_came(coterie_, tmp_path):
    never = "groups.team.policy.lm.max_abstentions=1"
    code, out, err = coterie_("train", "gridworld-cooperative", *DEAD, never, "--out", tmp_path / "a")
    assert code == 1
    assert "256 steps in" in out
    assert "team: no answer came from the language model" in err
    count = Run.open(tmp_path / "a").summary()["unanswered"]["team"]
    assert count["questions"] == count["unanswered"] > 0
    code, _, err = coterie_("match", tmp_path / "a", "random", "--episodes", 2)
    assert code == 1
    assert "no answer came from the language model" in err


def test_train_takes_a_file_and_goes_to_the_default_directory(coterie_, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "extends: gridworld-cooperative\ntrain: {total_steps: 32}"
    words = [w for w in GRID if "total_steps" not in w]
    assert coterie_("train", written(tmp_path / "mine.yaml", text), *words, "seed=4", "--quiet")[0] == 0
    (path,) = (tmp_path / "runs" / "mine").iterdir()
    assert path.name.endswith("-seed4")
    time.strptime(path.name.removesuffix("-seed4"), "%Y%m%d-%H%M%S")
    assert Run.open(path).summary()["env_steps"] == 32


def test_ones_own_parts_are_found_in_the_present_directory(coterie_, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "my_worlds.py", "from helpers.run import Odd, OddSettings\n\n\nclass Mine(Odd):\n    pass\n")
    code, _, err = coterie_("check", "world", "my_worlds:Mine", "--steps", "30")
    assert code == 0, err


@pytest.mark.slow
def test_a_sweep_trains_the_product(coterie_, tmp_path):
    words = ["seed=0,1", "groups.team.learner.learning_rate=1e-3,3e-4", "groups.team.policy.hidden=[4,4]"]
    base = [w for w in GRID if "hidden" not in w and "total_steps" not in w] + ["train.total_steps=32"]
    code, out, _ = coterie_("train", "gridworld-cooperative", "-m", *base, *words, "--out", tmp_path, "--quiet")
    assert code == 0
    assert "[4/4]" in out
    runs = [Run.open(path) for path in tmp_path.iterdir()]
    assert (tmp_path / "seed=1_groups.team.learner.learning_rate=3e-4").is_dir()  # named by what differs
    made = {(r.config().seed, r.config().groups["team"].learner.settings.learning_rate) for r in runs}
    assert made == {(0, 1e-3), (0, 3e-4), (1, 1e-3), (1, 3e-4)}
    assert {r.config().groups["team"].policy.settings.hidden for r in runs} == {(4, 4)}


def test_a_sweep_refuses_its_last_combination_before_the_first_runs(coterie_, tmp_path):
    code, _, err = coterie_("train", "gridworld-cooperative", "-m", *GRID, "seed=0,-1", "--out", tmp_path / "a")
    assert code == 2
    assert "seed must be at least 0" in err
    assert not (tmp_path / "a").exists()


def test_a_sweep_names_every_directory_differently():
    words = ["world.name=gymnasium/A,gymnasium-A", "seed=0,1"]
    made = sweep.directory_names(words, schema.sweep(words))
    assert len(set(made)) == 4
    assert made[0] == "world.name=gymnasium-A_seed=0"


@pytest.mark.parametrize(
    ("word", "twice"),
    [("seed=0,0", "seed=0"), ("groups.team.learner.gamma=0.9,0.90", "groups.team.learner.gamma=0.90")],
)
def test_a_sweep_refuses_to_train_twice_the_same(coterie_, tmp_path, word, twice):
    code, _, err = coterie_("train", "gridworld-cooperative", "-m", *GRID, word, "--out", tmp_path / "a")
    assert code == 2
    assert f"{twice} would be trained twice" in err
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    "word",
    [
        "seed=0,1,2",
        "seed=[0,1]",
        "groups.team.learner=ppo,dqn",
        "world.mode=race,cooperative",
        "groups.team.policy.hidden=[64,64],[32]",
    ],
)
def test_a_list_of_values_names_the_option_that_sweeps(coterie_, tmp_path, word):
    code, _, err = coterie_("train", "gridworld-cooperative", word, "--out", tmp_path / "a")
    assert code == 2
    assert "'coterie train -m' trains one run for each" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("blocks", "file", "cure"),
    [
        (1, "config.yaml", "give the command again"),
        (6, "step-000000000000", "'coterie resume RUN' continues from the last checkpoint"),
        (9, "metrics.jsonl", "'coterie resume RUN' continues from the last checkpoint"),
    ],
)
def test_a_full_disk_is_one_sentence_and_leaves_nothing_broken(tmp_path, blocks, file, cure):
    """Files may not grow beyond some kilobytes, which a write meets as it meets a full disk."""
    small = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (blocks * 1024, -1))
    longer = "train.total_steps=960"
    words = ["train", "gridworld-cooperative", *GRID, longer, "--out", tmp_path / "run", "--quiet"]
    failed = run_command(*words, before=small)
    assert failed.returncode == 1, failed.stderr
    cure = cure.replace("RUN", str(tmp_path / "run"))
    assert re.fullmatch(rf"coterie: '\S+{file}': File too large; free some space, then {cure}\n", failed.stderr)
    assert not list(tmp_path.rglob(".*"))
    if file == "config.yaml":
        train(tmp_path / "run", longer)
    else:
        coterie.resume(tmp_path / "run", quiet=True)
    run_cases.assert_same_end(Run.open(tmp_path / "run"), train(tmp_path / "whole", longer))


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("export", "RUN", "--torchscript", "OUT"),
        ("compare", "RUN", "--csv", "OUT"),
        ("watch", "RUN", "--out", "OUT.gif"),
        ("demonstrate", "gridworld-cooperative", "--policy", "random", "--episodes", "50", "--out", "OUT"),
    ],
    ids=lambda words: words[0],
)
def test_a_full_disk_is_one_sentence_whatever_is_written(coterie_, tmp_path, monkeypatch, words):
    run = train(tmp_path / "run")
    places = {"RUN": run.path, "OUT": tmp_path / "out", "OUT.gif": tmp_path / "out.gif"}
    small = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (256, -1))  # of standard error, too
    failed = run_command(*(places.get(word, word) for word in words), before=small)
    assert failed.returncode == 1, failed.stderr
    assert failed.stderr.endswith("; free some space, then give the command again\n")
    assert "File too large" in failed.stderr.splitlines()[-1]
    assert "Traceback" not in failed.stderr
    assert not list(tmp_path.glob("*.partial"))
    assert not list(tmp_path.glob("out/.*"))


@pytest.mark.slow
def test_a_failed_start_frees_its_directory_and_leaves_other_files(coterie_, tmp_path, monkeypatch):
    odd = written(tmp_path / "odd.yaml", ODD)
    out = tmp_path / "new"
    for trouble in ("name", "nan"):
        words = (f"world.trouble={trouble}", "world.after=0")
        assert coterie_("train", odd, *words, "--out", out, "--quiet")[0] == 1
        assert not out.exists()
    monkeypatch.setattr(Odd, "save", lambda self: None)
    code, _, err = coterie_("train", odd, "--out", out, "--quiet")
    assert (code, out.exists()) == (2, False)
    assert err.startswith("coterie: world: 'Odd.save' must return the full state")
    assert err.endswith("NoneType\n")
    monkeypatch.undo()
    mine = tmp_path / "mine"
    mine.mkdir()
    written(mine / "notes.txt", "mine")
    assert coterie_("train", "gridworld-cooperative", *GRID, "world.num_agents=99", "--out", mine, "--quiet")[0] == 2
    assert [path.name for path in mine.iterdir()] == ["notes.txt"]
    code, _, err = coterie_("train", odd, "--out", mine, "--quiet")
    assert code == 0, err


def test_ctrl_c_ends_a_whole_sweep(coterie_, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "loop", lambda *a: {"finished": False, "env_steps": 32})
    code, out, err = coterie_("train", "gridworld-cooperative", "-m", *GRID, "seed=0,1", "--out", tmp_path)
    assert (code, err) == (130, "")
    assert out.count("stopped and saved at") == out.count("continue with: coterie resume") == 1
    assert "1 of 2 runs have not begun" in out
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.slow
def test_a_signal_while_a_run_of_a_sweep_finishes_ends_the_sweep(coterie_, tmp_path, monkeypatch):
    finish = loop.finish

    def signalled(*arguments):
        signal.raise_signal(signal.SIGTERM)
        return finish(*arguments)

    monkeypatch.setattr(loop, "finish", signalled)
    before = signal.getsignal(signal.SIGTERM)
    command = ("train", "gridworld-cooperative", "-m", *GRID, "seed=0,1", "--out", tmp_path, "--quiet")
    code, out, _ = coterie_(*command)
    assert code == 143
    assert "1 of 2 runs have not begun" in out
    assert signal.getsignal(signal.SIGTERM) == before
    assert Run.open(tmp_path / "seed=0").summary() is None  # its scores are left
    monkeypatch.undo()
    assert coterie_(*command)[0] == 0
    assert Run.open(tmp_path / "seed=0").summary() is not None


@pytest.mark.slow
def test_a_signal_in_the_first_evaluation_is_an_exit_code_and_a_line(coterie_, tmp_path, monkeypatch):
    evaluate = loop.evaluate

    def signalled(*arguments, **options):
        signal.raise_signal(signal.SIGTERM)
        return evaluate(*arguments, **options)

    monkeypatch.setattr(loop, "evaluate", signalled)
    code, out, err = coterie_("train", "gridworld-cooperative", *GRID, "--out", tmp_path / "a", "--quiet")
    assert (code, out) == (143, "")
    assert err.endswith("coterie: stopped before the first checkpoint; nothing is kept\n")
    code, out, _ = coterie_("train", "gridworld-cooperative", "-m", *GRID, "seed=0,1", "--out", tmp_path / "b")
    assert code == 143
    assert "2 of 2 runs have not begun" in out
    assert not list(tmp_path.glob("*/*/*"))


def test_divergence_is_exit_code_1(coterie_, tmp_path):
    words = [*GRID, "groups.team.learner.learning_rate=1e30"]
    code, _, err = coterie_("train", "gridworld-cooperative", *words, "--out", tmp_path / "a", "--quiet")
    assert code == 1
    assert err.startswith("coterie: group 'team': learning diverged")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("world.grid_sise=4", "world.grid_sise: no such setting; did you mean 'grid_size'?"),
        ("groups.team.agents=bob", "groups.team.agents: no agent is called bob"),
        ("groups.team.policy.hidden=wide", "groups.team.policy.hidden: expected"),
        ("groups.team.learner.gamma=1.2", "groups.team.learner: gamma must lie in [0, 1], got 1.2"),
        ("groups.team.preference.name=none", "groups.team.preference.name: no 'none' here"),
        ("train.stop.episodes=3", "train.stop.return_mean: required setting is missing"),
        ("train.num_envs=0", "train: num_envs must be at least 1, got 0"),
        ("seed=x", "seed: expected a valid integer, got 'x'"),
        ("groups.team.agents=agent_0", "groups: no group contains agent_1"),
        ("steps", "'steps': expected key=value"),
        ("world.name=gymnasium/Nope-v0", "world.name: gymnasium/Nope-v0: no such environment is registered"),
        ("world.name=gymnasium/nowhere:Nope-v0", "world.name: gymnasium/nowhere:Nope-v0: needs the module 'nowhere'"),
        ("world.name=pettingzoo/nofamily/nope", "world.name: pettingzoo/nofamily/nope: PettingZoo has no family"),
        ("world.name=pettingzoo/nowhere:nope", "world.name: pettingzoo/nowhere:nope: needs the module 'nowhere'"),
        ("world.name=mpe/nope", "world.name: mpe/nope: no such environment; there are "),
        ("groups.team.policy.run=nowhere", "nowhere' is not a run: it has no config.yaml"),
    ],
)
def test_a_refused_setting_is_exit_code_2_and_one_line(coterie_, tmp_path, word, said):
    code, out, err = coterie_("train", "gridworld-cooperative", word, "--out", tmp_path / "a")
    assert (code, out) == (2, "")
    assert said in err
    assert err.startswith("coterie: ")
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "a").exists()


def test_a_directory_that_cannot_be_made_is_named(coterie_, tmp_path):
    written(tmp_path / "file", "")
    code, _, err = coterie_("train", "gridworld-cooperative", *GRID, "--out", tmp_path / "file")
    assert (code, err) == (1, f"coterie: '{tmp_path / 'file' / 'checkpoints'}': Not a directory\n")


# Resuming -----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_resuming_a_finished_run_says_so(coterie_, tmp_path):
    run = train(tmp_path / "run", "train.total_steps=32")
    code, out, _ = coterie_("resume", run.path)
    assert code == 0
    assert out == f"{run.path} has finished at 32 steps; more: coterie resume {run.path} train.total_steps=N\n"
    code, out, _ = coterie_("resume", run.path, "train.total_steps=96", "--quiet")
    assert code == 0
    assert "96 steps in" in out
    assert coterie_("resume", run.path, "train.num_envs=2")[0] == 0  # finished: nothing to fit
    code, _, err = coterie_("resume", run.path, "train.num_envs=2", "train.total_steps=960")
    assert code == 2
    assert "num_envs=4" in err


def test_resuming_what_is_no_run(coterie_, tmp_path):
    code, _, err = coterie_("resume", tmp_path)
    assert (code, err) == (1, f"coterie: '{tmp_path}' is not a run: it has no config.yaml\n")


def test_leaving_at_once_is_exit_code_130(coterie_, tmp_path, monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "loop", interrupt)
    code, _, err = coterie_("train", "gridworld-cooperative", *GRID, "--out", tmp_path / "a", "--quiet")
    assert code == 130
    assert "'coterie resume RUN' continues from the last checkpoint" in err


@pytest.mark.parametrize("command", ["train", "eval"])
def test_ctrl_c_in_compiled_code_is_exit_code_130_too(coterie_, tmp_path, monkeypatch, command):
    def interrupt(*arguments, **options):
        """As Numba does where the signal comes while it calls Python, which was called by compiled code, too."""
        called = SystemError("returned a result with an exception set")
        called.__cause__ = KeyboardInterrupt()
        raise SystemError("returned a result with an exception set") from called

    monkeypatch.setattr(loop, "loop", interrupt)
    monkeypatch.setattr(table, "load", interrupt)
    code, _, err = coterie_(
        command, "gridworld-cooperative", *(("--out", tmp_path / "a") if command == "train" else ())
    )
    assert code == 130
    assert "interrupted" in err


# Evaluating ---------------------------------------------------------------------------------------------


def evaluated(coterie_, *words):
    code, out, err = coterie_("eval", *words, "--json")
    assert code == 0, err
    return json.loads(out)


@pytest.mark.slow
def test_eval_prints_one_object(coterie_, trained):
    found = evaluated(coterie_, trained.path)
    assert list(found) == [
        *("run", "checkpoint", "mode", "episodes", "seed", "players", "env_steps", "groups", "success_rate"),
        "success_ci95",
    ]
    assert found["groups"].keys() == {"team"}
    assert list(found["groups"]["team"]) == ["return_mean", "return_ci95", "length_mean"]
    low, high = found["groups"]["team"]["return_ci95"]
    assert low <= found["groups"]["team"]["return_mean"] <= high
    assert found["success_ci95"][0] <= found["success_rate"] <= found["success_ci95"][1]
    del found["groups"], found["success_rate"], found["success_ci95"]
    steps = trained.summary()["best_step"]
    head = {"run": str(trained.path), "checkpoint": "best", "mode": "greedy", "episodes": 100, "seed": 0}
    assert found == head | {"env_steps": steps, "players": {"team": f"checkpoint best ({steps} steps)"}}


@pytest.mark.slow
def test_eval_is_greedy_repeatable_and_takes_its_options(coterie_, trained):
    greedy = evaluated(coterie_, trained.path, "--episodes", "10")
    assert greedy == evaluated(coterie_, trained.path, "--episodes", "10")
    assert {k: greedy[k] for k in ("groups", "success_rate", "success_ci95")} == trained.summary()["evaluation"]
    sample = evaluated(coterie_, trained.path, "--episodes", "10", "--stochastic")
    assert sample["mode"] == "sample"
    assert sample["groups"] != greedy["groups"]
    other = evaluated(coterie_, trained.path, "--episodes", "10", "--seed", "1")
    assert other["groups"] != greedy["groups"]
    last = evaluated(coterie_, trained.path, "--episodes", "10", "--checkpoint", "last")
    assert last["env_steps"] == 256
    assert last["groups"] == trained.summary()["last"]["groups"]
    step = evaluated(coterie_, trained.path, "--episodes", "3", "--checkpoint", "192")
    assert (step["env_steps"], step["checkpoint"], step["episodes"]) == (192, "192", 3)


def test_eval_for_people(coterie_, trained):
    code, out, _ = coterie_("eval", trained.path, "--episodes", "3")
    assert code == 0
    assert "greedy, 3 episodes, seed 0" in out
    assert "team" in out
    assert "success" in out


@pytest.mark.parametrize("words", [(), ("-m", "seed=0,1")])
def test_an_empty_name_of_a_directory_is_refused(coterie_, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    code, _, err = coterie_("train", "gridworld-race", *words, "--out", "")
    assert (code, err) == (2, "coterie: --out: expected a directory, got ''; '.' is the working directory\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_eval_says_who_plays(coterie_, trained, tmp_path):
    def head(run, *words):
        code, out, err = coterie_("eval", run.path, *words, "--episodes", "3")
        assert code == 0, err
        return out[: out.index("  policy")].splitlines()

    steps = trained.summary()["best_step"]
    tail = "greedy, 3 episodes, seed 0"
    assert head(trained) == [f"{trained.path}, checkpoint best ({steps} steps), {tail}"]
    assert head(trained, "--checkpoint", "last") == [f"{trained.path}, checkpoint last (256 steps), {tail}"]
    words = ("groups.team.policy=random", "groups.team.learner=none")
    assert head(trained, *words) == [f"{trained.path}, random, {tail}"]
    assert head(trained, "groups.team.policy=q_network") == [f"{trained.path}, untrained, {tail}"]
    words = ("--policy", "random:decide=jointly")
    code, _, err = coterie_("eval", trained.path, *words)
    assert (code, err) == (2, "coterie: groups.team.policy.decide: no such setting; known: none\n")
    duel = train(tmp_path / "duel", experiment=written(tmp_path / "duel.yaml", DUEL))
    other = tmp_path / "duel"
    words = ("groups.ring.policy=expert", f"groups.cross.policy={{run: {other}, group: ring, checkpoint: last}}")
    assert head(duel, *words) == [f"{other}, {tail}", f"  cross: {other}, checkpoint last", "  ring: expert"]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["eval", "watch"])
def test_help_of_play_names_no_setting_that_is_refused(coterie_, command):
    code, out, _ = coterie_(command, "--help")
    assert code == 0
    assert "seed=1" not in out
    assert "world.max_steps=50" in out


def test_eval_refusals(coterie_, trained):
    for words, code, said in [
        (["--checkpoint", "7"], 1, "has no checkpoint '7'; there are best, last and steps"),
        (["world.num_agents=4"], 1, "A set network"),
        (["world.grid_sise=4"], 2, "did you mean 'grid_size'?"),
        (["colour=red"], 2, "colour: no such setting"),
        (["seed=7"], 2, "seed: the run's seed has no effect on play; the episodes' own is --seed 7"),
        (["train.evaluate_episodes=7"], 2, "train: has no effect on play; only world.… and groups.… can be changed"),
        (["groups.team.learner.gamma=0.5"], 2, "groups.team.learner: has no effect on play"),
        (["--episodes", "0"], 2, "episodes"),
    ]:
        found, out, err = coterie_("eval", trained.path, *words)
        assert (found, out) == (code, "")
        assert said in err


@pytest.mark.slow
def test_eval_with_other_numbers_of_agents(coterie_, tmp_path):
    words = ["world.observation=dict", "groups.team.policy.encoder=set", "train.total_steps=32"]
    run = train(tmp_path / "run", *words)
    found = evaluated(coterie_, run.path, "world.num_agents=4", "--episodes", "4")
    assert found["episodes"] == 4
    assert found["groups"].keys() == {"team"}


# Looking ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_watch_writes_a_video(coterie_, trained, tmp_path):
    code, out, _ = coterie_("watch", trained.path)
    assert code == 0
    gif, *more = out.splitlines()
    assert gif == str(trained.path / "videos" / "best-seed0.gif")
    assert Image.open(gif).n_frames > 1
    second = gif.replace(".gif", ".mp4") if mp4.available() else f"to write an MP4 as well: {mp4.CURE}"
    assert more == [second]
    code, out, _ = coterie_("watch", trained.path, "--out", tmp_path / "a.gif", "--checkpoint", "last", "--stochastic")
    assert code == 0
    assert Image.open(tmp_path / "a.gif").n_frames > 1
    code, _, err = coterie_("watch", trained.path, "--out", tmp_path / "a.avi")
    assert (code, err) == (1, f"coterie: '{tmp_path / 'a.avi'}': videos are written as .gif or .mp4\n")


@pytest.mark.slow
def test_watch_in_a_terminal_and_in_a_window(coterie_, trained, monkeypatch):
    code, out, _ = coterie_("watch", trained.path, "--terminal")
    assert code == 0
    assert "episode 1   step 1   return  team -0.10" in out
    assert "team: agent_0, agent_1 (network, ppo)" in out
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    assert coterie_("watch", trained.path, "--window", "--fps", "60")[0] == 0


@pytest.mark.slow
def test_watch_a_world_without_pictures(coterie_, tmp_path):
    run = train(tmp_path / "run", experiment=written(tmp_path / "odd.yaml", ODD))
    code, _, err = coterie_("watch", run.path)
    assert code == 1
    assert "'odd' cannot be drawn" in err


def test_report_command(coterie_, trained, tmp_path):
    code, out, _ = coterie_("report", trained.path)
    assert (code, out.strip()) == (0, str(trained.path / "report.html"))
    code, out, _ = coterie_("report", trained.path, trained.path, "--out", tmp_path / "twice.html")
    assert code == 0
    assert (tmp_path / "twice.html").read_text().count("<td>trained (best)<td>team") == 1  # it is one run
    empty = Run.create(tmp_path / "empty", trained.config())
    code, _, err = coterie_("report", empty.path)
    assert (code, err) == (1, f"coterie: '{empty.path}' has no records yet\n")


@pytest.mark.slow
def test_a_report_of_a_sweep_lies_beside_it(coterie_, sweep, tmp_path, monkeypatch):
    runs = sorted(file.parent for file in sweep.rglob("config.yaml"))
    for summary in sweep.rglob("summary.json"):  # curves suffice
        summary.unlink()
    (runs[0] / "report.html").write_text("its own")
    for words in ((sweep,), runs):
        code, out, _ = coterie_("report", *words)
        assert (code, out.strip()) == (0, str(sweep / "report.html"))
        text = (sweep / "report.html").read_text()
        assert text.count("Lines: mean of 4 runs") == 2
        (sweep / "report.html").unlink()
    assert (runs[0] / "report.html").read_text() == "its own"
    monkeypatch.chdir(tmp_path)
    assert coterie_("report", *(run.relative_to(tmp_path) for run in runs))[1] == "sweep/report.html\n"


# The rest -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("eval", "run", "--sample"), "--sample is now --stochastic"),
        (("match", "run", "--sample"), "--sample is now --stochastic"),
        (("exploit", "run", "--deviates=each"), "--deviates is now --deviator"),
    ],
)
def test_renamed_options_are_refused_with_their_present_names(coterie_, words, said):
    assert coterie_(*words) == (2, "", f"coterie: {said}\n")


def test_list_names_everything(coterie_):
    code, out, _ = coterie_("list")
    assert code == 0
    for word in ("gridworld-cooperative", "gridworld", "tictactoe", "network", "expert", "ppo", "team"):
        assert word in out
    assert "Two agents collect three targets together" in out
    assert max(map(len, out.splitlines())) <= 80


def test_check_world(coterie_):
    code, out, _ = coterie_("check", "world", "gridworld", "world.grid_size=4", "num_agents=3", "--steps", "40")
    assert code == 0
    assert out.startswith("gridworld: passes the conformance tests over 40 steps, ")
    assert out.rstrip().splitlines()[0].endswith(" ms a step")
    code, _, err = coterie_("check", "world", "helpers.run:Crooked", "--steps", "10")
    assert code == 1
    assert "observation" in err
    code, _, err = coterie_("check", "world", "gridwrld")
    assert code == 2
    assert "did you mean 'gridworld'?" in err


def test_check_world_takes_settings_after_a_colon(coterie_):
    code, out, err = coterie_("check", "world", "gridworld:grid_size=4,num_agents=3", "num_targets=1", "--steps", "20")
    assert (code, out.split(": passes")[0]) == (0, "gridworld:grid_size=4,num_agents=3"), err
    code, _, err = coterie_("check", "world", "spread:num_agents=0")
    assert (code, err) == (2, "coterie: world: num_agents must be at least 1, got 0\n")


@pytest.mark.slow
def test_check_suggests_what_helps(coterie_, monkeypatch):
    """A fresh environment for every episode, a time limit; and it says how far it is."""
    monkeypatch.setattr("coterie.testing.worlds.REPORT_EVERY", 0.0)
    code, out, error = coterie_("check", "world", "gymnasium/helpers.odd_envs:Counting-v0", "--steps", "12")
    assert code == 1
    assert "with world.fresh: true it passes" in error
    assert "step 5 of about 96, " in error
    code, _, error = coterie_("check", "world", "gymnasium/helpers.external_envs:GlobalDice-v0", "--steps", "12")
    assert code == 1
    assert "with world.seed_globals: true it passes" in error
    code, out, error = coterie_("check", "world", "gymnasium/helpers.odd_envs:Collision-v0", "--steps", "12")
    assert code == 0
    assert "set world.max_episode_steps" in out


def test_config_show_and_validate(coterie_, tmp_path):
    code, out, _ = coterie_("config", "show", "gridworld-cooperative", "seed=9")
    assert code == 0
    shown = written(tmp_path / "shown.yaml", out)
    assert coterie.config.schema.load(str(shown)) == coterie.config.schema.load("gridworld-cooperative", ["seed=9"])
    code, out, _ = coterie_("config", "validate", "gridworld-cooperative")
    assert (code, out) == (0, "gridworld-cooperative: valid\n")
    code, _, err = coterie_("config", "validate", "gridworld-cooperative", "groups.team.agents=agent_0")
    assert code == 2
    assert "no group contains agent_1" in err
    code, _, err = coterie_("config", "validate", "gridworld-cooperative", f"groups.team.start={tmp_path}")
    assert code == 2
    assert f"groups.team.start: '{tmp_path}' is not a run" in err


@pytest.mark.slow
def test_doctor(coterie_, tmp_path, monkeypatch):
    (tmp_path / "hub" / "models--a").mkdir(parents=True)
    (tmp_path / "hub" / "models--a" / "weights").write_bytes(b"0" * 3_000_000)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    (tmp_path / "compiled").mkdir()
    (tmp_path / "compiled" / "kernel.nbc").write_bytes(b"0" * 2_000_000)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "compiled"))
    code, out, _ = coterie_("doctor")
    assert "Hugging Face   3 MB at" in out
    assert "compiled code  2 MB in 1 files" in out
    assert code == 0
    for word in ("python", "cores", "gpu", "torch", "numba", "tensorboard"):
        assert word in out
    assert "MISSING" not in out


@pytest.mark.slow
def test_help_lists_commands_in_order_within_a_second_of_cpu_time():
    def cpu_seconds():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    before = cpu_seconds()
    words = [sys.executable, "-c", "from coterie.cli import main; main()", "--help"]
    done = subprocess.run(words, capture_output=True, text=True, env=run_cases.environment() | {"COLUMNS": "80"})
    assert cpu_seconds() - before < 1.0
    assert done.returncode == 0
    assert tuple(re.findall(r"^│ (\w+) ", done.stdout, re.MULTILINE)) == app.ORDER
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_scores_of_a_run_in_which_nobody_learns_are_those_of_its_players(tmp_path, capsys):
    run = train(tmp_path / "run", "groups.team.policy=random", "groups.team.learner=none")
    capsys.readouterr()
    print_outcome(run)
    said = capsys.readouterr().out
    assert "players" in said
    assert "trained" not in said
    assert "step 0 " not in said.partition("episodes:")[2]
