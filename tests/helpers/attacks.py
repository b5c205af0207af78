"""Programs that try to break out of a sandbox, to take everything, or to survive."""

import platform

# name -> (program, what may come of it); a program prints BROKEN where it got what it wanted
ATTACKS = {
    "infinite loop": ("while True: pass", {"timeout"}),
    "sleep without end": ("import time\ntime.sleep(1e6)", {"timeout"}),
    "all signals ignored": (
        """
import signal
for n in range(1, 65):
    try: signal.signal(n, signal.SIG_IGN)
    except (OSError, ValueError): pass
while True: pass
""",
        {"timeout"},
    ),
    "memory bomb": ("x = []\nwhile True: x.append(bytearray(10**7))", {"memory"}),
    "memory bomb, many processes": (
        """
import os, time
for _ in range(3): os.fork()
x = bytearray(20 * 10**6)
for i in range(0, len(x), 4096): x[i] = 1
time.sleep(1e6)
""",
        {"memory", "fail"},
    ),
    "recursion": ("def f(): f()\nimport sys\nsys.setrecursionlimit(10**9)\nf()", {"fail", "memory", "timeout"}),
    "fork bomb": (
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        {"timeout", "memory", "fail"},
    ),
    "threads without end": (
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(1e6,)).start()",
        {"fail", "memory", "timeout"},
    ),
    "a server on this machine": (
        "import socket\nsocket.create_connection(('127.0.0.1', PORT), 1)\nprint('BROKEN')",
        {"fail"},
    ),
    "the internet": ("import socket\nsocket.create_connection(('1.1.1.1', 53), 1)\nprint('BROKEN')", {"fail"}),
    "/etc/passwd": ("print('BROKEN', open('/etc/passwd').read())", {"fail"}),
    "/etc/shadow": ("print('BROKEN', open('/etc/shadow').read())", {"fail"}),
    "the parent's environment": (
        """
import os
pids = [p for p in os.listdir('/proc') if p.isdigit()]
for pid in pids + ['self', str(os.getppid())]:
    try:
        if b'SECRET' in open(f'/proc/{pid}/environ', 'rb').read(): print('BROKEN')
    except OSError: pass
if any('SECRET' in name for name in os.environ): print('BROKEN')
""",
        {"pass", "fail"},
    ),
    "writes outside": (
        """
for path in ('/usr/x', '/etc/x', '/x', 'HOST/x', '/boot.py', '/program.py', '/dev/shm/x'):
    try:
        open(path, 'w').write('x')
        print('BROKEN', path)
    except OSError: pass
""",
        {"pass"},
    ),
    "a link that leads out": (
        """
import os
try:
    os.symlink('HOST', '/tmp/link')
    print('BROKEN', os.listdir('/tmp/link'))
except OSError: pass
try: print('BROKEN', os.listdir('HOST'))
except OSError: pass
""",
        {"pass"},
    ),
    "killing the parent": (
        """
import os, signal
for pid in (os.getppid(), PARENT, -1):
    try: os.kill(pid, signal.SIGKILL)
    except OSError: pass
""",
        {"pass", "fail"},
    ),
    "output without end": ("import sys\nwhile True: sys.stdout.write('x' * 65536)", {"output"}),
    "errors without end": ("import sys\nwhile True: sys.stderr.write('x' * 65536)", {"output"}),
    "one file that fills the disk": (
        "with open('/tmp/big', 'wb') as f:\n    while True: f.write(bytes(10**6))",
        {"fail", "timeout"},
    ),
    "many files": (
        "n = 0\nwhile True:\n    open(f'/tmp/{n}', 'w').write('x' * 4096)\n    n += 1",
        {"fail", "timeout"},
    ),
    "daemon": (
        """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(1e6)
    os._exit(0)
""",
        {"pass", "fail"},
    ),
    "children that outlive it": ("import os, time\nif os.fork() == 0: time.sleep(1e6)", {"pass", "fail"}),
    "nested namespaces": (
        """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for flags in (0x10000000, 0x00020000, 0x40000000):
    if libc.unshare(flags) == 0: print('BROKEN', hex(flags))
""",
        {"pass"},
    ),
    "tracing": ("import ctypes\nif ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0: print('BROKEN')", {"pass"}),
    "an exit code of one's own": ("import os\nos._exit(3)", {"fail"}),
    "a forged end": (
        """
import os
for fd in range(3, 64):
    try: os.write(fd, b'{ "exit-code": 0 }\\n')
    except OSError: pass
os._exit(7)
""",
        {"fail"},
    ),
    "looking for the expected output": (
        """
import os
for root in ('/', '/tmp', '/proc/1', '/proc/self/fd', '/dev'):
    try:
        for name in os.listdir(root):
            if name in ('0', '1', '2', 'tty', 'ptmx', 'console') or name.startswith('std'): continue
            try:
                found = open(os.path.join(root, name), 'rb').read(10**6)
                if b'EXPECTED-' + b'ANSWER' in found: print('BROKEN', root, name)
            except OSError: pass
    except OSError: pass
""",
        {"pass"},
    ),
    "output that is not text": ("import sys\nsys.stdout.buffer.write(bytes(range(256)))", {"pass"}),
    "raising the limits": (
        """
import resource
for name in ('RLIMIT_AS', 'RLIMIT_CPU', 'RLIMIT_NPROC', 'RLIMIT_FSIZE'):
    try:
        resource.setrlimit(getattr(resource, name), (resource.RLIM_INFINITY,) * 2)
        print('BROKEN', name)
    except (OSError, ValueError): pass
""",
        {"pass"},
    ),
    "memory that belongs to no process": (
        """
import ctypes, mmap, os
libc = ctypes.CDLL(None, use_errno=True)
if libc.memfd_create(b'x', 0) >= 0: print('BROKEN memfd')
for get in ('shmget', 'msgget', 'semget'):
    arguments = {'shmget': (0, 4096, 0o1600), 'msgget': (0, 0o1600), 'semget': (0, 1, 0o1600)}[get]
    if getattr(libc, get)(*arguments) >= 0: print('BROKEN', get)
if libc.mq_open(b'/x', 0o102, 0o600, None) >= 0: print('BROKEN mq_open')
for file in (-1, '/dev/zero'):
    try:
        held = mmap.mmap(file if file == -1 else os.open(file, os.O_RDWR), 4096, mmap.MAP_SHARED)
        print('BROKEN', file)
    except OSError: pass
""",
        {"pass"},
    ),
    "the machine's host": (
        """
import socket
for family in (40, socket.AF_NETLINK, socket.AF_UNIX):
    try:
        socket.socket(family, socket.SOCK_STREAM if family == 40 else socket.SOCK_DGRAM)
        print('BROKEN', family)
    except OSError: pass
try:
    socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    print('BROKEN pair')
except OSError: pass
""",
        {"pass"},
    ),
    "the machine's name": (
        """
import ctypes, os, platform, socket
libc, buffer = ctypes.CDLL(None), ctypes.create_string_buffer(400)
def field(start):
    return buffer.raw[start:].partition(bytes(1))[0].decode()
for ask in (lambda: os.uname().nodename, platform.node, socket.gethostname,
            lambda: field(0) if libc.gethostname(buffer, 390) == 0 else '',
            lambda: field(65) if libc.uname(buffer) == 0 else '',
            lambda: open('/proc/sys/kernel/hostname').read().strip()):
    try:
        if ask() == 'NODE': print('BROKEN')
    except OSError: pass
""",
        {"pass"},
    ),
    "sizes of files outside": (
        """
import os
for path in ('/etc/passwd', '/etc', 'HOST', '/var', '/sys', '/home'):
    if os.access(path, os.F_OK): print('BROKEN', path)
    for ask in (os.stat, os.lstat, os.statvfs, os.listxattr):
        try:
            ask(path)
            print('BROKEN', path)
        except OSError: pass
""",
        {"pass"},
    ),
    "modes and times of files": (
        """
import os
for change in (lambda: os.chmod('HOST', 0o777), lambda: os.utime('HOST', (1, 1)), lambda: os.chown('HOST', -1, -1),
               lambda: os.setxattr('HOST', 'user.x', b'x')):
    try:
        change()
        print('BROKEN')
    except OSError: pass
""",
        {"pass"},
    ),
    "slowing the parent down": (
        """
import os
for change in (lambda: os.sched_setscheduler(PARENT, os.SCHED_IDLE, os.sched_param(0)),
               lambda: os.setpriority(os.PRIO_PROCESS, PARENT, 19)):
    try:
        change()
        print('BROKEN')
    except OSError: pass
""",
        {"pass"},
    ),
    "children that nobody waits for": (
        """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(4):
    child = os.fork()
    while child == 0:
        if time.process_time() > 0.2: os._exit(0)
    while os.path.exists(f'/proc/{child}'): time.sleep(0.01)
print('BROKEN')
""",
        {"timeout", "fail"},
    ),
    "threads with small stacks": (
        "import threading, time\nthreading.stack_size(32768)\n"
        "while True: threading.Thread(target=time.sleep, args=(1e6,), daemon=True).start()",
        {"fail"},
    ),
    "breaking its first process": (
        """
import os
memory = os.open('/proc/1/mem', os.O_RDWR)
for line in open('/proc/1/maps'):
    begin, end = (int(number, 16) for number in line.split()[0].split('-'))
    if 'r-xp' in line and '[' not in line: os.pwrite(memory, b'\\xcc' * (end - begin), begin)
""",
        {"fail"},
    ),
    "becoming root": (
        "import os\nfor f in (os.setuid, os.setgid):\n    try: f(0); print('BROKEN')\n    except OSError: pass",
        {"pass"},
    ),
}


def prepared(name: str, port: int, host: str, parent: int) -> str:
    """The program, with what it is after: a server's port, a folder and a process of this machine."""
    program = ATTACKS[name][0]
    for word, value in (("PORT", port), ("HOST", host), ("PARENT", parent), ("NODE", platform.node())):
        program = program.replace(word, str(value))
    return program
