"""What environments return against the letter of their API: credited or accepted, with one warning."""

import copy
import pickle
import time

import gymnasium
import numpy as np
import pytest

import coterie
from coterie.config import registry, schema
from coterie.core.sampling import random_actions
from coterie.core.types import CoterieError
from coterie.testing import check_world
from coterie.training import loop
from coterie.training.build import build_world
from coterie.worlds.adapters import batch, env_agents
from coterie.worlds.adapters.actions import choice_type, use_fast_discrete
from coterie.worlds.adapters.batch import ExternalEnvError


@pytest.fixture(autouse=True)
def _no_warning_yet(monkeypatch):
    monkeypatch.setattr(batch, "_warned", set())


def world(name, num_envs=1, **settings):
    return build_world(schema.part(registry.WORLDS, {"name": name} | settings, "world"), num_envs)


def rewards(world, steps):
    """The rewards of all agents in a random rollout `[T, A]`; every world here has one agent type."""
    random, timestep, found = np.random.default_rng(0), world.reset(0), []
    for _ in range(steps):
        timestep = world.step(random_actions(timestep, world.agent_types, random))
        found.append(next(iter(timestep.agent_types.values())).reward[0].tolist())
    return found


# Rewards ------------------------------------------------------------------------------------------------


def test_an_arriving_agents_first_reward_is_credited():
    assert rewards(world("pettingzoo/helpers.odd_envs:Team", options={"pays": "arrival"}), 3) == [
        [1, 7],
        [1, 1],
        [0, 1],
    ]


def test_a_reward_of_the_dead_is_dropped_with_one_warning(caplog):
    team = world("pettingzoo/helpers.odd_envs:Team", options={"pays": "dead"})
    assert rewards(team, 8) == [[1, 0], [1, 1], [0, 1], [0, 1]] * 2
    assert caplog.text.count("a reward of 'a' after its end is dropped") == 1


def test_a_reward_in_a_dead_agents_step_is_credited():
    """hunter_0 is removed by an empty step after hunter_1's move; hunter_2 is paid in it."""
    duel = world("pettingzoo/helpers.odd_envs:DeadStep")
    assert rewards(duel, 3) == [[0, 0, 0], [-1, 1, 3], [0, 0, 0]]


@pytest.mark.slow
def test_warnings_of_child_processes_appear_once(caplog):
    both = world("gymnasium/helpers.odd_envs:Loose-v0", 4, options={"returns": "list"}, processes=2)
    both.reset(0)
    both.step({"agent": np.zeros((4, 1), np.int64)})
    assert caplog.text.count("observation is a list instead of an array") == 1
    both.inner.close()


# State between episodes ---------------------------------------------------------------------------------


def test_reset_forgets_what_an_environment_kept_from_earlier_episodes():
    """The same world is evaluated again and again: every evaluation must start alike."""
    stateful = world("gymnasium/helpers.external_envs:Stateful-v0", 2)
    first = stateful.reset(0).agent_types["agent"].observation.copy()
    for _ in range(7):
        stateful.step({"agent": np.zeros((2, 1), np.int64)})
    np.testing.assert_array_equal(stateful.reset(0).agent_types["agent"].observation, first)


@pytest.mark.parametrize("fresh", [False, True])
def test_an_environment_that_is_closed_leaves_pygame_to_the_others(fresh):
    pygame = pytest.importorskip("pygame")
    theirs, name = pygame.quit, "gymnasium/helpers.odd_envs:Written-v0"
    written = world(name, 2, fresh=fresh)
    expected = rewards(written, 3)
    other = world(name)
    other.reset(0)
    other.inner.close()
    assert rewards(written, 12) == expected * 4
    assert pygame.quit is theirs


