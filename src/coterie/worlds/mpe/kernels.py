"""Compiled kernels of the particle worlds: actions, physics, rewards, observations, episodes, scripted experts.

Formulas and constants are those of mpe2 1.1.1, evaluated in its order, so that
both agree to the last digits. Adversaries come first among the A agents; simple_spread has none.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from coterie.core.jit import device_function, jit
from coterie.core.splitmix import uniform
from coterie.core.types import Array
from coterie.nn.launch import kernel

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


@kernel
def forces_from_discrete(n: int, action: Array, strength: Array, force: Array) -> None:
    """Write the forces [N, A, 2] of discrete actions `[N, A]`: 0 does nothing, 1 … 4 push left, right, down, up."""
    for a in range(action.shape[1]):
        chosen = action[n, a]
        force[n, a, 0] = force[n, a, 1] = 0.0
        if chosen > 0:
            force[n, a, (chosen - 1) // 2] = strength[a] if chosen % 2 == 0 else -strength[a]


@kernel
def forces_from_continuous(n: int, action: Array, strength: Array, force: Array) -> None:
    """Do the same from float32 actions `[N, A, 5]` in [0, 1]: nothing, left, right, down, up."""
    for a in range(action.shape[1]):
        force[n, a, 0] = float(action[n, a, 2] - action[n, a, 1]) * strength[a]
        force[n, a, 1] = float(action[n, a, 4] - action[n, a, 3]) * strength[a]


# Physics --------------------------------------------------------------------------------------------


@device_function
def _contact(distance: float, least: float) -> float:
    """Penetration depth of two particles: a softplus, slightly above 0 before they touch."""
    depth = -(distance - least) / CONTACT_MARGIN
    return (max(depth, 0.0) + math.log1p(math.exp(-abs(depth)))) * CONTACT_MARGIN


@device_function
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
            distance = math.sqrt(square)
            depth = _contact(distance, least)
            fx, fy = CONTACT_FORCE * dx / distance * depth, CONTACT_FORCE * dy / distance * depth
            force[n, a, 0] += fx
            force[n, a, 1] += fy
            if b < agents:
                force[n, b, 0] -= fx
                force[n, b, 1] -= fy


@device_function
def _move(particles: ParticleState, rules: Rules, force: Array, n: int) -> None:
    """Move by the old velocity, then apply damping and force."""
    position, velocity = particles.position, particles.velocity
    for a in range(position.shape[1]):
        for axis in range(2):
            position[n, a, axis] += velocity[n, a, axis] * TIME_STEP
            velocity[n, a, axis] = velocity[n, a, axis] * (1 - DAMPING) + force[n, a, axis] * TIME_STEP
        if rules.tag:
            speed = math.sqrt(velocity[n, a, 0] ** 2 + velocity[n, a, 1] ** 2)
            if speed > rules.top_speed[a]:
                velocity[n, a, 0] = velocity[n, a, 0] / speed * rules.top_speed[a]
                velocity[n, a, 1] = velocity[n, a, 1] / speed * rules.top_speed[a]


# Rewards --------------------------------------------------------------------------------------------


@device_function
def _touch(particles: ParticleState, rules: Rules, n: int, a: int, b: int) -> bool:
    dx = particles.position[n, a, 0] - particles.position[n, b, 0]
    dy = particles.position[n, a, 1] - particles.position[n, b, 1]
    return math.sqrt(dx * dx + dy * dy) < rules.size[a] + rules.size[b]


@device_function
def _reward_spread(particles: ParticleState, rules: Rules, out: StepOutput, n: int) -> bool:
    """Charge the team for distances to landmarks and agents for collisions; true if all landmarks are covered."""
    position, landmarks, agents = particles.position, particles.landmarks, particles.position.shape[1]
    team, covered = 0.0, True
    for k in range(landmarks.shape[1]):
        least = math.inf
        for a in range(agents):
            dx, dy = position[n, a, 0] - landmarks[n, k, 0], position[n, a, 1] - landmarks[n, k, 1]
            least = min(least, dx * dx + dy * dy)
        least = math.sqrt(least)
        team -= least
        covered = covered and least < rules.size[0]
    for a in range(agents):
        own = 0.0
        for b in range(agents):
            if b != a and _touch(particles, rules, n, a, b):
                own -= 1.0
        out.reward[n, a] = team * (1 - rules.local_ratio) + own * rules.local_ratio
    return covered


@device_function
def _boundary_penalty(x: float) -> float:
    """The penalty for position x along one axis, growing from 0.9 on."""
    x = abs(x)
    if x < 0.9:
        return 0.0
    return (x - 0.9) * 10 if x < 1.0 else min(math.exp(2 * x - 2), 10.0)


@device_function
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


@kernel
def observe(n: int, particles: ParticleState, rules: Rules, out: Array) -> None:
    """Write into `out` [N, A, D] what all agents observe.

    These are velocity, position, relative positions of landmarks and agents, and velocities of other good agents.

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


# Episodes -------------------------------------------------------------------------------------------


@kernel
def start_episode(n: int, particles: ParticleState, rules: Rules) -> None:
    """Start a new episode: agents at rest at uniform positions in the square."""
    for a in range(particles.position.shape[1]):
        for axis in range(2):
            particles.position[n, a, axis] = 2 * uniform(particles.random, n) - 1
            particles.velocity[n, a, axis] = 0.0
    for k in range(particles.landmarks.shape[1]):
        for axis in range(2):
            particles.landmarks[n, k, axis] = rules.landmark_range * (2 * uniform(particles.random, n) - 1)
    particles.time[n] = 0
    particles.caught[n] = False


