"""Stable-Baselines3's PPO with the settings of `benchmarks/ppo.py`. Prints one JSON line."""

from __future__ import annotations

import argparse
import json
import resource
import time

import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    # without render_mode=None it would render every LunarLander frame and be three times slower
    envs = make_vec_env(options.env, n_envs=4, seed=options.seed, env_kwargs={"render_mode": None})
    net = {"net_arch": {"pi": [64, 64], "vf": [64, 64]}, "activation_fn": torch.nn.Tanh}
    model = PPO(
        "MlpPolicy",
        envs,
        learning_rate=lambda left: 2.5e-4 * left,
        n_steps=128,
        batch_size=128,
        n_epochs=4,
        ent_coef=0.01,
        policy_kwargs=net,
        seed=options.seed,
        device="cpu",
        verbose=0,
    )
    begin = time.perf_counter()
    model.learn(options.steps)
    seconds = time.perf_counter() - begin
    result = {
        "steps_per_s": model.num_timesteps / seconds,
        "return_100": float(np.mean([episode["r"] for episode in model.ep_info_buffer])),
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
