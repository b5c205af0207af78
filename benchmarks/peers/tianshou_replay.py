"""Tianshou's prioritised replay for `benchmarks/replay_sampling.py`. Prints one JSON line."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from replay_load import BATCH, IMPORTANCE, PRIORITY, SIZE, load, report
from tianshou.data import PrioritizedReplayBuffer, ReplayBuffer


def main() -> None:
    asked = load()
    np.random.seed(asked.seed)  # noqa: NPY002  # it draws from nothing else
    rows = ReplayBuffer.from_data(
        obs=asked.observation,
        act=asked.action,
        rew=asked.reward,
        terminated=asked.terminated,
        truncated=np.zeros(SIZE, bool),
        done=asked.terminated,
        obs_next=asked.following,
    )
    replay = PrioritizedReplayBuffer(SIZE, alpha=PRIORITY, beta=IMPORTANCE)
    replay.update(rows)
    replay.update_weight(np.arange(SIZE), asked.first)

    def sample() -> None:
        weight = replay.get_weight(replay.sample_indices(BATCH))
        weight /= weight.max()

    def cycle(errors: NDArray[np.float32]) -> None:
        _, index = replay.sample(BATCH)
        replay.update_weight(index, errors)

    report(asked, sample, cycle)


if __name__ == "__main__":
    main()
