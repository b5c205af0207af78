"""Observations as rows of floats, and the joint state of a table."""

import numpy as np

from coterie.core.decisions import Finals, Joint, StateRows
from coterie.core.types import AgentType, Box, Dict, Discrete
from coterie.nn.packing import joined_size, layout, pack, table_state
from helpers.small_worlds import NAMED, experience, generator


def test_entries_lie_side_by_side():
    lay = layout(NAMED)
    assert lay.size == 2 + 6 + 3 + 4
    assert {name: (e.start, e.stop) for name, e in lay.entries.items()} == {
        "own": (0, 2),
        "others": (2, 8),
        "seen": (8, 11),
        "level": (11, 15),
    }
    assert not lay.bare
    assert lay.image is None


def test_rows_of_a_set_share_their_statistics():
    lay = layout(NAMED)
    assert lay.slots.tolist() == [0, 1, 2, 3, 2, 3, 2, 3, 4, 4, 4, 5, 6, 7, 8]
    assert lay.width == 9


def test_an_empty_set_keeps_its_place_among_the_statistics():
    empty = layout(Dict({"own": Box((2,), 0.0, 1.0), "others": Box((0, 2), 0.0, 1.0)}, (("others",),)))
    some = layout(Dict({"own": Box((2,), 0.0, 1.0), "others": Box((5, 2), 0.0, 1.0)}, (("others",),)))
    assert (empty.size, some.size) == (2, 12)
    assert empty.width == some.width == 4


def test_packing():
    lay = layout(NAMED)
    random = generator()
    seen = {
        "own": random.random((5, 2, 2)),  # float64 becomes float32
        "others": random.random((5, 2, 3, 2), np.float32),
        "seen": random.random((5, 2, 3), np.float32),
        "level": random.integers(4, size=(5, 2)),
    }
    packed = pack(lay, seen)
    assert packed.shape == (5, 2, 15)
    assert packed.dtype == np.float32
    assert np.array_equal(packed[3, 1, 2:8], seen["others"][3, 1].ravel())
    assert packed[3, 1, 11:].tolist() == np.eye(4)[seen["level"][3, 1]].tolist()


def test_bytes_become_fractions_and_pictures_are_recognised():
    lay = layout(Box((2, 3, 4), 0, 255, "uint8"))
    assert lay.image == (2, 3, 4)
    packed = pack(lay, np.full((5, 1, 2, 3, 4), 51, np.uint8))
    assert packed.shape == (5, 1, 24)
    assert np.allclose(packed, 0.2)


def test_a_single_choice_is_one_hot():
    lay = layout(Discrete(3))
    assert pack(lay, np.array([[2], [0]])).tolist() == [[[0, 0, 1]], [[1, 0, 0]]]


def test_many_choices_are_written_digit_by_digit():
    """One-hot rows of a million choices would need 4 MB each, and an identity matrix 4 TB."""
    lay = layout(Discrete(1_000_000))
    assert lay.size == 300
    packed = pack(lay, np.array([[0, 999_999, 123_456]]))
    assert packed.shape == (1, 3, 300)
    assert [np.flatnonzero(row).tolist() for row in packed[0]] == [[0, 100, 200], [99, 199, 299], [56, 134, 212]]
    some = generator().integers(1_000_000, size=2000)
    assert len(np.unique(pack(lay, some), axis=0)) == len(np.unique(some))
    assert layout(Discrete(10_001)).size == 100 + 100 + 2


# The joint state -----------------------------------------------------------------------------------------


def two_groups():
    """Two agents that see vectors, one that sees names; two copies, three rows, two of them cut short."""
    agent_types = {
        "a": AgentType(("a_0", "a_1"), Box((3,), -1.0, 1.0), Discrete(2)),
        "b": AgentType(("b_0",), NAMED, Discrete(3)),
    }
    random = generator()

    def named(*lead):
        seen = {n: random.random((*lead, *e.shape), np.float32) for n, e in NAMED.entries.items() if n != "level"}
        return seen | {"level": random.integers(4, size=lead)}

    cut = np.array([[0, 1], [1, 0]])
    one = experience(
        np.zeros((2, 2)),
        copies=2,
        observation=random.random((3, 2, 2, 3), np.float32),
        finals=Finals(cut, random.random((2, 2, 3), np.float32)),
    )
    two = experience(np.zeros((2, 1)), copies=2, observation=named(3, 2, 1), finals=Finals(cut, named(2, 1)))
    return agent_types, Joint({"a": one, "b": two}, 1, 0.0, agent_types)


def test_everybodys_observations_lie_side_by_side():
    agent_types, joint = two_groups()
    state = table_state(joint)
    assert joined_size(agent_types) == 3 * 2 + 15
    assert state.rows.shape == (3, 2, 21)
    assert state.finals.shape == (2, 21)
    own, other = joint.decisions["a"], joint.decisions["b"]
    for t, n in np.ndindex(3, 2):
        expected = [*own.observation[t, n, 0], *own.observation[t, n, 1]]
        seen = {name: array[t, n, 0] for name, array in other.observation.items()}
        assert np.array_equal(state.rows[t, n], [*expected, *pack(layout(NAMED), seen)])
    for k in (0, 1):
        seen = {name: array[k, 0] for name, array in other.finals.observation.items()}
        assert np.array_equal(state.finals[k], [*own.finals.observation[k].ravel(), *pack(layout(NAMED), seen)])


def test_a_worlds_own_state_goes_before():
    agent_types, joint = two_groups()
    state = StateRows(np.zeros((3, 2, 5), np.float32), np.zeros((2, 5), np.float32))
    assert table_state(Joint(joint.decisions, 1, 0.0, agent_types, state)) is state
