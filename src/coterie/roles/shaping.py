"""A language model that judges how well things stand: potential-based shaping of a group's rewards.

What it says of described moments is added to the world's rewards at the learner's door; stored rewards stay the
world's own. A moment that the model may not judge is never given a number: nothing is added there, and that is
counted. Bonuses that change which policies are best are in `bonus.py`.

What decisions see and lead to, for who values them: next observations, and a value for every distinct one.

γ counts an agent's own decisions, so what follows a decision is what the agent sees when it decides next, however many
ticks later. Nothing here asks a model; `reward.py` does.
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
from coterie.lm.choice import Calibration, ChoiceScorer
from coterie.lm.loading import LMSettings

END, OPEN = -1, -2  # what follows a decision: a true end, or nothing that is known yet


class Following(NamedTuple):
    """What follows every decision, by places in `seen`."""

    at: Array  # [T, N, A] int: place of the decision's own observation
    next: Array  # [T, N, A] int: of what its agent saw next; END or OPEN. Only rows of closed decisions count
    last: Array  # [T, N, A] bool: the agent's episode ended, or was cut short, before it decided again


def following(experience: Experience) -> Following:
    """Where each decision led, scanning backwards over idle ticks."""
    rows, num_envs, agents = experience.active.shape
    group_spec = np.arange((rows + 1) * num_envs * agents).reshape(rows + 1, num_envs, agents)
    cut = group_spec[1:].copy()  # where an agent alone is cut short, its copy goes on and it sees the next row
    for k, (t, n) in enumerate(experience.finals.index.tolist()):
        cut[t, n] = group_spec.size + k * agents + np.arange(agents)
    ahead, over = np.where(experience.acting, group_spec[rows], OPEN), np.zeros((num_envs, agents), bool)
    found, last = np.empty((rows, num_envs, agents), np.int64), np.empty((rows, num_envs, agents), bool)
    for t in range(rows - 1, -1, -1):
        ahead = np.where(experience.terminated[t], END, ahead)
        ahead = np.where(experience.truncated[t], cut[t], ahead)
        over |= experience.terminated[t] | experience.truncated[t]
        found[t], last[t] = ahead, over
        ahead, over = np.where(experience.active[t], group_spec[t], ahead), over & ~experience.active[t]
    return Following(group_spec[:-1], found, last)


def seen(experience: Experience, group_specs: Array) -> Tree:
    """The observations `[R, …]` at such places: rows first, then last observations of copies that were cut short."""
    tree: Tree = map_tree(
        lambda rows, finals: np.concatenate([rows.reshape(-1, *rows.shape[3:]), finals.reshape(-1, *rows.shape[3:])])[
            group_specs
        ],
        experience.observation,
        experience.finals.observation,
    )
    return tree


class Values:
    """Values of observations: those that are equal to the last bit are valued once.

    What has no value (NaN) is not kept, so that a model which may not answer now can be asked again.
    """

    def __init__(self, value: Callable[[Tree, Array], Array]) -> None:
        """`value` gives values `[R]` of observations `[R, …]` with their tags `[R]`."""
        self.remembered = Memoized(lambda seen, tags: value(seen, tags).tolist(), lambda found: not np.isnan(found))

    @property
    def distinct(self) -> int:
        return len(self.remembered.known)

    def of(self, observation: Tree, tags: Array | None = None) -> Array:
        """[R] float64; rows with different tags differ, whatever they show."""
        return np.array(self.remembered.of(observation, tags), np.float64)


@dataclass(frozen=True)
class JudgeSettings:
    """Which model judges, and how it is asked."""

    lm: LMSettings = field(default_factory=LMSettings)  # the model; a name alone will do
    codec: str = "auto"  # what puts moments into words; auto: the world's own; or package.module:Name
    template: str = "auto"  # a file, or one of ours by name; auto: the codec's
    examples: str = "auto"  # worked ones, likewise; none: the bare question
    weight: float = 1.0  # of what is added, in units of the world's reward
    normalize: Literal["sum", "mean"] = "sum"  # log-probabilities of a word's tokens

    def __post_init__(self) -> None:
        positive("weight", self.weight)


class Tally:
    """What was added in the latest rollout, and how often nothing could be said."""

    def __init__(self) -> None:
        self.decisions, self.silent, self.total = 0, 0, 0.0

    def add(self, bonus: Array, open_to_it: Array) -> Array:
        """Take in a rollout's bonuses, NaN where there is none to give, and return them with zeros there."""
        silent = np.isnan(bonus) & open_to_it
        given = np.where(open_to_it & ~silent, bonus, 0.0)
        self.decisions, self.silent, self.total = int(open_to_it.sum()), int(silent.sum()), float(given.sum())
        return given

    def metrics(self) -> Metrics:
        decisions = max(self.decisions, 1)
        return {"judge/abstentions": self.silent / decisions, "judge/bonus_mean": self.total / decisions}


