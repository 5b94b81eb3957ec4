"""The launches of experts: T tokens of H features choose k of E experts with an inner width of I, b bytes an element."""

import itertools
from dataclasses import replace

import numpy as np

from minllm.catalogue.launch import (
    MICROSECONDS,
    ONE_SET,
    TFLOP_S,
    WIDE,
    Launch,
    MachineCode,
    Measured,
    Moved,
    beside,
    calls,
    describes,
    each,
    for_tuning,
    returns,
)
from minllm.catalogue.matmul.quantized import FORMATS, targets_of, weight_of
from minllm.catalogue.rows import BFLOAT16, DTYPES, FLOAT16, FLOAT32, longest_rows
from minllm.kernels.arguments import ceil_div
from minllm.kernels.experts.combine import combine as launch_combine
from minllm.kernels.experts.combine_norm import combine_norm as launch_combine_norm
from minllm.kernels.experts.counting_sort import sort_by_expert as launch_sort
from minllm.kernels.experts.counting_sort import sort_by_expert_reference
from minllm.kernels.experts.gated_add import gated_add as launch_gated_add
from minllm.kernels.experts.gather_gemv import FEATURES, down_gemv, gate_up_gemv
from minllm.kernels.experts.gather_rows import gather_rows as launch_gather_rows
from minllm.kernels.experts.grouped_gemm import TILINGS, GroupedTiling, grouped_down, grouped_gate_up
from minllm.kernels.experts.grouped_wgmma import PIECE, GroupedWgmmaTiling, wgmma_down, wgmma_gate_up
from minllm.kernels.experts.normed_router import ROWS as ROWS_OF_ROUTER
from minllm.kernels.experts.normed_router import WARPS as WARPS_OF_ROUTER
from minllm.kernels.experts.normed_router import normed_router as launch_normed_router
from minllm.kernels.experts.reference import activated_reference, combine_reference, projected_reference, route_reference
from minllm.kernels.experts.routing import route as launch_route
from minllm.kernels.normalization.rms_norm import rms_norm_reference

A3B = dict(experts=128, chosen=8, hidden=2048, inner=768)  # Qwen3-30B-A3B
OF_MATRIX = A3B["hidden"] * A3B["inner"]  # numbers of an expert's matrix
EPSILON = 1e-5
CODED = ("int4/128", "fp8")  # formats of quantised experts
ROUNDED_WEIGHT = 2.0**-8  # error of rounding a scale and a weight to bfloat16, relative to the largest result
TENSOR_CORES = ("HMMA.16816.F32*", "LDSM.16.M88.4", "LDGSTS.E.BYPASS*128*")
HOPPER, WGMMA = ((9, 0),), ("HGMMA.64x*", "UTMALDG.2D*", "SYNCS.PHASECHK*", "WARPGROUP.DEPBAR*")
STREAMED = ("LDG*NA*128*",)  # weights bypass L1, because each is used once
SMALL_TILING = GroupedTiling(64, 8, 4, 1, 2)


def choices(noise, tokens, experts, chosen):
    """Different experts for each token, int32 [T, k]; half of the experts are chosen more often."""
    order = noise.random.random((tokens, experts))
    order[:, ::2] *= 0.5
    return order.argsort(axis=1)[:, :chosen].astype(np.int32)


def sorted_pairs(noise, tokens, experts, chosen):
    """(pairs, offsets) of such choices."""
    return sort_by_expert_reference(choices(noise, tokens, experts, chosen), experts)


def stacked(noise, rows, k, dtype, form):
    """A weight of `rows` rows of k numbers: an array of `dtype`, or in a format."""
    if form:
        return weight_of(noise, form, rows, k)
    return noise.array((rows, k), dtype, k**-0.5)


def numbers_of(weight, form):
    """A weight as floats."""
    return FORMATS[form].dequantize(weight) if form else weight


def bytes_of_code(form, dtype):
    """Bytes per number of weight, without scales."""
    return FORMATS[form].matrix_itemsize if form else dtype.itemsize


