"""The sandbox's verdicts on ordinary programs, its limits, and what it says where it cannot run."""

import os
import random
import signal
import subprocess
import threading
import time

import pytest

from coterie import sandbox
from coterie.sandbox import bubblewrap, execute, interpreter, landlock, supervise, unsafe
from coterie.sandbox.supervise import Ended


def test_a_program_reads_its_input_and_passes():
    verdict = sandbox.run("name = input()\nprint(f'hello {name}')", "Ünal\n")
    assert (verdict.status, verdict.stdout, verdict.exit_code) == ("pass", "hello Ünal\n", 0)
    assert verdict.memory_mb >= 0
    assert 0 < verdict.wall_seconds < verdict.cpu_seconds + 11


def test_a_program_that_raises_fails_with_its_traceback():
    verdict = sandbox.run("x = 1\nraise ValueError('no such move')")
    assert (verdict.status, verdict.exit_code) == ("fail", 1)
    assert 'File "program.py", line 2' in verdict.stderr
    assert verdict.stderr.rstrip().endswith("ValueError: no such move")


@pytest.mark.slow
def test_text_that_is_no_text_is_the_programs_fault(mechanism):
    verdict = sandbox.run("print('\ud800')", mechanism=mechanism)
    assert (verdict.status, verdict.exit_code) == ("fail", 1)
    assert "UnicodeDecodeError" in verdict.stderr
    assert sandbox.run("import sys\nprint(len(sys.stdin.buffer.read()))", "\ud800", mechanism=mechanism).stdout == "3\n"


@pytest.mark.slow
def test_threads_and_asyncio_run(mechanism):
    program = """
import asyncio, threading, time
threads = [threading.Thread(target=time.sleep, args=(0.05,)) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(asyncio.run(asyncio.sleep(0, "done")))
"""
    assert sandbox.run(program, mechanism=mechanism).stdout == "done\n"


DRAWS = """
import random
print(hash("a"), list({"some", "words", "in", "a", "set"}))
print(random.random(), random.sample(range(100), 5), random.Random().random(), random.gauss(0, 1))
random.seed(); print(random.random()); random.seed(7); print(random.random(), random.Random("x").random())
"""


def test_programs_draw_the_same_numbers_in_every_run(mechanism):
    first, second = (sandbox.run(DRAWS, mechanism=mechanism) for _ in range(2))
    assert first.status == "pass", first.stderr
    assert first.stdout == second.stdout
    assert first.stdout.split("\n")[3] == f"{random.Random(7).random()} {random.Random('x').random()}"


def test_the_interpreter_reads_neither_the_callers_environment_nor_its_own_folder(mechanism, monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "99")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("PYTHONINSPECT", "1")
    program = (
        "import os, sys\nprint(sorted(n for n in os.environ if n.startswith('PYTHON')), os.environ['PYTHONHASHSEED'])"
    )
    program += "\nprint(sys.flags.no_user_site, 'site' in sys.modules, sys.path)\nimport program"
    verdict = sandbox.run(program, mechanism=mechanism)
    first, second = verdict.stdout.splitlines()
    assert first == "['PYTHONHASHSEED'] 0"
    assert second.startswith("1 False [")
    assert "somewhere" not in second
    assert "ModuleNotFoundError: No module named 'program'" in verdict.stderr


@pytest.mark.slow
def test_memory_that_forked_processes_share_counts_once():
    if sandbox.live_mechanism() != "bubblewrap":
        pytest.skip("fork needs bubblewrap")
    program = """
import os, time
data = bytearray(b"x") * (60 << 20)
children = [os.fork() for _ in range(2)]
if 0 in children: time.sleep(0.1)
else: print([os.waitpid(child, 0)[1] for child in children])
"""
    verdict = sandbox.run(program, memory_mb=100)
    assert (verdict.status, verdict.stdout) == ("pass", "[0, 0]\n"), verdict


def test_a_program_is_the_main_module():
    verdict = sandbox.run(
        "import sys\nif __name__ == '__main__':\n    print(sys.argv, sys.modules['__main__'].y)\ny = 2"
    )
    assert verdict.status == "fail"  # y comes later
    assert "AttributeError" in verdict.stderr
    assert sandbox.run("from __future__ import annotations\nprint(1)").stdout == "1\n"


def test_input_that_is_not_read_does_no_harm():
    assert sandbox.run("print('done')", "x" * 1_000_000).stdout == "done\n"


def test_long_input_arrives_whole():
    assert sandbox.run("import sys\nprint(len(sys.stdin.read()))", "y" * 300_000).stdout == "300000\n"


