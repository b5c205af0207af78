"""Transitions of n decisions: by hand, and against a slow reading of whole episodes."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.algorithms.dqn.transitions import (
    agent_trajectories,
    complete_transitions,
    empty_transitions,
    no_pending,
    team_trajectories,
)
from coterie.core.decisions import Finals, StateRows
from coterie.core.group import Policy
from coterie.core.types import Advice, AgentStep, AgentType, Box, Decision, Discrete, TimeStep
from coterie.training.runner import Runner
from coterie.worlds.boards.tictactoe import Tictactoe, TictactoeSettings
from coterie.worlds.gridworld.world import Gridworld, GridworldSettings
from helpers.small_worlds import Rounds, Unsaved, actors, experience, generator, spec_in

GAMMA = 0.5  # its powers, and sums of small whole numbers weighted by them, are exact


def rollout(reward, finals=(), masks=None, **fields):
    """Experience of one copy in which agent a sees (t, a, 0) at row t; a final observation is (t, a, 1)."""
    rows, agents = np.shape(reward)
    seen = np.zeros((rows + 1, 1, agents, 3), np.float32)
    seen[..., 0], seen[..., 1] = np.arange(rows + 1)[:, None, None], np.arange(agents)
    last = np.zeros((len(finals), agents, 3), np.float32)
    for i, t in enumerate(finals):
        last[i] = [(t, a, 1) for a in range(agents)]
    index = np.array([(t, 0) for t in finals], np.int64).reshape(-1, 2)
    action = np.arange(rows * agents).reshape(rows, 1, agents)
    mask = np.ones((rows, 1, agents, 2), bool) if masks is None else np.array(masks, bool)[:, None]
    given = {"observation": seen, "action": action, "finals": Finals(index, last), "mask": mask}
    return experience(reward, **given | fields)


def cut(own, steps=1, parameter_sets=1, pending=None, gamma=GAMMA):
    """The transitions of every stack."""
    parts = agent_trajectories(own, own.observation, own.finals.observation, own.reward, parameter_sets)
    pending = pending or [no_pending(p.active.shape[1], steps, empty_transitions(0, 1, 3, 2, 0)) for p in parts]
    return [complete_transitions(part, waiting, gamma) for part, waiting in zip(parts, pending, strict=True)], pending


def cut_team(own, state, steps=1):
    one = team_trajectories(own, own.observation, own.finals.observation, own.reward, state)
    like = empty_transitions(0, own.valid.shape[2], 3, 2, state.rows.shape[-1])
    return complete_transitions(one, no_pending(own.valid.shape[1], steps, like), GAMMA)


def brief(rows):
    """(row of the decision, reward, discount, row of what follows, whether that is a final one) of sequences of one."""
    now, later = rows.observation[:, 0], rows.next_obs[:, 0]
    numbers = (now[:, 0], rows.reward, rows.discount, later[:, 0], later[:, 2])
    return [tuple(float(x) for x in row) for row in zip(*numbers, strict=True)]


# By hand -----------------------------------------------------------------------------------------------


def test_one_decision_each():
    (rows,), _ = cut(rollout([[1], [2], [4]]))
    assert brief(rows) == [(0, 1, 0.5, 1, 0), (1, 2, 0.5, 2, 0)]  # what follows the third is not decided yet
    assert rows.action[:, 0].tolist() == [0, 1]
    assert rows.active.all()
    assert rows.next_active.all()


def test_three_decisions_each():
    (rows,), _ = cut(rollout([[1], [2], [4], [8], [16]]), steps=3)
    assert brief(rows) == [(0, 1 + 1 + 1, 0.125, 3, 0), (1, 2 + 2 + 2, 0.125, 4, 0)]


def test_termination_inside_the_window():
    (rows,), pending = cut(rollout([[1], [2], [4], [8]], terminated=[(2, 0)]), steps=3)
    assert [row[:3] for row in brief(rows)] == [(0, 1 + 1 + 1, 0), (1, 2 + 2, 0), (2, 4, 0)]
    assert pending[0].filled.tolist() == [1]  # the decision of the next episode
    assert not rows.next_active.any()


def test_termination_at_the_last_decision_of_the_window_does_not_look_beyond():
    (rows,), _ = cut(rollout([[1], [2], [4], [8], [0]], terminated=[(1, 0)]), steps=2)
    assert [row[:3] for row in brief(rows)] == [(0, 1 + 1, 0), (1, 2, 0), (2, 4 + 4, 0.25)]


def test_truncation_looks_at_the_final_observation():
    own = rollout([[1], [2], [4], [8]], truncated=[(2, 0)], finals=[2])
    (rows,), _ = cut(own, steps=2)
    assert brief(rows) == [(0, 1 + 1, 0.25, 2, 0), (1, 2 + 2, 0.25, 2, 1), (2, 4, 0.5, 2, 1)]


def test_truncation_without_a_reset_looks_at_the_next_row():
    (rows,), _ = cut(rollout([[1], [2], [4]], truncated=[(1, 0)], active=[[1], [1], [0]]), steps=3)
    assert brief(rows) == [(0, 2, 0.25, 2, 0), (1, 2, 0.5, 2, 0)]


def test_each_agent_looks_at_its_own_final_observation():
    own = rollout([[1, 10], [2, 20]], truncated=[(0, 1)], terminated=[(0, 0)], finals=[0])
    (rows,), _ = cut(own)
    assert rows.agent.tolist() == [0, 1]
    assert rows.discount.tolist() == [0, 0.5]
    assert rows.next_obs[1, 0].tolist() == [0, 1, 1]


def test_discount_counts_own_decisions_and_rewards_come_while_idle():
    own = rollout([[1], [2], [4], [8], [16], [32]], active=[[1], [0], [0], [1], [0], [1]])
    (rows,), pending = cut(own, steps=1)
    assert brief(rows) == [(0, 1 + 2 + 4, 0.5, 3, 0), (3, 8 + 16, 0.5, 5, 0)]
    (rows,), _ = cut(own, steps=2)
    assert brief(rows) == [(0, 7 + 12, 0.25, 5, 0)]
    assert pending[0].reward[0, 0] == 32


def test_an_end_that_comes_while_idle_belongs_to_the_latest_decision():
    own = rollout([[1], [2], [4]], active=[[1], [0], [1]], terminated=[(1, 0)])
    (rows,), _ = cut(own)
    assert [row[:3] for row in brief(rows)] == [(0, 1 + 2, 0)]


def test_a_reward_before_the_first_decision_belongs_to_nobody():
    (rows,), _ = cut(rollout([[100], [1], [2]], active=[[0], [1], [1]]))
    assert brief(rows) == [(1, 1, 0.5, 2, 0)]


def test_an_open_decision_waits_for_the_next_rollout():
    own = rollout([[1], [2], [4]], active=[[1], [1], [0]], acting=[False])
    (rows,), pending = cut(own)
    assert len(rows.reward) == 0
    assert pending[0].filled.tolist() == [1]
    again = rollout([[6], [8], [16]], active=[[1], [0], [1]])  # row 0: the open one, with what has come so far
    (rows,), _ = cut(again, pending=pending)
    assert rows.reward.tolist() == [1, 6 + 8]


def test_masks_are_those_of_the_next_decision():
    masks = [[[1, 1]], [[1, 0]], [[0, 1]], [[0, 1]]]
    (rows,), _ = cut(rollout([[1], [2], [4], [8]], masks=masks, truncated=[(3, 0)], finals=[3]), steps=2)
    assert rows.next_mask[:, 0].tolist() == [[False, True]] * 4  # at a truncation those of the last decision
    assert rows.mask[:, 0].astype(int).tolist() == [mask for ((mask,),) in zip(masks, strict=True)]


@pytest.mark.parametrize("steps", [1, 3])
def test_advised_actions_follow_their_decisions(steps):
    """Also into the next rollout; −1 stands where the advisor said nothing."""
    given = np.array([True, False, True, True])[:, None, None]
    probabilities = np.eye(2, dtype=np.float32)[[1, 0, 0, 1]][:, None, None]
    ends = {"terminated": [(3, 0)]}
    whole = rollout(np.ones((4, 1)), advice=Advice(given, probabilities, np.float32(given)), **ends)
    (rows,), _ = cut(whole, steps)
    assert dict(zip(rows.observation[:, 0, 0], rows.advised[:, 0], strict=True)) == {0: 1, 1: -1, 2: 0, 3: 1}
    (rows,), _ = cut(rollout(np.ones((4, 1)), **ends), steps)
    assert (rows.advised == -1).all()


def test_windows_across_rollouts():
    whole, _ = cut(rollout([[1], [2], [4], [8], [16]]), steps=3)
    pending, found = None, []
    for part in ([[1]], [[2], [4]], [[8]], [[16]]):
        (rows,), pending = cut(rollout(part), steps=3, pending=pending)
        found += rows.reward.tolist()
    assert found == whole[0].reward.tolist() == [3, 6]


def test_agents_of_individual_stacks_are_kept_apart():
    own = rollout([[1, 10], [2, 20], [4, 40]], active=[[1, 1], [0, 1], [1, 1]])
    parts, _ = cut(own, parameter_sets=2)
    assert [brief(rows) for rows in parts] == [[(0, 3, 0.5, 2, 0)], [(0, 10, 0.5, 1, 0), (1, 20, 0.5, 2, 0)]]
    assert [rows.agent.tolist() for rows in parts] == [[0], [1, 1]]
    (both,), _ = cut(own)
    assert sorted(both.reward.tolist()) == [3, 10, 20]


def test_no_discount_and_full_discount():
    own = rollout([[1], [2], [4], [8]])
    assert cut(own, steps=2, gamma=0.0)[0][0].reward.tolist() == [1, 2]
    assert cut(own, steps=2, gamma=0.0)[0][0].discount.tolist() == [0, 0]
    assert cut(own, steps=2, gamma=1.0)[0][0].reward.tolist() == [3, 6]


# Teams -------------------------------------------------------------------------------------------------


def states(rows, finals=()):
    state = np.arange(rows + 1, dtype=np.float32)[:, None, None]
    return StateRows(state, np.array(finals, np.float32).reshape(-1, 1) + 100)


def test_a_team_is_one_lane_paid_by_the_mean():
    own = rollout([[1, 3], [2, 6], [4, 12]])
    rows = cut_team(own, states(3))
    assert rows.reward.tolist() == [2, 4]
    assert rows.action.tolist() == [[0, 1], [2, 3]]
    assert rows.observation[1].tolist() == [[1, 0, 0], [1, 1, 0]]
    assert rows.next_obs[1].tolist() == [[2, 0, 0], [2, 1, 0]]
    assert rows.state[:, 0].tolist() == [0, 1]
    assert rows.next_state[:, 0].tolist() == [1, 2]
    assert rows.active.all()
    assert rows.next_active.all()


def test_a_team_plays_on_until_its_last_member_is_over():
    own = rollout(
        [[2, 2], [2, 2], [0, 2], [0, 2], [2, 2]],
        active=[[1, 1], [1, 1], [0, 1], [0, 1], [1, 1]],
        terminated=[(1, 0)],
        truncated=[(3, 1)],
        finals=[3],
    )
    rows = cut_team(own, states(5, [3]), steps=2)
    assert rows.reward.tolist() == [2 + 1, 2 + 0.5, 1 + 0.5, 1]
    assert rows.discount.tolist() == [0.25, 0.25, 0.25, 0.5]
    assert rows.active.tolist() == [[True, True], [True, True], [False, True], [False, True]]
    assert rows.next_active.tolist() == [[False, True]] * 4  # who is over has no value any more
    assert rows.next_obs[:, 1].tolist() == [[2, 1, 0], [3, 1, 0], [3, 1, 1], [3, 1, 1]]
    assert rows.state[:, 0].tolist() == [0, 1, 2, 3]
    assert rows.next_state[:, 0].tolist() == [2, 3, 103, 103]


def test_nothing_is_bootstrapped_from_an_action_that_was_never_legal():
    """Nobody learns its value, which would take the place of the true one at every time limit."""
    masks = [[[1, 0], [1, 1]]] * 4
    own = rollout([[-1, -1]] * 4, masks=masks, truncated=[(1, 0), (3, 0), (3, 1)], finals=[3])
    (rows,), _ = cut(own, steps=2)
    mine = rows.agent == 0
    assert mine.sum() == 4
    assert not rows.next_mask[mine, 0, 1].any()
    assert rows.next_mask[~mine].all()


def truncated_alone():
    """Member 0 is truncated after its second decision, member 1 plays on."""
    return rollout(
        [[2, 2], [2, 2], [0, 2], [0, 2]],
        active=[[1, 1], [1, 1], [0, 1], [0, 1]],
        masks=[[[1, 1]] * 2, [[1, 0], [1, 1]]] + [[[0, 0], [0, 1]]] * 2,
        truncated=[(1, 0)],
    )


def test_a_member_that_is_truncated_alone_keeps_its_next_value():
    """Truncation is no termination: VDN's target is the mean reward + γ (Q₀(last observation) + Q₁(next one))."""
    rows = cut_team(truncated_alone(), states(4))
    assert rows.reward.tolist() == [2, 2, 1]
    assert rows.discount.tolist() == [0.5] * 3
    assert rows.next_active.tolist() == [[True, True], [True, True], [False, True]]
    assert rows.next_obs[1].tolist() == [[2, 0, 0], [2, 1, 0]]
    assert rows.next_mask[1].tolist() == [[True, False], [False, True]]
    assert rows.next_state[:, 0].tolist() == [1, 2, 3]


