"""Equilibria against textbook formulas and published figures, against best responses, and played in the world."""

import functools

import numpy as np
import pytest

from coterie.preferences.prospect import NEUTRAL, Prospect, power, weight
from coterie.worlds.auction.best_responses import AuctionModel, expected_outcome, utility_loss, win_probability_against
from coterie.worlds.auction.equilibria import (
    asymmetric_equilibrium,
    entry_rank,
    max_regret,
    symmetric_bid,
    symmetric_equilibrium,
)
from coterie.worlds.auction.valuations import ValuationSettings, tabulate
from coterie.worlds.auction.world import Auction, AuctionSettings
from helpers.auction import uniform_valuations

RISK = Prospect()  # α = 0.88, γ = 0.61
VALUES = np.array([0.25, 0.5, 0.75, 0.9, 1.0])
RULES = ("first_price", "second_price", "all_pay")
BETA = ValuationSettings("beta", alpha=2, beta=3)
POINTS = ValuationSettings("points", points=(0.2, 0.6, 1.0), weights=(2, 1, 1))


def all_follow(model, bid_function):
    return max_regret(model, NEUTRAL, bid_function, win_probability_against([bid_function] * (model.bidders - 1)))


# Formulas -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bidders", [2, 3, 5, 10])
def test_uniform_valuations_have_textbook_equilibria(bidders):
    n, values = bidders, np.linspace(0, 1, 41)
    for rule, expected in (
        ("first_price", values * (n - 1) / n),
        ("second_price", values),
        ("all_pay", values**n * (n - 1) / n),
    ):
        model = AuctionModel(n, uniform_valuations(), rule)
        np.testing.assert_allclose(symmetric_bid(model, values), expected, atol=1e-13)
        assert expected_outcome(model, [symmetric_equilibrium(model)] * n).revenue == pytest.approx(
            (n - 1) / (n + 1), abs=1e-5
        )


@pytest.mark.parametrize("bidders", [2, 3, 5])
@pytest.mark.parametrize("exponent", [0.3, 0.5, 1.0, 1.5])
def test_power_utilities_raise_bids_as_known(bidders, exponent):
    got = symmetric_bid(AuctionModel(bidders, uniform_valuations()), VALUES, power(exponent))
    np.testing.assert_allclose(got, VALUES * (bidders - 1) / (bidders - 1 + exponent), rtol=1e-9)


@pytest.mark.parametrize(
    ("bidders", "ratios", "revenue"),
    [
        (2, [0.358, 0.374, 0.422, 0.481, 0.604], 0.296),
        (3, [0.548, 0.531, 0.548, 0.595, 0.719], 0.437),
        (5, [0.729, 0.710, 0.696, 0.716, 0.821], 0.604),
    ],
)
def test_prospect_theory_bids_less_when_low_and_more_when_high(bidders, ratios, revenue):
    model = AuctionModel(bidders, uniform_valuations())
    bids = symmetric_bid(model, VALUES, RISK)
    np.testing.assert_allclose(bids / VALUES, ratios, atol=5.1e-4)
    neutral = symmetric_bid(model, VALUES)
    assert bids[0] < neutral[0]
    assert bids[-1] > neutral[-1]
    assert expected_outcome(model, [symmetric_equilibrium(model, RISK)] * bidders).revenue == pytest.approx(
        revenue, abs=5e-4
    )


@pytest.mark.parametrize("bidders", [2, 4])
def test_prospect_theory_by_a_fine_sum(bidders):
    fine = np.linspace(0, 1, 400001)
    held = weight(fine ** (bidders - 1), 0.61) ** (1 / 0.88)
    area = np.concatenate([[0], np.cumsum((held[1:] + held[:-1]) / 2) * (fine[1] - fine[0])])
    at = (VALUES * 400000).astype(int)
    expected = VALUES - area[at] / held[at]
    np.testing.assert_allclose(
        symmetric_bid(AuctionModel(bidders, uniform_valuations()), VALUES, RISK), expected, atol=1e-6
    )


def test_losses_play_no_part_in_equilibrium():
    model = AuctionModel(3, uniform_valuations())
    other = Prospect(beta=0.5, loss_aversion=5, gamma_losses=0.4)
    np.testing.assert_array_equal(symmetric_bid(model, VALUES, RISK), symmetric_bid(model, VALUES, other))


