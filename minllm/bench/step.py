"""`minllm bench step`: a whole decode step and a whole prefill, relative to hardware limits and to the sum of peers' parts.

The step is that of the engine (rows from their slots, forward, sample, advance), as a CUDA graph that is replayed without the host: the
cost of a token when all host work is hidden. It is also measured without programmatic dependent launch, so that each kernel starts after
the end of its predecessor. The limit is the time to read all weights, keys and values once, at the rate of a copy measured in the same run.
The prefill is measured kernel by kernel, and as the engine's replayed step; it is compared with cuBLAS's time for all of its GEMMs plus
cuDNN's time for all of its attention, with nothing between them. Weights are random, as speed depends on the shape.
"""

import contextlib
import functools
import gc
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from minllm import costs
from minllm.bench.kernel_case import MICROSECONDS, rounded
from minllm.bench.kernels import PEER_PACKAGES, load_peers
from minllm.bench.random_model import RandomModel, load_random_weights
from minllm.bench.record import Row, new_record, stream, write_json
from minllm.bench.serving.profile.run import check_profiler
from minllm.bench.step_parts import PartTime, StepParts, divide, moved_bytes, time_parts
from minllm.bench.timing import Clock, CudaClock
from minllm.catalogue.noise import Noise
from minllm.engine.options import FIXED_ORDER_VARIANTS, KV_CACHE_DTYPES
from minllm.engine.running.batch_arrays import padded_arrays, to_backend
from minllm.engine.running.machine import CudaMachine
from minllm.engine.running.step_graphs import GraphKey
from minllm.errors import InvalidOptionError
from minllm.kernels.quantization.formats import CHANNEL_FORMATS, full_name
from minllm.kernels.sampling.tensors import SamplingKind
from minllm.models.decoder import forward
from minllm.models.layout import ModelWeights
from minllm.models.shapes import SHAPES, named_config
from minllm.ops.protocol import Ops
from minllm.runtime.recording import RecordedLaunch, recorded_launches
from minllm.weights.format import WeightFormat
from minllm.weights.formats import WEIGHT_FORMATS

# Keys by channel need a window of recent tokens, which the measured runner lacks.
CACHES = tuple(name for name in KV_CACHE_DTYPES if name not in CHANNEL_FORMATS)
MODELS = ("llama-3.2-1b", "llama-3.1-8b")  # measured by default
ROUNDS, WARM_UP, REPLAYS = 5, 8, 32  # decode steps; each replay sees one token more than the previous one
PREFILLS = 7
LINE = "{:<46} {:<40} {:>10} {:<3} {:>9} {:>24}"


def run(
    models: Sequence[str], batches: Sequence[int], contexts: Sequence[int], prompt: int, parts: bool, against: str | None,
    json_file: Path | None, batch_invariant: bool = False, quantization: Sequence[str] = (), trace: bool = False,
    kv_cache_dtype: str = "auto",
) -> None:  # fmt: skip
    """Measure each model's step at each batch size and context, its prefill of `prompt` tokens (0: none), print rows, write the record.

    parts: also report the time that each kernel adds to the step. against: "torch" or None. batch_invariant: use the kernels of that option
    and name it in every row's variant. quantization: formats of the layers' weights, each measured at all batch sizes; empty: plain
    weights. trace: also print where a layer's time goes, from a trace by torch's profiler (step_trace.py). kv_cache_dtype: the cache's
    format, as in the engine's options. Raises InvalidOptionError for unknown names and without PyTorch for a trace, DeviceError without a
    GPU.
    """
    check_options(models, quantization, batch_invariant, kv_cache_dtype, against)
    from minllm.bench.ceilings import copy_tb_s
    from minllm.ops.cuda_ops import CudaOps
    from minllm.runtime.device import current_device

    device = current_device()
    if trace:
        check_profiler("cuda", "--trace")
    peers = load_peers() if against else None
    out = stream(json_file)
    ceilings = {"copy_tb_s": round(copy_tb_s(), 3), "bf16_tflops": round(peers.bf16_tflops(), 1) if peers else None}
    print(f"ceiling: a copy on {device.name} moves {ceilings['copy_tb_s']:.2f} TB/s now, read plus written", file=out, flush=True)
    ops, clock, rows = CudaOps(kernel_variants=FIXED_ORDER_VARIANTS if batch_invariant else None), CudaClock(), []
    formats = [WEIGHT_FORMATS[one] for one in quantization] or [None]
    for name, weight_format in itertools.product(models or MODELS, formats):
        weights = load_random_weights(ops, named_config(name), weight_format)
        for batch in batches or (1,):
            tokens = max(max(contexts) + WARM_UP + REPLAYS, prompt if batch == 1 else 0)
            bench = StepBench(
                name, ops, clock, batch, tokens, ceilings, weight_format=weight_format, weights=weights, kv_cache_dtype=kv_cache_dtype
            )
            found = [row for context in contexts for row in bench.decode_rows(context, parts)]
            for context in contexts if trace else ():
                print(f"\n{bench.account(context)}\n", file=out, flush=True)
            found += bench.prefill_rows(prompt, peers) if prompt and batch == 1 else []
            if batch_invariant:
                found = [replace(row, variant=f"{row.variant}, batch invariant") for row in found]
            for row in found:
                print(as_line(row), file=out, flush=True)
            rows += found
            if json_file is not None and str(json_file) != "-":  # after every batch, so that an interrupt loses no measurement
                write_json(json_file, new_record(device.name, ceilings, rows))
            del bench
            free_unused(ops)
        del weights
        free_unused(ops)
    record = new_record(device.name, ceilings, rows)
    print(record.to_json() if str(json_file) != "-" else f"{len(rows)} rows", file=out, flush=True)
    if json_file is not None:
        write_json(json_file, record)


