"""Joint transitions: by hand, across rollouts, with agents that leave early."""

import dataclasses

import numpy as np
import pytest

from coterie.algorithms.joint_transitions import JointLayout
from coterie.core.decisions import Decisions, Finals, Joint
from coterie.core.group import GroupInfo
from coterie.core.types import AgentType, Box, Discrete, MultiDiscrete
from coterie.nn.packing import encode
from coterie.training.runner import Runner
from coterie.worlds.mpe.world import Tag, TagSettings
from helpers.maddpg import at_one_table, deterministic
from helpers.small_worlds import actors, experience, spec_in

NUMBER = Box((1,), 0.0, 99.0)
HUNTER = AgentType(("h0", "h1"), NUMBER, Discrete(3))
PREY = AgentType(("p0",), Box((2,), 0.0, 99.0), Box((1,), 0.0, 4.0))
GROUPS = (GroupInfo("hunters", 2, HUNTER), GroupInfo("prey", 1, PREY))


def rollout(rows, first=0, hunters=None, prey=None, final=None):
    """`rows` time steps of one copy: hunters observe 10·t + agent and choose t % 3, the prey (t, −t) and t % 5."""
    t = np.arange(first, first + rows)
    seen = (10 * np.arange(first, first + rows + 1)[:, None] + [0, 1]).astype(np.float32)
    clock = np.arange(first, first + rows + 1, dtype=np.float32)
    index = np.array([final] if final else []).reshape(-1, 2).astype(int)
    one = experience(
        np.stack([t, 100 + t], axis=1),
        observation=seen[:, None, :, None],
        action=np.repeat(t[:, None, None] % 3, 2, axis=2),
        finals=Finals(index, np.full((len(index), 2, 1), 77, np.float32)),
        **hunters or {},
    )
    two = experience(
        -t[:, None],
        observation=np.stack([clock, -clock], axis=1)[:, None, None],
        action=(t % 5).astype(np.float32)[:, None, None, None],
        finals=Finals(index, np.full((len(index), 1, 2), 88, np.float32)),
        **prey or {},
    )
    return {"hunters": one, "prey": two}


def cut(layout, experiences, pending=None, gamma=0.5):
    own = experiences[layout.own.info.group]
    return layout.complete(Joint(experiences, 1, 0.0), own.reward, pending, gamma)[:2]


def one_hot(choice, size=3):
    return np.eye(size)[choice].tolist()


def done(t):
    """All encoded actions at a time step."""
    return one_hot(t % 3) * 2 + [(t % 5) / 2 - 1]


def test_the_layout_of_all_groups():
    layout = JointLayout(GROUPS, "prey")
    assert (layout.obs_size, layout.action_size, layout.num_agents) == (4, 7, 3)
    assert layout.own is layout.groups["prey"]
    assert layout.groups["hunters"].observations(np.arange(8).reshape(2, 4)).tolist() == [[[0], [1]], [[4], [5]]]
    assert layout.groups["prey"].observations(np.arange(4)).tolist() == [[2, 3]]
    assert layout.groups["hunters"].actions(np.arange(7)).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert layout.obs_agent.tolist() == [0, 1, 2, 2]
    assert layout.action_agent.tolist() == [0, 0, 0, 1, 1, 1, 2]


def test_a_row_is_complete_when_all_next_decisions_are_known():
    layout = JointLayout(GROUPS, "hunters")
    rows, pending = cut(layout, rollout(3))
    assert rows.observation.tolist() == [[0, 1, 0, 0], [10, 11, 1, -1]]
    assert rows.action.tolist() == [done(0), done(1)]
    assert rows.next_obs.tolist() == [[10, 11, 1, -1], [20, 21, 2, -2]]
    assert rows.next_action.tolist() == [done(1), done(2)]
    assert rows.reward.tolist() == [[0, 100], [1, 101]]
    assert rows.discount.tolist() == [[0.5, 0.5]] * 2
    assert rows.valid.all()
    assert rows.next_active.all()
    assert rows.legal.all()
    assert pending.active.all()
    rows, pending = cut(layout, rollout(2, first=3), pending)
    assert rows.observation.tolist() == [[20, 21, 2, -2], [30, 31, 3, -3]]
    assert rows.next_obs.tolist() == [[30, 31, 3, -3], [40, 41, 4, -4]]
    assert rows.next_action.tolist() == [done(3), done(4)]
    assert rows.reward.tolist() == [[2, 102], [3, 103]]


