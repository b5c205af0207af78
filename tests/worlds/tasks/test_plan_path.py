"""Plan-Path: rewards by hand, how answers are read, programs in the sandbox, splits that cannot be filled."""

import gc
import os
import signal
from dataclasses import replace

import numpy as np
import pytest

import coterie
from coterie.core import seeding
from coterie.core.types import CoterieError
from coterie.worlds.tasks.moves import parse_moves
from coterie.worlds.tasks.plan_path import PathState, PlanPathSettings, PlanPathTask, distances, grid_text
from coterie.worlds.tasks.world import AGENT_TYPE, draw_instance, split_of
from helpers.tasks import make

# S..
# ##.
# G..   the goal is 6 moves away
STATE = PathState(3, "...##....", at=0, goal=6, start=0)


@pytest.fixture
def task():
    return PlanPathTask(PlanPathSettings(size=3))


def test_distances_and_the_picture():
    assert distances(3, STATE.walls, 6) == (6, 5, 4, -1, -1, 3, 0, 1, 2)
    assert grid_text(STATE) == "S..\n##.\nG.."


def test_what_follows_the_goal_counts_nothing_and_does_not_fill_the_planners_prompt(task):
    clean, long, lost = (task.apply(STATE, "tool", path) for path in ("RRDDLL", "RRDDLL" + "U" * 900_000, "RL" * 10**5))
    assert (clean.team, clean.local) == (long.team, long.local) == (1.0, 0.5)
    assert (lost.team, lost.local) == (0.0, 0.5 / 6)  # cut off after nine moves, one cell ahead
    for outcome in (long, lost):
        assert len(outcome.state.proposal) == 9
        assert len(task.templates["planner"].format_map(task.fields(outcome.state, "planner"))) < 200


def test_signs_may_stand_apart():
    task = PlanPathTask(PlanPathSettings(size=3, spaced=True))
    fields = task.fields(replace(STATE, proposal="RRD"), "planner")
    assert fields["grid"] == "S . .\n# # .\nG . ."
    assert fields["proposal"] == fields["path"] == "R R D"
    assert task.solve(STATE, "tool") == "R R D D L L"
    assert task.apply(STATE, "planner", task.solve(STATE, "planner")).solved
    guess = task.guess(STATE, "planner", np.random.default_rng(0))
    assert set(guess[1::2]) <= {" "}


def test_the_trail_marks_cells_that_the_walker_has_left():
    task = PlanPathTask(PlanPathSettings(size=3, trail=True))
    assert "visited" in task.templates["tool"].format_map(task.fields(STATE, "tool"))
    proposed = task.apply(STATE, "tool", "RRD").state
    assert task.fields(proposed, "planner")["grid"] == "S..\n##.\nG.."  # a proposal moves nobody
    walked = task.apply(proposed, "planner", "RR").state
    assert task.fields(walked, "tool")["grid"] == "++S\n##.\nG.."
    back = task.apply(walked, "planner", "L").state
    assert task.fields(back, "tool")["grid"] == "+S+\n##.\nG.."
    assert task.identity(back) == task.identity(STATE)
    plain = PlanPathTask(PlanPathSettings(size=3))
    assert plain.fields(plain.apply(STATE, "planner", "RR").state, "tool")["grid"] == "..S\n##.\nG.."
    assert "visited" not in plain.templates["tool"].format_map(plain.fields(STATE, "tool"))


@pytest.mark.parametrize(
    ("answer", "team", "local", "at", "solved"),
    [
        ("RRDDLL", 1.0, 0.5, 6, True),  # the shortest way
        ("RR", 0.0, 0.5 * 2 / 6, 2, False),  # two moves closer
        ("RRU", 0.0, 0.5 * 2 / 6 - 0.25, 2, False),  # then out of the grid
        ("D", 0.0, -0.25, 0, False),  # into a wall
        ("RLRRDDLL", 1 - 0.5 * (1 - 6 / 8), 0.5, 6, True),  # a detour of two moves
        ("RRDDLLRR", 1.0, 0.5, 6, True),  # the goal ends the walk
        ("no idea", 0.0, -0.5, 0, False),  # cannot be read
    ],
)
def test_rewards_by_hand(task, answer, team, local, at, solved):
    outcome = task.apply(STATE, "planner", answer)
    assert (outcome.team, outcome.local) == (pytest.approx(team), pytest.approx(local))
    assert (outcome.state.at, outcome.solved) == (at, solved)
    assert outcome.readable == (answer != "no idea")


