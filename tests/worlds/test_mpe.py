"""The particle worlds: step by step against mpe2, single steps by hand, the experts, pictures."""

import numpy as np
import pytest

from coterie.core.sampling import random_actions
from coterie.core.world import HasExpert, Renderable
from coterie.testing import check_world
from coterie.worlds.adapters.export import PettingZooEnv
from coterie.worlds.mpe.world import Spread, SpreadSettings, Tag, TagSettings

simple_spread_v3 = pytest.importorskip("mpe2.simple_spread_v3")
simple_tag_v3 = pytest.importorskip("mpe2.simple_tag_v3")

EPISODES = 20
LEFT, RIGHT, DOWN, UP = 1, 2, 3, 4


def place(world, copy, positions, velocities=None, landmarks=None):
    """Put the particles of one copy somewhere; who is not mentioned stays, velocities become 0."""
    state = world.save()
    state["position"][copy] = positions
    state["velocity"][copy] = 0 if velocities is None else velocities
    if landmarks is not None:
        state["landmarks"][copy] = landmarks
    return world.load(state)


def spread(positions, landmarks, velocities=None, num_envs=1, **settings):
    world = Spread(SpreadSettings(num_agents=len(positions), **settings), num_envs)
    for copy in range(num_envs):
        place(world, copy, positions, velocities, landmarks)
    return world


def tag(adversaries, good, obstacles=(), velocities=None, **settings):
    world = Tag(TagSettings(len(good), len(adversaries), len(obstacles), **settings), 1)
    place(world, 0, [*adversaries, *good], velocities, np.reshape(obstacles, (-1, 2)))
    return world


# Beside mpe2 ------------------------------------------------------------------------------------------


def begin(env, world, copy, crowded):
    """Reset mpe2 and put the copy into the same state; a crowd starts in a small square, moving."""
    env.reset(seed=100 + copy)
    theirs, random = env.unwrapped.world, np.random.default_rng(copy)
    if crowded:
        for agent in theirs.agents:
            agent.state.p_pos, agent.state.p_vel = random.uniform(-0.12, 0.12, 2), random.uniform(-1, 1, 2)
        for landmark in theirs.landmarks:
            landmark.state.p_pos = random.uniform(-0.5, 0.5, 2)
    place(
        world,
        copy,
        [agent.state.p_pos for agent in theirs.agents],
        [agent.state.p_vel for agent in theirs.agents],
        np.reshape([landmark.state.p_pos for landmark in theirs.landmarks], (-1, 2)),
    )
    return {agent.name: env.unwrapped.observe(agent.name) for agent in theirs.agents}


def equal(agent_type, ours, theirs):
    """`ours` [N, A, …] is what mpe2 tells each copy's agents by name, as precisely as float32 can say it."""
    expected = np.array([[given[agent] for agent in agent_type.agents] for given in theirs], np.float32)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-6)


def compare(world, make_env):
    """Play an episode in every copy and in an environment of mpe2; returns how often two agents touched."""
    random, contacts = np.random.default_rng(7), 0
    envs = [make_env() for _ in range(world.num_envs)]
    seen = [begin(env, world, copy, crowded=copy % 2 == 1) for copy, env in enumerate(envs)]
    timestep = world.load(world.save())
    for name, agent_type in world.agent_types.items():
        equal(agent_type, timestep.agent_types[name].observation, seen)
    for step in range(1, 26):
        actions = random_actions(timestep, world.agent_types, random)
        places = [
            (name, agent, i)
            for name, agent_type in world.agent_types.items()
            for i, agent in enumerate(agent_type.agents)
        ]
        given = [
            env.step({agent: actions[name][copy, i] for name, agent, i in places}) for copy, env in enumerate(envs)
        ]
        seen, rewards, terminations, truncations, _ = zip(*given, strict=True)
        timestep = world.step(actions)
        assert timestep.ended.tolist() == [step == 25] * world.num_envs
        for name, agent_type in world.agent_types.items():
            agent_step = timestep.agent_types[name]
            equal(agent_type, agent_step.final_observation if step == 25 else agent_step.observation, seen)
            equal(agent_type, agent_step.reward, rewards)
            equal(agent_type, agent_step.terminated, terminations)
            equal(agent_type, agent_step.truncated, truncations)
        for env in envs:
            particles, touch = env.unwrapped.world.agents, env.unwrapped.scenario.is_collision
            contacts += sum(touch(a, b) for i, a in enumerate(particles) for b in particles[:i])
    return contacts


