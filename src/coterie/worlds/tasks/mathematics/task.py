"""Math: answer a question with a number, an expression or a list of them.

The tool writes an expression for a calculator, or a program; the reasoner reads what came out and answers. The answer
is verified; a wrong one is named as wrong in the prompts of the next turn, and the right one is never shown.

Rewards: the team's is 1 for the right answer; the reasoner's own is for an answer that can be read, the tool's own for
an output, and more for the right one. A tool's output is rewarded as if it were the answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from coterie.core.validation import at_least, one_of, whole, within
from coterie.worlds.tasks.mathematics.answers import TOLERANCE, equal, repeats
from coterie.worlds.tasks.mathematics.arithmetic import NotAnExpression, NoValue
from coterie.worlds.tasks.mathematics.expressions import calculate
from coterie.worlds.tasks.mathematics.forms import is_mathematical, read
from coterie.worlds.tasks.mathematics.generate import Kind, Numbers, Operation, Question, draw_question
from coterie.worlds.tasks.programs import find_program, run_program
from coterie.worlds.tasks.records import Unusable, field_of, read_records, text_of
from coterie.worlds.tasks.task import Outcome, TaskSettings
from coterie.worlds.tasks.world import TaskWorld

if TYPE_CHECKING:
    from coterie.worlds.adapters.export_aec import PettingZooAECEnv

UNREADABLE, FAILED = -0.5, -0.25  # local rewards
READABLE, RAN, HIT = 0.1, 0.1, 0.4
SHOWN = 3  # wrong answers in a prompt
LONGEST = 300  # characters of a tool's output or an answer
Tool = Literal["calculator", "program"]
ANSWER_LINE = re.compile(
    r"^(?:[^\w\n]*|.*\bthe[ \t]+)(?:final[ \t]+)?answer[*_]*[ \t]*(?:is[ \t]*:?|[:=])[*_ \t]*(?![:=])(\S.*?)[*_. \t]*$",
    re.I | re.M,
)
QUESTION_FIELDS = ("question", "problem", "prompt")
ANSWER_FIELDS = ("final_answer", "answer", "solution")

TOOL = "You are the tool.\n{question}\n{wrong}"
TEMPLATES = {
    "calculator": TOOL + "Write an expression for a calculator that gives the answer.\nExpression:",
    "program": TOOL + "Write a Python program that prints the answer.\n```python\n",
}
REASONER = (
    "You are the reasoner.\n{question}\n{wrong}The tool says: {output}\n"
    "Write only the answer, or reason and end with \\boxed{{the answer}}.\nAnswer:"
)


@dataclass(frozen=True)
class MathSettings(TaskSettings):
    """Settings of the mathematics task: the questions, and the tool."""

    # Kinds of generated questions: arithmetic, fraction, equation, system, word.
    kinds: tuple[Kind, ...] = get_args(Kind)
    # Digits of the numbers in generated questions.
    digits: int = 2
    # Numbers in an arithmetic expression at most.
    terms: int = 3
    # Operations of arithmetic and of fractions: + - * /.
    operations: tuple[Operation, ...] = get_args(Operation)
    # A JSON Lines file of questions and answers, used in place of generated ones.
    problems: str = ""
    # Whether records of the file without a final answer are left out; otherwise they are an error.
    skip_unusable: bool = False
    # What the tool writes: an expression for a calculator, or a program that runs in the sandbox.
    tool: Tool = "calculator"
    # Relative difference up to which rounded numbers are equal; whole numbers must be exact.
    tolerance: float = TOLERANCE

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, low in (("digits", 1), ("terms", 2)):
            whole(name, getattr(self, name))
            at_least(name, getattr(self, name), low)
        within("digits", self.digits, 1, 15)
        within("terms", self.terms, 2, 20)
        within("tolerance", self.tolerance, 0, 0.1)
        for name, hint in (("kinds", Kind), ("operations", Operation)):
            given = getattr(self, name)
            if not given or set(given) - set(get_args(hint)):
                known = ", ".join(get_args(hint))
                raise ValueError(f"{name} must be some of {known}, got {', '.join(map(str, given)) or 'none'}")
        one_of("tool", self.tool, get_args(Tool))


@dataclass(frozen=True)
class MathState:
    """A question, wrong answers so far, and the tool's latest output."""

    question: str
    answer: str  # never in a prompt
    working: str  # an expression for the scripted tool
    wrong: tuple[str, ...] = ()
    output: str = ""


