"""Random numbers inside compiled loops: one splitmix64 state per copy of a world.

A copy draws from its own state only, so its luck never depends on how many others there are. The generator is
that of Steele, Lea and Flood (2014), "Fast splittable pseudorandom number generators".
"""

from __future__ import annotations

import numpy as np
from numba import njit

from coterie.core import seeding
from coterie.core.types import Array

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def seed_copies(random: Array, seed: int, purpose: str) -> None:
    """Write the states `[N]` uint64 of all copies; that of copy i depends on (seed, purpose, i) only."""
    _seed(random, np.uint64(seeding.integer(seed, purpose)))


@njit(cache=True)
def scramble(x: np.uint64) -> np.uint64:
    """Mix the bits of a counter into a random-looking number."""
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


@njit(cache=True)
def uniform(random: Array, n: int) -> float:
    """A number in [0, 1) from copy n's stream."""
    random[n] += _GOLDEN
    return np.float64(scramble(random[n]) >> np.uint64(11)) * 2.0**-53


@njit(cache=True)
def _seed(random: Array, base: np.uint64) -> None:
    # Scrambled, because splitmix64 walks in steps of the golden number: unscrambled, copy n+1 would be copy n
    # one draw later.
    for n in range(len(random)):
        random[n] = scramble(base + np.uint64(n + 1) * _GOLDEN)
