"""Joint transitions of all groups for centralized critics: observations and actions before and after a step.

One row is one time step of one copy of the world. A row is complete once the next decision of every agent is known, or
no agent decides again. The last step of a rollout is therefore pending until the next rollout begins. Worlds are
simultaneous here: every agent that is still in its episode acts at every step; the numbers of all others are 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from coterie.core.decisions import Decisions, Joint
from coterie.core.group import GroupInfo
from coterie.core.types import Array, Box, Discrete, State
from coterie.nn.packing import Layout, encode, encoded_size, input_range, layout, pack


class JointTransitions(NamedTuple):
    """R transitions: O observed numbers and U encoded actions of all E agents, rewards of the group's own A agents."""

    observation: Array  # [R, O] float32
    action: Array  # [R, U] float32
    legal: Array  # [R, U] bool
    reward: Array  # [R, A] float32
    discount: Array  # [R, A] float32: of the next value; 0 where the episode terminated
    valid: Array  # [R, A] bool: the agent decided, and the outcome is known
    next_obs: Array  # [R, O] float32: the final observation where an episode was truncated
    next_action: Array  # [R, U] float32: the latest action again where an episode was truncated
    next_legal: Array  # [R, U] bool: that of the latest action again where an episode was truncated
    next_active: Array  # [R, E] bool: the agent has a next action; the numbers of others are 0


class PendingSteps(NamedTuple):
    """Time steps as rows; between rollouts the latest step of every copy, with no agent active where it is complete."""

    observation: Array  # [N, O]
    action: Array  # [N, U]
    legal: Array  # [N, U] bool
    reward: Array  # [N, A]
    active: Array  # [N, E] bool
    terminated: Array  # [N, E] bool
    truncated: Array  # [N, E] bool
    beyond: Array  # [N, O]: what truncated agents saw last; other numbers mean nothing


def save_pending(pending: PendingSteps | None) -> State:
    """Pending steps for a checkpoint; {} before the first decisions."""
    return {} if pending is None else {name: array.copy() for name, array in pending._asdict().items()}


def load_pending(state: State) -> PendingSteps | None:
    """The inverse."""
    return PendingSteps(**{name: array.copy() for name, array in state.items()}) if state else None


class GroupSlices(NamedTuple):
    """Slices of one group in a row of all groups."""

    info: GroupInfo
    layout: Layout
    agents: slice  # of E
    obs: slice  # of O, agent after agent
    action: slice  # of U, agent after agent
    action_size: int  # numbers of one agent's encoded action

    def observations(self, rows: Array) -> Array:
        """This group's part `[…, A, D]` of all observations `[…, O]`."""
        return rows[..., self.obs].reshape(*rows.shape[:-1], self.info.agents, self.layout.size)

    def actions(self, rows: Array) -> Array:
        """This group's part `[…, A, K]` of all actions, or of all masks, `[…, U]`."""
        return rows[..., self.action].reshape(*rows.shape[:-1], self.info.agents, self.action_size)


