"""Potential-based shaping: what it adds, what it leaves as it is, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

import coterie
from coterie.config import schema
from coterie.config.schema import ConfigError
from coterie.core.types import Box, Discrete, Finals
from coterie.lm.ask.budget import BudgetSettings
from coterie.lm.ask.loading import LMSettings
from coterie.policies.scripted import RandomPolicy, RandomSettings
from coterie.training import build
from coterie.training.runner import Runner
from helpers.dqn import learn, make_learner, random_rollout
from helpers.reward import potential, shaped
from helpers.small_worlds import Rounds, actors, experience, group_spec, spec_in

SEEN = Box((3,), 0.0, 100.0)
TABLE = """\
world: {name: gridworld, grid_size: 5, num_agents: 2, max_steps: 8, mode: cooperative}
groups:
  team:
    policy: {hidden: [8]}
    learner: {name: ppo}
    preference:
      name: potential_shaping
      lm: "helpers.reward:GRADER"
      codec: "helpers.reward:Corner"
      calibration: none
      examples: none
train: {num_envs: 4, rollout_steps: 8, total_steps: 64, evaluate_episodes: 4, video: false, tensorboard: false}
"""


def numbers(values):
    """Observations `[…, 3]` whose middle number is described."""
    seen = np.zeros((*np.shape(values), 3), np.float32)
    seen[..., 1] = values
    return seen


# What is promised -------------------------------------------------------------------------------------------


def best_values(reward, chances, gamma):
    """Q* [S, A] by value iteration; the last state is an end."""
    value = np.zeros(len(reward))
    for _ in range(2000):
        quality = (chances * (reward + gamma * value)).sum(axis=2)
        quality[-1] = 0
        value = quality.max(axis=1)
    return quality


@pytest.mark.slow
def test_the_best_policies_are_the_same_under_any_potential():
    """Ng, Harada & Russell 1999, theorem 1, through the rewards that a learner would see."""
    world = Rounds()
    for seed in range(20):
        random = np.random.default_rng(seed)
        states, actions, gamma = 6, 3, 0.9
        chances = random.dirichlet(np.full(states, 0.5), size=(states, actions))  # [S, A, S']
        reward = random.normal(size=(states, actions, states))
        shown_numbers = random.uniform(-5, 15, size=states)  # what decides Φ, any number
        shaping = shaped(spec_in(world), gamma, weight=float(random.uniform(0.5, 20)))
        seen = np.zeros((2, states * states, 1, 3), np.float32)
        seen[0, :, 0, 1], seen[1, :, 0, 1] = np.repeat(shown_numbers, states), np.tile(shown_numbers, states)
        ended = np.zeros((1, states * states, 1), bool)
        ended[0, states - 1 :: states] = True  # the last state is an end
        pairs = replace(
            experience(np.zeros((1, 1))),
            observation=seen,
            reward=np.zeros(ended.shape, np.float32),
            active=np.ones(ended.shape, bool),
            terminated=ended,
            truncated=np.zeros(ended.shape, bool),
            acting=np.ones(ended.shape[1:], bool),
        )
        added = shaping.rewards(pairs).reshape(states, 1, states).astype(float)
        plain, bent = best_values(reward, chances, gamma), best_values(reward + added, chances, gamma)
        assert (plain.argmax(axis=1) == bent.argmax(axis=1))[:-1].all()
        given = shaping.settings.weight * np.array([potential(f"{number:g}") for number in shown_numbers])
        np.testing.assert_allclose(bent[:-1], (plain - given[:, None])[:-1], atol=1e-4)  # Q′ = Q − Φ
        assert np.abs(added).max() > 0.1


def discounted(own, added, finals, gamma):
    """Of every finished episode of every agent: Σ γᵏ F, Φ of its first decision, and γᵏ Φ of where it was cut, or 0."""
    found = []
    for n in range(own.active.shape[1]):
        for a in range(own.active.shape[2]):
            total, count, first = 0.0, 0, None
            for t in range(len(own.active)):
                if own.active[t, n, a]:
                    first = potential(f"{own.observation[t, n, a, 1]:g}") if first is None else first
                    total += gamma**count * added[t, n, a]
                    count += 1
                if own.ends[t, n, a]:
                    cut = own.truncated[t, n, a]
                    rest = gamma**count * potential(f"{finals[t, n][a, 1]:g}") if cut else 0.0
                    if first is not None:
                        found.append((total, first, rest))
                    total, count, first = 0.0, 0, None
    return np.array(found)


def play(rollouts, steps):
    world = Rounds(num_envs=3, length=7)
    where = spec_in(world)
    shaping = shaped(where)
    runner = Runner(world, actors((where, RandomPolicy(RandomSettings(), where))), seed=0)
    return shaping, [runner.play(steps, i + 1).experiences["team"] for i in range(rollouts)]


def test_what_is_added_telescopes_over_an_episode():
    """Σ γᵏ F = −Φ(s₀), and + γᵏ Φ(s_k) where it was cut short, in a world of turns with idle ticks."""
    shaping, (own,) = play(1, 40)
    added = shaping.rewards(own).astype(float) - own.reward
    finals = {tuple(i): seen for i, seen in zip(own.finals.index.tolist(), own.finals.observation, strict=True)}
    sums = discounted(own, added, finals, 0.9)
    assert len(sums) > 30
    assert (sums[:, 2] < 0).sum() > 8
    np.testing.assert_allclose(
        sums[:, 0], sums[:, 2] - sums[:, 1], atol=2e-5
    )  # rewards are of some hundreds, in float32


def test_decisions_left_open_are_shaped_once_in_the_next_rollout():
    shaping, (long,) = play(1, 40)
    other, short = play(8, 5)
    closed, parts = long.closed(), [own.closed() for own in short]
    whole = (shaping.rewards(long) - long.reward)[closed]
    pieces = [(other.rewards(own) - own.reward) for own in short]
    sequences = [
        np.concatenate([p[c[:, n, a], n, a] for p, c in zip(pieces, parts)]) for n in range(3) for a in range(3)
    ]
    expected = [(shaping.rewards(long) - long.reward)[closed[:, n, a], n, a] for n in range(3) for a in range(3)]
    for mine, wanted in zip(sequences, expected, strict=True):
        np.testing.assert_allclose(mine, wanted, atol=1e-4)
    assert len(whole) == sum(map(len, sequences))
    assert all(not piece[~part].any() for piece, part in zip(pieces, parts, strict=True))  # nothing for open ones


def test_at_a_cut_the_last_observation_counts():
    final = Finals(np.array([[1, 0]]), numbers([[9]]))
    own = experience([[1.0], [2.0]], truncated=[(1, 0)], observation=numbers([[[2]], [[4]], [[0]]]), finals=final)
    added = shaped(spec_in(Rounds()), gamma=0.5).rewards(own)[:, 0, 0] - [1, 2]
    np.testing.assert_allclose(added, [0.5 * potential(4) - potential(2), 0.5 * potential(9) - potential(4)], atol=1e-6)


# Settings ---------------------------------------------------------------------------------------------------


def one_step(**settings):
    own = experience([[0.0]], observation=numbers([[[2]], [[8]]]))
    return float(shaped(spec_in(Rounds()), gamma=1.0, **settings).rewards(own)[0, 0, 0])


def test_weight_and_values_of_grades():
    rise = potential(8) - potential(2)
    assert one_step() == pytest.approx(rise, abs=1e-6)
    assert one_step(weight=3.0) == pytest.approx(3 * rise, abs=1e-6)
    assert one_step(grade_values=(-1.0, 1.0)) == pytest.approx(2 * rise, abs=1e-6)


def test_template_examples_calibration_and_normalisation_reach_the_model(tmp_path):
    plain = one_step()
    assert one_step(calibration="batch") != pytest.approx(plain, abs=1e-3)
    template = tmp_path / "t.txt"
    template.write_text("{examples}\n{state} or rather x = 5\nGrade:\n")
    assert one_step(template=str(template)) == pytest.approx(0, abs=1e-6)  # it heard 5 both times
    examples = tmp_path / "e.txt"
    examples.write_text("x = 1 => low\n")
    shaping = shaped(spec_in(Rounds()), examples=str(examples))
    assert "x = 1\nAction: low" in shaping.scorer.template.prompt("x = 2")
    assert one_step(normalize="mean") != pytest.approx(plain, abs=1e-3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weight": 0.0}, "weight must be above 0"),
        (
            {"grade_values": (1.0, 0.0)},
            r"grade_values must not fall from the worst grade to the best, got \[1.0, 0.0\]",
        ),
        ({"grade_values": (0.0, 1.0, 2.0)}, "grade_values must hold one number for each of low, high"),
        ({"codec": "Ungraded"}, "'numbers' has no grades"),
        ({"calibration": "batch", "template": "no-such"}, "template: .*'no-such'"),
    ],
)
def test_what_cannot_be_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        shaped(spec_in(Rounds()), **settings)


def test_a_refusal_names_its_path():
    made = schema.load("gridworld-cooperative", ["groups.team.preference.name=potential_shaping"])
    world = build.build_world(made.world, 1)
    with pytest.raises(ConfigError, match=r"groups.team.preference: codec: 'gridworld' has no grades"):
        build.build_groups(made, world)


# What a model does not say ------------------------------------------------------------------------------------


def test_an_abstention_is_no_number():
    """Both transitions that touch the unjudged state go without, and are counted."""
    lm = LMSettings("helpers.reward:GRADER", budget=BudgetSettings(calls=2))
    own = experience([[0.0]] * 4, observation=numbers([[[1]], [[1]], [[2]], [[3]], [[1]]]))
    shaping = shaped(spec_in(Rounds()), gamma=1.0, lm=lm)
    added = shaping.rewards(own)[:, 0, 0]
    rise = potential(2) - potential(1)
    np.testing.assert_allclose(added, [0, rise, 0, 0], atol=1e-6)  # 3 was not asked about any more
    assert shaping.metrics()["judge/abstentions"] == 0.5
    assert shaping.metrics()["judge/bonus_mean"] == pytest.approx(rise / 4)


def test_every_description_is_asked_about_once_and_raw_rewards_stay():
    own = experience(np.arange(6.0)[:, None], observation=numbers(np.array([1, 1, 2, 1, 2, 7, 7])[:, None, None]))
    before = own.reward.copy()
    shaping = shaped(spec_in(Rounds()))
    for _ in range(2):
        assert not np.array_equal(shaping.rewards(own), before)
    assert np.array_equal(own.reward, before)
    metrics = shaping.metrics()
    assert (metrics["judge/distinct"], metrics["judge/texts"], metrics["judge/lm/calls"]) == (3, 3, 3)
    assert metrics["judge/accuracy"] == 1.0  # it says high where the number is above 5


# In a run ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_learns_from_it_and_records_raw_returns(tmp_path):
    (tmp_path / "table.yaml").write_text(TABLE)
    runs = {}
    for weight in (1.0, 5.0):
        words = [f"groups.team.preference.weight={weight}"]
        runs[weight] = coterie.train(str(tmp_path / "table.yaml"), words, out=tmp_path / f"{weight}", quiet=True)
    light, heavy = (run.metrics() for run in runs.values())
    assert light[1]["team/judge/distinct"] > 5
    assert light[-1]["team/judge/texts"] == 5  # rows of a grid of 5
    assert light[-1]["team/judge/abstentions"] == 0
    assert light[1]["team/return_mean"] == heavy[1]["team/return_mean"]  # of the same first rollout
    assert heavy[1]["team/judge/bonus_mean"] == pytest.approx(5 * light[1]["team/judge/bonus_mean"]) != 0
    ends = [run.load_checkpoint("last")["policies"]["team"] for run in runs.values()]
    assert str(ends[0]) != str(ends[1])  # it reached the learner


def test_q_learning_replays_shaped_rewards():
    shaping = shaped(spec_in(Rounds()))
    one = make_learner(group_spec(observation=SEEN, action=Discrete(3)), preference=shaping, n_steps=1)
    own = random_rollout(one)
    own = replace(
        own,
        observation=np.abs(own.observation) % 10,
        finals=replace(own.finals, observation=np.abs(own.finals.observation) % 10),
    )
    learn(one, own)
    kept = one.replays[0].rows.reward[: one.replays[0].size]
    plain = make_learner(group_spec(observation=SEEN, action=Discrete(3)), n_steps=1)
    learn(plain, own)
    world = plain.replays[0].rows.reward[: plain.replays[0].size]
    added = (shaping.rewards(own) - own.reward)[own.closed()]
    assert len(kept) > 0.8 * len(added)  # the latest decisions wait for their next ones
    assert np.abs((kept - world)[:, None] - added).min(axis=1).max() < 1e-3
    assert np.abs(kept - world).max() > 0.1
