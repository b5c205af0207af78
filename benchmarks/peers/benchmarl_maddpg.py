"""BenchMARL's MADDPG on simple_spread with continuous actions. Prints one JSON line.

Runs in an environment of its own. Its MADDPG takes continuous actions only. The same batch, updates per step,
network and replay as ours: 25-step episodes, 128 ticks per update, one update per 25 environment steps,
2×64 relu for policy and critic, shared parameters, 100,000 ticks.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time

import torch
from benchmarl.algorithms import MaddpgConfig
from benchmarl.environments import PettingZooTask
from benchmarl.experiment import Experiment, ExperimentConfig
from benchmarl.models.mlp import MlpConfig
from benchmarl_clock import Clock
from torchrl.envs.utils import ExplorationType, set_exploration_type

EPISODE = 25  # steps


def evaluate(experiment: Experiment, episodes: int, seed: int) -> float:
    """Mean return per agent of play without noise, from starts of its own."""
    world, returns = experiment.env_func(), []
    world.set_seed(seed)
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        while len(returns) < episodes:
            play = world.rollout(EPISODE, policy=experiment.policy, break_when_any_done=False)
            returns += play["next", "agent", "reward"].sum(dim=(1, 3)).mean(dim=-1).tolist()  # [N, T, A, 1]
    world.close()
    return sum(returns) / len(returns)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=16_000, help="environment steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--gamma", type=float, default=0.95)
    parser.add_argument("--clip", type=float, default=5.0, help="largest norm of a gradient")
    parser.add_argument("--noise", type=float, default=0.8, help="first deviation of exploration; the last is 0.01")
    parser.add_argument("--separate-critics", action="store_true", help="a critic per agent; theirs by default is one")
    parser.add_argument("--copies", type=int, default=32)
    parser.add_argument("--frames", type=int, default=800, help="environment steps per iteration")
    parser.add_argument("--episodes", type=int, default=0, help="greedy ones at the end, in which it is evaluated")
    options = parser.parse_args()
    torch.set_num_threads(1)
    config = ExperimentConfig.get_from_yaml()
    config.sampling_device = config.train_device = config.buffer_device = "cpu"
    config.max_n_frames, config.max_n_iters = options.steps, None
    config.off_policy_collected_frames_per_batch = options.frames
    config.off_policy_n_envs_per_worker = options.copies
    config.off_policy_n_optimizer_steps = options.frames // 25
    config.off_policy_train_batch_size = 128
    config.off_policy_memory_size = 100_000
    config.off_policy_init_random_frames = options.frames
    config.polyak_tau, config.exploration_eps_init = 0.01, options.noise
    config.lr, config.clip_grad_val, config.gamma = options.rate, options.clip, options.gamma
    config.share_policy_params, config.evaluation, config.render, config.loggers = True, False, False, []
    config.save_folder = tempfile.mkdtemp()
    algorithm = MaddpgConfig.get_from_yaml()
    algorithm.share_param_critic = not options.separate_critics
    task = PettingZooTask.SIMPLE_SPREAD.get_from_yaml()
    task.config["max_cycles"] = EPISODE
    model = MlpConfig(num_cells=[64, 64], activation_class=torch.nn.ReLU, layer_class=torch.nn.Linear)
    clock = Clock()
    experiment = Experiment(
        task=task,
        algorithm_config=algorithm,
        model_config=model,
        critic_model_config=model,
        seed=options.seed,
        config=config,
        callbacks=[clock],
    )
    experiment.collector.set_seed(options.seed)  # otherwise every copy starts with the same seed
    experiment.run()
    seconds = time.perf_counter() - (clock.first or 0.0)
    found = {
        "agent_steps_per_s": 3 * options.frames * (clock.iterations - 1) / seconds,
        "return_mean": clock.returns,
        "env_steps": options.frames * clock.iterations,
    }
    if options.episodes:
        found["score"] = evaluate(experiment, options.episodes, 10_000 + options.seed)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