@pytest.mark.slow
@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize(("agents", "local_ratio"), [(1, 0.5), (2, 0), (2, 1), (3, 0), (3, 0.5), (3, 1), (5, 0.5)])
def test_spread_is_that_of_mpe2(agents, local_ratio, continuous):
    settings = SpreadSettings(agents, local_ratio, continuous_actions=continuous)
    contacts = compare(
        Spread(settings, EPISODES),
        lambda: simple_spread_v3.parallel_env(
            N=agents, local_ratio=local_ratio, max_cycles=25, continuous_actions=continuous
        ),
    )
    assert contacts >= (agents - 1) * EPISODES // 2


@pytest.mark.slow
@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize(("good", "adversaries", "obstacles"), [(1, 3, 2), (1, 1, 0), (2, 4, 3), (3, 2, 1)])
def test_tag_is_that_of_mpe2(good, adversaries, obstacles, continuous):
    settings = TagSettings(good, adversaries, obstacles, continuous_actions=continuous)
    contacts = compare(
        Tag(settings, EPISODES),
        lambda: simple_tag_v3.parallel_env(
            num_good=good,
            num_adversaries=adversaries,
            num_obstacles=obstacles,
            max_cycles=25,
            continuous_actions=continuous,
        ),
    )
    assert contacts >= EPISODES // 4


@pytest.mark.parametrize("continuous", [False, True])
def test_names_and_spaces_are_those_of_mpe2(continuous):
    for world, env in (
        (
            Spread(SpreadSettings(4, continuous_actions=continuous), 1),
            simple_spread_v3.parallel_env(N=4, continuous_actions=continuous),
        ),
        (
            Tag(TagSettings(2, 3, continuous_actions=continuous), 1),
            simple_tag_v3.parallel_env(num_good=2, continuous_actions=continuous),
        ),
    ):
        face = PettingZooEnv(world, "mpe")
        assert face.possible_agents == env.possible_agents
        for agent in face.possible_agents:
            assert face.observation_space(agent) == env.observation_space(agent)
            assert face.action_space(agent) == env.action_space(agent)


def test_episodes_begin_as_those_of_mpe2():
    """Uniform over the same squares, at rest."""
    for world, spawn in ((Spread(SpreadSettings(), 4000), 1.0), (Tag(TagSettings(), 4000), 0.9)):
        world.reset(1)
        state = world.save()
        assert not state["velocity"].any()
        for points, reach in ((state["position"], 1.0), (state["landmarks"], spawn)):
            assert np.abs(points).max() < reach
            deciles = np.quantile(points, np.linspace(0, 1, 11), axis=0)
            np.testing.assert_allclose(deciles, np.linspace(-reach, reach, 11)[:, None, None] + 0 * deciles, atol=0.08)
            flat = points.reshape(len(points), -1)
            assert np.abs(np.corrcoef(flat.T) - np.eye(flat.shape[1])).max() < 0.1


# Contract ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("continuous", [False, True])
def test_keep_the_contract(continuous):
    for agents in (1, 3):
        check_world(lambda num_envs, n=agents: Spread(SpreadSettings(n, continuous_actions=continuous), num_envs))
    for sizes in ((1, 3, 2), (2, 1, 0)):
        check_world(
            lambda num_envs, s=sizes: Tag(TagSettings(*s, max_steps=7, continuous_actions=continuous), num_envs)
        )


