"""The writer: rows, last observations, states of the world, and decisions left open."""

import numpy as np
import pytest

from coterie.core.decisions import Finals
from coterie.core.group import Actor
from coterie.core.trees import take
from coterie.core.types import AgentStep, Decision, TimeStep, View
from coterie.testing.comparison import expect_equal
from coterie.training.rollout import OpenDecisions, RolloutBuffer, Row, Seen, StateBuffer, cut_short, picker
from helpers.small_worlds import Counting, Numbered, experience, generator, group_spec, played

EPISODE = np.zeros((4, 2), np.int64)


def agent_step(num_envs=2, agents=3, seed=0, **fields):
    """Random numbers everywhere; nobody's episode is over."""
    random, rows = generator(seed), (num_envs, agents)
    given = {
        "observation": random.random((*rows, 3), np.float32),
        "acting": np.ones(rows, bool),
        "reward": random.random(rows, np.float32),
        "terminated": np.zeros(rows, bool),
        "truncated": np.zeros(rows, bool),
        "final_observation": random.random((*rows, 3), np.float32),
        "mask": random.random((*rows, 4)) < 0.5,
    }
    return AgentStep(**given | fields)


def writer(columns=(2, 0), policy=None, rows=4):
    where = group_spec(agents=3, columns=list(columns))
    return RolloutBuffer(Actor(where, policy or Counting()), 2, rows, agent_step())


def decide(one, t, seed=0):
    """Write a random decision at row t; returns what was seen and said."""
    pick, now, random = picker(one.group_spec), agent_step(seed=seed), generator(seed)
    held = random.random((2, 2, 1), np.float32)
    view = View(pick(now.observation), random.random((2, 2)) < 0.5, np.arange(2), random, False, pick(now.mask), held)
    said = Decision(random.integers(4, size=(2, 2)), random.random((2, 2), np.float32))
    one.decided(t, view, said)
    return view, said


# Rows ---------------------------------------------------------------------------------------------------


def test_a_groups_columns_are_written_in_its_order():
    one = writer()
    view, said = decide(one, 1)
    came = agent_step(seed=5, terminated=np.eye(2, 3, dtype=bool), truncated=np.eye(2, 3, 2, dtype=bool))
    one.step(1, came, np.zeros(0, np.int64), np.zeros((2, 2, 1), np.float32))
    last, held = agent_step(seed=6, acting=np.array([[1, 0, 0], [0, 0, 1]], bool)), np.full((2, 2, 1), 9.0)
    played = one.finish(last, held, EPISODE)
    row, seen, arrived = played.row, played.seen, played.arrived
    assert np.array_equal(seen.observation[1], view.observation)
    assert np.array_equal(row.active[1], view.acting)
    assert np.array_equal(row.mask[1], view.mask)
    assert np.array_equal(seen.memory[1], view.memory)
    assert np.array_equal(row.action[1], said.action)
    assert np.array_equal(row.log_prob[1], said.log_prob)
    assert np.array_equal(arrived.reward[1], came.reward[:, [2, 0]])
    assert np.array_equal(arrived.group_reward[1], arrived.reward[1].mean(axis=1, keepdims=True).repeat(2, axis=1))
    assert arrived.terminated[1].tolist() == [[False, True], [False, False]]
    assert arrived.truncated[1].tolist() == [[True, False], [False, False]]
    assert np.array_equal(seen.observation[4], last.observation[:, [2, 0]])
    assert played.acting.tolist() == [[False, True], [True, False]]
    assert (seen.memory[4] == 9).all()
    assert seen.memory.shape == (5, 2, 2, 1)


def test_without_masks_and_memory_there_are_none():
    where = group_spec(agents=3)
    first = agent_step(mask=None)
    own = RolloutBuffer(Actor(where, Numbered()), 2, 3, first).finish(first, None, EPISODE[:3]).close()
    assert own.mask is own.memory is own.finals.memory is None


