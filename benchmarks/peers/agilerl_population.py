"""AgileRL's evolutionary search over PPO on LunarLander-v3, as its documentation shows it. Prints one JSON line.

Every member starts with the same settings, those of `benchmarks/pbt.py`; after each round a tournament selects members
and mutates learning settings, architectures, parameters and activations. The score is the held-out greedy return of the
member that did best in the last round's validation.
"""

from __future__ import annotations

import argparse
import json
import time

import gymnasium
import numpy as np
import torch
from agilerl.algorithms import PPO
from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.training.train_on_policy import train_on_policy

ENV = "LunarLander-v3"


def vectorised(count: int) -> gymnasium.vector.SyncVectorEnv:
    same = gymnasium.vector.AutoresetMode.SAME_STEP
    return gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make(ENV)] * count, autoreset_mode=same)


def member(index: int, envs: gymnasium.vector.SyncVectorEnv, learn_step: int) -> PPO:
    """One PPO; the ranges are those that Coterie searches."""
    ranges = HyperparameterConfig(
        lr=RLParameter(min=1e-5, max=1e-2),
        gae_lambda=RLParameter(min=0.8, max=1.0),
        clip_coef=RLParameter(min=0.1, max=0.4),
        ent_coef=RLParameter(min=0.0, max=0.05),
        max_grad_norm=RLParameter(min=0.2, max=5.0),
    )
    return PPO(
        envs.single_observation_space,
        envs.single_action_space,
        index=index,
        hp_config=ranges,
        net_config={
            "latent_dim": 64,
            "encoder_config": {"hidden_size": [64], "activation": "Tanh"},
            "head_config": {"hidden_size": [64], "activation": "Tanh"},
        },
        batch_size=128,
        lr=3e-4,
        learn_step=learn_step,
        gamma=0.999,
        gae_lambda=0.98,
        ent_coef=0.01,
        update_epochs=8,
        num_envs=envs.num_envs,
    )


@torch.no_grad()
def greedy_score(agent: PPO, episodes: int, seed: int) -> float:
    """The mean return of the likeliest actions."""
    agent.set_training_mode(False)
    env, returns = gymnasium.make(ENV), []
    for episode in range(episodes):
        observation, _ = env.reset(seed=seed + episode)
        total, over = 0.0, False
        while not over:
            latent = agent.actor.extract_features(agent.preprocess_observation(observation[None]))
            action = int(agent.actor.head_net.wrapped(latent).argmax())
            observation, reward, terminated, truncated, _ = env.step(action)
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=12_288)
    parser.add_argument("--learn-step", type=int, default=1_024, help="steps per iteration, summed over copies")
    parser.add_argument("--episodes", type=int, default=32)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    np.random.seed(options.seed)  # noqa: NPY002  AgileRL draws from NumPy's global stream
    envs = vectorised(16)
    envs.reset(seed=options.seed)
    begin = time.perf_counter()
    population, fitness = train_on_policy(
        envs,
        ENV,
        "PPO",
        [member(index, envs, options.learn_step) for index in range(options.members)],
        max_steps=options.steps,
        evo_steps=options.steps // options.rounds,
        eval_loop=options.episodes // envs.num_envs,
        selection_strategy=TournamentSelection(2, True, options.members),
        mutation=Mutations(0.4, 0.2, 0.2, 0.2, 0.2, 0.2, rand_seed=options.seed),
        verbose=False,
    )
    seconds = time.perf_counter() - begin
    best = population[int(np.argmax(fitness))]
    score = greedy_score(best, options.episodes, 10_000 + 1_000 * options.seed)
    print(json.dumps({"held_out": score, "seconds": seconds, "steps": float(options.members * options.steps)}))


if __name__ == "__main__":
    main()
