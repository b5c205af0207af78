"""Conformance tests for policies: `check_policy`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from coterie.core import seeding
from coterie.core.group import GroupSpec, Policy
from coterie.core.trees import map_tree
from coterie.core.types import Array, Box, Decision, Discrete, MultiDiscrete, Text, View, action_dtype, action_shape
from coterie.core.world import World
from coterie.testing.comparison import (
    Location,
    check_array,
    expect,
    expect_equal,
    expect_inherits,
    expect_same_start,
    leaves,
    text_valid,
    through_checkpoint,
)
from coterie.testing.sampling import decide, random_view

DRAWS = 4000  # actions drawn from one observation, to compare frequencies with probabilities


def check_policy(
    make_policy: Callable[[GroupSpec], Policy],
    group_spec: GroupSpec,
    masked: bool = False,
    deterministic_greedy: bool = True,
    world: World | None = None,
) -> None:
    """Raise `ContractError` unless `make_policy(group_spec)` conforms to the base class `Policy`.

    Views are drawn at random from the group's spaces, or taken from a `world` for policies that read its state.
    Set `deterministic_greedy=False` for policies that act at random even if `view.greedy`.
    """
    policy = make_policy(group_spec)
    expect_inherits(policy, Policy)
    expect_same_start("a policy that is built twice", policy.state(), make_policy(group_spec).state())
    view = random_view(group_spec, seeding.generator(0, "check_policy"), masked, policy.memory_size, world)
    view_before, state_before = leaves(view), leaves(policy.state())
    for greedy in (False, True):
        decision, title = decide(policy, view, 1, greedy), f"greedy={greedy}"
        expect(isinstance(decision, Decision), "act", "a Decision", type(decision).__name__)
        _check_decision(group_spec, view, decision, policy.memory_size)
        expect_equal(f"{title}, the view after act", view_before, view)
        expect_equal(f"{title}, same generator", decision, decide(policy, view, 1, greedy))
        if greedy and deterministic_greedy:
            expect_equal("greedy=True, another generator", decision, decide(policy, view, 2, greedy))
        loaded = make_policy(group_spec)
        loaded.load(through_checkpoint(policy.state()))
        expect_equal(f"{title}, saved and loaded", decision, decide(loaded, view, 1, greedy))
    expect_equal("the state after act", state_before, policy.state())
    if world is None:
        _check_log_prob(group_spec, policy, view)


def _check_decision(group_spec: GroupSpec, view: View, decision: Decision, memory_size: int) -> None:
    """Actions of acting agents lie in the space and are legal; log-probabilities are finite."""
    space, rows = group_spec.spaces.action, view.acting.shape
    location = Location("act", group_spec.agent_type, group_spec.agents)
    check_array("act", "action", decision.action, rows + action_shape(space), action_dtype(space))
    match space:
        case Box(_, low, high):
            valid = (decision.action >= low) & (decision.action <= high)
        case MultiDiscrete(sizes):
            valid = (decision.action >= 0) & (decision.action < sizes)
        case Discrete(n):
            valid = (decision.action >= 0) & (decision.action < n)
        case Text():
            valid = text_valid(space, decision.action)
    if isinstance(space, Discrete) and view.mask is not None and valid.all():
        valid = np.take_along_axis(view.mask, decision.action[..., None], axis=-1)[..., 0]
    idle = ~view.acting.reshape(*rows, *[1] * (valid.ndim - 2))
    location.expect_all(valid | idle, f"a legal action in {space}", decision.action)
    if decision.log_prob is not None:
        check_array("act", "log_prob", decision.log_prob, rows, "float32")
        location.expect_all(np.isfinite(decision.log_prob) | ~view.acting, "a finite log_prob", decision.log_prob)
    if memory_size:
        check_array("act", "memory", decision.memory, (*rows, memory_size), "float32")


def _check_log_prob(group_spec: GroupSpec, policy: Policy, view: View) -> None:
    """Actions are as frequent as their log-probabilities say.

    For every region R of actions the mean of 1[a ∈ R]/p(a) must be the size of R: 1 for a single discrete action, the
    volume for the inner half of a box.
    """
    parts: dict[str, Any] = {name: getattr(view, name) for name in ("observation", "acting", "mask", "memory")}
    parts = {name: tree if tree is None else map_tree(_repeat_first_copy, tree) for name, tree in parts.items()}
    decision = decide(policy, replace(view, **parts), 3)
    if decision.log_prob is None or isinstance(group_spec.spaces.action, Text):
        return
    space = group_spec.spaces.action
    for a, agent in enumerate(group_spec.agents):
        action, size = decision.action[:, a].reshape(DRAWS, -1), 1.0
        if isinstance(space, Box):
            low, high = (np.broadcast_to(np.float64(b), space.shape).reshape(-1) for b in (space.low, space.high))
            regions = [(np.abs(2 * (action - low) / (high - low) - 1) < 0.5).all(axis=1)]
            size = float(np.prod((high - low) / 2))
        else:
            regions = [(action == one).all(axis=1) for one in np.unique(action, axis=0)]
        for inside in regions:
            weight = inside / np.exp(decision.log_prob[:, a], dtype=np.float64)
            tolerance = 5 * weight.std() / np.sqrt(DRAWS) + 1e-4 * size
            location = f"agent {agent!r}, action {action[inside.argmax()]}"
            matches = abs(weight.mean() - size) <= tolerance
            expect(matches, location, f"mean of 1/exp(log_prob) near {size:g}", weight.mean())


def _repeat_first_copy(array: Array) -> Array:
    return np.repeat(array[:1], DRAWS, axis=0)
