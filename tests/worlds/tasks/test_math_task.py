"""The math task: every question can be solved, rewards are as written down, answers do not leak, files are read."""

import json

import numpy as np
import pytest

from coterie import sandbox
from coterie.worlds.tasks.mathematics.generate import KINDS
from coterie.worlds.tasks.mathematics.task import Mathematics, MathSettings, MathState, MathTask, find_answer
from coterie.worlds.tasks.world import split_of

QUESTION = MathState("What is 12 / 4?", "3", "12 / 4")


@pytest.fixture
def _sandbox():
    try:
        sandbox.live_mechanism()
    except sandbox.SandboxUnavailable as error:
        pytest.skip(f"no sandbox on this machine: {error}")


@pytest.mark.parametrize("digits", [1, 2, 6])
@pytest.mark.parametrize("kind", KINDS)
def test_the_solver_answers_every_question(kind, digits):
    task, random = MathTask(MathSettings(kinds=(kind,), digits=digits, terms=4)), np.random.default_rng(0)
    for _ in range(60):
        state = task.generate(random)
        calculated = task.apply(state, "tool", task.solve(state, "tool"))
        assert (calculated.team, calculated.local) == (1, 0.5), state
        answered = task.apply(calculated.state, "reasoner", task.solve(calculated.state, "reasoner"))
        assert (answered.solved, answered.team, answered.local) == (True, 1, 0.1), state
        assert not task.apply(state, "reasoner", state.working).solved or state.working == state.answer


def play(world, answers, steps):
    world.reset(0)
    solved, ended = 0, 0
    for _ in range(steps):
        step = world.step({"team": answers(world)})
        solved, ended = solved + int(step.success.sum()), ended + int(step.ended.sum())
    return solved, ended


@pytest.mark.slow
def test_solver_and_guesses_in_the_world():
    random = np.random.default_rng(1)
    settings = MathSettings(turns=2, wait=False)
    solved, ended = play(Mathematics(settings, 32), lambda world: world.expert("team", random), 8)
    assert solved == ended == 128
    solved, ended = play(Mathematics(settings, 32), lambda world: world.guess("team", random), 16)
    assert ended >= 128
    assert solved < 0.1 * ended


def test_questions_for_tests_are_not_for_training():
    task, random = MathTask(MathSettings(digits=1)), np.random.default_rng(0)
    splits = {"train": set(), "validation": set(), "test": set()}
    for _ in range(2000):
        state = task.generate(random)
        splits[split_of(task, state)].add(state.question)
    assert min(map(len, splits.values())) > 100
    assert len(set.union(*splits.values())) == sum(map(len, splits.values()))


@pytest.mark.parametrize(
    ("answer", "reward", "readable", "solved"),
    [
        ("3", (1, 0.1), True, True),
        ("So it is \\boxed{3}", (1, 0.1), True, True),
        ("It is 12 over 4.\nAnswer: 3.0 apples", (1, 0.1), True, True),
        ("4", (0, 0.1), True, False),
        ("\\boxed{3} no, \\boxed{4}", (0, 0.1), True, False),
        ("12/4", (0, 0.1), True, False),
        ("1, 2, 3", (0, 0.1), True, False),
        ("I do not know", (0, -0.5), False, False),
        ("\\boxed{3", (0, -0.5), False, False),
        ("", (0, -0.5), False, False),
        ("9**9**9", (0, 0.1), True, False),
        ("Answer: " + "3" * 1000, (0, -0.5), False, False),
    ],
)
def test_rewards_of_the_reasoner(answer, reward, readable, solved):
    outcome = MathTask(MathSettings()).apply(QUESTION, "reasoner", answer)
    assert ((outcome.team, outcome.local), outcome.readable, outcome.solved) == (reward, readable, solved)


@pytest.mark.parametrize(
    ("answer", "reward", "output"),
    [
        ("12 / 4", (1, 0.5), "12 / 4 = 3"),
        (" Expression: 9 / 3 =\nand so on", (1, 0.5), "9 / 3 = 3"),
        ("12 * 4", (0, 0.1), "12 * 4 = 48"),
        ("x + 1", (0, -0.5), ""),
        ("1 / 0", (0, -0.25), "1 / 0 has no value: division by zero"),
        ("9**9**9", (0, -0.25), "9**9**9 has no value: the number is too large"),
        ("__import__('os').getcwd()", (0, -0.5), ""),
    ],
)
def test_rewards_of_the_calculator(answer, reward, output):
    outcome = MathTask(MathSettings()).apply(QUESTION, "tool", answer)
    assert ((outcome.team, outcome.local), outcome.state.output) == (reward, output)
    assert not outcome.solved


@pytest.mark.usefixtures("_sandbox")
@pytest.mark.parametrize(
    ("answer", "reward", "output"),
    [
        ("print(12 // 4)\n```\nThat is it.", (1, 0.5), "3"),
        ("```python\nfor n in (1, 5):\n    print(n)\n```", (0, 0.1), "1\n5"),
        ("print(1 / 0)", (0, -0.25), "the program failed: ZeroDivisionError: division by zero"),
        ("pass", (0, -0.25), "the program failed: it printed nothing"),
        ("print('12 / 4')", (0, 0.1), "12 / 4"),
        ("", (0, -0.5), ""),
    ],
)
def test_rewards_of_programs(answer, reward, output):
    outcome = MathTask(MathSettings(tool="program")).apply(QUESTION, "tool", answer)
    assert ((outcome.team, outcome.local), outcome.state.output) == (reward, output)


@pytest.mark.slow
@pytest.mark.usefixtures("_sandbox")
def test_the_solver_writes_programs():
    task, random = MathTask(MathSettings(tool="program", kinds=("arithmetic", "system"))), np.random.default_rng(3)
    for _ in range(3):
        state = task.generate(random)
        assert task.apply(state, "tool", task.solve(state, "tool")).team == 1


