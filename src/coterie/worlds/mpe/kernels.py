"""Compiled kernels of the particle worlds: actions, physics, rewards, observations, episodes, scripted experts.

Every kernel runs over all N copies. Formulas and constants are those of mpe2 1.1.1, evaluated in its order, so that
both agree to the last digits. Adversaries come first among the A agents; simple_spread has none.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from coterie.core.splitmix import uniform
from coterie.core.types import Array

TIME_STEP = 0.1
DAMPING = 0.25  # fraction of the velocity lost in a step
CONTACT_FORCE = 1e2
CONTACT_MARGIN = 1e-3
CONTACT_RANGE = 50 * CONTACT_MARGIN  # largest gap with a contact force; beyond it the force is below 1e-20
COAST = TIME_STEP / DAMPING  # distance that one unit of velocity carries an agent without force
CATCH_REWARD = 10.0
EDGE = 0.8  # the fleeing expert stays inside this bound; penalties begin at 0.9


class ParticleState(NamedTuple):
    """The full state of N copies, random state included; what `save` stores."""

    random: Array  # [N] uint64: state of each copy's generator
    time: Array  # [N] int32: steps taken in this episode
    position: Array  # [N, A, 2] float64: x to the right, y upwards
    velocity: Array  # [N, A, 2] float64
    landmarks: Array  # [N, L, 2] float64
    caught: Array  # [N] bool: an adversary has touched a good agent in this episode


class Rules(NamedTuple):
    """The settings as the kernels read them."""

    tag: bool  # simple_tag, otherwise simple_spread
    adversaries: int
    max_steps: int
    local_ratio: float
    landmark_range: float  # landmarks start within ± this along each axis
    size: Array  # [A + L] float64: radius of agents, then of landmarks
    strength: Array  # [A] float64: force of a full action
    top_speed: Array  # [A] float64: inf for no limit


class StepOutput(NamedTuple):
    """The arrays that a step writes; observation rows are as wide as those of the widest agent type."""

    observation: Array  # [N, A, D] float32
    final_observation: Array  # [N, A, D] float32, written where the copy ended
    reward: Array  # [N, A] float32
    truncated: Array  # [N, A] bool
    ended: Array  # [N] bool
    success: Array  # [N] bool


# Actions --------------------------------------------------------------------------------------------


@njit(cache=True)
def forces_from_discrete(actions: Array, strength: Array, first: int, force: Array) -> int:
    """Write the forces of one agent type, whose agents start at index `first`, from discrete actions `[N, K]`.

    0 does nothing, 1 … 4 push left, right, down, up. Returns the flat index (copy · K + agent) of an action out of
    range, or −1.
    """
    num_envs, agents = actions.shape
    for n in range(num_envs):
        for i in range(agents):
            action, a = actions[n, i], first + i
            if action < 0 or action > 4:
                return n * agents + i
            force[n, a, 0] = force[n, a, 1] = 0.0
            if action > 0:
                force[n, a, (action - 1) // 2] = strength[a] if action % 2 == 0 else -strength[a]
    return -1


@njit(cache=True)
def forces_from_continuous(actions: Array, strength: Array, first: int, force: Array) -> int:
    """Do the same from float32 actions `[N, K, 5]` in [0, 1]: nothing, left, right, down, up."""
    num_envs, agents, _ = actions.shape
    for n in range(num_envs):
        for i in range(agents):
            for j in range(5):
                if not 0.0 <= actions[n, i, j] <= 1.0:  # also true for NaN
                    return n * agents + i
            a = first + i
            force[n, a, 0] = np.float64(actions[n, i, 2] - actions[n, i, 1]) * strength[a]
            force[n, a, 1] = np.float64(actions[n, i, 4] - actions[n, i, 3]) * strength[a]
    return -1


# Physics --------------------------------------------------------------------------------------------


@njit(cache=True)
def _contact(distance: float, least: float) -> float:
    """Penetration depth of two particles: a softplus, slightly above 0 before they touch."""
    depth = -(distance - least) / CONTACT_MARGIN
    return (max(depth, 0.0) + np.log1p(np.exp(-abs(depth)))) * CONTACT_MARGIN


@njit(cache=True)
def _collide(particles: ParticleState, rules: Rules, force: Array, n: int) -> None:
    """Add the contact forces between particles; the landmarks of simple_spread have none."""
    position, landmarks = particles.position, particles.landmarks
    agents = position.shape[1]
    others = agents + (landmarks.shape[1] if rules.tag else 0)
    for a in range(agents):
        for b in range(a + 1, others):
            if b < agents:
                dx = position[n, a, 0] - position[n, b, 0]
                dy = position[n, a, 1] - position[n, b, 1]
            else:
                dx = position[n, a, 0] - landmarks[n, b - agents, 0]
                dy = position[n, a, 1] - landmarks[n, b - agents, 1]
            least, square = rules.size[a] + rules.size[b], dx * dx + dy * dy
            # At distance 0 the direction is undefined; mpe2 divides by 0 there.
            if square > (least + CONTACT_RANGE) ** 2 or square == 0.0:
                continue
            distance = np.sqrt(square)
            depth = _contact(distance, least)
            fx, fy = CONTACT_FORCE * dx / distance * depth, CONTACT_FORCE * dy / distance * depth
            force[n, a, 0] += fx
            force[n, a, 1] += fy
            if b < agents:
                force[n, b, 0] -= fx
                force[n, b, 1] -= fy


@njit(cache=True)
def _move(particles: ParticleState, rules: Rules, force: Array, n: int) -> None:
    """Move by the old velocity, then apply damping and force."""
    position, velocity = particles.position, particles.velocity
    for a in range(position.shape[1]):
        for axis in range(2):
            position[n, a, axis] += velocity[n, a, axis] * TIME_STEP
            velocity[n, a, axis] = velocity[n, a, axis] * (1 - DAMPING) + force[n, a, axis] * TIME_STEP
        if rules.tag:
            speed = np.sqrt(velocity[n, a, 0] ** 2 + velocity[n, a, 1] ** 2)
            if speed > rules.top_speed[a]:
                velocity[n, a, 0] = velocity[n, a, 0] / speed * rules.top_speed[a]
                velocity[n, a, 1] = velocity[n, a, 1] / speed * rules.top_speed[a]


# Rewards --------------------------------------------------------------------------------------------


@njit(cache=True)
def _touch(particles: ParticleState, rules: Rules, n: int, a: int, b: int) -> bool:
    dx = particles.position[n, a, 0] - particles.position[n, b, 0]
    dy = particles.position[n, a, 1] - particles.position[n, b, 1]
    return np.sqrt(dx * dx + dy * dy) < rules.size[a] + rules.size[b]


@njit(cache=True)
def _reward_spread(particles: ParticleState, rules: Rules, out: StepOutput, n: int) -> bool:
    """Charge the team for distances to landmarks and agents for collisions; true if all landmarks are covered."""
    position, landmarks, agents = particles.position, particles.landmarks, particles.position.shape[1]
    team, covered = 0.0, True
    for k in range(landmarks.shape[1]):
        least = np.inf
        for a in range(agents):
            dx, dy = position[n, a, 0] - landmarks[n, k, 0], position[n, a, 1] - landmarks[n, k, 1]
            least = min(least, dx * dx + dy * dy)
        least = np.sqrt(least)
        team -= least
        covered = covered and least < rules.size[0]
    for a in range(agents):
        own = 0.0
        for b in range(agents):
            if b != a and _touch(particles, rules, n, a, b):
                own -= 1.0
        out.reward[n, a] = team * (1 - rules.local_ratio) + own * rules.local_ratio
    return covered


@njit(cache=True)
def _boundary_penalty(x: float) -> float:
    """The penalty for position x along one axis, growing from 0.9 on."""
    x = abs(x)
    if x < 0.9:
        return 0.0
    return (x - 0.9) * 10 if x < 1.0 else min(np.exp(2 * x - 2), 10.0)


@njit(cache=True)
def _reward_tag(particles: ParticleState, rules: Rules, out: StepOutput, n: int) -> bool:
    """Pay all adversaries for every catch and charge the caught agents; true after a catch in this episode."""
    catches = 0
    for a in range(rules.adversaries, particles.position.shape[1]):
        own = 0
        for b in range(rules.adversaries):
            own += _touch(particles, rules, n, a, b)
        catches += own
        loss = (
            -CATCH_REWARD * own
            - _boundary_penalty(particles.position[n, a, 0])
            - _boundary_penalty(particles.position[n, a, 1])
        )
        out.reward[n, a] = loss
    for b in range(rules.adversaries):
        out.reward[n, b] = CATCH_REWARD * catches
    particles.caught[n] |= catches > 0
    return bool(particles.caught[n])


# Observations ---------------------------------------------------------------------------------------


@njit(cache=True)
def _observe(particles: ParticleState, rules: Rules, n: int, out: Array) -> None:
    """Write velocity, position, relative positions of landmarks and agents, and velocities of other good agents.

    The last entries of simple_spread hold messages, which its agents cannot send: zeros that are never written.
    """
    position, velocity, landmarks = particles.position, particles.velocity, particles.landmarks
    agents = position.shape[1]
    for a in range(agents):
        x, y = position[n, a, 0], position[n, a, 1]
        out[n, a, 0], out[n, a, 1] = velocity[n, a, 0], velocity[n, a, 1]
        out[n, a, 2], out[n, a, 3] = x, y
        at = 4
        for k in range(landmarks.shape[1]):
            out[n, a, at], out[n, a, at + 1] = landmarks[n, k, 0] - x, landmarks[n, k, 1] - y
            at += 2
        for b in range(agents):
            if b != a:
                out[n, a, at], out[n, a, at + 1] = position[n, b, 0] - x, position[n, b, 1] - y
                at += 2
        if rules.tag:
            for b in range(rules.adversaries, agents):
                if b != a:
                    out[n, a, at], out[n, a, at + 1] = velocity[n, b, 0], velocity[n, b, 1]
                    at += 2


@njit(cache=True)
def observe(particles: ParticleState, rules: Rules, out: Array) -> None:
    """Write the observations of all agents of all copies into `out` [N, A, D]."""
    for n in range(len(particles.time)):
        _observe(particles, rules, n, out)


# Episodes -------------------------------------------------------------------------------------------


@njit(cache=True)
def _start_episode(particles: ParticleState, rules: Rules, n: int) -> None:
    """Start a new episode in copy n: agents at rest at uniform positions in the square."""
    for a in range(particles.position.shape[1]):
        for axis in range(2):
            particles.position[n, a, axis] = 2 * uniform(particles.random, n) - 1
            particles.velocity[n, a, axis] = 0.0
    for k in range(particles.landmarks.shape[1]):
        for axis in range(2):
            particles.landmarks[n, k, axis] = rules.landmark_range * (2 * uniform(particles.random, n) - 1)
    particles.time[n] = 0
    particles.caught[n] = False


@njit(cache=True)
def start_all(particles: ParticleState, rules: Rules) -> None:
    """Start a new episode in every copy."""
    for n in range(len(particles.time)):
        _start_episode(particles, rules, n)


@njit(cache=True)
def _store_final(particles: ParticleState, final: ParticleState, n: int) -> None:
    """Store the last scene of an episode for rendering."""
    final.time[n] = particles.time[n]
    final.position[n] = particles.position[n]
    final.velocity[n] = particles.velocity[n]
    final.landmarks[n] = particles.landmarks[n]


@njit(cache=True)
def step(particles: ParticleState, final: ParticleState, rules: Rules, force: Array, out: StepOutput) -> None:
    """Take one step in every copy under the actions' forces `force` [N, A, 2], and reset those that end."""
    for n in range(len(particles.time)):
        _collide(particles, rules, force, n)
        _move(particles, rules, force, n)
        success = _reward_tag(particles, rules, out, n) if rules.tag else _reward_spread(particles, rules, out, n)
        particles.time[n] += 1
        ended = particles.time[n] >= rules.max_steps
        out.ended[n] = ended
        out.success[n] = ended and success
        for a in range(particles.position.shape[1]):
            out.truncated[n, a] = ended
        if ended:
            _observe(particles, rules, n, out.final_observation)
            _store_final(particles, final, n)
            _start_episode(particles, rules, n)
        _observe(particles, rules, n, out.observation)


