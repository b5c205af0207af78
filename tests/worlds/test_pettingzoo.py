"""PettingZoo environments as worlds: both APIs, agents that leave and appear, agent types, masks, rewards."""

import numpy as np
import pytest

from coterie.config import registry, schema
from coterie.core.types import Box, CoterieError, Discrete
from coterie.testing import check_world
from coterie.training.build import build_world
from coterie.worlds.adapters.batch import ExternalEnvError
from coterie.worlds.adapters.env_agents import agent_type_name
from helpers import external_envs


def world(name, num_envs=1, **settings):
    return build_world(schema.part(registry.WORLDS, {"name": name} | settings, "world"), num_envs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("mpe/simple_spread", {}),
        ("mpe/simple_spread_v3", {"api": "aec"}),
        ("mpe/simple_tag", {"options": {"continuous_actions": True}}),
        ("mpe/simple_speaker_listener", {}),
        ("pettingzoo/classic/tictactoe_v3", {}),
        ("pettingzoo/classic/connect_four_v3", {}),
        ("pettingzoo/classic/rps_v2", {}),
        ("pettingzoo/classic/rps_v2", {"api": "aec"}),
        ("pettingzoo/sisl/multiwalker", {"max_episode_steps": 20}),
        ("pettingzoo/butterfly/knights_archers_zombies", {"fresh": True, "max_episode_steps": 15}),
        ("pettingzoo/helpers.external_envs:Changing", {}),
        ("pettingzoo/helpers.external_envs:Changing", {"options": {"late": False}}),
        ("pettingzoo/helpers.external_envs:Duel", {}),
    ],
)
def test_check_world_passes(name, settings):
    check_world(lambda num_envs: world(name, num_envs, **settings), steps=40)


def test_agents_with_equal_spaces_form_an_agent_type():
    tag = world("mpe/simple_tag")
    assert {name: agent_type.agents for name, agent_type in tag.agent_types.items()} == {
        "adversary": ("adversary_0", "adversary_1", "adversary_2"),
        "agent": ("agent_0",),
    }
    assert tag.simultaneous
    assert set(world("mpe/simple_speaker_listener").agent_types) == {"speaker", "listener"}
    assert agent_type_name(["archer_0", "archer_1", "knight_0"], []) == "archer_knight"
    assert agent_type_name(["agent_1"], ["agent", "agent_2"]) == "agent_3"
    assert agent_type_name(["0", "1"], []) == "agent"


def test_agents_leave_early_and_appear_late():
    changing = world("pettingzoo/helpers.external_envs:Changing")
    assert not changing.simultaneous
    assert {n: k.agents for n, k in changing.agent_types.items()} == {
        "early_late_never": ("early_0", "late_0", "never_0"),
        "stays": ("stays_0",),
    }
    timestep = changing.reset(0)
    three = timestep.agent_types["early_late_never"]
    acting, steps = [three.acting[0].tolist()], []
    for _ in range(4):
        timestep = changing.step({"early_late_never": np.full((1, 3), 2), "stays": np.full((1, 1), 2)})
        acting.append(three.acting[0].tolist())
        steps.append([three.reward[0].tolist(), three.terminated[0].tolist(), three.truncated[0].tolist()])
        if len(steps) < 4:
            assert not timestep.ended[0]
    assert timestep.ended[0]
    early, late = [True, False, False], [False, True, False]
    assert acting == [early, [True, True, False], late, late, early]
    assert [step[0] for step in steps] == [[2, 0, 0], [2, 2, 0], [0, 2, 0], [0, 2, 0]]
    none = [False] * 3
    assert [step[1] for step in steps] == [none, early, none, none]
    assert [step[2] for step in steps] == [none, none, none, [False, True, True]]  # also agents that never appeared
    final = three.final_observation[0, :, 0]
    assert 2 < final[0] < 3  # its last observation
    assert 4 < final[1] < 5
    assert final[2] == 0


