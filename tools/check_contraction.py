"""Compare the simulator's contraction with the machine code: python tools/check_contraction.py [NAME]

Every kernel that tests/sim/every_kernel.py launches, or those with NAME in their names, is compiled for compute capability 9.0, with
contraction and without. For each line of the kernel that has a sum of floats, device functions included, it prints those lines where the
compiler fuses one and the simulator does not, or the other way round. Needs no GPU, but half an hour for all kernels. Exit code 1 if the
numbers of lines that agree and that differ are not those of docs/simulator.md; with NAME, if more lines differ than there.
"""

import inspect
import re
import sys
from collections import defaultdict
from pathlib import Path
from unittest.mock import patch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from minllm.runtime import listing
from minllm.runtime.compiler import compile_listing
from minllm.sim import simulator
from minllm.sim.rewrite import plain_function
from minllm.sim.typing import infer_kernel
from minllm.sim.typing.contraction import NO_CONTRACTION
from minllm.sim.typing.flow import flow_of
from minllm.sim.typing.products import Sum
from tests.sim.every_kernel import ROWS, SEVERAL_GPUS

ADDED = re.compile(r"\s*(@!?U?P\w+\s+)?[FDH]ADD")


def on_the_page():
    """(lines that are fused alike, lines that are not) by docs/simulator.md."""
    page = (ROOT / "docs" / "simulator.md").read_text(encoding="utf-8")
    lines, alike = map(int, re.search(r"of (\d+) lines of Python with sums, (\d+) have an fma", page).groups())
    return alike, lines - alike


def launched():
    """{(function, argument types): options} of all launches of the table; nothing runs."""
    found = {}

    def note(how, arguments, detect, tracers):
        found.setdefault((plain_function(how.kernel), how.types), getattr(how.kernel, "options", {}))

    with patch.object(simulator, "why_in_threads", note):
        for name, row in ROWS.items():
            if name not in SEVERAL_GPUS:
                row.run()
    return found


def sums_simulated(plain, contracted, line=None, found=None):
    """{line of the kernel: (fused sums, others)}. plain, contracted: the Inference of a function without and with its Contraction."""
    found = defaultdict(lambda: [0, 0]) if found is None else found
    fused = (contracted.contraction or NO_CONTRACTION).fused
    for one in getattr(flow_of(plain), "sums", ()):
        if isinstance(one, Sum):
            found[line or one.node.lineno][one.node not in fused] += 1
    for node in plain.inlined:
        if (inner := plain.called[node]) is not None:
            sums_simulated(inner, contracted.called[node], line or node.lineno, found)
    return found


def sums_compiled(function, types, options):
    """{line of the kernel: additions} of the machine code."""
    made, _ = compile_listing(function, types, (9, 0), **options)
    found = defaultdict(int)
    for piece in listing.sass_pieces(made.disassembly("-g")):
        if piece.file == inspect.getsourcefile(function):
            found[piece.line] += sum(bool(ADDED.match(one)) for one in piece.instructions)
    return found


def main(wanted=""):
    """Compare all kernels; returns the exit code."""
    same, different = 0, 0
    for (function, types), options in launched().items():
        if wanted not in function.__qualname__:
            continue
        here = sums_simulated(*(infer_kernel(function, types, contract) for contract in (False, True)))
        fused, rounded = (sums_compiled(function, types, {**options, "contract": contract}) for contract in (True, False))
        for line in sorted(line for line in here if rounded[line]):
            if (fused[line] < rounded[line]) == (here[line][0] > 0):
                same += 1
                continue
            different += 1
            text = inspect.getsourcelines(function)[0][line - function.__code__.co_firstlineno].strip()
            print(f"{function.__name__}, line {line}: additions {rounded[line]} and {fused[line]}, here {here[line]}: {text}", flush=True)
    said = on_the_page()
    print(f"{same} lines are fused alike, {different} are not; of all kernels {said[0]} and {said[1]}, says docs/simulator.md")
    return different > said[1] if wanted else (same, different) != said


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
