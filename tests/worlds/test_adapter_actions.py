"""Actions of third-party environments: bounds, nested and mixed spaces, masks."""

import gymnasium
import numpy as np
import pytest

import coterie
from coterie.config import registry, schema
from coterie.core.types import Box, CoterieError, MultiDiscrete
from coterie.nn import distributions
from coterie.testing import check_world
from coterie.training.build import build_world
from coterie.worlds.adapters import actions, batch
from coterie.worlds.adapters.batch import ExternalEnvError
from coterie.worlds.adapters.external import ActionSettings


def world(name, num_envs=1, **settings):
    return build_world(schema.part(registry.WORLDS, {"name": name} | settings, "world"), num_envs)


def train(tmp_path, name, *overrides):
    """A short training; returns its summary."""
    short = ["train.total_steps=64", "train.num_envs=2", "train.rollout_steps=16", "train.evaluate_episodes=2"]
    off = ["train.video=false", "train.tensorboard=false"]
    run = coterie.train("cartpole-ppo", [f"world.name={name}", *short, *off, *overrides], out=tmp_path, quiet=True)
    return run.summary()


@pytest.mark.parametrize(
    ("low", "high", "ours"),
    [
        ("-inf", "inf", (-10, 10)),
        (0, "inf", (0, 10)),
        (20, "inf", (20, 30)),
        ("-inf", -20, (-30, -20)),
        ("-inf", 5, (-5, 5)),
    ],
)
def test_missing_bounds_are_set_with_a_warning(low, high, ours, caplog):
    name, options = "gymnasium/helpers.odd_envs:Numbers-v0", {"low": low, "high": high}
    half = world(name, options=options)
    assert half.agent_types["agent"].action == Box((1,), *map(float, ours))
    assert "world.actions.limit" in caplog.text
    check_world(lambda num_envs: world(name, num_envs, options=options), steps=20)


@pytest.mark.parametrize("family", ["beta", "gaussian"])
@pytest.mark.parametrize(("low", "high"), [(0.0, np.inf), (-np.inf, 5.0)])
def test_one_sided_boxes_get_a_density_on_their_range_and_no_draw_is_clipped(family, low, high):
    """A Gaussian of deviation 10, clipped, would put a third or more of its draws on the bounds."""
    space = actions.convert_action_space(gymnasium.spaces.Box(low, high, (1,)), ActionSettings()).space
    made = distributions.head(space, family)
    out = np.array([[0.3, -0.2]], np.float32).repeat(4000, 0)
    drawn, log_prob = made.act(out, None, np.random.default_rng(0), False)
    assert space.low < drawn.min() < drawn.max() < space.high
    assert np.ptp(drawn) > 0.5 * (space.high - space.low)
    grid = np.linspace(space.low, space.high, 4002, dtype=np.float32)[1:-1, None]
    density = np.exp(distributions.log_prob_of(made, out, grid)).sum()
    assert density * (space.high - space.low) / 4001 == pytest.approx(1, abs=2e-3)
    again = distributions.log_prob_of(made, out, drawn)
    assert np.allclose(again, log_prob, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("low", "high", "sign"), [(2.0, np.inf, 1), (-np.inf, 2.0, -1)])
def test_one_sided_actions_reach_beyond_the_limit(dtype, low, high, sign):
    space = gymnasium.spaces.Box(np.array([low, -1], dtype), np.array([high, 1], dtype), dtype=np.dtype(dtype).type)
    layout = actions.convert_action_space(space, ActionSettings(limit=4))
    (warning,) = layout.warnings
    assert "world.actions.limit" in warning
    width = float((layout.space.high - layout.space.low)[0])
    assert width == 4

    def read(fraction):
        rows = np.array([[2 + sign * fraction * width, 0.5]], np.float32)
        found = actions.action_reader(layout, rows, 0)()
        assert space.contains(found)
        assert found[1] == np.float32(0.5)  # the other number has two bounds and stays as it is
        return sign * (float(found[0]) - 2)  # the distance from the bound

    assert read(0) == 0
    assert read(0.01) == pytest.approx(0.01 * width, rel=0.01)
    assert read(1 - np.exp(-1)) == pytest.approx(width, rel=1e-3)
    assert read(1) == pytest.approx(actions.REACH * width, rel=1e-3)
    even = np.sort([read(fraction) for fraction in (np.arange(1000) + 0.5) / 1000])
    assert np.mean(even) == pytest.approx(width, rel=0.01)  # exponential, as Gymnasium samples
    assert np.median(even) == pytest.approx(np.log(2) * width, rel=0.01)


