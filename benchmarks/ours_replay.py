"""Our prioritised replay for `benchmarks/replay_sampling.py`. Prints one JSON line."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from peers.replay_load import BATCH, IMPORTANCE, PRIORITY, SIZE, load, report

from coterie.algorithms.replay import Replay, ReplaySettings


class Rows(NamedTuple):
    observation: NDArray[np.float32]  # [rows, 4]
    following: NDArray[np.float32]  # [rows, 4]
    action: NDArray[np.int64]  # [rows]
    reward: NDArray[np.float32]  # [rows]
    terminated: NDArray[np.bool_]  # [rows]


def main() -> None:
    asked = load()
    random = np.random.default_rng(asked.seed)
    rows = Rows(asked.observation, asked.following, asked.action, asked.reward, asked.terminated)
    replay = Replay(ReplaySettings(size=SIZE, priority=PRIORITY, importance=IMPORTANCE), rows)
    replay.add(rows)
    replay.prioritise(np.arange(SIZE), asked.first)

    def cycle(errors: NDArray[np.float32]) -> None:
        drawn, _ = replay.sample(random.random(BATCH), IMPORTANCE)
        _ = Rows(*(column[drawn] for column in replay.rows))
        replay.prioritise(drawn, errors)

    report(asked, lambda: replay.sample(random.random(BATCH), IMPORTANCE), cycle)


if __name__ == "__main__":
    main()
