"""A reward model learned from ratings of episodes, used in place of the world's reward.

A model of rewards r(o, a) is fitted to the pairs of a ratings file (`coterie rate`): the episode whose rewards sum to
more is preferred, P(1 ≻ 2) = σ(Σ r₁ − Σ r₂), by cross-entropy (Christiano et al. 2017, eq. 1; ties count as halves).
It is fitted once, when the learner is built. The learner applies it; stored rewards stay those of the world.
Checkpoints hold the model: a resumed run keeps the reward that it started with.
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
from coterie.core.decisions import Decisions
from coterie.core.group import GroupSpec, Preference
from coterie.core.settings import Settings
from coterie.core.types import Array, CoterieError, Metrics, State
from coterie.core.validation import at_least, positive
from coterie.nn.packing import Layout, encode, encoded_size, layout, pack
from coterie.preferences.ratings import EpisodeLibrary, episodes_file, read_episodes, read_ratings

log = logging.getLogger("coterie")

HELD_OUT = 5  # one in this many preferences is held out to measure accuracy
MIN_PREFERENCES = 10  # with fewer, none is held out
POOR = 0.6  # a lower accuracy logs a warning


@dataclass(frozen=True)
class RewardModelSettings(Settings):
    """Settings of the preference 'reward_model'."""

    ratings: str = ""  # the JSONL file of 'coterie rate'; kept as an absolute path
    weight: float = 1.0  # weight of the learned reward, whose deviation over the rated decisions is 1
    world_weight: float = 0.0  # weight of the world's reward, which is added
    hidden: tuple[int, ...] = (32,)  # widths of the model's hidden layers; (): linear
    steps: int = 300  # gradient steps, each over all pairs
    learning_rate: float = 1e-2  # learning rate of Adam
    decay: float = 1e-3  # weight decay; the cross-entropy is a mean over pairs, so more pairs do not weaken it

    def __post_init__(self) -> None:
        if not self.ratings:
            raise ValueError("ratings: name the file that 'coterie rate RUN RUN' wrote")
        object.__setattr__(self, "ratings", str(Path(self.ratings).absolute()))  # independent of the working directory
        for name in ("weight", "world_weight"):
            if not np.isfinite(getattr(self, name)):
                raise ValueError(f"{name} must be finite, got {getattr(self, name)}")
        for width in self.hidden:
            positive("hidden", width)
        positive("steps", self.steps)
        positive("learning_rate", self.learning_rate)
        at_least("decay", self.decay, 0)


class RewardModel:
    """A network r(o, a) of packed observations and encoded actions."""

    def __init__(self, settings: RewardModelSettings, library: EpisodeLibrary, seed: int) -> None:
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
        """Return unscaled rewards `[S]` for rows `[S, D + K]`."""
        x = torch.from_numpy(((rows - self.mean) / self.spread).astype(np.float32))
        for number, (matrix, shift) in enumerate(self.layers):
            x = x @ matrix + shift
            if number < len(self.layers) - 1:
                x = torch.tanh(x)
        return x[:, 0]

    def fit(self, library: EpisodeLibrary, pairs: Array, scores: Array) -> float:
        """Minimise the mean cross-entropy of pairs `[P, 2]` of episodes; returns the accuracy on them."""
        rows, episode = _rows(library)
        first, second = (torch.from_numpy(pairs[:, side]) for side in (0, 1))
        targets = torch.from_numpy(scores.astype(np.float32))
        parameters = [part for layer in self.layers for part in layer]
        optimizer = torch.optim.Adam(parameters, lr=self.settings.learning_rate)
        for _ in range(self.settings.steps):
            logits = self._logits(rows, episode, first, second)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets)
            loss = loss + self.settings.decay * sum((matrix**2).sum() for matrix, _ in self.layers)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            self.scale = 1.0 / max(float(self.output(rows).std(correction=0)), 1e-6)
        return self.accuracy(library, pairs, scores)

    def accuracy(self, library: EpisodeLibrary, pairs: Array, scores: Array) -> float:
        """Return the fraction of preferences without ties that the model ranks as rated; at least one is required."""
        clear = scores != 0.5
        first, second = (torch.from_numpy(pairs[clear, side]) for side in (0, 1))
        with torch.no_grad():
            ranked: Array = self._logits(*_rows(library), first, second).numpy() > 0
        return float((ranked == (scores[clear] > 0.5)).mean())

    def _logits(self, rows: Array, episode: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Return the return of the first episode minus that of the second, `[P]`."""
        sums = torch.zeros(int(episode.max()) + 1).index_add(0, episode, self.output(rows))
        return sums[first] - sums[second]

    def rewards(self, observation: Array, action: Array) -> Array:
        """Return rewards `[…]` of packed observations `[…, D]` and encoded actions `[…, K]`.

        They are not centred, since the length of an episode counts.
        """
        rows = np.concatenate([observation, action], axis=-1)
        with torch.no_grad():
            found = self.output(rows.reshape(-1, rows.shape[-1])).numpy() * self.scale
        return found.reshape(rows.shape[:-1]).astype(np.float32)

    def state(self) -> State:
        """Weights, scale and normalisation."""
        arrays = [part.detach().numpy().copy() for layer in self.layers for part in layer]
        return {"layers": arrays, "scale": self.scale, "mean": self.mean.copy(), "spread": self.spread.copy()}

    def load(self, state: State) -> None:
        """Return to a saved state."""
        with torch.no_grad():
            for part, saved in zip((part for layer in self.layers for part in layer), state["layers"], strict=True):
                part.copy_(torch.from_numpy(np.asarray(saved)))
        self.scale, self.mean, self.spread = float(state["scale"]), state["mean"].copy(), state["spread"].copy()


