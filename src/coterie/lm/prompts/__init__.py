"""Prompt templates and worked examples, read from text files that users can replace.

A template is a text with `{examples}` and, after it, `{state}`. The part after `{examples}` is the question: it is
repeated for every example with its answer, and then asked for the state. Examples are lines `description => answer`.
The files that Coterie ships lie in this folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class PromptTemplate:
    """Turns the description of a state into a prompt."""

    head: str  # the same for every state, examples included
    question: str  # contains `{state}` once

    def prompt(self, state: str) -> str:
        """Return the text that a model continues; answers begin with a space."""
        return self.head + self.question.replace("{state}", state)

    def retry_prompt(self, prompt: str, answer: str, words: Sequence[str]) -> str:
        """Return a prompt that asks again after an answer which is not among the words."""
        last = self.question.rpartition("{state}")[2].strip()
        return f"{prompt} {answer.strip()}\nThat is not possible. Choose one of: {', '.join(words)}.\n{last}"


def read(template: str, examples: str, default: str, words: Sequence[str] | None) -> PromptTemplate:
    """Read a template and its examples, each by name or path; `auto` is the one named `default`."""
    text = _read_file(default if template == "auto" else template, "template").rstrip()
    head, marker, question = text.rpartition("{examples}")
    question = question.lstrip("\n")
    if question.count("{state}") != 1 or "{state}" in head:
        raise ValueError(f"template '{template}': {{state}} must occur once, after {{examples}} if the template has it")
    pairs = read_examples(examples, default, words)
    if pairs and not marker:
        raise ValueError(f"template '{template}' has no {{examples}}; add it, or set examples=none")
    shown = [f"{question.replace('{state}', state)} {answer}\n\n" for state, answer in pairs]
    return PromptTemplate(head + "".join(shown), question)


def read_examples(examples: str, default: str, words: Sequence[str] | None) -> list[tuple[str, str]]:
    """Read worked examples by name or path; `auto`: those of `default`, if there are any."""
    name = f"{default}-examples" if examples == "auto" else examples
    available = examples != "auto" or (FOLDER / f"{name}.txt").is_file()  # not every world ships examples
    return parse(_read_file(name, "examples"), name, words) if examples != "none" and available else []


def parse(text: str, name: str, words: Sequence[str] | None) -> list[tuple[str, str]]:
    """Parse descriptions and answers; answers must be among `words`, unless that is None."""
    pairs = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        state, arrow, answer = (part.strip() for part in line.rpartition("=>"))
        if not arrow or not state:
            raise ValueError(f"examples '{name}', line {number}: expected 'description => answer', got {line!r}")
        if words is not None and answer not in words:
            raise ValueError(f"examples '{name}', line {number}: '{answer}' is not one of {', '.join(words)}")
        pairs.append((state, answer))
    return pairs


def _read_file(name: str, kind: str) -> str:
    path = Path(name)
    if not path.is_file():
        path = FOLDER / f"{name}.txt"
    if not path.is_file():
        known = sorted(p.stem for p in FOLDER.glob("*.txt") if p.stem.endswith("-examples") == (kind == "examples"))
        raise ValueError(f"{kind}: there is no file '{name}', and none of that name is shipped ({', '.join(known)})")
    return path.read_text(encoding="utf-8")