def test_one_sided_actions_can_be_kept_within_the_limit():
    space = gymnasium.spaces.Box(0.0, np.inf, (1,))
    layout = actions.convert_action_space(space, ActionSettings(limit=4, one_sided="limit"))
    (warning,) = layout.warnings
    assert "never tried" in warning
    assert [float(actions.action_reader(layout, np.float32([[x]]), 0)()[0]) for x in (0, 3, 4)] == [0, 3, 4]


def test_the_limit_is_a_setting():
    half = world("gymnasium/helpers.odd_envs:Numbers-v0", options={"low": 0, "high": "inf"}, actions={"limit": 3})
    assert half.agent_types["agent"].action == Box((1,), 0.0, 3.0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_actions_never_lie_past_the_bounds(dtype):
    """float32(0.3) is above 0.3; an environment that checks its actions would fail."""
    space = gymnasium.spaces.Box(np.array([-0.7, 0.1], dtype), np.array([0.3, 0.7], dtype), dtype=np.dtype(dtype).type)
    rows = np.array([[0.3, 0.7], [-0.7, 0.1]], np.float32)
    layout = actions.convert_action_space(space, ActionSettings())
    for agent in range(2):
        assert space.contains(actions.action_reader(layout, rows, agent)())


@pytest.mark.slow
@pytest.mark.parametrize("learner", ["ppo", "maddpg"])
@pytest.mark.parametrize(("low", "high"), [(20.0, 30.0), (0.0, 1000.0), (-0.7, 0.3), (0.1, "inf")])
def test_every_bound_can_be_trained_and_random_play_reaches_it(learner, low, high, tmp_path):
    options = f"world.options={{low: {low}, high: {high}, dtype: float64}}"
    own = [] if learner == "ppo" else ["groups.agent.learner=maddpg", "groups.agent.policy=deterministic"]
    summary = train(tmp_path / "run", "gymnasium/helpers.odd_envs:Numbers-v0", options, *own)
    random = summary["baselines"]["random"]["groups"]["agent"]["return_mean"] / 5
    middle, width = (10.1, 10) if high == "inf" else ((low + high) / 2, high - low)  # of one-sided draws: the limit
    assert abs(random - middle) < 0.3 * width


def test_numbers_whose_bounds_are_equal_stay_there(tmp_path, caplog):
    """Their density would be infinite: a training ended with "learning diverged"."""
    space = gymnasium.spaces.Box(np.float32([0.5, -1]), np.float32([0.5, 1]))
    layout = actions.convert_action_space(space, ActionSettings())
    np.testing.assert_array_equal(layout.space.high, np.float32([1.5, 1]))
    np.testing.assert_array_equal(actions.action_reader(layout, np.float32([[1.2, 0.3]]), 0)(), np.float32([0.5, 0.3]))
    options = "world.options={low: 0.5, high: 0.5}"
    summary = train(tmp_path / "run", "gymnasium/helpers.odd_envs:Numbers-v0", options)
    assert summary["last"]["groups"]["agent"]["return_mean"] == 2.5
    assert "whose bounds are equal stay there" in caplog.text
    with pytest.raises(CoterieError, match="nothing to choose"):
        actions.convert_action_space(gymnasium.spaces.Box(0, 1, (0,)))


@pytest.mark.parametrize(
    "space",
    [
        gymnasium.spaces.Discrete(3),
        gymnasium.spaces.Discrete(3, start=2),
        gymnasium.spaces.Discrete(3, dtype=np.int32),
        gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(3)]),
    ],
    ids=str,
)
def test_choices_have_the_value_and_type_that_gymnasium_samples(space):
    found = actions.action_reader(actions.convert_action_space(space), np.array([1]), 0)()
    assert space.contains(found)
    choice, sampled = (action[0] if isinstance(action, tuple) else action for action in (found, space.sample()))
    assert isinstance(choice, int)
    assert (choice.dtype, choice.item()) == (sampled.dtype, int(choice))


