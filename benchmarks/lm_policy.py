"""How well a language model plays the 5×5 race: its share of optimal moves on fresh states.

    python benchmarks/lm_policy.py --states 1000 --out docs/results/lm-policy.json

States are the first moments of episodes, each weighed as often as it comes. Fresh ones are those whose description
is neither among the examples nor among the samples that calibrate the model.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from coterie.core.group import GroupSpec
from coterie.core.seeding import generator
from coterie.core.types import View
from coterie.lm import prompts
from coterie.lm.ask.loading import LMSettings
from coterie.policies.language import LanguagePolicy, LanguageSettings
from coterie.worlds.gridworld.world import Gridworld, GridworldSettings

WAYS = {
    "8 examples, batch": {},
    "8 examples, content free": {"calibration": "content_free"},
    "8 examples, none": {"calibration": "none"},
    "no examples, batch": {"examples": "none"},
}


def measure(settings: LanguageSettings, size: int, states: int, seed: int) -> dict[str, float]:
    """Shares of optimal moves among fresh and among all states."""
    world = Gridworld(GridworldSettings(grid_size=size, num_agents=2, mode="race"), states)
    agent_step, spaces = world.reset(seed).agent_types["agent"], world.agent_types["agent"]
    group_spec = GroupSpec("model", "agent", spaces, spaces.agents, np.arange(2), world=world)
    policy = LanguagePolicy(settings, group_spec)
    started = time.perf_counter()
    view = View(agent_step.observation, agent_step.acting, np.arange(2), generator(seed, "measure"), greedy=True)
    action = policy.act(view).action
    seconds = time.perf_counter() - started
    good = policy.codec.optimal(world, action).ravel()
    told = policy.codec.describe(agent_step.observation.reshape(2 * states, -1))
    examples = prompts.parse((prompts.FOLDER / "gridworld-examples.txt").read_text(), "gridworld", policy.codec.choices)
    shown = {state for state, _ in examples} | set(policy.codec.samples())
    fresh = np.array([text not in shown for text in told])
    return {
        "optimal_fresh": round(float(good[fresh].mean()), 4),
        "optimal_all": round(float(good.mean()), 4),
        "fresh_states": int(fresh.sum()),
        "fresh_descriptions": len(set(told) - shown),
        "random": round(float(np.mean([policy.codec.optimal(world, np.full_like(action, a)) for a in range(4)])), 4),
        "calls": policy.metrics()["lm/calls"],
        "seconds": round(seconds, 2),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--states", type=int, default=1000)
    options.add_argument("--size", type=int, default=5, help="of the grid")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--lm", default="embedded")
    options.add_argument("--ways", nargs="*", default=list(WAYS), choices=list(WAYS))
    options.add_argument("--out", type=Path)
    given = options.parse_args()
    base = LanguageSettings(lm=LMSettings(given.lm))
    found = {}
    for name in given.ways:
        found[name] = measure(replace(base, **WAYS[name]), given.size, given.states, given.seed)
        print(f"{name:26} {found[name]}", flush=True)
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
