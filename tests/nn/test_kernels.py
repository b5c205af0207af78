"""The compiled path: equal to autograd, to `distributions.py` and to NumPy, and honest about what is no number."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from coterie.algorithms.divergence import Diverged, demand_finite
from coterie.algorithms.ppo.minibatches import Batch
from coterie.core.decisions import Joint, StateRows
from coterie.core.types import Box, Discrete, MultiDiscrete
from coterie.nn import kernels
from coterie.nn.distributions import Choices
from helpers import distributions
from helpers.distributions import compiled_slopes
from helpers.ppo import actor, compiled, critic, evaluate_actions, learn, make_learner, random_rollout
from helpers.small_worlds import ACTIONS, generator, group_spec, network

# Activations ------------------------------------------------------------------------------------------


def activated(values, relu=False, bias=0.0):
    rows = np.array(values, np.float32).reshape(1, -1)
    kernels._activate(rows, np.full(rows.shape[1], bias, np.float32), relu)
    return rows[0]


def test_tanh_is_exact_to_a_millionth():
    x = np.concatenate([np.linspace(-20, 20, 200_001), np.linspace(-1e-3, 1e-3, 1001), [0.0, 1e30, -1e30]])
    found = activated(x)
    assert np.abs(found - np.tanh(x.astype(np.float32).astype(np.float64))).max() < 1e-6
    assert np.abs(found).max() <= 1
    assert activated([0.5], bias=0.25)[0] == pytest.approx(math.tanh(0.75), abs=1e-6)


def test_tanh_of_what_is_no_ordinary_number():
    found = activated([math.inf, -math.inf, math.nan])
    assert found[:2].tolist() == pytest.approx([1, -1], abs=1e-6)
    assert np.isnan(found[2])


def test_relu():
    assert activated([-2.0, 0.0, 3.0, math.inf, -math.inf], relu=True).tolist() == [0, 0, 3, math.inf, 0]
    assert activated([-2.0], relu=True, bias=2.5).tolist() == [0.5]
    assert np.isnan(activated([math.nan], relu=True)[0])


# Inputs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("identity", [True, False])
@pytest.mark.parametrize("parameters", ["shared", "individual"])
def test_inputs_are_normalised_arranged_and_get_identities(parameters, identity):
    policy = network(group_spec(agents=3, parameters=parameters), identity=identity)
    packed = generator().standard_normal((5, 3, 3), np.float32) * 30
    agents = np.array([2, 0, 1])
    for _ in range(2):  # before and after the first statistics
        x = policy.normalizer(policy.arrange(packed))
        if policy.shape.extra:
            x = np.concatenate([x, np.tile(np.eye(3, dtype=np.float32)[agents], (5, 1))[None]], axis=-1)
        found = policy.prepare(packed, agents)
        assert found.dtype == np.float32
        assert found.shape == x.shape
        assert np.allclose(found, x, atol=1e-6)
        policy.normalizer.update(
            [generator(s).standard_normal((9, 3)) + s for s in range(policy.group_spec.parameter_sets)]
        )
    assert np.abs(found[..., :3]).max() == 10


def test_inputs_that_are_no_numbers_stay_so():
    policy = network(group_spec())
    packed = np.zeros((4, 2, 3), np.float32)
    packed[1, 1, 2] = math.nan
    for _ in range(2):
        assert np.argwhere(np.isnan(policy.prepare(packed, np.arange(2)))).tolist() == [[0, 3, 2]]
        policy.normalizer.update([generator().standard_normal((9, 3))])


# Choices ------------------------------------------------------------------------------------------------


def say(policy, outputs):
    """Let a policy's network say the same outputs to everything it sees."""
    for parameter in policy.net.parameters():
        parameter.data.zero_()
    policy.net.out.bias.data[:] = torch.tensor(outputs)
    return policy


