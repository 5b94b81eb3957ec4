"""Gather GEMV: the experts of a few tokens, by reading the chosen experts' weights and nothing else.

    activated[t, i] = silu(gate_e x_t) * (up_e x_t)                e = expert_ids[t, i]
    out[t] = sum over i of weights[t, i] * down_e activated[t, i]   (+ residual[t])

One token takes k of E experts, 6 k H I FLOPs on 3 k H I weights: 2 FLOPs per weight, so it is memory-bound, as a GEMV is. But its rows of
weight are known only when the router's logits are, and while nobody reads weights the memory idles. So no kernel of its own chooses
experts: each block does, with one warp (choice.py), and then keeps as many loads in flight as registers hold.

    gate and up   a warp takes FEATURES features of one pair (t, i): of each the row of the gate and that of up
    down          a warp takes a feature of one token, and reads that row in all k experts: their sum needs no other kernel

Down starts while gate and up still run: it chooses the experts again and loads their weights, and only then waits for `activated`. Its
logits are safe to read because gate and up let it start after they have waited for the router.

An RMSNorm of x before gate and up is fused in, as in the GEMV of one matrix: a warp multiplies by x * norm, accumulates the squares of x,
and divides its two sums by the root of their mean.

Lanes lie along a row, 16 bytes each, so that a warp's load is 512 contiguous bytes. The outputs of a token's experts are weighted and added
lane by lane in the order of expert_ids, then shuffles add the 32 lanes: always in the same order. Tokens that share an expert read it once
each; beyond a few tokens the grouped GEMM reads less (grouped_gemm.py).

Rows that are no whole number of 16-byte vectors are read element by element. Weights in int4 or fp8 (codes.py) are multiplied as codes, and
the sum of each 16 bytes by their scale: the same kernels on a half or a quarter of the bytes.

Source: kernels/matmul/gemv/gemv.py (the GEMV of one matrix).
"""

import functools

import numpy as np
from numba import cuda, float32, int32, int64, uint32
from numba.cuda import libdevice

from minllm.kernels.activation.sigmoid import sigmoid
from minllm.kernels.arguments import ceil_div
from minllm.kernels.experts.arguments import check_down, check_gate_up
from minllm.kernels.experts.choice import make_choice, make_weights
from minllm.kernels.experts.codes import CodeKind, codes_of, is_quantized, make_scale_at, make_unpack_eight
from minllm.kernels.matmul.arguments import check_norm
from minllm.kernels.matmul.gemv.sums import DOTS
from minllm.kernels.vector import VECTOR_BYTES, vector_access, vectors_per_row
from minllm.ptx import griddepcontrol_launch_dependents, griddepcontrol_wait, load_128, load_128_streaming
from minllm.runtime.kernel import check, kernel, launch
from minllm.tiles.warp import WARP, warp_sum

VECTORS, ELEMENTS = "vectors", "elements"
WARPS, FEATURES = 4, 2  # warps of a block, and features of a warp
MOST_TOKENS = 4  # more tokens share so many experts that the grouped GEMM reads less
LOADS_OF_GATE_AND_UP, LOADS_OF_DOWN = 8, 24  # 16-byte loads of weight in flight per lane, at most
MOST_TOGETHER, MOST_CODES_TOGETHER = 8, 4  # experts of which a warp reads rows at once; more rows of codes take too many registers


