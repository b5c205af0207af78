"""Worlds of third-party environments: failures, restarts, child processes, resume by replay."""

import gc
import logging
import multiprocessing
import os
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import coterie
from coterie.config import registry, schema
from coterie.core import seeding
from coterie.core.sampling import random_actions
from coterie.core.types import CoterieError
from coterie.runs import checkpoint
from coterie.testing import check_world
from coterie.training.build import build_groups, build_world
from coterie.training.evaluate import evaluate
from coterie.worlds.adapters.batch import ExternalEnvError, has_own_limit
from coterie.worlds.adapters.external import latest_version, picture_to_ansi
from coterie.worlds.adapters.gymnasium import GymnasiumSettings, GymnasiumWorld
from coterie.worlds.adapters.pettingzoo import PettingZooSettings, PettingZooWorld
from helpers import external_envs


def broken(num_envs=2, defect="", options=None, **settings):
    options = {"defect": defect} | (options or {})
    return GymnasiumWorld(GymnasiumSettings("helpers.external_envs:Broken-v0", options, **settings), num_envs)


def play(world, steps, seed=0, timestep=None):
    """Copies of the time steps of a random rollout."""
    draw = seeding.generator(seed, "play")
    timestep = world.reset(seed) if timestep is None else timestep
    rollout = []
    for _ in range(steps):
        timestep = world.step(random_actions(timestep, world.agent_types, draw))
        rollout.append(
            {name: _copied(agent_step) for name, agent_step in timestep.agent_types.items()}
            | {"ended": timestep.ended.copy()}
        )
    return rollout


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
        ("raise", r"raised ValueError: the ball is lost \(external_envs\.py:\d+, raise_error\)"),
        ("system exit", r"raised SystemExit: 3"),
        ("nan", r"expected finite numbers in observation, got nan at \[1\]"),
        ("reward nan", r"expected a finite reward, got nan"),
        ("reward text", r"expected reward to be a number, got str 'much'"),
        ("shape", r"expected observation of shape \(2,\), got \(3,\)"),
        ("broadcast", r"expected observation of shape \(2,\), got \(1,\)"),
        ("text", r"expected observation to be an array, got str 'north'"),
        ("flag text", r"expected terminated to be a bool, got str 'yes'"),
        ("four", r"expected step to return \(observation, .*\), got 4 values"),
    ],
)
def test_a_failure_names_environment_copy_step_and_expectation(defect, message):
    where = r"^gymnasium/helpers.external_envs:Broken-v0, copy 0, episode 0, step 3: "
    with pytest.raises(ExternalEnvError, match=where + message):
        play(broken(defect=defect), 6)


def test_an_environment_that_cannot_be_built_or_reset_is_an_error():
    with pytest.raises(ExternalEnvError, match=r"Broken-v0: cannot be built: raised RuntimeError: no licence"):
        broken(defect="constructor")
    with pytest.raises(ExternalEnvError, match=r"copy 0, episode 0, reset: raised RuntimeError: cannot begin"):
        broken(defect="reset").reset(0)


@pytest.mark.parametrize("defect", ["raise", "nan", "shape"])
def test_a_failed_episode_is_truncated(defect, tmp_path, caplog):
    """Only the first copy fails, and only once; the second is unaffected."""
    world = broken(defect=defect, options={"marker": str(tmp_path / "marker")}, restarts=1)
    rollout, expected = play(world, 20), play(broken(restarts=1), 20)
    assert_equal(rollout[:2], expected[:2])
    assert_equal(rollout, expected, slice(1, 2))
    assert rollout[2]["ended"].tolist() == [True, False]
    assert rollout[2]["agent"]["truncated"][0, 0]
    assert rollout[2]["agent"]["reward"][0, 0] == 0
    assert world.inner.restarts == 1
    assert "copy 0, episode 0, step 3" in caplog.text


def test_the_last_valid_observation_is_the_final_one(tmp_path):
    world = broken(defect="nan", options={"marker": str(tmp_path / "marker")}, restarts=1)
    rollout = play(world, 2)
    last = rollout[-1]["agent"]["observation"].copy()
    timestep = world.step({"agent": np.zeros((2, 1), np.int64)})
    np.testing.assert_array_equal(timestep.agent_types["agent"].final_observation[0], last[0])
    assert timestep.agent_types["agent"].observation[0, 0, 0] == 0  # a new episode


