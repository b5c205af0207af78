"""Native worlds can be copied and pickled; a copy goes its own way from the same moment."""

import copy
import pickle

import numpy as np
import pytest

from coterie.config import registry, schema
from coterie.core.sampling import random_actions
from coterie.training import build

NATIVE = [name for name in registry.WORLDS if not name.endswith("/")] + ["gymnasium/CartPole-v1"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NATIVE)
@pytest.mark.parametrize("twin", [copy.deepcopy, lambda world: pickle.loads(pickle.dumps(world))])
def test_a_copy_goes_on_alike_and_alone(name, twin):
    world = build.build_world(schema.part(registry.WORLDS, {"name": name}, "world"), 3)
    inner = getattr(world, "inner", world)  # CartPole is hosted
    random = np.random.default_rng(0)
    timestep = inner.reset(1)
    for _ in range(3):
        timestep = inner.step(random_actions(timestep, inner.agent_types, random))
    other = twin(inner)
    for _ in range(40):
        actions = random_actions(timestep, inner.agent_types, random)
        timestep = inner.step(actions)
        again = other.step(actions)
        for agent_type, agent_step in timestep.agent_types.items():
            np.testing.assert_array_equal(agent_step.observation, again.agent_types[agent_type].observation)
            np.testing.assert_array_equal(agent_step.reward, again.agent_types[agent_type].reward)
        np.testing.assert_array_equal(timestep.ended, again.ended)
    before = timestep.agent_types[next(iter(timestep.agent_types))].observation.copy()
    other.reset(7)
    np.testing.assert_array_equal(timestep.agent_types[next(iter(timestep.agent_types))].observation, before)
