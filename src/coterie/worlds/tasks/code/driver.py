"""Runs inside the sandbox: runs one program on several inputs, each in a forked process of its own.

A sandbox takes longer to start than a small program runs. Its input is a JSON object with the program, the inputs and
limits; it prints one JSON line per input and stops after the first that passes a limit. What the outputs should be is
known only outside.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import resource
import signal
import sys
from typing import Any, NoReturn

FILES = ("/tmp/.stdin", "/tmp/.stdout", "/tmp/.stderr")
TAIL = 500  # bytes of errors to report


def become_child(settings: dict[str, Any]) -> None:
    """Read from and write to files, under the limits of one run."""
    os.setsid()
    for fd, path in enumerate(FILES):
        file = os.open(path, os.O_RDONLY if fd == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, fd)
        os.close(file)
    for limit, value in ((resource.RLIMIT_CPU, settings["cpu"]), (resource.RLIMIT_FSIZE, settings["output"])):
        resource.setrlimit(limit, (value, value))
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)


def report(status: int, late: bool, refused: bool, output: int) -> bool:
    """Print how a run ended; returns whether it kept to its limits. `refused`: it ended for lack of memory."""
    with open(FILES[1], "rb") as file:
        stdout = file.read(output + 1)
    with open(FILES[2], "rb") as file:
        file.seek(max(0, os.path.getsize(FILES[2]) - TAIL))
        stderr = file.read()
    code = os.waitstatus_to_exitcode(status)
    # both limits have signals that Python programs do not get otherwise; the kernel kills at a hard limit
    ended = "timeout" if late or code in (-signal.SIGXCPU, -signal.SIGKILL) else "pass" if code == 0 else "fail"
    if len(stdout) >= output:
        ended = "output"
    elif ended == "fail" and refused:  # as the sandbox judges it
        ended = "memory"
    print(json.dumps([ended, *(text.decode(errors="replace") for text in (stdout, stderr))]), flush=True)
    return ended in ("pass", "fail")


def serve(settings: dict[str, Any]) -> int | None:
    """Run the program on all inputs; in a process that is to become the program, returns where to report on memory."""
    child, late = 0, False

    def stop(*_: Any) -> None:
        nonlocal late
        late = True
        os.kill(child, signal.SIGKILL)

    signal.signal(signal.SIGALRM, stop)
    for data in settings["inputs"]:
        with open(FILES[0], "wb") as file:
            file.write(data.encode(errors="surrogatepass"))
        reports, reporting = os.pipe()
        child, late = os.fork(), False
        if child == 0:
            os.close(reports)
            become_child(settings)
            return reporting
        os.close(reporting)
        signal.setitimer(signal.ITIMER_REAL, settings["wall"])
        _, status = os.waitpid(child, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        if settings["own_processes"]:  # nobody else's can be seen here: end what the program has left behind
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)  # this process is spared
        os.set_blocking(reports, False)  # a process that the program has left may hold the other end
        refused = False
        with contextlib.suppress(BlockingIOError):
            refused = os.read(reports, 1) != b""
        os.close(reports)
        if not report(status, late, refused, settings["output"]):
            break
    return None


def start(source: str, reporting: int) -> int:
    """Run the program as the main module, and report if it ends for lack of memory; returns its exit code."""
    process = os.getpid()
    main = type(sys)("__main__")
    sys.modules["__main__"] = main
    try:
        exec(compile(source, "program.py", "exec"), main.__dict__)
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return int(stop.code or 0) & 0xFF
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException as error:
        if isinstance(error, MemoryError) and os.getpid() == process:
            os.write(reporting, b"memory")
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def end(code: int) -> NoReturn:
    """End as an interpreter does, without the time that it takes to free everything."""
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (ValueError, OSError):  # closed, or the file is full
            code = code or 120
    os._exit(code)


if __name__ == "__main__":
    SETTINGS = json.loads(sys.stdin.buffer.read())
    gc.freeze()
    if (reporting := serve(SETTINGS)) is not None:
        program = SETTINGS["program"]
        del SETTINGS
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - it stays open as long as the program runs
        end(start(program, reporting))
