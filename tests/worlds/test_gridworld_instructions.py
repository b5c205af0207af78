"""Instructions in the grid world: who follows is judged exactly, words and numbers agree, and nothing else moves."""

import hashlib

import numpy as np
import pytest

import coterie
from coterie.core.group import GroupSpec
from coterie.core.text import Instructing, Oracle
from coterie.core.types import Dict
from coterie.policies.network import NetworkPolicy, NetworkSettings
from coterie.policies.text_encoder import EncoderModel, TextSettings
from coterie.training import table
from coterie.worlds.gridworld import phrasings as words
from coterie.worlds.gridworld.text import GridworldText, make_text_codec
from coterie.worlds.gridworld.world import GridworldSettings, best_return, parallel_env
from helpers.grid import DOWN, LEFT, RIGHT, STAY, UP, equal_logs, make, play, rewards, seen, start, step

RED, GREEN, BLUE = range(3)
FIRST, LAST = range(2)
LISTS = ("train", "held_out", "relational")


def instructed_world(agents, targets, order, colour, **fields):
    """A world of one copy whose instruction puts a colour first or last."""
    world = start(agents, targets, instructions="train", num_targets=len(targets), **fields)
    world.instruction.sentence[0] = (order * len(targets) + colour) * words.PHRASINGS
    world.load(world.save())
    return world


# Words ----------------------------------------------------------------------------------------------


def test_wordings_are_many_and_disjoint():
    lists = [list_[order] for list_ in words.LISTS.values() for order in (FIRST, LAST)]
    every = [wording for wordings in lists for wording in wordings]
    assert len(set(every)) == len(every)
    assert all(("{colour}" in wording) != ("{Colour}" in wording) for wording in every)
    assert min(map(len, words.TRAIN)) >= 12
    assert min(map(len, words.HELD_OUT)) >= 6
    for first, last in words.LISTS.values():
        assert len(first) == len(last)


def test_sentences_are_numbered_by_order_then_colour_then_wording():
    sentences = words.sentences(3)
    assert len(set(sentences)) == len(sentences) == 2 * 3 * words.PHRASINGS
    assert sentences[0] == "Collect the red target first."
    assert sentences[2 * words.PHRASINGS] == "Collect the blue target first."
    assert sentences[(3 + GREEN) * words.PHRASINGS] == "Collect the green target last."
    for name, list_ in words.LISTS.items():
        start, count = words.sampled_phrasings(name)
        shown = [s.replace("green", "{colour}").replace("Green", "{Colour}") for s in sentences]
        at = (3 + GREEN) * words.PHRASINGS + start
        assert tuple(shown[at : at + count]) == list_[LAST]


@pytest.mark.slow
@pytest.mark.parametrize("name", LISTS)
def test_episodes_draw_every_meaning_and_every_wording_of_their_list_alike(name):
    world = make(30000, instructions=name)
    world.reset(0)
    start, count = words.sampled_phrasings(name)
    meaning, wording = np.divmod(world.instruction.sentence, words.PHRASINGS)
    counts = np.zeros((6, words.PHRASINGS))
    np.add.at(counts, (meaning, wording), 1)
    inside = counts[:, start : start + count]
    assert inside.sum() == 30000
    expected = 30000 / inside.size
    chi_square = ((inside - expected) ** 2 / expected).sum()
    assert chi_square < inside.size + 4 * np.sqrt(2 * inside.size)  # four deviations, and the seed is fixed


# Judging, by hand -----------------------------------------------------------------------------------


def test_first_is_followed_step_by_step():
    world = instructed_world([(0, 0)], [(0, 1), (0, 2), (0, 3)], FIRST, RED, grid_size=5)
    assert rewards(step(world, RIGHT)) == pytest.approx([9.9])
    assert rewards(step(world, RIGHT)) == pytest.approx([9.9])
    timestep = step(world, RIGHT)
    assert rewards(timestep) == pytest.approx([29.9])
    assert timestep.success.all()
    assert world.info("agent_0", 0) == {"instruction": "Collect the red target first.", "broken": False}


