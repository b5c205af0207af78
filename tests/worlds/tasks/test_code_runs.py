"""One program on many inputs: as if each run had a sandbox of its own, and nothing to gain by cheating."""

import pytest

from coterie import sandbox
from coterie.core.types import CoterieError
from coterie.worlds.tasks.code import runs
from coterie.worlds.tasks.code.runs import Ran, run_on

INPUTS = ("1\n", "2\n", "0\n", "x\n", "")
MIXED = """
import sys
n = int(sys.stdin.readline())
if n == 0:
    print("half", end="")
    sys.exit("zero")
print(10 // n, "ä")
"""
ENDINGS = {
    "a thread that nobody joins": "import threading\nthreading.Thread(target=lambda: print(input())).start()",
    "a function at exit": "import atexit\natexit.register(lambda: print(input()))",
    "an exit code": "print(input())\nraise SystemExit(0)",
    "the main module": "if __name__ == '__main__':\n    print(input())",
    "bytes": "import sys\nsys.stdout.buffer.write(sys.stdin.buffer.readline())",
    "file descriptors": "import os\nos.write(1, os.read(0, 100))",
    "its own exit": "import os\nprint(input(), flush=True)\nos._exit(0)",
}


@pytest.fixture(autouse=True, scope="module")
def _bubblewrap():
    try:
        if sandbox.live_mechanism() != "bubblewrap":
            pytest.skip("one sandbox serves several inputs only under bubblewrap")
    except sandbox.SandboxUnavailable as error:
        pytest.skip(f"no sandbox on this machine: {error}")


@pytest.fixture(autouse=True)
def _forget():
    runs._known.clear()


@pytest.fixture
def count(monkeypatch):
    """Sandboxes that were started."""
    started = []
    run = sandbox.run
    monkeypatch.setattr(sandbox, "run", lambda *given, **limits: started.append(1) or run(*given, **limits))
    return started


def shorter(found):
    return [(ran.status, ran.stdout, ran.stderr.strip().rpartition("\n")[2]) for ran in found]


@pytest.mark.slow
def test_together_is_as_alone(monkeypatch, count):
    together = run_on(MIXED, INPUTS, 1)
    assert len(count) == 1
    monkeypatch.setattr(sandbox, "live_mechanism", lambda: "landlock")  # so that runs do not share a sandbox
    runs._known.clear()
    alone = run_on(MIXED, INPUTS, 1)
    assert shorter(together) == shorter(alone)
    assert [ran.status for ran in together] == ["pass", "pass", "fail", "fail", "fail"]
    assert [ran.stdout for ran in together] == ["10 ä\n", "5 ä\n", "half", "", ""]
    assert together[2].stderr.strip() == "zero"


@pytest.mark.slow
def test_numbers_drawn_together_are_those_drawn_alone():
    source = "import random\nprint(hash('a'), random.random(), random.Random().random())"
    together, alone = run_on(source, ("1\n", "2\n"), 1), run_on(source, ("3\n",), 1)
    assert len({ran.stdout for ran in (*together, *alone)}) == 1
    assert together[0].status == "pass"


@pytest.mark.slow
@pytest.mark.parametrize("source", ["x = bytearray(10**9)", "input()\nraise MemoryError('no room')"])
def test_memory_is_the_verdict_on_one_input_and_on_several(source):
    alone, together = run_on(source, ("1\n",), 1), run_on(source, ("2\n", "3\n"), 1)
    assert [ran.status for ran in (*alone, *together)] == ["memory"] * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        "import sys\nprint('MemoryError: no room', file=sys.stderr)\nsys.exit(1)",
        "class MemoryError(Exception): pass\nraise MemoryError('no room')",
        "import os, sys\nif os.fork() == 0: bytearray(10**12)\nos.wait()\nsys.exit(1)",
    ],
)
def test_a_line_about_memory_is_no_verdict(source):
    alone, together = run_on(source, ("1\n",), 1), run_on(source, ("2\n", "3\n"), 1)
    assert [ran.status for ran in (*alone, *together)] == ["fail"] * 3


@pytest.mark.parametrize("ending", ENDINGS)
def test_programs_end_as_they_like(ending):
    assert run_on(ENDINGS[ending], ("a\n", "b\n"), 1) == [Ran("pass", "a\n"), Ran("pass", "b\n")]


