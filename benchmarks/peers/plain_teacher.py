"""A plain loop in the manner of LLM4Teach: one MiniGrid environment, PPO with a loss to a cached teacher, PyTorch.

Its teacher costs nothing but a look-up: plans of text states lie in a dict, and no way to an object is searched. So it
is faster than a real one. Prints environment steps per second of CPU time as one JSON line.
"""

from __future__ import annotations

import argparse
import json
import time

import gymnasium
import minigrid  # noqa: F401  # registers its environments
import numpy as np
import torch
from torch import nn

STEPS, ROLLOUT, EPOCHS, MINIBATCHES, GAMMA, LAMBDA, CLIP, WEIGHT = 4096, 512, 4, 4, 0.99, 0.95, 0.2, 2.0
ACTIONS = 7


def network(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


def describe(observation: dict, held: object) -> str:
    """The key of the cached plan: what is held, and which objects are in sight."""
    kinds = observation["image"][..., 0]
    return f"{held is not None} {(kinds == 5).any()} {(kinds == 4).any()} {(kinds == 8).any()}"


def advantages(rewards: np.ndarray, values: np.ndarray, ends: np.ndarray) -> np.ndarray:
    found, running = np.zeros_like(rewards), 0.0
    for t in range(len(rewards) - 1, -1, -1):
        alive = 1.0 - ends[t]
        running = rewards[t] + GAMMA * values[t + 1] * alive - values[t] + GAMMA * LAMBDA * alive * running
        found[t] = running
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    env = gymnasium.make("MiniGrid-DoorKey-5x5-v0")
    observation, _ = env.reset(seed=seed)
    size = observation["image"].size
    actor, critic = network(size, ACTIONS), network(size, 1)
    optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], 1e-3)
    plans: dict[str, torch.Tensor] = {}
    began = time.process_time()
    for _ in range(STEPS // ROLLOUT):
        rows, taught = torch.zeros(ROLLOUT + 1, size), torch.zeros(ROLLOUT, ACTIONS)
        actions, old = torch.zeros(ROLLOUT, dtype=torch.int64), torch.zeros(ROLLOUT)
        rewards, ends, values = np.zeros(ROLLOUT), np.zeros(ROLLOUT), np.zeros(ROLLOUT + 1)
        for t in range(ROLLOUT):
            rows[t] = torch.from_numpy(observation["image"].reshape(-1).astype(np.float32)) / 10
            text = describe(observation, env.unwrapped.carrying)
            if text not in plans:
                plans[text] = torch.softmax(torch.randn(ACTIONS), 0)
            taught[t] = plans[text]
            with torch.no_grad():
                choice = torch.distributions.Categorical(logits=actor(rows[t]))
                values[t] = critic(rows[t]).item()
            actions[t] = choice.sample()
            old[t] = choice.log_prob(actions[t])
            observation, rewards[t], terminated, truncated, _ = env.step(int(actions[t]))
            ends[t] = terminated or truncated
            if ends[t]:
                observation, _ = env.reset()
        rows[ROLLOUT] = torch.from_numpy(observation["image"].reshape(-1).astype(np.float32)) / 10
        with torch.no_grad():
            values[ROLLOUT] = critic(rows[ROLLOUT]).item()
        gained = advantages(rewards, values, ends)
        targets = torch.as_tensor(gained + values[:-1], dtype=torch.float32)
        gains = torch.as_tensor(gained, dtype=torch.float32)
        for _ in range(EPOCHS):
            for part in torch.randperm(ROLLOUT).chunk(MINIBATCHES):
                choice = torch.distributions.Categorical(logits=actor(rows[part]))
                ratio = (choice.log_prob(actions[part]) - old[part]).exp()
                gain = (gains[part] - gains[part].mean()) / (gains[part].std() + 1e-8)
                surrogate = torch.min(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain).mean()
                pull = -(taught[part] * choice.logits).sum(-1).mean()
                error = (critic(rows[part]).squeeze(-1) - targets[part]).square().mean()
                loss = -surrogate - 0.01 * choice.entropy().mean() + WEIGHT * pull + 0.5 * error
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    print(json.dumps({"frames_per_cpu_s": round(STEPS / (time.process_time() - began))}))


if __name__ == "__main__":
    main()
