"""Programs in answers: find them and run them in the sandbox."""

from __future__ import annotations

import re

from coterie import sandbox
from coterie.core.types import CoterieError

OPENING = re.compile(r"```(?:python|py)\b")
FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


def find_program(answer: str, started: bool = False) -> str | None:
    """The program of an answer, between fences; where the prompt has opened the fence, all up to the next one."""
    if started and not OPENING.search(answer) and answer.count("```") % 2:
        return answer.partition("```")[0]  # the first fence closes the prompt's
    found = FENCED.search(answer)
    if found is not None:
        return found.group(1)
    return answer if started else None


def run_program(source: str, stdin: str = "", cpu_seconds: float = 2.0) -> sandbox.Verdict:
    """Run a program; a failure of the sandbox itself is raised, since it says nothing of the answer."""
    verdict = sandbox.run(source, stdin=stdin, cpu_seconds=cpu_seconds)
    if verdict.status == "infrastructure":
        raise CoterieError(f"the sandbox failed: {verdict.reason}")
    return verdict


def output_of(source: str, stdin: str = "") -> str:
    """The output of a program; "" where it failed."""
    verdict = run_program(source, stdin)
    return verdict.stdout if verdict.status == "pass" else ""
