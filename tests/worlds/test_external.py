"""Guests fail by name, restart within their budget, live in processes of their own, and resume by replay."""

import gc
import logging
import multiprocessing
import os
import re
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import coterie
from coterie.config import registry, schema
from coterie.core import seeding
from coterie.core.types import CoterieError
from coterie.testing.learners import check_world, random_actions
from coterie.training import checkpoint
from coterie.training.build import build_world
from coterie.worlds.adapters.batch import ExternalEnvError, as_text
from coterie.worlds.adapters.external import newest
from coterie.worlds.adapters.gymnasium import GymnasiumSettings, GymnasiumWorld
from coterie.worlds.adapters.pettingzoo import PettingzooSettings, PettingzooWorld

DOCS = Path(__file__).parent.parent.parent / "docs"


def broken(num_envs=2, defect="", options=None, **settings):
    options = {"defect": defect} | (options or {})
    return GymnasiumWorld(GymnasiumSettings("helpers.guest:Broken-v0", options, **settings), num_envs)


def play(world, steps, seed=0, timestep=None):
    """Copies of what was told at every tick."""
    random = seeding.generator(seed, "play")
    timestep = world.reset(seed) if timestep is None else timestep
    told = []
    for _ in range(steps):
        timestep = world.step(random_actions(timestep, world.agent_types, random))
        told.append(
            {name: _copied(agent_step) for name, agent_step in timestep.agent_types.items()}
            | {"ended": timestep.ended.copy()}
        )
    return told


def _copied(agent_step):
    return {field: getattr(agent_step, field).copy() for field in ("observation", "acting", "reward", "truncated")}


def assert_equal(one, other, num_envs=slice(None)):
    for step, (a, b) in enumerate(zip(one, other, strict=True)):
        np.testing.assert_array_equal(a["ended"][num_envs], b["ended"][num_envs], err_msg=f"step {step}")
        for name in a.keys() - {"ended"}:
            for field in a[name]:
                np.testing.assert_array_equal(
                    a[name][field][num_envs], b[name][field][num_envs], err_msg=f"step {step}, {name}, {field}"
                )


# Failures in this process -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("defect", "message"),
    [
        ("raise", r"raised ValueError: the ball is lost \(guest\.py:\d+, strike\)"),
        ("system exit", r"raised SystemExit: 3"),
        ("nan", r"expected finite numbers in observation, got nan at \[1\]"),
        ("reward nan", r"expected a finite reward, got nan"),
        ("reward text", r"expected reward to be a number, got str 'much'"),
        ("shape", r"expected observation of shape \(2,\), got \(3,\)"),
        ("broadcast", r"expected observation of shape \(2,\), got \(1,\)"),
        ("dtype", r"expected observation of type float32, got float64"),
        ("list", r"expected observation to be an array, got list \[0.0, 1.0\]"),
        ("flag", r"expected terminated to be a bool, got int 1"),
        ("four", r"expected step to return \(observation, .*\), got 4 values"),
    ],
)
def test_a_failure_says_which_environment_copy_and_step_and_what_was_expected(defect, message):
    where = r"^gymnasium/helpers.guest:Broken-v0, copy 0, episode 0, step 3: "
    with pytest.raises(ExternalEnvError, match=where + message):
        play(broken(defect=defect), 6)


def test_a_guest_that_cannot_be_built_or_reset_says_so():
    with pytest.raises(ExternalEnvError, match=r"Broken-v0: cannot be built: raised RuntimeError: no licence"):
        broken(defect="constructor")
    with pytest.raises(ExternalEnvError, match=r"copy 0, episode 0, reset: raised RuntimeError: cannot begin"):
        broken(defect="reset").reset(0)


@pytest.mark.parametrize("defect", ["raise", "nan", "shape"])
def test_a_failed_episode_is_cut_at_its_last_good_observation(defect, tmp_path, caplog):
    """Only the first copy fails, and only once; the second plays as if nothing had happened."""
    world = broken(defect=defect, options={"mark": str(tmp_path / "mark")}, restarts=1)
    told, sound = play(world, 20), play(broken(restarts=1), 20)
    assert_equal(told[:2], sound[:2])
    assert_equal(told, sound, slice(1, 2))
    assert told[2]["ended"].tolist() == [True, False]
    assert told[2]["agent"]["truncated"][0, 0]
    assert told[2]["agent"]["reward"][0, 0] == 0
    assert world.inner.restarts == 1
    assert "copy 0, episode 0, step 3" in caplog.text


def test_the_last_good_observation_is_the_final_one(tmp_path):
    world = broken(defect="nan", options={"mark": str(tmp_path / "mark")}, restarts=1)
    told = play(world, 2)
    last = told[-1]["agent"]["observation"].copy()
    timestep = world.step({"agent": np.zeros((2, 1), np.int64)})
    np.testing.assert_array_equal(timestep.agent_types["agent"].final_observation[0], last[0])
    assert timestep.agent_types["agent"].observation[0, 0, 0] == 0  # a new episode


