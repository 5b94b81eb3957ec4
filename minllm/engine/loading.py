"""From the options of LLM() to everything a generation needs: device, operations, model, tokenizer, cache and runner.

Nothing is allocated on a device before the checkpoint's headers have been read and every option has been checked.
"""

import functools
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from minllm.cache.capacity import CacheBudget, budget_beside, num_blocks_that_fit, one_block_per_sequence, tokens_that_fit
from minllm.cache.contiguous import ContiguousPolicy
from minllm.cache.hash_chain import HashChain
from minllm.cache.kv_cache import CacheShape, KVCache
from minllm.cache.offload import SwapSpace
from minllm.cache.paged import PagedPolicy
from minllm.cache.policy import CachePolicy
from minllm.cache.prefix_sharing import PrefixSharingPolicy
from minllm.cache.radix_tree import RadixTree
from minllm.cache.residual_window import window_room
from minllm.cache.transfers import CudaTransfers, HostTransfers
from minllm.cache.virtual.capacity import virtual_cache_that_fits
from minllm.cache.virtual.policy import VirtualPolicy
from minllm.costs.swap import SwapRates, swap_wins
from minllm.engine.cache_format import cache_shape, check_cache_dtype, check_shape
from minllm.engine.calibration import calibrate
from minllm.engine.memory_budget import available_host_bytes, cache_budget, check_weights_fit
from minllm.engine.options import EngineOptions
from minllm.engine.precompile import precompile
from minllm.engine.progress import Progress
from minllm.engine.requests.sampling_params import default_sampling_params
from minllm.engine.running.machine import CudaMachine, HostMachine
from minllm.engine.running.model_runner import ModelRunner
from minllm.engine.scheduling.kv_cache_manager import KVCacheManager
from minllm.engine.scheduling.length_prediction import LENGTH_PREDICTIONS
from minllm.engine.scheduling.policies import POLICIES
from minllm.engine.scheduling.preemption import Preemption
from minllm.engine.scheduling.scheduler import Scheduler
from minllm.errors import CheckpointError, InvalidOptionError, OutOfMemoryError
from minllm.machine.hardware import find_gpu
from minllm.models.config import ModelConfig
from minllm.models.generation_config import GenerationConfig
from minllm.models.model import Model, load_model
from minllm.models.random_checkpoint import RandomCheckpoint
from minllm.models.source import ModelSource, open_source
from minllm.models.tied_head import untied_if_stored
from minllm.models.tokenizer import Tokenizer
from minllm.models.weights import StoredWeights
from minllm.runtime.compile_ahead import CompileAhead
from minllm.weights.format import WeightFormat
from minllm.weights.formats import WEIGHT_FORMATS

BUNDLED_MODEL = "data/models/bundled"
HOST_GB_S = 50  # page-locked copies over PCIe 5; `minllm bench swap` measures a machine's own
UNKNOWN_GPU = (0.3, 60)  # TB/s, TFLOP/s


@dataclass
class Engine:
    """What LLM() made of its options."""

    path: Path  # of the model's directory or file
    device: str  # "cpu" or "cuda"
    ops: Any
    model: Model
    tokenizer: Tokenizer
    generation_config: GenerationConfig
    eos_token_ids: frozenset[int]
    max_model_len: int
    cache: KVCache
    cache_policy: CachePolicy
    scheduler: Scheduler
    runner: ModelRunner


def bundled_model() -> Path:
    """The directory of the bundled model."""
    bundled = Path(str(resources.files("minllm"))) / BUNDLED_MODEL
    if not bundled.is_dir():
        raise CheckpointError(f"The bundled model is missing from this installation ({bundled}): install minllm again, or give a path.")
    return bundled


