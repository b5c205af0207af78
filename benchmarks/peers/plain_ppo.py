"""A plain single-file PPO loop in the manner of teaching code: Gymnasium's vector environment, PyTorch, no tricks.

It is the yardstick for `benchmarks/ppo.py`, written for it: same settings as ours, one thread, nothing
recorded. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections import deque

import gymnasium
import numpy as np
import torch
from torch import nn

COPIES, STEPS, EPOCHS, PARTS = 4, 128, 4, 4


def layer(inputs: int, outputs: int, gain: float) -> nn.Linear:
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


def mlp(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    return nn.Sequential(
        layer(inputs, 64, 2**0.5), nn.Tanh(), layer(64, 64, 2**0.5), nn.Tanh(), layer(64, outputs, gain)
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    envs = gymnasium.vector.SyncVectorEnv([lambda: gymnasium.make(options.env) for _ in range(COPIES)])
    envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(envs)
    width, choices = envs.single_observation_space.shape[0], int(envs.single_action_space.n)
    actor, critic = mlp(width, choices, 0.01), mlp(width, 1, 1.0)
    parameters = [*actor.parameters(), *critic.parameters()]
    adam = torch.optim.Adam(parameters, lr=2.5e-4, eps=1e-5)
    observation = torch.from_numpy(envs.reset(seed=options.seed)[0]).float()
    over = torch.zeros(COPIES)
    recent: deque[float] = deque(maxlen=100)
    iterations = options.steps // (COPIES * STEPS)
    begin = time.perf_counter()
    for iteration in range(iterations):
        adam.param_groups[0]["lr"] = 2.5e-4 * (1 - iteration / iterations)
        seen, did, log_probs = torch.zeros(STEPS, COPIES, width), torch.zeros(STEPS, COPIES), torch.zeros(STEPS, COPIES)
        rewards, overs, values = torch.zeros(STEPS, COPIES), torch.zeros(STEPS, COPIES), torch.zeros(STEPS, COPIES)
        for t in range(STEPS):
            seen[t], overs[t] = observation, over
            with torch.no_grad():
                policy = torch.distributions.Categorical(logits=actor(observation))
                action = policy.sample()
                values[t] = critic(observation).squeeze(-1)
                log_probs[t] = policy.log_prob(action)
            did[t] = action
            array, reward, terminated, truncated, info = envs.step(action.numpy())
            rewards[t] = torch.from_numpy(reward).float()
            observation = torch.from_numpy(array).float()
            over = torch.from_numpy(terminated | truncated).float()
            if "episode" in info:
                recent.extend(info["episode"]["r"][info["_episode"]].tolist())
        with torch.no_grad():
            following = critic(observation).squeeze(-1)
            advantage, carried = torch.zeros_like(rewards), torch.zeros(COPIES)
            for t in reversed(range(STEPS)):
                alive = 1 - (over if t == STEPS - 1 else overs[t + 1])
                after = following if t == STEPS - 1 else values[t + 1]
                delta = rewards[t] + 0.99 * after * alive - values[t]
                carried = delta + 0.99 * 0.95 * alive * carried
                advantage[t] = carried
            target = advantage + values
        batch = [x.flatten(0, 1) for x in (seen, did, log_probs, advantage, target)]
        for _ in range(EPOCHS):
            for part in torch.randperm(COPIES * STEPS).chunk(PARTS):
                x, a, old, adv, goal = (tensor[part] for tensor in batch)
                policy = torch.distributions.Categorical(logits=actor(x))
                ratio = (policy.log_prob(a) - old).exp()
                adv = (adv - adv.mean()) / (adv.std() + 1e-8)
                gain = torch.minimum(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
                error = 0.5 * ((critic(x).squeeze(-1) - goal) ** 2).mean()
                loss = -gain + 0.5 * error - 0.01 * policy.entropy().mean()
                adam.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 0.5)
                adam.step()
    seconds = time.perf_counter() - begin
    result = {
        "steps_per_s": iterations * COPIES * STEPS / seconds,
        "return_100": float(np.mean(recent)),
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
