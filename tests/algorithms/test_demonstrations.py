"""Demonstrations on disk: every field survives, and what is missing or damaged is named."""

import json
from dataclasses import replace

import numpy as np
import pytest

from coterie.algorithms.imitation import demonstrations
from coterie.algorithms.imitation.demonstrations import Demonstrations, EpisodeInfo, PlayedTable
from coterie.core.types import Box, CoterieError, Dict, Discrete, MultiDiscrete, map_tree

SPACE = Dict({"own": Box((2,), np.array([-np.inf, 0.0], np.float32), 1.0), "level": Discrete(4)}, (("own",),))


def tiny(group="team", success=(True, False), mask=True):
    """Two episodes of two agents: 3 and 2 decisions."""
    table = PlayedTable("tiny", {"name": "gridworld", "grid_size": 4}, "Gridworld", True, 7)
    episodes = tuple(EpisodeInfo(9, i, 2, s, {group: (1.0 + i, 3.0)}) for i, s in enumerate(success))
    return Demonstrations(
        table,
        group,
        "expert",
        ("agent_0", "agent_1"),
        SPACE,
        Discrete(3),
        episodes,
        np.array([0, 3, 5]),
        {"own": np.arange(10, dtype=np.float32).reshape(5, 2), "level": np.arange(5) % 4},
        np.array([0, 1, 2, 0, 1]),
        np.arange(5, dtype=np.float32),
        np.array([False, True, True, False, True]),
        np.zeros(5, bool),
        np.array([True, True, False, True, True]),
        np.array([0, 0, 1, 0, 1]),
        np.array([0, 1, 0, 0, 0]),
        {"own": np.zeros((2, 2, 2), np.float32), "level": np.zeros((2, 2), np.int64)},
        np.ones((5, 3), bool) if mask else None,
    )


def assert_same(one, other):
    for name in (*demonstrations.COLUMNS, "starts"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), name)
        assert getattr(one, name).dtype == getattr(other, name).dtype
    for name in demonstrations.TREES:
        map_tree(np.testing.assert_array_equal, getattr(one, name), getattr(other, name))
    assert (one.mask is None) == (other.mask is None)
    for name in ("table", "group", "policy", "agents", "observation_space", "action_space", "episodes"):
        assert getattr(one, name) == getattr(other, name)


@pytest.mark.parametrize("mask", [False, True])
def test_what_is_saved_is_loaded(tmp_path, mask):
    demonstrations.save(tmp_path, [tiny(mask=mask)])
    assert_same(demonstrations.load(tmp_path), tiny(mask=mask))
    index = json.loads((tmp_path / "demonstrations.json").read_text())
    assert [row["success"] for row in index["episodes"]] == [True, False]


@pytest.mark.parametrize("space", [SPACE, Discrete(5), MultiDiscrete((2, 3)), Box((3, 2), 0.0, 255.0, "uint8")])
def test_spaces_survive_json(space):
    stored = json.loads(json.dumps(demonstrations.space_to_dict(space), allow_nan=False))
    assert demonstrations.space_from_dict(stored) == space


def test_selected_and_joined_episodes_keep_their_rows():
    whole = tiny()
    parts = [whole.select([1]), whole.select([0])]
    assert parts[0].action.tolist() == [0, 1]
    assert parts[0].episodes[0].returns == {"team": (2.0, 3.0)}
    assert_same(demonstrations.join(parts[::-1]), whole)
    assert whole.episode.tolist() == [0, 0, 0, 1, 1]
    assert whole.frames == 4
    assert whole.returns().tolist() == [2.0, 2.5]


def test_joined_recordings_may_have_another_groups_name_and_order_of_agents():
    first, other = tiny(), tiny("others")
    other = replace(other, agents=other.agents[::-1], final_observation=map_tree(counted, other.final_observation))
    joined = demonstrations.join([first, other])
    assert joined.agent.tolist() == [0, 0, 1, 0, 1, 1, 1, 0, 1, 0]  # found by name, not by position
    assert [episode.returns for episode in joined.episodes[2:]] == [{"team": (3.0, 1.0)}, {"team": (3.0, 2.0)}]
    assert joined.returns().tolist() == [2.0, 2.5, 2.0, 2.5]
    assert joined.final_observation["level"][2:].tolist() == [[1, 0], [3, 2]]
    with pytest.raises(ValueError, match="agent_0, somebody"):
        demonstrations.join([first, replace(other, agents=("agent_0", "somebody"))])


def counted(array):
    return np.arange(array.size).reshape(array.shape)


def test_arrays_of_a_recording_that_was_killed_hold_more_than_the_index(tmp_path):
    demonstrations.save(tmp_path, [tiny()])
    arrays = (tmp_path / "team.npz").read_bytes()
    demonstrations.save(tmp_path, [tiny().select([0])])
    (tmp_path / "team.npz").write_bytes(arrays)
    assert_same(demonstrations.load(tmp_path), tiny().select([0]))


def test_what_cannot_be_loaded_is_named(tmp_path):
    with pytest.raises(CoterieError, match="nowhere"):
        demonstrations.load(tmp_path / "nowhere")
    demonstrations.save(tmp_path, [tiny("a"), tiny("b")])
    with pytest.raises(CoterieError, match="a, b"):
        demonstrations.load(tmp_path)
    with pytest.raises(CoterieError, match=r"'c'.*a, b"):
        demonstrations.load(tmp_path, "c")
    whole = bytearray((tmp_path / "a.npz").read_bytes())
    whole[60:80] = bytes(20)  # within the first array
    for damaged in (b"", b"PK and nothing more", bytes(whole)):
        (tmp_path / "a.npz").write_bytes(damaged)
        with pytest.raises(CoterieError, match=r"a\.npz"):
            demonstrations.load(tmp_path, "a")
    (tmp_path / "demonstrations.json").write_text("{}")
    with pytest.raises(CoterieError, match=r"demonstrations\.json.*schema"):
        demonstrations.load(tmp_path)
    (tmp_path / "demonstrations.json").write_text(f'{{"schema": {demonstrations.SCHEMA}}}')
    for read in (demonstrations.load, demonstrations.groups):
        with pytest.raises(CoterieError, match=r"demonstrations\.json' is damaged: it names no groups"):
            read(tmp_path)
