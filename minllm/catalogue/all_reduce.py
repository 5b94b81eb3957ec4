"""The launches of the all-reduces: n elements, or T rows of H, of b bytes on each of N ranks, which launch together."""

import itertools

import numpy as np

from minllm.catalogue.launch import WIDE, Launch, MachineCode, Moved, describes, each
from minllm.catalogue.matmul.machine_code import STREAMED
from minllm.catalogue.rows import BFLOAT16, DTYPES, longest_rows
from minllm.kernels.all_reduce import VARIANTS
from minllm.kernels.all_reduce.fused_norm import FUSABLE
from minllm.kernels.all_reduce.fused_norm import fused_norm as launch_fused_norm
from minllm.kernels.all_reduce.gemv_low_latency import gemv_low_latency
from minllm.kernels.all_reduce.peers import MOST_RANKS, Peers, allocate, launch_together
from minllm.kernels.all_reduce.reference import all_reduce_reference, owners_of_rows, sequence_parallel_reference
from minllm.kernels.all_reduce.sequence_parallel import MOST_IN_FLIGHT, SequenceMemory, sequence_parallel_norm
from minllm.kernels.arguments import ceil_div
from minllm.kernels.matmul.gemv.gemv import choose_tiling
from minllm.kernels.matmul.reference import matmul_reference
from minllm.kernels.normalization.rms_norm import rms_norm_reference
from minllm.tiles.warp import WARP

EPSILON = 1e-5
FLAGS = ("ST*STRONG.SYS*", "LD*STRONG.SYS*")


def of_ranks(own, peer, **arrays):
    """The formulas of two ranks; own, peer: ("staging", bytes), of a rank's own memory and of the other's, which it sees as [rank]."""
    found = {f"rank {rank}'s {name}": moved for rank in range(2) for name, moved in arrays.items()}
    for rank in range(2):
        for (name, moved), whose in ((own, rank), (peer, 1 - rank)):
            found |= {f"rank {rank}'s {name}[{whose}]": moved} if moved else {}
    return found


def moved_by(name, n, b):
    """What a message of n elements moves on two ranks. Flags and polls have no formula."""
    one, both, vector = dict(x=n * b, out=n * b), dict(x=2 * n * b, out=n * b), n * b
    inboxes = ("inboxes", 0), ("inboxes", 2 * vector)
    asked, different = {
        "ring": (of_ranks(("staging", 2 * vector), ("staging", 2 * vector), **one), {}),
        "one_shot": (of_ranks(("staging", 2 * vector), ("staging", vector), **one), {}),
        "two_shot": (of_ranks(("staging", vector), ("staging", vector), **one), {}),
        "low_latency": (of_ranks(*inboxes, **both), of_ranks(*inboxes, **one)),
    }[name]  # fmt: skip
    return Moved(asked, different)


def together(launches, stream):
    """Launch on all ranks in the simulator; in a dry run on the first, as the others launch the same."""
    if isinstance(launches[0].arguments[1], np.ndarray):  # the first argument may be a tuple of arrays
        launch_together(launches)
    else:
        launches[0].launch(stream)


def of_each(arrays, name, ranks):
    """The arrays `name 0`, `name 1`, ..."""
    return [arrays[f"{name} {rank}"] for rank in range(ranks)]


def memories_of(ranks, most_bytes):
    """{"memory 0": a RankMemory, ...}."""
    return {f"memory {rank}": allocate(ranks, most_bytes, np.zeros) for rank in range(ranks)}


def peers_of(arrays, ranks):
    """The Peers of all ranks."""
    memories = tuple(of_each(arrays, "memory", ranks))
    return [Peers(rank, memories) for rank in range(ranks)]


def left_out(ranks, inboxes="inboxes"):
    """What formulas leave out of each rank's arrays, its own inbox, which it polls, included; inboxes: their name in the kernel."""
    names = (*(f"signals[{whose}]" for whose in range(ranks)), "counters", "fault")
    return tuple(f"rank {rank}'s {name}" for rank in range(ranks) for name in (*names, f"{inboxes}[{rank}]"))


@describes
def message(name, ranks, size, dtype):
    """The sum of a message of every rank, in every rank, by one of the variants."""

    def arrays(noise):
        given = {f"x {rank}": noise.array((size,), dtype) for rank in range(ranks)}
        given |= {f"out {rank}": noise.unwritten((size,), dtype) for rank in range(ranks)}
        return given | memories_of(ranks, 4 * size * dtype.itemsize)

    def call(ops, **arrays):
        of_rank = zip(of_each(arrays, "x", ranks), of_each(arrays, "out", ranks), peers_of(arrays, ranks))
        together([VARIANTS[name](*one) for one in of_rank], ops.stream)

    def reference(**arrays):
        found = all_reduce_reference(of_each(arrays, "x", ranks))
        return {f"out {rank}": found for rank in range(ranks)}

    moved = moved_by(name, size, dtype.itemsize) if ranks == 2 else {}
    return Launch(arrays, call, reference, moved, indices=left_out(ranks), exact=name != "ring", several_gpus=True)


