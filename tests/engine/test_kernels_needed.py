"""The kernels that a dry run finds are those that an engine launches: it loads a model, serves requests, and its launches are recorded."""

import functools
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from minllm import LLM, SamplingParams
from minllm.catalogue import signatures_for
from minllm.costs.parallel import divides_rows
from minllm.engine import kernels_needed
from minllm.engine.build import engine, plan
from minllm.engine.build.cache_format import cache_shape
from minllm.engine.build.engine import load_engine
from minllm.engine.build.precompile import precompile
from minllm.engine.kernels_needed import EngineShape
from minllm.engine.options import EngineOptions
from minllm.engine.ranks.rank_runner import RankRunner
from minllm.engine.ranks.share import RankShare
from minllm.engine.running.host_copies import Readback
from minllm.engine.running.machine import Done, HostMachine
from minllm.kernels.all_reduce import VARIANTS
from minllm.kernels.all_reduce.choice import BY_SIZE, DEFAULT, LIBRARY
from minllm.kernels.all_reduce.peers import Peers, allocate
from minllm.kernels.sampling.tensors import SamplingKind
from minllm.models.config_reader import read_model_config
from minllm.ops.cuda_ops import CudaOps
from minllm.parallel.cuda_context_parallel import ContextParallelCuda
from minllm.parallel.cuda_ranks import TensorParallelCudaOps
from minllm.parallel.dry_run_ranks import DryRunRankOps, SilentLibrary, Split, silent_sequence
from minllm.parallel.peer_communicator import PeerCommunicator
from minllm.parallel.pipeline import PipelineStage
from minllm.parallel.processes import Rank
from minllm.runtime import compile_ahead
from minllm.runtime.array import DeviceArray
from minllm.runtime.compile_ahead import keys_of
from minllm.runtime.device import current_device
from minllm.runtime.dry_run import dry_run, signatures
from minllm.runtime.host_pages import HostPages
from minllm.runtime.memory import DeviceMemory
from tests.engine.models import model_directory
from tests.engine.ranks.models import save_model_of_one_kv_head
from tests.runtime.h200 import H200
from tests.runtime.host_memory import HostMemory
from tests.weights.sign_and_scale import SIGN_AND_SCALE

RANK_1 = Rank(1, 2, None, [])


class NoGraphs(HostMachine):
    """A GPU's machine without a GPU: a step is launched before it is captured, and its graph launches nothing."""

    def __init__(self, ops):
        pass

    def write_later(self, array, pinned):
        return Done()

    def read_later(self, array, pinned):
        pinned[:] = 0
        return Done()

    def write(self, array, host):
        array.copy_from_host(host)

    def capture(self, step):
        return SimpleNamespace(launch=lambda: None, result=step())


class HostGpuOps(CudaOps):
    """CudaOps whose device memory is the host's."""

    def __init__(self, dtype, variants):
        super().__init__(dtype, variants, simulated=True)
        self.memory, self.capability = DeviceMemory(HostMemory()), current_device().compute_capability

    def uploads(self):
        return nullcontext()

    def to_host(self, array):
        return np.zeros(array.shape, array.dtype)  # no kernel has written it


class HostGpuPages(HostPages):
    """Pages of the host, with arrays as on a GPU."""

    def __init__(self):
        super().__init__(page_bytes=2 << 20)

    def array(self, address, shape, dtype, owner):
        return DeviceArray(address, shape, dtype, owner, HostMemory())


TREE = "[(0,), (1,), (0, 0)]"
SPECULATION = [
    {"method": "ngram", "num_speculative_tokens": 3},
    {"method": "draft_model", "model": str(model_directory("llama3")), "num_speculative_tokens": 3},
    {"method": "draft_model", "model": str(model_directory("llama3")), "num_speculative_tokens": 3, "speculative_token_tree": TREE},
    {"method": "lookahead", "window": 4, "ngram_size": 3, "guess_set_size": 3},
]


