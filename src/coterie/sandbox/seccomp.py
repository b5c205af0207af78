"""Filters of system calls, assembled by hand: what a program may not ask the kernel for."""

from __future__ import annotations

import platform
import struct

# Classic BPF (linux/bpf_common.h) and seccomp's answers (linux/seccomp.h)
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE = 0, 4  # offsets in struct seccomp_data
_ARGUMENT = tuple(16 + 8 * n for n in range(6))  # the low half of each argument
_EPERM, _ENOSYS = 1, 38
_X32 = 0x40000000  # calls of the x32 ABI have their own numbers, which would slip past the list
_NEW_NAMESPACES = 0x7E020080  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET, NEWTIME
_THREAD = 0x00010000  # CLONE_THREAD
_SHARED_ANONYMOUS = 0x21  # MAP_SHARED, MAP_ANONYMOUS
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_UNIX, _STREAM, _SOCKET_TYPE = 1, 1, 0xF  # AF_UNIX, SOCK_STREAM; a socket's type without its flags

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
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "kexec_file_load": (320, 294),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "syslog": (103, 116),  # the kernel's log, which any user may read on some machines
    "inotify_add_watch": (254, 27),  # tells what other processes do with files that cannot be opened
    "fanotify_init": (300, 262),
    # a namespace of networks does not hold all families: by AF_VSOCK a virtual machine talks to its host
    "socket": (41, 198),
    # memory that belongs to no process, so that nobody counts it; without a namespace it outlives the run
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
}
_OTHERS: dict[str, tuple[int | None, int | None]] = {  # what reaches other processes of the same user
    "kill": (62, 129),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424),
    "prlimit64": (302, 261),
    "setpriority": (141, 140),
    "sched_setaffinity": (203, 122),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "ioprio_set": (251, 30),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
}
_MACHINE: dict[str, tuple[int | None, int | None]] = {  # what tells about the machine, and about files outside
    "uname": (63, 160),  # its name
    "sysinfo": (99, 179),
    "statfs": (137, 43),
    "fstatfs": (138, 44),
    "getxattr": (191, 8),
    "lgetxattr": (192, 9),
    "fgetxattr": (193, 10),
    "listxattr": (194, 11),
    "llistxattr": (195, 12),
    "flistxattr": (196, 13),
    "name_to_handle_at": (303, 264),
}
_METADATA: dict[str, tuple[int | None, int | None]] = {  # of files; Landlock leaves it to their owner
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "lchown": (94, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "setxattrat": (463, 463),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "removexattrat": (466, 466),
    "file_setattr": (469, 469),
}
_PROCESSES: dict[str, tuple[int | None, int | None]] = {
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
}
_CLONE = (56, 220)
_CLONE3 = (435, 435)
_MMAP = (9, 222)
_SOCKETPAIR = (53, 199)
_PRCTL = (157, 167)


def supported() -> bool:
    """Whether the numbers of this machine's system calls are known."""
    return platform.machine() in _AUDIT


def number(call: str) -> int:
    """The number of a refused system call on this machine."""
    found = _CALLS[call][list(_AUDIT).index(platform.machine())]
    assert found is not None
    return found


def build_filter(alone: bool) -> bytes:
    """A filter that refuses what a program has no use for; `alone`: also other processes, signals and changes of files.

    Refused calls return EPERM, so that a program sees an error and goes on. `clone3` returns ENOSYS, as on old kernels:
    its flags lie in memory, where a filter cannot read them, and C libraries then call `clone`.
    """
    machine = platform.machine()
    column = list(_AUDIT).index(machine)
    allow, refuse = (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE | _EPERM)
    code = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, _AUDIT[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 0, 1, _X32),
        refuse,
    ]
    for call in (_CALLS | _OTHERS | _MACHINE | _METADATA | _PROCESSES if alone else _CALLS).values():
        if (known := call[column]) is not None:
            code += _on(known, refuse)
    code += _on(_CLONE3[column], (_RETURN, 0, 0, _REFUSE | _ENOSYS))
    threads_only = [(_ANY_BIT, 1, 0, _THREAD), refuse] if alone else []
    code += _on(
        _CLONE[column],
        (_LOAD, 0, 0, _ARGUMENT[0]),
        (_ANY_BIT, 0, 1, _NEW_NAMESPACES),
        refuse,
        *threads_only,
        allow,
    )
    # memory shared with children stays when a process gives its pages up, and then nobody counts it
    code += _on(
        _MMAP[column],
        (_LOAD, 0, 0, _ARGUMENT[3]),
        (_AND, 0, 0, _SHARED_ANONYMOUS),
        (_EQUAL, 0, 1, _SHARED_ANONYMOUS),
        refuse,
        allow,
    )
    # asyncio needs a pair of streams; a pair of datagram sockets could write to any socket that has a name
    code += _on(
        _SOCKETPAIR[column],
        (_LOAD, 0, 0, _ARGUMENT[0]),
        (_EQUAL, 0, 3, _UNIX),
        (_LOAD, 0, 0, _ARGUMENT[1]),
        (_AND, 0, 0, _SOCKET_TYPE),
        (_EQUAL, 1, 0, _STREAM),
        refuse,
        allow,
    )
    # what ends a program when Coterie is killed
    code += _on(
        _PRCTL[column],
        (_LOAD, 0, 0, _ARGUMENT[0]),
        (_EQUAL, 0, 1, _PARENT_DEATH_SIGNAL),
        refuse,
        allow,
    )
    code += [allow]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in code)


def _on(number: int, *then: tuple[int, int, int, int]) -> list[tuple[int, int, int, int]]:
    """Instructions for one system call; the last must return, for they may load an argument over the number."""
    return [(_EQUAL, 0, len(then), number), *then]
