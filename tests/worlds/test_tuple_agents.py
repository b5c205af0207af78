"""Gymnasium environments of several agents: Tuple, list and dict spaces as agents, and text for language models."""

import numpy as np
import pytest

from coterie.config import registry, schema
from coterie.core.types import Box, CoterieError, Discrete, MultiDiscrete
from coterie.testing import check_world
from coterie.training.build import build_world
from coterie.worlds.adapters import batch
from coterie.worlds.adapters.batch import ExternalEnvError
from coterie.worlds.adapters.text import ObservationText

NAME = "gymnasium/helpers.odd_envs:Pair-v0"


def world(name=NAME, num_envs=1, **settings):
    return build_world(schema.part(registry.WORLDS, {"name": name} | settings, "world"), num_envs)


@pytest.mark.parametrize("form", ["tuple", "list", "dict"])
@pytest.mark.parametrize("ends", [False, True])
def test_entries_of_spaces_are_agents(form, ends):
    options = {"form": form, "ends": ends}
    pair = world(agents="tuple", options=options)
    agent_type = next(iter(pair.agent_types.values()))
    assert agent_type.agents == (("0", "1") if form == "dict" else ("agent_0", "agent_1"))
    assert agent_type.action == Discrete(3)
    pair.reset(0)
    timestep = pair.step({"agent": np.array([[1, 2]])})
    assert timestep.agent_types["agent"].reward[0].tolist() == [1, 2]
    timestep = pair.step({"agent": np.array([[1, 2]])})
    assert timestep.agent_types["agent"].terminated[0].tolist() == [ends, False]
    check_world(lambda num_envs: world(num_envs=num_envs, agents="tuple", options=options), steps=20)


@pytest.mark.parametrize("lacks", ["observations", "rewards"])
def test_what_agents_lack_when_they_end_is_filled_in_with_one_warning(lacks, caplog, monkeypatch):
    monkeypatch.setattr(batch, "_warned", set())
    options = {"form": "dict", "lacks": lacks}
    check_world(lambda num_envs: world(num_envs=num_envs, agents="tuple", options=options), steps=20)
    assert f"{lacks} have no entry for '0'" in caplog.text
    assert caplog.text.count("no entry for") == 1
    early = world(agents="tuple", options={"form": "dict", "lacks": "observations", "at": 1})
    early.reset(0)
    with pytest.raises(ExternalEnvError, match="step 1: expected observations with an entry for '0'"):
        early.step({"agent": np.zeros((1, 2), np.int64)})


def test_an_episode_in_a_new_environment_starts_as_in_a_bare_loop():
    fresh = world("gymnasium/helpers.odd_envs:Unseedable-v0", agents="tuple", fresh=True)
    seen = fresh.reset(0).agent_types["agent"].observation[0]
    np.testing.assert_array_equal(seen, np.random.default_rng(0).uniform(0, 10, (2, 2)).astype(np.float32))


def test_masks_and_time_limits_hold_for_every_agent():
    pair = world(agents="tuple", options={"masked": True}, max_episode_steps=3)
    agent_step = pair.reset(0).agent_types["agent"]
    assert agent_step.mask[0].tolist() == [[True, False, True]] * 2
    for _ in range(3):
        timestep = pair.step({"agent": np.zeros((1, 2), np.int64)})
    assert timestep.ended[0]
    assert agent_step.truncated[0].all()


def test_one_agent_needs_one_reward_and_the_error_names_the_cure():
    single = world()
    assert single.agent_types["agent"].action == MultiDiscrete((3, 3))
    single.reset(0)
    with pytest.raises(ExternalEnvError, match=r"world.scalarize.*world.agents: tuple"):
        single.step({"agent": np.zeros((1, 1, 2), np.int64)})
    with pytest.raises(CoterieError, match=r"world\.agents: tuple: expected .* spaces with one entry for each agent"):
        world("gymnasium/CartPole-v1", agents="tuple", native=False)


# Text -------------------------------------------------------------------------------------------------------


def test_text_is_kept_for_language_models():
    name = "gymnasium/helpers.odd_envs:Talking-v0"
    talking = world(name, 2, text=True)
    entries = talking.agent_types["agent"].observation.entries
    assert entries["says"] == Box((24,), 0.0, 255.0, "uint8")
    codec = talking.text_codec("agent")
    assert isinstance(codec, ObservationText)
    seen = talking.reset(0).agent_types["agent"].observation
    assert codec.describe({key: array[:, 0] for key, array in seen.items()}) == ["café a\nnumber0 = 0.00."] * 2
    check_world(lambda num_envs: world(name, num_envs, text=True), steps=12)


def test_an_observation_of_text_alone_needs_the_setting():
    name, options = "gymnasium/helpers.odd_envs:Talking-v0", {"alone": True}
    with pytest.raises(CoterieError, match=r"world\.text: true"):
        world(name, options=options)
    alone = world(name, options=options, text=True)
    timestep = alone.reset(0)
    assert alone.text_codec("agent").describe(timestep.agent_types["agent"].observation[:, 0]) == ["café a"]
    timestep = alone.step({"agent": np.zeros((1, 1), np.int64)})
    assert alone.text_codec("agent").describe(timestep.agent_types["agent"].observation[:, 0]) == ["café b"]
