"""SAC: updates against an independent implementation of the paper, both paths against each other, every setting."""

import dataclasses
import functools
import itertools
import math

import numpy as np
import pytest
import torch

from coterie.algorithms.divergence import Diverged
from coterie.algorithms.joint_transitions import JointTransitions
from coterie.algorithms.replay import MemorySettings
from coterie.algorithms.sac.sac import SACCriticSettings, SACSettings, TemperatureSettings
from coterie.core.decisions import Finals
from coterie.core.types import Box, Discrete
from coterie.nn.nets import CompiledNet
from coterie.preferences.standard import Team, TeamSettings
from helpers.sac import BOX, gaussian, joint_of, learn, make_learner, random_decisions, weights
from helpers.small_worlds import experience, generator, group_spec

ONE = 1 / 36  # one update for the 36 environment steps of random experience


@pytest.fixture(params=["compiled", "autograd"])
def sac(request):
    """`make_learner` on either path."""
    return functools.partial(make_learner, compiled=request.param == "compiled")


# A second implementation, written from the paper alone ------------------------------------------------------


class PaperSAC:
    """Haarnoja et al. 2018 (arXiv 1812.05905), algorithm 1, for one network of each kind, by plain autograd."""

    def __init__(self, one):
        self.one = one
        self.actor = [p.detach().clone().requires_grad_() for p in one.policy.net.parameters()]
        self.critics = [[p.detach().clone().requires_grad_() for p in c.net.module.parameters()] for c in one.critics]
        self.targets = [[p.detach().clone() for p in c.target.module.parameters()] for c in one.critics]
        self.log_alpha = torch.tensor(math.log(one.settings.temperature.start), requires_grad=True)
        s = one.settings
        self.adams = {
            "critic": torch.optim.Adam([*itertools.chain(*self.critics)], s.learning_rate, eps=1e-5),
            "actor": torch.optim.Adam(self.actor, s.learning_rate, eps=1e-5),
            "alpha": torch.optim.Adam([self.log_alpha], s.learning_rate, eps=1e-5),
        }

    @staticmethod
    def network(parameters, x):
        first, bias, last, out = parameters
        return torch.relu(x @ first[0] + bias[0]) @ last[0] + out[0]

    def policy(self, x, noise):
        """Reparametrised actions and log-densities by PyTorch's own change of variables."""
        mean, log_std = self.network(self.actor, x).chunk(2, dim=-1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-5, 2).exp())
        squash = torch.distributions.TanhTransform(cache_size=1)
        action = squash(mean + normal.scale * noise)
        return action, torch.distributions.TransformedDistribution(normal, [squash]).log_prob(action).sum(-1)

    def value(self, critic, x, action):
        return self.network(critic, torch.cat([x, action], dim=-1))[:, 0]

    def descend(self, name, loss):
        self.adams[name].zero_grad()
        loss.backward()
        self.adams[name].step()

    def update(self, rows, next_noise, noise):
        x, next_x, action, reward, discount = (torch.from_numpy(array) for array in rows)
        s, alpha = self.one.settings, self.log_alpha.exp().detach()
        with torch.no_grad():
            next_action, next_log_prob = self.policy(next_x, torch.from_numpy(next_noise))
            values = [self.value(target, next_x, next_action) for target in self.targets]
            y = reward + discount * (torch.minimum(*values) - alpha * next_log_prob)
        self.descend("critic", sum(0.5 * (self.value(c, x, action) - y).square().mean() for c in self.critics))
        found, log_prob = self.policy(x, torch.from_numpy(noise))
        lower = torch.minimum(*(self.value(critic, x, found) for critic in self.critics))
        self.descend("actor", (alpha * log_prob - lower).mean())
        self.descend("alpha", (-self.log_alpha * (log_prob.detach() + self.one.hyperparams(0.0).target_entropy)).mean())
        for target, critic in zip(self.targets, self.critics, strict=True):
            for behind, ahead in zip(target, critic, strict=True):
                behind += s.tau * (ahead.detach() - behind)


@pytest.mark.parametrize("width", [1, 3])
def test_updates_are_those_of_the_paper(sac, width):
    box = Box((width,), np.full(width, 2.0, np.float32), np.arange(3, 3 + width).astype(np.float32))  # without 0
    where = group_spec(box, agents=1)
    one = sac(where, learning_rate=3e-3, gamma=0.9, tau=0.1, temperature={"start": 0.3}, batch_size=32)
    own = random_decisions(one)
    own = dataclasses.replace(own, valid=np.ones_like(own.valid))
    one.policy.net.out.weight.data *= 30  # so that actions differ
    for critic in one.critics:
        critic.target.flat.array[:] *= 1.3
    twin = PaperSAC(one)
    one.remember(own, joint_of(one, own))
    draws = one.draw(5, generator(3))
    one.improve(draws, one.hyperparams(0.0))
    rows = one.replay.rows
    for index, (next_noise, noise) in zip(draws.indices, draws.noise, strict=True):
        assert rows.valid[index].all()
        drawn = (rows.observation, rows.next_obs, rows.action, rows.reward[:, 0], rows.discount[:, 0])
        twin.update([array[index] for array in drawn], next_noise[0], noise[0])
    assert twin.log_alpha.item() == pytest.approx(float(one.temperature.flat[0, 0]), abs=1e-5)
    pairs = [(one.policy.net, twin.actor), *((c.net.module, t) for c, t in zip(one.critics, twin.critics, strict=True))]
    pairs += [(c.target.module, t) for c, t in zip(one.critics, twin.targets, strict=True)]
    for net, parameters in pairs:
        for mine, theirs in zip(net.parameters(), parameters, strict=True):
            assert np.abs(mine.detach().numpy() - theirs.detach().numpy()).max() < 2e-5


