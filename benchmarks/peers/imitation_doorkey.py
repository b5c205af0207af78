"""BC and DAgger of the package `imitation` on DoorKey, for `benchmarks/dagger.py`. Prints one JSON line.

    python benchmarks/peers/imitation_doorkey.py --method dagger --labels 4096 --seed 0

The world, the scripted expert, the network and the gradient steps are those of our own arms; BC clones the file that
ours has cloned. Its DAgger adds whole episodes to its data, so that rounds are longer than 128 labels where the student
is lost.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from typing import Any

import gymnasium
import numpy as np
import torch
from imitation.algorithms import bc
from imitation.algorithms.dagger import SimpleDAggerTrainer
from imitation.data import rollout
from imitation.data.types import Transitions
from imitation.policies.base import NonTrainablePolicy
from imitation.util import logger
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import DummyVecEnv

from coterie.worlds.doorkey.world import DoorKey, DoorKeySettings

BATCH, UPDATES_PER_LABEL = 64, 100 / 128
BETA_LABELS = 0.15  # share of the labels after which the expert does not act any more, as in `dagger.py`
TEST_SEED = 2**40  # of the episodes that policies are scored on


class Room(gymnasium.Env[Any, Any]):
    """One copy of the world as a Gymnasium environment."""

    def __init__(self, size: int, seed: int) -> None:
        self.world = DoorKey(DoorKeySettings(task="doorkey", size=size), 1)
        spaces = self.world.agent_types["agent"]
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, spaces.observation.shape, np.float32)
        self.action_space = gymnasium.spaces.Discrete(spaces.action.n)
        self._step = self.world.reset(seed).agent_types["agent"]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self._step.observation[0, 0].copy(), {}  # the world has begun the next episode

    def step(self, action: Any) -> Any:
        step = self._step = self.world.step({"agent": np.array([[int(action)]])}).agent_types["agent"]
        ended = step.terminated[0, 0], step.truncated[0, 0]
        seen = (step.final_observation if any(ended) else step.observation)[0, 0].copy()
        return seen, float(step.reward[0, 0]), bool(ended[0]), bool(ended[1]), {}


class Expert(NonTrainablePolicy):
    """The world's scripted expert, which reads the state and not the observation."""

    def __init__(self, room: Room) -> None:
        super().__init__(room.observation_space, room.action_space)
        self.world, self.random = room.world, np.random.default_rng(0)

    def _choose_action(self, obs: Any) -> Any:
        return self.world.expert("agent", self.random)[0, 0]


def score(policy: ActorCriticPolicy, size: int, episodes: int) -> float:
    """The mean return of greedy play, one episode in each copy."""
    world = DoorKey(DoorKeySettings(task="doorkey", size=size), episodes)
    seen = world.reset(TEST_SEED).agent_types["agent"].observation[:, 0]
    total, going = np.zeros(episodes), np.ones(episodes, bool)
    while going.any():
        action, _ = policy.predict(seen, deterministic=True)
        step = world.step({"agent": np.asarray(action, np.int64)[:, None]})
        mine = step.agent_types["agent"]
        total += np.where(going, mine.reward[:, 0], 0.0)
        going &= ~step.ended
        seen = mine.observation[:, 0]
    return float(total.mean())


def make_trainer(room: Room, random: np.random.Generator) -> bc.BC:
    """BC with the network of our own arms."""
    policy = ActorCriticPolicy(
        room.observation_space, room.action_space, lambda _: 1e-3, net_arch=[128, 128], activation_fn=torch.nn.ReLU
    )
    silent = logger.configure(tempfile.mkdtemp(), ("json",))
    return bc.BC(
        observation_space=room.observation_space,
        action_space=room.action_space,
        rng=random,
        policy=policy,
        batch_size=BATCH,
        custom_logger=silent,
    )


def clone(room: Room, path: str, updates: int, random: np.random.Generator) -> bc.BC:
    """Behavioural cloning of recorded decisions."""
    trainer = make_trainer(room, random)
    with np.load(path) as held:
        seen, done = held["observation"].astype(np.float32), held["action"]
    info, over = np.array([{}] * len(done)), np.zeros(len(done), bool)
    trainer.set_demonstrations(Transitions(seen, done, info, seen, over))  # BC reads neither what follows nor ends
    trainer.train(n_batches=updates, progress_bar=False)
    return trainer


def aggregate(room: Room, args: argparse.Namespace, random: np.random.Generator) -> list[list[float]]:
    """DAgger: labels and returns after every round."""
    labels = args.labels
    venv, found, held = DummyVecEnv([lambda: room]), list[list[float]](), 0
    made = SimpleDAggerTrainer(
        venv=venv,
        scratch_dir=tempfile.mkdtemp(),
        expert_policy=Expert(room),
        rng=random,
        beta_schedule=lambda turn: max(1 - held / (BETA_LABELS * labels), 0.0),
        bc_trainer=make_trainer(room, random),
        custom_logger=logger.configure(tempfile.mkdtemp(), ("json",)),
    )
    while held < labels:
        enough = rollout.make_sample_until(min_timesteps=128, min_episodes=1)
        collector = made.create_trajectory_collector()
        played = rollout.generate_trajectories(made.expert_policy, collector, enough, rng=random)
        fresh = sum(len(one) for one in played)
        held += fresh
        more = {"n_batches": max(int(fresh * args.updates_per_label), 1), "progress_bar": False}
        made.extend_and_update(more | {"log_rollouts_n_episodes": 0})
        found.append([held, score(made.policy, args.size, args.episodes)])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", choices=("bc", "dagger"), required=True)
    parser.add_argument("--labels", type=int, default=4096)
    parser.add_argument("--updates", type=int, default=1600, help="gradient steps of BC")
    parser.add_argument("--updates-per-label", type=float, default=UPDATES_PER_LABEL, help="gradient steps of DAgger")
    parser.add_argument("--demonstrations", help="file of the decisions that BC clones")
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    room, random = Room(args.size, args.seed), np.random.default_rng(args.seed)
    if args.method == "bc":
        trainer = clone(room, args.demonstrations, args.updates, random)
        curve = [[args.labels, score(trainer.policy, args.size, args.episodes)]]
    else:
        curve = aggregate(room, args, random)
    print(json.dumps({"curve": curve}))


if __name__ == "__main__":
    main()