def draw(policy, rows, mask=None, greedy=False, seed=0):
    """Actions `[rows, K]` and log-probabilities `[rows]` of a lone agent."""
    x = np.zeros((1, rows, 3), np.float32)
    legal = np.zeros((0, 0, 0), bool) if mask is None else np.broadcast_to(mask, (1, rows, len(mask))).copy()
    shape = (1, rows, len(policy.choices))
    uniform = np.zeros(shape) if greedy else generator(seed).random(shape)
    action, log_prob = kernels.act(policy.flat.array, *policy.spec, x, legal, policy.choices, uniform, greedy)
    return action[0], log_prob[0]


def softmax(logits):
    weights = np.exp(np.array(logits) - np.max(logits))
    return weights / weights.sum()


def test_choices_come_as_often_as_their_probabilities_say():
    logits, rows = [0.3, -1.0, 2.0, 0.0], 40_000
    policy = say(network(group_spec(agents=1)), logits)
    action, log_prob = draw(policy, rows)
    expected = softmax(logits)
    often = np.bincount(action[:, 0], minlength=4) / rows
    assert np.abs(often - expected).max() < 4 * np.sqrt(0.25 / rows)
    assert np.allclose(log_prob, np.log(expected)[action[:, 0]], atol=1e-6)


def test_several_choices_are_independent():
    policy = say(network(group_spec(MultiDiscrete((3, 2)), agents=1)), [0.3, -1.0, 1.0, 0.5, -0.5])
    action, log_prob = draw(policy, 40_000)
    one, two = softmax([0.3, -1.0, 1.0]), softmax([0.5, -0.5])
    both = np.zeros((3, 2))
    np.add.at(both, tuple(action.T), 1 / len(action))
    assert np.abs(both - np.outer(one, two)).max() < 0.01
    assert np.allclose(log_prob, np.log(one)[action[:, 0]] + np.log(two)[action[:, 1]], atol=1e-6)


def test_what_is_illegal_is_never_chosen():
    policy = say(network(group_spec(agents=1)), [50.0, -30.0, -31.0, 49.0])
    mask = np.array([False, True, True, False])
    for greedy in (False, True):
        action, log_prob = draw(policy, 20_000, mask, greedy)
        assert set(action[:, 0]) == ({1} if greedy else {1, 2})
        assert np.allclose(log_prob, np.log(softmax([-30.0, -31.0]))[action[:, 0] - 1], atol=1e-5)


def test_greedy_takes_the_first_of_the_likeliest():
    assert set(draw(say(network(group_spec(agents=1)), [0.0, 1.0, 1.0, 1.0]), 5, greedy=True)[0][:, 0]) == {1}
    mask = np.array([True, False, False, True])
    assert set(draw(say(network(group_spec(agents=1)), [1.0, 1.0, 1.0, 1.0]), 5, mask, greedy=True)[0][:, 0]) == {0}


@pytest.mark.parametrize("u", [0.0, np.nextafter(1.0, 0.0)])
def test_the_edges_of_the_uniform_are_legal(u):
    policy = say(network(group_spec(agents=1)), [0.0, 3.0, 1.0, 0.0])
    mask = np.array([[[False, True, True, False]]])
    x, uniform = np.zeros((1, 1, 3), np.float32), np.full((1, 1, 1), u)
    action, _ = kernels.act(policy.flat.array, *policy.spec, x, mask, policy.choices, uniform, False)
    assert action[0, 0, 0] == (1 if u == 0 else 2)


