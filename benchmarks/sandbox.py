"""Programs per second in the sandbox against a plain interpreter, and the verdict on every attack of the tests.

    python benchmarks/sandbox.py [--seconds 3] [--rounds 3] [--out docs/results/bench-sandbox.json]

The program reads a number and prints its square. Contestants take turns; each round counts programs in some seconds,
one after the other and two at a time.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from interleave import HERE, commit, write

from coterie import sandbox
from coterie.sandbox.interpreter import find_interpreter

sys.path.insert(0, str(HERE.parent / "tests"))
from helpers.attacks import ATTACKS, prepared  # type: ignore[import-not-found]  # a folder of the repository

PROGRAM = "print(int(input()) ** 2)"


def plain() -> None:
    """The same program by an interpreter without a sandbox."""
    command = [find_interpreter().path, "-I", "-S", "-c", PROGRAM]
    done = subprocess.run(command, input="12", capture_output=True, text=True, check=True)
    assert done.stdout == "144\n"


def isolated(mechanism: str) -> None:
    verdict = sandbox.run(PROGRAM, "12", mechanism=mechanism)
    assert (verdict.status, verdict.stdout) == ("pass", "144\n"), verdict


def speed(once: Callable[[], None], seconds: float, workers: int) -> float:
    """Programs per second."""

    def work(until: float) -> int:
        count = 0
        while time.perf_counter() < until:
            once()
            count += 1
        return count

    began = time.perf_counter()
    with ThreadPoolExecutor(workers) as pool:
        count = sum(pool.map(work, [began + seconds] * workers))
    return count / (time.perf_counter() - began)


def verdicts(mechanism: str) -> dict[str, str]:
    """The verdict on every attack; raises where one got what it wanted."""
    found: dict[str, str] = {}
    with socket.create_server(("127.0.0.1", 0)) as server, tempfile.TemporaryDirectory() as folder:
        for name, (_, allowed) in ATTACKS.items():
            program = prepared(name, server.getsockname()[1], folder, os.getpid())
            verdict = sandbox.run(
                program, cpu_seconds=0.5, wall_seconds=2, memory_mb=128, output_bytes=100_000, mechanism=mechanism
            )
            if verdict.status not in allowed or "BROKEN" in verdict.stdout or list(Path(folder).iterdir()):
                raise SystemExit(f"{mechanism}: '{name}' is not contained: {verdict}")
            found[name] = verdict.status
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out")
    chosen = parser.parse_args()
    live = [name for name, (available, _) in sandbox.MECHANISMS.items() if name != "unsafe" and available()]
    contestants: dict[str, Callable[[], None]] = {"plain interpreter": plain}
    contestants |= {name: lambda name=name: isolated(name) for name in live}  # type: ignore[misc]
    found: dict[str, dict[int, list[float]]] = {name: {1: [], 2: []} for name in contestants}
    for _ in range(chosen.rounds):
        for workers in (1, 2):
            for name, once in contestants.items():
                found[name][workers].append(speed(once, chosen.seconds, workers))
    figures = {
        name: {
            f"programs_per_s, {workers} at a time": round(statistics.median(all_), 1) for workers, all_ in by.items()
        }
        for name, by in found.items()
    }
    summary = {
        "command": "make bench-sandbox",
        "commit": commit(),
        "program": PROGRAM,
        "speed": figures,
        "attacks": {name: verdicts(name) for name in live},
    }
    write(summary, chosen.out)


if __name__ == "__main__":
    main()
