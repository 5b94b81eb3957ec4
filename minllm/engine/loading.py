"""Make everything that generation needs from the options of LLM(): device, operations, model, tokenizer, cache and runner.

Nothing is allocated on a device before the checkpoint's headers have been read and every option has been checked.
"""

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minllm.cache.capacity import CacheBudget
from minllm.cache.kv_cache import CacheShape, KVCache
from minllm.cache.policy import CachePolicy
from minllm.engine.cache_format import cache_shape, check_cache_dtype, check_shape, with_sliding_layers
from minllm.engine.calibration import calibrate
from minllm.engine.compute_dtype import compute_dtype
from minllm.engine.make_cache import make_cache
from minllm.engine.make_preemption import make_preemption
from minllm.engine.make_speculator import (
    budget_beside_draft,
    draft_cache,
    draft_shape,
    load_draft,
    make_source,
    make_speculation,
    make_speculator,
)  # fmt: skip
from minllm.engine.max_model_len import fitted_model_len, wanted_model_len
from minllm.engine.memory_budget import cache_budget, check_sizes_fit, check_weights_fit
from minllm.engine.options import BLOCK_SIZE, EngineOptions
from minllm.engine.precompile import precompile
from minllm.engine.progress import Progress
from minllm.engine.ranks.share import RankShare, captures_steps
from minllm.engine.requests.default_params import default_sampling_params
from minllm.engine.requests.grammar import Grammars
from minllm.engine.running.machine import CudaMachine, HostMachine
from minllm.engine.running.model_runner import ModelRunner
from minllm.engine.running.speculator import DraftSource
from minllm.engine.scheduling.kv_cache_manager import KVCacheManager
from minllm.engine.scheduling.length_prediction import LENGTH_PREDICTIONS
from minllm.engine.scheduling.policies import POLICIES
from minllm.engine.scheduling.scheduler import Scheduler
from minllm.errors import InvalidOptionError
from minllm.models.config import ModelConfig
from minllm.models.generation_config import GenerationConfig
from minllm.models.gguf.gguf_model import GgufModel
from minllm.models.model import Model, load_model
from minllm.models.random_checkpoint import RandomCheckpoint
from minllm.models.source import ModelSource, bundled_model, open_source
from minllm.models.tied_head import untied_if_stored
from minllm.models.tokenizer import Tokenizer
from minllm.models.weights import StoredWeights
from minllm.parallel.dry_run_ranks import Split
from minllm.parallel.processes import OtherRanks
from minllm.runtime.compile_ahead import CompileAhead
from minllm.weights.format import WeightFormat
from minllm.weights.formats import WEIGHT_FORMATS, quantizations
from minllm.weights.int4 import Int4Format


@dataclass
class Engine:
    """The parts that LLM() has made from its options."""

    path: Path  # the model's directory or file
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
    processes: OtherRanks | None = None  # None for a single rank
    program: Any = None  # ranks.launched.LaunchedProgram, which keeps the calls of all ranks in step; None without a launcher

    @functools.cached_property
    def grammars(self) -> Grammars:
        """The grammars of structured outputs."""
        return Grammars(self.tokenizer, self.model.config.vocab_size, self.eos_token_ids, self.runner.chooses_late)

    def close(self) -> None:
        """Drop the graphs, and end the other ranks."""
        try:
            self.runner.close()
        finally:
            if self.processes is not None:
                self.processes.close()


def model_config(options: EngineOptions) -> ModelConfig:
    """The model's configuration. Raises CheckpointError or UnsupportedModelError."""
    return _source(options).config()


