"""The command line: what it prints, what it returns, and that failures have no traceback."""

import json
import re
import resource
import subprocess
import sys
import time

import pytest
from PIL import Image

import coterie
from coterie.cli import app
from coterie.training import loop
from coterie.training.run import Run
from helpers import run as run_cases
from helpers.run import GRID, ODD, train, written

pytestmark = pytest.mark.usefixtures("no_drawing")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train(tmp_path_factory.mktemp("trained") / "run", "train.evaluate_episodes=10")


def test_the_version_is_the_packages(coterie_):
    assert coterie_("--version") == (0, f"coterie {coterie.__version__}\n", "")


# Training -----------------------------------------------------------------------------------------------


def test_train_says_what_came_of_it(coterie_, tmp_path):
    code, out, _ = coterie_("train", "gridworld-cooperative", *GRID, "train.video=true", "--out", tmp_path / "a")
    assert code == 0
    run = Run.open(tmp_path / "a")
    assert "256 steps in" in out
    for words in ("trained (best)", "step 0", "random", "expert", f"run      {run.path}"):
        assert words in out
    film, report = out.splitlines()[-2:]
    assert Image.open(film.split()[1]).n_frames > 1
    assert report == f"report   {run.path / 'report.html'}"
    code, _, err = coterie_("train", "gridworld-cooperative", "--out", tmp_path / "a")
    assert code == 1
    assert "already holds a run" in err


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


def test_ctrl_c_ends_a_whole_sweep(coterie_, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "loop", lambda *a: {"finished": False, "env_steps": 32})
    code, out, _ = coterie_("train", "gridworld-cooperative", "-m", *GRID, "seed=0,1", "--out", tmp_path)
    assert code == 0
    assert out.count("stopped and saved at") == out.count("continue with: coterie resume") == 1
    assert len(list(tmp_path.iterdir())) == 1


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


# Evaluating ---------------------------------------------------------------------------------------------


def evaluated(coterie_, *words):
    code, out, err = coterie_("eval", *words, "--json")
    assert code == 0, err
    return json.loads(out)


def test_eval_prints_one_object(coterie_, trained):
    found = evaluated(coterie_, trained.path)
    assert list(found) == [
        *("run", "checkpoint", "mode", "episodes", "seed", "env_steps", "groups", "success_rate"),
    ]
    assert found["groups"].keys() == {"team"}
    assert list(found["groups"]["team"]) == ["return_mean", "return_ci95", "length_mean"]
    low, high = found["groups"]["team"]["return_ci95"]
    assert low <= found["groups"]["team"]["return_mean"] <= high
    del found["groups"], found["success_rate"]
    steps = trained.summary()["best_step"]
    head = {"run": str(trained.path), "checkpoint": "best", "mode": "greedy", "episodes": 100, "seed": 0}
    assert found == head | {"env_steps": steps}


def test_eval_is_greedy_repeatable_and_takes_its_options(coterie_, trained):
    greedy = evaluated(coterie_, trained.path, "--episodes", "10")
    assert greedy == evaluated(coterie_, trained.path, "--episodes", "10")
    assert {k: greedy[k] for k in ("groups", "success_rate")} == trained.summary()["evaluation"]
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


def test_eval_refusals(coterie_, trained):
    for words, code, said in [
        (["--checkpoint", "7"], 1, "has no checkpoint '7'; there are best, last and steps"),
        (["world.num_agents=4"], 1, "A set network"),
        (["world.grid_sise=4"], 2, "did you mean 'grid_size'?"),
        (["--episodes", "0"], 2, "episodes"),
    ]:
        found, out, err = coterie_("eval", trained.path, *words)
        assert (found, out) == (code, "")
        assert said in err


def test_eval_with_other_numbers_of_agents(coterie_, tmp_path):
    words = ["world.observation=dict", "groups.team.policy.encoder=set", "train.total_steps=32"]
    run = train(tmp_path / "run", *words)
    found = evaluated(coterie_, run.path, "world.num_agents=4", "--episodes", "4")
    assert found["episodes"] == 4
    assert found["groups"].keys() == {"team"}


# Looking ------------------------------------------------------------------------------------------------


def test_watch_writes_a_film(coterie_, trained, tmp_path):
    code, out, _ = coterie_("watch", trained.path)
    assert code == 0
    assert out.strip() == str(trained.path / "videos" / "best-seed0.gif")
    assert Image.open(out.strip()).n_frames > 1
    code, out, _ = coterie_("watch", trained.path, "--out", tmp_path / "a.gif", "--checkpoint", "last", "--stochastic")
    assert code == 0
    assert Image.open(tmp_path / "a.gif").n_frames > 1
    code, _, err = coterie_("watch", trained.path, "--out", tmp_path / "a.mp4")
    assert (code, err) == (1, f"coterie: '{tmp_path / 'a.mp4'}': videos are written as .gif\n")


def test_watch_in_a_terminal_and_in_a_window(coterie_, trained, monkeypatch):
    code, out, _ = coterie_("watch", trained.path, "--terminal")
    assert code == 0
    assert "episode 1, step 1" in out
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    assert coterie_("watch", trained.path, "--window", "--fps", "60")[0] == 0


def test_watch_a_world_without_pictures(coterie_, tmp_path):
    run = train(tmp_path / "run", experiment=written(tmp_path / "odd.yaml", ODD))
    code, _, err = coterie_("watch", run.path)
    assert code == 1
    assert "'odd' cannot be drawn" in err


def test_report_command(coterie_, trained, tmp_path):
    code, out, _ = coterie_("report", trained.path)
    assert (code, out.strip()) == (0, str(trained.path / "report.html"))
    code, out, _ = coterie_("report", trained.path, trained.path, "--out", tmp_path / "two.html")
    assert code == 0
    assert (tmp_path / "two.html").read_text().count("<td>best<td>0<td>team") == 2
    empty = Run.create(tmp_path / "empty", trained.config())
    code, _, err = coterie_("report", empty.path)
    assert (code, err) == (1, f"coterie: '{empty.path}' has no records yet\n")


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


def test_check_suggests_what_helps(coterie_, monkeypatch):
    """A fresh environment for every episode, a time limit; and it says how far it is."""
    monkeypatch.setattr("coterie.testing.worlds.REPORT_EVERY", 0.0)
    code, out, error = coterie_("check", "world", "gymnasium/helpers.odd_envs:Counting-v0", "--steps", "12")
    assert code == 1
    assert "with world.fresh: true it passes" in error
    assert "step 5 of about 96, " in error
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


READERS = ("cartpole-lm-head", "gridworld-instructed", "gridworld-lm-lora")  # building them loads a model


@pytest.mark.parametrize(
    "experiment",
    [pytest.param(n, marks=pytest.mark.lm if n in READERS else ()) for n in coterie.config.schema.experiments()],
)
def test_every_experiment_is_valid(coterie_, experiment):
    assert coterie_("config", "validate", experiment)[0] == 0


def test_doctor(coterie_):
    code, out, _ = coterie_("doctor")
    assert code == 0
    for word in ("python", "cores", "gpu", "torch", "numba", "tensorboard"):
        assert word in out
    assert "MISSING" not in out


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
