"""A reward learned from ratings: it ranks episodes as judges did, and who learns from it plays as they like."""

import json

import numpy as np
import pytest
import torch

import coterie
from coterie.config.schema import ConfigError
from coterie.preferences.ratings import RatingSession, episodes_file, read_episodes
from coterie.preferences.reward_model import RewardModelPreference, RewardModelSettings, read_pairs
from coterie.studies.rate.episodes import ViewOptions, play
from coterie.studies.rate.judges import ReturnJudge
from coterie.studies.rate.rate import rate
from coterie.training.table import load
from helpers import run as run_cases
from helpers.rating import Lights, LightsSettings, lights, rated_runs
from helpers.small_worlds import spec_in


@pytest.fixture(scope="module")
def rated(tmp_path_factory):
    """Three runs and 60 ratings of their sampled episodes by return."""
    folder = tmp_path_factory.mktemp("rated")
    runs = rated_runs(folder)
    rate(RatingSession(tuple(runs), "return", episodes=8, stochastic=True), ReturnJudge(), folder / "r.jsonl", 60)
    return runs, folder / "r.jsonl"


@pytest.fixture(scope="module")
def model(rated):
    """The model of these ratings with default settings."""
    return settled(rated[1])


def settled(path, **settings):
    where = spec_in(Lights(LightsSettings(), 1))
    return RewardModelPreference(RewardModelSettings(str(path), **settings), where, 0.99)


def sums(made, episodes):
    return [made.model.rewards(e.observation, e.action).sum() for e in episodes]


@pytest.mark.slow
def test_the_model_ranks_episodes_that_nobody_rated_like_their_returns(rated, model):
    from scipy.stats import spearmanr  # takes a second to import

    runs, path = rated
    fresh = [e for run in runs for e in play(load(run), "all", 10, 99, ViewOptions(), greedy=False)]
    assert model.accuracy > 0.95
    assert spearmanr(sums(model, fresh), [e.returns for e in fresh]).statistic > 0.9
    linear = settled(path, hidden=())  # what to do depends on what is seen: no sum of both says that
    assert spearmanr(sums(linear, fresh), [e.returns for e in fresh]).statistic < 0.8


@pytest.mark.slow
def test_the_reward_has_the_deviation_that_the_weight_says_and_the_worlds_own_beside_it(rated, model):
    _, path = rated
    library = read_episodes(episodes_file(path))
    assert model.model.rewards(library.observation, library.action).std() == pytest.approx(1.0, rel=1e-3)
    own = experience()
    plain = model.rewards(own)
    assert settled(path, weight=3.0).rewards(own) == pytest.approx(3 * plain, rel=1e-5)
    both = settled(path, world_weight=2.0).rewards(own)
    assert both == pytest.approx(plain + 2 * own.reward, rel=1e-5)
    assert np.array_equal(settled(path).rewards(own), plain)  # the same seed, the same model


def experience():
    from coterie.core.group import Actor
    from coterie.policies.scripted import RandomPolicy, RandomSettings
    from coterie.training.runner import Runner

    world = Lights(LightsSettings(), 4)
    where = spec_in(world)
    return Runner(world, [Actor(where, RandomPolicy(RandomSettings(), where))], 0).play(12, 0).decisions["team"]


@pytest.mark.slow
def test_settings_of_the_fit_matter(rated, model):
    _, path = rated
    for change in ({"steps": 20}, {"learning_rate": 1e-3}, {"decay": 0.3}, {"hidden": (4,)}):
        other = settled(path, **change)
        own = experience()
        assert not np.allclose(other.rewards(own), model.rewards(own), rtol=1e-3), change


@pytest.mark.slow
def test_ppo_on_ratings_improves_what_the_world_really_pays(rated, tmp_path):
    _, path = rated
    run = lights(tmp_path, "run", "groups.all.preference.name=reward_model", f"groups.all.preference.ratings={path}")
    summary = run.summary()
    assert summary["step_0"]["groups"]["all"]["return_mean"] < 4.5
    assert summary["evaluation"]["groups"]["all"]["return_mean"] > 5.5
    assert run.metrics()[-1]["all/reward_model/accuracy"] > 0.95
    assert run.config().groups["all"].preference.settings.ratings == str(path)


@pytest.mark.slow
def test_ratings_turned_round_teach_the_opposite(rated, tmp_path):
    _, path = rated
    lines = path.read_text().splitlines()
    turned = [line.replace('"score": 1.0', '"score": x').replace('"score": 0.0', '"score": 1.0') for line in lines]
    (tmp_path / "t.jsonl").write_text("\n".join(line.replace(": x}", ": 0.0}") for line in turned) + "\n")
    episodes_file(tmp_path / "t.jsonl").write_bytes(episodes_file(path).read_bytes())
    words = ["groups.all.preference.name=reward_model", f"groups.all.preference.ratings={tmp_path / 't.jsonl'}"]
    run = lights(tmp_path, "run", *words, "train.best=last")
    assert run.summary()["evaluation"]["groups"]["all"]["return_mean"] < 0.5