def load_engine(options: EngineOptions, progress: Progress | None = None, share: RankShare | None = None) -> Engine:
    """Loads a model and makes its cache.

    share: this rank's share of the model, if several ranks share it; all ranks call this at the same time. Raises CheckpointError,
    UnsupportedModelError, InvalidOptionError, DeviceError or OutOfMemoryError.
    """
    source = _source(options)
    config, checkpoint = _open_model(source, options)
    generation_config, tokenizer = source.generation_config(), source.tokenizer()
    device = options.resolved_device()
    weight_format = _weight_format(device, options, source, config, checkpoint)
    dtype = compute_dtype(options.dtype, str(checkpoint.dtype(quantized=weight_format is not None)), device)
    _check_own_kernels(options, config, weight_format)
    check_cache_dtype(device, dtype, options)
    _check_soft_cap(device, config, options)
    ops = _make_ops(device, dtype, options) if share is None else share.make_ops(device, dtype, options, config)
    part = config if share is None else share.part(config)
    _check_expert_widths(device, part, weight_format)
    shape = cache_shape(part, ops.dtype, options.block_size or BLOCK_SIZE, options.kv_cache_dtype, options.kv_cache_residual_window or 0)
    shape = with_sliding_layers(shape, part, options) if share is None else share.shared(shape, ops)
    check_shape(device, shape)
    wanted_len = wanted_model_len(options, config, shape, _budget(device, ops, part, options, weight_format, share))
    check_weights_fit(device, ops, part, weight_format)
    check_sizes_fit(device, ops, part, options, wanted_len)
    weights_read = None if progress is None else functools.partial(progress, "Loading weights")
    kernels_compiled = None if progress is None else functools.partial(progress, "Compiling kernels")
    split = None if share is None else share.split(config)
    with _precompile(device, part, shape, weight_format, options, wanted_len, generation_config, split) as compiling:
        model = load_model(
            source.path, ops, weights_read, max_positions=wanted_len, checkpoint=checkpoint, weight_format=weight_format, config=config,
            make_reader=None if share is None else share.make_reader,
        )  # fmt: skip
        compiling.wait(kernels_compiled)
    random_seed = options.seed if options.load_format == "dummy" else None
    draft = load_draft(options.speculation, ops, tokenizer, config.vocab_size, wanted_len, random_seed)
    of_draft = draft_shape(draft, ops, device, shape.block_size)
    calibration = calibrate(ops, model, shape, tokenizer, wanted_len)
    budget = budget_beside_draft(_budget(device, ops, part, options, weight_format, share), shape, of_draft)
    cache, policy = make_cache(device, ops, options, shape=shape, budget=budget, wanted_len=wanted_len)
    max_model_len = fitted_model_len(options, wanted_len, policy.max_sequence_tokens, budget)
    if calibration is not None:
        cache.calibrate(calibration.smoothing, calibration.scales, ops)
    cache_of_draft = draft_cache(of_draft, ops, policy)
    drafts = None
    if options.speculation is not None:
        drafts = make_source(options.speculation, ops, draft, cache_of_draft, options.max_num_seqs)
    runner = _make_runner(
        ModelRunner if share is None else share.runner, device, ops, model, cache=cache, policy=policy, options=options,
        max_model_len=max_model_len, drafts=drafts,
    )  # fmt: skip
    scheduler = Scheduler(
        POLICIES[options.scheduling_policy](), KVCacheManager(policy, LENGTH_PREDICTIONS[options.length_prediction]()),
        make_preemption(device, ops, config, cache, policy, options, cache_of_draft), options.max_num_seqs, options.max_num_batched_tokens,
        make_speculation(options.speculation, device, config, draft),
    )  # fmt: skip
    eos_token_ids = _eos_token_ids(generation_config, config, tokenizer)
    return Engine(
        source.path, device, ops, model=model, tokenizer=tokenizer, generation_config=generation_config, eos_token_ids=eos_token_ids,
        max_model_len=max_model_len, cache=cache, cache_policy=policy, scheduler=scheduler, runner=runner,
    )  # fmt: skip


def _source(options: EngineOptions) -> ModelSource:
    return open_source(bundled_model() if options.model is None else Path(options.model))


def _budget(
    device: str, ops: Any, part: ModelConfig, options: EngineOptions, weight_format: WeightFormat | None, share: RankShare | None
) -> CacheBudget:  # fmt: skip
    """The memory for the KV cache; if several ranks share the model, that of the rank with the least."""
    budget = cache_budget(device, ops, part, options, weight_format)
    return budget if share is None else share.agreed(budget, device, options)


def _open_model(source: ModelSource, options: EngineOptions) -> tuple[ModelConfig, StoredWeights]:
    """The configuration, and the weights, which are not read yet."""
    config = source.config()
    if options.load_format == "dummy":
        return config, RandomCheckpoint(config, options.seed)
    checkpoint = source.checkpoint(config, options.allow_nonfinite_weights)
    return untied_if_stored(config, checkpoint), checkpoint