def test_windows_end_where_a_member_is_truncated_alone():
    """Its last value is discounted from there, not from the window's end; fewer decisions are a right target, too."""
    rows = cut_team(truncated_alone(), states(4), steps=3)
    assert rows.observation[:, 1, 0].tolist() == [0, 1]
    assert rows.reward.tolist() == [2 + 1, 2]
    assert rows.discount.tolist() == [0.25, 0.5]
    assert rows.next_active.all()
    assert rows.next_obs[:, :, 0].tolist() == [[2, 2], [2, 2]]


def test_a_member_that_is_truncated_alone_at_the_end_of_a_rollout():
    whole = truncated_alone()
    parts = [
        rollout([[2, 2], [2, 2]], masks=[[[1, 1]] * 2, [[1, 0], [1, 1]]], truncated=[(1, 0)]),
        rollout([[0, 2], [0, 2]], active=[[0, 1], [0, 1]], masks=[[[0, 0], [0, 1]]] * 2),
    ]
    expected = cut_team(whole, states(4), steps=2)
    pending, found = no_pending(1, 2, empty_transitions(0, 2, 3, 2, 1)), []
    for part in parts:
        team = team_trajectories(part, part.observation, part.finals.observation, part.reward, states(2))
        found.append(complete_transitions(team, pending, GAMMA))
    for name in ("reward", "discount", "next_active", "next_mask"):
        joined = np.concatenate([getattr(rows, name) for rows in found])
        np.testing.assert_array_equal(joined, getattr(expected, name))