@pytest.mark.slow
def test_evaluations_of_a_resumed_run_equal_those_of_an_uninterrupted_one(tmp_path):
    overrides = ["world.name=gymnasium/helpers.odd_envs:Counting-v0", "train.num_envs=2", "train.rollout_steps=5"]
    overrides += ["train.evaluate_every=1", "train.evaluate_episodes=4", "train.checkpoint_every=1"]
    overrides += ["train.video=false", "train.tensorboard=false"]
    whole = coterie.train("cartpole-ppo", [*overrides, "train.total_steps=40"], out=tmp_path / "whole", quiet=True)
    part = coterie.train("cartpole-ppo", [*overrides, "train.total_steps=20"], out=tmp_path / "part", quiet=True)
    coterie.resume(part.path, ["train.total_steps=40"], quiet=True)
    numbers = [[{k: v for k, v in row.items() if "eval" in k} for row in run.metrics()] for run in (whole, part)]
    assert numbers[0] == numbers[1]
    assert numbers[0][-1]["agent/eval/return_mean"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(("slow", "warnings"), [("validate", 1), ("evaluate", 0)])
def test_a_slow_evaluation_names_the_settings_that_shorten_it(slow, warnings, tmp_path, caplog, monkeypatch):
    """Only those that repeat count: evaluations at the end compile the baselines and cannot become fewer."""
    clock, counter, evaluate = [0.0], time.perf_counter, loop.evaluate

    def evaluate_slowly(world, actors, episodes, seed, *rest, **more):
        at_the_end = seed == loop.evaluation_seed(0)
        clock[0] += 1e5 if at_the_end == (slow == "evaluate") else 0.0
        return evaluate(world, actors, episodes, seed, *rest, **more)

    monkeypatch.setattr(loop, "evaluate", evaluate_slowly)
    monkeypatch.setattr(time, "perf_counter", lambda: counter() + clock[0])
    monkeypatch.setattr(loop, "SLOW_EVALUATION", 1e4)
    short = ["train.total_steps=20", "train.num_envs=2", "train.rollout_steps=5", "train.evaluate_episodes=2"]
    off = ["train.video=false", "train.tensorboard=false"]
    name = "world.name=gymnasium/helpers.odd_envs:Counting-v0"
    coterie.train("cartpole-ppo", [name, *short, *off], out=tmp_path / "run", quiet=True)
    assert caplog.text.count("train.evaluate_episodes") == warnings


# Types ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("returns", "warning"),
    [
        ("list", "observation is a list instead of an array"),
        ("float64", "observation is float64 where the space says float32"),
        ("tensor", "observation is a Tensor instead of an array"),
        ("array reward", "a reward is an array of one number"),
        ("int flags", "terminated is int instead of bool"),
    ],
)
def test_values_of_another_type_are_converted_with_one_warning(returns, warning, caplog):
    plain = world("gymnasium/helpers.odd_envs:Loose-v0")
    loose = world("gymnasium/helpers.odd_envs:Loose-v0", options={"returns": returns})
    assert rewards(loose, 12) == rewards(plain, 12)
    assert caplog.text.count(warning) == 1
    check_world(lambda n: world("gymnasium/helpers.odd_envs:Loose-v0", n, options={"returns": returns}), steps=12)


@pytest.mark.parametrize(("kind", "warnings"), [("int32", 0), ("float64", 1), ("bool", 1)])
def test_whole_numbers_of_another_type_are_places(kind, warnings, caplog):
    place = world("gymnasium/helpers.odd_envs:Place-v0", options={"kind": kind})
    place.reset(0)
    timestep = place.step({"agent": np.zeros((1, 1), np.int64)})
    assert timestep.agent_types["agent"].observation.tolist() == [[1]]
    assert caplog.text.count("instead of an integer; converted") == warnings
    with pytest.raises(ExternalEnvError, match="to be an integer, got float64"):
        world("gymnasium/helpers.odd_envs:Place-v0", options={"kind": "float64", "by": 0.5}).reset(0)


@pytest.mark.filterwarnings("error")  # NumPy's, about numbers that overflow
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Loose", {"returns": "no reward"}, r"step 1: expected reward to be a number \(0\.0 .*got NoneType None"),
        ("Loose", {"returns": "reward in words"}, "step 1: expected reward to be a number, got str '1.5'"),
        ("Loose", {"returns": "large reward"}, r"step 1: expected a finite reward, as float32, got 1e\+39"),
        ("Wide", {"size": 1e39}, r"reset: expected finite numbers in observation, as float32, got inf at \[0\]"),
        ("Once", {}, "episode 1, reset: raised RuntimeError: closed .*world.fresh: true"),
        ("Unseeded", {}, r"reset: raised TypeError: .*'seed'.*; define reset\(self, \*, seed=None, options=None\)"),
        ("Undeclared", {}, "^observations: NoneType None is not a space of Gymnasium; declare observation_space"),
        ("Undeclared", {"observation_space": "Box(3,)"}, r"^observations: str 'Box\(3,\)' is not a space of Gymnasium"),
        ("Blind", {}, r"observations .*nothing is left to observe; declare a constant, Box\(0, 1, \(1,\)\)"),
    ],
)
def test_what_cannot_be_played_is_refused_with_the_cure(name, options, message):
    with pytest.raises(CoterieError, match=message):
        rewards(world(f"gymnasium/helpers.odd_envs:{name}-v0", options=options), 6)