def load_engine(options: EngineOptions, progress: Progress | None = None) -> Engine:
    """Loads a model and makes its cache. Raises CheckpointError, UnsupportedModelError, InvalidOptionError, DeviceError or
    OutOfMemoryError."""
    source = open_source(bundled_model() if options.model is None else Path(options.model))
    config, checkpoint = _open_model(source, options)
    dtype = options.dtype if options.dtype != "auto" else str(checkpoint.dtype(quantized=options.quantization is not None))
    generation_config, tokenizer = source.generation_config(), source.tokenizer()
    device = options.resolved_device()
    ops = _make_ops(device, dtype, options)
    shape = cache_shape(config, ops.dtype, options.block_size, options.kv_cache_dtype, options.kv_cache_residual_window)
    check_shape(device, shape)
    wanted_len = _wanted_model_len(options, config, shape, cache_budget(device, ops, config, options))
    weight_format = _weight_format(device, options)
    check_weights_fit(device, ops, config, weight_format)
    weights_read = None if progress is None else functools.partial(progress, "Loading weights")
    kernels_compiled = None if progress is None else functools.partial(progress, "Compiling kernels")
    with _precompile(device, config, shape, weight_format, options, wanted_len, generation_config) as compiling:
        model = load_model(
            source.path, ops, weights_read, max_positions=wanted_len, checkpoint=checkpoint, weight_format=weight_format, config=config
        )
        compiling.wait(kernels_compiled)
    calibration = calibrate(ops, model, shape, tokenizer, wanted_len)
    budget = cache_budget(device, ops, config, options)
    cache, policy = _make_cache(device, ops, options, shape=shape, budget=budget, wanted_len=wanted_len)
    max_model_len = _fitted_model_len(options, wanted_len, policy.max_sequence_tokens, budget)
    if calibration is not None:
        cache.calibrate(calibration.smoothing, calibration.scales, ops)
    runner = _make_runner(device, ops, model, cache=cache, policy=policy, options=options, max_model_len=max_model_len)
    scheduler = Scheduler(
        POLICIES[options.scheduling_policy](), KVCacheManager(policy, LENGTH_PREDICTIONS[options.length_prediction]()),
        _preemption(device, ops, config, cache, policy, options), options.max_num_seqs, options.max_num_batched_tokens,
    )  # fmt: skip
    eos_token_ids = _eos_token_ids(generation_config, config, tokenizer)
    return Engine(
        source.path, device, ops, model=model, tokenizer=tokenizer, generation_config=generation_config, eos_token_ids=eos_token_ids,
        max_model_len=max_model_len, cache=cache, cache_policy=policy, scheduler=scheduler, runner=runner,
    )  # fmt: skip


def _open_model(source: ModelSource, options: EngineOptions) -> tuple[ModelConfig, StoredWeights]:
    """The configuration, and the weights that are not read yet."""
    config = source.config()
    if options.load_format == "dummy":
        return config, RandomCheckpoint(config, options.seed)
    checkpoint = source.checkpoint(config, options.allow_nonfinite_weights)
    return untied_if_stored(config, checkpoint), checkpoint


def _precompile(
    device: str, config: ModelConfig, shape: CacheShape, weight_format: WeightFormat | None, options: EngineOptions, max_model_len: int,
    generation_config: GenerationConfig,
) -> CompileAhead:  # fmt: skip
    """Kernels being compiled in other processes, as a context with `wait`; nothing on a CPU."""
    if device == "cpu":
        return CompileAhead()
    if options.kv_cache_policy == "contiguous":
        shape = replace(shape, block_size=max_model_len)
    return precompile(config, shape, weight_format, options, max_model_len, default_sampling_params(generation_config))


def _make_cache(
    device: str, ops, options: EngineOptions, shape: CacheShape, budget: CacheBudget, wanted_len: int
) -> tuple[Any, CachePolicy]:
    """The memory for keys and values, and who decides about it."""
    if options.kv_cache_policy == "virtual":
        return _make_virtual_cache(device, options, shape, budget, wanted_len)
    room = window_room(shape.residual_window, options.max_num_seqs, options.max_num_batched_tokens)
    budget = budget_beside(room, shape, budget)
    if options.kv_cache_policy == "contiguous":
        shape = one_block_per_sequence(shape, budget, wanted_len)
    num_blocks = num_blocks_that_fit(shape, budget, options.max_num_seqs, wanted_len)
    return KVCache(ops, shape, num_blocks, room), _make_policy(options, shape, num_blocks)


