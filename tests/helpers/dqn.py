"""Policies of action values, their learners, and experience for them."""

from dataclasses import replace

import numpy as np
import torch

from coterie.algorithms.dqn.dqn import DQN, DQNSettings, EpsilonSettings, TargetSettings
from coterie.algorithms.replay import ReplaySettings
from coterie.core.advice import AdviceUse, UseSettings
from coterie.core.decisions import Joint
from coterie.core.trees import leading
from coterie.core.types import Advice, View
from coterie.nn.nets import CompiledNet
from coterie.policies.q_network import QNetworkPolicy, QNetworkSettings
from coterie.preferences.standard import Individual, IndividualSettings
from coterie.testing.sampling import random_decisions
from helpers.small_worlds import generator, group_spec

PARTS = {"epsilon": EpsilonSettings, "target": TargetSettings, "replay": ReplaySettings}
QUICK = {"batch_size": 16, "updates_per_step": 0.25, "replay": {"size": 300, "learning_starts": 1}}


def q_network(where, **settings):
    return QNetworkPolicy(QNetworkSettings(**{"hidden": (16,)} | settings), where)


def dqn_settings(**fields):
    """Settings of learners that begin at once; nested settings are given as dicts."""
    merged = QUICK | fields
    merged["replay"] = QUICK["replay"] | fields.get("replay", {})
    return DQNSettings(**{k: PARTS[k](**v) if k in PARTS else v for k, v in merged.items()})


def make_learner(where=None, preference=None, policy=None, compiled=True, dueling=True, **settings):
    where = where or group_spec()
    policy = policy or q_network(where, compiled=compiled, dueling=dueling)
    return DQN(dqn_settings(**settings), policy, where, preference or Individual(IndividualSettings()))


def random_rollout(one, seed=0, masked=False):
    """Random experience, with idle rows and both kinds of ends, that the learner's own policy decided in."""
    return random_decisions(one.group_spec, one.policy, masked, seed)


def advised_spec(use=None, **fields):
    """A group with advice that puts advised actions first."""
    return replace(group_spec(**fields), advice=AdviceUse(UseSettings(mode="margin", **use or {}), 4))


def with_advice(own):
    """Experience in which action 1 is advised where the first number seen is above 0, else action 2."""
    best = np.where(own.observation[:-1, ..., 0] > 0, 1, 2)
    return replace(own, advice=Advice(own.valid, np.eye(4, dtype=np.float32)[best], np.float32(own.valid)))


def joint_of(one, own, progress=0.0, ahead=0.0):
    return Joint({one.group_spec.group: own}, 1, progress, {one.group_spec.group: one.group_spec.spaces}, None, ahead)


def learn(one, own, seed=0, progress=0.0, ahead=0.0):
    return one.learn(own, joint_of(one, own, progress, ahead), generator(seed))


def compiled(one):
    """Whether the compiled loops serve a learner's networks."""
    found = {isinstance(net, CompiledNet) for net in (one.net, one.target)}
    assert len(found) == 1
    return found.pop()


def weights(one):
    return one.policy.flat.array.copy()


def target(one):
    return one.target.flat.array.copy()


def stir(policy, seed=0):
    """Weights large enough for values to differ; the streams of a dueling network stay apart."""
    apart = torch.ones_like(policy.net.out.weight)
    if policy.first:
        half = apart.shape[1] // 2
        apart[:, :half, 1:], apart[:, half:, 0] = 0, 0
    policy.flat.array[:] = generator(seed).standard_normal(policy.flat.array.shape)
    policy.net.out.weight.data.mul_(apart)
    return policy


def say(policy, outputs):
    """Let a policy's network say the same outputs to everything it sees."""
    policy.flat.array[:] = 0
    policy.net.out.bias.data[:] = torch.tensor(outputs, dtype=torch.float32)
    return policy


def view(observation, greedy=True, agents=None, seed=0, mask=None):
    rows = leading(observation).shape[:2]
    agents = np.arange(rows[1]) if agents is None else np.array(agents)
    return View(observation, np.ones(rows, bool), agents, generator(seed), greedy, mask)


def seen(num_envs=6, agents=2, size=3, seed=0):
    return generator(seed).standard_normal((num_envs, agents, size), np.float32)


def values(policy, observation):
    """Q-values of all actions, `[N, A, actions]`."""
    with torch.no_grad():
        out = policy.values(policy.net(torch.from_numpy(policy.inputs(observation)))[0])
    return policy.restore_order(out.numpy(), observation.shape[:2])
