"""Reward bonuses from a language model: for preferred next observations, and for following instructions.

Unlike potential-based shaping (`shaping.py`) they change the optimal policies, on purpose. They can be scaled by their
running deviation, so that a weight means the same in every world.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from coterie.advice.shaping import (
    BonusCounter,
    JudgeSettings,
    MemoizedValues,
    next_observations,
    observations_at,
    usage_metrics,
)
from coterie.core.group import GroupSpec
from coterie.core.text import Graded, Instructing, TextCodec, find_text_codec
from coterie.core.types import Array, Box, Dict, Discrete, Experience, Metrics, State, Text, Tree, blank
from coterie.core.validation import at_least
from coterie.lm import prompts
from coterie.lm.ask.choice import Calibration, ChoiceScorer
from coterie.nn.normalization import RunningMoments
from coterie.preferences import bradley_terry

MAX_RANKED = 400  # `accuracy` compares at most this many distinct observations


# Comparisons of pairs -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PairwiseBonusSettings(JudgeSettings):
    """Settings of the preference 'pairwise_lm'."""

    references: int = 8  # samples of the codec that each observation is compared with, in both orders
    scale: Literal["fixed", "deviation"] = "fixed"  # deviation: divide by the bonus's running deviation

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("references", self.references, 2)


class PairwiseBonus:
    """Rewards r + weight · strength(o′), where o′ is the next observation of the agent.

    The model compares two descriptions in both orders, so a bias for answer A or B cancels. Strengths are those of the
    Bradley-Terry model (`bradley_terry.py`) with mean 0 over the references. A terminal step has no next observation
    and gets no bonus.
    """

    scope = "step"

    def __init__(self, settings: PairwiseBonusSettings, group_spec: GroupSpec, gamma: float) -> None:
        self.settings, self.counter = settings, BonusCounter()
        self.moments = RunningMoments(1)
        self.judged: list[tuple[float, int]] = []  # strength and true grade of distinct observations
        s = self.settings
        self.codec = find_text_codec(s.codec, group_spec)
        self.graded = self.codec if isinstance(self.codec, Graded) and self.codec.grades else None
        samples = self.codec.samples() if self.graded is None else self.graded.appraisals()
        self.references = _spread(list(dict.fromkeys(samples)), s.references)
        if len(self.references) < 2:
            raise ValueError("codec: it has no sample descriptions to compare with; name a codec that has some")
        name = f"{self.codec.prompt}-pairs"
        default = name if (prompts.FOLDER / f"{name}.txt").is_file() else "pairs"
        self.scorer = ChoiceScorer(
            s.lm, prompts.read(s.template, s.examples, default, ("A", "B")), ("A", "B"), normalize=s.normalize
        )
        self.strengths = MemoizedValues(self._strength)

    def _strength(self, observation: Tree, tags: Array) -> Array:
        """Return strengths `[R]`; NaN where a comparison is missing."""
        graded = self.graded
        texts = self.codec.describe(observation) if graded is None else graded.appraise(observation)
        among = [(a, b) for a in self.references for b in self.references if a != b]
        others = [(a, b) for a in dict.fromkeys(texts) for b in self.references if a != b]
        chance = dict(zip(among + others, self._preferred(among + others).tolist(), strict=True))
        found = {text: self._fit(text, chance) for text in dict.fromkeys(texts)}
        strengths = np.array([found[text] for text in texts])
        if graded is not None:
            self.judged += zip(strengths.tolist(), graded.grade(observation).tolist(), strict=True)
        return strengths

    def _preferred(self, pairs: Sequence[tuple[str, str]]) -> Array:
        """Return P(first ≻ second) of each pair, `[P]`, averaged over both orders."""
        both = [_pair(*ordered) for a, b in pairs for ordered in ((a, b), (b, a))]
        first = _first(self.scorer.log_probs(both)).reshape(-1, 2)
        return np.asarray((first[:, 0] + 1 - first[:, 1]) / 2)

    def _fit(self, text: str, chance: dict[tuple[str, str], float]) -> float:
        """Return the strength of one text among the references; one fit per text, so visiting order is irrelevant."""
        items = [*self.references, *([] if text in self.references else [text])]
        wins = np.array([[0.0 if a == b else self._chance(a, b, chance) for b in items] for a in items])
        if np.isnan(wins).any():
            return np.nan
        strengths = bradley_terry.fit(wins).strengths
        return float(strengths[items.index(text)] - strengths[: len(self.references)].mean())

    @staticmethod
    def _chance(a: str, b: str, chance: dict[tuple[str, str], float]) -> float:
        return chance[a, b] if (a, b) in chance else 1 - chance[b, a]

    def rewards(self, experience: Experience) -> Array:
        found, closed = next_observations(experience), experience.closed()
        led = closed & (found.next >= 0)
        bonus = np.full(experience.reward.shape, np.nan)
        if led.any():
            indices, back = np.unique(found.next[led], return_inverse=True)
            bonus[led] = self.strengths.of(observations_at(experience, indices))[back]
        bonus = scaled(bonus, self.moments, self.settings.scale)
        return (experience.reward + self.counter.add(self.settings.weight * bonus, led)).astype(np.float32)

    def metrics(self) -> Metrics:
        """Distinct observations and texts, the mean bonus, and the fraction of pairs ranked as their true grades."""
        return usage_metrics(self.scorer, self.strengths) | self.counter.metrics() | _in_order(self.judged)

    def state(self) -> State:
        """Return the running moments; the model's cache keeps the answers."""
        return self.moments.state()

    def load(self, state: State) -> None:
        """Return to a saved state."""
        self.moments.load(state)