def _make_virtual_cache(
    device: str, options: EngineOptions, shape: CacheShape, budget: CacheBudget, wanted_len: int
) -> tuple[Any, CachePolicy]:
    if device == "cpu":
        from minllm.runtime.host_pages import MOST_ADDRESSES, HostPages

        cache = virtual_cache_that_fits(
            HostPages(), shape, budget, max_num_seqs=options.max_num_seqs, max_model_len=wanted_len, most_addresses=MOST_ADDRESSES
        )
    else:
        from minllm.runtime.cuda_pages import CudaPages

        cache = virtual_cache_that_fits(CudaPages(), shape, budget, options.max_num_seqs, wanted_len)
    return cache, VirtualPolicy(cache)


def _make_policy(options: EngineOptions, shape: CacheShape, num_blocks: int) -> CachePolicy:
    if options.kv_cache_policy == "contiguous":
        return ContiguousPolicy(num_blocks, shape.block_size, shape.bytes_per_block)
    sizes = num_blocks, shape.block_size, shape.bytes_per_block
    if options.prefix_index is None:
        return PagedPolicy(*sizes)
    index = HashChain(shape.block_size) if options.prefix_index == "hash" else RadixTree(shape.block_size)
    return PrefixSharingPolicy(index, *sizes)


def _wanted_model_len(options: EngineOptions, config: ModelConfig, shape: CacheShape, budget: CacheBudget) -> int:
    """The longest sequence that was asked for; by default the model's, or what all free memory could cache.

    The table of rotary positions has this length. Some models claim ten million positions, whose table alone exceeds a machine's memory.
    """
    if options.max_model_len is None:
        return min(config.max_position_embeddings, max(2, tokens_that_fit(shape, budget)))
    if options.max_model_len > config.max_position_embeddings:
        raise InvalidOptionError(
            f"max_model_len={options.max_model_len} is more than this model's {config.max_position_embeddings} positions: "
            "lower it, or leave it out for the most that the model allows."
        )
    needed, free = 0 if config.rope is None else 4 * config.head_dim * options.max_model_len, available_host_bytes()
    if needed > free:
        raise OutOfMemoryError(
            f"max_model_len={options.max_model_len} needs a table of rotary positions of {needed:,} bytes, and {free:,} of this machine's "
            f"memory are free: lower it to {free // (8 * config.head_dim)} or less."
        )
    return options.max_model_len


def _fitted_model_len(options: EngineOptions, wanted: int, cache_tokens: int, budget: CacheBudget) -> int:
    """The longest sequence: what was asked for, which the cache must hold, or by default what it holds."""
    if cache_tokens < min(2, wanted):
        tiles = ' (kv_cache_policy="virtual" maps whole tiles; "paged" needs less)' if options.kv_cache_policy == "virtual" else ""
        raise OutOfMemoryError(
            f"The KV cache has memory for {cache_tokens} tokens of a sequence{tiles}, and a prompt and its first new token are 2: "
            f"take a smaller model, or {budget.advice}."
        )
    if options.max_model_len is not None and wanted > cache_tokens:
        raise OutOfMemoryError(
            f"max_model_len={wanted} does not fit the KV cache, which has memory for {cache_tokens} tokens: lower max_model_len to "
            f"{cache_tokens}, or {budget.advice}."
        )
    return min(wanted, cache_tokens)


def _eos_token_ids(generation_config: GenerationConfig, config: ModelConfig, tokenizer: Tokenizer) -> frozenset[int]:
    """The ids that end a text: generation_config.json's, or config.json's if that names none, or else the tokenizer's eos_token.

    Ids beyond the vocabulary (the defaults of a family with a larger one) can never come, and are left out.
    """
    ids = generation_config.eos_token_ids or config.eos_token_ids
    if not ids and tokenizer.eos_token_id is not None:
        ids = (tokenizer.eos_token_id,)
    return frozenset(token_id for token_id in ids if token_id < config.vocab_size)


def _make_ops(device: str, dtype: str, options: EngineOptions):
    check_cache_dtype(device, dtype, options)
    if device == "cpu":
        _check_no_memory_mode(options)
        if options.kernel_variants:
            return _simulated_stage_ops(dtype, options)
        from minllm.ops.numpy_ops import NumpyOps

        return NumpyOps(dtype)
    from minllm.ops.cuda_ops import CudaOps

    return CudaOps(dtype, options.kernel_variants, allocation=options.allocation, pinned=options.pinned)