def test_a_team_of_which_all_terminate_has_no_future():
    own = rollout([[2, 2], [2, 2], [2, 2]], terminated=[(1, 0), (1, 1)])
    rows = cut_team(own, states(3), steps=3)
    assert rows.reward.tolist() == [3, 2]
    assert rows.discount.tolist() == [0, 0]


def test_a_team_that_terminates_and_is_cut_short_together():
    own = rollout([[2, 2], [2, 2]], terminated=[(0, 0)], truncated=[(0, 1)], finals=[0])
    rows = cut_team(own, states(2, [0]))
    assert rows.discount.tolist() == [0.5]
    assert rows.next_active.tolist() == [[False, True]]
    assert rows.next_state.tolist() == [[100]]


# Against whole episodes --------------------------------------------------------------------------------


class Wanderer(Policy):
    """Plays anything legal, the same however its world is cut into rollouts, and writes down what it saw."""

    def __init__(self, actions, seed):
        self.actions, self.random, self.log = actions, generator(seed), []

    def act(self, view):
        mask = np.ones((*view.acting.shape, self.actions), bool) if view.mask is None else view.mask
        wish = self.random.random(mask.shape) * mask
        action = wish.argmax(axis=-1)
        self.log.append((view.observation.copy(), view.acting.copy(), mask.copy(), action.copy()))
        return Decision(action)