def test_the_budget_of_restarts_is_kept():
    world = broken(defect="raise", restarts=3)
    with pytest.raises(ExternalEnvError, match=r"\(all 3 restarts are used up\)"):
        play(world, 20)
    assert world.inner.restarts == 3


def test_a_guest_that_cannot_be_built_again_uses_up_the_budget(tmp_path):
    world = broken(defect="rebuild", options={"mark": str(tmp_path / "mark")}, restarts=2)
    with pytest.raises(
        ExternalEnvError, match=r"copy 0, episode 2, reset: raised RuntimeError: no licence .*all 2 restarts"
    ):
        play(world, 6)


def test_an_illegal_action_is_the_callers_mistake():
    world = broken()
    world.reset(0)
    with pytest.raises(ValueError, match=r"copy 1, agent 'agent_0': expected an action of Discrete\(n=3\), got 3"):
        world.step({"agent": np.array([[0], [3]])})
    with pytest.raises(ValueError, match=r"must have shape \(2, 1\), got \(2,\)"):
        world.step({"agent": np.array([0, 0])})


# Processes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("defect", "message"),
    [
        ("hang", r"hangs: no answer within 1.5 seconds"),
        ("exit", r"its process exited with code 7"),
        ("segfault", r"its process was killed by SIGSEGV"),
        ("raise", r"raised ValueError: the ball is lost"),
    ],
)
def test_a_child_that_hangs_or_dies_is_named(defect, message):
    world = broken(defect=defect, options={"odd_seeds_only": True}, processes=1, timeout=1.5)
    seed = next(s for s in range(99) if _odd(s, 0, 0) == 0 and _odd(s, 1, 0))
    with pytest.raises(ExternalEnvError, match=r"Broken-v0, copy 1, episode 0, step 3: " + message):
        play(world, 6, seed)
    world.inner.close()
    assert not multiprocessing.active_children()


def _odd(seed, copy, episode):
    return seeding.integer(seed, "guest", copy, episode) % 2


def test_a_crash_costs_one_episode_of_one_copy(tmp_path, caplog):
    """Copy 1 of 3 in one process dies: copy 0 had already been stepped, copy 2 not yet; both go on unharmed."""
    seed = next(s for s in range(99) if _odd(s, 0, 0) == 0 and _odd(s, 1, 0))
    options = {"odd_seeds_only": True, "mark": str(tmp_path / "mark")}
    world = broken(3, "segfault", options, processes=1, restarts=2)
    told, sound = play(world, 14, seed), play(broken(3), 14, seed)
    assert_equal(told[:2], sound[:2])
    assert_equal(told, sound, [0, 2])
    assert told[2]["ended"].tolist() == [False, True, False]
    assert told[2]["agent"]["truncated"][:, 0].tolist() == [False, True, False]
    assert world.inner.restarts == 1
    assert "copy 1, episode 0, step 3: its process was killed by SIGSEGV; restart 1" in caplog.text
    world.inner.close()


@pytest.mark.parametrize("family", ["gymnasium", "pettingzoo"])
def test_processes_change_nothing(family):
    """Three copies in two processes tell what they tell in one, and states go from one to the other."""
    if family == "gymnasium":
        make = lambda k: broken(3, processes=k)  # noqa: E731
    else:
        make = lambda k: PettingzooWorld(PettingzooSettings("helpers.guest:Coming", processes=k), 3)  # noqa: E731
    apart, together = make(2), make(0)
    assert_equal(play(apart, 9), play(together, 9))
    state = apart.save()
    assert_equal(play(apart, 9, 1, apart.load(state)), play(together, 9, 1, together.load(state)))
    apart.inner.close()


def test_a_run_of_copies_in_child_processes_is_the_same_run(tmp_path):
    words = [
        "world.name=gymnasium/helpers.guest:Broken-v0",
        "train.total_steps=64",
        "train.num_envs=4",
        "train.rollout_steps=8",
    ]
    words += ["train.evaluate_episodes=1", "train.video=false", "train.tensorboard=false"]
    runs = [
        coterie.train("cartpole-ppo", [*words, f"world.processes={k}"], out=tmp_path / str(k), quiet=True)
        for k in (0, 2)
    ]
    apart, together = ([{k: v for k, v in r.items() if k != "wall_s"} for r in run.metrics()] for run in runs)
    assert apart == together
    assert len(apart) == 3


def test_no_process_outlives_its_world():
    world = broken(2, processes=2)
    world.reset(0)
    children = multiprocessing.active_children()
    assert len(children) == 2
    pids = [child.pid for child in children]
    del world
    gc.collect()
    assert not multiprocessing.active_children()
    for pid in pids:
        with pytest.raises(ProcessLookupError):  # collected, not a zombie
            os.kill(pid, 0)


def test_an_environment_that_cannot_be_built_in_a_child_says_so():
    with pytest.raises(ExternalEnvError, match=r"cannot be built: raised RuntimeError: no licence"):
        broken(defect="constructor", processes=1)
    with pytest.raises(CoterieError, match="no such environment is registered"):
        GymnasiumWorld(GymnasiumSettings("Nothing-v0", processes=1), 1)
    assert not multiprocessing.active_children()


