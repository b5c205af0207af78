"""Prioritised sampling of 256 from 1,000,000 CartPole transitions: ours against libraries, one core, interleaved.

    python benchmarks/replay_sampling.py --tianshou .venv-tianshou/bin/python [--cpprb PYTHON] [--torchrl PYTHON]

The peers live in environments of their own; `make peers` builds that of the fastest, Tianshou. `sample` draws
indices and importance weights; `cycle` draws, gathers the rows and writes back 256 priorities. Batches are
counted per second of processor time, so that a busy machine does not count.
"""

from __future__ import annotations

import argparse
import sys

from interleave import HERE, medians, ratios, take_turns, write

PEERS = ("tianshou", "cpprb", "torchrl")


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in PEERS:
        parser.add_argument(f"--{name}", help=f"the Python of an environment with {name}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--out")
    options = parser.parse_args()
    contestants = {"coterie": [sys.executable, str(HERE / "ours_replay.py")]}
    for name in PEERS:
        if python := getattr(options, name):
            contestants[name] = [python, str(HERE / "peers" / f"{name}_replay.py")]
    words = ["--seconds", str(options.seconds)]
    found = medians(take_turns({name: [*command, *words] for name, command in contestants.items()}, options.rounds))
    print(f"{'':12}{'sample, batches/s':>20}{'cycle, batches/s':>20}{'memory':>10}")
    for name, one in found.items():
        row = f"{name:12}{one['samples_per_s']:20,.0f}{one['cycles_per_s']:20,.0f}"
        print(f"{row}{one['memory_mb']:7.0f} MB")
    compared = {key: ratios(found, key) for key in ("samples_per_s", "cycles_per_s")}
    write({"rounds": options.rounds, "measured": found, "ratios": compared}, options.out)


if __name__ == "__main__":
    main()
