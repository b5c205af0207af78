"""Values of bids: curves, chances, best responses and measures, by hand and against the world itself."""

import numpy as np
import pytest

from coterie.preferences.prospect import NEUTRAL, Prospect, lottery, power
from coterie.worlds.auction.best_responses import (
    AuctionModel,
    BidFunction,
    best_response,
    bid_function,
    expected_outcome,
    grid_bids,
    interim_utility,
    l2_distance,
    utility_loss,
    win_probability_against,
)
from coterie.worlds.auction.equilibria import symmetric_equilibrium
from coterie.worlds.auction.valuations import ValuationSettings, tabulate
from helpers.auction import uniform_valuations

RISK = Prospect()
VALUES = np.array([0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0])


def half(values):
    return values / 2


def test_curves_know_how_bids_are_distributed():
    model = AuctionModel(2, uniform_valuations())
    bidder = bid_function(model, half)
    np.testing.assert_allclose(bidder([0.2, 0.9]), [0.1, 0.45], atol=1e-12)
    np.testing.assert_allclose(bidder.cdf(np.array([0, 0.1, 0.5, 0.7])), [0, 0.2, 1, 1], atol=1e-12)
    valley = bid_function(model, lambda v: np.abs(v - 0.5))  # bids uniform on [0, 0.5], though not rising
    np.testing.assert_allclose(valley.cdf(np.array([0.1, 0.25, 0.4])), [0.2, 0.5, 0.8], atol=2e-3)
    flat = BidFunction(np.array([0.0, 0.5, 1]), np.array([0.0, 0.5, 1]), np.array([0.0, 0.3, 0.3]))
    assert (flat.cdf(np.array(0.3), "left"), flat.cdf(np.array(0.3))) == (0.5, 1)


def test_chances_against_curves():
    bidder = bid_function(AuctionModel(2, uniform_valuations()), half)
    np.testing.assert_allclose(
        win_probability_against([bidder] * 3)(np.array([0.1, 0.25, 0.6])), [0.2**3, 0.5**3, 1], atol=1e-12
    )


@pytest.mark.parametrize("rivals", [1, 2, 3, 4, 7])
def test_ties_are_won_by_lot(rivals):
    same = BidFunction(np.array([0.0, 1]), np.array([0.0, 1]), np.array([0.3, 0.3]))
    np.testing.assert_allclose(
        win_probability_against([same] * rivals)(np.array([0.29, 0.3, 0.31])), [0, 1 / (rivals + 1), 1]
    )


def test_interim_values_by_hand():
    win_probability = win_probability_against([bid_function(AuctionModel(2, uniform_valuations()), half)])
    first, pay, second = (
        AuctionModel(2, uniform_valuations(), rule, 0.1) for rule in ("first_price", "all_pay", "second_price")
    )
    assert interim_utility(first, NEUTRAL, 0.8, 0.3, win_probability) == pytest.approx(0.6 * 0.5)
    assert interim_utility(first, NEUTRAL, 0.8, 0.05, win_probability) == 0  # below the reserve
    assert interim_utility(first, RISK, 0.8, 0.3, win_probability) == pytest.approx(float(lottery(RISK, 0.5, 0, 0.6)))
    assert interim_utility(first, RISK, 0.2, 0.3, win_probability) == pytest.approx(float(lottery(RISK, 0, -0.1, 0.4)))
    assert interim_utility(pay, NEUTRAL, 0.8, 0.3, win_probability) == pytest.approx(0.6 * 0.8 - 0.3)
    assert interim_utility(pay, RISK, 0.8, 0.3, win_probability) == pytest.approx(float(lottery(RISK, 0.5, -0.3, 0.6)))
    assert interim_utility(pay, NEUTRAL, 0.8, 0.05, win_probability) == 0
    # rivals' bids are uniform on [0, 0.5]: pay 0.1 with chance 0.2, else a number between 0.1 and 0.3
    assert interim_utility(second, NEUTRAL, 0.8, 0.3, win_probability) == pytest.approx(0.2 * 0.7 + 0.4 * 0.6, abs=1e-5)
    staying = interim_utility(first, Prospect(reference=0.2), 0.5, 0.0, win_probability)
    assert staying == pytest.approx(-2.25 * 0.2**0.88)


