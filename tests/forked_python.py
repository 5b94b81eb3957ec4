"""Python as a child process that need not start: a fork of a server that has imported minllm already.

A start of Python that imports minllm takes a second, nearly all of it imports. With the fixture `forked_python` a test, and what it tests,
starts `[sys.executable, ...]` through subprocess as always, and gets a fork of multiprocessing's fork server, which has the arguments,
environment, folder, session and open files of the command, and nothing of the test process: the server is a Python of its own. What is read
while modules are imported is the server's, so what a start itself does is tested with real starts.
"""

import builtins
import contextlib
import fcntl
import inspect
import os
import pickle
import runpy
import subprocess
import sys
import threading
import types
from collections.abc import Iterator, Sequence
from multiprocessing import connection, forkserver, resource_tracker
from typing import NamedTuple
from unittest import mock

from minllm.course.fork import run_and_exit

PRELOADED = ["minllm.engine.llm", "minllm.cli.app", "minllm.runtime.compile_worker", __name__]
HIGH = 512  # numbers of open files above those that commands are given
EXECUTE = inspect.signature(subprocess.Popen._execute_child)


@contextlib.contextmanager
def forked_python() -> Iterator[None]:
    """A context in which subprocess forks the server instead of starting this Python, if the system can."""
    if not sys.platform.startswith("linux"):
        yield
        return
    forkserver.set_forkserver_preload(PRELOADED)
    forkserver.ensure_running()
    with mock.patch.object(subprocess, "Popen", ForkedPython):
        yield


def end_server() -> None:
    """End the server, if it runs, and wait for it: the time that its forks have taken is counted as this process's children's."""
    forkserver._forkserver._stop()


class Command(NamedTuple):
    """What a fork becomes; files: the numbers that its open files get, in the order in which they are sent."""

    kind: str  # "-c", "-m", or "" for a script
    program: str
    arguments: Sequence[str]
    isolated: bool  # -P: neither the script's folder nor the working directory is on the path
    environment: dict[str, str]
    folder: str
    files: Sequence[int]
    new_session: bool

    def _bootstrap(self, parent_sentinel: int) -> None:
        """What the server calls in the fork."""
        files = [fcntl.fcntl(file, fcntl.F_DUPFD, HIGH) for file in forkserver.get_inherited_fds()]
        os.closerange(0, HIGH)
        forkserver._forkserver.__init__()
        resource_tracker._resource_tracker.__init__()
        for number, file in zip(self.files, files, strict=True):
            os.dup2(file, number)
            os.close(file)
        os.chdir(self.folder)
        if self.new_session:
            os.setsid()
        sys.path[:] = self.path(os.environ.get("PYTHONPATH", ""), sys.path)
        os.environ.clear()
        os.environ.update(self.environment)
        sys.stdin, sys.stdout, sys.stderr = (open(number, mode, closefd=False) for number, mode in enumerate("rww"))
        sys.stderr.reconfigure(line_buffering=True, errors="backslashreplace")
        sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
        run_and_exit(self.run, [self.kind if self.kind == "-c" else self.program, *self.arguments])

    def path(self, inherited: str, server: Sequence[str]) -> list[str]:
        """sys.path as this command's Python would make it, from the server's, which has that of the variable PYTHONPATH too."""
        folders = {"-c": "", "-m": self.folder, "": os.path.dirname(os.path.abspath(self.program))}
        theirs, own = (
            [os.path.abspath(one) for one in text.split(os.pathsep) if one] for text in (inherited, self.environment.get("PYTHONPATH", ""))
        )
        return [*([] if self.isolated else [folders[self.kind]]), *own, *(one for one in server if one and one not in theirs)]

    def run(self) -> None:
        """Run the program as the main module, and wait for its threads."""
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        main.__builtins__ = builtins
        try:
            if self.kind == "-m":
                runpy._run_module_as_main(self.program)
            elif self.kind == "-c":
                exec(compile(self.program, "<string>", "exec"), vars(main))
            else:
                main.__file__ = self.program
                with open(self.program, "rb") as file:
                    exec(compile(file.read(), self.program, "exec"), vars(main))
        finally:
            threading._shutdown()


class ForkedPython(subprocess.Popen):
    """A Popen whose child is a fork of the server if it is this Python."""

    status = None  # a fork's file, from which its id and its exit code are read

    def _execute_child(self, *arguments):
        given = EXECUTE.bind(self, *arguments).arguments
        command = command_of(given)
        if command is None:
            return super()._execute_child(*arguments)
        streams = (given["p2cread"], given["c2pwrite"], given["errwrite"])
        files = [standard if stream == -1 else stream for standard, stream in enumerate(streams)]
        status, pipe = forkserver.connect_to_new_process([*files, *given["pass_fds"]])
        with open(pipe, "wb") as stream:
            pickle.dump({}, stream)
            pickle.dump(command, stream)
        self.pid = forkserver.read_signed(status)
        self.status = open(status, "rb", buffering=0)
        self._child_created = True
        self._close_pipe_fds(*(given[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")))

    def _internal_poll(self, *arguments, **options):
        return super()._internal_poll(*arguments, **options) if self.status is None else self._returned(0)

    def _wait(self, timeout):
        if self.status is None:
            return super()._wait(timeout)
        if self._returned(timeout) is None:
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def _returned(self, timeout):
        """The exit code; None if the process has not ended after this number of seconds. Several threads may ask at once."""
        if self.returncode is None and connection.wait([self.status], timeout):
            with self._waitpid_lock:
                if self.returncode is None:
                    self.returncode = forkserver.read_signed(self.status.fileno())
        return self.returncode


def command_of(given: dict) -> Command | None:
    """The command that _execute_child is given; None if it is not this Python's, or asks for more than a fork does."""
    if isinstance(given["args"], str | bytes) or given["preexec_fn"] or given["shell"]:
        return None
    python, *arguments = map(os.fspath, given["args"])
    isolated = arguments[:1] == ["-P"]
    if python != sys.executable or not arguments[isolated:]:
        return None
    kind, program, *arguments = arguments[isolated:] if arguments[isolated][0] == "-" else ["", *arguments[isolated:]]
    if kind not in ("-c", "-m", ""):
        return None
    environment = dict(os.environ if given["env"] is None else given["env"])
    folder, files = os.path.abspath(given["cwd"] or ""), [0, 1, 2, *given["pass_fds"]]
    return Command(kind, program, arguments, isolated, environment, folder, files, given["start_new_session"])