@pytest.mark.parametrize("hidden", [(5,), (7, 6), (4, 5, 6)])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("action", ["discrete", "multi-discrete"])
def test_log_probabilities_equal_those_of_heads(action, activation, hidden):
    policy = network(group_spec(ACTIONS[action], agents=1), hidden=hidden, activation=activation)
    policy.flat.array[:] = generator().standard_normal(policy.flat.array.shape) * 0.6
    x, rows = generator(1).standard_normal((1, 1100, 3), np.float32), 1100  # more than two blocks
    mask = generator(2).random((1, rows, policy.head.outputs)) < 0.7
    for start in np.cumsum([0, *policy.choices[:-1]]):
        mask[..., start] = True
    shape = (1, rows, len(policy.choices))
    for greedy in (False, True):
        uniform = generator(3).random(shape)
        chosen, log_prob = kernels.act(policy.flat.array, *policy.spec, x, mask, policy.choices, uniform, greedy)
        with torch.no_grad():
            out = policy.net(torch.from_numpy(x))[0]
            given = torch.from_numpy(chosen[..., 0] if policy.head.single else chosen)
            expected, _ = distributions.evaluate_actions(policy.head, out, given, torch.from_numpy(mask))
        assert np.allclose(log_prob, expected.numpy(), atol=1e-5)
        if greedy:
            best, _ = policy.head.act(out.numpy(), mask, generator(), True)
            assert np.array_equal(best, given.numpy())


@pytest.mark.parametrize("masked", [False, True])
def test_slopes_of_choices_equal_those_of_autograd(masked):
    sizes, random = (3, 2, 4), generator()
    head = Choices((3, 2, 4), single=False)
    for _ in range(20):
        logits = random.standard_normal(9).astype(np.float32) * 2
        action = np.array([random.integers(size) for size in sizes])
        legal = random.random(9) < 0.6 if masked else np.ones(9, bool)
        legal[np.cumsum([0, 3, 2]) + action] = True
        given = legal[None] if masked else None
        slopes = np.full(1, -0.7, np.float32), np.full(1, 0.3, np.float32)
        log_prob, entropy, found = compiled_slopes(head, logits[None], action[None], given, *slopes)
        said = torch.from_numpy(logits).requires_grad_()
        expected = distributions.evaluate_actions(head, said, torch.from_numpy(action), torch.from_numpy(legal))
        assert log_prob[0] == pytest.approx(expected[0].item(), abs=1e-5)
        assert entropy[0] == pytest.approx(expected[1].item(), abs=1e-5)
        (-0.7 * expected[0] + 0.3 * expected[1]).backward()
        assert np.allclose(found[0], said.grad.numpy(), atol=1e-6)


def test_values_equal_the_networks():
    one = make_learner(group_spec(agents=1), compiled=True)
    x = generator().standard_normal((1, 1500, 3), np.float32)
    with torch.no_grad():
        expected = one.critic_network(torch.from_numpy(x))[0][..., 0].numpy()
    assert np.allclose(one.evaluate(x), expected, atol=1e-6)


# Adam ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1e9, 0.7])
def test_adam_is_pytorchs(limit):
    random = generator()
    flat = random.standard_normal(50).astype(np.float32)
    mean, square = np.zeros_like(flat), np.zeros_like(flat)
    other = torch.nn.Parameter(torch.from_numpy(flat.copy()))
    adam = torch.optim.Adam([other], lr=0.01, eps=1e-5)
    for step in range(1, 31):
        grad = (random.standard_normal(50) * 10.0 ** random.integers(-4, 2)).astype(np.float32)
        rate = 0.01 / step  # a schedule
        adam.param_groups[0]["lr"] = rate
        other.grad = torch.from_numpy(grad.copy())
        torch.nn.utils.clip_grad_norm_([other], limit)
        adam.step()
        kernels.adam(flat, grad, mean, square, step, rate, limit)
        assert np.allclose(flat, other.detach().numpy(), atol=1e-6)
    moments = adam.state[other]
    assert np.allclose(mean, moments["exp_avg"].numpy(), atol=1e-6)
    assert np.allclose(square, moments["exp_avg_sq"].numpy(), atol=1e-6, rtol=1e-5)


def test_adam_passes_on_what_is_no_number():
    for bad in (math.nan, math.inf):
        flat, mean, square = np.zeros(3, np.float32), np.zeros(3, np.float32), np.zeros(3, np.float32)
        kernels.adam(flat, np.array([1, bad, 1], np.float32), mean, square, 1, 0.01, 0.5)
        assert np.isnan(flat[1])


# PPO ----------------------------------------------------------------------------------------------------

