"""Times of GEMMs with quantised weights, beside PyTorch's: each format, number of rows and variant.

x is quantised before the measurement, for minllm's kernels and for the peers; only tensor_core_gemv quantises its row of x itself. Launches
cycle through several weights, so that these are read from HBM. Errors are relative to the GEMM of the dequantised numbers. A weight repeats
the rows of a smaller one, which is faster to quantise.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np

from minllm.bench.kernel_case import BFLOAT16, MICROSECONDS, KernelCase, Prepared, relative_error, some_of
from minllm.models.gguf.q4 import Q4_1_BLOCK
from minllm.models.gguf.q8_0 import BLOCK as Q8_0_BLOCK
from minllm.models.quantized.gguf_groups import FORMATS as GGUF_FORMATS
from minllm.models.quantized.gguf_groups import GROUP
from minllm.weights.format import WeightFormat
from minllm.weights.formats import WEIGHT_FORMATS
from minllm.weights.fp8 import E4M3
from minllm.weights.fp8_block import BLOCK as FP8_BLOCK
from minllm.weights.fp8_block import quantize_row_groups

REPEATED_ROWS, SAMPLE_ROWS = 256, 16  # distinct rows of the weight; rows of x for which the result is checked
SHAPES = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))  # the four matrices of a layer of an 8B model, outputs x inputs
GGUF_BLOCKS = {"Q4_1": Q4_1_BLOCK, "Q8_0": Q8_0_BLOCK}
LABELS = {"int4": "int4 in groups of 32", "int4_g128": "int4 in groups of 128"}
PEERS = {
    "bfloat16": ("cuBLAS",), "fp8": ("_scaled_mm, per tensor", "_scaled_mm, per row"), "int8": ("_int_mm",),
    "int4_g128": ("_weight_int4pack_mm",),
}  # fmt: skip
VARIANTS = {  # format -> rows of x -> variants to measure
    "bfloat16": {rows: ("chosen",) for rows in (1, 2, 4, 8, 16, 32, 64, 128, 256, 2048)},
    **dict.fromkeys(("fp8", "int8"), {
        1: ("gemv", "flat", "wgmma", "tensor_core_gemv"), **dict.fromkeys((2, 4, 8, 16, 32), ("flat",)),
        **dict.fromkeys((64, 128, 256), ("flat", "wgmma")), 2048: ("wgmma",),
    }),
    "fp8_block": {
        1: ("gemv",), **dict.fromkeys((2, 8), ("gemv", "wgmma")), **dict.fromkeys((16, 256), ("wgmma",)),
        **dict.fromkeys((64, 2048), ("wgmma", "widened")),
    },
    "int4_g128": {
        1: ("gemv", "tensor_core_gemv"), **dict.fromkeys((2, 4), ("batched_gemv",)), **dict.fromkeys((8, 16), ("batched_gemv", "wgmma")),
        **dict.fromkeys((32, 64, 128), ("wgmma",)), **dict.fromkeys((256, 2048), ("widened", "wgmma")),
    },
    "int4": {
        1: ("gemv", "int4_naive", "tensor_core_gemv"), **dict.fromkeys((2, 4), ("batched_gemv",)),
        **dict.fromkeys((8, 16), ("batched_gemv", "wgmma")), **dict.fromkeys((32, 64, 128, 256, 2048), ("wgmma",)),
    },
    "nf4": {
        1: ("gemv", "wgmma", "tensor_core_gemv"), **dict.fromkeys((2, 4), ("batched_gemv",)), 8: ("gemv", "batched_gemv", "wgmma"),
        16: ("batched_gemv", "wgmma"), **dict.fromkeys((32, 64, 128), ("wgmma",)), **dict.fromkeys((256, 2048), ("wgmma", "widened")),
    },
    "Q4_1": {
        1: ("tensor_core_gemv",), **dict.fromkeys((2, 4, 8, 16), ("batched_gemv", "wgmma")), **dict.fromkeys((32, 64, 128), ("wgmma",)),
        **dict.fromkeys((256, 2048), ("wgmma", "widened")),
    },
    "Q8_0": {
        1: ("gemv",), 2: ("gemv", "wgmma"), **dict.fromkeys((4, 8, 16, 32, 64, 128), ("wgmma",)),
        **dict.fromkeys((256, 2048), ("wgmma", "widened")),
    },
}  # fmt: skip


def format_named(name: str) -> WeightFormat:
    """The WeightFormat with this name: a GGUF block format, or one of WEIGHT_FORMATS."""
    return GGUF_FORMATS.get(name) or WEIGHT_FORMATS[name]


def small_weight(found: WeightFormat, rows: int, k: int, noise) -> Any:
    """Host arrays of a random weight [rows, k]; GGUF blocks have random bits as codes and random scales."""
    if found.name in GGUF_BLOCKS:
        block = GGUF_BLOCKS[found.name]
        blocks = noise.array((rows, k // GROUP * block.itemsize // BFLOAT16.itemsize), BFLOAT16).view(np.uint8).view(block)
        blocks["d"] = noise.array(blocks.shape, BFLOAT16) / 16
        if "m" in block.names:
            blocks["m"] = -8 * blocks["d"]
        return found.weight_of(blocks)
    matrix = noise.array((rows, k), BFLOAT16)
    return matrix if found.is_plain else found.encode(matrix)


def repeated(found: WeightFormat, small: Any, n: int, k: int) -> Any:
    """The host arrays of a weight [n, k] that repeats the rows of the smaller weight `small`."""
    if found.is_plain:
        return np.resize(small, (n, k))
    shapes = found.without_contents(SimpleNamespace(empty=np.empty), n, k)
    whole = type(small)(*(None if one is None else repeated_to(like.shape, one) for one, like in zip(small, shapes, strict=True)))
    if found.name == "fp8_block":  # blocks holds the row of scales for each output
        return whole._replace(blocks=np.arange(n, dtype=np.int32) // FP8_BLOCK)
    if found.name == "nf4":
        return whole._replace(first_blocks=np.arange(n, dtype=np.int32) * np.int32(whole.absmax.shape[0]))
    return whole


def repeated_to(shape: tuple[int, ...], array: np.ndarray) -> np.ndarray:
    """An array of this shape that repeats a smaller one along each axis."""
    for axis, extent in enumerate(shape):
        if extent != array.shape[axis]:
            array = np.take(array, np.arange(extent) % array.shape[axis], axis)
    return array


def multiplied_numbers(found: WeightFormat, x: np.ndarray) -> np.ndarray:
    """x [rows, k] as the format's kernels see it, float64: quantised and dequantised if the format is W8A8."""
    if found.name in ("int8", "fp8"):
        return found.dequantize(found.encode(x)).astype(np.float64)
    if found.name == "fp8_block":
        codes, scales = quantize_row_groups(x)
        return codes.view(E4M3).astype(np.float64) * np.repeat(scales, FP8_BLOCK, axis=1)[:, : x.shape[1]]
    return x.astype(np.float64)


