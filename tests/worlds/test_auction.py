"""The auction: rounds by hand, lots, budgets, contracts, refusals, the reference bidder."""

import numpy as np
import pytest

from coterie.core.world import HasExpert, Renderable
from coterie.testing import check_world
from coterie.worlds.auction.valuations import ValuationSettings
from coterie.worlds.auction.world import Auction, AuctionSettings, parallel_env
from helpers.auction import POINTS, VARIANTS, auction, bid, value


def rewards(timestep):
    return timestep.agent_types["bidder"].reward[0].tolist()


# By hand ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "expected"),
    [("first_price", [0, 0.9 - 0.5, 0]), ("second_price", [0, 0.9 - 0.25, 0]), ("all_pay", [-0.25, 0.9 - 0.5, -0.125])],
)
def test_who_pays_what(rule, expected):
    timestep = bid(auction([0.4, 0.9, 0.3], rule=rule), 0.25, 0.5, 0.125)
    np.testing.assert_allclose(rewards(timestep), expected, atol=1e-7)
    assert timestep.ended.all()
    assert timestep.success.all()
    assert timestep.agent_types["bidder"].terminated.all()
    assert not timestep.agent_types["bidder"].truncated.any()


@pytest.mark.parametrize(
    ("rule", "bids", "expected"),
    [
        ("first_price", (0.25, 0.375), [0, 0]),
        ("first_price", (0.5, 0.375), [0.9 - 0.5, 0]),
        ("second_price", (0.75, 0.375), [0.9 - 0.5, 0]),  # the other's is no bid: the reserve is the price
        ("second_price", (0.75, 0.625), [0.9 - 0.625, 0]),
        ("all_pay", (0.75, 0.375), [0.9 - 0.75, 0]),  # what is no bid is not paid
        ("all_pay", (0.75, 0.5), [0.9 - 0.75, -0.5]),
    ],
)
def test_a_bid_below_the_reserve_is_none(rule, bids, expected):
    timestep = bid(auction([0.9, 0.8], rule=rule, reserve=0.5), *bids)
    np.testing.assert_allclose(rewards(timestep), expected, atol=1e-7)
    assert timestep.success.item() == (max(bids) >= 0.5)


def test_success_is_that_the_highest_valuation_wins():
    assert not bid(auction([0.4, 0.9]), 0.4, 0.3).success.item()
    assert bid(auction([0.4, 0.9]), 0.2, 0.3).success.item()


def test_winning_above_ones_valuation_costs():
    np.testing.assert_allclose(rewards(bid(auction([0.25, 0.0]), 1.0, 0.5)), [-0.75, 0])


@pytest.mark.parametrize("rule", ["first_price", "second_price", "all_pay"])
def test_ties_are_decided_by_lot_among_the_highest(rule):
    world = Auction(AuctionSettings(4, rule), 30000)
    world.reset(3)
    bid(world, 0.5, 0.25, 0.5, 0.5)
    winners = np.bincount(world._round.winner, minlength=4) / 30000
    np.testing.assert_allclose(winners, [1 / 3, 0, 1 / 3, 1 / 3], atol=0.012)
    assert (world._round.price == 0.5).all()  # at a tie the second price is the first


def test_a_choice_is_a_bid_on_the_grid():
    world = auction([0.9, 0.5], bid_levels=5)
    timestep = world.step({"bidder": np.array([[3, 2]])})
    np.testing.assert_allclose(rewards(timestep), [0.9 - 0.75, 0], atol=1e-7)
    world.step({"bidder": np.array([[4, 0]])})
    assert world._round.bid.tolist() == [[1, 0]]


# Rounds and budgets -------------------------------------------------------------------------------------


def test_rounds_are_remembered_in_what_is_seen():
    world = auction([0.4, 0.9], rounds=3, budget=0.8, reserve=0.125)
    seen = world.load(world.save()).agent_types["bidder"].observation[0]
    np.testing.assert_allclose(seen, [[0.4, 0, 0, 0, 0, 1], [0.9, 0, 0, 0, 0, 1]], atol=1e-7)
    timestep = bid(world, 0.25, 0.5)
    np.testing.assert_allclose(rewards(timestep), [0, 0.4], atol=1e-7)
    assert not timestep.ended.any()
    timestep = value(world, [0.3, 0.7])
    np.testing.assert_allclose(
        timestep.agent_types["bidder"].observation[0],
        [[0.3, 1 / 3, 1, 0.5, 0, 1], [0.7, 1 / 3, 1, 0.5, 1, 0.375]],
        atol=1e-7,
    )
    np.testing.assert_allclose(timestep.state[0], [0.3, 0.7, 1 / 3, 1, 0.5, 0, 1, 1, 0.375], atol=1e-7)
    timestep = bid(world, 0.0, 0.0)  # nobody bids
    np.testing.assert_allclose(timestep.agent_types["bidder"].observation[0, :, 1:5], [[2 / 3, 0, 0, 0]] * 2, atol=1e-7)
    timestep = bid(world, 0.75, 0.25)
    assert timestep.ended.all()
    last = timestep.agent_types["bidder"].final_observation[0]
    np.testing.assert_allclose(last[:, 1:], [[1, 1, 0.75, 1, 0.0625], [1, 1, 0.75, 0, 0.375]], atol=1e-6)
    np.testing.assert_allclose(timestep.final_state[0, 2:], [1, 1, 0.75, 1, 0, 0.0625, 0.375], atol=1e-6)
    np.testing.assert_allclose(timestep.agent_types["bidder"].observation[0, :, 1:], [[0, 0, 0, 0, 1]] * 2)


