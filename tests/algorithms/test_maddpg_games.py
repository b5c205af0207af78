"""Small games that MADDPG must learn within seconds, and tables with other learners."""

import numpy as np
import pytest

import coterie
from coterie.config.schema import ConfigError
from coterie.core.types import Box, CoterieError, Discrete
from coterie.preferences.prospect import NEUTRAL, Prospect
from coterie.preferences.standard import (
    CPT,
    CPTSettings,
    CVaR,
    CVaRSettings,
    Individual,
    IndividualSettings,
    MeanVariance,
    MeanVarianceSettings,
)
from coterie.training import build
from coterie.training.runner import Runner
from coterie.worlds.auction.best_responses import (
    best_response,
    bid_function,
    interim_utility,
    l2_distance,
    win_probability_against,
)
from coterie.worlds.auction.equilibria import symmetric_equilibrium
from coterie.worlds.auction.world import Auction, AuctionSettings
from helpers.dqn import view
from helpers.maddpg import at_one_table, deterministic, learn, make_learner
from helpers.run import train as train_run
from helpers.run import written
from helpers.small_worlds import Bandit, actors, spec_in

FIELDS = {
    "learning_rate": 3e-3,
    "updates_per_step": 0.2,
    "batch_size": 64,
    "replay": {"size": 2000, "learning_starts": 64},
}


def play(world, iterations=40, steps=4, parameters="shared", network=None, preference=None, **fields):
    """Train one group of all agents for some iterations; returns its actors and its learner."""
    (where,) = at_one_table(spec_in(world, parameters=parameters))
    policy = deterministic(where, **{"hidden": (32,), "normalize_observations": False} | (network or {}))
    one = make_learner(where, preference, policy, **FIELDS | fields)
    table = actors((where, policy))
    runner = Runner(world, table, seed=0)
    for i in range(iterations):
        own = runner.play(steps, i).decisions["team"]
        learn(one, own, i, progress=i / iterations, ahead=(i + 1) / iterations)
    return table, one


def greedily(world, table, steps=2):
    return Runner(world, table, seed=1, greedy=True).play(steps, 0).decisions["team"].action


@pytest.mark.slow
@pytest.mark.parametrize("network", [{}, {"compiled": False}, {"squash": "clip"}], ids=str)
def test_learns_a_point_of_a_box(network):
    wanted = np.array([0.5, 4.0])
    box = Box((2,), np.array([-1.0, 0.0], np.float32), np.array([1.0, 5.0], np.float32))
    wide = np.array([2.0, 5.0])
    world = Bandit(box, lambda a: -(((a - wanted) / wide) ** 2).sum(-1), num_envs=16)
    table, _ = play(world, network=network)
    assert (np.abs(greedily(world, table) - wanted) < 0.08 * wide).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parameters", "compiled", "centralized"),
    [
        *(("shared", True, centralized) for centralized in (True, False)),
        *(("individual", True, centralized) for centralized in (True, False)),
        ("shared", False, True),
        ("individual", False, False),
    ],
)
def test_agents_with_equal_views_learn_to_choose_differently(parameters, compiled, centralized):
    wanted = np.array([0, 2])
    world = Bandit(Discrete(3), lambda a: (a == wanted) * 1.0, num_envs=16, agents=2)
    table, _ = play(world, parameters=parameters, network={"compiled": compiled}, critic={"centralized": centralized})
    assert (greedily(world, table) == wanted).all()