def _rows(library: EpisodeLibrary) -> tuple[Array, torch.Tensor]:
    """Return all decisions `[S, D + K]` and the episode of each, `[S]`."""
    rows = np.concatenate([library.observation, library.action], axis=1)
    return rows, torch.from_numpy(np.repeat(np.arange(len(library.starts) - 1), np.diff(library.starts)))


class RewardModelPreference(Preference):
    """Rewards agents by a model fitted to ratings of episodes."""

    def __init__(self, settings: RewardModelSettings, group_spec: GroupSpec, gamma: float) -> None:
        self.settings = settings
        path = Path(settings.ratings)
        library, pairs, scores = read_pairs(path)
        self.action = group_spec.spaces.action
        self.layout: Layout = layout(group_spec.spaces.observation)
        expected = (self.layout.size, encoded_size(group_spec.spaces.action))
        rated = (library.observation.shape[1], library.action.shape[1])
        if expected != rated:
            raise ValueError(
                f"ratings: '{path}' is about observations of {rated[0]} and actions of {rated[1]} numbers, those of "
                f"'{group_spec.group}' have {expected[0]} and {expected[1]}; rate runs of this world"
            )
        self.source = _digest(library, pairs, scores)  # digest of the data that the model is fitted to
        self.held_out = held_out_accuracy(settings, (library, pairs, scores), group_spec.seed)  # None: too few pairs
        self.model = RewardModel(settings, library, group_spec.seed)
        self.accuracy = self.model.fit(library, pairs, scores)  # fraction of the preferences that it ranks as rated
        kind, share = ("", self.accuracy) if self.held_out is None else ("held-out ", self.held_out)
        if share < POOR:
            log.warning("the reward model ranks only %.0f%% of the %spairs of '%s' as rated", 100 * share, kind, path)

    def metrics(self) -> Metrics:
        """The accuracy on all pairs, and on held-out pairs."""
        held = {} if self.held_out is None else {"reward_model/held_out": self.held_out}
        return {"reward_model/accuracy": self.accuracy} | held

    def state(self) -> State:
        """The fitted model: the ratings file may change before the run is resumed."""
        accuracies = {"accuracy": self.accuracy, "held_out": self.held_out}
        return {"source": self.source, "fit": _fit(self.settings), "model": self.model.state(), **accuracies}

    def load(self, state: State) -> None:
        """Return to a saved model; warn if the ratings have changed since."""
        for name, now in _fit(self.settings).items():
            then = state["fit"][name]
            if then != now:
                raise ValueError(f"{name}: the reward model was fitted with {then}, not {now}; a run cannot change it")
        if state["source"] != self.source:
            path = self.settings.ratings
            log.warning("'%s' has changed; the run keeps the reward model that it started with", path)
        self.model.load(state["model"])
        self.accuracy, self.held_out = state["accuracy"], state["held_out"]

    def rewards(self, decisions: Decisions) -> Array:
        observation = pack(self.layout, decisions.observation)[:-1]
        learned = self.model.rewards(observation, encode(self.action, decisions.action))
        weighted = np.where(decisions.valid, self.settings.weight * learned, 0.0)
        return (weighted + self.settings.world_weight * decisions.reward).astype(np.float32)


def held_out_accuracy(
    settings: RewardModelSettings, rated: tuple[EpisodeLibrary, Array, Array], seed: int
) -> float | None:
    """Return the accuracy on held-out preferences of a model fitted to the others; None if there are too few.

    Held-out pairs share episodes with the others, so this measures the model on these runs only.
    """
    library, pairs, scores = rated
    clear = np.flatnonzero(scores != 0.5)
    if len(clear) < MIN_PREFERENCES:
        return None
    held_out = seeding.generator(seed, "held-out ratings").permutation(clear)[: len(clear) // HELD_OUT]
    fitted = np.setdiff1d(np.arange(len(scores)), held_out)
    model = RewardModel(settings, library, seed)
    model.fit(library, pairs[fitted], scores[fitted])
    return model.accuracy(library, pairs[held_out], scores[held_out])


def _fit(settings: RewardModelSettings) -> State:
    return {
        "hidden": list(settings.hidden),
        "steps": settings.steps,
        "learning_rate": settings.learning_rate,
        "decay": settings.decay,
    }


def _digest(library: EpisodeLibrary, pairs: Array, scores: Array) -> str:
    found = hashlib.sha256()
    for array in (*vars(library).values(), pairs, scores):
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def read_pairs(path: Path) -> tuple[EpisodeLibrary, Array, Array]:
    """Return the episodes of a ratings file, its pairs `[P, 2]` as episode indices, and their scores `[P]`."""
    episodes = episodes_file(path)
    try:
        session, ratings = read_ratings(path)
        if not episodes.is_file():
            raise ValueError(f"'{path}' has no episodes file '{episodes.name}' next to it; move both files together")
        library = read_episodes(episodes)
    except CoterieError as error:
        raise ValueError(str(error)) from None
    if len(library.starts) - 1 != len(session.runs) * session.episodes:
        raise ValueError(f"'{episodes}' holds other episodes than '{path}' rates; move both files together")
    scored = [(rating.pair, rating.score) for rating in ratings if rating.score is not None]
    if not scored:
        raise ValueError(f"'{path}' holds no ratings yet; continue with 'coterie rate'")
    if all(score == 0.5 for _, score in scored):
        raise ValueError(f"'{path}' holds only ties, which train nothing; rate more pairs")
    numbers = [[run * session.episodes + n for run, n in (pair.first, pair.second)] for pair, _ in scored]
    return library, np.array(numbers), np.array([score for _, score in scored])