# Potential-based shaping ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class PotentialShapingSettings(JudgeSettings):
    """How a model's grades become a potential."""

    calibration: Calibration = "batch"  # take out what the model likes in any case
    grade_values: tuple[
        float, ...
    ] = ()  # of each grade, worst first; (): evenly from -1 to 0, which is what an end is worth

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(later < earlier for earlier, later in zip(self.grade_values, self.grade_values[1:], strict=False)):
            raise ValueError(
                f"grade_values must not fall from the worst grade to the best, got {list(self.grade_values)}"
            )


class PotentialShaping(Stateless):
    """Rewards r + weight · F with F(s, s′) = γ Φ(s′) − Φ(s), Φ of a true end 0 (Ng, Harada & Russell 1999, eq. 2).

    By their theorem 1 every policy that is optimal with F is optimal without it, whatever Φ is. Φ is the expected
    worth of the grade that the model gives, Σ p(grade) · worth(grade), which lies between the least and the most
    worth: it is never rescaled by what is seen, since a Φ that changes between two visits does not cancel.
    """

    scope = "step"

    def __init__(self, settings: PotentialShapingSettings, group_spec: GroupSpec, gamma: float) -> None:
        self.settings, self.tally = settings, Tally()
        self.right, self.told = 0, 0  # grades that are the true ones, and those that can be checked
        s, self.gamma = self.settings, gamma
        codec = find_text_codec(s.codec, group_spec)
        if not isinstance(codec, Graded) or not codec.grades:
            raise ValueError(
                f"'{codec.prompt}' has no grades to judge by; name a codec that is coterie.core.text.Graded"
            )
        if s.grade_values and len(s.grade_values) != len(codec.grades):
            raise ValueError(
                f"grade_values must name one number for each of {', '.join(codec.grades)}, got {list(s.grade_values)}"
            )
        self.codec: Graded = codec
        self.grade_values = np.array(s.grade_values) if s.grade_values else np.linspace(-1.0, 0.0, len(codec.grades))
        template = prompts.read(s.template, s.examples, codec.grade_prompt, codec.grades)
        samples = codec.appraisals() if s.calibration == "batch" else ()
        self.scorer = ChoiceScorer(s.lm, template, codec.grades, samples, s.calibration, s.normalize)
        self.potential = Values(self._potential)

    def _potential(self, observation: Tree, tags: Array) -> Array:
        """Φ `[R]` of observations; NaN where the model abstains."""
        chances = np.exp(self.scorer.log_probs(self.codec.appraise(observation)))  # [R, C], NaN in silent rows
        known = ~np.isnan(chances).any(axis=1)
        truth = self.codec.grade(observation)
        self.told += int((known & (truth >= 0)).sum())
        self.right += int((chances[known].argmax(axis=1) == truth[known])[truth[known] >= 0].sum())
        return np.asarray(chances @ self.grade_values / chances.sum(axis=1))

    def rewards(self, experience: Experience) -> Array:
        found, closed = following(experience), experience.closed()
        difference = np.full(experience.reward.shape, np.nan)
        difference[closed] = self._differences(experience, found, closed)
        added = self.tally.add(self.settings.weight * difference, closed)
        return (experience.reward + added).astype(np.float32)

    def _differences(self, experience: Experience, found: Following, closed: Array) -> Array:
        """γ Φ(o′) − Φ(o) of every closed decision; NaN where either Φ is not known."""
        at, after = found.at[closed], found.next[closed]
        group_specs, back = np.unique(np.concatenate([at, after[after != END]]), return_inverse=True)
        potential = self.potential.of(seen(experience, group_specs))[back]
        then = np.zeros(len(at))  # Φ of a true end
        then[after != END] = potential[len(at) :]
        return self.gamma * then - potential[: len(at)]

    def metrics(self) -> Metrics:
        """Distinct observations and texts, what was added, and the share of true grades where they are known."""
        told = {"judge/accuracy": self.right / self.told} if self.told else {}
        return asked(self.scorer, self.potential) | self.tally.metrics() | told


def asked(scorer: ChoiceScorer, values: Values) -> Metrics:
    """How much was told apart, and what the model was asked."""
    counted = {"judge/distinct": float(values.distinct), "judge/texts": float(len(scorer.known))}
    return counted | ({f"judge/{k}": v for k, v in scorer.lm.metrics().items()} if scorer.known else {})
