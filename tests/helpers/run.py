"""Tiny runs, and parts of one's own named `helpers.run:Name`, for the tests of everything around a run."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import coterie
from coterie.core import seeding
from coterie.core.group import Stateless
from coterie.core.types import AgentStep, AgentType, Box, CoterieError, Decision, Discrete, TimeStep
from coterie.runs import checkpoint

TESTS = Path(__file__).parent.parent
SOURCES = Path(coterie.__file__).parent.parent
QUIET = ["train.video=false", "train.tensorboard=false"]
MOMENT = [
    *("train.total_steps=64", "train.num_envs=4", "train.rollout_steps=8", "train.evaluate_episodes=2", *QUIET),
]
GRID = [
    *("world.grid_size=4", "world.max_steps=12", "groups.team.policy.hidden=[8]"),
    *("train.num_envs=4", "train.rollout_steps=8", "train.total_steps=256", "train.evaluate_episodes=4"),
    *("train.evaluate_every=2", "train.checkpoint_every=2", *QUIET),
]
DUEL = """\
world: {name: tictactoe, first: random}
groups:
  cross: {agents: player_0, policy: {name: network, hidden: [8]}, learner: {name: ppo, learning_rate: 1e-3}}
  ring: {agents: player_1, policy: {name: network, hidden: [6]}, learner: {name: ppo, learning_rate: 3e-3, epochs: 2}}
train: {num_envs: 4, rollout_steps: 7, total_steps: 224, evaluate_episodes: 4, evaluate_every: 2, checkpoint_every: 2,
        shards: 2, video: false, tensorboard: false}
"""
ODD = """\
world: {name: "helpers.run:Odd"}
groups: {all: {policy: {name: network, hidden: [4]}, learner: {name: ppo}}}
train: {num_envs: 4, rollout_steps: 6, total_steps: 96, evaluate_episodes: 4, evaluate_every: 2, checkpoint_every: 1,
        video: false, tensorboard: false}
"""


def train(out, *words, experiment="gridworld-cooperative"):
    """A run of a few iterations; `words` go over the tiny settings."""
    parts = tuple(f"{word.partition('=')[0]}." for word in words)  # another policy has no layers
    base = [word for word in GRID if not word.startswith(parts)] if experiment == "gridworld-cooperative" else []
    return coterie.train(str(experiment), [*base, *words], out=out, quiet=True)


def written(path, text):
    path.write_text(text)
    return path


def numbers(run):
    """The records without their clock."""
    return [{k: v for k, v in record.items() if k != "wall_s"} for record in run.metrics()]


def results(run):
    """The summary without its clock."""
    return {k: v for k, v in run.summary().items() if k not in ("wall_s", "steps_per_s")}


def files(directory):
    """A checkpoint's arrays as bytes, and its other values without the clock."""
    values = json.loads((directory / checkpoint.VALUES).read_text())
    return (directory / checkpoint.ARRAYS).read_bytes(), {k: v for k, v in values.items() if k != "wall_s"}


def assert_same_end(left, right):
    """Both runs came to the same end, bit for bit."""
    assert numbers(left) == numbers(right)
    for prefix in ("step", "best"):
        assert left.steps(prefix) == right.steps(prefix)
        for step in left.steps(prefix):
            assert files(left.checkpoint_path(step, prefix)) == files(right.checkpoint_path(step, prefix))
    assert results(left) == results(right)
    assert not list(left.checkpoints.glob(".*"))


def environment():
    """For commands in processes of their own: `helpers` can be imported, nothing opens a window."""
    path = [str(SOURCES), str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(path), "SDL_VIDEODRIVER": "dummy", "OMP_NUM_THREADS": "1"}


# A world without an expert and without pictures --------------------------------------------------------


@dataclass(frozen=True)
class OddSettings:
    agents: int = 2
    lengths: tuple[int, ...] = (2, 20)  # every episode lasts one of these
    trouble: str = ""  # what goes wrong: raise, name, exit, sleep, nan
    after: int = 5  # steps before it does


