"""Updates of dueling double DQN with n-step targets against float64 formulas of the papers, without its code."""

import numpy as np
import pytest
import torch

from coterie.core.decisions import Finals
from helpers.dqn import learn, make_learner, q_network, random_rollout
from helpers.small_worlds import experience, generator, group_spec


def huber(error, limit):
    """Huber 1964: a parabola within the limit, straight lines outside."""
    size = np.abs(error)
    return np.where(size <= limit, error**2 / 2, limit * (size - limit / 2))


def n_step_transitions(episode, n, gamma):
    """Rows `(t, Σ γᵏ r, t + m, γᵐ or 0 after a true end)` of one episode, m ≤ n decisions long; t counts from 0."""
    rewards, terminated = episode
    length, rows = len(rewards), []
    for t in range(length):
        m = min(n, length - t)
        total = sum(gamma**k * rewards[t + k] for k in range(m))
        ended = t + m == length and terminated
        rows.append((t, total, t + m, 0.0 if ended else gamma**m))
    return rows


class Dueling:
    """Wang et al. 2016, eq. 9: Q = V + A − mean A; halves of the last hidden layer carry V and A."""

    def __init__(self, layers, value, advantage, activate):
        self.layers, self.value, self.advantage, self.activate = layers, value, advantage, activate

    @property
    def weights(self):
        return [w for pair in (*self.layers, self.value, self.advantage) for w in pair]

    def __call__(self, x):
        for weight, bias in self.layers:
            x = self.activate(x @ weight + bias)
        half = x.shape[-1] // 2
        value = x[..., :half] @ self.value[0] + self.value[1]
        advantage = x[..., half:] @ self.advantage[0] + self.advantage[1]
        return value + advantage - advantage.sum(-1, keepdim=True) / advantage.shape[-1]


def adam(weights, gradients, moments, step, rate, epsilon):
    """Kingma & Ba 2015, algorithm 1, in place."""
    for w, g, (m, v) in zip(weights, gradients, moments, strict=True):
        m.mul_(0.9).add_(0.1 * g)
        v.mul_(0.999).add_(0.001 * g * g)
        w.sub_(rate * (m / (1 - 0.9**step)) / ((v / (1 - 0.999**step)).sqrt() + epsilon))


# Experience ---------------------------------------------------------------------------------------------

STEPS, AGENTS, GAMMA, N = 23, 2, 0.9, 3
ENDS = {  # agent → (first step, last step, terminated); the copy ends at 8, 15 and 22, there by a limit
    0: [(0, 8, True), (9, 15, False), (16, 22, False)],
    1: [(0, 4, False), (9, 15, True), (16, 17, True)],  # leaves early twice, truncated alone and dead
}


def rollout(random):
    """Experience of one copy of the world, and the last observation of every episode of each agent."""
    observation = random.standard_normal((STEPS + 1, 1, AGENTS, 3)).astype(np.float32)
    active = np.zeros((STEPS, AGENTS), bool)
    limits = [t for t in (8, 15, 22) if any(last == t and not dead for e in ENDS.values() for _, last, dead in e)]
    finals = Finals(
        np.array([(t, 0) for t in limits]), random.standard_normal((len(limits), AGENTS, 3)).astype(np.float32)
    )
    ends, last_seen = {"terminated": [], "truncated": []}, {}
    for agent, episodes in ENDS.items():
        for first, last, dead in episodes:
            active[first : last + 1, agent] = True
            ends["terminated" if dead else "truncated"].append((last, agent))
            at_limit = last in limits
            last_seen[agent, last] = finals.observation[limits.index(last), agent] if at_limit else None
            if not at_limit:
                last_seen[agent, last] = observation[last + 1, 0, agent]
    reward = random.standard_normal((STEPS, AGENTS)).astype(np.float32) * active * 2
    action = random.integers(4, size=(STEPS, 1, AGENTS))
    mask = random.random((STEPS, 1, AGENTS, 4)) < 0.7
    np.put_along_axis(mask, action[..., None], True, -1)
    acting = np.zeros(AGENTS, bool)
    own = experience(
        reward, active, observation=observation, action=action, mask=mask, finals=finals, acting=acting, **ends
    )
    return own, last_seen


