"""Episodic risk measures: rewards at episode ends, unfinished episodes, exact gradients, learning with PPO."""

import dataclasses
import itertools

import numpy as np
import pytest

import coterie
from coterie.core.group import RiskParameters
from coterie.core.types import Discrete
from coterie.preferences import prospect
from coterie.preferences.episodic import EpisodeReturns
from coterie.preferences.prospect import Prospect, value
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
from coterie.runs.run import Run
from coterie.training import loop
from coterie.training.runner import Runner
from helpers.ppo import actor, critic, learn, make_learner, random_rollout, watch
from helpers.run import DUEL, ODD, assert_same_end, written
from helpers.small_worlds import (
    Bandit,
    Numbered,
    Rounds,
    actors,
    experience,
    generator,
    group_spec,
    joint,
    network,
    spec_in,
)

DEFAULT = CPT(CPTSettings(scope="episodic"))
WORST = CVaR(CVaRSettings(scope="episodic", level=0.4))
STEADY = MeanVariance(MeanVarianceSettings(scope="episodic", aversion=0.5))
RISKS = {"cpt": DEFAULT, "cvar": WORST, "mean_variance": STEADY}


# What ends pay ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("risk", RISKS.values(), ids=RISKS)
def test_ends_pay_what_the_whole_return_moves_and_nothing_else_pays(risk):
    own = experience([[1], [2], [-5], [0.5], [4], [9]], terminated=[(1, 0), (4, 0)], truncated=[(2, 0)])
    judged, metrics = EpisodeReturns(risk, 1).replace_rewards(own)
    returns = np.array([3.0, -5.0, 4.5])
    expected = np.zeros(6)
    expected[[1, 2, 4]] = risk.influence(returns)
    np.testing.assert_allclose(judged.reward[:, 0, 0], expected, rtol=1e-6)
    assert metrics == {"episodes_judged": 3.0, "risk_value": pytest.approx(float(risk.value(returns)))}
    assert own.reward[:, 0, 0].tolist() == [1, 2, -5, 0.5, 4, 9]  # what is stored stays
    assert judged.reward.dtype == np.float32


def test_a_cut_off_episode_is_over():
    own = experience([[1], [2]], truncated=[(0, 0)])
    judged, _ = EpisodeReturns(DEFAULT, 1).replace_rewards(own)
    assert judged.terminated[:, 0, 0].tolist() == [True, False]
    assert not judged.truncated.any()
    assert own.truncated.any()


def test_where_no_episode_ends_nothing_is_paid():
    outcomes = EpisodeReturns(DEFAULT, 1)
    judged, metrics = outcomes.replace_rewards(experience([[1], [2]]))
    assert not judged.reward.any()
    assert metrics == {"episodes_judged": 0.0}
    assert outcomes.running.tolist() == [[3.0]]


def test_agents_that_share_parameters_are_ranked_together_others_apart():
    own = experience([[1, -8], [2, 3], [6, 0]], terminated=[(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)])
    together, _ = EpisodeReturns(DEFAULT, 1).replace_rewards(own)
    apart, metrics = EpisodeReturns(DEFAULT, 2).replace_rewards(own)
    first, second, every = [1.0, 2, 6], [-8.0, 3], [1.0, -8, 2, 3, 6]
    np.testing.assert_allclose(together.reward[own.ends], DEFAULT.influence(np.array(every)), rtol=1e-6)
    np.testing.assert_allclose(apart.reward[:, 0, 0], DEFAULT.influence(np.array(first)), rtol=1e-6)
    np.testing.assert_allclose(apart.reward[:2, 0, 1], DEFAULT.influence(np.array(second)), rtol=1e-6)
    expected_value = (3 * DEFAULT.value(np.array(first)) + 2 * DEFAULT.value(np.array(second))) / 5
    assert metrics == {"episodes_judged": 5.0, "risk_value": pytest.approx(float(expected_value))}
    for parameters, parameter_sets in (("shared", 1), ("individual", 2)):
        one = make_learner(group_spec(parameters=parameters), DEFAULT, gamma=1.0)
        assert one.outcomes.parameter_sets == parameter_sets


# Episodes that span rollouts ------------------------------------------------------------------------------