def experts_of(offsets):
    """The expert of each sorted pair."""
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def router_logits(noise, tokens, experts, special=False):
    """Logits [T, E]; special: with equal ones, NaN and infinities."""
    logits = noise.array((tokens, experts), FLOAT32)
    if special:
        logits[0], logits[-1, ::2] = np.round(logits[0]), np.nan
        logits[tokens // 2, :2] = -np.inf
    return logits


def touched_by(logits, chosen):
    """The number of different experts that tokens choose."""
    return len(np.unique(route_reference(logits, chosen, True)[0]))


@describes
def normed_router(tokens, experts, hidden, dtype=BFLOAT16):
    """The norm before the experts and the router's logits."""
    size, row, blocks = tokens * hidden * dtype.itemsize, hidden * dtype.itemsize, ceil_div(experts, WARPS_OF_ROUTER * ROWS_OF_ROUTER)
    of_router = blocks * WARPS_OF_ROUTER * ROWS_OF_ROUTER * row  # the last block's warps read the last row again
    asked = dict(x=blocks * size, norm=blocks * size, router=tokens * of_router, normalised=size, logits=4 * tokens * experts)
    return Launch(
        arrays=lambda noise: dict(
            x=noise.array((tokens, hidden), dtype), norm=noise.array((hidden,), dtype),
            router=noise.array((experts, hidden), dtype, hidden**-0.5), normalised=noise.unwritten((tokens, hidden), dtype),
            logits=noise.unwritten((tokens, experts), FLOAT32),
        ),
        **beside(launch_normed_router, "normalised", "logits", epsilon=EPSILON),
        moved=Moved(asked, dict(x=size, norm=row, router=experts * row)),
    )  # fmt: skip


@describes
def route(tokens, experts, chosen, normalized=True, special=False):
    """The router's choice; special: with equal logits, NaN and infinities."""

    def arrays(noise):
        empty = noise.unwritten((tokens, chosen), np.int32), noise.unwritten((tokens, chosen), FLOAT32)
        return dict(logits=router_logits(noise, tokens, experts, special), expert_ids=empty[0], weights=empty[1])

    return Launch(
        arrays,
        call=calls(launch_route, normalized=normalized),
        reference=returns(("expert_ids", "weights"), route_reference, per_token=chosen, normalized=normalized),
        moved=Moved(dict(weights=4 * tokens * chosen)),  # and at least 4 T E bytes of logits, 4 T k of expert_ids, which are read again
        indices=("logits", "expert_ids"),
        rows=("logits", "expert_ids", "weights"),
        exact=("expert_ids",),
    )


@describes
def sort_by_expert(tokens, experts, chosen):
    """The pairs in the order of experts."""
    pairs = tokens * chosen

    def arrays(noise):
        empty = noise.unwritten((pairs,), np.int32), noise.unwritten((experts + 1,), np.int32)
        return dict(expert_ids=choices(noise, tokens, experts, chosen), pairs=empty[0], offsets=empty[1])

    return Launch(
        arrays,
        **beside(launch_sort, "pairs", "offsets", experts=experts),
        moved=Moved(dict(expert_ids=8 * experts * pairs, pairs=4 * pairs, offsets=4 * (experts + 1)), dict(expert_ids=4 * pairs)),
        exact=True,
    )


@describes
def gathered_gate_up(tokens, experts, chosen, hidden, inner, dtype=BFLOAT16, norm=False, special=False, form=""):
    """Gate and up of each token's experts, by a GEMV per pair. norm: of the RMSNorm of x; form: the weights' format."""
    b, pairs, name = dtype.itemsize, tokens * chosen, "gate_up.codes" if form else "gate_up"
    of_feature, features = int(2 * hidden * bytes_of_code(form, dtype)), 1 if form else FEATURES
    of_expert, warps = inner * of_feature, pairs * ceil_div(inner, features)  # warps that read: the last of a pair may read a feature twice

    def moved(logits, **arrays):
        asked = {"x": warps * hidden * b, name: warps * features * of_feature, "out": pairs * inner * b}
        touched = {"x": tokens * hidden * b, name: touched_by(logits, chosen) * of_expert}
        asked, touched = (asked | dict(norm=asked["x"]), touched | dict(norm=hidden * b)) if norm else (asked, touched)
        return dict(gate_up_gemv_kernel=Moved(asked, touched)) if hidden * b % 16 == 0 else {}

    def arrays(noise):
        return dict(
            x=noise.array((tokens, hidden), dtype), norm=noise.array((hidden,), dtype) if norm else None,
            logits=router_logits(noise, tokens, experts, special),
            gate_up=stacked(noise, experts * 2 * inner, hidden, dtype, form), out=noise.unwritten((pairs, inner), dtype),
        )  # fmt: skip

    def reference(x, norm, logits, gate_up, out):
        if norm is not None:
            x = rms_norm_reference(x.astype(np.float32), norm.astype(np.float32), EPSILON)[0]
        expert_ids, _ = route_reference(logits, chosen, True)
        rows, stack = np.repeat(x, chosen, axis=0), numbers_of(gate_up, form).reshape(experts, -1, hidden)
        return dict(out=activated_reference(rows, expert_ids.reshape(-1), stack).astype(dtype))

    indices = ("logits", "gate_up.scales")
    return Launch(arrays, call=calls(gate_up_gemv, epsilon=EPSILON), reference=reference, moved=moved, indices=indices)


@describes
def gathered_down(tokens, experts, chosen, hidden, inner, dtype=BFLOAT16, residual=False, normalized=True, form=""):
    """The weighted sum of each token's experts, by a GEMV per token. form: the weights' format."""
    b, pairs, name = dtype.itemsize, tokens * chosen, "down.codes" if form else "down"
    of_expert = int(hidden * inner * bytes_of_code(form, dtype))

    def arrays(noise):
        return dict(
            activated=noise.array((pairs, inner), dtype), logits=router_logits(noise, tokens, experts),
            down=stacked(noise, experts * hidden, inner, dtype, form),
            residual=noise.array((tokens, hidden), dtype) if residual else None, out=noise.unwritten((tokens, hidden), dtype),
        )  # fmt: skip

    def reference(activated, logits, down, residual, out):
        expert_ids, weights = route_reference(logits, chosen, normalized)
        outputs = projected_reference(activated, expert_ids.reshape(-1), numbers_of(down, form).reshape(experts, hidden, inner))
        return dict(out=combine_reference(outputs, weights, residual).astype(dtype))

    def moved(logits, **arrays):
        asked = {"activated": pairs * hidden * inner * b, name: pairs * of_expert, "out": tokens * hidden * b}
        asked |= dict(residual=tokens * hidden * b) if residual else {}
        touched = {"activated": pairs * inner * b, name: touched_by(logits, chosen) * of_expert}
        return dict(down_gemv_kernel=Moved(asked, touched)) if inner * b % 16 == 0 else {}

    indices = ("logits", "down.scales")
    return Launch(arrays, call=calls(down_gemv, normalized=normalized), reference=reference, moved=moved, indices=indices)


@describes
def gather_rows(tokens, experts, chosen, hidden, dtype=BFLOAT16):
    """The rows of x in the order of experts."""
    size = tokens * chosen * hidden * dtype.itemsize

    def arrays(noise):
        pairs, _ = sorted_pairs(noise, tokens, experts, chosen)
        return dict(x=noise.array((tokens, hidden), dtype), pairs=pairs, out=noise.unwritten((len(pairs), hidden), dtype))

    return Launch(
        arrays,
        **beside(launch_gather_rows, "out"),
        moved=Moved(dict(x=size, out=size), dict(x=size // chosen)),
        indices=("pairs",),
        exact=True,
    )


def moved_by_grouped(x, weight, out, rows, hidden, inner, dtype, tiling, form=""):
    """A function of a grouped GEMM's arrays that returns its Moved; x, weight, out: their names; rows: of weight per expert."""
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
        return dict(grouped_gemm_kernel=Moved(asked | dict(out=len(pairs) * arrays[out].shape[1] * b), touched, work))

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
        moved=moved_by_grouped("x", "gate_up", "out", 2 * inner, hidden, inner, dtype, tiling, form),
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
        moved=moved_by_grouped("activated", "down", "out", hidden, hidden, inner, dtype, tiling, form),
        indices=("pairs", "offsets", "scales"),
        slack=ROUNDED_WEIGHT if form else None,
    )


def moved_by_wgmma(weight, out, rows, k, dtype, tiling):
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
        return dict(grouped_wgmma_kernel=Moved(asked | dict(out=len(pairs) * arrays[out].shape[1] * b), touched, work))

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
        moved=moved_by_wgmma("gate_up", "out", 2 * inner, hidden, dtype, tiling),
    )


@describes
def wgmma_projection(tokens, experts, chosen, hidden, inner, dtype=BFLOAT16, tiling=None):
    """Down of each expert's tokens, on Hopper."""
    given = grouped_projection(tokens, experts, chosen, hidden, inner, dtype)
    moved = moved_by_wgmma("down", "out", hidden, inner, dtype, tiling)
    return replace(given, call=calls(wgmma_down, tiling=tiling), moved=moved)


@describes
def combine(tokens, chosen, hidden, dtype=BFLOAT16, residual=False):
    """The weighted sum of the outputs of each token's experts."""
    size = tokens * hidden * dtype.itemsize

    def arrays(noise):
        return dict(
            outputs=noise.array((tokens * chosen, hidden), dtype), weights=np.abs(noise.array((tokens, chosen), FLOAT32)),
            residual=noise.array((tokens, hidden), dtype) if residual else None, out=noise.unwritten((tokens, hidden), dtype),
        )  # fmt: skip

    return Launch(
        arrays,
        call=calls(launch_combine),
        reference=lambda outputs, weights, residual, out: dict(out=combine_reference(outputs, weights, residual).astype(dtype)),
        moved=Moved(dict(outputs=chosen * size, out=size) | (dict(residual=size) if residual else {})),
        indices=("weights",),
        slack=3e-6,
    )


@describes
def combine_norm(tokens, chosen, hidden, dtype=BFLOAT16):
    """That sum added to the residual stream, and the stream's RMSNorm."""
    size, row = tokens * hidden * dtype.itemsize, hidden * dtype.itemsize
    return Launch(
        arrays=lambda noise: dict(
            outputs=noise.array((tokens * chosen, hidden), dtype), weights=np.abs(noise.array((tokens, chosen), FLOAT32)),
            residual=noise.array((tokens, hidden), dtype), norm=noise.array((hidden,), dtype), out=noise.unwritten((tokens, hidden), dtype),
        ),
        **beside(launch_combine_norm, "out", "residual", epsilon=EPSILON),
        moved=Moved(dict(outputs=chosen * size, residual=2 * size, norm=size, out=size), dict(norm=row)),
        indices=("weights",),
        slack=3e-6,
    )  # fmt: skip


@describes
def gated_add(tokens, hidden, dtype=BFLOAT16):
    """A sum of which one part passes a gate."""
    size = tokens * hidden * dtype.itemsize
    return Launch(
        arrays=lambda noise: dict(
            x=noise.array((tokens, hidden), dtype), y=noise.array((tokens, hidden), dtype), gate=noise.array((tokens, 1), dtype, 20),
            out=noise.unwritten((tokens, hidden), dtype),
        ),
        **beside(launch_gated_add, "out"),
        moved=Moved(dict(x=size, y=size, out=size)),
        indices=("gate",),
        rows=("x", "y", "gate", "out"),
    )  # fmt: skip


def compiled():
    """Launches of Qwen3-30B-A3B: GEMVs that hold many loads in flight, and tiles on tensor cores."""
    for dtype in (BFLOAT16, FLOAT16):
        yield MachineCode(f"experts/normed_router/{dtype}", normed_router(16, 128, 2048, dtype), blocks=2, contains=WIDE)
    yield MachineCode("experts/route", route(1, 128, 8), blocks=8, contains=("*REDUX.MAX*",))
    yield MachineCode("experts/sort_by_expert", sort_by_expert(64, 128, 8), blocks=4)
    yield from compiled_products("")
    for dtype in DTYPES:
        for name, norm in (("", False), ("_with_norm", True)):
            launch = gathered_gate_up(1, 5, 2, 19, 7, dtype, norm)
            yield MachineCode(f"experts/gate_up_gemv/elements{name}/{dtype}", launch, blocks=4)
        yield MachineCode(f"experts/down_gemv/elements/{dtype}", gathered_down(1, 5, 2, 19, 7, dtype), blocks=4)
        yield MachineCode(f"experts/combine/vectors/{dtype}", combine(64, 8, 2048, dtype), blocks=16, contains=WIDE)
        yield MachineCode(f"experts/combine/elements/{dtype}", combine(2, 3, 19, dtype), blocks=16)
        yield MachineCode(f"experts/gated_add/vectors/{dtype}", gated_add(64, 2048, dtype), blocks=16, contains=WIDE)
        yield MachineCode(f"experts/gated_add/elements/{dtype}", gated_add(2, 19, dtype), blocks=16)
    for dtype in (BFLOAT16, FLOAT16):
        for pieces, length in longest_rows(dtype):
            launch = combine_norm(64, 8, length, dtype)
            yield MachineCode(f"experts/combine_norm/{pieces}/{dtype}", launch, blocks=1, contains=WIDE)
        yield MachineCode(f"experts/gather_rows/{dtype}", gather_rows(2048, 128, 8, 2048, dtype), blocks=12, contains=WIDE)
        for name, describe in (("wgmma_gate_up", wgmma_up), ("wgmma_down", wgmma_projection)):
            launch = describe(2048, **A3B, dtype=dtype)
            yield MachineCode(f"experts/{name}/{dtype}", launch, blocks=1, contains=WGMMA, targets=HOPPER)
    for form in CODED:
        yield from compiled_products(form)


def compiled_products(form):
    """GEMVs and grouped GEMMs with weights in a format, or in the dtype of x."""
    (name, _), given, gpus = labels(form), A3B | (dict(form=form) if form else {}), dict(targets=targets_of(form))
    down = dict(blocks=4, contains=STREAMED) if form else dict(blocks=2, contains=(*STREAMED, "*REDUX.MAX*"))
    for dtype in DTYPES:
        for fused in (False, True):
            launch, kind = gathered_gate_up(1, **given, dtype=dtype, norm=fused), f"vectors{'_with_norm' * fused}"
            yield MachineCode(f"experts/gate_up_gemv{name}/{kind}/{dtype}", launch, blocks=4, contains=STREAMED, **gpus)
            launch, kind = gathered_down(1, **given, dtype=dtype, residual=fused), f"vectors{'_with_residual' * fused}"
            yield MachineCode(f"experts/down_gemv{name}/{kind}/{dtype}", launch, **down, **gpus)
    for dtype, (tokens, tiling) in itertools.product((BFLOAT16, FLOAT16), TILINGS.items()):
        blocks = 1 if form or tokens >= 64 else 2
        for stage, describe in (("gate_up", grouped_up), ("down", grouped_projection)):
            launch, sizes = describe(tokens, **given, dtype=dtype, tiling=tiling), f"{tiling.rows}x{tiling.tokens}"
            yield MachineCode(f"experts/grouped_{stage}{name}/{sizes}/{dtype}", launch, blocks, TENSOR_CORES, **gpus)


def small_with_codes():
    """Odd sizes of the same: rows shorter and longer than a warp's loads, columns beyond the last tile, half a step at the end."""
    for form, hidden, inner in (("int4/32", 96, 1056), ("int4/128", 1152, 128), ("fp8", 528, 48)):
        for dtype in DTYPES:
            yield gathered_gate_up(2, 4, 3, hidden, 5, dtype, norm=dtype == BFLOAT16, form=form)
            yield gathered_down(2, 4, 2, 5, inner, dtype, residual=dtype == BFLOAT16, form=form)
    for form, hidden, inner in (("int4/32", 96, 32), ("int4/128", 128, 256), ("fp8", 80, 48)):
        for dtype in (BFLOAT16, FLOAT16):
            yield grouped_up(11, 3, 2, hidden, inner, dtype, SMALL_TILING, form)
            yield grouped_projection(11, 3, 2, 72, inner, dtype, SMALL_TILING, form)
        yield grouped_up(5, 3, 2, hidden, 40, tiling=TILINGS[16]._replace(stages=2), form=form)


def small():
    """Odd sizes: experts without tokens, more pairs than a tile holds, columns beyond the last tile."""
    yield from each(normed_router, ((3, 5, 72), (2, 17, 520), (1, 33, 2056)), dtype=(BFLOAT16, FLOAT16))
    yield from each(route, ((3, 9, 3), (2, 130, 8), (5, 4, 1), (1, 32, 32)), normalized=(True, False))
    yield route(4, 37, 5, special=True)
    yield from each(sort_by_expert, ((1, 9, 3), (70, 7, 4), (3, 34, 8), (33, 1, 1)))
    yield from each(gathered_gate_up, ((2, 5, 2, 264, 5), (1, 4, 3, 19, 7), (1, 3, 2, 520, 4)), dtype=DTYPES)
    yield from each(gathered_gate_up, ((2, 5, 2, 264, 5), (1, 4, 3, 19, 7)), dtype=DTYPES, norm=[True])
    yield from each(gathered_down, ((2, 5, 3, 5, 264), (1, 4, 2, 7, 19), (1, 9, 8, 3, 40)), dtype=DTYPES)
    yield gathered_gate_up(4, 37, 5, 264, 5, special=True)
    yield gathered_down(2, 5, 3, 5, 264, residual=True)
    yield gathered_down(2, 70, 3, 5, 264, normalized=False)
    yield from each(grouped_up, ((3, 5, 3, 72, 40), (21, 4, 2, 136, 24)), dtype=(BFLOAT16, FLOAT16))
    yield from each(grouped_projection, ((3, 5, 3, 72, 40), (21, 4, 2, 136, 24)), dtype=(BFLOAT16, FLOAT16))
    yield grouped_up(11, 3, 2, 64, 32, tiling=SMALL_TILING)
    yield grouped_projection(11, 3, 2, 64, 64, tiling=SMALL_TILING)
    for tiling in TILINGS.values():
        yield grouped_up(9, 3, 2, 72, 40, tiling=tiling._replace(stages=2))
    yield from each(gather_rows, ((3, 5, 2, 72), (1, 4, 3, 2056)), dtype=DTYPES)
    for dtype in (BFLOAT16, FLOAT16):
        yield wgmma_up(40, 3, 2, 72, 40, dtype, GroupedWgmmaTiling(1, 64, 2))
        yield wgmma_projection(40, 3, 2, 40, 72, dtype, GroupedWgmmaTiling(1, 64, 2))
    yield wgmma_up(330, 2, 1, 64, 64, tiling=GroupedWgmmaTiling(1, 96, 2))
    yield wgmma_projection(330, 2, 1, 64, 128, tiling=GroupedWgmmaTiling(1, 96, 2))
    yield wgmma_up(50, 4, 2, 136, 136, tiling=GroupedWgmmaTiling(2, 32, 3))
    yield from each(combine, ((3, 8, 72), (2, 3, 19), (1, 1, 520)), dtype=DTYPES, residual=(False, True))
    yield from each(combine_norm, ((3, 8, 72), (2, 1, 520), (1, 3, 8)), dtype=(BFLOAT16, FLOAT16))
    yield from each(gated_add, ((3, 72), (2, 19), (1, 520)), dtype=DTYPES)
    yield from small_with_codes()


def large():
    """The widths of Qwen3-30B-A3B with fewer experts, for a prompt and for decoding a batch."""
    few = A3B | dict(experts=16)
    for tokens in (1, 4):
        yield gathered_gate_up(tokens, **few, norm=True)
        yield gathered_down(tokens, **few, residual=True)
    for tokens in (8, 32):
        yield normed_router(tokens, 128, 2048)
    for tokens in (8, 16, 64, 300, 1000):
        yield route(tokens, 128, 8)
        yield sort_by_expert(tokens, 128, 8)
        yield grouped_up(tokens, **few)
        yield grouped_projection(tokens, **few)
        yield wgmma_up(tokens, **few)
        yield wgmma_projection(tokens, **few)
        yield combine(tokens, 8, 2048)
        yield combine_norm(tokens, 8, 2048)


def measured_gemv(variant, describe, matrices, form):
    """The row of one token's GEMV, which reads `matrices` matrices of eight of 32 experts."""
    moved = int(8 * matrices * OF_MATRIX * bytes_of_code(form, BFLOAT16))
    name, of_form = labels(form)
    case = f"1 token, 8 of 32 experts, 2048 x 768, {of_form}"
    return Measured(describe(1, **A3B | dict(experts=32), form=form), variant + name, case, work=moved, set_bytes=moved)


def measured_grouped(variant, describe, matrices, tokens, form):
    """The row of a grouped GEMM of 32 experts: bytes of all for a decode step of 32 tokens, FLOPs for a prompt of 512."""
    moved = int(32 * matrices * OF_MATRIX * bytes_of_code(form, BFLOAT16))
    name, of_form = labels(form)
    of_work = dict(work=moved) if tokens == 32 else dict(unit=TFLOP_S, work=2 * tokens * 8 * matrices * OF_MATRIX)
    case = f"{tokens} tokens, 8 of 32 experts, 2048 x 768, {of_form}"
    return Measured(describe(tokens, **A3B | dict(experts=32), form=form), variant + name, case, **of_work, set_bytes=moved)


def labels(form):
    """(end of a variant's name, name in a case) of a format of weights; as those of MachineCode."""
    return (f"_{form.partition('/')[0]}", form.replace("/", " in groups of ")) if form else ("", "bfloat16")


def measured():
    """The widths of Qwen3-30B-A3B: one token, 32 whose experts have eight pairs each, and prompts that give each expert 128."""
    for form in ("", *CODED):
        for variant, describe, matrices in (("gate_up_gemv", gathered_gate_up, 2), ("down_gemv", gathered_down, 1)):
            yield replace(measured_gemv(variant, describe, matrices, form), for_tuning=variant == "down_gemv")
        for variant, describe, matrices in (("grouped_gate_up", grouped_up, 2), ("grouped_down", grouped_projection, 1)):
            for tokens in (32, 512):
                yield replace(measured_grouped(variant, describe, matrices, tokens, form), for_tuning=tokens == 512 or bool(form))
    case, pairs = "2048 tokens, 8 of 128 experts, 2048 x 768, bfloat16", 2048 * 8
    for variant, describe, matrices in (("wgmma_gate_up", wgmma_up, 2), ("wgmma_down", wgmma_projection, 1)):
        work, set_bytes = 2 * pairs * matrices * OF_MATRIX, 128 * matrices * OF_MATRIX * 2
        launch, peers = describe(2048, **A3B), ("_grouped_mm", "cuBLAS, expert by expert")
        yield Measured(launch, variant, case, unit=TFLOP_S, work=work, set_bytes=set_bytes, peers=peers)
    yield from for_tuning(measured_around())


def measured_around():
    """The kernels around the GEMMs: of rows, of the router, of the choice and the sort."""
    yield Measured(gather_rows(2048, 128, 8, 2048), "gather_rows", "2048 tokens, 8 of 128 experts, 2048 features, bfloat16")
    yield Measured(combine(2048, 8, 2048), "combine", "2048 tokens, 8 experts each, 2048 features, bfloat16")
    yield Measured(combine_norm(2048, 8, 2048), "combine_norm", "2048 tokens, 8 experts each, 2048 features, bfloat16")
    yield Measured(normed_router(16, 128, 2048), "normed_router", "16 tokens, 128 experts, 2048 features, bfloat16", unit=MICROSECONDS)
    for tokens in (64, 2048):
        case = f"{tokens} tokens, 8 of 128 experts"
        for variant, describe in (("route", route), ("sort_by_expert", sort_by_expert)):
            yield Measured(describe(tokens, 128, 8), variant, case, unit=MICROSECONDS, work=0, set_bytes=ONE_SET)
