"""RLlib's PPO with one shared policy on mpe2's simple_spread. Prints one JSON line.

Runs in an environment of its own (ray[rllib] pins an older Gymnasium). The same batch, passes, minibatches
and network as ours: 3,200 environment steps, 4 passes of 4 minibatches, 2×64 tanh.
"""

from __future__ import annotations

import argparse
import json
import time

import ray
from mpe2 import simple_spread_v3
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv
from ray.tune.registry import register_env


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=64_000, help="environment steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=2.5e-4)
    options = parser.parse_args()
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    register_env("spread", lambda _: ParallelPettingZooEnv(simple_spread_v3.parallel_env(max_cycles=25)))
    config = (
        PPOConfig()
        .environment("spread")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=1, rollout_fragment_length="auto")
        .learners(num_learners=0)
        .multi_agent(policies={"shared"}, policy_mapping_fn=lambda agent, episode, **_: "shared")
        .rl_module(
            model_config=DefaultModelConfig(fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False)
        )
        .training(
            train_batch_size_per_learner=3200,
            minibatch_size=2400,
            num_epochs=4,
            lr=options.rate,
            gamma=0.95,
            lambda_=0.95,
            clip_param=0.2,
            entropy_coeff=0.01,
            grad_clip=0.5,
            use_kl_loss=False,
        )
        .debugging(seed=options.seed, log_level="ERROR")
    )
    algorithm = config.build_algo()
    algorithm.train()  # the first iteration builds things; it is not timed
    begin, result, frames = time.perf_counter(), {}, 3200
    while frames < options.steps:
        result = algorithm.train()
        frames += 3200
    seconds = time.perf_counter() - begin
    returns = result["env_runners"]["agent_episode_returns_mean"]
    found = {
        "agent_steps_per_s": 3 * (frames - 3200) / seconds,
        "return_mean": sum(returns.values()) / len(returns),
        "env_steps": frames,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
