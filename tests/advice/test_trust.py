"""Trust in a teacher: what leads on, the test of following against leading on, and runs that use it."""

import dataclasses
import itertools
import json
import math
import statistics

import numpy as np
import pytest

import coterie
from coterie.advice.trust import SUMS, Trust, scores
from coterie.config import schema
from coterie.core.types import Advice, Experience, Finals, as_metrics, merge
from coterie.runs.run import Run
from coterie.training import loop
from coterie.training.build import build_groups, build_world
from coterie.training.runner import Runner
from helpers.run import numbers, written
from helpers.teacher import ADVISE, TABLE

TRUST = f"{ADVISE}.trust=true"


class Letters:
    """Numbers 0, 1, 2 … stand for a, b, c …; 9 is another number of the text a."""

    prompt = ""

    def states(self, observation):
        return observation[:, 0].astype(np.int64)

    def describe(self, number):
        return "a" if number == 9 else "abcdefgh"[number]

    def samples(self):
        return []


def rollout(seen, reward=None, terminated=None, followed=None, active=None, ratio=1.0, given=None, acting=True):
    """One copy and agent with two actions; `seen` has one row more than there are steps, `followed` is p(action)."""
    steps = len(seen) - 1
    shape = (steps, 1, 1)

    def rows(values, default, dtype):
        return np.reshape(np.full(steps, default) if values is None else values, shape).astype(dtype)

    p = rows(followed, 0.5, np.float32)
    given = rows(given, True, bool)
    advice = Advice(given, np.stack([p, 1 - p], axis=-1), np.where(given, np.float32(2), np.float32(0)))
    end = rows(terminated, False, bool)
    observation = np.reshape(seen, (steps + 1, 1, 1, 1)).astype(np.float32)
    finals = Finals(np.zeros((0, 2), np.int64), np.zeros((0, 1, 1), np.float32))
    own = np.log(p / np.reshape(ratio, (-1, 1, 1))).astype(np.float32)
    return Experience(
        observation,
        np.zeros(shape, np.int64),
        own,
        rows(reward, 0, np.float32),
        rows(active, True, bool),
        end,
        np.zeros(shape, bool),
        np.full((1, 1), acting),
        finals,
        advice=advice,
    )


def outcomes(trust, own):
    led_on, known = trust.outcomes(own, trust.look_up(own))
    return [int(one) if there else None for one, there in zip(led_on.ravel(), known.ravel(), strict=True)]


# What leads on ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ({"seen": [0, 0, 1, 0, 1, 2]}, [0, 1, 0, 0, 1]),  # b is new once: going to and fro does not lead on
        ({"seen": [0, 9, 1, 0]}, [0, 1, 0]),  # two numbers of one text
        ({"seen": [0, 1, 0, 1], "terminated": [0, 1, 0]}, [1, 0, 1]),  # an end forgets, and does not lead on
        ({"seen": [0, 1, 0], "terminated": [0, 1], "reward": [0, 1]}, [1, 1]),  # unless it pays
        ({"seen": [0, 0, 0], "reward": [-1, 0.5]}, [0, 1]),
        # The agent waits for another: what comes until its next decision belongs to its last one.
        ({"seen": [0, 5, 1, 5, 1], "active": [1, 0, 1, 0], "reward": [0, 0, 0, 1]}, [1, None, 1, None]),
        ({"seen": [0, 5, 5], "active": [1, 0], "terminated": [0, 1], "reward": [0, 2]}, [1, None]),
        ({"seen": [0, 0, 1], "acting": False}, [0, None]),  # pending: nothing is known yet
    ],
)
def test_decisions_that_lead_on(parts, expected):
    assert outcomes(Trust(Letters()), rollout(**parts)) == expected


def test_text_states_of_an_episode_are_remembered_from_one_rollout_to_the_next():
    trust = Trust(Letters())
    assert outcomes(trust, rollout([0, 1, 2])) == [1, 1]
    assert outcomes(trust, rollout([2, 1, 3, 0], terminated=[0, 0, 1])) == [0, 1, 0]
    assert outcomes(trust, rollout([0, 1, 2])) == [1, 1]  # a new episode


def test_pending_decisions_are_counted_once():
    """A rollout of a turn-based world begins with the decisions that the last one left open."""
    trust = Trust(Letters())
    trust.weigh(rollout([0, 5], acting=False))
    assert trust.sums[:, 0, 0].tolist() == [0]
    trust.weigh(rollout([0, 1, 5], acting=False))
    assert dict(zip(trust.places, trust.sums[:, 0, 0].tolist(), strict=True)) == {"a": 1, "b": 0}
    assert trust.given == 1