# Scripted experts -----------------------------------------------------------------------------------
# They write desired forces [N, A, 2] in units of the full force, which may exceed 1. Without force an agent coasts to
# position + COAST · velocity; one step of full force moves that end point by COAST · strength · TIME_STEP.


@njit(cache=True)
def _steer_to(particles: ParticleState, rules: Rules, n: int, a: int, target: Array, desired: Array) -> None:
    """Write the force that brings an agent to rest at a point."""
    reach = COAST * rules.strength[a] * TIME_STEP
    for axis in range(2):
        end = particles.position[n, a, axis] + COAST * particles.velocity[n, a, axis]
        desired[n, a, axis] = (target[axis] - end) / reach


@njit(cache=True)
def cover(particles: ParticleState, rules: Rules, desired: Array) -> None:
    """Expert of simple_spread: pair agents and landmarks greedily by distance and steer to the own landmark."""
    agents = particles.position.shape[1]
    free, uncovered = np.empty(agents, np.bool_), np.empty(agents, np.bool_)
    for n in range(len(particles.time)):
        free[:], uncovered[:] = True, True
        for _ in range(agents):
            least, agent, landmark = np.inf, 0, 0
            for a in range(agents):
                for k in range(agents):
                    dx = particles.position[n, a, 0] - particles.landmarks[n, k, 0]
                    dy = particles.position[n, a, 1] - particles.landmarks[n, k, 1]
                    if free[a] and uncovered[k] and dx * dx + dy * dy < least:
                        least, agent, landmark = dx * dx + dy * dy, a, k
            free[agent], uncovered[landmark] = False, False
            _steer_to(particles, rules, n, agent, particles.landmarks[n, landmark], desired)


