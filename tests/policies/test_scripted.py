"""Random play is uniform over what is legal; the expert asks the world."""

import numpy as np
import pytest

from coterie.core.types import UNLABELLED, Box, Discrete, MultiDiscrete, View
from coterie.policies.scripted import ExpertPolicy, ExpertSettings, RandomPolicy, RandomSettings
from coterie.worlds.boards.tictactoe import Tictactoe, TictactoeSettings
from coterie.worlds.gridworld.world import Gridworld, GridworldSettings
from coterie.worlds.tasks.plan_path import PlanPath, PlanPathSettings
from helpers.small_worlds import generator, group_spec, spec_in


def play(action, num_envs=20_000, mask=None, greedy=False):
    where = group_spec(action, agents=1)
    acting = np.ones((num_envs, 1), bool)
    view = View(np.zeros((num_envs, 1, 3), np.float32), acting, np.arange(1), generator(), greedy, mask)
    return RandomPolicy(RandomSettings(), where).act(view)


def test_every_choice_is_as_likely():
    said = play(Discrete(4))
    assert np.allclose(np.bincount(said.action[:, 0]) / 20_000, 0.25, atol=0.015)
    assert np.allclose(said.log_prob, np.log(0.25))


def test_only_legal_choices_are_made_and_equally_often():
    mask = np.broadcast_to(np.array([True, False, True, False]), (20_000, 1, 4))
    said = play(Discrete(4), mask=mask)
    assert np.allclose(np.bincount(said.action[:, 0], minlength=4) / 20_000, [0.5, 0, 0.5, 0], atol=0.015)
    assert np.allclose(said.log_prob, np.log(0.5))


def test_several_choices_are_independent():
    said = play(MultiDiscrete((2, 3)))
    counts = np.bincount(said.action[:, 0] @ [3, 1], minlength=6)
    assert np.allclose(counts / 20_000, 1 / 6, atol=0.015)


def test_boxes_are_filled_evenly_and_missing_bounds_lie_10_beyond():
    low, high = np.array([2, 20, 0, -np.inf, 20, -np.inf]), np.array([3, 30, 1000, np.inf, np.inf, -20])
    said = play(Box((6,), low, high))
    action = said.action[:, 0]
    assert action.dtype == np.float32
    assert said.log_prob is None
    for column, (low, high) in enumerate(((2, 3), (20, 30), (0, 1000), (-10, 10), (20, 30), (-30, -20))):
        assert action[:, column].min() >= low
        assert action[:, column].max() <= high
        shares = np.histogram(action[:, column], 4, (low, high))[0] / 20_000
        assert np.allclose(shares, 0.25, atol=0.015)


def test_greedy_random_play_is_still_random():
    assert len(np.unique(play(Discrete(4), greedy=True).action)) == 4


def test_the_expert_plays_its_own_columns():
    world = Tictactoe(TictactoeSettings(), 4)
    agent_step = world.reset(0).agent_types["player"]
    for column in (0, 1):
        where = spec_in(world, [column])
        view = View(
            agent_step.observation[:, [column]],
            agent_step.acting[:, [column]],
            np.arange(1),
            generator(),
            world=world,
            agent_type="player",
            columns=where.columns,
        )
        said = ExpertPolicy(ExpertSettings(), where).act(view)
        assert said.action.tolist() == world.expert("player", generator())[:, [column]].tolist()
        assert said.action.tolist() == ([[4]] * 4 if column == 0 else [[0]] * 4)  # the first move is the centre


def test_the_expert_needs_a_world():
    where = group_spec()
    view = View(np.zeros((2, 2, 3)), np.ones((2, 2), bool), np.arange(2), generator())
    with pytest.raises(ValueError, match="needs the state of the world"):
        ExpertPolicy(ExpertSettings(), where).act(view)


@pytest.mark.slow
def test_the_expert_gives_way_where_its_move_is_barred():
    world = Gridworld(GridworldSettings(grid_size=4, num_agents=2), 16)
    where = spec_in(world)
    agent_step = world.reset(0).agent_types[where.agent_type]
    wanted = world.expert(where.agent_type, generator())
    rest = {"world": world, "agent_type": where.agent_type, "columns": where.columns}
    barred = ~np.eye(5, dtype=bool)[wanted]
    barred[0] = True  # nothing is barred to the first copy's agents
    view = View(agent_step.observation, agent_step.acting, np.arange(2), generator(), mask=barred, **rest)
    action = ExpertPolicy(ExpertSettings(), where).act(view).action
    assert np.take_along_axis(barred, action[..., None], axis=-1).all()
    assert (action[0] == wanted[0]).all()


def test_mistakes_are_as_frequent_as_set_and_have_no_label():
    world = Tictactoe(TictactoeSettings(), 4000)
    agent_step, where = world.reset(0).agent_types["player"], spec_in(world)
    rest = {"world": world, "agent_type": "player", "columns": where.columns}
    view = View(agent_step.observation, agent_step.acting, np.arange(2), generator(), mask=agent_step.mask, **rest)
    said = ExpertPolicy(ExpertSettings(mistakes=0.3), where).act(view)
    wrong = said.trace[UNLABELLED]
    assert not wrong[:, 1].any()  # the second player does not act
    assert wrong[:, 0].mean() == pytest.approx(0.3, abs=0.03)
    assert (said.action[~wrong[:, 0], 0] == 4).all()  # the expert begins in the centre
    assert len(np.unique(said.action[wrong[:, 0], 0])) == 9
    assert ExpertPolicy(ExpertSettings(), where).act(view).trace is None


def test_in_text_worlds_mistakes_are_answers_of_the_right_form():
    world = PlanPath(PlanPathSettings(size=4), 200)
    agent_step, where = world.reset(0).agent_types["team"], spec_in(world)
    rest = {"world": world, "agent_type": "team", "columns": where.columns}
    view = View(agent_step.observation, agent_step.acting, np.arange(2), generator(), **rest)
    said = ExpertPolicy(ExpertSettings(mistakes=0.5), where).act(view)
    wrong = said.trace[UNLABELLED][:, 0]
    expert = world.expert("team", generator())[:, 0]
    assert (said.action[~wrong, 0] == expert[~wrong]).all()
    assert (said.action[wrong, 0] != expert[wrong]).mean() > 0.9
    assert all(set(text) <= set("UDLR") for text in said.action[wrong, 0])


def test_a_share_of_mistakes_above_one_is_refused():
    with pytest.raises(ValueError, match=r"mistakes.*1\.5"):
        ExpertSettings(mistakes=1.5)
