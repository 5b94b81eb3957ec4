"""`minllm bench ranks --context-parallel N`: decode attention on one GPU, and on N that share contexts (parallel/context_parallel.py).

One layer of HEADS query heads and one KV head, as a model with a latent or few KV heads has it: every rank then holds the same KV head, and
computes HEADS / N heads. The time is that of everything which ranks launch for it, their exchanges included: calls over different blocks of
the cache, so that no keys come from L2, are captured into one graph, which is replayed on all ranks at once.
"""

import functools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from minllm.bench.record import Row, console, write_rows
from minllm.engine.build.ops import make_ops
from minllm.engine.options import EngineOptions
from minllm.engine.ranks.check import check_gpus
from minllm.engine.ranks.share import RankShare
from minllm.errors import InvalidOptionError
from minllm.kernels.arguments import ceil_div
from minllm.machine import driver, hardware
from minllm.models.shapes import named_config
from minllm.ops.batch import AttentionConfig, Batch, LayerCache
from minllm.parallel.processes import Rank, RankProcesses

HEADS, HEAD_DIM, BLOCK_SIZE = 32, 128, 16
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
BYTES_PER_KEY = 2 * HEAD_DIM * BFLOAT16.itemsize
DISTINCT_BYTES = 256 << 20  # a graph reads this much of one rank's keys and values: several times an L2 cache
NOISE = 1 << 20  # different numbers in a cache
REPLAYS, ROUNDS = 3, 7


class Work(NamedTuple):
    """What is measured: steps of `batches` sequences with `context` keys each."""

    batches: Sequence[int]
    context: int


def run(ranks: int, options: dict[str, Any], work: Work, json_file: Path | None) -> None:
    """Measure one GPU, then `ranks`; print each row; if `json_file` is given, write the record. options: device and dtype of LLM().

    Raises InvalidOptionError unless `ranks` divides HEADS and there are as many GPUs.
    """
    if ranks < 2 or HEADS % ranks:
        raise InvalidOptionError(f"--context-parallel {ranks} is not allowed: take a divisor of the {HEADS} query heads, from 2 on.")
    of_each = {count: EngineOptions(**options, tensor_parallel_size=count, decode_context_parallel_size=count) for count in (1, ranks)}
    device = of_each[1].resolved_device()
    if device == "cuda":
        check_gpus(ranks)
    out = console(json_file)
    rows: list[Row] = []
    alone: list[float] = []
    for count, given in of_each.items():
        found = of_one(given, work) if count == 1 else of_ranks(given, work)
        alone = alone or found
        name = "cpu" if device == "cpu" else driver.device_name()
        rows += [row(count, batch, work.context, value, name) for batch, value in zip(work.batches, found, strict=True)]
        for one, first in zip(rows[-len(found) :], alone, strict=True):
            share = "" if one.of_limit is None else f", {one.of_limit:.0%} of the time that its bytes take"
            out.print(f"{one.case}: {one.variant} {one.value:,.1f} µs, {first / one.value:.2f} times one{share}")
    write_rows(json_file, name, {}, rows)


def row(ranks: int, batch: int, context: int, microseconds: float, device: str) -> Row:
    """A row of the record; its limit is the time in which a rank reads its keys and values at the GPU's measured rate."""
    gpu, found = hardware.find_gpu(device), {}
    if gpu is not None:
        limit = batch * context * BYTES_PER_KEY / ranks / gpu.ceiling_tb_s / 1e6
        found = dict(limit=round(limit, 2), of_limit=round(limit / microseconds, 3))
    variant = f"{ranks} rank{'s' * (ranks > 1)}"
    case = f"{HEADS} heads, 1 KV head of {HEAD_DIM}, batch {batch}, context {context}"
    return Row("shared contexts", case, variant, round(microseconds, 2), "µs", **found)


def of_one(options: EngineOptions, work: Work) -> list[float]:
    """Microseconds per call for each batch on one GPU."""
    device, dtype = options.resolved_device(), resolved_dtype(options)
    return measured(make_ops(device, dtype, options), 1, work, meet=lambda: None)


def of_ranks(options: EngineOptions, work: Work) -> list[float]:
    """The same on several, as rank 0 measures it."""
    processes = RankProcesses(options.num_ranks, serve, (options, work))
    try:
        return rank_measured(processes.own, options, work)
    except Exception as error:
        raise processes.failed(error) from error
    finally:
        processes.close()


