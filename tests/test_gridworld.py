"""The grid world: rewards by hand, what each agent may see, exact saving, and the optimum by brute force."""

from collections import deque
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.types import Box, Discrete, MultiDiscrete, map_tree
from coterie.world import Guided, Renderable
from coterie.worlds.gridworld import MOST_TARGETS, Gridworld, GridworldSettings, best_return

UP, DOWN, LEFT, RIGHT, STAY = range(5)
MODES = ("cooperative", "competitive", "meet", "race")
OBSERVATIONS = ("flat", "dict", "image")


def make(copies=1, **fields):
    return Gridworld(GridworldSettings(**fields), copies)


def arrange(world, agents=None, targets=None, walls=None):
    """Put things on given cells of copy 0, and say what is seen there."""
    state = world.save()
    for name, cells in (("agents", agents), ("targets", targets)):
        if cells is not None:
            state[name][0] = cells
    if walls is not None:
        state["walls"][0] = False
        for cell in walls:
            state["walls"][0][cell] = True
    return world.load(state).kinds["agent"]


def start(agents, targets, walls=None, **fields):
    """A world of one copy, reset and arranged."""
    world = make(num_agents=len(agents), **fields)
    world.reset(0)
    arrange(world, agents, targets, walls)
    return world


def step(world, *actions):
    return world.step({"agent": np.array([actions])})


def rewards(ticks):
    return ticks.kinds["agent"].reward[0].tolist()


def seen(world, a=0):
    """A copy of what agent a of copy 0 sees now."""
    return map_tree(lambda x: x[0, a].copy(), world.load(world.save()).kinds["agent"].observation)


def same(left, right):
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(np.array_equal(left[k], right[k]) for k in left)
    return np.array_equal(left, right)


def play(world, steps, seed=0):
    """Random play; a digest of every tick."""
    random, log = np.random.default_rng(seed), []
    shape = (world.copies, world.settings.num_agents)
    for _ in range(steps):
        action = random.integers(0, 5, shape)
        if world.settings.messages:
            action = np.stack([action, random.integers(0, world.settings.messages, shape)], axis=-1)
        ticks = world.step({"agent": action})
        tick = ticks.kinds["agent"]
        arrays = [tick.reward, tick.terminated, tick.truncated, ticks.ended, ticks.success]
        arrays += [*tick.observation.values()] if isinstance(tick.observation, dict) else [tick.observation]
        log.append([array.copy() for array in arrays])
    return log


def equal_logs(left, right, copies=slice(None)):
    return all(
        np.array_equal(a[copies], b[copies])
        for x, y in zip(left, right, strict=True)
        for a, b in zip(x, y, strict=True)
    )


def guided_episodes(world, episodes, seed=0):
    """Mean return per agent and length of each copy's first episode under the heuristic."""
    world.reset(seed)
    total, length, open_ = np.zeros(world.copies), np.zeros(world.copies, int), np.ones(world.copies, bool)
    random = np.random.default_rng(0)
    while open_.any():
        ticks = world.step({"agent": world.heuristic("agent", random)})
        total += open_ * ticks.kinds["agent"].reward.mean(axis=1, dtype=np.float64)
        length += open_
        open_ &= ~ticks.ended
    return total[:episodes], length[:episodes]