@njit(cache=True)
def ways(particles: ParticleState, rules: Rules, actions: Array) -> None:
    """Skills of simple_spread: write the discrete action that steers each agent to each landmark, `[N, A, L, 5]`."""
    desired = np.empty(particles.position.shape)
    for n in range(len(particles.time)):
        for a in range(particles.position.shape[1]):
            for k in range(particles.landmarks.shape[1]):
                _steer_to(particles, rules, n, a, particles.landmarks[n, k], desired)
                axis = 0 if abs(desired[n, a, 0]) >= abs(desired[n, a, 1]) else 1
                push, action = desired[n, a, axis], 0
                if abs(push) > 0.5:
                    action = 1 + 2 * axis + (push > 0)
                actions[n, a, k] = 0
                actions[n, a, k, action] = 1


@njit(cache=True)
def assign(particles: ParticleState, goals: Array) -> None:
    """Write the assignment of agents to landmarks, `goals` [N, A], of the least sum of distances.

    Agents are assigned one after the other; `least` holds the least sum for every set of landmarks in use.
    """
    agents = particles.position.shape[1]
    sets = 1 << agents
    least, last = np.empty(sets), np.empty(sets, np.int64)
    distance = np.empty((agents, agents))
    for n in range(len(particles.time)):
        for a in range(agents):
            for k in range(agents):
                offset = particles.position[n, a] - particles.landmarks[n, k]
                distance[a, k] = np.hypot(offset[0], offset[1])
        least[:], least[0] = np.inf, 0.0
        for used in range(1, sets):
            a = -1  # the agent that comes last
            for k in range(agents):
                a += used >> k & 1
            for k in range(agents):
                if used >> k & 1 and least[used ^ (1 << k)] + distance[a, k] < least[used]:
                    least[used], last[used] = least[used ^ (1 << k)] + distance[a, k], k
        used = sets - 1
        for a in range(agents - 1, -1, -1):
            goals[n, a] = last[used]
            used ^= 1 << goals[n, a]