@pytest.mark.parametrize("risk", [NEUTRAL, power(0.6), RISK])
def test_best_response_to_a_uniform_rival(risk):
    """Rivals bid uniformly on [0, 1]: maximise w(b) (v − b)^α, here by a search of its own."""
    model = AuctionModel(2, uniform_valuations())
    found = best_response(model, risk, VALUES, win_probability_against([bid_function(model, lambda v: v)]))
    fine = np.linspace(0, 1, 200001)
    for v, bid, utility in zip(VALUES, *found, strict=True):
        all_values = lottery(risk, np.maximum(v - fine, 0), 0.0, fine) * (fine <= v)
        assert utility == pytest.approx(all_values.max(), abs=1e-8)
        assert bid == pytest.approx(fine[all_values.argmax()], abs=1e-4 if v else 1)
    if risk == NEUTRAL:
        np.testing.assert_allclose(found.bids, VALUES / 2, atol=1e-5)


def test_best_response_on_a_grid_of_bids():
    """One rival bids 0, 0.5 or 1, each as likely; at a tie a lot decides."""
    found = best_response(
        AuctionModel(2, uniform_valuations()),
        NEUTRAL,
        np.array([0.2, 0.9]),
        lambda bids: np.interp(bids, [0, 0.5, 1], [1 / 6, 1 / 2, 5 / 6]),
        bid_levels=3,
    )
    np.testing.assert_array_equal(found.bids, [0, 0.5])
    np.testing.assert_allclose(found.utility, [0.2 / 6, 0.4 * 0.5])


@pytest.mark.parametrize("risk", [NEUTRAL, RISK, Prospect(reference=0.2)])
def test_truth_is_best_at_second_prices_for_every_risk_preference(risk):
    model = AuctionModel(2, uniform_valuations(), "second_price")
    win_probability = win_probability_against([bid_function(model, lambda v: v**2)])
    truth = best_response(model, risk, VALUES, win_probability)
    np.testing.assert_array_equal(truth.bids, VALUES)
    others = interim_utility(model, risk, VALUES[:, None], np.linspace(0, 1, 101), win_probability)
    assert (truth.utility >= others.max(axis=1) - 2e-3).all()  # prices are in steps


def test_staying_away_is_a_response():
    model = AuctionModel(2, uniform_valuations(), reserve=0.4)
    found = best_response(model, NEUTRAL, np.array([0.2, 0.6]), win_probability_against([symmetric_equilibrium(model)]))
    assert found.bids[0] == 0
    assert found.utility[0] == 0
    assert found.bids[1] >= 0.4


def test_the_reference_moves_the_best_response():
    """With a reference point of 0.2 losing counts as a loss, so the best bid is higher."""
    model = AuctionModel(2, uniform_valuations())
    win_probability = win_probability_against([symmetric_equilibrium(model)])
    plain, hoping = (best_response(model, Prospect(reference=r), np.array([0.4]), win_probability) for r in (0.0, 0.2))
    assert hoping.bids[0] > plain.bids[0] + 0.02
    assert hoping.utility[0] < 0


# Measures -----------------------------------------------------------------------------------------------


def test_distance_is_a_root_mean_square():
    assert l2_distance(np.array([0.1, 0.5]), np.array([0.1, 0.2])) == pytest.approx(np.sqrt(0.09 / 2))
    assert l2_distance(np.array([0.1, 0.5]), np.array([0.1, 0.2]), np.array([3, 1])) == pytest.approx(np.sqrt(0.09 / 4))
    assert l2_distance(np.array([0.3]), np.array([0.3])) == 0