def test_a_target_out_of_turn_pays_nothing_and_the_episode_goes_on_without_success():
    world = instructed_world([(0, 0)], [(0, 2), (0, 1), (0, 3)], FIRST, RED, grid_size=5)
    timestep = step(world, RIGHT)  # onto green
    assert rewards(timestep) == pytest.approx([-0.1])
    assert not timestep.ended.any()
    assert world.info("agent_0", 0)["broken"]
    assert rewards(step(world, RIGHT)) == pytest.approx([9.9])
    timestep = step(world, RIGHT)
    assert rewards(timestep) == pytest.approx([9.9])  # no reward for being done
    assert timestep.agent_types["agent"].terminated.all()
    assert not timestep.success.any()
    assert world.info("agent_0", 0) == {"instruction": "Collect the red target first.", "broken": True}
    assert not world.instruction.broken[0]  # a new episode


def test_last_is_last_only_when_all_others_are_gone():
    world = instructed_world([(0, 1)], [(0, 0), (0, 2), (0, 3)], LAST, RED, grid_size=5)
    for _ in range(2):
        assert rewards(step(world, RIGHT)) == pytest.approx([9.9])
    for _ in range(2):
        step(world, LEFT)
    timestep = step(world, LEFT)
    assert rewards(timestep) == pytest.approx([29.9])
    assert timestep.success.all()
    world = instructed_world([(0, 1)], [(0, 0), (0, 2), (0, 3)], LAST, RED, grid_size=5)
    step(world, RIGHT)
    for _ in range(2):
        timestep = step(world, LEFT)
    assert rewards(timestep) == pytest.approx([-0.1])  # blue is still there
    assert world.instruction.broken[0]


@pytest.mark.parametrize(("order", "colour"), [(FIRST, RED), (FIRST, GREEN), (LAST, RED), (LAST, GREEN)])
def test_who_comes_at_the_same_time_does_not_come_before(order, colour):
    world = instructed_world([(0, 0), (4, 0)], [(0, 1), (4, 1)], order, colour, grid_size=5)
    timestep = step(world, RIGHT, RIGHT)
    assert timestep.ended.all()
    assert not timestep.success.any()
    assert rewards(timestep) == pytest.approx([9.9, 9.9])  # one of the two was in turn


def test_time_runs_out_on_who_does_nothing():
    world = instructed_world([(0, 0)], [(4, 1), (4, 2)], FIRST, RED, grid_size=5, max_steps=2)
    step(world, STAY)
    timestep = step(world, STAY)
    assert timestep.agent_types["agent"].truncated.all()
    assert not timestep.success.any()


# Nothing else moves ---------------------------------------------------------------------------------


def test_without_instructions_all_is_as_it_was_before_there_were_any():
    """Digests of play and states, taken from the version before."""
    expected = {
        "cooperative": "e959d911e73999b1",
        "competitive": "7cf8b9c694c93b4f",
        "meet": "a67e8d9f487f44ec",
        "race": "10a2e35e5dd5c8e0",
    }
    rich = {"grid_size": 6, "num_obstacles": 5, "target_move_probability": 0.3, "view": 2, "messages": 2}
    for mode, digest in expected.items():
        found = hashlib.sha256()
        for observation in ("flat", "dict", "image"):
            world = make(4, mode=mode, observation=observation, max_steps=15, **rich)
            world.reset(3)
            for agent_step in play(world, 60):
                for array in agent_step:
                    found.update(array.tobytes())
            for name, array in sorted(world.save().items()):
                found.update(name.encode() + array.tobytes())
            found.update(world.expert("agent", np.random.default_rng(0)).tobytes())
        assert found.hexdigest()[:16] == digest


