"""MADDPG: each step of an update against its definition, on both paths. Settings: `test_maddpg_settings.py`."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from coterie.algorithms.divergence import Diverged
from coterie.algorithms.joint_transitions import JointTransitions
from coterie.algorithms.maddpg.maddpg import Draws, Rates
from coterie.core.decisions import Finals
from coterie.core.types import Box, Discrete
from coterie.preferences.standard import Team, TeamSettings
from coterie.testing.comparison import expect_equal, leaves
from helpers.maddpg import (
    SPACES,
    aligned,
    at_one_table,
    by_agent,
    critic_weights,
    greedy_points,
    joint_of,
    learn,
    make_learner,
    random_decisions,
    randomise,
    relax,
    set_output,
    weights,
)
from helpers.small_worlds import experience, generator, group_spec

both_kinds = pytest.mark.parametrize("parameters", ["shared", "individual"])
both_spaces = pytest.mark.parametrize("action", SPACES)
both_views = pytest.mark.parametrize("centralized", [True, False])


def run(one, draws, rate=0.01):
    return one.improve(draws, Rates(rate, rate))


# The critics' targets by hand -------------------------------------------------------------------------------

NUMBER = Box((1,), -9.0, 9.0)
RANGE = Box((1,), 0.0, 2.0)


def by_hand(table_learner, **settings):
    """An agent that observes x and acts in [0, 2], and one whose actions are recorded.

    Its target policy always does 1.5, 0.5 when encoded. The critics say 1 + 2 · own action + 4 · the other's, the
    twins 0.5 more where they have a say; targets a tenth of it.
    """
    where, _ = at_one_table(group_spec(RANGE, NUMBER, agents=1), group_spec(RANGE, NUMBER, agents=1, group="other"))
    fields = {"gamma": 0.5, "batch_size": 1, "updates_per_step": 1.0} | settings
    one = table_learner(where, **fields)
    set_output(one.actor.target.module, [math.atanh(0.5)])
    for extra, critic in enumerate(one.critics):
        for net, factor in ((critic.net.module, 1.0), (critic.target.module, 0.1)):
            for parameter in net.parameters():
                parameter.data[:] = 0
            wide = net.body.layers[0].weight  # what is seen, then what is done; a bias keeps ReLUs open
            own = wide.shape[1] - (2 if one.centralized else 1)
            wide.data[0, own, 0] = 1
            if one.centralized:
                wide.data[0, own + 1, 1] = 1
            net.body.layers[0].bias.data[0, 0, :2] = 10
            net.out.weight.data[0, 0], net.out.weight.data[0, 1] = 2 * factor, (4 if one.centralized else 0) * factor
            lift = 20 + (40 if one.centralized else 0)
            net.out.bias.data[:] = factor * (1 + 0.5 * extra - lift)
    return one


def moment(end=None, actions=((0.5, 1.5), (2.0, 0.0))):
    """Two decisions of both agents; the first is paid 3. `actions` are theirs, by time step."""
    cut = end == "truncated"
    finals = Finals(np.array([(0, 0)] if cut else []).reshape(-1, 2).astype(int), np.full((int(cut), 1, 1), 2, "f4"))
    seen = np.array([1, 2, 3], np.float32).reshape(3, 1, 1, 1)
    ends = {end: [(0, 0)]} if end else {}
    made = []
    for who in (0, 1):
        done = np.array([agent_step[who] for agent_step in actions], np.float32).reshape(2, 1, 1, 1)
        made.append(experience([[3], [0]], observation=seen, finals=finals, action=done, **ends))
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("centralized", "end", "other_policy", "target"),
    [
        (True, None, None, 3 + 0.5 * 0.1 * (1 + 2 * 0.5 + 4 * -1)),  # the other's next action was 0: −1 encoded
        (True, None, 0.25, 3 + 0.5 * 0.1 * (1 + 2 * 0.5 + 4 * 0.25)),  # a target policy says what it would do
        (True, "truncated", None, 3 + 0.5 * 0.1 * (1 + 2 * 0.5 + 4 * 0.5)),  # the other's latest stands in: 1.5
        (True, "truncated", 0.25, 3 + 0.5 * 0.1 * (1 + 2 * 0.5 + 4 * 0.25)),
        (True, "terminated", 0.25, 3),
        (False, None, None, 3 + 0.5 * 0.1 * (1 + 2 * 0.5)),
        (False, "truncated", None, 3 + 0.5 * 0.1 * (1 + 2 * 0.5)),
        (False, "terminated", None, 3),
    ],
)
@pytest.mark.parametrize("twin", [False, True])
def test_the_target_by_hand(table_learner, centralized, end, other_policy, target, twin):
    one = by_hand(table_learner, critic={"centralized": centralized, "twin": twin})
    own, theirs = moment(end)
    target_policies = (
        {} if other_policy is None else {"other": lambda packed, legal: np.full(legal.shape, other_policy, np.float32)}
    )
    one.learn(own, joint_of(one, own, others={"other": theirs}, target_policies=target_policies), generator())
    one = by_hand(table_learner, critic={"centralized": centralized, "twin": twin}, replay={"learning_starts": 99})
    joint = joint_of(one, own, others={"other": theirs}, target_policies=target_policies)
    one.remember(own, joint)
    draws = one.draw(1, joint, FirstRow())
    loss, q_mean, td_error, _ = run(one, draws, rate=0.0)
    value = 1 + 2 * -0.5 + (4 * 0.5 if centralized else 0)  # 0.5 and 1.5 were done: −0.5 and 0.5 encoded
    assert q_mean == pytest.approx(value, abs=1e-5)
    assert td_error == pytest.approx(abs(value - target), abs=1e-5)
    losses = [(value + extra - target) ** 2 / 2 for extra in ((0, 0.5) if twin else (0,))]
    assert loss == pytest.approx(sum(losses) / len(losses), abs=1e-4)


class FirstRow:
    """Always draws the oldest row, and no noise."""

    def random(self, shape):
        return np.zeros(shape)

    def standard_normal(self, shape, dtype):
        return np.full(shape, 3.0, dtype)


@both_views
def test_targets_use_the_lower_twin(table_learner, centralized):
    found = []
    for lower in (0, 1):
        one = by_hand(table_learner, critic={"centralized": centralized, "twin": True}, replay={"learning_starts": 99})
        one.critics[1].net.module.out.bias.data -= 0.5  # both say the same, but for their targets
        one.critics[lower].target.module.out.bias.data -= 8.0
        own, theirs = moment()
        joint = joint_of(one, own, others={"other": theirs})
        one.remember(own, joint)
        found.append(run(one, one.draw(1, joint, FirstRow()), rate=0.0)[2])
    value, later = (2, -0.2) if centralized else (0, 0.2)
    assert found == pytest.approx([abs(value - (3 + 0.5 * (later - 8)))] * 2, abs=0.03)


def test_smoothing_moves_target_actions_and_keeps_them_in_the_box(table_learner):
    for noise, moved in ((0.0, 0.5), (0.05, 0.75), (0.5, 1.0)):  # 2.5 deviations at most, of twice the share
        one = by_hand(
            table_learner, critic={"centralized": False}, target={"noise": noise}, replay={"learning_starts": 99}
        )
        own, _ = moment()
        joint = joint_of(one, own)
        one.remember(own, joint)
        found = run(one, one.draw(1, joint, FirstRow()), rate=0.0)
        assert found[2] == pytest.approx(3 + 0.05 * (1 + 2 * moved) - 0.0, abs=1e-4)


# One update against its definition --------------------------------------------------------------------------


def table_of(action, parameters, centralized, compiled=True, **settings):
    """A learning group of two and a group of three, with random weights."""
    where, other = group_spec(SPACES[action], parameters=parameters), group_spec(Discrete(3), group="other", agents=3)
    other, where = at_one_table(other, where)  # the other group's numbers come first
    one = make_learner(
        where, compiled=compiled, critic={"centralized": centralized} | settings.pop("critic", {}), **settings
    )
    randomise(one.policy, scale=0.5)
    one.actor.target_flat.array[:] = 0.7 * one.policy.flat.array
    own = random_decisions(one, masked=action == "discrete")
    theirs = aligned(random_decisions(make_learner(other), 5), own)
    return one, own, theirs


def turned(columns, own, agent):
    """All columns, in the group of two's own part that agent's first."""
    numbers = list(range(columns))
    group, width = numbers[own], (own.stop - own.start) // 2
    return numbers[: own.start] + group[agent * width :] + group[: agent * width] + numbers[own.stop :]


def critic_row(one, net, table, done, agent):
    """A critic's values `[B]` of an agent's decisions; `table [B, O]`, `done [B, U]` for that agent's critic."""
    span, parameter_sets = one.layout.own, one.group_spec.parameter_sets
    if one.settings.critic.own_first:
        table, done = (
            table[:, turned(table.shape[1], span.obs, agent)],
            done[:, turned(done.shape[1], span.action, agent)],
        )
    if one.centralized:
        parts = [table]
        if parameter_sets == 1:
            parts.append(np.eye(2, dtype=np.float32)[agent][None].repeat(len(table), 0))
        parts = [torch.from_numpy(p) for p in parts] + [done]
    else:
        parts = [torch.from_numpy(span.observations(table)[:, agent])]
        if parameter_sets == 1:
            parts.append(torch.eye(2)[agent][None].repeat(len(table), 1))
        parts.append(done[:, span.action][:, agent * span.action_size : (agent + 1) * span.action_size])
    x = torch.cat(parts, dim=1)[None].repeat(parameter_sets, 1, 1)
    return net(x)[0][agent if parameter_sets > 1 else 0, :, 0]