class MathTask:
    """The rules of the math task."""

    roles: tuple[str, ...] = ("tool", "reasoner")
    state_type = MathState

    def __init__(self, settings: MathSettings) -> None:
        self.settings = settings
        self.templates: Mapping[str, str] = {"tool": TEMPLATES[settings.tool], "reasoner": REASONER}
        self.numbers = Numbers(settings.digits, settings.terms, settings.operations)
        self.questions = load_questions(settings.problems, settings.skip_unusable) if settings.problems else ()

    def generate(self, random: np.random.Generator) -> MathState:
        if self.questions:
            found = self.questions[int(random.integers(len(self.questions)))]
        else:
            found = draw_question(random, self.settings.kinds, self.numbers)
        return MathState(found.text, found.answer, found.working)

    def identity(self, state: MathState) -> str:
        return state.question

    def fields(self, state: MathState, role: str) -> Mapping[str, str]:
        wrong = "".join(f"The answer {answer} is wrong.\n" for answer in state.wrong[-SHOWN:])
        return {"question": state.question, "wrong": wrong, "output": state.output or "nothing"}

    def apply(self, state: MathState, role: str, answer: str) -> Outcome:
        return self._apply_tool(state, answer) if role == "tool" else self._apply_answer(state, answer)

    def _apply_tool(self, state: MathState, answer: str) -> Outcome:
        program = find_program(answer, started=self.settings.tool == "program")
        if program is None:
            return self._calculated(state, answer)
        if not program.strip():
            return _unreadable(state, "no program")
        verdict = run_program(program)
        printed = [line.strip() for line in verdict.stdout.splitlines() if line.strip()]
        if verdict.status != "pass" or not printed:
            error = (verdict.stderr.strip().splitlines() or [verdict.reason or "it printed nothing"])[-1]
            after = replace(state, output=_short(f"the program failed: {error}"))
            return Outcome(after, local=FAILED, note="the program failed")
        return self._said(state, "\n".join(printed), printed[-1])

    def _calculated(self, state: MathState, answer: str) -> Outcome:
        lines = [line.strip() for line in answer.splitlines() if line.strip()]
        expression = re.sub(r"^expression\s*:", "", lines[0], flags=re.I).strip(" =") if lines else ""
        try:
            value = calculate(expression)
        except NoValue as error:
            after = replace(state, output=_short(f"{expression} has {error}"))
            return Outcome(after, local=FAILED, note=str(error))
        except NotAnExpression as error:
            return _unreadable(state, str(error))
        return self._said(state, value if value == expression else f"{expression} = {value}", value)

    def _said(self, state: MathState, output: str, value: str) -> Outcome:
        """The tool's output; its last line is taken as its answer."""
        hit = self._is_right(state, value)
        after = replace(state, output=_short(output))
        note = f"{_short(value)}, which is {'right' if hit else 'not the answer'}"
        return Outcome(after, float(hit), RAN + HIT * hit, note=note)

    def _apply_answer(self, state: MathState, answer: str) -> Outcome:
        given = find_answer(answer)
        if given is None:
            return _unreadable(state, "no answer could be read")
        if self._is_right(state, given):
            return Outcome(replace(state, output=""), 1.0, READABLE, solved=True, note=f"{given} is right")
        wrong = (*state.wrong, given) if given not in state.wrong else state.wrong
        return Outcome(replace(state, wrong=wrong, output=""), 0.0, READABLE, note=f"{given} is wrong")

    def _is_right(self, state: MathState, given: str) -> bool:
        """Whether it is the answer, and not a part of the question that comes to the same."""
        return equal(state.answer, given, self.settings.tolerance) and not repeats(state.question, state.answer, given)

    def solve(self, state: MathState, role: str) -> str:
        if role == "reasoner":
            return state.answer if find_answer(state.answer) == state.answer else f"\\boxed{{{state.answer}}}"
        if not state.working:  # of a file: nothing but the answer is known
            return f"```python\nprint({state.answer!r})\n```"
        return f"print(({state.working}))\n" if self.settings.tool == "program" else state.working

    def guess(self, state: MathState, role: str, random: np.random.Generator) -> str:
        number = int(random.integers(10**self.settings.digits))
        return f"print({number})\n" if role == "tool" and self.settings.tool == "program" else str(number)

    def draw(self, state: MathState) -> str:
        return f"{state.question}\n{self.fields(state, 'tool')['wrong']}".strip()


