"""Where the program of an answer begins and ends."""

import pytest

from coterie.worlds.tasks.programs import find_program


@pytest.mark.parametrize(
    ("answer", "started", "program"),
    [
        ("```python\nx\n```", False, "x\n"),
        ("Sure:\n```py\nx\n```\nand\n```\ny\n```", False, "x\n"),
        ("```\nx", False, "x"),
        ("no program", False, None),
        ("x\n", True, "x\n"),
        ("x\n```", True, "x\n"),
        ("x\n```\n", True, "x\n"),
        ("x\n```\nIt prints:\n```\n7\n```\n", True, "x\n"),
        ("Sure:\n```python\nx\n```\n", True, "x\n"),
        ("Sure:\n```\nx\n```\n", True, "x\n"),
        ("```python\nx", True, "x"),
        ("", True, ""),
    ],
)
def test_find_program(answer, started, program):
    assert find_program(answer, started) == program
