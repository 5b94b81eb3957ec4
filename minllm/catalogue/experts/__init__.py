"""The launches of experts: T tokens of H features choose k of E experts with an inner width of I, b bytes an element."""

from minllm.catalogue.experts import benchmarks, machine_code
from minllm.catalogue.experts.around import combine, combine_norm, gated_add, gather_rows, normed_router, route, sort_by_expert
from minllm.catalogue.experts.arrays import A3B
from minllm.catalogue.experts.gemv import gathered_down, gathered_gate_up
from minllm.catalogue.experts.grouped import grouped_projection, grouped_up, wgmma_projection, wgmma_up
from minllm.catalogue.launch import each
from minllm.catalogue.rows import BFLOAT16, DTYPES, FLOAT16
from minllm.kernels.experts.grouped_gemm import TILINGS, GroupedTiling
from minllm.kernels.experts.grouped_wgmma import GroupedWgmmaTiling

compiled, measured = machine_code.compiled, benchmarks.measured
SMALL_TILING = GroupedTiling(64, 8, 4, 1, 2)


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