# Settings -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"max_steps": 0}, "max_steps must be at least 1, got 0"),
        ({"grid_size": 1}, "grid_size must be at least 2, got 1"),
        ({"num_agents": 0}, "num_agents must be at least 1, got 0"),
        ({"view": 0}, "view must be at least 1, got 0"),
        ({"messages": -1}, "messages must be at least 0, got -1"),
        ({"mode": "solo"}, "mode must be one of cooperative, competitive, meet, race, got 'solo'"),
        ({"observation": "rgb"}, "observation must be one of flat, dict, image, got 'rgb'"),
        ({"target_move_probability": 1.5}, r"target_move_probability must lie in \[0, 1\], got 1.5"),
        ({"mode": "meet", "num_targets": 2}, "num_targets must be 1 in mode 'meet', got 2"),
        ({"mode": "race", "num_targets": 3}, "num_targets must be 2 in mode 'race', got 3"),
        ({"step_reward": float("nan")}, "step_reward must be finite, got nan"),
        ({"others_reward": -1.0}, "others_reward has no part in mode 'cooperative', got -1.0"),
        ({"grid_size": 2, "num_targets": 3}, "2 agents, 3 targets and 0 obstacles need 5 cells"),
    ],
)
def test_bad_settings_are_refused_with_a_sentence(fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        GridworldSettings(**fields)


def test_defaults_depend_on_the_mode():
    assert [GridworldSettings(mode=mode, num_agents=4).targets for mode in MODES] == [3, 3, 1, 4]
    assert GridworldSettings(mode="race", num_agents=2, num_targets=2).targets == 2
    assert GridworldSettings(step_reward=-1.0).rewards == (10.0, 0.0, 20.0, -1.0)


def test_a_full_grid_can_be_filled_to_the_last_cell():
    world = make(64, grid_size=2, num_agents=2, num_targets=1, num_obstacles=1)
    world.reset(0)
    for n in range(64):
        cells = {*map(tuple, world.places.agents[n]), *map(tuple, world.places.targets[n])}
        cells |= set(zip(*np.nonzero(world.places.walls[n]), strict=True))
        assert len(cells) == 4


# Rewards, by hand -----------------------------------------------------------------------------------


def test_cooperative_step_by_step():
    world = start([(0, 0), (4, 4)], [(0, 1), (0, 2), (4, 0)], grid_size=5)
    assert rewards(step(world, RIGHT, STAY)) == pytest.approx(
        [9.9, 9.9]
    )  # all are paid, not the collector alone
    assert rewards(step(world, STAY, UP)) == pytest.approx([-0.1, -0.1])  # a target pays once
    assert rewards(step(world, LEFT, DOWN)) == pytest.approx([-0.1, -0.1])
    assert rewards(step(world, RIGHT, LEFT)) == pytest.approx([-0.1, -0.1])
    assert rewards(step(world, RIGHT, LEFT)) == pytest.approx([9.9, 9.9])
    step(world, STAY, LEFT)
    ticks = step(world, STAY, LEFT)
    assert rewards(ticks) == pytest.approx([29.9, 29.9])
    assert ticks.kinds["agent"].terminated.all()
    assert not ticks.kinds["agent"].truncated.any()
    assert ticks.ended.all()
    assert ticks.success.all()


def test_cooperative_target_reached_by_two_pays_once():
    world = start([(0, 0), (0, 2)], [(0, 1), (4, 4)], grid_size=5, num_targets=2)
    assert rewards(step(world, RIGHT, LEFT)) == pytest.approx([9.9, 9.9])


def test_two_targets_in_one_step_both_pay():
    world = start([(0, 0), (4, 0)], [(0, 1), (4, 1)], grid_size=5, num_targets=2)
    assert rewards(step(world, RIGHT, RIGHT)) == pytest.approx([39.9, 39.9])


def test_competitive_step_by_step():
    world = start([(0, 0), (4, 4), (4, 0)], [(0, 1), (4, 3)], grid_size=5, num_targets=2, mode="competitive")
    assert rewards(step(world, RIGHT, UP, STAY)) == [20.0, -5.0, -5.0]
    assert rewards(step(world, STAY, DOWN, STAY)) == [0.0, 0.0, 0.0]
    ticks = step(world, STAY, LEFT, STAY)
    assert rewards(ticks) == [-5.0, 20.0, -5.0]
    assert ticks.kinds["agent"].terminated.all()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_competitive_tie_splits_the_prize_whatever_the_order(order):
    places = [(0, 0), (0, 2), (4, 4)]
    moves, paid = [RIGHT, LEFT, STAY], [10.0, 10.0, -5.0]
    world = start(
        [places[i] for i in order], [(0, 1), (3, 0)], grid_size=5, num_targets=2, mode="competitive"
    )
    assert rewards(step(world, *(moves[i] for i in order))) == [paid[i] for i in order]


def test_meet_pays_first_arrivals_once_and_ends_with_all_present():
    world = start([(0, 0), (0, 4)], [(0, 1)], grid_size=5, mode="meet")
    assert rewards(step(world, RIGHT, LEFT)) == [1.0, 0.0]
    assert rewards(step(world, LEFT, STAY)) == [0.0, 0.0]
    assert rewards(step(world, RIGHT, STAY)) == [0.0, 0.0]  # stepping on and off earns nothing
    assert rewards(step(world, LEFT, LEFT)) == [0.0, 0.0]
    # Agent 0 comes back as agent 1 arrives: presence is tested after everybody moved.
    ticks = step(world, RIGHT, LEFT)
    assert rewards(ticks) == [10.0, 11.0]
    assert ticks.kinds["agent"].terminated.all()
    assert ticks.success.all()


def test_meet_does_not_end_when_one_leaves_as_the_other_arrives():
    world = start([(0, 1), (0, 2)], [(0, 1)], grid_size=5, mode="meet")
    ticks = step(world, LEFT, LEFT)
    assert rewards(ticks) == [0.0, 1.0]
    assert not ticks.ended.any()


def test_race_one_winner_ends_it():
    world = start([(0, 0), (4, 4), (2, 2)], [(0, 1), (4, 2), (0, 0)], grid_size=5, mode="race")
    ticks = step(world, RIGHT, LEFT, STAY)
    assert rewards(ticks) == [10.0, -5.0, -5.0]
    assert ticks.kinds["agent"].terminated.all()
    assert ticks.success.all()


def test_race_several_may_win_and_losers_pay_once():
    world = start([(0, 0), (4, 4), (2, 2)], [(0, 1), (4, 3), (0, 0)], grid_size=5, mode="race")
    assert rewards(step(world, RIGHT, LEFT, STAY)) == [10.0, 10.0, -5.0]


def test_race_anothers_target_is_worth_nothing():
    world = start([(0, 0), (4, 4)], [(4, 3), (0, 1)], grid_size=5, mode="race")
    ticks = step(world, RIGHT, LEFT)
    assert rewards(ticks) == [0.0, 0.0]
    assert not ticks.ended.any()


def test_given_rewards_replace_the_modes():
    world = start(
        [(0, 0), (4, 4)], [(0, 1), (4, 2)], grid_size=5, mode="race",
        target_reward=3, others_reward=-1, done_reward=0.5, step_reward=-0.25,
    )  # fmt: skip
    assert rewards(step(world, RIGHT, STAY)) == [3.25, -0.75]


@pytest.mark.parametrize("mode", MODES)
def test_time_limit_is_truncation(mode):
    world = make(grid_size=5, mode=mode, max_steps=3)
    world.reset(0)
    corners = {"cooperative": 3, "competitive": 3, "meet": 1, "race": 2}[mode]
    arrange(world, [(0, 0), (0, 0)], [(4, 4), (4, 3), (4, 2)][:corners])
    for _ in range(2):
        assert not step(world, STAY, STAY).ended.any()
    ticks = step(world, STAY, STAY)
    assert ticks.kinds["agent"].truncated.all()
    assert not ticks.kinds["agent"].terminated.any()
    assert ticks.ended.all()
    assert not ticks.success.any()
    assert world.places.time[0] == 0


def test_done_at_the_limit_is_termination():
    world = start([(0, 0)], [(0, 1)], grid_size=5, num_targets=1, max_steps=1)
    ticks = step(world, RIGHT)
    assert ticks.kinds["agent"].terminated.all()
    assert not ticks.kinds["agent"].truncated.any()


# Moving ---------------------------------------------------------------------------------------------


def test_moves_borders_and_walls():
    world = start([(1, 1)], [(4, 4), (4, 3), (4, 2)], walls=[(1, 2)], grid_size=5, num_obstacles=1)
    for action, cell in ((UP, (0, 1)), (UP, (0, 1)), (DOWN, (1, 1)), (RIGHT, (1, 1)), (LEFT, (1, 0)),
                         (LEFT, (1, 0)), (STAY, (1, 0))):  # fmt: skip
        step(world, action)
        assert tuple(world.places.agents[0, 0]) == cell


@pytest.mark.parametrize(
    ("messages", "action"),
    [(0, [[0, 1], [4, 5]]), (0, [[0, 1], [4, -1]]), (3, [[[0, 0], [1, 2]], [[4, 2], [0, 3]]])],
)
def test_action_out_of_range_names_copy_and_agent_and_changes_nothing(messages, action):
    world = make(2, messages=messages)
    world.reset(0)
    before = world.save()
    with pytest.raises(ValueError, match="agent_1 of copy 1 chose"):
        world.step({"agent": np.array(action)})
    after = world.save()
    assert all(np.array_equal(before[key], after[key]) for key in before)


def test_actions_of_wrong_shape_or_type_are_refused():
    world = make(2, num_agents=3)
    world.reset(0)
    for action in (np.zeros((3, 2), int), np.zeros((2, 3)), np.zeros((2, 3, 2), int)):
        with pytest.raises(ValueError, match="actions must be integers of shape"):
            world.step({"agent": action})


# What is seen ---------------------------------------------------------------------------------------


def test_flat_observation_by_hand():
    world = start([(0, 1), (4, 3)], [(2, 2), (0, 0)], grid_size=5, num_targets=2)
    assert seen(world, 0).tolist() == [0, 0.25, 1, 0.5, 0.5, 0.25, 1, 0, -0.25, 1]
    step(world, LEFT, STAY)  # collects the second
    assert seen(world, 1).tolist() == [1, 0.75, -1, -0.75, -0.5, -0.25, 1, 0, 0, 0]


def test_flat_observation_with_view_tells_hidden_gone_and_here():
    world = start([(0, 1), (4, 3)], [(2, 2), (0, 0)], grid_size=5, num_targets=2, view=1)
    assert seen(world, 0).tolist() == [0, 0.25, 0, 0, 0, 0, 0, 0, 0, -0.25, 1]
    step(world, LEFT, STAY)
    assert seen(world, 1).tolist() == [1, 0.75, 0, 0, 0, 0, 0, 0, 0, 0, -1]
    arrange(world, agents=[(3, 2), (4, 3)])
    assert seen(world, 1).tolist() == [1, 0.75, -0.25, -0.25, 1, 0, 0, 0, 0, 0, -1]


def test_dict_observation_by_hand():
    world = start(
        [(0, 1), (4, 3)], [(2, 2), (0, 0)], grid_size=5, num_targets=2, view=1, messages=3, observation="dict"
    )
    step(world, [LEFT, 2], [STAY, 1])
    view = seen(world, 1)
    assert view["agent_pos"].tolist() == [1, 0.75]
    assert view["other_pos"].tolist() == [[0, 0]]
    assert view["other_visible"].tolist() == [0]
    assert view["other_message"].tolist() == [[0, 0, 1]]
    assert view["target_status"].tolist() == [0, 0]
    arrange(world, agents=[(3, 2), (4, 3)])
    view = seen(world, 0)
    assert view["other_pos"].tolist() == [[1, 0.75]]
    assert view["other_visible"].tolist() == [1]
    assert view["target_pos"].tolist() == [[0.5, 0.5], [0, 0]]
    assert view["target_status"].tolist() == [1, 0]
    space = world.kinds["agent"].observation
    assert space.sets == (("other_pos", "other_visible", "other_message"), ("target_pos", "target_status"))


def test_image_observation_by_hand():
    world = start([(0, 1), (2, 0)], [(1, 1)], walls=[(2, 2)], grid_size=3, num_targets=1, num_obstacles=1,
                  observation="image", messages=2)  # fmt: skip
    step(world, [STAY, 0], [STAY, 1])
    planes = seen(world, 0)
    expected = np.zeros((5, 3, 3), np.float32)
    expected[0, 0, 1] = expected[1, 2, 0] = expected[2, 1, 1] = expected[3, 2, 2] = expected[4, 2, 0] = 1
    assert np.array_equal(planes, expected)
    assert seen(world, 1)[4, 0, 1] == 0.5  # symbol 0 of 2


def test_wall_patch_is_centred_and_counts_the_outside_as_wall():
    world = start([(0, 0)], [(3, 3)], walls=[(0, 1)], grid_size=4, num_targets=1, num_obstacles=1, view=1)
    assert seen(world)[-9:].tolist() == [1, 1, 1, 1, 0, 1, 1, 0, 0]


@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize("agents", range(1, 6))
@pytest.mark.parametrize("extra", [{}, {"view": 2, "messages": 3, "num_obstacles": 4}])
def test_observations_lie_within_their_space(observation, agents, extra):
    reached = [1.0, 0.0]
    for mode in MODES:
        world = make(
            8, grid_size=4, num_agents=agents, mode=mode, observation=observation, max_steps=9, **extra
        )
        world.reset(1)
        play(world, 25)
        space, tick = world.kinds["agent"].observation, world._ticks.kinds["agent"]
        for tree in (tick.observation, tick.final_observation):
            boxes = {"": space} if isinstance(space, Box) else space.entries
            arrays = {"": tree} if isinstance(space, Box) else tree
            assert arrays.keys() == boxes.keys()
            for key, box in boxes.items():
                assert arrays[key].shape == (8, agents, *box.shape)
                assert arrays[key].dtype == np.float32 == np.dtype(box.dtype)
                assert (arrays[key] >= box.low).all()
                assert (arrays[key] <= box.high).all()
                reached = [
                    min(reached[0], arrays[key].min(initial=1)),
                    max(reached[1], arrays[key].max(initial=0)),
                ]
    assert reached[1] == 1.0  # the bounds are really met
    assert reached[0] < 0.0 if observation == "flat" else reached[0] == 0.0


def test_extreme_offsets_meet_the_bounds_exactly():
    for size in range(2, 60):
        world = start([(0, 0), (size - 1, size - 1)], [(0, size - 1)], grid_size=size, num_targets=1)
        assert seen(world, 0).tolist() == [0, 0, 1, 1, 0, 1, 1]
        assert seen(world, 1).tolist() == [1, 1, -1, -1, -1, 0, 1]


def test_spaces_of_actions():
    assert make().kinds["agent"].action == Discrete(5)
    assert make(messages=4).kinds["agent"].action == MultiDiscrete((5, 4))
    assert make(num_agents=3).kinds["agent"].agents == ("agent_0", "agent_1", "agent_2")


@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_race_never_shows_anothers_target(observation):
    world = start([(0, 0), (4, 4)], [(2, 2), (3, 1)], grid_size=5, mode="race", observation=observation)
    before = seen(world, 0), seen(world, 1)
    arrange(world, targets=[(2, 2), (1, 3)])
    assert same(seen(world, 0), before[0])
    assert not same(seen(world, 1), before[1])


@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_what_lies_beyond_view_changes_nothing(observation):
    fields = {"grid_size": 9, "num_targets": 1, "num_obstacles": 1, "view": 2, "observation": observation}
    world = start([(1, 1), (6, 6)], [(8, 0)], walls=[(8, 8)], **fields)
    before = seen(world, 0)
    arrange(world, agents=[(1, 1), (1, 4)], targets=[(4, 1)], walls=[(4, 4)])
    assert same(seen(world, 0), before)
    for near in ({"agents": [(1, 1), (3, 3)]}, {"targets": [(1, 3)]}, {"walls": [(3, 0)]}):
        arrange(world, agents=[(1, 1), (1, 4)], targets=[(4, 1)], walls=[(4, 4)])
        arrange(world, **near)
        assert not same(seen(world, 0), before)


@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_messages_are_heard_after_the_step_by_the_others_only(observation):
    world = start([(0, 0), (0, 2)], [(4, 4)], grid_size=5, num_targets=1, messages=3, observation=observation)
    silent = seen(world, 0), seen(world, 1)
    step(world, [STAY, 1], [STAY, 0])
    first = seen(world, 1)
    assert not same(first, silent[1])
    step(world, [STAY, 1], [STAY, 2])
    assert same(seen(world, 1), first)  # one's own symbol is not heard
    step(world, [STAY, 2], [STAY, 2])
    assert not same(seen(world, 1), first)
    if observation == "flat":
        assert seen(world, 1).tolist()[4:7] == [0, 0, 1]
        assert silent[1].tolist()[4:7] == [0, 0, 0]


def test_symbols_are_forgotten_at_the_start_of_an_episode():
    world = make(messages=2, max_steps=1, num_targets=1)
    world.reset(0)
    tick = step(world, [STAY, 1], [STAY, 1]).kinds["agent"]
    assert tick.final_observation[0, 0, 4:6].tolist() == [0, 1]
    assert tick.observation[0, 0, 4:6].tolist() == [0, 0]


def test_final_observation_is_written_for_ended_copies_only():
    world = make(2, grid_size=5, num_agents=1, num_targets=1)
    world.reset(0)
    world.places.agents[:, 0], world.places.targets[:, 0] = (0, 0), [(0, 1), (0, 2)]
    ticks = world.step({"agent": np.array([[RIGHT], [RIGHT]])})
    tick = ticks.kinds["agent"]
    assert ticks.ended.tolist() == [True, False]
    assert tick.final_observation[0, 0].tolist() == [0, 0.25, 0, 0, 0]
    assert not tick.final_observation[1].any()
    assert tick.observation[1, 0].tolist() == [0, 0.25, 0, 0.25, 1]


# Randomness and saving ------------------------------------------------------------------------------

RICH = {
    "grid_size": 6,
    "num_obstacles": 5,
    "target_move_probability": 0.3,
    "view": 2,
    "messages": 2,
    "max_steps": 15,
}


@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_same_seed_same_future(observation):
    worlds = [make(4, **RICH, observation=observation) for _ in range(3)]
    for world, seed in zip(worlds, (5, 5, 6), strict=True):
        world.reset(seed)
    logs = [play(world, 40) for world in worlds]
    assert equal_logs(logs[0], logs[1])
    assert not equal_logs(logs[0], logs[2])


def test_copies_differ_and_do_not_depend_on_their_number():
    few, many = make(2, **RICH), make(5, **RICH)
    few.reset(3), many.reset(3)
    for _ in range(40):
        action = np.ones((5, 2, 2), int)
        few.step({"agent": action[:2]}), many.step({"agent": action})
    for name, array in few.save().items():
        assert np.array_equal(array, many.save()[name][:2])
    assert len(np.unique(many.places.random)) == 5


@pytest.mark.parametrize("mode", MODES)
def test_loading_continues_exactly(mode):
    world = make(4, **RICH, mode=mode)
    world.reset(0)
    play(world, 20)
    state = world.save()
    before = world._out.observation.copy()
    first = play(world, 40, seed=1)
    other = make(4, **RICH, mode=mode)
    other.reset(99)
    ticks = other.load(state)
    tick = ticks.kinds["agent"]
    assert np.array_equal(tick.observation, before)
    assert not tick.reward.any()
    assert not (tick.terminated.any() or tick.truncated.any() or ticks.ended.any())
    assert equal_logs(play(other, 40, seed=1), first)


def test_loading_another_worlds_state_is_refused():
    with pytest.raises(ValueError, match="saved 'random' has shape"):
        make(2).load(make(3).save())


def test_spawning_is_uniform():
    world = make(9000, grid_size=3, num_agents=1, num_targets=1)
    world.reset(0)
    pairs = np.ravel_multi_index((*world.places.agents[:, 0].T, *world.places.targets[:, 0].T), (3, 3, 3, 3))
    counts = np.bincount(pairs, minlength=81).reshape(9, 9)
    assert not counts.diagonal().any()
    expected = 9000 / 72
    chi_square = ((counts[~np.eye(9, dtype=bool)] - expected) ** 2 / expected).sum()
    assert chi_square < 120  # 71 degrees of freedom: exceeded with probability 2e-4, and the seed is fixed


# Properties -----------------------------------------------------------------------------------------


def connected(walls):
    free = set(zip(*np.nonzero(~walls), strict=True))
    frontier = [next(iter(free))]
    reached = set(frontier)
    while frontier:
        row, column = frontier.pop()
        for cell in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
            if cell in free and cell not in reached:
                reached.add(cell)
                frontier.append(cell)
    return reached == free


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_invariants_hold_in_any_world(data):
    size = data.draw(st.integers(2, 6))
    agents = data.draw(st.integers(1, min(3, size**2 - 1)))
    mode = data.draw(st.sampled_from(MODES if 2 * agents <= size**2 else MODES[:3]))
    targets = {"meet": 1, "race": agents}.get(mode) or data.draw(st.integers(1, min(4, size**2 - agents)))
    obstacles = data.draw(st.integers(0, size**2 - agents - targets))
    world = make(3, grid_size=size, num_agents=agents, mode=mode, num_targets=targets, num_obstacles=obstacles,
                 target_move_probability=data.draw(st.sampled_from([0.0, 0.7])), max_steps=8)  # fmt: skip
    world.reset(data.draw(st.integers(0, 2**40)))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    places = world.places
    for _ in range(12):
        fresh = places.time == 0
        before = places.targets.copy()
        for n in range(3):
            walls = {*zip(*np.nonzero(places.walls[n]), strict=True)}
            standing = [tuple(cell) for cell in places.agents[n]]
            aims = [
                tuple(cell) for cell, there in zip(places.targets[n], places.present[n], strict=True) if there
            ]
            assert len(walls) == obstacles
            assert connected(places.walls[n])
            assert not walls & {*standing, *aims}
            assert len(set(aims)) == len(aims)
            if fresh[n]:
                assert len({*standing, *aims}) == agents + targets
            if mode in ("cooperative", "competitive"):
                assert not {*standing} & {*aims}
        ticks = world.step({"agent": random.integers(0, 5, (3, agents))})
        tick = ticks.kinds["agent"]
        assert np.array_equal(ticks.ended, (tick.terminated | tick.truncated).all(axis=1))
        assert not (tick.terminated & tick.truncated).any()
        assert np.array_equal(places.time == 0, ticks.ended)
        assert np.abs(places.targets - before)[~ticks.ended].sum(axis=-1).max(initial=0) <= 1
        if mode == "cooperative":
            assert (tick.reward == tick.reward[:, :1]).all()


def test_targets_move_as_often_as_asked():
    world = make(2000, grid_size=8, num_agents=1, num_targets=1, mode="meet", target_move_probability=0.25)
    world.reset(0)
    before = world.places.targets.copy()
    world.step({"agent": np.full((2000, 1), STAY)})
    moved = (world.places.targets != before).any(axis=(1, 2)).mean()
    assert moved == pytest.approx(0.25, abs=0.03)


def test_a_surrounded_target_stays():
    world = start([(0, 1), (1, 0)], [(0, 0)], grid_size=3, num_targets=1, target_move_probability=1.0)
    step(world, STAY, STAY)
    assert tuple(world.places.targets[0, 0]) == (0, 0)


# Reference player and optimum -----------------------------------------------------------------------


def joint_optimum(world):
    """Fewest steps to collect everything, by searching all joint states of copy 0."""
    size, walls = world.settings.grid_size, world.places.walls[0]
    targets = [tuple(map(int, cell)) for cell in world.places.targets[0]]
    first = tuple(tuple(map(int, cell)) for cell in world.places.agents[0])
    queue, known = deque([(first, frozenset(targets), 0)]), {(first, frozenset(targets))}
    while queue:
        agents, left, time = queue.popleft()
        if not left:
            return time
        options = []
        for row, column in agents:
            near = ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1), (row, column))
            options.append([(r, c) for r, c in near if 0 <= r < size and 0 <= c < size and not walls[r, c]])
        for moved in product(*options):
            state = (moved, left - set(moved))
            if state not in known:
                known.add(state)
                queue.append((*state, time + 1))
    raise AssertionError("unreachable target")


