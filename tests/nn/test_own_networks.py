"""A user's own module that reads observations, in every learner that trains networks."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from coterie.algorithms.imitation.cloning import Cloner, CloningSettings
from coterie.algorithms.imitation.labels import Labels
from coterie.config.schema import ConfigError
from coterie.core.types import Box
from coterie.nn.nets import TorchNet
from coterie.nn.own_networks import OwnNetwork
from coterie.nn.packing import layout
from coterie.testing import ContractError, check_learner, check_policy
from helpers import dqn, maddpg, ppo, sac
from helpers.own_networks import Features
from helpers.resume import TRAIN, assert_resumed_alike
from helpers.run import environment, train, written
from helpers.small_worlds import ACTIONS, NAMED, VECTOR, generator, group_spec, network

OWN = "helpers.own_networks:Features"
MAKE = {  # of a learner in a place, whose policy has the own network
    "ppo": lambda where, **fields: ppo.make_learner(where, policy=network(where, network=OWN, **fields), epochs=2),
    "dqn": lambda where, **fields: dqn.make_learner(where, policy=dqn.q_network(where, network=OWN, **fields)),
    "maddpg": lambda where, **fields: maddpg.make_learner(
        where, policy=maddpg.deterministic(where, network=OWN, **fields), critic={"centralized": False}
    ),
    "maddpg, central": lambda where, **fields: maddpg.make_learner(
        where, policy=maddpg.deterministic(where, network=OWN, **fields)
    ),
    "sac": lambda where, **fields: sac.make_learner(where, policy=sac.gaussian(where, network=OWN, **fields)),
}


def place(name, parameters="shared"):
    action = ACTIONS["box"] if name.startswith(("maddpg", "sac")) else ACTIONS["discrete"]
    return group_spec(action, parameters=parameters, state_size=6)


@pytest.mark.parametrize("parameters", ["shared", "individual"])
@pytest.mark.parametrize("name", MAKE)
def test_every_learner_trains_it_and_goes_on_after_loading(name, parameters):
    where = place(name, parameters)
    one = MAKE[name](where)
    assert isinstance(one.policy.trainable, TorchNet)
    own = {n: p.detach().clone() for n, p in one.policy.net.encode.named_parameters() if p.requires_grad}
    assert own
    check_learner(lambda spec: MAKE[name](spec), where, uses_replay=name != "ppo")
    learner = {"ppo": ppo, "dqn": dqn, "sac": sac}.get(name, maddpg)
    rollout = getattr(learner, "random_rollout", None) or learner.random_decisions
    learner.learn(one, rollout(one))
    moved = {n: p.detach() for n, p in one.policy.net.encode.named_parameters() if p.requires_grad}
    assert all(not torch.equal(before, moved[n]) for n, before in own.items())


@pytest.mark.parametrize("name", ["ppo", "dqn"])
@pytest.mark.parametrize("space", [NAMED, Box((2, 6, 6), 0, 255, "uint8")], ids=["dict", "bytes"])
def test_dicts_and_pictures_have_their_shapes(name, space):
    where = group_spec(observation=space)
    own = "helpers.own_networks:Parts" if space is NAMED else OWN
    make = network if name == "ppo" else dqn.q_network
    learner = (ppo if name == "ppo" else dqn).make_learner(where, policy=make(where, network=own))
    found = (ppo if name == "ppo" else dqn).learn(learner, ppo.random_rollout(learner))
    assert all(np.isfinite(value) for value in found.values())


def test_memory_and_no_hidden_layers_follow_it():
    where = group_spec()
    check_policy(lambda spec: network(spec, network=OWN, memory=5, hidden=()), where)
    policy = network(where, network=OWN, hidden=())
    assert policy.net.sizes == [7 + 2, 4]  # features and the agent's identity


def test_cloning_trains_it():
    where = group_spec()
    cloner = Cloner(CloningSettings(weight_decay=0), network(where, network=OWN))
    seen = generator().standard_normal((40, 3), np.float32)
    action = (seen[:, 0] > 0).astype(np.int64)
    given = Labels(seen, np.zeros(40, np.int64), action, np.zeros((40, 0), bool))
    for _ in range(80):
        cloner.step([given], 1e-2, generator())
    assert cloner.evaluate(given, 0)[1] > 0.9


@pytest.mark.parametrize("sets", [1, 3])
def test_features_are_those_of_the_module(sets):
    lay, x = layout(VECTOR), torch.from_numpy(generator().standard_normal((sets, 5, 3), np.float32))
    one = OwnNetwork(OWN, lay, list(range(sets)))
    again = OwnNetwork(OWN, lay, [sets - 1])
    assert one(x).shape == (sets, 5, 7)
    torch.testing.assert_close(one(x)[-1:], again(x[-1:]))  # each set has the weights of its own seed
    if sets > 1:
        assert not torch.allclose(one(x[:1].expand(3, -1, -1))[0], one(x[:1].expand(3, -1, -1))[1])


SAME = f"""
import zlib
from helpers.small_worlds import group_spec, network
from helpers import ppo
one = ppo.make_learner(group_spec(seed=3), policy=network(group_spec(seed=3), network="{OWN}"))
print(zlib.crc32(one.policy.flat.array.tobytes()), zlib.crc32(one.critic.flat.array.tobytes()))
"""


def test_two_processes_begin_with_the_same_weights():
    found = {subprocess.check_output([sys.executable, "-c", SAME], env=environment(), text=True) for _ in range(2)}
    assert len(found) == 1
    where = group_spec(seed=4)
    policy = network(where, network=OWN)
    assert str(ppo.make_learner(where, policy=policy).policy.flat.array.tobytes()) not in found


def test_global_generators_go_on_as_if_nothing_was_built():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    network(group_spec(), network=OWN)
    assert torch.equal(torch.rand(3), expected)


def test_weights_that_do_not_follow_from_the_seed_are_named():
    own = "helpers.own_networks:Unseeded"
    with pytest.raises(ContractError, match=r"encode.module.read.1.weight.*do not follow from the seed"):
        check_policy(lambda spec: network(spec, network=own), group_spec())
    with pytest.raises(ContractError, match=r"encode.module.read.1.weight.*do not follow from the seed"):
        check_learner(lambda spec: ppo.make_learner(spec, policy=network(spec, network=own)), group_spec())


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("helpers.own_networks:Normed", "buffers"),
        ("helpers.own_networks:Scalar", "must map observations"),
        ("helpers.own_networks:Constant", "no weights"),
        ("helpers.own_networks:number", "torch.nn.Module"),
        ("helpers.own_networks:Missing", "has no 'Missing'"),
        ("Features", "package.module:Name"),
    ],
)
def test_modules_that_cannot_serve_are_refused(name, problem):
    with pytest.raises(ValueError, match=problem) as error:
        network(group_spec(), network=name)
    assert str(error.value).startswith("network: ")


def test_it_reads_instead_of_an_encoder():
    with pytest.raises(ValueError, match="encoder=set and network="):
        network(group_spec(observation=NAMED), network=OWN, encoder="set")
    with pytest.raises(ValueError, match="hidden"):
        network(group_spec(), hidden=())


GAME = (
    """\
world: {name: tag, max_steps: 6}
groups:
  hunters: {agents: "adversary_*", policy: {name: network, hidden: [8], network: "NAME"}, learner: ppo}
  prey:
    agents: agent_0
    policy: {name: q_network, hidden: [], network: "NAME"}
    learner: {name: dqn, batch_size: 4, updates_per_step: 0.2, replay: {size: 90, learning_starts: 5}}
""".replace("NAME", OWN)
    + TRAIN
)


@pytest.mark.slow
def test_stopped_and_resumed(tmp_path):
    experiment = written(tmp_path / "game.yaml", GAME)
    whole = train(tmp_path / "whole", experiment=experiment)
    assert_resumed_alike(tmp_path / "run", experiment, whole, 3)


def test_a_config_names_the_path_of_what_is_wrong(tmp_path):
    experiment = written(tmp_path / "game.yaml", GAME.replace("own_networks:Features", "own_networks:Nothing"))
    with pytest.raises((ConfigError, ValueError), match=r"network: .*Nothing"):
        train(tmp_path / "run", experiment=experiment)


def test_the_module_is_called_with_the_shape():
    assert Features((3,)).read[1].in_features == 3
