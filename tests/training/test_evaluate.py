"""Whole episodes, as many as asked for, an equal share from every copy."""

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pytest

import coterie
from coterie.cli.outcome import print_results
from coterie.config import schema
from coterie.core import seeding
from coterie.core.group import Actor
from coterie.core.types import CoterieError
from coterie.policies.scripted import RandomPolicy, RandomSettings
from coterie.runs.metrics import Progress
from coterie.training import build, evaluate, loop, runner
from helpers import run as run_cases
from helpers.run import ODD, train, written
from helpers.small_worlds import generator


def seated(tmp_path, num_envs, **settings):
    loaded = schema.load(str(written(tmp_path / "odd.yaml", ODD)))
    world = run_cases.Odd(run_cases.OddSettings(**settings), num_envs)
    group_specs = build.build_group_specs(loaded, world)
    return world, [Actor(p, RandomPolicy(RandomSettings(), p)) for p in group_specs.values()]


@pytest.mark.parametrize(("num_envs", "episodes"), [(1, 1), (1, 5), (4, 4), (4, 7), (4, 30), (7, 3)])
def test_every_copy_contributes_its_share_however_short_its_episodes(tmp_path, num_envs, episodes):
    world, actors = seated(tmp_path, num_envs)
    result = evaluate.evaluate(world, actors, episodes, seed=5)
    share = [episodes // num_envs + (copy < episodes % num_envs) for copy in range(num_envs)]
    expected = [world.length(copy, e) for copy in range(num_envs) for e in range(share[copy])]
    assert sorted(result.length.tolist()) == sorted(expected)
    assert result.returns["all"].shape == (episodes, 2)
    assert np.array_equal(result.returns["all"][:, 0], result.length)
    assert np.array_equal(result.returns["all"][:, 1], 2 * result.length)
    assert result.success is None


@pytest.mark.slow
def test_short_episodes_are_not_favoured(tmp_path):
    """Taking the first episodes that end would give nearly all of length 2; the true mean is 11."""
    world, actors = seated(tmp_path, 100)
    lengths = evaluate.evaluate(world, actors, 400, seed=0).length
    assert abs(lengths.mean() - 11) < 4 * 9 / np.sqrt(400)


def test_returns_average_a_groups_agents_in_raw_reward(tmp_path):
    world, actors = seated(tmp_path, 2, lengths=(4,))
    plain = evaluate.evaluate(world, actors, 2, seed=0).to_dict()
    assert plain == {
        "groups": {"all": {"return_mean": 6.0, "return_ci95": [6.0, 6.0], "length_mean": 4.0}},
        "success_rate": None,
    }


def test_the_interval_by_hand():
    mean, low, high = evaluate.interval(np.array([1.0, 2.0, 3.0, 6.0]))
    assert mean == 3.0
    assert (high - mean) == pytest.approx(3.182446 * np.sqrt(14 / 3) / 2)  # Student's t with 3 degrees of freedom
    assert (mean - low) == pytest.approx(high - mean)


def test_a_result_prints_the_numbers_that_it_holds():
    returns, success = {"team": np.array([[1.0, 3.0], [3.0, 5.0], [0.0, 0.0]])}, np.array([True, False, False])
    made = evaluate.Result(returns, np.array([2, 4, 6]), success, np.arange(3))
    low, high = made.to_dict()["groups"]["team"]["return_ci95"]
    assert str(made) == f"3 episodes, mean length 4.0, success 33%\nteam: return 2.00 [{low:.2f}, {high:.2f}]"


def test_one_episode_has_no_interval(capsys):
    mean, low, high = evaluate.interval(np.array([2.0]))
    assert mean == 2
    assert np.isnan([low, high]).all()
    one = evaluate.Result({"all": np.array([[2.0]])}, np.array([4]), None, np.array([0])).to_dict()
    assert one["groups"]["all"]["return_ci95"] is None
    print_results({"random": one})
    assert "–" in capsys.readouterr().out


def test_instances_are_counted_below_a_table_of_80_columns(capsys):
    scores = {"groups": {"solver": {"return_mean": -2.25, "return_ci95": [-12.25, -12.25], "length_mean": 16.0}}}
    found = scores | {"success_rate": 1.0, "success_ci95": [0.98, 1.0], "instances": 194}
    print_results({"trained (best)": found, "random": found})
    out = capsys.readouterr().out
    assert out.count("194") == 1
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("episodes", [2, 3, 5, 20])
def test_intervals_of_a_few_episodes_hold_the_mean(episodes):
    """2,000 simulated evaluations; 1.96 standard errors hold it in 70% of cases with two episodes, 88% with five."""
    bounds = [evaluate.interval(sample) for sample in generator(episodes).standard_normal((2000, episodes))]
    held = np.mean([low <= 0 <= high for _, low, high in bounds])
    assert abs(held - 0.95) < 3 * np.sqrt(0.05 * 0.95 / 2000)


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "exact"), [([20] * 3, True), ([10] * 10, True), ([9, 3, 2], False)])
def test_intervals_of_a_few_instances_hold_the_mean(sizes, exact):
    """4,000 simulated evaluations that repeat instances; the deviation of all episodes, as if they were independent,
    holds it in 93% of cases with three instances of one size. Unequal sizes make intervals too wide."""
    cluster = np.repeat(np.arange(len(sizes)), sizes)
    drawn = generator(len(sizes)).standard_normal((4000, len(sizes)))[:, cluster]
    bounds = [evaluate.interval(sample, evaluate.effective_size(cluster)) for sample in drawn]
    error = np.mean([low <= 0 <= high for _, low, high in bounds]) - 0.95
    margin = 3 * np.sqrt(0.05 * 0.95 / 4000)
    assert abs(error) < margin if exact else error > -margin


