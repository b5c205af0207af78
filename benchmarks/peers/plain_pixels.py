"""A plain PyTorch loop that does what Stable-Baselines3's PPO with CnnPolicy does, where Gymnasium is not installed.

One Nature network with two heads, a rollout of bytes in main memory, minibatches copied to the device and divided by
255 there, one Adam. `benchmarks/gpu_pixels.py --screen` runs it; the settings are those of `benchmarks/pixels.yaml`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

EPOCHS, MINIBATCHES, GAMMA, LAMBDA, CLIP = 4, 4, 0.99, 0.95, 0.1


class CnnPolicy(nn.Module):
    """The Nature network with an output for each action and one for the value."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        layers = [nn.Conv2d(4, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3, 1)]
        self.encode = nn.Sequential(
            *(part for layer in layers for part in (layer, nn.ReLU())), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU()
        )
        self.actor, self.critic = nn.Linear(512, actions), nn.Linear(512, 1)

    def forward(self, pictures: Tensor) -> tuple[torch.distributions.Categorical, Tensor]:
        h = self.encode(pictures.float() / 255)
        return torch.distributions.Categorical(logits=self.actor(h)), self.critic(h)[:, 0]


class PlainPPO:
    """PPO on a world of `gpu_pixels.Screen`."""

    def __init__(self, world: Any, device: str, steps: int) -> None:
        self.world, self.device, self.steps = world, device, steps
        self.random = np.random.default_rng(0)
        self.net = CnnPolicy(world.actions).to(device)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=2.5e-4, eps=1e-5)
        self.seen = world.reset(0).agent_types["agent"].observation[:, 0].copy()
        self.observations = np.zeros((steps, *self.seen.shape), np.uint8)
        self.starts = np.zeros((steps + 1, world.num_envs), np.float32)

    def read(self, pictures: np.ndarray) -> Tensor:
        return torch.as_tensor(pictures, device=self.device)

    def iteration(self) -> None:
        """A rollout, advantages, and epochs of minibatches."""
        shape = (self.steps, self.world.num_envs)
        actions = np.zeros(shape, np.int64)
        rewards, values, log_probs = (np.zeros(shape, np.float32) for _ in range(3))
        for t in range(self.steps):
            self.observations[t] = self.seen
            with torch.no_grad():
                distribution, value = self.net(self.read(self.seen))
                action = distribution.sample()
                log_probs[t] = distribution.log_prob(action).cpu().numpy()
            actions[t], values[t] = action.cpu().numpy(), value.cpu().numpy()
            step = self.world.step({"agent": actions[t][:, None]})
            own = step.agent_types["agent"]
            self.seen, rewards[t], self.starts[t + 1] = own.observation[:, 0].copy(), own.reward[:, 0], step.ended
        with torch.no_grad():
            following = self.net(self.read(self.seen))[1].cpu().numpy()
        advantages, latest = np.zeros(shape, np.float32), np.zeros(shape[1], np.float32)
        for t in reversed(range(self.steps)):
            goes_on = 1 - self.starts[t + 1]
            latest = rewards[t] + GAMMA * following * goes_on - values[t] + GAMMA * LAMBDA * goes_on * latest
            advantages[t], following = latest, values[t]
        self.learn([a.reshape(-1) for a in (actions, log_probs, advantages, advantages + values)])

    def learn(self, rows: list[np.ndarray]) -> None:
        pictures = self.observations.reshape(-1, *self.observations.shape[2:])
        for _ in range(EPOCHS):
            for chosen in np.array_split(self.random.permutation(len(pictures)), MINIBATCHES):
                actions, old, advantage, returns = (self.read(a[chosen]) for a in rows)
                distribution, value = self.net(self.read(pictures[chosen]))
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                ratio = (distribution.log_prob(actions) - old).exp()
                policy = -torch.min(advantage * ratio, advantage * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
                loss = policy - 0.01 * distribution.entropy().mean() + 0.5 * nn.functional.mse_loss(returns, value)
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
                self.optimizer.step()
