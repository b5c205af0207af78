"""TorchRL's prioritised replay (a sum tree in C++) for `benchmarks/replay_sampling.py`. Prints one JSON line."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from replay_load import BATCH, IMPORTANCE, PRIORITY, SIZE, load, report
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.data.replay_buffers.samplers import PrioritizedSampler


def main() -> None:
    asked = load()
    torch.set_num_threads(1)
    torch.manual_seed(asked.seed)
    columns = ("observation", "following", "action", "reward", "terminated")
    rows = TensorDict({name: torch.from_numpy(getattr(asked, name)) for name in columns}, batch_size=[SIZE])
    sampler = PrioritizedSampler(SIZE, alpha=PRIORITY, beta=IMPORTANCE)
    replay = ReplayBuffer(storage=LazyTensorStorage(SIZE), sampler=sampler, batch_size=BATCH)
    replay.extend(rows)
    replay.update_priority(torch.arange(SIZE), torch.from_numpy(asked.first))

    def cycle(errors: NDArray[np.float32]) -> None:
        _, info = replay.sample(BATCH, return_info=True)
        replay.update_priority(info["index"], torch.from_numpy(errors))

    report(asked, lambda: sampler.sample(replay.storage, BATCH), cycle)


if __name__ == "__main__":
    main()