class HostGpuRankOps(TensorParallelCudaOps):
    """A rank's operations whose device memory is the host's, as that of its peers, which do nothing."""

    uploads, to_host = HostGpuOps.uploads, HostGpuOps.to_host

    def __init__(self, dtype, variants, grid, config):
        super().__init__(dtype, grid, config.vocab_size, config.hidden_size, kernel_variants=variants, simulated=True)
        self.memory, self.capability = DeviceMemory(HostMemory()), current_device().compute_capability
        split = Split(grid.tensor_rank, grid.tensor, config)
        self.communicator = self.world = SilentLibrary(split)
        name = (variants or {}).get("all_reduce", DEFAULT)
        if grid.tensor > 1 and name != LIBRARY:
            memories = [allocate(grid.tensor, 1 << 20, lambda size, dtype: self.zeros((size,), dtype)) for _ in range(grid.tensor)]
            peers = Peers(grid.tensor_rank, tuple(memories))
            sequence = silent_sequence(split, self.dtype, self.zeros) if name == BY_SIZE else None
            self.communicator = PeerCommunicator(self.communicator, peers, name, lambda launch: launch.launch(), sequence=sequence)


class HostGpuContextOps(ContextParallelCuda, HostGpuRankOps):
    """The same of a rank that shares contexts."""


class HostGpuStageOps(PipelineStage, HostGpuRankOps):
    """The same of a stage."""

    def copied(self, array):
        return array


class OneRank(RankShare):
    """The share of one rank, without the others."""

    runner = RankRunner

    def make_ops(self, device, dtype, options, config):
        kind = HostGpuStageOps if self.grid.pipeline > 1 else HostGpuRankOps if self.context_ranks == 1 else HostGpuContextOps
        return kind(dtype, options.kernel_variants, self.grid, config)

    def context_communicator(self, ops):
        return ops.communicator

    def agreed(self, budget, device, options):
        return budget


@pytest.fixture
def on_gpu(monkeypatch):
    """LLM() finds an H200, and its launches are recorded; nothing is compiled."""
    monkeypatch.setattr(EngineOptions, "resolved_device", lambda options: "cuda")
    monkeypatch.setattr("minllm.engine.llm.load_ranks", lambda options, progress: load_engine(options, progress, OneRank(RANK_1, options)))
    monkeypatch.setattr(plan, "make_ops", lambda device, dtype, options: HostGpuOps(dtype, options.kernel_variants))
    monkeypatch.setattr(compile_ahead, "start_worker", lambda task: pytest.fail("a worker was started"))
    monkeypatch.setattr(compile_ahead, "available_cores", lambda: 0)
    monkeypatch.setattr(engine, "CudaMachine", NoGraphs)
    monkeypatch.setattr("minllm.runtime.cuda_pages.CudaPages", HostGpuPages)
    with dry_run(H200) as launches:
        yield launches


