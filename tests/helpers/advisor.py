"""Advised tables: a small grid, its scripted expert or a scripted model as advisor, a network that learns."""

from dataclasses import replace

import numpy as np

from coterie.advice.advisor import ExpertAdvisor, ExpertAdvisorSettings, LanguageAdvisor, LanguageAdvisorSettings
from coterie.config import schema
from coterie.core.advice import AskSettings, UseSettings
from coterie.core.types import View
from coterie.lm.ask.loading import LMSettings
from coterie.lm.ask.scripted import Scripted
from coterie.training import build
from coterie.training.runner import Runner
from coterie.worlds.gridworld.world import Gridworld, GridworldSettings
from helpers.small_worlds import generator, network, spec_in

TABLE = """\
world: {name: gridworld, mode: cooperative, grid_size: 4, num_agents: 2, num_targets: 2, max_steps: 12}
groups:
  team:
    policy: {hidden: [8]}
    learner: {name: ppo, epochs: 1, minibatches: 1}
    advisor: {lm: "helpers.language:COPIER"}
train: {num_envs: 4, rollout_steps: 8, total_steps: 128, evaluate_episodes: 4, evaluate_every: 2, checkpoint_every: 2,
        video: false, tensorboard: false}
"""

CENTRE = Scripted(lambda prompt, random: " centre", lambda prompt, choice: 3.0 * (choice == " centre"), "centre")


def grid(num_envs=8, **settings):
    return Gridworld(
        GridworldSettings(**{"grid_size": 4, "mode": "cooperative", "num_targets": 2} | settings), num_envs
    )


def advisor(world, model="COPIER", ask=None, use=None, around=None, home="helpers.language", **settings):
    """A scripted model, or the world's expert where there is none, and the spec of the advised group."""
    where = spec_in(world)
    parts = {"ask": AskSettings(**ask or {}), "use": UseSettings(**use or {})} | settings
    if model is None:
        made = ExpertAdvisor(ExpertAdvisorSettings(**parts), where)
    else:
        lm = LMSettings(f"{home}:{model}", **around or {})
        made = LanguageAdvisor(LanguageAdvisorSettings(lm=lm, **parts), where)
    return made, replace(where, advice=made.advice_use)


def seen(world, where, seed=0, **fields):
    """A moment of training."""
    agent_step = world.reset(seed).agent_types[where.agent_type]
    fields = {"progress": 0.0} | fields
    few = np.arange(len(where.agents))
    return View(
        agent_step.observation,
        agent_step.acting,
        few,
        generator(seed),
        world=world,
        agent_type=where.agent_type,
        columns=where.columns,
        **fields,
    )


def advised(made, where, seed=0, **settings):
    """Notes to a moment of training, from a policy of its own."""
    world = where.world
    return noted(made.advise(seen(world, where, seed), network(where, **settings)))


def played(path, *words, steps=16):
    """The experience of one iteration, and the learner that is to learn from it, with all rates near nothing."""
    still = ["groups.team.learner.learning_rate=1e-12", *words]
    settings = schema.load(str(path), still)
    world = build.build_world(settings.world, settings.train.num_envs)
    (group,) = build.build_groups(settings, world)
    group.policy.flat.array[:] *= 8  # outputs far from even
    runner = Runner(world, [group.actor], seed=0)
    return runner.play(steps, 1, 0.25).experiences["team"], group


def noted(view):
    """Advice as one array `[N, A, 1 + K]` of strength and probabilities, NaN where none was given."""
    return np.where(view.advice.given[..., None], view.advice.hint, np.nan)