def returns_of(world, steps):
    """Returns `[E, A]` of 60 steps in rollouts of some length, as accumulated here and as the runner reports them."""
    where = spec_in(world)
    runner, outcomes = Runner(world, actors((where, Numbered())), 0), EpisodeReturns(DEFAULT, 1)
    found, reported = [], []
    for i in range(60 // steps):
        rollout = runner.play(steps, i)
        own = rollout.experiences["team"]
        at = own.ends.all(axis=2)
        assert np.array_equal(at, own.ends.any(axis=2))
        found.append(outcomes.returns(own)[at])
        reported.append(rollout.episodes.returns["team"])
    return np.concatenate(found), np.concatenate(reported)


@pytest.mark.parametrize("steps", [1, 2, 5, 60])
def test_returns_are_whole_however_long_rollouts_are(steps):
    """In turn-based worlds the reward of an open decision appears in two rollouts and must count once."""
    for world in (Rounds(), Rounds(agents=1, length=4)):
        found, reported = returns_of(world, steps)
        assert len(found) > 15
        np.testing.assert_allclose(found, reported, rtol=1e-6)
    world = Bandit(Discrete(2), lambda a: a + 0.5, num_envs=3, agents=2)
    np.testing.assert_allclose(*returns_of(world, steps))


def test_idle_agents_are_paid_at_the_end_for_their_latest_decision():
    """The second agent's episode ends while it waits: its decision at row 0 takes what the end pays."""
    own = experience(
        [[0, 1], [5, 2], [0, -3]], active=[[0, 1], [1, 0], [0, 0]], terminated=[(2, 0), (2, 1)], acting=[True, False]
    )
    one = make_learner(
        group_spec(), DEFAULT, gamma=1.0, gae_lambda=1.0, normalize_returns=False, minibatches=1, epochs=1
    )
    seen = watch(one)
    learn(one, own)
    paid = DEFAULT.influence(np.array([5.0, 0.0]))
    found = seen[0].part.advantage + seen[0].part.value
    np.testing.assert_allclose(np.sort(found[0]), np.sort(paid), atol=1e-5)


def test_what_is_carried_is_saved():
    one, other = EpisodeReturns(DEFAULT, 1), EpisodeReturns(DEFAULT, 1)
    one.replace_rewards(experience([[1], [2]]))
    saved = one.state()
    one.running += 100  # a copy was saved
    other.load(saved)
    judged, _ = other.replace_rewards(experience([[4]], terminated=[(0, 0)]))
    assert judged.reward[0, 0, 0] == pytest.approx(7**0.88)
    other.load(EpisodeReturns(DEFAULT, 1).state())
    assert other.running is None


@pytest.mark.slow
@pytest.mark.parametrize("game", ["odd", "duel"])
def test_broken_off_and_resumed_a_run_comes_to_the_same_end(tmp_path, monkeypatch, game):
    text = (ODD if game == "odd" else DUEL).replace("{name: ppo", "{name: ppo, gamma: 1.0")
    text = text.replace("learner: {", "preference: {name: cpt, scope: episodic, reference: 3.0}, learner: {")
    file = str(written(tmp_path / "a.yaml", text))
    whole = coterie.train(file, out=tmp_path / "whole", quiet=True)
    real = loop.Training.advance

    def advance(self):
        if self.iteration == 3:
            raise InterruptedError
        return real(self)

    monkeypatch.setattr(loop.Training, "advance", advance)
    with pytest.raises(InterruptedError):
        coterie.train(file, out=tmp_path / "broken", quiet=True)
    monkeypatch.setattr(loop.Training, "advance", real)
    coterie.resume(tmp_path / "broken", quiet=True)
    assert_same_end(Run.open(tmp_path / "broken"), whole)
    group = "all" if game == "odd" else "ring"
    saved = whole.load_checkpoint("last")["learners"][group]["outcomes"]["running"]
    assert saved.shape == (4, 2 if game == "odd" else 1)
    assert "risk_value" in " ".join(whole.metrics()[-1])


# The gradient -------------------------------------------------------------------------------------------


def softmax(logits):
    grown = np.exp(logits - logits.max())
    return grown / grown.sum()


class Bets:
    """A softmax over three lotteries; `paths` are (probability, return, score) of all that may happen."""

    size = 3
    lotteries = (((0.2, 1.0),), ((2.0, 0.3), (-0.5, 0.7)), ((6.0, 0.05), (-0.1, 0.95)))

    def paths(self, logits):
        chance = softmax(logits)
        for arm, lottery in enumerate(self.lotteries):
            for outcome, likely in lottery:
                yield chance[arm] * likely, outcome, np.eye(3)[arm] - chance


class Tree:
    """Two decisions of two choices: take 0.3 or gamble, then, if it was lost, stop or double up."""

    size = 4

    def paths(self, logits):
        first, second = softmax(logits[:2]), softmax(logits[2:])
        at_first = [np.r_[np.eye(2)[i] - first, 0, 0] for i in (0, 1)]
        at_second = [np.r_[0, 0, np.eye(2)[i] - second] for i in (0, 1)]
        yield first[0], 0.3, at_first[0]
        yield first[1] * 0.5, 1.0, at_first[1]
        yield first[1] * 0.5 * second[0], -1.0, at_first[1] + at_second[0]
        yield first[1] * 0.5 * second[1] * 0.4, 0.5, at_first[1] + at_second[1]
        yield first[1] * 0.5 * second[1] * 0.6, -3.0, at_first[1] + at_second[1]


def law(game, logits):
    chance, outcome, score = zip(*game.paths(logits), strict=True)
    assert sum(chance) == pytest.approx(1)
    return np.array(chance), np.array(outcome), np.array(score)


def slopes(function, logits, step=1e-5):
    return np.array(
        [(function(logits + step * e) - function(logits - step * e)) / (2 * step) for e in np.eye(len(logits))]
    )


PARAMETERS = [
    one.risk_parameters() for one in (Prospect(), Prospect(0.7, 0.9, 1.5, 0.5, 0.8, reference=0.1), prospect.NEUTRAL)
]
FEW = [*PARAMETERS, *(RiskParameters(level=level) for level in (0.1, 0.25, 0.4, 0.9)), RiskParameters(aversion=0.5)]
GAMES = [Bets(), Tree()]
EXACT = {
    "cpt": (DEFAULT, lambda x, p: value(DEFAULT.risk, x, p)),
    "cvar": (WORST, lambda x, p: value(WORST.risk, x, p)),
    "mean_variance": (STEADY, lambda x, p: value(STEADY.risk, x, p)),
}


@pytest.mark.parametrize("risk", FEW)
@pytest.mark.parametrize("game", GAMES, ids=["bets", "tree"])
def test_with_few_episodes_it_is_the_exact_gradient_of_the_expected_sample_value(game, risk):
    """E[Σ φᵢ ∇ log πᵢ / M] = ∇ E[V of M samples], every set of M = 4 episodes enumerated: no bias at all."""
    logits = np.random.default_rng(0).normal(size=game.size)
    every = np.array(list(itertools.product(range(len(list(game.paths(logits)))), repeat=4)))

    def expected_value(at):
        chance, outcome, _ = law(game, at)
        return float(chance[every].prod(axis=1) @ prospect.value_of_samples(risk, outcome[every]))

    chance, outcome, score = law(game, logits)
    phi = prospect.influence_of_samples(risk, outcome[every])
    gradient = np.einsum("s,sm,smd->d", chance[every].prod(axis=1), phi, score[every]) / 4
    np.testing.assert_allclose(gradient, slopes(expected_value, logits), atol=1e-8)


@pytest.mark.parametrize("episodes", [2, 4])
def test_cvar_of_few_episodes_teaches_too(episodes):
    """With fewer episodes than 1/level the worst one counts; were all of them to get the same, nobody would learn."""
    found = prospect.influence_of_samples(RiskParameters(level=0.25), np.arange(float(episodes)))
    assert found[0] < found[1]
    np.testing.assert_allclose(found[1:], found[1])


@pytest.mark.parametrize("risk", EXACT)
@pytest.mark.parametrize("game", GAMES, ids=["bets", "tree"])
def test_with_many_episodes_it_is_the_gradient_of_the_exact_value(game, risk):
    """As many of each outcome as its probability says."""
    judge, exact = EXACT[risk]
    logits = np.random.default_rng(1).normal(size=game.size)
    chance, outcome, score = law(game, logits)
    counts = np.round(chance * 200000).astype(int)
    phi = judge.influence(np.repeat(outcome, counts))
    each = phi[np.cumsum(counts) - 1]  # equal outcomes move alike
    gradient = (chance * each) @ score
    expected = slopes(lambda at: float(exact(law(game, at)[1], law(game, at)[0])), logits)
    np.testing.assert_allclose(gradient, expected, atol=2e-3 * np.abs(expected).max())
    assert np.abs(expected).max() > 0.01


# PPO follows it -----------------------------------------------------------------------------------------


def play(pay, preference, iterations=30, steps=8, num_envs=256, seed=0):
    """How often the second of two choices was taken in the last 10 iterations of a bandit."""
    world = Bandit(Discrete(2), pay, num_envs)
    where = spec_in(world, seed=seed)
    policy = network(where)
    settings = {"learning_rate_schedule": "constant", "entropy_coefficient": 0.0, "minibatches": 1}
    one = make_learner(where, preference, policy, gamma=1.0, learning_rate=0.01, **settings)
    runner = Runner(world, actors((where, policy)), seed)
    taken = []
    for i in range(iterations):
        own = runner.play(steps, i).experiences["team"]
        taken.append(own.action.mean())
        one.learn(own, joint(own), generator(i))
    return float(np.mean(taken[-10:]))


def bet(better, worse, chance, safe, seed=0):
    """The second choice is a lottery, the first is safe."""
    random = np.random.default_rng(seed)
    return lambda a: np.where(a == 1, np.where(random.random(a.shape) < chance, better, worse), safe)


PLAIN = Individual(IndividualSettings())


@pytest.mark.slow
def test_a_long_shot_is_taken_as_often_as_is_best():
    """It loses a little on average; prospect theory likes it, most of all a mixture that takes it 77% of the time."""
    shot = (98.9, -1.1, 0.01, 0.0)
    share = np.linspace(0, 1, 501)
    chances = np.stack([1 - share, share * 0.01, share * 0.99], axis=1)
    best = share[value(DEFAULT.risk, np.broadcast_to([0.0, 98.9, -1.1], chances.shape), chances).argmax()]
    assert best == pytest.approx(0.77, abs=0.01)
    assert play(bet(*shot), DEFAULT) == pytest.approx(best, abs=0.1)
    assert play(bet(*shot), PLAIN, iterations=60) < 0.25


@pytest.mark.slow
def test_a_gamble_with_a_gain_on_average_is_refused_out_of_loss_aversion():
    gamble = (1.5, -1.0, 0.5, 0.0)
    assert play(bet(*gamble), DEFAULT) < 0.05
    assert play(bet(*gamble), PLAIN) > 0.95
    bold = CPT(CPTSettings(scope="episodic", loss_aversion=1.0))
    assert play(bet(*gamble), bold) > 0.95


@pytest.mark.slow
def test_seen_from_a_higher_reference_the_gamble_is_taken():
    """From that reference point the sure gain is a sure loss, and the gamble may avoid it."""
    gamble = (3.0, -2.0, 0.5, 0.4)
    assert play(bet(*gamble), DEFAULT) < 0.05
    hopeful = CPT(CPTSettings(scope="episodic", reference=3.0, beta=0.5))
    assert play(bet(*gamble), hopeful) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("risk", [WORST, STEADY])
def test_the_safe_arm_is_preferred(risk):
    gamble = (3.0, -1.0, 0.5, 0.5)
    assert play(bet(*gamble), risk) < 0.05
    assert play(bet(*gamble), PLAIN) > 0.95


def test_nothing_is_bootstrapped_where_an_episode_is_cut_off(learner):
    """Cut off or ended by itself: the same, to the last bit. For who wants plain rewards it is not."""
    for preference, same in ((DEFAULT, True), (PLAIN, False)):
        cut, over = learner(preference=preference, gamma=1.0), learner(preference=preference, gamma=1.0)
        own = random_rollout(cut)
        learn(cut, dataclasses.replace(own, truncated=own.ends, terminated=np.zeros_like(own.ends)))
        learn(over, dataclasses.replace(own, terminated=own.ends, truncated=np.zeros_like(own.ends)))
        assert np.array_equal(actor(cut), actor(over)) == same
        assert np.array_equal(critic(cut), critic(over)) == same


def test_the_risk_measure_reaches_the_policy_and_the_metrics(learner):
    agent_types = (DEFAULT, CPT(CPTSettings(scope="episodic", loss_aversion=1.0)), WORST, STEADY)
    learners = [learner(preference=risk, gamma=1.0, learning_rate=0.01) for risk in (*agent_types, PLAIN)]
    own = random_rollout(learners[0])
    reported = [learn(one, own) for one in learners]
    for left, right in itertools.combinations(learners, 2):
        assert not np.array_equal(actor(left), actor(right))
    assert len({metrics["risk_value"] for metrics in reported[:4]}) == 4
    assert reported[0]["episodes_judged"] == own.ends.sum()
    assert "risk_value" not in reported[4]


def test_what_was_collected_before_counts(learner):
    """The same rollout after a richer one is another experience: its first ends close longer episodes."""
    one, other = (learner(preference=DEFAULT, gamma=1.0) for _ in range(2))
    own = random_rollout(one)
    for each, scale in ((one, 1), (other, 5)):
        each.apply_preference(dataclasses.replace(own, reward=own.reward * np.float32(scale)))
    assert not np.allclose(one.apply_preference(own)[0].reward, other.apply_preference(own)[0].reward)