@pytest.mark.parametrize("fields", [{"num_targets": 2}, {"num_targets": 3, "num_obstacles": 2}])
def test_best_return_equals_search_over_joint_states(fields):
    config = GridworldSettings(grid_size=3, **fields)
    world = Gridworld(config, 1)
    for seed in range(12):
        world.reset(seed)
        length = joint_optimum(world)
        best = best_return(config, episodes=1, seed=seed)
        assert best["length"] == length
        assert best["mean_return"] == pytest.approx(10 * config.targets + 20 - 0.1 * length)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "extra", [{}, {"num_obstacles": 6, "messages": 2}, {"max_steps": 4, "step_reward": -0.5}]
)
def test_heuristic_never_beats_the_best(mode, extra):
    config = GridworldSettings(grid_size=5, mode=mode, num_agents=3, **extra)
    world = Gridworld(config, 40)
    total, length = guided_episodes(world, 40, seed=7)
    best = best_return(config, episodes=40, seed=7)
    assert length.mean() >= best["length"] - 1e-9
    assert total.mean() <= best["bound"] + 1e-5
    assert best["mean_return"] <= best["bound"]
    if mode in ("meet", "race"):  # shortest paths are the whole art
        assert length.mean() == best["length"]
        assert total.mean() == pytest.approx(best["mean_return"], rel=1e-5)


