"""The norm before a mixture of experts and the router's logits of a few tokens, in one kernel.

    y[t] = x[t] / sqrt(mean(x[t]**2) + epsilon) * norm         rounded to the dtype, and kept for the experts
    logits[t, e] = y[t] . router[e]                            float32

A block takes a token and 16 experts, a warp two of these. The router's rows are on their way before x is known, because no kernel writes
them; then each block computes the norm of its token, and the first one keeps it. T tokens of H elements of b bytes: 2 T E H FLOPs; each of
the E / 16 blocks of a token reads its x and 16 rows of the router, T E H b bytes in all, from L2 but once. That is little for the tens of
tokens of a decode step; a GEMM reads less for more.

Sources: kernels/normalization/rms_norm.py, kernels/matmul/gemv/gemv.py.
"""

import functools

import numpy as np
from numba import cuda, float32, int32, uint32
from numba.cuda import libdevice

from minllm.kernels.arguments import ceil_div, check_array
from minllm.kernels.dependent_launch import wait_for_predecessors
from minllm.kernels.experts.arguments import FLOAT32
from minllm.kernels.matmul.arguments import HALF_DTYPES
from minllm.kernels.matmul.gemv.sums import DOTS
from minllm.kernels.matmul.reference import matmul_reference
from minllm.kernels.normalization.rms_norm import rms_norm_reference
from minllm.kernels.reduction import block_sum
from minllm.kernels.vector import vector_access, vectors_per_row
from minllm.ptx import load_128
from minllm.runtime.kernel import check, kernel, launch
from minllm.tiles.warp import WARP, warp_sum

WARPS, ROWS = 8, 2  # of a block, and experts per warp
THREADS = WARPS * WARP
MOST_TOKENS, MOST_HIDDEN = 32, 4096  # more tokens read too much of L2; of longer rows registers do not hold two


def normed_router_reference(x, norm, router, epsilon):
    """(normalised [T, H] in x's dtype, logits float32 [T, E]) of x [T, H], norm [H], router [E, H]."""
    normalised, _ = rms_norm_reference(x, norm, epsilon)
    return normalised, matmul_reference(normalised, router, out_dtype=np.float32)


@functools.cache
def normed_router_kernel(hidden: int, dtype: str):
    """The kernel for rows of `hidden` elements, whole vectors of `dtype`."""
    width, load, store = vector_access(dtype)
    vectors, (dot, _) = hidden // width, DOTS[dtype]
    pieces, loads = ceil_div(vectors, THREADS), ceil_div(vectors, WARP)  # vectors per thread of x, and per lane of a row of the router
    held, words_in_flight, row_words = pieces * width, ROWS * loads * 4, vectors * 4  # 32-bit words of the normalised row

    @kernel(launch_bounds=THREADS, dependent_launch=True, carveout=0)
    def normed_router_kernel(x, norm, router, normalised, logits, epsilon):
        """x, normalised [T, H], norm [H], router [E, H], logits [T, E]; grid: tokens, experts."""
        thread, lane, token = int32(cuda.threadIdx.x), int32(cuda.threadIdx.x) % WARP, int32(cuda.blockIdx.x)
        first, last = (int32(cuda.blockIdx.y) * WARPS + thread // WARP) * ROWS, int32(logits.shape[1] - 1)
        row, partials = cuda.shared.array(row_words, uint32, alignment=16), cuda.shared.array(WARP, float32)
        words, total = cuda.local.array(words_in_flight, uint32), cuda.local.array(ROWS, float32)
        values, scales = cuda.local.array(held, float32), cuda.local.array(held, float32)
        for u in range(loads):
            if lane + u * WARP < vectors:
                for r in range(ROWS):
                    w = load_128(router, min(int32(first + r), last) * hidden + (lane + u * WARP) * width)
                    for word in range(4):
                        words[(u * ROWS + r) * 4 + word] = w[word]
        for piece in range(pieces):
            if thread + piece * THREADS < vectors:
                load(norm, (thread + piece * THREADS) * width, scales, piece * width)
        wait_for_predecessors()
        squares = float32(0)
        for piece in range(pieces):
            if thread + piece * THREADS < vectors:
                load(x, token * hidden + (thread + piece * THREADS) * width, values, piece * width)
                for j in range(width):
                    squares += values[piece * width + j] * values[piece * width + j]
        inverse_rms = libdevice.rsqrtf(block_sum(squares, partials) / float32(hidden) + epsilon)
        for piece in range(pieces):
            vector = thread + piece * THREADS
            if vector < vectors:
                for j in range(width):
                    values[piece * width + j] *= inverse_rms * scales[piece * width + j]
                store(row, vector * 4, values, piece * width)
                if cuda.blockIdx.y == 0:
                    store(normalised, token * hidden + vector * width, values, piece * width)
        cuda.syncthreads()
        for r in range(ROWS):
            total[r] = float32(0)
        for u in range(loads):
            if lane + u * WARP < vectors:
                x_words = load_128(row, (lane + u * WARP) * 4)
                for r in range(ROWS):
                    for word in range(4):
                        total[r] = dot(words[(u * ROWS + r) * 4 + word], x_words[word], total[r])
        for r in range(ROWS):
            logit = warp_sum(total[r])
            if lane == 0 and first + r <= last:
                logits[token, first + r] = logit

    return normed_router_kernel


def fits(x, norm, router) -> bool:
    """Whether the kernel supports a stream x [T, H], its norm and a router [E, H]: few rows of 16 bits that are whole, aligned vectors."""
    few = x.shape[0] <= MOST_TOKENS and x.shape[1] <= MOST_HIDDEN and x.dtype in HALF_DTYPES and router.dtype == x.dtype
    return few and vectors_per_row(x.shape[1], x, norm, router) > 0


def normed_router(x, norm, router, normalised, logits, epsilon, stream=None) -> None:
    """Write the RMSNorm of x [T, H] into `normalised` [T, H], and its products with the rows of router [E, H] into logits float32 [T, E].

    norm [H]; all but the logits share one dtype, float16 or bfloat16, and fit (see `fits`). Raises KernelArgumentError for anything else.
    """
    check_array("x", x, HALF_DTYPES, tokens=None, hidden=None)
    tokens, hidden = x.shape
    check_array("norm", norm, (x.dtype,), hidden=hidden)
    check_array("router", router, (x.dtype,), experts=None, hidden=hidden)
    check_array("normalised", normalised, (x.dtype,), tokens=tokens, hidden=hidden)
    check_array("logits", logits, FLOAT32, tokens=tokens, experts=router.shape[0])
    check(
        fits(x, norm, router) and vectors_per_row(hidden, normalised) > 0,
        f"x is {x.dtype} {list(x.shape)}: up to {MOST_TOKENS} rows of whole vectors, {MOST_HIDDEN} long at most; take a norm and a GEMM",
    )
    grid = (tokens, ceil_div(router.shape[0], WARPS * ROWS))
    arguments = (x, norm, router, normalised, logits, float(epsilon))
    launch(normed_router_kernel(hidden, x.dtype.name), grid, THREADS, arguments, stream)