def reference_rows(own, last_seen):
    """Transitions (agent, observation, action, return, discount, next observation, legal next actions)."""
    rows = []
    for agent, episodes in ENDS.items():
        for first, last, dead in episodes:
            rewards = own.reward[first : last + 1, 0, agent].astype(float)
            for t, total, later, discount in n_step_transitions((rewards, dead), N, GAMMA):
                t, later = t + first, later + first
                ahead = last_seen[agent, last] if later > last else own.observation[later, 0, agent]
                legal = own.mask[min(later, last), 0, agent]  # after a time limit: those of the last decision
                rows.append(
                    (agent, own.observation[t, 0, agent], own.action[t, 0, agent], total, discount, ahead, legal)
                )
    return rows


def reference_network(net):
    """The learner's network in float64: hidden layers, then the rows of the output that are value and advantages."""

    def pair(layer, rows=slice(None), columns=slice(None)):
        return tuple(
            part.detach().double().clone().requires_grad_()
            for part in (layer.weight[0][rows, columns], layer.bias[0][..., columns])
        )

    half = net.out.weight.shape[1] // 2
    return Dueling(
        [pair(layer) for layer in net.body.layers],
        pair(net.out, slice(half), slice(1)),
        pair(net.out, slice(half, None), slice(1, None)),
        torch.tanh,
    )


def flat(reference):
    return np.concatenate([w.detach().numpy().ravel() for w in reference.weights])


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("limit", [1e9, 0.2])
def test_three_updates_of_dueling_double_dqn_are_those_of_the_papers(compiled, limit):
    where = group_spec(agents=AGENTS)
    policy = q_network(where, hidden=(8, 6), activation="tanh", compiled=compiled, normalize_observations=False)
    updates, batch, rate, tau, delta, alpha, beta = 3, 16, 0.01, 0.25, 0.7, 0.6, 0.4
    one = make_learner(
        where,
        policy=policy,
        gamma=GAMMA,
        n_steps=N,
        huber=delta,
        batch_size=batch,
        learning_rate=rate,
        updates_per_step=updates / STEPS + 1e-9,
        max_grad_norm=limit,
        target={"update": "soft", "tau": tau},
        replay={"priority": alpha, "importance": beta},
    )
    for net, scale in ((policy.net, 1.5), (one.target_network, 0.8)):
        net.out.weight.data *= 2 * scale
        net.out.bias.data += 0.3 * scale
    one.target_network.body.layers[0].weight.data.neg_()  # its best actions differ from the network's
    own, last_seen = rollout(generator(1))
    net, target = (reference_network(each) for each in (policy.net, one.target_network))
    assert learn(one, own)["updates"] == updates

    rows = reference_rows(own, last_seen)
    stored = one.replays[0].rows
    assert one.replays[0].size == len(rows)
    place = [np.flatnonzero((stored.observation[: len(rows), 0] == row[1]).all(1)).item() for row in rows]
    rows = [row for _, row in sorted(zip(place, rows, strict=True), key=lambda pair: pair[0])]
    agent, seen, action, total, discount, ahead, legal = (np.array(column) for column in zip(*rows, strict=True))
    np.testing.assert_array_equal(stored.action[: len(rows), 0], action)
    np.testing.assert_allclose(stored.reward[: len(rows)], total, atol=1e-6)
    np.testing.assert_allclose(stored.discount[: len(rows)], discount, atol=1e-7)
    goes_on = discount > 0
    np.testing.assert_array_equal(stored.next_obs[: len(rows), 0][goes_on], ahead[goes_on])
    np.testing.assert_array_equal(stored.next_mask[: len(rows), 0][goes_on], legal[goes_on])

    identity = np.eye(AGENTS)[agent]
    seen, ahead = (torch.from_numpy(np.concatenate([x, identity], 1).astype(float)) for x in (seen, ahead))
    priority = np.ones(len(rows))
    moments = [(torch.zeros_like(w), torch.zeros_like(w)) for w in net.weights]
    uniform = generator(0).random((1, updates, batch))[0]
    linear = apart = 0
    for step in range(updates):
        share = np.cumsum(priority) / priority.sum()  # Schaul et al. 2016, appendix B.2.1: one draw from each stratum
        drawn = np.searchsorted(share, (np.arange(batch) + uniform[step]) / batch, side="right")
        weight = (len(rows) * priority[drawn] / priority.sum()) ** -beta
        weight /= weight.max()
        with torch.no_grad():  # van Hasselt et al. 2016, eq. 4
            best = net(ahead[drawn]).masked_fill(~torch.from_numpy(legal[drawn]), -torch.inf).argmax(-1)
            later = target(ahead[drawn]).numpy()
            apart += (later.argmax(-1) != best.numpy()).sum()
            later = later[np.arange(batch), best]
        y = total[drawn] + discount[drawn] * later
        chosen = net(seen[drawn])[torch.arange(batch), torch.from_numpy(action[drawn])]
        error = chosen.detach().numpy() - y
        assert error.std() > 0.3
        linear += (np.abs(error) > delta).sum()
        nudge = 1e-6  # the slope of the Huber loss, from its values
        slope = (huber(error + nudge, delta) - huber(error - nudge, delta)) / (2 * nudge)
        gradients = torch.autograd.grad((chosen * torch.from_numpy(weight * slope / batch)).sum(), net.weights)
        norm = torch.sqrt(sum((g**2).sum() for g in gradients))
        gradients = [g * min(1.0, limit / float(norm)) for g in gradients]
        assert (norm > limit) == (limit < 1)
        with torch.no_grad():
            adam(net.weights, gradients, moments, step + 1, rate, 1e-5)
            for slow, quick in zip(target.weights, net.weights, strict=True):
                slow.add_(tau * (quick - slow))
        priority[drawn] = (np.abs(error) + 1e-6) ** alpha
    assert 0 < linear < updates * batch
    assert apart > batch
    for found, expected in ((policy.net, net), (one.target_network, target)):
        np.testing.assert_allclose(flat(reference_network(found)), flat(expected), atol=2e-6)