def check_options(
    models: Sequence[str], quantization: Sequence[str], batch_invariant: bool, kv_cache_dtype: str, against: str | None
) -> None:  # fmt: skip
    """Raise InvalidOptionError for unknown names, and for options that do not go together; arguments as in `run`."""
    unknown = [name for name in models if name not in SHAPES]
    if unknown:
        raise InvalidOptionError(f"--model {unknown[0]} is not allowed: the shapes are {', '.join(SHAPES)}.")
    for name in quantization:
        if name not in WEIGHT_FORMATS:
            raise InvalidOptionError(f"--quantization {name} is not allowed: the formats are {', '.join(WEIGHT_FORMATS)}.")
    if batch_invariant and quantization:
        raise InvalidOptionError("--batch-invariant has no kernels for quantised weights: leave out --quantization.")
    if kv_cache_dtype not in CACHES:
        raise InvalidOptionError(f"--kv-cache-dtype {kv_cache_dtype} is not allowed: the step has kernels for {', '.join(CACHES)}.")
    if against not in (None, *PEER_PACKAGES):
        raise InvalidOptionError(f"--against {against} is not allowed: it takes {' or '.join(PEER_PACKAGES)}.")


def free_unused(ops: Any) -> None:
    """Give back the gigabytes of a model that is no longer used."""
    gc.collect()
    ops.memory.trim()


