"""Conformance tests for learners: `check_learner`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from coterie.core import seeding
from coterie.core.group import GroupSpec, Learner
from coterie.core.types import Array, Experience, Joint, State, map_tree
from coterie.testing.comparison import (
    expect,
    expect_equal,
    expect_members,
    expect_same_start,
    leaves,
    through_checkpoint,
)
from coterie.testing.sampling import random_experience


def check_learner(
    make_learner: Callable[[GroupSpec], Learner], group_spec: GroupSpec, masked: bool = False, uses_replay: bool = False
) -> None:
    """Raise `ContractError` unless `make_learner(group_spec)` conforms to the `Learner` protocol.

    Every call of `make_learner` must return an equal learner. Set `uses_replay=True` for learners that learn from
    earlier experience when the latest holds no decision.
    """
    learner, bystander, again = (make_learner(group_spec) for _ in range(3))
    expect_members(learner, Learner)
    expect_same_start("a learner that is built twice", _full_state(learner), _full_state(bystander))
    experience = random_experience(group_spec, learner.policy, masked, 0)
    other = random_experience(group_spec, learner.policy, masked, 1)
    first, experience_before = _full_state(learner), leaves(experience)
    _learn(group_spec, learner, experience, 1)
    once = _full_state(learner)
    expect_equal("another learner after learn", first, _full_state(bystander))
    expect_equal("the experience after learn", experience_before, experience)
    before, after = leaves(first["policy"]), leaves(once["policy"])
    changed = any(not np.array_equal(before[key], after[key]) for key in before)
    expect(changed, "learn", "a changed policy", "an equal one")
    _learn(group_spec, again, _replace_idle_rows(experience, other), 1)
    expect_equal("same experience, other values in idle rows", once, _full_state(again))

    _learn(group_spec, learner, other, 2)
    twice = _full_state(learner)
    for title, resumed in (("a new learner", bystander), ("a used learner", again)):
        _restore(resumed, once)
        _learn(group_spec, resumed, other, 2)
        expect_equal(f"learn after loading into {title}", twice, _full_state(resumed))
    _restore(learner, first)
    _learn(group_spec, learner, experience, 1)
    expect_equal("learn after loading the first state", once, _full_state(learner))

    no_decision = replace(experience, active=np.zeros_like(experience.active))
    _learn(group_spec, learner, no_decision, 3)
    if not uses_replay:
        expect_equal("the policy after experience without decisions", once["policy"], learner.policy.state())
    one_agent = experience.active.copy()
    one_agent[:, :, 1:] = False
    _learn(group_spec, learner, replace(experience, active=one_agent), 4)


def _learn(group_spec: GroupSpec, learner: Learner, experience: Experience, seed: int) -> None:
    joint = Joint({group_spec.group: experience}, seed, 0.1 * seed, {group_spec.group: group_spec.spaces})
    metrics = learner.learn(experience, joint, seeding.generator(seed, "check_learner"))
    for name, value in metrics.items():
        expect(isinstance(value, float) and np.isfinite(value), "learn", f"a finite metric {name!r}", value)


def _replace_idle_rows(experience: Experience, other: Experience) -> Experience:
    """Take observations and decisions from `other` where no agent decides; memory stays, because it counts there."""
    deciding = np.concatenate([experience.active, experience.acting[None]])

    def mix(own: Array, foreign: Array) -> Array:
        return np.where(deciding[: len(own)].reshape(*own.shape[:3], *[1] * (own.ndim - 3)), own, foreign)

    parts: dict[str, Any] = {name: getattr(experience, name) for name in ("observation", "action", "mask")}
    parts = {k: tree if tree is None else map_tree(mix, tree, getattr(other, k)) for k, tree in parts.items()}
    return replace(experience, log_prob=mix(experience.log_prob, other.log_prob - 1000), **parts)


def _full_state(learner: Learner) -> State:
    """The states of learner and policy after a checkpoint."""
    return through_checkpoint({"policy": learner.policy.state(), "learner": learner.state()})


def _restore(learner: Learner, state: State) -> None:
    learner.policy.load(state["policy"])
    learner.load(state["learner"])
