"""PopArt and recurrent minibatches of PPO against float64 formulas of the papers, written without its code."""

import dataclasses

import numpy as np
import pytest
import torch

from coterie.training.runner import Runner
from helpers.ppo import compiled as is_compiled
from helpers.ppo import learn, make_learner, random_rollout, values_of
from helpers.small_worlds import ACTIONS, Leavers, Recall, Rounds, actors, generator, group_spec, network, spec_in


class PopArt:
    """van Hasselt et al. 2016, eq. 3 and 6 and algorithm 1: new moments, and a last layer that keeps its outputs."""

    def __init__(self, weight, bias):
        self.weight, self.bias, self.mean, self.square = weight, bias, 0.0, 1.0

    def rescale(self, mean, scale, new_mean, new_scale):
        self.weight = self.weight * scale / new_scale
        self.bias = (scale * self.bias + mean - new_mean) / new_scale


def gru(x, h, weight_x, weight_h, bias_x, bias_h):
    """Cho et al. 2014 as PyTorch documents it: reset, update and candidate; `x [B, I]`, `h [B, H]`."""
    size = h.shape[-1]
    a, b = x @ weight_x + bias_x, h @ weight_h + bias_h
    reset = torch.sigmoid(a[..., :size] + b[..., :size])
    update = torch.sigmoid(a[..., size : 2 * size] + b[..., size : 2 * size])
    candidate = torch.tanh(a[..., 2 * size :] + reset * b[..., 2 * size :])
    return (1 - update) * candidate + update * h


def clipped_objective(log_ratio, advantage, clip):
    """Schulman et al. 2017, eq. 7, of each decision."""
    ratio = log_ratio.exp()
    return torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)


# The update ---------------------------------------------------------------------------------------------

GAMMA, LAMBDA, CLIP, ENTROPY, RATE, LIMIT = 0.9, 0.8, 0.2, 0.01, 0.01, 0.5
SETTINGS = {
    "gamma": GAMMA,
    "gae_lambda": LAMBDA,
    "clip": CLIP,
    "entropy_coefficient": ENTROPY,
    "learning_rate": RATE,
    "learning_rate_schedule": "constant",
    "max_grad_norm": LIMIT,
}


class Network:
    """The weights of one parameter set of a learner's network in float64, with Adam; none of its code."""

    def __init__(self, net, s):
        layers = [*net.body.layers, *([] if net.cell is None else [net.cell.read, net.cell.recall]), net.out]
        self.weights = [w[s].detach().double().clone() for layer in layers for w in (layer.weight, layer.bias)]
        self.hidden, self.remembers = 2 * len(net.body.layers), net.cell is not None
        self.optimiser = torch.optim.Adam([w.requires_grad_() for w in self.weights], lr=RATE, eps=1e-5)

    def features(self, x):
        for weight, bias in zip(self.weights[: self.hidden : 2], self.weights[1 : self.hidden : 2], strict=True):
            x = torch.tanh(x @ weight + bias)
        return x

    def __call__(self, x, memory=None):
        """Outputs for one row `[I]`, and the memory after it."""
        x = self.features(x[None])
        if self.remembers:
            read, read_bias, recall, recall_bias = self.weights[self.hidden : self.hidden + 4]
            x = memory = gru(x, memory, read, recall, read_bias, recall_bias)
        return (x @ self.weights[-2] + self.weights[-1])[0], memory

    def step(self, loss):
        self.optimiser.zero_grad()
        loss.backward()
        norm = torch.sqrt(sum((w.grad**2).sum() for w in self.weights))
        for w in self.weights:
            w.grad *= min(1.0, LIMIT / float(norm))
        self.optimiser.step()

    def expect_near(self, net, s):
        for mine, theirs in zip(self.weights, Network(net, s).weights, strict=True):
            np.testing.assert_allclose(mine.detach(), theirs.detach(), atol=1e-5)


def decisions(own, n, a, values, last_value):
    """Decisions of one agent: `(t, reward until the next one, value that follows, a decision follows)`."""
    found = []
    for t in np.flatnonzero(own.valid[:, n, a]):
        ends = own.terminated[t, n, a] or own.truncated[t, n, a]
        follows = (
            values[own.next[t, n, a], n, a] if not ends else last_value(t, n, a) if own.truncated[t, n, a] else 0.0
        )
        found.append((t, float(own.reward[t, n, a]), follows, not ends))
    return found


