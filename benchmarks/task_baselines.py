"""What random characters, guesses in the right form and the scripted solver reach in every text task.

    python benchmarks/task_baselines.py [--episodes 200] [--out docs/results/task-baselines.json]

All roles are played by the same policy on instances for tests, in the worlds of the shipped experiments.
"""

from __future__ import annotations

import argparse

from interleave import write

from coterie.config import schema
from coterie.core.group import Actor
from coterie.policies.scripted import (
    ExpertPolicy,
    ExpertSettings,
    GuessPolicy,
    GuessSettings,
    RandomPolicy,
    RandomSettings,
)
from coterie.training.build import build_evaluation_world, build_group_specs
from coterie.training.evaluate import evaluate
from coterie.training.loop import evaluation_seed

WORLDS = {  # in words: experiment and overrides
    "Plan-Path 4×4, 8 turns of 2 moves": ("plan-path-shared", []),
    "Plan-Path 10×10, 4 turns": ("plan-path-shared", ["world.size=10", "world.max_moves=0", "world.turns=4"]),
    "Sokoban 6×6, 1 box, 4 turns of 8 moves": ("sokoban-shared", []),
    "Sokoban 6×6, 2 boxes, 4 turns": ("sokoban-shared", ["world.boxes=2", "world.max_moves=0"]),
    "Sudoku 4×4, 4 blanks, 2 turns": ("sudoku-shared", []),
    "Sudoku 9×9, 40 blanks, 2 turns": ("sudoku-shared", ["world.box=3", "world.blanks=40"]),
    "math, one digit, + and −, 2 turns": ("math-shared", []),
    "math, two digits, all kinds, 2 turns": (
        "math-shared",
        [
            "world.digits=2",
            "world.kinds=[arithmetic,fraction,equation,system,word]",
            "world.operations=['+','-','*','/']",
        ],
    ),
    "code, all levels, 2 turns": ("code-shared", ["world.levels=[]", "world.env_workers=0"]),
}
PLAYERS = {
    "random characters": lambda spec: RandomPolicy(RandomSettings(), spec),
    "right form": lambda spec: GuessPolicy(GuessSettings(), spec),
    "solver": lambda spec: ExpertPolicy(ExpertSettings(), spec),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--out")
    options = parser.parse_args()
    found: dict[str, dict[str, object]] = {}
    for words, (experiment, overrides) in WORLDS.items():
        config = schema.load(experiment, overrides)
        world = build_evaluation_world(config.world, options.episodes)
        (spec,) = build_group_specs(config, world).values()
        found[words] = {"world": " ".join([experiment, *overrides])}
        for player, make in PLAYERS.items():
            result = evaluate(world, [Actor(spec, make(spec))], options.episodes, evaluation_seed(0)).to_dict()
            keys = ("success_rate", "success_ci95", "instances")
            mean = result["groups"][spec.group]["return_mean"]
            found[words][player] = {key: result[key] for key in keys} | {"return_mean": round(mean, 3)}
            print(f"{words:44} {player:18} {result['success_rate']:7.1%}  return {mean:6.2f}", flush=True)
    write({"episodes": options.episodes, "worlds": found}, options.out)


if __name__ == "__main__":
    main()