@pytest.mark.parametrize(
    "family, options",
    [
        ("llama3", dict()),
        ("llama3", dict(tensor_parallel_size=2)),
        ("one_kv_head", dict(tensor_parallel_size=2, decode_context_parallel_size=2, load_format="dummy")),
        ("gpt2", dict(tensor_parallel_size=2, kernel_variants={"all_reduce": "by_size"})),
        ("llama3", dict(dtype="float32")),
        ("llama3", dict(kernel_variants={"matmul": "tiled", "attention": "flash_attention_1"})),
        ("qwen3", dict(kv_cache_dtype="int8")),
        ("qwen3_moe", dict()),
        ("llama3", dict(quantization="int8")),
        ("qwen2", dict(kv_cache_dtype="fp8", kv_cache_residual_window=32)),
        ("llama_linear", dict(kv_cache_dtype="kivi_int4")),
        ("mistral", dict(kv_cache_policy="virtual", kv_cache_memory_bytes=1 << 26)),
        ("gpt2", dict(kv_cache_policy="contiguous", max_model_len=64)),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_they_are_those_that_requests_launch(family, options, on_gpu, monkeypatch, tmp_path):
    found = {}
    monkeypatch.setattr(compile_ahead, "keys_of", lambda *given: found.update(keys_of(*given)) or found)
    usual = dict(dtype="float16", kv_cache_memory_bytes=1 << 22, max_num_seqs=12, max_num_batched_tokens=40, max_model_len=64)
    model = save_model_of_one_kv_head(tmp_path) if family == "one_kv_head" else model_directory(family)
    with LLM(model, **usual | options) as llm:
        greedy, random = SamplingParams(max_tokens=2, temperature=0.0), SamplingParams(max_tokens=2)
        for length in range(1, 60):  # how a token is chosen does not depend on it
            llm.generate([[0] * length], greedy)
        for params in (greedy, random):
            for number in range(1, 12):
                llm.generate([[0] * 3] * number, params)
    launched = keys_of(signatures(on_gpu), H200.compute_capability)
    missed = {key: launched[key] for key in launched.keys() - found.keys()}
    assert not missed, f"launched, but not found: {names(missed)}"
    never = set(names(found)) - set(names(launched))
    assert not never, f"found, but not launched: {never}"


@pytest.mark.parametrize(
    "family, options",
    [
        ("llama3", dict()),
        ("llama3", dict(pipeline_parallel_size=3)),
        ("qwen2", dict(quantization="int8")),
        ("gemma2", dict()),
        ("qwen3_moe", dict()),
        ("gpt2", dict()),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_ranks_that_divide_prompts_launch_what_was_found(family, options, on_gpu, monkeypatch):
    """Those of models that can; here from a few rows on. Of a pipeline, a rank of the second stage, which receives and sends rows."""
    monkeypatch.setattr("minllm.kernels.all_reduce.sequence_parallel.PAGE_BYTES", 512)
    second = functools.partial(OneRank, Rank(3, 6, None, []) if options.get("pipeline_parallel_size") else RANK_1)
    monkeypatch.setattr("minllm.engine.llm.load_ranks", lambda options, progress: load_engine(options, progress, second(options)))
    found = {}
    monkeypatch.setattr(compile_ahead, "keys_of", lambda *given: found.update(keys_of(*given)) or found)
    usual = dict(dtype="float16", kv_cache_memory_bytes=1 << 22, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=64)
    with LLM(model_directory(family), **usual, tensor_parallel_size=2, **options) as llm:
        for length in (3, 40, 60):
            llm.generate([[0] * length], SamplingParams(max_tokens=2, temperature=0.0))
    launched = keys_of(signatures(on_gpu), H200.compute_capability)
    missed = {key: launched[key] for key in launched.keys() - found.keys()}
    assert not missed, f"launched, but not found: {names(missed)}"
    divides = divides_rows(read_model_config(model_directory(family)))
    assert ("sequence_parallel_kernel" in names(launched)) == divides == (family in ("llama3", "qwen2"))
    sends = family != "gemma2" and "quantization" not in options  # Gemma normalises the sums, and adds the residual afterwards
    for name in ("gemv_send_kernel", "receive_sums_kernel"):
        assert (name in names(launched)) == sends


@pytest.mark.parametrize("rank", range(3), ids=["last", "second", "first"])
def test_a_stage_launches_kernels_of_one_gpu(rank, on_gpu, monkeypatch):
    """Which are compiled ahead: a stage that compiled while others wait for its hidden states would hold up all."""
    share = functools.partial(OneRank, Rank(rank, 3, None, []))
    monkeypatch.setattr("minllm.engine.llm.load_ranks", lambda options, progress: load_engine(options, progress, share(options)))
    found = {}
    monkeypatch.setattr(compile_ahead, "keys_of", lambda *given: found.update(keys_of(*given)) or found)
    usual = dict(dtype="float16", kv_cache_memory_bytes=1 << 22, max_num_seqs=12, max_num_batched_tokens=40, max_model_len=64)
    with LLM(model_directory("llama3"), **usual, pipeline_parallel_size=3) as llm:
        for params in (SamplingParams(max_tokens=2, temperature=0.0), SamplingParams(max_tokens=2)):
            for number in (1, 2, 5, 11):
                llm.generate([[0] * 3] * number, params)
    launched = keys_of(signatures(on_gpu), H200.compute_capability)
    missed = {key: launched[key] for key in launched.keys() - found.keys()}
    assert launched and not missed, f"launched, but not found: {names(missed)}"


@pytest.mark.parametrize("schedule", ["adaptive", "constant"])
@pytest.mark.parametrize("config", SPECULATION, ids=lambda config: config["method"])
def test_every_source_of_drafts_works_on_arrays_of_a_device(config, schedule, on_gpu, monkeypatch):
    """Which have no more than rows and slices of rows. Nothing is computed; every verification keeps one token. A draft model that pauses
    makes plain steps."""
    wait = Readback.wait

    def wait_for_one_token(readback):
        tokens, *verified = wait(readback)
        for counts in verified[:1]:
            counts[:] = 1
        return tokens, *verified

    monkeypatch.setattr(Readback, "wait", wait_for_one_token)
    options = dict(dtype="float16", kv_cache_memory_bytes=1 << 22, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=64)
    config = config | {"num_speculative_tokens_schedule": schedule}
    with LLM(model_directory("llama3"), speculative_config=config, **options) as llm:
        llm.generate([[5, 6, 7] * 9, [5]] * 3, SamplingParams(max_tokens=6, temperature=0.0))
    assert "load_spans_kernel" in {one.launch.kernel.__name__ for one in on_gpu}


def names(found):
    return sorted(signature.kernel.__name__ for signature in found.values())


def test_the_kernels_of_all_reduces_are_in_the_catalogue(monkeypatch):
    """The compile gate sees all that ranks launch."""
    config = read_model_config(model_directory("llama3"))
    with dry_run(H200) as launches:
        for ranks in (2, 4, 8):
            for dtype in ("float32", "float16", "bfloat16"):
                for name in VARIANTS.names("message"):
                    ops = DryRunRankOps(dtype, {"all_reduce": name}, Split(1, ranks, config))
                    ops.communicator.all_reduce(ops.zeros((2, 64), ops.dtype))
                    for inputs in (4096, 14336):
                        x, weight, out = (
                            ops.zeros(shape, ops.dtype) for shape in ((1, inputs // ranks), (4096, inputs // ranks), (1, 4096))
                        )
                        assert ops.communicator.gemv_all_reduce(x, weight, None, out, out) == (name == "low_latency")
    launched = signatures(launches)
    kernels = {one.kernel for one in launched}
    compiled = [one for one in signatures_for(H200.compute_capability) if one.kernel in kernels]
    wanted = keys_of(launched, H200.compute_capability)
    of_messages, of_gemvs = len(VARIANTS.names("message")), 3
    assert len(wanted) == 3 * 3 * (of_messages + of_gemvs) and not wanted.keys() - keys_of(compiled, H200.compute_capability).keys()


def test_what_cannot_be_known_ahead_is_compiled_when_it_is_launched(monkeypatch):
    """A launcher of the caller's own, which cannot be sent to a process, and a weight format that takes no part in dry runs."""
    monkeypatch.setattr(compile_ahead, "start_worker", lambda *_: pytest.fail("a worker was started"))
    config = read_model_config(model_directory("llama3"))
    given = dict(config=config, cache=cache_shape(config, np.dtype(np.float16), 16), max_model_len=64, params=SamplingParams())
    with dry_run(H200):
        own = precompile(weight_format=None, options=EngineOptions(kernel_variants={"matmul": lambda *_: None}), **given)
        planned = precompile(weight_format=SIGN_AND_SCALE, options=EngineOptions(max_num_seqs=256, max_num_batched_tokens=2048), **given)
    for work in (own, planned):
        with work:
            work.wait(lambda *_: pytest.fail("there is nothing to report"))
        assert not work.keys and not work.workers


@pytest.mark.covering("family", "most")
@pytest.mark.parametrize("family", ["llama2", "qwen2", "gpt2"])
@pytest.mark.parametrize("most", [1, 7, 100, 700])
def test_some_numbers_of_rows_stand_for_all(family, most, monkeypatch):
    config = read_model_config(model_directory(family))
    sizes = dict(uses_graphs=False, max_num_seqs=1, max_num_batched_tokens=most, max_model_len=most + 1)
    shape = EngineShape(
        H200, config, cache_shape(config, np.dtype(np.float16), 16), weight_format=None, kernel_variants=None, virtual_cache=False,
        kinds=(SamplingKind.GREEDY,), **sizes,
    )  # fmt: skip
    some = keys_of(kernels_needed.kernels_needed(shape), H200.compute_capability)
    monkeypatch.setattr(kernels_needed, "row_counts", lambda most: range(1, most + 1))
    assert keys_of(kernels_needed.kernels_needed(shape), H200.compute_capability).keys() == some.keys()