class Watched(Unsaved):
    """A world that writes down what it says."""

    def __init__(self, world):
        self.world, self.log = world, []
        self.agent_types, self.num_envs, self.simultaneous = world.agent_types, world.num_envs, world.simultaneous
        self.state_size = world.state_size

    def reset(self, seed):
        return self.world.reset(seed)

    def step(self, actions):
        timestep = self.world.step(actions)
        (agent_step,) = timestep.agent_types.values()
        after = np.where(timestep.ended[:, None, None], agent_step.final_observation, agent_step.observation)
        self.log.append([a.copy() for a in (agent_step.reward, agent_step.terminated, agent_step.truncated, after)])
        return timestep


def read_slowly(policy, world, columns, copy, agent, steps):
    """Every transition of an agent that whole episodes allow, each as a tuple."""
    episodes, playing = [], []  # of [observation, mask, action, reward until the next decision]
    for (seen, acting, mask, action), (reward, terminated, truncated, after) in zip(policy.log, world.log, strict=True):
        at, column = (copy, agent), (copy, columns[agent])
        if acting[at]:
            playing.append([seen[at], mask[at], int(action[at]), 0.0])
        if playing:
            playing[-1][3] += float(reward[column])
            if terminated[column] or truncated[column]:
                episodes.append((playing, "terminated" if terminated[column] else "truncated", after[column]))
                playing = []
    episodes.append((playing, "goes on", None))
    found = []
    for decisions, end, after in episodes:
        for i, (seen, _, action, _) in enumerate(decisions):
            window = decisions[i : i + steps]
            total = sum(GAMMA**k * gain for k, (*_, gain) in enumerate(window))
            free = (True,) * len(decisions[i][1])
            if i + steps < len(decisions):
                later, legal, *_ = decisions[i + steps]
                found.append((agent, seen.tobytes(), action, total, GAMMA**steps, later.tobytes(), tuple(legal)))
            elif end == "truncated":
                found.append((agent, seen.tobytes(), action, total, GAMMA ** len(window), after.tobytes(), free))
            elif end == "terminated":
                found.append((agent, seen.tobytes(), action, total, 0.0, None, None))
    return found


