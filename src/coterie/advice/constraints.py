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
from coterie.lm.ask.choice import AnswerCounter, AnswerMemo, Calibration, ChoiceScorer
from coterie.lm.ask.loading import LMSettings, LoadedModel, load_shared

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
        self.learns = group_spec.learns  # if so, the decisions of the latest rollout are counted, else all
        self.played: dict[str, float] = {}  # counts of all decisions, without those of a learning group's rollouts
        self.rollout: dict[str, float] = {}  # counts of the latest rollout
        self.progress: float | None = None  # of the run as this rollout began; None before the first
        self.compared: Metrics = {}  # the latest experience's breaches, as the world reported them

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
        # What the world allows and a rule forbids: later masks no longer tell the two apart.
        self._count(view, {"vetoes": float((kept[view.acting] & ~mine).sum())})
        kept[view.acting] = mine
        return kept

    def observe(self, view: View, action: Array) -> None:
        """Count breaches where actions are taken, in whichever process, whatever the learner asks for."""
        rows = view.acting
        if not rows.any():
            return
        verdicts = self.judged(map_tree(lambda a: a[rows], view.observation))
        counts = {
            "decisions": float(rows.sum()),
            "violations": float(_broke(verdicts, action[rows]).sum()),
            "abstentions": float(verdicts.abstentions.sum()),
        }
        if self.settings.action == "veto" and view.mask is not None:
            counts["overruled"] = float((verdicts.broken & view.mask[rows]).any(axis=1).sum())
        self._count(view, counts)

    def _count(self, view: View, counts: Metrics) -> None:
        """Add to the counts of the view's rollout or, outside of a learning group's rollouts, to those of all."""
        into = self.played
        if self.learns and view.progress is not None:
            if view.progress != self.progress:
                self.rollout, self.progress = {}, view.progress
            into = self.rollout
        for name, count in counts.items():
            into[name] = into.get(name, 0.0) + count

    # Learning ------------------------------------------------------------------------------------------

    def charge(self, preference: Preference) -> Preference:
        """Wrap the preference so that breaches are charged with action=penalty and compared with the world's own."""
        self.learns = True
        if not isinstance(preference, Risk):
            return ConstrainedPreference(preference, self)
        if self.settings.action == "penalty":
            raise ValueError("action=penalty changes rewards, which risk preferences do not support; set action=veto")
        return preference

    def examine(self, experience: Experience) -> Array:
        """Return which decisions broke a rule, `[T, N, A]` bool; compare those whose outcome is known with it."""
        broke, rows = np.zeros(experience.active.shape, bool), experience.active
        if rows.any():
            seen = map_tree(lambda a: a[:-1][rows], experience.observation)
            broke[rows] = _broke(self.judged(seen), experience.action[rows])
        known = experience.closed()
        if self.settings.ground_truth == "fatal" and known.any():
            self.compared = agreement(broke[known], experience.terminated[known] & (experience.reward[known] <= 0))
        return broke

    def metrics(self) -> Counters:
        """Counts of the latest rollout, or of all decisions if the group does not learn; and the model's usage."""
        counts = self.rollout | self.compared if self.learns else self.played
        return {f"constraints/{name}": value for name, value in (counts | self.judge.metrics()).items()}


class ConstrainedPreference:
    """Subtracts the penalty for breaches of rules from an inner preference. Stored rewards stay unchanged."""

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
        settings, wanted = self.shield.settings, self.inner.rewards(experience)
        if settings.action != "penalty" and settings.ground_truth == "none":
            return wanted
        broke = self.shield.examine(experience)
        charged = settings.penalty if settings.action == "penalty" else 0.0
        return wanted - np.float32(charged) * broke.astype(np.float32)


def _broke(verdicts: RuleJudgements, action: Array) -> Array:
    """Return which of the actions `[R]` broke a rule."""
    return np.take_along_axis(verdicts.broken, action[:, None], axis=1)[:, 0]


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
