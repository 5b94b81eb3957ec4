"""GEMV and all-reduce of one row in two kernels: the GEMV sends its sums, and the other kernel adds up what has arrived.

    out = y_0 + y_1 + .. + y_(N-1),    y_r = x_r @ weight_r.T  (+ bias)  (+ residual), rounded to the dtype          on every rank

In a decode step of one sequence N ranks hold such partial sums after the output projection and after the feed-forward. With low_latency.py
a GEMV stores them, and the next kernel waits for its end, loads them, sends them, and waits until those of its peers have crossed NVLink.
Here a warp of the GEMV sends its sums as soon as it has them, into the inboxes of all ranks, its own included. They cross while other warps
multiply, and if no rank is late the second kernel reads its own memory once. It adds in float32 in rank order and rounds once, so the
result has the bits of GEMV and `low_latency`.

Words are those of low_latency.py: 4 bytes of data, 4 bytes of flag. The data is one rounded sum, as float32 in any dtype: a warp has at
least two, which fill a store of 16 bytes. For n outputs a rank sends 8 (N - 1) n bytes. FLOPs: those of the GEMV, and N n additions.

Threads to data: in the GEMV as in matmul/gemv/gemv.py, with two rows per warp at least. In the second kernel a thread adds up two outputs;
it polls the words of all ranks together, so that their loads overlap. The GEMV waits for no peer, so its grid may have any size.

Sources: NCCL's protocol LL, src/device/prims_ll.h; Pati et al. 2024, "T3: Transparent Tracking & Triggering for Fine-grained Overlap of
Compute & Collectives", in which GEMMs send what they store, by hardware.
"""

import functools

from numba import cuda, float32, int32, int64, uint32, uint64

from minllm.kernels.all_reduce.low_latency import is_new, slot, with_flag
from minllm.kernels.all_reduce.peers import BLOCKS, Peers, RankLaunch, check_capacity
from minllm.kernels.all_reduce.signals import finish_epoch, gives_up, next_epoch, next_epoch_of_all_blocks
from minllm.kernels.arguments import ceil_div, check_array, rows_begin_on
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.matmul.arguments import check_arguments
from minllm.kernels.matmul.gemv.gemv import WARP_SHIFT, choose_tiling, row_of_feature
from minllm.kernels.matmul.gemv.sums import GemvTiling, make_sums
from minllm.ptx import (
    float_as_uint,
    griddepcontrol_launch_dependents,
    ld_relaxed_sys_v2_u64,
    pack_bf16x2,
    pack_f16x2,
    st_relaxed_sys_v2_u64,
    uint_as_float,
    unpack_bf16x2,
    unpack_f16x2,
)
from minllm.runtime.array_protocol import Array
from minllm.runtime.kernel import check, kernel
from minllm.tiles.warp import WARP

THREADS = 128  # per block of the receiving kernel: small blocks find room beside those of the GEMV, and wait there for its end


@cuda.jit(device=True)
def keep_pair(first, second):
    """Two float32 as they are: float32 needs no rounding."""
    return first, second


def make_round_pair(pack, unpack):
    """The device function that rounds two float32 to the dtype of `pack` and `unpack`."""

    @cuda.jit(device=True)
    def round_pair(first, second):
        return unpack(pack(first, second))

    return round_pair


ROUND_PAIR = {
    "float32": keep_pair,
    "float16": make_round_pair(pack_f16x2, unpack_f16x2),
    "bfloat16": make_round_pair(pack_bf16x2, unpack_bf16x2),
}


