"""A world whose best play depends on what is seen, runs that play it well and badly, and a model that compares."""

import re
from dataclasses import dataclass

import numpy as np

import coterie
from coterie.core.types import AgentStep, AgentType, Box, Discrete, TimeStep
from coterie.lm.ask.interface import RetriesExhausted
from coterie.lm.ask.scripted import Scripted
from helpers.run import written
from helpers.small_worlds import generator


@dataclass(frozen=True)
class LightsSettings:
    length: int = 6  # ticks of an episode
    reverse: bool = False  # pay for the next button instead


class Lights:
    """A light has one of three colours; who presses the button of its colour is paid 1."""

    simultaneous = True
    state_size = 0

    def __init__(self, settings: LightsSettings, num_envs: int) -> None:
        self.settings, self.num_envs = settings, num_envs
        self.agent_types = {"agent": AgentType(("agent_0",), Box((4,), 0.0, 1.0), Discrete(3))}
        self.reset(0)

    def reset(self, seed):
        self.random, self.age = generator(seed), np.zeros(self.num_envs, np.int64)
        self.light = self.random.integers(0, 3, self.num_envs)
        return self.tell(np.zeros(self.num_envs), np.zeros(self.num_envs, bool))

    def step(self, actions):
        paid = actions["agent"][:, 0] == (self.light + self.settings.reverse) % 3
        self.age += 1
        ended = self.age >= self.settings.length
        self.age[ended] = 0
        self.light = self.random.integers(0, 3, self.num_envs)
        return self.tell(paid.astype(np.float32), ended)

    def tell(self, reward, ended):
        shown = np.concatenate([np.eye(3)[self.light], self.age[:, None] / 8], axis=-1)
        seen = shown[:, None].astype(np.float32)
        every, over = np.ones((self.num_envs, 1), bool), ended[:, None].copy()
        agent_step = AgentStep(seen, every, np.float32(reward)[:, None], over, np.zeros_like(over), seen.copy())
        return TimeStep({"agent": agent_step}, ended)

    def save(self):
        return {"light": self.light.copy(), "age": self.age.copy(), "random": self.random.bit_generator.state}

    def load(self, state):
        self.light, self.age = state["light"].copy(), state["age"].copy()
        self.random.bit_generator.state = state["random"]
        return self.tell(np.zeros(self.num_envs), np.zeros(self.num_envs, bool))


TABLE = """\
world: {name: "helpers.rating:Lights"}
groups: {all: {policy: {name: network, hidden: [16]}, learner: {name: ppo, learning_rate: 1e-2}}}
train: {num_envs: 16, rollout_steps: 24, total_steps: 6000, evaluate_episodes: 8, evaluate_every: 50, video: false,
        tensorboard: false}
"""


def lights(folder, name, *words):
    """A run in that world."""
    table = written(folder / "lights.yaml", TABLE)
    return coterie.train(str(table), list(words), out=folder / name, quiet=True)


def rated_runs(folder):
    """Three runs: a good one, one that knows nothing, and one that learned to press the wrong button."""
    good = lights(folder, "good")
    fresh = lights(folder, "fresh", "train.total_steps=384", "groups.all.learner.learning_rate=1e-9")
    bad = lights(folder, "bad", "world.reverse=true")
    text = bad.config_file.read_text()
    bad.config_file.write_text(text.replace("reverse: true", "reverse: false"))  # it plays on in the others' world
    return [str(run.path) for run in (good, fresh, bad)]


ASKED: list[str] = []


def by_steps(prompt, choice):
    """Likes the shorter episode by 4 nats, and the first by 10 whatever is in it."""
    ASKED.append(prompt)
    lengths = [int(n) for n in re.findall(r"After (\d+) steps?", prompt)]
    best = "A" if lengths[0] < lengths[1] else "B" if lengths[0] > lengths[1] else ""
    return -20.0 + 4.0 * (choice.strip() == best) + 10.0 * (choice == " A")


def silent(prompt, choice):
    """A server that answers twice, and then no more."""
    ASKED.append(prompt)
    if len(set(ASKED)) > 2:
        raise RetriesExhausted("gave up after 5 attempts: connection refused")
    return -1.0 if choice == " A" else -2.0


BRISK = Scripted(lambda prompt, random: "", by_steps, "brisk")
SILENT = Scripted(lambda prompt, random: "", silent, "silent")