def plain(rows):
    """Transitions as the slow reading writes them."""
    for i in range(len(rows.reward)):
        over = rows.discount[i] == 0
        start = (int(rows.agent[i]), rows.observation[i, 0].tobytes(), int(rows.action[i, 0]))
        future = (None, None) if over else (rows.next_obs[i, 0].tobytes(), tuple(rows.next_mask[i, 0].tolist()))
        yield (*start, float(rows.reward[i]), float(rows.discount[i]), *future)


GRID = GridworldSettings(grid_size=3, mode="competitive", num_targets=2, max_steps=5)
WORLDS = {
    "tictactoe": (lambda: Tictactoe(TictactoeSettings(first="random"), 2), [None, [1]]),
    "gridworld": (lambda: Gridworld(GRID, 2), [None, [1]]),
    "rounds": (lambda: Rounds(num_envs=2, agents=3, length=7), [None, [0], [2, 0]]),
}


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from([*WORLDS]),
    cuts=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    steps=st.integers(1, 4),
    seed=st.integers(0, 1000),
    individual=st.booleans(),
    group=st.integers(0, 2),
)
def test_however_experience_is_cut_the_transitions_are_those_of_whole_episodes(
    name, cuts, steps, seed, individual, group
):
    build, groups = WORLDS[name]
    world = Watched(build())
    where = spec_in(world, groups[group % len(groups)], parameters="individual" if individual else "shared")
    size, actions = where.spaces.observation.shape[0], where.spaces.action.n
    policy, pending, found = Wanderer(actions, seed), None, []
    idle = spec_in(world, [c for c in range(len(where.spaces.agents)) if c not in where.columns], "others")
    table = [(where, policy), (idle, Wanderer(actions, seed + 1))] if idle.agents else [(where, policy)]
    runner = Runner(world, actors(*table), seed)
    for iteration, timestep in enumerate(cuts):
        own = runner.play(timestep, iteration).decisions["team"]
        if own.mask is None:
            own = dataclasses.replace(own, mask=np.ones((*own.valid.shape, actions), bool))
        parts = agent_trajectories(own, own.observation, own.finals.observation, own.reward, where.parameter_sets)
        if pending is None:
            pending = [no_pending(p.active.shape[1], steps, empty_transitions(0, 1, size, actions, 0)) for p in parts]
        for part, waiting in zip(parts, pending, strict=True):
            found += plain(complete_transitions(part, waiting, GAMMA))
    expected, open_ones = Counter(), 0
    for copy in range(2):
        for agent in range(len(where.agents)):
            expected.update(read_slowly(policy, world, where.columns, copy, agent, steps))
            open_ones += not world.simultaneous
    missing = expected - Counter(found)
    assert Counter(found) - expected == Counter()
    assert missing.total() <= open_ones  # those whose n-th next decision is open itself
    if individual:
        assert {key[0] for key in found} <= set(range(len(where.agents)))


