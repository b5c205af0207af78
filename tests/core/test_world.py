"""Native worlds can be copied and pickled; a copy goes its own way from the same moment."""

import copy
import pickle

import numpy as np
import pytest

from coterie.config import registry, schema
from coterie.testing.learners import random_actions
from coterie.training import build

NATIVE = [name for name in registry.WORLDS if not name.endswith("/")] + ["gymnasium/CartPole-v1"]


@pytest.mark.parametrize("name", NATIVE)
@pytest.mark.parametrize("twin", [copy.deepcopy, lambda world: pickle.loads(pickle.dumps(world))])
def test_a_copy_goes_on_alike_and_alone(name, twin):
    world = build.build_world(schema.part(registry.WORLDS, {"name": name}, "world"), 3)
    inner = getattr(world, "inner", world)  # CartPole is hosted
    random = np.random.default_rng(0)
    ticks = inner.reset(1)
    for _ in range(3):
        ticks = inner.step(random_actions(ticks, inner.kinds, random))
    other = twin(inner)
    for _ in range(40):
        actions = random_actions(ticks, inner.kinds, random)
        ticks = inner.step(actions)
        again = other.step(actions)
        for kind, tick in ticks.kinds.items():
            np.testing.assert_array_equal(tick.observation, again.kinds[kind].observation)
            np.testing.assert_array_equal(tick.reward, again.kinds[kind].reward)
        np.testing.assert_array_equal(ticks.ended, again.ended)
    before = ticks.kinds[next(iter(ticks.kinds))].observation.copy()
    other.reset(7)
    np.testing.assert_array_equal(ticks.kinds[next(iter(ticks.kinds))].observation, before)
