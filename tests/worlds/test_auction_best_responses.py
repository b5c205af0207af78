"""The worth of bids: curves, chances, best responses and measures, by hand and beside the world itself."""

import numpy as np
import pytest

from coterie.preferences.prospect import NEUTRAL, Prospect, lottery, power
from coterie.worlds.auction.best_responses import (
    Curve,
    Market,
    against,
    against_samples,
    best_response,
    curve,
    distance,
    interim,
    result,
    utility_loss,
)
from coterie.worlds.auction.equilibria import symmetric, uniform
from coterie.worlds.auction.valuations import ValuationSettings, tabulate

TASTE = Prospect()
VALUES = np.array([0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0])


def half(values):
    return values / 2


def test_curves_know_how_bids_are_distributed():
    market = Market(2, uniform())
    bidder = curve(market, half)
    np.testing.assert_allclose(bidder([0.2, 0.9]), [0.1, 0.45], atol=1e-12)
    np.testing.assert_allclose(bidder.cdf(np.array([0, 0.1, 0.5, 0.7])), [0, 0.2, 1, 1], atol=1e-12)
    valley = curve(market, lambda v: np.abs(v - 0.5))  # bids uniform on [0, 0.5], though not rising
    np.testing.assert_allclose(valley.cdf(np.array([0.1, 0.25, 0.4])), [0.2, 0.5, 0.8], atol=2e-3)
    flat = Curve(np.array([0.0, 0.5, 1]), np.array([0.0, 0.5, 1]), np.array([0.0, 0.3, 0.3]))
    assert (flat.cdf(np.array(0.3), "left"), flat.cdf(np.array(0.3))) == (0.5, 1)


def test_chances_against_curves():
    bidder = curve(Market(2, uniform()), half)
    np.testing.assert_allclose(against([bidder] * 3)(np.array([0.1, 0.25, 0.6])), [0.2**3, 0.5**3, 1], atol=1e-12)


@pytest.mark.parametrize("rivals", [1, 2, 3, 4, 7])
def test_ties_are_won_by_lot(rivals):
    same = Curve(np.array([0.0, 1]), np.array([0.0, 1]), np.array([0.3, 0.3]))
    np.testing.assert_allclose(against([same] * rivals)(np.array([0.29, 0.3, 0.31])), [0, 1 / (rivals + 1), 1])
    seen = against_samples(np.full((5, rivals), 0.3))
    np.testing.assert_allclose(seen(np.array([0.29, 0.3, 0.31])), [0, 1 / (rivals + 1), 1])


def test_chances_against_samples_by_hand():
    chance = against_samples(np.array([[0.1, 0.2], [0.5, 0.5], [0.4, 0.1], [0.4, 0.0]]))
    np.testing.assert_allclose(
        chance(np.array([0.15, 0.2, 0.3, 0.4, 0.5, 0.6])), [0, 1 / 8, 0.25, 0.5, 0.75 + 1 / 12, 1]
    )
    with pytest.raises(ValueError, match=r"shape \[M, R\]"):
        against_samples(np.zeros(3))


def test_interim_values_by_hand():
    chance = against([curve(Market(2, uniform()), half)])
    first, pay, second = (Market(2, uniform(), rule, 0.1) for rule in ("first_price", "all_pay", "second_price"))
    assert interim(first, NEUTRAL, 0.8, 0.3, chance) == pytest.approx(0.6 * 0.5)
    assert interim(first, NEUTRAL, 0.8, 0.05, chance) == 0  # below the reserve
    assert interim(first, TASTE, 0.8, 0.3, chance) == pytest.approx(float(lottery(TASTE, 0.5, 0, 0.6)))
    assert interim(first, TASTE, 0.2, 0.3, chance) == pytest.approx(float(lottery(TASTE, 0, -0.1, 0.4)))
    assert interim(pay, NEUTRAL, 0.8, 0.3, chance) == pytest.approx(0.6 * 0.8 - 0.3)
    assert interim(pay, TASTE, 0.8, 0.3, chance) == pytest.approx(float(lottery(TASTE, 0.5, -0.3, 0.6)))
    assert interim(pay, NEUTRAL, 0.8, 0.05, chance) == 0
    # rivals' bids are uniform on [0, 0.5]: pay 0.1 with chance 0.2, else a number between 0.1 and 0.3
    assert interim(second, NEUTRAL, 0.8, 0.3, chance) == pytest.approx(0.2 * 0.7 + 0.4 * 0.6, abs=1e-5)
    staying = interim(first, Prospect(reference=0.2), 0.5, 0.0, chance)
    assert staying == pytest.approx(-2.25 * 0.2**0.88)


