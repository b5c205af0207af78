"""Compiled loops of the particle worlds: actions, physics, rewards, observations, new episodes, reference players.

Every kernel runs over all N copies. Formulas and constants are those of mpe2 1.1.1, evaluated in its order, so that
both agree to the last digits. Adversaries come first among the A agents; spread is a world without any. Numba's
cache of `step` does not notice changes to `randomness.py`: after an edit there, remove `__pycache__`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from coterie.core.types import Array
from coterie.worlds.random import uniform

TIME_STEP = 0.1
DAMPING = 0.25  # share of the velocity lost in a step
CONTACT_FORCE = 1e2
CONTACT_MARGIN = 1e-3
FELT = 50 * CONTACT_MARGIN  # contact is felt up to this gap; beyond it the force is below 1e-20
COAST = TIME_STEP / DAMPING  # how far one unit of velocity still carries, left alone
CATCH_REWARD = 10.0
EDGE = 0.8  # the fleeing player keeps its coasting end inside: a penalty begins at 0.9


class Bodies(NamedTuple):
    """Where everything is: all that decides the future of N copies."""

    random: Array  # [N] uint64: state of each copy's generator
    time: Array  # [N] int32: steps taken in this episode
    position: Array  # [N, A, 2] float64: x to the right, y upwards
    velocity: Array  # [N, A, 2] float64
    landmarks: Array  # [N, L, 2] float64
    caught: Array  # [N] bool: an adversary has touched a good agent in this episode


class Rules(NamedTuple):
    """The settings that the kernels read."""

    tag: bool  # otherwise spread
    adversaries: int
    max_steps: int
    local_ratio: float
    spawn: float  # landmarks appear within ±spawn along each axis
    size: Array  # [A + L] float64: radius of agents, then of landmarks
    strength: Array  # [A] float64: force of a full push
    top_speed: Array  # [A] float64: inf without limit


class Outcome(NamedTuple):
    """What a step leaves behind; rows of observations are as wide as the widest kind's."""

    observation: Array  # [N, A, D] float32
    final_observation: Array  # [N, A, D] float32, written where the copy ended
    reward: Array  # [N, A] float32
    truncated: Array  # [N, A] bool
    ended: Array  # [N] bool
    success: Array  # [N] bool


# Actions --------------------------------------------------------------------------------------------


