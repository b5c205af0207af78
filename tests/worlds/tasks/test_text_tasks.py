"""What holds for every text task: it can be solved, splits never overlap, states are saved, forks tell the truth."""

import numpy as np
import pytest
from pettingzoo.test import api_test, seed_test

from coterie.config import registry
from coterie.core import lookup, seeding
from coterie.core.types import as_metrics
from coterie.testing import check_world
from coterie.testing.comparison import through_checkpoint
from coterie.worlds.adapters.export_aec import PettingZooAECEnv
from coterie.worlds.tasks.world import AGENT_TYPE, split_of
from helpers.tasks import SLOW, TASKS, make, play, settings_of

pytestmark = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in TASKS]
)


def episodes(name):
    return 4 if name in SLOW else 40


def count(name, steps):
    """A number of steps, or a third of it where every answer is a program to run."""
    return steps // 3 if name in SLOW else steps


def answers(world, writer, random):
    """The answers of the solver, or of a player that knows the form alone."""
    write = world.expert if writer == "expert" else world.guess
    return {AGENT_TYPE: write(AGENT_TYPE, random)}


def test_the_solver_solves_every_instance_for_tests(name):
    result = play(name, "expert", episodes(name))
    assert result.success.all()
    assert all(value == 0 for key, value in as_metrics(result.counters).items() if key.endswith("unreadable"))


@pytest.mark.slow
def test_guesses_and_random_texts_are_far_below(name):
    guess, random = (play(name, player, episodes(name)) for player in ("guess", "random"))
    assert guess.success.mean() <= 0.5
    assert random.success.mean() <= 0.1
    shares = {key: value for key, value in as_metrics(random.counters).items() if key.endswith("unreadable")}
    assert shares
    assert max(shares.values()) >= 0.5  # most random texts cannot be read, and are counted


def test_one_role_alone_can_solve_it(name):
    last = make(name).roles[-1]
    assert play(name, "expert", max(episodes(name) // 4, 2), roles=(last,)).success.all()


@pytest.mark.slow
def test_instances_for_training_validation_and_tests_never_overlap(name):
    found = {"train": set(), "validation": set(), "test": set()}
    settings = settings_of(name)
    splits = {"train": settings, "validation": settings.for_validation(), "test": settings.for_evaluation()}
    for seed in range(3):
        for split, chosen in splits.items():
            world = lookup.look_up(registry.WORLDS, name)(chosen, 60)
            world.reset(seed)
            for state in world._states:
                assert split_of(world.task, state) == split
                found[split].add(world.task.identity(state))
    assert len(set.union(*found.values())) == sum(map(len, found.values()))
    assert min(map(len, found.values())) > 1


def test_seeds_decide_the_instances(name):
    texts = []
    for seed in (3, 3, 4):
        world = make(name, 8)
        texts.append(world.reset(seed).agent_types[AGENT_TYPE].observation.tolist())
    assert texts[0] == texts[1] != texts[2]


def test_a_state_saved_in_the_middle_of_an_episode_goes_on_alike(name):
    world, other = make(name, 4), make(name, 4)
    random = seeding.generator(0, "save")
    world.reset(5)
    for _ in range(count(name, 3)):
        world.step(answers(world, "guess", random))
    loaded = other.load(through_checkpoint(world.save()))
    assert (
        loaded.agent_types[AGENT_TYPE].observation.tolist()
        == world.observe().agent_types[AGENT_TYPE].observation.tolist()
    )
    for _ in range(count(name, 7)):
        given = answers(world, "guess", random)
        one, two = world.step(given), other.step(given)
        for key in ("observation", "reward", "terminated", "truncated", "acting"):
            a, b = (getattr(step.agent_types[AGENT_TYPE], key) for step in (one, two))
            assert a.tolist() == b.tolist(), key
        assert [world.transcript(n) for n in range(4)] == [other.transcript(n) for n in range(4)]
    assert world.counters() == other.counters()


@pytest.mark.parametrize("writer", ["expert", "guess"])
def test_a_fork_tells_what_the_step_will_do(name, writer):
    world, random = make(name, 4), seeding.generator(0, "fork")
    world.reset(2)
    for _ in range(count(name, 6)):
        given, index = answers(world, writer, random), np.array([3, 0, 0, 2])
        before = world.save()
        outcome = world.fork(index).step({AGENT_TYPE: given[AGENT_TYPE][index]})
        assert str(world.save()) == str(before)
        real = world.step(given)
        for key in ("reward", "terminated", "truncated"):
            forked, stepped = (getattr(step.agent_types[AGENT_TYPE], key) for step in (outcome, real))
            assert forked.tolist() == stepped[index].tolist(), key


def test_evaluation_settings_pass_the_conformance_tests(name):
    settings = settings_of(name)
    assert (settings.for_evaluation().split, settings.for_validation().split) == ("test", "validation")
    assert settings_of(name, split="train").for_validation().split == "train"
    check_world(lambda num_envs: make(name, num_envs, evaluation=True), steps=8 if name in SLOW else 25)


def test_sparse_rewards_are_those_of_the_team(name):
    world, random = make(name, count(name, 6), reward="sparse", alpha=2.0), seeding.generator(0, "sparse")
    world.reset(0)
    rewards = [
        world.step(answers(world, "guess", random)).agent_types[AGENT_TYPE].reward for _ in range(count(name, 6))
    ]
    assert (np.sum(rewards, axis=0) >= 0).all()  # penalties are local, worse proposals give back
    world.reset(0)
    steps = [world.step(answers(world, "expert", random)) for _ in world.roles]
    solved = [step.agent_types[AGENT_TYPE].reward for step in steps]
    assert np.max(solved) == pytest.approx(2.0)


def test_copies_of_a_group_play_the_same_instance(name):
    world = make(name, 6, group_size=3)
    texts = world.reset(0).agent_types[AGENT_TYPE].observation[:, 0].tolist()
    assert texts[0] == texts[1] == texts[2]
    assert texts[3] == texts[4] == texts[5] != texts[0]


def test_it_can_be_drawn(name):
    world = make(name, 1)
    world.step({AGENT_TYPE: world.expert(AGENT_TYPE, seeding.generator(0, "draw"))})
    picture = world.frame(0)
    assert picture.dtype == np.uint8
    assert picture.shape == make(name, 1).frame(0).shape  # all frames have one size
    assert world.roles[0] in world.ansi(0)


@pytest.mark.filterwarnings("ignore")  # PettingZoo warns of observations that are no arrays
def test_it_is_a_pettingzoo_environment(name):
    def make_env():
        return PettingZooAECEnv(make(name, 1), name)

    api_test(make_env(), num_cycles=30)
    seed_test(make_env, num_cycles=10)


def test_a_prompt_of_ones_own_may_name_the_turn(name):
    roles = make(name).roles
    world = make(name, 2, turns=3, prompts=dict.fromkeys(roles, "turn {turn} of {turns}"))
    random, seen = seeding.generator(0, "turn"), []
    for _ in range(3 * len(roles)):
        seen += {text for text in world.observe().agent_types[AGENT_TYPE].observation.flat if text}
        world.step(answers(world, "guess", random))
    if name == "plan_path":  # others may be solved or lost by a guess
        assert seen == [f"turn {turn} of 3" for turn in (1, 2, 3) for _ in roles]
    assert seen[: len(roles)] == ["turn 1 of 3"] * len(roles)


def test_a_prompt_of_ones_own_must_name_known_fields(name):
    role = make(name).roles[0]
    with pytest.raises(ValueError, match=rf"prompts\.{role}.*'{{nothing}}'"):
        make(name, prompts={role: "{nothing}"})
