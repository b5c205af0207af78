"""Trust in a teacher: its advice counts less in text states where following it does not lead on.

A decision *leads on* if the agent's next text state is new in its episode, or if a positive reward comes first. No
reward is needed: a task's text states come one after another, and whoever does what is right meets the next one. Two
numbers say how far a decision followed the advice: the advice's probability of the action taken, and this probability
over the policy's own. The trust in a text state is min(1, 2Φ(z)), z the smaller score of the two in a test for
covariance of following and leading on. The ratio is fair to actions that the policy seldom takes; the probability
notices a policy that follows more and more and no longer gets on.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from coterie.core.skills import PlanCodec
from coterie.core.types import Array, Experience, State, map_tree

SUMS = 6  # of decisions: 1, y, x, xy, x², x²y, where y says whether it led on and x how far it followed


class Trust:
    """Counts what came of advice in each text state, and weighs the advice of a rollout by it."""

    def __init__(self, codec: PlanCodec) -> None:
        self.codec = codec
        self.places: dict[str, int] = {}  # of text states, in the order in which they were met
        self.sums = np.zeros((0, 2, SUMS))  # [P, 2, SUMS]: of the probability, and of the ratio
        self.met = np.zeros((0, 0, 0), bool)  # [N, A, P]: in the present episode
        self.given, self.weight = 0, 0.0  # advised decisions so far, and the sum of their trust

    def weigh(self, own: Experience) -> Experience:
        """Count the decisions of a rollout, then multiply the strength of its advice by the trust in each text state.

        Rollouts without advice change nothing, apart from the text states that were met.
        """
        if own.advice is None or not own.active.any():
            return own
        texts = self.look_up(own)
        led_on, known = self.outcomes(own, texts)
        given = own.advice.given & own.active
        probability = np.take_along_axis(own.advice.probabilities, own.action[..., None], axis=-1)[..., 0]
        followed = np.stack([probability, probability / np.exp(own.log_prob)], axis=-1).astype(np.float64)
        rows = given & known
        self.count(texts[:-1][rows], led_on[rows], followed[rows])
        factor = np.where(given, self.factors()[texts[:-1]], 0.0)
        self.given, self.weight = self.given + int(rows.sum()), self.weight + float(factor[rows].sum())
        strength = (own.advice.strength * factor).astype(np.float32)
        return replace(own, advice=own.advice._replace(strength=strength))

    def look_up(self, own: Experience) -> Array:
        """Return the places of the text states in which agents acted, `[T+1, N, A]`; 0 where they did not."""
        seen = np.concatenate([own.active, own.acting[None]])
        numbers, where = np.unique(self.codec.states(map_tree(lambda a: a[seen], own.observation)), return_inverse=True)
        texts = [self.codec.describe(number) for number in numbers.tolist()]
        found = [self.places.setdefault(text, len(self.places)) for text in texts]
        more = len(self.places) - len(self.sums)
        self.sums = np.concatenate([self.sums, np.zeros((more, 2, SUMS))])
        before, self.met = self.met, np.zeros((*own.acting.shape, len(self.places)), bool)
        if before.size:
            self.met[..., : before.shape[-1]] = before
        places = np.zeros(seen.shape, np.int64)
        places[seen] = np.array(found, np.int64)[where]
        return places

    def outcomes(self, own: Experience, texts: Array) -> tuple[Array, Array]:
        """Return which decisions led on, and of which it is known, `[T, N, A]` bool."""
        following = np.full(own.active.shape, -1)  # the text state of the agent's next decision; −1: its episode ended
        gained = np.zeros(own.active.shape, bool)  # a positive reward came before that
        later, reward = texts[-1].copy(), np.zeros(own.acting.shape)
        for t in range(len(own.active) - 1, -1, -1):
            later = np.where(own.ends[t], -1, later)
            reward = own.reward[t] + np.where(own.ends[t], 0, reward)
            following[t], gained[t] = later, reward > 0
            later, reward = np.where(own.active[t], texts[t], later), np.where(own.active[t], 0, reward)
        n, a = np.indices(own.acting.shape)
        new = np.zeros(own.active.shape, bool)
        for t in range(len(own.active)):
            self.met[n, a, texts[t]] |= own.active[t]
            new[t] = (following[t] >= 0) & ~self.met[n, a, following[t]]
            self.met[own.ends[t]] = False
        return new | gained, own.closed()

    def count(self, texts: Array, led_on: Array, followed: Array) -> None:
        """Add decisions `[R]` to the sums of their text states; `followed [R, 2]`."""
        y, x = np.broadcast_to(led_on[:, None].astype(np.float64), followed.shape), followed
        np.add.at(self.sums, texts, np.stack([np.ones_like(x), y, x, x * y, x * x, x * x * y], axis=-1))

    def factors(self) -> Array:
        """Return the trust in each text state, `[P]`, in [0, 1]."""
        z = scores(self.sums).min(axis=1)
        return np.array([min(1.0, math.erfc(-each / math.sqrt(2))) for each in z.tolist()])  # erfc(−z/√2) = 2Φ(z)

    def state(self) -> State:
        return {
            "texts": list(self.places),
            "sums": self.sums.copy(),
            "met": self.met.copy(),
            "given": self.given,
            "weight": self.weight,
        }

    def load(self, state: State) -> None:
        self.places = {text: place for place, text in enumerate(state["texts"])}
        self.sums, self.met = state["sums"].copy(), state["met"].copy()
        self.given, self.weight = state["given"], state["weight"]


def scores(sums: Array) -> Array:
    """Return z of sums `[…, SUMS]`: Σ(x − x̄)(y − ȳ) / √Σ(x − x̄)²(y − ȳ)², 0 where nothing varies. Each y is 0 or 1."""
    n, y, x, xy, xx, xxy = np.moveaxis(sums, -1, 0)
    count = np.maximum(n, 1)
    mean_x, mean_y = x / count, y / count
    covariance = xy - mean_x * y
    squares = xx - mean_x * x  # Σ(x − x̄)²
    squares_on = xxy - 2 * mean_x * xy + mean_x**2 * y  # the same over decisions that led on
    variance = (1 - 2 * mean_y) * squares_on + mean_y**2 * squares
    varies = variance > 1e-9
    return np.where(varies, covariance / np.sqrt(np.where(varies, variance, 1)), 0.0)