def _unreadable(state: MathState, note: str) -> Outcome:
    return Outcome(replace(state, output=""), local=UNREADABLE, readable=False, note=note)


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def find_answer(text: str) -> str | None:
    """The last \\boxed{…} of a text, else its last line "Answer: …", else its first line where that is an answer."""
    if "\\boxed" in text:
        found = last_boxed(text)
    elif lines := ANSWER_LINE.findall(text):
        found = lines[-1]
    else:
        found = next((line.strip() for line in text.splitlines() if line.strip()), None)
        if found is not None and not is_mathematical(read(found)) and not re.fullmatch(r"[\w'-]+", found):
            return None  # a sentence
    return found if found and len(found) <= LONGEST else None


def last_boxed(text: str) -> str | None:
    """The content of the last \\boxed; None where its braces do not close."""
    start = text.rfind("\\boxed")
    rest = text[start + len("\\boxed") :].lstrip()
    if start < 0 or not rest.startswith("{"):
        return None
    depth = 0
    for at, character in enumerate(rest):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return rest[1:at].strip() or None
    return None


# Files -----------------------------------------------------------------------------------------------


def load_questions(path: str, skip: bool = False) -> tuple[Question, ...]:
    """The questions of a file; one that comes again is left out."""
    file = Path(path)
    return _load(file, skip, file.stat().st_mtime_ns if file.is_file() else 0)


@lru_cache(maxsize=4)
def _load(path: Path, skip: bool, changed: int) -> tuple[Question, ...]:
    found: dict[str, Question] = {}
    for question in read_records(path, to_question, skip):
        found.setdefault(question.text, question)
    return tuple(found.values())


def to_question(record: Mapping[str, Any]) -> Question:
    """A record with a question and an answer, or a solution that ends in \\boxed{…} or after ####."""
    text, given = text_of(record, QUESTION_FIELDS), field_of(record, ANSWER_FIELDS)
    if isinstance(given, list):
        given = ", ".join(str(part).strip("$ ") for part in given)
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise ValueError(f"the answer must be a text or a number, got {given!r:.80}")
    answer = str(given).strip()
    if "\\boxed" in answer:
        answer = last_boxed(answer) or ""
    elif "####" in answer:
        answer = answer.rpartition("####")[2].strip()
    answer = answer.strip("$ ")
    if not answer or len(answer) > LONGEST:
        raise Unusable("it has no final answer")
    return Question(text, answer, "")


def env(render_mode: str | None = None, **settings: Any) -> PettingZooAECEnv:
    """The math task as a PettingZoo AEC environment; `settings` are those of `MathSettings`."""
    from coterie.worlds.adapters.export_aec import make_env

    return make_env(Mathematics, MathSettings, "math", render_mode, settings)


class Mathematics(TaskWorld):
    """N copies of the math task."""

    def __init__(self, settings: MathSettings, num_envs: int) -> None:
        super().__init__(settings, num_envs, MathTask(settings), proposing=("tool", "reasoner"))
