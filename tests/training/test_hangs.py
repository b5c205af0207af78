"""Environments that hang or crash: every wait ends and names what was waited for, wherever the environment plays."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

import coterie
from coterie.config import schema
from coterie.core import heartbeat, signals
from coterie.core.heartbeat import Activity, Heartbeat, Patience
from coterie.runs import interrupt
from coterie.training import workers
from coterie.training.workers import WorkerError
from helpers.needs import needs
from helpers.processes import Command, impatient, session_of
from helpers.run import ODD, QUIET, assert_same_end, written

TINY = [
    *("train.total_steps=128", "train.num_envs=4", "train.rollout_steps=8", "train.evaluate_episodes=2", *QUIET),
    *("train.shards=2", "world.name=gymnasium/helpers.external_envs:Broken-v0"),
]
NAME = r"gymnasium/helpers\.external_envs:Broken-v0"
GUARDED = ["world.restarts=50", "world.timeout=1"]


def options(defect, **more):
    given = {"defect": defect} | more
    return "world.options={" + ", ".join(f"{key}: {value}" for key, value in given.items()) + "}"


def train(out, *words):
    return coterie.train("cartpole-ppo", [*TINY, *words], out=out, quiet=True)


def rare(defect, **more):
    """Two training episodes fail, none of the evaluations; the first is episode 1 of copy 1 in shard 1."""
    return options(defect, odd_seeds_only="true", one_in=8, **more)


# Restarts -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def restarted(tmp_path_factory):
    """A run whose failed episodes were truncated in this process, where an environment can only raise."""
    run = train(tmp_path_factory.mktemp("restarted") / "run", rare("raise"), "world.restarts=50", "world.processes=0")
    assert sum(shard["world"]["restarts"] for shard in run.load_checkpoint("last")["shards"]) == 2
    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("defect", "words"),
    [
        ("raise", ["world.processes=1"]),
        ("hang", []),
        ("hold", ["train.workers=2"]),
        ("segfault", ["train.workers=1", "world.processes=2"]),
        pytest.param("hang", ["train.workers=2", "train.ray.address=local"], marks=needs("ray", "ray")),
    ],
)
def test_restarts_give_the_same_numbers_in_every_kind_of_place(defect, words, restarted, tmp_path):
    """Episodes that hang or crash are truncated where they would have raised, and the run goes on."""
    assert_same_end(train(tmp_path / "run", rare(defect), *GUARDED, *words), restarted)


# Names ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("defect", "what"),
    [("hang", r"no sign of life for 1 s \(world\.timeout\)"), ("exit", "its process exited with code 7")],
)
def test_a_worker_that_is_lost_names_environment_copy_seed_and_step(defect, what, tmp_path, forked):
    with pytest.raises(WorkerError) as caught:
        train(tmp_path / "run", rare(defect), "world.timeout=1", "train.workers=2")
    place = rf"the worker playing shards \[1\]: {NAME}, copy 1, episode 1 \(seed \d+\), step 3: "
    cure = r"; world\.restarts=N truncates .*; 'coterie resume' continues from the last checkpoint"
    assert re.fullmatch(place + what + cure, str(caught.value))


@pytest.mark.slow
def test_a_world_of_ones_own_that_hangs_in_a_worker_is_named(tmp_path, forked):
    words = ["world.trouble=sleep", "world.after=0", "train.workers=1", "train.timeout=1"]
    loaded = schema.load(str(written(tmp_path / "odd.yaml", ODD)), words)
    play = workers.start(loaded, [])
    try:
        with pytest.raises(WorkerError, match=r"shards \[0\]: helpers\.run:Odd, all copies, step 1: .*train\.timeout"):
            play.play(1)
    finally:
        play.close()


@pytest.mark.slow
def test_a_slow_environment_is_not_taken_for_one_that_hangs(tmp_path, forked):
    """Each step of a batch takes longer than one environment may, and the iteration much longer."""
    words = [options("slow"), "train.num_envs=8", "train.shards=1", "train.evaluate_episodes=1", "train.total_steps=64"]
    slow = train(tmp_path / "slow", *words, "train.workers=1", "world.timeout=2", "train.timeout=5")
    assert slow.metrics()[-1]["env_steps"] == 64


@pytest.mark.slow
def test_an_environment_that_hangs_in_this_process_is_named_and_ctrl_c_ends_it(tmp_path):
    command = start(tmp_path / "run", options("hang"), "world.timeout=1")
    wait(lambda: "no sign of life" in command.err, command)
    assert re.search(
        NAME + r", copy 0, episode 0 \(seed \d+\), step 3: no sign of life for 1 s; Ctrl-C ends it; ", command.err
    )
    assert "world.processes=1 lets such environments be killed, world.restarts=N lets the run go on" in command.err
    took = stop(command, signal.SIGINT)
    assert (command.returncode, took < 8) == (130, True), command.err
    assert not (tmp_path / "run").exists()  # nothing was learned


# Ctrl-C ---------------------------------------------------------------------------------------------------


def start(out, *words):
    return Command("train", "cartpole-ppo", *TINY, *words, "--out", out, session=True, before=impatient)


def wait(reached, command, seconds=60):
    end = time.monotonic() + seconds
    while not reached():
        assert command.poll() is None, command.err
        assert time.monotonic() < end, command.err
        time.sleep(0.05)


def start_and_hang(folder, place, defect):
    """A command whose environment plays a step that does not end."""
    marker = folder / "marker"
    command = start(folder / "run", rare(defect, marker=marker), *PLACES[place])
    wait(marker.exists, command)
    return command


def stop(command, *numbers):
    """Signal the command and its children, as a terminal does; returns the seconds until it ends."""
    since = time.monotonic()
    for number in numbers:
        os.killpg(command.pid, number)
        time.sleep(0.3)
    command.communicate(timeout=30)
    return time.monotonic() - since


def assert_nothing_is_left(command):
    end = time.monotonic() + 10
    while (left := session_of(command.pid)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not left
    assert not list(Path("/dev/shm").glob(f"pym-{command.pid}-*"))


PLACES = {
    "worker": ["train.workers=2"],
    "process": ["world.processes=1"],
    "process of a worker": ["train.workers=2", "world.processes=1"],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "defect"), [("worker", "hold"), ("process", "hang"), ("process of a worker", "hold")]
)
def test_ctrl_c_reaches_a_run_whose_environment_hangs(place, defect, tmp_path):
    command = start_and_hang(tmp_path, place, defect)
    took = stop(command, signal.SIGINT)
    assert command.returncode == 130, command.err
    assert took < 8, command.err
    assert re.search(r"copy 1, episode 1 \(seed \d+\), step 3: no sign of life for \d+ s", command.err)
    assert "Traceback" not in command.err
    assert f"continue with: coterie resume {tmp_path / 'run'}" in command.out
    assert_nothing_is_left(command)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["worker", "process of a worker"])
def test_a_second_ctrl_c_ends_a_hanging_run_at_once(place, tmp_path):
    command = start_and_hang(tmp_path, place, "hold")
    assert stop(command, signal.SIGINT, signal.SIGINT) < 4
    assert command.returncode == 130, command.err
    assert_nothing_is_left(command)


@pytest.mark.slow
def test_code_that_does_not_return_to_python_ends_with_ctrl_c(tmp_path):
    command = start(tmp_path / "run", options("stuck"), "world.timeout=1")
    wait(lambda: "no sign of life" in command.err, command)
    assert stop(command, signal.SIGINT) < 12
    assert command.returncode == 130
    assert "killed at once: gymnasium/" in command.err
    assert_nothing_is_left(command)


@pytest.mark.slow
@pytest.mark.parametrize("defect", ["hang", "hold"])
def test_processes_end_with_the_command_however_it_ends(defect, tmp_path):
    command = start_and_hang(tmp_path, "process of a worker", defect)
    assert len(session_of(command.pid)) >= 4
    os.kill(command.pid, signal.SIGKILL)
    assert_nothing_is_left(command)


# Heartbeats -----------------------------------------------------------------------------------------------


class Clock:
    now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(heartbeat, "time", clock)
    return clock


def test_silence_counts_from_the_last_sign_of_life(clock):
    patience, own = Patience(3.0), Heartbeat()
    hangs = []
    for moment in range(12):
        clock.now += 0.5
        if moment == 4:
            own.beat()
        hangs.append(patience.look(own.read()))
    assert hangs.index(True) == 10  # 3 s after the fifth look, which saw the sign


def test_a_step_may_take_as_long_as_its_world_allows(clock):
    patience, own = Patience(3.0), Heartbeat()
    own.enter(limit=1.0, copy=2, episode=5, step=7, seed=11)
    patience.look(own.read())
    clock.now += 1.0
    assert patience.look(own.read())
    assert patience.activity.where("x/Y") == "x/Y, copy 2, episode 5 (seed 11), step 7"
    own.leave()
    clock.now += 1.0
    assert not patience.look(own.read())


def test_nobody_is_silent_while_everything_is_stopped(clock):
    """Ctrl-Z for an hour is one look."""
    patience = Patience(3.0)
    clock.now += 3600.0
    assert not patience.look(Activity())
    assert patience.silent == 1.0


def test_places_in_words():
    assert "outside of environments" in Activity().where("w")
    assert Activity(in_world=True).where("w") == "w, all copies, when it is built"
    assert Activity(in_world=True, copy=1).where("w") == "w, copy 1, when it is built"
    assert Activity(in_world=True, step=0).where("w") == "w, all copies, reset"


def test_an_interrupted_wait_names_its_place(monkeypatch):
    patience, own = Patience(300.0), Heartbeat()
    own.enter(limit=60.0, copy=0, episode=1, step=2, seed=3)
    patience.look(own.read())
    patience.silent = heartbeat.GRACE
    patience.leave_if_asked("w")
    monkeypatch.setattr(signals, "stop_asked", interrupt.Interruption())
    signals.stop_asked.set()
    with pytest.raises(
        signals.Interrupted, match=r"stopped by a signal; w, copy 0, episode 1 \(seed 3\), step 2: no sign"
    ):
        patience.leave_if_asked("w")
    own.leave()
    patience.look(own.read())
    patience.silent = 200.0
    patience.leave_if_asked("w")  # a language model may take its time


# Settings -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["train.timeout=0", "world.timeout=0", "train.timeout=-1", "world.timeout=.nan"])
def test_a_deadline_is_above_0(word):
    with pytest.raises(schema.ConfigError, match=r"^(train|world).*timeout.*(must be above 0|finite numbers)"):
        schema.load("cartpole-ppo", ["world.name=gymnasium/CartPole-v1", word])


def test_restarts_need_a_process_and_get_one():
    def processes(*words):
        return schema.load("cartpole-ppo", ["world.name=gymnasium/CartPole-v1", *words]).world.settings.child_processes

    assert [processes(), processes("world.restarts=1"), processes("world.restarts=1", "world.processes=0")] == [0, 1, 0]
    assert processes("train.workers=2", "world.processes=3") == 3
