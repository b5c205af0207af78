"""What every world, policy and learner must keep, as checks that anyone can run on their own.

`check_world` lives in `testing_worlds.py`. `check_policy` and `check_learner` work with views and experience
drawn at random from a group's spaces. A broken promise raises `ContractError`, which says where. Whether a
learner learns anything useful is not checked here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from coterie.core import seeding
from coterie.core.group import GroupSpec, Learner, Policy
from coterie.core.types import (
    Array,
    Box,
    Decision,
    Dict,
    Discrete,
    Experience,
    Finals,
    Joint,
    MultiDiscrete,
    ObservationSpace,
    State,
    View,
    action_dtype,
    action_shape,
    map_tree,
)
from coterie.core.world import World
from coterie.testing.worlds import COPIES, ContractError, Where, check_array, check_world, random_actions, require
from coterie.training import checkpoint

__all__ = ["ContractError", "check_learner", "check_policy", "check_world", "random_actions"]

DRAWS = 4000  # actions drawn from one situation to compare frequencies with probabilities
ROWS = 12  # of made-up experience


# Promises of policies -----------------------------------------------------------------------------------


def check_policy(
    make_policy: Callable[[GroupSpec], Policy],
    group_spec: GroupSpec,
    masked: bool = False,
    steady: bool = True,
    world: World | None = None,
) -> None:
    """Raise `ContractError` unless `make_policy(group_spec)` keeps the `Policy` contract.

    Views are drawn at random from the place's spaces, or taken from a `world` for policies that play by its
    state. `steady=False` is for policies that draw lots even when asked to be greedy.
    """
    policy = make_policy(group_spec)
    view = _view(group_spec, seeding.generator(0, "check_policy"), masked, policy.memory_size, world)
    shown, state = _leaves(view), _leaves(policy.state())
    for greedy in (False, True):
        said, title = _act(policy, view, 1, greedy), f"greedy={greedy}"
        _check_decision(group_spec, view, said, policy.memory_size)
        _same(f"{title}, the view after act", shown, view)
        _same(f"{title}, same generator", said, _act(policy, view, 1, greedy))
        if greedy and steady:
            _same("greedy=True, another generator", said, _act(policy, view, 2, greedy))
        loaded = make_policy(group_spec)
        loaded.load(_stored(policy.state()))
        _same(f"{title}, saved and loaded", said, _act(loaded, view, 1, greedy))
    _same("the state after act", state, policy.state())
    if world is None:
        _check_log_prob(group_spec, policy, view)


def _act(policy: Policy, view: View, seed: int, greedy: bool = False) -> Decision:
    return policy.act(replace(view, greedy=greedy, random=seeding.generator(seed, "check act")))


def _view(
    group_spec: GroupSpec, random: np.random.Generator, masked: bool, memory: int, world: World | None = None
) -> View:
    rows, space = (COPIES, len(group_spec.agents)), group_spec.spaces.action
    held = random.random((*rows, memory), np.float32) if memory else None
    seen, acting, mask = _observe(group_spec.spaces.observation, rows, random), np.ones(rows, bool), None
    if world is not None:
        agent_step = world.reset(0).agent_types[group_spec.agent_type]
        seen, acting = (
            map_tree(lambda a: a[:, group_spec.columns], agent_step.observation),
            agent_step.acting[:, group_spec.columns],
        )
        mask = None if agent_step.mask is None else agent_step.mask[:, group_spec.columns]
    elif masked and isinstance(space, Discrete):
        mask = random.random((*rows, space.n)) < 0.5
        np.put_along_axis(mask, random.integers(space.n, size=(*rows, 1)), True, axis=-1)
    return View(
        seen, acting, np.arange(rows[1]), random, False, mask, held, world, group_spec.agent_type, group_spec.columns
    )


def _observe(space: ObservationSpace, rows: tuple[int, ...], random: np.random.Generator) -> Any:
    match space:
        case Dict(entries):
            return {key: _observe(part, rows, random) for key, part in entries.items()}
        case Discrete(n):
            return random.integers(n, size=rows)
        case Box(shape, low, high, dtype):
            low, high = (np.nan_to_num(np.float64(b), posinf=10.0, neginf=-10.0) for b in (low, high))
            return random.uniform(low, high, size=(*rows, *shape)).astype(dtype)


def _check_decision(group_spec: GroupSpec, view: View, said: Decision, memory: int) -> None:
    """Actions of who acts lie in the space and are legal; log-probabilities are numbers."""
    space, rows, where = (
        group_spec.spaces.action,
        view.acting.shape,
        Where("act", group_spec.agent_type, group_spec.agents),
    )
    check_array("act", "action", said.action, rows + action_shape(space), action_dtype(space))
    match space:
        case Box(_, low, high):
            good = (said.action >= low) & (said.action <= high)
        case MultiDiscrete(sizes):
            good = (said.action >= 0) & (said.action < sizes)
        case Discrete(n):
            good = (said.action >= 0) & (said.action < n)
    if isinstance(space, Discrete) and view.mask is not None and good.all():
        good = np.take_along_axis(view.mask, said.action[..., None], axis=-1)[..., 0]
    idle = ~view.acting.reshape(*rows, *[1] * (good.ndim - 2))
    where.demand(good | idle, f"an action that is legal in {space}", said.action)
    if said.log_prob is not None:
        check_array("act", "log_prob", said.log_prob, rows, "float32")
        where.demand(np.isfinite(said.log_prob) | ~view.acting, "a finite log_prob", said.log_prob)
    if memory:
        check_array("act", "memory", said.memory, (*rows, memory), "float32")


def _check_log_prob(group_spec: GroupSpec, policy: Policy, view: View) -> None:
    """Actions come as often as their log-probabilities say.

    For every region R of actions the mean of 1[a ∈ R]/p(a) must be R's size: 1 for a single choice, its
    volume for the inner half of a box.
    """
    tile: dict[str, Any] = {name: getattr(view, name) for name in ("observation", "acting", "mask", "memory")}
    tile = {name: tree if tree is None else map_tree(_first_copy_often, tree) for name, tree in tile.items()}
    said = _act(policy, replace(view, **tile), 3)
    if said.log_prob is None:
        return
    space = group_spec.spaces.action
    for a, agent in enumerate(group_spec.agents):
        action, size = said.action[:, a].reshape(DRAWS, -1), 1.0
        if isinstance(space, Box):
            low, high = (np.broadcast_to(np.float64(b), space.shape).reshape(-1) for b in (space.low, space.high))
            regions = [(np.abs(2 * (action - low) / (high - low) - 1) < 0.5).all(axis=1)]
            size = float(np.prod((high - low) / 2))
        else:
            regions = [(action == one).all(axis=1) for one in np.unique(action, axis=0)]
        for inside in regions:
            weight = inside / np.exp(said.log_prob[:, a], dtype=np.float64)
            error = 5 * weight.std() / np.sqrt(DRAWS) + 1e-4 * size
            where = f"agent {agent!r}, action {action[inside.argmax()]}"
            require(abs(weight.mean() - size) <= error, where, "log_prob to match how often it comes", weight.mean())


def _first_copy_often(array: Array) -> Array:
    return np.repeat(array[:1], DRAWS, axis=0)


# Promises of learners -----------------------------------------------------------------------------------


def check_learner(
    make_learner: Callable[[GroupSpec], Learner], group_spec: GroupSpec, masked: bool = False, remembers: bool = False
) -> None:
    """Raise `ContractError` unless `make_learner(group_spec)`, always the same at first, keeps the `Learner` contract.

    `remembers=True` is for learners that go on learning from earlier experience while nobody decides.
    """
    learner, bystander, again = (make_learner(group_spec) for _ in range(3))
    lived = _experience(group_spec, learner.policy, masked, 0)
    other = _experience(group_spec, learner.policy, masked, 1)
    first, kept = _whole(learner), _leaves(lived)
    _learn(group_spec, learner, lived, 1)
    once = _whole(learner)
    _same("another learner after learn", first, _whole(bystander))
    _same("the experience after learn", kept, lived)
    before, after = _leaves(first["policy"]), _leaves(once["policy"])
    require(any(not np.array_equal(before[key], after[key]) for key in before), "learn", "a changed policy", "none")
    _learn(group_spec, again, _spoil_idle_rows(lived, other), 1)
    _same("same experience, rubbish in idle rows", once, _whole(again))

    _learn(group_spec, learner, other, 2)
    twice = _whole(learner)
    for title, resumed in (("a new learner", bystander), ("a used learner", again)):
        _restore(resumed, once)
        _learn(group_spec, resumed, other, 2)
        _same(f"learn after loading into {title}", twice, _whole(resumed))
    _restore(learner, first)
    _learn(group_spec, learner, lived, 1)
    _same("learn after loading the beginning", once, _whole(learner))

    nobody = replace(lived, active=np.zeros_like(lived.active))
    _learn(group_spec, learner, nobody, 3)
    if not remembers:
        _same("the policy after no decision was closed", once["policy"], learner.policy.state())
    alone = lived.active.copy()
    alone[:, :, 1:] = False
    _learn(group_spec, learner, replace(lived, active=alone), 4)


def _learn(group_spec: GroupSpec, learner: Learner, lived: Experience, seed: int) -> None:
    joint = Joint({group_spec.group: lived}, seed, 0.1 * seed, {group_spec.group: group_spec.spaces})
    metrics = learner.learn(lived, joint, seeding.generator(seed, "check_learner"))
    for name, value in metrics.items():
        require(isinstance(value, float) and np.isfinite(value), "learn", f"a finite metric {name!r}", value)


def _experience(group_spec: GroupSpec, policy: Policy, masked: bool, seed: int) -> Experience:
    """Random observations and rewards, with idle rows and both kinds of ends; the policy's own decisions."""
    random, shape = seeding.generator(seed, "check_learner"), (ROWS, COPIES, len(group_spec.agents))
    views = [_view(group_spec, random, masked, policy.memory_size) for _ in range(ROWS + 1)]
    said = [_act(policy, view, t) for t, view in enumerate(views[:-1])]
    ended = random.random((ROWS, COPIES, 1)) < 0.2
    truncated = ended & (random.random(shape) < 0.5)
    index = np.argwhere(truncated.any(axis=2))
    finals = _observe(group_spec.spaces.observation, (len(index), shape[2]), random)
    zeros, size = np.zeros(shape[1:], np.float32), policy.memory_size
    return Experience(
        observation=map_tree(lambda *a: np.stack(a), *(view.observation for view in views)),
        action=np.stack([one.action for one in said]),
        log_prob=np.stack([zeros if one.log_prob is None else one.log_prob for one in said]),
        reward=random.standard_normal(shape, np.float32),
        active=random.random(shape) < 0.7,
        terminated=ended & ~truncated,
        truncated=truncated,
        acting=random.random(shape[1:]) < 0.7,
        finals=Finals(index, finals, random.random((len(index), shape[2], size), np.float32) if size else None),
        mask=_stack([view.mask for view in views[:-1]]),
        memory=_stack([view.memory for view in views]),
    )


