"""Transitions of a whole table for central critics: what everybody saw and did, before and after.

One row is one tick of one copy. It is complete once everybody's next decision is known, or nobody has one: what
follows a rollout's last tick is known when the next rollout has begun, until then it is held. Worlds are
simultaneous here: whoever is still in its episode acts at every tick; who is not is all zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from coterie.core.group import GroupInfo
from coterie.core.types import Array, Box, Discrete, Experience, Joint
from coterie.nn.packing import Layout, encode, encoded_size, input_range, layout, pack


class JointTransitions(NamedTuple):
    """Rows to learn from, R of them: O numbers seen and U encoded actions of everybody, A agents of one's own."""

    observation: Array  # [R, O] float32
    action: Array  # [R, U] float32
    legal: Array  # [R, U] bool
    reward: Array  # [R, A] float32
    discount: Array  # [R, A] float32: of the value of what follows; 0 where the episode terminated
    live: Array  # [R, A] bool: who decided and knows what came of it
    following: Array  # [R, O] float32: what is seen next; the last observation where an episode was cut short
    next_action: Array  # [R, U] float32: what was done next; the latest once more where an episode was cut short
    next_legal: Array  # [R, U] bool: everything at an end
    going: Array  # [R, E] bool: who of everybody does something next; the others are zeros


class Held(NamedTuple):
    """The latest tick of every copy, where what follows is not known yet; active: nobody, where it is."""

    observation: Array  # [N, O]
    action: Array  # [N, U]
    legal: Array  # [N, U] bool
    reward: Array  # [N, A]
    active: Array  # [N, E] bool: of everybody at the table
    terminated: Array  # [N, E] bool
    truncated: Array  # [N, E] bool


class Span(NamedTuple):
    """Where one group's numbers lie in a table's rows."""

    party: GroupInfo
    layout: Layout
    agents: slice  # of E
    seen: slice  # of O, agent after agent
    done: slice  # of U, agent after agent
    width: int  # numbers of one agent's encoded action

    def observations(self, rows: Array) -> Array:
        """This group's part `[…, A, D]` of everybody's observations `[…, O]`."""
        return rows[..., self.seen].reshape(*rows.shape[:-1], self.party.agents, self.layout.size)

    def actions(self, rows: Array) -> Array:
        """This group's part `[…, A, K]` of everybody's actions, or of what is legal, `[…, U]`."""
        return rows[..., self.done].reshape(*rows.shape[:-1], self.party.agents, self.width)


