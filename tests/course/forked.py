"""`subprocess` for checks that run in a child process: a fork, which need not start Python and import Numba again.

For tests of what a child's file may do and what its report is worth; other tests start real processes.
"""

import atexit
import importlib
import os
import signal
import subprocess
import sys
import traceback
import warnings


class Fork:
    """A fork that runs `python -P -m MODULE ARGUMENT...`, that is main(*arguments) of the module, with what we use of a Popen."""

    def __init__(self, command, env):
        assert command[:3] == [sys.executable, "-P", "-m"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # a fork has none of this process's other threads
            self.child, self.returncode = os.fork(), None
        if self.child == 0:
            run_and_exit(*command[3:])

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.wait()

    def wait(self):
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])
        return self.returncode

    def kill(self):
        if self.returncode is None:
            os.kill(self.child, signal.SIGKILL)


Popen = Fork if sys.platform == "linux" else subprocess.Popen  # elsewhere libraries may break in a fork


def run(command, env):
    """`subprocess.run` in a fork."""
    with Popen(command, env=env) as process:
        return subprocess.CompletedProcess(command, process.wait())


def run_and_exit(module, *arguments):
    """What Python does for `-m MODULE ARGUMENT...` up to its end."""
    code = 1
    try:
        atexit._clear()  # of this process; what the module registers runs at the end
        sys.argv = [module, *arguments]
        importlib.import_module(module).main(*arguments)
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        os._exit(code)
