"""Constraints in words: what a group must not do ("never enter lava"), judged by a language model.

Each distinct moment is put before the model once: what does every action do, and does that break a rule? Deeds that
do are masked out (`veto`), cost something at the learner's door (`penalty`), or are only counted (`count`). Masks are
part of what a group lives through, so log-probabilities stay those of the policy that really played. How the model is
asked is in `rules.py`.

Asking a language model whether a deed breaks a rule, in two ways: directly, or through the rule's own words.

A large model is asked directly, yes or no. A small one cannot hold a deed against a rule, but it goes on with what a
rule is about: `Channel` asks how likely the deed's words are as what the rule forbids, compared with what other rules
make of them (noisy channel prompting, Min et al. 2022, eq. 3, with equal priors). What follows from an answer is left
to `constraints.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import numpy as np

from coterie.core.group import GroupSpec, Preference, Risk
from coterie.core.memoize import Memoized
from coterie.core.text import Foretelling, find_text_codec
from coterie.core.types import Array, Counters, Discrete, Experience, Metrics, State, Tree, View, map_tree
from coterie.core.validation import at_least, within
from coterie.lm import prompts
from coterie.lm.choice import AnswerMemo, Calibration, ChoiceScorer
from coterie.lm.loading import LMSettings, LoadedModel, load_shared

ANSWERS = ("yes", "no")


class Case(NamedTuple):
    """What a model is asked to judge."""

    rule: str  # "never enter lava"
    state: str  # what the agent is told
    deed: str  # what the action does, in words


class Jury(Protocol):
    """Who judges cases."""

    @property
    def lm(self) -> LoadedModel:
        """The model, loaded when it is first asked."""
        ...

    def breaks(self, cases: Sequence[Case]) -> Array:
        """How probably each case breaks its rule, `[R]`; NaN where the model may not say."""
        ...


class Direct:
    """Yes or no, few-shot and calibrated, once for every distinct case."""

    def __init__(self, lm: LMSettings, template: str, examples: str, calibration: Calibration) -> None:
        prompt_template = prompts.read(template, examples, "constraints", ANSWERS)
        if calibration == "batch":
            raise ValueError("calibration=batch needs known cases of both kinds; set content_free or none")
        self.scorer = ChoiceScorer(lm, prompt_template, ANSWERS, (), calibration)

    @property
    def lm(self) -> LoadedModel:
        return self.scorer.lm

    def breaks(self, cases: Sequence[Case]) -> Array:
        scores = self.scorer.log_probs([f"Rule: {c.rule}. {c.state} Move: {c.deed}." for c in cases])
        with np.errstate(invalid="ignore"):  # NaN where the model was not allowed to read
            return _even(scores[:, 0] - scores[:, 1])


class Channel:
    """p(deed | rule) against its mean over the rules of the worked examples."""

    def __init__(self, lm: LMSettings, template: str, examples: str) -> None:
        if examples == "none":
            raise ValueError("ask=channel compares a rule with those of the examples; name some, or set ask=direct")
        self.template = prompts.read(template, examples, "forbidden", None)
        self.others = tuple(dict.fromkeys(rule for rule, _ in prompts.read_examples(examples, "forbidden", None)))
        if not self.others:
            raise ValueError(f"examples '{examples}': ask=channel needs at least one 'Rule: … => deed'")
        self.settings = lm
        self.answers: AnswerMemo[tuple[str, str], float] = AnswerMemo(
            self._score
        )  # (rule's text, deed) -> log-probability

    @functools.cached_property
    def lm(self) -> LoadedModel:
        """The model, loaded when it is first asked."""
        return load_shared(self.settings)

    def breaks(self, cases: Sequence[Case]) -> Array:
        told = [f"Rule: {case.rule}." for case in cases]
        asked = [(text, case.deed) for case, rule in zip(cases, told, strict=True) for text in (rule, *self.others)]
        self.answers.ask(asked)
        found = np.array([self.answers.known.get(pair, np.nan) for pair in asked]).reshape(len(cases), -1)
        same = np.array([[text == rule for text in self.others] for rule in told]).reshape(len(cases), -1)
        # A rule is not compared with itself where the examples hold it, too.
        rest = np.where(same, -np.inf, found[:, 1:])
        others = np.maximum((~same).sum(axis=1), 1)
        with np.errstate(invalid="ignore"):  # NaN where the model was not allowed to read
            return _even(found[:, 0] - np.logaddexp.reduce(rest, axis=1) + np.log(others))

    def _score(self, pairs: Sequence[tuple[str, str]]) -> Array:
        """[R], from the model."""
        prompt = [self.template.prompt(rule) for rule, _ in pairs]
        return self.lm.score(prompt, [[f" {deed}"] for _, deed in pairs])[:, 0]


def _even(apart: Array) -> Array:
    """The probability of the first of two that are this many nats apart; NaN stays NaN."""
    chance: Array = np.exp(-np.logaddexp(0.0, -apart))
    return chance


@dataclass(frozen=True)
class ConstraintSettings:
    """What must not be done, who judges it, and what follows."""

    rules: tuple[str, ...] = ()  # in words, such as "never enter lava"; at least one
    action: Literal["veto", "penalty", "count"] = "veto"  # mask out what breaks a rule, charge for it, or only count it
    penalty: float = 1.0  # taken off the reward of a decision that breaks a rule; action=penalty
    lm: LMSettings = field(default_factory=LMSettings)  # the model; a name alone will do
    ask: Literal["channel", "direct"] = "channel"  # through the rule's words, for small models; or yes and no
    threshold: float = 0.9  # a rule is broken where the model gives this or a greater probability
    calibration: Calibration = "content_free"  # take out what the model likes in any case; ask=direct
    codec: str = "auto"  # what puts moments into words; auto: the world's own; or package.module:Name
    template: str = "auto"  # a file, or one of ours by name; auto: the one for this way of asking
    examples: str = "auto"  # worked ones, likewise; none: the bare question
    truth: Literal["untold", "fatal"] = "untold"  # the world does not tell a breach, or ends the episode unpaid

    def __post_init__(self) -> None:
        if not self.rules or not all(rule.strip() for rule in self.rules):
            raise ValueError("rules must hold at least one text, such as 'never enter lava', and no empty one")
        at_least("penalty", self.penalty, 0)
        if not np.isfinite(self.penalty):
            raise ValueError(f"penalty must be finite, got {self.penalty}")
        within("threshold", self.threshold, 0, 1)


class Verdicts(NamedTuple):
    """What the model says of all actions at some moments."""

    broken: Array  # [R, choices] bool: breaks a rule
    silent: Array  # [R] int: deeds that the model did not judge


class LanguageShield:
    """Keeps a group to rules in words."""

    def __init__(self, settings: ConstraintSettings, group_spec: GroupSpec) -> None:
        space = group_spec.spaces.action
        if not isinstance(space, Discrete):
            raise ValueError(
                f"constraints in words judge one action after the other, which needs discrete actions; "
                f"'{group_spec.agent_type}' has a {type(space).__name__}"
            )
        self.settings, self.choices = settings, space.n
        self.codec = find_text_codec(settings.codec, group_spec)
        self.of_choice = self.codec.actions(np.arange(len(self.codec.choices)))  # [C]
        self.rules = tuple(rule.strip().rstrip(".") for rule in settings.rules)
        asked = (settings.lm, settings.template, settings.examples)
        self.jury: Jury = Channel(*asked) if settings.ask == "channel" else Direct(*asked, settings.calibration)
        self.verdicts = Memoized(lambda seen, tags: self._ask(seen), keep=_whole)
        self.asked = False
        self.learns = group_spec.learns  # what the learner sees is counted instead of what is played
        self.played: dict[str, float] = {}  # counts of decisions that were watched
        self.learned: Metrics = {}  # counts of the latest experience that was learned from
        self.vetoes, self.examined = 0, False  # actions taken away in the latest rollout, and whether it is over

    # Judging --------------------------------------------------------------------------------------------

    def judged(self, observation: Tree) -> Verdicts:
        """What all actions at `[R, …]` observations would break; actions that no word stands for break nothing."""
        found = self.verdicts.of(observation)
        broken = np.array([mine for mine, _ in found], bool).reshape(len(found), self.choices)
        return Verdicts(broken, np.array([missed for _, missed in found], np.int64))

    def _ask(self, observation: Tree) -> list[tuple[Array, int]]:
        """What the model says of each observation: broken `[choices]`, and how many deeds it did not judge."""
        self.asked = True
        told, words = self.codec.describe(observation), self.codec.choices
        deeds = self.codec.deeds(observation) if isinstance(self.codec, Foretelling) else [list(words)] * len(told)
        cases = [
            Case(rule, state, deed)
            for state, mine in zip(told, deeds, strict=True)
            for deed in mine
            for rule in self.rules
        ]
        chance = self.jury.breaks(cases).reshape(len(told), len(words), len(self.rules))
        broken = np.zeros((len(told), self.choices), bool)
        with np.errstate(invalid="ignore"):  # what is not known breaks nothing
            broken[:, self.of_choice] = (chance >= self.settings.threshold).any(axis=2)
        return list(zip(broken, np.isnan(chance).any(axis=2).sum(axis=1).tolist(), strict=True))

    # At the table ---------------------------------------------------------------------------------------

    def allowed(self, view: View) -> Array:
        shape = (*view.acting.shape, self.choices)
        legal = np.ones(shape, bool) if view.mask is None else view.mask
        if self.settings.action != "veto" or not view.acting.any():
            return legal
        kept = legal.copy()
        mine = kept[view.acting] & ~self.judged(map_tree(lambda a: a[view.acting], view.observation)).broken
        overruled = ~mine.any(axis=1)  # everything is forbidden, but something must be done
        mine[overruled] = kept[view.acting][overruled]
        self._count_vetoes(int((kept[view.acting] & ~mine).sum()), view.progress is not None)
        kept[view.acting] = mine
        return kept

    def _count_vetoes(self, taken: int, training: bool) -> None:
        """Add actions that the world allowed and a rule took away: here alone both are known."""
        if not (self.learns and training):
            self.played["vetoes"] = self.played.get("vetoes", 0.0) + taken
            return
        if self.examined:  # a new rollout begins
            self.vetoes, self.examined = 0, False
        self.vetoes += taken

    def observe(self, view: View, action: Array) -> None:
        rows = view.acting
        if not rows.any() or (self.learns and view.progress is not None):  # what is learned from is counted there
            return
        seen = map_tree(lambda a: a[rows], view.observation)
        counts, _ = self.count(seen, action[rows], None if view.mask is None else view.mask[rows])
        for name, count in counts.items():
            self.played[name] = self.played.get(name, 0.0) + count

    def count(self, observation: Tree, action: Array, mask: Array | None) -> tuple[Metrics, Array]:
        """What became of `[R]` decisions, and which of them broke a rule."""
        verdicts = self.judged(observation)
        broke = np.take_along_axis(verdicts.broken, action[:, None], axis=1)[:, 0]
        counts = {
            "decisions": float(len(action)),
            "violations": float(broke.sum()),
            "abstentions": float(verdicts.silent.sum()),
        }
        if self.settings.action == "veto" and mask is not None:
            counts["overruled"] = float((verdicts.broken & mask).any(axis=1).sum())
        return counts, broke

    # At the learner's door ------------------------------------------------------------------------------

    def charge(self, preference: Preference) -> Preference:
        """The preference, counting and if so set charging what breaks a rule."""
        if not isinstance(preference, Risk):
            self.learns = True
            return Constrained(preference, self)
        if self.settings.action == "penalty":
            raise ValueError("action=penalty changes rewards, which risk preferences take as they are; set action=veto")
        return preference

    def examine(self, experience: Experience) -> Array:
        """Which decisions broke a rule, `[T, N, A]` bool; counts those whose outcome is known."""
        broke, self.examined = np.zeros(experience.active.shape, bool), True
        for rows, counted in ((experience.closed(), True), (experience.active & ~experience.closed(), False)):
            if not rows.any():
                continue
            seen = map_tree(lambda a, rows=rows: a[:-1][rows], experience.observation)
            mask = None if experience.mask is None else experience.mask[rows]
            counts, broke[rows] = self.count(seen, experience.action[rows], mask)
            if counted:
                self.learned = counts | ({"vetoes": float(self.vetoes)} if self.settings.action == "veto" else {})
                if self.settings.truth == "fatal":
                    fatal = experience.terminated[rows] & (experience.reward[rows] <= 0)
                    self.learned |= agreement(broke[rows], fatal)
        return broke

    def metrics(self) -> Counters:
        """Counts of the latest experience, or, where nothing is learned, of all decisions; and what was asked."""
        counts = self.learned if self.learns else self.played
        asked = self.jury.lm.metrics() if self.asked else {}
        return {f"constraints/{name}": value for name, value in (counts | asked).items()}

    def state(self) -> State:
        """Nothing: what the model said is its cache's to keep, and counts are those of one experience."""
        return {}

    def load(self, state: State) -> None:
        """Nothing was saved."""


class Constrained:
    """A preference whose owner is watched, and charged for what breaks a rule. Stored rewards stay as they are."""

    def __init__(self, inner: Preference, shield: LanguageShield) -> None:
        self.inner, self.shield = inner, shield
        self.scope = inner.scope

    def state(self) -> State:
        return self.inner.state()

    def load(self, state: State) -> None:
        self.inner.load(state)

    def metrics(self) -> Counters:
        return self.inner.metrics()

    def rewards(self, experience: Experience) -> Array:
        broke = self.shield.examine(experience)
        wanted = self.inner.rewards(experience)
        if self.shield.settings.action != "penalty":
            return wanted
        return wanted - np.float32(self.shield.settings.penalty) * broke.astype(np.float32)


def agreement(judged: Array, real: Array) -> Metrics:
    """How well judgements `[R]` bool agree with what the world told."""
    return {
        "fatal": float(real.sum()),
        "foreseen": float((judged & real).sum()),
        "agreement": float((judged == real).mean()),
    }


def _whole(verdict: tuple[Array, int]) -> bool:
    """Whether all was judged; what was not may be asked again at another time."""
    return not verdict[1]
