"""PPO learners, experience for them, and a look over their shoulder at every minibatch."""

from typing import NamedTuple

import numpy as np
import torch

from coterie.algorithms.ppo.minibatches import Batch, flatten_sequences, minibatches, to_device
from coterie.algorithms.ppo.ppo import PPO, Hyperparams, PPOSettings
from coterie.preferences.standard import Individual, IndividualSettings
from coterie.testing.sampling import random_decisions
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


class Seen(NamedTuple):
    """One minibatch."""

    part: Batch
    hyperparams: Hyperparams
    ratio: torch.Tensor  # [S, M] of the policy to the one that decided, before the step
    found: np.ndarray  # the losses that the step says


def tensors(part):
    """A minibatch with tensors in every field, sequences laid end to end."""
    rows = flatten_sequences(to_device(part, torch.device("cpu")))
    names = ("log_prob", "importance", "advantage", "target", "value", "weight")
    return rows._replace(**{name: torch.from_numpy(getattr(rows, name)) for name in names})


def evaluate_actions(one, part):
    """Log-probability and entropy of a minibatch under the present policy, `[S, M]` each."""
    rows = tensors(part)
    return one.policy.head.evaluate_actions(
        one.policy.net.unroll(part.actor_input, part.sequences), rows.action, rows.mask
    )


def watch(one):
    """Let a learner write down every minibatch it takes, one after the other, on whichever path it takes them."""
    seen, name = [], "compiled_pass" if one.compiled else "autograd_pass"
    run = getattr(one, name)

    def watched(batch, cuts, hyperparams):
        total = one.no_totals()
        for b, (part, learning) in enumerate(minibatches(batch, cuts)):
            with torch.no_grad():
                ratio = (evaluate_actions(one, part)[0] - tensors(part).log_prob).exp()
            found = run(batch, [mine[b : b + 1] for mine in cuts], hyperparams)
            seen.append(Seen(part, hyperparams, ratio, found.sums.mean(axis=0)))
            total.sums[learning] += found.sums[learning]
            total.kl[learning] = found.kl[learning]
        return total

    setattr(one, name, watched)
    return seen


def actor(one):
    return one.policy.flat.array.copy()


def critic(one):
    return one.critic_flat.array.copy()


def values_of(one, observation, memory=None, state=None):
    """The critic's values of observations `[…, A, shape]`, as `[…, A]`."""
    seen = one.add_context(one.policy.inputs(observation), memory, state)
    lead = observation.shape[: observation.ndim - len(one.group_spec.spaces.observation.shape)]
    return one.policy.restore_order(one.evaluate(seen), lead)


class SameShuffle:
    """Gives every stack the same order, so that an agent alone meets the same minibatches."""

    def permutation(self, rows):
        return np.random.default_rng(rows).permutation(rows)