def test_the_reward_for_an_impossible_move_is_a_setting():
    task = PlanPathTask(PlanPathSettings(size=3, invalid_reward=-0.1))
    for role in task.roles:
        assert task.apply(STATE, role, "RRU").local == pytest.approx(0.5 * 2 / 6 - 0.1)
        assert task.apply(STATE, role, "D").local == pytest.approx(-0.1)


def test_a_proposal_is_rewarded_for_what_following_it_would_do_and_moves_nobody(task):
    outcome = task.apply(STATE, "tool", "RRDDLL")
    assert (outcome.team, outcome.local, outcome.solved) == (1.0, 0.5, False)
    assert outcome.state == replace(STATE, proposal="RRDDLL")
    assert "RRDDLL" in task.templates["planner"].format_map(task.fields(outcome.state, "planner"))
    assert task.apply(outcome.state, "planner", "RR").state.proposal == ""  # used up


def test_the_prompt_shows_the_present_state(task):
    after = task.apply(STATE, "planner", "RR").state
    assert task.fields(after, "tool")["grid"] == "..S\n##.\nG.."


def test_moves_of_one_turn_are_limited():
    task = PlanPathTask(PlanPathSettings(size=3, max_moves=2))
    outcome = task.apply(STATE, "planner", "RRDDLL")
    assert outcome.state.at == 2
    assert task.solve(outcome.state, "planner") == "DD"


@pytest.mark.parametrize(
    ("answer", "moves"),
    [
        ("RRD", "RRD"),
        (" right, down\nbecause", "RD"),
        ("Moves: R -> D", "RD"),
        ("path", None),
        ("", None),
        ("RXD", None),
    ],
)
def test_forms_of_answers(answer, moves):
    assert parse_moves(answer) == moves


@pytest.mark.slow
def test_a_program_of_the_tool_runs_in_the_sandbox(live_sandbox):
    task = PlanPathTask(PlanPathSettings(size=3, tool="program"))
    assert task.templates["tool"].endswith("```python\n")
    written = "import sys\ngrid = sys.stdin.read().split()\nprint('RRDDLL' if grid[0] == 'S..' else 'L')\n```\nDone."
    assert task.apply(STATE, "tool", written).state.proposal == "RRDDLL"
    for failing in ("print(open('/etc/passwd').read())\n```", "while True: pass\n```", "raise ValueError\n```"):
        outcome = task.apply(STATE, "tool", failing)
        assert not outcome.readable
        assert outcome.state.proposal == ""


class OneInstance(PlanPathTask):
    """A task that always draws the same instance."""

    def generate(self, random):
        return STATE


