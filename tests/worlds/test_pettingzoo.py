"""PettingZoo's environments as worlds: both interfaces, agents that leave and appear, kinds, masks, rewards."""

import numpy as np
import pytest

from coterie.config import registry, schema
from coterie.core.types import Box, CoterieError, Discrete
from coterie.testing.learners import check_world
from coterie.training.build import build_world
from coterie.worlds.adapters.batch import ExternalEnvError
from coterie.worlds.adapters.pettingzoo import kind_name


def world(name, num_envs=1, **settings):
    return build_world(schema.part(registry.WORLDS, {"name": name} | settings, "world"), num_envs)


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
        ("pettingzoo/helpers.guest:Coming", {}),
        ("pettingzoo/helpers.guest:Coming", {"options": {"late": False}}),
        ("pettingzoo/helpers.guest:Duel", {}),
    ],
)
def test_the_contract_is_kept(name, settings):
    check_world(lambda num_envs: world(name, num_envs, **settings), steps=40)


def test_kinds_are_agents_of_equal_spaces_named_by_what_they_share():
    tag = world("mpe/simple_tag")
    assert {name: agent_type.agents for name, agent_type in tag.agent_types.items()} == {
        "adversary": ("adversary_0", "adversary_1", "adversary_2"),
        "agent": ("agent_0",),
    }
    assert tag.simultaneous
    assert set(world("mpe/simple_speaker_listener").agent_types) == {"speaker", "listener"}
    assert kind_name(["archer_0", "archer_1", "knight_0"], []) == "archer_knight"
    assert kind_name(["agent_1"], ["agent", "agent_2"]) == "agent_3"
    assert kind_name(["0", "1"], []) == "agent"


def test_agents_leave_early_and_appear_late():
    coming = world("pettingzoo/helpers.guest:Coming")
    assert not coming.simultaneous
    assert {n: k.agents for n, k in coming.agent_types.items()} == {
        "early_late_never": ("early_0", "late_0", "never_0"),
        "stays": ("stays_0",),
    }
    timestep = coming.reset(0)
    three = timestep.agent_types["early_late_never"]
    acting, told = [three.acting[0].tolist()], []
    for _ in range(4):
        timestep = coming.step({"early_late_never": np.full((1, 3), 2), "stays": np.full((1, 1), 2)})
        acting.append(three.acting[0].tolist())
        told.append([three.reward[0].tolist(), three.terminated[0].tolist(), three.truncated[0].tolist()])
        if len(told) < 4:
            assert not timestep.ended[0]
    assert timestep.ended[0]
    early, late = [True, False, False], [False, True, False]
    assert acting == [early, [True, True, False], late, late, early]
    assert [step[0] for step in told] == [[2, 0, 0], [2, 2, 0], [0, 2, 0], [0, 2, 0]]
    none = [False] * 3
    assert [step[1] for step in told] == [none, early, none, none]
    assert [step[2] for step in told] == [none, none, none, [False, True, True]]  # also who never came
    final = three.final_observation[0, :, 0]
    assert 2 < final[0] < 3  # what it last saw
    assert 4 < final[1] < 5
    assert final[2] == 0


def test_masks_come_from_infos_too_and_idle_rows_are_all_legal():
    coming = world("pettingzoo/helpers.guest:Coming")
    mask = coming.reset(0).agent_types["early_late_never"].mask[0]
    np.testing.assert_array_equal(mask, [[True, False, True], [True] * 3, [True] * 3])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"defect": "vanish"},
            "step 1: expected 'early_0' to be terminated or truncated before it leaves, got neither",
        ),
        ({"defect": "missing"}, "step 1: expected observations with an entry for 'stays_0', got"),
    ],
)
def test_what_parallel_environments_get_wrong_is_named(options, message):
    coming = world("pettingzoo/helpers.guest:Coming", options=options)
    coming.reset(0)
    with pytest.raises(ExternalEnvError, match=message):
        coming.step({"early_late_never": np.zeros((1, 3), int), "stays": np.zeros((1, 1), int)})


def test_rewards_and_ends_of_turns_arrive_at_once():
    """hunter_0 is shot on another's turn and never acts again; the last reward goes to an idle agent."""
    duel = world("pettingzoo/helpers.guest:Duel")
    agent_step = duel.reset(0).agent_types["hunter"]
    told = [(agent_step.acting[0].argmax(), 0, 0, 0)]
    for _ in range(5):
        timestep = duel.step({"hunter": np.zeros((1, 3), int)})
        told.append(
            (agent_step.acting[0].argmax(), *(getattr(agent_step, f)[0].tolist() for f in ("reward", "terminated")))
        )
    no = [False] * 3
    assert [t[0] for t in told] == [0, 1, 2, 1, 2, 0]
    assert [t[1] for t in told[1:]] == [[0, 0, 0], [-1, 1, 0], [0, 0, 0], [0, 0, 0], [0, 0.5, 0]]
    assert [t[2] for t in told[1:]] == [no, [True, False, False], no, no, no]
    assert timestep.ended[0]
    assert agent_step.truncated[0].tolist() == [False, True, True]
    assert agent_step.final_observation[0].tolist() == [2, 5, 5]


def test_tictactoe_sees_planes_and_legal_moves_and_pays_both():
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


def test_mpe_plays_exactly_what_mpe2_plays():
    from mpe2 import simple_tag_v3

    from coterie.core import seeding

    ours, plain = world("mpe/simple_tag"), simple_tag_v3.parallel_env()
    timestep = ours.reset(4)
    seen, _ = plain.reset(seed=seeding.integer(4, "guest", 0, 0) % 2**31)
    random = seeding.generator(0, "tag")
    for step in range(25):
        for name, agent_type in ours.agent_types.items():
            for column, agent in enumerate(agent_type.agents):
                told = (
                    timestep.agent_types[name].final_observation
                    if timestep.ended[0]
                    else timestep.agent_types[name].observation
                )
                np.testing.assert_array_equal(told[0, column], seen[agent])
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


def test_what_cannot_be_found_is_named_with_its_cure():
    for name, message in (
        (
            "pettingzoo/butterfly/knights_archers_zombies_v10",
            "did you mean 'pettingzoo/butterfly/knights_archers_z.*v11",
        ),
        ("pettingzoo/classic/tictactow", "did you mean 'pettingzoo/classic/tictactoe_v3'"),
        ("pettingzoo/clasic/tictactoe", "PettingZoo has no family 'clasic'"),
        ("mpe/simple_spred", "did you mean 'mpe/simple_spread_v3'"),
        ("pettingzoo/helpers.guest:Nameless", "expected possible_agents to name all agents"),
        ("pettingzoo/helpers.guest:Broken", "expected a ParallelEnv or an AECEnv, got Broken"),
        ("pettingzoo/helpers.guest", "expected parallel_env or env in it, got neither"),
    ):
        with pytest.raises(CoterieError, match=message):
            world(name)
    with pytest.raises(CoterieError, match="expected parallel_env in it"):
        world("pettingzoo/classic/tictactoe", api="parallel")


def test_late_agents_must_be_announced():
    """Everybody is there in the first episode that is looked at, but not in a later one."""
    from helpers import guest as guest_cases

    coming = world("pettingzoo/helpers.guest:Coming", options={"late": False})
    coming.inner._hosts[0].stage.guests[0].table.agents.append("somebody")  # as if seen in the first look
    with pytest.raises(ExternalEnvError, match=r"reset: expected all of .* from the start .*world.late: true"):
        coming.reset(0)
    assert guest_cases.Coming().possible_agents[2] == "late_0"
