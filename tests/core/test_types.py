"""Spaces, trees, closed decisions and joining shards."""

import numpy as np

from coterie.core.decisions import Finals, merge
from coterie.core.trees import leading, map_tree
from coterie.core.types import AgentType, Box, Dict, Discrete, MultiDiscrete, action_dtype, action_shape
from helpers.small_worlds import experience


def test_boxes_are_equal_when_their_bounds_are():
    low = np.zeros(2)
    assert Box((2,), 0.0, 1.0) == Box((2,), low, np.ones(2))
    assert hash(Box((2,), 0.0, 1.0)) == hash(Box((2,), low, np.ones(2)))
    different = [
        Box((2,), 0.0, np.array([1.0, 2.0])),
        Box((2,), -1.0, 1.0),
        Box((3,), 0.0, 1.0),
        Box((2,), 0.0, 1.0, "uint8"),
    ]
    assert all(Box((2,), 0.0, 1.0) != other for other in [*different, Discrete(2), None])


def test_kinds_can_be_compared_and_hashed():
    def agent_type(n):
        return AgentType(("a",), Dict({"x": Box((n,), 0.0, 1.0)}, (("x",),)), Discrete(3))

    assert agent_type(2) == agent_type(2)
    assert hash(agent_type(2)) == hash(agent_type(2))
    assert agent_type(2) != agent_type(3)


def test_equal_dicts_have_equal_hashes_whatever_the_order_of_their_entries():
    entries = {"x": Discrete(2), "y": Discrete(3)}
    one, other = Dict(entries), Dict(dict(reversed(entries.items())))
    assert (one == other, hash(one) == hash(other)) == (True, True)


def test_shapes_and_types_of_actions():
    spaces = (Discrete(3), MultiDiscrete((2, 5, 4)), Box((2, 3), 0.0, 1.0), Box((), 0.0, 1.0))
    assert [action_shape(space) for space in spaces] == [(), (3,), (2, 3), ()]
    assert [action_dtype(space) for space in spaces] == ["int64", "int64", "float32", "float32"]


def test_trees():
    tree = {"a": np.arange(3), "b": np.ones(3)}
    assert map_tree(lambda x, y: (x + y).tolist(), tree, tree) == {"a": [0, 2, 4], "b": [2, 2, 2]}
    assert map_tree(lambda x: x.sum(), np.arange(3)) == 3
    assert leading(tree) is tree["a"]
    assert leading(tree["b"]) is tree["b"]


def closed(active, **fields):
    own = experience([[0]] * len(active), [[a] for a in active], **fields)
    return own.valid[:, 0, 0].astype(int).tolist()


def test_a_decision_is_closed_by_the_next_one_or_an_end():
    assert closed([1, 1, 0, 1, 0], acting=[False]) == [1, 1, 0, 0, 0]
    assert closed([1, 1, 0, 1, 0], acting=[True]) == [1, 1, 0, 1, 0]
    assert closed([1, 0, 0, 1, 0], acting=[False], terminated=[(4, 0)]) == [1, 0, 0, 1, 0]
    assert closed([1, 0, 0, 1, 0], acting=[False], truncated=[(3, 0)]) == [1, 0, 0, 1, 0]
    assert closed([1, 0, 0, 0, 0], acting=[False], truncated=[(1, 0)]) == [1, 0, 0, 0, 0]
    assert closed([1, 0, 0, 0, 0], acting=[False]) == [0, 0, 0, 0, 0]
    assert closed([0, 0], acting=[True]) == [0, 0]


def test_ends_are_either_kind():
    own = experience([[0, 0], [0, 0]], terminated=[(0, 1)], truncated=[(1, 0)])
    assert own.ends[:, 0].tolist() == [[False, True], [True, False]]


def test_one_shard_is_not_copied():
    own = experience([[0]])
    assert merge([own]) is own


def test_masks_memories_and_named_observations_are_joined():
    parts = []
    for value in (1.0, 2.0):
        named = {"x": np.full((2, 1, 1, 2), value), "y": np.full((2, 1, 1), value)}
        own = experience([[value]], observation=named, mask=np.full((1, 1, 1, 4), value == 1))
        final = {name: array[0] for name, array in named.items()}
        finals = Finals(np.array([[0, 0]]), final, np.full((1, 1, 3), 10 * value))
        own = experience(
            [[value]], observation=named, mask=own.mask, memory=np.full((2, 1, 1, 3), value), finals=finals
        )
        parts.append(own)
    both = merge(parts)
    assert both.observation["x"][0, :, 0, 0].tolist() == [1, 2]
    assert both.mask[0, :, 0, 0].tolist() == [True, False]
    assert both.memory.shape == (2, 2, 1, 3)
    assert both.memory[0, :, 0, 0].tolist() == [1, 2]
    assert both.finals.memory[:, 0, 0].tolist() == [10, 20]
    assert both.finals.at.tolist() == [[0, 0], [0, 1]]
    assert both.finals.observation["y"][:, 0].tolist() == [1, 2]
    plain = merge([experience([[0]]), experience([[0]])])
    assert plain.mask is plain.memory is plain.finals.memory is None
