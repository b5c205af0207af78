"""Advice: the executed action carries its true probability, and what is learned accounts for it."""

import dataclasses

import numpy as np
import pytest
import torch

from coterie.advice.advisor import AdviceSource, SourcedAdvisor
from coterie.core.advice import AskSettings, UseSettings
from coterie.core.group import Actor
from coterie.core.types import Advice, Discrete
from coterie.nn.advice import add_advice_slopes
from coterie.nn.distributions import Choices
from coterie.nn.log_probs import IMPOSSIBLE
from coterie.policies.network import OWN_LOG_PROB
from coterie.training.runner import Runner
from helpers.advisor import TABLE, advisor, grid, noted, played, seen
from helpers.ppo import compiled, make_learner, watch
from helpers.run import written
from helpers.small_worlds import Bandit, generator, joint, network, spec_in

ADVISE = "groups.team.advisor"


@pytest.fixture
def path(tmp_path):
    return written(tmp_path / "advised.yaml", TABLE)


def softmax(x):
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


# How it is followed: the executed action's own probability ------------------------------------------------------


def moment(mode, strength, legal=None, **settings):
    """One moment seen by 4,000 copies, its advice, and who decides."""
    world = grid(1)
    made, where = advisor(world, None, use={"mode": mode, "strength": strength}, smoothing=0.1)
    view = seen(world, where)
    mask = None if legal is None else np.tile(np.array(legal), (1, 2, 1))
    policy = network(where, **settings)
    memory = np.zeros((1, 2, policy.memory_size), np.float32) if policy.memory_size else None
    view = dataclasses.replace(view, mask=mask, memory=memory)
    policy.flat.array[:] *= 30  # outputs far from even
    view = made.advise(view, policy)
    given = {"observation": view.observation, "acting": view.acting, "mask": mask, "memory": memory}
    many = {name: None if array is None else np.repeat(array, 4000, axis=0) for name, array in given.items()}
    advice = Advice(*(np.repeat(array, 4000, axis=0) for array in view.advice))
    return policy, dataclasses.replace(view, **many, advice=advice), noted(view)


@pytest.mark.parametrize("settings", [{}, {"compiled": False}, {"memory": 4}])
@pytest.mark.parametrize("legal", [None, [True, False, True, True, True]])
def test_a_mixture_draws_and_tells_its_true_probability(legal, settings):
    policy, view, notes = moment("mixture", 0.3, legal, **settings)
    out = policy.forward(policy.pack(view.observation), view)[0][0]  # [A, K]
    out = out if legal is None else np.where(legal, out, -np.inf)
    mixed = 0.7 * softmax(out.astype(np.float64)) + 0.3 * notes[0, :, 1:]
    decision = policy.act(view)
    expected = np.log(np.take_along_axis(mixed, decision.action[0][:, None], axis=1))[:, 0]
    np.testing.assert_allclose(decision.log_prob[0], expected, atol=1e-5)
    drawn = (decision.action[..., None] == np.arange(5)).mean(axis=0)
    np.testing.assert_allclose(drawn, mixed, atol=0.04)
    assert np.abs(mixed - softmax(out)).max() > 0.1  # advice and policy are of different minds


def test_a_prior_is_added_to_the_logits():
    policy, view, notes = moment("prior", 2.0)
    out = policy.forward(policy.pack(view.observation), view)[0][0]
    bent = np.log(softmax(out + 2.0 * np.log(notes[0, :, 1:])))
    decision = policy.act(view)
    expected = np.take_along_axis(bent, decision.action[0][:, None], axis=1)[:, 0]
    np.testing.assert_allclose(decision.log_prob[0], expected, atol=1e-4)
    greedy = policy.act(dataclasses.replace(view, greedy=True))
    np.testing.assert_array_equal(greedy.action[0], bent.argmax(axis=1))


def test_a_hint_changes_what_the_actor_says():
    policy, view, notes = moment("hint", 1.0)
    assert policy.act(view).log_prob.shape == (4000, 2)
    shown, blind = (
        policy.act(dataclasses.replace(view, advice=a, greedy=True)).log_prob[0] for a in (view.advice, None)
    )
    assert not np.allclose(shown, blind)
    assert notes[0, 0, 0] == 1.0  # the flag that it was asked


@pytest.mark.parametrize("mode", ["mixture", "prior", "hint", "kl"])
def test_who_is_not_advised_decides_alone(mode):
    policy, view, _ = moment(mode, 0.5)
    nothing = Advice(*(np.zeros_like(array) for array in view.advice))
    random = (generator(3), generator(3))
    one, other = (
        policy.act(dataclasses.replace(view, advice=a, random=r)) for a, r in zip((nothing, None), random, strict=True)
    )
    np.testing.assert_allclose(one.log_prob.mean(), other.log_prob.mean(), atol=0.02)
    out = policy.forward(policy.packed_view(dataclasses.replace(view, advice=None)), view)[0]
    own = np.log(np.take_along_axis(softmax(out), one.action[..., None], axis=-1))[..., 0]
    np.testing.assert_allclose(one.log_prob, own, atol=1e-4)