def test_failures_beyond_the_restarts_are_an_error():
    world = broken(defect="raise", restarts=3)
    with pytest.raises(ExternalEnvError, match=r"all 3 restarts"):
        play(world, 20)
    assert world.inner.restarts == 3


def test_an_environment_that_cannot_be_rebuilt_uses_up_the_restarts(tmp_path):
    world = broken(defect="rebuild", options={"marker": str(tmp_path / "marker")}, restarts=2)
    with pytest.raises(
        ExternalEnvError, match=r"copy 0, episode 2, reset: raised RuntimeError: no licence .*all 2 restarts"
    ):
        play(world, 6)


def test_an_action_outside_its_space_is_a_value_error():
    world = broken()
    world.reset(0)
    with pytest.raises(ValueError, match=r"copy 1, agent 'agent_0': expected an action of Discrete\(n=3\), got 3"):
        world.step({"agent": np.array([[0], [3]])})
    with pytest.raises(ValueError, match=r"must have shape \(2, 1\), got \(2,\)"):
        world.step({"agent": np.array([0, 0])})


# Processes --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("defect", "message"),
    [
        ("hang", r"no reply within 1.5 seconds"),
        ("exit", r"its process exited with code 7"),
        ("segfault", r"its process was killed by SIGSEGV"),
        ("raise", r"raised ValueError: the ball is lost"),
    ],
)
def test_a_child_process_that_hangs_or_dies_is_named(defect, message):
    world = broken(defect=defect, options={"odd_seeds_only": True}, processes=1, timeout=1.5)
    seed = next(s for s in range(99) if _odd(s, 0, 0) == 0 and _odd(s, 1, 0))
    with pytest.raises(ExternalEnvError, match=r"Broken-v0, copy 1, episode 0, step 3: " + message):
        play(world, 6, seed)
    world.inner.close()
    assert not multiprocessing.active_children()


def _odd(seed, copy, episode):
    return seeding.integer(seed, "guest", copy, episode) % 2


@pytest.mark.slow
def test_a_crash_costs_one_episode_of_one_copy(tmp_path, caplog):
    """Copy 1 of 3 in one process dies after copy 0 was stepped and before copy 2; the other copies are unaffected."""
    seed = next(s for s in range(99) if _odd(s, 0, 0) == 0 and _odd(s, 1, 0))
    options = {"odd_seeds_only": True, "marker": str(tmp_path / "marker")}
    world = broken(3, "segfault", options, processes=1, restarts=2)
    rollout, expected = play(world, 14, seed), play(broken(3), 14, seed)
    assert_equal(rollout[:2], expected[:2])
    assert_equal(rollout, expected, [0, 2])
    assert rollout[2]["ended"].tolist() == [False, True, False]
    assert rollout[2]["agent"]["truncated"][:, 0].tolist() == [False, True, False]
    assert world.inner.restarts == 1
    assert "copy 1, episode 0, step 3: its process was killed by SIGSEGV; restart 1" in caplog.text
    world.inner.close()


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gymnasium", "pettingzoo"])
def test_child_processes_do_not_change_the_rollout(family):
    """Three copies in two processes equal three in this process, and can load each other's states."""
    if family == "gymnasium":
        make = lambda k: broken(3, processes=k)  # noqa: E731
    else:
        make = lambda k: PettingZooWorld(PettingZooSettings("helpers.external_envs:Changing", processes=k), 3)  # noqa: E731
    children, local = make(2), make(0)
    assert_equal(play(children, 9), play(local, 9))
    state = children.save()
    assert_equal(play(children, 9, 1, children.load(state)), play(local, 9, 1, local.load(state)))
    children.inner.close()


@pytest.mark.slow
def test_child_processes_do_not_change_a_run(tmp_path, forked):
    overrides = [
        "world.name=gymnasium/helpers.external_envs:Broken-v0",
        "train.total_steps=64",
        "train.num_envs=4",
        "train.rollout_steps=8",
    ]
    overrides += ["train.evaluate_episodes=1", "train.video=false", "train.tensorboard=false"]
    runs = [
        coterie.train("cartpole-ppo", [*overrides, f"world.processes={k}"], out=tmp_path / str(k), quiet=True)
        for k in (0, 2)
    ]
    local, children = ([{k: v for k, v in r.items() if k != "wall_s"} for r in run.metrics()] for run in runs)
    assert local == children
    assert len(local) == 3


@pytest.mark.slow
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


