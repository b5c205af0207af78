"""Observations of the grid world: values computed by hand, bounds, and nothing hidden leaks."""

import numpy as np
import pytest

from coterie.core.types import Box, Discrete, MultiDiscrete
from helpers.grid import LEFT, MODES, OBSERVATIONS, RIGHT, STAY, arrange, make, play, same, seen, start, step


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
    space = world.agent_types["agent"].observation
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
        world = make(8, grid_size=4, num_agents=agents, mode=mode, observation=observation, max_steps=9, **extra)
        world.reset(1)
        play(world, 25)
        space, agent_step = world.agent_types["agent"].observation, world._timestep.agent_types["agent"]
        for tree in (agent_step.observation, agent_step.final_observation):
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
    assert make().agent_types["agent"].action == Discrete(5)
    assert make(messages=4).agent_types["agent"].action == MultiDiscrete((5, 4))
    assert make(num_agents=3).agent_types["agent"].agents == ("agent_0", "agent_1", "agent_2")


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
    agent_step = step(world, [STAY, 1], [STAY, 1]).agent_types["agent"]
    assert agent_step.final_observation[0, 0, 4:6].tolist() == [0, 1]
    assert agent_step.observation[0, 0, 4:6].tolist() == [0, 0]


def test_final_observation_is_written_for_ended_copies_only():
    world = make(2, grid_size=5, num_agents=1, num_targets=1)
    world.reset(0)
    world.grid.agents[:, 0], world.grid.targets[:, 0] = (0, 0), [(0, 1), (0, 2)]
    timestep = world.step({"agent": np.array([[RIGHT], [RIGHT]])})
    agent_step = timestep.agent_types["agent"]
    assert timestep.ended.tolist() == [True, False]
    assert agent_step.final_observation[0, 0].tolist() == [0, 0.25, 0, 0, 0]
    assert not agent_step.final_observation[1].any()
    assert agent_step.observation[1, 0].tolist() == [0, 0.25, 0, 0.25, 1]