def test_reserve_prices_by_hand():
    """b = (v + r² / v) / 2 for two; the best reserve is 1/2 and yields 5/12."""
    model = AuctionModel(2, uniform_valuations(), reserve=0.5)
    np.testing.assert_allclose(symmetric_bid(model, [0.4, 0.5, 0.8, 1]), [0, 0.5, (0.8 + 0.25 / 0.8) / 2, 0.625])
    for rule in ("first_price", "second_price"):
        model = AuctionModel(2, uniform_valuations(), rule, 0.5)
        assert expected_outcome(model, [symmetric_equilibrium(model)] * 2).revenue == pytest.approx(5 / 12, abs=1e-5)
    pay = AuctionModel(2, uniform_valuations(), "all_pay", 0.25)  # enters where v² ≥ 1/4, then r + (v² − 1/4) / 2
    assert entry_rank(pay) == pytest.approx(0.5)
    np.testing.assert_allclose(symmetric_bid(pay, [0.49, 0.6, 1]), [0, 0.25 + (0.36 - 0.25) / 2, 0.625], atol=1e-9)


def test_a_lowest_valuation_above_0_is_bid():
    model = AuctionModel(2, tabulate(ValuationSettings(low=0.5)))
    np.testing.assert_allclose(symmetric_bid(model, [0.5, 0.75, 1]), [0.5, 0.625, 0.75], atol=1e-12)


@pytest.mark.parametrize("settings", [BETA, ValuationSettings("truncated_normal"), POINTS, ValuationSettings(low=0.3)])
@pytest.mark.parametrize("bidders", [2, 4])
def test_all_rules_earn_the_same_from_neutral_bidders(settings, bidders):
    revenues = []
    for rule in RULES:
        model = AuctionModel(bidders, tabulate(settings), rule)
        revenues.append(expected_outcome(model, [symmetric_equilibrium(model)] * bidders).revenue)
    np.testing.assert_allclose(revenues, revenues[0], atol=3e-4)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [BETA, POINTS, ValuationSettings("truncated_normal", mean=0.2)])
@pytest.mark.parametrize("reserve", [0.0, 0.3])
@pytest.mark.parametrize("rule", ["first_price", "all_pay"])
def test_nobody_gains_by_leaving_the_equilibrium(settings, reserve, rule):
    model = AuctionModel(3, tabulate(settings), rule, reserve)
    bid_function = symmetric_equilibrium(model)
    assert all_follow(model, bid_function) < 2e-5
    assert utility_loss(model, NEUTRAL, bid_function, win_probability_against([bid_function] * 2)).relative < 1e-3
    if rule == "first_price":
        bid_function = symmetric_equilibrium(model, RISK)
        assert max_regret(model, RISK, bid_function, win_probability_against([bid_function] * 2)) < 2e-5


@pytest.mark.slow
def test_another_curve_is_no_equilibrium():
    model = AuctionModel(2, uniform_valuations())
    assert all_follow(model, symmetric_equilibrium(model, RISK)) > 5e-3


# Tables of several tastes -------------------------------------------------------------------------------


@functools.cache
def table(cpt, neutral):
    return asymmetric_equilibrium(AuctionModel(cpt + neutral, uniform_valuations()), [RISK, NEUTRAL], [cpt, neutral])


@pytest.mark.slow
def test_a_table_of_equals_is_the_symmetric_one():
    model = AuctionModel(3, uniform_valuations(), reserve=0.1)
    found = asymmetric_equilibrium(model, [RISK, RISK], [1, 2])
    at = np.linspace(0.12, 1, 30)
    for bid_function in found.bid_functions:
        np.testing.assert_allclose(bid_function(at), symmetric_bid(model, at, RISK), atol=1e-4)
    assert found.residual < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(("cpt", "neutral"), [(1, 1), (2, 1), (1, 2)])
def test_mixed_tables_are_in_equilibrium(cpt, neutral):
    found = table(cpt, neutral)
    assert found.residual < 1e-4
    assert len(found.bidders) == cpt + neutral
    model = AuctionModel(cpt + neutral, uniform_valuations())
    for risk, bid_function, i in ((RISK, found.bid_functions[0], 0), (NEUTRAL, found.bid_functions[1], 1)):
        assert (np.diff(bid_function.bids) >= -1e-12).all()
        assert utility_loss(model, risk, bid_function, found.win_probability(i)).relative < 1e-4
        # the bids of the symmetric equilibrium would be worse here
        alone = symmetric_equilibrium(model, risk)
        assert max_regret(model, risk, alone, found.win_probability(i)) > 50 * found.residual


