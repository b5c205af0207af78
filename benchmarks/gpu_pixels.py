"""PPO with a CNN on pixels, on the CPU and on a GPU: speed, and how far the weights differ after ten updates.

    PYTHONPATH=src python benchmarks/gpu_pixels.py [--pixels 64] [--encoder cnn] [--num-envs 64] [--out FILE]
    PYTHONPATH=src python benchmarks/gpu_pixels.py --screen --num-envs 8 --rollout-steps 128 [--devices cuda]

With `--screen`: the encoder `nature` on 84×84×4 bytes against a plain loop that does what Stable-Baselines3's CnnPolicy
does (`peers/plain_pixels.py`; Gymnasium is not needed) and, where it is installed, Stable-Baselines3 itself, in turns,
with steps per second and memory of all.

Two agents collect targets on an 8×8 grid, drawn as an image of pixels. Policy and learner are built directly: NumPy,
Numba and PyTorch are enough. Prints one JSON object. On a machine without a GPU only the CPU is measured. The exit code
is 1 if the weights differ by more than 1e-4.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import resource
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from interleave import HERE, medians, ratios, take_turns, write

from coterie.core.world import World

GRID = 8
MOST_DIFFERENCE = 1e-4
SB3_SIZES = (8, 128)  # environments and steps of `peers/sb3_pixels.py`


class Unsaved(World):
    """A world that is never saved; a base class."""

    def save(self) -> Any:
        raise NotImplementedError

    def load(self, state: Any) -> Any:
        raise NotImplementedError


class Pixels(Unsaved):
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


class Screen(Unsaved):
    """The environment of `peers/screen.py` as a batch: 84×84×4 bytes, the action that the square names pays 1."""

    actions, length = 4, 100

    def __init__(self, num_envs: int) -> None:
        from coterie.core.types import AgentType, Box, Discrete

        self.num_envs, self.name, self.simultaneous, self.state_size = num_envs, "agent", True, 0
        space = Box((4, 84, 84), 0, 255, "uint8")
        self.agent_types = {"agent": AgentType(("agent_0",), space, Discrete(self.actions))}
        self.pictures = np.random.default_rng(0).integers(0, 64, (16, 4, 84, 84), np.uint8)
        for i, picture in enumerate(self.pictures):
            row, column = divmod(i % self.actions, 2)
            picture[:, 42 * row + 8 : 42 * row + 34, 42 * column + 8 : 42 * column + 34] = 255

    def timestep(self, reward: np.ndarray, ended: np.ndarray) -> Any:
        from coterie.core.types import AgentStep, TimeStep

        final = self.pictures[self.shown][:, None]
        self.shown = self.random.integers(16, size=self.num_envs)
        none, rows = np.zeros((self.num_envs, 1), bool), self.pictures[self.shown][:, None]
        own = AgentStep(rows, ~none, reward[:, None].astype(np.float32), none, ended[:, None], final)
        return TimeStep({"agent": own}, ended)

    def reset(self, seed: int) -> Any:
        self.random, self.steps = np.random.default_rng(seed), 0
        self.shown = np.zeros(self.num_envs, np.int64)
        return self.timestep(np.zeros(self.num_envs), np.zeros(self.num_envs, bool))

    def step(self, actions: Any) -> Any:
        self.steps += 1
        reward = actions["agent"][:, 0] == self.shown % self.actions
        return self.timestep(reward, np.full(self.num_envs, self.steps % self.length == 0))


def build(world: Pixels | Screen, device: str, epochs: int, minibatches: int, encoder: str = "cnn") -> Any:
    """A PPO learner of the world's agents, with its policy on a device."""
    from coterie.algorithms.ppo.ppo import PPO, PPOSettings
    from coterie.core.group import GroupSpec
    from coterie.policies.network import NetworkPolicy, NetworkSettings
    from coterie.preferences.standard import Individual, IndividualSettings

    spaces = world.agent_types[world.name]
    spec = GroupSpec("team", world.name, spaces, spaces.agents, np.arange(len(spaces.agents)))
    policy = NetworkPolicy(NetworkSettings(encoder=encoder, device=device), spec)  # type: ignore[arg-type]
    settings = PPOSettings(epochs=epochs, minibatches=minibatches, learning_rate=1e-3)
    return PPO(settings, policy, spec, Individual(IndividualSettings()))


def runner(world: Pixels | Screen, learner: Any) -> Any:
    from coterie.core.group import Actor
    from coterie.training.runner import Runner

    return Runner(world, [Actor(learner.group_spec, learner.policy)], seed=0)  # type: ignore[arg-type]


