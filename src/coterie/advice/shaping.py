"""Potential-based reward shaping by a language model that grades observations, and helpers for all reward judges.

The preference adds γ Φ(o′) − Φ(o) when the learner asks for rewards; stored rewards stay those of the world. Where the
model gives no grade, nothing is added and an abstention is counted. Bonuses that change the optimal policies are in
`bonus.py`.

`next_observations` finds what each decision led to. γ counts the decisions of an agent, so the next observation is the
one at which the agent decides next, however many time steps later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from coterie.core.group import GroupSpec, Stateless
from coterie.core.memoize import Memoized
from coterie.core.text import Graded, find_text_codec
from coterie.core.types import Array, Experience, Metrics, Tree, map_tree
from coterie.core.validation import positive
from coterie.lm import prompts
from coterie.lm.ask.choice import Calibration, ChoiceScorer
from coterie.lm.ask.loading import LMSettings

END, OPEN = -1, -2  # instead of a next observation: the episode terminated, or the rollout ended before it


class NextObservations(NamedTuple):
    """The observation of each decision and the next one of its agent, as indices for `observations_at`."""

    at: Array  # [T, N, A] int: the decision's observation
    next: Array  # [T, N, A] int: the agent's next observation, END or OPEN; valid for closed decisions only
    last: Array  # [T, N, A] bool: the agent's episode terminated or was truncated before its next decision


def next_observations(experience: Experience) -> NextObservations:
    """Find the next observation of each decision by a backward scan over the time steps."""
    rows, num_envs, agents = experience.active.shape
    index = np.arange((rows + 1) * num_envs * agents).reshape(rows + 1, num_envs, agents)
    cut = index[1:].copy()  # an agent truncated alone sees the next row, since its environment continues
    for k, (t, n) in enumerate(experience.finals.index.tolist()):
        cut[t, n] = index.size + k * agents + np.arange(agents)
    ahead, over = np.where(experience.acting, index[rows], OPEN), np.zeros((num_envs, agents), bool)
    found, last = np.empty((rows, num_envs, agents), np.int64), np.empty((rows, num_envs, agents), bool)
    for t in range(rows - 1, -1, -1):
        ahead = np.where(experience.terminated[t], END, ahead)
        ahead = np.where(experience.truncated[t], cut[t], ahead)
        over |= experience.terminated[t] | experience.truncated[t]
        found[t], last[t] = ahead, over
        ahead, over = np.where(experience.active[t], index[t], ahead), over & ~experience.active[t]
    return NextObservations(index[:-1], found, last)


def observations_at(experience: Experience, indices: Array) -> Tree:
    """Return the observations `[R, …]` at indices: first the time steps, then the finals of truncated episodes."""
    tree: Tree = map_tree(
        lambda rows, finals: np.concatenate([rows.reshape(-1, *rows.shape[3:]), finals.reshape(-1, *rows.shape[3:])])[
            indices
        ],
        experience.observation,
        experience.finals.observation,
    )
    return tree


class MemoizedValues:
    """Memoises a function from observations to values; bitwise equal observations are evaluated once.

    NaN is not stored, so a model that abstained can be asked again.
    """

    def __init__(self, value: Callable[[Tree, Array], Array]) -> None:
        """`value` maps observations `[R, …]` and their tags `[R]` to values `[R]`."""
        self.remembered = Memoized(lambda seen, tags: value(seen, tags).tolist(), lambda found: not np.isnan(found))

    @property
    def distinct(self) -> int:
        return len(self.remembered.known)

    def of(self, observation: Tree, tags: Array | None = None) -> Array:
        """Return values `[R]` float64; rows with different tags are evaluated separately."""
        return np.array(self.remembered.of(observation, tags), np.float64)


@dataclass(frozen=True)
class JudgeSettings:
    """Settings common to all reward judges."""

    lm: LMSettings = field(default_factory=LMSettings)  # the language model; a bare name is enough
    codec: str = "auto"  # text codec for observations; auto: the codec of the world; or package.module:Name
    template: str = "auto"  # prompt template: a file or the name of a built-in one; auto: the codec's default
    examples: str = "auto"  # few-shot examples: a file or a built-in name; auto: the codec's default; none: zero-shot
    weight: float = 1.0  # weight of the added term, in units of the world's reward
    normalize: Literal["sum", "mean"] = "sum"  # combines the log-probabilities of a word's tokens

    def __post_init__(self) -> None:
        positive("weight", self.weight)


class BonusCounter:
    """Counts the added reward and the abstentions of the latest rollout."""

    def __init__(self) -> None:
        self.decisions, self.abstentions, self.total = 0, 0, 0.0

    def add(self, bonus: Array, judged: Array) -> Array:
        """Count the bonuses of a rollout (NaN: abstention) at the judged decisions; return them with 0 elsewhere."""
        abstained = np.isnan(bonus) & judged
        given = np.where(judged & ~abstained, bonus, 0.0)
        self.decisions, self.abstentions, self.total = int(judged.sum()), int(abstained.sum()), float(given.sum())
        return given

    def metrics(self) -> Metrics:
        decisions = max(self.decisions, 1)
        return {"judge/abstentions": self.abstentions / decisions, "judge/bonus_mean": self.total / decisions}


# Potential-based shaping ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class PotentialShapingSettings(JudgeSettings):
    """Settings of the preference 'potential_shaping'."""

    calibration: Calibration = "batch"  # removes the model's prior preference for some words
    grade_values: tuple[float, ...] = ()  # Φ of each grade, worst first; (): evenly spaced from -1 to 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(later < earlier for earlier, later in zip(self.grade_values, self.grade_values[1:], strict=False)):
            raise ValueError(
                f"grade_values must not fall from the worst grade to the best, got {list(self.grade_values)}"
            )


class PotentialShaping(Stateless):
    """Rewards r + weight · F with F(s, s′) = γ Φ(s′) − Φ(s), Φ of a true end 0 (Ng, Harada & Russell 1999, eq. 2).

    By their theorem 1 every policy that is optimal with F is optimal without it, whatever Φ is. Φ is the expected
    value of the grade that the model gives, Σ p(grade) · value(grade). It is never rescaled by running statistics,
    since a Φ that changes between two visits does not cancel.
    """

    scope = "step"

    def __init__(self, settings: PotentialShapingSettings, group_spec: GroupSpec, gamma: float) -> None:
        self.settings, self.counter = settings, BonusCounter()
        self.correct, self.checked = 0, 0  # grades equal to the true grade, and grades whose true grade is known
        s, self.gamma = self.settings, gamma
        codec = find_text_codec(s.codec, group_spec)
        if not isinstance(codec, Graded) or not codec.grades:
            raise ValueError(
                f"codec: '{codec.prompt}' has no grades; name a codec that implements coterie.core.text.Graded"
            )
        if s.grade_values and len(s.grade_values) != len(codec.grades):
            raise ValueError(
                f"grade_values must hold one number for each of {', '.join(codec.grades)}, got {list(s.grade_values)}"
            )
        self.codec: Graded = codec
        self.grade_values = np.array(s.grade_values) if s.grade_values else np.linspace(-1.0, 0.0, len(codec.grades))
        template = prompts.read(s.template, s.examples, codec.grade_prompt, codec.grades)
        samples = codec.appraisals() if s.calibration == "batch" else ()
        self.scorer = ChoiceScorer(s.lm, template, codec.grades, samples, s.calibration, s.normalize)
        self.potential = MemoizedValues(self._potential)

    def _potential(self, observation: Tree, tags: Array) -> Array:
        """Return Φ `[R]` of observations; NaN where the model abstains."""
        chances = np.exp(self.scorer.log_probs(self.codec.appraise(observation)))  # [R, C], NaN: abstentions
        known = ~np.isnan(chances).any(axis=1)
        truth = self.codec.grade(observation)
        self.checked += int((known & (truth >= 0)).sum())
        self.correct += int((chances[known].argmax(axis=1) == truth[known])[truth[known] >= 0].sum())
        return np.asarray(chances @ self.grade_values / chances.sum(axis=1))

    def rewards(self, experience: Experience) -> Array:
        found, closed = next_observations(experience), experience.closed()
        difference = np.full(experience.reward.shape, np.nan)
        difference[closed] = self._differences(experience, found, closed)
        added = self.counter.add(self.settings.weight * difference, closed)
        return (experience.reward + added).astype(np.float32)

    def _differences(self, experience: Experience, found: NextObservations, closed: Array) -> Array:
        """Return γ Φ(o′) − Φ(o) of every closed decision; NaN where either Φ is unknown."""
        at, after = found.at[closed], found.next[closed]
        indices, back = np.unique(np.concatenate([at, after[after != END]]), return_inverse=True)
        potential = self.potential.of(observations_at(experience, indices))[back]
        then = np.zeros(len(at))  # Φ of a true end
        then[after != END] = potential[len(at) :]
        return self.gamma * then - potential[: len(at)]

    def metrics(self) -> Metrics:
        """Distinct observations and texts, the mean bonus, and the accuracy of grades where the true ones are known."""
        accuracy = {"judge/accuracy": self.correct / self.checked} if self.checked else {}
        return usage_metrics(self.scorer, self.potential) | self.counter.metrics() | accuracy


def usage_metrics(scorer: ChoiceScorer, values: MemoizedValues) -> Metrics:
    """Return the numbers of distinct observations and texts, and the usage of the model."""
    counted = {"judge/distinct": float(values.distinct), "judge/texts": float(len(scorer.known))}
    return counted | {f"judge/{k}": v for k, v in scorer.metrics().items()}
