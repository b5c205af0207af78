"""Worlds of texts in training and evaluation: buffers, checkpoints, counters, held-out instances, demonstrations."""

import json
from dataclasses import replace

import numpy as np
import pytest

from coterie import api
from coterie.algorithms.imitation import demonstrations
from coterie.config import schema
from coterie.config.schema import ConfigError
from coterie.core.types import CoterieError, Mean, Text, counted_since, random_texts
from coterie.runs import checkpoint
from coterie.studies.demonstrate.record import DemonstrationSpec, describe, record
from coterie.studies.match.match import cross_play, open_players
from coterie.studies.rate import episodes as rated
from coterie.testing.comparison import through_checkpoint
from coterie.training import build, loop, table
from coterie.training.evaluate import Result, effective_size, evaluate, wilson
from coterie.training.runner import Runner
from coterie.video import films as video
from coterie.worlds.tasks.world import split_of
from helpers.tasks import make, seat
from helpers.teams import team

EXPERIMENT = """
world: {name: plan_path, size: 4, turns: 2}
groups:
  tool: {agents: tool, policy: TOOL}
  planner: {agents: planner, policy: expert}
train: {total_steps: 48, num_envs: 4, shards: 2, rollout_steps: 3, evaluate_episodes: 8, video: false}
"""


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "plan.yaml"
    path.write_text(EXPERIMENT.replace("TOOL", "guess"))
    return str(path)


@pytest.fixture(scope="module")
def run(experiment, tmp_path_factory):
    return api.train(experiment, [], tmp_path_factory.mktemp("runs") / "plan", quiet=True)


def lines(run):
    found = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "wall_s"} for row in found]


def test_a_rollout_holds_texts_and_carries_open_decisions_over():
    world = make("plan_path", 3)
    runner = Runner(world, [seat(world, "guess")], 0)
    first, second = (runner.play(3, iteration).experiences["team"] for iteration in (1, 2))
    assert first.observation.dtype == first.action.dtype == object
    assert all(isinstance(text, str) for text in (*first.observation.flat, *first.action.flat))
    open_row = first.active[-1]  # decisions of the last step wait for their end
    assert second.observation[0][open_row].tolist() == first.observation[-2][open_row].tolist()
    held = through_checkpoint(runner.save())
    other = Runner(make("plan_path", 3), runner.actors, 0)
    other.load(held)
    one, two = runner.play(3, 3), other.play(3, 3)
    assert one.experiences["team"].action.tolist() == two.experiences["team"].action.tolist()
    assert one.counters == two.counters


def test_lengths_of_episodes_leave_out_the_steps_in_which_a_copy_waits():
    world = make("plan_path", 6, turns=4)
    runner = Runner(world, [seat(world, "expert")], 0)
    for iteration in (1, 2, 3):
        episodes = runner.play(8, iteration).episodes
        assert len(episodes.length) == 6
        assert (episodes.length == 2).all()  # the solver needs one turn of two roles; the copy waits for three more


def test_texts_survive_a_checkpoint_exactly_and_other_objects_are_refused(tmp_path):
    texts = np.array([["", "ä\n\t\\\"'", "\ud800"], ["a" * 1000, "\x00", "{}"]], object)
    checkpoint.save(tmp_path / "one", {"texts": texts, "none": np.zeros((0, 2), object)})
    loaded = checkpoint.load(tmp_path / "one")
    assert loaded["texts"].tolist() == texts.tolist()
    assert (loaded["texts"].dtype, loaded["none"].shape) == (object, (0, 2))
    odd = np.empty(1, object)
    odd[0] = (1, 2)
    with pytest.raises(CoterieError, match=r"/deep/odd: .*not of tuple"):
        checkpoint.save(tmp_path / "two", {"deep": {"odd": odd}})


def test_equal_games_have_equal_fingerprints():
    world = make("plan_path", 6, evaluation=True)
    first, again = (evaluate(world, [seat(world, "expert")], 6, 0, fingerprint=True).game for _ in range(2))
    other = evaluate(world, [seat(world, "guess")], 6, 0, fingerprint=True).game
    assert first.tolist() == again.tolist()
    assert not set(first.tolist()) & set(other.tolist())
    assert len(set(first.tolist())) == 6


def test_training_validation_and_tests_play_instances_of_their_own():
    part = schema.Part("plan_path", make("plan_path").settings)
    for world, split in (
        (build.build_evaluation_world(part, 5), "test"),
        (build.build_validation_world(part, 5), "validation"),
        (build.build_render_world(part), "test"),
        (build.build_world(part, 5), "train"),
    ):
        assert {split_of(world.task, state) for state in world._states} == {split}
    assert build.build_evaluation_world(part, 5).num_envs == 5
    grid = schema.load("gridworld-cooperative").world
    assert build.build_validation_world(grid, 5) is None  # it is the world of all evaluations


def test_a_run_validates_on_other_instances_than_it_is_scored_on(experiment, tmp_path, monkeypatch):
    played = []

    def watched(world, *others, **more):
        result = evaluate(world, *others, **more)
        played.append({split_of(world.task, state) for state in world._states})
        return result

    monkeypatch.setattr(loop, "evaluate", watched)
    api.train(experiment, [], tmp_path / "run", quiet=True)
    first, *between = played
    assert first == {"test"}  # step 0
    scores = len(between) - between[::-1].index({"validation"})  # the last validation, then scores and baselines
    assert between[0] == between[scores - 1] == {"validation"}
    assert len(between) - scores == 5  # last, best, random, guess, expert
    assert all(splits == {"test"} for splits in between[scores:])


