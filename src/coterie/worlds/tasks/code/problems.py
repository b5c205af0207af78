"""Programming problems: those that Coterie ships, and files in the forms of APPS and CodeContests."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from coterie.worlds.tasks.records import Unusable, field_of, parse_object, read_records, text_of

SHIPPED = Path(__file__).with_name("problems.jsonl")
PUBLIC = 2  # tests of an APPS record that are shown; the form does not say which
SPARE = 2  # hidden tests that the scripted tester writes, where there are enough
FEW = 5  # hidden tests to keep
PYTHON_3 = (3, "PYTHON3", "python3", "Python 3", "python", "py3")  # CodeContests
Test = tuple[str, str]  # input, expected output


@dataclass(frozen=True)
class Problem:
    """A problem and its tests."""

    key: str  # of the statement
    name: str
    level: str
    statement: str
    public: tuple[Test, ...]
    hidden: tuple[Test, ...]
    spare: tuple[Test, ...]  # right tests that are neither shown nor hidden
    reference: str  # a Python program that passes all tests

    def __repr__(self) -> str:
        return f"Problem({self.name})"


def load_problems(path: str, skip: bool = False) -> tuple[Problem, ...]:
    """The problems of a file; "" is the set that Coterie ships. A statement that comes again is left out."""
    file = Path(path) if path else SHIPPED
    changed = file.stat().st_mtime_ns if file.is_file() else 0
    return _load(file, skip, changed)


@lru_cache(maxsize=4)
def _load(path: Path, skip: bool, changed: int) -> tuple[Problem, ...]:
    found: dict[str, Problem] = {}
    for problem in read_records(path, to_problem, skip):
        found.setdefault(problem.key, problem)
    return tuple(found.values())


def to_problem(record: Mapping[str, Any]) -> Problem:
    """A record in one of the three forms, recognised by its fields."""
    if "statement" in record:
        return _from_own(record)
    if "input_output" in record:
        return _from_apps(record)
    if "public_tests" in record or "private_tests" in record:
        return _from_code_contests(record)
    raise ValueError(
        "unknown form: it needs 'statement' (Coterie), 'input_output' (APPS) or 'public_tests' (CodeContests), "
        f"but has {', '.join(map(repr, record)) or 'nothing'}"
    )


def _from_own(record: Mapping[str, Any]) -> Problem:
    statement, reference = text_of(record, ("statement",)), text_of(record, ("reference",))
    public, hidden = (_pairs(field_of(record, (name,)), name) for name in ("public", "hidden"))
    spare = _pairs(record.get("spare", []), "spare")
    return _problem(record, statement, (public, hidden, spare), reference + "\n")


def _from_apps(record: Mapping[str, Any]) -> Problem:
    statement, given = text_of(record, ("question",)), record["input_output"]
    tests = parse_object(given, "input_output") if isinstance(given, str) and given.strip() else given or {}
    if not isinstance(tests, dict):
        raise ValueError(f"'input_output' must be an object with 'inputs' and 'outputs', got {given!r:.80}")
    if "fn_name" in tests:
        raise Unusable(f"it calls the function '{tests['fn_name']}'; only standard input and output can be tested")
    pairs = _columns(tests, "inputs", "outputs", "input_output")
    if len(pairs) < 2:
        raise Unusable(f"it has {len(pairs)} tests; one to show and one to hide are needed")
    shown = min(PUBLIC, len(pairs) - 1)
    solutions = record.get("solutions") or []
    if isinstance(solutions, str):
        solutions = parse_object(f'{{"all": {solutions}}}', "solutions")["all"]
    return _problem(record, statement, _with_spare(pairs[:shown], pairs[shown:]), _reference(solutions))


def _from_code_contests(record: Mapping[str, Any]) -> Problem:
    statement = text_of(record, ("description",))
    public, private, generated = (
        _columns(record.get(name) or {}, "input", "output", name)
        for name in ("public_tests", "private_tests", "generated_tests")
    )
    solutions = record.get("solutions") or {}
    if isinstance(solutions, dict):
        languages, programs = solutions.get("language") or [], solutions.get("solution") or []
        solutions = [p for language, p in zip(languages, programs, strict=False) if language in PYTHON_3]
    else:
        solutions = [s.get("solution") for s in solutions if isinstance(s, dict) and s.get("language") in PYTHON_3]
    return _problem(record, statement, _with_spare(public, private + generated), _reference(solutions))


def _columns(tests: Any, inputs: str, outputs: str, where: str) -> tuple[Test, ...]:
    """Tests from two lists, or from a list of objects."""
    if isinstance(tests, list):
        if not all(isinstance(test, dict) for test in tests):
            raise ValueError(f"'{where}' must be a list of objects with '{inputs}' and '{outputs}'")
        tests = {name: [test.get(name) for test in tests] for name in (inputs, outputs)}
    if not isinstance(tests, dict):
        raise ValueError(f"'{where}' must have '{inputs}' and '{outputs}', got {tests!r:.80}")
    ins, outs = tests.get(inputs) or [], tests.get(outputs) or []
    if not isinstance(ins, list) or not isinstance(outs, list) or len(ins) != len(outs):
        raise ValueError(f"'{where}': '{inputs}' and '{outputs}' must be lists of the same length")
    return _pairs([list(pair) for pair in zip(ins, outs, strict=True)], where)


def _pairs(tests: Any, where: str) -> tuple[Test, ...]:
    """Tests as pairs of texts; a list stands for its lines."""
    if not isinstance(tests, list) or not all(isinstance(test, list) and len(test) == 2 for test in tests):
        raise ValueError(f"'{where}' must be a list of [input, output]")
    found = []
    for number, test in enumerate(tests, 1):
        texts = ["\n".join(map(str, part)) + "\n" if isinstance(part, list) else part for part in test]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError(f"'{where}', test {number}: input and output must be texts, got {test!r:.80}")
        found.append((texts[0], texts[1]))
    return tuple(found)


def _with_spare(public: tuple[Test, ...], hidden: tuple[Test, ...]) -> tuple[tuple[Test, ...], ...]:
    """Set the last hidden tests aside for the scripted tester, where enough are left."""
    count = SPARE if len(hidden) >= FEW + SPARE else 0
    return public, hidden[: len(hidden) - count], hidden[len(hidden) - count :]


def _reference(solutions: Any) -> str:
    """The shortest of the solutions; records of public data sets have hundreds."""
    if not isinstance(solutions, list):
        raise ValueError(f"'solutions' must be a list of programs, got {solutions!r:.80}")
    return min((s for s in solutions if isinstance(s, str) and s.strip()), key=len, default="")


def _problem(record: Mapping[str, Any], statement: str, tests: tuple[tuple[Test, ...], ...], reference: str) -> Problem:
    public, hidden, spare = tests
    if not reference:
        raise Unusable("it has no Python 3 solution; tests are checked against one")
    if not public or not hidden:
        raise Unusable(f"it has {len(public)} public and {len(hidden)} hidden tests; at least one of each is needed")
    key = hashlib.sha256(statement.encode(errors="replace")).hexdigest()[:16]
    name = record.get("name") or record.get("problem_id") or record.get("id") or key
    level = record.get("level", record.get("difficulty", ""))
    return Problem(key, str(name), str(level), statement, public, hidden, spare, reference)
