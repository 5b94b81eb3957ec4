"""What virtual memory costs: the driver's calls page by page, and decode attention on the virtual cache against a contiguous one.

The calls are timed on the host, one by one, on a GPU that does nothing else: medians. Attention reads the same numbers from both caches,
by the same kernel: from arrays [sequences, context, kv_heads, head_dim] of one layer each, and from one range of addresses in which all
layers of a token lie side by side (cache/virtual_cache.py); launches go through the layers in turn, as a forward does.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from rich.console import Console
from rich.table import Table

from minllm.bench.ceilings import copy_tb_s
from minllm.bench.record import Row, new_record, write_json
from minllm.bench.timing import CudaClock, medians_in_turn
from minllm.cache.kv_cache import CacheShape
from minllm.cache.virtual import VirtualPolicy
from minllm.cache.virtual_cache import VirtualKVCache
from minllm.kernels.attention import split_tensor_core
from minllm.kernels.attention.arguments import make_workspace
from minllm.runtime.device import check_driver, current_device
from minllm.runtime.virtual_memory import CudaPages

PAGES = 400
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
SIZES = ((1, 8192), (64, 1024), (64, 4096), (256, 1024))  # sequences, context
LAYERS, HEADS, KV_HEADS, HEAD_DIM = 32, 32, 8, 128  # Llama-3.1-8B
CONTIGUOUS_LAYERS = 4  # arrays of a layer that are read in turn: far more than the caches hold
STEPS = ("create", "map", "set access", "unmap", "release")


def run(json_file: Path | None) -> None:
    """Measure, print, and where `json_file` is given write the record. Raises DeviceError without a GPU."""
    out = Console(highlight=False, soft_wrap=True, stderr=str(json_file) == "-")
    device = current_device().name
    costs = page_costs(CudaPages())
    table = Table("call", "µs a page of 2 MiB")
    for name, microseconds in costs.items():
        table.add_row(name, f"{microseconds:.1f}")
    out.print(table)
    rows = [Row("virtual memory", f"{name} a page of 2 MiB", "driver", round(value, 1), "us") for name, value in costs.items()]
    table = Table("decode attention", "contiguous", "virtual", "virtual / contiguous")
    for sequences, context in SIZES:
        row = decode_row(sequences, context)
        rows.append(row)
        table.add_row(row.case, f"{row.peer_value} {row.unit}", f"{row.value} {row.unit}", f"{row.ratio}")
        out.print(row.case, row.value, row.peer_value)
    out.print(table)
    if json_file is not None:
        write_json(json_file, new_record(device, {"copy_tb_s": round(copy_tb_s(), 3)}, rows))


def page_costs(backend: Any, count: int = PAGES) -> dict[str, float]:
    """Microseconds of each call for one page, medians of `count`: STEPS."""
    address, page_bytes = backend.reserve(count * backend.page_bytes), backend.page_bytes
    places = [address + i * page_bytes for i in range(count)]
    pages: list[Any] = []
    found = {"create": [microseconds(lambda: pages.append(backend.create())) for _ in range(count)]}
    found["map"] = [microseconds(partial(backend.map, *place)) for place in zip(places, pages, strict=True)]
    found["set access"] = [microseconds(partial(backend.allow, place, page_bytes)) for place in places]
    found["unmap"] = [microseconds(partial(backend.unmap, place, page_bytes)) for place in places]
    found["release"] = [microseconds(partial(backend.release, page)) for page in pages]
    backend.give_up(address, count * page_bytes)
    return {name: statistics.median(times) for name, times in found.items()}


def microseconds(call: Callable[[], Any]) -> float:
    """What the host waits for a call."""
    start = time.perf_counter()
    call()
    return 1e6 * (time.perf_counter() - start)


def decode_row(sequences: int, context: int) -> Row:
    """Attention of one new token a sequence on both caches, in TB/s of keys and values."""
    from minllm.ops.cuda_ops import CudaOps

    ops, clock = CudaOps("bfloat16"), CudaClock()
    shape = CacheShape(LAYERS, context, KV_HEADS, HEAD_DIM, BFLOAT16)
    backend = CudaPages()
    cache = VirtualKVCache(backend, shape, sequences, context, num_pairs=1 << 20)
    policy = VirtualPolicy(cache, background=False)
    policy.estimate.tokens = 0
    noise = ops.array(np.random.default_rng(0).standard_normal(1 << 24, np.float32).astype(BFLOAT16))
    for sequence in range(sequences):
        policy.reserve(sequence, [0] * context)
    for memory in (cache.keys, cache.values):
        repeat(noise, memory.address, sequences * context * cache.layout.token_bytes)
    whole = (sequences, context, KV_HEADS, HEAD_DIM)
    plain = [tuple(ops.empty(whole, BFLOAT16) for _ in range(2)) for _ in range(CONTIGUOUS_LAYERS)]
    for pair in plain:
        for array in pair:
            repeat(noise, array.pointer, array.nbytes)
    query = ops.array(np.random.default_rng(1).standard_normal((sequences, HEADS, HEAD_DIM), np.float32).astype(BFLOAT16))
    batch = [ops.array(np.arange(sequences + 1, dtype=np.int32)), ops.array(np.full(sequences, context, np.int32))]
    own = ops.array(np.array([policy.table(sequence) for sequence in range(sequences)], np.int32))
    others = ops.array(np.arange(sequences, dtype=np.int32)[:, None])

    def launch(key, value, table) -> Callable[[], None]:
        shapes = split_tensor_core.workspace_shapes(query, key, table)
        workspace, out = make_workspace(shapes, ops.empty, ops.zeros), ops.empty(query.shape, BFLOAT16)
        arguments = (query, key, value, out, *batch, table, HEAD_DIM**-0.5)
        return lambda: split_tensor_core.attention(*arguments, max_query_len=1, workspace=workspace, stream=ops.stream)

    virtual = [launch(cache.layers[i].key, cache.layers[i].value, own) for i in range(0, LAYERS, LAYERS // CONTIGUOUS_LAYERS)]
    contiguous = [launch(*pair, others) for pair in plain]
    seconds = medians_in_turn([(virtual, clock), (contiguous, clock)])
    policy.close()
    total = 2 * sequences * context * KV_HEADS * HEAD_DIM * 2
    rates = [total / one / 1e12 for one in seconds]
    case = f"{sequences} x {context}, {HEADS}/{KV_HEADS} heads, d {HEAD_DIM}, bfloat16"
    values = dict(peer="contiguous", peer_value=round(rates[1], 3), ratio=round(seconds[1] / seconds[0], 3))
    return Row("decode attention", case, f"virtual, {LAYERS} layers side by side", round(rates[0], 3), "TB/s", **values)


def repeat(noise: Any, address: int, nbytes: int) -> None:
    """Fill device memory with copies of an array."""
    from cuda.bindings import driver

    for start in range(0, nbytes, noise.nbytes):
        check_driver(driver.cuMemcpyDtoD(address + start, noise.pointer, min(noise.nbytes, nbytes - start)), "fill memory")