def test_the_rewards_are_those_of_the_group_that_learns():
    rows, _ = cut(JointLayout(GROUPS, "prey"), rollout(4))
    assert rows.reward.tolist() == [[0], [-1], [-2]]
    assert rows.valid.shape == (3, 1)


def test_rollouts_of_any_length_give_the_same_rows():
    layout = JointLayout(GROUPS, "hunters")
    whole, _ = cut(layout, rollout(12))
    for length in (1, 2, 3, 4, 6):
        pending, parts = None, []
        for first in range(0, 12, length):
            rows, pending = cut(layout, rollout(length, first), pending)
            parts.append(rows)
        for column, pieces in zip(whole, zip(*parts, strict=True), strict=True):
            assert np.array_equal(column, np.concatenate(pieces))


def test_termination_ends_the_row_and_nothing_follows():
    ends = {"hunters": {"terminated": [(1, 0), (1, 1)]}, "prey": {"terminated": [(1, 0)]}}
    rows, pending = cut(JointLayout(GROUPS, "hunters"), rollout(2, **ends))
    assert rows.discount.tolist() == [[0.5, 0.5], [0, 0]]
    assert rows.next_obs[1].tolist() == [0] * 4
    assert rows.next_action[1].tolist() == [0] * 7
    assert not rows.next_active[1].any()
    assert not pending.active.any()  # complete at once: nobody waits for the next rollout
    again, _ = cut(JointLayout(GROUPS, "hunters"), rollout(2, first=2), pending)
    assert again.observation.tolist() == [[20, 21, 2, -2]]


def test_where_an_episode_is_cut_short_the_last_observation_follows_and_the_latest_actions_stand_in():
    ends = {"hunters": {"truncated": [(0, 0), (0, 1)]}, "prey": {"truncated": [(0, 0)]}}
    rows, _ = cut(JointLayout(GROUPS, "hunters"), rollout(3, final=(0, 0), **ends))
    assert rows.discount.tolist() == [[0.5, 0.5]] * 2
    assert rows.next_obs[0].tolist() == [77, 77, 88, 88]
    assert rows.next_action[0].tolist() == done(0)
    assert rows.next_active[0].all()
    assert rows.next_obs[1].tolist() == [20, 21, 2, -2]  # the next episode's rows follow each other
    rows, pending = cut(JointLayout(GROUPS, "hunters"), rollout(1, final=(0, 0), **ends))
    assert rows.next_obs.tolist() == [[77, 77, 88, 88]]
    assert not pending.active.any()


def test_one_who_leaves_early_is_zeros_from_then_on():
    """Hunter 1 terminates at step 0; the others go on until step 2, where they are truncated."""
    hunters = {
        "active": [[1, 1], [1, 0], [1, 0], [1, 1]],
        "terminated": [(0, 1)],
        "truncated": [(2, 0)],
    }
    rollouts = rollout(4, hunters=hunters, prey={"truncated": [(2, 0)]}, final=(2, 0))
    rows, _ = cut(JointLayout(GROUPS, "hunters"), rollouts)
    assert rows.valid.tolist() == [[True, True], [True, False], [True, False]]
    assert rows.discount[0].tolist() == [0.5, 0]
    assert rows.observation.tolist() == [[0, 1, 0, 0], [10, 0, 1, -1], [20, 0, 2, -2]]
    assert rows.action[1].tolist() == [*one_hot(1), 0, 0, 0, -0.5]
    assert rows.next_obs.tolist() == [[10, 0, 1, -1], [20, 0, 2, -2], [77, 0, 88, 88]]
    assert rows.next_action[0].tolist() == [*one_hot(1), 0, 0, 0, -0.5]
    assert rows.next_active.tolist() == [[True, False, True]] * 3


def test_who_is_cut_short_alone_sees_a_last_time_what_its_next_row_shows():
    rollouts = rollout(3, hunters={"active": [[1, 1], [1, 0], [1, 0]], "truncated": [(0, 1)]})
    rows, _ = cut(JointLayout(GROUPS, "hunters"), rollouts)
    assert rows.next_obs[0].tolist() == [10, 11, 1, -1]
    assert rows.discount[0].tolist() == [0.5, 0.5]
    assert rows.next_action[0].tolist() == [*one_hot(1), *one_hot(0), -0.5]  # the first one's next, the second's latest


