"""One launch, at a small odd shape, of every kernel of the package, with the formulas for what it moves and computes.

A row of the table is a launch and, for each kernel that it runs and each array, two formulas: `asked`, what the kernel's threads ask for,
and `different`, the bytes that are touched at all, which caches cannot save. Arrays of indices and of one number a row, which the
docstrings leave out, are listed by name, so that no array goes uncounted.
"""

import ast
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import minllm.kernels
from minllm.catalogue import one_per_kernel
from minllm.catalogue.kv.plain import qkv_rope_append
from minllm.catalogue.launch import Launch, Moved
from minllm.catalogue.noise import SHORT, Noise
from minllm.kernels.kv import qkv_rope_append_vector
from tests.kernels.guarded import BFLOAT16
from tests.kernels.launches import HostOps


@dataclass
class Row:
    """A launch, what each kernel in it is to move, and the names of arrays that formulas leave out."""

    name: str
    run: Callable
    kernels: dict[str, Moved]
    indices: tuple[str, ...] = ()
    launch: Launch | None = None  # of the catalogue


def row_of(launch, kernels):
    """The row of a launch of the catalogue."""
    arrays = launch.arrays(Noise(length=SHORT))
    formulas = {name: launch.moved_by(name, arrays) for name in kernels}
    return Row(str(launch), partial(launch.run, HostOps, arrays), formulas, launch.indices, launch)


ROWS: dict[str, Row] = {str(launch): row_of(launch, kernels) for launch, kernels in one_per_kernel().items()}

SEVERAL_GPUS = tuple(name for name, one in ROWS.items() if one.launch and one.launch.several_gpus)

# Kernels whose float32 results on a GPU differ from the simulator's, and why.
APPROXIMATE = "2**x, log2(x), 1/x and 1/sqrt(x) are approximate on a GPU (PTX ISA: within 2**-22), here exactly rounded"
# Kernels that leave float32 sums of tensor cores in memory; elsewhere rounding to 16 bits hides the difference.
TRUNCATED = "a tensor core drops the bits of a sum that float32 has no room for (Fasi et al. 2021, PeerJ 7:e330), here it is rounded"
ROUNDED = {
    "rms_norm_quantized_kernel": APPROXIMATE,  # its scales
    "silu_quantized_kernel": APPROXIMATE,  # its scales
    "gelu_kernel": APPROXIMATE,
    "softmax_kernel": APPROXIMATE,
    "flash_attention_1_kernel": APPROXIMATE,
    "flash_attention_2_kernel": APPROXIMATE,
    "tree_attention_kernel": APPROXIMATE,
    "perturb_kernel": APPROXIMATE,
    "split_kernel": APPROXIMATE,
    "log_probability_parts_kernel": APPROXIMATE,
    "log_probabilities_of_parts_kernel": APPROXIMATE,
    "distribution_kernel": APPROXIMATE,
    "normed_router_kernel": APPROXIMATE,  # its logits
    "split_tensor_core_kernel": TRUNCATED,
    "split_quantized_kernel": TRUNCATED,
    "fixed_split_kernel": TRUNCATED,
}
ROUNDING = 2.0**-21  # relative to an array's largest number
# Weights are rounded to float16, which has 11 bits: where a score's last bit turns one of them, the sums that it is in differ by as much.
# By kernel, or by a word of the rows where the kernel's other rows are the same to the bit. SiLU's approximate 2**x turns the last bit of
# a bfloat16 likewise: of one number of 10,560 in the experts' gate and up.
COARSE_ROUNDING = {
    "split_quantized_kernel": 2.0**-12, "flash_attention_2_quantized": 2.0**-12, "kivi_int4": 2.0**-12, "grouped_wgmma_kernel": 2.0**-8,
}  # fmt: skip


def row_of_many_tokens():
    """The row of the fused step whose threads have two heads each, and load the angles once for both."""
    tokens, kv_heads, head_dim, heads, heads_per_warp = 3, 3, 64, 29, 8
    launch = qkv_rope_append(tokens, kv_heads, head_dim, BFLOAT16, heads, rotary_dim=head_dim, norm=True)
    side_by_side = -(-(heads + 2 * kv_heads) // (2 * heads_per_warp)) * heads_per_warp  # whole warps
    asked = dict(launch.moved.asked, cos_sin=tokens * side_by_side * head_dim * 4)
    given = row_of(launch, ())

    def run():
        with patch.object(qkv_rope_append_vector, "MANY_TOKENS", 1):
            given.run()

    return replace(given, name="of many tokens", run=run, kernels={"qkv_rope_append_vector_kernel": replace(launch.moved, asked=asked)})


ROWS["qkv_rope_and_append_of_many_tokens"] = row_of_many_tokens()


def kernels_of_the_package():
    """The names of all functions under minllm/kernels that are decorated as kernels."""
    defined = set()
    for path in Path(minllm.kernels.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                names = [getattr(getattr(decorator, "func", decorator), "id", "") for decorator in node.decorator_list]
                defined |= {node.name} if "kernel" in names else set()
    return defined
