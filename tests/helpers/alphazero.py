"""Learners of search players, games that they watch, and a record of everything that was played."""

from dataclasses import replace

import numpy as np

from coterie.algorithms.alphazero.alphazero import AlphaZero, AlphaZeroSettings, PositionReplaySettings
from coterie.core.decisions import Joint
from coterie.policies.scripted import RandomPolicy, RandomSettings
from coterie.policies.search.networks import PositionNetworkSettings
from coterie.policies.search.policy import SearchPolicy, SearchSettings
from coterie.preferences.standard import Individual, IndividualSettings
from coterie.training.runner import Runner
from coterie.worlds.boards.tictactoe import Tictactoe, TictactoeSettings
from helpers.small_worlds import actors, generator, spec_in

MLP = PositionNetworkSettings(kind="mlp", hidden=(16,))
SMALL = {"batch_size": 16, "updates_per_step": 0.1, "replay": PositionReplaySettings(2000, 20)}


def make_learner(world=None, columns=None, search=None, **settings):
    world = world or Tictactoe(TictactoeSettings(first="random"), 4)
    where = replace(spec_in(world, columns), simultaneous=False)
    policy = SearchPolicy(SearchSettings(**{"simulations": 6, "network": MLP} | (search or {})), where)
    return AlphaZero(AlphaZeroSettings(**SMALL | settings), policy, where, Individual(IndividualSettings()))


class Watched:
    """A runner whose learner stores every rollout, and the list of all decisions that were made."""

    def __init__(self, one, seed=0):
        self.one, self.world = one, one.group_spec.world
        table = [(one.group_spec, one.policy)]
        if not one.group_spec.whole:
            other = spec_in(self.world, [1 - one.group_spec.columns[0]], group="other")
            table.append((other, RandomPolicy(RandomSettings(), other)))
        self.runner = Runner(self.world, actors(*table), seed)
        self.running = [[] for _ in range(self.world.num_envs)]  # decisions of each copy's present game
        self.finished = []  # (decision, outcome)

    def play(self, steps, iteration):
        """One rollout, watched from outside; returns the experience."""
        act, step = self.one.policy.act, self.world.step

        def watched_act(view):
            decision = act(view)
            for n, a in zip(*np.nonzero(view.acting), strict=True):
                trace = {name: column[n, a].copy() for name, column in decision.trace.items()}
                seen = {"observation": view.observation[n, a].copy(), "legal": view.mask[n, a].copy()}
                self.running[n].append(trace | seen | {"column": int(view.columns[a])})
            return decision

        def watched_step(actions):
            made = step(actions)
            for n in np.flatnonzero(made.ended):
                rewards = made.agent_types["player"].reward[n]
                self.finished += [(d, float(rewards[d["column"]])) for d in self.running[n]]
                self.running[n] = []
            return made

        self.one.policy.act, self.world.step = watched_act, watched_step
        try:
            return self.runner.play(steps, iteration, 0.0).decisions["team"]
        finally:
            del self.one.policy.act, self.world.step

    def expected(self, root_value=0.0):
        """What the replay must hold: rows of (observation, legal, policy, target) of finished full searches."""
        rows = [
            np.concatenate(
                [d["observation"], d["legal"], d["policy"], [(1 - root_value) * won + root_value * d["value"]]]
            )
            for d, won in self.finished
            if d["full"]
        ]
        return in_order(rows)


def stored(one):
    rows = one.replay.rows
    return in_order(
        [
            np.concatenate([rows.observation[i], rows.legal[i], rows.policy[i], rows.target[i : i + 1]])
            for i in range(one.replay.size)
        ]
    )


def in_order(rows):
    table = np.array(rows, np.float32).reshape(-1, 18 + 9 + 9 + 1)
    return table[np.lexsort(np.round(table, 4).T)]


def learn(one, own, seed=0, iteration=1, progress=0.0):
    joint = Joint({"team": own}, iteration, progress, {"team": one.group_spec.spaces})
    return one.learn(own, joint, generator(seed))