class StepBench:
    """Measures one model at one batch size and makes its rows."""

    def __init__(
        self, name: str, ops: Ops, clock: Clock, batch: int, tokens: int, ceilings: dict[str, float | None], machine: Any = None,
        weight_format: WeightFormat | None = None, weights: ModelWeights | None = None, kv_cache_dtype: str = "auto",
    ):  # fmt: skip
        """tokens: maximum length of a sequence. ceilings: as in a record.

        weight_format: that of the layers' matrices; None: plain. weights: of this model in this format, if they are loaded already.
        kv_cache_dtype: the cache's format, as in the engine's options.
        """
        formats = "" if weight_format is None else f" in {weight_format.name}"
        formats += "" if kv_cache_dtype == "auto" else f", KV cache in {full_name(kv_cache_dtype)}"
        self.name = f"{name} (random weights{formats})"
        self.ops, self.clock, self.batch, self.ceilings, self.weight_format = ops, clock, batch, ceilings, weight_format
        self.model = RandomModel(name, ops, Noise(), batch, tokens, weight_format, weights, kv_cache_dtype)
        self.runner = self.model.runner(machine or CudaMachine(ops))

    def decode_rows(self, context: int, parts: bool) -> list[Row]:
        """Rows of the whole step, with `context` keys per sequence in the middle of the measurement, and if requested of its parts.

        For a single sequence and plain weights, whose launches take the largest share, also without programmatic dependent launch.
        """
        graphs, words, key, case = self.runner.graphs, self.words(context), self.key(context), self.case(context)
        sizes = dict(kv_itemsize=self.kv_itemsize, weight_format=self.weight_format)
        limit = self.limit(costs.decode_step(self.model.config, self.batch, context, **sizes).bytes)
        rows = [step_row(case, "graph replay", self.step_seconds(key, words), limit)]
        few = self.batch == 1 and self.weight_format is None
        if not few and not parts:
            return rows
        launches = self.launches(key)
        if few:
            with in_order(launches):
                graphs.capture(key, self.runner.uploads)
                rows.append(step_row(case, "graph replay, kernels in order", self.step_seconds(key, words), limit))
            graphs.capture(key, self.runner.uploads)
        if parts:
            self.load(words)
            rows += self.part_rows(case, self.part_times(launches, context))
        return rows

    @property
    def kv_itemsize(self) -> float:
        """Bytes in the cache per component of a key or value, scales included."""
        shape = self.model.cache.shape
        return shape.bytes_per_head / shape.head_dim

    def case(self, context: int) -> str:
        """The name of a decode step in records."""
        return f"{self.name}, batch {self.batch}, context {context}"

    def key(self, context: int) -> GraphKey:
        """The graph of a decode step."""
        return self.runner.graphs.key(self.batch, 0, self.batch, context + WARM_UP + REPLAYS, SamplingKind.GREEDY)

    def words(self, context: int) -> np.ndarray:
        """`RandomModel.slot_words` for steps that have `context` keys in the middle of the measurement."""
        return self.model.slot_words(self.runner.slots.state, context - REPLAYS // 2)

    def launches(self, key: GraphKey) -> list[RecordedLaunch]:
        """The launches of a decode step."""
        with recorded_launches() as launches:
            self.runner.compute(*self.runner.graphs.batch(key), key.kind)
        return launches

    def account(self, context: int) -> str:
        """Where the time of a decode step goes, as a Markdown table (step_trace.py)."""
        from minllm.bench import step_trace

        key, slots = self.key(context), list(range(self.batch))
        parts = divide(self.launches(key), self.model.config)
        self.load(self.words(context))
        self.runner.graphs.capture(key, self.runner.uploads)
        replay = functools.partial(self.runner.graphs.replay_decodes, key, slots, self.runner.uploads)
        times = step_trace.kernel_times(step_trace.traced_events(replay, self.ops.core_stream.sync), parts, self.moved(parts, context))
        return step_trace.account(self.case(context), times, len(parts.layers), self.ceilings["copy_tb_s"])

    def moved(self, parts: StepParts, context: int) -> tuple[list[int], list[int]]:
        """Bytes that the kernels must read, see moved_bytes."""
        sizes = self.ops.dtype.itemsize, self.kv_itemsize
        return moved_bytes(self.model.config, parts, self.batch, context, *sizes, self.weight_format)

    def load(self, words: np.ndarray) -> None:
        """Set the slots to `RandomModel.slot_words`."""
        self.ops.write_slots(self.runner.slots.state, self.ops.array(words))

    def step_seconds(self, key: GraphKey, words: np.ndarray) -> float:
        """Median seconds per replay of a decode step of all slots; every round begins with `words` in the slots."""
        slots, samples = list(range(self.batch)), []
        for _ in range(ROUNDS):
            self.load(words)
            replays = [lambda: self.runner.graphs.replay_decodes(key, slots, self.runner.uploads)] * (WARM_UP + REPLAYS)
            samples += self.clock.seconds(replays)[WARM_UP:]
        return statistics.median(samples)

    def part_times(self, launches: Sequence[RecordedLaunch], context: int) -> list[PartTime]:
        """The time that each kernel adds to the step, from its recorded launches."""
        found = divide(launches, self.model.config)
        return time_parts(found, self.moved(found, context), self.clock)

    def part_rows(self, case: str, times: Sequence[PartTime]) -> list[Row]:
        """Two rows per kernel: the time that it adds to the step, and its time in a chain of launches of the same kernel."""
        rows = []
        for part in times:
            limit = self.limit(part.moved)
            for what, seconds in (("added", part.added), ("in a chain", part.in_a_chain)):
                place = f"{case}, {part.place}, {what}"
                value = rounded(1e6 * seconds)
                rows.append(Row("decode step parts", place, part.kernel, value, MICROSECONDS, limit=limit, of_limit=share(limit, seconds)))
        return rows

    def prefill_rows(self, prompt: int, peers: Any) -> list[Row]:
        """Rows of the prefill of one prompt: kernel by kernel, beside the sum of the peers' parts, and as the engine's replayed step."""
        on_host, layers = self.model.prompt(prompt), self.model.cache.layers
        batch = to_backend(on_host, self.ops)

        def ours() -> float:
            return self.prefill_seconds(lambda: forward(self.ops, self.model.model, batch, layers))

        times, of_peers = [ours()], []
        if peers is not None:  # in balanced order: ours, theirs, theirs, ours
            from minllm.bench.prefill_peers import prefill_seconds

            of_peers = [prefill_seconds(self.model, prompt, peers) for _ in range(2)]
            times.append(ours())
        seconds = statistics.mean(times)
        graphs, uploads = self.runner.graphs, self.runner.uploads
        key = graphs.key(0, 1, prompt, prompt, SamplingKind.GREEDY)
        arrays = padded_arrays(on_host, [0], 0, key)
        replayed = self.prefill_seconds(lambda: graphs.replay(key, arrays, uploads))
        peer = {}
        if of_peers:
            theirs = statistics.mean(of_peers)
            peer = dict(peer="torch cuBLAS + SDPA cuDNN", peer_value=rounded(1e3 * theirs), ratio=rounded(theirs / seconds))
        dtype = str(self.ops.dtype)
        return [self.prefill_row(prompt, dtype, seconds, **peer), self.prefill_row(prompt, f"{dtype}, graph replay", replayed)]

    def prefill_seconds(self, call: Callable[[], Any]) -> float:
        """Median seconds of a call that computes a prompt."""
        return statistics.median(self.clock.seconds([call] * (2 + PREFILLS))[2:])

    def prefill_row(self, prompt: int, variant: str, seconds: float, **peer: Any) -> Row:
        """The row of a whole prefill, in milliseconds."""
        flops, tflops = costs.prefill(self.model.config, prompt, weight_format=self.weight_format).flops, self.ceilings["bf16_tflops"]
        limit = rounded(flops / tflops / 1e9) if tflops else None
        reached = dict(limit=limit, of_limit=rounded(limit / (1e3 * seconds)) if limit else None)
        return Row("whole prefill", f"{self.name}, {prompt} tokens", variant, rounded(1e3 * seconds), "ms", **reached, **peer)

    def limit(self, moved: int) -> float | None:
        """Microseconds to read `moved` bytes at the rate of a copy; None without a ceiling."""
        return rounded(moved / self.ceilings["copy_tb_s"] / 1e6) if moved else None


@contextlib.contextmanager
def in_order(launches: Sequence[RecordedLaunch]) -> Iterator[None]:
    """A context in which none of these kernels starts before its predecessor has ended."""
    loaded = {id(one): one for launch in launches for one in launch.launch.kernel.loaded.values() if one.dependent_launch}.values()
    for one in loaded:
        one.dependent_launch = False
    try:
        yield
    finally:
        for one in loaded:
            one.dependent_launch = True


def step_row(case: str, variant: str, seconds: float, limit: float | None) -> Row:
    """The row of a whole step; limit in microseconds."""
    return Row("decode step", case, variant, rounded(1e6 * seconds), MICROSECONDS, limit=limit, of_limit=share(limit, seconds))


def share(limit: float | None, seconds: float) -> float | None:
    """The speed as a share of the limit in microseconds; None without a limit."""
    return None if limit is None or seconds <= 0 else rounded(limit / (1e6 * seconds))


def as_line(row: Row) -> str:
    """A row as a line of text."""
    of_limit = "" if row.of_limit is None else f"{100 * row.of_limit:.0f} %"
    peer = "" if row.ratio is None else f"{row.ratio:.2f} {row.peer.removeprefix('torch ')}"
    return LINE.format(row.case[-46:], row.variant, f"{row.value:,.2f}", row.unit, of_limit, peer).rstrip()
