"""Our grid world as a guest of RLlib, through its PettingZoo wrapper: does it train there?

Runs in an environment with ray[rllib] and our package on the path. Prints one JSON line with the mean
return of the first and the best iteration.
"""

from __future__ import annotations

import json
import sys

import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.env.wrappers.pettingzoo_env import ParallelPettingZooEnv
from ray.tune.registry import register_env

from coterie.worlds.gridworld.world import parallel_env


def main() -> None:
    iterations = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    settings = {"grid_size": 4, "num_agents": 2, "num_targets": 1, "max_steps": 30}
    register_env("gridworld", lambda _: ParallelPettingZooEnv(parallel_env(**settings)))
    config = (
        PPOConfig()
        .environment("gridworld")
        .env_runners(num_env_runners=0)
        .learners(num_learners=0)
        .multi_agent(policies={"shared"}, policy_mapping_fn=lambda agent, episode, **_: "shared")
        .training(train_batch_size_per_learner=2000, minibatch_size=500, num_epochs=6, lr=1e-3)
        .debugging(seed=0, log_level="ERROR")
    )
    algorithm = config.build_algo()
    returns = []
    for _ in range(iterations):
        found = algorithm.train()["env_runners"]["agent_episode_returns_mean"]
        returns.append(sum(found.values()) / len(found))
    print(json.dumps({"first": returns[0], "best": max(returns), "iterations": iterations}))


if __name__ == "__main__":
    main()