@describes
def gemv(ranks, n, k, dtype):
    """The sum of GEMVs of every rank and of the first one's residual, in every rank."""
    b, tiling = dtype.itemsize, choose_tiling(1, n, k)
    threads = n // 2 * tiling.splits * WARP  # a group of `splits` warps has two rows

    def arrays(noise):
        given = {f"x {rank}": noise.array((1, k), dtype) for rank in range(ranks)}
        given |= {f"weight {rank}": noise.array((n, k), dtype) for rank in range(ranks)} | {"residual": noise.array((1, n), dtype)}
        given |= {f"out {rank}": noise.unwritten((1, n), dtype) for rank in range(ranks)}
        return given | memories_of(ranks, 4 * n)

    def call(ops, **arrays):
        x, weight, out = (of_each(arrays, name, ranks) for name in ("x", "weight", "out"))
        residuals = [arrays["residual"], *[None] * (ranks - 1)]
        found = [gemv_low_latency(x[r], weight[r], out[r], peers, residual=residuals[r]) for r, peers in enumerate(peers_of(arrays, ranks))]
        for launches in zip(*found):
            together(launches, ops.stream)

    def reference(**arrays):
        of_rank = zip(of_each(arrays, "x", ranks), of_each(arrays, "weight", ranks))
        partials = [matmul_reference(x, weight, out_dtype=np.float64) for x, weight in of_rank]
        partials[0] += arrays["residual"].astype(np.float64)
        found = all_reduce_reference([partial.astype(dtype) for partial in partials])
        return {f"out {rank}": found for rank in range(ranks)}

    of_row = {"rank 0's x": n // 2 * k * b, "rank 0's residual": 2 * threads * b}
    sent = Moved(
        {**of_row, "rank 0's weight": n * k * b, "rank 0's inboxes[1]": 8 * n}, {"rank 0's x": k * b, "rank 0's residual": n * b}
    )  # fmt: skip
    received = {f"rank {rank}'s {name}": moved for rank in range(2) for name, moved in (("inbox", 16 * n), ("out", n * b))}
    moved = dict(gemv_send_kernel=sent, receive_sums_kernel=Moved(received)) if ranks == 2 else {}
    slack = 2.0**-7  # the order of the sums in a rank may change the rounding of what it sends
    return Launch(arrays, call, reference, moved, indices=left_out(ranks), slack=slack, several_gpus=True)


@describes
def fused_norm(algorithm, ranks, tokens, hidden, dtype):
    """The sum of rows of every rank, added to the residual and normalised, in every rank."""
    shape, n, row = (tokens, hidden), tokens * hidden * dtype.itemsize, hidden * dtype.itemsize

    def arrays(noise):
        residual, weight = noise.array(shape, dtype), noise.array((hidden,), dtype)
        given = {f"x {rank}": noise.array(shape, dtype) for rank in range(ranks)}
        given |= {f"residual {rank}": residual.copy() for rank in range(ranks)} | {f"weight {rank}": weight for rank in range(ranks)}
        given |= {f"out {rank}": noise.unwritten(shape, dtype) for rank in range(ranks)}
        return given | memories_of(ranks, 2 * n)

    def call(ops, **arrays):
        x, weight, out, residual = (of_each(arrays, name, ranks) for name in ("x", "weight", "out", "residual"))
        peers = peers_of(arrays, ranks)
        together([launch_fused_norm(x[r], weight[r], out[r], EPSILON, residual[r], peers[r], algorithm) for r in range(ranks)], ops.stream)

    def reference(**arrays):
        summed = all_reduce_reference(of_each(arrays, "x", ranks))
        out, stream = rms_norm_reference(summed, arrays["weight 0"], EPSILON, arrays["residual 0"])
        return {f"out {rank}": out for rank in range(ranks)} | {f"residual {rank}": stream for rank in range(ranks)}

    own, peer, of_x = (0, 2 * n, 2 * n) if algorithm == "low_latency" else (2 * n, n, n)
    asked = of_ranks(("shared", own), ("shared", peer), x=of_x, residual=2 * n, weight=n, out=n)
    different = of_ranks(("shared", own), ("shared", peer), x=n, weight=row)
    exact = tuple(f"residual {rank}" for rank in range(ranks))
    polled = left_out(ranks, "shared") if algorithm == "low_latency" else left_out(ranks)
    return Launch(arrays, call, reference, Moved(asked, different) if ranks == 2 else {}, indices=polled, exact=exact, several_gpus=True)


@describes
def sequence_parallel(ranks, groups, group, hidden, dtype, normed=True):
    """Rows that the ranks divide: `groups` groups of `group` rows for each, added up, added to the residual, and normalised for all."""
    shape, own = (groups * ranks * group, hidden), (groups * group, hidden)
    n, row = groups * group * hidden * dtype.itemsize, hidden * dtype.itemsize  # bytes of a rank's own rows, and of one

    def arrays(noise):
        residual, weight = noise.array(shape, dtype), noise.array((hidden,), dtype)
        given = {f"received {rank} {peer}": noise.array(own, dtype) for rank in range(ranks) for peer in range(ranks)}
        given |= {f"residual {rank}": residual.copy() for rank in range(ranks)} | {f"weight {rank}": weight for rank in range(ranks)}
        return given | {f"rows {rank}": noise.unwritten(shape, dtype) for rank in range(ranks)} | memories_of(ranks, 0)

    def call(ops, **arrays):
        rows, launches = tuple(one.reshape(-1).view(np.uint8) for one in of_each(arrays, "rows", ranks)), []
        for rank, peers in enumerate(peers_of(arrays, ranks)):
            received = tuple(one.reshape(-1).view(np.uint8) for one in of_each(arrays, f"received {rank}", ranks))
            memory, weight = SequenceMemory(group * row, rows[rank], received, rows), arrays[f"weight {rank}"] if normed else None
            launches.append(sequence_parallel_norm(arrays[f"residual {rank}"], weight, EPSILON, memory, peers))
        together(launches, ops.stream)

    def reference(**arrays):
        owners, messages = owners_of_rows(shape[0], ranks, group), [np.empty(shape, dtype) for _ in range(ranks)]
        for rank, peer in itertools.product(range(ranks), repeat=2):
            messages[peer][owners == rank] = arrays[f"received {rank} {peer}"]
        weight = arrays["weight 0"] if normed else None
        rows, residuals = sequence_parallel_reference(messages, arrays["residual 0"], weight, EPSILON, group)
        return {f"rows {rank}": rows for rank in range(ranks)} | {f"residual {rank}": one for rank, one in enumerate(residuals)}

    def moved(weights):
        found = {f"rank {rank}'s {name}": nbytes for rank in range(2) for name, nbytes in (("residual", 2 * n), ("weight", weights))}
        return found | {f"rank {rank}'s {name}[{whose}]": n for rank in range(2) for name in ("received", "rows") for whose in range(2)}

    blocks = ceil_div(groups * group, MOST_IN_FLIGHT // (ranks + 1))  # each reads the weights once
    formulas = Moved(moved(blocks * row if normed else 0), moved(row if normed else 0)) if ranks == 2 else {}
    exact = tuple(f"residual {rank}" for rank in range(ranks))
    return Launch(arrays, call, reference, formulas, indices=left_out(ranks), exact=exact, several_gpus=True)


def compiled():
    """For 2, 4 and the most ranks. One block per SM: a launch has fewer blocks than a GPU has SMs."""
    for ranks in (2, 4, MOST_RANKS):
        for dtype in DTYPES:
            for name in VARIANTS.names("message"):
                contains = FLAGS if name == "ring" else WIDE + FLAGS
                yield MachineCode(f"all_reduce/{name}/{ranks}/{dtype}", message(name, ranks, 4096, dtype), blocks=1, contains=contains)
            yield from compiled_gemv(ranks, dtype)
            for pieces, hidden in longest_rows(dtype):
                for algorithm in FUSABLE:
                    name = f"all_reduce/fused_norm/{algorithm}/{pieces}/{ranks}/{dtype}"
                    yield MachineCode(name, fused_norm(algorithm, ranks, 1, hidden, dtype), blocks=1, contains=WIDE + FLAGS)
            for hidden in (longest_rows(dtype)[0][1] // 2, longest_rows(dtype)[0][1]):
                name = f"all_reduce/sequence_parallel/{hidden}/{ranks}/{dtype}"
                yield MachineCode(name, sequence_parallel(ranks, 4, 1, hidden, dtype), blocks=1, contains=WIDE + FLAGS)


def compiled_gemv(ranks, dtype):
    """The two kernels of a GEMV that sends: those of an output and a down projection of an 8B model."""
    name = f"all_reduce/gemv_low_latency/{ranks}"
    for part, k in (("output", 4096), ("down", 14336)):
        launch, warps = gemv(ranks, 4096, k // ranks, dtype), choose_tiling(1, 4096, k // ranks).warps
        contains = *STREAMED, FLAGS[0]
        yield MachineCode(f"{name}/{part}/{dtype}", launch, 24 // warps, contains, kernel_name="gemv_send_kernel")
    yield MachineCode(f"{name}/sums/{dtype}", launch, blocks=1, contains=FLAGS[1:], kernel_name="receive_sums_kernel")


def small():
    """Two ranks; tests/kernels/all_reduce has more ranks, and what may go wrong between them."""
    yield from each(message, [(name, 2, 144) for name in VARIANTS.names("message")], dtype=(BFLOAT16,))
    yield from each(gemv, [(2, 24, 264)], dtype=(BFLOAT16,))
    yield from each(fused_norm, [(algorithm, 2, 2, 264) for algorithm in FUSABLE], dtype=(BFLOAT16,))
    yield from each(sequence_parallel, [(2, 2, 3, 264)], dtype=(BFLOAT16,), normed=(True, False))