@njit(cache=True)
def _nearest(particles: ParticleState, n: int, x: float, y: float, team: tuple[int, int]) -> tuple[int, float]:
    """The agent with an index in `range(*team)` that is nearest to a point, and its distance."""
    nearest, least = team[0], np.inf
    for b in range(team[0], team[1]):
        distance = np.hypot(particles.position[n, b, 0] - x, particles.position[n, b, 1] - y)
        if distance < least:
            nearest, least = b, distance
    return nearest, least


@njit(cache=True)
def chase(particles: ParticleState, rules: Rules, desired: Array) -> None:
    """Expert of the adversaries in simple_tag: steer to the nearest good agent."""
    good = (rules.adversaries, particles.position.shape[1])
    for n in range(len(particles.time)):
        for a in range(rules.adversaries):
            prey, _ = _nearest(particles, n, particles.position[n, a, 0], particles.position[n, a, 1], good)
            _steer_to(particles, rules, n, a, particles.position[n, prey], desired)


@njit(cache=True)
def flee(particles: ParticleState, rules: Rules, diagonal: bool, desired: Array) -> None:
    """Expert of the good agents in simple_tag: maximise the coasting end's distance to adversaries, inside EDGE."""
    chasers = (0, rules.adversaries)
    for n in range(len(particles.time)):
        for a in range(rules.adversaries, particles.position.shape[1]):
            reach, best = COAST * rules.strength[a] * TIME_STEP, -np.inf
            for px in range(-1, 2):
                for py in range(-1, 2):
                    if px != 0 and py != 0 and not diagonal:
                        continue
                    x = particles.position[n, a, 0] + COAST * particles.velocity[n, a, 0] + reach * px
                    y = particles.position[n, a, 1] + COAST * particles.velocity[n, a, 1] + reach * py
                    _, score = _nearest(particles, n, x, y, chasers)
                    score -= 10 * (max(abs(x) - EDGE, 0.0) + max(abs(y) - EDGE, 0.0))
                    if score > best:
                        best = score
                        desired[n, a, 0], desired[n, a, 1] = px, py