def quantized_matmul_case(name: str, variant: str, rows: int, n: int, k: int) -> KernelCase:
    """The GEMM of x [rows, k] and a weight [n, k] in format `name`; variant: one of the format's, or "chosen"."""
    found = format_named(name)
    distinct = min(n, REPEATED_ROWS)

    def prepare(ops, noise, sets):
        kernels, inputs, launches, x = found.kernels, [], [], noise.array((rows, k), BFLOAT16)
        small = small_weight(found, distinct, k, noise)
        weight = repeated(found, small, n, k)
        for _ in range(sets):
            on_device = ops.array(weight) if found.is_plain else found.place(ops, weight)
            arrays = dict(x=ops.array(x), weight=on_device, out=ops.empty((rows, n), BFLOAT16), small=small)
            chosen = kernels.choose(arrays["x"], on_device) if variant == "chosen" else variant
            quantise, workspace = kernels.activations.get(chosen), kernels.workspaces.get(chosen)
            multiplied = quantise(arrays["x"], ops.empty, ops.stream) if quantise else arrays["x"]
            of_peers = kernels.activations.get("gemv") if quantise is None else None  # this launcher quantises x itself
            room = dict(workspace=workspace(multiplied, on_device, ops.empty)) if workspace else {}
            operands, run = (multiplied, on_device, arrays["out"], None, ops.stream), kernels.variants[chosen]
            launches.append(lambda operands=operands, room=room, run=run: run(*operands, **room))
            inputs.append(arrays | dict(multiplied=of_peers(arrays["x"], ops.empty, ops.stream) if of_peers else multiplied))
        sampled = some_of(rows, SAMPLE_ROWS, noise)
        dense = small.astype(np.float64) if found.is_plain else found.dequantize(small).astype(np.float64)
        expected = multiplied_numbers(found, x[sampled].astype(np.float32)) @ dense.T  # [sampled, distinct]; further columns repeat these
        columns = np.arange(n) % distinct
        return Prepared(
            launches,
            inputs,
            result=lambda: ops.to_host(inputs[0]["out"]),
            error=lambda out: relative_error(out[sampled], expected[:, columns]),
        )

    weight_bytes = n * k * BFLOAT16.itemsize if found.is_plain else found.matrix_bytes(n, k)
    moved = int(weight_bytes + rows * (k + n) * BFLOAT16.itemsize)
    case = f"{rows} row{'' if rows == 1 else 's'} x {n}x{k}, {LABELS.get(name, name)}"
    names = ("quantised", "matmul, quantised", case, variant, BFLOAT16, MICROSECONDS)
    return KernelCase(*names, work=moved, set_bytes=moved, prepare=prepare, peers=PEERS.get(name, ()))


def cases() -> list[KernelCase]:
    """The four GEMMs of a layer in every format, and large square GEMMs in 8 bits."""
    found = [
        quantized_matmul_case(name, variant, rows, n, k)
        for name, by_rows in VARIANTS.items()
        for rows, variants in by_rows.items()
        for n, k in SHAPES
        for variant in variants
    ]
    return found + [quantized_matmul_case(name, "wgmma", 8192, 8192, 8192) for name in ("fp8", "int8", "fp8_block")]
