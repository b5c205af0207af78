"""Speed of the native door-key tasks on one core, beside MiniGrid's own environments, and with PPO learning.

    python benchmarks/doorkey.py [--rounds 5] [--out docs/results/bench-doorkey.json]

Stepping: ours steps 1024 copies together, MiniGrid's environment one, as it is; both play random
actions, rounds of both alternate, and medians are compared. Compilation is not counted, resets are. Skills: one call of
`skill_actions` for all copies. Learning: `doorkey5` through `coterie.train` with 64 copies, evaluations not counted.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time

import gymnasium
import interleave
import minigrid  # noqa: F401  # registers its environments
import numpy as np

import coterie
from coterie.worlds.doorkey import DoorKey, DoorKeySettings

COPIES, STEPS, THEIR_STEPS = 1024, 200, 3000
SIZES = (5, 8)
FAMILY = ("simple", "colored", "lava", "two_door")
LEARNING = [
    *("train.num_envs=64", "train.rollout_steps=128", "train.total_steps=327680", "train.evaluate_every=1000"),
    *("train.evaluate_episodes=16", "train.video=false", "train.tensorboard=false"),
]


def time_ours(world: DoorKey, actions: np.ndarray) -> float:
    """Steps per second of one round."""
    began = time.perf_counter()
    for action in actions:
        world.step({"agent": action})
    return actions.size / (time.perf_counter() - began)


def time_theirs(env: gymnasium.Env, actions: np.ndarray) -> float:
    """The same for MiniGrid, reset whenever its episode is over."""
    began = time.perf_counter()
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()
    return len(actions) / (time.perf_counter() - began)


def time_skills(world: DoorKey, calls: int = 20) -> float:
    """States per second whose skills are all asked."""
    began = time.perf_counter()
    for _ in range(calls):
        world.skill_actions("agent")
    return calls * world.num_envs / (time.perf_counter() - began)


def build(**settings: object) -> DoorKey:
    """A world that has been stepped once, so that everything is compiled."""
    world = DoorKey(DoorKeySettings(**settings), COPIES)  # type: ignore[arg-type]  # checked by the settings
    world.reset(0)
    world.step({"agent": np.zeros((COPIES, 1), np.int64)})
    world.skill_actions("agent")
    return world


def stepping(rounds: int) -> dict[str, dict[str, float]]:
    """Steps per second of every task, and how many times MiniGrid's where the layout exists there."""
    random = np.random.default_rng(0)
    actions, their_actions = random.integers(0, 7, (STEPS, COPIES, 1)), random.integers(0, 7, THEIR_STEPS)
    worlds = {
        f"doorkey {size}x{size}, {observe}": build(task="doorkey", size=size, observe=observe)
        for size in SIZES
        for observe in ("view", "map")
    } | {f"{task}, map": build(task=task) for task in FAMILY}
    envs = {size: gymnasium.make(f"MiniGrid-DoorKey-{size}x{size}-v0") for size in SIZES}
    for env in envs.values():
        env.reset(seed=0)
    ours: dict[str, list[float]] = {name: [] for name in worlds}
    theirs: dict[int, list[float]] = {size: [] for size in SIZES}
    for _ in range(rounds):
        for size, env in envs.items():
            theirs[size].append(time_theirs(env, their_actions))
        for name, world in worlds.items():
            ours[name].append(time_ours(world, actions))
    found = {}
    for name, world in worlds.items():
        speed = statistics.median(ours[name])
        found[name] = {"steps_per_s": round(speed), "skill_states_per_s": round(time_skills(world))}
        if world.settings.task == "doorkey":
            peer = statistics.median(theirs[world.settings.side])
            found[name] |= {"minigrid_steps_per_s": round(peer), "times_minigrid": round(speed / peer, 1)}
    return found


def learning(rounds: int) -> list[int]:
    """Frames per second of PPO in `doorkey5`."""
    speeds = []
    for seed in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            run = coterie.train("doorkey5", [*LEARNING, f"seed={seed}"], out=f"{folder}/run", quiet=True)
            speeds.append(round((run.summary() or {})["steps_per_s"]))
    return speeds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out")
    options = parser.parse_args()
    speeds = learning(min(options.rounds, 3))
    interleave.write(
        {
            "copies": COPIES,
            "rounds": options.rounds,
            "stepping": stepping(options.rounds),
            "ppo_frames_per_s": statistics.median(speeds),
            "ppo_frames_per_s_rounds": speeds,
        },
        options.out,
    )


if __name__ == "__main__":
    main()
