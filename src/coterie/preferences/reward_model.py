"""A reward learned from ratings: what a group is paid is what judges preferred, not what the world pays.

A model of rewards r(o, a) is fitted to the pairs of a ratings file (`coterie rate`): the episode whose rewards sum to
more is preferred, P(1 ≻ 2) = σ(Σ r₁ − Σ r₂), by cross-entropy (Christiano et al. 2017, eq. 1; ties count as halves).
It is fitted once, when the learner is built, and gives rewards at the learner's door; stored ones stay the world's own.
Checkpoints hold it: a run that is resumed keeps the reward that it began with.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from coterie.core import seeding
from coterie.core.group import GroupSpec
from coterie.core.types import Array, CoterieError, Experience, Metrics, State
from coterie.core.validation import at_least, positive
from coterie.nn.packing import Layout, encode, encoded_size, layout, pack
from coterie.studies.rate import rate
from coterie.studies.rate.episodes import Library, read_library

log = logging.getLogger("coterie")

HELD_OUT = 5  # one pair of so many is kept from the fit that is tested
ENOUGH = 10  # preferences, below which none is kept from it
POOR = 0.6  # share of pairs ranked right below which a reward is not to be trusted


@dataclass(frozen=True)
class RewardModelSettings:
    """Which ratings, and how a reward is made of them."""

    ratings: str = ""  # the JSONL file of 'coterie rate'; kept as an absolute path
    weight: float = 1.0  # of the learned reward, whose deviation over the rated decisions is 1
    world_weight: float = 0.0  # of the world's own reward beside it
    hidden: tuple[int, ...] = (32,)  # widths of the model's hidden layers; (): linear
    steps: int = 300  # of gradient descent over all pairs
    learning_rate: float = 1e-2  # of Adam
    decay: float = (
        1e-3  # pulls the model's weights towards 0; the loss beside it is a mean, so more pairs do not weaken it
    )

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

    def __init__(self, settings: RewardModelSettings, library: Library, seed: int) -> None:
        rows = np.concatenate([library.observation, library.action], axis=1)
        self.mean, spread = rows.mean(axis=0), rows.std(axis=0)
        self.spread = np.where(spread > 1e-6, spread, 1.0).astype(np.float32)
        self.settings, self.scale = settings, 1.0
        random = torch.Generator().manual_seed(seeding.integer(seed, "reward model"))
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
        """Descend on the mean cross-entropy of pairs `[P, 2]` of episodes; returns the share ranked as rated."""
        rows, episode = _rows(library)
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
            self.scale = 1.0 / max(float(self.output(rows).std(correction=0)), 1e-6)
        return self.accuracy(library, pairs, scores)

    def accuracy(self, library: Library, pairs: Array, scores: Array) -> float:
        """The share of preferences, ties left out, that the model shares; there must be some."""
        clear = scores != 0.5
        first, second = (torch.from_numpy(pairs[clear, side]) for side in (0, 1))
        with torch.no_grad():
            ranked: Array = self._sums(*_rows(library), first, second).numpy() > 0
        return float((ranked == (scores[clear] > 0.5)).mean())

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

    def state(self) -> State:
        """All that rewards depend on."""
        arrays = [part.detach().numpy().copy() for layer in self.layers for part in layer]
        return {"layers": arrays, "scale": self.scale, "mean": self.mean.copy(), "spread": self.spread.copy()}

    def load(self, state: State) -> None:
        """Return to a saved state."""
        with torch.no_grad():
            for part, saved in zip((part for layer in self.layers for part in layer), state["layers"], strict=True):
                part.copy_(torch.from_numpy(np.asarray(saved)))
        self.scale, self.mean, self.spread = float(state["scale"]), state["mean"].copy(), state["spread"].copy()


def _rows(library: Library) -> tuple[Array, torch.Tensor]:
    """All decisions `[S, D + K]`, and which episode each belongs to, `[S]`."""
    rows = np.concatenate([library.observation, library.action], axis=1)
    return rows, torch.from_numpy(np.repeat(np.arange(len(library.starts) - 1), np.diff(library.starts)))


class RewardModelPreference:
    """Each agent wants what judges preferred."""

    scope = "step"

    def __init__(self, settings: RewardModelSettings, group_spec: GroupSpec, gamma: float) -> None:
        self.settings = settings
        self.model: RewardModel | None = None
        self.accuracy = 0.0  # share of the preferences that the model shares
        self.held_out: float | None = None  # the same of pairs that a fit did not see; None: there are too few
        self.source = ""  # a digest of what it was fitted to
        path = Path(self.settings.ratings)
        library, pairs, scores = read_pairs(path)
        self.action = group_spec.spaces.action
        self.layout: Layout = layout(group_spec.spaces.observation)
        mine = (self.layout.size, encoded_size(group_spec.spaces.action))
        theirs = (library.observation.shape[1], library.action.shape[1])
        if mine != theirs:
            raise ValueError(
                f"'{path}' rates agents that see {theirs[0]} numbers and do {theirs[1]}; "
                f"'{group_spec.group}' sees {mine[0]} and does {mine[1]}: rate runs of this world"
            )
        self.source = _digest(library, pairs, scores)
        self.held_out = held_out_accuracy(self.settings, (library, pairs, scores), group_spec.seed)
        self.model = RewardModel(self.settings, library, group_spec.seed)
        self.accuracy = self.model.fit(library, pairs, scores)
        kind, share = ("", self.accuracy) if self.held_out is None else ("held-out ", self.held_out)
        if share < POOR:
            log.warning("the reward model ranks only %.0f%% of the %spairs of '%s' as rated", 100 * share, kind, path)

    def metrics(self) -> Metrics:
        """The share of pairs that the model ranks as they were rated: of all, and of those that a fit did not see."""
        held = {} if self.held_out is None else {"rated/held_out": self.held_out}
        return {"rated/accuracy": self.accuracy} | held

    def state(self) -> State:
        """The reward itself: ratings may be added while a run rests."""
        if self.model is None:
            raise CoterieError("a rated preference must be settled before it is saved")
        told = {"accuracy": self.accuracy, "held_out": self.held_out}
        return {"source": self.source, "fit": _fit(self.settings), "model": self.model.state(), **told}

    def load(self, state: State) -> None:
        """Return to a saved reward, and say so if the ratings would now give another."""
        if self.model is None:
            raise CoterieError("a rated preference must be settled before it is loaded")
        for name, now in _fit(self.settings).items():
            then = state["fit"][name]
            if then != now:
                raise ValueError(f"the reward was fitted with {name} {then}, not {now}; that cannot change in a run")
        if state["source"] != self.source:
            path = self.settings.ratings
            log.warning("'%s' changed; the run keeps the reward that it began with (a new run takes the new)", path)
        self.model.load(state["model"])
        self.accuracy, self.held_out = state["accuracy"], state["held_out"]

    def rewards(self, experience: Experience) -> Array:
        if self.model is None:
            raise CoterieError("a rated preference must be settled before it values anything")
        seen = pack(self.layout, experience.observation)[:-1]
        learned = self.model.rewards(seen, encode(self.action, experience.action))
        wanted = np.where(experience.active, self.settings.weight * learned, 0.0)
        return (wanted + self.settings.world_weight * experience.reward).astype(np.float32)


def held_out_accuracy(settings: RewardModelSettings, rated: tuple[Library, Array, Array], seed: int) -> float | None:
    """How many preferences a model shares that it was not fitted to; None where there are too few to keep some back.

    The pairs share episodes with those of the fit, so this is what the model knows of these runs, not of others.
    """
    library, pairs, scores = rated
    clear = np.flatnonzero(scores != 0.5)
    if len(clear) < ENOUGH:
        return None
    kept = seeding.generator(seed, "held-out ratings").permutation(clear)[: len(clear) // HELD_OUT]
    seen = np.setdiff1d(np.arange(len(scores)), kept)
    model = RewardModel(settings, library, seed)
    model.fit(library, pairs[seen], scores[seen])
    return model.accuracy(library, pairs[kept], scores[kept])


def _fit(settings: RewardModelSettings) -> State:
    return {
        "hidden": list(settings.hidden),
        "steps": settings.steps,
        "learning_rate": settings.learning_rate,
        "decay": settings.decay,
    }


def _digest(library: Library, pairs: Array, scores: Array) -> str:
    found = hashlib.sha256()
    for array in (*vars(library).values(), pairs, scores):
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def read_pairs(path: Path) -> tuple[Library, Array, Array]:
    """A contest's episodes and what was said of them: pairs `[P, 2]` of their numbers, and scores `[P]`."""
    beside = rate.episodes_file(path)
    try:
        contest, given = rate.read(path)
        if not beside.is_file():
            raise ValueError(f"'{path}' has no episodes beside it ('{beside.name}'); move both files together")
        library = read_library(beside)
    except CoterieError as error:
        raise ValueError(str(error)) from None
    if len(library.starts) - 1 != len(contest.runs) * contest.episodes:
        raise ValueError(f"'{beside}' holds other episodes than '{path}' rates; move both files together")
    said = [(r.pair, r.score) for r in given if r.score is not None]
    if not said:
        raise ValueError(f"'{path}' holds no ratings yet; go on with 'coterie rate'")
    if all(score == 0.5 for _, score in said):
        raise ValueError(f"'{path}' holds ties alone, from which nothing can be learned; rate more pairs")
    numbers = [[run * contest.episodes + n for run, n in (pair.first, pair.second)] for pair, _ in said]
    return library, np.array(numbers), np.array([score for _, score in said])