# Instructions ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InstructionBonusSettings(JudgeSettings):
    """Settings of the preference 'instruction_lm'."""

    calibration: Calibration = "batch"  # removes the model's prior preference for some words
    when: Literal["decision", "end"] = "decision"  # judge every decision, or only the last one of an episode
    scale: Literal["fixed", "deviation"] = "fixed"  # deviation: divide by the bonus's running deviation


class InstructionBonus:
    """Rewards r + weight · p(yes), where the question is whether the decision follows the agent's instruction."""

    scope = "step"
    answers = ("yes", "no")

    def __init__(self, settings: InstructionBonusSettings, group_spec: GroupSpec, gamma: float) -> None:
        self.settings, self.counter = settings, BonusCounter()
        self.moments = RunningMoments(1)
        self.without_word = 0  # decisions of the latest rollout whose action has no word in the codec
        s, codec = self.settings, find_text_codec(self.settings.codec, group_spec)
        if not isinstance(codec, Instructing):
            raise ValueError(
                f"codec: '{codec.prompt}' gives no instructions; name one that implements coterie.core.text.Instructing"
            )
        codec.instruct(_blank(group_spec))  # raises if instructions are switched off in the world
        self.codec: TextCodec = codec
        self.of_choice = codec.actions(np.arange(len(codec.choices)))  # [C, …]
        template = prompts.read(s.template, s.examples, "following", self.answers)
        samples = [_done(text, word) for text in codec.samples() for word in codec.choices]
        samples = samples if s.calibration == "batch" else []
        self.scorer = ChoiceScorer(s.lm, template, self.answers, samples, s.calibration, s.normalize)
        self.verdicts = MemoizedValues(self._verdict)

    def _verdict(self, observation: Tree, tags: Array) -> Array:
        """Return p(yes) `[R]` for observations and choices (the tags); NaN where the model abstains."""
        assert isinstance(self.codec, Instructing)
        instructions, descriptions = self.codec.instruct(observation), self.codec.describe(observation)
        whole = [
            text if text.startswith(words) else f"{words} {text}"
            for words, text in zip(instructions, descriptions, strict=True)
        ]
        texts = [_done(text, self.codec.choices[tag]) for text, tag in zip(whole, tags, strict=True)]
        return _first(self.scorer.log_probs(texts))

    def rewards(self, experience: Experience) -> Array:
        found, closed = next_observations(experience), experience.closed()
        judged = closed & found.last if self.settings.when == "end" else closed
        action = experience.action[judged]
        equal = (action[:, None] == self.of_choice).reshape(len(action), len(self.of_choice), -1).all(axis=2)
        worded = equal.any(axis=1)
        bonus = np.full(experience.reward.shape, np.nan)
        inner = np.full(len(action), np.nan)
        if worded.any():
            shown = observations_at(experience, found.at[judged][worded])
            inner[worded] = self.verdicts.of(shown, equal.argmax(axis=1)[worded])
        bonus[judged] = inner
        self.without_word = int((~worded).sum())
        bonus = scaled(bonus, self.moments, self.settings.scale)
        return (experience.reward + self.counter.add(self.settings.weight * bonus, judged)).astype(np.float32)

    def metrics(self) -> Metrics:
        """Distinct decisions and texts, the mean bonus, and the number of decisions whose action has no word."""
        return (
            usage_metrics(self.scorer, self.verdicts)
            | self.counter.metrics()
            | {"judge/actions_without_word": float(self.without_word)}
        )

    def state(self) -> State:
        """Return the running moments; the model's cache keeps the answers."""
        return self.moments.state()

    def load(self, state: State) -> None:
        """Return to a saved state."""
        self.moments.load(state)


