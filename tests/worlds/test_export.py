"""Our worlds as PettingZoo environments: PettingZoo's own tests, names, seeds, ends and pictures."""

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from pettingzoo.test import parallel_api_test, parallel_seed_test

from coterie.core.types import AgentStep, AgentType, Box, CoterieError, Dict, Discrete, MultiDiscrete, TimeStep
from coterie.worlds.adapters.export import PettingZooEnv, gymnasium_space
from coterie.worlds.gridworld.world import Gridworld, GridworldSettings, parallel_env
from helpers.small_worlds import Unsaved

MODES = ("cooperative", "competitive", "meet", "race")
OBSERVATIONS = ("flat", "dict", "image")
UP, DOWN, LEFT, RIGHT, STAY = range(5)


def place(env, agents, targets):
    state = env.world.save()
    state["agents"][0], state["targets"][0] = agents, targets
    env.world.load(state)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_passes_pettingzoos_api_test(mode, observation):
    parallel_api_test(parallel_env(mode=mode, observation=observation, grid_size=4, max_steps=6), num_cycles=25)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_passes_pettingzoos_seed_test(mode, observation):
    settings = {"mode": mode, "observation": observation, "grid_size": 4, "max_steps": 6, "messages": 2}
    parallel_seed_test(lambda: parallel_env(**settings), num_cycles=25)


@pytest.mark.parametrize("agents", [1, 3])
@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_every_option_passes_the_api_test(agents, observation):
    env = parallel_env(
        num_agents=agents, observation=observation, grid_size=5, max_steps=6, messages=3, view=2,
        num_obstacles=4, target_move_probability=0.5,
    )  # fmt: skip
    parallel_api_test(env, num_cycles=25)


def test_spaces_convert_to_gymnasium():
    low = np.array([0.0, -1.0], np.float32)
    box = gymnasium_space(Box((2,), low, 1.0))
    assert box == gymnasium.spaces.Box(low, np.ones(2, np.float32))
    assert gymnasium_space(Discrete(3)) == gymnasium.spaces.Discrete(3)
    assert gymnasium_space(MultiDiscrete((5, 2))) == gymnasium.spaces.MultiDiscrete([5, 2])
    both = gymnasium_space(Dict({"a": Discrete(2), "b": Box((0, 2), 0.0, 1.0)}))
    assert set(both.keys()) == {"a", "b"}
    assert both["b"].shape == (0, 2)
    assert gymnasium_space(Box((1,), 0, 255, "uint8")).dtype == np.uint8


def test_spaces_are_the_same_objects_each_time():
    env = parallel_env()
    assert env.possible_agents == ["agent_0", "agent_1"]
    for agent in env.possible_agents:
        assert env.observation_space(agent) is env.observation_space(agent)
        assert env.action_space(agent) is env.action_space(agent)
    assert env.action_space("agent_0") is not env.action_space("agent_1")


def test_actions_are_matched_by_name():
    env = parallel_env(grid_size=5, num_targets=1)
    env.reset(seed=0)
    place(env, [(0, 0), (4, 4)], [(2, 2)])
    env.step({"agent_1": UP, "agent_0": DOWN})
    assert env.world.grid.agents[0].tolist() == [[1, 0], [3, 4]]


def test_rewards_and_observations_go_to_their_agent():
    env = parallel_env(grid_size=5, num_targets=2, mode="competitive")
    env.reset(seed=0)
    place(env, [(0, 0), (4, 4)], [(0, 1), (2, 2)])
    observations, rewards, terminations, truncations, infos = env.step({"agent_0": RIGHT, "agent_1": STAY})
    assert rewards == {"agent_0": 20.0, "agent_1": -5.0}
    assert observations["agent_0"][:2].tolist() == [0, 0.25]
    assert observations["agent_1"][:2].tolist() == [1, 1]
    assert terminations == truncations == {"agent_0": False, "agent_1": False}
    assert infos == {"agent_0": {}, "agent_1": {}}
    assert infos["agent_0"] is not infos["agent_1"]


def test_seeded_resets_repeat_and_others_differ():
    env, other = parallel_env(), parallel_env()
    first = env.reset(seed=7)[0]["agent_0"]
    following = [env.reset()[0]["agent_0"] for _ in range(5)]
    assert np.array_equal(other.reset(seed=7)[0]["agent_0"], first)
    assert all(np.array_equal(other.reset()[0]["agent_0"], seen) for seen in following)
    assert len({seen.tobytes() for seen in [first, *following]}) == 6
    unseeded = [parallel_env(grid_size=30).reset()[0]["agent_0"].tobytes() for _ in range(3)]
    assert len(set(unseeded)) == 3