@both_kinds
@both_spaces
@pytest.mark.parametrize(("centralized", "own_first"), [(True, False), (True, True), (False, False)])
@pytest.mark.parametrize("compiled", [True, False])
def test_one_update_is_the_one_of_the_paper(action, parameters, centralized, own_first, compiled):
    settings = {"gamma": 0.9, "max_grad_norm": 1e9, "choices": {"temperature": 0.7}, "target": {"tau": 0.25}}
    settings["critic"] = {"own_first": own_first}
    one, own, theirs = table_of(action, parameters, centralized, compiled, **dict(settings))
    other, _, _ = table_of(action, parameters, centralized, compiled, **dict(settings))
    joint = joint_of(one, own, others={"other": theirs})
    for each in (one, other):
        each.remember(own, joint)
    draws = one.draw(1, joint, generator())
    before = [learned.target_flat.array.copy() for learned in (one.actor, one.critics[0])]
    run(one, Draws(*(a.copy() for a in draws)), rate=0.01)

    span, size = other.layout.own, other.layout.own.action_size
    rows = JointTransitions(*(column[draws.indices[0]] for column in other.replay.rows))
    own_next = greedy_points(
        other.policy, other.actor.target.module, span.observations(rows.next_obs), span.actions(rows.next_legal)
    )
    ahead = draws.next_action[0].copy()
    ahead[:, span.action] = (own_next * rows.next_active[:, span.agents][..., None]).reshape(len(ahead), -1)
    critic, losses = other.critics[0], []
    optimisers = [
        torch.optim.Adam(net.parameters(), lr=0.01, eps=1e-5) for net in (critic.net.module, other.policy.net)
    ]
    live = torch.from_numpy(rows.valid)
    count = live.sum(0) if parameters == "individual" else live.sum().repeat(2)
    for i in (0, 1):
        with torch.no_grad():
            later = critic_row(other, critic.target.module, rows.next_obs, torch.from_numpy(ahead), i).numpy()
        aim = torch.from_numpy(rows.reward[:, i] + np.where(rows.discount[:, i] > 0, rows.discount[:, i] * later, 0))
        value = critic_row(other, critic.net.module, rows.observation, torch.from_numpy(rows.action), i)
        losses.append((live[:, i] * (value - aim) ** 2 / 2).sum() / count[i])
    sum(losses).backward()
    optimisers[0].step()

    x = torch.from_numpy(other.policy.prepare(span.observations(rows.observation), np.arange(2)))
    out = by_agent(other, other.policy.net(x)[0])
    legal, gumbel = torch.from_numpy(span.actions(rows.legal)), torch.from_numpy(draws.gumbel[0])
    acted, wishes = relax(other.policy, out, legal, gumbel, 0.7), []
    for i in (0, 1):
        first = span.action.start + i * size
        done = torch.from_numpy(rows.action)
        done = torch.cat(
            [done[:, :first], acted[:, i], done[:, first + size :]], dim=1
        )  # only one's own is the policy's
        value = critic_row(other, critic.net.module, rows.observation, done, i)
        hold = 1e-3 * (out[:, i] ** 2).mean(-1) if action == "discrete" else 0.0
        wishes.append((live[:, i] * (hold - value)).sum() / count[i])
    for parameter in other.policy.net.parameters():
        parameter.grad = None
    sum(wishes).backward()
    optimisers[1].step()
    assert np.allclose(critic_weights(one), critic_weights(other), atol=2e-6)
    assert np.allclose(weights(one), weights(other), atol=2e-6)
    for learned, old in zip((one.actor, one.critics[0]), before, strict=True):
        assert np.allclose(learned.target_flat.array, 0.75 * old + 0.25 * learned.flat.array, atol=1e-6)