REFUSED = {
    "more than there is at once": "x = bytearray(10**12)",
    "more and more": "x = []\nwhile True: x.append('y' * 10**6)",
    "within a function": "def f():\n    return [0] * 10**10\ntry: f()\nfinally: print('done')",
}
ANOTHER_END = {
    "a line that looks like it": "import sys\nprint('MemoryError: no', file=sys.stderr)\nsys.exit(1)",
    "a traceback that looks like it": """
import sys
print('Traceback (most recent call last):\\n  File "program.py", line 1, in <module>\\nMemoryError', file=sys.stderr)
sys.exit(1)
""",
    "another error with its name": "class MemoryError(Exception): pass\nraise MemoryError('no')",
    "one that was handled": "import sys\ntry: bytearray(10**12)\nexcept MemoryError: sys.exit(3)",
    "one of a thread": """
import sys, threading
thread = threading.Thread(target=lambda: bytearray(10**12)); thread.start(); thread.join(); sys.exit(3)
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_memory_that_is_refused_is_the_end_of_a_program(name, mechanism):
    verdict = sandbox.run(REFUSED[name], mechanism=mechanism)
    assert verdict.status == "memory", verdict
    assert "MB" in verdict.reason


@pytest.mark.slow
@pytest.mark.parametrize("name", ANOTHER_END)
def test_what_a_program_prints_is_no_sign_of_refused_memory(name, mechanism):
    verdict = sandbox.run(ANOTHER_END[name], mechanism=mechanism)
    assert (verdict.status, verdict.reason) == ("fail", ""), verdict


@pytest.mark.slow
def test_a_child_without_memory_does_not_speak_for_its_parent():
    if sandbox.live_mechanism() != "bubblewrap":
        pytest.skip("fork needs bubblewrap")
    program = "import os, sys\nif os.fork() == 0: bytearray(10**12)\nos.wait()\nsys.exit(3)"
    verdict = sandbox.run(program, mechanism="bubblewrap")
    assert (verdict.status, verdict.exit_code) == ("fail", 3)


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["pivot_root", "place"])
def test_where_no_root_of_its_own_can_be_had_landlock_alone_holds(broken, monkeypatch):
    if not sandbox.MECHANISMS["landlock"][0]():
        pytest.skip("this machine has no landlock")
    if broken == "pivot_root":
        monkeypatch.setattr(landlock.seccomp, "number", lambda call: 9999)
    else:
        monkeypatch.setattr(landlock.Path, "mkdir", lambda *_: None)
    program = """
import os, platform, uuid, decimal
print(platform.node(), os.stat("/etc").st_size > 0)
try: print(open("/etc/passwd").read())
except OSError: print("closed")
try: os.chroot("/usr")
except OSError: print("no rights")
"""
    verdict = sandbox.run(program, mechanism="landlock")
    assert verdict.stdout == "sandbox True\nclosed\nno rights\n", verdict


def test_exit_codes_are_those_of_a_shell():
    assert sandbox.run("import sys\nsys.exit(5)").exit_code == 5
    assert sandbox.run("import ctypes\nctypes.string_at(0)").exit_code == 128 + 11


@pytest.mark.slow
def test_many_programs_keep_their_order():
    found = sandbox.run_many(
        [f"print({n} + int(input()))" for n in range(5)], [str(10 * n) for n in range(5)], workers=2
    )
    assert [verdict.stdout for verdict in found] == [f"{11 * n}\n" for n in range(5)]
    with pytest.raises(ValueError, match="2 programs but 1 inputs"):
        sandbox.run_many(["", ""], [""])


def test_no_more_programs_run_at_once_than_there_are_cores_for_this_process(monkeypatch):
    """A job with one core of many: more programs at once would pass the limit of the clock by waiting."""
    at_once, most, lock = 0, 0, threading.Lock()

    def run(source, stdin, **limits):
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.01)
        with lock:
            at_once -= 1
        return source

    monkeypatch.setattr(execute, "run", run)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    for cores in (1, 3):
        monkeypatch.setattr(os, "sched_getaffinity", lambda process, cores=cores: set(range(cores)))
        most = 0
        assert sandbox.run_many(list("abcdefgh")) == list("abcdefgh")
        assert most == cores


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("cpu_seconds", 0), ("memory_mb", 0), ("output_bytes", 0), ("wall_seconds", -1.0)),
        *(("cpu_seconds", float("inf")), ("wall_seconds", float("inf")), ("memory_mb", 1.5), ("files_mb", 2**43)),
    ],
)
def test_limits_that_allow_nothing_or_anything_are_refused(setting, value):
    with pytest.raises(ValueError, match=setting):
        sandbox.run("", **{setting: value})


def test_the_clock_has_a_default_limit():
    assert sandbox.Limits(cpu_seconds=2).wall == 11
    assert sandbox.Limits(cpu_seconds=2, wall_seconds=4).wall == 4


def test_an_unknown_mechanism_is_refused():
    with pytest.raises(ValueError, match="mechanism must be auto, bubblewrap, landlock, unsafe, got 'docker'"):
        sandbox.run("", mechanism="docker")


def failing(times, then):
    """A mechanism that fails some times."""
    calls = []

    def runner(source, stdin, limits, python):
        calls.append(source)
        if len(calls) <= times:
            return Ended(stderr=b"bwrap: no namespaces today"), None
        return then

    return calls, runner


def test_a_sandbox_that_fails_is_tried_again_and_is_never_the_programs_fault(monkeypatch):
    calls, runner = failing(2, (Ended(stdout=b"1\n"), 0))
    monkeypatch.setitem(execute.MECHANISMS, "bubblewrap", (lambda: True, runner))
    assert sandbox.run("print(1)", mechanism="bubblewrap").status == "pass"
    assert len(calls) == 3
    calls, runner = failing(9, None)
    monkeypatch.setitem(execute.MECHANISMS, "bubblewrap", (lambda: True, runner))
    verdict = sandbox.run("print(1)", mechanism="bubblewrap")
    assert (verdict.status, verdict.exit_code, len(calls)) == ("infrastructure", None, 3)
    assert "no namespaces today" in verdict.reason


def test_no_file_descriptors_left_is_no_fault_of_the_program_either(monkeypatch):
    def runner(*_):
        raise OSError(24, "Too many open files")

    monkeypatch.setitem(execute.MECHANISMS, "bubblewrap", (lambda: True, runner))
    assert sandbox.run("", mechanism="bubblewrap").status == "infrastructure"


def test_a_sandbox_that_cannot_start_a_process_leaves_nothing_open(monkeypatch, mechanism):
    def no_process(*_, **__):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    interpreter.find_interpreter()
    monkeypatch.setattr(supervise.subprocess, "Popen", no_process)
    before = os.listdir("/proc/self/fd")
    assert sandbox.run("", mechanism=mechanism).status == "infrastructure"
    assert len(os.listdir("/proc/self/fd")) == len(before)


@pytest.mark.slow
def test_an_interpreter_that_does_not_come_to_the_program_is_no_fault_of_it(monkeypatch, mechanism, tmp_path):
    broken = tmp_path / "boot.py"
    broken.write_text("raise SystemExit('no such library')")
    for module in (bubblewrap, landlock):
        monkeypatch.setattr(module, "BOOT", broken)
    verdict = sandbox.run("print(1)", mechanism=mechanism)
    assert verdict.status == "infrastructure"
    assert "no such library" in verdict.reason


def test_a_process_with_a_number_used_again_is_not_killed():
    with subprocess.Popen(["sleep", "60"]) as process:
        found = supervise.read_process(process.pid)
        supervise._kill(process.pid, found.start - 1)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
        supervise._kill(process.pid, found.start)
        assert process.wait(5) == -signal.SIGKILL


def test_an_interpreter_in_a_home_does_not_show_the_home(tmp_path):
    for folder in ("bin", "lib", "secrets"):
        (tmp_path / folder).mkdir()
    found = interpreter.describe(str(tmp_path / "bin" / "python3"), None).readable
    assert {str(tmp_path / "bin"), str(tmp_path / "lib")} <= set(found)
    assert not any(str(tmp_path / "secrets").startswith(f"{folder}/") for folder in found)


@pytest.mark.slow
def test_without_a_mechanism_programs_are_refused_with_the_cures(monkeypatch):
    for name in ("bubblewrap", "landlock"):
        monkeypatch.setitem(execute.MECHANISMS, name, (lambda: False, execute.MECHANISMS[name][1]))
    monkeypatch.delenv(unsafe.ALLOW, raising=False)
    execute.live_mechanism.cache_clear()
    try:
        with pytest.raises(sandbox.SandboxUnavailable, match=r"bubblewrap.*Landlock.*--unsafe-local-exec"):
            sandbox.run("print(1)")
        with pytest.raises(sandbox.SandboxUnavailable, match="--unsafe-local-exec"):
            sandbox.run("print(1)", mechanism="unsafe")
        monkeypatch.setenv(unsafe.ALLOW, "1")
        assert sandbox.live_mechanism() == "unsafe"
        assert sandbox.run("print(1)").stdout == "1\n"
        assert sandbox.run("while True: pass", cpu_seconds=0.2).status == "timeout"
    finally:
        execute.live_mechanism.cache_clear()


def test_roots_programs_run_as_nobody():
    python = interpreter.find_interpreter()
    assert python.run_as == (65534 if os.geteuid() == 0 else None)
    assert sandbox.run("import os\nprint(os.getuid())").stdout.strip() == (
        "65534" if os.geteuid() == 0 or sandbox.live_mechanism() == "bubblewrap" else str(os.getuid())
    )


@pytest.mark.slow
def test_two_runs_at_once_do_not_disturb_each_other():
    slow, quick = sandbox.run_many(["import time\ntime.sleep(0.5)\nprint('slow')", "print('quick')"], workers=2)
    assert (slow.stdout, quick.stdout) == ("slow\n", "quick\n")


def test_the_option_of_the_command_line_allows_it(monkeypatch, capsys):
    from coterie.cli.entry import app

    monkeypatch.setenv(unsafe.ALLOW, "0")
    assert not unsafe.allowed()
    with pytest.raises(SystemExit):
        app(["--unsafe-local-exec", "list", "--nonsense"])
    assert unsafe.allowed()
