"""`minllm bench all-reduce`: every all-reduce algorithm on this machine, by message size, beside NCCL's.

One process drives all GPUs (runtime/peer_devices.py), and messages are bfloat16. Each algorithm is checked first: all ranks must have the
same bits, and the correct sum. Then many all-reduces are captured into one graph per GPU, and the graphs are replayed back to back: this
gives the time that one all-reduce would add to a step of a model. NCCL is that of PyTorch, in graphs on the same streams.

sequence_parallel takes an all-reduce's place for the rows of a prompt, here of 4,096 elements: residual addition and norm are in it, the
reduce-scatter is not, as GEMMs store their partial sums where they are added up.

gemv_low_latency is measured with its GEMV, of an 8B model's output and down projection, of which each rank has a part, beside the same GEMV
followed by low_latency.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
from rich.table import Table

from minllm.bench.record import Row, console, write_rows
from minllm.costs.measured_all_reduces import SEQUENCE_PARALLEL
from minllm.errors import InvalidOptionError, KernelArgumentError, MinLLMError
from minllm.kernels.all_reduce import VARIANTS
from minllm.kernels.all_reduce.choice import choose
from minllm.kernels.all_reduce.gemv_low_latency import gemv_low_latency
from minllm.kernels.all_reduce.low_latency import low_latency
from minllm.kernels.all_reduce.peers import Peers, RankLaunch, allocate
from minllm.kernels.all_reduce.reference import all_reduce_reference, owners_of_rows, sequence_parallel_reference
from minllm.kernels.all_reduce.sequence_parallel import PAGE_BYTES, SequenceMemory, rows_of, sequence_parallel_norm
from minllm.kernels.matmul.gemv.gemv import matmul_gemv
from minllm.kernels.matmul.reference import matmul_reference
from minllm.runtime.peer_devices import PeerDevices

KB, MB = 1 << 10, 1 << 20
SIZES = (8 * KB, 64 * KB, 256 * KB, 512 * KB, MB, 2 * MB, 4 * MB, 16 * MB, 64 * MB)
LARGEST_OF_LOW_LATENCY = 2 * MB  # its inbox needs memory for ranks * 4 messages
GRAPH_BYTES = 1 << 30  # total messages of a graph, large enough to make the graph's launch negligible
FEWEST, MOST = 20, 1000  # all-reduces per graph
REPLAYS, ROUNDS = 5, 7
HIDDEN, EPSILON = 4096, 1e-5  # the length of the rows that ranks divide, and the epsilon of their norms
GEMV_INPUTS = (4096, 14336)  # inputs of the output and the down projection of an 8B model; both have HIDDEN outputs
WEIGHTS = 8  # copies of a weight that GEMVs read in turn, because together they are larger than L2


class Ranks:
    """The GPUs of one machine, and the memory for their all-reduces."""

    def __init__(self, count: int):
        self.devices = PeerDevices(count)
        # a ring sends sums as float32, twice the bytes, and needs two buffers for them: 4 * the message
        memories = tuple(
            allocate(count, 4 * max(SIZES), lambda size, dtype, rank=rank: self.devices.zeros(rank, size, dtype), LARGEST_OF_LOW_LATENCY)
            for rank in range(count)
        )
        self.peers = [Peers(rank, memories) for rank in range(count)]

    def launches(self, name: str, nbytes: int) -> tuple[list[RankLaunch], list]:
        """(the launches of all ranks, their results) for messages of this size.

        Raises KernelArgumentError if the ranks' memory is too small for the algorithm, and MinLLMError if the sum is wrong.
        """
        rng = np.random.default_rng(0)
        messages = [rng.standard_normal(nbytes // 2).astype(ml_dtypes.bfloat16) for _ in self.peers]
        if name == SEQUENCE_PARALLEL:
            launches, outs, messages = self.divided([message.reshape(-1, HIDDEN) for message in messages])
        else:
            xs = [self.devices.array(rank, message) for rank, message in enumerate(messages)]
            outs = [self.devices.zeros(rank, message.shape, message.dtype) for rank, message in enumerate(messages)]
            launches = [VARIANTS[name](x, out, own) for x, out, own in zip(xs, outs, self.peers, strict=True)]
        self.devices.load(launches)
        self.devices.launch(launches)
        self.devices.synchronize()
        check(name, messages, [out.copy_to_host() for out in outs])
        return launches, outs

    def divided(self, messages: list[np.ndarray]) -> tuple[list[RankLaunch], list, list[np.ndarray]]:
        """(the launches of all ranks, their results, messages with that sum) of sequence_parallel.

        messages: what the ranks' GEMMs stored, [tokens, HIDDEN]. Residuals are zero, and the weights of the norm one.
        """
        ranks, shape, dtype, launches = len(messages), messages[0].shape, messages[0].dtype, []
        if messages[0].nbytes % (ranks * PAGE_BYTES):
            raise KernelArgumentError(f"{messages[0].nbytes} bytes are not whole pages of {ranks} ranks")
        weight, residual, group = np.ones(HIDDEN, dtype), np.zeros(shape, dtype), PAGE_BYTES // (HIDDEN * dtype.itemsize)
        rows = tuple(self.devices.zeros(rank, messages[0].nbytes, np.uint8) for rank in range(ranks))
        owners = owners_of_rows(shape[0], ranks, group)
        for rank, own in enumerate(self.peers):
            received = tuple(self.devices.array(rank, message[owners == rank].reshape(-1).view(np.uint8)) for message in messages)
            given = self.devices.array(rank, residual), self.devices.array(rank, weight)
            launches.append(sequence_parallel_norm(*given, EPSILON, SequenceMemory(PAGE_BYTES, rows[rank], received, rows), own))
        wanted, _ = sequence_parallel_reference(messages, residual, weight, EPSILON, group)
        return launches, [rows_of(one, shape, dtype) for one in rows], [wanted]


def check(name: str, messages: list[np.ndarray], results: list[np.ndarray]) -> None:
    """Raise MinLLMError unless all results are bit-identical and equal the sum within the rounding of bfloat16."""
    if any(result.tobytes() != results[0].tobytes() for result in results):
        raise MinLLMError(f"{name}: the ranks have different results")
    wanted = all_reduce_reference(messages).astype(np.float32)
    error = np.abs(results[0].astype(np.float32) - wanted).max()
    if not error <= 2.0**-7 * np.abs(wanted).max():
        raise MinLLMError(f"{name}: the sum is wrong by {error}")


def run(gpus: int, against: str | None, json_file: Path | None) -> None:
    """Measure and print; if `json_file` is given, write the record.

    Raises DeviceError without this number of connected GPUs.
    """
    if against not in (None, "torch"):
        raise InvalidOptionError(f"--against is {against!r}; it may be torch")
    out = console(json_file)
    ranks, names = Ranks(gpus), [*VARIANTS.names("message"), SEQUENCE_PARALLEL]
    table, rows = Table("message", *names, "chosen", *(["NCCL"] if against else [])), []
    for nbytes in SIZES:
        found = {name: microseconds(ranks, name, nbytes) for name in names}
        nccl = nccl_microseconds(ranks.devices, nbytes) if against else None
        cells = [f"{one:.1f} µs" if one else "" for one in (*found.values(), *([nccl] if against else []))]
        table.add_row(size(nbytes), *cells[: len(names)], choose(gpus, nbytes) or "NCCL", *cells[len(names) :])
        rows += [row(gpus, nbytes, name, value, nccl) for name, value in found.items() if value]
    out.print(table)
    for inputs in GEMV_INPUTS:
        rows.append(row_of_gemv(gpus, inputs // gpus, *gemv_microseconds(ranks, inputs // gpus)))
        out.print(f"{rows[-1].case}: {rows[-1].value} µs, {rows[-1].peer} {rows[-1].peer_value} µs")
    write_rows(json_file, ranks.devices.devices[0].name, {}, rows)


def row(gpus: int, nbytes: int, name: str, value: float, nccl: float | None) -> Row:
    """A row of the record."""
    peer = dict(peer="NCCL, torch", peer_value=round(nccl, 2), ratio=round(nccl / value, 3)) if nccl else {}
    return Row("all-reduce", f"{gpus} GPUs, {size(nbytes)}, bfloat16", name, round(value, 2), "µs", **peer)


def row_of_gemv(gpus: int, inputs: int, value: float, apart: float) -> Row:
    """A row of the record. apart: microseconds of the GEMV followed by low_latency."""
    case, peer = f"{gpus} GPUs, {HIDDEN} x {inputs}, bfloat16", dict(peer="gemv, low_latency", peer_value=round(apart, 2))
    return Row("GEMV and all-reduce", case, "gemv_low_latency", round(value, 2), "µs", **peer, ratio=round(apart / value, 3))


def size(nbytes: int) -> str:
    """A number of bytes as text, in KiB or MiB."""
    return f"{nbytes >> 20} MiB" if nbytes >= MB else f"{nbytes >> 10} KiB"


def microseconds(ranks: Ranks, name: str, nbytes: int) -> float | None:
    """Microseconds of one all-reduce; None if the ranks' memory is too small for this algorithm."""
    try:
        launches, _ = ranks.launches(name, nbytes)
    except KernelArgumentError:
        return None
    return replayed(ranks.devices, lambda: ranks.devices.launch(launches), nbytes)


