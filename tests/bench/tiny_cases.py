"""Every benchmark of a kernel at a size that the simulator runs in a moment; tests/gpu runs them on a device."""

from collections import defaultdict
from dataclasses import replace

import numpy as np

from minllm.bench.kernel_case import case_of
from minllm.catalogue import measured_launches, small_launches
from minllm.catalogue.matmul.quantized_measured import row as quantized_row

SMALL = defaultdict(list)
for one in small_launches():
    SMALL[one.stage, one.name].append(one)


def tiny(launch):
    """The first small launch of the same launcher, dtype, words and window that has most of its flags."""
    words, flags = ({name: one for name, one in launch.shape.items() if isinstance(one, kinds)} for kinds in (str | np.dtype, bool))
    every = [one for one in SMALL[launch.stage, launch.name] if words.items() <= one.shape.items()]
    window = launch.shape.get("sliding_window", 0)
    return max(every, key=lambda one: (one.shape.get("sliding_window", 0) == window, len(flags.items() & one.shape.items())))


def tiny_rows():
    """The rows of the catalogue at tiny sizes; of those that differ by their sizes alone, the first."""
    rows = {}
    for row in measured_launches():
        if row.stage == "quantised":
            continue
        launch, rival = tiny(row.launch), row.rival and tiny(row.rival)
        rows.setdefault((row.benchmark, row.variant, row.peers, row.tolerance, str(launch)), replace(row, launch=launch, rival=rival))
    return rows.values()


TINY_CASES = [*map(case_of, tiny_rows())]
TINY_CASES += [case_of(quantized_row(*one)) for one in (
    ("bfloat16", "chosen", 2, 24, 64), ("fp8", "flat", 2, 16, 64), ("int8", "wgmma", 18, 24, 64),
    *((form, "tensor_core_gemv", 3, 40, 256) for form in ("int4/128", "nf4/nested")),
    *((form, "tensor_core_gemv", 2, 24, 128) for form in ("int4/32", "int4/32_minimums")),
    ("int4/32", "int4_naive", 1, 16, 64),
    *((form, "tensor_core_gemv", 1, 24, 128) for form in ("int8", "int4/128", "nf4/nested")),
    ("fp8_block", "gemv", 1, 384, 128),  # more rows than are different
    ("nf4/nested", "widened", 9, 260, 64),
    *((form, "wgmma", 9, 48, 128) for form in ("nf4/nested", "int4/32_minimums", "int8_groups")),
)]  # fmt: skip


def name_of(case) -> str:
    """For pytest's ids."""
    return f"{case.variant}-{case.case}".replace(" ", "_")
