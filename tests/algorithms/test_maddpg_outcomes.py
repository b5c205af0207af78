"""Told distributions: their loss is that of quantile regression at all levels, and it finds the truth."""

import numpy as np
import pytest
import torch

from coterie.algorithms.maddpg.outcomes import Outcomes, lowest, miss, relative, tell, unit, worth
from coterie.core.group import RiskParameters
from coterie.preferences.prospect import Prospect, value

ONE = torch.ones(())


def told(outcomes, chances):
    return Outcomes(torch.tensor([[outcomes]], dtype=torch.float64), torch.tensor([[chances]], dtype=torch.float64))


def test_the_loss_is_that_of_quantile_regression_at_all_levels():
    logits = np.log([0.2, 0.5, 0.3]).tolist()
    ours, aim = torch.tensor([[[*logits, 0.5, 2.0, 3.0]]], dtype=torch.float64), 1.25
    levels = (np.arange(20_000) + 0.5) / 20_000
    quantile = np.array([0.5, 2.0, 3.0])[np.searchsorted([0.2, 0.7], levels)]
    pinball = (np.where(aim > quantile, levels, levels - 1) * (aim - quantile)).mean()
    sure = told([aim, 0, 0], [1.0, 0, 0])
    assert float(miss(ours, sure, ONE)) == pytest.approx(2 * pinball, abs=1e-4)


def test_one_outcome_is_missed_by_half_the_square():
    assert float(miss(torch.tensor([[[3.0]]]), told([1.0], [1.0]), ONE)) == 2


def test_the_loss_is_least_at_the_truth():
    """A lottery seen by samples is told as it is: outcomes and chances."""
    random = np.random.default_rng(0)
    out = torch.tensor([[[0.0, 0.0, -0.1, 0.1]]], requires_grad=True)
    best = torch.optim.Adam([out], lr=0.02)
    for _ in range(1500):
        seen = torch.tensor(np.where(random.random(64) < 0.3, 1.0, 0.0), dtype=torch.float32).view(64, 1, 1)
        aim = Outcomes(torch.cat([seen, torch.zeros_like(seen)], -1), torch.tensor([1.0, 0.0]).expand(64, 1, 2))
        loss = miss(out.expand(64, -1, -1), aim, ONE).mean()
        best.zero_grad()
        loss.backward()
        best.step()
    found = tell(out.detach())
    assert found.outcome[0, 0].tolist() == pytest.approx([0, 1], abs=0.03)
    assert found.chance[0, 0].tolist() == pytest.approx([0.7, 0.3], abs=0.05)


def test_what_follows_is_discounted_and_an_end_is_certain():
    later = Outcomes(torch.tensor([[[1.0, 3.0]], [[1.0, 3.0]]]), torch.tensor([[[0.25, 0.75]], [[0.25, 0.75]]]))
    aim = later.after(torch.tensor([[[10.0]], [[20.0]]]), torch.tensor([[[0.5]], [[0.0]]]))
    assert aim.outcome.tolist() == [[[10.5, 11.5]], [[20.0, 20.0]]]
    assert aim.chance.tolist() == [[[0.25, 0.75]], [[1.0, 0.0]]]


def test_the_opinion_that_expects_less_is_believed_whole():
    one = Outcomes(torch.tensor([[[0.0, 9.0], [5.0, 5.0]]]), torch.tensor([[[0.9, 0.1], [0.5, 0.5]]]))
    other = Outcomes(torch.tensor([[[1.0, 2.0], [4.0, 5.0]]]), torch.tensor([[[0.5, 0.5], [0.5, 0.5]]]))
    low = lowest([one, other])
    assert low.outcome.tolist() == [[[0.0, 9.0], [4.0, 5.0]]]
    assert torch.equal(low.chance[0, 0], one.chance[0, 0])


def test_worth_and_its_gradient_reach_the_outputs():
    out = torch.tensor([[[0.3, -0.2, 0.5, -0.4, 0.2, 0.9]]], requires_grad=True)
    taste = Prospect(reference=0.1)
    judge = RiskParameters(taste.alpha, taste.beta, taste.loss_aversion, 0.1, taste.gamma_gains, taste.gamma_losses)

    def exact(array):
        lottery = tell(torch.from_numpy(array)[None, None])
        return float(value(taste.risk_parameters(), lottery.outcome[0, 0].numpy(), lottery.chance[0, 0].numpy()))

    found = worth(judge, tell(out))
    plain = out.detach().numpy()[0, 0].astype(float)
    assert float(found.detach()) == pytest.approx(exact(plain), abs=1e-4)
    found.sum().backward()
    for k in range(6):
        step = np.zeros(6)
        step[k] = 0.002
        assert float(out.grad[0, 0, k]) == pytest.approx((exact(plain + step) - exact(plain - step)) / 0.004, abs=0.01)


# Hurdles ----------------------------------------------------------------------------------------------------


def test_a_hurdle_is_nothing_or_with_some_chance_something():
    found = tell(torch.tensor([[[-2.0, 0.7]]]))
    chance = 1 / (1 + np.exp(2.0))
    assert found.outcome[0, 0].tolist() == pytest.approx([0, 0.7])
    assert found.chance[0, 0].tolist() == pytest.approx([1 - chance, chance])
    assert float(found.mean()) == pytest.approx(chance * 0.7)
    assert float(found.deviation()) == pytest.approx(0.7 * np.sqrt(chance * (1 - chance)))