@pytest.mark.slow
def test_a_central_critic_credits_what_only_both_together_bring():
    """The reward is the product of both actions: an agent's own action alone does not predict it."""
    world = Bandit(Box((1,), -1.0, 1.0), lambda a: np.repeat(a.prod(axis=1), 2, axis=1), num_envs=32, agents=2)
    table, _ = play(world, iterations=60, noise={"start": 0.5, "end": 0.2})
    done = greedily(world, table)
    assert (np.abs(done) > 0.8).all()
    assert (done[:, :, 0] * done[:, :, 1] > 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("hurdle", [False, True])
def test_approaches_the_equilibrium_of_a_first_price_auction(hurdle):
    world = Auction(AuctionSettings(), 256)
    fields = {"learning_rate": 2e-3, "batch_size": 256, "updates_per_step": 0.01, "replay": {"size": 20_000}}
    fields |= {"critic": {"centralized": False, "hidden": (32, 32), "hurdle": hurdle}, "scale_by_std": hurdle}
    fields |= {"noise": {"start": 0.3, "end": 0.05, "fraction": 0.7}}
    network = {"hidden": (16,), "activation": "tanh", "squash": "clip", "identity": False}
    table, _ = play(world, 100, 8, network=network, learning_rate_schedule="linear", **fields)
    model, policy = world.settings.model, table[0].policy

    def bid(values):
        return policy.act(view(values.astype(np.float32)[:, None, None])).action[:, 0, 0]

    mine, ideal = bid_function(model, bid), symmetric_equilibrium(model)
    assert l2_distance(mine.bids, ideal(mine.values)) < 0.04


@pytest.mark.slow
def test_bids_on_a_grid_are_learned_by_the_expectation_over_all_bids():
    world = Auction(AuctionSettings(bid_levels=11), 256)
    fields = {"learning_rate": 2e-3, "batch_size": 128, "updates_per_step": 0.01, "replay": {"size": 20_000}}
    fields |= {"critic": {"centralized": True, "hidden": (32, 32), "hurdle": True, "learning_rate": 5e-3}}
    fields |= {"choices": {"gradient": "expected", "entropy_start": 0.1, "entropy_end": 0.02, "fraction": 0.8}}
    network = {"hidden": (16,), "activation": "tanh", "identity": False}
    table, _ = play(world, 60, 8, network=network, learning_rate_schedule="linear", **fields)
    model, policy = world.settings.model, table[0].policy
    mine = bid_function(
        model, lambda values: policy.act(view(values.astype(np.float32)[:, None, None])).action[:, 0] / 10
    )
    values, against = (np.arange(200) + 0.5) / 200, win_probability_against([mine])
    bids = np.rint(mine(values) * 10) / 10
    earned = interim_utility(model, NEUTRAL, values, bids, against).mean()
    best = best_response(model, NEUTRAL, values, against, 11).utility.mean()
    assert best - earned < 0.08 * best  # 0.04 here; the gradient through drawn bids leaves 0.15


@pytest.mark.slow
def test_prospect_theorists_approach_their_own_equilibrium():
    """By chance and amount, with networks that bend: the best straight line is 0.04 off."""
    world = Auction(AuctionSettings(), 256)
    fields = {"learning_rate": 3e-4, "batch_size": 256, "updates_per_step": 0.02, "replay": {"size": 16_000}}
    fields |= {
        "critic": {"centralized": False, "hidden": (32, 32), "hurdle": True, "quantiles": 1, "learning_rate": 2e-3}
    }
    fields |= {
        "noise": {"start": 0.2, "end": 0.02, "fraction": 0.3},
        "policy_delay": 2,
        "preference": CPT(CPTSettings()),
    }
    network = {"hidden": (64,), "activation": "tanh", "squash": "clip", "identity": False, "random_feature_init": 2.0}
    network |= {"normalize_observations": False}
    table, _ = play(world, 150, 8, network=network, learning_rate_schedule="linear", **fields)
    model, policy = world.settings.model, table[0].policy

    def bid(values):
        return policy.act(view(values.astype(np.float32)[:, None, None])).action[:, 0, 0]

    mine, ideal = bid_function(model, bid), symmetric_equilibrium(model, Prospect())
    assert l2_distance(mine.bids, ideal(mine.values)) < 0.025


# Risk ------------------------------------------------------------------------------------------------------

RISKY = {"gamma": 0.0, "critic": {"centralized": False, "hidden": (32, 32), "quantiles": 4}, "updates_per_step": 0.5}


class Lottery(Bandit):
    """An action of one number in [0, 1] buys that share of a lottery, if it is held; the rest is kept."""

    def __init__(self, prize, chance, price, num_envs=64, held=1.0):
        random = np.random.default_rng(0)

        def paid(a):
            drawn = (random.random(a.shape) < chance) * prize - price
            return (a * (random.random(a.shape) < held) * drawn)[..., 0]

        super().__init__(Box((1,), 0.0, 1.0), paid, num_envs=num_envs)


def share_bought(world, preference, **critic):
    network = {"squash": "clip", "activation": "tanh"}
    fields = RISKY | {"critic": RISKY["critic"] | critic}
    table, _ = play(world, 60, 4, preference=preference, network=network, **fields)
    return float(greedily(world, table).mean())


@pytest.mark.slow
def test_prospect_theorists_play_the_lottery_and_others_do_not():
    """A chance of 5% to win 18 for 1: unfair, but overweighted."""
    assert share_bought(Lottery(18.0, 0.05, 1.0), Individual(IndividualSettings())) < 0.4
    assert share_bought(Lottery(18.0, 0.05, 1.0), CPT(CPTSettings(loss_aversion=1.0))) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize(("quantiles", "buys"), [(4, True), (1, False)])
def test_behind_a_hurdle_amounts_are_judged_one_by_one(quantiles, buys):
    """Half of the time the lottery above is not held. One amount for all that may be won is its mean, a small loss."""
    bought = share_bought(
        Lottery(18.0, 0.05, 1.0, held=0.5), CPT(CPTSettings(loss_aversion=1.0)), hurdle=True, quantiles=quantiles
    )
    assert (bought > 0.9) if buys else (bought < 0.1)


@pytest.mark.slow
def test_losses_loom_larger_than_gains():
    """An even chance to win 3 for a stake of 1.2."""
    assert share_bought(Lottery(3.0, 0.5, 1.2), Individual(IndividualSettings())) > 0.9
    assert share_bought(Lottery(3.0, 0.5, 1.2), CPT(CPTSettings())) < 0.1


@pytest.mark.slow
def test_cvar_and_variance_leave_the_gamble():
    """The mean of it is 0.5 and its variance 6.25: half of it is best at an aversion of 0.08."""
    world = Lottery(5.0, 0.5, 2.0)
    assert share_bought(world, CVaR(CVaRSettings(level=0.4))) < 0.1
    assert share_bought(world, MeanVariance(MeanVarianceSettings(aversion=0.08))) == pytest.approx(0.5, abs=0.25)


def refused(table, **fields):
    return {"where": table, "preference": CPT(CPTSettings()), "gamma": 0.0, "critic": {"centralized": False}} | fields


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"critic": {"centralized": True}}, r"critic\.centralized=false"),
        ({"critic": {"centralized": False, "quantiles": 1}}, r"critic\.quantiles=null for 8"),
    ],
)
def test_a_risk_measure_needs_a_critic_that_predicts_distributions(fields, said):
    with pytest.raises(ValueError, match=said):
        make_learner(**refused(spec_in(Lottery(1, 1, 1)), **fields))