@pytest.mark.parametrize("steps", [1, 3])
def test_a_team_cut_anyhow(steps):
    found = []
    for cuts in ([24], [5, 1, 1, 9, 8], [1] * 24):
        world = Gridworld(GRID, 3)
        where = spec_in(world)
        policy, size = Wanderer(where.spaces.action.n, 0), where.spaces.observation.shape[0]
        runner, rows = Runner(world, actors((where, policy)), 0), []
        waiting = no_pending(3, steps, empty_transitions(0, 2, size, policy.actions, 2 * size))
        for iteration, timestep in enumerate(cuts):
            own = runner.play(timestep, iteration).decisions["team"]
            own = dataclasses.replace(own, mask=np.ones((*own.valid.shape, policy.actions), bool))
            state = StateRows(*(a.reshape(*a.shape[:-2], 2 * size) for a in (own.observation, own.finals.observation)))
            part = team_trajectories(own, own.observation, own.finals.observation, own.reward, state)
            rows.append(complete_transitions(part, waiting, GAMMA))
        found.append([np.concatenate(columns) for columns in zip(*rows, strict=True)])
    assert len(found[0][0]) > 50
    for other in found[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(found[0], other, strict=True))


class Departures(Unsaved):
    """Members die or are truncated alone at any time; all return with the next episode, of at most `length` ticks.

    Everybody sees (tick since the start, own number, copy); what lies behind a limit is seen as tick + ½.
    """

    simultaneous, state_size, agents, length = True, 0, 3, 6

    def __init__(self, num_envs, seed):
        self.num_envs, self.random = num_envs, generator(seed)
        names = tuple(f"agent_{i}" for i in range(self.agents))
        self.agent_types = {"player": AgentType(names, Box((3,), 0.0, 1e6), Discrete(3))}

    def look(self, tick):
        n, a = np.meshgrid(np.arange(self.num_envs), np.arange(self.agents), indexing="ij")
        return np.stack(np.broadcast_arrays(np.float32(tick), a, n), axis=-1).astype(np.float32)

    def tell(self, reward, dead, cut, over):
        mask = self.random.random((self.num_envs, self.agents, 3)) < 0.6
        mask[..., 0] |= ~mask.any(axis=2)
        now = self.look(self.tick)
        final = np.where(over[:, None, None], self.look(self.tick - 0.5), now)
        return TimeStep({"player": AgentStep(now, self.here.copy(), reward, dead, cut, final, mask)}, over)

    def reset(self, seed):
        self.tick, self.clock = 0, np.zeros(self.num_envs, int)
        self.here = np.ones((self.num_envs, self.agents), bool)
        none = np.zeros(self.here.shape, bool)
        return self.tell(np.zeros(self.here.shape, np.float32), none, none, np.zeros(self.num_envs, bool))

    def step(self, actions):
        self.tick, self.clock = self.tick + 1, self.clock + 1
        draw, acted = self.random.random(self.here.shape), self.here.copy()
        dead, cut = self.here & (draw < 0.15), self.here & (draw > 0.85)
        limit = self.clock == self.length
        cut |= self.here & limit[:, None] & ~dead
        self.here &= ~(dead | cut)
        over = limit | (~self.here.any(axis=1) & (self.random.random(self.num_envs) < 0.5))  # or it goes on with nobody
        self.here |= over[:, None]
        self.clock[over] = 0
        reward = (self.random.integers(-9, 10, acted.shape) * acted).astype(np.float32)
        return self.tell(reward, dead, cut, over)


