"""A policy that writes with a language model: the observation is the prompt, the completion is the action.

It plays a role in any world of texts and does not learn. Greedy answers are memoised by prompt. Where the model gives
no answer (its budget is spent, a server fails), the action is the empty text, and the abstention is counted.
"""

from __future__ import annotations

import functools
import string
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from coterie.core.group import GroupSpec, Stateless
from coterie.core.types import UNLABELLED, Counters, Decision, Text, View, blank
from coterie.core.validation import at_least, positive
from coterie.lm.ask.choice import AnswerCounter, AnswerMemo
from coterie.lm.ask.interface import Prompt, Sampling
from coterie.lm.ask.loading import LMSettings, LoadedModel, backend_of, load_shared


@dataclass(frozen=True)
class WriterSettings:
    """Settings of the policy 'writer'."""

    lm: LMSettings = field(default_factory=LMSettings)  # the language model; a bare name is enough
    template: str = "{prompt}"  # what the model reads; {prompt} stands for the observation
    chat: bool = False  # whether the model is asked in a conversation, with its chat template
    system: str = ""  # the system message of a conversation; empty: none
    temperature: float = 0.0  # sampling temperature; 0: greedy
    max_tokens: int = 64  # maximal length of an answer
    stop: tuple[str, ...] = ()  # an answer ends before the first of these texts

    def __post_init__(self) -> None:
        at_least("temperature", self.temperature, 0)
        positive("max_tokens", self.max_tokens)
        if "" in self.stop:
            raise ValueError("stop must not contain an empty text")
        if self.system and not self.chat:
            raise ValueError("system: a system message needs a conversation; set chat=true")
        try:
            names = [name for _, name, _, _ in string.Formatter().parse(self.template) if name is not None]
        except ValueError as error:
            raise ValueError(f"template: {error}; write {{{{ and }}}} for braces") from None
        if names != ["prompt"]:
            raise ValueError(f"template must contain {{prompt}} once and no other braces, got {self.template!r}")


class WriterPolicy(Stateless):
    """Writes for a group of agents with a language model."""

    memory_size = 0

    def __init__(self, settings: WriterSettings, group_spec: GroupSpec) -> None:
        spaces = group_spec.spaces
        if not isinstance(spaces.observation, Text) or not isinstance(spaces.action, Text):
            raise ValueError("policy 'writer' needs a world of texts; policy 'language' chooses among actions by words")
        if backend_of(settings.lm) == "encoder":
            raise ValueError(f"lm: '{settings.lm.name}' only embeds texts; name a model that can write")
        self.settings, self.max_length = settings, spaces.action.max_length
        self.known: AnswerMemo[str, list[str]] = AnswerMemo(lambda new: self._sample(new, 1, 0.0, 0))  # greedy answers
        self.counter = AnswerCounter(settings.lm.max_abstentions)
        self.decisions = self.abstentions = 0

    @functools.cached_property
    def lm(self) -> LoadedModel:
        """The language model, loaded at first use."""
        return load_shared(self.settings.lm)

    def act(self, view: View) -> Decision:
        action, unlabelled = blank(view.acting.shape, object), np.zeros(view.acting.shape, bool)
        asked = np.argwhere(view.acting).tolist()
        prompts = [str(view.observation[n, a]) for n, a in asked]  # type: ignore[index]  # an array
        first = int(view.random.integers(1 << 30))  # new samples at every time step, reproducible by the generator
        answers = self._answer(prompts, first, greedy=view.greedy or not self.settings.temperature)
        missing = sum(answer is None for answer in answers)
        self.decisions += len(answers)
        self.abstentions += missing
        self.counter.add(len(answers), missing, self.known.failure)
        for (n, a), answer in zip(asked, answers, strict=True):
            action[n, a], unlabelled[n, a] = (answer or "")[: self.max_length], answer is None
        return Decision(action, trace={UNLABELLED: unlabelled})

    def _answer(self, prompts: Sequence[str], first: int, greedy: bool) -> list[str | None]:
        """The answer to each prompt, None where there is none; equal prompts share one only if `greedy`."""
        copies: dict[str, int] = {}  # how often each prompt has been met before
        numbers = []
        for text in prompts:
            copies[text] = copies.get(text, -1) + 1
            numbers.append(copies[text])
        memo = self.known
        if not greedy:  # new samples at every time step: not memoised
            most = max(numbers, default=0) + 1
            memo = AnswerMemo(lambda new: self._sample(new, most, self.settings.temperature, first))
            memo.backoff = self.known.backoff
        memo.ask(copies)
        self.known.failure = memo.failure or self.known.failure
        found = [memo.known.get(text) for text in prompts]
        return [
            None if texts is None else texts[0 if greedy else number]
            for texts, number in zip(found, numbers, strict=True)
        ]

    def _sample(self, texts: Sequence[str], count: int, temperature: float, first: int) -> list[list[str]]:
        sampling = Sampling(self.settings.max_tokens, temperature, stop=self.settings.stop)
        said = self.lm.complete([self._prompt(text) for text in texts], count, sampling, first)
        return [[sample.text for sample in samples] for samples in said]

    def _prompt(self, text: str) -> Prompt:
        written = self.settings.template.format(prompt=text)
        if not self.settings.chat:
            return written
        system = [{"role": "system", "content": self.settings.system}] if self.settings.system else []
        return [*system, {"role": "user", "content": written}]

    def metrics(self) -> Counters:
        """Counts of decisions and abstentions, and the model's usage."""
        if not self.decisions:
            return {}
        used = self.lm.metrics() if "lm" in vars(self) else {}
        counted = {"decisions": float(self.decisions), "abstentions": float(self.abstentions)}
        return counted | self.counter.metrics() | used
