"""The rules of a text task: one instance, without batches, turns or random seeds.

A task is one file: a settings dataclass that extends `TaskSettings`, a class with the methods of `Task`, and a world
class that hands both to `TaskWorld` (`world.py`), which adds copies, turns, splits, forks and checkpoints. States are
frozen dataclasses of plain values, so that many copies may share one.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, Self, TypeVar, get_args

import numpy as np

from coterie.core.settings import Settings
from coterie.core.validation import at_least, one_of, positive, whole

Split = Literal["auto", "train", "validation", "test"]
Reward = Literal["dense", "sparse"]
S = TypeVar("S")


@dataclass(frozen=True)
class Outcome:
    """The effect of one answer of one role."""

    state: Any  # of the instance, after the answer
    team: float = 0.0  # reward for what the answer achieved for the team
    local: float = 0.0  # reward for how well the role did its own part
    solved: bool = False  # the instance is solved; the episode ends
    failed: bool = False  # the instance can no longer be solved; the episode ends
    readable: bool = True  # the answer had the required form; other answers are counted
    note: str = ""  # what happened, for transcripts


class Task(Protocol):
    """The rules of one task; everything is a function of its arguments, drawn numbers excepted."""

    roles: tuple[str, ...]  # in the order in which they act within a turn
    templates: Mapping[str, str]  # role -> prompt, with the names of `fields`, turn and turns in braces
    state_type: type[Any]  # the frozen dataclass of states; its fields are numbers, strings and tuples of these

    def generate(self, random: np.random.Generator) -> Any:
        """Draw the first state of an instance; every instance can be solved."""
        ...

    def identity(self, state: Any) -> str:
        """The key of an instance: equal instances have equal keys; it assigns them to training, validation or test."""
        ...

    def fields(self, state: Any, role: str) -> Mapping[str, str]:
        """The present state in words, for the role's prompt."""
        ...

    def apply(self, state: Any, role: str, answer: str) -> Outcome:
        """The effect of an answer."""
        ...

    def solve(self, state: Any, role: str) -> str:
        """The scripted solver's answer."""
        ...

    def guess(self, state: Any, role: str, random: np.random.Generator) -> str:
        """A random answer in the required form."""
        ...

    def draw(self, state: Any) -> str:
        """The state as a picture in text, for terminals, transcripts and people."""
        ...


@dataclass(frozen=True)
class TaskSettings(Settings):
    """Settings that every task has."""

    # Turns of an episode; in each turn every role answers once.
    turns: int = 4
    # The roles that take part, in order; empty: all of the task's. One role alone is a single agent.
    roles: tuple[str, ...] = ()
    # Weight of the team's reward: reward = alpha · team + local.
    alpha: float = 1.0
    # dense: alpha · team + local; sparse: alpha · team.
    reward: Reward = "dense"
    # Instances to play; auto: for training in training, for validation while it goes on, for tests in evaluations.
    split: Split = "auto"
    # Copies that play the same instance, next to each other; plain GRPO compares their episodes.
    group_size: int = 1
    # Whether the next episodes begin only after turns · roles steps, so that a rollout holds whole episodes.
    wait: bool = True
    # Prompts of roles, in place of the task's own; the names of the task's fields, turn and turns stand in braces.
    prompts: dict[str, str] = field(default_factory=dict)
    # Characters that an answer may have.
    max_answer: int = 2000
    # Child processes that apply answers; 0: this process does.
    env_workers: int = 0
    # Seconds that a child process may take to apply one answer.
    timeout: float = 300.0

    def __post_init__(self) -> None:
        for name, low in (("turns", 1), ("group_size", 1), ("max_answer", 1), ("env_workers", 0)):
            whole(name, getattr(self, name))
            at_least(name, getattr(self, name), low)
        at_least("alpha", self.alpha, 0)
        positive("timeout", self.timeout)
        for name, hint in (("reward", Reward), ("split", Split)):
            one_of(name, getattr(self, name), get_args(hint))

    def for_evaluation(self) -> Self:
        """The settings of evaluations: instances for tests, one episode after the other."""
        return self._held_out("test")

    def for_validation(self) -> Self:
        """The settings of evaluations in training, which choose the best checkpoint: instances for validation."""
        return self._held_out("validation")

    def _held_out(self, split: Split) -> Self:
        return replace(self, split=split if self.split == "auto" else self.split, group_size=1, wait=False)


def chosen_roles(settings: TaskSettings, task: Task) -> tuple[str, ...]:
    """The roles that take part."""
    for role in (*settings.roles, *settings.prompts):
        if role not in task.roles:
            raise ValueError(f"roles and prompts: no role '{role}'; there are {', '.join(task.roles)}")
    if len(set(settings.roles)) < len(settings.roles):
        raise ValueError(f"roles must differ, got {', '.join(settings.roles)}")
    return settings.roles or task.roles


def chosen_templates(settings: TaskSettings, task: Task, state: Any) -> dict[str, str]:
    """The prompts of all roles; a name in braces that the task does not have is an error."""
    found = {}
    for role in task.roles:
        template = settings.prompts.get(role, task.templates[role])
        known = (*task.fields(state, role), "turn", "turns")
        try:
            names = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
        except ValueError as error:
            raise ValueError(f"prompts.{role}: {error}; write {{{{ and }}}} for braces") from None
        for name in names:
            if name not in known:
                raise ValueError(f"prompts.{role}: no field '{{{name}}}'; there are {', '.join(known)}")
        found[role] = template
    return found