def test_the_strength_goes_evenly_to_its_end():
    use = UseSettings("mixture", strength=0.8, final=0.2, until=0.5)
    assert [use.at(p) for p in (0.0, 0.25, 0.5, 1.0, None)] == pytest.approx([0.8, 0.5, 0.2, 0.2, 0.8])
    world = grid()
    made, where = advisor(world, None, use={"mode": "kl", "strength": 2.0, "until": 0.5})
    policy = network(where)
    found = [noted(made.advise(seen(world, where, progress=p), policy))[0, 0, 0] for p in (0.0, 0.25, 0.75)]
    np.testing.assert_array_equal(found, [2.0, 1.0, np.nan])  # in the end nobody is asked
    assert made.metrics()["advice/asked"] == 32


# What is learned ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [(), ("groups.team.policy.memory=4",), ("groups.team.parameters=individual",)])
@pytest.mark.parametrize("mode", ["mixture", "prior", "kl", "hint"])
def test_ratios_begin_at_one(path, mode, words):
    strength = 0.9 if mode == "mixture" else 3
    own, group = played(
        path, f"{ADVISE}.use.mode={mode}", f"{ADVISE}.use.strength={strength}", f"{ADVISE}.ask.fraction=0.5", *words
    )
    assert 0.2 < own.advice.given.mean() < 0.8
    found = group.learner.learn(own, joint(own), generator())
    assert found["kl"] < 1e-7
    assert found["clip_fraction"] == 0
    if mode != "kl":  # and they would not, were the advice forgotten
        silent = dataclasses.replace(own, advice=Advice(*(np.zeros_like(array) for array in own.advice)), trace=None)
        assert group.learner.learn(silent, joint(own), generator())["kl"] > 1e-4


def test_a_mixtures_ratios_are_to_the_mixture(path):
    own, group = played(path, f"{ADVISE}.use.mode=mixture", f"{ADVISE}.use.strength=0.4")
    share = UseSettings(strength=0.4).at(0.25)
    out = group.policy.forward(group.policy.pack(own.observation[0]), seen(grid(4), group.actor.group_spec))[0]
    mixed = (1 - share) * softmax(out.astype(np.float64)) + share * own.advice.probabilities[0]
    expected = np.log(np.take_along_axis(mixed, own.action[0][..., None], axis=-1))[..., 0]
    np.testing.assert_allclose(own.log_prob[0], expected, atol=1e-5)
    alone = np.log(np.take_along_axis(softmax(out), own.action[0][..., None], axis=-1))[..., 0]
    np.testing.assert_allclose(own.trace[OWN_LOG_PROB][0], alone, atol=1e-5)
    assert compiled(group.learner)
    found = group.learner.learn(own, joint(own), generator())
    assert found["kl"] < 1e-7
    assert found["clip_fraction"] == 0


def test_a_mixtures_actions_count_by_the_policys_own_probability():
    """So that means over actions are the policy's own: without weights the mean action is the mixture's."""
    world = Bandit(Discrete(2), lambda action: action * 0.0, num_envs=4096)
    made = SourcedAdvisor(AskSettings(), UseSettings("mixture", strength=0.6, final=0.6), 0.0, spec_in(world), Wrong())
    where = dataclasses.replace(spec_in(world), advice=made.advice_use)
    policy = network(where)
    one = make_learner(where, policy=policy)
    seen = watch(one)
    runner = Runner(world, [Actor(where, policy, advisor=made)], seed=0)
    own = runner.play(4, 0, 0.0).decisions["team"]
    own_probability = np.exp(policy.log_probs(runner.view(runner.actors[0]))[0, 0, 1])
    one.learn(own, joint(own), generator())
    weight, good = (np.concatenate([getattr(s.part, name)[0] for s in seen[:4]]) for name in ("importance", "action"))
    assert good.mean() == pytest.approx(0.4 * own_probability, abs=0.02)
    assert (weight * good).mean() == pytest.approx(own_probability, abs=0.02)
    assert weight.mean() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("words", [(), ("groups.team.parameters=individual",)])
def test_the_loss_has_the_same_slopes_on_the_compiled_path(path, words):
    """One step of each path from the same weights: Adam's first moment is a tenth of the gradient."""
    advised = (f"{ADVISE}.use.mode=kl", f"{ADVISE}.use.strength=3", f"{ADVISE}.ask.fraction=0.5", *words)
    gradients = []
    for path_compiled in (True, False):
        own, group = played(path, *advised)
        silent = dataclasses.replace(own, advice=Advice(*(np.zeros_like(array) for array in own.advice)))
        for experience in (own, silent):
            _, group = played(path, *advised, f"groups.team.policy.compiled={path_compiled}")
            group.learner.learn(experience, joint(experience), generator())
            gradients.append(group.policy.flat.mean.copy())
    fast, without, autograd, _ = gradients
    np.testing.assert_allclose(fast, autograd, atol=1e-6)
    assert np.abs(fast - without).max() > 1e-3