CASES = {
    "plain": {},
    "relu": {"activation": "relu"},
    "one layer": {"hidden": (9,)},
    "three layers": {"hidden": (8, 12, 7)},
    "three layers, relu": {"hidden": (8, 12, 7), "activation": "relu"},
    "individual": {"parameters": "individual"},
    "individual, relu": {"parameters": "individual", "activation": "relu"},
    "masked": {"masked": True},
    "masked, individual": {"masked": True, "parameters": "individual"},
    "several choices": {"action": MultiDiscrete((3, 2, 4))},
    "several choices, masked": {"action": MultiDiscrete((3, 2, 4)), "masked": True},
    "a choice of one": {"action": MultiDiscrete((1, 3))},
    "value clip": {"value_clip": 0.3},
    "value clip, individual": {"value_clip": 0.3, "parameters": "individual"},
    "raw advantages": {"normalize_advantages": False},
    "padding": {"padded": True},
    "padding, individual": {"padded": True, "parameters": "individual"},
    "central": {"state_size": 6, "central_critic": True},
    "central, individual": {"state_size": 6, "central_critic": True, "parameters": "individual"},
    "no bonus": {"entropy_coefficient": 0.0},
    "tight": {"max_grad_norm": 0.01, "clip": 0.02},
    "two rates": {"critic_learning_rate": 3e-3},
    "many rows": {"rows": 1300, "minibatches": 2},
    "a row each": {"rows": 3, "minibatches": 3},
    "target kl": {"target_kl": 1e-3},
}
POLICY_FIELDS = ("hidden", "activation")
PLACE_FIELDS = ("action", "parameters", "state_size")


def pair(case):
    """The same learner on either path."""
    where = group_spec(agents=2, **{k: v for k, v in case.items() if k in PLACE_FIELDS})
    fields = {"hidden": (16, 16)} | {k: v for k, v in case.items() if k in POLICY_FIELDS}
    other = (*POLICY_FIELDS, *PLACE_FIELDS, "masked", "padded", "rows")
    settings = {"learning_rate": 1e-3, "epochs": 3, "minibatches": 4, "gamma": 0.9}
    settings |= {k: v for k, v in case.items() if k not in other}
    made = [make_learner(where, policy=network(where, compiled=c, **fields), **settings) for c in (True, False)]
    assert [compiled(one) for one in made] == [True, False]
    for one in made:  # so that returns have a scale, and outputs differ
        one.returns.update(
            generator().standard_normal((where.parameter_sets, 9)) * 3, np.ones((where.parameter_sets, 9))
        )
        one.policy.net.out.weight.data *= 50
    return made


def random_batch(one, case, seed):
    """Rows of random numbers in every field, decided by a policy not far from this one."""
    random, parameter_sets, rows = generator(seed), one.group_spec.parameter_sets, case.get("rows", 100)
    x = random.standard_normal((parameter_sets, rows, one.policy.net.sizes[0]), np.float32)
    seen = random.standard_normal((parameter_sets, rows, one.critic_network.sizes[0]), np.float32)
    sizes = one.policy.choices
    action = np.stack([random.integers(size, size=(parameter_sets, rows)) for size in sizes], axis=-1)
    mask = None
    if case.get("masked"):
        mask = random.random((parameter_sets, rows, sizes.sum())) < 0.6
        for k, start in enumerate(np.cumsum([0, *sizes[:-1]])):
            np.put_along_axis(mask, start + action[..., k : k + 1], True, axis=-1)
    weight = np.ones((parameter_sets, rows), np.float32)
    if case.get("padded"):
        for stack in range(parameter_sets):
            weight[stack, rows - 7 - 30 * stack :] = 0
    action = action[..., 0] if isinstance(one.group_spec.spaces.action, Discrete) else action
    numbers = [random.standard_normal((parameter_sets, rows), np.float32) for _ in range(4)]
    importance = np.exp(numbers[2])
    batch = Batch(x, seen, action, mask, numbers[0], importance, numbers[1] * 3 + 1, numbers[2], numbers[3], weight)
    with torch.no_grad():
        log_prob = evaluate_actions(one, batch)[0].numpy() + numbers[0] * np.float32(0.2)
    if case.get("padded"):
        log_prob[weight == 0] = -1000  # whose ratio is infinite
    return batch._replace(log_prob=log_prob)


