"""Small games that DQN must learn within seconds, and tables that it shares with other policies."""

import dataclasses

import numpy as np
import pytest

from coterie.config.schema import ConfigError
from coterie.core.types import Discrete
from coterie.policies.scripted import RandomPolicy, RandomSettings
from coterie.training.runner import Runner
from coterie.worlds.boards.tictactoe import Tictactoe, TictactoeSettings
from helpers.dqn import learn, make_learner, q_network
from helpers.run import train as train_run
from helpers.run import written
from helpers.small_worlds import Bandit, Rounds, actors, spec_in

FIELDS = {"learning_rate": 0.01, "updates_per_step": 0.1, "batch_size": 32, "n_steps": 1, "target": {"interval": 20}}


def play(world, iterations=30, steps=4, parameters="shared", opponents=(), network=None, columns=None, **fields):
    """Train a group for some iterations, at the table with others; returns its seats and its learner."""
    where = spec_in(world, columns, parameters=parameters)
    where = dataclasses.replace(where, simultaneous=world.simultaneous)
    policy = q_network(where, **network or {})
    one = make_learner(where, policy=policy, **FIELDS | fields)
    table = actors((where, policy), *opponents)
    runner = Runner(world, table, seed=0)
    for i in range(iterations):
        own = runner.play(steps, i).decisions["team"]
        learn(one, own, i, progress=i / iterations, ahead=(i + 1) / iterations)
    return table, one


def greedily(world, table, steps=2):
    return Runner(world, table, seed=1, greedy=True).play(steps, 0)


@pytest.mark.slow
@pytest.mark.parametrize("network", [{}, {"compiled": False}, {"dueling": False}], ids=str)
def test_learns_a_bandit(network):
    payoff = np.array([0.0, 0.2, 1.0, 0.5])
    world = Bandit(Discrete(4), lambda a: payoff[a], num_envs=16)
    table, _ = play(world, network=network)
    assert (greedily(world, table).decisions["team"].action == 2).all()


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("parameters", ["shared", "individual"])
def test_agents_with_equal_views_learn_to_act_differently(parameters, compiled):
    wanted = np.array([0, 2])
    world = Bandit(Discrete(3), lambda a: (a == wanted) * 1.0, num_envs=16, agents=2)
    table, _ = play(world, parameters=parameters, network={"compiled": compiled})
    assert (greedily(world, table).decisions["team"].action == wanted).all()


class Turns(Rounds):
    """Whoever moves is paid for playing 3, but only on the other's tick."""

    owed = 0

    def step(self, actions):
        moving = np.arange(self.agents) == (self.clock % self.agents)[:, None]
        owed = np.where(moving, actions["player"] == 3, self.owed)
        timestep = super().step(actions)
        agent_step = timestep.agent_types["player"]
        paid = np.where(moving, 0, self.owed).astype(np.float32)
        self.owed = np.where(timestep.ended[:, None], 0, np.where(moving, owed, 0))
        return dataclasses.replace(timestep, agent_types={"player": dataclasses.replace(agent_step, reward=paid)})


@pytest.mark.parametrize("n_steps", [1, 3])
def test_learns_where_agents_take_turns_from_what_arrives_while_idle(n_steps):
    world = Turns(num_envs=16, agents=2, length=8)
    fields = {"gamma": 0.9, "n_steps": n_steps, "target": {"update": "soft", "tau": 0.05}}
    table, _ = play(world, steps=7, iterations=40, **fields)  # rollouts end in the middle of things
    own = greedily(world, table, 16).decisions["team"]
    paid = own.valid & (own.observation[:-1, ..., 1] < 7)  # a decision at the last tick is never paid
    assert (own.action[paid] == 3).mean() > 0.95


@pytest.mark.slow
def test_learns_tictactoe_for_a_moment():
    """Against random play: far better than random play itself, and never an illegal move."""
    world = Tictactoe(TictactoeSettings(first="random"), 64)
    other = spec_in(world, [1], "other")
    rival = RandomPolicy(RandomSettings(), other)
    fields = {"columns": [0], "opponents": [(other, rival)], "network": {"hidden": (64,)}, "gamma": 0.95, "n_steps": 2}
    fields |= {"learning_rate": 2e-3, "batch_size": 64, "updates_per_step": 0.03, "replay": {"size": 5000}}
    table, one = play(world, 60, 12, epsilon={"fraction": 0.3}, **fields)
    returns = greedily(world, table, 100).episodes.returns["team"]
    assert returns.mean() > 0.5  # random play wins and loses as often
    rows = one.replays[0].rows
    assert not rows.next_mask[: one.replays[0].size].all()


TABLE = """\
world: {name: gridworld, mode: competitive, num_agents: 4, grid_size: 4, max_steps: 12}
groups:
  values: {agents: agent_0, policy: {name: q_network, hidden: [8]},
           learner: {name: dqn, replay: {size: 90, learning_starts: 9}}}
  actors: {agents: [agent_1, agent_2], policy: {name: network, hidden: [8]}, learner: {name: ppo}}
  script: {agents: agent_3, policy: {name: expert}}
train: {num_envs: 4, rollout_steps: 8, total_steps: 192, evaluate_episodes: 4, evaluate_every: 3, checkpoint_every: 3,
        video: false, tensorboard: false}
"""


@pytest.mark.slow
def test_sits_beside_ppo_and_a_script_at_one_table(tmp_path):
    run = train_run(tmp_path / "run", experiment=written(tmp_path / "table.yaml", TABLE))
    last = run.metrics()[-1]
    assert last["values/updates"] == 8
    assert last["actors/decisions"] == 64
    assert {"values/loss", "values/q_mean", "values/td_error", "values/epsilon", "values/replay"} <= last.keys()
    assert run.summary()["evaluation"]["groups"].keys() == {"values", "actors", "script"}
    first, final = (run.load_checkpoint("last")["policies"], run.load_checkpoint("best")["policies"])
    assert first["values"].keys() == final["values"].keys() >= {"net", "normalizer", "epsilon"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["groups.values.policy={name: network}"], "learner 'dqn' improves a QNetworkPolicy, not"),
        (["groups.actors.policy={name: q_network}"], "learner 'ppo' improves a NetworkPolicy, not"),
        (["groups.values.learner.epsilon.star=0.5"], "did you mean 'start'"),
        (["groups.values.learner.replay.learning_starts=91"], "learning_starts must be at most size"),
        (["groups.values.learner.mixer=vdm"], "groups.values.learner.mixer"),
        (["world.messages=2"], r"groups.values.policy: .*MultiDiscrete"),
    ],
)
def test_a_table_that_cannot_be_is_refused_before_it_starts(tmp_path, words, said):
    with pytest.raises(ConfigError, match=said):
        train_run(tmp_path / "run", *words, experiment=written(tmp_path / "table.yaml", TABLE))
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_team_that_takes_turns_cannot_be_mixed(tmp_path):
    duel = "world: {name: tictactoe}\ngroups: {all: {policy: {name: q_network}, learner: {name: dqn, mixer: qmix}}}\n"
    with pytest.raises(ConfigError, match=r"groups\.all\.learner: mixer=qmix"):
        train_run(tmp_path / "run", experiment=written(tmp_path / "duel.yaml", duel))
