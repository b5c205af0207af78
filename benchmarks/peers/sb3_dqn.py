"""Stable-Baselines3's DQN with the settings of `benchmarks/dqn.py`. Prints one JSON line.

Its loss is the Huber loss, with which neither it nor the plain loop learns CartPole in 100,000 frames under
these settings (returns stay near 10); so it is given the squared loss that the others have.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
import types

import numpy as np
import torch
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.dqn import dqn


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dqn.F = types.SimpleNamespace(smooth_l1_loss=torch.nn.functional.mse_loss)  # it has no setting for this
    # without render_mode=None it would render frames on some environments
    envs = make_vec_env(options.env, n_envs=1, seed=options.seed, env_kwargs={"render_mode": None})
    model = DQN(
        "MlpPolicy",
        envs,
        learning_rate=2.5e-4,
        buffer_size=10_000,
        learning_starts=1_000,
        batch_size=128,
        gamma=0.99,
        train_freq=10,
        gradient_steps=1,
        target_update_interval=500,  # frames: 50 updates
        exploration_initial_eps=1.0,
        exploration_final_eps=0.05,
        exploration_fraction=0.5,
        max_grad_norm=1e9,
        policy_kwargs={"net_arch": [120, 84], "activation_fn": torch.nn.ReLU},
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