class Reference:
    """PPO for one parameter set: the agents in `columns`."""

    def __init__(self, one, s):
        shared = one.group_spec.parameter_sets == 1
        self.agents, self.s = len(one.group_spec.agents), s
        self.columns = range(self.agents) if shared else [s]
        self.shared = shared
        self.actor, self.critic = Network(one.policy.net, s), Network(one.critic_network, s)
        self.popart = PopArt(*self.critic.weights[-2:])
        self.seen = []  # every return so far

    def see(self, observation, a, memory=None):
        parts = [observation, *([np.eye(self.agents)[a]] if self.shared else []), *([] if memory is None else [memory])]
        return torch.from_numpy(np.concatenate(parts).astype(float))

    def value(self, observation, a, memory=None):
        """In the world's units."""
        mean, scale = self.moments()
        return mean + scale * self.critic(self.see(observation, a, memory))[0][0]

    def moments(self):
        if not self.seen:
            return 0.0, 1.0
        return float(np.mean(self.seen)), float(np.std(self.seen))

    def learn(self, own, epochs, minibatches, random):
        remembered = own.memory is not None
        copies = own.valid.shape[1]
        memory = own.memory if remembered else np.empty(own.observation.shape[:3] + (0,))

        def value(t, n, a):
            return float(self.value(own.observation[t, n, a], a, memory[t, n, a]))

        def last_value(t, n, a):
            row = own.next[t, n, a]
            if row <= len(own.valid):
                return value(row, n, a)
            k = row - len(own.valid) - 1
            return float(self.value(own.finals.observation[k, a], a, own.finals.memory[k, a] if remembered else None))

        with torch.no_grad():
            values = np.array(
                [
                    [[value(t, n, a) if a in self.columns else 0.0 for a in range(self.agents)] for n in range(copies)]
                    for t in range(len(own.observation))
                ]
            )
            sequences = [(n, a) for n in range(copies) for a in self.columns]
            advantage, returns = {}, {}
            for n, a in sequences:
                following = 0.0
                for t, reward, ahead, goes_on in reversed(decisions(own, n, a, values, last_value)):
                    delta = reward + GAMMA * ahead - values[t, n, a]
                    following = delta + GAMMA * LAMBDA * following * goes_on
                    advantage[t, n, a], returns[t, n, a] = following, following + values[t, n, a]
            mean, scale = self.moments()
            self.seen += returns.values()
            new_mean, new_scale = self.moments()
            weight, bias = self.critic.weights[-2:]
            self.popart = PopArt(weight.clone(), bias.clone())
            self.popart.rescale(mean, scale, new_mean, new_scale)
            weight.copy_(self.popart.weight)
            bias.copy_(self.popart.bias)
        first = None
        for _ in range(epochs):
            for cut in np.array_split(random.permutation(len(sequences)), minibatches):
                rows, log_ratios, entropies, errors = [], [], [], []
                for n, a in (sequences[i] for i in cut):
                    h = torch.from_numpy(memory[0, n, a].astype(float))[None]
                    for t in range(len(own.valid)):
                        if t and own.ends[t - 1, n, a]:
                            h = torch.zeros_like(h)
                        if not own.valid[t, n, a]:
                            continue
                        out, h = self.actor(self.see(own.observation[t, n, a], a), h)
                        if (t, n, a) not in advantage:
                            continue
                        log_probs = out - torch.logsumexp(out, 0)
                        rows.append((t, n, a))
                        log_ratios.append(log_probs[own.action[t, n, a]] - float(own.log_prob[t, n, a]))
                        entropies.append(-(log_probs.exp() * log_probs).sum())
                        said = self.critic(self.see(own.observation[t, n, a], a, memory[t, n, a]))[0][0]
                        errors.append(said - (returns[t, n, a] - new_mean) / new_scale)
                first = torch.stack(log_ratios).detach() if first is None else first
                gain = np.array([advantage[row] for row in rows])
                gain = torch.from_numpy((gain - gain.mean()) / (gain.std() + 1e-8))
                objective = clipped_objective(torch.stack(log_ratios), gain, CLIP) + ENTROPY * torch.stack(entropies)
                self.actor.step(-objective.mean())
                self.critic.step((torch.stack(errors) ** 2).mean() / 2)
        return first


