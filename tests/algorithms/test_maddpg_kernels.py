"""MADDPG's compiled updates are those of autograd."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from coterie.algorithms.maddpg import losses
from coterie.algorithms.maddpg.losses import expected_slopes
from coterie.core.types import Box, Discrete
from coterie.nn import kernels
from coterie.preferences.standard import CPT, CPTSettings, CVaR, CVaRSettings, MeanVariance, MeanVarianceSettings
from helpers.maddpg import (
    aligned,
    at_one_table,
    by_agent,
    case_id,
    compiled,
    deterministic,
    learn,
    make_learner,
    random_decisions,
    relax,
    weights,
)
from helpers.small_worlds import ACTIONS, generator, group_spec

PLACE_FIELDS = ("parameters", "agents", "observation")
RISKS = (
    CPT(CPTSettings(alpha=0.7, reference=0.2)),
    CVaR(CVaRSettings(level=0.3)),
    MeanVariance(MeanVarianceSettings(aversion=0.5)),
)
POLICY_FIELDS = (
    "squash",
    "hidden",
    "activation",
    "identity",
    "normalize_observations",
    "encoder",
    "random_feature_init",
)


def cases():
    """An eighth of all combinations, chosen so that any three choices meet in every way."""
    for a, b, c, d, e in itertools.product([0, 1], repeat=5):
        f, g, h = a ^ b ^ c, b ^ c ^ d, c ^ d ^ e
        yield {
            "parameters": ("shared", "individual")[a],
            "action": ("box", "discrete")[b],
            "critic": {"centralized": not c, "twin": bool(d), "hidden": (None, (7, 9))[g]},
            "policy_delay": (1, 3)[e],
            "target": ({"tau": 0.1}, {"tau": 0.03, "noise": 0.1})[f],
            "masked": bool(b and h),
            "activation": ("relu", "tanh")[g],
        }


def odd_cases():
    yield {"action": "box", "hidden": (8, 12, 7)}
    yield {"action": "box", "squash": "clip"}
    yield {"action": "box", "squash": "clip", "parameters": "individual", "critic": {"centralized": False}}
    yield {"action": "multi-discrete", "choices": {"temperature": 0.5}}
    yield {"action": "multi-discrete", "parameters": "individual", "critic": {"centralized": False}}
    yield {"action": "discrete", "choices": {"temperature": 2.0}, "max_grad_norm": 0.01}
    for entropy in ({}, {"entropy_start": 0.3, "entropy_end": 0.1}):
        choices = {"gradient": "expected"} | entropy
        yield {"action": "discrete", "choices": choices, "masked": True}
        yield {"action": "multi-discrete", "choices": choices, "critic": {"quantiles": 3}}
        yield {"action": "multi-discrete", "choices": choices, "parameters": "individual", "policy_delay": 2}
        yield {"action": "discrete", "choices": choices, "critic": {"centralized": False, "hurdle": True}, "zeros": 0.5}
    for parameters in ("shared", "individual"):
        for choices in ({}, {"gradient": "expected"}):
            critic = {"own_first": True, "twin": True}
            yield {"action": "discrete", "parameters": parameters, "agents": 3, "critic": critic, "choices": choices}
        yield {"action": "box", "parameters": parameters, "agents": 3, "critic": {"own_first": True}}
    yield {"action": "box", "batch_size": 1}
    yield {"action": "box", "batch_size": 700}
    yield {"action": "discrete", "agents": 1}
    yield {"action": "box", "identity": False, "normalize_observations": False, "critic": {"centralized": False}}
    yield {"action": "box", "observation": Box((2, 4, 4), 0, 255, "uint8"), "encoder": "mlp"}
    yield {"action": "box", "critic": {"learning_rate": 3e-3}, "learning_rate_schedule": "linear"}
    yield {"action": "box", "activation": "tanh", "critic": {"activation": "relu"}}
    yield {"action": "box", "critic": {"quantiles": 5}}
    yield {"action": "discrete", "critic": {"quantiles": 2, "twin": True}, "parameters": "individual"}
    yield {"action": "box", "critic": {"hurdle": True}}
    yield {"action": "discrete", "critic": {"hurdle": True, "twin": True}, "parameters": "individual"}
    for zeros in (0.9, 1.0):  # of rewards
        yield {"action": "box", "critic": {"hurdle": True}, "scale_by_std": True, "zeros": zeros}
        yield {"action": "box", "critic": {"hurdle": True}, "zeros": zeros, "parameters": "individual", "gamma": 0}
        yield {"action": "box", "critic": {"hurdle": True, "quantiles": 3}, "scale_by_std": True, "zeros": zeros}
    for critic in ({"hurdle": True}, {"quantiles": 3}, {"hurdle": True, "quantiles": 4}):
        yield {"action": "box", "critic": critic, "scale_by_std": True}
        yield {"action": "discrete", "critic": critic, "scale_by_std": True, "parameters": "individual"}
    for risk in RISKS:
        yield {"action": "box", "gamma": 0, "critic": {"centralized": False, "quantiles": 4}, "preference": risk}
        for count in (1, 3):
            critic = {"centralized": False, "hurdle": True, "quantiles": count}
            yield {"action": "box", "gamma": 0, "critic": critic, "preference": risk, "zeros": 0.5}
    yield {"action": "box", "random_feature_init": 2.0, "critic": {"random_feature_init": 1.0}}
    yield {"action": "box", "random_feature_init": 2.0, "normalize_observations": False, "parameters": "individual"}
    yield {
        **{"action": "discrete", "gamma": 0, "preference": RISKS[0], "parameters": "individual"},
        "critic": {"centralized": False, "twin": True},
    }


@pytest.mark.slow
@pytest.mark.parametrize("case", [*cases(), *odd_cases()], ids=case_id)
def test_the_compiled_path_equals_autograd(case):
    case = dict(case)
    masked, action, zeros = case.pop("masked", False), ACTIONS[case.pop("action")], case.pop("zeros", 0.0)
    where = group_spec(action, **{k: case.pop(k) for k in PLACE_FIELDS if k in case})
    other = group_spec(Discrete(3), group="others", agents=2)
    other, where = at_one_table(other, where)
    fields = {k: case.pop(k) for k in POLICY_FIELDS if k in case}
    settings = {"learning_rate": 1e-3, "gamma": 0.9, "updates_per_step": 0.2} | case
    fast, slow = (
        make_learner(where, policy=deterministic(where, compiled=c, **fields), **settings) for c in (True, False)
    )
    assert (compiled(fast), compiled(slow)) == (True, False)
    for one in (fast, slow):
        one.policy.net.out.weight.data *= 50
        one.actor.target_flat.array *= 1.5
    first, stranger = weights(fast), make_learner(other)
    for iteration in range(3):  # the later ones with observations normalised
        own, theirs = random_decisions(slow, iteration, masked), random_decisions(stranger, iteration + 9)
        paid = np.random.default_rng(iteration).random(own.reward.shape) >= zeros
        own = dataclasses.replace(own, reward=own.reward * paid)
        table = {"others": aligned(theirs, own)}
        found = [learn(one, own, iteration, progress=0.3 * iteration, others=table) for one in (fast, slow)]
        assert found[0] == pytest.approx(found[1], abs=1e-5, rel=1e-4)
        assert found[0]["updates"] > 0
        for mine, theirs in zip((fast.actor, *fast.critics), (slow.actor, *slow.critics), strict=True):
            assert np.array_equal(mine.flat.steps, theirs.flat.steps)
            assert np.abs(mine.flat.array - theirs.flat.array).max() < 1e-5
            assert np.abs(mine.flat.mean - theirs.flat.mean).max() < 1e-5
            assert np.abs(mine.target_flat.array - theirs.target_flat.array).max() < 1e-5
    assert np.abs(weights(fast) - first).max() > 1e-3  # something was learned


def test_without_scipy_everything_goes_through_pytorch(monkeypatch):
    monkeypatch.setattr(kernels, "available", lambda: False)
    one = make_learner()
    assert not compiled(one)
    learn(one, random_decisions(one))


# Actions and slopes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("parameters", ["shared", "individual"])
@pytest.mark.parametrize(
    "fields", [{"action": "discrete"}, {"action": "multi-discrete"}, {}, {"squash": "clip"}], ids=str
)
def test_actions_and_slopes_are_those_of_relaxed_choices_and_squashed_numbers(fields, parameters):
    fields = dict(fields)
    where = group_spec(ACTIONS[fields.pop("action", "box")], agents=2, parameters=parameters)
    one, random, rows = make_learner(where, policy=deterministic(where, **fields)), generator(4), 6
    policy, layout, width = one.policy, one.group_layout(), one.policy.size
    sets, decisions = where.parameter_sets, 2 * rows
    out = random.standard_normal((sets, decisions // sets, width)).astype(np.float32) * 1.5
    gumbel = random.gumbel(size=(rows, 2, width)).astype(np.float32)
    legal = random.random((9, 2 * width)) < 0.6
    legal[
        :, [agent * width + start for agent in (0, 1) for start in np.cumsum([0, *policy.choices[:-1]]).astype(int)]
    ] = True
    index, weight = random.integers(9, size=rows), random.random(decisions).astype(np.float32)
    action, soft, slopes = (np.empty((decisions, width), np.float32) for _ in range(3))
    flat, how = out.reshape(decisions, width), (policy.choices, policy.clipped, 0.7)
    losses.policy_actions.over(decisions, layout, flat, index, legal, gumbel, *how, action, soft)
    wide = random.standard_normal((decisions, one.action_numbers)).astype(np.float32)
    losses.output_slopes.over(decisions, layout, flat, wide, action, soft, weight, *how, slopes)

    said = torch.from_numpy(out).requires_grad_()
    allowed = torch.from_numpy(legal[index].reshape(rows, 2, width))
    expected = relax(policy, by_agent(one, said), allowed, torch.from_numpy(gumbel), 0.7)
    found = by_agent(one, torch.from_numpy(action.reshape(out.shape)))
    assert np.allclose(found, expected.detach(), atol=1e-6)
    own = by_agent(one, torch.from_numpy(wide.reshape(*out.shape[:2], -1)))
    own = torch.stack([own[:, a, a * width : (a + 1) * width] for a in (0, 1)], dim=1)  # of its own action
    loss = (own * expected).sum()
    if policy.head is not None:
        loss = loss + 1e-3 * (torch.from_numpy(weight.reshape(out.shape[:2])) * (said**2).mean(-1)).sum()
    loss.backward()
    assert np.allclose(slopes, said.grad.reshape(slopes.shape), atol=1e-5)


# The expectation over choices ---------------------------------------------------------------------------


@pytest.mark.parametrize("entropy", [0.0, 0.4])
def test_expected_slopes_are_those_of_the_expectation_by_autograd(entropy):
    random, choices = generator(3), np.array([3, 2])
    logits, values = (random.standard_normal((6, 5)).astype(np.float32) for _ in range(2))
    legal = random.random((6, 5)) < 0.7
    legal[:, [0, 3]] = True
    weight = random.random(6).astype(np.float32)
    out = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    expected = objective = 0.0
    for part in (slice(0, 3), slice(3, 5)):
        log_prob = torch.log_softmax(out[:, part].masked_fill(~torch.from_numpy(legal[:, part]), -1e9), dim=-1)
        value = (log_prob.exp() * torch.from_numpy(values[:, part])).sum(-1)
        expected += float((torch.from_numpy(weight) * value.detach()).sum()) / 2
        spread = -(log_prob.exp() * log_prob).sum(-1)
        objective = objective + (torch.from_numpy(weight) * (value + entropy * spread)).sum()
    (-objective).backward()
    slopes = logits.copy()
    assert expected_slopes(slopes, legal, values, weight, choices, entropy) == pytest.approx(expected, abs=1e-5)
    assert np.allclose(slopes, out.grad.numpy(), atol=1e-6)
    assert (slopes[~legal] == 0).all()