def learn(learner: Any, rollout: Any, iteration: int) -> None:
    from coterie.core import seeding
    from coterie.core.decisions import Joint

    own = rollout.decisions["team"]
    learner.learn(own, Joint({"team": own}, iteration, 0.0), seeding.generator(0, "learn", iteration))


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def speed(device: str, options: argparse.Namespace) -> dict[str, float]:
    """Environment steps per second of playing, of learning, and of both."""
    world = Pixels(options.num_envs, options.pixels)
    learner = build(world, device, epochs=4, minibatches=4, encoder=options.encoder)
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
    """Time of the compiled losses, as a fraction of an iteration's learning."""
    spent = 0.0

    def timed(function: Any) -> Any:
        def run(*arguments: Any) -> Any:
            nonlocal spent
            start = time.perf_counter()
            found = function(*arguments)
            spent += time.perf_counter() - start
            return found

        return run

    names = ("policy_slopes", "value_slopes")
    for name in names:
        setattr(learner, name, timed(getattr(learner, name)))
    learn(learner, rollout, 0)
    for name in names:
        delattr(learner, name)
    return spent / seconds


def difference(options: argparse.Namespace) -> dict[str, float]:
    """Largest difference of weights between the devices after ten updates on the same experience."""
    world = Pixels(options.num_envs, options.pixels)
    learners = {d: build(world, d, epochs=5, minibatches=2, encoder=options.encoder) for d in ("cpu", "cuda")}
    first = learners["cpu"].policy.flat.array.copy()
    rollout = runner(world, learners["cpu"]).play(options.rollout_steps, 1)
    for learner in learners.values():
        learn(learner, rollout, 1)
    cpu, cuda = learners["cpu"], learners["cuda"]
    return {
        "actor": float(np.abs(cpu.policy.flat.array - cuda.policy.flat.array).max()),
        "critic": float(np.abs(cpu.critic.flat.array - cuda.critic.flat.array).max()),
        "actor_moved_by": float(np.abs(cpu.policy.flat.array - first).max()),
    }


def measure_screen(options: argparse.Namespace) -> None:
    """One contestant on the screen, on one device; prints one JSON line."""
    world, iterations = Screen(options.num_envs), options.iterations
    if options.contestant == "plain":
        sys.path.insert(0, str(HERE / "peers"))
        from plain_pixels import PlainPPO

        run = PlainPPO(world, options.device, options.rollout_steps).iteration
    else:
        learner = build(world, options.device, epochs=4, minibatches=4, encoder="nature")
        play, count = runner(world, learner), itertools.count(1)

        def run() -> None:
            iteration = next(count)
            learn(learner, play.play(options.rollout_steps, iteration), iteration)

    run()  # compiles and warms up
    synchronize()
    start = time.perf_counter()
    for _ in range(iterations):
        run()
    synchronize()
    seconds = time.perf_counter() - start
    found = {
        "steps_per_s": round(options.num_envs * options.rollout_steps * iterations / seconds, 1),
        "memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }
    if options.device == "cuda":
        found["gpu_memory_mb"] = round(torch.cuda.max_memory_allocated() / 2**20)
    print(json.dumps(found))


def compare_screens(options: argparse.Namespace) -> dict[str, Any]:
    """All contestants in turns, on every device; medians, and ours over theirs."""
    words = [
        f"--{name}={getattr(options, name.replace('-', '_'))}" for name in ("num-envs", "rollout-steps", "iterations")
    ]
    found: dict[str, Any] = {
        "world": "84×84×4 bytes",
        "num_envs": options.num_envs,
        "rollout_steps": options.rollout_steps,
    }
    for device in options.devices:
        command = [sys.executable, __file__, *words, "--device", device, "--contestant"]
        contestants = {name: [*command, name] for name in ("coterie", "plain")}
        if (options.num_envs, options.rollout_steps) == SB3_SIZES and find_spec("stable_baselines3"):
            steps = str((1 + options.iterations) * options.num_envs * options.rollout_steps)
            peer = [sys.executable, str(HERE / "peers" / "sb3_pixels.py"), "--device", device, "--steps", steps]
            contestants["stable-baselines3"] = peer
        each = medians(take_turns(contestants, options.rounds))
        found[device] = each | {"ratio": ratios(each, "steps_per_s")}
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found | {"torch": torch.__version__}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--screen", action="store_true", help="nature on 84×84×4 against a plain loop")
    parser.add_argument("--rounds", type=int, default=3, help="of --screen")
    there = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    parser.add_argument("--devices", nargs="+", choices=("cpu", "cuda"), default=there, help="of --screen")
    parser.add_argument("--contestant", choices=("coterie", "plain"), help="of --screen: measure only this one")
    parser.add_argument("--device", default="cpu", help="of --contestant")
    parser.add_argument("--seed", type=int, default=0, help="of --contestant; ignored")
    parser.add_argument("--encoder", default="cnn", choices=("cnn", "nature", "impala"))
    parser.add_argument("--pixels", type=int, default=64, help=f"side of the image, a multiple of {GRID}")
    parser.add_argument("--num-envs", type=int, default=64)
    parser.add_argument("--rollout-steps", type=int, default=16)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of the CPU")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.contestant:
        return measure_screen(options)
    if options.screen:
        return write(compare_screens(options), options.out)
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
