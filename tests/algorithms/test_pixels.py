"""Pictures in PPO and DQN: bytes until the network reads them, and one encoder for actor and critic."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from coterie.algorithms.ppo import ppo
from coterie.core.types import Box
from coterie.nn import nets
from coterie.nn.packing import PixelRows
from coterie.policies.network import NetworkPolicy
from coterie.policies.q_network import QNetworkPolicy
from helpers import dqn as q
from helpers.ppo import actor, critic, learn, make_learner, random_rollout
from helpers.small_worlds import generator, group_spec, network

SCREEN = Box((2, 36, 36), 0.0, 255.0, "uint8")
CELLS = Box((2, 5, 4), 0.0, 255.0, "uint8")


def ppo_learner(space=SCREEN, parameters="shared", learner=None, **policy):
    where = group_spec(observation=space, parameters=parameters)
    return make_learner(where, policy=network(where, **policy), minibatches=2, epochs=2, **(learner or {}))


def dqn_learner(parameters="shared", mixer="none", **policy):
    where = group_spec(observation=SCREEN, parameters=parameters)
    made = q.q_network(where, **policy)
    return q.make_learner(where, policy=made, mixer=mixer, batch_size=8, replay={"size": 50, "learning_starts": 5})


# Bytes ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("parameters", ["shared", "individual"])
@pytest.mark.parametrize(
    ("space", "policy", "settings"),
    [
        (SCREEN, {}, {}),
        (SCREEN, {"memory": 4}, {}),
        (SCREEN, {"encoder": "impala"}, {"share_encoder": False}),
        (CELLS, {}, {}),
        (CELLS, {"memory": 4, "encoder": "cnn"}, {"share_encoder": True}),
    ],
)
def test_ppo_learns_the_same_from_bytes_as_from_floats(space, policy, settings, parameters, monkeypatch):
    learners = []
    for keeps in (True, False):
        monkeypatch.setattr(NetworkPolicy, "keeps_bytes", keeps)
        one = ppo_learner(space, parameters, settings, **policy)
        assert one.policy.bytes is keeps
        for iteration in range(2):
            learn(one, random_rollout(one, iteration))
        learners.append(one)
    assert np.array_equal(actor(learners[0]), actor(learners[1]))
    assert np.array_equal(critic(learners[0]), critic(learners[1]))


def test_ppos_minibatches_hold_bytes_and_the_rollout_is_not_copied(monkeypatch):
    one, found = ppo_learner(), []
    own = random_rollout(one)
    x, _ = one.policy.learning_inputs(own.observation)
    assert isinstance(x, PixelRows)
    assert np.shares_memory(x.image, own.observation)

    def watched(batch, *rest):
        found.append((batch.actor_input.image.dtype, batch.critic_input.shape[-1]))
        step(batch, *rest)

    step = one.step
    monkeypatch.setattr(one, "step", watched)
    learn(one, own)
    assert found == [(torch.uint8, 2)] * 4  # the critic's rows hold the identities of two agents, and no picture


def test_hints_and_perceptrons_read_floats():
    assert not ppo_learner(encoder="mlp").policy.bytes
    floats = Box((2, 36, 36), 0.0, 1.0)
    assert not ppo_learner(floats).policy.bytes
    assert isinstance(ppo_learner(floats).policy.inputs(np.zeros((1, 2, 2, 36, 36), np.float32)), np.ndarray)


@pytest.mark.slow
@pytest.mark.parametrize("parameters", ["shared", "individual"])
@pytest.mark.parametrize("mixer", ["none", "vdn"])
def test_dqn_learns_the_same_from_bytes_as_from_floats(parameters, mixer, monkeypatch):
    learners = []
    for keeps in (True, False):
        monkeypatch.setattr(QNetworkPolicy, "keeps_bytes", keeps)
        one = dqn_learner(parameters, mixer)
        for iteration in range(2):
            q.learn(one, q.random_rollout(one, iteration))
        assert one.policy.flat.steps.min() > 0
        learners.append(one)
    assert np.array_equal(q.weights(learners[0]), q.weights(learners[1]))
    stored = [one.replays[0].rows for one in learners]
    for name in ("observation", "next_obs"):
        bytes_, floats = (getattr(rows, name) for rows in stored)
        assert (bytes_.dtype, floats.dtype) == (np.uint8, np.float32)
        assert bytes_.any()
        assert np.array_equal(bytes_ / np.float32(255), floats)


@pytest.mark.slow
def test_a_replay_of_bytes_is_saved_and_restored():
    one, other = dqn_learner(), dqn_learner()
    for iteration in range(2):
        q.learn(one, q.random_rollout(one, iteration))
    other.policy.load(one.policy.state())
    other.load(one.state())
    own = q.random_rollout(one, 2)
    for each in (one, other):
        q.learn(each, own)
    assert other.replays[0].rows.observation.dtype == other.pending[0].observation.dtype == np.uint8
    assert np.array_equal(q.weights(one), q.weights(other))


# One encoder ---------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("encoder", "wanted", "shared"),
    [
        ("nature", None, True),
        ("impala", None, True),
        ("cnn", None, False),
        ("cnn", True, True),
        ("nature", False, False),
    ],
)
def test_share_encoder_decides_whether_the_critic_has_its_own(encoder, wanted, shared):
    one = ppo_learner(learner={"share_encoder": wanted}, encoder=encoder, channels=(2,))
    assert (one.critic_network.encode is None) is shared
    names = [name for name, _ in one.critic_network.named_parameters() if name.startswith("encode")]
    assert bool(names) is not shared
    own = random_rollout(one)
    weights, encoder_size = actor(one), sum(p.numel() for p in one.policy.net.encode.parameters())
    one.policy_slopes = silent(one.policy_slopes)
    learn(one, own)
    moved = (actor(one) != weights)[0]
    assert moved[:encoder_size].any() == shared  # the critic's gradient reaches the encoder
    assert not moved[encoder_size:].any()


def silent(loss):
    """A loss without slopes."""

    def without(*arguments):
        return np.zeros_like(loss(*arguments))

    return without


def test_a_shared_encoder_follows_both_gradients():
    one = ppo_learner(learner={"max_grad_norm": 1e9})
    own = random_rollout(one)
    parts = {}
    for name in ("both", "actor", "critic"):
        each = ppo_learner(learner={"max_grad_norm": 1e9})
        if name == "actor":
            each.value_slopes = silent(each.value_slopes)
        if name == "critic":
            each.policy_slopes = silent(each.policy_slopes)
        each.settings.__dict__.update(epochs=1, minibatches=1)
        learn(each, own)
        parts[name] = each.policy.flat.grad.clone()
    assert torch.allclose(parts["both"], parts["actor"] + parts["critic"], atol=1e-5)
    assert all(part.abs().max() > 1e-4 for part in parts.values())


def test_one_step_of_a_shared_encoder_follows_its_settings():
    """The actor's rate is the encoder's too, each flat vector has its own norm, and advantages may keep their size."""

    def step(rewards=1.0, **settings):
        given = {"share_encoder": True, "learning_rate": 0.01, "critic_learning_rate": 0.03, "max_grad_norm": 1e9}
        given |= {"normalize_returns": False, "entropy_coefficient": 0.0, "gae_lambda": 1.0} | settings
        one = ppo_learner(CELLS, learner=given, encoder="cnn", channels=(2,))
        one.settings.__dict__.update(epochs=1, minibatches=1)
        one.critic_network.out.weight.data.zero_()
        if "normalize_advantages" in settings:
            one.value_slopes = silent(one.value_slopes)
        own = random_rollout(one)
        before = actor(one), critic(one)
        learn(one, replace(own, reward=own.reward * np.float32(rewards)))
        moved = [float(np.abs(now - old).max()) for now, old in zip((actor(one), critic(one)), before, strict=True)]
        return one, moved

    one, moved = step()
    assert moved == pytest.approx([0.01, 0.03], rel=0.02)  # Adam's first step is nearly the learning rate
    norms = [float(np.linalg.norm(flat.mean * 10)) for flat in (one.policy.flat, one.critic.flat)]
    assert min(norms) > 1e-3
    one, _ = step(max_grad_norm=1e-4)
    norms = [float(np.linalg.norm(flat.mean * 10)) for flat in (one.policy.flat, one.critic.flat)]
    assert norms == pytest.approx([1e-4, 1e-4], rel=0.02)
    for normalize, factor in ((True, 1), (False, 1000)):
        small, large = (
            step(rewards, normalize_advantages=normalize)[0].policy.flat.mean * 10 for rewards in (1.0, 1000.0)
        )
        np.testing.assert_allclose(factor * small, large, rtol=1e-2, atol=1e-3 * np.abs(large).max())


def test_sharing_needs_an_encoder():
    with pytest.raises(ValueError, match="share_encoder=true needs"):
        ppo_learner(learner={"share_encoder": True}, encoder="mlp")


def test_values_do_not_depend_on_the_chunks(monkeypatch):
    one = ppo_learner()
    x = one.policy.inputs(generator().integers(0, 256, (5, 2, 2, 36, 36), np.uint8))
    whole = one.evaluate(x)
    monkeypatch.setattr(nets, "CHUNK_NUMBERS", 3 * one.policy.layout.size)
    assert np.allclose(one.evaluate(x), whole, atol=1e-5)
    assert whole.shape == (1, 10)


@pytest.mark.slow
@pytest.mark.parametrize("parameters", ["shared", "individual"])
def test_gradients_do_not_depend_on_the_pieces(parameters, monkeypatch):
    found = []
    for numbers in (2**40, 3 * 2 * 36 * 36):
        monkeypatch.setitem(ppo.PIECE_NUMBERS, "cpu", numbers)
        one = ppo_learner(parameters=parameters, learner={"value_clip": 0.2})
        metrics = learn(one, random_rollout(one))
        found.append((actor(one), critic(one), metrics))
    for whole, cut in zip(found[0][:2], found[1][:2], strict=True):
        assert np.allclose(whole, cut, atol=2e-5)
    assert found[0][2] == pytest.approx(found[1][2], rel=1e-3, abs=1e-5)