@pytest.mark.slow
def test_utility_loss_in_closed_form():
    """Against v/2, bidding c·v earns 2c (1 − c) / 3 for c ≤ 1/2: 1/6 in equilibrium."""
    model = AuctionModel(2, uniform_valuations())
    ideal = symmetric_equilibrium(model)
    win_probability = win_probability_against([ideal])
    for c in (0.2, 0.4, 0.5):
        low = bid_function(model, lambda v, c=c: c * v)
        result = utility_loss(model, NEUTRAL, low, win_probability, ideal)
        assert result.utility == pytest.approx(2 * c * (1 - c) / 3, abs=1e-5)
        assert result.reference == pytest.approx(1 / 6, abs=1e-5)
        assert result.absolute == pytest.approx(1 / 6 - 2 * c * (1 - c) / 3, abs=1e-5)
        assert result.relative == pytest.approx(1 - 4 * c * (1 - c), abs=1e-4)
        best = utility_loss(model, NEUTRAL, low, win_probability)
        assert best.absolute == pytest.approx(result.absolute, abs=1e-6)


def test_results_in_closed_form():
    """One truthful bidder and one who bids half: the former wins with v > w / 2."""
    model = AuctionModel(2, uniform_valuations())
    table = [bid_function(model, lambda v: v), bid_function(model, half)]
    result = expected_outcome(model, table)
    assert result.revenue == pytest.approx(1 / 24 + 1 / 2, abs=1e-5)  # E max(V, W / 2)
    assert result.highest_wins == pytest.approx(0.75, abs=1e-4)
    assert result.efficiency == pytest.approx((1 / 2 - 1 / 24 + 1 / 6) / (2 / 3), abs=1e-4)
    with pytest.raises(ValueError, match=r"bidders: expected 3 .* got 2"):
        expected_outcome(AuctionModel(3, uniform_valuations()), table)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["first_price", "second_price", "all_pay"])
def test_results_of_uneven_tables_are_those_of_many_draws(rule):
    model = AuctionModel(3, tabulate(ValuationSettings("beta", alpha=2, beta=1)), rule, 0.2)
    shapes = (lambda v: 0.9 * v, lambda v: v**2, lambda v: 0.7 * v)
    result = expected_outcome(model, [bid_function(model, shape) for shape in shapes])
    values = model.valuations.quantile(np.random.default_rng(3).random((400000, 3)))
    bids = np.stack([shape(values[:, i]) for i, shape in enumerate(shapes)], axis=1)
    counted = np.where(bids >= 0.2, bids, -1)
    sold, winner = counted.max(axis=1) >= 0, counted.argmax(axis=1)
    best, second = np.sort(counted, axis=1)[:, [2, 1]].T
    paid = {"first_price": best, "second_price": np.maximum(second, 0.2), "all_pay": counted.clip(0).sum(axis=1)}[rule]
    assert result.revenue == pytest.approx((paid * sold).mean(), abs=2e-3)
    won = values[np.arange(len(values)), winner] * sold
    assert result.efficiency == pytest.approx(won.mean() / values.max(axis=1).mean(), abs=2e-3)
    assert result.highest_wins == pytest.approx((sold & (won == values.max(axis=1))).mean(), abs=2e-3)


@pytest.mark.parametrize(("bad", "message"), [((1, 0.0), "bidders must be at least 2"), ((2, 1.5), "reserve must lie")])
def test_bad_markets_are_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        AuctionModel(bad[0], uniform_valuations(), reserve=bad[1])


@pytest.mark.parametrize("levels", [11, 21, 101])
def test_on_a_grid_equal_bids_tie(levels):
    """np.linspace(0, 1, 11)[3] is above 3/10: a best response there would win all ties against the same bid."""
    model = AuctionModel(2, uniform_valuations())
    for rival in range(levels - 1):
        bid = grid_bids(np.array(rival), levels)
        against = win_probability_against([bid_function(model, lambda values, bid=bid: np.full_like(values, bid))])
        value = np.array([bid + 0.4 / (levels - 1)])  # the next bid would lose money
        best = best_response(model, NEUTRAL, value, against, levels)
        assert best.utility == pytest.approx((value - bid) / 2)
        assert best.bids == bid
