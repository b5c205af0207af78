"""Conformance tests for learners: `check_learner`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from coterie.core import seeding
from coterie.core.decisions import Decisions, Joint
from coterie.core.group import GroupSpec, Learner
from coterie.core.trees import map_tree
from coterie.core.types import Array, State
from coterie.testing.comparison import (
    expect,
    expect_equal,
    expect_inherits,
    expect_same_start,
    leaves,
    through_checkpoint,
)
from coterie.testing.sampling import random_decisions


def check_learner(
    make_learner: Callable[[GroupSpec], Learner], group_spec: GroupSpec, masked: bool = False, uses_replay: bool = False
) -> None:
    """Raise `ContractError` unless `make_learner(group_spec)` conforms to the base class `Learner`.

    Every call of `make_learner` must return an equal learner. Set `uses_replay=True` for learners that learn from
    earlier experience when the latest holds no decision.
    """
    learner, bystander, again = (make_learner(group_spec) for _ in range(3))
    expect_inherits(learner, Learner)
    expect_same_start("a learner that is built twice", _full_state(learner), _full_state(bystander))
    decisions = random_decisions(group_spec, learner.policy, masked, 0)
    other = random_decisions(group_spec, learner.policy, masked, 1)
    first, decisions_before = _full_state(learner), leaves(decisions)
    _learn(group_spec, learner, decisions, 1)
    once = _full_state(learner)
    expect_equal("another learner after learn", first, _full_state(bystander))
    expect_equal("the experience after learn", decisions_before, decisions)
    before, after = leaves(first["policy"]), leaves(once["policy"])
    changed = any(not np.array_equal(before[key], after[key]) for key in before)
    expect(changed, "learn", "a changed policy", "an equal one")
    _learn(group_spec, again, _replace_idle_rows(decisions, other), 1)
    expect_equal("same decisions, other values in idle rows", once, _full_state(again))

    _learn(group_spec, learner, other, 2)
    twice = _full_state(learner)
    for title, resumed in (("a new learner", bystander), ("a used learner", again)):
        _restore(resumed, once)
        _learn(group_spec, resumed, other, 2)
        expect_equal(f"learn after loading into {title}", twice, _full_state(resumed))
    _restore(learner, first)
    _learn(group_spec, learner, decisions, 1)
    expect_equal("learn after loading the first state", once, _full_state(learner))

    no_decision = replace(decisions, valid=np.zeros_like(decisions.valid))
    _learn(group_spec, learner, no_decision, 3)
    if not uses_replay:
        expect_equal("the policy after experience without decisions", once["policy"], learner.policy.state())
    one_agent = decisions.valid.copy()
    one_agent[:, :, 1:] = False
    _learn(group_spec, learner, replace(decisions, valid=one_agent), 4)


def _learn(group_spec: GroupSpec, learner: Learner, decisions: Decisions, seed: int) -> None:
    joint = Joint({group_spec.group: decisions}, seed, 0.1 * seed, {group_spec.group: group_spec.spaces})
    metrics = learner.learn(decisions, joint, seeding.generator(seed, "check_learner"))
    for name, value in metrics.items():
        expect(isinstance(value, float) and np.isfinite(value), "learn", f"a finite metric {name!r}", value)


def _replace_idle_rows(decisions: Decisions, other: Decisions) -> Decisions:
    """Take observations and decisions from `other` in rows that say nothing; memory stays, because it counts there."""
    decided = decisions.valid
    seen = np.concatenate([decided, np.zeros((1, *decided.shape[1:]), bool)])
    t, n, a = np.nonzero(decided & (decisions.next <= len(decided)))
    seen[decisions.next[t, n, a], n, a] = True

    def mix(own: Array, foreign: Array) -> Array:
        kept = decided if len(own) == len(decided) else seen
        return np.where(kept.reshape(*own.shape[:3], *[1] * (own.ndim - 3)), own, foreign)

    parts: dict[str, Any] = {name: getattr(decisions, name) for name in ("observation", "action", "mask")}
    parts = {k: map_tree(mix, tree, getattr(other, k)) for k, tree in parts.items()}
    return replace(decisions, log_prob=mix(decisions.log_prob, other.log_prob - 1000), **parts)


def _full_state(learner: Learner) -> State:
    """The states of learner and policy after a checkpoint."""
    return through_checkpoint({"policy": learner.policy.state(), "learner": learner.state()})


def _restore(learner: Learner, state: State) -> None:
    learner.policy.load(state["policy"])
    learner.load(state["learner"])