def test_a_group_that_is_out_leaves_no_rows():
    rollouts = rollout(3, hunters={"active": [[0, 0]] * 3})
    rows, _ = cut(JointLayout(GROUPS, "hunters"), rollouts)
    assert len(rows.reward) == 0
    rows, _ = cut(JointLayout(GROUPS, "prey"), rollouts)
    assert len(rows.reward) == 2
    assert (rows.observation[:, :2] == 0).all()


def test_what_is_legal_now_and_next():
    mask = np.ones((3, 1, 2, 3), bool)
    mask[0, 0, 0, 1] = mask[1, 0, 1, 2] = mask[2, 0, 0, 0] = False
    ends = {"truncated": [(1, 0), (1, 1)]}
    rollouts = rollout(3, hunters={"mask": mask, **ends}, prey={"truncated": [(1, 0)]}, final=(1, 0))
    rows, _ = cut(JointLayout(GROUPS, "hunters"), rollouts)
    legal = mask.reshape(3, 6)
    assert rows.legal[:, :6].tolist() == legal[:2].tolist()
    assert rows.next_legal[:, :6].tolist() == [legal[1].tolist()] * 2  # after a cut what was legal before it
    assert rows.legal[:, 6].all()


def test_several_choices_at_once_are_read_without_their_mask():
    agent_type = AgentType(("a",), NUMBER, MultiDiscrete((2, 3)))
    own = experience([[0]] * 2, observation=np.zeros((3, 1, 1, 1), "f4"), action=np.array([[[[1, 2]]], [[[0, 0]]]]))
    own = dataclasses.replace(own, finals=Finals(np.zeros((0, 2), int), np.zeros((0, 1, 1), "f4")))
    rows, _ = cut(JointLayout((GroupInfo("a", 1, agent_type),), "a"), {"a": own})
    assert rows.action.tolist() == [[0, 1, 0, 0, 1]]


@pytest.mark.parametrize("continuous", [True, False])
def test_what_a_real_world_did(continuous):
    """Tag is played for two rollouts; every row agrees with what was written down."""
    world = Tag(TagSettings(max_steps=7, continuous_actions=continuous), 5)
    group_specs = [spec_in(world, group=agent_type, agent_type=agent_type) for agent_type in world.agent_types]
    group_specs = at_one_table(*group_specs)
    layout = JointLayout(group_specs[0].table, group_specs[1].group)
    runner = Runner(world, actors(*((p, deterministic(p)) for p in group_specs)), seed=0)
    pending, played, total = None, [], 0
    for iteration in range(2):
        played.append(runner.play(10, iteration).decisions)
        rows, pending = cut(layout, played[-1], pending, 0.9)
        total += len(rows.reward)
        own = played[-1][group_specs[1].group]
        assert (rows.discount == np.float32(0.9)).all()  # time alone ends an episode
        assert rows.next_active.all()
        cuts = rows.next_action == rows.action
        if continuous:
            assert cuts.all(axis=1).sum() == own.truncated[..., 0].sum()
        seen = {o.tobytes() for e in played for o in e[group_specs[1].group].observation.reshape(-1, 14)}
        seen |= {o.tobytes() for e in played for o in e[group_specs[1].group].finals.observation.reshape(-1, 14)}
        for observation in (rows.observation, rows.next_obs):
            for one in layout.own.observations(observation).reshape(-1, 14):
                assert one.tobytes() in seen
    assert total == 5 * 20 - int(pending.active.any(axis=1).sum())
    assert isinstance(played[0]["adversary"], Decisions)
    space = group_specs[0].spaces.action
    assert np.array_equal(
        layout.groups["adversary"].actions(rows.action)[0], encode(space, played[0]["adversary"].action[-1, 0])
    )


def test_joint_observations_keep_their_bounds():
    free = AgentType(("f0",), Box((1,), -np.inf, 5.0), Discrete(2))
    seen = JointLayout((GroupInfo("prey", 2, PREY), GroupInfo("free", 1, free)), "prey").observation_space()
    assert seen.shape == (5,)
    np.testing.assert_allclose(seen.low, [0, 0, 0, 0, -1], atol=1e-5)
    np.testing.assert_allclose(seen.high, [99, 99, 99, 99, 1])