def test_instructions_leave_the_first_places_alone():
    plain, asked = make(8), make(8, instructions="train")
    plain.reset(5), asked.reset(5)
    assert np.array_equal(plain.grid.agents, asked.grid.agents)
    assert np.array_equal(plain.grid.targets, asked.grid.targets)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"mode": "race"}, "instructions.*'cooperative', got 'race'"),
        ({"observation": "image"}, "instructions.*observation.*'image'"),
        ({"num_targets": 1}, "instructions.*num_targets 1"),
        ({"num_targets": 7}, "instructions.*num_targets 7"),
        ({"instructions": "some"}, "instructions.*held_out.*'some'"),
    ],
)
def test_what_cannot_be_asked_is_refused(fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        GridworldSettings(**{"instructions": "train"} | fields)


def test_the_optimum_is_refused():
    with pytest.raises(ValueError, match="set instructions to none"):
        best_return(GridworldSettings(instructions="train"), episodes=2)


# What is seen and said ------------------------------------------------------------------------------


def test_flat_observations_end_with_the_number():
    world = instructed_world([(0, 0)], [(0, 1), (2, 2), (4, 4)], LAST, BLUE, grid_size=5)
    row, plain = seen(world), seen(start([(0, 0)], [(0, 1), (2, 2), (4, 4)], grid_size=5))
    assert np.array_equal(row[: len(plain)], plain)
    assert np.flatnonzero(row[len(plain) :]).tolist() == [(3 + BLUE) * words.PHRASINGS]
    assert len(row) - len(plain) == len(words.sentences(3))


def test_dict_observations_tell_colours_within_the_set():
    world = instructed_world(
        [(0, 0)], [(0, 1), (2, 2), (4, 4)], FIRST, BLUE, grid_size=5, observation="dict", num_obstacles=1
    )
    space = world.agent_types["agent"].observation
    assert isinstance(space, Dict)
    assert space.sets[1] == ("target_pos", "target_status", "target_colour")
    row = seen(world)
    assert np.array_equal(row["target_colour"], np.eye(3, 6))
    assert np.flatnonzero(row["instruction"]).tolist() == [BLUE * words.PHRASINGS]
    assert {name: array.shape for name, array in row.items()} == {n: e.shape for n, e in space.entries.items()}


@pytest.mark.parametrize("observation", ["flat", "dict"])
def test_the_codec_reads_the_number_and_can_leave_it_out(observation):
    world = make(50, instructions="held_out", observation=observation, view=2, messages=2, num_obstacles=3)
    rows = world.reset(0).agent_types["agent"].observation
    rows = {k: a[:, 0] for k, a in rows.items()} if observation == "dict" else rows[:, 0]
    codec = make_text_codec(world, "agent")
    assert isinstance(codec, Instructing)
    expected = [world.sentences[number] for number in world.instruction.sentence]
    assert codec.instruct(rows) == expected
    assert len(set(expected)) > 20
    assert all(text.startswith(sentence) for text, sentence in zip(codec.describe(rows), expected, strict=True))
    before = {k: a.copy() for k, a in rows.items()} if observation == "dict" else rows.copy()
    numeric = codec.without_instruction(rows)
    if isinstance(rows, dict):
        assert numeric.keys() == codec.space_without_instruction.entries.keys() == rows.keys() - {"instruction"}
        assert all(np.array_equal(numeric[k], rows[k]) for k in numeric)
        assert all(np.array_equal(before[k], rows[k]) for k in rows)
    else:
        number = len(words.sentences(3))
        assert numeric.shape[1:] == codec.space_without_instruction.shape
        assert np.array_equal(numeric, rows[:, :-number])
        assert np.array_equal(before, rows)  # the world's own buffer is left alone


def test_descriptions_name_colours():
    world = instructed_world([(2, 2)], [(0, 2), (2, 3), (4, 1)], FIRST, RED, grid_size=5)
    codec = make_text_codec(world, "agent")
    assert codec.describe(seen(world)[None]) == [
        "Collect the red target first. The red target is 2 steps up. The green target is 1 step right. "
        "The blue target is 2 steps down and 1 step left."
    ]
    assert len(set(codec.samples())) == 16


def test_a_world_without_instructions_has_a_codec_without():
    world = make()
    assert type(make_text_codec(world, "agent")) is GridworldText
    assert not isinstance(make_text_codec(world, "agent"), Instructing)
    assert world.info("agent_0", 0) == {}


@pytest.mark.slow
def test_pictures_show_colours_and_the_instruction():
    world = instructed_world([(0, 0)], [(0, 1), (1, 1)], FIRST, GREEN, grid_size=3)
    assert (
        world.ansi(0)
        == "step 0\nCollect the green target first.\n┌───────┐\n│ 0 r . │\n│ . g . │\n│ . . . │\n└───────┘"
    )
    before = world.frame(0)
    assert before.shape[1] == 520
    assert before.shape[0] > 520
    step(world, RIGHT)
    assert world.ansi(0).splitlines()[1] == "Collect the green target first. (broken)"
    after = world.frame(0)
    assert (after != before)[520:].any()  # written in red
    plain = start([(0, 0)], [(0, 1), (1, 1)], grid_size=3, num_targets=2).frame(0)
    assert (plain != before[:520]).any()
    heights = set()
    for number in range(0, len(world.sentences), 7):
        world.instruction.sentence[0] = number
        heights.add(world.frame(0).shape)
    assert len(heights) == 1  # frames of a video have one size


# Players --------------------------------------------------------------------------------------------


def possible(world, n):
    """Whether copy n can be played as instructed, by walking around what must wait."""
    grid, targets = world.grid, world.settings.targets
    order, colour = divmod(int(world.instruction.sentence[n]) // words.PHRASINGS, targets)
    cells = [tuple(map(int, cell)) for cell in grid.targets[n]]
    others = {cell for k, cell in enumerate(cells) if k != colour}
    wanted, shut = ({cells[colour]}, others) if order == FIRST else (others, {cells[colour]})
    walls = set(zip(*map(list, np.nonzero(grid.walls[n])), strict=True))
    frontier = [tuple(map(int, cell)) for cell in grid.agents[n]]
    reached = set(frontier)
    while frontier:
        row, column = frontier.pop()
        for cell in ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)):
            inside = min(cell) >= 0 and max(cell) < world.settings.grid_size
            if inside and cell not in reached | shut | walls:
                reached.add(cell)
                frontier.append(cell)
    return wanted <= reached


