"""The loop: exactness, what each of its settings does, when it stops."""

import dataclasses
import weakref

import numpy as np
import pytest
import torch

import coterie
from coterie.algorithms.divergence import Diverged
from coterie.cli.outcome import why_early
from coterie.config import schema
from coterie.config.schema import TrainSettings
from coterie.core.types import CoterieError
from coterie.runs import metrics
from coterie.runs import trackers as sinks
from coterie.runs.run import Run
from coterie.studies.report import report
from coterie.training import child_processes, loop, ray_actors
from coterie.video import films as video
from coterie.worlds.gridworld.world import Gridworld
from helpers import run as run_cases
from helpers.run import ODD, assert_same_end, files, numbers, results, train, written


def iterations(run, key="iteration"):
    return [r["iteration"] for r in run.metrics() if key in r]


@pytest.mark.slow
def test_the_same_config_and_seed_give_the_same_run(tmp_path):
    one, two = train(tmp_path / "one"), train(tmp_path / "two")
    assert_same_end(one, two)
    other = train(tmp_path / "other", "seed=1")
    assert numbers(one) != numbers(other)


@pytest.mark.slow
def test_a_run_does_not_touch_or_read_global_random_state(tmp_path):
    np.random.seed(1)  # noqa: NPY002  # the global state is what is tested
    torch.manual_seed(1)
    one = train(tmp_path / "one", "train.total_steps=64")
    after = np.random.random(), torch.rand(1).item()  # noqa: NPY002
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    assert (np.random.random(), torch.rand(1).item()) == after  # noqa: NPY002
    assert_same_end(one, train(tmp_path / "two", "train.total_steps=64"))


# Every setting of the loop ------------------------------------------------------------------------------

SETTINGS = {f.name for f in dataclasses.fields(TrainSettings)}
TESTED = set()


def setting(*names):
    """Mark which settings a test would miss."""
    TESTED.update(names)
    return lambda test: test


@setting("total_steps", "num_envs", "rollout_steps")
def test_steps_copies_and_total_steps(tmp_path):
    run = train(tmp_path / "run", "train.total_steps=70", "train.num_envs=5", "train.rollout_steps=3")
    assert [r["env_steps"] for r in run.metrics()] == [0, 15, 30, 45, 60, 75]  # the last iteration is whole
    state = run.load_checkpoint("last")
    assert len(state["shards"][0]["tally"]["length"]) == 5
    assert run.metrics()[-1]["team/decisions"] == 5 * 3 * 2


@setting("shards")
def test_shards(tmp_path):
    run = train(tmp_path / "run", "train.shards=2", "train.total_steps=32")
    assert [len(s["tally"]["length"]) for s in run.load_checkpoint("last")["shards"]] == [2, 2]


@pytest.mark.slow
@setting("workers")
def test_workers(tmp_path, monkeypatch, forked):
    started = []
    real = child_processes.ChildProcesses.__init__

    def note(self, *arguments):
        real(self, *arguments)
        started.append(len(self.processes))

    monkeypatch.setattr(child_processes.ChildProcesses, "__init__", note)
    train(tmp_path / "none", "train.total_steps=32")
    assert started == []
    train(tmp_path / "one", "train.total_steps=32", "train.workers=1")
    assert started == [1]


@setting("ray")
def test_ray(tmp_path, monkeypatch):
    class Reached(Exception):
        pass

    def note(config, settings, assigned):
        raise Reached(settings, assigned)

    monkeypatch.setattr(ray_actors, "RayActors", note)
    words = ["train.shards=4", "train.workers=2", "train.ray.cpus=0.5"]
    with pytest.raises(Reached) as reached:
        train(tmp_path / "run", "train.total_steps=32", *words)
    assert reached.value.args == (schema.RaySettings(cpus=0.5), [[0, 2], [1, 3]])


@setting("threads")
def test_threads_are_fixed_while_training_and_as_before_afterwards(tmp_path, monkeypatch):
    seen, before = [], torch.get_num_threads()
    real = loop.Training.advance
    monkeypatch.setattr(loop.Training, "advance", lambda s: (seen.append(torch.get_num_threads()), real(s))[1])
    train(tmp_path / "run", "train.total_steps=32", "train.threads=2")
    assert seen == [2]
    assert torch.get_num_threads() == before


