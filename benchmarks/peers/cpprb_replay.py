"""cpprb's prioritised replay for `benchmarks/replay_sampling.py`. Prints one JSON line."""

from __future__ import annotations

import numpy as np
from cpprb import PrioritizedReplayBuffer
from numpy.typing import NDArray
from replay_load import BATCH, IMPORTANCE, PRIORITY, SIZE, load, report


def main() -> None:
    asked = load()
    np.random.seed(asked.seed)  # noqa: NPY002  # it draws from nothing else
    columns = {
        "observation": {"shape": 4, "dtype": np.float32},
        "following": {"shape": 4, "dtype": np.float32},
        "action": {"dtype": np.int64},
        "reward": {"dtype": np.float32},
        "terminated": {"dtype": np.bool_},
    }
    whole = PrioritizedReplayBuffer(SIZE, columns, alpha=PRIORITY)
    whole.add(**{name: getattr(asked, name) for name in columns}, priorities=asked.first)
    # it cannot draw without gathering: one byte a row is the least it can be made to gather
    bare = PrioritizedReplayBuffer(SIZE, {"terminated": {"dtype": np.bool_}}, alpha=PRIORITY)
    bare.add(terminated=asked.terminated, priorities=asked.first)

    def cycle(errors: NDArray[np.float32]) -> None:
        batch = whole.sample(BATCH, beta=IMPORTANCE)
        whole.update_priorities(batch["indexes"], errors)

    report(asked, lambda: bare.sample(BATCH, beta=IMPORTANCE), cycle)


if __name__ == "__main__":
    main()
