"""The language models of a table: their answers are kept in the run, their budgets apart."""

import re
from pathlib import Path

import numpy as np
import pytest

import coterie
from coterie.config import schema
from coterie.lm.ask.budget import BudgetSettings
from coterie.lm.ask.cache import CacheSettings
from coterie.lm.ask.interface import BudgetExceeded
from coterie.runs.run import Run
from coterie.training import language_models
from helpers.language import player, race, view_of
from helpers.run import train, written

RACE = """\
world: {name: gridworld, mode: race, grid_size: 5, max_steps: 12}
groups:
  model: {agents: agent_0, policy: {name: language, lm: {name: "helpers.language:COPIER", budget: {calls: 500}}}}
  learner:
    agents: agent_1
    policy: {name: network, hidden: [8]}
    learner: {name: ppo}
    advisor: {name: language, lm: {name: "helpers.language:COPIER", budget: {calls: 500}}}
train: {num_envs: 4, rollout_steps: 8, total_steps: 256, evaluate_episodes: 4, evaluate_every: 2, checkpoint_every: 2,
        video: false, tensorboard: false}
"""


def test_answers_are_kept_in_the_run_and_budgets_apart(tmp_path):
    read = schema.load(str(written(tmp_path / "race.yaml", RACE)))
    kept = language_models.keep_answers(read, tmp_path / "run")
    model = language_models.find_models(kept.groups["model"].policy.settings, "policy")["policy.lm"]
    advisor = language_models.find_models(kept.groups["learner"].advisor.settings, "advisor")["advisor.lm"]
    assert model.cache == advisor.cache == CacheSettings(str(tmp_path / "run" / "answers.sqlite"))
    assert (model.budget.account, advisor.budget.account) == ("model.policy.lm", "learner.advisor.lm")
    assert read.groups["model"].policy.settings.lm.cache is None  # what was written down stays as it was


def test_a_file_or_an_account_of_ones_own_is_left_alone():
    words = ["groups.team.policy.name=language", "groups.team.learner=null", "groups.team.policy.lm.cache.path=mine.db"]
    read = schema.load("gridworld-cooperative", words)
    assert language_models.keep_answers(read, Path("run")) == read
    shared = schema.load(
        "gridworld-cooperative", [*words[:2], "groups.team.policy.lm.budget={calls: 9, account: ours}"]
    )
    kept = language_models.keep_answers(shared, Path("run")).groups["team"].policy.settings.lm
    assert (kept.budget.account, kept.cache.path) == ("ours", str(Path("run") / "answers.sqlite"))


def test_a_model_that_learns_remembers_nothing():
    read = schema.load("gridworld-lm-lora")
    assert language_models.keep_answers(read, Path("run")) == read


@pytest.mark.slow
def test_a_run_that_goes_on_asks_nothing_again(tmp_path):
    experiment = written(tmp_path / "race.yaml", RACE)
    train(tmp_path / "run", "train.total_steps=128", experiment=experiment)
    first = Run.open(tmp_path / "run").metrics()[-1]
    assert first["model/lm/calls"] > 10
    coterie.resume(tmp_path / "run", ["train.total_steps=129"], quiet=True)
    asked = Run.open(tmp_path / "run").metrics()[-1]
    assert asked["model/lm/calls"] < 5  # what a few more steps showed for the first time
    assert asked["model/lm/cache_hits"] > 10


@pytest.mark.slow
def test_a_larger_budget_is_used_by_a_run_that_goes_on(tmp_path):
    experiment = written(tmp_path / "race.yaml", RACE)
    few, more = (f"groups.learner.advisor.lm.budget.calls={calls}" for calls in (20, 500))
    train(tmp_path / "run", few, "train.total_steps=128", experiment=experiment)
    assert Run.open(tmp_path / "run").metrics()[-1]["learner/advice/lm/calls"] == 20
    (line,) = language_models.describe_unanswered(Run.open(tmp_path / "run").summary()["unanswered"])
    assert re.fullmatch(
        r"learner/advice: .* left \d+ of \d+ questions unanswered \(.*%\), as its budget is spent", line
    )
    coterie.resume(tmp_path / "run", [more, "train.total_steps=256"], quiet=True)
    assert Run.open(tmp_path / "run").metrics()[-1]["learner/advice/abstentions"] < 1
    assert Run.open(tmp_path / "run").metrics()[-1]["learner/advice/lm/calls"] > 20


def test_a_spent_budget_ends_the_run_where_it_is_to(tmp_path):
    experiment = written(tmp_path / "race.yaml", RACE)
    stop = "groups.model.policy.lm.budget={calls: 20, at_limit: stop}"
    with pytest.raises(BudgetExceeded, match=r"budget\.calls: .* of 20 left.*at_limit=stop"):
        train(tmp_path / "run", stop, experiment=experiment)
    assert (tmp_path / "run" / "answers.sqlite").exists()


def test_free_text_is_replayed_as_it_was(tmp_path):
    """Questions that the budget denied were not recorded and stay unanswered; all others are replayed."""
    world, file = race(50), str(tmp_path / "answers.db")
    around = {"cache": CacheSettings(file), "budget": BudgetSettings(calls=20)}
    first = player(world, method="complete", around=around)
    said = [first.act(view_of(world, first.group_spec)).action for _ in range(2)]
    assert 0 < first.metrics()["abstentions"] < 200
    assert first.metrics()["lm/refusals"] < 150  # what was refused is not offered again
    again = player(world, method="complete", around={"cache": CacheSettings(file, "replay-only")})
    replayed = [again.act(view_of(world, again.group_spec)).action for _ in range(2)]
    assert np.array_equal(said, replayed)
    assert again.metrics()["abstentions"] == first.metrics()["abstentions"]
    assert again.metrics()["lm/calls"] == 0