def test_what_comes_behind_a_hurdle_may_be_one_of_several_amounts():
    found = tell(torch.tensor([[[-2.0, 0.0, np.log(3.0), 0.7, 0.5]]]))
    chance = 1 / (1 + np.exp(2.0))
    assert found.outcome[0, 0].tolist() == pytest.approx([0, 0.7, 0.5])
    assert found.chance[0, 0].tolist() == pytest.approx([1 - chance, chance / 4, chance * 3 / 4])


def test_amounts_behind_a_hurdle_are_learned_as_they_are_spread():
    """Nothing in half of all cases, else 1 or 4 with chances of 0.75 and 0.25: a mean would tell 1.75."""
    out = torch.tensor([[[0.5, 0.1, -0.1, 0.3, 2.0]]], requires_grad=True)
    best = torch.optim.Adam([out], lr=0.02)
    aim = Outcomes(torch.tensor([[[0.0, 1.0, 4.0]]]), torch.tensor([[[0.5, 0.375, 0.125]]]))
    amount = unit(aim, torch.ones(1, 1), (0, 1))
    for _ in range(3000):
        best.zero_grad()
        miss(out, aim, amount).sum().backward()
        best.step()
    found = tell(out.detach())
    assert found.outcome[0, 0].tolist() == pytest.approx([0, 1, 4], abs=0.05)
    assert found.chance[0, 0].tolist() == pytest.approx([0.5, 0.375, 0.125], abs=0.01)


def test_a_hurdle_misses_by_its_likelihood():
    out = torch.tensor([[[0.4, 0.5]], [[0.4, 0.5]], [[0.4, 0.5]]])
    aim = Outcomes(
        torch.tensor([[[0.8, 9.0]], [[0.0, 9.0]], [[1.0, 0.0]]]),
        torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]], [[0.25, 0.75]]]),
    )
    chance, amount = 1 / (1 + np.exp(-0.4)), 2.0
    far = [0.3**2, 0.0, 0.25 * 0.5**2]
    there = np.array([1.0, 0.0, 0.25])
    expected = -there * np.log(chance) - (1 - there) * np.log(1 - chance) + np.array(far) / (2 * amount)
    assert miss(out, aim, torch.tensor(amount))[:, 0].tolist() == pytest.approx(expected, abs=1e-6)


def test_amounts_are_measured_in_their_own_unit_stack_by_stack():
    aim = Outcomes(torch.tensor([[[3.0, 0.0], [1.0, 0.0]], [[0.0, 0.0], [2.0, 0.0]]]), torch.tensor([0.5, 0.5]))
    share = torch.full((2, 2), 0.5)
    assert unit(aim, share, (0, 1)).tolist() == [[pytest.approx((9 + 1 + 4) / 3)]]
    assert unit(aim, share, (0,)).tolist() == [[pytest.approx(9.0), pytest.approx(2.5)]]
    nothing = Outcomes(torch.zeros(2, 2, 2), torch.full((2, 2, 2), 0.5))
    assert unit(nothing, share, (0, 1)).tolist() == [[1.0]]


def test_a_rare_gain_is_told_in_proportion():
    """One in 500 is learned to within a fifth; by squared errors it would still be lost among those of one in two."""
    random = np.random.default_rng(0)
    out = torch.zeros(2, 2, requires_grad=True)
    best = torch.optim.Adam([out], lr=0.02)
    for _ in range(3000):
        won = torch.tensor(random.random((256, 2)) < [0.5, 0.002], dtype=torch.float32)
        outcome = torch.stack([won * torch.tensor([1.0, 0.05]), torch.zeros(256, 2)], dim=-1)
        aim = Outcomes(outcome, torch.tensor([1.0, 0.0]).expand(256, 2, 2))
        loss = miss(out.expand(256, 2, 2), aim, unit(aim, torch.ones(256, 2) / 512, (0, 1))).mean()
        best.zero_grad()
        loss.backward()
        best.step()
    found = tell(out.detach()[None])
    assert found.chance[0, :, 1].tolist() == pytest.approx([0.5, 0.002], rel=0.2)
    assert found.outcome[0, :, 1].tolist() == pytest.approx([1.0, 0.05], rel=0.05)


def test_relative_pulls_count_in_deviations():
    told = tell(torch.tensor([[[0.0, 1.0], [0.0, 0.01]], [[0.0, 0.0], [-9.0, 0.2]]]))
    share = torch.tensor([[0.25, 0.25], [0.25, 0.25]])
    pull, spread = relative(told, share, (0, 1)), told.deviation()
    assert spread[:, 0].tolist() == [0.5, 0.0]
    assert torch.allclose(pull * (spread + 0.02 * spread.mean()), spread.mean())
    assert float(pull[1, 0]) == pytest.approx(50, rel=1e-3)  # nothing is at stake: a bound
    nothing = tell(torch.zeros(1, 2, 2))
    assert relative(nothing, share[:1], (0, 1)).tolist() == [[1.0, 1.0]]