@pytest.mark.parametrize("fields", [{"num_agents": 1}, {"num_agents": 3}, {"num_obstacles": 6, "num_targets": 5}])
def test_the_expert_follows_wherever_it_can(fields):
    world = make(200, grid_size=5, instructions="train", max_steps=60, **fields)
    world.reset(0)
    can = np.array([possible(world, n) for n in range(200)])
    over, success = np.zeros(200, bool), np.zeros(200, bool)
    for _ in range(60):
        timestep = world.step({"agent": world.expert("agent", np.random.default_rng(0))})
        success |= timestep.success & ~over
        over |= timestep.ended
    assert over.all()
    assert np.array_equal(success, can)
    assert can.mean() > 0.75


def test_the_oracle_keeps_off_what_must_wait():
    world = instructed_world([(0, 1)], [(0, 3), (0, 2), (1, 1)], FIRST, RED, grid_size=4)
    codec = make_text_codec(world, "agent")
    assert isinstance(codec, Oracle)
    # Green bars the straight way and blue the way below: red is reached by neither, so the ways around do not exist
    # but over the left side; every way is longer than straight.
    verdicts = {move: bool(codec.optimal(world, np.array([[move]]))[0, 0]) for move in (UP, DOWN, LEFT, RIGHT)}
    assert verdicts == {UP: False, DOWN: False, LEFT: True, RIGHT: False}
    assert world.expert("agent", np.random.default_rng(0)).tolist() == [[LEFT]]