class Plain:
    """A perceptron of a learner, in float64 and without any of its code."""

    def __init__(self, net):
        layers = [*net.body.layers, net.out]
        self.weights = [part[0].detach().double().clone() for layer in layers for part in (layer.weight, layer.bias)]
        self.optimiser = torch.optim.Adam([w.requires_grad_() for w in self.weights], lr=0.01, eps=1e-5)
        self.activate = net.body.activate

    def __call__(self, *parts):
        x = torch.cat(parts, dim=-1)
        for weight, bias in zip(self.weights[:-2:2], self.weights[1:-2:2], strict=True):
            x = self.activate(x @ weight + bias)
        return x @ self.weights[-2] + self.weights[-1]

    def step(self, loss):
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()

    def follow(self, other, tau):
        with torch.no_grad():
            for mine, theirs in zip(self.weights, other.weights, strict=True):
                mine += tau * (theirs - mine)

    def expect_near(self, net):
        for mine, theirs in zip(self.weights, Plain(net).weights, strict=True):
            assert torch.allclose(mine, theirs, atol=2e-5)


@pytest.mark.parametrize("centralized", [True, False])
@pytest.mark.parametrize("compiled", [True, False])
def test_five_updates_are_those_of_td3(centralized, compiled):
    """Fujimoto et al. 2018, algorithm 1, with agents as rows: smoothed targets, the lower twin, every second step."""
    settings = {"gamma": 0.9, "max_grad_norm": 1e9, "policy_delay": 2, "target": {"tau": 0.25, "noise": 0.1}}
    critic = {"centralized": centralized, "twin": True}
    one = make_learner(group_spec(SPACES["box"]), compiled=compiled, critic=critic, **settings)
    randomise(one.policy, scale=0.5)
    one.actor.target_flat.array[:] = 0.7 * one.policy.flat.array
    one.critics[1].target_flat.array[:] *= 1.3
    own = random_decisions(one)
    joint = joint_of(one, own)
    one.remember(own, joint)
    draws = one.draw(5, joint, generator())
    assert np.abs(draws.smoothing).max() == pytest.approx(0.5)  # c of the paper, for actions in [−1, 1]
    assert draws.smoothing.std() == pytest.approx(0.2, rel=0.1)  # σ
    actor, later_actor = Plain(one.policy.net), Plain(one.actor.target.module)
    twins, later_twins = [
        [Plain(net) for net in nets] for nets in zip(*((c.net.module, c.target.module) for c in one.critics))
    ]
    run(one, draws, rate=0.01)

    agents, size = 2, one.layout.own.action_size
    identity = torch.eye(agents, dtype=torch.float64)
    for index, smoothing in zip(draws.indices, draws.smoothing, strict=True):
        rows = JointTransitions(*(torch.from_numpy(column[index]) for column in one.replay.rows))
        count = len(index)
        who = identity.expand(count, -1, -1)
        seen, ahead = (x.double().view(count, agents, -1) for x in (rows.observation, rows.next_obs))
        done = rows.action.double().view(count, agents, size)

        def values(net, seen, done, count=count, who=who):
            """Of each agent's action, given everybody's: `done [B, critic of agent, agent, K]`."""
            if centralized:
                return net(seen.reshape(count, 1, -1).expand(-1, agents, -1), who, done.flatten(2))[..., 0]
            return net(seen, who, torch.stack([done[:, i, i] for i in range(agents)], 1))[..., 0]

        with torch.no_grad():
            noisy = (torch.tanh(later_actor(ahead, who)) + torch.from_numpy(smoothing).double()).clamp(-1, 1)
            noisy = (noisy * rows.next_active[..., None]).unsqueeze(1).expand(-1, agents, -1, -1)
            lower = torch.minimum(*(values(net, ahead, noisy) for net in later_twins))
            target = rows.reward.double() + rows.discount.double() * lower
        valid = rows.valid.double() / rows.valid.sum()
        everybody = done.unsqueeze(1).expand(-1, agents, -1, -1)
        for net in twins:
            net.step((valid * (values(net, seen, everybody) - target) ** 2 / 2).sum())
        if twins[0].optimiser.state[twins[0].weights[0]]["step"] % 2 == 0:
            tried, acted = everybody.clone(), torch.tanh(actor(seen, who))
            for i in range(agents):
                tried[:, i, i] = acted[:, i]  # what the others did is recorded
            actor.step(-(valid * values(twins[0], seen, tried)).sum())
            for slow, quick in zip([later_actor, *later_twins], [actor, *twins], strict=True):
                slow.follow(quick, 0.25)
    actor.expect_near(one.policy.net)
    later_actor.expect_near(one.actor.target.module)
    for c, learned in enumerate(one.critics):
        twins[c].expect_near(learned.net.module)
        later_twins[c].expect_near(learned.target.module)


