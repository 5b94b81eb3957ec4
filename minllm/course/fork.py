"""A child process as a fork, which need not start Python and import Numba again. Imports nothing heavy."""

import atexit
import importlib
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from typing import NoReturn


class Fork:
    """A fork of this process that runs main(*arguments) of a module, up to its end as `python -m` does. It is used as a Popen is."""

    def __init__(self, module: str, *arguments: str) -> None:
        importlib.import_module(module)
        sys.stdout.flush()
        sys.stderr.flush()
        self.returncode: int | None = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # a fork has none of this process's other threads
            self.child = os.fork()
        if self.child == 0:
            run_and_exit(partial(sys.modules[module].main, *arguments), [module, *arguments])

    def __enter__(self) -> "Fork":
        return self

    def __exit__(self, *error: object) -> None:
        self.wait()

    def wait(self) -> int:
        """Wait for its end; returns the exit code, or minus the signal that ended it."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])
        return self.returncode

    def kill(self) -> None:
        """End it."""
        if self.returncode is None:
            os.kill(self.child, signal.SIGKILL)


def run_and_exit(main: Callable[[], object], argv: list[str]) -> NoReturn:
    """What Python does with a program in a fork that has not run one, up to the end of the process."""
    code = 1
    try:
        atexit._clear()  # drops the parent's functions; what the module registers runs at the end
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = argv
        main()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if not isinstance(stop.code, int | None):
            print(stop.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)