def test_last_observations_are_kept_with_what_was_remembered():
    one = writer()
    held = generator().random((2, 2, 1), np.float32)
    first, second = agent_step(seed=1), agent_step(seed=2)
    one.step(0, first, np.array([1]), held)
    one.step(1, second, np.zeros(0, np.int64), held)
    one.step(3, second, np.array([0, 1]), held + 1)
    own = one.finish(agent_step(seed=3), held, EPISODE).close()
    assert own.finals.at.tolist() == [[0, 1], [3, 0], [3, 1]]
    pick = picker(one.group_spec)
    expected = np.concatenate([pick(first.final_observation)[1:], pick(second.final_observation)])
    assert np.array_equal(own.finals.observation, expected)
    assert np.array_equal(own.finals.memory, np.concatenate([held[1:], held + 1]))
    held[:] = 0  # the runner clears its memory in place afterwards
    assert own.finals.memory[0].any()


def test_where_nobody_was_cut_short_finals_are_empty_but_shaped():
    own = writer().finish(agent_step(), np.zeros((2, 2, 1), np.float32), EPISODE).close()
    assert own.finals.at.shape == (0, 2)
    assert own.finals.observation.shape == (0, 2, 3)
    assert own.finals.memory.shape == (0, 2, 1)


# Ends ---------------------------------------------------------------------------------------------------


def test_a_copy_is_cut_short_when_anybody_of_any_kind_was_truncated():
    no = np.zeros((4, 2), bool)
    left, right = no.copy(), no.copy()
    left[1, 0], right[2, 1] = True, True
    ended = np.array([True, True, True, False])
    right[3, 0] = True  # truncated, but the copy goes on: the next row shows where

    def timestep(ended):
        agent_types = {"a": agent_step(4, 2, terminated=~left, truncated=left), "b": agent_step(4, 2, truncated=right)}
        return TimeStep(agent_types, ended)

    assert cut_short(timestep(ended)).tolist() == [1, 2]
    assert cut_short(timestep(np.zeros(4, bool))).tolist() == []


def test_states_are_written_at_every_row_and_for_who_was_cut_short():
    states = generator().random((4, 3, 5), np.float32)
    last = generator(1).random((3, 5), np.float32)
    one = StateBuffer(3, states[0])
    for t in range(3):
        one.seen(t, states[t])
    timestep = TimeStep({}, np.ones(3, bool), state=states[1], final_state=last)
    one.arrived(timestep, np.zeros(0, np.int64))
    one.arrived(timestep, np.array([0, 2]))
    one.arrived(timestep, np.array([1]))
    kept = last.copy()
    last[:] = 0  # arrays belong to the world
    found = one.finish(states[3])
    assert np.array_equal(found.rows, states)
    assert np.array_equal(found.finals, kept[[0, 2, 1]])
    assert StateBuffer(3, states[0]).finish(states[0]).finals.shape == (0, 5)


# Open decisions ------------------------------------------------------------------------------------------


def opened():
    """Agent 0 decided at row 1 and waits since; 1 is about to act; 2's episode ended at row 2; 3 never acted."""
    return played(
        [[1, 10, 100, 1000], [2, 20, 200, 2000], [3, 30, 300, 3000], [4, 40, 400, 4000]],
        active=[[1, 0, 1, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]],
        acting=[False, True, False, False],
        terminated=[(2, 2)],
        observation=generator().random((5, 1, 4, 3), np.float32),
        action=np.arange(16).reshape(4, 1, 4),
        log_prob=-np.arange(16, dtype=np.float32).reshape(4, 1, 4),
        mask=generator(1).random((4, 1, 4, 2)) < 0.5,
        memory=np.arange(20, dtype=np.float32).reshape(5, 1, 4, 1),
    )


def test_open_decisions_are_taken_along_with_what_has_arrived():
    was = opened()
    found = was.left_open()
    assert found.row.active.tolist() == [[True, False, False, False]]
    assert found.row.action[0, 0] == 4
    assert found.row.log_prob[0, 0] == -4
    assert found.reward.tolist() == [[2 + 3 + 4, 0, 0, 0]]
    assert found.group_reward.tolist() == [[(2222 + 3333 + 4444) / 4, 0, 0, 0]]
    assert np.array_equal(found.seen.observation[0, 0], was.seen.observation[1, 0, 0])
    assert np.array_equal(found.row.mask[0, 0], was.row.mask[1, 0, 0])