def test_best_return_by_hand_when_time_is_short():
    assert best_return(GridworldSettings(grid_size=30, num_agents=1, max_steps=1), 50)["success"] == 0.0
    config = GridworldSettings(grid_size=2, num_agents=1, num_targets=3, max_steps=2)
    best = best_return(config, episodes=20)  # two of the three targets are within two steps
    assert best == {
        "mean_return": pytest.approx(19.8),
        "bound": pytest.approx(19.8),
        "length": 2.0,
        "success": 0.0,
    }


def test_race_bound_counts_arriving_together():
    config = GridworldSettings(grid_size=5, mode="race")
    best = best_return(config, episodes=200)
    assert best["bound"] == 10.0  # whoever is nearer may wait
    assert 2.5 <= best["mean_return"] < 10.0


def test_competitive_return_without_ties():
    best = best_return(GridworldSettings(mode="competitive", num_agents=3), episodes=20)
    assert best["mean_return"] == pytest.approx(3 * (20 - 2 * 5) / 3)
    assert best["bound"] == pytest.approx(3 * 20 / 3)


@pytest.mark.parametrize(
    "fields", [{"target_move_probability": 0.1}, {"num_targets": MOST_TARGETS + 1}, {"step_reward": 0.1}]
)
def test_best_return_refuses_what_it_cannot_solve(fields):
    with pytest.raises(ValueError, match="best_return"):
        best_return(GridworldSettings(**fields))


