"""Encoders that learn: adapters of the model that reads, moved by the same loss."""

import dataclasses

import numpy as np
import torch

from coterie.lm.learn.lora import LoraAdapterSettings
from coterie.nn import networks
from coterie.policies.network import NetworkPolicy, NetworkSettings
from coterie.training.runner import Runner
from helpers import encoder as encoder_cases
from helpers.distributions import evaluate_actions
from helpers.encoder import ROWS, Hall, learner, outputs, policy, seen
from helpers.ppo import random_rollout
from helpers.small_worlds import actors, generator, joint, spec_in

# Adapters ---------------------------------------------------------------------------------------------------


def test_adapters_begin_as_the_frozen_model_and_are_saved():
    frozen, made, other = (policy(reads="both", model="BLIND", trainable=on) for on in (False, True, True))
    names = [name for name in networks.export(made.net) if name.startswith("reader.")]
    assert names == [f"reader.model.out.lora_{x}.default.weight" for x in "AB"]
    assert not any(name.startswith("reader.") for name in networks.export(frozen.net))
    size = frozen.normalizer.shift.shape[1]
    frozen.normalizer.update([generator().normal(2.0, 3.0, (50, size))])
    made.load(frozen_with(made, frozen))
    assert np.allclose(outputs(frozen, ROWS), outputs(made, ROWS), atol=1e-6)
    made.net.reader.model.out.lora_B["default"].weight.data.normal_(generator=torch.Generator().manual_seed(0))
    assert not np.allclose(outputs(frozen, ROWS), outputs(made, ROWS), atol=1e-4)
    other.load(made.state())
    assert np.array_equal(outputs(other, ROWS), outputs(made, ROWS))


def frozen_with(made, frozen):
    """The frozen policy's state with the other one's adapters."""
    return frozen.state() | {"net": made.state()["net"] | frozen.state()["net"]}


def test_what_was_decided_is_what_is_learned_from():
    world = Hall()
    made = policy(world, model="BLIND", reads="both", trainable=True)
    made.net.reader.model.out.lora_B["default"].weight.data.normal_(generator=torch.Generator().manual_seed(0))
    own = Runner(world, actors((made.group_spec, made)), seed=0).play(6, 1).decisions["team"]
    x, critic = made.learning_inputs(own.observation)
    out = made.net.unroll(x[:, : own.action.size], None)
    log_prob, _ = evaluate_actions(made.head, out, torch.from_numpy(own.action.reshape(1, -1)), None)
    assert np.allclose(log_prob.detach().numpy().reshape(own.action.shape), own.log_prob, atol=1e-5)
    assert np.array_equal(critic, made.inputs(own.observation))  # the critic reads the frozen model
    assert out.requires_grad


def test_when_a_text_was_first_seen_does_not_matter():
    tenths = seen([[i / 10, 0.1, i % 2] for i in range(-20, 20)])
    ends = []
    for known in (tenths, tenths[::-1]):
        made = policy(model="BLIND", reads="both", trainable=True)
        made.pack(known)
        one = learner(made, minibatches=1)
        own = random_rollout(one)
        own = dataclasses.replace(own, observation=np.resize(tenths, own.observation.shape))
        for step in range(4):
            one.learn(own, joint(own), generator(step))
        ends.append(made.flat.array.copy())
    assert np.array_equal(*ends)


def test_adapters_have_settings_and_seeds():
    def adapter(rank=2, seed=0):
        where = dataclasses.replace(spec_in(Hall()), seed=seed)
        chosen = encoder_cases.text("BLIND", trainable=True, lora=LoraAdapterSettings(rank=rank))
        made = NetworkPolicy(NetworkSettings(text=chosen), where)
        return networks.export(made.net)["reader.model.out.lora_A.default.weight"]

    assert adapter().shape == (2, 8)
    assert adapter(rank=3).shape == (3, 8)
    assert np.array_equal(adapter(), adapter())
    assert not np.array_equal(adapter(), adapter(seed=1))