# Both paths -------------------------------------------------------------------------------------------------


def cases():
    for parameters, agents in (("shared", 1), ("shared", 2), ("individual", 2)):
        yield {"parameters": parameters, "agents": agents}
    yield {"policy": {"activation": "tanh", "hidden": (8, 12)}, "critic": {"activation": "relu", "hidden": (9,)}}
    yield {"policy": {"normalize_observations": False, "identity": False}, "max_grad_norm": 0.01}
    yield {"temperature": {"learned": False, "start": 0.2}, "batch_size": 1}
    yield {"learning_rate_schedule": "linear", "critic": {"learning_rate": 3e-3}, "parameters": "individual"}
    yield {"observation": Box((2, 4, 4), 0, 255, "uint8"), "policy": {"encoder": "mlp"}}


@pytest.mark.parametrize("case", [*cases()], ids=str)
def test_the_compiled_path_equals_autograd(case):
    case = dict(case)
    where = group_spec(BOX, **{k: case.pop(k) for k in ("parameters", "agents", "observation") if k in case})
    fields = case.pop("policy", {})
    fast, slow = (
        make_learner(where, gaussian(where, compiled=compiled, **fields), learning_rate=1e-3, **case)
        for compiled in (True, False)
    )
    assert [isinstance(one.actor, CompiledNet) for one in (fast, slow)] == [True, False]
    for one in (fast, slow):
        one.policy.net.out.weight.data *= 50
    for iteration in range(3):  # the later ones with observations normalised
        own = random_decisions(slow, iteration)
        found = [learn(one, own, iteration, 0.3 * iteration) for one in (fast, slow)]
        assert found[0] == pytest.approx(found[1], abs=1e-5, rel=1e-4)
        assert found[0]["updates"] == 9
    for mine, theirs in zip((fast.actor, *fast.critics), (slow.actor, *slow.critics), strict=True):
        assert np.array_equal(mine.flat.steps, theirs.flat.steps)
        assert np.abs(mine.flat.array - theirs.flat.array).max() < 1e-5
    for mine, theirs in zip(fast.critics, slow.critics, strict=True):
        assert np.abs(mine.target.flat.array - theirs.target.flat.array).max() < 1e-5
    assert np.abs(fast.temperature.flat - slow.temperature.flat).max() < 1e-5


@pytest.mark.parametrize(("end", "bootstraps"), [(None, True), ("truncated", True), ("terminated", False)])
def test_truncation_bootstraps_and_termination_does_not(sac, end, bootstraps):
    one = sac(group_spec(Box((1,), 0.0, 2.0), Box((1,), -9.0, 9.0), agents=1), gamma=0.5, batch_size=1)
    for net in (one.policy.net, *(c.target.module for c in one.critics), *(c.net.module for c in one.critics)):
        for parameter in net.parameters():
            parameter.data[:] = 0
    one.critics[0].target.module.out.bias.data[:] = 10.0
    one.critics[1].target.module.out.bias.data[:] = 8.0  # the lower one counts
    cut = end == "truncated"
    finals = Finals(np.array([(0, 0)] if cut else []).reshape(-1, 2).astype(int), np.full((int(cut), 1, 1), 2, "f4"))
    seen, done = np.zeros((3, 1, 1, 1), np.float32), np.ones((2, 1, 1, 1), np.float32)
    own = experience([[3], [0]], observation=seen, finals=finals, action=done, **({end: [(0, 0)]} if end else {}))
    one.remember(own, joint_of(one, own))
    draws = one.draw(1, generator())
    draws.indices[:], draws.noise[:] = 0, 0
    run = one.improve
    td_error = run(draws, one.hyperparams(0.0)._replace(actor_rate=0.0, critic_rate=0.0))[2]
    log_prob = -0.5 * math.log(2 * math.pi)  # of tanh(0), deviation 1
    assert td_error == pytest.approx(3 + (0.5 * (8 - log_prob) if bootstraps else 0), abs=1e-5)


# Settings ---------------------------------------------------------------------------------------------------

