"""Gymnasium environments as worlds, and the native CartPole against Gymnasium's."""

import logging
import re

import gymnasium
import numpy as np
import pytest

from coterie.config import registry, schema
from coterie.core import seeding
from coterie.core.sampling import random_actions
from coterie.core.types import Box, CoterieError, Dict, Discrete, MultiDiscrete
from coterie.testing import check_world
from coterie.training.build import build_world
from coterie.worlds.adapters import actions, spaces
from coterie.worlds.adapters.external import ExternalWorld
from coterie.worlds.adapters.gymnasium import GymnasiumSettings, GymnasiumWorld
from coterie.worlds.adapters.minigrid import MinigridSettings, MinigridWorld
from coterie.worlds.cartpole.world import CartPole
from helpers import external_envs


def world(name, num_envs=2, **settings):
    return build_world(schema.part(registry.WORLDS, {"name": name} | settings, "world"), num_envs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("gymnasium/CartPole-v1", {}),
        ("gymnasium/CartPole-v1", {"native": False}),
        ("gymnasium/LunarLander-v3", {}),
        ("gymnasium/LunarLander-v3", {"options": {"continuous": True}}),
        ("gymnasium/BipedalWalker-v3", {"fresh": True}),
        ("gymnasium/Pendulum-v1", {"max_episode_steps": 30}),
        ("gymnasium/Pendulum-v1", {"max_episode_steps": 31, "action_repeat": 3}),
        ("gymnasium/FrozenLake-v1", {}),
        ("gymnasium/Blackjack-v1", {}),
        ("gymnasium/helpers.external_envs:Nested-v0", {}),
        ("gymnasium/helpers.external_envs:Broken-v0", {}),
        ("gymnasium/helpers.external_envs:Colon-v0", {"fresh": True}),  # registered under a name with a colon
        ("minigrid/DoorKey-5x5", {"max_episode_steps": 40}),
    ],
)
def test_check_world_passes(name, settings):
    check_world(lambda num_envs: world(name, num_envs, **settings), steps=120)


# CartPole ---------------------------------------------------------------------------------------------


def test_cartpole_equals_gymnasiums_step_by_step():
    """From the same states, with the same actions, through terminations and time limits."""
    native, random = CartPole(3, limit=60), seeding.generator(3, "pushes")
    twins = [gymnasium.make("CartPole-v1", max_episode_steps=60) for _ in range(3)]
    ended = {"terminated": 0, "truncated": 0}
    timestep = native.reset(5)

    def follow(copy):
        twins[copy].reset(seed=0)
        twins[copy].unwrapped.state = native.save()["place"][copy]

    for copy in range(3):
        follow(copy)
    for _ in range(400):
        place = native.save()["place"]
        # A sensible push keeps poles up until the limit; copy 0 pushes at random and falls.
        pushes = (place[:, 2] + 0.5 * place[:, 3] > 0).astype(np.int64)[:, None]
        pushes[0] = random.integers(2)
        timestep = native.step({"agent": pushes})
        agent_step = timestep.agent_types["agent"]
        for copy, twin in enumerate(twins):
            seen, reward, terminated, truncated, _ = twin.step(int(pushes[copy, 0]))
            over = terminated or truncated
            observed = agent_step.final_observation if over else agent_step.observation
            np.testing.assert_allclose(observed[copy, 0], seen, rtol=1e-6, atol=1e-7)
            assert agent_step.reward[copy, 0] == reward == 1
            assert agent_step.terminated[copy, 0] == terminated
            assert agent_step.truncated[copy, 0] == (truncated and not terminated)
            assert timestep.ended[copy] == over
            if over:
                ended["terminated" if terminated else "truncated"] += 1
                follow(copy)
            else:
                np.testing.assert_allclose(native.save()["place"][copy], twin.unwrapped.state, rtol=1e-10, atol=1e-12)
    assert min(ended.values()) > 3


