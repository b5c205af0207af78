"""Random streams, each identified by its purpose.

A stream derives from (seed, purpose, indices) and not from the number of workers, so a run draws the same numbers on
any number of processes. Nothing here touches global random state.
"""

from __future__ import annotations

import zlib

import numpy as np


def entropy(seed: int, purpose: str, *indices: int | str) -> list[int]:
    """Return the key of a stream as integers; strings are hashed by CRC-32, which is the same on every platform."""
    return [seed, zlib.crc32(purpose.encode()), len(indices)] + [
        zlib.crc32(index.encode()) if isinstance(index, str) else index for index in indices
    ]


def generator(seed: int, purpose: str, *indices: int | str) -> np.random.Generator:
    """Return a NumPy generator for one purpose."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy(seed, purpose, *indices))))


def integer(seed: int, purpose: str, *indices: int | str) -> int:
    """Return a 63-bit integer, for worlds and libraries that take a seed."""
    sequence = np.random.SeedSequence(entropy(seed, purpose, *indices))
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))