def test_large_numbers_and_entries_without_numbers_are_played(caplog):
    wide = world("gymnasium/helpers.odd_envs:Wide-v0", options={"size": -1e38})
    np.testing.assert_array_equal(wide.reset(0).agent_types["agent"].observation, np.float32([[[-1e38, 1]]]))
    beside = world("gymnasium/helpers.odd_envs:Blind-v0", options={"beside": True})
    assert beside.reset(0).agent_types["agent"].observation["one"].tolist() == [[1]]
    assert caplog.text.count("entries without numbers left out of the observation: none") == 1
    assert rewards(world("gymnasium/helpers.odd_envs:Once-v0", fresh=True), 12) == [[1.0]] * 12


def test_an_episode_may_end_without_an_observation(caplog):
    silent = world("gymnasium/helpers.odd_envs:Loose-v0", options={"returns": "no last observation"})
    assert rewards(silent, 11) == [[1.0]] * 11
    assert silent.inner.timestep.agent_types["agent"].final_observation.tolist() == [[[4, 4]]]  # that of step 4
    assert caplog.text.count("ends without an observation; the one before counts") == 1


def test_a_reward_of_several_numbers_is_weighted():
    name = "gymnasium/helpers.odd_envs:Goals-v0"
    assert rewards(world(name, scalarize=[2, 0.5]), 3) == [[2.5], [3.0], [3.5]]
    for settings, message in (
        ({}, r"world\.scalarize"),
        ({"scalarize": [1]}, r"1 numbers.*world\.scalarize has, got 2"),
    ):
        with pytest.raises(ExternalEnvError, match=message):
            rewards(world(name, **settings), 1)
    with pytest.raises(ExternalEnvError, match=r"2 numbers.*world\.scalarize has, got 1"):
        rewards(world("gymnasium/helpers.odd_envs:Loose-v0", scalarize=[1, 1]), 1)
    with pytest.raises(schema.ConfigError, match="scalarize"):
        world(name, scalarize=[])


# Pictures ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frame", ["rgba", "list", "float", "grey"])
def test_pictures_of_other_types_are_converted_with_one_warning(frame, caplog):
    plain, drawn = (
        world("gymnasium/helpers.odd_envs:Drawn-v0", render=True, options={"frame": f}) for f in ("", frame)
    )
    for one in (plain, drawn):
        one.reset(0)
    for _ in range(2):
        np.testing.assert_array_equal(drawn.frame(0), plain.frame(0))
    assert caplog.text.count("render returns") == 1


@pytest.mark.parametrize(("frame", "got"), [("text", "<U5"), ("none", "None$")])
def test_what_is_no_picture_is_refused(frame, got):
    drawn = world("gymnasium/helpers.odd_envs:Drawn-v0", render=True, options={"frame": frame})
    drawn.reset(0)
    with pytest.raises(ExternalEnvError, match=rf"a picture \[height, width, 3\], got {got}"):
        drawn.frame(0)


def test_a_renderer_that_leaves_the_process_is_an_error():
    drawn = world("gymnasium/helpers.odd_envs:Drawn-v0", render=True, options={"frame": "exit"})
    drawn.reset(0)
    with pytest.raises(ExternalEnvError, match="Drawn-v0, copy 0: rendering: raised SystemExit: 3"):
        drawn.frame(0)
    drawn.inner.close()  # leaves the process, too


@pytest.mark.filterwarnings("error")  # Gymnasium's, about render modes that are not declared
def test_missing_metadata_is_not_mentioned():
    assert rewards(world("gymnasium/helpers.odd_envs:Item-v0"), 2) == [[1], [1]]


def test_choices_are_pythons_integers_as_well_as_numpys():
    assert rewards(world("gymnasium/helpers.odd_envs:Whole-v0"), 2) == [[1], [1]]
    choice = choice_type(np.dtype(np.int32))(3)
    assert type(pickle.loads(pickle.dumps(choice))) is int
    assert (choice, choice.item(), choice.dtype, np.asarray(choice).shape) == (3, 3, np.int32, choice.shape)
    assert gymnasium.spaces.Discrete(4).contains(choice)


def test_an_environment_keeps_the_type_of_its_space_and_its_checks():
    assert rewards(world("gymnasium/helpers.odd_envs:Plain-v0"), 2) == [[1], [1]]
    plain, fast = gymnasium.spaces.Discrete(3, start=-1), gymnasium.spaces.Discrete(3, start=-1)
    use_fast_discrete(fast)
    copies = [fast, copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))]
    for value in (-2, -1, 1, 2, np.int32(1), np.array(1), 1.0, "1", None, choice_type(np.dtype(np.int32))(1)):
        assert [value in space for space in copies] == [value in plain] * 3, value
    assert copies == [plain] * 3


