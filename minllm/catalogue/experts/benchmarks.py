"""The rows of experts that `minllm bench kernels` measures, of the widths of Qwen3-30B-A3B."""

from dataclasses import replace

from minllm.catalogue.experts.around import combine, combine_norm, gather_rows, normed_router, route, sort_by_expert
from minllm.catalogue.experts.arrays import A3B, CODED, bytes_of_code, labels
from minllm.catalogue.experts.gemv import gathered_down, gathered_gate_up
from minllm.catalogue.experts.grouped import grouped_projection, grouped_up, wgmma_projection, wgmma_up
from minllm.catalogue.launch import MICROSECONDS, ONE_SET, TFLOP_S, Measured, for_tuning
from minllm.catalogue.rows import BFLOAT16

OF_MATRIX = A3B["hidden"] * A3B["inner"]  # numbers of an expert's matrix


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
