"""Answers per second of the code task: programs run on all tests of a problem, in this process and in child processes.

    python benchmarks/code_task.py [--answers 64] [--rounds 3] [--note TEXT] [--out FILE]

The answers are reference programs, made different by a comment, so that none is remembered; each is run on about nine
tests. Contestants take turns: one sandbox for all tests of a program (`driver.py`) with 0 and 2 child processes, and a
sandbox for every test.
"""

from __future__ import annotations

import argparse
import statistics
import time
from unittest.mock import patch

from interleave import write

from coterie import sandbox
from coterie.core import seeding
from coterie.worlds.tasks.code.task import CodeSettings, CodeTask
from coterie.worlds.tasks.env_workers import Answer, EnvWorkers


def answers(task: CodeTask, count: int, label: str) -> list[Answer]:
    """Right programs for random problems."""
    random = seeding.generator(0, "answers")
    states = [task.generate(random) for _ in range(count)]
    return [(state, "coder", f"{task.solve(state, 'coder')}# {label} {n}\n") for n, state in enumerate(states)]


def speed(workers: EnvWorkers, batch: list[Answer]) -> float:
    """Answers per second."""
    began = time.perf_counter()
    outcomes = workers.apply(batch)
    seconds = time.perf_counter() - began
    assert all(outcome.solved for outcome in outcomes)
    return len(batch) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--note", default="", help="what else the machine was doing")
    parser.add_argument("--out")
    options = parser.parse_args()
    task = CodeTask(CodeSettings())
    contestants = {"env_workers 0": 0, "env_workers 2": 2, "a sandbox per test, env_workers 0": 0}
    crews = {name: EnvWorkers(task, count) for name, count in contestants.items()}
    crews["env_workers 2"].apply(answers(task, 4, "warm"))
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(options.rounds):
        for name, crew in crews.items():
            mechanism = "one by one" if "per test" in name else sandbox.live_mechanism()
            with patch.object(sandbox, "live_mechanism", return_value=mechanism):
                found[name].append(speed(crew, answers(task, options.answers, f"{name} {turn}")))
    for crew in crews.values():
        crew.close()
    medians = {name: round(statistics.median(values), 1) for name, values in found.items()}
    for name, value in medians.items():
        print(f"{name:>36}: {value:6.1f} answers/s  ({', '.join(f'{v:.1f}' for v in found[name])})")
    rounded = {name: [round(value, 2) for value in values] for name, values in found.items()}
    write({"answers": options.answers, "note": options.note, "per_second": medians, "all": rounded}, options.out)


if __name__ == "__main__":
    main()
