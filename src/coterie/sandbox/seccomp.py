"""Filters of system calls, assembled by hand: what a program may not ask the kernel for."""

from __future__ import annotations

import platform
import struct

# Classic BPF (linux/bpf_common.h) and seccomp's answers (linux/seccomp.h)
_LOAD, _EQUAL, _AT_LEAST, _ALL_BITS, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data; the low half of the argument
_EPERM, _ENOSYS = 1, 38
_X32 = 0x40000000  # calls of the x32 ABI have their own numbers, which would slip past the list
_NEW_NAMESPACES = 0x7E020080  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET, NEWTIME
_THREAD = 0x00010000  # CLONE_THREAD

_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# name -> numbers on x86_64 and on aarch64; None: the call does not exist there
_CALLS: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "unshare": (272, 97),
    "setns": (308, 268),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "io_uring_setup": (425, 425),
    "kexec_load": (246, 104),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "open_by_handle_at": (304, 265),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
}
_SOCKETS: dict[str, tuple[int | None, int | None]] = {"socket": (41, 198), "socketpair": (53, 199)}
_SIGNALS: dict[str, tuple[int | None, int | None]] = {
    "kill": (62, 129),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    "prlimit64": (302, 261),
    "setpriority": (141, 140),
    "sched_setaffinity": (203, 122),
}
_PROCESSES: dict[str, tuple[int | None, int | None]] = {
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
}
_CLONE = (56, 220)
_CLONE3 = (435, 435)


def supported() -> bool:
    """Whether the numbers of this machine's system calls are known."""
    return platform.machine() in _AUDIT


def build_filter(alone: bool) -> bytes:
    """A filter that refuses what a program has no use for; `alone`: also other processes, signals and sockets.

    Refused calls return EPERM, so that a program sees an error and goes on. `clone3` returns ENOSYS, as on old kernels:
    its flags lie in memory, where a filter cannot read them, and C libraries then call `clone`.
    """
    machine = platform.machine()
    column = list(_AUDIT).index(machine)
    refused = dict(_CALLS)
    if alone:
        refused |= _SOCKETS | _SIGNALS | _PROCESSES
    numbers = [call[column] for call in refused.values()]
    code = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _AUDIT[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _REFUSE | _EPERM),
    ]
    for number in numbers:
        if number is not None:
            code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE | _EPERM)]
    code += [(_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, _REFUSE | _ENOSYS)]
    refuse = (_RETURN, 0, 0, _REFUSE | _EPERM)
    code += [(_EQUAL, 0, 3 + 2 * alone, _CLONE[column]), (_LOAD, 0, 0, _FIRST_ARGUMENT)]
    code += [(_ALL_BITS, 0, 1, _NEW_NAMESPACES), refuse]  # the jump is taken where any of these bits is set
    if alone:
        code += [(_ALL_BITS, 1, 0, _THREAD), refuse]
    code += [(_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)
