"""Constraints in words ("never enter lava"): a language model judges which actions break a rule.

The model judges every action at each distinct observation once. Actions that break a rule are masked out (`veto`),
reduce the reward that the learner sees (`penalty`), or are only counted (`count`). Masks are part of the stored
experience, so log-probabilities are those of the policy that acted.

Two judges ask the model. `DirectJudge` asks "yes or no", which needs a large model. `ChannelJudge` suits small models:
it scores the words for an action as something that the rule forbids, relative to other rules (noisy channel prompting,
Min et al. 2022, eq. 3, with equal priors).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import numpy as np

from coterie.core.group import GroupSpec, Preference, Risk, Stateless
from coterie.core.memoize import Memoized
from coterie.core.text import HasActionEffects, find_text_codec
from coterie.core.types import Array, Counters, Discrete, Experience, Metrics, State, Tree, View, map_tree
from coterie.core.validation import at_least, within
from coterie.lm import prompts
from coterie.lm.choice import AnswerCounter, AnswerMemo, Calibration, ChoiceScorer
from coterie.lm.loading import LMSettings, LoadedModel, load_shared

ANSWERS = ("yes", "no")


class Case(NamedTuple):
    """A rule and an action to judge against it."""

    rule: str  # "never enter lava"
    state: str  # the description of the observation
    effect: str  # the effect of the action, in words


class RuleJudge(Protocol):
    """Judges cases with a language model."""

    def breaks(self, cases: Sequence[Case]) -> Array:
        """Return the probability that each case breaks its rule, `[R]`; NaN where the model abstains."""
        ...

    def metrics(self) -> Metrics:
        """Return the numbers of questions and of those without an answer, and the model's usage."""
        ...


class DirectJudge:
    """Asks yes or no, few-shot and calibrated, once per distinct case."""

    def __init__(self, lm: LMSettings, template: str, examples: str, calibration: Calibration) -> None:
        prompt_template = prompts.read(template, examples, "constraints", ANSWERS)
        if calibration == "batch":
            raise ValueError("calibration=batch needs known cases of both answers; set content_free or none")
        self.scorer = ChoiceScorer(lm, prompt_template, ANSWERS, (), calibration)

    def metrics(self) -> Metrics:
        return self.scorer.metrics()

    def breaks(self, cases: Sequence[Case]) -> Array:
        scores = self.scorer.log_probs([f"Rule: {c.rule}. {c.state} Move: {c.effect}." for c in cases])
        with np.errstate(invalid="ignore"):  # NaN where the model abstains
            return _sigmoid(scores[:, 0] - scores[:, 1])


class ChannelJudge:
    """Compares p(effect | rule) with its mean over the rules of the examples."""

    def __init__(self, lm: LMSettings, template: str, examples: str) -> None:
        if examples == "none":
            raise ValueError(
                "examples=none: ask=channel compares a rule with those of the examples; name some, or set ask=direct"
            )
        self.template = prompts.read(template, examples, "forbidden", None)
        self.others = tuple(dict.fromkeys(rule for rule, _ in prompts.read_examples(examples, "forbidden", None)))
        if not self.others:
            raise ValueError(f"examples '{examples}': ask=channel needs at least one 'Rule: … => effect'")
        self.settings = lm
        # (text of the rule, effect) -> log-probability
        self.answers: AnswerMemo[tuple[str, str], float] = AnswerMemo(self._score)
        self.counter = AnswerCounter(lm.max_abstentions)

    @functools.cached_property
    def lm(self) -> LoadedModel:
        """The language model, loaded at first use."""
        return load_shared(self.settings)

    def metrics(self) -> Metrics:
        return self.counter.metrics() | self.lm.metrics() if self.counter.questions else {}

    def breaks(self, cases: Sequence[Case]) -> Array:
        rules = [f"Rule: {case.rule}." for case in cases]
        asked = [(text, case.effect) for case, rule in zip(cases, rules, strict=True) for text in (rule, *self.others)]
        self.answers.ask(asked)
        missing = sum(pair not in self.answers.known for pair in asked)
        self.counter.add(len(asked), missing, self.answers.failure)
        found = np.array([self.answers.known.get(pair, np.nan) for pair in asked]).reshape(len(cases), -1)
        same = np.array([[text == rule for text in self.others] for rule in rules]).reshape(len(cases), -1)
        # A rule that is among the examples is not compared with itself.
        rest = np.where(same, -np.inf, found[:, 1:])
        others = np.maximum((~same).sum(axis=1), 1)
        with np.errstate(invalid="ignore"):  # NaN where the model abstains
            return _sigmoid(found[:, 0] - np.logaddexp.reduce(rest, axis=1) + np.log(others))

    def _score(self, pairs: Sequence[tuple[str, str]]) -> Array:
        """Return log-probabilities `[R]` from the model."""
        prompt = [self.template.prompt(rule) for rule, _ in pairs]
        return self.lm.score(prompt, [[f" {effect}"] for _, effect in pairs])[:, 0]


