"""Stable-Baselines3's PPO with CnnPolicy and the settings of `benchmarks/pixels.yaml`. Prints one JSON line."""

from __future__ import annotations

import argparse
import json
import resource
import time

import numpy as np
import screen  # registers the environment
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", default="screen:Screen84-v0")
    parser.add_argument("--steps", type=int, default=4096)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    envs = make_vec_env(options.env, n_envs=8, seed=options.seed)
    assert envs.observation_space.shape == screen.SHAPE
    settings = {"n_steps": 128, "batch_size": 256, "n_epochs": 4, "ent_coef": 0.01, "clip_range": 0.1}
    rate = 2.5e-4
    model = PPO("CnnPolicy", envs, learning_rate=rate, **settings, seed=options.seed, device=options.device)
    model.learn(1024)  # the first iteration loads and compiles
    begin = time.perf_counter()
    model.learn(options.steps - 1024, reset_num_timesteps=False)
    seconds = time.perf_counter() - begin
    result = {
        "steps_per_s": (model.num_timesteps - 1024) / seconds,
        "return_100": float(np.mean([episode["r"] for episode in model.ep_info_buffer])),
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "cpu_s": time.process_time(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