class Table:
    """Who sits where in a row, and how ticks become rows."""

    def __init__(self, parties: Sequence[GroupInfo], group: str) -> None:
        self.spans: dict[str, Span] = {}
        agents = seen = done = 0
        for party in parties:
            lay, width = layout(party.spaces.observation), encoded_size(party.spaces.action)
            ends = agents + party.agents, seen + party.agents * lay.size, done + party.agents * width
            members, sees, does = (slice(a, b) for a, b in zip((agents, seen, done), ends))
            self.spans[party.group] = Span(party, lay, members, sees, does, width)
            agents, seen, done = ends
        self.everybody, self.seen, self.done, self.own = agents, seen, done, self.spans[group]
        spans = self.spans.values()
        who = [np.arange(s.agents.start, s.agents.stop) for s in spans]
        self.who_sees = np.concatenate([w.repeat(s.layout.size) for w, s in zip(who, spans)])  # [O] of E
        self.who_does = np.concatenate([w.repeat(s.width) for w, s in zip(who, spans)])  # [U] of E

    def sees(self) -> Box:
        """Everybody's observations as one space, with the bounds they have."""
        ends = []
        for span in self.spans.values():
            middle, half = input_range(span.layout)
            ends.append(np.tile(np.stack([middle - half, middle + half]), span.party.agents))
        low, high = np.concatenate(ends, axis=1)
        return Box((self.seen,), low, high)

    def no_rows(self, rows: int) -> JointTransitions:
        """Room for some transitions."""
        seen, done, agents = (rows, self.seen), (rows, self.done), (rows, self.own.party.agents)
        return JointTransitions(
            np.zeros(seen, np.float32),
            np.zeros(done, np.float32),
            np.ones(done, bool),
            np.zeros(agents, np.float32),
            np.zeros(agents, np.float32),
            np.zeros(agents, bool),
            np.zeros(seen, np.float32),
            np.zeros(done, np.float32),
            np.ones(done, bool),
            np.zeros((rows, self.everybody), bool),
        )

    def nobody(self, num_envs: int) -> Held:
        """Nothing is held yet."""
        like, ends = self.no_rows(num_envs), np.zeros((num_envs, self.everybody), bool)
        return Held(like.observation, like.action, like.legal, like.reward, ends, ends.copy(), ends.copy())

    def ticks(self, joint: Joint, rewards: Array) -> Held:
        """A rollout as rows `[T, N, …]`, by the learning group's own rewards `[T, N, A]`."""
        lived = [(span, joint.experiences[name]) for name, span in self.spans.items()]
        steps = rewards.shape[:2]
        return Held(
            self._joined([pack(span.layout, e.observation)[:-1] for span, e in lived]),
            self._joined([encode(span.party.spaces.action, e.action) for span, e in lived]),
            self._joined(
                [np.broadcast_to(_mask(span, e), (*steps, e.active.shape[2], span.width)) for span, e in lived]
            ),
            rewards.astype(np.float32, copy=False),
            *(np.concatenate([getattr(e, k) for _, e in lived], axis=2) for k in ("active", "terminated", "truncated")),
        )

    def finals(self, joint: Joint) -> tuple[Array, Array]:
        """Where copies were cut short `[F, 2]`, and everybody's last observations there `[F, O]`."""
        lived = [(span, joint.experiences[name]) for name, span in self.spans.items()]
        return lived[0][1].finals.index, self._joined([pack(s.layout, e.finals.observation) for s, e in lived])

    def complete(
        self, ticks: Held, finals: tuple[Array, Array], held: Held, gamma: float
    ) -> tuple[JointTransitions, Held]:
        """The transitions that a rollout completes, in the order of time, and what it leaves to be completed."""
        index, final = finals
        all_rows = Held(*(np.concatenate([before[None], now]) for before, now in zip(held, ticks)))  # [T+1, N, …]
        active, last = all_rows.active, len(all_rows.active) - 1
        stays = active & ~(all_rows.terminated | all_rows.truncated)  # goes on deciding
        after = np.concatenate([active[1:], np.zeros_like(active[:1])])
        mine = self.own.agents
        live = active[..., mine] & (~stays | after)[..., mine]
        known = ~stays.any(axis=2)
        known[:-1] = True
        t, n = np.nonzero(known & live.any(axis=2))
        at = np.full(active.shape[:2], -1)
        at[index[:, 0] + 1, index[:, 1]] = np.arange(len(index))
        now = Held(*(array[t, n] for array in all_rows))
        then = Held(*(array[np.minimum(t + 1, last), n] for array in all_rows))
        on, cut = (stays & after)[t, n], now.active & now.truncated
        beyond = then.observation  # where a copy was not reset, its next row still shows who was cut short
        if len(final):
            beyond = np.where(at[t, n, None] >= 0, final[at[t, n]], beyond)
        sees, does = self.who_sees, self.who_does
        rows = JointTransitions(
            np.where(now.active[:, sees], now.observation, 0),
            np.where(now.active[:, does], now.action, 0),
            now.legal | ~now.active[:, does],
            now.reward,
            np.where(now.terminated[:, mine], 0, np.float32(gamma)),
            live[t, n],
            np.where(on[:, sees], then.observation, np.where(cut[:, sees], beyond, 0)),
            np.where(on[:, does], then.action, np.where(cut[:, does], now.action, 0)),
            then.legal | ~on[:, does],
            on | cut,
        )
        return rows, self._waiting(Held(*(array[-1] for array in all_rows)), stays[-1].any(axis=1))

    def _waiting(self, latest: Held, waits: Array) -> Held:
        """What is kept of the latest tick of copies that wait; nothing of who is idle."""
        active = latest.active & waits[:, None]
        sees, does = active[:, self.who_sees], active[:, self.who_does]
        return Held(
            np.where(sees, latest.observation, 0),
            np.where(does, latest.action, 0),
            latest.legal | ~does,
            np.where(active[:, self.own.agents], latest.reward, 0),
            active,
            latest.terminated & active,
            latest.truncated & active,
        )

    def _joined(self, parts: Sequence[Array]) -> Array:
        """Arrays `[…, A, width]` of all groups side by side, agent after agent."""
        return np.concatenate([part.reshape(*part.shape[:-2], part.shape[-2] * part.shape[-1]) for part in parts], -1)


def _mask(span: Span, lived: Experience) -> Array:
    if lived.mask is None or not isinstance(span.party.spaces.action, Discrete):
        return np.ones(1, bool)
    return lived.mask