def test_the_learner_applies_the_preference(table_learner):
    own_wish, team, again = table_learner(), table_learner(preference=Team(TeamSettings())), table_learner()
    own = random_decisions(own_wish)
    for one, table in ((own_wish, own), (team, own), (again, dataclasses.replace(own, reward=own.group_reward))):
        learn(one, table)
    assert not np.array_equal(weights(own_wish), weights(team))
    assert np.array_equal(weights(again), weights(team))


def test_observation_statistics_take_in_the_decisions_after_learning(table_learner):
    one = table_learner(group_spec(SPACES["box"], parameters="individual"))
    own = random_decisions(one)
    learn(one, own)
    for a in (0, 1):
        rows = own.observation[:-1][:, :, a][own.valid[:, :, a]]
        assert np.allclose(one.policy.normalizer.mean[a], rows.mean(0), atol=1e-6)
    assert one.normalizer.count[0] == own.valid.shape[0] * own.valid.shape[1]


# Several groups ----------------------------------------------------------------------------------------------


def two_groups(table_learner, centralized=True):
    """Two groups at one table, one with choices and one with a box, and their experience."""
    group_specs = at_one_table(
        group_spec(SPACES["box"], group="team"), group_spec(SPACES["discrete"], group="others", agents=3)
    )
    learners = [table_learner(where, critic={"centralized": centralized}) for where in group_specs]
    own = random_decisions(learners[0])
    return learners, {"team": own, "others": aligned(random_decisions(learners[1], 1), own)}


