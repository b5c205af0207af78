"""Deterministic policies, their learners, and tables for them."""

import dataclasses

import numpy as np
import torch

from coterie.algorithms.maddpg.maddpg import (
    MADDPG,
    ChoiceSettings,
    CriticSettings,
    MADDPGSettings,
    MemorySettings,
    NoiseSettings,
    TargetSettings,
)
from coterie.core.decisions import Finals, Joint
from coterie.core.group import GroupInfo
from coterie.lm.ask.scripted import Scripted
from coterie.nn.log_probs import IMPOSSIBLE
from coterie.nn.nets import CompiledNet
from coterie.policies.deterministic import DeterministicPolicy, DeterministicSettings, one_hot_argmax
from coterie.preferences.standard import Individual, IndividualSettings
from coterie.testing import sampling
from helpers.small_worlds import ACTIONS, generator, group_spec

PARTS = {
    "noise": NoiseSettings,
    "choices": ChoiceSettings,
    "critic": CriticSettings,
    "target": TargetSettings,
    "replay": MemorySettings,
}
QUICK = {"batch_size": 16, "updates_per_step": 0.25, "replay": {"size": 300, "learning_starts": 1}}
BOX = ACTIONS["box"]
SPACES = {"box": BOX, "discrete": ACTIONS["discrete"]}


def deterministic(where, **settings):
    return DeterministicPolicy(DeterministicSettings(**{"hidden": (16,)} | settings), where)


def maddpg_settings(**fields):
    """Settings of learners that begin at once; nested settings are given as dicts."""
    merged = QUICK | fields
    merged["replay"] = QUICK["replay"] | fields.get("replay", {})
    return MADDPGSettings(**{k: PARTS[k](**v) if k in PARTS else v for k, v in merged.items()})


def make_learner(where=None, preference=None, policy=None, compiled=True, **settings):
    where = where or group_spec(BOX)
    policy = policy or deterministic(where, compiled=compiled)
    return MADDPG(maddpg_settings(**settings), policy, where, preference or Individual(IndividualSettings()))


def at_one_table(*group_specs):
    """Specs of groups that share a table."""
    table = tuple(GroupInfo(p.group, len(p.agents), p.spaces) for p in group_specs)
    return [dataclasses.replace(p, table=table) for p in group_specs]


def random_decisions(one, seed=0, masked=False):
    """Random experience of the learner's own policy, with idle rows and both kinds of ends."""
    return sampling.random_decisions(one.group_spec, one.policy, masked, seed)


def aligned(theirs, own):
    """Another group's experience, truncated where `own` is."""
    agents, finals = theirs.valid.shape[2], own.finals.at
    last = np.ones((len(finals), *theirs.observation.shape[2:]), np.float32)
    ends = {
        name: np.repeat(getattr(own, name)[..., :1], agents, axis=2) for name in ("next", "terminated", "truncated")
    }
    return dataclasses.replace(theirs, finals=Finals(finals, last), **ends)


def joint_of(one, own, progress=0.0, ahead=0.0, iteration=1, others=None, target_policies=None):
    experiences = {one.group_spec.group: own} | (others or {})
    spaces = {party.group: party.spaces for party in one.group_spec.table or (one.group_spec.info,)}
    return Joint(experiences, iteration, progress, spaces, None, ahead, target_policies or {})


def learn(one, own, seed=0, **fields):
    return one.learn(own, joint_of(one, own, **fields), generator(seed))


def compiled(one):
    """Whether the compiled loops serve a learner's networks."""
    found = {isinstance(net, CompiledNet) for pair in (one.actor, *one.critics) for net in (pair.net, pair.target)}
    assert len(found) == 1
    return found.pop()


def by_agent(one, rows):
    """Rows `[S, M, F]` of the networks as `[B, A, F]`."""
    agents = len(one.group_spec.agents)
    return rows.transpose(0, 1) if one.group_spec.parameter_sets > 1 else rows.view(-1, agents, rows.shape[-1])


class Clipped(torch.autograd.Function):
    """Clips to [−1, 1]; outside the bounds only inward gradients pass (Hausknecht and Stone 2016)."""

    @staticmethod
    def forward(ctx, out):
        ctx.save_for_backward(out)
        return out.clamp(-1, 1)

    @staticmethod
    def backward(ctx, grad):
        (out,) = ctx.saved_tensors
        return grad.masked_fill(((out > 1) & (grad < 0)) | ((out < -1) & (grad > 0)), 0)


def relax(policy, out, legal, gumbel, temperature):
    """The encoded action, differentiable; choices are drawn by the straight-through Gumbel-softmax."""
    if policy.head is None:
        return Clipped.apply(out) if policy.clipped else torch.tanh(out)
    noisy = (out + gumbel).masked_fill(~legal, IMPOSSIBLE)
    drawn = []
    for part in noisy.split(policy.head.sizes, dim=-1):
        soft = torch.softmax(part / temperature, dim=-1)
        drawn.append(one_hot_argmax(part) + soft - soft.detach())
    return torch.cat(drawn, dim=-1)


def weights(one):
    return one.policy.flat.array.copy()


def critic_weights(one, which=0):
    return one.critics[which].flat.array.copy()


def randomise(policy, seed=0, scale=1.0):
    """Draw weights large enough for outputs to differ."""
    policy.flat.array[:] = scale * generator(seed).standard_normal(policy.flat.array.shape)
    return policy


def set_output(net, outputs):
    """Set a network's weights so that its outputs are always these."""
    for parameter in net.parameters():
        parameter.data[:] = 0
    net.out.bias.data[:] = torch.tensor(outputs, dtype=torch.float32)


def greedy_points(policy, net, observation, legal=None):
    """Greedy actions of a policy with a network's weights, encoded `[N, A, K]`."""
    rows = np.ascontiguousarray(observation)
    x = torch.from_numpy(policy.prepare(rows, np.arange(rows.shape[1])))
    legal = np.ones((*rows.shape[:2], policy.size), bool) if legal is None else legal
    with torch.no_grad():
        found = policy.settle(net(x)[0], torch.from_numpy(policy.arrange(legal)))
    return policy.restore_order(found.numpy(), rows.shape[:2])


BIDDER = Scripted(lambda prompt, random: " 0.30", lambda prompt, choice: -float(len(choice)), "bidder")


def case_id(case):
    """A test's name for its settings, the same in every process: objects are named by their class."""
    return str(
        {
            key: value if isinstance(value, (str, int, float, dict)) else type(value).__name__
            for key, value in case.items()
        }
    )