def gemv_microseconds(ranks: Ranks, inputs: int) -> tuple[float, float]:
    """Microseconds of a GEMV with an all-reduce of its HIDDEN outputs: (gemv_low_latency, a GEMV and low_latency).

    Raises MinLLMError if the sums are wrong, or differ.
    """
    devices, rng = ranks.devices, np.random.default_rng(0)
    x, weight = (rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((1, inputs), (HIDDEN, inputs)))
    given = [(devices.array(rank, x), [devices.array(rank, weight) for _ in range(WEIGHTS)]) for rank, _ in enumerate(ranks.peers)]
    outs = [[devices.zeros(rank, (1, HIDDEN), weight.dtype) for rank, _ in enumerate(ranks.peers)] for _ in range(2)]
    sent = [
        list(zip(*(gemv_low_latency(x, weights[i], out, own) for (x, weights), out, own in zip(given, outs[0], ranks.peers)), strict=True))
        for i in range(WEIGHTS)
    ]  # fmt: skip
    received = [low_latency(out, out, own) for out, own in zip(outs[1], ranks.peers, strict=True)]

    def launch_sent():
        for send, receive in sent:
            devices.launch(send)
            devices.launch(receive)

    def launch_apart():
        for i in range(WEIGHTS):
            for rank, (x, weights) in enumerate(given):
                devices.call(rank, matmul_gemv, x, weights[i], outs[1][rank])
            devices.launch(received)

    for launches in (*sent[0], received):
        devices.load(launches)
    for launch in (launch_sent, launch_apart):
        launch()
        devices.synchronize()
    term, found = matmul_reference(x, weight), [[out.copy_to_host() for out in of_form] for of_form in outs]
    check("gemv_low_latency", [term] * len(given), found[0] + found[1])
    sent_us, apart_us = (replayed(devices, launch, WEIGHTS * weight.nbytes) for launch in (launch_sent, launch_apart))
    return sent_us / WEIGHTS, apart_us / WEIGHTS


