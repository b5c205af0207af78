"""Run a program in the sandbox that this machine has, and judge how it ended."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from coterie.core.cores import usable_cores
from coterie.core.validation import at_least
from coterie.sandbox import bubblewrap, landlock, unsafe
from coterie.sandbox.interpreter import Interpreter, find_interpreter
from coterie.sandbox.supervise import Ended
from coterie.sandbox.verdict import Limits, SandboxUnavailable, Status, Verdict

Runner = Callable[[bytes, bytes, Limits, Interpreter], tuple[Ended, "int | None"]]
MECHANISMS: dict[str, tuple[Callable[[], bool], Runner]] = {  # in the order of preference
    "bubblewrap": (bubblewrap.available, bubblewrap.run),
    "landlock": (landlock.available, landlock.run),
    "unsafe": (unsafe.allowed, unsafe.run),
}
ATTEMPTS = 3  # of a sandbox that fails to start
PROBE = "print(6 * 7)"


@functools.cache
def live_mechanism() -> str:
    """The first mechanism that runs a small program here; raises `SandboxUnavailable` where none does."""
    tried = []
    for name, (available, _) in MECHANISMS.items():
        if not available():
            continue
        verdict = run(PROBE, mechanism=name)
        if verdict.stdout == "42\n":
            return name
        tried.append(f"{name}: {verdict.reason or verdict.stderr.strip()[-200:]}")
    raise SandboxUnavailable(
        "programs that a model wrote cannot be isolated on this machine"
        + (f" ({'; '.join(tried)})" if tried else "")
        + ". Install bubblewrap (Debian: apt install bubblewrap), use a kernel with Landlock (Linux 6.12 or newer), or "
        "run them unprotected with coterie --unsafe-local-exec COMMAND"
    )


def run(
    source: str,
    stdin: str = "",
    *,
    cpu_seconds: float = 2.0,
    memory_mb: int = 256,
    output_bytes: int = 1_000_000,
    wall_seconds: float | None = None,
    processes: int = 16,
    files_mb: int = 16,
    mechanism: str = "auto",
) -> Verdict:
    """Run a Python program, isolated, and return how it ended.

    A sandbox that fails to start is tried again; if it keeps failing the status is "infrastructure", which says nothing
    about the program.
    """
    limits = Limits(cpu_seconds, wall_seconds, memory_mb, output_bytes, processes, files_mb)
    name = live_mechanism() if mechanism == "auto" else mechanism
    if name not in MECHANISMS:
        raise ValueError(f"mechanism must be auto, {', '.join(MECHANISMS)}, got {mechanism!r}")
    available, runner = MECHANISMS[name]
    if not available():
        raise SandboxUnavailable(f"mechanism={name}: {UNAVAILABLE[name]}")
    # half a character of UTF-16 cannot be written in UTF-8: the program is to fail on it, not its caller
    program, data = (text.encode(errors="surrogatepass") for text in (source, stdin))
    reason = ""
    for _ in range(ATTEMPTS):
        try:
            ended, exit_code = runner(program, data, limits, find_interpreter())
        except OSError as error:  # no process, no memory, no file: nothing that the program did
            reason = f"{type(error).__name__}: {error}"
            continue
        if exit_code is not None or ended.stopped is not None:
            return judge(ended, exit_code, limits)
        reason = ended.stderr.decode(errors="replace").strip()[-300:] or f"{name} ended with {ended.returncode}"
    return Verdict("infrastructure", "", "", None, 0.0, 0.0, 0.0, f"{name} failed {ATTEMPTS} times: {reason}")


UNAVAILABLE = {
    "bubblewrap": "the program bwrap is not installed (Debian: apt install bubblewrap)",
    "landlock": "the kernel has no Landlock of version 6 or newer (Linux 6.12), or this processor is not supported",
    "unsafe": "programs would have all rights of this user; coterie --unsafe-local-exec COMMAND allows it",
}


def judge(ended: Ended, exit_code: int | None, limits: Limits) -> Verdict:
    """The verdict on what was seen."""
    status: Status = ended.stopped or ("pass" if exit_code == 0 else "fail")
    stdout, stderr = (data.decode(errors="replace") for data in (ended.stdout, ended.stderr))
    reason = ended.reason
    if status == "fail" and exit_code in (128 + 24, 128 + 9) and ended.cpu_seconds >= 0.9 * limits.cpu_seconds:
        status, reason = "timeout", f"used {limits.cpu_seconds:g} s of processor time"
    elif status == "fail" and ended.out_of_memory:
        status, reason = "memory", f"asked for more than {limits.memory_mb} MB"
    code = None if ended.stopped else exit_code
    return Verdict(status, stdout, stderr, code, ended.cpu_seconds, ended.wall_seconds, ended.memory_mb, reason)


def run_many(
    sources: Sequence[str],
    stdins: Sequence[str] | None = None,
    workers: int | None = None,
    **limits: float | str | None,
) -> list[Verdict]:
    """Run several programs; `limits` as for `run`. Verdicts come in the order of the programs.

    `workers` run at a time; None: as many as there are cores for this process. More would wait for each other, and the
    clock goes on.
    """
    if stdins is not None and len(stdins) != len(sources):
        raise ValueError(f"{len(sources)} programs but {len(stdins)} inputs")
    if workers is not None:
        at_least("workers", workers, 1)
    inputs = [""] * len(sources) if stdins is None else stdins
    with ThreadPoolExecutor(workers or usable_cores()) as pool:
        return list(pool.map(lambda pair: run(pair[0], pair[1], **limits), zip(sources, inputs, strict=True)))  # type: ignore[arg-type]  # `run` checks the limits
