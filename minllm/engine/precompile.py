"""Compile an engine's kernels in parallel processes, while its weights are read."""

from collections.abc import Sequence
from dataclasses import replace

from minllm.cache.kv_cache import CacheShape
from minllm.engine.kernels_needed import EngineShape, ForwardPass, kernels_needed
from minllm.engine.options import EngineOptions
from minllm.engine.sampling_params import SamplingParams
from minllm.models.config import ModelConfig
from minllm.runtime.compile_ahead import CompileAhead, compile_ahead
from minllm.runtime.device import current_device
from minllm.weights.format import WeightFormat

PROMPT_LENGTHS = (16, 512)
SHORT_CONTEXTS = (256, 768)  # tokens; attention of one short sequence has kernels of its own


def precompile(
    config: ModelConfig, cache: CacheShape, weight_format: WeightFormat | None, options: EngineOptions, max_model_len: int,
    params: SamplingParams, passes: Sequence[ForwardPass] | None = None,
) -> CompileAhead:  # fmt: skip
    """Start to compile the kernels of these forward passes that are not in the disk cache; use the result as a context.

    params: how requests are sampled, besides greedily. passes: None for those of a first request.
    """
    if not all(isinstance(variant, str) for variant in (options.kernel_variants or {}).values()):
        return CompileAhead()  # functions of the caller cannot be sent to another process
    shape = EngineShape(
        current_device(), config, cache, weight_format, kernel_variants=options.kernel_variants,
        virtual_cache=options.kv_cache_policy == "virtual", max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens, max_model_len=max_model_len,
        sampling=(params, replace(params, temperature=0.0)), passes=tuple(first_request(max_model_len) if passes is None else passes),
    )  # fmt: skip
    try:
        return compile_ahead(kernels_needed, (shape,), shape.device.compute_capability)
    except NotImplementedError:  # the weight format takes no part in dry runs
        return CompileAhead()


def first_request(max_model_len: int) -> list[ForwardPass]:
    """A short and a long prompt, and decode steps of one sequence."""
    prompts = [ForwardPass(1, min(length, max_model_len - 1), max_model_len) for length in PROMPT_LENGTHS]
    contexts = (*(length for length in SHORT_CONTEXTS if length < max_model_len), max_model_len)
    return [*prompts, *(ForwardPass(1, 1, context) for context in contexts)]
