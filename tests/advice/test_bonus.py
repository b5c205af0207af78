"""Bonuses from comparisons and from instructions: what they are, how they are scaled and kept."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from test_shaping import numbers

import coterie
from coterie.advice.bonus import InstructionBonus, InstructionBonusSettings, PairwiseBonus, PairwiseBonusSettings
from coterie.core.types import Finals
from coterie.lm.ask.budget import BudgetSettings
from coterie.lm.ask.loading import LMSettings
from coterie.policies.scripted import RandomPolicy, RandomSettings
from coterie.runs.run import Run
from coterie.testing.sampling import random_experience
from coterie.training.runner import Runner
from helpers.dqn import learn, make_learner, q_network
from helpers.run import files, train, written
from helpers.run import numbers as numbers_of
from helpers.small_worlds import Rounds, actors, experience, spec_in

TABLE = """\
world: {name: gridworld, grid_size: 5, num_agents: 2, max_steps: 12, mode: cooperative}
groups:
  team:
    policy: {hidden: [8]}
    learner: {name: ppo}
    preference: {name: pairwise_lm, lm: "helpers.reward:COMPARER", codec: "helpers.reward:Corner", scale: deviation}
train: {num_envs: 4, rollout_steps: 8, total_steps: 256, evaluate_episodes: 4, evaluate_every: 2, checkpoint_every: 2,
        video: false, tensorboard: false}
