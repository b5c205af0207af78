"""Bonuses from a language model: how well it likes where decisions led, and how surely they do as they are told.

Unlike shaping (`reward.py`) these change which policies are best, on purpose. They may be scaled by their running
deviation, so that a weight means the same in every world.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from coterie.core.group import GroupSpec
from coterie.core.text import Graded, Instructing, TextCodec, find_text_codec
from coterie.core.types import Array, Box, Dict, Discrete, Experience, Metrics, State, Tree
from coterie.core.validation import at_least
from coterie.lm import prompts
from coterie.lm.choice import Calibration, ChoiceScorer
from coterie.nn.normalization import RunningMoments
from coterie.preferences import bradley_terry
from coterie.roles.shaping import JudgeSettings, Tally, Values, asked, following, seen

PAIRED = 400  # distinct moments at most among which pairs are counted for `accuracy`


# Comparisons of pairs -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PairwiseBonusSettings(JudgeSettings):
    """How a model's comparisons become a bonus."""

    references: int = 8  # of the codec's samples that every moment is compared with, each twice
    scale: Literal["fixed", "deviation"] = "fixed"  # deviation: divide by the bonus's running deviation

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("references", self.references, 2)


class PairwiseBonus:
    """Rewards r + weight · strength(o′), o′ being what a decision led to.

    The model says which of two descriptions is better, in both orders, so that a liking for A or for B cancels;
    strengths are Bradley and Terry's (`bradley_terry.py`), the references' mean being 0. After a true end there is
    nothing more to see, and no bonus.
    """

    scope = "step"

    def __init__(self, settings: PairwiseBonusSettings, group_spec: GroupSpec, gamma: float) -> None:
        self.settings, self.tally = settings, Tally()
        self.moments = RunningMoments(1)
        self.judged: list[tuple[float, int]] = []  # strength and true grade of distinct observations
        s = self.settings
        self.codec = find_text_codec(s.codec, group_spec)
        self.graded = isinstance(self.codec, Graded) and bool(self.codec.grades)
        samples = self.codec.appraisals() if isinstance(self.codec, Graded) and self.graded else self.codec.samples()
        self.references = _spread(list(dict.fromkeys(samples)), s.references)
        if len(self.references) < 2:
            raise ValueError("the codec has no samples of descriptions to compare with; name one that has")
        name = f"{self.codec.prompt}-pairs"
        default = name if (prompts.FOLDER / f"{name}.txt").is_file() else "pairs"
        self.scorer = ChoiceScorer(
            s.lm, prompts.read(s.template, s.examples, default, ("A", "B")), ("A", "B"), normalize=s.normalize
        )
        self.strengths = Values(self._strength)

    def _strength(self, observation: Tree, tags: Array) -> Array:
        """Strengths `[R]`; NaN where a comparison is missing."""
        codec = self.codec
        texts = (
            codec.appraise(observation) if isinstance(codec, Graded) and self.graded else codec.describe(observation)
        )
        among = [(a, b) for a in self.references for b in self.references if a != b]
        others = [(a, b) for a in dict.fromkeys(texts) for b in self.references if a != b]
        chance = dict(zip(among + others, self._preferred(among + others).tolist(), strict=True))
        found = {text: self._fit(text, chance) for text in dict.fromkeys(texts)}
        strengths = np.array([found[text] for text in texts])
        if isinstance(codec, Graded) and self.graded:
            self.judged += zip(strengths.tolist(), codec.grade(observation).tolist(), strict=True)
        return strengths

    def _preferred(self, pairs: Sequence[tuple[str, str]]) -> Array:
        """How surely the first of each pair is the better one, `[P]`, averaged over both orders."""
        both = [_pair(*ordered) for a, b in pairs for ordered in ((a, b), (b, a))]
        first = _first(self.scorer.log_probs(both)).reshape(-1, 2)
        return np.asarray((first[:, 0] + 1 - first[:, 1]) / 2)

    def _fit(self, text: str, chance: dict[tuple[str, str], float]) -> float:
        """The strength of one text among the references; one at a time, so that no order of visits matters."""
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
        found, closed = following(experience), experience.closed()
        led = closed & (found.next >= 0)
        bonus = np.full(experience.reward.shape, np.nan)
        if led.any():
            group_specs, back = np.unique(found.next[led], return_inverse=True)
            bonus[led] = self.strengths.of(seen(experience, group_specs))[back]
        bonus = scaled(bonus, self.moments, self.settings.scale)
        return (experience.reward + self.tally.add(self.settings.weight * bonus, led)).astype(np.float32)

    def metrics(self) -> Metrics:
        """Distinct observations and texts, what was added, and the share of pairs that are in their true order."""
        return asked(self.scorer, self.strengths) | self.tally.metrics() | _in_order(self.judged)

    def state(self) -> State:
        """What later bonuses are scaled by; answers belong to the model's cache."""
        return self.moments.state()

    def load(self, state: State) -> None:
        """Return to a saved state."""
        self.moments.load(state)


# Instructions ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InstructionBonusSettings(JudgeSettings):
    """How a model's verdicts on decisions become a bonus."""

    calibration: Calibration = "batch"  # take out what the model likes in any case
    when: Literal["decision", "end"] = "decision"  # judge every decision, or only an episode's last one
    scale: Literal["fixed", "deviation"] = "fixed"  # deviation: divide by the bonus's running deviation


