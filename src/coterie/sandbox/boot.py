"""Runs inside the sandbox: sets limits that cannot be raised again, then becomes the program.

It is started as a script by an isolated interpreter without Coterie, as `python -s -S boot.py SETTINGS PROGRAM` in an
environment of the sandbox's own. Where the caller has not built walls around it, SETTINGS say how to build them here.
"""

from __future__ import annotations

import _random
import contextlib
import ctypes
import io
import itertools
import json
import os
import resource
import signal
import struct
import sys
from typing import Any

PARENT_DEATH_SIGNAL, DUMPABLE, NO_NEW_PRIVILEGES, SECCOMP, FILTER_MODE = 1, 4, 38, 22, 2  # prctl
NEW_MOUNTS, NEW_HOST_NAME, NEW_USER = 0x20000, 0x04000000, 0x10000000  # unshare
BIND, RECURSIVE, PRIVATE, DETACH = 4096, 16384, 1 << 18, 2  # mount, umount2
CAPABILITIES = 0x20080522  # version 3 of capset
HOST_NAME = "sandbox"
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same numbers on every architecture
PATH_BENEATH = 1
EXECUTE, READ_FILE, READ_DIR = 1, 4, 8
# all rights to files that a version of Landlock knows, and to networks and other processes
FILES = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF, 5: 0xFFFF}
NETWORK, SCOPES = 0b11, 0b11


def limit(settings: dict[str, Any]) -> None:
    """Hard limits of this process and its children."""
    for name, value in settings["limits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))


def call(libc: ctypes.CDLL, number: int, *arguments: Any) -> int:
    """A system call; raises OSError."""
    found: int = libc.syscall(ctypes.c_long(number), *arguments)
    demand(min(found, 0))
    return found


def shut_files(libc: ctypes.CDLL, readable: list[str]) -> None:
    """Landlock: files below `readable` can be read and executed; nothing else can be opened, nothing written."""
    version = call(libc, CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(1))
    rights = FILES[min(version, 5)]
    ruleset = struct.pack("QQQ", rights, NETWORK if version >= 4 else 0, SCOPES if version >= 6 else 0)
    size = 8 if version < 4 else 16 if version < 6 else 24
    fd = call(libc, CREATE_RULESET, ctypes.c_char_p(ruleset), ctypes.c_size_t(size), ctypes.c_uint(0))
    for path in readable:
        allowed = EXECUTE | READ_FILE | (READ_DIR if os.path.isdir(path) else 0)
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("=Qi", allowed, parent)
        call(libc, ADD_RULE, ctypes.c_int(fd), ctypes.c_int(PATH_BENEATH), ctypes.c_char_p(rule), ctypes.c_uint(0))
        os.close(parent)
    call(libc, RESTRICT_SELF, ctypes.c_int(fd), ctypes.c_uint(0))
    os.close(fd)


def hide_files(libc: ctypes.CDLL, settings: dict[str, Any]) -> None:
    """Change to a root with nothing but the readable files, on systems where users may have namespaces.

    Landlock alone lets a program ask whether a file exists and how large it is.
    """
    user, group, place = os.getuid(), os.getgid(), settings["place"]
    if libc.unshare(NEW_USER | NEW_MOUNTS | NEW_HOST_NAME):
        return
    with contextlib.suppress(OSError):  # some systems allow such a namespace and nothing in it
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        demand(libc.sethostname(HOST_NAME.encode(), len(HOST_NAME)))
        demand(libc.mount(None, b"/", None, RECURSIVE | PRIVATE, None))
        demand(libc.mount(b"tmpfs", os.fsencode(place), b"tmpfs", 0, b"size=1m"))
        for path in settings["readable"]:
            inside = place + path
            os.makedirs(inside if os.path.isdir(path) else os.path.dirname(inside), exist_ok=True)
            if not os.path.isdir(path):
                open(inside, "x").close()
            demand(libc.mount(os.fsencode(path), os.fsencode(inside), None, BIND | RECURSIVE, None))
        for link, target in settings["links"]:
            os.symlink(target, place + link)
        os.chdir(place)
        demand(libc.syscall(ctypes.c_long(settings["pivot_root"]), b".", b"."))
        demand(libc.umount2(b".", DETACH))
        os.chdir("/")
    demand(libc.capset(struct.pack("Ii", CAPABILITIES, 0), bytes(24)))  # gives up what the namespace gave


def demand(result: int) -> None:
    """Raise OSError for the result of a system call that failed."""
    if result:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def filter_calls(libc: ctypes.CDLL, code: bytes) -> None:
    """Seccomp: refuse system calls by a filter."""
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    if libc.prctl(SECCOMP, FILTER_MODE, ctypes.c_char_p(program), 0, 0):
        raise OSError(ctypes.get_errno(), "seccomp")


class SeededRandom(_random.Random):
    """The base of generators of `random`; those without a seed get 0, 1, 2, …, so that every run draws the same."""

    unused = itertools.count()

    def seed(self, n: Any = None) -> None:
        super().seed(next(SeededRandom.unused) if n is None else n)


def main() -> None:
    """Set the limits, build the walls, run the program."""
    del sys.path[0]  # this script's folder
    _random.Random = SeededRandom  # type: ignore[misc]  # before anything imports random
    settings = json.loads(sys.argv[1])
    with open(sys.argv[2], "rb") as file:
        source = file.read()
    sys.argv = ["program.py"]
    limit(settings)
    if "readable" in settings:
        libc = ctypes.CDLL(None, use_errno=True)
        hide_files(libc, settings)
        os.uname = lambda: os.uname_result(("Linux", HOST_NAME, "", "", settings["machine"]))  # the call is refused
        libc.prctl(DUMPABLE, 1, 0, 0, 0)  # a new namespace may have hidden this process from its supervisor
        if libc.prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0) or libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
        shut_files(libc, settings["readable"])
        filter_calls(libc, bytes.fromhex(settings["filter"]))
    # says that everything up to here has worked: what follows is the program's doing
    os.write(settings["report"], b"ready")
    os.set_inheritable(settings["report"], False)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8")
    main_module = type(sys)("__main__")
    sys.modules["__main__"] = main_module
    process = os.getpid()
    try:
        exec(compile(source.decode(), "program.py", "exec"), main_module.__dict__)
    except MemoryError:
        if os.getpid() == process:  # and not a child that the program has forked
            os.write(settings["report"], b"memory")
        raise


if __name__ == "__main__":
    main()