class JointLayout:
    """The layout of rows of all groups, and how experience becomes such rows."""

    def __init__(self, groups: Sequence[GroupInfo], own_group: str) -> None:
        self.groups: dict[str, GroupSlices] = {}
        agents = obs = action = 0
        for info in groups:
            lay, width = layout(info.spaces.observation), encoded_size(info.spaces.action)
            ends = agents + info.agents, obs + info.agents * lay.size, action + info.agents * width
            members, seen, acts = (slice(a, b) for a, b in zip((agents, obs, action), ends))
            self.groups[info.group] = GroupSlices(info, lay, members, seen, acts, width)
            agents, obs, action = ends
        self.num_agents, self.obs_size, self.action_size = agents, obs, action
        self.own = self.groups[own_group]
        parts = self.groups.values()
        numbers = [np.arange(part.agents.start, part.agents.stop) for part in parts]
        self.obs_agent = np.concatenate([n.repeat(part.layout.size) for n, part in zip(numbers, parts)])  # [O] of E
        self.action_agent = np.concatenate([n.repeat(part.action_size) for n, part in zip(numbers, parts)])  # [U] of E

    def observation_space(self) -> Box:
        """All observations as one space, with their bounds."""
        ends = []
        for part in self.groups.values():
            middle, half = input_range(part.layout)
            ends.append(np.tile(np.stack([middle - half, middle + half]), part.info.agents))
        low, high = np.concatenate(ends, axis=1)
        return Box((self.obs_size,), low, high)

    def empty_rows(self, rows: int) -> JointTransitions:
        """Arrays for some transitions."""
        obs, action, agents = (rows, self.obs_size), (rows, self.action_size), (rows, self.own.info.agents)
        return JointTransitions(
            np.zeros(obs, np.float32),
            np.zeros(action, np.float32),
            np.ones(action, bool),
            np.zeros(agents, np.float32),
            np.zeros(agents, np.float32),
            np.zeros(agents, bool),
            np.zeros(obs, np.float32),
            np.zeros(action, np.float32),
            np.ones(action, bool),
            np.zeros((rows, self.num_agents), bool),
        )

    def nothing_pending(self, num_envs: int) -> PendingSteps:
        """The pending steps before the first rollout."""
        like, ends = self.empty_rows(num_envs), np.zeros((num_envs, self.num_agents), bool)
        return PendingSteps(
            like.observation, like.action, like.legal, like.reward, ends, ends.copy(), ends.copy(), like.next_obs
        )

    def steps(self, joint: Joint, rewards: Array) -> PendingSteps:
        """A rollout as rows `[T, N, …]`, with the learning group's rewards `[T, N, A]`."""
        parts = [(part, joint.decisions[name]) for name, part in self.groups.items()]
        shape = rewards.shape[:2]
        masks = [np.broadcast_to(_mask(p, e), (*shape, e.valid.shape[2], p.action_size)) for p, e in parts]
        seen = [pack(p.layout, e.observation) for p, e in parts]
        beyond = [rows[1:] for rows in seen]
        if any(e.truncated.any() for _, e in parts):
            beyond = [e.at_next(rows, pack(p.layout, e.finals.observation)) for rows, (p, e) in zip(seen, parts)]
        return PendingSteps(
            _concatenate([rows[:-1] for rows in seen]),
            _concatenate([encode(p.info.spaces.action, e.action) for p, e in parts]),
            _concatenate(masks),
            rewards.astype(np.float32, copy=False),
            np.concatenate([e.valid for _, e in parts], axis=2),
            np.concatenate([e.terminated for _, e in parts], axis=2),
            np.concatenate([e.truncated for _, e in parts], axis=2),
            _concatenate(beyond),
        )

    def complete(
        self, joint: Joint, rewards: Array, pending: PendingSteps | None, gamma: float
    ) -> tuple[JointTransitions, PendingSteps, PendingSteps]:
        """The transitions that a rollout completes, in the order of time; the steps that stay pending; all its steps.

        `pending` is what the rollout before left; None: there was none.
        """
        steps = self.steps(joint, rewards)
        if pending is None:
            pending = self.nothing_pending(rewards.shape[1])
        all_rows = PendingSteps(*(np.concatenate([before[None], now]) for before, now in zip(pending, steps)))
        active, last = all_rows.active, len(all_rows.active) - 1  # [T + 1, N, E]
        stays = active & ~(all_rows.terminated | all_rows.truncated)  # the agent decides again
        after = np.concatenate([active[1:], np.zeros_like(active[:1])])
        mine = self.own.agents
        valid = active[..., mine] & (~stays | after)[..., mine]
        known = ~stays.any(axis=2)
        known[:-1] = True
        t, n = np.nonzero(known & valid.any(axis=2))
        now = PendingSteps(*(array[t, n] for array in all_rows))
        then = PendingSteps(*(array[np.minimum(t + 1, last), n] for array in all_rows))
        on, cut = (stays & after)[t, n], now.active & now.truncated
        obs_agent, action_agent = self.obs_agent, self.action_agent
        rows = JointTransitions(
            np.where(now.active[:, obs_agent], now.observation, 0),
            np.where(now.active[:, action_agent], now.action, 0),
            now.legal | ~now.active[:, action_agent],
            now.reward,
            np.where(now.terminated[:, mine], 0, np.float32(gamma)),
            valid[t, n],
            np.where(on[:, obs_agent], then.observation, np.where(cut[:, obs_agent], now.beyond, 0)),
            np.where(on[:, action_agent], then.action, np.where(cut[:, action_agent], now.action, 0)),
            np.where(on[:, action_agent], then.legal, now.legal | ~cut[:, action_agent]),
            on | cut,
        )
        waiting = self._pending(PendingSteps(*(array[-1] for array in all_rows)), stays[-1].any(axis=1))
        return rows, waiting, steps

    def _pending(self, latest: PendingSteps, waits: Array) -> PendingSteps:
        """The latest step of copies that wait for the next rollout; the numbers of idle agents are 0."""
        active = latest.active & waits[:, None]
        obs_active, action_active = active[:, self.obs_agent], active[:, self.action_agent]
        return PendingSteps(
            np.where(obs_active, latest.observation, 0),
            np.where(action_active, latest.action, 0),
            latest.legal | ~action_active,
            np.where(active[:, self.own.agents], latest.reward, 0),
            active,
            latest.terminated & active,
            latest.truncated & active,
            np.where(obs_active, latest.beyond, 0),
        )


def _concatenate(parts: Sequence[Array]) -> Array:
    """Arrays `[…, A, width]` of all groups as one row, agent after agent."""
    return np.concatenate([part.reshape(*part.shape[:-2], part.shape[-2] * part.shape[-1]) for part in parts], -1)


def _mask(part: GroupSlices, decisions: Decisions) -> Array:
    if decisions.mask is None or not isinstance(part.info.spaces.action, Discrete):
        return np.ones(1, bool)
    return decisions.mask