class InstructionBonus:
    """Rewards r + weight · p(yes), of the question whether the decision does what the agent is asked to do."""

    scope = "step"
    answers = ("yes", "no")

    def __init__(self, settings: InstructionBonusSettings, group_spec: GroupSpec, gamma: float) -> None:
        self.settings, self.tally = settings, Tally()
        self.moments = RunningMoments(1)
        self.unsaid = 0  # decisions of the latest rollout that no choice of the codec's stands for
        s, codec = self.settings, find_text_codec(self.settings.codec, group_spec)
        if not isinstance(codec, Instructing):
            raise ValueError(
                f"'{codec.prompt}' gives no instructions; name a codec that is coterie.core.text.Instructing"
            )
        codec.instruct(_blank(group_spec))  # refuses a world that could give instructions, but does not
        self.codec: TextCodec = codec
        self.of_choice = codec.actions(np.arange(len(codec.choices)))  # [C, …]
        template = prompts.read(s.template, s.examples, "following", self.answers)
        samples = [_done(text, word) for text in codec.samples() for word in codec.choices]
        samples = samples if s.calibration == "batch" else []
        self.scorer = ChoiceScorer(s.lm, template, self.answers, samples, s.calibration, s.normalize)
        self.verdicts = Values(self._verdict)

    def _verdict(self, observation: Tree, tags: Array) -> Array:
        """p(yes) `[R]` of the choices that are the tags; NaN where the model abstains."""
        assert isinstance(self.codec, Instructing)
        wanted, told = self.codec.instruct(observation), self.codec.describe(observation)
        whole = [
            text if text.startswith(words) else f"{words} {text}" for words, text in zip(wanted, told, strict=True)
        ]
        texts = [_done(text, self.codec.choices[tag]) for text, tag in zip(whole, tags, strict=True)]
        return _first(self.scorer.log_probs(texts))

    def rewards(self, experience: Experience) -> Array:
        found, closed = following(experience), experience.closed()
        judged = closed & found.last if self.settings.when == "end" else closed
        action = experience.action[judged]
        equal = (action[:, None] == self.of_choice).reshape(len(action), len(self.of_choice), -1).all(axis=2)
        said = equal.any(axis=1)
        bonus = np.full(experience.reward.shape, np.nan)
        inner = np.full(len(action), np.nan)
        if said.any():
            shown = seen(experience, found.at[judged][said])
            inner[said] = self.verdicts.of(shown, equal.argmax(axis=1)[said])
        bonus[judged] = inner
        self.unsaid = int((~said).sum())
        bonus = scaled(bonus, self.moments, self.settings.scale)
        return (experience.reward + self.tally.add(self.settings.weight * bonus, judged)).astype(np.float32)

    def metrics(self) -> Metrics:
        """Distinct decisions and texts, what was added, and decisions without words."""
        return asked(self.scorer, self.verdicts) | self.tally.metrics() | {"judge/unsaid": float(self.unsaid)}

    def state(self) -> State:
        """What later bonuses are scaled by; answers belong to the model's cache."""
        return self.moments.state()

    def load(self, state: State) -> None:
        """Return to a saved state."""
        self.moments.load(state)


# What they share ------------------------------------------------------------------------------------------


def scaled(bonus: Array, moments: RunningMoments, scale: str) -> Array:
    """Bonuses divided by their running deviation, these included; their zero stays where it is."""
    if scale == "fixed":
        return bonus
    known = bonus[~np.isnan(bonus)][None]
    moments.update(known, np.ones_like(known))
    return np.asarray(bonus / float(moments.scale[0, 0]))


def _first(log_probs: Array) -> Array:
    """The probability `[R]` of the first of two answers; NaN stays."""
    with np.errstate(invalid="ignore"):  # of NaN, by logaddexp alone
        return np.asarray(np.exp(-np.logaddexp(0.0, log_probs[:, 1] - log_probs[:, 0])))


def _in_order(judged: list[tuple[float, int]]) -> Metrics:
    """Of the pairs of moments with different true grades, the share whose strengths say so, too."""
    kept = [(strength, grade) for strength, grade in judged if grade >= 0 and not np.isnan(strength)][:PAIRED]
    if not kept:
        return {}
    strengths, grades = (np.array(column) for column in zip(*kept, strict=True))
    better = grades[:, None] > grades[None, :]
    right = better & (strengths[:, None] > strengths[None, :])
    return {"judge/accuracy": float(right.sum() / better.sum())} if better.any() else {}


def _spread(samples: list[str], count: int) -> list[str]:
    """Evenly many from the beginning to the end, since samples come sorted by what they are samples of."""
    if len(samples) <= count:
        return samples
    return [samples[i] for i in np.linspace(0, len(samples) - 1, count).round().astype(int)]


def _pair(a: str, b: str) -> str:
    return f"A: {a} B: {b}"  # on one line, as examples are


def _done(text: str, word: str) -> str:
    return f"{text} Move: {word}."


def _blank(group_spec: GroupSpec) -> Tree:
    """An observation `[1, …]` that shows nothing."""

    def zeros(space: Box | Discrete) -> Array:
        return np.zeros((1, *space.shape), space.dtype) if isinstance(space, Box) else np.zeros(1, np.int64)

    space = group_spec.spaces.observation
    return {name: zeros(entry) for name, entry in space.entries.items()} if isinstance(space, Dict) else zeros(space)
