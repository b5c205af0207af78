"""`frame_stack`, `grey` and `resize`: against other implementations, per episode and agent, and after a replay."""

import gymnasium
import numpy as np
import pytest
from PIL import Image

import helpers.screens
from coterie.core.types import Box, CoterieError
from coterie.worlds.adapters import batch, frames
from coterie.worlds.adapters.external import ExternalSettings
from coterie.worlds.adapters.gymnasium import GymnasiumSettings, GymnasiumWorld
from coterie.worlds.adapters.pettingzoo import PettingZooSettings, PettingZooWorld


def world(num_envs=2, **settings):
    return GymnasiumWorld(GymnasiumSettings("helpers.screens:Screen-v0", **settings), num_envs)


def seen(timestep, name="agent"):
    return timestep.agent_types[name].observation[:, 0].copy()


def play(made, actions, name="agent"):
    """Observations of the only agent, step by step."""
    found = [seen(made.reset(3), name)]
    return found + [seen(made.step({name: np.full((made.num_envs, 1), action)}), name) for action in actions]


ACTIONS = [0, 1, 2, 1, 0, 2, 1, 1]  # the episode ends after six


@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        ({}, (3, 30, 20)),
        ({"grey": True}, (1, 30, 20)),
        ({"resize": (12, 9)}, (3, 12, 9)),
        ({"frame_stack": 4}, (12, 30, 20)),
        ({"grey": True, "resize": (84, 84), "frame_stack": 4}, (4, 84, 84)),
        ({"options": {"shape": (30, 20)}, "frame_stack": 3}, (3, 30, 20)),
        ({"options": {"shape": (3, 30, 20)}, "channels": "first", "grey": True}, (1, 30, 20)),
    ],
)
def test_the_settings_decide_the_space(settings, shape):
    made = world(**settings)
    assert made.agent_types["agent"].observation == Box(shape, 0.0, 255.0, "uint8")
    observation = made.reset(0).agent_types["agent"].observation
    assert observation.shape == (2, 1, *shape)
    assert observation.any()


def test_a_stack_holds_the_latest_frames_of_the_episode():
    plain, stacked = play(world(), ACTIONS), play(world(frame_stack=3), ACTIONS)
    for t in range(len(plain)):
        first = 0 if t < helpers.screens.LENGTH else helpers.screens.LENGTH  # no frame of an earlier episode
        latest = [plain[max(t - back, first)] for back in (2, 1, 0)]
        assert np.array_equal(stacked[t], np.concatenate(latest, axis=1)), t


def test_the_final_observation_is_stacked_too():
    made = world(frame_stack=2)
    play(made, ACTIONS[: helpers.screens.LENGTH - 1])
    before = made.inner._timestep.agent_types["agent"].observation[:, 0, 3:].copy()
    timestep = made.step({"agent": np.full((2, 1), 2)})
    assert timestep.ended.all()
    assert np.array_equal(timestep.agent_types["agent"].final_observation[:, 0, :3], before)


def test_stacks_are_gymnasiums_and_hold_vectors_too():
    made = world(1, frame_stack=4, options={"shape": (30, 20)})
    theirs = gymnasium.wrappers.FrameStackObservation(gymnasium.make("Screen-v0", shape=(30, 20)), 4)
    ours = play(made, ACTIONS[:5])
    made.reset(3)
    seed = made.inner._workers[0].batch.envs[0].env.unwrapped.seed
    expected = [theirs.reset(seed=seed)[0]] + [theirs.step(action)[0] for action in ACTIONS[:5]]
    assert np.array_equal(np.concatenate(ours), np.stack(expected))
    pole = GymnasiumWorld(GymnasiumSettings("CartPole-v1", frame_stack=2), 1)
    first = pole.reset(0).agent_types["agent"].observation[0, 0].copy()
    second = pole.step({"agent": np.zeros((1, 1), np.int64)}).agent_types["agent"].observation[0, 0]
    assert first.shape == (8,)
    assert np.array_equal(second[:4], first[4:])


def test_greys_are_pillows():
    picture = helpers.screens.picture(0, 0, 0, (40, 30, 3))
    ours = frames.to_grey(np.moveaxis(picture, 2, 0))[0]
    assert np.abs(ours.astype(int) - np.asarray(Image.fromarray(picture).convert("L"))).max() <= 1
    assert (frames.to_grey(np.full((4, 2, 2), 255, np.uint8)) == 255).all()


