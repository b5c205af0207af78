"""Which policies are a run's best: the highest return, the last in constant-sum games, never step 0."""

import numpy as np
import pytest

import coterie
from coterie.core.types import CoterieError
from coterie.training.best import Best, opposed
from coterie.training.evaluate import Result
from helpers.run import DUEL, train, written

SELF_PLAY = """\
world: {name: tictactoe, first: random}
groups: {both: {policy: {name: network, hidden: [8]}, learner: {name: ppo, learning_rate: 1e-3}}}
train: {num_envs: 4, rollout_steps: 7, total_steps: 224, evaluate_episodes: 4, evaluate_every: 2, checkpoint_every: 2,
        video: false, tensorboard: false}
"""


def result(**returns):
    arrays = {name: np.array(values, float) for name, values in returns.items()}
    arrays = {name: values[:, None] if values.ndim == 1 else values for name, values in arrays.items()}
    episodes = len(next(iter(arrays.values())))
    return Result(arrays, np.ones(episodes), None, np.arange(episodes))


def chosen(results, setting="return", groups=None):
    """The step after each evaluation, and the rule."""
    best = Best(setting, groups or list(results[0].returns))
    for step, one in enumerate(results):
        best.consider(one, step)
    return best.step, best.rule


def test_the_highest_return_is_the_best_and_the_first_of_equals():
    scores = [result(a=[x, x + 1]) for x in (9, 1, 3, 3, 2)]
    assert chosen(scores) == (2, "return")  # step 0 does not count: it has learned nothing
    assert chosen(scores, "last") == (4, "last")
    assert chosen(scores[:1]) == (0, "return")


@pytest.mark.parametrize(
    "episodes",
    [
        {"a": [1, -1, 0], "b": [-1, 1, 0]},
        {"a": [0.3, 1, 0.1], "b": [0.7, 0, 0.9]},  # one prize for both
        {"both": [[1, -1], [-1, 1], [0, 0]]},  # self-play of one group
        {"one": [2, -2, 0], "two": [[-1, -1], [1, 1], [0, 0]]},  # cancels over agents
        {"one": [-1, 2, 0], "two": [[1, 1], [-2, -2], [0, 0]]},  # cancels over the means of the groups
    ],
)
def test_in_games_of_constant_sum_the_last_is_the_best(episodes):
    other = {name: values[::-1] for name, values in episodes.items()}
    evaluations = [result(**one) for one in (episodes, other, episodes, other)]
    assert chosen(evaluations) == (3, "last")


@pytest.mark.parametrize(
    ("returns", "said"),
    [
        ({"a": [0, 0, 0]}, "the last policies: every episode had the same return"),  # a goal that nobody has found yet
        ({"a": [[1, 0], [0, 1]]}, "the last policies: returns always have the same sum"),
    ],
)
def test_one_agents_returns_have_no_sum(returns, said):
    best = Best("return", ["a"])
    best.consider(result(**returns), 1)
    assert best.reason == said


def test_rounding_is_not_a_sum_that_varies():
    random = np.random.default_rng(0)
    wins = random.normal(size=(4, 100)).astype(np.float32)
    assert chosen([result(a=w, b=-w * np.float32(1 + 1e-7)) for w in wins]) == (3, "last")


def test_a_sum_that_varies_later_is_judged_by_return_from_then_on():
    nothing, something = result(a=[0, 0]), result(a=[0, 1])
    assert chosen([nothing, nothing, nothing]) == (2, "last")
    assert chosen([nothing, nothing, something, nothing]) == (2, "return")


def opponents(random, noise, episodes=100):
    """Hunters win what the prey loses, and the prey pays something more; the sum rises or falls with `noise`."""
    caught = random.poisson(2, episodes) * 10.0
    return result(hunters=np.repeat(caught[:, None], 3, axis=1), prey=-caught - noise * random.random(episodes))


def test_between_opponents_whose_returns_nearly_cancel_the_last_is_the_best():
    random = np.random.default_rng(0)
    evaluations = [opponents(random, noise) for noise in (9, 1, 5, 7)]  # the second has the highest mean
    assert chosen(evaluations) == (3, "last")
    assert chosen(evaluations, groups=["hunters"])[1] == "return"
    best = Best("return", ["hunters", "prey"])
    assert best.consider(evaluations[0], 0)
    assert best.consider(evaluations[1], 1)
    assert "falls as" in best.reason
    resumed = Best("return", ["hunters", "prey"])
    resumed.load(best.state())
    assert resumed.consider(result(hunters=[0, 0], prey=[-9, -8]), 2)  # nobody caught: still a game of opponents


def test_a_few_episodes_or_a_weak_correlation_make_no_opponents():
    random = np.random.default_rng(0)
    assert not opposed(opponents(random, 1, episodes=3), ["hunters", "prey"])
    luck = random.normal(size=100)
    assert not opposed(result(a=luck, b=-0.5 * luck + random.normal(size=100)), ["a", "b"])
    assert not opposed(result(a=luck, b=luck), ["a", "b"])
    assert opposed(result(a=luck, b=luck, c=-luck), ["a", "b", "c"])  # two against one


def test_only_the_groups_that_learn_count():
    evaluations = [result(a=[x, x + 1], b=[-x, -x - 1]) for x in (0, 1, 3, 2)]
    assert chosen(evaluations, groups=["a"]) == (2, "return")  # against a fixed opponent return says all
    assert chosen(evaluations, groups=["a", "b"]) == (3, "last")


def test_returns_that_are_no_numbers_are_refused():
    with pytest.raises(CoterieError, match="finite"):
        Best("return", ["a"]).consider(result(a=[np.nan, 0]), 1)


@pytest.mark.slow
@pytest.mark.parametrize("text", [DUEL, SELF_PLAY], ids=["two groups", "one group"])
def test_self_play_ends_with_the_last_policies_and_says_so(tmp_path, text):
    run = train(tmp_path / "run", experiment=written(tmp_path / "game.yaml", text))
    summary = run.summary()
    assert summary["best_step"] == summary["env_steps"] == run.steps("best")[-1]
    assert summary["best_rule"] == "last"
    assert "same sum" in summary["best_reason"]
    assert summary["evaluation"] == summary["last"]
    assert coterie.load(run.path).env_steps == summary["env_steps"]
    assert "same sum" in (run.path / "report.html").read_text()


def test_a_run_that_gets_worse_still_shows_what_has_learned(tmp_path):
    words = ["groups.team.learner.learning_rate=0.5", "train.total_steps=128", "seed=3"]
    run = train(tmp_path / "run", *words)
    curve = {r["env_steps"]: r["team/eval/return_mean"] for r in run.metrics() if "team/eval/return_mean" in r}
    assert max(curve, key=curve.get) == 0
    assert run.summary()["best_step"] > 0
    assert run.summary()["best_rule"] == "return"


def test_a_resumed_run_remembers_that_sums_varied():
    varied, equal = result(a=[0, 1]), result(a=[0, 0])
    best = Best("return", ["a"])
    for step, one in enumerate([varied, varied]):
        best.consider(one, step)
    resumed = Best("return", ["a"])
    resumed.load(best.state())
    assert not resumed.consider(equal, 2)
    assert (resumed.step, resumed.rule) == (1, "return")
