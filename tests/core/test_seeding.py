"""Random streams: the same name gives the same numbers, another name others."""

import numpy as np

from coterie.core import seeding


def draw(*key):
    return seeding.generator(*key).integers(2**62, size=4).tolist()


def test_a_stream_is_known_by_its_name_alone():
    assert draw(1, "act", 2, "team") == draw(1, "act", 2, "team")
    # Golden numbers: the same on every machine and in every version, or old runs cannot be resumed.
    assert seeding.integer(0, "world", 0) == 5692561299535173113
    assert seeding.entropy(7, "act", 3, "team") == [7, 2951542084, 2, 3, 3303056927]


def test_every_part_of_the_name_matters():
    keys = [
        (0, "act", 1, 0, "team"),
        (1, "act", 1, 0, "team"),
        (0, "learn", 1, 0, "team"),
        (0, "act", 2, 0, "team"),
        (0, "act", 0, 1, "team"),
        (0, "act", 1, 0, "others"),
        (2**40, "act", 1, 0, "team"),
    ]
    assert len({tuple(draw(*key)) for key in keys}) == len(keys)


def test_integers_are_63_bits_and_spread():
    found = [seeding.integer(seed, "world", shard) for seed in range(20) for shard in range(20)]
    assert len(set(found)) == 400
    assert all(0 <= value < 2**63 for value in found)
    assert max(found) > 2**62


def test_global_random_state_is_left_alone():
    before = np.random.get_state()[1].tolist()  # noqa: NPY002  # the very thing we must not touch
    seeding.generator(0, "act").random(3)
    seeding.integer(0, "act")
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002
