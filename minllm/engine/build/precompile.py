"""Compile an engine's kernels in parallel processes, while its weights are read."""

from minllm.cache.kv_cache import CacheShape
from minllm.engine.kernels_needed import EngineShape, kernels_needed
from minllm.engine.options import EngineOptions
from minllm.engine.ranks.share import captures_steps
from minllm.engine.requests.sampling_params import SamplingParams
from minllm.kernels.sampling.parameters import kind_of
from minllm.kernels.sampling.tensors import SamplingKind
from minllm.models.config import ModelConfig
from minllm.parallel.dry_run_ranks import Split
from minllm.runtime.compile_ahead import CompileAhead, available_cores, compile_ahead
from minllm.runtime.device import current_device
from minllm.weights.format import WeightFormat


def precompile(
    config: ModelConfig, cache: CacheShape, weight_format: WeightFormat | None, options: EngineOptions, max_model_len: int,
    params: SamplingParams, split: Split | None = None,
) -> CompileAhead:  # fmt: skip
    """Start to compile the kernels that are not in the disk cache; use the result as a context.

    params: the default sampling parameters. split: one rank's part of the model; `config` is then the configuration of this part.
    """
    if not all(isinstance(variant, str) for variant in (options.kernel_variants or {}).values()):
        return CompileAhead()  # functions of the caller cannot be sent to another process
    shape = EngineShape(
        current_device(), config, cache, weight_format, kernel_variants=options.chosen_variants,
        virtual_cache=options.kv_cache_policy == "virtual", uses_graphs=captures_steps(options), max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens, max_model_len=max_model_len,
        kinds=tuple(sorted({SamplingKind.GREEDY, SamplingKind.RANDOM, kind_of(params)})), split=split,
    )  # fmt: skip
    try:
        processes = max(1, available_cores() // (split.ranks if split else 1))  # other ranks compile too, and find out what is needed
        return compile_ahead(kernels_needed, (shape,), shape.device.compute_capability, processes)
    except NotImplementedError:  # the weight format takes no part in dry runs
        return CompileAhead()
