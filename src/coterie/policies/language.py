"""A language model that plays: it is told what its agents see and chooses among words for their actions.

One question for every distinct description, however many copies and agents see it; answers are remembered. What
the model cannot answer (its budget is spent, its text is no choice) is counted and played by the fallback, a random
legal choice: a failure is never turned into a number. Nothing is learned here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from coterie.core import seeding
from coterie.core.group import GroupSpec
from coterie.core.text import Oracle, TextCodec, find_text_codec
from coterie.core.types import (
    Array,
    Counters,
    Decision,
    Discrete,
    Mean,
    State,
    View,
    action_dtype,
    action_shape,
    map_tree,
)
from coterie.core.validation import at_least, positive
from coterie.core.world import HasExpert
from coterie.lm import calibration as calibrate
from coterie.lm import prompts
from coterie.lm.choice import AnswerMemo, Calibration, ChoiceScorer
from coterie.lm.interface import Sampling
from coterie.lm.loading import LMSettings, LoadedModel

COUNTS = ("decisions", "abstentions", "illegal", "fallbacks", "forfeits")


@dataclass(frozen=True)
class LanguageSettings:
    """Which model plays, how it is asked and how it is understood."""

    lm: LMSettings = field(default_factory=LMSettings)  # the model; a name alone will do
    codec: str = "auto"  # what puts moments into words; auto: the world's own; or package.module:Name
    template: str = "auto"  # a file, or one of ours by name; auto: the codec's
    examples: str = "auto"  # worked ones, likewise; none: the bare question
    method: Literal["score", "complete"] = "score"  # score the words of legal actions, or parse a text
    normalize: Literal["sum", "mean"] = "sum"  # log-probabilities of a word's tokens
    calibration: Calibration = "batch"  # take out what the model likes in any case
    temperature: float = 0.0  # draw choices or texts; 0: the best one, always
    max_tokens: int = 8  # of a text
    illegal: Literal["retry", "fallback", "forfeit"] = "retry"  # what follows a text that is no legal choice
    retries: int = 1  # further questions, each saying what may be chosen; then the fallback

    def __post_init__(self) -> None:
        at_least("temperature", self.temperature, 0)
        positive("max_tokens", self.max_tokens)
        at_least("retries", self.retries, 0)


@dataclass(frozen=True)
class Illegal:
    """A text that names no legal choice."""

    text: str


Answer = int | Illegal | None  # the number of a choice; None: the model abstained


class LanguagePolicy:
    """A language model in its agents' seats."""

    memory_size = 0

    def __init__(self, settings: LanguageSettings, group_spec: GroupSpec) -> None:
        self.settings, self.group_spec = settings, group_spec
        self.codec = find_text_codec(settings.codec, group_spec)
        if settings.illegal == "forfeit" and self.codec.idle is None:
            raise ValueError("illegal=forfeit needs an action that does nothing, which this world has not")
        choices = self.codec.choices
        self.template = prompts.read(settings.template, settings.examples, self.codec.prompt, choices)
        self.of_choice = self.codec.actions(np.arange(len(choices)))  # [C, …]
        calibration = settings.calibration if settings.method == "score" else "none"
        samples = self.codec.samples() if calibration == "batch" else ()
        self.scorer = ChoiceScorer(settings.lm, self.template, choices, samples, calibration, settings.normalize)
        # Greedy completions of prompts, one for each.
        self.texts: AnswerMemo[str, list[str]] = AnswerMemo(lambda new: self._sample(new, 1, 0.0, 0))
        self.counts = dict.fromkeys(COUNTS, 0)
        self.judged: dict[str, list[int]] = {}  # oracle -> [good, all]

    @property
    def lm(self) -> LoadedModel:
        """The model, loaded when it is first asked."""
        return self.scorer.lm

    def act(self, view: View) -> Decision:
        rows = view.acting
        asked = np.flatnonzero(rows)
        seen = map_tree(lambda a: a.reshape(rows.size, *a.shape[2:])[asked], view.observation)
        described = self.codec.describe(seen)
        legal = self._legal(view).reshape(rows.size, -1)[asked]
        wordless = ~legal.any(axis=1)  # nothing that may be done has a word: the first such action is done
        legal[wordless] = True
        if self.settings.method == "score":
            chosen, log_prob = self._scored(described, legal, view)
        else:
            chosen, log_prob = self._parsed(described, legal, view), None
        self.counts["decisions"] += len(asked)
        action = self._actions(chosen, asked, rows.shape)
        if view.mask is not None and wordless.any():
            left = view.mask.reshape(rows.size, -1)[asked[wordless]]
            action.reshape(-1)[asked[wordless]] = left.argmax(axis=1)
            self.counts["fallbacks"] += int(wordless.sum())
            if log_prob is not None:
                log_prob[wordless] = 0.0
        self._judge(action, view)
        if log_prob is None:
            return Decision(action)
        whole = np.zeros(rows.size, np.float32)
        whole[asked] = log_prob
        return Decision(action, whole.reshape(rows.shape))

    def _legal(self, view: View) -> Array:
        """[N, A, C] bool: which choices may be made."""
        if view.mask is None:
            return np.ones((*view.acting.shape, len(self.codec.choices)), bool)
        return view.mask[..., self.of_choice]

    def _actions(self, chosen: Array, asked: Array, rows: tuple[int, ...]) -> Array:
        """[N, A, …] from choices; a forfeited turn is −1."""
        space = self.group_spec.spaces.action
        action = np.zeros((*rows, *action_shape(space)), action_dtype(space))
        mine = self.of_choice[np.maximum(chosen, 0)]
        if self.codec.idle is not None:
            mine[chosen < 0] = self.codec.idle
        action.reshape(-1, *action_shape(space))[asked] = mine
        return action

    # Scored choices -----------------------------------------------------------------------------------

    def _scored(self, described: list[str], legal: Array, view: View) -> tuple[Array, Array]:
        """Numbers of choices `[R]` and their log-probabilities; those without scores are drawn evenly."""
        logits = self.log_probs(described)  # [R, C], NaN where the model abstained
        silent = np.isnan(logits).any(axis=1)
        self.counts["abstentions"] += int(silent.sum())
        self.counts["fallbacks"] += int(silent.sum())
        logits[silent] = 0.0
        logits = np.where(legal, logits, -np.inf)
        heat = self.settings.temperature
        logits[~silent] = logits[~silent] / heat if heat else _best_alone(logits[~silent])
        logits = calibrate.log_normalize(logits)
        greedy = logits.argmax(axis=1) if len(logits) else np.zeros(0, np.int64)
        # The first choice whose cumulated weight exceeds a uniform number has weight above 0, so it is legal.
        sums = np.exp(logits).cumsum(axis=1)
        drawn = (sums <= view.random.random((len(logits), 1)) * sums[:, -1:]).sum(axis=1)
        chosen = np.where(silent, drawn, greedy) if view.greedy else drawn
        return chosen, np.take_along_axis(logits, chosen[:, None], axis=1)[:, 0]

    def log_probs(self, described: Sequence[str]) -> Array:
        """[R, C] calibrated log-probabilities of all choices; NaN in rows that the model was not allowed to read."""
        return self.scorer.log_probs(described)

    # Free text ----------------------------------------------------------------------------------------

    def _parsed(self, described: list[str], legal: Array, view: View) -> Array:
        """Numbers of choices `[R]` read from completions; −1 for a forfeited turn."""
        prompt = [self.template.prompt(text) for text in described]
        first = int(view.random.integers(1 << 30))  # new samples at every tick, the same for the same generator
        cold = view.greedy or not self.settings.temperature
        answers: list[Answer] = self._read(prompt, legal, first, cold)
        if self.settings.illegal == "retry":
            for _ in range(self.settings.retries):
                again = [i for i, answer in enumerate(answers) if isinstance(answer, Illegal)]
                for i in again:
                    words = [word for word, may in zip(self.codec.choices, legal[i], strict=True) if may]
                    prompt[i] = self.template.retry_prompt(prompt[i], answers[i].text, words)  # type: ignore[union-attr]  # chosen above
                for i, better in zip(again, self._read([prompt[i] for i in again], legal[again], first, cold)):
                    answers[i] = better
        return np.array([self._settle(a, may, view.random) for a, may in zip(answers, legal, strict=True)], np.int64)

    def _settle(self, answer: Answer, legal: Array, random: np.random.Generator) -> int:
        """The choice that is played, whatever the model said."""
        if isinstance(answer, int):
            return answer
        self.counts["abstentions"] += answer is None
        if self.settings.illegal == "forfeit" and isinstance(answer, Illegal):
            self.counts["forfeits"] += 1
            return -1
        self.counts["fallbacks"] += 1
        return int(random.choice(np.flatnonzero(legal)))

    def _read(self, prompt: Sequence[str], legal: Array, first: int, cold: bool) -> list[Answer]:
        """What the model says to each prompt, understood; equal prompts have samples of their own unless cold."""
        group_specs: dict[str, list[int]] = {}
        for i, text in enumerate(prompt):
            group_specs.setdefault(text, []).append(i)
        answers: list[Answer] = [None] * len(prompt)
        most = 1 if cold else max(map(len, group_specs.values()), default=1)
        for text, said in self._complete(list(group_specs), most, first, cold).items():
            for i, words in zip(group_specs[text], said * len(group_specs[text]) if cold else said):
                answers[i] = understood(words, self.codec.choices, legal[i])
                self.counts["illegal"] += isinstance(answers[i], Illegal)
        return answers

    def _complete(self, texts: list[str], most: int, first: int, cold: bool) -> dict[str, list[str]]:
        """Completions of each prompt; prompts that may not be asked are missing."""
        if cold:
            answers = self.texts
        else:  # new samples at every tick: nothing of them is worth remembering
            answers = AnswerMemo(lambda new: self._sample(new, most, self.settings.temperature, first))
            answers.backoff = self.texts.backoff
        answers.ask(texts)
        return {text: answers.known[text] for text in texts if text in answers.known}

    def _sample(self, texts: Sequence[str], count: int, temperature: float, first: int) -> list[list[str]]:
        sampling = Sampling(self.settings.max_tokens, temperature, stop=("\n",))
        said = self.lm.complete(texts, count, sampling, first)
        return [[sample.text for sample in samples] for samples in said]

    # What is counted ----------------------------------------------------------------------------------

    def _judge(self, action: Array, view: View) -> None:
        for name, good in good_actions(self.codec, self.group_spec, action, view).items():
            self._count(name, good)

    def _count(self, name: str, good: Array) -> None:
        tally = self.judged.setdefault(name, [0, 0])
        tally[0] += int(good.sum())
        tally[1] += good.size

    def metrics(self) -> Counters:
        """Decisions, what became of them, shares of good ones, and what the model was asked."""
        counted = {name: float(count) for name, count in self.counts.items()}
        shares = {name: Mean(good, total) for name, (good, total) in self.judged.items()}
        asked = self.lm.metrics() if self.counts["decisions"] else {}
        return counted | {"distinct": float(len(self.scorer.known) + len(self.texts.known))} | shares | asked

    def state(self) -> State:
        """Nothing: a model's weights are its own, and its cache and budget keep their own file."""
        return {}

    def load(self, state: State) -> None:
        """Nothing was saved."""


