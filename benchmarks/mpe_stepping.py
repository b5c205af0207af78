"""How fast spread steps on one core, beside mpe2's own parallel environment: 3 agents, episodes of 25 steps.

Prints one JSON line. Ours steps 1024 copies together, mpe2's one, as it is; rounds of both alternate, and medians
are compared. Random actions are drawn beforehand; compilation is not counted, resets are.
"""

from __future__ import annotations

import json
import statistics
import time

import numpy as np
from mpe2 import simple_spread_v3

from coterie.worlds.mpe.world import Spread, SpreadSettings

COPIES, AGENTS, STEPS, THEIR_STEPS, ROUNDS = 1024, 3, 500, 1000, 7


def time_ours(world: Spread, actions: np.ndarray) -> float:
    """Agent-steps per second of one round."""
    began = time.perf_counter()
    for action in actions:
        world.step({"agent": action})
    return actions.size / (time.perf_counter() - began)


def time_theirs(env: simple_spread_v3.parallel_env, actions: list[dict[str, int]]) -> float:
    """The same for mpe2, reset whenever its episode is over."""
    began = time.perf_counter()
    for action in actions:
        env.step(action)
        if not env.agents:
            env.reset()
    return len(actions) * AGENTS / (time.perf_counter() - began)


def measure() -> dict[str, str | float]:
    """Agent-steps per second of both, medians over rounds."""
    random = np.random.default_rng(0)
    world = Spread(SpreadSettings(num_agents=AGENTS), COPIES)
    actions = random.integers(0, 5, (STEPS, COPIES, AGENTS))
    env = simple_spread_v3.parallel_env(N=AGENTS)
    env.reset(seed=0)
    their_actions = [
        {f"agent_{i}": int(choice) for i, choice in enumerate(row)}
        for row in random.integers(0, 5, (THEIR_STEPS, AGENTS))
    ]
    began = time.perf_counter()
    world.reset(0)
    world.step({"agent": actions[0]})
    first = time.perf_counter() - began
    ours, theirs = [], []
    for _ in range(ROUNDS):
        ours.append(time_ours(world, actions))
        theirs.append(time_theirs(env, their_actions))
    return {
        "benchmark": "mpe_stepping",
        "agent_steps_per_second": round(statistics.median(ours)),
        "slowest": round(min(ours)),
        "fastest": round(max(ours)),
        "mpe2_agent_steps_per_second": round(statistics.median(theirs)),
        "times_mpe2": round(statistics.median(ours) / statistics.median(theirs), 1),
        "rounds": ROUNDS,
        "copies": COPIES,
        "agents": AGENTS,
        "first_step_seconds": round(first, 2),  # includes compiling, or loading what was compiled before
    }


if __name__ == "__main__":
    print(json.dumps(measure()))