@pytest.mark.slow
def test_an_environment_that_cannot_be_built_in_a_child_process_is_an_error():
    with pytest.raises(ExternalEnvError, match=r"cannot be built: raised RuntimeError: no licence"):
        broken(defect="constructor", processes=1)
    with pytest.raises(CoterieError, match="no such environment is registered"):
        GymnasiumWorld(GymnasiumSettings("Nothing-v0", processes=1), 1)
    assert not multiprocessing.active_children()


def test_processes_and_train_workers_exclude_each_other(monkeypatch):
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    with pytest.raises(CoterieError, match=r"world\.processes.*train\.workers"):
        broken(2, processes=1)


# Resume -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("gymnasium/CartPole-v1", {}),
        ("gymnasium/CartPole-v1", {"native": False}),
        ("gymnasium/LunarLander-v3", {}),
        ("gymnasium/helpers.external_envs:Nested-v0", {}),
        ("minigrid/DoorKey-5x5", {}),
        ("pettingzoo/classic/connect_four", {}),
        ("pettingzoo/helpers.external_envs:Changing", {}),
        ("mpe/simple_tag", {}),
    ],
)
def test_a_checkpoint_resumes_exactly(name, settings, tmp_path):
    part = schema.part(registry.WORLDS, {"name": name} | settings, "world")
    world, again = build_world(part, 3), build_world(part, 3)
    play(world, 37)
    checkpoint.save(tmp_path / "state", world.save())
    state = checkpoint.load(tmp_path / "state")
    expected = play_arrays(world, 20, world.load(state))
    np.testing.assert_equal(play_arrays(again, 20, again.load(state)), expected)


def play_arrays(world, steps, timestep):
    draw, arrays = seeding.generator(7, "on"), []
    for _ in range(steps):
        timestep = world.step(random_actions(timestep, world.agent_types, draw))
        for agent_step in timestep.agent_types.values():
            parts = (
                agent_step.observation.values()
                if isinstance(agent_step.observation, dict)
                else [agent_step.observation]
            )
            arrays += [part.copy() for part in parts] + [agent_step.reward.copy(), agent_step.acting.copy()]
    return arrays


@pytest.mark.parametrize(
    ("name", "settings", "known"),
    [("CliffWalking-v1", {}, False), ("CliffWalking-v1", {"max_episode_steps": 9}, True), ("MountainCar-v0", {}, True)],
)
def test_a_world_tells_whether_its_episodes_have_a_limit(name, settings, known):
    assert GymnasiumWorld(GymnasiumSettings(name, **settings), 1).limits_episodes == known


def test_a_limit_that_an_environment_keeps_itself_is_known():
    assert not has_own_limit(SimpleNamespace(unwrapped=SimpleNamespace()))
    assert has_own_limit(SimpleNamespace(unwrapped=SimpleNamespace(max_cycles=900)))
    atari = SimpleNamespace(kwargs={"max_num_frames_per_episode": 108_000})
    assert has_own_limit(SimpleNamespace(unwrapped=SimpleNamespace(), spec=atari))


def test_long_episodes_are_saved_completely():
    world = GymnasiumWorld(GymnasiumSettings("MountainCar-v0", max_episode_steps=700), 2)
    play(world, 650)
    state = world.save()
    assert state["actions"]["agent"].shape == (1300, 1)
    other = GymnasiumWorld(GymnasiumSettings("MountainCar-v0", max_episode_steps=700), 2)
    np.testing.assert_equal(play_arrays(other, 80, other.load(state)), play_arrays(world, 80, world.load(state)))


def test_a_replay_that_differs_is_logged_and_its_episode_starts_again(caplog):
    world = GymnasiumWorld(GymnasiumSettings("helpers.external_envs:Stateful-v0"), 2)
    play(world, 7)
    state = world.save()
    other = GymnasiumWorld(GymnasiumSettings("helpers.external_envs:Stateful-v0"), 2)
    with caplog.at_level(logging.WARNING, "coterie"):
        timestep = other.load(state)
    assert "Stateful-v0, copy 0 and 1 more: replay differs" in caplog.text
    assert caplog.text.count("replay differs") == 1
    assert "world.fresh: true" in caplog.text
    np.testing.assert_array_equal(timestep.agent_types["agent"].observation, 0)
    assert len(play_arrays(other, 6, timestep)) == 18
    check_world(lambda n: GymnasiumWorld(GymnasiumSettings("helpers.external_envs:Stateful-v0", fresh=True), n), 30)


def dice(num_envs, **settings):
    return GymnasiumWorld(GymnasiumSettings("helpers.external_envs:GlobalDice-v0", **settings), num_envs)


