"""A teacher's student against LLM4Teach as published, written again here: teacher, schedule, loss and gradients.

Zhou et al. 2023 (arXiv:2311.13373): the teacher is Σ p(skill | text) · skill(action | state), and the loss is PPO's
plus λ times the cross-entropy to it. The reference has its own network, advantages and derivative (PyTorch, double
precision); from the product it takes the rollout, the weights, the skills and the text of a state.
"""

import json

import numpy as np
import pytest
import torch

from coterie.config import schema
from coterie.core.decisions import Joint
from coterie.lm import plans
from coterie.nn import networks
from coterie.training.build import build_groups, build_world
from coterie.training.runner import Runner

STEPS, COPIES, FRAMES, STRENGTH, SMOOTHING = 96, 3, 200, 2.0, 0.1
LEARNER = "groups.agent.learner"
WORDS = [
    f"train.num_envs={COPIES}",
    "world.max_episode_steps=40",  # so that episodes are cut within the rollout
    *(f"{LEARNER}.{word}" for word in ("epochs=1", "minibatches=1", "max_grad_norm=1e9", "normalize_returns=false")),
    f"groups.agent.advisor.use.frames={FRAMES}",
]


def played(*words):
    """A group, a rollout in which it was taught, and the teacher's probabilities by the paper."""
    config = schema.load("doorkey5-teacher", [*WORDS, *words])
    world = build_world(config.world, COPIES)
    group = build_groups(config, world)[0]
    own = Runner(world, [group.actor], 0).play(STEPS, 1, 0.0).decisions["agent"]
    table = json.loads((plans.FOLDER / "doorkey.json").read_text())
    again = build_world(config.world, COPIES)
    Runner(again, [build_groups(config, again)[0].actor], 0)  # resets the world with the run's seed
    codec, teacher = again.plan_codec("agent"), np.zeros((STEPS, COPIES, 7))
    for t in range(STEPS):
        seen, skills = own.observation[t, :, 0], again.skill_actions("agent")[:, 0]
        for n, number in enumerate(codec.states(seen).tolist()):
            plan = table["plans"][codec.describe(number)]
            mixed = sum(plan[name] * skills[n, k].astype(float) for k, name in enumerate(table["skills"]))
            teacher[t, n] = (1 - SMOOTHING) * mixed / mixed.sum() + SMOOTHING / 7
        step = again.step({"agent": own.action[t]}).agent_types["agent"]
        np.testing.assert_array_equal(step.observation[:, 0], own.observation[t + 1, :, 0])
    return group, own, teacher


def schedule():
    """λ at every step of the rollout, `[T]`: linear in environment steps, then off."""
    return STRENGTH * np.maximum(1 - np.arange(STEPS) * COPIES / FRAMES, 0)


def weights_of(net):
    arrays = networks.export(net)
    return {name: torch.tensor(array[0], dtype=torch.float64, requires_grad=True) for name, array in arrays.items()}


def forward(weights, x):
    """A perceptron with tanh."""
    layers = sorted(name.removesuffix(".weight") for name in weights if name.endswith(".weight"))
    *hidden, last = [name for name in layers if name != "out"] + ["out"]
    for name in hidden:
        x = torch.tanh(x @ weights[f"{name}.weight"] + weights[f"{name}.bias"])
    return x @ weights[f"{last}.weight"] + weights[f"{last}.bias"]


def estimate(own, value, final, gamma, gae_lambda):
    """Generalised advantages `[T, N]`; a time limit bootstraps from the value of the last observation."""
    found, later = np.zeros((STEPS, COPIES)), np.zeros(COPIES)
    for t in reversed(range(STEPS)):
        for n in range(COPIES):
            ended, cut = own.terminated[t, n, 0], own.truncated[t, n, 0]
            following = 0.0 if ended else final[t, n] if cut else value[t + 1, n]
            delta = own.reward[t, n, 0] + gamma * following - value[t, n]
            later[n] = delta + (0.0 if ended or cut else gamma * gae_lambda * later[n])
            found[t, n] = later[n]
    return found


def reference(group, own, teacher):
    """Gradients of the actor's and the critic's loss, flat, by the papers."""
    s, actor, critic = group.learner.settings, weights_of(group.policy.net), weights_of(group.learner.critic_network)

    def rows(observation):
        return torch.from_numpy(group.policy.inputs(observation)[0].astype(np.float64))

    x = rows(own.observation).reshape(STEPS + 1, COPIES, -1)
    value, final = forward(critic, x)[..., 0], np.zeros((STEPS, COPIES))
    final[tuple(own.finals.at.T)] = forward(critic, rows(own.finals.observation))[:, 0].detach()
    before = value.detach().numpy()
    advantage = estimate(own, before, final, s.gamma, s.gae_lambda)
    target = torch.from_numpy(advantage + before[:-1])
    if s.normalize_advantages:
        advantage = (advantage - advantage.mean()) / advantage.std()
    log_probs = forward(actor, x[:-1]).log_softmax(-1)
    chosen = log_probs.gather(-1, torch.from_numpy(own.action))[..., 0]
    ratio = (chosen - torch.from_numpy(own.log_prob[..., 0])).exp()
    gain = ratio * torch.from_numpy(advantage)  # the ratio is 1: the clip does nothing in the first step
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    cross_entropy = -(torch.from_numpy(teacher) * log_probs).sum(-1)
    pull = torch.from_numpy(schedule())[:, None] * cross_entropy
    (-gain - s.entropy_coefficient * entropy + pull).mean().backward()
    (0.5 * (value[:-1] - target) ** 2).mean().backward()
    return [np.concatenate([one.grad.numpy().ravel() for one in net.values()]) for net in (actor, critic)]


def learn(group, own):
    joint = Joint({"agent": own}, 1, 0.0, {"agent": group.actor.group_spec.spaces})
    return group.learner.learn(own, joint, np.random.default_rng(0))


@pytest.mark.parametrize("compiled", [True, False])
def test_the_first_gradients_are_those_of_the_published_loss(compiled):
    group, own, teacher = played(f"groups.agent.policy.compiled={compiled}")
    strength = schedule()
    assert own.truncated.any()
    assert 0 < (strength > 0).mean() < 1  # the teacher ends within the rollout
    given = np.where(strength[:, None, None] > 0, teacher, 0)
    np.testing.assert_allclose(own.advice.probabilities[:, :, 0], given, atol=1e-6)
    np.testing.assert_allclose(own.advice.strength[..., 0], np.repeat(strength[:, None], COPIES, 1), atol=1e-6)
    actor, critic = reference(group, own, teacher)
    learn(group, own)
    np.testing.assert_allclose(group.policy.flat.mean[0] / 0.1, actor, atol=1e-6)  # Adam's first moment: 0.1 · gradient
    np.testing.assert_allclose(group.learner.critic.flat.mean[0] / 0.1, critic, atol=1e-6)
    assert np.abs(actor).max() > 0.05


def test_while_values_warm_up_only_the_critic_follows_its_gradient():
    group, own, teacher = played(f"{LEARNER}.hand_over.warm_up=1", f"{LEARNER}.normalize_advantages=false")
    before, (actor, critic) = group.policy.flat.array.copy(), reference(group, own, teacher)
    learn(group, own)
    np.testing.assert_array_equal(group.policy.flat.array, before)
    np.testing.assert_allclose(np.sqrt(group.policy.flat.square[0] / 1e-3), np.abs(actor), atol=1e-6)
    np.testing.assert_allclose(group.learner.critic.flat.mean[0] / 0.1, critic, atol=1e-6)