@pytest.mark.slow
def test_a_mixed_table_lies_between_the_pure_ones():
    revenues = [
        expected_outcome(AuctionModel(3, uniform_valuations()), bid_functions).revenue
        for bid_functions in (
            [symmetric_equilibrium(AuctionModel(3, uniform_valuations()), RISK)] * 3,
            table(2, 1).bidders,
            table(1, 2).bidders,
            [symmetric_equilibrium(AuctionModel(3, uniform_valuations()))] * 3,
        )
    ]
    np.testing.assert_allclose(revenues, [0.4369, 0.4580, 0.4795, 0.5], atol=2e-4)
    # two who overbid near 1 leave the third behind: it never bids as high
    high, low = (bid_function.bids[-1] for bid_function in table(2, 1).bid_functions)
    assert low < high - 0.05


# In the world -------------------------------------------------------------------------------------------


def play(settings, bid_functions, num_envs=40000, seed=0):
    """One step of many copies; rewards and what was paid."""
    world = Auction(settings, num_envs)
    values = world.reset(seed).agent_types["bidder"].observation[..., 0].astype(float)
    bids = np.stack([bid_function(values[:, i]) for i, bid_function in enumerate(bid_functions)], axis=1)
    timestep = world.step({"bidder": bids[..., None].astype(np.float32)})
    return timestep.agent_types["bidder"].reward.copy(), world._round.paid.sum(axis=1), timestep.success.mean()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("reserve", [0.0, 0.4])
def test_the_world_pays_what_theory_says(rule, reserve):
    settings = AuctionSettings(3, rule, valuations=BETA, reserve=reserve)
    bid_function = symmetric_equilibrium(settings.model)
    rewards, paid, efficient = play(settings, [bid_function] * 3)
    found = expected_outcome(settings.model, [bid_function] * 3)
    assert paid.mean() == pytest.approx(found.revenue, abs=5 * paid.std() / 200)
    assert efficient == pytest.approx(found.highest_wins, abs=0.01)
    earned = utility_loss(settings.model, NEUTRAL, bid_function, win_probability_against([bid_function] * 2)).utility
    assert rewards.mean() == pytest.approx(earned, abs=5 * rewards.std() / np.sqrt(rewards.size))


def test_the_world_pays_prospect_theorists_less():
    settings = AuctionSettings(2)
    bid_functions = [symmetric_equilibrium(settings.model, RISK)] * 2
    assert play(settings, bid_functions)[1].mean() == pytest.approx(0.2957, abs=3e-3)


@pytest.mark.slow
def test_a_mixed_table_in_the_world():
    settings, found = AuctionSettings(3), table(2, 1)
    rewards, paid, efficient = play(settings, found.bidders)
    expected = expected_outcome(settings.model, found.bidders)
    assert paid.mean() == pytest.approx(expected.revenue, abs=4e-3)
    assert efficient == pytest.approx(expected.highest_wins, abs=0.01)
    assert efficient < 0.95
    neutral = utility_loss(settings.model, NEUTRAL, found.bid_functions[1], found.win_probability(1)).utility
    assert rewards[:, 2].mean() == pytest.approx(neutral, abs=4e-3)


# Refusals -----------------------------------------------------------------------------------------------


def test_what_has_no_formula_is_refused():
    model = AuctionModel(2, uniform_valuations())
    with pytest.raises(ValueError, match="reference 0"):
        symmetric_bid(model, VALUES, Prospect(reference=0.1))
    with pytest.raises(ValueError, match="all_pay"):
        symmetric_bid(AuctionModel(2, uniform_valuations(), "all_pay"), VALUES, RISK)
    with pytest.raises(ValueError, match="first_price only, got all_pay"):
        asymmetric_equilibrium(AuctionModel(2, uniform_valuations(), "all_pay"), [RISK, NEUTRAL], [1, 1])
    with pytest.raises(ValueError, match="sum to 2 bidders"):
        asymmetric_equilibrium(model, [RISK, NEUTRAL], [2, 1])
    with pytest.raises(ValueError, match="sum to 2 bidders"):
        asymmetric_equilibrium(model, [RISK, NEUTRAL], [2, 0])
    with pytest.raises(ValueError, match="reference 0"):
        asymmetric_equilibrium(model, [Prospect(reference=0.1), NEUTRAL], [1, 1])
    with pytest.raises(ValueError, match=r"valuations: .* points"):
        asymmetric_equilibrium(AuctionModel(2, tabulate(POINTS)), [RISK, NEUTRAL], [1, 1])