# Scores -------------------------------------------------------------------------------------------------------------


def sums_of(x, y):
    x, y = np.asarray(x, float), np.asarray(y, float)
    return np.array([len(x), y.sum(), x.sum(), (x * y).sum(), (x * x).sum(), (x * x * y).sum()])


def test_the_score_by_hand():
    # (x − x̄)(y − ȳ): 3/8, 1/8, −1/8, 1/8; z = (1/2) / √(12/64)
    assert scores(sums_of([1, 0, 1, 0], [1, 0, 0, 0])) == pytest.approx(0.5 / math.sqrt(12 / 64))
    assert scores(sums_of([1, 0, 1, 0], [0, 1, 1, 1])) == pytest.approx(-0.5 / math.sqrt(12 / 64))


def test_scores_of_sums_are_those_of_the_decisions():
    random = np.random.default_rng(0)
    x, y = random.random((7, 40)) * 8, random.random((7, 40)) < 0.2
    each = (x - x.mean(axis=1, keepdims=True)) * (y - y.mean(axis=1, keepdims=True))
    wanted = each.sum(axis=1) / np.sqrt((each**2).sum(axis=1))
    np.testing.assert_allclose(scores(np.stack([sums_of(*rows) for rows in zip(x, y, strict=True)])), wanted)


@pytest.mark.parametrize(("x", "y"), [([], []), ([0.5], [1]), ([0.5, 0.5], [0, 1]), ([0.1, 0.9], [1, 1])])
def test_where_nothing_varies_there_is_no_evidence(x, y):
    assert scores(sums_of(x, y)) == 0


# Trust --------------------------------------------------------------------------------------------------------------


def test_advice_is_weighed_by_the_smaller_score():
    trust, followed, ratio = Trust(Letters()), [0.1, 0.9, 0.9, 0.1, 0.5], [1.0, 3.0, 1.0, 2.0, 1.0]
    own = rollout([0, 0, 0, 1, 1, 1], terminated=[0, 0, 0, 0, 0], followed=followed, ratio=ratio)
    weighed = trust.weigh(own)
    by_probability, by_ratio = (float(scores(sums_of(x[:3], [0, 0, 1]))) for x in (followed, ratio))
    assert by_ratio < 0 < by_probability
    low = math.erfc(-by_ratio / math.sqrt(2))
    np.testing.assert_allclose(weighed.advice.strength.ravel(), [2 * low] * 3 + [2, 2], rtol=1e-5)
    np.testing.assert_array_equal(own.advice.strength, 2)  # what was recorded stays
    assert (trust.given, trust.weight) == (5, pytest.approx(3 * low + 2))


def test_decisions_without_advice_are_not_counted():
    trust = Trust(Letters())
    weighed = trust.weigh(rollout([0, 0, 1, 0], given=[0, 1, 0]))
    assert weighed.advice.strength.ravel().tolist() == [0, 2, 0]
    assert trust.sums[:, 0, :2].tolist() == [[1, 1], [0, 0]]
    assert trust.given == 1
    assert trust.sums.shape == (2, 2, SUMS)


def test_its_state_is_all_that_it_knows():
    one, other = Trust(Letters()), Trust(Letters())
    random = np.random.default_rng(1)

    def more():
        return rollout(random.integers(0, 4, 30), followed=random.uniform(0.1, 0.9, 29))

    one.weigh(more())
    other.load(json.loads(json.dumps(one.state(), default=np.ndarray.tolist)) | one.state())
    own = more()
    np.testing.assert_array_equal(one.weigh(own).advice.strength, other.weigh(own).advice.strength)
    np.testing.assert_equal(one.state(), other.state())


def test_a_wrong_skill_loses_trust_in_one_rollout_without_a_reward():
    """Seed 103 has wrong skills in both texts of the key. The student knows nothing yet; rewards are left out."""
    words = ["groups.agent.advisor.noise=0.3", "groups.agent.advisor.trust=true", "seed=103"]
    config = schema.load("doorkey5-teacher", words)
    world = build_world(config.world, 16)
    (group,) = build_groups(config, world)
    advisor = group.actor.advisor
    own = Runner(world, [group.actor], 103).play(64, 1, 0.0).experiences["agent"]
    weighed = advisor.weigh(dataclasses.replace(own, reward=np.zeros_like(own.reward)))
    source, trust = advisor.skill_source, dict(zip(advisor.trust.places, advisor.trust.factors(), strict=True))
    wrong = {source.codec.describe(n) for n in source.numbers[source.shifts > 0].tolist()}
    to_key = "You hold nothing. You can go to a key."
    pick_up = "You hold nothing. You can pick up the key in front of you."
    to_door = "You hold a key. You can go to a door."
    to_open = "You hold a key. You can open the door in front of you."
    assert {to_key, pick_up} <= wrong
    assert not {to_door, to_open} & wrong
    assert max(trust[to_key], trust[pick_up]) < 0.01
    assert (trust[to_door], trust[to_open]) == (1, 1)
    mean = (weighed.advice.strength / own.advice.strength).mean()
    assert as_metrics(advisor.metrics())["advice/trust"] == pytest.approx(mean, abs=1e-5)