@njit(cache=True)
def push_discrete(actions: Array, strength: Array, first: int, force: Array) -> int:
    """Write the forces of one kind, whose agents begin at `first`, from choices `[N, K]`.

    0 rests, 1 … 4 push left, right, down, up. Returns the place (copy · K + agent) of an action out of range, or −1.
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
def push_continuous(actions: Array, strength: Array, first: int, force: Array) -> int:
    """The same from float32 numbers `[N, K, 5]` in [0, 1]: nothing, left, right, down, up."""
    num_envs, agents, _ = actions.shape
    for n in range(num_envs):
        for i in range(agents):
            for j in range(5):
                if not 0.0 <= actions[n, i, j] <= 1.0:  # NaN, too
                    return n * agents + i
            a = first + i
            force[n, a, 0] = np.float64(actions[n, i, 2] - actions[n, i, 1]) * strength[a]
            force[n, a, 1] = np.float64(actions[n, i, 4] - actions[n, i, 3]) * strength[a]
    return -1


# Physics --------------------------------------------------------------------------------------------


@njit(cache=True)
def _contact(distance: float, least: float) -> float:
    """How deep two bodies sink into each other: a softplus, a little above 0 before they touch."""
    depth = -(distance - least) / CONTACT_MARGIN
    return (max(depth, 0.0) + np.log1p(np.exp(-abs(depth)))) * CONTACT_MARGIN


@njit(cache=True)
def _collide(bodies: Bodies, rules: Rules, force: Array, n: int) -> None:
    """Add the forces between bodies that touch; the landmarks of spread touch nobody."""
    position, landmarks = bodies.position, bodies.landmarks
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
            # At distance 0 there is no direction to push in; mpe2 divides by 0 there.
            if square > (least + FELT) ** 2 or square == 0.0:
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
def _move(bodies: Bodies, rules: Rules, force: Array, n: int) -> None:
    """Move by the old velocity, then slow down, then accelerate."""
    position, velocity = bodies.position, bodies.velocity
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
def _touch(bodies: Bodies, rules: Rules, n: int, a: int, b: int) -> bool:
    dx = bodies.position[n, a, 0] - bodies.position[n, b, 0]
    dy = bodies.position[n, a, 1] - bodies.position[n, b, 1]
    return np.sqrt(dx * dx + dy * dy) < rules.size[a] + rules.size[b]


@njit(cache=True)
def _pay_spread(bodies: Bodies, rules: Rules, out: Outcome, n: int) -> bool:
    """Charge all for distant landmarks and each for its collisions; true when every landmark is covered."""
    position, landmarks, agents = bodies.position, bodies.landmarks, bodies.position.shape[1]
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
            if b != a and _touch(bodies, rules, n, a, b):
                own -= 1.0
        out.reward[n, a] = team * (1 - rules.local_ratio) + own * rules.local_ratio
    return covered


@njit(cache=True)
def _bound(x: float) -> float:
    """What it costs to be at x along one axis, growing from 0.9 on."""
    x = abs(x)
    if x < 0.9:
        return 0.0
    return (x - 0.9) * 10 if x < 1.0 else min(np.exp(2 * x - 2), 10.0)


@njit(cache=True)
def _pay_tag(bodies: Bodies, rules: Rules, out: Outcome, n: int) -> bool:
    """Pay all adversaries for every catch and charge the caught; true when there was one in this episode."""
    catches = 0
    for a in range(rules.adversaries, bodies.position.shape[1]):
        own = 0
        for b in range(rules.adversaries):
            own += _touch(bodies, rules, n, a, b)
        catches += own
        loss = -CATCH_REWARD * own - _bound(bodies.position[n, a, 0]) - _bound(bodies.position[n, a, 1])
        out.reward[n, a] = loss
    for b in range(rules.adversaries):
        out.reward[n, b] = CATCH_REWARD * catches
    bodies.caught[n] |= catches > 0
    return bool(bodies.caught[n])


# Observations ---------------------------------------------------------------------------------------


@njit(cache=True)
def _observe(bodies: Bodies, rules: Rules, n: int, out: Array) -> None:
    """Own velocity and position, where landmarks and others are from here, and how fast other good agents are.

    In spread the last part belongs to messages that nobody can send: zeros that are never written.
    """
    position, velocity, landmarks = bodies.position, bodies.velocity, bodies.landmarks
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
def observe(bodies: Bodies, rules: Rules, out: Array) -> None:
    """Write what every agent of every copy sees now into `out` [N, A, D]."""
    for n in range(len(bodies.time)):
        _observe(bodies, rules, n, out)


# Episodes -------------------------------------------------------------------------------------------


@njit(cache=True)
def _spawn(bodies: Bodies, rules: Rules, n: int) -> None:
    """Begin a new episode in copy n: everybody at rest somewhere in the square."""
    for a in range(bodies.position.shape[1]):
        for axis in range(2):
            bodies.position[n, a, axis] = 2 * uniform(bodies.random, n) - 1
            bodies.velocity[n, a, axis] = 0.0
    for k in range(bodies.landmarks.shape[1]):
        for axis in range(2):
            bodies.landmarks[n, k, axis] = rules.spawn * (2 * uniform(bodies.random, n) - 1)
    bodies.time[n] = 0
    bodies.caught[n] = False


@njit(cache=True)
def spawn(bodies: Bodies, rules: Rules) -> None:
    """Begin a new episode in every copy."""
    for n in range(len(bodies.time)):
        _spawn(bodies, rules, n)


@njit(cache=True)
def _keep(bodies: Bodies, last: Bodies, n: int) -> None:
    """Remember how an episode ended, for pictures of it."""
    last.time[n] = bodies.time[n]
    last.position[n] = bodies.position[n]
    last.velocity[n] = bodies.velocity[n]
    last.landmarks[n] = bodies.landmarks[n]


@njit(cache=True)
def step(bodies: Bodies, last: Bodies, rules: Rules, force: Array, out: Outcome) -> None:
    """Take one step in every copy under the pushes `force` [N, A, 2], and begin anew those that end."""
    for n in range(len(bodies.time)):
        _collide(bodies, rules, force, n)
        _move(bodies, rules, force, n)
        success = _pay_tag(bodies, rules, out, n) if rules.tag else _pay_spread(bodies, rules, out, n)
        bodies.time[n] += 1
        ended = bodies.time[n] >= rules.max_steps
        out.ended[n] = ended
        out.success[n] = ended and success
        for a in range(bodies.position.shape[1]):
            out.truncated[n, a] = ended
        if ended:
            _observe(bodies, rules, n, out.final_observation)
            _keep(bodies, last, n)
            _spawn(bodies, rules, n)
        _observe(bodies, rules, n, out.observation)


# Reference players ----------------------------------------------------------------------------------
# They wish for pushes [N, A, 2] in units of a full one, which may be longer than anybody can push. An agent left
# alone coasts to position + COAST · velocity; a full push moves that end by COAST · strength · TIME_STEP.


@njit(cache=True)
def _aim(bodies: Bodies, rules: Rules, n: int, a: int, target: Array, wish: Array) -> None:
    """Wish to come to rest at a point."""
    reach = COAST * rules.strength[a] * TIME_STEP
    for axis in range(2):
        end = bodies.position[n, a, axis] + COAST * bodies.velocity[n, a, axis]
        wish[n, a, axis] = (target[axis] - end) / reach


@njit(cache=True)
def cover(bodies: Bodies, rules: Rules, wish: Array) -> None:
    """Spread: the closest pair of an agent and a landmark belong together, then the closest of the rest, …"""
    agents = bodies.position.shape[1]
    free, bare = np.empty(agents, np.bool_), np.empty(agents, np.bool_)
    for n in range(len(bodies.time)):
        free[:], bare[:] = True, True
        for _ in range(agents):
            least, agent, landmark = np.inf, 0, 0
            for a in range(agents):
                for k in range(agents):
                    dx = bodies.position[n, a, 0] - bodies.landmarks[n, k, 0]
                    dy = bodies.position[n, a, 1] - bodies.landmarks[n, k, 1]
                    if free[a] and bare[k] and dx * dx + dy * dy < least:
                        least, agent, landmark = dx * dx + dy * dy, a, k
            free[agent], bare[landmark] = False, False
            _aim(bodies, rules, n, agent, bodies.landmarks[n, landmark], wish)


@njit(cache=True)
def _nearest(bodies: Bodies, n: int, x: float, y: float, team: tuple[int, int]) -> tuple[int, float]:
    """The agent of a team, from its first to before its last number, nearest to a point, and its distance."""
    nearest, least = team[0], np.inf
    for b in range(team[0], team[1]):
        distance = np.hypot(bodies.position[n, b, 0] - x, bodies.position[n, b, 1] - y)
        if distance < least:
            nearest, least = b, distance
    return nearest, least


@njit(cache=True)
def chase(bodies: Bodies, rules: Rules, wish: Array) -> None:
    """Tag's adversaries: each runs to where the nearest good agent is."""
    good = (rules.adversaries, bodies.position.shape[1])
    for n in range(len(bodies.time)):
        for a in range(rules.adversaries):
            prey, _ = _nearest(bodies, n, bodies.position[n, a, 0], bodies.position[n, a, 1], good)
            _aim(bodies, rules, n, a, bodies.position[n, prey], wish)


@njit(cache=True)
def flee(bodies: Bodies, rules: Rules, diagonal: bool, wish: Array) -> None:
    """Tag's good agents: of all full pushes the one whose coasting end is farthest from adversaries, inside."""
    hunters = (0, rules.adversaries)
    for n in range(len(bodies.time)):
        for a in range(rules.adversaries, bodies.position.shape[1]):
            reach, best = COAST * rules.strength[a] * TIME_STEP, -np.inf
            for px in range(-1, 2):
                for py in range(-1, 2):
                    if px != 0 and py != 0 and not diagonal:
                        continue
                    x = bodies.position[n, a, 0] + COAST * bodies.velocity[n, a, 0] + reach * px
                    y = bodies.position[n, a, 1] + COAST * bodies.velocity[n, a, 1] + reach * py
                    _, score = _nearest(bodies, n, x, y, hunters)
                    score -= 10 * (max(abs(x) - EDGE, 0.0) + max(abs(y) - EDGE, 0.0))
                    if score > best:
                        best = score
                        wish[n, a, 0], wish[n, a, 1] = px, py
