"""Bitboards: sets of cells as the bits of an integer."""

from __future__ import annotations

import numpy as np

from coterie.core.jit import device_function

_PAIRS = np.uint64(0x5555555555555555)
_FOURS = np.uint64(0x3333333333333333)
_BYTES = np.uint64(0x0F0F0F0F0F0F0F0F)
_ONES = np.uint64(0x0101010101010101)


@device_function
def popcount(bits: int | np.uint64) -> int:
    """The number of bits that are set."""
    x = np.uint64(bits)
    x = x - ((x >> np.uint64(1)) & _PAIRS)
    x = (x & _FOURS) + ((x >> np.uint64(2)) & _FOURS)
    x = (x + (x >> np.uint64(4))) & _BYTES
    return int(np.int64((x * _ONES) >> np.uint64(56)))  # signed, lest Numba make floats of sums with it
