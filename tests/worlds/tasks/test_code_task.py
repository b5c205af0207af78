"""The code task: the shipped problems, rewards as written down, nothing hidden in prompts, files of problems."""

import json
import pickle
from dataclasses import replace

import numpy as np
import pytest

from coterie import sandbox
from coterie.worlds.tasks.code.problems import load_problems, to_problem
from coterie.worlds.tasks.code.runs import run_on
from coterie.worlds.tasks.code.task import (
    CodeProblems,
    CodeSettings,
    CodeState,
    CodeTask,
    format_tests,
    parse_tests,
    same,
)
from coterie.worlds.tasks.records import Unusable
from coterie.worlds.tasks.world import split_of

SUM = {
    "name": "sum",
    "statement": "Print the sum of two integers.",
    "public": [["1 2\n", "3\n"], ["5 5\n", "10\n"]],
    "hidden": [["7 1\n", "8\n"], ["0 0\n", "0\n"], ["3 -3\n", "0\n"], ["4 4\n", "8\n"]],
    "spare": [["6 6\n", "12\n"], ["2 9\n", "11\n"]],
    "reference": "a, b = map(int, input().split())\nprint(a + b)",
}


@pytest.fixture(autouse=True, scope="module")
def _sandbox():
    try:
        sandbox.live_mechanism()
    except sandbox.SandboxUnavailable as error:
        pytest.skip(f"no sandbox on this machine: {error}")


def write(path, *lines):
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return str(path)


@pytest.fixture
def task(tmp_path):
    return CodeTask(CodeSettings(problems=write(tmp_path / "sum.jsonl", SUM)))


# The shipped problems ---------------------------------------------------------------------------------

ALL = """
import io, json, sys
work, outputs = json.load(sys.stdin), []
for program, inputs in work:
    code = compile(program, "program.py", "exec")
    for text in inputs:
        sys.stdin, sys.stdout = io.StringIO(text), io.StringIO()
        exec(code, {"__name__": "__main__"})
        outputs.append(sys.stdout.getvalue())
sys.stdout = sys.__stdout__
print(json.dumps(outputs))
"""


def test_references_pass_all_tests_of_the_shipped_problems():
    problems = load_problems("")
    tests = [[*problem.public, *problem.hidden, *problem.spare] for problem in problems]
    work = [[problem.reference, [given for given, _ in own]] for problem, own in zip(problems, tests, strict=True)]
    verdict = sandbox.run(ALL, json.dumps(work), cpu_seconds=20)
    assert verdict.status == "pass", verdict.stderr
    expected = [output for own in tests for _, output in own]
    assert len(expected) > 500
    assert json.loads(verdict.stdout) == expected


def test_the_shipped_problems_are_complete():
    problems = load_problems("")
    assert len(problems) == len({problem.name for problem in problems}) == 97
    for problem in problems:
        inputs = [given for given, _ in (*problem.public, *problem.hidden, *problem.spare)]
        assert len(set(inputs)) == len(inputs), problem.name
        assert (len(problem.public), len(problem.spare)) == (2, 2)
        assert len(problem.hidden) >= 6
        assert len({output for _, output in problem.hidden}) > 1, "no constant passes"
        assert len(problem.reference) < 1000
    task = CodeTask(CodeSettings())
    splits = [split_of(task, CodeState(problem.key)) for problem in problems]
    assert splits.count("test") >= 20
    assert splits.count("validation") >= 10
    for level in ("easy", "medium", "hard"):
        assert len(CodeTask(CodeSettings(levels=(level,))).problems) >= 10
        for split in ("validation", "test"):
            CodeProblems(CodeSettings(levels=(level,), split=split), 1)


@pytest.mark.slow
def test_solver_and_guesses_in_the_world():
    settings, random = CodeSettings(turns=1), np.random.default_rng(0)
    for answers, solved in (("expert", 6), ("guess", 0)):
        world = CodeProblems(settings, 6)
        world.reset(0)
        first = world.step({"team": getattr(world, answers)("team", random)})
        assert (first.agent_types["team"].reward[:, 0] > 0).all() == (solved > 0)
        last = world.step({"team": getattr(world, answers)("team", random)})
        assert last.success.sum() == solved
        assert last.ended.all()


# Rewards ----------------------------------------------------------------------------------------------


def block(given, expected):
    return f"Input:\n{given}\nOutput:\n{expected}\n"


