"""Advice: the executed action carries its true probability, and what is learned accounts for it."""

import dataclasses

import numpy as np
import pytest
import torch

from coterie.core.advice import Advice, UseSettings
from helpers.advisor import TABLE, advisor, grid, played, seen
from helpers.run import written
from helpers.small_worlds import generator, joint, network

ADVISE = "groups.team.advisor"


@pytest.fixture
def path(tmp_path):
    return written(tmp_path / "advised.yaml", TABLE)


def softmax(x):
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


# How it is followed: the executed action's own probability ------------------------------------------------------


def moment(way, strength, legal=None, **settings):
    """One moment seen by 4,000 copies, its advice, and who decides."""
    world = grid(1)
    made, where = advisor(world, None, use={"way": way, "strength": strength}, smoothing=0.1)
    view = seen(world, where)
    mask = None if legal is None else np.tile(np.array(legal), (1, 2, 1))
    policy = network(where, **settings)
    memory = np.zeros((1, 2, policy.memory_size), np.float32) if policy.memory_size else None
    view = dataclasses.replace(view, mask=mask, memory=memory)
    policy.flat.array[:] *= 30  # outputs far from even
    notes = made.advise(view, policy).notes
    given = {"observation": view.observation, "acting": view.acting, "notes": notes, "mask": mask, "memory": memory}
    many = {name: None if array is None else np.repeat(array, 4000, axis=0) for name, array in given.items()}
    return policy, dataclasses.replace(view, **many), notes


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
    shown, blind = (policy.act(dataclasses.replace(view, notes=n, greedy=True)).log_prob[0] for n in (view.notes, None))
    assert not np.allclose(shown, blind)
    assert notes[0, 0, 0] == 1.0  # the flag that it was asked


@pytest.mark.parametrize("way", ["mixture", "prior", "hint", "kl"])
def test_who_is_not_advised_decides_alone(way):
    policy, view, _ = moment(way, 0.5)
    nothing = np.full_like(view.notes, np.nan)
    random = (generator(3), generator(3))
    one, other = (
        policy.act(dataclasses.replace(view, notes=n, random=r)) for n, r in zip((nothing, None), random, strict=True)
    )
    np.testing.assert_allclose(one.log_prob.mean(), other.log_prob.mean(), atol=0.02)
    out = policy.forward(policy.packed_view(dataclasses.replace(view, notes=None)), view)[0]
    own = np.log(np.take_along_axis(softmax(out), one.action[..., None], axis=-1))[..., 0]
    np.testing.assert_allclose(one.log_prob, own, atol=1e-4)


def test_the_strength_goes_evenly_to_its_end():
    use = UseSettings("mixture", strength=0.8, final=0.2, until=0.5)
    assert [use.at(p) for p in (0.0, 0.25, 0.5, 1.0, None)] == pytest.approx([0.8, 0.5, 0.2, 0.2, 0.8])
    world = grid()
    made, where = advisor(world, None, use={"way": "kl", "strength": 2.0, "until": 0.5})
    policy = network(where)
    noted = [made.advise(seen(world, where, progress=p), policy).notes[0, 0, 0] for p in (0.0, 0.25, 0.75)]
    np.testing.assert_array_equal(noted, [2.0, 1.0, np.nan])  # in the end nobody is asked
    assert made.metrics()["advice/asked"] == 32


# What is learned ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [(), ("groups.team.policy.memory=4",), ("groups.team.parameters=individual",)])
@pytest.mark.parametrize("way", ["prior", "kl", "hint"])
def test_ratios_begin_at_one(path, way, words):
    own, group = played(path, f"{ADVISE}.use.way={way}", f"{ADVISE}.use.strength=3", f"{ADVISE}.ask.share=0.5", *words)
    told = ~np.isnan(own.notes[..., 0])
    assert 0.2 < told.mean() < 0.8
    found = group.learner.learn(own, joint(own), generator())
    assert found["kl"] < 1e-7
    assert found["clip_fraction"] == 0
    if way != "kl":  # and they would not, were the notes forgotten
        silent = dataclasses.replace(own, notes=np.full_like(own.notes, np.nan))
        assert group.learner.learn(silent, joint(own), generator())["kl"] > 1e-4


def test_a_mixtures_ratios_are_to_the_mixture(path):
    own, group = played(path, f"{ADVISE}.use.way=mixture", f"{ADVISE}.use.strength=0.4")
    share = UseSettings(strength=0.4).at(0.25)
    out = group.policy.forward(group.policy.pack(own.observation[0]), seen(grid(4), group.actor.group_spec))[0]
    mixed = (1 - share) * softmax(out.astype(np.float64)) + share * own.notes[0, ..., 1:]
    expected = np.log(np.take_along_axis(mixed, own.action[0][..., None], axis=-1))[..., 0]
    np.testing.assert_allclose(own.log_prob[0], expected, atol=1e-5)
    assert group.learner.compiled
    group.learner.autograd_pass = None  # the compiled path learns from it
    assert group.learner.learn(own, joint(own), generator())["kl"] > 0.01  # k3 estimate between policy and mixture


@pytest.mark.parametrize("masked", [False, True])
def test_the_loss_is_the_divergence_from_the_advice(masked):
    advice = Advice(UseSettings("kl", strength=2.0), 3)
    notes = np.array([[2.0, 0.7, 0.3, 0.0], [np.nan] * 4, [0.5, 0.5, 0.25, 0.25]], np.float32)
    out = torch.tensor([[1.0, 0.0, -1.0], [1.0, 0.0, -1.0], [0.0, 0.0, 0.0]], requires_grad=True)
    mask = torch.tensor([[True, True, False], [True] * 3, [True] * 3]) if masked else None
    loss = advice.loss(out, mask, torch.from_numpy(notes))
    p = softmax(np.array([1.0, 0.0, -np.inf if masked else -1.0]))
    first = 2 * (0.7 * np.log(0.7 / p[0]) + 0.3 * np.log(0.3 / p[1]))
    last = 0.5 * (0.5 * np.log(0.5 * 3) + 0.5 * np.log(0.25 * 3))
    np.testing.assert_allclose(loss.detach(), [first, 0.0, last], atol=1e-6)
    loss.sum().backward()
    assert torch.isfinite(out.grad).all()
    np.testing.assert_allclose(out.grad[2], 0.5 * (1 / 3 - notes[2, 1:]), atol=1e-6)  # weight · (π − advice)


def test_a_policy_learns_what_it_is_advised(path):
    words = [f"{ADVISE}.use.final=1", "groups.team.learner.learning_rate=0.02", "groups.team.learner.epochs=8"]
    own, group = played(path, *words, steps=64)
    group.learner.settings = dataclasses.replace(group.learner.settings, learning_rate=0.02)
    advice = Advice(UseSettings(), 5)
    found = []
    for _ in range(2):
        x = torch.from_numpy(group.policy.inputs(own.observation[:-1]))
        notes = torch.from_numpy(group.policy.arrange(own.notes))
        with torch.no_grad():
            found.append(float(advice.loss(group.policy.net.unroll(x.numpy(), None), None, notes).mean()))
        group.learner.learn(own, joint(own), generator())
    assert found[1] < 0.8 * found[0]
