"""A policy that acts with a language model: it describes observations in words and chooses among words for actions.

The model is asked once per distinct description, for all environments and agents; answers are memoised. Where the model
gives no usable answer (its budget is spent, its text names no choice), a random legal choice is taken and counted: a
failure is never turned into a number. This policy does not learn; `lora.py` has one that does.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from coterie.core import seeding
from coterie.core.group import GroupSpec, Stateless
from coterie.core.sampling import draw_index
from coterie.core.text import Oracle, TextCodec, find_text_codec
from coterie.core.types import (
    UNLABELLED,
    Array,
    Counters,
    Decision,
    Discrete,
    Mean,
    View,
    action_dtype,
    action_shape,
    map_tree,
)
from coterie.core.validation import at_least, positive
from coterie.core.world import HasExpert
from coterie.lm import prompts
from coterie.lm.ask import calibration as calibrate
from coterie.lm.ask.choice import AnswerMemo, Calibration, ChoiceScorer, Illegal, parse_choice
from coterie.lm.ask.interface import Sampling
from coterie.lm.ask.loading import LMSettings, LoadedModel

COUNTS = ("decisions", "abstentions", "illegal", "fallbacks", "forfeits")


@dataclass(frozen=True)
class LanguageSettings:
    """Settings of the policy 'language'."""

    lm: LMSettings = field(default_factory=LMSettings)  # the language model; a bare name is enough
    codec: str = "auto"  # text codec for observations; auto: the codec of the world; or package.module:Name
    template: str = "auto"  # prompt template: a file or the name of a built-in one; auto: the codec's default
    examples: str = "auto"  # few-shot examples: a file or a built-in name; auto: the codec's default; none: zero-shot
    method: Literal["score", "complete"] = "score"  # score the words of legal actions, or parse a completion
    normalize: Literal["sum", "mean"] = "sum"  # combines the log-probabilities of a word's tokens
    calibration: Calibration = "batch"  # removes the model's prior preference for some words
    temperature: float = 0.0  # sampling temperature of choices or completions; 0: greedy
    max_tokens: int = 8  # maximal length of a completion
    illegal: Literal["retry", "fallback", "forfeit"] = "retry"  # reaction to a completion without a legal choice
    retries: int = 1  # further prompts, each with the legal choices; then a random legal choice

    def __post_init__(self) -> None:
        at_least("temperature", self.temperature, 0)
        positive("max_tokens", self.max_tokens)
        at_least("retries", self.retries, 0)


log = logging.getLogger("coterie")
UNREADABLE = 20  # answers, none of them a choice, after which a warning says so
Answer = int | Illegal | None  # the index of a choice; None: the model abstained


class Taken(NamedTuple):
    """Choices of R decisions."""

    choice: Array  # [R]; −1: the no-op
    unlabelled: Array  # [R] bool: the choice is not the model's own answer
    log_prob: Array | None = None  # [R]; None: not known


class LanguagePolicy(Stateless):
    """Acts for a group of agents with a language model; cache and budget are kept in files of their own."""

    memory_size = 0

    def __init__(self, settings: LanguageSettings, group_spec: GroupSpec) -> None:
        self.settings, self.group_spec = settings, group_spec
        self.codec = find_text_codec(settings.codec, group_spec)
        if settings.illegal == "forfeit" and self.codec.idle is None:
            raise ValueError("illegal=forfeit needs a no-op action; this world has none; set illegal=fallback")
        choices = self.codec.choices
        self.template = prompts.read(settings.template, settings.examples, self.codec.prompt, choices)
        self.of_choice = self.codec.actions(np.arange(len(choices)))  # [C, …]
        calibration = settings.calibration if settings.method == "score" else "none"
        samples = self.codec.samples() if calibration == "batch" else ()
        self.scorer = ChoiceScorer(settings.lm, self.template, choices, samples, calibration, settings.normalize)
        # One greedy completion per prompt.
        self.texts: AnswerMemo[str, list[str]] = AnswerMemo(lambda new: self._sample(new, 1, 0.0, 0))
        self.counts = dict.fromkeys(COUNTS, 0)
        self.judged: dict[str, list[int]] = {}  # oracle -> [good, all]
        self.unreadable = 0  # answers in a row, from the first one on, that name no legal choice

    @property
    def lm(self) -> LoadedModel:
        """The language model, loaded at first use."""
        return self.scorer.lm

    def act(self, view: View) -> Decision:
        rows = view.acting
        asked = np.flatnonzero(rows)
        seen = map_tree(lambda a: a.reshape(rows.size, *a.shape[2:])[asked], view.observation)
        described = self.codec.describe(seen)
        legal = self._legal(view).reshape(rows.size, -1)[asked]
        unnamed = ~legal.any(axis=1)  # no legal action has a word: take the first legal action
        legal[unnamed] = True
        choose = self._scored if self.settings.method == "score" else self._parsed
        taken = choose(described, legal, view)
        self.counts["decisions"] += len(asked)
        action = self._actions(taken.choice, asked, rows.shape)
        unlabelled = np.zeros(rows.size, bool)
        unlabelled[asked] = taken.unlabelled
        if view.mask is not None and unnamed.any():
            unlabelled[asked[unnamed]] = True
            left = view.mask.reshape(rows.size, -1)[asked[unnamed]]
            action.reshape(-1)[asked[unnamed]] = left.argmax(axis=1)
            self.counts["fallbacks"] += int(unnamed.sum())
            if taken.log_prob is not None:
                taken.log_prob[unnamed] = 0.0
        self._judge(action, view)
        trace = {UNLABELLED: unlabelled.reshape(rows.shape)}
        if taken.log_prob is None:
            return Decision(action, trace=trace)
        whole = np.zeros(rows.size, np.float32)
        whole[asked] = taken.log_prob
        return Decision(action, whole.reshape(rows.shape), trace=trace)

    def _legal(self, view: View) -> Array:
        """Return which choices are legal, `[N, A, C]` bool."""
        if view.mask is None:
            return np.ones((*view.acting.shape, len(self.codec.choices)), bool)
        return view.mask[..., self.of_choice]

    def _actions(self, chosen: Array, asked: Array, rows: tuple[int, ...]) -> Array:
        """Return actions `[N, A, …]` for choices; choice −1 (forfeit) becomes the no-op."""
        space = self.group_spec.spaces.action
        action = np.zeros((*rows, *action_shape(space)), action_dtype(space))
        mine = self.of_choice[np.maximum(chosen, 0)]
        if self.codec.idle is not None:
            mine[chosen < 0] = self.codec.idle
        action.reshape(-1, *action_shape(space))[asked] = mine
        return action

    # Scored choices -----------------------------------------------------------------------------------

    def _scored(self, described: list[str], legal: Array, view: View) -> Taken:
        """Return choices by their scores; abstentions are drawn uniformly."""
        logits = self.log_probs(described)  # [R, C], NaN where the model abstained
        abstained = np.isnan(logits).any(axis=1)
        self.counts["abstentions"] += int(abstained.sum())
        self.counts["fallbacks"] += int(abstained.sum())
        logits[abstained] = 0.0
        logits = np.where(legal, logits, -np.inf)
        temperature = self.settings.temperature
        logits[~abstained] = logits[~abstained] / temperature if temperature else _greedy_logits(logits[~abstained])
        logits = calibrate.log_normalize(logits)
        greedy = logits.argmax(axis=1) if len(logits) else np.zeros(0, np.int64)
        drawn = draw_index(np.exp(logits), view.random)
        chosen = np.where(abstained, drawn, greedy) if view.greedy else drawn
        return Taken(chosen, abstained, np.take_along_axis(logits, chosen[:, None], axis=1)[:, 0])

    def log_probs(self, described: Sequence[str]) -> Array:
        """Return calibrated log-probabilities `[R, C]` of all choices; NaN in rows where the model abstains."""
        return self.scorer.log_probs(described)

    # Free text ----------------------------------------------------------------------------------------

    def _parsed(self, described: list[str], legal: Array, view: View) -> Taken:
        """Return choices parsed from completions."""
        prompt = [self.template.prompt(text) for text in described]
        first = int(view.random.integers(1 << 30))  # new samples at every time step, reproducible by the generator
        greedy = view.greedy or not self.settings.temperature
        answers: list[Answer] = self._read(prompt, legal, first, greedy)
        if self.settings.illegal == "retry":
            for _ in range(self.settings.retries):
                again = [i for i, answer in enumerate(answers) if isinstance(answer, Illegal)]
                for i in again:
                    words = [word for word, may in zip(self.codec.choices, legal[i], strict=True) if may]
                    prompt[i] = self.template.retry_prompt(prompt[i], answers[i].text, words)  # type: ignore[union-attr]  # chosen above
                for i, better in zip(again, self._read([prompt[i] for i in again], legal[again], first, greedy)):
                    answers[i] = better
        self._warn_unreadable(answers)
        missing = sum(answer is None for answer in answers)
        self.scorer.counter.add(len(answers), missing, self.texts.failure)
        unlabelled = np.array([not isinstance(answer, int) for answer in answers], bool)
        chosen = [self._settle(a, may, view.random) for a, may in zip(answers, legal, strict=True)]
        return Taken(np.array(chosen, np.int64), unlabelled)

    def _warn_unreadable(self, answers: Sequence[Answer]) -> None:
        """Warn once if none of the first answers names a legal choice: the actions are not the model's."""
        unread = [answer.text for answer in answers if isinstance(answer, Illegal)]
        if any(isinstance(answer, int) for answer in answers):
            self.unreadable = UNREADABLE  # some are read: never warn
        if self.unreadable >= UNREADABLE or not unread:
            return
        self.unreadable += len(unread)
        if self.unreadable >= UNREADABLE:
            instead = "the no-op is played" if self.settings.illegal == "forfeit" else "actions are drawn at random"
            log.warning(
                "group '%s': none of the language model's first %d answers names a legal choice, for example %r; %s",
                *(self.group_spec.group, self.unreadable, unread[-1][:60], instead),
            )

    def _settle(self, answer: Answer, legal: Array, random: np.random.Generator) -> int:
        """Return the choice to take for a legal, illegal or missing answer."""
        if isinstance(answer, int):
            return answer
        self.counts["abstentions"] += answer is None
        if self.settings.illegal == "forfeit" and isinstance(answer, Illegal):
            self.counts["forfeits"] += 1
            return -1
        self.counts["fallbacks"] += 1
        return int(random.choice(np.flatnonzero(legal)))

    def _read(self, prompt: Sequence[str], legal: Array, first: int, greedy: bool) -> list[Answer]:
        """Return the parsed answer to each prompt; equal prompts share one completion only if `greedy`."""
        positions: dict[str, list[int]] = {}
        for i, text in enumerate(prompt):
            positions.setdefault(text, []).append(i)
        answers: list[Answer] = [None] * len(prompt)
        most = 1 if greedy else max(map(len, positions.values()), default=1)
        for text, said in self._complete(list(positions), most, first, greedy).items():
            for i, words in zip(positions[text], said * len(positions[text]) if greedy else said):
                answers[i] = parse_choice(words, self.codec.choices, legal[i])
                self.counts["illegal"] += isinstance(answers[i], Illegal)
        return answers

    def _complete(self, texts: list[str], most: int, first: int, greedy: bool) -> dict[str, list[str]]:
        """Return the completions of each prompt; prompts that were refused are missing."""
        if greedy:
            answers = self.texts
        else:  # new samples at every time step: not memoised
            answers = AnswerMemo(lambda new: self._sample(new, most, self.settings.temperature, first))
            answers.backoff = self.texts.backoff
        answers.ask(texts)
        self.texts.failure = answers.failure or self.texts.failure
        return {text: answers.known[text] for text in texts if text in answers.known}

    def _sample(self, texts: Sequence[str], count: int, temperature: float, first: int) -> list[list[str]]:
        sampling = Sampling(self.settings.max_tokens, temperature, stop=("\n",))
        said = self.lm.complete(texts, count, sampling, first)
        return [[sample.text for sample in samples] for samples in said]

    # Metrics ------------------------------------------------------------------------------------------

    def _judge(self, action: Array, view: View) -> None:
        for name, good in good_actions(self.codec, self.group_spec, action, view).items():
            self._count(name, good)

    def _count(self, name: str, good: Array) -> None:
        tally = self.judged.setdefault(name, [0, 0])
        tally[0] += int(good.sum())
        tally[1] += good.size

    def metrics(self) -> Counters:
        """Counts of decisions and failures, fractions of good actions, and the model's usage."""
        counted = {name: float(count) for name, count in self.counts.items()}
        shares = {name: Mean(good, total) for name, (good, total) in self.judged.items()}
        distinct = float(len(self.scorer.known) + len(self.texts.known))
        return counted | {"distinct": distinct} | shares | self.scorer.metrics()


def good_actions(codec: TextCodec, group_spec: GroupSpec, action: Array, view: View) -> dict[str, Array]:
    """Return which acting agents took an optimal action, and the scripted expert's action, where these are known."""
    found: dict[str, Array] = {}
    if view.world is None or view.columns is None:
        return found
    if isinstance(codec, Oracle):
        joint = np.zeros((view.world.num_envs, len(group_spec.spaces.agents), *action.shape[2:]), action.dtype)
        joint[:, view.columns] = action
        found["optimal"] = codec.optimal(view.world, joint)[:, view.columns][view.acting]
    if isinstance(view.world, HasExpert) and isinstance(group_spec.spaces.action, Discrete):
        random = seeding.generator(group_spec.seed, "agreement")  # a separate stream, so measuring changes no result
        expert = view.world.expert(view.agent_type, random)[:, view.columns]
        found["agreement"] = (expert == action)[view.acting]
    return found


def _greedy_logits(logits: Array) -> Array:
    """Return log-probabilities with all weight on the best choice of each row."""
    alone = np.full_like(logits, -np.inf)
    np.put_along_axis(alone, logits.argmax(axis=1)[:, None], 0.0, axis=1)
    return alone
