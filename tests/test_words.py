"""Docstrings begin as those of an API reference: with a noun or a verb, not with a question word."""

import ast
import re

import pytest

from helpers.pages import ROOT

SOURCE = ROOT / "src" / "coterie"
QUESTIONS = re.compile(r"(What|Who|Whose|Whom|Nothing|How|Which|Where|When|Why|Everything)\b")
PARTS = sorted(path for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file())


@pytest.mark.parametrize("part", PARTS, ids=lambda path: path.name)
def test_first_lines_of_docstrings_name_the_thing(part):
    found = []
    for file in [part] if part.is_file() else sorted(part.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                said = ast.get_docstring(node, clean=False) or ""
                if QUESTIONS.match(said):
                    found.append(f"{file.relative_to(SOURCE)}:{node.body[0].lineno}: {said.splitlines()[0]}")
    assert found == [], "begin with the noun or the verb: 'The number of …', 'Settings of …', 'Reads …'"