def _stack(arrays: list[Array | None]) -> Array | None:
    given = [array for array in arrays if array is not None]
    return np.stack(given) if given else None


def _spoil_idle_rows(lived: Experience, other: Experience) -> Experience:
    """Other observations and decisions wherever nobody decided; what is remembered while idle still counts."""
    deciding = np.concatenate([lived.active, lived.acting[None]])

    def spoil(own: Array, rubbish: Array) -> Array:
        return np.where(deciding[: len(own)].reshape(*own.shape[:3], *[1] * (own.ndim - 3)), own, rubbish)

    parts: dict[str, Any] = {name: getattr(lived, name) for name in ("observation", "action", "mask")}
    parts = {k: tree if tree is None else map_tree(spoil, tree, getattr(other, k)) for k, tree in parts.items()}
    return replace(lived, log_prob=spoil(lived.log_prob, other.log_prob - 1000), **parts)


# Comparing ----------------------------------------------------------------------------------------------


def _whole(learner: Learner) -> State:
    """All that decides a learner's future, as it comes out of a checkpoint."""
    return _stored({"policy": learner.policy.state(), "learner": learner.state()})


def _restore(learner: Learner, state: State) -> None:
    learner.policy.load(state["policy"])
    learner.load(state["learner"])


def _stored(state: State) -> State:
    with TemporaryDirectory() as folder:
        checkpoint.save(Path(folder) / "state", state)
        return checkpoint.load(Path(folder) / "state")


def _leaves(tree: Any, path: str = "") -> dict[str, Array]:
    """Copies of all arrays and numbers in nested dicts and dataclasses, by path."""
    if is_dataclass(tree):
        tree = vars(tree)
    if isinstance(tree, dict):
        return {key: a for name, part in tree.items() for key, a in _leaves(part, f"{path}/{name}".lstrip("/")).items()}
    return {path: np.array(tree)} if isinstance(tree, np.ndarray | float | int) else {}


def _same(title: str, expected: Any, got: Any) -> None:
    """Equal to the last bit."""
    left, right = _leaves(expected), _leaves(got)
    require(left.keys() == right.keys(), title, f"{[*left]}", [*right])
    for path, array in left.items():
        require(np.array_equal(array, right[path]), f"{title}: {path}", f"{array}", right[path])