@pytest.mark.slow
def test_environments_that_draw_from_global_generators_can_be_seeded(caplog):
    check_world(lambda n: dice(n, seed_globals=True), 30)
    check_world(lambda n: dice(n, seed_globals=True, fresh=True), 30)
    world = dice(3, seed_globals=True)
    assert_equal(play(world, 12), play(dice(3, seed_globals=True), 12))
    state = world.save()
    before = random.getstate(), torch.get_rng_state().tolist()
    with caplog.at_level(logging.WARNING, "coterie"):
        dice(3, seed_globals=True).load(state)
    assert not caplog.messages
    assert (random.getstate(), torch.get_rng_state().tolist()) == before  # nobody else's numbers change
    unseeded = dice(3)
    play(unseeded, 12)
    with caplog.at_level(logging.WARNING, "coterie"):
        dice(3).load(unseeded.save())
    assert "replay differs" in caplog.text
    assert "world.seed_globals: true" in caplog.text


@pytest.mark.slow
def test_processes_do_not_change_what_global_generators_give(forked):
    one, two = dice(4, seed_globals=True), dice(4, seed_globals=True, processes=2)
    assert_equal(play(one, 12), play(two, 12))
    two.inner.close()


def test_a_state_of_another_size_is_refused():
    world = broken(2)
    world.reset(0)
    with pytest.raises(ValueError, match="state holds 2 copies, this world has 3"):
        broken(3).load(world.save())


# Paused copies ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("processes", [0, 2])
def test_paused_copies_are_not_stepped(processes, forked):
    world, expected = broken(3, processes=processes), broken(3)
    rollout = play(expected, 12)
    play(world, 2)
    world.pause(np.array([False, True, False]))
    agent_step = world.inner._timestep.agent_types["agent"]
    assert agent_step.acting[:, 0].tolist() == [True, False, True]
    before = agent_step.observation[1].copy()
    for _ in range(10):
        timestep = world.step({"agent": np.zeros((3, 1), np.int64)})
    assert not timestep.ended[1]
    np.testing.assert_array_equal(agent_step.observation[1], before)
    assert agent_step.reward[:, 0].tolist() == [1, 0, 1]
    with pytest.raises(ValueError, match="paused"):
        world.save()
    assert_equal(play(world, 12), rollout)  # a reset ends the pause
    world.inner.close()


def test_an_evaluation_steps_no_further_than_it_counts(monkeypatch):
    """Copies whose episodes are played wait for the others."""
    taken = []
    monkeypatch.setattr(external_envs.Broken, "step", _counted(external_envs.Broken.step, taken))
    loaded = schema.load(
        "cartpole-ppo",
        ["world.name=gymnasium/helpers.external_envs:Uneven-v0", "groups.agent.policy=random"]
        + ["groups.agent.learner=null"],
    )
    world = build_world(loaded.world, 4)
    actors = [group.actor for group in build_groups(loaded, world)]
    taken.clear()
    result = evaluate(world, actors, 4, seed=0)
    assert len(taken) == result.length.sum() < 4 * result.length.max()


def _counted(step, taken):
    def counted(self, action):
        taken.append(action)
        return step(self, action)

    return counted


# Settings and helpers -----------------------------------------------------------------------------------------


def test_settings_are_checked():
    for wrong, message in (
        ({"processes": -1}, "processes must be at least 0"),
        ({"timeout": 0.0}, "timeout must be above 0"),
        ({"restarts": -1}, "restarts must be at least 0"),
        ({"max_episode_steps": 0}, "max_episode_steps must be at least 1"),
    ):
        with pytest.raises(schema.ConfigError, match=f"world: {message}"):
            schema.part(registry.WORLDS, {"name": "gymnasium/CartPole-v1"} | wrong, "world")


def test_the_latest_version_is_found():
    known = ["a_v2", "a_v10", "a_b_v3", "X-v1"]
    assert [latest_version(name, known) for name in ("a", "a_v2", "a_b", "X", "b")] == [
        "a_v10",
        "a_v2",
        "a_b_v3",
        "X-v1",
        None,
    ]


def test_a_picture_becomes_text():
    picture = np.zeros((4, 2, 3), np.uint8)
    picture[0] = 255
    lines = picture_to_ansi(picture).splitlines()
    assert len(lines) == 2
    assert lines[0].count("▀") == 2
    assert lines[0].startswith("\x1b[38;2;255;255;255m\x1b[48;2;0;0;0m▀")