def test_one_amount_is_refused_where_something_always_comes(tmp_path):
    """In an all-pay auction every bid is paid: the outcome is v − b or −b, which differs from its mean."""
    words = ["world.rule=all_pay", "train.total_steps=4096", "train.video=false"]
    said = r"groups\.bidders\.learner\.critic\.hurdle=false groups\.bidders\.learner\.critic\.quantiles=8"
    with pytest.raises(CoterieError, match=said):
        coterie.train("auction-cpt", words, out=tmp_path / "run", quiet=True)


@pytest.mark.slow
def test_interim_is_refused_where_decisions_follow_each_other(tmp_path):
    risk = (
        "critic: {centralized: false}, replay: {size: 90, learning_starts: 9}, gamma: GAMMA}, preference: {name: cpt}}"
    )
    text = CHASE.replace("replay: {size: 90, learning_starts: 9}, update_every: 2}}", risk, 1)
    with pytest.raises(ConfigError, match=r"groups.hunters.preference.scope: .*hunters.learner.gamma=0"):
        train_run(tmp_path / "run", experiment=written(tmp_path / "one.yaml", text.replace("GAMMA", "0.9")))
    assert not (tmp_path / "run").exists()
    run = train_run(tmp_path / "other", experiment=written(tmp_path / "two.yaml", text.replace("GAMMA", "0.0")))
    assert run.metrics()[-1]["hunters/updates"] > 0  # each decision by its own reward


# Tables ----------------------------------------------------------------------------------------------------

MIXED = """\
world: {name: tag, num_good: 2, num_adversaries: 3, max_steps: 6}
groups:
  chief: {agents: adversary_0, policy: {name: deterministic, hidden: [8]}, learner: {name: maddpg, batch_size: 8,
          updates_per_step: 0.1, replay: {size: 90, learning_starts: 9}}}
  hunters: {agents: [adversary_1, adversary_2], policy: {name: network, hidden: [8]}, learner: {name: ppo}}
  script: {agents: agent_0, policy: {name: expert}}
  values: {agents: agent_1, policy: {name: q_network, hidden: [8]},
           learner: {name: dqn, replay: {size: 90, learning_starts: 9}}}
train: {num_envs: 4, rollout_steps: 8, total_steps: 192, evaluate_episodes: 4, evaluate_every: 3, checkpoint_every: 3,
        video: false, tensorboard: false}
"""
CHASE = """\
world: {name: tag, max_steps: 6}
groups:
  hunters: {agents: "adversary_*", policy: {name: deterministic, hidden: [8]}, learner: {name: maddpg, batch_size: 8,
            updates_per_step: 0.1, replay: {size: 90, learning_starts: 9}, update_every: 2}}
  prey: {agents: agent_0, policy: {name: deterministic, hidden: [8]}, learner: {name: maddpg, batch_size: 8,
         updates_per_step: 0.1, replay: {size: 90, learning_starts: 9}, update_every: 2, update_offset: 1}}
train: {num_envs: 4, rollout_steps: 8, total_steps: 192, evaluate_episodes: 4, evaluate_every: 3, checkpoint_every: 3,
        video: false, tensorboard: false}
"""


