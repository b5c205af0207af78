"""Stable-Baselines3's SAC with the settings of an experiment of `benchmarks/sac.py`. Prints one JSON line."""

from __future__ import annotations

import argparse
import json
import resource
import time
from typing import Any

import gymnasium
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor


class RepeatedActions(gymnasium.Wrapper):
    """An action lasts several frames, as `world.action_repeat` has it."""

    def __init__(self, env: gymnasium.Env, frames: int) -> None:
        super().__init__(env)
        self.frames = frames

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        total = 0.0
        for _ in range(self.frames):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info


def make(options: argparse.Namespace) -> Monitor:
    """The environment, as all play it."""
    env = gymnasium.make(options.env, **({"continuous": True} if options.continuous else {}))
    return Monitor(RepeatedActions(env, options.repeat) if options.repeat > 1 else env)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", default="Pendulum-v1")
    parser.add_argument("--continuous", action="store_true", help="an option of LunarLander")
    parser.add_argument("--repeat", type=int, default=1, help="frames that an action lasts")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--every", type=int, default=2, help="steps per update")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--linear", action="store_true", help="the rate falls to 0 at the end")
    parser.add_argument("--tau", type=float, default=0.005)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--starts", type=int, default=1_000)
    parser.add_argument("--episodes", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = SAC(
        "MlpPolicy",
        make(options),
        learning_rate=(lambda left: options.rate * left) if options.linear else options.rate,
        buffer_size=min(options.steps, 300_000),
        learning_starts=options.starts,
        batch_size=options.batch,
        tau=options.tau,
        gamma=options.gamma,
        train_freq=options.every,
        gradient_steps=1,
        policy_kwargs={"net_arch": [options.hidden] * 2},
        seed=options.seed,
        device="cpu",
        verbose=0,
    )
    begin = time.perf_counter()
    model.learn(options.steps)
    seconds = time.perf_counter() - begin
    held_out = make(options)
    held_out.reset(seed=10_000 + options.seed)
    score, _ = evaluate_policy(model, held_out, options.episodes, deterministic=True)
    result = {
        "steps_per_s": model.num_timesteps / seconds,
        "greedy": float(score),
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