def test_cartpole_starts_spread_as_gymnasiums_do():
    starts = CartPole(4000).reset(1).agent_types["agent"].observation[:, 0]
    assert abs(starts).max() <= 0.05
    np.testing.assert_allclose(starts.mean(0), 0, atol=0.002)
    np.testing.assert_allclose(starts.std(0), 0.1 / np.sqrt(12), rtol=0.05)
    assert abs(np.corrcoef(starts.T) - np.eye(4)).max() < 0.06


def test_cartpole_lasts_500_steps_and_refuses_what_is_no_push():
    native = CartPole(1)
    native.reset(0)
    for step in range(1, 501):
        place = native.save()["place"]
        # A steadying push, which also brings the cart back to the middle.
        push = place[0, 2] + 0.5 * place[0, 3] + 0.05 * place[0, 0] + 0.1 * place[0, 1] > 0
        timestep = native.step({"agent": np.array([[int(push)]])})
        assert timestep.ended[0] == (step == 500)
    assert timestep.agent_types["agent"].truncated[0, 0]
    before = native.save()
    with pytest.raises(ValueError, match="copy 0: an action must be 0 or 1, got 2"):
        native.step({"agent": np.array([[2]])})
    with pytest.raises(ValueError, match=r"must have shape \(1, 1\), got \(1,\)"):
        native.step({"agent": np.array([1])})
    np.testing.assert_equal(native.save(), before)


def test_cartpole_is_native_only_with_default_options():
    assert isinstance(world("gymnasium/CartPole-v1").inner, CartPole)
    for settings in ({"native": False}, {"options": {"sutton_barto_reward": True}}):
        assert isinstance(world("gymnasium/CartPole-v1", **settings).inner, ExternalWorld)
    cut = world("gymnasium/CartPole-v1", max_episode_steps=3)
    cut.reset(0)
    ends = [cut.step({"agent": np.array([[0], [1]])}).ended.copy() for _ in range(3)]
    np.testing.assert_array_equal(ends, [[False] * 2] * 2 + [[True] * 2])


# External environments --------------------------------------------------------------------------------


def test_a_world_equals_gymnasium_make():
    """Seeds, rewards, time limit and final observations equal those of gymnasium.make with all its wrappers."""
    ours = GymnasiumWorld(GymnasiumSettings("LunarLander-v3", max_episode_steps=70), 2)
    plain = [gymnasium.make("LunarLander-v3", max_episode_steps=70) for _ in range(2)]
    random, episode, cut = seeding.generator(0, "x"), [0, 0], 0
    ours.reset(9)
    for copy, environment in enumerate(plain):
        environment.reset(seed=seeding.integer(9, "guest", copy, 0) % 2**31)
    for _ in range(300):
        actions = random.integers(4, size=(2, 1))
        timestep = ours.step({"agent": actions})
        agent_step = timestep.agent_types["agent"]
        for copy, environment in enumerate(plain):
            seen, reward, terminated, truncated, _ = environment.step(int(actions[copy, 0]))
            assert agent_step.reward[copy, 0] == np.float32(reward)
            assert agent_step.terminated[copy, 0] == terminated
            assert agent_step.truncated[copy, 0] == (truncated and not terminated)
            if timestep.ended[copy]:
                np.testing.assert_array_equal(agent_step.final_observation[copy, 0], seen)
                episode[copy] += 1
                cut += truncated and not terminated
                seen, _ = environment.reset(seed=seeding.integer(9, "guest", copy, episode[copy]) % 2**31)
            np.testing.assert_array_equal(agent_step.observation[copy, 0], seen)
    assert min(episode) >= 3
    assert cut