@pytest.mark.parametrize(
    ("answer", "local", "note"),
    [
        (block("2 2", 4) + block("9 1", 10), 1 / 3, "2 right, 0 wrong, 0 known or repeated"),
        (block("2 2", 5), -1 / 6, "0 right, 1 wrong, 0 known or repeated"),
        (block("2 2", 4) + block("2 3", 4) + block("1 2", 3), 0, "1 right, 1 wrong, 1 known or repeated"),
        (block("2 2", 4) + block("2 2 ", 4), 1 / 6, "1 right, 0 wrong, 1 known or repeated"),
        (block(" 2\t2", 4) + block("2  2", 4) + block("2\n2", 4), 1 / 6, "1 right, 0 wrong, 2 known or repeated"),
        (block("1  2", 3) + block(" 5 5", 10) + block("\n1 2", 3), 0, "0 right, 0 wrong, 3 known or repeated"),
        (block("two three", 5), -1 / 6, "0 right, 1 wrong, 0 known or repeated"),
        (block("0 0", 0), 1 / 6, "1 right, 0 wrong, 0 known or repeated"),
        ("".join(block(f"{n} 1", n + 1) for n in range(20, 30)), 0.5, "3 right, 0 wrong, 0 known or repeated"),
        ("The sum of 2 and 2 is 4.", -0.5, "no tests could be read"),
        ("", -0.5, "no tests could be read"),
    ],
)
def test_rewards_of_the_tester(task, answer, local, note):
    outcome = task.apply(task.generate(np.random.default_rng(0)), "tester", answer)
    assert (outcome.team, outcome.local, outcome.note) == (0, pytest.approx(local), note)
    assert outcome.readable == (local > -0.5)
    assert not outcome.solved


def test_outputs_of_the_reference_are_kept(task, monkeypatch):
    state = task.generate(np.random.default_rng(0))
    task.apply(state, "tester", block("2 2", 4))
    for name in ("run", "run_many"):
        monkeypatch.setattr(sandbox, name, lambda *_, **__: pytest.fail("it was run again"))
    assert task.apply(state, "tester", block("2 2", 5)).local == pytest.approx(-1 / 6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "reward", "note"),
    [
        (SUM["reference"], (1, 0.5), "public 2/2, hidden 4/4"),
        (f"Here:\n```python\n{SUM['reference']}\n```\nDone.", (1, 0.5), "public 2/2, hidden 4/4"),
        (f"{SUM['reference']}\n```\nDone.", (1, 0.5), "public 2/2, hidden 4/4"),
        ("print(8)", (0.5, 0.1), "public 0/2, hidden 2/4"),
        ("a, b = map(int, input().split())\nprint(a + b if a != 0 else 1 / a)", (0.75, 0.5), "public 2/2, hidden 3/4"),
        ("print(3 if int(input()[0]) < 5 else 1 / 0)", (0, 0.25), "public 1/2, hidden 0/4"),
        ("print(input())\nraise SystemExit(1)", (0, 0), "public 0/2, hidden 0/4"),
        ("```python\nprint(\n```", (0, -0.25), "does not build"),
        ("I would add the numbers.", (0, -0.5), "no program"),
        ("I would call print(a + b).", (0, -0.5), "does not build"),
        ("```python\n```", (0, -0.5), "no program"),
    ],
)
def test_rewards_of_the_coder(task, answer, reward, note):
    outcome = task.apply(task.generate(np.random.default_rng(0)), "coder", answer)
    assert (outcome.team, outcome.local, outcome.note) == (reward[0], pytest.approx(reward[1]), note)
    assert outcome.readable == (reward[1] > -0.5)
    assert outcome.solved == (reward[0] == 1)


@pytest.mark.slow
def test_a_program_without_end_fails(task):
    outcome = task.apply(task.generate(np.random.default_rng(0)), "coder", "input()\nwhile True: pass")
    assert (outcome.team, outcome.local, outcome.note) == (0, 0, "public 0/2, hidden 0/4")
    assert "It failed: timeout" in outcome.state.failures[0]


def test_spaces_at_the_ends_of_lines_do_not_count():
    assert same("1 \n2\t\n\n", "1\n2")
    assert same("1\r\n2", "1\n2\n")
    assert not same(" 1\n2", "1\n2")
    assert not same("1\n\n2", "1\n2")
    assert not same("1 2", "1  2")
    assert not same(None, "")


def test_tests_are_read_as_they_are_written():
    tests = (("1\n2 3\n", "a\n\nb\n"), ("x\n", "y\n"))
    assert parse_tests(f"Sure:\n```\n{format_tests(tests)}```") == tests
    assert parse_tests("Input:\r\n1\r\nOutput:\r\n2\r\n") == (("1\n", "2\n"),)
    assert parse_tests("Input:\n1\nInput:\n2\n") == ()


# What prompts show ------------------------------------------------------------------------------------