# Helpers -------------------------------------------------------------------------------------------------


def scaled(bonus: Array, moments: RunningMoments, scale: str) -> Array:
    """Divide bonuses by their running deviation, which includes them; they are not centred."""
    if scale == "fixed":
        return bonus
    known = bonus[~np.isnan(bonus)][None]
    moments.update(known, np.ones_like(known))
    return np.asarray(bonus / float(moments.scale[0, 0]))


def _first(log_probs: Array) -> Array:
    """Return the probability `[R]` of the first of two answers; NaN stays NaN."""
    with np.errstate(invalid="ignore"):  # logaddexp warns about NaN
        return np.asarray(np.exp(-np.logaddexp(0.0, log_probs[:, 1] - log_probs[:, 0])))


def _in_order(judged: list[tuple[float, int]]) -> Metrics:
    """Return the fraction of pairs with different true grades that the strengths rank in the same order."""
    kept = [(strength, grade) for strength, grade in judged if grade >= 0 and not np.isnan(strength)][:MAX_RANKED]
    if not kept:
        return {}
    strengths, grades = (np.array(column) for column in zip(*kept, strict=True))
    better = grades[:, None] > grades[None, :]
    right = better & (strengths[:, None] > strengths[None, :])
    return {"judge/accuracy": float(right.sum() / better.sum())} if better.any() else {}


def _spread(samples: list[str], count: int) -> list[str]:
    """Pick `count` evenly spaced samples, since codecs sort their samples by subject."""
    if len(samples) <= count:
        return samples
    return [samples[i] for i in np.linspace(0, len(samples) - 1, count).round().astype(int)]


def _pair(a: str, b: str) -> str:
    return f"A: {a} B: {b}"  # on one line, like the examples


def _done(text: str, word: str) -> str:
    return f"{text} Move: {word}."


def _blank(group_spec: GroupSpec) -> Tree:
    """Return an observation `[1, …]` of zeros."""

    def zeros(space: Box | Discrete | Text) -> Array:
        if isinstance(space, Text):
            return blank((1,), object)
        return np.zeros((1, *space.shape), space.dtype) if isinstance(space, Box) else np.zeros(1, np.int64)

    space = group_spec.spaces.observation
    return {name: zeros(entry) for name, entry in space.entries.items()} if isinstance(space, Dict) else zeros(space)
