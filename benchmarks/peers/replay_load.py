"""What `benchmarks/replay_sampling.py` asks of everybody: the rows, the priorities, and the clock.

Needs NumPy alone, for it is imported in every peer's own environment.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SIZE, BATCH = 1_000_000, 256
PRIORITY, IMPORTANCE = 0.6, 0.4  # the exponents α and β
ROUND = 200  # calls between two looks at the clock


@dataclass(frozen=True)
class Load:
    """A replay's contents, and what it shall do with them."""

    observation: NDArray[np.float32]  # [SIZE, 4]
    following: NDArray[np.float32]  # [SIZE, 4]
    action: NDArray[np.int64]  # [SIZE]
    reward: NDArray[np.float32]  # [SIZE]
    terminated: NDArray[np.bool_]  # [SIZE]
    first: NDArray[np.float32]  # [SIZE] absolute errors that the rows begin with
    later: NDArray[np.float32]  # [ROUND, BATCH] absolute errors to write back
    seed: int
    seconds: float  # how long each of both is measured


def load() -> Load:
    """The same rows for everybody, from the seed on the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    random = np.random.default_rng(options.seed)
    return Load(
        observation=random.standard_normal((SIZE, 4), np.float32),
        following=random.standard_normal((SIZE, 4), np.float32),
        action=random.integers(2, size=SIZE),
        reward=np.ones(SIZE, np.float32),
        terminated=random.random(SIZE) < 0.005,
        first=random.standard_exponential(SIZE, np.float32),
        later=random.standard_exponential((ROUND, BATCH), np.float32),
        seed=options.seed,
        seconds=options.seconds,
    )


def report(asked: Load, sample: Callable[[], object], cycle: Callable[[NDArray[np.float32]], object]) -> None:
    """Measure both and print one JSON line: batches per second of processor time, which is what one core does.

    `sample` draws indices and weights; `cycle` draws, gathers the rows and writes the priorities it is given.
    """
    figures = {
        "samples_per_s": _rate(lambda _: sample(), asked),
        "cycles_per_s": _rate(cycle, asked),
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(figures))


def _rate(act: Callable[[NDArray[np.float32]], object], asked: Load) -> float:
    """Calls per second of processor time, all threads together, after a round that does not count."""
    for errors in asked.later:
        act(errors)
    rounds, begin = 0, time.process_time()
    while time.process_time() - begin < asked.seconds:
        for errors in asked.later:
            act(errors)
        rounds += 1
    return rounds * ROUND / (time.process_time() - begin)