def prompts(task, state):
    return [task.templates[role].format_map(task.fields(state, role)) for role in task.roles]


@pytest.mark.slow
def test_prompts_show_the_present_state(task):
    state = task.generate(np.random.default_rng(0))
    assert all("Print the sum" in text and "Input:\n5 5\nOutput:\n10\n" in text for text in prompts(task, state))
    state = task.apply(state, "tester", block("8 8", 16) + block("1 1", 3)).state
    assert "Tests of the tester:\nInput:\n8 8\nOutput:\n16\nInput:\n1 1\nOutput:\n3\n" in prompts(task, state)[1]
    state = task.apply(state, "coder", "a, b = map(int, input().split())\nprint(a + b if a < 8 else a // 0)").state
    for text in prompts(task, state):
        assert "print(a + b if a < 8 else a // 0)\n```\n" in text
        assert "Input:\n8 8\nExpected output:\n16\nIt failed: ZeroDivisionError" in text
        assert "Input:\n1 1\nExpected output:\n3\nIt printed:\n2\n" in text
        assert "Tests of the tester" not in text
    state = task.apply(state, "coder", "```\n```").state
    assert "print(a + b if a < 8" in prompts(task, state)[0], "an answer without a program leaves the last one"


SPY = """
import os, re
word, found = b"".join((b"SEC", b"RET")), [input().encode()]
for process in ("self", os.getppid()):
    try:
        with open(f"/proc/{process}/maps") as maps, open(f"/proc/{process}/mem", "rb", 0) as memory:
            for line in maps:
                first, last = (int(n, 16) for n in line.split()[0].split("-"))
                if " rw" in line and last - first < 10**8:
                    memory.seek(first)
                    found += re.findall(word + b"[-_](?:IN|OUT|NAME)", memory.read(last - first))
    except OSError:
        pass
for folder in ("/", "/tmp", "/proc/self", f"/proc/{os.getppid()}"):
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        continue
    for name in names:
        try:
            with open(os.path.join(folder, name), "rb") as file:
                found += re.findall(word + b"[-_](?:IN|OUT|NAME)", file.read(100000))
        except OSError:
            pass
print(found)
"""


@pytest.mark.slow
def test_hidden_tests_and_the_reference_stay_hidden(tmp_path):
    secret = {
        "statement": "Say it again.",
        "public": [["open-1\n", "open-1\n"]],
        "hidden": [[f"SECRET-IN-{n}\n", f"SECRET-OUT-{n}\n"] for n in range(5)],
        "reference": "SECRET_NAME = input()\nprint(SECRET_NAME.replace('IN', 'OUT'))",
    }
    task = CodeTask(CodeSettings(problems=write(tmp_path / "secret.jsonl", secret)))
    state, seen = task.generate(np.random.default_rng(0)), []
    for answer in (SPY, "print(input())", "raise ValueError(input())", "print(", "nothing", "print(1 / 0)"):
        for role, text in (("tester", block("open-2", "open-3")), ("coder", answer)):
            seen += [*prompts(task, state), task.draw(state)]
            state = task.apply(state, role, text).state
    seen += prompts(task, state)
    assert any("It printed:\n[b'open-" in text for text in seen)
    assert not [text for text in seen if "SECRET" in text]
    if sandbox.live_mechanism() == "bubblewrap":  # the only one that runs a program on several inputs in one sandbox
        assert "SECRET" in run_on(SPY, ("open\n", "SECRET-IN-1234\n"), 1)[0].stdout, "it finds what is in its sandbox"


# Files ------------------------------------------------------------------------------------------------

APPS = {
    "problem_id": 12,
    "question": "Add.",
    "solutions": json.dumps(["print(sum(map(int, input().split())))  # long", "print(sum(map(int, input().split())))"]),
    "input_output": json.dumps({"inputs": [f"{n} 1\n" for n in range(9)], "outputs": [f"{n + 1}\n" for n in range(9)]}),
    "difficulty": "introductory",
}
CONTESTS = {
    "name": "1_A",
    "description": "Add.",
    "public_tests": {"input": ["1 1\n"], "output": ["2\n"]},
    "private_tests": {"input": ["2 1\n", "3 1\n"], "output": ["3\n", "4\n"]},
    "generated_tests": {"input": [["4 1"]], "output": [["5"]]},
    "solutions": {
        "language": [2, 3, 1],
        "solution": ["int main(){}", "print(sum(map(int, input().split())))", "print 1"],
    },
    "difficulty": 7,
}


