"""Observations that are one choice among many: numbers until the network reads them."""

import numpy as np
import pytest
import torch

from coterie.core.types import Discrete
from coterie.nn import networks
from coterie.nn.packing import EMBEDDED, PixelRows, layout, pack
from helpers import dqn as q
from helpers.ppo import actor, learn, make_learner, random_rollout
from helpers.small_worlds import group_spec, network

MANY = Discrete(10_000)


def dqn_learner(space=MANY, parameters="shared", mixer="none"):
    where = group_spec(observation=space, parameters=parameters)
    replay = {"size": 50, "learning_starts": 5}
    return q.make_learner(where, policy=q.q_network(where), mixer=mixer, batch_size=8, replay=replay)


@pytest.mark.parametrize("n", [1000, 20_000])
@pytest.mark.parametrize("seeds", [[0], [0, 1]])
def test_an_embedding_reads_numbers_as_it_reads_one_hot_rows(n, seeds):
    lay, random = layout(Discrete(n)), np.random.default_rng(0)
    net = networks.Network(networks.Shape((8,), "tanh", "embedding", (), 1), lay, 3, 1.0, seeds)
    seen, extra = random.integers(n, size=(len(seeds), 5)), random.random((len(seeds), 5, 1), np.float32)
    numbers = net.unroll(PixelRows(seen[..., None].astype(np.int32), extra), None)
    one_hot = net.unroll(np.concatenate([pack(lay, seen), extra], axis=-1), None)
    torch.testing.assert_close(numbers, one_hot)


def test_few_choices_stay_one_hot_in_the_compiled_path():
    few = group_spec(observation=Discrete(EMBEDDED))
    for policy in (network(few), q.q_network(few)):
        assert policy.shape.encoder == "mlp"
        assert policy.spec is not None
        assert policy.row_type == (EMBEDDED, np.float32)
    many = group_spec(observation=Discrete(EMBEDDED + 1))
    assert network(many, encoder="mlp").row_type == (EMBEDDED + 1, np.float32)


@pytest.mark.parametrize("parameters", ["shared", "individual"])
@pytest.mark.parametrize("mixer", ["none", "vdn"])
def test_a_replay_of_dqn_holds_numbers_and_resumes(parameters, mixer):
    one, other = (dqn_learner(parameters=parameters, mixer=mixer) for _ in range(2))
    before = q.weights(one).copy()
    for iteration in range(2):
        q.learn(one, q.random_rollout(one, iteration))
    assert (q.weights(one) != before).any()
    rows = one.replays[0].rows
    assert rows.observation.dtype == rows.next_obs.dtype == np.int32
    assert rows.observation.shape[-1] == 1
    assert rows.observation.max() > EMBEDDED
    assert sum(column.nbytes for column in rows) < 50 * 100  # one-hot rows: 4 MB
    other.policy.load(one.policy.state())
    other.load(one.state())
    own = q.random_rollout(one, 2)
    for each in (one, other):
        q.learn(each, own)
    assert np.array_equal(q.weights(one), q.weights(other))


@pytest.mark.parametrize("memory", [0, 4])
@pytest.mark.parametrize("parameters", ["shared", "individual"])
def test_ppo_learns_from_numbers(parameters, memory):
    where = group_spec(observation=MANY, parameters=parameters)
    one = make_learner(where, policy=network(where, memory=memory), minibatches=2, epochs=2)
    own = random_rollout(one)
    x, _ = one.policy.learning_inputs(own.observation)
    assert x.image.dtype == np.int32
    assert x.image.shape[-1] == 1
    before = actor(one).copy()
    learn(one, own)
    assert (actor(one) != before).any()