class Odd:
    """Pays agent a `1 + a` at every step until an episode of random length ends."""

    simultaneous = True
    state_size = 0

    def __init__(self, settings: OddSettings, num_envs: int) -> None:
        self.settings, self.num_envs = settings, num_envs
        self.agents = tuple(f"agent_{i}" for i in range(settings.agents))
        self.agent_types = {"agent": AgentType(self.agents, Box((1,), 0.0, 1.0), Discrete(2))}
        self.steps = 0
        self.reset(0)

    def reset(self, seed):
        self.seed = seed
        self.episode, self.age = np.zeros(self.num_envs, np.int64), np.zeros(self.num_envs, np.int64)
        return self.agent_step(np.zeros(self.num_envs, bool), 0.0)

    def length(self, copy, episode):
        return int(seeding.generator(self.seed, "length", int(copy), int(episode)).choice(self.settings.lengths))

    def step(self, actions):
        self.steps += 1
        reward = 1.0
        if self.settings.trouble and self.steps > self.settings.after:
            match self.settings.trouble:
                case "raise":
                    raise RuntimeError("the odd world fell over")
                case "name":
                    raise CoterieError("the odd world fell over")
                case "exit":
                    os._exit(7)
                case "sleep":
                    time.sleep(60)
                case "nan":
                    reward = np.nan
        self.age += 1
        ended = np.array([self.age[n] >= self.length(n, self.episode[n]) for n in range(self.num_envs)])
        self.episode += ended
        self.age[ended] = 0
        return self.agent_step(ended, reward)

    def agent_step(self, ended, reward):
        shape = (self.num_envs, len(self.agents))
        paid = np.broadcast_to(reward * (1.0 + np.arange(len(self.agents))), shape).astype(np.float32)
        seen = np.broadcast_to((self.age / 32)[:, None, None], (*shape, 1)).astype(np.float32)
        over = np.broadcast_to(ended[:, None], shape).copy()
        every = np.ones(shape, bool)
        return TimeStep({"agent": AgentStep(seen, every, paid, over, np.zeros(shape, bool), seen.copy())}, ended)

    def save(self):
        return {"episode": self.episode.copy(), "age": self.age.copy(), "seed": self.seed, "steps": self.steps}

    def load(self, state):
        self.episode, self.age = state["episode"].copy(), state["age"].copy()
        self.seed, self.steps = state["seed"], state["steps"]
        return self.agent_step(np.zeros(self.num_envs, bool), 0.0)


class Crooked(Odd):
    """Breaks the contract: observations leave their bounds."""

    def agent_step(self, ended, reward):
        timestep = super().agent_step(ended, reward)
        timestep.agent_types["agent"].observation[:] += 2
        return timestep


# A policy, a learner and a preference of one's own ------------------------------------------------------


@dataclass(frozen=True)
class StubbornSettings:
    action: int = 0


class Stubborn(Stateless):
    """Always the same action; what a learner changes about it is in its state."""

    memory_size = 0

    def __init__(self, settings: StubbornSettings, group_spec) -> None:
        self.action = settings.action

    def act(self, view):
        return Decision(np.full(view.acting.shape, self.action))

    def state(self):
        return {"action": self.action}

    def load(self, state):
        self.action = state["action"]


@dataclass(frozen=True)
class CountingSettings:
    first: int = 0


class Counting(Stateless):
    """Learns nothing but how often it was asked to, and what it was paid."""

    def __init__(self, settings: CountingSettings, policy, group_spec, preference) -> None:
        self.count, self.policy, self.preference = settings.first, policy, preference

    def learn(self, own, joint, random):
        self.count += 1
        return {"count": float(self.count), "paid": float(self.preference.rewards(own).sum())}

    def state(self):
        return {"count": self.count}

    def load(self, state):
        self.count = state["count"]


@dataclass(frozen=True)
class ScaledSettings:
    factor: float = 2.0


class Scaled(Stateless):
    """Multiplies rewards."""

    scope = "step"

    def __init__(self, settings: ScaledSettings, group_spec, gamma) -> None:
        self.factor = settings.factor

    def rewards(self, experience):
        return experience.reward * np.float32(self.factor)


class Unsettled:
    """Not a part: its constructor takes no settings."""

    def __init__(self) -> None:
        pass


class Loose:
    """Not a part: its settings are no dataclass."""

    def __init__(self, settings: dict) -> None:
        pass
