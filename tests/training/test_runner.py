"""The runner: decisions and what followed from them, memory, openings, columns, exact save and load."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.decisions import merge
from coterie.core.group import Actor, Policy
from coterie.core.types import Decision, Discrete, View
from coterie.policies.scripted import RandomPolicy, RandomSettings
from coterie.preferences.standard import Individual, IndividualSettings, Team, TeamSettings
from coterie.testing.comparison import expect_equal, leaves
from coterie.training.runner import Runner, join_episodes
from coterie.worlds.boards.tictactoe import Tictactoe, TictactoeSettings
from coterie.worlds.gridworld.world import Gridworld, GridworldSettings
from helpers.small_worlds import Bandit, Counting, Leavers, Numbered, Rounds, actors, generator, network, spec_in


def grid(num_envs=3, **fields):
    return Gridworld(GridworldSettings(**{"max_steps": 6, "grid_size": 4} | fields), num_envs)


def random_seat(world, **fields):
    where = spec_in(world, **fields)
    return where, RandomPolicy(RandomSettings(), where)


class FixedPlay(Policy):
    """Plays a fixed legal move for every position and agent, so that no random stream matters."""

    def act(self, view):
        taken = view.observation[..., :9] + view.observation[..., 9:]
        liking = (np.arange(9) * 5 + 3 + np.arange(len(taken))[:, None, None] * 2 + taken.sum(-1, keepdims=True)) % 9
        action = np.where(taken > 0, -1.0, liking).argmax(-1)
        return Decision(action, np.float32(0.25) * action.astype(np.float32))

    def state(self):
        return {}

    def load(self, state):
        pass


# Rows ------------------------------------------------------------------------------------------------


def test_row_t_holds_what_was_seen_and_done_and_what_followed():
    world = grid()
    runner = Runner(world, actors(random_seat(world)), seed=1)
    twin = grid()
    runner_2 = Runner(twin, actors(random_seat(twin)), seed=1)
    own = runner.play(20, 1).decisions["team"]
    runner_2.begin(1)
    for t in range(20):
        agent_step = runner_2.timestep.agent_types["agent"]
        assert np.array_equal(own.observation[t], agent_step.observation)
        assert np.array_equal(own.valid[t], agent_step.acting)
        runner_2.step()
        agent_step = runner_2.timestep.agent_types["agent"]
        assert np.array_equal(own.reward[t], agent_step.reward)
        assert np.array_equal(own.terminated[t], agent_step.terminated)
        assert np.array_equal(own.truncated[t], agent_step.truncated)
        for (row, copy), final in zip(own.finals.at, own.finals.observation, strict=True):
            if row == t:
                assert runner_2.timestep.ended[copy]
                assert np.array_equal(final, agent_step.final_observation[copy])
                assert not np.array_equal(final, own.observation[t + 1, copy])
    assert np.array_equal(own.observation[20], agent_step.observation)
    assert own.truncated.any()
    assert {tuple(i) for i in own.finals.at} == {(t, n) for t, n, _ in np.argwhere(own.truncated)}


def test_the_rollouts_arrays_are_its_own():
    world = grid()
    runner = Runner(world, actors(random_seat(world)), seed=1)
    own = runner.play(5, 1).decisions["team"]
    kept = leaves(own)
    runner.play(5, 2)
    expect_equal("first rollout", kept, own)


def test_log_probabilities_are_written_down():
    world = grid()
    where = spec_in(world)
    policy = network(where)
    own = Runner(world, actors((where, policy)), seed=1).play(4, 1).decisions["team"]
    view = View(own.observation[2], own.valid[2], np.arange(2), generator())
    again = policy.act(dataclasses.replace(view, random=generator()))
    same = again.action == own.action[2]
    assert same.any()
    assert np.allclose(again.log_prob[same], own.log_prob[2][same], atol=1e-6)
    assert (own.log_prob < 0).all()


def test_iterations_draw_fresh_numbers_and_the_same_iteration_the_same():
    world = grid()
    runner = Runner(world, actors(random_seat(world)), seed=1)
    state = runner.save()
    first = runner.play(5, 1).decisions["team"]
    runner.load(state)
    second = runner.play(5, 2).decisions["team"]
    runner.load(state)
    again = runner.play(5, 1).decisions["team"]
    assert not np.array_equal(first.action, second.action)
    expect_equal("iteration 1", first, again)


def test_shards_and_groups_have_their_own_streams():
    played = []
    for shard, group in ((0, "team"), (1, "team"), (0, "others")):
        world = Bandit(Discrete(1000), lambda a: a * 1.0, num_envs=8)
        runner = Runner(world, actors(random_seat(world, group=group)), seed=1, shard=shard)
        played.append(runner.play(3, 1).decisions[group].action.tolist())
    assert played[0] != played[1] != played[2] != played[0]


# Turns -----------------------------------------------------------------------------------------------


def decisions(runner, lengths, preference=None):
    """Every closed decision of a run as (who, seen, done, reward, ended): a multiset over rollouts."""
    preference = preference or Individual(IndividualSettings())
    found = []
    for iteration, steps in enumerate(lengths, 1):
        own = runner.play(steps, iteration).decisions["team"]
        reward = preference.rewards(own)
        for t, n, a in np.argwhere(own.valid):
            gained = float(reward[t, n, a])
            end = "terminated" if own.terminated[t, n, a] else "truncated" if own.truncated[t, n, a] else ""
            seen = tuple(own.observation[t, n, a].ravel().tolist())
            found.append((n, a, seen, int(own.action[t, n, a]), float(own.log_prob[t, n, a]), gained, end))
    return sorted(found)


def still_open(runner):
    return int(runner.opened["team"].row.active.sum())


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=12))
def test_tictactoe_is_the_same_however_it_is_cut_into_rollouts(lengths):
    worlds = [Tictactoe(TictactoeSettings(), 3) for _ in range(2)]
    cut, whole = (Runner(w, actors((spec_in(w), FixedPlay())), seed=0) for w in worlds)
    assert decisions(cut, lengths) == decisions(whole, [sum(lengths)])
    assert still_open(cut) == still_open(whole)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_rewards_for_the_idle_and_truncated_are_the_same_however_cut(lengths):
    pair = [(w, spec_in(w)) for w in (Rounds(), Rounds())]
    cut, whole = (Runner(w, actors((p, Numbered())), seed=0) for w, p in pair)
    assert decisions(cut, lengths) == decisions(whole, [sum(lengths)])


@pytest.mark.parametrize("world", [Rounds, lambda: Leavers(Discrete(5), turns=True)])
@settings(max_examples=15, deadline=None)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_a_teams_rewards_are_the_same_however_cut(world, lengths):
    pair = [(w, spec_in(w)) for w in (world(), world())]
    cut, whole = (Runner(w, actors((p, Numbered())), seed=0) for w, p in pair)
    found = [decisions(*run, Team(TeamSettings())) for run in ((cut, lengths), (whole, [sum(lengths)]))]
    assert [d[:5] + d[6:] for d in found[0]] == [d[:5] + d[6:] for d in found[1]]
    np.testing.assert_allclose([d[5] for d in found[0]], [d[5] for d in found[1]], rtol=1e-5)
    own = cut.play(3, len(lengths) + 1).decisions["team"]
    assert not Team(TeamSettings()).rewards(own)[0][~own.valid[0]].any()  # counted in the last rollout


def test_a_team_in_turns_shares_what_came_since_each_decision():
    world = Rounds(num_envs=1, agents=3, length=50)  # agent t mod 3 acts at tick t; agent a gets 100·a + t
    runner = Runner(world, actors((spec_in(world), Numbered())), seed=0)
    runner.play(5, 1)
    opened = runner.opened["team"]
    # at tick 5 agent 2 acts: agents 0 and 1 decided at ticks 3 and 4, and the mean reward at tick t is 100 + t
    assert opened.reward[0].tolist() == [3 + 4, 104, 0]
    assert opened.group_reward[0].tolist() == [103 + 104, 104, 0]
    own = runner.play(4, 2).decisions["team"]  # agent 0 decides again at tick 6, agent 1 at 7
    assert own.reward[0, 0].tolist() == [3 + 4 + 5, 104 + 105 + 106, 0]
    assert own.group_reward[0, 0].tolist() == [103 + 104 + 105, 104 + 105 + 106, 0]


def test_every_decision_of_a_turn_based_world_is_counted_once():
    world = Tictactoe(TictactoeSettings(), 3)
    runner = Runner(world, actors((spec_in(world), FixedPlay())), seed=0)
    assert len(decisions(runner, [1] * 20)) == 3 * 20 - still_open(runner)


def test_the_losers_last_move_gets_the_loss():
    world = Tictactoe(TictactoeSettings(), 4)
    runner = Runner(world, actors(random_seat(world)), seed=0)
    found = decisions(runner, [7] * 20)
    ended = [one for one in found if one[-1] == "terminated"]
    by_reward = {value: sum(one[5] == value for one in ended) for value in (-1.0, 0.0, 1.0)}
    assert by_reward[-1.0] == by_reward[1.0] > 10
    assert all(one[5] == 0 for one in found if not one[-1])


def test_an_agents_reward_while_idle_belongs_to_its_latest_decision():
    world = Rounds(num_envs=1, agents=3, length=7)
    runner = Runner(world, actors((spec_in(world), Numbered())), seed=0)
    # Agent 1 decides at clocks 1 and 4 and earns 100 + clock at every tick.
    found = [one for one in decisions(runner, [3, 2, 9]) if one[1] == 1 and one[2][1] == 1]
    assert found[0][5] == 101 + 102 + 103
    # Agent 0's third decision, at clock 6, is its last before the time limit.
    runner = Runner(world, actors((spec_in(world), Numbered())), seed=0)
    assert [one[5:] for one in decisions(runner, [7]) if one[1] == 0][-1] == (6.0, "truncated")


def test_a_simultaneous_world_leaves_nothing_open_and_has_no_extra_row():
    world = grid(mode="race", max_steps=30)
    runner = Runner(world, actors(random_seat(world)), seed=0)
    own = runner.play(40, 1).decisions["team"]
    assert len(own.valid) == 40
    assert not runner.opened


# Memory ----------------------------------------------------------------------------------------------


def test_memory_counts_own_decisions_from_every_episodes_start():
    world = Rounds(num_envs=2, agents=3, length=7)
    runner = Runner(world, actors((spec_in(world), Counting())), seed=0)
    for iteration, steps in enumerate((4, 5, 12), 1):
        own = runner.play(steps, iteration).decisions["team"]
        assert own.memory.shape == (*own.observation.shape[:3], 1)  # one row more than decisions
        for t, n, a in np.argwhere(own.valid):
            so_far = int(own.observation[t, n, a, 1] // 3)  # by the clock
            if n == 0 or iteration == 3:  # copy 1 began at clock 1, after agent 0's first turn
                assert own.memory[t, n, a, 0] == own.action[t, n, a] == so_far


def test_memory_is_kept_while_idle_and_cleared_with_the_copy():
    world = Rounds(num_envs=1, agents=2, length=4)
    runner = Runner(world, actors((spec_in(world), Counting())), seed=0)
    runner.begin(1)
    seen = []
    for _ in range(6):
        runner.step()
        seen.append(runner.memories["team"][0, :, 0].tolist())
    assert seen == [[1, 0], [1, 1], [2, 1], [0, 0], [1, 0], [1, 1]]


def test_memory_is_saved_and_loaded():
    world = Rounds()
    runner = Runner(world, actors((spec_in(world), Counting())), seed=0)
    runner.play(5, 1)
    state, kept = runner.save(), runner.memories["team"].copy()
    assert kept.any()
    rest = runner.play(6, 2).decisions["team"]
    other = Runner(Rounds(), actors((spec_in(world), Counting())), seed=0)
    other.load(state)
    assert np.array_equal(other.memories["team"], kept)
    expect_equal("after loading", rest, other.play(6, 2).decisions["team"])


# Columns ---------------------------------------------------------------------------------------------


def test_groups_see_and_act_for_their_own_agents():
    world = Rounds(num_envs=2, agents=4, length=9)
    few, many = Numbered(), Numbered()
    runner = Runner(
        world,
        actors((spec_in(world, [2], "few"), few), (spec_in(world, [3, 0, 1], "many"), many)),
        seed=0,
    )
    rollout = runner.play(12, 1)
    assert all((view[..., 2] == [[2]]).all() for view in few.views)
    assert all((view[..., 2] == [3, 0, 1]).all() for view in many.views)
    assert all(np.array_equal(one, np.tile(np.arange(4), (2, 1))) for one in world.played)
    own = rollout.decisions["many"]
    assert (own.observation[1:, :, :, 2] == [3, 0, 1]).all()
    ticks = np.diff(np.flatnonzero(own.valid[:, 0, 0]))[0]  # from one decision of agent 3 to its next one
    assert own.reward[own.valid[:, 0, 0].argmax(), 0, 0] // 100 == 3 * ticks
    assert (own.finals.observation[..., 2] == [3, 0, 1]).all()
    assert len(own.finals.at) > 0
    # whoever was cut short, last observations are kept for the whole table, so that groups stay aligned
    assert np.array_equal(rollout.decisions["few"].finals.at, own.finals.at)
    assert (rollout.decisions["few"].finals.observation[..., 2] == 2).all()
    assert own.truncated[:, :, 1].any()
    assert not own.truncated[:, :, [0, 2]].any()
    assert (rollout.episodes.returns["few"] // 200 == rollout.episodes.length[:, None]).all()


def test_a_seat_may_hold_some_of_a_policys_agents():
    world = Rounds(num_envs=2, agents=3)
    asked = []

    class Asked(Numbered):
        def act(self, view):
            asked.append(view.agents.tolist())
            return super().act(view)

    halves = [Actor(spec_in(world, [0, 1], "a"), Asked()), Actor(spec_in(world, [2], "b"), Asked(), np.array([1]))]
    Runner(world, halves, seed=0).play(1, 1)
    assert asked == [[0, 1], [1]]


def test_a_part_of_a_kind_is_masked_as_itself():
    world = Tictactoe(TictactoeSettings(), 5)
    one, two = (random_seat(world, columns=[c], group=f"g{c}") for c in (0, 1))
    rollout = Runner(world, actors(one, two), seed=3).play(30, 1)  # an illegal move would raise
    for c in (0, 1):
        own = rollout.decisions[f"g{c}"]
        assert own.mask.shape == (31, 5, 1, 9)
        drawn = np.take_along_axis(own.mask, own.action[..., None], -1)[..., 0]
        assert drawn[own.valid].all()
    assert not (rollout.decisions["g0"].valid & rollout.decisions["g1"].valid).any()


# Episodes --------------------------------------------------------------------------------------------


def test_episodes_are_tallied_across_rollouts():
    world = Rounds(num_envs=2, agents=2, length=5)
    runner = Runner(world, actors((spec_in(world), Numbered())), seed=0)
    first, second = runner.play(3, 1).episodes, runner.play(9, 2).episodes
    assert len(first.at) == 0
    assert first.returns["team"].shape == (0, 2)
    # Copy 0 ends at ticks 5 and 10 of 12, copy 1, which began at clock 1, at 4 and 9.
    assert second.at.tolist() == [0, 1, 5, 6]
    assert second.copy.tolist() == [1, 0, 1, 0]
    assert second.length.tolist() == [4, 5, 5, 5]
    assert second.returns["team"].tolist() == [[10, 410], [10, 510], [10, 510], [10, 510]]
    assert second.success is None


def test_success_is_reported_where_a_world_knows_it():
    world = grid(num_envs=8, max_steps=30)
    episodes = Runner(world, actors(random_seat(world)), seed=0).play(120, 1).episodes
    assert episodes.success.dtype == bool
    assert np.array_equal(episodes.success, episodes.length < 30)
    assert episodes.success.any()


def test_episodes_of_shards_are_joined_by_time():
    parts = []
    for length in (3, 5):
        world = Rounds(num_envs=1, agents=2, length=length)
        parts.append(Runner(world, actors((spec_in(world), Numbered())), seed=0).play(10, 1).episodes)
    both = join_episodes(parts)
    assert both.at.tolist() == [2, 4, 5, 8, 9]
    assert both.length.tolist() == [3, 5, 3, 3, 5]
    assert both.returns["team"][:, 0].tolist() == [3, 10, 3, 3, 10]


# Shards ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("agent_type", ["grid", "turns"])
def test_merged_shards_equal_the_shards_apart(agent_type):
    rollouts = []
    for shard in range(3):
        world = grid(num_envs=2) if agent_type == "grid" else Rounds(num_envs=2, length=5 + shard)
        rollouts.append(Runner(world, actors(random_seat(world)), seed=1, shard=shard).play(9, 1))
    parts = [r.decisions["team"] for r in rollouts]
    both = merge(parts)
    for shard, part in enumerate(parts):
        num_envs = slice(2 * shard, 2 * shard + 2)
        for field in (
            "observation",
            "action",
            "log_prob",
            "reward",
            "group_reward",
            "valid",
            "terminated",
            "truncated",
        ):
            assert np.array_equal(getattr(both, field)[:, num_envs], getattr(part, field))
        steps, ends = (
            len(part.valid),
            np.isin(
                np.arange(len(both.finals.at)),
                np.flatnonzero(np.isin(both.finals.at[:, 1], [2 * shard, 2 * shard + 1])),
            ),
        )
        offset = int(ends.argmax()) if ends.any() else 0
        assert np.array_equal(both.next[:, num_envs] - offset * (both.next[:, num_envs] > steps), part.next)
        here = np.isin(both.finals.at[:, 1], [2 * shard, 2 * shard + 1])
        assert np.array_equal(both.finals.at[here] - [0, 2 * shard], part.finals.at)
        assert np.array_equal(both.finals.observation[here], part.finals.observation)
    assert len(both.finals.at) == sum(len(p.finals.at) for p in parts) > 0


# Save and load ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("agent_type", ["grid", "tictactoe", "rounds"])
def test_a_loaded_runner_goes_on_exactly(agent_type):
    def make():
        world = {"grid": grid, "tictactoe": lambda: Tictactoe(TictactoeSettings(first="random"), 3), "rounds": Rounds}[
            agent_type
        ]()
        where = spec_in(world)
        return Runner(world, actors((where, network(where))), seed=4)

    runner = make()
    for iteration in (1, 2):
        runner.play(7, iteration)
    state = runner.save()
    kept = leaves(state)
    rest = [runner.play(7, iteration) for iteration in (3, 4)]
    expect_equal("what was saved", kept, state)
    other = make()
    other.play(3, 1)  # a used runner forgets what it did
    other.load(state)
    for left, iteration in zip(rest, (3, 4), strict=True):
        right = other.play(7, iteration)
        expect_equal("experience", left.decisions["team"], right.decisions["team"])
        expect_equal("episodes", left.episodes, right.episodes)


def test_the_first_rollout_of_turns_begins_with_an_empty_row():
    world = Tictactoe(TictactoeSettings(), 2)
    own = Runner(world, actors(random_seat(world)), seed=0).play(4, 1).decisions["team"]
    assert len(own.valid) == 5
    assert not own.valid[0].any()
    assert own.valid[1:3].any(axis=2).all()


def test_greedy_runners_ask_for_greedy_play():
    asked = []

    class Asked(Numbered):
        def act(self, view):
            asked.append(view.greedy)
            return super().act(view)

    for greedy in (False, True):
        world = Rounds()
        Runner(world, actors((spec_in(world), Asked())), seed=0, greedy=greedy).play(1, 1)
    assert asked == [False, True]
