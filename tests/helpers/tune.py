"""A game whose score is known before it is played, named `helpers.tune:Name`, for the tests of tuning."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from coterie.core.group import Learner, Policy
from coterie.core.search_space import Choice, Real, Space
from coterie.core.settings import Settings
from coterie.core.types import AgentStep, AgentType, Box, CoterieError, Decision, TimeStep
from coterie.core.world import World
from coterie.studies.tune.tune import Plan
from helpers.run import GRID, written

SKILLS = """\
world: {name: "helpers.tune:Paying"}
groups: {all: {policy: {name: "helpers.tune:Skilled", talent: {skill: 0.5}}, learner: {name: "helpers.tune:Idle"}}}
train: {num_envs: 2, rollout_steps: 4, total_steps: 32, evaluate_episodes: 2, evaluate_every: 1, video: false,
        tensorboard: false}
"""


def plans(path):
    """Plans over the game whose score is four times the skill."""
    experiment = str(written(path / "skills.yaml", SKILLS))

    def plan(trials, *overrides, study="s.db", **more):
        return Plan(experiment, overrides, trials, str(path / study), **more)

    return plan


def tiny(tmp_path, name, trials):
    """A plan over a grid so small that a trial takes a moment."""
    words = [word for word in GRID if "total_steps" not in word and "hidden" not in word]
    return Plan("gridworld-cooperative", (*words, "train.total_steps=512"), trials, str(tmp_path / name))


def essence(tuned):
    """Everything that a study found."""
    return [(t.number, t.outcome, t.values, t.score, t.held_out, t.curve, t.reason) for t in tuned.trials]


@dataclass(frozen=True)
class PayingSettings(Settings):
    length: int = 4  # of every episode


class Paying(World):
    """Pays what is bid: a policy of skill s earns s at every step."""

    simultaneous = True
    state_size = 0

    def __init__(self, settings: PayingSettings, num_envs: int) -> None:
        self.settings, self.num_envs = settings, num_envs
        self.agent_types = {"agent": AgentType(("agent_0",), Box((1,), 0.0, 1.0), Box((1,), 0.0, 10.0))}
        self.reset(0)

    def reset(self, seed):
        self.age = 0
        return self.agent_step(np.zeros((self.num_envs, 1)))

    def step(self, actions):
        self.age = (self.age + 1) % self.settings.length
        return self.agent_step(actions["agent"].reshape(self.num_envs, 1), self.age == 0)

    def agent_step(self, reward, over=False):
        shape = (self.num_envs, 1)
        seen = np.zeros((*shape, 1), np.float32)
        ended = np.full(shape, over)
        agent_step = AgentStep(
            seen, np.ones(shape, bool), reward.astype(np.float32), ended, np.zeros(shape, bool), seen
        )
        return TimeStep({"agent": agent_step}, ended[:, 0])

    def save(self):
        return {"age": self.age}

    def load(self, state):
        self.age = state["age"]
        return self.agent_step(np.zeros((self.num_envs, 1)))


@dataclass(frozen=True)
class TalentSettings(Settings):
    skill: float = 0.5

    SEARCH: ClassVar[Space] = {"skill": Real(0.0, 1.0)}


@dataclass(frozen=True)
class SkilledSettings(Settings):
    talent: TalentSettings = field(default_factory=TalentSettings)
    mood: str | None = None

    SEARCH: ClassVar[Space] = {"mood": Choice((None, "merry", "grim"))}


class Skilled(Policy):
    """Always bids its skill."""

    def __init__(self, settings: SkilledSettings, group_spec) -> None:
        self.skill = settings.talent.skill

    def act(self, view):
        return Decision(np.full((*view.acting.shape, 1), self.skill, np.float32))

    def state(self):
        return {"skill": self.skill}

    def load(self, state):
        self.skill = state["skill"]


@dataclass(frozen=True)
class IdleSettings(Settings):
    fails_below: float = -1.0  # skills that this learner cannot bear
    forgets: float = 0.0  # skill lost at every turn


class Idle(Learner):
    """Learns nothing, or less."""

    def __init__(self, settings: IdleSettings, policy, group_spec, preference) -> None:
        self.settings, self.policy = settings, policy

    def learn(self, own, joint, random):
        if self.policy.skill < self.settings.fails_below:
            raise CoterieError("no talent at all")
        self.policy.skill -= self.settings.forgets
        return {}


@dataclass(frozen=True)
class MistakenSettings(Settings):
    skill: float | None = None

    SEARCH: ClassVar[Space] = {"skill": Real(0.0, 1.0)}


class Mistaken(Idle):
    """Declares a range that cannot hold its own default."""

    def __init__(self, settings: MistakenSettings, policy, group_spec, preference) -> None:
        super().__init__(IdleSettings(), policy, group_spec, preference)
