"""`minllm bench sustained`: GEMMs without a pause for seconds, minllm's and cuBLAS's, with nvidia-smi's clock and power.

`minllm bench kernels` times kernels with pauses, which shows what a kernel can do. A server computes without a pause, and is limited by
power: a large GEMM draws more than the limit allows, and the GPU lowers its clock within a fraction of a second. Prompts are computed at
the speed after that.
"""

import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from minllm.bench.record import Row, console, write_rows
from minllm.catalogue.matmul.products import matmul_flops
from minllm.catalogue.noise import Noise
from minllm.runtime.argument_type import BFLOAT16

SHAPES = ((2048, 28672, 4096), (2048, 4096, 14336), (2048, 6144, 4096), (2048, 4096, 4096))  # rows x a matrix of the 8B shape
REPLAY_SECONDS = 0.02  # duration of one graph launch of many GEMMs
SECONDS, SETTLED = 2.0, 1.0  # duration of a measurement; the clock falls during the first SETTLED seconds
REST = 1.0  # seconds of pause before each, so that all start at the same clock
QUERY = ("clocks.sm", "power.draw.instant")


@dataclass
class Samples:
    """Samples of nvidia-smi in MHz and W; empty without nvidia-smi."""

    clocks: list[float] = field(default_factory=list)
    watts: list[float] = field(default_factory=list)

    def text(self) -> str:
        """The medians as text."""
        if not self.clocks:
            return "clock and power unknown, because nvidia-smi was not found"
        return f"{statistics.median(self.clocks):.0f} MHz, {statistics.median(self.watts):.0f} W"


@contextmanager
def sampled() -> Iterator[Samples]:
    """A context in which nvidia-smi takes samples every 20 ms; they are filled in at its end."""
    found, tool = Samples(), shutil.which("nvidia-smi")
    if tool is None:
        yield found
        return
    command = [tool, "-i", "0", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits", "-lms", "20"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield found
        finally:
            process.terminate()
            for line in process.stdout.read().splitlines():
                values = line.split(",")
                if len(values) == len(QUERY):
                    found.clocks.append(float(values[0]))
                    found.watts.append(float(values[1]))


def speeds(launch: Callable[[], None], wait: Callable[[], None], flops: float) -> tuple[float, float, Samples]:
    """(TFLOP/s of the first launch, median TFLOP/s after the clock has settled, samples taken then)."""
    launch()
    wait()
    time.sleep(REST)
    start, found = time.perf_counter(), []
    first = _timed(launch, wait, flops)
    while time.perf_counter() - start < SETTLED:
        _timed(launch, wait, flops)
    with sampled() as samples:
        while time.perf_counter() - start < SECONDS + SETTLED:
            found.append(_timed(launch, wait, flops))
    return first, statistics.median(found), samples


def _timed(launch: Callable[[], None], wait: Callable[[], None], flops: float) -> float:
    start = time.perf_counter()
    launch()
    wait()
    return 1e-12 * flops / (time.perf_counter() - start)


def run(json_file: Path | None) -> None:
    """Measure, print two lines per shape, write the record.

    Raises DeviceError without a GPU; PyTorch is measured if it is installed.
    """
    from minllm.bench.timing import CudaClock
    from minllm.kernels.matmul.choice import matmul
    from minllm.ops.cuda_ops import CudaOps
    from minllm.runtime.device import current_device
    from minllm.runtime.stream import compute_stream

    out = console(json_file)
    device, ops, clock, noise, rows = current_device().name, CudaOps(), CudaClock(), Noise(), []
    for m, n, k in SHAPES:
        arrays = noise.array((m, k), BFLOAT16), noise.array((n, k), BFLOAT16)
        x, weight = map(ops.array, arrays)
        product, flops = ops.empty((m, n), BFLOAT16), matmul_flops(m, n, k)
        count = max(1, round(REPLAY_SECONDS * 7e14 / flops))
        matmul(x, weight, product, stream=ops.stream)  # compiles
        replay = clock.graph([lambda a=x, b=weight, c=product: matmul(a, b, c, stream=ops.stream)] * count)
        ours = speeds(replay, compute_stream().sync, count * flops)
        theirs = torch_speeds(*arrays, count)
        rows += [row(f"{m}x{n}x{k}, bfloat16", name, ours, theirs, at) for at, name in enumerate(("first 20 ms", "after 1 s"))]
        for name, found in (("minllm", ours), ("torch cuBLAS", theirs)):
            if found is not None:
                out.print(f"{m}x{n}x{k} {name}: {found[0]:.0f} TFLOP/s at first, {found[1]:.0f} after {SETTLED:g} s at {found[2].text()}")
    write_rows(json_file, device, {}, rows)


def row(case: str, variant: str, ours: tuple, theirs: tuple | None, at: int) -> Row:
    """The row of one speed, with cuBLAS's as peer.

    at: index into `ours` and `theirs`, the results of `speeds`.
    """
    peer = {} if theirs is None else dict(peer="torch cuBLAS", peer_value=round(theirs[at], 1), ratio=round(ours[at] / theirs[at], 3))
    return Row("sustained GEMM", case, variant, round(ours[at], 1), "TFLOP/s", **peer, note=ours[2].text() if at else "")


def torch_speeds(x, weight, count: int) -> tuple[float, float, Samples] | None:
    """`speeds` of PyTorch's matmul of these host arrays; None if PyTorch with CUDA is not installed."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    a, b = (torch.from_numpy(array.view("int16")).view(torch.bfloat16).cuda() for array in (x, weight))
    out = torch.empty((a.shape[0], b.shape[0]), dtype=torch.bfloat16, device="cuda")

    def launch() -> None:
        for _ in range(count):
            torch.matmul(a, b.t(), out=out)

    return speeds(launch, torch.cuda.synchronize, count * matmul_flops(a.shape[0], b.shape[0], a.shape[1]))
