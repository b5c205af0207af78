"""Random streams, each named by what it is for.

A stream derives from (seed, purpose, indices), never from the number of workers, so the same run draws
the same numbers however it is spread over processes. Nothing here touches global random state.
"""

from __future__ import annotations

import zlib

import numpy as np


def entropy(seed: int, purpose: str, *indices: int | str) -> list[int]:
    """The key of a stream as integers; words are folded by CRC-32, which is the same everywhere."""
    return [seed, zlib.crc32(purpose.encode()), len(indices)] + [
        zlib.crc32(index.encode()) if isinstance(index, str) else index for index in indices
    ]


def generator(seed: int, purpose: str, *indices: int | str) -> np.random.Generator:
    """A NumPy generator for one purpose."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy(seed, purpose, *indices))))


def integer(seed: int, purpose: str, *indices: int | str) -> int:
    """One 63-bit integer, for worlds and libraries that take a seed."""
    sequence = np.random.SeedSequence(entropy(seed, purpose, *indices))
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))