def test_bids_are_cut_to_what_is_left():
    world = auction([1.0, 1.0], rounds=3, budget=0.75)
    bid(world, 0.5, 0.0)
    bid(world, 0.5, 0.125)  # 0.25 is left
    assert world._round.bid[0].tolist() == [0.25, 0.125]
    assert world._round.price[0] == 0.25
    assert world.auction.left[0].tolist() == [0, 0.75]
    bid(world, 1.0, 0.125)
    assert world._round.bid[0].tolist() == [0, 0.125]
    assert world.auction.left[0].tolist() == [0.75, 0.75]  # a new episode


def test_losers_of_an_all_pay_auction_spend_their_budget():
    world = auction([1.0, 1.0], rule="all_pay", rounds=2, budget=1)
    bid(world, 0.5, 0.25)
    assert world.auction.left[0].tolist() == [0.5, 0.75]


def test_a_budget_holds_in_a_single_round_too():
    world = auction([1.0, 0.9], budget=0.375)
    np.testing.assert_allclose(rewards(bid(world, 0.75, 0.25)), [0.625, 0])
    assert world.agent_types["bidder"].observation.shape == (1,)


def test_an_episode_of_rounds_succeeds_when_all_were_efficient():
    for second in (0.25, 0.75):
        world = auction([0.4, 0.9], rounds=2)
        bid(world, 0.25, 0.5)
        value(world, [0.9, 0.4])
        assert bid(world, 0.5, second).success.item() == (second < 0.5)


def test_every_round_has_new_valuations():
    world = Auction(AuctionSettings(rounds=4), 5)
    seen = [bid(world, 0.1, 0.2).agent_types["bidder"].observation[..., 0].copy() for _ in range(6)]
    assert len(np.unique(seen)) == 6 * 5 * 2


# Valuations ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        ValuationSettings(low=0.25, high=0.5),
        ValuationSettings("beta", alpha=0.5, beta=2),
        ValuationSettings("truncated_normal", mean=0.1),
        POINTS,
    ],
)
def test_valuations_are_drawn_from_their_distribution(settings):
    made = AuctionSettings(3, valuations=settings)
    world, table = Auction(made, 20000), made.model.valuations
    for timestep in (world.reset(5), bid(world, 0.1, 0.2, 0.3)):
        drawn = timestep.agent_types["bidder"].observation[..., 0]
        assert drawn.min() >= table.low - 1e-7
        assert drawn.max() <= table.high + 1e-7
        for level in (0.1, 0.3, 0.6, 0.9):
            # in the middle between atoms, so that float32 cannot fall beside one
            at = float(table.quantile(level)) + (0.01 if table.atoms else 0)
            assert (drawn <= at).mean(axis=0) == pytest.approx(float(table.cdf(at)), abs=0.015)
        assert np.abs(np.corrcoef(drawn.T) - np.eye(3)).max() < 0.03


# Contracts and faces ------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", VARIANTS)
def test_keeps_the_contract(settings):
    check_world(lambda num_envs: Auction(AuctionSettings(**settings), num_envs), steps=60)


def test_capabilities_and_spaces():
    world = Auction(AuctionSettings(3, rounds=2, budget=1), 2)
    for capability in (HasExpert, Renderable):
        assert isinstance(world, capability)
    assert world.agent_types["bidder"].agents == ("bidder_0", "bidder_1", "bidder_2")
    assert (world.agent_types["bidder"].observation.shape, world.state_size) == ((6,), 12)
    assert world.reset(0).state.shape == (2, 12)
    single = Auction(AuctionSettings(3), 2)
    assert (single.agent_types["bidder"].observation.shape, single.state_size) == ((1,), 3)
    timestep = single.reset(0)
    np.testing.assert_array_equal(timestep.state, timestep.agent_types["bidder"].observation[..., 0])


