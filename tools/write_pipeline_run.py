"""Write docs/assets/javascripts/pipeline-run.json: the mbarriers of a warp-specialised GEMM, event by event, from a run in the simulator.

Run it after a change of the kernel or of the simulator; a test detects a missing run.
"""

import argparse
import json
from pathlib import Path

import ml_dtypes
import numpy as np

from minllm.kernels.matmul.ladder.warp_specialized import CONSUMER_THREADS, STAGES, matmul_warp_specialized
from minllm.sim.barrier_events import BarrierEvents, recording
from minllm.tiles.warp import WARP

RUN = Path(__file__).parents[1] / "docs" / "assets" / "javascripts" / "pipeline-run.json"
ROWS, COLUMNS, DEPTH, STEPS = 64, 256, 64, 10  # one tile of out; steps of 64 along K


def record() -> BarrierEvents:
    """The events of the kernel's only block."""
    rng = np.random.default_rng(0)
    x, weight = (rng.standard_normal((rows, DEPTH * STEPS)).astype(ml_dtypes.bfloat16) for rows in (ROWS, COLUMNS))
    with recording() as recorder:
        matmul_warp_specialized(x, weight, np.empty((ROWS, COLUMNS), ml_dtypes.bfloat16))
    return recorder


def run_text(recorder: BarrierEvents) -> str:
    """The content of the file: barriers are numbered, those of full stages first; one event per line."""
    places = {address: place for place, address in enumerate(recorder.barriers)}
    events = [
        [event.kind, event.warp, places[event.barrier], event.phase, event.bytes]
        + [[[one.completed, one.pending, one.bytes] for one in (event.states[address] for address in recorder.barriers)]]
        for event in recorder.events
    ]
    sizes = dict(rows=ROWS, columns=COLUMNS, depth=DEPTH, steps=STEPS, stages=STAGES)
    head = dict(kernel="warp_specialized", **sizes, producer=CONSUMER_THREADS // WARP)  # the producer's warp; those before it consume
    lines = ",\n  ".join(json.dumps(event, separators=(",", ":")) for event in events)
    return json.dumps(head).removesuffix("}") + f',\n "events": [\n  {lines}\n ]}}\n'


def main() -> None:
    """Write the file."""
    RUN.write_text(run_text(record()), encoding="utf-8")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    main()