def _sigmoid(log_odds: Array) -> Array:
    """Return probabilities for log-odds; NaN stays NaN."""
    probability: Array = np.exp(-np.logaddexp(0.0, -log_odds))
    return probability


@dataclass(frozen=True)
class ConstraintSettings:
    """Settings of the constraints 'language'."""

    rules: tuple[str, ...] = ()  # at least one rule in words, such as "never enter lava"
    action: Literal["veto", "penalty", "count"] = "veto"  # mask out, charge for, or only count breaches
    penalty: float = 1.0  # subtracted from the reward of a decision that breaks a rule; action=penalty
    lm: LMSettings = field(default_factory=LMSettings)  # the language model; a bare name is enough
    ask: Literal["channel", "direct"] = "channel"  # noisy channel, for small models; or a yes/no question
    threshold: float = 0.9  # a rule counts as broken at or above this probability
    calibration: Calibration = "content_free"  # removes the model's prior preference for some words; ask=direct
    codec: str = "auto"  # text codec for observations; auto: the codec of the world; or package.module:Name
    template: str = "auto"  # prompt template: a file or a built-in name; auto: the default for `ask`
    examples: str = "auto"  # few-shot examples: a file or a built-in name; auto: the default for `ask`; none: zero-shot
    ground_truth: Literal["none", "fatal"] = "none"  # fatal: a breach terminates the episode without reward

    def __post_init__(self) -> None:
        if not self.rules or not all(rule.strip() for rule in self.rules):
            raise ValueError("rules must hold at least one text, such as 'never enter lava', and no empty one")
        at_least("penalty", self.penalty, 0)
        if not np.isfinite(self.penalty):
            raise ValueError(f"penalty must be finite, got {self.penalty}")
        within("threshold", self.threshold, 0, 1)


class RuleJudgements(NamedTuple):
    """Judgements of all actions at R observations."""

    broken: Array  # [R, choices] bool: the action breaks a rule
    abstentions: Array  # [R] int: actions that the model did not judge