def nccl_microseconds(devices: PeerDevices, nbytes: int) -> float:
    """Microseconds of one all-reduce by NCCL, through PyTorch."""
    import torch

    streams = [torch.cuda.ExternalStream(int(stream.handle), device=rank) for rank, stream in enumerate(devices.streams)]
    xs, outs = ([torch.ones(nbytes // 2, dtype=torch.bfloat16, device=rank) for rank in range(len(streams))] for _ in range(2))

    def launch():
        torch.cuda.nccl.all_reduce(xs, outs, streams=streams)

    launch()  # makes the communicators
    devices.synchronize()
    return replayed(devices, launch, nbytes)


def replayed(devices: PeerDevices, launch: Callable[[], None], nbytes: int) -> float:
    """Microseconds per `launch`, many of which form a graph per GPU: the median over several rounds of replays."""
    count, times = min(MOST, max(FEWEST, GRAPH_BYTES // nbytes)), []
    replay = devices.graphs(lambda: [launch() for _ in range(count)])
    for _ in range(ROUNDS):
        devices.synchronize()
        start = time.perf_counter()
        for _ in range(REPLAYS):
            replay()
        devices.synchronize()
        times.append(1e6 * (time.perf_counter() - start) / (REPLAYS * count))
    return statistics.median(times[1:])
