"""Asking a language model whether a deed breaks a rule, in two ways: directly, or through the rule's own words.

A large model is asked directly, yes or no. A small one cannot hold a deed against a rule, but it goes on with what a
rule is about: `Channel` asks how likely the deed's words are as what the rule forbids, compared with what other rules
make of them (noisy channel prompting, Min et al. 2022, eq. 3, with equal priors). What follows from an answer is left
to `constraints.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from coterie.lm.chooser import Answers, Calibration, Chooser, open_shared
from coterie.lm.compose import LMSettings, LoadedModel
from coterie.policies import prompts
from coterie.types import Array

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
        asking = prompts.read(template, examples, "constraints", ANSWERS)
        if calibration == "batch":
            raise ValueError("calibration=batch needs known cases of both kinds; set content_free or none")
        self.chooser = Chooser(lm, asking, ANSWERS, (), calibration)

    @property
    def lm(self) -> LoadedModel:
        return self.chooser.lm

    def breaks(self, cases: Sequence[Case]) -> Array:
        scores = self.chooser.log_probs([f"Rule: {c.rule}. {c.state} Move: {c.deed}." for c in cases])
        with np.errstate(invalid="ignore"):  # NaN where the model was not allowed to read
            return _even(scores[:, 0] - scores[:, 1])


class Channel:
    """p(deed | rule) against its mean over the rules of the worked examples."""

    def __init__(self, lm: LMSettings, template: str, examples: str) -> None:
        if examples == "none":
            raise ValueError("ask=channel compares a rule with those of the examples; name some, or set ask=direct")
        self.asking = prompts.read(template, examples, "forbidden", None)
        self.others = tuple(dict.fromkeys(rule for rule, _ in prompts.read_examples(examples, "forbidden", None)))
        if not self.others:
            raise ValueError(f"examples '{examples}': ask=channel needs at least one 'Rule: … => deed'")
        self.settings = lm
        self.answers: Answers[tuple[str, str], float] = Answers(self._score)  # (rule's text, deed) -> log-probability

    @functools.cached_property
    def lm(self) -> LoadedModel:
        """The model, loaded when it is first asked."""
        return open_shared(self.settings)

    def breaks(self, cases: Sequence[Case]) -> Array:
        told = [f"Rule: {case.rule}." for case in cases]
        asked = [(text, case.deed) for case, rule in zip(cases, told, strict=True) for text in (rule, *self.others)]
        self.answers.ask(asked)
        found = np.array([self.answers.known.get(pair, np.nan) for pair in asked]).reshape(len(cases), -1)
        same = np.array([[text == rule for text in self.others] for rule in told]).reshape(len(cases), -1)
        # A rule is not compared with itself where the examples hold it, too.
        rest = np.where(same, -np.inf, found[:, 1:])
        kinds = np.maximum((~same).sum(axis=1), 1)
        with np.errstate(invalid="ignore"):  # NaN where the model was not allowed to read
            return _even(found[:, 0] - np.logaddexp.reduce(rest, axis=1) + np.log(kinds))

    def _score(self, pairs: Sequence[tuple[str, str]]) -> Array:
        """[R], from the model."""
        prompt = [self.asking.prompt(rule) for rule, _ in pairs]
        return self.lm.score(prompt, [[f" {deed}"] for _, deed in pairs])[:, 0]


def _even(apart: Array) -> Array:
    """The probability of the first of two that are this many nats apart; NaN stays NaN."""
    chance: Array = np.exp(-np.logaddexp(0.0, -apart))
    return chance
