"""Decode attention on the virtual cache against a contiguous one.

The same kernel reads the same numbers from both: from arrays [sequences, context, kv_heads, head_dim], one per layer, and from one address
range in which all layers of a token are adjacent (cache/virtual/cache.py). Launches cycle through the layers, as a forward does.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from rich.table import Table

from minllm.bench.ceilings import copy_tb_s
from minllm.bench.record import Row, console, write_rows
from minllm.bench.timing import CudaClock, medians_in_turn
from minllm.cache.kv_cache import CacheShape
from minllm.cache.virtual.cache import VirtualKVCache
from minllm.cache.virtual.policy import VirtualPolicy
from minllm.kernels.attention.common.workspace import make_workspace
from minllm.kernels.attention.split_tensor_core import decode_step
from minllm.ops.batch import LayerCache
from minllm.ops.protocol import Ops
from minllm.runtime.array_protocol import Array
from minllm.runtime.cuda_pages import CudaPages
from minllm.runtime.device import check_driver, current_device

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
SIZES = ((1, 8192), (64, 4096))  # sequences, context
LAYERS, HEADS, KV_HEADS, HEAD_DIM = 32, 32, 8, 128  # Llama-3.1-8B
CONTIGUOUS_LAYERS = 4  # number of one-layer arrays that are read in turn, far larger together than the caches


def run(json_file: Path | None) -> None:
    """Measure and print; if `json_file` is given, write the record. Raises DeviceError without a GPU."""
    out = console(json_file)
    device = current_device().name
    rows = []
    table = Table("decode attention", "contiguous", "layers side by side", "of contiguous")
    for size in SIZES:
        row = decode_row(*size)
        rows.append(row)
        table.add_row(f"{row.case}: {row.variant}", f"{row.peer_value} {row.unit}", f"{row.value} {row.unit}", f"{row.ratio}")
        out.print(row.case, row.variant, row.value, row.peer_value)
    out.print(table)
    write_rows(json_file, device, {"copy_tb_s": round(copy_tb_s(), 3)}, rows)


def decode_row(sequences: int, context: int) -> Row:
    """Attention of one new token per sequence on both caches, in TB/s of keys and values."""
    from minllm.ops.cuda_ops import CudaOps

    ops, clock = CudaOps("bfloat16"), CudaClock()
    policy = mapped_policy(ops, sequences, context)
    rows = ops.array(np.arange(sequences, dtype=np.int32)[:, None])
    own = ops.array(np.array([policy.table(sequence) for sequence in range(sequences)], np.int32))
    chosen = [policy.cache.layers[i * LAYERS // CONTIGUOUS_LAYERS] for i in range(CONTIGUOUS_LAYERS)]
    plain = [LayerCache(*random_halves(ops, sequences, context, KV_HEADS, HEAD_DIM)) for _ in range(CONTIGUOUS_LAYERS)]
    launch = make_launch(ops, sequences, context)
    contenders = [[launch(layer, own) for layer in chosen], [launch(layer, rows) for layer in plain]]
    seconds = medians_in_turn([(launches, clock) for launches in contenders])
    policy.close()
    total = 2 * sequences * context * KV_HEADS * HEAD_DIM * BFLOAT16.itemsize
    rates = [total / one / 1e12 for one in seconds]
    case = f"{sequences} x {context}, {HEADS}/{KV_HEADS} heads, d {HEAD_DIM}, bfloat16"
    values = dict(peer="contiguous", peer_value=round(rates[1], 3), ratio=round(seconds[1] / seconds[0], 3))
    return Row("decode attention, virtual cache", case, f"virtual, {LAYERS} layers side by side", round(rates[0], 3), "TB/s", **values)


def make_launch(ops: Ops, sequences: int, context: int) -> Callable[[LayerCache, Any], Callable[[], None]]:
    """A function (layer, block tables) -> call that launches attention of one new token per sequence."""
    query = ops.array(np.random.default_rng(1).standard_normal((sequences, HEADS, HEAD_DIM), np.float32).astype(BFLOAT16))
    batch = [ops.array(np.arange(sequences + 1, dtype=np.int32)), ops.array(np.full(sequences, context, np.int32))]

    def launch(layer: LayerCache, table: Array) -> Callable[[], None]:
        shapes = decode_step.workspace_shapes(query, layer.key, table)
        workspace, out = make_workspace(shapes, ops.empty, ops.zeros), ops.empty(query.shape, BFLOAT16)
        arguments = (query, layer.key, layer.value, out, *batch, table, HEAD_DIM**-0.5)
        return lambda: decode_step.attention(*arguments, max_query_len=1, workspace=workspace, stream=ops.stream)

    return launch


def mapped_policy(ops: Ops, sequences: int, context: int) -> VirtualPolicy:
    """A policy with a virtual cache that holds `sequences` sequences of `context` tokens of noise."""
    shape = CacheShape(LAYERS, context, KV_HEADS, HEAD_DIM, BFLOAT16)
    cache = VirtualKVCache(CudaPages(), shape, sequences, context, num_pairs=1 << 20)
    policy = VirtualPolicy(cache, background=False)
    policy.estimate.tokens = 0
    for sequence in range(sequences):
        policy.reserve(sequence, [0] * context)
    for memory in (cache.keys, cache.values):
        repeat(noise_of(ops), memory.address, sequences * context * cache.layout.token_bytes)
    return policy


def random_halves(ops: Ops, *shape: int) -> tuple[Any, Any]:
    """Random keys and values of this shape in ordinary memory."""
    halves = tuple(ops.empty(shape, BFLOAT16) for _ in range(2))
    for half in halves:
        repeat(noise_of(ops), half.pointer, half.nbytes)
    return halves


def noise_of(ops: Ops) -> Any:
    """32 MB of noise on the device."""
    return ops.array(np.random.default_rng(0).standard_normal(1 << 24, np.float32).astype(BFLOAT16))


def repeat(noise: Any, address: int, nbytes: int) -> None:
    """Fill device memory with copies of an array."""
    from cuda.bindings import driver

    for start in range(0, nbytes, noise.nbytes):
        check_driver(driver.cuMemcpyDtoD(address + start, noise.pointer, min(noise.nbytes, nbytes - start)), "fill memory")