def _precompile(
    device: str, config: ModelConfig, shape: CacheShape, weight_format: WeightFormat | None, options: EngineOptions, max_model_len: int,
    generation_config: GenerationConfig, split: Split | None,
) -> CompileAhead:  # fmt: skip
    """Kernels being compiled in other processes, as a context with `wait`; nothing on a CPU."""
    if device == "cpu":
        return CompileAhead()
    if options.kv_cache_policy == "contiguous":
        shape = replace(shape, block_size=max_model_len)
    default_params = default_sampling_params(generation_config, config.vocab_size)
    return precompile(config, shape, weight_format, options, max_model_len, default_params, split)


def _eos_token_ids(generation_config: GenerationConfig, config: ModelConfig, tokenizer: Tokenizer) -> frozenset[int]:
    """The ids that end a text: generation_config.json's, or config.json's if that names none, and the tokenizer's eos_token.

    As in vLLM, the tokenizer's counts beside the others, because chat models often name the end of a turn only there. Ids beyond the
    vocabulary (defaults of a model family with a larger one) can never be generated, and are left out.
    """
    ids = {*(generation_config.eos_token_ids or config.eos_token_ids), tokenizer.eos_token_id}
    return frozenset(token_id for token_id in ids if token_id is not None and token_id < config.vocab_size)


def _make_ops(device: str, dtype: str, options: EngineOptions):
    if device == "cpu":
        _check_no_memory_mode(options)
        if options.kernel_variants:
            return _simulated_stage_ops(dtype, options)
        return _numpy_ops(dtype, options.batch_invariant)
    from minllm.ops.cuda_ops import CudaOps

    return CudaOps(dtype, options.chosen_variants, allocation=options.allocation, pinned=options.pinned)


def _numpy_ops(dtype: str, batch_invariant: bool):
    if batch_invariant:
        from minllm.ops.numpy_fixed_order import FixedOrderNumpyOps

        return FixedOrderNumpyOps(dtype)
    from minllm.ops.numpy_ops import NumpyOps

    return NumpyOps(dtype)


def _weight_format(
    device: str, options: EngineOptions, source: ModelSource, config: ModelConfig, checkpoint: StoredWeights
) -> WeightFormat | None:
    """The format of the layers' matrices; None leaves them as they are.

    On a CPU a GGUF file is dequantised while it loads, because NumPy multiplies floats. Raises InvalidOptionError if no GPU
    kernels multiply by the format, or if an option contradicts the file's format.
    """
    stored = source.weight_format(config, checkpoint)
    if stored is not None and (options.quantization is not None or options.load_format == "dummy"):
        option = f"quantization={options.quantization!r}" if options.quantization is not None else 'load_format="dummy"'
        raise InvalidOptionError(f"{source.path} is stored quantised ({stored.name}), which {option} contradicts: leave the option out.")
    weight_format = None if options.quantization is None else WEIGHT_FORMATS[options.quantization]
    if stored is not None and not (device == "cpu" and isinstance(source, GgufModel)):
        weight_format = stored
    if weight_format is not None and config.num_experts and (stored is not None or not weight_format.has_experts):
        known = ", ".join(name for name in quantizations() if WEIGHT_FORMATS[name].has_experts)
        raise InvalidOptionError(
            f"{source.path} has experts, which minllm multiplies as they are or quantised while loading, as one of {known}, not in "
            f"{weight_format.name}: take a checkpoint that is not quantised, and one of these or quantization=None."
        )
    if weight_format is not None and device != "cpu":
        _check_capability(weight_format)
        if options.batch_invariant:
            raise InvalidOptionError(
                f"batch_invariant=True has no kernels for weights in {weight_format.name} on a GPU, only for plain ones: "
                'take a checkpoint that is not quantised, or device="cpu".'
            )
    return weight_format


def _check_expert_widths(device: str, part: ModelConfig, weight_format: WeightFormat | None) -> None:
    """Raises InvalidOptionError unless rows of quantised experts are whole 16-byte loads of codes. part: the model, or a rank's part."""
    if device == "cpu" or not part.num_experts or weight_format is None:
        return
    each = int(16 / weight_format.matrix_itemsize)
    for name, width in (("hidden size", part.hidden_size), ("inner width", part.intermediate_size)):
        if width % each:
            raise InvalidOptionError(
                f"Experts in {weight_format.name} have rows of a multiple of {each} numbers, and here the {name} (on each rank) is "
                f"{width}: take quantization=None, or other ranks."
            )