@pytest.mark.slow
def test_a_resumed_run_keeps_the_reward_that_it_began_with(rated, tmp_path, caplog):
    _, path = rated
    mine = run_cases.written(tmp_path / "r.jsonl", path.read_text())
    episodes_file(mine).write_bytes(episodes_file(path).read_bytes())
    words = ["groups.all.preference.name=reward_model", f"groups.all.preference.ratings={mine}"]
    words.append("groups.all.learner.learning_rate_schedule=constant")
    whole = lights(tmp_path, "whole", *words, "train.total_steps=1536")
    parts = lights(tmp_path, "parts", *words, "train.total_steps=768")
    mine.write_text("\n".join(path.read_text().splitlines()[:31]) + "\n")  # half of the ratings are gone
    more = ["train.total_steps=1536", "groups.all.preference.steps=7"]
    with pytest.raises(ConfigError, match=r"steps: .*300, not 7"):
        coterie.resume(parts.path, more, quiet=True, fork=tmp_path / "fork")
    assert coterie.resume(parts.path, ["train.total_steps=1536"], quiet=True)
    assert "keeps the reward model that it started with" in caplog.text

    def bare(run):  # the shorter run was evaluated at its end, too
        return [{k: v for k, v in record.items() if "eval/" not in k} for record in run_cases.numbers(run)]

    assert bare(parts) == bare(whole)


@pytest.mark.slow
def test_a_state_is_the_whole_reward(rated):
    _, path = rated
    made, other = settled(path), settled(path)
    saved, own = made.state(), experience()
    with torch.no_grad():
        for part in other.model.layers[0]:
            part.add_(1.0)
    other.model.scale, other.accuracy, other.held_out = 3.0, 0.1, 0.2
    other.model.mean, other.model.spread = other.model.mean + 1, other.model.spread * 2
    other.load(saved)
    assert np.array_equal(other.rewards(own), made.rewards(own))
    assert other.metrics() == made.metrics()


@pytest.mark.slow
def test_ratings_without_a_meaning_are_found_out_on_pairs_that_were_kept_back(rated, tmp_path, caplog):
    _, path = rated
    made = settled(path)
    assert made.metrics()["reward_model/held_out"] >= 0.8
    assert "ranks only" not in caplog.text
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    random = np.random.default_rng(1)
    drawn = [rows[0], *(row | {"score": float(random.integers(2))} for row in rows[1:])]
    noise = run_cases.written(tmp_path / "n.jsonl", "".join(json.dumps(row) + "\n" for row in drawn))
    episodes_file(noise).write_bytes(episodes_file(path).read_bytes())
    learned = settled(noise)
    assert learned.held_out < 0.6 < learned.accuracy  # what it learned by heart is no knowledge
    assert "% of the held-out pairs of" in caplog.text
    clear = [row for row in rows[1:] if row["score"] != 0.5]
    for count, known in ((9, False), (10, True)):
        noise.write_text("".join(json.dumps(row) + "\n" for row in [rows[0], *clear[:count]]))
        assert ("reward_model/held_out" in settled(noise).metrics()) == known


# Refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ratings": ""}, "coterie rate"),
        ({"weight": float("nan")}, "weight must be finite"),
        ({"hidden": (0,)}, "hidden must be above 0"),
        ({"steps": 0}, "steps"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"decay": -1.0}, "decay"),
    ],
)
def test_impossible_settings_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        RewardModelSettings(**{"ratings": "r.jsonl"} | settings)


def test_files_that_do_not_serve_are_refused(rated, tmp_path):
    _, path = rated
    with pytest.raises(ValueError, match="no ratings file"):
        read_pairs(tmp_path / "none.jsonl")
    alone = run_cases.written(tmp_path / "alone.jsonl", path.read_text())
    with pytest.raises(ValueError, match="move both files"):
        read_pairs(alone)
    episodes_file(alone).write_bytes(episodes_file(path).read_bytes())
    alone.write_text(path.read_text().splitlines()[0] + "\n")
    with pytest.raises(ValueError, match="no ratings yet"):
        read_pairs(alone)
    rows = path.read_text().replace('"score": 1.0', '"score": 0.5').replace('"score": 0.0', '"score": 0.5')
    alone.write_text(rows)
    with pytest.raises(ValueError, match="only ties"):
        read_pairs(alone)
    alone.write_text(path.read_text().replace('"episodes": 8', '"episodes": 9'))
    with pytest.raises(ValueError, match="other episodes"):
        read_pairs(alone)
    episodes_file(alone).write_bytes(episodes_file(path).read_bytes()[:-40])
    with pytest.raises(ValueError, match="cut off"):
        read_pairs(alone)
    words = ["groups.team.preference.name=reward_model", f"groups.team.preference.ratings={path}"]
    with pytest.raises(ConfigError, match=r"groups.team.preference: ratings: .*r.jsonl"):
        run_cases.train(tmp_path / "run", *words)