@setting("evaluate_every", "evaluate_episodes")
def test_evaluations(tmp_path, monkeypatch):
    episodes, real = [], loop.evaluate

    def watched(world, actors, count, *rest, **more):
        episodes.append(count)
        return real(world, actors, count, *rest, **more)

    monkeypatch.setattr(loop, "evaluate", watched)
    run = train(tmp_path / "run", "train.evaluate_every=3", "train.evaluate_episodes=5")
    assert iterations(run, "team/eval/return_mean") == [0, 3, 6, 8]
    assert set(episodes) == {5}
    assert run.summary()["episodes"] == 5


@setting("checkpoint_every", "keep_checkpoints")
def test_checkpoints(tmp_path):
    run = train(tmp_path / "run", "train.checkpoint_every=3", "train.keep_checkpoints=9")
    assert run.steps() == [0, 96, 192, 256]


@pytest.mark.slow
@setting("stop")
def test_a_solved_run_saves_and_stops(tmp_path):
    odd = written(tmp_path / "odd.yaml", ODD)
    words = ["world.lengths=[3]", "train.rollout_steps=6", "train.total_steps=9600", "train.checkpoint_every=1000"]
    run = train(tmp_path / "run", *words, "train.stop={return_mean: 4.5, episodes: 20}", experiment=odd)
    # each of 4 copies ends 2 episodes of return (3 + 6) / 2 in an iteration: 20 are there after 3 iterations
    assert iterations(run) == [0, 1, 2, 3]
    assert run.summary()["solved"]
    assert "train.stop is reached, a mean return of 4.5 over 20 " in why_early(run, run.summary())
    assert run.summary()["env_steps"] == 72 == run.steps()[-1]
    assert run.metrics()[-1]["all/return_20"] == 4.5
    assert "all/eval/return_mean" in run.metrics()[-1]
    short = train(tmp_path / "short", *words, "train.stop={return_mean: 4.5, episodes: 1}", experiment=odd)
    assert iterations(short) == [0, 1]
    never = ["train.total_steps=96", "train.stop={return_mean: 4.6, episodes: 1}"]
    assert not train(tmp_path / "never", *words[:2], *never, experiment=odd).summary()["solved"]


@pytest.mark.slow
def test_stop_watches_the_named_group(tmp_path):
    text = ODD.replace("groups: {all: {", "groups: {rest: {agents: agent_0, policy: random}, all: {agents: agent_1, ")
    odd = written(tmp_path / "odd.yaml", text)
    for group, solved in (("rest", False), ("all", True), (None, True)):  # agent_1 is paid twice as much
        words = ["world.lengths=[3]", f"train.stop={{return_mean: 6, episodes: 4, group: {group or 'null'}}}"]
        run = train(tmp_path / str(group), *words, experiment=odd)
        assert run.summary()["solved"] == solved


@pytest.mark.slow
@setting("video", "tensorboard")
def test_video_and_tensorboard_can_be_left_out(tmp_path):
    run = train(tmp_path / "run", "train.total_steps=32")
    assert not (run.path / "videos").exists()
    assert not (run.path / "tensorboard").exists()
    run = train(tmp_path / "both", "train.total_steps=32", "train.video=true", "train.tensorboard=true")
    assert list((run.path / "videos" / "eval").glob("*.gif"))
    assert list((run.path / "tensorboard").glob("events*"))


@pytest.mark.slow
@setting("best")
def test_the_best_may_be_the_last(tmp_path):
    run = train(tmp_path / "run", "train.total_steps=1024", "groups.team.learner.learning_rate=0.01", "train.best=last")
    assert run.summary()["best_step"] == run.steps("best")[-1] == run.summary()["env_steps"]


def test_every_setting_of_the_loop_is_tested():
    assert TESTED | {"tracking"} == SETTINGS  # trackers: test_sinks.py


# What comes after training may fail ---------------------------------------------------------------------


def refuse(*_, **__):
    raise RuntimeError("no screen, no disk, no idea")