def test_apps_records():
    problem = to_problem(APPS)
    assert (problem.name, problem.level, problem.statement) == ("12", "introductory", "Add.")
    assert problem.public == (("0 1\n", "1\n"), ("1 1\n", "2\n"))
    assert (len(problem.hidden), problem.spare) == (5, (("7 1\n", "8\n"), ("8 1\n", "9\n")))
    assert problem.reference == "print(sum(map(int, input().split())))"


def test_code_contests_records():
    problem = to_problem(CONTESTS)
    assert (problem.name, problem.level) == ("1_A", "7")
    assert problem.public == (("1 1\n", "2\n"),)
    assert problem.hidden == (("2 1\n", "3\n"), ("3 1\n", "4\n"), ("4 1\n", "5\n"))
    assert problem.reference.startswith("print(sum")
    rows = CONTESTS | {
        "public_tests": [{"input": "1 1\n", "output": "2\n"}],
        "solutions": [{"language": "PYTHON3", "solution": problem.reference}],
    }
    assert replace(to_problem(rows), key="") == replace(problem, key="")


@pytest.mark.slow
def test_the_solver_solves_problems_of_files(tmp_path):
    path = write(tmp_path / "two.jsonl", APPS, CONTESTS | {"description": "Add again."}, APPS)
    task = CodeTask(CodeSettings(problems=path, hidden_tests=2))
    assert len(task.problems) == 2
    for key, problem in task.problems.items():
        state = task.apply(CodeState(key), "tester", task.solve(CodeState(key), "tester")).state
        outcome = task.apply(state, "coder", task.solve(state, "coder"))
        assert outcome.solved
        assert outcome.note == f"public {len(problem.public)}/{len(problem.public)}, hidden 2/2"


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (APPS | {"solutions": ""}, "no Python 3 solution"),
        (APPS | {"input_output": '{"inputs": ["1"], "outputs": ["1"]}'}, "it has 1 tests"),
        (APPS | {"input_output": ""}, "it has 0 tests"),
        (APPS | {"input_output": '{"fn_name": "add", "inputs": [], "outputs": []}'}, "calls the function 'add'"),
        (CONTESTS | {"private_tests": None, "generated_tests": None}, "1 public and 0 hidden tests"),
        (CONTESTS | {"solutions": {"language": [2], "solution": ["int"]}}, "no Python 3 solution"),
    ],
)
def test_records_that_cannot_be_used(tmp_path, record, why):
    with pytest.raises(Unusable, match=why):
        to_problem(record)
    path = write(tmp_path / "some.jsonl", SUM, record)
    with pytest.raises(ValueError, match=r"problems: .*some\.jsonl, line 2: .*skip_unusable=true"):
        load_problems(path)
    assert len(load_problems(path, skip=True)) == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not JSON"),
        ('"text"', "line 2: must be a JSON object, got str"),
        ({"question": "?"}, "line 2: unknown form: it needs 'statement' (Coterie)"),
        ({k: v for k, v in SUM.items() if k != "reference"}, "line 2: no field 'reference'"),
        (SUM | {"hidden": [["1"]]}, "'hidden' must be a list of [input, output]"),
        (SUM | {"public": [[1, 2]]}, "'public', test 1: input and output must be texts"),
        (APPS | {"input_output": "{"}, "input_output: not JSON"),
        (APPS | {"input_output": '{"inputs": ["1"], "outputs": []}'}, "must be lists of the same length"),
        (APPS | {"question": " "}, "'question' must be text"),
        (CONTESTS | {"public_tests": "none"}, "'public_tests' must have 'input' and 'output'"),
        (CONTESTS | {"public_tests": ["none"]}, "'public_tests' must be a list of objects"),
    ],
)
def test_files_with_mistakes(tmp_path, line, message):
    path = write(tmp_path / "bad.jsonl", SUM, line)
    with pytest.raises(ValueError, match=r"problems: .*bad\.jsonl, line 2") as caught:
        CodeProblems(CodeSettings(problems=path, skip_unusable=True), 1)
    assert message in str(caught.value)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"problems: cannot read .*none\.jsonl \(No such file"):
        CodeProblems(CodeSettings(problems=str(tmp_path / "none.jsonl")), 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tests": 0}, "tests must be at least 1, got 0"),
        ({"hidden_tests": 0}, "hidden_tests must be at least 1"),
        ({"seconds": 0}, "seconds must be above 0"),
        ({"levels": ("expert",)}, "levels: no problem has level 'expert'; there are easy, hard, medium"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        CodeTask(CodeSettings(**settings))


def test_a_task_can_be_sent_to_another_process(task):
    state = task.generate(np.random.default_rng(0))
    twin = pickle.loads(pickle.dumps(task))
    assert twin.apply(state, "coder", "print(8)") == task.apply(state, "coder", "print(8)")