def test_prompts_name_wrong_answers_and_never_the_right_one():
    task, random = MathTask(MathSettings(kinds=("equation",), digits=5)), np.random.default_rng(0)
    for _ in range(20):
        state = task.generate(random)
        right = state.answer.removeprefix("x = ")
        for answer in ("123456789", "nonsense it is", "123456789", "\\boxed{7}", "987654321"):
            state = task.apply(state, "tool", "1 + 1").state
            prompts = [task.templates[role].format_map(task.fields(state, role)) for role in task.roles]
            assert not any(right in prompt for prompt in [*prompts, task.draw(state)])
            state = task.apply(state, "reasoner", answer).state
        assert state.wrong == ("123456789", "7", "987654321")
        assert "The answer 987654321 is wrong." in task.fields(state, "tool")["wrong"]
    assert "The tool says: 1 + 1 = 2" in prompts[1]


def test_a_saved_world_goes_on():
    worlds, random = [Mathematics(MathSettings(), 4) for _ in range(2)], np.random.default_rng(0)
    worlds[0].reset(5)
    worlds[0].step({"team": worlds[0].guess("team", random)})
    worlds[0].step({"team": worlds[0].guess("team", random)})
    worlds[1].load(worlds[0].save())
    steps = [world.step({"team": world.expert("team", random)}).agent_types["team"] for world in worlds]
    np.testing.assert_array_equal(steps[0].observation, steps[1].observation)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("\\boxed{\\frac{1}{2}} is it", "\\frac{1}{2}"),
        ("**Answer:** 7", "7"),
        ("The final answer is: $x$", "$x$"),
        ("answer = 5\nAnswer: 6", "6"),
        ("So the answer is **42**.", "42"),
        ("\\[ \\boxed{42} \\]", "42"),
        ("42\nQ: next", "42"),
        ("yes", "yes"),
        ("Answer:", None),
        ("\\boxed{}", None),
        ("well, it depends", None),
    ],
)
def test_answers_are_found(text, answer):
    assert find_answer(text) == answer


# Files ------------------------------------------------------------------------------------------------

RECORDS = [
    ({"question": "Q1", "answer": 42}, "42"),
    ({"problem": "Q2", "solution": "We see \\boxed{\\frac{3}{4}}."}, "\\frac{3}{4}"),
    ({"question": "Q3", "answer": "2 + 3 = 5, so\n#### 5"}, "5"),
    ({"question": "Q4", "final_answer": ["$2$", "3"], "answer": None, "solution": ["long"]}, "2, 3"),
    ({"ID": 7, "problem": "Q5", "answer": "073", "solution": "text"}, "073"),
    ({"prompt": "Q6", "answer": "no solution"}, "no solution"),
]


def write(path, *lines):
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return str(path)


def test_files_of_questions(tmp_path):
    path = write(tmp_path / "own.jsonl", *(record for record, _ in RECORDS), "", RECORDS[0][0])
    task = MathTask(MathSettings(problems=path))
    assert [question.answer for question in task.questions] == [answer for _, answer in RECORDS]
    for question in task.questions:
        state = MathState(question.text, question.answer, question.working)
        assert task.apply(state, "reasoner", task.solve(state, "reasoner")).solved, question
    assert task.generate(np.random.default_rng(0)).question.startswith("Q")
    write(tmp_path / "own.jsonl", {"question": "changed", "answer": 1})
    assert len(MathTask(MathSettings(problems=path)).questions) == 1


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"question": "Q", "answer": 1}', "{"], "line 2: not JSON"),
        (["[1]"], "line 1: must be a JSON object, got list"),
        (['{"question": "Q"}'], "line 1: no field 'final_answer' or 'answer' or 'solution'; it has 'question'"),
        (['{"answer": 1}'], "line 1: no field 'question' or 'problem' or 'prompt'"),
        (['{"question": 5, "answer": 1}'], "must be text, got 5"),
        (['{"question": "Q", "answer": {"a": 1}}'], "must be a text or a number"),
        (['{"question": "Q", "answer": ""}'], "no final answer; skip_unusable=true"),
        ([""], "has no problem that can be used"),
    ],
)
def test_files_with_mistakes(tmp_path, lines, message):
    path = write(tmp_path / "bad.jsonl", *lines)
    with pytest.raises(ValueError, match=r"problems: .*bad\.jsonl") as caught:
        Mathematics(MathSettings(problems=path), 1)
    assert message in str(caught.value)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"problems: cannot read .*none\.jsonl \(No such file"):
        Mathematics(MathSettings(problems=str(tmp_path / "none.jsonl")), 1)
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not UTF-8"):
        Mathematics(MathSettings(problems=str(tmp_path / "binary.jsonl")), 1)


def test_unusable_questions_can_be_left_out(tmp_path):
    path = write(tmp_path / "some.jsonl", {"question": "Q", "answer": ""}, {"question": "R", "answer": 2})
    assert [q.text for q in MathTask(MathSettings(problems=path, skip_unusable=True)).questions] == ["R"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kinds": ()}, "kinds must be some of arithmetic, .*got none"),
        ({"kinds": ("geometry",)}, "kinds .*got geometry"),
        ({"operations": ("^",)}, "operations must be some of"),
        ({"digits": 0}, "digits must be at least 1, got 0"),
        ({"digits": 99}, r"digits must lie in \[1, 15\], got 99"),
        ({"terms": 1}, "terms must be at least 2"),
        ({"tolerance": 1.0}, "tolerance must lie in"),
        ({"tool": "abacus"}, "tool must be one of calculator, program, got 'abacus'"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        MathSettings(**settings)