@pytest.mark.parametrize("taste", [NEUTRAL, power(0.6), TASTE])
def test_best_response_to_a_uniform_rival(taste):
    """Rivals bid uniformly on [0, 1]: maximise w(b) (v − b)^α, here by a search of its own."""
    market = Market(2, uniform())
    found = best_response(market, taste, VALUES, against([curve(market, lambda v: v)]))
    fine = np.linspace(0, 1, 200001)
    for v, bid, worth in zip(VALUES, *found, strict=True):
        all_worth = lottery(taste, np.maximum(v - fine, 0), 0.0, fine) * (fine <= v)
        assert worth == pytest.approx(all_worth.max(), abs=1e-8)
        assert bid == pytest.approx(fine[all_worth.argmax()], abs=1e-4 if v else 1)
    if taste == NEUTRAL:
        np.testing.assert_allclose(found.bids, VALUES / 2, atol=1e-5)


def test_best_response_to_samples_is_that_to_their_curve():
    market, random = Market(3, uniform()), np.random.default_rng(0)
    rivals = random.random((200000, 2)) * 2 / 3
    found = best_response(market, NEUTRAL, VALUES[1:], against_samples(rivals))
    np.testing.assert_allclose(found.bids, VALUES[1:] * 2 / 3, atol=0.02)
    np.testing.assert_allclose(found.worth, VALUES[1:] ** 3 / 3, atol=2e-3)


def test_best_response_on_a_grid_of_bids():
    """One rival bids 0, 0.5 or 1, each as likely; at a tie a lot decides."""
    rivals = np.array([[0.0], [0.5], [1.0]])
    found = best_response(Market(2, uniform()), NEUTRAL, np.array([0.2, 0.9]), against_samples(rivals), bid_levels=3)
    np.testing.assert_array_equal(found.bids, [0, 0.5])
    np.testing.assert_allclose(found.worth, [0.2 / 6, 0.4 * 0.5])


@pytest.mark.parametrize("taste", [NEUTRAL, TASTE, Prospect(reference=0.2)])
def test_truth_is_best_at_second_prices_whatever_the_taste(taste):
    market = Market(2, uniform(), "second_price")
    chance = against([curve(market, lambda v: v**2)])
    truth = best_response(market, taste, VALUES, chance)
    np.testing.assert_array_equal(truth.bids, VALUES)
    others = interim(market, taste, VALUES[:, None], np.linspace(0, 1, 101), chance)
    assert (truth.worth >= others.max(axis=1) - 2e-3).all()  # prices are in steps


def test_staying_away_is_a_response():
    market = Market(2, uniform(), reserve=0.4)
    found = best_response(market, NEUTRAL, np.array([0.2, 0.6]), against([symmetric(market)]))
    assert found.bids[0] == 0
    assert found.worth[0] == 0
    assert found.bids[1] >= 0.4


def test_the_reference_moves_the_best_response():
    """Who counts on 0.2 has losing to fear, and bids more."""
    market = Market(2, uniform())
    chance = against([symmetric(market)])
    plain, hoping = (best_response(market, Prospect(reference=r), np.array([0.4]), chance) for r in (0.0, 0.2))
    assert hoping.bids[0] > plain.bids[0] + 0.02
    assert hoping.worth[0] < 0