def test_masks_come_from_infos_and_idle_agents_have_all_actions():
    changing = world("pettingzoo/helpers.external_envs:Changing")
    mask = changing.reset(0).agent_types["early_late_never"].mask[0]
    np.testing.assert_array_equal(mask, [[True, False, True], [True] * 3, [True] * 3])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"defect": "vanish"},
            "step 1: expected 'early_0' to be terminated or truncated",
        ),
        ({"defect": "missing"}, "step 1: expected observations with an entry for 'stays_0', got"),
    ],
)
def test_invalid_output_of_a_parallel_environment_is_named(options, message):
    changing = world("pettingzoo/helpers.external_envs:Changing", options=options)
    changing.reset(0)
    with pytest.raises(ExternalEnvError, match=message):
        changing.step({"early_late_never": np.zeros((1, 3), int), "stays": np.zeros((1, 1), int)})


def test_rewards_and_ends_reach_idle_agents_at_once():
    """hunter_0 ends on another's turn and never acts again; the last reward goes to an idle agent."""
    duel = world("pettingzoo/helpers.external_envs:Duel")
    agent_step = duel.reset(0).agent_types["hunter"]
    steps = [(agent_step.acting[0].argmax(), 0, 0, 0)]
    for _ in range(5):
        timestep = duel.step({"hunter": np.zeros((1, 3), int)})
        steps.append(
            (agent_step.acting[0].argmax(), *(getattr(agent_step, f)[0].tolist() for f in ("reward", "terminated")))
        )
    no = [False] * 3
    assert [t[0] for t in steps] == [0, 1, 2, 1, 2, 0]
    assert [t[1] for t in steps[1:]] == [[0, 0, 0], [-1, 1, 0], [0, 0, 0], [0, 0, 0], [0, 0.5, 0]]
    assert [t[2] for t in steps[1:]] == [no, [True, False, False], no, no, no]
    assert timestep.ended[0]
    assert agent_step.truncated[0].tolist() == [False, True, True]
    assert agent_step.final_observation[0].tolist() == [2, 5, 5]


@pytest.mark.parametrize("observe_all", [False, True])
def test_only_the_mover_is_asked_for_its_observation(observe_all, monkeypatch):
    asked = []
    observe = external_envs.Duel.observe
    monkeypatch.setattr(external_envs.Duel, "observe", lambda self, agent: asked.append(agent) or observe(self, agent))
    duel = world("pettingzoo/helpers.external_envs:Duel", observe_all=observe_all, max_episode_steps=4)
    agent_step = duel.reset(0).agent_types["hunter"]
    asked.clear()
    duel.step({"hunter": np.zeros((1, 3), int)})
    assert asked == (["hunter_0", "hunter_1", "hunter_2"] if observe_all else ["hunter_1"])
    for _ in range(3):
        timestep = duel.step({"hunter": np.zeros((1, 3), int)})
    assert timestep.ended[0]
    assert agent_step.final_observation[0].tolist() == [2, 4, 4]  # at the end everybody is asked


def test_tictactoe_has_planes_masks_and_rewards_for_both():
    game = world("pettingzoo/classic/tictactoe")
    agent_type = game.agent_types["player"]
    assert agent_type.observation == Box((2, 3, 3), 0.0, 1.0)
    assert agent_type.action == Discrete(9)
    agent_step = game.reset(0).agent_types["player"]
    for cell in (0, 3, 1, 4):
        game.step({"player": np.full((1, 2), cell)})
    assert agent_step.mask[0, 0].tolist() == [c not in (0, 1, 3, 4) for c in range(9)]
    assert agent_step.mask[0, 1].all()
    timestep = game.step({"player": np.full((1, 2), 2)})
    assert timestep.ended[0]
    assert agent_step.reward[0].tolist() == [1, -1]
    assert agent_step.terminated[0].all()
    assert agent_step.final_observation[0, 0, 0].sum() == 3


