"""The auction as PettingZoo and as a config see it, and its page."""

import re
from pathlib import Path

import pytest
from pettingzoo.test import parallel_api_test, parallel_seed_test

import coterie
from coterie.config import schema
from coterie.worlds.auction.valuations import ValuationSettings
from coterie.worlds.auction.world import AuctionSettings, parallel_env
from helpers.auction import VARIANTS

PAGE = (Path(__file__).parent.parent.parent / "docs" / "guides" / "auction.md").read_text()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("settings", VARIANTS)
def test_passes_pettingzoos_tests(settings):
    parallel_api_test(parallel_env(**settings), num_cycles=15)
    parallel_seed_test(lambda: parallel_env(**settings), num_cycles=15)


def test_infos_name_winner_price_and_payoff():
    env = parallel_env(num_bidders=3, rule="second_price", valuations={"name": "points", "points": (0.75,)})
    _, infos = env.reset(seed=0)
    assert infos == {"bidder_0": {}, "bidder_1": {}, "bidder_2": {}}
    _, paid, ends, _, infos = env.step({"bidder_0": [0.25], "bidder_1": [0.5], "bidder_2": [0.125]})
    assert ends == dict.fromkeys(env.possible_agents, True)
    shared = {"winner": "bidder_1", "price": 0.25, "valuation": 0.75, "success": True}
    assert infos["bidder_1"] == shared | {"payoff": 0.5, "bid": 0.5, "paid": 0.25}
    assert infos["bidder_2"] == shared | {"payoff": 0.0, "bid": 0.125, "paid": 0.0}
    assert paid == {agent: info["payoff"] for agent, info in infos.items()}
    kept = dict(infos["bidder_1"])
    env.reset(seed=1)
    env.step({"bidder_0": [1.0], "bidder_1": [0.0], "bidder_2": [0.0]})
    assert infos["bidder_1"] == kept


def test_infos_of_an_unsold_item():
    env = parallel_env(reserve=0.5)
    env.reset(seed=0)
    *_, infos = env.step({"bidder_0": [0.25], "bidder_1": [0.0]})
    assert (infos["bidder_0"]["winner"], infos["bidder_0"]["price"], infos["bidder_0"]["payoff"]) == (None, None, 0)


def test_the_face_is_where_it_is_looked_for():
    env = coterie.worlds.auction.parallel_env(num_bidders=4, rule="all_pay", bid_levels=5)
    assert env.possible_agents == [f"bidder_{i}" for i in range(4)]
    assert env.world.settings == AuctionSettings(4, "all_pay", 5)


def test_an_auction_can_be_named_in_a_config(tmp_path):
    text = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)[0]
    (tmp_path / "mine.yaml").write_text(text)
    loaded = schema.load(str(tmp_path / "mine.yaml"))
    assert loaded.world.settings.valuations == ValuationSettings("beta", alpha=2, beta=3)
    again = schema.resolve(schema.to_dict(loaded), "again")
    assert again.world == loaded.world
    with pytest.raises(schema.ConfigError, match=r"valuations: high must lie in \[0, 1\], got 3"):
        schema.load(str(tmp_path / "mine.yaml"), ["world.valuations.name=uniform", "world.valuations.high=3"])


@pytest.mark.slow
def test_learners_and_the_reference_bidder_share_a_table(tmp_path):
    text = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)[0]
    (tmp_path / "mine.yaml").write_text(text)
    short = ["train.total_steps=256", "train.num_envs=32", "train.rollout_steps=4", "train.evaluate_episodes=64"]
    run = coterie.train(
        str(tmp_path / "mine.yaml"),
        [*short, "train.video=true", "train.tensorboard=false"],
        out=tmp_path / "run",
        quiet=True,
    )
    assert run.summary()["env_steps"] == 256
    assert list((tmp_path / "run" / "videos").rglob("*.gif"))


@pytest.mark.slow
def test_the_documents_python_runs():
    for snippet in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        exec(snippet, {})


@pytest.mark.parametrize("bid", [1.5, -0.1, float("nan"), float("inf"), "0.5", None, [0.1, 0.2]])
def test_bids_outside_the_box_are_refused_and_change_nothing(bid):
    env = parallel_env(rounds=2)
    env.reset(seed=0)
    before = env.world.save()
    with pytest.raises(ValueError, match=r"bidder_1: action .* is outside Box\(0.0, 1.0, \(1,\), float32\)"):
        env.step({"bidder_0": [0.1], "bidder_1": bid if isinstance(bid, list) else [bid]})
    after = env.world.save()
    assert all((before[name] == after[name]).all() for name in before)
    env.step({"bidder_0": [0.1], "bidder_1": [0.2]})


@pytest.mark.parametrize("choice", [-1, 5, 2.5, float("nan"), "2", None])
def test_choices_outside_the_grid_are_refused(choice):
    env = parallel_env(bid_levels=5)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"bidder_0: action .* is outside Discrete\(5\)"):
        env.step({"bidder_0": choice, "bidder_1": 2})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"num_bidders": 2.0}, "num_bidders must be a whole number, got 2.0"),
        ({"num_bidders": "3"}, "num_bidders must be a whole number, got '3'"),
        ({"num_bidders": 1}, "num_bidders must be at least 2, got 1"),
        ({"rounds": 1.5}, "rounds must be a whole number, got 1.5"),
        ({"reserve": "high"}, "reserve must be a number, got 'high'"),
    ],
)
def test_impossible_settings_are_refused(given, said):
    with pytest.raises(ValueError, match=said):
        parallel_env(**given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"num_bider": 3}, "num_bider: no such setting; did you mean 'num_bidders'"),
        ({"valuations": {"nam": "beta"}}, "nam: no such setting; did you mean 'name'"),
        ({"quux": 1}, "quux: no such setting; known: num_bidders, "),
    ],
)
def test_unknown_settings_are_named(given, said):
    with pytest.raises(TypeError, match=said):
        parallel_env(**given)


def test_a_function_is_named_not_given():
    with pytest.raises(ValueError, match=r"valuations: .*package\.module:Name"):
        parallel_env(valuations=lambda rank: rank)
