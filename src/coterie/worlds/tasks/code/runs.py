"""Run one program on several inputs in the sandbox.

Where processes can be forked there (bubblewrap), one sandbox serves all inputs: `driver.py` runs inside it. Elsewhere
every input has a sandbox of its own. A program in the driver's sandbox may reach the driver and forge what it reports:
that gains it nothing, since nobody in there knows the expected outputs. Inputs that must stay secret and inputs whose
outputs are shown to the program's author belong in separate calls.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from coterie import sandbox
from coterie.core.types import CoterieError

DRIVER = Path(__file__).with_name("driver.py")
OUTPUT_BYTES = 65_536  # of one run
NOT_TRIED = "not tried"
REMEMBERED = 20_000  # runs
SHORT = 20_000  # characters of a program, its input and its output; longer runs are not remembered
PATIENCE = 2  # runs that may pass a limit; the inputs after that are not tried


@dataclass(frozen=True)
class Ran:
    """The outcome of a program on one input."""

    status: str  # of the sandbox: pass, fail, timeout, memory, output
    stdout: str = ""
    stderr: str = ""  # its end, or why the sandbox ended the run


_known: dict[tuple[str, str, int], Ran] = {}  # program, input, seconds; the oldest first


def run_on(source: str, inputs: tuple[str, ...], seconds: float) -> list[Ran]:
    """Run a program on every input, with so many seconds of processor time for each (in whole seconds, rounded up).

    After two runs that pass a limit the rest counts as failed in the same way: a program that never ends costs no more.
    How a program did on an input is remembered. A failure of the sandbox itself is raised, since it says nothing of the
    program.
    """
    limit = math.ceil(seconds)
    new = tuple(given for given in dict.fromkeys(inputs) if (source, given, limit) not in _known)
    tried = dict(zip(new, _run(source, new, limit), strict=True)) if new else {}
    found = [tried[given] if given in tried else _known[source, given, limit] for given in inputs]
    for given, ran in tried.items():
        if ran.stderr != NOT_TRIED and len(source) + len(given) + len(ran.stdout) <= SHORT:
            _known[source, given, limit] = ran
    while len(_known) > REMEMBERED:
        del _known[next(iter(_known))]
    return _give_up(found)


def _run(source: str, inputs: tuple[str, ...], seconds: int) -> list[Ran]:
    if sandbox.live_mechanism() != "bubblewrap" or len(inputs) == 1:
        return [_run_alone(verdict) for verdict in _run_each(source, inputs, seconds)]
    done: list[Ran] = []
    passed_limits = 0
    while len(done) < len(inputs) and passed_limits < PATIENCE:
        found = _run_together(source, inputs[len(done) :], seconds)
        passed_limits += bool(found) and _passed_limit(found[-1])
        done += found
    return done + [Ran(done[-1].status, "", NOT_TRIED)] * (len(inputs) - len(done))


def _run_together(source: str, inputs: tuple[str, ...], seconds: int) -> list[Ran]:
    """Run on the inputs up to the first that passes a limit."""
    work = {
        "program": source,
        "inputs": inputs,
        "cpu": seconds,
        "wall": 3 * seconds + 5,
        "output": OUTPUT_BYTES,
        "own_processes": True,  # bubblewrap's namespace has no others
    }
    verdict = sandbox.run(
        DRIVER.read_text(encoding="utf-8"),
        json.dumps(work),
        cpu_seconds=seconds * len(inputs) + 1,
        output_bytes=8 * OUTPUT_BYTES * len(inputs),
        mechanism="bubblewrap",
    )
    _check(verdict)
    found = _parse(verdict.stdout)[: len(inputs)]
    if len(found) < len(inputs) and not (found and _passed_limit(found[-1])):
        if verdict.status in ("timeout", "memory", "output"):  # a limit of the whole sandbox
            found.append(Ran(verdict.status, "", verdict.reason))
        else:  # something has ended the driver: without it one learns whose doing that was
            found.append(_run_alone(*_run_each(source, inputs[len(found) :][:1], seconds)))
    return found


def _parse(lines: str) -> list[Ran]:
    """The driver's reports, up to the first line that it cannot have written."""
    found = []
    for line in lines.splitlines():
        try:
            status, stdout, stderr = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            break
        if not all(isinstance(text, str) for text in (status, stdout, stderr)):
            break
        found.append(Ran(status, stdout, stderr))
    return found


def _run_each(source: str, inputs: tuple[str, ...], seconds: int) -> list[sandbox.Verdict]:
    return sandbox.run_many([source] * len(inputs), inputs, cpu_seconds=seconds, output_bytes=OUTPUT_BYTES)


def _run_alone(verdict: sandbox.Verdict) -> Ran:
    _check(verdict)
    return Ran(verdict.status, verdict.stdout, verdict.stderr[-500:] or verdict.reason)


def _give_up(runs: list[Ran]) -> list[Ran]:
    """Discard what came after two runs that passed a limit, as if it had not been tried."""
    late = [number for number, run in enumerate(runs) if _passed_limit(run)]
    if len(late) < PATIENCE:
        return runs
    last = late[PATIENCE - 1]
    return runs[: last + 1] + [Ran(runs[last].status, "", NOT_TRIED)] * (len(runs) - last - 1)


def _passed_limit(run: Ran) -> bool:
    return run.status not in ("pass", "fail")


def gave_up(runs: list[Ran]) -> bool:
    """Whether so many runs passed a limit that the program is not to be tried again."""
    return sum(map(_passed_limit, runs)) >= PATIENCE


def _check(verdict: sandbox.Verdict) -> None:
    if verdict.status == "infrastructure":
        raise CoterieError(f"the sandbox failed: {verdict.reason}")