def make_dots(k: int, rows: int, loads: int, dtype: str, reads: str | CodeKind, one_x: bool, waits: bool = False):
    """The device function total[r] += (a row of x) . (the r-th row of weight), over this lane's elements, for `rows` rows of k elements.

    loads: 16-byte loads of weight in flight. reads: VECTORS, ELEMENTS, or the kind of codes. one_x: all rows of weight multiply the same
    row of x, times `norm` unless it is None; total[rows] += its sum of squares then. waits: x may
    not be written yet, so wait for it after issuing the loads of weight.
    """
    if reads == ELEMENTS:
        return make_dots_by_element(k, rows, one_x, waits)
    if reads != VECTORS:
        return make_dots_of_codes(k, rows, loads, dtype, reads, one_x, waits)
    width = VECTOR_BYTES // np.dtype(dtype).itemsize
    warp_step = WARP * width  # elements of a row per load of a warp
    unroll = max(1, min(loads // rows, ceil_div(k, warp_step)))
    step, words_in_flight, (dot, scaled_dot) = unroll * warp_step, rows * unroll * 4, DOTS[dtype]

    @cuda.jit(device=True)
    def dots(x, x_starts, norm, weight, starts, total, lane):
        words = cuda.local.array(words_in_flight, uint32)
        for start in range(0, k, step):
            first = start + lane * width
            for u in range(unroll):
                if first + u * warp_step < k:
                    for r in range(rows):
                        w = load_128_streaming(weight, starts[r] + first + u * warp_step)
                        for word in range(4):
                            words[(u * rows + r) * 4 + word] = w[word]
            if waits:
                griddepcontrol_wait()
            cuda.syncwarp()  # keeps the compiler from moving each load down to its first use, see gemv/sums.py
            for u in range(unroll):
                if first + u * warp_step < k:
                    x_words = load_128(x, x_starts[0] + first + u * warp_step)
                    if norm is not None:
                        scales = load_128(norm, first + u * warp_step)
                        for word in range(4):
                            total[rows] = dot(x_words[word], x_words[word], total[rows])
                            for r in range(rows):
                                total[r] = scaled_dot(words[(u * rows + r) * 4 + word], x_words[word], scales[word], total[r])
                    else:
                        for r in range(rows):
                            if r > 0 and not one_x:
                                x_words = load_128(x, x_starts[r] + first + u * warp_step)
                            for word in range(4):
                                total[r] = dot(words[(u * rows + r) * 4 + word], x_words[word], total[r])

    return dots


def make_dots_by_element(k: int, rows: int, one_x: bool, waits: bool):
    """make_dots for rows that are no whole vectors."""

    @cuda.jit(device=True)
    def dots(x, x_starts, norm, weight, starts, total, lane):
        if waits:
            griddepcontrol_wait()
        for element in range(lane, k, WARP):
            for r in range(rows):
                value = float32(x[int64(x_starts[0 if one_x else r] // k), element])
                if norm is not None:
                    if r == 0:
                        total[rows] += value * value
                    value *= float32(norm[element])
                total[r] += value * float32(weight[int64(starts[r] // k), element])

    return dots


def make_dots_of_codes(k: int, rows: int, loads: int, dtype: str, kind: CodeKind, one_x: bool, waits: bool):
    """make_dots for rows of codes; weight: ExpertCodes."""
    each, per_unit = kind.each, kind.per_unit
    warp_step = WARP * each
    unroll = max(1, min(loads // rows, ceil_div(k, warp_step)))
    step, words_in_flight, eights = unroll * warp_step, rows * unroll * 4, each // 8
    (width, load, _), unpack_eight, scale_at = vector_access(dtype), make_unpack_eight(kind), make_scale_at(kind)

    @cuda.jit(device=True)
    def load_eight(array, first, values):
        for at in range(0, 8, width):
            load(array, first + at, values, at)

    @cuda.jit(device=True)
    def normed(norm, first, numbers, total):
        """numbers *= norm, and total[rows] += the squares before."""
        scales = cuda.local.array(8, float32)
        load_eight(norm, first, scales)
        for j in range(8):
            total[rows] += numbers[j] * numbers[j]
            numbers[j] *= scales[j]

    @cuda.jit(device=True)
    def dots(x, x_starts, norm, weight, starts, total, lane):
        words, own = cuda.local.array(words_in_flight, uint32), cuda.local.array(4, uint32)
        numbers, values, part = cuda.local.array(8, float32), cuda.local.array(8, float32), cuda.local.array(rows, float32)
        for start in range(0, k, step):
            first = start + lane * each
            for u in range(unroll):
                if first + u * warp_step < k:
                    for r in range(rows):
                        w = load_128_streaming(weight.codes, (starts[r] + first + u * warp_step) // per_unit)
                        for word in range(4):
                            words[(u * rows + r) * 4 + word] = w[word]
            if waits:
                griddepcontrol_wait()
            cuda.syncwarp()
            for u in range(unroll):
                at = first + u * warp_step
                if at < k:
                    for r in range(rows):
                        part[r] = float32(0)
                    for eight in range(eights):
                        load_eight(x, x_starts[0] + at + 8 * eight, numbers)
                        if norm is not None:
                            normed(norm, at + 8 * eight, numbers, total)
                        for r in range(rows):
                            if r > 0 and not one_x:
                                load_eight(x, x_starts[r] + at + 8 * eight, numbers)
                            for word in range(4):
                                own[word] = words[(u * rows + r) * 4 + word]
                            unpack_eight(own, eight, values)
                            for j in range(8):
                                part[r] += numbers[j] * values[j]
                    for r in range(rows):
                        total[r] += scale_at(weight.scales, starts[r] // k, at) * part[r]

    return dots


def features_of(reads: str | CodeKind) -> int:
    """Features of gate and up per warp; of codes one, because registers hold the numbers of few rows."""
    return FEATURES if isinstance(reads, str) else 1


@functools.cache
def gate_up_gemv_kernel(hidden: int, experts: int, chosen: int, dtype: str, reads: str | CodeKind):
    """The kernel for x of `hidden` elements of `dtype` and `chosen` of `experts` experts per token; reads: as in make_dots."""
    features = features_of(reads)
    rows = 2 * features  # a gate and an up per feature
    sums = rows + 1  # and the squares of x
    dots, choose = make_dots(hidden, rows, LOADS_OF_GATE_AND_UP, dtype, reads, one_x=True), make_choice(experts, chosen)

    @kernel(launch_bounds=WARPS * WARP, dependent_launch=True, carveout=0)
    def gate_up_gemv_kernel(x, norm, logits, gate_up, out, epsilon):
        """x [T, H], norm [H] or None, logits [T, E], gate_up [E * 2 * I, H], out [T * k, I]; grid: pairs, features."""
        griddepcontrol_wait()
        griddepcontrol_launch_dependents()
        lane, warp = int32(cuda.threadIdx.x) % WARP, int32(cuda.threadIdx.x) // WARP
        pair, first = int32(cuda.blockIdx.x), (int32(cuda.blockIdx.y) * WARPS + warp) * features
        inner, token = int32(out.shape[1]), pair // chosen
        expert_ids = cuda.shared.array(chosen, int32)
        if warp == 0:
            choose(logits, token, expert_ids, 0, lane)
        cuda.syncthreads()
        if first >= inner:
            return
        gate = int64(expert_ids[pair % chosen]) * 2 * inner
        starts, x_starts = cuda.local.array(rows, int64), cuda.local.array(1, int64)
        total = cuda.local.array(sums, float32)
        x_starts[0], total[rows] = int64(token) * hidden, float32(0)
        for r in range(rows):
            starts[r] = (gate + (r & 1) * inner + min(first + r // 2, inner - 1)) * hidden
            total[r] = float32(0)
        dots(x, x_starts, norm, gate_up, starts, total, lane)
        inverse_rms = float32(1)
        if norm is not None:
            inverse_rms = libdevice.rsqrtf(warp_sum(total[rows]) * float32(1 / hidden) + epsilon)
        for feature in range(features):
            value, up = warp_sum(total[2 * feature]) * inverse_rms, warp_sum(total[2 * feature + 1]) * inverse_rms
            if lane == 0 and first + feature < inner:
                out[pair, first + feature] = value * sigmoid(value) * up

    return gate_up_gemv_kernel


@functools.cache
def down_gemv_kernel(inner: int, experts: int, chosen: int, dtype: str, reads: str | CodeKind):
    """The kernel for experts with `inner` elements of `dtype` between up and down, `chosen` per token; reads: as in make_dots."""
    most = MOST_TOGETHER if isinstance(reads, str) else MOST_CODES_TOGETHER
    together = max(count for count in range(1, most + 1) if chosen % count == 0)
    dots = make_dots(inner, together, LOADS_OF_DOWN, dtype, reads, one_x=False, waits=True)
    choose, weigh = make_choice(experts, chosen), make_weights(experts, chosen)

    @kernel(launch_bounds=WARPS * WARP, dependent_launch=True, carveout=0)
    def down_gemv_kernel(activated, logits, normalized, down, residual, out):
        """activated [T * k, I], logits [T, E], down [E * H, I], residual None or as out [T, H]; grid: tokens, features."""
        griddepcontrol_launch_dependents()
        lane, warp = int32(cuda.threadIdx.x) % WARP, int32(cuda.threadIdx.x) // WARP
        token, feature = int32(cuda.blockIdx.x), int32(cuda.blockIdx.y) * WARPS + warp
        hidden = out.shape[1]
        expert_ids, weights = cuda.shared.array(chosen, int32), cuda.shared.array(chosen, float32)
        if warp == 0:
            choose(logits, token, expert_ids, 0, lane)
            weigh(logits, token, normalized, expert_ids, weights, 0, lane)
        cuda.syncthreads()
        if feature >= hidden:
            return
        starts, x_starts = cuda.local.array(together, int64), cuda.local.array(together, int64)
        total, weighted = cuda.local.array(together, float32), float32(0)
        for first in range(0, chosen, together):
            for r in range(together):
                starts[r] = (int64(expert_ids[first + r]) * hidden + feature) * inner
                x_starts[r] = (int64(token) * chosen + first + r) * inner
                total[r] = float32(0)
            dots(activated, x_starts, None, down, starts, total, lane)
            for r in range(together):
                weighted += weights[first + r] * total[r]
        weighted = warp_sum(weighted)
        if lane == 0:
            if residual is not None:
                weighted += float32(residual[token, feature])
            out[token, feature] = weighted

    return down_gemv_kernel


def gate_up_gemv(x, logits, gate_up, out, norm=None, epsilon=0.0, stream=None) -> None:
    """Write silu(x @ gate_e.T) * (x @ up_e.T) of each token's experts e into `out` [T * k, I], from the largest logit down.

    x [T, H], logits float32 [T, E] of the router, gate_up [E * 2 * I, H]: gate, then up, of each expert. norm [H] and epsilon: use the
    RMSNorm of x in place of x, in float32. x, gate_up, norm and out share one dtype: float32, float16 or bfloat16; gate_up may also be the
    Int4Weight or Fp8Weight of that matrix. Raises KernelArgumentError for anything else.
    """
    (tokens, experts, chosen), hidden, inner = check_gate_up(x, logits, gate_up, out)
    check_norm(norm, x)
    reads, gate_up = how_to_read("gate_up", gate_up, hidden, x, *(() if norm is None else (norm,)))
    chosen_kernel = gate_up_gemv_kernel(hidden, experts, chosen, x.dtype.name, reads)
    arguments = (x, norm, logits, gate_up, out, float(epsilon))
    launch(chosen_kernel, (tokens * chosen, ceil_div(inner, WARPS * features_of(reads))), WARPS * WARP, arguments, stream)


def down_gemv(activated, logits, normalized, down, out, residual=None, stream=None) -> None:
    """Write the weighted sum of each token's experts, activated @ down_e.T, into `out` [T, H], plus residual [T, H] if given.

    activated [T * k, I], from the largest logit down; logits float32 [T, E]; normalized: as in route(); down [E * H, I]. The others share
    one dtype: float32, float16 or bfloat16; residual may be `out`, and down the Int4Weight or Fp8Weight of that matrix. The kernel before
    this one on the stream may still run: it must be gate_up_gemv, or not the one that writes the logits. Raises KernelArgumentError for
    anything else.
    """
    (tokens, experts, chosen), hidden, inner = check_down(activated, logits, down, out, residual)
    reads, down = how_to_read("down", down, inner, activated)
    chosen_kernel = down_gemv_kernel(inner, experts, chosen, activated.dtype.name, reads)
    arguments = (activated, logits, int(normalized), down, residual, out)
    launch(chosen_kernel, (tokens, ceil_div(hidden, WARPS)), WARPS * WARP, arguments, stream)


def how_to_read(name: str, weight, k: int, *rows) -> tuple[str | CodeKind, object]:
    """(reads, weight) of a kernel for a weight with rows of k numbers; rows: the arrays that it multiplies."""
    if is_quantized(weight):
        kind, codes = codes_of(name, weight, k)
        check(vectors_per_row(k, *rows) > 0, f"rows beside {name} are not aligned to 16 bytes: codes are multiplied in vectors")
        return kind, codes
    return (VECTORS if vectors_per_row(k, *rows, weight) > 0 else ELEMENTS), weight
