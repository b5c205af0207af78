"""How fast the grid world steps on one core: 8×8, 4 agents, 1024 copies, flat observations.

Prints one JSON line. Actions are drawn beforehand; compilation is not counted.
"""

from __future__ import annotations

import json
import statistics
import time

import numpy as np

from coterie.worlds.gridworld.world import Gridworld, GridworldSettings

COPIES, AGENTS, STEPS, ROUNDS = 1024, 4, 500, 7


def measure() -> dict[str, str | float]:
    """Agent-steps per second, the median over rounds."""
    world = Gridworld(GridworldSettings(grid_size=8, num_agents=AGENTS), COPIES)
    actions = np.random.default_rng(0).integers(0, 5, (STEPS, COPIES, AGENTS))
    began = time.perf_counter()
    world.reset(0)
    world.step({"agent": actions[0]})
    first = time.perf_counter() - began
    speeds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for action in actions:
            world.step({"agent": action})
        speeds.append(STEPS * COPIES * AGENTS / (time.perf_counter() - began))
    return {
        "benchmark": "grid_stepping",
        "agent_steps_per_second": round(statistics.median(speeds)),
        "slowest": round(min(speeds)),
        "fastest": round(max(speeds)),
        "rounds": ROUNDS,
        "copies": COPIES,
        "agents": AGENTS,
        "first_step_seconds": round(first, 2),  # includes compiling, or loading what was compiled before
    }


if __name__ == "__main__":
    print(json.dumps(measure()))
