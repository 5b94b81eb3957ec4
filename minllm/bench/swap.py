"""Compares two ways to restore a preempted sequence, swapping over PCIe and recomputation; predicted from rates, then measured.

The prediction (costs/swap.py) uses this machine's rate of large copies and the GPU's memory and tensor-core rates. The measurement takes
one sequence of a model with random weights: a prefill of its tokens, and copying the same tokens out and in with cache/offload.py, with
page-locked and with pageable host memory. Nothing else runs at that time, so nothing is hidden; the share that can be hidden behind the
prefill of another sequence is measured last. The rest is mostly the host's time to start the copies, which precedes the prefill.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.table import Table

from minllm.bench.ceilings import copy_tb_s
from minllm.bench.generate import opened_model
from minllm.bench.memory import copy_gb_s
from minllm.bench.record import Row, console, write_rows
from minllm.cache.offload import SwapSpace
from minllm.cache.transfers import CudaTransfers
from minllm.costs.swap import SwapRates, recompute_ms, swap_ms
from minllm.engine.running.batch_arrays import NewTokens, build_batch, to_backend
from minllm.machine.hardware import find_gpu
from minllm.models.decoder import forward
from minllm.runtime.device import current_device

TOKENS = (16, 256, 4096, 16384)
KINDS = ("pinned", "pageable")
LARGE_COPY = 1 << 28  # bytes
UNKNOWN_TFLOPS = 500.0  # used in the prediction on a GPU unknown to hardware.py


def run(model: str, json_file: Path | None, most_tokens: int = TOKENS[-1]) -> None:
    """Measure and print; if `json_file` is given, write the record. Raises DeviceError without a GPU."""
    out = console(json_file)
    device, bandwidth = current_device().name, copy_tb_s()
    gpu = find_gpu(device)
    tflops = (gpu.measured_bf16_tflops or gpu.bf16_tflops) if gpu else UNKNOWN_TFLOPS
    rates = {kind: SwapRates(both_ways_gb_s(kind == "pinned"), bandwidth, tflops) for kind in KINDS}
    for kind, rate in rates.items():
        out.print(f"{kind} copies: {rate.host_gb_s:.1f} GB/s; memory {bandwidth:.2f} TB/s; products {tflops:.0f} TFLOP/s")
    counts, rows = [count for count in TOKENS if count <= most_tokens], []
    with opened_model(model, dict(device="cuda", dtype="bfloat16", enforce_eager=True), counts[-1] + 16) as llm:
        config, engine = llm.engine.model.config, llm.engine
        times = {"recompute": [recompute_seconds(engine, count) for count in counts]}
        for kind in KINDS:
            transfers = CudaTransfers(engine.ops.memory, engine.ops.core_stream, kind == "pinned")
            space = SwapSpace(engine.cache, engine.cache_policy, transfers, 4 << 30)
            times[kind] = [swap_seconds(engine, space, count) for count in counts]
            if kind == "pinned":
                hidden = hidden_shares(engine, space, counts[-1] // 4)
    table = Table("tokens", "recompute ms (predicted)", *(f"swap, {kind}, ms (predicted)" for kind in KINDS))
    for i, count in enumerate(counts):
        predicted = [recompute_ms(config, count, rates["pinned"]), *(swap_ms(config, count, rates[kind]) for kind in KINDS)]
        found = [1e3 * times[name][i] for name in ("recompute", *KINDS)]
        table.add_row(str(count), *(f"{ms:.2f} ({floor:.2f})" for ms, floor in zip(found, predicted, strict=True)))
        for name, ms, floor in zip(("recompute", *KINDS), found, predicted, strict=True):
            variant = name if name == "recompute" else f"swap, {name}"
            limit = dict(limit=round(floor, 3), of_limit=round(floor / ms, 3))
            beside = hidden if count == counts[-1] // 4 and variant == "swap, pinned" else {}
            metrics = {f"hidden behind a prefill, {way}, %": round(100 * share, 1) for way, share in beside.items()}
            rows.append(Row("preemption", f"{model}, {count} tokens", variant, round(ms, 3), "ms", **limit, metrics=metrics))
    out.print(table)
    for way, share in hidden.items():
        out.print(f"{share:.0%} of a swap {way} hides behind a prefill of another sequence")
    write_rows(json_file, device, {"copy_tb_s": round(bandwidth, 3)}, rows)


def both_ways_gb_s(pinned: bool) -> float:
    """GB/s per direction of large copies out and in, one after the other."""
    return 2 / sum(1 / copy_gb_s(LARGE_COPY, way, pinned) for way in ("to GPU", "from GPU"))


def median_of(call: Callable[[], None], sync: Callable[[], None], turns: int = 5) -> float:
    """Median seconds of a call until the GPU has finished it, after a warm-up."""
    times = []
    for _ in range(turns + 1):
        sync()
        start = time.perf_counter()
        call()
        sync()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def recompute_seconds(engine, tokens: int) -> float:
    """Seconds of a prefill of this number of tokens."""
    seconds = median_of(prefill_of(engine, tokens), engine.ops.core_stream.sync)
    engine.cache_policy.free("recomputed")
    return seconds


def prefill_of(engine, tokens: int) -> Callable[[], None]:
    """A call that computes a prompt of this number of tokens, reserved in the cache as sequence "recomputed"."""
    prompt = np.random.default_rng(0).integers(0, engine.model.config.vocab_size, tokens).tolist()
    engine.cache_policy.reserve("recomputed", prompt)
    table, most, block_size = engine.cache_policy.table("recomputed"), engine.scheduler.max_num_batched_tokens, engine.cache.block_size
    chunks = [NewTokens(prompt[start : start + most], start, table) for start in range(0, tokens, most)]
    batches = [to_backend(build_batch([chunk], [len(chunk.token_ids) - 1], block_size), engine.ops) for chunk in chunks]

    def compute():
        for batch in batches:
            forward(engine.ops, engine.model, batch, engine.cache.layers)

    return compute


def swap_seconds(engine, space: SwapSpace, tokens: int) -> float:
    """Seconds to copy a sequence of this number of tokens out and in again."""
    engine.cache_policy.reserve("swapped", [0] * tokens)

    def there_and_back():
        space.swap_out("swapped", tokens)
        space.reap(wait=True)
        space.swap_in("swapped")

    seconds = median_of(there_and_back, engine.ops.core_stream.sync)
    engine.cache_policy.free("swapped")
    return seconds


def hidden_shares(engine, space: SwapSpace, tokens: int, turns: int = 9) -> dict[str, float]:
    """The share, 0 to 1, of swapping a sequence "out" and "in" that is hidden by another one's prefill, both of `tokens` tokens."""
    policy, stream, compute = engine.cache_policy, engine.ops.core_stream, prefill_of(engine, tokens)

    def finish():
        space.reap(wait=True)
        for one in (space.transfers.gathering, space.transfers.copying, stream):
            one.sync()

    def seconds_of(way: str, beside: bool) -> float:
        """Seconds of a swap "in" or "out", or of none, with the computation beside it if `beside`."""
        policy.reserve("swapped", [0] * tokens)
        if way == "in":
            space.swap_out("swapped", tokens)
        finish()
        start = time.perf_counter()
        if way == "out":
            space.swap_out("swapped", tokens)
        elif way == "in":
            space.swap_in("swapped", beside=True)
        if beside:
            compute()
        finish()
        seconds = time.perf_counter() - start
        if way == "out":
            space.drop("swapped")
        else:
            policy.free("swapped")
        return seconds

    cases = [("none", True)] + [(way, beside) for way in ("out", "in") for beside in (False, True)]
    times = {case: [] for case in cases}
    for _ in range(turns + 1):  # alternating, so that a slow period affects all cases
        for case in cases:
            times[case].append(seconds_of(*case))
    policy.free("recomputed")
    found = {case: statistics.median(seconds[1:]) for case, seconds in times.items()}
    alone = found["none", True]
    return {way: max(0.0, (alone + found[way, False] - found[way, True]) / min(alone, found[way, False])) for way in ("out", "in")}