SHOWN = ["train.total_steps=64", "world.max_steps=6", "train.video=true", "train.tensorboard=true"]


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A run with everything that comes after training."""
    return train(tmp_path_factory.mktemp("shown") / "run", *SHOWN)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "said"),
    [
        (video, "write_video", "no video: RuntimeError: no screen"),
        (loop, "build_render_world", "no video: RuntimeError: no screen"),
        (report, "write_report", "no report: RuntimeError: no screen"),
        (sinks.Events, "__init__", "no TensorBoard files: RuntimeError: no screen"),
        (sinks.Events, "write", "no further TensorBoard files: RuntimeError: no screen"),
        (Gridworld, "expert", "no score of the expert: RuntimeError: no screen"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_what_comes_after_training_fails_with_a_warning(tmp_path, monkeypatch, caplog, shown, owner, name, said):
    monkeypatch.setattr(owner, name, refuse)
    run = train(tmp_path / "run", *SHOWN)
    assert sum(said in record.message for record in caplog.records) == 1
    expected = results(shown)
    if name == "expert":
        del expected["baselines"]["expert"]
    assert results(run) == expected
    assert numbers(run) == numbers(shown)
    assert (run.path / "report.html").exists() == (name != "write_report")
    assert not coterie.resume(run.path, quiet=True)  # it has finished


def test_a_report_is_written_when_the_training_no_longer_takes_memory(tmp_path, monkeypatch):
    built, alive, begin = [], [], loop.Training.__init__

    def note(training, *words):
        begin(training, *words)
        built.append(weakref.ref(training))

    monkeypatch.setattr(loop.Training, "__init__", note)
    settings = schema.load("gridworld-cooperative", [*run_cases.GRID, "train.total_steps=64"])
    run = Run.create(tmp_path / "run", settings)
    loop.train(settings, run, quiet=True, report=lambda *_: alive.append([one() is not None for one in built]))
    assert alive == [[False]]


@pytest.mark.slow
def test_a_run_killed_while_writing_its_video_is_finished_by_a_resume(tmp_path, monkeypatch, caplog):
    """Earlier versions left such runs: trained to the end, without a summary."""
    words = ["train.total_steps=64", "world.max_steps=6", "train.video=true"]
    run = train(tmp_path / "run", *words)
    expected = results(run)
    for left in (run.summary_file, run.path / "report.html"):
        left.unlink()
    monkeypatch.setattr(video, "write_video", refuse)
    assert coterie.resume(run.path, quiet=True)
    assert "no video" in caplog.text
    assert results(run) == expected
    assert (run.path / "report.html").exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gymnasium/helpers.external_envs:Broken-v0", "render_mode"),
        ("pettingzoo/helpers.external_envs:Undrawn", "render_mode"),
        ("pettingzoo/helpers.external_envs:Duel", "raised NotImplementedError"),
    ],
)
def test_a_world_that_cannot_be_drawn_trains_to_the_end(tmp_path, caplog, name, said):
    text = ODD.replace("helpers.run:Odd", name).replace("video: false", "video: true")
    run = train(tmp_path / "run", experiment=written(tmp_path / "undrawn.yaml", text))
    assert "no video: " in caplog.text
    assert said in caplog.text
    assert run.summary() is not None
    assert (run.path / "report.html").exists()


# Records ------------------------------------------------------------------------------------------------


def test_the_training_return_is_that_of_the_episodes_that_ended(tmp_path):
    odd = written(tmp_path / "odd.yaml", ODD)
    run = train(tmp_path / "run", "world.lengths=[4]", experiment=odd)
    records = run.metrics()
    assert [r.get("episodes") for r in records] == [None, 4, 8, 4, 8]  # of 4 copies, 6 steps each
    assert {r["all/return_mean"] for r in records[1:]} == {6.0}
    assert records[1]["length_mean"] == 4.0
    assert records[-1]["all/return_100"] == 6.0


def test_the_progress_line_shows_training_episodes_and_says_so(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(metrics.Progress, "show", lambda self, step, wall, words: shown.append(words))
    run = train(
        tmp_path / "run", "train.evaluate_every=1", "world.max_steps=3", "train.stop={return_mean: 99, episodes: 8}"
    )
    records = run.metrics()
    assert shown[0] == ""  # nothing has been played in training
    for record, words in zip(records[1:], shown[1:], strict=True):
        assert words.startswith(f"training: team {record['team/return_8']:.2f}  success ")
    assert shown[1].endswith(f"success {records[1]['success_rate']:.0%}")
    assert any(r["success_rate"] != r["eval/success_rate"] for r in records[1:])


def test_a_group_that_does_not_learn_is_recorded_and_scored_all_the_same(tmp_path):
    run = train(tmp_path / "run", "groups.team.policy=random", "groups.team.learner=null")
    assert "team/eval/return_mean" in run.metrics()[0]
    assert run.summary()["baselines"].keys() == {"random", "expert"}


def test_the_learning_rate_follows_the_progress_of_the_run(tmp_path):
    run = train(tmp_path / "run", "groups.team.learner.learning_rate=0.8")
    rates = [r["team/learning_rate"] for r in run.metrics()[1:]]
    assert rates == pytest.approx([0.8 * (1 - i / 8) for i in range(8)])


def test_baselines_play_in_the_seats_of_those_who_learn(tmp_path):
    words = ["groups.team.policy=expert", "groups.team.learner=null", "train.evaluate_episodes=20"]
    expert = train(tmp_path / "expert", *words, "train.total_steps=32").summary()["evaluation"]
    learning = train(tmp_path / "learning", "train.evaluate_episodes=20", "train.total_steps=32").summary()
    assert learning["baselines"]["expert"] == expert
    assert learning["baselines"]["expert"] != learning["baselines"]["random"]


def test_baselines_play_in_all_seats_where_nobody_learns(tmp_path):
    words = ["groups.team.learner=null", "train.evaluate_episodes=20", "train.total_steps=32"]
    scripted = train(tmp_path / "expert", "groups.team.policy=expert", *words).summary()
    random = train(tmp_path / "random", "groups.team.policy=random", *words).summary()
    assert scripted["baselines"]["random"] != scripted["evaluation"]
    assert random["baselines"]["expert"] == scripted["evaluation"]


# Divergence ---------------------------------------------------------------------------------------------


def test_divergence_stops_the_run_and_leaves_the_good_checkpoint(tmp_path):
    words = ["groups.team.learner.learning_rate=1e30", "train.checkpoint_every=1", "train.evaluate_every=1"]
    with pytest.raises(Diverged, match=r"group 'team': learning diverged .*Try a smaller learning_rate"):
        train(tmp_path / "run", *words)
    run = Run.open(tmp_path / "run")
    for which in ("best", "last"):
        for array in run.load_checkpoint(which)["policies"]["team"]["net"].values():
            assert np.isfinite(array).all()
    assert run.steps() == [0]


def test_rewards_that_are_no_numbers_stop_the_run_and_leave_the_good_checkpoint(tmp_path):
    odd = written(tmp_path / "odd.yaml", ODD)
    words = ["world.trouble=nan", "world.after=13", "world.lengths=[4]", "train.total_steps=960"]
    with pytest.raises(Diverged, match="group 'all': learning diverged"):
        train(tmp_path / "learning", *words, experiment=odd)
    run = Run.open(tmp_path / "learning")
    assert iterations(run) == [0, 1, 2]
    good = run.load_checkpoint("last")
    assert good["env_steps"] == 48
    assert all(np.isfinite(array).all() for array in good["policies"]["all"]["net"].values())
    with pytest.raises(CoterieError, match="metric 'all/return_mean' is nan"):
        train(tmp_path / "frozen", *words, "groups.all.learner=null", experiment=odd)
    with pytest.raises(CoterieError, match="the mean return of an evaluation is nan"):
        train(tmp_path / "at once", *words, "world.after=5", experiment=odd)
    assert not (tmp_path / "at once").exists()  # nothing was recorded


@pytest.mark.slow
def test_a_diverged_run_can_be_resumed_with_a_smaller_learning_rate(tmp_path):
    with pytest.raises(Diverged):
        train(tmp_path / "run", "groups.team.learner.learning_rate=1e30", "train.checkpoint_every=1")
    assert run_cases.coterie.resume(tmp_path / "run", ["groups.team.learner.learning_rate=1e-3"], quiet=True)
    same = train(tmp_path / "same", "groups.team.learner.learning_rate=1e-3", "train.checkpoint_every=1")
    run = Run.open(tmp_path / "run")
    assert numbers(run) == numbers(same)
    assert files(run.checkpoint_path(256)) == files(same.checkpoint_path(256))


# Where a run goes ---------------------------------------------------------------------------------------


def test_the_default_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loop.time, "strftime", lambda form: "20260102-030405")
    loaded = schema.load("gridworld-cooperative", ["seed=7"])
    path = loop.run_directory(loaded, None)
    assert str(path) == "runs/gridworld-cooperative/20260102-030405-seed7"
    path.mkdir(parents=True)
    assert loop.run_directory(loaded, None).name == "20260102-030405-seed7-2"
    assert loop.run_directory(loaded, "here") == run_cases.Path("here")