@both_views
def test_an_update_changes_no_other_groups_parameters(table_learner, centralized):
    (one, other), table = two_groups(table_learner, centralized)
    for each in (one, other):
        name = each.group_spec.group
        bystander = other if each is one else one
        before = leaves(bystander.state()), leaves(bystander.policy.state())
        mine = weights(each)
        joint = joint_of(
            each,
            table[name],
            others=table,
            target_policies={g.group_spec.group: g.target_policy() for g in (one, other)},
        )
        each.learn(table[name], joint, generator())
        assert not np.array_equal(weights(each), mine)
        expect_equal("learner", before[0], bystander.state())
        expect_equal("policy", before[1], bystander.policy.state())
        for net in (bystander.policy.net, bystander.actor.target.module, *(c.net.module for c in bystander.critics)):
            assert all(p.grad is None for p in net.parameters()) or bystander is one  # nobody sends a gradient over


@pytest.mark.slow
def test_target_policies_are_those_of_the_iterations_start_in_any_order_of_learning(table_learner):
    found = []
    for order in ((0, 1), (1, 0)):
        learners, table = two_groups(table_learner)
        for iteration in (1, 2):
            target_policies = {one.group_spec.group: one.target_policy() for one in learners}
            for i in order:
                own = table[learners[i].group_spec.group]
                joint = joint_of(learners[i], own, others=table, target_policies=target_policies, iteration=iteration)
                learners[i].learn(own, joint, generator(iteration))
        found.append([weights(one) for one in learners])
    for mine, theirs in zip(*found, strict=True):
        assert np.array_equal(mine, theirs)


