"""Residual windows: quantising groups of recent tokens, relative to the rate of a copy, and advancing all windows."""

import numpy as np

from minllm.bench.kernel_case import BFLOAT16, FLOAT32, MICROSECONDS, KernelCase, Prepared
from minllm.bench.kernel_cases.glue import Glue, glue_case
from minllm.bench.kernel_cases.quantized_kv import ITEM, rows_of
from minllm.kernels.kv.move_window import move_window, window_of_rows
from minllm.kernels.kv.quantize_groups import quantize_groups
from minllm.kernels.quantization.cache import allocate
from minllm.kernels.quantization.formats import kv_format
from minllm.kernels.quantization.groups import TOKEN_GROUP
from minllm.kernels.quantization.reference import quantize_by_channel

FORM = "kivi_int4"


def mismatches(found: np.ndarray, expected: np.ndarray) -> float:
    """The share of elements that differ from the reference, 0 to 1."""
    return float((found != expected).mean())


def quantize_groups_case(groups: int = 2048, kv_heads=8, head_dim=128) -> KernelCase:
    """Quantising a prompt of `groups` whole groups; the codes of the keys must equal the reference's bit for bit."""
    form, tokens = kv_format(FORM, head_dim), groups * TOKEN_GROUP

    def make(ops, noise):
        recent = [noise.array((groups, TOKEN_GROUP, kv_heads, head_dim), BFLOAT16) for _ in range(2)]
        caches = [
            allocate(form, groups, TOKEN_GROUP, kv_heads=kv_heads, zeros=ops.zeros, array=ops.array, by_channel=by_channel)
            for by_channel in (True, False)
        ]
        table, recent_table = (noise.random.permutation(groups).astype(np.int32)[None] for _ in range(2))
        batch = (np.array([0, tokens], np.int32), np.array([tokens], np.int32), table, np.array([tokens], np.int32), recent_table)
        arrays = [*map(ops.array, recent), *caches, *map(ops.array, batch)]

        def expected(sample):
            of_groups = recent[0][recent_table[0, sample // TOKEN_GROUP]].astype(np.float32)  # [samples, TOKEN_GROUP, kv_heads, head_dim]
            codes, _ = quantize_by_channel(of_groups.swapaxes(1, 2), form)
            return codes[np.arange(len(sample)), :, sample % TOKEN_GROUP].reshape(len(sample) * kv_heads, -1)

        def rows(sample):
            return rows_of(table[0, sample // TOKEN_GROUP] * TOKEN_GROUP + sample % TOKEN_GROUP, kv_heads, TOKEN_GROUP)

        return Glue(lambda: quantize_groups(*arrays, max_query_len=tokens, stream=ops.stream), caches[0].codes, expected, rows)

    moved = 2 * tokens * kv_heads * (head_dim * ITEM + form.bytes_per_head)
    return glue_case(
        "kv", "quantize_groups", f"{tokens}x{kv_heads}x{head_dim}, {FORM}", tokens=tokens, moved=moved, make=make, tolerance=0.0
    )


def move_window_case(rows: int = 64, window: int = 128) -> KernelCase:
    """Advancing all windows of a batch: with a few bytes per row, its time is that of a launch."""

    def prepare(ops, noise, sets):
        positions, rings = noise.random.integers(0, 9999, rows).astype(np.int32), np.arange(rows, dtype=np.int32)
        expected = window_of_rows(positions, positions + 1, rings, window)
        given = [ops.array(array) for array in (positions, positions + np.int32(1), rings)]
        found = [ops.array(np.zeros_like(array)) for array in expected]
        return Prepared(
            [lambda: move_window(*given, *found, window, ops.stream)],
            [],
            result=lambda: np.concatenate([ops.to_host(array).reshape(-1) for array in found]),
            error=lambda out: mismatches(out, np.concatenate([array.reshape(-1) for array in expected])),
        )

    set_bytes = 2**40  # makes one set of inputs enough; the kernel reads almost nothing
    return KernelCase(
        "kv",
        "kv",
        f"{rows} rows, {window} tokens",
        variant="move_window",
        dtype=FLOAT32,
        unit=MICROSECONDS,
        work=0,
        set_bytes=set_bytes,
        prepare=prepare,
        tolerance=0.0,
    )


def cases() -> list[KernelCase]:
    """Quantising the groups of a long prompt, and advancing the windows of 64 rows."""
    return [quantize_groups_case(), move_window_case()]