class Wrong(AdviceSource):
    """A source that always advises action 0."""

    def known(self, view, rows):
        return np.zeros(len(rows), np.int64)

    def weights(self, view, rows):
        return np.tile([1.0, 0.0], (len(rows), 1))


def bandit(strength, compiled=True, iterations=60, **settings):
    """P(good arm) of two, and the metrics of the last iteration, where action 1 pays 1 and action 0 is advised."""
    world = Bandit(Discrete(2), lambda action: (action == 1) * 1.0)
    where = spec_in(world)
    use = UseSettings("mixture", strength=strength, final=strength)
    made = SourcedAdvisor(AskSettings(), use, 0.0, where, Wrong())
    where = dataclasses.replace(where, advice=made.advice_use)
    policy = network(where, compiled=compiled)
    settings = {"learning_rate": 0.02, "learning_rate_schedule": "constant", "entropy_coefficient": 0.0} | settings
    one = make_learner(where, policy=policy, **settings)
    runner = Runner(world, [Actor(where, policy, advisor=made)], seed=0)
    for i in range(iterations):
        own = runner.play(4, i, 0.0).decisions["team"]
        found = one.learn(own, joint(own), generator(i))
    return float(np.exp(policy.log_probs(runner.view(runner.actors[0]))[0, 0, 1])), found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strength", "compiled"), [*((strength, True) for strength in (0.1, 0.3, 0.5, 0.8, 0.95)), (0.8, False)]
)
def test_wrong_advice_is_outgrown_at_every_strength(strength, compiled):
    assert bandit(strength, compiled)[0] > 0.95


def test_a_mixtures_kl_is_that_of_the_policy_alone():
    _, found = bandit(0.8, iterations=1, target_kl=1e-3)
    assert found["minibatches"] < 16  # so target_kl may be set


def divergence(out, advice, mask=None):
    """strength · KL(advice ‖ policy) of each row, by its definition."""
    p, out = advice.probabilities, out if mask is None else torch.where(mask, out, IMPOSSIBLE)
    return advice.strength * (torch.xlogy(p, p) - p * out.log_softmax(-1)).sum(-1)


@pytest.mark.parametrize("masked", [False, True])
def test_the_slopes_are_those_of_the_divergence_from_the_advice(masked):
    probabilities = torch.tensor([[[0.7, 0.3, 0.0], [0.0] * 3, [0.5, 0.25, 0.25], [0.5, 0.5, 0.0]]])
    advice = Advice(torch.tensor([[True, False, True, True]]), probabilities, torch.tensor([[2.0, 0.0, 0.5, 1.0]]))
    out = torch.tensor([[[1.0, 0.0, -1.0], [1.0, 0.0, -1.0], [0.0] * 3, [0.0, 2.0, 0.0]]], requires_grad=True)
    one = Choices((3,), single=True)
    mask = torch.tensor([[[True, True, False], [True] * 3, [True] * 3, [True] * 3]]) if masked else None
    weight = torch.tensor([[0.25, 0.5, 0.25, 0.0]])
    (weight * divergence(out, advice, mask)).sum().backward()
    rows, action = np.arange(4), np.zeros(4, np.int64)
    one.forward(out[0].detach().numpy(), one.taken(action, None if mask is None else mask[0].numpy()), rows)
    slopes = np.zeros((4, 3), np.float32)
    add_advice_slopes.over(
        4, slopes, one.probability, rows, weight[0].numpy(), probabilities[0].numpy(), advice.strength[0].numpy()
    )
    np.testing.assert_allclose(slopes, out.grad[0], atol=1e-7)
    np.testing.assert_allclose(out.grad[0, 2], 0.125 * (1 / 3 - probabilities[0, 2]), atol=1e-6)


def test_padding_has_no_slopes():
    slopes, half, one = np.zeros((2, 2), np.float32), np.full((2, 2), 0.5, np.float32), np.ones(2, np.float32)
    probability, weight = np.float32([[np.nan, np.nan], [0.7, 0.3]]), np.float32([0, 1])
    add_advice_slopes.over(2, slopes, probability, np.arange(2), weight, half, one)
    np.testing.assert_allclose(slopes, [[0, 0], [0.2, -0.2]], atol=1e-7)


def test_a_policy_learns_what_it_is_advised(path):
    words = [f"{ADVISE}.use.final=1", "groups.team.learner.learning_rate=0.02", "groups.team.learner.epochs=8"]
    own, group = played(path, *words, steps=64)
    group.learner.settings = dataclasses.replace(group.learner.settings, learning_rate=0.02)
    found = []
    for _ in range(2):
        x = torch.from_numpy(group.policy.inputs(own.observation[:-1]))
        rows = (own.advice.given[..., None], own.advice.probabilities, own.advice.strength[..., None])
        given, probabilities, strength = (torch.from_numpy(group.policy.arrange(part)) for part in rows)
        advice = Advice(given[..., 0], probabilities, strength[..., 0])
        with torch.no_grad():
            found.append(float(divergence(group.policy.net.unroll(x, None), advice).mean()))
        group.learner.learn(own, joint(own), generator())
    assert found[1] < 0.8 * found[0]