def test_a_task_without_instances_of_a_split_is_named():
    task = OneInstance(PlanPathSettings(size=3))
    missing = "train" if split_of(task, STATE) == "test" else "test"
    with pytest.raises(ValueError, match=rf"split={missing}.*larger"):
        draw_instance(task, missing, (0, 0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 1}, "size"),
        ({"walls": 0.9}, "walls"),
        ({"invalid_reward": 0.1}, "invalid_reward"),
        ({"min_distance": 99}, "min_distance"),
        ({"tool": "magic"}, "tool.*magic"),
        ({"turns": 0}, "turns"),
        ({"split": "both"}, "split.*both"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        PlanPathSettings(**settings)


def test_unknown_roles_and_uneven_groups_are_named():
    with pytest.raises(ValueError, match=r"no role 'cook'.*tool, planner"):
        make("plan_path", roles=("cook",))
    with pytest.raises(ValueError, match=r"group_size \(3\)"):
        make("plan_path", 4, group_size=3)


@pytest.mark.slow
def test_the_processes_that_apply_answers_end_with_their_world():
    def started():
        world, random = make("plan_path", env_workers=2), seeding.generator(0, "workers")
        fork = world.fork(np.arange(4))
        fork.step({AGENT_TYPE: world.guess(AGENT_TYPE, random)})
        children = [child.process for child in world.workers.children]
        assert children
        assert all(child.is_alive() for child in children)
        return world, fork, children

    world, fork, children = started()
    world.close()
    assert not any(child.is_alive() for child in children)
    world, fork, children = started()
    del world
    gc.collect()
    assert all(child.is_alive() for child in children)  # a fork goes on with the workers of its world
    del fork
    gc.collect()
    assert not any(child.is_alive() for child in children)


@pytest.mark.slow
def test_a_killed_process_is_named_and_the_world_goes_on_with_new_ones():
    world, random = make("plan_path", env_workers=1), seeding.generator(0, "killed")
    try:
        world.step({AGENT_TYPE: world.guess(AGENT_TYPE, random)})
        (child,) = world.workers.children
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(CoterieError, match=r"world\.env_workers was lost: .* SIGKILL.*coterie resume"):
            world.step({AGENT_TYPE: world.guess(AGENT_TYPE, random)})
        world.reset(0)
        world.step({AGENT_TYPE: world.guess(AGENT_TYPE, random)})
    finally:
        world.close()


@pytest.mark.slow
def test_answers_are_applied_alike_in_child_processes():
    one, two, random = make("plan_path"), make("plan_path", env_workers=1), seeding.generator(0, "workers")
    try:
        for _ in range(2):
            given = {AGENT_TYPE: one.guess(AGENT_TYPE, random)}
            rewards = [world.step(given).agent_types[AGENT_TYPE].reward.tolist() for world in (one, two)]
            assert rewards[0] == rewards[1]
    finally:
        two.workers.close()


def test_an_answer_that_a_fork_has_tried_is_not_applied_again():
    world, random = make("plan_path"), seeding.generator(0, "known")
    given = {AGENT_TYPE: world.guess(AGENT_TYPE, random)}
    world.fork(np.arange(4)).step(given)
    known = dict(world.workers.known)
    assert len(known) == 4
    world.workers._apply = None  # nothing is left to apply
    world.step(given)
    assert dict(world.workers.known) == known


def test_a_copy_that_is_done_waits_for_the_longest_episode():
    world = make("plan_path", 2, turns=2)
    texts = world.expert(AGENT_TYPE, None)
    world.step({AGENT_TYPE: texts})
    texts = world.expert(AGENT_TYPE, None)
    texts[1] = "?"
    first = world.step({AGENT_TYPE: texts})
    assert first.ended.tolist() == [True, False]
    acting = [first.agent_types[AGENT_TYPE].acting.any(axis=1).tolist()]
    for _ in range(2):
        step = world.step({AGENT_TYPE: texts})
        acting.append(step.agent_types[AGENT_TYPE].acting.any(axis=1).tolist())
    assert acting == [[False, True], [False, True], [True, True]]


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        *((name, "tool", "planner") for name in ("plan_path", "sokoban", "sudoku")),
        ("math", "tool", "reasoner"),
        ("code", "tester", "coder"),
    ],
)
def test_environments_are_found_by_name(name, first, second):
    env = getattr(coterie.worlds, name).env(turns=1)
    env.reset(seed=0)
    assert env.agent_selection == first
    env.step("no idea")
    assert env.infos[first]["readable"] is False
    assert env.observe(second)["prompt"].startswith(f"You are the {second}")
    env.step("no idea")
    assert env.truncations == {first: True, second: True}
    with pytest.raises(TypeError, match=r"trun: no such setting.*turns"):
        getattr(coterie.worlds, name).env(trun=1)


def test_every_world_found_by_name_is_an_environment():
    assert {"code", "doorkey", "math"} <= set(coterie.worlds.__all__)
    for name in coterie.worlds.__all__:
        world = coterie.worlds.__getattr__(name)
        assert hasattr(world, "env") or hasattr(world, "parallel_env"), name


def test_proposals_are_paid_once_so_that_putting_off_the_solution_earns_nothing():
    from coterie.worlds.tasks.plan_path import PlanPath, PlanPathSettings

    returns = {}
    for delay in (0, 2):
        world = PlanPath(PlanPathSettings(size=4, turns=4), 1)
        world.reset(3)
        total = 0.0
        for step in range(8):
            answers = world.expert("team", np.random.default_rng(0))
            if step % 2 and step // 2 < delay:
                answers[0, 1] = "?"  # the planner does not follow
            timestep = world.step({"team": answers})
            total += float(timestep.agent_types["team"].reward.sum())
            if timestep.ended[0]:
                break
        assert timestep.success[0]
        returns[delay] = total
    assert returns[0] == pytest.approx(3.0)  # two experts: 1.5 each
    assert returns[2] == pytest.approx(3.0 - 2 * 0.5)  # less the planner's unreadable answers
