"""Squashed Gaussian policies and their learners."""

from coterie.algorithms.replay import MemorySettings
from coterie.algorithms.sac.sac import SAC, SACCriticSettings, SACSettings, TemperatureSettings
from coterie.core.decisions import Joint
from coterie.policies.gaussian import GaussianPolicy, GaussianSettings
from coterie.preferences.standard import Individual, IndividualSettings
from coterie.testing import sampling
from helpers.small_worlds import ACTIONS, generator, group_spec

PARTS = {"critic": SACCriticSettings, "temperature": TemperatureSettings, "replay": MemorySettings}
QUICK = {"batch_size": 16, "updates_per_step": 0.25, "replay": {"size": 300, "learning_starts": 1}}
BOX = ACTIONS["box"]


def gaussian(where, **settings):
    return GaussianPolicy(GaussianSettings(**{"hidden": (16,)} | settings), where)


def sac_settings(**fields):
    """Settings of learners that begin at once; nested settings are given as dicts."""
    merged = QUICK | fields
    merged["replay"] = QUICK["replay"] | fields.get("replay", {})
    return SACSettings(**{k: PARTS[k](**v) if k in PARTS else v for k, v in merged.items()})


def make_learner(where=None, policy=None, compiled=True, preference=None, **settings):
    where = where or group_spec(BOX)
    policy = policy or gaussian(where, compiled=compiled)
    return SAC(sac_settings(**settings), policy, where, preference or Individual(IndividualSettings()))


def random_decisions(one, seed=0):
    """Random experience of the learner's own policy, with idle rows and both kinds of ends."""
    return sampling.random_decisions(one.group_spec, one.policy, False, seed)


def joint_of(one, own, progress=0.0):
    return Joint({one.group_spec.group: own}, 1, progress, {one.group_spec.group: one.group_spec.spaces})


def learn(one, own, seed=0, progress=0.0):
    return one.learn(own, joint_of(one, own, progress), generator(seed))


def weights(one):
    return one.policy.flat.array.copy()