def test_a_worker_may_not_have_children_of_its_own(monkeypatch):
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    with pytest.raises(CoterieError, match=r"world\.processes and train\.workers cannot be used together"):
        broken(2, processes=1)


# Resume -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("gymnasium/CartPole-v1", {}),
        ("gymnasium/CartPole-v1", {"native": False}),
        ("gymnasium/LunarLander-v3", {}),
        ("gymnasium/helpers.guest:Nested-v0", {}),
        ("minigrid/DoorKey-5x5", {}),
        ("pettingzoo/classic/connect_four", {}),
        ("pettingzoo/helpers.guest:Coming", {}),
        ("mpe/simple_tag", {}),
    ],
)
def test_a_checkpoint_resumes_exactly(name, settings, tmp_path):
    part = schema.part(registry.WORLDS, {"name": name} | settings, "world")
    world, again = build_world(part, 3), build_world(part, 3)
    play(world, 37)
    checkpoint.save(tmp_path / "state", world.save())
    state = checkpoint.load(tmp_path / "state")
    expected = play_plain(world, 20, world.load(state))
    np.testing.assert_equal(play_plain(again, 20, again.load(state)), expected)


def play_plain(world, steps, timestep):
    random, told = seeding.generator(7, "on"), []
    for _ in range(steps):
        timestep = world.step(random_actions(timestep, world.agent_types, random))
        for agent_step in timestep.agent_types.values():
            parts = (
                agent_step.observation.values()
                if isinstance(agent_step.observation, dict)
                else [agent_step.observation]
            )
            told += [part.copy() for part in parts] + [agent_step.reward.copy(), agent_step.acting.copy()]
    return told


def test_a_long_history_is_kept_whole():
    world = GymnasiumWorld(GymnasiumSettings("MountainCar-v0", max_episode_steps=700), 2)
    play(world, 650)
    state = world.save()
    assert state["actions"]["agent"].shape == (1300, 1)
    other = GymnasiumWorld(GymnasiumSettings("MountainCar-v0", max_episode_steps=700), 2)
    np.testing.assert_equal(play_plain(other, 80, other.load(state)), play_plain(world, 80, world.load(state)))


def test_a_replay_that_differs_is_named_and_its_episode_starts_anew(caplog):
    world = GymnasiumWorld(GymnasiumSettings("helpers.guest:Forgetful-v0"), 2)
    play(world, 7)
    state = world.save()
    other = GymnasiumWorld(GymnasiumSettings("helpers.guest:Forgetful-v0"), 2)
    with caplog.at_level(logging.WARNING, "coterie"):
        timestep = other.load(state)
    assert "Forgetful-v0, copy 0: replay differs (the last observation is another)" in caplog.text
    assert "copy 1: replay differs" in caplog.text
    assert "world.fresh: true" in caplog.text
    np.testing.assert_array_equal(timestep.agent_types["agent"].observation, 0)
    assert len(play_plain(other, 6, timestep)) == 18
    check_world(lambda n: GymnasiumWorld(GymnasiumSettings("helpers.guest:Forgetful-v0", fresh=True), n), 30)


def test_a_state_of_another_size_is_refused():
    world = broken(2)
    world.reset(0)
    with pytest.raises(ValueError, match="state holds 2 copies, this world has 3"):
        broken(3).load(world.save())


# Small things -----------------------------------------------------------------------------------------


def test_settings_are_checked():
    for wrong, message in (
        ({"processes": -1}, "processes must be at least 0"),
        ({"timeout": 0.0}, "timeout must be above 0"),
        ({"restarts": -1}, "restarts must be at least 0"),
        ({"max_episode_steps": 0}, "max_episode_steps must be at least 1"),
    ):
        with pytest.raises(schema.ConfigError, match=f"world: {message}"):
            schema.part(registry.WORLDS, {"name": "gymnasium/CartPole-v1"} | wrong, "world")


def test_the_newest_version_is_found():
    known = ["a_v2", "a_v10", "a_b_v3", "X-v1"]
    assert [newest(name, known) for name in ("a", "a_v2", "a_b", "X", "b")] == ["a_v10", "a_v2", "a_b_v3", "X-v1", None]


def test_a_picture_becomes_text():
    picture = np.zeros((4, 2, 3), np.uint8)
    picture[0] = 255
    lines = as_text(picture).splitlines()
    assert len(lines) == 2
    assert lines[0].count("▀") == 2
    assert lines[0].startswith("\x1b[38;2;255;255;255m\x1b[48;2;0;0;0m▀")


def test_the_world_in_the_docs_keeps_the_contract(tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "adapters.md").read_text(), re.S)
    code = next(block for block in blocks if "class Coin" in block)
    assert len(code.strip().splitlines()) <= 45
    (tmp_path / "coins.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    part = schema.part(registry.WORLDS, {"name": "coins:Coins", "sides": 3}, "world")
    start = time.monotonic()
    check_world(lambda num_envs: build_world(part, num_envs))
    assert time.monotonic() - start < 20
    sys.modules.pop("coins")