# Measures -----------------------------------------------------------------------------------------------


def test_distance_is_a_root_mean_square():
    assert distance(np.array([0.1, 0.5]), np.array([0.1, 0.2])) == pytest.approx(np.sqrt(0.09 / 2))
    assert distance(np.array([0.1, 0.5]), np.array([0.1, 0.2]), np.array([3, 1])) == pytest.approx(np.sqrt(0.09 / 4))
    assert distance(np.array([0.3]), np.array([0.3])) == 0


def test_utility_loss_in_closed_form():
    """Against v/2, bidding c·v earns 2c (1 − c) / 3 for c ≤ 1/2: 1/6 in equilibrium."""
    market = Market(2, uniform())
    ideal = symmetric(market)
    chance = against([ideal])
    for c in (0.2, 0.4, 0.5):
        low = curve(market, lambda v, c=c: c * v)
        told = utility_loss(market, NEUTRAL, low, chance, ideal)
        assert told.worth == pytest.approx(2 * c * (1 - c) / 3, abs=1e-5)
        assert told.ideal == pytest.approx(1 / 6, abs=1e-5)
        assert told.absolute == pytest.approx(1 / 6 - 2 * c * (1 - c) / 3, abs=1e-5)
        assert told.relative == pytest.approx(1 - 4 * c * (1 - c), abs=1e-4)
        best = utility_loss(market, NEUTRAL, low, chance)
        assert best.absolute == pytest.approx(told.absolute, abs=1e-6)


def test_results_in_closed_form():
    """One truthful bidder and one who bids half: the former wins with v > w / 2."""
    market = Market(2, uniform())
    table = [curve(market, lambda v: v), curve(market, half)]
    told = result(market, table)
    assert told.revenue == pytest.approx(1 / 24 + 1 / 2, abs=1e-5)  # E max(V, W / 2)
    assert told.highest_wins == pytest.approx(0.75, abs=1e-4)
    assert told.efficiency == pytest.approx((1 / 2 - 1 / 24 + 1 / 6) / (2 / 3), abs=1e-4)
    with pytest.raises(ValueError, match="3 bidders, got 2 curves"):
        result(Market(3, uniform()), table)


@pytest.mark.parametrize("rule", ["first_price", "second_price", "all_pay"])
def test_results_of_uneven_tables_are_those_of_many_draws(rule):
    market = Market(3, tabulate(ValuationSettings("beta", alpha=2, beta=1)), rule, 0.2)
    shapes = (lambda v: 0.9 * v, lambda v: v**2, lambda v: 0.7 * v)
    told = result(market, [curve(market, shape) for shape in shapes])
    values = market.valuations.quantile(np.random.default_rng(3).random((400000, 3)))
    bids = np.stack([shape(values[:, i]) for i, shape in enumerate(shapes)], axis=1)
    counted = np.where(bids >= 0.2, bids, -1)
    sold, winner = counted.max(axis=1) >= 0, counted.argmax(axis=1)
    best, second = np.sort(counted, axis=1)[:, [2, 1]].T
    paid = {"first_price": best, "second_price": np.maximum(second, 0.2), "all_pay": counted.clip(0).sum(axis=1)}[rule]
    assert told.revenue == pytest.approx((paid * sold).mean(), abs=2e-3)
    won = values[np.arange(len(values)), winner] * sold
    assert told.efficiency == pytest.approx(won.mean() / values.max(axis=1).mean(), abs=2e-3)
    assert told.highest_wins == pytest.approx((sold & (won == values.max(axis=1))).mean(), abs=2e-3)


@pytest.mark.parametrize(("bad", "message"), [((1, 0.0), "bidders must be at least 2"), ((2, 1.5), "reserve must lie")])
def test_bad_markets_are_refused(bad, message):
    with pytest.raises(ValueError, match=message):
        Market(bad[0], uniform(), reserve=bad[1])