@pytest.mark.slow
def test_learns_with_ppo_dqn_and_a_script_at_one_table(tmp_path):
    run = train_run(tmp_path / "run", experiment=written(tmp_path / "table.yaml", MIXED))
    last = run.metrics()[-1]
    assert last["chief/updates"] >= 3
    assert last["hunters/decisions"] == 64
    assert {"chief/critic_loss", "chief/q_mean", "chief/td_error", "chief/actor_q", "chief/noise"} <= last.keys()
    assert run.summary()["evaluation"]["groups"].keys() == {"chief", "hunters", "script", "values"}
    rows = run.load_checkpoint("last")["learners"]["chief"]["replay"]["rows"]
    assert rows["observation"].shape[1] == 3 * 20 + 2 * 18  # everybody's
    assert rows["action"].shape[1] == 5 * 5


@pytest.mark.slow
def test_groups_take_turns(tmp_path):
    run = train_run(tmp_path / "run", experiment=written(tmp_path / "table.yaml", CHASE))
    learned = [[g for g in ("hunters", "prey") if record.get(f"{g}/updates")] for record in run.metrics()[1:]]
    assert learned == [["prey"], ["hunters"]] * 3


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("world: {name: tag, max_steps: 6}", "world: {name: tictactoe}", "no agent is called"),
        ("deterministic", "network", r"learner 'maddpg' improves a DeterministicPolicy.*policy.name=deterministic"),
        ("batch_size: 8", "batch_sise: 8", r"learner.batch_sise: no such setting; did you mean 'batch_size'"),
        ("update_every: 2", "update_every: 0", "update_every must be at least 1"),
    ],
)
def test_bad_tables_are_refused(tmp_path, old, new, said):
    text = CHASE.replace(old, new, 1)
    with pytest.raises(ConfigError, match=said):
        train_run(tmp_path / "run", experiment=written(tmp_path / "table.yaml", text))


def test_a_turn_based_world_is_refused(tmp_path):
    text = "world: {name: tictactoe}\ngroups: {all: {policy: {name: deterministic}, learner: {name: maddpg}}}\n"
    with pytest.raises(
        ConfigError, match=r"groups.all.learner: learner 'maddpg' needs a world in which all agents act"
    ):
        train_run(tmp_path / "run", experiment=written(tmp_path / "table.yaml", text))


WORDED = """\
world: {name: auction, num_bidders: 3}
groups:
  bidders: {agents: [bidder_0, bidder_1], policy: {name: deterministic, hidden: [8]}, learner: {name: maddpg,
            batch_size: 8, updates_per_step: 0.1, replay: {size: 90, learning_starts: 9}}}
  model: {agents: bidder_2, policy: {name: language, lm: "helpers.maddpg:BIDDER"}}
train: {num_envs: 4, rollout_steps: 8, total_steps: 192, evaluate_episodes: 4, evaluate_every: 3, checkpoint_every: 3,
        video: false, tensorboard: false}
"""


@pytest.mark.slow
def test_a_central_critic_reads_what_a_language_model_did(tmp_path):
    """Two agents' observations and actions, and those of the language model."""
    run = train_run(tmp_path / "run", experiment=written(tmp_path / "words.yaml", WORDED))
    last = run.metrics()[-1]
    assert last["bidders/updates"] >= 3
    assert last["model/lm/calls"] > 0
    assert last["model/abstentions"] == 0
    table = coterie.load(run.path, "last")
    learner = build.build_groups(table.config, build.build_world(table.config.world, 4))[0].learner
    assert learner.critics[0].net.module.sizes[0] == 3 * 2 + 2  # what three see and do, and which of the two it values
