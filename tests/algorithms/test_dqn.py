"""DQN: each step of an update against its definition, on both paths. Settings: `test_dqn_settings.py`."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch

from coterie.algorithms.divergence import Diverged
from coterie.algorithms.dqn.dqn import DQNHandOverSettings
from coterie.algorithms.dqn.transitions import Transitions
from coterie.core.decisions import Finals, Joint
from coterie.core.types import Box, CoterieError, Discrete
from coterie.nn import kernels
from coterie.preferences.standard import Individual, IndividualSettings, Team, TeamSettings
from coterie.testing.comparison import expect_equal, leaves
from helpers.dqn import (
    advised_spec,
    compiled,
    joint_of,
    learn,
    make_learner,
    q_network,
    random_rollout,
    target,
    values,
    weights,
    with_advice,
)
from helpers.small_worlds import experience, generator, group_spec

# Both paths --------------------------------------------------------------------------------------------


def cases():
    """An eighth of all combinations, chosen so that any three choices meet in every way."""
    for a, b, c, d, e in itertools.product([0, 1], repeat=5):
        f, g, h = a ^ b ^ c, b ^ c ^ d, c ^ d ^ e
        yield {
            "parameters": ("shared", "individual")[a],
            "dueling": bool(b),
            "double": bool(c),
            "replay": {"priority": (0.0, 0.6)[d], "size": 100},
            "n_steps": (1, 3)[e],
            "huber": (None, 0.5)[f],
            "target": ({"interval": 3}, {"update": "soft", "tau": 0.1})[g],
            "masked": bool(h),
        }


def odd_cases():
    yield {"hidden": (8, 12, 7)}
    yield {"hidden": (8, 12, 7), "activation": "tanh", "parameters": "individual"}
    yield {"hidden": (8, 1), "dueling": False}
    yield {"max_grad_norm": 0.01}
    yield {"batch_size": 1}
    yield {"batch_size": 700}
    yield {"agents": 1, "action": Discrete(1)}
    yield {"identity": False, "normalize_observations": False}
    yield {"observation": Box((2, 4, 4), 0, 255, "uint8"), "encoder": "mlp"}
    yield {"replay": {"size": 1}}


PLACE_FIELDS = ("parameters", "agents", "action", "observation")
POLICY_FIELDS = ("dueling", "hidden", "activation", "identity", "normalize_observations", "encoder")


@pytest.mark.slow
@pytest.mark.parametrize("case", [*cases(), *odd_cases()], ids=str)
def test_the_compiled_path_equals_autograd(case):
    case = dict(case)
    masked = case.pop("masked", False)
    where = group_spec(**{k: case.pop(k) for k in PLACE_FIELDS if k in case})
    fields = {k: case.pop(k) for k in POLICY_FIELDS if k in case}
    settings = {"learning_rate": 1e-3, "gamma": 0.9, "updates_per_step": 0.1} | case
    fast, slow = (make_learner(where, policy=q_network(where, compiled=c, **fields), **settings) for c in (True, False))
    assert (compiled(fast), compiled(slow)) == (True, False)
    for one in (fast, slow):
        one.policy.net.out.weight.data *= 4
        one.target_network.out.weight.data *= 2
    assert np.array_equal(weights(fast), weights(slow))
    first = weights(fast)
    for iteration in range(3):  # the later ones with observations normalised
        own = random_rollout(slow, iteration, masked)
        found = [learn(one, own, iteration, progress=0.3 * iteration) for one in (fast, slow)]
        assert found[0] == pytest.approx(found[1], abs=1e-5, rel=1e-4)
        assert found[0]["updates"] > 0
        for mine, theirs in ((fast.policy.flat, slow.policy.flat), (fast.target.flat, slow.target.flat)):
            assert np.array_equal(mine.steps, theirs.steps)
            assert np.abs(mine.array - theirs.array).max() < 1e-5
            assert np.abs(mine.mean - theirs.mean).max() < 1e-5
        for mine, theirs in zip(fast.replays, slow.replays, strict=True):
            assert np.allclose(mine.nodes, theirs.nodes, atol=1e-4)
            assert mine.top == pytest.approx(theirs.top, abs=1e-5)
    assert np.abs(weights(fast) - first).max() > 1e-3  # something was learned
    assert not np.array_equal(target(fast), first)


@pytest.mark.parametrize("parameters", ["shared", "individual"])
@pytest.mark.parametrize("dueling", [True, False])
def test_the_compiled_path_equals_autograd_with_advice_and_a_hand_over(dueling, parameters):
    where = advised_spec({"strength": 0.5, "final": 0.5}, parameters=parameters)
    hand_over = DQNHandOverSettings(warm_up=1 if dueling else 0, gap=0.5)
    fast, slow = (
        make_learner(where, compiled=compiled, dueling=dueling, updates_per_step=0.1, hand_over=hand_over)
        for compiled in (True, False)
    )
    for iteration in range(3):
        own = with_advice(random_rollout(slow, iteration))
        found = [learn(one, own, iteration) for one in (fast, slow)]
        assert found[0] == pytest.approx(found[1], abs=1e-5, rel=1e-4)
        assert found[0]["margin_loss"] > 0
        for name in ("array", "mean", "square"):
            mine, theirs = (getattr(one.policy.flat, name) for one in (fast, slow))
            assert np.abs(mine - theirs).max() < 1e-5


@pytest.mark.parametrize("mixer", ["none", "vdn"])
def test_the_margin_loss_puts_advised_actions_first(q_learner, mixer):
    """Whatever they earn; without the loss most states have another best action."""
    agreements = []
    for use in ({"strength": 0.0, "final": 1e-9}, {"final": 1.0}):
        one = q_learner(advised_spec(use), mixer=mixer, updates_per_step=2.0, learning_rate=3e-3)
        for iteration in range(6):
            own = with_advice(random_rollout(one, iteration))
            learn(one, own, iteration)
        best = values(one.policy, own.observation[0]).argmax(-1)
        agreements.append((best == own.advice.probabilities[0].argmax(-1)).mean())
    assert agreements[1] > 0.9
    assert agreements[0] < 0.6


def test_the_margin_loss_follows_its_schedule_while_nobody_gives_advice(q_learner):
    """The replay holds advised decisions of before."""
    one = q_learner(advised_spec({"strength": 1.0, "final": 0.0}), replay={"learning_starts": 1})
    own = random_rollout(one)
    assert learn(one, with_advice(own))["margin_loss"] > 0
    assert one.advice == 1
    assert learn(one, own, progress=0.75)["margin_loss"] > 0
    assert one.advice == 0.25
    assert "margin_loss" not in learn(one, own, progress=1.0)


def test_without_scipy_everything_goes_through_pytorch(monkeypatch):
    monkeypatch.setattr(kernels, "available", lambda: False)
    one = make_learner()
    assert not compiled(one)
    learn(one, random_rollout(one))


# The update --------------------------------------------------------------------------------------------

NETWORK = {"now": ([1.0, 2.0, 0.0], [0.0, 0.0, 1.0]), "target": ([0.5, -1.0, 3.0], [1.0, 0.0, 0.0])}


def by_hand(q_learner, dueling=False, **settings):
    """An agent that sees one number x: its network says (x, 2x, 1), the target (x/2 + 1, −x, 3x), for x above 0."""
    where = group_spec(Discrete(3), Box((1,), 0.0, 9.0), agents=1)
    policy = q_network(where, hidden=(1,), dueling=False, compiled=q_learner.keywords["compiled"])
    one = q_learner(where, policy=policy, gamma=0.5, n_steps=1, batch_size=1, updates_per_step=0.5, **settings)
    for net, (weight, bias) in zip((one.policy.net, one.target_network), NETWORK.values(), strict=True):
        net.body.layers[0].weight.data[:], net.body.layers[0].bias.data[:] = 1, 0
        net.out.weight.data[:], net.out.bias.data[:] = torch.tensor(weight), torch.tensor(bias)
    return one


def moment(end=None, action=0, legal=(True, True, True)):
    """A decision at x = 1 that is paid 3; then x = 2 is seen, as a final observation where the episode was cut."""
    cut = end == "truncated"
    seen = np.array([1, 4 if cut else 2, 4], np.float32).reshape(3, 1, 1, 1)
    final = Finals(np.array([(0, 0)] if cut else []).reshape(-1, 2).astype(int), np.full((int(cut), 1, 1), 2, "f4"))
    mask = np.broadcast_to(legal, (2, 1, 1, 3)).copy()
    mask[1] |= cut  # what is legal next belongs to another episode
    ends = {end: [(0, 0)]} if end else {}
    act = np.full((2, 1, 1), action)
    return experience([[3], [0]], observation=seen, finals=final, action=act, mask=mask, **ends)


@pytest.mark.parametrize(
    ("double", "end", "legal", "aim"),
    [
        (False, None, (1, 1, 1), 3 + 6 / 2),  # the target's best: 3x = 6
        (True, None, (1, 1, 1), 3 - 2 / 2),  # the network's best is 2x, which the target values −x = −2
        (False, None, (1, 1, 0), 3 + 2 / 2),  # the target's best legal one: x/2 + 1
        (True, None, (1, 0, 1), 3 + 2 / 2),  # the network's best legal one is x
        (False, "terminated", (1, 1, 1), 3),
        (True, "terminated", (1, 1, 1), 3),
        (False, "truncated", (0, 1, 0), 3 - 2 / 2),  # the target's best that was legal in the decision: −x
        (False, "truncated", (1, 1, 1), 3 + 6 / 2),
        (True, "truncated", (1, 1, 1), 3 - 2 / 2),
    ],
)
def test_the_target_by_hand(q_learner, double, end, legal, aim):
    for action, value in ((0, 1), (1, 2), (2, 1)):
        one = by_hand(q_learner, double=double, huber=None)
        metrics = learn(one, moment(end, action, np.array(legal, bool)))
        assert metrics["updates"] == 1
        assert metrics["q_mean"] == pytest.approx(value)
        assert metrics["td_error"] == pytest.approx(abs(value - aim), abs=1e-6)
        assert metrics["loss"] == pytest.approx((value - aim) ** 2 / 2, abs=1e-5)
        moved = np.abs(one.policy.net.out.bias.data.numpy().ravel() - NETWORK["now"][1])
        assert np.flatnonzero(moved).tolist() == ([] if value == aim else [action])  # only what was done is taught
        assert one.replays[0].nodes[1] == pytest.approx((abs(value - aim) + 1e-6) ** 0.6, abs=1e-5)


@pytest.mark.parametrize("parameters", ["shared", "individual"])
def test_one_step_descends_the_weighted_loss(q_learner, parameters):
    where = group_spec(agents=2, parameters=parameters)
    settings = {"learning_rate": 0.01, "max_grad_norm": 1e9, "huber": 1.5, "n_steps": 2, "gamma": 0.9}
    one, other = (q_learner(where, batch_size=20, **settings) for _ in range(2))
    own = random_rollout(one, masked=True)
    for each in (one, other):
        each.store(own, joint_of(each, own))
        for replay in each.replays:
            replay.prioritise(np.arange(replay.size), generator().random(replay.size))
        each.target_network.out.weight.data *= 3
    uniform, losses = generator().random((where.parameter_sets, 1, 20)), []
    loss, *_ = one.improve(uniform, 0.01, 0.7)
    for stack, replay in enumerate(other.replays):
        drawn = replay.sample(uniform[stack, 0], 0.7)
        rows = Transitions(*(column[drawn.rows] for column in replay.rows))
        agents = rows.agent

        def values_of(net, x, agents=agents, stack=stack):
            x = x[:, 0]
            if parameters == "shared":
                x = np.concatenate([x, np.eye(2, dtype=np.float32)[agents]], axis=1)
            stacked = torch.from_numpy(np.repeat(x[None], where.parameter_sets, axis=0))
            return other.policy.values(net(stacked)[0])[stack]

        with torch.no_grad():
            now = values_of(other.policy.net, rows.next_obs).masked_fill(torch.from_numpy(~rows.next_mask[:, 0]), -1e9)
            later = values_of(other.target_network, rows.next_obs).gather(1, now.argmax(1, keepdim=True))[:, 0].numpy()
        aim = rows.reward + np.where(rows.discount > 0, rows.discount * later, 0)
        value = values_of(other.policy.net, rows.observation).gather(1, torch.from_numpy(rows.action))[:, 0]
        error = value - torch.from_numpy(aim.astype(np.float32))
        each = torch.where(error.abs() < 1.5, error**2 / 2, 1.5 * (error.abs() - 0.75))
        assert 0 < (error.abs() < 1.5).sum() < 20
        assert drawn.weight.min() < 0.9
        losses.append((torch.from_numpy(drawn.weight) * each).sum() / 20)
    sum(losses).backward()
    out = other.policy.net.out.weight
    out.grad[out == 0] = 0  # between the streams of the dueling network
    torch.optim.Adam(other.policy.net.parameters(), lr=0.01, eps=1e-5).step()
    assert np.allclose(weights(one), weights(other), atol=1e-6)
    assert loss == pytest.approx(float(sum(losses).detach()) / len(losses), abs=1e-5)


@pytest.mark.slow
def test_values_become_those_of_a_known_chain(q_learner):
    # Two decisions, paid 1 and 2, then the end: worth 1 + ½·2 and 2.
    where = group_spec(Discrete(1), Box((1,), 0.0, 9.0), agents=1)
    one = q_learner(where, gamma=0.5, n_steps=1, learning_rate=0.02, updates_per_step=5.0, target={"interval": 10})
    seen = np.tile(np.array([1, 2], np.float32), 5)[:9].reshape(9, 1, 1, 1)
    own = experience([[1], [2]] * 4, terminated=[(t, 0) for t in (1, 3, 5, 7)], observation=seen)
    for seed in range(12):
        learn(one, own, seed)
    assert values(one.policy, seen[:2, 0])[:, 0, 0].tolist() == pytest.approx([2, 2], abs=0.05)


def test_observation_statistics_take_in_the_decisions_after_learning(q_learner):
    one = q_learner(group_spec(agents=2, parameters="individual"))
    own = random_rollout(one)
    learn(one, own)
    closed = own.valid
    for a in (0, 1):
        rows = own.observation[:-1][:, :, a][closed[:, :, a]]
        assert np.allclose(one.policy.normalizer.mean[a], rows.mean(0), atol=1e-6)
        assert one.policy.normalizer.count[a] == len(rows)


def test_preferences_act_at_the_learners_door(q_learner):
    own_wish, team, again = q_learner(), q_learner(preference=Team(TeamSettings())), q_learner()
    own = random_rollout(own_wish)
    for one, table in ((own_wish, own), (team, own), (again, dataclasses.replace(own, reward=own.group_reward))):
        learn(one, table)
    assert not np.array_equal(weights(own_wish), weights(team))
    assert np.array_equal(weights(again), weights(team))


# Stacks and groups --------------------------------------------------------------------------------------


class SameDraws:
    """Gives every stack the same numbers, so that an agent alone draws the same rows."""

    def __init__(self, seed):
        self.seed = seed

    def random(self, shape):
        return np.broadcast_to(generator(self.seed).random(shape[1:]), shape).copy()


def alone_with(own, a):
    names = ("observation", "action", "log_prob", "reward", "next", "valid", "terminated", "truncated", "mask")
    mine = {name: np.ascontiguousarray(getattr(own, name)[:, :, a : a + 1]) for name in names}
    finals = Finals(own.finals.at, own.finals.observation[:, a : a + 1])
    return dataclasses.replace(own, **mine, finals=finals)


@pytest.mark.parametrize("dueling", [True, False])
def test_individual_agents_learn_as_if_alone(q_learner, dueling):
    where = group_spec(agents=2, parameters="individual")
    both = q_learner(where, dueling=dueling, learning_rate=0.01, target={"interval": 4})
    alone = [
        q_learner(group_spec(agents=1), dueling=dueling, learning_rate=0.01, target={"interval": 4}) for _ in range(2)
    ]
    for a, one in enumerate(alone):
        one.policy.flat.array[0] = one.target.flat.array[0] = both.policy.flat.array[a]
    for seed in range(3):
        own = random_rollout(both, seed, masked=True)
        own = dataclasses.replace(own, reward=own.reward * np.float32([1, 3]) + np.float32([0, 2]))
        both.learn(own, joint_of(both, own), SameDraws(seed))
        for a, one in enumerate(alone):
            mine = alone_with(own, a)
            one.learn(mine, joint_of(one, mine), SameDraws(seed))
    for a, one in enumerate(alone):
        assert np.allclose(weights(one)[0], weights(both)[a], atol=1e-6)
        assert np.allclose(target(one)[0], target(both)[a], atol=1e-6)
        assert np.allclose(one.policy.normalizer.mean[0], both.policy.normalizer.mean[a])
        assert np.allclose(one.replays[0].nodes, both.replays[a].nodes, atol=1e-5)
    assert not np.allclose(weights(both)[0], weights(both)[1], atol=1e-2)


def test_groups_do_not_touch_each_other(q_learner):
    found = []
    for neighbour in (False, True):
        one, other = (q_learner(group_spec(group=group)) for group in ("team", "others"))
        own, theirs = random_rollout(one, 0), random_rollout(other, 1)
        table = {"team": own} | (
            {"others": dataclasses.replace(theirs, reward=theirs.reward * 99)} if neighbour else {}
        )
        before = leaves(other.state()), leaves(other.policy.state())
        one.learn(own, Joint(table, 1, 0.0), generator())
        found.append(weights(one))
        expect_equal("learner", before[0], other.state())
        expect_equal("policy", before[1], other.policy.state())
    assert np.array_equal(found[0], found[1])


# Failure and rest ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("priority", [0.0, 0.6])
def test_divergence_is_named(q_learner, bad, priority):
    one = q_learner(batch_size=256, replay={"priority": priority})
    own = random_rollout(one)
    own.reward[3] = bad
    with pytest.raises(Diverged, match="group 'team': learning diverged"):
        learn(one, own)


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("normal", [True, False])
def test_one_observation_that_is_no_number_is_enough(q_learner, bad, normal):
    where = group_spec()
    fields = {"compiled": q_learner.keywords["compiled"], "normalize_observations": normal}
    one = q_learner(where, policy=q_network(where, **fields), batch_size=256)
    own = random_rollout(one)
    t, n, a = np.argwhere(own.valid)[0]
    own.observation[t, n, a, 1] = bad
    with pytest.raises(Diverged, match=r"observation is not a finite number|learning diverged"):
        learn(one, own)


def test_what_follows_an_end_may_be_anything(q_learner):
    found = []
    for rubbish in (0.0, math.nan):
        one = by_hand(q_learner)
        own = moment("terminated")
        own.observation[1] = 2.0
        one.store(own, joint_of(one, own))
        one.replays[0].rows.next_obs[:] = rubbish
        uniform = np.zeros((1, 1, 1))
        found.append(one.improve(uniform, 0.01, 1.0).tolist())
    assert found[0] == found[1]


def test_a_group_that_never_acts(q_learner):
    one = q_learner()
    own = random_rollout(one)
    idle = dataclasses.replace(own, valid=np.zeros_like(own.valid))
    before = weights(one)
    for _ in range(2):
        assert learn(one, idle) == {"replay": 0.0, "epsilon": 1.0}
    assert np.array_equal(weights(one), before)


def test_remembered_decisions_are_learned_from_while_nobody_acts(q_learner):
    one = q_learner()
    own = random_rollout(one)
    learn(one, own)
    before, known = weights(one), one.replays[0].size
    metrics = learn(one, dataclasses.replace(own, valid=np.zeros_like(own.valid)))
    assert metrics["updates"] > 0
    assert not np.array_equal(weights(one), before)
    assert one.replays[0].size <= known + 2 * own.valid[0].size  # ends complete what was waiting


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("update", ["hard", "soft"])
def test_who_begins_later_learns_as_if_alone(q_learner, compiled, update):
    """An agent that does not act at first keeps nobody from learning, and later has its own Adam and target."""
    settings = {"compiled": compiled, "target": {"update": update, "interval": 3, "tau": 0.1}}
    both = q_learner(group_spec(parameters="individual"), **settings)
    before = weights(both)
    own = random_rollout(both)
    idle = dataclasses.replace(own, valid=own.valid & np.array([True, False]))
    for seed in range(3):
        assert learn(both, idle, seed)["updates"] > 0
    assert not np.array_equal(weights(both)[0], before[0])
    assert np.array_equal(weights(both)[1], before[1])
    assert both.policy.flat.steps[0] > both.policy.flat.steps[1] == 0
    learn(both, own, 3)
    twin = q_learner(group_spec(parameters="individual"), **settings)
    twin.policy.normalizer.load(both.policy.normalizer.state())
    first = twin.policy.flat.array[1].copy()
    assert np.array_equal(first, before[1])
    learn(twin, own, 3)
    moved, alone = weights(both)[1] - first, weights(twin)[1] - first
    assert np.abs(moved).max() == pytest.approx(np.abs(alone).max(), rel=0.5)  # not several times as far


def test_rewards_of_another_shape_are_refused_with_the_path_of_the_preference():
    class Summed(Individual):
        def rewards(self, experience):
            return experience.reward.sum(axis=2)

    one = make_learner(preference=Summed(IndividualSettings()))
    own = random_rollout(one)
    with pytest.raises(CoterieError, match=rf"^groups\.{one.group_spec.group}\.preference: Summed\.rewards .* got \("):
        learn(one, own)
