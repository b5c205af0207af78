"""PPO with a CNN on pixels, on the CPU and on a GPU: speed, and how far the weights differ after ten updates.

    PYTHONPATH=src python benchmarks/gpu_pixels.py [--pixels 64] [--num-envs 64] [--iterations 5] [--out FILE]

Two agents collect targets on an 8×8 grid, drawn as an image of pixels. Policy and learner are built directly: NumPy,
Numba and PyTorch are enough. Prints one JSON object. On a machine without a GPU only the CPU is measured. The exit code
is 1 if the weights differ by more than 1e-4.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

GRID = 8
MOST_DIFFERENCE = 1e-4


class Pixels:
    """A grid world whose planes are drawn as pixels: every cell becomes a square of bytes."""

    def __init__(self, num_envs: int, pixels: int) -> None:
        from coterie.core.types import Box
        from coterie.worlds.gridworld.world import Gridworld, GridworldSettings

        self.grid = Gridworld(GridworldSettings(grid_size=GRID, observation="image", max_steps=50), num_envs)
        self.num_envs, self.scale, self.simultaneous = num_envs, pixels // GRID, True
        ((self.name, seen),) = self.grid.agent_types.items()
        assert isinstance(seen.observation, Box)
        space = Box((seen.observation.shape[0], GRID * self.scale, GRID * self.scale), 0, 255, "uint8")
        self.agent_types = {self.name: replace(seen, observation=space)}

    def draw(self, timestep: Any) -> Any:
        step = timestep.agent_types[self.name]

        def enlarge(planes: np.ndarray) -> np.ndarray:
            cells = (planes * 255).astype(np.uint8)
            return cells.repeat(self.scale, axis=-2).repeat(self.scale, axis=-1)

        drawn = replace(step, observation=enlarge(step.observation), final_observation=enlarge(step.final_observation))
        return replace(timestep, agent_types={self.name: drawn})

    def reset(self, seed: int) -> Any:
        return self.draw(self.grid.reset(seed))

    def step(self, actions: Any) -> Any:
        return self.draw(self.grid.step(actions))


def build(world: Pixels, device: str, epochs: int, minibatches: int) -> Any:
    """A PPO learner of the world's agents, with its policy on a device."""
    from coterie.algorithms.ppo.ppo import PPO, PPOSettings
    from coterie.core.group import GroupSpec
    from coterie.policies.network import NetworkPolicy, NetworkSettings
    from coterie.preferences.standard import Individual, IndividualSettings

    spaces = world.agent_types[world.name]
    spec = GroupSpec("team", world.name, spaces, spaces.agents, np.arange(len(spaces.agents)))
    policy = NetworkPolicy(NetworkSettings(encoder="cnn", device=device), spec)  # type: ignore[arg-type]
    settings = PPOSettings(epochs=epochs, minibatches=minibatches, learning_rate=1e-3)
    return PPO(settings, policy, spec, Individual(IndividualSettings()))


def runner(world: Pixels, learner: Any) -> Any:
    from coterie.core.group import Actor
    from coterie.training.runner import Runner

    return Runner(world, [Actor(learner.group_spec, learner.policy)], seed=0)  # type: ignore[arg-type]


def learn(learner: Any, rollout: Any, iteration: int) -> None:
    from coterie.core import seeding
    from coterie.core.types import Joint

    own = rollout.experiences["team"]
    learner.learn(own, Joint({"team": own}, iteration, 0.0), seeding.generator(0, "learn", iteration))


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def speed(device: str, options: argparse.Namespace) -> dict[str, float]:
    """Environment steps per second of playing, of learning, and of both."""
    world = Pixels(options.num_envs, options.pixels)
    learner = build(world, device, epochs=4, minibatches=4)
    play = runner(world, learner)
    learn(learner, play.play(options.rollout_steps, 1), 1)  # compiles and warms up
    played = learned = 0.0
    for iteration in range(2, 2 + options.iterations):
        start = time.perf_counter()
        rollout = play.play(options.rollout_steps, iteration)
        middle = time.perf_counter()
        learn(learner, rollout, iteration)
        synchronize()
        played, learned = played + middle - start, learned + time.perf_counter() - middle
    steps = options.num_envs * options.rollout_steps * options.iterations
    return {
        "steps_per_s": round(steps / (played + learned), 1),
        "steps_per_s_playing": round(steps / played, 1),
        "steps_per_s_learning": round(steps / learned, 1),
        "fraction_of_learning_in_losses": round(loss_fraction(learner, rollout, learned / options.iterations), 4),
    }


def loss_fraction(learner: Any, rollout: Any, seconds: float) -> float:
    """Time of the compiled losses with the transfers that they need, as a fraction of an iteration's learning."""
    from coterie.algorithms.ppo import losses

    rows, parts = rollout.experiences["team"].action.size, learner.settings.minibatches
    said = torch.zeros(2, rows // parts, device=learner.policy.device)
    arrays = [np.ones(rows // parts, np.float32) for _ in range(3)]
    (settings,) = learner.loss_settings(learner.schedule(0.0))
    synchronize()
    start = time.perf_counter()
    for _ in range(learner.settings.epochs * parts):
        log_prob, entropy = said.cpu().numpy()
        for slope in losses.policy_losses(log_prob, entropy, *arrays, settings)[:2]:
            torch.as_tensor(slope, device=said.device)
        slope, _ = losses.value_losses(said[0].cpu().numpy(), *arrays, settings)
        torch.as_tensor(slope, device=said.device)
    synchronize()
    return (time.perf_counter() - start) / seconds


def difference(options: argparse.Namespace) -> dict[str, float]:
    """Largest difference of weights between the devices after ten updates on the same experience."""
    world = Pixels(options.num_envs, options.pixels)
    learners = {device: build(world, device, epochs=5, minibatches=2) for device in ("cpu", "cuda")}
    first = learners["cpu"].policy.flat.array.copy()
    rollout = runner(world, learners["cpu"]).play(options.rollout_steps, 1)
    for learner in learners.values():
        learn(learner, rollout, 1)
    cpu, cuda = learners["cpu"], learners["cuda"]
    return {
        "actor": float(np.abs(cpu.policy.flat.array - cuda.policy.flat.array).max()),
        "critic": float(np.abs(cpu.critic_flat.array - cuda.critic_flat.array).max()),
        "actor_moved_by": float(np.abs(cpu.policy.flat.array - first).max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pixels", type=int, default=64, help=f"side of the image, a multiple of {GRID}")
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--rollout-steps", type=int, default=16)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of the CPU")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    cuda = torch.cuda.is_available()
    found: dict[str, Any] = {
        "world": f"gridworld {GRID}×{GRID}, 2 agents, {options.pixels}×{options.pixels} pixels",
        "rows_per_iteration": options.num_envs * options.rollout_steps * 2,
        "torch": torch.__version__,
        "cpu": {"machine": platform.processor() or platform.machine(), "threads": options.threads}
        | speed("cpu", options),
    }
    if cuda:
        found["cuda"] = {"machine": torch.cuda.get_device_name()} | speed("cuda", options)
        found["speedup"] = round(found["cuda"]["steps_per_s"] / found["cpu"]["steps_per_s"], 2)
        found["weights_differ_after_10_updates"] = difference(options)
    text = json.dumps(found, indent=2, ensure_ascii=False)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    if cuda and max(found["weights_differ_after_10_updates"][net] for net in ("actor", "critic")) > MOST_DIFFERENCE:
        sys.exit(1)


if __name__ == "__main__":
    main()