# Homemade environments -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lacks", ["", "observations", "rewards"])
def test_what_a_dead_agent_lacks_is_filled_in_with_one_warning(lacks, caplog):
    name, options = "pettingzoo/helpers.odd_envs:Homemade", {"lacks": lacks}
    home = world(name, options=options)
    last = 0 if lacks == "rewards" else 1
    assert rewards(home, 8) == [[1, 1], [last, 1], [0, 1], [0, last]] * 2
    assert caplog.text.count("have no entry for") == caplog.text.count("have no entry for 'agent[0]'") == (lacks != "")
    check_world(lambda num_envs: world(name, num_envs, options=options), steps=20)


def test_names_with_brackets_can_be_used_in_settings(caplog):
    home = world("pettingzoo/helpers.odd_envs:Homemade")
    assert {name: kind.agents for name, kind in home.agent_types.items()} == {"agent": ("agent_0", "agent_1")}
    assert "'agent[0]' is called 'agent_0'" in caplog.text
    assert env_agents.public_names(["a[1]", "a_1", "x y"]) == {"a[1]": "a_1", "a_1": "a_1_2", "x y": "x y"}
    assert env_agents.public_names([("red", 0)]) == {("red", 0): "red_0"}


@pytest.mark.parametrize(
    ("defect", "message"),
    [
        ("old reset", r"reset: expected reset to return \(observations, infos\), got dict"),
        ("old step", r"step 1: expected step to return \(observations, rewards, .*infos\), got 4 values"),
        ("back", r"step 3: expected only agents that .* \(one that comes back must not end before\), got 'b'"),
    ],
)
def test_a_homemade_team_that_breaks_the_api_is_refused_with_the_cure(defect, message):
    with pytest.raises(ExternalEnvError, match=message):
        rewards(world("pettingzoo/helpers.odd_envs:Returns", options={"defect": defect}), 4)


@pytest.mark.parametrize(("turns", "where"), [(0, "reset"), (2, "step 2")])
def test_a_turn_of_nobody_is_refused(turns, where):
    with pytest.raises(ExternalEnvError, match=f"{where}: expected agent_selection to name a possible agent, got None"):
        rewards(world("pettingzoo/helpers.odd_envs:Nobody", options={"turns": turns}), 3)


def test_a_team_without_infos_is_played_with_one_warning(caplog):
    team = world("pettingzoo/helpers.odd_envs:Returns", options={"defect": "no infos"})
    assert rewards(team, 8) == [[1, 1]] * 8
    assert caplog.text.count("infos are NoneType instead of a dict; ignored") == 1


TALKING = """\
world: {name: "gymnasium/helpers.odd_envs:Talking-v0"}
groups: {agent: {policy: {name: network, hidden: [4]}, learner: ppo}}
train: {num_envs: 2, rollout_steps: 5, total_steps: 20, evaluate_episodes: 2, video: true, tensorboard: false}
"""


@pytest.mark.filterwarnings("error")  # Gymnasium's, about a render_mode that we ask for
def test_a_whole_training_warns_once_about_an_environment(tmp_path, caplog):
    (tmp_path / "talking.yaml").write_text(TALKING)
    coterie.train(tmp_path / "talking.yaml", out=tmp_path / "run", quiet=True)
    assert caplog.text.count("text left out of the observation: says") == 1


def test_a_language_model_reads_text_with_default_settings(tmp_path):
    overrides = ["world.text=true", "groups.agent.policy={name: language, lm: helpers.language:COPIER}"]
    (tmp_path / "talking.yaml").write_text(TALKING.replace("policy: {name: network, hidden: [4]}, learner: ppo", ""))
    run = coterie.train(tmp_path / "talking.yaml", [*overrides, "train.video=false"], out=tmp_path / "run", quiet=True)
    assert run.summary()["evaluation"]["groups"]["agent"]["length_mean"] == 5


def test_entries_with_equal_flat_names_are_kept_apart(caplog):
    seen = world("gymnasium/helpers.odd_envs:Collision-v0").reset(0).agent_types["agent"].observation
    assert {key: array.item() for key, array in seen.items()} == {"a/b": 1, "a/b_2": 7}
    assert "a second entry 'a/b' of the observation is called 'a/b_2'" in caplog.text


def test_a_missing_time_limit_is_mentioned(caplog, monkeypatch):
    monkeypatch.setattr(batch, "LONG_EPISODE", 20)
    rewards(world("gymnasium/helpers.odd_envs:Collision-v0"), 30)
    assert caplog.text.count("set world.max_episode_steps") == 1
    monkeypatch.setattr(batch, "_warned", set())
    rewards(world("gymnasium/helpers.odd_envs:Collision-v0", max_episode_steps=50), 30)
    rewards(world("gymnasium/helpers.odd_envs:Numbers-v0"), 30)
    assert caplog.text.count("set world.max_episode_steps") == 1
