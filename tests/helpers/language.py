"""Scripted models that play, codecs with faults, and tables for them."""

import re

import numpy as np

from coterie.core.group import GroupSpec
from coterie.core.types import View
from coterie.lm.ask.loading import LMSettings
from coterie.lm.ask.scripted import Scripted
from coterie.policies.language import LanguagePolicy, LanguageSettings
from coterie.worlds.gridworld.world import Gridworld, GridworldSettings
from helpers.small_worlds import generator, spec_in

WORDS = re.compile(r"\b(up|down|left|right)\b")


def described(prompt):
    """The state that a prompt of the grid world ends with."""
    return prompt.splitlines()[-2]


def first_way(prompt):
    return (WORDS.findall(described(prompt)) or ["nowhere"])[0]


def judge(prompt, choice):
    """Likes what the state names first by 2 nats, and 'left' by 5 whatever it is asked."""
    return -10.0 + 2.0 * (choice.strip() == first_way(prompt)) + 5.0 * (choice == " left")


COPIER = Scripted(lambda prompt, random: f" {first_way(prompt)}", judge, "copier")
RAMBLER = Scripted(lambda prompt, random: " I would rather not say", judge, "rambler")


REPENTANT = Scripted(lambda prompt, random: " sideways" if "not possible" not in prompt else " DOWN.", judge, "rue")
FICKLE = Scripted(lambda prompt, random: str(random.choice([" up", " down", " left", " right"])), judge, "fickle")


class Numbers:
    """A codec of one's own for a world that has none, or another one."""

    prompt, choices, idle = "numbers", ("0", "1"), None

    def __init__(self, world, agent_type):
        pass

    def describe(self, observation):
        return [f"x = {float(np.ravel(row)[0]):.1f}" for row in observation]

    def actions(self, chosen):
        return chosen

    def samples(self):
        return []


class Speechless(Numbers):
    choices = ()


def race(num_envs=4, **settings):
    return Gridworld(GridworldSettings(**{"grid_size": 5, "mode": "race"} | settings), num_envs)


def player(world, model="COPIER", columns=None, agent_type=None, around=None, **settings):
    lm = LMSettings(model if model == "embedded" else f"helpers.language:{model}", **around or {})
    return LanguagePolicy(LanguageSettings(lm=lm, **settings), spec_in(world, columns, agent_type=agent_type))


def view_of(world, group_spec: GroupSpec, seed=0, greedy=True):
    agent_step = world.reset(seed).agent_types[group_spec.agent_type]
    mask = None if agent_step.mask is None else agent_step.mask[:, group_spec.columns]
    return View(
        agent_step.observation[:, group_spec.columns]
        if not isinstance(agent_step.observation, dict)
        else agent_step.observation,
        agent_step.acting[:, group_spec.columns],
        np.arange(len(group_spec.agents)),
        generator(seed),
        greedy,
        mask,
        world=world,
        agent_type=group_spec.agent_type,
        columns=group_spec.columns,
    )