def good_actions(codec: TextCodec, group_spec: GroupSpec, action: Array, view: View) -> dict[str, Array]:
    """Which actions of those who act are the oracle's, and the reference player's, where the world has one."""
    found: dict[str, Array] = {}
    if view.world is None or view.columns is None:
        return found
    if isinstance(codec, Oracle):
        everybody = np.zeros((view.world.num_envs, len(group_spec.spaces.agents), *action.shape[2:]), action.dtype)
        everybody[:, view.columns] = action
        found["optimal"] = codec.optimal(view.world, everybody)[:, view.columns][view.acting]
    if isinstance(view.world, HasExpert) and isinstance(group_spec.spaces.action, Discrete):
        random = seeding.generator(group_spec.seed, "agreement")  # a stream of its own: looking changes nothing
        guided = view.world.expert(view.agent_type, random)[:, view.columns]
        found["agreement"] = (guided == action)[view.acting]
    return found


def understood(text: str, choices: Sequence[str], legal: Array) -> int | Illegal:
    """The legal choice that a text names first; of those that begin at one place, the longest."""
    found = []
    for number, word in enumerate(choices):
        named = re.search(rf"(?<![\w.]){re.escape(word)}(?![\w]|\.\d)", text, re.IGNORECASE)
        if named:
            found.append((named.start(), -len(word), number))
    if not found or not legal[min(found)[2]]:
        return Illegal(text)
    return min(found)[2]


def _best_alone(logits: Array) -> Array:
    """All weight on each row's best choice."""
    alone = np.full_like(logits, -np.inf)
    np.put_along_axis(alone, logits.argmax(axis=1)[:, None], 0.0, axis=1)
    return alone
