"""Child processes that run Python: each reads a task from standard input, and none outlives its parent.

A child has the same import path as its parent, but does not import the main script: a script needs no `if __name__ == "__main__":`, and no
file beside the script shadows a standard module. Ctrl-C in the terminal does not reach a child. It ends when its standard input does, which
the system closes however the parent ends.
"""

import contextlib
import os
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Mapping
from typing import Any

ENDED_S = 10.0  # the longest wait for a killed process
CODE = """
import sys
sys.path[:] = sys.argv[2:]
import importlib
from minllm.machine.collector import collect_rarely
collect_rarely()
importlib.import_module(sys.argv[1]).main()
"""


def start_child(module: str, environment: Mapping[str, str] = {}, **streams: Any) -> subprocess.Popen:  # noqa: B006 - never written
    """Start a process that runs main() of a module, which waits in `receive_task` for a task from `send_task`.

    environment: variables to add to those of this process. streams: stdout, stderr and pass_fds of subprocess.Popen.
    """
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_config_var("DESTSHARED")}
    path = sorted(map(os.path.abspath, sys.path), key=lambda place: place not in standard)
    command = [sys.executable, "-P", "-c", CODE, module, *path]
    apart = dict(start_new_session=True, creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0))  # POSIX; Windows
    return subprocess.Popen(command, env={**os.environ, **environment}, stdin=subprocess.PIPE, **apart, **streams)


def send_task(child: subprocess.Popen, task: bytes) -> None:
    """Send a child its task. If it does not fit in the pipe (64 KiB on Linux), this waits until the child has imported its module."""
    with contextlib.suppress(OSError):  # it has ended already
        child.stdin.write(len(task).to_bytes(8, "little") + task)
        child.stdin.flush()


def end_children(children: list[subprocess.Popen]) -> None:
    """Kill the processes, whether they are done or not, and wait for them, so that no zombies remain."""
    for child in children:
        child.kill()
    for child in children:
        with contextlib.suppress(OSError):
            child.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # in a driver that does not return
            child.wait(ENDED_S)


def receive_task() -> bytes:
    """The bytes of this child's task. From now on the process ends when its standard input does."""
    stream = sys.stdin.buffer
    task = stream.read(int.from_bytes(stream.read(8), "little"))
    threading.Thread(target=end_with_input, daemon=True).start()
    return task


def end_with_input() -> None:
    """End this process when its standard input ends, because then its parent has ended."""
    while os.read(sys.stdin.fileno(), 1):  # not through sys.stdin: at exit, Python could not flush what a thread is reading
        pass
    os._exit(0)