def read_team_slowly(policy, world, copy, steps):
    """Every transition of a team that whole episodes allow.

    A window ends after n decisions, with the team, or where a member is truncated alone: those who play on and those
    just truncated have a next value, the dead have none.
    """
    episodes, playing = [], []
    for (seen, acting, mask, action), (reward, dead, cut, after) in zip(policy.log, world.log, strict=True):
        if acting[copy].any():
            playing.append([array[copy] for array in (seen, acting, mask, action, reward, cut, after)])
            if not (acting[copy] & ~dead[copy] & ~cut[copy]).any():
                episodes.append((playing, True))
                playing = []
    episodes.append((playing, False))
    found = []
    for moments, ended in episodes:
        for i, (seen, acting, _, action, *_) in enumerate(moments):
            total = discount = 0.0
            for k in range(steps):
                if i + k == len(moments):
                    break  # open
                *_, gain, cut, after = moments[i + k]
                total += GAMMA**k * float(gain.mean())
                last = i + k + 1 == len(moments)
                if not (cut.any() or k + 1 == steps or (last and ended)):
                    continue
                follows, discount = cut.copy(), GAMMA ** (k + 1)
                legal = np.where(cut[:, None], moments[i + k][2], False)
                if not last:
                    follows |= moments[i + k + 1][1]
                    legal = np.where(cut[:, None], legal, moments[i + k + 1][2])
                elif not ended:
                    break  # open: who acts next is known, but not decided
                elif not cut.any():
                    discount = 0.0
                future = [(a, after[a].tobytes(), legal[a].tobytes()) for a in np.flatnonzero(follows)]
                start = [(a, seen[a].tobytes(), int(action[a])) for a in np.flatnonzero(acting)]
                found.append((str(start), total, discount, str(future) if discount else ""))
                break
    return found


def plain_team(rows):
    for i in range(len(rows.reward)):
        future = [
            (a, rows.next_obs[i, a].tobytes(), rows.next_mask[i, a].tobytes())
            for a in np.flatnonzero(rows.next_active[i])
        ]
        start = [(a, rows.observation[i, a].tobytes(), int(rows.action[i, a])) for a in np.flatnonzero(rows.active[i])]
        discount = float(rows.discount[i])
        yield str(start), float(rows.reward[i]), discount, str(future) if discount else ""


def rounded(transitions):
    return [(start, round(reward, 4), *rest) for start, reward, *rest in transitions]


@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("cuts", [(40,), (1, 3, 1, 7, 2, 2, 9, 1, 1, 4, 5, 4)])
def test_a_teams_transitions_are_those_of_whole_episodes_though_members_leave(steps, cuts):
    world = Watched(Departures(3, seed=sum(cuts[:2])))
    where, found, pending = spec_in(world), [], no_pending(3, steps, empty_transitions(0, 3, 3, 3, 0))
    policy = Wanderer(3, 1)
    runner = Runner(world, actors((where, policy)), 0)
    for iteration, count in enumerate(cuts):
        own = runner.play(count, iteration).decisions["team"]
        none = StateRows(np.zeros((count + 1, 3, 0), np.float32), np.zeros((len(own.finals.at), 0), np.float32))
        team = team_trajectories(own, own.observation, own.finals.observation, own.reward, none)
        found += plain_team(complete_transitions(team, pending, GAMMA))
    expected = Counter()
    for copy in range(3):
        expected.update(rounded(read_team_slowly(policy, world, copy, steps)))
    found = Counter(rounded(found))
    assert found == expected
    assert found.total() > 60
    assert 5 < sum(discount == 0 for *_, discount, _ in found) < len(found) / 2