@pytest.mark.parametrize("repeat", [3, 4])
def test_an_action_lasts_several_frames_and_their_rewards_add_up(repeat):
    """The time limit counts frames: 70 are not a multiple of 3 or 4, and the last action is cut short."""
    ours = GymnasiumWorld(GymnasiumSettings("LunarLander-v3", max_episode_steps=70, action_repeat=repeat), 1)
    plain = gymnasium.make("LunarLander-v3", max_episode_steps=70)
    random, episode, ends = seeding.generator(1, "x"), 0, {"terminated": 0, "truncated": 0}
    ours.reset(9)
    plain.reset(seed=seeding.integer(9, "guest", 0, 0) % 2**31)
    for _ in range(120):
        action = random.integers(4, size=(1, 1))
        timestep = ours.step({"agent": action})
        agent_step, total = timestep.agent_types["agent"], 0.0
        for _ in range(repeat):
            seen, reward, terminated, truncated, _ = plain.step(int(action[0, 0]))
            total += reward
            if terminated or truncated:
                break
        assert agent_step.reward[0, 0] == np.float32(total)
        assert agent_step.terminated[0, 0] == terminated
        assert agent_step.truncated[0, 0] == (truncated and not terminated)
        ends["terminated"] += terminated
        ends["truncated"] += truncated and not terminated
        if timestep.ended[0]:
            np.testing.assert_array_equal(agent_step.final_observation[0, 0], seen)
            episode += 1
            seen, _ = plain.reset(seed=seeding.integer(9, "guest", 0, episode) % 2**31)
        np.testing.assert_array_equal(agent_step.observation[0, 0], seen)
    assert min(ends.values()) > 0


def test_repeated_actions_are_refused_where_they_do_not_work():
    assert not GymnasiumSettings("CartPole-v1", action_repeat=2).plays_natively
    for words in ({"action_repeat": 0}, {"action_repeat": 2, "agents": "tuple"}):
        with pytest.raises(ValueError, match="action_repeat"):
            GymnasiumSettings("CartPole-v1", **words)


def test_nested_spaces_become_flat(caplog):
    with caplog.at_level(logging.WARNING, "coterie"):
        nested = world("gymnasium/helpers.external_envs:Nested-v0", 1)
    assert "observation: says" in caplog.text
    agent_type = nested.agent_types["agent"]
    assert agent_type.action == MultiDiscrete((2, 3))
    assert isinstance(agent_type.observation, Dict)
    entries = agent_type.observation.entries
    assert entries["eye"] == Box((3, 6, 5), 0.0, 255.0, "uint8")
    assert entries["body/0"] == Discrete(4)
    assert entries["body/1"] == Box((2,), 0.0, 1.0)
    assert entries["body/2"] == Box((2,), 0.0, np.array([2, 1], np.float32))
    assert entries["speed"] == Box((), -np.inf, np.inf)
    seen = nested.reset(0).agent_types["agent"].observation
    assert seen["eye"][0, 0, 0, 1, 2] == 200  # channel, row, column
    assert seen["body/0"][0, 0] == 0
    np.testing.assert_array_equal(seen["body/1"][0, 0], [1, 0])
    np.testing.assert_array_equal(seen["body/2"][0, 0], [0, 1])
    assert nested.step({"agent": np.array([[[1, 2]]])}).agent_types["agent"].reward[0, 0] == 3


@pytest.mark.parametrize(
    ("shape", "ours"),
    [
        ((84, 84, 4), (4, 84, 84)),
        ((3, 84, 84), (3, 84, 84)),
        ((8, 8, 111), (111, 8, 8)),
        ((6, 7, 2), (2, 6, 7)),
        ((2, 6, 7), (2, 6, 7)),
        ((4, 4, 4), (4, 4, 4)),
        ((5, 5), (5, 5)),
    ],
)
def test_channels_come_first(shape, ours):
    assert spaces.convert_observation_space(gymnasium.spaces.Box(0, 1, shape)).space.shape == ours
    if len(shape) == 3:
        kept = spaces.convert_observation_space(gymnasium.spaces.Box(0, 1, shape), "first")
        assert kept.space.shape == shape


