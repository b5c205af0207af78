"""AlphaZero (Silver et al. 2018) for any world with the capability `Game`.

The policy plays by tree search (`policies/search/`). Read `AlphaZero.learn` from top to bottom: the positions of
finished games enter a replay buffer with the search's policy and the game's outcome; then a number of gradient steps is
due, each on a batch of positions turned by a random symmetry of the board. The loss of one position is

    l = (z − v)² · value_weight − π · log p,

Silver et al. 2018, eq. 1, with weight decay in place of its last term. `gate` and `elo` play matches between networks
(`arena.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch

from coterie.algorithms.alphazero.arena import EloPool, EloSettings, check_games, play_match
from coterie.algorithms.divergence import demand_finite
from coterie.algorithms.replay import Replay, ReplaySettings
from coterie.core.decisions import Decisions, Joint
from coterie.core.group import GroupSpec, Learner, Panel, Preference, preferred_rewards
from coterie.core.search_space import Choice, Real, Space
from coterie.core.settings import Settings
from coterie.core.types import Array, CoterieError, Metrics, State
from coterie.core.validation import at_least, positive, within
from coterie.nn import networks
from coterie.policies.search.networks import PositionNetwork
from coterie.policies.search.policy import SearchPolicy, make_search
from coterie.preferences.standard import Individual

NAMES = ("loss", "policy_loss", "value_loss")


@dataclass(frozen=True)
class GateSettings:
    """Self-play changes to a new network only once it has won a match against the present one."""

    every: int = 10  # iterations between matches
    games: int = 40  # of a match, half of them from each seat
    score: float = 0.55  # share of points that the new network needs; a draw is half a point

    def __post_init__(self) -> None:
        at_least("every", self.every, 1)
        check_games(self.games)
        within("score", self.score, 0, 1)


@dataclass(frozen=True)
class PositionReplaySettings(Settings):
    """The replay buffer; every position in it is equally likely."""

    size: int = 50_000  # positions kept; older ones are overwritten
    learning_starts: int = 1_000  # positions that must be stored before learning starts

    SEARCH: ClassVar[Space] = {"size": Choice((10_000, 50_000, 200_000))}  # what `coterie tune` varies

    def __post_init__(self) -> None:
        self.uniform()

    def uniform(self) -> ReplaySettings:
        """The settings of a replay without priorities."""
        return ReplaySettings(self.size, self.learning_starts, priority=0.0)


@dataclass(frozen=True)
class AlphaZeroSettings(Settings):
    """Settings of AlphaZero."""

    learning_rate: float = 1e-3  # of Adam
    # linear, cosine: to 0 at the run's end
    learning_rate_schedule: Literal["constant", "linear", "cosine"] = "constant"
    batch_size: int = 256  # positions per gradient step
    updates_per_step: float = 0.05  # gradient steps per environment step, over all copies
    value_weight: float = 1.0  # of the value's loss relative to the policy's
    weight_decay: float = 1e-4  # share of a weight that is lost per unit of learning rate
    max_grad_norm: float = 10.0  # gradients are scaled to at most this norm
    root_value: float = 0.0  # share of the search's root value in the value target; the rest is the outcome
    symmetries: bool = True  # turn every position by a random symmetry of the board
    replay: PositionReplaySettings = field(default_factory=PositionReplaySettings)  # positions of finished games
    gate: GateSettings | None = None  # None: self-play always uses the newest network
    elo: EloSettings | None = None  # rate the network against its past selves; None: do not

    SEARCH: ClassVar[Space] = {  # what `coterie tune` varies
        "learning_rate": Real(2e-4, 5e-3, log=True),
        "batch_size": Choice((128, 256, 512)),
        "updates_per_step": Real(0.01, 0.2, log=True),
        "root_value": Choice((0.0, 0.25, 0.5)),
    }

    def __post_init__(self) -> None:
        positive("learning_rate", self.learning_rate)
        at_least("batch_size", self.batch_size, 1)
        positive("updates_per_step", self.updates_per_step)
        at_least("value_weight", self.value_weight, 0)
        at_least("weight_decay", self.weight_decay, 0)
        positive("max_grad_norm", self.max_grad_norm)
        within("root_value", self.root_value, 0, 1)

    def rate(self, progress: float) -> float:
        """The learning rate after this fraction of the run."""
        left = max(1 - progress, 0.0)
        share = {"constant": 1.0, "linear": left, "cosine": 0.5 - 0.5 * float(np.cos(np.pi * left))}
        return self.learning_rate * share[self.learning_rate_schedule]


class Positions(NamedTuple):
    """Positions to learn from, each as the player to move saw it."""

    observation: Array  # [R, D] float32
    legal: Array  # [R, K] bool
    policy: Array  # [R, K] float32: of the search
    target: Array  # [R] float32: of the value


class Unfinished(NamedTuple):
    """Decisions of games that are not over."""

    copy: Array  # [R] int64
    agent: Array  # [R] int64
    full: Array  # [R] bool: by a full search
    reward: Array  # [R] float32: since the decision
    value: Array  # [R] float32: of the root
    observation: Array  # as in Positions
    legal: Array
    policy: Array


class AlphaZero(Learner):
    """Improves the network of a search player from its own games."""

    teaches = (SearchPolicy,)
    policy: SearchPolicy
    preferences = (Individual,)  # a search takes one player's value for minus the other's
    panels = (
        Panel("policy loss", "cross-entropy", ("policy_loss",)),
        Panel("value loss", "squared error", ("value_loss",)),
        Panel("strength against past selves", "Elo", ("elo",)),
    )

    def __init__(
        self, settings: AlphaZeroSettings, policy: SearchPolicy, group_spec: GroupSpec, preference: Preference
    ) -> None:
        path = f"groups.{group_spec.group}.policy"
        if policy.network is None:
            raise ValueError(f"alphazero trains a network: set {path}.network.kind=mlp or {path}.network.kind=residual")
        if policy.settings.play == "network":
            raise ValueError(f"alphazero learns from searches: set {path}.play=search")
        fast, full = policy.settings.playout_cap, policy.settings.simulations
        if fast is not None and fast.simulations > full:
            raise ValueError(
                f"{path}.playout_cap.simulations={fast.simulations}: a fast search has at most the {full} "
                "simulations of a full one"
            )
        self.settings, self.policy, self.group_spec, self.preference = settings, policy, group_spec, preference
        self.game, self.acting = policy.game, policy.network
        self.network = self.acting  # what learns; with a gate, apart from what plays
        if settings.gate is not None:
            self.network = PositionNetwork(policy.settings.network, policy.game, 0)
            self.network.flat.copy_from(self.acting.flat)
        size, actions = policy.search.size, policy.game.actions
        like = Positions(*_columns(0, size, actions), np.zeros(0, np.float32))
        self.replay = Replay(settings.replay.uniform(), like)
        self.unfinished = _no_unfinished(size, actions)
        self.cells = np.stack([symmetry.cells for symmetry in policy.game.symmetries])
        self.moves = np.stack([symmetry.actions for symmetry in policy.game.symmetries])
        self.elo = None if settings.elo is None else EloPool(settings.elo, self.network.flat.array[0].copy())
        self.due, self.games = 0.0, 0

    def learn(self, own: Decisions, joint: Joint, random: np.random.Generator) -> Metrics:
        s = self.settings
        stored = self.store(own)
        metrics: Metrics = {"replay": float(self.replay.size), "games": float(self.games)} | self._searches(own)
        if self.replay.ready:
            self.due += s.updates_per_step * stored
            steps, self.due = int(self.due), self.due % 1
            rate = s.rate(joint.progress)
            sums = np.zeros(len(NAMES))
            for _ in range(steps):
                sums += self.step(random, rate)
            metrics |= {"updates": float(steps), "learning_rate": rate}
            if steps:
                metrics |= dict(zip(NAMES, (sums / steps).tolist(), strict=True))
        demand_finite(self.group_spec.group, metrics, [], [self.network.flat.array])
        return metrics | self.hold_matches(joint.iteration, random)

    # Positions ----------------------------------------------------------------------------------------

    def store(self, own: Decisions) -> int:
        """Add the decisions of finished games to the replay; returns how many decisions there are."""
        if own.trace is None:
            raise CoterieError(f"group '{self.group_spec.group}': alphazero learns from searches, and there were none")
        if own.truncated.any():
            raise CoterieError(
                f"group '{self.group_spec.group}': a game was cut off before its end and has no outcome; "
                "alphazero needs a world without a time limit"
            )
        rewards, closed = preferred_rewards(self.preference, own, self.group_spec), own.valid
        if not np.array_equal(rewards, own.reward):
            path = f"groups.{self.group_spec.group}"
            raise CoterieError(
                f"{path}: alphazero learns from the outcomes of games, and a preference or a penalty changes them; "
                f"set {path}.preference=individual and {path}.constraints.action=veto"
            )
        rewards = rewards / self.game.payoff_unit
        known, since = np.zeros(closed.shape[1:], bool), np.zeros(closed.shape[1:], np.float32)
        finished, gained = np.zeros(closed.shape, bool), np.zeros(closed.shape, np.float32)
        for row in range(len(closed) - 1, -1, -1):
            ends = own.ends[row]
            known, since = known | ends, np.where(ends, 0, since) + np.where(closed[row], rewards[row], 0)
            finished[row], gained[row] = known, since
        old = self.unfinished
        before = old._replace(reward=old.reward + gained[0, old.copy, old.agent])
        done = finished[0, old.copy, old.agent]
        t, n, a = np.nonzero(closed)
        trace, legal = own.trace, own.mask
        size = self.policy.search.size
        assert isinstance(own.observation, np.ndarray)
        seen_by = own.observation[t, n, a].reshape(-1, size).astype(np.float32, copy=False)
        allowed = np.ones((len(t), self.game.actions), bool) if legal is None else legal[t, n, a]
        here = Unfinished(
            n, a, trace["full"][t, n, a], gained[t, n, a], trace["value"][t, n, a], seen_by, allowed,
            trace["policy"][t, n, a],
        )  # fmt: skip
        over = finished[t, n, a]
        for part, ended in ((before, done), (here, over)):
            self._learn_from(Unfinished(*(column[ended] for column in part)))
        pairs = zip((c[~done] for c in before), (c[~over] for c in here), strict=True)
        self.unfinished = Unfinished(*(np.concatenate(pair) for pair in pairs))
        self.games += int(own.ends[:, :, 0].sum())
        return int(closed.sum())

    def _searches(self, own: Decisions) -> Metrics:
        """Mean visits of the roots, how many of them were solved, and their mean certainty |value|."""
        if own.trace is None or not own.valid.any():
            return {}
        trace = {name: column[own.valid] for name, column in own.trace.items()}
        return {
            "search/visits": float(trace["visits"].sum(axis=-1).mean()),
            "search/solved": float(trace["solved"].mean()),
            "search/certainty": float(np.abs(trace["value"]).mean()),
        }

    def _learn_from(self, rows: Unfinished) -> None:
        """Add finished decisions to the replay, those of fast searches excepted."""
        mix = self.settings.root_value
        target = (1 - mix) * rows.reward + mix * rows.value
        found = Positions(rows.observation, rows.legal, rows.policy, target.astype(np.float32))
        self.replay.add(Positions(*(column[rows.full] for column in found)))

    # Gradient steps -----------------------------------------------------------------------------------

    def step(self, random: np.random.Generator, rate: float) -> Array:
        """One gradient step; returns (loss, policy loss, value loss)."""
        s, net = self.settings, self.network
        rows = self.replay.sample(random.random(s.batch_size)).rows
        batch = Positions(*(column[rows] for column in self.replay.rows))
        turn = random.integers(0, len(self.cells), s.batch_size)
        if s.symmetries:
            batch = turned(batch, self.cells[turn], self.moves[turn])
        observation, legal, policy, target = (torch.as_tensor(column, device=net.device) for column in batch)
        out = net.outputs(observation)
        log_probs = out[:, :-1].masked_fill(~legal, -1e9).log_softmax(dim=1)
        policy_loss = -(policy * log_probs).sum(dim=1).mean()
        value_loss = (torch.tanh(out[:, -1]) - target).square().mean()
        loss = policy_loss + s.value_weight * value_loss
        networks.adam_step([net.flat], loss, rate, s.max_grad_norm)
        if s.weight_decay:
            net.flat.value.mul_(1 - rate * s.weight_decay)
        return np.array([float(loss.detach()), float(policy_loss.detach()), float(value_loss.detach())])

    # Matches ------------------------------------------------------------------------------------------

    def hold_matches(self, iteration: int, random: np.random.Generator) -> Metrics:
        """Matches that are due: the gate's, and those against past selves."""
        found: Metrics = {}
        gate = self.settings.gate
        if gate is not None and iteration % gate.every == 0:
            search, count = self.policy.settings, self.policy.settings.simulations
            pair = [make_search(search, self.game, network) for network in (self.network, self.acting)]
            score = play_match(self.game, pair, count, gate.games, random).score
            if score >= gate.score:
                self.acting.flat.copy_from(self.network.flat)
            found |= {"gate_score": score, "gate_passed": float(score >= gate.score)}
        if self.elo is not None and iteration % self.elo.settings.every == 0:
            past = PositionNetwork(self.policy.settings.network, self.game, 0)
            search, count = self.policy.settings, self.elo.settings.simulations
            pair = [make_search(search, self.game, network, count) for network in (self.network, past)]
            found["elo"] = self.elo.rate(self.game, pair, self.network, past, random)
        return found

    # State --------------------------------------------------------------------------------------------

    def state(self) -> State:
        return {
            "adam": self.network.flat.state(),
            "candidate": None if self.network is self.acting else networks.export(self.network.net),
            "replay": self.replay.state(),
            "unfinished": {name: column.copy() for name, column in self.unfinished._asdict().items()},
            "elo": None if self.elo is None else self.elo.state(),
            "due": self.due,
            "games": self.games,
        }

    def load(self, state: State) -> None:
        where = f"group '{self.group_spec.group}'"
        if (state["candidate"] is None) != (self.network is self.acting):
            raise ValueError(f"{where}: learner.gate cannot be added or removed on resume")
        if state["candidate"] is not None:
            networks.restore(self.network.net, state["candidate"], f"{where}, candidate network")
        self.network.flat.load(state["adam"])
        self.replay.load(state["replay"], where)
        self.unfinished = Unfinished(**{name: column.copy() for name, column in state["unfinished"].items()})
        if (state["elo"] is None) != (self.elo is None):
            raise ValueError(f"{where}: learner.elo cannot be added or removed on resume")
        if self.elo is not None:
            self.elo.load(state["elo"])
        self.due, self.games = state["due"], state["games"]


def turned(batch: Positions, cells: Array, moves: Array) -> Positions:
    """Positions seen through symmetries: `cells [B, D]` and `moves [B, K]` as in `core.game.Symmetry`."""
    return Positions(
        np.take_along_axis(batch.observation, cells, axis=1),
        np.take_along_axis(batch.legal, moves, axis=1),
        np.take_along_axis(batch.policy, moves, axis=1),
        batch.target,
    )


def _columns(rows: int, size: int, actions: int) -> tuple[Array, Array, Array]:
    """Empty columns: observation, legal, policy."""
    return np.zeros((rows, size), np.float32), np.zeros((rows, actions), bool), np.zeros((rows, actions), np.float32)


def _no_unfinished(size: int, actions: int) -> Unfinished:
    whole, real = np.zeros(0, np.int64), np.zeros(0, np.float32)
    return Unfinished(whole, whole, np.zeros(0, bool), real, real, *_columns(0, size, actions))