@pytest.mark.slow
def test_a_preference_does_not_touch_what_is_reported(tmp_path):
    def reported(name, *words):
        run = train(tmp_path / name, "groups.all.learner=helpers.run:Counting", *words, experiment=odd)
        return run.summary()["evaluation"], run.metrics()[-1]["all/return_mean"], run.metrics()[-1]["all/paid"]

    odd = written(tmp_path / "odd.yaml", ODD)
    plain = reported("plain")
    scaled = reported("scaled", "groups.all.preference.name=helpers.run:Scaled")
    assert plain[:2] == scaled[:2]
    assert scaled[2] == 2 * plain[2]


def test_an_endless_world_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "EPISODE_LIMIT", 200)
    world, actors = seated(tmp_path, 2, lengths=(1000,))
    with pytest.raises(
        CoterieError, match=r"2 of 2 environments did not .* within 200 steps; set world.max_episode_steps"
    ):
        evaluate.evaluate(world, actors, 2, seed=0)


def test_one_endless_environment_is_reported_while_others_end(tmp_path, monkeypatch):
    """Its episodes are waited for, however many the others play in the meantime."""
    monkeypatch.setattr(runner, "EPISODE_LIMIT", 200)
    world, actors = seated(tmp_path, 3, lengths=(2,))
    monkeypatch.setattr(world, "length", lambda copy, episode: 10**9 if copy == 1 else 2)
    with pytest.raises(CoterieError, match="1 of 3 environments did not end their episode within 200 steps"):
        evaluate.evaluate(world, actors, 6, seed=0)


