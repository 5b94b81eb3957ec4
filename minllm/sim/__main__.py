"""`python -m minllm.sim [options] (PROGRAM.py | -m MODULE | -c CODE) [arguments]`: a program with every launch simulated."""

import argparse
import os
import runpy
import sys
import types

from minllm.errors import SimulationError
from minllm.sim.options import OPTIONS, variables
from minllm.sim.startup.sitecustomize import keep_source


def main(arguments):
    """Run a program with command-line `arguments`; returns the exit status."""
    parser = argparse.ArgumentParser(
        "python -m minllm.sim", "python -m minllm.sim [options] (PROGRAM.py | -m MODULE | -c CODE) [arguments]", allow_abbrev=False,
        description="Run a Python program for numba.cuda without a GPU: its launches are simulated, and checked by detectors.",
    )  # fmt: skip
    for name, how in OPTIONS.items():
        parser.add_argument(f"--{name}", **how)
    parser.add_argument("-m", dest="is_module", action="store_true", help="run a module, such as pytest or unittest")
    parser.add_argument("-c", dest="is_code", action="store_true", help="run the text of a program")
    parser.add_argument("--environment", action="store_true", help="print the variables that simulate a program started in another way")
    parser.add_argument("program", nargs="?", help="a file; with -m the name of a module, with -c a text")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the program finds in sys.argv[1:]")
    options = parser.parse_args(arguments)
    if options.environment:
        print("\n".join(f"{name}={value}" for name, value in variables(options).items()))
        return 0
    if options.program is None:
        parser.error("give it a program")
    if not options.is_module and not options.is_code and not os.path.exists(options.program):
        parser.error(f"there is no program {options.program}")
    sys.argv = ["-c" if options.is_code else options.program, *options.arguments]
    os.environ.update(variables(options))
    from minllm.sim.detectors import is_detecting
    from minllm.sim.numba_launches import simulated_launches

    try:
        with simulated_launches(detect=is_detecting()):
            run(options)
    except SimulationError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def run(options):
    """Run the program of the options as Python's own command line does."""
    if options.is_module:
        runpy.run_module(options.program, run_name="__main__", alter_sys=True)
    elif options.is_code:
        keep_source(options.program)
        sys.modules["__main__"] = module = types.ModuleType("__main__")
        exec(compile(options.program, "<string>", "exec"), vars(module))
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(options.program))
        runpy.run_path(options.program, run_name="__main__")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