# Nested actions -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "ours"),
    [
        ("choices", MultiDiscrete((2, 2, 2, 2, 3))),
        ("numbers", Box((3,), np.float32([0, 0, -1]), 1.0)),
        ("mixed", MultiDiscrete((2, 11, 11, 2, 3))),
        ("matrix", MultiDiscrete((2, 3, 4, 5))),
    ],
)
def test_nested_actions_become_one_vector(kind, ours):
    name, options = "gymnasium/helpers.odd_envs:Composite-v0", {"kind": kind}
    assert world(name, options=options).agent_types["agent"].action == ours
    check_world(lambda num_envs: world(name, num_envs, options=options), steps=20)  # the environment checks actions


def test_a_nested_action_reaches_its_parts():
    space = gymnasium.spaces.Tuple(
        [
            gymnasium.spaces.Discrete(3, start=1),
            gymnasium.spaces.Box(0.0, 1.0, (2, 1), np.float64),
            gymnasium.spaces.MultiDiscrete([[2, 3]]),
        ]
    )
    layout = actions.convert_action_space(space, ActionSettings(bins=5))
    assert layout.space == MultiDiscrete((3, 5, 5, 2, 3))
    rows = np.array([[0] * 5, [2, 0, 3, 1, 2]])
    choice, numbers, matrix = actions.action_reader(layout, rows, 1)()
    assert choice == 3
    assert numbers.tolist() == [[0.0], [0.75]]
    assert matrix.tolist() == [[1, 2]]


# Masks ------------------------------------------------------------------------------------------------


def test_masks_in_gymnasiums_info_are_read():
    assert world("gymnasium/Taxi-v4").reset(0).agent_types["agent"].mask.any()
    masked = world("gymnasium/helpers.odd_envs:Masked-v0", 2)
    agent_step = masked.reset(0).agent_types["agent"]
    for step in range(12):
        assert agent_step.mask[:, 0].tolist() == [[step % 5 % 2 == 0, step % 5 % 2 == 1]] * 2
        masked.step({"agent": np.full((2, 1), step % 5 % 2)})
    check_world(lambda num_envs: world("gymnasium/helpers.odd_envs:Masked-v0", num_envs), steps=20)


@pytest.mark.parametrize("name", ["gymnasium/helpers.odd_envs:Masked-v0", "pettingzoo/helpers.odd_envs:MaskedPair"])
def test_masks_that_come_with_the_second_observation_are_read(name):
    options = {"first": 1}
    late = world(name, options=options)
    agent_step = next(iter(late.reset(0).agent_types.values()))
    assert agent_step.mask.all()
    check_world(lambda num_envs: world(name, num_envs, options=options), steps=20)


@pytest.mark.parametrize("name", ["gymnasium/helpers.odd_envs:Masked-v0", "pettingzoo/helpers.odd_envs:MaskedPair"])
def test_masks_that_come_later_need_the_setting(name, caplog, monkeypatch):
    monkeypatch.setattr(batch, "_warned", set())
    options = {"first": 3}
    late = world(name, options=options)
    agent_type, spaces = next(iter(late.agent_types.items()))
    agent_step = late.reset(0).agent_types[agent_type]
    assert agent_step.mask is None
    for _ in range(3):
        late.step({agent_type: np.zeros((1, len(spaces.agents)), np.int64)})
    assert caplog.text.count("world.actions.masks: info") == 1
    check_world(lambda num_envs: world(name, num_envs, options=options, actions={"masks": "info"}), steps=20)
    assert world(name, actions={"masks": "none"}).reset(0).agent_types[agent_type].mask is None