@functools.cache
def gemv_send_kernel(k: int, dtype: str, tiling: GemvTiling, vectorized: bool, ranks: int):
    """The GEMV for a row of `k` elements of `dtype`; `vectorized` if every row of weight begins on a multiple of 16 bytes."""
    rows, warps, splits = tiling.rows, tiling.warps, tiling.splits
    groups = warps // splits  # groups of warps that share output features
    begin, finish = make_sums(1, k, dtype, tiling, vectorized, row_of_feature)
    round_pair = ROUND_PAIR[dtype]

    @kernel(launch_bounds=warps * WARP, dependent_launch=True, carveout=0)
    def gemv_send_kernel(x, weight, bias, residual, rank, inboxes, counters):
        # x: [1, K]; weight: [N, K]; bias: [N] or None; residual: [1, N] or None; inboxes: those of all ranks; counters: this rank's
        griddepcontrol_launch_dependents()
        lane = int32(cuda.threadIdx.x) & (WARP - 1)
        warp = int32(cuda.threadIdx.x) >> WARP_SHIFT
        first = (cuda.blockIdx.x * groups + warp // splits) * rows  # first output feature of this warp
        last = weight.shape[0] - 1
        total, squares = cuda.local.array((1, rows), float32), cuda.local.array(1, float32)
        begin(x, None, weight, total, squares, first, last, warp, lane)
        # `begin` has waited for the end of this rank's last all-reduce, which all ranks had begun, so all have ended the one before. That
        # one read the half of the inboxes that this one overwrites: nothing may be sent earlier, and only now is the counter right.
        epoch = next_epoch_of_all_blocks(counters)
        addends = cuda.local.array(rows, float32)
        if residual is not None:
            for r in range(rows):
                addends[r] = float32(residual[0, min(int64(first + r), last)])
        finish(x, None, weight, total, squares, first, last, warp, lane, float32(0))
        if lane == 0 and warp % splits == 0:
            for r in range(rows):
                if bias is not None:
                    total[0, r] += float32(bias[min(int64(first + r), last)])
                if residual is not None:
                    total[0, r] += addends[r]
            there = slot(inboxes[0], epoch, rank, ranks) + first
            for r in range(0, rows, 2):
                if first + r <= last:  # with an odd N the last word repeats the last feature, and its data is not used
                    value, next_value = round_pair(total[0, r], total[0, r + 1])
                    word, next_word = with_flag(float_as_uint(value), epoch), with_flag(float_as_uint(next_value), epoch)
                    for peer in range(ranks):
                        st_relaxed_sys_v2_u64(inboxes[peer], there + r, word, next_word)

    return gemv_send_kernel


@functools.cache
def receive_from_all(ranks):
    """The device function that sets words[2 * r : 2 * r + 2] to the two words that rank r has sent at offset `at`."""

    @cuda.jit(device=True)
    def receive_from_all(words, inbox, epoch, at, fault, limit):
        polls = 0
        while True:
            missing = -1
            for peer in range(ranks):  # all loads are issued first
                words[2 * peer], words[2 * peer + 1] = ld_relaxed_sys_v2_u64(inbox, slot(inbox, epoch, peer, ranks) + at)
            for peer in range(ranks):
                if not (is_new(words[2 * peer], epoch) and is_new(words[2 * peer + 1], epoch)):
                    missing = peer
            if missing < 0:
                break
            polls += 1
            if gives_up(polls, limit, fault, missing):
                break

    return receive_from_all


@functools.cache
def receive_sums_kernel(ranks: int):
    """The kernel that adds up the words of this number of ranks."""
    receive, held = receive_from_all(ranks), 2 * ranks

    @kernel(launch_bounds=(THREADS, 1), dependent_launch=True)
    def receive_sums_kernel(out, inbox, counters, fault, limit):
        # out: [elements]; the others are this rank's
        wait_for_predecessors()
        epoch, words = next_epoch(counters), cuda.local.array(held, uint64)
        i = 2 * cuda.grid(1)
        while i < out.size:
            receive(words, inbox, epoch, i, fault, limit)
            total, next_total = float32(0), float32(0)
            for peer in range(ranks):
                total += uint_as_float(uint32(words[2 * peer]))
                next_total += uint_as_float(uint32(words[2 * peer + 1]))
            out[i] = total
            if i + 1 < out.size:
                out[i + 1] = next_total
            i += 2 * cuda.gridsize(1)
        finish_epoch(counters, epoch)

    return receive_sums_kernel


def gemv_low_latency(
    x: Array, weight: Array, out: Array, peers: Peers, bias: Array | None = None, residual: Array | None = None
) -> tuple[RankLaunch, RankLaunch]:  # fmt: skip
    """The launches of GEMV and receiver, which write the sum of all ranks' x @ weight.T + bias + residual into `out`.

    They follow each other, with no other all-reduce between them. out may be `residual`.

    x: [1, K]; weight: [N, K]; out, residual: [1, N]; of one dtype, float32, float16 or bfloat16; bias: [N], of that or float32. bias and
    residual are terms of this rank's sum: one rank gives them. Raises KernelArgumentError for other arrays, and for messages that do not
    fit the ranks' inboxes, where an element takes 4 bytes in any dtype.
    """
    m, n, k = check_arguments(x, weight, out, bias)
    check(m == 1 and n > 0, f"out is {list(out.shape)}; the GEMV sends one row of 1 element or more: use matmul_gemv and an all-reduce")
    for name, array in (("out", out), ("residual", residual)):
        if array is not None:
            check_array(name, array, (x.dtype,), M=m, N=n)
    ranks, own, pairs = len(peers.memories), peers.own, ceil_div(n, 2)
    check_capacity("gemv_low_latency", 2 * pairs, own.inbox, 2 * ranks)
    tiling = choose_tiling(m, n, k)
    tiling = tiling._replace(rows=max(2, tiling.rows))  # the order of a row's sum does not depend on them
    sender = gemv_send_kernel(k, x.dtype.name, tiling, rows_begin_on(16, x, weight), ranks)
    grid = ceil_div(n, tiling.rows * (tiling.warps // tiling.splits))
    send = RankLaunch(
        sender, grid, tiling.warps * WARP, (x, weight, bias, residual, peers.rank, peers.all("inbox"), own.counters), waits=False
    )  # fmt: skip
    arguments = out.reshape(-1), own.inbox, own.counters, own.fault, peers.polls
    return send, RankLaunch(receive_sums_kernel(ranks), min(BLOCKS, ceil_div(pairs, THREADS)), THREADS, arguments)