def test_seeded_episode_is_the_worlds_own():
    world = Gridworld(GridworldSettings(), 1)
    expected = world.reset(11).agent_types["agent"].observation[0, 1]
    assert np.array_equal(parallel_env().reset(seed=11)[0]["agent_1"], expected)


@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_what_is_returned_stays_as_it_was(observation):
    env = parallel_env(observation=observation)
    first = env.reset(seed=0)[0]["agent_0"]
    arrays = first if isinstance(first, dict) else {"": first}
    before = {key: array.copy() for key, array in arrays.items()}
    for action in (UP, DOWN, LEFT, RIGHT):
        env.step({"agent_0": action, "agent_1": action})
    assert all(np.array_equal(arrays[key], before[key]) for key in arrays)


def test_the_end_returns_the_last_observation_and_no_agents():
    env = parallel_env(grid_size=5, num_targets=1)
    env.reset(seed=0)
    place(env, [(0, 0), (4, 4)], [(0, 1)])
    observations, rewards, terminations, truncations, infos = env.step({"agent_0": RIGHT, "agent_1": STAY})
    assert observations["agent_0"].tolist() == [0, 0.25, 1, 0.75, 0, 0, 0]
    assert rewards["agent_1"] == pytest.approx(29.9)
    assert terminations == {"agent_0": True, "agent_1": True}
    assert truncations == {"agent_0": False, "agent_1": False}
    assert infos == {"agent_0": {"success": True}, "agent_1": {"success": True}}
    assert env.agents == []
    with pytest.raises(CoterieError, match="call reset"):
        env.step({})
    env.reset()
    assert env.agents == env.possible_agents


def test_time_limit_truncates():
    env = parallel_env(max_steps=1, grid_size=8, num_targets=3)
    env.reset(seed=0)
    place(env, [(0, 0), (0, 0)], [(5, 5), (6, 6), (7, 7)])
    _, _, terminations, truncations, infos = env.step({"agent_0": STAY, "agent_1": STAY})
    assert not any(terminations.values())
    assert all(truncations.values())
    assert infos["agent_0"] == {"success": False}


def test_stepping_before_reset_is_an_error():
    with pytest.raises(CoterieError, match="call reset"):
        parallel_env().step({"agent_0": 0, "agent_1": 0})


@pytest.mark.parametrize("action", [5, -1, 1.5, "up", None])
def test_invalid_action_names_agent_and_action(action):
    env = parallel_env()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="agent_1: action") as caught:
        env.step({"agent_0": 0, "agent_1": action})
    assert repr(action) in str(caught.value)


def test_message_actions_may_be_lists_and_are_checked():
    env = parallel_env(messages=3)
    env.reset(seed=0)
    env.step({"agent_0": [STAY, 2], "agent_1": np.array([STAY, 0])})
    assert env.world.grid.symbols[0].tolist() == [2, 0]
    for wrong in ([STAY, 3], [STAY], STAY):
        with pytest.raises(ValueError, match="agent_0: action"):
            env.step({"agent_0": wrong, "agent_1": [STAY, 0]})


@pytest.mark.parametrize("names", [["agent_0"], ["agent_0", "agent_1", "agent_2"], ["agent_0", "agent_9"]])
def test_missing_and_unknown_agents_are_an_error(names):
    env = parallel_env()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="actions must be given for"):
        env.step(dict.fromkeys(names, STAY))


class Countdown(Unsaved):
    """Two agent types, masks, and an agent that ends before the others; keeps the actions it is given."""

    simultaneous, num_envs, state_size = True, 1, 0

    def __init__(self):
        self.agent_types = {
            "near": AgentType(("a", "b"), Box((1,), 0.0, 9.0), Discrete(3)),
            "far": AgentType(("c",), Box((1,), 0.0, 9.0), Box((1,), -1.0, 1.0)),
        }
        self.time = 0
        self.given = None

    def _timestep(self, ended=False):
        b_ends, all_end = self.time == 1, self.time == 2
        agent_types = {}
        for name, agent_type in self.agent_types.items():
            a = len(agent_type.agents)
            ends = np.full((1, a), all_end)
            if name == "near" and b_ends:
                ends[0, 1] = True
            mask = np.array([[[True, False, True]] * a]) if name == "near" else None
            now = np.full((1, a, 1), 0 if ended else self.time, np.float32)
            last = np.full((1, a, 1), self.time, np.float32)
            agent_types[name] = AgentStep(
                now, ~ends, np.ones((1, a), np.float32), ends, np.zeros_like(ends), last, mask
            )
        return TimeStep(agent_types, np.array([ended]))

    def reset(self, seed):
        self.time = 0
        return self._timestep()

    def step(self, actions):
        self.given, self.time = actions, self.time + 1
        return self._timestep(ended=self.time == 2)