def test_an_action_mask_in_the_observation_becomes_the_mask():
    space = gymnasium.spaces.Dict(
        {"observation": gymnasium.spaces.Discrete(3), "action_mask": gymnasium.spaces.MultiBinary(2)}
    )
    layout = spaces.convert_observation_space(space)
    assert layout.space == Discrete(3)
    row, mask = np.zeros(1, np.int64), np.ones((1, 2), bool)
    write = spaces.observation_writer(layout, row, 0, print)
    seen = {"observation": 2, "action_mask": np.array([0, 1], np.int8)}
    write(seen)
    actions.write_mask(spaces.part_at(seen, layout.mask), mask[0], "a")
    assert row.tolist() == [2]
    assert mask.tolist() == [[False, True]]
    for wrong, message in ((np.ones(3), r"of 'a' of shape \(2,\), got \(3,\)"), ([0, 0], "legal action .* of 'a'")):
        with pytest.raises(spaces.InvalidEnvOutput, match=message):
            actions.write_mask(wrong, mask[0], "a")
    for wrong, message in (
        ({"observation": 3, "action_mask": np.ones(2)}, "expected observation observation in 0 … 2, got 3"),
        ({"observation": 1.5, "action_mask": np.ones(2)}, "integer, got float 1.5"),
        ({"action_mask": np.ones(2)}, r"entry 'observation', got \['action_mask'\]"),
    ):
        with pytest.raises(spaces.InvalidEnvOutput, match=message):
            write(wrong)


def test_unsupported_spaces_and_unknown_names_are_refused():
    for name, message in (
        ("gymnasium/helpers.external_envs:TextOnly-v0", "observations Text.*nothing is left"),
        ("gymnasium/helpers.external_envs:IntegerBox-v0", "actions Box.*int64.*MultiDiscrete"),
        ("gymnasium/CartPol-v1", "did you mean 'gymnasium/CartPole-v1'"),
        ("gymnasium/helpers.external_envs:TextOnli-v0", "did you mean 'gymnasium/helpers.external_envs:TextOnly-v0'"),
        ("gymnasium/ALE/Pong-v5", "did you mean 'gymnasium/ale_py:ALE/Pong-v5'"),
        ("minigrid/DoorKee-5x5", "did you mean 'minigrid/DoorKey-5x5"),
    ):
        with pytest.raises(CoterieError, match=message):
            world(name)
    with pytest.raises(CoterieError, match="actions Text"):
        actions.convert_action_space(gymnasium.spaces.Tuple([gymnasium.spaces.Text(2)]))


@pytest.mark.parametrize(
    "space",
    [
        gymnasium.spaces.Graph(gymnasium.spaces.Discrete(2), None),
        gymnasium.spaces.Sequence(gymnasium.spaces.Box(0, 1, (2,))),
        gymnasium.spaces.OneOf([gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(3)]),
    ],
    ids=lambda space: type(space).__name__,
)
def test_observations_without_a_fixed_size_are_refused_with_their_name_and_space(space):
    said = re.escape(f"{space} is not supported")
    with pytest.raises(CoterieError, match=f"^observations: {said}"):
        spaces.convert_observation_space(space)
    nested = gymnasium.spaces.Dict({"seen": gymnasium.spaces.Tuple([gymnasium.spaces.Discrete(2), space])})
    with pytest.raises(CoterieError, match=f"^entry 'seen/1' of the observations: {said}"):
        spaces.convert_observation_space(nested)


def test_a_missing_package_is_named_with_its_install_command(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "minigrid", None)
    with pytest.raises(CoterieError, match="'minigrid' is not installed: pip install minigrid"):
        world("minigrid/DoorKey-5x5")


def test_actions_start_where_the_environment_starts():
    assert external_envs.Broken.action_space.start == 5
    layout = actions.convert_action_space(external_envs.Broken.action_space)
    assert actions.action_reader(layout, np.array([2]), 0)() == 7
    layout = actions.convert_action_space(gymnasium.spaces.Box(-1, 1, (2,), np.float64))
    taken = actions.action_reader(layout, np.array([[0.5, -0.5]], np.float32), 0)()
    assert taken.dtype == np.float64


