"""A plain single-file DQN loop in the manner of teaching code: one Gymnasium environment, PyTorch, no tricks.

It is the yardstick for `benchmarks/dqn.py`, written for it: same settings as ours, one thread, nothing
recorded. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import copy
import json
import resource
import time
from collections import deque

import gymnasium
import numpy as np
import torch
from torch import nn

BATCH, SIZE, STARTS = 128, 10_000, 1_000
FRAMES_PER_UPDATE, FRAMES_PER_TARGET = 10, 500


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    random = np.random.default_rng(options.seed)
    env = gymnasium.make(options.env)
    width, choices = env.observation_space.shape[0], int(env.action_space.n)
    online = nn.Sequential(nn.Linear(width, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, choices))
    target = copy.deepcopy(online)
    adam = torch.optim.Adam(online.parameters(), lr=2.5e-4)
    # a ring: the oldest row is overwritten
    before, after = np.zeros((SIZE, width), np.float32), np.zeros((SIZE, width), np.float32)
    did, rewards, deaths = np.zeros((SIZE, 1), np.int64), np.zeros(SIZE, np.float32), np.zeros(SIZE, np.float32)
    observation, _ = env.reset(seed=options.seed)
    score, recent = 0.0, deque[float](maxlen=100)
    begin = time.perf_counter()
    for frame in range(options.steps):
        epsilon = max(0.05, 1.0 - 0.95 * frame / (0.5 * options.steps))
        if random.random() < epsilon:
            action = int(random.integers(choices))
        else:
            with torch.no_grad():
                action = int(online(torch.from_numpy(observation)).argmax())
        following, reward, terminated, truncated, _ = env.step(action)
        row = frame % SIZE
        # a time limit is no death: what follows it is worth something, and is stored as it was seen
        before[row], after[row], did[row], rewards[row], deaths[row] = (
            observation,
            following,
            action,
            reward,
            terminated,
        )
        score += float(reward)
        observation = following
        if terminated or truncated:
            recent.append(score)
            score = 0.0
            observation, _ = env.reset()
        if frame < STARTS:
            continue
        if frame % FRAMES_PER_UPDATE == 0:
            rows = random.integers(min(frame + 1, SIZE), size=BATCH)
            with torch.no_grad():
                best = target(torch.from_numpy(after[rows])).max(1).values
                goal = torch.from_numpy(rewards[rows]) + 0.99 * best * (1 - torch.from_numpy(deaths[rows]))
            value = online(torch.from_numpy(before[rows])).gather(1, torch.from_numpy(did[rows])).squeeze(1)
            loss = nn.functional.mse_loss(value, goal)
            adam.zero_grad()
            loss.backward()
            adam.step()
        if frame % FRAMES_PER_TARGET == 0:
            target.load_state_dict(online.state_dict())
    seconds = time.perf_counter() - begin
    result = {
        "steps_per_s": options.steps / seconds,
        "return_100": float(np.mean(recent)),
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