def test_mpe_equals_mpe2():
    from mpe2 import simple_tag_v3

    from coterie.core import seeding

    ours, plain = world("mpe/simple_tag"), simple_tag_v3.parallel_env()
    timestep = ours.reset(4)
    seen, _ = plain.reset(seed=seeding.integer(4, "guest", 0, 0) % 2**31)
    random = seeding.generator(0, "tag")
    for step in range(25):
        for name, agent_type in ours.agent_types.items():
            for column, agent in enumerate(agent_type.agents):
                observed = (
                    timestep.agent_types[name].final_observation
                    if timestep.ended[0]
                    else timestep.agent_types[name].observation
                )
                np.testing.assert_array_equal(observed[0, column], seen[agent])
        actions = {
            name: random.integers(5, size=(1, len(agent_type.agents))) for name, agent_type in ours.agent_types.items()
        }
        named = {a: int(actions[n][0, c]) for n, k in ours.agent_types.items() for c, a in enumerate(k.agents)}
        timestep = ours.step(actions)
        seen, rewards, _, _, _ = plain.step(named)
        for name, agent_type in ours.agent_types.items():
            expected = np.float32([rewards[agent] for agent in agent_type.agents])
            np.testing.assert_array_equal(timestep.agent_types[name].reward[0], expected)
        assert timestep.ended[0] == (step == 24)


def test_unknown_names_are_refused_with_a_hint():
    for name, message in (
        (
            "pettingzoo/butterfly/knights_archers_zombies_v10",
            "did you mean 'pettingzoo/butterfly/knights_archers_z.*v11",
        ),
        ("pettingzoo/classic/tictactow", "did you mean 'pettingzoo/classic/tictactoe_v3'"),
        ("pettingzoo/mpe/simple_spread", "set world.name=mpe/simple_spread"),
        ("pettingzoo/clasic/tictactoe", "PettingZoo has no family 'clasic'"),
        ("mpe/simple_spred", "did you mean 'mpe/simple_spread_v3'"),
        ("pettingzoo/helpers.external_envs:WithoutAgents", "possible_agents"),
        ("pettingzoo/helpers.external_envs:Broken", "expected a ParallelEnv or an AECEnv, got Broken"),
        ("pettingzoo/helpers.external_envs", "parallel_env or env"),
    ):
        with pytest.raises(CoterieError, match=message):
            world(name)
    with pytest.raises(CoterieError, match="parallel_env"):
        world("pettingzoo/classic/tictactoe", api="parallel")


def test_a_module_of_ones_own_that_is_not_found_is_told_apart_from_a_package_that_it_lacks(tmp_path, monkeypatch):
    """A run is often opened from another directory than the one that holds its environment."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "lacking_env.py").write_text("import no_such_package\n")
    with pytest.raises(CoterieError, match=r"'no_such_package', which is not installed$"):
        world("pettingzoo/lacking_env:env")
    for name in ("no_such_env:env", "no_such_env.inner:env"):
        with pytest.raises(CoterieError, match=r"'no_such_env', which is not found; .* directory that holds it"):
            world(f"pettingzoo/{name}")


def test_late_agents_need_the_setting_late():
    """All agents are present in the first episode but not in a later one."""
    changing = world("pettingzoo/helpers.external_envs:Changing", options={"late": False})
    changing.inner._workers[0].batch.envs[0].agents.names.append("late_0")  # as if present in the first episode
    with pytest.raises(ExternalEnvError, match=r"reset: .*'late_0'.*world.late: true"):
        changing.reset(0)


def test_no_illegal_move_is_made_to_find_masks(monkeypatch):
    logger, made = pytest.importorskip("pettingzoo.utils.env_logger").EnvLogger, []
    monkeypatch.setattr(logger, "warn_on_illegal_move", lambda: made.append(True))
    part = schema.part(registry.WORLDS, "pettingzoo/classic/tictactoe_v3", "world")
    assert build_world(part, 1).reset(0).agent_types["player"].mask.all()
    assert not made


@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"name": "pettingzoo/pettingzoo.classic.tictactoe_v3:nothing"}, "world.name: "),
        ({"name": "pettingzoo/classic/tictactoe", "options": {"nothing": 1}}, "world.options: "),
    ],
)
def test_a_wrong_function_or_option_is_named_by_its_path(settings, path, processes):
    part = schema.part(registry.WORLDS, settings | {"processes": processes}, "world")
    with pytest.raises(CoterieError, match=rf"^{path}.*nothing"):
        build_world(part, 1)