@pytest.mark.parametrize("name", CASES)
def test_learning_equals_autograd(name):
    case = CASES[name]
    fast, slow = pair(case)
    assert np.array_equal(actor(fast), actor(slow))
    first = actor(fast), critic(fast)
    for iteration in range(2):
        batch = random_batch(slow, case, iteration)
        found = [one.improve(batch, one.schedule(0.3 * iteration), generator(iteration)) for one in (fast, slow)]
        assert found[0] == pytest.approx(found[1], abs=1e-5, rel=1e-5)
        for mine, theirs in ((fast.policy.flat, slow.policy.flat), (fast.critic.flat, slow.critic.flat)):
            assert np.array_equal(mine.steps, theirs.steps)
            assert (mine.steps > 0).all()
            assert np.abs(mine.array - theirs.array).max() < 1e-5
            assert np.abs(mine.mean - theirs.mean).max() < 1e-5
            assert np.abs(mine.square - theirs.square).max() < 1e-5
    assert np.abs(actor(fast) - first[0]).max() > 1e-3  # something was learned
    assert np.abs(critic(fast) - first[1]).max() > 1e-3


@pytest.mark.parametrize("parameters", ["shared", "individual"])
@pytest.mark.parametrize("central", [False, True])
def test_whole_iterations_equal_autograd(parameters, central):
    fast, slow = pair({"parameters": parameters, "state_size": 6, "central_critic": central, "value_clip": 0.5})
    for iteration in range(3):
        own = random_rollout(slow, iteration, masked=True)
        rows = generator(iteration).standard_normal((len(own.valid) + 1, own.valid.shape[1], 6), np.float32)
        state = StateRows(rows, generator(9).standard_normal((len(own.finals.at), 6), np.float32))
        joint = Joint({"team": own}, iteration, 0.1 * iteration, {}, state)
        found = [one.learn(own, joint, generator(iteration)) for one in (fast, slow)]
        assert found[0] == pytest.approx(found[1], abs=1e-5, rel=1e-4)
    assert np.abs(actor(fast) - actor(slow)).max() < 1e-5
    assert np.abs(critic(fast) - critic(slow)).max() < 1e-5


def test_a_step_that_is_no_number_is_not_hidden():
    for field in ("actor_input", "critic_input", "advantage", "target", "log_prob"):
        for one in pair({}):
            batch = random_batch(one, {}, 0)
            getattr(batch, field)[0, 17] = math.nan
            metrics = one.improve(batch, one.schedule(0.0), generator())
            with pytest.raises(Diverged, match="learning diverged"):
                demand_finite("team", metrics, (), (one.policy.flat.array, one.critic.flat.array))


@pytest.mark.parametrize("family", ["beta", "gaussian"])
def test_continuous_actions_are_learned_by_the_compiled_loops(family):
    where = group_spec(Box((2,), -1.0, 1.0))
    fast, slow = (make_learner(where, policy=network(where, continuous=family, compiled=c)) for c in (True, False))
    assert [compiled(one) for one in (fast, slow)] == [True, False]
    for one in (fast, slow):
        learn(one, random_rollout(slow))
    assert np.abs(actor(fast) - actor(slow)).max() < 1e-5
    assert np.abs(critic(fast) - critic(slow)).max() < 1e-5


def test_without_scipy_everything_goes_through_pytorch(monkeypatch):
    monkeypatch.setattr(kernels, "available", lambda: False)
    one = make_learner(compiled=True)
    assert not compiled(one)
    own = random_rollout(one)
    learn(one, dataclasses.replace(own, reward=own.reward + 1))