# Against the guide, written again ------------------------------------------------------------------------------------

COPIES, AGENTS, STEPS, ACTIONS = 4, 2, 120, 3


@dataclasses.dataclass
class Game:
    """What happened to agents that sometimes wait for each other: arrays `[STEPS, COPIES, AGENTS, …]`."""

    number: np.ndarray  # of the text state; one row more
    acts: np.ndarray  # one row more
    action: np.ndarray
    own: np.ndarray  # the policy's probabilities
    advice: np.ndarray  # the teacher's
    given: np.ndarray
    reward: np.ndarray  # arrived after the step
    terminated: np.ndarray
    truncated: np.ndarray


def game(random):
    shape = STEPS, COPIES, AGENTS
    number = random.choice([0, 0, 0, 1, 1, 2, 3, 9], (STEPS + 1, *shape[1:]))
    terminated, cut = random.random(shape) < 0.06, random.random(shape) < 0.03
    own, advice = (random.dirichlet(np.ones(ACTIONS), shape) for _ in range(2))
    reward = random.choice([0, 0, 0, 0, 0, 0, 0, 1, -1, -0.5], shape)
    acts = random.random((STEPS + 1, *shape[1:])) < 0.7
    acts[0] = True
    acts[1:] |= terminated | cut  # an episode begins with a decision
    action = random.integers(ACTIONS, size=shape)
    return Game(number, acts, action, own, advice, random.random(shape) < 0.8, reward, terminated, cut & ~terminated)


def weights_by_the_guide(played, until):
    """Each text state's factor of λ after so many steps, decision by decision, from the guide's sentences."""
    found = {}  # text -> advised decisions: how far each followed, by both measures, and whether it led on
    for n, a in np.ndindex(COPIES, AGENTS):
        met, latest, earned = set(), None, 0.0

        def close(led_on, t, n=n, a=a):
            if played.given[t, n, a]:
                taken = played.action[t, n, a]
                told, own = played.advice[t, n, a, taken], played.own[t, n, a, taken]
                found.setdefault(text_at(t, n, a), []).append((told, told / own, led_on))

        def text_at(t, n=n, a=a):
            return Letters().describe(int(played.number[t, n, a]))

        for t in range(until + 1):
            if played.acts[t, n, a]:
                if latest is not None:
                    close(text_at(t) not in met or earned > 0, latest)
                met, latest, earned = met | {text_at(t)}, t, 0.0
            if t == until:
                break
            earned += played.reward[t, n, a]
            if played.terminated[t, n, a] or played.truncated[t, n, a]:
                if latest is not None:
                    close(earned > 0, latest)
                met, latest = set(), None
    factors = {}
    for text, decisions in found.items():
        *measures, y = np.array(decisions, float).T
        parts = [(x - x.mean()) * (y - y.mean()) for x in measures]
        z = min(part.sum() / np.sqrt((part**2).sum()) if (part**2).sum() > 1e-9 else 0.0 for part in parts)
        factors[text] = min(1.0, 2 * statistics.NormalDist().cdf(z))
    return factors


def recorded(played, first, last, copies, opening):
    """The rollout of these steps and copies; `opening` has the steps of decisions that were left open before, or −1."""
    steps = slice(first, last)

    def rows(array, open_row):
        return np.concatenate([open_row[None], array[steps, copies]])

    def at_opening(array):
        n, a = np.indices(opening.shape)
        return array[opening.clip(0), np.arange(COPIES)[copies][n], a]

    earned = np.zeros(opening.shape)
    for n, a in np.argwhere(opening >= 0):
        earned[n, a] = played.reward[opening[n, a] : first, np.arange(COPIES)[copies][n], a].sum()
    action, own, told = (rows(part, at_opening(part)) for part in (played.action, played.own, played.advice))
    active = rows(played.acts, opening >= 0)
    given = rows(played.given, at_opening(played.given)) & active
    numbers = np.concatenate([at_opening(played.number)[None], played.number[first : last + 1, copies]])
    nothing = np.zeros(opening.shape, bool)
    strength = np.where(given, np.float32(2), np.float32(0))
    log_prob = np.log(np.take_along_axis(own, action[..., None], axis=-1)[..., 0])
    return Experience(
        numbers[..., None].astype(np.float32),
        action,
        log_prob,
        rows(played.reward, earned),
        active,
        rows(played.terminated, nothing),
        rows(played.truncated, nothing),
        played.acts[last, copies],
        Finals(np.zeros((0, 2), np.int64), np.zeros((0, *opening.shape[1:], 1), np.float32)),
        advice=Advice(given, told, strength),
    )


