"""Scripted models that judge, and codecs for them: moments are described by one number."""

import math
import re

import numpy as np

from coterie.advice.shaping import PotentialShaping, PotentialShapingSettings
from coterie.core.world import World
from coterie.lm.ask.loading import LMSettings
from coterie.lm.ask.scripted import Scripted

NUMBER = re.compile(r"x = (-?\d+(?:\.\d+)?)")


def chance(number):
    """How surely GRADER gives a number the grade 'high'."""
    return 1 / (1 + math.exp(-(float(number) - 5) / 3))


def potential(number):
    """Φ of a number, where 'low' counts -1 and 'high' 0."""
    return chance(number) - 1


def _grade(prompt, choice):
    high = chance(NUMBER.findall(prompt)[-1])
    return math.log(high if choice == " high" else 1 - high)


def _compare(prompt, choice):
    """Likes the larger number, and A by 3 nats whatever it is asked."""
    first, second = (float(number) for number in NUMBER.findall(prompt)[-2:])
    liking = 3.0 + (first - second)
    return -math.log1p(math.exp(-liking if choice == " A" else liking))


def _follow(prompt, choice):
    """Sure to 90% that a move follows the instruction if its number is the one asked for."""
    right = re.search(r"Choose (\d)\. x = \S+ Move: \1\.\n", prompt.splitlines()[-2] + "\n") is not None
    return math.log(0.9 if right == (choice == " yes") else 0.1)


def _silent(prompt, random):
    return ""


GRADER = Scripted(_silent, _grade, "grader")
COMPARER = Scripted(_silent, _compare, "comparer")
FOLLOWER = Scripted(_silent, _follow, "follower")


class Stages:
    """Tells the number at `group_spec` of every observation, and grades it."""

    prompt, choices, idle, group_spec = "numbers", ("0", "1", "2"), None, 1
    grades, grade_prompt = ("low", "high"), "numbers"

    def __init__(self, world: World, agent_type: str) -> None:
        pass

    def _numbers(self, observation):
        return observation.reshape(len(observation), -1)[:, self.group_spec].astype(float)

    def describe(self, observation):
        return [f"x = {number:g}" for number in self._numbers(observation)]

    appraise = describe

    def grade(self, observation):
        numbers = self._numbers(observation)
        return np.where(numbers < 0, -1, numbers > 5).astype(int)

    def actions(self, chosen):
        return chosen

    def samples(self):
        return [f"x = {number}" for number in range(10)]

    appraisals = samples


class Ungraded(Stages):
    grades = ()


class Instructed(Stages):
    """The same with an instruction: to choose the number of one's copy, modulo 3."""

    def __init__(self, world: World, agent_type: str) -> None:
        self.space_without_instruction = world.agent_types[agent_type].observation

    def instruct(self, observation):
        return [f"Choose {int(number) % 3}." for number in observation.reshape(len(observation), -1)[:, 0]]

    def without_instruction(self, observation):
        return observation


class Corner(Stages):
    """For the grid world: how far down one stands, on a grid of 5."""

    group_spec = 0

    def _numbers(self, observation):
        return np.rint(super()._numbers(observation) * 4)


def shaped(group_spec, gamma=0.9, codec="Stages", **settings):
    """Φ of numbers as `potential` says."""
    lm = settings.pop("lm", LMSettings("helpers.reward:GRADER"))
    given = {"calibration": "none", "examples": "none"} | settings
    settings = PotentialShapingSettings(lm=lm, codec=f"helpers.reward:{codec}", **given)
    return PotentialShaping(settings, group_spec, gamma)