@device_function
def _store_final(particles: ParticleState, final: ParticleState, n: int) -> None:
    """Store the last scene of an episode for rendering."""
    final.time[n] = particles.time[n]
    for axis in range(2):
        for a in range(particles.position.shape[1]):
            final.position[n, a, axis] = particles.position[n, a, axis]
            final.velocity[n, a, axis] = particles.velocity[n, a, axis]
        for k in range(particles.landmarks.shape[1]):
            final.landmarks[n, k, axis] = particles.landmarks[n, k, axis]


@kernel
def step(n: int, particles: ParticleState, final: ParticleState, rules: Rules, force: Array, out: StepOutput) -> None:
    """Take one step under the actions' forces `force` [N, A, 2], and start the next episode where one ends."""
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
        observe(n, particles, rules, out.final_observation)
        _store_final(particles, final, n)
        start_episode(n, particles, rules)
    observe(n, particles, rules, out.observation)


# Scripted experts -----------------------------------------------------------------------------------
# They write desired forces [N, A, 2] in units of the full force, which may exceed 1. Without force an agent coasts to
# position + COAST · velocity; one step of full force moves that end point by COAST · strength · TIME_STEP.


@device_function
def _steer_to(particles: ParticleState, rules: Rules, n: int, a: int, target: Array, desired: Array) -> None:
    """Write the force that brings an agent to rest at a point."""
    reach = COAST * rules.strength[a] * TIME_STEP
    for axis in range(2):
        end = particles.position[n, a, axis] + COAST * particles.velocity[n, a, axis]
        desired[n, a, axis] = (target[axis] - end) / reach


@kernel
def cover(n: int, particles: ParticleState, rules: Rules, taken: Array, desired: Array) -> None:
    """Expert of simple_spread: pair agents and landmarks greedily by distance and steer to the own landmark.

    `taken` [N, 2, A] bool is scratch: agents and landmarks that have been paired.
    """
    agents = particles.position.shape[1]
    for a in range(agents):
        taken[n, 0, a] = taken[n, 1, a] = False
    for _ in range(agents):
        least, agent, landmark = math.inf, 0, 0
        for a in range(agents):
            for k in range(agents):
                dx = particles.position[n, a, 0] - particles.landmarks[n, k, 0]
                dy = particles.position[n, a, 1] - particles.landmarks[n, k, 1]
                if not taken[n, 0, a] and not taken[n, 1, k] and dx * dx + dy * dy < least:
                    least, agent, landmark = dx * dx + dy * dy, a, k
        taken[n, 0, agent] = taken[n, 1, landmark] = True
        _steer_to(particles, rules, n, agent, particles.landmarks[n, landmark], desired)


@kernel
def ways(n: int, particles: ParticleState, rules: Rules, desired: Array, actions: Array) -> None:
    """Skills of simple_spread: write the discrete action that steers each agent to each landmark, `[N, A, L, 5]`.

    `desired` [N, A, 2] is scratch.
    """
    for a in range(particles.position.shape[1]):
        for k in range(particles.landmarks.shape[1]):
            _steer_to(particles, rules, n, a, particles.landmarks[n, k], desired)
            axis = 0 if abs(desired[n, a, 0]) >= abs(desired[n, a, 1]) else 1
            push, action = desired[n, a, axis], 0
            if abs(push) > 0.5:
                action = 1 + 2 * axis + (push > 0)
            for j in range(5):
                actions[n, a, k, j] = j == action


@jit
def assign(particles: ParticleState, goals: Array) -> None:  # on the CPU only: its scratch grows as 2^A
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
                distance[a, k] = math.hypot(offset[0], offset[1])
        least[:], least[0] = math.inf, 0.0
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


@device_function
def _nearest(particles: ParticleState, n: int, x: float, y: float, team: tuple[int, int]) -> tuple[int, float]:
    """The agent with an index in `range(*team)` that is nearest to a point, and its distance."""
    nearest, least = team[0], math.inf
    for b in range(team[0], team[1]):
        distance = math.hypot(particles.position[n, b, 0] - x, particles.position[n, b, 1] - y)
        if distance < least:
            nearest, least = b, distance
    return nearest, least


@kernel
def chase(n: int, particles: ParticleState, rules: Rules, desired: Array) -> None:
    """Expert of the adversaries in simple_tag: steer to the nearest good agent."""
    good = (rules.adversaries, particles.position.shape[1])
    for a in range(rules.adversaries):
        prey, _ = _nearest(particles, n, particles.position[n, a, 0], particles.position[n, a, 1], good)
        _steer_to(particles, rules, n, a, particles.position[n, prey], desired)


@kernel
def flee(n: int, particles: ParticleState, rules: Rules, diagonal: bool, desired: Array) -> None:
    """Expert of the good agents in simple_tag: maximise the coasting end's distance to adversaries, inside EDGE."""
    chasers = (0, rules.adversaries)
    for a in range(rules.adversaries, particles.position.shape[1]):
        reach, best = COAST * rules.strength[a] * TIME_STEP, -math.inf
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