def test_what_nobody_can_reach_otherwise_is_reached_over_others():
    world = instructed_world([(3, 3)], [(0, 0), (0, 1), (1, 0)], FIRST, RED, grid_size=4)
    for _ in range(6):
        timestep = step(world, int(world.expert("agent", np.random.default_rng(0))[0, 0]))
        if timestep.ended.any():
            break
    assert world.instruction.broken[0] or timestep.ended.any()
    assert not timestep.success.any()


# Exactness ------------------------------------------------------------------------------------------


def test_saving_and_loading_continue_exactly():
    fields = {"instructions": "train", "max_steps": 12, "target_move_probability": 0.2}
    world, other = make(6, **fields), make(6, **fields)
    world.reset(0), other.reset(9)
    play(world, 25)
    state = world.save()
    first = play(world, 60, seed=1)
    other.load(state)
    assert other.info("agent_0", 3)["instruction"] == world.sentences[state["sentence"][3]]
    assert equal_logs(play(other, 60, seed=1), first)
    assert {"sentence", "broken"} <= state.keys()
    assert not {"sentence", "broken"} & make().save().keys()


def test_it_is_a_pettingzoo_environment_that_names_its_instruction():
    api = pytest.importorskip("pettingzoo.test")
    for observation in ("flat", "dict"):
        settings = {"observation": observation, "instructions": "train", "max_steps": 20, "grid_size": 5}
        api.parallel_api_test(parallel_env(**settings), num_cycles=60)
        api.parallel_seed_test(lambda settings=settings: parallel_env(**settings))
    env = parallel_env(grid_size=5, instructions="held_out")
    _, infos = env.reset(seed=1)
    assert infos["agent_0"]["instruction"] in env.world.sentences
    assert infos["agent_0"] == infos["agent_1"]


@pytest.mark.slow
def test_a_run_on_train_wordings_plays_held_out_ones_by_one_override(tmp_path):
    moment = ["train.total_steps=64", "train.num_envs=4", "train.rollout_steps=8", "train.evaluate_episodes=2"]
    moment += ["train.video=false", "train.tensorboard=false", "groups.team.policy.text=null"]
    run = coterie.train("gridworld-instructed", moment, out=tmp_path / "run", quiet=True)
    loaded = table.load(str(run.path), "best", ["world.instructions=held_out"])
    assert loaded.config.world.settings.instructions == "held_out"
    result = loaded.evaluate(20, seed=0).to_dict()
    assert 0.0 <= result["success_rate"] <= 1.0


def test_a_network_reads_the_words_in_place_of_the_number_as_loud_as_it_is_asked_to():
    world = make(40, grid_size=5, num_agents=1, instructions="train")
    seen = world.reset(0).agent_types["agent"].observation
    agent_type = world.agent_types["agent"]
    group_spec = GroupSpec("team", "agent", agent_type, agent_type.agents, np.arange(1), world=world)

    def inputs(scale):
        text = TextSettings(EncoderModel("helpers.encoder:HASHES"), "instruction", scale=scale)
        return NetworkPolicy(NetworkSettings(text=text), group_spec).inputs(seen)[0]

    plain, soft = inputs(1.0), inputs(0.25)
    assert seen.shape[-1] == 11 + len(world.sentences)
    assert seen[..., 11:].any()
    assert plain.shape[-1] < 11 + len(world.sentences)  # the numbers are gone
    assert np.array_equal(plain[:, :11], seen[:, 0, :11])
    features = plain[:, 11:]
    assert len(np.unique(features, axis=0)) == len(set(world.instruction.sentence))
    assert np.allclose(soft[:, 11:], features / 4)
    assert np.array_equal(soft[:, :11], plain[:, :11])
    with pytest.raises(ValueError, match="scale must be above 0, got 0"):
        TextSettings(scale=0.0)