# MiniGrid ---------------------------------------------------------------------------------------------


def test_minigrid_shows_symbols_in_unit_range_and_knows_success():
    grid = MinigridWorld(MinigridSettings("Empty-5x5"), 1)
    space = grid.agent_types["agent"].observation
    assert space.entries == {"direction": Discrete(4), "image": Box((3, 7, 7), 0.0, 1.0)}
    grid.reset(0)
    for action in (2, 2, 1, 2):  # forward twice, turn right, forward
        timestep = grid.step({"agent": np.array([[action]])})
        assert not timestep.ended[0]
    timestep = grid.step({"agent": np.array([[2]])})
    assert timestep.ended[0]
    assert timestep.success[0]
    assert timestep.agent_types["agent"].reward[0, 0] > 0.9
    lost = MinigridWorld(MinigridSettings("MiniGrid-Empty-5x5-v0", max_episode_steps=2), 1)
    lost.reset(0)
    lost.step({"agent": np.array([[0]])})
    timestep = lost.step({"agent": np.array([[0]])})
    assert timestep.agent_types["agent"].truncated[0, 0]
    assert not timestep.success[0]


# Pictures ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["gymnasium/CartPole-v1", "gymnasium/LunarLander-v3", "minigrid/DoorKey-5x5", "mpe/simple_spread"]
)
def test_pictures_on_request(name):
    dark = world(name)
    dark.reset(0)
    with pytest.raises(CoterieError, match=r"set world\.render"):
        dark.frame(0)
    lit = world(name, render=True)
    timestep = lit.reset(0)
    first = lit.frame(1).copy()
    assert first.dtype == np.uint8
    assert first.ndim == 3
    assert first.std() > 0
    random = seeding.generator(0, "look")
    for _ in range(3):
        timestep = lit.step(random_actions(timestep, lit.agent_types, random))
    assert (lit.frame(1) != first).any()
    assert lit.ansi(1)


def test_a_module_that_registers_on_request_is_asked(tmp_path, monkeypatch):
    """As MinAtar does: importing it registers nothing."""
    (tmp_path / "on_request.py").write_text(
        "import gymnasium\n"
        "def register_envs():\n"
        "    pole = 'gymnasium.envs.classic_control:CartPoleEnv'\n"
        "    gymnasium.register('OnRequest/Pole-v1', pole, max_episode_steps=9)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    made = GymnasiumWorld(GymnasiumSettings("on_request:OnRequest/Pole-v1"), 1)
    assert made.limits_episodes
    assert made.reset(0).agent_types["agent"].observation.shape == (1, 1, 4)


class Corridor(gymnasium.Env):
    """Every step costs 1, the fifth ends the episode; action 1 is illegal after the second step."""

    observation_space, action_space = gymnasium.spaces.Box(0, 9, (1,)), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._seen(), {"action_mask": self._mask()}

    def step(self, action):
        self.time += 1
        over = self.time == 5
        return self._seen(), -1.0, over, False, {"action_mask": self._mask()}

    def _seen(self):
        return np.array([self.time], np.float32)

    def _mask(self):
        return np.array([True, self.time < 2])


@pytest.fixture
def corridor():
    gymnasium.register("Corridor-v0", entry_point=Corridor, max_episode_steps=9)
    yield
    del gymnasium.registry["Corridor-v0"]


def test_a_repeated_action_ends_where_it_becomes_illegal(corridor):
    world = GymnasiumWorld(GymnasiumSettings("Corridor-v0", action_repeat=4), 1)
    world.reset(0)
    timestep = world.step({"agent": np.ones((1, 1), np.int64)})
    (step,) = timestep.agent_types.values()
    assert step.observation[0, 0].tolist() == [2]
    assert step.reward[0, 0] == -2
    assert step.mask[0, 0].tolist() == [True, False]
