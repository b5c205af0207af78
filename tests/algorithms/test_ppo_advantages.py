"""Generalised advantages against numbers worked out by hand."""

import numpy as np
import pytest

from coterie.algorithms.ppo.advantages import advantages
from coterie.core.decisions import merge
from helpers.small_worlds import experience, generator


def scan(own, values, bootstrap=None, gamma=0.5, trace=0.5):
    """Advantages, returns and validity [T] of a single agent; `bootstrap`: values of what truncated rows see next."""
    values = np.array(values, np.float32).reshape(-1, 1, 1)
    after = own.at_next(values, np.zeros((0, 1), np.float32))
    for t, value in (bootstrap or {}).items():
        after[t] = value
    found = advantages(own, own.reward, values[:-1], after, gamma, trace)
    return [array[:, 0, 0].tolist() for array in (*found, own.valid)]


def test_three_steps_by_hand():
    own = experience([[1], [2], [4]])
    # δ2 = 4 + ½·8 − 3 = 5;  δ1 = 2 + ½·3 − 2 = 1.5;  δ0 = 1 + ½·2 − 1 = 1
    # A2 = 5;  A1 = 1.5 + ¼·5 = 2.75;  A0 = 1 + ¼·2.75 = 1.6875
    advantage, returns, valid = scan(own, [1, 2, 3, 8])
    assert advantage == [1.6875, 2.75, 5.0]
    assert returns == [2.6875, 4.75, 8.0]
    assert valid == [True] * 3


def test_the_value_after_the_last_row_is_the_next_one_not_the_last_again():
    assert scan(experience([[0]]), [3, 8])[0] == [0.5 * 8 - 3]


def test_termination_stops_both_value_and_trace():
    own = experience([[1], [2], [4]], terminated=[(1, 0)])
    # A2 = 5 as above;  A1 = 2 − 2 = 0;  A0 = 1 + ½·2 − 1 + ¼·0 = 1
    assert scan(own, [1, 2, 3, 8])[0] == [1.0, 0.0, 5.0]


def test_truncation_bootstraps_from_the_last_observation_not_the_next_episodes_first():
    own = experience([[1], [2], [4]], truncated=[(1, 0)])
    # A1 = 2 + ½·10 − 2 = 5, where 10 = V(final) and 3 = V(next episode's first);  A0 = 1 + ¼·5
    assert scan(own, [1, 2, 3, 8], {1: 10})[0] == [2.25, 5.0, 5.0]


def test_termination_ignores_the_bootstrap():
    own = experience([[1], [2]], terminated=[(1, 0)])
    assert scan(own, [0, 0, 9], {1: 10}, trace=1)[0] == [2.0, 2.0]


def test_idle_rows_are_stepped_over_and_gamma_counts_own_decisions():
    idle = experience([[1], [10], [20], [4]], active=[[1], [0], [0], [1]])
    # as if decisions 0 and 3 were neighbours, with reward 1 + 10 + 20 between them, discounted once
    close = experience([[31], [4]])
    advantage, returns, valid = scan(idle, [1, 77, 77, 3, 8])
    assert valid == [True, False, False, True]
    assert [advantage[0], advantage[3]] == scan(close, [1, 3, 8])[0]
    assert [returns[0], returns[3]] == scan(close, [1, 3, 8])[1]
    assert advantage[1:3] == returns[1:3] == [0.0, 0.0]


def test_an_end_while_idle_closes_the_decision_before_it():
    own = experience([[0], [-1], [5]], active=[[1], [0], [1]], terminated=[(1, 0)])
    # the loser's last move gets the −1 that arrives on the opponent's
    assert scan(own, [0.25, 9, 0, 0])[0] == [-1.25, 0.0, 5.0]


def test_rewards_before_the_first_decision_of_an_episode_belong_to_nobody():
    own = experience([[1], [50], [3]], active=[[1], [0], [1]], terminated=[(0, 0)])
    assert scan(own, [0, 0, 0, 0])[0] == [1.0, 0.0, 3.0]


def test_an_open_decision_is_not_learned_from_but_closes_the_one_before():
    own = experience([[1], [2], [4]], acting=[False])
    advantage, returns, valid = scan(own, [1, 2, 3, 8])
    assert valid == [True, True, False]
    # δ1 = 2 + ½·3 − 2 = 1.5 without a trace from the open one;  A0 = 1 + ¼·1.5
    assert advantage == [1.375, 1.5, 0.0]
    assert returns[2] == 0.0


def test_agents_and_copies_do_not_mix():
    random = generator()
    shape = (9, 2, 3)
    parts = [
        experience(random.random((9, 3)), random.random((9, 3)) < 0.7, [(4, 1)], [(6, 2)], random.random(3) < 0.5)
        for _ in range(2)
    ]
    values, after = random.random((2, *shape), np.float32)
    both = merge(parts)
    whole = advantages(both, both.reward, values, after, 0.9, 0.8)
    for n, part in enumerate(parts):
        alone = advantages(
            part,
            part.reward,
            np.ascontiguousarray(values[:, n : n + 1]),
            np.ascontiguousarray(after[:, n : n + 1]),
            0.9,
            0.8,
        )
        for left, right in zip(whole, alone, strict=True):
            assert np.array_equal(left[:, n : n + 1], right)


@pytest.mark.parametrize("seed", range(20))
def test_valid_rows_are_the_closed_ones_and_trace_1_gives_discounted_sums(seed):
    random = generator(seed)
    active, ends = random.random((12, 1)) < 0.6, random.random((12, 1)) < 0.2
    cut = ends & (random.random((12, 1)) < 0.5)
    own = experience(
        random.random((12, 1)),
        active,
        [(t, 0) for t in np.flatnonzero(ends & ~cut)],
        [(t, 0) for t in np.flatnonzero(cut)],
        random.random(1) < 0.5,
    )
    values, boot = random.random(13, np.float32), random.random(12, np.float32)
    _, returns, valid = scan(own, values, {t: boot[t] for t in np.flatnonzero(own.truncated)}, gamma=0.9, trace=1.0)
    expected = np.zeros(12)
    for t in np.flatnonzero(valid):  # forwards and by definition, unlike the scan
        total, factor, s = 0.0, 1.0, t
        while True:
            total += factor * own.reward[s, 0, 0]
            factor *= 0.9
            if own.ends[s, 0, 0]:
                total += factor * boot[s] * own.truncated[s, 0, 0]
                break
            s = own.next[s, 0, 0]
            if s == 12 or not valid[s]:  # must act again, or waits for the outcome: its value stands in
                total += factor * values[s]
                break
        expected[t] = total
    assert np.allclose(returns, expected, atol=1e-5)
