"""The kernels that the parts of a record launch, for tools/record.py, which compiles them before it measures."""

from minllm.bench.kernel_cases import kernels_of_record as kernels_of_cases
from minllm.cache.kv_cache import CacheShape
from minllm.engine.kernels_needed import EngineShape, kernels_needed
from minllm.kernels.sampling.tensors import SamplingKind
from minllm.models.shapes import named_config
from minllm.ops.arguments import activation_dtype
from minllm.runtime.device import Device
from minllm.runtime.dry_run import Signature
from minllm.weights.formats import WEIGHT_FORMATS

# (shape, format of its weights or "") of the engines whose steps and serving are measured
ENGINES = (("llama-3.2-1b", ""), ("llama-3.1-8b", ""), ("llama-3.1-8b", "fp8"), ("llama-3.1-8b", "int4_g128"), ("qwen3-30b-a3b", ""))
# An engine with these limits launches all kernels of the measured ones.
LIMITS = dict(max_num_seqs=512, max_num_batched_tokens=4096, max_model_len=4160)


def kernels_of_record(device: Device) -> list[Signature]:
    """The kernels of the measured cases and of the engines, with their argument types."""
    return list(dict.fromkeys([*kernels_of_cases(device.compute_capability), *kernels_of_engines(device, ENGINES)]))


def kernels_of_engines(device: Device, engines: tuple[tuple[str, str], ...], dtype: str = "bfloat16") -> list[Signature]:
    """The kernels of engines, each given by a known shape and the format of its weights, or "" for plain ones."""
    return list(dict.fromkeys(kernel for engine in engines for kernel in kernels_needed(engine_shape(device, *engine, dtype))))


def engine_shape(device: Device, model: str, weight_format: str, dtype: str = "bfloat16") -> EngineShape:
    """An engine of a known shape with a plain cache and graphs."""
    config = named_config(model)
    cache = CacheShape(config.num_hidden_layers, 16, config.num_key_value_heads, config.head_dim, activation_dtype(dtype, "a record"))
    return EngineShape(
        device, config, cache, WEIGHT_FORMATS.get(weight_format), kernel_variants=None, virtual_cache=False, uses_graphs=True,
        kinds=(SamplingKind.GREEDY, SamplingKind.RANDOM), **LIMITS,
    )  # fmt: skip
