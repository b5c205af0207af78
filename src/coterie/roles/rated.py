"""A reward learned from ratings: what a group is paid is what judges preferred, not what the world pays.

A model of rewards r(o, a) is fitted to the pairs of a ratings file (`coterie rate`): the episode whose rewards sum to
more is preferred, P(1 ≻ 2) = σ(Σ r₁ − Σ r₂), by cross-entropy (Christiano et al. 2017, eq. 1; ties count as halves).
It is fitted once, when the learner is built, and gives rewards at the learner's door; stored ones stay the world's own.
"""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from coterie import rating, streams
from coterie.checks import at_least, positive
from coterie.group import Place
from coterie.layout import Layout, encode, encoded_size, layout, pack
from coterie.rating_episodes import Library, read_library
from coterie.types import Array, CoterieError, Experience, Metrics

log = logging.getLogger("coterie")


@dataclass(frozen=True)
class RatedSettings:
    """Which ratings, and how a reward is made of them."""

    ratings: str = ""  # the JSONL file of 'coterie rate'; kept as an absolute path
    weight: float = 1.0  # of the learned reward, whose deviation over the rated decisions is 1
    world_weight: float = 0.0  # of the world's own reward beside it
    hidden: tuple[int, ...] = (32,)  # widths of the model's hidden layers; (): linear
    steps: int = 300  # of gradient descent over all pairs
    learning_rate: float = 1e-2  # of Adam
    decay: float = 1e-3  # pulls the model's weights towards 0, the stronger the fewer pairs there are

    def __post_init__(self) -> None:
        if not self.ratings:
            raise ValueError("ratings: name the file that 'coterie rate RUN RUN' wrote")
        object.__setattr__(self, "ratings", str(Path(self.ratings).absolute()))  # the same from wherever it is read
        for name in ("weight", "world_weight"):
            if not np.isfinite(getattr(self, name)):
                raise ValueError(f"{name} must be finite, got {getattr(self, name)}")
        for width in self.hidden:
            positive("hidden", width)
        positive("steps", self.steps)
        positive("learning_rate", self.learning_rate)
        at_least("decay", self.decay, 0)


