"""How programs are simulated: the options of `python -m minllm.sim` and of pytest, and the environment variables behind them.

MINLLM_SIM=1           pytest simulates a test suite (minllm.sim.plugin)
MINLLM_SIM_ENGINE      lanes or threads (minllm.sim.engines)
MINLLM_SIM_DETECT      1: with detectors, 0: without; a program runs with them by default, `simulate` without
MINLLM_SIM_PROGRESS=0  without the progress of long launches

An option sets its variable, so that threads and processes which the program starts find it too. startup/sitecustomize.py simulates these
processes.
"""

import os

from minllm.sim.engines import ENGINES
from minllm.sim.engines import VARIABLE as ENGINE
from minllm.sim.progress import VARIABLE as PROGRESS

SIMULATE, DETECT = "MINLLM_SIM", "MINLLM_SIM_DETECT"
STARTUP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "startup")  # on PYTHONPATH, it simulates a Python process
OPTIONS = {  # name: what argparse and pytest add for it
    "engine": dict(dest=ENGINE, choices=ENGINES, help="lanes, or threads for all launches (default: lanes where they can)"),
    "no-detect": dict(dest=DETECT, action="store_const", const="0", help="without detectors"),
    "no-progress": dict(dest=PROGRESS, action="store_const", const="0", help="without the progress of long launches"),
}


def variables(options):
    """{environment variable: value} for a program with these parsed options, or None."""
    given = {how["dest"]: getattr(options, how["dest"], None) for how in OPTIONS.values()}
    path = os.pathsep.join(filter(None, (STARTUP, os.environ.get("PYTHONPATH"))))
    fixed = {SIMULATE: "1", DETECT: os.environ.get(DETECT, "1"), "PYTHONPATH": path}
    return fixed | {name: value for name, value in given.items() if value is not None}
