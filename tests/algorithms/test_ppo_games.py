"""Small games that PPO must learn within seconds. Games of memory: `test_ppo_memory.py`."""

import dataclasses

import numpy as np
import pytest

from coterie.core.types import Box, Discrete, MultiDiscrete
from coterie.training.runner import Runner
from helpers.ppo import make_learner
from helpers.small_worlds import Bandit, Rounds, actors, generator, joint, network, spec_in


def train(world, iterations=30, steps=4, parameters="shared", network_settings=None, **settings):
    where = spec_in(world, parameters=parameters)
    policy = network(where, **network_settings or {})
    one = make_learner(where, policy=policy, **{"learning_rate": 0.02, "entropy_coefficient": 0.0} | settings)
    runner = Runner(world, actors((where, policy)), seed=0)
    for i in range(iterations):
        own = runner.play(steps, i).decisions["team"]
        one.learn(own, joint(own, i / iterations), generator(i))
    greedy = Runner(world, actors((where, policy)), seed=1, greedy=True).play(2, 0).decisions["team"]
    return greedy


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [True, False])
def test_learns_a_discrete_bandit(compiled):
    payoff = np.array([0.0, 0.2, 1.0, 0.5])
    own = train(Bandit(Discrete(4), lambda a: payoff[a]), network_settings={"compiled": compiled})
    assert (own.action == 2).all()


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [True, False])
def test_learns_a_multi_discrete_bandit(compiled):
    world = Bandit(MultiDiscrete((3, 3)), lambda a: (a[..., 0] == 2) * 1.0 + (a[..., 1] == 0))
    own = train(world, network_settings={"compiled": compiled})
    assert (own.action == [2, 0]).all()


@pytest.mark.slow
@pytest.mark.parametrize("family", ["beta", "gaussian"])
def test_learns_a_continuous_bandit(family):
    space = Box((2,), np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
    best = np.array([1.0, 3.0])
    world = Bandit(space, lambda a: -(((a - best) / [4, 10]) ** 2).sum(-1))
    own = train(world, iterations=40, learning_rate=0.01, network_settings={"continuous": family})
    assert np.abs((own.action - best) / [4, 10]).max() < 0.03


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("parameters", ["shared", "individual"])
def test_agents_with_equal_views_learn_to_act_differently(parameters, compiled):
    wanted = np.array([0, 2])
    world = Bandit(Discrete(3), lambda a: (a == wanted) * 1.0, agents=2)
    own = train(world, parameters=parameters, network_settings={"compiled": compiled})
    assert (own.action == wanted).all()


def test_without_identity_they_cannot():
    wanted = np.array([0, 2])
    own = train(Bandit(Discrete(3), lambda a: (a == wanted) * 1.0, agents=2), network_settings={"identity": False})
    assert (own.action[..., 0] == own.action[..., 1]).all()


@pytest.mark.slow
@pytest.mark.parametrize("fields", [{}, {"memory": 8}], ids=["plain", "memory"])
def test_learns_where_agents_take_turns(fields):
    class Turns(Rounds):
        """Whoever moves is paid for playing 3, but only on the others' ticks."""

        def step(self, actions):
            moving = np.arange(self.agents) == (self.clock % self.agents)[:, None]
            owed = np.where(moving, actions["player"] == 3, self.owed)
            timestep = super().step(actions)
            agent_step = timestep.agent_types["player"]
            paid = np.where(moving, 0, self.owed).astype(np.float32)
            self.owed = np.where(timestep.ended[:, None], 0, np.where(moving, owed, 0))
            return dataclasses.replace(timestep, agent_types={"player": dataclasses.replace(agent_step, reward=paid)})

        owed = 0

    own = train(Turns(num_envs=16, agents=2, length=8), iterations=20, steps=16, gamma=0.9, network_settings=fields)
    paid = own.valid & (own.observation[:-1, ..., 1] < 7)  # a decision at the last tick is never paid
    assert (own.action[paid] == 3).mean() > 0.95