def moves_of(world):
    return world.heuristic("agent", np.random.default_rng(0))[0].tolist()


def test_cooperative_heuristic_shares_the_targets():
    world = start([(0, 0), (0, 1)], [(0, 3), (4, 0)], grid_size=5, num_targets=2)
    assert moves_of(world) == [DOWN, RIGHT]  # both are nearest to (0, 3); agent 1 is nearer
    world = start([(0, 0), (0, 2)], [(0, 3)], grid_size=5, num_targets=1)
    assert moves_of(world) == [RIGHT, RIGHT]  # with none to spare the other follows


def test_competitive_heuristic_avoids_lost_races():
    world = start([(0, 0), (0, 2)], [(0, 3), (4, 0)], grid_size=5, num_targets=2, mode="competitive")
    assert moves_of(world) == [DOWN, RIGHT]
    world = start([(0, 0), (0, 2)], [(0, 3)], grid_size=5, num_targets=1, mode="competitive")
    assert moves_of(world) == [RIGHT, RIGHT]


def test_meeting_heuristic_waits_on_the_target():
    world = start([(0, 0), (2, 2)], [(2, 2)], grid_size=5, mode="meet")
    assert moves_of(world) == [DOWN, STAY]


def test_heuristic_walks_around_walls():
    world = start([(0, 0)], [(0, 2)], walls=[(0, 1), (1, 1)], grid_size=4, num_targets=1, num_obstacles=2)
    path = []
    for _ in range(6):
        path.append(moves_of(world)[0])
        ticks = step(world, path[-1])
    assert path == [DOWN, DOWN, RIGHT, RIGHT, UP, UP]
    assert ticks.success.all()


