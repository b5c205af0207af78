"""Random numbers inside compiled loops: one splitmix64 state per copy of a world or per tree.

A copy draws from its own state only, so its numbers do not depend on the number of copies. The generator is that of
Steele, Lea and Flood (2014), "Fast splittable pseudorandom number generators".
"""

from __future__ import annotations

import numpy as np

from coterie.core import seeding
from coterie.core.jit import device_function, jit
from coterie.core.types import Array

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # odd: a counter that advances by it takes every value
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def seed_copies(random: Array, seed: int, purpose: str) -> None:
    """Write the states `[N]` uint64 of all copies; the state of copy i depends on (seed, purpose, i) only."""
    _seed(random, np.uint64(seeding.integer(seed, purpose)))


@device_function
def scramble(x: np.uint64) -> np.uint64:
    """Mix the bits of a counter (the output function of splitmix64)."""
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


@jit
def scramble_each(numbers: Array) -> Array:
    """Mix the bits of each number `[N, K]`."""
    mixed = np.empty_like(numbers)
    for n in range(numbers.shape[0]):
        for k in range(numbers.shape[1]):
            mixed[n, k] = scramble(numbers[n, k])
    return mixed


@device_function
def uniform(random: Array, n: int) -> float:
    """A uniform number in [0, 1) from the stream of copy n."""
    random[n] += GOLDEN
    return np.float64(scramble(random[n]) >> np.uint64(11)) * 2.0**-53


@jit
def _seed(random: Array, base: np.uint64) -> None:
    # Scrambled, because splitmix64 advances in steps of the golden number: otherwise copy n+1 would draw the numbers
    # of copy n, shifted by one.
    for n in range(len(random)):
        random[n] = scramble(base + np.uint64(n + 1) * GOLDEN)
