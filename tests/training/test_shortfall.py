"""Training that made a run worse says so, with its likely cause."""

import pytest

import coterie
from coterie.config import schema
from coterie.runs.run import Run
from coterie.training.shortfall import shortfalls
from helpers.run import DUEL, train, written

RATE = "groups.team.learner.learning_rate"
GOOD, BAD, RANDOM = (8.0, 7.0, 9.0), (1.0, 0.5, 1.5), (2.0, 1.6, 2.4)  # a mean return and its interval


def result(score, **more):
    mean, low, high = score
    return {"groups": {"team": {"return_mean": mean, "return_ci95": [low, high]}}, "success_rate": None, **more}


def summary(best=GOOD, last=GOOD, step_0=BAD, random=RANDOM, drawn=None, **evaluation):
    started = result(step_0) | ({} if drawn is None else {"drawn": result(drawn)})
    found = {"evaluation": result(best, **evaluation), "last": result(last), "step_0": started, "episodes": 100}
    return found | {"baselines": {"random": result(random)}}


def said(found, validations=(0, 1, 2), training=None):
    recent = {} if training is None else {"team": training}
    return shortfalls(found, schema.load("gridworld-cooperative"), validations, recent)


def test_training_that_made_a_run_better_says_nothing():
    assert said(summary()) == []
    assert said(summary(best=(1.2, 0.9, 1.5), last=(0.9, 0.4, 1.4), random=(1.3, 1.0, 1.6))) == []  # may be chance


def test_what_ended_below_its_start_or_random_play_is_said_with_its_scores():
    (words,) = said(summary(best=BAD, last=BAD, step_0=GOOD))
    assert "the best policies (1.00) are worse than its untrained policies (step 0) (8.00)" in words
    assert "are worse than random play (2.00)" in words
    (words,) = said(summary(best=GOOD, last=BAD, step_0=GOOD))
    assert words.startswith("training ended (1.00) below its untrained policies (step 0) (8.00). Likely cause: ")
    (words,) = said(summary(best=BAD, last=BAD, step_0=BAD))
    assert words.startswith("the best policies (1.00) are worse than random play (2.00). Likely cause: too few steps")


def test_without_an_interval_the_means_decide():
    found = summary(best=BAD, last=BAD)
    for one in (found["evaluation"], found["step_0"], found["baselines"]["random"]):
        one["groups"]["team"]["return_ci95"] = None
    assert len(said(found)) == 1


@pytest.mark.parametrize(
    ("more", "validations", "cause"),
    [
        (
            {"drawn": (1.5, 1.0, 2.0)},
            (8, 1, 1),
            "drawn actions were bad from the beginning, 1.50 where greedy play had 8.00",
        ),
        ({"drawn": (7.5, 7.0, 8.0)}, (8, 1, 1), "too few steps"),
        ({"instances": 7}, (8, 1, 1), "the task has too few distinct instances (7 among 100 held-out episodes)"),
        ({"instances": 90}, (8, 1, 1), "too few steps"),
        ({}, (8, 9, 1), f"training rose and fell again; lower {RATE}"),
        ({}, (8, 2, 1), f"too few steps (train.total_steps), or {RATE} is too high"),
    ],
)
def test_the_likely_cause(more, validations, cause):
    (words,) = said(summary(best=BAD, last=BAD, step_0=GOOD, random=(0, 0, 0), **more), validations=validations)
    assert f"Likely cause: {cause}" in words


def test_greedy_play_that_is_worse_than_drawn_actions_is_a_cause():
    """A policy that is not certain yet may walk in circles where it takes the likeliest action every time."""
    cause = "Likely cause: greedy play is worse than the drawn actions of training (6.00)"
    for found in (summary(best=BAD, last=BAD), summary(best=BAD, last=BAD, step_0=GOOD)):
        assert cause in said(found, training=6.0)[0]
        assert "greedy play" not in said(found, training=1.2)[0]  # no better, or by chance
    assert "greedy play" not in said(summary(best=BAD, last=BAD, step_0=GOOD, random=GOOD), training=6.0)[0]


# In runs ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spoiled(tmp_path_factory):
    """A run that goes on from a trained one with a learning rate that ruins it."""
    base = tmp_path_factory.mktemp("spoiled")
    words = ["train.evaluate_episodes=40", "train.total_steps=4096", f"{RATE}=3e-3"]
    trained = train(base / "trained", *words, "train.evaluate_every=32")
    ruin = ["train.evaluate_episodes=40", f"{RATE}=1.0", "world.step_reward=-0.1"]
    return train(base / "spoiled", *ruin, f"groups.team.start={trained.path}")


def test_step_0_of_a_run_that_began_from_weights_can_be_the_best(spoiled):
    curve = {r["env_steps"]: r["team/eval/return_mean"] for r in spoiled.metrics() if "team/eval/return_mean" in r}
    assert max(curve, key=curve.get) == 0
    assert spoiled.summary()["best_step"] == 0
    assert spoiled.load_checkpoint("best")["env_steps"] == 0
    assert coterie.load(spoiled.path).env_steps == 0


def test_summary_and_report_and_the_exit_say_that_a_run_got_worse(spoiled, capsys):
    from coterie.cli.outcome import print_outcome

    (words,) = spoiled.summary()["worse"]
    assert "below the policies it began from (step 0)" in words
    print_outcome(spoiled)
    assert f"worse {words}" in " ".join(capsys.readouterr().out.split())
    assert "<b>Worse.</b> training ended" in (spoiled.path / "report.html").read_text()


def test_opponents_and_groups_that_do_not_learn_are_left_out(tmp_path):
    duel = train(tmp_path / "duel", experiment=written(tmp_path / "duel.yaml", DUEL))
    frozen = train(tmp_path / "frozen", "groups.team.learner=none", "groups.team.policy=random")
    for run in (duel, frozen):
        assert "worse" not in Run.open(run.path).summary()
