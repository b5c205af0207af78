"""Prompts from replaceable files: a template, and worked examples of what is asked.

A template is a text with `{examples}` and, after it, `{state}`: what comes after `{examples}` is the question,
which is asked of every example with its answer before it is asked in earnest. Examples are lines
`description => answer`. Those that come with Coterie lie in the folder `prompts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class PromptTemplate:
    """How a described state becomes a prompt."""

    head: str  # the same for every state, examples included
    question: str  # has one `{state}`

    def prompt(self, state: str) -> str:
        """The text that a model goes on from; answers begin with a space."""
        return self.head + self.question.replace("{state}", state)

    def again(self, prompt: str, answer: str, words: Sequence[str]) -> str:
        """The same once more after an answer that is none."""
        last = self.question.rpartition("{state}")[2].strip()
        return f"{prompt} {answer.strip()}\nThat is not possible. Choose one of: {', '.join(words)}.\n{last}"


def read(template: str, examples: str, default: str, words: Sequence[str] | None) -> PromptTemplate:
    """The prompt of a template and examples by name or path; `auto`: those of the default's name."""
    text = _file(default if template == "auto" else template, "template").rstrip()
    head, gap, question = text.rpartition("{examples}")
    question = question.lstrip("\n")
    if question.count("{state}") != 1 or "{state}" in head:
        raise ValueError(f"template '{template}': expected {{state}} once, behind {{examples}} where it has those")
    pairs = read_examples(examples, default, words)
    if pairs and not gap:
        raise ValueError(f"template '{template}' has no {{examples}}; add them, or set examples=none")
    worked = [f"{question.replace('{state}', state)} {answer}\n\n" for state, answer in pairs]
    return PromptTemplate(head + "".join(worked), question)


def read_examples(examples: str, default: str, words: Sequence[str] | None) -> list[tuple[str, str]]:
    """Worked examples by name or path; `auto`: those of the default's name, if there are any."""
    name = f"{default}-examples" if examples == "auto" else examples
    shipped = examples != "auto" or (FOLDER / f"{name}.txt").is_file()  # not every world comes with examples
    return parse(_file(name, "examples"), name, words) if examples != "none" and shipped else []


def parse(text: str, name: str, words: Sequence[str] | None) -> list[tuple[str, str]]:
    """Descriptions and answers; an answer that nobody may give is refused. None: any may be given."""
    pairs = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        state, arrow, answer = (part.strip() for part in line.rpartition("=>"))
        if not arrow or not state:
            raise ValueError(f"examples '{name}', line {number}: expected 'description => answer', got {line!r}")
        if words is not None and answer not in words:
            raise ValueError(f"examples '{name}', line {number}: '{answer}' is none of {', '.join(words)}")
        pairs.append((state, answer))
    return pairs


def _file(name: str, what: str) -> str:
    path = Path(name)
    if not path.is_file():
        path = FOLDER / f"{name}.txt"
    if not path.is_file():
        known = sorted(p.stem for p in FOLDER.glob("*.txt") if p.stem.endswith("-examples") == (what == "examples"))
        raise ValueError(f"{what}: no file '{name}', nor one of ours ({', '.join(known)})")
    return path.read_text()
