"""A task that a tiny model learns in seconds, and groups of writers for tests."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from coterie.algorithms.at_grpo.at_grpo import ATGRPO, ATGRPOSettings
from coterie.core.group import Actor, GroupSpec
from coterie.core.types import Joint
from coterie.policies.causal_lm.policy import CausalLMPolicy, CausalLMSettings, TinySettings
from coterie.preferences.standard import Individual, IndividualSettings
from coterie.training.runner import Runner
from coterie.worlds.tasks.task import Outcome, TaskSettings
from coterie.worlds.tasks.world import TaskWorld

LETTERS = "abcd"


@dataclass(frozen=True)
class EchoSettings(TaskSettings):
    """A task in which the first role names a letter and the second repeats it."""

    turns: int = 1


@dataclass(frozen=True)
class EchoState:
    letter: str
    number: int
    said: str = ""


class EchoTask:
    """`first` sees a letter and writes it; `second` sees what `first` wrote and writes the next letter."""

    roles = ("first", "second")
    templates: Mapping[str, str] = {"first": "{letter}{number}>", "second": "{said}{number}="}
    state_type = EchoState

    def generate(self, random: np.random.Generator) -> EchoState:
        return EchoState(LETTERS[int(random.integers(4))], int(random.integers(10)))

    def identity(self, state: EchoState) -> str:
        return f"{state.letter}{state.number}"

    def fields(self, state: EchoState, role: str) -> Mapping[str, str]:
        return {"letter": state.letter, "number": str(state.number), "said": state.said or "-"}

    def apply(self, state: EchoState, role: str, answer: str) -> Outcome:
        right = answer == self.solve(state, role)
        readable = len(answer) == 1 and answer in LETTERS
        away = min(100, abs(ord(answer[0]) - ord(self.solve(state, role)))) if answer else 100
        local = 0.5 * right - away / 100  # the nearer in the alphabet the better
        solved = role == "second" and right and state.said == state.letter
        return Outcome(replace(state, said=answer[:1]), float(solved), local, solved=solved, readable=readable)

    def solve(self, state: EchoState, role: str) -> str:
        return state.letter if role == "first" else (state.said or "a")

    def guess(self, state: EchoState, role: str, random: np.random.Generator) -> str:
        return LETTERS[int(random.integers(4))]

    def draw(self, state: EchoState) -> str:
        return f"{state.letter}{state.number}"


class EchoWorld(TaskWorld):
    """N copies of the task."""

    def __init__(self, settings: EchoSettings, num_envs: int) -> None:
        super().__init__(settings, num_envs, EchoTask())


TINY = TinySettings(layers=1, width=16, heads=2, hidden=16, context=16)


def team(num_envs=8, parameters="shared", seed=0, world=None, learner=None, **policy):
    """A runner of one group of writers in the echo task, and its learner."""
    built = EchoWorld(EchoSettings(**(world or {})), num_envs)
    spaces = built.agent_types["team"]
    spec = GroupSpec(
        *("writers", "team", spaces, built.roles, np.arange(len(built.roles))),
        parameters=parameters,
        seed=seed,
        simultaneous=False,
        world=built,
        learns=True,
    )
    settings = {"tiny": TINY, "max_tokens": 2, "max_prompt_tokens": 8, "candidates": 4} | policy
    made = CausalLMPolicy(CausalLMSettings(**settings), spec)
    preference = Individual(IndividualSettings(), spec, 1.0)
    return Runner(built, [Actor(spec, made)], seed), ATGRPO(ATGRPOSettings(**(learner or {})), made, spec, preference)


def iterate(runner, learner, count, first=1, steps=2):
    """Play and learn `count` times; returns the metrics of the last iteration."""
    metrics = {}
    for iteration in range(first, first + count):
        rollout = runner.play(steps, iteration, 0.0)
        own = rollout.experiences["writers"]
        metrics = learner.learn(own, Joint(rollout.experiences, iteration, 0.0), np.random.default_rng(iteration))
    return metrics