def test_a_group_without_a_target_policy_is_read_through_its_next_actions(table_learner):
    """A target policy that repeats the record changes nothing; another one does."""
    found = {}
    for name in ("recorded", "same", "other"):
        (one, _), table = two_groups(table_learner)
        joint = joint_of(one, table["team"], others=table)
        one.remember(table["team"], joint)
        span = one.layout.groups["others"]

        def say_it(packed, legal, one=one, span=span, name=name):
            rows = one.replay.rows
            chosen = (generator().random((9, 16)) * one.replay.size).astype(int).ravel()
            assert np.array_equal(packed, span.observations(rows.next_obs[chosen]))
            said = span.actions(rows.next_action[chosen])
            return said if name == "same" else np.roll(said, 1, axis=-1)

        target_policies = {} if name == "recorded" else {"others": say_it}
        found[name] = one.draw(9, dataclasses.replace(joint, target_policies=target_policies), generator())
    assert np.array_equal(found["recorded"].next_action, found["same"].next_action)
    assert not np.array_equal(found["recorded"].next_action, found["other"].next_action)
    others = slice(4, None)  # the learner's own actions come first
    gone = ~found["other"].next_action[..., others].any(-1)
    assert gone.any()  # who has left does nothing, whatever its policy would do


def test_a_critic_that_is_not_centralized_ignores_other_groups(table_learner):
    found = []
    for other_reward in (1, 99):
        (one, _), table = two_groups(table_learner, centralized=False)
        theirs = table["others"]
        theirs = dataclasses.replace(theirs, observation=theirs.observation * other_reward)
        one.learn(table["team"], joint_of(one, table["team"], others={"others": theirs}), generator())
        found.append(weights(one))
        assert one.layout.obs_size == 6
    assert np.array_equal(*found)


# Failure and rest ----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_divergence_is_named(table_learner, bad):
    one = table_learner(batch_size=256)
    own = random_decisions(one)
    own.reward[3] = bad
    with pytest.raises(Diverged, match="group 'team': learning diverged"):
        learn(one, own)


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_one_observation_that_is_no_number_is_enough(table_learner, bad):
    one = table_learner(batch_size=256)
    own = random_decisions(one)
    t, n, a = np.argwhere(own.valid)[0]
    own.observation[t, n, a, 1] = bad
    with pytest.raises(Diverged, match=r"observation is not a finite number|learning diverged"):
        learn(one, own)


def test_a_group_that_never_acts(table_learner):
    one = table_learner()
    own = random_decisions(one)
    idle = dataclasses.replace(own, valid=np.zeros_like(own.valid))
    before = weights(one)
    for _ in range(2):
        assert learn(one, idle) == {"replay": 0.0, "noise": 0.2}
    assert np.array_equal(weights(one), before)


def test_worlds_in_which_agents_take_turns_are_refused():
    with pytest.raises(ValueError, match=r"'maddpg'.*at once"):
        make_learner(dataclasses.replace(group_spec(SPACES["box"]), simultaneous=False))