def test_seeds_make_the_difference():
    world = Spread(SpreadSettings(), 3)
    first, again, other = (world.reset(seed).agent_types["agent"].observation.copy() for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not (first[..., :14] == other[..., :14])[..., 2:].any()
    assert not (first[0] == first[1])[:, 2:14].any()


def test_kinds_and_capabilities():
    world = Tag(TagSettings(2, 3, 1), 1)
    assert isinstance(world, HasExpert)
    assert isinstance(world, Renderable)
    assert {name: agent_type.observation.shape for name, agent_type in world.agent_types.items()} == {
        "adversary": (18,),
        "agent": (16,),
    }


@pytest.mark.parametrize("action", [-1, 5])
def test_a_choice_out_of_range_is_named_and_changes_nothing(action):
    world = Tag(TagSettings(num_good=2), 3)
    before = world.save()
    actions = {"adversary": np.zeros((3, 3), int), "agent": np.zeros((3, 2), int)}
    actions["agent"][2, 1] = action
    with pytest.raises(ValueError, match=f"agent_1 of copy 2 chose {action}, outside Discrete"):
        world.step(actions)
    assert all(np.array_equal(before[name], array) for name, array in world.save().items())


@pytest.mark.parametrize("number", [-0.01, 1.01, np.nan, np.inf])
def test_a_number_out_of_range_is_named(number):
    world = Spread(SpreadSettings(continuous_actions=True), 2)
    actions = np.full((2, 3, 5), 0.5, np.float32)
    actions[1, 2, 0] = number  # the idle entry, too
    with pytest.raises(ValueError, match="agent_2 of copy 1 chose"):
        world.step({"agent": actions})


def test_actions_of_the_wrong_shape_or_type_are_refused():
    world = Spread(SpreadSettings(), 2)
    with pytest.raises(ValueError, match=r"integers of shape \(2, 3\), got int64 \(2,\)"):
        world.step({"agent": np.zeros(2, int)})
    with pytest.raises(ValueError, match="integers of shape"):
        world.step({"agent": np.zeros((2, 3))})


@pytest.mark.parametrize(
    ("make", "bad", "message"),
    [
        (SpreadSettings, {"num_agents": 0}, "num_agents must be at least 1"),
        (SpreadSettings, {"local_ratio": 1.5}, r"local_ratio must lie in \[0, 1\]"),
        (SpreadSettings, {"max_steps": 0}, "max_steps must be at least 1"),
        (TagSettings, {"num_good": 0}, "num_good must be at least 1"),
        (TagSettings, {"num_adversaries": 0}, "num_adversaries must be at least 1"),
        (TagSettings, {"num_obstacles": -1}, "num_obstacles must be at least 0"),
    ],
)
def test_bad_settings_are_refused(make, bad, message):
    with pytest.raises(ValueError, match=message):
        make(**bad)


def test_a_state_of_other_size_is_refused_and_nothing_is_loaded():
    world = Spread(SpreadSettings(), 3)
    before = world.save()
    with pytest.raises(ValueError, match="saved 'random' has shape"):
        world.load(Spread(SpreadSettings(), 2).save())
    assert all(np.array_equal(before[name], array) for name, array in world.save().items())


# By hand ----------------------------------------------------------------------------------------------


def test_a_push_moves_from_the_next_step_on():
    world = spread([(0, 0)], [(1, 0)], [(1, 0)])
    agent_step = world.step({"agent": np.array([[UP]])}).agent_types["agent"]
    # moved by 0.1 · 1, kept 0.75 of it, pushed by 5 · 0.1
    np.testing.assert_allclose(agent_step.observation[0, 0], [0.75, 0.5, 0.1, 0, 0.9, 0], rtol=1e-6)
    np.testing.assert_allclose(agent_step.reward, [[-0.45]], rtol=1e-6)


@pytest.mark.parametrize(
    ("action", "velocity"), [(LEFT, (-0.3, 0)), (RIGHT, (0.3, 0)), (DOWN, (0, -0.3)), (UP, (0, 0.3))]
)
def test_directions(action, velocity):
    world = tag([(0.5, 0.5)], [(-0.5, -0.5)])
    agent_step = world.step({"adversary": np.array([[action]]), "agent": np.array([[0]])}).agent_types["adversary"]
    np.testing.assert_allclose(agent_step.observation[0, 0, :2], velocity, rtol=1e-6)


def test_spread_charges_each_of_two_that_collide_but_nobody_for_itself():
    positions, landmarks = [(0, 0), (0.2, 0), (0.9, 0.9)], [(0, 0), (0.2, 0), (0.9, 0.5)]
    world = spread(positions, landmarks, local_ratio=0.25)
    agent_step = world.step({"agent": np.zeros((1, 3), int)}).agent_types["agent"]
    np.testing.assert_allclose(agent_step.reward, [[-0.4 * 0.75 - 0.25, -0.4 * 0.75 - 0.25, -0.4 * 0.75]], rtol=1e-6)


def test_tag_pays_all_adversaries_for_each_catch_and_charges_the_caught():
    adversaries, good = [(0, 0), (0.1, 0.1), (-0.8, -0.8)], [(0.05, 0.05), (0.95, 0)]
    timestep = tag(adversaries, good).step({"adversary": np.zeros((1, 3), int), "agent": np.zeros((1, 2), int)})
    assert timestep.agent_types["adversary"].reward.tolist() == [[20, 20, 20]]
    np.testing.assert_allclose(timestep.agent_types["agent"].reward, [[-20, -0.5]], rtol=1e-6)


@pytest.mark.parametrize(("x", "cost"), [(0.89, 0), (-0.95, 0.5), (1.5, np.e), (-9, 10)])
def test_leaving_costs_good_agents_only(x, cost):
    timestep = tag([(x, 0)], [(x, 0.5)]).step({"adversary": np.array([[0]]), "agent": np.array([[0]])})
    np.testing.assert_allclose(timestep.agent_types["agent"].reward, [[-cost]], rtol=1e-5)
    assert not timestep.agent_types["adversary"].reward.any()


def test_speed_is_limited_in_tag_alone():
    world = tag([(0, 0)], [(0.5, 0.5)], velocities=[(3, 4), (30, 40)])
    timestep = world.step({"adversary": np.array([[0]]), "agent": np.array([[0]])})
    np.testing.assert_allclose(timestep.agent_types["adversary"].observation[0, 0, :2], [0.6, 0.8], rtol=1e-6)
    np.testing.assert_allclose(timestep.agent_types["agent"].observation[0, 0, :2], [0.78, 1.04], rtol=1e-6)
    agent_step = spread([(0, 0)], [(0, 0)], [(30, 40)]).step({"agent": np.array([[0]])}).agent_types["agent"]
    np.testing.assert_allclose(agent_step.observation[0, 0, :2], [22.5, 30], rtol=1e-6)


def test_particles_on_the_same_point_stay_finite():
    agent_step = (
        spread([(0, 0), (0, 0)], [(0, 0), (1, 1)]).step({"agent": np.array([[RIGHT, LEFT]])}).agent_types["agent"]
    )
    np.testing.assert_allclose(agent_step.observation[0, :, :2], [[0.5, 0], [-0.5, 0]])


def test_spread_succeeds_when_every_landmark_is_covered_at_the_end():
    world = spread([(0, 0), (1, 0)], [(0.1, 0), (1, 0.1)], max_steps=2, num_envs=2)
    place(world, 1, [(0, 0), (1, 0)], None, [(0.1, 0), (1, 0.16)])
    rest = {"agent": np.zeros((2, 2), int)}
    assert not world.step(rest).success.any()
    assert world.step(rest).success.tolist() == [True, False]


def test_tag_succeeds_when_somebody_was_caught_also_if_he_got_away():
    world = tag([(0, 0)], [(0.11, 0)], max_steps=6)
    rest = {"adversary": np.array([[0]]), "agent": np.array([[RIGHT]])}
    timestep = [
        (agent_step.agent_types["adversary"].reward.item(), agent_step.success.item())
        for agent_step in map(world.step, [rest] * 6)
    ]
    assert timestep[0] == (10, False)
    assert timestep[-1] == (0, True)
    assert not world.save()["caught"].any()


# Reference players ------------------------------------------------------------------------------------


def mean_return(world, agent_type, guided):
    """The return of an agent type in one episode; named types follow their experts, others act at random."""
    random = np.random.default_rng(0)
    timestep, total = world.reset(5), 0.0
    for _ in range(world.settings.max_steps):
        actions = random_actions(timestep, world.agent_types, random)
        actions |= {name: world.expert(name, random) for name in guided}
        timestep = world.step(actions)
        total += timestep.agent_types[agent_type].reward.mean()
    return total, timestep.success.mean()


@pytest.mark.parametrize("continuous", [False, True])
def test_the_covering_player_beats_chance(continuous):
    world = Spread(SpreadSettings(continuous_actions=continuous), 500)
    (chance, covered), (guided, guided_covered) = (
        mean_return(world, "agent", []),
        mean_return(world, "agent", ["agent"]),
    )
    assert guided > -12
    assert chance < -22
    assert covered < 0.05
    assert guided_covered > 0.8


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("good", [1, 2])
def test_the_chasing_and_the_fleeing_player_beat_chance(continuous, good):
    world = Tag(TagSettings(good, continuous_actions=continuous), 500)
    chance, caught = mean_return(world, "adversary", [])
    chased, chased_caught = mean_return(world, "adversary", ["adversary"])
    assert chased > 5 * chance
    assert chased_caught > caught + 0.4
    assert mean_return(world, "agent", ["agent"])[0] > 0.3 * mean_return(world, "agent", [])[0]
    hunted, _ = mean_return(world, "agent", ["adversary"])
    assert mean_return(world, "agent", ["adversary", "agent"])[0] > 0.65 * hunted


# Pictures ---------------------------------------------------------------------------------------------


def test_frame_shows_where_things_are():
    world = tag([(0.5, 0.5)], [(-0.5, 0.5)], [(0, -0.6)])
    picture = world.frame(0)
    assert picture.shape == (384, 384, 3)
    assert picture.dtype == np.uint8

    def pixel(x, y):
        return picture[int((1.2 - y) / 2.4 * 384), int((1.2 + x) / 2.4 * 384)].astype(int)

    hunter, prey, grey, paper = pixel(0.54, 0.5), pixel(-0.47, 0.5), pixel(0, -0.6), pixel(0, 0)
    assert hunter[2] > hunter[0] + 80  # blue and vermilion, as hunters and prey have in the charts of a report
    assert prey[0] > prey[2] + 80
    assert np.ptp(grey) < 20
    assert paper.min() > 240
    assert np.abs(pixel(1.1, 1.1) - paper).min() > 15


def test_frame_zooms_out_when_somebody_leaves():
    world = spread([(0, 0)], [(0.5, 0.5)])
    near = world.frame(0)
    place(world, 0, [(3, 0)])
    far = world.frame(0)
    assert (near[192, -20:] == near[0, 0]).all()
    assert (far[192, -20:] != far[0, 0]).any()  # the agent stands at the right border


def test_final_picture_shows_how_the_episode_ended():
    world = spread([(0, 0)], [(0.5, 0.5)], max_steps=1)
    still = world.frame(0)
    assert world.step({"agent": np.array([[0]])}).ended.all()
    np.testing.assert_array_equal(world.frame(0, final=True), still)
    assert world.ansi(0, final=True).startswith("step 1\n")
    assert world.ansi(0).startswith("step 0\n")


def test_ansi_by_hand():
    rows = spread([(-1.2, 1.2), (0, 0), (0.01, 0)], [(1.2, 1.2), (0, 1.2), (-1.2, -1.2)]).ansi(0).split("\n")
    assert rows[0] == "step 0"
    assert rows[1] == "0 . . . . . . . . . . . * . . . . . . . . . . . *"
    assert rows[2] == " ".join("." * 25)
    assert rows[13] == ". . . . . . . . . . . . + . . . . . . . . . . . ."
    assert rows[25][0] == "*"
    rows = tag([(0, 1.2)], [(7, -7)], [(0.01, 0)]).ansi(0).split("\n")
    assert rows[1] == ". . . . . . . . . . . . A . . . . . . . . . . . ."
    assert rows[25][-1] == "0"
    assert rows[13].count("#") == 8