def learner(where, parameters, compiled=True, **fields):
    policy = network(where, hidden=(6, 5), activation="tanh", compiled=compiled, normalize_observations=False, **fields)
    return make_learner(where, policy=policy, **SETTINGS, epochs=2, minibatches=1)


@pytest.mark.parametrize("parameters", ["shared", "individual"])
@pytest.mark.parametrize("compiled", [True, False])
def test_iterations_with_popart_are_those_of_the_papers(parameters, compiled):
    one = learner(group_spec(parameters=parameters), parameters, compiled)
    assert is_compiled(one) == compiled
    references = [Reference(one, s) for s in range(one.group_spec.parameter_sets)]
    for iteration, (size, shift) in enumerate([(1, 0), (40, -9), (0.3, 5)]):
        own = random_rollout(one, iteration)
        own = dataclasses.replace(own, reward=own.reward * np.float32(size) + np.float32(shift))
        learn(one, own)
        for s, reference in enumerate(references):
            log_ratio = reference.learn(own, 2, 1, generator())
            assert log_ratio.abs().max() < 1e-5
            mean, scale = reference.moments()
            assert one.returns.shift[s, 0] == pytest.approx(mean, rel=1e-5)
            assert one.returns.scale[s, 0] == pytest.approx(scale, rel=1e-5)
            reference.actor.expect_near(one.policy.net, s)
            reference.critic.expect_near(one.critic_network, s)


@pytest.mark.parametrize("parameters", ["shared", "individual"])
@pytest.mark.parametrize("compiled", [True, False])
def test_values_stay_the_same_while_the_statistics_of_returns_change(parameters, compiled):
    where = group_spec(parameters=parameters)
    policy = network(where, compiled=compiled, normalize_observations=False)
    one = make_learner(where, policy=policy, critic_learning_rate=1e-30)
    probe = generator(9).standard_normal((20, 2, 3)).astype(np.float32)
    before, scales = values_of(one, probe), []
    for iteration, size in enumerate((1, 300, 0.01, 20_000)):
        own = random_rollout(one, iteration)
        learn(one, dataclasses.replace(own, reward=(own.reward + 1) * np.float32(size)))
        scales.append(one.returns.scale.copy())
        np.testing.assert_allclose(values_of(one, probe), before, atol=2e-7 * np.max(scales[-1]) + 1e-5)
    assert scales[-1].min() > 100 * scales[0].max()


@pytest.mark.parametrize(
    ("world", "turns"),
    [
        (Leavers(ACTIONS["discrete"], num_envs=2, length=7), False),
        (Rounds(num_envs=2, agents=3, length=7), True),
        (Recall(num_envs=3, agents=2, length=4), False),
        (Recall(num_envs=3, agents=2, length=4, truncates=True), False),
    ],
    ids=["leavers", "turns", "deaths", "limits"],
)
def test_updates_of_a_gru_are_those_of_a_plain_loop(world, turns):
    """Over sequences with ends inside: agents die or are truncated, also alone, and return with the next episode."""
    where = spec_in(world)
    one = learner(where, "shared", memory=4)
    one.settings = dataclasses.replace(one.settings, minibatches=2)
    for i, parameter in enumerate(one.policy.net.parameters()):
        parameter.data += 0.5 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(i))
    runner = Runner(world, actors((where, one.policy)), seed=0)
    reference, remembered = Reference(one, 0), False
    for iteration, steps in enumerate((9, 6, 8)):
        own = runner.play(steps, iteration).decisions["team"]
        assert own.ends[:-1].any()
        remembered |= bool(own.memory[0].any())
        learn(one, own)
        log_ratio = reference.learn(own, 2, 2, generator())
        if iteration == 0 or not turns:  # in turns, a decision left open was taken with earlier weights
            assert log_ratio.abs().max() < 1e-5
        reference.actor.expect_near(one.policy.net, 0)
        reference.critic.expect_near(one.critic_network, 0)
    assert remembered
