"""How programs are simulated: the options of `python -m minllm.sim` and of pytest, and the environment variables behind them.

MINLLM_SIM=1           pytest simulates a test suite (minllm.sim.plugin)
MINLLM_SIM_ENGINE      lanes or threads (minllm.sim.engines)
MINLLM_SIM_DETECT      1: with detectors, 0: without; a program runs with them by default, `simulate` without
MINLLM_SIM_PROGRESS=0  without the progress of long launches

An option sets its variable, so that processes and threads which the program starts find it too.
"""

import os

from minllm.sim.engines import ENGINES
from minllm.sim.engines import VARIABLE as ENGINE
from minllm.sim.progress import VARIABLE as PROGRESS

SIMULATE, DETECT = "MINLLM_SIM", "MINLLM_SIM_DETECT"
OPTIONS = {  # name: what argparse and pytest add for it
    "engine": dict(dest=ENGINE, choices=ENGINES, help="lanes, or threads for all launches (default: lanes where they can)"),
    "no-detect": dict(dest=DETECT, action="store_const", const="0", help="without detectors"),
    "no-progress": dict(dest=PROGRESS, action="store_const", const="0", help="without the progress of long launches"),
}


def variables(options):
    """{environment variable: value} for a program with these parsed options."""
    given = {how["dest"]: getattr(options, how["dest"]) for how in OPTIONS.values()}
    return {SIMULATE: "1", DETECT: os.environ.get(DETECT, "1")} | {name: value for name, value in given.items() if value is not None}