CHOICES = [
    *({"gamma": 0.5}, {"tau": 0.5}, {"batch_size": 17}, {"max_grad_norm": 1e-3}, {"learning_rate": 1e-2}),
    *({"critic": {"hidden": (5,)}}, {"critic": {"activation": "tanh"}}, {"critic": {"learning_rate": 1e-2}}),
    *({"temperature": {"start": 0.1}}, {"temperature": {"learned": False}}, {"temperature": {"target_entropy": 3.0}}),
    *({"temperature": {"learning_rate": 0.1}}, {"updates_per_step": 0.3}, {"replay": {"size": 20}}),
]


@pytest.mark.slow
@pytest.mark.parametrize("fields", CHOICES, ids=str)
def test_settings_that_decide_what_is_learned(sac, fields):
    plain, other = sac(), sac(**fields)
    for one in (plain, other):
        for seed in range(2):
            learn(one, random_decisions(one, seed), seed)
    assert not np.array_equal(weights(plain), weights(other))


def test_the_temperature_follows_the_entropy(sac):
    for target, rises in ((50.0, True), (-50.0, False)):
        one = sac(temperature={"target_entropy": target, "learning_rate": 0.01})
        found = [learn(one, random_decisions(one, seed), seed)["temperature"] for seed in range(2)]
        assert (1.0 < found[0] < found[1]) if rises else (1.0 > found[0] > found[1])
    fixed = sac(temperature={"start": 0.2, "learned": False})
    assert learn(fixed, random_decisions(fixed))["temperature"] == pytest.approx(0.2)
    assert sac().hyperparams(0.0).target_entropy == -2  # two numbers in the box


def test_schedule_updates_and_start(sac):
    one = sac(learning_rate_schedule="linear", learning_rate=0.01, replay={"size": 300, "learning_starts": 40})
    assert "updates" not in learn(one, random_decisions(one, 0))
    found = learn(one, random_decisions(one, 1), progress=0.5)
    assert found["updates"] == 9
    assert found["learning_rate"] == pytest.approx(0.005)
    before = weights(one)
    learn(one, random_decisions(one, 2), progress=1.0)
    assert np.array_equal(weights(one), before)


def test_preferences_reach_the_replay(sac):
    one, team = sac(), sac(preference=Team(TeamSettings()))
    own = random_decisions(one)
    for learner in (one, team):
        learner.remember(own, joint_of(learner, own))
    assert not np.array_equal(one.replay.rows.reward, team.replay.rows.reward)
    assert isinstance(one.replay.rows, JointTransitions)


def test_diverged_learning_is_refused(sac):
    one = sac(learning_rate=1e30)
    with pytest.raises(Diverged, match=r"group 'team'.*learning diverged"):
        learn(one, random_decisions(one))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: SACSettings(learning_rate=0), "learning_rate must be above 0, got 0"),
        (lambda: SACSettings(gamma=1.2), r"gamma must lie in \[0, 1\], got 1.2"),
        (lambda: SACSettings(batch_size=0), "batch_size must be at least 1, got 0"),
        (lambda: SACSettings(updates_per_step=0), "updates_per_step must be above 0"),
        (lambda: SACSettings(tau=0), "tau must be above 0"),
        (lambda: SACSettings(tau=2), r"tau must lie in \[0, 1\]"),
        (lambda: SACSettings(max_grad_norm=0), "max_grad_norm must be above 0"),
        (lambda: SACCriticSettings(hidden=()), "hidden must name at least one layer"),
        (lambda: SACCriticSettings(learning_rate=-1), "learning_rate must be above 0, got -1"),
        (lambda: TemperatureSettings(start=0), "start must be above 0, got 0"),
        (lambda: TemperatureSettings(learning_rate=0), "learning_rate must be above 0"),
        (lambda: TemperatureSettings(target_entropy=math.inf), "target_entropy must be a finite number, got inf"),
        (lambda: MemorySettings(size=5, learning_starts=6), "learning_starts must be at most size"),
        (lambda: gaussian(group_spec(Discrete(3))), r"policy 'gaussian' needs continuous actions.*'agent_0'"),
        (lambda: gaussian(group_spec(Box((1,), -math.inf, 1.0))), "bounded on both sides"),
        (lambda: gaussian(group_spec(Box((2,), -1.0, np.array([1.0, -1.0])))), "lower bound of every action"),
        (
            lambda: make_learner(dataclasses.replace(group_spec(BOX), simultaneous=False)),
            "'sac' needs a world in which",
        ),
    ],
)
def test_impossible_settings_are_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_every_setting_has_a_test_here():
    tested = {"learning_rate", "learning_rate_schedule", "gamma", "batch_size", "updates_per_step", "tau"}
    tested |= {"max_grad_norm", "critic", "temperature", "replay"}
    assert {field.name for field in dataclasses.fields(SACSettings)} == tested
    assert {f.name for f in dataclasses.fields(SACCriticSettings)} == {"hidden", "activation", "learning_rate"}
    parts = {"start", "learned", "target_entropy", "learning_rate"}
    assert {f.name for f in dataclasses.fields(TemperatureSettings)} == parts