def test_memory_of_the_open_is_from_their_decision_and_of_others_from_now():
    was = opened()
    assert was.left_open().seen.memory[0, :, 0].tolist() == [4, 17, 18, 19]
    plain = was._replace(row=was.row._replace(mask=None), seen=was.seen._replace(memory=None)).left_open()
    assert plain.seen.memory is plain.row.mask is None


def test_open_decisions_survive_a_checkpoint():
    found = opened().left_open()
    expect_equal("state", found.state(), OpenDecisions.from_state(found.state()).state())


@pytest.mark.parametrize("columns", [(2, 0), (0, 1, 2)])
def test_an_opening_is_row_0_of_the_next_rollout(columns):
    one = writer(columns)
    shape = (2, len(columns))
    random = generator()
    row = Row(
        active=random.random(shape) < 0.5,
        action=random.integers(4, size=shape),
        log_prob=random.random(shape, np.float32),
        mask=random.random((*shape, 4)) < 0.5,
        advice=None,
        trace=None,
    )
    seen = Seen(random.random((*shape, 3), np.float32), random.random((*shape, 1), np.float32))
    opening = OpenDecisions(row, seen, *random.random((2, *shape), np.float32))
    one.open(opening)
    found = one.finish(agent_step(), np.zeros((*shape, 1), np.float32), EPISODE)
    for name in ("active", "action", "log_prob", "mask"):
        expect_equal(name, getattr(row, name), getattr(found.row, name)[0])
    expect_equal("seen", seen, Seen(*take(found.seen, 0)))
    expect_equal("reward", opening.reward, found.arrived.reward[0])
    expect_equal("group reward", opening.group_reward, found.arrived.group_reward[0])


# The table -----------------------------------------------------------------------------------------------


def test_a_decision_is_closed_by_the_next_one_or_an_end():
    """Agent 0 decides at 0 and 2, and must act again; 1 decides at 0, ends at 1; 2 decides at 1 and waits."""
    own = experience(
        [[1, 10, 100], [2, 20, 200], [4, 40, 400]],
        active=[[1, 1, 0], [0, 0, 1], [1, 0, 0]],
        acting=[True, False, False],
        terminated=[(1, 1)],
    )
    assert own.valid[:, 0].tolist() == [[True, True, False], [False, False, False], [True, False, False]]
    assert own.reward[:, 0].tolist() == [[1 + 2, 10 + 20, 0], [0, 0, 0], [4, 0, 0]]
    assert own.group_reward[:, 0].tolist() == [[37 + 74, 37 + 74, 0], [0, 0, 0], [148, 0, 0]]
    assert own.next[:, 0].tolist() == [[2, 0, 0], [1, 1, 1], [3, 2, 2]]
    assert own.terminated[:, 0].tolist() == [[False, True, False], [False] * 3, [False] * 3]
    assert not own.truncated.any()


def test_a_truncated_decision_looks_at_the_final_observation_or_else_at_the_next_row():
    finals = Finals(np.array([[1, 0]]), np.full((1, 2, 3), 7.0, np.float32))
    own = experience([[1, 1], [1, 1], [1, 1]], truncated=[(1, 0), (2, 1)], finals=finals)
    assert own.next[:, 0].tolist() == [[1, 1], [4, 2], [3, 3]]
    rows = np.arange(8, dtype=np.float32).reshape(4, 1, 2)
    assert own.at_next(rows, np.array([[-5, -6]], np.float32))[:, 0].tolist() == [[2, 3], [-5, 5], [6, 7]]


def test_where_everybody_decides_in_every_row_the_table_is_a_view():
    was = played([[1, 2], [3, 4]], terminated=[(0, 1)])
    own = was.close()
    assert own.reward is was.arrived.reward
    assert own.valid is was.row.active
    assert own.next[:, 0].tolist() == [[1, 0], [2, 2]]
    idle = was._replace(row=was.row._replace(active=was.row.active & [[[True, False]], [[True, True]]])).close()
    assert idle.reward is not was.arrived.reward
    same = was._replace(row=was.row._replace(active=np.ones((2, 1, 2), bool)), acting=np.zeros((1, 2), bool)).close()
    assert same.valid[:, 0].tolist() == [[True, True], [False, False]]