def test_seeds_make_the_difference():
    world = Auction(AuctionSettings(), 3)
    first, again, other = (world.reset(seed).state.copy() for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert len(np.unique([first, other])) == 12


def test_a_state_of_other_size_is_refused_and_nothing_is_loaded():
    world = Auction(AuctionSettings(), 3)
    before = world.save()
    with pytest.raises(ValueError, match="saved 'random' has shape"):
        world.load(Auction(AuctionSettings(), 2).save())
    assert all(np.array_equal(before[name], array) for name, array in world.save().items())


# Refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [-0.01, 1.01, np.nan, np.inf])
def test_a_bid_out_of_range_is_named_and_changes_nothing(wrong):
    world = Auction(AuctionSettings(3, rounds=2, budget=1), 4)
    before, bids = world.save(), np.full((4, 3, 1), 0.5, np.float32)
    bids[2, 1] = wrong
    with pytest.raises(ValueError, match=rf"bidder_1 of copy 2 bid {wrong:g}; a bid must lie in \[0, 1\]"):
        world.step({"bidder": bids})
    assert all(np.array_equal(before[name], array) for name, array in world.save().items())
    env = parallel_env()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="bidder_1: action"):
        env.step({"bidder_0": [0.5], "bidder_1": [wrong]})


@pytest.mark.parametrize("wrong", [-1, 5])
def test_a_choice_out_of_range_is_named(wrong):
    world = Auction(AuctionSettings(3, bid_levels=5), 4)
    bids = np.zeros((4, 3), int)
    bids[3, 0] = wrong
    with pytest.raises(ValueError, match=rf"bidder_0 of copy 3 chose {wrong}, outside Discrete\(n=5\)"):
        world.step({"bidder": bids})


def test_bids_of_the_wrong_shape_or_type_are_refused():
    with pytest.raises(ValueError, match=r"numbers of shape \(2, 2, 1\), got float64 \(2, 2\)"):
        Auction(AuctionSettings(), 2).step({"bidder": np.zeros((2, 2))})
    with pytest.raises(ValueError, match=r"integers of shape \(2, 2\), got float64"):
        Auction(AuctionSettings(bid_levels=3), 2).step({"bidder": np.zeros((2, 2))})


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"num_bidders": 1}, "num_bidders must be at least 2, got 1"),
        ({"rule": "third_price"}, "rule must be one of first_price, second_price, all_pay, got 'third_price'"),
        ({"reserve": 1.5}, r"reserve must lie in \[0, 1\], got 1.5"),
        ({"reserve": -0.1}, r"reserve must lie in \[0, 1\]"),
        ({"reserve": float("nan")}, r"reserve must lie in \[0, 1\]"),
        ({"budget": 0}, "budget must be above 0, got 0"),
        ({"budget": -1.0}, "budget must be above 0"),
        ({"budget": float("inf")}, "budget must be finite, got inf; leave it out"),
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
        ({"bid_levels": 1}, r"bid_levels must be 0 \(any bid\) or at least 2, got 1"),
        ({"bid_levels": -3}, "bid_levels must be 0"),
        ({"valuations": ValuationSettings("test_auction_valuations:too_large")}, r"must lie in \[0, 1\]"),
    ],
)
def test_bad_settings_are_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        AuctionSettings(**bad)


# The reference bidder -----------------------------------------------------------------------------------


@pytest.mark.parametrize("bidders", [2, 5])
def test_the_reference_bidder_plays_the_equilibrium(bidders):
    n, random = bidders, np.random.default_rng(0)
    for rule, expected in (
        ("first_price", lambda v: v * (n - 1) / n),
        ("second_price", lambda v: v),
        ("all_pay", lambda v: v**n * (n - 1) / n),
    ):
        world = Auction(AuctionSettings(n, rule), 50)
        values = world.auction.valuation
        bids = world.expert("bidder", random)
        assert bids.dtype == np.float32
        np.testing.assert_allclose(bids[..., 0], expected(values), atol=1e-5)
    world = Auction(AuctionSettings(n, bid_levels=21), 50)
    choices = world.expert("bidder", random)
    assert choices.dtype == np.int64
    np.testing.assert_allclose(choices / 20, world.auction.valuation * (n - 1) / n, atol=0.0251)


def test_the_reference_bidder_draws_lots_between_points():
    """Revenue is that of second prices, where truth needs no lots."""
    revenue = {}
    for rule in ("first_price", "second_price", "all_pay"):
        world = Auction(AuctionSettings(3, rule, valuations=POINTS), 40000)
        world.reset(1)
        world.step({"bidder": world.expert("bidder", np.random.default_rng(0))})
        revenue[rule] = world._round.paid.sum(axis=1).mean()
    assert revenue["first_price"] == pytest.approx(revenue["second_price"], abs=0.006)
    assert revenue["all_pay"] == pytest.approx(revenue["second_price"], abs=0.006)


def test_bidding_less_or_more_than_the_equilibrium_earns_less():
    earned = {}
    for factor in (0.6, 1.0, 1.4):
        world = Auction(AuctionSettings(2), 60000)
        world.reset(2)
        bids = world.expert("bidder", np.random.default_rng(0))
        bids[:, 0] = np.clip(bids[:, 0] * factor, 0, 1)
        earned[factor] = world.step({"bidder": bids}).agent_types["bidder"].reward[:, 0].mean()
    assert earned[1.0] == pytest.approx(1 / 6, abs=5e-3)
    assert earned[1.0] > max(earned[0.6], earned[1.4]) + 0.01