def _check_capability(weight_format: WeightFormat) -> None:
    """Raises InvalidOptionError if the GPU lacks the format's instructions."""
    from minllm.runtime.device import current_device

    found, since = current_device().compute_capability, weight_format.since
    if since is not None and found < since:
        is_option = weight_format.is_option
        what = f"quantization={weight_format.name!r}" if is_option else f"A checkpoint that is stored quantised ({weight_format.name})"
        instead = "quantization='int8'" if is_option else "a checkpoint in int8 or 16 bits"
        raise InvalidOptionError(
            f"{what} needs a GPU of compute capability {since[0]}.{since[1]} or more, and this one has {found[0]}.{found[1]}: "
            f"take {instead}, or device='cpu'."
        )


def _check_soft_cap(device: str, config: ModelConfig, options: EngineOptions) -> None:
    """Raises InvalidOptionError for options for which attention with bounded scores has no kernels on a GPU."""
    drafts = options.speculation
    if device == "cpu" or not config.attention_soft_cap:
        return
    if options.kv_cache_dtype != "auto" or (drafts is not None and drafts.tree):
        what = f"kv_cache_dtype={options.kv_cache_dtype!r}" if options.kv_cache_dtype != "auto" else "a tree of drafts"
        raise InvalidOptionError(
            f"A {config.model_type} model bounds its attention's scores (attn_logit_softcapping = {config.attention_soft_cap}), for which "
            f'there are no kernels with {what} on a GPU: leave it out, or take device="cpu".'
        )


def _check_own_kernels(options: EngineOptions, config: ModelConfig, weight_format: WeightFormat | None) -> None:
    """Raises InvalidOptionError for a user's kernel that would never run: no weight or expert of this model, or no draft, needs it."""
    stage, named = Int4Format.own_stage, weight_format is None or weight_format.is_option
    if stage in (options.kernel_variants or {}) and named and getattr(weight_format, "own_stage", None) != stage:
        raise InvalidOptionError(f'Your {stage} kernel multiplies 4-bit weights, and this model has none: add quantization="int4".')
    if "sort_by_expert" in (options.kernel_variants or {}) and not config.num_experts:
        raise InvalidOptionError("Your sort_by_expert kernel is for experts, and this model has no experts: take a Qwen2-MoE or Qwen3-MoE.")
    drafts = options.speculation
    if "accept" in (options.kernel_variants or {}) and (drafts is None or drafts.synthetic_acceptance_rate is not None or drafts.tree):
        what = "nothing is drafted" if drafts is None else "a path of a tree is accepted" if drafts.tree else "chance accepts the drafts"
        raise InvalidOptionError(
            f'Your accept kernel decides on drafts, and here {what}: give speculative_config={{"method": "ngram", '
            '"num_speculative_tokens": 4}, without synthetic_acceptance_rate.'
        )


def _check_no_memory_mode(options: EngineOptions) -> None:
    """Raises InvalidOptionError for options that change nothing on a CPU: comparing their values there would mean nothing."""
    for name, value, default in (("allocation", options.allocation, None), ("pinned", options.pinned, True)):
        if value != default:
            raise InvalidOptionError(f"{name}={value!r} is about the memory of a GPU, and this LLM runs on the CPU: leave it out.")


def _simulated_stage_ops(dtype: str, options: EngineOptions):
    """NumPy operations, with the kernels of some stages run in the simulator."""
    from minllm.ops.own_kernels import own_kernels

    variants = options.kernel_variants or {}
    own = own_kernels(variants)
    if len(own) < len(variants):
        raise InvalidOptionError("kernel_variants chooses among GPU kernels by name, and this LLM runs on the CPU: leave names out.")
    from minllm.ops.simulated_stage import SimulatedStageOps

    return SimulatedStageOps(dtype, own)


def _make_runner(
    kind: type[ModelRunner], device: str, ops, model: Model, cache: KVCache, policy: CachePolicy, options: EngineOptions,
    max_model_len: int, drafts: DraftSource | None,
) -> ModelRunner:  # fmt: skip
    machine, wanted = HostMachine() if device == "cpu" else CudaMachine(ops), options.speculation
    uses_graphs = device == "cuda" and captures_steps(options)
    speculator = None
    if wanted is not None and drafts is not None:
        speculator = functools.partial(make_speculator, wanted, drafts, ops, machine, max_model_len=max_model_len, cache=cache)
        max_model_len += wanted.rows_beyond
    return kind(
        ops, model, cache, policy, max_num_seqs=options.max_num_seqs, max_num_batched_tokens=options.max_num_batched_tokens,
        max_model_len=max_model_len, machine=machine, uses_graphs=uses_graphs, speculator=speculator,
    )  # fmt: skip