@pytest.mark.parametrize("source", ["def f(:", "\x00", "\ud800 = 1", "(" * 5000])
def test_programs_that_do_not_build(source):
    assert [ran.status for ran in run_on(source, ("1\n", "2\n"), 1)] == ["fail", "fail"]


@pytest.mark.slow
def test_two_runs_without_end_are_enough(count):
    source = "n = int(input())\nwhile n: pass\nprint(n)"
    found = run_on(source, ("0\n", "1\n", "0\n", "2\n", "0\n", "3\n"), 1)
    assert [ran.status for ran in found] == ["pass", "timeout", "pass", "timeout", "timeout", "timeout"]
    assert [ran.stderr for ran in found[4:]] == ["not tried", "not tried"]
    assert len(count) == 2
    assert shorter(runs._give_up([Ran("timeout"), Ran("timeout"), Ran("pass", "1")]))[2] == ("timeout", "", "not tried")


@pytest.mark.slow
def test_runs_are_remembered(count):
    source = "n = int(input())\nwhile n == 9: pass\nprint(n)"
    first = run_on(source, ("1\n", "2\n", "1\n"), 1)
    assert run_on(source, ("2\n", "1\n"), 1) == [first[1], first[0]]
    assert len(count) == 1
    assert [ran.stdout for ran in run_on(source, ("3\n", "2\n", "4\n"), 1)] == ["3\n", "2\n", "4\n"]
    assert len(count) == 2
    run_on(source + "\n", ("1\n", "2\n"), 1)
    assert len(count) == 3


@pytest.mark.slow
def test_memory_and_output_have_limits():
    source = "n = int(input())\nprint('x' * n) if n < 10**6 else [bytearray(10**7) for _ in range(n)]"
    assert [ran.status for ran in run_on(source, ("3\n", "100000\n", "1000000\n"), 2)][:2] == ["pass", "output"]
    assert run_on(source, ("1000000\n", "2\n"), 2)[0].status == "memory"
    assert run_on(source, ("1000000\n", "2\n"), 2)[1] == Ran("pass", "xx\n")


KILL = "import os, signal\nn = input()\nif n == '1':\n    os.kill(os.getppid(), signal.SIGKILL)\nprint(n)"
FORGE = """
import json, os
line = json.dumps(["pass", "forged", ""]) + "\\n"
try:
    with open(f"/proc/{os.getppid()}/fd/1", "w") as stdout:
        stdout.write(line * 3)
except OSError:
    pass
print(input())
"""
STAY = """
import os, time
if os.fork() == 0:
    os.setsid()
    time.sleep(60)
print(input())
"""
BREAK = "import os\nos.system('rm -rf /tmp/* /tmp/.* 2>/dev/null')\nos.mkdir('/tmp/.stdin')\nprint(input())"


@pytest.mark.slow
def test_a_program_that_ends_the_driver_is_run_alone():
    found = run_on(KILL, ("0\n", "1\n", "2\n"), 1)
    assert [ran.stdout for ran in found][::2] == ["0\n", "2\n"]


def test_forged_reports_know_no_outputs():
    found = run_on(FORGE, ("a\n", "b\n"), 1)
    assert len(found) == 2
    assert {ran.stdout for ran in found} <= {"forged", "a\n", "b\n"}


@pytest.mark.slow
def test_nothing_stays_between_runs():
    assert [ran.stdout for ran in run_on(STAY, ("a\n", "b\n"), 1)] == ["a\n", "b\n"]
    assert [ran.status for ran in run_on(BREAK, ("a\n", "b\n"), 1)] == ["pass", "pass"]


@pytest.mark.parametrize("report", ["", "nonsense", "[1, 2, 3]", '["pass", "x"]', "[" * 100_000, '{"a": 1}'])
def test_reports_that_the_driver_cannot_have_written_end_the_reading(report):
    assert runs._parse(f'["pass", "1", ""]\n{report}\n["pass", "2", ""]') == [Ran("pass", "1")]


def test_a_broken_sandbox_is_an_error(monkeypatch):
    broken = sandbox.Verdict("infrastructure", "", "", None, 0.0, 0.0, 0.0, "no namespaces")
    monkeypatch.setattr(sandbox, "run", lambda *given, **limits: broken)
    with pytest.raises(CoterieError, match="the sandbox failed: no namespaces"):
        run_on("print(1)", ("1\n", "2\n"), 1)