"""


def preferred(codec="Stages", lm=None, **settings):
    lm = lm or LMSettings("helpers.reward:COMPARER")
    settings = PairwiseBonusSettings(lm=lm, codec=f"helpers.reward:{codec}", **settings)
    return PairwiseBonus(settings, spec_in(Rounds()), 0.9)


def instructed(codec="Instructed", **settings):
    given = {"calibration": "none", "examples": "none"} | settings
    lm = LMSettings("helpers.reward:FOLLOWER")
    settings = InstructionBonusSettings(lm=lm, codec=f"helpers.reward:{codec}", **given)
    return InstructionBonus(settings, spec_in(Rounds()), 0.9)


def seen_in_turn(values, **fields):
    """One agent that decides at every tick and sees these numbers."""
    return experience(np.zeros((len(values) - 1, 1)), observation=numbers(np.array(values)[:, None, None]), **fields)


# Comparisons --------------------------------------------------------------------------------------------------


def test_what_is_better_is_stronger_though_the_model_likes_a():
    bonus = preferred().rewards(seen_in_turn([0, 1, 5, 9, 4.5]))[:, 0, 0]
    assert bonus[0] < 0 < bonus[1] < bonus[2]
    np.testing.assert_allclose(bonus[3], 0, atol=1e-3)  # as good as the references on average: A or B does not matter
    np.testing.assert_allclose(bonus[2], -preferred().rewards(seen_in_turn([0, 0]))[0, 0, 0], atol=1e-3)


def test_bonus_is_for_where_a_decision_led_and_not_for_ends():
    final = Finals(np.array([[2, 0]]), numbers([[9]]))
    own = seen_in_turn([1, 8, 0, 0], terminated=[(1, 0)], truncated=[(2, 0)], finals=final)
    bonus = preferred(weight=2.0).rewards(own)[:, 0, 0]
    single = [preferred().rewards(seen_in_turn([0, number]))[0, 0, 0] for number in (8, 9)]
    np.testing.assert_allclose(bonus, [2 * single[0], 0, 2 * single[1]], atol=1e-5)


def test_a_new_description_costs_two_questions_for_each_reference():
    for references in (3, 6):
        bonus_of = preferred(references=references)
        bonus_of.rewards(seen_in_turn([0, 4.5, 4.5]))
        assert bonus_of.metrics()["judge/lm/calls"] == references * (references - 1) + 2 * references
        bonus_of.rewards(seen_in_turn([0, 4.5, 5.5]))
        assert bonus_of.metrics()["judge/lm/calls"] == references * (references - 1) + 4 * references


def test_strengths_do_not_depend_on_the_order_of_visits():
    one, other = preferred(), preferred()
    forth = one.rewards(seen_in_turn([0, 2.5, 3.5, 7.5]))[:, 0, 0]
    back = other.rewards(seen_in_turn([0, 7.5, 3.5, 2.5]))[::-1, 0, 0]
    assert np.array_equal(forth, back)


def test_pairs_in_their_true_order_are_counted():
    bonus_of = preferred()
    bonus_of.rewards(seen_in_turn([0, 1, 9, 2]))
    assert bonus_of.metrics()["judge/accuracy"] == 1.0


def test_comparisons_that_are_missing_give_no_bonus():
    bonus_of = preferred(references=3, lm=LMSettings("helpers.reward:COMPARER", budget=BudgetSettings(calls=12)))
    bonus = bonus_of.rewards(seen_in_turn([0, 4.5, 5.5]))[:, 0, 0]
    assert bonus[1] == 0 != bonus[0]
    assert bonus_of.metrics()["judge/abstentions"] == 0.5


# Instructions -------------------------------------------------------------------------------------------------


def asked(actions, **fields):
    """Copy 0 is instructed to choose 0."""
    action = np.array(actions)[:, None, None]
    return seen_in_turn(list(range(len(actions) + 1)), action=action, **fields)


def test_decisions_that_follow_the_instruction_are_paid():
    bonus_of = instructed(weight=10.0)
    bonus = bonus_of.rewards(asked([0, 1, 2, 4]))[:, 0, 0]
    np.testing.assert_allclose(bonus, [9, 1, 1, 0], atol=1e-5)  # the last one has no word
    assert bonus_of.metrics()["judge/actions_without_word"] == 1
    assert bonus_of.metrics()["judge/bonus_mean"] == pytest.approx(11 / 4)


def test_only_the_last_decision_of_an_episode_is_judged_at_the_end():
    own = asked([0, 0, 1, 0], terminated=[(1, 0)], truncated=[(2, 0)])
    np.testing.assert_allclose(instructed(when="end").rewards(own)[:, 0, 0], [0, 0.9, 0.1, 0], atol=1e-5)


def test_verdicts_are_calibrated():
    """Of 10 × 3 samples none follows an instruction (they name none), so that 'no' is a favourite."""
    bonus = instructed(calibration="batch").rewards(asked([0, 1]))[:, 0, 0]
    np.testing.assert_allclose(bonus, [81 / 82, 0.5], atol=1e-5)


@pytest.mark.parametrize("make", [preferred, instructed])
def test_template_examples_and_normalisation_reach_the_model(make, tmp_path):
    template = written(tmp_path / "mine.txt", "{examples}\nNow: {state}\nWell:\n")
    word = make().scorer.words[0]
    examples = written(tmp_path / "worked.txt", f"This and that. => {word}\n")
    scorer = make(template=str(template), examples=str(examples), normalize="mean").scorer
    assert scorer.template.prompt("?") == f"Now: This and that.\nWell: {word}\n\nNow: ?\nWell:"
    assert (scorer.normalize, make().scorer.normalize) == ("mean", "sum")


# Scaling and keeping --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [preferred, instructed])
def test_a_bonus_can_be_scaled_by_its_running_deviation(make):
    first, second = asked([0, 1, 2, 0, 0]), asked([1, 1, 0])
    plain, scaled = make(), make(scale="deviation")
    each = [plain.rewards(own)[:, 0, 0] for own in (first, second)]
    np.testing.assert_allclose(scaled.rewards(first)[:, 0, 0], each[0] / np.std(each[0]), rtol=1e-4)
    kept = scaled.state()
    after = scaled.rewards(second)
    np.testing.assert_allclose(after[:, 0, 0], each[1] / np.std(np.concatenate(each)), rtol=1e-4)
    again = make(scale="deviation")
    assert not np.array_equal(again.rewards(second), after)
    again.load(kept)
    assert np.array_equal(again.rewards(second), after)


@pytest.mark.slow
def test_killed_and_resumed_it_comes_to_the_same_end(tmp_path, monkeypatch):
    table = written(tmp_path / "table.yaml", TABLE)
    whole = train(tmp_path / "whole", experiment=table)
    rewards, seen = PairwiseBonus.rewards, []

    def dies(self, experience):
        seen.append(1)
        if len(seen) == 6:
            raise KeyboardInterrupt
        return rewards(self, experience)

    monkeypatch.setattr(PairwiseBonus, "rewards", dies)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "cut", experiment=table)
    monkeypatch.undo()
    assert coterie.resume(tmp_path / "cut", quiet=True)
    cut = Run.open(tmp_path / "cut")
    assert _learned(whole) == _learned(cut)
    ends = [run.load_checkpoint("last") for run in (whole, cut)]
    assert ends[0]["preferences"]["team"]["count"] > 0
    step = whole.steps()[-1]
    assert files(whole.checkpoint_path(step)) == files(cut.checkpoint_path(step))  # weights and all, bit for bit


def _learned(run):
    """The records without their clock, and without what was asked, which depends on what was already known."""
    return [{k: v for k, v in record.items() if "judge/" not in k or "bonus" in k} for record in numbers_of(run)]


# Accounting -----------------------------------------------------------------------------------------------------


def decisions_in_order(own):
    """Closed decisions of every agent by a plain loop: `(t, n, a)` → the number it sees next, None after a true end."""
    finals = {tuple(at): k for k, at in enumerate(own.finals.index.tolist())}
    found = {}
    for n in range(own.active.shape[1]):
        for a in range(own.active.shape[2]):
            opened = None
            for t in range(len(own.active)):
                if own.active[t, n, a]:
                    if opened is not None:
                        found[opened, n, a] = own.observation[t, n, a, 1]
                    opened = t
                if opened is not None and own.terminated[t, n, a]:
                    found[opened, n, a] = None
                elif opened is not None and own.truncated[t, n, a]:
                    last = own.observation[t + 1, n, a] if (t, n) not in finals else None
                    found[opened, n, a] = (own.finals.observation[finals[t, n], a] if last is None else last)[1]
                if own.ends[t, n, a]:
                    opened = None
            if opened is not None and own.acting[n, a]:
                found[opened, n, a] = own.observation[-1, n, a, 1]
    return found


@pytest.fixture(scope="module")
def strength():
    """The strength of each whole number up to 9, each judged by itself."""
    return [float(preferred().rewards(seen_in_turn([0, number]))[0, 0, 0]) for number in range(10)]


@pytest.mark.parametrize("scale", ["fixed", "deviation"])
def test_every_decision_is_paid_once_for_where_it_led(scale, strength):
    """Idle rows, deaths, limits with and without a last observation, decisions left open; against a plain loop."""
    bonus_of, every = preferred(scale=scale, weight=2.0), []
    for seed in range(4):
        own = random_experience(spec_in(Rounds()), RandomPolicy(RandomSettings(), spec_in(Rounds())), False, seed)
        whole = np.random.default_rng(seed).integers(10, size=own.observation.shape).astype(np.float32)
        last = np.random.default_rng(9 + seed).integers(10, size=own.finals.observation.shape).astype(np.float32)
        kept = slice(None, None, 2)  # the others see the next row as their last observation
        own = replace(own, observation=whole, finals=Finals(own.finals.index[kept], last[kept]))
        before = own.reward.copy()
        found = bonus_of.rewards(own)
        assert np.array_equal(own.reward, before)  # returns are counted from the world's rewards
        expected, paid = before.astype(float), {}
        for at, ahead in decisions_in_order(own).items():
            if ahead is not None:
                paid[at] = strength[int(ahead)]
        assert 0 < len(paid) < own.active.sum()
        every += paid.values()
        for at, amount in paid.items():
            expected[at] += 2 * (amount if scale == "fixed" else amount / np.std(every))
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("pieces", [(42,), (5, 1, 9, 2, 4, 1, 1, 12, 7)])
def test_transitions_hold_each_bonus_once_wherever_rollouts_are_cut(pieces, strength):
    """In turns: what an agent earns until its next decision, and the bonus for what it sees there."""
    world = Rounds(num_envs=2, agents=3, length=7)
    where = spec_in(world)
    policy = q_network(where, dueling=False)
    one = make_learner(where, preferred(), policy, n_steps=1, gamma=0.5, updates_per_step=1e-9)
    runner = Runner(world, actors((where, policy)), seed=0)
    for iteration, steps in enumerate(pieces):
        learn(one, runner.play(steps, iteration).experiences["team"])
    rows = one.replays[0].rows
    seen, known = Counter(), one.replays[0].size
    for now, reward, discount, agent in zip(rows.observation[:known, 0], rows.reward, rows.discount, rows.agent):
        copy, clock, number = (int(x) for x in now)
        assert (number, clock % 3) == (agent, agent)
        later = clock + 3 if clock + 3 < 7 else 7  # its next turn, or the episode's end
        earned = sum(100 * number + tick for tick in range(clock, later))
        if later < 7 or number == 0:  # agent 0 is cut by a limit, the others die
            assert discount == 0.5
            earned += strength[later]
        else:
            assert discount == 0
        assert reward == pytest.approx(earned, abs=1e-4)
        seen[copy, clock] += 1
    assert set(seen) == {(copy, clock) for copy in range(2) for clock in range(7)}
    assert max(seen.values()) - min(seen.values()) <= 1


# Refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: preferred(references=1), "references must be at least 2"),
        (lambda: preferred(weight=-1.0), "weight must be above 0"),
        (lambda: instructed("Stages"), "'numbers' gives no instructions"),
        (
            lambda: InstructionBonus(
                InstructionBonusSettings(codec="coterie.worlds.gridworld.text:GridworldText"), _grid(), 0.9
            ),
            "gives no instructions",
        ),
        (
            lambda: PairwiseBonus(PairwiseBonusSettings(codec="helpers.language:Numbers"), _grid(), 0.9),
            "no sample descriptions",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def _grid():
    from helpers.language import race

    return spec_in(race(1))
