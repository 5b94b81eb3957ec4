"""`subprocess.run` for checks that run in a child process: a fork, which need not start Python and import Numba again.

For tests of what a child's file may do and what its report is worth; other tests start real processes.
"""

import atexit
import importlib
import os
import subprocess
import sys
import traceback
import warnings


def run(command, env):
    """Run `python -P -m MODULE ARGUMENT...`, that is main(*arguments) of the module; returns its exit code as `subprocess.run` does."""
    if sys.platform != "linux":  # where libraries may break in a fork
        return subprocess.run(command, env=env)
    assert command[:3] == [sys.executable, "-P", "-m"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork has none of this process's other threads
        child = os.fork()
    if child == 0:
        run_and_exit(*command[3:])
    return subprocess.CompletedProcess(command, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


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
