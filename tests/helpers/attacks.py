"""Programs that try to break out of a sandbox, to take everything, or to survive."""

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
    "becoming root": (
        "import os\nfor f in (os.setuid, os.setgid):\n    try: f(0); print('BROKEN')\n    except OSError: pass",
        {"pass"},
    ),
}


def prepared(name: str, port: int, host: str, parent: int) -> str:
    """The program, with what it is after: a server's port, a folder and a process of this machine."""
    program = ATTACKS[name][0]
    for word, value in (("PORT", port), ("HOST", host), ("PARENT", parent)):
        program = program.replace(word, str(value))
    return program
