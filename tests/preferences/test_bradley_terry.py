"""Strengths from pairs: against closed forms, against Hunter's iteration, and against simulation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.preferences import bradley_terry
from coterie.preferences.bradley_terry import Games, chances, fit, fit_games, intervals
from helpers.small_worlds import generator


def played(strengths, games, seed):
    """Wins `[K, K]` of a round robin with so many games of every pair."""
    chance, random = chances(np.array(strengths)), generator(seed)
    wins = np.zeros(chance.shape)
    for i in range(len(wins)):
        for j in range(i):
            wins[i, j] = random.binomial(games, chance[i, j])
            wins[j, i] = games - wins[i, j]
    return wins


def test_two_items_are_log_odds_apart_with_the_binomial_error():
    strengths, errors = fit(np.array([[0.0, 30], [10, 0]]), prior=0.0)
    assert strengths[0] - strengths[1] == pytest.approx(np.log(3), abs=1e-10)
    assert strengths.sum() == pytest.approx(0)
    assert 2 * errors == pytest.approx(np.sqrt(1 / 30 + 1 / 10), abs=1e-10)  # the error of a log odds; halves here


def test_the_prior_counts_as_games_won_and_lost():
    wins = np.array([[0.0, 5], [0, 0]])
    strengths, errors = fit(wins)
    p = bradley_terry.PRIOR
    assert strengths[0] - strengths[1] == pytest.approx(np.log((5 + p) / p))
    assert 2 * errors[0] == pytest.approx(np.sqrt(1 / (5 + p) + 1 / p))
    more = fit(wins, prior=2.0).strengths
    assert more[0] - more[1] == pytest.approx(np.log(7 / 2))


def test_ties_are_half_wins():
    tied = fit(np.array([[0.0, 2.5], [2.5, 0]]))
    assert tied.strengths == pytest.approx([0, 0], abs=1e-12)
    assert fit(np.array([[0.0, 3.5], [1.5, 0]]), prior=0).strengths[0] == pytest.approx(np.log(3.5 / 1.5) / 2)


def test_the_fit_is_where_hunters_iteration_stops():
    """Hunter 2004, eq. 3: γᵢ ← Wᵢ / Σⱼ Nᵢⱼ / (γᵢ + γⱼ)."""
    wins = played([1.0, 0.2, -0.4, -1.5, 0.7], 12, 3) + 0.5 * (1 - np.eye(5))
    weights = np.ones(5)
    for _ in range(5000):
        weights = wins.sum(axis=1) / ((wins + wins.T) / (weights[:, None] + weights[None, :])).sum(axis=1)
        weights /= np.exp(np.log(weights).mean())
    assert fit(wins, prior=0).strengths == pytest.approx(np.log(weights), abs=1e-8)


@pytest.mark.slow
def test_intervals_hold_the_truth_as_often_as_they_say():
    truth = np.array([0.9, 0.3, -0.2, -1.0])
    held = []
    for seed in range(300):
        low, high = intervals(fit(played(truth, 25, seed)))
        held.append((low <= truth) & (truth <= high))
    assert 0.93 <= np.mean(held) <= 0.975
    wide = [intervals(fit(played(truth, 25, seed)), 0.5) for seed in range(300)]
    assert 0.45 <= np.mean([(low <= truth) & (truth <= high) for low, high in wide]) <= 0.56


def shared_games(seed, items=3, episodes=4, games=40):
    """Games between episodes of items; a game is decided by what its episodes are worth."""
    random = generator(seed)
    worth = random.normal(size=(items, episodes))
    sides = np.array([random.permutation(items)[:2] for _ in range(games)])
    drawn = random.integers(0, episodes, (games, 2))
    score = (worth[sides[:, 0], drawn[:, 0]] > worth[sides[:, 1], drawn[:, 1]]).astype(float)
    return Games(sides, sides * episodes + drawn, score)


def test_games_with_a_common_draw_are_not_independent():
    """Aronow et al. 2015, eq. 3: Σ over pairs of games that share a draw, the games themselves included."""
    games = shared_games(0)
    found = fit_games(games, 3)
    wins = np.zeros((3, 3))
    for (i, j), score in zip(games.items, games.score, strict=True):
        wins[i, j] += score
        wins[j, i] += 1 - score
    plain = fit(wins)
    assert found.strengths == pytest.approx(plain.strengths, abs=1e-12)
    chance, more = chances(plain.strengths), wins + bradley_terry.PRIOR / 2 * (1 - np.eye(3))
    slope = np.zeros((len(games.score), 3))
    for row, ((i, j), score) in enumerate(zip(games.items, games.score, strict=True)):
        slope[row, i], slope[row, j] = score - chance[i, j], chance[i, j] - score
    weight = (more + more.T) * chance * chance.T
    spread = np.linalg.pinv(np.diag(weight.sum(axis=1)) - weight)
    common = (games.draws[:, None, :, None] == games.draws[None, :, None, :]).any(axis=(2, 3))
    robust = np.sqrt(np.diag(spread @ slope.T @ common @ slope @ spread))
    assert found.errors == pytest.approx(np.maximum(robust, plain.errors), abs=1e-10)
    assert (found.errors > 1.2 * plain.errors).any()


def test_errors_are_never_below_those_of_independent_games():
    games = shared_games(1, episodes=1000)
    alone = games._replace(draws=np.arange(80).reshape(40, 2))
    for one in (games, alone, games._replace(score=np.full(40, 0.5))):
        wins = np.zeros((3, 3))
        np.add.at(wins, tuple(one.items.T), one.score)
        np.add.at(wins, tuple(one.items.T[::-1]), 1 - one.score)
        assert (fit_games(one, 3).errors >= fit(wins).errors - 1e-12).all()
    assert fit_games(alone, 3).errors == pytest.approx(fit_games(games, 3).errors, rel=0.1)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 7), st.integers(0, 10_000))
def test_order_changes_nothing_and_mirrored_wins_change_the_sign(count, seed):
    random = generator(seed)
    wins = random.integers(0, 5, (count, count)).astype(float)
    np.fill_diagonal(wins, 0)
    strengths, errors = fit(wins)
    order = random.permutation(count)
    again = fit(wins[np.ix_(order, order)])
    assert again.strengths == pytest.approx(strengths[order], abs=1e-7)
    assert again.errors == pytest.approx(errors[order], abs=1e-7)
    assert fit(wins.T).strengths == pytest.approx(-strengths, abs=1e-7)


def test_items_that_never_met_are_refused_without_a_prior_and_uncertain_with_one():
    apart = np.zeros((4, 4))
    apart[0, 1] = apart[1, 0] = apart[2, 3] = apart[3, 2] = 10
    with pytest.raises(ValueError, match="never met"):
        fit(apart, prior=0)
    strengths, errors = fit(apart)
    assert strengths == pytest.approx(0, abs=1e-9)
    met = fit(10 * (1 - np.eye(4)))
    assert (errors > 3 * met.errors).all()


def test_the_undefeated_stay_finite():
    ladder = 50.0 * np.triu(np.ones((6, 6)), 1)
    strengths, errors = fit(ladder)
    assert np.isfinite(strengths).all()
    assert np.isfinite(errors).all()
    assert (np.diff(strengths) < 0).all()
    with pytest.raises(ValueError, match="never lost"):
        fit(ladder, prior=0)


def test_chances_are_those_of_the_model():
    chance = chances(np.array([2.0, 0.0, -800.0]))
    assert chance[0, 1] == pytest.approx(1 / (1 + np.exp(-2)))
    assert chance + chance.T == pytest.approx(1.0)
    assert chance[2, 0] == 0.0


@pytest.mark.parametrize(
    ("wins", "said"),
    [
        (np.zeros((2, 3)), "square"),
        (np.zeros((1, 1)), "at least two"),
        (np.array([[0, -1.0], [0, 0]]), "not below 0"),
        (np.array([[0, np.nan], [0, 0]]), "finite"),
        (np.eye(2), "itself"),
    ],
)
def test_what_is_no_table_of_wins_is_refused(wins, said):
    with pytest.raises(ValueError, match=said):
        fit(wins)


def test_levels_and_priors_out_of_range_are_refused():
    found = fit(np.array([[0.0, 1], [1, 0]]))
    with pytest.raises(ValueError, match="level"):
        intervals(found, 1.0)
    with pytest.raises(ValueError, match="prior"):
        fit(np.array([[0.0, 1], [1, 0]]), prior=-1)