def test_a_mask_beside_other_actions_is_refused_with_the_cure():
    options = {"choices": 3}
    with pytest.raises(CoterieError, match=r"'agent_0' has an action_mask with actions MultiDiscrete.*masks: none"):
        world("gymnasium/helpers.odd_envs:Masked-v0", options=options)
    ignored = world("gymnasium/helpers.odd_envs:Masked-v0", options=options, actions={"masks": "none"})
    assert ignored.reset(0).agent_types["agent"].mask is None


def test_masks_of_a_method_are_read_as_those_in_the_info():
    name = "gymnasium/helpers.odd_envs:MaskMethod-v0"
    masked = world(name, 2)
    agent_step = masked.reset(0).agent_types["agent"]
    for step in range(12):
        assert agent_step.mask[:, 0].tolist() == [[step % 5 % 2 == 0, step % 5 % 2 == 1]] * 2
        masked.step({"agent": np.full((2, 1), step % 5 % 2)})
    check_world(lambda num_envs: world(name, num_envs), steps=20)
    with pytest.raises(ExternalEnvError, match=r"step 2: expected a legal action in the action_mask of 'agent_0'"):
        check_world(lambda num_envs: world(name, num_envs, options={"illegal_at": 2}), steps=20)
    assert world(name, actions={"masks": "none"}).reset(0).agent_types["agent"].mask is None


def test_a_method_of_masks_beside_other_actions_is_mentioned(caplog, monkeypatch):
    monkeypatch.setattr(batch, "_warned", set())
    ignored = world("gymnasium/helpers.odd_envs:MaskMethod-v0", options={"choices": 3})
    assert ignored.reset(0).agent_types["agent"].mask is None
    assert caplog.text.count("action_masks()") == 1


def test_a_mask_without_a_legal_action_is_an_error_that_names_the_agent():
    masked = world("gymnasium/helpers.odd_envs:Masked-v0", options={"illegal_at": 2})
    masked.reset(0)
    masked.step({"agent": np.array([[0]])})
    with pytest.raises(ExternalEnvError, match=r"step 2: expected a legal action in the action_mask of 'agent_0'"):
        masked.step({"agent": np.array([[1]])})
    last = world("gymnasium/helpers.odd_envs:Masked-v0", options={"illegal_at": 5})  # the episode is over
    last.reset(0)
    for step in range(5):
        timestep = last.step({"agent": np.array([[step % 2]])})
    assert timestep.ended[0]


@pytest.mark.parametrize(("low", "high", "sign"), [(-50.0, np.inf, 1), (-np.inf, 50.0, -1), (7.0, np.inf, 1)])
def test_even_draws_of_one_sided_actions_are_as_far_from_the_bound_as_the_limit(low, high, sign):
    """Gymnasium draws `bound ± Exp(1)` wherever the bound lies; ours are as many times as far as the limit says."""
    space = gymnasium.spaces.Box(low, high, (1,), np.float64)
    layout = actions.convert_action_space(space, ActionSettings(limit=2))
    ours = np.random.default_rng(0).uniform(layout.space.low, layout.space.high, 20_000)
    bound, row = low if sign > 0 else high, np.zeros((1, 1))
    read, distances = actions.action_reader(layout, row, 0), []
    for value in ours:
        row[0, 0] = value
        distances.append(sign * (read()[0] - bound))
    assert min(distances) >= 0
    assert np.mean(distances) == pytest.approx(2, rel=0.03)