def serve(rank: Rank, argument: tuple[EngineOptions, Work]) -> None:
    """What every other rank runs."""
    rank_measured(rank, *argument)


def rank_measured(rank: Rank, options: EngineOptions, work: Work) -> list[float]:
    """Microseconds per call for each batch on one of several ranks."""
    share = RankShare(rank, options)
    ops = share.make_ops(options.resolved_device(), resolved_dtype(options), options, named_config("llama-3.1-8b"))
    ops.share_contexts(share.context_communicator(ops), BLOCK_SIZE)
    found = measured(ops, options.num_ranks, work, rank.host.barrier)
    rank.host.barrier()  # nobody ends while others measure
    return found


def resolved_dtype(options: EngineOptions) -> str:
    """The dtype of keys and values."""
    return "bfloat16" if options.dtype == "auto" else options.dtype


def measured(ops: Any, ranks: int, work: Work, meet: Callable[[], None]) -> list[float]:
    """Microseconds per call for each batch. meet: returns once all ranks have called it."""
    blocks_each = ceil_div(work.context, ranks * BLOCK_SIZE)  # per sequence
    distinct = DISTINCT_BYTES if is_on_gpu(ops) else 0
    calls = [max(1, ceil_div(distinct, batch * blocks_each * BLOCK_SIZE * BYTES_PER_KEY)) for batch in work.batches]
    num_blocks = max(batch * count for batch, count in zip(work.batches, calls)) * blocks_each
    cache = LayerCache(*(filled(ops, (num_blocks, BLOCK_SIZE, 1, HEAD_DIM), seed) for seed in (0, 1)))
    found = []
    for batch, count in zip(work.batches, calls):
        query = filled(ops, (batch, HEADS // ranks, HEAD_DIM), 2)
        batches = [decoding(ops, batch, work.context, first * batch * blocks_each, blocks_each) for first in range(count)]
        found.append(microseconds(ops, functools.partial(attend, ops, query, cache, batches, HEADS // ranks), count, meet))
    return found


def attend(ops: Any, query: Any, cache: LayerCache, batches: list[Batch], heads: int) -> None:
    """Decode attention of every batch, one after another."""
    config = AttentionConfig(heads, 1, HEAD_DIM, HEAD_DIM**-0.5)
    for batch in batches:
        ops.attention(query, cache, batch, config)


def decoding(ops: Any, sequences: int, context: int, first_block: int, blocks_each: int) -> Batch:
    """A step of sequences whose contexts are blocks from first_block on."""
    tables = first_block + np.arange(sequences * blocks_each).reshape(sequences, blocks_each)
    rows, lengths = np.arange(sequences), np.full(sequences, context)
    arrays = (rows, lengths - 1, np.full(sequences, -1), np.arange(sequences + 1), lengths, tables, rows)
    return Batch(*(ops.array(one.astype(np.int32)) for one in arrays), max_query_len=1, max_context_len=context, num_decodes=sequences)


def filled(ops: Any, shape: tuple[int, ...], seed: int) -> Any:
    """An array of noise, which repeats."""
    noise = np.random.default_rng(seed).standard_normal(min(NOISE, math.prod(shape)), dtype=np.float32).astype(ops.dtype)
    return ops.array(np.resize(noise.view(np.uint8), math.prod(shape) * noise.itemsize).view(noise.dtype).reshape(shape))


def is_on_gpu(ops: Any) -> bool:
    """Whether operations are launched on a stream of a GPU."""
    return getattr(ops, "core_stream", None) is not None


def microseconds(ops: Any, work: Callable[[], None], count: int, meet: Callable[[], None]) -> float:
    """Microseconds of each of the `count` calls of `work`: of replays of its graph on a GPU, of the calls themselves on a CPU."""
    replay, wait, times = work, lambda: None, []
    if is_on_gpu(ops):
        from minllm.runtime.graph import CapturedGraph

        work()  # loads the kernels
        replay, wait = CapturedGraph(work, ops.core_stream, ops.memory).launch, ops.core_stream.sync
    for _ in range(ROUNDS):
        wait()
        meet()
        start = time.perf_counter()
        for _ in range(REPLAYS):
            replay()
        wait()
        times.append(1e6 * (time.perf_counter() - start) / (REPLAYS * count))
    return statistics.median(times[1:])
