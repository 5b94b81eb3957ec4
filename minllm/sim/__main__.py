"""`python -m minllm.sim [--no-detect] script.py [arguments]`: run a script with every launch of a `@cuda.jit` kernel simulated."""

import os
import runpy
import sys

from minllm.errors import SimulationError
from minllm.sim.numba_launches import simulated_launches

USAGE = "usage: python -m minllm.sim [--no-detect] script.py [arguments]"


def main(arguments):
    """Run a script with command-line `arguments`; returns the exit status."""
    detect = "--no-detect" not in arguments[:1]
    arguments = arguments if detect else arguments[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    if not os.path.exists(arguments[0]):
        print(f"there is no script {arguments[0]}", file=sys.stderr)
        return 2
    sys.argv = arguments
    sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
    try:
        with simulated_launches(detect):
            runpy.run_path(arguments[0], run_name="__main__")
    except SimulationError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