# Teams --------------------------------------------------------------------------------------------------


def qmix(part, own_values, state):
    """Rashid et al. 2018, figure 2, with the activation that the guide describes; `part` holds its linear layers."""

    def linear(name, x):
        return x @ part[f"{name}.weight"] + part[f"{name}.bias"]

    first = linear("weight_in", state).abs().reshape(*own_values.shape, -1)  # [B, M, W]
    hidden = (own_values[..., None] * first).sum(1) + linear("bias_in", state)
    half = hidden.shape[1] // 2
    convex = torch.maximum(hidden, hidden / 2)[:, :half]
    concave = torch.minimum(hidden, hidden / 2)[:, half:]
    hidden = torch.cat([convex, concave], 1) * linear("weight_out", state).abs()
    offset = linear("bias_out", torch.relu(linear("bias_hidden", state)))[:, 0]
    return hidden.mean(1) + offset


def mixing_weights(mixer):
    """A mixer's linear layers in float64; VDN has none."""
    parameters = () if mixer is None else mixer.module.named_parameters()
    return {
        name: (p[0, 0] if name.endswith("bias") else p[0]).detach().double().clone().requires_grad_()
        for name, p in parameters
    }


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("mixer", ["vdn", "qmix"])
def test_three_updates_of_a_team_are_those_of_the_papers(mixer, double):
    """The dead add nothing to what follows, those who were truncated alone do; targets stay possible (QMIX)."""
    where = group_spec(agents=2, state_size=6)
    policy = q_network(where, hidden=(8, 6), activation="tanh", normalize_observations=False)
    updates, batch, rate, slower, limit, delta = 3, 16, 0.01, 0.004, 0.2, 1.0
    one = make_learner(
        where,
        policy=policy,
        mixer=mixer,
        double=double,
        gamma=GAMMA,
        n_steps=2,
        huber=delta,
        batch_size=batch,
        learning_rate=rate,
        mixer_learning_rate=slower if mixer == "qmix" else None,
        max_grad_norm=limit,
        target={"interval": 2},
        updates_per_step=updates / 36 + 1e-9,
        replay={"priority": 0.0},
    )
    for net, scale in ((policy.net, 1.5), (one.target_network, 2.5)):
        net.out.weight.data *= 2 * scale
        net.out.bias.data += 0.5
    one.target_network.body.layers[0].weight.data.neg_()
    net, target = (reference_network(each) for each in (policy.net, one.target_network))
    mixing, later_mixing = (mixing_weights(each) for each in (one.mixer, one.target_mixer))
    own = random_rollout(one, seed=3, masked=True)
    assert learn(one, own)["updates"] == updates

    stored, known = one.replays[0].rows, one.replays[0].size
    assert (stored.next_active[:known].any(1) & ~stored.next_active[:known].all(1)).any()
    low, high = (bound / (1 - GAMMA) for bound in (min(own.reward.min(), 0), max(own.reward.max(), 0)))
    identity = np.broadcast_to(np.eye(2), (known, 2, 2))
    seen, ahead = (
        torch.from_numpy(np.concatenate([x[:known], identity], 2).astype(float))
        for x in (stored.observation, stored.next_obs)
    )
    state, later_state = (torch.from_numpy(x[:known].astype(float)) for x in (stored.state, stored.next_state))

    def total(values, part, where):
        return values.sum(1) if mixer == "vdn" else qmix(part, values, where)

    network_moments, mixer_moments = (
        [(torch.zeros_like(w), torch.zeros_like(w)) for w in group] for group in (net.weights, mixing.values())
    )
    uniform, linear = generator(0).random((1, updates, batch))[0], 0
    for step in range(updates):
        drawn = (uniform[step] * known).astype(int)
        with torch.no_grad():
            later = target(ahead[drawn])
            chooser = net(ahead[drawn]) if double else later
            best = chooser.masked_fill(~torch.from_numpy(stored.next_mask[drawn]), -torch.inf).argmax(-1)
            follows = later.gather(-1, best[..., None])[..., 0] * torch.from_numpy(stored.next_active[drawn])
            follows = total(follows, later_mixing, later_state[drawn])
            follows = follows.clamp(low, high) if mixer == "qmix" else follows
            y = torch.from_numpy(stored.reward[drawn]) + torch.from_numpy(stored.discount[drawn]) * follows
        chosen = net(seen[drawn]).gather(-1, torch.from_numpy(stored.action[drawn])[..., None])[..., 0]
        said = total(chosen * torch.from_numpy(stored.active[drawn]), mixing, state[drawn])
        trained = [(net.weights, network_moments, rate)]
        trained += [([*mixing.values()], mixer_moments, slower)] if mixer == "qmix" else []
        error = (said - y).detach().numpy()
        linear += (np.abs(error) > delta).sum()
        slope = (huber(error + 1e-6, delta) - huber(error - 1e-6, delta)) / 2e-6
        loss = (said * torch.from_numpy(slope)).mean()  # a loss of the same gradient
        gradients = torch.autograd.grad(loss, [w for weights, *_ in trained for w in weights])
        for weights, moments, speed in trained:  # each with a norm of its own
            part, gradients = gradients[: len(weights)], gradients[len(weights) :]
            norm = float(torch.sqrt(sum((g**2).sum() for g in part)))
            with torch.no_grad():
                adam(weights, [g * min(1.0, limit / norm) for g in part], moments, step + 1, speed, 1e-5)
        if (step + 1) % 2 == 0:
            for behind, now in ((target.weights, net.weights), (later_mixing.values(), mixing.values())):
                for slow, quick in zip(behind, now, strict=True):
                    slow.data.copy_(quick)
    assert 0 < linear < updates * batch
    for found, expected in ((policy.net, net), (one.target_network, target)):
        np.testing.assert_allclose(flat(reference_network(found)), flat(expected), atol=5e-6)
    for found, expected in ((one.mixer, mixing), (one.target_mixer, later_mixing)):
        for name, weights in mixing_weights(found).items():
            np.testing.assert_allclose(weights.detach(), expected[name].detach(), atol=5e-6)
