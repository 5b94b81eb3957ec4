"""`minllm bench kernels`: checks and times every kernel, and compares it with hardware limits and PyTorch.

A kernel with a wrong result is reported instead of timed, and the command then fails at its end. A peer that does not support a shape is
left out of the row.
"""

import gc
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minllm.bench.kernel_case import MICROSECONDS, KernelCase, Prepared
from minllm.bench.kernel_cases import STAGES, kernel_cases
from minllm.bench.record import Row, new_record, stream, write_json
from minllm.bench.timing import Clock, CudaClock, input_sets, medians_in_turn
from minllm.catalogue.noise import Noise
from minllm.errors import DeviceError, InvalidOptionError
from minllm.ops.protocol import Ops

PEER_PACKAGES = ("torch",)
COLUMNS = "{:<18} {:<44} {:<27} {:>9} {:<8} {:>9} {:>24} {:>11}"
HEADINGS = ("benchmark", "case", "kernel", "value", "", "of limit", "of the peer's speed", "error")


def run(only: Sequence[str], against: str | None, json_file: Path | None, cases: Sequence[str] = (), tuning: bool = False) -> bool:
    """Measure the stages in `only` (all, if empty), print and write the record; returns success.

    Prints ceilings, rows and one line of JSON. against: "torch" or None. cases: beginnings of the names of the rows to measure; if empty
    those of the record, and those for tuning if asked for. Raises InvalidOptionError for unknown names, DeviceError without a GPU.
    """
    unknown = [stage for stage in only if stage not in STAGES]
    if unknown:
        raise InvalidOptionError(f"--only {unknown[0]} is not allowed: the stages are {', '.join(STAGES)}.")
    if against not in (None, *PEER_PACKAGES):
        raise InvalidOptionError(f"--against {against} is not allowed: it takes {' or '.join(PEER_PACKAGES)}.")
    chosen = chosen_cases(only, cases, tuning)
    from minllm.bench.ceilings import copy_tb_s
    from minllm.ops.cuda_ops import CudaOps
    from minllm.runtime.device import current_device

    device = current_device()
    peers = load_peers() if against else None
    # with "--json -" only the record is written to standard output
    out = stream(json_file)
    ceilings = {"copy_tb_s": round(copy_tb_s(), 3), "bf16_tflops": round(peers.bf16_tflops(), 1) if peers else None}
    for line in ceiling_lines(device.name, ceilings):
        print(line, file=out, flush=True)
    print(COLUMNS.format(*HEADINGS).rstrip(), file=out, flush=True)
    rows, failed = [], 0
    ops = CudaOps()
    bench = KernelBench(ops, CudaClock(), device.l2_bytes, ceilings, peers)
    for case in chosen:
        try:
            rows.append(bench.row(case))
            print(as_line(rows[-1]), file=out, flush=True)
            if json_file is not None and str(json_file) != "-":  # after every row, so that an interrupt loses no measurement
                write_json(json_file, new_record(device.name, ceilings, rows))
        except Exception as error:  # whatever it is: the other rows are still useful
            failed += 1
            print(f"minllm: {case.name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        gc.collect()  # frees the case's arrays and graphs, gigabytes
        ops.memory.trim()
        if peers:
            peers.forget()
    record = new_record(device.name, ceilings, rows)
    print(record.to_json() if str(json_file) != "-" else f"{len(rows)} rows", file=out, flush=True)
    if json_file is not None:
        write_json(json_file, record)
    return not failed


def chosen_cases(only: Sequence[str], beginnings: Sequence[str], tuning: bool = False) -> list[KernelCase]:
    """The cases of these stages whose names begin so; without beginnings those of the record, or with `tuning` all.

    Raises InvalidOptionError for a beginning that no case has.
    """
    every = kernel_cases(tuple(only) or STAGES)
    if not beginnings:
        return [case for case in every if tuning or not case.for_tuning]
    found = {beginning: [case for case in every if case.name.startswith(beginning)] for beginning in beginnings}
    unknown = next((beginning for beginning, cases in found.items() if not cases), None)
    if unknown is not None:
        raise InvalidOptionError(f"--case {unknown!r} begins no row's name, such as {every[0].name!r}: docs/results.md lists the rows.")
    return list(dict.fromkeys(case for cases in found.values() for case in cases))


def load_peers():
    """The module torch_peers. Raises InvalidOptionError if PyTorch is not installed or finds no GPU."""
    try:
        from minllm.bench import torch_peers
    except ImportError as error:
        raise InvalidOptionError(f"--against torch needs PyTorch ({error}): pip install torch, or leave the option out.") from None
    if not torch_peers.torch.cuda.is_available():
        raise InvalidOptionError("--against torch: this PyTorch sees no GPU. Install one with CUDA, or leave the option out.")
    return torch_peers


class KernelBench:
    """Measures cases and makes their rows."""

    def __init__(self, ops: Ops, clock: Clock, cache_bytes: int, ceilings: dict[str, float | None], peers: Any = None):
        """ops: CudaOps. cache_bytes: size of the L2 cache. peers: the module torch_peers, or None."""
        self.ops, self.clock, self.cache_bytes, self.ceilings, self.peers = ops, clock, cache_bytes, ceilings, peers
        self.noise = Noise()

    def row(self, case: KernelCase) -> Row:
        """Check and time a case, compared with its rival or its fastest peer.

        Raises DeviceError if the result is wrong.
        """
        prepared = case.prepare(self.ops, self.noise, input_sets(case.set_bytes, self.cache_bytes))
        error = checked_error(case, prepared)
        peers = [peer for name in case.peers if (peer := self._peer(name, prepared))] if self.peers else []
        rivals = [prepared.rival] if prepared.rival else []
        contenders = [(prepared.launches, self.clock), *((rival.launches, self.clock) for rival in rivals)]
        seconds, *of_peers = medians_in_turn([*contenders, *((peer.launches, clock) for _, peer, clock in peers)])
        if rivals:
            return case.row(seconds, error, self.ceilings, rivals[0].name, of_peers[0])
        if not peers:
            return case.row(seconds, error, self.ceilings)
        fastest = min(range(len(peers)), key=of_peers.__getitem__)
        name, peer, _ = peers[fastest]
        compared = dict(peer=f"torch {name}", peer_seconds=of_peers[fastest], peer_error=prepared.error(peer.result()))
        return case.row(seconds, error, self.ceilings, **compared)

    def _peer(self, name: str, prepared: Prepared) -> tuple[str, Any, Clock] | None:
        """(name, torch_peers.Peer, its clock), or None if the peer does not support this case."""
        try:
            peer, clock = self.peers.PEERS[name](prepared.inputs), self.peers.TorchClock()
            clock.seconds(peer.launches[:1])
            return name, peer, clock
        except RuntimeError as refusal:  # PyTorch raises it for shapes that a backend does not support
            print(f"({name} does not take this: {str(refusal).splitlines()[0][:120]})", file=sys.stderr, flush=True)
            return None


def checked_error(case: KernelCase, prepared: Prepared) -> float:
    """Launch once and return the error of the result.

    Raises DeviceError if it is NaN or more than the case allows.
    """
    prepared.launches[0]()
    found = prepared.error(prepared.result())
    if not found <= case.allowed_error:
        raise DeviceError(f"the result is wrong, so it was not timed: relative error {found:.2g}, allowed {case.allowed_error:.2g}")
    return found


def ceiling_lines(device: str, ceilings: dict[str, float | None]) -> list[str]:
    """The measured ceilings as lines of text."""
    lines = [f"ceiling: a copy on {device} moves {ceilings['copy_tb_s']:.2f} TB/s now, read plus written"]
    if ceilings["bf16_tflops"]:
        lines.append(f"ceiling: cuBLAS computes {ceilings['bf16_tflops']:.0f} TFLOP/s now, at 8192x8192x8192 in bfloat16")
    return lines


def as_line(row: Row) -> str:
    """A row as a line of text."""
    share = "" if row.of_limit is None else f"{100 * row.of_limit:.0f} %"
    peer = "" if row.ratio is None else f"{row.ratio:.2f} {row.peer.removeprefix('torch ')}"
    value = f"{row.value:,.1f}" if row.unit == MICROSECONDS or row.value >= 100 else f"{row.value:.3f}"
    return COLUMNS.format(row.benchmark, row.case, row.variant, value, row.unit, share, peer, f"{row.error:.1e}").rstrip()
