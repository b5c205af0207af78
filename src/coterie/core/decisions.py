"""The table of decisions: what a group decided in one iteration, what came of it, and what its agents saw next.

The runner keeps decisions whose outcome is not known yet; what reaches learners, preferences and advisors are closed
ones. Advantages, n-step returns, labels, joint transitions and groups of answers are functions of this table.
`training/rollout.py` writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from coterie.core import trees
from coterie.core.types import Advice, AgentType, Array, TargetPolicy, Tree


class Finals(NamedTuple):
    """Last observations of episodes that were truncated and whose copy was reset: rows from which nobody decides."""

    at: Array  # [K, 2] int: (t, n), the step of the truncation
    observation: Tree  # [K, A, …]
    memory: Array | None = None  # [K, A, M]


@dataclass(frozen=True)
class Decisions:
    """One group's table: a row for every time, copy and agent, `[T, N, A]`, in the world's own rewards.

    Only rows where `valid` is True hold a decision. The others are rows in which the agent was idle, or whose outcome
    was not known when the iteration ended: those decisions are in the next iteration's table, as row 0. So rollouts may
    be cut anywhere. γ counts rows: a decision's successor is the same agent's next decision, however long it idled.
    """

    observation: Tree  # [T+1, N, A, …]: row t is what was decided from; row T is the last observation
    finals: Finals
    action: Array  # [T, N, A, …]
    log_prob: Array  # [T, N, A]
    reward: Array  # [T, N, A]: until the agent sees `next`
    group_reward: Array  # [T, N, A]: the same of the mean over the group's agents
    next: Array  # [T, N, A] int: the row of what the agent sees next; T + 1 + k: the k-th final; t itself: terminated
    valid: Array  # [T, N, A] bool: the agent decided here, and the outcome is known
    terminated: Array  # [T, N, A] bool: the episode ended before the agent decided again
    truncated: Array  # [T, N, A] bool: the same, by a time limit: `next` has a value
    episode: Array  # [T, N] int: how many episodes of the copy have ended in this table before row t
    mask: Array | None = None  # [T, N, A, actions]
    memory: Array | None = None  # [T+1, N, A, M]: what the policy remembered when it decided
    advice: Advice | None = None  # [T, N, A, …]: what the advisor suggested; None: the group has no advisor
    trace: dict[str, Array] | None = None  # [T, N, A, …] each: what only the group's policy and learner read

    @property
    def ends(self) -> Array:
        """[T, N, A]: the agent's episode ended before it decided again."""
        return self.terminated | self.truncated

    def at_next(self, rows: Array, finals: Array) -> Array:
        """Entries of `rows [T+1, N, A, …]` and `finals [K, A, …]` for what each decision's agent sees next."""
        width = self.next.shape[1] * self.next.shape[2]
        flat = rows.reshape(-1, *rows.shape[3:])
        found = flat[np.minimum(self.next, len(rows) - 1) * width + np.arange(width).reshape(self.next.shape[1:])]
        t, n, a = np.nonzero(self.next >= len(rows))
        found[t, n, a] = finals[self.next[t, n, a] - len(rows), a]
        return found


@dataclass(frozen=True)
class StateRows:
    """The world's state during a rollout."""

    rows: Array  # [T+1, N, Z]
    finals: Array  # [K, Z]: at `Finals.at`


@dataclass(frozen=True)
class Joint:
    """A learner's input besides its own group: all groups' decisions, and the run's progress."""

    decisions: Mapping[str, Decisions]  # by group
    iteration: int
    progress: float  # fraction of the run's total steps taken before this iteration, in [0, 1]
    spaces: Mapping[str, AgentType] = field(default_factory=dict)  # group -> what its agents see and do
    state: StateRows | None = None  # where the world has one
    ahead: float = 0.0  # fraction of the run's total steps taken when this iteration is over
    target_policies: Mapping[str, TargetPolicy] = field(default_factory=dict)  # by group, as the iteration began
    steps: int = 0  # environment steps of this iteration; where nothing is played, decisions to read


def merge(tables: Sequence[Decisions]) -> Decisions:
    """Join the tables of several shards along the copies."""
    if len(tables) == 1:
        return tables[0]
    rows, copies, ends = len(tables[0].valid) + 1, 0, 0
    finals, following = [], []
    for table in tables:
        finals.append(table.finals._replace(at=table.finals.at + [0, copies]))
        following.append(np.where(table.next < rows, table.next, table.next + ends))
        copies, ends = copies + table.valid.shape[1], ends + len(table.finals.at)
    parts = {
        name: trees.join([getattr(table, name) for table in tables], axis=1)
        for name in Decisions.__dataclass_fields__
        if name not in ("finals", "next")
    }
    return Decisions(finals=trees.join(finals), next=np.concatenate(following, axis=1), **parts)