def test_patience_is_short_where_no_time_limit_is_known(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(runner, "PATIENCE", 50)
    monkeypatch.setattr(runner, "SLOW_EPISODE", 0.0)
    world, actors = seated(tmp_path, 2, lengths=(1000,))
    world.limits_episodes = False
    with pytest.raises(CoterieError, match=r"within 50 steps; set world.max_episode_steps"):
        evaluate.evaluate(world, actors, 2, seed=0)
    assert [record.getMessage().count("world.max_episode_steps") for record in caplog.records] == [1]
    world.simultaneous = False  # a step is one agent's move
    agents = sum(len(agent_type.agents) for agent_type in world.agent_types.values())
    assert runner.patience(world) == 50 * agents
    world.limits_episodes = True
    assert runner.patience(world) == runner.EPISODE_LIMIT


def test_the_first_step_which_compiles_tells_nothing_of_an_episodes_length_in_seconds(tmp_path, monkeypatch, caplog):
    world, actors = seated(tmp_path, 2, lengths=(30,))
    world.limits_episodes = False
    played, step = itertools.count(), world.step
    clock = [0.0]

    def slow_at_first(actions):
        clock[0] += 60.0 if next(played) == 0 else 0.5
        return step(actions)

    monkeypatch.setattr(world, "step", slow_at_first)
    monkeypatch.setattr(runner, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    evaluate.evaluate(world, actors, 2, seed=0)
    (record,) = caplog.records
    assert "after 22 steps and 10 s" in record.getMessage()  # 21 steps of half a second after the first
    assert "10,000 steps, about 5000 s" in record.getMessage()


def test_an_evaluation_tells_how_far_it_is(tmp_path, capsys):
    world, actors = seated(tmp_path, 2, lengths=(3,))
    told = []
    evaluate.evaluate(world, actors, 4, seed=0, report=lambda *numbers: told.append(numbers))
    assert told == [(0, 1), (0, 2), (0, 3), (2, 4), (2, 5), (2, 6)]
    progress = Progress(total=10, done=0, quiet=False)
    for wall in (1, 9, 10, 15, 21, 0, 9, 11):  # two evaluations
        progress.show_evaluation(3, 100, 1234, wall)
    assert capsys.readouterr().err.splitlines() == [
        f"evaluating: 3 of 100 episodes have ended, step 1,234  {wall} s" for wall in (10, 21, 11)
    ]


def test_seeds_decide_everything(tmp_path):
    world, actors = seated(tmp_path, 8)
    first, again, other = (evaluate.evaluate(world, actors, 16, seed=s).length.tolist() for s in (1, 1, 2))
    assert first == again
    assert first != other


def test_validation_evaluation_and_training_use_different_seeds(tmp_path, monkeypatch):
    """The best checkpoint is chosen on other episodes than those that score it."""
    used, original = {}, loop.Training.evaluate

    def spy(self, purpose, actors=None):
        def note(world, chosen, episodes, seed, greedy=True, report=None):
            used.setdefault(purpose, set()).add(seed)
            assert greedy
            return evaluate.evaluate(world, chosen, episodes, seed, greedy)

        monkeypatch.setattr(loop, "evaluate", note)
        return original(self, purpose, actors)

    monkeypatch.setattr(loop.Training, "evaluate", spy)
    run = train(tmp_path / "run")
    assert used.keys() == {"validate", "evaluate"}
    assert used["evaluate"] == {loop.evaluation_seed(0)}
    assert len(used["validate"] | used["evaluate"] | {run.config().seed}) == 3
    assert used["validate"] == {seeding.integer(0, "validate")}


@pytest.mark.slow
def test_the_best_checkpoint_is_the_one_that_validated_best(tmp_path):
    run = train(tmp_path / "run", "train.total_steps=1024", "groups.team.learner.learning_rate=0.01")
    judged = [(r["team/eval/return_mean"], -r["env_steps"]) for r in run.metrics() if "team/eval/return_mean" in r]
    assert len(judged) == 17
    assert -max(judged)[1] == run.summary()["best_step"] == run.steps("best")[-1]


def test_iteration_0_is_always_evaluated(tmp_path):
    run = train(tmp_path / "run", "train.evaluate_every=1000")
    evaluated = [r["iteration"] for r in run.metrics() if "team/eval/return_mean" in r]
    assert evaluated == [0, 8]
    assert run.summary()["step_0"]["groups"]["team"]["return_mean"] < 100


@pytest.mark.slow
def test_the_summary_and_eval_agree_and_greedy_differs_from_sampling(tmp_path):
    run = train(tmp_path / "run", "train.evaluate_episodes=30")
    table = coterie.load(run.path)
    greedy = table.evaluate(30, seed=0).to_dict()
    assert greedy == run.summary()["evaluation"]
    assert table.evaluate(30, seed=0).to_dict() == greedy
    assert table.evaluate(30, seed=0, greedy=False).to_dict() != greedy
    assert table.evaluate(30, seed=1).to_dict() != greedy
    assert coterie.load(run.path, "last").evaluate(30).to_dict() == run.summary()["last"]


@pytest.mark.slow
def test_a_set_network_plays_with_any_number_of_agents_and_an_mlp_says_why_not(tmp_path):
    set_words = ["world.observation=dict", "groups.team.policy.encoder=set", "train.total_steps=64"]
    run = train(tmp_path / "set", *set_words)
    for number in (1, 4):
        words = [f"world.num_agents={number}", "world.num_targets=2"]
        result = coterie.load(run.path, overrides=words).evaluate(6)
        assert result.returns["team"].shape == (6, number)
    run = train(tmp_path / "mlp", "train.total_steps=64")
    with pytest.raises(CoterieError, match=r"differs from the one that was trained\. A set network .* plays with any"):
        coterie.load(run.path, overrides=["world.num_agents=4"])


def test_a_result_is_frozen(tmp_path):
    world, actors = seated(tmp_path, 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        evaluate.evaluate(world, actors, 1, seed=0).length = None


THIRD_PARTY = (
    "world: {name: gymnasium/CartPole-v1, native: false}\ngroups: {all: {policy: {name: network, hidden: [4]}}}\n"
)


@pytest.mark.parametrize("word", ["world.processes=0", pytest.param("world.processes=2", marks=pytest.mark.slow)])
def test_third_party_episodes_are_the_same_on_any_number_of_copies(tmp_path, word):
    config = schema.load(str(written(tmp_path / "table.yaml", THIRD_PARTY)), [word])
    found = []
    for copies in (3, 7):
        world = build.build_world(config.world, copies)
        result = evaluate.evaluate(world, [group.actor for group in build.build_groups(config, world)], 7, seed=5)
        assert sorted(result.start) == [*range(7)]
        found.append(result.length[np.argsort(result.start)].tolist())
        with pytest.raises(ValueError, match="cannot be saved"):
            world.save()
    assert found[0] == found[1]
    assert len(set(found[0])) > 1


def test_third_party_environments_are_evaluated_on_few_copies(tmp_path):
    config = schema.load(str(written(tmp_path / "table.yaml", THIRD_PARTY)))
    more = schema.load(str(written(tmp_path / "more.yaml", THIRD_PARTY)), ["world.processes=24"])
    native = schema.load("cartpole-ppo")
    assert [evaluate.evaluation_envs(config.world, episodes) for episodes in (5, 100)] == [5, 16]
    assert evaluate.evaluation_envs(more.world, 100) == 24
    assert [evaluate.evaluation_envs(native.world, episodes) for episodes in (5, 100, 1000)] == [5, 100, 256]
