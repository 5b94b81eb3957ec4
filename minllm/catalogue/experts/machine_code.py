"""The kernels of experts as they are compiled."""

import itertools

from minllm.catalogue.experts.around import combine, combine_norm, gated_add, gather_rows, normed_router, route, sort_by_expert
from minllm.catalogue.experts.arrays import A3B, CODED, labels
from minllm.catalogue.experts.gemv import gathered_down, gathered_gate_up
from minllm.catalogue.experts.grouped import grouped_projection, grouped_up, wgmma_projection, wgmma_up
from minllm.catalogue.launch import HOPPER, WIDE, MachineCode
from minllm.catalogue.matmul.quantized import targets_of
from minllm.catalogue.rows import BFLOAT16, DTYPES, FLOAT16, longest_rows
from minllm.kernels.experts.grouped_gemm import TILINGS

TENSOR_CORES = ("HMMA.16816.F32*", "LDSM.16.M88.4", "LDGSTS.E.BYPASS*128*")
WGMMA = ("HGMMA.64x*", "UTMALDG.2D*", "SYNCS.PHASECHK*", "WARPGROUP.DEPBAR*")
STREAMED = ("LDG*NA*128*",)  # weights bypass L1, because each is used once


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
