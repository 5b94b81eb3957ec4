"""The grouped GEMMs of experts for many tokens, by tensor cores and by wgmma."""

from dataclasses import replace

import numpy as np

from minllm.catalogue.experts.arrays import bytes_of_code, experts_of, numbers_of, sorted_pairs, stacked
from minllm.catalogue.launch import Launch, Moved, calls, describes
from minllm.catalogue.rows import BFLOAT16
from minllm.kernels.experts.grouped_gemm import grouped_down, grouped_gate_up
from minllm.kernels.experts.grouped_wgmma import PIECE, wgmma_down, wgmma_gate_up
from minllm.kernels.experts.reference import activated_reference, projected_reference

ROUNDED_WEIGHT = 2.0**-8  # error of rounding a scale and a weight to bfloat16, relative to the largest result


def moved_by_grouped(x, rows, hidden, inner, dtype, tiling, form=""):
    """A function of a grouped GEMM's arrays that returns its Moved; x: its name of the input; rows: of weight per expert."""
    b, k = dtype.itemsize, hidden if rows == 2 * inner else inner
    of_expert = int(rows * k * bytes_of_code(form, dtype))

    def moved(pairs, offsets, **arrays):
        if tiling is None or k % 64 or rows % tiling.rows:
            return {}
        counts = np.diff(offsets)
        tiles = int(np.sum(-(-counts // tiling.tokens)))
        asked = dict(x=rows // tiling.rows * tiles * tiling.tokens * k * b, weight=tiles * of_expert)
        touched = dict(x=len(arrays[x]) * k * b, weight=np.count_nonzero(counts) * of_expert)
        work = 2 * tiles * tiling.tokens * rows * k
        return dict(grouped_gemm_kernel=Moved(asked | dict(out=len(pairs) * arrays["out"].shape[1] * b), touched, work))

    return moved


@describes
def grouped_up(tokens, experts, chosen, hidden, inner, dtype=BFLOAT16, tiling=None, form=""):
    """Gate and up of each expert's tokens. form: the weights' format."""

    def arrays(noise):
        pairs, offsets = sorted_pairs(noise, tokens, experts, chosen)
        return dict(
            x=noise.array((tokens, hidden), dtype), pairs=pairs, offsets=offsets,
            gate_up=stacked(noise, experts * 2 * inner, hidden, dtype, form), out=noise.unwritten((tokens * chosen, inner), dtype),
        )  # fmt: skip

    return Launch(
        arrays,
        call=calls(grouped_gate_up, tiling=tiling),
        reference=lambda x, pairs, offsets, gate_up, out: dict(
            out=activated_reference(x[pairs // chosen], experts_of(offsets), numbers_of(gate_up, form).reshape(experts, -1, hidden))
        ),
        moved=moved_by_grouped("x", 2 * inner, hidden, inner, dtype, tiling, form),
        indices=("pairs", "offsets", "scales"),
        slack=ROUNDED_WEIGHT if form else None,
    )


@describes
def grouped_projection(tokens, experts, chosen, hidden, inner, dtype=BFLOAT16, tiling=None, form=""):
    """Down of each expert's tokens, into the order of tokens. form: the weights' format."""

    def arrays(noise):
        pairs, offsets = sorted_pairs(noise, tokens, experts, chosen)
        return dict(
            activated=noise.array((len(pairs), inner), dtype), pairs=pairs, offsets=offsets,
            down=stacked(noise, experts * hidden, inner, dtype, form), out=noise.unwritten((len(pairs), hidden), dtype),
        )  # fmt: skip

    def reference(activated, pairs, offsets, down, out):
        projected = np.empty_like(out)
        projected[pairs] = projected_reference(activated, experts_of(offsets), numbers_of(down, form).reshape(experts, hidden, inner))
        return dict(out=projected)

    return Launch(
        arrays,
        call=calls(grouped_down, tiling=tiling),
        reference=reference,
        moved=moved_by_grouped("activated", hidden, hidden, inner, dtype, tiling, form),
        indices=("pairs", "offsets", "scales"),
        slack=ROUNDED_WEIGHT if form else None,
    )


def moved_by_wgmma(rows, k, dtype, tiling):
    """moved_by_grouped for the kernel on Hopper, which divides an expert's pairs evenly among tiles and loads x by TMA."""

    def moved(pairs, offsets, **arrays):
        if tiling is None or k % 64 or rows % tiling.rows:
            return {}
        b, tiles = dtype.itemsize, []
        for start, end in zip(offsets[:-1], offsets[1:], strict=True):
            each = -(-(end - start) // max(1, -(-(end - start) // tiling.tokens)) // 8) * 8
            tiles += [(first, -(-min(each, end - first) // PIECE) * PIECE) for first in range(start, end, max(each, 1))]
        loaded, multiplied = sum(min(n, len(pairs) - first) for first, n in tiles), sum(n for _, n in tiles)
        asked = dict(x_map=rows // tiling.rows * loaded * k * b, weight_map=len(tiles) * rows * k * b)
        touched = dict(x_map=len(pairs) * k * b, weight_map=np.count_nonzero(np.diff(offsets)) * rows * k * b)
        work = 2 * multiplied * rows * k
        return dict(grouped_wgmma_kernel=Moved(asked | dict(out=len(pairs) * arrays["out"].shape[1] * b), touched, work))

    return moved


@describes
def wgmma_up(tokens, experts, chosen, hidden, inner, dtype=BFLOAT16, tiling=None):
    """Gate and up of each expert's tokens, on Hopper, whose rows of x are in the order of experts."""
    given = grouped_up(tokens, experts, chosen, hidden, inner, dtype)

    def arrays(noise):
        found = given.arrays(noise)
        return found | dict(x=found["x"][found["pairs"] // chosen])

    return replace(
        given,
        arrays=arrays,
        call=calls(wgmma_gate_up, tiling=tiling),
        reference=lambda pairs, **arrays: given.reference(pairs=np.arange(len(pairs)) * chosen, **arrays),
        moved=moved_by_wgmma(2 * inner, hidden, dtype, tiling),
    )


@describes
def wgmma_projection(tokens, experts, chosen, hidden, inner, dtype=BFLOAT16, tiling=None):
    """Down of each expert's tokens, on Hopper."""
    given = grouped_projection(tokens, experts, chosen, hidden, inner, dtype)
    moved = moved_by_wgmma(hidden, inner, dtype, tiling)
    return replace(given, call=calls(wgmma_down, tiling=tiling), moved=moved)