def test_counters_are_of_one_iteration_in_training_and_of_all_episodes_in_evaluations(run):
    rows = lines(run)
    assert {row["world/planner/unreadable"] for row in rows if "world/planner/unreadable" in row} == {0.0}
    assert rows[-1]["eval/turns"] == 1.0
    assert counted_since({"a": Mean(1, 2), "b": 3.0}, {"a": Mean(4, 4), "b": 5.0, "c": 1.0}) == {
        "a": Mean(3, 2),
        "b": 2.0,
        "c": 1.0,
    }
    summary = run.summary()
    assert set(summary["baselines"]) == {"random", "guess", "expert"}
    assert summary["evaluation"]["counters"]["planner/unreadable"] == 0.0
    assert summary["evaluation"]["success_ci95"] == pytest.approx([0.6756, 1.0], abs=1e-3)


def test_wilson_intervals_by_hand():
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)


def test_intervals_count_instances_and_not_episodes():
    assert effective_size(np.array([0, 1, 2, 3])) == 4
    assert effective_size(np.array([5, 5, 7, 7, 7, 7])) == pytest.approx(36 / 20)
    returns, length = {"team": np.array([[1.0], [1.0], [0.0], [0.0]] * 3)}, np.ones(12, np.int64)
    episodes = Result(returns, length, returns["team"][:, 0] > 0, np.arange(12))
    repeated = replace(episodes, instance=np.arange(12) % 4)
    apart = replace(episodes, instance=np.arange(12))
    plain, few, many = (result.to_dict() for result in (episodes, repeated, apart))
    assert plain["success_ci95"] == many["success_ci95"] == list(wilson(6, 12))
    assert few["success_ci95"] == pytest.approx(wilson(2, 4))
    assert few["groups"]["team"]["return_ci95"][1] == pytest.approx(0.5 + 3.18245 * 0.5 / np.sqrt(3))
    assert (plain.get("instances"), few["instances"], many["instances"]) == (None, 4, 12)
    assert replace(repeated, success=np.ones(12, bool)).to_dict()["success_ci95"][1] == 1.0


def test_evaluations_of_a_small_task_say_how_few_instances_they_have_seen():
    runner, _ = team(num_envs=16, world={"split": "test", "wait": False})
    result = evaluate(runner.world, runner.actors, 64, 0)
    assert 4 <= result.to_dict()["instances"] <= 12
    assert len(result.instance) == 64


@pytest.mark.slow
def test_child_processes_play_the_same(experiment, run, tmp_path, forked):
    other = api.train(experiment, ["train.workers=1"], tmp_path / "apart", quiet=True)
    assert lines(other) == lines(run)


def test_a_loaded_table_answers_texts(run):
    loaded = table.load(run.path, overrides=["groups.tool.policy=random"])
    said = loaded.act("tool", ["one prompt", "another"])
    assert said.shape == (2,)
    assert all(isinstance(text, str) for text in said)
    with pytest.raises(CoterieError, match="texts"):
        loaded.act("tool", [1, 2])


def test_demonstrations_hold_texts_of_training_instances(experiment, tmp_path):
    spec = DemonstrationSpec(experiment, "expert", episodes=6, group="planner")
    (part,) = record(spec, tmp_path / "demo")
    loaded = demonstrations.load(tmp_path / "demo", "planner")
    assert loaded.action.tolist() == part.action.tolist()
    assert loaded.observation.tolist() == part.observation.tolist()
    assert loaded.observation_space == part.observation_space == Text(100_000)
    assert all(episode.success for episode in loaded.episodes)
    shown = describe(loaded, [0])[0]["steps"][-1]
    assert shown["sees"].startswith("You are the planner")
    assert set(shown["action"]) <= set("UDLR")
    more = record(DemonstrationSpec(experiment, "expert", episodes=8, group="planner"), tmp_path / "demo")
    assert len(more[0]) == 8  # goes on where it was


def test_a_match_of_writers(experiment):
    config = schema.load(experiment)
    matrix = cross_play(open_players(["expert", "random"], "best"), config, 6, 0)
    assert matrix[0][0].success.all()
    assert not matrix[1][1].success.any()


def test_videos_show_the_text(run, tmp_path, capsys):
    loaded = table.load(run.path)
    world, actors = build.build_render_world(loaded.config.world), [group.actor for group in loaded.groups]
    video.write_video(world, actors, 0, [tmp_path / "one.gif"])
    assert (tmp_path / "one.gif").stat().st_size > 1000
    video.show_in_terminal(world, actors, 0)
    assert "planner: " in capsys.readouterr().out


@pytest.mark.parametrize("policy", ["network", "q_network", "deterministic", "language", "planner"])
def test_policies_of_numbers_are_refused_by_name(experiment, policy):
    config = schema.load(experiment, [f"groups.planner.policy={policy}"])
    with pytest.raises(ConfigError, match=r"groups\.planner\.policy: .*text.*'writer'"):
        build.build_groups(config, build.build_world(config.world, 1))


def test_ratings_of_texts_are_refused(run):
    with pytest.raises(CoterieError, match=r"plan_path.*text"):
        rated.play(table.load(run.path), "planner", 1, 0, rated.ViewOptions())


def test_random_texts_fit_their_space():
    drawn = random_texts(Text(5), (200,), np.random.default_rng(0))
    assert {len(text) for text in drawn} == set(range(6))
    assert len(set(drawn)) > 100
