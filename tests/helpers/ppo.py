"""PPO learners, experience for them, and a look over their shoulder at every minibatch."""

from typing import NamedTuple

import numpy as np
import torch

from coterie.algorithms.ppo import losses
from coterie.algorithms.ppo.minibatches import Batch, take
from coterie.algorithms.ppo.ppo import PPO, Hyperparams, PPOSettings
from coterie.nn.nets import CompiledNet
from coterie.nn.packing import map_rows
from coterie.preferences.standard import Individual, IndividualSettings
from coterie.testing.sampling import random_decisions
from helpers import distributions
from helpers.small_worlds import generator, group_spec, joint, network


def make_learner(where=None, preference=None, policy=None, compiled=True, **settings):
    where = where or group_spec()
    policy = policy or network(where, compiled=compiled)
    return PPO(PPOSettings(**settings), policy, where, preference or Individual(IndividualSettings()))


def random_rollout(one, seed=0, masked=False):
    """Random experience that the learner's own policy decided in."""
    return random_decisions(one.group_spec, one.policy, masked, seed)


def learn(one, own, seed=0, progress=0.0):
    return one.learn(own, joint(own, progress), generator(seed))


def compiled(one):
    """Whether the compiled loops serve a learner's actor and critic."""
    found = {isinstance(net, CompiledNet) for net in (one.actor, one.critic)}
    assert len(found) == 1
    return found.pop()


class Seen(NamedTuple):
    """One minibatch."""

    part: Batch
    hyperparams: Hyperparams
    ratio: torch.Tensor  # [S, M] of the policy to the one that decided, before the step
    found: np.ndarray  # the losses that the step says


def tensors(part):
    """A minibatch with tensors in every field, sequences laid end to end."""

    def flat(values):
        if part.sequences is not None:
            values = values.reshape(values.shape[0], -1, *values.shape[3:])
        return torch.as_tensor(values)

    names = ("action", "mask", "log_prob", "importance", "advantage", "target", "value", "weight")
    return part._replace(**{name: flat(getattr(part, name)) for name in names if getattr(part, name) is not None})


def evaluate_actions(one, part):
    """Log-probability and entropy of a minibatch under the present policy, `[S, M]` each."""
    rows = tensors(part)
    out = one.policy.net.unroll(map_rows(torch.as_tensor, part.actor_input), part.sequences)
    return distributions.evaluate_actions(one.policy.head, out, rows.action, rows.mask)


def minibatch_of(batch, part):
    """The rows of a batch that a minibatch takes; padding weighs 0."""
    found = take(batch, part.items)
    inputs = {name: map_rows(np.asarray, getattr(found, name)) for name in ("actor_input", "critic_input")}
    found = found._replace(**inputs)
    weight = (part.weight.reshape(part.rows.shape) > 0).astype(np.float32)
    return found._replace(weight=weight.reshape(found.weight.shape))


def watch(one):
    """Let a learner write down every minibatch it takes, one after the other."""
    seen, step = [], one.step

    def watched(batch, decisions, part, hyperparams):
        mine = minibatch_of(batch, part)
        with torch.no_grad():
            ratio = (evaluate_actions(one, mine)[0] - tensors(mine).log_prob).exp()
        step(batch, decisions, part, hyperparams)
        found = part.terms.reshape(*part.rows.shape, len(losses.NAMES)).sum(axis=1, dtype=np.float64)
        seen.append(Seen(mine, hyperparams, ratio, found.mean(axis=0)))

    one.step = watched
    return seen


def actor(one):
    return one.policy.flat.array.copy()


def critic(one):
    return one.critic.flat.array.copy()


def values_of(one, observation, memory=None, state=None):
    """The critic's values of observations `[…, A, shape]`, as `[…, A]`."""
    seen = one.add_context(one.policy.inputs(observation), memory, state)
    lead = observation.shape[: observation.ndim - len(one.group_spec.spaces.observation.shape)]
    return one.policy.restore_order(one.evaluate(seen), lead)


class SameShuffle:
    """Gives every stack the same order, so that an agent alone meets the same minibatches."""

    def permutation(self, rows):
        return np.random.default_rng(rows).permutation(rows)
