"""Kernels of worlds, rollouts and scans compile for a GPU, on machines without one.

Worlds are played for a few steps on the CPU, and their kernels are compiled for the types that they were launched with.
"""

import importlib
import pkgutil
from types import SimpleNamespace

import numpy as np
import pytest

from coterie.algorithms.dqn.transitions import Trajectories, complete_transitions, empty_transitions, no_pending
from coterie.algorithms.ppo.advantages import advantages
from coterie.config import registry
from coterie.core import lookup
from coterie.core.decisions import Finals
from coterie.core.types import Box, Discrete, MultiDiscrete
from coterie.nn.launch import KERNELS
from coterie.training.rollout import Arrived, Played, Row, Seen
from coterie.worlds.cartpole import CartPole
from helpers.cuda import signatures, to_ptx
from helpers.needs import needs

pytestmark = [needs("numba_cuda", "dev"), pytest.mark.slow]
PACKAGES = ("nn", "worlds", "algorithms")
PLAYED = [
    ("gridworld", {"num_obstacles": 2}),
    ("gridworld", {"instructions": "train"}),
    ("spread", {}),
    ("spread", {"continuous_actions": True}),
    ("tag", {}),
    ("doorkey", {}),
    ("auction", {"rounds": 2}),
    ("auction", {"bid_levels": 5}),
    ("tictactoe", {}),
    ("connect_four", {}),
    ("othello", {}),
]


def make_world(name, settings):
    return lookup.look_up(registry.WORLDS, name)(lookup.settings_type(registry.WORLDS, name)(**settings), 2)


def first_actions(world, step):
    """The first legal action of every agent."""
    chosen = {}
    for name, agent_type in world.agent_types.items():
        rows = (world.num_envs, len(agent_type.agents))
        space, mask = agent_type.action, step.agent_types[name].mask
        if isinstance(space, Discrete):
            chosen[name] = np.zeros(rows, np.int64) if mask is None else mask.argmax(axis=-1)
        elif isinstance(space, MultiDiscrete):
            chosen[name] = np.zeros((*rows, len(space.sizes)), np.int64)
        else:
            assert isinstance(space, Box)
            chosen[name] = np.zeros((*rows, *space.shape), np.float32)
    return chosen


def play(world):
    """Launch all kernels of a world."""
    step = world.reset(0)
    world.step(first_actions(world, step))
    random = np.random.default_rng(0)
    for agent_type in world.agent_types:
        for method in ("skill_actions", "best_skills"):
            if hasattr(world, method) and not getattr(world.settings, "continuous_actions", False):
                getattr(world, method)(agent_type)
        if hasattr(world, "expert"):
            world.expert(agent_type, random)


ON_GPU = (  # modules of kernels that are compiled for a GPU; those of updates run on the CPU alone so far
    *("coterie.worlds.", "coterie.training.rollout"),
    *("coterie.algorithms.ppo.advantages", "coterie.algorithms.dqn.transitions"),
)


def estimate_advantages():
    """Launch the scan of PPO."""
    shape, flags = (2, 1, 1), np.ones((2, 1, 1), np.bool_)
    table = SimpleNamespace(valid=flags, terminated=flags, truncated=flags, ends=flags)
    numbers = np.zeros(shape, np.float32)
    advantages(table, numbers, numbers, numbers, 0.99, 0.95)


def close_decisions():
    """Launch the scan that closes a rollout's decisions: one agent waits, so that it is not a view."""
    shape = (2, 1, 1)
    flags, numbers = np.zeros(shape, np.bool_), np.zeros(shape, np.float32)
    row = Row(flags, np.zeros(shape, np.int64), numbers, None, None, None)
    finals = Finals(np.zeros((0, 2), np.int64), np.zeros((0, 1, 3), np.float32))
    seen = Seen(np.zeros((3, 1, 1, 3), np.float32), None)
    arrived = Arrived(numbers, numbers, flags, flags)
    Played(row, seen, arrived, finals, np.ones((1, 1), np.bool_), np.zeros((2, 1), np.int64)).close()


def collect_transitions():
    """Launch the scans of DQN, for one sequence of one member, with two actions and observations of three numbers."""
    shape, flags = (2, 1, 1), np.ones((2, 1, 1), np.bool_)
    trajectories = Trajectories(
        observation=np.zeros((3, 1, 1, 3), np.float32),
        action=np.zeros(shape, np.int64),
        reward=np.zeros((2, 1), np.float32),
        active=flags,
        terminated=flags,
        truncated=~flags,
        mask=np.ones((*shape, 2), np.bool_),
        next=np.arange(2)[:, None],
        final=np.zeros((0, 1, 3), np.float32),
        state=np.zeros((3, 1, 0), np.float32),
        final_state=np.zeros((0, 0), np.float32),
        agent=np.zeros(1, np.int64),
        advised=np.full(shape, -1),
    )
    pending = no_pending(1, 2, empty_transitions(1, 1, 3, 2, 0))
    assert len(complete_transitions(trajectories, pending, 0.9).reward) == 2


@pytest.fixture(scope="module")
def launched():
    """All kernels of the package, after each has been launched on the CPU."""
    for name in PACKAGES:
        package = importlib.import_module(f"coterie.{name}")
        for module in pkgutil.walk_packages(package.__path__, f"coterie.{name}."):
            if ".adapters" not in module.name:
                importlib.import_module(module.name)
    for name, settings in PLAYED:
        play(make_world(name, settings))
    play(CartPole(2))
    estimate_advantages()
    collect_transitions()
    close_decisions()
    return [kernel for kernel in KERNELS if kernel.__module__.startswith(ON_GPU)]


def test_every_kernel_compiles_for_a_gpu(launched):
    failed = {}
    for kernel in launched:
        name = f"{kernel.__module__}:{kernel.__qualname__}"
        found = signatures(kernel)
        assert found, f"{name} was launched by nothing here: add it to PLAYED"
        for signature in found:
            try:
                assert ".entry" in to_ptx(kernel, signature)
            except Exception as error:  # all of them are reported at once
                failed[name] = f"{type(error).__name__}: {error}"
    assert not failed, "\n\n".join(f"{name}: {reason}" for name, reason in failed.items())