SIZES = [((210, 160), (84, 84)), ((30, 20), (10, 5)), ((8, 8), (12, 20)), ((600, 400), (84, 84))]


@pytest.mark.parametrize(("before", "after"), SIZES)
def test_smaller_pictures_are_means_of_areas(before, after):
    picture = helpers.screens.picture(0, 0, 0, before)
    space = gymnasium.spaces.Box(0, 255, before, np.uint8)
    found = frames.Frames(space, ExternalSettings("x", resize=after), "auto").add(picture)
    fine = np.kron(picture.astype(float), np.ones(after)) if before[0] < 100 else None
    if fine is not None:
        means = fine.reshape(after[0], before[0], after[1], before[1]).mean(axis=(1, 3))
        assert np.array_equal(found[0], np.floor(means + 0.5 + 1e-9))
    theirs = np.asarray(Image.fromarray(picture).resize(after[::-1], Image.Resampling.BOX)).astype(int)
    if before[0] % after[0] == 0 and before[1] % after[1] == 0:
        assert np.abs(found[0] - theirs).max() <= 1
    assert found.shape == (1, *after)
    assert abs(found.mean() - picture.mean()) < 1


def test_a_saved_world_is_replayed_with_its_frames():
    settings = {"grey": True, "resize": (16, 16), "frame_stack": 4}
    made, other = world(**settings), world(**settings)
    play(made, ACTIONS[:3])
    resumed = seen(other.load(made.save()))
    assert np.array_equal(resumed, seen(made.inner._timestep))
    for action in ACTIONS[3:]:
        step = {"agent": np.full((2, 1), action)}
        assert np.array_equal(seen(made.step(step)), seen(other.step(step)))


@pytest.mark.slow
def test_processes_show_the_same(forked):
    settings = {"grey": True, "resize": (16, 16), "frame_stack": 4}
    apart = world(processes=2, **settings)
    for here, there in zip(play(world(**settings), ACTIONS), play(apart, ACTIONS), strict=True):
        assert np.array_equal(here, there)
    apart.inner.close()


def test_every_agent_has_its_own_frames_and_each_step_adds_one():
    plain, stacked = (PettingZooWorld(PettingZooSettings("helpers.screens", frame_stack=stack), 1) for stack in (1, 3))
    (name,) = plain.agent_types
    history = []
    for step in range(helpers.screens.LENGTH):
        given = {name: np.zeros((1, 2), np.int64)}
        steps = [made.step(given) if step else made.reset(0) for made in (plain, stacked)]
        both = [timestep.agent_types[name].observation[0].copy() for timestep in steps]
        history.append(both[0])
        for agent in range(2):
            last = step if agent == 0 else min(step, helpers.screens.LENGTH // 2)
            latest = [history[max(last - back, 0)][agent] for back in (2, 1, 0)]
            assert np.array_equal(both[1][agent], np.concatenate(latest)), (step, agent)


def test_frames_that_cannot_be_made_are_refused():
    vector = {"id": "Acrobot-v1"}
    for settings, words in (
        ({"grey": True}, "world.grey and world.resize need pictures"),
        ({"resize": (8, 8)}, "world.grey and world.resize need pictures"),
    ):
        with pytest.raises(CoterieError, match=words):
            GymnasiumWorld(GymnasiumSettings(**vector, **settings), 1)
    with pytest.raises(CoterieError, match=r"world.frame_stack, .* need an array"):
        GymnasiumWorld(GymnasiumSettings("Taxi-v4", frame_stack=2), 1)
    with pytest.raises(ValueError, match="frame_stack must be at least 1"):
        GymnasiumSettings("Acrobot-v1", frame_stack=0)
    with pytest.raises(ValueError, match="resize"):
        GymnasiumSettings("Acrobot-v1", resize=(0, 84))


@pytest.mark.parametrize(("settings", "warnings"), [({}, 1), ({"resize": (84, 84)}, 0)])
def test_large_pictures_come_with_the_settings_that_make_them_small(settings, warnings, caplog, monkeypatch):
    monkeypatch.setattr(batch, "_warned", set())
    world(options={"shape": (210, 160, 3)}, **settings)
    world(options={"shape": (96, 96, 3)})
    assert caplog.text.count("pictures of 210×160 pixels; world.resize: [84, 84]") == warnings
    assert caplog.text.count("world.resize") == warnings
