"""Text tasks for tests: every task of the registry, small, and episodes of scripted players in it."""

import os
import time

import numpy as np

from coterie.config import registry
from coterie.core import lookup
from coterie.core.group import Actor, GroupSpec
from coterie.training.evaluate import evaluate
from coterie.worlds.tasks.task import Outcome
from coterie.worlds.tasks.world import AGENT_TYPE

TASKS = [name for name, address in registry.WORLDS.items() if address.startswith("coterie.worlds.tasks.")]
SMALL = {"plan_path": {"size": 5}, "sokoban": {"boxes": 2}}  # tasks whose default is larger, or too plain

SLOW = ("code",)  # tasks whose answers are programs that run in the sandbox: play less of them


def settings_of(name, **more):
    return lookup.settings_type(registry.WORLDS, name)(**SMALL.get(name, {}) | more)


def make(name, num_envs=4, evaluation=False, **more):
    settings = settings_of(name, **more)
    settings = settings.for_evaluation() if evaluation else settings
    return lookup.look_up(registry.WORLDS, name)(settings, num_envs)


def seat(world, policy, **settings):
    """All roles of a world, played by one policy."""
    spaces = world.agent_types[AGENT_TYPE]
    spec = GroupSpec("team", AGENT_TYPE, spaces, spaces.agents, np.arange(len(spaces.agents)), world=world)
    made = lookup.look_up(registry.POLICIES, policy)
    return Actor(spec, made(lookup.settings_type(registry.POLICIES, policy)(**settings), spec))


def play(name, policy, episodes=30, seed=1, **more):
    """An evaluation of one policy in all roles, on instances for tests."""
    world = make(name, episodes, evaluation=True, **more)
    return evaluate(world, [seat(world, policy)], episodes, seed)


class Troubled:
    """A task whose answers say what happens when they are applied."""

    def apply(self, state, role, text):
        match text:
            case "hang":
                time.sleep(60)
            case "exit":
                os._exit(3)
            case "raise":
                raise ValueError("no such move")
            case "slow":
                time.sleep(0.3)
        return Outcome(state=f"{role}: {text}")
