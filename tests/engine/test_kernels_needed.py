"""The kernels that a dry run finds are those that an engine launches: it loads a model and warms up, and its launches are recorded."""


import numpy as np
import pytest

from minllm import LLM
from minllm.engine import loading
from minllm.engine.options import EngineOptions
from minllm.ops.cuda_ops import CudaOps
from minllm.runtime import compile_ahead
from minllm.runtime.array import DeviceArray
from minllm.runtime.device import current_device
from minllm.runtime.dry_run import dry_run, signatures
from minllm.runtime.host_pages import HostPages
from minllm.runtime.memory import DeviceMemory
from tests.engine.models import model_directory
from tests.runtime.h200 import H200
from tests.runtime.host_memory import HostMemory

# Decode steps of the dry run are those of a graph, whose last kernel moves the batch to its next tokens; an eager step has none.
ONLY_IN_GRAPHS = {"advance_kernel", "move_window_kernel"}


class HostGpuOps(CudaOps):
    """CudaOps whose device memory is the host's."""

    def __init__(self, dtype, variants):
        super().__init__(dtype, variants, simulated=True)
        self.memory, self.capability = DeviceMemory(HostMemory()), current_device().compute_capability

    def uploads(self):
        return super(CudaOps, self).uploads()

    def to_host(self, array):
        return np.zeros(array.shape, array.dtype)  # no kernel has written it


class HostGpuPages(HostPages):
    """Pages of the host, with arrays as on a GPU."""

    def __init__(self):
        super().__init__(page_bytes=2 << 20)

    def array(self, address, shape, dtype, owner):
        return DeviceArray(address, shape, dtype, owner, HostMemory())


@pytest.fixture
def on_gpu(monkeypatch):
    """LLM() finds an H200, and its launches are recorded; nothing is compiled."""
    monkeypatch.setattr(EngineOptions, "resolved_device", lambda options: "cuda")
    monkeypatch.setattr(loading, "_make_ops", lambda device, dtype, options: HostGpuOps(dtype, options.kernel_variants))
    monkeypatch.setattr(compile_ahead, "start_worker", lambda task: pytest.fail("a worker was started"))
    monkeypatch.setattr(compile_ahead, "available_cores", lambda: 0)
    monkeypatch.setattr("minllm.runtime.cuda_pages.CudaPages", HostGpuPages)
    with dry_run(H200) as launches:
        yield launches


@pytest.mark.parametrize(
    "family, options",
    [
        ("llama3", dict()),
        ("llama3", dict(dtype="float32")),
        ("llama3", dict(kernel_variants={"matmul": "tiled", "attention": "flash_attention_1"})),
        ("qwen3", dict(kv_cache_dtype="int8")),
        ("qwen2", dict(kv_cache_dtype="fp8", kv_cache_residual_window=32)),
        ("llama_linear", dict(kv_cache_dtype="kivi_int4")),
        ("mistral", dict(kv_cache_policy="virtual", kv_cache_memory_bytes=1 << 26)),
        ("gpt2", dict(kv_cache_policy="contiguous", max_model_len=64)),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_they_are_those_of_the_warm_up(family, options, on_gpu, monkeypatch):
    found = {}
    keys_of = compile_ahead.keys_of
    monkeypatch.setattr(compile_ahead, "keys_of", lambda *given: found.update(keys_of(*given)) or found)
    with LLM(model_directory(family), **dict(dtype="float16", kv_cache_memory_bytes=1 << 22, max_num_seqs=4, enforce_eager=True) | options):
        pass
    launched = keys_of(signatures(on_gpu), H200.compute_capability)
    missed = {key: launched[key] for key in launched.keys() - found.keys()}
    assert not missed, f"launched, but not found: {names(missed)}"
    never = names({key: found[key] for key in found.keys() - launched.keys()})
    assert set(never) <= ONLY_IN_GRAPHS, f"found, but not launched: {never}"


def names(found):
    return sorted(signature.kernel.__name__ for signature in found.values())
