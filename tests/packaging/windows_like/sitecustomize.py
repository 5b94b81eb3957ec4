"""Python as the files of this project would see it on Windows: imported at the start of every process that has this folder in PYTHONPATH.

What Windows lacks is hidden from code of this project alone, because the standard library around it is still that of this system: modules,
names of modules, the start method "fork", and arguments that mmap and subprocess refuse there. Files have to be opened with an encoding.
"""

import builtins
import ctypes
import mmap
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
import types
import warnings
from pathlib import Path

OURS = tuple(str(Path(__file__).parents[3] / folder) + os.sep for folder in ("minllm", "lessons", "tools"))
MODULES = {"crypt", "fcntl", "grp", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"}
NAMES = {
    os: set(
        "O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK WEXITSTATUS WIFEXITED WIFSIGNALED WNOHANG WTERMSIG chown fork forkpty getegid geteuid "
        "getgid getloadavg getpgid getpgrp getuid killpg memfd_create mkfifo nice posix_fadvise posix_spawn pread preadv pwrite "
        "sched_getaffinity sched_setaffinity sched_yield sendfile setpgid setsid statvfs sysconf uname wait wait3 wait4".split()
    ),
    signal: set("SIGALRM SIGCHLD SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGUSR1 SIGUSR2 alarm pause setitimer sigwait".split()),
    mmap: set("MADV_DONTNEED MAP_ANON MAP_ANONYMOUS MAP_NORESERVE MAP_PRIVATE MAP_SHARED PROT_READ PROT_WRITE".split()),
    socket: {"AF_UNIX"},
    time: {"clock_getres", "clock_gettime", "tzset", "pthread_getcpuclockid"},
}
OTHERS = {(os, "name"): "nt", (sys, "platform"): "win32"}  # what has another value there


def is_ours(frame):
    """Whether a frame runs code of this project, or a test's."""
    return frame.f_code.co_filename.startswith(OURS) or frame.f_code.co_filename in ("<string>", "<stdin>")


def limited(module, hidden):
    """The class of a module that hides names from this project's code."""
    known = {name: value for (owner, name), value in OTHERS.items() if owner is module}

    class Limited(types.ModuleType):
        def __getattribute__(self, name):
            if (name in hidden or name in known) and is_ours(sys._getframe(1)):
                if name in known:
                    return known[name]
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r} on Windows")
            return super().__getattribute__(name)

    return Limited


def limited_import(name, globals=None, locals=None, fromlist=(), level=0, found=builtins.__import__):
    """__import__ without the modules that Windows lacks."""
    if name.partition(".")[0] in MODULES and is_ours(sys._getframe(1)):
        raise ModuleNotFoundError(f"No module named {name!r} on Windows", name=name)
    return found(name, globals, locals, fromlist, level)


def memory_status(status):
    """GlobalMemoryStatusEx of a machine with 4 GiB to give."""
    status._obj.available = 4 << 30
    return 1


class Popen(subprocess.Popen):
    """Without what only POSIX passes on."""

    def __init__(self, *given, preexec_fn=None, pass_fds=(), **options):
        if preexec_fn is not None or pass_fds:
            raise ValueError("preexec_fn and pass_fds are not supported on Windows")
        super().__init__(*given, **options)


class Mmap(mmap.mmap):
    """Without flags and protection."""

    def __new__(cls, fileno, length, tagname=None, access=0, offset=0):
        return super().__new__(cls, fileno, length, access=access, offset=offset)


builtins.__import__ = limited_import
ctypes.windll = types.SimpleNamespace(kernel32=types.SimpleNamespace(GlobalMemoryStatusEx=memory_status))
multiprocessing.get_all_start_methods = lambda: ["spawn"]
subprocess.Popen, mmap.mmap = Popen, Mmap
for _module in {*NAMES, *(owner for owner, _ in OTHERS)}:
    _module.__class__ = limited(_module, NAMES.get(_module, set()))
warnings.filterwarnings("ignore", category=EncodingWarning)
warnings.filterwarnings("error", category=EncodingWarning, module="minllm")
