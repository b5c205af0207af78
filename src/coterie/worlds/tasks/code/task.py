"""Code: solve a programming problem that has public and hidden tests.

The tester reads the problem and writes tests; the coder reads the problem and the tests and writes a program, which is
run on all tests. Both then see the program and the tests that it failed, hidden ones excepted, until it passes all
public and hidden tests.

Rewards: the team's is the share of hidden tests that the coder's program passes; the coder's own is for a program that
builds, ends without an error and passes the public tests; the tester's own is for tests that are new and right by the
reference solution, less for wrong ones. The tester gets no team reward for its answer: no program has been run yet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.core.validation import at_least, positive, whole
from coterie.worlds.tasks.code.problems import Problem, Test, load_problems
from coterie.worlds.tasks.code.runs import Ran, gave_up, run_on
from coterie.worlds.tasks.programs import find_program
from coterie.worlds.tasks.task import Outcome, TaskSettings
from coterie.worlds.tasks.world import TaskWorld

if TYPE_CHECKING:
    from coterie.worlds.adapters.export_aec import PettingZooAECEnv

UNREADABLE, BROKEN = -0.5, -0.25  # local rewards
ENDED, PASSED = 0.1, 0.4  # the coder's local reward, times the share of public tests
RIGHT, WRONG = 0.5, -0.5  # the tester's local reward, times the share of the tests that it may write
SHOWN = 3  # failures in a prompt
LONGEST = 300  # characters of an input or output in a prompt
REMEMBERED = 20_000  # outputs of reference programs
BLOCK = re.compile(r"^Input:[ \t]*\n(.*?)^Output:[ \t]*\n(.*?)(?=^Input:|\Z)", re.MULTILINE | re.DOTALL)
CALL = re.compile(r"[\w)\]]\s*\(")  # a program that calls nothing prints nothing, and prose need not be run
NOT_BUILT = ("SyntaxError", "IndentationError", "TabError")

TESTER = (
    "You are the tester. Write up to {count} tests for this problem, different from the examples.\n{statement}\n"
    "Examples:\n{examples}\n{tests}{feedback}Write each test as in the examples.\n"
)
CODER = (
    "You are the coder. Write a Python program that solves this problem. It reads standard input and prints to "
    "standard output.\n{statement}\nExamples:\n{examples}\n{tests}{feedback}Write the program.\n```python\n"
)


@dataclass(frozen=True)
class CodeSettings(TaskSettings):
    """Settings of the code task: problems, and limits of programs."""

    # A JSON Lines file of problems in Coterie's, APPS' or CodeContests' form; empty: the problems that Coterie ships.
    problems: str = ""
    # Levels of problems to use, as the file names them (shipped: easy, medium, hard); empty: all.
    levels: tuple[str, ...] = ()
    # Whether problems without hidden tests or a Python solution are left out; otherwise they are an error.
    skip_unusable: bool = False
    # Tests that the tester may write in one turn.
    tests: int = 3
    # Hidden tests of a problem that are run at most.
    hidden_tests: int = 20
    # Processor time of a program for one test, rounded up to whole seconds.
    seconds: float = 1.0
    # Characters that an answer may have.
    max_answer: int = 4000

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("tests", "hidden_tests"):
            whole(name, getattr(self, name))
            at_least(name, getattr(self, name), 1)
        positive("seconds", self.seconds)


@dataclass(frozen=True)
class CodeState:
    """The problem, the tester's latest tests, the coder's latest program and the tests that it failed."""

    problem: str  # key
    tests: tuple[Test, ...] = ()
    program: str = ""
    failures: tuple[str, ...] = ()


class CodeTask:
    """The rules of the code task."""

    roles: tuple[str, ...] = ("tester", "coder")
    state_type = CodeState

    def __init__(self, settings: CodeSettings) -> None:
        self.settings = settings
        self.templates: Mapping[str, str] = {"tester": TESTER, "coder": CODER}
        problems = load_problems(settings.problems, settings.skip_unusable)
        levels = {problem.level for problem in problems}
        for level in settings.levels:
            if level not in levels:
                raise ValueError(f"levels: no problem has level {level!r}; there are {', '.join(sorted(levels))}")
        chosen = [p for p in problems if not settings.levels or p.level in settings.levels]
        self.problems = {p.key: replace(p, hidden=p.hidden[: settings.hidden_tests]) for p in chosen}
        self._keys = tuple(self.problems)
        self._outputs: dict[tuple[str, str], str | None] = {}  # (problem, input) -> what the reference prints

    def generate(self, random: np.random.Generator) -> CodeState:
        return CodeState(self._keys[int(random.integers(len(self._keys)))])

    def identity(self, state: CodeState) -> str:
        return state.problem

    def fields(self, state: CodeState, role: str) -> Mapping[str, str]:
        problem = self._problem(state)
        tests = f"Tests of the tester:\n{format_tests(state.tests)}\n" if state.tests else ""
        feedback = ""
        if state.program:
            failed = "".join(state.failures) or "It passed these tests, but not all hidden ones.\n"
            feedback = f"The last program:\n```python\n{state.program.strip()}\n```\n{failed}\n"
        return {
            "statement": problem.statement,
            "examples": format_tests(problem.public),
            "tests": tests,
            "feedback": feedback,
            "count": str(self.settings.tests),
        }

    def apply(self, state: CodeState, role: str, answer: str) -> Outcome:
        return self._apply_tests(state, answer) if role == "tester" else self._apply_program(state, answer)

    def _apply_tests(self, state: CodeState, answer: str) -> Outcome:
        tests = parse_tests(answer)[: self.settings.tests]
        if not tests:
            return Outcome(replace(state, tests=()), local=UNREADABLE, readable=False, note="no tests could be read")
        problem = self._problem(state)
        known = {tuple(given.split()) for given, _ in problem.public}  # an input with other spaces is no new one
        new: dict[tuple[str, ...], Test] = {}
        for given, expected in tests:
            words = tuple(given.split())
            if words not in known:
                new.setdefault(words, (given, expected))
        outputs = self._reference_outputs(problem, [given for given, _ in new.values()])
        right = sum(same(output, test[1]) for output, test in zip(outputs, new.values(), strict=True))
        wrong = len(new) - right
        local = (RIGHT * right + WRONG * wrong) / self.settings.tests
        note = f"{right} right, {wrong} wrong, {len(tests) - len(new)} known or repeated"
        return Outcome(replace(state, tests=tests), local=local, note=note)

    def _reference_outputs(self, problem: Problem, inputs: list[str]) -> list[str | None]:
        """Outputs of the reference program; None where it fails on an input."""
        if len(self._outputs) > REMEMBERED:
            self._outputs.clear()
        for given, expected in (*problem.hidden, *problem.spare):
            self._outputs[problem.key, given] = expected
        new = tuple(given for given in dict.fromkeys(inputs) if (problem.key, given) not in self._outputs)
        for given, ran in zip(new, run_on(problem.reference, new, self.settings.seconds) if new else (), strict=True):
            self._outputs[problem.key, given] = ran.stdout if ran.status == "pass" else None
        return [self._outputs[problem.key, given] for given in inputs]

    def _apply_program(self, state: CodeState, answer: str) -> Outcome:
        program, problem = find_program(answer, started=True) or "", self._problem(state)
        if not program.strip() or not ("```" in answer or CALL.search(program)):
            return Outcome(replace(state, tests=()), local=UNREADABLE, readable=False, note="no program")
        shown = (*problem.public, *state.tests)
        runs = self._run(program, shown)
        failures = [failure_text(test, ran) for test, ran in zip(shown, runs, strict=True) if not passes(test, ran)]
        after = CodeState(state.problem, (), program, tuple(failures[:SHOWN]))
        if all(error_of(ran).startswith(NOT_BUILT) for ran in runs):
            readable = "```" in answer
            return Outcome(after, 0.0, BROKEN if readable else UNREADABLE, readable=readable, note="does not build")
        public = runs[: len(problem.public)]
        passed = sum(map(passes, problem.public, public))
        ended = sum(ran.status == "pass" for ran in public)
        hidden = 0 if gave_up(public) else sum(map(passes, problem.hidden, self._run(program, problem.hidden)))
        solved = passed == len(public) and hidden == len(problem.hidden)
        note = f"public {passed}/{len(public)}, hidden {hidden}/{len(problem.hidden)}"
        local = (ENDED * ended + PASSED * passed) / len(public)
        return Outcome(after, hidden / len(problem.hidden), local, solved=solved, note=note)

    def _run(self, program: str, tests: Iterable[Test]) -> list[Ran]:
        """Run a program on the inputs of tests, on equal ones once."""
        inputs = [given for given, _ in tests]
        different = tuple(dict.fromkeys(inputs))
        found = dict(zip(different, run_on(program, different, self.settings.seconds), strict=True))
        return [found[given] for given in inputs]

    def solve(self, state: CodeState, role: str) -> str:
        problem = self._problem(state)
        if role == "coder":
            return problem.reference
        return format_tests((problem.spare or problem.public)[: self.settings.tests])

    def guess(self, state: CodeState, role: str, random: np.random.Generator) -> str:
        public = self._problem(state).public
        given, expected = (public[int(random.integers(len(public)))][part] for part in range(2))
        if role == "coder":
            return f"```python\nprint({expected.rstrip()!r})\n```"
        return format_tests([(given, expected)])

    def draw(self, state: CodeState) -> str:
        parts = self.fields(state, "coder")
        return f"{parts['statement']}\n\n{parts['examples']}\n{parts['tests']}{parts['feedback']}".rstrip()

    def _problem(self, state: CodeState) -> Problem:
        return self.problems[state.problem]


def parse_tests(answer: str) -> tuple[Test, ...]:
    """The tests of an answer, as `format_tests` writes them."""
    text = answer.replace("\r\n", "\n").replace("```", "") + "\n"
    found = ((_ended(given), _ended(expected)) for given, expected in BLOCK.findall(text))
    return tuple((given, expected) for given, expected in found if given.strip() or expected.strip())


def _ended(text: str) -> str:
    """Text without blank lines at its end and with one line break."""
    return text.rstrip() + "\n"


def format_tests(tests: Iterable[Test]) -> str:
    """Tests as prompts show them."""
    return "".join(f"Input:\n{_short(given)}\nOutput:\n{_short(expected)}\n" for given, expected in tests)


def failure_text(test: Test, ran: Ran) -> str:
    """The report on a failed test."""
    got = f"It printed:\n{_short(ran.stdout)}\n" if ran.status == "pass" else f"It failed: {_short(error_of(ran))}\n"
    return f"Input:\n{_short(test[0])}\nExpected output:\n{_short(test[1])}\n{got}"


def error_of(ran: Ran) -> str:
    """The reason why a run failed, in one line; "" where it did not."""
    if ran.status == "pass":
        return ""
    lines = ran.stderr.strip().splitlines() or [""]
    return lines[-1] if ran.status == "fail" else f"{ran.status}, {lines[-1]}".rstrip(", ")


def _short(text: str) -> str:
    text = text.rstrip()
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def clean(text: str) -> str:
    """Text without spaces at the ends of lines and blank lines at its end."""
    return "\n".join(line.rstrip() for line in text.splitlines()).rstrip("\n")


def same(printed: str | None, expected: str) -> bool:
    """Whether an output is the expected one, up to spaces at the ends of lines."""
    return printed is not None and clean(printed) == clean(expected)


def passes(test: Test, ran: Ran) -> bool:
    """Whether a run passed a test."""
    return ran.status == "pass" and same(ran.stdout, test[1])


def env(render_mode: str | None = None, **settings: Any) -> PettingZooAECEnv:
    """The code task as a PettingZoo AEC environment; `settings` are those of `CodeSettings`."""
    from coterie.worlds.adapters.export_aec import make_env

    return make_env(CodeProblems, CodeSettings, "code", render_mode, settings)


class CodeProblems(TaskWorld):
    """N copies of the code task."""

    def __init__(self, settings: CodeSettings, num_envs: int) -> None:
        super().__init__(settings, num_envs, CodeTask(settings), proposing=("tester", "coder"))
