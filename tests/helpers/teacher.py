"""Taught tables: a small grid, planners that answer by a rule, a network that learns."""

from dataclasses import replace

import numpy as np

from coterie.advice.teacher import TeacherAdvisor, TeacherSettings
from coterie.core.advice import AskSettings, UseSettings
from coterie.lm.ask.loading import LMSettings
from coterie.lm.ask.scripted import Scripted
from helpers.small_worlds import spec_in

TABLE = """\
world: {name: gridworld, mode: cooperative, grid_size: 4, num_agents: 2, num_targets: 2, max_steps: 12}
groups:
  team:
    policy: {hidden: [8]}
    learner: {name: ppo, epochs: 1, minibatches: 1}
    advisor: {name: teacher, lm: "helpers.teacher:FIRST", use: {frames: 96}}
train: {num_envs: 4, rollout_steps: 8, total_steps: 256, evaluate_episodes: 4, evaluate_every: 2, checkpoint_every: 2,
        video: false, tensorboard: false}
"""
ADVISE = "groups.team.advisor"


def first_place(prompt):
    """The place that the state of a prompt names first."""
    return prompt.splitlines()[-2].removeprefix("places: ").split(",")[0]


def likes(prompt, choice):
    """Prefers the first place by 2 nats, and `red` by 5 whatever it is asked."""
    return -10.0 + 2.0 * (choice.strip() == first_place(prompt)) + 5.0 * (choice == " red")


def wavers(prompt, random):
    return f" {first_place(prompt)}" if random.random() < 0.75 else " green" if random.random() < 0.5 else " hm"


FIRST = Scripted(lambda prompt, random: f" {first_place(prompt)}", likes, "first place")
WAVERING = Scripted(wavers, likes, "wavering")
HESITANT = Scripted(  # never names a place in one of four text states
    lambda prompt, random: " hm" if prompt.splitlines()[-2] == "places: red" else f" {first_place(prompt)}",
    likes,
    "hesitant",
)
SILENT = Scripted(lambda prompt, random: " no idea", likes, "silent")


def teacher(world, model="FIRST", ask=None, use=None, seed=0, **settings):
    """A teacher, and the place of who is taught."""
    where = replace(spec_in(world), seed=seed)
    lm = LMSettings(f"helpers.teacher:{model}")
    parts = {"ask": AskSettings(**ask or {}), "use": UseSettings(**use or {}), "smoothing": 0.0}
    made = TeacherAdvisor(TeacherSettings(lm=lm, **parts | settings), where)
    return made, replace(where, advice=made.advice_use)


def best_plan(world):
    """All weight on the oracle's skills, `[N, A, S]`."""
    return np.arange(len(world.skills("agent"))) == world.best_skills("agent")[..., None]