def test_heuristic_sends_symbol_zero():
    world = make(3, messages=2)
    world.reset(0)
    action = world.heuristic("agent", np.random.default_rng(0))
    assert action.shape == (3, 2, 2)
    assert not action[..., 1].any()


# Pictures -------------------------------------------------------------------------------------------


def test_world_is_guided_and_renderable():
    assert isinstance(make(), Guided)
    assert isinstance(make(), Renderable)


def test_frame_shows_where_things_are():
    world = start([(0, 0), (1, 1)], [(2, 2)], walls=[(3, 3)], grid_size=4, num_targets=1, num_obstacles=1)
    picture = world.frame(0)
    assert picture.shape == (136, 136, 3)
    assert picture.dtype == np.uint8
    arrange(world, agents=[(0, 3), (1, 1)])
    changed = (world.frame(0) != picture).any(axis=-1)
    cells = {((row - 4) // 32, (column - 4) // 32) for row, column in zip(*np.nonzero(changed), strict=True)}
    assert cells == {(0, 0), (0, 3)}


def test_frame_paints_race_targets_like_their_agents():
    world = start([(0, 0), (0, 1)], [(2, 2), (3, 3)], grid_size=4, mode="race")
    picture = world.frame(0).reshape(136, 136, 3)
    for agent, target in (((0, 0), (2, 2)), ((0, 1), (3, 3))):
        corners = [(4 + 32 * row, 4 + 32 * column) for row, column in (agent, target)]
        tiles = [picture[r : r + 32, c : c + 32].reshape(-1, 3) for r, c in corners]
        colours = [set(map(tuple, tile.tolist())) for tile in tiles]
        plain = {(250, 248, 243), (242, 239, 231), (255, 255, 255)}
        assert (colours[0] & colours[1]) - plain


def test_ansi_by_hand():
    world = start(
        [(0, 0), (1, 1), (1, 1)], [(0, 1), (1, 1), (2, 0)], walls=[(2, 2)], grid_size=3, num_obstacles=1
    )
    assert world.ansi(0) == "step 0\n0 .*.\n. +*.\n.*. #"
    world = start([(0, 0), (1, 1)], [(0, 1), (1, 1)], grid_size=3, mode="race")
    assert world.ansi(0) == "step 0\n0 .a.\n. 1b.\n. . ."


def test_final_picture_shows_how_the_episode_ended():
    world = start([(0, 0)], [(0, 1)], grid_size=2, num_targets=1)
    step(world, RIGHT)
    assert world.final_ansi(0) == "step 1\n. 0\n. ."
    assert world.ansi(0).startswith("step 0\n")