def still_open(played, until):
    """The step of each agent's decision that neither its next one nor an end has closed; −1: there is none."""
    found = np.full((COPIES, AGENTS), -1)
    for t in range(until):
        found = np.where(played.acts[t], t, found)
        found = np.where(played.terminated[t] | played.truncated[t], -1, found)
    return np.where(played.acts[until], -1, found)


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_weights_are_those_of_the_guide(seed, shards):
    """Rollouts of uneven lengths, agents that wait, shards, and a resume after each one."""
    played, trust, least = game(np.random.default_rng(seed)), Trust(Letters()), 1.0
    for first, last in itertools.pairwise([0, 1, 13, 40, 41, 90, STEPS]):
        opening = still_open(played, first) if first else np.full((COPIES, AGENTS), -1)
        parts = [slice(k * COPIES // shards, (k + 1) * COPIES // shards) for k in range(shards)]
        own = merge([recorded(played, first, last, copies, opening[copies]) for copies in parts])
        weighed = trust.weigh(own)
        factors = weights_by_the_guide(played, last)
        wanted = np.zeros(own.active.shape)
        for place in np.argwhere(own.advice.given):
            text = Letters().describe(int(own.observation[tuple(place)][0]))
            wanted[tuple(place)] = 2 * factors.get(text, 1.0)
        np.testing.assert_allclose(weighed.advice.strength, wanted, rtol=1e-5)
        least = min([least, *factors.values()])
        trust, before = Trust(Letters()), trust
        trust.load(before.state())
    assert least < 0.5  # some advice looks wrong, by chance


# Runs ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path):
    return written(tmp_path / "taught.yaml", TABLE)


@pytest.mark.slow
def test_a_killed_run_goes_on_as_if_nothing_had_happened(path, monkeypatch):
    words = [TRUST, f"{ADVISE}.noise=0.5", f"{ADVISE}.use.frames=200"]
    straight = coterie.train(str(path), words, out=path.parent / "straight", quiet=True)
    advance = loop.Training.advance

    def breaking(self):
        if self.iteration == 5:
            raise InterruptedError
        return advance(self)

    monkeypatch.setattr(loop.Training, "advance", breaking)
    with pytest.raises(InterruptedError):
        coterie.train(str(path), words, out=path.parent / "broken", quiet=True)
    monkeypatch.setattr(loop.Training, "advance", advance)
    broken = Run.open(path.parent / "broken")
    coterie.resume(broken.path, quiet=True)
    apart = [[{k: v for k, v in r.items() if "/lm/" not in k} for r in numbers(run)] for run in (broken, straight)]
    assert apart[0] == apart[1]
    trusted = [record["team/advice/trust"] for record in straight.metrics() if "team/advice/trust" in record]
    assert 0 < min(trusted) < 1
    off = coterie.train(str(path), words[1:], out=path.parent / "off", quiet=True)
    assert "team/advice/trust" not in off.metrics()[-1]
    kinds = ["team/advice/kl", "team/policy_loss"]
    assert [[r.get(k) for k in kinds] for r in off.metrics()] != [[r.get(k) for k in kinds] for r in straight.metrics()]


@pytest.mark.slow
def test_trust_does_not_depend_on_the_number_of_workers(path, forked):
    words = [TRUST, f"{ADVISE}.noise=0.5", "train.shards=2", f"{ADVISE}.use.frames=1000"]
    alone, apart = (
        coterie.train(str(path), [*words, f"train.workers={count}"], out=path.parent / str(count), quiet=True)
        for count in (0, 2)
    )
    summed = ("/lm/", "/advice/kl")  # over processes: the last bit depends on the order
    learned = [
        [{k: v for k, v in record.items() if not any(name in k for name in summed)} for record in numbers(run)]
        for run in (alone, apart)
    ]
    assert learned[0] == learned[1]
    assert 0 < learned[0][-1]["team/advice/trust"] < 1
