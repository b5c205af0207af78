"""Devices: which one a network is on, and learning on a GPU against learning on the CPU."""

import copy
import os

import numpy as np
import pytest
import torch

from coterie.core.decisions import Joint, StateRows
from coterie.core.types import Box
from coterie.nn import kernels, networks
from coterie.nn.devices import demand_deterministic, resolve_device, resolve_precision
from coterie.nn.packing import layout
from helpers import dqn, maddpg, ppo
from helpers.small_worlds import ACTIONS, NAMED, generator, group_spec, network

IMAGE = Box((2, 5, 4), 0.0, 1.0)
PLACE = ("action", "observation", "parameters", "state_size")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device")


@pytest.fixture
def cuda_there(monkeypatch):
    """Whether PyTorch finds a GPU, as the test likes it."""
    return lambda there: monkeypatch.setattr(torch.cuda, "is_available", lambda: there)


def test_auto_takes_the_gpu_where_there_is_one_and_the_compiled_path_does_not_serve(cuda_there, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    cuda_there(False)
    assert resolve_device("auto", compiled=False).type == "cpu"
    cuda_there(True)
    assert resolve_device("auto", compiled=True).type == "cpu"
    assert resolve_device("cpu", compiled=False).type == "cpu"
    assert torch.backends.cudnn.allow_tf32
    assert resolve_device("auto", compiled=False).type == "cuda"
    assert resolve_device("cuda", compiled=False).type == "cuda"
    assert not torch.backends.cudnn.allow_tf32  # float32 means float32


def test_precisions():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert resolve_precision("auto", cpu) == resolve_precision("float32", gpu) == torch.float32
    assert resolve_precision("auto", gpu) == resolve_precision("bfloat16", cpu) == torch.bfloat16


def test_deterministic_algorithms_are_demanded_of_pytorch(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    try:
        demand_deterministic()
        assert torch.are_deterministic_algorithms_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_gpu_that_is_not_there_is_refused(cuda_there):
    cuda_there(False)
    for make in (network, dqn.q_network, maddpg.deterministic):
        with pytest.raises(ValueError, match="device=cuda"):
            make(group_spec(), device="cuda")


@pytest.mark.parametrize("compiled", [True, False])
def test_the_cpu_is_a_device_like_any_other(cuda_there, compiled):
    cuda_there(False)  # auto would take a GPU
    for made, train in ((ppo, network), (dqn, dqn.q_network)):
        one, other = (
            made.make_learner(policy=train(group_spec(), compiled=compiled, **fields))
            for fields in ({}, {"device": "cpu"})
        )
        assert other.policy.device == torch.device("cpu")
        assert other.policy.flat.value.device == torch.device("cpu")
        own = made.random_rollout(one)
        assert made.learn(one, own) == made.learn(other, own)
        assert np.array_equal(one.policy.flat.array, other.policy.flat.array)


MADDPG_CASES = {
    "box": {"action": ACTIONS["box"]},
    "choices": {"action": ACTIONS["multi-discrete"]},
    "masked, individual": {"masked": True, "parameters": "individual"},
    "cnn": {"action": ACTIONS["box"], "observation": IMAGE, "critic": {"centralized": False}},
    "twin hurdle": {"action": ACTIONS["box"], "critic": {"twin": True, "hurdle": True}, "target": {"noise": 0.1}},
}


def table_learners(case, *devices, compiled=False):
    """The same learner of a table on several devices."""
    where = group_spec(**{k: v for k, v in case.items() if k in PLACE})
    settings = {k: v for k, v in case.items() if k not in (*PLACE, "masked")}
    policies = [maddpg.deterministic(where, device=device, compiled=compiled) for device in devices]
    return [maddpg.make_learner(where, policy=policy, **settings) for policy in policies]


def learn_alike(pair, case, tolerance):
    """Let both learn from the same experience, and compare what they report and what they have learned."""
    for iteration in range(2):
        own = maddpg.random_decisions(pair[0], iteration, case.get("masked", False))
        found = [maddpg.learn(one, own, iteration) for one in pair]
        assert found[0]["updates"] > 0
        assert found[0] == pytest.approx(found[1], abs=tolerance, rel=10 * tolerance)
    for mine, theirs in zip(*((one.actor, *one.critics) for one in pair), strict=True):
        for name in ("flat", "target_flat"):
            assert np.abs(getattr(mine, name).array - getattr(theirs, name).array).max() <= tolerance
    observation = own.observation[0]
    legal = np.ones((*observation.shape[:2], pair[0].policy.size), bool)
    targets = [one.target_policy()(observation.reshape(*observation.shape[:2], -1), legal) for one in pair]
    assert np.abs(targets[0] - targets[1]).max() <= 10 * tolerance


@pytest.mark.parametrize("compiled", [True, False])
def test_maddpg_takes_the_cpu_like_any_other(cuda_there, compiled):
    cuda_there(False)
    pair = table_learners(MADDPG_CASES["box"], "auto", "cpu", compiled=compiled)
    assert [one.policy.device for one in pair] == [torch.device("cpu")] * 2
    assert [maddpg.compiled(one) for one in pair] == [compiled] * 2
    learn_alike(pair, MADDPG_CASES["box"], 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", MADDPG_CASES)
def test_maddpg_needs_no_memory_shared_with_numpy(name):
    """As on a GPU, where arrays of parameters are copies: writing to them would change nothing."""
    case = MADDPG_CASES[name]
    pair = table_learners(case, "cpu", "cpu")
    for part in (pair[1].actor, *pair[1].critics):
        part.flat._arrays = part.target_flat._arrays = None
        for flat in (part.flat, part.target_flat):
            flat.value.cpu = flat.value.clone  # a copy, as from a GPU
    learn_alike(pair, case, 1e-5)


def test_maddpg_puts_every_network_and_input_on_the_policys_device(monkeypatch):
    (one,) = table_learners(MADDPG_CASES["box"], "cpu")
    asked = []
    as_tensor = torch.as_tensor

    def seen(array, device):
        asked.append(device)
        return as_tensor(array, device=device)

    monkeypatch.setattr(torch, "from_numpy", None)  # it has no device
    monkeypatch.setattr(torch, "as_tensor", seen)
    maddpg.learn(one, maddpg.random_decisions(one))
    assert asked
    assert set(asked) == {one.policy.device}


@pytest.mark.parametrize("limit", [1e9, 0.7])
def test_adam_on_a_device_is_the_compiled_one(limit):
    flat = generator().standard_normal(50).astype(np.float32)
    compiled = [flat, np.zeros_like(flat), np.zeros_like(flat)]
    tensors = [torch.from_numpy(array.copy()) for array in compiled]
    for step in range(1, 11):
        grad = generator(step).standard_normal(50).astype(np.float32)
        kernels.adam(compiled[0], grad, *compiled[1:], step, 0.01, limit)
        networks.adam_on_device(tensors[0], torch.from_numpy(grad), *tensors[1:], step, 0.01, limit)
        for mine, theirs in zip(compiled, tensors, strict=True):
            assert np.allclose(mine, theirs.numpy(), atol=1e-6)


def two_nets(seeds=(0, 1)):
    shape = networks.Shape((6,), "tanh", "auto", (4,), 0)
    return [networks.Network(shape, layout(Box((3,), -1.0, 1.0)), 2, 1.0, list(seeds)) for _ in range(2)]


def test_parameters_on_another_device_are_optimised_there():
    nets = two_nets()
    flats = [networks.FlatParams(net) for net in nets]
    flats[1]._arrays = None  # as on a GPU: no memory is shared with NumPy
    for step in range(5):
        x = torch.from_numpy(generator(step).standard_normal((2, 7, 3)).astype(np.float32))
        for net, flat in zip(nets, flats, strict=True):
            networks.adam_step([flat], net(x)[0].square().sum(), 0.01, 0.5, np.array([step % 2]))
    assert flats[0].steps.tolist() == flats[1].steps.tolist() == [3, 2]
    for name in ("array", "mean", "square"):
        assert np.allclose(getattr(flats[0], name), getattr(flats[1], name), atol=1e-6)
    saved = copy.deepcopy(flats[1].state())
    assert all(isinstance(array, np.ndarray) for array in saved.values())
    fresh = networks.FlatParams(two_nets()[0])
    fresh.load(saved)
    assert np.array_equal(fresh.mean, saved["mean"])


def test_targets_are_copied_and_moved_towards_on_any_device():
    ahead, behind = (networks.FlatParams(net) for net in two_nets())
    ahead.array = ahead.array + np.float32(1)
    first = behind.array.copy()
    behind.move_towards(ahead, 0.25)
    assert np.array_equal(behind.array, first + np.float32(0.25) * (ahead.array - first))
    behind.copy_from(ahead, np.array([False, True]))
    assert np.array_equal(behind.array[1], ahead.array[1])
    assert not np.array_equal(behind.array[0], ahead.array[0])


# On a GPU -----------------------------------------------------------------------------------------------

CASES = {
    "cnn": {"observation": IMAGE},
    "cnn, individual": {"observation": IMAGE, "parameters": "individual"},
    "set": {"observation": NAMED, "encoder": "set"},
    "mlp": {},
    "mlp, masked": {"masked": True},
}
PPO_CASES = CASES | {"memory": {"memory": 5}, "beta": {"action": ACTIONS["box"]}}
PPO_CASES |= {"gaussian": {"action": ACTIONS["box"], "continuous": "gaussian"}, "value clip": {"value_clip": 0.3}}
PPO_CASES |= {"central": {"central_critic": True, "state_size": 4}}
DQN_CASES = CASES | {"vdn": {"mixer": "vdn"}, "qmix": {"mixer": "qmix", "state_size": 4}}
POLICY = ("encoder", "memory", "continuous")


def on_both(made, make_policy, case, **settings):
    """The same learner on the CPU and on a GPU."""
    where = group_spec(**{k: v for k, v in case.items() if k in PLACE})
    fields = {k: v for k, v in case.items() if k in POLICY} | {"compiled": False}
    settings |= {k: v for k, v in case.items() if k not in (*PLACE, *POLICY, "masked")}
    return [
        made.make_learner(where, policy=make_policy(where, device=device, **fields), **settings)
        for device in ("cpu", "cuda")
    ]


def improve(pair, made, case, iterations):
    """Let both learn from the same experience; returns what they report."""
    found = []
    for iteration in range(iterations):
        own = made.random_rollout(pair[0], iteration, case.get("masked", False))
        rows = generator(iteration).standard_normal((len(own.active) + 1, own.active.shape[1], 4), np.float32)
        state = StateRows(rows, generator(9).standard_normal((len(own.finals.at), 4), np.float32))
        spaces = {"team": pair[0].group_spec.spaces}
        joint = Joint({"team": own}, iteration, 0.1, spaces, state if "state_size" in case else None)
        found = [one.learn(own, joint, generator(iteration)) for one in pair]
    return found


@needs_cuda
@pytest.mark.parametrize("name", PPO_CASES)
def test_ppo_learns_the_same_on_a_gpu(name):
    pair = on_both(ppo, network, PPO_CASES[name], epochs=5, minibatches=1, learning_rate=1e-3)
    found = improve(pair, ppo, PPO_CASES[name], 2)  # ten updates
    assert found[0] == pytest.approx(found[1], abs=1e-4, rel=1e-3)
    assert pair[1].policy.flat.value.is_cuda
    assert pair[1].critic.flat.value.is_cuda
    for flat in (lambda one: one.policy.flat, lambda one: one.critic.flat):
        mine, theirs = (flat(one).array for one in pair)
        assert np.abs(mine - theirs).max() < 1e-4


@needs_cuda
@pytest.mark.parametrize("name", DQN_CASES)
def test_dqn_learns_the_same_on_a_gpu(name):
    target = {"update": "soft", "tau": 0.1}
    pair = on_both(dqn, dqn.q_network, DQN_CASES[name], updates_per_step=5 / 36, learning_rate=1e-3, target=target)
    found = improve(pair, dqn, DQN_CASES[name], 2)  # ten updates
    assert found[0] == pytest.approx(found[1], abs=1e-4, rel=1e-3)
    for mine, theirs in zip(*((one.policy.flat, one.target.flat) for one in pair), strict=True):
        assert theirs.value.is_cuda
        assert np.abs(mine.array - theirs.array).max() < 1e-4


@needs_cuda
@pytest.mark.parametrize("name", MADDPG_CASES)
def test_maddpg_learns_the_same_on_a_gpu(name):
    pair = table_learners(MADDPG_CASES[name], "cpu", "cuda")
    for part in (pair[1].actor, *pair[1].critics):
        assert part.flat.value.is_cuda
        assert part.target_flat.value.is_cuda
    learn_alike(pair, MADDPG_CASES[name], 1e-4)


@needs_cuda
def test_a_checkpoint_of_a_gpu_is_read_on_the_cpu():
    mine, theirs = on_both(ppo, network, CASES["cnn"])
    improve([mine, theirs], ppo, CASES["cnn"], 1)
    mine.policy.load(theirs.policy.state())
    mine.load(theirs.state())
    assert np.array_equal(mine.policy.flat.array, theirs.policy.flat.array)
    assert np.array_equal(mine.critic.flat.mean, theirs.critic.flat.mean)
    theirs.policy.load(mine.policy.state())
    theirs.load(mine.state())
    own = ppo.random_rollout(mine, 5)
    found = [ppo.learn(one, own) for one in (mine, theirs)]
    assert found[0] == pytest.approx(found[1], abs=1e-4, rel=1e-3)
