"""BenchMARL's IPPO and MAPPO on simple_spread. Prints one JSON line.

Runs in an environment of its own. The same batch, passes, minibatches and network as ours: 3,200
environment steps, 4 passes of 4 minibatches, 2×64 tanh, shared parameters.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time

import torch
from benchmarl.algorithms import IppoConfig, MappoConfig
from benchmarl.environments import PettingZooTask
from benchmarl.experiment import Experiment, ExperimentConfig
from benchmarl.models.mlp import MlpConfig
from benchmarl_clock import Clock


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=32_000, help="environment steps")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, default=2.5e-4)
    parser.add_argument("--algorithm", choices=("ippo", "mappo"), default="ippo")
    options = parser.parse_args()
    torch.set_num_threads(1)
    config = ExperimentConfig.get_from_yaml()
    config.sampling_device = config.train_device = config.buffer_device = "cpu"
    config.max_n_frames, config.max_n_iters = options.steps, None
    config.on_policy_collected_frames_per_batch = 3200
    config.on_policy_n_envs_per_worker = 1
    config.on_policy_n_minibatch_iters = 4
    config.on_policy_minibatch_size = 800
    config.lr, config.clip_grad_val, config.gamma = options.rate, 0.5, 0.95
    config.share_policy_params, config.evaluation, config.render, config.loggers = True, False, False, []
    config.save_folder = tempfile.mkdtemp()
    algorithm = {"ippo": IppoConfig, "mappo": MappoConfig}[options.algorithm].get_from_yaml()
    algorithm.entropy_coef, algorithm.clip_epsilon, algorithm.lmbda = 0.01, 0.2, 0.95
    task = PettingZooTask.SIMPLE_SPREAD.get_from_yaml()
    task.config["max_cycles"] = 25
    model = MlpConfig(num_cells=[64, 64], activation_class=torch.nn.Tanh, layer_class=torch.nn.Linear)
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
    experiment.run()
    seconds = time.perf_counter() - (clock.first or 0.0)
    found = {
        "agent_steps_per_s": 3 * 3200 * (clock.iterations - 1) / seconds,
        "return_mean": clock.returns,
        "env_steps": 3200 * clock.iterations,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