class RewardModel:
    """r(o, a) of packed observations and encoded actions."""

    def __init__(self, settings: RatedSettings, library: Library, seed: int) -> None:
        rows = np.concatenate([library.observation, library.action], axis=1)
        self.mean, spread = rows.mean(axis=0), rows.std(axis=0)
        self.spread = np.where(spread > 1e-6, spread, 1.0).astype(np.float32)
        self.settings, self.scale = settings, 1.0
        random = torch.Generator().manual_seed(streams.integer(seed, "reward model"))
        widths = (rows.shape[1], *settings.hidden, 1)
        self.layers: list[tuple[torch.Tensor, torch.Tensor]] = []
        for fan_in, fan_out in itertools.pairwise(widths):
            matrix = torch.randn(fan_in, fan_out, generator=random) / fan_in**0.5
            self.layers.append((matrix.requires_grad_(), torch.zeros(fan_out, requires_grad=True)))

    def output(self, rows: Array) -> torch.Tensor:
        """[S] from `[S, D + K]`."""
        x = torch.from_numpy(((rows - self.mean) / self.spread).astype(np.float32))
        for number, (matrix, shift) in enumerate(self.layers):
            x = x @ matrix + shift
            if number < len(self.layers) - 1:
                x = torch.tanh(x)
        return x[:, 0]

    def fit(self, library: Library, pairs: Array, scores: Array) -> float:
        """Descend on the cross-entropy of pairs `[P, 2]` of episodes; returns the share ranked as they were rated."""
        rows = np.concatenate([library.observation, library.action], axis=1)
        episode = torch.from_numpy(np.repeat(np.arange(len(library.starts) - 1), np.diff(library.starts)))
        first, second = (torch.from_numpy(pairs[:, side]) for side in (0, 1))
        wanted = torch.from_numpy(scores.astype(np.float32))
        parameters = [part for layer in self.layers for part in layer]
        descent = torch.optim.Adam(parameters, lr=self.settings.learning_rate)
        for _ in range(self.settings.steps):
            apart = self._sums(rows, episode, first, second)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(apart, wanted)
            loss = loss + self.settings.decay * sum((matrix**2).sum() for matrix, _ in self.layers)
            descent.zero_grad()
            loss.backward()
            descent.step()
        with torch.no_grad():
            ranked: Array = self._sums(rows, episode, first, second).numpy() > 0
            self.scale = 1.0 / max(float(self.output(rows).std(correction=0)), 1e-6)
        clear = scores != 0.5
        return float((ranked[clear] == (scores > 0.5)[clear]).mean()) if clear.any() else 1.0

    def _sums(self, rows: Array, episode: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """[P]: by how much the first episode's rewards sum to more."""
        sums = torch.zeros(int(episode.max()) + 1).index_add(0, episode, self.output(rows))
        return sums[first] - sums[second]

    def rewards(self, observation: Array, action: Array) -> Array:
        """[…] from packed observations `[…, D]` and encoded actions `[…, K]`; never shifted: lengths count."""
        rows = np.concatenate([observation, action], axis=-1)
        with torch.no_grad():
            found = self.output(rows.reshape(-1, rows.shape[-1])).numpy() * self.scale
        return found.reshape(rows.shape[:-1]).astype(np.float32)


class Rated:
    """Each agent wants what judges preferred."""

    way = "step"

    def __init__(self, settings: RatedSettings) -> None:
        self.settings = settings
        self.model: RewardModel | None = None
        self.accuracy = 0.0  # share of the pairs that the model ranks as they were rated

    def settle(self, place: Place, gamma: float) -> None:
        """Read the ratings and fit the model."""
        path = Path(self.settings.ratings)
        library, pairs, scores = read_pairs(path)
        self.action = place.spaces.action
        self.layout: Layout = layout(place.spaces.observation)
        mine = (self.layout.size, encoded_size(place.spaces.action))
        theirs = (library.observation.shape[1], library.action.shape[1])
        if mine != theirs:
            raise ValueError(
                f"'{path}' rates agents that see {theirs[0]} numbers and do {theirs[1]}; "
                f"'{place.group}' sees {mine[0]} and does {mine[1]}: rate runs of this world"
            )
        self.model = RewardModel(self.settings, library, place.seed)
        self.accuracy = self.model.fit(library, pairs, scores)
        if self.accuracy < 0.6:
            log.warning("the reward model ranks only %.0f%% of '%s' as they were rated", 100 * self.accuracy, path)

    def metrics(self) -> Metrics:
        """The share of pairs that the model ranks as they were rated."""
        return {"rated/accuracy": self.accuracy}

    def rewards(self, experience: Experience) -> Array:
        if self.model is None:
            raise CoterieError("a rated preference must be settled before it values anything")
        seen = pack(self.layout, experience.observation)[:-1]
        learned = self.model.rewards(seen, encode(self.action, experience.action))
        wanted = np.where(experience.active, self.settings.weight * learned, 0.0)
        return (wanted + self.settings.world_weight * experience.reward).astype(np.float32)


def read_pairs(path: Path) -> tuple[Library, Array, Array]:
    """A contest's episodes and what was said of them: pairs `[P, 2]` of their numbers, and scores `[P]`."""
    try:
        contest, given = rating.read(path)
    except CoterieError as error:
        raise ValueError(str(error)) from None
    beside = rating.episodes_file(path)
    if not beside.is_file():
        raise ValueError(f"'{path}' has no episodes beside it ('{beside.name}'); move both files together")
    said = [(r.pair, r.score) for r in given if r.score is not None]
    if not said:
        raise ValueError(f"'{path}' holds no ratings yet; go on with 'coterie rate'")
    numbers = [[run * contest.episodes + n for run, n in (pair.first, pair.second)] for pair, _ in said]
    return read_library(beside), np.array(numbers), np.array([score for _, score in said])