class LanguageShield(Stateless):
    """Applies rules in words to a group's actions.

    Nothing is saved: the model's cache keeps the answers, and counts cover one experience only.
    """

    def __init__(self, settings: ConstraintSettings, group_spec: GroupSpec) -> None:
        space = group_spec.spaces.action
        if not isinstance(space, Discrete):
            raise ValueError(
                f"constraints in words need discrete actions, since each action is judged separately; "
                f"'{group_spec.agent_type}' has a {type(space).__name__}"
            )
        self.settings, self.choices = settings, space.n
        self.codec = find_text_codec(settings.codec, group_spec)
        self.of_choice = self.codec.actions(np.arange(len(self.codec.choices)))  # [C]
        self.rules = tuple(rule.strip().rstrip(".") for rule in settings.rules)
        asked = (settings.lm, settings.template, settings.examples)
        self.judge: RuleJudge = (
            ChannelJudge(*asked) if settings.ask == "channel" else DirectJudge(*asked, settings.calibration)
        )
        self.verdicts = Memoized(lambda seen, tags: self._ask(seen), keep=_complete)
        self.learns = group_spec.learns  # if so, the learner's experience is counted, not acting
        self.played: dict[str, float] = {}  # counts of all decisions outside learning
        self.learned: Metrics = {}  # counts of the latest experience of the learner
        self.vetoes, self.examined = 0, False  # masked actions of the rollout; whether the rollout is over

    # Judging --------------------------------------------------------------------------------------------

    def judged(self, observation: Tree) -> RuleJudgements:
        """Judge all actions at `[R, …]` observations; actions without a word break no rule."""
        found = self.verdicts.of(observation)
        broken = np.array([mine for mine, _ in found], bool).reshape(len(found), self.choices)
        return RuleJudgements(broken, np.array([missed for _, missed in found], np.int64))

    def _ask(self, observation: Tree) -> list[tuple[Array, int]]:
        """Ask the model: for each observation, broken `[choices]` and the number of actions that it did not judge."""
        states, words = self.codec.describe(observation), self.codec.choices
        effects = [list(words)] * len(states)
        if isinstance(self.codec, HasActionEffects):
            effects = self.codec.action_effects(observation)
        cases = [
            Case(rule, state, effect)
            for state, mine in zip(states, effects, strict=True)
            for effect in mine
            for rule in self.rules
        ]
        chance = self.judge.breaks(cases).reshape(len(states), len(words), len(self.rules))
        broken = np.zeros((len(states), self.choices), bool)
        with np.errstate(invalid="ignore"):  # NaN: an abstention breaks no rule
            broken[:, self.of_choice] = (chance >= self.settings.threshold).any(axis=2)
        return list(zip(broken, np.isnan(chance).any(axis=2).sum(axis=1).tolist(), strict=True))

    # Acting --------------------------------------------------------------------------------------------

    def allowed(self, view: View) -> Array:
        shape = (*view.acting.shape, self.choices)
        legal = np.ones(shape, bool) if view.mask is None else view.mask
        if self.settings.action != "veto" or not view.acting.any():
            return legal
        kept = legal.copy()
        mine = kept[view.acting] & ~self.judged(map_tree(lambda a: a[view.acting], view.observation)).broken
        overruled = ~mine.any(axis=1)  # every action is forbidden: allow all, since one must be taken
        mine[overruled] = kept[view.acting][overruled]
        self._count_vetoes(int((kept[view.acting] & ~mine).sum()), view.progress is not None)
        kept[view.acting] = mine
        return kept

    def _count_vetoes(self, taken: int, training: bool) -> None:
        """Count actions that the world allows and a rule forbids; stored masks no longer tell them apart."""
        if not (self.learns and training):
            self.played["vetoes"] = self.played.get("vetoes", 0.0) + taken
            return
        if self.examined:  # a new rollout begins
            self.vetoes, self.examined = 0, False
        self.vetoes += taken

    def observe(self, view: View, action: Array) -> None:
        rows = view.acting
        if not rows.any() or (self.learns and view.progress is not None):  # `examine` counts these
            return
        seen = map_tree(lambda a: a[rows], view.observation)
        counts, _ = self.count(seen, action[rows], None if view.mask is None else view.mask[rows])
        for name, count in counts.items():
            self.played[name] = self.played.get(name, 0.0) + count

    def count(self, observation: Tree, action: Array, mask: Array | None) -> tuple[Metrics, Array]:
        """Return counts for `[R]` decisions, and which of them broke a rule."""
        verdicts = self.judged(observation)
        broke = np.take_along_axis(verdicts.broken, action[:, None], axis=1)[:, 0]
        counts = {
            "decisions": float(len(action)),
            "violations": float(broke.sum()),
            "abstentions": float(verdicts.abstentions.sum()),
        }
        if self.settings.action == "veto" and mask is not None:
            counts["overruled"] = float((verdicts.broken & mask).any(axis=1).sum())
        return counts, broke

    # Learning ------------------------------------------------------------------------------------------

    def charge(self, preference: Preference) -> Preference:
        """Wrap the preference so that breaches are counted and, with action=penalty, charged."""
        if not isinstance(preference, Risk):
            self.learns = True
            return ConstrainedPreference(preference, self)
        if self.settings.action == "penalty":
            raise ValueError("action=penalty changes rewards, which risk preferences do not support; set action=veto")
        return preference

    def examine(self, experience: Experience) -> Array:
        """Return which decisions broke a rule, `[T, N, A]` bool; count those whose outcome is known."""
        broke, self.examined = np.zeros(experience.active.shape, bool), True
        for rows, counted in ((experience.closed(), True), (experience.active & ~experience.closed(), False)):
            if not rows.any():
                continue
            seen = map_tree(lambda a, rows=rows: a[:-1][rows], experience.observation)
            mask = None if experience.mask is None else experience.mask[rows]
            counts, broke[rows] = self.count(seen, experience.action[rows], mask)
            if counted:
                self.learned = counts | ({"vetoes": float(self.vetoes)} if self.settings.action == "veto" else {})
                if self.settings.ground_truth == "fatal":
                    fatal = experience.terminated[rows] & (experience.reward[rows] <= 0)
                    self.learned |= agreement(broke[rows], fatal)
        return broke

    def metrics(self) -> Counters:
        """Counts of the latest experience, or of all decisions if the group does not learn; and the model's usage."""
        counts = self.learned if self.learns else self.played
        return {f"constraints/{name}": value for name, value in (counts | self.judge.metrics()).items()}


class ConstrainedPreference:
    """Counts breaches of rules and subtracts their penalty from an inner preference. Stored rewards stay unchanged."""

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
    """Compare judgements `[R]` bool with the breaches that the world reported."""
    return {
        "fatal": float(real.sum()),
        "foreseen": float((judged & real).sum()),
        "agreement": float((judged == real).mean()),
    }


def _complete(verdict: tuple[Array, int]) -> bool:
    """Whether every action was judged; incomplete judgements are not stored, so the model is asked again."""
    return not verdict[1]