def test_agents_of_several_kinds_may_end_one_by_one():
    world = Countdown()
    env = PettingZooEnv(world, "countdown")
    _, infos = env.reset(seed=0)
    assert infos["a"]["action_mask"].tolist() == [True, False, True]
    assert infos["c"] == {}
    observations, *_ = env.step({"c": [0.5], "b": 2, "a": 1})
    assert world.given["near"].tolist() == [[1, 2]]
    assert world.given["far"].tolist() == [[[0.5]]]
    assert set(observations) == {"a", "b", "c"}
    assert env.agents == ["a", "c"]
    observations, _, terminations, _, infos = env.step({"a": 1, "c": [0.0]})
    assert observations == {"a": np.float32(2), "c": np.float32(2)}
    assert terminations == {"a": True, "c": True}
    assert infos == {"a": {}, "c": {}}
    assert env.agents == []


def test_only_simultaneous_worlds_of_one_copy_can_be_exported():
    with pytest.raises(ValueError, match="got 2 copies"):
        PettingZooEnv(Gridworld(GridworldSettings(), 2), "gridworld")
    with pytest.raises(ValueError, match=r"render_mode 'ansi'.*Countdown"):
        PettingZooEnv(Countdown(), "countdown", "ansi")
    with pytest.raises(ValueError, match=r"render_mode.*'svg'"):
        parallel_env(render_mode="svg")
    turns = Countdown()
    turns.simultaneous = False
    with pytest.raises(ValueError, match="simultaneous=False"):
        PettingZooEnv(turns, "countdown")


def test_settings_reach_the_world():
    assert parallel_env(num_agents=3, mode="meet").world.settings == replace(
        GridworldSettings(), num_agents=3, mode="meet"
    )
    with pytest.raises(ValueError, match=r"max_steps.*got 0"):
        parallel_env(max_steps=0)


def test_pictures_and_text():
    env = parallel_env(render_mode="rgb_array", grid_size=5)
    env.reset(seed=0)
    assert np.array_equal(env.render(), env.world.frame(0))
    env = parallel_env(render_mode="ansi", grid_size=3, num_targets=1)
    env.reset(seed=0)
    place(env, [(0, 0), (2, 2)], [(0, 1)])
    assert env.render() == "step 0\n┌───────┐\n│ 0 * . │\n│ . . . │\n│ . . 1 │\n└───────┘"
    env.step({"agent_0": RIGHT, "agent_1": STAY})
    assert (
        env.render() == "step 1\n┌───────┐\n│ . 0 . │\n│ . . . │\n│ . . 1 │\n└───────┘"
    )  # the final state, not the world's next episode
    env.reset()
    assert env.render().startswith("step 0")


def test_rendering_without_mode_or_before_reset_is_an_error():
    with pytest.raises(CoterieError, match="render_mode is None"):
        parallel_env().render()
    with pytest.raises(CoterieError, match="call reset"):
        parallel_env(render_mode="ansi").render()


@pytest.mark.slow
def test_one_window_for_all_episodes(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    pygame = pytest.importorskip("pygame")
    opened, set_mode = [], pygame.display.set_mode
    monkeypatch.setattr(pygame.display, "set_mode", lambda size: opened.append(size) or set_mode(size))
    env = parallel_env(render_mode="human", grid_size=4, max_steps=2)
    env.metadata["render_fps"] = 1000
    for _ in range(3):
        env.reset()
        while env.agents:
            env.step(dict.fromkeys(env.agents, STAY))
    assert opened == [env.world.frame(0).shape[1::-1]]
    shown = pygame.surfarray.array3d(pygame.display.get_surface()).swapaxes(0, 1)
    assert np.array_equal(shown, env.world.frame(0, final=True))
    env.close()
    assert not pygame.display.get_init()
    env.close()