def _weight_format(device: str, options: EngineOptions) -> WeightFormat | None:
    """The format of the layers' matrices; None leaves them as they are. InvalidOptionError if a GPU cannot multiply by it."""
    weight_format = None if options.quantization is None else WEIGHT_FORMATS[options.quantization]
    if weight_format is not None and device != "cpu" and weight_format.kernels is None:
        raise InvalidOptionError(f'quantization={options.quantization!r} has no kernels for a GPU: take device="cpu".')
    if weight_format is not None and device != "cpu":
        _check_capability(weight_format)
    return weight_format


def _check_capability(weight_format: WeightFormat) -> None:
    """Raises InvalidOptionError if the GPU lacks the format's instructions."""
    from minllm.runtime.device import current_device

    found, since = current_device().compute_capability, weight_format.since
    if since is not None and found < since:
        raise InvalidOptionError(
            f"quantization={weight_format.name!r} needs a GPU of compute capability {since[0]}.{since[1]} or more, and this one has "
            f"{found[0]}.{found[1]}: take quantization='int8', or device='cpu'."
        )


def _check_no_memory_mode(options: EngineOptions) -> None:
    """Raises InvalidOptionError for options that would change nothing on a CPU, so that nobody compares equals."""
    for name, value, default in (("allocation", options.allocation, None), ("pinned", options.pinned, True)):
        if value != default:
            raise InvalidOptionError(f"{name}={value!r} is about the memory of a GPU, and this LLM runs on the CPU: leave it out.")


def _simulated_stage_ops(dtype: str, options: EngineOptions):
    """NumPy with some stages' kernels in the simulator."""
    from minllm.ops.own_kernels import own_kernels

    own = own_kernels(options.kernel_variants)
    if len(own) < len(options.kernel_variants):
        raise InvalidOptionError("kernel_variants chooses among GPU kernels by name, and this LLM runs on the CPU: leave names out.")
    from minllm.ops.simulated_stage import SimulatedStageOps

    return SimulatedStageOps(dtype, own)


def _make_runner(
    device: str, ops, model: Model, cache: KVCache, policy: CachePolicy, options: EngineOptions, max_model_len: int
) -> ModelRunner:
    machine = HostMachine() if device == "cpu" else CudaMachine(ops)
    uses_graphs = device == "cuda" and not options.enforce_eager
    return ModelRunner(
        ops, model, cache, policy, max_num_seqs=options.max_num_seqs, max_num_batched_tokens=options.max_num_batched_tokens,
        max_model_len=max_model_len, machine=machine, uses_graphs=uses_graphs,
    )  # fmt: skip


def _preemption(device: str, ops, config: ModelConfig, cache: KVCache, policy: CachePolicy, options: EngineOptions) -> Preemption:
    """How sequences give up their memory. InvalidOptionError if this cache cannot be swapped."""
    if options.preemption in ("recompute", "drop"):
        return Preemption(options.preemption)
    if options.kv_cache_policy == "virtual":
        raise InvalidOptionError(f'preemption={options.preemption!r} needs kv_cache_policy="paged" or "contiguous", not "virtual".')
    if device == "cpu":  # both are work of the same cores, and copying is less of it
        return Preemption(options.preemption, SwapSpace(cache, policy, HostTransfers(), options.swap_space_bytes))
    swap_space = SwapSpace(cache, policy, CudaTransfers(ops.memory, ops.core_stream, ops.pinned), options.swap_space_bytes)
    rates, kv_itemsize = _swap_rates(), cache.shape.bytes_per_head / cache.shape.head_dim
    return Preemption(options.preemption, swap_space, lambda num_tokens: swap_wins(config, num_tokens, rates, kv_itemsize))


def _swap_rates() -> SwapRates:
    """What this GPU's data sheet says; an unknown GPU counts as a small one."""
    from minllm.runtime.device import current_device

    gpu = find_gpu(current_device().name)
    if gpu is None:
        return SwapRates(HOST_GB_S, *UNKNOWN_GPU)
    return SwapRates(HOST_GB_S, gpu.ceiling_tb_s, gpu.measured_bf16_tflops or gpu.bf16_tflops or gpu.fp32_tflops)
